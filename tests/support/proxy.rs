//! A bad connection to an S3 server: a proxy that loses, breaks and delays requests and answers, by a seed, and
//! records what arrived. Tests include it by `#[path]`.

#![allow(dead_code, reason = "each test uses its own part")]

use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Bytes, Frame, Incoming},
    header::{CONNECTION, CONTENT_LENGTH, HeaderValue, RANGE, TRANSFER_ENCODING},
    http::request::Parts,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch};

/// The state of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Good,
    /// Three of ten requests fail, each in one of many ways.
    Bad,
    /// No request gets through.
    Cut,
    /// Good until an object is stored beneath this key, then cut.
    CutAfter(String),
    /// Good, except that requests for keys beneath this one get no answer.
    Holds(String),
    /// Every request gets this answer instead of the server's.
    Says(Refusal),
}

/// An error response as S3 sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub code: &'static str,
}

/// What passed the proxy since the last query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Method, URI and the requested range.
    pub requests: Vec<String>,
    /// In the bodies of requests.
    pub bytes: u64,
}

/// An object that the server has confirmed.
#[derive(Debug, Clone)]
pub struct Stored {
    pub key: String,
    pub body: Bytes,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    SlowDown,
    Failing,
    /// The connection closes before the server gets the request.
    Closed,
    /// The request took effect, but the client gets no answer.
    Dropped,
    /// The answer ends in the middle.
    CutShort,
    Late,
    /// No answer until the connection is good again or the client gives up.
    Silent,
    /// As `Silent`, but the request took effect.
    SilentAfter,
}

impl Fault {
    /// `throw` is below 100: each number is one percent of the requests.
    fn of(throw: u64, method: &Method) -> Option<Fault> {
        Some(match throw {
            // Not silent for reads: a caller waits for them, and would wait until the client's timeout.
            28..30 if *method == Method::GET || *method == Method::HEAD => Fault::Closed,
            0..6 => Fault::SlowDown,
            6..11 => Fault::Failing,
            11..16 => Fault::Closed,
            16..22 => Fault::Dropped,
            22..25 => Fault::CutShort,
            25..28 => Fault::Late,
            28 => Fault::Silent,
            29 => Fault::SilentAfter,
            _ => return None,
        })
    }
}

/// The connection breaks here.
#[derive(Debug, thiserror::Error)]
#[error("the line broke")]
struct Broken;

type Answer = Response<BoxBody<Bytes, Broken>>;

#[derive(Clone)]
pub struct Proxy {
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    server: String,
    /// The path before the keys.
    root: String,
    seed: u64,
    client: reqwest::Client,
    line: watch::Sender<Line>,
    seen: AtomicU64,
    /// Counts claims as well, so that each claim has its own chance to fail.
    answered: AtomicU64,
    silent: AtomicU64,
    log: Mutex<Log>,
}

/// Counts one request that gets no answer, while it lives.
struct Silence<'s>(&'s AtomicU64);

impl Silence<'_> {
    fn begin(count: &AtomicU64) -> Silence<'_> {
        count.fetch_add(1, Relaxed);
        Silence(count)
    }
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[derive(Default)]
struct Log {
    stored: Vec<Stored>,
    traffic: Traffic,
}

impl Proxy {
    /// Starts a proxy in front of a server, for the keys beneath `/bucket/prefix`. It lives as long as the runtime.
    pub async fn start(server: &str, root: &str, seed: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = Arc::new(Shared {
            server: server.to_owned(),
            root: format!("{root}/"),
            seed,
            client: reqwest::Client::builder()
                .no_proxy()
                .pool_max_idle_per_host(0)
                .build()
                .expect("a client"),
            line: watch::channel(Line::Good).0,
            seen: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            silent: AtomicU64::new(0),
            log: Mutex::default(),
        });
        tokio::spawn(accept(listener, shared.clone()));
        Proxy { url, shared }
    }

    /// Changes the state of the connection. A request whose answer was held back continues.
    pub fn set(&self, line: Line) {
        self.shared.line.send_replace(line);
    }

    /// Everything that arrived so far, in this order.
    pub fn stored(&self) -> Vec<Stored> {
        self.shared.log().stored.clone()
    }

    pub fn take_traffic(&self) -> Traffic {
        std::mem::take(&mut self.shared.log().traffic)
    }

    /// How many requests came so far.
    pub fn seen(&self) -> u64 {
        self.shared.seen.load(Relaxed)
    }

    /// Whether a client waits for an answer that never comes.
    pub fn is_silent(&self) -> bool {
        self.shared.silent.load(Relaxed) > 0
    }
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Result<Answer, Broken> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Broken)?.to_bytes();
        // A server renews its claim all the time; the traffic does not include that.
        let is_claim = head.uri.path().contains("/claims/")
            || head.uri.query().is_some_and(|query| query.contains("claims"));
        if !is_claim {
            let traffic = &mut self.log().traffic;
            let range = head.headers.get(RANGE).and_then(|range| range.to_str().ok()).unwrap_or_default();
            traffic.requests.push(format!("{} {} {range}", head.method, head.uri).trim_end().to_owned());
            traffic.bytes += body.len() as u64;
        }
        self.seen.fetch_add(u64::from(!is_claim), Relaxed);
        let number = self.answered.fetch_add(1, Relaxed);
        let line = self.line.borrow().clone();
        match line {
            Line::Holds(beneath) if self.key(&head).is_some_and(|key| key.starts_with(&beneath)) => {
                self.say_nothing().await
            }
            Line::Good | Line::CutAfter(_) | Line::Holds(_) => self.pass(&head, body).await,
            Line::Cut => Err(Broken),
            Line::Says(refusal) => Ok(refuse(&head.method, &refusal)),
            Line::Bad => self.fail(throw(self.seed.wrapping_add(number)), &head, body).await,
        }
    }

    async fn fail(self: &Arc<Self>, luck: u64, head: &Parts, body: Bytes) -> Result<Answer, Broken> {
        let Some(fault) = Fault::of(luck % 100, &head.method) else { return self.pass(head, body).await };
        match fault {
            Fault::SlowDown => Ok(refuse(&head.method, &Refusal { status: 503, code: "SlowDown" })),
            Fault::Failing => Ok(refuse(&head.method, &Refusal { status: 500, code: "InternalError" })),
            Fault::Closed => Err(Broken),
            Fault::Dropped => {
                self.pass(head, body).await?;
                Err(Broken)
            }
            Fault::CutShort => cut_short(self.pass(head, body).await?).await,
            Fault::Late => {
                let answer = self.pass(head, body).await?;
                // A sleep, because the fault is a late answer; only the client waits for it.
                tokio::time::sleep(Duration::from_millis(100 + luck / 100 % 300)).await;
                Ok(answer)
            }
            Fault::Silent => self.say_nothing().await,
            Fault::SilentAfter => {
                self.pass(head, body).await?;
                self.say_nothing().await
            }
        }
    }

    fn key<'h>(&self, head: &'h Parts) -> Option<&'h str> {
        head.uri.path().strip_prefix(&self.root)
    }

    async fn say_nothing(&self) -> Result<Answer, Broken> {
        let _silence = Silence::begin(&self.silent);
        // The sender lives as long as we do.
        let _ = self.line.subscribe().wait_for(|line| !matches!(line, Line::Bad | Line::Holds(_))).await;
        Err(Broken)
    }

    /// Forwards to the end even if the client has gone, so that the proxy knows what took effect.
    async fn pass(self: &Arc<Self>, head: &Parts, body: Bytes) -> Result<Answer, Broken> {
        let (shared, head) = (self.clone(), head.clone());
        tokio::spawn(async move { shared.ask(&head, body).await }).await.map_err(|_| Broken)?
    }

    async fn ask(&self, head: &Parts, body: Bytes) -> Result<Answer, Broken> {
        let url = format!("{}{}", self.server, head.uri);
        let mut headers = head.headers.clone();
        [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING].iter().for_each(|name| drop(headers.remove(name)));
        let request = self.client.request(head.method.clone(), url).headers(headers).body(body.clone());
        let answer = request.send().await.map_err(|_| Broken)?;
        let (status, mut headers) = (answer.status(), answer.headers().clone());
        let content = answer.bytes().await.map_err(|_| Broken)?;
        if status.is_success() {
            self.note(head, body);
        }
        [CONNECTION, TRANSFER_ENCODING].iter().for_each(|name| drop(headers.remove(name)));
        Ok(answered(status, headers, content))
    }

    /// Records what has arrived: an object exists after a single put, or once its parts are completed.
    fn note(&self, head: &Parts, body: Bytes) {
        let query = head.uri.query().unwrap_or_default();
        let whole = head.method == Method::PUT && !query.contains("partNumber=");
        let together = head.method == Method::POST && query.contains("uploadId=");
        let Some(key) = self.key(head).filter(|_| whole || together) else { return };
        self.log().stored.push(Stored { key: key.to_owned(), body });
        self.line.send_if_modified(|line| {
            let cut = matches!(line, Line::CutAfter(beneath) if key.starts_with(beneath.as_str()));
            if cut {
                *line = Line::Cut;
            }
            cut
        });
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = shared.clone();
        let service = service_fn(move |request| {
            let shared = shared.clone();
            async move { shared.answer(request).await }
        });
        // Broken connections are the purpose of this proxy.
        tokio::spawn(async move {
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await)
        });
    }
}

fn answered(status: StatusCode, headers: HeaderMap, content: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(content).map_err(|never| match never {}).boxed());
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer
}

fn refuse(method: &Method, refusal: &Refusal) -> Answer {
    let Refusal { status, code } = refusal;
    let text = format!("<Error><Code>{code}</Code><Message>{code} it is.</Message></Error>");
    let text = if *method == Method::HEAD { String::new() } else { text };
    answered(StatusCode::from_u16(*status).expect("a status"), HeaderMap::new(), text.into())
}

/// Announces the full length, or one byte for an empty body, and sends half.
async fn cut_short(answer: Answer) -> Result<Answer, Broken> {
    let (mut head, body) = answer.into_parts();
    let content = body.collect().await?.to_bytes();
    head.headers.insert(CONTENT_LENGTH, HeaderValue::from(content.len().max(1)));
    let half = content.slice(..content.len() / 2);
    let body = StreamBody::new(futures::stream::iter([Ok(Frame::data(half)), Err(Broken)]));
    Ok(Response::from_parts(head, BodyExt::boxed(body)))
}

/// splitmix64: the same seed and number give the same result.
fn throw(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
