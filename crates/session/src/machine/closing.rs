//! Closing on purpose: stop, end, release, and the server's own shutdown. First the turn stops, then the sandbox ends,
//! then the files are captured, then the log says so.

use super::{
    CaptureOccasion, CommandRefusal, LogState, Machine, NextStep, RuntimeState, StateCommand, TurnPhase,
    WaiterId,
    plan::{Due, View},
};
use ash_model::{Fact, SessionStatus};
use std::time::{Duration, Instant};

/// How long a turn may take to stop before the session closes without waiting for it.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq)]
pub struct SessionClosing {
    cause: ClosingCause,
    /// When the closing stops waiting for a running turn.
    deadline: Instant,
    /// The capture of the files that the sandbox left has begun.
    captured: bool,
}

#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a session has one at a time")]
enum ClosingCause {
    Command(StateCommand, Vec<WaiterId>),
    Shutdown(WaiterId),
}

/// Why a session closes, for callers whose commands the closing overtakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosingReason {
    Shutdown,
    End,
    Stop,
    Release,
}

/// An earlier closing that a later one replaced; its callers must be answered.
#[derive(Debug, Clone, PartialEq)]
pub struct OvertakenClosing {
    pub commands: Vec<WaiterId>,
    pub shutdown: Option<WaiterId>,
    pub by: ClosingReason,
}

/// The end of a closing: the facts for the log, and the callers to answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ClosingConclusion {
    pub facts: Vec<Fact>,
    pub outcome: ClosingOutcome,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ClosingOutcome {
    /// Closed as requested. At the end of a session its tree is removed, too.
    Done { waiters: Vec<WaiterId>, removes_tree: bool },
    /// The command is not possible any more.
    Refused { waiters: Vec<WaiterId>, refusal: CommandRefusal },
    /// The last capture failed and the tree is the only copy: it stays, and the callers get an error.
    Unsafe { waiters: Vec<WaiterId> },
    /// All other waiting callers are told that the server has stopped.
    ShutDown { waiter: WaiterId },
}

impl SessionClosing {
    pub fn by_command(command: StateCommand, waiters: Vec<WaiterId>, now: Instant) -> SessionClosing {
        SessionClosing {
            cause: ClosingCause::Command(command, waiters),
            deadline: now + CLOSING_TIMEOUT,
            captured: false,
        }
    }

    /// Closes a session that is idle.
    pub fn idle(now: Instant) -> SessionClosing {
        SessionClosing::by_command(StateCommand::Release { by_force: false }, Vec::new(), now)
    }

    pub fn shutdown(deadline: Instant, waiter: WaiterId) -> SessionClosing {
        SessionClosing { cause: ClosingCause::Shutdown(waiter), deadline, captured: false }
    }

    pub fn reason(&self) -> ClosingReason {
        match &self.cause {
            ClosingCause::Shutdown(_) => ClosingReason::Shutdown,
            ClosingCause::Command(StateCommand::End, _) => ClosingReason::End,
            ClosingCause::Command(StateCommand::Stop, _) => ClosingReason::Stop,
            ClosingCause::Command(..) => ClosingReason::Release,
        }
    }

    pub fn is_shutdown(&self) -> bool {
        self.reason() == ClosingReason::Shutdown
    }

    fn is_end(&self) -> bool {
        self.reason() == ClosingReason::End
    }

    /// Whether the command asks for this closing, or for less. Then its caller waits for this closing.
    fn join(&mut self, command: &StateCommand, waiter: WaiterId) -> bool {
        match &mut self.cause {
            ClosingCause::Command(earlier, waiters)
                if matches!(command, StateCommand::Release { .. }) || command == earlier =>
            {
                waiters.push(waiter);
                true
            }
            ClosingCause::Command(..) | ClosingCause::Shutdown(_) => false,
        }
    }
}

/// How a session that may be closing treats a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admittance {
    /// The session is not closing.
    Open,
    /// The command is answered with the closing that is under way.
    Joined,
    /// The command is handled after the session has let go of its sandbox.
    Deferred,
    Refused(ClosingRefusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosingRefusal {
    ServerStops,
    Status(SessionStatus),
}

impl Machine {
    /// Whether a command may be decided now.
    pub fn admit(&mut self, command: &StateCommand, waiter: WaiterId) -> Admittance {
        let Some(closing) = &mut self.runtime.closing else { return Admittance::Open };
        if closing.join(command, waiter) {
            return Admittance::Joined;
        }
        match (closing.reason(), command) {
            (ClosingReason::Shutdown, _) => Admittance::Refused(ClosingRefusal::ServerStops),
            (ClosingReason::End, _) => Admittance::Refused(ClosingRefusal::Status(SessionStatus::Ended)),
            // A stronger closing replaces the one under way.
            (ClosingReason::Release, StateCommand::Stop | StateCommand::End)
            | (ClosingReason::Stop, StateCommand::End) => Admittance::Open,
            (ClosingReason::Stop, _) => Admittance::Refused(ClosingRefusal::Status(SessionStatus::Stopped)),
            // Only the sandbox ends, so commands that arrive meanwhile are handled afterwards.
            (ClosingReason::Release, _) => {
                self.runtime.waiting.deferred.push((waiter, command.clone()));
                Admittance::Deferred
            }
        }
    }

    /// A later, stronger closing replaces an earlier one.
    pub fn close(&mut self, mut closing: SessionClosing) -> Option<OvertakenClosing> {
        let by = closing.reason();
        let earlier = self.runtime.closing.take();
        let earlier = match (earlier, &mut closing.cause) {
            // Who waits for the sandbox to end waits for the stop, which ends it as well.
            (
                Some(SessionClosing {
                    cause: ClosingCause::Command(StateCommand::Release { .. }, joined),
                    ..
                }),
                ClosingCause::Command(StateCommand::Stop, waiters),
            ) => {
                waiters.extend(joined);
                None
            }
            (earlier, _) => earlier,
        };
        self.runtime.closing = Some(closing);
        let (commands, shutdown) = match earlier?.cause {
            ClosingCause::Command(_, waiters) => (waiters, None),
            ClosingCause::Shutdown(waiter) => (Vec::new(), Some(waiter)),
        };
        Some(OvertakenClosing { commands, shutdown, by })
    }

    /// The files could not be captured, so they are not deleted either. Returns the callers that asked for the end.
    pub fn give_up_end(&mut self) -> Vec<WaiterId> {
        match self.runtime.closing.take_if(|closing| closing.is_end()) {
            Some(SessionClosing { cause: ClosingCause::Command(_, waiters), .. }) => waiters,
            Some(_) | None => Vec::new(),
        }
    }

    /// Ends the closing: all files are safe, or the log says that they are not.
    pub fn conclude_closing(&mut self) -> Option<ClosingConclusion> {
        let SessionClosing { cause, .. } = self.runtime.closing.take()?;
        let (command, waiters) = match cause {
            ClosingCause::Shutdown(waiter) => {
                let outcome = ClosingOutcome::ShutDown { waiter };
                return Some(ClosingConclusion { facts: self.log.shut_down(), outcome });
            }
            ClosingCause::Command(command, waiters) => (command, waiters),
        };
        let capture = &self.runtime.capture;
        let decided = self.log.decide(&command);
        if capture.dirty.is_some() && self.runtime.tree.present && capture.backoff.is_some() {
            // The released sandbox is gone either way. If the session stayed active, it would start again at once.
            let releases = matches!(command, StateCommand::Release { .. });
            let facts = if releases { decided.unwrap_or_default() } else { Vec::new() };
            return Some(ClosingConclusion { facts, outcome: ClosingOutcome::Unsafe { waiters } });
        }
        Some(match decided {
            Ok(facts) => {
                // A shared tree stays for the other sessions, present and future.
                let removes_tree = command == StateCommand::End && !self.runtime.profile.shared;
                ClosingConclusion { facts, outcome: ClosingOutcome::Done { waiters, removes_tree } }
            }
            Err(refusal) => {
                let outcome = ClosingOutcome::Refused { waiters, refusal };
                ClosingConclusion { facts: Vec::new(), outcome }
            }
        })
    }

    /// The server has stopped: nothing that callers wait for begins any more.
    pub fn stop_waiting_for_shutdown(&mut self) -> Vec<WaiterId> {
        let waiting = &mut self.runtime.waiting;
        let deferred = waiting.deferred.drain(..).map(|(waiter, _)| waiter);
        let others = [&mut waiting.resuming, &mut waiting.pausing, &mut waiting.forking];
        let mut all: Vec<WaiterId> = deferred.collect();
        others.into_iter().for_each(|waiters| all.append(waiters));
        all
    }

    pub(super) fn begin_closing_capture(&mut self) {
        if let Some(closing) = &mut self.runtime.closing {
            closing.captured = true;
        }
    }
}

/// The next step of a closing.
pub(super) fn due(view: &View<'_>) -> Due {
    let View { log, run, now } = *view;
    let Some(closing) = &run.closing else { return Due::Pass };
    // Clients cannot answer the turn's open request any more.
    let in_vain = closing.is_shutdown() && log.waits_for_client();
    let late = closing.deadline <= now.instant || in_vain;
    if !late && let Some(due) = wait_for_turn(closing, log, run) {
        return due;
    }
    if late && run.remote_wait.is_some() {
        return Due::Now(NextStep::AbandonRemoteWait);
    }
    if run.is_connected() {
        return Due::Now(NextStep::LeaveSandbox);
    }
    // The end removes the directory, so its contents are captured first.
    if closing.is_end() && !run.profile.ephemeral {
        match run.tree.seen {
            None => return Due::Now(NextStep::InspectTree),
            Some(seen) if seen.leftovers => return Due::Now(NextStep::Salvage),
            Some(_) => {}
        }
    }
    if !closing.captured && run.tree.present && run.capture.dirty.is_some() {
        return Due::Now(NextStep::Capture(CaptureOccasion::BetweenTurns));
    }
    Due::Now(NextStep::ConcludeClosing)
}

fn wait_for_turn(closing: &SessionClosing, log: &LogState, run: &RuntimeState) -> Option<Due> {
    let turn = log.current()?;
    let until = || Some(Due::Block(Some(closing.deadline)));
    match turn.phase {
        TurnPhase::Running { .. } if run.is_connected() => {
            // A shutdown lets the turn run for a while, and then cuts it.
            let facts = match closing.is_shutdown() {
                true => Vec::new(),
                false => log.decide(&StateCommand::Interrupt).unwrap_or_default(),
            };
            if facts.is_empty() { until() } else { Some(Due::Now(NextStep::InterruptForClosing { facts })) }
        }
        TurnPhase::Saving { .. } if run.remote_wait.is_some() => until(),
        TurnPhase::Saving { .. } => Some(Due::Now(NextStep::Capture(CaptureOccasion::TurnEnd(turn.id)))),
        TurnPhase::Running { .. } | TurnPhase::Cut | TurnPhase::Queued | TurnPhase::Joined { .. } => None,
    }
}
