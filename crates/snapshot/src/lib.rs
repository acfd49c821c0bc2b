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

pub use disk::{Death, Disk};
pub use error::{Error, Trouble};
pub use far::{Beginning, Far, Fetched, Part};
pub use folder::{FileInfo, Folder, Kind, Links, Listed, Owner, Stat, Weight};
pub use key::Key;
pub use path::{BadPath, RelPath};
pub use repo::{
    Arriving, Audit, Audited, Capture, Change, Collected, ContentId, Depth, Difference, Donor, Doubt, Entry,
    Exclude, FileContent, Hurt, Leaf, LeafKind, Lock, Locked, Progress, Repo, Restored, Root, Skipped,
    Snapshot, Taken, Target, Tell, Tracking, Unchanged, UnderWay, Verified, Wanted, What, Why, changes,
};
pub use retain::{Moment, Rules};
pub use tree_id::{BadTreeId, TreeId};
pub use watch::{Mapped, Mappings, Names, Touched, Tracked, Unwatched, Watch, mapped_writable, sync_mapped};
