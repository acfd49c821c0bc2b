//! What the database says beside what a listing shows.

use super::pack_graph::PackGraph;
use ash_model::{AgentName, EventSeq, SessionId, SessionRowId};
use ash_snapshot::Repo;
use ash_store::{
    RemoteCheckpoint, RemoteRetraction, RemoteSession, RemoteState, RetractedAgent, RetractedLog,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// What a tenant has there. Objects that are shorter than what was sent are left out, but for packs.
#[derive(Debug, Default)]
pub(super) struct TenantObjectListing {
    pub(super) packs: HashMap<String, u64>,
    /// Up to which events they go.
    pub(super) manifests: HashMap<SessionId, BTreeSet<EventSeq>>,
    /// Versions, each with the number of its changes.
    pub(super) agents: HashMap<AgentName, BTreeSet<(u64, u64)>>,
}

impl TenantObjectListing {
    /// Packs that are there whole.
    fn whole_packs(&self, said: &RemoteState) -> HashSet<&str> {
        let is_whole =
            |(pack, size): &(&String, &u64)| said.packs.get(*pack).is_none_or(|said| **size >= *said);
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

    /// Up to which event a session's log is there.
    fn log(&self, session: &RemoteSession) -> EventSeq {
        self.manifests.get(&session.id).and_then(BTreeSet::last).copied().unwrap_or(0)
    }

    fn has_manifest(&self, session: &RemoteSession, checkpoint: &RemoteCheckpoint) -> bool {
        let Some(there) = self.manifests.get(&session.id) else { return false };
        // What a fork began with is in each of its manifests.
        let is_first = session.base.is_some_and(|base| checkpoint.seq <= base.seq);
        if is_first { !there.is_empty() } else { there.contains(&checkpoint.seq) }
    }

    /// A fork shares its parent's log, and that one its own parent's.
    fn has_parents(&self, session: &RemoteSession, all: &HashMap<SessionRowId, &RemoteSession>) -> bool {
        let mut next = session.base;
        // No line of forks is longer than there are sessions.
        for _ in 0..=all.len() {
            let Some(base) = next else { return true };
            // One that was purged has left its log to its forks.
            let Some(parent) = all.get(&base.parent) else { return true };
            if self.log(parent) < base.seq {
                return false;
            }
            next = parent.base;
        }
        true
    }
}

/// What is to be taken back, and the packs that are needed and neither here nor there.
pub(super) fn compare(
    repo: &Repo,
    said: &RemoteState,
    listing: &TenantObjectListing,
) -> (RemoteRetraction, BTreeSet<String>) {
    let there = listing.whole_packs(said);
    let claimed = said.packs.keys().chain(&said.missing).map(String::as_str);
    let missing: BTreeSet<&str> = claimed.filter(|pack| !there.contains(pack)).collect();
    let mut retraction = RemoteRetraction::default();
    // Mostly nothing is missing, and then no pack is read.
    let mut graph = (!missing.is_empty()).then(|| PackGraph::new(repo, &there, &said.missing));
    compare_agents(said, listing, &mut graph, &mut retraction);
    compare_sessions(said, listing, &mut graph, &mut retraction);
    let mut lost = BTreeSet::new();
    if let Some(mut graph) = graph {
        said.waiting.iter().for_each(|tree| _ = graph.is_restorable(tree));
        retraction.packs = said.packs.keys().filter(|pack| !graph.is_intact(pack)).cloned().collect();
        let gone = missing.iter().filter(|pack| repo.pack_file(pack).is_none());
        lost = gone.filter(|pack| graph.may_be_needed(pack)).map(|pack| (*pack).to_owned()).collect();
    }
    let is_missing =
        |pack: &str| missing.contains(pack) && (lost.contains(pack) || repo.pack_file(pack).is_some());
    let new = missing.iter().filter(|pack| !said.missing.contains(**pack));
    retraction.missing = new.filter(|pack| is_missing(pack)).map(|pack| (*pack).to_owned()).collect();
    retraction.not_missing = said.missing.iter().filter(|pack| !is_missing(pack)).cloned().collect();
    (retraction, lost)
}

fn compare_agents(
    said: &RemoteState,
    listing: &TenantObjectListing,
    graph: &mut Option<PackGraph<'_>>,
    retraction: &mut RemoteRetraction,
) {
    for agent in &said.agents {
        let told = listing.has_agent(&agent.name, agent.version, agent.changes);
        let whole = graph.as_mut().is_none_or(|graph| graph.is_restorable(&agent.tree));
        if !told || !whole {
            retraction.agents.push(RetractedAgent { name: agent.name.clone(), version: agent.version });
        }
    }
}

/// A session is nothing without its agent, nor a fork without its parent's log.
fn compare_sessions(
    said: &RemoteState,
    listing: &TenantObjectListing,
    graph: &mut Option<PackGraph<'_>>,
    retraction: &mut RemoteRetraction,
) {
    let all: HashMap<SessionRowId, &RemoteSession> =
        said.sessions.iter().map(|session| (session.no, session)).collect();
    let agents: HashSet<(AgentName, u32)> =
        retraction.agents.iter().map(|agent| (agent.name.clone(), agent.version)).collect();
    for session in &said.sessions {
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
            // Asked in any case: what it needs is needed, wherever it is.
            let whole = graph.as_mut().is_none_or(|graph| graph.is_restorable(&checkpoint.tree));
            if !founded || !whole || !listing.has_manifest(session, checkpoint) {
                retraction.checkpoints.push(checkpoint.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
