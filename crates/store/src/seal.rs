//! Secrets of callers: encrypted in the database, never shown, never logged.

use crate::Error;
use ash_model::{SessionId, TenantId};
use base64::{Engine, engine::general_purpose::STANDARD};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, AeadCore, OsRng},
};
use secrecy::{ExposeSecret, SecretString};
use std::{collections::BTreeMap, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

/// The prefix of the pseudonyms of purged sessions. No session id has a colon.
pub const PURGED: &str = "purged:";

/// Environment variables whose values are secret.
#[derive(Clone, Default, Debug)]
pub struct SecretEnv(pub BTreeMap<String, SecretString>);

impl SecretEnv {
    /// Marks plain values as secret.
    pub fn from_plain(plain: BTreeMap<String, String>) -> Self {
        Self(plain.into_iter().map(|(name, value)| (name, value.into())).collect())
    }

    /// The plain values, for the sandbox that needs them.
    pub fn expose(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(name, value)| (name.clone(), value.expose_secret().to_owned())).collect()
    }

    /// Both sets of variables. Values of `later` replace earlier ones.
    pub fn merged_with(mut self, later: SecretEnv) -> SecretEnv {
        self.0.extend(later.0);
        self
    }
}

/// The server's key for secrets in the database.
pub struct SealingKey {
    cipher: XChaCha20Poly1305,
    /// The key of pseudonyms, so that only a caller who knows a session's id can find its pseudonym.
    names: [u8; 32],
}

impl SealingKey {
    /// Reads the key file, or creates one that only this user can read.
    pub fn open(path: &Path) -> std::io::Result<SealingKey> {
        match std::fs::read(path) {
            Ok(key) if key.len() == 32 => Ok(SealingKey::with(&key)),
            Ok(_) => Err(std::io::Error::other(format!("{} must hold exactly 32 bytes", path.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => SealingKey::make(path),
            Err(error) => Err(error),
        }
    }

    fn make(path: &Path) -> std::io::Result<SealingKey> {
        let key = XChaCha20Poly1305::generate_key(&mut OsRng);
        // A crash here must not leave a short key behind under the final name.
        let fresh = path.with_extension("new");
        let mut file =
            std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
        file.write_all(&key)?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)?;
        Ok(SealingKey::with(&key))
    }

    fn with(key: &[u8]) -> SealingKey {
        let names = blake3::derive_key("ash names of purged sessions", key);
        SealingKey { cipher: XChaCha20Poly1305::new(key.into()), names }
    }

    /// The pseudonym of a purged session in the audit: always the same, and not reversible without the id.
    pub(crate) fn pseudonym(&self, tenant: &TenantId, id: &SessionId) -> String {
        let hash = blake3::keyed_hash(&self.names, format!("{tenant}/{id}").as_bytes());
        format!("{PURGED}{}", &hash.to_hex()[..16])
    }

    pub(crate) fn seal(&self, env: &SecretEnv) -> Option<String> {
        if env.0.is_empty() {
            return None;
        }
        let plain = serde_json::to_vec(&env.expose()).expect("a map of strings");
        let nonce = XChaCha20Poly1305::generate_nonce(&mut OsRng);
        let sealed =
            self.cipher.encrypt(&nonce, plain.as_slice()).expect("encryption of a small buffer in memory");
        Some(STANDARD.encode([&nonce[..], &sealed].concat()))
    }

    pub(crate) fn unseal(&self, sealed: Option<&str>) -> Result<SecretEnv, Error> {
        let Some(sealed) = sealed else { return Ok(SecretEnv::default()) };
        let bytes = STANDARD.decode(sealed).map_err(|_| Error::Sealed)?;
        let (nonce, sealed) = bytes.split_at_checked(24).ok_or(Error::Sealed)?;
        let nonce: [u8; 24] = nonce.try_into().map_err(|_| Error::Sealed)?;
        let plain = self.cipher.decrypt(&XNonce::from(nonce), sealed).map_err(|_| Error::Sealed)?;
        Ok(SecretEnv::from_plain(serde_json::from_slice(&plain).map_err(|_| Error::Sealed)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_only_with_the_same_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let seal = SealingKey::open(&dir.path().join("a")).expect("a key");
        let env = SecretEnv::from_plain([("TOKEN".to_owned(), "hunter2".to_owned())].into());
        let sealed = seal.seal(&env).expect("something to seal");
        assert!(!sealed.contains("hunter2"));
        let again = SealingKey::open(&dir.path().join("a")).expect("the same key");
        assert_eq!(again.unseal(Some(&sealed)).expect("opens").expose(), env.expose());
        let other = SealingKey::open(&dir.path().join("b")).expect("another key");
        assert!(matches!(other.unseal(Some(&sealed)), Err(Error::Sealed)));
    }
}
