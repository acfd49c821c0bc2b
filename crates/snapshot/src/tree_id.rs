//! The id of a snapshot: the hash of its content, and the pack where it begins.

use std::fmt;

use crate::object_id::{ObjectId, PackId};

const DIGITS: usize = 64 + 32;

/// 96 hexadecimal digits. The first 64 depend only on the files, not on when and how they were stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeId(String);

/// The text is not the id of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a tree id is 96 lowercase hexadecimal digits")]
pub struct BadTreeId;

impl TreeId {
    /// Parses an id from outside.
    pub fn parse(text: &str) -> Result<TreeId, BadTreeId> {
        let hex = text.len() == DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        hex.then(|| TreeId(text.to_owned())).ok_or(BadTreeId)
    }

    /// The id as hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part that identifies the files alone.
    pub fn files(&self) -> &str {
        &self.0[..64]
    }

    /// The name of the pack where the snapshot begins.
    pub fn pack_name(&self) -> &str {
        &self.0[64..]
    }

    /// Whether both snapshots have the same files, attributes included.
    pub fn same_files(&self, other: &TreeId) -> bool {
        self.files() == other.files()
    }

    pub(crate) fn new(root: &ObjectId, pack: &PackId) -> TreeId {
        TreeId(format!("{root}{pack}"))
    }

    pub(crate) fn is_of(&self, root: &ObjectId) -> bool {
        self.files() == root.to_string()
    }

    pub(crate) fn pack(&self) -> PackId {
        PackId::parse(self.pack_name()).expect("checked when it was made")
    }
}

impl fmt::Display for TreeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hashes_are_a_tree_id() {
        let id = "0123456789abcdef".repeat(6);
        assert_eq!(TreeId::parse(&id).map(|id| id.to_string()), Ok(id.clone()));
        let upper = id.to_uppercase();
        let climbing = format!("../{}", &id[3..]);
        for bad in ["", &id[1..], &upper, &climbing] {
            assert_eq!(TreeId::parse(bad), Err(BadTreeId));
        }
    }
}
