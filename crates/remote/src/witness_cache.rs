//! What the packs and tombstones of every tenant say about its sessions, as far as they were read, and which sessions
//! were compared with it since the server started. The database alone is not trusted: this is checked before something
//! is deleted, superseded or confirmed as uploaded.

use crate::{PackProof, PackProofs, Repositories, Result, TombstoneMap, blocking, tombstones};
use ash_model::{Epoch, SessionId, SessionRowId, TenantId, remote::SessionTombstone};
use ash_store::SessionRow;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long packs in the object store are read to find records of one session.
const PACK_READ_TIME: Duration = Duration::from_secs(5);
/// The number of packs that are read between two checks of the time.
const CHUNK: usize = 64;

pub struct WitnessCache {
    repositories: Arc<Repositories>,
    tenants: Mutex<HashMap<TenantId, SharedWitnesses>>,
    /// Sessions whose row was compared with every witness.
    compared: Mutex<HashSet<SessionRowId>>,
    /// Sessions that started although the object store did not answer.
    unreachable: Mutex<HashSet<SessionRowId>>,
}

/// The witnesses of one tenant, shared by all readers.
#[derive(Debug, Clone, Default)]
pub struct SharedWitnesses(Arc<Mutex<TenantWitnesses>>);

impl SharedWitnesses {
    pub fn lock(&self) -> MutexGuard<'_, TenantWitnesses> {
        lock(&self.0)
    }
}

#[derive(Debug, Default)]
pub struct TenantWitnesses {
    /// Packs on this machine.
    pub packs: PackProofs,
    /// Packs that are only in the object store.
    pub remote: PackProofs,
    pub tombstones: TombstoneMap,
    is_read: bool,
}

impl TenantWitnesses {
    /// The furthest proof of a session in any pack, unless the session was purged since.
    pub fn newest_of(&self, id: &SessionId) -> Option<&PackProof> {
        let newest = [self.packs.newest_of(id), self.remote.newest_of(id)];
        let newest = newest.into_iter().flatten().max_by_key(|proof| (proof.epoch, proof.seq));
        newest.filter(|proof| !self.is_buried(proof))
    }

    /// Whether the session was purged after the pack was written.
    pub fn is_buried(&self, proof: &PackProof) -> bool {
        self.tombstones.get(&proof.session).is_some_and(|tombstone| proof.is_buried(tombstone))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WitnessRefresh {
    /// A cached result is good enough.
    Once,
    Anew,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WitnessCache {
    pub fn new(repositories: Arc<Repositories>) -> WitnessCache {
        WitnessCache {
            repositories,
            tenants: Mutex::default(),
            compared: Mutex::default(),
            unreachable: Mutex::default(),
        }
    }

    pub fn is_compared(&self, no: SessionRowId) -> bool {
        lock(&self.compared).contains(&no)
    }

    /// Notes that no witness knows more of the session: it was created here, or was compared.
    pub fn mark_compared(&self, no: SessionRowId) {
        lock(&self.compared).insert(no);
        lock(&self.unreachable).remove(&no);
    }

    pub fn mark_unreachable(&self, no: SessionRowId) {
        lock(&self.unreachable).insert(no);
    }

    pub fn was_unreachable(&self, no: SessionRowId) -> bool {
        lock(&self.unreachable).contains(&no)
    }

    /// The witnesses of a tenant on this machine, read if needed or on request.
    pub async fn of(&self, tenant: &TenantId, refresh: WitnessRefresh) -> Result<SharedWitnesses> {
        let (of, repo, tenant) = (self.shared(tenant), self.repositories.repo(tenant)?, tenant.clone());
        blocking(move || {
            {
                let mut all = of.lock();
                if refresh == WitnessRefresh::Anew || !all.is_read {
                    let packs = repo.pack_names()?;
                    all.packs.refresh(&repo, &tenant, &packs)?;
                    all.tombstones = TombstoneMap::read(&repo)?;
                    all.is_read = true;
                }
            }
            Ok(of)
        })
        .await
    }

    fn shared(&self, tenant: &TenantId) -> SharedWitnesses {
        let cache = self.repositories.cache_dir(tenant);
        let open = || {
            let packs = PackProofs::open(&cache.join("records"));
            let remote = PackProofs::open(&cache.join("remote-records"));
            let witnesses = TenantWitnesses { packs, remote, ..TenantWitnesses::default() };
            SharedWitnesses(Arc::new(Mutex::new(witnesses)))
        };
        lock(&self.tenants).entry(tenant.clone()).or_insert_with(open).clone()
    }

    /// The furthest proof of a session in any pack, including packs in the object store. Those are read for a limited
    /// time, and the results are cached.
    pub async fn newest_proof(
        &self,
        tenant: &TenantId,
        id: &SessionId,
        remote_packs: Arc<Vec<String>>,
    ) -> Result<Option<PackProof>> {
        let (of, repo) = (self.of(tenant, WitnessRefresh::Once).await?, self.repositories.repo(tenant)?);
        let (tenant, id) = (tenant.clone(), id.clone());
        blocking(move || {
            let began = Instant::now();
            let mut of = of.lock();
            let unknown = |pack: &&String| !of.packs.knows(pack) && !of.remote.knows(pack);
            let new: Vec<String> = remote_packs.iter().filter(unknown).cloned().collect();
            for some in new.chunks(CHUNK) {
                if began.elapsed() > PACK_READ_TIME {
                    tracing::warn!(session = %id, "the object store has too many packs to read in time: an unread one may hold a longer history of the session");
                    break;
                }
                of.remote.learn(&repo, &tenant, some)?;
            }
            Ok(of.newest_of(&id).cloned())
        })
        .await
    }

    /// For each of these ids with purged sessions: the last epoch of those sessions.
    pub async fn buried_epochs<'i>(
        &self,
        tenant: &TenantId,
        ids: impl Iterator<Item = &'i SessionId>,
    ) -> Result<HashMap<SessionId, Epoch>> {
        let of = self.of(tenant, WitnessRefresh::Once).await?;
        let of = of.lock();
        Ok(ids.filter_map(|id| Some((id.clone(), of.tombstones.get(id)?.epoch))).collect())
    }

    /// Whether a history with this epoch belongs to an earlier session with this id, which was purged.
    pub async fn is_buried(&self, session: &SessionRow, epoch: Epoch) -> Result<bool> {
        let buried = self.buried_epochs(&session.tenant, std::iter::once(&session.id)).await?;
        Ok(buried.get(&session.id).is_some_and(|buried| epoch <= *buried))
    }

    /// Writes a tombstone into this machine's repository, unless it has a later one. Durable when this returns.
    pub async fn note_purge(&self, tombstone: SessionTombstone) -> Result<()> {
        let of = self.of(&tombstone.tenant, WitnessRefresh::Once).await?;
        let known = of.lock().tombstones.get(&tombstone.session).cloned();
        if known.is_some_and(|known| (known.epoch, known.seq) >= (tombstone.epoch, tombstone.seq)) {
            return Ok(());
        }
        let repo = self.repositories.repo(&tombstone.tenant)?;
        blocking(move || {
            tombstones::append(&repo, &tombstone)?;
            of.lock().tombstones.bury(&tombstone);
            Ok(())
        })
        .await
    }
}
