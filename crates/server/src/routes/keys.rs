//! API keys of a tenant.

use super::quotas;
use super::take::{Body, ListAsked, NoParameters, Part};
use crate::{
    app::App,
    auth::{self, Admin, Caller},
    keys,
    once::{self, once},
    problem::{Answer, Problem},
};
use ash_model::{Kind, OwnerId, TenantId, Timestamp};
use ash_store::{Key, Scope};
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use serde_json::{Value, json};

const ROUTE: &str = "POST /api/api-keys";

#[derive(Deserialize)]
pub(super) struct New {
    label: Option<String>,
    /// Whose sessions alone it opens; none: those of all.
    owner: Option<OwnerId>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewForTenant {
    tenant_id: Option<String>,
    label: Option<String>,
    owner: Option<OwnerId>,
}

pub(super) async fn list(
    State(app): State<App>,
    Admin(caller): Admin,
    _: ListAsked<NoParameters>,
) -> Answer<Json<Value>> {
    let own = app.api_key.as_ref().filter(|_| app.is_operator(caller.tenant())).map(|_| {
        json!({ "id": auth::OWN, "label": "ASH_API_KEY (environment variable)", "keyPrefix": "••••••••", "createdAt": "" })
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
    State(app): State<App>,
    Admin(caller): Admin,
    headers: HeaderMap,
    body: Body<New>,
) -> Answer<(StatusCode, Json<Value>)> {
    let store = app.sessions.rooms().store.clone();
    let New { label, owner } = body.value;
    let label = label.unwrap_or_else(|| "dashboard-key".to_owned());
    quotas::label(&app, &label)?;
    let _alone = app.growing.lock(caller.tenant().clone()).await;
    let (by, tenant) = (caller.order(), caller.tenant().clone());
    // Before an idempotency key is taken: what is refused leaves none behind. With one that was used nothing more is made.
    if once::used(&app, &caller.0, &headers, ROUTE).await?.is_none() {
        quotas::one_more_key(&app, &tenant).await?;
    }
    if once::key(&headers)?.is_none() {
        let (key, text) = keys::mint(store.as_ref(), Scope { tenant, owner }, label, by).await?;
        return Ok((StatusCode::CREATED, Json(made(&key, &text))));
    }
    let proposed = uuid::Uuid::new_v4().to_string();
    let claim = once(&app, &caller.0, &headers, (ROUTE, &body.bytes), proposed).await?;
    let text = app.minting.text_for(&claim.resource);
    let key = Key { id: claim.resource, tenant, owner, label, created_at: Timestamp::now() };
    let minted = keys::mint_once(store.as_ref(), key, (&text, claim.again), by).await?;
    let key = minted.ok_or_else(gone)?;
    Ok((StatusCode::CREATED, Json(made(&key, &text))))
}

fn made(key: &Key, text: &str) -> Value {
    let mut made = json!({ "id": key.id, "key": text });
    if let Some(owner) = &key.owner {
        made["owner"] = json!(owner);
    }
    made
}

fn gone() -> Problem {
    let error = "The key that this Idempotency-Key made is gone; use a new one to make another";
    Problem::new(Kind::Conflict, "key_gone", error)
}

pub(super) async fn create_for_tenant(
    State(app): State<App>,
    caller: Caller,
    body: Body<NewForTenant>,
) -> Answer<Json<Value>> {
    let tenant = body
        .value
        .tenant_id
        .ok_or_else(|| Problem::invalid("missing_tenant", "Missing required field: tenantId"))?;
    let tenant =
        TenantId::parse(&tenant).map_err(|error| Problem::invalid("invalid_tenant", error.to_string()))?;
    let label = body.value.label.unwrap_or_else(|| "tenant-key".to_owned());
    quotas::label(&app, &label)?;
    let _alone = app.growing.lock(tenant.clone()).await;
    quotas::one_more_key(&app, &tenant).await?;
    let scope = Scope { tenant, owner: body.value.owner };
    let (key, text) = keys::mint(app.sessions.rooms().store.as_ref(), scope, label, caller.order()).await?;
    let mut shown = made(&key, &text);
    shown["tenantId"] = json!(key.tenant);
    Ok(Json(shown))
}

pub(super) async fn delete(
    State(app): State<App>,
    Admin(caller): Admin,
    Part(id): Part,
) -> Answer<Json<Value>> {
    let rooms = app.sessions.rooms();
    match rooms.store.remove_key(caller.tenant(), &id, rooms.clock(), caller.order()).await? {
        true => {
            app.streams.revoke(&id);
            Ok(Json(json!({})))
        }
        false => Err(Problem::not_found("key_not_found", "API key not found")),
    }
}
