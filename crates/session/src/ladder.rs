//! The way back into a conversation, and the receipt that says how far it went. What came back is compared with
//! what our own log says was there; a resume that lost something says so.

use crate::{live::Fallback, path_list::PathList, state::State};
use ash_driver::{Memory, Remembered};
use ash_model::{AdoptedUpTo, Compared, From, Path, Receipt, Seq, Source, Tier};
use uuid::Uuid;

/// Which conversation the agent is asked to take up.
pub(crate) fn memory(state: &State, id: Uuid) -> Memory {
    match state.unborn {
        Some(from) => Memory::Fork { from, id },
        None if state.told == 0 && state.turns.iter().all(|turn| turn.attempt == 0) => Memory::Fresh { id },
        None => Memory::Own { id },
    }
}

/// With which memory an agent starts.
#[derive(Debug, Clone)]
pub(crate) struct Recalled {
    pub(crate) memory: Memory,
    pub(crate) tier: Tier,
    /// What is there of it, by our own look or by what the agent says.
    pub(crate) found: Option<Remembered>,
    pub(crate) repairs: Vec<String>,
    pub(crate) lost: Vec<String>,
    /// What a turn that was cut off had said and done, up to here, is part of it.
    pub(crate) kept: Option<Seq>,
    /// How many messages the agent should know, where we looked ourselves.
    pub(crate) messages: Option<u64>,
    /// Which prompts are in it, where we looked ourselves.
    pub(crate) prompts: Vec<Uuid>,
    /// Where what was there before was put, and where it was.
    pub(crate) aside: Option<(String, String)>,
}

/// Where the files came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Live,
    Checkpoint,
    /// A checkpoint that was not here.
    Far,
    Fresh,
}

/// What is to be said about trees besides the one that came back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Others<'o> {
    /// What only the tree holds that could not be trusted, and was kept.
    pub(crate) salvage: Option<&'o OnlyInSalvage>,
    /// The newest could not be read.
    pub(crate) fallback: Option<&'o Fallback>,
    /// What the newest checkpoint says, beside what the log says.
    pub(crate) compared: Option<&'o (Compared, Vec<String>)>,
    /// What the checkpoint does not hold whose files came back.
    pub(crate) unsaved: &'o [String],
}

/// What a salvaged tree holds that the tree of the checkpoint, which took its place, does not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OnlyInSalvage {
    pub(crate) files: PathList,
    /// Why it could not be found out.
    pub(crate) unreadable: Option<String>,
}

pub(crate) fn receipt(state: &State, origin: Origin, recalled: &Recalled, others: Others<'_>) -> Receipt {
    let Others { salvage, fallback, compared, unsaved } = others;
    let (source, from) = match origin {
        Origin::Live => (Source::Local, From::Live),
        Origin::Checkpoint => (Source::Local, From::Checkpoint),
        Origin::Far => (Source::Cloud, From::Checkpoint),
        Origin::Fresh => (Source::Fresh, From::Checkpoint),
    };
    let mut lost = lost_files(state, origin, salvage);
    lost.extend(fallback.map(|Fallback { instead_of, used, why }| {
        format!("checkpoint {instead_of}, which is damaged ({why}): the files are those of checkpoint {used}")
    }));
    lost.extend(unsaved.iter().cloned());
    let checkpoint = fallback.map(|fallback| fallback.used).or(state.checkpoint);
    let checkpoint = checkpoint.filter(|_| origin != Origin::Fresh);
    lost.extend(lost_log(state));
    lost.extend(compared.iter().flat_map(|(_, lost)| lost.iter().cloned()));
    let tier = tier(state, recalled, &mut lost);
    let compared =
        compared.map(|(compared, _)| Box::new(Compared { messages: recalled.messages, ..compared.clone() }));
    // A cut turn may be in the agent's transcript or not, so one more than our log is whole too.
    let verified = lost.is_empty();
    let repaired = recalled.repairs.clone();
    let path = Path::Cold;
    let salvage = state.salvaged;
    let adopted = state.adopted.as_ref().map(|adopted| AdoptedUpTo {
        epoch: adopted.epoch,
        seq: adopted.seq,
        checkpoint: adopted.checkpoint,
    });
    Receipt { path, source, from, tier, checkpoint, verified, lost, compared, repaired, salvage, adopted }
}

/// What of the log is gone, and what stands elsewhere now.
fn lost_log(state: &State) -> Vec<String> {
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

fn lost_files(state: &State, origin: Origin, salvage: Option<&OnlyInSalvage>) -> Vec<String> {
    match origin {
        Origin::Live => Vec::new(),
        Origin::Checkpoint | Origin::Far => since_the_checkpoint(state, salvage),
        Origin::Fresh if state.told > 0 => vec!["workspace".to_owned()],
        Origin::Fresh => Vec::new(),
    }
}

/// What was done since the checkpoint that came back is not in the files any more.
fn since_the_checkpoint(state: &State, salvage: Option<&OnlyInSalvage>) -> Vec<String> {
    let aside = match (state.salvaged, salvage) {
        (Some(number), Some(OnlyInSalvage { unreadable: Some(why), .. })) => {
            Some(format!(": see salvage checkpoint {number}; it could not be compared ({why})"))
        }
        (Some(number), Some(OnlyInSalvage { files, .. })) if !files.is_empty() => {
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

fn tier(state: &State, recalled: &Recalled, lost: &mut Vec<String>) -> Tier {
    let Some(found) = &recalled.found else { return Tier::Fresh };
    if !found.found {
        if state.told == 0 {
            return Tier::Fresh;
        }
        let told = match recalled.tier {
            Tier::History => ", which is told to the agent as text",
            Tier::Native | Tier::Repaired | Tier::Rebuilt | Tier::Fresh => "",
        };
        lost.push(format!("the agent's own memory of {} turns{told}", state.told));
        return if recalled.tier == Tier::History { Tier::History } else { Tier::Fresh };
    }
    if found.turns < state.told {
        lost.push(format!("{} of {} turns of the conversation", state.told - found.turns, state.told));
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

    fn recalled(found: bool, turns: u64) -> Recalled {
        Recalled {
            memory: Memory::Own { id: Uuid::nil() },
            tier: Tier::Native,
            found: Some(Remembered { found, turns, damaged: 0 }),
            repairs: Vec::new(),
            prompts: Vec::new(),
            lost: Vec::new(),
            kept: None,
            messages: None,
            aside: None,
        }
    }

    fn with(told: u64) -> State {
        let mut state = State::new(0);
        state.told = told;
        state
    }

    #[test]
    fn a_conversation_that_is_not_found_is_named_as_lost() {
        let missing = receipt(&with(3), Origin::Live, &recalled(false, 0), Others::default());
        assert_eq!((missing.tier, missing.verified), (Tier::Fresh, false));
        assert_eq!(missing.lost, ["the agent's own memory of 3 turns"]);
        let told = Recalled { tier: Tier::History, ..recalled(false, 0) };
        let told = receipt(&with(3), Origin::Live, &told, Others::default());
        assert_eq!((told.tier, told.verified), (Tier::History, false));
    }

    #[test]
    fn a_shorter_conversation_is_not_verified() {
        let receipt = receipt(&with(3), Origin::Checkpoint, &recalled(true, 2), Others::default());
        assert_eq!((receipt.tier, receipt.verified), (Tier::Native, false));
        assert_eq!(receipt.lost, ["1 of 3 turns of the conversation"]);
    }

    #[test]
    fn a_whole_conversation_is_verified() {
        let receipt = receipt(&with(3), Origin::Checkpoint, &recalled(true, 3), Others::default());
        assert!(receipt.verified && receipt.lost.is_empty());
    }

    #[test]
    fn what_no_checkpoint_holds_is_lost() {
        let unsaved = ["workspace/pipe (a FIFO), which a checkpoint cannot hold".to_owned()];
        let others = Others { unsaved: &unsaved, ..Others::default() };
        let receipt = receipt(&with(3), Origin::Checkpoint, &recalled(true, 3), others);
        assert_eq!((receipt.verified, &receipt.lost[..]), (false, &unsaved[..]));
    }

    #[test]
    fn files_of_an_older_checkpoint_are_said_to_be_so() {
        let fallback = Fallback { instead_of: 5, used: 3, why: "its pack is not there".to_owned() };
        let others = Others { fallback: Some(&fallback), ..Others::default() };
        let receipt = receipt(&with(3), Origin::Checkpoint, &recalled(true, 3), others);
        assert_eq!((receipt.checkpoint, receipt.verified), (Some(3), false));
        assert_eq!(
            receipt.lost,
            ["checkpoint 5, which is damaged (its pack is not there): the files are those of checkpoint 3"]
        );
    }

    #[test]
    fn what_only_the_salvage_holds_is_named() {
        let mut files = PathList::default();
        files.add("workspace", b"later.txt");
        let salvage = OnlyInSalvage { files, unreadable: None };
        let lost = |state: &State, origin, salvage: &OnlyInSalvage| {
            let others = Others { salvage: Some(salvage), ..Others::default() };
            receipt(state, origin, &recalled(true, 3), others).lost
        };
        let (mut torn, nothing) = (with(3), OnlyInSalvage::default());
        torn.salvaged = Some(4);
        assert_eq!(
            lost(&torn, Origin::Checkpoint, &salvage),
            ["changes since the last checkpoint: only salvage checkpoint 4 holds later.txt"]
        );
        assert_eq!(lost(&torn, Origin::Checkpoint, &nothing), [""; 0]);
        torn.unsaved = 2;
        assert_eq!(
            lost(&torn, Origin::Far, &salvage),
            ["files of 2 finished turns that were not saved: only salvage checkpoint 4 holds later.txt"]
        );
        assert_eq!(lost(&torn, Origin::Live, &salvage), [""; 0], "they are where they were");
        torn.salvaged = None;
        assert_eq!(
            lost(&torn, Origin::Checkpoint, &nothing),
            ["files of 2 finished turns that were not saved"]
        );
    }

    #[test]
    fn a_first_start_takes_up_nothing_and_a_fork_its_parents() {
        let (id, parent) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert_eq!(memory(&with(0), id), Memory::Fresh { id });
        assert_eq!(memory(&with(1), id), Memory::Own { id });
        let mut fork = with(1);
        fork.unborn = Some(parent);
        assert_eq!(memory(&fork, id), Memory::Fork { from: parent, id });
    }
}
