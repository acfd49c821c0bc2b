//! Builds sandboxes before a request needs them, for agents in use, as long as the server runs.

use crate::{
    Error, Result, blocking,
    live_directory::{TreeRecipe, make_dir},
    pool::{LOOK, SandboxBuildSpec, SandboxPool, WarmSandbox, WarmSandboxKind, clear_away},
    resource_limits,
    services::Services,
    slots::SandboxPermit,
    workspace::Sandbox,
};
use ash_model::{AgentName, Epoch, Incarnation, SessionOptions, TenantId, WorkspaceId};
use ash_sandbox::{RecordStream, SandboxSpec, UserNamespacePolicy};
use ash_snapshot::{SnapshotProgress, TreeId};
use ash_store::AgentVersion;
use std::{path::Path, sync::Arc};
use tokio::time::Instant;

/// The epoch of a workspace that was just made: it had no earlier owner.
const FIRST_EPOCH: Epoch = Epoch(1);

impl SandboxBuildSpec {
    pub(crate) fn of(
        services: &Services,
        version: &AgentVersion,
        options: &SessionOptions,
        program: Option<&Path>,
    ) -> SandboxBuildSpec {
        SandboxBuildSpec {
            limits: resource_limits::of_walls(
                &services.policy.limits_in_force(options.limits, version.limits),
            ),
            readonly: program.and_then(Path::parent).map(Path::to_owned).into_iter().collect(),
            image: version.image.clone(),
            user_namespaces: match version.needs.user_namespaces {
                true => UserNamespacePolicy::Allowed,
                false => UserNamespacePolicy::Refused,
            },
        }
    }
}

impl WarmSandboxKind {
    /// What a session with these options needs.
    pub(crate) fn of(
        services: &Services,
        (tenant, agent, number): (&TenantId, &AgentName, u32),
        version: &AgentVersion,
        options: &SessionOptions,
    ) -> Result<WarmSandboxKind> {
        let program = services.settings.program(version.runtime, options)?;
        let build = SandboxBuildSpec::of(services, version, options, program);
        let (tenant, agent, tree) = (tenant.clone(), agent.clone(), version.tree.clone());
        let (target, is_asked_for) =
            (services.settings.prewarm(&version.needs), version.needs.prewarm.is_some());
        Ok(WarmSandboxKind { tenant, agent, version: number, tree, build, target, is_asked_for })
    }
}

/// Builds what is missing, one after the other, as long as the server runs. It never evicts a sandbox for that.
pub(crate) async fn run(services: Arc<Services>) {
    let SandboxPool { warm, .. } = &services.pool;
    loop {
        while let Some(kind) = warm.next_to_build(Instant::now()) {
            let Some(permit) = services.pool.try_acquire_idle(&kind.tenant) else { break };
            match build(&services, kind.clone(), permit).await {
                Ok(built) => {
                    if let Some(left) = warm.put(built) {
                        left.discard().await;
                    }
                }
                Err(error) => {
                    tracing::warn!(agent = %kind.agent, %error, "a warm sandbox could not be created");
                    warm.try_later(&kind, Instant::now());
                }
            }
            warm.finish_build();
        }
        warm.finish_build();
        let changed =
            futures::future::select(Box::pin(warm.bell.notified()), Box::pin(services.pool.changed()));
        tokio::time::timeout(LOOK, changed).await.ok();
        warm.discard_stale();
    }
}

async fn build(
    services: &Arc<Services>,
    kind: WarmSandboxKind,
    permit: SandboxPermit,
) -> Result<WarmSandbox> {
    let id = WorkspaceId::fresh();
    let workspace = services.workspace(id);
    let mut prepared =
        WarmSandbox { uids: services.uids.clone(), kind, id, workspace, uid: None, inside: None };
    match build_in(services, &mut prepared, permit).await {
        Ok(inside) => {
            prepared.inside = Some(inside);
            Ok(prepared)
        }
        Err(error) => {
            clear_away(&prepared.uids, &prepared.workspace).await;
            Err(error)
        }
    }
}

async fn build_in(
    services: &Arc<Services>,
    prepared: &mut WarmSandbox,
    permit: SandboxPermit,
) -> Result<(Arc<Sandbox>, RecordStream)> {
    let live = prepared.workspace.live.clone();
    let recipe = TreeRecipe {
        epoch: FIRST_EPOCH,
        boot: services.settings.boot.clone(),
        tree: TreeId::parse(&prepared.kind.tree).map_err(|_| Error::NoWorkspace)?,
        fresh: true,
        rewound: 0,
        fallback: None,
    };
    let (home, place, tenant) = (services.clone(), live.clone(), prepared.kind.tenant.clone());
    let turn = services.restore_permits.acquire().await.map_err(|_| Error::Stopping)?;
    prepared.uid = blocking(move || {
        // First, so that a server that finds it after a crash knows that it belongs to no session.
        place.mark_unclaimed()?;
        let uid = place.make(&recipe, (&*home.repo(&tenant)?, &SnapshotProgress::default()), &home.uids)?;
        make_dir(&place.run())?;
        Ok(uid)
    })
    .await?;
    drop(turn);
    let SandboxBuildSpec { limits, readonly, image, user_namespaces } = prepared.kind.build.clone();
    let spec = SandboxSpec {
        incarnation: Incarnation::fresh(),
        epoch: FIRST_EPOCH,
        run_dir: live.run(),
        workspace: live.workspace(),
        home: live.home(),
        uid: prepared.uid,
        limits,
        readonly,
        image,
        user_namespaces,
        orphan_ttl: services.settings.orphan_ttl,
    };
    let _turn = services.start_permits.acquire().await.map_err(|_| Error::Stopping)?;
    let (remote, records) = services.backend.launch(&spec).await?.split();
    Ok((Sandbox::new(spec.incarnation, remote, permit), records))
}
