//! Giving up checkpoints.

use crate::fixture::{append, checkpoint, configure, lease, make, new_fork, step};
use ash_model::{ConversationPoint, Fact, SessionRewind, Timestamp, WorkspaceId};
use ash_store::{Error, LogAppend, NewSessionRow, SessionRow, Store};

/// A session with checkpoints 1 to 4 that stands on number 3 and counts its changes from number 1.
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

pub(crate) async fn checkpoints_are_given_up_but_for_those_that_are_needed(store: &dyn Store) {
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

pub(crate) async fn nobody_comes_to_stand_on_what_was_given_up(store: &dyn Store) {
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
