//! Whether the object store has a different history of a session than the database. Two histories must not be mixed
//! under one id, so nothing of a session is sent before it was compared.

use crate::{RemoteHistory, RemoteServices, Replicator, Result, pack_log};
use ash_model::{Epoch, EventSeq, embedded_log::EventLine};
use ash_store::{EventQuery, SessionRow, Store};

const PAGE: u32 = 1000;

impl Replicator {
    /// Whether the database knows everything that the object store has of a session.
    pub(crate) async fn may_be_sent(&self, session: &SessionRow) -> Result<bool> {
        let RemoteServices { store, witnesses, .. } = &self.services;
        if witnesses.is_compared(session.no) {
            return Ok(true);
        }
        let newest = self.newest_name(&session.tenant, &session.id).await?;
        let ours = (workspace_epoch(store.as_ref(), session).await?, session.remote_seq);
        if newest.is_none_or(|newest| !is_ahead(newest, ours)) {
            self.note_agreement(session);
            return Ok(true);
        }
        match self.history(&session.tenant, &session.id).await? {
            RemoteHistory::Nothing => Ok(true),
            // The session's own tombstone was sent, or is about to be sent.
            RemoteHistory::Purged(_) => Ok(true),
            // The history of an earlier session with this id, whose tombstone is still to be sent.
            RemoteHistory::Of(there) if witnesses.is_buried(session, there.manifest.epoch).await? => Ok(true),
            RemoteHistory::Of(there) => {
                let common = last_common_event(store.as_ref(), session, &there.events).await?;
                let is_same = common == there.last_seq() && there.manifest.epoch <= ours.0;
                if is_same {
                    self.note_agreement(session);
                } else {
                    tracing::error!(session = %session.id, "the object store has another history of this session: the server sends nothing of it until its next start compares both");
                }
                Ok(is_same)
            }
        }
    }

    /// Marks a session as compared that started without an answer of the object store. Its packs were compared then.
    fn note_agreement(&self, session: &SessionRow) {
        if self.services.witnesses.was_unreachable(session.no) {
            self.services.witnesses.mark_compared(session.no);
        }
    }
}

/// Whether a manifest has a later event or epoch than the database has recorded.
pub fn is_ahead((epoch, seq): (Epoch, EventSeq), (our_epoch, sent): (Epoch, EventSeq)) -> bool {
    seq > sent || epoch > our_epoch
}

/// The epoch of the server that holds the session's workspace.
pub async fn workspace_epoch(store: &dyn Store, session: &SessionRow) -> Result<Epoch> {
    Ok(store.lease_holder(session.workspace).await?.ok_or(crate::Error::NoSession)?.epoch)
}

/// The last of its own events that the session has in both histories. A missing event is no difference.
pub async fn last_common_event(
    store: &dyn Store,
    session: &SessionRow,
    theirs: &[EventLine],
) -> Result<EventSeq> {
    let base = session.base.map_or(0, |base| base.seq);
    let (mut common, mut theirs) = (base, theirs.iter());
    loop {
        let query = EventQuery { after: common, limit: PAGE, kinds: Vec::new() };
        let page = store.events(session.no, &query).await?;
        if page.is_empty() {
            return Ok(common);
        }
        for event in &page {
            let same = |line: &EventLine| {
                line.seq == event.seq
                    && (line.kind == "missing" || pack_log::is_same_event(&pack_log::event_line(event), line))
            };
            match theirs.next() {
                Some(line) if same(line) => common = event.seq,
                Some(_) | None => return Ok(common),
            }
        }
    }
}
