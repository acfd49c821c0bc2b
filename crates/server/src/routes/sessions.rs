//! Sessions: making, finding, and moving them through their states.

use super::{
    MOST_MODEL, MOST_SYSTEM_PROMPT,
    take::{Asked, Body, Part, at_most, can_wait, environment, open_session, session, session_anywhere},
};
use super::{
    agents, infinite, limits, locks, owners,
    provider::{self, Wanted},
    usage, workspaces,
};
use crate::{
    app::App,
    auth::Caller,
    once::{Once, once},
    problem::{Answer, Problem},
    shapes,
};
use ash_model::{
    AgentName, BadInnerPath, Durability, InnerPath, Limits, OnBusy, OnInterrupted, OnPermissionTimeout,
    Options, OwnerId, Root, SessionId, SessionNo, Setting, Status,
};
use ash_sandbox::Egress;
use ash_session::{Fork, NewSession};
use ash_store::{Env, Fate, Session};
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
/// It is an argument of a program.
const MOST_APPENDED: usize = 30_000;
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];
const MOST_SKILL_DIRECTORIES: usize = 20;
const MOST_NAMES: usize = 200;
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

/// What a session goes on with from now on.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Change {
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
    system_message: Option<SystemMessage>,
    append_system_prompt: Option<String>,
    available_tools: Option<Vec<String>>,
    #[serde(alias = "effort")]
    reasoning_effort: Option<String>,
    streaming: Option<bool>,
    allowed_tools: Option<Vec<String>>,
    #[serde(alias = "excludedTools")]
    disallowed_tools: Option<Vec<String>>,
    betas: Option<Vec<String>>,
    mcp_servers: Option<serde_json::Map<String, Value>>,
    subagents: Option<serde_json::Map<String, Value>>,
    initial_agent: Option<String>,
    custom_agents: Option<Vec<CustomAgent>>,
    working_directory: Option<String>,
    config_dir: Option<String>,
    skill_directories: Option<Vec<String>>,
    disabled_skills: Option<Vec<String>>,
    infinite_sessions: Option<Value>,
    on_interrupted: Option<OnInterrupted>,
    on_busy: Option<OnBusy>,
    wake_report: Option<bool>,
    permission_timeout: Option<u64>,
    on_permission_timeout: Option<OnPermissionTimeout>,
    max_wait: Option<u64>,
    idle_timeout: Option<u64>,
    ttl: Option<u64>,
    durability: Option<Durability>,
    ephemeral: Option<bool>,
    max_turns: Option<u32>,
    max_budget_usd: Option<f64>,
    max_tokens: Option<u64>,
    turn_limits: Option<Limits>,
    limits: Option<Value>,
}

impl Settable {
    /// What a live agent can go on with.
    fn settings(&self) -> Vec<Setting> {
        let model = self.model.clone().map(Setting::Model);
        model.into_iter().chain(self.permission_mode.clone().map(Setting::PermissionMode)).collect()
    }

    /// Who is to answer, taken out: there may be a key in it.
    fn wanted(&mut self, app: &App) -> Answer<Option<Wanted>> {
        self.provider.take().map(|given| provider::wanted(app, given)).transpose()
    }

    fn over(self, before: Options) -> Answer<Options> {
        at_most("model", self.model.as_deref(), MOST_MODEL)?;
        at_most("systemPrompt", self.system_prompt.as_deref(), MOST_SYSTEM_PROMPT)?;
        at_most("appendSystemPrompt", self.append_system_prompt.as_deref(), MOST_APPENDED)?;
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
        if let Some(effort) = &self.reasoning_effort
            && !EFFORTS.contains(&effort.as_str())
        {
            let error = format!("reasoningEffort must be one of {}", EFFORTS.join(", "));
            return Err(Problem::invalid("invalid_body", error));
        }
        let (replaced, appended) = match self.system_message {
            Some(message) => message.split()?,
            None => (None, None),
        };
        let custom = self.custom_agents.map(subagents).transpose()?;
        let working_directory = inner("workingDirectory", self.working_directory.as_deref())?;
        let config_dir = inner("configDir", self.config_dir.as_deref())?;
        if config_dir.as_ref().is_some_and(|dir| matches!(dir.root(), (Root::Workspace, _) | (_, ""))) {
            let error = "configDir must be a folder beneath /home/agent (or ~), which is the agent's own";
            return Err(Problem::invalid("invalid_body", error));
        }
        let skills = self.skill_directories.map(|dirs| many("skillDirectories", &dirs)).transpose()?;
        if let Some(skills) = &self.disabled_skills {
            at_most_names("disabledSkills", skills)?;
        }
        if self.ttl.is_some_and(|seconds| seconds > LONGEST_LIFE) {
            let error = format!("ttl must be 0 (never) to {LONGEST_LIFE} seconds");
            return Err(Problem::invalid("invalid_body", error));
        }
        let given = Limits {
            max_turns: self.max_turns,
            max_budget_usd: self.max_budget_usd,
            max_tokens: self.max_tokens,
        };
        let budget = given.over(Limits::of_session(&before));
        let of_turns = self.turn_limits.map(|given| given.over(before.turn_limits.unwrap_or_default()));
        usage::check(&budget)?;
        usage::check(&of_turns.unwrap_or_default())?;
        Ok(Options {
            model: self.model.or(before.model),
            provider: before.provider,
            own_provider: before.own_provider,
            system_prompt: replaced.or(self.system_prompt).or(before.system_prompt),
            append_system_prompt: appended.or(self.append_system_prompt).or(before.append_system_prompt),
            available_tools: self.available_tools.or(before.available_tools),
            reasoning_effort: self.reasoning_effort.or(before.reasoning_effort),
            streaming: self.streaming.or(before.streaming),
            permission_mode: self.permission_mode.or(before.permission_mode),
            allowed_tools: self.allowed_tools.or(before.allowed_tools),
            disallowed_tools: self.disallowed_tools.or(before.disallowed_tools),
            betas: self.betas.or(before.betas),
            mcp_servers: self.mcp_servers.map(Value::Object).or(before.mcp_servers),
            subagents: self.subagents.or(custom).map(Value::Object).or(before.subagents),
            initial_agent: self.initial_agent.or(before.initial_agent),
            working_directory: working_directory.or(before.working_directory),
            config_dir: config_dir.or(before.config_dir),
            skill_directories: skills.or(before.skill_directories),
            disabled_skills: self.disabled_skills.or(before.disabled_skills),
            infinite_sessions: infinite::over(self.infinite_sessions, before.infinite_sessions)?,
            on_interrupted: self.on_interrupted.or(before.on_interrupted),
            on_busy: self.on_busy.or(before.on_busy),
            wake_report: self.wake_report.or(before.wake_report),
            permission_timeout: self.permission_timeout.or(before.permission_timeout),
            on_permission_timeout: self.on_permission_timeout.or(before.on_permission_timeout),
            max_wait: self.max_wait.or(before.max_wait),
            idle_timeout: self.idle_timeout.or(before.idle_timeout),
            ttl: self.ttl.or(before.ttl),
            durability: self.durability.or(before.durability),
            ephemeral: self.ephemeral.or(before.ephemeral),
            max_turns: budget.max_turns,
            max_budget_usd: budget.max_budget_usd,
            max_tokens: budget.max_tokens,
            turn_limits: of_turns.or(before.turn_limits),
            limits: limits::over(self.limits, before.limits)?,
            base: before.base,
        })
    }
}

/// As the guides of other SDKs have them: in a list, each with its name.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CustomAgent {
    name: String,
    description: Option<String>,
    display_name: Option<String>,
    prompt: String,
    tools: Option<Vec<String>>,
    model: Option<String>,
}

fn subagents(agents: Vec<CustomAgent>) -> Answer<serde_json::Map<String, Value>> {
    let named = |agent: CustomAgent| {
        let CustomAgent { name, description, display_name, prompt, tools, model } = agent;
        let mut shape = json!({ "description": description.or(display_name).unwrap_or_else(|| name.clone()), "prompt": prompt });
        for (field, value) in [("tools", json!(tools)), ("model", json!(model))] {
            if !value.is_null() {
                shape[field] = value;
            }
        }
        match name.is_empty() {
            true => Err(Problem::invalid("invalid_body", "customAgents: each needs a name")),
            false => Ok((name, shape)),
        }
    };
    agents.into_iter().map(named).collect()
}

fn inner(name: &str, path: Option<&str>) -> Answer<Option<InnerPath>> {
    let wrong = |error: BadInnerPath| Problem::invalid("invalid_body", format!("{name} {error}"));
    path.map(|path| InnerPath::parse(path).map_err(wrong)).transpose()
}

fn many(name: &str, paths: &[String]) -> Answer<Vec<InnerPath>> {
    if paths.len() > MOST_SKILL_DIRECTORIES {
        let error = format!("{name} has more than {MOST_SKILL_DIRECTORIES}");
        return Err(Problem::invalid("invalid_body", error));
    }
    let all = paths.iter().map(|path| inner(name, Some(path)));
    Ok(all.collect::<Answer<Vec<_>>>()?.into_iter().flatten().collect())
}

fn at_most_names(name: &str, given: &[String]) -> Answer<()> {
    let plain = |text: &String| !text.is_empty() && text.len() <= 200 && !text.chars().any(char::is_control);
    if given.len() <= MOST_NAMES && given.iter().all(plain) {
        return Ok(());
    }
    let error = format!("{name} must be at most {MOST_NAMES} names of 1 to 200 characters");
    Err(Problem::invalid("invalid_body", error))
}

/// As the guide of other SDKs has it: words, or words and whether they replace the agent's own.
#[derive(Deserialize)]
#[serde(untagged)]
enum SystemMessage {
    Words(String),
    How { mode: Option<String>, content: String },
}

impl SystemMessage {
    /// What replaces the agent's own instructions, and what is added to them.
    fn split(self) -> Answer<(Option<String>, Option<String>)> {
        let (mode, content) = match self {
            SystemMessage::Words(content) => (None, content),
            SystemMessage::How { mode, content } => (mode, content),
        };
        match mode.as_deref() {
            None | Some("append") => {
                at_most("systemMessage", Some(&content), MOST_APPENDED)?;
                Ok((None, Some(content)))
            }
            Some("replace") => {
                at_most("systemMessage", Some(&content), MOST_SYSTEM_PROMPT)?;
                Ok((Some(content), None))
            }
            Some(_) => {
                Err(Problem::invalid("invalid_body", "systemMessage.mode must be \"append\" or \"replace\""))
            }
        }
    }
}

/// What is stored, and what is not.
fn with_provider(options: Options, wanted: Option<Wanted>) -> Answer<(Options, Option<Egress>)> {
    match wanted {
        None => Ok((options, None)),
        Some(Wanted::Known(known)) => {
            Ok((Options { provider: Some(known), own_provider: None, ..options }, None))
        }
        Some(Wanted::Own(own, way)) => {
            provider::has_model(own.r#type, options.model.as_deref())?;
            Ok((Options { provider: None, own_provider: Some(own), ..options }, Some(way)))
        }
    }
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
    let mut options = options;
    let wanted = options.wanted(&app)?;
    let (options, way) = with_provider(options.over(Options::default())?, wanted)?;
    usage::can_count(&app, &options)?;
    limits::allowed(&app, options.limits)?;
    let env = variables(env, extra_env)?.unwrap_or_default();
    let proposed = session_id.unwrap_or_else(SessionId::fresh);
    let claim =
        once(&app, &caller.0, &headers, ("POST /api/sessions", &body.bytes), proposed.to_string()).await?;
    let id = SessionId::parse(&claim.resource).map_err(Problem::internal)?;
    let tenant = caller.tenant().clone();
    let new = NewSession { tenant, owner, metadata, id: id.clone(), agent, workspace, options, env, way };
    let made = match made_before(&app, &caller, &claim, &id).await {
        Some(session) => session,
        None => {
            agents::make_default(&app, caller.tenant(), &new.agent).await?;
            let agent = app.sessions.rooms().store.agent(&new.tenant, &new.agent).await?;
            agent.map_or(Ok(()), |agent| {
                infinite::check(new.options.infinite_sessions.as_ref(), agent.runtime)
            })?;
            app.sessions.create(new).await?
        }
    };
    Ok((StatusCode::CREATED, answer(&app, &made)))
}

/// None if there are none, or what they are is sealed.
fn names_in(env: ash_store::Result<Env>) -> Answer<Option<Value>> {
    match env {
        Ok(env) if env.0.is_empty() => Ok(None),
        Ok(env) => Ok(Some(env.0.into_keys().map(|name| (name, json!("***"))).collect())),
        Err(ash_store::Error::Sealed) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// None: nothing is said of them.
fn variables(
    env: Option<BTreeMap<String, String>>,
    extra: Option<BTreeMap<String, String>>,
) -> Answer<Option<Env>> {
    if env.is_none() && extra.is_none() {
        return Ok(None);
    }
    let all = env.into_iter().chain(extra).flatten().collect();
    environment(all).map(Some)
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
    shown["lock"] = json!(locks::of(&app, &session));
    if let Some(names) = names_in(app.sessions.rooms().store.env(session.no).await)? {
        shown["config"]["env"] = names;
    }
    shown["usage"] = usage::of(&app, &caller, &session).await?;
    shown["limits"] = limits::in_force(&app, &session).await?;
    shown["resources"] = limits::resources(&app, &session).await?;
    Ok(Json(json!({ "session": shown })))
}

pub(super) async fn change_config(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    body: Body<Change>,
) -> Answer<Json<Value>> {
    let found = open_session(&app, &caller, &id).await?;
    // To its end even if the caller hangs up: what the agent goes on with is what is stored.
    let changing = tokio::spawn(change_live(app.clone(), found.no, body.value));
    changing.await.map_err(|_| Problem::internal("the change was cut off"))??;
    get(State(app), caller, Part(id)).await
}

/// A live agent first: what it does not agree to is not stored.
async fn change_live(app: App, no: SessionNo, Change { env, extra_env, options }: Change) -> Answer<()> {
    let env = variables(env, extra_env)?;
    let _alone = app.changing_options.lock(no).await;
    let mut change = options;
    let (settings, wanted) = (change.settings(), change.wanted(&app)?);
    can_wait(&app, change.durability)?;
    let session = app.sessions.get(no).await?;
    let (options, way) = with_provider(change.over(session.options.clone())?, wanted)?;
    usage::can_count(&app, &options)?;
    limits::allowed(&app, options.limits)?;
    infinite::check(options.infinite_sessions.as_ref(), session.runtime)?;
    app.sessions.may_bring(&session, &options)?;
    app.sessions.change_options(no, options, env, settings).await?;
    if let Some(way) = way {
        app.sessions.bring(no, way);
    }
    Ok(())
}

/// One after the other, so that two changes at the same time both count.
pub(super) async fn change_options(
    app: &App,
    no: SessionNo,
    change: impl FnOnce(Options) -> Answer<Options>,
) -> Answer<()> {
    let _alone = app.changing_options.lock(no).await;
    let options = change(app.sessions.get(no).await?.options)?;
    Ok(app.sessions.change_options(no, options, None, Vec::new()).await?)
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

/// With options, which count from then on.
pub(super) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    body: Body<Change>,
) -> Answer<Json<Value>> {
    let found = session_anywhere(&app, &caller, &id).await?;
    // Without a single field there is nothing to change.
    if found.card.status != Status::Ended && body.bytes.contains(&b':') {
        // To its end even if the caller hangs up.
        let changing = tokio::spawn(change_live(app.clone(), found.no, body.value));
        changing.await.map_err(|_| Problem::internal("the change was cut off"))??;
    }
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
