//! Checks the port, and the server that clients use.

use super::{DoctorCheck, database::is_of_database};
use crate::{
    api::{ApiClient, CliError, Result},
    settings::{ClientSettings, RunningServer, SavedClientConfig, running_server},
    terminal,
};
use ash_model::FailureKind;
use ash_server::ServerConfig;
use serde_json::Value;
use std::{
    io,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// The health report of a server that accepted our key.
pub(super) struct ServerHealth {
    url: String,
    pub(super) health: Value,
}

impl ServerHealth {
    pub(super) fn is_of(&self, running: &RunningServer) -> bool {
        self.url == running.url
    }

    pub(super) fn troubles(&self) -> impl Iterator<Item = &Value> {
        self.health["trouble"].as_array().into_iter().flatten()
    }
}

/// Asks the server that clients use. `Err`: the line to report instead.
pub(super) async fn query_server_health(
    settings: &ClientSettings,
) -> std::result::Result<ServerHealth, DoctorCheck> {
    let api = ApiClient::new(settings);
    let wanted = || ServerExpectation::of(settings, running_server());
    let health =
        in_time(api.get("/health")).await.map_err(|failure| unreachable(failure, &api.url, wanted()))?;
    match in_time(api.get("/api/agents")).await {
        Ok(_) => Ok(ServerHealth { url: api.url, health }),
        Err(failure) if failure.kind == FailureKind::Unauthorized => {
            let degraded =
                if health["degraded"] == true { ", and says that something is wrong with it" } else { "" };
            let remedy = "give its key with ASH_API_KEY, or save it with `ASH_API_KEY=KEY ash link URL`";
            Err(DoctorCheck::problem(
                "server",
                format!("{} does not accept the key{degraded}", api.url),
                remedy,
            ))
        }
        Err(failure) => {
            Err(DoctorCheck::problem("server", format!("{}: {}", api.url, failure.message), "see `ash logs`"))
        }
    }
}

/// The server's health report: status, load and troubles.
pub(super) fn health_checks(told: &ServerHealth) -> Vec<DoctorCheck> {
    let mut checks = vec![judge_server(&told.url, &told.health), in_use(&told.health)];
    let others = told.troubles().filter(|one| {
        let code = one["code"].as_str().unwrap_or_default();
        // Other checks report these.
        !is_of_database(code) && !code.starts_with("object_store_")
    });
    checks.extend(others.map(trouble));
    checks
}

fn trouble(trouble: &Value) -> DoctorCheck {
    let text = |name: &str| trouble[name].as_str().unwrap_or_default();
    let since = terminal::format_age(text("since"), jiff::Timestamp::now());
    DoctorCheck::problem(
        "trouble",
        text("error"),
        format!("{} since {since}; docs/operations.md", text("code")),
    )
}

fn in_use(health: &Value) -> DoctorCheck {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let pool = &health["pool"];
    let sessions = terminal::plural(number(&health["activeSessions"]), "active session");
    let (running, waiting, most) =
        (number(&pool["running"]), number(&pool["waiting"]), number(&pool["maxCapacity"]));
    let alive = terminal::plural(running + waiting, "sandbox").replace("sandboxs", "sandboxes");
    DoctorCheck::fine("in use", format!("{sessions}, {alive} of {most} ({running} at work)"))
}

pub(super) async fn port(config: &ServerConfig) -> DoctorCheck {
    if let Some(own) = running_server() {
        let address = own.url.trim_start_matches("http://");
        return DoctorCheck::fine("port", format!("{address} is used by your server (pid {})", own.pid));
    }
    let address = SocketAddr::new(config.host, config.port);
    match TcpListener::bind(address) {
        Ok(_) if address.port() == 0 => DoctorCheck::fine("port", "any free one"),
        Ok(_) => DoctorCheck::fine("port", format!("{address} is free")),
        Err(error) => taken(address, &error, is_ash(address).await),
    }
}

/// Whether the listener is an ash server. The request has no key: the listener may belong to another user.
async fn is_ash(address: SocketAddr) -> bool {
    let there = ClientSettings::without_key(format!("http://{address}"));
    let health = in_time(ApiClient::new(&there).get("/health")).await;
    health.is_ok_and(|health| health["pool"]["maxCapacity"].is_u64() && health["version"].is_string())
}

fn taken(address: SocketAddr, error: &io::Error, by_ash: bool) -> DoctorCheck {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse if by_ash => DoctorCheck::fine(
            "port",
            format!("{address} is used by an ash server with another data directory"),
        ),
        io::ErrorKind::AddrInUse => DoctorCheck::problem(
            "port",
            format!("{address} is used by another program"),
            format!("end it (`ss -ltnp 'sport = :{port}'` shows it), or choose another port with ASH_PORT"),
        ),
        io::ErrorKind::PermissionDenied => DoctorCheck::problem(
            "port",
            format!("{address} is only for root"),
            "choose one above 1023 with ASH_PORT",
        ),
        _ => DoctorCheck::problem(
            "port",
            format!("{address}: {error}"),
            "choose another address with ASH_HOST and ASH_PORT",
        ),
    }
}

async fn in_time(answer: impl Future<Output = Result<Value>>) -> Result<Value> {
    let late = || {
        CliError::new(FailureKind::Unavailable, format!("no answer within {} s", HEALTH_TIMEOUT.as_secs()))
    };
    tokio::time::timeout(HEALTH_TIMEOUT, answer).await.unwrap_or_else(|_| Err(late()))
}

fn judge_server(url: &str, health: &Value) -> DoctorCheck {
    let version = health["version"].as_str().unwrap_or("?");
    let found = format!("ash {version} at {url}, and the key is valid");
    match health["status"].as_str() {
        Some("ok") if version == ash_server::VERSION => DoctorCheck::fine("server", found),
        Some("ok") => {
            let remedy =
                format!("this program is {}; `ash restart` brings the server to it", ash_server::VERSION);
            DoctorCheck::warning("server", found, remedy)
        }
        other => DoctorCheck::warning(
            "server",
            format!("{found}; it is {}", other.unwrap_or("?")),
            "see `ash logs`",
        ),
    }
}

/// Why a server is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerExpectation {
    /// The user configured its address.
    Configured,
    /// A note exists, and its process is alive.
    ProcessAlive,
    NotExpected,
}

impl ServerExpectation {
    fn of(settings: &ClientSettings, running: Option<RunningServer>) -> ServerExpectation {
        if settings.server.is_some() || SavedClientConfig::load().server_url.is_some() {
            return ServerExpectation::Configured;
        }
        if running.is_some() { ServerExpectation::ProcessAlive } else { ServerExpectation::NotExpected }
    }
}

fn unreachable(failure: CliError, url: &str, wanted: ServerExpectation) -> DoctorCheck {
    match wanted {
        ServerExpectation::NotExpected => DoctorCheck::fine("server", "not started; `ash start` starts it"),
        ServerExpectation::Configured => {
            let remedy =
                "start it there, or talk to the local one again: `ash unlink`, and unset ASH_SERVER_URL";
            DoctorCheck::problem("server", format!("{url}: {}", first_sentence(&failure.message)), remedy)
        }
        ServerExpectation::ProcessAlive => {
            let found = format!("its process runs, but {url} does not answer");
            DoctorCheck::problem("server", found, "see `ash logs`, then `ash restart`")
        }
    }
}

fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first)
}

#[cfg(test)]
mod tests {
    use super::{super::CheckSeverity, *};
    use serde_json::json;

    fn address() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 4100))
    }

    #[test]
    fn a_port_that_another_program_has_is_a_problem() {
        let in_use = io::Error::from(io::ErrorKind::AddrInUse);
        assert_eq!(taken(address(), &in_use, true).level, CheckSeverity::Fine);
        assert_eq!(taken(address(), &in_use, false).level, CheckSeverity::Problem);
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(taken(address(), &denied, false).remedy, ["choose one above 1023 with ASH_PORT"]);
    }

    #[test]
    fn a_server_that_was_not_started_is_no_problem() {
        let level =
            |wanted| unreachable(CliError::new(FailureKind::Unavailable, "no"), "http://x", wanted).level;
        assert_eq!(
            [ServerExpectation::NotExpected, ServerExpectation::Configured, ServerExpectation::ProcessAlive]
                .map(level),
            {
                use CheckSeverity::{Fine, Problem};
                [Fine, Problem, Problem]
            }
        );
    }

    #[test]
    fn everything_that_troubles_the_server_has_a_line() {
        let trouble = |code: &str| json!({ "code": code, "error": format!("{code}!"), "since": "2026-11-15T12:00:00.000Z" });
        let health = json!({
            "status": "ok", "version": ash_server::VERSION, "activeSessions": 1,
            "pool": { "running": 1, "waiting": 2, "maxCapacity": 10 },
            "trouble": [trouble("clock_jumped"), trouble("database_behind"), trouble("object_store_denied"), trouble("disk_full")],
        });
        let said = health_checks(&ServerHealth { url: "http://x".to_owned(), health });
        let said: Vec<_> = said.iter().map(|check| (check.level, check.found.as_str())).collect();
        let server = format!("ash {} at http://x, and the key is valid", ash_server::VERSION);
        let expected = [
            (CheckSeverity::Fine, server.as_str()),
            (CheckSeverity::Fine, "1 active session, 3 sandboxes of 10 (1 at work)"),
            (CheckSeverity::Problem, "clock_jumped!"),
            (CheckSeverity::Problem, "disk_full!"),
        ];
        assert_eq!(said, expected, "those of the database and the object store are said there");
    }

    #[test]
    fn a_server_of_another_version_is_noticed() {
        let level = |health: Value| judge_server("http://x", &health).level;
        assert_eq!(level(json!({ "status": "ok", "version": ash_server::VERSION })), CheckSeverity::Fine);
        assert_eq!(level(json!({ "status": "ok", "version": "0.0.0" })), CheckSeverity::Warning);
        assert_eq!(
            level(json!({ "status": "stopping", "version": ash_server::VERSION })),
            CheckSeverity::Warning
        );
        assert_eq!(level(json!({})), CheckSeverity::Warning);
    }
}
