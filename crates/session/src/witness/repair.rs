//! `ash repair`: what the database does not know, or knows less of than a witness, comes back from packs and from the
//! object store. Nothing is deleted; live trees of workspaces that nobody knows are put aside.

use super::{
    DatabaseComparison,
    adopt::{WitnessPosition, note_adoption, reconcile},
};
use crate::{Result, Sessions, services::Services};
use ash_model::{Epoch, EventSeq, HistorySource, SessionId, TenantId, WorkspaceId};
use ash_remote::{PackHistory, PackProof, RemoteHistory, WitnessRefresh};
use ash_store::{AccessScope, SessionRow};
use std::collections::BTreeMap;

/// Longer lines of forks than any have.
const MAX_GENERATIONS: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairMode {
    /// Only says what would be done.
    DryRun,
    Apply,
}

/// A session that comes back, or would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairedSession {
    pub tenant: TenantId,
    pub session: SessionId,
    pub witness: HistorySource,
    /// Up to where the database had it; `None`: not at all.
    pub known: Option<EventSeq>,
    pub proven: EventSeq,
    /// Why it did not come back.
    pub failed: Option<String>,
}

impl Sessions {
    /// All that witnesses know better. Run it only while no server is at work.
    pub async fn repair(&self, how: RepairMode) -> Result<(Vec<RepairedSession>, Vec<WorkspaceId>)> {
        let DatabaseComparison { behind, .. } = self.compare_witnesses().await?;
        let mut plan: BTreeMap<(TenantId, SessionId), RepairedSession> = BTreeMap::new();
        for (tenant, found) in behind {
            let (session, known, proven) = (found.session, found.known, found.proven);
            let one = RepairedSession {
                tenant: tenant.clone(),
                session: session.clone(),
                witness: found.witness,
                known,
                proven,
                failed: None,
            };
            plan.insert((tenant, session), one);
        }
        for one in self.only_far().await? {
            plan.entry((one.tenant.clone(), one.session.clone())).or_insert(one);
        }
        let mut all: Vec<RepairedSession> = plan.into_values().collect();
        if how == RepairMode::Apply {
            for one in &mut all {
                if let Err(error) = Box::pin(self.bring_back_one(one)).await {
                    tracing::error!(session = %one.session, tenant = %one.tenant, %error, "the session could not be brought back");
                    one.failed = Some(error.to_string());
                }
            }
        }
        // What came back, or would, is the owner of its tree.
        let mut orphans = self.orphans().await?;
        if how == RepairMode::DryRun {
            for one in &all {
                let owned = self.workspace_of(one).await?;
                orphans.retain(|workspace| Some(*workspace) != owned);
            }
        }
        Ok((all, orphans))
    }

    async fn workspace_of(&self, one: &RepairedSession) -> Result<Option<WorkspaceId>> {
        if let Some(proof) = self.proof(&one.tenant, &one.session).await? {
            return Ok(Some(proof.workspace));
        }
        let Some(far) = &self.rooms().replicator else { return Ok(None) };
        let known = far.known_session(&one.tenant, &one.session).await?.session();
        Ok(known.map(|known| known.manifest.workspace))
    }

    /// Sessions that the object store has and the database does not know.
    async fn only_far(&self) -> Result<Vec<RepairedSession>> {
        let rooms = self.rooms();
        let Some(far) = &rooms.replicator else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for tenant in far.tenants().await? {
            let rows = rooms.rows(&tenant).await?;
            for (session, (_, proven)) in far.newest_names(&tenant).await? {
                let unknown = !rows.contains_key(&session);
                if unknown && far.known_session(&tenant, &session).await?.session().is_some() {
                    let (tenant, witness) = (tenant.clone(), HistorySource::Bucket);
                    found.push(RepairedSession {
                        tenant,
                        session,
                        witness,
                        known: None,
                        proven,
                        failed: None,
                    });
                }
            }
        }
        Ok(found)
    }

    async fn bring_back_one(&self, one: &RepairedSession) -> Result<()> {
        let (rooms, scope) = (self.rooms(), AccessScope::all(&one.tenant));
        if rooms.store.find_session(&scope, &one.session).await?.is_none() {
            let there = match &rooms.replicator {
                Some(far) => far.known_session(&one.tenant, &one.session).await?,
                None => RemoteHistory::Nothing,
            };
            match (there, &rooms.replicator) {
                (RemoteHistory::Of(_), Some(far)) => drop(far.bring_back(&scope, &one.session).await?),
                (RemoteHistory::Of(_) | RemoteHistory::Nothing | RemoteHistory::Purged(_), _) => {
                    self.rebuild_from_packs(&one.tenant, &one.session).await?;
                }
            }
        }
        // One of several witnesses may know still more.
        match rooms.store.find_session(&scope, &one.session).await? {
            Some(session) => Box::pin(reconcile(rooms, session)).await.map(drop),
            None => Ok(()),
        }
    }

    /// Parents first: a fork shares their log. Of one that was purged no pack tells, unless it is in the trash.
    async fn rebuild_from_packs(&self, tenant: &TenantId, id: &SessionId) -> Result<()> {
        let rooms = self.rooms();
        let mut line: Vec<(PackProof, PackHistory)> = Vec::new();
        let mut next = Some(id.clone());
        while let Some(id) = next.take().filter(|_| line.len() < MAX_GENERATIONS) {
            if had_id(rooms, tenant, &id, line.last()).await?.is_some() {
                break;
            }
            let Some(proof) = self.proof(tenant, &id).await? else { break };
            let history = PackHistory::read(&rooms.remote, &proof, tenant).await?;
            next = history.base().and(history.record.parent.clone());
            line.push((proof, history));
        }
        for (proof, history) in line.into_iter().rev() {
            let parent = match &history.record.parent {
                Some(parent) => rooms.store.session_then(tenant, parent, history.record.created_at).await?,
                None => None,
            };
            let base = history.base().filter(|base| parent.is_some_and(|parent| parent.last_seq >= *base));
            let upto = WitnessPosition::of(&proof, &history.record);
            let mut rebuilt = history.rebuilt(&rooms.remote, base, proof.epoch.unwrap_or(Epoch(1))).await?;
            note_adoption(&mut rebuilt, upto, None);
            rooms.store.rebuild(rebuilt).await?;
        }
        Ok(())
    }

    async fn proof(&self, tenant: &TenantId, id: &SessionId) -> Result<Option<PackProof>> {
        let of = self.rooms().witnesses.of(tenant, WitnessRefresh::Once).await?;
        let of = of.lock();
        Ok(of.packs.newest_of(id).filter(|proof| !of.is_buried(proof)).cloned())
    }
}

/// A session with this id, as whoever has it now, or as the parent of a fork.
async fn had_id(
    rooms: &Services,
    tenant: &TenantId,
    id: &SessionId,
    fork: Option<&(PackProof, PackHistory)>,
) -> Result<Option<SessionRow>> {
    Ok(match fork {
        None => rooms.store.find_session(&AccessScope::all(tenant), id).await?,
        Some((_, fork)) => rooms.store.session_then(tenant, id, fork.record.created_at).await?,
    })
}
