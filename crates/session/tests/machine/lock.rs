//! A lock excludes every other client while it lasts and no longer, and no token is valid twice.

use crate::given::{FIRST, SECOND, THIRD, awake, created, finished, fold, started};
use ash_model::{
    BusyPolicy, Fact, LockAcquisition, MessageOptions, SessionLock, SessionStatus, Timestamp, TurnId,
};
use ash_session::machine::{CommandRefusal, LockRefusal, LockRequest, LogState, StateCommand, WakePolicy};
use std::time::Duration;

fn request(held: Option<u64>, takeover: bool) -> LockRequest {
    LockRequest {
        ttl: Duration::from_secs(1),
        holder: Some("ann".into()),
        hash: "hash".into(),
        held,
        takeover,
    }
}

/// A lock of one second, as it was taken or renewed at this time.
fn lock(number: u64, at: i64) -> SessionLock {
    SessionLock {
        number,
        hash: "hash".into(),
        ttl_ms: 1000,
        until: Timestamp(at + 1000),
        holder: Some("ann".into()),
        in_use: false,
    }
}

fn locked(acquisition: LockAcquisition, lock: SessionLock) -> Fact {
    Fact::Locked { acquisition, lock }
}

/// An active session whose lock number 1 was taken at time 0.
fn held(facts: &[Fact]) -> LogState {
    fold(&[created(), awake(), locked(LockAcquisition::Free, lock(1, 0))]).after(facts)
}

fn message(turn: TurnId, lock: Option<u64>) -> Fact {
    Fact::Queued { turn, content: "hi".into(), options: MessageOptions::default(), lock }
}

#[test]
fn a_lock_is_given_to_one_client_until_it_runs_out() {
    let free = fold(&[created(), awake()]);
    let first = (lock(1, 0), locked(LockAcquisition::Free, lock(1, 0)));
    assert_eq!(free.take_lock(request(None, false), Timestamp(0)), Ok(first));
    let state = held(&[]);
    assert_eq!(state.lock(), Some(lock(1, 0)));
    let refused = Err(LockRefusal::Held(lock(1, 0)));
    assert_eq!(state.take_lock(request(None, false), Timestamp(999)), refused);
    assert_eq!(state.take_lock(request(Some(7), false), Timestamp(999)), refused, "a number of no lock");
    let next = (lock(2, 1000), locked(LockAcquisition::Free, lock(2, 1000)));
    assert_eq!(state.take_lock(request(None, false), Timestamp(1000)), Ok(next));
    let over = (lock(2, 999), locked(LockAcquisition::Over, lock(2, 999)));
    assert_eq!(state.take_lock(request(None, true), Timestamp(999)), Ok(over));
}

#[test]
fn the_holder_renews_its_lock_and_keeps_its_number_and_name() {
    let state = held(&[]);
    let renewed = (lock(1, 500), locked(LockAcquisition::Renewed, lock(1, 500)));
    let nameless = LockRequest { holder: None, hash: "another".into(), ..request(Some(1), false) };
    assert_eq!(state.take_lock(nameless, Timestamp(500)), Ok(renewed.clone()));
    let renamed = LockRequest { holder: Some("bob".into()), ..request(Some(1), false) };
    let (named, _) = state.take_lock(renamed, Timestamp(500)).expect("its own");
    assert_eq!(named, SessionLock { holder: Some("bob".into()), ..lock(1, 500) });
    assert_eq!(state.renew_lock(1, Timestamp(500)), Ok(renewed.1));
    assert_eq!(state.renew_lock(2, Timestamp(500)), Err(LockRefusal::Lost));
    // Also after it ran out, as long as no other client has written.
    assert!(state.renew_lock(1, Timestamp(5000)).is_ok());
}

#[test]
fn a_lock_without_end_never_runs_out() {
    let request = LockRequest { ttl: Duration::MAX, ..request(None, false) };
    let (taken, _) = fold(&[created(), awake()]).take_lock(request, Timestamp(5)).expect("free");
    assert_eq!((taken.ttl_ms, taken.until), (u64::MAX, Timestamp(i64::MAX)));
}

#[test]
fn a_released_lock_is_gone_and_its_number_is_not_given_again() {
    let state = held(&[]);
    assert_eq!(state.release_lock(1), Ok(Fact::Unlocked { number: 1 }));
    assert_eq!(state.release_lock(2), Err(LockRefusal::Lost));
    let free = state.after(&[Fact::Unlocked { number: 1 }]);
    assert_eq!((free.lock(), free.release_lock(1)), (None, Err(LockRefusal::Lost)));
    let next = free.take_lock(request(None, false), Timestamp(0)).map(|(lock, _)| lock.number);
    assert_eq!(next, Ok(2));
}

#[test]
fn an_ended_session_gives_no_lock() {
    let refused = LockRefusal::Command(CommandRefusal::WrongStatus(SessionStatus::Ended));
    let taken = fold(&[created(), Fact::Ended]).take_lock(request(None, false), Timestamp(0));
    assert_eq!(taken, Err(refused));
}

#[test]
fn a_client_that_writes_after_a_lock_ran_out_ends_it() {
    let state = held(&[]);
    assert_eq!(state.expire_lock(1, Timestamp(999)), Err(LockRefusal::Held(lock(1, 0))));
    assert_eq!(state.expire_lock(1, Timestamp(1000)), Ok(Some(Fact::Unlocked { number: 1 })));
    // It was replaced since.
    assert_eq!(state.expire_lock(2, Timestamp(999)), Err(LockRefusal::Held(lock(1, 0))));
    assert_eq!(state.expire_lock(2, Timestamp(1000)), Ok(None));
    assert_eq!(fold(&[created()]).expire_lock(1, Timestamp(0)), Ok(None));
}

#[test]
fn only_the_holders_messages_pass_a_lock() {
    let prompt = |lock| StateCommand::Prompt {
        turn: FIRST,
        content: "hi".into(),
        ask: MessageOptions::default(),
        wake: WakePolicy::Allowed,
        on_busy: BusyPolicy::Queue,
        lock,
    };
    let state = held(&[]);
    let at = |lock, now| state.locked_out(&prompt(lock), Timestamp(now));
    let another = Some(LockRefusal::Held(lock(1, 0)));
    assert_eq!((at(None, 999), at(Some(2), 999), at(Some(1), 999)), (another.clone(), another, None));
    assert_eq!((at(None, 1000), at(Some(2), 1000), at(Some(1), 1000)), (None, Some(LockRefusal::Lost), None));
    let free = fold(&[created()]);
    assert_eq!(free.locked_out(&prompt(Some(1)), Timestamp(0)), Some(LockRefusal::Lost));
    assert_eq!(free.locked_out(&prompt(None), Timestamp(0)), None);
    assert_eq!(state.locked_out(&StateCommand::Pause, Timestamp(0)), None, "the route has checked");
}

#[test]
fn a_turn_of_the_holder_keeps_the_lock_while_the_session_runs() {
    let busy = held(&[message(FIRST, Some(1))]);
    let in_use = SessionLock { in_use: true, ..lock(1, 0) };
    assert_eq!(busy.locked_by_another(None, Timestamp(9_999)), Some(in_use.clone()));
    assert_eq!(busy.locked_by_another(Some(1), Timestamp(9_999)), None);
    assert_eq!(busy.summary().lock, Some(in_use));
    for facts in [vec![message(FIRST, None)], vec![message(FIRST, Some(1)), Fact::Paused]] {
        assert_eq!(held(&facts).lock(), Some(lock(1, 0)), "{facts:?}");
    }
}

#[test]
fn a_lock_lasts_its_whole_time_again_when_a_turn_of_its_holder_is_over() {
    let last = |held: &LogState, facts: Vec<Fact>, now| {
        let events = held.prepare(facts, Timestamp(now)).events;
        events.last().map(|event| event.fact.clone()).filter(|fact| fact.kind() == "locked")
    };
    let turns = [message(FIRST, Some(1)), message(SECOND, None), message(THIRD, Some(9)), started(FIRST, 2)];
    let state = held(&turns);
    let end = || vec![finished(FIRST, None)];
    assert_eq!(last(&state, end(), 100), None, "nearly all of it is left");
    let renewed = locked(LockAcquisition::Renewed, lock(1, 101));
    assert_eq!(last(&state, end(), 101), Some(renewed));
    assert_eq!(last(&state, end(), 5000), Some(locked(LockAcquisition::Renewed, lock(1, 5000))));
    assert_eq!(last(&state, vec![finished(SECOND, None)], 500), None, "it was sent without the lock");
    assert_eq!(last(&state, vec![finished(THIRD, None)], 500), None, "it was sent under another lock");
    assert_eq!(last(&state, vec![finished(FIRST, None), Fact::Ended], 500), None);
    assert_eq!(last(&state, vec![finished(FIRST, None), Fact::Unlocked { number: 1 }], 500), None);
}
