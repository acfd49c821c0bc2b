//! Keys for model services that tenants store here. A key is sealed in the database, and leaves it only for a session that
//! uses it.

use crate::{AccessScope, AuditActor, Result};
use ash_model::{CredentialId, CredentialKind, OwnerId, TenantId, Timestamp};
use async_trait::async_trait;
use secrecy::SecretString;

/// A stored credential as it is listed: everything but the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCredential {
    /// The id, which no other credential ever had.
    pub id: CredentialId,
    /// The tenant that it belongs to.
    pub tenant: TenantId,
    /// The owner that it belongs to. `None`: callers of the whole tenant.
    pub owner: Option<OwnerId>,
    /// The service that the key is for.
    pub kind: CredentialKind,
    /// A free text that says what the credential is for.
    pub label: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When a session last started with it.
    pub last_used_at: Option<Timestamp>,
}

/// Credentials. A caller with an owner reaches those of the owner alone, and learns nothing about others. Adding and
/// removing one writes its audit entry in the same step.
#[async_trait]
pub trait CredentialStore: Send + Sync {
    /// Adds a credential. Fails if one with this id exists.
    async fn add_credential(&self, new: StoredCredential, key: SecretString, by: AuditActor) -> Result<()>;
    /// The credentials that a caller may use, the newest first.
    async fn credentials(&self, scope: &AccessScope) -> Result<Vec<StoredCredential>>;
    /// A credential that a caller may use, with its key.
    async fn credential(
        &self,
        scope: &AccessScope,
        id: &CredentialId,
    ) -> Result<Option<(StoredCredential, SecretString)>>;
    /// Remembers that a session started with a credential, if it still exists.
    async fn set_credential_used(&self, tenant: &TenantId, id: &CredentialId, at: Timestamp) -> Result<()>;
    /// Removes a credential and its key. `false`: there is none that the caller may use.
    async fn remove_credential(
        &self,
        scope: &AccessScope,
        id: &CredentialId,
        at: Timestamp,
        by: AuditActor,
    ) -> Result<bool>;
}
