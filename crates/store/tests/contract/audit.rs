//! The audit: every action of the store has an entry, written in the same step.

use crate::fixture::{append, by, make, owner, step, summary, tenant};
use ash_model::{Fact, SessionStatus, Timestamp};
use ash_store::{ApiKey, AuditAction, AuditEntry, AuditQuery, LogAppend, PURGED, SessionRow, Store};

contract! {
    every_action_has_its_entry_and_pages_leave_none_out
}

pub(crate) fn end(session: &SessionRow, first: u64) -> LogAppend {
    LogAppend {
        summary: summary(SessionStatus::Ended),
        at: Timestamp(7),
        ..step(session.no, first, [Fact::Ended])
    }
}

pub(crate) async fn lines(store: &dyn Store) -> Vec<AuditEntry> {
    let query = AuditQuery { limit: 100, ..AuditQuery::default() };
    store.audit_entries(&tenant("t"), &query).await.expect("read")
}

pub(crate) fn told(line: &AuditEntry) -> (AuditAction, &str, Option<&str>, Option<&str>) {
    (line.action, &line.subject, line.actor.key.as_deref(), line.actor.rule.as_deref())
}

async fn every_action_has_its_entry_and_pages_leave_none_out(store: &dyn Store) {
    let key = ApiKey {
        id: "key".into(),
        tenant: tenant("t"),
        owner: Some(owner("alice")),
        label: String::new(),
        created_at: Timestamp(1),
    };
    store.add_key(key, "hash".into(), by("admin")).await.expect("added");
    assert!(store.remove_key(&tenant("t"), "key", Timestamp(2), by("admin")).await.expect("removed"));
    assert!(!store.remove_key(&tenant("t"), "key", Timestamp(2), by("admin")).await.expect("not there"));
    let session = make(store, "s").await;
    append(store, &session, end(&session, 2)).await;
    assert!(store.trash(session.no, Timestamp(8), by("admin")).await.expect("put there"));
    assert!(!store.trash(session.no, Timestamp(8), by("admin")).await.expect("once"));
    while !store.purge(session.no, Timestamp(9)).await.expect("deleted") {}
    let all = lines(store).await;
    let purged = all[0].subject.as_str();
    assert!(purged.starts_with(PURGED), "{purged}");
    let expected = [
        (AuditAction::Forgotten, purged, None, Some("trash")),
        (AuditAction::Purged, purged, Some("admin"), None),
        (AuditAction::Ended, purged, None, None),
        (AuditAction::KeyRemoved, "key", Some("admin"), None),
        (AuditAction::KeyCreated, "key", Some("admin"), None),
    ];
    assert_eq!(all.iter().map(told).collect::<Vec<_>>(), expected, "newest first");
    assert_eq!(all[4].owner, Some(owner("alice")));
    let mut paged = Vec::new();
    loop {
        let before = paged.last().map(|line: &AuditEntry| line.no);
        let query = AuditQuery { before, limit: 2, ..AuditQuery::default() };
        let page = store.audit_entries(&tenant("t"), &query).await.expect("read");
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, all);
    let of_s = AuditQuery { subject: Some("s".into()), since: Some(Timestamp(8)), limit: 9, before: None };
    assert_eq!(store.audit_entries(&tenant("t"), &of_s).await.expect("read"), all[..2]);
    assert!(store.audit_entries(&tenant("other"), &of_s).await.expect("read").is_empty());
}
