//! The conversation as Claude Code keeps it: `~/.claude/projects/<cwd>/<session>.jsonl`, one entry to a line, each
//! naming the one before it. What the next request holds is the chain that ends in the newest entry; whatever is not
//! in it is forgotten, in silence. So we look before it does.

use crate::Remembered;
use ash_model::TurnId;
use serde::Deserialize;
use std::{
    collections::{HashMap, HashSet},
    path::Path,
};
use uuid::Uuid;

/// Where it is in the agent's home. It replaces everything but letters and digits.
pub(super) fn place(cwd: &Path, id: Uuid) -> String {
    let cwd: String =
        cwd.to_string_lossy().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!(".claude/projects/{cwd}/{id}.jsonl")
}

/// Whoever is inside writes it: more entries than this are not a conversation, and would fill our memory.
const MOST_ENTRIES: usize = 1 << 20;

/// What of an entry says where it belongs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    uuid: Option<Uuid>,
    parent_uuid: Option<Uuid>,
    /// After a compaction the chain begins anew, and says what it stands for.
    logical_parent_uuid: Option<Uuid>,
    #[serde(default)]
    is_sidechain: bool,
}

/// What of these turns it will know.
pub(super) fn remembered(lines: &mut dyn Iterator<Item = Vec<u8>>, turns: &[TurnId]) -> Remembered {
    let mut damaged = 0;
    let mut before: HashMap<Uuid, Option<Uuid>> = HashMap::new();
    let mut newest = None;
    for line in lines.filter(|line| !line.is_empty()) {
        match serde_json::from_slice::<Entry>(&line) {
            Ok(_) if before.len() >= MOST_ENTRIES => damaged += 1,
            Ok(Entry { uuid: Some(id), parent_uuid, logical_parent_uuid, is_sidechain: false }) => {
                before.insert(id, parent_uuid.or(logical_parent_uuid));
                newest = Some(id);
            }
            Ok(_) => {}
            Err(_) => damaged += 1,
        }
    }
    let chain = chain(&before, newest);
    let known = turns.iter().filter(|turn| chain.contains(&turn.0)).count() as u64;
    // A chain that ends in an entry nobody has was torn somewhere in the middle.
    let torn =
        chain.iter().filter_map(|id| before.get(id)?.as_ref()).filter(|id| !before.contains_key(id)).count();
    Remembered { found: newest.is_some(), turns: known, damaged: damaged + torn as u64 }
}

fn chain(before: &HashMap<Uuid, Option<Uuid>>, newest: Option<Uuid>) -> HashSet<Uuid> {
    let mut chain = HashSet::new();
    let mut at = newest;
    while let Some(id) = at {
        // Hostile input: a circle ends here.
        if !chain.insert(id) {
            break;
        }
        at = before.get(&id).copied().flatten();
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn entry(number: u128, parent: Option<u128>, kind: &str) -> String {
        json!({"type": kind, "uuid": id(number), "parentUuid": parent.map(id), "isSidechain": false})
            .to_string()
    }

    fn look(lines: &[String], turns: &[u128]) -> (bool, u64, u64) {
        let turns: Vec<TurnId> = turns.iter().map(|turn| TurnId(id(*turn))).collect();
        let mut lines = lines.iter().map(|line| line.clone().into_bytes());
        let Remembered { found, turns, damaged } = remembered(&mut lines, &turns);
        (found, turns, damaged)
    }

    #[test]
    fn its_place_follows_from_the_directory_it_works_in() {
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
        assert_eq!(look(&lines, &[1, 3]), (true, 2, 0));
    }

    #[test]
    fn what_is_on_another_branch_is_forgotten() {
        let lines = [
            entry(1, None, "user"),
            entry(2, Some(1), "assistant"),
            entry(3, Some(2), "user"),
            entry(4, Some(1), "user"),
        ];
        assert_eq!(look(&lines, &[1, 3, 4]), (true, 2, 0));
    }

    #[test]
    fn a_lost_line_in_the_middle_is_damage_and_loses_what_was_before() {
        let lines = [entry(1, None, "user"), entry(3, Some(2), "user"), entry(4, Some(3), "assistant")];
        assert_eq!(look(&lines, &[1, 3]), (true, 1, 1));
    }

    #[test]
    fn nothing_is_nothing_and_nonsense_is_damage() {
        assert_eq!(look(&[], &[1]), (false, 0, 0));
        assert_eq!(look(&["{\"type\":".to_owned(), "\0\0\0".to_owned()], &[1]), (false, 0, 2));
        let circle = [entry(1, Some(2), "user"), entry(2, Some(1), "assistant")];
        assert_eq!(look(&circle, &[1]), (true, 1, 0));
    }

    #[test]
    fn a_transcript_without_end_is_not_kept_without_end() {
        let entries = (1..).map(|n| entry(n, (n > 1).then(|| n - 1), "user").into_bytes());
        let turns = [TurnId(id(1)), TurnId(id(MOST_ENTRIES as u128 + 1))];
        let found = remembered(&mut entries.take(MOST_ENTRIES + 5), &turns);
        assert_eq!(found, Remembered { found: true, turns: 1, damaged: 5 });
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
        assert_eq!(look(&lines, &[1, 4]), (true, 2, 0));
    }
}
