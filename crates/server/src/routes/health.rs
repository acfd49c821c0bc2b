//! The health, metrics and start page of the server.

use crate::{
    app::AppState,
    auth::{self, ServerOperator},
    edge::PeerAddresses,
    openapi::{Answer, DocumentedAnswer, OperationDraft},
    problem::ApiResult,
    wire::admin::{HealthAnswer, HealthDetails, ObjectStoreView, PoolStats, ServerAnswer, Trouble},
};
use ash_session::{ObjectStoreStatus, ServerTrouble};
use axum::{
    Extension,
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST},
    },
    response::{Html, IntoResponse, Response},
};
use serde_json::json;

/// The page has only a style: no script runs in it, and no other page may embed it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// JSON for a program; for a browser, a page that explains what this server is.
pub(super) async fn hello(State(app): State<AppState>, headers: HeaderMap) -> HelloAnswer {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if !accept.contains("text/html") {
        let (version, health, api) = (crate::VERSION, "/health", "/api");
        return HelloAnswer(Answer(ServerAnswer { name: "ash", version, health, api }).into_response());
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
    HelloAnswer(([(CONTENT_SECURITY_POLICY, POLICY)], Html(page)).into_response())
}

/// As JSON or as a page.
pub(super) struct HelloAnswer(Response);

impl IntoResponse for HelloAnswer {
    fn into_response(self) -> Response {
        self.0
    }
}

impl DocumentedAnswer for HelloAnswer {
    fn describe(operation: &mut OperationDraft) {
        operation.json_answer::<ServerAnswer>(StatusCode::OK);
        operation.answer(StatusCode::OK, "text/html", json!({ "type": "string" }));
    }
}

/// The metrics as text.
pub(super) struct MetricsAnswer(String);

impl IntoResponse for MetricsAnswer {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, METRICS_TYPE)], self.0).into_response()
    }
}

impl DocumentedAnswer for MetricsAnswer {
    fn describe(operation: &mut OperationDraft) {
        operation.answer(StatusCode::OK, METRICS_TYPE, json!({ "type": "string" }));
    }
}

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

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
) -> Answer<HealthAnswer> {
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
    let mut troubles = app.status.troubles();
    if let Some(free) = little {
        let error = ash_session::Error::LittleSpace(free >> 20).to_string();
        troubles.push(app.status.trouble_now("disk_full", error));
    }
    if let Err(error) = &active {
        let error = format!("The database does not answer: {error}");
        troubles.push(app.status.trouble_now("store_failed", error));
    }
    let degraded = !troubles.is_empty();
    let (details, queued) = match has_key {
        true => (authenticated_details(&app, troubles).await, Some(app.sessions.queued())),
        false => (HealthDetails::default(), None),
    };
    Answer(HealthAnswer {
        status,
        active_sessions: active.unwrap_or(0),
        active_sandboxes: alive,
        uptime: app.metrics.uptime().as_secs(),
        version: crate::VERSION,
        remote_runners: 0,
        pool: PoolStats {
            total: alive + counts.warm + counts.warming + counts.cold,
            cold: counts.cold,
            warming: counts.warming,
            warm: counts.warm,
            waiting: counts.waiting,
            running: counts.running,
            max_capacity: app.sessions.max_sandboxes(),
            resume_warm_hits: app.metrics.resume_hits("warm"),
            resume_cold_hits: app.metrics.resume_hits("cold"),
            pre_warm_hits: app.metrics.resume_hits("prewarm"),
            queued,
        },
        degraded,
        details,
    })
}

/// Details for callers with a key.
async fn authenticated_details(app: &AppState, mut troubles: Vec<ServerTrouble>) -> HealthDetails {
    let object_store = match app.status.object_store().await {
        Ok(status) => status.as_ref().map(object_store),
        Err(error) => {
            troubles.push(app.status.trouble_now("store_failed", error.to_string()));
            None
        }
    };
    let free = app.sessions.little_space();
    HealthDetails {
        coordinator_id: Some(app.metrics.coordinator().to_owned()),
        free_bytes: free,
        error: free.map(|free| ash_session::Error::LittleSpace(free >> 20).to_string()),
        object_store,
        trouble: troubles.into_iter().map(Trouble::from).collect(),
    }
}

fn object_store(status: &ObjectStoreStatus) -> ObjectStoreView {
    let ObjectStoreStatus { url, waiting_checkpoints, lag_seconds, trouble, .. } = status;
    ObjectStoreView {
        url: url.clone(),
        status: if trouble.is_some() { "trouble" } else { "ok" },
        waiting_checkpoints: *waiting_checkpoints,
        lag_seconds: *lag_seconds,
        code: trouble.as_ref().map(|(trouble, _)| trouble.code.as_str().to_owned()),
        error: trouble.as_ref().map(|(trouble, _)| trouble.to_string()),
        since: trouble.as_ref().map(|(_, since)| *since),
    }
}

/// Metrics of all tenants together.
pub(super) async fn metrics(State(app): State<AppState>, _: ServerOperator) -> ApiResult<MetricsAnswer> {
    let active = app.status.active_sessions().await?;
    if let Some(status) = app.status.object_store().await? {
        let ObjectStoreStatus { waiting_checkpoints, lag_seconds, trouble, traffic, .. } = status;
        app.metrics.set_remote(waiting_checkpoints, lag_seconds, trouble.is_some(), &traffic);
    }
    app.metrics.set_resource_usage(&app.status.resource_usage().await?);
    let capacity = app.sessions.max_sandboxes();
    app.metrics.set_queued(app.sessions.queued());
    let text = app.metrics.encode(app.sessions.counts().await, active, capacity);
    Ok(MetricsAnswer(text))
}
