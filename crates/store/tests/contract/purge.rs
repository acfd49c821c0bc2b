//! After a purge no row names the session, and its id is free.

use crate::{
    fixture::{
        all, append, by, checkpoint, events, id, idempotency_request, make, new_fork, new_session, said,
        step, summary, tenant,
    },
    repair::rebuilt,
};
use ash_model::{
    CaptureConsistency, ConcurrentTurn, Epoch, EventSeq, Fact, SavedCheckpoint, SessionId, SessionStatus,
    Timestamp, TurnId, WorkspaceId, WorkspaceRewind, remote::SessionTombstone,
};
use ash_store::{
    AuditAction, AuditEntry, AuditQuery, Error, ForkBase, IdempotencyClaim, IdempotencyRequest, Lease,
    NewSessionRow, NewWorkspaceRow, PURGED, SessionRow, Store, TombstoneRow,
};

contract! {
    the_id_of_a_purged_session_is_free_at_once
    forks_of_a_purged_session_say_only_that_they_are_forks
    events_of_a_parent_that_no_fork_shares_are_deleted
    sessions_that_worked_in_the_same_workspace_do_not_name_it
    the_audit_keeps_its_lines_of_a_purged_session_without_its_name
    idempotency_keys_of_a_purged_session_are_free
    a_parent_that_comes_back_for_its_forks_stays_in_the_trash
}

async fn purge(store: &dyn Store, session: &SessionRow, at: Timestamp) {
    let last = store.session(session.no).await.expect("read").expect("there").last_seq;
    let mut end = step(session.no, last + 1, [Fact::Ended]);
    end.summary = summary(SessionStatus::Ended);
    let epoch = store.lease_holder(session.workspace).await.expect("read").expect("held").epoch;
    let lease = Lease { workspace: session.workspace, epoch };
    store.append(&lease, end).await.expect("appended");
    assert!(store.trash(session.no, at, by("k")).await.expect("put there"));
}

async fn audit(store: &dyn Store, subject: Option<&str>) -> Vec<AuditEntry> {
    let query = AuditQuery { subject: subject.map(str::to_owned), limit: 100, ..AuditQuery::default() };
    store.audit_entries(&tenant("t"), &query).await.expect("read")
}

fn line(deed: AuditAction, subject: &str, detail: Option<&str>) -> AuditEntry {
    AuditEntry {
        no: 0,
        at: Timestamp(1),
        tenant: tenant("t"),
        action: deed,
        subject: subject.to_owned(),
        owner: None,
        actor: by("k"),
        detail: detail.map(str::to_owned),
    }
}

/// A new session with the id of a purged one. Its epoch must be above the tombstone's.
fn again(name: &str, epoch: u64, at: i64) -> NewSessionRow {
    NewSessionRow { epoch: Epoch(epoch), at: Timestamp(at), ..new_session(name) }
}

async fn the_id_of_a_purged_session_is_free_at_once(store: &dyn Store) {
    let first = make(store, "s").await;
    append(store, &first, step(first.no, 2, [said("of the first")])).await;
    purge(store, &first, Timestamp(5)).await;
    for (what, refused) in [("its epoch", again("s", 1, 9)), ("its time", again("s", 2, 5))] {
        let refused = store.create_session(refused).await;
        assert!(
            matches!(refused, Err(Error::Taken(_))),
            "{what} would be taken for the first's: {refused:?}"
        );
    }
    let second = store.create_session(again("s", 2, 6)).await.expect("made");
    assert_ne!(second.no, first.no);
    assert_eq!(
        store.find_session(&all("t"), &id("s")).await.expect("read").map(|found| found.no),
        Some(second.no)
    );
    assert_eq!(events(store, second.no).await.len(), 1, "nothing of the first");
    let taken = store.create_session(again("s", 9, 9)).await;
    assert!(matches!(taken, Err(Error::Taken(_))), "{taken:?}");
    // The tombstone of the first session stays as it was, whatever session gets its id.
    let of_first = SessionTombstone {
        tenant: tenant("t"),
        session: id("s"),
        epoch: Epoch(1),
        seq: 4,
        purged_at: Timestamp(5),
    };
    let tombstones = store.tombstones_of(&tenant("t"), &id("s")).await.expect("read");
    assert_eq!(tombstones, std::slice::from_ref(&of_first));
    assert_eq!(
        store.tombstone(first.no).await.expect("read"),
        Some(TombstoneRow { session: first.no, tombstone: of_first, is_uploaded: false })
    );
    purge(store, &second, Timestamp(7)).await;
    assert_eq!(store.trashed_sessions(Timestamp(9)).await.expect("read").len(), 2, "both in the trash");
    let third = store.create_session(again("s", 3, 8)).await.expect("made");
    for no in [first.no, second.no] {
        while !store.purge(no, Timestamp(9)).await.expect("deleted") {}
    }
    assert_eq!(
        store.find_session(&all("t"), &id("s")).await.expect("read").map(|found| found.no),
        Some(third.no)
    );
    assert!(store.tombstones_of(&tenant("t"), &id("s")).await.expect("read").is_empty());
}

async fn forks_of_a_purged_session_say_only_that_they_are_forks(store: &dyn Store) {
    let parent = make(store, "parent").await;
    append(store, &parent, step(parent.no, 2, [said("shared"), said("its own")])).await;
    let fork = store.create_session(new_fork("fork", &parent, 2)).await.expect("forked");
    let before = events(store, fork.no).await;
    store
        .add_audit_entry(line(AuditAction::Created, "fork", Some("fork of parent")), None)
        .await
        .expect("written");
    purge(store, &parent, Timestamp(5)).await;
    let found = store.find_session(&all("t"), &id("fork")).await.expect("read").expect("there");
    assert_eq!((found.parent, found.base), (None, Some(ForkBase { parent: parent.no, seq: 2 })));
    let after = events(store, fork.no).await;
    let unnamed = |event: &ash_model::Event| event.fact.clone().unnamed();
    assert_eq!(
        after.iter().map(|event| event.fact.clone()).collect::<Vec<_>>(),
        before.iter().map(unnamed).collect::<Vec<_>>()
    );
    assert!(matches!(after[2].fact, Fact::Forked { parent: None, .. }), "{:?}", after[2]);
    let told = audit(store, Some("fork")).await.remove(0).detail.expect("a detail");
    assert!(told.starts_with("fork of purged:"), "{told}");
    // Nor do forks that were being created meanwhile.
    let late = NewSessionRow { at: Timestamp(5), ..new_fork("late", &parent, 2) };
    let late = store.create_session(late).await.expect("forked");
    let alone = NewSessionRow { base: None, at: Timestamp(5), ..new_fork("alone", &parent, 2) };
    let alone = store.create_session(alone).await.expect("forked");
    for no in [late.no, alone.no] {
        let made = store.session(no).await.expect("read").expect("there");
        let forked = events(store, no).await.pop().expect("an event").fact;
        assert!(made.parent.is_none() && matches!(forked, Fact::Forked { parent: None, .. }), "{forked:?}");
    }
    // Another session of its name is not the fork's parent.
    store.create_session(again("parent", 2, 9)).await.expect("made");
    let found = store.find_session(&all("t"), &id("fork")).await.expect("read").expect("there");
    assert_eq!((found.parent, events(store, fork.no).await), (None, after));
}

async fn events_of_a_parent_that_no_fork_shares_are_deleted(store: &dyn Store) {
    let new = NewSessionRow { env: crate::fixture::env("K", "v"), ..new_session("parent") };
    let parent = store.create_session(new).await.expect("made");
    append(store, &parent, step(parent.no, 2, (0..6000).map(|number| said(&format!("{number}"))))).await;
    let fork = store.create_session(new_fork("fork", &parent, 3)).await.expect("forked");
    purge(store, &parent, Timestamp(5)).await;
    let shared = events(store, fork.no).await;
    assert_eq!(store.trashed_parents(Timestamp(4)).await.expect("read"), []);
    assert_eq!(store.trashed_parents(Timestamp(5)).await.expect("read"), [parent.no]);
    while !store.forget_unshared(parent.no).await.expect("gone") {}
    assert_eq!(events(store, parent.no).await.len(), 3, "what the fork reads");
    assert_eq!(events(store, fork.no).await, shared);
    assert!(store.env(parent.no).await.expect("read").0.is_empty());
    assert_eq!(
        store.tombstone(parent.no).await.expect("read").expect("there").tombstone.seq,
        6003,
        "as it was"
    );
    assert_eq!(store.trashed_sessions(Timestamp(9)).await.expect("read"), [], "as long as there is the fork");
}

fn saved(number: u64, beside: &SessionId) -> Fact {
    Fact::Saved(SavedCheckpoint {
        number,
        turn: None,
        tree: "t".into(),
        consistency: CaptureConsistency::Frozen,
        files: 1,
        bytes: 1,
        skipped: Vec::new(),
        unsaved: Vec::new(),
        unsaved_more: 0,
        salvage: false,
        mid_turn: false,
        concurrent_turns: vec![ConcurrentTurn { session: Some(beside.clone()), turn: TurnId::fresh() }],
        rewound_to: None,
    })
}

async fn sessions_that_worked_in_the_same_workspace_do_not_name_it(store: &dyn Store) {
    let slug = ash_model::Slug::parse("project").expect("a name");
    let workspace = store
        .make_workspace(NewWorkspaceRow {
            id: WorkspaceId::fresh(),
            tenant: tenant("t"),
            owner: None,
            slug: slug.clone(),
            agent: crate::fixture::agent("helper"),
            node: crate::fixture::NODE.into(),
            at: Timestamp(1),
        })
        .await
        .expect("made");
    let in_it =
        |name: &str| NewSessionRow { workspace: workspace.id, slug: Some(slug.clone()), ..new_session(name) };
    let gone = store.create_session(in_it("gone")).await.expect("made");
    let stays = store.create_session(in_it("stays")).await.expect("made");
    let back = |by: &str| Fact::WorkspaceRewound(WorkspaceRewind { by: Some(id(by)), checkpoint: 3, to: 1 });
    let words = said(r#"{"type":"assistant","text":"I saw \"session\":\"gone\""}"#);
    let mut told = step(stays.no, 2, [saved(2, &gone.id), back("gone"), back("other"), words.clone()]);
    let beside = ConcurrentTurn { session: Some(gone.id.clone()), turn: TurnId::fresh() };
    told.checkpoint =
        Some(ash_store::Checkpoint { concurrent_turns: vec![beside], ..checkpoint(workspace.id, 2, 2) });
    append(store, &stays, told).await;
    let mut own = step(gone.no, 2, [said("x")]);
    own.checkpoint = Some(ash_store::Checkpoint { rewound_to: Some(1), ..checkpoint(workspace.id, 3, 2) });
    append(store, &gone, own).await;
    let before = events(store, stays.no).await;
    purge(store, &gone, Timestamp(5)).await;
    // A capture that began before the purge ends after it.
    let beside = vec![ConcurrentTurn { session: Some(gone.id.clone()), turn: TurnId::fresh() }];
    let mut late = step(stays.no, 6, [saved(4, &gone.id), back("gone"), saved(5, &stays.id)]);
    late.checkpoint =
        Some(ash_store::Checkpoint { concurrent_turns: beside, ..checkpoint(workspace.id, 4, 6) });
    append(store, &stays, late).await;
    let after = events(store, stays.no).await;
    let named: Vec<Fact> = after[5..].iter().map(|event| event.fact.clone().unnamed()).collect();
    assert_eq!([&after[5].fact, &after[6].fact], [&named[0], &named[1]]);
    assert_ne!(after[7].fact, named[2], "existing sessions are named");
    let after: Vec<_> = after.into_iter().take(5).collect();
    let facts = |events: &[ash_model::Event]| events.iter().map(|one| one.fact.clone()).collect::<Vec<_>>();
    let mut expected = facts(&before);
    for fact in &mut expected[1..3] {
        *fact = fact.clone().unnamed();
    }
    assert_eq!(facts(&after), expected, "others are named, and what an agent said stays as it is");
    let listed = store.checkpoints(workspace.id, None, 9).await.expect("read");
    assert!(
        listed.iter().flat_map(|one| &one.concurrent_turns).all(|turn| turn.session.is_none()),
        "{listed:?}"
    );
    let backs = store.workspace_rewinds(workspace.id, 0).await.expect("read");
    assert_eq!(
        backs.iter().map(|back| (back.rewind.checkpoint, back.rewind.by.clone())).collect::<Vec<_>>(),
        [(3, None)]
    );
}

/// Deletions stay in the audit. A caller who knows the id finds out who ordered them; others do not learn the id.
async fn the_audit_keeps_its_lines_of_a_purged_session_without_its_name(store: &dyn Store) {
    store
        .add_audit_entry(line(AuditAction::Created, "s", Some("fork of other")), None)
        .await
        .expect("written");
    let session = make(store, "s").await;
    store
        .add_audit_entry(line(AuditAction::ConfigChanged, "s", Some("model")), Some(session.no))
        .await
        .expect("written");
    // An agent of the same name is not the session.
    store
        .add_audit_entry(line(AuditAction::ConfigChanged, "s", Some("colour")), None)
        .await
        .expect("written");
    let before = audit(store, None).await;
    purge(store, &session, Timestamp(5)).await;
    // The caller had found the session before it was purged.
    store.add_audit_entry(line(AuditAction::Executed, "s", None), Some(session.no)).await.expect("written");
    while !store.purge(session.no, Timestamp(10)).await.expect("deleted") {}
    let after = audit(store, None).await;
    let told: Vec<_> = after
        .iter()
        .rev()
        .map(|line| (line.action, line.subject == "s", line.actor.rule.as_deref()))
        .collect();
    let expected = [
        (AuditAction::Created, false, None),
        (AuditAction::ConfigChanged, false, None),
        (AuditAction::ConfigChanged, true, None),
        (AuditAction::Ended, false, None),
        (AuditAction::Purged, false, None),
        (AuditAction::Executed, false, None),
        (AuditAction::Forgotten, false, Some("trash")),
    ];
    assert_eq!(told, expected);
    let masked: Vec<&AuditEntry> = after.iter().filter(|line| line.subject != "s").collect();
    assert!(masked.iter().all(|line| line.subject.starts_with(PURGED) && line.subject == masked[0].subject));
    assert!(after.iter().all(|line| line.detail.as_deref() != Some("fork of other")), "{after:?}");
    for (was, is) in before.iter().rev().zip(after.iter().rev()) {
        assert_eq!(
            (was.no, was.at, &was.actor, was.action),
            (is.no, is.at, &is.actor, is.action),
            "the rest stays"
        );
    }
    assert_eq!(audit(store, Some("s")).await, after, "a caller who knows the id finds its entries");
    assert_eq!(audit(store, Some(&masked[0].subject)).await.len(), 6, "or the pseudonym");
    // Another session of its name has entries of its own.
    store.create_session(again("s", 2, 11)).await.expect("made");
    assert_eq!(audit(store, Some("s")).await.len(), 1, "the agent's, which is called so");
}

async fn idempotency_keys_of_a_purged_session_are_free(store: &dyn Store) {
    let session = make(store, "s").await;
    let keys = [
        ("POST /api/sessions", "s", true),
        ("POST /api/sessions/s/messages", "a-turn", true),
        ("POST /api/sessions/other/fork", "s", true),
        ("POST /api/sessions/s2/messages", "another-turn", false),
        ("POST /api/sessions", "s2", false),
    ];
    for (route, resource, _) in keys {
        let request = idempotency_request(route, resource, resource);
        store.claim_idempotency_key(request).await.expect("claimed");
    }
    purge(store, &session, Timestamp(5)).await;
    for (route, resource, is_free) in keys {
        let request = IdempotencyRequest { at: Timestamp(6), ..idempotency_request(route, resource, "new") };
        let claimed = store.claim_idempotency_key(request).await.expect("claimed");
        let expected = match is_free {
            true => IdempotencyClaim::New("new".into()),
            false => IdempotencyClaim::Retry(resource.into()),
        };
        assert_eq!(claimed, expected, "{route} {resource}");
    }
}

/// A session that comes back only for its forks stays in the trash, under the tombstone that it had, beside the session that has
/// its id now.
async fn a_parent_that_comes_back_for_its_forks_stays_in_the_trash(store: &dyn Store) {
    let parent = make(store, "s").await;
    append(store, &parent, step(parent.no, 2, [said("shared")])).await;
    let fork = store.create_session(new_fork("f", &parent, 2)).await.expect("forked");
    let (log, of_fork) = (events(store, parent.no).await, events(store, fork.no).await);
    let own: Vec<_> = of_fork.iter().filter(|event| event.seq > 2).cloned().collect();
    // The same on another machine, where another session has the id by now.
    let tombstone = SessionTombstone {
        tenant: tenant("u"),
        session: id("s"),
        epoch: Epoch(4),
        seq: 9,
        purged_at: Timestamp(5),
    };
    let later = NewSessionRow { tenant: tenant("u"), ..again("s", 5, 6) };
    let later = store.create_session(later).await.expect("made");
    let mut back = rebuilt(&parent, "s", &log);
    (back.purged, back.manifest.tenant) = (Some(tombstone.clone()), tenant("u"));
    assert!(store.rebuild(vec![back.clone()]).await.expect("rebuilt"));
    assert!(!store.rebuild(vec![back]).await.expect("known"), "once");
    assert_eq!(store.tombstones_of(&tenant("u"), &id("s")).await.expect("read"), [tombstone]);
    assert!(store.tombstones().await.expect("read").iter().all(|row| row.session != later.no));
    let mut child = rebuilt(&fork, "f", &own);
    child.manifest.tenant = tenant("u");
    assert!(store.rebuild(vec![child]).await.expect("rebuilt"));
    let scope = all("u");
    let found = store.find_session(&scope, &id("f")).await.expect("read").expect("there");
    assert_eq!((&found.parent, found.base.map(|base| base.seq)), (&None, Some(2)));
    let facts: Vec<Fact> = events(store, found.no).await.into_iter().map(|event| event.fact).collect();
    assert_eq!(facts, of_fork.iter().map(|event| event.fact.clone().unnamed()).collect::<Vec<_>>());
    assert_eq!(
        store.find_session(&scope, &id("s")).await.expect("read").map(|found| found.no),
        Some(later.no)
    );
    // The trash is emptied at this instant: the parent was chosen before its fork was there.
    let shared = found.base.expect("a fork").parent;
    assert!(store.purge(shared, Timestamp(9)).await.expect("nothing is deleted"));
    assert_eq!(events(store, found.no).await.len(), facts.len(), "the fork has the whole log");
    let then = async |at: i64| {
        let found = store.session_then(&tenant("u"), &id("s"), Timestamp(at)).await.expect("read");
        found.map(|found| found.no)
    };
    let (first, none): (EventSeq, _) = (1, then(0).await);
    assert_eq!(
        (then(first as i64).await, then(6).await, none),
        (found.base.map(|base| base.parent), Some(later.no), None)
    );
}
