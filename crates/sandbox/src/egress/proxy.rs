//! The thread that carries requests out and answers in. It collects nothing: each chunk goes on when it arrives, so a
//! slow reader slows down the other side. If the service breaks off, the caller learns of it. If the caller breaks off,
//! the proxy reads the rest of an answer that costs something, to count its usage.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::unix::net::UnixListener as StdListener,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    Method, Request, Response, StatusCode, Version,
    body::{Body as _, Frame, Incoming, SizeHint},
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, TRANSFER_ENCODING},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use reqwest::{
    Body, Client,
    dns::{Addrs, Name, Resolve, Resolving},
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc, oneshot, watch},
    task::JoinSet,
};

use super::{
    answer_usage::{AnswerEnd, AnswerUsageReader, SharedRequestScan, UsageRecorder},
    endpoint::ModelEndpoint,
    header_filter,
    rate_limit::RequestRateLimiter,
    refusal::{EgressRefusal, InBackground, NotUtf8, RequestBodyTooLong, UncountedStream},
    route::EgressRoute,
    utf8::Utf8Check,
};

/// Per socket. More connections wait in its queue.
const MAX_CONNECTIONS: usize = 64;
/// Per sandbox, over all its sockets. More calls wait for a permit.
pub(super) const MAX_AT_ONCE: usize = 64;
const MAX_BODY_BYTES: u64 = 64 << 20;
/// The longest head of a request, and the read-ahead of a body.
const BUFFER: usize = 64 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For a service that sends nothing at all. Models think for minutes.
const RESPONSE_IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Detects a machine that is gone, which sends nothing either.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How far the proxy reads an answer after its caller has gone.
const READ_ON: ReadOnLimits = ReadOnLimits { time: Duration::from_secs(120), bytes: 16 << 20 };
const IDLE: Duration = Duration::from_secs(60);
const MAX_IDLE_CONNECTIONS: usize = 4;
/// For name lookups.
const MAX_RESOLVER_THREADS: usize = 4;

type EgressRouteReceiver = watch::Receiver<Option<Arc<EgressRoute>>>;

/// The shared state that a request needs.
#[derive(Clone)]
pub(super) struct ProxyContext {
    pub(super) routes: EgressRouteReceiver,
    pub(super) rate: Arc<Mutex<RequestRateLimiter>>,
    pub(super) places: Arc<Semaphore>,
    pub(super) till: UsageRecorder,
}

pub(super) fn begin(listener: StdListener, way: ProxyContext) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(MAX_RESOLVER_THREADS)
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        UnixListener::from_std(listener)?
    };
    let serve = move || runtime.block_on(serve(listener, way));
    std::thread::Builder::new().name("egress".to_owned()).spawn(serve).map(drop)
}

async fn serve(listener: UnixListener, way: ProxyContext) {
    let mut routes = way.routes.clone();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve_connection(stream, way.clone()))),
                // Out of descriptors: wait until another connection frees some.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(_ended) = connections.join_next() => {}
            changed = routes.changed() => match changed {
                // A withdrawn key must not be used any longer.
                Ok(()) if routes.borrow_and_update().is_none() => connections.abort_all(),
                Ok(()) => {}
                Err(_shim_ends) => return,
            },
        }
    }
}

/// The route is withdrawn: the caller gets no answer, but a broken connection.
#[derive(Debug, thiserror::Error)]
#[error("the call was cut")]
struct CallCut;

async fn serve_connection(stream: UnixStream, way: ProxyContext) {
    let service = service_fn(move |request| {
        // Read for each request: a connection may be older than the key.
        let (route, way) = (way.routes.borrow().clone(), way.clone());
        let (caller, answer) = oneshot::channel();
        // A task of its own: the call may outlive its caller.
        tokio::spawn(carry(request, route, way, caller));
        async move { answer.await.map_err(|_| CallCut) }
    });
    // An error is a broken connection, inside or outside. The caller sees it too, and nothing else depends on it.
    let _ = http1::Builder::new()
        .max_buf_size(BUFFER)
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

type AnswerSender = oneshot::Sender<Response<Body>>;

/// Carries one call until it ends or its route is withdrawn.
async fn carry(
    request: Request<Incoming>,
    route: Option<Arc<EgressRoute>>,
    way: ProxyContext,
    mut caller: AnswerSender,
) {
    let mut routes = way.routes.clone();
    let _place = tokio::select! {
        place = way.places.clone().acquire_owned() => place,
        () = caller.closed() => return,
    };
    let is_withdrawn = async {
        match route.is_some() {
            true => drop(routes.wait_for(Option::is_none).await),
            // The answer already says that there is no route.
            false => std::future::pending().await,
        }
    };
    tokio::select! {
        () = forward(request, route.clone(), &way, caller) => {}
        () = is_withdrawn => {}
    }
}

async fn forward(
    request: Request<Incoming>,
    route: Option<Arc<EgressRoute>>,
    way: &ProxyContext,
    mut caller: AnswerSender,
) {
    match send(request, route, way, &mut caller).await {
        Ok(Some(answer)) => pass_on(answer, caller, READ_ON).await,
        Ok(None) => {}
        Err(refusal) => drop(caller.send(refusal.answer())),
    }
}

/// None: the caller has gone, so nothing needs an answer.
async fn send(
    request: Request<Incoming>,
    route: Option<Arc<EgressRoute>>,
    way: &ProxyContext,
    caller: &mut AnswerSender,
) -> Result<Option<Response<MeteredResponseBody>>, EgressRefusal> {
    let (head, body) = request.into_parts();
    let (route, url, endpoint) =
        match admit(&head, &body, route).and_then(|admitted| way.check_allowance(admitted)) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                drain(body).await;
                return Err(refusal);
            }
        };
    let client = route.client.get_or_init(|| connect(&route)).clone()?;
    let mut headers = header_filter::request_headers(&head.headers);
    // Last, so that they replace headers from inside.
    route.headers.iter().for_each(|(name, value)| drop(headers.insert(name, value.clone())));
    let mut asked = client.request(head.method.clone(), url).headers(headers);
    let mut rest = None;
    let question = SharedRequestScan::default();
    // From here on the call counts, even if the caller hangs up.
    let mut reading =
        endpoint.costs().then(|| AnswerUsageReader::new(way.till.clone(), endpoint, question.clone()));
    if !body.is_end_stream() {
        let (upload, unsent) = LimitedRequestBody::of(body, question, endpoint);
        asked = asked.body(Body::wrap(upload));
        rest = Some(unsent);
    } else if head.method == Method::POST {
        asked = asked.body(Body::default());
    }
    let answer = tokio::select! {
        answer = asked.send() => answer,
        () = gone_for(caller.closed(), READ_ON.time(reading.is_some())) => return Ok(None),
    };
    match answer {
        Ok(answer) => admit_answer(answer.into(), &head.method, reading).map(Some),
        Err(e) => {
            reading.iter_mut().for_each(AnswerUsageReader::discard);
            if let Some(unsent) = rest
                && let Ok(body) = unsent.await
            {
                drain(body).await;
            }
            Err(EgressRefusal::because(&e))
        }
    }
}

/// How far the proxy reads an answer only for its usage.
#[derive(Debug, Clone, Copy)]
struct ReadOnLimits {
    time: Duration,
    bytes: u64,
}

impl ReadOnLimits {
    fn time(self, costs: bool) -> Duration {
        if costs { self.time } else { Duration::ZERO }
    }
}

async fn gone_for(gone: impl Future<Output = ()>, time: Duration) {
    gone.await;
    tokio::time::sleep(time).await;
}

/// Passes the answer to the caller frame by frame, and continues without the caller as far as `limits` allow.
async fn pass_on(answer: Response<MeteredResponseBody>, caller: AnswerSender, limits: ReadOnLimits) {
    let (head, mut body) = answer.into_parts();
    // One frame of buffer: the proxy reads the next frame when the caller has got this one.
    let (frames, passed) = mpsc::channel(1);
    let theirs = PassedResponseBody { frames: passed, size: body.size_hint(), is_over: body.is_end_stream() };
    // If the caller has gone, this drops the channel's other end too.
    let _ = caller.send(Response::from_parts(head, Body::wrap(theirs)));
    let time = limits.time(body.reading.is_some());
    let mut gone = std::pin::pin!(gone_for(frames.closed(), time));
    let mut left = limits.bytes;
    while !body.is_end_stream() {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = &mut gone => return,
        };
        let Some(frame) = frame else { break };
        let length = frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len) as u64;
        let is_broken = frame.is_err();
        if frames.send(PassedFrame::Frame(frame)).await.is_err() {
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return,
            }
        }
        if is_broken {
            return;
        }
    }
    // This also finishes an answer without a body.
    body.reading.iter_mut().for_each(|reading| reading.finish(AnswerEnd::Whole));
    let _ = frames.send(PassedFrame::End).await;
}

enum PassedFrame {
    Frame(Result<Frame<Bytes>, reqwest::Error>),
    End,
}

/// The caller's end of an answer. Without an explicit end the answer was cut.
struct PassedResponseBody {
    frames: mpsc::Receiver<PassedFrame>,
    size: SizeHint,
    is_over: bool,
}

impl hyper::body::Body for PassedResponseBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let passed = std::task::ready!(self.frames.poll_recv(cx));
        let frame: Option<Result<_, Self::Error>> = match passed {
            Some(PassedFrame::Frame(frame)) => Some(frame.map_err(Into::into)),
            Some(PassedFrame::End) => None,
            None => Some(Err(CallCut.into())),
        };
        self.is_over |= !matches!(frame, Some(Ok(_)));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.size
    }
}

type AdmittedRequest = (Arc<EgressRoute>, reqwest::Url, ModelEndpoint);

impl ProxyContext {
    /// Refuses the call if the budget or the rate is used up. A call that costs nothing needs no budget.
    fn check_allowance(&self, admitted: AdmittedRequest) -> Result<AdmittedRequest, EgressRefusal> {
        if admitted.2.costs() {
            self.till.account().check()?;
        }
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        rate.take(Instant::now()).map(|()| admitted)
    }
}

fn admit(
    head: &hyper::http::request::Parts,
    body: &Incoming,
    route: Option<Arc<EgressRoute>>,
) -> Result<AdmittedRequest, EgressRefusal> {
    // In an older version the end of the connection ends an answer, so the client could not detect a cut.
    if head.version != Version::HTTP_11 {
        return Err(EgressRefusal::OldHttp);
    }
    if body.size_hint().lower() > MAX_BODY_BYTES {
        return Err(EgressRefusal::TooLarge);
    }
    let route = route.ok_or(EgressRefusal::NoRoute)?;
    let (url, endpoint) = route.admit(&head.method, &head.uri)?;
    let is_compressed = head.headers.get_all(CONTENT_ENCODING).iter().any(|name| name != "identity");
    // The proxy could not read whether the body asks for background work.
    if endpoint.has_background() && is_compressed {
        return Err(EgressRefusal::Background);
    }
    if endpoint.costs() && (is_compressed || has_other_charset(&head.headers)) {
        return Err(EgressRefusal::Encoding);
    }
    Ok((route, url, endpoint))
}

fn has_other_charset(headers: &HeaderMap) -> bool {
    let is_other = |value: &str| {
        let parameters = value.split(';').skip(1).filter_map(|parameter| parameter.split_once('='));
        let mut charsets = parameters.filter(|(name, _)| name.trim().eq_ignore_ascii_case("charset"));
        charsets.any(|(_, name)| {
            let name = name.trim().trim_matches('"');
            !["utf-8", "utf8"].iter().any(|fine| name.eq_ignore_ascii_case(fine))
        })
    };
    headers.get_all(CONTENT_TYPE).iter().any(|value| value.to_str().map_or(true, is_other))
}

fn admit_answer(
    answer: Response<Body>,
    asked: &Method,
    mut reading: Option<AnswerUsageReader>,
) -> Result<Response<MeteredResponseBody>, EgressRefusal> {
    let (mut head, body) = answer.into_parts();
    if !head.status.is_success() {
        reading.iter_mut().for_each(AnswerUsageReader::discard);
    }
    if head.status.is_informational() {
        return Err(EgressRefusal::Upgrade);
    }
    let has_end = [CONTENT_LENGTH, TRANSFER_ENCODING].iter().any(|name| head.headers.contains_key(name));
    let is_empty =
        asked == Method::HEAD || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
    if !has_end && !is_empty {
        return Err(EgressRefusal::UnframedBody);
    }
    head.headers = header_filter::response_headers(&head.headers);
    // The caller's connection is a different one from the service's.
    head.version = Version::HTTP_11;
    head.extensions.clear();
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_plain = matches!(text(CONTENT_ENCODING), "" | "identity");
    reading.iter_mut().for_each(|reading| reading.begin(text(CONTENT_TYPE), is_plain));
    Ok(Response::from_parts(head, MeteredResponseBody { body, reading }))
}

/// An answer on its way in. If it costs something, the proxy reads its usage as it passes.
struct MeteredResponseBody {
    body: Body,
    reading: Option<AnswerUsageReader>,
}

impl hyper::body::Body for MeteredResponseBody {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        let is_end = self.body.is_end_stream();
        let Some(reading) = &mut self.reading else { return Poll::Ready(frame) };
        match &frame {
            Some(Ok(frame)) => {
                frame.data_ref().into_iter().for_each(|data| reading.push(data));
                // hyper knows the length, so it asks for no further frame.
                if is_end {
                    reading.finish(AnswerEnd::Whole);
                }
            }
            Some(Err(_)) => reading.finish(AnswerEnd::BrokenOff),
            None => reading.finish(AnswerEnd::Whole),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads the rest of a body: some clients read the answer only after they have sent everything.
async fn drain(mut body: Incoming) {
    let mut left = MAX_BODY_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        let Some(less) = left.checked_sub(length) else { return };
        left = less;
    }
}

fn connect(route: &EgressRoute) -> Result<Client, EgressRefusal> {
    let builder = Client::builder()
        // Following a redirect would send the key along. The answer goes back to the caller instead, which has no key.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(RESPONSE_IDLE_TIMEOUT)
        .tcp_keepalive(KEEPALIVE)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS);
    let builder = if route.public { builder.dns_resolver(Arc::new(PublicAddressResolver)) } else { builder };
    let builder = match &route.socket {
        Some(path) => builder.unix_socket(path.as_path()),
        None => builder,
    };
    builder.build().map_err(|e| EgressRefusal::because(&e))
}

/// Refuses names that resolve to this machine or its network.
struct PublicAddressResolver;

impl Resolve for PublicAddressResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = found.filter(|address| is_public(address.ip())).collect();
            match public.is_empty() {
                true => Err("the name leads to no public address".into()),
                false => Ok(Box::new(public.into_iter()) as Addrs),
            }
        })
    }
}

fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let shared = a == 100 && (64..128).contains(&b);
            let benchmarks = a == 198 && (18..20).contains(&b);
            !(v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_multicast()
                || v4.is_broadcast()
                || v4.is_documentation()
                || shared
                || benchmarks
                || a == 0
                || a >= 240)
        }
        IpAddr::V6(v6) => {
            // Only addresses assigned to networks, without those that embed an IPv4 address.
            let first = v6.segments()[0];
            let translated =
                v6.segments()[..2] == [0x64, 0xff9b] || first == 0x2002 || v6.segments()[..2] == [0x2001, 0];
            (0x2000..0x4000).contains(&first) && !translated && v6.segments()[..2] != [0x2001, 0xdb8]
        }
    }
}

/// A request's body on its way out: limited in length, without requests whose usage could not be counted, and without
/// trailers, which would be unchecked headers. If it is dropped early, the rest goes `back`.
struct LimitedRequestBody {
    incoming: Option<Incoming>,
    left: u64,
    back: Option<oneshot::Sender<Incoming>>,
    question: SharedRequestScan,
    endpoint: ModelEndpoint,
    utf8: Utf8Check,
}

impl LimitedRequestBody {
    fn of(
        incoming: Incoming,
        question: SharedRequestScan,
        endpoint: ModelEndpoint,
    ) -> (Self, oneshot::Receiver<Incoming>) {
        let (back, unsent) = oneshot::channel();
        (
            Self {
                incoming: Some(incoming),
                left: MAX_BODY_BYTES,
                back: Some(back),
                question,
                endpoint,
                utf8: Utf8Check::default(),
            },
            unsent,
        )
    }

    /// Whether the body so far, including `data`, may be passed on.
    fn look_at(
        &mut self,
        data: &[u8],
        is_last: bool,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if self.endpoint.costs() && !(self.utf8.push(data) && (!is_last || self.utf8.is_whole())) {
            return Err(NotUtf8.into());
        }
        let mut question = self.question.lock().unwrap_or_else(PoisonError::into_inner);
        question.push(data);
        let seen = &question.scanner.seen;
        if seen.is_background && self.endpoint.has_background() {
            return Err(InBackground.into());
        }
        if is_last && seen.streams_without_usage() && self.endpoint.counts_streams_on_request() {
            return Err(UncountedStream.into());
        }
        question.whole |= is_last;
        Ok(())
    }
}

impl hyper::body::Body for LimitedRequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = std::task::ready!(Pin::new(incoming).poll_frame(cx)).transpose()?;
        let data = frame.map(Frame::into_data).and_then(Result::ok);
        let is_last = data.is_none() || self.is_end_stream();
        // The refused piece is held back, so that the service never has a complete request to work on.
        if let Err(refused) = self.look_at(data.as_deref().unwrap_or_default(), is_last) {
            return Poll::Ready(Some(Err(refused)));
        }
        let Some(data) = data else { return Poll::Ready(None) };
        match self.left.checked_sub(data.len() as u64) {
            Some(left) => {
                self.left = left;
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            None => Poll::Ready(Some(Err(RequestBodyTooLong.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(|incoming| incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map(|incoming| incoming.size_hint()).unwrap_or_default()
    }
}

impl Drop for LimitedRequestBody {
    fn drop(&mut self) {
        if let (Some(incoming), Some(back)) = (self.incoming.take(), self.back.take()) {
            let _ = back.send(incoming);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        egress::usage_account::{UsageAccount, UsageAllowance},
        journal::ModelUsage,
    };

    /// The records of an answer whose caller has gone and of which no more arrives than `text`.
    async fn read_on(text: &'static str, limits: ReadOnLimits) -> Vec<ModelUsage> {
        let account = Arc::new(Mutex::new(UsageAccount::default()));
        let unlimited = UsageAllowance { position: 0, tokens: None, nano_usd: None, prices: None };
        account.lock().expect("open").set(Some(unlimited));
        let (bell, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        bell.set_nonblocking(true).expect("set");
        let till = UsageRecorder::new(account.clone(), Arc::new(bell));
        let question = SharedRequestScan::default();
        question.lock().expect("open").push(br#"{"model":"m","max_tokens":5000}"#);
        question.lock().expect("open").whole = true;
        let mut reading = AnswerUsageReader::new(till, ModelEndpoint::Messages, question);
        reading.begin("text/event-stream", true);
        let (more, stalls) = mpsc::channel(1);
        assert!(more.send(PassedFrame::Frame(Ok(Frame::data(text.into())))).await.is_ok());
        let stalled = PassedResponseBody { frames: stalls, size: SizeHint::default(), is_over: false };
        let body = MeteredResponseBody { body: Body::wrap(stalled), reading: Some(reading) };
        let (caller, gone) = oneshot::channel();
        drop(gone);
        pass_on(Response::new(body), caller, limits).await;
        let mut records = Vec::new();
        account.lock().expect("open").flush(|queue| {
            records = queue;
            0
        });
        records
    }

    #[tokio::test]
    async fn an_abandoned_answer_is_read_for_a_while_and_then_counts_as_the_requested_maximum() {
        const START: &str = "data: {\"type\":\"message_start\",\"message\":{\"id\":\"a\",\"model\":\"m\",\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n";
        for limits in [
            ReadOnLimits { time: Duration::from_millis(1), bytes: 1 << 20 },
            ReadOnLimits { time: Duration::from_secs(3600), bytes: 10 },
        ] {
            let records = read_on(START, limits).await;
            let last = records.last().expect("a record");
            assert_eq!((last.usage.input_tokens, last.usage.output_tokens, last.torn), (7, 5000, true));
        }
    }

    #[test]
    fn local_and_private_addresses_are_not_public() {
        for address in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().expect("an address")), "{address}");
        }
        for address in ["1.1.1.1", "160.79.104.10", "2606:4700:4700::1111", "::ffff:8.8.8.8"] {
            assert!(is_public(address.parse().expect("an address")), "{address}");
        }
    }
}
