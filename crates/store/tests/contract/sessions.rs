//! Sessions as rows: making, finding, listing, and whose they are.

use crate::fixture::{
    all, append, card, configure, env, events, id, make, new_fork, new_session, step, tenant,
};
use ash_model::{
    Epoch, Fact, InterruptedTurnPolicy, Problem, SessionMetadata, SessionOptions, SessionRowId,
    SessionStatus, Timestamp, WorkspaceId,
};
use ash_store::{
    AccessScope, Error, LeaseHolder, NewSessionRow, SessionFilter, SessionRow, SessionSummary, Store,
};
use futures::future::join_all;

pub(crate) async fn a_new_session_is_found_as_it_was_made(store: &dyn Store) {
    let options = SessionOptions { model: Some("m".into()), ..SessionOptions::default() };
    let card = SessionSummary {
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
        summary: card.clone(),
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
        summary: card,
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
        vec![(made.no, SessionStatus::Error)]
    );
}

pub(crate) async fn what_was_never_made_is_not_found(store: &dyn Store) {
    assert_eq!(store.find_session(&all("t"), &id("s")).await.expect("read"), None);
    assert_eq!(store.session(SessionRowId(99)).await.expect("read"), None);
    assert_eq!(store.lease_holder(WorkspaceId::fresh()).await.expect("read"), None);
    assert!(events(store, SessionRowId(99)).await.is_empty());
    assert!(store.workspace_sessions(WorkspaceId::fresh()).await.expect("read").is_empty());
}

pub(crate) async fn tenants_do_not_see_each_other(store: &dyn Store) {
    let mine = make(store, "s").await;
    assert_eq!(store.find_session(&all("other"), &id("s")).await.expect("read"), None);
    let theirs = store.create_session(NewSessionRow { tenant: tenant("other"), ..new_session("s") }).await;
    let theirs = theirs.expect("the same id in another tenant is another session");
    assert_ne!(mine.no, theirs.no);
    assert_eq!(listed(store, &all("t"), &SessionFilter::default()).await, (vec![mine.no], 1));
    assert_eq!(listed(store, &all("other"), &SessionFilter::default()).await, (vec![theirs.no], 1));
    assert_eq!(store.find_session(&all("other"), &id("s")).await.expect("read"), Some(theirs));
}

pub(crate) async fn a_taken_id_makes_nothing_at_all(store: &dyn Store) {
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

pub(crate) async fn of_many_who_want_one_id_one_gets_it(store: &dyn Store) {
    let wanted: Vec<NewSessionRow> = (0..20).map(|_| new_session("s")).collect();
    let answers = join_all(wanted.iter().map(|new| store.create_session(new.clone()))).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    for (new, answer) in wanted.iter().zip(&answers) {
        let there = store.lease_holder(new.workspace).await.expect("read").is_some();
        assert_eq!(there, answer.is_ok(), "{answer:?}");
    }
}

pub(crate) async fn an_environment_comes_back_only_for_its_session(store: &dyn Store) {
    let with = NewSessionRow { env: env("TOKEN", "hunter2"), ..new_session("a") };
    let with = store.create_session(with).await.expect("made");
    let without = make(store, "b").await;
    assert_eq!(store.env(with.no).await.expect("unsealed").expose(), env("TOKEN", "hunter2").expose());
    assert!(store.env(without.no).await.expect("none").expose().is_empty());
}

pub(crate) async fn options_can_be_changed(store: &dyn Store) {
    let (one, other) = (make(store, "a").await, make(store, "b").await);
    let options =
        SessionOptions { on_interrupted: Some(InterruptedTurnPolicy::Ask), ..SessionOptions::default() };
    configure(store, &one, &options).await;
    let changed = store.session(one.no).await.expect("read").expect("there");
    assert_eq!((changed.options, changed.last_seq), (options, one.last_seq + 1));
    assert_eq!(store.session(other.no).await.expect("read"), Some(other));
}

pub(crate) async fn lists_are_newest_first_filtered_and_counted(store: &dyn Store) {
    let mut made = Vec::new();
    for (name, at, agent, status) in [
        ("a", 1, "helper", SessionStatus::Active),
        ("b", 2, "writer", SessionStatus::Active),
        ("c", 2, "helper", SessionStatus::Paused),
        ("d", 3, "helper", SessionStatus::Active),
    ] {
        let new = NewSessionRow {
            agent: crate::fixture::agent(agent),
            summary: card(status),
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

pub(crate) async fn pages_of_a_list_leave_nothing_out(store: &dyn Store) {
    let mut newest_first = Vec::new();
    for n in 0..7 {
        // Several of one millisecond: only the number tells them apart.
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
        before = Some((last.created_at, last.no));
        seen.extend(page.sessions.iter().map(|session| session.no));
    }
}

pub(crate) async fn the_restless_are_awake_starting_or_have_open_turns(store: &dyn Store) {
    let mut expected = Vec::new();
    for status in SessionStatus::ALL {
        for open_turns in [0, 1] {
            let session = make(store, &format!("{status}-{open_turns}")).await;
            let mut now = step(session.no, 2, [Fact::Paused]);
            now.summary = SessionSummary { open_turns, ..card(status) };
            append(store, &session, now).await;
            let restless = match status {
                SessionStatus::Starting | SessionStatus::Active => true,
                SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Error => open_turns > 0,
                SessionStatus::Ended => false,
            };
            expected.extend(restless.then_some(session.no));
        }
    }
    assert_eq!(store.needs_recovery().await.expect("read"), expected);
}

pub(crate) async fn a_fork_says_where_it_comes_from(store: &dyn Store) {
    let parent = make(store, "parent").await;
    append(store, &parent, step(parent.no, 2, [Fact::Paused, Fact::Resuming])).await;
    let first = crate::fixture::checkpoint(WorkspaceId::fresh(), 1, 2);
    let fork = NewSessionRow {
        workspace: first.workspace,
        first_checkpoints: vec![first.clone()],
        ..new_fork("fork", &parent, 2)
    };
    let fork = store.create_session(fork).await.expect("made");
    assert_eq!((fork.parent, fork.base), (Some(parent.id), Some((parent.no, 2))));
    assert_eq!(fork.last_seq, 3, "its own first event comes right after the shared ones");
    assert_eq!(store.checkpoint(first.workspace, 1).await.expect("read"), Some(first));
}

async fn listed(store: &dyn Store, scope: &AccessScope, filter: &SessionFilter) -> (Vec<SessionRowId>, u64) {
    let page = store.sessions(scope, filter).await.expect("listed");
    (page.sessions.iter().map(|session| session.no).collect(), page.total)
}
