//! API keys of a tenant.

use super::extract::{JsonBody, NoQueryParams, PathParam, StrictQueryParams};
use super::quotas;
use crate::{
    app::AppState,
    auth::{self, Caller, TenantAdmin},
    idempotency::idempotent_request,
    problem::{ApiProblem, ApiResult},
};
use ash_model::{OwnerId, TenantId};
use ash_session::{CreatedApiKey, NewApiKey};
use ash_store::AccessScope;
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use serde_json::{Value, json};

const ROUTE: &str = "POST /api/api-keys";

#[derive(Deserialize)]
pub(super) struct CreateKeyRequest {
    label: Option<String>,
    /// Restricts the key to the sessions of this owner; `None`: all sessions of the tenant.
    owner: Option<OwnerId>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateTenantKeyRequest {
    tenant_id: Option<String>,
    label: Option<String>,
    owner: Option<OwnerId>,
}

pub(super) async fn list(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    _: StrictQueryParams<NoQueryParams>,
) -> ApiResult<Json<Value>> {
    let own = app.api_key.as_ref().filter(|_| app.is_operator(caller.tenant())).map(|_| {
        json!({ "id": auth::ENV_KEY_ID, "label": "ASH_API_KEY (environment variable)", "keyPrefix": "••••••••", "createdAt": "" })
    });
    let keys = app.keys.list(caller.tenant()).await?;
    let stored = keys.iter().map(|key| {
        json!({
            "id": key.id, "label": key.label, "owner": key.owner, "keyPrefix": "••••••••", "createdAt": key.created_at,
        })
    });
    Ok(Json(json!({ "keys": own.into_iter().chain(stored).collect::<Vec<_>>() })))
}

pub(super) async fn create(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    headers: HeaderMap,
    body: JsonBody<CreateKeyRequest>,
) -> ApiResult<(StatusCode, Json<Value>)> {
    let CreateKeyRequest { label, owner } = body.value;
    let label = label.unwrap_or_else(|| "dashboard-key".to_owned());
    quotas::label(&app.quotas, &label)?;
    let request = idempotent_request(&caller, &headers, (ROUTE, &body.summary.hash))?;
    let scope = AccessScope { tenant: caller.tenant().clone(), owner };
    let new = NewApiKey { scope, label, by: caller.audit_actor() };
    let created = app.keys.create(new, request.as_ref()).await?;
    Ok((StatusCode::CREATED, Json(shown(&created))))
}

fn shown(CreatedApiKey { key, text }: &CreatedApiKey) -> Value {
    let mut shown = json!({ "id": key.id, "key": text });
    if let Some(owner) = &key.owner {
        shown["owner"] = json!(owner);
    }
    shown
}

pub(super) async fn create_for_tenant(
    State(app): State<AppState>,
    caller: Caller,
    body: JsonBody<CreateTenantKeyRequest>,
) -> ApiResult<Json<Value>> {
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
    let mut shown = shown(&created);
    shown["tenantId"] = json!(created.key.tenant);
    Ok(Json(shown))
}

pub(super) async fn delete(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    PathParam(id): PathParam,
) -> ApiResult<Json<Value>> {
    match app.keys.remove(caller.tenant(), &id, caller.audit_actor()).await? {
        true => {
            app.stream_limiter.revoke(&id);
            Ok(Json(json!({})))
        }
        false => Err(ApiProblem::not_found("key_not_found", "API key not found")),
    }
}
