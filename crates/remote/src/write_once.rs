//! Objects that are written once. An existing object with the same content counts as sent; a different one does not.

use crate::{Error, Replicator, Result};
use ash_cloud::PutOutcome;
use ash_model::{
    TenantId,
    remote::{AgentDefinition, SessionManifest, SessionTombstone},
};
use serde::{Serialize, de::DeserializeOwned};

impl Replicator {
    pub(crate) async fn put<T: Serialize + DeserializeOwned + EquivalentContent>(
        &self,
        tenant: &TenantId,
        key: &str,
        what: &T,
    ) -> Result<()> {
        match self.put_or_compare(tenant, key, what).await? {
            WriteOnceOutcome::Same => Ok(()),
            WriteOnceOutcome::Other => Err(Error::Damaged(format!(
                "{key} in the object store is not what this server would put there: another server has written it, or the database is an older copy. It is compared when the session is used next"
            ))),
        }
    }

    /// Writes the object, unless the name is in use by another one.
    pub(crate) async fn put_or_compare<T: Serialize + DeserializeOwned + EquivalentContent>(
        &self,
        tenant: &TenantId,
        key: &str,
        what: &T,
    ) -> Result<WriteOnceOutcome> {
        let text = serde_json::to_vec(what).expect("plain words and numbers");
        let repo = self.services.repo(tenant)?;
        let stored = repo.seal(text.clone(), key);
        let (bucket, size) = (self.writer().await?, stored.len() as u64);
        if bucket.put_new(key, stored.clone().into()).await.map_err(Error::Bucket)?
            == PutOutcome::AlreadyExists
        {
            let there = bucket.get(key).await.map_err(Error::Bucket)?;
            // Our key cannot read it, so another server wrote it.
            let Ok(there) = repo.unseal(there.into(), key) else { return Ok(WriteOnceOutcome::Other) };
            match serde_json::from_slice::<T>(&there) {
                Ok(other) if there != text && !what.same(&other) => return Ok(WriteOnceOutcome::Other),
                Ok(_) => {}
                // It is truncated or foreign, and nothing can be read from it.
                Err(_) => bucket.replace(key, stored.into()).await.map_err(Error::Bucket)?,
            }
        }
        self.services.store.add_remote_object(key, size).await?;
        Ok(WriteOnceOutcome::Same)
    }
}

/// The result of writing an object once.
pub(crate) enum WriteOnceOutcome {
    Same,
    /// Another object has this name.
    Other,
}

/// Whether two objects with one name have the same content. A repeated manifest may differ in what changes without an
/// event: the session's title, or the size of a pack that garbage collection made smaller.
pub(crate) trait EquivalentContent {
    fn same(&self, there: &Self) -> bool;
}

impl EquivalentContent for SessionTombstone {
    fn same(&self, there: &SessionTombstone) -> bool {
        self == there
    }
}

impl EquivalentContent for AgentDefinition {
    fn same(&self, there: &AgentDefinition) -> bool {
        // Id and times differ between servers that deployed the same agent.
        let plain = |agent: &AgentDefinition| AgentDefinition {
            id: uuid::Uuid::nil(),
            created_at: self.created_at,
            updated_at: self.updated_at,
            ..agent.clone()
        };
        plain(self) == plain(there)
    }
}

impl EquivalentContent for SessionManifest {
    fn same(&self, there: &SessionManifest) -> bool {
        let who = |manifest: &SessionManifest| {
            (
                manifest.tenant.clone(),
                manifest.session.clone(),
                manifest.workspace,
                manifest.epoch,
                manifest.seq,
            )
        };
        let tree = |manifest: &SessionManifest| {
            manifest.checkpoint.as_ref().map(|checkpoint| checkpoint.tree.clone())
        };
        let (ours, theirs) = (tree(self), tree(there));
        let same_tree = ours.is_some() && ours == theirs;
        let other_tree = ours.is_some() && theirs.is_some() && ours != theirs;
        let mut common = self.events.iter().filter_map(|line| {
            there.events.iter().find(|other| other.seq == line.seq).map(|other| other == line)
        });
        // Without a common event, the files or the packs with the log must be the same.
        let same_log = match common.next() {
            Some(first) => first && common.all(|same| same),
            None => same_tree || (self.log_snapshot.is_some() && self.log_snapshot == there.log_snapshot),
        };
        who(self) == who(there) && !other_tree && same_log
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{Timestamp, embedded_log::EventLine};

    fn manifest() -> SessionManifest {
        let text = r#"{"tenant":"default","session":"s1","workspace":"00000000-0000-0000-0000-000000000001","epoch":3,"seq":19,"agent":"a","version":2,"runtime":"builtin","nativeId":"00000000-0000-0000-0000-000000000002","options":{},"status":"active","turns":2,"createdAt":"2025-11-15T22:00:00.007Z","lastActiveAt":"2025-11-15T22:00:01.007Z","checkpoint":{"number":3,"turn":null,"seq":19,"tree":"t2","size":9,"consistency":"live","files":1,"bytes":2,"at":"2025-11-15T22:00:00.007Z"},"chain":"t2","covers":17,"events":[{"seq":18,"turn":null,"at":"2025-11-15T22:00:00.007Z","kind":"paused","json":"{}"}]}"#;
        serde_json::from_str(text).expect("a manifest")
    }

    #[test]
    fn a_manifest_that_is_made_again_says_the_same() {
        let (ours, mut again) = (manifest(), manifest());
        again.last_active_at = Timestamp(9);
        again.title = Some("t".to_owned());
        again.checkpoint.as_mut().expect("one").size = 5;
        assert!(ours.same(&again));
        again.events.clear();
        assert!(ours.same(&again), "the files are the same");
        again.checkpoint = None;
        assert!(ours.same(&again), "and so is the way back");
    }

    #[test]
    fn another_history_under_the_same_name_does_not() {
        let ours = manifest();
        let mut other = manifest();
        other.events[0].at = Timestamp(9);
        assert!(!ours.same(&other), "another event");
        let mut other = manifest();
        other.checkpoint.as_mut().expect("one").tree = "t3".to_owned();
        assert!(!ours.same(&other), "other files");
        let mut other = manifest();
        other.checkpoint = None;
        other.log_snapshot = Some("t9".to_owned());
        other.events = vec![EventLine { seq: 19, ..other.events[0].clone() }];
        assert!(!ours.same(&other), "nothing that both have");
    }
}
