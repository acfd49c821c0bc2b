//! The server: takes a request, has it decided, writes it down, and has it answered.

use crate::{
    decide::{Answer, Asked, Director},
    log::{Entry, Log},
    perform::perform,
    problem,
    script::Script,
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

/// As the real API has it.
const LARGEST_BODY: usize = 32 << 20;

#[derive(Debug, Clone)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug)]
pub struct Options {
    pub listen: Listen,
    pub script: Script,
    pub log: Option<PathBuf>,
    /// What a request and its answer may have in tokens; without it, anything.
    pub window: Option<u64>,
}

/// A reason not to start.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0} is not on this machine: anybody who can reach it would read what others asked")]
    NotHere(SocketAddr),
    #[error("cannot listen on {place}")]
    Listen { place: String, source: io::Error },
    #[error("cannot write to the log {path:?}")]
    Log { path: PathBuf, source: io::Error },
}

/// A server that listens; it ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    address: String,
    task: JoinHandle<io::Result<()>>,
    socket: Option<PathBuf>,
}

impl Server {
    pub async fn start(options: Options) -> Result<Server, Failure> {
        let log = Log::open(options.log.as_deref());
        let log = log.map_err(|source| Failure::Log { path: options.log.unwrap_or_default(), source })?;
        let director = Director::new(options.script, options.window);
        let router = router(Arc::new(Stage { director: Mutex::new(director), log: Mutex::new(log) }));
        match options.listen {
            Listen::Tcp(address) => tcp(address, router).await,
            Listen::Unix(path) => unix(path, router),
        }
    }

    /// Where it listens, for `ANTHROPIC_BASE_URL` or `ANTHROPIC_UNIX_SOCKET`.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(path) = &self.socket {
            std::fs::remove_file(path).ok();
        }
    }
}

async fn tcp(address: SocketAddr, router: Router) -> Result<Server, Failure> {
    if !address.ip().is_loopback() {
        return Err(Failure::NotHere(address));
    }
    let failed = |source| Failure::Listen { place: address.to_string(), source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = format!("http://{}", listener.local_addr().map_err(failed)?);
    let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
    let task = tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(Server { address, task, socket: None })
}

fn unix(path: PathBuf, router: Router) -> Result<Server, Failure> {
    let failed = |source| Failure::Listen { place: path.display().to_string(), source };
    forget_dead(&path).and_then(|()| UnixListener::bind(&path)).map_err(failed).map(|listener| {
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Server { address: format!("unix:{}", path.display()), task, socket: Some(path) }
    })
}

/// A server that was killed leaves its socket behind. One that is alive keeps it.
fn forget_dead(path: &Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Ok(_) | Err(_) => Ok(()),
    }
}

struct Stage {
    director: Mutex<Director>,
    log: Mutex<Log>,
}

/// Both are whole between any two calls, so a panic elsewhere does not spoil them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn router(stage: Arc<Stage>) -> Router {
    let router = Router::new().route("/_log", get(logged)).route("/_script", post(rewritten));
    router.fallback(asked).with_state(stage)
}

async fn asked(State(stage): State<Arc<Stage>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let (path, method, headers) = (parts.uri.path(), &parts.method, &parts.headers);
    let (body, answer) = match to_bytes(body, LARGEST_BODY).await {
        Ok(bytes) => {
            let body = read(&bytes);
            let answer = lock(&stage.director).decide(&Asked { method, path, headers, body: &body });
            (body, answer)
        }
        Err(error) => (Value::Null, Answer::fail("too large", 413, error.to_string())),
    };
    let path = parts.uri.path_and_query().map_or(path, |whole| whole.as_str());
    let usage = answer.usage();
    let written =
        lock(&stage.log).write(&Entry { method, path, headers, body: &body, answered: &answer.why, usage });
    match written {
        Ok(number) => perform(answer, &format!("req_{number:022}")).await,
        Err(error) => {
            let answer = Answer::fail("log", 500, format!("cannot write the log: {error}"));
            perform(answer, "req_unwritten").await
        }
    }
}

/// JSON if it is, else the text as it came.
fn read(bytes: &Bytes) -> Value {
    match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(_) if bytes.is_empty() => Value::Null,
        Err(_) => Value::String(String::from_utf8_lossy(bytes).into_owned()),
    }
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: u64,
}

async fn logged(State(stage): State<Arc<Stage>>, Query(After { after }): Query<After>) -> Response {
    ([(CONTENT_TYPE, "application/x-ndjson")], lock(&stage.log).after(after)).into_response()
}

async fn rewritten(State(stage): State<Arc<Stage>>, text: String) -> Response {
    let (status, answer) = match Script::parse(&text) {
        Ok(script) => {
            let answer = json!({ "rules": script.rules() });
            lock(&stage.director).script = script;
            (StatusCode::OK, answer)
        }
        Err(error) => (StatusCode::BAD_REQUEST, problem::body(400, &error.to_string(), "_script")),
    };
    (status, [(CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
}
