//! Uploads that are pending for the object store, and pending deletions there.

use crate::{
    agents::new_agent,
    fixture::{agent, append, checkpoint, make, step, tenant},
};
use ash_model::{Fact, SessionStatus, Timestamp};
use ash_store::{NewAgentVersion, PendingUpload, QueuedDelete, RemotePack, SessionRow, Store};

contract! {
    everything_that_was_not_uploaded_is_pending
    an_agent_that_changes_is_uploaded_again
    deletes_are_queued_until_they_are_done
}

pub(crate) fn names(all: &[PendingUpload]) -> Vec<String> {
    let name = |one: &PendingUpload| match one {
        PendingUpload::Agent(agent) => format!("{} {}.{}", agent.name, agent.version, agent.changes),
        PendingUpload::Checkpoint { checkpoint, .. } => format!("checkpoint {}", checkpoint.number),
        PendingUpload::Log { seq, .. } => format!("log {seq}"),
        PendingUpload::Tombstone { tombstone, .. } => format!("tombstone {}", tombstone.session),
    };
    all.iter().map(name).collect()
}

pub(crate) async fn outgoing(store: &dyn Store) -> Vec<PendingUpload> {
    store.pending_uploads(100, &[]).await.expect("read")
}

pub(crate) async fn send_all(store: &dyn Store) {
    send_all_at(store, Timestamp(7)).await;
}

pub(crate) async fn send_all_at(store: &dyn Store, at: Timestamp) {
    for one in outgoing(store).await {
        let seq = match &one {
            PendingUpload::Agent(_) => 0,
            PendingUpload::Checkpoint { checkpoint, .. } => checkpoint.seq,
            PendingUpload::Log { seq, .. } => *seq,
            PendingUpload::Tombstone { tombstone, .. } => tombstone.seq,
        };
        store.mark_uploaded(&one, seq, at).await.expect("noted");
    }
}

/// A resting session with a checkpoint and one later step.
pub(crate) async fn rested(store: &dyn Store) -> SessionRow {
    let session = make(store, "s").await;
    let mut saved = step(session.no, 2, [Fact::Paused]);
    saved.checkpoint = Some(checkpoint(session.workspace, 1, 2));
    saved.summary.checkpoint = Some(1);
    append(store, &session, saved).await;
    let mut paused = step(session.no, 3, [Fact::Paused]);
    paused.summary.status = SessionStatus::Paused;
    paused.summary.checkpoint = Some(1);
    append(store, &session, paused).await;
    session
}

async fn everything_that_was_not_uploaded_is_pending(store: &dyn Store) {
    store.set_remote("a").await.expect("set");
    store.deploy(new_agent("helper")).await.expect("deployed");
    let session = rested(store).await;
    assert_eq!(
        names(&outgoing(store).await),
        ["helper 1.1", "checkpoint 1"],
        "the log comes with the checkpoint"
    );
    let lag = store.replication_lag().await.expect("read");
    assert_eq!((lag.checkpoints, lag.oldest), (1, Some(Timestamp(5))));
    let others = store.pending_uploads(100, &[session.no]).await.expect("read");
    assert_eq!(names(&others), ["helper 1.1"], "but for this one");
    send_all(store).await;
    assert_eq!(names(&outgoing(store).await), ["log 3"], "what came after it");
    assert_eq!(store.pending_uploads(100, &[session.no]).await.expect("read"), []);
    let listed = store.checkpoint(session.workspace, 1).await.expect("read").expect("there");
    assert_eq!(listed.uploaded_at, Some(Timestamp(7)));
    let found = store.session(session.no).await.expect("read").expect("there");
    assert_eq!(found.remote_checkpoint, Some(1));
    send_all(store).await;
    assert_eq!(outgoing(store).await, []);
    assert_eq!(store.replication_lag().await.expect("read").checkpoints, 0);

    store.set_remote("a").await.expect("the same");
    assert_eq!(outgoing(store).await, []);
    store
        .add_remote_packs(&session.tenant, &[RemotePack { pack: "p".into(), size: 3 }])
        .await
        .expect("noted");
    assert_eq!(store.remote_packs(&session.tenant).await.expect("read"), [("p".to_owned(), 3)].into());
    assert_eq!(store.remote_packs(&tenant("other")).await.expect("read"), [].into());
    store.set_remote("b").await.expect("another");
    assert_eq!(store.remote_packs(&session.tenant).await.expect("read"), [].into());
    assert_eq!(names(&outgoing(store).await), ["helper 1.1", "checkpoint 1"], "there it is all new");
}

async fn an_agent_that_changes_is_uploaded_again(store: &dyn Store) {
    store.deploy(new_agent("helper")).await.expect("deployed");
    let before = outgoing(store).await;
    let changed = store.change_agent(&tenant("t"), &agent("helper"), Some("{\"a\":1}".into()), None).await;
    assert!(changed.expect("changed"));
    store.mark_uploaded(&before[0], 0, Timestamp(7)).await.expect("noted");
    assert_eq!(names(&outgoing(store).await), ["helper 1.2"], "what was sent is not what it is now");
    send_all(store).await;
    assert_eq!(outgoing(store).await, []);
    store.deploy(NewAgentVersion { tree: "tree-2".into(), ..new_agent("helper") }).await.expect("deployed");
    assert_eq!(names(&outgoing(store).await), ["helper 2.3"]);
    send_all(store).await;
    assert!(store.delete_agent(&tenant("t"), &agent("helper"), Timestamp(8)).await.expect("deleted"));
    assert_eq!(names(&outgoing(store).await), ["helper 2.4"]);
}

async fn deletes_are_queued_until_they_are_done(store: &dyn Store) {
    store.enqueue_deletes(&["a".into(), "b".into()], Timestamp(1)).await.expect("noted");
    let queued: Vec<QueuedDelete> = store.queued_deletes(10).await.expect("read");
    assert_eq!(queued.iter().map(|queued| queued.key.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    store.dequeue_deletes(&[queued[0].number]).await.expect("noted");
    assert_eq!(store.queued_deletes(10).await.expect("read"), [queued[1].clone()]);
    store.cancel_deletes(&["b".into(), "c".into()]).await.expect("spared");
    assert_eq!(store.queued_deletes(10).await.expect("read"), []);
}
