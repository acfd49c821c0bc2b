//! What an agent requires of its sandboxes besides an image and limits: setup scripts, system calls that are otherwise
//! refused, and prewarming. Stored as JSON with each version: see `docs/formats.md`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What an agent's sandboxes need beyond an image and limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxRequirements {
    /// The agent has an `install.sh`, which may take this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub install_seconds: Option<u64>,
    /// The agent has a `startup.sh`, which may take this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub startup_seconds: Option<u64>,
    /// Its work needs user namespaces.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub user_namespaces: bool,
    /// How many prewarmed sandboxes it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub prewarm: Option<u32>,
}

impl SandboxRequirements {
    /// The default time limit for `install.sh`, in seconds: an installation downloads and compiles.
    pub const INSTALL_SECONDS: u64 = 600;
    /// The default time limit for `startup.sh`, in seconds: a client waits for it.
    pub const STARTUP_SECONDS: u64 = 60;

    /// Whether there are no requirements.
    pub fn is_empty(&self) -> bool {
        *self == SandboxRequirements::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_stored_as_in_the_first_version() {
        let all = SandboxRequirements {
            install_seconds: Some(600),
            startup_seconds: Some(60),
            user_namespaces: true,
            prewarm: Some(2),
        };
        let stored = r#"{"installSeconds":600,"startupSeconds":60,"userNamespaces":true,"prewarm":2}"#;
        assert_eq!(serde_json::to_string(&all).expect("json"), stored);
        assert_eq!(serde_json::from_str::<SandboxRequirements>(stored).expect("read"), all);
        assert_eq!(serde_json::to_string(&SandboxRequirements::default()).expect("json"), "{}");
        assert!(serde_json::from_str::<SandboxRequirements>("{}").expect("read").is_empty());
    }
}
