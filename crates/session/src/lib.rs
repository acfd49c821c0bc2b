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

pub use actor::{LockRequest, OptionsChange};
pub use artifacts::{ProposedPlan, SessionArtifacts};
pub use ash_snapshot::PathChange;
pub use claude_program::ClaudeProgram;
pub use clock::{ClockReading, TrustedClock};
pub use error::{Error, Result};
pub use far::{ClaimConflict, ClaimRecord, Claimant, RemoteRestoreReport, ReplicatedSession, Replicator};
pub use files::{FileLookup as FoundFile, FileSource, TreeState, WorkspaceFiles, is_closed};
pub use follow::{LogFollower, RestoreProgress, StreamItem};
pub use fork::ForkSpec;
pub use keep::{RetentionPolicy, SweepReport};
pub use keyed_mutex::KeyedMutex;
pub use live::UidPool;
pub use logs::{LogLine, LogLineSource};
pub use past::LogVisibility;
pub use pool::PoolCounts;
pub use retention::{ExpiringSession, SessionTtlRule, SessionTtlRules, earlier_by, is_at_rest};
pub use rooms::{ServiceSettings, Services, SessionObserver, TouchedOptions};
pub use sessions::{ExecOutput, LocklessWrite, NewSession, PromptSpec, SandboxReservation, Sessions};
pub use state::{CommandRefusal, Turn, TurnPhase, WakePolicy, plain_text};
pub use troubles::{ServerTrouble, ServerTroubles};
pub use upload::{WorkspaceUpload, weight_of};
pub use witness::{DatabaseComparison, IdFrom, RepairMode, RepairedSession, SessionBehindWitness};

/// Work that waits for a disk, where it holds nobody up.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Gone)?
}
