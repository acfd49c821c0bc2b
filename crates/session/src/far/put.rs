//! Objects that are written once. One that is there under a name counts as sent only if it says the same.

use super::{Far, trouble};
use crate::{Error, Result, rooms::Rooms};
use ash_cloud::Written;
use ash_model::{
    TenantId,
    far::{FarAgent, FarCheckpoint, Manifest, Tombstone},
};
use serde::{Serialize, de::DeserializeOwned};

impl Far {
    pub(super) async fn put<T: Serialize + DeserializeOwned + Same>(
        &self,
        rooms: &Rooms,
        tenant: &TenantId,
        key: &str,
        what: &T,
    ) -> Result<()> {
        match self.put_or_compare(rooms, tenant, key, what).await? {
            Put::Same => Ok(()),
            Put::Other => Err(Error::Far(format!(
                "{key} in the object store is not what this server would put there: another server has written it, or the database is an older copy. It is compared when the session is used next"
            ))),
        }
    }

    /// An object that is there counts as sent only if it says the same.
    pub(super) async fn put_or_compare<T: Serialize + DeserializeOwned + Same>(
        &self,
        rooms: &Rooms,
        tenant: &TenantId,
        key: &str,
        what: &T,
    ) -> Result<Put> {
        let text = serde_json::to_vec(what).expect("plain words and numbers");
        let repo = rooms.repo(tenant)?;
        let stored = repo.conceal(text.clone(), key);
        let (bucket, size) = (self.writer().await?, stored.len() as u64);
        if bucket.put_new(key, stored.clone().into()).await.map_err(trouble)? == Written::There {
            let there = bucket.get(key).await.map_err(trouble)?;
            // What was sealed for another server is not ours.
            let Ok(there) = repo.reveal(there.into(), key) else { return Ok(Put::Other) };
            match serde_json::from_slice::<T>(&there) {
                Ok(other) if there != text && !what.same(&other) => return Ok(Put::Other),
                Ok(_) => {}
                // It was cut, or is none of ours: nothing can be read from it.
                Err(_) => bucket.replace(key, stored.into()).await.map_err(trouble)?,
            }
        }
        rooms.store.add_remote_object(key, size).await?;
        Ok(Put::Same)
    }
}

/// What became of an object that is written once.
pub(super) enum Put {
    Same,
    /// Something else is there under this name.
    Other,
}

/// Whether two objects under one name tell the same. A manifest that is made again may give another size for a pack that
/// collection has made smaller since, and other words for what no log tells.
pub(super) trait Same {
    fn same(&self, there: &Self) -> bool;
}

impl Same for Tombstone {
    fn same(&self, there: &Tombstone) -> bool {
        self == there
    }
}

impl Same for FarAgent {
    fn same(&self, there: &FarAgent) -> bool {
        // Who made it first, and when, is not what it is.
        let plain = |agent: &FarAgent| FarAgent {
            id: uuid::Uuid::nil(),
            created_at: self.created_at,
            updated_at: self.updated_at,
            ..agent.clone()
        };
        plain(self) == plain(there)
    }
}

impl Same for Manifest {
    fn same(&self, there: &Manifest) -> bool {
        let plain = |manifest: &Manifest| {
            let sized = |checkpoint: &FarCheckpoint| FarCheckpoint { size: 0, ..checkpoint.clone() };
            Manifest {
                unnamed: false,
                first: manifest.first.iter().map(sized).collect(),
                checkpoint: manifest.checkpoint.as_ref().map(sized),
                ..manifest.clone()
            }
        };
        plain(self) == plain(there)
    }
}
