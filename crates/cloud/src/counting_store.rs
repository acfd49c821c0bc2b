//! Counts requests to a store for metrics. This is the outermost wrapper, so a request and its retries count as one.

use crate::object_backend::{ObjectBackend, ObjectResponseHead, named};
use async_trait::async_trait;
use futures::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

#[derive(Clone)]
pub struct CountingObjectStore {
    inner: Arc<dyn ObjectBackend>,
    counts: Arc<TrafficCounters>,
}

named!(CountingObjectStore);

#[derive(Default)]
struct TrafficCounters {
    put: AtomicU64,
    part: AtomicU64,
    get: AtomicU64,
    head: AtomicU64,
    list: AtomicU64,
    delete: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
}

/// Requests by operation, and the bytes that arrived at the other side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BucketTraffic {
    pub put: u64,
    /// Parts of large files, including the requests that start and complete the upload.
    pub part: u64,
    pub get: u64,
    pub head: u64,
    pub list: u64,
    /// Counted per key.
    pub delete: u64,
    /// Requests that were retried.
    pub retries: u64,
    pub bytes_up: u64,
    pub bytes_down: u64,
}

impl std::ops::Add for BucketTraffic {
    type Output = BucketTraffic;

    fn add(self, other: BucketTraffic) -> BucketTraffic {
        BucketTraffic {
            put: self.put + other.put,
            part: self.part + other.part,
            get: self.get + other.get,
            head: self.head + other.head,
            list: self.list + other.list,
            delete: self.delete + other.delete,
            retries: self.retries + other.retries,
            bytes_up: self.bytes_up + other.bytes_up,
            bytes_down: self.bytes_down + other.bytes_down,
        }
    }
}

impl CountingObjectStore {
    pub fn new(inner: Arc<dyn ObjectBackend>) -> CountingObjectStore {
        CountingObjectStore { inner, counts: Arc::default() }
    }

    /// The counts without `retries`, which this wrapper cannot see.
    pub fn tally(&self) -> BucketTraffic {
        let counts = &self.counts;
        BucketTraffic {
            put: counts.put.load(Relaxed),
            part: counts.part.load(Relaxed),
            get: counts.get.load(Relaxed),
            head: counts.head.load(Relaxed),
            list: counts.list.load(Relaxed),
            delete: counts.delete.load(Relaxed),
            retries: 0,
            bytes_up: counts.up.load(Relaxed),
            bytes_down: counts.down.load(Relaxed),
        }
    }
}

#[async_trait]
impl ObjectStore for CountingObjectStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.counts.put.fetch_add(1, Relaxed);
        let length = payload.content_length() as u64;
        let put = self.inner.put_opts(location, payload, opts).await?;
        self.counts.up.fetch_add(length, Relaxed);
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let count = if options.head { &self.counts.head } else { &self.counts.get };
        count.fetch_add(1, Relaxed);
        let is_head = options.head;
        let got = self.inner.get_opts(location, options).await?;
        if is_head {
            return Ok(got);
        }
        let counts = self.counts.clone();
        let (head, body) = ObjectResponseHead::of(got);
        let body = body.inspect(move |chunk| {
            if let Ok(chunk) = chunk {
                counts.down.fetch_add(chunk.len() as u64, Relaxed);
            }
        });
        Ok(head.with(body.boxed()))
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let counts = self.counts.clone();
        let counted = locations.inspect(move |_| {
            counts.delete.fetch_add(1, Relaxed);
        });
        self.inner.delete_stream(counted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counts.list.fetch_add(1, Relaxed);
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counts.list.fetch_add(1, Relaxed);
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.counts.list.fetch_add(1, Relaxed);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for CountingObjectStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.counts.part.fetch_add(1, Relaxed);
        self.inner.create_multipart(path).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        self.counts.part.fetch_add(1, Relaxed);
        let length = data.content_length() as u64;
        let part = self.inner.put_part(path, id, part_idx, data).await?;
        self.counts.up.fetch_add(length, Relaxed);
        Ok(part)
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        self.counts.part.fetch_add(1, Relaxed);
        self.inner.complete_multipart(path, id, parts).await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.counts.part.fetch_add(1, Relaxed);
        self.inner.abort_multipart(path, id).await
    }
}
