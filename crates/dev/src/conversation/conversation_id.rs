//! Conversation ids, which are the same in every run.

use super::{RequestMessage, injected_text::CONTINUED};

/// Marks a summary with the conversation's id, so that the request after a compaction does not count as a new
/// conversation.
const NAMED: &str = "conversation-";

/// A hash of the prompts and the order of the messages. It excludes the output of tools and model, because paths and
/// times differ between runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ConversationId(String);

impl ConversationId {
    pub(super) fn of(messages: &[RequestMessage]) -> ConversationId {
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
        ConversationId(short(hash.finalize()))
    }

    pub(crate) fn derive(&self, what: &str) -> ConversationId {
        ConversationId(short(blake3::hash(format!("{}\0{what}", self.0).as_bytes())))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn marker(&self) -> String {
        format!("{NAMED}{}", self.0)
    }
}

fn short(hash: blake3::Hash) -> String {
    hash.to_hex()[..22].to_owned()
}

/// The id of the conversation that a text continues.
fn continued(text: &str) -> &str {
    let Some(at) = text.find(CONTINUED).and_then(|_| text.find(NAMED)) else { return "" };
    let end = text[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    &text[at..end.map_or(text.len(), |end| at + end)]
}

#[cfg(test)]
mod tests {
    use super::{CONTINUED, NAMED, continued};
    use crate::conversation::MessagesRequest;
    use serde_json::{Value, json};

    fn read(messages: Value) -> MessagesRequest {
        MessagesRequest::read(&json!({ "messages": messages })).expect("a conversation")
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
}
