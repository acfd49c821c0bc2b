//! The one who looks after a session: takes wishes, listens to the sandbox, and does what `State::next` says.
//! It may die at any line; the next one reads the log and goes on.

mod close;
mod exec;
mod hear;
mod load;
mod permission;
mod recall;
mod retell;
mod rewind;
mod save;
mod settings;
mod transcript;
mod wake;

pub use exec::Executed;
pub(crate) use exec::base_env;
pub(crate) use load::Seat;
pub(crate) use wake::blocking;

use crate::{
    Error, Result,
    files::FileSource,
    live::Live,
    logs::Logs,
    pool::{Mood, MoodCell, Rooms},
    state::{Next, State, Wish},
};
use ash_driver::{Driver, Ear, Say};
use ash_model::{Delta, Fact, Incarnation, Note, Options, Receipt, Rewound, Setting, Status, TurnId};
use ash_sandbox::{Record, Records, Remote};
use ash_snapshot::Taken;
use ash_store::{Append, Checkpoint, Lease, Session};
use close::Closing;
use exec::Execs;
use hear::Unwritten;
use rewind::Rewinding;
use save::Occasion;
use settings::Change;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};

/// The agent's number among a sandbox's processes.
const AGENT: u16 = 1;
/// How long changes between turns wait for more of them. They are promised to be captured within five seconds.
const SETTLE: Duration = Duration::from_secs(3);
const AFTER_WAKING: Duration = Duration::from_secs(30);
/// How long to wait before something that could not be written is tried again.
const BREATH: Duration = Duration::from_secs(1);
/// After this long with nothing to do the keeper goes; the session is in the database.
const IDLE: Duration = Duration::from_secs(60);
/// How long to wait before a failed capture is tried again.
const RETRY: Duration = Duration::from_secs(10);

pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

pub(crate) enum Request {
    Wish {
        wish: Wish,
        reply: Reply<Answer>,
    },
    Exec {
        command: String,
        timeout: Duration,
        reply: Reply<Executed>,
    },
    Files {
        purpose: Purpose,
        reply: Reply<FileSource>,
    },
    /// Answered when the live agent, if there is one, goes on with them.
    Options {
        options: Options,
        settings: Vec<Setting>,
        reply: Reply<()>,
    },
    /// Files were written from outside.
    Touched,
    ForkPoint {
        reply: Reply<ForkPoint>,
    },
    Shutdown {
        grace: Duration,
        reply: Reply<()>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    Write,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) receipt: Option<Receipt>,
    /// The turn that a wish concerned, if any.
    pub(crate) turn: Option<TurnId>,
    pub(crate) rewound: Option<Box<Rewound>>,
}

/// What a fork is made from.
#[derive(Debug, Clone)]
pub(crate) struct ForkPoint {
    pub(crate) checkpoint: Option<Checkpoint>,
    pub(crate) memory: uuid::Uuid,
    pub(crate) told: u64,
    pub(crate) waiting: Vec<TurnId>,
    pub(crate) card: ash_store::Card,
}

/// The sandbox, while there is one.
struct Hands {
    incarnation: Incarnation,
    remote: Remote,
    records: Records,
    position: u64,
    /// One of the sandboxes this server may have.
    _room: tokio::sync::OwnedSemaphorePermit,
}

pub(crate) struct Actor {
    rooms: Arc<Rooms>,
    session: Session,
    state: State,
    lease: Lease,
    live: Live,
    driver: Arc<dyn Driver>,
    ear: Ear,
    /// The tree on disk is the newest there is, and this is its uid.
    tree: Option<Option<u32>>,
    hands: Option<Hands>,
    logs: Arc<Logs>,
    mood: Arc<MoodCell>,
    inbox: mpsc::Receiver<Request>,
    /// Deltas since the last event.
    deltas: u64,
    execs: Execs,
    /// When something may have changed that no checkpoint holds.
    dirty: Option<Instant>,
    /// When the turn that runs began, or was last captured.
    captured: Instant,
    /// Somebody waits for a capture that begins after they asked.
    wants_capture: bool,
    /// Not before this: the last capture failed.
    not_before: Option<Instant>,
    effect: Option<Effect>,
    /// A sandbox that is to be ended as soon as nothing else is under way.
    leaving: Option<Hands>,
    pausing: Vec<Reply<Answer>>,
    resuming: Vec<Reply<Answer>>,
    forking: Vec<Reply<ForkPoint>>,
    rewinding: VecDeque<Rewinding>,
    writing: Vec<Reply<FileSource>>,
    changes: VecDeque<Change>,
    closing: Option<Closing>,
    /// What was heard and could not be written yet.
    unwritten: Option<Unwritten>,
    idle_since: Instant,
    /// The number under which a tree that could not be trusted was kept, for the next receipt.
    salvage: Option<u64>,
    /// When an agent that was asked to stop its turn is ended instead.
    patience: Option<Instant>,
}

/// Long work that goes on beside the loop; one at a time.
type Effect = JoinHandle<Done>;

enum Done {
    Woke(Box<Result<wake::Woken>>),
    Saved {
        occasion: Occasion,
        result: Result<Option<save::Captured>>,
        began: Instant,
    },
    /// The sandbox is gone; this is what it still said.
    Slept {
        incarnation: Incarnation,
        said: Vec<Record>,
    },
    /// The uid of a tree that was made without a sandbox.
    Furnished(Result<Option<u32>>),
    /// The tree of the checkpoint that the session is to go to is written, beside the one it has.
    Prepared(Result<rewind::Prepared>),
    /// What was found on disk instead of a tree that can be trusted.
    Salvaged(Result<Option<Taken>>),
    /// The work was cut off: it panicked.
    Lost,
}

impl Actor {
    /// Runs until nobody can send wishes any more, or somebody else owns the session.
    pub(crate) async fn run(mut self) -> Result<()> {
        while !self.is_over() {
            let done = match self.drive().await {
                Ok(()) => self.step().await,
                failed => failed,
            };
            if let Err(error) = done {
                self.outlive(error).await?;
            }
        }
        Ok(())
    }

    /// What could not be written leaves the state as it was, so it is simply tried again. A lost lease is the end.
    async fn outlive(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Store(ash_store::Error::Full) => {
                tracing::error!(session = %self.session.id, "the disk is full: the session waits until there is space");
                tokio::time::sleep(BREATH).await;
                Ok(())
            }
            other => Err(other),
        }
    }

    fn is_over(&self) -> bool {
        let idle = self.effect.is_none() && self.closing.is_none() && self.leaving.is_none();
        self.inbox.is_closed() && self.inbox.is_empty() && idle
    }

    /// Waits for whatever happens first.
    async fn step(&mut self) -> Result<()> {
        let deadline = self.deadline();
        // While something heard could not be written, nothing more is listened to: the journal keeps it.
        let records =
            self.hands.as_mut().filter(|_| self.unwritten.is_none()).map(|hands| &mut hands.records);
        let effect = self.effect.as_mut();
        tokio::select! {
            request = self.inbox.recv() => match request {
                Some(request) => self.take(request).await,
                None => self.wait_out().await,
            },
            record = next_record(records) => self.hear(record).await,
            done = finished(effect) => {
                self.effect = None;
                self.settle(done).await
            }
            () = until(deadline) => Ok(()),
        }
    }

    /// Nobody asks any more: only an effect or a closing can still be under way.
    async fn wait_out(&mut self) -> Result<()> {
        if let Some(effect) = self.effect.take() {
            let done = effect.await.map_err(|_| Error::Gone)?;
            return self.settle(done).await;
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        let dirty = self.dirty.map(|since| (since + SETTLE).max(self.not_before.unwrap_or(since)));
        let dirty = dirty.filter(|_| self.effect.is_none() && self.state.is_at_rest() && self.tree.is_some());
        let closing = self.closing.as_ref().filter(|_| self.effect.is_none()).map(|closing| closing.deadline);
        let saving = self.not_before.filter(|_| self.effect.is_none() && !self.state.is_at_rest());
        let unwritten = self.unwritten.as_ref().map(|unwritten| unwritten.again);
        let idle = self.is_idle().then_some(self.idle_since + IDLE);
        let beside = [self.execs.deadline(), self.midway(), self.next_expiry(), self.change_deadline()];
        let all = [dirty, closing, saving, unwritten, idle, self.patience];
        all.into_iter().chain(beside).flatten().min()
    }

    /// Nothing is under way or outstanding: the log knows everything that this keeper knows.
    fn is_idle(&self) -> bool {
        let waiting = self.pausing.is_empty()
            && self.resuming.is_empty()
            && self.forking.is_empty()
            && self.rewinding.is_empty()
            && self.writing.is_empty()
            && self.changes.is_empty();
        let calm =
            self.hands.is_none() && self.leaving.is_none() && self.effect.is_none() && self.closing.is_none();
        calm && waiting && self.dirty.is_none() && self.state.next() == Next::Wait
    }

    async fn take(&mut self, request: Request) -> Result<()> {
        self.idle_since = Instant::now();
        match request {
            Request::Wish { wish, reply } => self.grant(wish, reply).await,
            Request::Exec { command, timeout, reply } => {
                self.exec(command, timeout, reply).await;
                Ok(())
            }
            Request::Files { purpose, reply } => {
                self.files(purpose, reply);
                Ok(())
            }
            Request::Options { options, settings, reply } => {
                self.change_options(options, settings, reply);
                Ok(())
            }
            Request::Touched => {
                self.touch();
                Ok(())
            }
            Request::ForkPoint { reply } => {
                self.wants_capture |= self.hands.is_some() || self.dirty.is_some();
                self.forking.push(reply);
                Ok(())
            }
            Request::Shutdown { grace, reply } => {
                self.close(Closing::shutdown(Instant::now() + grace, reply));
                Ok(())
            }
        }
    }

    async fn grant(&mut self, wish: Wish, reply: Reply<Answer>) -> Result<()> {
        if let Some(refusal) = self.closing.as_ref().and_then(|closing| closing.refusal(&wish)) {
            reply.send(Err(refusal)).ok();
            return Ok(());
        }
        let facts = match self.state.decide(&wish) {
            Ok(facts) => facts,
            Err(refused) => {
                reply.send(self.refuse(&wish, refused).await).ok();
                return Ok(());
            }
        };
        match wish {
            // Sent twice with one key: the first one counts. If it was cut, this is the wish to go on.
            Wish::Prompt { turn, .. } if self.rooms.store.turn(self.session.no, turn).await?.is_some() => {
                let open = self.state.turns.iter().any(|known| known.id == turn);
                let back = self.state.decide(&Wish::Resume).unwrap_or_default();
                if open && !back.is_empty() {
                    self.note(back).await?;
                }
                reply.send(Ok(Answer { turn: Some(turn), ..Answer::default() })).ok();
                Ok(())
            }
            Wish::Prompt { turn, .. } => {
                let told = self.at_once(&facts);
                let begun = told.iter().map(|(fact, ..)| fact.clone());
                let committed = self.note(facts.into_iter().chain(begun).collect()).await;
                let answer = committed.as_ref().map(|()| Answer { turn: Some(turn), ..Answer::default() });
                reply.send(answer.map_err(|error| Error::Failed(error.problem()))).ok();
                if let (Ok(()), Some((_, input, say))) = (&committed, told) {
                    self.captured = Instant::now();
                    self.tell(input, &say).await;
                }
                self.survive(committed)
            }
            Wish::Interrupt => self.interrupt(facts, reply).await,
            Wish::Answer { .. } => self.answer(facts, reply).await,
            Wish::Pause => {
                // Processes that a turn left behind may have written since.
                self.wants_capture = true;
                self.pausing.push(reply);
                Ok(())
            }
            Wish::Resume => self.resume(facts, reply).await,
            Wish::Rewind { .. } => {
                self.rewinding.push_back(Rewinding::new(wish, reply));
                Ok(())
            }
            Wish::Stop | Wish::End if facts.is_empty() => {
                reply.send(Ok(Answer::default())).ok();
                Ok(())
            }
            Wish::Stop | Wish::End => {
                self.close(Closing::wish(wish, reply));
                Ok(())
            }
        }
    }

    /// A message that nothing is in the way of is told at once: that it was accepted and that it was told share one
    /// commit.
    fn at_once(&self, facts: &[Fact]) -> Option<(Fact, u64, Say)> {
        let waiting = !self.writing.is_empty()
            || !self.rewinding.is_empty()
            || !self.pausing.is_empty()
            || !self.forking.is_empty();
        let busy = self.effect.is_some() || self.leaving.is_some() || self.closing.is_some();
        if waiting || busy || self.hands.is_none() || self.ear.stirs() {
            return None;
        }
        let mut state = self.state.clone();
        (state.last_seq + 1..).zip(facts).for_each(|(seq, fact)| state.apply(seq, fact));
        match state.next() {
            Next::Tell { fact, input, say } => Some((fact, input, say)),
            Next::Wait | Next::Wake | Next::Save { .. } | Next::Sleep => None,
        }
    }

    async fn interrupt(&mut self, facts: Vec<Fact>, reply: Reply<Answer>) -> Result<()> {
        let turn = self.state.current().map(|turn| turn.id);
        let told = facts.iter().find_map(|fact| match fact {
            Fact::Interrupting { turn, input } => Some((*input, Say::Interrupt { turn: *turn })),
            _ => None,
        });
        if !facts.is_empty() {
            self.note(facts).await?;
        }
        if let Some((input, say)) = told {
            self.tell(input, &say).await;
        }
        self.lose_patience_later();
        reply.send(Ok(Answer { turn, ..Answer::default() })).ok();
        Ok(())
    }

    async fn resume(&mut self, facts: Vec<Fact>, reply: Reply<Answer>) -> Result<()> {
        let warm = facts.iter().find_map(|fact| match fact {
            Fact::Resumed { receipt, .. } => Some(receipt.clone()),
            _ => None,
        });
        let began = Instant::now();
        if !facts.is_empty() {
            self.note(facts).await?;
        }
        match warm {
            Some(receipt) => {
                self.rooms.watch.resumed(&receipt, began.elapsed());
                self.log_resume(&receipt);
                reply.send(Ok(Answer { receipt: Some(receipt), ..Answer::default() })).ok();
            }
            None if self.state.status == Status::Starting || self.state.next() == Next::Wake => {
                self.resuming.push(reply)
            }
            None => {
                reply.send(Ok(Answer::default())).ok();
            }
        }
        Ok(())
    }

    fn log_resume(&self, receipt: &Receipt) {
        tracing::info!(session = %self.session.id, receipt = %serde_json::to_string(receipt).unwrap_or_default(), "resumed");
    }

    /// Does what is to be done now, if nothing long is under way.
    async fn drive(&mut self) -> Result<()> {
        let driven = self.drive_on().await;
        self.mood.set(self.mood_now());
        driven
    }

    fn mood_now(&self) -> Mood {
        match (&self.hands, self.state.status, self.state.current()) {
            (None, Status::Starting, _) => Mood::Warming,
            (None, _, _) => Mood::Cold,
            (Some(_), _, Some(_)) => Mood::Running,
            (Some(_), _, None) => Mood::Waiting,
        }
    }

    async fn drive_on(&mut self) -> Result<()> {
        self.execs.expire(self.hands.as_ref().map(|hands| &hands.remote)).await;
        self.lose_patience().await;
        self.write_again().await?;
        self.expire_requests().await?;
        self.drive_changes().await?;
        if self.is_idle() && self.idle_since + IDLE <= Instant::now() {
            // Whoever asks from here on finds another keeper; what was asked before is still answered.
            self.inbox.close();
        }
        loop {
            if self.effect.is_some() {
                return Ok(());
            }
            if let Some(hands) = self.leaving.take() {
                self.say_goodbye(hands);
                return Ok(());
            }
            if self.answer_writers() {
                continue;
            }
            if self.closing.is_some() {
                self.drive_closing().await?;
                if self.leaving.is_some() || self.closing.is_none() {
                    continue;
                }
                return Ok(());
            }
            if self.drive_rewinding().await? || self.drive_waiting().await? {
                continue;
            }
            if self.ear.stirs() && self.hands.is_some() && self.state.may_stir() {
                let turn = TurnId::fresh();
                self.ear.expect_own(turn);
                self.note(vec![Fact::Stirred { turn }]).await?;
                continue;
            }
            match self.state.next() {
                Next::Wait => {
                    if let Some(turn) = self.is_midway_due() {
                        self.start_save(Occasion::Midway(turn));
                    } else if self.is_capture_due() {
                        self.start_save(Occasion::Between);
                    }
                    return Ok(());
                }
                Next::Wake if self.live.has_leftovers(self.tree.is_some()) => self.start_salvage(),
                Next::Wake => self.start_wake(),
                Next::Save { .. } if self.not_before.is_some_and(|at| at > Instant::now()) => return Ok(()),
                Next::Save { turn } if self.tree.is_some() => self.start_save(Occasion::Rest(turn)),
                Next::Save { turn } => {
                    let gone = Error::Save(
                        "the machine went down before the files of the turn were safe".to_owned(),
                    );
                    self.could_not_save(Occasion::Rest(turn), gone).await?;
                }
                Next::Sleep if self.hands.is_none() => self.note_asleep().await?,
                Next::Sleep => self.start_sleep(),
                Next::Tell { fact, input, say } => {
                    self.note(vec![fact]).await?;
                    self.captured = Instant::now();
                    self.tell(input, &say).await;
                }
            }
        }
    }

    /// Pauses and forks want the files safe first. True: something was done, look again.
    async fn drive_waiting(&mut self) -> Result<bool> {
        if self.pausing.is_empty() && self.forking.is_empty() {
            return Ok(false);
        }
        // A turn that runs saves by itself when it is over.
        if self.wants_capture && self.state.is_at_rest() && self.tree.is_some() {
            self.start_save(Occasion::Between);
            return Ok(true);
        }
        self.answer_forkers().await?;
        if !self.pausing.is_empty() {
            self.pause().await?;
        }
        Ok(true)
    }

    async fn pause(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.pausing);
        let facts = match self.state.decide(&Wish::Pause) {
            Ok(facts) => facts,
            Err(refused) => {
                waiting.into_iter().for_each(|reply| drop(reply.send(Err(refused.into()))));
                return Ok(());
            }
        };
        let noted = self.note(facts).await;
        for reply in waiting {
            let failed = noted.as_ref().err().map(|error| Error::Failed(error.problem()));
            reply.send(failed.map_or_else(|| Ok(Answer::default()), Err)).ok();
        }
        self.survive(noted)
    }

    async fn answer_forkers(&mut self) -> Result<()> {
        if self.forking.is_empty() {
            return Ok(());
        }
        let checkpoint = match self.state.settled {
            Some(number) => self.rooms.store.checkpoint(self.lease.workspace, number).await?,
            None => None,
        };
        let memory = self.state.unborn.unwrap_or(self.session.native_id);
        let mut card = self.state.card();
        // Turns that are not over are not shared.
        card.turns -= card.open_turns;
        let shared = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.seq);
        let waiting = self.state.turns.iter().filter(|turn| turn.seq <= shared).map(|turn| turn.id).collect();
        let point = ForkPoint { checkpoint, memory, told: self.state.told, waiting, card };
        for reply in self.forking.drain(..) {
            reply.send(Ok(point.clone())).ok();
        }
        Ok(())
    }

    fn lose_patience_later(&mut self) {
        if self.patience.is_none() && self.state.was_asked_to_stop() {
            self.patience = Some(Instant::now() + self.rooms.settings.interrupt_grace);
        }
    }

    /// An agent that does not stop its turn when asked is ended; the turn is over either way.
    async fn lose_patience(&mut self) {
        if self.patience.is_some_and(|at| at <= Instant::now()) {
            self.patience = None;
            if let Some(hands) = &self.hands {
                hands.remote.signal(AGENT, 9).await.ok();
            }
        }
    }

    async fn settle(&mut self, done: Done) -> Result<()> {
        match done {
            Done::Woke(woken) => self.woke(*woken).await,
            Done::Saved { occasion, result, began } => self.saved(occasion, result, began).await,
            Done::Slept { incarnation, said } => self.slept(incarnation, said).await,
            Done::Salvaged(salvaged) => self.salvaged(salvaged).await,
            Done::Prepared(prepared) => self.prepared(prepared).await,
            Done::Lost => Err(Error::Gone),
            Done::Furnished(made) => {
                self.furnished(made);
                Ok(())
            }
        }
    }

    fn touch(&mut self) {
        let now = Instant::now();
        self.dirty = Some(self.dirty.map_or(now, |since| since.min(now)));
    }

    /// What an agent writes by itself when it starts can wait: mostly a turn comes first, which is captured anyway,
    /// and of many sessions made at once each would pay for another one's capture.
    fn touch_later(&mut self) {
        self.dirty.get_or_insert_with(|| Instant::now() + AFTER_WAKING);
    }

    /// Says it to the agent. The fact is stored already: if this is lost, the next one says it.
    async fn tell(&mut self, input: u64, say: &Say) {
        if let Say::Prompt { turn, .. } = say {
            self.ear.expect(*turn);
        }
        let Some(hands) = &self.hands else { return };
        // A dead shim shows in its records; nothing more to do here.
        hands.remote.input(AGENT, input, self.driver.tell(say)).await.ok();
    }

    /// Puts facts into the log, all or none, and tells whoever listens.
    async fn note(&mut self, facts: Vec<Fact>) -> Result<()> {
        self.commit(facts, Vec::new(), None, None).await
    }

    async fn commit(
        &mut self,
        facts: Vec<Fact>,
        deltas: Vec<Delta>,
        position: Option<(Incarnation, u64)>,
        checkpoint: Option<Checkpoint>,
    ) -> Result<()> {
        let at = self.rooms.clock();
        let first = self.state.last_seq + 1;
        let mut state = self.state.clone();
        let mut notes = Vec::with_capacity(facts.len());
        for (seq, fact) in (first..).zip(facts) {
            let turn = turn_of(&fact).or_else(|| said_in(&state, &fact));
            state.apply(seq, &fact);
            notes.push(Note { turn, at, fact });
        }
        let noted = !notes.is_empty();
        let ended = notes.iter().filter(|note| matches!(note.fact, Fact::Finished { .. })).count();
        let append = Append {
            session: self.session.no,
            first,
            notes,
            deltas,
            turns: state.take_changed(),
            card: state.card(),
            checkpoint,
            journal: position,
            at,
        };
        self.rooms.store.append(&self.lease, append).await?;
        self.state = state;
        if noted {
            self.deltas = 0;
        }
        (0..ended).for_each(|_| self.rooms.watch.turn_over());
        self.rooms.bells.ring(self.session.no);
        Ok(())
    }

    /// A full disk is the caller's to know, not the end of us; a lost lease is.
    fn survive(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(Error::Store(ash_store::Error::Full | ash_store::Error::Removed(_))) => Ok(()),
            other => other,
        }
    }
}

fn turn_of(fact: &Fact) -> Option<TurnId> {
    match fact {
        Fact::Queued { turn, .. }
        | Fact::Stirred { turn }
        | Fact::Started { turn, .. }
        | Fact::Continued { turn, .. }
        | Fact::Interrupting { turn, .. }
        | Fact::Rested { turn, .. }
        | Fact::Finished { turn, .. }
        | Fact::Cut { turn, .. } => Some(*turn),
        Fact::Saved(saved) => saved.turn,
        Fact::Asked(asked) => asked.turn,
        Fact::Answered { turn, .. } => *turn,
        Fact::SaveFailed { turn, .. } => *turn,
        Fact::Created { .. }
        | Fact::Forked { .. }
        | Fact::Said { .. }
        | Fact::Setting { .. }
        | Fact::Awake { .. }
        | Fact::Asleep { .. }
        | Fact::Resuming
        | Fact::Resumed { .. }
        | Fact::ResumeFailed { .. }
        | Fact::Paused
        | Fact::Stopped
        | Fact::Failed { .. }
        | Fact::Rewound(_)
        | Fact::Ended => None,
    }
}

fn said_in(state: &State, fact: &Fact) -> Option<TurnId> {
    matches!(fact, Fact::Said { .. }).then(|| state.current().map(|turn| turn.id)).flatten()
}

async fn next_record(records: Option<&mut Records>) -> Option<ash_sandbox::Record> {
    match records {
        Some(records) => records.next().await,
        None => std::future::pending().await,
    }
}

async fn finished(effect: Option<&mut JoinHandle<Done>>) -> Done {
    match effect {
        Some(task) => task.await.unwrap_or(Done::Lost),
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
