//! The trash: hidden at once, deleted some rows at a time, with a tombstone for witnesses.

use crate::{
    fixture::{all, append, by, checkpoint, id, make, new_fork, said, step, tenant},
    replication::{names, outgoing, rested, send_all},
};
use ash_model::{Epoch, EventSeq, Fact, SessionStatus, Timestamp, remote::SessionTombstone};
use ash_store::{EndDisposition, EventQuery, SessionFilter, SessionRow, Store};

contract! {
    sessions_in_the_trash_are_not_found
    nothing_is_left_of_a_session_whose_rows_were_deleted
    a_parent_stays_as_long_as_its_forks
    a_purged_session_leaves_a_tombstone_until_it_is_uploaded
    a_tombstone_of_a_witness_purges_a_session_that_has_not_ended
}

async fn ended(store: &dyn Store, name: &str, events: u64) -> SessionRow {
    let session = make(store, name).await;
    let mut last = step(session.no, 2, (0..events).map(|number| said(&format!("{number}"))));
    last.summary.status = SessionStatus::Ended;
    last.checkpoint = Some(checkpoint(session.workspace, 1, 2));
    append(store, &session, last).await;
    session
}

async fn listed(store: &dyn Store) -> Vec<String> {
    let page = store.sessions(&all("t"), &SessionFilter::default()).await.expect("read");
    assert_eq!(page.total as usize, page.sessions.len());
    page.sessions.iter().map(|session| session.id.to_string()).collect()
}

async fn delete_rows(store: &dyn Store, session: &SessionRow) -> u64 {
    let mut times = 1;
    while !store.purge(session.no, Timestamp(10)).await.expect("deleted") {
        times += 1;
    }
    times
}

async fn sessions_in_the_trash_are_not_found(store: &dyn Store) {
    let (gone, stays) = (ended(store, "gone", 3).await, make(store, "stays").await);
    assert!(!store.trash(stays.no, Timestamp(5), by("k")).await.expect("refused"), "it has not ended");
    assert!(store.trash(gone.no, Timestamp(5), by("k")).await.expect("put there"));
    assert!(!store.trash(gone.no, Timestamp(7), by("k")).await.expect("refused"), "once");
    assert_eq!(store.find_session(&all("t"), &gone.id).await.expect("read"), None);
    assert_eq!(listed(store).await, ["stays"]);
    assert_eq!(store.trashed_sessions(Timestamp(4)).await.expect("read"), []);
    let trashed = store.trashed_sessions(Timestamp(5)).await.expect("read");
    assert_eq!(trashed.iter().map(|session| session.no).collect::<Vec<_>>(), [gone.no]);
}

async fn nothing_is_left_of_a_session_whose_rows_were_deleted(store: &dyn Store) {
    let (gone, stays) = (ended(store, "gone", 12_000).await, ended(store, "stays", 3).await);
    store.trash(gone.no, Timestamp(5), by("k")).await.expect("put there");
    assert!(delete_rows(store, &gone).await > 2, "some at a time");
    assert_eq!(store.session(gone.no).await.expect("read"), None);
    assert_eq!(store.checkpoint(gone.workspace, 1).await.expect("read"), None);
    assert_eq!(store.lease_holder(gone.workspace).await.expect("read"), None);
    let query = EventQuery { after: 0, limit: 10, kinds: Vec::new() };
    let left = store.events(gone.no, &query).await;
    assert_eq!(left.expect("read"), []);
    assert_eq!(store.events(stays.no, &query).await.expect("read").len(), 4);
    assert!(store.checkpoint(stays.workspace, 1).await.expect("read").is_some());
    // Its name is free again.
    make(store, "gone").await;
}

/// A fork reads its log.
async fn a_parent_stays_as_long_as_its_forks(store: &dyn Store) {
    let parent = ended(store, "parent", 3).await;
    let fork = store.create_session(new_fork("fork", &parent, 3)).await.expect("made");
    store.trash(parent.no, Timestamp(5), by("k")).await.expect("put there");
    assert_eq!(store.trashed_sessions(Timestamp(9)).await.expect("read"), []);
    let mut last = step(fork.no, fork.last_seq + 1, [Fact::Ended]);
    last.summary.status = SessionStatus::Ended;
    append(store, &fork, last).await;
    store.trash(fork.no, Timestamp(6), by("k")).await.expect("put there");
    for gone in ["fork", "parent"] {
        let trashed = store.trashed_sessions(Timestamp(9)).await.expect("read");
        assert_eq!(trashed.iter().map(|session| session.id.as_str()).collect::<Vec<_>>(), [gone]);
        delete_rows(store, &trashed[0]).await;
    }
}

pub(crate) async fn purge(store: &dyn Store, session: &SessionRow, first: EventSeq) {
    store.request_end(session.no, by("k"), EndDisposition::Purge).await.expect("ordered");
    let mut end = step(session.no, first, [Fact::Ended]);
    end.summary.status = SessionStatus::Ended;
    append(store, session, end).await;
}

async fn a_purged_session_leaves_a_tombstone_until_it_is_uploaded(store: &dyn Store) {
    store.set_remote("a").await.expect("set");
    let session = rested(store).await;
    assert!(store.tombstones().await.expect("read").is_empty());
    purge(store, &session, 4).await;
    let tombstone = store.tombstones().await.expect("read").pop().expect("one").tombstone;
    let expected = SessionTombstone {
        tenant: tenant("t"),
        session: id("s"),
        epoch: Epoch(1),
        seq: 5,
        purged_at: tombstone.purged_at,
    };
    assert_eq!(tombstone, expected, "under the next number of its log");
    assert_eq!(names(&outgoing(store).await), ["tombstone s"], "nothing else of it is sent any more");
    send_all(store).await;
    assert!(outgoing(store).await.is_empty());
    assert_eq!(
        store.tombstones().await.expect("read").len(),
        1,
        "it stays known until the session is forgotten"
    );
    store.set_remote("b").await.expect("set");
    assert_eq!(names(&outgoing(store).await), ["tombstone s"], "the other object store does not have it");
}

async fn a_tombstone_of_a_witness_purges_a_session_that_has_not_ended(store: &dyn Store) {
    let session = make(store, "s").await;
    store.trash_by_tombstone(session.no, Timestamp(5), by("k")).await.expect("purged");
    assert_eq!(store.find_session(&all("t"), &session.id).await.expect("read"), None);
    let row = store.tombstone(session.no).await.expect("read").expect("in the trash");
    assert_eq!((row.session, row.tombstone.purged_at, row.is_uploaded), (session.no, Timestamp(5), false));
}
