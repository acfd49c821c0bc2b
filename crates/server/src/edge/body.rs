//! Bodies of requests and answers. A request body is spooled to disk until it is complete, and an answer is read as the
//! client takes it. A client that stops therefore costs a file and not memory.

use crate::{
    app::AppState,
    problem::{ApiProblem, ApiResult},
};
use ash_model::{FailureKind, TenantId};
use axum::{
    RequestExt,
    body::{Body, Bytes},
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http_body_util::{BodyExt, LengthLimitError};
use hyper::body::Frame;
use std::{
    collections::HashMap,
    error::Error as StdError,
    io::{self, Read, Seek, Write},
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep_until},
};

/// A body up to this size is kept in memory while it arrives.
const MAX_IN_MEMORY_BYTES: usize = 256 << 10;
/// Memory for all larger bodies in use, including their copies.
const MAX_LARGE_BODY_BYTES: usize = 512 << 20;
/// Memory for those of one tenant, which leaves some for others. A body that needs more takes exactly this much.
const MAX_TENANT_BODY_BYTES: usize = 384 << 20;
/// During parsing a body is in memory twice: as bytes, and as parsed values.
const BODY_COPIES: usize = 2;
/// How long a body on disk waits for memory.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum step in which a body reserves disk space. After each further step the free space is checked again.
const SPOOL_STEP_BYTES: u64 = 4 << 20;
/// Bytes of a file to read at once.
const READ_CHUNK_BYTES: usize = 64 << 10;
/// A client that sends fewer bytes per second, after an initial timeout, counts as stopped.
const MIN_BYTES_PER_SECOND: u64 = 1 << 10;

/// Spools bodies that are too large for memory.
#[derive(Clone)]
pub(crate) struct BodySpooler {
    scratch: PathBuf,
    memory: Arc<Semaphore>,
    /// Memory of tenants that have large bodies in use.
    tenants: Arc<Mutex<HashMap<Option<TenantId>, Weak<Semaphore>>>>,
    /// Disk space that arriving bodies have reserved but not yet written.
    reserved: Arc<AtomicU64>,
    /// Set when a write fails because the disk is full.
    disk_full: Arc<AtomicBool>,
}

/// A complete body, and its share of the memory for large bodies.
pub(crate) struct BufferedBody {
    pub(crate) bytes: Bytes,
    pub(crate) memory: Option<BodyMemory>,
}

/// A large body's share of the common memory, and of its tenant's part.
pub(crate) struct BodyMemory {
    shared: OwnedSemaphorePermit,
    tenant: OwnedSemaphorePermit,
}

impl BodyMemory {
    /// Releases everything beyond `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        for permit in [&mut self.shared, &mut self.tenant] {
            drop(permit.split(permit.num_permits().saturating_sub(bytes)));
        }
    }
}

impl BodySpooler {
    pub(crate) fn new(scratch: PathBuf, disk_full: Arc<AtomicBool>) -> BodySpooler {
        BodySpooler {
            scratch,
            memory: Arc::new(Semaphore::new(MAX_LARGE_BODY_BYTES)),
            tenants: Arc::default(),
            reserved: Arc::default(),
            disk_full,
        }
    }

    /// Reads a whole body, up to the limit of the route. It is loaded into memory only when it is complete and there is
    /// room. `check_space` tests whether the disk has room for the bytes that all arriving bodies have still to write.
    pub(crate) async fn read(
        &self,
        request: Request,
        tenant: Option<TenantId>,
        check_space: impl Fn(u64) -> ApiResult<()>,
    ) -> ApiResult<BufferedBody> {
        let mut body = request.into_limited_body();
        let announced = hyper::body::Body::size_hint(&body).exact().unwrap_or(0);
        let (mut small, mut large) = (Vec::new(), None);
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(unreadable)?.into_data() else { continue };
            length += data.len();
            if large.is_none() && length <= MAX_IN_MEMORY_BYTES {
                small.extend_from_slice(&data);
                continue;
            }
            let mut spool: BodySpoolFile = match large.take() {
                Some(spool) => spool,
                None => self.new_file(std::mem::take(&mut small), announced, &check_space).await?,
            };
            spool.reserved.cover(data.len() as u64, &check_space)?;
            large = Some(spool.add(data).await.inspect_err(|error| self.note_full(error))?);
        }
        let Some(spool) = large else { return Ok(BufferedBody { bytes: small.into(), memory: None }) };
        let memory = self.acquire_memory(tenant, length).await?;
        Ok(BufferedBody { bytes: spool.read_all(length).await?, memory: Some(memory) })
    }

    async fn new_file(
        &self,
        beginning: Vec<u8>,
        announced: u64,
        check_space: &impl Fn(u64) -> ApiResult<()>,
    ) -> ApiResult<BodySpoolFile> {
        let mut reserved = DiskReservation { all: self.reserved.clone(), left: 0, unchecked: 0 };
        reserved.cover(announced.max(beginning.len() as u64), check_space)?;
        let file = BodySpoolFile::new(&self.scratch, beginning, reserved).await;
        file.inspect_err(|error| self.note_full(error))
    }

    fn note_full(&self, error: &ApiProblem) {
        if error.code == ash_session::Error::LittleSpace(0).code() {
            self.disk_full.store(true, Ordering::Relaxed);
        }
    }

    /// Grants memory in the order of requests, for each tenant and for all.
    async fn acquire_memory(&self, tenant: Option<TenantId>, length: usize) -> ApiResult<BodyMemory> {
        let bytes = length.saturating_mul(BODY_COPIES).min(MAX_TENANT_BODY_BYTES);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let (of_tenant, of_all) = (self.tenant_memory(tenant), self.memory.clone());
        let both = async {
            let tenant = of_tenant.acquire_many_owned(bytes).await.map_err(ApiProblem::internal)?;
            let shared = of_all.acquire_many_owned(bytes).await.map_err(ApiProblem::internal)?;
            Ok::<_, ApiProblem>(BodyMemory { shared, tenant })
        };
        tokio::time::timeout(MEMORY_TIMEOUT, both).await.unwrap_or_else(|_| {
            let error = "The server is at work on other large requests; send this one again";
            Err(ApiProblem::new(FailureKind::Unavailable, "too_many_large_bodies", error))
        })
    }

    fn tenant_memory(&self, tenant: Option<TenantId>) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.retain(|_, memory| memory.strong_count() > 0);
        if let Some(memory) = tenants.get(&tenant).and_then(Weak::upgrade) {
            return memory;
        }
        let memory = Arc::new(Semaphore::new(MAX_TENANT_BODY_BYTES));
        tenants.insert(tenant, Arc::downgrade(&memory));
        memory
    }
}

/// Disk space that one body has reserved but not yet written.
struct DiskReservation {
    all: Arc<AtomicU64>,
    left: u64,
    /// Bytes written since the free space was checked.
    unchecked: u64,
}

impl DiskReservation {
    /// Reserves more if these bytes do not fit into the reservation.
    fn cover(&mut self, bytes: u64, check_space: &impl Fn(u64) -> ApiResult<()>) -> ApiResult<()> {
        let more = match bytes > self.left {
            true => (bytes - self.left).max(SPOOL_STEP_BYTES),
            false if self.unchecked < SPOOL_STEP_BYTES => return Ok(()),
            false => 0,
        };
        self.left += more;
        self.unchecked = 0;
        check_space(self.all.fetch_add(more, Ordering::Relaxed) + more)
    }

    fn note_written(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        self.unchecked += bytes;
        self.all.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for DiskReservation {
    fn drop(&mut self) {
        self.all.fetch_sub(self.left, Ordering::Relaxed);
    }
}

/// A file without a name, which disappears with its handle.
struct BodySpoolFile {
    file: std::fs::File,
    reserved: DiskReservation,
}

impl BodySpoolFile {
    async fn new(
        scratch: &std::path::Path,
        beginning: Vec<u8>,
        mut reserved: DiskReservation,
    ) -> ApiResult<BodySpoolFile> {
        let scratch = scratch.to_owned();
        let made = move || {
            let mut file = tempfile::tempfile_in(scratch)?;
            file.write_all(&beginning)?;
            reserved.note_written(beginning.len() as u64);
            Ok(BodySpoolFile { file, reserved })
        };
        blocking(made).await
    }

    async fn add(mut self, data: Bytes) -> ApiResult<BodySpoolFile> {
        let written = move || {
            self.file.write_all(&data)?;
            self.reserved.note_written(data.len() as u64);
            Ok(self)
        };
        blocking(written).await
    }

    async fn read_all(mut self, length: usize) -> ApiResult<Bytes> {
        let read = move || {
            let mut bytes = Vec::with_capacity(length);
            self.file.rewind()?;
            self.file.read_to_end(&mut bytes)?;
            Ok(Bytes::from(bytes))
        };
        blocking(read).await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> ApiResult<T> {
    let done =
        tokio::task::spawn_blocking(work).await.map_err(|_| ApiProblem::internal("the work was cut off"))?;
    done.map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull => ash_session::Error::LittleSpace(0).into(),
        _ => ApiProblem::internal(format!("a body could not be kept: {error}")),
    })
}

fn unreadable(error: axum::Error) -> ApiProblem {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(&error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return ApiProblem::new(FailureKind::TooLarge, "payload_too_large", "Payload Too Large");
        }
        if error.is::<ClientStalledError>() {
            return ApiProblem::new(FailureKind::Timeout, "request_timeout", error.to_string());
        }
        cause = error.source();
    }
    ApiProblem::invalid("unreadable_body", format!("The body could not be read: {error}"))
}

/// Reads on a blocking thread, piece by piece as the client takes the bytes, so that it delays no other request.
pub(crate) fn read_file(reader: Box<dyn Read + Send>, length: u64) -> Body {
    let pieces = futures::stream::try_unfold((reader, length), |(mut reader, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let read = move || {
            let mut piece = vec![0; READ_CHUNK_BYTES.min(usize::try_from(left).unwrap_or(READ_CHUNK_BYTES))];
            let length = reader.read(&mut piece)?;
            piece.truncate(length);
            Ok::<_, io::Error>((reader, piece))
        };
        let (reader, piece) = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
        if piece.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        let left = left - piece.len() as u64;
        Ok(Some((Bytes::from(piece), (reader, left))))
    });
    Body::new(SizedBody { body: Body::from_stream(pieces), length })
}

/// A body of known length.
struct SizedBody {
    body: Body,
    length: u64,
}

impl hyper::body::Body for SizedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.length)
    }
}

/// Ends requests whose clients stop sending.
pub(crate) async fn with_timeout(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let timeout = app.client_timeout;
    next.run(request.map(|body| Body::new(TimeoutBody::new(body, timeout)))).await
}

#[derive(Debug, thiserror::Error)]
#[error("The client stopped sending: nothing of the body came for {} s. Send it again, without a break", .0.as_secs())]
struct ClientStalledError(Duration);

struct TimeoutBody {
    body: Body,
    timeout: Duration,
    /// The start of the body and the bytes received since, from which `deadline` computes the minimum rate.
    began: Option<Instant>,
    received: u64,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl TimeoutBody {
    fn new(body: Body, timeout: Duration) -> TimeoutBody {
        TimeoutBody { body, timeout, began: None, received: 0, waiting: None }
    }

    /// When the next bytes must arrive: within the timeout, and not later than the minimum rate allows.
    fn deadline(&mut self) -> Instant {
        let now = Instant::now();
        let began = *self.began.get_or_insert(now);
        let slowest = began + self.timeout + Duration::from_secs(self.received / MIN_BYTES_PER_SECOND);
        (now + self.timeout).min(slowest)
    }
}

impl hyper::body::Body for TimeoutBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.waiting = None;
            if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()).and_then(Frame::data_ref)
            {
                self.received += data.len() as u64;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let deadline = self.deadline();
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(ClientStalledError(self.timeout).into()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(dir: &tempfile::TempDir) -> BodySpooler {
        BodySpooler::new(dir.path().to_owned(), Arc::default())
    }

    fn in_pieces(number: usize, length: usize) -> Body {
        let piece = Bytes::from(vec![7; length]);
        Body::from_stream(futures::stream::iter((0..number).map(move |_| Ok::<_, io::Error>(piece.clone()))))
    }

    fn unlimited(body: Body) -> Request {
        let mut request = Request::new(body);
        axum::extract::DefaultBodyLimit::disable().apply(&mut request);
        request
    }

    fn tenant(name: &str) -> Option<TenantId> {
        Some(TenantId::parse(name).expect("a name"))
    }

    #[tokio::test]
    async fn a_large_body_comes_back_whole_from_disk_and_has_its_part_of_the_memory() {
        let dir = tempfile::tempdir().expect("a directory");
        let bodies = bodies(&dir);
        let request = Request::new(in_pieces(100, 10_000));
        let mut whole = bodies.read(request, None, |_| Ok(())).await.expect("a body");
        assert_eq!(whole.bytes, vec![7u8; 1_000_000]);
        assert_eq!(bodies.memory.available_permits(), MAX_LARGE_BODY_BYTES - 2_000_000);
        whole.memory.as_mut().expect("its part").shrink_to(300);
        assert_eq!(bodies.memory.available_permits(), MAX_LARGE_BODY_BYTES - 300);
        drop(whole);
        assert_eq!(bodies.memory.available_permits(), MAX_LARGE_BODY_BYTES);
        let small = bodies.read(Request::new(in_pieces(2, 10)), None, |_| Ok(())).await.expect("a body");
        assert!(small.bytes == vec![7u8; 20] && small.memory.is_none());
        let full = |_| Err(ApiProblem::internal("full"));
        let full = bodies.read(Request::new(in_pieces(100, 10_000)), None, full).await;
        assert!(full.is_err(), "a disk without space takes no large body");
        assert_eq!(bodies.reserved.load(Ordering::Relaxed), 0, "nothing stays reserved");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_leaves_memory_to_others_and_waits_for_its_own_only_so_long() {
        let dir = tempfile::tempdir().expect("a directory");
        let bodies = bodies(&dir);
        let held = bodies.acquire_memory(tenant("greedy"), 200 << 20).await.expect("alone");
        let refused = bodies.acquire_memory(tenant("greedy"), 1 << 20).await.err().expect("no more of it");
        assert_eq!(
            (refused.code.as_str(), refused.kind),
            ("too_many_large_bodies", FailureKind::Unavailable)
        );
        let other = bodies.acquire_memory(tenant("modest"), 50 << 20).await.expect("others have theirs");
        drop((held, other));
        bodies.acquire_memory(tenant("greedy"), 1 << 20).await.expect("given back");
    }

    #[tokio::test]
    async fn free_space_is_checked_while_a_body_arrives() {
        let dir = tempfile::tempdir().expect("a directory");
        let (bodies, looks) = (bodies(&dir), std::cell::Cell::new(0));
        let fills_up = |_| {
            looks.set(looks.get() + 1);
            if looks.get() < 3 { Ok(()) } else { Err(ApiProblem::internal("full")) }
        };
        let refused = bodies.read(unlimited(in_pieces(100, 1 << 20)), None, fills_up).await.err();
        assert_eq!(refused.map(|problem| problem.error), Some("full".to_owned()));
        assert_eq!(bodies.reserved.load(Ordering::Relaxed), 0, "nothing stays reserved");
    }

    #[tokio::test]
    async fn bodies_that_arrive_at_once_reserve_what_they_announce() {
        let dir = tempfile::tempdir().expect("a directory");
        let bodies = bodies(&dir);
        let only =
            |disk: u64| move |wanted| if wanted <= disk { Ok(()) } else { Err(ApiProblem::internal("full")) };
        let half = |length: u64| {
            let piece = Box::new(io::repeat(7).take(MAX_IN_MEMORY_BYTES as u64 * 2));
            let endless = Body::from_stream(futures::stream::unfold(Some(piece), async |piece| {
                let mut bytes = Vec::new();
                match piece {
                    Some(mut piece) => piece.read_to_end(&mut bytes).map(drop).ok()?,
                    None => std::future::pending().await,
                }
                Some((Ok::<_, io::Error>(Bytes::from(bytes)), None))
            }));
            unlimited(Body::new(SizedBody { body: endless, length }))
        };
        let mut first = Box::pin(bodies.read(half(100 << 20), None, only(150 << 20)));
        while bodies.reserved.load(Ordering::Relaxed) != (100 << 20) - (512 << 10) {
            assert!(futures::poll!(&mut first).is_pending(), "it has not ended");
            tokio::task::yield_now().await;
        }
        assert!(bodies.read(half(100 << 20), None, only(150 << 20)).await.is_err(), "no room for both");
        drop(first);
        assert_eq!(bodies.reserved.load(Ordering::Relaxed), 0, "nothing stays reserved");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_sending_or_trickles_is_given_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let minute = Duration::from_secs(60);
        let silent = Body::from_stream(futures::stream::pending::<io::Result<Bytes>>());
        let trickle = Body::from_stream(futures::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(50)).await;
            Some((Ok::<_, io::Error>(Bytes::from_static(b"x")), ()))
        }));
        for body in [silent, trickle] {
            let began = Instant::now();
            let request = Request::new(Body::new(TimeoutBody::new(body, minute)));
            let problem = bodies(&dir).read(request, None, |_| Ok(())).await.err().expect("given up");
            assert_eq!((problem.code.as_str(), problem.kind), ("request_timeout", FailureKind::Timeout));
            assert!(began.elapsed() < 3 * minute, "{:?}", began.elapsed());
        }
    }

    #[tokio::test]
    async fn a_file_is_read_as_it_is_taken() {
        let mut body = read_file(Box::new(io::repeat(3).take(200_000)), 200_000);
        let first = body.frame().await.expect("a piece").expect("read").into_data().expect("data");
        assert!(first.len() <= READ_CHUNK_BYTES);
        let rest = body.collect().await.expect("the rest").to_bytes();
        assert_eq!(first.len() + rest.len(), 200_000);
        let shorter = read_file(Box::new(io::repeat(3).take(10)), 20);
        assert!(shorter.collect().await.is_err(), "it must not look whole");
    }
}
