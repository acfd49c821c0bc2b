//! Replies without a script: they follow from the conversation alone.

use crate::{
    conversation::{LatestPrompt, MessagesRequest, RequestToolResult},
    directive::{self, DirectiveStep, DirectiveToolCall},
    helper_requests,
    reply::{ReplyBlock, TextPace},
    tools,
};
use serde_json::Value;

/// The reply, and a short reason for the log.
#[derive(Debug, PartialEq)]
pub(crate) struct ReplyDraft {
    pub(crate) blocks: Vec<ReplyBlock>,
    pub(crate) why: String,
}

impl ReplyDraft {
    pub(crate) fn text(why: &str, text: impl Into<String>) -> ReplyDraft {
        ReplyDraft { blocks: vec![ReplyBlock::text(text)], why: why.into() }
    }
}

pub(crate) fn reply_to_conversation(conversation: &MessagesRequest) -> ReplyDraft {
    let Some(prompt) = conversation.prompt() else {
        return ReplyDraft::text("nothing was asked", "Nothing was asked of me.");
    };
    if conversation.is_notice() {
        return ReplyDraft::text("notice", "I have taken note of it.");
    }
    if helper_requests::asks_for_summary(&prompt.text) {
        return ReplyDraft::text("summary", helper_requests::summary(conversation));
    }
    let steps = directive::parse(&prompt.text).steps;
    if steps.is_empty() {
        return small_talk(&prompt, conversation);
    }
    perform(steps, &prompt, conversation)
}

fn small_talk(prompt: &LatestPrompt, conversation: &MessagesRequest) -> ReplyDraft {
    if prompt.outcomes.is_empty() {
        return ReplyDraft::text("chat", chat(&prompt.text, conversation));
    }
    ReplyDraft {
        blocks: joined(prompt.outcomes.iter().map(describe_result).collect()),
        why: "tool result".into(),
    }
}

/// Each directive with calls takes its own reply, so the number of results gives the position. The last reply reports the results and has
/// the text after the last call.
fn perform(steps: Vec<DirectiveStep>, prompt: &LatestPrompt, conversation: &MessagesRequest) -> ReplyDraft {
    let mut blocks = Vec::new();
    let mut called = 0;
    for step in steps {
        match step {
            DirectiveStep::Think(text) => blocks.push(ReplyBlock::Thinking(text)),
            DirectiveStep::Say { text, pace } => blocks.push(ReplyBlock::Text { text, pace }),
            DirectiveStep::Chat(text) => blocks.push(ReplyBlock::text(chat(&text, conversation))),
            DirectiveStep::Call(wishes) => match all_calls(&wishes, conversation) {
                Err(instead) => blocks.push(ReplyBlock::text(instead)),
                Ok(_) if called < prompt.outcomes.len() => {
                    called += wishes.len();
                    blocks.clear();
                }
                Ok(calls) => {
                    let names: Vec<&str> = calls.iter().map(|(name, _)| name.as_str()).collect();
                    let why = format!("call of {}", names.join(" and "));
                    blocks.extend(calls.into_iter().map(|(name, input)| ReplyBlock::Call { name, input }));
                    return ReplyDraft { blocks, why };
                }
            },
        }
    }
    let came_out: Vec<ReplyBlock> = prompt.outcomes.iter().map(describe_result).collect();
    let why = if came_out.is_empty() { "say" } else { "tool result" };
    let mut blocks = joined([came_out, blocks].concat());
    // With thinking alone the turn would end without text.
    if blocks.iter().all(|block| matches!(block, ReplyBlock::Thinking(_))) {
        blocks.push(ReplyBlock::text("I have thought about it."));
    }
    ReplyDraft { blocks, why: why.into() }
}

/// The calls of one reply, or a text that says which tool is not offered.
fn all_calls(
    wishes: &[DirectiveToolCall],
    conversation: &MessagesRequest,
) -> Result<Vec<(String, Value)>, String> {
    wishes.iter().map(|wish| tools::call(wish, conversation)).collect()
}

/// Joins consecutive texts: clients show the last block as the result, so it must have all of the text.
fn joined(blocks: Vec<ReplyBlock>) -> Vec<ReplyBlock> {
    let mut whole: Vec<ReplyBlock> = Vec::new();
    for block in blocks {
        match (whole.last_mut(), block) {
            (
                Some(ReplyBlock::Text { text, pace: TextPace::AtOnce }),
                ReplyBlock::Text { text: more, pace: TextPace::AtOnce },
            ) => *text = format!("{text}\n{more}"),
            (_, block) => whole.push(block),
        }
    }
    whole
}

fn describe_result(outcome: &RequestToolResult) -> ReplyBlock {
    let first = outcome.text.lines().map(str::trim).find(|line| !line.is_empty());
    ReplyBlock::text(match (first, outcome.failed) {
        (Some(line), false) => format!("The output begins with: {line}"),
        (Some(line), true) => format!("It failed: {line}"),
        (None, false) => "There was no output.".into(),
        (None, true) => "It failed without a word.".into(),
    })
}

fn chat(text: &str, conversation: &MessagesRequest) -> String {
    let seen = match conversation.prompt_count() {
        1 => "1 user message".to_owned(),
        many => format!("{many} user messages"),
    };
    format!("You said: \"{text}\". I can see {seen} of this conversation.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(messages: Value, tools: &[&str]) -> ReplyDraft {
        let tools: Vec<Value> = tools.iter().map(|name| json!({ "name": name })).collect();
        let body = json!({ "messages": messages, "tools": tools });
        reply_to_conversation(&MessagesRequest::read(&body).expect("a conversation"))
    }

    fn call(name: &str, input: Value) -> ReplyBlock {
        ReplyBlock::Call { name: name.into(), input }
    }

    fn result(text: &str) -> [Value; 2] {
        [
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]}),
        ]
    }

    #[test]
    fn talk_is_repeated_with_the_number_of_messages() {
        let one = json!([{"role": "user", "content": "hello"}]);
        let text = r#"You said: "hello". I can see 1 user message of this conversation."#;
        assert_eq!(said(one, &["Bash"]), ReplyDraft::text("chat", text));
    }

    #[test]
    fn a_directive_calls_the_tool_that_is_offered() {
        let run = json!([{"role": "user", "content": "run: ls"}]);
        let of_claude = call("Bash", json!({"command": "ls", "description": "What the prompt asks for"}));
        assert_eq!(said(run.clone(), &["Bash", "run"]).blocks, [of_claude]);
        assert_eq!(said(run.clone(), &["run"]).blocks, [call("run", json!({"command": "ls"}))]);
        let none = ReplyBlock::text("I would call Bash or run, but it is not offered.");
        assert_eq!(said(run, &[]).blocks, [none]);
    }

    #[test]
    fn a_tool_is_called_under_the_name_that_is_offered() {
        let asked = |text: &str| json!([{"role": "user", "content": text}]);
        let input = json!({"x": 1});
        for (offered, called) in
            [(&["mcp__ash__look", "look"][..], "look"), (&["outlook", "mcp__ash__look"], "mcp__ash__look")]
        {
            let said = said(asked(r#"call look: {"x": 1}"#), offered).blocks;
            assert_eq!(said, [call(called, input.clone())]);
        }
        let none = ReplyBlock::text("I would call look, but it is not offered.");
        assert_eq!(said(asked("call look:"), &["outlook"]).blocks, [none]);
    }

    #[test]
    fn calls_of_one_directive_are_one_reply() {
        let mut messages = vec![json!({"role": "user", "content": "call a: and call b:\nrun: c"})];
        let (tools, calls) = (["a", "b", "run"], [call("a", json!({})), call("b", json!({}))]);
        let first = said(json!(messages), &tools);
        assert_eq!((first.why.as_str(), &first.blocks[..]), ("call of a and b", &calls[..]));
        let of = |id: &str| json!({"type": "tool_use", "id": id, "name": "a", "input": {}});
        let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": id});
        messages.push(json!({"role": "assistant", "content": [of("one"), of("two")]}));
        messages.push(json!({"role": "user", "content": [result("one"), result("two")]}));
        assert_eq!(said(json!(messages), &tools).blocks, [call("run", json!({"command": "c"}))]);
    }

    #[test]
    fn several_directives_are_done_one_after_the_other() {
        let prompt = json!({"role": "user", "content": "think: hm\nrun: a\nsay: now\nrun: b\nsay: done"});
        let mut messages = vec![prompt];
        let of = |command: &str| call("run", json!({ "command": command }));
        let first = said(json!(messages), &["run"]).blocks;
        assert_eq!(first, [ReplyBlock::Thinking("hm".into()), of("a")]);
        messages.extend(result("one\ntwo"));
        assert_eq!(said(json!(messages), &["run"]).blocks, [ReplyBlock::text("now"), of("b")]);
        messages.extend(result(""));
        let last = ReplyBlock::text("The output begins with: one\nThere was no output.\ndone");
        assert_eq!(said(json!(messages), &["run"]).blocks, [last]);
    }

    #[test]
    fn a_request_for_a_summary_gets_one() {
        let asked =
            "Your task is to create a detailed summary of the conversation so far, in <summary> tags.";
        let said = said(json!([{"role": "user", "content": asked}]), &["Bash"]);
        assert_eq!(said.why, "summary");
        assert!(matches!(&said.blocks[..], [ReplyBlock::Text { text, .. }] if text.starts_with("<summary>")));
    }
}
