//! Replication to an object store, and restore from it. A server that lost its machine (database and packs) must be
//! able to continue from a bucket, so every committed checkpoint, log and agent is sent there, in an order in which
//! each object finds what it refers to.
//!
//! - Sending: `replicator.rs` (start reading here), `upload.rs` (what is sent, in which order), `manifest.rs`,
//!   `write_once.rs`, `object_keys.rs`, `claim.rs` (which server may write).
//! - Restore: `bucket_listing.rs`, `bring_back.rs`, `manifest_history.rs`, `rows.rs`, `pack_source.rs` (files on
//!   demand).
//! - Consistency: `census.rs` (is everything still there), `divergence.rs` (does the bucket have another history),
//!   `gc.rs`.
//! - What this machine's packs prove, also without a bucket: `repositories.rs` and `encryption_keys.rs` (the packs of
//!   each tenant), `pack_log.rs`, `pack_history.rs`, `pack_proofs.rs`, `tombstones.rs`, `witness_cache.rs`.
//!
//! This crate does not know what events mean: the caller passes the function that folds a log (`services.rs`).

mod bring_back;
mod bucket_listing;
mod census;
mod claim;
mod divergence;
mod encryption_keys;
mod error;
mod gc;
mod manifest;
mod manifest_history;
mod object_keys;
mod pack_history;
pub mod pack_log;
mod pack_proofs;
mod pack_source;
mod replicator;
mod repositories;
mod rows;
mod services;
mod tombstones;
mod upload;
mod witness_cache;
mod write_once;

pub use ash_cloud::{BucketError, BucketTraffic};
pub use bring_back::RemoteRestoreReport;
pub use bucket_listing::{ReplicatedSession, list_remote_sessions};
pub use claim::{ClaimConflict, ClaimRecord, Claimant};
pub use divergence::{is_ahead, last_common_event, workspace_epoch};
pub use error::{Error, Result};
pub use gc::RemotePackComparison;
pub use manifest_history::{ManifestHistory, RemoteHistory};
pub use pack_history::PackHistory;
pub use pack_proofs::{PackProof, PackProofs};
pub use replicator::{ReplicationTarget, Replicator};
pub use repositories::{Repositories, RepositorySettings};
pub use services::{FoldLog, FoldedLog, RemoteServices, SavingTurn, TroubleReporter};
pub use tombstones::{TombstoneMap, diverged_id, diverged_prefix};
pub use witness_cache::{SharedWitnesses, TenantWitnesses, WitnessCache, WitnessRefresh};

/// Runs work that waits for a disk on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Interrupted)?
}
