//! Walks the folders on several threads. A small tree gets only one, because starting a thread takes longer than the
//! walk.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use super::queue::WorkQueue;
use super::visit::{CaptureWorker, ChangedDirectory, VisitExtent, VisitReach, VisitTask};
use super::{CaptureReport, CaptureRequest, SkipReason};
use crate::index::{CaptureIndex, IndexedContent, StatFingerprint};
use crate::object::ObjectLocation;
use crate::object_id::ObjectId;
use crate::pack::PackWriter;
use crate::repo::Repo;
use crate::{Error, TouchedNames};

/// Starting another thread is worth it from this many waiting directories.
const WORTH: usize = 16;

/// What all threads of a capture share.
pub(super) struct CaptureWalk<'a> {
    pub(super) repo: &'a Repo,
    pub(super) capture: &'a CaptureRequest<'a>,
    pub(super) index: &'a CaptureIndex,
    pub(super) packing: &'a PackWriter<'a>,
    pub(super) queue: WorkQueue<VisitTask>,
    /// Chunks that this capture has stored so far.
    pub(super) fresh: Mutex<HashMap<ObjectId, ObjectLocation>>,
    /// The size of these chunks.
    pub(super) added: AtomicU64,
    /// The length of all opened directories' paths together.
    pub(super) paths: AtomicU64,
    /// In a partial walk, the directories that have a visit: a directory may be reached in several ways.
    begun: Option<Mutex<HashMap<Vec<u8>, VisitReach>>>,
    /// Files with several hard links that were read under one of them.
    pub(super) linked: Mutex<HashMap<u64, (StatFingerprint, IndexedContent)>>,
}

impl CaptureWalk<'_> {
    /// Whether no earlier task already visits the directory with at least this reach.
    pub(super) fn is_new(&self, path: &[u8], reach: VisitReach) -> bool {
        let Some(begun) = &self.begun else { return true };
        let mut begun = begun.lock().expect("no code panics while it holds this lock");
        let before = begun.insert(path.to_vec(), reach);
        if let Some(before) = before.filter(|before| *before >= reach) {
            begun.insert(path.to_vec(), before);
            return false;
        }
        true
    }
}

/// The results of all threads.
#[derive(Default)]
pub(super) struct WalkFindings {
    /// Directories that differ from the index.
    pub(super) visits: Vec<ChangedDirectory>,
    /// Directories that could not be entered.
    pub(super) failed: HashMap<Vec<u8>, SkipReason>,
    /// Directories that are in the index and no longer exist.
    pub(super) gone: Vec<Vec<u8>>,
    /// All names of files with several hard links.
    pub(super) names: Vec<HardLinkName>,
    pub(super) report: CaptureReport,
}

pub(super) struct HardLinkName {
    pub(super) inode: u64,
    pub(super) folder: Vec<u8>,
    pub(super) name: Vec<u8>,
    pub(super) size: u64,
}

impl WalkFindings {
    fn add(&mut self, other: WalkFindings) {
        self.visits.extend(other.visits);
        self.failed.extend(other.failed);
        self.gone.extend(other.gone);
        self.names.extend(other.names);
        self.report.add(other.report);
    }
}

/// The first tasks: every root; or the touched paths, plus every file that may have changed through another name.
fn tasks(capture: &CaptureRequest<'_>, index: &CaptureIndex) -> Vec<VisitTask> {
    let Some((folders, linked)) = capture.tracking.touched().filter(|_| index.base().is_some()) else {
        return (0..capture.roots.len()).map(|root| VisitTask::root(capture, root)).collect();
    };
    let mut extents: BTreeMap<&[u8], VisitExtent> = BTreeMap::new();
    for (path, names) in folders.iter().filter(|(path, _)| index.get(path).is_some()) {
        let extent = match names {
            TouchedNames::All => VisitExtent::Whole,
            TouchedNames::These(names) => VisitExtent::Names(names.clone()),
        };
        extents.insert(path, extent);
    }
    // A file gained, had or lost another name, so all its recorded names are visited.
    for (path, name) in index.names_of(linked) {
        let extent = extents.entry(path).or_insert(VisitExtent::Names(BTreeSet::new()));
        if let VisitExtent::Names(names) = extent {
            names.insert(name.to_vec());
        }
    }
    for (path, _) in index.linked() {
        let extent = extents.entry(path).or_insert(VisitExtent::Itself);
        if matches!(extent, VisitExtent::Names(_)) {
            *extent = VisitExtent::Itself;
        }
    }
    let task = |(path, extent): (&[u8], VisitExtent)| {
        let name = path.split(|b| *b == b'/').next()?;
        let root = capture.roots.iter().position(|root| root.name.as_bytes() == name)?;
        Some(VisitTask::Directory { root, parent: None, path: path.to_vec(), extent, remembered: true })
    };
    extents.into_iter().filter_map(task).collect()
}

pub(super) fn walk<'a>(
    repo: &'a Repo,
    capture: &'a CaptureRequest<'a>,
    index: &'a CaptureIndex,
    packing: &'a PackWriter<'a>,
) -> Result<WalkFindings, Error> {
    let tasks = tasks(capture, index);
    let begun = tasks.iter().filter_map(|task| match task {
        VisitTask::Directory { path, extent, .. } => Some((path.clone(), extent.reach())),
        VisitTask::File { .. } => None,
    });
    let begun = capture.tracking.touched().is_some().then(|| Mutex::new(begun.collect()));
    let walk = CaptureWalk {
        repo,
        capture,
        index,
        packing,
        queue: WorkQueue::new(tasks),
        fresh: Mutex::default(),
        added: AtomicU64::new(0),
        paths: AtomicU64::new(0),
        begun,
        linked: Mutex::default(),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    std::thread::scope(|scope| {
        let mut helpers = Vec::new();
        let mut worker = CaptureWorker::new(&walk);
        let done = walk.queue.work(|task| {
            if helpers.len() + 1 < threads && walk.queue.len() >= WORTH {
                helpers.push(scope.spawn(|| {
                    let mut worker = CaptureWorker::new(&walk);
                    let done = walk.queue.work(|task| worker.work(task));
                    done.and_then(|()| worker.finish())
                }));
            }
            worker.work(task)
        });
        let mut found = done.and_then(|()| worker.finish());
        for helper in helpers {
            let more = helper.join().expect("a thread of the walk does not panic");
            found = found.and_then(|mut found| {
                found.add(more?);
                Ok(found)
            });
        }
        found
    })
}
