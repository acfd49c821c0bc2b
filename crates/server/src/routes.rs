//! The API as a table of routes.

mod agents;
mod artifacts;
mod checkpoints;
mod compaction;
mod extract;
mod files;
mod health;
mod keys;
mod limits;
mod locks;
mod mcp_secrets;
mod mcp_servers;
mod messages;
mod permissions;
mod provider;
mod queue;
mod quotas;
mod retention;
mod session_list;
mod session_metadata;
mod session_options;
mod sessions;
mod usage;
mod workspaces;

use crate::{
    app::AppState,
    auth, edge,
    problem::{self, ApiProblem},
};
use ash_model::FailureKind;
use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{Method, StatusCode, Uri},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, patch, post},
};
use tower_http::catch_panic::CatchPanicLayer;

const MIB: usize = 1 << 20;
/// Limits of the reference, in characters.
const MAX_MODEL_CHARS: usize = 100;
const MAX_SYSTEM_PROMPT_CHARS: usize = 1_000_000;

pub(crate) fn router(app: AppState) -> Router {
    let limited = |most: usize| DefaultBodyLimit::max(most);
    Router::new()
        .route("/", get(health::hello))
        .route("/health", get(health::health))
        .route("/metrics", get(health::metrics))
        // Agents
        .route("/api/agents", get(agents::list).post(agents::deploy).layer(limited(128 * MIB)))
        .route("/api/agents/{name}", get(agents::get).patch(agents::change).delete(agents::delete))
        .route("/api/agents/{name}/config", get(agents::config).patch(agents::change_config))
        // Sessions
        .route("/api/sessions", get(session_list::sessions).post(sessions::create))
        .route("/api/sessions/{id}", get(sessions::get).patch(session_metadata::change).delete(sessions::end))
        .route("/api/sessions/{id}/config", patch(sessions::change_config))
        .route("/api/sessions/{id}/pause", post(sessions::pause))
        .route("/api/sessions/{id}/resume", post(sessions::resume))
        .route("/api/sessions/{id}/stop", post(sessions::stop))
        .route("/api/sessions/{id}/fork", post(sessions::fork))
        .route("/api/sessions/{id}/rewind", post(checkpoints::rewind))
        .route("/api/sessions/{id}/interrupt", post(sessions::interrupt))
        .route("/api/sessions/{id}/exec", post(sessions::exec))
        .route("/api/sessions/{id}/logs", get(sessions::logs))
        // Workspaces that sessions share
        .route("/api/workspaces", get(workspaces::list).post(workspaces::create))
        .route("/api/workspaces/{slug}", get(workspaces::get).delete(workspaces::delete))
        .route("/api/workspaces/{slug}/files", get(workspaces::files))
        .route("/api/workspaces/{slug}/checkpoints", get(workspaces::checkpoints))
        // Permission requests and questions
        .route("/api/sessions/{id}/permissions", get(permissions::list))
        .route("/api/sessions/{id}/permissions/{permission}", post(permissions::answer))
        // Conversation
        .route(
            "/api/sessions/{id}/messages",
            get(messages::list).post(messages::send).layer(limited(50 * MIB)),
        )
        .route("/api/sessions/{id}/events", get(messages::events))
        .route("/api/sessions/{id}/stream", get(messages::stream))
        // Queue and locks
        .route("/api/sessions/{id}/queue", get(queue::list).patch(queue::reorder))
        .route("/api/sessions/{id}/queue/{turn}", delete(queue::withdraw))
        .route("/api/sessions/{id}/lock", get(locks::show).post(locks::acquire).delete(locks::release))
        // Files
        .route("/api/sessions/{id}/files", get(files::list).post(files::write).layer(limited(200 * MIB)))
        .route("/api/sessions/{id}/files/{*path}", get(files::read).delete(files::delete))
        .route(
            "/api/sessions/{id}/workspace",
            get(files::bundle).post(files::unbundle).layer(limited(134 * MIB)),
        )
        // Plan and artifacts
        .route("/api/sessions/{id}/plan", get(artifacts::plan))
        .route("/api/sessions/{id}/artifacts", get(artifacts::list))
        .route("/api/sessions/{id}/artifacts/{*path}", get(artifacts::read))
        // Checkpoints
        .route("/api/sessions/{id}/checkpoints", get(checkpoints::list).post(checkpoints::create))
        .route("/api/sessions/{id}/checkpoints/{n}", get(checkpoints::get))
        .route("/api/sessions/{id}/checkpoints/{n}/diff", get(checkpoints::diff))
        // Usage
        .route("/api/usage", get(usage::usage))
        .route("/api/usage/stats", get(usage::stats))
        // Retention, cleanup and audit log
        .route("/api/retention", get(retention::retention).post(retention::apply_retention))
        .route("/api/prune", post(retention::prune))
        .route("/api/audit", get(retention::audit))
        // Keys
        .route("/api/api-keys", get(keys::list).post(keys::create))
        .route("/api/api-keys/{id}", delete(keys::delete))
        .route("/api/internal/api-keys", post(keys::create_for_tenant))
        .route_layer(middleware::from_fn_with_state(app.clone(), locks::require_session_lock))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(2 * MIB))
        .layer(middleware::from_fn_with_state(app.clone(), auth::authenticate))
        .layer(middleware::from_fn_with_state(app.clone(), edge::with_timeout))
        .layer(middleware::from_fn_with_state(app.clone(), timed))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(edge::cors(&app.origins))
        .layer(middleware::from_fn_with_state(app.clone(), edge::check_host))
        .layer(middleware::from_fn(edge::no_store))
        .with_state(app)
}

async fn timed(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let began = std::time::Instant::now();
    let response = next.run(request).await;
    app.metrics.request_seconds.observe(began.elapsed().as_secs_f64());
    response
}

async fn no_route(method: Method, uri: Uri) -> ApiProblem {
    ApiProblem::new(
        FailureKind::NotFound,
        "route_not_found",
        format!("Route {method}:{} not found", uri.path()),
    )
}

async fn no_method(method: Method, uri: Uri) -> Response {
    let error = format!("Route {method}:{} not found", uri.path());
    problem::answer(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", &error)
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> Response {
    let words =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    tracing::error!(panic = words.unwrap_or("?"), "a handler panicked");
    ApiProblem::internal("Internal Server Error").into_response()
}
