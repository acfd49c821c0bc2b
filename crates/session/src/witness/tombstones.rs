//! Sessions that were purged: a line in the repository, durable before their rows go, so that no witness brings them back.

use super::{
    TenantWitnesses,
    compare::{TombstoneMap, tombstone_line},
    lock,
};
use crate::{Result, Sessions, blocking, services::Services};
use ash_model::{
    Epoch, SessionId, SessionRowId, TenantId,
    remote::{SessionTombstone, TombstoneLine},
};
use ash_snapshot::Repo;
use ash_store::{AuditAction, AuditActor, AuditQuery, SessionRow};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// The rule by which a session is purged again that a witness says was purged.
const RULE: &str = "tombstone";

/// A line that is none was cut off by a crash.
pub(super) fn read(repo: &Repo) -> Result<TombstoneMap> {
    let mut all = TombstoneMap::default();
    for line in repo.tombstones()?.iter().filter_map(|line| opened(repo, line)) {
        all.add(line);
    }
    Ok(all)
}

/// Under which name lines of a sealed repository are sealed.
const NAME: &str = "tombstones";

/// In a sealed repository a line says nothing to those who do not have the key.
fn sealed(repo: &Repo, plain: Vec<u8>) -> String {
    let stored = repo.seal(plain, NAME);
    match Repo::is_sealed_blob(&stored) {
        true => stored.iter().map(|byte| format!("{byte:02x}")).collect(),
        false => String::from_utf8(stored).expect("it was JSON"),
    }
}

fn opened(repo: &Repo, line: &str) -> Option<TombstoneLine> {
    if line.starts_with('{') {
        return parsed(line.as_bytes());
    }
    let digits = line.as_bytes().chunks_exact(2);
    let bytes: Option<Vec<u8>> =
        digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()).collect();
    parsed(&repo.unseal(bytes?, NAME).ok()?)
}

/// Older lines say the id.
fn parsed(line: &[u8]) -> Option<TombstoneLine> {
    let older =
        || serde_json::from_slice::<SessionTombstone>(line).map(|tombstone| tombstone_line(&tombstone));
    serde_json::from_slice(line).or_else(|_| older()).ok()
}

/// So long whoever purges a session waits for the object store; then it is told later.
const REMOTE_TOMBSTONE_TIMEOUT: Duration = Duration::from_secs(2);

impl Sessions {
    /// No witness brings a session back that was purged: not this machine's packs, once this returns, and not the object
    /// store, if that answers.
    pub(crate) async fn write_tombstone(&self, no: SessionRowId) -> Result<()> {
        let rooms = self.rooms();
        let Some(row) = rooms.store.tombstone(no).await? else { return Ok(()) };
        note(rooms, row.tombstone).await?;
        let Some(far) = &rooms.replicator else { return Ok(()) };
        let mut sent = far.sent();
        let telling = async {
            while rooms.store.tombstone(no).await?.is_some_and(|row| !row.is_uploaded) {
                far.notify();
                if sent.changed().await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        tokio::time::timeout(REMOTE_TOMBSTONE_TIMEOUT, telling).await.unwrap_or(Ok(()))
    }
}

/// Of every session in the trash that has none yet.
pub(crate) async fn write_all(rooms: &Services) -> Result<()> {
    for row in rooms.store.tombstones().await? {
        note(rooms, row.tombstone).await?;
    }
    Ok(())
}

/// Durable when it returns.
async fn add(rooms: &Services, of: &Arc<Mutex<TenantWitnesses>>, tombstone: SessionTombstone) -> Result<()> {
    let known = lock(of).tombstones.get(&tombstone.session).cloned();
    if known.is_some_and(|known| (known.epoch, known.seq) >= (tombstone.epoch, tombstone.seq)) {
        return Ok(());
    }
    let repo = rooms.repo(&tombstone.tenant)?;
    let line = tombstone_line(&tombstone);
    let text = sealed(&repo, serde_json::to_vec(&line).expect("plain words and numbers"));
    blocking(move || Ok(repo.add_tombstone(&text)?)).await?;
    lock(of).tombstones.add(line);
    Ok(())
}

/// Sessions that were forgotten before there were tombstones: the audit says so.
pub(super) async fn import(
    rooms: &Services,
    tenant: &TenantId,
    of: &Arc<Mutex<TenantWitnesses>>,
) -> Result<()> {
    let rows = rooms.rows(tenant).await?;
    let unknown: Vec<_> = {
        let of = lock(of);
        let proofs = of.packs.newest();
        let unknown =
            proofs.into_iter().filter(|(id, _)| !rows.contains_key(id) && of.tombstones.get(id).is_none());
        unknown.map(|(id, proof)| (id.clone(), proof.clone())).collect()
    };
    for (session, proof) in unknown {
        let query = AuditQuery { subject: Some(session.to_string()), limit: 10, ..AuditQuery::default() };
        let lines = rooms.store.audit_entries(tenant, &query).await?;
        let Some(forgotten) = lines.iter().find(|line| line.action == AuditAction::Forgotten) else {
            continue;
        };
        let tombstone = SessionTombstone {
            tenant: tenant.clone(),
            session,
            epoch: proof.epoch.unwrap_or(Epoch(0)),
            seq: proof.seq + 1,
            purged_at: forgotten.at.max(proof.at),
        };
        add(rooms, of, tombstone).await?;
    }
    Ok(())
}

/// Before a session is made: of those that had its id and are in the trash. A server that died may have come to no more than
/// their rows.
pub(super) async fn write_of(rooms: &Services, tenant: &TenantId, id: &SessionId) -> Result<()> {
    for tombstone in rooms.store.tombstones_of(tenant, id).await? {
        note(rooms, tombstone).await?;
    }
    Ok(())
}

/// In this machine's repository, durable when it returns.
pub(crate) async fn note(rooms: &Services, tombstone: SessionTombstone) -> Result<()> {
    let of = rooms.witnesses(&tombstone.tenant, super::WitnessRefresh::Once).await?;
    add(rooms, &of, tombstone).await
}

/// What stands under a tombstone goes into the trash, though the database did not know that it was purged.
pub(crate) async fn trash_by_tombstone(
    rooms: &Services,
    session: &SessionRow,
    tombstone: SessionTombstone,
) -> Result<()> {
    tracing::warn!(session = %session.id, tenant = %session.tenant, "the session was purged, which the database did not know: it goes into the trash again");
    note(rooms, tombstone).await?;
    Ok(rooms.store.trash_by_tombstone(session.no, rooms.clock(), AuditActor::of_rule(RULE)).await?)
}
