//! A workspace and what its sessions share on this server. A private workspace has one session. In a named one, several
//! sessions work in one sandbox, each with a process and an actor of its own.

use crate::{
    Error, Result,
    live_directory::{LiveDirectory, LiveTree},
    slots::SandboxPermit,
};
use ash_model::{ConcurrentTurn, Epoch, Incarnation, JournalPosition, SessionRowId, WorkspaceId};
use ash_sandbox::{RecordStream, SandboxHandle};
use ash_snapshot::DiskUsage;
use ash_store::Lease;
use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

/// The process number of the only agent in a sandbox, and the first of several.
pub(crate) const AGENT: u16 = 1;
/// Process numbers of agents are below this one; commands of callers are above.
pub(crate) const FIRST_COMMAND: u16 = 64;
/// How many numbers each actor has for commands.
pub(crate) const COMMANDS: u16 = 1000;
/// The process number of the script that runs before any agent; it is above those of all commands.
pub(crate) const SETUP: u16 = u16::MAX;
/// How long other sessions may take to leave a dead sandbox.
const LEAVING: Duration = Duration::from_secs(20);

/// While it is held, no other task builds or ends the sandbox, makes the tree or captures it.
pub(crate) type ExclusiveGuard = OwnedMutexGuard<()>;
/// Held by a caller that writes files from outside the sandbox.
pub(crate) type WriterGuard = OwnedRwLockReadGuard<()>;
pub(crate) type NoWriters = OwnedRwLockWriteGuard<()>;

/// A running sandbox, shared by the sessions that work in it.
pub(crate) struct Sandbox {
    pub(crate) incarnation: Incarnation,
    pub(crate) remote: SandboxHandle,
    /// The journal position that each session has committed; the shim may forget what all have committed.
    acknowledged_by: Mutex<HashMap<SessionRowId, u64>>,
    gone: AtomicBool,
    /// One of the sandboxes that this server may have.
    permit: SandboxPermit,
}

impl Sandbox {
    pub(crate) fn new(
        incarnation: Incarnation,
        remote: SandboxHandle,
        permit: SandboxPermit,
    ) -> Arc<Sandbox> {
        let (heard, gone) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Sandbox { incarnation, remote, acknowledged_by: heard, gone, permit })
    }

    /// Whether another tenant has a claim to the sandbox's slot once a turn is over.
    pub(crate) fn is_asked_to_yield(&self) -> bool {
        self.permit.is_asked_to_yield()
    }

    /// Lets the shim forget the records that every session has committed.
    pub(crate) async fn ack(&self, who: SessionRowId, position: u64) {
        let all = {
            let mut heard = self.acknowledged_by.lock().expect("no thread panics while holding it");
            heard.insert(who, position);
            heard.values().copied().min().unwrap_or(position)
        };
        self.remote.ack(all).await.ok();
    }

    fn forget(&self, who: SessionRowId) {
        self.acknowledged_by.lock().expect("no thread panics while holding it").remove(&who);
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    fn is_usable(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && !self.remote.is_closed()
    }
}

/// The records of a sandbox that was taken over, for a session that has no actor yet.
pub(crate) struct UnclaimedConnection {
    pub(crate) heard: JournalPosition,
    pub(crate) records: RecordStream,
    /// The last input that the process accepted.
    pub(crate) last_in: u64,
    /// The process was running when the sandbox was found.
    pub(crate) runs: bool,
}

#[derive(Default)]
struct WorkspaceState {
    lease: Option<Lease>,
    /// The newest tree and its uid, if that tree is on disk.
    tree: Option<LiveTree>,
    /// The last checkpoint of the tree, by any session.
    newest: Option<u64>,
    sandbox: Option<Arc<Sandbox>>,
    /// A sandbox that was built before its session was made, and in which nothing runs yet.
    prepared: Option<(Arc<Sandbox>, RecordStream)>,
    /// Which session works in which sandbox, and as which process.
    members: HashMap<SessionRowId, (Incarnation, u16)>,
    waiting: HashMap<SessionRowId, UnclaimedConnection>,
    /// The last checkpoint that rewound the files of all sessions; 0: none.
    back: u64,
    /// The turns that are under way.
    turns: HashMap<SessionRowId, ConcurrentTurn>,
}

/// The state of a workspace that this server has just claimed.
pub(crate) struct ClaimedWorkspace {
    pub(crate) lease: Lease,
    /// The tree on disk, if no other server has had the workspace since.
    pub(crate) tree: Option<LiveTree>,
    /// The newest checkpoint.
    pub(crate) newest: Option<u64>,
    /// The last checkpoint that rewound the files of all sessions; 0: none.
    pub(crate) last_rewind: u64,
}

pub(crate) struct Workspace {
    pub(crate) live: LiveDirectory,
    exclusive: Arc<tokio::sync::Mutex<()>>,
    /// Held by every caller that writes files from outside, and exclusively by the task that replaces the tree.
    writers: Arc<tokio::sync::RwLock<()>>,
    state: Mutex<WorkspaceState>,
    /// The disk usage of the files, as far as it is known without a walk.
    weight: Mutex<Option<DiskUsage>>,
    /// Notified when a session has left.
    left: Notify,
}

impl Workspace {
    pub(crate) fn new(live: LiveDirectory) -> Workspace {
        Workspace {
            live,
            exclusive: Arc::default(),
            writers: Arc::default(),
            state: Mutex::default(),
            weight: Mutex::default(),
            left: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, WorkspaceState> {
        self.state.lock().expect("no thread panics while holding it")
    }

    fn weight(&self) -> MutexGuard<'_, Option<DiskUsage>> {
        self.weight.lock().expect("no thread panics while holding it")
    }

    /// A walk has measured all files.
    pub(crate) fn set_disk_usage(&self, weight: DiskUsage) {
        *self.weight() = Some(weight);
    }

    /// Whether `more` still leaves the known usage below half of the limit. If so, it is added to the known usage.
    pub(crate) fn has_plenty(&self, most: DiskUsage, more: DiskUsage) -> bool {
        let mut weight = self.weight();
        let half = DiskUsage { bytes: most.bytes / 2, files: most.files / 2 };
        let then = weight.map(|weight| weight.plus(more)).filter(|then| !then.exceeds(half));
        if then.is_some() {
            *weight = then;
        }
        then.is_some()
    }

    pub(crate) async fn exclusive(&self) -> ExclusiveGuard {
        self.exclusive.clone().lock_owned().await
    }

    /// `None`: another task holds it. For holders of a writer guard, for which others wait while they hold the
    /// exclusive guard.
    pub(crate) fn try_exclusive(&self) -> Option<ExclusiveGuard> {
        self.exclusive.clone().try_lock_owned().ok()
    }

    /// `None`: another tree is about to be put in place.
    pub(crate) fn try_writer(&self) -> Option<WriterGuard> {
        self.writers.clone().try_read_owned().ok()
    }

    /// Whether no caller outside is writing.
    pub(crate) fn has_no_writers(&self) -> bool {
        self.writers.try_write().is_ok()
    }

    /// Waits until no caller outside writes any more, or fails if that takes too long. Requires the exclusive guard.
    pub(crate) async fn exclude_writers(&self) -> Result<NoWriters> {
        let last = tokio::time::timeout(LEAVING, self.writers.clone().write_owned()).await;
        last.map_err(|_| Error::WorkspaceBusy("Somebody writes files".to_owned()))
    }

    /// For a workspace that was just made.
    pub(crate) fn of_new(&self, workspace: WorkspaceId, epoch: Epoch) -> Lease {
        let lease = Lease { workspace, epoch };
        self.state().lease = Some(lease.clone());
        lease
    }

    /// The lease, if this server has claimed the workspace.
    pub(crate) fn lease(&self) -> Option<Lease> {
        self.state().lease.clone()
    }

    /// What a claim found.
    pub(crate) fn set_claimed(&self, claimed: ClaimedWorkspace) {
        let ClaimedWorkspace { lease, tree, newest, last_rewind } = claimed;
        let mut state = self.state();
        state.newest = newest;
        state.back = last_rewind;
        state.tree = tree;
        state.lease = Some(lease);
    }

    /// Another history was adopted, under a later epoch: the workspace has to be claimed again.
    pub(crate) fn forget_lease(&self) {
        self.state().lease = None;
    }

    pub(crate) fn tree(&self) -> Option<LiveTree> {
        self.state().tree
    }

    pub(crate) fn set_tree(&self, tree: Option<LiveTree>) {
        if std::mem::replace(&mut self.state().tree, tree) != tree {
            *self.weight() = None;
        }
    }

    /// A crash between the commit of the last rewind and the replacement of its files left a tree that does not count.
    pub(crate) fn forget_tree_before(&self, rewound: u64) {
        if !self.live.knows_of(rewound) {
            self.set_tree(None);
        }
    }

    pub(crate) fn newest(&self) -> Option<u64> {
        self.state().newest
    }

    pub(crate) fn set_newest(&self, number: u64) {
        self.state().newest = Some(number);
    }

    pub(crate) fn last_rewind(&self) -> u64 {
        self.state().back
    }

    pub(crate) fn set_last_rewind(&self, number: u64) {
        self.state().back = number;
    }

    pub(crate) fn set_turn(&self, who: SessionRowId, turn: Option<ConcurrentTurn>) {
        let mut state = self.state();
        match turn {
            Some(turn) => drop(state.turns.insert(who, turn)),
            None => drop(state.turns.remove(&who)),
        }
    }

    /// The turns that are under way in other sessions.
    pub(crate) fn concurrent_turns(&self, who: SessionRowId) -> Vec<ConcurrentTurn> {
        let state = self.state();
        let mut others: Vec<_> = state.turns.iter().filter(|(no, _)| **no != who).collect();
        others.sort_by_key(|(no, _)| **no);
        others.into_iter().map(|(_, turn)| turn.clone()).collect()
    }

    /// The sandbox, if it is alive.
    pub(crate) fn sandbox(&self) -> Option<Arc<Sandbox>> {
        self.state().sandbox.clone().filter(|sandbox| sandbox.is_usable())
    }

    pub(crate) fn set_sandbox(&self, sandbox: Option<Arc<Sandbox>>) {
        self.state().sandbox = sandbox;
    }

    pub(crate) fn set_prepared(&self, sandbox: Arc<Sandbox>, records: RecordStream) {
        self.state().prepared = Some((sandbox, records));
    }

    pub(crate) fn take_prepared(&self) -> Option<(Arc<Sandbox>, RecordStream)> {
        self.state().prepared.take()
    }

    /// A process number for an agent that no other agent has.
    pub(crate) fn free_number(&self) -> Option<u16> {
        let state = self.state();
        (AGENT..FIRST_COMMAND).find(|number| !state.members.values().any(|(_, taken)| taken == number))
    }

    pub(crate) fn enter(&self, who: SessionRowId, incarnation: Incarnation, process: u16) {
        self.state().members.insert(who, (incarnation, process));
    }

    /// True: no session is left in that sandbox.
    pub(crate) fn leave(&self, who: SessionRowId, incarnation: Incarnation) -> bool {
        let mut state = self.state();
        state.members.remove(&who);
        state.waiting.remove(&who);
        state.sandbox.iter().for_each(|sandbox| sandbox.forget(who));
        let left = state.members.values().filter(|(other, _)| *other == incarnation).count();
        drop(state);
        self.left.notify_waiters();
        left == 0
    }

    /// Whether there is a sandbox that stays: one that all sessions have left is about to end.
    pub(crate) fn is_inhabited(&self) -> bool {
        let state = self.state();
        let is_in_use = !state.members.is_empty() || !state.waiting.is_empty();
        is_in_use && state.sandbox.as_ref().is_some_and(|sandbox| sandbox.is_usable())
    }

    /// Whether no other session works in any sandbox.
    pub(crate) fn is_vacant(&self, but: SessionRowId) -> bool {
        self.state().members.keys().all(|who| *who == but)
    }

    /// Before another sandbox is built: waits until every other session has read the last records of the dead one.
    /// Without the exclusive guard, which those sessions need.
    pub(crate) async fn until_vacant(&self, but: SessionRowId) {
        let waiting = async {
            loop {
                let mut left = std::pin::pin!(self.left.notified());
                left.as_mut().enable();
                if self.is_vacant(but) || self.sandbox().is_some() {
                    return;
                }
                left.await;
            }
        };
        if tokio::time::timeout(LEAVING, waiting).await.is_err() {
            tracing::warn!("the server replaces a dead sandbox that a session still holds");
            self.state().members.retain(|who, _| *who == but);
        }
    }

    pub(crate) fn park_connection(&self, who: SessionRowId, waiting: UnclaimedConnection) {
        let mut state = self.state();
        state.members.insert(who, (waiting.heard.incarnation, waiting.heard.process));
        state.waiting.insert(who, waiting);
    }

    /// What was kept for a session whose actor has now started.
    pub(crate) fn waiting(&self, who: SessionRowId) -> Option<UnclaimedConnection> {
        self.state().waiting.remove(&who)
    }
}

/// The numbers of the processes that one session has in a sandbox with others.
pub(crate) fn numbers(process: u16, epoch: Epoch) -> Vec<RangeInclusive<u16>> {
    let first = first_command(process, epoch);
    vec![process..=process, first..=first + (COMMANDS - 1)]
}

/// Each actor numbers commands from its own start. So it never mistakes the processes of an earlier actor or of another
/// session for its own commands.
pub(crate) fn first_command(process: u16, epoch: Epoch) -> u16 {
    let actors = u64::from((u16::MAX - FIRST_COMMAND) / COMMANDS);
    let which = (epoch.0 + u64::from(process)) % actors;
    FIRST_COMMAND + u16::try_from(which).unwrap_or(0) * COMMANDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn sessions_at_work_at_the_same_time_have_no_number_in_common() {
        let mut seen: HashSet<u16> = HashSet::new();
        for process in AGENT..FIRST_COMMAND {
            for number in numbers(process, Epoch(977)).into_iter().flatten() {
                assert!(seen.insert(number), "{number} of {process}");
            }
        }
    }
}
