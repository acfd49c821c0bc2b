//! Claude Code, unmodified: `claude -p`, long-lived, with newline JSON in both directions.
//!
//! Results cannot be counted: Claude Code may merge prompts, and background work starts its own turns. A turn is over
//! when the program reports idle after it has answered our message. It names that message by our turn id.

mod compaction;
mod entry;
mod mend;
mod message_content;
#[cfg(test)]
mod tests;
mod transcript;
mod version;

pub use version::{ClaudeVersion, OLDEST_CLAUDE};

use crate::{
    AgentDriver, AgentEvent, AgentInput, AgentLaunch, ConversationSource, ExpectedMessage, HomeEntry,
    LaunchCommand, LoggedMessage, MendedTranscript, MessageFingerprint, TranscriptIdentity, TranscriptSurvey,
    TurnTracker, UsageReport, session_folder, stream_json, system_reminder, tool_server,
    turn_tracker::{MAX_TASKS, TurnAnswer, TurnEndSignals},
    usage::{self, AnswerLineKind},
};
use ash_model::{LiveSetting, ModelProvider, SandboxPath, SandboxRoot, SessionOptions, TurnId};
use message_content::ContentOutline;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;
use uuid::Uuid;

/// Claude Code, the unmodified program.
pub struct ClaudeDriver;

/// Not a key: the server adds the real key to requests outside the sandbox.
const PLACEHOLDER_KEY: &str = "kept-outside-the-sandbox";
/// The longest task id, in bytes.
const MAX_ID_BYTES: usize = 256;
/// Model aliases of Claude Code, which it resolves to a name only when it makes a request.
const ALIASES: [&str; 7] = ["default", "best", "fable", "haiku", "opus", "opusplan", "sonnet"];
/// Folders that belong to one conversation, whatever the configuration folder is.
const MEMORY_FOLDERS: [&str; 4] = ["projects", "tasks", "file-history", "session-env"];
/// Claude Code looks for skills in `.claude/skills` of added folders, so this folder has links to the configured ones.
const SKILLS: &str = ".ash/skills";

impl AgentDriver for ClaudeDriver {
    fn launch(&self, launch: &AgentLaunch) -> LaunchCommand {
        let mut argv = vec![launch.program.display().to_string(), "-p".to_owned()];
        let mut flag = |name: &str, value: &str| argv.extend([name.to_owned(), value.to_owned()]);
        flag("--input-format", "stream-json");
        flag("--output-format", "stream-json");
        flag("--settings", &settings(&launch.options));
        // Claude Code sends us permission requests and waits for the answers.
        flag("--permission-prompt-tool", "stdio");
        match launch.memory {
            ConversationSource::Fresh { id } => flag("--session-id", &id.to_string()),
            ConversationSource::Resume { id } => flag("--resume", &id.to_string()),
            ConversationSource::Fork { from, id } => {
                flag("--resume", &from.to_string());
                flag("--session-id", &id.to_string());
            }
        }
        if let Some(model) = &launch.options.model {
            flag("--model", model);
        }
        flag("--permission-mode", permission_mode(launch.options.permission_mode.as_deref()));
        if let Some(words) = &launch.options.append_system_prompt {
            flag("--append-system-prompt", words);
        }
        let instructed =
            launch.options.append_system_prompt.is_some() || launch.options.system_prompt.is_some();
        // A program without a version counts as the newest.
        let snapshots = launch.claude_version.is_none_or(|version| version >= version::FIRST_PROMPT_SNAPSHOT);
        if instructed && snapshots {
            // Otherwise Claude Code keeps the first system prompt, whatever later starts pass.
            flag("--system-prompt-snapshot", "off");
        }
        if let Some(effort) = &launch.options.reasoning_effort {
            flag("--effort", effort);
        }
        // An empty list means no tools.
        if let Some(tools) = &launch.options.available_tools {
            flag("--tools", &tools.join(","));
        }
        let mut allowed = launch.options.allowed_tools.clone().unwrap_or_default();
        // The client decides itself about its own tools.
        allowed.extend(has_client_tools(&launch.options).then(|| format!("mcp__{}", tool_server::SERVER)));
        for (name, tools) in [
            ("--allowedTools", Some(&allowed)),
            ("--disallowedTools", launch.options.disallowed_tools.as_ref()),
            ("--betas", launch.options.betas.as_ref()),
        ] {
            if let Some(tools) = tools.filter(|tools| !tools.is_empty()) {
                flag(name, &tools.join(","));
            }
        }
        if launch.options.mcp_servers.is_some() {
            // A file, because every process in the sandbox can read a command line.
            flag("--mcp-config", &launch.mcp_config.display().to_string());
        }
        if let Some(agents) = &launch.options.subagents {
            flag("--agents", &agents.to_string());
        }
        if let Some(agent) = &launch.options.initial_agent {
            flag("--agent", agent);
        }
        for number in 0..launch.options.skill_directories.as_ref().map_or(0, Vec::len) {
            flag("--add-dir", &launch.home.join(SKILLS).join(number.to_string()).display().to_string());
        }
        let mut switches = vec!["--verbose", "--allow-dangerously-skip-permissions"];
        if launch.options.streaming != Some(false) {
            switches.push("--include-partial-messages");
        }
        if matches!(launch.memory, ConversationSource::Fork { .. }) {
            switches.push("--fork-session");
        }
        argv.extend(switches.into_iter().map(str::to_owned));
        LaunchCommand { argv, env: environment(launch) }
    }

    fn tell(&self, say: &AgentInput) -> Vec<u8> {
        match say {
            // Claude Code recognizes a repeated message by its id and does not answer it twice.
            AgentInput::Prompt { turn, head, content, ask: _, attempt: _ } => stream_json::line(&json!({
                "type": "user", "uuid": turn,
                "message": { "role": "user", "content": with_head(head.as_deref(), content) },
            })),
            AgentInput::SetLiveSetting { setting: LiveSetting::PermissionMode(mode), input } => {
                let setting = LiveSetting::PermissionMode(permission_mode(Some(mode)).to_owned());
                stream_json::tell(&AgentInput::SetLiveSetting { setting, input: *input })
            }
            // Claude Code takes it up between two calls, or right after the turn.
            AgentInput::Steer { turn, into: _, content } => stream_json::line(&json!({
                "type": "user", "uuid": turn, "message": { "role": "user", "content": content },
            })),
            AgentInput::Hello { system_prompt, append_system_prompt, client_tools } => {
                let (system_prompt, append_system_prompt) =
                    (system_prompt.clone(), append_system_prompt.clone());
                let hello =
                    AgentInput::Hello { system_prompt, append_system_prompt, client_tools: Vec::new() };
                let line = stream_json::tell(&hello);
                match client_tools.is_empty() {
                    true => line,
                    false => with_tool_server(&line),
                }
            }
            AgentInput::ToolOutput { request, output } => {
                stream_json::line(&tool_server::output_line(request, output))
            }
            AgentInput::Interrupt { .. }
            | AgentInput::Answer { .. }
            | AgentInput::ToolServerReply { .. }
            | AgentInput::SetLiveSetting { .. } => stream_json::tell(say),
        }
    }

    fn reported_usage(&self, line: &[u8]) -> Option<UsageReport> {
        usage::used(line, AnswerLineKind::Blocks)
    }

    fn takes_settings(&self) -> bool {
        true
    }

    fn model<'o>(&self, options: &'o SessionOptions) -> Option<&'o str> {
        let model = options.model.as_deref()?;
        let name = model.trim().to_lowercase();
        (!ALIASES.contains(&name.strip_suffix("[1m]").unwrap_or(&name))).then_some(model)
    }

    fn unsupported_options(&self, options: &SessionOptions) -> Vec<&'static str> {
        // Claude Code cannot run without a model.
        let offline = options.provider == Some(ModelProvider::Offline);
        offline.then_some("provider").into_iter().collect()
    }

    fn home_entries(&self, options: &SessionOptions) -> Vec<HomeEntry> {
        let mut furniture = Vec::new();
        if let Some((SandboxRoot::Home, dir)) = options.config_dir.as_ref().map(SandboxPath::root)
            && dir != ".claude"
        {
            // The memory folders stay in `.claude`, so that every later configuration finds them.
            let up = "../".repeat(dir.split('/').count());
            for name in MEMORY_FOLDERS {
                furniture.push(HomeEntry::Folder(format!(".claude/{name}")));
                furniture.push(HomeEntry::Link(format!("{dir}/{name}"), format!("{up}.claude/{name}")));
            }
        }
        for (number, dir) in options.skill_directories.iter().flatten().enumerate() {
            let link = format!("{SKILLS}/{number}/.claude/skills");
            furniture.push(HomeEntry::Link(link, dir.as_str().to_owned()));
        }
        furniture
    }

    fn transcript(&self, cwd: &Path, id: Uuid) -> Option<String> {
        Some(transcript::place(cwd, id))
    }

    fn memory_paths(&self, cwd: &Path, id: Uuid) -> Vec<String> {
        let transcript = transcript::place(cwd, id);
        let beside = transcript.trim_end_matches(".jsonl").to_owned();
        let others = ["tasks", "file-history", "session-env"];
        let others = others.map(|dir| format!(".claude/{dir}/{id}"));
        [transcript, beside].into_iter().chain(others).chain([session_folder(id)]).collect()
    }

    /// Claude Code writes plans to files with names of its own, and shows the whole plan when it asks to leave plan mode.
    fn plan<'i>(&self, tool: &str, input: &'i Value) -> Option<&'i str> {
        if tool == "ExitPlanMode" { input.get("plan")?.as_str() } else { None }
    }

    fn message_fingerprint(&self, line: &str) -> Option<MessageFingerprint> {
        spoken(line)
    }

    fn background_task(&self, line: &str) -> Option<(String, Option<String>)> {
        // Most lines are not about tasks, so skip the parser.
        let value: Value = line.contains("task_").then(|| serde_json::from_str(line).ok())??;
        let id = text(&value, "task_id").to_owned();
        match (text(&value, "type"), text(&value, "subtype")) {
            ("system", "task_started") => Some((id, Some(text(&value, "description").to_owned()))),
            ("system", "task_notification") => Some((id, None)),
            _ => None,
        }
    }

    fn survey(
        &self,
        lines: &mut dyn Iterator<Item = Vec<u8>>,
        expected: &[ExpectedMessage],
    ) -> TranscriptSurvey {
        transcript::survey(lines, expected)
    }

    fn mend(
        &self,
        lines: &mut dyn Iterator<Item = Vec<u8>>,
        log: &[LoggedMessage],
        native: &TranscriptIdentity,
    ) -> MendedTranscript {
        mend::mend(lines, log, native)
    }

    fn parse_line(&self, ear: &mut TurnTracker, line: &[u8]) -> Vec<AgentEvent> {
        if let Some(heard) = tool_server_message(line) {
            return heard;
        }
        let mut heard = stream_json::hear(line);
        // Only this driver decides whether a turn is over.
        heard.retain(|heard| !matches!(heard, AgentEvent::TurnEnded { .. }));
        let [AgentEvent::Message { line }] = &heard[..] else { return heard };
        let Ok(value) = serde_json::from_str::<Value>(line) else { return heard };
        match (text(&value, "type"), text(&value, "subtype")) {
            ("command_lifecycle", _) if text(&value, "state") == "started" => {
                let taken_up = value.get("command_uuid").and_then(|id| TurnId::deserialize(id).ok());
                taken_up.and_then(|turn| ear.take_up(turn)).into_iter().collect()
            }
            ("command_lifecycle", _) => {
                // States such as queued and read tell us nothing new.
                if !note_command(ear, &value) {
                    return Vec::new();
                }
                // If the agent already knew the message, nothing runs: it is idle, and does not report idle again.
                let over = match (ear.completed, ear.busy) {
                    (true, false) => ear.end_turn_if_idle(),
                    (true, true) => ear.end_turn_without_idle(),
                    (false, _) => None,
                };
                heard.into_iter().chain(over).collect()
            }
            ("result", _) => {
                note_result(ear, &value);
                ear.has_given_result = true;
                ear.self_start_seen &= ear.turn.is_some();
                let over = match (ear.announces, ear.self_started) {
                    (TurnEndSignals::Results, _) => ear.end_turn_if_idle(),
                    (TurnEndSignals::Everything | TurnEndSignals::Idle, true) => ear.end_turn_without_idle(),
                    (TurnEndSignals::Everything | TurnEndSignals::Idle, false) => None,
                };
                heard.into_iter().chain(over).collect()
            }
            ("system", "task_started") => {
                note_task(ear, &value, true);
                heard
            }
            ("system", "task_notification") => {
                note_task(ear, &value, false);
                heard
            }
            // Claude Code repeats this line every half minute.
            ("system", "status") if text(&value, "status") == "compacting" => {
                if std::mem::replace(&mut ear.compacting, true) { Vec::new() } else { heard }
            }
            ("system", subtype @ ("status" | "compact_boundary")) => {
                ear.compacting &= text(&value, "status") == "requesting";
                let compacted = (subtype == "compact_boundary").then_some(AgentEvent::MemoryCompacted);
                heard.into_iter().chain(compacted).collect()
            }
            ("system", "init") => {
                ear.compacting = false;
                ear.announces = announces(&value);
                (ear.busy, ear.has_given_result) = (true, false);
                let asked = ear.early_message.as_ref().is_some_and(|(_, answer)| answer.is_none());
                ear.self_start_seen = ear.turn.is_none() && !asked;
                heard
            }
            // Output of a background subagent does not make the agent busy.
            ("assistant", _) if value.get("parent_tool_use_id").is_some_and(|of| !of.is_null()) => heard,
            ("assistant", _) => {
                (ear.busy, ear.has_given_result) = (true, false);
                heard
            }
            // Not forwarded: the line comes several times per turn and repeats what the messages say.
            ("system", "session_state_changed") => {
                ear.busy = text(&value, "state") != "idle";
                ear.self_start_seen &= ear.busy;
                if ear.busy {
                    return Vec::new();
                }
                ear.unattended.clear();
                // The early message produced nothing, and will not.
                ear.early_message.take_if(|(_, answer)| answer.is_none());
                ear.end_turn_if_idle().into_iter().collect()
            }
            _ => heard,
        }
    }
}

/// Most lines are not about our tools, so skip the parser.
fn tool_server_message(line: &[u8]) -> Option<Vec<AgentEvent>> {
    let line = std::str::from_utf8(line).ok().filter(|line| line.contains("\"mcp_message\""))?;
    tool_server::hear(&serde_json::from_str(line).ok()?)
}

/// Whether no checkpoint may hold this file of an agent's home: credentials belong to their owner, and Claude Code's
/// snapshots of shells are stale by design.
pub fn is_never_captured(path: &[u8]) -> bool {
    path == b".claude/.credentials.json"
        || path.starts_with(b".claude/shell-snapshots/")
        || (path.starts_with(b".claude/sessions/") && path.ends_with(b".key"))
}

/// Claude Code writes every message that it prints to its transcript, under the same id. Exceptions: subagents have their
/// own transcripts, and synthetic messages are not written.
fn spoken(line: &str) -> Option<MessageFingerprint> {
    #[derive(Deserialize)]
    struct ClaudeLine<'l> {
        #[serde(borrow, rename = "type")]
        kind: Option<std::borrow::Cow<'l, str>>,
        uuid: Option<Uuid>,
        parent_tool_use_id: Option<String>,
        #[serde(rename = "isReplay", default)]
        is_replay: bool,
        #[serde(rename = "isSynthetic", default)]
        is_synthetic: bool,
        local_command_source: Option<serde::de::IgnoredAny>,
        message: Option<ClaudeLineMessage>,
    }
    #[derive(Deserialize)]
    struct ClaudeLineMessage {
        model: Option<String>,
        #[serde(default)]
        content: ContentOutline,
    }
    let line: ClaudeLine<'_> = serde_json::from_str(line).ok()?;
    let message = line.message?;
    let own = matches!(line.kind.as_deref(), Some("assistant" | "user"))
        && line.parent_tool_use_id.is_none()
        && !line.is_replay
        && !line.is_synthetic
        && line.local_command_source.is_none()
        && message.model.as_deref() != Some("<synthetic>");
    let ContentOutline { has_call_or_result: binds, digest, .. } = message.content;
    line.uuid.filter(|_| own).map(|id| MessageFingerprint { id, has_call_or_result: binds, digest })
}

/// Claude Code asks us for the tools of the client, as for those of an MCP server of its host.
fn with_tool_server(hello: &[u8]) -> Vec<u8> {
    let mut hello: Value = serde_json::from_slice(hello).unwrap_or_default();
    hello["request"]["sdkMcpServers"] = json!([tool_server::SERVER]);
    stream_json::line(&hello)
}

/// Our note is a block of its own, marked as a system reminder.
fn with_head(head: Option<&str>, content: &Value) -> Value {
    let Some(head) = head else { return content.clone() };
    let head = json!({ "type": "text", "text": system_reminder::marked(head) });
    let blocks = match content {
        Value::Array(blocks) => blocks.clone(),
        text => vec![json!({ "type": "text", "text": text })],
    };
    Value::Array([vec![head], blocks].concat())
}

fn permission_mode(asked: Option<&str>) -> &str {
    match asked {
        // The sandbox confines the agent, so it needs no permissions unless the caller asks for requests.
        None | Some("bypassPermissions" | "permissionsByAgent") => "bypassPermissions",
        Some(mode) => mode,
    }
}

/// By default Claude Code deletes transcripts after 30 days, including ours.
fn settings(options: &SessionOptions) -> String {
    let mut settings = json!({ "cleanupPeriodDays": 36500 });
    if let Some(skills) = &options.disabled_skills {
        let off = skills.iter().map(|skill| (skill.clone(), json!("off")));
        settings["skillOverrides"] = Value::Object(off.collect());
    }
    settings.to_string()
}

/// Claude Code derives its memory folder from the working folder. This pins the name, so that it survives a change of the
/// working folder or the configuration folder. Claude Code accepts the name only together with the configuration folder.
fn places(launch: &AgentLaunch) -> Vec<(String, String)> {
    let SessionOptions { config_dir, working_directory, .. } = &launch.options;
    if config_dir.is_none() && working_directory.is_none() {
        return Vec::new();
    }
    let config = config_dir.as_ref().map_or_else(|| launch.home.join(".claude"), |dir| launch.at(dir));
    vec![
        ("CLAUDE_CONFIG_DIR".to_owned(), config.display().to_string()),
        ("CLAUDE_CODE_PROJECT_DIR_NAME".to_owned(), transcript::folder(&launch.workspace)),
    ]
}

fn has_client_tools(options: &SessionOptions) -> bool {
    options.client_tools.as_ref().is_some_and(|tools| !tools.is_empty())
}

/// Claude Code waits for a tool as long as the client does: we end the call when its time is over.
fn tool_call_limit(options: &SessionOptions) -> Option<(String, String)> {
    has_client_tools(options).then(|| ("MCP_TOOL_TIMEOUT".to_owned(), i32::MAX.to_string()))
}

fn environment(launch: &AgentLaunch) -> std::collections::BTreeMap<String, String> {
    let socket = launch.model_socket.display().to_string();
    [
        ("ANTHROPIC_UNIX_SOCKET", socket.as_str()),
        ("ANTHROPIC_BASE_URL", "http://localhost"),
        ("ANTHROPIC_API_KEY", PLACEHOLDER_KEY),
        // Claude Code writes a message to its transcript before we receive it.
        ("CLAUDE_CODE_EAGER_FLUSH", "1"),
        ("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS", "1"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
        // Without a sandbox Claude Code may run as root only with this setting.
        ("IS_SANDBOX", "1"),
    ]
    .into_iter()
    .chain(interrupted(launch).iter().copied())
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .chain(places(launch))
    .chain(tool_call_limit(&launch.options))
    .chain(launch.options.infinite_sessions.iter().flat_map(compaction::environment))
    .collect()
}

/// The model sees an interrupted call with an unknown outcome, and does not repeat it.
fn interrupted(launch: &AgentLaunch) -> &'static [(&'static str, &'static str)] {
    match launch.continues_cut_turn {
        true => {
            &[("CLAUDE_CODE_RESUME_INTERRUPTED_TURN", "1"), ("CLAUDE_CODE_RESUME_SHOWS_CUT_OFF_CALLS", "1")]
        }
        false => &[],
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Every `init` has the version. A program without one counts as the newest.
fn announces(init: &Value) -> TurnEndSignals {
    let names_messages = init.get("user_message_uuids").is_some();
    match text(init, "claude_code_version").parse::<ClaudeVersion>() {
        Ok(version) if version < version::FIRST_IDLE => TurnEndSignals::Results,
        Ok(_) if !names_messages => TurnEndSignals::Idle,
        Ok(_) | Err(_) => TurnEndSignals::Everything,
    }
}

/// An interrupted message completes as soon as we send it again, and continues under another id.
fn note_command(ear: &mut TurnTracker, value: &Value) -> bool {
    let over = matches!(text(value, "state"), "completed" | "cancelled");
    if over && ear.turn.is_some_and(|turn| turn.0.to_string() == text(value, "command_uuid")) {
        ear.completed = true;
    }
    over
}

/// Accepts only the answer to our message, not output about a background task.
fn note_result(ear: &mut TurnTracker, value: &Value) {
    let continued = value.get("resume_reason").is_some_and(|reason| !reason.is_null());
    let Some((how, answer, usage, problem)) = stream_json::parse_result(value) else { return };
    let answer = TurnAnswer { outcome: how, text: answer, usage, problem };
    let named = |name: &str| value.get(name).into_iter().flat_map(names);
    let named: Vec<String> = named("user_message_uuid").chain(named("user_message_uuids")).collect();
    let is_of = |turn: TurnId| named.contains(&turn.0.to_string());
    if let Some((_, early)) = ear.early_message.as_mut().filter(|(turn, _)| is_of(*turn)) {
        *early = Some(answer.clone());
    }
    let Some(turn) = ear.turn else {
        if continued {
            ear.resumed = Some(answer);
        } else if ear.self_start_seen {
            ear.self_started_answer = Some(answer);
        }
        return;
    };
    // Output about a background task names its origin.
    let of_message = value.get("origin").is_none_or(Value::is_null);
    let ours = match ear.announces {
        TurnEndSignals::Everything => is_of(turn),
        TurnEndSignals::Idle | TurnEndSignals::Results => is_of(turn) || (named.is_empty() && of_message),
    };
    let aborted = text(value, "terminal_reason").starts_with("aborted");
    if ours || aborted || continued || ear.self_started {
        ear.answer = Some(answer);
    }
}

fn names(value: &Value) -> Vec<String> {
    match value {
        Value::String(one) => vec![one.clone()],
        Value::Array(many) => many.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    }
}

/// Background agents hold a turn; background shell commands do not.
fn note_task(ear: &mut TurnTracker, value: &Value, open: bool) {
    let id = text(value, "task_id").to_owned();
    if !open {
        ear.tasks.remove(&id);
        ear.unattended.remove(&id);
    } else if text(value, "task_type").contains("agent")
        && id.len() <= MAX_ID_BYTES
        && ear.tasks.len() < MAX_TASKS
    {
        ear.tasks.insert(id);
    }
}
