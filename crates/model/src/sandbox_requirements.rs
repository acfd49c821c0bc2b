//! What an agent wants of its sandboxes besides an image and limits: scripts that are run in them, calls that are
//! refused otherwise, and some that are made before they are wanted. Kept with each version, as JSON: a stored format, see `docs/formats.md`.

use serde::{Deserialize, Serialize};

/// What an agent's sandboxes need beyond an image and limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxRequirements {
    /// It has an `install.sh`, which may take so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install_seconds: Option<u64>,
    /// The same for its `startup.sh`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_seconds: Option<u64>,
    /// Its work takes user namespaces of its own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub user_namespaces: bool,
    /// So many of its sandboxes are kept ready for whoever comes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prewarm: Option<u32>,
}

impl SandboxRequirements {
    /// How long scripts may take if nobody says so: an installation fetches and compiles, a start waits for somebody.
    pub const INSTALL_SECONDS: u64 = 600;
    /// The usual limit for `startup.sh`, in seconds.
    pub const STARTUP_SECONDS: u64 = 60;

    /// Whether nothing is asked for.
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
