//! A request of the Messages API, read for what matters here: who said what, and what of it a person said.
//!
//! Claude Code puts words of its own into user messages, and whole messages with the role `system` between them.
//! Neither is a prompt.

mod id;
mod own;
mod pairs;

pub(crate) use id::Id;
use serde::Deserialize;
use serde_json::Value;

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
        texts.filter_map(|block| own::of_a_person(&block.text)).collect()
    }

    fn outcomes(&self) -> Vec<Outcome> {
        let results = self.blocks().into_iter().filter(|block| block.kind == "tool_result");
        results.map(|block| Outcome { text: plain(&block.content), failed: block.is_error }).collect()
    }
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
        pairs::check(&conversation.messages)?;
        Ok(conversation)
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
        Some(Prompt { text, outcomes, id: Id::of(&self.messages[..=at]) })
    }

    fn last(&self) -> Option<&Message> {
        self.messages.iter().rev().find(|message| message.role == "user")
    }

    /// What the request is about: the prompt, or what tools answered, or what Claude Code says itself.
    pub(crate) fn newest(&self) -> String {
        let Some(last) = self.last() else { return String::new() };
        let outcomes = last.outcomes();
        match last.prompts().pop() {
            Some(text) => text,
            None if outcomes.is_empty() => texts(&last.blocks()),
            None => outcomes.into_iter().map(|outcome| outcome.text).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Whether it only tells something, as that a task in the background has ended. "Continue" is a wish.
    pub(crate) fn is_notice(&self) -> bool {
        let Some(last) = self.last() else { return false };
        let is_wish = last.blocks().iter().any(|block| own::is_wish(&block.text));
        last.prompts().is_empty() && last.outcomes().is_empty() && !is_wish
    }

    pub(crate) fn id(&self) -> Id {
        Id::of(&self.messages)
    }
}

fn texts(blocks: &[Block]) -> String {
    let texts: Vec<&str> = blocks.iter().map(|block| block.text.as_str()).collect();
    texts.join("\n")
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
    fn a_notice_is_told_from_a_wish_to_go_on() {
        let after = |text: &str| {
            read(json!([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"},
                {"role": "user", "content": text}]))
        };
        let notice = after("<system-reminder>\nA task has ended: tea.\n</system-reminder>");
        assert!(notice.is_notice() && notice.newest().contains("tea"));
        assert!(!after("Continue from where you left off.").is_notice());
        assert!(!after("and now?").is_notice());
    }
}
