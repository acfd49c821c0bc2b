//! When files are captured, what a capture means for its turn, and what follows when it fails.

use crate::{
    given::{FIRST, Given, SECOND, awake, checkpoint, failed, finished, queued, rested, started},
    world::USUAL,
};
use ash_model::{Death, Durability, Fact, MessageOptions, Problem, SavedCheckpoint, TurnOutcome};
use ash_session::machine::{
    CaptureOccasion, CaptureRecord, CaptureUnderWay, Effect, NextStep, RemoteWait, SandboxConnection,
    SessionClosing, SessionProfile, StateCommand, WaiterId,
};
use std::time::Duration;

const BETWEEN: NextStep = NextStep::Capture(CaptureOccasion::BetweenTurns);
const MIDWAY: NextStep = NextStep::Capture(CaptureOccasion::Midway(FIRST));
const END: CaptureOccasion = CaptureOccasion::TurnEnd(FIRST);

fn running() -> Vec<Fact> {
    vec![queued(FIRST), started(FIRST, 2)]
}

fn saving() -> Vec<Fact> {
    vec![queued(FIRST), started(FIRST, 2), rested(FIRST)]
}

fn every(seconds: u64) -> SessionProfile {
    SessionProfile { checkpoint_every: Some(Duration::from_secs(seconds)), ..USUAL }
}

#[test]
fn changes_between_turns_are_captured_when_they_have_settled() {
    let mut given = Given::live(&[]);
    let (start, later) = (given.start, given.at(2).instant);
    given.machine.runtime.touch(later);
    given.machine.runtime.touch(start);
    assert_eq!(given.due(), Some((3, BETWEEN)), "since the first of them");
    // What a start wrote may wait for the turn that usually follows.
    let mut given = Given::live(&[]);
    let (start, later) = (given.start, given.at(2).instant);
    given.machine.runtime.touch_later(start);
    given.machine.runtime.touch_later(later);
    assert_eq!(given.due(), Some((33, BETWEEN)));
    given.machine.runtime.touch(later);
    assert_eq!(given.due(), Some((5, BETWEEN)));
    given.machine.runtime.touch_later(start);
    assert_eq!(given.due(), Some((5, BETWEEN)));
}

#[test]
fn files_are_not_captured_between_turns_while_a_turn_runs_or_without_a_tree() {
    let mut given = Given::live(&running());
    given.machine.runtime.touch(given.start);
    assert_eq!((given.plan(3), given.next(0)), (NextStep::Wait, Some(7200)));
    let mut given = Given::live(&[Fact::Paused]);
    given.machine.runtime.touch(given.start);
    given.machine.runtime.tree.present = false;
    assert_eq!(given.plan(3), NextStep::Wait);
}

#[test]
fn ephemeral_files_are_never_dirty() {
    let mut given = Given::live_with(SessionProfile { ephemeral: true, ..USUAL }, &[]);
    given.machine.runtime.touch(given.start);
    given.machine.runtime.touch_later(given.start);
    assert_eq!(given.machine.runtime.capture.dirty, None);
}

#[test]
fn a_long_turn_is_captured_from_time_to_time() {
    let mut given = Given::live_with(every(30), &running());
    assert_eq!(given.due(), Some((30, MIDWAY)));
    let now = given.at(30).instant;
    given.machine.begin(&MIDWAY, now);
    let under_way = CaptureUnderWay { occasion: CaptureOccasion::Midway(FIRST), began: now, may_skip: false };
    assert_eq!(given.machine.finish_effect(), Some(Effect::Capture(under_way)));
    assert_eq!(given.due(), Some((60, MIDWAY)));
    assert_eq!(given.machine.runtime.capture.dirty, Some(now), "what follows is in the next capture");
    // A message that starts counts anew.
    let say = ash_driver::AgentInput::Interrupt { turn: FIRST };
    let now = given.at(45).instant;
    given.machine.begin(&NextStep::Tell { fact: started(FIRST, 2), input: 2, say }, now);
    assert_eq!(given.due(), Some((75, MIDWAY)));
}

#[test]
fn a_turn_that_logs_much_is_captured_at_once() {
    let mut given = Given::live(&running());
    given.machine.runtime.capture.add_log_bytes(32 << 20, 0);
    assert_eq!(given.plan(0), NextStep::Wait, "it fits");
    given.machine.runtime.capture.add_log_bytes(0, 1);
    assert_eq!(given.plan(0), MIDWAY, "an event has a size of its own");
    assert_eq!(given.machine.runtime.capture.unpacked_log_bytes, (32 << 20) + 256);
    given.machine.begin(&MIDWAY, given.start);
    assert_eq!(given.machine.runtime.capture.unpacked_log_bytes, 0);
    given.machine.runtime.capture.add_log_bytes(u64::MAX, 3);
    assert_eq!(given.machine.runtime.capture.unpacked_log_bytes, u64::MAX);
}

#[test]
fn no_midway_capture_is_made_that_would_be_of_no_use() {
    let given = || Given::live_with(every(30), &running());
    let mut ephemeral = Given::live_with(SessionProfile { ephemeral: true, ..every(30) }, &running());
    let (mut away, mut gone, mut closing) = (given(), given(), given());
    away.machine.runtime.sandbox = SandboxConnection::Absent;
    gone.machine.runtime.tree.present = false;
    let deadline = closing.at(99).instant;
    closing.machine.runtime.closing = Some(SessionClosing::shutdown(deadline, WaiterId(1)));
    for given in [&mut ephemeral, &mut away, &mut gone, &mut closing] {
        assert_eq!(given.plan(40), NextStep::Wait, "{:?}", given.machine);
    }
    assert_eq!(Given::live_with(every(30), &saving()).plan(0), NextStep::Capture(END), "it is not midway");
}

#[test]
fn a_capture_takes_all_changes_until_it_begins() {
    let begun = |commands_running, occasion: CaptureOccasion| {
        let mut given = Given::live(&[]);
        given.machine.runtime.touch(given.start);
        given.machine.runtime.capture.wanted = true;
        given.machine.runtime.agent.commands_running = commands_running;
        let now = given.at(7).instant;
        given.machine.begin(&NextStep::Capture(occasion), now);
        let capture = given.machine.runtime.capture;
        assert_eq!(capture.last, now);
        let seconds = |at: std::time::Instant| at.duration_since(given.start).as_secs();
        (capture.dirty.map(seconds), capture.wanted)
    };
    for occasion in [END, CaptureOccasion::BetweenTurns] {
        assert_eq!(begun(false, occasion), (None, false), "{occasion:?}");
        assert_eq!(begun(true, occasion), (Some(7), false), "a command may still write: {occasion:?}");
    }
    assert_eq!(begun(false, CaptureOccasion::Midway(FIRST)), (Some(0), true));
}

#[test]
fn only_a_capture_of_unchanged_files_that_are_in_a_settled_checkpoint_may_be_skipped() {
    let saved = |mid_turn| Fact::Saved(SavedCheckpoint { mid_turn, ..checkpoint(1) });
    let may_skip = |facts: &[Fact], dirty: bool, occasion| {
        let mut given = Given::live(facts);
        if dirty {
            given.machine.runtime.touch(given.start);
        }
        given.machine.begin(&NextStep::Capture(occasion), given.start);
        match given.machine.finish_effect() {
            Some(Effect::Capture(CaptureUnderWay { may_skip, .. })) => may_skip,
            other => panic!("{other:?}"),
        }
    };
    let between = CaptureOccasion::BetweenTurns;
    assert!(may_skip(&[saved(false)], false, between));
    assert!(!may_skip(&[saved(false)], true, between), "there may be changes");
    assert!(!may_skip(&[], false, between), "there is no checkpoint");
    assert!(!may_skip(&[saved(true)], false, between), "a fork needs a checkpoint of settled files");
    assert!(!may_skip(&[saved(false)], false, END), "the turn needs its own");
}

fn record(facts: &[Fact], profile: SessionProfile, occasion: CaptureOccasion) -> CaptureRecord {
    Given::live_with(profile, facts).machine.capture_record(occasion, checkpoint(1))
}

#[test]
fn a_turn_ends_with_its_capture_and_so_do_the_messages_that_joined_it() {
    let steered = [queued(SECOND), Fact::Steering { turn: SECOND, into: FIRST, input: 3 }];
    let joined = Fact::Steered { turn: SECOND, into: FIRST };
    let facts: Vec<Fact> = running().into_iter().chain(steered).chain([joined, rested(FIRST)]).collect();
    let saved = SavedCheckpoint { turn: Some(FIRST), ..checkpoint(1) };
    let ends = [finished(SECOND, Some(1)), finished(FIRST, Some(1))];
    let all: Vec<Fact> = [Fact::Saved(saved.clone())].into_iter().chain(ends).collect();
    let expected = CaptureRecord { saved, facts: all, waits_for_remote: None };
    assert_eq!(record(&facts, USUAL, END), expected);
}

#[test]
fn a_turn_of_remote_durability_ends_when_the_object_store_has_its_files() {
    let with = |durability| {
        let options = MessageOptions { durability, ..MessageOptions::default() };
        let queued = Fact::Queued { turn: FIRST, content: "hi".into(), options, lock: None };
        vec![queued, started(FIRST, 2), rested(FIRST)]
    };
    let remote = SessionProfile { durability: Durability::Remote, ..USUAL };
    for (profile, own, waits) in [
        (USUAL, None, false),
        (USUAL, Some(Durability::Remote), true),
        (remote, None, true),
        (remote, Some(Durability::Local), false),
    ] {
        let mut given = Given::live_with(profile, &with(own));
        let record = given.machine.capture_record(END, checkpoint(4));
        assert_eq!(
            (record.waits_for_remote, record.facts.len()),
            (waits.then_some(FIRST), 2 - usize::from(waits))
        );
        given.machine.capture_failed(END, "no", given.start);
        given.machine.capture_recorded(&record);
        let wait = waits.then_some(RemoteWait { turn: FIRST, checkpoint: 4 });
        assert_eq!((given.machine.runtime.remote_wait, given.machine.runtime.capture.backoff), (wait, None));
    }
    let other = Given::live_with(remote, &with(None))
        .machine
        .capture_record(CaptureOccasion::TurnEnd(SECOND), checkpoint(4));
    assert_eq!(other.waits_for_remote, None, "another turn is over");
}

#[test]
fn the_end_of_a_wait_for_the_object_store_is_the_end_of_the_turn_with_the_trouble_that_there_was() {
    let wait = RemoteWait { turn: FIRST, checkpoint: 4 };
    let trouble = || Problem::new("not_remote", "The object store does not have it");
    let given = Given::live(&saving());
    assert_eq!(given.machine.remote_wait_ended(wait, None), Some(finished(FIRST, Some(4))));
    let ended = |outcome, problem| Fact::Finished { turn: FIRST, outcome, checkpoint: Some(4), problem };
    let said = ended(TurnOutcome::Done, Some(trouble()));
    assert_eq!(given.machine.remote_wait_ended(wait, Some(trouble())), Some(said));
    // The problem of the turn itself comes first.
    let own = Problem::new("own", "Its own");
    let (usage, text) = (Default::default(), "answer".into());
    let failed =
        Fact::Rested { turn: FIRST, outcome: TurnOutcome::Failed, text, usage, problem: Some(own.clone()) };
    let given = Given::live(&[queued(FIRST), started(FIRST, 2), failed]);
    let said = ended(TurnOutcome::Failed, Some(own));
    assert_eq!(given.machine.remote_wait_ended(wait, Some(trouble())), Some(said));
    assert_eq!(Given::live(&running()).machine.remote_wait_ended(wait, None), None);
}

#[test]
fn a_checkpoint_in_the_middle_of_a_turn_says_so() {
    let of = |facts: &[Fact], occasion| {
        let CaptureRecord { saved, facts, .. } = record(facts, USUAL, occasion);
        assert_eq!(facts, [Fact::Saved(saved.clone())]);
        (saved.turn, saved.mid_turn)
    };
    assert_eq!(of(&running(), CaptureOccasion::Midway(FIRST)), (Some(FIRST), true));
    // A session that closes captures what the turn left.
    assert_eq!(of(&running(), CaptureOccasion::BetweenTurns), (Some(FIRST), true));
    let cut = Fact::Cut { turn: FIRST, death: Death::Machine };
    let cut: Vec<Fact> = running().into_iter().chain([cut]).collect();
    assert_eq!(of(&cut, CaptureOccasion::BetweenTurns), (Some(FIRST), true));
    assert_eq!(of(&saving(), CaptureOccasion::BetweenTurns), (None, false));
    assert_eq!(of(&[queued(FIRST)], CaptureOccasion::BetweenTurns), (None, false));
}

#[test]
fn a_failed_capture_does_not_hold_up_the_answer_and_is_tried_again() {
    let mut given = Given::live(&saving());
    let failed = |turn, error: &str| Fact::SaveFailed { turn, error: error.into() };
    let facts = given.machine.capture_failed(END, "full", given.start);
    assert_eq!(facts, [failed(Some(FIRST), "full; the next try is in 10 s"), finished(FIRST, None)]);
    assert_eq!(given.due(), Some((10, NextStep::Capture(END))), "unless the turn is over");
    facts.iter().zip(9..).for_each(|(fact, seq)| given.machine.log.apply(seq, fact));
    assert_eq!(given.due(), Some((10, BETWEEN)));
    let facts = given.machine.capture_failed(CaptureOccasion::BetweenTurns, "full", given.start);
    assert_eq!(facts, [failed(None, "full; the next try is in 20 s")]);
    assert_eq!(given.due(), Some((20, BETWEEN)));
    // A capture of another turn does not wait for that.
    [queued(SECOND), started(SECOND, 3), rested(SECOND)]
        .iter()
        .zip(20..)
        .for_each(|(fact, seq)| given.machine.log.apply(seq, fact));
    assert_eq!(given.plan(0), NextStep::Capture(CaptureOccasion::TurnEnd(SECOND)));
    // The turn is over without files.
    let mut given = Given::live(&saving());
    given.machine.runtime.tree.present = false;
    assert_eq!(given.plan(0), NextStep::CaptureImpossible(FIRST));
    let facts = given.machine.capture_failed(END, "gone", given.start);
    assert_eq!(facts, [failed(Some(FIRST), "gone"), finished(FIRST, None)]);
    let capture = given.machine.runtime.capture;
    assert_eq!((capture.dirty, capture.backoff), (None, None));
}

#[test]
fn a_failed_midway_capture_breaks_no_promise() {
    let mut given = Given::live(&running());
    let occasion = CaptureOccasion::Midway(FIRST);
    assert_eq!(given.machine.capture_failed(occasion, "full", given.start), []);
    assert_eq!(given.machine.runtime.capture.backoff, None);
    given.machine.capture_unrecorded(occasion, given.start);
    let capture = given.machine.runtime.capture;
    assert_eq!((capture.dirty, capture.backoff), (Some(given.start), None));
}

#[test]
fn a_capture_that_could_not_be_recorded_is_repeated() {
    let mut given = Given::live(&saving());
    given.machine.capture_unrecorded(END, given.start);
    assert_eq!(given.due(), Some((10, NextStep::Capture(END))));
    assert_eq!(given.machine.runtime.capture.dirty, Some(given.start));
    assert_eq!(given.plan(11), NextStep::Capture(END));
}

#[test]
fn a_turn_of_an_ephemeral_session_ends_without_a_checkpoint() {
    let mut given = Given::live_with(SessionProfile { ephemeral: true, ..USUAL }, &saving());
    let step = NextStep::EndUncaptured { facts: vec![finished(FIRST, None)] };
    assert_eq!(given.plan(0), step);
    given.machine.runtime.capture.dirty = Some(given.start);
    given.machine.begin(&step, given.start);
    assert_eq!(given.machine.runtime.capture.dirty, None);
}

#[test]
fn a_turn_that_waits_for_the_object_store_is_not_captured_again() {
    let mut given = Given::live(&saving());
    given.machine.runtime.remote_wait = Some(RemoteWait { turn: FIRST, checkpoint: 1 });
    assert_eq!((given.plan(0), given.plan(3000)), (NextStep::Wait, NextStep::Wait));
}

#[test]
fn callers_that_wait_for_safe_files_get_them_captured_first() {
    let pause = |given: &mut Given| {
        given.machine.receive(&StateCommand::Pause, WaiterId(1), vec![Fact::Paused], given.start);
    };
    let mut given = Given::live(&[]);
    pause(&mut given);
    given.machine.receive_fork(WaiterId(2));
    assert_eq!(given.plan(0), BETWEEN);
    given.machine.begin(&BETWEEN, given.start);
    assert_eq!(given.plan(0), NextStep::Wait);
    given.machine.finish_effect();
    assert_eq!(given.plan(0), NextStep::AnswerForkers);
    assert_eq!(given.machine.stop_waiting_for_files(), [WaiterId(1), WaiterId(2)]);
    assert_eq!(given.plan(0), NextStep::Wait);
    // Not during a turn, which is captured when it is over, and not what is never captured.
    let mut busy = Given::live(&running());
    let mut ephemeral = Given::live_with(SessionProfile { ephemeral: true, ..USUAL }, &[]);
    let mut gone = Given::live(&[]);
    gone.machine.runtime.tree.present = false;
    for given in [&mut busy, &mut ephemeral, &mut gone] {
        pause(given);
        assert_eq!(given.plan(0), NextStep::Pause);
    }
}

#[test]
fn a_fork_of_a_session_that_sleeps_needs_no_capture_of_files_that_are_safe() {
    let asleep = |dirty: bool| {
        let mut given = Given::live(&[failed()]);
        given.machine.runtime.sandbox = SandboxConnection::Absent;
        given.machine.runtime.capture.dirty = dirty.then_some(given.start);
        given.machine.receive_fork(WaiterId(1));
        (given.machine.runtime.capture.wanted, given.plan(0))
    };
    assert_eq!(asleep(false), (false, NextStep::AnswerForkers));
    assert_eq!(asleep(true), (true, BETWEEN));
    let mut given = Given::live(&[]);
    given.machine.runtime.capture.wanted = true;
    given.machine.runtime.sandbox = SandboxConnection::Absent;
    given.machine.receive_fork(WaiterId(1));
    assert!(given.machine.runtime.capture.wanted, "another caller wants it");
}

#[test]
fn a_lost_tree_leaves_nothing_to_capture() {
    let mut given = Given::live(&[awake()]);
    given.machine.capture_failed(CaptureOccasion::BetweenTurns, "no", given.start);
    given.machine.begin(&NextStep::LoseTree, given.start);
    let run = &given.machine.runtime;
    assert_eq!((run.capture.dirty, run.capture.backoff, run.tree), (None, None, Default::default()));
}
