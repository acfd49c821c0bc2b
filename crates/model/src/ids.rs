//! Identifiers. Names that come from callers are checked here, once; what has the type is safe to use.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An event's place in its session's log: 1 is the first, and there are no gaps.
pub type EventSeq = u64;

/// A name was refused; the text says which rule it broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {rule}")]
pub struct BadName {
    /// What kind of name it is.
    pub what: &'static str,
    /// What such a name must look like.
    pub rule: &'static str,
}

macro_rules! checked_name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks a name that comes from outside.
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
    };
}

fn plain(text: &str, extra: &[u8]) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || extra.contains(&b))
}

checked_name!(
    /// A session's name, unique within its tenant; callers may bring their own.
    SessionId,
    "Session id",
    "must be 1 to 128 letters, digits, '-', '_' or '.', and not start with a dot",
    |t| (1..=128).contains(&t.len()) && !t.starts_with('.') && plain(t, b"-_.")
);

checked_name!(
    /// Whose data it is. Every look-up by a caller's id goes through one.
    TenantId,
    "Tenant id",
    "must be 1 to 64 letters, digits, '-' or '_'",
    |t| (1..=64).contains(&t.len()) && plain(t, b"-_")
);

checked_name!(
    /// Who of a tenant's people a key and a session belong to.
    OwnerId,
    "Owner",
    "must be 1 to 128 letters, digits, '-', '_', '.', '@', '+' or ':'",
    |t| (1..=128).contains(&t.len()) && plain(t, b"-_.@+:")
);

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
            // It becomes a part of a path that the engine is asked for.
            && !t.split('/').any(|part| part.is_empty() || part == "." || part == "..")
    }
);

impl Image {
    /// What engines take. Stricter than `parse`, which must read what older servers stored: for new names.
    pub fn parse_reference(text: &str) -> Result<Self, BadName> {
        let rule = "must be [registry[:port]/]name[:tag][@algorithm:digest], as `docker pull` takes it, of at most 255 \
            characters; names are lowercase letters and digits with '.', '_' or '-' between them";
        let image = crate::image::is_reference(text).then(|| Self::parse(text).ok()).flatten();
        image.ok_or(BadName { what: "Image", rule })
    }
}

impl SessionId {
    /// A random id, for callers that bring none.
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
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id; later ones sort behind earlier ones.
            pub fn fresh() -> Self {
                Self(Uuid::now_v7())
            }

            /// Reads an id that comes from outside.
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
    /// One message and everything until the agent rests. Also the idempotency key given to the agent.
    TurnId
);
uuid_id!(
    /// A directory tree with its checkpoints. Directories carry this, never a caller's id.
    WorkspaceId
);
uuid_id!(
    /// One time that an agent asked for leave.
    PermissionId
);
uuid_id!(
    /// One life of one shim: journal offsets mean something only within it.
    Incarnation
);

/// A session's number inside this database. Whoever holds one has passed the tenant check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionRowId(pub i64);

/// Which hold on a workspace a write belongs to; an older one writes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
