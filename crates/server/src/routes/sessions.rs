//! Sessions: making, finding, and moving them through their states.

use super::{
    agents, infinite, limits, locks,
    options::{Settable, with_provider},
    owners, quotas,
    secrets::{KnownSecrets, size as secrets_size},
    take::{
        Asked, Body, FromFields, ListAsked, Part, StrictBody, can_wait, environment, fits_in, open_session,
        patience, session, session_anywhere,
    },
    usage, workspaces,
};
use crate::{
    app::App,
    audit::{self, Changed, Ordered},
    auth::Caller,
    fields::{self, FieldError, UnknownFields},
    once::{Once, once},
    problem::{Answer, Problem},
    shapes,
};
use ash_model::{AgentName, Kind, Options, OwnerId, SessionId, SessionNo, Status};
use ash_session::{Fork, IdFrom, NewSession, OptionsChange};
use ash_store::{Deed, Env, Fate, Session};
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// It is an argument of a program.
const MOST_COMMAND: usize = 100_000;

/// What a new session is, beside its options.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewOwn {
    agent: String,
    /// The reference's; nothing here keeps credentials.
    credential_id: Option<String>,
    session_id: Option<SessionId>,
    /// The name of a workspace that it shares with others.
    #[serde(alias = "workspaceId")]
    workspace: Option<String>,
    /// Whose it is; only somebody without an owner of their own may say so.
    owner: Option<OwnerId>,
    metadata: Option<BTreeMap<String, String>>,
    extra_env: Option<BTreeMap<String, String>>,
    env: Option<BTreeMap<String, String>>,
}

pub(super) struct New {
    own: NewOwn,
    options: Settable,
}

impl FromFields for New {
    fn from_fields(object: Value) -> Result<Self, FieldError> {
        fields::two(object, UnknownFields::Refuse).map(|(own, options)| New { own, options })
    }
}

/// The variables that a session goes on with from now on.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct NewVariables {
    extra_env: Option<BTreeMap<String, String>>,
    env: Option<BTreeMap<String, String>>,
}

/// What a session goes on with from now on.
pub(super) struct Change {
    variables: NewVariables,
    options: Settable,
}

impl FromFields for Change {
    fn from_fields(object: Value) -> Result<Self, FieldError> {
        fields::two(object, UnknownFields::Refuse).map(|(variables, options)| Change { variables, options })
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
    body: StrictBody<New>,
) -> Answer<(StatusCode, Json<Value>)> {
    let patience = patience(&headers)?;
    let New { own, options } = body.value;
    let NewOwn { agent, credential_id, session_id, workspace, owner, metadata, extra_env, env } = own;
    if credential_id.is_some() {
        return Err(Problem::invalid("invalid_credential", "Invalid or inaccessible credential"));
    }
    let owner = owners::for_whom(&caller, owner)?.owner;
    let metadata = owners::metadata(&app, metadata.unwrap_or_default())?;
    let agent = AgentName::parse(&agent)
        .map_err(|_| Problem::not_found("agent_not_found", &format!("Agent \"{agent}\" not found")))?;
    let workspace = workspace.map(|name| workspaces::slug(&name)).transpose()?;
    can_wait(&app, options.durability)?;
    let mut options = options;
    let wanted = options.wanted(&app)?;
    let secrets = options.secrets(KnownSecrets::default())?.unwrap_or_default();
    let compaction = options.infinite_sessions.clone();
    let (options, way) = with_provider(options.over(Options::default())?, wanted)?;
    fits(&app, &options, secrets_size(&secrets))?;
    limits::allowed(&app, &caller, options.limits)?;
    let env = variables(env, extra_env)?.unwrap_or_default();
    let id_from = if session_id.is_some() { IdFrom::Caller } else { IdFrom::Server };
    let proposed = session_id.unwrap_or_else(SessionId::fresh);
    let claim =
        once(&app, &caller.0, &headers, ("POST /api/sessions", &body.bytes), proposed.to_string()).await?;
    let id = SessionId::parse(&claim.resource).map_err(Problem::internal)?;
    let tenant = caller.tenant().clone();
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
        way,
        patience,
    };
    let made = match made_before(&app, &caller, &claim, &id).await {
        Some(session) => session,
        None => {
            agents::make_default(&app, &caller, &new.agent).await?;
            let agent = app.sessions.rooms().store.agent(&new.tenant, &new.agent).await?;
            agent.map_or(Ok(()), |agent| {
                infinite::check(compaction.as_ref(), new.options.infinite_sessions.as_ref(), agent.runtime)
            })?;
            let detail = Some(format!("agent {}", new.agent));
            let ordered = Ordered {
                deed: Deed::Created,
                subject: id.as_str(),
                session: None,
                owner: new.owner.clone(),
                detail,
            };
            audit::record(&app, &caller, ordered).await?;
            app.sessions.create(new).await?
        }
    };
    Ok((StatusCode::CREATED, Json(json!({ "session": shown_with_env(&app, &made).await? }))))
}

/// All of its options together: each is bounded for itself, but there are many.
/// `secrets` takes the bytes of what the options hold only masks for.
fn fits(app: &App, options: &Options, secrets: usize) -> Answer<()> {
    let json = serde_json::to_string(options).map_err(Problem::internal)?;
    quotas::config_of(app, json.len() + secrets)
}

/// With the names of what is in its environment.
async fn shown_with_env(app: &App, session: &Session) -> Answer<Value> {
    let mut shown = shown(app, session);
    if let Some(names) = names_in(app.sessions.rooms().store.env(session.no).await)? {
        shown["config"]["env"] = names;
    }
    Ok(shown)
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
    let mut shown = shown_with_env(&app, &session).await?;
    let pending = app.sessions.pending(&session).await?;
    shown["pending"] = pending.iter().map(shapes::permission).collect();
    shown["lock"] = json!(locks::of(&app, &session));
    shown["usage"] = usage::of(&app, &caller, &session).await?;
    shown["limits"] = limits::in_force(&app, &session).await?;
    shown["resources"] = limits::resources(&app, &session).await?;
    Ok(Json(json!({ "session": shown })))
}

pub(super) async fn change_config(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    body: StrictBody<Change>,
) -> Answer<Json<Value>> {
    let found = open_session(&app, &caller, &id).await?;
    let changed = audit::field_names(&body.bytes);
    // To its end even if the caller hangs up: what the agent goes on with is what is stored.
    let changing = tokio::spawn(change_live(app.clone(), caller.clone(), found.no, (body.value, changed)));
    changing.await.map_err(|_| Problem::internal("the change was cut off"))??;
    get(State(app), caller, Part(id)).await
}

/// A live agent first: what it does not agree to is not stored.
async fn change_live(
    app: App,
    caller: Caller,
    no: SessionNo,
    (change, changed): (Change, Vec<String>),
) -> Answer<()> {
    let Change { variables: given, options } = change;
    let env = variables(given.env, given.extra_env)?;
    let _alone = app.changing_options.lock(no).await;
    let mut change = options;
    let (settings, touched, wanted) = (change.settings(), change.touched(), change.wanted(&app)?);
    can_wait(&app, change.durability)?;
    limits::allowed(&app, &caller, change.limits()?)?;
    let session = app.sessions.get(no).await?;
    let mut before = session.options.clone();
    let known = app.sessions.rooms().store.secrets(no).await;
    let known = KnownSecrets::of(&mut before, known)?;
    let kept = known.size();
    let secrets = change.secrets(known)?;
    let compaction = change.infinite_sessions.clone();
    let (options, way) = with_provider(change.over(before)?, wanted)?;
    fits(&app, &options, secrets.as_ref().map_or(kept, secrets_size))?;
    infinite::check(compaction.as_ref(), options.infinite_sessions.as_ref(), session.runtime)?;
    app.sessions.accepts_options(&session, &options, touched).await?;
    let names = env.as_ref().map(|env| env.0.keys().cloned().collect());
    audit::of_change(&app, &caller, Changed::Session(&session), (changed, names)).await?;
    app.sessions.change_options(no, OptionsChange { options, env, secrets, settings }).await?;
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
    let wanted = OptionsChange { options, env: None, secrets: None, settings: Vec::new() };
    Ok(app.sessions.change_options(no, wanted).await?)
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
    headers: HeaderMap,
    body: StrictBody<Change>,
) -> Answer<Json<Value>> {
    let patience = patience(&headers)?;
    let found = session_anywhere(&app, &caller, &id).await?;
    let place = app.sessions.reserve(&found, patience).await?;
    // Without a single field there is nothing to change.
    if found.card.status != Status::Ended && body.bytes.contains(&b':') {
        // To its end even if the caller hangs up.
        let changed = audit::field_names(&body.bytes);
        let changing =
            tokio::spawn(change_live(app.clone(), caller.clone(), found.no, (body.value, changed)));
        changing.await.map_err(|_| Problem::internal("the change was cut off"))??;
    }
    let (session, receipt) = app.sessions.resume(&found, place).await?;
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

impl FromFields for NewFork {
    fn from_fields(object: Value) -> Result<Self, FieldError> {
        fields::one(object, UnknownFields::Refuse)
    }
}

pub(super) async fn fork(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    headers: HeaderMap,
    body: StrictBody<NewFork>,
) -> Answer<(StatusCode, Json<Value>)> {
    let parent = session(&app, &caller, &id).await?;
    let beside = match &body.value.workspace {
        None => false,
        Some(text) if parent.slug == Some(super::workspaces::slug(text)?) => true,
        Some(_) => return Err(other_workspace(&parent)),
    };
    let id_from = if body.value.session_id.is_some() { IdFrom::Caller } else { IdFrom::Server };
    let proposed = body.value.session_id.unwrap_or_else(SessionId::fresh);
    let route = format!("POST /api/sessions/{id}/fork");
    let claim = once(&app, &caller.0, &headers, (&route, &body.bytes), proposed.to_string()).await?;
    let id = SessionId::parse(&claim.resource).map_err(Problem::internal)?;
    let made = match made_before(&app, &caller, &claim, &id).await {
        Some(session) => session,
        None => {
            let (deed, detail) = (Deed::Created, Some(format!("fork of {}", parent.id)));
            let ordered =
                Ordered { deed, subject: id.as_str(), session: None, owner: parent.owner.clone(), detail };
            audit::record(&app, &caller, ordered).await?;
            let fork = Fork { id, id_from, checkpoint: body.value.checkpoint, beside };
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
    if command.contains('\0') {
        return Err(Problem::invalid("invalid_body", "command must not hold NUL bytes"));
    }
    fits_in("command", (command.len(), "bytes"), MOST_COMMAND)?;
    audit::of_session(&app, &caller, &found, (Deed::Executed, None)).await?;
    let done = app.sessions.exec(found.no, command, Duration::from_millis(timeout)).await;
    let done = done.map_err(|error| match app.sessions.is_stopping() {
        true => stopped_with(error),
        false => error.into(),
    })?;
    Ok(Json(json!({
        "exitCode": done.exit_code, "stdout": String::from_utf8_lossy(&done.stdout), "stderr": String::from_utf8_lossy(&done.stderr),
        "timedOut": done.timed_out, "truncated": done.truncated,
    })))
}

/// A command that was cut off because the server stops.
fn stopped_with(error: ash_session::Error) -> Problem {
    match error.code() {
        "sandbox_ended" | "server_stopped" => {
            let error = "The server was stopped while the command ran, which ended with its sandbox";
            Problem::new(Kind::Unavailable, "server_stopped", error)
        }
        _ => error.into(),
    }
}

#[derive(Deserialize)]
pub(super) struct LogsAfter {
    after: Option<i64>,
}

pub(super) async fn logs(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    ListAsked(asked): ListAsked<LogsAfter>,
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
