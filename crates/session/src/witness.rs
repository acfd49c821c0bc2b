//! Witnesses: what packs, tombstones and the object store say happened, compared with the database. Before something is
//! deleted, superseded or confirmed as remote, a second witness is asked. A disagreement is reported and repaired; no
//! deletion resolves it.

mod adopt;
mod compare;
mod repair;
mod tombstones;

pub(crate) use adopt::reconcile;
pub use compare::SessionBehindWitness;
pub use repair::{RepairMode, RepairedSession};
pub(crate) use tombstones::{write as write_tombstone, write_of as write_tombstones_of};

use crate::{
    Result, blocking,
    live_directory::{LiveDirectory, list_workspaces},
    services::Services,
};
use ash_model::{HistorySource, TenantId, WorkspaceId};
use ash_remote::WitnessRefresh;
use compare::{SessionLogEndMap, behind_bucket, behind_packs, is_explained};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::atomic::Ordering,
    time::Instant,
};

/// The code of the trouble that witnesses know more than the database.
pub(crate) const DATABASE_BEHIND: &str = "database_behind";
/// The code of the trouble that SQLite cannot read its own pages.
pub(crate) const DATABASE_DAMAGED: &str = "database_damaged";
/// How many sessions are named. Of the others only the number is given.
const MAX_NAMED: usize = 5;

impl Services {
    /// Packs that no row or tombstone explains, or that cannot be read: none of them is garbage.
    pub(crate) async fn unclear_packs(&self, tenant: &TenantId) -> Result<HashSet<String>> {
        let (of, rows) = (self.witnesses.of(tenant, WitnessRefresh::Once).await?, self.rows(tenant).await?);
        let of = of.lock();
        let unexplained = of.packs.proofs().filter(|(_, proof)| !is_explained(proof, &rows, &of.tombstones));
        Ok(unexplained.map(|(pack, _)| pack).chain(of.packs.unreadable.keys()).cloned().collect())
    }

    /// Of packs that are only in the object store, those that may be deleted: a row or a tombstone explains their
    /// record, or they hold none.
    pub(crate) async fn explained_packs(&self, tenant: &TenantId, packs: &[String]) -> Result<Vec<String>> {
        if packs.is_empty() {
            return Ok(Vec::new());
        }
        let (of, repo, rows) = (
            self.witnesses.of(tenant, WitnessRefresh::Once).await?,
            self.repo(tenant)?,
            self.rows(tenant).await?,
        );
        let (tenant, packs) = (tenant.clone(), packs.to_vec());
        blocking(move || {
            let mut of = of.lock();
            of.remote.refresh(&repo, &tenant, &packs)?;
            let goes = |pack: &String| match of.remote.proof_in(pack) {
                None => false,
                Some(proof) => proof.is_none_or(|proof| is_explained(proof, &rows, &of.tombstones)),
            };
            Ok(packs.iter().filter(|pack| goes(pack)).cloned().collect())
        })
        .await
    }

    /// Tenants that the database knows, and tenants that only have a repository on this machine.
    pub(crate) async fn all_tenants(&self) -> Result<BTreeSet<TenantId>> {
        let mut tenants: BTreeSet<TenantId> = self.store.tenants().await?.into_iter().collect();
        tenants.extend(self.repositories.tenants());
        Ok(tenants)
    }

    pub(crate) async fn rows(&self, tenant: &TenantId) -> Result<SessionLogEndMap> {
        let all = self.store.log_positions(tenant).await?;
        Ok(all.into_iter().map(|row| (row.session.clone(), row)).collect())
    }
}

/// The result of a comparison.
#[derive(Debug, Clone, Default)]
pub struct DatabaseComparison {
    pub sessions: usize,
    pub behind: Vec<(TenantId, SessionBehindWitness)>,
    /// Live trees of workspaces that the database does not know.
    pub orphans: Vec<WorkspaceId>,
    /// What was found wrong with the database's files.
    pub damage: Option<String>,
}

impl DatabaseComparison {
    pub fn is_behind(&self) -> bool {
        !self.behind.is_empty() || !self.orphans.is_empty() || self.damage.is_some()
    }

    /// For a person, with the remedy.
    pub fn sentence(&self) -> String {
        let named: Vec<String> =
            self.behind.iter().take(MAX_NAMED).map(|(_, behind)| describe_behind(behind)).collect();
        let more = self.behind.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let trees = match self.orphans.len() {
            0 => String::new(),
            count => format!(" The files of {count} workspaces are here that it does not know."),
        };
        let of = match self.behind.len() {
            0 => String::new(),
            count => format!(" of {count} sessions: {}{more}", named.join(", ")),
        };
        let damage = self.damage.as_ref().map_or_else(String::new, |damage| format!("{damage} "));
        format!(
            "{damage}The database knows less than its witnesses{of}.{trees} It was lost, damaged or replaced by an older copy. Nothing is collected or deleted meanwhile. Stop the server and run `ash repair`, which says what it would bring back; then `ash repair --yes`."
        )
    }
}

fn describe_behind(behind: &SessionBehindWitness) -> String {
    let SessionBehindWitness { session, known, proven, witness } = behind;
    let who = match witness {
        HistorySource::Packs => "packs",
        HistorySource::Bucket => "the object store",
    };
    match known {
        Some(known) => format!("{session} (event {known} of {proven}, {who})"),
        None => format!("{session} (unknown, {proven} events in {who})"),
    }
}

impl Services {
    /// Compares the database with its witnesses, reports what is wrong, and clears reports that are over.
    pub(crate) async fn compare_witnesses(&self) -> Result<DatabaseComparison> {
        let began = Instant::now();
        tombstones::write_all(self).await?;
        let damage = self.settings.database_damage.clone();
        let mut found =
            DatabaseComparison { orphans: self.orphans().await?, damage, ..DatabaseComparison::default() };
        for tenant in self.all_tenants().await? {
            let (sessions, behind) = compare_tenant(self, &tenant).await?;
            found.sessions += sessions;
            found.behind.extend(behind.into_iter().map(|behind| (tenant.clone(), behind)));
        }
        match found.is_behind() {
            true => self.troubles.set(DATABASE_BEHIND, found.sentence(), self.clock()),
            false => self.troubles.clear(DATABASE_BEHIND),
        }
        self.is_database_compared.store(true, Ordering::Relaxed);
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(
            sessions = found.sessions,
            behind = found.behind.len(),
            took_ms = took,
            "the database was compared with its witnesses"
        );
        Ok(found)
    }

    /// Checks whether SQLite can read all of its own pages.
    pub(crate) async fn check_database(&self) {
        let damage = match self.store.check_integrity().await {
            Ok(damage) => damage,
            Err(error) => Some(error.to_string()),
        };
        match damage {
            None => self.troubles.clear(DATABASE_DAMAGED),
            Some(damage) => self.troubles.set(
                DATABASE_DAMAGED,
                format!("The database cannot read its own pages ({damage}). Nothing is collected or deleted meanwhile. Stop the server and run `ash repair`, which says what it would bring back; then `ash repair --yes`."),
                self.clock(),
            ),
        }
    }

    /// Whether anything may be deleted: not as long as the database is known to be wrong.
    pub(crate) fn may_delete(&self) -> bool {
        let troubles = self.troubles.list();
        self.is_database_compared.load(Ordering::Relaxed)
            && !troubles.iter().any(|trouble| [DATABASE_BEHIND, DATABASE_DAMAGED].contains(&trouble.code))
    }

    /// Live trees of workspaces that the database does not know.
    pub(super) async fn orphans(&self) -> Result<Vec<WorkspaceId>> {
        let mut orphans = Vec::new();
        for workspace in list_workspaces(&self.settings.live_dir) {
            let live = LiveDirectory::new(&self.settings.live_dir, workspace);
            if !live.is_unclaimed()
                && live.has_leftovers(false)
                && self.store.lease_holder(workspace).await?.is_none()
                // The workspace may have been created and deleted since the listing, so check again.
                && live.has_leftovers(false)
                && !live.is_unclaimed()
            {
                orphans.push(workspace);
            }
        }
        Ok(orphans)
    }
}

/// The number of sessions, and those of which a witness knows more than the database.
async fn compare_tenant(
    services: &Services,
    tenant: &TenantId,
) -> Result<(usize, Vec<SessionBehindWitness>)> {
    // Packs first: what is recorded after that is in a row by the time the rows are read.
    let of = services.witnesses.of(tenant, WitnessRefresh::Anew).await?;
    tombstones::import(services, tenant, &of).await?;
    let newest = match &services.replicator {
        Some(replicator) if replicator.trouble().is_none() => {
            replicator.newest_names(tenant).await.unwrap_or_else(|error| {
                tracing::warn!(%tenant, %error, "the database could not be compared with the object store");
                HashMap::new()
            })
        }
        Some(_) | None => HashMap::new(),
    };
    let rows = services.rows(tenant).await?;
    let of = of.lock();
    let mut behind =
        behind_packs(of.packs.newest().into_values(), &rows, &of.tombstones, HistorySource::Packs);
    for found in behind_bucket(&newest, &rows, &of.tombstones) {
        if !behind.iter().any(|known| known.session == found.session) {
            behind.push(found);
        }
    }
    Ok((rows.len(), behind))
}
