//! Tools that the clients of a session execute: the calls that wait, and their answers from a shell.

use super::sessions::path;
use crate::{
    api::{ApiClient, Result, percent_encode},
    terminal::{self, TerminalStyle, paint},
};
use serde_json::{Value, json};

pub(crate) async fn list(api: &ApiClient, id: &str, as_json: bool) -> Result<u8> {
    let id = api.session_id(id).await?;
    let answer = api.get(&path(&id, "/tools")).await?;
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    let entries = |name: &str| answer[name].as_array().cloned().unwrap_or_default();
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let tools = entries("tools");
    if tools.is_empty() {
        eprintln!("this session has no client tools; a client declares them with the option `tools`");
    }
    for tool in &tools {
        let name = paint(TerminalStyle::Cyan, &text(tool, "name"));
        println!("{name}  {}", text(tool, "description"));
    }
    let calls = entries("calls");
    if calls.is_empty() && !tools.is_empty() {
        eprintln!("no call waits for an answer");
    }
    for call in &calls {
        let until = call["expiresAt"].as_str().map_or("without limit".to_owned(), |at| format!("until {at}"));
        println!(
            "{}  {}  {}",
            paint(TerminalStyle::Bold, &text(call, "id")),
            paint(TerminalStyle::Cyan, &text(call, "tool")),
            paint(TerminalStyle::Dim, &until)
        );
        println!("{:#}", call["input"]);
    }
    Ok(0)
}

/// A result that is no JSON is a text.
pub(crate) async fn answer(
    api: &ApiClient,
    (id, call): (&str, &str),
    (result, error): (Option<&str>, Option<&str>),
    as_json: bool,
) -> Result<u8> {
    let id = api.session_id(id).await?;
    let body = match (result, error) {
        (Some(result), _) => {
            json!({ "result": serde_json::from_str(result).unwrap_or_else(|_| json!(result)) })
        }
        (None, error) => json!({ "error": error }),
    };
    let answer = api.post(&path(&id, &format!("/tools/{}", percent_encode(call))), &body).await?;
    if as_json {
        terminal::json(&answer)
    } else {
        eprintln!("answered")
    }
    Ok(0)
}
