//! What other witnesses are compared with, and histories that come from them.

use crate::{
    fixture::{all, append, by, checkpoint, events, id, lease, make, new_fork, new_session, step, tenant},
    replication::{names, outgoing, rebuilt, rested, send_all},
};
use ash_model::{
    Epoch, Event, EventSeq, Fact, SessionStatus, Timestamp, TurnId, WorkspaceId, remote::SessionTombstone,
};
use ash_store::{
    AuditAction, AuditQuery, DivergedFork, EndDisposition, Error, HistoryAdoption, NewSessionRow,
    RebuiltSession, SessionLogEnd, SessionRow, Store, TurnState,
};

async fn purge(store: &dyn Store, session: &SessionRow, first: EventSeq) {
    store.request_end(session.no, by("k"), EndDisposition::Purge).await.expect("ordered");
    let mut end = step(session.no, first, [Fact::Ended]);
    end.summary.status = SessionStatus::Ended;
    append(store, session, end).await;
}

pub(crate) async fn a_purged_session_leaves_a_tombstone_until_it_is_sent(store: &dyn Store) {
    store.set_remote("a").await.expect("set");
    let session = rested(store).await;
    assert!(store.tombstones().await.expect("read").is_empty());
    purge(store, &session, 4).await;
    let (_, tombstone) = store.tombstones().await.expect("read").pop().expect("one");
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
    assert_eq!(names(&outgoing(store).await), ["tombstone s"], "another place knows nothing of it");
}

pub(crate) async fn a_session_that_is_made_again_begins_with_a_later_epoch(store: &dyn Store) {
    let again =
        store.create_session(NewSessionRow { epoch: Epoch(5), ..new_session("s") }).await.expect("made");
    let hold = store.lease_holder(again.workspace).await.expect("read").expect("held");
    assert_eq!(hold.epoch, Epoch(5));
}

pub(crate) async fn what_the_rules_give_up_is_in_the_audit(store: &dyn Store) {
    let session = make(store, "s").await;
    for (number, first) in (1..=5).zip(2..) {
        let mut saved = step(session.no, first, [Fact::Paused]);
        saved.checkpoint = Some(checkpoint(session.workspace, number, first));
        saved.summary.checkpoint = Some(number);
        append(store, &session, saved).await;
    }
    let gone = store.remove_checkpoints(session.workspace, &[1, 2, 4, 5], Timestamp(9)).await.expect("done");
    assert_eq!(gone, 3, "the session stands on the last one");
    let query = AuditQuery { limit: 10, ..AuditQuery::default() };
    let line = store.audit_entries(&tenant("t"), &query).await.expect("read").remove(0);
    assert_eq!((line.action, line.subject.as_str()), (AuditAction::CheckpointsRemoved, "s"));
    assert_eq!((line.detail.as_deref(), line.actor.rule.as_deref()), (Some("1-2, 4"), Some("keep")));
    let gone = store.remove_checkpoints(session.workspace, &[1, 2], Timestamp(9)).await.expect("done");
    let lines = store.audit_entries(&tenant("t"), &query).await.expect("read").len();
    assert_eq!((gone, lines), (0, 1), "what was given up before is not told again");
}

/// The log of a session as a witness has it, with other events after the `common` first ones.
fn history(known: &[Event], common: EventSeq, facts: &[Fact]) -> Vec<Event> {
    let shared = known.iter().filter(|event| event.seq <= common).cloned();
    let own = (common + 1..).zip(facts);
    let own = own.map(|(seq, fact)| Event { seq, turn: None, at: Timestamp(5), fact: fact.clone() });
    shared.chain(own).collect()
}

/// What a witness has of this very session, in its own workspace.
fn witnessed(session: &SessionRow, events: &[Event]) -> RebuiltSession {
    let mut rebuilt = rebuilt(session, session.id.as_str(), events);
    rebuilt.manifest.workspace = session.workspace;
    rebuilt.turns.clear();
    rebuilt.checkpoints = vec![ash_store::Checkpoint {
        uploaded_at: Some(Timestamp(6)),
        ..checkpoint(session.workspace, 2, rebuilt.manifest.seq)
    }];
    rebuilt.summary.checkpoint = Some(2);
    rebuilt
}

pub(crate) async fn a_longer_history_goes_on_where_the_database_stopped(store: &dyn Store) {
    let session = rested(store).await;
    let longer = history(&events(store, session.no).await, 3, &[Fact::Stopped, Fact::Missing, Fact::Stopped]);
    let rebuilt = witnessed(&session, &longer);
    let adoption = HistoryAdoption {
        session: session.no,
        last_seq: 3,
        common: 3,
        diverged: None,
        rebuilt: rebuilt.clone(),
    };
    store.adopt(adoption).await.expect("adopted");
    assert_eq!(events(store, session.no).await, longer);
    let now = store.session(session.no).await.expect("read").expect("there");
    assert_eq!((now.last_seq, now.remote_seq, now.remote_checkpoint), (6, 6, Some(2)));
    assert_eq!(now.summary.checkpoint, Some(2));
    let numbers = store.checkpoints(session.workspace, None, 10).await.expect("read");
    assert_eq!(numbers.iter().map(|one| one.number).collect::<Vec<_>>(), [2, 1], "the older one stays");
    let hold = store.lease_holder(session.workspace).await.expect("read").expect("held");
    assert_eq!(
        (hold.node.as_str(), hold.epoch),
        ("there", Epoch(4)),
        "whoever claims it next is ahead of all"
    );
    let stale = store.append(&lease(&session), step(session.no, 7, [Fact::Paused])).await;
    assert!(matches!(stale, Err(Error::Stale)), "{stale:?}");
}

pub(crate) async fn a_history_that_took_another_way_becomes_a_fork(store: &dyn Store) {
    let session = rested(store).await;
    let turn = TurnId::fresh();
    let mut own = step(session.no, 4, [Fact::Paused]);
    own.turns = vec![crate::fixture::turn_row(turn, 4, TurnState::Done)];
    own.checkpoint = Some(checkpoint(session.workspace, 2, 4));
    own.summary =
        ash_store::SessionSummary { checkpoint: Some(2), ..crate::fixture::card(SessionStatus::Active) };
    append(store, &session, own).await;
    let child = store.create_session(new_fork("child", &session, 4)).await.expect("made");
    let local = events(store, session.no).await;
    let other = history(&local, 2, &[Fact::Stopped, Fact::Stopped, Fact::Stopped]);
    let (workspace, fork) = (WorkspaceId::fresh(), id("s.diverged-1"));
    let diverged = Some(DivergedFork { id: fork.clone(), workspace });
    let rebuilt = witnessed(&session, &other);
    let adoption = HistoryAdoption { session: session.no, last_seq: 4, common: 2, diverged, rebuilt };
    store.adopt(adoption).await.expect("adopted");
    assert_eq!(events(store, session.no).await, other, "the witness's is the session's");
    let fork = store.find_session(&all("t"), &fork).await.expect("read").expect("there");
    assert_eq!(events(store, fork.no).await, local, "the database's is the fork's");
    assert_eq!(
        (fork.parent.clone(), fork.base, fork.workspace),
        (Some(id("s")), Some((session.no, 2)), workspace)
    );
    assert_eq!((fork.last_seq, fork.remote_seq, fork.summary.status), (4, 0, SessionStatus::Paused));
    assert!(store.turn(fork.no, turn).await.expect("read").is_some());
    assert!(store.turn(session.no, turn).await.expect("read").is_none());
    let of = |workspace| async move {
        let rows = store.checkpoints(workspace, None, 10).await.expect("read");
        rows.iter().map(|one| (one.number, one.seq, one.uploaded_at.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(of(workspace).await, [(2, 4, false), (1, 2, false)], "its files, and those that both have");
    assert_eq!(of(session.workspace).await, [(2, 5, true), (1, 2, false)]);
    let child_log = events(store, child.no).await;
    assert_eq!(child_log[..4], local[..], "who shared the other history shares it still");
}

pub(crate) async fn a_log_that_grew_since_it_was_compared_is_left_alone(store: &dyn Store) {
    let session = rested(store).await;
    let before = events(store, session.no).await;
    let rebuilt = witnessed(&session, &history(&before, 2, &[Fact::Stopped]));
    let adoption = HistoryAdoption { session: session.no, last_seq: 2, common: 2, diverged: None, rebuilt };
    let refused = store.adopt(adoption).await;
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    assert_eq!(events(store, session.no).await, before);
}

pub(crate) async fn how_far_logs_go_is_told_with_the_trash(store: &dyn Store) {
    let session = rested(store).await;
    let other =
        store.create_session(NewSessionRow { tenant: tenant("u"), ..new_session("s") }).await.expect("made");
    purge(store, &session, 4).await;
    let of = |session: &SessionRow, seq| SessionLogEnd {
        no: session.no,
        session: id("s"),
        workspace: session.workspace,
        epoch: Epoch(1),
        seq,
        remote_seq: 0,
    };
    assert_eq!(store.log_positions(&tenant("t")).await.expect("read"), [of(&session, 4)]);
    assert_eq!(store.log_positions(&tenant("u")).await.expect("read"), [of(&other, 1)]);
    assert_eq!(store.check_integrity().await.expect("read"), None);
}
