//! Reads the conversation as Claude Code keeps it: `~/.claude/projects/<cwd>/<session>.jsonl`, one entry per line, each
//! linked to its parent. The next request contains the chain that ends in the newest entry. Claude Code silently forgets
//! everything outside the chain, so we check the transcript before it starts.

use super::entry::{ClaudeEntry, EntryAuthor, LineFaults, TranscriptReader};
use crate::{ResumedConversation, TranscriptSurvey};
use std::{
    collections::{HashMap, HashSet},
    path::Path,
};
use uuid::Uuid;

/// The path of the transcript in the agent's home.
pub(super) fn place(cwd: &Path, id: Uuid) -> String {
    format!(".claude/projects/{}/{id}.jsonl", folder(cwd))
}

/// Claude Code replaces everything except letters and digits.
pub(super) fn folder(cwd: &Path) -> String {
    cwd.to_string_lossy().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Which messages of our log Claude Code will know.
pub(super) fn survey(
    lines: &mut dyn Iterator<Item = Vec<u8>>,
    expected: &[crate::ExpectedMessage],
) -> TranscriptSurvey {
    let mut reader = TranscriptReader::default();
    let mut entries = Vec::new();
    for line in lines {
        reader.read(line, &mut |_, entry| entries.extend(entry));
    }
    let faults = reader.faults;
    let thread = EntryChain::of(&entries);
    let known = thread.known();
    let turns = expected.iter().filter(|message| message.prompt && known.contains(&message.id)).count();
    let as_said = |message: &crate::ExpectedMessage| {
        let found = thread.get(message.id).filter(|_| known.contains(&message.id));
        found.is_some_and(|entry| message.digest.is_none_or(|digest| digest == entry.digest))
    };
    let missing: Vec<usize> = (0..expected.len()).filter(|number| !as_said(&expected[*number])).collect();
    let damaged = faults.unreadable + thread.broken_links(&known);
    let unpaired = thread.unpaired(&known);
    // Claude Code reads line separators correctly, so they are no damage here.
    let sound = LineFaults { separators: 0, ..faults } == LineFaults::default()
        && damaged == 0
        && missing.is_empty()
        && unpaired == UnpairedToolCalls::default()
        && thread.repeated == 0
        && thread.reaches_beginning();
    let remembered =
        ResumedConversation { is_found: !thread.entries.is_empty(), turns: turns as u64, damaged };
    let prompts = thread.prompts(&known);
    TranscriptSurvey { resumed: remembered, missing, is_sound: sound, prompts }
}

/// The entries in the order of the file, and their links.
#[derive(Debug, Default)]
pub(super) struct EntryChain<'e> {
    entries: Vec<&'e ClaudeEntry>,
    places: HashMap<Uuid, usize>,
    repeated: u64,
}

/// Calls without a result although the conversation continues after them, and results without a call. The real API
/// refuses both.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UnpairedToolCalls {
    pub(super) calls: Vec<(Uuid, String)>,
    pub(super) results: Vec<(Uuid, String)>,
}

impl<'e> EntryChain<'e> {
    pub(super) fn of(entries: impl IntoIterator<Item = &'e ClaudeEntry>) -> EntryChain<'e> {
        let mut thread = EntryChain::default();
        for entry in entries {
            if thread.places.contains_key(&entry.id) {
                thread.repeated += 1;
            } else {
                thread.places.insert(entry.id, thread.entries.len());
                thread.entries.push(entry);
            }
        }
        thread
    }

    fn get(&self, id: Uuid) -> Option<&'e ClaudeEntry> {
        self.places.get(&id).map(|place| self.entries[*place])
    }

    /// The content of the next request: the chain that ends in the newest entry, plus the other blocks of its messages
    /// with their results.
    pub(super) fn known(&self) -> HashSet<Uuid> {
        let mut known = HashSet::new();
        let mut messages: HashSet<&str> = HashSet::new();
        let mut at = self.entries.last().copied();
        // The input is untrusted: a cycle ends where it began.
        while let Some(entry) = at.filter(|entry| known.insert(entry.id)) {
            messages.extend(entry.message.as_deref().filter(|_| entry.speaker == EntryAuthor::Assistant));
            at = entry.before().and_then(|before| self.get(before));
        }
        for entry in &self.entries {
            let same = entry.message.as_deref().is_some_and(|message| messages.contains(message));
            let outcome =
                !entry.results.is_empty() && entry.parent.is_some_and(|parent| known.contains(&parent));
            if same || outcome {
                known.insert(entry.id);
            }
        }
        known
    }

    fn prompts(&self, known: &HashSet<Uuid>) -> Vec<Uuid> {
        let shown = self.entries.iter().filter(|entry| known.contains(&entry.id));
        shown
            .flat_map(|entry| entry.carries.into_iter().chain(entry.is_prompt().then_some(entry.id)))
            .collect()
    }

    /// A chain with a cycle has no beginning.
    fn reaches_beginning(&self) -> bool {
        let (mut at, mut steps) = (self.entries.last().copied(), 0);
        while let Some(entry) = at {
            steps += 1;
            if steps > self.entries.len() {
                return false;
            }
            at = entry.before().and_then(|before| self.get(before));
        }
        true
    }

    /// How many links of the chain name an entry that does not exist.
    fn broken_links(&self, known: &HashSet<Uuid>) -> u64 {
        let before = known.iter().filter_map(|id| self.get(*id)?.before());
        before.filter(|id| !self.places.contains_key(id)).count() as u64
    }

    pub(super) fn unpaired(&self, known: &HashSet<Uuid>) -> UnpairedToolCalls {
        let counts = || self.entries.iter().filter(|entry| known.contains(&entry.id));
        let calls: HashSet<&str> = counts().flat_map(|entry| &entry.calls).map(String::as_str).collect();
        let results: HashSet<&str> = counts().flat_map(|entry| &entry.results).map(String::as_str).collect();
        // The calls of the last message may still be running.
        let last = self.entries.iter().rposition(|entry| known.contains(&entry.id) && entry.is_prompt());
        let over = self.entries[..last.unwrap_or(0)].iter().filter(|entry| known.contains(&entry.id));
        let named = |entry: &ClaudeEntry, id: &String| (entry.id, id.clone());
        UnpairedToolCalls {
            calls: over
                .flat_map(|entry| entry.calls.iter().map(|call| named(entry, call)))
                .filter(|(_, call)| !results.contains(call.as_str()))
                .collect(),
            results: counts()
                .flat_map(|entry| entry.results.iter().map(|result| named(entry, result)))
                .filter(|(_, result)| !calls.contains(result.as_str()))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::entry::MAX_PIECES, *};
    use crate::ExpectedMessage;
    use serde_json::{Value, json};

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn entry(number: u128, parent: Option<u128>, kind: &str) -> String {
        json!({"type": kind, "uuid": id(number), "parentUuid": parent.map(id), "isSidechain": false})
            .to_string()
    }

    fn call(number: u128, parent: u128, message: &str, call: &str) -> String {
        let content = json!([{"type": "tool_use", "id": call}]);
        json!({"type": "assistant", "uuid": id(number), "parentUuid": id(parent), "message": {"id": message, "content": content}})
            .to_string()
    }

    fn result(number: u128, parent: u128, call: &str) -> String {
        let content = json!([{"type": "tool_result", "tool_use_id": call}]);
        json!({"type": "user", "uuid": id(number), "parentUuid": id(parent), "message": {"content": content}})
            .to_string()
    }

    fn look(lines: &[String], prompts: &[u128]) -> TranscriptSurvey {
        let expected: Vec<ExpectedMessage> = prompts
            .iter()
            .map(|number| ExpectedMessage { id: id(*number), prompt: true, digest: None })
            .collect();
        survey(&mut lines.iter().map(|line| line.clone().into_bytes()), &expected)
    }

    /// Whether there is a conversation, how many of the turns are in it, and how much is damaged.
    fn found(lines: &[String], prompts: &[u128]) -> (bool, u64, u64) {
        let ResumedConversation { is_found: found, turns, damaged } = look(lines, prompts).resumed;
        (found, turns, damaged)
    }

    #[test]
    fn the_transcripts_path_follows_from_the_working_directory() {
        assert_eq!(
            place(Path::new("/workspace"), id(1)),
            format!(".claude/projects/-workspace/{}.jsonl", id(1))
        );
    }

    #[test]
    fn a_whole_conversation_is_known() {
        let lines = [
            r#"{"type":"queue-operation"}"#.to_owned(),
            entry(1, None, "user"),
            entry(2, Some(1), "assistant"),
            entry(3, Some(2), "user"),
        ];
        assert_eq!(found(&lines, &[1, 3]), (true, 2, 0));
        assert!(look(&lines, &[1, 3]).is_sound);
    }

    #[test]
    fn messages_on_another_branch_are_forgotten() {
        let lines = [
            entry(1, None, "user"),
            entry(2, Some(1), "assistant"),
            entry(3, Some(2), "user"),
            entry(4, Some(1), "user"),
        ];
        assert_eq!(found(&lines, &[1, 3, 4]), (true, 2, 0));
        assert_eq!(look(&lines, &[1, 3, 4]).missing, [1]);
    }

    #[test]
    fn a_lost_line_in_the_middle_is_damage_and_loses_what_was_before() {
        let lines = [entry(1, None, "user"), entry(3, Some(2), "user"), entry(4, Some(3), "assistant")];
        assert_eq!(found(&lines, &[1, 3]), (true, 1, 1));
        assert!(!look(&lines, &[1, 3]).is_sound);
    }

    #[test]
    fn nothing_is_nothing_and_nonsense_is_damage() {
        assert_eq!(found(&[], &[1]), (false, 0, 0));
        assert_eq!(found(&["{\"type\":".to_owned(), "hello".to_owned()], &[1]), (false, 0, 2));
        let circle = [entry(1, Some(2), "user"), entry(2, Some(1), "assistant")];
        assert_eq!(found(&circle, &[1]), (true, 1, 0));
        assert!(!look(&circle, &[1]).is_sound);
    }

    #[test]
    fn a_transcript_without_end_is_not_kept_without_end() {
        let entries = (1..).map(|n| entry(n, (n > 1).then(|| n - 1), "user").into_bytes());
        let expected = [1, MAX_PIECES as u128 + 1].map(|number| ExpectedMessage {
            id: id(number),
            prompt: true,
            digest: None,
        });
        let found = survey(&mut entries.take(MAX_PIECES + 5), &expected).resumed;
        assert_eq!(found, ResumedConversation { is_found: true, turns: 1, damaged: 5 });
    }

    #[test]
    fn a_summary_stands_for_what_it_summed_up() {
        let mut boundary = serde_json::from_str::<Value>(&entry(3, None, "system")).expect("json");
        boundary["logicalParentUuid"] = json!(id(2));
        let lines = [
            entry(1, None, "user"),
            entry(2, Some(1), "assistant"),
            boundary.to_string(),
            entry(4, Some(3), "user"),
        ];
        assert_eq!(found(&lines, &[1, 4]), (true, 2, 0));
    }

    /// As recorded: each result links to its own call, and only one of the results is in the chain.
    #[test]
    fn calls_made_side_by_side_are_known_with_what_came_of_them() {
        let lines = [
            entry(1, None, "user"),
            call(2, 1, "m", "a"),
            call(3, 2, "m", "b"),
            call(4, 3, "m", "c"),
            result(5, 2, "a"),
            result(6, 4, "c"),
            result(7, 3, "b"),
            entry(8, Some(7), "assistant"),
            entry(9, Some(8), "user"),
        ];
        let survey = look(&lines, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(survey.is_sound, "{survey:?}");
    }

    #[test]
    fn a_call_without_a_result_is_only_sound_while_it_may_be_under_way() {
        let mut lines = vec![entry(1, None, "user"), call(2, 1, "m", "a")];
        assert!(look(&lines, &[1]).is_sound, "the turn may have been cut off");
        lines.push(entry(3, Some(2), "user"));
        assert!(!look(&lines, &[1, 3]).is_sound);
        let lines = [entry(1, None, "user"), result(2, 1, "a"), entry(3, Some(2), "user")];
        assert!(!look(&lines, &[1, 3]).is_sound, "a result of nothing");
    }
}
