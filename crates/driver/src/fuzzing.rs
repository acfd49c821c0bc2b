//! Properties that hold for any input: the bodies of the fuzz targets in `fuzz/`. Transcripts and lines come from the
//! sandbox and are untrusted. The tests below run each body on the inputs in `fuzz/corpus`.

use crate::{
    AgentDriver, AgentEvent, BuiltinDriver, ClaudeDriver, ExpectedMessage, LoggedContent, LoggedMessage,
    MendedTranscript, TranscriptIdentity, TranscriptSurvey, TurnTracker, turn_tracker::MAX_TASKS,
};
use ash_model::TurnId;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;
use std::sync::OnceLock;
use uuid::Uuid;

/// The log of the conversation whose damaged transcripts are in `tests/corpus/claude`.
const LOG: &str = include_str!("../../../tests/corpus/claude/log.jsonl");
/// The longest name of a call.
const MAX_CALL_NAME: usize = 256;

#[derive(Deserialize)]
struct LoggedRow {
    id: Uuid,
    prompt: Option<Value>,
    line: Option<String>,
}

fn log() -> &'static [LoggedMessage] {
    static MESSAGES: OnceLock<Vec<LoggedMessage>> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let rows = LOG.lines().map(|line| serde_json::from_str(line).expect("a message of the log"));
        rows.map(|LoggedRow { id, prompt, line }| LoggedMessage {
            id,
            at: "2026-11-16T00:00:00.000Z".to_owned(),
            words: prompt.map(LoggedContent::Prompt).or(line.map(LoggedContent::Line)),
        })
        .collect()
    })
}

fn expected() -> &'static [ExpectedMessage] {
    static MESSAGES: OnceLock<Vec<ExpectedMessage>> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let digest = |line: &str| ClaudeDriver.message_fingerprint(line).expect("a message").digest;
        let expected = log().iter().map(|LoggedMessage { id, words, .. }| match words {
            Some(LoggedContent::Line(line)) => {
                ExpectedMessage { id: *id, prompt: false, digest: Some(digest(line)) }
            }
            Some(LoggedContent::Prompt(_)) | None => ExpectedMessage { id: *id, prompt: true, digest: None },
        });
        expected.collect()
    })
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec)
}

fn survey(transcript: &[u8]) -> TranscriptSurvey {
    ClaudeDriver.survey(&mut lines(transcript), expected())
}

/// As before a start: only missing messages come with their content.
fn mend(transcript: &[u8], missing: &[usize]) -> MendedTranscript {
    let given = |(number, message): (usize, &LoggedMessage)| LoggedMessage {
        words: message.words.clone().filter(|_| missing.contains(&number)),
        ..message.clone()
    };
    let log: Vec<LoggedMessage> = log().iter().enumerate().map(given).collect();
    let native = TranscriptIdentity { id: Uuid::from_u128(0xaa), cwd: "/workspace".into() };
    ClaudeDriver.mend(&mut lines(transcript), &log, &native)
}

/// Surveys and mends a Claude Code transcript. Afterwards it has every message of our log and needs no more repair.
pub fn transcript(input: &[u8]) {
    let found = survey(input);
    if found.is_sound && found.resumed.is_found {
        assert!(found.missing.is_empty());
        return;
    }
    let mended = mend(input, &found.missing);
    assert!(mended.rebuilt || !mended.repairs.is_empty(), "what was done is said");
    for line in &mended.lines {
        assert!(!line.contains(&b'\n') && !line.contains(&0), "{}", String::from_utf8_lossy(line));
        assert!(serde_json::from_slice::<IgnoredAny>(line).is_ok(), "{}", String::from_utf8_lossy(line));
    }
    let after = survey(&mended.lines.join(&b'\n'));
    let done = &mended.repairs;
    assert!(after.is_sound && after.resumed.is_found && after.missing.is_empty(), "{after:?} after {done:?}");
}

/// Parses agent output line by line. The first byte selects the agent.
pub fn agent_lines(input: &[u8]) {
    let Some((agent, said)) = input.split_first() else { return };
    let agent: &dyn AgentDriver = if agent % 2 == 0 { &ClaudeDriver } else { &BuiltinDriver };
    let mut tracker = TurnTracker::default();
    tracker.expect(TurnId(Uuid::from_u128(1)));
    for (number, line) in (2..).zip(lines(said)) {
        for event in agent.parse_line(&mut tracker, &line) {
            check_event(&event);
            if matches!(event, AgentEvent::TurnEnded { .. }) {
                tracker.expect(TurnId(Uuid::from_u128(number)));
            }
        }
        assert!(tracker.tasks.len() <= MAX_TASKS && tracker.unattended.len() <= MAX_TASKS);
        agent.reported_usage(&line);
        if let Ok(text) = std::str::from_utf8(&line) {
            agent.message_fingerprint(text);
            agent.background_task(text);
            for (id, tool) in agent.calls(text) {
                let tool = tool.unwrap_or_default();
                assert!(id.len() <= MAX_CALL_NAME && tool.len() <= MAX_CALL_NAME);
                assert!(tool.chars().all(|char| char.is_ascii_graphic()), "{tool:?} can mislead a reader");
            }
        }
    }
    tracker.stop_waiting_for_background();
    assert!(tracker.unattended.len() <= MAX_TASKS);
}

/// The log stores events as lines.
fn check_event(event: &AgentEvent) {
    match event {
        AgentEvent::Delta { line } | AgentEvent::Message { line } => {
            assert!(!line.contains(['\n', '\r']), "{line:?}");
            assert!(serde_json::from_str::<IgnoredAny>(line).is_ok(), "{line:?} is no JSON");
        }
        AgentEvent::Ready { .. }
        | AgentEvent::PermissionRequested { .. }
        | AgentEvent::MemoryCompacted
        | AgentEvent::Steered { .. }
        | AgentEvent::RequestWithdrawn { .. }
        | AgentEvent::ToolRequested { .. }
        | AgentEvent::ToolServerAsked { .. }
        | AgentEvent::SettingAnswered { .. }
        | AgentEvent::TurnEnded { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    fn every_input(folder: &Path, target: fn(&[u8])) -> usize {
        let inputs = std::fs::read_dir(folder).expect("a corpus");
        let inputs: Vec<PathBuf> = inputs.map(|input| input.expect("an input").path()).collect();
        for input in &inputs {
            // The last printed input is the one that fails.
            println!("{}", input.display());
            target(&std::fs::read(input).expect("readable"));
        }
        inputs.len()
    }

    #[test]
    fn what_holds_for_any_bytes_holds_for_those_of_the_corpus() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert!(every_input(&root.join("tests/corpus/claude"), transcript) >= 10);
        assert!(every_input(&root.join("fuzz/corpus/transcript"), transcript) >= 10);
        assert!(every_input(&root.join("fuzz/corpus/agent_lines"), agent_lines) >= 10);
    }
}
