//! Checks like the real API that the next message answers each call and nothing else. The tests thereby find
//! conversations that were assembled wrongly after a crash.

use super::{RequestBlock, RequestMessage};
use std::collections::HashSet;

pub(super) fn check(messages: &[RequestMessage]) -> Result<(), String> {
    let mut called: HashSet<String> = HashSet::new();
    for (role, blocks) in turns(messages) {
        let answered = of_kind(&blocks, "tool_result", |block| &block.tool_use_id);
        if let Some(id) = called.difference(&answered).min() {
            return Err(format!(
                "messages: `tool_use` {id} has no `tool_result` in the {role} message after it"
            ));
        }
        if let Some(id) = answered.difference(&called).min() {
            return Err(format!(
                "messages: `tool_result` {id} answers no `tool_use` in the message before it"
            ));
        }
        called = of_kind(&blocks, "tool_use", |block| &block.id);
    }
    match called.iter().min() {
        Some(id) => Err(format!("messages: `tool_use` {id} has no `tool_result` after it")),
        None => Ok(()),
    }
}

/// Consecutive messages of the same role count as one.
fn turns(messages: &[RequestMessage]) -> Vec<(&str, Vec<RequestBlock>)> {
    let mut turns: Vec<(&str, Vec<RequestBlock>)> = Vec::new();
    for message in messages.iter().filter(|message| message.role != "system") {
        match turns.last_mut() {
            Some((role, blocks)) if *role == message.role => blocks.extend(message.blocks()),
            _ => turns.push((&message.role, message.blocks())),
        }
    }
    turns
}

fn of_kind(blocks: &[RequestBlock], kind: &str, id: fn(&RequestBlock) -> &String) -> HashSet<String> {
    blocks.iter().filter(|block| block.kind == kind).map(|block| id(block).clone()).collect()
}

#[cfg(test)]
mod tests {
    use crate::conversation::MessagesRequest;
    use serde_json::{Value, json};

    fn call(id: &str) -> Value {
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "x", "input": {}}]})
    }

    fn result(id: &str) -> Value {
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": ""}]})
    }

    fn check(messages: Value) -> Result<(), String> {
        MessagesRequest::read(&json!({ "messages": messages })).map(|_| ())
    }

    #[test]
    fn calls_and_results_come_in_pairs() {
        let hello = json!({"role": "user", "content": "hello"});
        let system = json!({"role": "system", "content": "x"});
        let two =
            json!({"role": "assistant", "content": [call("t1")["content"][0], call("t2")["content"][0]]});
        assert_eq!(check(json!([hello, call("t1"), system, result("t1")])), Ok(()));
        assert_eq!(check(json!([hello, two, result("t2"), result("t1")])), Ok(()));
        for broken in [
            json!([hello, call("t1"), hello]),
            json!([hello, result("t1")]),
            json!([hello, call("t1")]),
            json!([hello, two, result("t2")]),
        ] {
            let error = check(broken).expect_err("refused");
            assert!(error.contains("t1"), "{error}");
        }
    }
}
