//! What happens to a command after it was decided: some commands become facts at once, some wait for the files to be
//! safe, and some close the session.

use super::{
    ClosingReason, Machine, OvertakenClosing, PendingRewind, SessionClosing, StateCommand, WaiterId,
    plan::has_lost_tree,
};
use crate::machine::LogStep;
use ash_driver::AgentInput;
use ash_model::{Fact, Problem, SessionStatus};
use std::time::Instant;

/// How a decided command continues.
#[derive(Debug, Clone, PartialEq)]
pub enum Reception {
    /// A message: committed and, if nothing is in its way, sent to the agent at once.
    Queue { facts: Vec<Fact> },
    /// The facts are stored, then the caller is answered.
    Commit { facts: Vec<Fact> },
    /// Stored, and the agent is told to stop.
    Interrupt { facts: Vec<Fact> },
    /// Stored, and the agent gets the answer to its request.
    Answer { facts: Vec<Fact> },
    /// Stored; if the session starts, the caller waits for that.
    Resume { facts: Vec<Fact> },
    /// There is nothing to do, and the caller is told so.
    Done,
    /// A step answers the caller.
    Waits,
    /// A step answers the caller; an earlier closing was overtaken.
    Closes(Option<OvertakenClosing>),
}

/// The answer to callers that wait for a resume when no start will answer them.
#[derive(Debug, Clone, PartialEq)]
pub enum ResumerAnswer {
    Running,
    Ended,
    Overtaken(SessionStatus),
    Failed(Option<Problem>),
}

impl Machine {
    /// What follows from a command if the live agent has lost its files: it resumes in a new sandbox.
    pub fn without_tree(&self, command: &StateCommand, facts: Vec<Fact>) -> Vec<Fact> {
        if !has_lost_tree(&self.log, &self.runtime) {
            return facts;
        }
        let active = self.log.status == SessionStatus::Active && self.log.turns.is_empty();
        if *command == StateCommand::Resume && active && facts.is_empty() {
            return vec![Fact::Resuming];
        }
        let cold = |fact| match fact {
            Fact::Resumed { .. } => Fact::Resuming,
            fact => fact,
        };
        facts.into_iter().map(cold).collect()
    }

    /// Whether the running agent has lost its files.
    pub fn has_lost_tree(&self) -> bool {
        has_lost_tree(&self.log, &self.runtime)
    }

    /// Carries on with a command that was decided.
    pub fn receive(
        &mut self,
        command: &StateCommand,
        waiter: WaiterId,
        facts: Vec<Fact>,
        now: Instant,
    ) -> Reception {
        match command {
            StateCommand::Prompt { .. } => Reception::Queue { facts },
            StateCommand::Withdraw { .. } | StateCommand::Reorder { .. } => Reception::Commit { facts },
            StateCommand::Interrupt => Reception::Interrupt { facts },
            StateCommand::Answer { .. } | StateCommand::AnswerTool { .. } => Reception::Answer { facts },
            StateCommand::Resume => Reception::Resume { facts },
            StateCommand::Pause => {
                // Processes that a turn left behind may have written since.
                self.runtime.capture.wanted = true;
                self.runtime.waiting.pausing.push(waiter);
                Reception::Waits
            }
            StateCommand::Rewind { .. } => {
                let rewinding = PendingRewind { waiter, command: command.clone(), prepared: false };
                self.runtime.waiting.rewinding.push_back(rewinding);
                Reception::Waits
            }
            StateCommand::Stop | StateCommand::End if facts.is_empty() => Reception::Done,
            StateCommand::Stop | StateCommand::Release { .. } | StateCommand::End => {
                Reception::Closes(self.close(SessionClosing::by_command(command.clone(), vec![waiter], now)))
            }
        }
    }

    /// A fork waits for files that are safe.
    pub fn receive_fork(&mut self, waiter: WaiterId) {
        let run = &mut self.runtime;
        run.capture.wanted |= run.is_connected() || run.capture.dirty.is_some();
        run.waiting.forking.push(waiter);
    }

    /// The resume was committed: whether its caller waits for the start.
    pub fn waits_for_start(&mut self, waiter: WaiterId) -> bool {
        let waits = self.log.status == SessionStatus::Starting || self.log.next_step() == LogStep::Wake;
        if waits {
            self.runtime.waiting.resuming.push(waiter);
        }
        waits
    }

    /// What a message sends to the agent at once, if nothing is in its way: the acceptance and the delivery then share
    /// one commit.
    pub fn immediate_delivery(&self, facts: &[Fact]) -> Option<(Fact, u64, AgentInput)> {
        let run = &self.runtime;
        let waiting = &run.waiting;
        let calm = waiting.writing.is_empty()
            && waiting.rewinding.is_empty()
            && waiting.pausing.is_empty()
            && waiting.forking.is_empty()
            && run.effect.is_none()
            && run.closing.is_none()
            && run.is_connected()
            && !run.agent.self_started
            && !has_lost_tree(&self.log, run);
        if !calm {
            return None;
        }
        match self.log.after(facts).next_step() {
            LogStep::Tell { fact, input, say } => Some((fact, input, say)),
            LogStep::Wait
            | LogStep::Wake
            | LogStep::Commit { .. }
            | LogStep::Save { .. }
            | LogStep::Sleep => None,
        }
    }

    /// Whether these facts start a session that has no sandbox.
    pub fn starts_by(&self, facts: &[Fact]) -> bool {
        !self.runtime.is_connected()
            && self.log.status != SessionStatus::Starting
            && self.log.after(facts).status == SessionStatus::Starting
    }

    /// The answer to callers that wait for a resume.
    pub fn resumer_answer(&self) -> ResumerAnswer {
        match self.log.status {
            SessionStatus::Starting | SessionStatus::Active => ResumerAnswer::Running,
            SessionStatus::Ended => ResumerAnswer::Ended,
            status @ (SessionStatus::Paused | SessionStatus::Stopped) => ResumerAnswer::Overtaken(status),
            SessionStatus::Error => ResumerAnswer::Failed(self.log.problem.clone()),
        }
    }

    /// Why a start was told to halt.
    pub fn halted_by(&self) -> Option<ClosingReason> {
        self.runtime.closing.as_ref().map(SessionClosing::reason)
    }

    /// What follows from a failed start. If no sandbox was available, the session returns to its previous status,
    /// unless a turn waits for it.
    pub fn facts_of_failed_start(&self, problem: Problem, for_want_of_room: bool) -> Vec<Fact> {
        let rests = self.log.decide(&StateCommand::Release { by_force: false });
        match rests {
            Ok(facts) if for_want_of_room && !facts.is_empty() => facts,
            Ok(_) | Err(_) => vec![Fact::Failed { problem }],
        }
    }
}
