//! The JSON of every fact as databases store it. Add only new lines to the golden file: after a change to a line, stored
//! logs would not be readable.

mod client_tools;
mod spending;

use ash_model::{
    AdoptedHistory, AdoptionPoint, AgentName, BudgetLimits, BudgetScope, BusyPolicy, ByokEndpoint,
    CaptureConsistency, ComparisonMethod, ConcurrentTurn, ConversationPoint, CredentialId, Death, Durability,
    Epoch, Fact, HistorySource, Incarnation, InterruptedTurnPolicy, JournalPosition, LimitKind, LimitReached,
    LiveSetting, LockAcquisition, MessageOptions, ModelApiDialect, ModelProvider, ModelStopReason,
    PermissionId, PermissionRequest, PermissionTimeoutPolicy, PermissionVerdict, Problem, Receipt,
    RemoteComparison, ResourceLimits, ResumeComparison, ResumePath, ResumeSource, SandboxPath,
    SavedCheckpoint, SessionId, SessionLock, SessionMetadata, SessionOptions, SessionRewind, Tier, Timestamp,
    TokenUsage, ToolCallOutcome, ToolCallRecord, TreeOrigin, TurnId, TurnOutcome, UnsavedPath,
    UsageIncrement, VerdictSource, WorkspaceRewind,
};
use client_tools::client_tools;
use serde_json::json;
use spending::{bounds, budgets, routed, written_for_an_hour};
use std::collections::BTreeSet;
use uuid::Uuid;

const GOLDEN: &str = include_str!("../golden/facts-1.txt");

fn turn() -> TurnId {
    TurnId(Uuid::from_u128(7))
}

fn problem() -> Option<Problem> {
    Some(Problem::new("code", "A sentence."))
}

fn beginnings() -> Vec<Fact> {
    let agent = AgentName::parse("helper").expect("a name");
    let options = SessionOptions {
        infinite_sessions: None,
        on_busy: None,
        base: None,
        max_wait: None,
        own_provider: None,
        append_system_prompt: None,
        available_tools: None,
        reasoning_effort: None,
        streaming: None,
        idle_timeout: None,
        ttl: None,
        durability: None,
        ephemeral: None,
        permission_timeout: None,
        on_permission_timeout: None,
        model: Some("m".into()),
        provider: None,
        system_prompt: Some("Be kind".into()),
        permission_mode: Some("default".into()),
        allowed_tools: Some(vec!["Read".into()]),
        disallowed_tools: Some(vec!["Bash".into()]),
        betas: Some(vec!["b".into()]),
        mcp_servers: Some(json!({"s": {"command": "x"}})),
        subagents: Some(json!({"a": {}})),
        initial_agent: Some("a".into()),
        on_interrupted: Some(InterruptedTurnPolicy::Ask),
        wake_report: None,
        ..SessionOptions::default()
    };
    let parent = SessionId::parse("parent").expect("a name");
    let forked = |checkpoint| Fact::Forked {
        parent: Some(parent.clone()),
        checkpoint,
        memory: Uuid::from_u128(9),
        turns_delivered: 3,
        waiting: Vec::new(),
    };
    vec![
        Fact::Created { agent: agent.clone(), version: 2, options: SessionOptions::default() },
        Fact::Created { agent, version: 2, options },
        forked(Some(1)),
        forked(None),
    ]
}

/// Options that are newer than the first version of the golden file.
fn later_options() -> Vec<Fact> {
    let agent = AgentName::parse("helper").expect("a name");
    let options = SessionOptions { base: Some(4), ..SessionOptions::default() };
    vec![Fact::Created { agent, version: 2, options }]
}

fn turns() -> Vec<Fact> {
    let turn = turn();
    let ask = MessageOptions {
        model: Some("m".into()),
        max_turns: Some(5),
        max_budget_usd: Some(0.5),
        effort: Some("high".into()),
        thinking: Some(json!({"type": "disabled"})),
        output_format: Some(json!({"type": "json_schema"})),
        durability: None,
        max_tokens: None,
    };
    let usage = TokenUsage {
        input_tokens: 1,
        output_tokens: 2,
        cache_creation_tokens: 3,
        cache_read_tokens: 4,
        ..TokenUsage::default()
    };
    let mut facts = vec![
        Fact::Queued { turn, content: json!("hi"), options: MessageOptions::default(), lock: None },
        Fact::Queued { turn, content: json!([{"text": "hi", "type": "text"}]), options: ask, lock: None },
        Fact::Started { turn, input: 2 },
        Fact::Continued { turn, attempt: 2, discard_after: 41, input: 3, calls: Vec::new() },
        Fact::Said { line: "{ \"type\":\"assistant\" , \"x\":\"\\u00e4\" }".into() },
        Fact::Interrupting { turn, input: 4 },
        Fact::Rested { turn, outcome: TurnOutcome::Done, text: "ä\n\"".into(), usage, problem: None },
        Fact::Rested { turn, outcome: TurnOutcome::Failed, text: String::new(), usage, problem: problem() },
        Fact::Finished { turn, outcome: TurnOutcome::Failed, checkpoint: None, problem: problem() },
    ];
    facts.extend(
        [TurnOutcome::Done, TurnOutcome::Interrupted, TurnOutcome::Cancelled].map(|how| Fact::Finished {
            turn,
            outcome: how,
            checkpoint: Some(4),
            problem: None,
        }),
    );
    facts.extend(
        [
            Death::Agent { how: "signal 9".into() },
            Death::Sandbox { how: "exit code 1".into() },
            Death::OutOfMemory,
            Death::LineTooLong,
            Death::Machine,
            Death::Shutdown,
        ]
        .map(|death| Fact::Cut { turn, death }),
    );
    facts
}

fn captures() -> Vec<Fact> {
    let saved = SavedCheckpoint {
        number: 4,
        turn: Some(turn()),
        tree: "237a7f".into(),
        consistency: CaptureConsistency::Frozen,
        files: 10,
        bytes: 4096,
        skipped: Vec::new(),
        unsaved: Vec::new(),
        unsaved_more: 0,
        salvage: false,
        mid_turn: false,
        concurrent_turns: Vec::new(),
        rewound_to: None,
    };
    let skipped = vec!["home/.claude/.credentials.json".to_owned()];
    vec![
        Fact::Saved(saved.clone()),
        Fact::Saved(SavedCheckpoint {
            consistency: CaptureConsistency::Stopped,
            turn: None,
            skipped,
            ..saved.clone()
        }),
        Fact::Saved(SavedCheckpoint {
            consistency: CaptureConsistency::Live,
            turn: None,
            salvage: true,
            ..saved
        }),
        Fact::SaveFailed { turn: Some(turn()), error: "no space".into() },
        Fact::SaveFailed { turn: None, error: "no space".into() },
    ]
}

fn life() -> Vec<Fact> {
    let incarnation = Incarnation(Uuid::from_u128(8));
    let whole = Receipt {
        path: ResumePath::Warm,
        source: ResumeSource::Local,
        from: TreeOrigin::Live,
        tier: Tier::Native,
        checkpoint: Some(4),
        verified: true,
        lost: Vec::new(),
        compared: None,
        repaired: Vec::new(),
        salvage: None,
        adopted: None,
    };
    let torn = Receipt {
        path: ResumePath::Cold,
        from: TreeOrigin::Checkpoint,
        checkpoint: None,
        verified: false,
        lost: vec!["workspace".into()],
        salvage: Some(5),
        ..whole.clone()
    };
    let mut facts = vec![
        Fact::Awake { incarnation, resumed_after: None, outdated: false, more_inputs: 0 },
        Fact::Asleep { incarnation: Some(incarnation) },
        Fact::Asleep { incarnation: None },
        Fact::Resuming,
        Fact::Resumed { receipt: whole, head: None },
    ];
    let ways = [
        (ResumeSource::Cloud, Tier::Repaired),
        (ResumeSource::Fresh, Tier::Rebuilt),
        (ResumeSource::Local, Tier::History),
        (ResumeSource::Local, Tier::Fresh),
    ];
    facts.extend(ways.map(|(source, tier)| {
        let receipt = Receipt { source, tier, ..torn.clone() };
        Fact::Resumed { receipt, head: None }
    }));
    let failed = Fact::Failed { problem: Problem::new("code", "A sentence.") };
    facts.extend([Fact::Paused, Fact::Stopped, failed, Fact::Ended]);
    facts
}

/// Facts that are newer than the first lines; they come last.
fn history() -> Vec<Fact> {
    let then = ConversationPoint { turns_delivered: 2, turns: 2, ..ConversationPoint::default() };
    let midway = ConversationPoint {
        turns_delivered: 3,
        turns: 3,
        title: Some("hi".into()),
        last_text: Some("ä".into()),
        memory: Some(Uuid::from_u128(9)),
        under_way: Some(turn()),
        waiting: vec![TurnId(Uuid::from_u128(10))],
    };
    let saved = SavedCheckpoint {
        number: 5,
        turn: Some(turn()),
        tree: "237a7f".into(),
        consistency: CaptureConsistency::Frozen,
        files: 10,
        bytes: 4096,
        skipped: Vec::new(),
        unsaved: Vec::new(),
        unsaved_more: 0,
        salvage: false,
        mid_turn: true,
        concurrent_turns: Vec::new(),
        rewound_to: None,
    };
    vec![
        Fact::Forked {
            parent: Some(SessionId::parse("parent").expect("a name")),
            checkpoint: Some(1),
            memory: Uuid::from_u128(9),
            turns_delivered: 3,
            waiting: vec![turn()],
        },
        Fact::Saved(saved),
        Fact::Rewound(SessionRewind { to: 3, from: Some(7), seq: 41, conversation: then }),
        Fact::Rewound(SessionRewind { to: 5, from: None, seq: 52, conversation: midway }),
    ]
}

/// The tiers of a resume, and the note for the agent.
fn ladder() -> Vec<Fact> {
    let receipt = Receipt {
        path: ResumePath::Cold,
        source: ResumeSource::Local,
        from: TreeOrigin::Checkpoint,
        tier: Tier::Repaired,
        checkpoint: Some(4),
        verified: true,
        lost: Vec::new(),
        compared: None,
        repaired: vec!["2 links mended".into()],
        salvage: None,
        adopted: None,
    };
    let incarnation = Incarnation(Uuid::from_u128(8));
    vec![
        Fact::ResumeFailed { tier: Tier::Native, reason: "A sentence.".into() },
        Fact::Awake { incarnation, resumed_after: Some(41), outdated: false, more_inputs: 0 },
        Fact::Resumed { receipt, head: Some("You were asleep.".into()) },
    ]
}

fn own_turns() -> Vec<Fact> {
    let agent = AgentName::parse("helper").expect("a name");
    let call = |id: &str, how| ToolCallRecord { id: id.into(), tool: "Bash".into(), outcome: how };
    let calls = vec![
        call("a", ToolCallOutcome::Done),
        call("b", ToolCallOutcome::Unknown),
        call("c", ToolCallOutcome::NotStarted),
    ];
    vec![
        Fact::SelfStarted { turn: turn() },
        Fact::Continued { turn: turn(), attempt: 2, discard_after: 41, input: 3, calls },
        Fact::Created {
            agent: agent.clone(),
            version: 2,
            options: SessionOptions { max_wait: Some(60), ..SessionOptions::default() },
        },
        Fact::Created {
            agent: agent.clone(),
            version: 2,
            options: SessionOptions { durability: Some(Durability::Remote), ..SessionOptions::default() },
        },
        Fact::Queued {
            turn: turn(),
            content: json!("hello"),
            options: MessageOptions { durability: Some(Durability::Local), ..MessageOptions::default() },
            lock: None,
        },
        Fact::Created {
            agent,
            version: 2,
            options: SessionOptions { ephemeral: Some(true), ..SessionOptions::default() },
        },
    ]
}

/// Facts of shared workspaces, newer than those above.
fn shared() -> Vec<Fact> {
    let other = SessionId::parse("other").expect("a name");
    let saved = SavedCheckpoint {
        number: 6,
        turn: None,
        tree: "237a7f".into(),
        consistency: CaptureConsistency::Frozen,
        files: 10,
        bytes: 4096,
        skipped: Vec::new(),
        unsaved: Vec::new(),
        unsaved_more: 0,
        salvage: false,
        mid_turn: false,
        concurrent_turns: vec![ConcurrentTurn { session: Some(other.clone()), turn: turn() }],
        rewound_to: Some(3),
    };
    vec![
        Fact::Saved(saved),
        Fact::WorkspaceRewound(WorkspaceRewind { by: Some(other), checkpoint: 6, to: 3 }),
    ]
}

fn labels() -> Vec<Fact> {
    let agent = AgentName::parse("helper").expect("a name");
    let options = SessionOptions { ttl: Some(3600), ..SessionOptions::default() };
    let noted = std::collections::BTreeMap::from([("ticket".to_owned(), "42".to_owned())]);
    let metadata = SessionMetadata::try_from(noted).expect("one entry");
    vec![
        Fact::Labelled { metadata },
        Fact::Labelled { metadata: SessionMetadata::default() },
        Fact::Created { agent, version: 2, options },
    ]
}

fn places() -> SessionOptions {
    let inner = |path| SandboxPath::parse(path).expect("a path");
    SessionOptions {
        working_directory: Some(inner("src")),
        config_dir: Some(inner("~/.config")),
        skill_directories: Some(vec![inner("/workspace/skills")]),
        disabled_skills: Some(vec!["verify".into()]),
        ..SessionOptions::default()
    }
}

/// Waiting messages, and locks.
fn busy() -> Vec<Fact> {
    let lock = SessionLock {
        number: 2,
        hash: "5f".into(),
        ttl_ms: 30_000,
        until: Timestamp(1000),
        holder: Some("ci".into()),
        in_use: false,
    };
    let nameless = SessionLock { holder: None, ..lock.clone() };
    let agent = AgentName::parse("helper").expect("a name");
    let with = |on_busy| SessionOptions { on_busy: Some(on_busy), ..SessionOptions::default() };
    let mut facts = vec![
        Fact::Requeued { order: vec![turn()], withdrawn: Vec::new() },
        Fact::Requeued { order: Vec::new(), withdrawn: vec![turn()] },
        Fact::Steering { turn: turn(), into: TurnId(Uuid::from_u128(8)), input: 3 },
        Fact::Steered { turn: turn(), into: TurnId(Uuid::from_u128(8)) },
        Fact::Locked { acquisition: LockAcquisition::Free, lock: lock.clone() },
        Fact::Locked { acquisition: LockAcquisition::Renewed, lock },
        Fact::Locked { acquisition: LockAcquisition::Over, lock: nameless },
        Fact::Unlocked { number: 2 },
        Fact::Configured { options: places(), restart: true },
        Fact::Configured { options: SessionOptions::default(), restart: false },
    ];
    facts.extend(
        [BusyPolicy::Queue, BusyPolicy::Reject, BusyPolicy::Interrupt, BusyPolicy::Steer]
            .map(|on_busy| Fact::Created { agent: agent.clone(), version: 2, options: with(on_busy) }),
    );
    facts
}

/// Histories that were adopted from another witness.
fn witnesses() -> Vec<Fact> {
    let adopted = AdoptedHistory {
        epoch: Epoch(4),
        seq: 52,
        checkpoint: Some(7),
        witness: HistorySource::Bucket,
        diverged: Some(SessionId::parse("s.diverged-3").expect("an id")),
        journal_position: None,
    };
    let heard = JournalPosition { incarnation: Incarnation(Uuid::from_u128(8)), process: 1, position: 77 };
    let up_to = AdoptionPoint { epoch: Epoch(4), seq: 52, checkpoint: Some(7) };
    let compared =
        ResumeComparison { remote: Some(RemoteComparison::Unreachable), ..ResumeComparison::default() };
    let receipt = Receipt {
        path: ResumePath::Cold,
        source: ResumeSource::Cloud,
        from: TreeOrigin::Checkpoint,
        tier: Tier::Native,
        checkpoint: Some(7),
        verified: true,
        lost: Vec::new(),
        compared: Some(Box::new(compared)),
        repaired: Vec::new(),
        salvage: None,
        adopted: Some(up_to),
    };
    vec![
        Fact::Adopted(adopted.clone()),
        Fact::Adopted(AdoptedHistory {
            checkpoint: None,
            witness: HistorySource::Packs,
            diverged: None,
            ..adopted.clone()
        }),
        Fact::Missing,
        Fact::Resumed { receipt, head: None },
        Fact::Adopted(AdoptedHistory { journal_position: Some(heard), ..adopted }),
    ]
}

fn idle() -> Vec<Fact> {
    let agent = AgentName::parse("helper").expect("a name");
    let options = SessionOptions { idle_timeout: Some(60), ..SessionOptions::default() };
    let own = |r#type| {
        let azure = r#type == ModelApiDialect::Azure;
        let own_provider = Some(ByokEndpoint {
            r#type,
            base_url: "https://models.example".into(),
            deployment_id: azure.then(|| "ours".into()),
            api_version: azure.then(|| "2024-10-21".into()),
        });
        SessionOptions { own_provider, ..SessionOptions::default() }
    };
    let manner = SessionOptions {
        append_system_prompt: Some("Be kind.".into()),
        available_tools: Some(vec!["Read".into()]),
        reasoning_effort: Some("high".into()),
        streaming: Some(false),
        ..SessionOptions::default()
    };
    vec![
        Fact::Idle { ms: 0, left_ms: None, evicted: false },
        Fact::Idle { ms: 1_500_000, left_ms: Some(300_000), evicted: false },
        Fact::Idle { ms: 60_000, left_ms: None, evicted: true },
        Fact::Created { agent: agent.clone(), version: 2, options },
        Fact::Created { agent: agent.clone(), version: 2, options: own(ModelApiDialect::Anthropic) },
        Fact::Created { agent: agent.clone(), version: 2, options: own(ModelApiDialect::Openai) },
        Fact::Created { agent: agent.clone(), version: 2, options: own(ModelApiDialect::Azure) },
        Fact::Created { agent, version: 2, options: manner },
    ]
}

fn providers() -> Vec<Fact> {
    let agent = AgentName::parse("helper").expect("a name");
    let with = |provider| SessionOptions { provider: Some(provider), ..SessionOptions::default() };
    [ModelProvider::Offline, ModelProvider::Anthropic]
        .map(|provider| Fact::Created { agent: agent.clone(), version: 2, options: with(provider) })
        .to_vec()
}

/// Permission requests, and settings that change while the agent runs.
fn permissions() -> Vec<Fact> {
    let id = PermissionId(Uuid::from_u128(11));
    let asked = PermissionRequest {
        id,
        turn: Some(turn()),
        request: "r".into(),
        tool: "Bash".into(),
        input: json!({"command": "ls"}),
        tool_use_id: Some("t".into()),
        suggestions: vec![json!({"type": "setMode"})],
        question: false,
        expires_at: Timestamp(1000),
        on_timeout: PermissionTimeoutPolicy::Deny,
    };
    let question = PermissionRequest {
        turn: None,
        tool: "AskUserQuestion".into(),
        tool_use_id: None,
        suggestions: Vec::new(),
        question: true,
        on_timeout: PermissionTimeoutPolicy::Interrupt,
        ..asked.clone()
    };
    let allowed = PermissionRequest { on_timeout: PermissionTimeoutPolicy::Allow, ..asked.clone() };
    let answered = |verdict: Option<PermissionVerdict>, by, input| Fact::Answered {
        id,
        turn: Some(turn()),
        verdict,
        by,
        input,
    };
    let chosen = PermissionVerdict::Allow {
        updated_input: Some(json!({"command": "pwd"})),
        answers: [("Which?".to_owned(), "A".to_owned())].into(),
        updated_permissions: Vec::new(),
    };
    let agent = AgentName::parse("helper").expect("a name");
    let options = SessionOptions {
        permission_timeout: Some(60),
        on_permission_timeout: Some(PermissionTimeoutPolicy::Interrupt),
        ..SessionOptions::default()
    };
    vec![
        Fact::PermissionRequested(asked),
        Fact::PermissionRequested(question),
        Fact::PermissionRequested(allowed),
        answered(Some(PermissionVerdict::allow()), VerdictSource::Client, Some(3)),
        answered(Some(chosen), VerdictSource::Client, Some(3)),
        answered(Some(PermissionVerdict::deny("no")), VerdictSource::Policy, Some(4)),
        answered(None, VerdictSource::Cancelled, None),
        Fact::Setting { setting: LiveSetting::Model("m".into()), input: 5 },
        Fact::Setting { setting: LiveSetting::PermissionMode("default".into()), input: 6 },
        Fact::Created { agent, version: 2, options },
    ]
}

fn every_fact() -> Vec<Fact> {
    [
        beginnings(),
        turns(),
        captures(),
        life(),
        later_options(),
        history(),
        ladder(),
        providers(),
        permissions(),
        own_turns(),
        shared(),
        idle(),
        labels(),
        busy(),
        budgets(),
        bounds(),
        witnesses(),
        comparisons(),
        unsaved(),
        routed(),
        of_a_holder(),
        of_purged_sessions(),
        written_for_an_hour(),
        client_tools(),
        stored_credentials(),
    ]
    .concat()
}

/// A session whose key is stored by the server.
fn stored_credentials() -> Vec<Fact> {
    let agent = AgentName::parse("helper").expect("a name");
    let own_provider = Some(ByokEndpoint {
        r#type: ModelApiDialect::Anthropic,
        base_url: "https://models.example".into(),
        deployment_id: None,
        api_version: None,
    });
    let id = CredentialId::parse("00000000-0000-0000-0000-000000000007");
    let credential_id = Some(id.expect("an id"));
    let options = SessionOptions { own_provider, credential_id, ..SessionOptions::default() };
    vec![Fact::Created { agent, version: 2, options }]
}

/// Comparisons in a receipt, and an agent whose options changed during its start.
fn comparisons() -> Vec<Fact> {
    let receipt = |by| Receipt {
        path: ResumePath::Cold,
        source: ResumeSource::Local,
        from: TreeOrigin::Live,
        tier: Tier::Native,
        checkpoint: Some(4),
        verified: true,
        lost: Vec::new(),
        compared: Some(Box::new(ResumeComparison {
            events: 5,
            messages: Some(2),
            tree: Some("98ee".into()),
            by,
            agent_version: 1,
            model: None,
            permission_mode: None,
            changed: Vec::new(),
            remote: None,
        })),
        repaired: Vec::new(),
        salvage: None,
        adopted: None,
    };
    let resumed = |by| Fact::Resumed { receipt: receipt(by), head: None };
    vec![
        Fact::Awake {
            incarnation: Incarnation(Uuid::from_u128(8)),
            resumed_after: None,
            outdated: true,
            more_inputs: 0,
        },
        resumed(Some(ComparisonMethod::Metadata)),
        resumed(Some(ComparisonMethod::Content)),
        resumed(None),
    ]
}

/// Checkpoints that do not hold everything.
fn unsaved() -> Vec<Fact> {
    let Some(Fact::Saved(saved)) = captures().into_iter().next() else { return Vec::new() };
    let unsaved = vec![UnsavedPath { path: "workspace/pipe".into(), what: "a FIFO".into() }];
    vec![
        Fact::Saved(SavedCheckpoint { unsaved: unsaved.clone(), ..saved.clone() }),
        Fact::Saved(SavedCheckpoint { unsaved, unsaved_more: 3, ..saved }),
    ]
}

/// A message of a lock's holder.
fn of_a_holder() -> Vec<Fact> {
    vec![Fact::Queued {
        turn: turn(),
        content: json!("mine"),
        options: MessageOptions::default(),
        lock: Some(2),
    }]
}

/// Facts that named a session, after its purge.
fn of_purged_sessions() -> Vec<Fact> {
    let named = shared().into_iter().chain(beginnings().into_iter().skip(3));
    named.map(Fact::unnamed).collect()
}

/// A new kind does not compile here until it is handled, and fails below until it has a line.
const KINDS: usize = 43;
fn place(fact: &Fact) -> usize {
    match fact {
        Fact::Created { .. } => 0,
        Fact::Forked { .. } => 1,
        Fact::Queued { .. } => 2,
        Fact::Started { .. } => 3,
        Fact::Continued { .. } => 4,
        Fact::Said { .. } => 5,
        Fact::Interrupting { .. } => 6,
        Fact::Rested { .. } => 7,
        Fact::Saved(_) => 8,
        Fact::SaveFailed { .. } => 9,
        Fact::Finished { .. } => 10,
        Fact::Cut { .. } => 11,
        Fact::Awake { .. } => 12,
        Fact::Asleep { .. } => 13,
        Fact::Resuming => 14,
        Fact::Resumed { .. } => 15,
        Fact::Paused => 16,
        Fact::Stopped => 17,
        Fact::Failed { .. } => 18,
        Fact::Ended => 19,
        Fact::Rewound(_) => 20,
        Fact::ResumeFailed { .. } => 21,
        Fact::SelfStarted { .. } => 25,
        Fact::PermissionRequested(_) => 22,
        Fact::Answered { .. } => 23,
        Fact::Setting { .. } => 24,
        Fact::WorkspaceRewound(_) => 26,
        Fact::Idle { .. } => 27,
        Fact::Labelled { .. } => 28,
        Fact::Requeued { .. } => 29,
        Fact::Locked { .. } => 30,
        Fact::Unlocked { .. } => 31,
        Fact::Configured { .. } => 32,
        Fact::Used(_) => 33,
        Fact::BudgetReached(_) => 34,
        Fact::Steering { .. } => 35,
        Fact::Steered { .. } => 36,
        Fact::Adopted(_) => 37,
        Fact::Missing => 38,
        Fact::ToolRequested(_) => 39,
        Fact::ToolAnswered(_) => 40,
        Fact::ToolRepeated(_) => 41,
        Fact::ToolServerAsked { .. } => 42,
    }
}

#[test]
fn every_fact_is_written_as_it_was_in_the_first_version() {
    let written: String =
        every_fact().iter().map(|fact| format!("{}\t{}\n", fact.kind(), fact.encode())).collect();
    assert_eq!(written, GOLDEN, "written now:\n{written}");
}

#[test]
fn every_fact_of_the_first_version_is_still_read() {
    let read: Vec<Fact> = GOLDEN
        .lines()
        .map(|line| line.split_once('\t').expect("a kind and its json"))
        .map(|(kind, json)| Fact::decode(kind, json.to_owned()).expect(kind))
        .collect();
    assert_eq!(read, every_fact());
}

#[test]
fn every_kind_has_a_line() {
    let places: BTreeSet<usize> = every_fact().iter().map(place).collect();
    assert_eq!(places, (0..KINDS).collect());
}

#[test]
fn a_field_that_a_later_version_adds_does_not_hurt() {
    let later = r#"{"kind":"started","turn":"00000000-0000-0000-0000-000000000007","input":2,"new":true}"#;
    let read = Fact::decode("started", later.to_owned()).expect("read");
    assert_eq!(read, Fact::Started { turn: turn(), input: 2 });
}
