//! The snapshot repositories of all tenants. A tenant's sessions and agents share packs; other tenants never see them.

use crate::{Replicator, Result, encryption_keys};
use ash_model::TenantId;
use ash_snapshot::{DiskWriter, Repo, RepoLock, RepoLockMode};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

/// Where the repositories are, and how they are opened.
pub struct RepositorySettings {
    /// A directory for each tenant is in here.
    pub dir: PathBuf,
    /// Where the keys of tenants are whose snapshots are sealed; `None`: nothing is sealed.
    pub keys: Option<PathBuf>,
    /// How many bytes of packs of the object store are kept here for each tenant.
    pub remote_cache_bytes: u64,
}

/// Opens each repository once, when it is first needed.
pub struct Repositories {
    settings: RepositorySettings,
    /// Where packs come from that are not here.
    replicator: Option<Arc<Replicator>>,
    /// Set when a write fails for want of space.
    disk_full: Arc<AtomicBool>,
    /// The lock keeps collectors of other processes out as long as this server runs.
    opened: Mutex<HashMap<TenantId, (Arc<Repo>, RepoLock)>>,
}

impl Repositories {
    pub fn new(
        settings: RepositorySettings,
        replicator: Option<Arc<Replicator>>,
        disk_full: Arc<AtomicBool>,
    ) -> Repositories {
        Repositories { settings, replicator, disk_full, opened: Mutex::default() }
    }

    pub(crate) fn repo(&self, tenant: &TenantId) -> Result<Arc<Repo>> {
        let mut opened = self.opened.lock().expect("no code panics while it holds this lock");
        if let Some((repo, _)) = opened.get(tenant) {
            return Ok(repo.clone());
        }
        let dir = self.settings.dir.join(tenant.as_str());
        let key = encryption_keys::key(self.settings.keys.as_deref(), &dir, tenant)?;
        let writer = DiskWriter::default().reporting_full(self.disk_full.clone());
        let repo = Repo::open_with(&dir, key, writer)?;
        let repo = match &self.replicator {
            Some(far) => repo.with_remote(far.packs(tenant), self.settings.remote_cache_bytes)?,
            None => repo,
        };
        let repo = Arc::new(repo);
        let locked = Repo::lock(&dir, RepoLockMode::Shared)?;
        opened.insert(tenant.clone(), (repo.clone(), locked));
        Ok(repo)
    }
}
