//! What can die under a turn, and how it is said.

use crate::failure::Problem;
use serde::{Deserialize, Serialize};

/// What died, as far as we know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Death {
    /// The agent's process ended by itself.
    Agent {
        /// Its exit code or signal, for a person.
        how: String,
    },
    /// The sandbox ended, with every process in it.
    Sandbox {
        /// How it ended, for a person.
        how: String,
    },
    /// The kernel killed the sandbox because its memory was exhausted.
    OutOfMemory,
    /// The agent wrote a line over the limit, so we killed it.
    LineTooLong,
    /// The machine failed, or all our processes on it.
    Machine,
    /// The server was stopped on purpose during the turn.
    Shutdown,
}

impl Death {
    /// The problem that clients see, with the remedy.
    pub fn problem(&self) -> Problem {
        match self {
            Death::Agent { how } => {
                Problem::new("agent_died", format!("The agent's process ended ({how}). {RETRY}"))
            }
            Death::Sandbox { how } => {
                Problem::new("sandbox_died", format!("The sandbox ended ({how}). {RETRY}"))
            }
            Death::OutOfMemory => Problem::new(
                "sandbox_oom",
                format!(
                    "The sandbox ran out of memory and was killed. {RETRY} Raise ASH_SANDBOX_MEMORY_MB if it happens again."
                ),
            ),
            Death::LineTooLong => Problem::new(
                "line_too_long",
                format!("The agent wrote a line of over 32 MiB and was ended. {RETRY}"),
            ),
            Death::Machine => Problem::new(
                "machine_died",
                format!("The machine or the sandbox went away during the turn. {RETRY}"),
            ),
            Death::Shutdown => Problem::new(
                "server_stopped",
                "The server was stopped during the turn, which goes on when it is started again.".to_owned(),
            ),
        }
    }
}

const RETRY: &str = "Resume the session or send a message: the turn goes on first.";
