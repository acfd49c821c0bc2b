//! The API as a table of routes.

mod agents;
mod artifacts;
mod checkpoints;
mod compaction;
mod conversation;
mod credentials;
mod extract;
mod files;
mod health;
mod keys;
mod limits;
mod locks;
mod log;
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
mod stream_tokens;
mod tools;
mod usage;
mod workspaces;

pub(crate) use agents::default_agent;

use crate::{
    app::AppState,
    auth, edge,
    openapi::{self, ApiRouter, delete, get, patch, post},
    problem::{self, ApiProblem},
};
use ash_model::FailureKind;
use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{Method, StatusCode, Uri},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use tower_http::catch_panic::CatchPanicLayer;

#[cfg(test)]
mod tests;

const MIB: usize = 1 << 20;
/// Limits of the reference, in characters.
const MAX_MODEL_CHARS: usize = 100;
const MAX_SYSTEM_PROMPT_CHARS: usize = 1_000_000;

/// The API as a table. The document at `/openapi.json` comes from it, too.
pub(crate) fn api() -> ApiRouter {
    ApiRouter::new()
        .tag("Server")
        .route("/", get("getServer", health::hello))
        .route("/health", get("health", health::health))
        .route("/metrics", get("getMetrics", health::metrics))
        .route("/openapi.json", get("getOpenApi", openapi::openapi_json))
        .route("/docs", get("getDocs", openapi::docs_page))
        .route("/docs/json", get("getDocsJson", openapi::docs_json))
        .route("/docs/yaml", get("getDocsYaml", openapi::docs_yaml))
        .tag("Agents")
        .route(
            "/api/agents",
            get("listAgents", agents::list).and(post("createAgent", agents::deploy)).limited(128 * MIB),
        )
        .route(
            "/api/agents/{name}",
            get("getAgent", agents::get)
                .and(patch("updateAgent", agents::change))
                .and(delete("deleteAgent", agents::delete)),
        )
        .route(
            "/api/agents/{name}/config",
            get("getAgentConfig", agents::config).and(patch("updateAgentConfig", agents::change_config)),
        )
        .tag("Sessions")
        .route(
            "/api/sessions",
            get("listSessions", session_list::sessions).and(post("createSession", sessions::create)),
        )
        .route(
            "/api/sessions/{id}",
            get("getSession", sessions::get)
                .and(patch("updateSessionMetadata", session_metadata::change))
                .and(delete("endSession", sessions::end)),
        )
        .route("/api/sessions/{id}/config", patch("updateSessionConfig", sessions::change_config))
        .route("/api/sessions/{id}/pause", post("pauseSession", sessions::pause))
        .route("/api/sessions/{id}/resume", post("resumeSession", sessions::resume))
        .route("/api/sessions/{id}/stop", post("stopSession", sessions::stop))
        .route("/api/sessions/{id}/fork", post("forkSession", sessions::fork))
        .route("/api/sessions/{id}/rewind", post("rewindSession", checkpoints::rewind))
        .route("/api/sessions/{id}/interrupt", post("interruptSession", sessions::interrupt))
        .route("/api/sessions/{id}/exec", post("exec", sessions::exec))
        .route("/api/sessions/{id}/logs", get("getSessionLogs", sessions::logs))
        .tag("Workspaces")
        .route(
            "/api/workspaces",
            get("listWorkspaces", workspaces::list).and(post("createWorkspace", workspaces::create)),
        )
        .route(
            "/api/workspaces/{slug}",
            get("getWorkspace", workspaces::get).and(delete("deleteWorkspace", workspaces::delete)),
        )
        .route("/api/workspaces/{slug}/files", get("getWorkspaceFiles", workspaces::files))
        .route("/api/workspaces/{slug}/checkpoints", get("listWorkspaceCheckpoints", workspaces::checkpoints))
        .tag("Permissions")
        .route("/api/sessions/{id}/permissions", get("listPermissions", permissions::list))
        .route("/api/sessions/{id}/permissions/{permission}", post("answerPermission", permissions::answer))
        .route("/api/sessions/{id}/tools", get("listToolCalls", tools::list))
        .route("/api/sessions/{id}/tools/{call}", post("answerToolCall", tools::answer))
        .tag("Messages")
        .route(
            "/api/sessions/{id}/messages",
            get("listMessages", messages::list).and(post("sendMessage", messages::send)).limited(50 * MIB),
        )
        .route("/api/sessions/{id}/events", get("listSessionEvents", messages::events))
        .route("/api/sessions/{id}/log", get("getSessionLog", log::log))
        .route("/api/sessions/{id}/conversation", get("getConversation", conversation::conversation))
        .route("/api/sessions/{id}/stream", get("streamSession", messages::stream))
        .route("/api/sessions/{id}/stream-token", post("createStreamToken", stream_tokens::create))
        .tag("Queue")
        .route(
            "/api/sessions/{id}/queue",
            get("listQueue", queue::list).and(patch("reorderQueue", queue::reorder)),
        )
        .route("/api/sessions/{id}/queue/{turn}", delete("withdrawMessage", queue::withdraw))
        .tag("Locks")
        .route(
            "/api/sessions/{id}/lock",
            get("getLock", locks::show)
                .and(post("acquireLock", locks::acquire))
                .and(delete("releaseLock", locks::release)),
        )
        .tag("Files")
        .route(
            "/api/sessions/{id}/files",
            get("getSessionFiles", files::list)
                .and(post("writeSessionFiles", files::write))
                .limited(200 * MIB),
        )
        .route(
            "/api/sessions/{id}/files/{*path}",
            get("getSessionFile", files::read).and(delete("deleteSessionFile", files::delete)),
        )
        .route(
            "/api/sessions/{id}/workspace",
            get("downloadWorkspace", files::bundle)
                .and(post("uploadWorkspace", files::unbundle))
                .limited(134 * MIB),
        )
        .route("/api/sessions/{id}/plan", get("getPlan", artifacts::plan))
        .route("/api/sessions/{id}/artifacts", get("listArtifacts", artifacts::list))
        .route("/api/sessions/{id}/artifacts/{*path}", get("getArtifact", artifacts::read))
        .tag("Checkpoints")
        .route(
            "/api/sessions/{id}/checkpoints",
            get("listCheckpoints", checkpoints::list).and(post("createCheckpoint", checkpoints::create)),
        )
        .route("/api/sessions/{id}/checkpoints/{n}", get("getCheckpoint", checkpoints::get))
        .route("/api/sessions/{id}/checkpoints/{n}/diff", get("diffCheckpoint", checkpoints::diff))
        .tag("Usage")
        .route("/api/usage", get("listUsageEvents", usage::usage))
        .route("/api/usage/stats", get("getUsageStats", usage::stats))
        .tag("Retention")
        .route(
            "/api/retention",
            get("getRetention", retention::retention).and(post("applyRetention", retention::apply_retention)),
        )
        .route("/api/prune", post("pruneSessions", retention::prune))
        .route("/api/audit", get("listAudit", retention::audit))
        .tag("Keys")
        .route("/api/api-keys", get("listApiKeys", keys::list).and(post("createApiKey", keys::create)))
        .route("/api/api-keys/{id}", delete("deleteApiKey", keys::delete))
        .route(
            "/api/credentials",
            get("listCredentials", credentials::list).and(post("storeCredential", credentials::create)),
        )
        .route("/api/credentials/{id}", delete("deleteCredential", credentials::delete))
        .route("/api/internal/api-keys", post("createTenantApiKey", keys::create_for_tenant))
}

pub(crate) fn router(app: AppState) -> Router {
    api()
        .router
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
