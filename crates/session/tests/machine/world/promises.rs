//! The promises that the log must keep, after every fact and after everything that happens.

use super::{
    World,
    shim::{Shim, answer_of},
};
use ash_model::{
    Death, EventSeq, Fact, PermissionId, Problem, SessionLock, SessionRewind, SessionStatus, ToolRequestId,
    TurnId, TurnOutcome,
};
use ash_session::machine::{
    CommandRefusal, Effect, LogState, LogStep, Machine, PreparedCommit, StateCommand, TurnPhase,
};
use ash_store::{SessionSummary, TurnRow, TurnState};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) queued: Vec<TurnId>,
    pub(super) finished: BTreeMap<TurnId, TurnOutcome>,
    pub(super) rested: BTreeSet<TurnId>,
    pub(super) asked_to_stop: BTreeSet<TurnId>,
    pub(super) deaths: BTreeMap<TurnId, u32>,
    /// What the database knows of each turn.
    pub(super) rows: BTreeMap<TurnId, TurnRow>,
    /// Where each turn was queued, with which text and under which lock.
    messages: BTreeMap<TurnId, Message>,
    /// How often each turn was begun.
    attempts: BTreeMap<TurnId, u32>,
    pub(super) started: BTreeSet<TurnId>,
    /// What the agent began by itself: no client told it.
    self_started: BTreeSet<TurnId>,
    /// Told in the middle of a running turn.
    steered: BTreeSet<TurnId>,
    /// Acknowledged in the middle of the running turn.
    pub(super) joined: BTreeSet<TurnId>,
    /// The turns that are part of the conversation.
    pub(super) conversation: Vec<TurnId>,
    /// Its title and its last answer.
    title: Option<String>,
    last_text: Option<String>,
    /// The same, as it was at each checkpoint.
    then: BTreeMap<u64, Conversation>,
    /// The last facts are a checkpoint and the ends of the turns that it holds.
    covered: bool,
    /// Why the session does not continue.
    problem: Option<Problem>,
    lock: Option<SessionLock>,
    /// The highest number of a lock so far.
    locks: u64,
    pub(super) checkpoint: Option<u64>,
    pub(super) ended: bool,
    /// Tokens that the log says were used.
    pub(super) used: u64,
    /// Every request, and whether it is answered.
    pub(super) asked: BTreeMap<PermissionId, bool>,
    /// The events of the open ones.
    pending: BTreeMap<PermissionId, EventSeq>,
    /// Every call of a client's tool by the agent's own id, and whether it is answered.
    calls: BTreeMap<String, (ToolRequestId, bool)>,
    /// The events of the open ones.
    open_calls: BTreeMap<ToolRequestId, EventSeq>,
    /// How often those options were changed that an agent is started with.
    pub(super) changes: u64,
}

#[derive(Debug, Clone)]
struct Message {
    seq: EventSeq,
    text: Option<String>,
    lock: Option<u64>,
}

#[derive(Debug, Clone)]
struct Conversation {
    turns: Vec<TurnId>,
    title: Option<String>,
    /// By the event from which on it is so: a caller may name the checkpoint before the end of its turn.
    last_text: BTreeMap<EventSeq, Option<String>>,
}

impl Told {
    /// The earliest of these messages gives a conversation its title.
    fn title_of(&self, turns: &[TurnId]) -> Option<String> {
        let messages = turns.iter().map(|turn| &self.messages[turn]);
        messages.filter(|message| message.text.is_some()).min_by_key(|message| message.seq)?.text.clone()
    }
}

impl World {
    /// Every event is one of its turn, the end of the last turn is announced once, and a lock that was used lasts.
    pub(super) fn check_commit(&self, facts: &[Fact], commit: &PreparedCommit) {
        for event in &commit.events {
            let named = serde_json::to_value(&event.fact).expect("JSON").get("turn").cloned();
            let of = event.turn.map(|turn| serde_json::to_value(turn).expect("JSON"));
            assert_eq!(of, named.filter(|turn| !turn.is_null()), "{:?}", event.fact);
        }
        let over: Vec<TurnId> = commit.events.iter().filter_map(|event| ended_turn(&event.fact)).collect();
        assert_eq!(commit.finished_turns, over.len());
        let state = &commit.state;
        let rests = !over.is_empty() && state.turns.is_empty() && state.status == SessionStatus::Active;
        let idle = Fact::Idle { ms: 0, left_ms: None, evicted: false };
        let last = commit.events.iter().rfind(|event| event.fact.kind() != "locked");
        if !facts.iter().any(|fact| fact.kind() == "idle") {
            let announced = commit.events.iter().filter(|event| event.fact.kind() == "idle").count();
            assert_eq!(announced, usize::from(rests), "idle is announced when the last turn is over");
            assert!(!rests || last.is_some_and(|event| event.fact == idle), "{last:?}");
        }
        if let Some(lock) = state.lock().filter(|_| state.status != SessionStatus::Ended) {
            let used = over.iter().any(|turn| self.told.messages[turn].lock == Some(lock.number));
            let left = lock.until.0 - self.now.wall.0;
            let ttl = i64::try_from(lock.ttl_ms).expect("a short time");
            assert!(!used || left * 10 >= ttl * 9, "the lock of a turn that is over lasts {left} ms");
        }
    }

    pub(super) fn check_decision(&self, wish: &StateCommand, decided: &Result<Vec<Fact>, CommandRefusal>) {
        if let StateCommand::Withdraw { turn } = wish
            && self.state().waiting().any(|waiting| waiting == *turn)
            && !self.told.steered.contains(turn)
        {
            assert!(decided.is_ok(), "it waits, and the agent does not know it");
        }
        if self.state().status != SessionStatus::Ended {
            return;
        }
        match wish {
            StateCommand::Prompt { .. } | StateCommand::Rewind { .. } => {
                assert_eq!(*decided, Err(CommandRefusal::WrongStatus(SessionStatus::Ended)));
            }
            StateCommand::Resume => assert_eq!(*decided, Err(CommandRefusal::SessionEnded)),
            StateCommand::Answer { .. } => assert_eq!(*decided, Err(CommandRefusal::NoSuchPermission)),
            StateCommand::AnswerTool { .. } => assert_eq!(*decided, Err(CommandRefusal::NoSuchToolCall)),
            StateCommand::Pause | StateCommand::Stop | StateCommand::Withdraw { .. } => {
                assert!(decided.is_err())
            }
            StateCommand::Reorder { .. } => assert!(decided.is_err(), "nothing waits"),
            StateCommand::Interrupt | StateCommand::Release { .. } | StateCommand::End => {
                assert_eq!(*decided, Ok(Vec::new()))
            }
        }
    }

    /// A turn that runs loses its sandbox only because its session closes.
    pub(super) fn check_leave(&self) {
        let Machine { log, runtime } = self.machine();
        let serves = matches!(log.status, SessionStatus::Active | SessionStatus::Paused);
        let runs = serves && self.machine().running_attempt().is_some();
        assert!(runtime.closing.is_some() || !runs, "{:?}", log.turns);
    }

    pub(super) fn check_fact(&mut self, seq: EventSeq, fact: &Fact) {
        if matches!(fact, Fact::Started { .. } | Fact::Continued { .. }) {
            assert_eq!(self.state().exhausted_limit(), None, "a turn begins without a budget");
        }
        if let (Fact::Started { .. }, Some(shim)) = (fact, &self.shim) {
            assert_eq!(shim.changes, self.told.changes, "a turn begins with options that are not in force");
        }
        let told = &mut self.told;
        told.covered &= matches!(fact, Fact::Finished { .. });
        match fact {
            Fact::Queued { turn, content, lock, .. } => {
                let text = content.as_str().map(str::to_owned);
                told.title.get_or_insert_with(|| text.clone().expect("the messages here are texts"));
                told.messages.insert(*turn, Message { seq, text, lock: *lock });
                told.queued.push(*turn);
                told.conversation.push(*turn);
            }
            Fact::SelfStarted { turn } => {
                let front = told.queued.iter().position(|turn| !told.finished.contains_key(turn));
                let waits = front.is_none_or(|front| !told.started.contains(&told.queued[front]));
                assert!(waits, "it begins under a turn");
                told.messages.insert(*turn, Message { seq, text: None, lock: None });
                told.queued.insert(front.unwrap_or(told.queued.len()), *turn);
                told.conversation.push(*turn);
                told.started.insert(*turn);
                told.self_started.insert(*turn);
                told.attempts.insert(*turn, 1);
            }
            Fact::Requeued { order, withdrawn } => {
                let knows =
                    |shim: &Shim| shim.alive && withdrawn.iter().any(|turn| shim.steers.contains(turn));
                assert!(!self.shim.as_ref().is_some_and(knows), "withdrawn, and told");
                let waits = |turn: &TurnId| {
                    !told.started.contains(turn)
                        && !told.finished.contains_key(turn)
                        && !told.joined.contains(turn)
                };
                let mut waiting: Vec<TurnId> = told.queued.iter().copied().filter(waits).collect();
                told.queued.retain(|turn| !waits(turn));
                waiting.sort();
                let mut named: Vec<TurnId> = order.iter().chain(withdrawn).copied().collect();
                named.sort();
                assert_eq!(waiting, named, "what waited is named, and nothing else");
                told.queued.extend(order.iter().chain(withdrawn));
                told.conversation.retain(|turn| !withdrawn.contains(turn));
                if !withdrawn.is_empty() && told.conversation.iter().all(|turn| order.contains(turn)) {
                    told.title = told.title_of(order);
                }
            }
            Fact::Steering { turn, into, input } => {
                assert!(told.started.contains(into) && !told.started.contains(turn), "nothing runs");
                told.steered.insert(*turn);
                self.check_input(*input);
            }
            Fact::Steered { turn, into } => {
                assert!(!told.finished.contains_key(turn) && !told.finished.contains_key(into), "over");
                told.queued.retain(|other| other != turn);
                let after =
                    told.queued.iter().rposition(|other| other == into || told.joined.contains(other));
                told.queued.insert(after.expect("the turn that runs") + 1, *turn);
                told.joined.insert(*turn);
            }
            Fact::Started { turn, input } | Fact::Continued { turn, input, .. } => {
                let first_open = told.queued.iter().find(|turn| !told.finished.contains_key(*turn));
                assert_eq!(first_open, Some(turn), "turns run in the order they were queued");
                assert!(!told.rested.contains(turn), "told again after it rested");
                assert!(!told.asked_to_stop.contains(turn), "told again after it was asked to stop");
                assert!(told.deaths.get(turn).is_none_or(|deaths| *deaths < 2), "told a third time");
                told.started.insert(*turn);
                let attempt = told.attempts.entry(*turn).or_default();
                *attempt += 1;
                assert!(!matches!(fact, Fact::Continued { attempt: said, .. } if said != attempt));
                assert_eq!(matches!(fact, Fact::Started { .. }), *attempt == 1, "a turn starts once");
                self.check_input(*input);
            }
            Fact::Interrupting { turn, input } => {
                told.asked_to_stop.insert(*turn);
                self.check_input(*input);
            }
            Fact::PermissionRequested(asked) => {
                assert_eq!(told.asked.insert(asked.id, false), None, "two requests of one name");
                told.pending.insert(asked.id, seq);
            }
            Fact::Answered { id, verdict, input, .. } => {
                assert_eq!(told.asked.insert(*id, true), Some(false), "answered twice, or never asked");
                assert_eq!(verdict.is_some(), input.is_some(), "what is answered is told");
                told.pending.remove(id);
                if let Some(input) = input {
                    self.check_input(*input);
                }
            }
            Fact::ToolRequested(asked) => {
                let id = asked.tool_use_id.clone().expect("this agent has ids");
                assert_eq!(told.calls.insert(id, (asked.id, false)), None, "a client gets a call twice");
                told.open_calls.insert(asked.id, seq);
            }
            Fact::ToolAnswered(answer) => {
                let call = told.calls.values_mut().find(|(id, _)| *id == answer.id).expect("it was made");
                assert!(!std::mem::replace(&mut call.1, true), "a call is answered twice");
                assert!(answer.output.is_some() || answer.input.is_none(), "nothing to tell");
                told.open_calls.remove(&answer.id);
                if let Some(input) = answer.input {
                    self.check_input(input);
                }
            }
            Fact::ToolRepeated(repeat) => {
                let answered =
                    told.calls.values().find(|(id, _)| *id == repeat.id).map(|(_, answered)| *answered);
                assert_eq!(answered, Some(repeat.input.is_some()), "an answered call gets its answer again");
                if let Some(input) = repeat.input {
                    self.check_input(input);
                }
            }
            Fact::ToolServerAsked { input, .. } => self.check_input(*input),
            Fact::Setting { input, .. } => self.check_input(*input),
            Fact::Rested { turn, .. } => {
                told.rested.insert(*turn);
            }
            // A salvage checkpoint is not a state that the session continues from.
            Fact::Saved(saved) if saved.salvage => {}
            Fact::Saved(saved) => {
                assert!(told.then.keys().all(|number| *number < saved.number), "numbers only grow");
                let heard = |turn: &&TurnId| told.started.contains(*turn) || told.joined.contains(*turn);
                let turns: Vec<TurnId> = told.conversation.iter().filter(heard).copied().collect();
                let title = told.title.clone().filter(|_| !turns.is_empty());
                let last_text = BTreeMap::from([(seq, told.last_text.clone())]);
                told.then.insert(saved.number, Conversation { turns, title, last_text });
                told.checkpoint = Some(saved.number);
                told.covered = true;
            }
            Fact::Rewound(SessionRewind { to, from, seq: covered, .. }) => {
                let open = told.queued.iter().find(|turn| !told.finished.contains_key(*turn));
                assert_eq!(open, None, "rewound under a turn");
                assert!(!told.ended, "rewound after its end");
                assert_eq!(*from, told.checkpoint, "there is no way back");
                let Conversation { turns, title, last_text } = told.then[to].clone();
                let (_, last_text) = last_text.range(..=covered).next_back().expect("the capture itself");
                (told.conversation, told.title, told.last_text) = (turns, title, last_text.clone());
                told.checkpoint = Some(*to);
                told.problem = None;
            }
            Fact::Finished { turn, outcome: how, problem, .. } => {
                assert!(told.queued.contains(turn), "the end of a turn that nobody asked for");
                assert_eq!(told.finished.insert(*turn, *how), None, "a turn ended twice");
                let deaths = told.deaths.get(turn).copied().unwrap_or(0);
                let twice = problem.as_ref().is_some_and(|problem| problem.code == "crashed_twice");
                assert_eq!(twice, deaths == 2, "{deaths} deaths");
                assert_eq!(twice, *how == TurnOutcome::Failed);
                if told.rested.contains(turn) {
                    told.last_text = Some(answer_of(*turn));
                }
                if let (true, Some(number)) = (told.covered, told.checkpoint)
                    && let Some(then) = told.then.get_mut(&number)
                {
                    then.last_text.insert(seq, told.last_text.clone());
                }
            }
            Fact::Cut { turn, death } => {
                told.joined.retain(|turn| told.finished.contains_key(turn));
                *told.deaths.entry(*turn).or_default() += u32::from(*death != Death::Shutdown);
            }
            // This cuts the running turn, unless it was asked to stop or has ended.
            Fact::Asleep { .. } => {
                let front = told.queued.iter().find(|turn| !told.finished.contains_key(*turn));
                let over = |turn: &TurnId| told.asked_to_stop.contains(turn) || told.rested.contains(turn);
                if !front.is_some_and(over) {
                    told.joined.retain(|turn| told.finished.contains_key(turn));
                }
            }
            Fact::Awake { .. } => {
                self.last_input = 1;
                told.problem = None;
            }
            Fact::Resumed { .. } => told.problem = None,
            Fact::Failed { problem } => told.problem = Some(problem.clone()),
            Fact::Locked { lock, .. } => {
                let same = told.lock.as_ref().is_some_and(|known| known.number == lock.number);
                assert!(same || lock.number > told.locks, "a number of a lock is given once");
                told.locks = told.locks.max(lock.number);
                told.lock = Some(lock.clone());
            }
            Fact::Unlocked { .. } => told.lock = None,
            Fact::Used(used) => told.used += used.usage.tokens(),
            Fact::Ended => told.ended = true,
            Fact::Configured { restart: true, .. } => told.changes += 1,
            Fact::Created { .. }
            | Fact::Forked { .. }
            | Fact::Said { .. }
            | Fact::SaveFailed { .. }
            | Fact::Resuming
            | Fact::ResumeFailed { .. }
            | Fact::Paused
            | Fact::Stopped
            | Fact::WorkspaceRewound(_)
            | Fact::Idle { .. }
            | Fact::Adopted(_)
            | Fact::Missing
            | Fact::Labelled { .. }
            | Fact::Configured { restart: false, .. }
            | Fact::BudgetReached(_) => {}
        }
    }

    fn check_input(&mut self, input: u64) {
        assert_eq!(input, self.last_input + 1, "inputs are numbered one after the other");
        self.last_input = input;
    }

    pub(super) fn check(&self) {
        let Some(machine) = &self.machine else { return };
        let state = &machine.log;
        assert_eq!(self.replayed(), *state, "a replay comes to another state");
        assert_eq!(
            self.told.ended,
            state.status == SessionStatus::Ended,
            "ended is final, and only said once"
        );
        assert_eq!(state.meter.session.usage.tokens(), self.told.used, "what was used is the sum of it");
        self.check_turns(state);
        self.check_card(state);
        self.check_pending(machine);
        let run = &machine.runtime;
        if run.effect.is_none() && run.closing.is_none() && run.remote_wait.is_none() {
            self.check_wait(machine);
        }
    }

    fn check_turns(&self, state: &LogState) {
        let open: Vec<TurnId> =
            self.told.queued.iter().filter(|turn| !self.told.finished.contains_key(*turn)).copied().collect();
        assert_eq!(state.turns.iter().map(|turn| turn.id).collect::<Vec<_>>(), open);
        for (place, turn) in state.turns.iter().enumerate() {
            let beside = matches!(turn.phase, TurnPhase::Queued | TurnPhase::Joined { .. });
            assert!(place == 0 || beside, "only the first can be under way");
            let expected = match turn.phase {
                TurnPhase::Queued => TurnState::Queued,
                TurnPhase::Running { .. } | TurnPhase::Joined { .. } => TurnState::Running,
                TurnPhase::Saving { .. } => TurnState::Saving,
                TurnPhase::Cut => TurnState::Cut,
            };
            assert_eq!(self.told.rows.get(&turn.id), Some(&self.row(turn.id, expected)));
            assert!(turn.deaths < 2, "given up after the second death");
        }
        for (turn, how) in &self.told.finished {
            let expected = match how {
                TurnOutcome::Done => TurnState::Done,
                TurnOutcome::Failed => TurnState::Failed,
                TurnOutcome::Interrupted => TurnState::Interrupted,
                TurnOutcome::Cancelled => TurnState::Cancelled,
            };
            assert_eq!(self.told.rows.get(turn), Some(&self.row(*turn, expected)));
        }
    }

    fn row(&self, id: TurnId, state: TurnState) -> TurnRow {
        let attempt = self.told.attempts.get(&id).copied().unwrap_or(0);
        TurnRow { id, seq: self.told.messages[&id].seq, state, attempt }
    }

    /// Every open request of the agent can be answered, and nothing else can.
    fn check_pending(&self, machine: &Machine) {
        let (pending, run) = (&machine.log.pending, &machine.runtime);
        let open = self.told.asked.iter().filter(|(_, answered)| !**answered).map(|(id, _)| *id);
        assert_eq!(pending.iter().map(|pending| pending.asked.id).collect::<BTreeSet<_>>(), open.collect());
        let names: BTreeSet<&String> = pending.iter().map(|pending| &pending.asked.request).collect();
        let calls = machine.log.open_tool_calls();
        let open: BTreeSet<EventSeq> = calls.map(|call| call.seq).collect();
        assert_eq!(open, self.told.open_calls.values().copied().collect(), "the calls that wait");
        match self.shim.as_ref().filter(|shim| shim.alive && run.is_connected()) {
            Some(shim) => {
                assert_eq!(names, shim.waiting.iter().collect());
                let calls = machine.log.open_tool_calls().filter_map(|call| call.request.as_ref());
                assert_eq!(calls.collect::<BTreeSet<_>>(), shim.calls.keys().collect());
            }
            // Until the log says that the sandbox is gone.
            None => {
                let ending = run.effect == Some(Effect::EndSandbox);
                assert!(names.is_empty() || run.is_shutting_down() || ending);
            }
        }
    }

    fn check_card(&self, state: &LogState) {
        let told = &self.told;
        let runs = matches!(state.status, SessionStatus::Starting | SessionStatus::Active);
        let open = |turn: &TurnId| !told.finished.contains_key(turn);
        let in_use = |lock: &SessionLock| {
            let holds = |turn: &&TurnId| open(turn) && told.messages[turn].lock == Some(lock.number);
            runs && told.queued.iter().any(|turn| holds(&turn))
        };
        let expected = SessionSummary {
            status: state.status,
            title: told.title.clone(),
            last_text: told.last_text.clone(),
            turns: told.conversation.len() as u64,
            open_turns: state.turns.len() as u64,
            problem: told.problem.clone(),
            checkpoint: told.checkpoint,
            pending: sorted(told.pending.values().chain(told.open_calls.values()).copied().collect()),
            lock: told.lock.clone().map(|lock| SessionLock { in_use: in_use(&lock), ..lock }),
        };
        assert_eq!(SessionSummary { pending: sorted(state.summary().pending), ..state.summary() }, expected);
        let delivered = |turn: &&TurnId| told.started.contains(*turn) && !told.self_started.contains(*turn);
        let begun = told.conversation.iter().filter(delivered).count();
        let open = state.turns.iter().filter(|turn| turn.attempt > 0 && !turn.self_started).count();
        assert_eq!(state.turns_delivered, (begun - open) as u64, "what the agent should remember");
        match state.status {
            SessionStatus::Active => assert_eq!(told.problem, None),
            SessionStatus::Error => assert!(told.problem.is_some()),
            SessionStatus::Starting
            | SessionStatus::Paused
            | SessionStatus::Stopped
            | SessionStatus::Ended => {}
        }
    }

    /// No effect is under way and the actor waits: then something outside the actor must be able to act.
    fn check_wait(&self, machine: &Machine) {
        let (state, run) = (&machine.log, &machine.runtime);
        assert_ne!(state.status, SessionStatus::Starting, "nobody starts it");
        assert_eq!(state.awake.is_some(), run.is_connected());
        let waiting = &run.waiting;
        assert!(waiting.resuming.is_empty() && waiting.pausing.is_empty() && waiting.forking.is_empty());
        assert!(waiting.rewinding.is_empty() && waiting.writing.is_empty() && waiting.deferred.is_empty());
        if matches!(state.next_step(), LogStep::Save { .. }) {
            assert!(run.capture.backoff.is_some(), "nobody saves the turn");
            return;
        }
        if run.agent.self_started && state.may_self_start() {
            let next = machine.next_deadline(self.now).expect("the agent's own work gets a turn");
            assert!(next <= self.now.instant + Duration::from_secs(1), "it comes before what waits");
            return;
        }
        assert_eq!(state.next_step(), LogStep::Wait);
        let Some(front) = state.turns.front() else { return };
        match front.phase {
            TurnPhase::Running { .. } => {
                let shim = self.shim.as_ref().filter(|shim| shim.alive && run.is_connected());
                let working = shim.and_then(|shim| shim.working);
                assert_eq!(working, Some(front.id), "nobody works on the turn that runs");
            }
            TurnPhase::Saving { .. } => panic!("nobody saves the turn"),
            TurnPhase::Joined { .. } => panic!("nothing runs that it was heard in"),
            TurnPhase::Queued | TurnPhase::Cut => {
                assert_ne!(state.status, SessionStatus::Active, "nobody starts the turn")
            }
        }
    }
}

fn ended_turn(fact: &Fact) -> Option<TurnId> {
    match fact {
        Fact::Finished { turn, .. } => Some(*turn),
        _ => None,
    }
}

fn sorted(mut events: Vec<EventSeq>) -> Vec<EventSeq> {
    events.sort_unstable();
    events
}
