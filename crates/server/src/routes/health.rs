//! How the server is.

use crate::{
    app::App,
    auth::{self, Admin},
    problem::Answer,
};
use ash_model::TenantId;
use ash_session::Far;
use axum::{
    Json,
    extract::State,
    http::{
        HeaderMap,
        header::{ACCEPT, CONTENT_TYPE, HOST},
    },
    response::{Html, IntoResponse, Response},
};
use serde_json::{Value, json};

/// A program gets JSON; a person with a browser a page that says what this is.
pub(super) async fn hello(State(app): State<App>, headers: HeaderMap) -> Response {
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
    Html(page).into_response()
}

/// What a client says of our address goes into a page: only what an address can be made of.
fn is_host(host: &str) -> bool {
    host.len() <= 255 && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".:-[]".contains(&b))
}

/// What is wrong is said to everybody in one word, and in sentences to callers that have a key.
pub(super) async fn health(State(app): State<App>, headers: HeaderMap) -> Answer<Json<Value>> {
    let counts = app.sessions.counts().await;
    let active = app.sessions.rooms().store.count_active(&TenantId::main()).await?;
    let alive = counts.waiting + counts.running;
    let little = app.sessions.little_space();
    let status = match () {
        () if app.sessions.is_stopping() => "stopping",
        () if little.is_some() => "full",
        () => "ok",
    };
    let mut health = json!({
        "status": status, "activeSessions": active, "activeSandboxes": alive,
        "uptime": app.metrics.uptime().as_secs(), "version": crate::VERSION,
        "coordinatorId": app.metrics.coordinator(), "remoteRunners": 0,
        "pool": {
            "total": alive + counts.warm + counts.warming + counts.cold, "cold": counts.cold, "warming": counts.warming, "warm": counts.warm,
            "waiting": counts.waiting, "running": counts.running,
            "maxCapacity": app.sessions.rooms().settings.max_sandboxes,
            "resumeWarmHits": app.metrics.resume_hits("warm"), "resumeColdHits": app.metrics.resume_hits("cold"),
            "preWarmHits": app.metrics.resume_hits("prewarm"), "queued": app.sessions.queued(),
        },
    });
    if let Some(free) = little {
        health["freeBytes"] = json!(free);
        health["error"] = json!(ash_session::Error::LittleSpace(free >> 20).to_string());
    }
    if let Some(far) = &app.sessions.rooms().far {
        health["objectStore"] = object_store(&app, far).await?;
    }
    let troubles = app.sessions.rooms().troubles.list();
    if !troubles.is_empty() {
        health["degraded"] = json!(true);
        if auth::known(&app, &headers).await.is_ok() {
            health["trouble"] = json!(troubles);
        }
    }
    Ok(Json(health))
}

/// Whether everything that is saved gets to where a lost machine cannot take it along.
async fn object_store(app: &App, far: &Far) -> Answer<Value> {
    let rooms = app.sessions.rooms();
    let lag = rooms.store.lag().await?;
    let seconds = lag.oldest.map_or(0, |oldest| (rooms.clock().0 - oldest.0).max(0) / 1000);
    let mut shown = json!({
        "url": far.bucket.to_string(), "status": "ok", "waitingCheckpoints": lag.checkpoints, "lagSeconds": seconds,
    });
    if let Some((trouble, since)) = far.trouble() {
        shown["status"] = json!("trouble");
        shown["code"] = json!(trouble.code.as_str());
        shown["error"] = json!(trouble.to_string());
        shown["since"] = json!(since);
    }
    Ok(shown)
}

pub(super) async fn metrics(State(app): State<App>, _: Admin) -> Answer<Response> {
    let active = app.sessions.rooms().store.count_active(&TenantId::main()).await?;
    if let Some(far) = &app.sessions.rooms().far {
        let lag = app.sessions.rooms().store.lag().await?;
        let seconds =
            lag.oldest.map_or(0, |oldest| (app.sessions.rooms().clock().0 - oldest.0).max(0) / 1000);
        app.metrics.far(lag.checkpoints, seconds, far.trouble().is_some(), &far.tally());
    }
    app.metrics.taken(&app.sessions.rooms().store.taken(None).await?);
    let capacity = app.sessions.rooms().settings.max_sandboxes;
    app.metrics.queued(app.sessions.queued());
    let text = app.metrics.text(app.sessions.counts().await, active, capacity);
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}
