//! Sessions as rows: making, finding, listing, and whose they are.

use crate::fixture::{
    all, append, card, configure, env, events, id, make, new_fork, new_session, step, tenant,
};
use ash_model::{
    Epoch, Fact, Metadata, OnInterrupted, Options, Problem, SessionNo, Status, Timestamp, WorkspaceId,
};
use ash_store::{Card, Error, Filter, Hold, NewSession, Scope, Session, Store};
use futures::future::join_all;

pub(crate) async fn a_new_session_is_found_as_it_was_made(store: &dyn Store) {
    let options = Options { model: Some("m".into()), ..Options::default() };
    let card = Card {
        status: Status::Error,
        title: Some("title".into()),
        last_text: Some("last".into()),
        turns: 4,
        open_turns: 2,
        problem: Some(Problem::new("code", "words")),
        checkpoint: Some(3),
        pending: vec![5, 9],
        lock: None,
    };
    let new =
        NewSession { options: options.clone(), card: card.clone(), at: Timestamp(9), ..new_session("s") };
    let made = store.create(new.clone()).await.expect("made");
    let expected = Session {
        no: made.no,
        tenant: new.tenant.clone(),
        owner: None,
        metadata: Metadata::default(),
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
        card,
        slug: None,
        far_checkpoint: None,
        far_seq: 0,
        created_at: Timestamp(9),
        last_active_at: Timestamp(9),
    };
    assert_eq!(made, expected);
    assert_eq!(store.find(&all("t"), &new.id).await.expect("read"), Some(made.clone()));
    assert_eq!(store.session(made.no).await.expect("read"), Some(made.clone()));
    let hold = Hold { node: new.node, epoch: Epoch(1) };
    assert_eq!(store.hold(made.workspace).await.expect("read"), Some(hold));
    assert_eq!(store.sessions_of(made.workspace).await.expect("read"), vec![(made.no, Status::Error)]);
}

pub(crate) async fn what_was_never_made_is_not_found(store: &dyn Store) {
    assert_eq!(store.find(&all("t"), &id("s")).await.expect("read"), None);
    assert_eq!(store.session(SessionNo(99)).await.expect("read"), None);
    assert_eq!(store.hold(WorkspaceId::fresh()).await.expect("read"), None);
    assert!(events(store, SessionNo(99)).await.is_empty());
    assert!(store.sessions_of(WorkspaceId::fresh()).await.expect("read").is_empty());
}

pub(crate) async fn tenants_do_not_see_each_other(store: &dyn Store) {
    let mine = make(store, "s").await;
    assert_eq!(store.find(&all("other"), &id("s")).await.expect("read"), None);
    let theirs = store.create(NewSession { tenant: tenant("other"), ..new_session("s") }).await;
    let theirs = theirs.expect("the same id in another tenant is another session");
    assert_ne!(mine.no, theirs.no);
    assert_eq!(listed(store, &all("t"), &Filter::default()).await, (vec![mine.no], 1));
    assert_eq!(listed(store, &all("other"), &Filter::default()).await, (vec![theirs.no], 1));
    assert_eq!(store.find(&all("other"), &id("s")).await.expect("read"), Some(theirs));
}

pub(crate) async fn a_taken_id_makes_nothing_at_all(store: &dyn Store) {
    let first = make(store, "s").await;
    let again = NewSession { at: Timestamp(50), ..new_session("s") };
    let refused = store.create(again.clone()).await;
    assert!(matches!(refused, Err(Error::Taken(_))), "{refused:?}");
    assert_eq!(store.hold(again.workspace).await.expect("read"), None, "a workspace without a session");
    assert_eq!(store.find(&all("t"), &id("s")).await.expect("read"), Some(first));
    assert_eq!(listed(store, &all("t"), &Filter::default()).await.1, 1);
}

pub(crate) async fn of_many_who_want_one_id_one_gets_it(store: &dyn Store) {
    let wanted: Vec<NewSession> = (0..20).map(|_| new_session("s")).collect();
    let answers = join_all(wanted.iter().map(|new| store.create(new.clone()))).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    for (new, answer) in wanted.iter().zip(&answers) {
        let there = store.hold(new.workspace).await.expect("read").is_some();
        assert_eq!(there, answer.is_ok(), "{answer:?}");
    }
}

pub(crate) async fn an_environment_comes_back_only_for_its_session(store: &dyn Store) {
    let with = NewSession { env: env("TOKEN", "hunter2"), ..new_session("a") };
    let with = store.create(with).await.expect("made");
    let without = make(store, "b").await;
    assert_eq!(store.env(with.no).await.expect("unsealed").expose(), env("TOKEN", "hunter2").expose());
    assert!(store.env(without.no).await.expect("none").expose().is_empty());
}

pub(crate) async fn options_can_be_changed(store: &dyn Store) {
    let (one, other) = (make(store, "a").await, make(store, "b").await);
    let options = Options { on_interrupted: Some(OnInterrupted::Ask), ..Options::default() };
    configure(store, &one, &options).await;
    let changed = store.session(one.no).await.expect("read").expect("there");
    assert_eq!((changed.options, changed.last_seq), (options, one.last_seq + 1));
    assert_eq!(store.session(other.no).await.expect("read"), Some(other));
}

pub(crate) async fn lists_are_newest_first_filtered_and_counted(store: &dyn Store) {
    let mut made = Vec::new();
    for (name, at, agent, status) in [
        ("a", 1, "helper", Status::Active),
        ("b", 2, "writer", Status::Active),
        ("c", 2, "helper", Status::Paused),
        ("d", 3, "helper", Status::Active),
    ] {
        let new = NewSession {
            agent: crate::fixture::agent(agent),
            card: card(status),
            at: Timestamp(at),
            ..new_session(name)
        };
        made.push(store.create(new).await.expect("made").no);
    }
    let [a, b, c, d] = made[..] else { panic!("four sessions") };
    let mine = all("t");
    let all = Filter::default();
    assert_eq!(listed(store, &mine, &all).await, (vec![d, c, b, a], 4));
    let helper = Filter { agent: Some(crate::fixture::agent("helper")), ..all.clone() };
    assert_eq!(listed(store, &mine, &helper).await, (vec![d, c, a], 3));
    let active = Filter { status: Some(Status::Active), ..all.clone() };
    assert_eq!(listed(store, &mine, &active).await, (vec![d, b, a], 3));
    let both = Filter { status: Some(Status::Active), ..helper };
    assert_eq!(listed(store, &mine, &both).await, (vec![d, a], 2));
    assert_eq!(store.count_active(&tenant("t")).await.expect("counted"), 3);
    assert_eq!(store.count_active(&tenant("other")).await.expect("counted"), 0);
}

pub(crate) async fn pages_of_a_list_leave_nothing_out(store: &dyn Store) {
    let mut newest_first = Vec::new();
    for n in 0..7 {
        // Several of one millisecond: only the number tells them apart.
        let new = NewSession { at: Timestamp(n / 3), ..new_session(&format!("s{n}")) };
        newest_first.insert(0, store.create(new).await.expect("made").no);
    }
    let mine = all("t");
    for size in 1..=8u32 {
        let by_offset = (0..8).step_by(size as usize).map(|offset| Filter {
            limit: Some(size),
            offset,
            ..Filter::default()
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
    let beyond = Filter { limit: Some(5), offset: 100, ..Filter::default() };
    assert_eq!(listed(store, &mine, &beyond).await, (vec![], 7));
    let none = Filter { limit: Some(0), ..Filter::default() };
    assert_eq!(listed(store, &mine, &none).await, (vec![], 7));
}

async fn by_cursor(store: &dyn Store, size: u32) -> Vec<SessionNo> {
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = Filter { limit: Some(size), before, ..Filter::default() };
        let page = store.sessions(&all("t"), &page).await.expect("listed");
        let Some(last) = page.sessions.last() else { return seen };
        before = Some((last.created_at, last.no));
        seen.extend(page.sessions.iter().map(|session| session.no));
    }
}

pub(crate) async fn the_restless_are_awake_starting_or_have_open_turns(store: &dyn Store) {
    let mut expected = Vec::new();
    for status in Status::ALL {
        for open_turns in [0, 1] {
            let session = make(store, &format!("{status}-{open_turns}")).await;
            let mut now = step(session.no, 2, [Fact::Paused]);
            now.card = Card { open_turns, ..card(status) };
            append(store, &session, now).await;
            let restless = match status {
                Status::Starting | Status::Active => true,
                Status::Paused | Status::Stopped | Status::Error => open_turns > 0,
                Status::Ended => false,
            };
            expected.extend(restless.then_some(session.no));
        }
    }
    assert_eq!(store.restless().await.expect("read"), expected);
}

pub(crate) async fn a_fork_says_where_it_comes_from(store: &dyn Store) {
    let parent = make(store, "parent").await;
    append(store, &parent, step(parent.no, 2, [Fact::Paused, Fact::Resuming])).await;
    let first = crate::fixture::checkpoint(WorkspaceId::fresh(), 1, 2);
    let fork = NewSession {
        workspace: first.workspace,
        first_checkpoints: vec![first.clone()],
        ..new_fork("fork", &parent, 2)
    };
    let fork = store.create(fork).await.expect("made");
    assert_eq!((fork.parent, fork.base), (Some(parent.id), Some((parent.no, 2))));
    assert_eq!(fork.last_seq, 3, "its own first event comes right after the shared ones");
    assert_eq!(store.checkpoint(first.workspace, 1).await.expect("read"), Some(first));
}

async fn listed(store: &dyn Store, scope: &Scope, filter: &Filter) -> (Vec<SessionNo>, u64) {
    let page = store.sessions(scope, filter).await.expect("listed");
    (page.sessions.iter().map(|session| session.no).collect(), page.total)
}
