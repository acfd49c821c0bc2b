//! API keys.

use crate::fixture::{by, owner, tenant};
use ash_model::Timestamp;
use ash_store::{ApiKey, Store};

contract! {
    a_key_opens_its_tenant_until_it_is_removed
    a_key_knows_its_owner
}

fn key(id: &str, owner: &str) -> ApiKey {
    ApiKey {
        id: id.into(),
        tenant: tenant(owner),
        owner: None,
        label: format!("{id}'s"),
        created_at: Timestamp(4),
    }
}

async fn a_key_opens_its_tenant_until_it_is_removed(store: &dyn Store) {
    for (id, owner) in [("a", "t"), ("b", "t"), ("c", "other")] {
        store.add_key(key(id, owner), format!("hash-{id}"), by("k")).await.expect("added");
    }
    assert_eq!(store.key("hash-a").await.expect("read"), Some(key("a", "t")));
    assert_eq!(store.key("hash-c").await.expect("read"), Some(key("c", "other")));
    assert_eq!(store.key("hash-x").await.expect("read"), None);
    assert_eq!(store.key_by_id("c").await.expect("read"), Some(key("c", "other")));
    assert_eq!(store.key_by_id("hash-c").await.expect("read"), None);
    assert_eq!(store.keys(&tenant("t")).await.expect("read"), [key("a", "t"), key("b", "t")]);
    assert!(!store.remove_key(&tenant("other"), "a", Timestamp(9), by("k")).await.expect("not theirs"));
    assert!(store.remove_key(&tenant("t"), "a", Timestamp(9), by("k")).await.expect("removed"));
    assert!(!store.remove_key(&tenant("t"), "a", Timestamp(9), by("k")).await.expect("removed before"));
    assert_eq!(store.key("hash-a").await.expect("read"), None);
    assert_eq!(store.key_by_id("a").await.expect("read"), None);
    assert!(
        store.add_key(key("d", "t"), "hash-b".into(), by("k")).await.is_err(),
        "one hash opens one tenant"
    );
}

async fn a_key_knows_its_owner(store: &dyn Store) {
    let key = ApiKey {
        id: "a".into(),
        tenant: tenant("t"),
        owner: Some(owner("alice")),
        label: "l".into(),
        created_at: Timestamp(4),
    };
    store.add_key(key.clone(), "hash".into(), by("k")).await.expect("added");
    assert_eq!(store.key("hash").await.expect("read"), Some(key.clone()));
    assert_eq!(store.keys(&tenant("t")).await.expect("read"), [key]);
}
