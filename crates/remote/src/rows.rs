//! The rows of a restored session, made from its manifest and its log.

use crate::{Error, FoldLog, Result};
use ash_model::{
    Event, EventSeq, Fact, SessionId, SessionOptions, Timestamp,
    embedded_log::EventLine,
    remote::{ManifestCheckpoint, SessionManifest},
};
use ash_store::{Checkpoint, SessionSummary, TurnRow};
use std::collections::{BTreeMap, BTreeSet};

/// The session's own row and its turns.
pub(crate) fn folded(
    fold_log: FoldLog,
    manifest: &SessionManifest,
    lines: &[EventLine],
) -> Result<(SessionSummary, Vec<TurnRow>)> {
    let folded = fold_log(manifest.base.unwrap_or(0), &events(&manifest.session, lines)?);
    let mut summary = folded.summary;
    if manifest.base.is_some() {
        // None of a fork's own events contains what it inherited from its parent.
        summary.title = manifest.title.clone();
        summary.last_text = manifest.last_text.clone();
        summary.turns = manifest.turns;
    }
    Ok((summary, folded.turns))
}

/// The rows of all its checkpoints. A checkpoint without a manifest was removed, and only its log counts.
pub(crate) fn checkpoints(
    manifest: &SessionManifest,
    lines: &[EventLine],
    kept: &BTreeSet<EventSeq>,
    now: Timestamp,
) -> Result<Vec<Checkpoint>> {
    let mut all: Vec<Checkpoint> =
        manifest.initial_checkpoints.iter().map(|first| row(manifest, first, now)).collect();
    let newest = manifest.checkpoint.as_ref();
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| line.kind == "saved") {
        let Fact::Saved(saved) = event(&manifest.session, line)?.fact else { continue };
        // The end of its turn is recorded with it and belongs to it.
        let after = lines.get(number + 1).filter(|after| after.kind == "finished");
        let ends = after.map(|after| event(&manifest.session, after)).transpose()?;
        let ends = ends.filter(
            |after| matches!(&after.fact, Fact::Finished { checkpoint, .. } if *checkpoint == Some(saved.number)),
        );
        // The manifest's name contains the event of the turn's end, or of the checkpoint if the turn waited for the
        // upload.
        let seqs = ends.map(|after| after.seq).into_iter().chain([line.seq]);
        let there = seqs.clone().find(|seq| kept.contains(seq));
        let seq = there.or_else(|| seqs.last()).unwrap_or(line.seq);
        if all.iter().any(|known| known.number == saved.number) {
            continue;
        }
        let known = newest.filter(|newest| newest.number == saved.number);
        all.push(Checkpoint {
            workspace: manifest.workspace,
            number: saved.number,
            turn: saved.turn,
            seq,
            tree: saved.tree,
            consistency: saved.consistency,
            salvage: saved.salvage,
            mid_turn: saved.mid_turn,
            files: saved.files,
            bytes: saved.bytes,
            skipped: known.map_or(Some(saved.skipped.len() as u64), |known| known.skipped),
            unsettled: known.and_then(|known| known.unsettled),
            concurrent_turns: saved.concurrent_turns,
            rewound_to: saved.rewound_to,
            removed_at: there.is_none().then_some(now),
            uploaded_at: Some(now),
            at: line.at,
        });
    }
    Ok(all)
}

fn row(manifest: &SessionManifest, checkpoint: &ManifestCheckpoint, now: Timestamp) -> Checkpoint {
    Checkpoint {
        workspace: manifest.workspace,
        number: checkpoint.number,
        turn: checkpoint.turn,
        seq: checkpoint.seq,
        tree: checkpoint.tree.clone(),
        consistency: checkpoint.consistency,
        salvage: checkpoint.salvage,
        mid_turn: checkpoint.mid_turn,
        files: checkpoint.files,
        bytes: checkpoint.bytes,
        skipped: checkpoint.skipped,
        unsettled: checkpoint.unsettled,
        concurrent_turns: checkpoint.concurrent_turns.clone(),
        rewound_to: checkpoint.rewound_to,
        removed_at: None,
        uploaded_at: Some(now),
        at: checkpoint.at,
    }
}

/// The events that affect the state: not the pieces of a streamed answer.
pub(crate) fn events(id: &SessionId, lines: &[EventLine]) -> Result<Vec<Event>> {
    lines.iter().filter(|line| line.kind != "said").map(|line| event(id, line)).collect()
}

/// Decodes an event. The decoder's message is logged and not returned, because it may quote the event.
fn event(id: &SessionId, line: &EventLine) -> Result<Event> {
    let fact = Fact::decode(&line.kind, line.json.clone()).map_err(|error| {
        tracing::warn!(session = %id, seq = line.seq, %error, "an event from the object store cannot be read");
        damaged(id, &format!("event {} cannot be read", line.seq))
    })?;
    Ok(Event { seq: line.seq, turn: line.turn, at: line.at, fact })
}

/// One line for each event after the first and up to the second. Events that no object has become `missing`.
pub(crate) fn filled(
    mut lines: BTreeMap<EventSeq, EventLine>,
    (after, upto): (EventSeq, EventSeq),
    at: Timestamp,
) -> Vec<EventLine> {
    let missing = |seq| EventLine {
        seq,
        turn: None,
        at,
        kind: Fact::Missing.kind().to_owned(),
        json: Fact::Missing.encode(),
    };
    (after + 1..=upto).map(|seq| lines.remove(&seq).unwrap_or_else(|| missing(seq))).collect()
}

/// The options of a session, if an event has changed them.
pub(crate) fn last_options(events: &[EventLine]) -> Option<SessionOptions> {
    let last = events.iter().rev().find(|line| line.kind == "configured")?;
    match Fact::decode(&last.kind, last.json.clone()) {
        Ok(Fact::Configured { options, .. }) => Some(options),
        Ok(_) | Err(_) => None,
    }
}

pub(crate) fn parse_object<T: serde::de::DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        tracing::warn!(key, %error, "an object cannot be read");
        let place = format!("it cannot be read from line {}, column {} on", error.line(), error.column());
        let what = format!("{key} in the object store is not what was put there ({place})");
        Error::Damaged(format!("{what}: somebody else has changed it"))
    })
}

pub(crate) fn damaged(id: &SessionId, what: &str) -> Error {
    Error::Damaged(format!("session {id} cannot be brought back: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_reported_in_our_own_words() {
        let id = SessionId::parse("s").expect("an id");
        let line = |kind: &str| EventLine {
            seq: 7,
            turn: None,
            at: Timestamp(0),
            kind: kind.to_owned(),
            json: "{}".to_owned(),
        };
        let events = ["queued", "of-tomorrow"].map(|kind| event(&id, &line(kind)).expect_err(kind));
        let objects = [&b"{"[..], b"[]", b"{\"session\": 5}"]
            .map(|bytes| parse_object::<SessionManifest>("manifests/s/1", bytes).expect_err("damaged"));
        for error in events.into_iter().chain(objects) {
            let said = error.to_string();
            assert!(
                said.contains("event 7 cannot be read") || said.contains("from line 1, column"),
                "{said}"
            );
            for word in ["missing field", "invalid type", "expected", "unknown", "EOF", "at line"] {
                assert!(!said.contains(word), "{word}: {said}");
            }
        }
    }

    #[test]
    fn events_that_no_object_has_are_missing_and_the_log_stays_dense() {
        let line =
            |seq| EventLine { seq, turn: None, at: Timestamp(1), kind: "paused".into(), json: String::new() };
        let lines = [2, 3, 6].map(|seq| (seq, line(seq))).into();
        let filled = filled(lines, (1, 7), Timestamp(9));
        let kinds: Vec<_> = filled.iter().map(|line| (line.seq, line.kind.as_str())).collect();
        let expected =
            [(2, "paused"), (3, "paused"), (4, "missing"), (5, "missing"), (6, "paused"), (7, "missing")];
        assert_eq!(kinds, expected);
        assert_eq!(filled[2].json, r#"{"kind":"missing"}"#);
    }
}
