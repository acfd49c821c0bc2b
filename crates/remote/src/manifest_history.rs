//! What the bucket knows of a session: its newest readable manifest, and its log. If an object is missing or truncated,
//! an older manifest or another pack is used instead, and each event that none of them has becomes a row `missing`.

use crate::{
    Error, PackHistory, Replicator, Result, blocking,
    bucket_listing::newest_manifests,
    object_keys, pack_log,
    replicator::PackNameListing,
    rows::{checkpoints, damaged, filled, folded, last_options},
};
use ash_cloud::{BucketError, BucketErrorCode};
use ash_model::{
    Epoch, EventSeq, HistorySource, SessionId, TenantId, Timestamp,
    embedded_log::EventLine,
    remote::{SessionManifest, SessionTombstone},
};
use ash_snapshot::{Repo, TreeId};
use ash_store::RebuiltSession;
use futures::TryStreamExt;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a listing of packs is reused.
const PACK_NAMES_TTL: Duration = Duration::from_secs(10);
/// How many older manifests are read for events that newer ones do not have.
const MAX_OLDER: usize = 50;

/// The newest readable manifest of a session, and what the names of all its manifests say.
pub struct ManifestHistory {
    pub manifest: SessionManifest,
    /// The keys of the manifests before it, the newest first.
    older: Vec<String>,
    /// The last events of all manifests in the bucket.
    pub(crate) kept: BTreeSet<EventSeq>,
    /// The numbers in the highest name. Its manifest may be unreadable.
    proven: (Epoch, EventSeq),
    /// The session was purged after this manifest; a fork still reads its log.
    pub(crate) buried: Option<SessionTombstone>,
}

/// How to read a session that was purged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PurgedSessionPolicy {
    IsGone,
    /// Its log is read for a fork that was created at this time. A later session with the same id does not count.
    IsRead(Timestamp),
}

impl PurgedSessionPolicy {
    /// Whether this manifest belongs to a later session with the same id.
    fn is_before(self, manifest: &SessionManifest) -> bool {
        match self {
            PurgedSessionPolicy::IsGone => false,
            PurgedSessionPolicy::IsRead(then) => manifest.created_at > then,
        }
    }
}

/// What the bucket knows of a session.
pub enum RemoteHistory<T> {
    Nothing,
    Purged(SessionTombstone),
    Of(Box<T>),
}

impl<T> RemoteHistory<T> {
    /// The session, if it can be brought back.
    pub fn session(self) -> Option<T> {
        match self {
            RemoteHistory::Of(known) => Some(*known),
            RemoteHistory::Nothing | RemoteHistory::Purged(_) => None,
        }
    }
}

impl Replicator {
    /// The newest epoch and event of each session in the bucket, according to the names of its manifests.
    pub async fn newest_names(&self, tenant: &TenantId) -> Result<HashMap<SessionId, (Epoch, EventSeq)>> {
        let newest = newest_manifests(&self.bucket, tenant).await?;
        let numbered = newest.into_iter().filter_map(|(id, key)| Some((id, object_keys::numbers(&key)?)));
        Ok(numbered.map(|(id, (epoch, seq))| (id, (Epoch(epoch), seq))).collect())
    }

    /// The same for one session. `None`: the bucket does not know it.
    pub async fn newest_name(&self, tenant: &TenantId, id: &SessionId) -> Result<Option<(Epoch, EventSeq)>> {
        let all: Vec<_> =
            self.bucket.list(&object_keys::session(tenant, id)).try_collect().await.map_err(Error::Bucket)?;
        let newest = all.iter().filter_map(|found| object_keys::numbers(&found.key)).max();
        Ok(newest.map(|(epoch, seq)| (Epoch(epoch), seq)))
    }

    /// A session as rows of the database.
    pub async fn history(&self, tenant: &TenantId, id: &SessionId) -> Result<RemoteHistory<RebuiltSession>> {
        match self.known_session(tenant, id).await? {
            RemoteHistory::Nothing => Ok(RemoteHistory::Nothing),
            RemoteHistory::Purged(tombstone) => Ok(RemoteHistory::Purged(tombstone)),
            // The packs may say more than the manifest; that is compared separately.
            RemoteHistory::Of(known) => {
                Ok(RemoteHistory::Of(Box::new(self.rebuilt_from_manifest(*known).await?)))
            }
        }
    }

    /// The newest manifest of a session, unless the session was purged.
    pub async fn known_session(
        &self,
        tenant: &TenantId,
        id: &SessionId,
    ) -> Result<RemoteHistory<ManifestHistory>> {
        self.known_or_purged((tenant, id), PurgedSessionPolicy::IsGone).await
    }

    pub(crate) async fn known_or_purged(
        &self,
        (tenant, id): (&TenantId, &SessionId),
        purged: PurgedSessionPolicy,
    ) -> Result<RemoteHistory<ManifestHistory>> {
        let found: Vec<_> =
            self.bucket.list(&object_keys::session(tenant, id)).try_collect().await.map_err(Error::Bucket)?;
        let mut named: Vec<((u64, EventSeq), String)> = found
            .into_iter()
            .filter_map(|found| Some((object_keys::numbers(&found.key)?, found.key)))
            .collect();
        named.sort();
        let Some((mut highest, _)) = named.last().cloned() else { return Ok(RemoteHistory::Nothing) };
        let kept = named.iter().map(|((_, seq), _)| *seq).collect();
        let (mut why, mut buried) = (String::new(), None);
        while let Some((_, key)) = named.pop() {
            match self.read_manifest((tenant, id), &key).await? {
                Ok(ManifestObject::Purged(tombstone)) => match purged {
                    PurgedSessionPolicy::IsGone => return Ok(RemoteHistory::Purged(tombstone)),
                    PurgedSessionPolicy::IsRead(_) => buried = Some(tombstone),
                },
                Ok(ManifestObject::Session(manifest)) if purged.is_before(&manifest) => {
                    buried = None;
                    highest = named.last().map_or(highest, |(numbers, _)| *numbers);
                }
                Ok(ManifestObject::Session(manifest)) => {
                    let older = named.into_iter().rev().map(|(_, key)| key).collect();
                    // The number in a tombstone's name is not an event.
                    let proven = match &buried {
                        None => (Epoch(highest.0), highest.1),
                        Some(_) => (Epoch(highest.0), manifest.seq),
                    };
                    return Ok(RemoteHistory::Of(Box::new(ManifestHistory {
                        manifest: *manifest,
                        older,
                        kept,
                        proven,
                        buried,
                    })));
                }
                Err(damage) => {
                    tracing::warn!(session = %id, %tenant, key, damage, "a manifest in the object store cannot be read; the server uses the manifest before it");
                    why = damage;
                }
            }
        }
        match buried {
            Some(tombstone) => Ok(RemoteHistory::Purged(tombstone)),
            None => Err(damaged(id, &format!("none of its manifests can be read: {why}"))),
        }
    }

    /// The inner error: the object is damaged or missing. The outer error: the bucket cannot be read.
    async fn read_manifest(
        &self,
        (tenant, id): (&TenantId, &SessionId),
        key: &str,
    ) -> Result<std::result::Result<ManifestObject, String>> {
        let bytes = match self.bucket.get(key).await {
            Ok(bytes) => bytes,
            Err(BucketError {
                code: BucketErrorCode::Missing | BucketErrorCode::Damaged,
                message: sentence,
                ..
            }) => return Ok(Err(sentence)),
            Err(error) => return Err(Error::Bucket(error)),
        };
        // A missing key is an error of its own, not damage.
        let bytes = self.services.repo(tenant)?.unseal(bytes.into(), key)?;
        Ok(match ManifestObject::parse(&bytes) {
            Ok(object) if object.is_of(tenant, id) => Ok(object),
            Ok(_) => Err("it is another session's".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Rebuilds a session that the database does not know.
    pub(crate) async fn rebuilt(&self, known: ManifestHistory) -> Result<RebuiltSession> {
        match self.beyond(&known).await? {
            Some(rebuilt) => Ok(rebuilt),
            None => self.rebuilt_from_manifest(known).await,
        }
    }

    /// Rebuilds the session from a pack if that pack is newer than the newest manifest, which may be missing.
    async fn beyond(&self, known: &ManifestHistory) -> Result<Option<RebuiltSession>> {
        let manifest = &known.manifest;
        if known.buried.is_some() {
            return Ok(None);
        }
        let names = self.pack_names(&manifest.tenant).await?;
        let proof = self.services.witnesses.newest_proof(&manifest.tenant, &manifest.session, names).await?;
        let Some(proof) =
            proof.filter(|proof| proof.workspace == manifest.workspace && proof.seq > manifest.seq)
        else {
            return Ok(None);
        };
        tracing::warn!(session = %manifest.session, manifest = manifest.seq, pack = proof.seq, "a manifest is missing in the object store, but its pack is there; the server restores the session from the pack");
        let epoch = proof.epoch.unwrap_or(manifest.epoch).max(known.proven.0);
        let history = PackHistory::read(&self.services, &proof, &manifest.tenant).await?;
        let mut rebuilt = history.rebuilt(&self.services, manifest.base, epoch).await?;
        rebuilt.witness = HistorySource::Bucket;
        let now = self.services.clock();
        rebuilt.checkpoints.iter_mut().for_each(|checkpoint| checkpoint.uploaded_at = Some(now));
        // The name of an unreadable manifest proves events that no pack has.
        let (last, upto) = (rebuilt.last_seq(), known.proven.1);
        rebuilt.events.extend(filled(BTreeMap::new(), (last, upto.max(last)), manifest.last_active_at));
        rebuilt.manifest.seq = rebuilt.last_seq();
        Ok(Some(rebuilt))
    }

    /// The packs in the bucket, from a listing a moment ago.
    async fn pack_names(&self, tenant: &TenantId) -> Result<Arc<Vec<String>>> {
        let known =
            self.pack_names.lock().expect("no code panics while it holds this lock").get(tenant).cloned();
        if let Some(known) = known.filter(|known| known.at.elapsed() < PACK_NAMES_TTL) {
            return Ok(known.names);
        }
        let at = Instant::now();
        let packs: Vec<_> =
            self.bucket.list(&object_keys::packs(tenant)).try_collect().await.map_err(Error::Bucket)?;
        let names = packs.iter().filter_map(|found| found.key.rsplit('/').next().map(str::to_owned));
        let names = Arc::new(names.collect::<Vec<_>>());
        let mut known = self.pack_names.lock().expect("no code panics while it holds this lock");
        known.insert(tenant.clone(), PackNameListing { at, names: names.clone() });
        Ok(names)
    }

    async fn rebuilt_from_manifest(&self, known: ManifestHistory) -> Result<RebuiltSession> {
        let events = self.log(&known).await?;
        let ManifestHistory { mut manifest, kept, proven: (epoch, seq), .. } = known;
        let agents = self.agents(&manifest.tenant, &manifest.agent, Some(manifest.version)).await?;
        (manifest.epoch, manifest.seq) = (manifest.epoch.max(epoch), seq.max(manifest.seq));
        // Events after the manifest may have changed the options.
        if let Some(options) = last_options(&events) {
            manifest.options = options;
        }
        let (summary, turns) = folded(self.services.fold_log, &manifest, &events)?;
        let checkpoints = checkpoints(&manifest, &events, &kept, self.services.clock())?;
        let (node, at, witness) = (self.services.node.clone(), self.services.clock(), HistorySource::Bucket);
        let purged = None;
        Ok(RebuiltSession {
            witness,
            purged,
            manifest,
            node,
            summary,
            agents,
            events,
            turns,
            checkpoints,
            at,
        })
    }

    /// All of the session's own events: from its packs, from the newest one back, and from manifests.
    async fn log(&self, known: &ManifestHistory) -> Result<Vec<EventLine>> {
        let ManifestHistory { manifest, older, proven, .. } = known;
        let (base, upto) = (manifest.base.unwrap_or(0), proven.1.max(manifest.seq));
        let repo = self.services.repo(&manifest.tenant)?;
        let mut lines = readable_events(&repo, manifest).await?;
        let whole = |lines: &BTreeMap<EventSeq, EventLine>, upto: EventSeq| {
            lines.range(base + 1..=upto).count() as u64 == upto - base.min(upto)
        };
        for key in older.iter().take(MAX_OLDER) {
            if whole(&lines, manifest.seq) {
                break;
            }
            let of = (&manifest.tenant, &manifest.session);
            match self.read_manifest(of, key).await? {
                Ok(ManifestObject::Session(before)) if before.created_at == manifest.created_at => {
                    for (seq, line) in readable_events(&repo, &before).await? {
                        lines.entry(seq).or_insert(line);
                    }
                }
                // Earlier manifests belong to another session with the same id.
                Ok(ManifestObject::Session(_) | ManifestObject::Purged(_)) => break,
                Err(_) => {}
            }
        }
        lines.retain(|seq, _| *seq > base && *seq <= upto);
        Ok(filled(lines, (base, upto), manifest.last_active_at))
    }
}

/// What an object with a manifest's key holds.
enum ManifestObject {
    Session(Box<SessionManifest>),
    Purged(SessionTombstone),
}

impl ManifestObject {
    fn parse(bytes: &[u8]) -> std::result::Result<ManifestObject, serde_json::Error> {
        match serde_json::from_slice::<SessionTombstone>(bytes) {
            Ok(tombstone) => Ok(ManifestObject::Purged(tombstone)),
            Err(_) => {
                serde_json::from_slice(bytes).map(|manifest| ManifestObject::Session(Box::new(manifest)))
            }
        }
    }

    fn is_of(&self, tenant: &TenantId, id: &SessionId) -> bool {
        match self {
            ManifestObject::Session(manifest) => manifest.tenant == *tenant && manifest.session == *id,
            ManifestObject::Purged(tombstone) => tombstone.tenant == *tenant && tombstone.session == *id,
        }
    }
}

/// The readable events in a manifest and in the packs that it leads back to.
async fn readable_events(
    repo: &Arc<Repo>,
    manifest: &SessionManifest,
) -> Result<BTreeMap<EventSeq, EventLine>> {
    let (repo, chain, id) = (repo.clone(), manifest.log_snapshot.clone(), manifest.session.clone());
    let created_at = manifest.created_at;
    let base = manifest.base.unwrap_or(0);
    let mut lines = blocking(move || {
        let (mut lines, mut seen, mut next) = (BTreeMap::new(), HashSet::new(), chain);
        while let Some(text) = next.take().filter(|text| seen.insert(text.clone())) {
            let Ok(tree) = TreeId::parse(&text) else { break };
            let Some(record) = unless_damaged(pack_log::read_record(&repo, &tree), &id)?.flatten() else {
                break;
            };
            if record.session != id || record.created_at != created_at {
                break;
            }
            let part = unless_damaged(pack_log::read_events(&repo, &tree), &id)?.unwrap_or_default();
            lines.extend(part.into_iter().map(|line| (line.seq, line)));
            next = (record.after > base).then_some(record.previous);
        }
        Ok(lines)
    })
    .await?;
    lines.extend(manifest.events.iter().map(|line| (line.seq, line.clone())));
    Ok(lines)
}

/// `None`: the pack is damaged or missing. If the bucket does not answer, that is an error.
fn unless_damaged<T>(read: Result<T>, id: &SessionId) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(Error::Snapshot(error @ ash_snapshot::Error::Damaged { .. })) => {
            tracing::warn!(session = %id, %error, "a pack of the session's log cannot be read");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
