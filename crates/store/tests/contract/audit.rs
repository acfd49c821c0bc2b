//! The audit: every deed is told in the transaction that does it.

use crate::fixture::{
    all, append, by, card, configure, id, lease, make, new_session, only, owner, said, step, tenant,
};
use ash_model::{Epoch, Fact, SessionOptions, SessionStatus, Timestamp};
use ash_store::{
    ApiKey, AuditAction, AuditActor, AuditEntry, AuditQuery, EndDisposition, Error, Lease, LogAppend,
    NewSessionRow, PURGED, SessionFilter, SessionRow, SessionSummary, Store,
};

fn end(session: &SessionRow, first: u64) -> LogAppend {
    LogAppend {
        summary: card(SessionStatus::Ended),
        at: Timestamp(7),
        ..step(session.no, first, [Fact::Ended])
    }
}

async fn lines(store: &dyn Store) -> Vec<AuditEntry> {
    let query = AuditQuery { limit: 100, ..AuditQuery::default() };
    store.audit_entries(&tenant("t"), &query).await.expect("read")
}

fn told(line: &AuditEntry) -> (AuditAction, &str, Option<&str>, Option<&str>) {
    (line.action, &line.subject, line.actor.key.as_deref(), line.actor.rule.as_deref())
}

pub(crate) async fn an_end_is_told_with_who_ordered_it(store: &dyn Store) {
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
    // What is written after the end is not another.
    append(store, &session, end(&session, 3)).await;
    assert_eq!(lines(store).await, [expected]);
    assert!(store.find_session(&only("alice"), &session.id).await.expect("read").is_some());
}

pub(crate) async fn a_purge_that_was_ordered_comes_with_the_end(store: &dyn Store) {
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

pub(crate) async fn a_step_that_fails_is_not_told(store: &dyn Store) {
    let session = make(store, "s").await;
    store.request_end(session.no, by("k"), EndDisposition::Purge).await.expect("ordered");
    let stale = Lease { epoch: Epoch(9), ..lease(&session) };
    let refused = store.append(&stale, end(&session, 2)).await;
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    assert!(lines(store).await.is_empty());
    assert!(store.find_session(&all("t"), &id("s")).await.expect("read").is_some());
}

pub(crate) async fn every_deed_has_its_line_and_pages_leave_none_out(store: &dyn Store) {
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
    while !store.purge(session.no, Timestamp(9)).await.expect("buried") {}
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

pub(crate) async fn what_is_overdue_or_has_rested_is_found(store: &dyn Store) {
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
        let card = SessionSummary { open_turns, ..card(status) };
        store
            .create_session(NewSessionRow {
                options,
                summary: card,
                at: Timestamp(5000),
                ..new_session(name)
            })
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
    // What is changed later counts, and what was used since does not.
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
