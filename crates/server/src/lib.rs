//! THE DOOR: the Ash REST API over HTTP. Takes requests apart, calls `ash_session`, answers.
//! `routes.rs` is the API as a table; `app.rs` alone picks backends.

mod app;
mod archive;
mod audit;
mod auth;
mod config;
mod data_dir;
mod database;
mod disk;
mod edge;
mod enforced;
mod engine;
mod fields;
mod ignored;
mod keys;
mod metrics;
mod once;
mod problem;
mod render;
mod routes;
mod shapes;
mod sse;
mod stretch;
mod turn;
mod walls;

pub use app::{RepairReport, ServerError, list_remote_sessions, repair, restore, serve};
pub use archive::is_excluded_from_bundle;
pub use ash_session::{RemoteRestoreReport, RepairMode, RepairedSession, ReplicatedSession};
pub use config::{SECRETS, SandboxSetting, ServerConfig};
pub use disk::FilesystemInfo;
pub use enforced::LimitEnforcement;
pub use render::EVENTS;
pub use stretch::watch_poll_times;
pub use walls::unmet_wall_requirements;

/// What clients see as the server's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
