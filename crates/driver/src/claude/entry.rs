//! One line of a transcript, as far as we have to understand it, and what can be read of a damaged one.

use serde::Deserialize;
use serde_json::Value;
use std::{
    borrow::Cow,
    hash::{Hash, Hasher},
};
use uuid::Uuid;

/// An entry of the conversation itself: what belongs to a subagent, and what is only kept, is none.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) id: Uuid,
    pub(super) parent: Option<Uuid>,
    /// After a compaction the chain begins anew, and says what it stands for.
    pub(super) logical: Option<Uuid>,
    pub(super) speaker: Speaker,
    /// A message of the assistant comes in several entries, one for each block.
    pub(super) message: Option<String>,
    pub(super) calls: Vec<String>,
    pub(super) results: Vec<String>,
    /// Of its words.
    pub(super) digest: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    User,
    Assistant,
    /// The program itself: what it attached, and its marks.
    Program,
}

impl Entry {
    pub(super) fn before(&self) -> Option<Uuid> {
        self.parent.or(self.logical)
    }

    pub(super) fn is_prompt(&self) -> bool {
        self.speaker == Speaker::User && self.results.is_empty()
    }
}

/// What a line holds. `None`: nothing that can be read.
pub(super) fn read(line: &[u8]) -> Option<Option<Entry>> {
    // A list would do for serde as well.
    let object = line.trim_ascii_start().first() == Some(&b'{');
    let wire: Wire<'_> = serde_json::from_slice(line).ok().filter(|_| object)?;
    let Wire { kind, uuid, parent_uuid, logical_parent_uuid, is_sidechain, message } = wire;
    let Some(id) = uuid.filter(|_| !is_sidechain) else { return Some(None) };
    let speaker = match kind.as_deref() {
        Some("user") => Speaker::User,
        Some("assistant") => Speaker::Assistant,
        _ => Speaker::Program,
    };
    let Message { id: message_id, content } =
        message.filter(|_| speaker != Speaker::Program).unwrap_or_default();
    let named = |kind: &str, name: &str| -> Vec<String> {
        let blocks = content.as_array().into_iter().flatten().filter(|block| block["type"] == kind);
        blocks.filter_map(|block| block[name].as_str().map(str::to_owned)).collect()
    };
    let (calls, results) = (named("tool_use", "id"), named("tool_result", "tool_use_id"));
    Some(Some(Entry {
        id,
        parent: parent_uuid,
        logical: logical_parent_uuid,
        speaker,
        message: message_id,
        calls,
        results,
        digest: digest(&content),
    }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'l> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'l, str>>,
    uuid: Option<Uuid>,
    parent_uuid: Option<Uuid>,
    logical_parent_uuid: Option<Uuid>,
    #[serde(default)]
    is_sidechain: bool,
    message: Option<Message>,
}

#[derive(Deserialize, Default)]
struct Message {
    id: Option<String>,
    #[serde(default)]
    content: Value,
}

/// The same words have the same.
pub(super) fn digest(content: &Value) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    content.to_string().hash(&mut hasher);
    hasher.finish()
}

/// What was wrong with a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// Lines with bytes that are no text.
    pub(super) nuls: u64,
    /// Line separators that some readers take for the end of a line.
    pub(super) separators: u64,
    /// Entries that stood on the line of another.
    pub(super) together: u64,
    pub(super) unreadable: u64,
}

impl std::ops::AddAssign for Faults {
    fn add_assign(&mut self, more: Faults) {
        self.nuls += more.nuls;
        self.separators += more.separators;
        self.together += more.together;
        self.unreadable += more.unreadable;
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// How often a torn line is searched for the beginning of another one.
const MOST_TRIES: usize = 64;
/// How entries begin.
const HEADS: [&[u8]; 2] = [br#"{"parentUuid""#, br#"{"type""#];

/// The entries on a line, each as a line of its own, and what was wrong with it.
pub(super) fn pieces(line: &[u8]) -> (Vec<Vec<u8>>, Faults) {
    let mut faults = Faults::default();
    let marked = line.strip_prefix(BYTE_ORDER_MARK);
    let mut clean: Vec<u8> = marked.unwrap_or(line).iter().copied().filter(|byte| *byte != 0).collect();
    faults.nuls = u64::from(clean.len() != line.len());
    if clean.windows(3).any(is_separator) {
        faults.separators = 1;
        clean = escaped(&clean);
    }
    if clean.iter().all(u8::is_ascii_whitespace) {
        return (Vec::new(), faults);
    }
    if read(&clean).is_some() {
        return (vec![clean], faults);
    }
    let (mut pieces, mut at, mut tries) = (Vec::new(), 0, 0);
    while at < clean.len() {
        let rest = &clean[at..];
        match first_value(rest) {
            Some(length) => {
                pieces.push(rest[..length].trim_ascii().to_vec());
                at += length;
            }
            None => {
                faults.unreadable += 1;
                // What follows a torn entry may be whole.
                let next = (at + 1..clean.len())
                    .find(|from| HEADS.iter().any(|head| clean[*from..].starts_with(head)))
                    .filter(|_| tries < MOST_TRIES);
                tries += 1;
                at = next.unwrap_or(clean.len());
            }
        }
        while clean.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
    }
    faults.together = pieces.len().saturating_sub(1) as u64;
    (pieces, faults)
}

/// How long the entry is that these bytes begin with.
fn first_value(bytes: &[u8]) -> Option<usize> {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<serde::de::IgnoredAny>();
    values.next()?.ok()?;
    let length = values.byte_offset();
    read(&bytes[..length]).map(|_| length)
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

    fn texts(line: &[u8]) -> (Vec<String>, Faults) {
        let (found, faults) = pieces(line);
        (found.into_iter().map(|piece| String::from_utf8(piece).expect("text")).collect(), faults)
    }

    #[test]
    fn a_whole_line_is_one_piece_without_fault() {
        let line = br#"{"type":"user","x":1}"#;
        assert_eq!(pieces(line), (vec![line.to_vec()], Faults::default()));
    }

    #[test]
    fn entries_on_one_line_are_taken_apart() {
        let (found, faults) = texts(br#"{"type":"a"}{"type":"b"} {"type":"c"}"#);
        assert_eq!(found, [r#"{"type":"a"}"#, r#"{"type":"b"}"#, r#"{"type":"c"}"#]);
        assert_eq!(faults, Faults { together: 2, ..Faults::default() });
    }

    #[test]
    fn what_follows_a_torn_entry_is_found() {
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
        assert_eq!(texts(b"\0\0\0"), (vec![], Faults { nuls: 1, ..Faults::default() }));
    }

    #[test]
    fn what_is_no_entry_is_none() {
        for nonsense in [
            &b"hello"[..],
            b"[1,2]",
            b"[null,null,null,null,false,null]",
            b"42",
            b"{\"uuid\":5}",
            b"{\"type\":",
            b"\xff\xfe",
        ] {
            let (found, faults) = pieces(nonsense);
            assert_eq!((found.len(), faults.unreadable), (0, 1), "{}", String::from_utf8_lossy(nonsense));
        }
    }

    #[test]
    fn calls_and_results_are_seen() {
        let line = br#"{"type":"assistant","uuid":"00000000-0000-0000-0000-000000000001","message":{"id":"m","content":[{"type":"text","text":"t"},{"type":"tool_use","id":"c"}]}}"#;
        let entry = read(line).flatten().expect("an entry");
        assert_eq!((entry.speaker, entry.message.as_deref()), (Speaker::Assistant, Some("m")));
        assert_eq!(entry.calls, ["c"]);
        let line = br#"{"type":"user","uuid":"00000000-0000-0000-0000-000000000001","message":{"content":[{"type":"tool_result","tool_use_id":"c","content":"x"}]}}"#;
        let entry = read(line).flatten().expect("an entry");
        assert!(entry.results == ["c"] && !entry.is_prompt());
    }
}
