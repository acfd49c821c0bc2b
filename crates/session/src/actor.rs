//! The one who looks after a session: takes wishes, listens to the sandbox, and does what `State::next` says.
//! It may die at any line; the next one reads the log and goes on.

mod back;
mod close;
mod commit;
mod enter;
mod exec;
mod furnish;
mod gauge;
mod greeting;
mod hear;
mod idle;
mod load;
mod lock;
mod lost;
mod permission;
mod recall;
mod rest;
mod retell;
mod rewind;
mod salvage;
mod save;
mod settings;
mod setup;
mod transcript;
mod tree;
mod wake;
mod wishes;

pub(crate) use back::Memories;
pub use exec::Executed;
pub(crate) use exec::base_env;
pub(crate) use load::Seat;
pub use lock::WantedLock;
pub use settings::OptionsChange;
pub(crate) use wishes::{Answer, ForkPoint, Purpose, Reply, Request};

use crate::{
    Error, Result,
    common::{Common, Walls},
    live::Live,
    logs::Logs,
    pool::{Mood, MoodCell, Passage},
    rooms::Rooms,
    state::{Left, Next, State, Wish},
};
use ash_driver::{Driver, Ear};
use ash_model::{Beside, Incarnation, Status, TurnId};
use ash_sandbox::{Record, Records, Remote};
use ash_snapshot::Taken;
use ash_store::{Lease, Session};
use close::Closing;
use exec::Execs;
use gauge::Gauge;
use hear::Unwritten;
use idle::Idle;
use rewind::Rewinding;
use save::{Backoff, Occasion};
use settings::Change;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::Instant,
};

/// How long changes between turns wait for more of them. They are promised to be captured within five seconds.
const SETTLE: Duration = Duration::from_secs(3);
const AFTER_WAKING: Duration = Duration::from_secs(30);
/// How long to wait before something that could not be written is tried again.
const BREATH: Duration = Duration::from_secs(1);
/// After this long with nothing to do the keeper goes; the session is in the database.
const IDLE: Duration = Duration::from_secs(60);
/// The same of a session that has ended: hardly anybody asks for it again, and after a burst there are many.
const IDLE_ENDED: Duration = Duration::from_secs(10);
/// How long to wait before a failed capture is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// The sandbox, while there is one.
struct Hands {
    incarnation: Incarnation,
    remote: Remote,
    /// The agent's number among the sandbox's processes.
    process: u16,
    records: Records,
    position: u64,
    /// The agent has ended.
    exited: bool,
    /// What the shim was told is left of the budgets.
    allowed: Option<Left>,
    walls: Arc<Walls>,
}

/// Shared with a start, which may fail.
type EarlyUsage = Arc<std::sync::Mutex<Vec<ash_sandbox::ModelUsage>>>;

pub(crate) struct Actor {
    rooms: Arc<Rooms>,
    session: Session,
    state: State,
    lease: Lease,
    live: Live,
    /// What it shares with the other sessions of its workspace.
    common: Arc<Common>,
    driver: Arc<dyn Driver>,
    ear: Ear,
    hands: Option<Hands>,
    /// What an agent used before it answered its greeting.
    used_early: EarlyUsage,
    /// For the sandbox that it needs next, from whoever wants it.
    passage: Passage,
    logs: Arc<Logs>,
    mood: Arc<MoodCell>,
    inbox: mpsc::Receiver<Request>,
    /// Deltas since the last event.
    deltas: u64,
    execs: Execs,
    /// Commands that run in a sandbox that is being left.
    commands: Vec<u16>,
    /// When something may have changed that no checkpoint holds.
    dirty: Option<Instant>,
    /// When the turn that runs began, or was last captured.
    captured: Instant,
    /// What the log has got since then, which travels with the next checkpoint.
    unpacked: u64,
    /// Somebody waits for a capture that begins after they asked.
    wants_capture: bool,
    /// The last capture failed.
    backoff: Option<Backoff>,
    effect: Option<Effect>,
    /// Of a tree that was lost while a sandbox was at work in it, which still has it.
    lost_uid: Option<u32>,
    /// Tells a start that is under way not to go on.
    halt: Arc<Notify>,
    /// A sandbox that is to be ended as soon as nothing else is under way.
    leaving: Option<Hands>,
    pausing: Vec<Reply<Answer>>,
    resuming: Vec<Reply<Answer>>,
    forking: Vec<Reply<ForkPoint>>,
    rewinding: VecDeque<Rewinding>,
    writing: Vec<Reply<load::Sourced>>,
    changes: VecDeque<Change>,
    closing: Option<Closing>,
    /// What was heard and could not be written yet.
    unwritten: Option<Unwritten>,
    idle_since: Instant,
    idle: Idle,
    /// What was wanted while the session let go of its sandbox.
    later: Vec<(Wish, Passage, Reply<Answer>)>,
    /// When an agent that was asked to stop its turn is ended instead.
    patience: Option<Instant>,
    /// Since when the turn waits for work in the background alone.
    held_since: Option<Instant>,
    /// When the agent last began something by itself.
    last_own: Option<Instant>,
    /// The turn is saved here, and waits until the object store has it too.
    far_wait: Option<FarWait>,
    gauge: Gauge,
}

struct FarWait {
    turn: TurnId,
    checkpoint: u64,
    task: JoinHandle<Result<()>>,
}

impl Drop for FarWait {
    fn drop(&mut self) {
        self.task.abort();
    }
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
        process: u16,
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
        let far = self.far_wait.as_mut().map(|waiting| &mut waiting.task);
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
            sent = arrived(far) => self.is_far(sent).await,
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
        let again = self.backoff.map(|backoff| backoff.until);
        let dirty = self.dirty.map(|since| (since + SETTLE).max(again.unwrap_or(since)));
        let dirty =
            dirty.filter(|_| self.effect.is_none() && self.state.is_at_rest() && self.tree().is_some());
        let closing = self.closing.as_ref().filter(|_| self.effect.is_none()).map(|closing| closing.deadline);
        let current = self.state.current().filter(|_| self.effect.is_none());
        let saving = current.and_then(|turn| self.backoff?.of(turn.id));
        let unwritten = self.unwritten.as_ref().map(|unwritten| unwritten.again);
        let idle = self.is_idle().then_some(self.goes_at());
        let beside = [
            self.execs.deadline(),
            self.midway(),
            self.next_expiry(),
            self.change_deadline(),
            self.idle_deadline(),
            self.gauge_deadline(),
        ];
        let stirs = self.stirs_at().filter(|_| self.effect.is_none());
        let all = [dirty, closing, saving, unwritten, idle, self.patience, self.held_until(), stirs];
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

    /// When the keeper goes, if it has nothing to do until then.
    fn goes_at(&self) -> Instant {
        let patience = if self.state.status == Status::Ended { IDLE_ENDED } else { IDLE };
        self.idle_since + patience
    }

    /// Does what is to be done now, if nothing long is under way.
    async fn drive(&mut self) -> Result<()> {
        self.note_use();
        let driven = self.drive_on().await;
        self.mood.set(self.mood_now(), self.can_go(), self.idle.since);
        if self.state.status != Status::Starting {
            self.passage = Passage::default();
        }
        if self.is_shared() {
            let turn = self.state.current().map(|turn| turn.id);
            let turn = turn.map(|turn| Beside { session: Some(self.session.id.clone()), turn });
            self.common.set_turn(self.session.no, turn);
        }
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
        self.keep_bounds().await?;
        self.let_go().await?;
        self.expire_requests().await?;
        self.look_whether_idle().await?;
        self.drive_changes().await?;
        if self.is_idle() && self.goes_at() <= Instant::now() {
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
            if self.make_way_for_writers().await? {
                continue;
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
            if self.grant_later().await? {
                continue;
            }
            self.answer_resumers();
            if self.drive_rewinding().await? || self.drive_waiting().await? {
                continue;
            }
            match self.stirs_at() {
                Some(at) if at > Instant::now() => return Ok(()),
                Some(_) => {
                    self.stir().await?;
                    continue;
                }
                None => {}
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
                Next::Wake | Next::Tell { .. } if self.is_tree_broken() => self.lose_tree().await?,
                Next::Wake if self.live.has_leftovers(self.tree().is_some()) => self.start_salvage(),
                Next::Wake => self.start_wake(),
                Next::Save { turn } if self.is_ephemeral() => {
                    let over = self.end_of(Occasion::Rest(turn), None);
                    self.dirty = None;
                    self.note(over.into_iter().collect()).await?;
                }
                Next::Save { .. } if self.far_wait.is_some() => return Ok(()),
                Next::Save { turn } if self.backs_off(turn) => return Ok(()),
                Next::Save { turn } if self.tree().is_some() => self.start_save(Occasion::Rest(turn)),
                Next::Save { turn } => {
                    let gone = Error::Save(
                        "its files are not there any more: the machine went down before they were safe, or something removed them".to_owned(),
                    );
                    self.could_not_save(Occasion::Rest(turn), gone).await?;
                }
                Next::Sleep if self.hands.is_none() => self.note_asleep().await?,
                Next::Sleep => self.start_sleep(),
                Next::Note { facts } => {
                    self.note_and_tell(facts).await?;
                    self.lose_patience_later();
                }
                // It would work where its files are not: another one starts, with those of the last checkpoint.
                Next::Tell { .. } if self.has_lost_tree() => self.start_sleep(),
                Next::Tell { fact, input, say } => {
                    let fact = self.with_calls(fact).await?;
                    self.note(vec![fact]).await?;
                    self.captured = Instant::now();
                    self.tell(input, &say).await;
                }
            }
        }
    }

    async fn settle(&mut self, done: Done) -> Result<()> {
        match done {
            Done::Woke(woken) => self.woke(*woken).await,
            Done::Saved { occasion, result, began } => self.saved(occasion, result, began).await,
            Done::Slept { incarnation, process, said } => self.slept(incarnation, process, said).await,
            Done::Salvaged(salvaged) => self.salvaged(salvaged).await,
            Done::Prepared(prepared) => self.prepared(prepared).await,
            Done::Lost => Err(Error::Gone),
            Done::Furnished(made) => self.furnished(made).await,
        }
    }

    /// The tree on disk is the newest there is, and this is its uid.
    fn tree(&self) -> Option<Option<u32>> {
        self.common.tree()
    }

    /// Its files are never captured.
    fn is_ephemeral(&self) -> bool {
        self.session.options.ephemeral == Some(true)
    }

    /// Others may be at work in its workspace.
    fn is_shared(&self) -> bool {
        self.session.slug.is_some()
    }

    fn touch(&mut self) {
        if self.is_ephemeral() {
            return;
        }
        let now = Instant::now();
        self.dirty = Some(self.dirty.map_or(now, |since| since.min(now)));
    }

    /// What an agent writes by itself when it starts can wait: mostly a turn comes first, which is captured anyway,
    /// and of many sessions made at once each would pay for another one's capture.
    fn touch_later(&mut self) {
        if self.is_ephemeral() {
            return;
        }
        self.dirty.get_or_insert_with(|| Instant::now() + AFTER_WAKING);
    }
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

async fn arrived(waiting: Option<&mut JoinHandle<Result<()>>>) -> Result<()> {
    match waiting {
        Some(task) => task.await.unwrap_or(Err(Error::Gone)),
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
