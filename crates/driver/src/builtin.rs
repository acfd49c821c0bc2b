//! The built-in agent: `ash builtin-agent`, inside the sandbox. It speaks stream-json, as Claude Code does.

use crate::{Command, Driver, Ear, Heard, Launch, Memory, Say, stream_json};
use ash_model::Provider;
use std::{collections::BTreeMap, path::Path};
use uuid::Uuid;

pub struct Builtin;

impl Driver for Builtin {
    fn launch(&self, launch: &Launch) -> Command {
        let mut argv = vec![launch.exe.display().to_string(), "builtin-agent".to_owned()];
        let mut flag = |name: &str, value: String| argv.extend([name.to_owned(), value]);
        match launch.memory {
            Memory::Fresh { id } => flag("--session-id", id.to_string()),
            Memory::Own { id } => {
                flag("--session-id", id.to_string());
                flag("--resume", id.to_string());
            }
            Memory::Fork { from, id } => {
                flag("--session-id", id.to_string());
                flag("--resume", from.to_string());
            }
        }
        if let Some(model) = &launch.options.model {
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
        if let Some(set) = &launch.options.infinite_sessions {
            flag("--compaction", if set.enabled { "on" } else { "off" }.to_owned());
            flag("--compact-from", set.background_compaction_threshold.to_string());
            flag("--compact-by", set.buffer_exhaustion_threshold.to_string());
            if let Some(tokens) = set.context_window {
                flag("--context-window", tokens.to_string());
            }
        }
        match launch.provider {
            Provider::Offline => {}
            Provider::Anthropic => {
                flag("--provider", launch.provider.as_str().to_owned());
                flag("--model-socket", launch.model_socket.display().to_string());
            }
        }
        Command { argv, env: BTreeMap::new() }
    }

    fn tell(&self, say: &Say) -> Vec<u8> {
        stream_json::tell(say)
    }

    fn hear(&self, _ear: &mut Ear, line: &[u8]) -> Vec<Heard> {
        stream_json::hear(line)
    }

    fn keeps(&self, _cwd: &Path, id: Uuid) -> Vec<String> {
        vec![format!(".ash/agent/{id}.jsonl")]
    }
}

/// Tools are known by their names in Claude Code, too.
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

    fn argv(memory: Memory) -> String {
        Builtin.launch(&launch(memory)).argv.join(" ")
    }

    #[test]
    fn a_model_is_called_through_the_socket_and_no_key_is_inside() {
        let launch = Launch { provider: Provider::Anthropic, ..launch(Memory::Fresh { id: Uuid::nil() }) };
        let Command { argv, env } = Builtin.launch(&launch);
        let said = argv.join(" ");
        assert!(
            said.ends_with("--model m --provider anthropic --model-socket /run/ash/model.sock"),
            "{said}"
        );
        assert_eq!(env, BTreeMap::new());
    }

    #[test]
    fn a_fork_starts_from_its_parents_conversation_under_its_own_id() {
        let (from, id) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert_eq!(
            argv(Memory::Fork { from, id }),
            format!("/.ash/ash builtin-agent --session-id {id} --resume {from} --model m")
        );
        assert_eq!(
            argv(Memory::Fresh { id }),
            format!("/.ash/ash builtin-agent --session-id {id} --model m")
        );
    }
}
