//! Forgetting sessions.

use crate::fixture::{all, append, by, checkpoint, make, new_fork, said, step};
use ash_model::{Fact, SessionStatus, Timestamp};
use ash_store::{EventQuery, SessionFilter, SessionRow, Store};

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

async fn bury(store: &dyn Store, session: &SessionRow) -> u64 {
    let mut times = 1;
    while !store.purge(session.no, Timestamp(10)).await.expect("buried") {
        times += 1;
    }
    times
}

pub(crate) async fn what_is_in_the_trash_is_seen_by_nobody(store: &dyn Store) {
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

pub(crate) async fn nothing_is_left_of_what_is_buried(store: &dyn Store) {
    let (gone, stays) = (ended(store, "gone", 12_000).await, ended(store, "stays", 3).await);
    store.trash(gone.no, Timestamp(5), by("k")).await.expect("put there");
    assert!(bury(store, &gone).await > 2, "some at a time");
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
pub(crate) async fn a_parent_stays_as_long_as_its_forks(store: &dyn Store) {
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
        bury(store, &trashed[0]).await;
    }
}
