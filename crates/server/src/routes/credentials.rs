//! Stored credentials: keys for model services. A key comes in here, and is in no answer.

use super::{
    extract::{JsonBody, NoQueryParams, PathParam, StrictQueryParams, check_max_size},
    provider, quotas,
};
use crate::{
    app::AppState,
    auth::Caller,
    openapi::{Answer, Created},
    problem::{ApiProblem, ApiResult},
    wire::admin::EmptyAnswer,
    wire::credential::{
        CreatedCredentialAnswer, CreatedCredentialView, CredentialListAnswer, CredentialView,
    },
};
use ash_model::{CredentialId, CredentialKind};
use ash_session::NewCredential;
use axum::extract::State;
use secrecy::SecretString;
use serde::Deserialize;
use utoipa::ToSchema;

const MAX_KEY_BYTES: usize = 16_384;

#[derive(Deserialize, ToSchema)]
pub(super) struct CreateCredentialRequest {
    /// The service that the key is for.
    r#type: CredentialKind,
    /// The key; for `bedrock` a JSON object as text, with `accessKeyId`, `secretAccessKey` and `region`.
    #[schema(value_type = String, min_length = 1, max_length = 16_384)]
    key: String,
    /// A name for people.
    label: Option<String>,
}

pub(super) async fn list(
    State(app): State<AppState>,
    caller: Caller,
    _: StrictQueryParams<NoQueryParams>,
) -> ApiResult<Answer<CredentialListAnswer>> {
    let credentials = app.credentials.list(&caller.0).await?;
    Ok(Answer(CredentialListAnswer { credentials: credentials.iter().map(CredentialView::of).collect() }))
}

pub(super) async fn create(
    State(app): State<AppState>,
    caller: Caller,
    body: JsonBody<CreateCredentialRequest>,
) -> ApiResult<Created<CreatedCredentialAnswer>> {
    let CreateCredentialRequest { r#type: kind, key, label } = body.value;
    let label = label.unwrap_or_default();
    quotas::label(&app.quotas, &label)?;
    if key.is_empty() {
        return Err(ApiProblem::invalid("invalid_body", "key must not be empty"));
    }
    check_max_size("key", (key.len(), "bytes"), MAX_KEY_BYTES)?;
    let key = SecretString::from(key);
    provider::check_stored_key(kind, &key)?;
    let new = NewCredential { scope: caller.0.clone(), kind, label, key, by: caller.audit_actor() };
    let stored = app.credentials.create(new).await?;
    Ok(Created(CreatedCredentialAnswer { credential: CreatedCredentialView::of(&stored) }))
}

pub(super) async fn delete(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<Answer<EmptyAnswer>> {
    let unknown = || ApiProblem::not_found("credential_not_found", "Credential not found");
    let id = CredentialId::parse(&id).map_err(|_| unknown())?;
    match app.credentials.remove(&caller.0, &id, caller.audit_actor()).await? {
        true => Ok(Answer(EmptyAnswer {})),
        false => Err(unknown()),
    }
}
