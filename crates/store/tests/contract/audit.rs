//! The audit: every deed is told in the transaction that does it.

use crate::fixture::{
    all, append, by, card, configure, id, lease, make, new_session, only, owner, said, step, tenant,
};
use ash_model::{Epoch, Fact, Options, Status, Timestamp};
use ash_store::{
    Append, AuditQuery, Audited, Card, Deed, Error, Fate, Filter, Key, Lease, NewSession, Order, PURGED,
    Session, Store,
};

fn end(session: &Session, first: u64) -> Append {
    Append { card: card(Status::Ended), at: Timestamp(7), ..step(session.no, first, [Fact::Ended]) }
}

async fn lines(store: &dyn Store) -> Vec<Audited> {
    let query = AuditQuery { limit: 100, ..AuditQuery::default() };
    store.audit(&tenant("t"), &query).await.expect("read")
}

fn told(line: &Audited) -> (Deed, &str, Option<&str>, Option<&str>) {
    (line.deed, &line.subject, line.by.key.as_deref(), line.by.rule.as_deref())
}

pub(crate) async fn an_end_is_told_with_who_ordered_it(store: &dyn Store) {
    let session =
        store.create(NewSession { owner: Some(owner("alice")), ..new_session("s") }).await.expect("made");
    store.order_end(session.no, by("first"), Fate::End).await.expect("ordered");
    assert!(lines(store).await.is_empty(), "an order is no deed");
    let order = Order { owner: Some(owner("bob")), ..by("second") };
    store.order_end(session.no, order.clone(), Fate::End).await.expect("ordered");
    append(store, &session, end(&session, 2)).await;
    let line = lines(store).await.pop().expect("a line");
    let expected = Audited {
        no: line.no,
        at: Timestamp(7),
        tenant: tenant("t"),
        deed: Deed::Ended,
        subject: "s".into(),
        owner: Some(owner("alice")),
        by: order,
        detail: None,
    };
    assert_eq!(line, expected);
    // What is written after the end is not another.
    append(store, &session, end(&session, 3)).await;
    assert_eq!(lines(store).await, [expected]);
    assert!(store.find(&only("alice"), &session.id).await.expect("read").is_some());
}

pub(crate) async fn a_purge_that_was_ordered_comes_with_the_end(store: &dyn Store) {
    let session = make(store, "s").await;
    store.order_end(session.no, Order::of_rule("ttl"), Fate::Purge).await.expect("ordered");
    assert!(store.find(&all("t"), &session.id).await.expect("read").is_some());
    append(store, &session, end(&session, 2)).await;
    assert_eq!(store.find(&all("t"), &session.id).await.expect("read"), None, "in one step");
    assert!(!store.trash(session.no, Timestamp(9), by("k")).await.expect("there already"));
    let lines = lines(store).await;
    let lines: Vec<_> = lines.iter().map(told).collect();
    let told: Vec<_> = lines.iter().map(|(deed, _, key, rule)| (*deed, *key, *rule)).collect();
    assert_eq!(told, [(Deed::Purged, None, Some("ttl")), (Deed::Ended, None, Some("ttl"))]);
    assert!(lines.iter().all(|(_, subject, ..)| subject.starts_with(PURGED)), "{lines:?}");
}

pub(crate) async fn a_step_that_fails_is_not_told(store: &dyn Store) {
    let session = make(store, "s").await;
    store.order_end(session.no, by("k"), Fate::Purge).await.expect("ordered");
    let stale = Lease { epoch: Epoch(9), ..lease(&session) };
    let refused = store.append(&stale, end(&session, 2)).await;
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    assert!(lines(store).await.is_empty());
    assert!(store.find(&all("t"), &id("s")).await.expect("read").is_some());
}

pub(crate) async fn every_deed_has_its_line_and_pages_leave_none_out(store: &dyn Store) {
    let key = Key {
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
    while !store.bury(session.no, Timestamp(9)).await.expect("buried") {}
    let all = lines(store).await;
    let purged = all[0].subject.as_str();
    assert!(purged.starts_with(PURGED), "{purged}");
    let expected = [
        (Deed::Forgotten, purged, None, Some("trash")),
        (Deed::Purged, purged, Some("admin"), None),
        (Deed::Ended, purged, None, None),
        (Deed::KeyRemoved, "key", Some("admin"), None),
        (Deed::KeyCreated, "key", Some("admin"), None),
    ];
    assert_eq!(all.iter().map(told).collect::<Vec<_>>(), expected, "newest first");
    assert_eq!(all[4].owner, Some(owner("alice")));
    let mut paged = Vec::new();
    loop {
        let before = paged.last().map(|line: &Audited| line.no);
        let query = AuditQuery { before, limit: 2, ..AuditQuery::default() };
        let page = store.audit(&tenant("t"), &query).await.expect("read");
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, all);
    let of_s = AuditQuery { subject: Some("s".into()), since: Some(Timestamp(8)), limit: 9, before: None };
    assert_eq!(store.audit(&tenant("t"), &of_s).await.expect("read"), all[..2]);
    assert!(store.audit(&tenant("other"), &of_s).await.expect("read").is_empty());
}

pub(crate) async fn what_is_overdue_or_has_rested_is_found(store: &dyn Store) {
    for (name, ttl, status, open_turns) in [
        ("short", Some(10), Status::Active, 0),
        ("busy", Some(10), Status::Active, 1),
        ("long", Some(1000), Status::Paused, 0),
        ("never", Some(0), Status::Paused, 0),
        ("none", None, Status::Paused, 0),
        ("working", None, Status::Paused, 1),
        ("over", Some(10), Status::Ended, 0),
    ] {
        let options = Options { ttl, ..Options::default() };
        let card = Card { open_turns, ..card(status) };
        store
            .create(NewSession { options, card, at: Timestamp(5000), ..new_session(name) })
            .await
            .expect("made");
    }
    let names = |found: Vec<Session>| found.into_iter().map(|s| s.id.to_string()).collect::<Vec<_>>();
    assert!(store.overdue(Timestamp(14_999)).await.expect("read").is_empty());
    assert_eq!(names(store.overdue(Timestamp(15_000)).await.expect("read")), ["short", "over"]);
    assert!(store.rested(Status::Paused, Timestamp(4999)).await.expect("read").is_empty());
    let paused = store.rested(Status::Paused, Timestamp(5000)).await.expect("read");
    assert_eq!(names(paused), ["long", "never", "none"]);
    assert!(store.rested(Status::Active, Timestamp(9999)).await.expect("read").is_empty(), "at work");
    // What is changed later counts, and what was used since does not.
    let found = |name: &'static str| async move {
        store.find(&all("t"), &id(name)).await.expect("read").expect("there")
    };
    let none = found("none").await;
    configure(store, &none, &Options { ttl: Some(1), ..Options::default() }).await;
    let short = found("short").await;
    let used = Append { at: Timestamp(14_000), ..step(short.no, 2, [said("x")]) };
    append(store, &short, used).await;
    assert_eq!(names(store.overdue(Timestamp(15_000)).await.expect("read")), ["none", "over"]);
    let all = store.sessions(&all("t"), &Filter::default()).await.expect("listed");
    assert_eq!(all.total, 7, "nothing was done");
}
