//! The tools of the client, as Claude Code gets them: an MCP server that we are, over its control lines. Claude Code sends
//! each message of the protocol as a `control_request` and waits for the answer to every one, notifications included.

use crate::AgentEvent;
use ash_model::{ClientTool, ToolOutput, tool_name};
use serde_json::{Value, json};

/// The server's name: Claude Code shows its tools to the model as `mcp__ash__NAME`.
pub(crate) const SERVER: &str = "ash";
/// Used if the client names no version that we can repeat.
const PROTOCOL: &str = "2025-06-18";
const METHOD_NOT_FOUND: i64 = -32601;
/// Ids of control lines have 36 characters.
const MAX_STORED_CHARS: usize = 100;

/// A message of the protocol. A call is named by its JSON-RPC id, by which Claude Code cancels it, and by the id of the
/// control line, which its answer needs.
pub(crate) fn hear(line: &Value) -> Option<Vec<AgentEvent>> {
    let (id, request) = (line.get("request_id")?.as_str()?, line.get("request")?);
    if request.get("subtype")?.as_str()? != "mcp_message" || request.get("server_name")?.as_str()? != SERVER {
        return None;
    }
    let message = request.get("message")?;
    let params = message.get("params").unwrap_or(&Value::Null);
    let asked = || AgentEvent::ToolServerAsked { request: shortened(id), message: essence(message) };
    match message.get("method")?.as_str()? {
        "tools/call" => {
            let number = message.get("id").filter(|id| id.is_u64())?;
            let tool_use_id = params.pointer("/_meta/claudecode~1toolUseId").and_then(Value::as_str);
            Some(vec![AgentEvent::ToolRequested {
                request: format!("{} {}", call(number), shortened(id)),
                tool: tool_name(params.get("name")?.as_str()?)?,
                input: params.get("arguments").cloned().unwrap_or_else(|| json!({})),
                tool_use_id: tool_use_id.map(str::to_owned),
            }])
        }
        "notifications/cancelled" => {
            let cancelled = params.get("requestId").map(call);
            let withdrawn = cancelled.map(|request| AgentEvent::RequestWithdrawn { request });
            Some(withdrawn.into_iter().chain([asked()]).collect())
        }
        _ => Some(vec![asked()]),
    }
}

/// What an answer depends on. It is stored until the agent has its answer, and the agent is not trusted.
fn essence(message: &Value) -> Value {
    let text = |value: &Value| value.as_str().map(shortened);
    let mut essence = json!({ "method": text(&message["method"]) });
    if let Some(id) = message.get("id").filter(|id| id.is_u64()) {
        essence["id"] = id.clone();
    }
    if let Some(version) = text(&message["params"]["protocolVersion"]) {
        essence["params"] = json!({ "protocolVersion": version });
    }
    essence
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_STORED_CHARS).collect()
}

fn call(number: &Value) -> String {
    format!("mcp {number}")
}

/// The answer to everything but a call.
pub(crate) fn reply(message: &Value, tools: &[ClientTool]) -> Value {
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({
            "protocolVersion": message["params"]["protocolVersion"].as_str().unwrap_or(PROTOCOL),
            "capabilities": { "tools": {} },
            "serverInfo": { "name": SERVER, "version": env!("CARGO_PKG_VERSION") },
        }),
        "tools/list" => json!({ "tools": tools.iter().map(listed).collect::<Vec<_>>() }),
        method if method == "ping" || method.starts_with("notifications/") => json!({}),
        method => {
            let error = json!({ "code": METHOD_NOT_FOUND, "message": format!("no method {method:?}") });
            return json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
        }
    };
    // Claude Code wants an answer to a notification, too; it looks at no id there.
    let id = message.get("id").cloned().unwrap_or_else(|| json!(0));
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

/// A tool in the form of the protocol. Without the mark Claude Code shows the model only the names of tools, and the model has
/// to look for them first.
fn listed(tool: &ClientTool) -> Value {
    let mut listed = json!(tool);
    listed["_meta"] = json!({ "anthropic/alwaysLoad": true });
    listed
}

/// The line that carries a reply.
pub(crate) fn reply_line(request: &str, reply: &Value) -> Value {
    let response =
        json!({ "subtype": "success", "request_id": request, "response": { "mcp_response": reply } });
    json!({ "type": "control_response", "response": response })
}

/// The line that carries the output of a call.
pub(crate) fn output_line(request: &str, output: &ToolOutput) -> Value {
    let mut words = request.splitn(3, ' ').skip(1);
    let number = words.next().and_then(|number| serde_json::from_str(number).ok()).unwrap_or(Value::Null);
    let content = json!([{ "type": "text", "text": output.text() }]);
    let result = json!({ "content": content, "isError": output.is_error() });
    reply_line(words.next().unwrap_or_default(), &json!({ "jsonrpc": "2.0", "id": number, "result": result }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(message: Value) -> Value {
        let request = json!({"subtype": "mcp_message", "server_name": SERVER, "message": message});
        json!({"type": "control_request", "request_id": "c-1", "request": request})
    }

    #[test]
    fn a_call_is_known_by_both_of_its_ids_and_its_answer_carries_them() {
        let params =
            json!({"name": "lookup", "arguments": {"q": "x"}, "_meta": {"claudecode/toolUseId": "toolu_1"}});
        let heard = hear(&line(json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})));
        let expected = AgentEvent::ToolRequested {
            request: "mcp 2 c-1".into(),
            tool: "lookup".into(),
            input: json!({"q": "x"}),
            tool_use_id: Some("toolu_1".into()),
        };
        assert_eq!(heard, Some(vec![expected]));
        let answered = output_line("mcp 2 c-1", &ToolOutput::Error("no".into()));
        let response = &answered["response"];
        assert_eq!((&answered["type"], &response["request_id"]), (&json!("control_response"), &json!("c-1")));
        let result = json!({"content": [{"type": "text", "text": "no"}], "isError": true});
        assert_eq!(
            response["response"]["mcp_response"],
            json!({"jsonrpc": "2.0", "id": 2, "result": result})
        );
    }

    #[test]
    fn a_cancelled_call_is_withdrawn_by_its_number_and_the_message_still_gets_an_answer() {
        let cancelled =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}});
        let heard = hear(&line(cancelled.clone())).expect("for us");
        assert_eq!(heard[0], AgentEvent::RequestWithdrawn { request: "mcp 2".into() });
        let message = json!({"method": "notifications/cancelled"});
        assert_eq!(heard[1], AgentEvent::ToolServerAsked { request: "c-1".into(), message });
        assert_eq!(reply(&cancelled, &[])["result"], json!({}));
    }

    #[test]
    fn the_server_introduces_itself_lists_its_tools_and_knows_nothing_else() {
        let ask = |message: Value| {
            reply(
                &message,
                &[ClientTool {
                    name: "t".into(),
                    description: "d".into(),
                    input_schema: json!({"type": "object"}),
                }],
            )
        };
        let hello = ask(json!({"id": 0, "method": "initialize", "params": {"protocolVersion": "v"}}));
        assert_eq!(hello["result"]["protocolVersion"], "v");
        assert_eq!(hello["result"]["capabilities"], json!({"tools": {}}));
        let tools = json!([{"name": "t", "description": "d", "inputSchema": {"type": "object"},
            "_meta": {"anthropic/alwaysLoad": true}}]);
        assert_eq!(ask(json!({"id": "a", "method": "tools/list"}))["result"]["tools"], tools);
        assert_eq!(ask(json!({"id": 3, "method": "resources/list"}))["error"]["code"], METHOD_NOT_FOUND);
    }

    #[test]
    fn what_is_stored_of_a_message_is_small() {
        let message = json!({"id": 1, "method": "m".repeat(10_000), "params": {"protocolVersion": "v", "x": "y".repeat(10_000)}});
        let Some([AgentEvent::ToolServerAsked { message, .. }]) =
            hear(&line(message)).as_deref().map(|heard| [heard[0].clone()])
        else {
            panic!("for us")
        };
        let stored =
            json!({"id": 1, "method": "m".repeat(MAX_STORED_CHARS), "params": {"protocolVersion": "v"}});
        assert_eq!(message, stored);
    }

    #[test]
    fn lines_for_other_servers_and_broken_ones_are_not_for_us() {
        let mut other = line(json!({"id": 1, "method": "tools/list"}));
        other["request"]["server_name"] = json!("theirs");
        assert_eq!(hear(&other), None);
        for message in [json!(null), json!({}), json!({"method": "tools/call"}), json!({"method": 5})] {
            assert_eq!(hear(&line(message.clone())), None, "{message}");
        }
        let nameless = json!({"id": 1, "method": "tools/call", "params": {"name": "\u{202e}"}});
        assert_eq!(hear(&line(nameless)), None);
    }
}
