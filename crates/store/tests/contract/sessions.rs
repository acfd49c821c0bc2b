//! Sessions as rows: creating, finding and listing them, their owners and their secrets.

use crate::{
    fixture::{
        all, append, configure, created, env, events, id, lease, make, metadata, new_fork, new_session, note,
        only, owner, step, summary, tenant,
    },
    workspaces::new_workspace,
};
use ash_model::{
    Epoch, Fact, InterruptedTurnPolicy, Problem, SessionMetadata, SessionOptions, SessionRowId,
    SessionStatus, Slug, Timestamp, WorkspaceId,
};
use ash_store::{
    AccessScope, Error, ForkBase, LeaseHolder, MetadataFilter, NewSessionRow, SecretEnv, SessionFilter,
    SessionListCursor, SessionRow, SessionSummary, Store, WorkspaceSession,
};
use futures::future::join_all;

contract! {
    a_new_session_is_found_as_it_was_made
    a_session_that_was_never_created_is_not_found
    tenants_do_not_see_each_other
    a_taken_id_makes_nothing_at_all
    of_many_sessions_with_one_id_one_is_created
    an_environment_comes_back_only_for_its_session
    options_can_be_changed
    lists_are_newest_first_filtered_and_counted
    pages_of_a_list_leave_nothing_out
    sessions_that_are_active_starting_or_have_open_turns_need_recovery
    a_fork_says_where_it_comes_from
    an_owner_sees_and_finds_only_their_own
    labels_are_replaced_by_the_step_that_says_so
    every_filter_narrows_a_list
    a_new_session_can_begin_with_a_later_epoch
    sealed_values_are_answered_sealed
    secrets_are_stored_sealed_and_change
    sessions_of_a_workspace_are_listed_with_their_status
}

async fn a_new_session_is_found_as_it_was_made(store: &dyn Store) {
    let options = SessionOptions { model: Some("m".into()), ..SessionOptions::default() };
    let summary = SessionSummary {
        status: SessionStatus::Error,
        title: Some("title".into()),
        last_text: Some("last".into()),
        turns: 4,
        open_turns: 2,
        problem: Some(Problem::new("code", "words")),
        checkpoint: Some(3),
        pending: vec![5, 9],
        lock: None,
    };
    let new = NewSessionRow {
        options: options.clone(),
        summary: summary.clone(),
        at: Timestamp(9),
        ..new_session("s")
    };
    let made = store.create_session(new.clone()).await.expect("made");
    let expected = SessionRow {
        no: made.no,
        tenant: new.tenant.clone(),
        owner: None,
        metadata: SessionMetadata::default(),
        id: new.id.clone(),
        workspace: new.workspace,
        agent: new.agent,
        version: 1,
        runtime: new.runtime,
        native_id: new.native_id,
        options,
        parent: None,
        base: None,
        last_seq: 1,
        summary,
        slug: None,
        remote_checkpoint: None,
        remote_seq: 0,
        created_at: Timestamp(9),
        last_active_at: Timestamp(9),
    };
    assert_eq!(made, expected);
    assert_eq!(store.find_session(&all("t"), &new.id).await.expect("read"), Some(made.clone()));
    assert_eq!(store.session(made.no).await.expect("read"), Some(made.clone()));
    let hold = LeaseHolder { node: new.node, epoch: Epoch(1) };
    assert_eq!(store.lease_holder(made.workspace).await.expect("read"), Some(hold));
    assert_eq!(
        store.workspace_sessions(made.workspace).await.expect("read"),
        [WorkspaceSession { no: made.no, status: SessionStatus::Error, purged: false }]
    );
}

async fn a_session_that_was_never_created_is_not_found(store: &dyn Store) {
    assert_eq!(store.find_session(&all("t"), &id("s")).await.expect("read"), None);
    assert_eq!(store.session(SessionRowId(99)).await.expect("read"), None);
    assert_eq!(store.lease_holder(WorkspaceId::fresh()).await.expect("read"), None);
    assert!(events(store, SessionRowId(99)).await.is_empty());
    assert!(store.workspace_sessions(WorkspaceId::fresh()).await.expect("read").is_empty());
}

async fn tenants_do_not_see_each_other(store: &dyn Store) {
    let mine = make(store, "s").await;
    assert_eq!(store.find_session(&all("other"), &id("s")).await.expect("read"), None);
    let theirs = store.create_session(NewSessionRow { tenant: tenant("other"), ..new_session("s") }).await;
    let theirs = theirs.expect("the same id in another tenant is another session");
    assert_ne!(mine.no, theirs.no);
    assert_eq!(listed(store, &all("t"), &SessionFilter::default()).await, (vec![mine.no], 1));
    assert_eq!(listed(store, &all("other"), &SessionFilter::default()).await, (vec![theirs.no], 1));
    assert_eq!(store.find_session(&all("other"), &id("s")).await.expect("read"), Some(theirs));
}

async fn a_taken_id_makes_nothing_at_all(store: &dyn Store) {
    let first = make(store, "s").await;
    let again = NewSessionRow { at: Timestamp(50), ..new_session("s") };
    let refused = store.create_session(again.clone()).await;
    assert!(matches!(refused, Err(Error::Taken(_))), "{refused:?}");
    assert_eq!(
        store.lease_holder(again.workspace).await.expect("read"),
        None,
        "a workspace without a session"
    );
    assert_eq!(store.find_session(&all("t"), &id("s")).await.expect("read"), Some(first));
    assert_eq!(listed(store, &all("t"), &SessionFilter::default()).await.1, 1);
}

async fn of_many_sessions_with_one_id_one_is_created(store: &dyn Store) {
    let wanted: Vec<NewSessionRow> = (0..20).map(|_| new_session("s")).collect();
    let answers = join_all(wanted.iter().map(|new| store.create_session(new.clone()))).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    for (new, answer) in wanted.iter().zip(&answers) {
        let there = store.lease_holder(new.workspace).await.expect("read").is_some();
        assert_eq!(there, answer.is_ok(), "{answer:?}");
    }
}

async fn an_environment_comes_back_only_for_its_session(store: &dyn Store) {
    let with = NewSessionRow { env: env("TOKEN", "hunter2"), ..new_session("a") };
    let with = store.create_session(with).await.expect("made");
    let without = make(store, "b").await;
    assert_eq!(store.env(with.no).await.expect("unsealed").expose(), env("TOKEN", "hunter2").expose());
    assert!(store.env(without.no).await.expect("none").expose().is_empty());
}

async fn options_can_be_changed(store: &dyn Store) {
    let (one, other) = (make(store, "a").await, make(store, "b").await);
    let options =
        SessionOptions { on_interrupted: Some(InterruptedTurnPolicy::Ask), ..SessionOptions::default() };
    configure(store, &one, &options).await;
    let changed = store.session(one.no).await.expect("read").expect("there");
    assert_eq!((changed.options, changed.last_seq), (options, one.last_seq + 1));
    assert_eq!(store.session(other.no).await.expect("read"), Some(other));
}

async fn lists_are_newest_first_filtered_and_counted(store: &dyn Store) {
    let mut made = Vec::new();
    for (name, at, agent, status) in [
        ("a", 1, "helper", SessionStatus::Active),
        ("b", 2, "writer", SessionStatus::Active),
        ("c", 2, "helper", SessionStatus::Paused),
        ("d", 3, "helper", SessionStatus::Active),
    ] {
        let new = NewSessionRow {
            agent: crate::fixture::agent(agent),
            summary: summary(status),
            at: Timestamp(at),
            ..new_session(name)
        };
        made.push(store.create_session(new).await.expect("made").no);
    }
    let [a, b, c, d] = made[..] else { panic!("four sessions") };
    let mine = all("t");
    let all = SessionFilter::default();
    assert_eq!(listed(store, &mine, &all).await, (vec![d, c, b, a], 4));
    let helper = SessionFilter { agent: Some(crate::fixture::agent("helper")), ..all.clone() };
    assert_eq!(listed(store, &mine, &helper).await, (vec![d, c, a], 3));
    let active = SessionFilter { status: Some(SessionStatus::Active), ..all.clone() };
    assert_eq!(listed(store, &mine, &active).await, (vec![d, b, a], 3));
    let both = SessionFilter { status: Some(SessionStatus::Active), ..helper };
    assert_eq!(listed(store, &mine, &both).await, (vec![d, a], 2));
    assert_eq!(store.count_active(&tenant("t")).await.expect("counted"), 3);
    assert_eq!(store.count_active(&tenant("other")).await.expect("counted"), 0);
}

async fn pages_of_a_list_leave_nothing_out(store: &dyn Store) {
    let mut newest_first = Vec::new();
    for n in 0..7 {
        // Several sessions of one millisecond: only the row number orders them.
        let new = NewSessionRow { at: Timestamp(n / 3), ..new_session(&format!("s{n}")) };
        newest_first.insert(0, store.create_session(new).await.expect("made").no);
    }
    let mine = all("t");
    for size in 1..=8u32 {
        let by_offset = (0..8).step_by(size as usize).map(|offset| SessionFilter {
            limit: Some(size),
            offset,
            ..SessionFilter::default()
        });
        let mut seen = Vec::new();
        for page in by_offset {
            let (nos, total) = listed(store, &mine, &page).await;
            assert_eq!(total, 7);
            seen.extend(nos);
        }
        assert_eq!(seen, newest_first, "by offset, {size} at a time");
        assert_eq!(by_cursor(store, size).await, newest_first, "by cursor, {size} at a time");
    }
    let beyond = SessionFilter { limit: Some(5), offset: 100, ..SessionFilter::default() };
    assert_eq!(listed(store, &mine, &beyond).await, (vec![], 7));
    let none = SessionFilter { limit: Some(0), ..SessionFilter::default() };
    assert_eq!(listed(store, &mine, &none).await, (vec![], 7));
}

async fn by_cursor(store: &dyn Store, size: u32) -> Vec<SessionRowId> {
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = SessionFilter { limit: Some(size), before, ..SessionFilter::default() };
        let page = store.sessions(&all("t"), &page).await.expect("listed");
        let Some(last) = page.sessions.last() else { return seen };
        before = Some(SessionListCursor { created_at: last.created_at, no: last.no });
        seen.extend(page.sessions.iter().map(|session| session.no));
    }
}

async fn sessions_that_are_active_starting_or_have_open_turns_need_recovery(store: &dyn Store) {
    let mut expected = Vec::new();
    for status in SessionStatus::ALL {
        for open_turns in [0, 1] {
            let session = make(store, &format!("{status}-{open_turns}")).await;
            let mut now = step(session.no, 2, [Fact::Paused]);
            now.summary = SessionSummary { open_turns, ..summary(status) };
            append(store, &session, now).await;
            let needs_recovery = match status {
                SessionStatus::Starting | SessionStatus::Active => true,
                SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Error => open_turns > 0,
                SessionStatus::Ended => false,
            };
            expected.extend(needs_recovery.then_some(session.no));
        }
    }
    assert_eq!(store.needs_recovery().await.expect("read"), expected);
}

async fn a_fork_says_where_it_comes_from(store: &dyn Store) {
    let parent = make(store, "parent").await;
    append(store, &parent, step(parent.no, 2, [Fact::Paused, Fact::Resuming])).await;
    let first = crate::fixture::checkpoint(WorkspaceId::fresh(), 1, 2);
    let fork = NewSessionRow {
        workspace: first.workspace,
        first_checkpoints: vec![first.clone()],
        ..new_fork("fork", &parent, 2)
    };
    let fork = store.create_session(fork).await.expect("made");
    assert_eq!((fork.parent, fork.base), (Some(parent.id), Some(ForkBase { parent: parent.no, seq: 2 })));
    assert_eq!(fork.last_seq, 3, "its own first event comes right after the shared ones");
    assert_eq!(store.checkpoint(first.workspace, 1).await.expect("read"), Some(first));
}

async fn listed(store: &dyn Store, scope: &AccessScope, filter: &SessionFilter) -> (Vec<SessionRowId>, u64) {
    let page = store.sessions(scope, filter).await.expect("listed");
    (page.sessions.iter().map(|session| session.no).collect(), page.total)
}

async fn make_for(store: &dyn Store, name: &str, whose: Option<&str>) -> SessionRow {
    let new = NewSessionRow { owner: whose.map(owner), ..new_session(name) };
    store.create_session(new).await.expect("made")
}

async fn an_owner_sees_and_finds_only_their_own(store: &dyn Store) {
    let hers = make_for(store, "hers", Some("alice")).await;
    make_for(store, "his", Some("bob")).await;
    make_for(store, "unowned", None).await;
    assert_eq!(hers.owner, Some(owner("alice")));
    assert_eq!(listed_ids(store, &only("alice"), &SessionFilter::default()).await, ["hers"]);
    assert_eq!(listed_ids(store, &all("t"), &SessionFilter::default()).await, ["hers", "his", "unowned"]);
    assert_eq!(store.find_session(&only("alice"), &id("hers")).await.expect("read"), Some(hers));
    for other in ["his", "unowned"] {
        assert_eq!(store.find_session(&only("alice"), &id(other)).await.expect("read"), None, "{other}");
        assert!(store.find_session(&all("t"), &id(other)).await.expect("read").is_some(), "{other}");
    }
    // The same name in another tenant is another owner.
    let elsewhere = AccessScope { tenant: tenant("other"), ..only("alice") };
    assert_eq!(store.find_session(&elsewhere, &id("hers")).await.expect("read"), None);
    assert!(listed_ids(store, &elsewhere, &SessionFilter::default()).await.is_empty());
    // A filter by another owner does not widen the scope.
    let asked = SessionFilter { owner: Some(owner("bob")), ..SessionFilter::default() };
    assert!(listed_ids(store, &only("alice"), &asked).await.is_empty());
    assert_eq!(listed_ids(store, &all("t"), &asked).await, ["his"]);
}

async fn labels_are_replaced_by_the_step_that_says_so(store: &dyn Store) {
    let first = metadata(&[("ticket", "42"), ("team", "blue")]);
    let session = store
        .create_session(NewSessionRow { metadata: first.clone(), ..new_session("s") })
        .await
        .expect("made");
    assert_eq!(session.metadata, first);
    let then = metadata(&[("ticket", "43")]);
    append(store, &session, step(session.no, 2, [Fact::Labelled { metadata: then.clone() }])).await;
    let noted = || async { store.session(session.no).await.expect("read").expect("there").metadata };
    assert_eq!(noted().await, then);
    let stale = ash_store::Lease { epoch: ash_model::Epoch(9), ..lease(&session) };
    let refused = store.append(&stale, step(session.no, 3, [Fact::Labelled { metadata: first }])).await;
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    assert_eq!(noted().await, then);
    append(store, &session, step(session.no, 3, [Fact::Labelled { metadata: SessionMetadata::default() }]))
        .await;
    assert!(noted().await.is_empty());
}

async fn listed_ids(store: &dyn Store, scope: &AccessScope, filter: &SessionFilter) -> Vec<String> {
    let page = store.sessions(scope, filter).await.expect("listed");
    assert_eq!(page.total as usize, page.sessions.len());
    let mut ids: Vec<String> = page.sessions.iter().map(|session| session.id.to_string()).collect();
    ids.sort();
    ids
}

async fn every_filter_narrows_a_list(store: &dyn Store) {
    for (name, at, whose, noted) in [
        ("user-1-a", 10, "alice", metadata(&[("ticket", "42"), ("team", "blue")])),
        ("user-1-b", 20, "alice", metadata(&[("ticket", "42")])),
        ("user-10", 30, "bob", metadata(&[("team", "42")])),
        ("user_1", 40, "bob", SessionMetadata::default()),
    ] {
        let new = NewSessionRow {
            owner: Some(owner(whose)),
            metadata: noted,
            at: Timestamp(at),
            summary: summary(if at < 25 { SessionStatus::Paused } else { SessionStatus::Active }),
            events: vec![note(created())],
            ..new_session(name)
        };
        store.create_session(new).await.expect("made");
    }
    let any = SessionFilter::default;
    let pair = |&(name, value): &(&str, &str)| MetadataFilter { name: name.into(), value: value.into() };
    let pairs = |given: &[(&str, &str)]| given.iter().map(pair).collect();
    let cases: [(SessionFilter, &[&str]); 9] = [
        (SessionFilter { id_prefix: Some("user-1".into()), ..any() }, &["user-1-a", "user-1-b", "user-10"]),
        (SessionFilter { id_prefix: Some("user-1-".into()), ..any() }, &["user-1-a", "user-1-b"]),
        (SessionFilter { id_prefix: Some("%".into()), ..any() }, &[]),
        (SessionFilter { metadata: pairs(&[("ticket", "42")]), ..any() }, &["user-1-a", "user-1-b"]),
        (SessionFilter { metadata: pairs(&[("ticket", "42"), ("team", "blue")]), ..any() }, &["user-1-a"]),
        (SessionFilter { metadata: pairs(&[("x\"' OR 1", "42")]), ..any() }, &[]),
        (SessionFilter { older: Some(Timestamp(20)), ..any() }, &["user-1-a"]),
        (SessionFilter { newer: Some(Timestamp(30)), ..any() }, &["user-10", "user_1"]),
        (SessionFilter { owner: Some(owner("alice")), status: Some(SessionStatus::Active), ..any() }, &[]),
    ];
    for (filter, expected) in cases {
        assert_eq!(listed_ids(store, &all("t"), &filter).await, expected, "{filter:?}");
    }
    let slug = Slug::parse("project").expect("a name");
    let workspace = store.make_workspace(new_workspace("project", Some("alice"))).await.expect("made");
    let (id, whose) = (workspace.id, workspace.owner);
    let shared =
        NewSessionRow { workspace: id, slug: Some(slug.clone()), owner: whose, ..new_session("shared") };
    store.create_session(shared).await.expect("made");
    assert_eq!(
        listed_ids(store, &all("t"), &SessionFilter { workspace: Some(slug), ..any() }).await,
        ["shared"]
    );
}

async fn a_new_session_can_begin_with_a_later_epoch(store: &dyn Store) {
    let again =
        store.create_session(NewSessionRow { epoch: Epoch(5), ..new_session("s") }).await.expect("made");
    let hold = store.lease_holder(again.workspace).await.expect("read").expect("held");
    assert_eq!(hold.epoch, Epoch(5));
}

async fn sealed_values_are_answered_sealed(store: &dyn Store) {
    let new = NewSessionRow { env: env("K", "secret"), ..new_session("s") };
    let session = store.create_session(new).await.expect("made");
    let sealed = store.sealed_values(session.no).await.expect("read");
    assert!(sealed.env.is_some_and(|env| !env.contains("secret")) && sealed.secrets.is_none());
}

async fn secrets_are_stored_sealed_and_change(store: &dyn Store) {
    let at = "/mcpServers/s/env/K";
    let new = NewSessionRow { secrets: env(at, "hunter2"), ..new_session("s") };
    let no = store.create_session(new).await.expect("made").no;
    assert_eq!(store.secrets(no).await.expect("read").expose()[at], "hunter2");
    let sealed = store.sealed_values(no).await.expect("read").secrets.expect("there");
    assert!(!sealed.contains("hunter2") && !sealed.contains("mcpServers"), "{sealed}");
    store.set_secrets(no, &env(at, "hunter3")).await.expect("written");
    assert_eq!(store.secrets(no).await.expect("read").expose()[at], "hunter3");
    store.set_secrets(no, &SecretEnv::default()).await.expect("written");
    assert_eq!(store.sealed_values(no).await.expect("read").secrets, None);
}

async fn sessions_of_a_workspace_are_listed_with_their_status(store: &dyn Store) {
    let workspace = store.make_workspace(new_workspace("project", None)).await.expect("made");
    let shared = |name: &str, status| NewSessionRow {
        workspace: workspace.id,
        slug: Some(workspace.slug.clone()),
        summary: summary(status),
        ..new_session(name)
    };
    let first = store.create_session(shared("a", SessionStatus::Paused)).await.expect("made").no;
    let second = store.create_session(shared("b", SessionStatus::Ended)).await.expect("made").no;
    make(store, "elsewhere").await;
    let expected = [
        WorkspaceSession { no: first, status: SessionStatus::Paused, purged: false },
        WorkspaceSession { no: second, status: SessionStatus::Ended, purged: false },
    ];
    assert_eq!(store.workspace_sessions(workspace.id).await.expect("read"), expected);
}
