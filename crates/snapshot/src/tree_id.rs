//! The name of a snapshot: a hash of what is in it. It becomes a file name, so it is checked where it enters.

use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeId(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a tree id is 64 lowercase hexadecimal digits")]
pub struct BadTreeId;

impl TreeId {
    pub fn parse(text: &str) -> Result<TreeId, BadTreeId> {
        let hex = text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        hex.then(|| TreeId(text.to_owned())).ok_or(BadTreeId)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn of(hash: blake3::Hash) -> TreeId {
        TreeId(hash.to_hex().to_string())
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
    fn only_a_hash_is_a_tree_id() {
        let id = "0123456789abcdef".repeat(4);
        assert_eq!(TreeId::parse(&id).map(|id| id.to_string()), Ok(id.clone()));
        let upper = id.to_uppercase();
        let climbing = format!("../{}", &id[3..]);
        for bad in ["", &id[1..], &upper, &climbing] {
            assert_eq!(TreeId::parse(bad), Err(BadTreeId));
        }
    }
}
