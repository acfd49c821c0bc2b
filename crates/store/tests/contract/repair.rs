//! Comparison with witnesses, and sessions that are restored from them.

use crate::{
    fixture::{
        agent, all, append, checkpoint, events, id, lease, new_fork, new_session, owner, step, summary,
        tenant, turn_row,
    },
    replication::{names, outgoing, rested},
    trash::purge,
};
use ash_model::{
    AgentRuntime, Epoch, Event, EventSeq, Fact, HistorySource, Image, ResourceLimits, SandboxRequirements,
    SessionStatus, Timestamp, TurnId, WorkspaceId,
    embedded_log::EventLine,
    remote::{AgentDefinition, SessionManifest},
};
use ash_store::{
    AccessScope, DivergedFork, Error, ForkBase, HistoryAdoption, NewSessionRow, RebuiltSession,
    SessionLogEnd, SessionRow, Store, TurnState,
};

contract! {
    a_restored_session_is_as_it_was
    a_fork_comes_back_after_its_parent
    a_longer_history_goes_on_where_the_database_stopped
    a_diverged_history_becomes_a_fork
    a_log_that_grew_since_it_was_compared_is_left_alone
    log_positions_include_the_trash
    agents_come_back_as_they_were
}

fn remote_agent(version: u32, changes: u64) -> AgentDefinition {
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
        summary: summary(SessionStatus::Paused),
        agents: vec![remote_agent(2, 5), remote_agent(1, 1)],
        events: events.iter().map(line).collect(),
        turns: vec![turn_row(TurnId::fresh(), 2, TurnState::Done)],
        checkpoints: vec![ash_store::Checkpoint {
            uploaded_at: Some(Timestamp(6)),
            ..checkpoint(workspace, 1, 2)
        }],
        at: Timestamp(9),
    }
}

async fn a_restored_session_is_as_it_was(store: &dyn Store) {
    let session = rested(store).await;
    let log = events(store, session.no).await;
    let mut back = rebuilt(&session, "back", &log);
    back.manifest.owner = Some(owner("alice"));
    back.manifest.metadata = serde_json::from_str(r#"{"ticket":"42"}"#).expect("metadata");
    assert!(store.rebuild(vec![back.clone()]).await.expect("rebuilt"));
    assert!(!store.rebuild(vec![back.clone()]).await.expect("known"), "once");
    let found = store
        .find_session(&AccessScope::all(&session.tenant), &id("back"))
        .await
        .expect("read")
        .expect("there");
    assert_eq!((&found.owner, &found.metadata), (&back.manifest.owner, &back.manifest.metadata));
    assert_eq!(events(store, found.no).await, log);
    assert_eq!((found.last_seq, found.remote_checkpoint), (session.last_seq.max(3), Some(1)));
    let hold = store.lease_holder(found.workspace).await.expect("read").expect("held");
    assert_eq!((hold.node.as_str(), hold.epoch), ("there", Epoch(5)), "the former holder is stale");
    let turn = store.turn(found.no, back.turns[0].id).await.expect("read");
    assert_eq!(turn, Some(back.turns[0].clone()));
    assert_eq!(store.checkpoints(found.workspace, None, 10).await.expect("read"), back.checkpoints);
    let helper = store.agent(&tenant("t"), &agent("helper")).await.expect("read").expect("there");
    assert_eq!((helper.version, helper.tree.as_str()), (2, "tree-2"), "the newest, whatever came first");
    assert!(store.version(&tenant("t"), &agent("helper"), 1).await.expect("read").is_some());
    let left = names(&outgoing(store).await);
    assert_eq!(left, ["checkpoint 1"], "only what was never there: {left:?}");
}

async fn a_fork_comes_back_after_its_parent(store: &dyn Store) {
    let session = rested(store).await;
    let fork = store.create_session(new_fork("f", &session, 2)).await.expect("forked");
    let shared = events(store, fork.no).await;
    let own: Vec<ash_model::Event> = shared.iter().filter(|event| event.seq > 2).cloned().collect();
    let mut alone = rebuilt(&fork, "back", &own);
    alone.manifest.parent = Some(id("missing"));
    let refused = store.rebuild(vec![alone]).await;
    assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
    assert_eq!(
        store.find_session(&AccessScope::all(&session.tenant), &id("back")).await.expect("read"),
        None,
        "nothing was made"
    );
    assert!(store.rebuild(vec![rebuilt(&fork, "back", &own)]).await.expect("rebuilt"));
    let found = store
        .find_session(&AccessScope::all(&session.tenant), &id("back"))
        .await
        .expect("read")
        .expect("there");
    assert_eq!(events(store, found.no).await, shared);
    assert_eq!(store.facts(found.no).await.expect("read"), store.facts(fork.no).await.expect("read"));
}

/// The log of a session as a witness has it, with other events after the `common` first ones.
fn history(known: &[Event], common: EventSeq, facts: &[Fact]) -> Vec<Event> {
    let shared = known.iter().filter(|event| event.seq <= common).cloned();
    let own = (common + 1..).zip(facts);
    let own = own.map(|(seq, fact)| Event { seq, turn: None, at: Timestamp(5), fact: fact.clone() });
    shared.chain(own).collect()
}

/// What a witness has of this session, in the session's own workspace.
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

async fn a_longer_history_goes_on_where_the_database_stopped(store: &dyn Store) {
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
    assert_eq!((hold.node.as_str(), hold.epoch), ("there", Epoch(4)), "the next claim is ahead of all");
    let stale = store.append(&lease(&session), step(session.no, 7, [Fact::Paused])).await;
    assert!(matches!(stale, Err(Error::Stale)), "{stale:?}");
}

async fn a_diverged_history_becomes_a_fork(store: &dyn Store) {
    let session = rested(store).await;
    let turn = TurnId::fresh();
    let mut own = step(session.no, 4, [Fact::Paused]);
    own.turns = vec![turn_row(turn, 4, TurnState::Done)];
    own.checkpoint = Some(checkpoint(session.workspace, 2, 4));
    own.summary = ash_store::SessionSummary { checkpoint: Some(2), ..summary(SessionStatus::Active) };
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
        (Some(id("s")), Some(ForkBase { parent: session.no, seq: 2 }), workspace)
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
    assert_eq!(child_log[..4], local[..], "a fork still shares the history that it shared before");
}

async fn a_log_that_grew_since_it_was_compared_is_left_alone(store: &dyn Store) {
    let session = rested(store).await;
    let before = events(store, session.no).await;
    let rebuilt = witnessed(&session, &history(&before, 2, &[Fact::Stopped]));
    let adoption = HistoryAdoption { session: session.no, last_seq: 2, common: 2, diverged: None, rebuilt };
    let refused = store.adopt(adoption).await;
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    assert_eq!(events(store, session.no).await, before);
}

async fn log_positions_include_the_trash(store: &dyn Store) {
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

async fn agents_come_back_as_they_were(store: &dyn Store) {
    let (newest, first) = (remote_agent(2, 5), remote_agent(1, 1));
    store.add_agents(vec![newest.clone(), first.clone()], Timestamp(9)).await.expect("added");
    let definition =
        async |version| store.agent_definition(&tenant("t"), &agent("helper"), version).await.expect("read");
    assert_eq!(definition(2).await, Some(newest.clone()));
    // The settings are the agent's, so an older version has the newest ones.
    let changes = newest.changes;
    assert_eq!(definition(1).await, Some(AgentDefinition { changes, ..first }));
    assert_eq!(definition(3).await, None);
    assert_eq!(outgoing(store).await, [], "the object store has them");
}
