//! Writing the log: all or nothing, only for the holder, only right after what is there.

use crate::fixture::{
    append, card, checkpoint, delta, events, items, lease, make, places, said, step, turn_row, whole,
};
use ash_model::{
    Epoch, Event, Fact, Incarnation, LogCursor, MessageOptions, Problem, SessionLock, SessionRowId,
    SessionStatus, Timestamp, TurnId,
};
use ash_store::{Error, Lease, LeaseHolder, LogAppend, SessionSummary, Store, TurnState};
use futures::future::join_all;

pub(crate) async fn a_step_is_there_as_a_whole(store: &dyn Store) {
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

pub(crate) async fn a_step_that_fails_at_its_end_leaves_nothing(store: &dyn Store) {
    let session = make(store, "s").await;
    let mut first = step(session.no, 2, [said("one")]);
    first.checkpoint = Some(checkpoint(session.workspace, 1, 2));
    append(store, &session, first).await;
    let before = whole(store, session.no).await;

    // The checkpoint is taken, and comes last; everything before it must be undone.
    let (turn, incarnation) = (TurnId::fresh(), Incarnation::fresh());
    let mut torn = step(session.no, 3, [said("two")]);
    torn.deltas = vec![delta(3, 1)];
    torn.turns = vec![turn_row(turn, 3, TurnState::Queued)];
    torn.summary = card(SessionStatus::Ended);
    torn.checkpoint = Some(checkpoint(session.workspace, 1, 3));
    torn.journal = Some(ash_model::JournalPosition { incarnation, process: 1, position: 5 });
    let refused = store.append(&lease(&session), torn).await;
    assert!(refused.is_err());
    assert_eq!(whole(store, session.no).await, before);
    assert_eq!(store.turn(session.no, turn).await.expect("read"), None);
    assert_eq!(crate::fixture::position(store, incarnation).await, None);
    append(store, &session, step(session.no, 3, [said("two")])).await;
}

pub(crate) async fn only_the_holder_writes(store: &dyn Store) {
    let (session, other) = (make(store, "s").await, make(store, "other").await);
    let before = whole(store, session.no).await;
    let mine = lease(&session);
    for wrong in
        [Lease { epoch: Epoch(0), ..mine.clone() }, Lease { epoch: Epoch(2), ..mine.clone() }, lease(&other)]
    {
        stale(store, &wrong, step(session.no, 2, [said("x")])).await;
    }
    assert_eq!(whole(store, session.no).await, before);

    let hold = store.lease_holder(session.workspace).await.expect("read").expect("held");
    let newer = store.claim(session.workspace, "there", &hold).await.expect("claimed");
    stale(store, &mine, step(session.no, 2, [said("x")])).await;
    assert_eq!(whole(store, session.no).await, before);
    store.append(&newer, step(session.no, 2, [said("x")])).await.expect("the new holder writes");
}

pub(crate) async fn a_step_must_follow_the_one_before(store: &dyn Store) {
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

async fn stale(store: &dyn Store, lease: &Lease, append: LogAppend) {
    let first = append.first_seq;
    let refused = store.append(lease, append).await;
    assert!(matches!(refused, Err(Error::Stale)), "first {first}: {refused:?}");
}

pub(crate) async fn a_refused_step_does_not_hurt_its_neighbours(store: &dyn Store) {
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

pub(crate) async fn of_many_steps_with_one_place_one_gets_it(store: &dyn Store) {
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

pub(crate) async fn events_are_dense_and_in_order(store: &dyn Store) {
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

pub(crate) async fn facts_leave_out_what_the_agent_said(store: &dyn Store) {
    let session = make(store, "s").await;
    let line = "{ \"kind\":\"paused\" , \"b\":\"\\u00e4\" }";
    append(store, &session, step(session.no, 2, [said(line), Fact::Paused, said("{}"), Fact::Resuming]))
        .await;
    let facts = store.facts(session.no).await.expect("read");
    let seqs: Vec<u64> = facts.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, [1, 3, 5]);
    assert_eq!(events(store, session.no).await[1].fact, said(line), "kept to the byte");
}

pub(crate) async fn a_step_without_events_keeps_deltas_and_position(store: &dyn Store) {
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

pub(crate) async fn a_journals_place_is_forgotten_with_its_shim(store: &dyn Store) {
    let session = make(store, "s").await;
    let (old, other) = (Incarnation::fresh(), Incarnation::fresh());
    for incarnation in [old, other] {
        let mut read = step(session.no, 2, []);
        read.journal = Some(ash_model::JournalPosition { incarnation, process: 1, position: 9 });
        append(store, &session, read).await;
    }
    // Its last words and its end in one step: the place must not outlive it either.
    let mut asleep = step(session.no, 2, [Fact::Asleep { incarnation: Some(old) }]);
    asleep.journal = Some(ash_model::JournalPosition { incarnation: old, process: 1, position: 12 });
    append(store, &session, asleep).await;
    assert_eq!(crate::fixture::position(store, old).await, None);
    assert_eq!(crate::fixture::position(store, other).await, Some(9));
    append(store, &session, step(session.no, 3, [Fact::Asleep { incarnation: None }])).await;
    assert_eq!(crate::fixture::position(store, other).await, Some(9));
}

pub(crate) async fn a_turns_row_follows_its_turn(store: &dyn Store) {
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

pub(crate) async fn of_a_turns_rows_in_one_step_the_last_counts(store: &dyn Store) {
    let session = make(store, "s").await;
    let turn = TurnId::fresh();
    let mut quick = step(session.no, 2, [said("x")]);
    quick.turns = [TurnState::Queued, TurnState::Cut, TurnState::Failed].map(|s| turn_row(turn, 2, s)).into();
    append(store, &session, quick).await;
    let row = store.turn(session.no, turn).await.expect("read").expect("there");
    assert_eq!(row.state, TurnState::Failed);
}

pub(crate) async fn checkpoints_belong_to_their_workspace(store: &dyn Store) {
    let (one, two) = (make(store, "a").await, make(store, "b").await);
    let rows =
        [checkpoint(one.workspace, 1, 2), checkpoint(one.workspace, 2, 3), checkpoint(two.workspace, 1, 2)];
    let mut salvage = rows[1].clone();
    salvage.salvage = true;
    salvage.mid_turn = true;
    (salvage.skipped, salvage.unsettled) = (None, Some(1));
    salvage.turn = Some(TurnId::fresh());
    for (session, first, row) in [(&one, 2, &rows[0]), (&one, 3, &salvage), (&two, 2, &rows[2])] {
        let mut saved = step(session.no, first, [said("x")]);
        saved.checkpoint = Some(row.clone());
        append(store, session, saved).await;
    }
    for row in [&rows[0], &salvage, &rows[2]] {
        let found = store.checkpoint(row.workspace, row.number).await.expect("read");
        assert_eq!(found.as_ref(), Some(row));
    }
    assert_eq!(store.checkpoint(two.workspace, 2).await.expect("read"), None);
}

pub(crate) async fn checkpoints_are_listed_newest_first_in_pages(store: &dyn Store) {
    let (one, other) = (make(store, "a").await, make(store, "b").await);
    for (session, numbers) in [(&one, 1..=5), (&other, 1..=2)] {
        for number in numbers {
            let mut saved = step(session.no, number + 1, [said("x")]);
            saved.checkpoint = Some(checkpoint(session.workspace, number, number + 1));
            append(store, session, saved).await;
        }
    }
    let pages = [
        (None, 10, vec![5, 4, 3, 2, 1]),
        (None, 2, vec![5, 4]),
        (Some(4), 2, vec![3, 2]),
        (Some(1), 2, vec![]),
        (Some(0), 2, vec![]),
        (Some(u64::MAX), 1, vec![5]),
    ];
    for (before, limit, numbers) in pages {
        let expected: Vec<_> = numbers.iter().map(|n| checkpoint(one.workspace, *n, *n + 1)).collect();
        let page = store.checkpoints(one.workspace, before, limit).await.expect("read");
        assert_eq!(page, expected, "before {before:?}, at most {limit}");
    }
}

pub(crate) async fn of_many_claims_from_one_hold_one_wins(store: &dyn Store) {
    let session = make(store, "s").await;
    let hold = store.lease_holder(session.workspace).await.expect("read").expect("held");
    let nodes: Vec<String> = (0..16).map(|n| format!("node-{n}")).collect();
    let claims = join_all(nodes.iter().map(|node| store.claim(session.workspace, node, &hold))).await;
    let won: Vec<(&String, &Lease)> =
        nodes.iter().zip(&claims).filter_map(|(node, claim)| Some((node, claim.as_ref().ok()?))).collect();
    let [(node, lease)] = won[..] else { panic!("{} claims won", won.len()) };
    assert!(claims.iter().all(|claim| matches!(claim, Ok(_) | Err(Error::Stale))));
    assert_eq!(*lease, Lease { workspace: session.workspace, epoch: Epoch(2) });
    let now = store.lease_holder(session.workspace).await.expect("read");
    assert_eq!(now, Some(LeaseHolder { node: node.clone(), epoch: Epoch(2) }));
}

pub(crate) async fn a_claim_names_exactly_whom_it_takes_over_from(store: &dyn Store) {
    let session = make(store, "s").await;
    let hold = store.lease_holder(session.workspace).await.expect("read").expect("held");
    for wrong in [
        LeaseHolder { epoch: Epoch(0), ..hold.clone() },
        LeaseHolder { epoch: Epoch(2), ..hold.clone() },
        LeaseHolder { node: "elsewhere".into(), ..hold.clone() },
    ] {
        let refused = store.claim(session.workspace, "me", &wrong).await;
        assert!(matches!(refused, Err(Error::Stale)), "{wrong:?}: {refused:?}");
    }
    assert_eq!(store.lease_holder(session.workspace).await.expect("read"), Some(hold));
}

pub(crate) async fn two_hundred_sessions_write_at_once(store: &dyn Store) {
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
