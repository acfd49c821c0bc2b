//! Repairs a transcript. Readable entries stay unchanged, messages that only our log has go back to their place, and
//! broken links point to the entry before. The caller keeps the original.

mod row;
mod unpaired_calls;

use super::{
    entry::{ClaudeEntry, EntryAuthor, LineFaults, TranscriptReader},
    transcript::{EntryChain, UnpairedToolCalls},
};
use crate::{LoggedContent, LoggedMessage, MendedTranscript, TranscriptIdentity};
use row::{TranscriptRow, row_of};
use std::collections::{BTreeMap, HashMap, HashSet};
use unpaired_calls::pair_up;
use uuid::Uuid;

/// A transcript with more calls without a result is not usable.
const MAX_UNPAIRED: usize = 1000;

#[derive(Debug, Default)]
struct MendCounts {
    /// Messages that neither the transcript nor our log has.
    gone: u64,
    /// Unreadable pieces that were not one of the restored messages.
    unaccounted: u64,
    put_back: u64,
    /// Restored messages beside which other entries may have been lost. Their number is not known.
    lost_neighbours: u64,
    relinked: u64,
    /// Links to entries that our log does not have.
    notes: u64,
    answered: u64,
    dropped: u64,
    repeated: u64,
    altered: u64,
}

pub(super) fn mend(
    lines: &mut dyn Iterator<Item = Vec<u8>>,
    log: &[LoggedMessage],
    native: &TranscriptIdentity,
) -> MendedTranscript {
    let ParsedTranscript { rows, faults, torn, repeated } = read_all(lines);
    let spoken =
        |row: &TranscriptRow| row.entry.as_ref().is_some_and(|entry| entry.speaker != EntryAuthor::Program);
    // Without messages, the program's own entries have no value.
    let usable = rows.iter().any(spoken);
    let woven = usable.then(|| merge(rows, log, native, torn));
    // Checked after the merge: entries that had no chain may have one now.
    let woven = woven.filter(|woven| unpaired(&woven.rows).calls.len() <= MAX_UNPAIRED);
    let rebuilt = woven.is_none();
    let MergedTranscript { rows, mut done } =
        woven.unwrap_or_else(|| merge(Vec::new(), log, native, BTreeMap::new()));
    done.repeated = repeated;
    let rows = pair_up(rows, native, &mut done);
    MendedTranscript {
        lines: rows.into_iter().map(|row| row.line).collect(),
        rebuilt,
        repairs: repairs(&faults, &done),
        lost: lost(rebuilt, &done),
    }
}

/// The transcript and our log merged into one chain.
struct MergedTranscript {
    rows: Vec<TranscriptRow>,
    done: MendCounts,
}

fn merge(
    rows: Vec<TranscriptRow>,
    log: &[LoggedMessage],
    native: &TranscriptIdentity,
    torn: BTreeMap<usize, u64>,
) -> MergedTranscript {
    let mut done = MendCounts::default();
    let rows = forget_altered(rows, log, &mut done);
    let there: HashSet<Uuid> = rows.iter().filter_map(TranscriptRow::id).collect();
    let gone = log.iter().filter(|message| message.words.is_none() && !there.contains(&message.id));
    done.gone = gone.count() as u64;
    let rows = put_back(rows, log, native, torn, &mut done);
    let rows = relink(rows, log, &mut done);
    let rows = if is_whole(&rows, log) { rows } else { in_one_line(rows, log) };
    done.relinked = rows.iter().filter(|row| row.moved).count() as u64;
    MergedTranscript { rows, done }
}

fn lost(rebuilt: bool, done: &MendCounts) -> Vec<String> {
    let mut lost = Vec::new();
    if done.gone > 0 {
        lost.push(format!("{} messages of the conversation", done.gone));
    }
    if rebuilt {
        lost.push("what the agent had noted beside the messages".to_owned());
    } else {
        // A torn program entry can be the same one that a broken link named, so this does not add both counts.
        match done.unaccounted.max(done.notes) {
            0 => {}
            1 => lost.push("a note of the agent beside the messages".to_owned()),
            notes => lost.push(format!("{notes} notes of the agent beside the messages")),
        }
        match done.lost_neighbours {
            0 => {}
            1 => lost.push("what the agent had noted beside a message that was put back".to_owned()),
            count => {
                lost.push(format!("what the agent had noted beside {count} messages that were put back"))
            }
        }
    }
    if done.dropped > 0 {
        lost.push(format!("{} outcomes of calls that nobody recorded", done.dropped));
    }
    lost
}

fn repairs(faults: &LineFaults, done: &MendCounts) -> Vec<String> {
    [
        (done.put_back, "messages put back from the log"),
        (done.relinked, "links mended"),
        (done.answered, "calls without a recorded outcome marked as unknown"),
        (done.dropped, "outcomes of unknown calls taken out"),
        (done.repeated, "repeated entries taken out"),
        (done.altered, "altered messages taken out"),
        (faults.unreadable, "unreadable pieces taken out"),
        (faults.joined_entries, "entries given a line of their own"),
        (faults.nuls, "lines freed of bytes that are no text"),
        (faults.separators, "lines freed of line separators"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect()
}

struct ParsedTranscript {
    rows: Vec<TranscriptRow>,
    faults: LineFaults,
    /// How many unreadable pieces stood before each row. A piece at the end of the file does not count: the process died
    /// while it wrote that line, so nothing followed it.
    torn: BTreeMap<usize, u64>,
    repeated: u64,
}

fn read_all(lines: &mut dyn Iterator<Item = Vec<u8>>) -> ParsedTranscript {
    let (mut rows, mut torn, mut reader) =
        (Vec::<TranscriptRow>::new(), BTreeMap::new(), TranscriptReader::default());
    let (mut seen, mut repeated) = (HashSet::new(), 0);
    let mut tail_torn = 0;
    for line in lines {
        let (before, mut pieces) = (rows.len(), 0);
        let wrong = reader.read(line, &mut |mut line, entry: Option<ClaudeEntry>| {
            pieces += 1;
            if entry.as_ref().is_some_and(|entry| !seen.insert(entry.id)) {
                repeated += 1;
                return;
            }
            // The line reader allocates more space than a line needs.
            line.shrink_to_fit();
            rows.push(TranscriptRow::new(line, entry));
        });
        if wrong.unreadable > 0 {
            *torn.entry(before).or_default() += wrong.unreadable;
        }
        tail_torn = if pieces == 0 { tail_torn + wrong.unreadable } else { 0 };
    }
    if tail_torn == 1 {
        torn.remove(&rows.len());
    }
    ParsedTranscript { rows, faults: reader.faults, torn, repeated }
}

/// Removes messages that differ from our log, so that `put_back` restores the original.
fn forget_altered(
    mut rows: Vec<TranscriptRow>,
    log: &[LoggedMessage],
    done: &mut MendCounts,
) -> Vec<TranscriptRow> {
    let said: HashMap<Uuid, u64> = log
        .iter()
        .filter_map(|message| match &message.words {
            Some(LoggedContent::Line(line)) => Some((message.id, super::spoken(line)?.digest)),
            Some(LoggedContent::Prompt(_)) | None => None,
        })
        .collect();
    let before = rows.len();
    rows.retain(|row| {
        let Some(entry) = &row.entry else { return true };
        said.get(&entry.id).is_none_or(|digest| *digest == entry.digest)
    });
    done.altered = (before - rows.len()) as u64;
    rows
}

/// Inserts messages that only the log has before the entry that followed them. Each restored message accounts for one
/// unreadable piece at its place.
fn put_back(
    rows: Vec<TranscriptRow>,
    log: &[LoggedMessage],
    native: &TranscriptIdentity,
    mut torn: BTreeMap<usize, u64>,
    done: &mut MendCounts,
) -> Vec<TranscriptRow> {
    let mut places: HashMap<Uuid, usize> = HashMap::new();
    let mut first_child: HashMap<Uuid, usize> = HashMap::new();
    for (place, row) in rows.iter().enumerate() {
        if let Some(entry) = &row.entry {
            places.insert(entry.id, place);
            if let Some(before) = entry.before() {
                first_child.entry(before).or_insert(place);
            }
        }
    }
    // For each message, the place of the next one that still exists.
    let mut following = vec![rows.len(); log.len() + 1];
    for (number, message) in log.iter().enumerate().rev() {
        following[number] = places.get(&message.id).copied().unwrap_or(following[number + 1]);
    }
    let mut after = 0;
    let mut back: Vec<(usize, TranscriptRow)> = Vec::new();
    let mut gaps: HashMap<usize, u64> = HashMap::new();
    for (number, message) in log.iter().enumerate() {
        if let Some(place) = places.get(&message.id) {
            after = after.max(place + 1);
        } else if let Some(words) = &message.words {
            let place = first_child.get(&message.id).copied().unwrap_or(following[number]).max(after);
            // The unreadable piece lies between the message before and the place where this one goes.
            if let Some((_, pieces)) = torn.range_mut(after..=place).rev().find(|(_, pieces)| **pieces > 0) {
                *pieces -= 1;
            }
            back.push((place, row_of(message, words, native)));
            done.put_back += 1;
            *gaps.entry(place).or_default() += 1;
            after = place;
        }
    }
    // A single message missing at the end was never written; any other gap means damage.
    let end = rows.len();
    let destroyed = gaps.iter().filter(|(place, count)| **place < end || **count > 1);
    done.lost_neighbours = destroyed.map(|(_, count)| count).sum();
    let mut merged = Vec::with_capacity(rows.len() + back.len());
    let mut back = back.into_iter().peekable();
    for (place, row) in rows.into_iter().enumerate() {
        while let Some((_, message)) = back.next_if(|(at, _)| *at <= place) {
            merged.push(message);
        }
        merged.push(row);
    }
    merged.extend(back.map(|(_, message)| message));
    done.unaccounted = torn.values().sum();
    merged
}

/// Links an entry whose parent does not exist, or comes later, to the entry before it.
fn relink(mut rows: Vec<TranscriptRow>, log: &[LoggedMessage], done: &mut MendCounts) -> Vec<TranscriptRow> {
    let ours: HashSet<Uuid> = log.iter().map(|message| message.id).collect();
    let there: HashSet<Uuid> = rows.iter().filter_map(TranscriptRow::id).collect();
    let (mut seen, mut last) = (HashSet::new(), None);
    for row in &mut rows {
        let Some(entry) = &row.entry else { continue };
        let (id, before) = (entry.id, entry.before());
        if before.is_none_or(|before| !seen.contains(&before)) && (before, last) != (None, None) {
            done.notes +=
                u64::from(before.is_some_and(|before| !ours.contains(&before) && !there.contains(&before)));
            row.hang(last);
        }
        seen.insert(id);
        last = Some(id);
    }
    rows
}

fn thread_of(rows: &[TranscriptRow]) -> EntryChain<'_> {
    EntryChain::of(rows.iter().filter_map(|row| row.entry.as_deref()))
}

fn unpaired(rows: &[TranscriptRow]) -> UnpairedToolCalls {
    let thread = thread_of(rows);
    thread.unpaired(&thread.known())
}

fn is_whole(rows: &[TranscriptRow], log: &[LoggedMessage]) -> bool {
    let known = thread_of(rows).known();
    let there: HashSet<Uuid> = rows.iter().filter_map(TranscriptRow::id).collect();
    log.iter().filter(|message| there.contains(&message.id)).all(|message| known.contains(&message.id))
}

/// A fallback for links that lead elsewhere: the messages of the log in their order, each linked to the one before.
/// Program entries stay between them, and the entries after the last message follow.
fn in_one_line(rows: Vec<TranscriptRow>, log: &[LoggedMessage]) -> Vec<TranscriptRow> {
    let order: HashMap<Uuid, usize> =
        log.iter().enumerate().map(|(number, message)| (message.id, number)).collect();
    let number = |row: &TranscriptRow| row.entry.as_ref().and_then(|entry| order.get(&entry.id)).copied();
    let end = rows.iter().rposition(|row| number(row).is_some()).map_or(0, |place| place + 1);
    let (mut kept, mut at) = (Vec::new(), 0);
    for (place, row) in rows.into_iter().enumerate() {
        match (&row.entry, number(&row)) {
            (_, Some(number)) => {
                at = at.max(number);
                kept.push(((number, 0, place), row));
            }
            (None, None) => kept.push(((at, 1, place), row)),
            (Some(entry), None) if place >= end || entry.speaker == EntryAuthor::Program => {
                kept.push(((at, 1, place), row));
            }
            (Some(_), None) => {}
        }
    }
    kept.sort_by_key(|(key, _)| *key);
    let mut last = None;
    let mut rows: Vec<TranscriptRow> = kept.into_iter().map(|(_, row)| row).collect();
    for row in &mut rows {
        let Some(entry) = &row.entry else { continue };
        let (id, before) = (entry.id, entry.before());
        if before != last {
            row.hang(last);
        }
        last = Some(id);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ExpectedMessage,
        claude::{entry::MAX_PIECES, transcript},
    };
    use serde_json::{Value, json};

    fn id(number: usize) -> Uuid {
        Uuid::from_u128(number as u128 + 1)
    }

    fn entry(number: usize, parent: Option<usize>, kind: &str, content: Value) -> Value {
        json!({"type": kind, "uuid": id(number), "parentUuid": parent.map(id), "message": {"content": content}})
    }

    fn prompt(number: usize, parent: Option<usize>) -> Value {
        entry(number, parent, "user", json!("hello"))
    }

    fn call(number: usize, parent: usize, call: &str) -> Value {
        entry(number, Some(parent), "assistant", json!([{"type": "tool_use", "id": call}]))
    }

    fn mended(lines: &[Value], log: &[usize]) -> MendedTranscript {
        let native = TranscriptIdentity { id: id(900), cwd: "/workspace".into() };
        let log: Vec<LoggedMessage> = log
            .iter()
            .map(|number| LoggedMessage { id: id(*number), at: String::new(), words: None })
            .collect();
        mend(&mut lines.iter().map(|line| line.to_string().into_bytes()), &log, &native)
    }

    /// Whether the repaired transcript is sound and has these messages.
    fn is_sound(mended: &MendedTranscript, known: &[usize]) -> bool {
        let expected: Vec<ExpectedMessage> = known
            .iter()
            .map(|number| ExpectedMessage { id: id(*number), prompt: true, digest: None })
            .collect();
        transcript::survey(&mut mended.lines.iter().cloned(), &expected).is_sound
    }

    #[test]
    fn the_rows_of_a_transcript_are_limited() {
        let lines: Vec<Value> =
            [prompt(1, None)].into_iter().chain(vec![json!({}); MAX_PIECES + 9]).collect();
        let mended = mended(&lines, &[1]);
        assert_eq!(
            (mended.lines.len(), mended.repairs),
            (MAX_PIECES, vec!["10 unreadable pieces taken out".to_owned()])
        );
    }

    /// Each call links to an entry that does not exist, so only the last one is known until the links are repaired.
    #[test]
    fn calls_that_only_repaired_links_connect_are_limited_as_well() {
        let calls = |count: usize| {
            let calls = (0..count).map(|n| call(n, n + 100_000, &format!("c{n}")));
            let mended = mended(&calls.chain([prompt(50_000, Some(99_000))]).collect::<Vec<_>>(), &[50_000]);
            (mended.rebuilt, mended.lines.len())
        };
        assert_eq!(calls(MAX_UNPAIRED), (false, 2 * MAX_UNPAIRED + 1));
        assert_eq!(calls(MAX_UNPAIRED + 1), (true, 0));
    }

    #[test]
    fn a_limited_number_of_calls_of_our_log_is_answered() {
        let native = TranscriptIdentity { id: id(900), cwd: "/workspace".into() };
        let blocks: Vec<Value> =
            (0..MAX_UNPAIRED + 5).map(|n| json!({"type": "tool_use", "id": format!("c{n}")})).collect();
        let said = entry(1, None, "assistant", json!(blocks)).to_string();
        let logged = |number, words| LoggedMessage { id: id(number), at: String::new(), words: Some(words) };
        let log = [logged(1, LoggedContent::Line(said)), logged(2, LoggedContent::Prompt(json!("go on")))];
        let mended = mend(&mut std::iter::empty(), &log, &native);
        assert_eq!((mended.rebuilt, mended.lines.len()), (true, 2 + MAX_UNPAIRED));
    }

    #[test]
    fn a_repeated_call_is_answered_once() {
        let lines = [prompt(1, None), call(2, 1, "c"), call(3, 2, "c"), prompt(4, Some(3))];
        let mended = mended(&lines, &[1, 4]);
        assert_eq!(mended.repairs, ["1 calls without a recorded outcome marked as unknown"]);
        assert!(is_sound(&mended, &[1, 4]));
    }

    #[test]
    fn each_call_of_a_message_is_answered_before_what_follows_it() {
        let mut blocks: Vec<Value> = (2..6).map(|n| call(n, n - 1, &format!("c{n}"))).collect();
        blocks.iter_mut().for_each(|block| block["message"]["id"] = json!("m"));
        blocks.insert(2, json!({"type": "note"}));
        let lines: Vec<Value> =
            [prompt(1, None)].into_iter().chain(blocks).chain([prompt(6, Some(5))]).collect();
        let mended = mended(&lines, &[1, 6]);
        let read: Vec<Value> =
            mended.lines.iter().map(|line| serde_json::from_slice(line).expect("JSON")).collect();
        let answers: Vec<&str> =
            read.iter().filter_map(|row| row["message"]["content"][0]["tool_use_id"].as_str()).collect();
        assert_eq!(answers, ["c2", "c3", "c4", "c5"]);
        assert_eq!(
            (read[9]["message"]["content"][0]["tool_use_id"].as_str(), read[10]["uuid"].as_str()),
            (Some("c5"), Some(id(6).to_string().as_str()))
        );
        assert!(is_sound(&mended, &[1, 6]));
    }

    #[test]
    fn the_child_of_a_removed_first_outcome_has_no_parent() {
        let result = entry(1, None, "user", json!([{"type": "tool_result", "tool_use_id": "c"}]));
        let mended = mended(&[result, prompt(2, Some(1)), prompt(3, Some(2))], &[2, 3]);
        assert_eq!(mended.lines.len(), 2);
        assert!(is_sound(&mended, &[2, 3]));
    }

    /// If both links are broken, `parentUuid` gets the new target.
    #[test]
    fn an_entry_with_two_links_that_lead_nowhere_is_hung_up_again() {
        let mut both = prompt(2, Some(700));
        both["logicalParentUuid"] = json!(id(800));
        let mended = mended(&[prompt(1, None), both], &[1, 2]);
        assert!(is_sound(&mended, &[1, 2]), "{:?}", mended.repairs);
        let last: Value = serde_json::from_slice(&mended.lines[1]).expect("JSON");
        assert_eq!(last["parentUuid"], json!(id(1)), "it does not begin anew");
    }
}
