//! Entering a sandbox: one that is running, a warm one, or a new one; and leaving it again.

use super::{AgentProgram, SessionStartJob};
use crate::{
    Error, Result, blocking,
    pool::SandboxBuildSpec,
    workspace::{self, ExclusiveGuard, Sandbox},
};
use ash_model::Incarnation;
use ash_sandbox::{RecordStream, SandboxLink, SandboxSpec};
use std::sync::Arc;

/// A session's part of a sandbox.
pub(super) struct SandboxShare {
    pub(super) walls: Arc<Sandbox>,
    pub(super) process: u16,
    pub(super) records: RecordStream,
}

impl SessionStartJob {
    /// The shared sandbox in which other sessions work already.
    pub(super) fn walls(&self) -> Option<Arc<Sandbox>> {
        self.common.sandbox().filter(|_| self.session.slug.is_some())
    }

    /// Takes the exclusive guard once there is a sandbox, or once every other session has read the last records of a
    /// dead one.
    pub(super) async fn exclusive_when_vacant(&self) -> ExclusiveGuard {
        loop {
            let floor = self.common.exclusive().await;
            if self.walls().is_some() || self.common.is_vacant(self.session.no) {
                return floor;
            }
            drop(floor);
            self.common.until_vacant(self.session.no).await;
        }
    }

    /// Gets a permit for the sandbox. A request has brought one, or waits for a limited time; a session that resumes by
    /// itself waits without limit.
    pub(super) async fn reserve(&mut self) -> Result<()> {
        if self.permit.is_none() {
            let (rooms, tenant) = (self.rooms.clone(), self.session.tenant.clone());
            self.permit = Some(self.unless_halted(rooms.pool.acquire(&tenant, self.queue_timeout)).await??);
        }
        Ok(())
    }

    /// Enters the sandbox that is there, or a new one.
    pub(super) async fn join_sandbox(&mut self, way: &AgentProgram<'_>) -> Result<SandboxShare> {
        if self.prepared.is_none() && self.walls().is_none() && self.permit.is_none() {
            // Not with the exclusive guard: the session whose sandbox this one waits for may itself wait for the guard.
            self.exclusive = None;
            self.reserve().await?;
        }
        let floor = match self.exclusive.take() {
            Some(floor) => floor,
            None => self.unless_halted(self.exclusive_when_vacant()).await?,
        };
        let (no, shared) = (self.session.no, self.session.slug.is_some());
        let walls = match (self.walls(), self.prepared.take()) {
            (Some(walls), _) => {
                // Another session was faster, and its sandbox is used.
                self.permit = None;
                (walls, None)
            }
            (None, Some((walls, mut records))) => {
                self.set_up(&walls, &mut records, way.version).await?;
                self.common.set_sandbox(Some(walls.clone()));
                (walls, Some(records))
            }
            (None, None) => {
                self.reap_previous_sandbox().await?;
                let room = self.permit.take().ok_or(Error::Gone)?;
                let spec = self.spec(self.tree.and_then(|tree| tree.uid), way);
                let (remote, mut records) = self.launch(&spec).await?.split();
                let walls = Sandbox::new(spec.incarnation, remote, room);
                self.set_up(&walls, &mut records, way.version).await?;
                self.common.set_sandbox(Some(walls.clone()));
                (walls, Some(records))
            }
        };
        let part = match walls {
            (walls, Some(records)) if !shared => SandboxShare { walls, process: workspace::AGENT, records },
            // The stream that received all records so far is dropped only after the new listener is registered, because
            // the connection closes with its last listener.
            (walls, _everything) => {
                let process = self.common.free_number().ok_or(Error::Crowded)?;
                let records = walls.remote.listen(workspace::numbers(process, self.lease.epoch));
                SandboxShare { walls, process, records }
            }
        };
        self.common.enter(no, part.walls.incarnation, part.process);
        drop(floor);
        Ok(part)
    }

    /// Leaves the sandbox again, because the agent did not start.
    pub(super) async fn leave_sandbox(&self, part: SandboxShare) -> Result<()> {
        let _floor = self.common.exclusive().await;
        let SandboxShare { walls, process, .. } = part;
        if !self.common.leave(self.session.no, walls.incarnation) {
            walls.remote.signal(process, 9).await.ok();
            walls.remote.set_allowance(process, None).await.ok();
            return Ok(());
        }
        walls.remote.end().await.ok();
        self.common.set_sandbox(None);
        drop(walls);
        self.reap_previous_sandbox().await
    }

    /// Starts the sandbox early, beside other work; its agent starts in it later. Needs the exclusive guard and a permit.
    pub(super) async fn launch_ahead(
        &mut self,
        way: &AgentProgram<'_>,
    ) -> Result<(Arc<Sandbox>, RecordStream)> {
        let room = self.permit.take().ok_or(Error::Gone)?;
        let spec = self.spec(self.tree.and_then(|tree| tree.uid), way);
        let (remote, records) = self.launch(&spec).await?.split();
        Ok((Sandbox::new(spec.incarnation, remote, room), records))
    }

    /// The number of concurrent sandbox starts is limited; the start-up time of an agent does not count.
    async fn launch(&self, spec: &SandboxSpec) -> Result<SandboxLink> {
        let _turn = self.rooms.start_permits.acquire().await.map_err(|_| Error::Stopping)?;
        Ok(self.rooms.backend.launch(spec).await?)
    }

    /// The remains of an earlier shim must be gone before its tree is used again.
    pub(super) async fn reap_previous_sandbox(&self) -> Result<()> {
        let run = self.live.run();
        blocking(move || {
            ash_sandbox::reap(&run)?;
            crate::live_directory::make_dir(&run)
        })
        .await
    }

    fn spec(&self, uid: Option<u32>, way: &AgentProgram<'_>) -> SandboxSpec {
        let program = way.program.as_deref();
        let SandboxBuildSpec { limits, readonly, image, user_namespaces } =
            SandboxBuildSpec::of(&self.rooms, way.version, &self.session.options, program);
        SandboxSpec {
            incarnation: Incarnation::fresh(),
            epoch: self.lease.epoch,
            run_dir: self.live.run(),
            workspace: self.live.workspace(),
            home: self.live.home(),
            uid,
            limits,
            readonly,
            image,
            user_namespaces,
            orphan_ttl: self.rooms.settings.orphan_ttl,
        }
    }
}
