//! The id of an object: a hash of its content. With a tenant's key it is a keyed hash, so that ids reveal nothing to
//! a reader who has only the bucket.

use std::fmt;

use crate::encryption_key::EncryptionKey;

const DIRECTORY: &str = "ash snapshot 1 directory";
const LIST: &str = "ash snapshot 1 list";
const CHUNK: &str = "ash snapshot 1 chunk";

/// The kind of an object is part of its hash, so the bytes of a file never pass for a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Chunk,
    List,
    Directory,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectId(pub(crate) [u8; 32]);

/// A pack's name: the first bytes of a hash over its content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PackId(pub(crate) [u8; 16]);

impl PackId {
    /// Stands for the pack that contains the reference.
    pub(crate) const SELF: PackId = PackId([0; 16]);

    pub(crate) fn parse(hex: &str) -> Option<PackId> {
        if hex.len() != 32 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut bytes = [0; 16];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(PackId(bytes))
    }
}

/// Computes object ids for one repository.
#[derive(Clone, Default)]
pub(crate) struct ObjectNamer {
    keys: Option<[[u8; 32]; 3]>,
}

impl ObjectNamer {
    pub(crate) fn with(key: Option<&EncryptionKey>) -> ObjectNamer {
        ObjectNamer { keys: key.map(|key| [CHUNK, LIST, DIRECTORY].map(|context| key.derive(context))) }
    }

    pub(crate) fn name(&self, sort: ObjectKind, bytes: &[u8]) -> ObjectId {
        let hash = match (&self.keys, sort) {
            (None, ObjectKind::Chunk) => blake3::hash(bytes),
            (None, ObjectKind::List) => blake3::Hasher::new_derive_key(LIST).update(bytes).finalize(),
            (None, ObjectKind::Directory) => {
                blake3::Hasher::new_derive_key(DIRECTORY).update(bytes).finalize()
            }
            (Some(keys), ObjectKind::Chunk) => blake3::keyed_hash(&keys[0], bytes),
            (Some(keys), ObjectKind::List) => blake3::keyed_hash(&keys[1], bytes),
            (Some(keys), ObjectKind::Directory) => blake3::keyed_hash(&keys[2], bytes),
        };
        ObjectId(*hash.as_bytes())
    }
}

/// Prints no keys: their holder can tell whether known content is in the repository.
impl fmt::Debug for ObjectNamer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.keys.is_some() { "Naming(***)" } else { "Naming" })
    }
}

fn hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, &self.0)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, &self.0[..6])
    }
}

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, &self.0)
    }
}

impl fmt::Debug for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, &self.0[..6])
    }
}
