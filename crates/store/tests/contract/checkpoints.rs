//! Checkpoints: listing them, and removing their files.

use crate::fixture::{append, checkpoint, configure, lease, make, new_fork, said, step, tenant};
use ash_model::{ConversationPoint, Fact, SessionRewind, Timestamp, TurnId, WorkspaceId, WorkspaceRewind};
use ash_store::{
    AuditAction, AuditQuery, Error, LogAppend, NewSessionRow, SessionRow, Store, WorkspaceRewindRow,
};

contract! {
    checkpoints_belong_to_their_workspace
    checkpoints_are_listed_newest_first_in_pages
    checkpoints_are_removed_except_those_that_are_needed
    no_session_can_move_to_a_removed_checkpoint
    removed_checkpoints_are_in_the_audit
    rewinds_of_a_workspace_are_listed_oldest_first
}

async fn checkpoints_belong_to_their_workspace(store: &dyn Store) {
    let (one, two) = (make(store, "a").await, make(store, "b").await);
    let rows =
        [checkpoint(one.workspace, 1, 2), checkpoint(one.workspace, 2, 3), checkpoint(two.workspace, 1, 2)];
    let mut salvage = rows[1].clone();
    salvage.salvage = true;
    salvage.mid_turn = true;
    (salvage.skipped, salvage.unsettled) = (None, Some(1));
    salvage.turn = Some(TurnId::fresh());
    for (session, first, row) in [(&one, 2, &rows[0]), (&one, 3, &salvage), (&two, 2, &rows[2])] {
        let mut saved = step(session.no, first, [said("x")]);
        saved.checkpoint = Some(row.clone());
        append(store, session, saved).await;
    }
    for row in [&rows[0], &salvage, &rows[2]] {
        let found = store.checkpoint(row.workspace, row.number).await.expect("read");
        assert_eq!(found.as_ref(), Some(row));
    }
    assert_eq!(store.checkpoint(two.workspace, 2).await.expect("read"), None);
}

async fn checkpoints_are_listed_newest_first_in_pages(store: &dyn Store) {
    let (one, other) = (make(store, "a").await, make(store, "b").await);
    for (session, numbers) in [(&one, 1..=5), (&other, 1..=2)] {
        for number in numbers {
            let mut saved = step(session.no, number + 1, [said("x")]);
            saved.checkpoint = Some(checkpoint(session.workspace, number, number + 1));
            append(store, session, saved).await;
        }
    }
    let pages = [
        (None, 10, vec![5, 4, 3, 2, 1]),
        (None, 2, vec![5, 4]),
        (Some(4), 2, vec![3, 2]),
        (Some(1), 2, vec![]),
        (Some(0), 2, vec![]),
        (Some(u64::MAX), 1, vec![5]),
    ];
    for (before, limit, numbers) in pages {
        let expected: Vec<_> = numbers.iter().map(|n| checkpoint(one.workspace, *n, *n + 1)).collect();
        let page = store.checkpoints(one.workspace, before, limit).await.expect("read");
        assert_eq!(page, expected, "before {before:?}, at most {limit}");
    }
}

/// A session with checkpoints 1 to 4 that is based on number 3 and counts its changes from number 1.
async fn with_four(store: &dyn Store) -> SessionRow {
    let session = make(store, "s").await;
    for number in 1..=4 {
        let mut saved = step(session.no, number + 1, [Fact::Paused]);
        saved.checkpoint = Some(checkpoint(session.workspace, number, number + 1));
        saved.summary.checkpoint = Some(number.min(3));
        append(store, &session, saved).await;
    }
    let options = ash_model::SessionOptions { base: Some(1), ..session.options.clone() };
    configure(store, &session, &options).await;
    session
}

fn rewind(session: &SessionRow, first: u64, to: u64) -> LogAppend {
    let rewound = SessionRewind { to, from: None, seq: 2, conversation: ConversationPoint::default() };
    let mut step = step(session.no, first, [Fact::Rewound(rewound)]);
    step.summary.checkpoint = Some(to);
    step
}

async fn checkpoints_are_removed_except_those_that_are_needed(store: &dyn Store) {
    let session = with_four(store).await;
    assert_eq!(store.tenants().await.expect("read"), std::slice::from_ref(&session.tenant));
    let held = store.tenant_snapshots(&session.tenant).await.expect("read").checkpoints;
    let held: Vec<(u64, bool)> = held.iter().map(|held| (held.checkpoint.number, held.needed)).collect();
    assert_eq!(held, [(4, false), (3, true), (2, false), (1, true)]);
    let remove = |numbers: &'static [u64]| store.remove_checkpoints(session.workspace, numbers, Timestamp(9));
    assert_eq!(remove(&[1, 2, 3, 7]).await.expect("removed"), 1);
    assert_eq!(remove(&[2]).await.expect("removed"), 0, "once");
    let listed = store.checkpoints(session.workspace, None, 10).await.expect("read");
    let listed: Vec<(u64, Option<Timestamp>)> =
        listed.iter().map(|one| (one.number, one.removed_at)).collect();
    assert_eq!(listed, [(4, None), (3, None), (2, Some(Timestamp(9))), (1, None)]);
    let elsewhere = store.remove_checkpoints(WorkspaceId::fresh(), &[4], Timestamp(9)).await;
    assert_eq!(elsewhere.expect("nothing"), 0);
}

async fn no_session_can_move_to_a_removed_checkpoint(store: &dyn Store) {
    let session = with_four(store).await;
    store.remove_checkpoints(session.workspace, &[2], Timestamp(9)).await.expect("removed");
    let refused = store.append(&lease(&session), rewind(&session, 7, 2)).await;
    assert!(matches!(refused, Err(Error::Removed(2))), "{refused:?}");
    store.append(&lease(&session), rewind(&session, 7, 4)).await.expect("one that is there");
    let fork = |number: u64| {
        let workspace = WorkspaceId::fresh();
        let first = ash_store::Checkpoint { workspace, number: 1, ..checkpoint(workspace, number, 2) };
        NewSessionRow {
            workspace,
            first_checkpoints: vec![first],
            ..new_fork(&format!("fork-{number}"), &session, 2)
        }
    };
    let refused = store.create_session(fork(2)).await;
    assert!(matches!(refused, Err(Error::Removed(2))), "{refused:?}");
    store.create_session(fork(3)).await.expect("made");
}

async fn removed_checkpoints_are_in_the_audit(store: &dyn Store) {
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
    assert_eq!((gone, lines), (0, 1), "checkpoints removed before are not reported again");
}

async fn rewinds_of_a_workspace_are_listed_oldest_first(store: &dyn Store) {
    let session = make(store, "s").await;
    for number in 1..=4 {
        let mut saved = step(session.no, number + 1, [said("x")]);
        let rewound_to = (number % 2 == 0).then_some(1);
        saved.checkpoint =
            Some(ash_store::Checkpoint { rewound_to, ..checkpoint(session.workspace, number, number + 1) });
        append(store, &session, saved).await;
    }
    let rewind = |checkpoint| WorkspaceRewindRow {
        rewind: WorkspaceRewind { by: Some(session.id.clone()), checkpoint, to: 1 },
        at: Timestamp(5),
    };
    let after = async |number| store.workspace_rewinds(session.workspace, number).await.expect("read");
    assert_eq!(after(0).await, [rewind(2), rewind(4)]);
    assert_eq!(after(2).await, [rewind(4)]);
    assert_eq!(after(4).await, []);
}
