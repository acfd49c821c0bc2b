//! Maps directives to tool calls: Claude Code's tools if the request offers them, otherwise those of the built-in agent.

use crate::{conversation::MessagesRequest, directive::DirectiveToolCall};
use serde_json::{Value, json};

/// The tool and its input for a directive, or a text that says why there is none.
pub(crate) fn call(
    wish: &DirectiveToolCall,
    conversation: &MessagesRequest,
) -> Result<(String, Value), String> {
    let choices: Vec<(&str, Value)> = match wish {
        DirectiveToolCall::Run { command } => vec![
            ("Bash", json!({ "command": command, "description": "What the prompt asks for" })),
            ("run", json!({ "command": command })),
        ],
        DirectiveToolCall::Write { path, text } => vec![
            ("Write", json!({ "file_path": path, "content": text })),
            ("write", json!({ "path": path, "text": text })),
        ],
        DirectiveToolCall::Read { path } => {
            vec![("Read", json!({ "file_path": path })), ("read", json!({ "path": path }))]
        }
        DirectiveToolCall::Ask { question, options } => vec![("AskUserQuestion", asking(question, options))],
        DirectiveToolCall::Named { name, input } => {
            vec![(conversation.offered_name(name).unwrap_or(name), input.clone())]
        }
    };
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    let missing = format!("I would call {}, but it is not offered.", names.join(" or "));
    let offered = choices.into_iter().find(|(name, _)| conversation.offers(name));
    offered.map(|(name, input)| (name.to_owned(), input)).ok_or(missing)
}

fn asking(question: &str, options: &[String]) -> Value {
    let options: Vec<Value> = options
        .iter()
        .map(|label| json!({ "label": label, "description": format!("Choose {label}") }))
        .collect();
    // The tool accepts at most twelve characters.
    let header: String = question.chars().take(12).collect();
    json!({ "questions": [{
        "question": question, "header": header.trim(), "multiSelect": false, "options": options,
    }] })
}
