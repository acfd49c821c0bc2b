//! Named workspaces.

use crate::fixture::{all, append, by, checkpoint, new_session, only, owner, said, step, tenant};
use ash_model::{AgentName, Slug, Timestamp, WorkspaceId};
use ash_store::{AuditAction, AuditQuery, Error, NewSessionRow, NewWorkspaceRow, Store};

contract! {
    a_workspace_is_its_owners
    a_workspace_that_is_being_deleted_accepts_no_session
}

pub(crate) fn new_workspace(name: &str, whose: Option<&str>) -> NewWorkspaceRow {
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

async fn a_workspace_is_its_owners(store: &dyn Store) {
    let made = store.make_workspace(new_workspace("project", Some("alice"))).await.expect("made");
    assert_eq!(made.owner, Some(owner("alice")));
    let again = store.make_workspace(new_workspace("project", Some("alice"))).await.expect("there");
    assert_eq!(again.id, made.id);
    let admins = store.make_workspace(new_workspace("project", None)).await.expect("there");
    assert_eq!(
        (admins.id, admins.owner),
        (made.id, Some(owner("alice"))),
        "an administrator finds the workspace of any owner"
    );
    // The refusal does not tell another owner which agent the workspace belongs to.
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

async fn a_workspace_that_is_being_deleted_accepts_no_session(store: &dyn Store) {
    let workspace = store.make_workspace(new_workspace("project", None)).await.expect("made");
    let shared = |name: &str| NewSessionRow {
        workspace: workspace.id,
        slug: Some(workspace.slug.clone()),
        ..new_session(name)
    };
    let session = store.create_session(shared("a")).await.expect("made");
    let mut saved = step(session.no, 2, [said("x")]);
    saved.checkpoint = Some(checkpoint(workspace.id, 1, 2));
    saved.summary.checkpoint = Some(1);
    append(store, &session, saved).await;
    store.begin_deleting(workspace.id, Timestamp(5), by("first")).await.expect("begun");
    store.begin_deleting(workspace.id, Timestamp(6), by("second")).await.expect("begun before");
    let deleting = store.workspaces_being_deleted().await.expect("read");
    assert_eq!(deleting.iter().map(|row| (row.id, row.deleting)).collect::<Vec<_>>(), [(workspace.id, true)]);
    let refused = store.create_session(shared("b")).await;
    assert!(matches!(refused, Err(Error::Deleting(_))), "{refused:?}");
    let refused = store.make_workspace(new_workspace("project", None)).await;
    assert!(matches!(refused, Err(Error::Deleting(_))), "{refused:?}");
    let query = AuditQuery { limit: 10, ..AuditQuery::default() };
    let entries = store.audit_entries(&tenant("t"), &query).await.expect("read");
    let entries: Vec<_> = entries.iter().map(|entry| (entry.action, entry.actor.key.as_deref())).collect();
    assert_eq!(entries, [(AuditAction::WorkspaceDeleted, Some("first"))], "the first call counts");

    store.finish_deleting(workspace.id, Timestamp(7)).await.expect("finished");
    assert_eq!(store.workspaces_being_deleted().await.expect("read"), []);
    let left = store.session(session.no).await.expect("read").expect("there");
    assert_eq!(left.summary.checkpoint, None, "its files are gone");
    let removed = store.checkpoint(workspace.id, 1).await.expect("read").expect("listed");
    assert_eq!(removed.removed_at, Some(Timestamp(7)));
    let again = store.make_workspace(new_workspace("project", None)).await.expect("the name is free");
    assert_ne!(again.id, workspace.id);
}
