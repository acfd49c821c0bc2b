//! A workspace and what its sessions share on this server. A private workspace has one session. In a named one, several
//! sessions work in one sandbox, each with a process and an actor of its own.

use crate::{
    Error, Result,
    live_directory::{LiveDirectory, LiveTree},
    pool::SandboxPermit,
    services::Services,
};
use ash_model::{ConcurrentTurn, Epoch, Incarnation, JournalPosition, SessionRowId, WorkspaceId};
use ash_sandbox::{RecordStream, SandboxHandle};
use ash_snapshot::DiskUsage;
use ash_store::{Lease, LeaseClaim};
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
    _room: SandboxPermit,
}

impl Sandbox {
    pub(crate) fn new(incarnation: Incarnation, remote: SandboxHandle, room: SandboxPermit) -> Arc<Sandbox> {
        let (heard, gone) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Sandbox { incarnation, remote, acknowledged_by: heard, gone, _room: room })
    }

    /// Lets the shim forget the records that every session has committed.
    pub(crate) async fn ack(&self, who: SessionRowId, position: u64) {
        let all = {
            let mut heard = self.acknowledged_by.lock().expect("nobody panics while holding it");
            heard.insert(who, position);
            heard.values().copied().min().unwrap_or(position)
        };
        self.remote.ack(all).await.ok();
    }

    fn forget(&self, who: SessionRowId) {
        self.acknowledged_by.lock().expect("nobody panics while holding it").remove(&who);
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
    walls: Option<Arc<Sandbox>>,
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

pub(crate) struct Workspace {
    pub(crate) live: LiveDirectory,
    floor: Arc<tokio::sync::Mutex<()>>,
    /// Held by every caller that writes files from outside, and exclusively by the task that replaces the tree.
    pen: Arc<tokio::sync::RwLock<()>>,
    ground: Mutex<WorkspaceState>,
    /// The disk usage of the files, as far as it is known without a walk.
    weight: Mutex<Option<DiskUsage>>,
    /// Notified when a session has left.
    left: Notify,
}

impl Workspace {
    pub(crate) fn new(live: LiveDirectory) -> Workspace {
        Workspace {
            live,
            floor: Arc::default(),
            pen: Arc::default(),
            ground: Mutex::default(),
            weight: Mutex::default(),
            left: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, WorkspaceState> {
        self.ground.lock().expect("nobody panics while holding it")
    }

    fn weight(&self) -> MutexGuard<'_, Option<DiskUsage>> {
        self.weight.lock().expect("nobody panics while holding it")
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
        self.floor.clone().lock_owned().await
    }

    /// `None`: another task holds it. For holders of a writer guard, for which others wait while they hold the
    /// exclusive guard.
    pub(crate) fn try_exclusive(&self) -> Option<ExclusiveGuard> {
        self.floor.clone().try_lock_owned().ok()
    }

    /// `None`: another tree is about to be put in place.
    pub(crate) fn try_writer(&self) -> Option<WriterGuard> {
        self.pen.clone().try_read_owned().ok()
    }

    /// Whether no caller outside is writing.
    pub(crate) fn has_no_writers(&self) -> bool {
        self.pen.try_write().is_ok()
    }

    /// Waits until no caller outside writes any more, or fails if that takes too long. Requires the exclusive guard.
    pub(crate) async fn exclude_writers(&self) -> Result<NoWriters> {
        let last = tokio::time::timeout(LEAVING, self.pen.clone().write_owned()).await;
        last.map_err(|_| Error::WorkspaceBusy("Somebody writes files".to_owned()))
    }

    /// For a workspace that was just made.
    pub(crate) fn of_new(&self, workspace: WorkspaceId, epoch: Epoch) -> Lease {
        let lease = Lease { workspace, epoch };
        self.state().lease = Some(lease.clone());
        lease
    }

    /// Another history was adopted, under a later epoch: the workspace has to be claimed again.
    pub(crate) fn forget_lease(&self) {
        self.state().lease = None;
    }

    /// Claims the workspace, if this server has not claimed it yet. Answers whether it did. Requires the exclusive guard.
    pub(crate) async fn claim(&self, rooms: &Services, workspace: WorkspaceId) -> Result<(Lease, bool)> {
        if let Some(lease) = self.state().lease.clone() {
            return Ok((lease, false));
        }
        let hold = rooms.store.lease_holder(workspace).await?.ok_or(Error::NotFound)?;
        self.live.remove_replacement()?;
        let current = self.live.is_current(&hold, &rooms.settings.node, &rooms.settings.boot);
        let claim = LeaseClaim { workspace, node: rooms.settings.node.clone(), from: hold };
        // The stamp first: if the server dies before the claim, a stamp that is one epoch ahead still counts as its own.
        let tree = match current {
            true => Some(LiveTree { uid: self.live.adopt(claim.epoch(), &rooms.uids)? }),
            false => None,
        };
        let lease = rooms.store.claim(claim).await?;
        let newest = rooms.store.checkpoints(workspace, None, 1).await?;
        let backs = rooms.store.workspace_rewinds(workspace, 0).await?;
        let mut ground = self.state();
        ground.newest = newest.first().map(|checkpoint| checkpoint.number);
        ground.back = backs.last().map_or(0, |back| back.rewind.checkpoint);
        ground.tree = tree;
        ground.lease = Some(lease.clone());
        Ok((lease, true))
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
        let mut ground = self.state();
        match turn {
            Some(turn) => drop(ground.turns.insert(who, turn)),
            None => drop(ground.turns.remove(&who)),
        }
    }

    /// The turns that are under way in other sessions.
    pub(crate) fn concurrent_turns(&self, who: SessionRowId) -> Vec<ConcurrentTurn> {
        let ground = self.state();
        let mut others: Vec<_> = ground.turns.iter().filter(|(no, _)| **no != who).collect();
        others.sort_by_key(|(no, _)| **no);
        others.into_iter().map(|(_, turn)| turn.clone()).collect()
    }

    /// The sandbox, if it is alive.
    pub(crate) fn sandbox(&self) -> Option<Arc<Sandbox>> {
        self.state().walls.clone().filter(|walls| walls.is_usable())
    }

    pub(crate) fn set_sandbox(&self, walls: Option<Arc<Sandbox>>) {
        self.state().walls = walls;
    }

    pub(crate) fn set_prepared(&self, walls: Arc<Sandbox>, records: RecordStream) {
        self.state().prepared = Some((walls, records));
    }

    pub(crate) fn take_prepared(&self) -> Option<(Arc<Sandbox>, RecordStream)> {
        self.state().prepared.take()
    }

    /// A process number for an agent that no other agent has.
    pub(crate) fn free_number(&self) -> Option<u16> {
        let ground = self.state();
        (AGENT..FIRST_COMMAND).find(|number| !ground.members.values().any(|(_, taken)| taken == number))
    }

    pub(crate) fn enter(&self, who: SessionRowId, incarnation: Incarnation, process: u16) {
        self.state().members.insert(who, (incarnation, process));
    }

    /// True: no session is left in that sandbox.
    pub(crate) fn leave(&self, who: SessionRowId, incarnation: Incarnation) -> bool {
        let mut ground = self.state();
        ground.members.remove(&who);
        ground.waiting.remove(&who);
        ground.walls.iter().for_each(|walls| walls.forget(who));
        let left = ground.members.values().filter(|(other, _)| *other == incarnation).count();
        drop(ground);
        self.left.notify_waiters();
        left == 0
    }

    /// Whether there is a sandbox that stays: one that all sessions have left is about to end.
    pub(crate) fn is_inhabited(&self) -> bool {
        let ground = self.state();
        let somebody = !ground.members.is_empty() || !ground.waiting.is_empty();
        somebody && ground.walls.as_ref().is_some_and(|walls| walls.is_usable())
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
            tracing::warn!("a dead sandbox is replaced although a session has not let go of it");
            self.state().members.retain(|who, _| *who == but);
        }
    }

    pub(crate) fn park_connection(&self, who: SessionRowId, waiting: UnclaimedConnection) {
        let mut ground = self.state();
        ground.members.insert(who, (waiting.heard.incarnation, waiting.heard.process));
        ground.waiting.insert(who, waiting);
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
    let keepers = u64::from((u16::MAX - FIRST_COMMAND) / COMMANDS);
    let which = (epoch.0 + u64::from(process)) % keepers;
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
