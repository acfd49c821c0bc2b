//! A request of the Messages API, read for what matters here: who said what, and what of it a person said.
//!
//! Claude Code puts words of its own into user messages, and whole messages with the role `system` between them.
//! Neither is a prompt.

use serde::Deserialize;
use serde_json::Value;
use std::collections::HashSet;

/// Claude Code's own words, from the opening to the closing tag.
const WRAPPERS: [&str; 9] = [
    "system-reminder",
    "local-command-caveat",
    "local-command-stdout",
    "local-command-stderr",
    "command-name",
    "command-message",
    "command-args",
    "command-contents",
    "task-notification",
];
/// And those without tags: a block that begins so is not a person's.
const OWN_WORDS: [&str; 3] = [CONTINUED, "[Request interrupted by user", "Continue from where you left off."];
const CONTINUED: &str = "This session is being continued from a previous conversation";
/// Names a conversation in a summary of it, so that what follows a summary is not mistaken for a beginning.
const NAMED: &str = "conversation-";

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Conversation {
    #[serde(default)]
    pub(crate) model: String,
    pub(crate) messages: Vec<Message>,
    #[serde(default)]
    pub(crate) tools: Vec<Tool>,
    #[serde(default)]
    pub(crate) stream: bool,
    #[serde(default)]
    pub(crate) max_tokens: Option<u64>,
    #[serde(default)]
    pub(crate) output_config: Value,
    #[serde(default)]
    pub(crate) metadata: Value,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Tool {
    pub(crate) name: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Message {
    pub(crate) role: String,
    content: Content,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

/// The fields of every kind of block that we look at.
#[derive(Debug, Clone, Deserialize)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    tool_use_id: String,
    #[serde(default)]
    content: Value,
    #[serde(default)]
    is_error: bool,
}

/// What a tool answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) text: String,
    pub(crate) failed: bool,
}

/// What a person said last, and what was done about it since.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) text: String,
    pub(crate) outcomes: Vec<Outcome>,
    /// The conversation up to the prompt: the same in every request that works on it.
    pub(crate) id: Id,
}

/// A conversation's name: a hash of what people said and of how the messages follow each other. Not of what the tools
/// and the model said: paths and times of one run would make it another's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Id(String);

impl Id {
    pub(crate) fn with(&self, what: &str) -> Id {
        Id(short(blake3::hash(format!("{}\0{what}", self.0).as_bytes())))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn named(&self) -> String {
        format!("{NAMED}{}", self.0)
    }
}

fn short(hash: blake3::Hash) -> String {
    hash.to_hex()[..22].to_owned()
}

impl Message {
    fn blocks(&self) -> Vec<Block> {
        match &self.content {
            Content::Blocks(blocks) => blocks.clone(),
            Content::Text(text) => vec![Block {
                kind: "text".into(),
                text: text.clone(),
                id: String::new(),
                tool_use_id: String::new(),
                content: Value::Null,
                is_error: false,
            }],
        }
    }

    /// The texts in it that a person wrote.
    fn prompts(&self) -> Vec<String> {
        if self.role != "user" {
            return Vec::new();
        }
        let texts = self.blocks().into_iter().filter(|block| block.kind == "text");
        texts.filter_map(|block| own(&block.text)).collect()
    }

    fn outcomes(&self) -> Vec<Outcome> {
        let results = self.blocks().into_iter().filter(|block| block.kind == "tool_result");
        results.map(|block| Outcome { text: plain(&block.content), failed: block.is_error }).collect()
    }
}

/// What remains of a text without Claude Code's own words; none if nothing does.
fn own(text: &str) -> Option<String> {
    let mut text = text.to_owned();
    for tag in WRAPPERS {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        while let Some(start) = text.find(&open) {
            let end = text[start..].find(&close).map_or(text.len(), |end| start + end + close.len());
            text.replace_range(start..end, "");
        }
    }
    let text = text.trim();
    (!text.is_empty() && !OWN_WORDS.iter().any(|words| text.starts_with(words))).then(|| text.to_owned())
}

/// The text of a tool's result, which is a string or a list of blocks.
fn plain(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

impl Conversation {
    pub(crate) fn read(body: &Value) -> Result<Conversation, String> {
        let conversation: Conversation =
            Deserialize::deserialize(body).map_err(|error: serde_json::Error| error.to_string())?;
        if conversation.messages.is_empty() {
            return Err("messages: at least one message is required".into());
        }
        conversation.check_calls()?;
        Ok(conversation)
    }

    /// As the real API does: each call is answered in the next message, and nothing else is. A conversation that was
    /// put together wrongly after a crash is found out here, and not by a customer.
    fn check_calls(&self) -> Result<(), String> {
        let mut open: HashSet<String> = HashSet::new();
        for (number, message) in self.messages.iter().enumerate().filter(|(_, m)| m.role != "system") {
            let blocks = message.blocks();
            let answered: HashSet<String> = of_kind(&blocks, "tool_result", |block| &block.tool_use_id);
            if let Some(id) = open.difference(&answered).min() {
                return Err(format!(
                    "messages.{number}: `tool_use` {id} has no `tool_result` right after it"
                ));
            }
            if let Some(id) = answered.difference(&open).min() {
                return Err(format!(
                    "messages.{number}: `tool_result` {id} answers no `tool_use` right before it"
                ));
            }
            open = of_kind(&blocks, "tool_use", |block| &block.id);
        }
        match open.iter().min() {
            Some(id) => Err(format!("messages: `tool_use` {id} has no `tool_result` after it")),
            None => Ok(()),
        }
    }

    pub(crate) fn offers(&self, tool: &str) -> bool {
        self.tools.iter().any(|offered| offered.name == tool)
    }

    /// How many messages a person wrote, as far as can be seen.
    pub(crate) fn prompts(&self) -> usize {
        self.messages.iter().filter(|message| !message.prompts().is_empty()).count()
    }

    /// The number of the answer that is asked for, from 1.
    pub(crate) fn turn(&self) -> usize {
        self.messages.iter().filter(|message| message.role == "assistant").count() + 1
    }

    pub(crate) fn prompt(&self) -> Option<Prompt> {
        let newest = |message: &Message| message.prompts().pop();
        let (at, text) =
            self.messages.iter().enumerate().rev().find_map(|(at, message)| Some((at, newest(message)?)))?;
        let outcomes = self.messages[at + 1..].iter().flat_map(Message::outcomes).collect();
        Some(Prompt { text, outcomes, id: id(&self.messages[..=at]) })
    }

    /// What the request is about: the tools' answers if they came last, else the prompt.
    pub(crate) fn newest(&self) -> String {
        let last = self.messages.iter().rev().find(|message| message.role == "user");
        let Some(last) = last else { return String::new() };
        let answered: Vec<String> = last.outcomes().into_iter().map(|outcome| outcome.text).collect();
        match last.prompts().pop() {
            Some(text) => text,
            None if !answered.is_empty() => answered.join("\n"),
            None => self.prompt().map(|prompt| prompt.text).unwrap_or_default(),
        }
    }

    pub(crate) fn id(&self) -> Id {
        id(&self.messages)
    }
}

fn of_kind(blocks: &[Block], kind: &str, id: fn(&Block) -> &String) -> HashSet<String> {
    blocks.iter().filter(|block| block.kind == kind).map(|block| id(block).clone()).collect()
}

fn id(messages: &[Message]) -> Id {
    let mut hash = blake3::Hasher::new();
    for message in messages.iter().filter(|message| message.role != "system") {
        hash.update(message.role.as_bytes()).update(b"\0");
        for text in message.prompts() {
            hash.update(text.as_bytes()).update(b"\0");
        }
        for block in message.blocks() {
            hash.update(continued(&block.text).as_bytes());
        }
    }
    Id(short(hash.finalize()))
}

/// The name of the conversation that a text goes on from.
fn continued(text: &str) -> &str {
    let Some(at) = text.find(CONTINUED).and_then(|_| text.find(NAMED)) else { return "" };
    let end = text[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    &text[at..end.map_or(text.len(), |end| at + end)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(messages: Value) -> Conversation {
        Conversation::read(&json!({ "messages": messages })).expect("a conversation")
    }

    #[test]
    fn a_prompt_is_the_last_text_that_a_person_wrote() {
        let conversation = read(json!([
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>\nbe good\n</system-reminder>\n"},
                {"type": "text", "text": "hello"},
                {"type": "text", "text": "<command-name>/x</command-name>\n <command-args></command-args>\n"},
            ]},
            {"role": "system", "content": "# Environment"},
        ]));
        let prompt = conversation.prompt().expect("a prompt");
        assert_eq!((prompt.text.as_str(), prompt.outcomes.len()), ("hello", 0));
        assert_eq!((conversation.prompts(), conversation.turn()), (1, 1));
    }

    #[test]
    fn a_prompt_stays_the_same_while_tools_answer() {
        let mut messages = json!([{"role": "user", "content": "run: a"}]);
        let before = read(messages.clone()).prompt().expect("a prompt");
        let list = messages.as_array_mut().expect("a list");
        list.push(json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}]}));
        list.push(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "hi\nthere"}]},
            {"type": "text", "text": "<system-reminder>x</system-reminder>"},
        ]}));
        let conversation = read(messages);
        let after = conversation.prompt().expect("a prompt");
        assert_eq!((&after.text, &after.id), (&before.text, &before.id));
        assert_eq!(after.outcomes, [Outcome { text: "hi\nthere".into(), failed: false }]);
        assert_eq!(conversation.newest(), "hi\nthere");
        assert_ne!(conversation.id(), before.id);
    }

    #[test]
    fn the_id_does_not_depend_on_what_differs_between_two_runs() {
        let one =
            read(json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "in /tmp/1"},
            {"role": "user", "content": "b"}]));
        let other = read(json!([
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": "in /tmp/2"},
            {"role": "user", "content": [{"type": "text", "text": "b"},
                {"type": "text", "text": "<system-reminder>today</system-reminder>"}]}]));
        assert_eq!(one.id(), other.id());
        assert_ne!(one.id(), read(json!([{"role": "user", "content": "b"}])).id());
    }

    #[test]
    fn what_follows_a_summary_is_not_a_beginning() {
        let summary = format!("{CONTINUED} that ran out of context.\nOf {NAMED}12ab. More.");
        let after = read(json!([{"role": "user", "content": [
            {"type": "text", "text": summary}, {"type": "text", "text": "go on"}]}]));
        let fresh = read(json!([{"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>x</system-reminder>"}, {"type": "text", "text": "go on"}]}]));
        assert_eq!(continued(&summary), "conversation-12ab");
        assert_eq!(after.prompt().map(|prompt| prompt.text), Some("go on".into()));
        assert_ne!(after.id(), fresh.id());
    }

    #[test]
    fn calls_and_results_come_in_pairs() {
        let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "x", "input": {}}]});
        let result =
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": ""}]});
        let hello = json!({"role": "user", "content": "hello"});
        let check = |messages: Value| Conversation::read(&json!({ "messages": messages })).map(|_| ());
        assert_eq!(check(json!([hello, call, result])), Ok(()));
        assert_eq!(check(json!([hello, call, {"role": "system", "content": "x"}, result])), Ok(()));
        for broken in [json!([hello, call, hello]), json!([hello, result]), json!([hello, call])] {
            let error = check(broken).expect_err("refused");
            assert!(error.contains("t1"), "{error}");
        }
    }
}
