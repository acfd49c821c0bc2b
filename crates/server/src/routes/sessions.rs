//! Sessions: making, finding, and moving them through their states.

use super::{
    MOST_MODEL, MOST_SYSTEM_PROMPT,
    take::{Asked, Body, Part, at_most, can_wait, environment, open_session, session, session_anywhere},
};
use super::{agents, owners, workspaces};
use crate::{
    app::App,
    auth::Caller,
    once::{Once, once},
    problem::{Answer, Problem},
    shapes,
};
use ash_model::{
    AgentName, Durability, OnInterrupted, OnPermissionTimeout, Options, OwnerId, Provider, SessionId,
    SessionNo, Setting,
};
use ash_session::{Fork, NewSession};
use ash_store::{Fate, Session};
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// The reference's, and those of Claude Code that make sense in a sandbox.
const PERMISSION_MODES: [&str; 6] =
    ["bypassPermissions", "permissionsByAgent", "default", "acceptEdits", "plan", "dontAsk"];
/// A week.
const LONGEST_WAIT: u64 = 604_800;
/// Ten years.
const LONGEST_LIFE: u64 = 315_360_000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct New {
    agent: String,
    session_id: Option<SessionId>,
    /// The name of a workspace that it shares with others.
    #[serde(alias = "workspaceId")]
    workspace: Option<String>,
    /// Whose it is; only somebody without an owner of their own may say so.
    owner: Option<OwnerId>,
    metadata: Option<BTreeMap<String, String>>,
    extra_env: Option<BTreeMap<String, String>>,
    env: Option<BTreeMap<String, String>>,
    #[serde(flatten)]
    options: Settable,
}

/// The options of the reference's create and config calls.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Settable {
    model: Option<String>,
    provider: Option<Value>,
    system_prompt: Option<String>,
    permission_mode: Option<String>,
    allowed_tools: Option<Vec<String>>,
    disallowed_tools: Option<Vec<String>>,
    betas: Option<Vec<String>>,
    mcp_servers: Option<serde_json::Map<String, Value>>,
    subagents: Option<serde_json::Map<String, Value>>,
    initial_agent: Option<String>,
    on_interrupted: Option<OnInterrupted>,
    wake_report: Option<bool>,
    permission_timeout: Option<u64>,
    on_permission_timeout: Option<OnPermissionTimeout>,
    max_wait: Option<u64>,
    idle_timeout: Option<u64>,
    ttl: Option<u64>,
    durability: Option<Durability>,
    ephemeral: Option<bool>,
}

impl Settable {
    /// What a live agent can go on with.
    fn settings(&self) -> Vec<Setting> {
        let model = self.model.clone().map(Setting::Model);
        model.into_iter().chain(self.permission_mode.clone().map(Setting::PermissionMode)).collect()
    }

    fn over(self, before: Options) -> Answer<Options> {
        at_most("model", self.model.as_deref(), MOST_MODEL)?;
        at_most("systemPrompt", self.system_prompt.as_deref(), MOST_SYSTEM_PROMPT)?;
        if let Some(mode) = &self.permission_mode
            && !PERMISSION_MODES.contains(&mode.as_str())
        {
            let error = format!("permissionMode must be one of {}", PERMISSION_MODES.join(", "));
            return Err(Problem::invalid("invalid_body", error));
        }
        let seconds = [
            ("permissionTimeout", self.permission_timeout),
            ("maxWait", self.max_wait),
            ("idleTimeout", self.idle_timeout),
        ];
        for (name, given) in seconds {
            if given.is_some_and(|seconds| seconds > LONGEST_WAIT) {
                let error = format!("{name} must be 0 to {LONGEST_WAIT} seconds");
                return Err(Problem::invalid("invalid_body", error));
            }
        }
        if self.ttl.is_some_and(|seconds| seconds > LONGEST_LIFE) {
            let error = format!("ttl must be 0 (never) to {LONGEST_LIFE} seconds");
            return Err(Problem::invalid("invalid_body", error));
        }
        Ok(Options {
            model: self.model.or(before.model),
            provider: self.provider.map(provider).transpose()?.or(before.provider),
            system_prompt: self.system_prompt.or(before.system_prompt),
            permission_mode: self.permission_mode.or(before.permission_mode),
            allowed_tools: self.allowed_tools.or(before.allowed_tools),
            disallowed_tools: self.disallowed_tools.or(before.disallowed_tools),
            betas: self.betas.or(before.betas),
            mcp_servers: self.mcp_servers.map(Value::Object).or(before.mcp_servers),
            subagents: self.subagents.map(Value::Object).or(before.subagents),
            initial_agent: self.initial_agent.or(before.initial_agent),
            on_interrupted: self.on_interrupted.or(before.on_interrupted),
            wake_report: self.wake_report.or(before.wake_report),
            permission_timeout: self.permission_timeout.or(before.permission_timeout),
            on_permission_timeout: self.on_permission_timeout.or(before.on_permission_timeout),
            max_wait: self.max_wait.or(before.max_wait),
            idle_timeout: self.idle_timeout.or(before.idle_timeout),
            ttl: self.ttl.or(before.ttl),
            durability: self.durability.or(before.durability),
            ephemeral: self.ephemeral.or(before.ephemeral),
            base: before.base,
        })
    }
}

/// A name, or an object with nothing but its `type`: whoever sends a key with it must hear that it is not taken.
fn provider(given: Value) -> Answer<Provider> {
    let name = match &given {
        Value::Object(fields) if fields.len() == 1 => fields.get("type"),
        other => Some(other),
    };
    name.and_then(Value::as_str).and_then(Provider::parse).ok_or_else(|| {
        Problem::invalid(
            "invalid_body",
            "provider must be \"offline\" or \"anthropic\"; keys are set for the server, not for a session",
        )
    })
}

pub(super) fn shown(app: &App, session: &Session) -> Value {
    shapes::session(session, app.sessions.rooms().clock())
}

pub(super) fn answer(app: &App, session: &Session) -> Json<Value> {
    Json(json!({ "session": shown(app, session) }))
}

pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    body: Body<New>,
) -> Answer<(StatusCode, Json<Value>)> {
    let New { agent, session_id, workspace, owner, metadata, extra_env, env, options } = body.value;
    let owner = owners::for_whom(&caller, owner)?.owner;
    let metadata = owners::metadata(metadata.unwrap_or_default())?;
    let agent = AgentName::parse(&agent)
        .map_err(|_| Problem::not_found("agent_not_found", &format!("Agent \"{agent}\" not found")))?;
    let workspace = workspace.map(|name| workspaces::slug(&name)).transpose()?;
    can_wait(&app, options.durability)?;
    let options = options.over(Options::default())?;
    let mut vars = env.unwrap_or_default();
    vars.extend(extra_env.unwrap_or_default());
    let env = environment(vars)?;
    let proposed = session_id.unwrap_or_else(SessionId::fresh);
    let claim =
        once(&app, &caller.0, &headers, ("POST /api/sessions", &body.bytes), proposed.to_string()).await?;
    let id = SessionId::parse(&claim.resource).map_err(Problem::internal)?;
    let tenant = caller.tenant().clone();
    let new = NewSession { tenant, owner, metadata, id: id.clone(), agent, workspace, options, env };
    let made = match made_before(&app, &caller, &claim, &id).await {
        Some(session) => session,
        None => {
            agents::make_default(&app, caller.tenant(), &new.agent).await?;
            app.sessions.create(new).await?
        }
    };
    Ok((StatusCode::CREATED, answer(&app, &made)))
}

/// What an earlier try with the same key made, if it came that far.
async fn made_before(app: &App, caller: &Caller, claim: &Once, id: &SessionId) -> Option<Session> {
    if !claim.again {
        return None;
    }
    app.sessions.find(&caller.0, id).await.ok()
}

pub(super) async fn get(State(app): State<App>, caller: Caller, Part(id): Part) -> Answer<Json<Value>> {
    let session = session(&app, &caller, &id).await?;
    let mut shown = shown(&app, &session);
    let pending = app.sessions.pending(&session).await?;
    shown["pending"] = pending.iter().map(shapes::permission).collect();
    Ok(Json(json!({ "session": shown })))
}

pub(super) async fn change_config(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    body: Body<Settable>,
) -> Answer<Json<Value>> {
    let found = open_session(&app, &caller, &id).await?;
    // To its end even if the caller hangs up: what the agent goes on with is what is stored.
    let changing = tokio::spawn(change_live(app.clone(), found.no, body.value));
    changing.await.map_err(|_| Problem::internal("the change was cut off"))??;
    get(State(app), caller, Part(id)).await
}

/// A live agent first: what it does not agree to is not stored.
async fn change_live(app: App, no: SessionNo, change: Settable) -> Answer<()> {
    let _alone = app.changing_options.lock(no).await;
    let settings = change.settings();
    can_wait(&app, change.durability)?;
    let options = change.over(app.sessions.get(no).await?.options)?;
    app.sessions.change_options(no, options.clone(), settings).await?;
    Ok(app.sessions.rooms().store.set_options(no, &options).await?)
}

/// One after the other, so that two changes at the same time both count.
pub(super) async fn change_options(
    app: &App,
    no: SessionNo,
    change: impl FnOnce(Options) -> Answer<Options>,
) -> Answer<()> {
    let _alone = app.changing_options.lock(no).await;
    let options = change(app.sessions.get(no).await?.options)?;
    Ok(app.sessions.rooms().store.set_options(no, &options).await?)
}

pub(super) async fn pause(State(app): State<App>, caller: Caller, Part(id): Part) -> Answer<Json<Value>> {
    let found = session(&app, &caller, &id).await?;
    Ok(answer(&app, &app.sessions.pause(found.no).await?))
}

pub(super) async fn stop(State(app): State<App>, caller: Caller, Part(id): Part) -> Answer<Json<Value>> {
    let found = session(&app, &caller, &id).await?;
    Ok(answer(&app, &app.sessions.stop(found.no).await?))
}

#[derive(Deserialize)]
pub(super) struct Ending {
    /// And forget it.
    #[serde(default)]
    purge: bool,
}

pub(super) async fn end(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    Asked(ending): Asked<Ending>,
) -> Answer<Json<Value>> {
    let found = session(&app, &caller, &id).await?;
    if ending.purge {
        let last = app.sessions.end(found.no, caller.order(), Fate::Purge).await?;
        return Ok(Json(json!({ "session": shown(&app, &last), "purged": true })));
    }
    Ok(answer(&app, &app.sessions.end(found.no, caller.order(), Fate::End).await?))
}

pub(super) async fn resume(State(app): State<App>, caller: Caller, Part(id): Part) -> Answer<Json<Value>> {
    let found = session_anywhere(&app, &caller, &id).await?;
    let (session, receipt) = app.sessions.resume(&found).await?;
    Ok(Json(json!({ "session": shown(&app, &session), "resume": receipt })))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewFork {
    session_id: Option<SessionId>,
    checkpoint: Option<u64>,
    /// The one that its parent works in; without it the fork works in a copy.
    #[serde(alias = "workspaceId")]
    workspace: Option<String>,
}

pub(super) async fn fork(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    headers: HeaderMap,
    body: Body<NewFork>,
) -> Answer<(StatusCode, Json<Value>)> {
    let parent = session(&app, &caller, &id).await?;
    let beside = match &body.value.workspace {
        None => false,
        Some(text) if parent.slug == Some(super::workspaces::slug(text)?) => true,
        Some(_) => return Err(other_workspace(&parent)),
    };
    let proposed = body.value.session_id.unwrap_or_else(SessionId::fresh);
    let route = format!("POST /api/sessions/{id}/fork");
    let claim = once(&app, &caller.0, &headers, (&route, &body.bytes), proposed.to_string()).await?;
    let id = SessionId::parse(&claim.resource).map_err(Problem::internal)?;
    let made = match made_before(&app, &caller, &claim, &id).await {
        Some(session) => session,
        None => {
            let fork = Fork { id, checkpoint: body.value.checkpoint, beside };
            app.sessions.fork(&parent, fork).await?
        }
    };
    Ok((StatusCode::CREATED, answer(&app, &made)))
}

fn other_workspace(parent: &Session) -> Problem {
    let error = match &parent.slug {
        Some(slug) => format!(
            "A fork works in workspace \"{slug}\", as its parent does, or without `workspace` in a copy of it"
        ),
        None => {
            "Its workspace has no name, so nobody can share it; without `workspace` the fork works in a copy"
                .to_owned()
        }
    };
    Problem::invalid("invalid_workspace", error)
}

pub(super) async fn interrupt(State(app): State<App>, caller: Caller, Part(id): Part) -> Answer<Json<Value>> {
    let found = open_session(&app, &caller, &id).await?;
    let turn = app.sessions.interrupt(found.no).await?;
    Ok(Json(json!({ "ok": true, "turn": turn })))
}

#[derive(Deserialize)]
pub(super) struct Exec {
    command: String,
    timeout: Option<u64>,
}

pub(super) async fn exec(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    body: Body<Exec>,
) -> Answer<Json<Value>> {
    let found = session(&app, &caller, &id).await?;
    let Exec { command, timeout } = body.value;
    let timeout = timeout.unwrap_or(30_000);
    if !(1..=300_000).contains(&timeout) {
        return Err(Problem::invalid("invalid_body", "timeout must be 1 to 300000 milliseconds"));
    }
    if command.contains('\0') || command.len() > 100_000 {
        return Err(Problem::invalid(
            "invalid_body",
            "command must not hold NUL bytes or be longer than 100000 bytes",
        ));
    }
    let done = app.sessions.exec(found.no, command, Duration::from_millis(timeout)).await?;
    Ok(Json(json!({
        "exitCode": done.exit_code, "stdout": String::from_utf8_lossy(&done.stdout), "stderr": String::from_utf8_lossy(&done.stderr),
        "timedOut": done.timed_out, "truncated": done.truncated,
    })))
}

#[derive(Deserialize)]
pub(super) struct LogsAfter {
    after: Option<i64>,
}

pub(super) async fn logs(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    Asked(asked): Asked<LogsAfter>,
) -> Answer<Json<Value>> {
    let found = session(&app, &caller, &id).await?;
    let after = asked.after.unwrap_or(-1);
    if after < -1 {
        return Err(Problem::invalid("invalid_query", "after must be -1 or more"));
    }
    let lines = app.sessions.logs(found.no, after).await;
    let logs: Vec<Value> = lines
        .iter()
        .map(|line| json!({ "index": line.index, "level": line.level.as_str(), "text": line.text, "ts": line.at }))
        .collect();
    Ok(Json(json!({ "logs": logs, "source": "sandbox" })))
}
