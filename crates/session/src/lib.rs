//! THE LIFE: what a session goes through, from its first message to its end, over the deaths of everything
//! below it. Knows no HTTP and no SQL. Read `state.rs` first, then `actor.rs`.

mod actor;
mod artifacts;
mod bounds;
mod brought;
mod calls;
mod claude_program;
mod clock;
mod common;
mod error;
mod far;
mod files;
mod follow;
mod fork;
mod history;
mod keep;
mod keyed_mutex;
mod keys;
mod ladder;
mod live;
mod logs;
mod luggage;
mod past;
mod path_list;
mod permission;
mod policy;
mod pool;
mod pricing;
mod queued;
mod retention;
mod rooms;
mod sessions;
pub mod state;
mod troubles;
mod upload;
mod witness;
mod workspaces;

pub use actor::{OptionsChange, WantedLock};
pub use artifacts::{Artifacts, Proposed};
pub use ash_snapshot::Change;
pub use claude_program::ClaudeProgram;
pub use clock::{Reading, TrustedClock};
pub use error::{Error, Result};
pub use far::{ClaimConflict, ClaimRecord, Claimant, Far, FarSession, Returned};
pub use files::{FileSource, Found as FoundFile, Place, TreeState, is_closed};
pub use follow::{Follower, Heard, Restoring};
pub use fork::Fork;
pub use keep::{Keep, Swept};
pub use keyed_mutex::KeyedMutex;
pub use live::Uids;
pub use logs::{Level, LogLine};
pub use past::Past;
pub use pool::Counts;
pub use retention::{Leaving, Retention, Rule, before, is_at_rest};
pub use rooms::{Rooms, Settings, Touched, Watch};
pub use sessions::{Executed, LocklessWrite, NewSession, Prompt, Reserved, Sessions};
pub use state::{Phase, Refused, Turn, Wake, plain_text};
pub use troubles::{ServerTrouble, Troubles};
pub use upload::{Upload, weight_of};
pub use witness::{Behind, Compared, IdFrom, Repair, RepairedSession};

/// Work that waits for a disk, where it holds nobody up.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Gone)?
}
