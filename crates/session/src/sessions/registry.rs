//! Makes sure that each session has exactly one actor: starts it on the first request, and again after it failed.

use super::Sessions;
use crate::{
    Error, Result,
    actor::{ActorChannels, SessionActor},
    mailbox::{ActorMessage, ReplySender},
    pool::ActorHandle,
    services::Services,
};
use ash_model::{SessionRowId, TenantId, WorkspaceId};
use futures::future::BoxFuture;
use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

/// The longest wait before the actor of a session is restarted after a failure.
const MAX_RESPAWN_DELAY: Duration = Duration::from_secs(60);

impl Sessions {
    pub(crate) async fn ask<T>(
        &self,
        no: SessionRowId,
        request: impl FnOnce(ReplySender<T>) -> ActorMessage,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let mut request = request(reply);
        let actor = loop {
            let actor = self.actor(no).await?;
            match actor.inbox.send(request).await {
                Ok(()) => break actor,
                // The actor ended before it got the message; the next one gets it.
                Err(mpsc::error::SendError(back)) => request = back,
            }
        };
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(self.ended_error(no, &actor).await),
        }
    }

    /// The error for a message to an actor that has ended.
    async fn ended_error(&self, no: SessionRowId, actor: &ActorHandle) -> Error {
        // The actor records why it failed before it leaves the registry.
        loop {
            let left = self.services.pool.actor_left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            match self.services.pool.actors.lock().await.get(&no) {
                Some(there) if actor.inbox.is_closed() && there.inbox.same_channel(&actor.inbox) => {}
                Some(_) | None => break,
            }
            left.await;
        }
        // A witness knew that the session was purged, and the database did not.
        if self.services.store.tombstone(no).await.is_ok_and(|tombstone| tombstone.is_some()) {
            return Error::NotFound;
        }
        match actor.full.load(Ordering::Relaxed) {
            true => Error::Store(ash_store::Error::Full),
            false => Error::Gone,
        }
    }

    /// The session's actor. Starts it if there is none.
    pub(super) async fn actor(&self, no: SessionRowId) -> Result<ActorHandle> {
        loop {
            let left = self.services.pool.actor_left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            match self.services.pool.actors.lock().await.get(&no) {
                Some(actor) if !actor.inbox.is_closed() => return Ok(actor.clone()),
                // The actor is ending. Wait, because a session must never have two.
                Some(_) => {}
                None => break,
            }
            left.await;
        }
        let session = self.get(no).await?;
        let of = (session.workspace, session.tenant.clone());
        self.spawn(no, of, |services, channels| SessionActor::load(services, session, channels)).await
    }

    /// Restarts the failed actor of a session that is not at rest, without waiting for a request.
    fn respawn(self, no: SessionRowId) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut wait = Duration::from_secs(1);
            while !self.is_stopping() && self.recalling().insert(no) {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(MAX_RESPAWN_DELAY);
                // Before the next actor starts, because it may fail at once.
                self.recalling().remove(&no);
                match self.services.store.needs_recovery().await {
                    Ok(restless) if !restless.contains(&no) => return,
                    Ok(_) if self.actor(no).await.is_ok() => return,
                    Ok(_) | Err(_) => {}
                }
            }
        })
    }

    fn recalling(&self) -> std::sync::MutexGuard<'_, HashSet<SessionRowId>> {
        self.respawning.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Holds the lock only to register the actor; loading happens after that, so one slow session does not delay
    /// others, and two callers never load the same session twice.
    pub(super) async fn spawn<F, L>(
        &self,
        no: SessionRowId,
        (workspace, tenant): (WorkspaceId, TenantId),
        load: F,
    ) -> Result<ActorHandle>
    where
        F: FnOnce(Arc<Services>, ActorChannels) -> L,
        L: Future<Output = Result<SessionActor>> + Send + 'static,
    {
        let mut actors = self.services.pool.actors.lock().await;
        if let Some(actor) = actors.get(&no) {
            return Ok(actor.clone());
        }
        self.open_for_work()?;
        let (sender, inbox) = mpsc::channel(64);
        let actor = ActorHandle {
            inbox: sender,
            logs: Arc::default(),
            phase: Arc::default(),
            workspace,
            tenant,
            full: Arc::default(),
        };
        let channels = ActorChannels { logs: actor.logs.clone(), phase: actor.phase.clone(), inbox };
        let loading = load(self.services.clone(), channels);
        // A task of its own, so that a panic does not affect the rest of the server.
        let keeping = tokio::spawn(async move { Box::pin(loading.await?.run()).await });
        let (sessions, full) = (self.clone(), actor.full.clone());
        tokio::spawn(async move {
            let kept = keeping.await.unwrap_or(Err(Error::Gone));
            full.store(kept.as_ref().err().is_some_and(Error::is_full), Ordering::Relaxed);
            sessions.services.pool.actors.lock().await.remove(&no);
            sessions.services.pool.actor_left.notify_waiters();
            if let Err(error) = kept {
                tracing::error!(session = no.0, %error, "the actor of a session failed; the server starts another one");
                sessions.respawn(no).await;
            }
        });
        actors.insert(no, actor.clone());
        Ok(actor)
    }
}
