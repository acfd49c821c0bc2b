//! Limits requests: how many run at once, how many bytes per second, and how long one may take. The timeout starts when
//! a request begins to run, so waiting in the queue does not make it fail.

use crate::{
    bucket_error::TransportFailure,
    object_backend::{ObjectBackend, ObjectResponseHead, named},
};
use async_trait::async_trait;
use futures::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until, timeout},
};

/// A store sends nothing while it assembles the parts, so completing an upload gets this many times the timeout.
const COMPLETE_TIMEOUT_FACTOR: u32 = 10;
/// A slower connection, in bytes per second, times out.
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    pub max_concurrent: Option<usize>,
    /// Uploads and downloads together.
    pub bytes_per_second: Option<u64>,
    /// The longest time without a byte from the store. A request body adds the time that it takes at 64 KiB/s.
    pub idle_timeout: Duration,
}

impl Default for RequestLimits {
    fn default() -> RequestLimits {
        RequestLimits { max_concurrent: None, bytes_per_second: None, idle_timeout: Duration::from_secs(30) }
    }
}

#[derive(Clone)]
pub struct ThrottledObjectStore {
    inner: Arc<dyn ObjectBackend>,
    turns: Option<Arc<Semaphore>>,
    pace: Option<Arc<BandwidthLimiter>>,
    silence: Duration,
}

named!(ThrottledObjectStore);

impl ThrottledObjectStore {
    pub fn new(inner: Arc<dyn ObjectBackend>, limits: RequestLimits) -> ThrottledObjectStore {
        ThrottledObjectStore {
            inner,
            turns: limits.max_concurrent.map(|most| Arc::new(Semaphore::new(most.max(1)))),
            pace: limits.bytes_per_second.map(|bytes| Arc::new(BandwidthLimiter::new(bytes))),
            silence: limits.idle_timeout,
        }
    }

    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let turns = self.turns.clone()?;
        Some(turns.acquire_owned().await.expect("the semaphore is never closed"))
    }

    async fn keep_pace(&self, bytes: usize) {
        if let Some(pace) = &self.pace {
            pace.take(bytes as u64).await;
        }
    }

    /// Runs a request that sends this many bytes.
    async fn limited<T>(&self, bytes: usize, request: impl Future<Output = Result<T>>) -> Result<T> {
        let _turn = self.turn().await;
        self.keep_pace(bytes).await;
        let limit = self.silence + Duration::from_secs(bytes as u64 / MIN_BYTES_PER_SECOND);
        timeout(limit, request).await.unwrap_or_else(|_| Err(TransportFailure::TooSlow.error()))
    }

    /// Treats each step of a stream as a request, so that a caller that reads slowly, or makes other requests between
    /// two steps, holds no slot.
    fn stepwise<T: Send + 'static>(
        &self,
        stream: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let store = self.clone();
        futures::stream::unfold(Some(stream), move |stream| {
            let store = store.clone();
            async move {
                let mut stream = stream?;
                let step = store.limited(0, async { Ok(stream.next().await) });
                match step.await {
                    Ok(item) => item.map(|item| (item, Some(stream))),
                    Err(e) => Some((Err(e), None)),
                }
            }
        })
        .fuse()
        .boxed()
    }
}

/// Limits the bytes per second. A request starts at once if no earlier request has used up the time; later requests
/// wait for the bytes that it sends.
struct BandwidthLimiter {
    bytes_per_second: u64,
    free_at: Mutex<Instant>,
}

impl BandwidthLimiter {
    fn new(bytes_per_second: u64) -> BandwidthLimiter {
        BandwidthLimiter { bytes_per_second: bytes_per_second.max(1), free_at: Mutex::new(Instant::now()) }
    }

    async fn take(&self, bytes: u64) {
        let begin = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = (*free_at).max(Instant::now());
            *free_at = begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
            begin
        };
        sleep_until(begin).await;
    }
}

#[async_trait]
impl ObjectStore for ThrottledObjectStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let length = payload.content_length();
        self.limited(length, self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    /// Holds the slot until the body has been read.
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let turn = self.turn().await;
        let request = timeout(self.silence, self.inner.get_opts(location, options));
        let got = request.await.unwrap_or_else(|_| Err(TransportFailure::TooSlow.error()))?;
        let (head, body) = ObjectResponseHead::of(got);
        let store = self.clone();
        let body = futures::stream::unfold(Some((body, turn)), move |state| {
            let store = store.clone();
            async move {
                let (mut body, turn) = state?;
                match timeout(store.silence, body.next()).await {
                    Ok(chunk) => {
                        let chunk = chunk?;
                        store.keep_pace(chunk.as_ref().map_or(0, bytes::Bytes::len)).await;
                        Some((chunk, Some((body, turn))))
                    }
                    Err(_) => Some((Err(TransportFailure::TooSlow.error()), None)),
                }
            }
        });
        Ok(head.with(body.fuse().boxed()))
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.stepwise(self.inner.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.stepwise(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.stepwise(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.limited(0, self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for ThrottledObjectStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.limited(0, self.inner.create_multipart(path)).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let length = data.content_length();
        self.limited(length, self.inner.put_part(path, id, part_idx, data)).await
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        let _turn = self.turn().await;
        let request =
            timeout(self.silence * COMPLETE_TIMEOUT_FACTOR, self.inner.complete_multipart(path, id, parts));
        request.await.unwrap_or_else(|_| Err(TransportFailure::TooSlow.error()))
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.limited(0, self.inner.abort_multipart(path, id)).await
    }
}
