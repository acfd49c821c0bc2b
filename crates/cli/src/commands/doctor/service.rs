//! The port, and the server that clients would talk to.

use super::{Check, database::is_of_database};
use crate::{
    api::{Api, Failure, Result},
    out,
    settings::{Running, Saved, Settings, running},
};
use ash_model::Kind;
use ash_server::Config;
use serde_json::Value;
use std::{
    io,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(5);

/// What a server answered that was asked how it is, with a key that it knows.
pub(super) struct Told {
    url: String,
    pub(super) health: Value,
}

impl Told {
    pub(super) fn is_of(&self, running: &Running) -> bool {
        self.url == running.url
    }

    pub(super) fn troubles(&self) -> impl Iterator<Item = &Value> {
        self.health["trouble"].as_array().into_iter().flatten()
    }
}

/// Asks the server that clients would talk to. `Err`: what to say instead.
pub(super) async fn ask(settings: &Settings) -> std::result::Result<Told, Check> {
    let api = Api::new(settings);
    let wanted = || Wanted::of(settings, running());
    let health =
        in_time(api.get("/health")).await.map_err(|failure| unreachable(failure, &api.url, wanted()))?;
    match in_time(api.get("/api/agents")).await {
        Ok(_) => Ok(Told { url: api.url, health }),
        Err(failure) if failure.kind == Kind::Unauthorized => {
            let degraded =
                if health["degraded"] == true { ", and says that something is wrong with it" } else { "" };
            let remedy = "give its key with ASH_API_KEY, or save it with `ASH_API_KEY=KEY ash link URL`";
            Err(Check::problem("server", format!("{} does not accept the key{degraded}", api.url), remedy))
        }
        Err(failure) => {
            Err(Check::problem("server", format!("{}: {}", api.url, failure.message), "see `ash logs`"))
        }
    }
}

/// What the server says: how it is, how much is going on, and what is wrong with it.
pub(super) fn told(told: &Told) -> Vec<Check> {
    let mut checks = vec![judge_server(&told.url, &told.health), in_use(&told.health)];
    let others = told.troubles().filter(|one| {
        let code = one["code"].as_str().unwrap_or_default();
        // These have lines of their own.
        !is_of_database(code) && !code.starts_with("object_store_")
    });
    checks.extend(others.map(trouble));
    checks
}

fn trouble(trouble: &Value) -> Check {
    let text = |name: &str| trouble[name].as_str().unwrap_or_default();
    let since = out::ago(text("since"), jiff::Timestamp::now());
    Check::problem("trouble", text("error"), format!("{} since {since}; docs/operations.md", text("code")))
}

fn in_use(health: &Value) -> Check {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let pool = &health["pool"];
    let sessions = out::plural(number(&health["activeSessions"]), "active session");
    let (running, waiting, most) =
        (number(&pool["running"]), number(&pool["waiting"]), number(&pool["maxCapacity"]));
    let alive = out::plural(running + waiting, "sandbox").replace("sandboxs", "sandboxes");
    Check::fine("in use", format!("{sessions}, {alive} of {most} ({running} at work)"))
}

pub(super) async fn port(config: &Config) -> Check {
    if let Some(own) = running() {
        let address = own.url.trim_start_matches("http://");
        return Check::fine("port", format!("{address} is used by your server (pid {})", own.pid));
    }
    let address = SocketAddr::new(config.host, config.port);
    match TcpListener::bind(address) {
        Ok(_) if address.port() == 0 => Check::fine("port", "any free one"),
        Ok(_) => Check::fine("port", format!("{address} is free")),
        Err(error) => taken(address, &error, is_ash(address).await),
    }
}

/// Whether the one that listens there is a server like ours. It gets no key: it may be anybody's.
async fn is_ash(address: SocketAddr) -> bool {
    let there = Settings::of_stranger(format!("http://{address}"));
    let health = in_time(Api::new(&there).get("/health")).await;
    health.is_ok_and(|health| health["pool"]["maxCapacity"].is_u64() && health["version"].is_string())
}

fn taken(address: SocketAddr, error: &io::Error, by_ash: bool) -> Check {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse if by_ash => {
            Check::fine("port", format!("{address} is used by an ash server with another data directory"))
        }
        io::ErrorKind::AddrInUse => Check::problem(
            "port",
            format!("{address} is used by another program"),
            format!("end it (`ss -ltnp 'sport = :{port}'` shows it), or choose another port with ASH_PORT"),
        ),
        io::ErrorKind::PermissionDenied => Check::problem(
            "port",
            format!("{address} is only for root"),
            "choose one above 1023 with ASH_PORT",
        ),
        _ => Check::problem(
            "port",
            format!("{address}: {error}"),
            "choose another address with ASH_HOST and ASH_PORT",
        ),
    }
}

async fn in_time(answer: impl Future<Output = Result<Value>>) -> Result<Value> {
    let late = || Failure::new(Kind::Unavailable, format!("no answer within {} s", PATIENCE.as_secs()));
    tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(|_| Err(late()))
}

fn judge_server(url: &str, health: &Value) -> Check {
    let version = health["version"].as_str().unwrap_or("?");
    let found = format!("ash {version} at {url}, and the key is valid");
    match health["status"].as_str() {
        Some("ok") if version == ash_server::VERSION => Check::fine("server", found),
        Some("ok") => {
            let remedy =
                format!("this program is {}; `ash restart` brings the server to it", ash_server::VERSION);
            Check::warning("server", found, remedy)
        }
        other => {
            Check::warning("server", format!("{found}; it is {}", other.unwrap_or("?")), "see `ash logs`")
        }
    }
}

/// Why a server should be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Somebody said where it is.
    Named,
    /// Its note is there, and its process.
    Runs,
    No,
}

impl Wanted {
    fn of(settings: &Settings, running: Option<Running>) -> Wanted {
        if settings.server.is_some() || Saved::load().server_url.is_some() {
            return Wanted::Named;
        }
        if running.is_some() { Wanted::Runs } else { Wanted::No }
    }
}

fn unreachable(failure: Failure, url: &str, wanted: Wanted) -> Check {
    match wanted {
        Wanted::No => Check::fine("server", "not started; `ash start` starts it"),
        Wanted::Named => {
            let remedy =
                "start it there, or talk to the local one again: `ash unlink`, and unset ASH_SERVER_URL";
            Check::problem("server", format!("{url}: {}", first_sentence(&failure.message)), remedy)
        }
        Wanted::Runs => {
            let found = format!("its process runs, but {url} does not answer");
            Check::problem("server", found, "see `ash logs`, then `ash restart`")
        }
    }
}

fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first)
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};
    use serde_json::json;

    fn address() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 4100))
    }

    #[test]
    fn a_port_that_another_program_has_is_a_problem() {
        let in_use = io::Error::from(io::ErrorKind::AddrInUse);
        assert_eq!(taken(address(), &in_use, true).level, Level::Fine);
        assert_eq!(taken(address(), &in_use, false).level, Level::Problem);
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(taken(address(), &denied, false).remedy, ["choose one above 1023 with ASH_PORT"]);
    }

    #[test]
    fn a_server_that_nobody_started_is_no_problem() {
        let level = |wanted| unreachable(Failure::new(Kind::Unavailable, "no"), "http://x", wanted).level;
        assert_eq!([Wanted::No, Wanted::Named, Wanted::Runs].map(level), {
            use Level::{Fine, Problem};
            [Fine, Problem, Problem]
        });
    }

    #[test]
    fn everything_that_troubles_the_server_has_a_line() {
        let trouble = |code: &str| json!({ "code": code, "error": format!("{code}!"), "since": "2026-11-15T12:00:00.000Z" });
        let health = json!({
            "status": "ok", "version": ash_server::VERSION, "activeSessions": 1,
            "pool": { "running": 1, "waiting": 2, "maxCapacity": 10 },
            "trouble": [trouble("clock_jumped"), trouble("database_behind"), trouble("object_store_denied"), trouble("disk_full")],
        });
        let said = told(&Told { url: "http://x".to_owned(), health });
        let said: Vec<_> = said.iter().map(|check| (check.level, check.found.as_str())).collect();
        let server = format!("ash {} at http://x, and the key is valid", ash_server::VERSION);
        let expected = [
            (Level::Fine, server.as_str()),
            (Level::Fine, "1 active session, 3 sandboxes of 10 (1 at work)"),
            (Level::Problem, "clock_jumped!"),
            (Level::Problem, "disk_full!"),
        ];
        assert_eq!(said, expected, "those of the database and the object store are said there");
    }

    #[test]
    fn a_server_of_another_version_is_noticed() {
        let level = |health: Value| judge_server("http://x", &health).level;
        assert_eq!(level(json!({ "status": "ok", "version": ash_server::VERSION })), Level::Fine);
        assert_eq!(level(json!({ "status": "ok", "version": "0.0.0" })), Level::Warning);
        assert_eq!(level(json!({ "status": "stopping", "version": ash_server::VERSION })), Level::Warning);
        assert_eq!(level(json!({})), Level::Warning);
    }
}
