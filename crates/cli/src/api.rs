//! HTTP client of the command line: it picks the server and the key, and turns refusals into errors that name the next
//! step.

use crate::{settings::ClientSettings, shell_messages};
use ash_model::FailureKind;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;

const ENDED: &str =
    "the session has ended; its last checkpoint stays, and `ash session fork ID` continues from it";
const NO_SERVER: &str = "no server of yours is running here. Start one with `ash start`, or name another with --server or `ash link URL`";
/// In seconds.
const QUEUE_TIMEOUT_SECONDS: u32 = 60;

#[derive(Debug, Clone)]
pub(crate) struct ApiClient {
    http: reqwest::Client,
    /// Empty if no server is configured and none runs here.
    pub(crate) url: String,
    key: Option<String>,
    settings: ClientSettings,
}

/// Why a command failed. The exit code follows from the kind.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CliError {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
}

pub(crate) type Result<T> = std::result::Result<T, CliError>;

impl CliError {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> CliError {
        CliError { kind, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> CliError {
        CliError::new(FailureKind::Invalid, message)
    }

    pub(crate) fn ended() -> CliError {
        CliError::new(FailureKind::Gone, ENDED)
    }

    /// Rewrites a server's error for the command line: it names commands and flags instead of routes.
    pub(crate) fn from_server(kind: FailureKind, code: &str, said: &str) -> CliError {
        // The status of this refusal depends on the route. A user needs only one message for all of them.
        if code == "session_ended" || (code == "wrong_status" && said.contains("ended")) {
            return CliError::ended();
        }
        let said = shell_messages::of_shell(said);
        match (kind, code) {
            (_, "route_not_found") => CliError::new(
                kind,
                "the server does not know this command: it may be older than this program; `ash status` shows its version",
            ),
            (FailureKind::Unauthorized, _) => {
                let remedy =
                    "Give the server's key with ASH_API_KEY, or save it with `ASH_API_KEY=KEY ash link URL`";
                CliError::new(kind, format!("{said}. {remedy}"))
            }
            _ => CliError::new(kind, said),
        }
    }

    /// A failure on this machine: of a file, a terminal or a process.
    pub(crate) fn from_io(what: &str) -> impl FnOnce(std::io::Error) -> CliError {
        move |error| CliError::new(FailureKind::Internal, format!("{what}: {error}"))
    }

    /// 2 is also the exit code that clap uses for a wrong command line.
    pub(crate) fn exit_code(&self) -> u8 {
        match self.kind {
            FailureKind::Internal => 1,
            FailureKind::Invalid => 2,
            FailureKind::Unauthorized => 3,
            FailureKind::NotFound => 4,
            FailureKind::Conflict => 5,
            FailureKind::Gone => 6,
            FailureKind::TooLarge => 7,
            FailureKind::Unprocessable => 8,
            FailureKind::Unavailable => 9,
            FailureKind::Forbidden => 10,
            FailureKind::TooMany => 11,
            FailureKind::Timeout => 12,
        }
    }
}

impl ApiClient {
    pub(crate) fn new(settings: &ClientSettings) -> ApiClient {
        let http = reqwest::Client::builder().no_proxy().build().unwrap_or_default();
        ApiClient {
            http,
            url: settings.server_url().unwrap_or_default(),
            key: settings.api_key(),
            settings: settings.clone(),
        }
    }

    /// The same server at its current address: a restarted local server may have another port.
    pub(crate) fn reconnected(&self) -> ApiClient {
        ApiClient::new(&self.settings)
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        let request = match &self.settings.lock {
            Some(token) => request.header("x-ash-lock", token),
            None => request,
        };
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Waits in the queue while every sandbox is busy, and tells the user so.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let again = request.try_clone();
        match (self.send_once(request).await?, again) {
            (Err(refused), Some(again)) if refused.code == "capacity_reached" => {
                eprintln!("all sandboxes are at work; waiting for up to {QUEUE_TIMEOUT_SECONDS} s …");
                let waited =
                    self.send_once(again.header("prefer", format!("wait={QUEUE_TIMEOUT_SECONDS}"))).await?;
                waited.map_err(|refused| refused.failure)
            }
            (answer, _) => answer.map_err(|refused| refused.failure),
        }
    }

    async fn send_once(&self, request: RequestBuilder) -> Result<std::result::Result<Response, ApiRefusal>> {
        if self.url.is_empty() {
            return Err(CliError::new(FailureKind::Unavailable, NO_SERVER));
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        match response.status().is_success() {
            true => Ok(Ok(response)),
            false => Ok(Err(refusal(response).await)),
        }
    }

    pub(crate) fn unreachable(&self, error: &reqwest::Error) -> CliError {
        let message = if error.is_connect() {
            format!(
                "no server answers at {}. Start one with `ash start`, or name another with --server or `ash link URL`",
                self.url
            )
        } else {
            format!("the connection to {} broke: {}", self.url, root_cause(error))
        };
        CliError::new(FailureKind::Unavailable, message)
    }

    async fn json(&self, request: RequestBuilder) -> Result<Value> {
        let response = self.send(request).await?;
        let body = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&body).map_err(|_| {
            let said = format!(
                "the program that answers at {} is no ash server: name one with --server or `ash link URL`",
                self.url
            );
            CliError::new(FailureKind::Unavailable, said)
        })
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.json(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.json(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Result<Value> {
        self.json(self.request(Method::PATCH, path).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<Value> {
        self.json(self.request(Method::DELETE, path)).await
    }

    /// Replaces a refusal with the message for ended sessions if the session has ended. Other answers pass unchanged.
    pub(crate) async fn unless_ended(&self, session: &str, answer: Result<Value>) -> Result<Value> {
        let Err(failure) = answer else { return answer };
        let may_be = matches!(failure.kind, FailureKind::Conflict | FailureKind::NotFound);
        let path = format!("/api/sessions/{}", percent_encode(session));
        match may_be && self.get(&path).await.is_ok_and(|found| found["session"]["status"] == "ended") {
            true => Err(CliError::ended()),
            false => Err(failure),
        }
    }

    /// Resolves an id or a unique prefix of an id, as git does.
    pub(crate) async fn session_id(&self, given: &str) -> Result<String> {
        match self.get(&format!("/api/sessions/{}", percent_encode(given))).await {
            Ok(_) => return Ok(given.to_owned()),
            Err(failure) if matches!(failure.kind, FailureKind::NotFound | FailureKind::Invalid) => {}
            Err(failure) => return Err(failure),
        }
        let ids = self.session_ids().await?;
        let matching: Vec<&String> = ids.iter().filter(|id| id.starts_with(given)).collect();
        match matching.as_slice() {
            [only] => Ok((*only).clone()),
            [] => Err(CliError::new(
                FailureKind::NotFound,
                format!("no session begins with \"{given}\"; `ash session list` shows them"),
            )),
            several => {
                let some: Vec<&str> = several.iter().take(5).map(|id| id.as_str()).collect();
                Err(CliError::invalid(format!(
                    "\"{given}\" could be any of {} sessions ({}, …); give more of it",
                    several.len(),
                    some.join(", ")
                )))
            }
        }
    }

    async fn session_ids(&self) -> Result<Vec<String>> {
        let sessions = self.get("/api/sessions").await?;
        let sessions = sessions["sessions"].as_array().cloned().unwrap_or_default();
        Ok(sessions.iter().filter_map(|session| session["id"].as_str().map(str::to_owned)).collect())
    }

    /// The shortest prefix that names only this session, with at least four characters.
    pub(crate) async fn short_id(&self, id: &str) -> String {
        if crate::terminal::is_custom_id(id) {
            return id.to_owned();
        }
        let others = self.session_ids().await.unwrap_or_default();
        let is_unique = |prefix: &str| others.iter().filter(|other| other.starts_with(prefix)).count() <= 1;
        let ends = id.char_indices().map(|(at, c)| at + c.len_utf8()).skip(3);
        ends.map(|end| &id[..end]).find(|prefix| is_unique(prefix)).unwrap_or(id).to_owned()
    }

    /// The most recently used session.
    pub(crate) async fn last_session(&self) -> Result<String> {
        let sessions = self.get("/api/sessions").await?;
        let sessions = sessions["sessions"].as_array().cloned().unwrap_or_default();
        let open = sessions.iter().filter(|session| session["status"] != "ended");
        let last = open.max_by_key(|session| session["lastActiveAt"].as_str().unwrap_or_default().to_owned());
        let id = last.and_then(|session| session["id"].as_str());
        id.map(str::to_owned).ok_or_else(|| {
            CliError::new(FailureKind::NotFound, "there is no session to resume; `ash chat` starts one")
        })
    }
}

/// Outer errors only repeat the address; the innermost one has the reason.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// A refusal from the server.
struct ApiRefusal {
    code: String,
    failure: CliError,
}

async fn refusal(response: Response) -> ApiRefusal {
    let status = response.status();
    let body: Value = response.json().await.unwrap_or_default();
    let said = body["error"].as_str().map_or_else(|| status.to_string(), str::to_owned);
    let code = body["code"].as_str().unwrap_or_default().to_owned();
    ApiRefusal { failure: CliError::from_server(kind(status), &code, &said), code }
}

fn kind(status: StatusCode) -> FailureKind {
    match status.as_u16() {
        401 => FailureKind::Unauthorized,
        403 => FailureKind::Forbidden,
        404 => FailureKind::NotFound,
        409 => FailureKind::Conflict,
        410 => FailureKind::Gone,
        413 => FailureKind::TooLarge,
        429 => FailureKind::TooMany,
        408 => FailureKind::Timeout,
        422 => FailureKind::Unprocessable,
        503 => FailureKind::Unavailable,
        400..=499 => FailureKind::Invalid,
        _ => FailureKind::Internal,
    }
}

/// Escapes a name for use as a segment of a URL path.
pub(crate) fn percent_encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
