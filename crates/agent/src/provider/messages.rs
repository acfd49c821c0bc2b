//! The conversation as messages, in the content blocks of the Messages API, which the transcript uses too. Providers with
//! another format convert them. Pure, and equal for equal conversations, so that a service finds the prefix in its cache.
//!
//! Whatever happened to the transcript, services accept the messages: they begin with the user, each call has its result
//! right after it, and nothing is empty.

#[cfg(test)]
pub(super) mod testing;

use crate::conversation::{
    AssistantBlock, AssistantMessage, PromptContent, TerminalReason, ToolResult, TranscriptTurn,
    TurnEndRecord, TurnStep,
};
use ash_model::shown_tool_name;
use serde_json::{Value, json};

const PREAMBLE: &str = "You are an agent that works with the tools you are given. The current directory is your \
    workspace: what you leave there is kept. You are in a sandbox without a network, and nobody watches while you work: \
    do what is asked, check that it is done, and then say what you did, shortly.";
const LOST: &str = "[A message that was lost]";
const EMPTY: &str = "[An empty message]";
/// Uses the wording of Claude Code, which models know.
const INTERRUPTED: &str = "[Request interrupted by user]";
/// Keeps the beginning and the end of a tool result: the whole could exceed the model's window.
const HEAD: usize = 32 << 10;
const TAIL: usize = 16 << 10;

/// The system prompt: our part, then that of the folder and the session.
pub(super) fn system(own: Option<&str>) -> Vec<&str> {
    let own = own.filter(|own| !is_blank(own));
    [PREAMBLE].into_iter().chain(own).collect()
}

/// `thoughts_of`: the model whose thinking blocks of the running turn are included. Earlier turns lose theirs: the
/// signatures cover everything before them, so each edit of the system prompt would invalidate them.
pub(super) fn messages(
    turns: &[TranscriptTurn],
    thoughts_of: Option<&str>,
) -> Vec<(MessageRole, Vec<Value>)> {
    let mut messages = RequestMessages::default();
    let last = turns.len().saturating_sub(1);
    for (index, turn) in turns.iter().enumerate().filter(|(_, turn)| !is_refused(turn)) {
        messages.add(turn, thoughts_of.filter(|_| index == last));
    }
    messages.0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageRole {
    User,
    Assistant,
}

impl MessageRole {
    pub(super) fn name(self) -> &'static str {
        match self {
            MessageRole::User => "user",
            MessageRole::Assistant => "assistant",
        }
    }
}

#[derive(Default)]
struct RequestMessages(Vec<(MessageRole, Vec<Value>)>);

impl RequestMessages {
    fn add(&mut self, turn: &TranscriptTurn, thoughts_of: Option<&str>) {
        self.say(MessageRole::User, head(turn.head.as_deref()));
        self.say(MessageRole::User, prompt(turn.prompt.as_ref()));
        for step in &turn.steps {
            self.say(MessageRole::Assistant, said(&step.message, thoughts_of));
            self.say(MessageRole::User, results(step));
            step.steers.iter().for_each(|steer| self.say(MessageRole::User, prompt(Some(&steer.content))));
        }
        if let Some(ended) = turn.ended.as_ref().filter(|ended| is_interrupted(ended)) {
            // The user has seen this text.
            self.say(MessageRole::Assistant, texts([ended.partial.as_str()]));
            self.say(MessageRole::User, texts([INTERRUPTED]));
        }
    }

    fn say(&mut self, role: MessageRole, blocks: Vec<Value>) {
        match self.0.last_mut() {
            _ if blocks.is_empty() => {}
            Some((last, there)) if *last == role => there.extend(blocks),
            _ => self.0.push((role, blocks)),
        }
    }
}

/// A picture that the service cannot read would fail every later request of the conversation.
fn is_refused(turn: &TranscriptTurn) -> bool {
    let ended = turn.ended.as_ref().and_then(|ended| ended.ending.terminal_reason);
    turn.steps.is_empty() && ended == Some(TerminalReason::InvalidRequest)
}

fn is_interrupted(ended: &TurnEndRecord) -> bool {
    match ended.ending.terminal_reason {
        Some(TerminalReason::AbortedStreaming | TerminalReason::AbortedTools) => true,
        Some(
            TerminalReason::ApiError
            | TerminalReason::InvalidRequest
            | TerminalReason::MaxTurns
            | TerminalReason::ContextFull
            | TerminalReason::TranscriptError,
        )
        | None => false,
    }
}

/// Marked as Claude Code marks text that is not from the user.
fn head(head: Option<&str>) -> Vec<Value> {
    let head = head.filter(|head| !is_blank(head));
    head.map(|head| text(&format!("<system-reminder>\n{head}\n</system-reminder>"))).into_iter().collect()
}

fn prompt(prompt: Option<&PromptContent>) -> Vec<Value> {
    let blocks = match prompt {
        None => texts([LOST]),
        Some(PromptContent::Text(text)) => texts([text.as_str()]),
        Some(PromptContent::Blocks(blocks)) => {
            blocks.iter().filter(|block| is_usable(block)).map(plain).collect()
        }
    };
    if blocks.is_empty() { texts([EMPTY]) } else { blocks }
}

fn is_usable(block: &Value) -> bool {
    block.is_object()
        && (block["type"] != "text" || block["text"].as_str().is_some_and(|text| !is_blank(text)))
}

/// Removes the client's cache marks: a request may have only a few, and we place them.
fn plain(block: &Value) -> Value {
    let mut block = block.clone();
    block.as_object_mut().into_iter().for_each(|block| drop(block.remove("cache_control")));
    block
}

fn said(message: &AssistantMessage, thoughts_of: Option<&str>) -> Vec<Value> {
    let thinks = thoughts_of == Some(message.model.as_str());
    let blocks = message.content.iter().filter(|block| match block {
        AssistantBlock::Text { text } => !is_blank(text),
        AssistantBlock::ToolUse(_) => true,
        AssistantBlock::Thinking { .. } | AssistantBlock::RedactedThinking { .. } => thinks,
    });
    let mut blocks: Vec<&AssistantBlock> = blocks.collect();
    // The API refuses a message that ends with a thinking block.
    while let Some(AssistantBlock::Thinking { .. } | AssistantBlock::RedactedThinking { .. }) = blocks.last()
    {
        blocks.pop();
    }
    blocks.into_iter().map(shape).collect()
}

fn shape(block: &AssistantBlock) -> Value {
    match block {
        AssistantBlock::ToolUse(call) => {
            let input =
                Some(&call.input).filter(|input| input.is_object()).cloned().unwrap_or_else(|| json!({}));
            // Older transcripts hold tool names exactly as models gave them.
            let name = shown_tool_name(&call.name);
            json!({ "type": "tool_use", "id": call.id, "name": name, "input": input })
        }
        AssistantBlock::Text { text: said } => text(said),
        AssistantBlock::Thinking { thinking, signature } => {
            json!({ "type": "thinking", "thinking": thinking, "signature": signature })
        }
        AssistantBlock::RedactedThinking { data } => json!({ "type": "redacted_thinking", "data": data }),
    }
}

/// One result for each call, in the order of the calls.
fn results(step: &TurnStep) -> Vec<Value> {
    let results = step.message.calls().map(|call| {
        let result = step.results.iter().map(|shown| &shown.content).find(|result| result.tool_use_id == call.id);
        let (content, is_error) =
            result.map_or((ToolResult::UNKNOWN, true), |result| (result.content.as_str(), result.is_error));
        json!({ "type": "tool_result", "tool_use_id": call.id, "content": cut(content), "is_error": is_error })
    });
    results.collect()
}

fn cut(text: &str) -> String {
    if text.len() <= HEAD + TAIL {
        return text.to_owned();
    }
    let (head, tail) = (text.floor_char_boundary(HEAD), text.ceil_char_boundary(text.len() - TAIL));
    format!("{}\n[{} bytes are left out here]\n{}", &text[..head], tail - head, &text[tail..])
}

fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Value> {
    texts.into_iter().filter(|text| !is_blank(text)).map(text).collect()
}

pub(super) fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::testing::{assistant, call, conversation, interrupted, result, said, user};
    use super::*;

    fn sent(entries: &[Value], thoughts_of: Option<&str>) -> Value {
        let messages = messages(&conversation(entries), thoughts_of);
        messages.into_iter().map(|(role, blocks)| json!({ "role": role.name(), "content": blocks })).collect()
    }

    #[test]
    fn a_conversation_is_sent_whole_and_in_order() {
        let entries = [
            user("a", json!("hello")),
            assistant("a", "offline", json!([said("hi")])),
            user(
                "b",
                json!([{"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}}, {"type": "image", "source": {}}]),
            ),
            assistant("b", "m", json!([said("I look"), call("t1"), call("t2")])),
            result("b", "t2", "two"),
            result("b", "t1", "one"),
        ];
        let answered = |id: &str, content: &str| json!({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": false});
        let expected = json!([
            {"role": "user", "content": [said("hello")]},
            {"role": "assistant", "content": [said("hi")]},
            {"role": "user", "content": [said("look"), {"type": "image", "source": {}}]},
            {"role": "assistant", "content": [said("I look"), call("t1"), call("t2")]},
            {"role": "user", "content": [answered("t1", "one"), answered("t2", "two")]},
        ]);
        assert_eq!(sent(&entries, Some("m")), expected);
    }

    #[test]
    fn a_call_that_was_cut_off_has_an_unknown_outcome_and_an_interrupted_turn_says_so() {
        let entries = [
            user("a", json!("one")),
            assistant("a", "m", json!([call("t1")])),
            user("b", json!("two")),
            interrupted("b", "aborted_streaming", "I am ab"),
            user("c", json!("three")),
            assistant("c", "m", json!([call("t2")])),
            result("c", "t2", "[interrupted: the command was killed]"),
            interrupted("c", "aborted_tools", ""),
            user("d", json!("four")),
        ];
        let unknown = json!({"type": "tool_result", "tool_use_id": "t1", "content": ToolResult::UNKNOWN, "is_error": true});
        let killed = json!({"type": "tool_result", "tool_use_id": "t2", "content": "[interrupted: the command was killed]", "is_error": false});
        let expected = json!([
            {"role": "user", "content": [said("one")]},
            {"role": "assistant", "content": [call("t1")]},
            {"role": "user", "content": [unknown, said("two")]},
            {"role": "assistant", "content": [said("I am ab")]},
            {"role": "user", "content": [said(INTERRUPTED), said("three")]},
            {"role": "assistant", "content": [call("t2")]},
            {"role": "user", "content": [killed, said(INTERRUPTED), said("four")]},
        ]);
        assert_eq!(sent(&entries, Some("m")), expected);
    }

    #[test]
    fn content_that_the_model_refuses_is_not_sent_again() {
        let failed = |turn: &str, reason: &str| {
            let mut ended = interrupted(turn, reason, "");
            ended["type"] = json!("result");
            ended
        };
        let entries = [
            user("a", json!([{"type": "image", "source": {"data": "no picture"}}])),
            failed("a", "invalid_request"),
            user("b", json!("there was no answer for now")),
            failed("b", "api_error"),
            user("c", json!("look")),
            assistant("c", "m", json!([call("t1")])),
            result("c", "t1", "one"),
            failed("c", "invalid_request"),
            user("d", json!("and now?")),
        ];
        let answered =
            json!({"type": "tool_result", "tool_use_id": "t1", "content": "one", "is_error": false});
        let expected = json!([
            {"role": "user", "content": [said("there was no answer for now"), said("look")]},
            {"role": "assistant", "content": [call("t1")]},
            {"role": "user", "content": [answered, said("and now?")]},
        ]);
        assert_eq!(sent(&entries, Some("m")), expected);
    }

    #[test]
    fn nothing_that_is_sent_is_empty() {
        let entries = [
            assistant("a", "m", json!([said("the prompt before me is lost")])),
            user("b", json!(" \n")),
            assistant("b", "m", json!([said("")])),
            user("c", json!([{"type": "text", "text": " "}, 7])),
            assistant("c", "m", json!([{"type": "thinking", "thinking": "hm", "signature": "s"}])),
        ];
        let expected = json!([
            {"role": "user", "content": [said(LOST)]},
            {"role": "assistant", "content": [said("the prompt before me is lost")]},
            {"role": "user", "content": [said(EMPTY), said(EMPTY)]},
        ]);
        assert_eq!(sent(&entries, Some("m")), expected);
    }

    #[test]
    fn a_call_is_sent_under_a_name_that_services_accept() {
        let mut made = call("t1");
        made["name"] = json!("Read\n\u{202e}\u{1b}[2J");
        let sent = sent(&[user("a", json!("go")), assistant("a", "m", json!([made]))], None);
        assert_eq!(sent[1]["content"][0]["name"], "Read2J", "{sent}");
    }

    #[test]
    fn thoughts_go_back_to_the_model_that_had_them_while_their_turn_lasts() {
        let thought = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
        let hidden = json!({"type": "redacted_thinking", "data": "x"});
        let turn = |turn: &str, model: &str| {
            let id = format!("t-{turn}");
            [
                user(turn, json!("go")),
                assistant(turn, model, json!([thought, hidden, call(&id)])),
                result(turn, &id, "ok"),
            ]
        };
        let count = |entries: &[Value], thoughts_of| {
            sent(entries, thoughts_of).to_string().matches("\"thinking\":").count()
        };
        assert_eq!(count(&turn("a", "m"), Some("m")), 1);
        assert_eq!(count(&turn("a", "m"), None), 0);
        assert_eq!(count(&turn("a", "other"), Some("m")), 0);
        assert_eq!(count(&[turn("a", "m"), turn("b", "m")].concat(), Some("m")), 1);
        let blocks = &sent(&turn("a", "m"), Some("m"))[1]["content"];
        assert_eq!(*blocks, json!([thought, hidden, call("t-a")]), "as they came");
    }

    #[test]
    fn long_tool_output_is_shown_by_its_start_and_end() {
        let long = format!("{}{}", "ä".repeat(HEAD), "ö".repeat(TAIL));
        let shown = cut(&long);
        assert!(
            shown.starts_with("ää") && shown.ends_with("öö") && shown.contains("bytes are left out here]")
        );
        assert!(shown.len() < HEAD + TAIL + 100, "{}", shown.len());
        assert_eq!(cut("short"), "short");
    }
}
