//! What an object store has of all this: what is still to be sent, and what comes back.

use crate::{
    agents::new_agent,
    fixture::{agent, append, checkpoint, env, events, id, make, new_fork, step, tenant},
};
use ash_model::{
    AgentRuntime, Epoch, Fact, HistorySource, Image, ResourceLimits, SandboxRequirements, SessionStatus,
    Timestamp, TurnId, WorkspaceId,
    embedded_log::EventLine,
    remote::{AgentDefinition, SessionManifest},
};
use ash_store::{
    AccessScope, Error, NewAgentVersion, PendingUpload, RebuiltSession, SessionRow, Store, TurnState,
};

pub(crate) fn names(all: &[PendingUpload]) -> Vec<String> {
    let name = |one: &PendingUpload| match one {
        PendingUpload::Agent(agent) => format!("{} {}.{}", agent.name, agent.version, agent.changes),
        PendingUpload::Checkpoint(_, checkpoint) => format!("checkpoint {}", checkpoint.number),
        PendingUpload::Log(_, seq) => format!("log {seq}"),
        PendingUpload::Tombstone(_, tombstone) => format!("tombstone {}", tombstone.session),
    };
    all.iter().map(name).collect()
}

pub(crate) async fn outgoing(store: &dyn Store) -> Vec<PendingUpload> {
    store.pending_uploads(100, &[]).await.expect("read")
}

pub(crate) async fn send_all(store: &dyn Store) {
    for one in outgoing(store).await {
        let seq = match &one {
            PendingUpload::Agent(_) => 0,
            PendingUpload::Checkpoint(_, checkpoint) => checkpoint.seq,
            PendingUpload::Log(_, seq) => *seq,
            PendingUpload::Tombstone(_, tombstone) => tombstone.seq,
        };
        store.mark_uploaded(&one, seq, Timestamp(7)).await.expect("noted");
    }
}

/// A session that rests after a checkpoint, and a step more.
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

pub(crate) async fn what_was_not_sent_is_to_be_sent(store: &dyn Store) {
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
    store.add_remote_packs(&session.tenant, &[("p".into(), 3)]).await.expect("noted");
    assert_eq!(store.remote_packs(&session.tenant).await.expect("read"), [("p".to_owned(), 3)].into());
    assert_eq!(store.remote_packs(&tenant("other")).await.expect("read"), [].into());
    store.set_remote("b").await.expect("another");
    assert_eq!(store.remote_packs(&session.tenant).await.expect("read"), [].into());
    assert_eq!(names(&outgoing(store).await), ["helper 1.1", "checkpoint 1"], "there it is all new");
}

pub(crate) async fn an_agent_that_changes_is_sent_again(store: &dyn Store) {
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

fn far_agent(version: u32, changes: u64) -> AgentDefinition {
    AgentDefinition {
        id: uuid::Uuid::from_u128(3),
        tenant: tenant("t"),
        name: agent("helper"),
        version,
        changes,
        tree: format!("tree-{version}"),
        runtime: AgentRuntime::Builtin,
        provider: None,
        image: Some(Image::parse("python:3.13").expect("a name")),
        limits: ResourceLimits::parse("memoryMb=64").ok(),
        needs: SandboxRequirements { startup_seconds: Some(5), ..SandboxRequirements::default() },
        origin: "/agents/helper".into(),
        config: "{}".into(),
        env: None,
        created_at: Timestamp(1),
        updated_at: Timestamp(2),
        deleted_at: None,
    }
}

pub(crate) fn rebuilt(session: &SessionRow, name: &str, events: &[ash_model::Event]) -> RebuiltSession {
    let workspace = WorkspaceId::fresh();
    let line = |event: &ash_model::Event| EventLine {
        seq: event.seq,
        turn: event.turn,
        at: event.at,
        kind: event.fact.kind().to_owned(),
        json: event.fact.encode(),
    };
    let first = events.first().map_or(0, |event| event.seq - 1);
    RebuiltSession {
        purged: None,
        witness: HistorySource::Bucket,
        manifest: SessionManifest {
            owner: session.owner.clone(),
            metadata: session.metadata.clone(),
            tenant: session.tenant.clone(),
            session: id(name),
            workspace,
            slug: None,
            unnamed: false,
            epoch: Epoch(4),
            seq: events.last().map_or(0, |event| event.seq),
            agent: session.agent.clone(),
            version: session.version,
            runtime: session.runtime,
            native_id: session.native_id,
            options: session.options.clone(),
            env: None,
            secrets: None,
            parent: (first > 0).then(|| id("s")),
            base: (first > 0).then_some(first),
            initial_checkpoints: Vec::new(),
            status: SessionStatus::Paused,
            title: None,
            last_text: None,
            turns: 1,
            created_at: Timestamp(1),
            last_active_at: Timestamp(6),
            checkpoint: None,
            log_snapshot: None,
            packed_through: 0,
            events: Vec::new(),
        },
        node: "there".into(),
        summary: crate::fixture::card(SessionStatus::Paused),
        agents: vec![far_agent(2, 5), far_agent(1, 1)],
        events: events.iter().map(line).collect(),
        turns: vec![crate::fixture::turn_row(TurnId::fresh(), 2, TurnState::Done)],
        checkpoints: vec![ash_store::Checkpoint {
            uploaded_at: Some(Timestamp(6)),
            ..checkpoint(workspace, 1, 2)
        }],
        at: Timestamp(9),
    }
}

pub(crate) async fn what_comes_back_is_as_it_was(store: &dyn Store) {
    let session = rested(store).await;
    let log = events(store, session.no).await;
    let mut back = rebuilt(&session, "back", &log);
    back.manifest.owner = Some(crate::fixture::owner("alice"));
    back.manifest.metadata = serde_json::from_str(r#"{"ticket":"42"}"#).expect("metadata");
    assert!(store.rebuild(back.clone()).await.expect("rebuilt"));
    assert!(!store.rebuild(back.clone()).await.expect("known"), "once");
    let found = store
        .find_session(&AccessScope::all(&session.tenant), &id("back"))
        .await
        .expect("read")
        .expect("there");
    assert_eq!((&found.owner, &found.metadata), (&back.manifest.owner, &back.manifest.metadata));
    assert_eq!(events(store, found.no).await, log);
    assert_eq!((found.last_seq, found.remote_checkpoint), (session.last_seq.max(3), Some(1)));
    let hold = store.lease_holder(found.workspace).await.expect("read").expect("held");
    assert_eq!((hold.node.as_str(), hold.epoch), ("there", Epoch(5)), "whoever had it before is stale");
    let turn = store.turn(found.no, back.turns[0].id).await.expect("read");
    assert_eq!(turn, Some(back.turns[0].clone()));
    assert_eq!(store.checkpoints(found.workspace, None, 10).await.expect("read"), back.checkpoints);
    let helper = store.agent(&tenant("t"), &agent("helper")).await.expect("read").expect("there");
    assert_eq!((helper.version, helper.tree.as_str()), (2, "tree-2"), "the newest, whatever came first");
    assert!(store.version(&tenant("t"), &agent("helper"), 1).await.expect("read").is_some());
    let left = names(&outgoing(store).await);
    assert_eq!(left, ["checkpoint 1"], "only what was never there: {left:?}");
}

pub(crate) async fn a_fork_comes_back_after_its_parent(store: &dyn Store) {
    let session = rested(store).await;
    let fork = store.create_session(new_fork("f", &session, 2)).await.expect("forked");
    let shared = events(store, fork.no).await;
    let own: Vec<ash_model::Event> = shared.iter().filter(|event| event.seq > 2).cloned().collect();
    let mut alone = rebuilt(&fork, "back", &own);
    alone.manifest.parent = Some(id("nobody"));
    let refused = store.rebuild(alone).await;
    assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
    assert_eq!(
        store.find_session(&AccessScope::all(&session.tenant), &id("back")).await.expect("read"),
        None,
        "nothing was made"
    );
    assert!(store.rebuild(rebuilt(&fork, "back", &own)).await.expect("rebuilt"));
    let found = store
        .find_session(&AccessScope::all(&session.tenant), &id("back"))
        .await
        .expect("read")
        .expect("there");
    assert_eq!(events(store, found.no).await, shared);
    assert_eq!(store.facts(found.no).await.expect("read"), store.facts(fork.no).await.expect("read"));
}

pub(crate) async fn what_is_to_be_deleted_is_told_until_it_is(store: &dyn Store) {
    store.enqueue_deletes(&["a".into(), "b".into()], Timestamp(1)).await.expect("noted");
    let doomed = store.queued_deletes(10).await.expect("read");
    assert_eq!(doomed.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    store.dequeue_deletes(&[doomed[0].0]).await.expect("noted");
    assert_eq!(store.queued_deletes(10).await.expect("read"), [doomed[1].clone()]);
    store.cancel_deletes(&["b".into(), "c".into()]).await.expect("spared");
    assert_eq!(store.queued_deletes(10).await.expect("read"), []);
    store.add_remote_packs(&tenant("t"), &[("p".into(), 1), ("q".into(), 2)]).await.expect("noted");
    store.forget_remote_packs(&tenant("t"), &["p".into()]).await.expect("forgotten");
    assert_eq!(store.remote_packs(&tenant("t")).await.expect("read"), [("q".to_owned(), 2)].into());
}

pub(crate) async fn a_sealed_environment_travels_sealed(store: &dyn Store) {
    let new = ash_store::NewSessionRow { env: env("K", "secret"), ..crate::fixture::new_session("s") };
    let session = store.create_session(new).await.expect("made");
    let sealed = store.sealed_values(session.no).await.expect("read");
    assert!(sealed.env.is_some_and(|env| !env.contains("secret")) && sealed.secrets.is_none());
}

pub(crate) async fn secrets_are_stored_sealed_and_change(store: &dyn Store) {
    let at = "/mcpServers/s/env/K";
    let new = ash_store::NewSessionRow { secrets: env(at, "hunter2"), ..crate::fixture::new_session("s") };
    let no = store.create_session(new).await.expect("made").no;
    assert_eq!(store.secrets(no).await.expect("read").expose()[at], "hunter2");
    let sealed = store.sealed_values(no).await.expect("read").secrets.expect("there");
    assert!(!sealed.contains("hunter2") && !sealed.contains("mcpServers"), "{sealed}");
    store.set_secrets(no, &env(at, "hunter3")).await.expect("written");
    assert_eq!(store.secrets(no).await.expect("read").expose()[at], "hunter3");
    store.set_secrets(no, &ash_store::SecretEnv::default()).await.expect("written");
    assert_eq!(store.sealed_values(no).await.expect("read").secrets, None);
}
