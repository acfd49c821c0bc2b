//! Owners: what each of them sees, and what is noted on sessions.

use crate::fixture::{
    all, append, by, card, created, id, lease, new_session, note, only, owner, step, tenant,
};
use ash_model::{AgentName, Fact, SessionMetadata, SessionStatus, Slug, Timestamp, WorkspaceId};
use ash_store::{
    AccessScope, ApiKey, Error, NewSessionRow, NewWorkspaceRow, SessionFilter, SessionRow, Store,
};

fn metadata(entries: &[(&str, &str)]) -> SessionMetadata {
    let entries = entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    SessionMetadata::try_from(entries.collect::<std::collections::BTreeMap<_, _>>()).expect("small")
}

async fn make_for(store: &dyn Store, name: &str, whose: Option<&str>) -> SessionRow {
    let new = NewSessionRow { owner: whose.map(owner), ..new_session(name) };
    store.create_session(new).await.expect("made")
}

async fn listed(store: &dyn Store, scope: &AccessScope, filter: &SessionFilter) -> Vec<String> {
    let page = store.sessions(scope, filter).await.expect("listed");
    assert_eq!(page.total as usize, page.sessions.len());
    let mut ids: Vec<String> = page.sessions.iter().map(|session| session.id.to_string()).collect();
    ids.sort();
    ids
}

pub(crate) async fn an_owner_sees_and_finds_only_their_own(store: &dyn Store) {
    let hers = make_for(store, "hers", Some("alice")).await;
    make_for(store, "his", Some("bob")).await;
    make_for(store, "nobodys", None).await;
    assert_eq!(hers.owner, Some(owner("alice")));
    assert_eq!(listed(store, &only("alice"), &SessionFilter::default()).await, ["hers"]);
    assert_eq!(listed(store, &all("t"), &SessionFilter::default()).await, ["hers", "his", "nobodys"]);
    assert_eq!(store.find_session(&only("alice"), &id("hers")).await.expect("read"), Some(hers));
    for other in ["his", "nobodys"] {
        assert_eq!(store.find_session(&only("alice"), &id(other)).await.expect("read"), None, "{other}");
        assert!(store.find_session(&all("t"), &id(other)).await.expect("read").is_some(), "{other}");
    }
    // The same name in another tenant is somebody else.
    let elsewhere = AccessScope { tenant: tenant("other"), ..only("alice") };
    assert_eq!(store.find_session(&elsewhere, &id("hers")).await.expect("read"), None);
    assert!(listed(store, &elsewhere, &SessionFilter::default()).await.is_empty());
    // To ask for somebody else's does not open it.
    let asked = SessionFilter { owner: Some(owner("bob")), ..SessionFilter::default() };
    assert!(listed(store, &only("alice"), &asked).await.is_empty());
    assert_eq!(listed(store, &all("t"), &asked).await, ["his"]);
}

pub(crate) async fn a_key_knows_its_owner(store: &dyn Store) {
    let key = ApiKey {
        id: "a".into(),
        tenant: tenant("t"),
        owner: Some(owner("alice")),
        label: "l".into(),
        created_at: Timestamp(4),
    };
    store.add_key(key.clone(), "hash".into(), by("k")).await.expect("added");
    assert_eq!(store.key("hash").await.expect("read"), Some(key.clone()));
    assert_eq!(store.keys(&tenant("t")).await.expect("read"), [key]);
}

fn new_workspace(name: &str, whose: Option<&str>) -> NewWorkspaceRow {
    NewWorkspaceRow {
        id: WorkspaceId::fresh(),
        tenant: tenant("t"),
        owner: whose.map(owner),
        slug: Slug::parse(name).expect("a name"),
        agent: AgentName::parse("helper").expect("a name"),
        node: "here".into(),
        at: Timestamp(1),
    }
}

pub(crate) async fn a_workspace_is_its_owners(store: &dyn Store) {
    let made = store.make_workspace(new_workspace("project", Some("alice"))).await.expect("made");
    assert_eq!(made.owner, Some(owner("alice")));
    let again = store.make_workspace(new_workspace("project", Some("alice"))).await.expect("there");
    assert_eq!(again.id, made.id);
    let admins = store.make_workspace(new_workspace("project", None)).await.expect("there");
    assert_eq!((admins.id, admins.owner), (made.id, Some(owner("alice"))), "whosever it is");
    // Not even that it is another agent's is said to somebody else.
    let other = AgentName::parse("other").expect("a name");
    let his = NewWorkspaceRow { agent: other, ..new_workspace("project", Some("bob")) };
    let refused = store.make_workspace(his).await;
    assert!(matches!(refused, Err(Error::SlugTaken(_))), "{refused:?}");
    store.make_workspace(new_workspace("open", None)).await.expect("made");
    let refused = store.make_workspace(new_workspace("open", Some("bob"))).await;
    assert!(matches!(refused, Err(Error::SlugTaken(_))), "{refused:?}");
    assert!(store.find_workspace(&only("alice"), &made.slug).await.expect("read").is_some());
    assert!(store.find_workspace(&only("bob"), &made.slug).await.expect("read").is_none());
    let names = |found: Vec<ash_store::WorkspaceRow>| {
        found.into_iter().map(|w| w.slug.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(store.workspaces(&only("alice")).await.expect("read")), ["project"]);
    assert!(store.workspaces(&only("bob")).await.expect("read").is_empty());
    assert_eq!(names(store.workspaces(&all("t")).await.expect("read")), ["open", "project"]);
}

pub(crate) async fn what_is_noted_is_replaced_with_the_step_that_says_so(store: &dyn Store) {
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

pub(crate) async fn lists_are_narrowed_by_everything_that_is_asked(store: &dyn Store) {
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
            summary: card(if at < 25 { SessionStatus::Paused } else { SessionStatus::Active }),
            events: vec![note(created())],
            ..new_session(name)
        };
        store.create_session(new).await.expect("made");
    }
    let any = SessionFilter::default;
    let pairs = |given: &[(&str, &str)]| given.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
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
        assert_eq!(listed(store, &all("t"), &filter).await, expected, "{filter:?}");
    }
    let slug = Slug::parse("project").expect("a name");
    let workspace = store.make_workspace(new_workspace("project", Some("alice"))).await.expect("made");
    let (id, whose) = (workspace.id, workspace.owner);
    let shared =
        NewSessionRow { workspace: id, slug: Some(slug.clone()), owner: whose, ..new_session("shared") };
    store.create_session(shared).await.expect("made");
    assert_eq!(listed(store, &all("t"), &SessionFilter { workspace: Some(slug), ..any() }).await, ["shared"]);
}
