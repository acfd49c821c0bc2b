//! The files of a workspace: safe access to what a sandbox wrote, and snapshots of it.
//!
//! [`Folder`] is the only way by which the host touches anything a sandbox can write. [`Repo`] turns folders into
//! snapshots and back. Everything here blocks; async callers use `spawn_blocking`.

#![warn(missing_docs)]

mod chunker;
mod codec;
mod disk_writer;
mod encryption_key;
mod error;
mod file_chunker;
mod folder;
mod index;
mod object;
mod object_id;
mod pack;
mod path;
mod remote;
mod repo;
mod retention;
mod tree_id;
mod watch;

pub use disk_writer::{DiskWriter, SimulatedCrash};
pub use encryption_key::EncryptionKey;
pub use error::{Error, SnapshotErrorKind};
pub use folder::{DiskUsage, FileInfo, FileKind, FileOwner, FileStat, Folder, FolderEntry, LinkPolicy};
pub use path::{BadPath, RelPath};
pub use remote::{FetchProgress, PackPrefix, PackRange, RemotePackSource};
pub use repo::{
    CaptureGuard, CaptureRequest, CaptureRoot, CapturedSnapshot, ChangeTracking, ContentId, DamagedSnapshot,
    DifferenceKind, DonorTree, ExcludeFilter, FileContentReader, FileEntry, FileEntryKind, FolderCheck,
    FolderCheckMethod, FolderDifference, GcReport, GcRoots, MismatchPolicy, PackImport, PathChange, Repo,
    RepoLock, RepoLockMode, RestoreReport, RestoreTarget, SkipReason, SkippedEntry, SnapshotEntry,
    SnapshotInfo, SnapshotProgress, SummaryNote, UnchangedPolicy, VerifyDepth, VerifyReport, changes,
};
pub use retention::{RetentionCandidate, SnapshotRetention};
pub use tree_id::{BadTreeId, TreeId};
pub use watch::{
    FilesystemWatch, SharedMappedFile, SharedMappings, TouchedNames, TouchedPaths, TrackedFolder, WatchError,
    mapped_writable, sync_mapped,
};
