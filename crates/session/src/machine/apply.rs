//! Folding a fact in: the one place where a log state changes.

use super::{AwakeAgent, LogState, Turn, TurnPhase, death::counts_as_crash, plain_text};
use ash_driver::AgentInput;
use ash_model::{
    EventSeq, Fact, MessageOptions, ResumePath, ResumeSource, SavedCheckpoint, SessionRewind, SessionStatus,
    Tier, TreeOrigin, TurnId, TurnOutcome,
};
use ash_store::{TurnRow, TurnState};
use std::collections::VecDeque;

const TITLE: usize = 80;
const LAST_TEXT: usize = 400;

impl LogState {
    pub fn apply(&mut self, seq: EventSeq, fact: &Fact) {
        self.last_seq = seq;
        match fact {
            Fact::Created { .. } => self.status = SessionStatus::Starting,
            Fact::Forked { checkpoint, memory, turns_delivered: told, .. } => {
                self.status = SessionStatus::Paused;
                self.checkpoint = *checkpoint;
                self.last_full_checkpoint = *checkpoint;
                self.last_checkpoint = checkpoint.unwrap_or(0);
                self.inherited_memory = Some(*memory);
                self.turns_delivered = *told;
            }
            Fact::Queued { turn, content, options: ask, lock } => self.queue(seq, *turn, content, ask, *lock),
            Fact::Requeued { order, withdrawn } => self.requeue(order, withdrawn),
            Fact::Steering { turn, into, input } => self.note_steering(*turn, *into, *input),
            Fact::Steered { turn, into } => self.join(*turn, *into),
            Fact::SelfStarted { turn } => self.begin_self_started_turn(seq, *turn),
            Fact::Started { turn, input } => self.start(*turn, 1, *input),
            Fact::Continued { turn, attempt, input, .. } => self.start(*turn, *attempt, *input),
            Fact::Used(used) => self.meter.apply(used),
            Fact::BudgetReached(reached) => self.reached = Some(*reached),
            // Its files may be safe even so: only the wait for the object store may have failed.
            Fact::SaveFailed { turn, .. } => {
                self.unsaved += u64::from(turn.is_some() && *turn != self.saved_turn);
            }
            Fact::Said { .. } | Fact::Idle { .. } | Fact::Labelled { .. } => {}
            Fact::Configured { restart: true, .. } => {
                self.last_options_change = seq;
                self.agent_options_outdated = self.awake.is_some();
            }
            Fact::Configured { restart: false, .. } => {}
            Fact::Interrupting { turn, input } => self.note_interrupt(*turn, *input),
            Fact::PermissionRequested(asked) => self.note_asked(seq, asked),
            Fact::Answered { id, verdict, input, .. } => self.note_answered(*id, verdict.as_ref(), *input),
            Fact::ToolRequested(asked) => self.note_tool_requested(seq, asked),
            Fact::ToolAnswered(answer) => self.note_tool_answered(answer),
            Fact::ToolRepeated(repeat) => self.note_tool_repeated(repeat),
            Fact::ToolServerAsked { request, message, input } => {
                let (request, message) = (request.clone(), message.clone());
                // The actor adds the tools: the state does not hold the options.
                let say = AgentInput::ToolServerReply { request, message, tools: Vec::new() };
                self.remember_input(*input, say);
            }
            Fact::Setting { setting, input } => {
                self.remember_input(
                    *input,
                    AgentInput::SetLiveSetting { setting: setting.clone(), input: *input },
                );
            }
            Fact::Rested { turn, outcome: how, text, problem, .. } => {
                let stopped = || self.budget_stop_problem(*turn).filter(|_| *how == TurnOutcome::Interrupted);
                let problem = problem.clone().or_else(stopped);
                let phase = TurnPhase::Saving { how: *how, text: text.clone(), problem };
                self.set_phase(*turn, phase, TurnState::Saving);
            }
            Fact::Saved(saved) => self.saved(saved),
            Fact::Finished { turn, outcome: how, .. } => self.finish(*turn, *how),
            Fact::Cut { turn, death } => {
                if let Some(front) = self.turns.front_mut().filter(|front| front.id == *turn) {
                    front.deaths += u32::from(counts_as_crash(death));
                }
                self.set_phase(*turn, TurnPhase::Cut, TurnState::Cut);
                self.detach_joined_turns();
            }
            Fact::Awake { incarnation, resumed_after: kept, outdated, more_inputs } => {
                self.resumed_after = *kept;
                self.agent_options_outdated = *outdated;
                // Number 1 was the greeting.
                self.awake = Some(AwakeAgent {
                    incarnation: *incarnation,
                    next_input: 2 + more_inputs,
                    out_of_turn_inputs: VecDeque::new(),
                });
                self.has_own_memory = true;
                self.meter.begin_process();
                self.activate();
            }
            Fact::Asleep { .. } => {
                self.stop_running();
                self.pending.clear();
                self.detach_tool_calls();
                self.turns.iter_mut().for_each(|turn| turn.delivered = false);
                self.agent_options_outdated = false;
                self.awake = None;
            }
            Fact::ResumeFailed { .. } => {}
            Fact::Resuming => {
                self.status = SessionStatus::Starting;
                self.resuming = true;
            }
            Fact::Resumed { receipt, head } => {
                self.activate();
                self.adopted = None;
                self.missing.clear();
                self.briefing.clone_from(head);
                self.replay_history_once = receipt.tier == Tier::History;
                if receipt.path == ResumePath::Cold {
                    self.salvaged = None;
                }
                if receipt.from == TreeOrigin::Checkpoint {
                    self.unsaved = 0;
                }
                if receipt.source == ResumeSource::Fresh {
                    // The session has no checkpoint: its files went with their workspace.
                    (self.checkpoint, self.last_full_checkpoint) = (None, None);
                }
                // The newest checkpoint could not be read, and an older one was restored.
                if receipt.checkpoint.is_some() && receipt.checkpoint < self.checkpoint {
                    (self.checkpoint, self.last_full_checkpoint) = (receipt.checkpoint, receipt.checkpoint);
                }
            }
            Fact::Paused => {
                self.status = SessionStatus::Paused;
                // A server that stops has ended the sandbox before it commits this.
                self.pause_requested = self.awake.is_some();
            }
            Fact::Stopped => self.status = SessionStatus::Stopped,
            Fact::Failed { problem } => {
                self.status = SessionStatus::Error;
                self.problem = Some(problem.clone());
            }
            Fact::Locked { lock, .. } => {
                self.locks = lock.number;
                self.lock = Some(lock.clone());
            }
            Fact::Unlocked { .. } => self.lock = None,
            Fact::Adopted(adopted) => self.adopted = Some(adopted.clone()),
            Fact::Missing => match self.missing.last_mut() {
                Some((_, last)) if *last + 1 == seq => *last = seq,
                Some(_) | None => self.missing.push((seq, seq)),
            },
            Fact::Rewound(rewound) => self.rewound(seq, rewound),
            Fact::WorkspaceRewound(by) => self.last_workspace_rewind = by.checkpoint,
            Fact::Ended => self.status = SessionStatus::Ended,
        }
    }

    /// The sandbox was ended before; the next command that needs one wakes the session.
    fn rewound(&mut self, seq: EventSeq, SessionRewind { to, conversation: then, .. }: &SessionRewind) {
        self.status = match self.status {
            SessionStatus::Starting
            | SessionStatus::Active
            | SessionStatus::Paused
            | SessionStatus::Error => SessionStatus::Paused,
            status @ (SessionStatus::Stopped | SessionStatus::Ended) => status,
        };
        self.problem = None;
        self.rewound = seq;
        self.checkpoint = Some(*to);
        self.last_full_checkpoint = Some(*to);
        self.unsaved = 0;
        self.turns_delivered = then.turns_delivered;
        self.inherited_memory = then.memory;
        self.has_own_memory = false;
        self.inherit(then);
    }

    fn activate(&mut self) {
        self.status = SessionStatus::Active;
        self.resuming = false;
        self.problem = None;
        self.reached = None;
    }

    fn queue(
        &mut self,
        seq: EventSeq,
        id: TurnId,
        content: &serde_json::Value,
        ask: &MessageOptions,
        lock: Option<u64>,
    ) {
        let turn = Turn {
            id,
            seq,
            content: content.clone(),
            options: ask.clone(),
            lock,
            attempt: 0,
            deaths: 0,
            self_started: false,
            delivered: false,
            acknowledged: false,
            phase: TurnPhase::Queued,
        };
        self.title.get_or_insert_with(|| title(content));
        self.turns_total += 1;
        self.changed.push(row(&turn, TurnState::Queued));
        self.turns.push_back(turn);
    }

    fn requeue(&mut self, order: &[TurnId], withdrawn: &[TurnId]) {
        // The facts that end them follow; withdrawn messages do not count as turns.
        self.turns_total -= withdrawn.len() as u64;
        let waiting = self.turns.iter().filter(|turn| order.contains(&turn.id));
        if !withdrawn.is_empty() && self.turns_total == order.len() as u64 {
            // The first message of a conversation gives it its title.
            self.title = waiting.min_by_key(|turn| turn.seq).map(|turn| title(&turn.content));
        }
        let place = |turn: &Turn| order.iter().position(|id| *id == turn.id).unwrap_or(order.len());
        let begun = self.turns.iter().take_while(|turn| turn.phase != TurnPhase::Queued).count();
        self.turns.make_contiguous()[begun..].sort_by_key(place);
    }

    /// Goes before all waiting turns, because the agent has started it already.
    fn begin_self_started_turn(&mut self, seq: EventSeq, id: TurnId) {
        let turn = Turn {
            id,
            seq,
            content: serde_json::Value::Null,
            options: MessageOptions::default(),
            lock: None,
            attempt: 1,
            deaths: 0,
            self_started: true,
            delivered: false,
            acknowledged: false,
            phase: TurnPhase::Running { inputs: Vec::new() },
        };
        self.turns_total += 1;
        self.meter.begin(id);
        self.changed.push(row(&turn, TurnState::Running));
        self.turns.push_front(turn);
    }

    fn start(&mut self, id: TurnId, attempt: u32, input: u64) {
        let Some(turn) = self.turns.front_mut().filter(|turn| turn.id == id) else { return };
        turn.attempt = attempt;
        if attempt == 1 {
            self.meter.begin(id);
        }
        let (content, ask, head) = (turn.content.clone(), turn.options.clone(), self.briefing.clone());
        let say = AgentInput::Prompt { turn: id, head, content, ask, attempt };
        turn.phase = TurnPhase::Running { inputs: vec![(input, say)] };
        self.changed.push(row(turn, TurnState::Running));
        // An agent that has the message in its memory does not read it again.
        if attempt == 1 || self.replay_history_once {
            self.briefing = None;
        }
        self.took_input(input);
    }

    fn note_interrupt(&mut self, id: TurnId, input: u64) {
        if let Some(Turn { phase: TurnPhase::Running { inputs }, .. }) =
            self.turns.front_mut().filter(|turn| turn.id == id)
        {
            inputs.push((input, AgentInput::Interrupt { turn: id }));
        }
        self.took_input(input);
    }

    pub(super) fn took_input(&mut self, input: u64) {
        if let Some(awake) = &mut self.awake {
            awake.next_input = input + 1;
        }
    }

    fn set_phase(&mut self, id: TurnId, phase: TurnPhase, state: TurnState) {
        if let Some(turn) = self.turns.front_mut().filter(|turn| turn.id == id) {
            turn.phase = phase;
            self.changed.push(row(turn, state));
        }
    }

    /// Without a sandbox nothing runs: a turn that was asked to stop has stopped, any other is cut.
    fn stop_running(&mut self) {
        let Some(turn) = self.running() else { return };
        if self.was_asked_to_stop() {
            let problem = self.budget_stop_problem(turn);
            let rested = TurnPhase::Saving { how: TurnOutcome::Interrupted, text: String::new(), problem };
            self.set_phase(turn, rested, TurnState::Saving);
        } else {
            self.set_phase(turn, TurnPhase::Cut, TurnState::Cut);
            self.detach_joined_turns();
        }
    }

    fn saved(&mut self, saved: &SavedCheckpoint) {
        self.last_checkpoint = saved.number;
        if saved.rewound_to.is_some() {
            self.last_workspace_rewind = saved.number;
        }
        if saved.salvage {
            self.salvaged = Some(saved.number);
        } else {
            self.checkpoint = Some(saved.number);
            self.unsaved = 0;
            if !saved.mid_turn {
                self.saved_turn = saved.turn;
                self.last_full_checkpoint = Some(saved.number);
            }
            if self.has_own_memory {
                self.inherited_memory = None;
            }
        }
    }

    fn finish(&mut self, id: TurnId, how: TurnOutcome) {
        let Some(place) = self.turns.iter().position(|turn| turn.id == id) else { return };
        let Some(turn) = self.turns.remove(place) else { return };
        self.forget_tool_calls_of(id);
        if let TurnPhase::Saving { text, .. } = &turn.phase
            && !text.is_empty()
        {
            self.last_text = Some(shortened(text, LAST_TEXT));
        }
        // The turn ended during a pause, so a client asked for the pause: a budget pauses no session whose turn runs.
        if self.status == SessionStatus::Paused && matches!(turn.phase, TurnPhase::Saving { .. }) {
            self.reached = None;
        }
        self.turns_delivered += u64::from(turn.attempt > 0 && !turn.self_started);
        let state = match how {
            TurnOutcome::Done => TurnState::Done,
            TurnOutcome::Failed => TurnState::Failed,
            TurnOutcome::Interrupted => TurnState::Interrupted,
            TurnOutcome::Cancelled => TurnState::Cancelled,
        };
        self.changed.push(row(&turn, state));
    }
}

pub(super) fn row(turn: &Turn, state: TurnState) -> TurnRow {
    TurnRow { id: turn.id, seq: turn.seq, state, attempt: turn.attempt }
}

fn title(content: &serde_json::Value) -> String {
    shortened(&plain_text(content), TITLE)
}

fn shortened(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
