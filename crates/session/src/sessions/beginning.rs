//! How a new session begins, so that it is not taken for an earlier session with the same id.

use crate::{Error, Result, services::Services, witness::write_tombstones_of};
use ash_model::{Epoch, SessionId, Slug, TenantId, Timestamp, WorkspaceId};
use ash_remote::{RemoteHistory, WitnessRefresh};
use std::time::Duration;
use uuid::Uuid;

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
        services: &Services,
        id: &SessionId,
        (workspace_id, slug): (WorkspaceId, &Slug),
    ) -> Result<()> {
        if !self.is_again {
            return Ok(());
        }
        let workspace = services.workspace(workspace_id);
        let _exclusive = workspace.exclusive().await;
        loop {
            let (lease, is_first) = services.claim(&workspace, workspace_id).await?;
            if is_first {
                // The actor of the next session in the workspace claims it again, with the next epoch.
                workspace.forget_lease();
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
    services: &Services,
    tenant: &TenantId,
    (id, from): (&SessionId, IdFrom),
) -> Result<Beginning> {
    write_tombstones_of(services, tenant, id).await?;
    let of = services.witnesses.of(tenant, WitnessRefresh::Once).await?;
    let mut first = Beginning { epoch: Epoch(1), at: services.clock(), is_again: false };
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
    let Some(replicator) =
        services.replicator.as_ref().filter(|replicator| is_asked && replicator.trouble().is_none())
    else {
        return Ok(first);
    };
    let asked = async {
        let newest = replicator.newest_name(tenant, id).await?;
        let Some((epoch, _)) = newest.filter(|(epoch, _)| *epoch >= first.epoch) else {
            return Ok(first);
        };
        match replicator.known_session(tenant, id).await? {
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

/// The agent's own id for the conversation: the session's id if it is a UUID, else derived from it, so that it never
/// changes.
pub(crate) fn native_id(tenant: &TenantId, id: &SessionId) -> Uuid {
    let ours = Uuid::try_parse(id.as_str()).ok().filter(|uuid| uuid.to_string() == id.as_str());
    ours.unwrap_or_else(|| Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{tenant}/{id}").as_bytes()))
}
