//! Starts of the session: beginning one, and turning its outcome into facts and answers.

use super::{EffectOutcome, SessionActor, closing::overtaken_by};
use crate::{
    Error, Result,
    ladder::{self, ReceiptDetails},
    live_directory::{CheckpointFallback, LiveTree},
    machine::{ClosingReason, CommandRefusal, ResumerAnswer},
    mailbox::CommandReply,
    slots::Admission,
    start::{CompletedStart, SessionStartJob, StartTree},
};
use ash_model::{EventSeq, Fact};
use std::{sync::Arc, time::Instant};

impl SessionActor {
    pub(super) fn begin_start(&mut self) {
        // A new notifier: that of the last start may have been notified.
        self.link.halt_start = Arc::default();
        let Admission { permit, queue_timeout } = std::mem::take(&mut self.admission);
        let waking = SessionStartJob {
            services: self.ctx.services.clone(),
            session: self.ctx.session.clone(),
            state: self.machine.log.clone(),
            lease: self.ctx.lease.clone(),
            live: self.ctx.live.clone(),
            workspace: self.ctx.workspace.clone(),
            tree: None,
            logs: self.ctx.logs.clone(),
            halt: self.link.halt_start.clone(),
            used_early: self.link.startup_usage.clone(),
            sealed: false,
            missing_secrets: Vec::new(),
            exclusive: None,
            permit,
            queue_timeout,
            prepared: None,
            in_advance: false,
        };
        self.begin_effect(async move { EffectOutcome::Started(Box::new(waking.wake().await)) });
    }

    /// `options_seen`: the last change of options that the start knew of.
    pub(super) async fn on_started(
        &mut self,
        woken: Result<CompletedStart>,
        options_seen: EventSeq,
    ) -> Result<()> {
        match woken {
            Ok(woken) => self.adopt_started_sandbox(woken, options_seen).await,
            // The session still has to start: the files that are there are salvaged first.
            Err(Error::Distrusted) => self.lose_tree().await,
            Err(error) => self.on_start_failed(error).await,
        }
    }

    async fn adopt_started_sandbox(&mut self, woken: CompletedStart, options_seen: EventSeq) -> Result<()> {
        let CompletedStart {
            conn,
            tree: StartTree { origin, uid, fallback },
            recalled,
            backs,
            failed,
            head,
            compared,
            salvage,
            unsaved,
            ear,
            more_inputs,
            began,
        } = woken;
        self.ctx.workspace.set_tree(Some(LiveTree { uid }));
        self.machine.runtime.touch_later(Instant::now());
        let others = ReceiptDetails {
            salvage: salvage.as_ref(),
            fallback: fallback.as_ref(),
            compared: compared.as_ref(),
            unsaved: &unsaved,
        };
        // Every session that had a conversation gets a receipt, whatever caused this start.
        let receipt =
            (self.machine.log.resuming || fallback.is_some() || self.machine.log.turns_delivered > 0)
                .then(|| ladder::receipt(&self.machine.log, origin, &recalled, others));
        if let Some(CheckpointFallback { instead_of, used, why }) = &fallback {
            tracing::error!(session = %self.ctx.session.id, damaged = instead_of, used, why, "a checkpoint is damaged; the session continues from an older one");
        }
        let mut facts: Vec<Fact> = backs.into_iter().map(Fact::WorkspaceRewound).chain(failed).collect();
        facts.push(self.machine.awake_fact(
            conn.incarnation,
            recalled.resumed_after,
            options_seen,
            more_inputs,
        ));
        facts.extend(self.machine.log.steering_found_in_memory(&recalled.prompts));
        facts.extend(receipt.clone().map(|receipt| Fact::Resumed { receipt, head }));
        facts.extend(self.facts_of_early_usage());
        let heard = ash_model::JournalPosition {
            incarnation: conn.incarnation,
            process: conn.process,
            position: conn.position,
        };
        if let Err(error) = self.commit(facts, Vec::new(), Some(heard), None).await {
            // The log does not know this sandbox: the next try makes another.
            self.end_unknown_sandbox(conn);
            return Err(error);
        }
        conn.sandbox.ack(self.ctx.session.no, conn.position).await;
        self.set_conn(conn);
        self.link.tracker = ear;
        if receipt.is_some()
            && let Err(error) = self.ctx.live.forget_changes()
        {
            tracing::warn!(session = %self.ctx.session.id, %error, "the list of outside changes could not be cleared; the next receipt repeats it");
        }
        if let Err(error) = self.ctx.live.note_mended(self.ctx.session.native_id, None) {
            // The next receipt repeats it.
            tracing::warn!(session = %self.ctx.session.id, %error, "the note of a memory repair could not be cleared; the next receipt repeats it");
        }
        if let Some(receipt) = &receipt {
            self.ctx.services.watch.resumed(receipt, began.elapsed());
            self.log_resume(receipt);
        }
        let waiters = std::mem::take(&mut self.machine.runtime.waiting.resuming);
        for waiter in waiters {
            let reply = CommandReply { receipt: receipt.clone(), ..CommandReply::default() };
            self.waiters.answer(waiter, Ok(reply));
        }
        Ok(())
    }

    pub(super) async fn on_start_failed(&mut self, error: Error) -> Result<()> {
        let problem = error.problem();
        if matches!(error, Error::Setup(_) | Error::Halted) && self.tree().is_some() {
            // Captures what its scripts have done until then.
            self.touch();
        }
        let closing = self.machine.halted_by();
        // If a closing stopped this start, the closing answers the callers.
        if !(matches!(error, Error::Halted) && closing.is_some()) {
            // The output of a script belongs to the tenant and not into the operator's log.
            let told = if matches!(error, Error::Setup(_)) { &problem.code } else { &problem.error };
            tracing::warn!(session = %self.ctx.session.id, error = %told, "the session could not be started");
            let full = matches!(error, Error::Capacity(_) | Error::LongLine(_) | Error::LittleMemory(_));
            self.commit_facts(self.machine.facts_of_failed_start(error.problem(), full)).await?;
        }
        self.commit_facts(self.facts_of_early_usage()).await?;
        let error = match (error, closing) {
            (Error::Halted, Some(reason @ ClosingReason::Shutdown)) => overtaken_by(reason),
            (error, _) => error,
        };
        let waiters = std::mem::take(&mut self.machine.runtime.waiting.resuming);
        self.waiters.answer_all(waiters, Err(error));
        Ok(())
    }

    /// Answers callers that wait for a start that will not happen.
    pub(super) fn answer_resumers(&mut self) {
        let answer = match self.machine.resumer_answer() {
            ResumerAnswer::Running => Ok(CommandReply::default()),
            ResumerAnswer::Ended => Err(CommandRefusal::SessionEnded.into()),
            ResumerAnswer::Overtaken(status) => Err(Error::Overtaken(status)),
            ResumerAnswer::Failed(Some(problem)) => Err(Error::Failed(problem)),
            ResumerAnswer::Failed(None) => Err(Error::Gone),
        };
        let waiters = std::mem::take(&mut self.machine.runtime.waiting.resuming);
        self.waiters.answer_all(waiters, answer);
    }
}
