//! API keys: random, shown once, kept as hashes.

use ash_model::{TenantId, Timestamp};
use ash_store::{AccessScope, ApiKey, AuditActor, KeyStore};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// The rule by which a server without a key makes one.
const BOOTSTRAP: &str = "bootstrap";

pub(crate) fn hash_key(key: &str) -> String {
    blake3::hash(key.as_bytes()).to_hex().to_string()
}

/// In constant time: blake3's comparison of hashes is.
pub(crate) fn constant_time_eq(one: &str, other: &str) -> bool {
    blake3::hash(one.as_bytes()) == blake3::hash(other.as_bytes())
}

/// What keys are made from whose making may be tried again: nobody keeps their text, so it is derived anew.
#[derive(Clone)]
pub(crate) struct ApiKeyDerivationKey([u8; 32]);

impl ApiKeyDerivationKey {
    pub(crate) fn of(seal: &Path) -> Result<ApiKeyDerivationKey, ash_session::Error> {
        let seal = fs::read(seal).map_err(|source| ash_session::Error::Io {
            what: format!("cannot read {}", seal.display()),
            source,
        })?;
        Ok(ApiKeyDerivationKey(blake3::derive_key("ash 2026 api keys that can be made again", &seal)))
    }

    pub(crate) fn derive_key_text(&self, id: &str) -> String {
        let hash = blake3::keyed_hash(&self.0, id.as_bytes());
        format!("ash_{}", URL_SAFE_NO_PAD.encode(&hash.as_bytes()[..24]))
    }
}

fn random_key() -> std::io::Result<String> {
    let mut bytes = [0u8; 24];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("ash_{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// A new key for a tenant, or for one owner there. The text is not kept anywhere.
pub(crate) async fn create_key(
    store: &dyn KeyStore,
    AccessScope { tenant, owner }: AccessScope,
    label: String,
    by: AuditActor,
) -> Result<(ApiKey, String), ash_session::Error> {
    let text = random_key()
        .map_err(|source| ash_session::Error::Io { what: "no random numbers".to_owned(), source })?;
    let key =
        ApiKey { id: uuid::Uuid::new_v4().to_string(), tenant, owner, label, created_at: Timestamp::now() };
    store.add_key(key.clone(), hash_key(&text), by).await?;
    Ok((key, text))
}

/// A key that the same try made before, or makes now. None: what it made before is gone, and stays gone.
pub(crate) async fn create_key_idempotently(
    store: &dyn KeyStore,
    key: ApiKey,
    (text, again): (&str, bool),
    by: AuditActor,
) -> Result<Option<ApiKey>, ash_session::Error> {
    if again {
        let is_there = store.key(&hash_key(text)).await?.is_some_and(|there| there.id == key.id);
        return Ok(is_there.then_some(key));
    }
    store.add_key(key.clone(), hash_key(text), by).await?;
    Ok(Some(key))
}

/// Without a key of the operator's, there is one in a file that only they can read.
pub(crate) async fn bootstrap(store: &dyn KeyStore, file: &Path) -> Result<(), ash_session::Error> {
    let tenant = TenantId::main();
    if let Ok(text) = fs::read_to_string(file)
        && store
            .key(&hash_key(text.trim()))
            .await?
            .is_some_and(|key| key.tenant == tenant && key.owner.is_none())
    {
        return Ok(());
    }
    let is_first = store.keys(&tenant).await?.is_empty();
    let label = if is_first { "auto-generated" } else { "cli-recovery" };
    // A database that was lost or rebuilt knows no key: who has the one in the file goes on with it.
    if let Some(text) = fs::read_to_string(file).ok().filter(|text| is_first && is_key(text.trim())) {
        let key = ApiKey {
            id: uuid::Uuid::new_v4().to_string(),
            tenant,
            owner: None,
            label: label.to_owned(),
            created_at: Timestamp::now(),
        };
        return Ok(store.add_key(key, hash_key(text.trim()), AuditActor::of_rule(BOOTSTRAP)).await?);
    }
    let (_, text) =
        create_key(store, AccessScope::all(&tenant), label.to_owned(), AuditActor::of_rule(BOOTSTRAP))
            .await?;
    write_private(file, &text)
        .map_err(|source| ash_session::Error::Io { what: format!("cannot write {}", file.display()), source })
}

/// Whether it looks like one that this program made.
fn is_key(text: &str) -> bool {
    text.strip_prefix("ash_").is_some_and(|rest| rest.len() == 32)
}

fn write_private(file: &Path, text: &str) -> std::io::Result<()> {
    let fresh = file.with_extension("new");
    fs::remove_file(&fresh)
        .or_else(|error| if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
    let mut to = fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(&fresh)?;
    writeln!(to, "{text}")?;
    to.sync_all()?;
    fs::rename(&fresh, file)
}
