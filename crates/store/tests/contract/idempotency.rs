//! What happens once, and what may be forgotten.

use crate::fixture::{append, delta, items, make, places, said, step, tenant, turn_row};
use ash_model::{Timestamp, TurnId};
use ash_store::{IdempotencyClaim, Store, TurnState};
use futures::future::join_all;

async fn once(store: &dyn Store, hash: &str, resource: &str) -> IdempotencyClaim {
    store
        .claim_idempotency_key(&tenant("t"), "POST /x", "key", hash, resource, Timestamp(10))
        .await
        .expect("answered")
}

pub(crate) async fn a_retry_finds_what_the_first_made(store: &dyn Store) {
    assert_eq!(once(store, "body", "r1").await, IdempotencyClaim::New("r1".into()));
    assert_eq!(once(store, "body", "r2").await, IdempotencyClaim::Retry("r1".into()));
    assert_eq!(once(store, "another body", "r3").await, IdempotencyClaim::Conflict);
    assert_eq!(once(store, "body", "r4").await, IdempotencyClaim::Retry("r1".into()));
    let elsewhere = [("u", "POST /x", "key"), ("t", "POST /y", "key"), ("t", "POST /x", "other key")];
    for (owner, route, key) in elsewhere {
        let first =
            store.claim_idempotency_key(&tenant(owner), route, key, "body", "r5", Timestamp(10)).await;
        assert_eq!(first.expect("answered"), IdempotencyClaim::New("r5".into()), "{owner} {route} {key}");
    }
}

pub(crate) async fn of_many_at_once_one_is_the_first(store: &dyn Store) {
    let names: Vec<String> = (0..30).map(|n| format!("r{n}")).collect();
    let answers = join_all(names.iter().map(|name| once(store, "body", name))).await;
    let first: Vec<&String> = answers
        .iter()
        .filter_map(|a| if let IdempotencyClaim::New(r) = a { Some(r) } else { None })
        .collect();
    let [winner] = first[..] else { panic!("{} were first", first.len()) };
    assert!(
        answers
            .iter()
            .all(|a| matches!(a, IdempotencyClaim::New(r) | IdempotencyClaim::Retry(r) if r == winner))
    );
}

pub(crate) async fn a_refused_key_is_free_unless_its_turn_was_accepted(store: &dyn Store) {
    let claimed = async || store.idempotency_resource(&tenant("t"), "POST /x", "key").await.expect("read");
    let forget =
        async || store.release_idempotency_key(&tenant("t"), "POST /x", "key").await.expect("forgotten");
    assert_eq!(claimed().await, None);
    once(store, "body", "r1").await;
    assert_eq!(claimed().await.as_deref(), Some("r1"));
    store.release_idempotency_key(&tenant("u"), "POST /x", "key").await.expect("nothing of it");
    assert_eq!(claimed().await.as_deref(), Some("r1"));
    forget().await;
    assert_eq!(claimed().await, None);

    let (session, turn) = (make(store, "s").await, TurnId::fresh());
    assert_eq!(once(store, "other", &turn.to_string()).await, IdempotencyClaim::New(turn.to_string()));
    let mut accepted = step(session.no, 2, [said("a")]);
    accepted.turns = vec![turn_row(turn, 2, TurnState::Queued)];
    append(store, &session, accepted).await;
    forget().await;
    assert_eq!(claimed().await, Some(turn.to_string()));
}

pub(crate) async fn an_old_key_may_be_used_again(store: &dyn Store) {
    once(store, "body", "r1").await;
    assert_eq!(store.prune(Timestamp(10)).await.expect("pruned"), 0);
    assert_eq!(once(store, "other", "r2").await, IdempotencyClaim::Conflict);
    assert_eq!(store.prune(Timestamp(11)).await.expect("pruned"), 1);
    assert_eq!(once(store, "other", "r2").await, IdempotencyClaim::New("r2".into()));
}

pub(crate) async fn old_deltas_go_but_not_those_of_a_turn_that_is_not_over(store: &dyn Store) {
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

pub(crate) async fn an_old_delta_of_no_turn_goes(store: &dyn Store) {
    let session = make(store, "s").await;
    let mut old = step(session.no, 2, [said("a"), said("b")]);
    old.deltas = vec![delta(2, 1), delta(3, 1)];
    append(store, &session, old).await;
    assert_eq!(store.prune(Timestamp(100)).await.expect("pruned"), 2);
    assert_eq!(places(&items(store, session.no).await), ["1", "2", "3"]);
}
