//! The repositories of all tenants. Each is opened once, with the tenant's encryption key, a lock, and the bucket as
//! the source of packs that are not on this machine.

use crate::{Result, encryption_keys, pack_source::BucketPackSource};
use ash_cloud::Bucket;
use ash_model::TenantId;
use ash_snapshot::{DiskWriter, Repo, RepoLock, RepoLockMode};
use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

pub struct RepositorySettings {
    /// The directory that holds a directory for each tenant.
    pub dir: PathBuf,
    /// The directory with the keys of sealed repositories. `None`: no repository is sealed.
    pub keys: Option<PathBuf>,
    /// The bucket from which packs are read that are not on this machine.
    pub bucket: Option<Bucket>,
    /// The cache size for such packs, for each tenant.
    pub remote_cache_bytes: u64,
    /// Set when a write fails because the disk is full.
    pub disk_full: Arc<AtomicBool>,
}

pub struct Repositories {
    settings: RepositorySettings,
    open: Mutex<HashMap<TenantId, OpenRepository>>,
}

struct OpenRepository {
    repo: Arc<Repo>,
    /// Prevents other processes from collecting garbage there.
    _lock: RepoLock,
}

impl Repositories {
    pub fn new(settings: RepositorySettings) -> Repositories {
        Repositories { settings, open: Mutex::default() }
    }

    /// A tenant's repository. The tenant's sessions and agents share packs; other tenants never see them.
    pub fn repo(&self, tenant: &TenantId) -> Result<Arc<Repo>> {
        let mut open = self.open.lock().expect("no code panics while it holds this lock");
        if let Some(known) = open.get(tenant) {
            return Ok(known.repo.clone());
        }
        let RepositorySettings { keys, bucket, remote_cache_bytes, disk_full, .. } = &self.settings;
        let dir = self.dir_of(tenant);
        let key = encryption_keys::key(keys.as_deref(), &dir, tenant)?;
        let repo = Repo::open_with(&dir, key, DiskWriter::default().reporting_full(disk_full.clone()))?;
        let repo = match bucket {
            Some(bucket) => {
                repo.with_remote(Arc::new(BucketPackSource::new(bucket, tenant)), *remote_cache_bytes)?
            }
            None => repo,
        };
        let repo = Arc::new(repo);
        let lock = Repo::lock(&dir, RepoLockMode::Shared)?;
        open.insert(tenant.clone(), OpenRepository { repo: repo.clone(), _lock: lock });
        Ok(repo)
    }

    /// Tenants with a repository on this machine, including those that the database does not know.
    pub fn tenants(&self) -> BTreeSet<TenantId> {
        let dirs = std::fs::read_dir(&self.settings.dir).into_iter().flatten().flatten();
        let names = dirs.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| TenantId::parse(&name).ok()).collect()
    }

    /// The directory beside a tenant's packs for files that can be derived from them again.
    pub(crate) fn cache_dir(&self, tenant: &TenantId) -> PathBuf {
        self.dir_of(tenant).join("cache")
    }

    fn dir_of(&self, tenant: &TenantId) -> PathBuf {
        self.settings.dir.join(tenant.as_str())
    }
}
