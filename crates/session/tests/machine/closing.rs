//! Closing on purpose: who waits for which closing, in which order things end, and what the callers are told.

use crate::{
    given::{FIRST, Given, SECOND, asleep, finished, queued, rested, started},
    world::USUAL,
};
use ash_driver::AgentInput;
use ash_model::{
    Fact, Incarnation, PermissionId, PermissionRequest, PermissionTimeoutPolicy, SessionStatus, Timestamp,
    TurnOutcome,
};
use ash_session::machine::{
    Admittance, CaptureOccasion, ClosingConclusion, ClosingOutcome, ClosingReason, ClosingRefusal,
    CommandRefusal, NextStep, OvertakenClosing, RemoteWait, SandboxConnection, SessionClosing,
    SessionProfile, StateCommand, TreeInspection, WaiterId,
};
use uuid::Uuid;

const FIRST_CALLER: WaiterId = WaiterId(1);
const CALLER: WaiterId = WaiterId(2);
const RELEASE: StateCommand = StateCommand::Release { by_force: false };
const FORCED: StateCommand = StateCommand::Release { by_force: true };
const BETWEEN: NextStep = NextStep::Capture(CaptureOccasion::BetweenTurns);

/// A live session that closes for this command of the first caller.
fn closing(command: StateCommand, facts: &[Fact]) -> Given {
    closing_with(USUAL, command, facts)
}

fn closing_with(profile: SessionProfile, command: StateCommand, facts: &[Fact]) -> Given {
    let mut given = Given::live_with(profile, facts);
    let closing = SessionClosing::by_command(command, vec![FIRST_CALLER], given.start);
    assert_eq!(given.machine.close(closing), None);
    given
}

fn shutting_down(facts: &[Fact]) -> Given {
    let mut given = Given::live(facts);
    let closing = SessionClosing::shutdown(given.at(20).instant, FIRST_CALLER);
    assert_eq!(given.machine.close(closing), None);
    given
}

fn running() -> Vec<Fact> {
    vec![queued(FIRST), started(FIRST, 2)]
}

#[test]
fn a_command_meets_a_closing() {
    use Admittance::{Deferred, Joined, Open, Refused};
    let stopped = Refused(ClosingRefusal::Status(SessionStatus::Stopped));
    let ended = Refused(ClosingRefusal::Status(SessionStatus::Ended));
    let stops = Refused(ClosingRefusal::ServerStops);
    let commands =
        [StateCommand::Resume, StateCommand::Pause, RELEASE, FORCED, StateCommand::Stop, StateCommand::End];
    let admitted = |given: fn() -> Given| {
        let admit = |command: &StateCommand| given().machine.admit(command, CALLER);
        commands.each_ref().map(admit)
    };
    assert_eq!(admitted(|| Given::live(&[])), [Open; 6]);
    let released = [Deferred, Deferred, Joined, Joined, Open, Open];
    assert_eq!(admitted(|| closing(RELEASE, &[])), released);
    assert_eq!(admitted(|| closing(FORCED, &[])), released);
    let stopping = [stopped, stopped, Joined, Joined, Joined, Open];
    assert_eq!(admitted(|| closing(StateCommand::Stop, &[])), stopping);
    assert_eq!(admitted(|| closing(StateCommand::End, &[])), [ended, ended, Joined, Joined, ended, Joined]);
    assert_eq!(admitted(|| shutting_down(&[])), [stops; 6]);
}

#[test]
fn commands_that_arrive_during_a_release_are_handled_after_it() {
    let mut given = closing(RELEASE, &[]);
    given.machine.admit(&StateCommand::Resume, CALLER);
    assert_eq!(given.machine.runtime.waiting.deferred, [(CALLER, StateCommand::Resume)]);
    given.machine.runtime.sandbox = SandboxConnection::Absent;
    assert_eq!(given.plan(0), NextStep::ConcludeClosing);
    given.machine.conclude_closing();
    assert_eq!(given.plan(0), NextStep::HandleDeferred);
}

#[test]
fn callers_that_ask_for_the_same_closing_get_its_answer() {
    let mut given = closing(StateCommand::Stop, &[]);
    given.machine.admit(&StateCommand::Stop, CALLER);
    given.machine.admit(&RELEASE, WaiterId(3));
    let outcome =
        ClosingOutcome::Done { waiters: vec![FIRST_CALLER, CALLER, WaiterId(3)], removes_tree: false };
    let expected = ClosingConclusion { facts: vec![Fact::Stopped], outcome };
    assert_eq!(given.machine.conclude_closing(), Some(expected));
    assert_eq!(given.machine.conclude_closing(), None);
}

#[test]
fn a_stronger_closing_overtakes_a_weaker_one_and_names_its_callers() {
    let mut given = closing(RELEASE, &[]);
    assert_eq!(given.machine.halted_by(), Some(ClosingReason::Release));
    let end = SessionClosing::by_command(StateCommand::End, vec![CALLER], given.start);
    let overtaken = OvertakenClosing { commands: vec![FIRST_CALLER], shutdown: None, by: ClosingReason::End };
    assert_eq!(given.machine.close(end), Some(overtaken));
    assert_eq!(given.machine.halted_by(), Some(ClosingReason::End));
    let shutdown = SessionClosing::shutdown(given.start, WaiterId(3));
    let overtaken = OvertakenClosing { commands: vec![CALLER], shutdown: None, by: ClosingReason::Shutdown };
    assert_eq!(given.machine.close(shutdown), Some(overtaken));
    assert!(given.machine.runtime.is_shutting_down());
    let stop = SessionClosing::by_command(StateCommand::Stop, vec![], given.start);
    let overtaken =
        OvertakenClosing { commands: vec![], shutdown: Some(WaiterId(3)), by: ClosingReason::Stop };
    assert_eq!(given.machine.close(stop), Some(overtaken));
    assert!(!given.machine.runtime.is_shutting_down());
}

#[test]
fn a_stop_takes_over_a_release_and_answers_its_callers() {
    let mut given = closing(RELEASE, &[]);
    assert_eq!(given.machine.admit(&StateCommand::Stop, CALLER), Admittance::Open);
    let stop = SessionClosing::by_command(StateCommand::Stop, vec![CALLER], given.start);
    assert_eq!(given.machine.close(stop), None);
    let outcome = ClosingOutcome::Done { waiters: vec![CALLER, FIRST_CALLER], removes_tree: false };
    let expected = ClosingConclusion { facts: vec![Fact::Stopped], outcome };
    assert_eq!(given.machine.conclude_closing(), Some(expected));
}

#[test]
fn a_session_that_is_idle_closes_for_no_caller() {
    let mut given = Given::live(&[]);
    given.machine.close(SessionClosing::idle(given.start));
    let outcome = ClosingOutcome::Done { waiters: vec![], removes_tree: false };
    let expected = ClosingConclusion { facts: vec![Fact::Paused], outcome };
    assert_eq!(given.machine.conclude_closing(), Some(expected));
}

#[test]
fn a_closing_interrupts_its_turn_waits_ten_seconds_for_it_and_then_goes_on_without() {
    let mut given = closing(StateCommand::Stop, &running());
    let interrupting = Fact::Interrupting { turn: FIRST, input: 3 };
    assert_eq!(given.plan(0), NextStep::InterruptForClosing { facts: vec![interrupting.clone()] });
    given.machine.log.apply(9, &interrupting);
    assert_eq!(given.due(), Some((10, NextStep::LeaveSandbox)));
    // The turn stops in time, and is saved first.
    given.machine.log.apply(10, &rested(FIRST));
    assert_eq!(given.plan(9), NextStep::Capture(CaptureOccasion::TurnEnd(FIRST)));
    given.machine.runtime.remote_wait = Some(RemoteWait { turn: FIRST, checkpoint: 1 });
    assert_eq!(given.due(), Some((10, NextStep::AbandonRemoteWait)));
    given.machine.begin(&NextStep::AbandonRemoteWait, given.start);
    assert_eq!(given.machine.runtime.remote_wait, None);
    assert_eq!(given.plan(10), NextStep::LeaveSandbox);
}

#[test]
fn a_shutdown_lets_the_turn_run_for_a_while_and_does_not_interrupt_it() {
    assert_eq!(shutting_down(&running()).due(), Some((20, NextStep::LeaveSandbox)));
    assert_eq!(shutting_down(&[queued(FIRST)]).plan(0), NextStep::LeaveSandbox, "it has not begun");
}

#[test]
fn a_shutdown_does_not_wait_for_an_answer_that_no_client_can_give() {
    let asked = PermissionRequest {
        id: PermissionId(Uuid::from_u128(5)),
        turn: Some(FIRST),
        request: "r".into(),
        tool: "Bash".into(),
        input: serde_json::json!({}),
        tool_use_id: None,
        suggestions: Vec::new(),
        question: false,
        expires_at: Timestamp(90_000),
        on_timeout: PermissionTimeoutPolicy::Deny,
    };
    let facts: Vec<Fact> = running().into_iter().chain([Fact::PermissionRequested(asked)]).collect();
    assert_eq!(shutting_down(&facts).plan(0), NextStep::LeaveSandbox);
    let interrupted = closing(StateCommand::Stop, &facts);
    assert!(matches!(interrupted.plan(0), NextStep::InterruptForClosing { .. }), "clients are still there");
}

#[test]
fn the_sandbox_ends_before_its_last_files_are_captured_once() {
    let mut given = closing(StateCommand::Stop, &[]);
    assert_eq!(given.plan(0), NextStep::LeaveSandbox);
    given.machine.runtime.agent.commands_running = true;
    let now = given.at(4).instant;
    given.machine.begin(&NextStep::LeaveSandbox, now);
    let run = &given.machine.runtime;
    assert_eq!((run.sandbox, run.capture.dirty), (SandboxConnection::Departing, Some(now)));
    assert!(!run.agent.commands_running);
    assert_eq!(given.plan(4), NextStep::EndSandbox);
    given.machine.begin(&NextStep::EndSandbox, now);
    assert_eq!((given.machine.runtime.sandbox, given.plan(4)), (SandboxConnection::Absent, NextStep::Wait));
    given.machine.finish_effect();
    assert_eq!(given.plan(4), BETWEEN);
    given.machine.begin(&BETWEEN, now);
    // The capture fails: the files are still the only copy.
    given.machine.finish_effect();
    given.machine.capture_failed(CaptureOccasion::BetweenTurns, "full", now);
    assert_eq!(given.plan(4), NextStep::ConcludeClosing, "the callers do not wait for the next try");
    let outcome = ClosingOutcome::Unsafe { waiters: vec![FIRST_CALLER] };
    assert_eq!(given.machine.conclude_closing(), Some(ClosingConclusion { facts: vec![], outcome }));
}

#[test]
fn a_release_whose_files_are_not_safe_still_pauses_the_session() {
    let mut given = closing(RELEASE, &[]);
    given.machine.runtime.sandbox = SandboxConnection::Absent;
    given.machine.capture_failed(CaptureOccasion::BetweenTurns, "full", given.start);
    let outcome = ClosingOutcome::Unsafe { waiters: vec![FIRST_CALLER] };
    let expected = ClosingConclusion { facts: vec![Fact::Paused], outcome };
    assert_eq!(given.machine.conclude_closing(), Some(expected));
    // A tree that is gone is not unsafe, and one without a failure is captured later.
    for with in [(true, false, true), (false, true, true), (true, true, false)] {
        let (dirty, present, failed) = with;
        let mut given = closing(RELEASE, &[]);
        given.machine.capture_failed(CaptureOccasion::BetweenTurns, "full", given.start);
        let run = &mut given.machine.runtime;
        run.tree.present = present;
        if !dirty {
            run.capture.dirty = None;
        }
        if !failed {
            run.capture.backoff = None;
        }
        let outcome = given.machine.conclude_closing().map(|conclusion| conclusion.outcome);
        let done = ClosingOutcome::Done { waiters: vec![FIRST_CALLER], removes_tree: false };
        assert_eq!(outcome, Some(done), "{with:?}");
    }
}

#[test]
fn a_command_that_is_not_possible_any_more_is_refused_at_the_end() {
    let mut given = closing(RELEASE, &[queued(FIRST)]);
    let outcome = ClosingOutcome::Refused { waiters: vec![FIRST_CALLER], refusal: CommandRefusal::Busy };
    assert_eq!(given.machine.conclude_closing(), Some(ClosingConclusion { facts: vec![], outcome }));
}

#[test]
fn the_end_of_a_session_removes_its_tree_unless_others_work_in_it() {
    for (shared, removes_tree) in [(false, true), (true, false)] {
        let profile = SessionProfile { shared, ..USUAL };
        let mut given = closing_with(profile, StateCommand::End, &[]);
        let outcome = ClosingOutcome::Done { waiters: vec![FIRST_CALLER], removes_tree };
        let expected = ClosingConclusion { facts: vec![Fact::Ended], outcome };
        assert_eq!(given.machine.conclude_closing(), Some(expected));
    }
    let mut given = closing(StateCommand::Stop, &[]);
    let outcome = ClosingOutcome::Done { waiters: vec![FIRST_CALLER], removes_tree: false };
    assert_eq!(
        given.machine.conclude_closing(),
        Some(ClosingConclusion { facts: vec![Fact::Stopped], outcome })
    );
}

#[test]
fn the_end_of_a_session_captures_everything_that_its_directory_holds() {
    let mut given = closing(StateCommand::End, &[]);
    given.machine.runtime.sandbox = SandboxConnection::Absent;
    assert_eq!(given.plan(0), NextStep::InspectTree);
    given.machine.runtime.tree.seen = Some(TreeInspection { broken: false, leftovers: true });
    assert_eq!(given.plan(0), NextStep::Salvage);
    given.machine.runtime.tree.seen = Some(TreeInspection { broken: false, leftovers: false });
    assert_eq!(given.plan(0), NextStep::ConcludeClosing);
    given.machine.runtime.capture.dirty = Some(given.start);
    assert_eq!(given.plan(0), BETWEEN);
    // A stop keeps the directory, and nothing of an ephemeral session is kept.
    let ephemeral = SessionProfile { ephemeral: true, ..USUAL };
    for mut given in [closing(StateCommand::Stop, &[]), closing_with(ephemeral, StateCommand::End, &[])] {
        given.machine.runtime.sandbox = SandboxConnection::Absent;
        assert_eq!(given.plan(0), NextStep::ConcludeClosing);
    }
}

#[test]
fn an_end_whose_files_cannot_be_salvaged_is_given_up_and_nothing_else_is() {
    let mut given = closing(StateCommand::End, &[]);
    assert_eq!(given.machine.give_up_end(), [FIRST_CALLER]);
    assert_eq!(given.machine.runtime.closing, None);
    let mut given = closing(StateCommand::Stop, &[]);
    assert_eq!(given.machine.give_up_end(), []);
    assert!(given.machine.runtime.closing.is_some());
}

#[test]
fn a_shutdown_answers_every_caller_that_waits_for_something_to_begin() {
    let mut given = shutting_down(&running());
    let cut = Fact::Cut { turn: FIRST, death: ash_model::Death::Shutdown };
    let outcome = ClosingOutcome::ShutDown { waiter: FIRST_CALLER };
    let expected = ClosingConclusion { facts: vec![cut, asleep(), Fact::Paused], outcome };
    assert_eq!(given.machine.conclude_closing(), Some(expected));
    let waiting = &mut given.machine.runtime.waiting;
    waiting.deferred.push((WaiterId(3), StateCommand::Resume));
    waiting.resuming.push(WaiterId(4));
    waiting.pausing.push(WaiterId(5));
    waiting.forking.push(WaiterId(6));
    let told = given.machine.stop_waiting_for_shutdown();
    assert_eq!(told, [3, 4, 5, 6].map(WaiterId));
    assert!(given.machine.runtime.waiting.is_empty());
}

#[test]
fn a_session_that_ended_by_itself_needs_no_second_end() {
    let ends = |facts: &[Fact], command: &StateCommand| {
        let mut given = Given::live(facts);
        let decided = given.machine.log.decide(command).expect("possible");
        let reception = given.machine.receive(command, CALLER, decided, given.start);
        (reception, given.machine.runtime.closing.is_some())
    };
    use ash_session::machine::Reception::{Closes, Done};
    assert_eq!(ends(&[Fact::Ended], &StateCommand::End), (Done, false));
    assert_eq!(ends(&[], &StateCommand::End), (Closes(None), true));
    assert_eq!(ends(&[Fact::Stopped], &FORCED), (Closes(None), true), "its sandbox still ends");
}

#[test]
fn a_stop_ends_the_turn_with_its_last_checkpoint_and_cancels_nothing() {
    let saved = Fact::Saved(crate::given::checkpoint(3));
    let mut given =
        closing(StateCommand::Stop, &[queued(FIRST), started(FIRST, 2), queued(SECOND), saved.clone()]);
    let over = |turn, outcome, checkpoint| Fact::Finished { turn, outcome, checkpoint, problem: None };
    let facts = given.machine.conclude_closing().map(|conclusion| conclusion.facts);
    assert_eq!(facts, Some(vec![over(FIRST, TurnOutcome::Interrupted, Some(3)), Fact::Stopped]));
    let mut given =
        closing(StateCommand::End, &[queued(FIRST), started(FIRST, 2), queued(SECOND), saved, rested(FIRST)]);
    let facts = given.machine.conclude_closing().map(|conclusion| conclusion.facts);
    let cancelled = over(SECOND, TurnOutcome::Cancelled, None);
    assert_eq!(facts, Some(vec![finished(FIRST, Some(3)), cancelled, Fact::Ended]));
}

#[test]
fn an_input_of_a_sandbox_that_is_gone_is_for_no_other() {
    let say = AgentInput::Interrupt { turn: FIRST };
    let given = closing(
        StateCommand::Stop,
        &[queued(FIRST), started(FIRST, 2), Fact::Interrupting { turn: FIRST, input: 3 }],
    );
    assert_eq!(given.machine.log.undelivered_inputs(2), [(3, say)]);
    let mut log = given.machine.log;
    log.apply(20, &asleep());
    log.apply(
        21,
        &Fact::Awake {
            incarnation: Incarnation(Uuid::from_u128(78)),
            resumed_after: None,
            outdated: false,
            more_inputs: 0,
        },
    );
    assert_eq!(log.undelivered_inputs(0), []);
}
