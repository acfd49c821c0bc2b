//! API keys of a tenant.

use super::extract::{JsonBody, NoQueryParams, PathParam, StrictQueryParams};
use super::quotas;
use crate::{
    app::AppState,
    auth::{self, Caller, TenantAdmin},
    idempotency::idempotent_request,
    openapi::{Answer, Created},
    problem::{ApiProblem, ApiResult},
    wire::admin::{
        ApiKeyListAnswer, ApiKeyView, CreatedApiKeyAnswer, CreatedTenantKeyAnswer, EmptyAnswer,
        EnvironmentApiKey, HIDDEN_KEY, StoredApiKey,
    },
};
use ash_model::{OwnerId, TenantId};
use ash_session::NewApiKey;
use ash_store::AccessScope;
use axum::{extract::State, http::HeaderMap};
use serde::Deserialize;
use utoipa::ToSchema;

const ROUTE: &str = "POST /api/api-keys";

#[derive(Deserialize, ToSchema)]
pub(super) struct CreateKeyRequest {
    /// A name for people; `dashboard-key` without one.
    label: Option<String>,
    /// Restricts the key to the sessions of this owner; `None`: all sessions of the tenant.
    owner: Option<OwnerId>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateTenantKeyRequest {
    #[schema(required, nullable = false)]
    tenant_id: Option<String>,
    label: Option<String>,
    owner: Option<OwnerId>,
}

pub(super) async fn list(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    _: StrictQueryParams<NoQueryParams>,
) -> ApiResult<Answer<ApiKeyListAnswer>> {
    let own = app.api_key.as_ref().filter(|_| app.is_operator(caller.tenant())).map(|_| {
        let label = "ASH_API_KEY (environment variable)";
        let own = EnvironmentApiKey { id: auth::ENV_KEY_ID, label, key_prefix: HIDDEN_KEY, created_at: "" };
        ApiKeyView::Environment(own)
    });
    let keys = app.keys.list(caller.tenant()).await?;
    let stored = keys.iter().map(|key| ApiKeyView::Stored(StoredApiKey::of(key)));
    Ok(Answer(ApiKeyListAnswer { keys: own.into_iter().chain(stored).collect() }))
}

pub(super) async fn create(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    headers: HeaderMap,
    body: JsonBody<CreateKeyRequest>,
) -> ApiResult<Created<CreatedApiKeyAnswer>> {
    let CreateKeyRequest { label, owner } = body.value;
    let label = label.unwrap_or_else(|| "dashboard-key".to_owned());
    quotas::label(&app.quotas, &label)?;
    let request = idempotent_request(&caller, &headers, (ROUTE, &body.summary.hash))?;
    let scope = AccessScope { tenant: caller.tenant().clone(), owner };
    let new = NewApiKey { scope, label, by: caller.audit_actor() };
    let created = app.keys.create(new, request.as_ref()).await?;
    Ok(Created(CreatedApiKeyAnswer::of(&created)))
}

pub(super) async fn create_for_tenant(
    State(app): State<AppState>,
    caller: Caller,
    body: JsonBody<CreateTenantKeyRequest>,
) -> ApiResult<Answer<CreatedTenantKeyAnswer>> {
    let tenant = body
        .value
        .tenant_id
        .ok_or_else(|| ApiProblem::invalid("missing_tenant", "Missing required field: tenantId"))?;
    let tenant =
        TenantId::parse(&tenant).map_err(|error| ApiProblem::invalid("invalid_tenant", error.to_string()))?;
    let label = body.value.label.unwrap_or_else(|| "tenant-key".to_owned());
    quotas::label(&app.quotas, &label)?;
    let scope = AccessScope { tenant, owner: body.value.owner };
    let created = app.keys.create(NewApiKey { scope, label, by: caller.audit_actor() }, None).await?;
    let key = CreatedApiKeyAnswer::of(&created);
    Ok(Answer(CreatedTenantKeyAnswer { key, tenant_id: created.key.tenant }))
}

pub(super) async fn delete(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    PathParam(id): PathParam,
) -> ApiResult<Answer<EmptyAnswer>> {
    match app.keys.remove(caller.tenant(), &id, caller.audit_actor()).await? {
        true => {
            app.stream_limiter.revoke(&id);
            Ok(Answer(EmptyAnswer {}))
        }
        false => Err(ApiProblem::not_found("key_not_found", "API key not found")),
    }
}
