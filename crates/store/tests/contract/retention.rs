//! Retention: requested ends, expired sessions, and what is deleted by age.

use crate::{
    audit::{end, lines, told},
    fixture::{
        all, append, by, configure, delta, id, items, lease, make, new_session, only, owner, places, said,
        step, summary, tenant, turn_row,
    },
};
use ash_model::{Epoch, SessionOptions, SessionStatus, Timestamp, TurnId};
use ash_store::{
    AuditAction, AuditActor, AuditEntry, EndDisposition, Error, Lease, LogAppend, NewSessionRow, PURGED,
    SessionFilter, SessionRow, SessionSummary, Store, TurnState,
};

contract! {
    the_audit_says_who_requested_an_end
    a_requested_purge_comes_with_the_end
    a_step_that_fails_is_not_in_the_audit
    expired_and_resting_sessions_are_found
    old_deltas_go_but_not_those_of_a_turn_that_is_not_over
    an_old_delta_of_no_turn_goes
}

async fn the_audit_says_who_requested_an_end(store: &dyn Store) {
    let session = store
        .create_session(NewSessionRow { owner: Some(owner("alice")), ..new_session("s") })
        .await
        .expect("made");
    store.request_end(session.no, by("first"), EndDisposition::End).await.expect("ordered");
    assert!(lines(store).await.is_empty(), "an order is no deed");
    let order = AuditActor { owner: Some(owner("bob")), ..by("second") };
    store.request_end(session.no, order.clone(), EndDisposition::End).await.expect("ordered");
    append(store, &session, end(&session, 2)).await;
    let line = lines(store).await.pop().expect("a line");
    let expected = AuditEntry {
        no: line.no,
        at: Timestamp(7),
        tenant: tenant("t"),
        action: AuditAction::Ended,
        subject: "s".into(),
        owner: Some(owner("alice")),
        actor: order,
        detail: None,
    };
    assert_eq!(line, expected);
    // A step after the end is not a second end.
    append(store, &session, end(&session, 3)).await;
    assert_eq!(lines(store).await, [expected]);
    assert!(store.find_session(&only("alice"), &session.id).await.expect("read").is_some());
}

async fn a_requested_purge_comes_with_the_end(store: &dyn Store) {
    let session = make(store, "s").await;
    store.request_end(session.no, AuditActor::of_rule("ttl"), EndDisposition::Purge).await.expect("ordered");
    assert!(store.find_session(&all("t"), &session.id).await.expect("read").is_some());
    append(store, &session, end(&session, 2)).await;
    assert_eq!(store.find_session(&all("t"), &session.id).await.expect("read"), None, "in one step");
    assert!(!store.trash(session.no, Timestamp(9), by("k")).await.expect("there already"));
    let lines = lines(store).await;
    let lines: Vec<_> = lines.iter().map(told).collect();
    let told: Vec<_> = lines.iter().map(|(deed, _, key, rule)| (*deed, *key, *rule)).collect();
    assert_eq!(told, [(AuditAction::Purged, None, Some("ttl")), (AuditAction::Ended, None, Some("ttl"))]);
    assert!(lines.iter().all(|(_, subject, ..)| subject.starts_with(PURGED)), "{lines:?}");
}

async fn a_step_that_fails_is_not_in_the_audit(store: &dyn Store) {
    let session = make(store, "s").await;
    store.request_end(session.no, by("k"), EndDisposition::Purge).await.expect("ordered");
    let stale = Lease { epoch: Epoch(9), ..lease(&session) };
    let refused = store.append(&stale, end(&session, 2)).await;
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    assert!(lines(store).await.is_empty());
    assert!(store.find_session(&all("t"), &id("s")).await.expect("read").is_some());
}

async fn expired_and_resting_sessions_are_found(store: &dyn Store) {
    for (name, ttl, status, open_turns) in [
        ("short", Some(10), SessionStatus::Active, 0),
        ("busy", Some(10), SessionStatus::Active, 1),
        ("long", Some(1000), SessionStatus::Paused, 0),
        ("never", Some(0), SessionStatus::Paused, 0),
        ("none", None, SessionStatus::Paused, 0),
        ("working", None, SessionStatus::Paused, 1),
        ("over", Some(10), SessionStatus::Ended, 0),
    ] {
        let options = SessionOptions { ttl, ..SessionOptions::default() };
        let summary = SessionSummary { open_turns, ..summary(status) };
        store
            .create_session(NewSessionRow { options, summary, at: Timestamp(5000), ..new_session(name) })
            .await
            .expect("made");
    }
    let names = |found: Vec<SessionRow>| found.into_iter().map(|s| s.id.to_string()).collect::<Vec<_>>();
    assert!(store.expired_sessions(Timestamp(14_999)).await.expect("read").is_empty());
    assert_eq!(names(store.expired_sessions(Timestamp(15_000)).await.expect("read")), ["short", "over"]);
    assert!(store.resting_sessions(SessionStatus::Paused, Timestamp(4999)).await.expect("read").is_empty());
    let paused = store.resting_sessions(SessionStatus::Paused, Timestamp(5000)).await.expect("read");
    assert_eq!(names(paused), ["long", "never", "none"]);
    assert!(
        store.resting_sessions(SessionStatus::Active, Timestamp(9999)).await.expect("read").is_empty(),
        "at work"
    );
    // A changed time to live counts at once, and activity postpones the end.
    let found = |name: &'static str| async move {
        store.find_session(&all("t"), &id(name)).await.expect("read").expect("there")
    };
    let none = found("none").await;
    configure(store, &none, &SessionOptions { ttl: Some(1), ..SessionOptions::default() }).await;
    let short = found("short").await;
    let used = LogAppend { at: Timestamp(14_000), ..step(short.no, 2, [said("x")]) };
    append(store, &short, used).await;
    assert_eq!(names(store.expired_sessions(Timestamp(15_000)).await.expect("read")), ["none", "over"]);
    let all = store.sessions(&all("t"), &SessionFilter::default()).await.expect("listed");
    assert_eq!(all.total, 7, "nothing was done");
}

async fn old_deltas_go_but_not_those_of_a_turn_that_is_not_over(store: &dyn Store) {
    let states = [
        (TurnState::Queued, true),
        (TurnState::Running, true),
        (TurnState::Saving, true),
        (TurnState::Cut, true),
        (TurnState::Done, false),
        (TurnState::Failed, false),
        (TurnState::Interrupted, false),
        (TurnState::Cancelled, false),
    ];
    for (n, (state, kept)) in states.into_iter().enumerate() {
        let session = make(store, &format!("s{n}")).await;
        let turn = TurnId::fresh();
        let mut old = step(session.no, 2, [said("a")]);
        old.turns = vec![turn_row(turn, 2, state)];
        old.deltas = vec![ash_model::MessageDelta { turn: Some(turn), ..delta(2, 1) }];
        append(store, &session, old).await;
        let mut young = step(session.no, 3, []);
        young.deltas = vec![ash_model::MessageDelta { turn: Some(turn), ..delta(2, 2) }];
        young.at = Timestamp(9);
        append(store, &session, young).await;
        let forgotten = store.prune(Timestamp(9)).await.expect("pruned");
        assert_eq!(forgotten, u64::from(!kept), "{state:?}");
        let expected: &[&str] = if kept { &["1", "2", "2.1", "2.2"] } else { &["1", "2", "2.2"] };
        assert_eq!(places(&items(store, session.no).await), expected, "{state:?}");
    }
}

async fn an_old_delta_of_no_turn_goes(store: &dyn Store) {
    let session = make(store, "s").await;
    let mut old = step(session.no, 2, [said("a"), said("b")]);
    old.deltas = vec![delta(2, 1), delta(3, 1)];
    append(store, &session, old).await;
    assert_eq!(store.prune(Timestamp(100)).await.expect("pruned"), 2);
    assert_eq!(places(&items(store, session.no).await), ["1", "2", "3"]);
}
