//! The manifest of a session: everything that a restore needs and that is not in the session's packs.

use crate::{Error, Replicator, Result, blocking, pack_log};
use ash_model::{
    EventSeq, SessionId, Timestamp,
    embedded_log::{EventLine, PackSessionRecord},
    remote::{ManifestCheckpoint, SessionManifest},
};
use ash_snapshot::{Repo, TreeId};
use ash_store::{AccessScope, Checkpoint, EventQuery, SessionRow};
use std::{collections::HashSet, sync::Arc};

const PAGE: u32 = 1000;
/// How many checkpoints are searched for one whose pack has the log. Usually it is the first.
const MAX_SEARCHED: u32 = 200;

impl Replicator {
    /// The manifest of a session up to event `seq`.
    pub(crate) async fn manifest(
        &self,
        session: &SessionRow,
        checkpoint: Option<&Checkpoint>,
        seq: EventSeq,
    ) -> Result<SessionManifest> {
        let repo = self.services.repo(&session.tenant)?;
        let base = session.base.map(|base| base.seq);
        let (log_snapshot, packed_through) = self.log_snapshot(&repo, session, checkpoint, seq).await?;
        let events = self.lines(session, packed_through.max(base.unwrap_or(0)), seq).await?;
        let hold = self.services.store.lease_holder(session.workspace).await?.ok_or(Error::NoSession)?;
        let unnamed = match &session.slug {
            Some(slug) => {
                let named =
                    self.services.store.find_workspace(&AccessScope::all(&session.tenant), slug).await?;
                named.is_none_or(|named| named.id != session.workspace || named.deleting)
            }
            None => false,
        };
        let initial_checkpoints = match base {
            Some(base) => self.initial_checkpoints(&repo, session, base).await?,
            None => Vec::new(),
        };
        let sealed = self.services.store.sealed_values(session.no).await?;
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
            parent: pack_log::parent(self.services.store.as_ref(), session).await?,
            base,
            owner: session.owner.clone(),
            metadata: session.metadata.clone(),
            initial_checkpoints,
            status: session.summary.status,
            title: session.summary.title.clone(),
            last_text: session.summary.last_text.clone(),
            turns: session.summary.turns,
            created_at: session.created_at,
            last_active_at: session.last_active_at,
            checkpoint: checkpoint.map(|checkpoint| manifest_checkpoint(&repo, checkpoint)),
            log_snapshot,
            packed_through,
            events,
        })
    }

    /// The checkpoints that a fork began with. No event of the fork names them.
    pub(crate) async fn initial_checkpoints(
        &self,
        repo: &Repo,
        session: &SessionRow,
        base: EventSeq,
    ) -> Result<Vec<ManifestCheckpoint>> {
        let all = self.services.store.checkpoints(session.workspace, Some(3), 2).await?;
        let before =
            all.iter().filter(|checkpoint| checkpoint.seq <= base && checkpoint.removed_at.is_none());
        Ok(before.map(|checkpoint| manifest_checkpoint(repo, checkpoint)).collect())
    }

    /// The newest snapshot whose pack has this session's log, and the last event in it.
    async fn log_snapshot(
        &self,
        repo: &Arc<Repo>,
        session: &SessionRow,
        checkpoint: Option<&Checkpoint>,
        seq: EventSeq,
    ) -> Result<(Option<String>, EventSeq)> {
        let before = self.services.store.checkpoints(session.workspace, None, MAX_SEARCHED).await?;
        let lost = self.lost(&session.tenant).await?;
        let trees: Vec<String> =
            checkpoint.iter().copied().chain(&before).map(|checkpoint| checkpoint.tree.clone()).collect();
        let (repo, session) = (repo.clone(), session.clone());
        blocking(move || {
            for text in trees {
                let Ok(tree) = TreeId::parse(&text) else { continue };
                if lost.contains(tree.pack_name()) {
                    continue;
                }
                let record = pack_log::read_record(&repo, &tree)?;
                let ours = record.filter(|record| pack_log::is_record_of(record, &session));
                if let Some(record) = ours.filter(|record| record.through <= seq) {
                    // If an earlier pack is lost, the manifest must hold the whole log.
                    let is_whole = lost.is_empty() || leads_back(&repo, &tree, &lost);
                    return Ok(if is_whole { (Some(text), record.through) } else { (None, 0) });
                }
            }
            Ok((None, 0))
        })
        .await
    }

    async fn lines(&self, session: &SessionRow, after: EventSeq, upto: EventSeq) -> Result<Vec<EventLine>> {
        let (mut lines, mut last) = (Vec::new(), after);
        while last < upto {
            let query = EventQuery { after: last, limit: PAGE, kinds: Vec::new() };
            let page = self.services.store.events(session.no, &query).await?;
            let Some(newest) = page.last() else { break };
            last = newest.seq;
            lines.extend(page.iter().filter(|event| event.seq <= upto).map(pack_log::event_line));
        }
        Ok(lines)
    }
}

/// What distinguishes sessions with the same id.
fn identity(record: &PackSessionRecord) -> (SessionId, Timestamp) {
    (record.session.clone(), record.created_at)
}

/// Whether packs lead from here back to the beginning of the log without a lost one.
fn leads_back(repo: &Repo, tree: &TreeId, lost: &HashSet<String>) -> bool {
    let (mut walked, mut next, mut session) = (HashSet::new(), Some(tree.clone()), None);
    while let Some(tree) = next.take() {
        if lost.contains(tree.pack_name()) {
            return false;
        }
        let Ok(record) = pack_log::read_record(repo, &tree) else { return false };
        let Some(record) =
            record.filter(|record| *session.get_or_insert_with(|| identity(record)) == identity(record))
        else {
            return true;
        };
        if record.after > 0 && walked.insert(tree.to_string()) {
            next = TreeId::parse(&record.previous).ok();
        }
    }
    true
}

fn manifest_checkpoint(repo: &Repo, checkpoint: &Checkpoint) -> ManifestCheckpoint {
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
