//! Trees of other checkpoints, on their way into the place of the one in use.

mod agent_memory;
mod workspace;

pub(crate) use agent_memory::AgentMemoryTree;
pub(crate) use workspace::{ComposedTree, compose_workspace_tree};

/// A tree that is written and not in place yet.
pub(crate) struct PreparedTree {
    pub(crate) uid: Option<u32>,
    /// The uid was taken for it: there was no tree whose uid it could have.
    pub(crate) fresh: bool,
    /// Of a shared workspace.
    pub(crate) composed: Option<Box<ComposedTree>>,
}
