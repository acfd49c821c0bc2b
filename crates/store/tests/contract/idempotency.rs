//! Idempotency keys: a repeated request has one effect.

use crate::fixture::{append, idempotency_request, make, said, step, tenant, turn_row};
use ash_model::{Timestamp, TurnId};
use ash_store::{IdempotencyClaim, IdempotencyRequest, Store, TurnState};
use futures::future::join_all;

contract! {
    a_retry_finds_what_the_first_made
    of_many_at_once_one_is_the_first
    a_refused_key_is_free_unless_its_turn_was_accepted
    an_old_key_may_be_used_again
}

fn request(hash: &str, resource: &str) -> IdempotencyRequest {
    let request = idempotency_request("POST /x", "key", resource);
    IdempotencyRequest { hash: hash.to_owned(), at: Timestamp(10), ..request }
}

async fn once(store: &dyn Store, hash: &str, resource: &str) -> IdempotencyClaim {
    store.claim_idempotency_key(request(hash, resource)).await.expect("answered")
}

async fn a_retry_finds_what_the_first_made(store: &dyn Store) {
    assert_eq!(once(store, "body", "r1").await, IdempotencyClaim::New("r1".into()));
    assert_eq!(once(store, "body", "r2").await, IdempotencyClaim::Retry("r1".into()));
    assert_eq!(once(store, "another body", "r3").await, IdempotencyClaim::Conflict);
    assert_eq!(once(store, "body", "r4").await, IdempotencyClaim::Retry("r1".into()));
    let elsewhere = [("u", "POST /x", "key"), ("t", "POST /y", "key"), ("t", "POST /x", "other key")];
    for (owner, route, key) in elsewhere {
        let request = idempotency_request(route, key, "r5");
        let first =
            store.claim_idempotency_key(IdempotencyRequest { tenant: tenant(owner), ..request }).await;
        assert_eq!(first.expect("answered"), IdempotencyClaim::New("r5".into()), "{owner} {route} {key}");
    }
}

async fn of_many_at_once_one_is_the_first(store: &dyn Store) {
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

async fn a_refused_key_is_free_unless_its_turn_was_accepted(store: &dyn Store) {
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

async fn an_old_key_may_be_used_again(store: &dyn Store) {
    once(store, "body", "r1").await;
    assert_eq!(store.prune(Timestamp(10)).await.expect("pruned"), 0);
    assert_eq!(once(store, "other", "r2").await, IdempotencyClaim::Conflict);
    assert_eq!(store.prune(Timestamp(11)).await.expect("pruned"), 1);
    assert_eq!(once(store, "other", "r2").await, IdempotencyClaim::New("r2".into()));
}
