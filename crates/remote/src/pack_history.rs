//! The history of a session according to its packs: from the newest one back along `previous`. If the newest pack is
//! whole, its checkpoint was made. The log in the pack ends before that event, so the missing events are derived here.

use crate::{
    Error, FoldLog, PackProof, RemoteServices, Result, SavingTurn, blocking, pack_log,
    rows::{checkpoints, events, filled, folded, last_options},
};
use ash_model::{
    CaptureConsistency, Epoch, Event, EventSeq, Fact, HistorySource, SavedCheckpoint, SessionStatus,
    embedded_log::{EventLine, PackSessionRecord},
    remote::{ManifestCheckpoint, SessionManifest},
};
use ash_snapshot::{Repo, TreeId};
use ash_store::RebuiltSession;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

/// What packs hold of a session.
pub struct PackHistory {
    pub record: PackSessionRecord,
    tree: TreeId,
    lines: BTreeMap<EventSeq, EventLine>,
    /// The snapshot before its own first pack, with which a fork begins.
    first: Option<TreeId>,
}

impl PackHistory {
    pub async fn read(
        services: &RemoteServices,
        proof: &PackProof,
        tenant: &ash_model::TenantId,
    ) -> Result<PackHistory> {
        let (repo, proof) = (services.repo(tenant)?, proof.clone());
        blocking(move || read(&repo, &proof)).await
    }

    /// The last event that a fork shares with its parent.
    pub fn base(&self) -> Option<EventSeq> {
        let forked = self.lines.values().find(|line| line.kind == "forked")?;
        (forked.seq > 1).then(|| forked.seq - 1)
    }

    /// The history as rows of the database. `base`: the parent exists, and has the events up to this one.
    pub async fn rebuilt(
        self,
        services: &RemoteServices,
        base: Option<EventSeq>,
        epoch: Epoch,
    ) -> Result<RebuiltSession> {
        let PackHistory { record, tree, mut lines, first } = self;
        let (repo, now) = (services.repo(&record.tenant)?, services.clock());
        lines.retain(|seq, _| *seq > base.unwrap_or(0));
        let mut events = filled(lines, (base.unwrap_or(0), record.through), record.at);
        let own = events.clone();
        events.extend(conclusions(services.fold_log, &record, &tree, &own, base)?);
        let options = last_options(&events);
        let seq = events.last().map_or(record.through, |line| line.seq);
        let first = match (base, first) {
            (Some(base), Some(tree)) => initial_checkpoints(&tree, base, &record),
            (Some(_), None) | (None, _) => Vec::new(),
        };
        let manifest = SessionManifest {
            tenant: record.tenant.clone(),
            session: record.session.clone(),
            workspace: record.workspace,
            slug: record.slug.clone(),
            unnamed: false,
            epoch,
            seq,
            agent: ash_model::AgentName::parse(&record.agent)
                .map_err(|error| Error::Damaged(format!("session {}: {error}", record.session)))?,
            version: record.version,
            runtime: record.runtime,
            native_id: record.native_id,
            options: options.unwrap_or_else(|| record.options.clone()),
            env: record.env.clone(),
            secrets: record.secrets.clone(),
            parent: record.parent.clone(),
            base,
            owner: record.owner.clone(),
            metadata: record.metadata.clone(),
            initial_checkpoints: first,
            status: SessionStatus::Paused,
            title: None,
            last_text: None,
            turns: 0,
            created_at: record.created_at,
            last_active_at: record.at,
            checkpoint: None,
            log_snapshot: Some(tree.to_string()),
            packed_through: record.through,
            events: Vec::new(),
        };
        let (summary, turns) = folded(services.fold_log, &manifest, &events)?;
        let kept = restorable(repo, &events).await?;
        let mut checkpoints = checkpoints(&manifest, &events, &kept, now)?;
        checkpoints.iter_mut().for_each(|checkpoint| checkpoint.uploaded_at = None);
        let agents = record.definition.into_iter().map(|agent| *agent).collect();
        let (node, witness) = (services.node.clone(), HistorySource::Packs);
        let purged = None;
        Ok(RebuiltSession {
            witness,
            purged,
            manifest,
            node,
            summary,
            agents,
            events,
            turns,
            checkpoints,
            at: now,
        })
    }
}

fn read(repo: &Repo, proof: &PackProof) -> Result<PackHistory> {
    let none = || Error::Damaged(format!("session {}: its newest pack cannot be read", proof.session));
    let tree = TreeId::parse(&proof.tree).map_err(|_| none())?;
    let record = pack_log::read_record(repo, &tree)?.ok_or_else(none)?;
    let (mut lines, mut first, mut seen) = (BTreeMap::new(), None, HashSet::new());
    let mut next = Some(tree.clone());
    while let Some(at) = next.take().filter(|at| seen.insert(at.clone())) {
        // The events of an unreadable pack become `missing`.
        let of = pack_log::read_record(repo, &at).unwrap_or_else(|error| {
            tracing::warn!(session = %proof.session, %error, "a pack of the session's history cannot be read");
            None
        });
        let is_own =
            |of: &PackSessionRecord| of.session == record.session && of.created_at == record.created_at;
        let Some(of) = of.filter(is_own) else {
            first = Some(at);
            break;
        };
        let part = pack_log::read_events(repo, &at).unwrap_or_else(|error| {
            tracing::warn!(session = %proof.session, %error, "a part of the session's log cannot be read");
            Vec::new()
        });
        for line in part {
            lines.entry(line.seq).or_insert(line);
        }
        next = TreeId::parse(&of.previous).ok();
    }
    Ok(PackHistory { record, tree, lines, first })
}

/// The events that follow from a whole newest pack: its checkpoint was made, and the turn that waited for it is over.
fn conclusions(
    fold_log: FoldLog,
    record: &PackSessionRecord,
    tree: &TreeId,
    own: &[EventLine],
    base: Option<EventSeq>,
) -> Result<Vec<EventLine>> {
    let events = events(&record.session, own)?;
    let known = |line: &EventLine| match Fact::decode(&line.kind, line.json.clone()) {
        Ok(Fact::Saved(saved)) => saved.tree == tree.as_str(),
        Ok(_) | Err(_) => false,
    };
    if own.iter().filter(|line| line.kind == "saved").any(known) {
        return Ok(Vec::new());
    }
    let saving = fold_log(base.unwrap_or(0), &events).saving;
    let saving = saving.filter(|saving| Some(saving.turn) == record.turn);
    let saved = SavedCheckpoint {
        number: record.checkpoint,
        turn: record.turn,
        tree: tree.to_string(),
        // It is unknown whether the sandbox was frozen, so assume that it was not.
        consistency: CaptureConsistency::Live,
        files: 0,
        bytes: 0,
        skipped: Vec::new(),
        salvage: false,
        mid_turn: record.turn.is_some() && saving.is_none(),
        concurrent_turns: Vec::new(),
        rewound_to: None,
        unsaved: Vec::new(),
        unsaved_more: 0,
    };
    let mut facts = vec![(record.turn, Fact::Saved(saved))];
    facts.extend(saving.map(|SavingTurn { turn, outcome, problem }| {
        (Some(turn), Fact::Finished { turn, outcome, checkpoint: Some(record.checkpoint), problem })
    }));
    let seqs = record.through + 1..;
    let line = |(seq, (turn, fact)): (EventSeq, (_, Fact))| {
        pack_log::event_line(&Event { seq, turn, at: record.at, fact })
    };
    Ok(seqs.zip(facts).map(line).collect())
}

/// The checkpoints that a fork began with.
fn initial_checkpoints(tree: &TreeId, base: EventSeq, record: &PackSessionRecord) -> Vec<ManifestCheckpoint> {
    let first = ManifestCheckpoint {
        number: 1,
        turn: None,
        seq: base,
        tree: tree.to_string(),
        size: 0,
        consistency: CaptureConsistency::Live,
        salvage: false,
        mid_turn: false,
        files: 0,
        bytes: 0,
        skipped: None,
        unsettled: None,
        concurrent_turns: Vec::new(),
        rewound_to: None,
        at: record.created_at,
    };
    vec![first]
}

/// The events of checkpoints whose files exist here and were not discarded.
async fn restorable(repo: Arc<Repo>, events: &[EventLine]) -> Result<BTreeSet<EventSeq>> {
    let mut saved: Vec<(EventSeq, String)> = Vec::new();
    for line in events.iter().filter(|line| line.kind == "saved") {
        if let Ok(Fact::Saved(one)) = Fact::decode(&line.kind, line.json.clone()) {
            saved.push((line.seq, one.tree));
        }
    }
    blocking(move || {
        let discarded = repo.discarded()?;
        let is_restorable = |tree: &str| {
            TreeId::parse(tree).is_ok_and(|tree| !discarded.contains(&tree) && repo.contains(&tree))
        };
        Ok(saved.into_iter().filter(|(_, tree)| is_restorable(tree)).map(|(seq, _)| seq).collect())
    })
    .await
}
