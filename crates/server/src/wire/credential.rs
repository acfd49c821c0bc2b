//! Stored credentials, without their keys.

use ash_model::{CredentialId, CredentialKind, Timestamp};
use ash_store::StoredCredential;
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedCredentialAnswer {
    pub(crate) credential: CreatedCredentialView,
}

#[derive(Serialize, ToSchema)]
#[schema(as = CreatedCredential)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CreatedCredentialView {
    id: CredentialId,
    r#type: CredentialKind,
    /// Empty without one.
    label: String,
    /// Always true: a deleted credential is gone.
    active: bool,
    created_at: Timestamp,
}

impl CreatedCredentialView {
    pub(crate) fn of(credential: &StoredCredential) -> CreatedCredentialView {
        CreatedCredentialView {
            id: credential.id.clone(),
            r#type: credential.kind,
            label: credential.label.clone(),
            active: true,
            created_at: credential.created_at,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct CredentialListAnswer {
    pub(crate) credentials: Vec<CredentialView>,
}

/// A stored credential. No answer has its key.
#[derive(Serialize, ToSchema)]
#[schema(as = Credential)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CredentialView {
    id: CredentialId,
    r#type: CredentialKind,
    /// Empty without one.
    label: String,
    /// Always true: a deleted credential is gone.
    active: bool,
    created_at: Timestamp,
    /// When a session last started with it; null: never.
    #[schema(required)]
    last_used_at: Option<Timestamp>,
}

impl CredentialView {
    pub(crate) fn of(credential: &StoredCredential) -> CredentialView {
        let CreatedCredentialView { id, r#type, label, active, created_at } =
            CreatedCredentialView::of(credential);
        CredentialView { id, r#type, label, active, created_at, last_used_at: credential.last_used_at }
    }
}
