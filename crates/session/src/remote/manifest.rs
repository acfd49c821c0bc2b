//! What is told of a session: everything that its packs do not tell.

use crate::{Result, blocking, embedded_log, services::Services};
use ash_model::{
    EventSeq, SessionId, Timestamp,
    embedded_log::{EventLine, PackSessionRecord},
    remote::{ManifestCheckpoint, SessionManifest},
};
use ash_snapshot::{Repo, TreeId};
use ash_store::{AccessScope, Checkpoint, EventQuery, SessionRow};
use std::{collections::HashSet, sync::Arc};

const PAGE: u32 = 1000;
/// How many checkpoints are looked at for one whose pack tells of the log. Mostly it is the first.
const LOOKED_AT: u32 = 200;

/// The session up to event `seq`.
pub(super) async fn of(
    rooms: &Services,
    session: &SessionRow,
    checkpoint: Option<&Checkpoint>,
    seq: EventSeq,
) -> Result<SessionManifest> {
    let repo = rooms.repo(&session.tenant)?;
    let base = session.base.map(|base| base.seq);
    let (chain, covers) = chain(rooms, &repo, session, checkpoint, seq).await?;
    let events = lines(rooms, session, covers.max(base.unwrap_or(0)), seq).await?;
    let hold = rooms.store.lease_holder(session.workspace).await?.ok_or(crate::Error::NotFound)?;
    let unnamed = match &session.slug {
        Some(slug) => {
            let named = rooms.store.find_workspace(&AccessScope::all(&session.tenant), slug).await?;
            named.is_none_or(|named| named.id != session.workspace || named.deleting)
        }
        None => false,
    };
    let first = match base {
        Some(base) => first(rooms, &repo, session, base).await?,
        None => Vec::new(),
    };
    let sealed = rooms.store.sealed_values(session.no).await?;
    Ok(SessionManifest {
        tenant: session.tenant.clone(),
        session: session.id.clone(),
        workspace: session.workspace,
        slug: session.slug.clone(),
        unnamed,
        epoch: hold.epoch,
        seq,
        agent: session.agent.clone(),
        version: session.version,
        runtime: session.runtime,
        native_id: session.native_id,
        options: session.options.clone(),
        env: sealed.env,
        secrets: sealed.secrets,
        parent: embedded_log::parent(rooms, session).await?,
        base,
        owner: session.owner.clone(),
        metadata: session.metadata.clone(),
        initial_checkpoints: first,
        status: session.summary.status,
        title: session.summary.title.clone(),
        last_text: session.summary.last_text.clone(),
        turns: session.summary.turns,
        created_at: session.created_at,
        last_active_at: session.last_active_at,
        checkpoint: checkpoint.map(|checkpoint| described(&repo, checkpoint)),
        log_snapshot: chain,
        packed_through: covers,
        events,
    })
}

/// The checkpoints that a fork began with: no event of its own tells of them.
pub(super) async fn first(
    rooms: &Services,
    repo: &Repo,
    session: &SessionRow,
    base: EventSeq,
) -> Result<Vec<ManifestCheckpoint>> {
    let all = rooms.store.checkpoints(session.workspace, Some(3), 2).await?;
    let before = all.iter().filter(|checkpoint| checkpoint.seq <= base && checkpoint.removed_at.is_none());
    Ok(before.map(|checkpoint| described(repo, checkpoint)).collect())
}

/// The newest snapshot whose pack tells of this session's log, and how far.
async fn chain(
    rooms: &Services,
    repo: &Arc<Repo>,
    session: &SessionRow,
    checkpoint: Option<&Checkpoint>,
    seq: EventSeq,
) -> Result<(Option<String>, EventSeq)> {
    let before = rooms.store.checkpoints(session.workspace, None, LOOKED_AT).await?;
    let lost = match &rooms.replicator {
        Some(far) => far.lost(rooms, &session.tenant).await?,
        None => HashSet::new(),
    };
    let trees: Vec<String> =
        checkpoint.iter().copied().chain(&before).map(|checkpoint| checkpoint.tree.clone()).collect();
    let (repo, session) = (repo.clone(), session.clone());
    blocking(move || {
        for text in trees {
            let Ok(tree) = TreeId::parse(&text) else { continue };
            if lost.contains(tree.pack_name()) {
                continue;
            }
            let record = embedded_log::read(&repo, &tree)?;
            let ours = record.filter(|record| embedded_log::is_of(record, &session));
            if let Some(record) = ours.filter(|record| record.through <= seq) {
                // What leads to a pack that is lost tells nothing of what was before: the manifest does.
                let is_whole = lost.is_empty() || leads_back(&repo, &tree, &lost);
                return Ok(if is_whole { (Some(text), record.through) } else { (None, 0) });
            }
        }
        Ok((None, 0))
    })
    .await
}

/// Under one id there may have been several.
fn whose(record: &PackSessionRecord) -> (SessionId, Timestamp) {
    (record.session.clone(), record.created_at)
}

/// Whether the log can be told from here back to its beginning, without what is lost.
fn leads_back(repo: &Repo, tree: &TreeId, lost: &HashSet<String>) -> bool {
    let (mut walked, mut next, mut session) = (HashSet::new(), Some(tree.clone()), None);
    while let Some(tree) = next.take() {
        if lost.contains(tree.pack_name()) {
            return false;
        }
        let Ok(record) = embedded_log::read(repo, &tree) else { return false };
        let Some(record) =
            record.filter(|record| *session.get_or_insert_with(|| whose(record)) == whose(record))
        else {
            return true;
        };
        if record.after > 0 && walked.insert(tree.to_string()) {
            next = TreeId::parse(&record.previous).ok();
        }
    }
    true
}

async fn lines(
    rooms: &Services,
    session: &SessionRow,
    after: EventSeq,
    upto: EventSeq,
) -> Result<Vec<EventLine>> {
    let (mut lines, mut last) = (Vec::new(), after);
    while last < upto {
        let query = EventQuery { after: last, limit: PAGE, kinds: Vec::new() };
        let page = rooms.store.events(session.no, &query).await?;
        let Some(newest) = page.last() else { break };
        last = newest.seq;
        lines.extend(page.iter().filter(|event| event.seq <= upto).map(embedded_log::line));
    }
    Ok(lines)
}

fn described(repo: &Repo, checkpoint: &Checkpoint) -> ManifestCheckpoint {
    let pack = TreeId::parse(&checkpoint.tree).ok();
    let size = pack.and_then(|tree| repo.pack_file(tree.pack_name())).map_or(0, |(_, size)| size);
    ManifestCheckpoint {
        number: checkpoint.number,
        turn: checkpoint.turn,
        seq: checkpoint.seq,
        tree: checkpoint.tree.clone(),
        size,
        consistency: checkpoint.consistency,
        salvage: checkpoint.salvage,
        mid_turn: checkpoint.mid_turn,
        files: checkpoint.files,
        bytes: checkpoint.bytes,
        skipped: checkpoint.skipped,
        unsettled: checkpoint.unsettled,
        concurrent_turns: checkpoint.concurrent_turns.clone(),
        rewound_to: checkpoint.rewound_to,
        at: checkpoint.at,
    }
}
