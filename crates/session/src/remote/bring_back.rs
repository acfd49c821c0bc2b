//! What comes back from the object store: rows of sessions and agents that the database does not know. Files come when
//! somebody resumes.

use super::{
    Replicator,
    history::{ManifestHistory, PurgedSessionPolicy},
    object_keys, trouble,
};
use crate::{Error, Result, blocking, machine::LogState, services::Services};
use ash_model::{
    AgentName, Event, EventSeq, Fact, SessionId, TenantId, Timestamp, TurnId, WorkspaceId,
    embedded_log::EventLine,
    remote::{AgentDefinition, ManifestCheckpoint, SessionManifest, SessionTombstone},
};
use ash_snapshot::Repo;
use ash_store::{AccessScope, Checkpoint, SessionSummary, TurnRow};
use futures::{StreamExt, TryStreamExt};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Objects that are read at the same time.
const AT_ONCE: usize = 16;
/// Of a pack, read at a time.
const PIECE: u64 = 8 << 20;
/// A longer line of forks than anybody has.
const MAX_FORK_GENERATIONS: usize = 1000;

/// A session as the object store has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicatedSession {
    pub tenant: TenantId,
    pub id: SessionId,
    /// `None`: it is sealed.
    pub manifest: Option<SessionManifest>,
}

/// What came back of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteRestoreReport {
    pub sessions: u64,
    pub agents: u64,
    /// Of files.
    pub bytes: u64,
    /// What could not, and why.
    pub failed: Vec<String>,
}

impl Replicator {
    /// Everything that is there, by tenant and session: without restoring anything.
    pub async fn sessions(&self) -> Result<Vec<ReplicatedSession>> {
        let mut all = Vec::new();
        for tenant in self.tenants().await? {
            let newest = self.newest(&tenant).await?;
            let read = newest.into_iter().map(|(id, key)| async move {
                let bytes = self.bucket.get(&key).await.map_err(trouble)?;
                let told = match Repo::is_sealed_blob(&bytes) {
                    true => None,
                    // One that was purged is not there.
                    false if serde_json::from_slice::<SessionTombstone>(&bytes).is_ok() => return Ok(None),
                    false => Some(parsed::<SessionManifest>(&key, &bytes)?),
                };
                Ok::<_, Error>(Some((id, told)))
            });
            let found: Vec<_> = futures::stream::iter(read).buffered(AT_ONCE).try_collect().await?;
            all.extend(found.into_iter().flatten().map(|(id, manifest)| ReplicatedSession {
                tenant: tenant.clone(),
                id,
                manifest,
            }));
        }
        Ok(all)
    }

    /// Brings back all rows that the database does not have.
    pub async fn bring_back_all(
        &self,
        rooms: &Services,
        lazily: bool,
        tell: &mut (dyn FnMut(&RemoteRestoreReport) + Send),
    ) -> Result<RemoteRestoreReport> {
        let mut returned = RemoteRestoreReport::default();
        for tenant in self.tenants().await? {
            if !lazily {
                self.bring_packs(rooms, &tenant, &mut returned, tell).await?;
            }
            let names = self.bucket.list_dirs(&object_keys::agents(&tenant)).await.map_err(trouble)?;
            for name in names.iter().filter_map(|name| AgentName::parse(name).ok()) {
                let agents = self.agents(rooms, &tenant, &name, None).await?;
                returned.agents += u64::from(!agents.is_empty());
                rooms.store.add_agents(agents, rooms.clock()).await?;
            }
            for id in self.newest(&tenant).await?.into_keys() {
                match self.bring_back(rooms, &AccessScope::all(&tenant), &id).await {
                    Ok(found) => returned.sessions += u64::from(found),
                    Err(Error::Bucket(error)) => return Err(Error::Bucket(error)),
                    Err(error) => returned.failed.push(format!("session {id} of {tenant}: {error}")),
                }
                tell(&returned);
            }
        }
        Ok(returned)
    }

    /// All packs of a tenant that are not here.
    async fn bring_packs(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        returned: &mut RemoteRestoreReport,
        tell: &mut (dyn FnMut(&RemoteRestoreReport) + Send),
    ) -> Result<()> {
        let repo = rooms.repo(tenant)?;
        let mut all = self.bucket.list(&object_keys::packs(tenant));
        while let Some(found) = all.try_next().await.map_err(trouble)? {
            let Some(pack) = found.key.rsplit('/').next() else { continue };
            if repo.pack_file(pack).is_some() {
                continue;
            }
            let Some(mut arriving) = repo.import_pack(pack)? else { continue };
            let mut at = 0;
            while at < found.size {
                let range = at..found.size.min(at + PIECE);
                let bytes = self.bucket.get_range(&found.key, range.clone()).await.map_err(trouble)?;
                arriving = blocking(move || Ok(arriving.write(&bytes)?)).await?;
                at = range.end;
                returned.bytes += range.end - range.start;
                tell(returned);
            }
            blocking(move || Ok(arriving.finish()?)).await?;
        }
        Ok(())
    }

    /// Brings a session back, and the sessions that it is a fork of. False: there is none that they may see.
    pub async fn bring_back(&self, rooms: &Services, scope: &AccessScope, id: &SessionId) -> Result<bool> {
        let (tenant, everybody) = (&scope.tenant, AccessScope::all(&scope.tenant));
        ash_failpoint::reach_async(&format!("far.back.{tenant}")).await;
        let mut line: Vec<ManifestHistory> = Vec::new();
        let mut next = Some(id.clone());
        while let Some(id) = next.take() {
            if line.len() > MAX_FORK_GENERATIONS {
                return Err(damaged(&id, "it is a fork of a fork without an end"));
            }
            // Of those it is a fork of, the log counts, though they may have been purged, and others may have their ids.
            let purged = match line.last() {
                None => PurgedSessionPolicy::IsGone,
                Some(fork) => PurgedSessionPolicy::IsRead(fork.manifest.created_at),
            };
            let there = match purged {
                PurgedSessionPolicy::IsGone => rooms.store.find_session(&everybody, &id).await?,
                PurgedSessionPolicy::IsRead(then) => rooms.store.session_then(tenant, &id, then).await?,
            };
            if there.is_some() {
                break;
            }
            let known = self.known_or_purged(rooms, (tenant, &id), purged).await?;
            let Some(known) = known.session() else { break };
            let manifest = &known.manifest;
            if line.is_empty() && scope.owner.is_some() && scope.owner != manifest.owner {
                return Ok(false);
            }
            next = manifest.base.and(manifest.parent.clone());
            line.push(known);
        }
        let found = !line.is_empty();
        let shared = line.first().map(|known| &known.manifest).filter(|manifest| manifest.slug.is_some());
        if let Some((workspace, id)) = shared.map(|shared| (shared.workspace, shared.session.clone())) {
            let siblings = self.siblings(rooms, tenant, (workspace, &id)).await?;
            line.splice(0..0, siblings);
            // They have one epoch, and whoever comes next a higher one.
            let same = |known: &ManifestHistory| known.manifest.workspace == workspace;
            let highest = line.iter().filter(|known| same(known)).map(|known| known.manifest.epoch).max();
            for known in line.iter_mut().filter(|known| same(known)) {
                known.manifest.epoch = highest.unwrap_or(known.manifest.epoch);
            }
        }
        for known in line.into_iter().rev() {
            let purged = known.buried.clone();
            if let Some(tombstone) = &purged {
                crate::witness::note_purge(rooms, tombstone.clone()).await?;
            }
            let rebuilt = Box::pin(self.rebuilt(rooms, known)).await?;
            rooms.store.rebuild(ash_store::RebuiltSession { purged, ..rebuilt }).await?;
        }
        Ok(found)
    }

    /// The others of a shared workspace: its files are what the last of them has left.
    async fn siblings(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        (workspace, but): (WorkspaceId, &SessionId),
    ) -> Result<Vec<ManifestHistory>> {
        let mut siblings = Vec::new();
        for id in self.newest(tenant).await?.into_keys().filter(|id| id != but) {
            if rooms.store.find_session(&AccessScope::all(tenant), &id).await?.is_some() {
                continue;
            }
            let found = self.known_session(rooms, tenant, &id).await?.session();
            siblings.extend(found.filter(|known| known.manifest.workspace == workspace));
        }
        Ok(siblings)
    }

    pub(crate) async fn tenants(&self) -> Result<Vec<TenantId>> {
        let names = self.bucket.list_dirs(object_keys::TENANTS).await.map_err(trouble)?;
        Ok(names.iter().filter_map(|name| TenantId::parse(name).ok()).collect())
    }

    /// The newest manifest of every session.
    pub(super) async fn newest(&self, tenant: &TenantId) -> Result<BTreeMap<SessionId, String>> {
        let mut newest: BTreeMap<SessionId, String> = BTreeMap::new();
        let mut all = self.bucket.list(&object_keys::sessions(tenant));
        while let Some(found) = all.try_next().await.map_err(trouble)? {
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

    /// An agent as it is, and the version that is asked for, or all of them.
    pub(super) async fn agents(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        name: &AgentName,
        only: Option<u32>,
    ) -> Result<Vec<AgentDefinition>> {
        let mut newest: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        let mut all = self.bucket.list(&object_keys::agent(tenant, name));
        while let Some(found) = all.try_next().await.map_err(trouble)? {
            let Some((version, changes)) = object_keys::numbers(&found.key) else { continue };
            let kept = newest.entry(version).or_default();
            if changes >= kept.0 {
                *kept = (changes, found.key);
            }
        }
        let last = newest.keys().max().copied();
        let wanted =
            |version: &u64| only.is_none_or(|only| u64::from(only) == *version) || Some(*version) == last;
        let read = newest.into_iter().filter(|(version, _)| wanted(version));
        let read = read
            .map(|(_, (_, key))| async move { self.fetched::<AgentDefinition>(rooms, tenant, &key).await });
        let agents: Vec<AgentDefinition> =
            futures::stream::iter(read).buffered(AT_ONCE).try_collect().await?;
        Ok(agents.into_iter().filter(|agent| agent.tenant == *tenant && agent.name == *name).collect())
    }

    async fn fetched<T: serde::de::DeserializeOwned>(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        key: &str,
    ) -> Result<T> {
        let bytes = self.bucket.get(key).await.map_err(trouble)?;
        let bytes = rooms.repo(tenant)?.unseal(bytes.into(), key)?;
        parsed(key, &bytes)
    }
}

/// What the log makes of a session.
pub(crate) fn folded(
    manifest: &SessionManifest,
    lines: &[EventLine],
) -> Result<(SessionSummary, Vec<TurnRow>)> {
    let mut state = LogState::new(manifest.base.unwrap_or(0));
    let mut turns: HashMap<TurnId, TurnRow> = HashMap::new();
    for line in lines.iter().filter(|line| line.kind != "said") {
        state.apply(line.seq, &event(&manifest.session, line)?.fact);
        turns.extend(state.take_changed_turns().into_iter().map(|row| (row.id, row)));
    }
    let mut card = state.summary();
    if manifest.base.is_some() {
        // No event of its own tells what it has of its parent.
        card.title = manifest.title.clone();
        card.last_text = manifest.last_text.clone();
        card.turns = manifest.turns;
    }
    Ok((card, turns.into_values().collect()))
}

/// All of them. One of which there is no manifest was given up; its pack still tells of the log.
pub(crate) fn checkpoints(
    manifest: &SessionManifest,
    lines: &[EventLine],
    kept: &BTreeSet<EventSeq>,
    now: Timestamp,
) -> Result<Vec<Checkpoint>> {
    let mut all: Vec<Checkpoint> =
        manifest.initial_checkpoints.iter().map(|first| row(manifest, first, now)).collect();
    let newest = manifest.checkpoint.as_ref();
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| line.kind == "saved") {
        let Fact::Saved(saved) = event(&manifest.session, line)?.fact else { continue };
        // It covers what was recorded with it.
        let after = lines.get(number + 1).filter(|after| after.kind == "finished");
        let ends = after.map(|after| event(&manifest.session, after)).transpose()?;
        let ends = ends.filter(
            |after| matches!(&after.fact, Fact::Finished { checkpoint, .. } if *checkpoint == Some(saved.number)),
        );
        // If the turn waited for the object store, it ended only after the manifest was there.
        let seqs = ends.map(|after| after.seq).into_iter().chain([line.seq]);
        let there = seqs.clone().find(|seq| kept.contains(seq));
        let seq = there.or_else(|| seqs.last()).unwrap_or(line.seq);
        if all.iter().any(|known| known.number == saved.number) {
            continue;
        }
        let known = newest.filter(|newest| newest.number == saved.number);
        all.push(Checkpoint {
            workspace: manifest.workspace,
            number: saved.number,
            turn: saved.turn,
            seq,
            tree: saved.tree,
            consistency: saved.consistency,
            salvage: saved.salvage,
            mid_turn: saved.mid_turn,
            files: saved.files,
            bytes: saved.bytes,
            skipped: known.map_or(Some(saved.skipped.len() as u64), |known| known.skipped),
            unsettled: known.and_then(|known| known.unsettled),
            concurrent_turns: saved.concurrent_turns,
            rewound_to: saved.rewound_to,
            removed_at: there.is_none().then_some(now),
            uploaded_at: Some(now),
            at: line.at,
        });
    }
    Ok(all)
}

fn row(manifest: &SessionManifest, checkpoint: &ManifestCheckpoint, now: Timestamp) -> Checkpoint {
    Checkpoint {
        workspace: manifest.workspace,
        number: checkpoint.number,
        turn: checkpoint.turn,
        seq: checkpoint.seq,
        tree: checkpoint.tree.clone(),
        consistency: checkpoint.consistency,
        salvage: checkpoint.salvage,
        mid_turn: checkpoint.mid_turn,
        files: checkpoint.files,
        bytes: checkpoint.bytes,
        skipped: checkpoint.skipped,
        unsettled: checkpoint.unsettled,
        concurrent_turns: checkpoint.concurrent_turns.clone(),
        rewound_to: checkpoint.rewound_to,
        removed_at: None,
        uploaded_at: Some(now),
        at: checkpoint.at,
    }
}

fn event(id: &SessionId, line: &EventLine) -> Result<Event> {
    let fact = Fact::decode(&line.kind, line.json.clone()).map_err(|error| {
        tracing::warn!(session = %id, seq = line.seq, %error, "an event from the object store cannot be read");
        damaged(id, &format!("event {} cannot be read", line.seq))
    })?;
    Ok(Event { seq: line.seq, turn: line.turn, at: line.at, fact })
}

fn parsed<T: serde::de::DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        tracing::warn!(key, %error, "an object cannot be read");
        let place = format!("it cannot be read from line {}, column {} on", error.line(), error.column());
        let what = format!("{key} in the object store is not what was put there ({place})");
        Error::Far(format!("{what}: somebody else has changed it"))
    })
}

pub(super) fn damaged(id: &SessionId, what: &str) -> Error {
    Error::Far(format!("session {id} cannot be brought back: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_in_words_of_our_own() {
        let id = SessionId::parse("s").expect("an id");
        let line = |kind: &str| EventLine {
            seq: 7,
            turn: None,
            at: Timestamp(0),
            kind: kind.to_owned(),
            json: "{}".to_owned(),
        };
        let events = ["queued", "of-tomorrow"].map(|kind| event(&id, &line(kind)).expect_err(kind));
        let objects = [&b"{"[..], b"[]", b"{\"session\": 5}"]
            .map(|bytes| parsed::<SessionManifest>("manifests/s/1", bytes).expect_err("damaged"));
        for error in events.into_iter().chain(objects) {
            let said = error.to_string();
            assert!(
                said.contains("event 7 cannot be read") || said.contains("from line 1, column"),
                "{said}"
            );
            for word in ["missing field", "invalid type", "expected", "unknown", "EOF", "at line"] {
                assert!(!said.contains(word), "{word}: {said}");
            }
        }
    }
}
