//! Sandboxes that are built before a request needs them, for agents in use; the server's settings say how many. Each is
//! a workspace without a session, with its own id and uid, the files of one version of an agent, and a sandbox in which
//! only our init runs. A session takes it over whole. What belongs to the session (its environment, options,
//! conversation) follows when the agent starts, as in a sandbox that was built for it.

use crate::{
    Result, blocking,
    live_directory::LiveTree,
    uid_pool::UidPool,
    workspace::{Sandbox, Workspace},
};
use ash_model::{AgentName, Image, QuotaKind, Quotas, TenantId, WorkspaceId};
use ash_sandbox::{JournalPayload, RecordStream, SandboxLimits, UserNamespacePolicy};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// After this time without use an agent gets no more warm sandboxes, and those that it has are ended.
const AGENT_UNUSED_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// How often dead sandboxes are looked for.
pub(crate) const LOOK: Duration = Duration::from_secs(30);
/// How often a stopping server checks whether the last sandbox is built.
const SHUTDOWN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What makes two warm sandboxes interchangeable: everything that is built in and cannot be added later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WarmSandboxKind {
    pub(crate) tenant: TenantId,
    pub(crate) agent: AgentName,
    pub(crate) version: u32,
    pub(crate) tree: String,
    pub(crate) build: SandboxBuildSpec,
    /// How many are kept.
    pub(crate) target: usize,
    /// The agent itself asks for them, so they are kept without a time limit; otherwise as long as the agent is in use.
    pub(crate) is_asked_for: bool,
}

/// The settings that a sandbox is built with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxBuildSpec {
    pub(crate) limits: SandboxLimits,
    /// Directories that appear inside at the same path.
    pub(crate) readonly: Vec<PathBuf>,
    pub(crate) image: Option<Image>,
    pub(crate) user_namespaces: UserNamespacePolicy,
}

impl WarmSandboxKind {
    fn is_of(&self, tenant: &TenantId, agent: &AgentName) -> bool {
        self.tenant == *tenant && self.agent == *agent
    }
}

/// A sandbox that waits for a session. Dropping it unused ends it.
pub(crate) struct WarmSandbox {
    pub(crate) uids: Arc<UidPool>,
    pub(crate) kind: WarmSandboxKind,
    pub(crate) id: WorkspaceId,
    pub(crate) workspace: Arc<Workspace>,
    pub(crate) uid: Option<u32>,
    /// None: a session has taken it over.
    pub(crate) inside: Option<(Arc<Sandbox>, RecordStream)>,
}

impl WarmSandbox {
    /// For the session that owns the workspace from now on.
    pub(crate) fn hand_over(mut self) -> Result<Arc<Workspace>> {
        self.workspace.live.claim()?;
        self.workspace.set_tree(Some(LiveTree { uid: self.uid }));
        if let Some((build, records)) = self.inside.take() {
            self.workspace.set_prepared(build, records);
        }
        Ok(self.workspace.clone())
    }

    fn is_alive(&mut self) -> bool {
        let Some((build, records)) = &mut self.inside else { return false };
        let mut gone = build.remote.is_closed();
        while let Some(record) = records.ready() {
            gone |= matches!(record.payload, JournalPayload::SandboxGone { .. });
        }
        !gone
    }

    /// Ends it, and waits until nothing of it is left.
    pub(crate) async fn discard(mut self) {
        if let Some(inside) = self.inside.take() {
            end(self.uids.clone(), self.workspace.clone(), inside).await;
        }
    }
}

impl Drop for WarmSandbox {
    fn drop(&mut self) {
        if let Some(inside) = self.inside.take() {
            // If no async runtime runs any more, the next server ends it.
            tokio::spawn(end(self.uids.clone(), self.workspace.clone(), inside));
        }
    }
}

async fn end(
    uids: Arc<UidPool>,
    workspace: Arc<Workspace>,
    (build, mut records): (Arc<Sandbox>, RecordStream),
) {
    build.remote.end().await.ok();
    tokio::time::timeout(LOOK, async { while records.next().await.is_some() {} }).await.ok();
    clear_away(&uids, &workspace).await;
}

pub(crate) async fn clear_away(uids: &Arc<UidPool>, workspace: &Workspace) {
    let (uids, live) = (uids.clone(), workspace.live.clone());
    let cleared = blocking(move || {
        ash_sandbox::reap(&live.run())?;
        live.erase(&uids)
    });
    if let Err(error) = cleared.await {
        tracing::warn!(%error, "an unused sandbox could not be removed; the next start of the server removes it");
    }
}

/// Keeps the warm sandboxes of this server.
pub(crate) struct WarmPool {
    inner: Mutex<WarmPoolState>,
    quotas: Quotas,
    /// One is needed, or was claimed.
    pub(crate) bell: Notify,
}

#[derive(Default)]
struct WarmPoolState {
    /// The oldest first.
    ready: Vec<WarmSandbox>,
    /// Agents in use; the next one to build for comes first.
    wanted: Vec<WarmSandboxDemand>,
    /// The kind that is being built.
    making: Option<WarmSandboxKind>,
    closed: bool,
}

struct WarmSandboxDemand {
    kind: WarmSandboxKind,
    /// When one of them was last requested.
    asked: Instant,
    /// The last build failed, so the next one is not before this.
    not_before: Option<Instant>,
}

impl WarmPool {
    pub(super) fn new(quotas: Quotas) -> WarmPool {
        WarmPool { inner: Mutex::default(), quotas, bell: Notify::new() }
    }

    fn inner(&self) -> MutexGuard<'_, WarmPoolState> {
        self.inner.lock().expect("no thread panics while holding it")
    }

    /// How many wait, and how many are being built.
    pub(super) fn counts(&self) -> (usize, usize) {
        let inner = self.inner();
        (inner.ready.len(), usize::from(inner.making.is_some()))
    }

    /// An agent is in use. Warm sandboxes for another version of it, or with other limits, are useless now.
    pub(crate) fn request(&self, kind: WarmSandboxKind) {
        let (tenant, agent) = (kind.tenant.clone(), kind.agent.clone());
        let stale = {
            let mut inner = self.inner();
            // A new request does not fix the cause of a failed build, so the delay stays.
            let same = inner.wanted.iter().find(|wanted| wanted.kind == kind);
            let not_before = same.and_then(|wanted| wanted.not_before);
            inner.wanted.retain(|wanted| !wanted.kind.is_of(&tenant, &agent));
            let stale = inner.drain(|ready| ready.is_of(&tenant, &agent) && *ready != kind);
            inner.wanted.push(WarmSandboxDemand { kind, asked: Instant::now(), not_before });
            stale
        };
        drop(stale);
        self.bell.notify_one();
    }

    /// The agent was deleted.
    pub(crate) fn forget(&self, tenant: &TenantId, agent: &AgentName) {
        let stale = {
            let mut inner = self.inner();
            inner.wanted.retain(|wanted| !wanted.kind.is_of(tenant, agent));
            inner.drain(|ready| ready.is_of(tenant, agent))
        };
        drop(stale);
    }

    /// A warm sandbox of this kind that is alive.
    pub(crate) fn claim(&self, kind: &WarmSandboxKind) -> Option<WarmSandbox> {
        loop {
            let mut found = {
                let mut inner = self.inner();
                let at = inner.ready.iter().position(|ready| ready.kind == *kind)?;
                inner.ready.remove(at)
            };
            if found.is_alive() {
                return Some(found);
            }
        }
    }

    /// The oldest warm sandbox.
    pub(super) fn oldest(&self) -> Option<WarmSandbox> {
        let mut inner = self.inner();
        (!inner.ready.is_empty()).then(|| inner.ready.remove(0))
    }

    pub(crate) fn next_to_build(&self, now: Instant) -> Option<WarmSandboxKind> {
        let mut inner = self.inner();
        if inner.closed {
            return None;
        }
        let ready = inner.ready.iter().map(|ready| &ready.kind);
        let count = |kind: &WarmSandboxKind| ready.clone().filter(|ready| *ready == kind).count();
        let of_tenant =
            |kind: &WarmSandboxKind| ready.clone().filter(|ready| ready.tenant == kind.tenant).count() as u64;
        if self.quotas.admit(QuotaKind::PrewarmedTotal, inner.ready.len() as u64, 1).is_err() {
            return None;
        }
        // A tenant at its quota is skipped, so that its agents do not delay those of others.
        let has_room =
            |kind: &&WarmSandboxKind| self.quotas.admit(QuotaKind::Prewarmed, of_tenant(kind), 1).is_ok();
        let is_due = |wanted: &&WarmSandboxDemand| wanted.not_before.is_none_or(|at| at <= now);
        let mut due = inner.wanted.iter().filter(is_due).map(|wanted| &wanted.kind).filter(has_room);
        let kind = due.find(|kind| count(kind) < kind.target)?.clone();
        inner.making = Some(kind.clone());
        Some(kind)
    }

    /// Gives it back if it is not needed any more.
    pub(crate) fn put(&self, built: WarmSandbox) -> Option<WarmSandbox> {
        let mut inner = self.inner();
        let wanted = inner.wanted.iter().any(|wanted| wanted.kind == built.kind) && !inner.closed;
        if !wanted {
            return Some(built);
        }
        inner.ready.push(built);
        None
    }

    /// The build of this kind failed; other kinds are not delayed by it.
    pub(crate) fn try_later(&self, kind: &WarmSandboxKind, now: Instant) {
        let mut inner = self.inner();
        if let Some(at) = inner.wanted.iter().position(|wanted| wanted.kind == *kind) {
            let failed = inner.wanted.remove(at);
            inner.wanted.push(WarmSandboxDemand { not_before: Some(now + LOOK), ..failed });
        }
    }

    pub(crate) fn finish_build(&self) {
        self.inner().making = None;
    }

    /// Removes those that died or are not needed any more.
    pub(crate) fn discard_stale(&self) {
        let stale = {
            let mut inner = self.inner();
            inner
                .wanted
                .retain(|wanted| wanted.kind.is_asked_for || wanted.asked.elapsed() < AGENT_UNUSED_TIMEOUT);
            let wanted: Vec<WarmSandboxKind> =
                inner.wanted.iter().map(|wanted| wanted.kind.clone()).collect();
            let (alive, stale) = std::mem::take(&mut inner.ready)
                .into_iter()
                .map(|mut ready| (ready.is_alive() && wanted.contains(&ready.kind), ready))
                .partition::<Vec<_>, _>(|(alive, _)| *alive);
            inner.ready = alive.into_iter().map(|(_, ready)| ready).collect();
            stale
        };
        drop(stale);
    }

    /// Ends the pool, because the server stops.
    pub(crate) async fn close(&self) {
        let all = {
            let mut inner = self.inner();
            inner.closed = true;
            std::mem::take(&mut inner.ready)
        };
        futures::future::join_all(all.into_iter().map(WarmSandbox::discard)).await;
        let resting = async {
            while self.inner().making.is_some() {
                tokio::time::sleep(SHUTDOWN_POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(LOOK, resting).await.ok();
    }
}

impl WarmPoolState {
    fn drain(&mut self, stale: impl Fn(&WarmSandboxKind) -> bool) -> Vec<WarmSandbox> {
        let all = std::mem::take(&mut self.ready);
        let (stale, ready) = all.into_iter().partition(|ready| stale(&ready.kind));
        self.ready = ready;
        stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(agent: &str) -> WarmSandboxKind {
        let build = SandboxBuildSpec {
            limits: SandboxLimits::default(),
            readonly: Vec::new(),
            image: None,
            user_namespaces: UserNamespacePolicy::Refused,
        };
        WarmSandboxKind {
            tenant: TenantId::main(),
            agent: AgentName::parse(agent).expect("a name"),
            version: 1,
            tree: String::new(),
            build,
            target: 1,
            is_asked_for: false,
        }
    }

    #[test]
    fn a_sandbox_that_cannot_be_built_delays_no_other() {
        let (warm, now) = (WarmPool::new(Quotas::default()), Instant::now());
        let (broken, sound) = (kind("broken"), kind("sound"));
        warm.request(broken.clone());
        warm.request(sound.clone());
        assert_eq!(warm.next_to_build(now), Some(broken.clone()));
        warm.try_later(&broken, now);
        assert_eq!(warm.next_to_build(now), Some(sound.clone()));
        warm.request(broken.clone());
        assert_eq!(warm.next_to_build(now), Some(sound.clone()), "use does not mend it");
        warm.try_later(&sound, now);
        assert_eq!(warm.next_to_build(now), None);
        let now = now + LOOK;
        assert_eq!(warm.next_to_build(now), Some(broken.clone()));
        warm.try_later(&broken, now);
        assert_eq!(warm.next_to_build(now), Some(sound), "it comes last again");
        let mended = WarmSandboxKind { version: 2, ..broken };
        warm.request(mended.clone());
        warm.forget(&mended.tenant, &kind("sound").agent);
        assert_eq!(warm.next_to_build(now), Some(mended), "another version is tried at once");
    }
}
