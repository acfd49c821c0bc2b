//! Before a session's first step after a start, its row is compared with what packs and the object store know of it.
//! The witness that knows more is right: the session continues with that history, and its next receipt says so.

use crate::{Error, Replicator, Result, services::Services};
use ash_model::{
    AdoptedHistory, Epoch, Event, EventSeq, Fact, HistorySource, JournalPosition, SessionId, SessionStatus,
    WorkspaceId, embedded_log::PackSessionRecord, remote::SessionTombstone,
};
use ash_remote::{
    PackHistory, PackProof, RemoteHistory, WitnessRefresh, diverged_id, is_ahead, last_common_event,
    pack_log, workspace_epoch,
};
use ash_store::{DivergedFork, HistoryAdoption, RebuiltSession, SessionRow};
use std::time::Duration;

/// How long to wait for the object store to say how far it knows a session.
const REMOTE_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The session as it is after the comparison.
pub(crate) async fn reconcile(services: &Services, session: SessionRow) -> Result<SessionRow> {
    if services.witnesses.is_compared(session.no) {
        return Ok(session);
    }
    let session = with_packs(services, session).await?;
    let session = match &services.replicator {
        None => session,
        Some(replicator) => match with_bucket(services, replicator, session.clone()).await {
            Ok(session) => session,
            Err(
                why @ (Error::Remote(ash_remote::Error::Bucket(_) | ash_remote::Error::EncryptionKey(_))
                | Error::Snapshot(ash_snapshot::Error::Far { .. })),
            ) => {
                tracing::warn!(session = %session.id, %why, "the object store does not answer: the session continues with the local history, and does not count as remote until both are compared");
                services.witnesses.mark_unreachable(session.no);
                return Ok(session);
            }
            Err(error) => return Err(error),
        },
    };
    services.witnesses.mark_compared(session.no);
    Ok(session)
}

async fn with_packs(services: &Services, session: SessionRow) -> Result<SessionRow> {
    let of = match services.witnesses.of(&session.tenant, WitnessRefresh::Once).await {
        // Without the tenant's key nothing can be read; a request for files then gets that error.
        Err(ash_remote::Error::EncryptionKey(_)) => return Ok(session),
        of => of?,
    };
    let (proof, buried) = {
        let of = of.lock();
        (of.newest_of(&session.id).cloned(), of.tombstones.get(&session.id).cloned())
    };
    let epoch = workspace_epoch(services.store.as_ref(), &session).await?;
    if let Some(tombstone) = buried.filter(|tombstone| tombstone.epoch >= epoch) {
        if session.summary.status != SessionStatus::Ended {
            let tombstone = SessionTombstone {
                tenant: session.tenant.clone(),
                session: session.id.clone(),
                epoch: tombstone.epoch,
                seq: tombstone.seq,
                purged_at: tombstone.purged_at,
            };
            super::tombstones::trash_by_tombstone(services, &session, tombstone).await?;
            return Err(Error::NotFound);
        }
        return Ok(session);
    }
    let Some(proof) = proof else { return Ok(session) };
    if proof.seq <= session.last_seq && proof.epoch.is_none_or(|proven| proven <= epoch) {
        return Ok(session);
    }
    let history = PackHistory::read(&services.remote, &proof, &session.tenant).await?;
    let base = session.base.map(|base| base.seq);
    let at = proof.epoch.unwrap_or(epoch).max(epoch);
    let upto = WitnessPosition::of(&proof, &history.record);
    let rebuilt = history.rebuilt(&services.remote, base, at).await?;
    adopt(services, session, rebuilt, upto).await
}

async fn with_bucket(
    services: &Services,
    replicator: &Replicator,
    session: SessionRow,
) -> Result<SessionRow> {
    let asked = replicator.newest_name(&session.tenant, &session.id);
    let newest = tokio::time::timeout(REMOTE_ANSWER_TIMEOUT, asked).await;
    let newest = newest.map_err(|_| ash_remote::Error::no_answer(REMOTE_ANSWER_TIMEOUT))??;
    let epoch = workspace_epoch(services.store.as_ref(), &session).await?;
    if newest.is_none_or(|newest| !is_ahead(newest, (epoch, session.remote_seq))) {
        return Ok(session);
    }
    match replicator.history(&session.tenant, &session.id).await? {
        RemoteHistory::Nothing => Ok(session),
        RemoteHistory::Purged(tombstone) => match tombstone.epoch >= epoch {
            true => {
                super::tombstones::trash_by_tombstone(services, &session, tombstone).await?;
                Err(Error::NotFound)
            }
            // A new session with this id was created after the purge.
            false => Ok(session),
        },
        RemoteHistory::Of(rebuilt)
            if services.witnesses.is_buried(&session, rebuilt.manifest.epoch).await? =>
        {
            Ok(session)
        }
        RemoteHistory::Of(rebuilt) => {
            let (seq, checkpoint) = (rebuilt.manifest.seq, rebuilt.summary.checkpoint);
            let upto = WitnessPosition { seq, checkpoint, journal_position: None };
            adopt(services, session, *rebuilt, upto).await
        }
    }
}

/// How far a witness knows a session.
pub(super) struct WitnessPosition {
    pub(super) seq: EventSeq,
    pub(super) checkpoint: Option<u64>,
    pub(super) journal_position: Option<JournalPosition>,
}

impl WitnessPosition {
    pub(super) fn of(proof: &PackProof, record: &PackSessionRecord) -> WitnessPosition {
        WitnessPosition {
            seq: proof.seq,
            checkpoint: Some(record.checkpoint),
            journal_position: record.journal_position,
        }
    }
}

/// Adds an event from which the next receipt reports where the history came from.
pub(super) fn note_adoption(
    rebuilt: &mut RebuiltSession,
    upto: WitnessPosition,
    diverged: Option<SessionId>,
) {
    let WitnessPosition { seq, checkpoint, journal_position: heard } = upto;
    let (epoch, witness) = (rebuilt.manifest.epoch, rebuilt.witness);
    let fact =
        Fact::Adopted(AdoptedHistory { epoch, seq, checkpoint, witness, diverged, journal_position: heard });
    let event = Event { seq: rebuilt.last_seq() + 1, turn: None, at: rebuilt.at, fact };
    rebuilt.events.push(pack_log::event_line(&event));
}

/// Continues with a history if it has more than the row.
async fn adopt(
    services: &Services,
    session: SessionRow,
    mut rebuilt: RebuiltSession,
    upto: WitnessPosition,
) -> Result<SessionRow> {
    let common = last_common_event(services.store.as_ref(), &session, &rebuilt.events).await?;
    let epoch = workspace_epoch(services.store.as_ref(), &session).await?;
    if common == rebuilt.last_seq() {
        // It is the beginning of the known history. The next claim of the workspace must still get an epoch above that
        // of the server that wrote it.
        if rebuilt.manifest.epoch > epoch {
            services.store.raise_epoch(session.workspace, rebuilt.manifest.epoch).await?;
        }
        return Ok(session);
    }
    let diverged = match common < session.last_seq {
        true => Some(fork_id(services, &session, epoch).await?),
        false => None,
    };
    let who = match rebuilt.witness {
        HistorySource::Packs => "packs",
        HistorySource::Bucket => "the object store",
    };
    tracing::warn!(session = %session.id, known = session.last_seq, proven = upto.seq, who, diverged = ?diverged, "the database had a shorter history of the session than a witness: the session continues with the history of the witness");
    note_adoption(&mut rebuilt, upto, diverged.clone());
    let diverged = diverged.map(|id| DivergedFork { id, workspace: WorkspaceId::fresh() });
    let (no, last_seq) = (session.no, session.last_seq);
    services.store.adopt(HistoryAdoption { session: no, last_seq, common, diverged, rebuilt }).await?;
    services.notify_replicator();
    services.store.session(no).await?.ok_or(Error::NotFound)
}

/// A free id: the session may have diverged before with the same epoch.
async fn fork_id(services: &Services, session: &SessionRow, epoch: Epoch) -> Result<SessionId> {
    let rows = services.rows(&session.tenant).await?;
    for epoch in epoch.0.. {
        let Some(id) = diverged_id(&session.id, Epoch(epoch)) else { break };
        if !rows.contains_key(&id) {
            return Ok(id);
        }
    }
    Err(Error::NotFound)
}
