//! The Ash REST API over HTTP: parses requests, calls `ash_session`, and writes answers. `routes.rs` is the API as a
//! table; only `app.rs` picks backends.

mod app;
mod archive;
mod auth;
mod config;
mod conversation;
mod data_dir;
mod database;
mod docker_engine;
mod edge;
mod field_coercion;
mod filesystem;
mod gitignore;
mod idempotency;
mod limit_enforcement;
mod metrics;
mod openapi;
mod poll_time;
mod problem;
mod render;
mod required_walls;
mod routes;
mod shapes;
mod sse;
mod turn;
mod wire;

pub use app::{RepairReport, ServerError, fill, list_remote_sessions, repair, restore, serve};
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use archive::fuzzing;
pub use archive::is_excluded_from_bundle;
pub use ash_session::{RemoteRestoreReport, RepairMode, RepairedSession, ReplicatedSession};
pub use config::{SECRETS, SandboxSetting, ServerConfig};
pub use filesystem::FilesystemInfo;
pub use limit_enforcement::LimitEnforcement;
pub use poll_time::watch_poll_times;
pub use required_walls::unmet_wall_requirements;
pub use wire::stream::EVENTS;

/// The server's version, as clients see it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
