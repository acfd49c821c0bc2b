//! What callers note on a session for themselves, to find it again by. It means nothing to us.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const MOST_ENTRIES: usize = 50;
const LONGEST_NAME: usize = 64;
const LONGEST_VALUE: usize = 1024;

/// Names and texts, checked when they are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Metadata(BTreeMap<String, String>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMetadata {
    #[error("metadata must have at most {MOST_ENTRIES} entries, not {0}")]
    Many(usize),
    #[error("a name in metadata must be 1 to {LONGEST_NAME} bytes long: {name:?} has {bytes}")]
    Name { name: String, bytes: usize },
    #[error("a value in metadata must be at most {LONGEST_VALUE} bytes long: that of {name:?} has {bytes}")]
    Value { name: String, bytes: usize },
}

/// Something that is larger than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oversize {
    pub limit: usize,
    pub used: usize,
}

impl BadMetadata {
    /// `None`: it is wrong for another reason than its size.
    pub fn oversize(&self) -> Option<Oversize> {
        match self {
            BadMetadata::Many(used) => Some(Oversize { limit: MOST_ENTRIES, used: *used }),
            BadMetadata::Name { bytes: 0, .. } => None,
            BadMetadata::Name { bytes, .. } => Some(Oversize { limit: LONGEST_NAME, used: *bytes }),
            BadMetadata::Value { bytes, .. } => Some(Oversize { limit: LONGEST_VALUE, used: *bytes }),
        }
    }
}

impl Metadata {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn entries(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

impl TryFrom<BTreeMap<String, String>> for Metadata {
    type Error = BadMetadata;

    fn try_from(entries: BTreeMap<String, String>) -> Result<Metadata, BadMetadata> {
        if entries.len() > MOST_ENTRIES {
            return Err(BadMetadata::Many(entries.len()));
        }
        for (name, value) in &entries {
            if name.is_empty() || name.len() > LONGEST_NAME {
                let shortened = name.chars().take(LONGEST_NAME).collect();
                return Err(BadMetadata::Name { name: shortened, bytes: name.len() });
            }
            if value.len() > LONGEST_VALUE {
                return Err(BadMetadata::Value { name: name.clone(), bytes: value.len() });
            }
        }
        Ok(Metadata(entries))
    }
}

impl From<Metadata> for BTreeMap<String, String> {
    fn from(metadata: Metadata) -> BTreeMap<String, String> {
        metadata.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: impl IntoIterator<Item = (String, String)>) -> Result<Metadata, BadMetadata> {
        Metadata::try_from(entries.into_iter().collect::<BTreeMap<_, _>>())
    }

    #[test]
    fn metadata_is_bounded() {
        let many = |count: usize| (0..count).map(|n| (n.to_string(), String::new()));
        assert!(of(many(MOST_ENTRIES)).is_ok());
        assert_eq!(of(many(MOST_ENTRIES + 1)), Err(BadMetadata::Many(51)));
        let one = |name: usize, value: usize| of([("n".repeat(name), "ä".repeat(value / 2))]);
        assert!(one(LONGEST_NAME, LONGEST_VALUE).is_ok());
        assert!(matches!(one(LONGEST_NAME + 1, 0), Err(BadMetadata::Name { .. })));
        assert!(matches!(one(0, 0), Err(BadMetadata::Name { .. })));
        assert!(matches!(one(1, LONGEST_VALUE + 2), Err(BadMetadata::Value { .. })));
    }

    #[test]
    fn metadata_is_flat() {
        for bad in [r#"{"a":1}"#, r#"{"a":{"b":"c"}}"#, r#"["a"]"#, r#"{"a":null}"#, r#""a""#] {
            assert!(serde_json::from_str::<Metadata>(bad).is_err(), "{bad}");
        }
        let good = r#"{"a":"1","b":""}"#;
        let read: Metadata = serde_json::from_str(good).expect("metadata");
        assert_eq!(serde_json::to_string(&read).expect("plain"), good);
    }
}
