//! Folding a fact in: the one place where a state changes.

use super::{Awake, Phase, State, Turn, death::counts, plain_text};
use ash_driver::Say;
use ash_model::{Ask, Fact, From, Lock, Outcome, Path, Rewound, Saved, Seq, Source, Status, Tier, TurnId};
use ash_store::{TurnRow, TurnState};
use std::collections::VecDeque;

const TITLE: usize = 80;
const LAST_TEXT: usize = 400;

impl State {
    pub fn apply(&mut self, seq: Seq, fact: &Fact) {
        self.last_seq = seq;
        match fact {
            Fact::Created { .. } => self.status = Status::Starting,
            Fact::Forked { checkpoint, memory, told, .. } => {
                self.status = Status::Paused;
                self.checkpoint = *checkpoint;
                self.settled = *checkpoint;
                self.last_checkpoint = checkpoint.unwrap_or(0);
                self.unborn = Some(*memory);
                self.told = *told;
            }
            Fact::Queued { turn, content, ask, lock } => self.queue(seq, *turn, content, ask, *lock),
            Fact::Requeued { order, withdrawn } => self.requeue(order, withdrawn),
            Fact::Steering { turn, into, input } => self.note_steering(*turn, *into, *input),
            Fact::Steered { turn, into } => self.join(*turn, *into),
            Fact::Stirred { turn } => self.stir(seq, *turn),
            Fact::Started { turn, input } => self.start(*turn, 1, *input),
            Fact::Continued { turn, attempt, input, .. } => self.start(*turn, *attempt, *input),
            Fact::Used(used) => self.meter.apply(used),
            Fact::BudgetReached(reached) => self.reached = Some(*reached),
            // Its files may be safe all the same: it only waited for the object store.
            Fact::SaveFailed { turn, .. } => {
                self.unsaved += u64::from(turn.is_some() && *turn != self.saved_turn);
            }
            Fact::Said { .. } | Fact::Idle { .. } | Fact::Labelled { .. } => {}
            Fact::Configured { restart: true, .. } => {
                self.configured = seq;
                self.outdated |= self.awake.is_some();
            }
            Fact::Configured { restart: false, .. } => {}
            Fact::Interrupting { turn, input } => self.note_interrupt(*turn, *input),
            Fact::Asked(asked) => self.note_asked(seq, asked),
            Fact::Answered { id, verdict, input, .. } => self.note_answered(*id, verdict.as_ref(), *input),
            Fact::Setting { setting, input } => {
                self.remember(*input, Say::Set { setting: setting.clone(), input: *input });
            }
            Fact::Rested { turn, how, text, problem, .. } => {
                let stopped = || self.stopped_for(*turn).filter(|_| *how == Outcome::Interrupted);
                let problem = problem.clone().or_else(stopped);
                let phase = Phase::Saving { how: *how, text: text.clone(), problem };
                self.set_phase(*turn, phase, TurnState::Saving);
            }
            Fact::Saved(saved) => self.saved(saved),
            Fact::Finished { turn, how, .. } => self.finish(*turn, *how),
            Fact::Cut { turn, death } => {
                if let Some(front) = self.turns.front_mut().filter(|front| front.id == *turn) {
                    front.deaths += u32::from(counts(death));
                }
                self.set_phase(*turn, Phase::Cut, TurnState::Cut);
                self.part();
            }
            Fact::Awake { incarnation, kept, outdated } => {
                self.kept = *kept;
                self.outdated = *outdated;
                // Number 1 was the greeting.
                self.awake =
                    Some(Awake { incarnation: *incarnation, next_input: 2, beside: VecDeque::new() });
                self.born = true;
                self.meter.begin_process();
                self.activate();
            }
            Fact::Asleep { .. } => {
                self.stop_running();
                self.pending.clear();
                self.turns.iter_mut().for_each(|turn| turn.told = false);
                self.outdated = false;
                self.awake = None;
            }
            Fact::ResumeFailed { .. } => {}
            Fact::Resuming => {
                self.status = Status::Starting;
                self.resuming = true;
            }
            Fact::Resumed { receipt, head } => {
                self.activate();
                self.adopted = None;
                self.missing.clear();
                self.head.clone_from(head);
                self.tell_once = receipt.tier == Tier::History;
                if receipt.path == Path::Cold {
                    self.salvaged = None;
                }
                if receipt.from == From::Checkpoint {
                    self.unsaved = 0;
                }
                if receipt.source == Source::Fresh {
                    // It stands on nothing: its files went with their workspace.
                    (self.checkpoint, self.settled) = (None, None);
                }
                // The newest could not be read, and an older one came back.
                if receipt.checkpoint.is_some() && receipt.checkpoint < self.checkpoint {
                    (self.checkpoint, self.settled) = (receipt.checkpoint, receipt.checkpoint);
                }
            }
            Fact::Paused => {
                self.status = Status::Paused;
                // A server that stops has ended the sandbox before it says so.
                self.held = self.awake.is_some();
            }
            Fact::Stopped => self.status = Status::Stopped,
            Fact::Failed { problem } => {
                self.status = Status::Error;
                self.problem = Some(problem.clone());
            }
            Fact::Locked { lock, .. } => {
                self.locks = lock.number;
                self.lock = Some(Lock { in_use: false, ..lock.clone() });
            }
            Fact::Unlocked { .. } => self.lock = None,
            Fact::Adopted(adopted) => self.adopted = Some(adopted.clone()),
            Fact::Missing => match self.missing.last_mut() {
                Some((_, last)) if *last + 1 == seq => *last = seq,
                Some(_) | None => self.missing.push((seq, seq)),
            },
            Fact::Rewound(rewound) => self.rewound(seq, rewound),
            Fact::TakenBack(by) => self.backs = by.checkpoint,
            Fact::Ended => self.status = Status::Ended,
        }
    }

    /// Its sandbox was ended before; whoever wants to go on wakes it.
    fn rewound(&mut self, seq: Seq, Rewound { to, then, .. }: &Rewound) {
        self.status = match self.status {
            Status::Starting | Status::Active | Status::Paused | Status::Error => Status::Paused,
            status @ (Status::Stopped | Status::Ended) => status,
        };
        self.problem = None;
        self.rewound = seq;
        self.checkpoint = Some(*to);
        self.settled = Some(*to);
        self.unsaved = 0;
        self.told = then.told;
        self.unborn = then.memory;
        self.born = false;
        self.inherit(then);
    }

    fn activate(&mut self) {
        self.status = Status::Active;
        self.resuming = false;
        self.problem = None;
        self.reached = None;
    }

    fn queue(&mut self, seq: Seq, id: TurnId, content: &serde_json::Value, ask: &Ask, lock: Option<u64>) {
        let turn = Turn {
            id,
            seq,
            content: content.clone(),
            ask: ask.clone(),
            lock,
            attempt: 0,
            deaths: 0,
            own: false,
            told: false,
            heard: false,
            phase: Phase::Queued,
        };
        self.title.get_or_insert_with(|| title(content));
        self.turns_ever += 1;
        self.changed.push(row(&turn, TurnState::Queued));
        self.turns.push_back(turn);
    }

    fn requeue(&mut self, order: &[TurnId], withdrawn: &[TurnId]) {
        // Their ends follow; they count as never asked for.
        self.turns_ever -= withdrawn.len() as u64;
        let waiting = self.turns.iter().filter(|turn| order.contains(&turn.id));
        if !withdrawn.is_empty() && self.turns_ever == order.len() as u64 {
            // The first of a conversation gave it its title.
            self.title = waiting.min_by_key(|turn| turn.seq).map(|turn| title(&turn.content));
        }
        let place = |turn: &Turn| order.iter().position(|id| *id == turn.id).unwrap_or(order.len());
        let begun = self.turns.iter().take_while(|turn| turn.phase != Phase::Queued).count();
        self.turns.make_contiguous()[begun..].sort_by_key(place);
    }

    /// Before whatever waits: the agent is at it already.
    fn stir(&mut self, seq: Seq, id: TurnId) {
        let turn = Turn {
            id,
            seq,
            content: serde_json::Value::Null,
            ask: Ask::default(),
            lock: None,
            attempt: 1,
            deaths: 0,
            own: true,
            told: false,
            heard: false,
            phase: Phase::Running { inputs: Vec::new() },
        };
        self.turns_ever += 1;
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
        let (content, ask, head) = (turn.content.clone(), turn.ask.clone(), self.head.clone());
        let say = Say::Prompt { turn: id, head, content, ask, attempt };
        turn.phase = Phase::Running { inputs: vec![(input, say)] };
        self.changed.push(row(turn, TurnState::Running));
        // An agent that has the message in its memory does not read it again.
        if attempt == 1 || self.tell_once {
            self.head = None;
        }
        self.took_input(input);
    }

    fn note_interrupt(&mut self, id: TurnId, input: u64) {
        if let Some(Turn { phase: Phase::Running { inputs }, .. }) =
            self.turns.front_mut().filter(|turn| turn.id == id)
        {
            inputs.push((input, Say::Interrupt { turn: id }));
        }
        self.took_input(input);
    }

    pub(super) fn took_input(&mut self, input: u64) {
        if let Some(awake) = &mut self.awake {
            awake.next_input = input + 1;
        }
    }

    fn set_phase(&mut self, id: TurnId, phase: Phase, state: TurnState) {
        if let Some(turn) = self.turns.front_mut().filter(|turn| turn.id == id) {
            turn.phase = phase;
            self.changed.push(row(turn, state));
        }
    }

    /// Without a sandbox nothing runs: a turn that was asked to stop rests, any other is cut.
    fn stop_running(&mut self) {
        let Some(turn) = self.running() else { return };
        if self.was_asked_to_stop() {
            let problem = self.stopped_for(turn);
            let rested = Phase::Saving { how: Outcome::Interrupted, text: String::new(), problem };
            self.set_phase(turn, rested, TurnState::Saving);
        } else {
            self.set_phase(turn, Phase::Cut, TurnState::Cut);
            self.part();
        }
    }

    fn saved(&mut self, saved: &Saved) {
        self.last_checkpoint = saved.number;
        if saved.back.is_some() {
            self.backs = saved.number;
        }
        if saved.salvage {
            self.salvaged = Some(saved.number);
        } else {
            self.checkpoint = Some(saved.number);
            self.unsaved = 0;
            if !saved.mid_turn {
                self.saved_turn = saved.turn;
                self.settled = Some(saved.number);
            }
            if self.born {
                self.unborn = None;
            }
        }
    }

    fn finish(&mut self, id: TurnId, how: Outcome) {
        let Some(place) = self.turns.iter().position(|turn| turn.id == id) else { return };
        let Some(turn) = self.turns.remove(place) else { return };
        if let Phase::Saving { text, .. } = &turn.phase
            && !text.is_empty()
        {
            self.last_text = Some(shortened(text, LAST_TEXT));
        }
        // It came to its end in a pause, so somebody wanted that: a budget pauses nothing that runs.
        if self.status == Status::Paused && matches!(turn.phase, Phase::Saving { .. }) {
            self.reached = None;
        }
        self.told += u64::from(turn.attempt > 0 && !turn.own);
        let state = match how {
            Outcome::Done => TurnState::Done,
            Outcome::Failed => TurnState::Failed,
            Outcome::Interrupted => TurnState::Interrupted,
            Outcome::Cancelled => TurnState::Cancelled,
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
