//! Puts the items of a conversation together from the events of a log, a page at a time. Pure: the handler reads the
//! events.
//!
//! An item is where its first event is. Its other lines, and the results of its calls, come later in the same turn, between
//! lines of other items; so a page reads on until all of its items are complete.

use crate::{
    shapes,
    wire::conversation::{
        ConversationAnswer, ConversationBlock, ConversationItemView, KnownBlock, OtherBlock, ToolCallResult,
    },
};
use ash_model::{Event, EventSeq, Fact, TurnId};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// The kinds of events that a page needs.
pub(crate) const KINDS: [&str; 4] = ["queued", "said", "rested", "finished"];
/// A page with more bytes loses its last items to the next page, unless it has only one.
const MAX_PAGE_BYTES: usize = 8 << 20;
/// The lines of one message beyond this begin another item, and the results of its calls are cut there.
const MAX_ITEM_BYTES: usize = 8 << 20;
/// How many conversations an agent may lead at the same time: its own and those of its subagents.
const MAX_CONTEXTS: usize = 64;

/// Whether a page needs more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageProgress {
    Incomplete,
    Complete,
}

/// A page under construction.
pub(crate) struct ConversationPage {
    limit: usize,
    items: Vec<PageItem>,
    /// There is at least one more item.
    has_more: bool,
    open: OpenMessages,
    /// Calls without a result, and their places.
    calls: HashMap<String, CallPlace>,
    needs_earlier_lines: bool,
}

struct PageItem {
    view: ConversationItemView,
    bytes: usize,
    result_bytes: usize,
}

#[derive(Clone, Copy)]
struct CallPlace {
    item: usize,
    block: usize,
}

/// The messages of a turn that may have more lines: the last one of the agent, and of each of its subagents.
#[derive(Default)]
struct OpenMessages {
    turn: Option<TurnId>,
    messages: Vec<OpenMessage>,
}

struct OpenMessage {
    parent: Option<String>,
    id: String,
    bytes: usize,
    /// Its item on this page; `None`: it is on another one.
    item: Option<usize>,
}

/// A line of the agent.
enum AgentLine {
    Assistant { parent: Option<String>, message: Value },
    ToolResults(Vec<Value>),
    Other,
}

/// Where the line of a message belongs.
enum LinePlace {
    /// To a message that has begun. `None`: on another page.
    Continues(Option<usize>),
    Begins,
}

impl ConversationPage {
    /// The items whose first event comes after `after`.
    pub(crate) fn new(after: EventSeq, limit: usize) -> ConversationPage {
        let (open, calls) = (OpenMessages::default(), HashMap::new());
        let needs_earlier_lines = after > 0;
        ConversationPage { limit, items: Vec::new(), has_more: false, open, calls, needs_earlier_lines }
    }

    /// The turn whose lines up to the beginning of the page have to be shown to `skip` before this event is pushed: a
    /// message may have begun there. Only the first line of a page can belong to such a turn, because a session runs one
    /// turn at a time.
    pub(crate) fn unfinished_turn(&mut self, event: &Event) -> Option<TurnId> {
        let turn =
            event.turn.filter(|_| self.needs_earlier_lines && matches!(event.fact, Fact::Said { .. }))?;
        self.needs_earlier_lines = false;
        Some(turn)
    }

    /// A line of an unfinished turn, from before the page.
    pub(crate) fn skip(&mut self, event: &Event) {
        if let Fact::Said { line } = &event.fact
            && let AgentLine::Assistant { parent, message } = agent_line(line)
            && let LinePlace::Begins = self.open.place(event.turn, parent.as_deref(), &message, line.len())
        {
            self.open.begin(event.turn, parent, &message, (line.len(), None));
        }
    }

    /// The next event of the log.
    pub(crate) fn push(&mut self, event: &Event) -> PageProgress {
        match &event.fact {
            Fact::Queued { turn, content, .. } => self.add_user(event, *turn, content),
            Fact::Said { line } => match agent_line(line) {
                AgentLine::Assistant { parent, message } => {
                    self.add_assistant(event, parent, &message, line.len());
                }
                AgentLine::ToolResults(blocks) if event.turn == self.open.turn => self.add_results(&blocks),
                AgentLine::ToolResults(_) | AgentLine::Other => {}
            },
            Fact::Rested { turn, .. } | Fact::Finished { turn, .. } if self.open.turn == Some(*turn) => {
                self.open = OpenMessages::default();
                self.calls.clear();
            }
            _ => {}
        }
        let complete = self.has_more
            && self.calls.is_empty()
            && self.open.messages.iter().all(|open| open.item.is_none());
        if complete { PageProgress::Complete } else { PageProgress::Incomplete }
    }

    pub(crate) fn finish(self) -> ConversationAnswer {
        let next_after = self.items.last().map(|item| item.view.after).filter(|_| self.has_more);
        ConversationAnswer { items: self.items.into_iter().map(|item| item.view).collect(), next_after }
    }

    fn add_user(&mut self, event: &Event, turn: TurnId, content: &Value) {
        let blocks = match content {
            Value::Array(blocks) => {
                blocks.iter().filter_map(|block| block.as_object()).map(user_block).collect()
            }
            Value::String(text) => vec![text_block(text)],
            _ => Vec::new(),
        };
        let view = ConversationItemView {
            role: "user",
            turn: Some(turn),
            at: event.at,
            events: vec![event.seq],
            blocks,
            usage: None,
            parent: None,
            after: event.seq,
        };
        self.add(view, content.to_string().len());
    }

    fn add_assistant(&mut self, event: &Event, parent: Option<String>, message: &Value, bytes: usize) {
        if self.open.turn != event.turn {
            self.calls.clear();
        }
        let item = match self.open.place(event.turn, parent.as_deref(), message, bytes) {
            LinePlace::Continues(item) => {
                if let Some(known) = item.map(|item| &mut self.items[item]) {
                    known.view.events.push(event.seq);
                    known.bytes += bytes;
                }
                item
            }
            LinePlace::Begins => {
                let view = ConversationItemView {
                    role: "assistant",
                    turn: event.turn,
                    at: event.at,
                    events: vec![event.seq],
                    blocks: Vec::new(),
                    usage: None,
                    parent: parent.clone(),
                    after: event.seq,
                };
                let item = self.add(view, bytes);
                self.open.begin(event.turn, parent, message, (bytes, item));
                item
            }
        };
        let Some(item) = item else {
            // A call on another page: if it repeats an id, the result is its own.
            for block in message["content"].as_array().into_iter().flatten() {
                block["id"].as_str().and_then(|id| self.calls.remove(id));
            }
            return;
        };
        let view = &mut self.items[item].view;
        if let Some(usage) = message.get("usage").filter(|usage| !usage.is_null()) {
            view.usage = Some(usage.clone());
        }
        for block in message_blocks(message) {
            if let ConversationBlock::Known(KnownBlock::ToolCall { id, .. }) = &block {
                self.calls.insert(id.clone(), CallPlace { item, block: view.blocks.len() });
            }
            view.blocks.push(block);
        }
        self.fit();
    }

    fn add_results(&mut self, blocks: &[Value]) {
        for block in blocks {
            let Some(CallPlace { item, block: place }) =
                block["tool_use_id"].as_str().and_then(|id| self.calls.remove(id))
            else {
                continue;
            };
            let item = &mut self.items[item];
            let mut content = result_text(&block["content"]);
            let room = MAX_ITEM_BYTES - item.result_bytes.min(MAX_ITEM_BYTES);
            let truncated = content.len() > room;
            content.truncate(content.floor_char_boundary(room));
            item.result_bytes += content.len();
            item.bytes += content.len();
            if let Some(ConversationBlock::Known(KnownBlock::ToolCall { result, .. })) =
                item.view.blocks.get_mut(place)
            {
                *result = Some(ToolCallResult { content, is_error: block["is_error"] == true, truncated });
            }
        }
        self.fit();
    }

    /// The place of a new item. `None`: it belongs to the next page.
    fn add(&mut self, view: ConversationItemView, bytes: usize) -> Option<usize> {
        let is_full = self.items.len() == self.limit
            || (!self.items.is_empty() && self.bytes() + bytes > MAX_PAGE_BYTES);
        if self.has_more || is_full {
            self.has_more = true;
            return None;
        }
        self.items.push(PageItem { view, bytes, result_bytes: 0 });
        Some(self.items.len() - 1)
    }

    fn bytes(&self) -> usize {
        self.items.iter().map(|item| item.bytes).sum()
    }

    /// Leaves items that do not fit any more to the next page.
    fn fit(&mut self) {
        while self.items.len() > 1 && self.bytes() > MAX_PAGE_BYTES {
            self.items.pop();
            let left = self.items.len();
            self.has_more = true;
            self.calls.retain(|_, call| call.item < left);
            for open in &mut self.open.messages {
                open.item = open.item.filter(|item| *item < left);
            }
        }
    }
}

impl OpenMessages {
    /// Where a line belongs. A message is complete when the same agent begins another one.
    fn place(
        &mut self,
        turn: Option<TurnId>,
        parent: Option<&str>,
        message: &Value,
        bytes: usize,
    ) -> LinePlace {
        if self.turn != turn {
            *self = OpenMessages { turn, messages: Vec::new() };
        }
        let of_agent = self.messages.iter_mut().find(|open| open.parent.as_deref() == parent);
        match of_agent.zip(message["id"].as_str()) {
            Some((open, id)) if open.id == id && open.bytes + bytes <= MAX_ITEM_BYTES => {
                open.bytes += bytes;
                LinePlace::Continues(open.item)
            }
            _ => LinePlace::Begins,
        }
    }

    /// A message outside of a turn, or without an id, has one line.
    fn begin(
        &mut self,
        turn: Option<TurnId>,
        parent: Option<String>,
        message: &Value,
        (bytes, item): (usize, Option<usize>),
    ) {
        self.messages.retain(|open| open.parent != parent);
        if let (Some(_), Some(id)) = (turn, message["id"].as_str()) {
            if self.messages.len() == MAX_CONTEXTS {
                self.messages.remove(0);
            }
            self.messages.push(OpenMessage { parent, id: id.to_owned(), bytes, item });
        }
    }
}

fn agent_line(line: &str) -> AgentLine {
    let Ok(Value::Object(mut line)) = serde_json::from_str::<Value>(line) else { return AgentLine::Other };
    let message = line.remove("message").unwrap_or_default();
    match line.get("type").and_then(Value::as_str) {
        Some("assistant") => {
            let parent = line.get("parent_tool_use_id").and_then(Value::as_str).map(str::to_owned);
            AgentLine::Assistant { parent, message }
        }
        Some("user") => {
            let blocks = message["content"].as_array().into_iter().flatten();
            AgentLine::ToolResults(blocks.filter(|block| block["type"] == "tool_result").cloned().collect())
        }
        _ => AgentLine::Other,
    }
}

fn message_blocks(message: &Value) -> Vec<ConversationBlock> {
    match &message["content"] {
        Value::String(text) => vec![text_block(text)],
        Value::Array(blocks) => blocks.iter().filter_map(Value::as_object).map(agent_block).collect(),
        _ => Vec::new(),
    }
}

fn text_block(text: &str) -> ConversationBlock {
    ConversationBlock::Known(KnownBlock::Text { text: text.to_owned() })
}

fn user_block(block: &Map<String, Value>) -> ConversationBlock {
    match (word(block, "type"), word(block, "text")) {
        (Some("text"), Some(text)) => text_block(text),
        _ => ConversationBlock::Other(OtherBlock(block.clone())),
    }
}

fn agent_block(block: &Map<String, Value>) -> ConversationBlock {
    match (word(block, "type"), word(block, "id"), word(block, "thinking")) {
        (Some("tool_use"), Some(id), _) => {
            let input = block.get("input").cloned().unwrap_or_default();
            let name = shapes::tool_name(&Value::Object(block.clone()));
            ConversationBlock::Known(KnownBlock::ToolCall { id: id.to_owned(), name, input, result: None })
        }
        (Some("thinking"), _, Some(thinking)) => {
            ConversationBlock::Known(KnownBlock::Thinking { thinking: thinking.to_owned() })
        }
        _ => user_block(block),
    }
}

fn word<'a>(block: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    block.get(name)?.as_str()
}

fn result_text(content: &Value) -> String {
    let part = |block: &Value| match (block["type"].as_str(), block["text"].as_str()) {
        (_, Some(text)) => text.to_owned(),
        (Some(other), None) => format!("[{}]", ash_model::shown_tool_name(other)),
        (None, None) => String::new(),
    };
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().map(part).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
