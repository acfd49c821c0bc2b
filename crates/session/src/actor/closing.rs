//! Closing down on purpose: stop, end, and the server's own shutdown. Rest, then end the sandbox, then capture
//! what it left, then say so.

use super::{
    CaptureOccasion, CommandReply, EffectOutcome, ReplySender, SandboxConn, SessionActor,
    limits_watchdog::ResourceRecordMode,
};
use crate::{
    Error, Result, blocking,
    state::{CommandRefusal, StateCommand, TurnPhase},
};
use ash_driver::AgentInput;
use ash_model::{Fact, Incarnation, SessionStatus};
use ash_sandbox::{JournalPayload, JournalRecord};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// How long the sandbox may take to go away before we do without its goodbye.
const SANDBOX_END_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct SessionClosing {
    how: ClosingCause,
    /// When a turn that still runs is not waited for any longer.
    pub(super) deadline: Instant,
    stage: ClosingStage,
}

#[expect(clippy::large_enum_variant, reason = "a keeper has one at a time")]
enum ClosingCause {
    Wish(StateCommand, Vec<ReplySender<CommandReply>>),
    Shutdown(ReplySender<()>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ClosingStage {
    Resting,
    Capturing,
    Captured,
}

impl SessionClosing {
    pub(super) fn wish(wish: StateCommand, reply: ReplySender<CommandReply>) -> SessionClosing {
        SessionClosing {
            how: ClosingCause::Wish(wish, vec![reply]),
            deadline: Instant::now() + SANDBOX_END_TIMEOUT,
            stage: ClosingStage::Resting,
        }
    }

    /// Nobody uses it.
    pub(super) fn idle() -> SessionClosing {
        let how = ClosingCause::Wish(StateCommand::Release { by_force: false }, Vec::new());
        SessionClosing { how, deadline: Instant::now() + SANDBOX_END_TIMEOUT, stage: ClosingStage::Resting }
    }

    /// Only its sandbox goes: whoever wants something of it meanwhile gets it afterwards.
    pub(super) fn is_release(&self) -> bool {
        matches!(self.how, ClosingCause::Wish(StateCommand::Release { .. }, _))
    }

    pub(super) fn shutdown(deadline: Instant, reply: ReplySender<()>) -> SessionClosing {
        SessionClosing { how: ClosingCause::Shutdown(reply), deadline, stage: ClosingStage::Resting }
    }

    /// What somebody gets who wants something of a session that is closing down.
    pub(super) fn refusal(&self, wish: &StateCommand) -> Option<Error> {
        match (&self.how, wish) {
            (ClosingCause::Shutdown(_), _) => Some(Error::Stopping),
            (ClosingCause::Wish(StateCommand::End, _), StateCommand::End) => None,
            (ClosingCause::Wish(StateCommand::End, _), _) => {
                Some(CommandRefusal::WrongStatus(SessionStatus::Ended).into())
            }
            (ClosingCause::Wish(..), StateCommand::End) => None,
            (ClosingCause::Wish(..), _) => Some(CommandRefusal::WrongStatus(SessionStatus::Stopped).into()),
        }
    }

    /// What a caller gets whose wish this closing overtakes.
    pub(super) fn why(&self) -> Error {
        match &self.how {
            ClosingCause::Shutdown(_) => Error::Stopped,
            ClosingCause::Wish(StateCommand::End, _) => CommandRefusal::SessionEnded.into(),
            ClosingCause::Wish(StateCommand::Stop, _) => Error::Overtaken(SessionStatus::Stopped),
            ClosingCause::Wish(..) => Error::Overtaken(SessionStatus::Paused),
        }
    }

    /// Somebody who wants what is on its way already, or less.
    pub(super) fn join(
        &mut self,
        wish: &StateCommand,
        reply: ReplySender<CommandReply>,
    ) -> Option<ReplySender<CommandReply>> {
        match &mut self.how {
            ClosingCause::Wish(earlier, replies)
                if matches!(wish, StateCommand::Release { .. }) || wish == earlier =>
            {
                replies.push(reply);
                None
            }
            ClosingCause::Wish(..) | ClosingCause::Shutdown(_) => Some(reply),
        }
    }

    fn is_end(&self) -> bool {
        matches!(self.how, ClosingCause::Wish(StateCommand::End, _))
    }

    pub(super) fn is_shutdown(&self) -> bool {
        matches!(self.how, ClosingCause::Shutdown(_))
    }
}

impl SessionActor {
    /// A later, stronger wish takes the place of an earlier one, which is answered as refused.
    pub(super) fn close(&mut self, closing: SessionClosing) {
        self.halt_start.notify_one();
        let why = closing.why();
        if let Some(earlier) = self.closing.replace(closing) {
            match earlier.how {
                ClosingCause::Wish(_, replies) => tell_all(replies, Err(why)),
                ClosingCause::Shutdown(reply) => drop(reply.send(Ok(()))),
            }
        }
    }

    /// What is here could not be kept, so it is not thrown away either.
    pub(super) fn give_up_closing(&mut self, error: &Error) {
        if let Some(closing) = self.closing.take_if(|closing| closing.is_end())
            && let ClosingCause::Wish(_, replies) = closing.how
        {
            tell_all(replies, Err(Error::Save(error.to_string())));
        }
    }

    pub(super) async fn drive_closing(&mut self) -> Result<()> {
        let Some(closing) = &self.closing else { return Ok(()) };
        // Nobody can answer any more what the turn waits for.
        let in_vain = closing.is_shutdown() && !self.state.pending.is_empty();
        let late = closing.deadline <= Instant::now() || in_vain;
        if late {
            // It is saved here, and sent whenever that works: the next one to look after it ends the turn.
            self.remote_wait = None;
        }
        let Some(closing) = &self.closing else { return Ok(()) };
        match closing.stage {
            ClosingStage::Resting if self.is_turn_running() && !late => self.interrupt_for_closing().await,
            ClosingStage::Resting if self.remote_wait.is_some() && !late => Ok(()),
            ClosingStage::Resting if self.is_turn_saving() && !late => {
                let turn = self.state.current().map(|turn| turn.id);
                self.start_save(turn.map_or(CaptureOccasion::BetweenTurns, CaptureOccasion::TurnEnd));
                Ok(())
            }
            ClosingStage::Resting if self.conn.is_some() => {
                self.begin_sandbox_end();
                Ok(())
            }
            ClosingStage::Resting => {
                self.set_stage(ClosingStage::Capturing);
                self.capture_or_go_on().await
            }
            ClosingStage::Capturing => self.capture_or_go_on().await,
            ClosingStage::Captured if self.leaves_something() => {
                // What could not be captured because it was not whole any more.
                self.start_salvage();
                Ok(())
            }
            ClosingStage::Captured => self.conclude().await,
        }
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.closing.as_ref().is_some_and(SessionClosing::is_shutdown)
    }

    fn is_turn_running(&self) -> bool {
        self.conn.is_some()
            && self.state.current().is_some_and(|turn| matches!(turn.phase, TurnPhase::Running { .. }))
    }

    fn is_turn_saving(&self) -> bool {
        self.state.current().is_some_and(|turn| matches!(turn.phase, TurnPhase::Saving { .. }))
    }

    /// A stop interrupts the turn; a shutdown lets it go on for a while, and cuts it then.
    async fn interrupt_for_closing(&mut self) -> Result<()> {
        if self.is_shutting_down() {
            return Ok(());
        }
        let facts = self.state.decide(&StateCommand::Interrupt).unwrap_or_default();
        if let [Fact::Interrupting { turn, input }] = facts.as_slice() {
            let (turn, input) = (*turn, *input);
            self.commit_facts(facts).await?;
            self.tell(input, &AgentInput::Interrupt { turn }).await;
        }
        Ok(())
    }

    fn set_stage(&mut self, stage: ClosingStage) {
        if let Some(closing) = &mut self.closing {
            closing.stage = stage;
        }
    }

    /// The end removes the directory: whatever is in it is kept first.
    fn leaves_something(&self) -> bool {
        let ends = self.closing.as_ref().is_some_and(SessionClosing::is_end);
        ends && !self.is_ephemeral() && self.live.has_leftovers(self.tree().is_some())
    }

    async fn capture_or_go_on(&mut self) -> Result<()> {
        if self.leaves_something() {
            self.start_salvage();
            return Ok(());
        }
        self.set_stage(ClosingStage::Captured);
        if self.tree().is_some() && self.dirty.is_some() {
            self.start_save(CaptureOccasion::BetweenTurns);
            return Ok(());
        }
        self.conclude().await
    }

    /// Everything is safe, or we know that it is not.
    async fn conclude(&mut self) -> Result<()> {
        let Some(closing) = self.closing.take() else { return Ok(()) };
        match closing.how {
            ClosingCause::Wish(wish, replies) => self.conclude_wish(&wish, replies).await,
            ClosingCause::Shutdown(reply) => {
                self.answer_stopped().await?;
                let facts = self.state.shut_down();
                if !facts.is_empty() {
                    self.commit_facts(facts).await?;
                }
                reply.send(Ok(())).ok();
                Ok(())
            }
        }
    }

    /// Answers the callers that still wait when everything is safe: nothing that they want is begun any more.
    async fn answer_stopped(&mut self) -> Result<()> {
        for (_, _, reply) in self.deferred_commands.drain(..) {
            reply.send(Err(Error::Stopped)).ok();
        }
        for reply in self.resuming.drain(..).chain(self.pausing.drain(..)) {
            reply.send(Err(Error::Stopped)).ok();
        }
        for reply in self.forking.drain(..) {
            reply.send(Err(Error::Stopped)).ok();
        }
        self.give_up_rewinding(&Error::Stopped).await
    }

    /// Whatever became of the closing that these wishes waited for. True: something was done, look again.
    pub(super) async fn handle_deferred(&mut self) -> Result<bool> {
        let later = std::mem::take(&mut self.deferred_commands);
        let any = !later.is_empty();
        for (wish, passage, reply) in later {
            self.admission.add(passage);
            Box::pin(self.handle_command(wish, reply)).await?;
        }
        Ok(any)
    }

    async fn conclude_wish(
        &mut self,
        wish: &StateCommand,
        replies: Vec<ReplySender<CommandReply>>,
    ) -> Result<()> {
        // The last capture failed, and the tree is the only copy: do not pretend that all is well.
        if self.dirty.is_some() && self.tree().is_some() && self.backoff.is_some() {
            if matches!(wish, StateCommand::Release { .. }) {
                // Its sandbox is gone all the same. Active, it would start again at once; the tree is captured later.
                let facts = self.state.decide(wish).unwrap_or_default();
                if !facts.is_empty() {
                    self.commit_facts(facts).await?;
                }
            }
            tell_all(replies, Err(Error::Save("see the server's log".to_owned())));
            return Ok(());
        }
        let facts = self.state.decide(wish);
        let result = match facts {
            Ok(facts) if facts.is_empty() => Ok(()),
            Ok(facts) => self.commit_facts(facts).await,
            Err(refused) => Err(refused.into()),
        };
        // A shared one is there for the others, and for those who come.
        if result.is_ok() && *wish == StateCommand::End && !self.is_shared() {
            self.forget_tree().await;
        }
        tell_all(replies, result);
        Ok(())
    }

    /// The last checkpoint holds everything, so the tree can go.
    async fn forget_tree(&mut self) {
        self.workspace.set_tree(None);
        self.dirty = None;
        let (live, rooms) = (self.live.clone(), self.services.clone());
        if let Err(error) = blocking(move || live.erase(&rooms.uids)).await {
            tracing::warn!(session = %self.session.id, %error, "the live tree of an ended session could not be removed");
        }
    }

    /// Only what is nowhere but in the object store, too, and was captured as it is: never the only copy.
    pub(super) async fn drop_local_files(&mut self) -> Result<bool> {
        ash_failpoint::reach_async("cold.asked").await;
        // Waiting for it would be for ever: the result of a capture of our own has it until we have read the result.
        let Some(_floor) = self.workspace.try_exclusive() else { return Ok(false) };
        // Nobody else looks after a session of the workspace, so nobody is in it or has something to capture.
        let alone = !self.is_shared() || Arc::strong_count(&self.workspace) == 1;
        let over = self.is_shared() && self.state.status == SessionStatus::Ended;
        let calm = self.conn.is_none()
            && alone
            && self.state.awake.is_none()
            && self.state.is_at_rest()
            && (over || matches!(self.state.status, SessionStatus::Paused | SessionStatus::Stopped))
            && self.effect.is_none()
            && self.closing.is_none()
            && self.dirty.is_none()
            && self.rewinding.is_empty()
            && self.writing.is_empty()
            && !self.live.is_marked_dirty()
            && !self.live.has_leftovers(self.tree().is_some());
        let newest = if self.is_shared() { self.workspace.newest() } else { self.state.checkpoint };
        let (true, Some(number), true) = (calm, newest, self.tree().is_some()) else {
            return Ok(false);
        };
        let checkpoint = self.services.store.checkpoint(self.lease.workspace, number).await?;
        if checkpoint.is_none_or(|checkpoint| checkpoint.uploaded_at.is_none()) {
            return Ok(false);
        }
        self.forget_tree().await;
        Ok(true)
    }

    /// Ends the sandbox and waits until nothing of it runs; or, if others are at work in it, ends our part of it.
    pub(super) fn begin_sandbox_end(&mut self) {
        let Some(hands) = self.conn.take() else { return };
        self.commands = self.execs.numbers();
        self.execs
            .fail(&ash_model::Problem::new("sandbox_ended", "The sandbox was ended while the command ran"));
        self.touch();
        self.departing_sandbox = Some(hands);
    }

    pub(super) fn end_sandbox(&mut self, mut hands: SandboxConn) {
        let (run, id, no) = (self.live.run(), self.session.id.clone(), self.session.no);
        let (common, commands) = (self.workspace.clone(), std::mem::take(&mut self.commands));
        let tallying = self.tallying(hands.incarnation, ResourceRecordMode::Last);
        self.effect = Some(tokio::spawn(async move {
            let floor = common.exclusive().await;
            let (incarnation, process) = (hands.incarnation, hands.process);
            let last = common.leave(no, incarnation);
            if last {
                tallying.await;
                hands.remote.end().await.ok();
            } else {
                // Nobody pays for what others ask through its socket from now on.
                hands.remote.set_allowance(process, None).await.ok();
                for process in commands.into_iter().chain([process]) {
                    hands.remote.signal(process, 9).await.ok();
                }
            }
            let floor = Some(floor).filter(|_| last);
            let said = drain_last_records(&mut hands, last).await;
            drop(hands);
            if last {
                common.set_sandbox(None);
                if let Err(error) = blocking(move || Ok(ash_sandbox::reap(&run)?)).await {
                    tracing::error!(session = %id, %error, "a sandbox could not be cleared up");
                }
            }
            drop(floor);
            EffectOutcome::SandboxEnded { incarnation, process, said }
        }));
    }

    pub(super) async fn on_sandbox_ended(
        &mut self,
        incarnation: Incarnation,
        process: u16,
        said: Vec<JournalRecord>,
    ) -> Result<()> {
        if self.state.awake.as_ref().is_some_and(|awake| awake.incarnation == incarnation) {
            // Its last words count; how it died does not, we ended it.
            self.commit_records(incarnation, process, said).await?;
        } else {
            self.commit_usage_records(said).await?;
        }
        self.services.uids.release(self.lost_uid.take());
        if self.is_ephemeral() && !self.is_shared() {
            self.forget_tree().await;
        }
        // A shutdown says this together with the rest, in one step.
        if self.is_shutting_down() {
            return Ok(());
        }
        self.commit_asleep().await
    }

    pub(super) async fn commit_asleep(&mut self) -> Result<()> {
        match self.state.awake {
            Some(_) => self.commit_facts(self.state.sleep_facts()).await,
            None => Ok(()),
        }
    }
}

/// All who wait for the same.
fn tell_all(replies: Vec<ReplySender<CommandReply>>, result: Result<()>) {
    let mut replies = replies.into_iter();
    let first = replies.next();
    for reply in replies {
        let failed = result.as_ref().err().map(Error::shared);
        reply.send(failed.map_or_else(|| Ok(CommandReply::default()), Err)).ok();
    }
    if let Some(reply) = first {
        reply.send(result.map(|()| CommandReply::default())).ok();
    }
}

/// What it still says: to the end of the sandbox, or of the agent.
async fn drain_last_records(hands: &mut SandboxConn, all: bool) -> Vec<JournalRecord> {
    let (mut said, mut over) = (Vec::new(), hands.exited && !all);
    let listening = async {
        while !over && let Some(record) = hands.records.next().await {
            let exited = record.process == hands.process && matches!(record.payload, JournalPayload::Exit(_));
            over = !all && (exited || matches!(record.payload, JournalPayload::SandboxGone { .. }));
            said.push(record);
        }
    };
    tokio::time::timeout(SANDBOX_END_TIMEOUT, listening).await.ok();
    while let Some(record) = hands.records.ready() {
        said.push(record);
    }
    said
}
