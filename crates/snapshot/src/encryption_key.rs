//! A tenant's key. Deleting it makes everything that was written with it unreadable, in every copy.

use std::fmt;

use chacha20poly1305::aead::{Aead, AeadCore, OsRng, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use secrecy::{ExposeSecret, SecretBox};

const NONCE: usize = 24;
const SEALING: &str = "ash snapshot 1 sealing";

/// The key that seals packs.
#[derive(Clone)]
pub struct EncryptionKey(std::sync::Arc<SecretBox<[u8; 32]>>);

impl EncryptionKey {
    /// A key of these bytes; the last copy wipes them when it is dropped.
    pub fn new(bytes: [u8; 32]) -> EncryptionKey {
        EncryptionKey(std::sync::Arc::new(SecretBox::new(Box::new(bytes))))
    }

    /// Parses a key file: 32 bytes, or 64 hexadecimal digits with an optional line break.
    pub fn parse(file: &[u8]) -> Option<EncryptionKey> {
        if let Ok(bytes) = <[u8; 32]>::try_from(file) {
            return Some(EncryptionKey::new(bytes));
        }
        let digits = std::str::from_utf8(file).ok()?.trim_end();
        let hex = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate().filter(|_| hex) {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        }
        hex.then(|| EncryptionKey::new(bytes))
    }

    pub(crate) fn derive(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, self.0.expose_secret())
    }

    /// `nonce ‖ ciphertext ‖ tag`. `place` is authenticated too, so a block that was moved elsewhere does not open.
    pub(crate) fn seal(&self, plain: &[u8], place: &[u8]) -> Vec<u8> {
        let nonce = XChaCha20Poly1305::generate_nonce(&mut OsRng);
        let sealed = self.cipher().encrypt(&nonce, Payload { msg: plain, aad: place });
        // Sealing fails only beyond 256 GiB.
        [&nonce[..], &sealed.expect("a block is small")].concat()
    }

    pub(crate) fn open(&self, sealed: &[u8], place: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_at_checked(NONCE)?;
        let nonce: [u8; NONCE] = nonce.try_into().ok()?;
        self.cipher().decrypt(&nonce.into(), Payload { msg: rest, aad: place }).ok()
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&self.derive(SEALING).into())
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_bytes_or_as_digits() {
        let same =
            |file: &[u8]| EncryptionKey::parse(file).is_some_and(|key| *key.0.expose_secret() == [0xab; 32]);
        let digits = "aB".repeat(32);
        assert!(same(&[0xab; 32]) && same(digits.as_bytes()) && same(format!("{digits}\n").as_bytes()));
        for bad in [&b""[..], &[0xab; 31], &digits.as_bytes()[1..], "zz".repeat(32).as_bytes()] {
            assert!(EncryptionKey::parse(bad).is_none());
        }
    }
}
