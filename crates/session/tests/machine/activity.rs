//! Whether a session is in use, and what becomes of it when it is not.

use crate::{
    given::{FIRST, Given, asleep, failed, queued, started},
    world::USUAL,
};
use ash_model::{Fact, LockAcquisition, SessionLock, Timestamp};
use ash_session::machine::{
    CaptureOccasion, Effect, Evictability, IdleClock, NextStep, PendingChange, PendingRewind,
    SandboxConnection, SessionClosing, SessionProfile, StateCommand, WaiterId,
};
use std::time::Duration;

const CALLER: WaiterId = WaiterId(1);

fn timeout(seconds: u64) -> SessionProfile {
    SessionProfile { idle_timeout: Some(Duration::from_secs(seconds)), ..USUAL }
}

fn release() -> StateCommand {
    StateCommand::Release { by_force: false }
}

fn closing(given: &Given) -> SessionClosing {
    SessionClosing::by_command(release(), vec![CALLER], given.start)
}

/// Everything that makes a session busy, one at a time.
fn busy(profile: SessionProfile) -> Vec<Given> {
    let mut all = vec![Given::live_with(profile, &[queued(FIRST)])];
    let mut with = |change: fn(&mut Given)| {
        let mut given = Given::live_with(profile, &[]);
        change(&mut given);
        all.push(given);
    };
    with(|given| given.machine.runtime.agent.commands_running = true);
    with(|given| given.machine.runtime.agent.self_started = true);
    with(|given| given.machine.runtime.waiting.pausing.push(CALLER));
    with(|given| given.machine.runtime.waiting.resuming.push(CALLER));
    with(|given| given.machine.runtime.waiting.forking.push(CALLER));
    with(|given| given.machine.runtime.waiting.writing.push(CALLER));
    with(|given| given.machine.runtime.waiting.deferred.push((CALLER, release())));
    with(|given| {
        let rewind = PendingRewind { waiter: CALLER, command: release(), prepared: false };
        given.machine.runtime.waiting.rewinding.push_back(rewind);
    });
    with(|given| {
        let change = PendingChange { waiter: CALLER, settings: Default::default(), told: None };
        given.machine.runtime.waiting.changes.push_back(change);
    });
    with(|given| given.machine.runtime.closing = Some(closing(given)));
    all
}

#[test]
fn a_session_gives_up_its_sandbox_only_if_it_is_idle_and_its_files_can_be_captured() {
    for given in busy(USUAL) {
        assert_eq!(given.machine.evictability(), Evictability::Never, "{:?}", given.machine.runtime);
    }
    for facts in [[Fact::Stopped], [Fact::Ended], [failed()], [Fact::Resuming]] {
        assert_eq!(Given::live(&facts).machine.evictability(), Evictability::Never, "{facts:?}");
    }
    assert_eq!(Given::with(USUAL, &[]).machine.evictability(), Evictability::Never, "there is none");
    let mut full = Given::live(&[]);
    full.machine.capture_failed(CaptureOccasion::BetweenTurns, "no space", full.start);
    assert_eq!(full.machine.evictability(), Evictability::Never);

    let idle = |ephemeral, shared, client_key| {
        let profile = SessionProfile { ephemeral, shared, client_key, ..USUAL };
        Given::live_with(profile, &[]).machine.evictability()
    };
    assert_eq!(idle(false, false, false), Evictability::Freely);
    assert_eq!(idle(false, true, false), Evictability::Freely);
    assert_eq!(idle(true, false, false), Evictability::Loses, "its files");
    assert_eq!(idle(true, true, false), Evictability::Freely, "the workspace keeps them");
    assert_eq!(idle(false, false, true), Evictability::Loses, "its key");
    assert_eq!(Given::live(&[Fact::Paused]).machine.evictability(), Evictability::Freely);
}

#[test]
fn an_expiry_rule_spares_what_is_at_work() {
    let unused = Duration::from_secs(60);
    let at_work = |given: &Given, seconds| {
        given.machine.is_at_work(given.machine.log.last_seq, unused, given.at(seconds))
    };
    for given in busy(USUAL) {
        assert!(at_work(&given, 99), "{:?}", given.machine.runtime);
    }
    let mut given = Given::live(&[]);
    assert!(at_work(&given, 59) && !at_work(&given, 60), "a sandbox that was used lately");
    assert!(given.machine.is_at_work(given.machine.log.last_seq - 1, unused, given.at(60)), "there is news");
    given.machine.runtime.sandbox = SandboxConnection::Absent;
    assert!(!at_work(&given, 0), "without a sandbox only the log counts");
    given.machine.runtime.effect = Some(Effect::MakeTree);
    assert!(at_work(&given, 0));
    let lock = SessionLock {
        number: 1,
        hash: "hash".into(),
        ttl_ms: 1,
        until: Timestamp(70_000),
        holder: None,
        in_use: false,
    };
    let locked = Given::live(&[Fact::Locked { acquisition: LockAcquisition::Free, lock }]);
    assert!(at_work(&locked, 69) && !at_work(&locked, 70));
}

#[test]
fn an_idle_session_announces_the_end_of_its_sandbox_and_lets_go_of_it() {
    for (seconds, warned) in [(60, 30), (600, 300), (3600, 3300)] {
        let mut given = Given::live_with(timeout(seconds), &[]);
        let left = (seconds - warned) * 1000;
        let warning = Fact::Idle { ms: warned * 1000, left_ms: Some(left), evicted: false };
        assert_eq!(given.due(), Some((warned, NextStep::NoteIdle { fact: Some(warning), over: false })));
        given.machine.runtime.idle.warned = true;
        let end = Fact::Idle { ms: seconds * 1000, left_ms: None, evicted: false };
        assert_eq!(given.due(), Some((seconds, NextStep::NoteIdle { fact: Some(end), over: true })));
    }
}

#[test]
fn a_paused_session_lets_go_of_its_sandbox_without_a_word() {
    let given = Given::live_with(timeout(60), &[Fact::Paused]);
    assert_eq!(given.due(), Some((60, NextStep::NoteIdle { fact: None, over: true })));
}

#[test]
fn a_session_that_is_used_or_has_no_limit_is_never_idle() {
    let idle = |given: &Given| matches!(given.plan(70), NextStep::NoteIdle { .. });
    for given in busy(timeout(60)) {
        assert!(!idle(&given), "{:?}", given.machine.runtime);
    }
    assert!(!idle(&Given::live(&[])));
    let mut given = Given::live_with(timeout(60), &[]);
    given.machine.runtime.effect = Some(Effect::MakeTree);
    assert!(!idle(&given));
}

#[test]
fn the_idle_time_starts_again_when_the_session_was_in_use() {
    for mut given in busy(timeout(60)) {
        given.machine.runtime.idle.warned = true;
        let now = given.at(50).instant;
        given.machine.observe(now);
        assert_eq!(given.machine.runtime.idle, IdleClock { since: now, warned: false });
    }
    let mut given = Given::live_with(timeout(60), &[]);
    given.machine.runtime.idle.warned = true;
    given.machine.observe(given.at(50).instant);
    assert_eq!(given.machine.runtime.idle, IdleClock { since: given.start, warned: true });
}

#[test]
fn an_eviction_says_how_long_the_session_was_idle() {
    let said = |facts: &[Fact]| {
        let given = Given::live(facts);
        given.machine.eviction_fact(given.at(7).instant)
    };
    assert_eq!(said(&[]), Some(Fact::Idle { ms: 7000, left_ms: None, evicted: true }));
    assert_eq!(said(&[Fact::Paused]), None, "a client has paused it");
}

#[test]
fn an_actor_with_nothing_to_do_ends_after_a_while() {
    let paused = || Given::with(USUAL, &[Fact::Paused]);
    assert_eq!(paused().due(), Some((60, NextStep::Retire)));
    assert_eq!(Given::with(USUAL, &[Fact::Ended]).due(), Some((10, NextStep::Retire)), "many end at once");
    let mut given = paused();
    given.machine.runtime.last_request = given.at(5).instant;
    assert_eq!(given.due(), Some((65, NextStep::Retire)));
    given.machine.begin(&NextStep::Retire, given.start);
    assert!(given.machine.runtime.retired);
    assert_eq!(given.due(), None, "once");

    let stays = |change: fn(&mut Given)| {
        let mut given = paused();
        change(&mut given);
        assert_ne!(given.plan(70), NextStep::Retire, "{:?}", given.machine.runtime);
    };
    stays(|given| given.machine.runtime.sandbox = SandboxConnection::Connected);
    stays(|given| given.machine.runtime.effect = Some(Effect::Salvage));
    stays(|given| given.machine.runtime.closing = Some(closing(given)));
    stays(|given| given.machine.runtime.waiting.writing.push(CALLER));
    stays(|given| given.machine.runtime.capture.dirty = Some(given.start));
    assert_eq!(Given::with(USUAL, &[Fact::Resuming]).plan(70), NextStep::InspectTree, "it is to start");
}

#[test]
fn an_actor_may_end_when_its_sandbox_has() {
    let over = |change: fn(&mut Given)| {
        let mut given = Given::live(&[]);
        change(&mut given);
        given.machine.is_over()
    };
    assert!(over(|_| {}));
    assert!(!over(|given| given.machine.runtime.sandbox = SandboxConnection::Departing));
    assert!(!over(|given| given.machine.runtime.effect = Some(Effect::EndSandbox)));
    assert!(!over(|given| given.machine.runtime.closing = Some(closing(given))));
}

#[test]
fn commands_run_in_an_active_session_that_does_not_close() {
    let mut given = Given::live(&[]);
    assert!(given.machine.takes_commands());
    given.machine.runtime.closing = Some(closing(&given));
    assert!(!given.machine.takes_commands());
    assert!(!Given::live(&[Fact::Paused]).machine.takes_commands());
}

#[test]
fn files_leave_the_machine_only_if_they_are_not_in_use_and_no_caller_waits_for_them() {
    let leaves = |profile, facts: &[Fact]| Given::with(profile, facts).machine.needs_no_local_files();
    assert!(leaves(USUAL, &[Fact::Paused]) && leaves(USUAL, &[Fact::Stopped]));
    assert!(leaves(SessionProfile { shared: true, ..USUAL }, &[Fact::Ended]));
    assert!(!leaves(USUAL, &[Fact::Ended]), "they are removed anyway");
    for facts in [vec![Fact::Resuming], vec![crate::given::awake(), asleep()], vec![failed()]] {
        assert!(!leaves(USUAL, &facts), "{facts:?}");
    }
    assert!(!leaves(USUAL, &[crate::given::awake(), Fact::Paused]), "the log knows a sandbox");
    let cut = [crate::given::awake(), queued(FIRST), started(FIRST, 2), asleep(), Fact::Paused];
    assert!(!leaves(USUAL, &cut), "the turn continues in them");
    assert!(leaves(USUAL, &[crate::given::awake(), asleep(), queued(FIRST), Fact::Paused]));

    let stay = |change: fn(&mut Given)| {
        let mut given = Given::with(USUAL, &[Fact::Paused]);
        change(&mut given);
        assert!(!given.machine.needs_no_local_files(), "{:?}", given.machine.runtime);
    };
    stay(|given| given.machine.runtime.sandbox = SandboxConnection::Connected);
    stay(|given| given.machine.runtime.effect = Some(Effect::MakeTree));
    stay(|given| given.machine.runtime.closing = Some(closing(given)));
    stay(|given| given.machine.runtime.capture.dirty = Some(given.start));
    stay(|given| given.machine.runtime.waiting.writing.push(CALLER));
    stay(|given| {
        let rewind = PendingRewind { waiter: CALLER, command: release(), prepared: false };
        given.machine.runtime.waiting.rewinding.push_back(rewind);
    });
}
