//! Bodies: what a client sends is kept on disk until all of it is there, and what it gets is read as it takes it, so that a
//! client that stops costs a file and not memory.

use crate::{
    app::AppState,
    problem::{ApiProblem, ApiResult},
};
use ash_model::FailureKind;
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
    error::Error as StdError,
    io::{self, Read, Seek, Write},
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep_until},
};

/// A body of up to so many bytes is kept in memory while it arrives.
const MAX_IN_MEMORY_BYTES: usize = 256 << 10;
/// What all larger bodies that are worked on may take together; one of this size is worked on alone.
const MAX_LARGE_BODY_BYTES: usize = 256 << 20;
/// Of a file, so much is read at once.
const READ_CHUNK_BYTES: usize = 64 << 10;
/// A client that sends fewer bytes a second, after the first of its time, is taken for one that has stopped.
const MIN_BYTES_PER_SECOND: u64 = 1 << 10;

/// Where bodies wait that are too large to do so in memory.
#[derive(Clone)]
pub(crate) struct BodySpooler {
    scratch: PathBuf,
    memory: Arc<Semaphore>,
}

/// A whole body, and its part of the memory for large ones.
pub(crate) struct BufferedBody {
    pub(crate) bytes: Bytes,
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

impl BodySpooler {
    pub(crate) fn new(scratch: PathBuf) -> BodySpooler {
        BodySpooler { scratch, memory: Arc::new(Semaphore::new(MAX_LARGE_BODY_BYTES)) }
    }

    /// All of it, as far as the route allows; in memory only when it has arrived and there is room for it.
    pub(crate) async fn read(
        &self,
        request: Request,
        is_full: impl Fn() -> ApiResult<()>,
    ) -> ApiResult<BufferedBody> {
        let mut body = request.into_limited_body();
        let (mut small, mut large) = (Vec::new(), None);
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(unreadable)?.into_data() else { continue };
            length += data.len();
            if large.is_none() && length <= MAX_IN_MEMORY_BYTES {
                small.extend_from_slice(&data);
                continue;
            }
            let spool = match large.take() {
                Some(spool) => spool,
                None => {
                    is_full()?;
                    BodySpoolFile::new(&self.scratch, std::mem::take(&mut small)).await?
                }
            };
            large = Some(spool.add(data).await?);
        }
        let Some(spool) = large else { return Ok(BufferedBody { bytes: small.into(), memory: None }) };
        let room = u32::try_from(length.min(MAX_LARGE_BODY_BYTES)).unwrap_or(u32::MAX);
        let memory = self.memory.clone().acquire_many_owned(room).await.map_err(ApiProblem::internal)?;
        Ok(BufferedBody { bytes: spool.read_all(length).await?, memory: Some(memory) })
    }
}

/// A file that nobody else can open, gone with its handle.
struct BodySpoolFile(std::fs::File);

impl BodySpoolFile {
    async fn new(scratch: &std::path::Path, beginning: Vec<u8>) -> ApiResult<BodySpoolFile> {
        let scratch = scratch.to_owned();
        let made = move || {
            let mut file = tempfile::tempfile_in(scratch)?;
            file.write_all(&beginning)?;
            Ok(BodySpoolFile(file))
        };
        blocking(made).await
    }

    async fn add(mut self, data: Bytes) -> ApiResult<BodySpoolFile> {
        blocking(move || self.0.write_all(&data).map(|()| self)).await
    }

    async fn read_all(mut self, length: usize) -> ApiResult<Bytes> {
        let read = move || {
            let mut bytes = Vec::with_capacity(length);
            self.0.rewind()?;
            self.0.read_to_end(&mut bytes)?;
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

/// A reader's bytes as they are taken, read where that delays no other request.
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

/// A body that says how long it is.
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
    /// What the client has at the slowest.
    began: Option<Instant>,
    received: u64,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl TimeoutBody {
    fn new(body: Body, timeout: Duration) -> TimeoutBody {
        TimeoutBody { body, timeout, began: None, received: 0, waiting: None }
    }

    /// Until when the next piece must be here: soon, and not later than all of it would be at the slowest.
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
        BodySpooler::new(dir.path().to_owned())
    }

    fn in_pieces(number: usize, length: usize) -> Body {
        let piece = Bytes::from(vec![7; length]);
        Body::from_stream(futures::stream::iter((0..number).map(move |_| Ok::<_, io::Error>(piece.clone()))))
    }

    #[tokio::test]
    async fn a_large_body_comes_back_whole_from_disk_and_has_its_part_of_the_memory() {
        let dir = tempfile::tempdir().expect("a directory");
        let bodies = bodies(&dir);
        let whole = bodies.read(Request::new(in_pieces(100, 10_000)), || Ok(())).await.expect("a body");
        assert_eq!(whole.bytes, vec![7u8; 1_000_000]);
        assert_eq!(bodies.memory.available_permits(), MAX_LARGE_BODY_BYTES - 1_000_000);
        drop(whole);
        assert_eq!(bodies.memory.available_permits(), MAX_LARGE_BODY_BYTES);
        let small = bodies.read(Request::new(in_pieces(2, 10)), || Ok(())).await.expect("a body");
        assert!(small.bytes == vec![7u8; 20] && small.memory.is_none());
        let full =
            bodies.read(Request::new(in_pieces(100, 10_000)), || Err(ApiProblem::internal("full"))).await;
        assert!(full.is_err(), "a disk without space takes no large body");
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
            let problem = bodies(&dir).read(request, || Ok(())).await.err().expect("given up");
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
