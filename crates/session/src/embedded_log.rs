//! What is embedded in the pack of a checkpoint: the session's record, and its events since the checkpoint before. With
//! it a session can be rebuilt from its packs alone.

use crate::{Result, blocking, live_directory::CaptureNotes, services::Services};
use ash_model::{
    Epoch, EventSeq, Incarnation, JournalPosition, ResumeComparison, SessionRowId, TurnId,
    embedded_log::{self, PackSessionRecord},
};
use ash_remote::pack_log;
use ash_snapshot::{Repo, TreeId, UnchangedPolicy};
use ash_store::{EventQuery, SessionRow};
use std::sync::Arc;

const PAGE: u32 = 1000;
/// The blocks of a pack hold less than 64 MiB.
const MAX_NOTE_BYTES: usize = 32 << 20;

/// What a capture stores in addition to files.
pub(crate) struct PackMetadata<'t> {
    pub(crate) session: &'t SessionRow,
    pub(crate) checkpoint: u64,
    pub(crate) turn: Option<TurnId>,
    /// The snapshot before this one. Its pack holds the earlier events.
    pub(crate) before: &'t TreeId,
    pub(crate) agent_tree: String,
    pub(crate) epoch: Epoch,
    /// The incarnation of the sandbox in which the session's agent runs.
    pub(crate) incarnation: Option<Incarnation>,
}

pub(crate) async fn collect(
    services: &Services,
    repo: &Arc<Repo>,
    trip: PackMetadata<'_>,
) -> Result<CaptureNotes> {
    let PackMetadata { session, checkpoint, turn, before: last, agent_tree, epoch, incarnation } = trip;
    // Read from the pack itself: events that were recorded while that pack was written are not in it. If the pack is
    // only in the object store, this waits for the download.
    let (own, tree) = (repo.clone(), last.clone());
    let before = blocking(move || Ok(pack_log::read_record(&own, &tree)?)).await.unwrap_or_else(|error| {
        // A damaged pack must not prevent the next one, which then holds all events again.
        tracing::warn!(session = %session.id, %error, "the checkpoint before this one cannot be read");
        None
    });
    let after = before.filter(|record| pack_log::is_record_of(record, session));
    let after = after.map_or(0, |record| record.through);
    let heard = heard_by(services, session.no, incarnation).await?;
    let (parts, through) = events(services, session, after, EventSeq::MAX).await?;
    // If the agent wrote more meanwhile, it is unknown at which place in the journal the events end.
    let heard = if heard == heard_by(services, session.no, incarnation).await? { heard } else { None };
    let sealed = services.store.sealed_values(session.no).await?;
    let definition =
        services.store.agent_definition(&session.tenant, &session.agent, session.version).await?;
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
        parent: pack_log::parent(services.store.as_ref(), session).await?,
        checkpoint,
        turn,
        previous: last.to_string(),
        after,
        through,
        created_at: session.created_at,
        at: services.clock(),
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
    // A turn gets a checkpoint even if it changed no file; a capture between turns does not.
    let unchanged = if turn.is_some() { UnchangedPolicy::WriteNotes } else { UnchangedPolicy::ReuseBase };
    Ok(CaptureNotes { notes, unchanged })
}

async fn heard_by(
    services: &Services,
    no: SessionRowId,
    of: Option<Incarnation>,
) -> Result<Option<JournalPosition>> {
    let Some(incarnation) = of else { return Ok(None) };
    let all = services.store.journal_positions(incarnation).await?;
    Ok(all.into_iter().find(|heard| heard.session == no).map(|heard| heard.journal))
}

/// Compares what a checkpoint says of its session with what exists now, and lists what is lost.
pub(crate) async fn compare(
    services: &Services,
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
        let Some(record) = pack_log::read_record(&reading, &at)? else { return Ok(None) };
        Ok(Some((record, pack_log::read_event_parts(&reading, &at)?)))
    });
    let (record, parts) = match found.await {
        Ok(Some(found)) => found,
        // The agent's own files, or a checkpoint from before records were embedded in packs.
        Ok(None) => return Ok((compared, lost)),
        Err(error) => {
            lost.push(format!("what the checkpoint says of its session ({error})"));
            return Ok((compared, lost));
        }
    };
    // The checkpoint that a fork begins with holds the record of its parent.
    if !pack_log::is_record_of(&record, session) {
        return Ok((compared, lost));
    }
    compared.events = parts.iter().flatten().filter(|byte| **byte == b'\n').count() as u64;
    let (ours, _) = events(services, session, record.after, record.through).await?;
    if !pack_log::is_same_log(&ours.concat(), &parts.concat()) {
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

async fn events(
    services: &Services,
    session: &SessionRow,
    after: EventSeq,
    upto: EventSeq,
) -> Result<(Vec<Vec<u8>>, EventSeq)> {
    let (mut parts, mut last) = (Vec::new(), after);
    loop {
        let query = EventQuery { after: last, limit: PAGE, kinds: Vec::new() };
        let page = services.store.events(session.no, &query).await?;
        let full = page.len() == PAGE as usize;
        for event in page {
            let seq = event.seq;
            if seq > upto {
                return Ok((parts, last));
            }
            let line = serde_json::to_vec(&pack_log::event_line(&event)).expect("numbers and strings");
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
