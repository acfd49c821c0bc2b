//! A directory as a bucket. It wraps object_store's local file system to add durability, listings in key order like
//! those of the other stores, and numbered parts.

use crate::object_backend::{PART, named};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    local::LocalFileSystem,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::Arc,
};

pub(crate) struct DirectoryObjectStore {
    inner: Arc<LocalFileSystem>,
    root: PathBuf,
}

named!(DirectoryObjectStore);

impl DirectoryObjectStore {
    /// Fails if the directory does not exist.
    pub(crate) fn new(root: PathBuf) -> Result<DirectoryObjectStore> {
        let inner = LocalFileSystem::new_with_prefix(&root)?.with_fsync(true);
        // Spelled like the paths that the inner store returns; otherwise none of them would start with the root.
        let root = inner.path_to_filesystem(&Path::from("x"))?.parent().map(PathBuf::from).unwrap_or(root);
        Ok(DirectoryObjectStore { inner: Arc::new(inner), root })
    }

    /// The file in which parts are assembled. Listings skip such names.
    fn staging(&self, path: &Path, id: &str) -> Result<PathBuf> {
        let mut name = self.inner.path_to_filesystem(path)?.into_os_string();
        name.push(format!("#{id}"));
        Ok(name.into())
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::NotFound { path: String::new(), source: Box::new(source) },
        _ => Error::Generic { store: "Disk", source: Box::new(source) },
    })
}

#[async_trait]
impl ObjectStore for DirectoryObjectStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    /// Sorted, so that an interrupted listing can continue after the last key.
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listing = self.inner.list(prefix);
        let sorted = async move {
            let mut found: Vec<ObjectMeta> = listing.try_collect().await?;
            found.sort_unstable_by(|a, b| a.location.cmp(&b.location));
            Ok::<_, Error>(futures::stream::iter(found.into_iter().map(Ok)))
        };
        futures::stream::once(sorted).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for DirectoryObjectStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        for n in 1_u64.. {
            let id = n.to_string();
            let staging = self.staging(path, &id)?;
            let made = blocking(move || {
                if let Some(parent) = staging.parent() {
                    fs::create_dir_all(parent)?;
                }
                match OpenOptions::new().write(true).create_new(true).open(staging) {
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                    result => result.map(|_| true),
                }
            });
            if made.await? {
                return Ok(id);
            }
        }
        unreachable!("there are more numbers than files")
    }

    /// All parts but the last are `PART` bytes long, so the number gives the offset.
    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let staging = self.staging(path, id)?;
        blocking(move || {
            let file = OpenOptions::new().write(true).open(staging)?;
            let mut offset = part_idx as u64 * PART as u64;
            for chunk in &data {
                file.write_all_at(chunk, offset)?;
                offset += chunk.len() as u64;
            }
            Ok(PartId { content_id: part_idx.to_string() })
        })
        .await
    }

    async fn complete_multipart(&self, path: &Path, id: &MultipartId, _: Vec<PartId>) -> Result<PutResult> {
        let staging = self.staging(path, id)?;
        let place = self.inner.path_to_filesystem(path)?;
        let root = self.root.clone();
        blocking(move || {
            File::open(&staging)?.sync_all()?;
            fs::rename(&staging, &place)?;
            // The directories may be new, so sync them too.
            for directory in place.ancestors().skip(1).take_while(|directory| directory.starts_with(&root)) {
                File::open(directory)?.sync_all()?;
            }
            Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
        })
        .await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        let staging = self.staging(path, id)?;
        blocking(move || fs::remove_file(staging)).await
    }
}
