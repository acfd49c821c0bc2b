//! The files: what a sandbox wrote, touched safely, and kept as snapshots.
//!
//! [`Folder`] is the only way by which the host touches anything a sandbox can write. [`Repo`] turns folders
//! into snapshots and back. Everything here blocks; async callers use `spawn_blocking`.

mod codec;
mod cut;
mod cutting;
mod disk;
mod error;
mod far;
mod folder;
mod id;
mod index;
mod key;
mod object;
mod pack;
mod path;
mod repo;
mod retain;
mod tree_id;
mod watch;

pub use disk::{DiskWriter, SimulatedCrash};
pub use error::{Error, SnapshotErrorKind};
pub use far::{FetchProgress, PackPrefix, PackRange, RemotePackSource};
pub use folder::{DiskUsage, FileInfo, FileKind, FileOwner, FileStat, Folder, FolderEntry, LinkPolicy};
pub use key::EncryptionKey;
pub use path::{BadPath, RelPath};
pub use repo::{
    CaptureGuard, CaptureRequest, CaptureRoot, CapturedSnapshot, ChangeTracking, ContentId, DamagedSnapshot,
    DifferenceKind, DonorTree, ExcludeFilter, FileContentReader, FileEntry, FileEntryKind, FolderCheck,
    FolderCheckMethod, FolderDifference, GcReport, GcRoots, MismatchPolicy, PackImport, PathChange, Repo,
    RepoLock, RepoLockMode, RestoreReport, RestoreTarget, SkipReason, SkippedEntry, SnapshotEntry,
    SnapshotInfo, SnapshotProgress, SummaryNote, UnchangedPolicy, VerifyDepth, VerifyReport, changes,
};
pub use retain::{RetentionCandidate, SnapshotRetention};
pub use tree_id::{BadTreeId, TreeId};
pub use watch::{
    FilesystemWatch, MappedFile, SharedMappings, TouchedNames, TouchedPaths, TrackedFolder, WatchError,
    mapped_writable, sync_mapped,
};
