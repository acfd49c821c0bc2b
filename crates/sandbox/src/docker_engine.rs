//! A client of a Docker engine's socket. It uses HTTP/1.0 and one request per connection: an answer then ends where the
//! connection does, and only the status line needs parsing.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

const DEFAULT: &str = "/var/run/docker.sock";
/// An engine under load takes seconds to start a container, and a shim has 20 seconds for the whole start.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(12);
/// A healthy engine answers a ping in milliseconds, even under load.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);
const MAX_RESPONSE_BYTES: u64 = 16 << 20;
/// The end of a container's output matters most.
const MAX_LOG_BYTES: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DockerEngine {
    pub(crate) socket: PathBuf,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ContainerState {
    pub(crate) running: bool,
    pub(crate) pid: u32,
    pub(crate) exit_code: i32,
    #[serde(rename = "OOMKilled")]
    pub(crate) oom_killed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListedContainer {
    pub(crate) id: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) labels: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct EngineInfo {
    pub(crate) server_version: String,
    pub(crate) security_options: Option<Vec<String>>,
}

struct EngineResponse {
    status: u16,
    body: Vec<u8>,
}

impl EngineResponse {
    fn read<T: DeserializeOwned>(&self) -> io::Result<T> {
        serde_json::from_slice(&self.body).map_err(|e| io::Error::other(format!("the engine said: {e}")))
    }

    /// The engine's explanation of a failed request.
    fn why(&self) -> io::Error {
        let told = serde_json::from_slice::<Value>(&self.body).ok();
        let told = told.as_ref().and_then(|told| told.get("message")).and_then(Value::as_str);
        let text = told.map_or_else(|| String::from_utf8_lossy(&self.body).into_owned(), str::to_owned);
        io::Error::other(format!("the engine answers {}: {}", self.status, text.trim()))
    }
}

impl DockerEngine {
    /// `host` has the syntax of DOCKER_HOST. Only engines on this machine: sandbox directories are shared with them.
    pub(crate) fn at(host: Option<&str>) -> Result<Self, String> {
        let socket = match host.filter(|host| !host.is_empty()) {
            None => DEFAULT,
            Some(host) => host
                .strip_prefix("unix://")
                .filter(|path| path.starts_with('/'))
                .ok_or_else(|| format!("DOCKER_HOST is {host:?}, and must be unix:///PATH: ash shares directories with the engine, which only works on one machine"))?,
        };
        Ok(Self { socket: socket.into() })
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<EngineResponse> {
        self.ask_within(REQUEST_TIMEOUT, (method, path), body)
    }

    fn ask_within(
        &self,
        patience: Duration,
        (method, path): (&str, &str),
        body: Option<&Value>,
    ) -> io::Result<EngineResponse> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: engine\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut bytes = Vec::new();
        stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut bytes).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "the engine does not answer")
            }
            _ => e,
        })?;
        answer(&bytes).ok_or_else(|| io::Error::other("the engine's answer makes no sense"))
    }

    fn request_checked(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<EngineResponse> {
        let answer = self.ask(method, path, body)?;
        if (200..400).contains(&answer.status) { Ok(answer) } else { Err(answer.why()) }
    }

    /// Whether the engine answers at all. Callers ask this before requests that may take long.
    pub(crate) fn ping(&self) -> io::Result<()> {
        let answer = self.ask_within(PING_TIMEOUT, ("GET", "/_ping"), None)?;
        if answer.status == 200 { Ok(()) } else { Err(answer.why()) }
    }

    pub(crate) fn info(&self) -> io::Result<EngineInfo> {
        self.request_checked("GET", "/info", None)?.read()
    }

    pub(crate) fn has_image(&self, image: &str) -> io::Result<bool> {
        let answer = self.ask("GET", &format!("/images/{image}/json"), None)?;
        match answer.status {
            200 => Ok(true),
            404 => Ok(false),
            _ => Err(answer.why()),
        }
    }

    /// The volumes that an image declares; none if the image is missing.
    pub(crate) fn volumes(&self, image: &str) -> io::Result<Vec<String>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct InspectedImage {
            config: Option<InspectedImageConfig>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct InspectedImageConfig {
            volumes: Option<std::collections::BTreeMap<String, Value>>,
        }
        let answer = self.ask("GET", &format!("/images/{image}/json"), None)?;
        match answer.status {
            200 => {
                let config = answer.read::<InspectedImage>()?.config;
                Ok(config.and_then(|config| config.volumes).into_iter().flatten().map(|(at, _)| at).collect())
            }
            404 => Ok(Vec::new()),
            _ => Err(answer.why()),
        }
    }

    pub(crate) fn create(&self, name: &str, container: &Value) -> io::Result<()> {
        self.request_checked("POST", &format!("/containers/create?name={name}"), Some(container)).map(drop)
    }

    pub(crate) fn start(&self, name: &str) -> io::Result<()> {
        self.request_checked("POST", &format!("/containers/{name}/start"), None).map(drop)
    }

    /// None: there is no such container.
    pub(crate) fn state(&self, name: &str) -> io::Result<Option<ContainerState>> {
        self.state_within(REQUEST_TIMEOUT, name)
    }

    pub(crate) fn state_within(&self, patience: Duration, name: &str) -> io::Result<Option<ContainerState>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Inspected {
            state: ContainerState,
        }
        let answer = self.ask_within(patience, ("GET", &format!("/containers/{name}/json")), None)?;
        match answer.status {
            200 => answer.read::<Inspected>().map(|inspected| Some(inspected.state)),
            404 => Ok(None),
            _ => Err(answer.why()),
        }
    }

    pub(crate) fn last_output(&self, name: &str) -> String {
        let said = self.request_checked("GET", &format!("/containers/{name}/logs?stderr=1&tail=20"), None);
        let text = said.map(|answer| unwrapped(&answer.body)).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(MAX_LOG_BYTES)..]).trim().to_owned()
    }

    /// Removes a container, running or not. Returns when it is gone, even if another caller removes it at the same
    /// time.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        self.ping()?;
        let answer = self.ask("DELETE", &format!("/containers/{name}?force=1&v=1"), None)?;
        match answer.status {
            200..400 | 404 => Ok(()),
            409 if self.is_gone_soon(name)? => Ok(()),
            _ => Err(answer.why()),
        }
    }

    /// The engine answers 409 while another removal of the same container is in progress.
    fn is_gone_soon(&self, name: &str) -> io::Result<bool> {
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        while self.state(name)?.is_some() {
            if Instant::now() > deadline {
                return Ok(false);
            }
            thread::sleep(POLL);
        }
        Ok(true)
    }

    pub(crate) fn list(&self, label: &str) -> io::Result<Vec<ListedContainer>> {
        let filters = escaped(&serde_json::json!({ "label": [label] }).to_string());
        self.request_checked("GET", &format!("/containers/json?all=1&filters={filters}"), None)?.read()
    }
}

fn answer(bytes: &[u8]) -> Option<EngineResponse> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let line = bytes[..end].split(|byte| *byte == b'\r').next()?;
    let status = std::str::from_utf8(line).ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(EngineResponse { status, body: bytes[end + 4..].to_vec() })
}

/// Container output comes in pieces. Each has a header of eight bytes, of which the last four are its length.
fn unwrapped(mut bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let (piece, later) = rest.split_at(length.min(rest.len()));
        text.extend_from_slice(piece);
        bytes = later;
    }
    text
}

fn escaped(text: &str) -> String {
    text.bytes()
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            },
        )
        .collect()
}

/// The message for a socket that cannot be used.
pub(crate) fn explained(socket: &Path, e: &io::Error) -> String {
    let socket = socket.display();
    match e.kind() {
        io::ErrorKind::NotFound => format!("there is no Docker engine at {socket}"),
        io::ErrorKind::PermissionDenied => format!("you may not use the Docker engine at {socket}"),
        io::ErrorKind::ConnectionRefused => format!("the Docker engine at {socket} does not run"),
        io::ErrorKind::TimedOut => format!("the Docker engine at {socket} does not answer"),
        _ => format!("the Docker engine at {socket}: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_status_and_what_follows_the_empty_line() {
        let found = answer(b"HTTP/1.0 404 Not Found\r\nA: b\r\n\r\n{\"message\":\"No such image: x\"}")
            .expect("an answer");
        assert_eq!(
            (found.status, found.why().to_string()),
            (404, "the engine answers 404: No such image: x".to_owned())
        );
        assert!(answer(b"HTTP/1.0 404 Not Found\r\n").is_none());
    }

    #[test]
    fn pieces_of_output_are_put_together_and_a_torn_one_is_taken_as_it_is() {
        let said = b"\x02\0\0\0\0\0\0\x03one\x01\0\0\0\0\0\0\x09two";
        assert_eq!(unwrapped(said), b"onetwo");
    }

    #[test]
    fn only_an_engine_on_this_machine_will_do() {
        let socket = |host| DockerEngine::at(host).map(|engine| engine.socket.display().to_string());
        assert_eq!(socket(None), Ok(DEFAULT.to_owned()));
        assert_eq!(socket(Some("")), Ok(DEFAULT.to_owned()));
        assert_eq!(socket(Some("unix:///run/d.sock")), Ok("/run/d.sock".to_owned()));
        for host in ["tcp://1.2.3.4:2375", "ssh://there", "unix://d.sock", "/run/d.sock"] {
            assert!(socket(Some(host)).expect_err(host).contains("unix:///PATH"));
        }
    }
}
