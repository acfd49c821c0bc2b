//! API keys: random, shown once, and stored as hashes, so that a stolen database contains no usable key.

use crate::{Error, IdempotencyKeys, IdempotentRequest, KeyedMutex, Result, services::WallClock};
use ash_model::{QuotaKind, Quotas, TenantId};
use ash_store::{AccessScope, ApiKey, AuditActor, Store};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
};

/// The name of the rule, for the audit, by which a server without a key creates one.
const BOOTSTRAP: &str = "bootstrap";

pub fn hash_key(key: &str) -> String {
    blake3::hash(key.as_bytes()).to_hex().to_string()
}

/// Compares in constant time, because blake3 compares hashes in constant time.
pub fn constant_time_eq(one: &str, other: &str) -> bool {
    blake3::hash(one.as_bytes()) == blake3::hash(other.as_bytes())
}

/// A key whose request may be repeated is derived from this secret and the key's id. Its text is stored nowhere, and a
/// retry still gets the same text.
#[derive(Clone)]
pub struct ApiKeyDerivationKey([u8; 32]);

impl ApiKeyDerivationKey {
    pub fn of(seal: &Path) -> Result<ApiKeyDerivationKey> {
        let seal = fs::read(seal).map_err(Error::io(format!("cannot read {}", seal.display())))?;
        Ok(ApiKeyDerivationKey(blake3::derive_key("ash 2026 api keys that can be made again", &seal)))
    }

    fn derive_key_text(&self, id: &str) -> String {
        let hash = blake3::keyed_hash(&self.0, id.as_bytes());
        format!("ash_{}", URL_SAFE_NO_PAD.encode(&hash.as_bytes()[..24]))
    }
}

/// A key to create, for a tenant or for one of its owners.
#[derive(Debug, Clone)]
pub struct NewApiKey {
    pub scope: AccessScope,
    pub label: String,
    pub by: AuditActor,
}

/// A key and its text, which is not stored.
pub struct CreatedApiKey {
    pub key: ApiKey,
    pub text: String,
}

/// What creating keys needs.
#[derive(Clone)]
pub struct ApiKeyServices {
    pub store: Arc<dyn Store>,
    pub clock: WallClock,
    pub idempotency: IdempotencyKeys,
    pub quotas: Quotas,
    pub derivation: ApiKeyDerivationKey,
}

/// The API keys of all tenants.
#[derive(Clone)]
pub struct Keys {
    services: ApiKeyServices,
    /// Serializes the counting and creating of one tenant's keys.
    creating: Arc<KeyedMutex<TenantId>>,
}

impl Keys {
    pub fn new(services: ApiKeyServices) -> Keys {
        Keys { services, creating: Arc::default() }
    }

    /// The key with this text.
    pub async fn find(&self, text: &str) -> Result<Option<ApiKey>> {
        Ok(self.services.store.key(&hash_key(text)).await?)
    }

    /// The key with this id, unless it was removed.
    pub async fn find_by_id(&self, id: &str) -> Result<Option<ApiKey>> {
        Ok(self.services.store.key_by_id(id).await?)
    }

    pub async fn list(&self, tenant: &TenantId) -> Result<Vec<ApiKey>> {
        Ok(self.services.store.keys(tenant).await?)
    }

    /// Creates a key, unless the tenant has reached its limit. A repeated request gets the key that it created before.
    pub async fn create(&self, new: NewApiKey, request: Option<&IdempotentRequest>) -> Result<CreatedApiKey> {
        let tenant = &new.scope.tenant;
        let _alone = self.creating.lock(tenant.clone()).await;
        let ApiKeyServices { store, idempotency, quotas, derivation, .. } = &self.services;
        // Before the idempotency key is claimed, so that a refused request leaves none behind. A repeated request
        // creates nothing more, so it needs no check.
        if idempotency.used(request).await?.is_none() {
            let count = store.keys(tenant).await?.len();
            quotas.admit(QuotaKind::Keys, count as u64, 1)?;
        }
        let id = uuid::Uuid::new_v4().to_string();
        if request.is_none() {
            let text = random_key_text()?;
            return self.add(id, text, new).await;
        }
        let claim = idempotency.claim(request, id).await?;
        let text = derivation.derive_key_text(&claim.resource);
        if !claim.is_replay {
            return self.add(claim.resource, text, new).await;
        }
        let known = self.find(&text).await?.filter(|known| known.id == claim.resource);
        match known {
            Some(_) => Ok(CreatedApiKey { key: self.row(claim.resource, new.scope, new.label), text }),
            None => Err(Error::ApiKeyGone),
        }
    }

    /// Returns false if there is no such key.
    pub async fn remove(&self, tenant: &TenantId, id: &str, by: AuditActor) -> Result<bool> {
        Ok(self.services.store.remove_key(tenant, id, (self.services.clock)(), by).await?)
    }

    /// If the operator sets no key, creates one in a file that only the operator can read.
    pub async fn bootstrap(&self, file: &Path) -> Result<()> {
        let tenant = TenantId::main();
        let written = fs::read_to_string(file).ok();
        if let Some(text) = &written
            && self.find(text.trim()).await?.is_some_and(|key| key.tenant == tenant && key.owner.is_none())
        {
            return Ok(());
        }
        let is_first = self.services.store.keys(&tenant).await?.is_empty();
        let label = if is_first { "auto-generated" } else { "cli-recovery" }.to_owned();
        let by = AuditActor::of_rule(BOOTSTRAP);
        let new = NewApiKey { scope: AccessScope::all(&tenant), label, by };
        let id = uuid::Uuid::new_v4().to_string();
        // A lost or rebuilt database has no keys: the key in the file stays valid.
        if let Some(text) = written.filter(|text| is_first && is_key(text.trim())) {
            return self.add(id, text.trim().to_owned(), new).await.map(drop);
        }
        let made = self.add(id, random_key_text()?, new).await?;
        write_private(file, &made.text).map_err(Error::io(format!("cannot write {}", file.display())))
    }

    async fn add(&self, id: String, text: String, new: NewApiKey) -> Result<CreatedApiKey> {
        let key = self.row(id, new.scope, new.label);
        self.services.store.add_key(key.clone(), hash_key(&text), new.by).await?;
        Ok(CreatedApiKey { key, text })
    }

    fn row(&self, id: String, AccessScope { tenant, owner }: AccessScope, label: String) -> ApiKey {
        ApiKey { id, tenant, owner, label, created_at: (self.services.clock)() }
    }
}

fn random_key_text() -> Result<String> {
    let mut bytes = [0u8; 24];
    fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(Error::io("no random numbers"))?;
    Ok(format!("ash_{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// Whether the text looks like a key that this program created.
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

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::Timestamp;
    use ash_store::{SealingKey, SqliteStore};

    async fn keys(dir: &Path, quotas: &str) -> Keys {
        let seal = dir.join("seal.key");
        let sealing = SealingKey::open(&seal).expect("a key");
        let store = SqliteStore::open(&dir.join("ash.db"), sealing).await.expect("a database");
        let (store, clock): (Arc<dyn Store>, WallClock) = (Arc::new(store), Timestamp::now);
        let derivation = ApiKeyDerivationKey::of(&seal).expect("a key");
        let quotas = Quotas::parse(quotas).expect("quotas");
        let idempotency = IdempotencyKeys::new(store.clone(), clock);
        Keys::new(ApiKeyServices { store, clock, idempotency, quotas, derivation })
    }

    fn new_key() -> NewApiKey {
        let by = AuditActor::of_rule("test");
        NewApiKey { scope: AccessScope::all(&TenantId::main()), label: "a".to_owned(), by }
    }

    fn request(key: &str, body: &str) -> IdempotentRequest {
        IdempotentRequest::new(
            &AccessScope::all(&TenantId::main()),
            "POST /keys",
            key,
            &blake3::hash(body.as_bytes()),
        )
    }

    #[tokio::test]
    async fn a_repeated_request_gets_the_key_that_it_made_until_that_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let keys = keys(dir.path(), "").await;
        let again = request("one", "{}");
        let first = keys.create(new_key(), Some(&again)).await.expect("made");
        let second = keys.create(new_key(), Some(&again)).await.expect("the same");
        assert_eq!((&first.key.id, &first.text), (&second.key.id, &second.text));
        let found = keys.find(&first.text).await.expect("read").expect("there");
        assert_eq!(found.id, first.key.id);
        let other_body = keys.create(new_key(), Some(&request("one", "{ }"))).await;
        assert!(matches!(other_body, Err(Error::IdempotencyKeyReused)));
        let by = AuditActor::default();
        assert!(keys.remove(&TenantId::main(), &first.key.id, by).await.expect("removed"));
        assert!(matches!(keys.create(new_key(), Some(&again)).await, Err(Error::ApiKeyGone)));
    }

    #[tokio::test]
    async fn a_key_beyond_the_quota_is_refused_and_its_idempotency_key_stays_free() {
        let dir = tempfile::tempdir().expect("a directory");
        let keys = keys(dir.path(), "keys=1").await;
        let first = keys.create(new_key(), None).await.expect("made");
        let refused = request("two", "{}");
        assert!(matches!(keys.create(new_key(), Some(&refused)).await, Err(Error::Quota(_))));
        assert!(keys.remove(&TenantId::main(), &first.key.id, AuditActor::default()).await.expect("removed"));
        keys.create(new_key(), Some(&refused)).await.expect("made");
        keys.create(new_key(), Some(&refused)).await.expect("the same, although the quota is reached");
    }

    #[tokio::test]
    async fn a_server_without_a_key_makes_one_and_goes_on_with_it_after_its_database_was_lost() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("initial-api-key");
        keys(dir.path(), "").await.bootstrap(&file).await.expect("made");
        let text = fs::read_to_string(&file).expect("a key");
        let other = tempfile::tempdir().expect("a directory");
        let rebuilt = keys(other.path(), "").await;
        rebuilt.bootstrap(&file).await.expect("goes on");
        assert_eq!(fs::read_to_string(&file).expect("a key"), text);
        assert!(rebuilt.find(text.trim()).await.expect("read").is_some());
    }
}
