//! The options of a session, in a body that creates, resumes or changes one: how they are parsed, what is refused, and
//! how they change the current options.

use super::{
    MAX_MODEL_CHARS, MAX_SYSTEM_PROMPT_CHARS, compaction,
    extract::{bad_body, check_max_chars, check_max_size, check_schema_max_chars},
    limits, mcp_servers,
    provider::{self, ProviderSelection},
    tools, usage,
};
use crate::{
    app::AppState,
    auth::Caller,
    field_coercion,
    problem::{ApiProblem, ApiResult},
};
use ash_model::{
    BadSandboxPath, BudgetLimits, BusyPolicy, ClientTool, Durability, InterruptedTurnPolicy, LiveSetting,
    PermissionTimeoutPolicy, ResourceLimits, SandboxPath, SandboxRoot, SessionOptions, ToolTimeoutPolicy,
};
use ash_sandbox::EgressPolicy;
use ash_session::TouchedOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{ObjectBuilder, OneOfBuilder, Schema, Type},
    },
};

/// Those of the reference, and those of Claude Code that make sense in a sandbox.
const PERMISSION_MODES: [&str; 6] =
    ["bypassPermissions", "permissionsByAgent", "default", "acceptEdits", "plan", "dontAsk"];
/// It is passed as an argument of a program.
const MAX_APPENDED_PROMPT_CHARS: usize = 30_000;
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];
const MAX_SKILL_DIRECTORIES: usize = 20;
const MAX_SKILL_NAMES: usize = 200;
/// A week.
const MAX_WAIT_SECONDS: u64 = 604_800;
/// Ten years.
const MAX_SESSION_TTL_SECONDS: u64 = 315_360_000;

/// The options of the reference's create and config calls.
#[derive(Deserialize, Default, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SessionOptionsPatch {
    #[schema(max_length = 100)]
    model: Option<String>,
    #[schema(schema_with = provider::provider_schema)]
    provider: Option<Value>,
    /// A stored credential whose key is sent to the model service; with `provider`, to the one that it names.
    #[schema(max_length = 255)]
    credential_id: Option<String>,
    #[schema(max_length = 1_000_000)]
    system_prompt: Option<String>,
    /// `bypassPermissions`, `permissionsByAgent`, `default`, `acceptEdits`, `plan` or `dontAsk`.
    permission_mode: Option<String>,
    #[schema(schema_with = system_message_schema)]
    system_message: Option<Value>,
    #[schema(max_length = 30_000)]
    append_system_prompt: Option<String>,
    available_tools: Option<Vec<String>>,
    /// `low`, `medium`, `high`, `xhigh` or `max`; also accepted as `effort`.
    #[serde(alias = "effort")]
    reasoning_effort: Option<String>,
    streaming: Option<bool>,
    allowed_tools: Option<Vec<String>>,
    /// Tools that the agent may not use; also accepted as `excludedTools`.
    #[serde(alias = "excludedTools")]
    disallowed_tools: Option<Vec<String>>,
    betas: Option<Vec<String>>,
    /// MCP servers by name. The values of `env` and `headers` are secrets: they are never shown, and `***` keeps one.
    #[serde(deserialize_with = "mcp_servers::deserialize")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, mcp_servers::McpServer>>)]
    pub(super) mcp_servers: Option<serde_json::Map<String, Value>>,
    subagents: Option<serde_json::Map<String, Value>>,
    initial_agent: Option<String>,
    /// Subagents as a list, in the form of other SDKs.
    custom_agents: Option<Vec<CustomAgent>>,
    working_directory: Option<String>,
    config_dir: Option<String>,
    #[schema(max_items = 20)]
    skill_directories: Option<Vec<String>>,
    #[schema(max_items = 200)]
    disabled_skills: Option<Vec<String>>,
    #[schema(schema_with = compaction::compaction_schema)]
    pub(super) infinite_sessions: Option<Value>,
    on_interrupted: Option<InterruptedTurnPolicy>,
    on_busy: Option<BusyPolicy>,
    wake_report: Option<bool>,
    permission_timeout: Option<u64>,
    on_permission_timeout: Option<PermissionTimeoutPolicy>,
    /// Tools that the session's clients execute; replaced as a whole.
    #[schema(value_type = Option<Vec<ClientTool>>, max_items = 64)]
    tools: Option<Vec<Value>>,
    /// How many seconds a call of such a tool waits, 0: without limit. The default is a day.
    tool_timeout: Option<u64>,
    /// `fail`: the agent gets an error; `interrupt`: the turn is interrupted.
    on_tool_timeout: Option<ToolTimeoutPolicy>,
    max_wait: Option<u64>,
    idle_timeout: Option<u64>,
    ttl: Option<u64>,
    pub(super) durability: Option<Durability>,
    ephemeral: Option<bool>,
    #[schema(minimum = 1)]
    max_turns: Option<u32>,
    max_budget_usd: Option<f64>,
    #[schema(minimum = 1)]
    max_tokens: Option<u64>,
    turn_limits: Option<BudgetLimits>,
    #[schema(schema_with = limits::limits_schema)]
    limits: Option<Value>,
}

/// Text, or [`SystemMessage`].
fn system_message_schema() -> RefOr<Schema> {
    let description = "A text that is appended to the agent's own instructions, or a text with a mode.";
    OneOfBuilder::new()
        .item(ObjectBuilder::new().schema_type(Type::String))
        .item(SystemMessage::schema())
        .description(Some(description))
        .into()
}

impl SessionOptionsPatch {
    /// Settings that a running agent can change.
    pub(super) fn live_settings(&self) -> Vec<LiveSetting> {
        let model = self.model.clone().map(LiveSetting::Model);
        model.into_iter().chain(self.permission_mode.clone().map(LiveSetting::PermissionMode)).collect()
    }

    /// The requested limits, without the current ones.
    pub(super) fn limits(&self) -> ApiResult<Option<ResourceLimits>> {
        limits::merge_resource_limits(self.limits.clone(), None)
    }

    /// Called before `take_provider`, which removes the provider.
    pub(super) fn changed_parts(&self) -> TouchedOptions {
        let budget = self.max_budget_usd.or(self.turn_limits.and_then(|limits| limits.max_budget_usd));
        let service = self.provider.is_some() || self.credential_id.is_some();
        let dollars = service || self.model.is_some() || budget.is_some();
        TouchedOptions { service, limits: self.limits.is_some(), dollars }
    }

    /// Removes the model service from the options, because it may contain a key.
    pub(super) async fn take_provider(
        &mut self,
        app: &AppState,
        caller: &Caller,
    ) -> ApiResult<Option<ProviderSelection>> {
        match (self.credential_id.take(), self.provider.take()) {
            (Some(id), given) => provider::parse_stored_provider(app, caller, (id, given)).await.map(Some),
            (None, given) => given.map(|given| provider::parse_provider(app, given)).transpose(),
        }
    }

    pub(super) fn merged_over(self, before: SessionOptions) -> ApiResult<SessionOptions> {
        check_model_name(self.model.as_deref())?;
        check_schema_max_chars("systemPrompt", self.system_prompt.as_deref(), MAX_SYSTEM_PROMPT_CHARS)?;
        check_max_chars(
            "appendSystemPrompt",
            self.append_system_prompt.as_deref(),
            MAX_APPENDED_PROMPT_CHARS,
        )?;
        if let Some(mode) = &self.permission_mode
            && !PERMISSION_MODES.contains(&mode.as_str())
        {
            let error = format!("permissionMode must be one of {}", PERMISSION_MODES.join(", "));
            return Err(ApiProblem::invalid("invalid_body", error));
        }
        let seconds = [
            ("permissionTimeout", self.permission_timeout),
            ("toolTimeout", self.tool_timeout),
            ("maxWait", self.max_wait),
            ("idleTimeout", self.idle_timeout),
        ];
        for (name, given) in seconds {
            if given.is_some_and(|seconds| seconds > MAX_WAIT_SECONDS) {
                let error = format!("{name} must be 0 to {MAX_WAIT_SECONDS} seconds");
                return Err(ApiProblem::invalid("invalid_body", error));
            }
        }
        if let Some(effort) = &self.reasoning_effort
            && !EFFORTS.contains(&effort.as_str())
        {
            let error = format!("reasoningEffort must be one of {}", EFFORTS.join(", "));
            return Err(ApiProblem::invalid("invalid_body", error));
        }
        let (replaced, appended) = match self.system_message {
            Some(given) => SystemMessage::read(given)?.split()?,
            None => (None, None),
        };
        let custom = self.custom_agents.map(subagents).transpose()?;
        let working_directory = parse_sandbox_path("workingDirectory", self.working_directory.as_deref())?;
        let config_dir = parse_sandbox_path("configDir", self.config_dir.as_deref())?;
        if config_dir.as_ref().is_some_and(|dir| matches!(dir.root(), (SandboxRoot::Workspace, _) | (_, "")))
        {
            let error = "configDir must be a folder beneath /home/agent (or ~), which is the agent's own";
            return Err(ApiProblem::invalid("invalid_body", error));
        }
        let skills =
            self.skill_directories.map(|dirs| parse_sandbox_paths("skillDirectories", &dirs)).transpose()?;
        if let Some(skills) = &self.disabled_skills {
            at_most_names("disabledSkills", skills)?;
        }
        if self.ttl.is_some_and(|seconds| seconds > MAX_SESSION_TTL_SECONDS) {
            let error = format!("ttl must be 0 (never) to {MAX_SESSION_TTL_SECONDS} seconds");
            return Err(ApiProblem::invalid("invalid_body", error));
        }
        let given = BudgetLimits {
            max_turns: self.max_turns,
            max_budget_usd: self.max_budget_usd,
            max_tokens: self.max_tokens,
        };
        let budget = given.with_fallback(BudgetLimits::of_session(&before));
        let of_turns =
            self.turn_limits.map(|given| given.with_fallback(before.turn_limits.unwrap_or_default()));
        usage::check(&budget)?;
        usage::check(&of_turns.unwrap_or_default())?;
        Ok(SessionOptions {
            model: self.model.or(before.model),
            provider: before.provider,
            own_provider: before.own_provider,
            credential_id: before.credential_id,
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
            infinite_sessions: compaction::merge_compaction_options(
                self.infinite_sessions,
                before.infinite_sessions,
            )?,
            on_interrupted: self.on_interrupted.or(before.on_interrupted),
            on_busy: self.on_busy.or(before.on_busy),
            wake_report: self.wake_report.or(before.wake_report),
            permission_timeout: self.permission_timeout.or(before.permission_timeout),
            on_permission_timeout: self.on_permission_timeout.or(before.on_permission_timeout),
            client_tools: tools::parse(self.tools)?.or(before.client_tools),
            tool_timeout: self.tool_timeout.or(before.tool_timeout),
            on_tool_timeout: self.on_tool_timeout.or(before.on_tool_timeout),
            max_wait: self.max_wait.or(before.max_wait),
            idle_timeout: self.idle_timeout.or(before.idle_timeout),
            ttl: self.ttl.or(before.ttl),
            durability: self.durability.or(before.durability),
            ephemeral: self.ephemeral.or(before.ephemeral),
            max_turns: budget.max_turns,
            max_budget_usd: budget.max_budget_usd,
            max_tokens: budget.max_tokens,
            turn_limits: of_turns.or(before.turn_limits),
            limits: limits::merge_resource_limits(self.limits, before.limits)?,
            base: before.base,
        })
    }
}

/// A model is either named or left out; an empty name is refused.
pub(super) fn check_model_name(model: Option<&str>) -> ApiResult<()> {
    check_schema_max_chars("model", model, MAX_MODEL_CHARS)?;
    match model.is_some_and(|model| model.trim().is_empty()) {
        true => Err(ApiProblem::invalid(
            "invalid_body",
            "model must not be empty; leave it out for the usual one",
        )),
        false => Ok(()),
    }
}

/// The form in the guides of other SDKs: a list of objects with names.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CustomAgent {
    name: String,
    description: Option<String>,
    display_name: Option<String>,
    prompt: String,
    tools: Option<Vec<String>>,
    model: Option<String>,
}

fn subagents(agents: Vec<CustomAgent>) -> ApiResult<serde_json::Map<String, Value>> {
    let named = |agent: CustomAgent| {
        let CustomAgent { name, description, display_name, prompt, tools, model } = agent;
        let mut shape = json!({ "description": description.or(display_name).unwrap_or_else(|| name.clone()), "prompt": prompt });
        for (field, value) in [("tools", json!(tools)), ("model", json!(model))] {
            if !value.is_null() {
                shape[field] = value;
            }
        }
        match name.is_empty() {
            true => Err(ApiProblem::invalid("invalid_body", "customAgents: each needs a name")),
            false => Ok((name, shape)),
        }
    };
    agents.into_iter().map(named).collect()
}

fn parse_sandbox_path(name: &str, path: Option<&str>) -> ApiResult<Option<SandboxPath>> {
    let wrong = |error: BadSandboxPath| ApiProblem::invalid("invalid_body", format!("{name} {error}"));
    path.map(|path| SandboxPath::parse(path).map_err(wrong)).transpose()
}

fn parse_sandbox_paths(name: &str, paths: &[String]) -> ApiResult<Vec<SandboxPath>> {
    check_max_size(name, (paths.len(), "folders"), MAX_SKILL_DIRECTORIES)?;
    let all = paths.iter().map(|path| parse_sandbox_path(name, Some(path)));
    Ok(all.collect::<ApiResult<Vec<_>>>()?.into_iter().flatten().collect())
}

fn at_most_names(name: &str, given: &[String]) -> ApiResult<()> {
    let plain = |text: &String| !text.is_empty() && text.len() <= 200 && !text.chars().any(char::is_control);
    if given.len() <= MAX_SKILL_NAMES && given.iter().all(plain) {
        return Ok(());
    }
    let error = format!("{name} must be at most {MAX_SKILL_NAMES} names of 1 to 200 characters");
    Err(ApiProblem::invalid("invalid_body", error))
}

/// The form in the guide of other SDKs: a text, or a text with a mode that says whether it replaces the agent's own
/// instructions.
#[derive(Deserialize, ToSchema)]
struct SystemMessage {
    /// `append`, as without one, or `replace`.
    mode: Option<String>,
    content: String,
}

impl SystemMessage {
    /// Not an untagged enum: that ignores unknown fields, and a misspelt `mode` would append.
    fn read(given: Value) -> ApiResult<SystemMessage> {
        match given {
            Value::String(content) => Ok(SystemMessage { mode: None, content }),
            Value::Object(_) => {
                field_coercion::as_written(given).map_err(|error| bad_body(error.within("systemMessage")))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                Err(ApiProblem::invalid("invalid_body", "systemMessage must be a text, or {mode, content}"))
            }
        }
    }

    /// The text that replaces the agent's own instructions, and the text that is appended.
    fn split(self) -> ApiResult<(Option<String>, Option<String>)> {
        let SystemMessage { mode, content } = self;
        match mode.as_deref() {
            None | Some("append") => {
                check_max_chars("systemMessage", Some(&content), MAX_APPENDED_PROMPT_CHARS)?;
                Ok((None, Some(content)))
            }
            Some("replace") => {
                check_max_chars("systemMessage", Some(&content), MAX_SYSTEM_PROMPT_CHARS)?;
                Ok((Some(content), None))
            }
            Some(_) => Err(ApiProblem::invalid(
                "invalid_body",
                "systemMessage.mode must be \"append\" or \"replace\"",
            )),
        }
    }
}

/// Separates the stored part of the provider from the part that is never stored.
pub(super) fn with_provider(
    options: SessionOptions,
    wanted: Option<ProviderSelection>,
) -> ApiResult<(SessionOptions, Option<EgressPolicy>)> {
    match wanted {
        None => Ok((options, None)),
        Some(ProviderSelection::Known(known)) => {
            let options = SessionOptions { own_provider: None, credential_id: None, ..options };
            Ok((SessionOptions { provider: Some(known), ..options }, None))
        }
        Some(ProviderSelection::Own(own, way)) => {
            provider::has_model(own.r#type, options.model.as_deref())?;
            let options = SessionOptions { provider: None, credential_id: None, ..options };
            Ok((SessionOptions { own_provider: Some(own), ..options }, Some(way)))
        }
        Some(ProviderSelection::Stored(own, id)) => {
            provider::has_model(own.r#type, options.model.as_deref())?;
            let options = SessionOptions { provider: None, credential_id: Some(id), ..options };
            Ok((SessionOptions { own_provider: Some(own), ..options }, None))
        }
    }
}
