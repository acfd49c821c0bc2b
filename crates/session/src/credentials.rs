//! Stored credentials: keys for model services that a tenant sends once, and that its sessions use by their id. The key
//! leaves the store only for the proxy outside of a session's sandbox, again at every start.

use crate::{Error, KeyedMutex, Result, services::WallClock};
use ash_model::{CredentialId, CredentialKind, ModelApiDialect, QuotaKind, Quotas, TenantId};
use ash_store::{AccessScope, AuditActor, Store, StoredCredential};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use std::sync::Arc;

/// A credential to store, for a tenant or for one of its owners.
pub struct NewCredential {
    pub scope: AccessScope,
    pub kind: CredentialKind,
    pub label: String,
    pub key: SecretString,
    pub by: AuditActor,
}

/// The credentials of all tenants.
#[derive(Clone)]
pub struct Credentials {
    store: Arc<dyn Store>,
    clock: WallClock,
    quotas: Quotas,
    /// Serializes the counting and storing of one tenant's credentials.
    creating: Arc<KeyedMutex<TenantId>>,
}

impl Credentials {
    pub fn new(store: Arc<dyn Store>, clock: WallClock, quotas: Quotas) -> Credentials {
        Credentials { store, clock, quotas, creating: Arc::default() }
    }

    /// Those that the caller may use, the newest first.
    pub async fn list(&self, scope: &AccessScope) -> Result<Vec<StoredCredential>> {
        Ok(self.store.credentials(scope).await?)
    }

    /// Stores a credential, unless the tenant has reached its limit.
    pub async fn create(&self, new: NewCredential) -> Result<StoredCredential> {
        let NewCredential { scope: AccessScope { tenant, owner }, kind, label, key, by } = new;
        let _alone = self.creating.lock(tenant.clone()).await;
        let count = self.store.credentials(&AccessScope::all(&tenant)).await?.len();
        self.quotas.admit(QuotaKind::Credentials, count as u64, 1)?;
        let (id, created_at) = (CredentialId::fresh(), (self.clock)());
        let credential = StoredCredential { id, tenant, owner, kind, label, created_at, last_used_at: None };
        self.store.add_credential(credential.clone(), key, by).await?;
        Ok(credential)
    }

    /// Returns false if the caller may use no credential with this id.
    pub async fn remove(&self, scope: &AccessScope, id: &CredentialId, by: AuditActor) -> Result<bool> {
        Ok(self.store.remove_credential(scope, id, (self.clock)(), by).await?)
    }

    /// A credential and the API that a session calls with it, if the caller may use it and a session can.
    pub async fn for_session(
        &self,
        scope: &AccessScope,
        id: &str,
    ) -> Result<(CredentialId, ModelApiDialect)> {
        let unknown = || Error::InvalidCredential(UNKNOWN);
        let id = CredentialId::parse(id).map_err(|_| unknown())?;
        let (found, key) = self.store.credential(scope, &id).await?.ok_or_else(unknown)?;
        match found.kind {
            CredentialKind::Anthropic => Ok((id, ModelApiDialect::Anthropic)),
            CredentialKind::Openai => Ok((id, ModelApiDialect::Openai)),
            CredentialKind::Bedrock => {
                check_bedrock_key(&key)?;
                Err(Error::CredentialUnsupported(BEDROCK_UNSUPPORTED))
            }
            CredentialKind::Custom => Err(Error::CredentialUnsupported(CUSTOM_UNSUPPORTED)),
        }
    }
}

const UNKNOWN: &str = "Invalid or inaccessible credential";
const BEDROCK_UNSUPPORTED: &str = "A session cannot use a credential of type \"bedrock\": its calls are signed with the key, which the proxy outside of the sandbox cannot do yet. Use one of type \"anthropic\" or \"openai\"";
const CUSTOM_UNSUPPORTED: &str = "A session cannot use a credential of type \"custom\": the agent would get the key as a variable inside of its sandbox, where every command can read it. Use one of type \"anthropic\" or \"openai\", with `provider.baseUrl` for another service, or pass a key that the agent may know in `env`";

fn check_bedrock_key(key: &SecretString) -> Result<()> {
    let parsed: Option<Value> = serde_json::from_str(key.expose_secret()).ok();
    let Some(Value::Object(fields)) = parsed else {
        return Err(Error::InvalidCredential(
            "Bedrock credential must be a JSON object with accessKeyId, secretAccessKey, and region",
        ));
    };
    let named = |name: &str| fields.get(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    match ["accessKeyId", "secretAccessKey", "region"].into_iter().all(named) {
        true => Ok(()),
        false => Err(Error::InvalidCredential(
            "Bedrock credential requires accessKeyId, secretAccessKey, and region",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::Timestamp;
    use ash_store::{SealingKey, SqliteStore};

    async fn credentials(dir: &std::path::Path, quotas: &str) -> Credentials {
        let sealing = SealingKey::open(&dir.join("seal.key")).expect("a key");
        let store = SqliteStore::open(&dir.join("ash.db"), sealing).await.expect("a database");
        Credentials::new(Arc::new(store), Timestamp::now, Quotas::parse(quotas).expect("quotas"))
    }

    fn new(kind: CredentialKind, key: &str) -> NewCredential {
        let (scope, by) = (AccessScope::all(&TenantId::main()), AuditActor::default());
        NewCredential { scope, kind, label: String::new(), key: key.into(), by }
    }

    #[tokio::test]
    async fn a_credential_beyond_the_quota_is_refused_until_one_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let credentials = credentials(dir.path(), "credentials=1").await;
        let first = credentials.create(new(CredentialKind::Anthropic, "k")).await.expect("stored");
        let second = credentials.create(new(CredentialKind::Anthropic, "k")).await;
        assert!(matches!(second, Err(Error::Quota(_))));
        let all = AccessScope::all(&TenantId::main());
        assert!(credentials.remove(&all, &first.id, AuditActor::default()).await.expect("removed"));
        credentials.create(new(CredentialKind::Anthropic, "k")).await.expect("stored");
    }

    #[tokio::test]
    async fn only_credentials_whose_key_stays_outside_are_for_sessions() {
        let dir = tempfile::tempdir().expect("a directory");
        let credentials = credentials(dir.path(), "").await;
        let all = AccessScope::all(&TenantId::main());
        let bedrock = r#"{"accessKeyId":"a","secretAccessKey":"b","region":"c"}"#;
        let cases = [
            (CredentialKind::Anthropic, "k", Ok(ModelApiDialect::Anthropic)),
            (CredentialKind::Openai, "k", Ok(ModelApiDialect::Openai)),
            (CredentialKind::Custom, "k", Err("option_unsupported")),
            (CredentialKind::Bedrock, bedrock, Err("option_unsupported")),
            (CredentialKind::Bedrock, "k", Err("invalid_credential")),
            (
                CredentialKind::Bedrock,
                r#"{"accessKeyId":"a","secretAccessKey":""}"#,
                Err("invalid_credential"),
            ),
        ];
        for (kind, key, expected) in cases {
            let made = credentials.create(new(kind, key)).await.expect("stored");
            let answer = credentials.for_session(&all, made.id.as_str()).await;
            let answer = answer.map_err(|error| error.code().to_owned());
            let expected = expected.map(|dialect| (made.id, dialect)).map_err(str::to_owned);
            assert_eq!(answer, expected, "{kind:?} {key}");
        }
        for id in [CredentialId::fresh().as_str(), "x", ""] {
            let unknown = credentials.for_session(&all, id).await.expect_err("unknown");
            assert_eq!((unknown.code(), unknown.to_string().as_str()), ("invalid_credential", UNKNOWN));
        }
    }
}
