//! A line of the repaired transcript: an original line, or one that we write.

use super::super::entry::{self, ClaudeEntry};
use crate::{LoggedContent, LoggedMessage, TranscriptIdentity};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};
use std::borrow::Cow;
use uuid::Uuid;

/// A line to write, and its entry if it is one.
#[derive(Debug)]
pub(super) struct TranscriptRow {
    pub(super) line: Vec<u8>,
    /// Boxed: the worst hostile input is many lines that are no entries.
    pub(super) entry: Option<Box<ClaudeEntry>>,
    /// Its parent link changed.
    pub(super) moved: bool,
}

impl TranscriptRow {
    pub(super) fn new(line: Vec<u8>, entry: Option<ClaudeEntry>) -> TranscriptRow {
        TranscriptRow { line, entry: entry.map(Box::new), moved: false }
    }

    pub(super) fn id(&self) -> Option<Uuid> {
        self.entry.as_ref().map(|entry| entry.id)
    }

    /// Links the row to another entry, or to none.
    pub(super) fn hang(&mut self, on: Option<Uuid>) {
        let Some(entry) = &mut self.entry else { return };
        // A compaction boundary keeps its form: no parent, only a logical parent.
        let summary = entry.parent.is_none() && entry.logical.is_some();
        let (parent, logical) =
            if summary { (None, on) } else { (on, entry.logical.filter(|_| on.is_some())) };
        if let Some(line) = entry::linked(&self.line, parent, logical) {
            (self.line, entry.parent, entry.logical) = (line, parent, logical);
            self.moved = true;
        }
    }
}

/// An entry that we write, with the fields that Claude Code needs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SynthesizedEntry<'o, Message> {
    parent_uuid: Option<Uuid>,
    is_sidechain: bool,
    user_type: &'static str,
    cwd: Cow<'o, str>,
    session_id: Uuid,
    #[serde(rename = "type")]
    kind: &'o str,
    message: Message,
    uuid: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<&'o str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_use_result: Option<&'o RawValue>,
}

impl<'o, Message: Serialize> SynthesizedEntry<'o, Message> {
    pub(super) fn new(
        native: &'o TranscriptIdentity,
        kind: &'o str,
        uuid: Uuid,
        message: Message,
    ) -> SynthesizedEntry<'o, Message> {
        SynthesizedEntry {
            parent_uuid: None,
            is_sidechain: false,
            user_type: "external",
            cwd: native.cwd.to_string_lossy(),
            session_id: native.id,
            kind,
            message,
            uuid,
            timestamp: None,
            tool_use_result: None,
        }
    }

    pub(super) fn row(&self) -> TranscriptRow {
        let line = serde_json::to_vec(self).expect("texts and what was JSON before");
        let entry = entry::read(&line).flatten();
        TranscriptRow::new(line, entry)
    }
}

/// A row from a message of our log. The content is untrusted, so its large parts are only copied, not parsed.
pub(super) fn row_of(
    message: &LoggedMessage,
    words: &LoggedContent,
    native: &TranscriptIdentity,
) -> TranscriptRow {
    #[derive(Deserialize, Default)]
    struct LoggedLine<'l> {
        #[serde(borrow, rename = "type", default)]
        kind: Cow<'l, str>,
        #[serde(borrow)]
        message: Option<&'l RawValue>,
        #[serde(borrow)]
        tool_use_result: Option<&'l RawValue>,
    }
    let timestamp = Some(message.at.as_str());
    match words {
        LoggedContent::Prompt(content) => {
            let prompt = json!({ "role": "user", "content": content });
            SynthesizedEntry { timestamp, ..SynthesizedEntry::new(native, "user", message.id, prompt) }.row()
        }
        LoggedContent::Line(line) => {
            let LoggedLine { kind, message: said, tool_use_result } =
                serde_json::from_str(line).unwrap_or_default();
            SynthesizedEntry {
                timestamp,
                tool_use_result,
                ..SynthesizedEntry::new(native, &kind, message.id, said)
            }
            .row()
        }
    }
}
