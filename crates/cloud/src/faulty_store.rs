//! A store that injects faults, for tests and for experiments with a running server. A fault depends only on the seed,
//! the operation, the key and how often it was requested before, not on the order of concurrent requests.

use crate::{
    bucket_error::TransportFailure,
    object_backend::{ObjectBackend, ObjectResponseHead, named},
    seeded_random,
};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, collect_bytes,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// The percentage of requests that fail, for each kind of fault.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultRates {
    pub seed: u64,
    /// Requests that fail without an effect.
    pub before: u8,
    /// Requests that fail although they took effect.
    pub after: u8,
    /// Requests that are never answered. Half of them take effect.
    pub silent: u8,
    /// Response bodies and listings that end too early, with or without an error.
    pub cut: u8,
    /// Requests that are answered late.
    pub late: u8,
    /// The delay of a late answer.
    pub lateness: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InjectedFault {
    Before,
    After,
    SilentBefore,
    SilentAfter,
    /// Ends the body after `at` thousandths of its length.
    Cut {
        at: u64,
        silently: bool,
    },
    Late,
    Fine,
}

impl FaultRates {
    fn fate(&self, luck: u64) -> InjectedFault {
        let (percent, rest) = (luck % 100, luck / 100);
        let bounds = [self.before, self.after, self.silent, self.cut, self.late].map(u64::from);
        let mut sum = 0;
        let hit = bounds.iter().position(|share| {
            sum += share;
            percent < sum
        });
        match hit {
            Some(0) => InjectedFault::Before,
            Some(1) => InjectedFault::After,
            Some(2) if rest % 2 == 0 => InjectedFault::SilentBefore,
            Some(2) => InjectedFault::SilentAfter,
            Some(3) => InjectedFault::Cut { at: rest / 2 % 1000, silently: rest % 2 == 0 },
            Some(_) => InjectedFault::Late,
            None => InjectedFault::Fine,
        }
    }
}

#[derive(Clone)]
pub struct FaultyObjectStore {
    inner: Arc<dyn ObjectBackend>,
    faults: FaultRates,
    asked: Arc<Mutex<HashMap<u64, u64>>>,
}

named!(FaultyObjectStore);

impl FaultyObjectStore {
    pub fn new(inner: Arc<dyn ObjectBackend>, faults: FaultRates) -> FaultyObjectStore {
        FaultyObjectStore { inner, faults, asked: Arc::default() }
    }

    fn fate(&self, what: (&str, &str, usize)) -> InjectedFault {
        let mut hasher = DefaultHasher::new();
        (self.faults.seed, what).hash(&mut hasher);
        let request = hasher.finish();
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let times = asked.entry(request).or_default();
        *times += 1;
        self.faults.fate(seeded_random::splitmix64(request.wrapping_add(*times)))
    }

    async fn subject<T>(&self, fate: InjectedFault, request: impl Future<Output = Result<T>>) -> Result<T> {
        match fate {
            InjectedFault::Before => Err(TransportFailure::Broken.error()),
            InjectedFault::After => {
                // The request takes effect, but its result is dropped.
                let _ = request.await;
                Err(TransportFailure::Broken.error())
            }
            InjectedFault::SilentBefore => std::future::pending().await,
            InjectedFault::SilentAfter => {
                let _ = request.await;
                std::future::pending().await
            }
            InjectedFault::Late => {
                tokio::time::sleep(self.faults.lateness).await;
                request.await
            }
            InjectedFault::Cut { .. } | InjectedFault::Fine => request.await,
        }
    }

    fn break_off<T: Send + 'static>(
        &self,
        what: (&str, &str, usize),
        listing: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        match self.fate(what) {
            InjectedFault::Fine => listing,
            InjectedFault::Late => {
                let lateness = self.faults.lateness;
                let late = async move {
                    tokio::time::sleep(lateness).await;
                    Ok::<_, Error>(listing)
                };
                futures::stream::once(late).try_flatten().boxed()
            }
            InjectedFault::SilentBefore | InjectedFault::SilentAfter => futures::stream::pending().boxed(),
            InjectedFault::Before => broken().boxed(),
            // A listing has no length, so a caller cannot notice that it ended early: always end it with an error.
            InjectedFault::Cut { at, .. } => listing.take(at as usize % 10).chain(broken()).boxed(),
            InjectedFault::After => listing.take(1).chain(broken()).boxed(),
        }
    }
}

fn broken<T: Send + 'static>() -> impl futures::Stream<Item = Result<T>> + Send {
    futures::stream::once(async { Err(TransportFailure::Broken.error()) })
}

#[async_trait]
impl ObjectStore for FaultyObjectStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let fate = self.fate(("put", location.as_ref(), 0));
        self.subject(fate, self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let is_head = options.head;
        let fate = self.fate((if is_head { "head" } else { "get" }, location.as_ref(), 0));
        let got = self.subject(fate, self.inner.get_opts(location, options)).await?;
        let InjectedFault::Cut { at, silently } = fate else { return Ok(got) };
        if is_head {
            return Ok(got);
        }
        let (head, body) = ObjectResponseHead::of(got);
        let body = collect_bytes(body, None).await?;
        let part = body.slice(..(body.len() as u64 * at / 1000) as usize);
        let cut = futures::stream::once(async { Ok(part) });
        let body = if silently { cut.boxed() } else { cut.chain(broken()).boxed() };
        Ok(head.with(body))
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .and_then(move |location| {
                let store = store.clone();
                async move {
                    let fate = store.fate(("delete", location.as_ref(), 0));
                    let one = futures::stream::iter([Ok(location)]).boxed();
                    let mut gone = store.inner.delete_stream(one);
                    let request =
                        async { gone.next().await.unwrap_or_else(|| Err(TransportFailure::Broken.error())) };
                    store.subject(fate, request).await
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.break_off(("list", prefix.map_or("", Path::as_ref), 0), self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let listing = self.inner.list_with_offset(prefix, offset);
        self.break_off(("list after", offset.as_ref(), 0), listing)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let fate = self.fate(("dirs", prefix.map_or("", Path::as_ref), 0));
        self.subject(fate, self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for FaultyObjectStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        let fate = self.fate(("create", path.as_ref(), 0));
        self.subject(fate, self.inner.create_multipart(path)).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let fate = self.fate(("part", path.as_ref(), part_idx));
        self.subject(fate, self.inner.put_part(path, id, part_idx, data)).await
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        let fate = self.fate(("complete", path.as_ref(), 0));
        self.subject(fate, self.inner.complete_multipart(path, id, parts)).await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        let fate = self.fate(("abort", path.as_ref(), 0));
        self.subject(fate, self.inner.abort_multipart(path, id)).await
    }
}
