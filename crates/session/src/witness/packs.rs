//! The history of a session as packs tell it: from the newest back along `previous`, and what follows from the newest
//! pack being whole, which the log in it cannot say yet.

use super::records::Proof;
use crate::{
    Error, Result, blocking,
    far::{checkpoints, filled, folded},
    luggage,
    rooms::Rooms,
    state::{Phase, State},
};
use ash_model::{
    Consistency, Epoch, Event, Fact, Saved, Seq, Status, Witness,
    far::{FarCheckpoint, Manifest},
    luggage::{Line, Record},
};
use ash_snapshot::{Repo, TreeId};
use ash_store::Rebuilt;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

/// What packs hold of a session.
pub(crate) struct History {
    pub(crate) record: Record,
    tree: TreeId,
    lines: BTreeMap<Seq, Line>,
    /// The snapshot before the first pack of its own: a fork begins with it.
    first: Option<TreeId>,
}

impl History {
    pub(crate) async fn read(rooms: &Rooms, proof: &Proof, tenant: &ash_model::TenantId) -> Result<History> {
        let (repo, proof) = (rooms.repo(tenant)?, proof.clone());
        blocking(move || read(&repo, &proof)).await
    }

    /// Where the part of the log begins that is not its parent's.
    pub(crate) fn base(&self) -> Option<Seq> {
        let forked = self.lines.values().find(|line| line.kind == "forked")?;
        (forked.seq > 1).then(|| forked.seq - 1)
    }

    /// As rows. `base`: the parent is there, and has the events up to this one.
    pub(crate) async fn rebuilt(self, rooms: &Rooms, base: Option<Seq>, epoch: Epoch) -> Result<Rebuilt> {
        let History { record, tree, mut lines, first } = self;
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
        let manifest = Manifest {
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
            first,
            status: Status::Paused,
            title: None,
            last_text: None,
            turns: 0,
            created_at: record.created_at,
            last_active_at: record.at,
            checkpoint: None,
            chain: Some(tree.to_string()),
            covers: record.through,
            events: Vec::new(),
        };
        let (card, turns) = folded(&manifest, &events)?;
        let kept = held(repo, &events).await?;
        let mut checkpoints = checkpoints(&manifest, &events, &kept, now)?;
        checkpoints.iter_mut().for_each(|checkpoint| checkpoint.far = None);
        let agents = record.definition.into_iter().map(|agent| *agent).collect();
        let (node, witness) = (rooms.settings.node.clone(), Witness::Packs);
        let purged = None;
        Ok(Rebuilt { witness, purged, manifest, node, card, agents, events, turns, checkpoints, at: now })
    }
}

fn read(repo: &Repo, proof: &Proof) -> Result<History> {
    let none = || Error::Far(format!("session {}: its newest pack cannot be read", proof.session));
    let tree = TreeId::parse(&proof.tree).map_err(|_| none())?;
    let record = luggage::read(repo, &tree)?.ok_or_else(none)?;
    let (mut lines, mut first, mut seen) = (BTreeMap::new(), None, HashSet::new());
    let mut next = Some(tree.clone());
    while let Some(at) = next.take().filter(|at| seen.insert(at.clone())) {
        // What cannot be read is missing, and is said to be.
        let of = luggage::read(repo, &at).unwrap_or_else(|error| {
            tracing::warn!(session = %proof.session, %error, "a pack of its history cannot be read");
            None
        });
        let is_own = |of: &Record| of.session == record.session && of.created_at == record.created_at;
        let Some(of) = of.filter(is_own) else {
            first = Some(at);
            break;
        };
        let part = luggage::lines(repo, &at).unwrap_or_else(|error| {
            tracing::warn!(session = %proof.session, %error, "a part of its log cannot be read");
            Vec::new()
        });
        for line in part {
            lines.entry(line.seq).or_insert(line);
        }
        next = TreeId::parse(&of.previous).ok();
    }
    Ok(History { record, tree, lines, first })
}

/// The newest pack is whole, so its checkpoint was made, and a turn that rested is over.
fn conclusions(record: &Record, tree: &TreeId, own: &[Line], base: Option<Seq>) -> Result<Vec<Line>> {
    let mut state = State::new(base.unwrap_or(0));
    for line in own.iter().filter(|line| line.kind != "said") {
        let fact = Fact::decode(&line.kind, line.json.clone())
            .map_err(|error| Error::Far(format!("event {} cannot be read: {error}", line.seq)))?;
        state.apply(line.seq, &fact);
    }
    let known = |line: &Line| match Fact::decode(&line.kind, line.json.clone()) {
        Ok(Fact::Saved(saved)) => saved.tree == tree.as_str(),
        Ok(_) | Err(_) => false,
    };
    if own.iter().filter(|line| line.kind == "saved").any(known) {
        return Ok(Vec::new());
    }
    let current = state.current().filter(|turn| Some(turn.id) == record.turn);
    let rested = current.and_then(|turn| match &turn.phase {
        Phase::Saving { how, problem, .. } => Some((turn.id, *how, problem.clone())),
        Phase::Queued | Phase::Running { .. } | Phase::Cut | Phase::Joined { .. } => None,
    });
    let saved = Saved {
        number: record.checkpoint,
        turn: record.turn,
        tree: tree.to_string(),
        // How still the sandbox was is not known any more.
        consistency: Consistency::Live,
        files: 0,
        bytes: 0,
        skipped: Vec::new(),
        salvage: false,
        mid_turn: record.turn.is_some() && rested.is_none(),
        beside: Vec::new(),
        back: None,
        unsaved: Vec::new(),
        unsaved_more: 0,
    };
    let mut facts = vec![(record.turn, Fact::Saved(saved))];
    facts.extend(rested.map(|(turn, how, problem)| {
        (Some(turn), Fact::Finished { turn, how, checkpoint: Some(record.checkpoint), problem })
    }));
    let seqs = record.through + 1..;
    let line =
        |(seq, (turn, fact)): (Seq, (_, Fact))| luggage::line(&Event { seq, turn, at: record.at, fact });
    Ok(seqs.zip(facts).map(line).collect())
}

/// The checkpoint that a fork began with.
fn begun_with(tree: &TreeId, base: Seq, record: &Record) -> Vec<FarCheckpoint> {
    let first = FarCheckpoint {
        number: 1,
        turn: None,
        seq: base,
        tree: tree.to_string(),
        size: 0,
        consistency: Consistency::Live,
        salvage: false,
        mid_turn: false,
        files: 0,
        bytes: 0,
        skipped: None,
        unsettled: None,
        beside: Vec::new(),
        back: None,
        at: record.created_at,
    };
    vec![first]
}

/// At which events there is a checkpoint whose files are here and were not given up.
async fn held(repo: Arc<Repo>, events: &[Line]) -> Result<BTreeSet<Seq>> {
    let mut saved: Vec<(Seq, String)> = Vec::new();
    for line in events.iter().filter(|line| line.kind == "saved") {
        if let Ok(Fact::Saved(one)) = Fact::decode(&line.kind, line.json.clone()) {
            saved.push((line.seq, one.tree));
        }
    }
    blocking(move || {
        let forgotten = repo.forgotten()?;
        let is_held = |tree: &str| {
            TreeId::parse(tree).is_ok_and(|tree| !forgotten.contains(&tree) && repo.holds(&tree))
        };
        Ok(saved.into_iter().filter(|(_, tree)| is_held(tree)).map(|(seq, _)| seq).collect())
    })
    .await
}
