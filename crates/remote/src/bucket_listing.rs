//! What a bucket holds, read from its objects alone, so that a lost server can be replaced. Needs neither a database
//! nor a repository.

use crate::{Error, Result, object_keys, rows::parse_object};
use ash_cloud::Bucket;
use ash_model::{
    SessionId, TenantId,
    remote::{SessionManifest, SessionTombstone},
};
use ash_snapshot::Repo;
use futures::{StreamExt, TryStreamExt};
use std::collections::BTreeMap;

/// Objects that are read at the same time.
pub(crate) const CONCURRENT_READS: usize = 16;

/// A session as the object store has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicatedSession {
    pub tenant: TenantId,
    pub id: SessionId,
    /// `None`: the manifest is sealed.
    pub manifest: Option<SessionManifest>,
}

/// All sessions in a bucket, by tenant. Restores nothing.
pub async fn list_remote_sessions(bucket: &Bucket) -> Result<Vec<ReplicatedSession>> {
    let mut all = Vec::new();
    for tenant in tenants(bucket).await? {
        let newest = newest_manifests(bucket, &tenant).await?;
        let read = newest.into_iter().map(|(id, key)| async move {
            let bytes = bucket.get(&key).await.map_err(Error::Bucket)?;
            let manifest = match Repo::is_sealed_blob(&bytes) {
                true => None,
                // A purged session has only its tombstone there.
                false if serde_json::from_slice::<SessionTombstone>(&bytes).is_ok() => return Ok(None),
                false => Some(parse_object::<SessionManifest>(&key, &bytes)?),
            };
            Ok::<_, Error>(Some((id, manifest)))
        });
        let found: Vec<_> = futures::stream::iter(read).buffered(CONCURRENT_READS).try_collect().await?;
        all.extend(found.into_iter().flatten().map(|(id, manifest)| ReplicatedSession {
            tenant: tenant.clone(),
            id,
            manifest,
        }));
    }
    Ok(all)
}

pub(crate) async fn tenants(bucket: &Bucket) -> Result<Vec<TenantId>> {
    let names = bucket.list_dirs(object_keys::TENANTS).await.map_err(Error::Bucket)?;
    Ok(names.iter().filter_map(|name| TenantId::parse(name).ok()).collect())
}

/// The key of the newest manifest of every session.
pub(crate) async fn newest_manifests(
    bucket: &Bucket,
    tenant: &TenantId,
) -> Result<BTreeMap<SessionId, String>> {
    let mut newest: BTreeMap<SessionId, String> = BTreeMap::new();
    let mut all = bucket.list(&object_keys::sessions(tenant));
    while let Some(found) = all.try_next().await.map_err(Error::Bucket)? {
        let Some(id) = found.key.rsplit('/').nth(1).and_then(|id| SessionId::parse(id).ok()) else {
            continue;
        };
        if object_keys::numbers(&found.key).is_none() {
            continue;
        }
        let kept = newest.entry(id).or_default();
        if found.key > *kept {
            *kept = found.key;
        }
    }
    Ok(newest)
}
