//! The history of a session as packs tell it: from the newest back along `previous`, and what follows from the newest
//! pack being whole, which the log in it cannot say yet.

use super::pack_proofs::PackProof;
use crate::{
    Error, Result, blocking, embedded_log,
    machine::{LogState, TurnPhase},
    remote::{checkpoints, filled, folded},
    services::Services,
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
pub(crate) struct PackHistory {
    pub(crate) record: PackSessionRecord,
    tree: TreeId,
    lines: BTreeMap<EventSeq, EventLine>,
    /// The snapshot before the first pack of its own: a fork begins with it.
    first: Option<TreeId>,
}

impl PackHistory {
    pub(crate) async fn read(
        rooms: &Services,
        proof: &PackProof,
        tenant: &ash_model::TenantId,
    ) -> Result<PackHistory> {
        let (repo, proof) = (rooms.repo(tenant)?, proof.clone());
        blocking(move || read(&repo, &proof)).await
    }

    /// Where the part of the log begins that is not its parent's.
    pub(crate) fn base(&self) -> Option<EventSeq> {
        let forked = self.lines.values().find(|line| line.kind == "forked")?;
        (forked.seq > 1).then(|| forked.seq - 1)
    }

    /// As rows. `base`: the parent is there, and has the events up to this one.
    pub(crate) async fn rebuilt(
        self,
        rooms: &Services,
        base: Option<EventSeq>,
        epoch: Epoch,
    ) -> Result<RebuiltSession> {
        let PackHistory { record, tree, mut lines, first } = self;
        let (repo, now) = (rooms.repo(&record.tenant)?, rooms.clock());
        lines.retain(|seq, _| *seq > base.unwrap_or(0));
        let mut events = filled(lines, (base.unwrap_or(0), record.through), record.at);
        let own = events.clone();
        events.extend(conclusions(&record, &tree, &own, base)?);
        let options = events.iter().rev().find(|line| line.kind == "configured").and_then(|line| {
            match Fact::decode(&line.kind, line.json.clone()) {
                Ok(Fact::Configured { options, .. }) => Some(options),
                Ok(_) | Err(_) => None,
            }
        });
        let seq = events.last().map_or(record.through, |line| line.seq);
        let first = match (base, first) {
            (Some(base), Some(tree)) => begun_with(&tree, base, &record),
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
                .map_err(|error| Error::Far(format!("session {}: {error}", record.session)))?,
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
        let (card, turns) = folded(&manifest, &events)?;
        let kept = held(repo, &events).await?;
        let mut checkpoints = checkpoints(&manifest, &events, &kept, now)?;
        checkpoints.iter_mut().for_each(|checkpoint| checkpoint.uploaded_at = None);
        let agents = record.definition.into_iter().map(|agent| *agent).collect();
        let (node, witness) = (rooms.settings.node.clone(), HistorySource::Packs);
        let purged = None;
        Ok(RebuiltSession {
            witness,
            purged,
            manifest,
            node,
            summary: card,
            agents,
            events,
            turns,
            checkpoints,
            at: now,
        })
    }
}

fn read(repo: &Repo, proof: &PackProof) -> Result<PackHistory> {
    let none = || Error::Far(format!("session {}: its newest pack cannot be read", proof.session));
    let tree = TreeId::parse(&proof.tree).map_err(|_| none())?;
    let record = embedded_log::read(repo, &tree)?.ok_or_else(none)?;
    let (mut lines, mut first, mut seen) = (BTreeMap::new(), None, HashSet::new());
    let mut next = Some(tree.clone());
    while let Some(at) = next.take().filter(|at| seen.insert(at.clone())) {
        // What cannot be read is missing, and is said to be.
        let of = embedded_log::read(repo, &at).unwrap_or_else(|error| {
            tracing::warn!(session = %proof.session, %error, "a pack of its history cannot be read");
            None
        });
        let is_own =
            |of: &PackSessionRecord| of.session == record.session && of.created_at == record.created_at;
        let Some(of) = of.filter(is_own) else {
            first = Some(at);
            break;
        };
        let part = embedded_log::lines(repo, &at).unwrap_or_else(|error| {
            tracing::warn!(session = %proof.session, %error, "a part of its log cannot be read");
            Vec::new()
        });
        for line in part {
            lines.entry(line.seq).or_insert(line);
        }
        next = TreeId::parse(&of.previous).ok();
    }
    Ok(PackHistory { record, tree, lines, first })
}

/// The newest pack is whole, so its checkpoint was made, and a turn that rested is over.
fn conclusions(
    record: &PackSessionRecord,
    tree: &TreeId,
    own: &[EventLine],
    base: Option<EventSeq>,
) -> Result<Vec<EventLine>> {
    let mut state = LogState::new(base.unwrap_or(0));
    for line in own.iter().filter(|line| line.kind != "said") {
        let fact = Fact::decode(&line.kind, line.json.clone())
            .map_err(|error| Error::Far(format!("event {} cannot be read: {error}", line.seq)))?;
        state.apply(line.seq, &fact);
    }
    let known = |line: &EventLine| match Fact::decode(&line.kind, line.json.clone()) {
        Ok(Fact::Saved(saved)) => saved.tree == tree.as_str(),
        Ok(_) | Err(_) => false,
    };
    if own.iter().filter(|line| line.kind == "saved").any(known) {
        return Ok(Vec::new());
    }
    let current = state.current().filter(|turn| Some(turn.id) == record.turn);
    let rested = current.and_then(|turn| match &turn.phase {
        TurnPhase::Saving { how, problem, .. } => Some((turn.id, *how, problem.clone())),
        TurnPhase::Queued | TurnPhase::Running { .. } | TurnPhase::Cut | TurnPhase::Joined { .. } => None,
    });
    let saved = SavedCheckpoint {
        number: record.checkpoint,
        turn: record.turn,
        tree: tree.to_string(),
        // How still the sandbox was is not known any more.
        consistency: CaptureConsistency::Live,
        files: 0,
        bytes: 0,
        skipped: Vec::new(),
        salvage: false,
        mid_turn: record.turn.is_some() && rested.is_none(),
        concurrent_turns: Vec::new(),
        rewound_to: None,
        unsaved: Vec::new(),
        unsaved_more: 0,
    };
    let mut facts = vec![(record.turn, Fact::Saved(saved))];
    facts.extend(rested.map(|(turn, how, problem)| {
        (Some(turn), Fact::Finished { turn, outcome: how, checkpoint: Some(record.checkpoint), problem })
    }));
    let seqs = record.through + 1..;
    let line = |(seq, (turn, fact)): (EventSeq, (_, Fact))| {
        embedded_log::line(&Event { seq, turn, at: record.at, fact })
    };
    Ok(seqs.zip(facts).map(line).collect())
}

/// The checkpoint that a fork began with.
fn begun_with(tree: &TreeId, base: EventSeq, record: &PackSessionRecord) -> Vec<ManifestCheckpoint> {
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

/// At which events there is a checkpoint whose files are here and were not given up.
async fn held(repo: Arc<Repo>, events: &[EventLine]) -> Result<BTreeSet<EventSeq>> {
    let mut saved: Vec<(EventSeq, String)> = Vec::new();
    for line in events.iter().filter(|line| line.kind == "saved") {
        if let Ok(Fact::Saved(one)) = Fact::decode(&line.kind, line.json.clone()) {
            saved.push((line.seq, one.tree));
        }
    }
    blocking(move || {
        let forgotten = repo.discarded()?;
        let is_held = |tree: &str| {
            TreeId::parse(tree).is_ok_and(|tree| !forgotten.contains(&tree) && repo.contains(&tree))
        };
        Ok(saved.into_iter().filter(|(_, tree)| is_held(tree)).map(|(seq, _)| seq).collect())
    })
    .await
}
