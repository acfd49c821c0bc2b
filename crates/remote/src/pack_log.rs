//! Reads the session's record and the events that are embedded in the pack of each checkpoint, and decides when two of
//! them are the same. With them, the packs alone can restore a session's whole log.

use crate::{Error, Result};
use ash_model::{
    Event, Fact, SessionId,
    embedded_log::{EventLine, PackSessionRecord, SESSION_NOTE, events_note_name},
};
use ash_snapshot::{Repo, TreeId};
use ash_store::{SessionRow, Store};

/// The record in a snapshot's pack. `None`: the pack does not hold a session's checkpoint.
pub fn read_record(repo: &Repo, tree: &TreeId) -> Result<Option<PackSessionRecord>> {
    let Some(text) = repo.note(tree, SESSION_NOTE)? else { return Ok(None) };
    serde_json::from_slice(&text).map(Some).map_err(|_| damaged(tree, "its session record"))
}

/// The events in a snapshot's pack: those since the checkpoint before.
pub fn read_events(repo: &Repo, tree: &TreeId) -> Result<Vec<EventLine>> {
    let mut lines = Vec::new();
    for part in read_event_parts(repo, tree)? {
        for text in part.split(|byte| *byte == b'\n').filter(|text| !text.is_empty()) {
            let line = serde_json::from_slice(text);
            lines.push(line.map_err(|_| damaged(tree, "an event that cannot be read"))?);
        }
    }
    Ok(lines)
}

/// The same events as they are stored, one line each.
pub fn read_event_parts(repo: &Repo, tree: &TreeId) -> Result<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    while let Some(part) = repo.note(tree, &events_note_name(parts.len()))? {
        parts.push(part);
    }
    Ok(parts)
}

fn damaged(tree: &TreeId, what: &str) -> Error {
    Error::Snapshot(ash_snapshot::Error::Damaged { tree: tree.to_string(), what: what.to_owned() })
}

/// An event as packs and manifests store it.
pub fn event_line(event: &Event) -> EventLine {
    let Event { seq, turn, at, fact } = event;
    EventLine { seq: *seq, turn: *turn, at: *at, kind: fact.kind().to_owned(), json: fact.encode() }
}

/// Whether a record is of this session. A purged session may have had the same id.
pub fn is_record_of(record: &PackSessionRecord, session: &SessionRow) -> bool {
    record.session == session.id && record.tenant == session.tenant && record.created_at == session.created_at
}

/// The session that this one is a fork of. A purged parent that shares its log is found by its row, because its id
/// names it no longer.
pub async fn parent(store: &dyn Store, session: &SessionRow) -> Result<Option<SessionId>> {
    match (&session.parent, session.base) {
        (None, Some(base)) => Ok(store.session(base.parent).await?.map(|parent| parent.id)),
        (parent, _) => Ok(parent.clone()),
    }
}

/// Whether two stored logs are the same, apart from the ids of other sessions: the database removes the ids of purged
/// sessions, but packs keep them.
pub fn is_same_log(ours: &[u8], theirs: &[u8]) -> bool {
    let lines = |text: &[u8]| text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let parsed = |text: &[u8]| serde_json::from_slice::<EventLine>(text);
    let (ours, theirs) = (lines(ours), lines(theirs));
    let same = |(ours, theirs): (&Vec<u8>, &Vec<u8>)| match (ours == theirs, parsed(ours), parsed(theirs)) {
        (true, ..) => true,
        (false, Ok(ours), Ok(theirs)) => is_same_event(&ours, &theirs),
        (false, ..) => false,
    };
    ours.len() == theirs.len() && ours.iter().zip(&theirs).all(same)
}

/// The same comparison for one event.
pub fn is_same_event(ours: &EventLine, theirs: &EventLine) -> bool {
    let unnamed = |line: &EventLine| Fact::decode(&line.kind, line.json.clone()).map(Fact::unnamed);
    let around = |line: &EventLine| (line.seq, line.turn, line.at, line.kind.clone());
    ours == theirs
        || (ours.kind != "said"
            && around(ours) == around(theirs)
            && matches!((unnamed(ours), unnamed(theirs)), (Ok(ours), Ok(theirs)) if ours == theirs))
}
