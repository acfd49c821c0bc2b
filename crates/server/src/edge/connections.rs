//! Accepts connections within the capacity of the server, so that silent clients cannot take all of it.
//!
//! A connection without a request in progress is idle. When all places are taken, a new connection replaces the one
//! that has been idle longest, so that a thousand silent clients cost an active one nothing. If none is idle, the
//! server accepts a few more for `/health` and the operator.

use super::timeout_socket::TimeoutSocket;
use axum::{Router, body::Body, http::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

/// Extra connections when all others are busy.
const RESERVED_CONNECTIONS: usize = 32;
/// Connections get at most this fraction of the files that the server may open.
const OPEN_FILES_DIVISOR: usize = 2;
/// Maximum size of the headers, and of unread output that waits in memory.
const BUFFER: usize = 64 << 10;
/// A client that takes longer to send its headers is disconnected.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum interval between log lines about connections.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Pause after the machine has no free file descriptor.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// The addresses of both ends of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddresses {
    pub(crate) remote: SocketAddr,
    /// The server's own address on this connection.
    pub(crate) local: Option<SocketAddr>,
}

/// Marks a connection that uses a reserved place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReservedConnection;

pub(crate) struct HttpServer {
    places: ConnectionLimiter,
    header_timeout: Duration,
    client_timeout: Duration,
}

/// Which connections have a place, and since when each is idle.
#[derive(Clone)]
struct ConnectionLimiter {
    table: Arc<Mutex<ConnectionTable>>,
    max: usize,
}

#[derive(Default)]
struct ConnectionTable {
    last: u64,
    connections: HashMap<u64, ConnectionState>,
    /// Number of connections in reserved places.
    reserved: usize,
    /// Numbers of idle connections, longest idle first.
    idle: BTreeMap<u64, u64>,
    logged: Option<Instant>,
}

struct ConnectionState {
    kind: SeatKind,
    evicted: CancellationToken,
    /// Its key in the table of idle connections.
    idle: Option<u64>,
    requests: usize,
}

/// A connection keeps the kind with which it was accepted. It never takes a place of the other kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SeatKind {
    Ordinary,
    Reserved,
}

enum ConnectionAdmission {
    Seated(SeatKind, ConnectionPermit),
    Refused,
}

/// A place, which becomes free when this is dropped.
struct ConnectionPermit {
    places: ConnectionLimiter,
    number: u64,
    evicted: CancellationToken,
}

/// A request in progress, until its answer is sent.
struct InFlightRequest {
    places: ConnectionLimiter,
    number: u64,
}

impl HttpServer {
    /// `max` connections, or fewer if the server may not open that many files.
    pub(crate) fn new(max: usize, client_timeout: Duration, open_files: usize) -> HttpServer {
        let max = max.min(open_files / OPEN_FILES_DIVISOR).max(1);
        let header_timeout = client_timeout.min(HEADER_TIMEOUT);
        HttpServer {
            places: ConnectionLimiter { table: Arc::default(), max },
            header_timeout,
            client_timeout,
        }
    }

    pub(crate) async fn serve(self, listener: TcpListener, router: Router) {
        loop {
            let (socket, remote) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.places.on_accept_error(&error);
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            let (seat, reserved) = match self.places.admit() {
                ConnectionAdmission::Seated(SeatKind::Ordinary, seat) => (seat, None),
                ConnectionAdmission::Seated(SeatKind::Reserved, seat) => (seat, Some(ReservedConnection)),
                ConnectionAdmission::Refused => continue,
            };
            // Sends small frames at once: without this, a packet waits up to 40 ms.
            socket.set_nodelay(true).ok();
            let peer = PeerAddresses { remote, local: socket.local_addr().ok() };
            tokio::spawn(self.connection(socket, (peer, reserved), seat, router.clone()));
        }
    }

    fn connection(
        &self,
        socket: TcpStream,
        (peer, reserved): (PeerAddresses, Option<ReservedConnection>),
        seat: ConnectionPermit,
        router: Router,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (places, number, evicted) = (seat.places.clone(), seat.number, seat.evicted.clone());
        let answer = service_fn(move |mut request: Request<Incoming>| {
            let at_work = places.begin_request(number);
            request.extensions_mut().insert(peer);
            if let Some(reserved) = reserved {
                request.extensions_mut().insert(reserved);
            }
            let answering = router.clone().call(request);
            async move {
                let (head, body) = answering.await?.into_parts();
                Ok::<_, Infallible>(axum::http::Response::from_parts(
                    head,
                    ResponseBody { body, _at_work: at_work },
                ))
            }
        });
        let socket = TokioIo::new(TimeoutSocket::new(socket, self.client_timeout));
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_timeout)
            .max_buf_size(BUFFER)
            .serve_connection(socket, answer);
        async move {
            // An error on one connection does not concern the server.
            tokio::select! {
                served = serving => drop(served),
                () = evicted.cancelled() => {}
            }
            drop(seat);
        }
    }
}

impl ConnectionLimiter {
    fn lock(&self) -> std::sync::MutexGuard<'_, ConnectionTable> {
        self.table.lock().expect("no code panics while it holds this lock")
    }

    fn admit(&self) -> ConnectionAdmission {
        use SeatKind::{Ordinary, Reserved};
        let mut table = self.lock();
        let is_full = table.count(Ordinary) >= self.max;
        let made_way = is_full && table.evict_one(Ordinary);
        if is_full {
            table.log(|| {
                let how = if made_way { "idle ones are closed for new ones" } else { "all of them are at work" };
                let max = self.max;
                format!("{max} connections are open, which is the most: {how}. ASH_MAX_CONNECTIONS and the limit of open files allow more")
            });
        }
        let kind = match () {
            () if !is_full || made_way => Ordinary,
            () if table.count(Reserved) < RESERVED_CONNECTIONS || table.evict_one(Reserved) => Reserved,
            () => return ConnectionAdmission::Refused,
        };
        ConnectionAdmission::Seated(kind, self.grant_permit(&mut table, kind))
    }

    fn grant_permit(&self, table: &mut ConnectionTable, kind: SeatKind) -> ConnectionPermit {
        table.last += 1;
        let (number, evicted) = (table.last, CancellationToken::new());
        let connection = ConnectionState { kind, evicted: evicted.clone(), idle: None, requests: 0 };
        table.connections.insert(number, connection);
        table.reserved += usize::from(kind == SeatKind::Reserved);
        table.mark_idle(number);
        ConnectionPermit { places: self.clone(), number, evicted }
    }

    fn begin_request(&self, number: u64) -> InFlightRequest {
        let mut table = self.lock();
        if let Some(connection) = table.connections.get_mut(&number) {
            connection.requests += 1;
            let idle = connection.idle.take();
            idle.map(|place| table.idle.remove(&place));
        }
        InFlightRequest { places: self.clone(), number }
    }

    /// The cause is most often the limit of open files: this evicts an idle connection, and the caller tries again.
    fn on_accept_error(&self, error: &std::io::Error) {
        let mut table = self.lock();
        if !table.evict_one(SeatKind::Ordinary) {
            table.evict_one(SeatKind::Reserved);
        }
        table.log(|| {
            format!(
                "a connection could not be accepted: {error}. Allow the server more open files (ulimit -n)"
            )
        });
    }
}

impl ConnectionTable {
    fn mark_idle(&mut self, number: u64) {
        self.last += 1;
        let place = self.last;
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.idle = Some(place);
            self.idle.insert(place, number);
        }
    }

    fn count(&self, kind: SeatKind) -> usize {
        match kind {
            SeatKind::Ordinary => self.connections.len() - self.reserved,
            SeatKind::Reserved => self.reserved,
        }
    }

    /// Evicts the connection of this kind that has been idle longest. It skips at most as many others as the reserve
    /// has.
    fn evict_one(&mut self, kind: SeatKind) -> bool {
        let is_kind =
            |number: &u64| self.connections.get(number).is_some_and(|connection| connection.kind == kind);
        let Some(number) = self.idle.values().copied().find(is_kind) else { return false };
        if let Some(connection) = self.leave(number) {
            connection.evicted.cancel();
        }
        true
    }

    fn leave(&mut self, number: u64) -> Option<ConnectionState> {
        let connection = self.connections.remove(&number)?;
        self.reserved -= usize::from(connection.kind == SeatKind::Reserved);
        connection.idle.map(|place| self.idle.remove(&place));
        Some(connection)
    }

    fn log(&mut self, words: impl FnOnce() -> String) {
        if self.logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            self.logged = Some(Instant::now());
            tracing::warn!("{}", words());
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.places.lock().leave(self.number);
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let mut table = self.places.lock();
        let Some(connection) = table.connections.get_mut(&self.number) else { return };
        connection.requests -= 1;
        if connection.requests == 0 {
            table.mark_idle(self.number);
        }
    }
}

/// An answer whose connection stays busy until it is sent.
struct ResponseBody {
    body: Body,
    _at_work: InFlightRequest,
}

impl hyper::body::Body for ResponseBody {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<bytes::Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// Raises the soft limit of open files to the hard limit. Returns the number of files that the server may open.
pub(crate) fn raise_open_files() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
    let current = getrlimit(Resource::Nofile).current;
    current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(max: usize) -> ConnectionLimiter {
        ConnectionLimiter { table: Arc::default(), max }
    }

    fn ordinary(admission: ConnectionAdmission) -> ConnectionPermit {
        match admission {
            ConnectionAdmission::Seated(SeatKind::Ordinary, seat) => seat,
            ConnectionAdmission::Seated(SeatKind::Reserved, _) | ConnectionAdmission::Refused => {
                panic!("no ordinary place")
            }
        }
    }

    fn reserved(admission: ConnectionAdmission) -> ConnectionPermit {
        match admission {
            ConnectionAdmission::Seated(SeatKind::Reserved, seat) => seat,
            ConnectionAdmission::Seated(SeatKind::Ordinary, _) | ConnectionAdmission::Refused => {
                panic!("no place of the reserve")
            }
        }
    }

    #[test]
    fn the_longest_idle_connection_is_evicted_and_busy_ones_are_not() {
        let places = places(3);
        let seats: Vec<ConnectionPermit> = (0..3).map(|_| ordinary(places.admit())).collect();
        let at_work = places.begin_request(seats[0].number);
        let fourth = ordinary(places.admit());
        let evicted: Vec<bool> = seats.iter().map(|seat| seat.evicted.is_cancelled()).collect();
        assert_eq!(evicted, [false, true, false], "the first is at work");
        drop(at_work);
        // It was busy just now, so it is the last to be evicted.
        let fifth = ordinary(places.admit());
        assert!(seats[2].evicted.is_cancelled() && !seats[0].evicted.is_cancelled());
        drop((seats, fourth, fifth));
        assert!(places.lock().connections.is_empty() && places.lock().idle.is_empty());
    }

    #[test]
    fn when_all_are_at_work_a_few_more_are_let_in_apart() {
        let places = places(2);
        let seats: Vec<ConnectionPermit> = (0..2).map(|_| ordinary(places.admit())).collect();
        let at_work: Vec<InFlightRequest> =
            seats.iter().map(|seat| places.begin_request(seat.number)).collect();
        let mut reserve: Vec<ConnectionPermit> =
            (0..RESERVED_CONNECTIONS).map(|_| reserved(places.admit())).collect();
        // An idle reserved connection is replaced only by another reserved one, however often.
        for _ in 0..2 * RESERVED_CONNECTIONS {
            reserve.push(reserved(places.admit()));
        }
        assert_eq!(places.lock().count(SeatKind::Reserved), RESERVED_CONNECTIONS);
        let busy: Vec<InFlightRequest> =
            reserve.iter().map(|seat| places.begin_request(seat.number)).collect();
        assert!(matches!(places.admit(), ConnectionAdmission::Refused));
        drop((busy, at_work));
        let next = ordinary(places.admit());
        assert!(seats[0].evicted.is_cancelled(), "an ordinary one makes way for an ordinary one");
        drop((seats, reserve, next));
        let table = places.lock();
        assert!(table.connections.is_empty() && table.idle.is_empty() && table.reserved == 0);
    }
}
