//! Keeping a session to its bounds as far as the walls do not: how long a turn runs, and what its files take. And what
//! its sandbox took is written down.
//!
//! No file system of ours has quotas for folders, so the tree is looked at; but only when it may have grown: a look at the
//! whole disk costs one system call, and what all have written together since then is at least what this one has.

use super::Actor;
use crate::{
    Error, Result, blocking,
    bounds::{self, of_disk},
    live::Live,
    rooms::Rooms,
    state::Phase,
};
use ash_model::{Bounds, Fact, Incarnation, Reached, Resources, Status, TurnId, Which};
use ash_snapshot::Weight;
use ash_store::EventQuery;
use std::{
    ops::RangeInclusive,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{task::JoinHandle, time::Instant};

/// How often it is looked at the disk while a turn or a command runs, and while nothing does.
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(5);
/// While the tree is being looked at.
const SOON: Duration = Duration::from_millis(50);
/// Somebody else may have freed what this one wrote: so often the tree is looked at anyway, the oftener the faster that is,
/// and more seldom where nothing has happened.
const ANYWAY: RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(60);
const QUIET: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(600);
/// A look takes at most one part of so many of the time; if it may be for nothing, or if nothing has happened, of so many.
const SHARE: u32 = 10;
const SELDOM_SHARE: u32 = 100;
const QUIET_SHARE: u32 = 2000;
/// How often it is written down what a sandbox took, if that is at least so much of a processor.
const TALLY: Duration = Duration::from_secs(15);
const WORTH: u64 = 100;

/// A turn in one of its attempts, and since when it runs.
type Attempt = (TurnId, u32);

/// Of a sandbox that goes everything is written down, else what is worth it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tally {
    News,
    Last,
}

pub(super) struct Gauge {
    bounds: Option<Bounds>,
    turn: Option<(Attempt, Instant)>,
    next: Instant,
    /// What the tree took at least when it was last looked at or captured, and the disk as a whole.
    known: Option<(Weight, Weight)>,
    /// What it took when it was last looked at.
    weighed: Option<Weight>,
    /// It may have changed since.
    stale: bool,
    walk: Option<JoinHandle<Result<(Weight, Duration)>>>,
    /// When it was last looked, and how long that took.
    walked: (Instant, Duration),
    /// A turn was under way when it was last looked.
    busy: bool,
    /// A turn or a command ran in this sandbox.
    used: bool,
    tallied: Instant,
    /// What was written down last.
    told: Arc<Mutex<Option<Resources>>>,
    /// Its files took too much, for which its sandbox is ended.
    full: Option<Reached>,
}

impl Gauge {
    pub(super) fn new() -> Gauge {
        let now = Instant::now();
        Gauge {
            bounds: None,
            turn: None,
            next: now,
            known: None,
            weighed: None,
            stale: true,
            walk: None,
            walked: (now, Duration::ZERO),
            busy: false,
            used: false,
            tallied: now,
            told: Arc::default(),
            full: None,
        }
    }

    /// Options were changed.
    pub(super) fn forget_bounds(&mut self) {
        self.bounds = None;
    }

    /// Another sandbox. Nobody has done anything in it yet.
    pub(super) fn begin(&mut self) {
        let Gauge { bounds, turn, busy, known, weighed, .. } = std::mem::replace(self, Gauge::new());
        let next = Instant::now() + SELDOM;
        *self = Gauge { bounds, turn, busy, known, weighed, next, ..Gauge::new() };
    }

    /// A capture has seen the whole tree.
    pub(super) fn captured(&mut self, weight: Weight, live: &Live) {
        self.known = disk(&live.workspace()).map(|disk| (weight, disk));
        self.stale = true;
    }

    /// Whether the tree may take more than it may.
    fn is_due(&self, most: Weight, disk: Weight, now: Instant) -> bool {
        let (walked, took) = self.walked;
        if now < walked + took * SHARE {
            return false;
        }
        let Some((weight, before)) = self.known else { return true };
        let grew = |now: u64, before: u64, room: u64| now.saturating_sub(before) >= room / 2;
        let bytes = grew(disk.bytes, before.bytes, most.bytes.saturating_sub(weight.bytes));
        let files = grew(disk.files, before.files, most.files.saturating_sub(weight.files));
        let (share, range) = match self.stale {
            true => (SELDOM_SHARE, ANYWAY),
            false => (QUIET_SHARE, QUIET),
        };
        bytes || files || now >= walked + (took * share).clamp(*range.start(), *range.end())
    }
}

/// What the whole disk has.
fn disk(path: &Path) -> Option<Weight> {
    let disk = rustix::fs::statvfs(path).ok()?;
    Some(Weight {
        bytes: disk.f_blocks.saturating_sub(disk.f_bfree).saturating_mul(disk.f_frsize),
        files: disk.f_files.saturating_sub(disk.f_ffree),
    })
}

impl Actor {
    /// Since when a turn runs that somebody else began.
    pub(super) async fn note_when_begun(&mut self) -> Result<()> {
        let Some((attempt, after)) = self.attempt().zip(self.state.current().map(|turn| turn.seq)) else {
            return Ok(());
        };
        let kinds = vec!["stirred", "started", "continued"];
        let query = EventQuery { after: after.saturating_sub(1), limit: 1000, kinds };
        let events = self.rooms.store.events(self.session.no, &query).await?;
        let begun = events.iter().rfind(|event| event.turn == Some(attempt.0)).map(|event| event.at);
        let ms = begun.map_or(0, |at| self.rooms.clock().0.saturating_sub(at.0));
        let ago = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        let now = Instant::now();
        self.gauge.turn = Some((attempt, now.checked_sub(ago).unwrap_or(now)));
        Ok(())
    }

    fn attempt(&self) -> Option<Attempt> {
        let running = self.state.current().filter(|turn| matches!(turn.phase, Phase::Running { .. }))?;
        Some((running.id, running.attempt))
    }

    pub(super) async fn keep_bounds(&mut self) -> Result<()> {
        let attempt = self.attempt();
        if self.gauge.turn.map(|(attempt, _)| attempt) != attempt {
            self.gauge.turn = attempt.map(|attempt| (attempt, Instant::now()));
        }
        // When it is over its files were captured, so that one knows what they take.
        let busy = self.state.current().is_some();
        if std::mem::replace(&mut self.gauge.busy, busy) && !busy {
            self.tally();
        }
        self.say_that_it_is_full().await?;
        if self.hands.is_none() || self.closing.is_some() {
            return Ok(());
        }
        if busy || self.execs.is_busy() {
            self.gauge.used = true;
            self.gauge.next = self.gauge.next.min(Instant::now() + OFTEN);
        }
        let bounds = match self.gauge.bounds {
            Some(bounds) => bounds,
            None => self.learn_bounds().await?,
        };
        self.stop_late_turn(bounds.turn_seconds).await?;
        self.look_at_disk(of_disk(&bounds).unwrap_or(Weight::MOST)).await
    }

    /// What is in force. And what the last checkpoint held is a good guess at what the tree takes.
    async fn learn_bounds(&mut self) -> Result<Bounds> {
        let bounds = *self.gauge.bounds.insert(self.rooms.bounds(&self.session).await?);
        if let (None, Some(number)) = (self.gauge.known, self.state.checkpoint)
            && let Some(last) = self.rooms.store.checkpoint(self.lease.workspace, number).await?
        {
            self.gauge.captured(Weight { bytes: last.bytes, files: last.files }, &self.live);
        }
        Ok(bounds)
    }

    pub(super) fn gauge_deadline(&self) -> Option<Instant> {
        self.hands.as_ref().filter(|_| self.closing.is_none())?;
        let late = self.turn_ends().filter(|_| !self.state.was_asked_to_stop());
        [late, Some(self.gauge.next)].into_iter().flatten().min()
    }

    fn turn_ends(&self) -> Option<Instant> {
        let seconds = self.gauge.bounds.and_then(|bounds| bounds.turn_seconds)?;
        self.gauge.turn.and_then(|(_, began)| began.checked_add(Duration::from_secs(seconds)))
    }

    /// As by an interrupt; whoever does not stop then is ended.
    async fn stop_late_turn(&mut self, seconds: Option<u64>) -> Result<()> {
        let (Some(seconds), Some((_, began))) = (seconds, self.gauge.turn) else { return Ok(()) };
        if self.turn_ends().is_none_or(|at| at > Instant::now()) {
            return Ok(());
        }
        let facts = self.state.stop_for((Which::TurnSeconds, seconds, began.elapsed().as_secs()));
        if !facts.is_empty() {
            self.note_and_tell(facts).await?;
            self.lose_patience_later();
        }
        Ok(())
    }

    async fn look_at_disk(&mut self, most: Weight) -> Result<()> {
        let now = Instant::now();
        if self.gauge.next > now || self.gauge.full.is_some() {
            return Ok(());
        }
        if now >= self.gauge.tallied + TALLY {
            self.tally();
        }
        let busy = self.state.current().is_some() || self.execs.is_busy();
        self.gauge.stale |= busy;
        self.gauge.next = now + if busy { OFTEN } else { SELDOM };
        if let Some(walk) = &self.gauge.walk {
            if !walk.is_finished() {
                self.gauge.next = now + SOON;
                return Ok(());
            }
            return self.weighed(most).await;
        }
        let Some(disk) = disk(&self.live.workspace()) else { return Ok(()) };
        // They are on no disk.
        let run = self.live.run();
        let scratch = blocking(move || Ok(ash_sandbox::scratch_files(&run))).await?;
        let most_there = Weight { files: most.files.saturating_sub(scratch), ..most };
        if self.gauge.is_due(most_there, disk, now) {
            self.gauge.known = self.gauge.known.map(|(weight, _)| (weight, disk));
            self.gauge.stale = busy;
            let (rooms, common) = (self.rooms.clone(), self.common.clone());
            let walk = async move {
                let (weight, took) = rooms.weigh(&common.live, most).await?;
                common.weighed(weight);
                Ok((weight, took))
            };
            self.gauge.walk = Some(tokio::spawn(walk));
            self.gauge.next = now + SOON;
        }
        Ok(())
    }

    async fn weighed(&mut self, most: Weight) -> Result<()> {
        let Some(walk) = self.gauge.walk.take() else { return Ok(()) };
        self.gauge.walked.0 = Instant::now();
        let weight = match walk.await {
            Ok(Ok((weight, took))) => {
                self.gauge.walked.1 = took;
                weight
            }
            // Another tree may have been put in its place meanwhile: the next look sees that one.
            Ok(Err(error)) => return self.not_weighed(&error),
            Err(_) => return Ok(()),
        };
        let before = self.gauge.known.map(|(_, disk)| disk);
        self.gauge.known = before.or_else(|| disk(&self.live.workspace())).map(|disk| (weight, disk));
        // Of one in which nothing was done nobody wants to know at once.
        if self.gauge.weighed.replace(weight) != Some(weight) && self.gauge.used {
            self.tally();
        }
        let turn = self.attempt().map(|(turn, _)| turn);
        match bounds::reached(turn, weight, most) {
            Some(reached) => self.end_for(reached).await,
            None => Ok(()),
        }
    }

    fn not_weighed(&self, error: &Error) -> Result<()> {
        tracing::debug!(session = %self.session.id, %error, "nobody knows what the files take");
        Ok(())
    }

    /// At once: what is asked to stop goes on writing meanwhile. The turn is captured as it is, and over.
    async fn end_for(&mut self, reached: Reached) -> Result<()> {
        tracing::warn!(session = %self.session.id, which = reached.which.as_str(), used = reached.used, "the files of a session take too much: its sandbox is ended");
        self.note(self.state.stop_for((reached.which, reached.limit, reached.used))).await?;
        self.execs.fail(&reached.problem());
        (self.patience, self.gauge.full) = (None, Some(reached));
        self.start_sleep();
        Ok(())
    }

    /// When its turn is over the session says why it does not go on.
    async fn say_that_it_is_full(&mut self) -> Result<()> {
        let calm = self.hands.is_none() && self.leaving.is_none() && self.effect.is_none();
        let Some(reached) = self.gauge.full.filter(|_| calm && self.state.is_at_rest()) else {
            return Ok(());
        };
        if matches!(self.state.status, Status::Starting | Status::Active | Status::Paused) {
            self.note(vec![Fact::Failed { problem: reached.problem() }]).await?;
        }
        self.gauge.full = None;
        Ok(())
    }

    /// Beside the session's own work: nobody waits for it.
    fn tally(&mut self) {
        self.gauge.tallied = Instant::now();
        let Some(hands) = &self.hands else { return };
        tokio::spawn(self.tallying(hands.incarnation, Tally::News));
    }

    /// Writes down what a sandbox took until now.
    pub(super) fn tallying(&self, of: Incarnation, tally: Tally) -> impl Future<Output = ()> + Send + use<> {
        let (rooms, workspace, live) = (self.rooms.clone(), self.lease.workspace, self.live.clone());
        let (weighed, run) = (self.gauge.weighed, self.live.run());
        let (id, told) = (self.session.id.clone(), self.gauge.told.clone());
        async move {
            let spent = blocking(move || Ok(ash_sandbox::spent(&run))).await.ok().flatten();
            let Some(spent) = spent.filter(|spent| spent.incarnation == of) else { return };
            let Weight { bytes, files } = match weighed {
                Some(weight) => weight,
                // It is over before anybody has looked.
                None => weigh_soon(&rooms, &live).await.unwrap_or_default(),
            };
            let taken = Resources {
                cpu_ms: u64::try_from(spent.cpu.as_millis()).unwrap_or(u64::MAX),
                peak_memory: spent.memory,
                disk_bytes: bytes,
                files,
            };
            let before = told.lock().unwrap_or_else(PoisonError::into_inner).replace(taken);
            let news = |before: Resources| {
                taken.cpu_ms >= before.cpu_ms.saturating_add(WORTH)
                    || Resources { cpu_ms: before.cpu_ms, ..taken } != before
            };
            if tally == Tally::News && !before.is_none_or(news) {
                return;
            }
            if let Err(error) = rooms.store.took(workspace, (of, taken), rooms.clock()).await {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = None;
                tracing::warn!(session = %id, %error, "what a sandbox took was not written down");
            }
        }
    }
}

/// If it is its turn in a moment: somebody may wait for the end of the sandbox.
async fn weigh_soon(rooms: &Rooms, live: &Live) -> Option<Weight> {
    let weighed = tokio::time::timeout(OFTEN, rooms.weigh(live, Weight::MOST)).await;
    weighed.ok()?.ok().map(|(weight, _)| weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_looked_at_only_when_the_disk_filled_enough() {
        let mut gauge = Gauge::new();
        let now = gauge.walked.0;
        let weight = |bytes, files| Weight { bytes, files };
        let most = weight(1000, 100);
        assert!(gauge.is_due(most, weight(5000, 500), now), "nobody has looked yet");
        gauge.known = Some((weight(600, 10), weight(5000, 500)));
        assert!(!gauge.is_due(most, weight(5199, 544), now));
        assert!(gauge.is_due(most, weight(5200, 500), now), "half of what was left was written by somebody");
        assert!(gauge.is_due(most, weight(4000, 545), now));
        assert!(gauge.is_due(most, weight(5000, 500), now + *ANYWAY.start()), "others may have freed it");
        gauge.stale = false;
        assert!(!gauge.is_due(most, weight(5000, 500), now + *ANYWAY.end() - OFTEN), "nothing has happened");
        assert!(gauge.is_due(most, weight(5000, 500), now + *QUIET.start()));
        gauge.stale = true;
        gauge.walked = (now, Duration::from_millis(100));
        let at = |millis| now + Duration::from_millis(millis);
        assert!(!gauge.is_due(most, weight(6000, 500), at(999)), "never for more than a tenth of the time");
        assert!(
            gauge.is_due(most, weight(6000, 500), at(1000))
                && !gauge.is_due(most, weight(5000, 500), at(9999))
        );
        assert!(gauge.is_due(most, weight(5000, 500), at(10_000)));
    }
}
