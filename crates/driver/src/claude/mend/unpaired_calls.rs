//! Pairs calls with their results: the real API refuses one without the other.

use super::{
    super::{entry::ClaudeEntry, transcript::UnpairedToolCalls},
    MAX_UNPAIRED, MendCounts,
    row::{SynthesizedEntry, TranscriptRow},
    unpaired,
};
use crate::TranscriptIdentity;
use serde_json::json;
use std::collections::{BTreeMap, HashMap, HashSet};
use uuid::Uuid;

/// The result that the model sees for a call without a recorded one.
const UNKNOWN: &str = "[The outcome of this call was not recorded and is unknown. Check whether it took effect before you make it again.]";

/// Adds an unknown result to a call without one, and removes a result without a call.
pub(super) fn pair_up(
    rows: Vec<TranscriptRow>,
    native: &TranscriptIdentity,
    done: &mut MendCounts,
) -> Vec<TranscriptRow> {
    let UnpairedToolCalls { mut calls, results } = unpaired(&rows);
    // Our own log may have more unpaired calls. A result is longer than a call, and no conversation needs more of them.
    calls.truncate(MAX_UNPAIRED);
    let kept = take_out(rows, results, done);
    let places = places_after(&kept, calls.iter().map(|(caller, _)| *caller));
    let mut answers: BTreeMap<usize, Vec<TranscriptRow>> = BTreeMap::new();
    let mut answered = HashSet::new();
    for (caller, call) in calls {
        let Some(place) = places.get(&caller) else { continue };
        let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, call.as_bytes());
        if !answered.insert(id) {
            continue;
        }
        let content =
            json!([{ "type": "tool_result", "tool_use_id": call, "is_error": true, "content": UNKNOWN }]);
        let message = json!({ "role": "user", "content": content });
        let mut answer = SynthesizedEntry::new(native, "user", id, message).row();
        answer.hang(Some(caller));
        answers.entry(*place).or_default().push(answer);
        done.answered += 1;
    }
    let mut paired = Vec::with_capacity(kept.len() + answered.len());
    for (place, mut row) in kept.into_iter().enumerate() {
        if let Some(answers) = answers.remove(&place) {
            row.hang(answers.last().and_then(TranscriptRow::id));
            paired.extend(answers);
        }
        paired.push(row);
    }
    paired
}

/// Entries that linked to a removed result link to the entry before it.
fn take_out(
    rows: Vec<TranscriptRow>,
    results: Vec<(Uuid, String)>,
    done: &mut MendCounts,
) -> Vec<TranscriptRow> {
    let results: HashSet<String> = results.into_iter().map(|(_, call)| call).collect();
    let mut instead: HashMap<Uuid, Option<Uuid>> = HashMap::new();
    let mut kept = Vec::with_capacity(rows.len());
    for mut row in rows {
        if let Some(entry) = &row.entry {
            let on = entry.before().and_then(|before| instead.get(&before)).copied();
            if !entry.results.is_empty() && entry.results.iter().all(|result| results.contains(result)) {
                done.dropped += 1;
                instead.insert(entry.id, on.unwrap_or(entry.before()));
                continue;
            }
            if let Some(on) = on {
                row.hang(on);
            }
        }
        kept.push(row);
    }
    kept
}

/// For each caller, the place of the entry that continues after its message. Iterates backwards, because a message may
/// have any number of blocks.
fn places_after(rows: &[TranscriptRow], callers: impl Iterator<Item = Uuid>) -> HashMap<Uuid, usize> {
    let callers: HashSet<Uuid> = callers.collect();
    let mut places = HashMap::with_capacity(callers.len());
    // The next entry that is not a result, and the next one after it that belongs to another message.
    let (mut next, mut beyond): (Option<(usize, &ClaudeEntry)>, Option<usize>) = (None, None);
    for (place, row) in rows.iter().enumerate().rev() {
        let Some(entry) = row.entry.as_deref() else { continue };
        let same = |next: &ClaudeEntry| entry.message.is_some() && next.message == entry.message;
        let after = match next {
            Some((_, next)) if same(next) => beyond,
            Some((next, _)) => Some(next),
            None => None,
        };
        if let Some(after) = after.filter(|_| callers.contains(&entry.id)) {
            places.insert(entry.id, after);
        }
        if entry.results.is_empty() {
            (next, beyond) = (Some((place, entry)), after);
        }
    }
    places
}
