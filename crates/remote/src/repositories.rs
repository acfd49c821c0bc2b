//! The repositories of all tenants: opened once each, with the tenant's encryption key, a lock, and the bucket as the
//! source of packs that are not on this machine.

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
    /// Has a folder for each tenant.
    pub dir: PathBuf,
    /// Where the keys of tenants are whose repositories are sealed. `None`: no repository is sealed.
    pub keys: Option<PathBuf>,
    /// The bucket that packs are read from when they are not here.
    pub bucket: Option<Bucket>,
    /// How many bytes of such packs are cached for each tenant.
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
    /// Keeps other processes from collecting garbage there.
    _lock: RepoLock,
}

impl Repositories {
    pub fn new(settings: RepositorySettings) -> Repositories {
        Repositories { settings, open: Mutex::default() }
    }

    /// A tenant's repository. Its sessions and agents share packs; other tenants never see them.
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

    /// Tenants that have a repository here, whether the database knows them or not.
    pub fn tenants(&self) -> BTreeSet<TenantId> {
        let dirs = std::fs::read_dir(&self.settings.dir).into_iter().flatten().flatten();
        let names = dirs.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| TenantId::parse(&name).ok()).collect()
    }

    /// Files beside the packs of a tenant that can be made again from them.
    pub(crate) fn cache_dir(&self, tenant: &TenantId) -> PathBuf {
        self.dir_of(tenant).join("cache")
    }

    fn dir_of(&self, tenant: &TenantId) -> PathBuf {
        self.settings.dir.join(tenant.as_str())
    }
}
