//! Enforces the limits that the sandbox does not enforce: how long a turn runs, and how much disk its files take. It
//! also records what the sandbox used.
//!
//! No supported file system has quotas for folders, so the watchdog measures the tree itself; but only when the tree
//! may have grown. Asking for the usage of the whole disk is one system call, and this tree cannot have grown by more
//! than the whole disk.

use super::SessionActor;
use crate::{
    Error, Result, blocking,
    live_directory::LiveDirectory,
    machine::{Machine, TurnTimeLimit},
    resource_limits::{self, of_disk},
    services::Services,
};
use ash_model::{Incarnation, LimitReached, ResourceLimits, ResourceUsage};
use ash_snapshot::DiskUsage;
use ash_store::{EventQuery, IncarnationUsage};
use std::{
    ops::RangeInclusive,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

/// How often disk usage is checked while a turn or a command runs, and while nothing runs.
const CHECK_INTERVAL_BUSY: Duration = Duration::from_secs(1);
const CHECK_INTERVAL_QUIET: Duration = Duration::from_secs(5);
/// How often to check whether a walk through the tree is done.
const WALK_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The tree can grow unnoticed while other writers free as much, so a walk is due after at most this time. The waiting
/// time follows the duration of the last walk, and is longer where nothing has happened.
const ANYWAY: RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(60);
const QUIET: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(600);
/// A walk takes at most 1/10 of the time. A speculative walk, or one where nothing has happened, takes a smaller part.
const WALK_TIME_DIVISOR: u32 = 10;
const SPECULATIVE_WALK_TIME_DIVISOR: u32 = 100;
const QUIET_WALK_TIME_DIVISOR: u32 = 2000;
/// How often the usage of a sandbox is recorded, if it is at least this share of a processor.
const RECORD_INTERVAL: Duration = Duration::from_secs(15);
const MIN_RECORDED_CPU_MS: u64 = 100;

/// When a sandbox ends, all its usage is recorded; before that, only significant usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResourceRecordMode {
    News,
    Last,
}

pub(super) struct LimitsWatchdog {
    bounds: Option<ResourceLimits>,
    /// The least that the tree took when it was last walked or captured, and the usage of the whole disk then.
    known: Option<(DiskUsage, DiskUsage)>,
    /// The result of the last walk.
    measured: Option<DiskUsage>,
    /// The tree may have changed since.
    stale: bool,
    walk: Option<JoinHandle<Result<(DiskUsage, Duration)>>>,
    /// When the last walk ended, and how long it took.
    walked: (Instant, Duration),
    /// A turn was under way at the last check.
    busy: bool,
    /// A turn or a command ran in this sandbox.
    used: bool,
    tallied: Instant,
    /// The usage that was recorded last.
    last_recorded: Arc<Mutex<Option<ResourceUsage>>>,
}

impl LimitsWatchdog {
    pub(super) fn new() -> LimitsWatchdog {
        let now = Instant::now();
        LimitsWatchdog {
            bounds: None,
            known: None,
            measured: None,
            stale: true,
            walk: None,
            walked: (now, Duration::ZERO),
            busy: false,
            used: false,
            tallied: now,
            last_recorded: Arc::default(),
        }
    }

    /// A new sandbox begins; it is unused.
    pub(super) fn begin(&mut self) {
        let LimitsWatchdog { bounds, busy, known, measured, .. } =
            std::mem::replace(self, LimitsWatchdog::new());
        *self = LimitsWatchdog { bounds, busy, known, measured, ..LimitsWatchdog::new() };
    }

    /// Notes whether a turn or a command runs in the sandbox.
    pub(super) fn note_work(&mut self, machine: &Machine) {
        self.used |= machine.is_watched_at_work();
    }

    /// Whether a turn has ended since the last call.
    pub(super) fn note_turns(&mut self, machine: &Machine) -> bool {
        let busy = machine.log.current().is_some();
        std::mem::replace(&mut self.busy, busy) && !busy
    }

    /// A capture has measured the whole tree.
    pub(super) fn captured(&mut self, weight: DiskUsage, live: &LiveDirectory) {
        self.known = disk(&live.workspace()).map(|disk| (weight, disk));
        self.stale = true;
    }

    /// Whether the tree may exceed its limit, so that a walk is due.
    fn is_due(&self, most: DiskUsage, disk: DiskUsage, now: Instant) -> bool {
        let (walked, took) = self.walked;
        if now < walked + took * WALK_TIME_DIVISOR {
            return false;
        }
        let Some((weight, before)) = self.known else { return true };
        let grew = |now: u64, before: u64, room: u64| now.saturating_sub(before) >= room / 2;
        let bytes = grew(disk.bytes, before.bytes, most.bytes.saturating_sub(weight.bytes));
        let files = grew(disk.files, before.files, most.files.saturating_sub(weight.files));
        let (share, range) = match self.stale {
            true => (SPECULATIVE_WALK_TIME_DIVISOR, ANYWAY),
            false => (QUIET_WALK_TIME_DIVISOR, QUIET),
        };
        bytes || files || now >= walked + (took * share).clamp(*range.start(), *range.end())
    }
}

/// The usage of the whole disk.
fn disk(path: &Path) -> Option<DiskUsage> {
    let disk = rustix::fs::statvfs(path).ok()?;
    Some(DiskUsage {
        bytes: disk.f_blocks.saturating_sub(disk.f_bfree).saturating_mul(disk.f_frsize),
        files: disk.f_files.saturating_sub(disk.f_ffree),
    })
}

impl SessionActor {
    /// Reads from the log when the running turn began; an earlier actor may have begun it.
    pub(super) async fn note_when_begun(&mut self) -> Result<()> {
        let attempt = self.machine.running_attempt();
        let Some((attempt, after)) = attempt.zip(self.machine.log.current().map(|turn| turn.seq)) else {
            return Ok(());
        };
        let kinds = vec!["stirred", "started", "continued"];
        let query = EventQuery { after: after.saturating_sub(1), limit: 1000, kinds };
        let events = self.ctx.services.store.events(self.ctx.session.no, &query).await?;
        let begun = events.iter().rfind(|event| event.turn == Some(attempt.turn)).map(|event| event.at);
        let ms = begun.map_or(0, |at| self.ctx.services.clock().0.saturating_sub(at.0));
        let ago = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        let now = Instant::now();
        self.machine.runtime.limits.running = Some((attempt, now.checked_sub(ago).unwrap_or(now)));
        Ok(())
    }

    /// Reads the limits in force. The size of the last checkpoint is a good estimate of the size of the tree.
    pub(super) async fn read_limits(&mut self) -> Result<()> {
        let bounds = self.ctx.services.bounds(&self.ctx.session).await?;
        self.limits.bounds = Some(bounds);
        self.machine.runtime.limits.bounds =
            bounds.turn_seconds.map_or(TurnTimeLimit::None, TurnTimeLimit::Seconds);
        if let (None, Some(number)) = (self.limits.known, self.machine.log.checkpoint)
            && let Some(last) = self.ctx.services.store.checkpoint(self.ctx.lease.workspace, number).await?
        {
            self.limits.captured(DiskUsage { bytes: last.bytes, files: last.files }, &self.ctx.live);
        }
        Ok(())
    }

    pub(super) async fn check_disk_usage(&mut self) -> Result<()> {
        let now = Instant::now();
        let most = self.limits.bounds.as_ref().and_then(of_disk).unwrap_or(DiskUsage::UNLIMITED);
        if now >= self.limits.tallied + RECORD_INTERVAL {
            self.record_resource_usage();
        }
        let busy = self.machine.is_watched_at_work();
        self.limits.stale |= busy;
        let mut next = now + if busy { CHECK_INTERVAL_BUSY } else { CHECK_INTERVAL_QUIET };
        match &self.limits.walk {
            Some(walk) if walk.is_finished() => {
                self.machine.runtime.limits.next_disk_check = next;
                return self.on_disk_usage(most).await;
            }
            Some(_) => next = now + WALK_POLL_INTERVAL,
            None => {
                if self.begin_walk(most, busy, now).await? {
                    next = now + WALK_POLL_INTERVAL;
                }
            }
        }
        self.machine.runtime.limits.next_disk_check = next;
        Ok(())
    }

    /// Starts a walk through the tree if the tree may exceed its limit. True: a walk is under way.
    async fn begin_walk(&mut self, most: DiskUsage, busy: bool, now: Instant) -> Result<bool> {
        let Some(disk) = disk(&self.ctx.live.workspace()) else { return Ok(false) };
        // Scratch files are on no disk.
        let run = self.ctx.live.run();
        let scratch = blocking(move || Ok(ash_sandbox::scratch_files(&run))).await?;
        let most_there = DiskUsage { files: most.files.saturating_sub(scratch), ..most };
        if !self.limits.is_due(most_there, disk, now) {
            return Ok(false);
        }
        self.limits.known = self.limits.known.map(|(weight, _)| (weight, disk));
        self.limits.stale = busy;
        let (services, workspace) = (self.ctx.services.clone(), self.ctx.workspace.clone());
        let walk = async move {
            let (weight, took) = services.weigh(&workspace.live, most).await?;
            workspace.set_disk_usage(weight);
            Ok((weight, took))
        };
        self.limits.walk = Some(tokio::spawn(walk));
        Ok(true)
    }

    async fn on_disk_usage(&mut self, most: DiskUsage) -> Result<()> {
        let Some(walk) = self.limits.walk.take() else { return Ok(()) };
        self.limits.walked.0 = Instant::now();
        let weight = match walk.await {
            Ok(Ok((weight, took))) => {
                self.limits.walked.1 = took;
                weight
            }
            // The tree may have been replaced meanwhile: the next walk measures the new one.
            Ok(Err(error)) => return self.not_weighed(&error),
            Err(_) => return Ok(()),
        };
        let before = self.limits.known.map(|(_, disk)| disk);
        self.limits.known = before.or_else(|| disk(&self.ctx.live.workspace())).map(|disk| (weight, disk));
        // A client has no urgent interest in the size of an unused sandbox.
        if self.limits.measured.replace(weight) != Some(weight) && self.limits.used {
            self.record_resource_usage();
        }
        let turn = self.machine.running_attempt().map(|attempt| attempt.turn);
        match resource_limits::reached(turn, weight, most) {
            Some(reached) => self.end_sandbox_for_limit(reached).await,
            None => Ok(()),
        }
    }

    fn not_weighed(&self, error: &Error) -> Result<()> {
        tracing::debug!(session = %self.ctx.session.id, %error, "the disk usage of the session's files could not be measured");
        Ok(())
    }

    /// Ends the sandbox at once, because a process that is asked to stop goes on writing meanwhile. The turn is
    /// captured as it is, and is over.
    async fn end_sandbox_for_limit(&mut self, reached: LimitReached) -> Result<()> {
        tracing::warn!(session = %self.ctx.session.id, which = reached.kind.as_str(), used = reached.used, "the session's files exceed a limit: the server ends its sandbox");
        self.commit_facts(self.machine.log.stop_turn_for_limit((reached.kind, reached.limit, reached.used)))
            .await?;
        self.execs.fail(&reached.problem());
        self.machine.ended_for_limit(reached);
        self.leave_sandbox();
        Ok(())
    }

    /// Records usage beside the session's own work: no caller waits for it.
    pub(super) fn record_resource_usage(&mut self) {
        self.limits.tallied = Instant::now();
        let Some(conn) = &self.link.conn else { return };
        tokio::spawn(self.recording_resource_usage(conn.incarnation, ResourceRecordMode::News));
    }

    /// Records what the sandbox used until now.
    pub(super) fn recording_resource_usage(
        &self,
        of: Incarnation,
        tally: ResourceRecordMode,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (services, workspace, live) =
            (self.ctx.services.clone(), self.ctx.lease.workspace, self.ctx.live.clone());
        let (weighed, run) = (self.limits.measured, self.ctx.live.run());
        let (id, told) = (self.ctx.session.id.clone(), self.limits.last_recorded.clone());
        async move {
            let spent = blocking(move || Ok(ash_sandbox::resource_usage(&run))).await.ok().flatten();
            let Some(spent) = spent.filter(|spent| spent.incarnation == of) else { return };
            let DiskUsage { bytes, files } = match weighed {
                Some(weight) => weight,
                // The sandbox ended before the first measurement.
                None => weigh_soon(&services, &live).await.unwrap_or_default(),
            };
            let taken = ResourceUsage {
                cpu_ms: u64::try_from(spent.cpu.as_millis()).unwrap_or(u64::MAX),
                peak_memory: spent.memory,
                disk_bytes: bytes,
                files,
            };
            let before = told.lock().unwrap_or_else(PoisonError::into_inner).replace(taken);
            let news = |before: ResourceUsage| {
                taken.cpu_ms >= before.cpu_ms.saturating_add(MIN_RECORDED_CPU_MS)
                    || ResourceUsage { cpu_ms: before.cpu_ms, ..taken } != before
            };
            if tally == ResourceRecordMode::News && !before.is_none_or(news) {
                return;
            }
            let report = IncarnationUsage { workspace, incarnation: of, usage: taken, at: services.clock() };
            if let Err(error) = services.store.record_resource_usage(report).await {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = None;
                tracing::warn!(session = %id, %error, "the resource usage of a sandbox could not be recorded");
            }
        }
    }
}

/// Measures the tree if that can begin soon: a caller may wait for the end of the sandbox.
async fn weigh_soon(services: &Services, live: &LiveDirectory) -> Option<DiskUsage> {
    let weighed = tokio::time::timeout(CHECK_INTERVAL_BUSY, services.weigh(live, DiskUsage::UNLIMITED)).await;
    weighed.ok()?.ok().map(|(weight, _)| weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_measured_only_when_the_disk_filled_enough() {
        let mut gauge = LimitsWatchdog::new();
        let now = gauge.walked.0;
        let weight = |bytes, files| DiskUsage { bytes, files };
        let most = weight(1000, 100);
        assert!(gauge.is_due(most, weight(5000, 500), now), "the tree was not measured yet");
        gauge.known = Some((weight(600, 10), weight(5000, 500)));
        assert!(!gauge.is_due(most, weight(5199, 544), now));
        assert!(
            gauge.is_due(most, weight(5200, 500), now),
            "half of the free space was used since the last measurement"
        );
        assert!(gauge.is_due(most, weight(4000, 545), now));
        assert!(gauge.is_due(most, weight(5000, 500), now + *ANYWAY.start()), "others may have freed it");
        gauge.stale = false;
        assert!(
            !gauge.is_due(most, weight(5000, 500), now + *ANYWAY.end() - CHECK_INTERVAL_BUSY),
            "nothing has happened"
        );
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
