//! API keys of a tenant.

use super::extract::{JsonBody, NoQueryParams, PathParam, StrictQueryParams};
use super::quotas;
use crate::{
    api_keys,
    app::AppState,
    auth::{self, Caller, TenantAdmin},
    idempotency::{self, claim_idempotency_key},
    problem::{ApiProblem, ApiResult},
};
use ash_model::{FailureKind, OwnerId, TenantId, Timestamp};
use ash_store::{AccessScope, ApiKey};
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
    /// Whose sessions alone it opens; none: those of all.
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
    let keys = app.sessions.rooms().store.keys(caller.tenant()).await?;
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
    let store = app.sessions.rooms().store.clone();
    let CreateKeyRequest { label, owner } = body.value;
    let label = label.unwrap_or_else(|| "dashboard-key".to_owned());
    quotas::label(&app, &label)?;
    let _alone = app.tenant_quota_locks.lock(caller.tenant().clone()).await;
    let (by, tenant) = (caller.audit_actor(), caller.tenant().clone());
    // Before an idempotency key is taken: what is refused leaves none behind. With one that was used nothing more is made.
    if idempotency::used_idempotency_key(&app, &caller.0, &headers, ROUTE).await?.is_none() {
        quotas::one_more_key(&app, &tenant).await?;
    }
    if idempotency::idempotency_key(&headers)?.is_none() {
        let (key, text) =
            api_keys::create_key(store.as_ref(), AccessScope { tenant, owner }, label, by).await?;
        return Ok((StatusCode::CREATED, Json(made(&key, &text))));
    }
    let proposed = uuid::Uuid::new_v4().to_string();
    let claim =
        claim_idempotency_key(&app, &caller.0, &headers, (ROUTE, &body.summary.hash), proposed).await?;
    let text = app.key_derivation.derive_key_text(&claim.resource);
    let key = ApiKey { id: claim.resource, tenant, owner, label, created_at: Timestamp::now() };
    let minted = api_keys::create_key_idempotently(store.as_ref(), key, (&text, claim.is_replay), by).await?;
    let key = minted.ok_or_else(gone)?;
    Ok((StatusCode::CREATED, Json(made(&key, &text))))
}

fn made(key: &ApiKey, text: &str) -> Value {
    let mut made = json!({ "id": key.id, "key": text });
    if let Some(owner) = &key.owner {
        made["owner"] = json!(owner);
    }
    made
}

fn gone() -> ApiProblem {
    let error = "The key that this Idempotency-Key made is gone; use a new one to make another";
    ApiProblem::new(FailureKind::Conflict, "key_gone", error)
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
    quotas::label(&app, &label)?;
    let _alone = app.tenant_quota_locks.lock(tenant.clone()).await;
    quotas::one_more_key(&app, &tenant).await?;
    let scope = AccessScope { tenant, owner: body.value.owner };
    let (key, text) =
        api_keys::create_key(app.sessions.rooms().store.as_ref(), scope, label, caller.audit_actor()).await?;
    let mut shown = made(&key, &text);
    shown["tenantId"] = json!(key.tenant);
    Ok(Json(shown))
}

pub(super) async fn delete(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    PathParam(id): PathParam,
) -> ApiResult<Json<Value>> {
    let rooms = app.sessions.rooms();
    match rooms.store.remove_key(caller.tenant(), &id, rooms.clock(), caller.audit_actor()).await? {
        true => {
            app.stream_limiter.revoke(&id);
            Ok(Json(json!({})))
        }
        false => Err(ApiProblem::not_found("key_not_found", "API key not found")),
    }
}
