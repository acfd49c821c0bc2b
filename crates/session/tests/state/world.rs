//! Everything around a `State` that the actor is in real life: the log, the effects under way, a shim that
//! outlives the server, and deaths. It does what the actor does, in the actor's order, without any I/O, and
//! checks after every fact that nothing was promised in vain.

mod effects;
mod promises;
mod server;
mod shim;

use ash_model::{
    BusyPolicy, Event, Fact, Incarnation, InterruptedTurnPolicy, MessageOptions, ModelStopReason,
    SessionOptions, SessionStatus, Timestamp, TurnId, TurnOutcome,
};
use ash_session::machine::{SandboxLiveness, SessionBudget, LogState, StateCommand, WakePolicy};
use promises::Told;
use server::{Close, Effect, Server};
use shim::{Shim, WAIT};
use uuid::Uuid;

/// What may happen to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Prompt(WakePolicy),
    /// A message that does not only wait.
    Push(BusyPolicy),
    /// The n-th of the messages that wait is taken back, or goes first.
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
    /// Files were written by somebody else: a capture between turns.
    Capture,
    /// The turn that runs has taken long.
    Midway,
    /// To one of the checkpoints there are, counted from the newest.
    Rewind(u8),
    /// The agent is through with what it was told.
    Rest,
    /// The agent takes up what it was told in the middle of its turn.
    TakeUp,
    /// The agent wants leave for something.
    AskLeave,
    /// It does not want it any more.
    Withdraw,
    /// Somebody allows the first thing that it waits for, or denies it.
    Answer(Luck),
    /// Nobody answered for a long time.
    TimePasses,
    /// Somebody wants another model.
    Set,
    /// Or something that only another agent can do.
    Configure,
    /// The model answers: with a call, or not.
    Use(ModelStopReason),
    /// More may be used.
    Raise,
    /// The agent's process ends, or its whole sandbox.
    Die,
    /// A closing session's turn had long enough.
    Late,
    /// The server dies; what it put into the log but did not tell the agent yet is told by the next one.
    Crash,
    /// As above, right after the next fact that is to be told and before it is.
    CrashBeforeTelling,
    /// The server starts again. Bad luck: there is no room for the sandbox, or it is not ours.
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
    server: Option<Server>,
    shim: Option<Shim>,
    crash_before_telling: bool,
    on_interrupted: InterruptedTurnPolicy,
    told: Told,
    last_input: u64,
    fresh: u128,
    now: Timestamp,
    pub(crate) budget: SessionBudget,
}

impl World {
    pub(crate) fn new(on_interrupted: InterruptedTurnPolicy) -> World {
        let agent = ash_model::AgentName::parse("helper").expect("a name");
        let mut world = World {
            log: Vec::new(),
            server: Some(Server::new(LogState::new(0))),
            shim: None,
            crash_before_telling: false,
            on_interrupted,
            told: Told::default(),
            last_input: 0,
            fresh: 0,
            now: Timestamp(0),
            budget: SessionBudget::default(),
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

    /// So many tokens may be used; none: as many as one likes.
    pub(crate) fn with_tokens(mut self, tokens: Option<u64>) -> World {
        self.budget.session.max_tokens = tokens;
        self.set_budget();
        self
    }

    pub(crate) fn set_budget(&mut self) {
        if let Some(server) = &mut self.server {
            server.state.budget = self.budget;
        }
    }

    pub(crate) fn after(mut self, ops: &[Op]) -> World {
        ops.iter().for_each(|op| self.act(*op));
        self
    }

    pub(crate) fn state(&self) -> &LogState {
        &self.server.as_ref().expect("the server is up").state
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
                (Fact::Saved(saved), _) => found.push((saved.number, event.seq)),
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

    /// The wish to go to the n-th newest checkpoint.
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
        self.log[seq..].iter().map(|event| event.fact.kind()).collect()
    }

    fn next_fresh(&mut self) -> Uuid {
        self.fresh += 1;
        Uuid::from_u128(self.fresh)
    }

    pub(crate) fn note(&mut self, facts: Vec<Fact>) {
        for fact in facts {
            for fact in self.state().with_joined(fact) {
                self.check_fact(&fact);
                let server = self.server.as_mut().expect("only a server writes");
                let seq = server.state.last_seq + 1;
                server.state.apply(seq, &fact);
                let changed = server.state.take_changed_turns();
                self.told.rows.extend(changed.iter().map(|row| (row.id, row.state)));
                self.log.push(Event { seq, turn: None, at: Timestamp(0), fact });
            }
        }
    }

    fn waiting(&self, n: u8) -> Option<TurnId> {
        self.server.as_ref()?.state.waiting().nth(n.into())
    }

    pub(crate) fn act(&mut self, op: Op) {
        match op {
            Op::Prompt(wake) => {
                let turn = TurnId(self.next_fresh());
                let content = serde_json::json!(format!("message {}", self.fresh));
                let on_busy = BusyPolicy::Queue;
                self.wish(&StateCommand::Prompt {
                    turn,
                    content,
                    ask: MessageOptions::default(),
                    wake,
                    on_busy,
                    lock: None,
                });
            }
            Op::Push(on_busy) => {
                let turn = TurnId(self.next_fresh());
                let content = serde_json::json!(format!("message {}", self.fresh));
                self.wish(&StateCommand::Prompt {
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
                    self.wish(&StateCommand::Withdraw { turn });
                }
            }
            Op::GoFirst(n) => {
                if let Some(turn) = self.waiting(n) {
                    self.wish(&StateCommand::Reorder { first: vec![turn] });
                }
            }
            Op::Configure => {
                let busy = self.server.as_ref().is_none_or(|server| server.closing.is_some());
                if !busy && self.state().status != SessionStatus::Ended {
                    self.note(vec![Fact::Configured { options: SessionOptions::default(), restart: true }]);
                }
            }
            Op::Interrupt => self.wish(&StateCommand::Interrupt),
            Op::Pause => self.wish(&StateCommand::Pause),
            Op::Stop => self.wish(&StateCommand::Stop),
            Op::Release => self.wish(&StateCommand::Release { by_force: true }),
            Op::Resume => self.wish(&StateCommand::Resume),
            Op::End => self.wish(&StateCommand::End),
            Op::Effect(luck) => self.settle(luck),
            Op::Capture => self.capture(),
            Op::Midway => self.midway(),
            Op::Rewind(newest) => {
                if let Some(wish) = self.rewind_to(newest) {
                    self.wish(&wish);
                }
            }
            Op::Rest => self.rest(),
            Op::TakeUp => self.take_up(),
            Op::AskLeave => self.ask_leave(),
            Op::Withdraw => self.withdraw(),
            Op::Answer(luck) => self.answer(luck),
            Op::TimePasses => self.now = Timestamp(self.now.0 + 2 * WAIT),
            Op::Set => self.set(),
            Op::Use(end) => self.use_some(end),
            Op::Raise => {
                let more = self.budget.session.max_tokens.map(|tokens| tokens + 100);
                self.budget.session.max_tokens = more;
                self.set_budget();
            }
            Op::Die => self.die(),
            Op::Late => {
                if let Some(closing) = self.server.as_mut().and_then(|server| server.closing.as_mut()) {
                    closing.late = true;
                }
            }
            Op::Crash => self.crash(),
            Op::CrashBeforeTelling => self.crash_before_telling = true,
            Op::Start(luck) => self.start(luck),
            Op::Shutdown => self.close(Close::Shutdown),
        }
        self.drive();
        // What the agent says to what it was just told.
        self.hear();
        self.drive();
        self.check();
    }

    fn crash(&mut self) {
        let waking = self.server.take().is_some_and(|server| matches!(server.effect, Some(Effect::Wake(_))));
        if waking {
            // It got as far as a sandbox that the log does not know.
            self.shim = Some(Shim::new(Incarnation(self.next_fresh())));
        }
    }

    fn start(&mut self, luck: Luck) {
        if self.server.is_some() {
            return;
        }
        let mut server = Server::new(self.replayed());
        let awake = server.state.awake.clone();
        server.tree = luck == Luck::Good && self.log.iter().any(|event| event.fact.kind() == "awake");
        server.dirty = server.tree;
        let known =
            |shim: &&mut Shim| awake.as_ref().is_some_and(|awake| awake.incarnation == shim.incarnation);
        let mut found = SandboxLiveness::Dead;
        let (mut untold, mut unheard) = (Vec::new(), Vec::new());
        if let Some(shim) = self.shim.as_mut().filter(known) {
            if shim.alive && server.tree {
                server.hands = true;
                found = SandboxLiveness::Alive(shim.incarnation);
                untold = server.state.undelivered_inputs(shim.last_in);
            } else {
                unheard = std::mem::take(&mut shim.unheard);
            }
        }
        if let Some(shim) = self.shim.as_mut().filter(|_| found == SandboxLiveness::Dead) {
            shim.alive = false;
        }
        self.server = Some(server);
        for (input, say) in untold {
            self.tell(input, say);
        }
        if self.server.is_none() {
            return;
        }
        self.digest(unheard);
        let facts = self.state().recover(found, self.on_interrupted);
        self.note(facts);
        self.hear();
    }

    /// Lets everything go well, and resumes the session if need be, until nothing is left to do.
    pub(crate) fn come_to_rest(&mut self) {
        self.crash_before_telling = false;
        for _ in 0..300 {
            let Some(op) = self.towards_rest() else { return };
            self.act(op);
        }
        panic!("it does not come to rest: {:?}", self.state());
    }

    fn towards_rest(&self) -> Option<Op> {
        let Some(server) = &self.server else { return Some(Op::Start(Luck::Good)) };
        let living = self.shim.as_ref().filter(|shim| shim.alive);
        let working = living.is_some_and(|shim| shim.working.is_some());
        let waiting = living.is_some_and(|shim| !shim.waiting.is_empty());
        match (server.effect, server.closing, server.state.status) {
            (Some(_), _, _) => Some(Op::Effect(Luck::Good)),
            (None, _, _) if waiting && server.hands => Some(Op::TimePasses),
            (None, _, _) if working && server.hands => Some(Op::Rest),
            (None, Some(_), _) => Some(Op::Late),
            (None, None, SessionStatus::Ended | SessionStatus::Active | SessionStatus::Starting) => None,
            (None, None, _) if server.state.exhausted_limit().is_some() => Some(Op::Raise),
            (None, None, SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Error) => {
                Some(Op::Resume)
            }
        }
    }
}
