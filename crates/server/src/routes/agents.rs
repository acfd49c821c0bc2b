//! Agents: deployed from a folder on the server or from uploaded files; each deploy is a version.

use super::{
    MOST_SYSTEM_PROMPT, limits, quotas,
    take::{Body, ListAsked, NoParameters, Part, at_most, blocking, environment},
};
use crate::{
    app::App,
    archive::{Ledger, Limits, Refusal},
    audit,
    auth::{Admin, Caller},
    edge::{self, Peer},
    fields,
    once::{self, once},
    problem::{Answer, Problem},
    shapes,
};
use ash_model::{AgentName, Bounds, Image, Needs, Provider, Runtime, TenantId};
use ash_snapshot::{Capture, Folder, Links, RelPath, Repo, Root, Trouble, UnderWay};
use ash_store::{Agent, Deed, DeployClaim, NewAgent};
use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, io::Read, path::PathBuf};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Deploy {
    name: AgentName,
    path: Option<PathBuf>,
    files: Option<Vec<Upload>>,
    system_prompt: Option<String>,
    runtime: Option<Runtime>,
    env: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Upload {
    path: String,
    content: String,
}

#[derive(Deserialize)]
pub(super) struct Change {
    env: Option<BTreeMap<String, String>>,
    config: Option<Map<String, Value>>,
}

/// What an agent folder says about itself.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Manifest {
    runtime: Option<Runtime>,
    provider: Option<Provider>,
    image: Option<String>,
    limits: Option<Map<String, Value>>,
    setup: Option<Setup>,
    sandbox: Option<Walls>,
}

/// How long its scripts may take.
#[derive(Deserialize, Default, Clone, Copy)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Setup {
    install_seconds: Option<u64>,
    startup_seconds: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Walls {
    #[serde(default)]
    user_namespaces: bool,
    prewarm: Option<u32>,
}

impl Manifest {
    /// A name that no engine takes would only fail when a session starts.
    fn image(&self) -> Answer<Option<Image>> {
        let image = self.image.as_deref().map(Image::parse_reference).transpose();
        image.map_err(|error| Problem::invalid("invalid_manifest", format!("ash.toml: image: {error}")))
    }

    fn limits(&self) -> Answer<Option<Bounds>> {
        let given = self.limits.clone().map(Value::Object);
        limits::over(given, None)
            .map_err(|problem| Problem::invalid("invalid_manifest", format!("ash.toml: {}", problem.error)))
    }

    fn needs(&self, scripts: Scripts) -> Answer<Needs> {
        let Setup { install_seconds, startup_seconds } = self.setup.unwrap_or_default();
        for (name, given) in [("installSeconds", install_seconds), ("startupSeconds", startup_seconds)] {
            if given.is_some_and(|seconds| !SECONDS.contains(&seconds)) {
                let (least, most) = SECONDS.into_inner();
                let error = format!("ash.toml: setup.{name} must be {least} to {most}");
                return Err(Problem::invalid("invalid_manifest", error));
            }
        }
        let prewarm = self.sandbox.as_ref().and_then(|sandbox| sandbox.prewarm);
        if prewarm.is_some_and(|count| count > MOST_PREWARMED) {
            let error = format!("ash.toml: sandbox.prewarm must be 0 to {MOST_PREWARMED}");
            return Err(Problem::invalid("invalid_manifest", error));
        }
        Ok(Needs {
            install_seconds: scripts.install.then(|| install_seconds.unwrap_or(Needs::INSTALL_SECONDS)),
            startup_seconds: scripts.startup.then(|| startup_seconds.unwrap_or(Needs::STARTUP_SECONDS)),
            user_namespaces: self.sandbox.as_ref().is_some_and(|sandbox| sandbox.user_namespaces),
            prewarm,
        })
    }
}

/// More is a mistake; how long it is at most, the server says.
const SECONDS: std::ops::RangeInclusive<u64> = 1..=86_400;
/// Of sandboxes for one agent that nobody has asked for.
const MOST_PREWARMED: u32 = 64;
const ROUTE: &str = "POST /api/agents";
const MANIFEST: u64 = 64 << 10;
const CLAUDE_MD: &str = "CLAUDE.md";

pub(super) async fn deploy(
    State(app): State<App>,
    Admin(caller): Admin,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Body<Deploy>,
) -> Answer<(StatusCode, Json<Value>)> {
    let Deploy { name, path, files, system_prompt, runtime, env } = body.value;
    if path.is_some() && !app.is_operator(caller.tenant()) {
        return Err(Problem::invalid(
            "path_not_allowed",
            "Only the server's own tenant may deploy from a path; upload the files instead",
        ));
    }
    if let Some(path) = &path {
        may_read(&app, path, edge::is_own_user(peer.map(|Extension(peer)| peer), &headers))?;
    }
    at_most("systemPrompt", system_prompt.as_deref(), MOST_SYSTEM_PROMPT)?;
    let env = env.map(environment).transpose()?;
    let origin = path.clone().unwrap_or_else(|| PathBuf::from(format!("agents/{name}")));
    let repo = app.sessions.rooms().repo(caller.tenant())?;
    let scratch = app.scratch.join(uuid::Uuid::new_v4().to_string());
    let for_work = name.clone();
    let (tree, manifest, scripts, _under_way) = blocking(move || match path {
        // As it was compared, without links.
        Some(path) => from_path(&repo, &path.canonicalize().unwrap_or(path)),
        None => from_upload(&repo, &scratch, &for_work, (files.unwrap_or_default(), system_prompt)),
    })
    .await?;
    let new = NewAgent {
        tenant: caller.tenant().clone(),
        name: name.clone(),
        tree,
        runtime: runtime.or(manifest.runtime).unwrap_or(app.default_runtime),
        provider: manifest.provider,
        limits: manifest.limits()?,
        needs: manifest.needs(scripts)?,
        image: manifest.image()?,
        origin: origin.display().to_string(),
        env,
        claim: None,
        at: app.sessions.rooms().clock(),
    };
    // What the operator asks for beyond it is cut when it is used.
    if !caller.is_operator() {
        limits::within(&app, &caller, new.limits)?;
    }
    app.sessions.rooms().permits(&new.needs, None, new.limits)?;
    // One that is not installed may come later; one that is too old would only fail later.
    app.sessions.rooms().settings.supported(new.runtime).await?;
    let _alone = app.growing.lock(caller.tenant().clone()).await;
    // A version that its key has made is answered, and no other one made.
    let used = once::used(&app, &caller.0, &headers, ROUTE).await?;
    let is_again = used.is_some_and(|resource| resource.contains('@'));
    if !is_again {
        quotas::agent(&app, caller.tenant(), &name, &new.needs).await?;
    }
    // After everything that refuses: a deploy that was refused leaves no key behind.
    let claim = once(&app, &caller.0, &headers, (ROUTE, &body.bytes), name.to_string()).await?;
    let claim = claim.key.map(|key| DeployClaim { route: ROUTE.to_owned(), key });
    if !is_again {
        audit::of_agent(&app, &caller, &name, (Deed::Deployed, None)).await?;
        let variables = new.env.as_ref().map(|env| env.0.keys().cloned().collect());
        audit::of_change(&app, &caller, audit::Changed::Agent(&name), (Vec::new(), variables)).await?;
    }
    let agent = app.sessions.rooms().store.deploy(NewAgent { claim, ..new }).await?;
    app.sessions.expect(caller.tenant(), &agent).await?;
    Ok((StatusCode::CREATED, Json(json!({ "agent": shapes::agent(&agent) }))))
}

/// Whether an agent may be deployed from there. `by_own_user`: who asks could read it without us.
fn may_read(app: &App, path: &std::path::Path, by_own_user: bool) -> Answer<()> {
    let refused = |error: String| Err(Problem::invalid("path_not_allowed", error));
    if app.agent_dirs.is_empty() {
        return match by_own_user {
            true => Ok(()),
            false => refused(
                "A path is read only for the user that runs the server, on its machine and without a proxy: upload the files instead, as `ash deploy` does, or have the operator name the folder in ASH_AGENT_DIRS"
                    .to_owned(),
            ),
        };
    }
    // Links are followed before it is compared.
    let real = path.canonicalize().ok();
    let beneath = |dir: &PathBuf| {
        let dir = dir.canonicalize().ok();
        dir.zip(real.as_ref()).is_some_and(|(dir, real)| real.starts_with(dir))
    };
    match app.agent_dirs.iter().any(beneath) {
        true => Ok(()),
        false => refused(format!(
            "{} is in none of the folders that ASH_AGENT_DIRS names: upload the files instead, as `ash deploy` does",
            path.display()
        )),
    }
}

/// Which scripts the folder has.
#[derive(Clone, Copy, Default)]
struct Scripts {
    install: bool,
    startup: bool,
}

/// The tree is kept from collections until its row is there.
type Deployed = (String, Manifest, Scripts, UnderWay);

fn from_path(repo: &Repo, path: &std::path::Path) -> Answer<Deployed> {
    if !path.is_absolute() {
        return Err(Problem::invalid("invalid_path", "The agent's path must be absolute"));
    }
    let folder = Folder::open(path).map_err(|error| {
        Problem::invalid(
            "agent_directory",
            format!("Agent directory {} cannot be read: {error}", path.display()),
        )
    })?;
    if ![CLAUDE_MD, "AGENTS.md", "ash.toml"].iter().any(|name| has(&folder, name)) {
        return Err(Problem::invalid(
            "agent_directory",
            "Agent directory must contain CLAUDE.md (or AGENTS.md or ash.toml)",
        ));
    }
    take(repo, &folder)
}

fn has(folder: &Folder, name: &str) -> bool {
    RelPath::parse(name).is_ok_and(|name| folder.open_file(&name, Links::Inside).is_ok())
}

type Files = (Vec<Upload>, Option<String>);

fn from_upload(repo: &Repo, scratch: &std::path::Path, name: &AgentName, files: Files) -> Answer<Deployed> {
    std::fs::create_dir(scratch).map_err(Problem::internal)?;
    let taken = fill(scratch, name, files).and_then(|folder| take(repo, &folder));
    if let Err(error) = Folder::erase(scratch) {
        tracing::warn!(%error, "uploaded files could not be removed");
    }
    taken
}

fn fill(scratch: &std::path::Path, name: &AgentName, (files, system_prompt): Files) -> Answer<Folder> {
    let folder = Folder::open(scratch)?;
    let mut has_prompt = false;
    let mut ledger = Ledger::new(&Limits::UPLOAD);
    for file in files {
        let path = ledger.path(file.path.as_bytes()).map_err(bad_path)?;
        let content = STANDARD.decode(&file.content).map_err(|_| {
            Problem::invalid(
                "invalid_base64",
                format!("The content of \"{}\" is not valid base64", file.path),
            )
        })?;
        ledger.file(&path, content.len() as u64).map_err(bad_path)?;
        write(&folder, &path, &content)?;
        has_prompt |= file.path == CLAUDE_MD;
    }
    if !has_prompt {
        let prompt = system_prompt.unwrap_or_else(|| format!("# {name}\n"));
        let path = RelPath::parse(CLAUDE_MD).map_err(Problem::internal)?;
        write(&folder, &path, prompt.as_bytes())?;
    }
    Ok(folder)
}

fn bad_path(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::BadEntry { name, why } => Problem::invalid(
            "invalid_path",
            format!("Path \"{name}\" escapes agent directory or is invalid: it {why}"),
        ),
        refusal => refusal.into(),
    }
}

fn write(folder: &Folder, path: &RelPath, mut content: &[u8]) -> Answer<()> {
    let written = folder.write_file(path, &mut content, None, 0o644);
    written.map(drop).map_err(|error| match error.kind() {
        // The folder was empty before: two of the paths do not go together.
        Trouble::Invalid | Trouble::NotAFile | Trouble::NotFound => {
            Problem::invalid("invalid_path", format!("Path \"{path}\" cannot be written: {error}"))
        }
        Trouble::Full | Trouble::Damaged | Trouble::Io => error.into(),
    })
}

fn take(repo: &Repo, folder: &Folder) -> Answer<Deployed> {
    let manifest = manifest(folder)?;
    let scripts = Scripts { install: has(folder, "install.sh"), startup: has(folder, "startup.sh") };
    let taken = repo.take(&Capture::of(&[Root { name: "workspace", folder }]))?;
    Ok((taken.tree.as_str().to_owned(), manifest, scripts, taken.under_way))
}

fn manifest(folder: &Folder) -> Answer<Manifest> {
    let path = RelPath::parse("ash.toml").map_err(Problem::internal)?;
    let Ok((file, _)) = folder.open_file(&path, Links::Inside) else { return Ok(Manifest::default()) };
    let mut text = String::new();
    file.take(MANIFEST)
        .read_to_string(&mut text)
        .map_err(|error| Problem::invalid("invalid_manifest", format!("ash.toml: {error}")))?;
    manifest_of(&text).map_err(|error| Problem::invalid("invalid_manifest", format!("ash.toml: {error}")))
}

fn manifest_of(text: &str) -> Result<Manifest, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| unreadable(text, &error))?;
    let object =
        serde_json::to_value(table).map_err(|_| "a number or a time in it has no place there".to_owned())?;
    fields::as_written(object).map_err(|error| error.to_string())
}

/// Where, and not in which words a parser thinks of it.
fn unreadable(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start).min(text.len());
    let before = text.get(..start).unwrap_or_default();
    let (line, column) = (
        before.matches('\n').count() + 1,
        before.rsplit('\n').next().unwrap_or_default().chars().count() + 1,
    );
    format!("it is not TOML from line {line}, column {column} on")
}

const DEFAULT: &str = "default";
const DEFAULT_PROMPT: &str =
    "# default\n\nYou are a helpful agent. Your workspace is the current directory.\n";

/// An agent called `default` is there for whoever asks for it before anything was deployed under that name.
pub(super) async fn make_default(app: &App, caller: &Caller, name: &AgentName) -> Answer<()> {
    let (rooms, tenant) = (app.sessions.rooms(), caller.tenant());
    if name.as_str() != DEFAULT || rooms.store.agent(tenant, name).await?.is_some() {
        return Ok(());
    }
    let (repo, scratch, own) =
        (rooms.repo(tenant)?, app.scratch.join(uuid::Uuid::new_v4().to_string()), name.clone());
    let files = (Vec::new(), Some(DEFAULT_PROMPT.to_owned()));
    let (tree, _, _, _under_way) = blocking(move || from_upload(&repo, &scratch, &own, files)).await?;
    let agent = NewAgent {
        tenant: tenant.clone(),
        name: name.clone(),
        tree,
        runtime: app.default_runtime,
        provider: None,
        image: None,
        limits: None,
        needs: Needs::default(),
        origin: "built in".to_owned(),
        env: None,
        claim: None,
        at: rooms.clock(),
    };
    let _alone = app.growing.lock(tenant.clone()).await;
    quotas::agent(app, tenant, name, &agent.needs).await?;
    audit::of_agent(app, caller, name, (Deed::Deployed, Some("built in".to_owned()))).await?;
    rooms.store.deploy(agent).await?;
    Ok(())
}

async fn find(app: &App, tenant: &TenantId, name: &str) -> Answer<Agent> {
    let not_found = || Problem::not_found("agent_not_found", "Agent not found");
    let name = AgentName::parse(name).map_err(|_| not_found())?;
    app.sessions.rooms().store.agent(tenant, &name).await?.ok_or_else(not_found)
}

pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    _: ListAsked<NoParameters>,
) -> Answer<Json<Value>> {
    let agents = app.sessions.rooms().store.agents(caller.tenant()).await?;
    Ok(Json(json!({ "agents": agents.iter().map(shapes::agent).collect::<Vec<_>>() })))
}

pub(super) async fn get(State(app): State<App>, caller: Caller, Part(name): Part) -> Answer<Json<Value>> {
    let agent = find(&app, caller.tenant(), &name).await?;
    Ok(Json(json!({ "agent": shapes::agent(&agent) })))
}

pub(super) async fn change(
    State(app): State<App>,
    Admin(caller): Admin,
    Part(name): Part,
    body: Body<Change>,
) -> Answer<Json<Value>> {
    // What is changed is what was read.
    let alone = app.growing.lock(caller.tenant().clone()).await;
    let agent = find(&app, caller.tenant(), &name).await?;
    let config = body.value.config.map(|change| merged(&agent, change));
    config.as_deref().map_or(Ok(()), |config| quotas::config(&app, config))?;
    let env = body.value.env.map(environment).transpose()?;
    let names = env.as_ref().map(|env| env.0.keys().cloned().collect());
    let changed = (config.as_ref().map(|_| "config".to_owned()).into_iter().collect(), names);
    audit::of_change(&app, &caller, audit::Changed::Agent(&agent.name), changed).await?;
    app.sessions.rooms().store.change_agent(caller.tenant(), &agent.name, config, env).await?;
    drop(alone);
    get(State(app), caller, Part(name)).await
}

fn merged(agent: &Agent, change: Map<String, Value>) -> String {
    let mut config = shapes::config(agent);
    if let Some(config) = config.as_object_mut() {
        config.extend(change);
    }
    config.to_string()
}

pub(super) async fn config(State(app): State<App>, caller: Caller, Part(name): Part) -> Answer<Json<Value>> {
    let agent = find(&app, caller.tenant(), &name).await?;
    Ok(Json(json!({ "config": shapes::config(&agent) })))
}

pub(super) async fn change_config(
    State(app): State<App>,
    Admin(caller): Admin,
    Part(name): Part,
    body: Body<Map<String, Value>>,
) -> Answer<Json<Value>> {
    let alone = app.growing.lock(caller.tenant().clone()).await;
    let agent = find(&app, caller.tenant(), &name).await?;
    let changed = (body.value.keys().cloned().collect(), None);
    let config = merged(&agent, body.value);
    quotas::config(&app, &config)?;
    audit::of_change(&app, &caller, audit::Changed::Agent(&agent.name), changed).await?;
    app.sessions.rooms().store.change_agent(caller.tenant(), &agent.name, Some(config), None).await?;
    drop(alone);
    self::config(State(app), caller, Part(name)).await
}

pub(super) async fn delete(
    State(app): State<App>,
    Admin(caller): Admin,
    Part(name): Part,
) -> Answer<Json<Value>> {
    let agent = find(&app, caller.tenant(), &name).await?;
    audit::of_agent(&app, &caller, &agent.name, (Deed::AgentDeleted, None)).await?;
    app.sessions
        .rooms()
        .store
        .delete_agent(caller.tenant(), &agent.name, app.sessions.rooms().clock())
        .await?;
    app.sessions.expect_no_more(caller.tenant(), &agent.name);
    Ok(Json(json!({ "ok": true })))
}
