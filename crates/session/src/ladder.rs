//! Resuming a conversation with fallback strategies, and the receipt that says which one was used. What came back is
//! compared with the session's log, so that a resume that lost something says so.

use crate::{live_directory::CheckpointFallback, machine::LogState, path_list::PathList};
use ash_driver::{ConversationSource, ResumedConversation};
use ash_model::{
    AdoptionPoint, EventSeq, Receipt, ResumeComparison, ResumePath, ResumeSource, Tier, TreeOrigin,
};
use uuid::Uuid;

/// Which conversation the agent is told to continue.
pub(crate) fn conversation_source(state: &LogState, id: Uuid) -> ConversationSource {
    match state.inherited_memory {
        Some(from) => ConversationSource::Fork { from, id },
        None if state.turns_delivered == 0 && state.turns.iter().all(|turn| turn.attempt == 0) => {
            ConversationSource::Fresh { id }
        }
        None => ConversationSource::Resume { id },
    }
}

/// The conversation with which an agent starts.
#[derive(Debug, Clone)]
pub(crate) struct RecalledConversation {
    pub(crate) memory: ConversationSource,
    pub(crate) tier: Tier,
    /// What was found of the conversation, from reading the transcript or from the agent's report.
    pub(crate) found: Option<ResumedConversation>,
    pub(crate) repairs: Vec<String>,
    pub(crate) lost: Vec<String>,
    /// The conversation includes what an interrupted turn had said and done up to this event.
    pub(crate) resumed_after: Option<EventSeq>,
    /// How many messages the agent should know, if the server has read the transcript.
    pub(crate) messages: Option<u64>,
    /// The prompts in the transcript, if the server has read it.
    pub(crate) prompts: Vec<Uuid>,
    /// Where the earlier transcript was moved to, and where it was before.
    pub(crate) aside: Option<(String, String)>,
}

/// Where the files came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartTreeOrigin {
    Live,
    Checkpoint,
    /// A checkpoint that was not on this machine.
    Remote,
    Fresh,
}

/// What the receipt reports about trees other than the restored one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReceiptDetails<'o> {
    /// What only the untrusted tree holds, which was kept as a salvage checkpoint.
    pub(crate) salvage: Option<&'o SalvageOnlyFiles>,
    /// The newest checkpoint could not be read.
    pub(crate) fallback: Option<&'o CheckpointFallback>,
    /// The comparison of the newest checkpoint with the log.
    pub(crate) compared: Option<&'o (ResumeComparison, Vec<String>)>,
    /// What the restored checkpoint does not hold.
    pub(crate) unsaved: &'o [String],
}

/// What a salvaged tree holds that the tree of the checkpoint, which replaced it, does not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SalvageOnlyFiles {
    pub(crate) files: PathList,
    /// Why the trees could not be compared.
    pub(crate) unreadable: Option<String>,
}

pub(crate) fn receipt(
    state: &LogState,
    origin: StartTreeOrigin,
    recalled: &RecalledConversation,
    others: ReceiptDetails<'_>,
) -> Receipt {
    let ReceiptDetails { salvage, fallback, compared, unsaved } = others;
    let (source, from) = match origin {
        StartTreeOrigin::Live => (ResumeSource::Local, TreeOrigin::Live),
        StartTreeOrigin::Checkpoint => (ResumeSource::Local, TreeOrigin::Checkpoint),
        StartTreeOrigin::Remote => (ResumeSource::Cloud, TreeOrigin::Checkpoint),
        StartTreeOrigin::Fresh => (ResumeSource::Fresh, TreeOrigin::Checkpoint),
    };
    let mut lost = lost_files(state, origin, salvage);
    lost.extend(fallback.map(|CheckpointFallback { instead_of, used, why }| {
        format!("checkpoint {instead_of}, which is damaged ({why}): the files are those of checkpoint {used}")
    }));
    lost.extend(unsaved.iter().cloned());
    let checkpoint = fallback.map(|fallback| fallback.used).or(state.checkpoint);
    let checkpoint = checkpoint.filter(|_| origin != StartTreeOrigin::Fresh);
    lost.extend(lost_log(state));
    lost.extend(compared.iter().flat_map(|(_, lost)| lost.iter().cloned()));
    let tier = tier(state, recalled, &mut lost);
    let compared = compared
        .map(|(compared, _)| Box::new(ResumeComparison { messages: recalled.messages, ..compared.clone() }));
    // The agent's transcript may or may not contain the interrupted turn, so one message more than the log is complete
    // too.
    let verified = lost.is_empty();
    let repaired = recalled.repairs.clone();
    let path = ResumePath::Cold;
    let salvage = state.salvaged;
    let adopted = state.adopted.as_ref().map(|adopted| AdoptionPoint {
        epoch: adopted.epoch,
        seq: adopted.seq,
        checkpoint: adopted.checkpoint,
    });
    Receipt { path, source, from, tier, checkpoint, verified, lost, compared, repaired, salvage, adopted }
}

/// Which events of the log are missing, and which history moved to another session.
fn lost_log(state: &LogState) -> Vec<String> {
    let missing = state.missing.iter().map(|(first, last)| match first == last {
        true => format!("event {first} of the log: no witness has it any more"),
        false => format!("events {first} to {last} of the log: no witness has them any more"),
    });
    let diverged = state.adopted.as_ref().and_then(|adopted| adopted.diverged.as_ref());
    let diverged = diverged.map(|fork| {
        format!("the history that the database had instead: it is the session {fork} now, with its files")
    });
    missing.chain(diverged).collect()
}

fn lost_files(state: &LogState, origin: StartTreeOrigin, salvage: Option<&SalvageOnlyFiles>) -> Vec<String> {
    match origin {
        StartTreeOrigin::Live => Vec::new(),
        StartTreeOrigin::Checkpoint | StartTreeOrigin::Remote => since_the_checkpoint(state, salvage),
        StartTreeOrigin::Fresh if state.turns_delivered > 0 => vec!["workspace".to_owned()],
        StartTreeOrigin::Fresh => Vec::new(),
    }
}

/// Files that changed since the restored checkpoint are lost.
fn since_the_checkpoint(state: &LogState, salvage: Option<&SalvageOnlyFiles>) -> Vec<String> {
    let aside = match (state.salvaged, salvage) {
        (Some(number), Some(SalvageOnlyFiles { unreadable: Some(why), .. })) => {
            Some(format!(": see salvage checkpoint {number}; it could not be compared ({why})"))
        }
        (Some(number), Some(SalvageOnlyFiles { files, .. })) if !files.is_empty() => {
            Some(format!(": only salvage checkpoint {number} holds {files}"))
        }
        (Some(_), Some(_)) | (None, _) | (_, None) => None,
    };
    let (mut lost, told) = (Vec::new(), aside.clone().unwrap_or_default());
    match state.unsaved {
        0 => {}
        1 => lost.push(format!("files of a finished turn that was not saved{told}")),
        turns => lost.push(format!("files of {turns} finished turns that were not saved{told}")),
    }
    if state.current().is_some() {
        let told = if lost.is_empty() { told.as_str() } else { "" };
        lost.push(format!("files changed since the last checkpoint by the turn that was cut{told}"));
    }
    match aside {
        Some(aside) if lost.is_empty() => vec![format!("changes since the last checkpoint{aside}")],
        Some(_) | None => lost,
    }
}

fn tier(state: &LogState, recalled: &RecalledConversation, lost: &mut Vec<String>) -> Tier {
    let Some(found) = &recalled.found else { return Tier::Fresh };
    if !found.is_found {
        if state.turns_delivered == 0 {
            return Tier::Fresh;
        }
        let told = match recalled.tier {
            Tier::History => ", which is told to the agent as text",
            Tier::Native | Tier::Repaired | Tier::Rebuilt | Tier::Fresh => "",
        };
        lost.push(format!("the agent's own memory of {} turns{told}", state.turns_delivered));
        return if recalled.tier == Tier::History { Tier::History } else { Tier::Fresh };
    }
    if found.turns < state.turns_delivered {
        lost.push(format!(
            "{} of {} turns of the conversation",
            state.turns_delivered - found.turns,
            state.turns_delivered
        ));
    }
    if found.damaged > 0 {
        lost.push(format!("{} unreadable entries of the agent's transcript", found.damaged));
    }
    lost.extend(recalled.lost.iter().cloned());
    recalled.tier
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recalled(found: bool, turns: u64) -> RecalledConversation {
        RecalledConversation {
            memory: ConversationSource::Resume { id: Uuid::nil() },
            tier: Tier::Native,
            found: Some(ResumedConversation { is_found: found, turns, damaged: 0 }),
            repairs: Vec::new(),
            prompts: Vec::new(),
            lost: Vec::new(),
            resumed_after: None,
            messages: None,
            aside: None,
        }
    }

    fn with(told: u64) -> LogState {
        let mut state = LogState::new(0);
        state.turns_delivered = told;
        state
    }

    #[test]
    fn a_conversation_that_is_not_found_is_named_as_lost() {
        let missing =
            receipt(&with(3), StartTreeOrigin::Live, &recalled(false, 0), ReceiptDetails::default());
        assert_eq!((missing.tier, missing.verified), (Tier::Fresh, false));
        assert_eq!(missing.lost, ["the agent's own memory of 3 turns"]);
        let told = RecalledConversation { tier: Tier::History, ..recalled(false, 0) };
        let told = receipt(&with(3), StartTreeOrigin::Live, &told, ReceiptDetails::default());
        assert_eq!((told.tier, told.verified), (Tier::History, false));
    }

    #[test]
    fn a_shorter_conversation_is_not_verified() {
        let receipt =
            receipt(&with(3), StartTreeOrigin::Checkpoint, &recalled(true, 2), ReceiptDetails::default());
        assert_eq!((receipt.tier, receipt.verified), (Tier::Native, false));
        assert_eq!(receipt.lost, ["1 of 3 turns of the conversation"]);
    }

    #[test]
    fn a_whole_conversation_is_verified() {
        let receipt =
            receipt(&with(3), StartTreeOrigin::Checkpoint, &recalled(true, 3), ReceiptDetails::default());
        assert!(receipt.verified && receipt.lost.is_empty());
    }

    #[test]
    fn files_that_no_checkpoint_holds_are_lost() {
        let unsaved = ["workspace/pipe (a FIFO), which a checkpoint cannot hold".to_owned()];
        let others = ReceiptDetails { unsaved: &unsaved, ..ReceiptDetails::default() };
        let receipt = receipt(&with(3), StartTreeOrigin::Checkpoint, &recalled(true, 3), others);
        assert_eq!((receipt.verified, &receipt.lost[..]), (false, &unsaved[..]));
    }

    #[test]
    fn files_of_an_older_checkpoint_are_said_to_be_so() {
        let fallback = CheckpointFallback { instead_of: 5, used: 3, why: "its pack is not there".to_owned() };
        let others = ReceiptDetails { fallback: Some(&fallback), ..ReceiptDetails::default() };
        let receipt = receipt(&with(3), StartTreeOrigin::Checkpoint, &recalled(true, 3), others);
        assert_eq!((receipt.checkpoint, receipt.verified), (Some(3), false));
        assert_eq!(
            receipt.lost,
            ["checkpoint 5, which is damaged (its pack is not there): the files are those of checkpoint 3"]
        );
    }

    #[test]
    fn files_that_only_the_salvage_holds_are_named() {
        let mut files = PathList::default();
        files.add("workspace", b"later.txt");
        let salvage = SalvageOnlyFiles { files, unreadable: None };
        let lost = |state: &LogState, origin, salvage: &SalvageOnlyFiles| {
            let others = ReceiptDetails { salvage: Some(salvage), ..ReceiptDetails::default() };
            receipt(state, origin, &recalled(true, 3), others).lost
        };
        let (mut torn, nothing) = (with(3), SalvageOnlyFiles::default());
        torn.salvaged = Some(4);
        assert_eq!(
            lost(&torn, StartTreeOrigin::Checkpoint, &salvage),
            ["changes since the last checkpoint: only salvage checkpoint 4 holds later.txt"]
        );
        assert_eq!(lost(&torn, StartTreeOrigin::Checkpoint, &nothing), [""; 0]);
        torn.unsaved = 2;
        assert_eq!(
            lost(&torn, StartTreeOrigin::Remote, &salvage),
            ["files of 2 finished turns that were not saved: only salvage checkpoint 4 holds later.txt"]
        );
        assert_eq!(lost(&torn, StartTreeOrigin::Live, &salvage), [""; 0], "they are where they were");
        torn.salvaged = None;
        assert_eq!(
            lost(&torn, StartTreeOrigin::Checkpoint, &nothing),
            ["files of 2 finished turns that were not saved"]
        );
    }

    #[test]
    fn a_first_start_takes_up_nothing_and_a_fork_its_parents() {
        let (id, parent) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert_eq!(conversation_source(&with(0), id), ConversationSource::Fresh { id });
        assert_eq!(conversation_source(&with(1), id), ConversationSource::Resume { id });
        let mut fork = with(1);
        fork.inherited_memory = Some(parent);
        assert_eq!(conversation_source(&fork, id), ConversationSource::Fork { from: parent, id });
    }
}
