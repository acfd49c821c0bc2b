//! What travels with a checkpoint: the session's record, and what happened since the checkpoint before. From
//! the packs alone everything can be told again.

use crate::{Error, Result, pool::Rooms};
use ash_model::{Event, Options, Runtime, Seq, SessionId, TenantId, Timestamp, TurnId, WorkspaceId};
use ash_snapshot::{Repo, TreeId, Unchanged};
use ash_store::{EventQuery, Session};
use serde::{Deserialize, Serialize};

/// The names under which it lies in a pack; parts after the first are `events.1` and so on.
pub const RECORD: &str = "session";
pub const EVENTS: &str = "events";

const PAGE: u32 = 1000;
/// A pack's blocks hold less than 64 MiB.
const PART: usize = 32 << 20;

/// A session as its packs know it. A stored format: see `docs/formats.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub tenant: TenantId,
    pub session: SessionId,
    pub workspace: WorkspaceId,
    pub agent: String,
    pub version: u32,
    /// The snapshot of the agent's own files.
    pub agent_tree: String,
    pub runtime: Runtime,
    pub native_id: uuid::Uuid,
    pub options: Options,
    pub parent: Option<SessionId>,
    pub checkpoint: u64,
    pub turn: Option<TurnId>,
    /// The snapshot before this one: where the events up to `after` are.
    pub previous: String,
    /// The events in this pack: those after the one, up to and with the other.
    pub after: Seq,
    pub through: Seq,
    pub created_at: Timestamp,
    pub at: Timestamp,
}

/// One event, as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    seq: Seq,
    turn: Option<TurnId>,
    at: Timestamp,
    kind: String,
    /// As the log has it: an agent's line to the byte, everything else our own JSON.
    json: String,
}

#[derive(Debug)]
pub(crate) struct Luggage {
    pub(crate) notes: Vec<(String, Vec<u8>)>,
    pub(crate) unchanged: Unchanged,
}

impl Default for Luggage {
    fn default() -> Luggage {
        Luggage { notes: Vec::new(), unchanged: Unchanged::IsTheBase }
    }
}

/// What a capture is asked for besides files.
pub(crate) struct Trip<'t> {
    pub(crate) session: &'t Session,
    pub(crate) checkpoint: u64,
    pub(crate) turn: Option<TurnId>,
    pub(crate) base: &'t TreeId,
    pub(crate) agent_tree: String,
}

pub(crate) async fn pack(rooms: &Rooms, repo: &Repo, trip: Trip<'_>) -> Result<Luggage> {
    let Trip { session, checkpoint, turn, base, agent_tree } = trip;
    // Said by the pack itself: what was recorded while it was written is not in it.
    let after =
        read(repo, base)?.filter(|record| record.session == session.id && record.tenant == session.tenant);
    let after = after.map_or(0, |record| record.through);
    let (parts, through) = events(rooms, session, after).await?;
    let record = Record {
        tenant: session.tenant.clone(),
        session: session.id.clone(),
        workspace: session.workspace,
        agent: session.agent.to_string(),
        version: session.version,
        agent_tree,
        runtime: session.runtime,
        native_id: session.native_id,
        options: session.options.clone(),
        parent: session.parent.clone(),
        checkpoint,
        turn,
        previous: base.to_string(),
        after,
        through,
        created_at: session.created_at,
        at: rooms.clock(),
    };
    let text = serde_json::to_vec(&record).expect("plain words and numbers");
    let mut notes = vec![(RECORD.to_owned(), text)];
    notes.extend(parts.into_iter().enumerate().map(|(n, part)| (part_name(n), part)));
    // A turn is remembered even if it changed no file; a look between turns is not.
    let unchanged = if turn.is_some() { Unchanged::KeepsItsNotes } else { Unchanged::IsTheBase };
    Ok(Luggage { notes, unchanged })
}

pub fn part_name(number: usize) -> String {
    if number == 0 { EVENTS.to_owned() } else { format!("{EVENTS}.{number}") }
}

/// The record in a snapshot's pack, if it is a session's.
pub fn read(repo: &Repo, tree: &TreeId) -> Result<Option<Record>> {
    let Some(text) = repo.note(tree, RECORD)? else { return Ok(None) };
    let damaged = |_| {
        let (tree, what) = (tree.to_string(), "its session record".to_owned());
        Error::Snapshot(ash_snapshot::Error::Damaged { tree, what })
    };
    serde_json::from_slice(&text).map(Some).map_err(damaged)
}

async fn events(rooms: &Rooms, session: &Session, after: Seq) -> Result<(Vec<Vec<u8>>, Seq)> {
    let (mut parts, mut last) = (Vec::new(), after);
    loop {
        let query = EventQuery { after: last, limit: PAGE, kinds: Vec::new() };
        let page = rooms.store.events(session.no, &query).await?;
        let full = page.len() == PAGE as usize;
        for Event { seq, turn, at, fact } in page {
            let line = Line { seq, turn, at, kind: fact.kind().to_owned(), json: fact.encode() };
            let line = serde_json::to_vec(&line).expect("numbers and strings");
            match parts.last_mut() {
                Some(part) if Vec::len(part) + line.len() < PART => part.extend_from_slice(&line),
                Some(_) | None => parts.push(line),
            }
            parts.last_mut().expect("pushed above").push(b'\n');
            last = seq;
        }
        if !full {
            return Ok((parts, last));
        }
    }
}
