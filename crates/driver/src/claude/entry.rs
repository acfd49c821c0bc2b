//! Parses one transcript line as far as we need it, and what is readable of a damaged one.

use super::message_content::ContentOutline;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt};
use uuid::Uuid;

/// An entry of the conversation itself. Subagent entries and pure bookkeeping are none.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClaudeEntry {
    pub(super) id: Uuid,
    pub(super) parent: Option<Uuid>,
    /// The chain starts anew after a compaction; this names the entry that the summary continues.
    pub(super) logical: Option<Uuid>,
    pub(super) speaker: EntryAuthor,
    /// Claude Code writes an assistant message as several entries, one for each block.
    pub(super) message: Option<String>,
    pub(super) calls: Vec<String>,
    pub(super) results: Vec<String>,
    /// The digest of the content.
    pub(super) digest: u64,
    /// The id of a message that arrived during a turn, which Claude Code stores as an attachment.
    pub(super) carries: Option<Uuid>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryAuthor {
    User,
    Assistant,
    /// Claude Code itself: attachments and markers.
    Program,
}

impl ClaudeEntry {
    pub(super) fn before(&self) -> Option<Uuid> {
        self.parent.or(self.logical)
    }

    pub(super) fn is_prompt(&self) -> bool {
        self.speaker == EntryAuthor::User && self.results.is_empty()
    }
}

/// The content of a line. `None`: it is not readable.
pub(super) fn read(line: &[u8]) -> Option<Option<ClaudeEntry>> {
    let (length, entry) = first(line)?;
    is_blank(&line[length..]).then_some(entry)
}

/// The line at the start of these bytes: its length, and its entry if it is one.
fn first(bytes: &[u8]) -> Option<(usize, Option<ClaudeEntry>)> {
    // Serde would also accept a list.
    bytes.trim_ascii_start().starts_with(b"{").then_some(())?;
    let mut found = serde_json::Deserializer::from_slice(bytes).into_iter::<RawClaudeEntry<'_>>();
    let wire = found.next()?.ok()?;
    Some((found.byte_offset(), wire.entry()))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawClaudeEntry<'l> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'l, str>>,
    uuid: Option<Uuid>,
    parent_uuid: Option<Uuid>,
    logical_parent_uuid: Option<Uuid>,
    #[serde(default)]
    is_sidechain: bool,
    message: Option<EntryMessage>,
    /// Any JSON value.
    #[serde(borrow)]
    attachment: Option<&'l RawValue>,
}

/// A larger attachment is not parsed.
const MAX_ATTACHMENT_BYTES: usize = 64 << 20;

#[derive(Deserialize)]
struct EntryAttachment {
    source_uuid: Option<Uuid>,
}

#[derive(Deserialize, Default)]
struct EntryMessage {
    id: Option<String>,
    #[serde(default)]
    content: ContentOutline,
}

impl RawClaudeEntry<'_> {
    fn entry(self) -> Option<ClaudeEntry> {
        let speaker = match self.kind.as_deref() {
            Some("user") => EntryAuthor::User,
            Some("assistant") => EntryAuthor::Assistant,
            _ => EntryAuthor::Program,
        };
        let EntryMessage { id: message, content } =
            self.message.filter(|_| speaker != EntryAuthor::Program).unwrap_or_default();
        Some(ClaudeEntry {
            id: self.uuid.filter(|_| !self.is_sidechain)?,
            parent: self.parent_uuid,
            logical: self.logical_parent_uuid,
            speaker,
            message,
            calls: content.calls,
            results: content.results,
            digest: content.digest,
            carries: self.attachment.and_then(carried),
        })
    }
}

fn carried(attachment: &RawValue) -> Option<Uuid> {
    let text = Some(attachment.get()).filter(|text| text.len() <= MAX_ATTACHMENT_BYTES)?;
    serde_json::from_str::<EntryAttachment>(text).ok()?.source_uuid
}

/// The line with new links and otherwise unchanged bytes. A line may be large, so everything except the links is only
/// copied: parsed into a tree it would need a hundred times the memory. Skipped fields may contain invalid UTF-8. Claude
/// Code reads replacement characters there, so we write them.
pub(super) fn linked(line: &[u8], parent: Option<Uuid>, logical: Option<Uuid>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(line.len() + 128);
    out.extend_from_slice(br#"{"parentUuid":"#);
    serde_json::to_writer(&mut out, &parent).ok()?;
    if logical.is_some() {
        out.extend_from_slice(br#","logicalParentUuid":"#);
        serde_json::to_writer(&mut out, &logical).ok()?;
    }
    let line = String::from_utf8_lossy(line);
    serde_json::Deserializer::from_str(&line).deserialize_map(UnlinkedFieldCopier(&mut out)).ok()?;
    out.push(b'}');
    Some(out)
}

/// Copies all fields except the links.
struct UnlinkedFieldCopier<'o>(&'o mut Vec<u8>);

impl<'de> Visitor<'de> for UnlinkedFieldCopier<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(name) = fields.next_key::<String>()? {
            let value = fields.next_value::<&RawValue>()?;
            if !matches!(name.as_str(), "parentUuid" | "logicalParentUuid") {
                self.0.push(b',');
                serde_json::to_writer(&mut *self.0, &name).map_err(serde::de::Error::custom)?;
                self.0.push(b':');
                self.0.extend_from_slice(value.get().as_bytes());
            }
        }
        Ok(())
    }
}

/// The damage of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LineFaults {
    /// Lines with bytes that are not text.
    pub(super) nuls: u64,
    /// Line separators that some readers treat as the end of a line.
    pub(super) separators: u64,
    /// Entries that shared a line with another one.
    pub(super) joined_entries: u64,
    pub(super) unreadable: u64,
}

impl std::ops::AddAssign for LineFaults {
    fn add_assign(&mut self, more: LineFaults) {
        self.nuls += more.nuls;
        self.separators += more.separators;
        self.joined_entries += more.joined_entries;
        self.unreadable += more.unreadable;
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The agent writes the transcript, so it is untrusted. More pieces, calls and results than this are not a conversation
/// and would fill our memory. Claude Code writes at least half a kilobyte for each.
pub(super) const MAX_PIECES: usize = if cfg!(test) { 1 << 12 } else { 1 << 19 };
/// How often we search a torn line for the beginning of another entry. Each search may be as slow as reading the line.
const MAX_SEARCHES_PER_LINE: u64 = 16;
/// A longer line is not searched.
const MAX_SEARCHED_LINE_BYTES: usize = if cfg!(test) { 1 << 16 } else { 4 << 20 };
/// The limit of bytes for all these searches in a transcript.
const MAX_SEARCHED_BYTES: usize = if cfg!(test) { 1 << 18 } else { 64 << 20 };
/// The prefixes of entries.
const ENTRY_PREFIXES: [&[u8]; 2] = [br#"{"parentUuid""#, br#"{"type""#];

/// Reads a transcript line by line.
#[derive(Debug, Default)]
pub(super) struct TranscriptReader {
    pieces: usize,
    searched: usize,
    pub(super) faults: LineFaults,
}

impl TranscriptReader {
    /// Passes on each piece of a line as its own line, together with its entry if it is one. Returns the damage. Above
    /// the limits the rest of a line counts as unreadable.
    pub(super) fn read(
        &mut self,
        line: Vec<u8>,
        take: &mut dyn FnMut(Vec<u8>, Option<ClaudeEntry>),
    ) -> LineFaults {
        let faults = match self.pieces {
            MAX_PIECES.. => LineFaults { unreadable: u64::from(!is_blank(&line)), ..LineFaults::default() },
            _ => self.take_apart(line, take),
        };
        self.faults += faults;
        faults
    }

    fn take_apart(
        &mut self,
        mut line: Vec<u8>,
        take: &mut dyn FnMut(Vec<u8>, Option<ClaudeEntry>),
    ) -> LineFaults {
        let mut faults = clean(&mut line);
        let (mut at, mut found) = (0, 0);
        while let Some(spaces) = line[at..].iter().position(|byte| !byte.is_ascii_whitespace()) {
            at += spaces;
            let full = self.pieces >= MAX_PIECES;
            self.pieces += 1;
            match first(&line[at..]).filter(|_| !full) {
                Some((length, entry)) => {
                    let end = at + length;
                    // Calls and results count as well, because they stay in memory.
                    self.pieces += entry.as_ref().map_or(0, |entry| entry.calls.len() + entry.results.len());
                    if found + faults.unreadable == 0 && is_blank(&line[end..]) {
                        take(line, entry);
                        return faults;
                    }
                    take(line[at..end].to_vec(), entry);
                    (at, found) = (end, found + 1);
                }
                None => {
                    faults.unreadable += 1;
                    let again = !full && faults.unreadable <= MAX_SEARCHES_PER_LINE;
                    let Some(next) = again.then(|| self.search(&line, at + 1)).flatten() else { break };
                    at = next;
                }
            }
        }
        faults.joined_entries = found.saturating_sub(1);
        faults
    }

    /// An intact entry may follow a torn one.
    fn search(&mut self, line: &[u8], from: usize) -> Option<usize> {
        if line.len() > MAX_SEARCHED_LINE_BYTES || self.searched > MAX_SEARCHED_BYTES {
            return None;
        }
        self.searched += line.len() - from;
        let begins = |place: &usize| ENTRY_PREFIXES.iter().any(|head| line[*place..].starts_with(head));
        (from..line.len()).filter(|place| line[*place] == b'{').find(begins)
    }
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_whitespace)
}

/// Replaces bytes that are not text, and line separators that some readers treat as the end of a line.
fn clean(line: &mut Vec<u8>) -> LineFaults {
    let before = line.len();
    if line.starts_with(BYTE_ORDER_MARK) {
        line.drain(..BYTE_ORDER_MARK.len());
    }
    line.retain(|byte| *byte != 0);
    let nuls = u64::from(line.len() != before);
    let separators = line.windows(3).any(is_separator);
    if separators {
        *line = escaped(line);
    }
    LineFaults { nuls, separators: u64::from(separators), ..LineFaults::default() }
}

fn is_separator(bytes: &[u8]) -> bool {
    matches!(bytes, [0xe2, 0x80, 0xa8 | 0xa9])
}

fn escaped(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::with_capacity(bytes.len() + 16), 0);
    while at < bytes.len() {
        match bytes[at..].get(..3) {
            Some(separator) if is_separator(separator) => {
                out.extend_from_slice(if separator[2] == 0xa8 { br"\u2028" } else { br"\u2029" });
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &[u8]) -> (Vec<String>, LineFaults) {
        let (mut found, mut reader) = (Vec::new(), TranscriptReader::default());
        let faults = reader.read(line.to_vec(), &mut |piece, _| {
            found.push(String::from_utf8(piece).expect("text"));
        });
        (found, faults)
    }

    #[test]
    fn a_whole_line_is_one_piece_without_fault() {
        let line = "{\"type\":\"user\",\"x\":1}\r";
        assert_eq!(texts(line.as_bytes()), (vec![line.to_owned()], LineFaults::default()));
    }

    #[test]
    fn entries_on_one_line_are_taken_apart() {
        let (found, faults) = texts(br#"{"type":"a"}{"type":"b"} {"type":"c"}"#);
        assert_eq!(found, [r#"{"type":"a"}"#, r#"{"type":"b"}"#, r#"{"type":"c"}"#]);
        assert_eq!(faults, LineFaults { joined_entries: 2, ..LineFaults::default() });
    }

    #[test]
    fn an_entry_after_a_torn_one_is_found() {
        let (found, faults) = texts(br#"{"type":"user","message":{"ro{"parentUuid":null,"type":"b"}"#);
        assert_eq!(found, [r#"{"parentUuid":null,"type":"b"}"#]);
        assert_eq!(faults.unreadable, 1);
        let (found, faults) = texts(br#"{"type":"a"}{"type":"b","mess"#);
        assert_eq!((found.len(), faults.unreadable), (1, 1));
    }

    #[test]
    fn nul_bytes_and_separators_are_made_harmless() {
        let (found, faults) = texts(b"\0\0{\"type\":\"a\"}\0");
        assert_eq!((found, faults.nuls), (vec![r#"{"type":"a"}"#.to_owned()], 1));
        let (found, faults) = texts("{\"type\":\"x\u{2028}y\u{2029}\"}".as_bytes());
        assert_eq!((found, faults.separators), (vec![r#"{"type":"x\u2028y\u2029"}"#.to_owned()], 1));
        assert_eq!(texts(b"\0\0\0"), (vec![], LineFaults { nuls: 1, ..LineFaults::default() }));
    }

    #[test]
    fn other_text_is_no_entry() {
        for nonsense in [
            &b"hello"[..],
            b"[1,2]",
            b"[null,null,null,null,false,null]",
            b"42",
            b"{\"uuid\":5}",
            b"{\"type\":",
            b"\xff\xfe",
        ] {
            let (found, faults) = texts(nonsense);
            assert_eq!((found.len(), faults.unreadable), (0, 1), "{}", String::from_utf8_lossy(nonsense));
        }
    }

    #[test]
    fn searches_in_a_torn_line_are_limited() {
        // Each fragment stays open until the end of the line, so a search must read the whole line.
        let open = r#"{"type":"a","x":"#;
        let whole = r#"{"type":"b"}"#;
        let seen = |count| texts(format!("{}}}{whole}", open.repeat(count)).as_bytes());
        assert_eq!(seen(16).0, [whole]);
        for count in [17, 1000] {
            let (found, faults) = seen(count);
            assert_eq!((found.len(), faults.unreadable), (0, 17));
        }
    }

    #[test]
    fn a_torn_line_that_is_too_long_is_not_searched_and_a_whole_one_is_read() {
        let long = "x".repeat(MAX_SEARCHED_LINE_BYTES);
        let (found, faults) = texts(format!(r#"{{"type":"{long}{{"type":"b"}}"#).as_bytes());
        assert_eq!((found.len(), faults.unreadable), (0, 1));
        let whole = format!(r#"{{"type":"{long}"}}"#);
        assert_eq!(texts(whole.as_bytes()), (vec![whole], LineFaults::default()));
        let (found, faults) = texts(format!(r#"{{"type":"{long}"}}{{"type":"b"}}"#).as_bytes());
        assert_eq!((found.len(), faults.joined_entries), (2, 1));
    }

    #[test]
    fn searches_in_a_transcript_are_limited() {
        let line = format!(r#"{{"type":"{}{{"type":"b"}}"#, "x".repeat(MAX_SEARCHED_LINE_BYTES - 100));
        let (mut found, mut reader) = (0, TranscriptReader::default());
        for _ in 0..100 {
            reader.read(line.clone().into_bytes(), &mut |_, _| found += 1);
        }
        assert_eq!(
            (found, reader.faults.unreadable),
            (MAX_SEARCHED_BYTES / MAX_SEARCHED_LINE_BYTES + 1, 100)
        );
    }

    #[test]
    fn the_pieces_of_a_transcript_are_limited() {
        let (found, faults) = texts("{}".repeat(MAX_PIECES + 5).as_bytes());
        assert_eq!((found.len(), faults.unreadable), (MAX_PIECES, 1));
        let block = r#"{"type":"tool_use","id":"c"},"#.repeat(MAX_PIECES - 2);
        let calls =
            format!(r#"{{"type":"assistant","uuid":"{}","message":{{"content":[{block}0]}}}}"#, Uuid::nil());
        let (mut found, mut reader) = (0, TranscriptReader::default());
        for line in [calls.as_str(), "{}", "{}", " ", "{}"] {
            reader.read(line.as_bytes().to_vec(), &mut |_, _| found += 1);
        }
        assert_eq!((found, reader.faults.unreadable), (2, 2), "calls count as well");
    }

    #[test]
    fn other_links_change_nothing_else() {
        let line =
            r#" {"x":[ 1.50,{"a" : "\u2028"}],"parentUuid":"p","type":"user","x":2,"logicalParentUuid":5}"#;
        let id = Uuid::from_u128(7);
        let linked = |parent, logical| {
            String::from_utf8(linked(line.as_bytes(), parent, logical).expect("an object")).expect("text")
        };
        let rest = r#""x":[ 1.50,{"a" : "\u2028"}],"type":"user","x":2}"#;
        assert_eq!(linked(None, None), format!(r#"{{"parentUuid":null,{rest}"#));
        assert_eq!(
            linked(None, Some(id)),
            format!(r#"{{"parentUuid":null,"logicalParentUuid":"{id}",{rest}"#)
        );
        assert_eq!(linked(Some(id), None), format!(r#"{{"parentUuid":"{id}",{rest}"#));
        assert_eq!(super::linked(b"[1]", None, None), None);
        let no_text = super::linked(b"{\"x\":\"\xff\"}", None, None);
        assert_eq!(no_text, Some("{\"parentUuid\":null,\"x\":\"\u{fffd}\"}".into()));
    }

    #[test]
    fn calls_and_results_are_seen() {
        let line = br#"{"type":"assistant","uuid":"00000000-0000-0000-0000-000000000001","message":{"id":"m","content":[{"type":"text","text":"t"},{"type":"tool_use","id":"c"}]}}"#;
        let entry = read(line).flatten().expect("an entry");
        assert_eq!((entry.speaker, entry.message.as_deref()), (EntryAuthor::Assistant, Some("m")));
        assert_eq!(entry.calls, ["c"]);
        let line = br#"{"type":"user","uuid":"00000000-0000-0000-0000-000000000001","message":{"content":[{"type":"tool_result","tool_use_id":"c","content":"x"}]}}"#;
        let entry = read(line).flatten().expect("an entry");
        assert!(entry.results == ["c"] && !entry.is_prompt());
    }
}
