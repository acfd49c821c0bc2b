//! Writing the log: all or nothing, only right after the last event.

use crate::fixture::{
    append, checkpoint, delta, events, items, lease, make, places, said, stale, step, summary, turn_row,
    whole,
};
use ash_model::{
    Epoch, Event, Fact, Incarnation, LogCursor, MessageOptions, Problem, SessionLock, SessionRowId,
    SessionStatus, Timestamp, TurnId,
};
use ash_store::{Error, SessionSummary, Store, TurnState};
use futures::future::join_all;

contract! {
    a_step_is_there_as_a_whole
    a_step_that_fails_at_its_end_leaves_nothing
    a_step_must_follow_the_one_before
    a_refused_step_does_not_hurt_its_neighbours
    of_many_steps_with_one_position_one_is_written
    events_are_dense_and_in_order
    facts_leave_out_what_the_agent_said
    a_step_without_events_keeps_deltas_and_position
    a_journal_position_is_deleted_with_its_shim
    a_turns_row_follows_its_turn
    of_a_turns_rows_in_one_step_the_last_counts
    two_hundred_sessions_write_at_once
}

async fn a_step_is_there_as_a_whole(store: &dyn Store) {
    let session = make(store, "s").await;
    let (turn, incarnation) = (TurnId::fresh(), Incarnation::fresh());
    let queued = Fact::Queued {
        turn,
        content: serde_json::json!(["x"]),
        options: MessageOptions::default(),
        lock: None,
    };
    let now = SessionSummary {
        status: SessionStatus::Error,
        title: Some("t".into()),
        last_text: Some("l".into()),
        turns: 1,
        open_turns: 1,
        problem: Some(Problem::new("code", "words")),
        checkpoint: Some(1),
        pending: vec![3],
        lock: Some(SessionLock {
            number: 2,
            hash: "5f".into(),
            ttl_ms: 1000,
            until: Timestamp(9),
            holder: Some("ci".into()),
            in_use: true,
        }),
    };
    let mut all = step(session.no, 2, [queued.clone(), said("line")]);
    all.events[0].turn = Some(turn);
    all.deltas = vec![delta(3, 1)];
    all.turns = vec![turn_row(turn, 2, TurnState::Running)];
    all.summary = now.clone();
    all.checkpoint = Some(checkpoint(session.workspace, 1, 3));
    all.journal = Some(ash_model::JournalPosition { incarnation, process: 1, position: 77 });
    all.at = Timestamp(8);
    append(store, &session, all).await;

    let row = store.session(session.no).await.expect("read").expect("there");
    assert_eq!((row.last_seq, row.summary, row.last_active_at), (3, now, Timestamp(8)));
    let log = events(store, session.no).await;
    let expected = Event { seq: 2, turn: Some(turn), at: Timestamp(1), fact: queued };
    assert_eq!((log.len(), &log[1]), (3, &expected));
    assert_eq!(places(&items(store, session.no).await), ["1", "2", "3", "3.1"]);
    let row = turn_row(turn, 2, TurnState::Running);
    assert_eq!(store.turn(session.no, turn).await.expect("read"), Some(row));
    let saved = checkpoint(session.workspace, 1, 3);
    assert_eq!(store.checkpoint(session.workspace, 1).await.expect("read"), Some(saved));
    assert_eq!(crate::fixture::position(store, incarnation).await, Some(77));
}

async fn a_step_that_fails_at_its_end_leaves_nothing(store: &dyn Store) {
    let session = make(store, "s").await;
    let mut first = step(session.no, 2, [said("one")]);
    first.checkpoint = Some(checkpoint(session.workspace, 1, 2));
    append(store, &session, first).await;
    let before = whole(store, session.no).await;

    // The checkpoint exists already and is written last: everything before it must be undone.
    let (turn, incarnation) = (TurnId::fresh(), Incarnation::fresh());
    let mut torn = step(session.no, 3, [said("two")]);
    torn.deltas = vec![delta(3, 1)];
    torn.turns = vec![turn_row(turn, 3, TurnState::Queued)];
    torn.summary = summary(SessionStatus::Ended);
    torn.checkpoint = Some(checkpoint(session.workspace, 1, 3));
    torn.journal = Some(ash_model::JournalPosition { incarnation, process: 1, position: 5 });
    let refused = store.append(&lease(&session), torn).await;
    assert!(refused.is_err());
    assert_eq!(whole(store, session.no).await, before);
    assert_eq!(store.turn(session.no, turn).await.expect("read"), None);
    assert_eq!(crate::fixture::position(store, incarnation).await, None);
    append(store, &session, step(session.no, 3, [said("two")])).await;
}

async fn a_step_must_follow_the_one_before(store: &dyn Store) {
    let session = make(store, "s").await;
    append(store, &session, step(session.no, 2, [said("a"), said("b")])).await;
    let before = whole(store, session.no).await;
    for wrong in [0, 1, 2, 3, 5, 6, 1000] {
        stale(store, &lease(&session), step(session.no, wrong, [said("x")])).await;
        stale(store, &lease(&session), step(session.no, wrong, [])).await;
    }
    stale(store, &lease(&session), step(SessionRowId(99), 1, [said("x")])).await;
    assert_eq!(whole(store, session.no).await, before);
    append(store, &session, step(session.no, 4, [said("c")])).await;
}

async fn a_refused_step_does_not_hurt_its_neighbours(store: &dyn Store) {
    let mut sessions = Vec::new();
    for n in 0..40 {
        sessions.push(make(store, &format!("s{n}")).await);
    }
    let appends = sessions.iter().enumerate().map(|(n, session)| {
        let mut lease = lease(session);
        let mut first = 2;
        match n % 4 {
            0 => lease.epoch = Epoch(7),
            1 => first = 3,
            _ => {}
        }
        async move { store.append(&lease, step(session.no, first, [said("a"), said("b")])).await }
    });
    let answers = join_all(appends).await;
    for (n, (session, answer)) in sessions.iter().zip(&answers).enumerate() {
        let refused = n % 4 < 2;
        assert_eq!(matches!(answer, Err(Error::Stale)), refused, "{n}: {answer:?}");
        assert_eq!(events(store, session.no).await.len(), if refused { 1 } else { 3 }, "{n}");
    }
}

async fn of_many_steps_with_one_position_one_is_written(store: &dyn Store) {
    let session = make(store, "s").await;
    for round in 0..5 {
        let first = 2 + round;
        let lease = lease(&session);
        let rivals = (0..8).map(|n| store.append(&lease, step(session.no, first, [said(&n.to_string())])));
        let won = join_all(rivals).await.into_iter().filter(Result::is_ok).count();
        assert_eq!(won, 1);
    }
    dense(&events(store, session.no).await, 6);
}

async fn events_are_dense_and_in_order(store: &dyn Store) {
    let session = make(store, "s").await;
    let mut next = 2;
    for size in [1, 5, 0, 2, 17] {
        append(store, &session, step(session.no, next, (0..size).map(|n| said(&format!("{next}+{n}")))))
            .await;
        next += size;
    }
    let log = events(store, session.no).await;
    dense(&log, 26);
    assert_eq!(log[2].fact, said("3+0"));
    assert_eq!(log[6].fact, said("3+4"));
}

fn dense(log: &[Event], last: u64) {
    let seqs: Vec<u64> = log.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=last).collect::<Vec<_>>());
}

async fn facts_leave_out_what_the_agent_said(store: &dyn Store) {
    let session = make(store, "s").await;
    let line = "{ \"kind\":\"paused\" , \"b\":\"\\u00e4\" }";
    append(store, &session, step(session.no, 2, [said(line), Fact::Paused, said("{}"), Fact::Resuming]))
        .await;
    let facts = store.facts(session.no).await.expect("read");
    let seqs: Vec<u64> = facts.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, [1, 3, 5]);
    assert_eq!(events(store, session.no).await[1].fact, said(line), "kept to the byte");
}

async fn a_step_without_events_keeps_deltas_and_position(store: &dyn Store) {
    let session = make(store, "s").await;
    let incarnation = Incarnation::fresh();
    for n in 1..=3 {
        let mut only = step(session.no, 2, []);
        only.deltas = vec![delta(1, n)];
        only.journal = Some(ash_model::JournalPosition { incarnation, process: 1, position: n * 10 });
        append(store, &session, only).await;
    }
    assert_eq!(places(&items(store, session.no).await), ["1", "1.1", "1.2", "1.3"]);
    assert_eq!(crate::fixture::position(store, incarnation).await, Some(30));
    assert_eq!(store.session(session.no).await.expect("read").expect("there").last_seq, 1);
}

async fn a_journal_position_is_deleted_with_its_shim(store: &dyn Store) {
    let session = make(store, "s").await;
    let (old, other) = (Incarnation::fresh(), Incarnation::fresh());
    for incarnation in [old, other] {
        let mut read = step(session.no, 2, []);
        read.journal = Some(ash_model::JournalPosition { incarnation, process: 1, position: 9 });
        append(store, &session, read).await;
    }
    // The last part of its journal and its end in one step: the position must not stay either.
    let mut asleep = step(session.no, 2, [Fact::Asleep { incarnation: Some(old) }]);
    asleep.journal = Some(ash_model::JournalPosition { incarnation: old, process: 1, position: 12 });
    append(store, &session, asleep).await;
    assert_eq!(crate::fixture::position(store, old).await, None);
    assert_eq!(crate::fixture::position(store, other).await, Some(9));
    append(store, &session, step(session.no, 3, [Fact::Asleep { incarnation: None }])).await;
    assert_eq!(crate::fixture::position(store, other).await, Some(9));
}

async fn a_turns_row_follows_its_turn(store: &dyn Store) {
    let (session, other) = (make(store, "s").await, make(store, "other").await);
    let turn = TurnId::fresh();
    let mut now = turn_row(turn, 2, TurnState::Queued);
    for (first, state) in (2..).zip([
        TurnState::Queued,
        TurnState::Running,
        TurnState::Saving,
        TurnState::Cut,
        TurnState::Done,
        TurnState::Failed,
        TurnState::Interrupted,
        TurnState::Cancelled,
    ]) {
        now.state = state;
        now.attempt = first as u32;
        let mut moved = step(session.no, first, [said("x")]);
        moved.turns = vec![now.clone()];
        append(store, &session, moved).await;
        assert_eq!(store.turn(session.no, turn).await.expect("read"), Some(now.clone()));
    }
    assert_eq!(store.turn(other.no, turn).await.expect("read"), None, "another session's turn");
}

async fn of_a_turns_rows_in_one_step_the_last_counts(store: &dyn Store) {
    let session = make(store, "s").await;
    let turn = TurnId::fresh();
    let mut quick = step(session.no, 2, [said("x")]);
    quick.turns = [TurnState::Queued, TurnState::Cut, TurnState::Failed].map(|s| turn_row(turn, 2, s)).into();
    append(store, &session, quick).await;
    let row = store.turn(session.no, turn).await.expect("read").expect("there");
    assert_eq!(row.state, TurnState::Failed);
}

async fn two_hundred_sessions_write_at_once(store: &dyn Store) {
    let mut sessions = Vec::new();
    for n in 0..200 {
        sessions.push(make(store, &format!("s{n}")).await);
    }
    let writers = sessions.iter().map(|session| async move {
        for n in 0..3 {
            append(store, session, step(session.no, 2 + n, [said(&n.to_string())])).await;
        }
    });
    join_all(writers).await;
    for session in &sessions {
        let last = store.read_log(session.no, LogCursor::event(3), 10).await.expect("read");
        assert_eq!(places(&last), ["4"]);
    }
}
