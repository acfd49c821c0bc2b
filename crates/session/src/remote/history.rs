//! What the object store knows of a session: its newest manifest that can be read, and the log. One object that is missing or
//! cut does not take a session away: what an older manifest or another pack has is used, and each event that none of them
//! has is a row `missing`.

use super::{Replicator, object_keys, trouble};
use crate::{Error, Result, blocking, embedded_log, services::Services, witness::PackHistory};
use ash_cloud::{BucketError, BucketErrorCode};
use ash_model::{
    Epoch, EventSeq, Fact, HistorySource, SessionId, TenantId, Timestamp,
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

/// So long a list of packs is good enough.
const LISTED: Duration = Duration::from_secs(10);
/// Older manifests that are read for events that newer ones do not have.
const MAX_OLDER: usize = 50;

/// The newest manifest of a session that can be read, with what the names of all of them tell.
pub(crate) struct ManifestHistory {
    pub(crate) manifest: SessionManifest,
    /// The keys of those before it, the newest first.
    older: Vec<String>,
    /// The events at which there is a manifest.
    pub(super) kept: BTreeSet<EventSeq>,
    /// The highest name: the newest manifest may be one that cannot be read.
    proven: (Epoch, EventSeq),
    /// It was purged since; a fork still reads its log.
    pub(super) buried: Option<SessionTombstone>,
}

/// Whether a session that was purged is of interest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PurgedSessionPolicy {
    IsGone,
    /// Its log is what a fork shares that was made then: who has its id since does not count.
    IsRead(Timestamp),
}

impl PurgedSessionPolicy {
    /// Whether another session had the id then, which this one has now.
    fn is_before(self, manifest: &SessionManifest) -> bool {
        match self {
            PurgedSessionPolicy::IsGone => false,
            PurgedSessionPolicy::IsRead(then) => manifest.created_at > then,
        }
    }
}

/// What the object store says of a session.
pub(crate) enum RemoteHistory<T> {
    Nothing,
    Purged(SessionTombstone),
    Of(Box<T>),
}

impl<T> RemoteHistory<T> {
    /// What can come back.
    pub(crate) fn session(self) -> Option<T> {
        match self {
            RemoteHistory::Of(known) => Some(*known),
            RemoteHistory::Nothing | RemoteHistory::Purged(_) => None,
        }
    }
}

impl Replicator {
    /// The highest name of every session's manifests: how far they are known there.
    pub(crate) async fn newest_names(
        &self,
        tenant: &TenantId,
    ) -> Result<HashMap<SessionId, (Epoch, EventSeq)>> {
        let newest = self.newest(tenant).await?;
        let numbered = newest.into_iter().filter_map(|(id, key)| Some((id, object_keys::numbers(&key)?)));
        Ok(numbered.map(|(id, (epoch, seq))| (id, (Epoch(epoch), seq))).collect())
    }

    pub(crate) async fn newest_name(
        &self,
        tenant: &TenantId,
        id: &SessionId,
    ) -> Result<Option<(Epoch, EventSeq)>> {
        let all: Vec<_> =
            self.bucket.list(&object_keys::session(tenant, id)).try_collect().await.map_err(trouble)?;
        let newest = all.iter().filter_map(|found| object_keys::numbers(&found.key)).max();
        Ok(newest.map(|(epoch, seq)| (Epoch(epoch), seq)))
    }

    /// A session as rows of the database.
    pub(crate) async fn history(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        id: &SessionId,
    ) -> Result<RemoteHistory<RebuiltSession>> {
        match self.known_session(rooms, tenant, id).await? {
            RemoteHistory::Nothing => Ok(RemoteHistory::Nothing),
            RemoteHistory::Purged(tombstone) => Ok(RemoteHistory::Purged(tombstone)),
            // What packs say beyond the manifest is compared with the row by itself.
            RemoteHistory::Of(known) => {
                Ok(RemoteHistory::Of(Box::new(self.rebuilt_from_manifest(rooms, *known).await?)))
            }
        }
    }

    pub(crate) async fn known_session(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        id: &SessionId,
    ) -> Result<RemoteHistory<ManifestHistory>> {
        self.known_or_purged(rooms, (tenant, id), PurgedSessionPolicy::IsGone).await
    }

    pub(super) async fn known_or_purged(
        &self,
        rooms: &Services,
        (tenant, id): (&TenantId, &SessionId),
        purged: PurgedSessionPolicy,
    ) -> Result<RemoteHistory<ManifestHistory>> {
        let found: Vec<_> =
            self.bucket.list(&object_keys::session(tenant, id)).try_collect().await.map_err(trouble)?;
        let mut named: Vec<((u64, EventSeq), String)> = found
            .into_iter()
            .filter_map(|found| Some((object_keys::numbers(&found.key)?, found.key)))
            .collect();
        named.sort();
        let Some((mut highest, _)) = named.last().cloned() else { return Ok(RemoteHistory::Nothing) };
        let kept = named.iter().map(|((_, seq), _)| *seq).collect();
        let (mut why, mut buried) = (String::new(), None);
        while let Some((_, key)) = named.pop() {
            match self.read_manifest(rooms, (tenant, id), &key).await? {
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
                    // A tombstone's number is no event.
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
                    tracing::warn!(session = %id, %tenant, key, damage, "a manifest in the object store cannot be read; the one before it is used");
                    why = damage;
                }
            }
        }
        match buried {
            Some(tombstone) => Ok(RemoteHistory::Purged(tombstone)),
            None => Err(super::bring_back::damaged(id, &format!("none of its manifests can be read: {why}"))),
        }
    }

    /// `Err`: it is not what was put there, or is gone. Trouble with the store itself is an error of ours.
    async fn read_manifest(
        &self,
        rooms: &Services,
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
            Err(error) => return Err(trouble(error)),
        };
        // Without the tenant's key it would be unreadable for another reason than damage.
        let bytes = rooms.repo(tenant)?.unseal(bytes.into(), key)?;
        Ok(match ManifestObject::parse(&bytes) {
            Ok(told) if told.is_of(tenant, id) => Ok(told),
            Ok(_) => Err("it is another session's".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    /// For a session that the database does not know.
    pub(super) async fn rebuilt(&self, rooms: &Services, known: ManifestHistory) -> Result<RebuiltSession> {
        match self.beyond(rooms, &known).await? {
            Some(rebuilt) => Ok(rebuilt),
            None => self.rebuilt_from_manifest(rooms, known).await,
        }
    }

    /// A manifest may be missing although its pack is there: the pack tells what the manifest did.
    async fn beyond(&self, rooms: &Services, known: &ManifestHistory) -> Result<Option<RebuiltSession>> {
        let manifest = &known.manifest;
        if known.buried.is_some() {
            return Ok(None);
        }
        let names = self.pack_names(&manifest.tenant).await?;
        let proof = rooms.proven_far(&manifest.tenant, &manifest.session, names).await?;
        let Some(proof) =
            proof.filter(|proof| proof.workspace == manifest.workspace && proof.seq > manifest.seq)
        else {
            return Ok(None);
        };
        tracing::warn!(session = %manifest.session, manifest = manifest.seq, pack = proof.seq, "a manifest is missing in the object store although its pack is there; the session comes back from the pack");
        let epoch = proof.epoch.unwrap_or(manifest.epoch).max(known.proven.0);
        let history = PackHistory::read(rooms, &proof, &manifest.tenant).await?;
        let mut rebuilt = history.rebuilt(rooms, manifest.base, epoch).await?;
        rebuilt.witness = HistorySource::Bucket;
        let now = rooms.clock();
        rebuilt.checkpoints.iter_mut().for_each(|checkpoint| checkpoint.uploaded_at = Some(now));
        // The names of manifests that cannot be read tell of events that no pack has.
        let (last, upto) = (rebuilt.last_seq(), known.proven.1);
        rebuilt.events.extend(filled(BTreeMap::new(), (last, upto.max(last)), manifest.last_active_at));
        rebuilt.manifest.seq = rebuilt.last_seq();
        Ok(Some(rebuilt))
    }

    /// As they were a moment ago at the most.
    async fn pack_names(&self, tenant: &TenantId) -> Result<Arc<Vec<String>>> {
        let kept = self.names.lock().expect("nobody panics while holding it").get(tenant).cloned();
        if let Some((_, names)) = kept.filter(|(at, _)| at.elapsed() < LISTED) {
            return Ok(names);
        }
        let at = Instant::now();
        let packs: Vec<_> =
            self.bucket.list(&object_keys::packs(tenant)).try_collect().await.map_err(trouble)?;
        let names = packs.iter().filter_map(|found| found.key.rsplit('/').next().map(str::to_owned));
        let names = Arc::new(names.collect::<Vec<_>>());
        let mut kept = self.names.lock().expect("nobody panics while holding it");
        kept.insert(tenant.clone(), (at, names.clone()));
        Ok(names)
    }

    async fn rebuilt_from_manifest(
        &self,
        rooms: &Services,
        known: ManifestHistory,
    ) -> Result<RebuiltSession> {
        let events = self.log(rooms, &known).await?;
        let ManifestHistory { mut manifest, kept, proven: (epoch, seq), .. } = known;
        let agents = self.agents(rooms, &manifest.tenant, &manifest.agent, Some(manifest.version)).await?;
        (manifest.epoch, manifest.seq) = (manifest.epoch.max(epoch), seq.max(manifest.seq));
        // What came after a manifest that can be read may have changed them.
        if let Some(options) = last_options(&events) {
            manifest.options = options;
        }
        let (card, turns) = super::bring_back::folded(&manifest, &events)?;
        let checkpoints = super::bring_back::checkpoints(&manifest, &events, &kept, rooms.clock())?;
        let (node, at, witness) = (rooms.settings.node.clone(), rooms.clock(), HistorySource::Bucket);
        let purged = None;
        Ok(RebuiltSession {
            witness,
            purged,
            manifest,
            node,
            summary: card,
            agents,
            events,
            turns,
            checkpoints,
            at,
        })
    }

    /// All events of its own: from the packs, from the newest back, and what manifests have beyond them.
    async fn log(&self, rooms: &Services, known: &ManifestHistory) -> Result<Vec<EventLine>> {
        let ManifestHistory { manifest, older, proven, .. } = known;
        let (base, upto) = (manifest.base.unwrap_or(0), proven.1.max(manifest.seq));
        let repo = rooms.repo(&manifest.tenant)?;
        let mut lines = told_by(&repo, manifest).await?;
        let whole = |lines: &BTreeMap<EventSeq, EventLine>, upto: EventSeq| {
            lines.range(base + 1..=upto).count() as u64 == upto - base.min(upto)
        };
        for key in older.iter().take(MAX_OLDER) {
            if whole(&lines, manifest.seq) {
                break;
            }
            let of = (&manifest.tenant, &manifest.session);
            match self.read_manifest(rooms, of, key).await? {
                Ok(ManifestObject::Session(before)) if before.created_at == manifest.created_at => {
                    for (seq, line) in told_by(&repo, &before).await? {
                        lines.entry(seq).or_insert(line);
                    }
                }
                // What was before is of another session, which had this id.
                Ok(ManifestObject::Session(_) | ManifestObject::Purged(_)) => break,
                Err(_) => {}
            }
        }
        lines.retain(|seq, _| *seq > base && *seq <= upto);
        Ok(filled(lines, (base, upto), manifest.last_active_at))
    }
}

/// What stands under a manifest's name.
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

/// As far as packs that can be read lead back from a manifest, and its own events.
async fn told_by(repo: &Arc<Repo>, manifest: &SessionManifest) -> Result<BTreeMap<EventSeq, EventLine>> {
    let (repo, chain, id) = (repo.clone(), manifest.log_snapshot.clone(), manifest.session.clone());
    let created_at = manifest.created_at;
    let base = manifest.base.unwrap_or(0);
    let mut lines = blocking(move || {
        let (mut lines, mut seen, mut next) = (BTreeMap::new(), HashSet::new(), chain);
        while let Some(text) = next.take().filter(|text| seen.insert(text.clone())) {
            let Ok(tree) = TreeId::parse(&text) else { break };
            let Some(record) = unless_damaged(embedded_log::read(&repo, &tree), &id)?.flatten() else {
                break;
            };
            if record.session != id || record.created_at != created_at {
                break;
            }
            let part = unless_damaged(embedded_log::lines(&repo, &tree), &id)?.unwrap_or_default();
            lines.extend(part.into_iter().map(|line| (line.seq, line)));
            next = (record.after > base).then_some(record.previous);
        }
        Ok(lines)
    })
    .await?;
    lines.extend(manifest.events.iter().map(|line| (line.seq, line.clone())));
    Ok(lines)
}

/// `None`: the pack is damaged or gone, which is said once. Whether the store answers is another question.
fn unless_damaged<T>(read: Result<T>, id: &SessionId) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(Error::Snapshot(error @ ash_snapshot::Error::Damaged { .. })) => {
            tracing::warn!(session = %id, %error, "a pack of its log cannot be read");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// One line for each event after the first and up to the second: those that nobody has are `missing`.
pub(crate) fn filled(
    mut lines: BTreeMap<EventSeq, EventLine>,
    (after, upto): (EventSeq, EventSeq),
    at: Timestamp,
) -> Vec<EventLine> {
    let missing = |seq| EventLine {
        seq,
        turn: None,
        at,
        kind: Fact::Missing.kind().to_owned(),
        json: Fact::Missing.encode(),
    };
    (after + 1..=upto).map(|seq| lines.remove(&seq).unwrap_or_else(|| missing(seq))).collect()
}

fn last_options(events: &[EventLine]) -> Option<ash_model::SessionOptions> {
    let last = events.iter().rev().find(|line| line.kind == "configured")?;
    match Fact::decode(&last.kind, last.json.clone()) {
        Ok(Fact::Configured { options, .. }) => Some(options),
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_is_missing_and_the_log_stays_dense() {
        let line =
            |seq| EventLine { seq, turn: None, at: Timestamp(1), kind: "paused".into(), json: String::new() };
        let lines = [2, 3, 6].map(|seq| (seq, line(seq))).into();
        let filled = filled(lines, (1, 7), Timestamp(9));
        let kinds: Vec<_> = filled.iter().map(|line| (line.seq, line.kind.as_str())).collect();
        let expected =
            [(2, "paused"), (3, "paused"), (4, "missing"), (5, "missing"), (6, "paused"), (7, "missing")];
        assert_eq!(kinds, expected);
        assert_eq!(filled[2].json, r#"{"kind":"missing"}"#);
    }
}
