//! SQLite as a backend of the contract, and promises about its files.

use crate::fixture::{
    agent, append, checkpoint, delta, env, items, lease, new_session, said, step, tenant, turn_row, whole,
};
use ash_model::{
    AgentRuntime, CredentialId, CredentialKind, Incarnation, SandboxRequirements, Timestamp, TurnId,
};
use ash_store::{
    AccessScope, AuditStore, Error, LogStore, NewAgentVersion, NewSessionRow, SealingKey, SessionRow,
    SessionStore, SqliteStore, Store, StoredCredential, TrashStore, TurnState,
};
use sqlx::Connection;
use std::path::Path;
use tempfile::TempDir;

pub(crate) async fn fresh() -> (SqliteStore, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    (open(dir.path()).await, dir)
}

async fn open(dir: &Path) -> SqliteStore {
    let seal = SealingKey::open(&dir.join("seal.key")).expect("a key");
    SqliteStore::open(&dir.join("ash.db"), seal).await.expect("opened")
}

/// One session with rows of every kind.
async fn furnished(store: &dyn Store) -> (SessionRow, TurnId, Incarnation) {
    let new = NewSessionRow { env: env("TOKEN", "hunter2-of-the-session"), ..new_session("s") };
    let session = store.create_session(new).await.expect("made");
    let (turn, incarnation) = (TurnId::fresh(), Incarnation::fresh());
    let mut all = step(session.no, 2, [said("a"), said("b")]);
    all.deltas = vec![delta(3, 1), delta(3, 2)];
    all.turns = vec![turn_row(turn, 2, TurnState::Running)];
    all.checkpoint = Some(checkpoint(session.workspace, 1, 3));
    all.journal = Some(ash_model::JournalPosition { incarnation, process: 1, position: 44 });
    append(store, &session, all).await;
    let helper = NewAgentVersion {
        tenant: tenant("t"),
        name: agent("helper"),
        tree: "tree".into(),
        runtime: AgentRuntime::Builtin,
        provider: None,
        image: None,
        limits: None,
        needs: SandboxRequirements::default(),
        origin: "/x".into(),
        env: Some(env("KEY", "hunter2-of-the-agent")),
        claim: None,
        at: Timestamp(1),
    };
    store.deploy(helper).await.expect("deployed");
    let credential = StoredCredential {
        id: CredentialId::fresh(),
        tenant: tenant("t"),
        owner: None,
        kind: CredentialKind::Anthropic,
        label: String::new(),
        created_at: Timestamp(1),
        last_used_at: None,
    };
    store
        .add_credential(credential, "hunter2-of-the-service".into(), crate::fixture::by("k"))
        .await
        .expect("added");
    (session, turn, incarnation)
}

async fn is_furnished(store: &dyn Store, (session, turn, incarnation): &(SessionRow, TurnId, Incarnation)) {
    let found = store
        .find_session(&AccessScope::all(&session.tenant), &session.id)
        .await
        .expect("read")
        .expect("there");
    assert_eq!((found.no, found.last_seq), (session.no, 3));
    assert_eq!(items(store, session.no).await.len(), 5);
    let row = turn_row(*turn, 2, TurnState::Running);
    assert_eq!(store.turn(session.no, *turn).await.expect("read"), Some(row));
    let saved = checkpoint(session.workspace, 1, 3);
    assert_eq!(store.checkpoint(session.workspace, 1).await.expect("read"), Some(saved));
    assert_eq!(crate::fixture::position(store, *incarnation).await, Some(44));
    let secrets = store.env(session.no).await.expect("unsealed").expose();
    assert_eq!(secrets, env("TOKEN", "hunter2-of-the-session").expose());
    let helper = store.agent(&tenant("t"), &agent("helper")).await.expect("read").expect("there");
    assert_eq!(helper.env.expose(), env("KEY", "hunter2-of-the-agent").expose());
}

#[tokio::test]
async fn a_closed_database_is_all_there_when_it_is_opened_again() {
    let (store, dir) = fresh().await;
    let known = furnished(&store).await;
    store.close().await;
    let again = open(dir.path()).await;
    is_furnished(&again, &known).await;
    append(&again, &known.0, step(known.0.no, 4, [said("c")])).await;
    again.close().await;
    assert_eq!(items(&open(dir.path()).await, known.0.no).await.len(), 6);
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill() {
    let (store, dir) = fresh().await;
    let known = furnished(&store).await;
    // What a killed server leaves: the files as they are now, with the write-ahead log beside them.
    let copy = tempfile::tempdir().expect("a directory");
    for file in std::fs::read_dir(dir.path()).expect("listed").flatten() {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("copied");
    }
    is_furnished(&open(copy.path()).await, &known).await;
    drop(store);
    let again = open(dir.path()).await;
    is_furnished(&again, &known).await;
    append(&again, &known.0, step(known.0.no, 4, [said("c")])).await;
}

#[tokio::test]
async fn a_closed_store_refuses_to_write() {
    let (store, _dir) = fresh().await;
    let (session, ..) = furnished(&store).await;
    store.close().await;
    store.close().await;
    let refused = store.append(&lease(&session), step(session.no, 4, [said("c")])).await;
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
}

#[tokio::test]
async fn no_secret_is_in_the_files() {
    let (store, dir) = fresh().await;
    furnished(&store).await;
    no_secret_in(dir.path());
    store.close().await;
    no_secret_in(dir.path());
}

fn no_secret_in(dir: &Path) {
    let mut searched = 0;
    for file in std::fs::read_dir(dir).expect("listed").flatten() {
        let bytes = std::fs::read(file.path()).expect("read");
        searched += bytes.len();
        assert!(!bytes.windows(7).any(|window| window == b"hunter2"), "{:?}", file.file_name());
    }
    assert!(searched > 4096, "nothing was searched");
}

#[tokio::test]
async fn another_key_opens_the_log_but_no_secret() {
    let (store, dir) = fresh().await;
    let (session, ..) = furnished(&store).await;
    let before = whole(&store, session.no).await;
    store.close().await;
    std::fs::remove_file(dir.path().join("seal.key")).expect("removed");
    let again = open(dir.path()).await;
    assert_eq!(whole(&again, session.no).await, before);
    assert!(matches!(again.env(session.no).await, Err(Error::Sealed)));
}

#[tokio::test]
async fn purged_sessions_are_in_no_file_of_the_database() {
    const WORD: &str = "a-word-that-nothing-else-says";
    const NAME: &str = "an-id-that-nothing-else-has";
    let (store, dir) = fresh().await;
    let session = crate::fixture::make(&store, NAME).await;
    let said = (0..200).map(|number| crate::fixture::said(&format!("{WORD} {number}")));
    let mut last = crate::fixture::step(session.no, 2, said);
    last.summary.status = ash_model::SessionStatus::Ended;
    crate::fixture::append(&store, &session, last).await;
    // The log of its fork names the parent, although it shares no events.
    let fork = NewSessionRow { base: None, ..crate::fixture::new_fork("fork", &session, 1) };
    store.create_session(fork).await.expect("forked");
    let found = |text: &str| {
        let files = std::fs::read_dir(dir.path()).expect("a directory").flatten();
        let bytes = files.map(|file| std::fs::read(file.path()).expect("read"));
        bytes.filter(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes())).count()
    };
    assert!(found(WORD) > 0 && found(NAME) > 0, "it is there first");
    store.trash(session.no, Timestamp(5), crate::fixture::by("k")).await.expect("put there");
    while !store.forget_unshared(session.no).await.expect("gone") {}
    assert_eq!(found(WORD), 0, "what the fork does not share");
    while !store.purge(session.no, Timestamp(10)).await.expect("deleted") {}
    assert_eq!((found(WORD), found(NAME)), (0, 0));
}

async fn raw(dir: &Path) -> sqlx::SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(dir.join("ash.db"));
    sqlx::SqliteConnection::connect_with(&options).await.expect("opened")
}

/// In a database of an earlier version.
#[tokio::test]
async fn the_next_start_hides_names_that_an_older_version_purged() {
    let (store, dir) = fresh().await;
    let (session, fork) = (crate::fixture::make(&store, "gone").await, "fork");
    store.create_session(crate::fixture::new_fork(fork, &session, 1)).await.expect("forked");
    crate::fixture::make(&store, "made-again").await;
    store.close().await;
    let mut db = raw(dir.path()).await;
    for sql in [
        "UPDATE sessions SET status = 'ended', trashed_at = 5 WHERE id = 'gone'",
        "INSERT INTO audit (at, tenant, deed, subject, id) VALUES (1, 't', 'ended', 'gone', 1),
             (1, 't', 'forgotten', 'long-gone', 2), (1, 't', 'ended', 'stays', 3), (1, 't', 'forgotten', 'made-again', 4),
             (1, 't', 'executed', 'made-again', 5)",
        "PRAGMA user_version = 0",
    ] {
        sqlx::query(sql).execute(&mut db).await.expect("done");
    }
    db.close().await.expect("closed");
    let store = open(dir.path()).await;
    let query = ash_store::AuditQuery { limit: 9, ..ash_store::AuditQuery::default() };
    let told = store.audit_entries(&tenant("t"), &query).await.expect("read");
    let named: Vec<_> = told.iter().rev().map(|line| line.subject.starts_with(ash_store::PURGED)).collect();
    assert_eq!(named, [true, true, false, true, false]);
    let scope = crate::fixture::all("t");
    let fork = store.find_session(&scope, &crate::fixture::id(fork)).await.expect("read").expect("there");
    assert_eq!(fork.parent, None);
    let tombstone = store.tombstones().await.expect("read").pop().expect("one").tombstone;
    assert_eq!((tombstone.session.as_str(), tombstone.epoch.0, tombstone.seq), ("gone", 1, 2));
    let again = NewSessionRow { epoch: ash_model::Epoch(2), at: Timestamp(6), ..new_session("gone") };
    store.create_session(again).await.expect("its id is free");
}

#[tokio::test]
async fn only_the_name_of_an_audit_entry_can_be_removed() {
    let (store, dir) = fresh().await;
    let session = crate::fixture::make(&store, "s").await;
    let mut last = crate::fixture::step(session.no, 2, [ash_model::Fact::Ended]);
    last.summary.status = ash_model::SessionStatus::Ended;
    crate::fixture::append(&store, &session, last).await;
    let mut db = raw(dir.path()).await;
    for sql in [
        "UPDATE audit SET subject = 'other'",
        "UPDATE audit SET subject = 'purged:1', at = at + 1",
        "UPDATE audit SET by_key = 'k'",
        "UPDATE audit SET detail = 'x'",
        "DELETE FROM audit",
    ] {
        let refused = sqlx::query(sql).execute(&mut db).await;
        assert!(refused.is_err_and(|error| error.to_string().contains("only added to")), "{sql}");
    }
    sqlx::query("UPDATE audit SET subject = 'purged:1'").execute(&mut db).await.expect("a name went");
}
