//! Sessions: create, find, change, and move them between states.

use super::{
    agents, compaction,
    extract::{
        FromFields, JsonBody, PathParam, QueryParams, StrictJsonBody, StrictQueryParams, check_max_size,
        find_open_session, find_session, find_session_or_remote, parse_environment, queue_timeout,
    },
    limits, locks,
    mcp_secrets::{StoredMcpSecrets, size as secrets_size},
    quotas, session_metadata,
    session_options::{SessionOptionsPatch, with_provider},
    workspaces,
};
use crate::{
    app::AppState,
    auth::Caller,
    field_coercion::{self, FieldError, UnknownFieldPolicy},
    idempotency::idempotent_request,
    openapi::{Answer, Created},
    problem::{ApiProblem, ApiResult},
    wire::{
        permission::PermissionView,
        session::{
            EndedSessionAnswer, ExecAnswer, InterruptAnswer, LogLineView, LogListAnswer,
            ResumedSessionAnswer, SessionAnswer, SessionDetail, SessionDetailAnswer, SessionView,
        },
        tool::WaitingToolCall,
        usage::{ResourceUsageView, UsageView},
    },
};
use ash_model::{
    AgentName, FailureKind, OwnerId, Quotas, SessionId, SessionMetadata, SessionOptions, SessionRowId,
    SessionStatus,
};
use ash_session::{
    AuditSubject, ConfigChange, ForkSpec, IdFrom, IdempotentResource, NewAuditEntry, NewSession,
    OptionsChange, Sessions,
};
use ash_store::{AuditAction, EndDisposition, SecretEnv, SessionRow};
use axum::{extract::State, http::HeaderMap};
use serde::Deserialize;
use serde_json::Value;
use std::{borrow::Cow, collections::BTreeMap, time::Duration};
use utoipa::{
    IntoParams, PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{AllOfBuilder, Schema},
    },
};

/// It is passed as an argument of a program.
const MAX_COMMAND_BYTES: usize = 100_000;

/// The fields of a new session besides its options.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct CreateSessionFields {
    /// The name of the agent.
    agent: String,
    /// The id of the new session; without one, the server chooses.
    session_id: Option<SessionId>,
    /// The name of a shared workspace; also accepted as `workspaceId`.
    #[serde(alias = "workspaceId")]
    workspace: Option<String>,
    /// The owner; only a caller whose key has no owner may set it.
    owner: Option<OwnerId>,
    #[schema(value_type = Option<SessionMetadata>)]
    metadata: Option<BTreeMap<String, String>>,
    /// More variables; they win over `env`.
    extra_env: Option<BTreeMap<String, String>>,
    /// Variables for the processes of the session.
    env: Option<BTreeMap<String, String>>,
}

pub(super) struct CreateSessionRequest {
    own: CreateSessionFields,
    options: SessionOptionsPatch,
}

impl FromFields for CreateSessionRequest {
    fn from_fields(object: Value) -> Result<Self, FieldError> {
        field_coercion::deserialize_split_fields(object, UnknownFieldPolicy::Refuse)
            .map(|(own, options)| CreateSessionRequest { own, options })
    }
}

/// New environment variables of a session.
#[derive(Deserialize, Default, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct EnvPatch {
    /// More variables; they win over `env`.
    extra_env: Option<BTreeMap<String, String>>,
    /// Replaces all variables.
    env: Option<BTreeMap<String, String>>,
}

/// Changed configuration of a session.
pub(super) struct SessionConfigPatch {
    variables: EnvPatch,
    options: SessionOptionsPatch,
}

impl FromFields for SessionConfigPatch {
    fn from_fields(object: Value) -> Result<Self, FieldError> {
        field_coercion::deserialize_split_fields(object, UnknownFieldPolicy::Refuse)
            .map(|(variables, options)| SessionConfigPatch { variables, options })
    }
}

/// A body whose fields are those of two types, which `serde(flatten)` could not read.
macro_rules! body_of_two {
    ($name:ident: $one:ty, $other:ty) => {
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                AllOfBuilder::new().item(<$one>::schema()).item(<$other>::schema()).into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
                <$one>::schemas(schemas);
                <$other>::schemas(schemas);
            }
        }
    };
}

body_of_two! { CreateSessionRequest: CreateSessionFields, SessionOptionsPatch }
body_of_two! { SessionConfigPatch: EnvPatch, SessionOptionsPatch }

pub(super) fn shown(sessions: &Sessions, session: &SessionRow) -> SessionView {
    SessionView::of(session, sessions.now())
}

pub(super) fn answer(sessions: &Sessions, session: &SessionRow) -> Answer<SessionAnswer> {
    Answer(SessionAnswer { session: shown(sessions, session) })
}

pub(super) async fn create(
    State(app): State<AppState>,
    caller: Caller,
    headers: HeaderMap,
    body: StrictJsonBody<CreateSessionRequest>,
) -> ApiResult<Created<SessionAnswer>> {
    let patience = queue_timeout(&headers)?;
    let CreateSessionRequest { own, options } = body.value;
    let CreateSessionFields { agent, session_id, workspace, owner, metadata, extra_env, env } = own;
    let owner = session_metadata::resolve_owner(&caller, owner)?.owner;
    let metadata = session_metadata::metadata(&app.quotas, metadata.unwrap_or_default())?;
    let agent = AgentName::parse(&agent)
        .map_err(|_| ApiProblem::not_found("agent_not_found", &format!("Agent \"{agent}\" not found")))?;
    let workspace = workspace.map(|name| workspaces::slug(&name)).transpose()?;
    app.sessions.check_durability(options.durability)?;
    let mut options = options;
    let wanted = options.take_provider(&app, &caller).await?;
    let secrets = options.secrets(StoredMcpSecrets::default())?.unwrap_or_default();
    let compaction = options.infinite_sessions.clone();
    let (options, way) = with_provider(options.merged_over(SessionOptions::default())?, wanted)?;
    check_options(&app.quotas, &options, secrets_size(&secrets))?;
    limits::check_resource_limits(&app.policy, &caller, options.limits)?;
    let env = variables(env, extra_env)?.unwrap_or_default();
    let id_from = if session_id.is_some() { IdFrom::Caller } else { IdFrom::Server };
    let proposed = session_id.unwrap_or_else(SessionId::fresh);
    let request = idempotent_request(&caller, &headers, ("POST /api/sessions", &body.summary.hash))?;
    let claim = app.idempotency.claim(request.as_ref(), proposed.to_string()).await?;
    let id = SessionId::parse(&claim.resource).map_err(ApiProblem::internal)?;
    let tenant = caller.tenant().clone();
    let detail = Some(format!("agent {agent}"));
    let subject = AuditSubject::NewSession { tenant: &tenant, id: &id, owner: owner.as_ref() };
    let (actor, action) = (caller.audit_actor(), AuditAction::Created);
    let audit = app.audit.entry(NewAuditEntry { actor, action, subject, detail });
    let new = NewSession {
        tenant,
        owner,
        metadata,
        id: id.clone(),
        id_from,
        agent,
        workspace,
        options,
        env,
        secrets,
        egress: way,
        queue_timeout: patience,
        audit,
    };
    let made = match created_earlier(&app.sessions, &caller, &claim, &id).await {
        Some(session) => session,
        None => {
            agents::make_default(&app, &caller, &new.agent).await?;
            let agent = app.agents.find(&new.tenant, &new.agent).await?;
            agent.map_or(Ok(()), |agent| {
                compaction::check(compaction.as_ref(), new.options.infinite_sessions.as_ref(), agent.runtime)
            })?;
            app.sessions.create(new).await?
        }
    };
    Ok(Created(SessionAnswer { session: shown_with_env(&app.sessions, &made).await? }))
}

/// Limits the size of all options together: each has its own limit, but there are many. `secrets` is the size of the
/// values that the options contain only as masks.
fn check_options(quotas: &Quotas, options: &SessionOptions, secrets: usize) -> ApiResult<()> {
    let json = serde_json::to_value(options).map_err(ApiProblem::internal)?;
    // No program can be given a NUL byte.
    let fields = json.as_object().into_iter().flatten();
    if let Some((name, _)) = fields.into_iter().find(|(_, value)| holds_nul(value)) {
        let error = format!("{name} must not hold NUL characters");
        return Err(ApiProblem::invalid("invalid_body", error));
    }
    quotas::config_of(quotas, json.to_string().len() + secrets)
}

fn holds_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(values) => values.iter().any(holds_nul),
        Value::Object(fields) => fields.iter().any(|(name, value)| name.contains('\0') || holds_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Includes the names of the environment variables.
async fn shown_with_env(sessions: &Sessions, session: &SessionRow) -> ApiResult<SessionView> {
    Ok(shown(sessions, session).with_env(sessions.env_names(session.no).await?))
}

/// `None`: the request does not mention them.
fn variables(
    env: Option<BTreeMap<String, String>>,
    extra: Option<BTreeMap<String, String>>,
) -> ApiResult<Option<SecretEnv>> {
    if env.is_none() && extra.is_none() {
        return Ok(None);
    }
    let all = env.into_iter().chain(extra).flatten().collect();
    parse_environment(all).map(Some)
}

/// The session that an earlier request with the same key created, if it got that far.
async fn created_earlier(
    sessions: &Sessions,
    caller: &Caller,
    claim: &IdempotentResource,
    id: &SessionId,
) -> Option<SessionRow> {
    if !claim.is_replay {
        return None;
    }
    sessions.find(&caller.0, id).await.ok()
}

pub(super) async fn get(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<Answer<SessionDetailAnswer>> {
    let session = find_session(&app.sessions, &caller, &id).await?;
    let detail = SessionDetail {
        session: shown_with_env(&app.sessions, &session).await?,
        pending: app.sessions.pending(&session).await?.iter().map(PermissionView::of).collect(),
        pending_tools: app
            .sessions
            .open_tool_calls(&session)
            .await?
            .iter()
            .map(WaitingToolCall::of)
            .collect(),
        lock: locks::of(&app.sessions, &session),
        usage: UsageView::of(&app.usage.of_session(&caller.0, &session).await?),
        limits: limits::effective_limits(&app, &session).await?,
        resources: ResourceUsageView::of(&app.usage.resources_of(&session).await?),
    };
    Ok(Answer(SessionDetailAnswer { session: detail }))
}

pub(super) async fn change_config(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
    body: StrictJsonBody<SessionConfigPatch>,
) -> ApiResult<Answer<SessionDetailAnswer>> {
    let found = find_open_session(&app.sessions, &caller, &id).await?;
    let changed = field_names(&body.summary.fields);
    // Runs to its end even if the caller disconnects, so that the agent and the stored options agree.
    let changing =
        tokio::spawn(change_live_config(app.clone(), caller.clone(), found.no, (body.value, changed)));
    changing.await.map_err(|_| ApiProblem::internal("the change was cut off"))??;
    get(State(app), caller, PathParam(id)).await
}

/// The settings that a body sets, without those that hold variables.
fn field_names(fields: &[String]) -> Vec<String> {
    fields.iter().filter(|name| !["env", "extraEnv"].contains(&name.as_str())).cloned().collect()
}

/// Changes the running agent first: a setting that the agent refuses is not stored.
async fn change_live_config(
    app: AppState,
    caller: Caller,
    no: SessionRowId,
    (change, changed): (SessionConfigPatch, Vec<String>),
) -> ApiResult<()> {
    let SessionConfigPatch { variables: given, options } = change;
    let env = variables(given.env, given.extra_env)?;
    let _alone = app.options_locks.lock(no).await;
    let mut change = options;
    let (settings, touched, wanted) =
        (change.live_settings(), change.changed_parts(), change.take_provider(&app, &caller).await?);
    app.sessions.check_durability(change.durability)?;
    limits::check_resource_limits(&app.policy, &caller, change.limits()?)?;
    let session = app.sessions.get(no).await?;
    let mut before = session.options.clone();
    let known = app.sessions.option_secrets(no).await?;
    let known = StoredMcpSecrets::take_from_options(&mut before, known)?;
    let kept = known.size();
    let secrets = change.secrets(known)?;
    let compaction = change.infinite_sessions.clone();
    let (options, way) = with_provider(change.merged_over(before)?, wanted)?;
    check_options(&app.quotas, &options, secrets.as_ref().map_or(kept, secrets_size))?;
    compaction::check(compaction.as_ref(), options.infinite_sessions.as_ref(), session.runtime)?;
    app.sessions.accepts_options(&session, &options, touched).await?;
    let variables = env.as_ref().map(|env| env.0.keys().cloned().collect());
    let subject = AuditSubject::Session(&session);
    let changed = ConfigChange { fields: changed, variables };
    app.audit.record_config_change(&caller.audit_actor(), subject, changed).await?;
    app.sessions.change_options(no, OptionsChange { options, env, secrets, settings }).await?;
    if let Some(way) = way {
        app.sessions.set_client_credentials(no, way);
    }
    Ok(())
}

/// One change at a time, so that two simultaneous changes both take effect.
pub(super) async fn change_options(
    app: &AppState,
    no: SessionRowId,
    change: impl FnOnce(SessionOptions) -> ApiResult<SessionOptions>,
) -> ApiResult<()> {
    let _alone = app.options_locks.lock(no).await;
    let options = change(app.sessions.get(no).await?.options)?;
    let wanted = OptionsChange { options, env: None, secrets: None, settings: Vec::new() };
    Ok(app.sessions.change_options(no, wanted).await?)
}

pub(super) async fn pause(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<Answer<SessionAnswer>> {
    let found = find_session(&sessions, &caller, &id).await?;
    Ok(answer(&sessions, &sessions.pause(found.no).await?))
}

pub(super) async fn stop(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<Answer<SessionAnswer>> {
    let found = find_session(&sessions, &caller, &id).await?;
    Ok(answer(&sessions, &sessions.stop(found.no).await?))
}

#[derive(Deserialize, IntoParams)]
pub(super) struct EndSessionQuery {
    /// Also purges the session.
    #[serde(default)]
    #[param(required = false)]
    purge: bool,
}

pub(super) async fn end(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    QueryParams(ending): QueryParams<EndSessionQuery>,
) -> ApiResult<Answer<EndedSessionAnswer>> {
    let found = find_session(&sessions, &caller, &id).await?;
    let fate = if ending.purge { EndDisposition::Purge } else { EndDisposition::End };
    let last = sessions.end(found.no, caller.audit_actor(), fate).await?;
    Ok(Answer(EndedSessionAnswer { session: shown(&sessions, &last), purged: ending.purge }))
}

/// The body may have options, which apply from then on.
pub(super) async fn resume(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
    headers: HeaderMap,
    body: StrictJsonBody<SessionConfigPatch>,
) -> ApiResult<Answer<ResumedSessionAnswer>> {
    let patience = queue_timeout(&headers)?;
    let found = find_session_or_remote(&app.sessions, &caller, &id).await?;
    let place = app.sessions.reserve(&found, patience).await?;
    // A body without fields changes nothing.
    if found.summary.status != SessionStatus::Ended && !body.summary.fields.is_empty() {
        // Runs to its end even if the caller disconnects.
        let changed = field_names(&body.summary.fields);
        let changing =
            tokio::spawn(change_live_config(app.clone(), caller.clone(), found.no, (body.value, changed)));
        changing.await.map_err(|_| ApiProblem::internal("the change was cut off"))??;
    }
    let (session, receipt) = app.sessions.resume(&found, place).await?;
    Ok(Answer(ResumedSessionAnswer { session: shown(&app.sessions, &session), resume: receipt }))
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ForkRequest {
    /// The id of the fork; without one, the server chooses.
    session_id: Option<SessionId>,
    /// The checkpoint to fork from; without one, now.
    checkpoint: Option<u64>,
    /// The workspace of the parent; without it the fork works in a copy. Also accepted as `workspaceId`.
    #[serde(alias = "workspaceId")]
    workspace: Option<String>,
}

impl FromFields for ForkRequest {
    fn from_fields(object: Value) -> Result<Self, FieldError> {
        field_coercion::deserialize_fields(object, UnknownFieldPolicy::Refuse)
    }
}

pub(super) async fn fork(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
    headers: HeaderMap,
    body: StrictJsonBody<ForkRequest>,
) -> ApiResult<Created<SessionAnswer>> {
    let parent = find_session(&app.sessions, &caller, &id).await?;
    let beside = match &body.value.workspace {
        None => false,
        Some(text) if parent.slug == Some(super::workspaces::slug(text)?) => true,
        Some(_) => return Err(other_workspace(&parent)),
    };
    let id_from = if body.value.session_id.is_some() { IdFrom::Caller } else { IdFrom::Server };
    let proposed = body.value.session_id.unwrap_or_else(SessionId::fresh);
    let route = format!("POST /api/sessions/{id}/fork");
    let request = idempotent_request(&caller, &headers, (&route, &body.summary.hash))?;
    let claim = app.idempotency.claim(request.as_ref(), proposed.to_string()).await?;
    let id = SessionId::parse(&claim.resource).map_err(ApiProblem::internal)?;
    let made = match created_earlier(&app.sessions, &caller, &claim, &id).await {
        Some(session) => session,
        None => {
            let (action, detail) = (AuditAction::Created, Some(format!("fork of {}", parent.id)));
            let SessionRow { tenant, owner, .. } = &parent;
            let subject = AuditSubject::NewSession { tenant, id: &id, owner: owner.as_ref() };
            let audit =
                app.audit.entry(NewAuditEntry { actor: caller.audit_actor(), action, subject, detail });
            let fork = ForkSpec { id, id_from, checkpoint: body.value.checkpoint, in_place: beside, audit };
            app.sessions.fork(&parent, fork).await?
        }
    };
    Ok(Created(SessionAnswer { session: shown(&app.sessions, &made) }))
}

fn other_workspace(parent: &SessionRow) -> ApiProblem {
    let error = match &parent.slug {
        Some(slug) => format!(
            "A fork works in workspace \"{slug}\", as its parent does, or without `workspace` in a copy of it"
        ),
        None => {
            "Its workspace has no name, so nobody can share it; without `workspace` the fork works in a copy"
                .to_owned()
        }
    };
    ApiProblem::invalid("invalid_workspace", error)
}

pub(super) async fn interrupt(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<Answer<InterruptAnswer>> {
    let found = find_open_session(&sessions, &caller, &id).await?;
    let turn = sessions.interrupt(found.no).await?;
    Ok(Answer(InterruptAnswer { ok: true, turn }))
}

#[derive(Deserialize, ToSchema)]
pub(super) struct ExecCommandRequest {
    /// For `/bin/sh -c`.
    #[schema(max_length = 100_000)]
    command: String,
    /// Milliseconds; 30,000 without one.
    #[schema(minimum = 1, maximum = 300_000)]
    timeout: Option<u64>,
}

pub(super) async fn exec(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
    body: JsonBody<ExecCommandRequest>,
) -> ApiResult<Answer<ExecAnswer>> {
    let found = find_session(&app.sessions, &caller, &id).await?;
    let ExecCommandRequest { command, timeout } = body.value;
    let timeout = timeout.unwrap_or(30_000);
    if !(1..=300_000).contains(&timeout) {
        return Err(ApiProblem::invalid("invalid_body", "timeout must be 1 to 300000 milliseconds"));
    }
    if command.contains('\0') {
        return Err(ApiProblem::invalid("invalid_body", "command must not hold NUL bytes"));
    }
    check_max_size("command", (command.len(), "bytes"), MAX_COMMAND_BYTES)?;
    // A command that is refused by what is known already was not executed.
    app.sessions.check_takes_commands(&found)?;
    let (action, subject) = (AuditAction::Executed, AuditSubject::Session(&found));
    app.audit.record(NewAuditEntry { actor: caller.audit_actor(), action, subject, detail: None }).await?;
    let done = app.sessions.exec(found.no, command, Duration::from_millis(timeout)).await;
    let done = done.map_err(|error| match app.sessions.is_stopping() {
        true => stopped_with(error),
        false => error.into(),
    })?;
    Ok(Answer(ExecAnswer {
        exit_code: done.exit_code,
        stdout: String::from_utf8_lossy(&done.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
        timed_out: done.timed_out,
        truncated: done.truncated,
    }))
}

/// A command that was cut off because the server stops.
fn stopped_with(error: ash_session::Error) -> ApiProblem {
    match error.code() {
        "sandbox_ended" | "server_stopped" => {
            let error = "The server was stopped while the command ran, which ended with its sandbox";
            ApiProblem::new(FailureKind::Unavailable, "server_stopped", error)
        }
        _ => error.into(),
    }
}

#[derive(Deserialize, IntoParams)]
pub(super) struct LogsQuery {
    /// Only lines with a higher index; -1 without one.
    #[param(minimum = -1)]
    after: Option<i64>,
}

pub(super) async fn logs(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    StrictQueryParams(asked): StrictQueryParams<LogsQuery>,
) -> ApiResult<Answer<LogListAnswer>> {
    let found = find_session(&sessions, &caller, &id).await?;
    let after = asked.after.unwrap_or(-1);
    if after < -1 {
        return Err(ApiProblem::invalid("invalid_query", "after must be -1 or more"));
    }
    let lines = sessions.logs(found.no, after).await;
    let logs = lines.into_iter().map(|line| LogLineView {
        index: line.index,
        level: line.level.as_str(),
        text: line.text,
        ts: line.at,
    });
    Ok(Answer(LogListAnswer { logs: logs.collect(), source: "sandbox" }))
}
