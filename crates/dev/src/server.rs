//! The HTTP server: reads a request, decides the response, logs both, and sends the response.

use crate::{
    api_errors,
    decide::{ModelHttpRequest, ScriptedModel, ScriptedResponse},
    request_log::{RequestLog, RequestLogEntry},
    respond::respond,
    script::ModelScript,
};
use axum::{
    Router,
    body::{Bytes, to_bytes},
    extract::{Query, Request, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, post},
    serve::ListenerExt,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    net::{TcpListener, UnixListener},
    task::JoinHandle,
};

/// The limit of the real API.
const LARGEST_BODY: usize = 32 << 20;

#[derive(Debug, Clone)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug)]
pub struct ModelServerOptions {
    pub listen: ListenAddress,
    pub script: ModelScript,
    pub log: Option<PathBuf>,
    /// The context window in tokens, for request and reply; `None`: no limit.
    pub window: Option<u64>,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ModelServerError {
    #[error("{0} is not on this machine: anybody who can reach it would read what others asked")]
    NotLoopback(SocketAddr),
    #[error("cannot listen on {place}")]
    Listen { place: String, source: io::Error },
    #[error("cannot write to the log {path:?}")]
    Log { path: PathBuf, source: io::Error },
}

/// A running server; it stops when dropped.
#[derive(Debug)]
pub struct ModelServer {
    address: String,
    task: JoinHandle<io::Result<()>>,
    socket: Option<PathBuf>,
}

impl ModelServer {
    pub async fn start(options: ModelServerOptions) -> Result<ModelServer, ModelServerError> {
        let log = RequestLog::open(options.log.as_deref());
        let log =
            log.map_err(|source| ModelServerError::Log { path: options.log.unwrap_or_default(), source })?;
        let director = ScriptedModel::new(options.script, options.window);
        let router =
            router(Arc::new(ModelServerState { director: Mutex::new(director), log: Mutex::new(log) }));
        match options.listen {
            ListenAddress::Tcp(address) => tcp(address, router).await,
            ListenAddress::Unix(path) => unix(path, router),
        }
    }

    /// The address for `ANTHROPIC_BASE_URL` or `ANTHROPIC_UNIX_SOCKET`.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(path) = &self.socket {
            std::fs::remove_file(path).ok();
        }
    }
}

async fn tcp(address: SocketAddr, router: Router) -> Result<ModelServer, ModelServerError> {
    if !address.ip().is_loopback() {
        return Err(ModelServerError::NotLoopback(address));
    }
    let failed = |source| ModelServerError::Listen { place: address.to_string(), source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = format!("http://{}", listener.local_addr().map_err(failed)?);
    let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
    let task = tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(ModelServer { address, task, socket: None })
}

fn unix(path: PathBuf, router: Router) -> Result<ModelServer, ModelServerError> {
    let failed = |source| ModelServerError::Listen { place: path.display().to_string(), source };
    remove_stale_socket(&path).and_then(|()| UnixListener::bind(&path)).map_err(failed).map(|listener| {
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        ModelServer { address: format!("unix:{}", path.display()), task, socket: Some(path) }
    })
}

/// Removes the socket of a killed server, but not the socket of a running one.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Ok(_) | Err(_) => Ok(()),
    }
}

struct ModelServerState {
    director: Mutex<ScriptedModel>,
    log: Mutex<RequestLog>,
}

/// Both values are consistent between any two calls, so a panic elsewhere does not corrupt them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn router(stage: Arc<ModelServerState>) -> Router {
    let router = Router::new().route("/_log", get(logged)).route("/_script", post(replace_script));
    router.fallback(handle_request).with_state(stage)
}

async fn handle_request(State(stage): State<Arc<ModelServerState>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let (path, method, headers) = (parts.uri.path(), &parts.method, &parts.headers);
    let (body, answer) = match to_bytes(body, LARGEST_BODY).await {
        Ok(bytes) => {
            let body = read(&bytes);
            let answer =
                lock(&stage.director).decide(&ModelHttpRequest { method, path, headers, body: &body });
            (body, answer)
        }
        Err(error) => (Value::Null, ScriptedResponse::fail("too large", 413, error.to_string())),
    };
    let path = parts.uri.path_and_query().map_or(path, |whole| whole.as_str());
    let usage = answer.usage();
    let written = lock(&stage.log).write(&RequestLogEntry {
        method,
        path,
        headers,
        body: &body,
        answered: &answer.why,
        usage,
    });
    match written {
        Ok(number) => respond(answer, &format!("req_{number:022}")).await,
        Err(error) => {
            let answer = ScriptedResponse::fail("log", 500, format!("cannot write the log: {error}"));
            respond(answer, "req_unwritten").await
        }
    }
}

/// JSON if it parses, otherwise the text.
fn read(bytes: &Bytes) -> Value {
    match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(_) if bytes.is_empty() => Value::Null,
        Err(_) => Value::String(String::from_utf8_lossy(bytes).into_owned()),
    }
}

#[derive(Deserialize)]
struct RequestLogQuery {
    #[serde(default)]
    after: u64,
}

async fn logged(
    State(stage): State<Arc<ModelServerState>>,
    Query(RequestLogQuery { after }): Query<RequestLogQuery>,
) -> Response {
    ([(CONTENT_TYPE, "application/x-ndjson")], lock(&stage.log).after(after)).into_response()
}

async fn replace_script(State(stage): State<Arc<ModelServerState>>, text: String) -> Response {
    let (status, answer) = match ModelScript::parse(&text) {
        Ok(script) => {
            let answer = json!({ "rules": script.rules() });
            lock(&stage.director).script = script;
            (StatusCode::OK, answer)
        }
        Err(error) => (StatusCode::BAD_REQUEST, api_errors::body(400, &error.to_string(), "_script")),
    };
    (status, [(CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
}
