//! Calls of the client's tools, and the options that declare the tools.

use super::turn;
use ash_model::{
    AgentName, ClientTool, Fact, Incarnation, SessionOptions, Timestamp, ToolAnswer, ToolOutput, ToolRepeat,
    ToolRequest, ToolRequestId, ToolTimeoutPolicy, VerdictSource,
};
use serde_json::{Value, json};
use uuid::Uuid;

pub(crate) fn client_tools() -> Vec<Fact> {
    let id = ToolRequestId(Uuid::from_u128(13));
    let call = ToolRequest {
        id,
        turn: Some(turn()),
        request: "call-t".into(),
        tool: "lookup".into(),
        input: json!({"q": "x"}),
        tool_use_id: Some("t".into()),
        expires_at: Some(Timestamp(1000)),
        on_timeout: ToolTimeoutPolicy::Fail,
    };
    let endless = ToolRequest {
        turn: None,
        tool_use_id: None,
        expires_at: None,
        on_timeout: ToolTimeoutPolicy::Interrupt,
        ..call.clone()
    };
    let answered =
        |output, by, input| Fact::ToolAnswered(ToolAnswer { id, turn: Some(turn()), output, by, input });
    let repeated =
        |input| Fact::ToolRepeated(ToolRepeat { id, turn: Some(turn()), request: "call-t".into(), input });
    let tool = ClientTool {
        name: "lookup".into(),
        description: "Looks a thing up".into(),
        input_schema: json!({"type": "object"}),
    };
    let options = SessionOptions {
        client_tools: Some(vec![tool]),
        tool_timeout: Some(0),
        on_tool_timeout: Some(ToolTimeoutPolicy::Interrupt),
        ..SessionOptions::default()
    };
    let agent = AgentName::parse("helper").expect("a name");
    vec![
        Fact::Created { agent, version: 2, options },
        Fact::Awake {
            incarnation: Incarnation(Uuid::from_u128(8)),
            resumed_after: None,
            outdated: false,
            more_inputs: 2,
        },
        Fact::ToolRequested(call),
        Fact::ToolRequested(endless),
        answered(Some(ToolOutput::Result(json!({"a": [1]}))), VerdictSource::Client, Some(3)),
        answered(Some(ToolOutput::Result(Value::Null)), VerdictSource::Client, None),
        answered(Some(ToolOutput::Error("no".into())), VerdictSource::Policy, Some(4)),
        answered(None, VerdictSource::Cancelled, None),
        repeated(None),
        repeated(Some(5)),
        Fact::ToolServerAsked {
            request: "c-1".into(),
            message: json!({"id": 1, "method": "tools/list"}),
            input: 6,
        },
    ]
}
