//! Carrying out a closing: leaving and ending the sandbox, answering the callers, removing the tree.

use super::{EffectOutcome, SessionActor, limits_watchdog::ResourceRecordMode};
use crate::{
    Error, Result, blocking,
    machine::{
        ClosingConclusion, ClosingOutcome, ClosingReason, CommandRefusal, Evictability, OvertakenClosing,
        SandboxConnection, SessionClosing, StateCommand,
    },
    mailbox::{CommandReply, EvictionCost, ReplySender},
    sandbox_conn::SandboxConn,
};
use ash_model::{Fact, Incarnation, Problem, SessionStatus};
use ash_sandbox::{JournalPayload, JournalRecord};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long the sandbox may take to end before the actor stops waiting for its last records.
const SANDBOX_END_TIMEOUT: Duration = Duration::from_secs(10);

impl SessionActor {
    pub(super) fn close(&mut self, closing: SessionClosing) {
        let overtaken = self.machine.close(closing);
        self.closing_begins(overtaken);
    }

    /// A start that is under way halts, and the callers of an overtaken closing are answered.
    pub(super) fn closing_begins(&mut self, overtaken: Option<OvertakenClosing>) {
        self.link.halt_start.notify_one();
        let Some(OvertakenClosing { commands, shutdown, by }) = overtaken else { return };
        self.waiters.answer_all(commands, Err(overtaken_by(by)));
        if let Some(waiter) = shutdown {
            self.waiters.answer_shutdown(waiter);
        }
    }

    pub(super) fn shut_down(&mut self, grace: Duration, reply: ReplySender<()>) {
        let waiter = self.waiters.add_shutdown(reply);
        self.close(SessionClosing::shutdown(Instant::now() + grace, waiter));
    }

    /// Gives up its sandbox for another session, unless this session is at work.
    pub(super) async fn evict(&mut self, cost: EvictionCost, reply: ReplySender<CommandReply>) -> Result<()> {
        let goes = match self.machine.evictability() {
            Evictability::Never => false,
            Evictability::Loses => cost == EvictionCost::MayLose,
            Evictability::Freely => true,
        };
        if !goes {
            reply.send(Err(CommandRefusal::Busy.into())).ok();
            return Ok(());
        }
        if let Some(fact) = self.machine.eviction_fact(Instant::now()) {
            self.commit_facts(vec![fact]).await?;
        }
        self.ctx.services.watch.evicted();
        let waiter = self.waiters.add_command(reply);
        let release = StateCommand::Release { by_force: false };
        self.close(SessionClosing::by_command(release, vec![waiter], Instant::now()));
        Ok(())
    }

    /// An idle session announces it; when its idle timeout is over, it closes.
    pub(super) async fn note_idle(&mut self, fact: Option<Fact>, over: bool) -> Result<()> {
        self.commit_facts(fact.into_iter().collect()).await?;
        self.machine.runtime.idle.warned = true;
        if over {
            self.close(SessionClosing::idle(Instant::now()));
        }
        Ok(())
    }

    /// The files could not be captured, so the actor does not delete them either.
    pub(super) fn give_up_end(&mut self, error: &Error) {
        let waiters = self.machine.give_up_end();
        self.waiters.answer_all(waiters, Err(Error::Save(error.to_string())));
    }

    /// Ends the closing: all files are safe, or the log says that they are not.
    pub(super) async fn conclude_closing(&mut self) -> Result<()> {
        let Some(ClosingConclusion { facts, outcome }) = self.machine.conclude_closing() else {
            return Ok(());
        };
        match outcome {
            ClosingOutcome::Done { waiters, removes_tree } => {
                let done = self.commit_facts(facts).await;
                if done.is_ok() && removes_tree {
                    self.forget_tree().await;
                }
                self.waiters.answer_all(waiters, done.map(|()| CommandReply::default()));
            }
            ClosingOutcome::Refused { waiters, refusal } => {
                self.waiters.answer_all(waiters, Err(refusal.into()));
            }
            ClosingOutcome::Unsafe { waiters } => {
                self.commit_facts(facts).await?;
                self.waiters.answer_all(waiters, Err(Error::Save("see the server's log".to_owned())));
            }
            ClosingOutcome::ShutDown { waiter } => {
                self.answer_stopped().await?;
                self.commit_facts(facts).await?;
                self.waiters.answer_shutdown(waiter);
            }
        }
        Ok(())
    }

    /// Answers the callers that still wait when the server stops: nothing that they asked for begins any more.
    async fn answer_stopped(&mut self) -> Result<()> {
        let waiters = self.machine.stop_waiting_for_shutdown();
        self.waiters.refuse_all(waiters, &Error::Stopped);
        self.give_up_rewinding(&Error::Stopped).await
    }

    /// Handles the commands that arrived while the session let go of its sandbox.
    pub(super) async fn handle_deferred(&mut self) -> Result<()> {
        for (waiter, command) in std::mem::take(&mut self.machine.runtime.waiting.deferred) {
            let admission = self.waiters.take_admission(waiter);
            self.admission.add(admission);
            Box::pin(self.handle_command(command, waiter)).await?;
        }
        Ok(())
    }

    /// Removes the tree: the last checkpoint holds all of it.
    async fn forget_tree(&mut self) {
        self.ctx.workspace.set_tree(None);
        self.machine.runtime.capture.dirty = None;
        let (live, services) = (self.ctx.live.clone(), self.ctx.services.clone());
        if let Err(error) = blocking(move || live.erase(&services.uids)).await {
            tracing::warn!(session = %self.ctx.session.id, %error, "the live tree of an ended session could not be removed");
        }
    }

    /// Drops the files from this machine only if they were captured unchanged and the object store has them: never the
    /// only copy.
    pub(super) async fn drop_local_files(&mut self) -> Result<bool> {
        ash_failpoint::reach_async("cold.asked").await;
        // Waiting here would deadlock: the result of the actor's own capture holds the guard until the actor reads that
        // result.
        let Some(_exclusive) = self.ctx.workspace.try_exclusive() else { return Ok(false) };
        // With no other session's actor on the workspace, no other session works in it or has something to capture.
        let alone = !self.is_shared() || Arc::strong_count(&self.ctx.workspace) == 1;
        let calm = self.machine.needs_no_local_files()
            && alone
            && !self.ctx.live.is_marked_dirty()
            && !self.ctx.live.has_leftovers(self.tree().is_some());
        let newest = if self.is_shared() { self.ctx.workspace.newest() } else { self.machine.log.checkpoint };
        let (true, Some(number), true) = (calm, newest, self.tree().is_some()) else {
            return Ok(false);
        };
        let checkpoint = self.ctx.services.store.checkpoint(self.ctx.lease.workspace, number).await?;
        if checkpoint.is_none_or(|checkpoint| checkpoint.uploaded_at.is_none()) {
            return Ok(false);
        }
        self.forget_tree().await;
        Ok(true)
    }

    /// Lets go of the sandbox: what the agent or a command does from now on does not count.
    pub(super) fn leave_sandbox(&mut self) {
        self.machine.leave_sandbox(Instant::now());
        let Some(conn) = self.link.conn.take() else { return };
        self.link.commands = self.execs.numbers();
        self.execs.fail(&Problem::new("sandbox_ended", "The sandbox was ended while the command ran"));
        self.link.departing = Some(conn);
    }

    /// Ends the sandbox and waits until none of its processes runs. If other sessions work in it, ends only this
    /// session's part.
    pub(super) fn end_sandbox(&mut self) {
        let Some(mut conn) = self.link.departing.take() else { return };
        let (run, id, no) = (self.ctx.live.run(), self.ctx.session.id.clone(), self.ctx.session.no);
        let (workspace, commands) = (self.ctx.workspace.clone(), std::mem::take(&mut self.link.commands));
        let recording = self.recording_resource_usage(conn.incarnation, ResourceRecordMode::Last);
        self.begin_effect(async move {
            let exclusive = workspace.exclusive().await;
            let (incarnation, process) = (conn.incarnation, conn.process);
            let last = workspace.leave(no, incarnation);
            if last {
                recording.await;
                conn.remote.end().await.ok();
            } else {
                for process in commands.into_iter().chain([process]) {
                    conn.remote.signal(process, 9).await.ok();
                }
            }
            let exclusive = Some(exclusive).filter(|_| last);
            let said = drain_last_records(&mut conn, last).await;
            if !last {
                // Usage so far is counted. From now on, requests of others through this session's socket are charged to
                // no session.
                conn.remote.set_allowance(process, None).await.ok();
            }
            drop(conn);
            if last {
                workspace.set_sandbox(None);
                if let Err(error) = blocking(move || Ok(ash_sandbox::reap(&run)?)).await {
                    tracing::error!(session = %id, %error, "a sandbox could not be removed");
                }
            }
            drop(exclusive);
            EffectOutcome::SandboxEnded { incarnation, process, said }
        });
    }

    pub(super) async fn on_sandbox_ended(
        &mut self,
        incarnation: Incarnation,
        process: u16,
        said: Vec<JournalRecord>,
    ) -> Result<()> {
        if self.machine.log.awake.as_ref().is_some_and(|awake| awake.incarnation == incarnation) {
            // The last records count. The cause of the death does not, because the actor ended the sandbox itself.
            self.commit_records(incarnation, process, said).await?;
        } else {
            self.commit_usage_records(said).await?;
        }
        self.ctx.services.uids.release(self.link.lost_uid.take());
        if self.is_ephemeral() && !self.is_shared() {
            self.forget_tree().await;
        }
        // A shutdown commits this together with its other facts, in one step.
        match self.machine.runtime.is_shutting_down() {
            true => Ok(()),
            false => self.commit_facts(self.machine.log.sleep_facts()).await,
        }
    }

    /// Ends a sandbox that the log does not know, before anything else begins.
    pub(super) fn end_unknown_sandbox(&mut self, conn: SandboxConn) {
        self.machine.runtime.sandbox = SandboxConnection::Departing;
        self.link.departing = Some(conn);
    }
}

/// The error for callers whose commands a closing overtakes.
pub(super) fn overtaken_by(reason: ClosingReason) -> Error {
    match reason {
        ClosingReason::Shutdown => Error::Stopped,
        ClosingReason::End => CommandRefusal::SessionEnded.into(),
        ClosingReason::Stop => Error::Overtaken(SessionStatus::Stopped),
        ClosingReason::Release => Error::Overtaken(SessionStatus::Paused),
    }
}

/// The last records: up to the end of the sandbox, or of the agent.
async fn drain_last_records(conn: &mut SandboxConn, all: bool) -> Vec<JournalRecord> {
    let (mut said, mut over) = (Vec::new(), conn.exited && !all);
    let listening = async {
        while !over && let Some(record) = conn.records.next().await {
            let exited = record.process == conn.process && matches!(record.payload, JournalPayload::Exit(_));
            over = !all && (exited || matches!(record.payload, JournalPayload::SandboxGone { .. }));
            said.push(record);
        }
    };
    tokio::time::timeout(SANDBOX_END_TIMEOUT, listening).await.ok();
    while let Some(record) = conn.records.ready() {
        said.push(record);
    }
    said
}
