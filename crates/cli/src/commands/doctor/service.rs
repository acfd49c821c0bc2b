//! The port, and the server that clients would talk to.

use super::Check;
use crate::{
    api::{Api, Failure, Result},
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

pub(super) async fn check(config: &Config, settings: &Settings) -> Vec<Check> {
    let server = server(settings).await;
    let address = SocketAddr::new(config.host, config.port);
    vec![port(address, settings).await, server]
}

async fn port(address: SocketAddr, settings: &Settings) -> Check {
    if let Some(own) = running().filter(|own| own.url == format!("http://{address}")) {
        return Check::fine("port", format!("{address} is used by your server (pid {})", own.pid));
    }
    match TcpListener::bind(address) {
        Ok(_) if address.port() == 0 => Check::fine("port", "any free one"),
        Ok(_) => Check::fine("port", format!("{address} is free")),
        Err(error) => taken(address, &error, is_ash(address, settings).await),
    }
}

/// Whether the one that listens there is a server of ours.
async fn is_ash(address: SocketAddr, settings: &Settings) -> bool {
    let there = Settings { server: Some(format!("http://{address}")), ..settings.clone() };
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

async fn server(settings: &Settings) -> Check {
    let api = Api::new(settings);
    let health = match in_time(api.get("/health")).await {
        Ok(health) => health,
        Err(failure) => return unreachable(failure, &api.url, Wanted::of(settings, running())),
    };
    match in_time(api.get("/api/agents")).await {
        Ok(_) => judge_server(&api.url, &health),
        Err(failure) if failure.kind == Kind::Unauthorized => {
            if Wanted::of(settings, running()) == Wanted::No {
                return Check::fine(
                    "server",
                    format!("not started; the one at {} is somebody else's", api.url),
                );
            }
            let remedy = "give its key with ASH_API_KEY, or save it with `ASH_API_KEY=KEY ash link URL`";
            Check::problem("server", format!("{} does not accept the key", api.url), remedy)
        }
        Err(failure) => {
            Check::problem("server", format!("{}: {}", api.url, failure.message), "see `ash logs`")
        }
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
    fn a_server_of_another_version_is_noticed() {
        let level = |health: Value| judge_server("http://x", &health).level;
        assert_eq!(level(json!({ "status": "ok", "version": ash_server::VERSION })), Level::Fine);
        assert_eq!(level(json!({ "status": "ok", "version": "0.0.0" })), Level::Warning);
        assert_eq!(level(json!({ "status": "stopping", "version": ash_server::VERSION })), Level::Warning);
        assert_eq!(level(json!({})), Level::Warning);
    }
}
