//! What a batch of facts means for the log: the events as they are stored, and the state that follows.

use super::{LogState, Turn, lock};
use ash_model::{Fact, NewEvent, SessionStatus, Timestamp, TurnId};

/// Facts on their way into the log. The new state counts when they are stored.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedCommit {
    pub events: Vec<NewEvent>,
    pub state: LogState,
    /// How many turns these facts end.
    pub finished_turns: usize,
}

impl LogState {
    /// Adds the facts that follow from others: the ends of joined messages, the withdrawal of open calls, that the
    /// session is idle, and the renewal of a lock.
    pub fn prepare(&self, facts: Vec<Fact>, at: Timestamp) -> PreparedCommit {
        let first = self.last_seq + 1;
        let mut state = self.clone();
        let mut events: Vec<NewEvent> = Vec::with_capacity(facts.len());
        for fact in facts {
            let withdrawn = match &fact {
                Fact::Finished { turn, .. } => state.withdraw_tool_calls_of(*turn),
                _ => Vec::new(),
            };
            // After the end of the turn, which follows its checkpoint at once.
            for fact in state.with_joined(fact).into_iter().chain(withdrawn) {
                let turn = turn_of(&fact).or_else(|| turn_of_line(&state, &fact));
                state.apply(first + events.len() as u64, &fact);
                events.push(NewEvent { turn, at, fact });
            }
        }
        let finished_turns = events.iter().filter(|event| is_end_of_turn(&event.fact)).count();
        if finished_turns > 0 && state.turns.is_empty() && state.status == SessionStatus::Active {
            let fact = Fact::Idle { ms: 0, left_ms: None, evicted: false };
            state.apply(first + events.len() as u64, &fact);
            events.push(NewEvent { turn: None, at, fact });
        }
        if let Some(fact) = self.lock_renewal(&state, &events, at) {
            state.apply(first + events.len() as u64, &fact);
            events.push(NewEvent { turn: None, at, fact });
        }
        PreparedCommit { events, state, finished_turns }
    }

    /// The TTL of a lock starts again when a turn that its holder sent is over.
    fn lock_renewal(&self, after: &LogState, events: &[NewEvent], at: Timestamp) -> Option<Fact> {
        let lock = after.lock().filter(|_| after.status != SessionStatus::Ended)?;
        let ends = |turn: &Turn| {
            let ends =
                |event: &NewEvent| matches!(event.fact, Fact::Finished { turn: over, .. } if over == turn.id);
            turn.lock == Some(lock.number) && events.iter().any(ends)
        };
        let used = self.turns.iter().any(ends);
        if used { lock::renewal(lock, at) } else { None }
    }
}

fn is_end_of_turn(fact: &Fact) -> bool {
    matches!(fact, Fact::Finished { .. })
}

fn turn_of(fact: &Fact) -> Option<TurnId> {
    match fact {
        Fact::Queued { turn, .. }
        | Fact::SelfStarted { turn }
        | Fact::Steering { turn, .. }
        | Fact::Steered { turn, .. }
        | Fact::Started { turn, .. }
        | Fact::Continued { turn, .. }
        | Fact::Interrupting { turn, .. }
        | Fact::Rested { turn, .. }
        | Fact::Finished { turn, .. }
        | Fact::Cut { turn, .. } => Some(*turn),
        Fact::Saved(saved) => saved.turn,
        Fact::PermissionRequested(asked) => asked.turn,
        Fact::ToolRequested(asked) => asked.turn,
        Fact::ToolAnswered(answer) => answer.turn,
        Fact::ToolRepeated(repeat) => repeat.turn,
        Fact::Answered { turn, .. } => *turn,
        Fact::SaveFailed { turn, .. } => *turn,
        Fact::Used(used) => used.turn,
        Fact::BudgetReached(reached) => reached.turn,
        Fact::Created { .. }
        | Fact::Forked { .. }
        | Fact::Said { .. }
        | Fact::Setting { .. }
        | Fact::ToolServerAsked { .. }
        | Fact::Awake { .. }
        | Fact::Asleep { .. }
        | Fact::Resuming
        | Fact::Resumed { .. }
        | Fact::ResumeFailed { .. }
        | Fact::Paused
        | Fact::Stopped
        | Fact::Failed { .. }
        | Fact::Rewound(_)
        | Fact::WorkspaceRewound(_)
        | Fact::Idle { .. }
        | Fact::Configured { .. }
        | Fact::Labelled { .. }
        | Fact::Requeued { .. }
        | Fact::Locked { .. }
        | Fact::Unlocked { .. }
        | Fact::Adopted(_)
        | Fact::Missing
        | Fact::Ended => None,
    }
}

/// A line of the agent belongs to the turn that is under way.
fn turn_of_line(state: &LogState, fact: &Fact) -> Option<TurnId> {
    matches!(fact, Fact::Said { .. }).then(|| state.current().map(|turn| turn.id)).flatten()
}
