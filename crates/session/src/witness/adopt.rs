//! Before a session's first step after a start, its row is compared with what packs and the object store know of it. Who
//! knows more is believed: the session goes on with that history, and its next receipt says so.

use super::{WitnessRefresh, compare::diverged_id, lock, pack_history::PackHistory, pack_proofs::PackProof};
use crate::{Error, Replicator, Result, embedded_log, remote::RemoteHistory, services::Services};
use ash_cloud::{BucketError, BucketErrorCode};
use ash_model::{
    AdoptedHistory, Epoch, Event, EventSeq, Fact, HistorySource, JournalPosition, SessionId, SessionStatus,
    WorkspaceId,
    embedded_log::{EventLine, PackSessionRecord},
    remote::SessionTombstone,
};
use ash_store::{DivergedFork, EventQuery, HistoryAdoption, RebuiltSession, SessionRow};
use std::time::Duration;

/// So long the object store may take to say how far it knows a session.
const REMOTE_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const PAGE: u32 = 1000;

/// The session as it is after the comparison.
pub(crate) async fn reconcile(rooms: &Services, session: SessionRow) -> Result<SessionRow> {
    if rooms.witnesses.is_compared(session.no) {
        return Ok(session);
    }
    let session = with_packs(rooms, session).await?;
    let session = match &rooms.replicator {
        None => session,
        Some(far) => match with_bucket(rooms, far, session.clone()).await {
            Ok(session) => session,
            Err(
                why @ (Error::Bucket(_) | Error::Key(_) | Error::Snapshot(ash_snapshot::Error::Far { .. })),
            ) => {
                tracing::warn!(session = %session.id, %why, "the object store does not answer: the session goes on with what is known here, and nothing of it counts as remote until it was compared");
                rooms.witnesses.mark_unreachable(session.no);
                return Ok(session);
            }
            Err(error) => return Err(error),
        },
    };
    rooms.witnesses.mark_compared(session.no);
    Ok(session)
}

impl Replicator {
    /// Whether the object store has nothing of a session that the database does not know. Otherwise what is known here
    /// must not stand beside it: the session is compared before its next step.
    pub(crate) async fn may_be_sent(&self, rooms: &Services, session: &SessionRow) -> Result<bool> {
        if rooms.witnesses.is_compared(session.no) {
            return Ok(true);
        }
        let newest = self.newest_name(&session.tenant, &session.id).await?;
        let ours = (epoch_of(rooms, session).await?, session.remote_seq);
        if newest.is_none_or(|newest| !is_ahead(newest, ours)) {
            self.heard_of(rooms, session);
            return Ok(true);
        }
        match self.history(rooms, &session.tenant, &session.id).await? {
            RemoteHistory::Nothing => Ok(true),
            // Its own tombstone is about to be sent, or was.
            RemoteHistory::Purged(_) => Ok(true),
            // Of the session that had this id. Its tombstone is still to be sent.
            RemoteHistory::Of(there) if is_buried(rooms, session, there.manifest.epoch).await? => Ok(true),
            RemoteHistory::Of(there) => {
                let common = common(rooms, session, &there.events).await?;
                let same = common == there.last_seq() && there.manifest.epoch <= ours.0;
                if !same {
                    tracing::error!(session = %session.id, "the object store has another history of this session: nothing is sent until it was compared, before its next start");
                }
                if same {
                    self.heard_of(rooms, session);
                }
                Ok(same)
            }
        }
    }

    /// It has nothing that the database does not know. Packs were compared when the session went on without its word.
    fn heard_of(&self, rooms: &Services, session: &SessionRow) {
        if rooms.witnesses.was_unreachable(session.no) {
            rooms.witnesses.mark_compared(session.no);
        }
    }
}

/// Whether a manifest says more than the database remembers sending.
fn is_ahead((epoch, seq): (Epoch, EventSeq), (our_epoch, far_seq): (Epoch, EventSeq)) -> bool {
    seq > far_seq || epoch > our_epoch
}

async fn with_packs(rooms: &Services, session: SessionRow) -> Result<SessionRow> {
    let of = match rooms.witnesses(&session.tenant, WitnessRefresh::Once).await {
        // Without its key nothing can be read; whoever wants files is told so.
        Err(Error::Key(_)) => return Ok(session),
        of => of?,
    };
    let proof = {
        let of = lock(&of);
        let buried = of.tombstones.get(&session.id).cloned();
        let newest = [of.packs.newest_of(&session.id), of.remote.newest_of(&session.id)];
        let newest = newest.into_iter().flatten().max_by_key(|proof| (proof.epoch, proof.seq)).cloned();
        let newest =
            newest.filter(|proof| buried.as_ref().is_none_or(|tombstone| !proof.is_buried(tombstone)));
        (newest, buried)
    };
    let epoch = epoch_of(rooms, &session).await?;
    let (proof, buried) = proof;
    if let Some(tombstone) = buried.filter(|tombstone| tombstone.epoch >= epoch) {
        if session.summary.status != SessionStatus::Ended {
            let tombstone = SessionTombstone {
                tenant: session.tenant.clone(),
                session: session.id.clone(),
                epoch: tombstone.epoch,
                seq: tombstone.seq,
                purged_at: tombstone.purged_at,
            };
            super::tombstones::trash_by_tombstone(rooms, &session, tombstone).await?;
            return Err(Error::NotFound);
        }
        return Ok(session);
    }
    let Some(proof) = proof else { return Ok(session) };
    if proof.seq <= session.last_seq && proof.epoch.is_none_or(|proven| proven <= epoch) {
        return Ok(session);
    }
    let history = PackHistory::read(rooms, &proof, &session.tenant).await?;
    let base = session.base.map(|base| base.seq);
    let at = proof.epoch.unwrap_or(epoch).max(epoch);
    let upto = WitnessPosition::of(&proof, &history.record);
    let rebuilt = history.rebuilt(rooms, base, at).await?;
    adopt(rooms, session, rebuilt, upto).await
}

async fn with_bucket(rooms: &Services, far: &Replicator, session: SessionRow) -> Result<SessionRow> {
    let asked = far.newest_name(&session.tenant, &session.id);
    let newest = tokio::time::timeout(REMOTE_ANSWER_TIMEOUT, asked).await.map_err(|_| {
        let sentence = format!("it did not answer within {} s", REMOTE_ANSWER_TIMEOUT.as_secs());
        Error::Bucket(BucketError::new(BucketErrorCode::Unreachable, sentence))
    })??;
    let epoch = epoch_of(rooms, &session).await?;
    if newest.is_none_or(|newest| !is_ahead(newest, (epoch, session.remote_seq))) {
        return Ok(session);
    }
    match far.history(rooms, &session.tenant, &session.id).await? {
        RemoteHistory::Nothing => Ok(session),
        RemoteHistory::Purged(tombstone) => match tombstone.epoch >= epoch {
            true => {
                super::tombstones::trash_by_tombstone(rooms, &session, tombstone).await?;
                Err(Error::NotFound)
            }
            // It was made again since.
            false => Ok(session),
        },
        RemoteHistory::Of(rebuilt) if is_buried(rooms, &session, rebuilt.manifest.epoch).await? => {
            Ok(session)
        }
        RemoteHistory::Of(rebuilt) => {
            let (seq, checkpoint) = (rebuilt.manifest.seq, rebuilt.summary.checkpoint);
            let upto = WitnessPosition { seq, checkpoint, journal_position: None };
            adopt(rooms, session, *rebuilt, upto).await
        }
    }
}

/// Whether what is known with this epoch is of another session, which had this id and was purged.
async fn is_buried(rooms: &Services, session: &SessionRow, epoch: Epoch) -> Result<bool> {
    let buried = rooms.buried_epochs(&session.tenant, std::iter::once(&session.id)).await?;
    Ok(buried.get(&session.id).is_some_and(|buried| epoch <= *buried))
}

async fn epoch_of(rooms: &Services, session: &SessionRow) -> Result<Epoch> {
    Ok(rooms.store.lease_holder(session.workspace).await?.ok_or(Error::NotFound)?.epoch)
}

/// The last event that both have, from the session's first own one on. An event that is missing there is no difference.
async fn common(rooms: &Services, session: &SessionRow, theirs: &[EventLine]) -> Result<EventSeq> {
    let base = session.base.map_or(0, |base| base.seq);
    let (mut common, mut theirs) = (base, theirs.iter());
    loop {
        let query = EventQuery { after: common, limit: PAGE, kinds: Vec::new() };
        let page = rooms.store.events(session.no, &query).await?;
        if page.is_empty() {
            return Ok(common);
        }
        for event in &page {
            let same = |line: &EventLine| {
                line.seq == event.seq
                    && (line.kind == "missing"
                        || embedded_log::is_same_event(&embedded_log::line(event), line))
            };
            match theirs.next() {
                Some(line) if same(line) => common = event.seq,
                Some(_) | None => return Ok(common),
            }
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

/// The next receipt says where the history came from.
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
    rebuilt.events.push(embedded_log::line(&event));
}

/// Goes on with a history if it has more than the row.
async fn adopt(
    rooms: &Services,
    session: SessionRow,
    mut rebuilt: RebuiltSession,
    upto: WitnessPosition,
) -> Result<SessionRow> {
    let common = common(rooms, &session, &rebuilt.events).await?;
    let epoch = epoch_of(rooms, &session).await?;
    if common == rebuilt.last_seq() {
        // It is the beginning of ours. Whoever claims the workspace next must still be ahead of whoever wrote it.
        if rebuilt.manifest.epoch > epoch {
            rooms.store.raise_epoch(session.workspace, rebuilt.manifest.epoch).await?;
        }
        return Ok(session);
    }
    let diverged = match common < session.last_seq {
        true => Some(fork_id(rooms, &session, epoch).await?),
        false => None,
    };
    let who = match rebuilt.witness {
        HistorySource::Packs => "packs",
        HistorySource::Bucket => "the object store",
    };
    tracing::warn!(session = %session.id, known = session.last_seq, proven = upto.seq, who, diverged = ?diverged, "the database knew less of the session than a witness, whose history it goes on with");
    note_adoption(&mut rebuilt, upto, diverged.clone());
    let diverged = diverged.map(|id| DivergedFork { id, workspace: WorkspaceId::fresh() });
    let (no, last_seq) = (session.no, session.last_seq);
    rooms.store.adopt(HistoryAdoption { session: no, last_seq, common, diverged, rebuilt }).await?;
    rooms.notify_replicator();
    rooms.store.session(no).await?.ok_or(Error::NotFound)
}

/// A name that is free: it may have diverged before with the same epoch.
async fn fork_id(rooms: &Services, session: &SessionRow, epoch: Epoch) -> Result<SessionId> {
    let rows = rooms.rows(&session.tenant).await?;
    for epoch in epoch.0.. {
        let Some(id) = diverged_id(&session.id, Epoch(epoch)) else { break };
        if !rows.contains_key(&id) {
            return Ok(id);
        }
    }
    Err(Error::NotFound)
}
