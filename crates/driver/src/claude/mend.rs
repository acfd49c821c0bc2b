//! A transcript made whole again: what can be read of it stays as it is, what our own log has is put back where it
//! was, and what hung on something lost hangs on what came before. Whoever calls keeps the original.

use super::{
    entry::{self, Entry, Faults, Speaker},
    transcript::Thread,
};
use crate::{Logged, Mended, Native, Words};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use uuid::Uuid;

/// What the model is told of a call whose outcome nobody recorded.
const UNKNOWN: &str = "[The outcome of this call was not recorded and is unknown. Check whether it took effect before you make it again.]";

/// More calls without an outcome than this are no conversation.
const MOST_UNPAIRED: usize = 1000;

/// A line to be written, and the entry that it is, if it is one.
#[derive(Debug, Clone)]
struct Row {
    line: Vec<u8>,
    entry: Option<Entry>,
}

#[derive(Debug, Default)]
struct Done {
    put_back: u64,
    /// Of those, the ones that were lost together with what lay beside them, if anything did: nobody knows.
    beside: u64,
    relinked: u64,
    /// Links to entries that our log does not have.
    notes: u64,
    answered: u64,
    dropped: u64,
    repeated: u64,
    altered: u64,
}

pub(super) fn mend(lines: &mut dyn Iterator<Item = Vec<u8>>, log: &[Logged], native: &Native) -> Mended {
    let (rows, faults, torn, repeated) = read_all(lines);
    let thread = thread_of(&rows);
    let hopeless = thread.unpaired(&thread.known()).calls.len() > MOST_UNPAIRED;
    let spoken = |row: &&Row| row.entry.as_ref().is_some_and(|entry| entry.speaker != Speaker::Program);
    let rebuilt = hopeless || !rows.iter().any(|row| spoken(&row));
    // Notes to messages that are gone are notes to nothing.
    let rows = if rebuilt { Vec::new() } else { rows };
    let mut done = Done { repeated, ..Done::default() };
    let rows = forget_altered(rows, log, &mut done);
    let lost_messages = log.iter().filter(|message| message.words.is_none()).count();
    let there: HashSet<Uuid> = rows.iter().filter_map(|row| Some(row.entry.as_ref()?.id)).collect();
    let lost_messages =
        lost_messages - log.iter().filter(|m| m.words.is_none() && there.contains(&m.id)).count();
    let (rows, unaccounted) = put_back(rows, log, native, torn, &mut done);
    let linked = relink(rows.clone(), log, &mut done);
    let linked = if is_whole(&linked, log) { linked } else { in_one_line(rows, log, &mut done) };
    let rows = pair_up(linked, native, &mut done);
    let mut lost = Vec::new();
    if lost_messages > 0 {
        lost.push(format!("{lost_messages} messages of the conversation"));
    }
    if rebuilt {
        lost.push("what the agent had noted beside the messages".to_owned());
    } else {
        // A note that was torn is one that somebody hung on.
        match unaccounted.max(done.notes) {
            0 => {}
            1 => lost.push("a note of the agent beside the messages".to_owned()),
            notes => lost.push(format!("{notes} notes of the agent beside the messages")),
        }
        match done.beside {
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
    let repairs = repairs(&faults, &done);
    Mended { lines: rows.into_iter().map(|row| row.line).collect(), rebuilt, repairs, lost }
}

fn repairs(faults: &Faults, done: &Done) -> Vec<String> {
    [
        (done.put_back, "messages put back from the log"),
        (done.relinked, "links mended"),
        (done.answered, "calls without a recorded outcome marked as unknown"),
        (done.dropped, "outcomes of unknown calls taken out"),
        (done.repeated, "repeated entries taken out"),
        (done.altered, "altered messages taken out"),
        (faults.unreadable, "unreadable pieces taken out"),
        (faults.together, "entries given a line of their own"),
        (faults.nuls, "lines freed of bytes that are no text"),
        (faults.separators, "lines freed of line separators"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect()
}

/// What can be read, what was wrong, and before which row each unreadable piece stood. One that ends the file was being
/// written when somebody died: nothing else was to come of it.
fn read_all(lines: &mut dyn Iterator<Item = Vec<u8>>) -> (Vec<Row>, Faults, BTreeMap<usize, u64>, u64) {
    let (mut rows, mut faults, mut torn) = (Vec::<Row>::new(), Faults::default(), BTreeMap::new());
    let (mut seen, mut repeated) = (HashSet::new(), 0);
    let mut tail_torn = 0;
    for line in lines {
        let (pieces, wrong) = entry::pieces(&line);
        faults += wrong;
        *torn.entry(rows.len()).or_default() += wrong.unreadable;
        tail_torn = if pieces.is_empty() { tail_torn + wrong.unreadable } else { 0 };
        for piece in pieces {
            let entry = entry::read(&piece).flatten();
            if entry.as_ref().is_some_and(|entry| !seen.insert(entry.id)) {
                repeated += 1;
                continue;
            }
            rows.push(Row { line: piece, entry });
        }
    }
    if tail_torn == 1 {
        torn.remove(&rows.len());
    }
    (rows, faults, torn, repeated)
}

/// What somebody changed is taken out, and comes back as it was said.
fn forget_altered(mut rows: Vec<Row>, log: &[Logged], done: &mut Done) -> Vec<Row> {
    let said: HashMap<Uuid, u64> = log
        .iter()
        .filter_map(|message| match &message.words {
            Some(Words::Line(line)) => Some((message.id, super::spoken(line)?.digest)),
            Some(Words::Prompt(_)) | None => None,
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

/// Puts what the log has and the transcript does not before what followed it. Each message that comes back accounts for
/// one unreadable piece at its place; the number of the others is returned.
fn put_back(
    rows: Vec<Row>,
    log: &[Logged],
    native: &Native,
    mut torn: BTreeMap<usize, u64>,
    done: &mut Done,
) -> (Vec<Row>, u64) {
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
    // For each message, the place of the next one that is still there.
    let mut following = vec![rows.len(); log.len() + 1];
    for (number, message) in log.iter().enumerate().rev() {
        following[number] = places.get(&message.id).copied().unwrap_or(following[number + 1]);
    }
    let mut after = 0;
    let mut back: Vec<(usize, Row)> = Vec::new();
    let mut gaps: HashMap<usize, u64> = HashMap::new();
    for (number, message) in log.iter().enumerate() {
        if let Some(place) = places.get(&message.id) {
            after = after.max(place + 1);
        } else if let Some(words) = &message.words {
            let place = first_child.get(&message.id).copied().unwrap_or(following[number]).max(after);
            // It was one of those between the message before and the place where it comes back.
            if let Some((_, pieces)) = torn.range_mut(after..=place).rev().find(|(_, pieces)| **pieces > 0) {
                *pieces -= 1;
            }
            back.push((place, row_of(message, words, native)));
            done.put_back += 1;
            *gaps.entry(place).or_default() += 1;
            after = place;
        }
    }
    // One that is missing at the end was never written; anywhere else something was destroyed.
    let end = rows.len();
    let destroyed = gaps.iter().filter(|(place, count)| **place < end || **count > 1);
    done.beside = destroyed.map(|(_, count)| count).sum();
    let mut merged = Vec::with_capacity(rows.len() + back.len());
    let mut back = back.into_iter().peekable();
    for (place, row) in rows.into_iter().enumerate() {
        while let Some((_, message)) = back.next_if(|(at, _)| *at <= place) {
            merged.push(message);
        }
        merged.push(row);
    }
    merged.extend(back.map(|(_, message)| message));
    (merged, torn.values().sum())
}

/// An entry as the program would have written it, as far as it needs it.
fn row_of(message: &Logged, words: &Words, native: &Native) -> Row {
    let said = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_default();
    let mut value = match words {
        Words::Prompt(content) => {
            json!({ "type": "user", "message": { "role": "user", "content": content } })
        }
        Words::Line(line) => {
            let mut said = said(line);
            let mut value = json!({ "type": said["type"], "message": said["message"] });
            if let Some(result) = said.get_mut("tool_use_result") {
                value["toolUseResult"] = result.take();
            }
            value
        }
    };
    value["uuid"] = json!(message.id);
    value["timestamp"] = json!(message.at);
    row(value, native)
}

fn row(mut value: Value, native: &Native) -> Row {
    for (name, own) in [
        ("parentUuid", Value::Null),
        ("isSidechain", json!(false)),
        ("userType", json!("external")),
        ("cwd", json!(native.cwd)),
        ("sessionId", json!(native.id)),
    ] {
        value[name] = own;
    }
    let line = value.to_string().into_bytes();
    let entry = entry::read(&line).flatten();
    Row { line, entry }
}

fn hang(row: &mut Row, on: Uuid) {
    let Some(entry) = &mut row.entry else { return };
    let Ok(mut value) = serde_json::from_slice::<Value>(&row.line) else { return };
    let name = if entry.logical.is_some() { "logicalParentUuid" } else { "parentUuid" };
    if entry.logical.is_some() {
        entry.logical = Some(on);
    } else {
        entry.parent = Some(on);
    }
    value[name] = json!(on);
    row.line = value.to_string().into_bytes();
}

/// What names an entry that nobody has, or that comes later, hangs on the one before it.
fn relink(mut rows: Vec<Row>, log: &[Logged], done: &mut Done) -> Vec<Row> {
    let ours: HashSet<Uuid> = log.iter().map(|message| message.id).collect();
    let there: HashSet<Uuid> = rows.iter().filter_map(|row| Some(row.entry.as_ref()?.id)).collect();
    let (mut seen, mut last) = (HashSet::new(), None);
    for row in &mut rows {
        let Some(Entry { id, parent, logical, .. }) = row.entry.clone() else { continue };
        let before = parent.or(logical);
        if before.is_none_or(|before| !seen.contains(&before)) && (before, last) != (None, None) {
            done.notes +=
                u64::from(before.is_some_and(|before| !ours.contains(&before) && !there.contains(&before)));
            done.relinked += 1;
            match last {
                Some(last) => hang(row, last),
                None => unhang(row),
            }
        }
        seen.insert(id);
        last = Some(id);
    }
    rows
}

fn thread_of(rows: &[Row]) -> Thread {
    let mut thread = Thread::default();
    rows.iter().filter_map(|row| row.entry.clone()).for_each(|entry| thread.add(entry));
    thread
}

fn is_whole(rows: &[Row], log: &[Logged]) -> bool {
    let known = thread_of(rows).known();
    let there: HashSet<Uuid> = rows.iter().filter_map(|row| Some(row.entry.as_ref()?.id)).collect();
    log.iter().filter(|message| there.contains(&message.id)).all(|message| known.contains(&message.id))
}

/// Where links lead elsewhere: what the log has, in its order, each hanging on the one before, with the program's own
/// notes between them, and what came after the last of them.
fn in_one_line(rows: Vec<Row>, log: &[Logged], done: &mut Done) -> Vec<Row> {
    let order: HashMap<Uuid, usize> =
        log.iter().enumerate().map(|(number, message)| (message.id, number)).collect();
    let number = |row: &Row| row.entry.as_ref().and_then(|entry| order.get(&entry.id)).copied();
    let end = rows.iter().rposition(|row| number(row).is_some()).map_or(0, |place| place + 1);
    let (mut kept, mut at) = (Vec::new(), 0);
    for (place, row) in rows.into_iter().enumerate() {
        match (&row.entry, number(&row)) {
            (_, Some(number)) => {
                at = at.max(number);
                kept.push(((number, 0, place), row));
            }
            (None, None) => kept.push(((at, 1, place), row)),
            (Some(entry), None) if place >= end || entry.speaker == Speaker::Program => {
                kept.push(((at, 1, place), row));
            }
            (Some(_), None) => {}
        }
    }
    kept.sort_by_key(|(key, _)| *key);
    let mut last = None;
    let mut rows: Vec<Row> = kept.into_iter().map(|(_, row)| row).collect();
    for row in &mut rows {
        let Some(entry) = &row.entry else { continue };
        let (id, before) = (entry.id, entry.before());
        match last {
            Some(last) if before != Some(last) => {
                done.relinked += 1;
                hang(row, last);
            }
            None if before.is_some() => {
                done.relinked += 1;
                unhang(row);
            }
            _ => {}
        }
        last = Some(id);
    }
    rows
}

fn unhang(row: &mut Row) {
    let Some(entry) = &mut row.entry else { return };
    let Ok(mut value) = serde_json::from_slice::<Value>(&row.line) else { return };
    (entry.parent, entry.logical) = (None, None);
    value["parentUuid"] = Value::Null;
    value.as_object_mut().and_then(|object| object.remove("logicalParentUuid"));
    row.line = value.to_string().into_bytes();
}

/// A call that was not answered is answered as unknown; an answer to no call is taken out.
fn pair_up(rows: Vec<Row>, native: &Native, done: &mut Done) -> Vec<Row> {
    let thread = thread_of(&rows);
    let unpaired = thread.unpaired(&thread.known());
    let mut instead: HashMap<Uuid, Uuid> = HashMap::new();
    let results: HashSet<&str> = unpaired.results.iter().map(|(_, call)| call.as_str()).collect();
    let mut kept = Vec::with_capacity(rows.len());
    for mut row in rows {
        let Some(entry) = &row.entry else {
            kept.push(row);
            continue;
        };
        if !entry.results.is_empty() && entry.results.iter().all(|result| results.contains(result.as_str())) {
            done.dropped += 1;
            if let Some(before) = entry.before() {
                instead.insert(entry.id, instead.get(&before).copied().unwrap_or(before));
            }
            continue;
        }
        if let Some(on) = entry.before().and_then(|before| instead.get(&before)).copied() {
            hang(&mut row, on);
        }
        kept.push(row);
    }
    for (caller, call) in unpaired.calls {
        let Some(place) = place_after(&kept, caller) else { continue };
        let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, call.as_bytes());
        let content =
            json!([{ "type": "tool_result", "tool_use_id": call, "is_error": true, "content": UNKNOWN }]);
        let mut answer = row(
            json!({ "type": "user", "uuid": id, "message": { "role": "user", "content": content } }),
            native,
        );
        hang(&mut answer, caller);
        if let Some(next) = kept.get_mut(place) {
            hang(next, id);
        }
        kept.insert(place, answer);
        done.answered += 1;
    }
    kept
}

/// Before the entry that goes on after the message of this call.
fn place_after(rows: &[Row], caller: Uuid) -> Option<usize> {
    let at = |id: Uuid| rows.iter().position(|row| row.entry.as_ref().is_some_and(|entry| entry.id == id));
    let message = rows[at(caller)?].entry.as_ref()?.message.clone();
    let block = |entry: &Entry| {
        entry.id == caller || (message.is_some() && entry.message == message) || !entry.results.is_empty()
    };
    let from = at(caller)?;
    rows[from..]
        .iter()
        .position(|row| row.entry.as_ref().is_some_and(|entry| !block(entry)))
        .map(|n| from + n)
}
