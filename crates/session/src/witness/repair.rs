//! `ash repair`: brings back from packs and from the object store what the database does not know, or knows less of
//! than a witness. Deletes nothing; live trees of unknown workspaces are put aside.

use super::{
    DatabaseComparison,
    adopt::{WitnessPosition, note_adoption, reconcile},
};
use crate::{Result, services::Services};
use ash_model::{Epoch, EventSeq, HistorySource, SessionId, TenantId, WorkspaceId};
use ash_remote::{PackHistory, PackProof, RemoteHistory, WitnessRefresh};
use ash_store::{AccessScope, SessionRow};
use std::collections::BTreeMap;

/// More generations of forks than any session has.
const MAX_GENERATIONS: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairMode {
    /// Only reports what would be done.
    DryRun,
    Apply,
}

/// A session that comes back, or would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairedSession {
    pub tenant: TenantId,
    pub session: SessionId,
    pub witness: HistorySource,
    /// The last event that the database had. `None`: it did not know the session.
    pub known: Option<EventSeq>,
    pub proven: EventSeq,
    /// Why it did not come back.
    pub failed: Option<String>,
}

impl Services {
    /// Brings back everything that a witness knows better. Run it only while no server is running.
    pub(crate) async fn repair(&self, how: RepairMode) -> Result<(Vec<RepairedSession>, Vec<WorkspaceId>)> {
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
                    tracing::error!(session = %one.session, tenant = %one.tenant, %error, "the session could not be restored");
                    one.failed = Some(error.to_string());
                }
            }
        }
        // A session that comes back, or would, owns its tree.
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
        let Some(replicator) = &self.replicator else { return Ok(None) };
        let known = replicator.known_session(&one.tenant, &one.session).await?.session();
        Ok(known.map(|known| known.manifest.workspace))
    }

    /// Sessions that the object store has and the database does not know.
    async fn only_far(&self) -> Result<Vec<RepairedSession>> {
        let Some(replicator) = &self.replicator else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for tenant in replicator.tenants().await? {
            let rows = self.rows(&tenant).await?;
            for (session, (_, proven)) in replicator.newest_names(&tenant).await? {
                let unknown = !rows.contains_key(&session);
                if unknown && replicator.known_session(&tenant, &session).await?.session().is_some() {
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
        let scope = AccessScope::all(&one.tenant);
        if self.store.find_session(&scope, &one.session).await?.is_none() {
            let there = match &self.replicator {
                Some(replicator) => replicator.known_session(&one.tenant, &one.session).await?,
                None => RemoteHistory::Nothing,
            };
            match (there, &self.replicator) {
                (RemoteHistory::Of(_), Some(replicator)) => {
                    replicator.bring_back(&scope, &one.session).await?;
                }
                (RemoteHistory::Of(_) | RemoteHistory::Nothing | RemoteHistory::Purged(_), _) => {
                    self.rebuild_from_packs(&one.tenant, &one.session).await?;
                }
            }
        }
        // Another witness may know still more.
        match self.store.find_session(&scope, &one.session).await? {
            Some(session) => Box::pin(reconcile(self, session)).await.map(drop),
            None => Ok(()),
        }
    }

    /// Rebuilds parents first, because a fork shares their log. A purged parent comes back from packs only while it is
    /// in the trash.
    async fn rebuild_from_packs(&self, tenant: &TenantId, id: &SessionId) -> Result<()> {
        let mut line: Vec<(PackProof, PackHistory)> = Vec::new();
        let mut next = Some(id.clone());
        while let Some(id) = next.take().filter(|_| line.len() < MAX_GENERATIONS) {
            if had_id(self, tenant, &id, line.last()).await?.is_some() {
                break;
            }
            let Some(proof) = self.proof(tenant, &id).await? else { break };
            let history = PackHistory::read(&self.remote, &proof, tenant).await?;
            next = history.base().and(history.record.parent.clone());
            line.push((proof, history));
        }
        for (proof, history) in line.into_iter().rev() {
            let parent = match &history.record.parent {
                Some(parent) => self.store.session_then(tenant, parent, history.record.created_at).await?,
                None => None,
            };
            let base = history.base().filter(|base| parent.is_some_and(|parent| parent.last_seq >= *base));
            let upto = WitnessPosition::of(&proof, &history.record);
            let mut rebuilt = history.rebuilt(&self.remote, base, proof.epoch.unwrap_or(Epoch(1))).await?;
            note_adoption(&mut rebuilt, upto, None);
            self.store.rebuild(vec![rebuilt]).await?;
        }
        Ok(())
    }

    async fn proof(&self, tenant: &TenantId, id: &SessionId) -> Result<Option<PackProof>> {
        let of = self.witnesses.of(tenant, WitnessRefresh::Once).await?;
        let of = of.lock();
        Ok(of.packs.newest_of(id).filter(|proof| !of.is_buried(proof)).cloned())
    }
}

/// The session with this id: the current one, or the one that was the parent of a fork.
async fn had_id(
    services: &Services,
    tenant: &TenantId,
    id: &SessionId,
    fork: Option<&(PackProof, PackHistory)>,
) -> Result<Option<SessionRow>> {
    Ok(match fork {
        None => services.store.find_session(&AccessScope::all(tenant), id).await?,
        Some((_, fork)) => services.store.session_then(tenant, id, fork.record.created_at).await?,
    })
}
