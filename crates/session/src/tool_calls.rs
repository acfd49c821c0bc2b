//! The ledger of a turn's tool calls: which were made, which completed, and which have an unknown outcome. Folded from
//! the log, so that it survives every crash.

use ash_driver::AgentDriver;
use ash_model::{Event, Fact, ToolCallOutcome, ToolCallRecord};

/// Only the newest calls are reported, up to this number.
const MAX_CALLS: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct ToolCallLedger {
    calls: Vec<ToolCallRecord>,
    /// Calls that wait for permission, with the id of the request.
    asked: Vec<(ash_model::PermissionId, String)>,
}

impl ToolCallLedger {
    pub(crate) fn note(&mut self, driver: &dyn AgentDriver, event: &Event) {
        match &event.fact {
            Fact::Said { line } => {
                for (id, made) in driver.calls(line) {
                    match made {
                        Some(tool) => self.made(id, tool),
                        None => self.set(&id, ToolCallOutcome::Done),
                    }
                }
            }
            Fact::PermissionRequested(asked) => {
                if let Some(id) = &asked.tool_use_id {
                    self.set(id, ToolCallOutcome::NotStarted);
                    self.asked.push((asked.id, id.clone()));
                }
            }
            Fact::Answered { id, verdict: Some(ash_model::PermissionVerdict::Allow { .. }), .. } => {
                let call = self.asked.iter().find(|(asked, _)| asked == id).map(|(_, call)| call.clone());
                if let Some(call) = call {
                    self.set(&call, ToolCallOutcome::Unknown);
                }
            }
            _ => {}
        }
    }

    fn made(&mut self, id: String, tool: String) {
        if self.calls.iter().any(|call| call.id == id) {
            return;
        }
        if self.calls.len() == MAX_CALLS {
            self.calls.remove(0);
        }
        self.calls.push(ToolCallRecord { id, tool, outcome: ToolCallOutcome::Unknown });
    }

    fn set(&mut self, id: &str, how: ToolCallOutcome) {
        if let Some(call) =
            self.calls.iter_mut().rev().find(|call| call.id == id && call.outcome != ToolCallOutcome::Done)
        {
            call.outcome = how;
        }
    }

    pub(crate) fn calls(self) -> Vec<ToolCallRecord> {
        self.calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{
        AgentRuntime, PermissionId, PermissionRequest, PermissionTimeoutPolicy, PermissionVerdict, Timestamp,
        TurnId, VerdictSource,
    };
    use serde_json::{Value, json};
    use uuid::Uuid;

    fn said(blocks: Value, kind: &str) -> Fact {
        Fact::Said { line: json!({ "type": kind, "message": { "content": blocks } }).to_string() }
    }

    fn asked(number: u128, call: &str) -> Fact {
        Fact::PermissionRequested(PermissionRequest {
            id: PermissionId(Uuid::from_u128(number)),
            turn: None,
            request: "r".into(),
            tool: "Bash".into(),
            input: json!({}),
            tool_use_id: Some(call.into()),
            suggestions: Vec::new(),
            question: false,
            expires_at: Timestamp(0),
            on_timeout: PermissionTimeoutPolicy::Deny,
        })
    }

    fn answered(number: u128, verdict: Option<PermissionVerdict>) -> Fact {
        let id = PermissionId(Uuid::from_u128(number));
        Fact::Answered { id, turn: None, verdict, by: VerdictSource::Client, input: None }
    }

    #[test]
    fn a_call_is_done_unknown_or_was_never_started() {
        let made = |id: &str| json!({ "type": "tool_use", "id": id, "name": "Bash", "input": {} });
        let result = |id: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": "ok" });
        let facts = [
            said(json!([{ "type": "text", "text": "I do it" }, made("a"), made("b")]), "assistant"),
            said(json!([result("a")]), "user"),
            said(json!([made("c"), made("d"), made("e")]), "assistant"),
            asked(1, "c"),
            asked(2, "d"),
            answered(1, Some(PermissionVerdict::allow())),
            answered(2, None),
            // A completed call stays completed, and a result without a call is ignored.
            said(json!([made("a"), result("x")]), "assistant"),
        ];
        let driver = ash_driver::driver(AgentRuntime::Claude);
        let mut ledger = ToolCallLedger::default();
        for fact in facts {
            let turn = Some(TurnId(Uuid::nil()));
            ledger.note(driver.as_ref(), &Event { seq: 1, turn, at: Timestamp(0), fact });
        }
        let calls: Vec<(String, ToolCallOutcome)> =
            ledger.calls().into_iter().map(|call| (call.id, call.outcome)).collect();
        let expected = [
            ("a", ToolCallOutcome::Done),
            ("b", ToolCallOutcome::Unknown),
            ("c", ToolCallOutcome::Unknown),
            ("d", ToolCallOutcome::NotStarted),
            ("e", ToolCallOutcome::Unknown),
        ];
        assert_eq!(calls, expected.map(|(id, how)| (id.to_owned(), how)));
    }

    #[test]
    fn only_the_newest_calls_and_short_names_are_reported() {
        let driver = ash_driver::driver(AgentRuntime::Claude);
        let mut ledger = ToolCallLedger::default();
        let mut say = |id: &str| {
            let fact =
                said(json!([{ "type": "tool_use", "id": id, "name": "Bash", "input": {} }]), "assistant");
            ledger.note(driver.as_ref(), &Event { seq: 1, turn: None, at: Timestamp(0), fact });
        };
        (0..MAX_CALLS + 1).for_each(|number| say(&number.to_string()));
        say(&"x".repeat(10_000));
        let calls = ledger.calls();
        assert_eq!((calls.len(), calls[0].id.as_str()), (MAX_CALLS, "1"));
    }
}
