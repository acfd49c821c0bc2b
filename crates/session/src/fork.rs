//! Creates a session from another one: in a copy of its workspace, or in the same workspace.

use crate::{
    Error, Result, Sessions, blocking,
    files::FileSource,
    live_directory::open_root,
    mailbox::{ActorMessage, ForkPoint},
    rewind::AgentMemoryTree,
    services::Services,
    sessions::{IdFrom, beginning, native_id},
};
use ash_model::{
    Epoch, EventSeq, Fact, NewEvent, SessionId, SessionOptions, SessionStatus, TenantId, WorkspaceId,
};
use ash_snapshot::{FileOwner, TreeId};
use ash_store::{AccessScope, AuditEntry, Checkpoint, ForkBase, SecretEnv, SessionRow, SessionSummary};
use uuid::Uuid;

#[derive(Debug, Clone)]
pub struct ForkSpec {
    pub id: SessionId,
    pub id_from: IdFrom,
    /// `None`: the session as it is now.
    pub checkpoint: Option<u64>,
    /// The fork works in its parent's workspace, if that has a name; otherwise in a copy.
    pub in_place: bool,
    /// Who forks it.
    pub audit: AuditEntry,
}

/// The sealed values that a fork takes over.
struct ForkSecrets {
    env: SecretEnv,
    secrets: SecretEnv,
}

impl Sessions {
    pub async fn fork(&self, parent: &SessionRow, fork: ForkSpec) -> Result<SessionRow> {
        let (sessions, parent) = (self.clone(), parent.clone());
        tokio::spawn(async move { sessions.fork_whole(&parent, fork).await })
            .await
            .map_err(|_| Error::Gone)?
    }

    async fn fork_whole(&self, parent: &SessionRow, fork: ForkSpec) -> Result<SessionRow> {
        self.check_room_for_work()?;
        let services = self.services();
        // The version also exists if the agent was deleted, because a session keeps the version that it was created
        // with.
        if services.store.version(&parent.tenant, &parent.agent, parent.version).await?.is_none() {
            return Err(Error::NoAgent(parent.agent.to_string()));
        }
        let point: ForkPoint = match fork.checkpoint {
            Some(number) => self.fork_point_at(parent, number).await?,
            None => self.ask(parent.no, |reply| ActorMessage::ForkPoint { reply }).await?,
        };
        let base = match parent.options.base {
            Some(number) => services.store.checkpoint(parent.workspace, number).await?,
            None => None,
        };
        // What entered the workspace after the fork point is not in the fork.
        let base = base.filter(|base| point.checkpoint.as_ref().is_none_or(|at| base.seq <= at.seq));
        let hidden = ForkSecrets {
            env: services.store.env(parent.no).await?,
            secrets: services.store.secrets(parent.no).await?,
        };
        if fork.in_place {
            let point = self.remember(parent, point).await?;
            let new = forked_beside(services, parent, &fork, point, hidden);
            return self.make_fork(new, fork.id_from).await;
        }
        let from = (point, base);
        let new = forked(services, parent, &fork, from, WorkspaceId::fresh(), hidden);
        self.make_fork(new, fork.id_from).await
    }

    async fn make_fork(&self, new: ash_store::NewSessionRow, id_from: IdFrom) -> Result<SessionRow> {
        let services = self.services();
        let beginning = beginning(services, &new.tenant, (&new.id, id_from)).await?;
        if let Some(slug) = &new.slug {
            beginning.in_shared(services, &new.id, (new.workspace, slug)).await?;
        }
        let native_id = beginning.native_id(&new.tenant, &new.id);
        let (epoch, at) = (beginning.epoch, beginning.at.max(new.at));
        let fork =
            services.store.create_session(ash_store::NewSessionRow { epoch, at, native_id, ..new }).await?;
        services.witnesses.mark_compared(fork.no);
        Ok(fork)
    }

    /// Copies the parent's conversation at this point into a memory of its own, which stays the same whatever the
    /// parent does next.
    async fn remember(&self, parent: &SessionRow, point: ForkPoint) -> Result<ForkPoint> {
        let Some(checkpoint) = &point.checkpoint else { return Ok(point) };
        let place = self.files_to_write(parent).await?;
        let FileSource::Live { uid, .. } = place.source else { return Err(Error::NoWorkspace) };
        let (tree, repo) =
            (TreeId::parse(&checkpoint.tree).map_err(|_| Error::NoWorkspace)?, place.repo.clone());
        let (live, driver) =
            (self.services().workspace(parent.workspace).live.clone(), ash_driver::driver(parent.runtime));
        let cwd = self.services().inside(&live).workspace;
        let (from, memory) = (point.memory, Uuid::new_v4());
        blocking(move || {
            let home = open_root(&live.home())?;
            let owner = uid.map(|uid| FileOwner { uid, gid: uid });
            let then = AgentMemoryTree::of(&repo, &tree)?;
            for (from, to) in driver.memory_paths(&cwd, from).iter().zip(driver.memory_paths(&cwd, memory)) {
                then.put((from, &to), &home, owner)?;
            }
            Ok(())
        })
        .await?;
        drop(place);
        self.touched(parent.no).await?;
        Ok(ForkPoint { memory, ..point })
    }
}

fn forked(
    services: &Services,
    parent: &SessionRow,
    fork: &ForkSpec,
    (point, counted_from): (ForkPoint, Option<Checkpoint>),
    workspace: WorkspaceId,
    hidden: ForkSecrets,
) -> ash_store::NewSessionRow {
    let at = services.clock();
    let seq = point.checkpoint.as_ref().map(|checkpoint| checkpoint.seq);
    let base = counted_from.as_ref().map(|_| 1);
    let mut first: Vec<Checkpoint> = counted_from.into_iter().chain(point.checkpoint.clone()).collect();
    first.dedup_by_key(|checkpoint| checkpoint.number);
    for (number, checkpoint) in (1..).zip(&mut first) {
        // The parent's checkpoint may be in the object store; the fork's is not recorded there yet.
        *checkpoint =
            Checkpoint { workspace, number, turn: None, uploaded_at: None, at, ..checkpoint.clone() };
    }
    let newest = first.last().map(|checkpoint| checkpoint.number);
    let new = child(services, parent, fork, (point, newest, seq), hidden);
    let options = SessionOptions { base, ..new.options };
    ash_store::NewSessionRow { workspace, options, first_checkpoints: first, ..new }
}

/// A fork in the workspace of its parent, which has the checkpoints.
fn forked_beside(
    services: &Services,
    parent: &SessionRow,
    fork: &ForkSpec,
    point: ForkPoint,
    hidden: ForkSecrets,
) -> ash_store::NewSessionRow {
    let at = point.checkpoint.as_ref().map(|checkpoint| (checkpoint.number, checkpoint.seq)).unzip();
    let new = child(services, parent, fork, (point, at.0, at.1), hidden);
    ash_store::NewSessionRow { slug: parent.slug.clone(), ..new }
}

/// Limits above the tenants' maximum were granted by the operator to this one session: its owner cannot multiply them
/// by forking. Only the operator can fork the operator's own sessions, and those keep their limits.
fn options(services: &Services, parent: &SessionRow) -> SessionOptions {
    let mut options = parent.options.clone();
    let scope = AccessScope { tenant: parent.tenant.clone(), owner: parent.owner.clone() };
    if scope != AccessScope::all(&TenantId::main()) {
        let most = services.settings.tenant_limits();
        options.limits = options.limits.map(|limits| limits.cut_to(most));
    }
    options
}

/// What every fork gets from its parent.
fn child(
    services: &Services,
    parent: &SessionRow,
    fork: &ForkSpec,
    (point, newest, seq): (ForkPoint, Option<u64>, Option<EventSeq>),
    hidden: ForkSecrets,
) -> ash_store::NewSessionRow {
    // Not earlier than the parent's creation, even if the clock went back: this time identifies which session with the
    // parent's id is the parent.
    let at = services.clock().max(parent.created_at);
    let fact = Fact::Forked {
        parent: Some(parent.id.clone()),
        checkpoint: newest,
        memory: point.memory,
        turns_delivered: point.turns_delivered,
        waiting: point.waiting,
    };
    let card = SessionSummary {
        status: SessionStatus::Paused,
        problem: None,
        open_turns: 0,
        checkpoint: newest,
        pending: Vec::new(),
        lock: None,
        ..point.summary
    };
    ash_store::NewSessionRow {
        tenant: parent.tenant.clone(),
        owner: parent.owner.clone(),
        metadata: parent.metadata.clone(),
        id: fork.id.clone(),
        workspace: parent.workspace,
        node: services.settings.node.clone(),
        agent: parent.agent.clone(),
        version: parent.version,
        runtime: parent.runtime,
        native_id: native_id(&parent.tenant, &fork.id),
        options: options(services, parent),
        env: hidden.env,
        secrets: hidden.secrets,
        parent: Some(parent.id.clone()),
        base: seq.map(|seq| ForkBase { parent: parent.no, seq }),
        slug: None,
        first_checkpoints: Vec::new(),
        summary: card,
        events: vec![NewEvent { turn: None, at, fact }],
        audit: Some(fork.audit.clone()),
        epoch: Epoch(1),
        at,
    }
}
