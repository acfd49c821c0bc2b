//! A workspace while somebody looks after its sessions: what they share. A private one has one session. In a named one
//! several are at work in one sandbox, each with a process of its own, and each with a keeper of its own.

use crate::{Error, Result, live::Live, pool::Room, rooms::Rooms};
use ash_model::{Beside, Epoch, Incarnation, JournalPosition, SessionNo, WorkspaceId};
use ash_sandbox::{Records, Remote};
use ash_snapshot::Weight;
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

/// The number of the only agent in a sandbox, and the first of several.
pub(crate) const AGENT: u16 = 1;
/// Numbers of agents end before this one; above it are the commands that people run.
pub(crate) const FIRST_COMMAND: u16 = 64;
/// So many numbers each keeper has for commands.
pub(crate) const COMMANDS: u16 = 1000;
/// The number of the script that runs before any agent; above those of all commands.
pub(crate) const SETUP: u16 = u16::MAX;
/// How long a dead sandbox's other sessions may take to let go of it.
const LEAVING: Duration = Duration::from_secs(20);

/// As long as it lives nobody else builds or ends the sandbox, makes the tree or captures it.
pub(crate) type Floor = OwnedMutexGuard<()>;
/// Of somebody outside who writes files.
pub(crate) type Pen = OwnedRwLockReadGuard<()>;
pub(crate) type NoPens = OwnedRwLockWriteGuard<()>;

/// A sandbox as the sessions have it that are at work in it.
pub(crate) struct Walls {
    pub(crate) incarnation: Incarnation,
    pub(crate) remote: Remote,
    /// What each has written down; the shim may forget what all have.
    heard: Mutex<HashMap<SessionNo, u64>>,
    gone: AtomicBool,
    /// One of the sandboxes this server may have.
    _room: Room,
}

impl Walls {
    pub(crate) fn new(incarnation: Incarnation, remote: Remote, room: Room) -> Arc<Walls> {
        let (heard, gone) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Walls { incarnation, remote, heard, gone, _room: room })
    }

    /// Up to where everybody has heard.
    pub(crate) async fn ack(&self, who: SessionNo, position: u64) {
        let all = {
            let mut heard = self.heard.lock().expect("nobody panics while holding it");
            heard.insert(who, position);
            heard.values().copied().min().unwrap_or(position)
        };
        self.remote.ack(all).await.ok();
    }

    fn forget(&self, who: SessionNo) {
        self.heard.lock().expect("nobody panics while holding it").remove(&who);
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    fn is_usable(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && !self.remote.is_closed()
    }
}

/// What a sandbox that was taken over said to a session whose keeper has not come yet.
pub(crate) struct Waiting {
    pub(crate) heard: JournalPosition,
    pub(crate) records: Records,
    /// The last input that the process took.
    pub(crate) last_in: u64,
    /// The process was there when the sandbox was found.
    pub(crate) runs: bool,
}

#[derive(Default)]
struct Ground {
    lease: Option<Lease>,
    /// The tree on disk is the newest there is, and this is its uid.
    tree: Option<Option<u32>>,
    /// The last checkpoint that was made of it, whoever made it.
    newest: Option<u64>,
    walls: Option<Arc<Walls>>,
    /// A sandbox that was built before its session was made, and in which nothing runs yet.
    prepared: Option<(Arc<Walls>, Records)>,
    /// Who is at work in which sandbox, and as which process.
    members: HashMap<SessionNo, (Incarnation, u16)>,
    waiting: HashMap<SessionNo, Waiting>,
    /// The last checkpoint that took the files of all back; 0: none.
    back: u64,
    /// The turns that are under way.
    turns: HashMap<SessionNo, Beside>,
}

pub(crate) struct Common {
    pub(crate) live: Live,
    floor: Arc<tokio::sync::Mutex<()>>,
    /// Held by everybody outside who writes files, and alone by whoever puts another tree in their place.
    pen: Arc<tokio::sync::RwLock<()>>,
    ground: Mutex<Ground>,
    /// What the files take, as far as that is known without a look at all of them.
    weight: Mutex<Option<Weight>>,
    /// Somebody has left.
    left: Notify,
}

impl Common {
    pub(crate) fn new(live: Live) -> Common {
        Common {
            live,
            floor: Arc::default(),
            pen: Arc::default(),
            ground: Mutex::default(),
            weight: Mutex::default(),
            left: Notify::new(),
        }
    }

    fn ground(&self) -> MutexGuard<'_, Ground> {
        self.ground.lock().expect("nobody panics while holding it")
    }

    fn weight(&self) -> MutexGuard<'_, Option<Weight>> {
        self.weight.lock().expect("nobody panics while holding it")
    }

    /// Somebody has looked at all files.
    pub(crate) fn weighed(&self, weight: Weight) {
        *self.weight() = Some(weight);
    }

    /// Whether so much more is far from too much, for all that is known. If so it counts from now on.
    pub(crate) fn has_plenty(&self, most: Weight, more: Weight) -> bool {
        let mut weight = self.weight();
        let half = Weight { bytes: most.bytes / 2, files: most.files / 2 };
        let then = weight.map(|weight| weight.plus(more)).filter(|then| !then.exceeds(half));
        if then.is_some() {
            *weight = then;
        }
        then.is_some()
    }

    pub(crate) async fn floor(&self) -> Floor {
        self.floor.clone().lock_owned().await
    }

    /// `None`: somebody has it. For whoever holds a pen, which others wait for on the floor.
    pub(crate) fn try_floor(&self) -> Option<Floor> {
        self.floor.clone().try_lock_owned().ok()
    }

    /// `None`: another tree is about to be put in place.
    pub(crate) fn try_pen(&self) -> Option<Pen> {
        self.pen.clone().try_read_owned().ok()
    }

    /// Nobody outside is writing.
    pub(crate) fn has_no_pens(&self) -> bool {
        self.pen.try_write().is_ok()
    }

    /// Nobody outside writes any more, or they take too long. Only with the floor.
    pub(crate) async fn no_pens(&self) -> Result<NoPens> {
        let last = tokio::time::timeout(LEAVING, self.pen.clone().write_owned()).await;
        last.map_err(|_| Error::WorkspaceBusy("Somebody writes files".to_owned()))
    }

    /// For a workspace that was made a moment ago.
    pub(crate) fn of_new(&self, workspace: WorkspaceId, epoch: Epoch) -> Lease {
        let lease = Lease { workspace, epoch };
        self.ground().lease = Some(lease.clone());
        lease
    }

    /// Another history was adopted, under a later epoch: it has to be taken over anew.
    pub(crate) fn forget_lease(&self) {
        self.ground().lease = None;
    }

    /// Takes the workspace over, if nobody here has it yet. Answers whether that was so. Only with the floor.
    pub(crate) async fn claim(&self, rooms: &Rooms, workspace: WorkspaceId) -> Result<(Lease, bool)> {
        if let Some(lease) = self.ground().lease.clone() {
            return Ok((lease, false));
        }
        let hold = rooms.store.hold(workspace).await?.ok_or(Error::NotFound)?;
        self.live.remove_replacement()?;
        let current = self.live.is_current(&hold, &rooms.settings.node, &rooms.settings.boot);
        let epoch = Epoch(hold.epoch.0 + 1);
        // The stamp first: if we die before the claim, one epoch ahead still counts as ours.
        let tree = if current { Some(self.live.adopt(epoch, &rooms.uids)?) } else { None };
        let lease = rooms.store.claim(workspace, &rooms.settings.node, &hold).await?;
        let newest = rooms.store.checkpoints(workspace, None, 1).await?;
        let backs = rooms.store.taken_back(workspace, 0).await?;
        let mut ground = self.ground();
        ground.newest = newest.first().map(|checkpoint| checkpoint.number);
        ground.back = backs.last().map_or(0, |(back, _)| back.checkpoint);
        ground.tree = tree;
        ground.lease = Some(lease.clone());
        Ok((lease, true))
    }

    pub(crate) fn tree(&self) -> Option<Option<u32>> {
        self.ground().tree
    }

    pub(crate) fn set_tree(&self, tree: Option<Option<u32>>) {
        if std::mem::replace(&mut self.ground().tree, tree) != tree {
            *self.weight() = None;
        }
    }

    /// Whoever died between the last rewind and its files has left a tree that does not count.
    pub(crate) fn forget_tree_before(&self, rewound: u64) {
        if !self.live.knows_of(rewound) {
            self.set_tree(None);
        }
    }

    pub(crate) fn newest(&self) -> Option<u64> {
        self.ground().newest
    }

    pub(crate) fn set_newest(&self, number: u64) {
        self.ground().newest = Some(number);
    }

    pub(crate) fn back(&self) -> u64 {
        self.ground().back
    }

    pub(crate) fn set_back(&self, number: u64) {
        self.ground().back = number;
    }

    pub(crate) fn set_turn(&self, who: SessionNo, turn: Option<Beside>) {
        let mut ground = self.ground();
        match turn {
            Some(turn) => drop(ground.turns.insert(who, turn)),
            None => drop(ground.turns.remove(&who)),
        }
    }

    /// The turns that are under way, but for one's own.
    pub(crate) fn beside(&self, who: SessionNo) -> Vec<Beside> {
        let ground = self.ground();
        let mut others: Vec<_> = ground.turns.iter().filter(|(no, _)| **no != who).collect();
        others.sort_by_key(|(no, _)| **no);
        others.into_iter().map(|(_, turn)| turn.clone()).collect()
    }

    /// The sandbox, if one is alive.
    pub(crate) fn walls(&self) -> Option<Arc<Walls>> {
        self.ground().walls.clone().filter(|walls| walls.is_usable())
    }

    pub(crate) fn set_walls(&self, walls: Option<Arc<Walls>>) {
        self.ground().walls = walls;
    }

    pub(crate) fn set_prepared(&self, walls: Arc<Walls>, records: Records) {
        self.ground().prepared = Some((walls, records));
    }

    pub(crate) fn take_prepared(&self) -> Option<(Arc<Walls>, Records)> {
        self.ground().prepared.take()
    }

    /// A number for an agent's process that no other has.
    pub(crate) fn free_number(&self) -> Option<u16> {
        let ground = self.ground();
        (AGENT..FIRST_COMMAND).find(|number| !ground.members.values().any(|(_, taken)| taken == number))
    }

    pub(crate) fn enter(&self, who: SessionNo, incarnation: Incarnation, process: u16) {
        self.ground().members.insert(who, (incarnation, process));
    }

    /// True: nobody is left in that sandbox.
    pub(crate) fn leave(&self, who: SessionNo, incarnation: Incarnation) -> bool {
        let mut ground = self.ground();
        ground.members.remove(&who);
        ground.waiting.remove(&who);
        ground.walls.iter().for_each(|walls| walls.forget(who));
        let left = ground.members.values().filter(|(other, _)| *other == incarnation).count();
        drop(ground);
        self.left.notify_waiters();
        left == 0
    }

    /// Whether there is a sandbox that stays: one that all have left is about to end.
    pub(crate) fn is_inhabited(&self) -> bool {
        let ground = self.ground();
        let somebody = !ground.members.is_empty() || !ground.waiting.is_empty();
        somebody && ground.walls.as_ref().is_some_and(|walls| walls.is_usable())
    }

    /// Whether nobody but this one is at work anywhere.
    pub(crate) fn is_left(&self, but: SessionNo) -> bool {
        self.ground().members.keys().all(|who| *who == but)
    }

    /// Before another sandbox is built: everybody has read what the dead one still said. Without the floor, which they
    /// need.
    pub(crate) async fn until_left(&self, but: SessionNo) {
        let waiting = async {
            loop {
                let mut left = std::pin::pin!(self.left.notified());
                left.as_mut().enable();
                if self.is_left(but) || self.walls().is_some() {
                    return;
                }
                left.await;
            }
        };
        if tokio::time::timeout(LEAVING, waiting).await.is_err() {
            tracing::warn!("a dead sandbox is replaced although a session has not let go of it");
            self.ground().members.retain(|who, _| *who == but);
        }
    }

    pub(crate) fn expect(&self, who: SessionNo, waiting: Waiting) {
        let mut ground = self.ground();
        ground.members.insert(who, (waiting.heard.incarnation, waiting.heard.process));
        ground.waiting.insert(who, waiting);
    }

    /// What was kept for a session that comes now.
    pub(crate) fn waiting(&self, who: SessionNo) -> Option<Waiting> {
        self.ground().waiting.remove(&who)
    }
}

/// The numbers of the processes that one session has in a sandbox with others.
pub(crate) fn numbers(process: u16, epoch: Epoch) -> Vec<RangeInclusive<u16>> {
    let first = first_command(process, epoch);
    vec![process..=process, first..=first + (COMMANDS - 1)]
}

/// Each keeper numbers commands from its own start, so that what an earlier one left running or unread, and what another
/// session runs, is never taken for a command of this one.
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
