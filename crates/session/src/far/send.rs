//! Sending: agents first, then each session's checkpoints in their order, several sessions at a time.

use super::{BREATH, Far, LONGEST_BREATH, keys, manifest, trouble};
use crate::{Error, Result, actor::blocking, pool::Rooms};
use ash_cloud::{Code, Trouble, Written};
use ash_model::{SessionNo, TenantId, far::FarAgent};
use ash_snapshot::TreeId;
use ash_store::{Checkpoint, Outgoing};
use futures::StreamExt;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// So much is looked at at a time.
const PAGE: u32 = 200;
/// Sessions whose packs are sent at the same time.
const AT_ONCE: usize = 4;
/// Without being called it looks this often.
const NOW_AND_THEN: Duration = Duration::from_secs(30);
/// What cannot be sent for its own sake is tried again after this.
const OWN_FAULT: Duration = Duration::from_secs(600);
const DELETED_AT_ONCE: u32 = 1000;

/// Whose turn it is not yet, for a fault of its own.
type Delayed = HashMap<SessionNo, Instant>;

impl Far {
    /// As long as the server lives.
    pub async fn send_for_ever(&self, rooms: &Rooms) {
        let (mut breath, mut delayed) = (BREATH, Delayed::new());
        let mut placed = false;
        loop {
            if !placed {
                placed = rooms.store.set_far(&self.bucket.to_string()).await.is_ok();
            }
            let wait = match self.send_some(rooms, &mut delayed).await {
                Ok(0) => NOW_AND_THEN,
                Ok(_) => {
                    breath = BREATH;
                    continue;
                }
                Err(error) => {
                    if !matches!(error, Error::Bucket(_)) {
                        tracing::error!(%error, "what is to be sent could not be looked at");
                    }
                    breath = (breath * 2).min(LONGEST_BREATH);
                    breath
                }
            };
            tokio::select! {
                () = self.bell.notified(), if wait == NOW_AND_THEN => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Answers how much was sent. What the object store is to blame for ends it; what a session is to blame for
    /// delays that session alone.
    async fn send_some(&self, rooms: &Rooms, delayed: &mut Delayed) -> Result<usize> {
        let all = rooms.store.outgoing(PAGE).await?;
        let mut groups: Vec<(Option<SessionNo>, Vec<Outgoing>)> = Vec::new();
        for one in all {
            let session = match &one {
                Outgoing::Agent(_) => None,
                Outgoing::Checkpoint(session, _) | Outgoing::Log(session, _) => Some(*session),
            };
            match groups.iter_mut().find(|(of, _)| *of == session) {
                Some((_, group)) => group.push(one),
                None => groups.push((session, vec![one])),
            }
        }
        delayed.retain(|_, until| *until > Instant::now());
        groups.retain(|(session, _)| session.is_none_or(|session| !delayed.contains_key(&session)));
        let (mut count, mut failed) = (0, None);
        // Sessions need their agents.
        let agents: Vec<_> = groups.extract_if(.., |(session, _)| session.is_none()).collect();
        let sends = agents
            .into_iter()
            .chain(groups)
            .map(|(session, group)| async move { (session, self.send_group(rooms, group).await) });
        let mut sends = futures::stream::iter(sends).buffered(AT_ONCE);
        while let Some((session, (sent, result))) = sends.next().await {
            count += sent;
            match (session, result) {
                (_, Ok(())) => {}
                (_, Err(Error::Bucket(why))) => {
                    self.set_trouble(Some(why.clone()), rooms.clock());
                    failed = Some(Error::Bucket(why));
                    break;
                }
                (Some(session), Err(error)) => {
                    tracing::error!(session = session.0, %error, "a session could not be sent to the object store");
                    delayed.insert(session, Instant::now() + OWN_FAULT);
                }
                (None, Err(error)) => {
                    tracing::error!(%error, "an agent could not be sent to the object store")
                }
            }
        }
        drop(sends);
        if let Some(failed) = failed {
            return Err(failed);
        }
        count += self.delete_some(rooms).await?;
        if count > 0 || self.trouble().is_some() {
            if count == 0 {
                self.sending.check().await.map_err(trouble)?;
            }
            self.set_trouble(None, rooms.clock());
        }
        Ok(count)
    }

    async fn send_group(&self, rooms: &Rooms, group: Vec<Outgoing>) -> (usize, Result<()>) {
        let mut sent = 0;
        for one in group {
            let done = match &one {
                Outgoing::Agent(agent) => self.send_agent(rooms, agent).await.map(|()| 0),
                Outgoing::Checkpoint(session, checkpoint) => {
                    self.send_checkpoint(rooms, *session, checkpoint).await
                }
                Outgoing::Log(session, seq) => self.send_manifest(rooms, *session, None, *seq).await,
            };
            let noted = match done {
                Ok(seq) => rooms.store.sent(&one, seq, rooms.clock()).await.map_err(Error::from),
                Err(error) => Err(error),
            };
            if let Err(error) = noted {
                return (sent, Err(error));
            }
            sent += 1;
            self.sent.send_modify(|count| *count += 1);
        }
        (sent, Ok(()))
    }

    async fn send_agent(&self, rooms: &Rooms, agent: &FarAgent) -> Result<()> {
        self.send_packs(rooms, &agent.tenant, &agent.tree).await?;
        let key = keys::version(&agent.tenant, &agent.name, agent.version, agent.changes);
        self.put(rooms, &agent.tenant, &key, agent).await
    }

    /// Answers up to where the log is there now.
    async fn send_checkpoint(
        &self,
        rooms: &Rooms,
        session: SessionNo,
        checkpoint: &Checkpoint,
    ) -> Result<u64> {
        let of = rooms.store.session(session).await?.ok_or(Error::NotFound)?;
        self.send_packs(rooms, &of.tenant, &checkpoint.tree).await?;
        self.send_manifest(rooms, session, Some(checkpoint), checkpoint.seq).await
    }

    async fn send_manifest(
        &self,
        rooms: &Rooms,
        session: SessionNo,
        checkpoint: Option<&Checkpoint>,
        seq: u64,
    ) -> Result<u64> {
        let session = rooms.store.session(session).await?.ok_or(Error::NotFound)?;
        let manifest = manifest::of(rooms, &session, checkpoint, seq).await?;
        let key = keys::manifest(&session.tenant, &session.id, manifest.epoch, seq);
        self.put(rooms, &session.tenant, &key, &manifest).await?;
        Ok(seq)
    }

    async fn put<T: serde::Serialize>(
        &self,
        rooms: &Rooms,
        tenant: &TenantId,
        key: &str,
        what: &T,
    ) -> Result<()> {
        let text = serde_json::to_vec(what).expect("plain words and numbers");
        let text = rooms.repo(tenant)?.conceal(text, key);
        self.sending.put_new(key, text.into()).await.map_err(trouble)?;
        Ok(())
    }

    /// Everything that a tree needs, each pack after those that it needs itself.
    async fn send_packs(&self, rooms: &Rooms, tenant: &TenantId, tree: &str) -> Result<()> {
        let tree = TreeId::parse(tree).map_err(|_| Error::NoWorkspace)?;
        let repo = rooms.repo(tenant)?;
        let mut visiting = HashSet::new();
        let mut waiting = vec![(tree.pack_name().to_owned(), false)];
        while let Some((pack, ready)) = waiting.pop() {
            if self.is_known(rooms, tenant, &pack).await? {
                continue;
            }
            if !ready {
                let (from, name) = (repo.clone(), pack.clone());
                let needs = blocking(move || Ok(from.references_of(&name)?)).await;
                // Collection has made it smaller, and it cannot say any more what it needs.
                if let Err(Error::Snapshot(ash_snapshot::Error::Damaged { .. })) = needs {
                    return self.send_all_packs(rooms, tenant, &tree).await;
                }
                let needs = needs?;
                visiting.insert(pack.clone());
                waiting.push((pack, true));
                waiting.extend(
                    needs.into_iter().filter(|need| !visiting.contains(need)).map(|need| (need, false)),
                );
                continue;
            }
            self.send_pack(rooms, tenant, &repo, &pack).await?;
        }
        Ok(())
    }

    /// Everything that a tree needs, the oldest first: what a pack needs was there before it.
    async fn send_all_packs(&self, rooms: &Rooms, tenant: &TenantId, tree: &TreeId) -> Result<()> {
        let (repo, from, of) = (rooms.repo(tenant)?, rooms.repo(tenant)?, tree.clone());
        let mut packs = blocking(move || {
            let packs = from.packs_of(&of)?;
            let age = |pack: &String| {
                let path = from.pack_file(pack).map(|(path, _)| path)?;
                std::fs::metadata(path).and_then(|is| is.modified()).ok()
            };
            let mut packs: Vec<_> = packs.into_iter().map(|pack| (age(&pack), pack)).collect();
            packs.sort();
            Ok(packs)
        })
        .await?;
        for (_, pack) in packs.drain(..) {
            if !self.is_known(rooms, tenant, &pack).await? {
                self.send_pack(rooms, tenant, &repo, &pack).await?;
            }
        }
        Ok(())
    }

    async fn send_pack(
        &self,
        rooms: &Rooms,
        tenant: &TenantId,
        repo: &Arc<ash_snapshot::Repo>,
        pack: &str,
    ) -> Result<()> {
        let key = keys::pack(tenant, pack);
        // It may have been given up before, and be the same again: nothing is deleted while something is sent.
        rooms.store.spare(std::slice::from_ref(&key)).await?;
        let (path, size) = repo.pack_file(pack).ok_or_else(|| {
            let what = "its pack is not there".to_owned();
            Error::Snapshot(ash_snapshot::Error::Damaged { tree: pack.to_owned(), what })
        })?;
        let size = match self.sending.put_file(&key, &path, &|_| {}).await {
            Ok(Written::New | Written::There) => size,
            // Collection has made the one here or the one there shorter since: both are this pack.
            Err(Trouble { code: Code::Damaged, .. }) => {
                self.sending.head(&key).await.map_err(trouble)?.unwrap_or(size)
            }
            Err(error) => return Err(trouble(error)),
        };
        self.learn(rooms, tenant, pack, size).await
    }

    /// Whether a pack is there already. One that is not here must be: it came from there.
    async fn is_known(&self, rooms: &Rooms, tenant: &TenantId, pack: &str) -> Result<bool> {
        {
            let mut known = self.known.lock().await;
            if !known.contains_key(tenant) {
                known.insert(tenant.clone(), rooms.store.far_packs(tenant).await?);
            }
            if known[tenant].contains_key(pack) {
                return Ok(true);
            }
        }
        if rooms.repo(tenant)?.pack_file(pack).is_some() {
            return Ok(false);
        }
        let Some(size) = self.sending.head(&keys::pack(tenant, pack)).await.map_err(trouble)? else {
            return Ok(false);
        };
        self.learn(rooms, tenant, pack, size).await?;
        Ok(true)
    }

    async fn learn(&self, rooms: &Rooms, tenant: &TenantId, pack: &str, size: u64) -> Result<()> {
        rooms.store.add_far_packs(tenant, &[(pack.to_owned(), size)]).await?;
        self.known.lock().await.entry(tenant.clone()).or_default().insert(pack.to_owned(), size);
        Ok(())
    }

    /// Packs that nobody needs any more are deleted there, too, and so are the manifests of checkpoints whose files
    /// were given up.
    pub(crate) async fn give_up(&self, rooms: &Rooms, tenant: &TenantId, packs: &[String]) -> Result<()> {
        let known = rooms.store.far_packs(tenant).await?;
        let repo = rooms.repo(tenant)?;
        // One that is here was captured anew.
        let gone = packs.iter().filter(|pack| known.contains_key(*pack) && repo.pack_file(pack).is_none());
        let packs: Vec<String> = gone.cloned().collect();
        if packs.is_empty() {
            return Ok(());
        }
        let keys: Vec<String> = packs.iter().map(|pack| keys::pack(tenant, pack)).collect();
        // Written down before it is forgotten: whoever dies in between deletes what nobody needs.
        rooms.store.doom(&keys, rooms.clock()).await?;
        rooms.store.forget_far_packs(tenant, &packs).await?;
        if let Some(known) = self.known.lock().await.get_mut(tenant) {
            packs.iter().for_each(|pack| _ = known.remove(pack));
        }
        self.ring();
        Ok(())
    }

    async fn delete_some(&self, rooms: &Rooms) -> Result<usize> {
        let doomed = rooms.store.doomed(DELETED_AT_ONCE).await?;
        if doomed.is_empty() {
            return Ok(0);
        }
        let (numbers, keys): (Vec<i64>, Vec<String>) = doomed.into_iter().unzip();
        self.sending.delete(&keys).await.map_err(trouble)?;
        rooms.store.undoom(&numbers).await?;
        Ok(numbers.len())
    }
}
