//! The driver of the built-in agent, `ash builtin-agent`. Like Claude Code, it speaks stream-json.

use crate::{
    AgentDriver, AgentEvent, AgentInput, AgentLaunch, ConversationSource, LaunchCommand, TurnTracker,
    UsageReport, session_folder, stream_json,
    usage::{self, AnswerLineKind},
};
use ash_model::SessionOptions;
use serde_json::Value;
use std::{collections::BTreeMap, path::Path};
use uuid::Uuid;

/// The agent that is built into `ash`.
pub struct BuiltinDriver;

impl AgentDriver for BuiltinDriver {
    fn launch(&self, launch: &AgentLaunch) -> LaunchCommand {
        let mut argv = vec![launch.exe.display().to_string(), "builtin-agent".to_owned()];
        let mut flag = |name: &str, value: String| argv.extend([name.to_owned(), value]);
        match launch.memory {
            ConversationSource::Fresh { id } => flag("--session-id", id.to_string()),
            ConversationSource::Resume { id } => {
                flag("--session-id", id.to_string());
                flag("--resume", id.to_string());
            }
            ConversationSource::Fork { from, id } => {
                flag("--session-id", id.to_string());
                flag("--resume", from.to_string());
            }
        }
        // At Azure the deployment selects the model, and the model name does not matter.
        let own = launch.options.own_provider.as_ref();
        let deployed = own.and_then(|own| own.deployment_id.as_ref());
        if let Some(model) = launch.options.model.as_ref().or(deployed) {
            flag("--model", model.clone());
        }
        for (name, tools) in [
            ("--tools", &launch.options.available_tools),
            ("--disallowed-tools", &launch.options.disallowed_tools),
        ] {
            if let Some(tools) = tools {
                flag(name, tools.iter().map(|tool| ours(tool)).collect::<Vec<_>>().join(","));
            }
        }
        if let Some(effort) = &launch.options.reasoning_effort {
            flag("--effort", effort.clone());
        }
        if launch.options.streaming == Some(false) {
            flag("--streaming", "false".to_owned());
        }
        if let Some(dir) = &launch.options.config_dir {
            flag("--config-dir", launch.at(dir).display().to_string());
        }
        for dir in launch.options.skill_directories.iter().flatten() {
            flag("--skills", launch.at(dir).display().to_string());
        }
        for skill in launch.options.disabled_skills.iter().flatten() {
            flag("--without-skill", skill.clone());
        }
        if let Some(set) = &launch.options.infinite_sessions {
            flag("--compaction", if set.enabled { "on" } else { "off" }.to_owned());
            flag("--compact-from", set.background_compaction_threshold.to_string());
            flag("--compact-by", set.buffer_exhaustion_threshold.to_string());
            if let Some(tokens) = set.context_window {
                flag("--context-window", tokens.to_string());
            }
        }
        if let Some(dialect) = launch.provider {
            flag("--provider", dialect.as_str().to_owned());
            flag("--model-socket", launch.model_socket.display().to_string());
        }
        if let Some(version) = own.and_then(|own| own.api_version.as_ref()) {
            flag("--api-version", version.clone());
        }
        LaunchCommand { argv, env: BTreeMap::new() }
    }

    fn tell(&self, say: &AgentInput) -> Vec<u8> {
        stream_json::tell(say)
    }

    fn unsupported_options(&self, options: &SessionOptions) -> Vec<&'static str> {
        // The sandbox confines this agent, so it never asks for permission. A caller that relies on permission requests
        // must get an error.
        let asks = options
            .permission_mode
            .as_deref()
            .is_some_and(|mode| !matches!(mode, "bypassPermissions" | "permissionsByAgent"));
        asks.then_some("permissionMode").into_iter().collect()
    }

    fn ignores(&self, options: &SessionOptions) -> Vec<&'static str> {
        let given = [
            ("mcpServers", options.mcp_servers.is_some()),
            ("subagents", options.subagents.is_some()),
            ("initialAgent", options.initial_agent.is_some()),
            ("betas", options.betas.is_some()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }

    fn parse_line(&self, _ear: &mut TurnTracker, line: &[u8]) -> Vec<AgentEvent> {
        let mut heard = stream_json::hear(line);
        let more = match &heard[..] {
            [AgentEvent::Message { line }] => steered(line).or_else(|| stream_json::compacted(line)),
            _ => None,
        };
        heard.extend(more);
        heard
    }

    fn reported_usage(&self, line: &[u8]) -> Option<UsageReport> {
        usage::used(line, AnswerLineKind::Whole)
    }

    fn memory_paths(&self, _cwd: &Path, id: Uuid) -> Vec<String> {
        vec![format!(".ash/agent/{id}.jsonl"), session_folder(id)]
    }
}

fn steered(line: &str) -> Option<AgentEvent> {
    let value: Value = line.contains("\"steered\"").then(|| serde_json::from_str(line).ok())??;
    let told = value["type"] == "system" && value["subtype"] == "steered";
    let turn = serde_json::from_value(value["uuid"].clone()).ok()?;
    told.then_some(AgentEvent::Steered { turn })
}

/// Callers may use the names that tools have in Claude Code.
fn ours(tool: &str) -> &str {
    match tool {
        "Bash" => "run",
        "Read" => "read",
        "Write" => "write",
        "Edit" => "edit",
        "LS" | "Glob" => "list",
        "Grep" => "search",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::launch;
    use ash_model::{ByokEndpoint, ModelApiDialect};

    fn argv(memory: ConversationSource) -> String {
        BuiltinDriver.launch(&launch(memory)).argv.join(" ")
    }

    #[test]
    fn a_model_is_called_through_the_socket_and_no_key_is_inside() {
        let launch = AgentLaunch {
            provider: Some(ModelApiDialect::Anthropic),
            ..launch(ConversationSource::Fresh { id: Uuid::nil() })
        };
        let LaunchCommand { argv, env } = BuiltinDriver.launch(&launch);
        let said = argv.join(" ");
        assert!(
            said.ends_with("--model m --provider anthropic --model-socket /run/ash/model.sock"),
            "{said}"
        );
        assert_eq!(env, BTreeMap::new());
    }

    #[test]
    fn a_deployment_has_a_name_and_a_version_and_no_key_is_inside() {
        let own = ByokEndpoint {
            r#type: ModelApiDialect::Azure,
            base_url: "https://ours.example".into(),
            deployment_id: Some("d".into()),
            api_version: Some("v".into()),
        };
        let mut launch = launch(ConversationSource::Fresh { id: Uuid::nil() });
        (launch.provider, launch.options.own_provider, launch.options.model) =
            (Some(own.r#type), Some(own), None);
        let LaunchCommand { argv, env } = BuiltinDriver.launch(&launch);
        let said = argv.join(" ");
        assert!(
            said.ends_with("--model d --provider azure --model-socket /run/ash/model.sock --api-version v"),
            "{said}"
        );
        assert!(!said.contains("ours.example"), "where it is, is not the agent's to know: {said}");
        assert_eq!(env, BTreeMap::new());
    }

    #[test]
    fn a_fork_starts_from_its_parents_conversation_under_its_own_id() {
        let (from, id) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert_eq!(
            argv(ConversationSource::Fork { from, id }),
            format!("/.ash/ash builtin-agent --session-id {id} --resume {from} --model m")
        );
        assert_eq!(
            argv(ConversationSource::Fresh { id }),
            format!("/.ash/ash builtin-agent --session-id {id} --model m")
        );
    }
}
