//! Metadata that callers attach to a session, for example to find it. The server does not interpret it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const MAX_ENTRIES: usize = 50;
const MAX_NAME_BYTES: usize = 64;
const MAX_VALUE_BYTES: usize = 1024;

/// Names and texts, validated at construction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct SessionMetadata(BTreeMap<String, String>);

/// Why entries are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMetadata {
    /// There are too many entries: this many.
    #[error("metadata must have at most {MAX_ENTRIES} entries, not {0}")]
    Many(usize),
    /// A name is empty or too long.
    #[error("a name in metadata must be 1 to {MAX_NAME_BYTES} bytes long: {name:?} has {bytes}")]
    Name {
        /// The name, shortened.
        name: String,
        /// Its length in bytes.
        bytes: usize,
    },
    /// A value is too long.
    #[error("a value in metadata must be at most {MAX_VALUE_BYTES} bytes long: that of {name:?} has {bytes}")]
    Value {
        /// The name that it has.
        name: String,
        /// Its length in bytes.
        bytes: usize,
    },
}

/// Metadata over a size limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeLimitExceeded {
    /// The limit.
    pub limit: usize,
    /// The size.
    pub used: usize,
}

impl BadMetadata {
    /// `None`: the metadata is invalid for another reason than its size.
    pub fn oversize(&self) -> Option<SizeLimitExceeded> {
        match self {
            BadMetadata::Many(used) => Some(SizeLimitExceeded { limit: MAX_ENTRIES, used: *used }),
            BadMetadata::Name { bytes: 0, .. } => None,
            BadMetadata::Name { bytes, .. } => {
                Some(SizeLimitExceeded { limit: MAX_NAME_BYTES, used: *bytes })
            }
            BadMetadata::Value { bytes, .. } => {
                Some(SizeLimitExceeded { limit: MAX_VALUE_BYTES, used: *bytes })
            }
        }
    }
}

impl SessionMetadata {
    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All entries, by name.
    pub fn entries(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

impl TryFrom<BTreeMap<String, String>> for SessionMetadata {
    type Error = BadMetadata;

    fn try_from(entries: BTreeMap<String, String>) -> Result<SessionMetadata, BadMetadata> {
        if entries.len() > MAX_ENTRIES {
            return Err(BadMetadata::Many(entries.len()));
        }
        for (name, value) in &entries {
            if name.is_empty() || name.len() > MAX_NAME_BYTES {
                let shortened = name.chars().take(MAX_NAME_BYTES).collect();
                return Err(BadMetadata::Name { name: shortened, bytes: name.len() });
            }
            if value.len() > MAX_VALUE_BYTES {
                return Err(BadMetadata::Value { name: name.clone(), bytes: value.len() });
            }
        }
        Ok(SessionMetadata(entries))
    }
}

impl From<SessionMetadata> for BTreeMap<String, String> {
    fn from(metadata: SessionMetadata) -> BTreeMap<String, String> {
        metadata.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: impl IntoIterator<Item = (String, String)>) -> Result<SessionMetadata, BadMetadata> {
        SessionMetadata::try_from(entries.into_iter().collect::<BTreeMap<_, _>>())
    }

    #[test]
    fn metadata_is_bounded() {
        let many = |count: usize| (0..count).map(|n| (n.to_string(), String::new()));
        assert!(of(many(MAX_ENTRIES)).is_ok());
        assert_eq!(of(many(MAX_ENTRIES + 1)), Err(BadMetadata::Many(51)));
        let one = |name: usize, value: usize| of([("n".repeat(name), "ä".repeat(value / 2))]);
        assert!(one(MAX_NAME_BYTES, MAX_VALUE_BYTES).is_ok());
        assert!(matches!(one(MAX_NAME_BYTES + 1, 0), Err(BadMetadata::Name { .. })));
        assert!(matches!(one(0, 0), Err(BadMetadata::Name { .. })));
        assert!(matches!(one(1, MAX_VALUE_BYTES + 2), Err(BadMetadata::Value { .. })));
    }

    #[test]
    fn metadata_is_flat() {
        for bad in [r#"{"a":1}"#, r#"{"a":{"b":"c"}}"#, r#"["a"]"#, r#"{"a":null}"#, r#""a""#] {
            assert!(serde_json::from_str::<SessionMetadata>(bad).is_err(), "{bad}");
        }
        let good = r#"{"a":"1","b":""}"#;
        let read: SessionMetadata = serde_json::from_str(good).expect("metadata");
        assert_eq!(serde_json::to_string(&read).expect("plain"), good);
    }
}
