//! Compares what the database says with a listing of the bucket. Pure, apart from reading packs.

use super::pack_graph::PackGraph;
use ash_model::{AgentName, EventSeq, SessionId, SessionRowId};
use ash_snapshot::Repo;
use ash_store::{
    RemoteCheckpoint, RemoteRetraction, RemoteSession, RemoteState, RetractedAgent, RetractedLog,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// A tenant's objects in the bucket. Objects other than packs are left out if they are shorter than what was sent.
#[derive(Debug, Default)]
pub(crate) struct TenantObjectListing {
    pub(crate) packs: HashMap<String, u64>,
    /// The sequence numbers of the last events of each session's manifests.
    pub(crate) manifests: HashMap<SessionId, BTreeSet<EventSeq>>,
    /// Versions, each with the number of its changes.
    pub(crate) agents: HashMap<AgentName, BTreeSet<(u64, u64)>>,
}

impl TenantObjectListing {
    /// Packs that are in the bucket with their full size.
    fn whole_packs(&self, recorded: &RemoteState) -> HashSet<&str> {
        let is_whole = |(pack, size): &(&String, &u64)| {
            recorded.packs.get(*pack).is_none_or(|recorded| **size >= *recorded)
        };
        self.packs.iter().filter(is_whole).map(|(pack, _)| pack.as_str()).collect()
    }

    fn has_agent(&self, name: &AgentName, version: u32, changes: Option<u64>) -> bool {
        let Some(there) = self.agents.get(name) else { return false };
        let version = u64::from(version);
        match changes {
            Some(changes) => there.contains(&(version, changes)),
            None => there.range((version, 0)..=(version, u64::MAX)).next().is_some(),
        }
    }

    /// The event up to which a session's log is in the bucket.
    fn log(&self, session: &RemoteSession) -> EventSeq {
        self.manifests.get(&session.id).and_then(BTreeSet::last).copied().unwrap_or(0)
    }

    fn has_manifest(&self, session: &RemoteSession, checkpoint: &RemoteCheckpoint) -> bool {
        let Some(there) = self.manifests.get(&session.id) else { return false };
        // Each manifest of a fork holds the checkpoint that the fork began with.
        let is_first = session.base.is_some_and(|base| checkpoint.seq <= base.seq);
        if is_first { !there.is_empty() } else { there.contains(&checkpoint.seq) }
    }

    /// Whether the parents' logs are in the bucket. A fork shares its parent's log, and the parent in turn its own
    /// parent's.
    fn has_parents(&self, session: &RemoteSession, all: &HashMap<SessionRowId, &RemoteSession>) -> bool {
        let mut next = session.base;
        // There are at most as many generations of forks as sessions.
        for _ in 0..=all.len() {
            let Some(base) = next else { return true };
            // A purged parent has passed its log to its forks.
            let Some(parent) = all.get(&base.parent) else { return true };
            if self.log(parent) < base.seq {
                return false;
            }
            next = parent.base;
        }
        true
    }
}

/// What must be retracted, and the packs that are needed and that neither this machine nor the bucket has.
pub(crate) fn compare(
    repo: &Repo,
    recorded: &RemoteState,
    listing: &TenantObjectListing,
) -> (RemoteRetraction, BTreeSet<String>) {
    let there = listing.whole_packs(recorded);
    let claimed = recorded.packs.keys().chain(&recorded.missing).map(String::as_str);
    let missing: BTreeSet<&str> = claimed.filter(|pack| !there.contains(pack)).collect();
    let mut retraction = RemoteRetraction::default();
    // Usually nothing is missing, and then no pack is read.
    let mut graph = (!missing.is_empty()).then(|| PackGraph::new(repo, &there, &recorded.missing));
    compare_agents(recorded, listing, &mut graph, &mut retraction);
    compare_sessions(recorded, listing, &mut graph, &mut retraction);
    let mut lost = BTreeSet::new();
    if let Some(mut graph) = graph {
        recorded.waiting.iter().for_each(|tree| _ = graph.is_restorable(tree));
        retraction.packs = recorded.packs.keys().filter(|pack| !graph.is_intact(pack)).cloned().collect();
        let gone = missing.iter().filter(|pack| repo.pack_file(pack).is_none());
        lost = gone.filter(|pack| graph.may_be_needed(pack)).map(|pack| (*pack).to_owned()).collect();
    }
    let is_missing =
        |pack: &str| missing.contains(pack) && (lost.contains(pack) || repo.pack_file(pack).is_some());
    let new = missing.iter().filter(|pack| !recorded.missing.contains(**pack));
    retraction.missing = new.filter(|pack| is_missing(pack)).map(|pack| (*pack).to_owned()).collect();
    retraction.not_missing = recorded.missing.iter().filter(|pack| !is_missing(pack)).cloned().collect();
    (retraction, lost)
}

fn compare_agents(
    recorded: &RemoteState,
    listing: &TenantObjectListing,
    graph: &mut Option<PackGraph<'_>>,
    retraction: &mut RemoteRetraction,
) {
    for agent in &recorded.agents {
        let has_object = listing.has_agent(&agent.name, agent.version, agent.changes);
        let is_restorable = graph.as_mut().is_none_or(|graph| graph.is_restorable(&agent.tree));
        if !has_object || !is_restorable {
            retraction.agents.push(RetractedAgent { name: agent.name.clone(), version: agent.version });
        }
    }
}

/// A session cannot be restored without its agent, nor a fork without its parent's log.
fn compare_sessions(
    recorded: &RemoteState,
    listing: &TenantObjectListing,
    graph: &mut Option<PackGraph<'_>>,
    retraction: &mut RemoteRetraction,
) {
    let all: HashMap<SessionRowId, &RemoteSession> =
        recorded.sessions.iter().map(|session| (session.no, session)).collect();
    let agents: HashSet<(AgentName, u32)> =
        retraction.agents.iter().map(|agent| (agent.name.clone(), agent.version)).collect();
    for session in &recorded.sessions {
        let log = listing.log(session);
        if log < session.seq {
            retraction.logs.push(RetractedLog {
                session: session.no,
                claimed_seq: session.seq,
                actual_seq: log,
            });
        }
        let founded =
            !agents.contains(&(session.agent.clone(), session.version)) && listing.has_parents(session, &all);
        for checkpoint in &session.checkpoints {
            // Always evaluated, because it also notes which packs are needed.
            let is_restorable = graph.as_mut().is_none_or(|graph| graph.is_restorable(&checkpoint.tree));
            if !founded || !is_restorable || !listing.has_manifest(session, checkpoint) {
                retraction.checkpoints.push(checkpoint.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
