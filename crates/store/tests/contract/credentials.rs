//! Credentials.

use crate::fixture::{by, owner, tenant};
use ash_model::{CredentialId, CredentialKind, Timestamp};
use ash_store::{AccessScope, AuditAction, AuditQuery, Store, StoredCredential};
use secrecy::ExposeSecret;

contract! {
    a_credential_is_read_back_with_its_key_until_it_is_removed
    credentials_are_listed_newest_first_and_only_in_their_tenant
    an_owner_reaches_only_its_own_credentials
    the_last_use_of_a_credential_is_remembered
    the_audit_names_a_credential_and_its_type_and_not_its_key
}

const KEY: &str = "hunter2-of-the-model-service";

fn credential(of: &str, owned_by: Option<&str>) -> StoredCredential {
    StoredCredential {
        id: CredentialId::fresh(),
        tenant: tenant(of),
        owner: owned_by.map(owner),
        kind: CredentialKind::Anthropic,
        label: "l".into(),
        created_at: Timestamp(4),
        last_used_at: None,
    }
}

fn all(of: &str) -> AccessScope {
    AccessScope::all(&tenant(of))
}

fn owned(by: &str) -> AccessScope {
    AccessScope { tenant: tenant("t"), owner: Some(owner(by)) }
}

async fn added(store: &dyn Store, new: StoredCredential) -> StoredCredential {
    store.add_credential(new.clone(), KEY.into(), by("k")).await.expect("added");
    new
}

async fn removes(store: &dyn Store, scope: &AccessScope, id: &CredentialId) -> bool {
    store.remove_credential(scope, id, Timestamp(9), by("k")).await.expect("answered")
}

async fn a_credential_is_read_back_with_its_key_until_it_is_removed(store: &dyn Store) {
    let new = added(store, credential("t", None)).await;
    let (found, key) = store.credential(&all("t"), &new.id).await.expect("read").expect("there");
    assert_eq!((&found, key.expose_secret()), (&new, KEY));
    assert!(store.credential(&all("other"), &new.id).await.expect("read").is_none());
    assert!(!removes(store, &all("other"), &new.id).await);
    assert!(removes(store, &all("t"), &new.id).await);
    assert!(!removes(store, &all("t"), &new.id).await);
    assert!(store.credential(&all("t"), &new.id).await.expect("read").is_none());
}

async fn credentials_are_listed_newest_first_and_only_in_their_tenant(store: &dyn Store) {
    let first = added(store, credential("t", None)).await;
    let second =
        added(store, StoredCredential { kind: CredentialKind::Custom, ..credential("t", None) }).await;
    let foreign = added(store, credential("other", None)).await;
    assert_eq!(store.credentials(&all("t")).await.expect("read"), [second, first]);
    assert_eq!(store.credentials(&all("other")).await.expect("read"), [foreign]);
}

async fn an_owner_reaches_only_its_own_credentials(store: &dyn Store) {
    let common = added(store, credential("t", None)).await;
    let alices = added(store, credential("t", Some("alice"))).await;
    assert_eq!(store.credentials(&owned("alice")).await.expect("read"), std::slice::from_ref(&alices));
    assert_eq!(store.credentials(&owned("bob")).await.expect("read"), []);
    assert_eq!(store.credentials(&all("t")).await.expect("read"), [alices.clone(), common.clone()]);
    for (who, what) in [("alice", &common), ("bob", &common), ("bob", &alices)] {
        assert!(store.credential(&owned(who), &what.id).await.expect("read").is_none(), "{who}");
        assert!(!removes(store, &owned(who), &what.id).await, "{who}");
    }
    assert!(store.credential(&owned("alice"), &alices.id).await.expect("read").is_some());
    assert!(removes(store, &owned("alice"), &alices.id).await);
}

async fn the_last_use_of_a_credential_is_remembered(store: &dyn Store) {
    let new = added(store, credential("t", None)).await;
    store.set_credential_used(&tenant("other"), &new.id, Timestamp(7)).await.expect("ignored");
    assert_eq!(store.credentials(&all("t")).await.expect("read")[0].last_used_at, None);
    store.set_credential_used(&tenant("t"), &new.id, Timestamp(8)).await.expect("written");
    assert_eq!(store.credentials(&all("t")).await.expect("read")[0].last_used_at, Some(Timestamp(8)));
    assert!(removes(store, &all("t"), &new.id).await);
    store.set_credential_used(&tenant("t"), &new.id, Timestamp(9)).await.expect("ignored");
}

async fn the_audit_names_a_credential_and_its_type_and_not_its_key(store: &dyn Store) {
    let new = added(store, credential("t", Some("alice"))).await;
    assert!(removes(store, &all("t"), &new.id).await);
    let query = AuditQuery { limit: 10, ..AuditQuery::default() };
    let entries = store.audit_entries(&tenant("t"), &query).await.expect("read");
    assert_eq!(
        entries.iter().map(|entry| entry.action).collect::<Vec<_>>(),
        [AuditAction::CredentialRemoved, AuditAction::CredentialCreated]
    );
    for entry in &entries {
        assert_eq!((entry.subject.as_str(), entry.detail.as_deref()), (new.id.as_str(), Some("anthropic")));
        assert_eq!(entry.owner, Some(owner("alice")));
        assert!(!format!("{entry:?}").contains(KEY), "{entry:?}");
    }
}
