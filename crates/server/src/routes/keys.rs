//! API keys of a tenant.

use super::take::{Body, Part};
use crate::{
    app::App,
    auth::Caller,
    keys,
    once::{self, once},
    problem::{Answer, Problem},
};
use ash_model::{Kind, TenantId, Timestamp};
use ash_store::Key;
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
pub(super) struct New {
    label: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewForTenant {
    tenant_id: Option<String>,
    label: Option<String>,
}

pub(super) async fn list(State(app): State<App>, caller: Caller) -> Answer<Json<Value>> {
    let own = app.api_key.as_ref().filter(|_| app.is_operator(&caller.0)).map(|_| {
        json!({ "id": "env", "label": "ASH_API_KEY (environment variable)", "keyPrefix": "••••••••", "createdAt": "" })
    });
    let keys = app.sessions.rooms().store.keys(&caller.0).await?;
    let stored = keys.iter().map(|key| {
        json!({ "id": key.id, "label": key.label, "keyPrefix": "••••••••", "createdAt": key.created_at })
    });
    Ok(Json(json!({ "keys": own.into_iter().chain(stored).collect::<Vec<_>>() })))
}

pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    body: Body<New>,
) -> Answer<(StatusCode, Json<Value>)> {
    let store = app.sessions.rooms().store.clone();
    let label = body.value.label.unwrap_or_else(|| "dashboard-key".to_owned());
    if once::key(&headers)?.is_none() {
        let (key, text) = keys::mint(store.as_ref(), caller.0, label).await?;
        return Ok((StatusCode::CREATED, Json(json!({ "id": key.id, "key": text }))));
    }
    let proposed = uuid::Uuid::new_v4().to_string();
    let claim = once(&app, &caller.0, &headers, ("POST /api/api-keys", &body.bytes), proposed).await?;
    let text = app.minting.text_for(&claim.resource);
    let key = Key { id: claim.resource, tenant: caller.0, label, created_at: Timestamp::now() };
    let made = keys::mint_once(store.as_ref(), key, (&text, claim.again)).await?;
    let key = made.ok_or_else(gone)?;
    Ok((StatusCode::CREATED, Json(json!({ "id": key.id, "key": text }))))
}

fn gone() -> Problem {
    let error = "The key that this Idempotency-Key made is gone; use a new one to make another";
    Problem::new(Kind::Conflict, "key_gone", error)
}

pub(super) async fn create_for_tenant(
    State(app): State<App>,
    body: Body<NewForTenant>,
) -> Answer<Json<Value>> {
    let tenant = body
        .value
        .tenant_id
        .ok_or_else(|| Problem::invalid("missing_tenant", "Missing required field: tenantId"))?;
    let tenant =
        TenantId::parse(&tenant).map_err(|error| Problem::invalid("invalid_tenant", error.to_string()))?;
    let label = body.value.label.unwrap_or_else(|| "tenant-key".to_owned());
    let (key, text) = keys::mint(app.sessions.rooms().store.as_ref(), tenant, label).await?;
    Ok(Json(json!({ "id": key.id, "key": text, "tenantId": key.tenant })))
}

pub(super) async fn delete(State(app): State<App>, caller: Caller, Part(id): Part) -> Answer<Json<Value>> {
    match app.sessions.rooms().store.remove_key(&caller.0, &id).await? {
        true => Ok(Json(json!({}))),
        false => Err(Problem::not_found("key_not_found", "API key not found")),
    }
}
