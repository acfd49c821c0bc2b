//! What the object store should have, and corrections after a comparison.

use crate::{
    agents::new_agent,
    fixture::{agent, append, checkpoint, make, step, tenant},
    replication::send_all_at,
};
use ash_model::{Fact, SessionStatus, Timestamp};
use ash_store::{
    RemoteAgent, RemoteCheckpoint, RemotePack, RemoteRetraction, RetractedAgent, RetractedLog, SessionRow,
    Store,
};

contract! {
    the_remote_state_lists_everything_that_was_uploaded
    retracted_uploads_are_pending_again
    uploads_since_the_comparison_are_not_retracted
    missing_packs_are_forgotten_with_the_pack_and_with_the_object_store
    packs_are_recorded_until_they_are_forgotten
}

/// A resting session with three checkpoints, completely uploaded.
async fn sent(store: &dyn Store) -> SessionRow {
    store.set_remote("a").await.expect("set");
    store.deploy(new_agent("helper")).await.expect("deployed");
    let session = make(store, "s").await;
    for number in 1..=3 {
        let mut saved = step(session.no, 1 + number, [Fact::Paused]);
        saved.checkpoint = Some(checkpoint(session.workspace, number, 1 + number));
        saved.summary.checkpoint = Some(number);
        saved.summary.status = SessionStatus::Paused;
        append(store, &session, saved).await;
    }
    send_all_at(store, Timestamp(7)).await;
    session
}

fn remote(session: &SessionRow, number: u64, sent_at: i64) -> RemoteCheckpoint {
    let tree = checkpoint(session.workspace, number, 1 + number).tree;
    RemoteCheckpoint {
        workspace: session.workspace,
        number,
        seq: 1 + number,
        tree,
        sent_at: Timestamp(sent_at),
    }
}

async fn remote_checkpoint(store: &dyn Store, session: &SessionRow) -> Option<u64> {
    store.session(session.no).await.expect("read").expect("there").remote_checkpoint
}

async fn the_remote_state_lists_everything_that_was_uploaded(store: &dyn Store) {
    let session = sent(store).await;
    store
        .add_remote_packs(&session.tenant, &[RemotePack { pack: "p".into(), size: 3 }])
        .await
        .expect("noted");
    store.add_remote_object("tenants/t/sessions/s/1", 9).await.expect("noted");
    store.add_remote_object("tenants/t0/sessions/s/1", 9).await.expect("noted");
    store.add_remote_object("tenants/t/agents/a/1", 8).await.expect("noted");
    store.forget_remote_objects(&["tenants/t/agents/a/1".into()]).await.expect("forgotten");
    let said = store.remote_state(&session.tenant).await.expect("read");
    assert_eq!(said.packs, [("p".to_owned(), 3)].into());
    assert_eq!(said.objects, [("tenants/t/sessions/s/1".to_owned(), 9)].into());
    let tree = new_agent("helper").tree;
    assert_eq!(said.agents, [RemoteAgent { name: agent("helper"), version: 1, tree, changes: Some(1) }]);
    let [one] = &said.sessions[..] else { panic!("{said:?}") };
    assert_eq!((one.no, &one.id, one.base, one.seq), (session.no, &session.id, None, 4));
    assert_eq!(one.checkpoints, [1, 2, 3].map(|number| remote(&session, number, 7)));
    assert_eq!(store.remote_state(&tenant("other")).await.expect("read"), Default::default());
}

async fn retracted_uploads_are_pending_again(store: &dyn Store) {
    let session = sent(store).await;
    let tenant = session.tenant.clone();
    let packs = [("p", 3), ("q", 4)].map(|(pack, size)| RemotePack { pack: pack.into(), size });
    store.add_remote_packs(&tenant, &packs).await.expect("noted");
    let what = RemoteRetraction {
        packs: vec!["p".into()],
        missing: vec!["p".into()],
        checkpoints: vec![remote(&session, 2, 7), remote(&session, 3, 7)],
        agents: vec![RetractedAgent { name: agent("helper"), version: 1 }],
        logs: vec![RetractedLog { session: session.no, claimed_seq: 4, actual_seq: 2 }],
        ..RemoteRetraction::default()
    };
    store.retract(&tenant, what).await.expect("taken back");
    assert_eq!(remote_checkpoint(store, &session).await, Some(1), "the highest one that is left");
    assert_eq!(store.remote_packs(&tenant).await.expect("read"), [("q".to_owned(), 4)].into());
    assert_eq!(store.missing_packs(&tenant).await.expect("read"), ["p".to_owned()].into());
    let left = store.pending_uploads(100, &[]).await.expect("read");
    assert_eq!(left.len(), 3, "an agent and two checkpoints: {left:?}");
    assert_eq!(store.replication_lag().await.expect("read").checkpoints, 2);
    assert_eq!(store.remote_state(&tenant).await.expect("read").sessions[0].seq, 2);
    store.add_remote_packs(&tenant, &[RemotePack { pack: "p".into(), size: 3 }]).await.expect("sent again");
    assert_eq!(store.missing_packs(&tenant).await.expect("read"), [].into(), "it is there");
    send_all_at(store, Timestamp(8)).await;
    assert_eq!(remote_checkpoint(store, &session).await, Some(3));
    assert_eq!(store.pending_uploads(100, &[]).await.expect("read"), []);
}

async fn uploads_since_the_comparison_are_not_retracted(store: &dyn Store) {
    let session = sent(store).await;
    let log = RetractedLog { session: session.no, claimed_seq: 3, actual_seq: 0 };
    let what = RemoteRetraction {
        checkpoints: vec![remote(&session, 3, 6)],
        logs: vec![log],
        ..RemoteRetraction::default()
    };
    store.retract(&session.tenant, what).await.expect("nothing to take back");
    assert_eq!(remote_checkpoint(store, &session).await, Some(3));
    assert_eq!(store.remote_state(&session.tenant).await.expect("read").sessions[0].seq, 4);
    // An older checkpoint that is uploaded again does not replace a newer one.
    let what = RemoteRetraction { checkpoints: vec![remote(&session, 1, 7)], ..RemoteRetraction::default() };
    store.retract(&session.tenant, what).await.expect("taken back");
    assert_eq!(remote_checkpoint(store, &session).await, Some(3));
    send_all_at(store, Timestamp(8)).await;
    assert_eq!(remote_checkpoint(store, &session).await, Some(3));
}

async fn missing_packs_are_forgotten_with_the_pack_and_with_the_object_store(store: &dyn Store) {
    let session = sent(store).await;
    let missing = async || store.missing_packs(&session.tenant).await.expect("read");
    let what = |missing: &[&str], not_missing: &[&str]| RemoteRetraction {
        missing: missing.iter().map(ToString::to_string).collect(),
        not_missing: not_missing.iter().map(ToString::to_string).collect(),
        ..RemoteRetraction::default()
    };
    store.retract(&session.tenant, what(&["p", "q", "r"], &[])).await.expect("noted");
    store.retract(&session.tenant, what(&["p"], &["q"])).await.expect("noted");
    assert_eq!(missing().await, ["p".to_owned(), "r".to_owned()].into());
    store.forget_remote_packs(&session.tenant, &["r".into()]).await.expect("given up");
    assert_eq!(missing().await, ["p".to_owned()].into());
    store.set_remote("another").await.expect("set");
    assert_eq!(missing().await, [].into());
}

async fn packs_are_recorded_until_they_are_forgotten(store: &dyn Store) {
    let packs = ["p", "q"].map(|pack| RemotePack { pack: pack.into(), size: 2 });
    store.add_remote_packs(&tenant("t"), &packs).await.expect("noted");
    store.forget_remote_packs(&tenant("t"), &["p".into()]).await.expect("forgotten");
    assert_eq!(store.remote_packs(&tenant("t")).await.expect("read"), [("q".to_owned(), 2)].into());
    assert_eq!(store.remote_packs(&tenant("other")).await.expect("read"), [].into());
}
