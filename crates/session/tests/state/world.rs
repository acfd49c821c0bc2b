//! Everything around a `State` that the actor is in real life: the log, the effects under way, a shim that
//! outlives the server, and deaths. It does what the actor does, in the actor's order, without any I/O, and
//! checks after every fact that nothing was promised in vain.

use ash_driver::Say;
use ash_model::{
    Ask, Asked, Consistency, Death, Event, Fact, From, Incarnation, OnInterrupted, OnPermissionTimeout,
    Options, Outcome, Path, PermissionId, Problem, Receipt, Rewound, Saved, Setting, Source, Status, Tier,
    Timestamp, TurnId, Usage, Verdict,
};
use ash_session::state::{Found, Next, Phase, Refused, State, Wake, Wish};
use ash_store::TurnState;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// What may happen to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Prompt(Wake),
    Interrupt,
    Pause,
    Stop,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Wake,
    Save(Option<TurnId>),
    Midway(TurnId),
    Prepare,
    Sleep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    Stop,
    End,
    Shutdown,
}

#[derive(Debug, Clone, Copy)]
struct Closing {
    how: Close,
    late: bool,
    captured: bool,
}

/// What lives outside the server.
#[derive(Debug)]
struct Shim {
    incarnation: Incarnation,
    /// A dead one has left its journal.
    alive: bool,
    last_in: u64,
    prompts: BTreeSet<TurnId>,
    working: Option<TurnId>,
    asked_to_stop: bool,
    /// What the agent waits for.
    waiting: BTreeSet<String>,
    answered: BTreeSet<String>,
    /// What the agent said and nobody heard.
    unheard: Vec<Said>,
}

#[derive(Debug)]
enum Said {
    Rested(TurnId, Outcome),
    Asked(String),
    Withdrawn(String),
}

/// What dies with the server.
#[derive(Debug)]
struct Server {
    state: State,
    effect: Option<Effect>,
    leaving: bool,
    closing: Option<Closing>,
    pausing: bool,
    rewinding: Option<Wish>,
    prepared: bool,
    wants_capture: bool,
    tree: bool,
    dirty: bool,
    save_failed: bool,
    /// The connection to the shim.
    hands: bool,
}

#[derive(Debug, Default)]
struct Told {
    queued: Vec<TurnId>,
    finished: BTreeMap<TurnId, Outcome>,
    rested: BTreeSet<TurnId>,
    asked_to_stop: BTreeSet<TurnId>,
    deaths: BTreeMap<TurnId, u32>,
    rows: BTreeMap<TurnId, TurnState>,
    started: BTreeSet<TurnId>,
    /// The turns that are part of the conversation.
    conversation: Vec<TurnId>,
    /// The same, as it was at each checkpoint.
    then: BTreeMap<u64, Vec<TurnId>>,
    checkpoint: Option<u64>,
    ended: bool,
    /// Everything that was asked for, and whether it is answered.
    asked: BTreeMap<PermissionId, bool>,
}

/// How long a request waits.
const WAIT: i64 = 1000;

pub(crate) struct World {
    pub(crate) log: Vec<Event>,
    server: Option<Server>,
    shim: Option<Shim>,
    crash_before_telling: bool,
    on_interrupted: OnInterrupted,
    told: Told,
    last_input: u64,
    fresh: u128,
    now: Timestamp,
}

impl World {
    pub(crate) fn new(on_interrupted: OnInterrupted) -> World {
        let agent = ash_model::AgentName::parse("helper").expect("a name");
        let mut world = World {
            log: Vec::new(),
            server: Some(Server::new(State::new(0))),
            shim: None,
            crash_before_telling: false,
            on_interrupted,
            told: Told::default(),
            last_input: 0,
            fresh: 0,
            now: Timestamp(0),
        };
        world.note(vec![Fact::Created { agent, version: 1, options: Options::default() }]);
        world.drive();
        world
    }

    /// A session that has just been made and waits for its first message.
    pub(crate) fn awake() -> World {
        let mut world = World::new(OnInterrupted::Continue);
        world.act(Op::Effect(Luck::Good));
        world
    }

    pub(crate) fn after(mut self, ops: &[Op]) -> World {
        ops.iter().for_each(|op| self.act(*op));
        self
    }

    pub(crate) fn state(&self) -> &State {
        &self.server.as_ref().expect("the server is up").state
    }

    /// What a fresh server would make of the log.
    pub(crate) fn replayed(&self) -> State {
        State::new(0).replay(&self.log)
    }

    pub(crate) fn outcomes(&self) -> Vec<Option<Outcome>> {
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
    pub(crate) fn rewind_to(&self, newest: u8) -> Option<Wish> {
        let checkpoints = self.checkpoints();
        let place = usize::from(newest) % checkpoints.len().max(1);
        let (to, seq) = *checkpoints.iter().rev().nth(place)?;
        let upto = usize::try_from(seq).expect("a short log");
        Some(Wish::Rewind { to, seq, then: State::new(0).replay(&self.log[..upto]).then() })
    }

    pub(crate) fn kinds_since(&self, seq: usize) -> Vec<&'static str> {
        self.log[seq..].iter().map(|event| event.fact.kind()).collect()
    }

    fn next_fresh(&mut self) -> Uuid {
        self.fresh += 1;
        Uuid::from_u128(self.fresh)
    }

    pub(crate) fn act(&mut self, op: Op) {
        match op {
            Op::Prompt(wake) => {
                let turn = TurnId(self.next_fresh());
                let content = serde_json::json!(format!("message {}", self.fresh));
                self.wish(&Wish::Prompt { turn, content, ask: Ask::default(), wake });
            }
            Op::Interrupt => self.wish(&Wish::Interrupt),
            Op::Pause => self.wish(&Wish::Pause),
            Op::Stop => self.wish(&Wish::Stop),
            Op::Resume => self.wish(&Wish::Resume),
            Op::End => self.wish(&Wish::End),
            Op::Effect(luck) => self.settle(luck),
            Op::Capture => self.capture(),
            Op::Midway => self.midway(),
            Op::Rewind(newest) => {
                if let Some(wish) = self.rewind_to(newest) {
                    self.wish(&wish);
                }
            }
            Op::Rest => self.rest(),
            Op::AskLeave => self.ask_leave(),
            Op::Withdraw => self.withdraw(),
            Op::Answer(luck) => self.answer(luck),
            Op::TimePasses => self.now = Timestamp(self.now.0 + 2 * WAIT),
            Op::Set => self.set(),
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

    // What the actor does with a wish.

    fn wish(&mut self, wish: &Wish) {
        let Some(server) = &self.server else { return };
        if server.closing.is_some_and(|closing| refuses(closing.how, wish)) {
            return;
        }
        let decided = server.state.decide(wish);
        self.check_decision(wish, &decided);
        let Ok(facts) = decided else { return };
        match wish {
            Wish::Prompt { .. } | Wish::Resume => self.note(facts),
            Wish::Interrupt => self.note_and_tell(facts),
            Wish::Answer { .. } => {
                if server.hands {
                    self.note_and_tell(facts);
                }
            }
            Wish::Pause => {
                if let Some(server) = &mut self.server {
                    server.pausing = true;
                    server.wants_capture = true;
                }
            }
            Wish::Rewind { .. } => {
                if let Some(server) = &mut self.server {
                    server.rewinding = Some(wish.clone());
                    server.prepared = false;
                }
            }
            Wish::Stop | Wish::End if facts.is_empty() => {}
            Wish::Stop => self.close(Close::Stop),
            Wish::End => self.close(Close::End),
        }
    }

    fn check_decision(&self, wish: &Wish, decided: &Result<Vec<Fact>, Refused>) {
        if self.state().status != Status::Ended {
            return;
        }
        match wish {
            Wish::Prompt { .. } | Wish::Rewind { .. } => {
                assert_eq!(*decided, Err(Refused::Not(Status::Ended)));
            }
            Wish::Resume => assert_eq!(*decided, Err(Refused::Gone)),
            Wish::Answer { .. } => assert_eq!(*decided, Err(Refused::Unasked)),
            Wish::Pause | Wish::Stop => assert!(decided.is_err()),
            Wish::Interrupt | Wish::End => assert_eq!(*decided, Ok(Vec::new())),
        }
    }

    fn note_and_tell(&mut self, facts: Vec<Fact>) {
        let last = self.state().awake.as_ref().map_or(0, |awake| awake.next_input - 1);
        self.note(facts);
        for (input, say) in self.state().untold(last) {
            self.tell(input, say);
            if self.server.is_none() {
                return;
            }
        }
    }

    fn close(&mut self, how: Close) {
        if let Some(server) = &mut self.server {
            server.closing = Some(Closing { how, late: false, captured: false });
        }
    }

    fn capture(&mut self) {
        let Some(server) = &mut self.server else { return };
        server.dirty = true;
        let free = server.effect.is_none() && server.closing.is_none();
        if free && server.state.is_at_rest() && server.tree && server.state.next() == Next::Wait {
            server.save(None);
        }
    }

    fn midway(&mut self) {
        let Some(server) = &mut self.server else { return };
        let free = server.effect.is_none() && server.closing.is_none() && server.rewinding.is_none();
        let running = server.state.current().filter(|turn| matches!(turn.phase, Phase::Running { .. }));
        if let Some(turn) = running.filter(|_| free && server.hands && server.tree) {
            server.effect = Some(Effect::Midway(turn.id));
            server.dirty = true;
        }
    }

    // What the actor does by itself.

    fn drive(&mut self) {
        for _ in 0..100 {
            let Some(server) = &mut self.server else { return };
            let overdue = if server.hands { server.state.overdue(self.now) } else { Vec::new() };
            if !overdue.is_empty() {
                self.note_and_tell(overdue);
                continue;
            }
            if server.effect.is_some() {
                return;
            }
            if std::mem::take(&mut server.leaving) {
                server.effect = Some(Effect::Sleep);
                return;
            }
            if server.closing.is_some() {
                self.drive_closing();
                if self.server.as_ref().is_some_and(|server| server.leaving || server.closing.is_none()) {
                    continue;
                }
                return;
            }
            if server.rewinding.is_some() && self.drive_rewinding() {
                continue;
            }
            let Some(server) = &mut self.server else { return };
            if server.pausing {
                self.pause();
                continue;
            }
            match server.state.next() {
                Next::Wait => return,
                Next::Wake => server.effect = Some(Effect::Wake),
                Next::Save { turn } if server.tree => server.save(Some(turn)),
                Next::Save { turn } => self.could_not_save(Some(turn)),
                Next::Sleep => server.sleep(),
                Next::Tell { fact, input, say } => {
                    self.note(vec![fact]);
                    self.tell(input, say);
                }
            }
        }
        panic!("the actor would spin for ever: {:?}", self.state());
    }

    fn drive_rewinding(&mut self) -> bool {
        let Some(server) = &mut self.server else { return false };
        let Some(wish) = &server.rewinding else { return false };
        let Ok(facts) = server.state.decide(wish) else {
            server.rewinding = None;
            return true;
        };
        if server.state.status == Status::Starting {
            return false;
        }
        let asleep = server.state.awake.as_ref().map(|awake| awake.incarnation);
        if server.hands {
            server.sleep();
        } else if asleep.is_some() {
            let facts = server.state.falls_asleep();
            self.note(facts);
        } else if server.tree && server.dirty {
            server.save(None);
        } else if server.tree && !server.prepared {
            server.effect = Some(Effect::Prepare);
        } else {
            server.rewinding = None;
            self.note(facts);
        }
        true
    }

    fn pause(&mut self) {
        let Some(server) = &mut self.server else { return };
        if server.wants_capture && server.state.is_at_rest() && server.tree {
            server.save(None);
            return;
        }
        server.pausing = false;
        if let Ok(facts) = server.state.decide(&Wish::Pause) {
            self.note(facts);
        }
    }

    fn drive_closing(&mut self) {
        let Some(Server { state, closing: Some(closing), hands, .. }) = &mut self.server else { return };
        let phase = state.current().map(|turn| &turn.phase);
        let running = *hands && matches!(phase, Some(Phase::Running { .. }));
        let saving = matches!(phase, Some(Phase::Saving { .. }));
        let turn = state.current().map(|turn| turn.id);
        if closing.captured {
            return self.conclude();
        }
        if running && !closing.late {
            if closing.how != Close::Shutdown {
                let facts = state.decide(&Wish::Interrupt).unwrap_or_default();
                self.note_and_tell(facts);
            }
            return;
        }
        let late = closing.late;
        let Some(server) = &mut self.server else { return };
        if saving && !late {
            server.save(turn);
        } else if server.hands {
            server.sleep();
        } else {
            server.closing.as_mut().expect("seen above").captured = true;
            if server.tree && server.dirty {
                server.save(None);
            } else {
                self.conclude();
            }
        }
    }

    fn conclude(&mut self) {
        let Some(server) = &mut self.server else { return };
        let Some(closing) = server.closing.take() else { return };
        let unsafe_files = server.dirty && server.tree && server.save_failed;
        let wish = match closing.how {
            Close::Shutdown => {
                let facts = server.state.shut_down();
                self.note(facts);
                self.server = None;
                return;
            }
            Close::Stop => Wish::Stop,
            Close::End => Wish::End,
        };
        if unsafe_files {
            return;
        }
        if let Ok(facts) = server.state.decide(&wish) {
            let ends = closing.how == Close::End;
            self.note(facts);
            if let Some(server) = self.server.as_mut().filter(|_| ends) {
                server.tree = false;
                server.dirty = false;
            }
        }
    }

    fn settle(&mut self, luck: Luck) {
        let Some(effect) = self.server.as_mut().and_then(|server| server.effect.take()) else { return };
        match (effect, luck) {
            (Effect::Wake, Luck::Good) => self.woke(),
            (Effect::Wake, Luck::Bad) => {
                self.note(vec![Fact::Failed { problem: Problem::new("agent_failed", "It did not start") }]);
            }
            (Effect::Save(turn), Luck::Good) => self.saved(turn),
            (Effect::Save(turn), Luck::Bad) => self.could_not_save(turn),
            (Effect::Midway(turn), Luck::Good) => self.saved_midway(turn),
            (Effect::Midway(_), Luck::Bad) => {}
            (Effect::Prepare, Luck::Good) => {
                if let Some(server) = &mut self.server {
                    server.prepared = true;
                }
            }
            (Effect::Prepare, Luck::Bad) => {
                if let Some(server) = &mut self.server {
                    server.rewinding = None;
                }
            }
            (Effect::Sleep, Luck::Good | Luck::Bad) => self.slept(),
        }
    }

    fn woke(&mut self) {
        assert!(!self.shim.as_ref().is_some_and(|shim| shim.alive), "two sandboxes for one workspace");
        let incarnation = Incarnation(self.next_fresh());
        let resuming = self.state().resuming;
        self.shim = Some(Shim::new(incarnation));
        if let Some(server) = &mut self.server {
            server.tree = true;
            server.dirty = true;
            server.hands = true;
        }
        let resumed = resuming.then(|| Fact::Resumed { receipt: cold(), head: None });
        self.note([Fact::Awake { incarnation, kept: None }].into_iter().chain(resumed).collect());
    }

    fn saved(&mut self, turn: Option<TurnId>) {
        let number = self.state().last_checkpoint + 1;
        if let Some(server) = &mut self.server {
            server.save_failed = false;
        }
        let under_way = self.state().current().filter(|turn| match turn.phase {
            Phase::Running { .. } | Phase::Cut => true,
            Phase::Queued | Phase::Saving { .. } => false,
        });
        let midway = under_way.map(|turn| turn.id).filter(|_| turn.is_none());
        let saved = Saved { turn: turn.or(midway), mid_turn: midway.is_some(), ..saved(number) };
        let end = self.end_of(turn, Some(number));
        self.note([Fact::Saved(saved)].into_iter().chain(end).collect());
    }

    fn saved_midway(&mut self, turn: TurnId) {
        let number = self.state().last_checkpoint + 1;
        self.note(vec![Fact::Saved(Saved { turn: Some(turn), mid_turn: true, ..saved(number) })]);
    }

    fn could_not_save(&mut self, turn: Option<TurnId>) {
        if let Some(server) = &mut self.server {
            server.save_failed = true;
            server.dirty = true;
            server.pausing = false;
            server.rewinding = None;
        }
        let end = self.end_of(turn, None);
        self.note([Fact::SaveFailed { turn, error: "no".into() }].into_iter().chain(end).collect());
    }

    fn end_of(&self, turn: Option<TurnId>, checkpoint: Option<u64>) -> Option<Fact> {
        let current = self.state().current().filter(|current| Some(current.id) == turn)?;
        match &current.phase {
            Phase::Saving { how, problem, .. } => {
                Some(Fact::Finished { turn: current.id, how: *how, checkpoint, problem: problem.clone() })
            }
            Phase::Queued | Phase::Running { .. } | Phase::Cut => None,
        }
    }

    fn slept(&mut self) {
        self.shim = None;
        let Some(server) = &self.server else { return };
        let incarnation = server.state.awake.as_ref().map(|awake| awake.incarnation);
        let shutting = server.closing.is_some_and(|closing| closing.how == Close::Shutdown);
        if incarnation.is_some() && !shutting {
            let facts = server.state.falls_asleep();
            self.note(facts);
        }
    }

    // What happens in the sandbox.

    fn tell(&mut self, input: u64, say: Say) {
        if std::mem::take(&mut self.crash_before_telling) {
            self.server = None;
            return;
        }
        let heard = self.server.as_ref().is_some_and(|server| server.hands);
        if let Some(shim) = self.shim.as_mut().filter(|_| heard) {
            shim.take(input, say);
        }
    }

    fn rest(&mut self) {
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.alive) else { return };
        if !shim.waiting.is_empty() {
            return;
        }
        let Some(turn) = shim.working.take() else { return };
        let how = if std::mem::take(&mut shim.asked_to_stop) { Outcome::Interrupted } else { Outcome::Done };
        shim.unheard.push(Said::Rested(turn, how));
        self.hear();
    }

    fn ask_leave(&mut self) {
        let request = self.next_fresh().to_string();
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.alive && !shim.asked_to_stop) else { return };
        shim.waiting.insert(request.clone());
        shim.unheard.push(Said::Asked(request));
        self.hear();
    }

    fn withdraw(&mut self) {
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.alive) else { return };
        let Some(request) = shim.waiting.pop_first() else { return };
        shim.unheard.push(Said::Withdrawn(request));
        self.hear();
    }

    fn answer(&mut self, luck: Luck) {
        let Some(server) = &self.server else { return };
        let pending = server.state.pending.first().map(|pending| pending.asked.clone());
        let answers = pending.iter().filter(|asked| asked.question);
        let answers = answers.map(|_| ("Which?".to_owned(), "A".to_owned())).collect();
        let verdict = match luck {
            Luck::Good => Verdict::Allow { updated_input: None, answers },
            Luck::Bad => Verdict::deny("no"),
        };
        let id = pending.map_or_else(|| PermissionId(self.next_fresh()), |asked| asked.id);
        self.wish(&Wish::Answer { id, verdict });
    }

    fn set(&mut self) {
        let Some(server) = self.server.as_ref().filter(|server| server.hands) else { return };
        let Some(input) = server.state.awake.as_ref().map(|awake| awake.next_input) else { return };
        self.note_and_tell(vec![Fact::Setting { setting: Setting::Model("m".into()), input }]);
    }

    fn asked(&mut self, request: String) -> Fact {
        let id = PermissionId(self.next_fresh());
        let state = self.state();
        let turn = state.under_way();
        let ways = [OnPermissionTimeout::Deny, OnPermissionTimeout::Allow, OnPermissionTimeout::Interrupt];
        Fact::Asked(Asked {
            id,
            turn,
            request,
            tool: "Bash".into(),
            input: serde_json::json!({}),
            tool_use_id: None,
            suggestions: Vec::new(),
            question: self.fresh.is_multiple_of(2),
            expires_at: Timestamp(self.now.0 + WAIT),
            on_timeout: ways[usize::try_from(self.fresh % 3).expect("small")],
        })
    }

    fn hear(&mut self) {
        if !self.server.as_ref().is_some_and(|server| server.hands) {
            return;
        }
        let unheard = self.shim.as_mut().map(|shim| std::mem::take(&mut shim.unheard)).unwrap_or_default();
        self.digest(unheard);
    }

    fn digest(&mut self, unheard: Vec<Said>) {
        for said in unheard {
            let current = self.state().current().map(|turn| turn.id);
            let fact = match said {
                Said::Rested(turn, how) => (current == Some(turn)).then(|| rested(turn, how)),
                Said::Asked(request) => Some(self.asked(request)),
                Said::Withdrawn(request) => self.state().withdrawn(&request),
            };
            self.note(fact.into_iter().collect());
        }
    }

    fn die(&mut self) {
        self.hear();
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.alive) else { return };
        shim.alive = false;
        // If nobody listens, what it said last is in its journal, and that it died shows.
        let Some(server) = self.server.as_mut().filter(|server| server.hands) else { return };
        let facts = server.state.died(&Death::Agent { how: "signal 9".into() });
        server.sleep();
        self.note(facts);
    }

    fn crash(&mut self) {
        let waking = self.server.take().is_some_and(|server| server.effect == Some(Effect::Wake));
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
        let mut found = Found::Dead;
        let (mut untold, mut unheard) = (Vec::new(), Vec::new());
        if let Some(shim) = self.shim.as_mut().filter(known) {
            if shim.alive && server.tree {
                server.hands = true;
                found = Found::Alive(shim.incarnation);
                untold = server.state.untold(shim.last_in);
            } else {
                unheard = std::mem::take(&mut shim.unheard);
            }
        }
        if let Some(shim) = self.shim.as_mut().filter(|_| found == Found::Dead) {
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
        let facts = self.state().bereaved(found, self.on_interrupted);
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
            (None, None, Status::Ended | Status::Active | Status::Starting) => None,
            (None, None, Status::Paused | Status::Stopped | Status::Error) => Some(Op::Resume),
        }
    }

    // The log, and what must hold of it.

    fn note(&mut self, facts: Vec<Fact>) {
        for fact in facts {
            self.check_fact(&fact);
            let server = self.server.as_mut().expect("only a server writes");
            let seq = server.state.last_seq + 1;
            server.state.apply(seq, &fact);
            let changed = server.state.take_changed();
            self.told.rows.extend(changed.iter().map(|row| (row.id, row.state)));
            self.log.push(Event { seq, turn: None, at: Timestamp(0), fact });
        }
    }

    fn check_fact(&mut self, fact: &Fact) {
        let told = &mut self.told;
        match fact {
            Fact::Queued { turn, .. } => {
                told.queued.push(*turn);
                told.conversation.push(*turn);
            }
            Fact::Started { turn, input } | Fact::Continued { turn, input, .. } => {
                let first_open = told.queued.iter().find(|turn| !told.finished.contains_key(*turn));
                assert_eq!(first_open, Some(turn), "turns run in the order they were queued");
                assert!(!told.rested.contains(turn), "told again after it rested");
                assert!(!told.asked_to_stop.contains(turn), "told again after it was asked to stop");
                assert!(told.deaths.get(turn).is_none_or(|deaths| *deaths < 2), "told a third time");
                told.started.insert(*turn);
                self.check_input(*input);
            }
            Fact::Interrupting { turn, input } => {
                told.asked_to_stop.insert(*turn);
                self.check_input(*input);
            }
            Fact::Asked(asked) => {
                assert_eq!(told.asked.insert(asked.id, false), None, "two requests of one name");
            }
            Fact::Answered { id, verdict, input, .. } => {
                assert_eq!(told.asked.insert(*id, true), Some(false), "answered twice, or never asked");
                assert_eq!(verdict.is_some(), input.is_some(), "what is answered is told");
                if let Some(input) = input {
                    self.check_input(*input);
                }
            }
            Fact::Setting { input, .. } => self.check_input(*input),
            Fact::Rested { turn, .. } => {
                told.rested.insert(*turn);
            }
            Fact::Saved(saved) => {
                assert!(told.then.keys().all(|number| *number < saved.number), "numbers only grow");
                let begun = told.conversation.iter().filter(|turn| told.started.contains(*turn));
                told.then.insert(saved.number, begun.copied().collect());
                told.checkpoint = Some(saved.number);
            }
            Fact::Rewound(Rewound { to, from, .. }) => {
                let open = told.queued.iter().find(|turn| !told.finished.contains_key(*turn));
                assert_eq!(open, None, "rewound under a turn");
                assert!(!told.ended, "rewound after its end");
                assert_eq!(*from, told.checkpoint, "there is no way back");
                told.conversation = told.then[to].clone();
                told.checkpoint = Some(*to);
            }
            Fact::Finished { turn, how, problem, .. } => {
                assert!(told.queued.contains(turn), "the end of a turn that nobody asked for");
                assert_eq!(told.finished.insert(*turn, *how), None, "a turn ended twice");
                let deaths = told.deaths.get(turn).copied().unwrap_or(0);
                let twice = problem.as_ref().is_some_and(|problem| problem.code == "crashed_twice");
                assert_eq!(twice, deaths == 2, "{deaths} deaths");
                assert_eq!(twice, *how == Outcome::Failed);
            }
            Fact::Cut { turn, death } => {
                *told.deaths.entry(*turn).or_default() += u32::from(*death != Death::Shutdown);
            }
            Fact::Awake { .. } => self.last_input = 1,
            Fact::Ended => told.ended = true,
            Fact::Created { .. }
            | Fact::Forked { .. }
            | Fact::Said { .. }
            | Fact::SaveFailed { .. }
            | Fact::Asleep { .. }
            | Fact::Resuming
            | Fact::Resumed { .. }
            | Fact::ResumeFailed { .. }
            | Fact::Stirred { .. }
            | Fact::Paused
            | Fact::Stopped
            | Fact::Failed { .. } => {}
        }
    }

    fn check_input(&mut self, input: u64) {
        assert_eq!(input, self.last_input + 1, "inputs are numbered one after the other");
        self.last_input = input;
    }

    fn check(&self) {
        let Some(server) = &self.server else { return };
        let state = &server.state;
        assert_eq!(self.replayed(), *state, "a replay comes to another state");
        assert_eq!(self.told.ended, state.status == Status::Ended, "ended is final, and only said once");
        self.check_turns(state);
        self.check_card(state);
        self.check_pending(server);
        if server.effect.is_none() && server.closing.is_none() {
            self.check_wait(server);
        }
    }

    fn check_turns(&self, state: &State) {
        let open: Vec<TurnId> =
            self.told.queued.iter().filter(|turn| !self.told.finished.contains_key(*turn)).copied().collect();
        assert_eq!(state.turns.iter().map(|turn| turn.id).collect::<Vec<_>>(), open);
        for (place, turn) in state.turns.iter().enumerate() {
            assert!(place == 0 || turn.phase == Phase::Queued, "only the first can be under way");
            let expected = match turn.phase {
                Phase::Queued => TurnState::Queued,
                Phase::Running { .. } => TurnState::Running,
                Phase::Saving { .. } => TurnState::Saving,
                Phase::Cut => TurnState::Cut,
            };
            assert_eq!(self.told.rows.get(&turn.id), Some(&expected));
            assert!(turn.deaths < 2, "given up after the second death");
        }
        for (turn, how) in &self.told.finished {
            let expected = match how {
                Outcome::Done => TurnState::Done,
                Outcome::Failed => TurnState::Failed,
                Outcome::Interrupted => TurnState::Interrupted,
                Outcome::Cancelled => TurnState::Cancelled,
            };
            assert_eq!(self.told.rows.get(turn), Some(&expected));
        }
    }

    /// Whatever the agent waits for can be answered, and nothing else.
    fn check_pending(&self, server: &Server) {
        let pending = &server.state.pending;
        let open = self.told.asked.iter().filter(|(_, answered)| !**answered).map(|(id, _)| *id);
        assert_eq!(pending.iter().map(|pending| pending.asked.id).collect::<BTreeSet<_>>(), open.collect());
        let names: BTreeSet<&String> = pending.iter().map(|pending| &pending.asked.request).collect();
        match self.shim.as_ref().filter(|shim| shim.alive && server.hands) {
            Some(shim) => assert_eq!(names, shim.waiting.iter().collect()),
            // Until it is said that the sandbox is gone.
            None => {
                let shutting = server.closing.is_some_and(|closing| closing.how == Close::Shutdown);
                assert!(names.is_empty() || shutting || server.effect == Some(Effect::Sleep));
            }
        }
    }

    fn check_card(&self, state: &State) {
        let card = state.card();
        assert_eq!(card.status, state.status);
        assert_eq!(card.turns, self.told.conversation.len() as u64);
        let begun = self.told.conversation.iter().filter(|turn| self.told.started.contains(*turn)).count();
        let open = state.turns.iter().filter(|turn| turn.attempt > 0).count();
        assert_eq!(state.told, (begun - open) as u64, "what the agent should remember");
        assert_eq!(card.open_turns, state.turns.len() as u64);
        assert_eq!(card.checkpoint, self.told.checkpoint);
        assert_eq!(card.title.is_some(), card.turns > 0);
        match card.status {
            Status::Active => assert_eq!(card.problem, None),
            Status::Error => assert!(card.problem.is_some()),
            Status::Starting | Status::Paused | Status::Stopped | Status::Ended => {}
        }
    }

    /// Nothing is under way and the actor waits: somebody else must have something to do.
    fn check_wait(&self, server: &Server) {
        let state = &server.state;
        assert_eq!(state.next(), Next::Wait);
        assert_ne!(state.status, Status::Starting, "nobody starts it");
        assert_eq!(state.awake.is_some(), server.hands);
        let Some(front) = state.turns.front() else { return };
        match front.phase {
            Phase::Running { .. } => {
                let shim = self.shim.as_ref().filter(|shim| shim.alive && server.hands);
                let working = shim.and_then(|shim| shim.working);
                assert_eq!(working, Some(front.id), "nobody works on the turn that runs");
            }
            Phase::Saving { .. } => panic!("nobody saves the turn"),
            Phase::Queued | Phase::Cut => assert_ne!(state.status, Status::Active, "nobody starts the turn"),
        }
    }
}

impl Shim {
    fn new(incarnation: Incarnation) -> Shim {
        Shim {
            incarnation,
            alive: true,
            last_in: 1,
            prompts: BTreeSet::new(),
            working: None,
            asked_to_stop: false,
            waiting: BTreeSet::new(),
            answered: BTreeSet::new(),
            unheard: Vec::new(),
        }
    }

    fn take(&mut self, input: u64, say: Say) {
        assert!(input > self.last_in, "input {input} came after {}", self.last_in);
        self.last_in = input;
        match say {
            Say::Hello { .. } => panic!("greeted twice"),
            Say::Prompt { turn, .. } => {
                assert!(self.prompts.insert(turn), "a prompt reached the agent twice");
                assert_eq!(self.working, None, "two prompts at once");
                self.working = Some(turn);
                self.asked_to_stop = false;
            }
            Say::Interrupt { turn } if self.working == Some(turn) => {
                self.asked_to_stop = true;
                let waiting = std::mem::take(&mut self.waiting);
                self.unheard.extend(waiting.into_iter().map(Said::Withdrawn));
            }
            // One that comes too late is for a turn that is over.
            Say::Interrupt { .. } | Say::Set { .. } => {}
            Say::Answer { request, .. } => {
                assert!(self.answered.insert(request.clone()), "an answer reached the agent twice");
                self.waiting.remove(&request);
            }
        }
    }
}

impl Server {
    fn new(state: State) -> Server {
        Server {
            state,
            effect: None,
            leaving: false,
            closing: None,
            pausing: false,
            rewinding: None,
            prepared: false,
            wants_capture: false,
            tree: false,
            dirty: false,
            save_failed: false,
            hands: false,
        }
    }

    fn save(&mut self, turn: Option<TurnId>) {
        self.dirty = false;
        self.wants_capture = false;
        self.effect = Some(Effect::Save(turn));
    }

    fn sleep(&mut self) {
        if std::mem::take(&mut self.hands) {
            self.dirty = true;
            self.leaving = true;
        }
    }
}

fn refuses(closing: Close, wish: &Wish) -> bool {
    closing == Close::Shutdown || *wish != Wish::End
}

fn rested(turn: TurnId, how: Outcome) -> Fact {
    Fact::Rested { turn, how, text: "answer".into(), usage: Usage::default(), problem: None }
}

fn saved(number: u64) -> Saved {
    Saved {
        number,
        turn: None,
        tree: "tree".into(),
        consistency: Consistency::Frozen,
        files: 1,
        bytes: 1,
        skipped: Vec::new(),
        salvage: false,
        mid_turn: false,
    }
}

fn cold() -> Receipt {
    Receipt {
        path: Path::Cold,
        source: Source::Local,
        from: From::Live,
        tier: Tier::Native,
        checkpoint: None,
        verified: true,
        lost: Vec::new(),
        compared: None,
        repaired: Vec::new(),
        salvage: None,
    }
}
