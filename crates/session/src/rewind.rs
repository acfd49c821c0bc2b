//! Trees of other checkpoints that are about to replace the current tree.

mod agent_memory;
mod workspace;

pub(crate) use agent_memory::AgentMemoryTree;
pub(crate) use workspace::{ComposedTree, compose_workspace_tree};

use crate::{Error, Result};
use ash_store::Checkpoint;

/// A tree that is written and not in place yet.
pub(crate) struct PreparedTree {
    pub(crate) uid: Option<u32>,
    /// The uid was allocated for this tree, because there was no tree whose uid it could take over.
    pub(crate) fresh: bool,
    /// Of a shared workspace.
    pub(crate) composed: Option<Box<ComposedTree>>,
}

/// Refuses a checkpoint whose files were removed.
pub(crate) fn with_files(checkpoint: Checkpoint) -> Result<Checkpoint> {
    match checkpoint.removed_at {
        Some(_) => Err(Error::Removed(checkpoint.number)),
        None => Ok(checkpoint),
    }
}
