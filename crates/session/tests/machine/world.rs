//! The surroundings of a `Machine`, which the actor provides in production: the log, the disk, the effects under way,
//! callers, a shim that outlives the server, and deaths. It carries out the steps that the real machine plans, without
//! any I/O, and checks after every fact that no promise is broken.

mod callers;
mod effects;
mod execute;
mod promises;
mod shim;

use ash_model::{
    BusyPolicy, Durability, Event, Fact, Incarnation, InterruptedTurnPolicy, MessageOptions, ModelStopReason,
    SessionOptions, SessionStatus, Timestamp, TurnId, TurnOutcome,
};
use ash_session::machine::{
    Effect, LogState, LogStep, Machine, Now, PreparedCommit, SandboxLiveness, SessionBudget, SessionProfile,
    StateCommand, WaiterId, WakePolicy,
};
use promises::Told;
use shim::{AgentMemory, Shim, WAIT};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use uuid::Uuid;

/// How long a turn may take to stop before the session closes without waiting for it.
const CLOSING: Duration = Duration::from_secs(10);

/// What may happen to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Prompt(WakePolicy),
    /// A message with a policy other than waiting.
    Push(BusyPolicy),
    /// The n-th of the waiting messages is withdrawn, or moved to the front.
    TakeBack(u8),
    GoFirst(u8),
    Interrupt,
    Pause,
    Stop,
    Release,
    Resume,
    End,
    /// The effect under way is over.
    Effect(Luck),
    /// Files were written from outside: a capture between turns.
    Capture,
    /// The running turn has taken long.
    Midway,
    /// To one of the checkpoints, counted from the newest.
    Rewind(u8),
    /// The agent has finished what it was told.
    Rest,
    /// The agent acknowledges what it was told in the middle of its turn.
    TakeUp,
    /// The agent requests a permission.
    AskLeave,
    /// The agent withdraws the request.
    Withdraw,
    /// A client allows or denies the agent's first open request.
    Answer(Luck),
    /// The agent calls a tool of the client, and a client answers the first open call.
    CallTool,
    AnswerTool,
    /// No client answered for a long time.
    TimePasses,
    /// Nothing happens until the machine's next deadline.
    Timer,
    /// A caller wants to fork the session, or to write files.
    Fork,
    Write,
    /// The tree is removed from outside.
    LoseTree,
    /// Another session needs the sandbox.
    Evict,
    /// Another tenant has a claim to the sandbox's slot, as long as this sandbox has it.
    Claim,
    /// A client takes the lock for its messages, or gives it back.
    Lock,
    /// The agent begins work that no message asked for.
    StartItself,
    /// A client chooses another model.
    Set,
    /// A client changes an option that needs a new agent.
    Configure,
    /// The model answers: with a tool call, or not.
    Use(ModelStopReason),
    /// The budget is raised.
    Raise,
    /// The agent's process ends, or its whole sandbox.
    Die,
    /// The deadline for the turn of a closing session is over.
    Late,
    /// The server dies; the next one tells the agent what is in the log but was not told yet.
    Crash,
    /// As above, right after the next fact that is to be told and before it is.
    CrashBeforeTelling,
    /// The server starts again. Bad luck: there is no slot for the sandbox, or it is not ours.
    Start(Luck),
    Shutdown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Luck {
    Good,
    Bad,
}

pub(crate) struct World {
    pub(crate) log: Vec<Event>,
    /// What the log should say by now, fact by fact.
    shadow: LogState,
    /// None: no server runs.
    machine: Option<Machine>,
    disk: Disk,
    shim: Option<Shim>,
    memory: AgentMemory,
    crash_before_telling: bool,
    on_interrupted: InterruptedTurnPolicy,
    told: Told,
    last_input: u64,
    fresh: u128,
    now: Now,
    pub(crate) budget: SessionBudget,
    profile: SessionProfile,
    /// Waiting callers, and whether the options that they request need another agent.
    callers: BTreeMap<WaiterId, Option<RestartNeed>>,
    /// How often the options had been changed when the current start began.
    changes_at_start: u64,
}

/// The state on disk, which outlives the server.
#[derive(Debug, Default)]
struct Disk {
    tree: bool,
    /// The tree was removed from outside.
    broken: bool,
    leftovers: bool,
}

/// Whether options count for an agent that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestartNeed {
    Goes,
    Restart,
}

/// The usual session.
pub(crate) const USUAL: SessionProfile = SessionProfile {
    ephemeral: false,
    shared: false,
    client_key: false,
    idle_timeout: None,
    max_background_wait: Duration::from_secs(600),
    checkpoint_every: None,
    interrupt_grace: Duration::from_secs(600),
    durability: Durability::Local,
};

impl World {
    pub(crate) fn new(on_interrupted: InterruptedTurnPolicy) -> World {
        World::with_profile(on_interrupted, USUAL)
    }

    pub(crate) fn with_profile(on_interrupted: InterruptedTurnPolicy, profile: SessionProfile) -> World {
        let agent = ash_model::AgentName::parse("helper").expect("a name");
        // Later than anything that is subtracted from it.
        let instant = Instant::now() + Duration::from_secs(3600);
        let mut world = World {
            log: Vec::new(),
            shadow: LogState::new(0),
            machine: Some(Machine::new(LogState::new(0), profile, instant)),
            disk: Disk::default(),
            shim: None,
            memory: AgentMemory::default(),
            crash_before_telling: false,
            on_interrupted,
            told: Told::default(),
            last_input: 0,
            fresh: 0,
            now: Now { instant, wall: Timestamp(0) },
            budget: SessionBudget::default(),
            profile,
            callers: BTreeMap::new(),
            changes_at_start: 0,
        };
        world.note(vec![Fact::Created { agent, version: 1, options: SessionOptions::default() }]);
        world.drive();
        world
    }

    /// A session that has just been made and waits for its first message.
    pub(crate) fn awake() -> World {
        let mut world = World::new(InterruptedTurnPolicy::Continue);
        world.act(Op::Effect(Luck::Good));
        world
    }

    /// Sets how many tokens may be used; none: no limit.
    pub(crate) fn with_tokens(mut self, tokens: Option<u64>) -> World {
        self.budget.session.max_tokens = tokens;
        self.set_budget();
        self
    }

    pub(crate) fn set_budget(&mut self) {
        self.shadow.budget = self.budget;
        if let Some(machine) = &mut self.machine {
            machine.log.budget = self.budget;
        }
    }

    pub(crate) fn after(mut self, ops: &[Op]) -> World {
        ops.iter().for_each(|op| self.act(*op));
        self
    }

    pub(crate) fn state(&self) -> &LogState {
        &self.machine().log
    }

    pub(crate) fn machine(&self) -> &Machine {
        self.machine.as_ref().expect("the server is up")
    }

    fn machine_mut(&mut self) -> &mut Machine {
        self.machine.as_mut().expect("the server is up")
    }

    /// What a fresh server would make of the log.
    pub(crate) fn replayed(&self) -> LogState {
        let mut state = LogState::new(0).replay(&self.log);
        state.budget = self.budget;
        state
    }

    pub(crate) fn outcomes(&self) -> Vec<Option<TurnOutcome>> {
        self.told.queued.iter().map(|turn| self.told.finished.get(turn).copied()).collect()
    }

    /// Every checkpoint, oldest first, with the last event that it covers.
    fn checkpoints(&self) -> Vec<(u64, u64)> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        for event in &self.log {
            match (&event.fact, found.last_mut()) {
                (Fact::Saved(saved), _) if !saved.salvage => found.push((saved.number, event.seq)),
                // The end of the turn is recorded with it.
                (Fact::Finished { checkpoint, .. }, Some((number, seq)))
                    if *checkpoint == Some(*number) && *seq + 1 == event.seq =>
                {
                    *seq = event.seq;
                }
                _ => {}
            }
        }
        found
    }

    /// The command to go to the n-th newest checkpoint.
    pub(crate) fn rewind_to(&self, newest: u8) -> Option<StateCommand> {
        let checkpoints = self.checkpoints();
        let place = usize::from(newest) % checkpoints.len().max(1);
        let (to, seq) = *checkpoints.iter().rev().nth(place)?;
        let upto = usize::try_from(seq).expect("a short log");
        Some(StateCommand::Rewind {
            to,
            seq,
            then: LogState::new(0).replay(&self.log[..upto]).conversation_point(),
            files: false,
        })
    }

    pub(crate) fn kinds_since(&self, seq: usize) -> Vec<&'static str> {
        let kinds = self.log[seq..].iter().map(|event| event.fact.kind());
        // The end of a session's last turn always comes with `idle`.
        kinds.filter(|kind| *kind != "idle").collect()
    }

    fn next_fresh(&mut self) -> Uuid {
        self.fresh += 1;
        Uuid::from_u128(self.fresh)
    }

    /// Puts facts into the log as the actor does, and checks every one.
    pub(crate) fn note(&mut self, facts: Vec<Fact>) {
        if facts.is_empty() {
            return;
        }
        let first = self.machine().log.last_seq + 1;
        let prepared = self.machine().log.prepare(facts.clone(), self.now.wall);
        self.check_commit(&facts, &prepared);
        let PreparedCommit { events, mut state, .. } = prepared;
        let changed = state.take_changed_turns();
        for (seq, event) in (first..).zip(events) {
            self.check_fact(seq, &event.fact);
            self.shadow.apply(seq, &event.fact);
            self.log.push(Event { seq, turn: event.turn, at: event.at, fact: event.fact });
        }
        self.shadow.take_changed_turns();
        assert_eq!(self.shadow, state, "the commit says something else than its events");
        self.told.rows.extend(changed.iter().map(|row| (row.id, row.clone())));
        self.machine_mut().log = state;
    }

    fn waiting(&self, n: u8) -> Option<TurnId> {
        self.machine.as_ref()?.log.waiting().nth(n.into())
    }

    fn advance(&mut self, by: Duration) {
        let ms = i64::try_from(by.as_millis()).expect("a short time");
        self.now = Now { instant: self.now.instant + by, wall: Timestamp(self.now.wall.0 + ms) };
    }

    pub(crate) fn act(&mut self, op: Op) {
        match op {
            Op::Prompt(wake) => {
                let turn = TurnId(self.next_fresh());
                let content = serde_json::json!(format!("message {}", self.fresh));
                let on_busy = BusyPolicy::Queue;
                self.ask(StateCommand::Prompt {
                    turn,
                    content,
                    ask: MessageOptions::default(),
                    wake,
                    on_busy,
                    lock: self.held_lock(),
                });
            }
            Op::Push(on_busy) => {
                let turn = TurnId(self.next_fresh());
                let content = serde_json::json!(format!("message {}", self.fresh));
                self.ask(StateCommand::Prompt {
                    turn,
                    content,
                    ask: MessageOptions::default(),
                    wake: WakePolicy::Allowed,
                    on_busy,
                    lock: None,
                });
            }
            Op::TakeBack(n) => {
                if let Some(turn) = self.waiting(n) {
                    self.ask(StateCommand::Withdraw { turn });
                }
            }
            Op::GoFirst(n) => {
                if let Some(turn) = self.waiting(n) {
                    self.ask(StateCommand::Reorder { first: vec![turn] });
                }
            }
            Op::Configure => self.change_options(RestartNeed::Restart),
            Op::Interrupt => self.ask(StateCommand::Interrupt),
            Op::Pause => self.ask(StateCommand::Pause),
            Op::Stop => self.ask(StateCommand::Stop),
            Op::Release => self.ask(StateCommand::Release { by_force: true }),
            Op::Resume => self.ask(StateCommand::Resume),
            Op::End => self.ask(StateCommand::End),
            Op::Effect(luck) => self.settle(luck),
            Op::Capture => {
                let changed = self.now.instant - Duration::from_secs(4);
                if let Some(machine) = &mut self.machine {
                    machine.runtime.touch(changed);
                }
            }
            Op::Midway => {
                // So much that a midway capture is due, however long the turn takes.
                if let Some(machine) = &mut self.machine {
                    machine.runtime.capture.add_log_bytes(1 << 30, 1);
                }
            }
            Op::Rewind(newest) => {
                if let Some(wish) = self.rewind_to(newest) {
                    self.ask(wish);
                }
            }
            Op::Rest => self.rest(),
            Op::TakeUp => self.take_up(),
            Op::AskLeave => self.ask_leave(),
            Op::Withdraw => self.withdraw(),
            Op::Answer(luck) => self.answer_request(luck),
            Op::CallTool => self.call_tool(),
            Op::AnswerTool => self.answer_tool(),
            Op::TimePasses => self.advance(2 * WAIT),
            Op::Timer => self.wait_for_deadline(),
            Op::Lock => self.take_or_release_lock(),
            Op::StartItself => self.start_itself(),
            Op::Set => self.change_options(RestartNeed::Goes),
            Op::Fork => self.ask_for_fork(),
            Op::Write => self.ask_to_write(),
            Op::LoseTree => self.disk.broken = self.disk.tree,
            Op::Evict => self.evict(),
            Op::Claim => {
                if let Some(machine) = &mut self.machine {
                    machine.runtime.agent.yields = machine.runtime.is_connected();
                }
            }
            Op::Use(end) => self.use_some(end),
            Op::Raise => {
                let more = self.budget.session.max_tokens.map(|tokens| tokens + 100);
                self.budget.session.max_tokens = more;
                self.set_budget();
            }
            Op::Die => self.die(),
            Op::Late => {
                if self.machine.as_ref().is_some_and(|machine| machine.runtime.closing.is_some()) {
                    self.advance(CLOSING + Duration::from_secs(1));
                }
            }
            Op::Crash => self.crash(),
            Op::CrashBeforeTelling => self.crash_before_telling = true,
            Op::Start(luck) => self.act_start(luck),
            Op::Shutdown => self.shut_down(),
        }
        self.drive();
        // The agent's reaction to what it was just told.
        self.hear();
        self.drive();
        self.check();
    }

    fn crash(&mut self) {
        let Some(machine) = self.machine.take() else { return };
        // Their connections are gone with the server.
        self.callers.clear();
        if matches!(machine.runtime.effect, Some(Effect::Start { .. })) {
            // The start got as far as a sandbox that the log does not know.
            self.shim = Some(Shim::new(Incarnation(self.next_fresh())));
        }
    }

    fn act_start(&mut self, luck: Luck) {
        if self.machine.is_some() {
            return;
        }
        if luck == Luck::Bad {
            self.disk = Disk::default();
        }
        let mut machine = Machine::new(self.replayed(), self.profile, self.now.instant);
        machine.runtime.tree.present = self.disk.tree;
        if self.disk.tree {
            machine.runtime.touch(self.now.instant);
        }
        let awake = machine.log.awake.clone();
        let known =
            |shim: &&mut Shim| awake.as_ref().is_some_and(|awake| awake.incarnation == shim.incarnation);
        let mut found = SandboxLiveness::Dead;
        let (mut untold, mut unheard) = (Vec::new(), Vec::new());
        if let Some(shim) = self.shim.as_mut().filter(known) {
            if shim.alive && self.disk.tree {
                machine.runtime.connect(self.now.instant);
                found = SandboxLiveness::Alive(shim.incarnation);
                untold = machine.log.undelivered_inputs(shim.last_in);
            } else {
                unheard = std::mem::take(&mut shim.unheard);
            }
        }
        if let Some(shim) = self.shim.as_mut().filter(|_| found == SandboxLiveness::Dead) {
            shim.alive = false;
        }
        self.machine = Some(machine);
        for (input, say) in untold {
            self.tell(input, say);
        }
        if self.machine.is_none() {
            return;
        }
        self.digest(unheard);
        let facts = self.state().recover(found, self.on_interrupted);
        self.note(facts);
        let now = self.now.instant;
        self.machine_mut().set_interrupt_deadline(now);
        self.hear();
    }

    /// Lets everything succeed, and resumes the session if necessary, until nothing is left to do.
    pub(crate) fn come_to_rest(&mut self) {
        self.crash_before_telling = false;
        for _ in 0..300 {
            self.hear_everything();
            let Some(op) = self.towards_rest() else {
                assert_eq!(self.callers, BTreeMap::new(), "nobody waits for ever");
                return;
            };
            self.act(op);
        }
        panic!("it does not come to rest: {:?}", self.machine());
    }

    /// The agent may have answered more than one thing since it was last listened to.
    fn hear_everything(&mut self) {
        while self.is_connected() && self.shim.as_ref().is_some_and(|shim| !shim.unheard.is_empty()) {
            self.hear();
            self.drive();
        }
    }

    fn towards_rest(&self) -> Option<Op> {
        let Some(Machine { log, runtime }) = &self.machine else { return Some(Op::Start(Luck::Good)) };
        let living = self.shim.as_ref().filter(|shim| shim.alive && runtime.is_connected());
        let working = living.is_some_and(|shim| shim.working.is_some());
        let waiting = living.is_some_and(|shim| !shim.waiting.is_empty() || !shim.calls.is_empty());
        if runtime.effect.is_some() || runtime.remote_wait.is_some() {
            return Some(Op::Effect(Luck::Good));
        }
        match (&runtime.closing, log.status) {
            (_, _) if waiting => Some(Op::TimePasses),
            (_, _) if working => Some(Op::Rest),
            (None, SessionStatus::Active) if runtime.agent.self_started => Some(Op::Timer),
            (Some(_), _) => Some(Op::Late),
            (None, _) if matches!(log.next_step(), LogStep::Save { .. }) => Some(Op::Timer),
            (None, SessionStatus::Ended | SessionStatus::Active | SessionStatus::Starting) => None,
            (None, _) if log.exhausted_limit().is_some() => Some(Op::Raise),
            (None, SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Error) => Some(Op::Resume),
        }
    }
}
