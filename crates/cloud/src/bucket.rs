//! The bucket that the other crates use: bytes under keys. Objects are written once and never changed, so callers need
//! only a few operations, and every error comes back as a [`BucketError`].

use crate::{
    bucket_error::{self, BucketError, BucketErrorCode},
    counting_store::{BucketTraffic, CountingObjectStore},
    faulty_store::{FaultRates, FaultyObjectStore},
    object_backend::{ObjectBackend, PART},
    retrying_store::{RetryPolicy, RetryingObjectStore},
    throttled_store::{RequestLimits, ThrottledObjectStore},
};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    Error, GetOptions, MultipartId, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A file up to this size is sent in one conditional request, so the first writer wins.
const MAX_SINGLE_PUT: u64 = 16 << 20;
/// Parts that are uploaded at the same time. Each one is held in memory.
const PARTS_AT_ONCE: usize = 4;
const MAX_PARTS: u64 = 10_000;

/// The key that [`Bucket::check`] writes, and its content.
const MARKER: &str = "ash-bucket";
const MARKER_CONTENT: &[u8] = b"ash bucket 1\n";

#[derive(Clone)]
pub struct Bucket {
    name: String,
    prefix: Path,
    limits: RequestLimits,
    patience: RetryPolicy,
    bare: Arc<dyn ObjectBackend>,
    retried: RetryingObjectStore,
    backend: CountingObjectStore,
}

/// Prints only the name: the stores underneath hold secrets.
impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bucket({})", self.name)
    }
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// Whether a write created the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    Created,
    /// The object existed before. An earlier attempt of this server may have created it: see
    /// [`RetryingObjectStore`](crate::RetryingObjectStore).
    AlreadyExists,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketObject {
    pub key: String,
    pub size: u64,
}

impl Bucket {
    /// Opens `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `file:///directory`. Sends no
    /// request yet: see [`Bucket::check`].
    pub fn open(url: &str, env: &BTreeMap<String, String>) -> Result<Bucket, BucketError> {
        let (backend, prefix) = crate::open::open_backend(url, env)?;
        Ok(Bucket { name: url.trim_end_matches('/').to_owned(), prefix, ..Bucket::with_backend(backend) })
    }

    /// A bucket on a store that the caller built.
    pub fn with_backend(store: Arc<dyn ObjectBackend>) -> Bucket {
        let name = store.to_string();
        Bucket::built(name, Path::default(), store, RequestLimits::default(), RetryPolicy::default())
    }

    /// The same bucket on a store that fails at the given rates.
    #[must_use]
    pub fn with_faults(self, faults: FaultRates) -> Bucket {
        let faulty = FaultyObjectStore::new(self.bare, faults);
        Bucket::built(self.name, self.prefix, Arc::new(faulty), self.limits, self.patience)
    }

    #[must_use]
    pub fn with_limits(self, limits: RequestLimits) -> Bucket {
        Bucket::built(self.name, self.prefix, self.bare, limits, self.patience)
    }

    #[must_use]
    pub fn with_retry_policy(self, patience: RetryPolicy) -> Bucket {
        Bucket::built(self.name, self.prefix, self.bare, self.limits, patience)
    }

    fn built(
        name: String,
        prefix: Path,
        bare: Arc<dyn ObjectBackend>,
        limits: RequestLimits,
        patience: RetryPolicy,
    ) -> Bucket {
        let throttled = ThrottledObjectStore::new(bare.clone(), limits);
        let retried = RetryingObjectStore::new(Arc::new(throttled), patience);
        let backend = CountingObjectStore::new(Arc::new(retried.clone()));
        Bucket { name, prefix, limits, patience, bare, retried, backend }
    }

    /// The requests to this bucket so far.
    pub fn traffic(&self) -> BucketTraffic {
        BucketTraffic { retries: self.retried.retries(), ..self.backend.tally() }
    }

    /// Writes an object unless the key exists: the first writer wins.
    pub async fn put_new(&self, key: &str, bytes: Bytes) -> Result<PutOutcome, BucketError> {
        let path = self.path(key)?;
        match self.backend.put_opts(&path, bytes.into(), PutMode::Create.into()).await {
            Ok(_) => Ok(PutOutcome::Created),
            Err(e) if bucket_error::is_there(&e) => Ok(PutOutcome::AlreadyExists),
            // Every attempt met a conflict (409) with other writers, so check whether one of them succeeded.
            Err(e @ Error::AlreadyExists { .. }) => match self.head(key).await? {
                Some(_) => Ok(PutOutcome::AlreadyExists),
                None => Err(self.trouble(&e)),
            },
            Err(e) => Err(self.trouble(&e)),
        }
    }

    /// Writes a file of any size whose key is derived from its content. At most a few parts are in memory at once, and
    /// `progress` gets the number of bytes that have arrived. If two callers write the same large file, both may get
    /// `Created`.
    pub async fn put_file(
        &self,
        key: &str,
        file: &std::path::Path,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<PutOutcome, BucketError> {
        let (file, length) = open_file(file).await?;
        let written = if length <= MAX_SINGLE_PUT {
            self.put_whole(key, file, length).await?
        } else if let Some(found) = self.head(key).await? {
            self.compare(key, Some(found), length)?;
            PutOutcome::AlreadyExists
        } else {
            self.put_parts(key, file, length, progress).await?;
            self.compare(key, self.head(key).await?, length)?;
            PutOutcome::Created
        };
        progress(length);
        Ok(written)
    }

    /// Like [`Bucket::put_new`], but overwrites an existing object.
    pub async fn replace(&self, key: &str, bytes: Bytes) -> Result<(), BucketError> {
        let path = self.path(key)?;
        let put = self.backend.put_opts(&path, bytes.into(), PutMode::Overwrite.into()).await;
        put.map_err(|e| self.trouble(&e))?;
        Ok(())
    }

    /// Like [`Bucket::put_file`], but overwrites an existing object.
    pub async fn replace_file(&self, key: &str, file: &std::path::Path) -> Result<(), BucketError> {
        let (file, length) = open_file(file).await?;
        if length > MAX_SINGLE_PUT {
            self.put_parts(key, file, length, &|_| {}).await?;
        } else {
            self.replace(key, read_part(file, 0, length).await?).await?;
        }
        self.compare(key, self.head(key).await?, length)
    }

    async fn put_whole(&self, key: &str, file: Arc<File>, length: u64) -> Result<PutOutcome, BucketError> {
        let written = self.put_new(key, read_part(file, 0, length).await?).await?;
        if written == PutOutcome::AlreadyExists {
            self.compare(key, self.head(key).await?, length)?;
        }
        Ok(written)
    }

    async fn put_parts(
        &self,
        key: &str,
        file: Arc<File>,
        length: u64,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), BucketError> {
        if length > MAX_PARTS * PART as u64 {
            let most = (MAX_PARTS * PART as u64) >> 30;
            let sentence =
                format!("{key} has {length} bytes, and no more than {most} GiB can be sent as one object.");
            return Err(BucketError::new(BucketErrorCode::Settings, sentence));
        }
        let path = self.path(key)?;
        let id = self.backend.create_multipart(&path).await.map_err(|e| self.trouble(&e))?;
        let completed = match self.send_parts(&path, &id, file, length, progress).await {
            Ok(parts) => {
                self.backend.complete_multipart(&path, &id, parts).await.map_err(|e| self.trouble(&e))
            }
            Err(e) => Err(e),
        };
        let Err(trouble) = completed else { return Ok(()) };
        // Uploaded parts cost money until the upload is aborted. If the abort fails too, return the first error: it
        // explains more.
        if let Err(e) = self.backend.abort_multipart(&path, &id).await {
            tracing::warn!(bucket = %self.name, key, error = %self.trouble(&e), "an unfinished upload could not be aborted: remove its parts in the bucket, because they cost storage");
        }
        Err(trouble)
    }

    async fn send_parts(
        &self,
        path: &Path,
        id: &MultipartId,
        file: Arc<File>,
        length: u64,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Vec<PartId>, BucketError> {
        let arrived = AtomicU64::new(0);
        let arrived = &arrived;
        let parts = (0..length.div_ceil(PART as u64)).map(|n| {
            let file = file.clone();
            async move {
                let begin = n * PART as u64;
                let size = (length - begin).min(PART as u64);
                let data = read_part(file, begin, size).await?;
                let part = self.backend.put_part(path, id, n as usize, PutPayload::from(data)).await;
                let part = part.map_err(|e| self.trouble(&e))?;
                progress(arrived.fetch_add(size, Relaxed) + size);
                Ok(part)
            }
        });
        // In order, because completing the upload needs the parts in order.
        futures::stream::iter(parts).buffered(PARTS_AT_ONCE).try_collect().await
    }

    fn compare(&self, key: &str, found: Option<u64>, length: u64) -> Result<(), BucketError> {
        if found == Some(length) {
            return Ok(());
        }
        let found = found.map_or("is not there".to_owned(), |found| format!("has {found}"));
        let sentence =
            format!("{key} in {self} should have {length} bytes and {found}: remove it, and send it again.");
        Err(BucketError::new(BucketErrorCode::Damaged, sentence))
    }

    /// Reads a whole object into memory. Read large objects by ranges instead.
    pub async fn get(&self, key: &str) -> Result<Bytes, BucketError> {
        let path = self.path(key)?;
        let got = async { self.backend.get(&path).await?.bytes().await };
        got.await.map_err(|e| self.trouble_with(key, &e))
    }

    pub async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BucketError> {
        let mut found = self.get_ranges(key, &[range]).await?;
        Ok(found.pop().expect("one range was asked for"))
    }

    /// Reads the ranges at the same time, and joins ranges that are close to each other into one request.
    pub async fn get_ranges(&self, key: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, BucketError> {
        let path = self.path(key)?;
        let wanted: Vec<Range<u64>> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
        let got = self.backend.get_ranges(&path, &wanted).await.map_err(|e| self.trouble_with(key, &e))?;
        let mut got = got.into_iter();
        let parts = ranges.iter().map(|range| match range.is_empty() {
            true => Ok(Bytes::new()),
            false => match got.next() {
                Some(bytes) if bytes.len() as u64 == range.end - range.start => Ok(bytes),
                _ => {
                    let sentence = format!(
                        "{key} in {self} ends before byte {}: it is not what was put there; look for a copy.",
                        range.end
                    );
                    Err(BucketError::new(BucketErrorCode::Damaged, sentence))
                }
            },
        });
        parts.collect()
    }

    /// Reads up to `most` bytes from the start of an object, and its length. `None`: there is no such object.
    pub async fn read_prefix(&self, key: &str, most: u64) -> Result<Option<(u64, Bytes)>, BucketError> {
        let path = self.path(key)?;
        let options = GetOptions { range: Some((0..most).into()), ..GetOptions::default() };
        let got = async {
            let got = self.backend.get_opts(&path, options).await?;
            Ok((got.meta.size, got.bytes().await?))
        };
        match got.await.map_err(|e| self.trouble_with(key, &e)) {
            Ok(got) => Ok(Some(got)),
            Err(BucketError { code: BucketErrorCode::Missing, .. }) => Ok(None),
            // An empty object has no first byte: the range is refused.
            Err(BucketError { code: BucketErrorCode::Damaged, .. }) => Ok(Some((0, Bytes::new()))),
            Err(trouble) => Err(trouble),
        }
    }

    /// The length of an object. `None`: there is no such object.
    pub async fn head(&self, key: &str) -> Result<Option<u64>, BucketError> {
        let path = self.path(key)?;
        match self.backend.get_opts(&path, GetOptions { head: true, ..GetOptions::default() }).await {
            Ok(got) => Ok(Some(got.meta.size)),
            Err(e) => match self.trouble(&e) {
                BucketError { code: BucketErrorCode::Missing, .. } => Ok(None),
                trouble => Err(trouble),
            },
        }
    }

    /// Lists all objects under a prefix, in key order. The prefix consists of whole path segments, or is empty.
    pub fn list(&self, prefix: &str) -> BoxStream<'static, Result<BucketObject, BucketError>> {
        let bucket = self.clone();
        match self.beneath(prefix) {
            Ok(path) => self.backend.list(Some(&path)).map(move |listed| bucket.found(listed)).boxed(),
            Err(trouble) => futures::stream::once(async { Err(trouble) }).boxed(),
        }
    }

    fn found(&self, listed: object_store::Result<ObjectMeta>) -> Result<BucketObject, BucketError> {
        let ObjectMeta { location, size, .. } = listed.map_err(|e| self.trouble(&e))?;
        let below = location.prefix_match(&self.prefix).map(Path::from_iter);
        Ok(BucketObject { key: below.unwrap_or(location).into(), size })
    }

    /// The names of the directories directly under a prefix.
    pub async fn list_dirs(&self, prefix: &str) -> Result<Vec<String>, BucketError> {
        let path = self.beneath(prefix)?;
        let listing = self.backend.list_with_delimiter(Some(&path)).await.map_err(|e| self.trouble(&e))?;
        let names = listing.common_prefixes.iter().filter_map(|found| found.filename().map(str::to_owned));
        Ok(names.collect())
    }

    /// Deletes objects. A missing object is not an error.
    pub async fn delete(&self, keys: &[String]) -> Result<(), BucketError> {
        let paths: Vec<Path> = keys.iter().map(|key| self.path(key)).collect::<Result<_, _>>()?;
        let paths = futures::stream::iter(paths.into_iter().map(Ok)).boxed();
        self.backend.delete_stream(paths).try_for_each(async |_| Ok(())).await.map_err(|e| self.trouble(&e))
    }

    /// Checks with as few requests as possible that the bucket can be listed, written and read.
    pub async fn check(&self) -> Result<(), BucketError> {
        let hasty = self.clone().with_retry_policy(RetryPolicy::SHORT);
        hasty.list("").try_next().await?;
        hasty.put_new(MARKER, Bytes::from_static(MARKER_CONTENT)).await?;
        if hasty.get(MARKER).await? != MARKER_CONTENT {
            let sentence =
                format!("{MARKER} in {self} is not ours: choose another prefix, which nobody else uses.");
            return Err(BucketError::new(BucketErrorCode::Damaged, sentence));
        }
        Ok(())
    }

    fn path(&self, key: &str) -> Result<Path, BucketError> {
        match key {
            "" => Err(BucketError::new(
                BucketErrorCode::Settings,
                "A key cannot be empty: give the object a name.",
            )),
            key => self.beneath(key),
        }
    }

    fn beneath(&self, name: &str) -> Result<Path, BucketError> {
        let below = Path::parse(name).map_err(|e| {
            BucketError::new(
                BucketErrorCode::Settings,
                format!("{name:?} is no key ({e}): use names between slashes."),
            )
        })?;
        Ok(self.prefix.parts().chain(below.parts()).collect())
    }

    fn trouble(&self, error: &Error) -> BucketError {
        BucketError::of(error, &self.name)
    }

    fn trouble_with(&self, key: &str, error: &Error) -> BucketError {
        let trouble = self.trouble(error);
        match trouble.code {
            BucketErrorCode::Missing => {
                let sentence = format!("There is no {key} in {self}: it was removed, or never written.");
                BucketError { message: sentence, ..trouble }
            }
            _ => trouble,
        }
    }
}

async fn open_file(path: &std::path::Path) -> Result<(Arc<File>, u64), BucketError> {
    let path = path.to_owned();
    reading(move || {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok((Arc::new(file), length))
    })
    .await
}

async fn read_part(file: Arc<File>, begin: u64, length: u64) -> Result<Bytes, BucketError> {
    reading(move || {
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, begin)?;
        Ok(bytes.into())
    })
    .await
}

async fn reading<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, BucketError> {
    let read = tokio::task::spawn_blocking(work).await.map_err(io::Error::other).flatten();
    read.map_err(|e| {
        BucketError::new(BucketErrorCode::Other, format!("The file to send cannot be read: {e}."))
    })
}
