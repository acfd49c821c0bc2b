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
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) process: u16,
    pub(super) records: RecordStream,
}

impl SessionStartJob {
    /// The shared sandbox in which other sessions work already.
    pub(super) fn sandbox(&self) -> Option<Arc<Sandbox>> {
        self.workspace.sandbox().filter(|_| self.session.slug.is_some())
    }

    /// Takes the exclusive guard once there is a sandbox, or once every other session has read the last records of a
    /// dead one.
    pub(super) async fn exclusive_when_vacant(&self) -> ExclusiveGuard {
        loop {
            let exclusive = self.workspace.exclusive().await;
            if self.sandbox().is_some() || self.workspace.is_vacant(self.session.no) {
                return exclusive;
            }
            drop(exclusive);
            self.workspace.until_vacant(self.session.no).await;
        }
    }

    /// Gets a permit for the sandbox. A request has brought one, or waits for a limited time; a session that resumes by
    /// itself waits without limit.
    pub(super) async fn reserve(&mut self) -> Result<()> {
        if self.permit.is_none() {
            let (services, tenant) = (self.services.clone(), self.session.tenant.clone());
            self.permit =
                Some(self.unless_halted(services.pool.acquire(&tenant, self.queue_timeout)).await??);
        }
        Ok(())
    }

    /// Enters the sandbox that is there, or a new one.
    pub(super) async fn join_sandbox(&mut self, way: &AgentProgram<'_>) -> Result<SandboxShare> {
        if self.prepared.is_none() && self.sandbox().is_none() && self.permit.is_none() {
            // Not with the exclusive guard: the session whose sandbox this one waits for may itself wait for the guard.
            self.exclusive = None;
            self.reserve().await?;
        }
        let exclusive = match self.exclusive.take() {
            Some(exclusive) => exclusive,
            None => self.unless_halted(self.exclusive_when_vacant()).await?,
        };
        let (no, shared) = (self.session.no, self.session.slug.is_some());
        let sandbox = match (self.sandbox(), self.prepared.take()) {
            (Some(sandbox), _) => {
                // Another session was faster, and its sandbox is used.
                self.permit = None;
                (sandbox, None)
            }
            (None, Some((sandbox, mut records))) => {
                self.set_up(&sandbox, &mut records, way.version).await?;
                self.workspace.set_sandbox(Some(sandbox.clone()));
                (sandbox, Some(records))
            }
            (None, None) => {
                self.reap_previous_sandbox().await?;
                let permit = self.permit.take().ok_or(Error::Gone)?;
                let spec = self.spec(self.tree.and_then(|tree| tree.uid), way);
                let (remote, mut records) = self.launch(&spec).await?.split();
                let sandbox = Sandbox::new(spec.incarnation, remote, permit);
                self.set_up(&sandbox, &mut records, way.version).await?;
                self.workspace.set_sandbox(Some(sandbox.clone()));
                (sandbox, Some(records))
            }
        };
        let part = match sandbox {
            (sandbox, Some(records)) if !shared => {
                SandboxShare { sandbox, process: workspace::AGENT, records }
            }
            // The stream that received all records so far is dropped only after the new listener is registered, because
            // the connection closes with its last listener.
            (sandbox, _everything) => {
                let process = self.workspace.free_number().ok_or(Error::Crowded)?;
                let records = sandbox.remote.listen(workspace::numbers(process, self.lease.epoch));
                SandboxShare { sandbox, process, records }
            }
        };
        self.workspace.enter(no, part.sandbox.incarnation, part.process);
        drop(exclusive);
        Ok(part)
    }

    /// Leaves the sandbox again, because the agent did not start.
    pub(super) async fn leave_sandbox(&self, part: SandboxShare) -> Result<()> {
        let _exclusive = self.workspace.exclusive().await;
        let SandboxShare { sandbox, process, .. } = part;
        if !self.workspace.leave(self.session.no, sandbox.incarnation) {
            sandbox.remote.signal(process, 9).await.ok();
            sandbox.remote.set_allowance(process, None).await.ok();
            return Ok(());
        }
        sandbox.remote.end().await.ok();
        self.workspace.set_sandbox(None);
        drop(sandbox);
        self.reap_previous_sandbox().await
    }

    /// Starts the sandbox early, beside other work; its agent starts in it later. Needs the exclusive guard and a permit.
    pub(super) async fn launch_ahead(
        &mut self,
        way: &AgentProgram<'_>,
    ) -> Result<(Arc<Sandbox>, RecordStream)> {
        let permit = self.permit.take().ok_or(Error::Gone)?;
        let spec = self.spec(self.tree.and_then(|tree| tree.uid), way);
        let (remote, records) = self.launch(&spec).await?.split();
        Ok((Sandbox::new(spec.incarnation, remote, permit), records))
    }

    /// The number of concurrent sandbox starts is limited; the start-up time of an agent does not count.
    async fn launch(&self, spec: &SandboxSpec) -> Result<SandboxLink> {
        let _turn = self.services.start_permits.acquire().await.map_err(|_| Error::Stopping)?;
        Ok(self.services.backend.launch(spec).await?)
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
            SandboxBuildSpec::of(&self.services, way.version, &self.session.options, program);
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
            orphan_ttl: self.services.settings.orphan_ttl,
        }
    }
}
