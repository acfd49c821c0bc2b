//! Seals other files of the repository's owner, if the repository has a key.

use super::Repo;
use crate::Error;

const SEALED: &[u8] = b"ASHSEALED\x01";

impl Repo {
    /// Returns the bytes in a form that others may store. `name` is authenticated too, so they do not open under
    /// another name.
    pub fn seal(&self, plain: Vec<u8>, name: &str) -> Vec<u8> {
        match &self.key {
            Some(key) => [SEALED, &key.seal(&plain, place(name).as_bytes())].concat(),
            None => plain,
        }
    }

    /// A repository with a key refuses everything that was not sealed with it.
    pub fn unseal(&self, stored: Vec<u8>, name: &str) -> Result<Vec<u8>, Error> {
        let sealed = || Error::Sealed { pack: name.to_owned() };
        match (&self.key, stored.strip_prefix(SEALED)) {
            (None, None) => Ok(stored),
            (Some(key), Some(rest)) => key.open(rest, place(name).as_bytes()).ok_or_else(sealed),
            (None, Some(_)) | (Some(_), None) => Err(sealed()),
        }
    }

    /// Whether the repository seals what it writes.
    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Whether these bytes are sealed.
    pub fn is_sealed_blob(stored: &[u8]) -> bool {
        stored.starts_with(SEALED)
    }
}

fn place(name: &str) -> String {
    format!("object {name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskWriter, EncryptionKey};

    #[test]
    fn a_sealed_blob_opens_only_with_its_key_and_under_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = |name: &str, key| {
            Repo::open_with(&dir.path().join(name), key, DiskWriter::default()).expect("opened")
        };
        let (plain, mine, other) = (
            open("a", None),
            open("b", Some(EncryptionKey::new([1; 32]))),
            open("c", Some(EncryptionKey::new([2; 32]))),
        );
        let stored = mine.seal(b"words".to_vec(), "k");
        assert!(Repo::is_sealed_blob(&stored) && !String::from_utf8_lossy(&stored).contains("words"));
        assert_eq!(mine.unseal(stored.clone(), "k").expect("opened"), b"words");
        for (repo, name) in [(&plain, "k"), (&other, "k"), (&mine, "l")] {
            assert!(matches!(repo.unseal(stored.clone(), name), Err(Error::Sealed { .. })), "{name}");
        }
        assert_eq!(plain.seal(b"words".to_vec(), "k"), b"words");
        assert_eq!(plain.unseal(b"words".to_vec(), "k").expect("as it is"), b"words");
        assert!(
            matches!(mine.unseal(b"words".to_vec(), "k"), Err(Error::Sealed { .. })),
            "planted by another writer"
        );
    }
}
