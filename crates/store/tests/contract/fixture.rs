//! Sessions and steps for the contract: small, complete, and equal except for the subject of a test.

use ash_model::{
    AgentName, AgentRuntime, CaptureConsistency, Epoch, Event, EventSeq, Fact, LogCursor, MessageDelta,
    NewEvent, OwnerId, SessionId, SessionMetadata, SessionOptions, SessionRowId, SessionStatus, TenantId,
    Timestamp, TurnId, WorkspaceId,
};
use ash_store::{
    AccessScope, AuditActor, Checkpoint, Error, EventQuery, ForkBase, IdempotencyRequest, Lease, LeaseClaim,
    LeaseHolder, LogAppend, LogItem, NewSessionRow, SecretEnv, SessionRow, SessionSummary, Store, TurnRow,
    TurnState,
};

pub(crate) const NODE: &str = "here";

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).expect("a tenant's name")
}

/// Everything of a tenant.
pub(crate) fn all(name: &str) -> AccessScope {
    AccessScope::all(&tenant(name))
}

pub(crate) fn owner(name: &str) -> OwnerId {
    OwnerId::parse(name).expect("an owner's name")
}

/// What one owner of tenant `t` may see.
pub(crate) fn only(name: &str) -> AccessScope {
    AccessScope { owner: Some(owner(name)), ..all("t") }
}

/// The order of a caller with this key.
pub(crate) fn by(key: &str) -> AuditActor {
    AuditActor { key: Some(key.to_owned()), ..AuditActor::default() }
}

pub(crate) fn id(name: &str) -> SessionId {
    SessionId::parse(name).expect("a session's name")
}

pub(crate) fn agent(name: &str) -> AgentName {
    AgentName::parse(name).expect("an agent's name")
}

pub(crate) fn env(name: &str, value: &str) -> SecretEnv {
    SecretEnv::from_plain([(name.to_owned(), value.to_owned())].into())
}

pub(crate) fn summary(status: SessionStatus) -> SessionSummary {
    SessionSummary {
        status,
        title: None,
        last_text: None,
        turns: 0,
        open_turns: 0,
        problem: None,
        checkpoint: None,
        pending: Vec::new(),
        lock: None,
    }
}

pub(crate) fn note(fact: Fact) -> NewEvent {
    NewEvent { turn: None, at: Timestamp(1), fact }
}

pub(crate) fn created() -> Fact {
    Fact::Created { agent: agent("helper"), version: 1, options: SessionOptions::default() }
}

pub(crate) fn said(line: &str) -> Fact {
    Fact::Said { line: line.to_owned() }
}

/// A session of tenant `t` whose log holds its `created`.
pub(crate) fn new_session(name: &str) -> NewSessionRow {
    NewSessionRow {
        tenant: tenant("t"),
        owner: None,
        metadata: SessionMetadata::default(),
        id: id(name),
        workspace: WorkspaceId::fresh(),
        slug: None,
        node: NODE.to_owned(),
        agent: agent("helper"),
        version: 1,
        runtime: AgentRuntime::Builtin,
        native_id: uuid::Uuid::from_u128(7),
        options: SessionOptions::default(),
        env: SecretEnv::default(),
        secrets: SecretEnv::default(),
        parent: None,
        base: None,
        first_checkpoints: Vec::new(),
        summary: summary(SessionStatus::Starting),
        events: vec![note(created())],
        audit: None,
        epoch: Epoch(1),
        at: Timestamp(1),
    }
}

/// A fork that shares `parent`'s events up to `seq` and begins with its own `forked`.
pub(crate) fn new_fork(name: &str, parent: &SessionRow, seq: EventSeq) -> NewSessionRow {
    let forked = Fact::Forked {
        parent: Some(parent.id.clone()),
        checkpoint: None,
        memory: uuid::Uuid::from_u128(8),
        turns_delivered: 0,
        waiting: Vec::new(),
    };
    NewSessionRow {
        parent: Some(parent.id.clone()),
        base: Some(ForkBase { parent: parent.no, seq }),
        summary: summary(SessionStatus::Paused),
        events: vec![note(forked)],
        ..new_session(name)
    }
}

pub(crate) async fn make(store: &dyn Store, name: &str) -> SessionRow {
    store.create_session(new_session(name)).await.expect("made")
}

/// The lease that comes with a session that was just made.
pub(crate) fn lease(session: &SessionRow) -> Lease {
    Lease { workspace: session.workspace, epoch: Epoch(1) }
}

pub(crate) fn step(no: SessionRowId, first: EventSeq, facts: impl IntoIterator<Item = Fact>) -> LogAppend {
    LogAppend {
        session: no,
        first_seq: first,
        events: facts.into_iter().map(note).collect(),
        deltas: Vec::new(),
        turns: Vec::new(),
        summary: summary(SessionStatus::Active),
        checkpoint: None,
        journal: None,
        at: Timestamp(2),
    }
}

pub(crate) fn delta(seq: EventSeq, n: u64) -> MessageDelta {
    MessageDelta { seq, index: n, turn: None, line: format!("{seq}.{n}") }
}

pub(crate) fn turn_row(turn: TurnId, seq: EventSeq, state: TurnState) -> TurnRow {
    TurnRow { id: turn, seq, state, attempt: 1 }
}

pub(crate) fn checkpoint(workspace: WorkspaceId, number: u64, seq: EventSeq) -> Checkpoint {
    Checkpoint {
        workspace,
        number,
        turn: None,
        seq,
        tree: format!("tree-{number}"),
        consistency: CaptureConsistency::Frozen,
        salvage: false,
        mid_turn: false,
        files: 3,
        bytes: 4096,
        skipped: Some(2),
        unsettled: None,
        concurrent_turns: Vec::new(),
        rewound_to: None,
        removed_at: None,
        uploaded_at: None,
        at: Timestamp(5),
    }
}

pub(crate) async fn append(store: &dyn Store, session: &SessionRow, append: LogAppend) {
    store.append(&lease(session), append).await.expect("appended");
}

/// The whole log as events, the parents' included.
pub(crate) async fn events(store: &dyn Store, no: SessionRowId) -> Vec<Event> {
    let all = EventQuery { after: 0, limit: 10_000, kinds: Vec::new() };
    store.events(no, &all).await.expect("read")
}

pub(crate) async fn items(store: &dyn Store, no: SessionRowId) -> Vec<LogItem> {
    store.read_log(no, LogCursor::START, 10_000).await.expect("read")
}

/// The positions of a log's items, as clients name them.
pub(crate) fn places(items: &[LogItem]) -> Vec<String> {
    items.iter().map(|item| item.at.to_string()).collect()
}

/// Everything that a step could have changed, to compare before and after one that must change nothing.
pub(crate) async fn whole(store: &dyn Store, no: SessionRowId) -> (SessionRow, Vec<LogItem>, Vec<Event>) {
    let session = store.session(no).await.expect("read").expect("there");
    (session, items(store, no).await, store.facts(no).await.expect("read"))
}

/// The journal position of the only session in a sandbox.
pub(crate) async fn position(store: &dyn Store, incarnation: ash_model::Incarnation) -> Option<u64> {
    let positions = store.journal_positions(incarnation).await.expect("read");
    positions.first().map(|heard| heard.journal.position)
}

/// Changes the options with the next event.
pub(crate) async fn configure(store: &dyn Store, session: &SessionRow, options: &SessionOptions) {
    let fact = Fact::Configured { options: options.clone(), restart: false };
    let now = store.session(session.no).await.expect("read").expect("there");
    let step = step(session.no, now.last_seq + 1, [fact]);
    append(store, session, LogAppend { summary: now.summary, ..step }).await;
}

pub(crate) fn metadata(entries: &[(&str, &str)]) -> SessionMetadata {
    let entries = entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    SessionMetadata::try_from(entries.collect::<std::collections::BTreeMap<_, _>>()).expect("small")
}

pub(crate) fn claim(workspace: WorkspaceId, node: &str, from: &LeaseHolder) -> LeaseClaim {
    LeaseClaim { workspace, node: node.to_owned(), from: from.clone() }
}

/// The step is refused, because the lease is not current or the log does not end before the step.
pub(crate) async fn stale(store: &dyn Store, lease: &Lease, append: LogAppend) {
    let first = append.first_seq;
    let refused = store.append(lease, append).await;
    assert!(matches!(refused, Err(Error::Stale)), "first {first}: {refused:?}");
}

/// A request of tenant `t` with an idempotency key.
pub(crate) fn idempotency_request(route: &str, key: &str, resource: &str) -> IdempotencyRequest {
    IdempotencyRequest {
        tenant: tenant("t"),
        route: route.to_owned(),
        key: key.to_owned(),
        hash: "hash".to_owned(),
        resource: resource.to_owned(),
        at: Timestamp(1),
    }
}
