//! The files: what a sandbox wrote, touched safely, and kept as snapshots.
//!
//! [`Folder`] is the only way by which the host touches anything a sandbox can write. [`Repo`] turns folders
//! into snapshots and back. Everything here blocks; async callers use `spawn_blocking`.

mod error;
mod folder;
mod pack;
mod path;
mod repo;
mod tree_id;
mod watch;

pub use error::{Error, Trouble};
pub use folder::{FileInfo, Folder, Kind, Links, Listed, Owner, Stat};
pub use pack::Content;
pub use path::{BadPath, RelPath};
pub use repo::{
    ContentId, Difference, Entry, Leaf, LeafKind, Repo, Restored, Root, Skipped, Taken, Target, What, Why,
};
pub use tree_id::{BadTreeId, TreeId};
pub use watch::{Mapped, Mappings, Names, Touched, Tracked, Unwatched, Watch, mapped_writable, sync_mapped};
