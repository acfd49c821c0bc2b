//! Tombstones of purged sessions: a line in the repository, durable before their rows are deleted, so that no witness
//! brings them back.

use crate::{Result, services::Services};
use ash_model::{Epoch, SessionId, SessionRowId, TenantId, remote::SessionTombstone};
use ash_remote::SharedWitnesses;
use ash_store::{AuditAction, AuditActor, AuditQuery, SessionRow};
use std::time::Duration;

/// The rule, for the audit, by which a session is purged again because a witness says that it was purged.
const RULE: &str = "tombstone";

/// How long a purge waits for the object store. After that the tombstone is sent later.
const REMOTE_TOMBSTONE_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes sure that no witness brings a purged session back: not this machine's packs, once this returns, and not
/// the object store, if it answers in time.
pub(crate) async fn write(services: &Services, no: SessionRowId) -> Result<()> {
    let Some(row) = services.store.tombstone(no).await? else { return Ok(()) };
    services.witnesses.note_purge(row.tombstone).await?;
    let Some(replicator) = &services.replicator else { return Ok(()) };
    let mut sent = replicator.sent();
    let telling = async {
        while services.store.tombstone(no).await?.is_some_and(|row| !row.is_uploaded) {
            replicator.notify();
            if sent.changed().await.is_err() {
                break;
            }
        }
        Ok(())
    };
    tokio::time::timeout(REMOTE_TOMBSTONE_TIMEOUT, telling).await.unwrap_or(Ok(()))
}

/// Writes a tombstone for every session in the trash that has none yet.
pub(crate) async fn write_all(services: &Services) -> Result<()> {
    for row in services.store.tombstones().await? {
        services.witnesses.note_purge(row.tombstone).await?;
    }
    Ok(())
}

/// Adds tombstones for sessions that were purged before there were tombstones, as the audit says.
pub(super) async fn import(services: &Services, tenant: &TenantId, of: &SharedWitnesses) -> Result<()> {
    let rows = services.rows(tenant).await?;
    let unknown: Vec<_> = {
        let of = of.lock();
        let proofs = of.packs.newest();
        let unknown =
            proofs.into_iter().filter(|(id, _)| !rows.contains_key(id) && of.tombstones.get(id).is_none());
        unknown.map(|(id, proof)| (id.clone(), proof.clone())).collect()
    };
    for (session, proof) in unknown {
        let query = AuditQuery { subject: Some(session.to_string()), limit: 10, ..AuditQuery::default() };
        let lines = services.store.audit_entries(tenant, &query).await?;
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
        services.witnesses.note_purge(tombstone).await?;
    }
    Ok(())
}

/// Before a session is created: writes tombstones for earlier sessions with its id that are in the trash. A server that
/// died may have recorded only their rows.
pub(crate) async fn write_of(services: &Services, tenant: &TenantId, id: &SessionId) -> Result<()> {
    for tombstone in services.store.tombstones_of(tenant, id).await? {
        services.witnesses.note_purge(tombstone).await?;
    }
    Ok(())
}

/// Puts a session into the trash whose tombstone a witness has, although the database did not know of the purge.
pub(crate) async fn trash_by_tombstone(
    services: &Services,
    session: &SessionRow,
    tombstone: SessionTombstone,
) -> Result<()> {
    tracing::warn!(session = %session.id, tenant = %session.tenant, "a tombstone shows that the session was purged, which the database did not know: the server moves it to the trash again");
    services.witnesses.note_purge(tombstone).await?;
    Ok(services.store.trash_by_tombstone(session.no, services.clock(), AuditActor::of_rule(RULE)).await?)
}
