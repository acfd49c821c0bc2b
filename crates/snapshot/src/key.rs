//! A tenant's key. Whoever deletes it has deleted everything that was written with it, wherever copies are.

use std::fmt;

use chacha20poly1305::aead::{Aead, AeadCore, OsRng, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use secrecy::{ExposeSecret, SecretBox};

const NONCE: usize = 24;
const SEALING: &str = "ash snapshot 1 sealing";

#[derive(Clone)]
pub struct Key(std::sync::Arc<SecretBox<[u8; 32]>>);

impl Key {
    pub fn new(bytes: [u8; 32]) -> Key {
        Key(std::sync::Arc::new(SecretBox::new(Box::new(bytes))))
    }

    pub(crate) fn derive(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, self.0.expose_secret())
    }

    /// `nonce ‖ ciphertext ‖ tag`. `place` is bound to it: a block moved elsewhere does not open.
    pub(crate) fn seal(&self, plain: &[u8], place: &[u8]) -> Vec<u8> {
        let nonce = XChaCha20Poly1305::generate_nonce(&mut OsRng);
        let sealed = self.cipher().encrypt(&nonce, Payload { msg: plain, aad: place });
        // It fails only beyond 256 GiB.
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

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(***)")
    }
}
