//! How the server is.

use crate::{app::App, problem::Answer};
use ash_model::TenantId;
use axum::{
    Json,
    extract::State,
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

pub(super) async fn hello() -> Json<Value> {
    Json(json!({ "name": "ash", "version": crate::VERSION, "health": "/health", "api": "/api" }))
}

pub(super) async fn health(State(app): State<App>) -> Answer<Json<Value>> {
    let counts = app.sessions.counts().await;
    let active = app.sessions.rooms().store.count_active(&TenantId::main()).await?;
    let alive = counts.waiting + counts.running;
    let status = if app.sessions.is_stopping() { "stopping" } else { "ok" };
    Ok(Json(json!({
        "status": status, "activeSessions": active, "activeSandboxes": alive,
        "uptime": app.metrics.uptime().as_secs(), "version": crate::VERSION,
        "coordinatorId": app.metrics.coordinator(), "remoteRunners": 0,
        "pool": {
            "total": alive + counts.warming + counts.cold, "cold": counts.cold, "warming": counts.warming, "warm": 0,
            "waiting": counts.waiting, "running": counts.running,
            "maxCapacity": app.sessions.rooms().settings.max_sandboxes,
            "resumeWarmHits": app.metrics.resume_hits("warm"), "resumeColdHits": app.metrics.resume_hits("cold"),
            "preWarmHits": app.metrics.resume_hits("prewarm"),
        },
    })))
}

pub(super) async fn metrics(State(app): State<App>) -> Answer<Response> {
    let active = app.sessions.rooms().store.count_active(&TenantId::main()).await?;
    let text =
        app.metrics.text(app.sessions.counts().await, active, app.sessions.rooms().settings.max_sandboxes);
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}
