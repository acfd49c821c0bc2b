//! Carrying out the steps of the real machine.

use super::{Disk, Luck, RestartNeed, World};
use ash_model::{Death, Fact, SessionOptions};
use ash_session::machine::{
    ClosingConclusion, ClosingOutcome, NextStep, SandboxConnection, SessionClosing, StateCommand,
    TreeInspection, TurnTimeLimit, WaiterId,
};
use std::time::Duration;

/// How often the disk is checked.
const DISK_CHECK: Duration = Duration::from_secs(5);

impl World {
    pub(super) fn drive(&mut self) {
        for _ in 0..200 {
            self.observe();
            let Some(machine) = &mut self.machine else { return };
            let step = machine.plan(self.now);
            if step == NextStep::Wait {
                let next = machine.next_deadline(self.now);
                assert!(next.is_none_or(|at| at > self.now.instant), "the actor would spin: {machine:?}");
                return;
            }
            machine.begin(&step, self.now.instant);
            self.carry_out(step);
        }
        panic!("the actor would spin for ever: {:?}", self.machine());
    }

    fn observe(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        machine.runtime.tree.present = self.disk.tree;
        // What an agent began goes with its sandbox.
        machine.runtime.agent.self_started &= machine.runtime.is_connected();
        machine.observe(self.now.instant);
    }

    fn carry_out(&mut self, step: NextStep) {
        let now = self.now.instant;
        match step {
            NextStep::Wait => {}
            NextStep::InspectTree => {
                let Disk { broken, leftovers, .. } = self.disk;
                self.machine_mut().runtime.tree.seen = Some(TreeInspection { broken, leftovers });
            }
            NextStep::Commit { facts } | NextStep::EndUncaptured { facts } => self.note(facts),
            NextStep::CommitAndTell { facts } => {
                self.note_and_tell(facts);
                if let Some(machine) = &mut self.machine {
                    machine.set_interrupt_deadline(now);
                }
            }
            NextStep::InterruptForClosing { facts } => self.note_and_tell(facts),
            NextStep::Tell { fact, input, say } => {
                self.note(vec![fact]);
                self.tell(input, say);
            }
            NextStep::KillAgent => self.die(),
            NextStep::SayFull { facts } => {
                self.note(facts);
                self.machine_mut().said_full();
            }
            NextStep::ReadLimits => self.machine_mut().runtime.limits.bounds = TurnTimeLimit::Seconds(100),
            NextStep::CheckDisk => self.machine_mut().runtime.limits.next_disk_check = now + DISK_CHECK,
            NextStep::NoteIdle { fact, over } => {
                self.note(fact.into_iter().collect());
                self.machine_mut().runtime.idle.warned = true;
                if over {
                    self.close(SessionClosing::idle(now));
                }
            }
            NextStep::Retire => self.retire(),
            // The test decides when they are over.
            NextStep::Start => self.changes_at_start = self.told.changes,
            NextStep::EndSandbox
            | NextStep::Salvage
            | NextStep::MakeTree
            | NextStep::Capture(_)
            | NextStep::PrepareRewind
            | NextStep::PrepareWorkspaceRewind
            | NextStep::PrepareMemoryRewind => {}
            NextStep::LeaveSandbox => self.check_leave(),
            NextStep::AbandonRemoteWait | NextStep::DiscardPreparedTree => {}
            NextStep::LoseTree => self.lose_tree(),
            NextStep::AdmitWriters => {
                let writers = std::mem::take(&mut self.machine_mut().runtime.waiting.writing);
                self.machine_mut().runtime.touch(now);
                self.answer_all(writers);
            }
            NextStep::CaptureImpossible(turn) => {
                self.capture_failed(ash_session::machine::CaptureOccasion::TurnEnd(turn))
            }
            NextStep::HandleDeferred => {
                for (waiter, command) in std::mem::take(&mut self.machine_mut().runtime.waiting.deferred) {
                    match self.machine {
                        Some(_) => self.handle_command(&command, waiter),
                        None => return,
                    }
                }
            }
            NextStep::AnswerResumers => {
                let waiters = std::mem::take(&mut self.machine_mut().runtime.waiting.resuming);
                self.answer_all(waiters);
            }
            NextStep::AnswerForkers => {
                let waiters = std::mem::take(&mut self.machine_mut().runtime.waiting.forking);
                self.answer_all(waiters);
            }
            NextStep::Pause => {
                let waiters = std::mem::take(&mut self.machine_mut().runtime.waiting.pausing);
                if let Ok(facts) = self.state().decide(&StateCommand::Pause) {
                    self.note(facts);
                }
                self.answer_all(waiters);
            }
            NextStep::ConcludeClosing => self.conclude_closing(),
            NextStep::TellSetting { setting, input } => {
                self.note_and_tell(vec![Fact::Setting { setting, input }]);
                if let Some(machine) = &mut self.machine {
                    machine.told_setting(input, now);
                }
            }
            NextStep::ChangeOptions => {
                let waiter = self.machine_mut().take_change().expect("a change");
                let restart = self.callers.get(&waiter) == Some(&Some(RestartNeed::Restart));
                self.note(vec![Fact::Configured { options: SessionOptions::default(), restart }]);
                self.answer(waiter);
            }
            NextStep::RefuseChange(_) => {
                let waiter = self.machine_mut().take_change().expect("a change");
                self.answer(waiter);
            }
            NextStep::RefuseRewind(_) => self.refuse_rewind(),
            NextStep::Rewind { facts } => {
                self.note(facts);
                self.disk = Disk { tree: true, ..Disk::default() };
                self.machine_mut().runtime.capture.dirty = None;
                self.refuse_rewind();
            }
            NextStep::BeginSelfStartedTurn => self.begin_self_started_turn(),
            NextStep::StopWaitingForBackground | NextStep::RetryWrite => {
                unreachable!("nothing here asks for it")
            }
        }
    }

    /// The actor ends; another one finds everything in the log.
    fn retire(&mut self) {
        let run = &self.machine().runtime;
        assert_eq!((run.sandbox, run.effect), (SandboxConnection::Absent, None));
        assert_eq!(self.callers.len(), 0, "somebody waits");
        self.machine = None;
        self.act_start(Luck::Good);
    }

    pub(super) fn lose_tree(&mut self) {
        self.disk = Disk { leftovers: self.disk.tree, ..Disk::default() };
        if let Some(machine) = &mut self.machine {
            machine.tree_lost();
        }
    }

    /// The first rewind is answered.
    pub(super) fn refuse_rewind(&mut self) {
        if let Some(waiter) = self.machine_mut().take_rewind() {
            self.answer(waiter);
        }
    }

    pub(super) fn refuse_rewinds(&mut self) {
        while !self.machine().runtime.waiting.rewinding.is_empty() {
            self.refuse_rewind();
        }
    }

    fn conclude_closing(&mut self) {
        let Some(ClosingConclusion { facts, outcome }) = self.machine_mut().conclude_closing() else {
            return;
        };
        match outcome {
            ClosingOutcome::Done { waiters, removes_tree } => {
                self.note(facts);
                if removes_tree {
                    self.forget_tree();
                }
                self.answer_all(waiters);
            }
            ClosingOutcome::Refused { waiters, .. } => self.answer_all(waiters),
            ClosingOutcome::Unsafe { waiters } => {
                self.note(facts);
                self.answer_all(waiters);
            }
            ClosingOutcome::ShutDown { waiter } => {
                let others = self.machine_mut().stop_waiting_for_shutdown();
                self.answer_all(others);
                self.refuse_rewinds();
                self.note(facts);
                self.answer(waiter);
                self.disconnect();
            }
        }
    }

    /// The server is gone; callers that still wait get an error.
    fn disconnect(&mut self) {
        self.machine = None;
        self.callers.clear();
    }

    pub(super) fn forget_tree(&mut self) {
        self.disk.tree = false;
        self.disk.broken = false;
        self.machine_mut().runtime.capture.dirty = None;
    }

    pub(super) fn wait_for_deadline(&mut self) {
        let Some(at) = self.machine.as_ref().and_then(|machine| machine.next_deadline(self.now)) else {
            return;
        };
        self.advance(at - self.now.instant + Duration::from_millis(1));
    }

    pub(super) fn die(&mut self) {
        self.hear();
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.alive) else { return };
        shim.alive = false;
        // Without a server its last output is in its journal, and the next server sees that it died.
        let Some(machine) = self.machine.as_mut().filter(|machine| machine.runtime.is_connected()) else {
            return;
        };
        let facts = machine.log.died(&Death::Agent { how: "signal 9".into() });
        self.note(facts);
        let now = self.now.instant;
        let machine = self.machine_mut();
        machine.runtime.agent.interrupt_deadline = None;
        machine.leave_sandbox(now);
    }

    pub(super) fn waiters_of_files(&mut self) -> Vec<WaiterId> {
        self.machine_mut().stop_waiting_for_files()
    }
}
