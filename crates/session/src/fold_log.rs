//! Folds a whole log into the state that it leads to, for sessions that are rebuilt from packs or from the object
//! store.

use crate::machine::{LogState, TurnPhase};
use ash_model::{Event, EventSeq, TurnId};
use ash_remote::{FoldedLog, SavingTurn};
use ash_store::TurnRow;
use std::collections::HashMap;

pub(crate) fn fold_log(base: EventSeq, events: &[Event]) -> FoldedLog {
    let mut state = LogState::new(base);
    let mut turns: HashMap<TurnId, TurnRow> = HashMap::new();
    for event in events {
        state.apply(event.seq, &event.fact);
        turns.extend(state.take_changed_turns().into_iter().map(|row| (row.id, row)));
    }
    let saving = state.current().and_then(|turn| match &turn.phase {
        TurnPhase::Saving { how, problem, .. } => {
            Some(SavingTurn { turn: turn.id, outcome: *how, problem: problem.clone() })
        }
        TurnPhase::Queued | TurnPhase::Running { .. } | TurnPhase::Cut | TurnPhase::Joined { .. } => None,
    });
    FoldedLog { summary: state.summary(), turns: turns.into_values().collect(), saving }
}
