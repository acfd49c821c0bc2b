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

use crate::{
    Error, Result, Sessions, blocking, live_directory::LiveDirectory, services::Services, sessions::native_id,
};
use ash_model::{Epoch, HistorySource, SessionId, Slug, TenantId, Timestamp, WorkspaceId};
use ash_remote::{RemoteHistory, WitnessRefresh};
use compare::{SessionLogEndMap, behind_bucket, behind_packs, is_explained};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use uuid::Uuid;

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

/// How long to wait for the object store to say whether it knows an id.
const REMOTE_ID_TIMEOUT: Duration = Duration::from_secs(2);

/// The epoch and time with which a new session begins, so that it is not taken for a purged session with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beginning {
    pub(crate) epoch: Epoch,
    pub(crate) at: Timestamp,
    /// An earlier session had this id.
    pub(crate) is_again: bool,
}

impl Beginning {
    fn after(self, epoch: Epoch, purged_at: Timestamp) -> Beginning {
        let epoch = self.epoch.max(Epoch(epoch.0 + 1));
        // Even if the clock went back: of two sessions with one id, the later one must have the later time.
        Beginning { epoch, at: self.at.max(Timestamp(purged_at.0 + 1)), is_again: true }
    }

    /// The agent's own id for the conversation. A shared home may hold the conversation of the earlier session with
    /// this id.
    pub(crate) fn native_id(self, tenant: &TenantId, id: &SessionId) -> Uuid {
        if self.is_again { Uuid::new_v4() } else { native_id(tenant, id) }
    }

    /// Makes sure that the epoch of a shared workspace is high enough: the earlier session may have run in it under the
    /// same epoch.
    pub(crate) async fn in_shared(
        self,
        rooms: &Services,
        id: &SessionId,
        (workspace, slug): (WorkspaceId, &Slug),
    ) -> Result<()> {
        if !self.is_again {
            return Ok(());
        }
        let common = rooms.workspace(workspace);
        let _floor = common.exclusive().await;
        loop {
            let (lease, is_first) = common.claim(rooms, workspace).await?;
            if is_first {
                // The actor of the next session in the workspace claims it again, with the next epoch.
                common.forget_lease();
            }
            match (lease.epoch >= self.epoch, is_first) {
                (true, _) => return Ok(()),
                (false, true) => {}
                (false, false) => return Err(Error::PurgedHere { id: id.clone(), slug: slug.clone() }),
            }
        }
    }
}

/// Who chose a new session's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdFrom {
    /// The client. The id may have been used before.
    Caller,
    /// The server. The id was never used before.
    Server,
}

/// Finds out how a new session begins. An id that only a witness knows is taken.
pub(crate) async fn beginning(
    rooms: &Services,
    tenant: &TenantId,
    (id, from): (&SessionId, IdFrom),
) -> Result<Beginning> {
    tombstones::write_of(rooms, tenant, id).await?;
    let of = rooms.witnesses.of(tenant, WitnessRefresh::Once).await?;
    let mut first = Beginning { epoch: Epoch(1), at: rooms.clock(), is_again: false };
    {
        let of = of.lock();
        if let Some(tombstone) = of.tombstones.get(id) {
            first = first.after(tombstone.epoch, tombstone.purged_at);
        }
        if of.packs.newest_of(id).is_some_and(|proof| !of.is_buried(proof)) {
            return Err(Error::Unrepaired(id.clone()));
        }
    }
    let is_asked = from == IdFrom::Caller;
    let Some(far) = rooms.replicator.as_ref().filter(|far| is_asked && far.trouble().is_none()) else {
        return Ok(first);
    };
    let asked = async {
        let newest = far.newest_name(tenant, id).await?;
        let Some((epoch, _)) = newest.filter(|(epoch, _)| *epoch >= first.epoch) else {
            return Ok(first);
        };
        match far.known_session(tenant, id).await? {
            RemoteHistory::Of(_) => {
                Err(Error::Store(ash_store::Error::Taken(format!("Session id \"{id}\""))))
            }
            RemoteHistory::Purged(tombstone) => Ok(first.after(epoch, tombstone.purged_at)),
            RemoteHistory::Nothing => Ok(Beginning { epoch: Epoch(epoch.0 + 1), ..first }),
        }
    };
    match tokio::time::timeout(REMOTE_ID_TIMEOUT, asked).await {
        // Without an answer the session begins, and is compared before anything of it is sent.
        Err(_) | Ok(Err(Error::Remote(ash_remote::Error::Bucket(_)))) => Ok(first),
        Ok(answered) => answered,
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

impl Sessions {
    /// Compares the database with its witnesses, reports what is wrong, and clears reports that are over.
    pub async fn compare_witnesses(&self) -> Result<DatabaseComparison> {
        let (rooms, began) = (self.rooms(), Instant::now());
        tombstones::write_all(rooms).await?;
        let damage = rooms.settings.database_damage.clone();
        let mut found =
            DatabaseComparison { orphans: self.orphans().await?, damage, ..DatabaseComparison::default() };
        for tenant in rooms.all_tenants().await? {
            let (sessions, behind) = compare_tenant(rooms, &tenant).await?;
            found.sessions += sessions;
            found.behind.extend(behind.into_iter().map(|behind| (tenant.clone(), behind)));
        }
        match found.is_behind() {
            true => rooms.troubles.set(DATABASE_BEHIND, found.sentence(), rooms.clock()),
            false => rooms.troubles.clear(DATABASE_BEHIND),
        }
        rooms.is_database_compared.store(true, Ordering::Relaxed);
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
    pub async fn check_database(&self) {
        let rooms = self.rooms();
        let damage = match rooms.store.check_integrity().await {
            Ok(damage) => damage,
            Err(error) => Some(error.to_string()),
        };
        match damage {
            None => rooms.troubles.clear(DATABASE_DAMAGED),
            Some(damage) => rooms.troubles.set(
                DATABASE_DAMAGED,
                format!("The database cannot read its own pages ({damage}). Nothing is collected or deleted meanwhile. Stop the server and run `ash repair`, which says what it would bring back; then `ash repair --yes`."),
                rooms.clock(),
            ),
        }
    }

    /// Whether anything may be deleted: not as long as the database is known to be wrong.
    pub(crate) fn may_delete(&self) -> bool {
        let troubles = self.rooms().troubles.list();
        self.rooms().is_database_compared.load(Ordering::Relaxed)
            && !troubles.iter().any(|trouble| [DATABASE_BEHIND, DATABASE_DAMAGED].contains(&trouble.code))
    }

    /// Live trees of workspaces that the database does not know.
    async fn orphans(&self) -> Result<Vec<WorkspaceId>> {
        let rooms = self.rooms();
        let mut orphans = Vec::new();
        for name in crate::sessions::list_names(&rooms.settings.live_dir) {
            let Some(workspace) = WorkspaceId::parse(&name) else { continue };
            let live = LiveDirectory::new(&rooms.settings.live_dir, workspace);
            if !live.is_unclaimed()
                && live.has_leftovers(false)
                && rooms.store.lease_holder(workspace).await?.is_none()
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
    rooms: &Arc<Services>,
    tenant: &TenantId,
) -> Result<(usize, Vec<SessionBehindWitness>)> {
    // Packs first: what is recorded after that is in a row by the time the rows are read.
    let of = rooms.witnesses.of(tenant, WitnessRefresh::Anew).await?;
    tombstones::import(rooms, tenant, &of).await?;
    let newest = match &rooms.replicator {
        Some(far) if far.trouble().is_none() => far.newest_names(tenant).await.unwrap_or_else(|error| {
            tracing::warn!(%tenant, %error, "the database was not compared with the object store");
            HashMap::new()
        }),
        Some(_) | None => HashMap::new(),
    };
    let rows = rooms.rows(tenant).await?;
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
