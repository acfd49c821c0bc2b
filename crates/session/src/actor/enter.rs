//! Into a sandbox: the one that is there, one that was made in advance, or a new one; and out of it again.

use super::wake::{Waking, Way};
use crate::{
    Error, Result, blocking,
    common::{self, Floor, Walls},
    pool::Inbuilt,
};
use ash_model::Incarnation;
use ash_sandbox::{Link, Records, Spec};
use std::sync::Arc;

/// A session's part of a sandbox.
pub(super) struct Part {
    pub(super) walls: Arc<Walls>,
    pub(super) process: u16,
    pub(super) records: Records,
}

impl Waking {
    /// The sandbox in which others are at work already.
    pub(super) fn walls(&self) -> Option<Arc<Walls>> {
        self.common.walls().filter(|_| self.session.slug.is_some())
    }

    /// The floor, when a sandbox is there, or nobody is left who has not read what a dead one still said.
    pub(super) async fn free_floor(&self) -> Floor {
        loop {
            let floor = self.common.floor().await;
            if self.walls().is_some() || self.common.is_left(self.session.no) {
                return floor;
            }
            drop(floor);
            self.common.until_left(self.session.no).await;
        }
    }

    /// A place for its sandbox. Who wanted it has brought one, or waits for so long; whoever comes back by itself waits until
    /// there is one.
    pub(super) async fn reserve(&mut self) -> Result<()> {
        if self.room.is_none() {
            let (rooms, tenant) = (self.rooms.clone(), self.session.tenant.clone());
            self.room = Some(self.unless_halted(rooms.pool.room(&tenant, self.patience)).await??);
        }
        Ok(())
    }

    /// Into the sandbox that is there, or into a new one.
    pub(super) async fn enter(&mut self, way: &Way<'_>) -> Result<Part> {
        if self.prepared.is_none() && self.walls().is_none() && self.room.is_none() {
            // Without the floor: whoever has the place that it waits for may wait for that.
            self.floor = None;
            self.reserve().await?;
        }
        let floor = match self.floor.take() {
            Some(floor) => floor,
            None => self.unless_halted(self.free_floor()).await?,
        };
        let (no, shared) = (self.session.no, self.session.slug.is_some());
        let walls = match (self.walls(), self.prepared.take()) {
            (Some(walls), _) => {
                // Somebody else was faster, and it is his that counts.
                self.room = None;
                (walls, None)
            }
            (None, Some((walls, mut records))) => {
                self.set_up(&walls, &mut records, way.version).await?;
                self.common.set_walls(Some(walls.clone()));
                (walls, Some(records))
            }
            (None, None) => {
                self.clear().await?;
                let room = self.room.take().ok_or(Error::Gone)?;
                let spec = self.spec(self.tree.flatten(), way);
                let (remote, mut records) = self.launch(&spec).await?.split();
                let walls = Walls::new(spec.incarnation, remote, room);
                self.set_up(&walls, &mut records, way.version).await?;
                self.common.set_walls(Some(walls.clone()));
                (walls, Some(records))
            }
        };
        let part = match walls {
            (walls, Some(records)) if !shared => Part { walls, process: common::AGENT, records },
            // Whoever heard everything until now goes when somebody else listens: the link ends with the last one.
            (walls, _everything) => {
                let process = self.common.free_number().ok_or(Error::Crowded)?;
                let records = walls.remote.listen(common::numbers(process, self.lease.epoch));
                Part { walls, process, records }
            }
        };
        self.common.enter(no, part.walls.incarnation, part.process);
        drop(floor);
        Ok(part)
    }

    /// Out of it again: the agent did not start.
    pub(super) async fn withdraw(&self, part: Part) -> Result<()> {
        let _floor = self.common.floor().await;
        let Part { walls, process, .. } = part;
        if !self.common.leave(self.session.no, walls.incarnation) {
            walls.remote.allow(process, None).await.ok();
            walls.remote.signal(process, 9).await.ok();
            return Ok(());
        }
        walls.remote.end().await.ok();
        self.common.set_walls(None);
        drop(walls);
        self.clear().await
    }

    /// A sandbox for what is done meanwhile; its agent starts in it later. Only with the floor, and with a place.
    pub(super) async fn launch_ahead(&mut self, way: &Way<'_>) -> Result<(Arc<Walls>, Records)> {
        let room = self.room.take().ok_or(Error::Gone)?;
        let spec = self.spec(self.tree.flatten(), way);
        let (remote, records) = self.launch(&spec).await?.split();
        Ok((Walls::new(spec.incarnation, remote, room), records))
    }

    /// Only so many walls are built at once; what an agent does with its time holds nobody up.
    async fn launch(&self, spec: &Spec) -> Result<Link> {
        let _turn = self.rooms.wakes.acquire().await.map_err(|_| Error::Stopping)?;
        Ok(self.rooms.backend.launch(spec).await?)
    }

    /// Whatever an earlier shim left must be gone before its tree is used again.
    pub(super) async fn clear(&self) -> Result<()> {
        let run = self.live.run();
        blocking(move || {
            ash_sandbox::reap(&run)?;
            crate::live::make_dir(&run)
        })
        .await
    }

    fn spec(&self, uid: Option<u32>, way: &Way<'_>) -> Spec {
        let program = way.program.as_deref();
        let Inbuilt { limits, readonly, image, user_namespaces } =
            Inbuilt::of(&self.rooms, way.version, &self.session.options, program);
        Spec {
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
