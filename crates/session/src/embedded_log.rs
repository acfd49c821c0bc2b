//! What travels with a checkpoint: the session's record, and what happened since the checkpoint before. From
//! the packs alone everything can be told again.

use crate::{Error, Result, blocking, services::Services};
use ash_model::{
    Epoch, Event, EventSeq, Fact, Incarnation, JournalPosition, ResumeComparison, SessionId, SessionRowId,
    TurnId,
    embedded_log::{self, EventLine, PackSessionRecord},
};
use ash_snapshot::{Repo, TreeId, UnchangedPolicy};
use ash_store::{EventQuery, SessionRow};
use std::sync::Arc;

const PAGE: u32 = 1000;
/// A pack's blocks hold less than 64 MiB.
const MAX_NOTE_BYTES: usize = 32 << 20;

#[derive(Debug)]
pub(crate) struct EmbeddedLog {
    pub(crate) notes: Vec<(String, Vec<u8>)>,
    pub(crate) unchanged: UnchangedPolicy,
}

impl Default for EmbeddedLog {
    fn default() -> EmbeddedLog {
        EmbeddedLog { notes: Vec::new(), unchanged: UnchangedPolicy::ReuseBase }
    }
}

/// What a capture is asked for besides files.
pub(crate) struct PackMetadata<'t> {
    pub(crate) session: &'t SessionRow,
    pub(crate) checkpoint: u64,
    pub(crate) turn: Option<TurnId>,
    /// The snapshot that has what happened before.
    pub(crate) before: &'t TreeId,
    pub(crate) agent_tree: String,
    pub(crate) epoch: Epoch,
    /// Of the sandbox in which its agent runs.
    pub(crate) incarnation: Option<Incarnation>,
}

pub(crate) async fn collect(
    rooms: &Services,
    repo: &Arc<Repo>,
    trip: PackMetadata<'_>,
) -> Result<EmbeddedLog> {
    let PackMetadata { session, checkpoint, turn, before: last, agent_tree, epoch, incarnation } = trip;
    // Said by the pack itself: what was recorded while it was written is not in it.
    // It may be in the object store alone, and then it is waited for.
    let (own, tree) = (repo.clone(), last.clone());
    let before = blocking(move || read(&own, &tree)).await.unwrap_or_else(|error| {
        // A pack that rots must not keep the next one from being written: it holds all events again.
        tracing::warn!(session = %session.id, %error, "the checkpoint before cannot be read");
        None
    });
    let after = before.filter(|record| is_of(record, session));
    let after = after.map_or(0, |record| record.through);
    let heard = heard_by(rooms, session.no, incarnation).await?;
    let (parts, through) = events(rooms, session, after, EventSeq::MAX).await?;
    // If more was heard meanwhile, nobody can say where in the journal the events end.
    let heard = if heard == heard_by(rooms, session.no, incarnation).await? { heard } else { None };
    let sealed = rooms.store.sealed_values(session.no).await?;
    let definition = rooms.store.agent_definition(&session.tenant, &session.agent, session.version).await?;
    let record = PackSessionRecord {
        tenant: session.tenant.clone(),
        session: session.id.clone(),
        workspace: session.workspace,
        agent: session.agent.to_string(),
        version: session.version,
        agent_tree,
        runtime: session.runtime,
        native_id: session.native_id,
        options: session.options.clone(),
        parent: parent(rooms, session).await?,
        checkpoint,
        turn,
        previous: last.to_string(),
        after,
        through,
        created_at: session.created_at,
        at: rooms.clock(),
        epoch: Some(epoch),
        owner: session.owner.clone(),
        metadata: session.metadata.clone(),
        slug: session.slug.clone(),
        env: sealed.env,
        secrets: sealed.secrets,
        definition: definition.map(Box::new),
        journal_position: heard,
    };
    let text = serde_json::to_vec(&record).expect("plain words and numbers");
    let mut notes = vec![(embedded_log::SESSION_NOTE.to_owned(), text)];
    notes.extend(parts.into_iter().enumerate().map(|(n, part)| (embedded_log::events_note_name(n), part)));
    // A turn is remembered even if it changed no file; a look between turns is not.
    let unchanged = if turn.is_some() { UnchangedPolicy::WriteNotes } else { UnchangedPolicy::ReuseBase };
    Ok(EmbeddedLog { notes, unchanged })
}

async fn heard_by(
    rooms: &Services,
    no: SessionRowId,
    of: Option<Incarnation>,
) -> Result<Option<JournalPosition>> {
    let Some(incarnation) = of else { return Ok(None) };
    let all = rooms.store.journal_positions(incarnation).await?;
    Ok(all.into_iter().find(|heard| heard.session == no).map(|heard| heard.journal))
}

/// The record in a snapshot's pack, if it is a session's.
pub(crate) fn read(repo: &Repo, tree: &TreeId) -> Result<Option<PackSessionRecord>> {
    let Some(text) = repo.note(tree, embedded_log::SESSION_NOTE)? else { return Ok(None) };
    let damaged = |_| {
        let (tree, what) = (tree.to_string(), "its session record".to_owned());
        Error::Snapshot(ash_snapshot::Error::Damaged { tree, what })
    };
    serde_json::from_slice(&text).map(Some).map_err(damaged)
}

/// What a checkpoint says of its session beside what we have of it now, and what of it we have not.
pub(crate) async fn compare(
    rooms: &Services,
    repo: Arc<Repo>,
    session: &SessionRow,
    tree: &TreeId,
) -> Result<(ResumeComparison, Vec<String>)> {
    let mut compared = ResumeComparison {
        tree: Some(tree.to_string()),
        agent_version: session.version,
        model: session.options.model.clone(),
        permission_mode: session.options.permission_mode.clone(),
        ..ResumeComparison::default()
    };
    let mut lost = Vec::new();
    let (reading, at) = (repo.clone(), tree.clone());
    let found = blocking(move || {
        let Some(record) = read(&reading, &at)? else { return Ok(None) };
        let mut parts = Vec::new();
        while let Some(part) = reading.note(&at, &embedded_log::events_note_name(parts.len()))? {
            parts.push(part);
        }
        Ok(Some((record, parts)))
    });
    let (record, parts) = match found.await {
        Ok(Some(found)) => found,
        // The agent's own files, or made before sessions travelled with their checkpoints.
        Ok(None) => return Ok((compared, lost)),
        Err(error) => {
            lost.push(format!("what the checkpoint says of its session ({error})"));
            return Ok((compared, lost));
        }
    };
    // The checkpoint that a fork begins with tells of its parent.
    if !is_of(&record, session) {
        return Ok((compared, lost));
    }
    compared.events = parts.iter().flatten().filter(|byte| **byte == b'\n').count() as u64;
    let (ours, _) = events(rooms, session, record.after, record.through).await?;
    if !is_same(&ours.concat(), &parts.concat()) {
        lost.push(format!(
            "the log as checkpoint {} has it: events {} to {} are not the same",
            record.checkpoint,
            record.after + 1,
            record.through
        ));
    }
    if record.version != session.version {
        lost.push(format!("version {} of the agent: it is version {} now", record.version, session.version));
    }
    for (name, then, now) in [
        ("model", &record.options.model, &session.options.model),
        ("permissionMode", &record.options.permission_mode, &session.options.permission_mode),
    ] {
        if then != now {
            compared.changed.push(name.to_owned());
        }
    }
    Ok((compared, lost))
}

/// Whose fork it is. One whose log it shares is found by its name, also when it was purged and nothing else names it.
pub(crate) async fn parent(rooms: &Services, session: &SessionRow) -> Result<Option<SessionId>> {
    match (&session.parent, session.base) {
        (None, Some(base)) => Ok(rooms.store.session(base.parent).await?.map(|parent| parent.id)),
        (parent, _) => Ok(parent.clone()),
    }
}

/// Whether a record is this session's: under its id there may have been another one before.
pub(crate) fn is_of(record: &PackSessionRecord, session: &SessionRow) -> bool {
    record.session == session.id && record.tenant == session.tenant && record.created_at == session.created_at
}

/// The same events, but for the names of other sessions: those that were purged since are not named here any more.
fn is_same(ours: &[u8], theirs: &[u8]) -> bool {
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

pub(crate) fn is_same_event(ours: &EventLine, theirs: &EventLine) -> bool {
    let unnamed = |line: &EventLine| Fact::decode(&line.kind, line.json.clone()).map(Fact::unnamed);
    let around = |line: &EventLine| (line.seq, line.turn, line.at, line.kind.clone());
    ours == theirs
        || (ours.kind != "said"
            && around(ours) == around(theirs)
            && matches!((unnamed(ours), unnamed(theirs)), (Ok(ours), Ok(theirs)) if ours == theirs))
}

/// An event as it is put into packs.
pub(crate) fn line(event: &Event) -> EventLine {
    let Event { seq, turn, at, fact } = event;
    EventLine { seq: *seq, turn: *turn, at: *at, kind: fact.kind().to_owned(), json: fact.encode() }
}

/// The events in a snapshot's pack.
pub(crate) fn lines(repo: &Repo, tree: &TreeId) -> Result<Vec<EventLine>> {
    let mut lines = Vec::new();
    for number in 0.. {
        let Some(part) = repo.note(tree, &embedded_log::events_note_name(number))? else { break };
        for text in part.split(|byte| *byte == b'\n').filter(|text| !text.is_empty()) {
            let damaged = |_| {
                let (tree, what) = (tree.to_string(), "an event that cannot be read".to_owned());
                Error::Snapshot(ash_snapshot::Error::Damaged { tree, what })
            };
            lines.push(serde_json::from_slice(text).map_err(damaged)?);
        }
    }
    Ok(lines)
}

async fn events(
    rooms: &Services,
    session: &SessionRow,
    after: EventSeq,
    upto: EventSeq,
) -> Result<(Vec<Vec<u8>>, EventSeq)> {
    let (mut parts, mut last) = (Vec::new(), after);
    loop {
        let query = EventQuery { after: last, limit: PAGE, kinds: Vec::new() };
        let page = rooms.store.events(session.no, &query).await?;
        let full = page.len() == PAGE as usize;
        for event in page {
            let seq = event.seq;
            if seq > upto {
                return Ok((parts, last));
            }
            let line = serde_json::to_vec(&line(&event)).expect("numbers and strings");
            match parts.last_mut() {
                Some(part) if Vec::len(part) + line.len() < MAX_NOTE_BYTES => part.extend_from_slice(&line),
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
