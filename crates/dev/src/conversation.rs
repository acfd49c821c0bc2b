//! Parses a request of the Messages API, as far as the reply depends on it: the roles, the prompts and the tool results.
//!
//! Claude Code adds its own text to user messages, and messages with the role `system` between them. Neither counts as a
//! prompt.

mod conversation_id;
mod injected_text;
mod tool_pairing;

pub(crate) use conversation_id::ConversationId;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct MessagesRequest {
    #[serde(default)]
    pub(crate) model: String,
    pub(crate) messages: Vec<RequestMessage>,
    #[serde(default)]
    pub(crate) tools: Vec<OfferedTool>,
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
pub(crate) struct OfferedTool {
    pub(crate) name: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RequestMessage {
    pub(crate) role: String,
    content: RequestContent,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum RequestContent {
    Text(String),
    Blocks(Vec<RequestBlock>),
}

/// The fields that we need from any kind of block.
#[derive(Debug, Clone, Deserialize)]
struct RequestBlock {
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

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestToolResult {
    pub(crate) text: String,
    pub(crate) failed: bool,
}

/// The latest prompt, and the tool results since.
#[derive(Debug)]
pub(crate) struct LatestPrompt {
    pub(crate) text: String,
    pub(crate) outcomes: Vec<RequestToolResult>,
    /// The id of the conversation up to the prompt: equal in every request for that prompt.
    pub(crate) id: ConversationId,
}

impl RequestMessage {
    fn blocks(&self) -> Vec<RequestBlock> {
        match &self.content {
            RequestContent::Blocks(blocks) => blocks.clone(),
            RequestContent::Text(text) => vec![RequestBlock {
                kind: "text".into(),
                text: text.clone(),
                id: String::new(),
                tool_use_id: String::new(),
                content: Value::Null,
                is_error: false,
            }],
        }
    }

    /// The texts that a person wrote.
    fn prompts(&self) -> Vec<String> {
        if self.role != "user" {
            return Vec::new();
        }
        let texts = self.blocks().into_iter().filter(|block| block.kind == "text");
        texts.filter_map(|block| injected_text::strip_injected_text(&block.text)).collect()
    }

    fn outcomes(&self) -> Vec<RequestToolResult> {
        let results = self.blocks().into_iter().filter(|block| block.kind == "tool_result");
        results
            .map(|block| RequestToolResult { text: plain(&block.content), failed: block.is_error })
            .collect()
    }
}

/// The text of a tool result, which is a string or a list of blocks.
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

impl MessagesRequest {
    pub(crate) fn read(body: &Value) -> Result<MessagesRequest, String> {
        let conversation: MessagesRequest =
            Deserialize::deserialize(body).map_err(|error: serde_json::Error| error.to_string())?;
        if conversation.messages.is_empty() {
            return Err("messages: at least one message is required".into());
        }
        tool_pairing::check(&conversation.messages)?;
        Ok(conversation)
    }

    pub(crate) fn offers(&self, tool: &str) -> bool {
        self.tools.iter().any(|offered| offered.name == tool)
    }

    /// The full name of an offered tool. Claude Code puts the name of an MCP server before those of its tools.
    pub(crate) fn offered_name(&self, tool: &str) -> Option<&str> {
        let names = || self.tools.iter().map(|offered| offered.name.as_str());
        let of_server = |name: &&str| name.strip_suffix(tool).is_some_and(|server| server.ends_with("__"));
        names().find(|name| *name == tool).or_else(|| names().find(of_server))
    }

    /// How many messages a person wrote, as far as we can tell.
    pub(crate) fn prompt_count(&self) -> usize {
        self.messages.iter().filter(|message| !message.prompts().is_empty()).count()
    }

    /// The number of the requested answer, from 1.
    pub(crate) fn answer_number(&self) -> usize {
        self.messages.iter().filter(|message| message.role == "assistant").count() + 1
    }

    pub(crate) fn prompt(&self) -> Option<LatestPrompt> {
        let newest = |message: &RequestMessage| message.prompts().pop();
        let (at, text) =
            self.messages.iter().enumerate().rev().find_map(|(at, message)| Some((at, newest(message)?)))?;
        let outcomes = self.messages[at + 1..].iter().flat_map(RequestMessage::outcomes).collect();
        Some(LatestPrompt { text, outcomes, id: ConversationId::of(&self.messages[..=at]) })
    }

    fn last(&self) -> Option<&RequestMessage> {
        self.messages.iter().rev().find(|message| message.role == "user")
    }

    /// The text that the request is about: the prompt, the tool results, or Claude Code's own text.
    pub(crate) fn newest_text(&self) -> String {
        let Some(last) = self.last() else { return String::new() };
        let outcomes = last.outcomes();
        match last.prompts().pop() {
            Some(text) => text,
            None if outcomes.is_empty() => texts(&last.blocks()),
            None => outcomes.into_iter().map(|outcome| outcome.text).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Whether the request only reports something, for example the end of a background task. "Continue" is a prompt.
    pub(crate) fn is_notice(&self) -> bool {
        let Some(last) = self.last() else { return false };
        let is_wish = last.blocks().iter().any(|block| injected_text::is_continuation(&block.text));
        last.prompts().is_empty() && last.outcomes().is_empty() && !is_wish
    }

    pub(crate) fn id(&self) -> ConversationId {
        ConversationId::of(&self.messages)
    }
}

fn texts(blocks: &[RequestBlock]) -> String {
    let texts: Vec<&str> = blocks.iter().map(|block| block.text.as_str()).collect();
    texts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(messages: Value) -> MessagesRequest {
        MessagesRequest::read(&json!({ "messages": messages })).expect("a conversation")
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
        assert_eq!((conversation.prompt_count(), conversation.answer_number()), (1, 1));
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
        assert_eq!(after.outcomes, [RequestToolResult { text: "hi\nthere".into(), failed: false }]);
        assert_eq!(conversation.newest_text(), "hi\nthere");
        assert_ne!(conversation.id(), before.id);
    }

    #[test]
    fn a_notice_is_distinguished_from_a_request_to_continue() {
        let after = |text: &str| {
            read(json!([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"},
                {"role": "user", "content": text}]))
        };
        let notice = after("<system-reminder>\nA task has ended: tea.\n</system-reminder>");
        assert!(notice.is_notice() && notice.newest_text().contains("tea"));
        assert!(!after("Continue from where you left off.").is_notice());
        assert!(!after("and now?").is_notice());
    }
}
