//! Locks of clients: requests of clients become facts.

use super::SessionActor;
use crate::{
    Error, Result,
    machine::{LockRefusal, LockRequest},
    mailbox::ReplySender,
};
use ash_model::{Fact, SessionLock};

impl SessionActor {
    pub(super) async fn lock(&mut self, request: LockRequest, reply: ReplySender<SessionLock>) -> Result<()> {
        let (lock, fact) = match self.machine.log.take_lock(request, self.ctx.services.clock()) {
            Ok(taken) => taken,
            Err(refusal) => {
                reply.send(Err(refusal.into())).ok();
                return Ok(());
            }
        };
        let noted = self.commit_facts(vec![fact]).await;
        reply.send(noted.as_ref().map(|()| lock).map_err(Error::shared)).ok();
        self.tolerate(noted)
    }

    pub(super) async fn renew_lock(&mut self, number: u64, reply: ReplySender<()>) -> Result<()> {
        let fact = self.machine.log.renew_lock(number, self.ctx.services.clock());
        self.note_lock(fact.map(Some), reply).await
    }

    pub(super) async fn unlock(&mut self, number: u64, reply: ReplySender<()>) -> Result<()> {
        let fact = self.machine.log.release_lock(number);
        self.note_lock(fact.map(Some), reply).await
    }

    pub(super) async fn expire_lock(&mut self, number: u64, reply: ReplySender<()>) -> Result<()> {
        let fact = self.machine.log.expire_lock(number, self.ctx.services.clock());
        self.note_lock(fact, reply).await
    }

    async fn note_lock(
        &mut self,
        fact: std::result::Result<Option<Fact>, LockRefusal>,
        reply: ReplySender<()>,
    ) -> Result<()> {
        let noted = match fact {
            Ok(fact) => self.commit_facts(fact.into_iter().collect()).await,
            Err(refusal) => {
                reply.send(Err(refusal.into())).ok();
                return Ok(());
            }
        };
        let failed = noted.as_ref().err().map(Error::shared);
        reply.send(failed.map_or(Ok(()), Err)).ok();
        self.tolerate(noted)
    }
}

impl From<LockRefusal> for Error {
    fn from(refusal: LockRefusal) -> Error {
        match refusal {
            LockRefusal::Held(lock) => Error::locked(&lock),
            LockRefusal::Lost => Error::LockLost,
            LockRefusal::Command(refusal) => refusal.into(),
        }
    }
}
