//! Retries requests whose error may be temporary, and no others. The only place that retries: object_store's retries
//! are off.
//!
//! A write whose outcome is unknown is retried too. The retry may then find its own object and return `AlreadyExists`.
//! That is harmless, because a key is derived from the content, or from an epoch that has one writer.

use crate::{
    bucket_error::{self, BucketErrorCode, TransportFailure},
    object_backend::{ObjectBackend, ObjectResponseHead, named},
    seeded_random,
};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    collect_bytes,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// The largest number of keys in one delete request that all supported stores accept.
const MAX_KEYS_PER_DELETE: usize = 256;

/// How often a request is attempted, and how long to wait in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The number of attempts, including the first.
    pub max_attempts: u32,
    /// The delay after the first attempt. It doubles after each further attempt.
    pub initial_delay: Duration,
    pub max_delay: Duration,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            max_attempts: 8,
            initial_delay: Duration::from_millis(200),
            max_delay: Duration::from_secs(10),
        }
    }
}

impl RetryPolicy {
    /// For requests whose result a person waits for.
    pub const SHORT: RetryPolicy = RetryPolicy {
        max_attempts: 2,
        initial_delay: Duration::from_millis(200),
        max_delay: Duration::from_millis(200),
    };

    /// Waits at least half of the full delay. The rest is random, so that requests that failed together do not repeat
    /// together.
    fn wait(&self, tried: u32, luck: u64) -> Duration {
        let full =
            self.initial_delay.saturating_mul(1 << tried.min(20).saturating_sub(1)).min(self.max_delay);
        full / 2 + full.mul_f64((luck % 1024) as f64 / 2048.0)
    }
}

#[derive(Clone)]
pub struct RetryingObjectStore {
    inner: Arc<dyn ObjectBackend>,
    patience: RetryPolicy,
    again: Arc<AtomicU64>,
    seed: u64,
}

named!(RetryingObjectStore);

impl RetryingObjectStore {
    pub fn new(inner: Arc<dyn ObjectBackend>, patience: RetryPolicy) -> RetryingObjectStore {
        RetryingObjectStore { inner, patience, again: Arc::default(), seed: RandomState::new().hash_one(0) }
    }

    /// The number of retries so far.
    pub fn retries(&self) -> u64 {
        self.again.load(Relaxed)
    }

    /// If another attempt makes sense, waits for the delay and returns true.
    async fn may_try_again(&self, error: &Error, tried: u32) -> bool {
        if tried >= self.patience.max_attempts || !bucket_error::passing(error) {
            return false;
        }
        let nth = self.again.fetch_add(1, Relaxed);
        let wait = self.patience.wait(tried, seeded_random::splitmix64(self.seed.wrapping_add(nth)));
        tracing::debug!(store = %self.inner, tried, ?wait, code = bucket_error::code(error).as_str(), "a request failed and is sent again");
        tokio::time::sleep(wait).await;
        true
    }

    async fn repeat<T, F>(&self, mut attempt: impl FnMut(u32) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut tried = 0;
        loop {
            let result = attempt(tried).await;
            tried += 1;
            match result {
                Err(e) if self.may_try_again(&e, tried).await => {}
                result => return result,
            }
        }
    }

    /// Reads the body as part of the attempt: if the body ends early, the attempt has failed.
    async fn get_whole(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let is_head = options.head;
        let got = self.inner.get_opts(location, options).await?;
        if is_head {
            return Ok(got);
        }
        let (head, body) = ObjectResponseHead::of(got);
        let length = head.range.end - head.range.start;
        let body = collect_bytes(body, Some(length)).await?;
        if body.len() as u64 != length {
            return Err(TransportFailure::BrokeOff.error());
        }
        Ok(head.with(futures::stream::once(async { Ok(body) }).boxed()))
    }

    async fn delete_all(&self, mut left: Vec<Path>) -> Result<()> {
        let mut tried = 0;
        loop {
            let Err(e) = self.delete_once(&mut left).await else { return Ok(()) };
            tried += 1;
            if !self.may_try_again(&e, tried).await {
                return Err(e);
            }
        }
    }

    /// A missing object is not an error, because an earlier attempt may have deleted it.
    async fn delete_once(&self, left: &mut Vec<Path>) -> Result<()> {
        let asked: Vec<_> = left.iter().cloned().map(Ok).collect();
        let mut answers = self.inner.delete_stream(futures::stream::iter(asked).boxed());
        let mut failure = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(gone) => left.retain(|path| *path != gone),
                Err(Error::NotFound { .. }) => {}
                Err(e) => failure = Some(e),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn listing(&self, prefix: Option<&Path>, after: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listing = ResumableListing {
            store: self.clone(),
            prefix: prefix.cloned(),
            after: after.cloned(),
            last: after.cloned(),
            page: None,
            tried: 0,
            is_ordered: true,
        };
        futures::stream::try_unfold(listing, |mut listing| async move {
            Ok(listing.next().await?.map(|meta| (meta, listing)))
        })
        .boxed()
    }
}

/// A listing that continues after the last key when it is interrupted. This needs a store that lists in key order.
struct ResumableListing {
    store: RetryingObjectStore,
    prefix: Option<Path>,
    /// The key after which the current page begins.
    after: Option<Path>,
    last: Option<Path>,
    page: Option<BoxStream<'static, Result<ObjectMeta>>>,
    tried: u32,
    is_ordered: bool,
}

impl ResumableListing {
    async fn next(&mut self) -> Result<Option<ObjectMeta>> {
        loop {
            let page = self.page.get_or_insert_with(|| match &self.after {
                Some(after) => self.store.inner.list_with_offset(self.prefix.as_ref(), after),
                None => self.store.inner.list(self.prefix.as_ref()),
            });
            match page.next().await {
                // Some servers ignore the start key, so skip the keys before it.
                Some(Ok(meta)) if self.after.as_ref().is_some_and(|after| meta.location <= *after) => {}
                Some(Ok(meta)) => {
                    self.is_ordered &= self.last.as_ref().is_none_or(|last| *last < meta.location);
                    self.last = Some(meta.location.clone());
                    self.tried = 0;
                    return Ok(Some(meta));
                }
                Some(Err(e)) => {
                    self.page = None;
                    self.after = self.last.clone();
                    self.tried += 1;
                    if !self.is_ordered || !self.store.may_try_again(&e, self.tried).await {
                        return Err(e);
                    }
                }
                None => return Ok(None),
            }
        }
    }
}

#[async_trait]
impl ObjectStore for RetryingObjectStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.repeat(|_| self.inner.put_opts(location, payload.clone(), opts.clone())).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.repeat(|_| self.get_whole(location, options.clone())).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .try_chunks(MAX_KEYS_PER_DELETE)
            .map_err(|e| e.1)
            .and_then(move |locations| {
                let store = store.clone();
                async move {
                    store.delete_all(locations.clone()).await?;
                    Ok(futures::stream::iter(locations.into_iter().map(Ok)))
                }
            })
            .try_flatten()
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.repeat(|_| self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for RetryingObjectStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.repeat(|_| self.inner.create_multipart(path)).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        self.repeat(|_| self.inner.put_part(path, id, part_idx, data.clone())).await
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        let completed =
            self.repeat(async |tried| match self.inner.complete_multipart(path, id, parts.clone()).await {
                // If the object exists, an earlier attempt completed the upload, so the upload is gone.
                Err(e) if tried > 0 && bucket_error::code(&e) == BucketErrorCode::Missing => {
                    match self.inner.head(path).await {
                        Ok(_) => Ok(PutResult { e_tag: None, version: None, extensions: Default::default() }),
                        Err(Error::NotFound { .. }) => Err(e),
                        Err(unknown) => Err(unknown),
                    }
                }
                result => result,
            });
        completed.await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.repeat(|_| self.inner.abort_multipart(path, id)).await
    }
}

#[cfg(test)]
mod tests {
    use super::RetryPolicy;
    use std::time::Duration;

    #[test]
    fn waits_double_up_to_the_longest_and_are_never_less_than_half() {
        let patience = RetryPolicy {
            max_attempts: 9,
            initial_delay: Duration::from_millis(100),
            max_delay: Duration::from_secs(1),
        };
        let least: Vec<u128> = (1..7).map(|tried| patience.wait(tried, 0).as_millis()).collect();
        assert_eq!(least, [50, 100, 200, 400, 500, 500]);
        let most: Vec<u128> = (1..7).map(|tried| patience.wait(tried, 1023).as_millis()).collect();
        assert_eq!(most, [99, 199, 399, 799, 999, 999]);
    }
}
