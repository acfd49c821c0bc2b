//! The agent's tools. The sandbox confines them, so they check no permissions. For any content of the workspace a tool
//! must return, with a result of bounded size.

mod files;
mod run;
mod schemas;
mod search;

use crate::cancel::CancelToken;
use crate::conversation::{CommandOutput, ToolResult, ToolUse};
use serde::Deserialize;
use std::path::{Path, PathBuf};

pub(crate) use schemas::offered;

pub(crate) const NAMES: [&str; 6] = ["run", "read", "write", "edit", "list", "search"];

/// Tools read at most this much of a file or an output.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The result of a tool, success or error.
struct ToolOutcome {
    content: String,
    is_error: bool,
    ran: Option<CommandOutput>,
}

impl From<Result<String, String>> for ToolOutcome {
    fn from(result: Result<String, String>) -> ToolOutcome {
        let is_error = result.is_err();
        ToolOutcome { content: result.unwrap_or_else(|error| error), is_error, ran: None }
    }
}

#[derive(Deserialize)]
#[serde(tag = "name", content = "input", rename_all = "snake_case")]
enum ToolInvocation {
    Run { command: String, timeout_ms: Option<u64> },
    Read { path: PathBuf },
    Write { path: PathBuf, text: String },
    Edit { path: PathBuf, old: String, new: String },
    List { path: Option<PathBuf> },
    Search { text: String, path: Option<PathBuf> },
}

pub(crate) fn call(call: &ToolUse, cancel: &CancelToken) -> ToolResult {
    let named = serde_json::json!({ "name": call.name, "input": call.input });
    let outcome = match ToolInvocation::deserialize(named) {
        Ok(call) => perform(call, cancel),
        Err(error) => Err(format!("{}: {error}", call.name)).into(),
    };
    let ToolOutcome { content, is_error, ran: tool_use_result } = outcome;
    ToolResult { tool_use_id: call.id.clone(), content, is_error, tool_use_result }
}

/// The beginning of a file, for a preview. `None` if it is not readable as text.
pub(crate) fn peek(path: &Path) -> Option<String> {
    let (bytes, _) = files::beginning(path).ok()?;
    (!files::is_binary(&bytes)).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

fn perform(call: ToolInvocation, cancel: &CancelToken) -> ToolOutcome {
    match call {
        ToolInvocation::Run { command, timeout_ms } => run::run(&command, timeout_ms, cancel),
        ToolInvocation::Read { path } => files::read(&path).into(),
        ToolInvocation::Write { path, text } => files::write(&path, &text).into(),
        ToolInvocation::Edit { path, old, new } => files::edit(&path, &old, &new).into(),
        ToolInvocation::List { path } => files::list(&path.unwrap_or_else(|| ".".into())).into(),
        ToolInvocation::Search { text, path } => {
            search::search(&text, &path.unwrap_or_else(|| ".".into()), cancel).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_call_that_makes_no_sense_is_answered() {
        let cancel = CancelToken::new().expect("eventfd");
        for (name, input) in
            [("fly", json!({})), ("run", json!({})), ("read", json!(3)), ("run", json!(null))]
        {
            let made = ToolUse { id: "1".into(), name: name.into(), input };
            let result = call(&made, &cancel);
            assert!(result.is_error && result.content.starts_with(name), "{result:?}");
        }
    }
}
