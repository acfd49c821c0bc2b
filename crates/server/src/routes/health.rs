//! The health, metrics and start page of the server.

use crate::{
    app::AppState,
    auth::{self, ServerOperator},
    edge::PeerAddresses,
    problem::ApiResult,
};
use ash_session::{ObjectStoreStatus, ServerTrouble};
use axum::{
    Extension, Json,
    extract::State,
    http::{
        HeaderMap,
        header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST},
    },
    response::{Html, IntoResponse, Response},
};
use serde_json::{Value, json};

/// The page has only a style: no script runs in it, and no other page may embed it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// JSON for a program; for a browser, a page that explains what this server is.
pub(super) async fn hello(State(app): State<AppState>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if !accept.contains("text/html") {
        return Json(json!({ "name": "ash", "version": crate::VERSION, "health": "/health", "api": "/api" }))
            .into_response();
    }
    let host = headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .filter(|host| is_host(host))
        .unwrap_or("127.0.0.1:4100");
    let page = include_str!("hello.html")
        .replace("{{version}}", crate::VERSION)
        .replace("{{host}}", host)
        .replace("{{key}}", app.key_hint());
    ([(CONTENT_SECURITY_POLICY, POLICY)], Html(page)).into_response()
}

/// The page shows the address from the client's Host header, so only characters of addresses are allowed.
fn is_host(host: &str) -> bool {
    host.len() <= 255 && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".:-[]".contains(&b))
}

/// Every caller sees the load and whether there is a problem; callers with a key also see which problem. The status is
/// 200 whenever the server can answer. Values that the database cannot give are 0, and are reported as a trouble.
pub(super) async fn health(
    State(app): State<AppState>,
    peer: Option<Extension<PeerAddresses>>,
    headers: HeaderMap,
) -> Json<Value> {
    let has_key = auth::caller_of_key(&app, &headers, peer.map(|Extension(peer)| peer)).await.is_ok();
    let counts = app.sessions.counts().await;
    let active = app.status.active_sessions().await;
    let alive = counts.waiting + counts.running;
    let little = app.sessions.little_space();
    let status = match () {
        () if app.sessions.is_stopping() => "stopping",
        () if little.is_some() => "full",
        () => "ok",
    };
    let mut health = json!({
        "status": status, "activeSessions": active.as_ref().unwrap_or(&0), "activeSandboxes": alive,
        "uptime": app.metrics.uptime().as_secs(), "version": crate::VERSION, "remoteRunners": 0,
        "pool": {
            "total": alive + counts.warm + counts.warming + counts.cold, "cold": counts.cold, "warming": counts.warming, "warm": counts.warm,
            "waiting": counts.waiting, "running": counts.running,
            "maxCapacity": app.sessions.max_sandboxes(),
            "resumeWarmHits": app.metrics.resume_hits("warm"), "resumeColdHits": app.metrics.resume_hits("cold"),
            "preWarmHits": app.metrics.resume_hits("prewarm"),
        },
    });
    let mut troubles = app.status.troubles();
    if let Some(free) = little {
        let error = ash_session::Error::LittleSpace(free >> 20).to_string();
        troubles.push(app.status.trouble_now("disk_full", error));
    }
    if let Err(error) = active {
        let error = format!("The database does not answer: {error}");
        troubles.push(app.status.trouble_now("store_failed", error));
    }
    if !troubles.is_empty() {
        health["degraded"] = json!(true);
    }
    if has_key {
        add_authenticated_details(&app, &mut health, troubles).await;
    }
    Json(health)
}

/// Details for callers with a key.
async fn add_authenticated_details(app: &AppState, health: &mut Value, mut troubles: Vec<ServerTrouble>) {
    health["coordinatorId"] = json!(app.metrics.coordinator());
    health["pool"]["queued"] = json!(app.sessions.queued());
    if let Some(free) = app.sessions.little_space() {
        health["freeBytes"] = json!(free);
        health["error"] = json!(ash_session::Error::LittleSpace(free >> 20).to_string());
    }
    match app.status.object_store().await {
        Ok(Some(status)) => health["objectStore"] = object_store(&status),
        Ok(None) => {}
        Err(error) => troubles.push(app.status.trouble_now("store_failed", error.to_string())),
    }
    if !troubles.is_empty() {
        health["trouble"] = json!(troubles);
    }
}

fn object_store(status: &ObjectStoreStatus) -> Value {
    let ObjectStoreStatus { url, waiting_checkpoints, lag_seconds, trouble, .. } = status;
    let mut shown = json!({
        "url": url, "status": "ok", "waitingCheckpoints": waiting_checkpoints, "lagSeconds": lag_seconds,
    });
    if let Some((trouble, since)) = trouble {
        shown["status"] = json!("trouble");
        shown["code"] = json!(trouble.code.as_str());
        shown["error"] = json!(trouble.to_string());
        shown["since"] = json!(since);
    }
    shown
}

/// Metrics of all tenants together.
pub(super) async fn metrics(State(app): State<AppState>, _: ServerOperator) -> ApiResult<Response> {
    let active = app.status.active_sessions().await?;
    if let Some(status) = app.status.object_store().await? {
        let ObjectStoreStatus { waiting_checkpoints, lag_seconds, trouble, traffic, .. } = status;
        app.metrics.set_remote(waiting_checkpoints, lag_seconds, trouble.is_some(), &traffic);
    }
    app.metrics.set_resource_usage(&app.status.resource_usage().await?);
    let capacity = app.sessions.max_sandboxes();
    app.metrics.set_queued(app.sessions.queued());
    let text = app.metrics.encode(app.sessions.counts().await, active, capacity);
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}
