//! Agents: deployed from a folder on the server or from uploaded files. Each deploy is a version.

use super::{
    MAX_SYSTEM_PROMPT_CHARS,
    extract::{
        JsonBody, LargeBody, NoQueryParams, PathParam, StrictQueryParams, blocking, check_schema_max_chars,
        parse_environment,
    },
    limits, quotas,
};
use crate::{
    app::AppState,
    archive::{ArchiveError, ArchiveLimits, UploadValidator},
    auth::{Caller, TenantAdmin},
    edge::{self, PeerAddresses},
    field_coercion,
    idempotency::idempotent_request,
    openapi::{Answer, Created},
    problem::{ApiProblem, ApiResult},
    shapes,
    wire::agent::{AgentAnswer, AgentConfigAnswer, AgentListAnswer, AgentView, DeletedAgentAnswer},
};
use ash_model::{
    AgentName, AgentRuntime, Image, ModelProvider, ResourceLimits, SandboxRequirements, TenantId,
};
use ash_session::{AgentSettingsChange, Agents, CapturedAgentFiles};
use ash_snapshot::{Folder, LinkPolicy, RelPath, SnapshotErrorKind};
use ash_store::{AgentRow, AuditActor, NewAgentVersion};
use axum::{Extension, extract::State, http::HeaderMap};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
};
use utoipa::ToSchema;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeployRequest {
    name: AgentName,
    /// An absolute path on the server's machine.
    #[schema(value_type = Option<String>, max_length = 4096)]
    path: Option<PathBuf>,
    files: Option<Vec<AgentFileUpload>>,
    /// The content of CLAUDE.md, if `files` has none.
    #[schema(max_length = 1_000_000)]
    system_prompt: Option<String>,
    runtime: Option<AgentRuntime>,
    /// Variables for its processes.
    env: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, ToSchema)]
struct AgentFileUpload {
    path: String,
    /// In base64.
    content: String,
}

#[derive(Deserialize, ToSchema)]
pub(super) struct AgentPatch {
    /// Replaces all variables.
    env: Option<BTreeMap<String, String>>,
    /// Merged into the settings.
    config: Option<Map<String, Value>>,
}

/// Any settings; each replaces the one of the same name.
#[derive(Deserialize, ToSchema)]
#[serde(transparent)]
pub(super) struct AgentConfigPatch(Map<String, Value>);

/// The manifest of an agent folder, `ash.toml`.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct AgentManifest {
    runtime: Option<AgentRuntime>,
    provider: Option<ModelProvider>,
    image: Option<String>,
    limits: Option<Map<String, Value>>,
    setup: Option<SetupTimeouts>,
    sandbox: Option<AgentManifestSandbox>,
}

/// Time limits of its scripts.
#[derive(Deserialize, Default, Clone, Copy)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct SetupTimeouts {
    install_seconds: Option<u64>,
    startup_seconds: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct AgentManifestSandbox {
    #[serde(default)]
    user_namespaces: bool,
    prewarm: Option<u32>,
}

impl AgentManifest {
    /// An invalid image name would otherwise fail only when a session starts.
    fn image(&self) -> ApiResult<Option<Image>> {
        let image = self.image.as_deref().map(Image::parse_reference).transpose();
        image.map_err(|error| ApiProblem::invalid("invalid_manifest", format!("ash.toml: image: {error}")))
    }

    fn limits(&self) -> ApiResult<Option<ResourceLimits>> {
        let given = self.limits.clone().map(Value::Object);
        limits::merge_resource_limits(given, None).map_err(|problem| {
            ApiProblem::invalid("invalid_manifest", format!("ash.toml: {}", problem.error))
        })
    }

    fn needs(&self, scripts: AgentScripts) -> ApiResult<SandboxRequirements> {
        let SetupTimeouts { install_seconds, startup_seconds } = self.setup.unwrap_or_default();
        for (name, given) in [("installSeconds", install_seconds), ("startupSeconds", startup_seconds)] {
            if given.is_some_and(|seconds| !SCRIPT_SECONDS_RANGE.contains(&seconds)) {
                let (least, most) = SCRIPT_SECONDS_RANGE.into_inner();
                let error = format!("ash.toml: setup.{name} must be {least} to {most}");
                return Err(ApiProblem::invalid("invalid_manifest", error));
            }
        }
        let prewarm = self.sandbox.as_ref().and_then(|sandbox| sandbox.prewarm);
        if prewarm.is_some_and(|count| count > MAX_PREWARMED) {
            let error = format!("ash.toml: sandbox.prewarm must be 0 to {MAX_PREWARMED}");
            return Err(ApiProblem::invalid("invalid_manifest", error));
        }
        Ok(SandboxRequirements {
            install_seconds: scripts
                .install
                .then(|| install_seconds.unwrap_or(SandboxRequirements::INSTALL_SECONDS)),
            startup_seconds: scripts
                .startup
                .then(|| startup_seconds.unwrap_or(SandboxRequirements::STARTUP_SECONDS)),
            user_namespaces: self.sandbox.as_ref().is_some_and(|sandbox| sandbox.user_namespaces),
            prewarm,
        })
    }
}

/// A larger value is a mistake. The server's own maximum applies in addition.
const SCRIPT_SECONDS_RANGE: std::ops::RangeInclusive<u64> = 1..=86_400;
/// Maximum number of prewarmed sandboxes for one agent.
const MAX_PREWARMED: u32 = 64;
const ROUTE: &str = "POST /api/agents";
const MAX_MANIFEST_BYTES: u64 = 64 << 10;
const CLAUDE_MD: &str = "CLAUDE.md";

pub(super) async fn deploy(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    peer: Option<Extension<PeerAddresses>>,
    headers: HeaderMap,
    LargeBody { body, memory }: LargeBody<JsonBody<DeployRequest>>,
) -> ApiResult<Created<AgentAnswer>> {
    let DeployRequest { name, path, files, system_prompt, runtime, env } = body.value;
    if path.is_some() && !app.is_operator(caller.tenant()) {
        return Err(ApiProblem::invalid(
            "path_not_allowed",
            "Only the server's own tenant may deploy from a path; upload the files instead",
        ));
    }
    let by_own_user = edge::is_own_user(peer.map(|Extension(peer)| peer), &headers);
    let folder =
        path.as_deref().map(|path| AgentFolder::open(path, &app.agent_dirs, by_own_user)).transpose()?;
    check_schema_max_chars("systemPrompt", system_prompt.as_deref(), MAX_SYSTEM_PROMPT_CHARS)?;
    let env = env.map(parse_environment).transpose()?;
    let origin = path.unwrap_or_else(|| PathBuf::from(format!("agents/{name}")));
    let scratch = app.scratch.join(uuid::Uuid::new_v4().to_string());
    let (agents, tenant, for_work) = (app.agents.clone(), caller.tenant().clone(), name.clone());
    let deployed = blocking(move || {
        let capture = |folder: &Folder| capture_agent(&agents, &tenant, folder);
        match folder {
            Some(folder) => folder.capture(capture),
            None => {
                let upload = AgentUpload { files: files.unwrap_or_default(), system_prompt };
                from_upload(&scratch, &for_work, upload, capture)
            }
        }
    })
    .await?;
    drop(memory);
    let DeployedFolder { files, manifest, scripts } = deployed;
    let new = NewAgentVersion {
        tenant: caller.tenant().clone(),
        name,
        tree: files.tree,
        runtime: runtime.or(manifest.runtime).unwrap_or(app.default_runtime),
        provider: manifest.provider,
        limits: manifest.limits()?,
        needs: manifest.needs(scripts)?,
        image: manifest.image()?,
        origin: origin.display().to_string(),
        env,
        claim: None,
        at: app.now(),
    };
    // Limits from the operator may exceed the maximum; they are reduced when they are used.
    if !caller.is_operator() {
        limits::check_operator_limits(&app.policy, &caller, new.limits)?;
    }
    let request = idempotent_request(&caller, &headers, (ROUTE, &body.summary.hash))?;
    let agent = app.agents.deploy(new, &caller.audit_actor(), request.as_ref()).await?;
    drop(files.under_way);
    Ok(Created(AgentAnswer { agent: AgentView::of(&agent) }))
}

/// A folder on the server's machine from which its caller may deploy. It is opened once, so that a later replacement is
/// not read.
struct AgentFolder(Folder);

impl AgentFolder {
    /// `by_own_user`: the caller is the server's own user, who can read the folder anyway.
    fn open(path: &Path, allowed: &[PathBuf], by_own_user: bool) -> ApiResult<AgentFolder> {
        let refused = |error: String| Err(ApiProblem::invalid("path_not_allowed", error));
        if allowed.is_empty() && !by_own_user {
            return refused(
                "A path is read only for the user that runs the server, on its machine and without a proxy: upload the files instead, as `ash deploy` does, or have the operator name the folder in ASH_AGENT_DIRS"
                    .to_owned(),
            );
        }
        let outside = || {
            refused(format!(
                "{} is in none of the folders that ASH_AGENT_DIRS names: upload the files instead, as `ash deploy` does",
                path.display()
            ))
        };
        if !path.is_absolute() && allowed.is_empty() {
            return Err(ApiProblem::invalid("invalid_path", "The agent's path must be absolute"));
        }
        // The canonical path has no links, so a link that is created later is not followed.
        let real = path.canonicalize();
        let folder = match real
            .as_ref()
            .map_err(ToString::to_string)
            .and_then(|real| Folder::open(real).map_err(|error| error.to_string()))
        {
            Ok(folder) => folder,
            // The answer does not reveal whether a path outside exists.
            Err(_) if !allowed.is_empty() => return outside(),
            Err(error) => {
                let error = format!("Agent directory {} cannot be read: {error}", path.display());
                return Err(ApiProblem::invalid("agent_directory", error));
            }
        };
        let opened = folder.real_path().map_err(ApiProblem::internal)?;
        let is_allowed = |dir: &PathBuf| dir.canonicalize().is_ok_and(|dir| opened.starts_with(dir));
        match allowed.is_empty() || allowed.iter().any(is_allowed) {
            true => Ok(AgentFolder(folder)),
            false => outside(),
        }
    }

    fn capture(
        self,
        capture: impl FnOnce(&Folder) -> ApiResult<DeployedFolder>,
    ) -> ApiResult<DeployedFolder> {
        let AgentFolder(folder) = self;
        if ![CLAUDE_MD, "AGENTS.md", "ash.toml"].iter().any(|name| has(&folder, name)) {
            return Err(ApiProblem::invalid(
                "agent_directory",
                "Agent directory must contain CLAUDE.md (or AGENTS.md or ash.toml)",
            ));
        }
        capture(&folder)
    }
}

/// Which scripts the folder has.
#[derive(Clone, Copy, Default)]
struct AgentScripts {
    install: bool,
    startup: bool,
}

/// What the server knows about a deployed folder.
struct DeployedFolder {
    files: CapturedAgentFiles,
    manifest: AgentManifest,
    scripts: AgentScripts,
}

fn has(folder: &Folder, name: &str) -> bool {
    RelPath::parse(name).is_ok_and(|name| folder.open_file(&name, LinkPolicy::Inside).is_ok())
}

struct AgentUpload {
    files: Vec<AgentFileUpload>,
    system_prompt: Option<String>,
}

fn from_upload(
    scratch: &std::path::Path,
    name: &AgentName,
    upload: AgentUpload,
    capture: impl FnOnce(&Folder) -> ApiResult<DeployedFolder>,
) -> ApiResult<DeployedFolder> {
    std::fs::create_dir(scratch).map_err(ApiProblem::internal)?;
    let taken = write_agent_files(scratch, name, upload).and_then(|folder| capture(&folder));
    if let Err(error) = Folder::erase(scratch) {
        tracing::warn!(%error, "uploaded files could not be removed");
    }
    taken
}

fn write_agent_files(
    scratch: &std::path::Path,
    name: &AgentName,
    AgentUpload { files, system_prompt }: AgentUpload,
) -> ApiResult<Folder> {
    let folder = Folder::open(scratch)?;
    let mut has_prompt = false;
    let mut ledger = UploadValidator::new(&ArchiveLimits::UPLOAD);
    for file in files {
        let path = ledger.path(file.path.as_bytes()).map_err(bad_path)?;
        let content = STANDARD.decode(&file.content).map_err(|_| {
            ApiProblem::invalid(
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
        let path = RelPath::parse(CLAUDE_MD).map_err(ApiProblem::internal)?;
        write(&folder, &path, prompt.as_bytes())?;
    }
    Ok(folder)
}

fn bad_path(refusal: ArchiveError) -> ApiProblem {
    match refusal {
        ArchiveError::BadEntry { name, why } => ApiProblem::invalid(
            "invalid_path",
            format!("Path \"{name}\" escapes agent directory or is invalid: it {why}"),
        ),
        refusal => refusal.into(),
    }
}

fn write(folder: &Folder, path: &RelPath, mut content: &[u8]) -> ApiResult<()> {
    let written = folder.write_file(path, &mut content, None, 0o644);
    written.map(drop).map_err(|error| match error.kind() {
        // The folder was empty before, so two of the uploaded paths conflict.
        SnapshotErrorKind::Invalid | SnapshotErrorKind::NotAFile | SnapshotErrorKind::NotFound => {
            ApiProblem::invalid("invalid_path", format!("Path \"{path}\" cannot be written: {error}"))
        }
        SnapshotErrorKind::Full | SnapshotErrorKind::Damaged | SnapshotErrorKind::Io => error.into(),
    })
}

fn capture_agent(agents: &Agents, tenant: &TenantId, folder: &Folder) -> ApiResult<DeployedFolder> {
    let manifest = manifest(folder)?;
    let scripts = AgentScripts { install: has(folder, "install.sh"), startup: has(folder, "startup.sh") };
    Ok(DeployedFolder { files: agents.capture(tenant, folder)?, manifest, scripts })
}

fn manifest(folder: &Folder) -> ApiResult<AgentManifest> {
    let path = RelPath::parse("ash.toml").map_err(ApiProblem::internal)?;
    let Ok((file, _)) = folder.open_file(&path, LinkPolicy::Inside) else {
        return Ok(AgentManifest::default());
    };
    let mut text = String::new();
    file.take(MAX_MANIFEST_BYTES)
        .read_to_string(&mut text)
        .map_err(|error| ApiProblem::invalid("invalid_manifest", format!("ash.toml: {error}")))?;
    manifest_of(&text).map_err(|error| ApiProblem::invalid("invalid_manifest", format!("ash.toml: {error}")))
}

fn manifest_of(text: &str) -> Result<AgentManifest, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| unreadable(text, &error))?;
    let object =
        serde_json::to_value(table).map_err(|_| "a number or a time in it has no place there".to_owned())?;
    field_coercion::as_written(object).map_err(|error| error.to_string())
}

/// The position of the error, without the parser's own wording.
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

/// The agent `default` of the operator's tenant.
pub(crate) async fn default_agent(app: &AppState) -> ApiResult<AgentName> {
    let name = AgentName::parse(DEFAULT).expect("a name");
    make_default_of(app, &TenantId::main(), AuditActor::default(), &name).await?;
    Ok(name)
}

/// Creates the agent `default` on first use, if no agent was deployed under that name.
pub(super) async fn make_default(app: &AppState, caller: &Caller, name: &AgentName) -> ApiResult<()> {
    make_default_of(app, caller.tenant(), caller.audit_actor(), name).await
}

async fn make_default_of(
    app: &AppState,
    tenant: &TenantId,
    actor: AuditActor,
    name: &AgentName,
) -> ApiResult<()> {
    if name.as_str() != DEFAULT || app.agents.find(tenant, name).await?.is_some() {
        return Ok(());
    }
    let (agents, own) = (app.agents.clone(), (tenant.clone(), name.clone()));
    let scratch = app.scratch.join(uuid::Uuid::new_v4().to_string());
    let upload = AgentUpload { files: Vec::new(), system_prompt: Some(DEFAULT_PROMPT.to_owned()) };
    let deployed = blocking(move || {
        let (tenant, name) = own;
        from_upload(&scratch, &name, upload, |folder| capture_agent(&agents, &tenant, folder))
    })
    .await?;
    let agent = NewAgentVersion {
        tenant: tenant.clone(),
        name: name.clone(),
        tree: deployed.files.tree,
        runtime: app.default_runtime,
        provider: None,
        image: None,
        limits: None,
        needs: SandboxRequirements::default(),
        origin: "built in".to_owned(),
        env: None,
        claim: None,
        at: app.now(),
    };
    app.agents.deploy_built_in(agent, actor).await?;
    drop(deployed.files.under_way);
    Ok(())
}

fn agent_name(name: &str) -> ApiResult<AgentName> {
    AgentName::parse(name).map_err(|_| not_found())
}

fn not_found() -> ApiProblem {
    ApiProblem::not_found("agent_not_found", "Agent not found")
}

async fn find(agents: &Agents, tenant: &TenantId, name: &str) -> ApiResult<AgentRow> {
    agents.find(tenant, &agent_name(name)?).await?.ok_or_else(not_found)
}

pub(super) async fn list(
    State(agents): State<Agents>,
    caller: Caller,
    _: StrictQueryParams<NoQueryParams>,
) -> ApiResult<Answer<AgentListAnswer>> {
    let found = agents.list(caller.tenant()).await?;
    Ok(Answer(AgentListAnswer { agents: found.iter().map(AgentView::of).collect() }))
}

pub(super) async fn get(
    State(agents): State<Agents>,
    caller: Caller,
    PathParam(name): PathParam,
) -> ApiResult<Answer<AgentAnswer>> {
    let agent = find(&agents, caller.tenant(), &name).await?;
    Ok(Answer(AgentAnswer { agent: AgentView::of(&agent) }))
}

pub(super) async fn change(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    PathParam(name): PathParam,
    body: JsonBody<AgentPatch>,
) -> ApiResult<Answer<AgentAnswer>> {
    let edit = app.agents.edit(caller.tenant(), &agent_name(&name)?).await?.ok_or_else(not_found)?;
    let config = body.value.config.map(|change| merged(edit.agent(), change));
    config.as_deref().map_or(Ok(()), |config| quotas::config(&app.quotas, config))?;
    let env = body.value.env.map(parse_environment).transpose()?;
    let fields = config.as_ref().map(|_| "config".to_owned()).into_iter().collect();
    let change = AgentSettingsChange { config, env, fields };
    let agent = edit.save(change, &caller.audit_actor()).await?.ok_or_else(not_found)?;
    Ok(Answer(AgentAnswer { agent: AgentView::of(&agent) }))
}

fn merged(agent: &AgentRow, change: Map<String, Value>) -> String {
    let mut config = shapes::config(agent);
    if let Some(config) = config.as_object_mut() {
        config.extend(change);
    }
    config.to_string()
}

pub(super) async fn config(
    State(agents): State<Agents>,
    caller: Caller,
    PathParam(name): PathParam,
) -> ApiResult<Answer<AgentConfigAnswer>> {
    let agent = find(&agents, caller.tenant(), &name).await?;
    Ok(Answer(AgentConfigAnswer { config: shapes::config(&agent) }))
}

pub(super) async fn change_config(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    PathParam(name): PathParam,
    body: JsonBody<AgentConfigPatch>,
) -> ApiResult<Answer<AgentConfigAnswer>> {
    let edit = app.agents.edit(caller.tenant(), &agent_name(&name)?).await?.ok_or_else(not_found)?;
    let AgentConfigPatch(change) = body.value;
    let fields = change.keys().cloned().collect();
    let config = merged(edit.agent(), change);
    quotas::config(&app.quotas, &config)?;
    let change = AgentSettingsChange { config: Some(config), env: None, fields };
    let agent = edit.save(change, &caller.audit_actor()).await?.ok_or_else(not_found)?;
    Ok(Answer(AgentConfigAnswer { config: shapes::config(&agent) }))
}

pub(super) async fn delete(
    State(agents): State<Agents>,
    TenantAdmin(caller): TenantAdmin,
    PathParam(name): PathParam,
) -> ApiResult<Answer<DeletedAgentAnswer>> {
    let agent = find(&agents, caller.tenant(), &name).await?;
    agents.delete(&agent, caller.audit_actor()).await?;
    Ok(Answer(DeletedAgentAnswer { ok: true }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn the_folder_that_was_checked_is_the_one_that_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let (listed, outside) = (dir.path().join("listed"), dir.path().join("outside"));
        for (folder, text) in [(listed.join("agent"), "mine"), (outside.clone(), "secret")] {
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join(CLAUDE_MD), text).expect("written");
        }
        let allowed = [listed.clone()];
        let opened = AgentFolder::open(&listed.join("agent"), &allowed, false).expect("allowed");
        fs::rename(listed.join("agent"), listed.join("before")).expect("moved");
        symlink(&outside, listed.join("agent")).expect("a link");
        let name = RelPath::parse(CLAUDE_MD).expect("a name");
        let (mut file, _) = opened.0.open_file(&name, LinkPolicy::Inside).expect("a file");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        assert_eq!(text, "mine");
        for path in
            [listed.join("agent"), outside, listed.join(".."), listed.join("nothing"), "listed".into()]
        {
            let refused = AgentFolder::open(&path, &allowed, true).err().expect("refused");
            assert_eq!(refused.code, "path_not_allowed", "{}", path.display());
        }
    }
}
