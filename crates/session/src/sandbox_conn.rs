//! The connection of a session to the sandbox in which its agent works.

use crate::{machine::RemainingBudget, workspace::Sandbox};
use ash_model::Incarnation;
use ash_sandbox::{ModelUsage, RecordStream, SandboxHandle};
use std::sync::{Arc, Mutex};

/// The sandbox, while there is one.
pub(crate) struct SandboxConn {
    pub(crate) incarnation: Incarnation,
    pub(crate) remote: SandboxHandle,
    /// The agent's number among the sandbox's processes.
    pub(crate) process: u16,
    pub(crate) records: RecordStream,
    pub(crate) position: u64,
    /// The agent has ended.
    pub(crate) exited: bool,
    /// The remaining budget that the shim was told.
    pub(crate) allowed: Option<RemainingBudget>,
    pub(crate) sandbox: Arc<Sandbox>,
}

/// Shared with a start, which may fail.
pub(crate) type StartupUsage = Arc<Mutex<Vec<ModelUsage>>>;
