//! The way back into a conversation, and the receipt that says how far it went. What came back is compared with
//! what our own log says was there; a resume that lost something says so.

use crate::{Past, live::Fallback, state::State};
use ash_driver::{Memory, Remembered};
use ash_model::{Event, Fact, From, Path, Receipt, Source, Tier, TurnId};
use std::collections::HashSet;
use uuid::Uuid;

/// Which conversation the agent is asked to take up.
pub(crate) fn memory(state: &State, id: Uuid) -> Memory {
    match state.unborn {
        Some(from) => Memory::Fork { from, id },
        None if state.told == 0 && state.turns.iter().all(|turn| turn.attempt == 0) => Memory::Fresh { id },
        None => Memory::Own { id },
    }
}

/// The kinds of events that say which turns the agent was told.
pub(crate) const TOLD: [&str; 5] = ["forked", "started", "continued", "finished", "rewound"];

/// The turns that the agent was told and that are over: those it should remember.
pub(crate) fn told(events: &[Event]) -> Vec<TurnId> {
    let past = Past::of(events);
    let mut begun = HashSet::new();
    let mut told = Vec::new();
    for event in events.iter().filter(|event| !past.hides(event)) {
        match &event.fact {
            Fact::Started { turn, .. } | Fact::Continued { turn, .. } => _ = begun.insert(*turn),
            Fact::Finished { turn, .. } if begun.contains(turn) => told.push(*turn),
            _ => {}
        }
    }
    told
}

/// Where the files came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Live,
    Checkpoint,
    Fresh,
}

/// What is to be said about trees besides the one that came back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Others<'o> {
    /// One that could not be trusted was kept under this number.
    pub(crate) salvage: Option<u64>,
    /// The newest could not be read.
    pub(crate) fallback: Option<&'o Fallback>,
}

pub(crate) fn receipt(
    state: &State,
    origin: Origin,
    resumed: Option<&Remembered>,
    others: Others<'_>,
) -> Receipt {
    let Others { salvage, fallback } = others;
    let (source, from) = match origin {
        Origin::Live => (Source::Local, From::Live),
        Origin::Checkpoint => (Source::Local, From::Checkpoint),
        Origin::Fresh => (Source::Fresh, From::Checkpoint),
    };
    let mut lost = lost_files(state, origin);
    lost.extend(fallback.map(|Fallback { instead_of, used, why }| {
        format!("checkpoint {instead_of}, which is damaged ({why}): the files are those of checkpoint {used}")
    }));
    let checkpoint = fallback.map(|fallback| fallback.used).or(state.checkpoint);
    let tier = tier(state, resumed, &mut lost);
    // A cut turn may be in the agent's transcript or not, so one more than our log is whole too.
    let verified = lost.is_empty();
    Receipt { path: Path::Cold, source, from, tier, checkpoint, verified, lost, salvage }
}

fn lost_files(state: &State, origin: Origin) -> Vec<String> {
    let mut lost = vec![];
    match origin {
        Origin::Live => {}
        Origin::Checkpoint if state.current().is_some() => {
            lost.push("files changed since the last checkpoint by the turn that was cut".to_owned());
        }
        Origin::Checkpoint => {}
        Origin::Fresh if state.told > 0 => lost.push("workspace".to_owned()),
        Origin::Fresh => {}
    }
    lost
}

fn tier(state: &State, resumed: Option<&Remembered>, lost: &mut Vec<String>) -> Tier {
    let Some(resumed) = resumed else { return Tier::Fresh };
    if !resumed.found {
        if state.told > 0 {
            lost.push(format!("conversation of {} turns", state.told));
        }
        return Tier::Fresh;
    }
    if resumed.turns < state.told {
        lost.push(format!("{} of {} turns of the conversation", state.told - resumed.turns, state.told));
    }
    if resumed.damaged > 0 {
        lost.push(format!("{} unreadable entries of the agent's transcript", resumed.damaged));
    }
    Tier::Native
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(told: u64) -> State {
        let mut state = State::new(0);
        state.told = told;
        state
    }

    #[test]
    fn a_conversation_that_is_not_found_is_named_as_lost() {
        let missing = Remembered { found: false, turns: 0, damaged: 0 };
        let receipt = receipt(&with(3), Origin::Live, Some(&missing), Others::default());
        assert_eq!((receipt.tier, receipt.verified), (Tier::Fresh, false));
        assert_eq!(receipt.lost, ["conversation of 3 turns"]);
    }

    #[test]
    fn a_shorter_conversation_is_not_verified() {
        let short = Remembered { found: true, turns: 2, damaged: 0 };
        let receipt = receipt(&with(3), Origin::Checkpoint, Some(&short), Others::default());
        assert_eq!((receipt.tier, receipt.verified), (Tier::Native, false));
        assert_eq!(receipt.lost, ["1 of 3 turns of the conversation"]);
    }

    #[test]
    fn a_whole_conversation_is_verified() {
        let whole = Remembered { found: true, turns: 3, damaged: 0 };
        let receipt = receipt(&with(3), Origin::Checkpoint, Some(&whole), Others::default());
        assert!(receipt.verified && receipt.lost.is_empty());
    }

    #[test]
    fn files_of_an_older_checkpoint_are_said_to_be_so() {
        let whole = Remembered { found: true, turns: 3, damaged: 0 };
        let fallback = Fallback { instead_of: 5, used: 3, why: "its pack is not there".to_owned() };
        let others = Others { fallback: Some(&fallback), ..Others::default() };
        let receipt = receipt(&with(3), Origin::Checkpoint, Some(&whole), others);
        assert_eq!((receipt.checkpoint, receipt.verified), (Some(3), false));
        assert_eq!(
            receipt.lost,
            ["checkpoint 5, which is damaged (its pack is not there): the files are those of checkpoint 3"]
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
