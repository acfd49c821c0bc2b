//! Identifiers. Parsing checks the names of callers once, so a value of these types is safe to use.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An event's position in its session's log: 1 is the first, and there are no gaps.
pub type EventSeq = u64;

/// An invalid name, with the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {rule}")]
pub struct BadName {
    /// The kind of name.
    pub what: &'static str,
    /// The rule for such names.
    pub rule: &'static str,
}

macro_rules! checked_name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks an untrusted name.
            pub fn parse(text: &str) -> Result<Self, BadName> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(text.to_owned())) } else { Err(BadName { what: $what, rule: $rule }) }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                crate::schema::text(format!("{} {}.", $what, $rule))
            }
        }

        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
        }
    };
}

fn plain(text: &str, extra: &[u8]) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || extra.contains(&b))
}

checked_name!(
    /// A session's name, unique within its tenant; callers may choose it.
    SessionId,
    "Session id",
    "must be 1 to 128 letters, digits, '-', '_' or '.', and not start with a dot",
    |t| (1..=128).contains(&t.len()) && !t.starts_with('.') && plain(t, b"-_.")
);

checked_name!(
    /// The tenant that owns the data. Every look-up by a caller's id requires one.
    TenantId,
    "Tenant id",
    "must be 1 to 64 letters, digits, '-' or '_'",
    |t| (1..=64).contains(&t.len()) && plain(t, b"-_")
);

checked_name!(
    /// The owner within a tenant to whom a key and a session belong.
    OwnerId,
    "Owner",
    "must be 1 to 128 letters, digits, '-', '_', '.', '@', '+' or ':'",
    |t| (1..=128).contains(&t.len()) && plain(t, b"-_.@+:")
);

checked_name!(
    /// The id of a stored credential.
    CredentialId,
    "Credential id",
    "must be 36 lowercase hexadecimal digits and '-'",
    |t| t.len() == 36 && t.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-'))
);

impl CredentialId {
    /// A new, random id.
    pub fn fresh() -> CredentialId {
        CredentialId(Uuid::new_v4().to_string())
    }
}

checked_name!(
    /// An agent's name.
    AgentName,
    "Agent name",
    "must be 1 to 255 letters, digits, '-' or '_'",
    |t| (1..=255).contains(&t.len()) && plain(t, b"-_")
);

checked_name!(
    /// A shared workspace's name.
    Slug,
    "Workspace name",
    "must be 1 to 63 lowercase letters, digits or '-', and start and end with a letter or digit",
    |t| {
        (1..=63).contains(&t.len())
            && t.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !t.starts_with('-')
            && !t.ends_with('-')
    }
);

checked_name!(
    /// A container image: `name`, `registry/name:tag`, `name@sha256:…`.
    Image,
    "Image",
    "must be 1 to 255 letters, digits, '.', '_', '-', '/', ':' or '@', and start with a letter or digit",
    |t| {
        (1..=255).contains(&t.len())
            && plain(t, b"._-/:@")
            && t.as_bytes()[0].is_ascii_alphanumeric()
            // Each part becomes a path segment of a request to the engine.
            && !t.split('/').any(|part| part.is_empty() || part == "." || part == "..")
    }
);

impl Image {
    /// The grammar of container engines, for new names. `parse` is less strict, because it must read what older servers
    /// stored.
    pub fn parse_reference(text: &str) -> Result<Self, BadName> {
        let rule = "must be [registry[:port]/]name[:tag][@algorithm:digest], as `docker pull` takes it, of at most 255 \
            characters; names are lowercase letters and digits with '.', '_' or '-' between them";
        let image = crate::image::is_reference(text).then(|| Self::parse(text).ok()).flatten();
        image.ok_or(BadName { what: "Image", rule })
    }
}

impl SessionId {
    /// A random id, for callers that choose none.
    pub fn fresh() -> Self {
        Self(Uuid::new_v4().to_string())
    }
}

impl TenantId {
    /// The tenant of a server that has only one.
    pub fn main() -> Self {
        Self("default".to_owned())
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id; later ids sort after earlier ones.
            pub fn fresh() -> Self {
                Self(Uuid::now_v7())
            }

            /// Parses an untrusted id.
            pub fn parse(text: &str) -> Option<Self> {
                Uuid::try_parse(text).ok().map(Self)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_id!(
    /// One message and all work until the agent is idle. Also the idempotency key that the agent gets.
    TurnId
);
uuid_id!(
    /// A directory tree with its checkpoints. Directories are named after this, never after a caller's id.
    WorkspaceId
);
uuid_id!(
    /// One permission request of an agent.
    PermissionId
);
uuid_id!(
    /// One call of a client's tool.
    ToolRequestId
);
uuid_id!(
    /// One run of one shim: journal offsets are valid only within it.
    Incarnation
);

/// A session's number in this database. Code gets one only after the tenant check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionRowId(pub i64);

/// The number of a hold on a workspace; a write with an older epoch is refused.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_ids_that_could_be_paths_are_refused() {
        for bad in ["", ".", "..", ".x", "a/b", "a\\b", "a b", "a\0", "ä", &"x".repeat(129)] {
            assert!(SessionId::parse(bad).is_err(), "{bad:?} was accepted");
        }
        for good in ["a", "user-123-task-456", "A_b.c", &"x".repeat(128)] {
            assert_eq!(SessionId::parse(good).expect(good).as_str(), good);
        }
    }

    #[test]
    fn a_name_is_checked_when_it_is_read_from_json() {
        assert!(serde_json::from_str::<SessionId>("\"../x\"").is_err());
        assert!(serde_json::from_str::<Slug>("\"-x\"").is_err());
        assert!(serde_json::from_str::<Slug>("\"my-project\"").is_ok());
    }
}
