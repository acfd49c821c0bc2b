//! Damaged transcripts of Claude Code (`tests/corpus/claude`): the driver repairs each as far as possible and reports
//! what is lost. Random damage follows: the report must name everything that is missing afterwards.

use ash_driver::{
    AgentDriver, ExpectedMessage, LoggedContent, LoggedMessage, MendedTranscript, TranscriptIdentity,
    TranscriptSurvey, driver,
};
use ash_model::AgentRuntime;
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use uuid::Uuid;

#[derive(Debug, Deserialize)]
struct Case {
    tier: String,
    lost: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Said {
    id: Uuid,
    prompt: Option<Value>,
    line: Option<String>,
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/claude")
}

fn log() -> Vec<Said> {
    let text = std::fs::read_to_string(corpus().join("log.jsonl")).expect("a log");
    text.lines().map(|line| serde_json::from_str(line).expect("a message")).collect()
}

fn native() -> TranscriptIdentity {
    TranscriptIdentity { id: Uuid::from_u128(0xaa), cwd: "/workspace".into() }
}

fn claude() -> Box<dyn AgentDriver> {
    driver(AgentRuntime::Claude)
}

fn expected(log: &[Said]) -> Vec<ExpectedMessage> {
    log.iter()
        .map(|said| ExpectedMessage {
            id: said.id,
            prompt: said.prompt.is_some(),
            digest: said
                .line
                .as_ref()
                .map(|line| claude().message_fingerprint(line).expect("a message").digest),
        })
        .collect()
}

fn lines(transcript: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    transcript.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec)
}

fn survey(transcript: &[u8], log: &[Said]) -> TranscriptSurvey {
    claude().survey(&mut lines(transcript), &expected(log))
}

fn mend(transcript: &[u8], log: &[Said], missing: &[usize]) -> MendedTranscript {
    let logged: Vec<LoggedMessage> = log
        .iter()
        .enumerate()
        .map(|(number, said)| {
            let prompt = said.prompt.clone().map(LoggedContent::Prompt);
            let words = prompt.or_else(|| said.line.clone().map(LoggedContent::Line));
            let words = words.filter(|_| missing.contains(&number));
            LoggedMessage { id: said.id, at: "2026-11-16T00:00:00.000Z".into(), words }
        })
        .collect();
    claude().mend(&mut lines(transcript), &logged, &native())
}

/// The result of a resume with this transcript.
fn resume(transcript: &[u8], log: &[Said]) -> (&'static str, Vec<String>, Vec<u8>) {
    let found = survey(transcript, log);
    if found.is_sound && found.resumed.is_found {
        return ("native", Vec::new(), transcript.to_vec());
    }
    let mended = mend(transcript, log, &found.missing);
    let tier = if mended.rebuilt { "rebuilt" } else { "repaired" };
    assert!(mended.rebuilt || !mended.repairs.is_empty(), "what was done is said");
    let mut bytes = mended.lines.join(&b'\n');
    bytes.push(b'\n');
    (tier, mended.lost, bytes)
}

#[test]
fn each_transcript_reaches_its_tier_and_names_its_losses() {
    let cases = std::fs::read_to_string(corpus().join("cases.json")).expect("cases");
    let cases: BTreeMap<String, Case> = serde_json::from_str(&cases).expect("cases");
    assert!(cases.len() >= 25);
    let log = log();
    let mut wrong = Vec::new();
    for (name, case) in &cases {
        let transcript = std::fs::read(corpus().join(format!("{name}.jsonl"))).unwrap_or_default();
        let (tier, lost, mended) = resume(&transcript, &log);
        if (tier, &lost) != (case.tier.as_str(), &case.lost) {
            wrong.push(format!("{name}: {tier}, {lost:?}"));
        }
        let after = survey(&mended, &log);
        assert!(after.is_sound && after.missing.is_empty(), "{name} is not whole: {after:?}");
        assert_eq!(resume(&mended, &log).0, "native", "{name}: once is enough");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A call whose result is neither in the transcript nor in the log gets an unknown result, once.
#[test]
fn a_call_without_a_recorded_result_is_marked_as_unknown() {
    let whole = std::fs::read(corpus().join("whole.jsonl")).expect("a transcript");
    let is_outcome = |said: &Said| said.line.as_ref().is_some_and(|line| line.contains("tool_result"));
    let log: Vec<Said> = log().into_iter().filter(|said| !is_outcome(said)).collect();
    let transcript: Vec<u8> =
        lines(&whole).filter(|line| !holds(line, "tool_result")).collect::<Vec<_>>().join(&b'\n');
    let (tier, _, mended) = resume(&transcript, &log);
    assert_eq!(tier, "repaired");
    let answers = lines(&mended).filter(|line| holds(line, "outcome of this call was not recorded")).count();
    assert_eq!(answers, 3);
    assert_eq!(resume(&mended, &log).0, "native");
}

#[test]
fn an_outcome_of_no_call_is_taken_out_and_named() {
    let whole = std::fs::read(corpus().join("whole.jsonl")).expect("a transcript");
    let is_call = |said: &Said| said.line.as_ref().is_some_and(|line| line.contains("\"tool_use\""));
    let log: Vec<Said> = log().into_iter().filter(|said| !is_call(said)).collect();
    let transcript: Vec<u8> =
        lines(&whole).filter(|line| !holds(line, "\"tool_use\"")).collect::<Vec<_>>().join(&b'\n');
    let (tier, lost, mended) = resume(&transcript, &log);
    assert_eq!(tier, "repaired");
    assert!(lost.iter().any(|what| what.contains("outcomes of calls")), "{lost:?}");
    assert!(!lines(&mended).any(|line| holds(&line, "tool_result")));
}

#[test]
fn changed_words_come_back_from_the_log() {
    let whole = std::fs::read_to_string(corpus().join("whole.jsonl")).expect("a transcript");
    let altered = whole.replace("I do both.", "I do neither.");
    assert!(whole != altered, "it was said");
    let (tier, _, mended) = resume(altered.as_bytes(), &log());
    assert_eq!(tier, "repaired");
    let mended = String::from_utf8(mended).expect("text");
    assert!(mended.contains("I do both.") && !mended.contains("I do neither."));
}

fn holds(line: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(line).contains(text)
}

/// The splitmix64 generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}

fn damage(dice: &mut Dice, bytes: &mut Vec<u8>) {
    let at = dice.below(bytes.len().max(1));
    let length = dice.below(4000).min(bytes.len() - at);
    match dice.below(9) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(..at)),
        2 => drop(bytes.drain(at..at + length)),
        3 => bytes[at..at + length].fill(0),
        4 => bytes[at..at + length].iter_mut().for_each(|byte| *byte = dice.below(256) as u8),
        5 => {
            let again = bytes[at..at + length].to_vec();
            let to = dice.below(bytes.len().max(1));
            bytes.splice(to..to, again);
        }
        6 => {
            let found = bytes.iter().skip(at).position(|byte| *byte == b'\n');
            found.map(|end| bytes.remove(at + end));
        }
        7 => bytes.insert(at, b'\n'),
        _ => {
            let mut lines: Vec<Vec<u8>> = lines(bytes).collect();
            if lines.len() > 1 {
                let (one, other) = (dice.below(lines.len()), dice.below(lines.len()));
                lines.swap(one, other);
            }
            *bytes = lines.join(&b'\n');
        }
    }
}

/// The entries that are not messages, which the log does not have. Changes to a readable one cannot be detected.
fn notes(transcript: &[u8], log: &[Said]) -> HashSet<String> {
    let ours: HashSet<String> = log.iter().map(|said| said.id.to_string()).collect();
    let id = |line: Vec<u8>| {
        let value: Value = serde_json::from_slice(&line).unwrap_or_default();
        value["uuid"].as_str().filter(|id| !ours.contains(*id)).map(str::to_owned)
    };
    lines(transcript).filter_map(id).collect()
}

#[test]
fn the_report_names_every_loss_from_random_damage() {
    let slow = std::env::var("ASH_SLOW").is_ok_and(|slow| slow == "1");
    let until = Instant::now() + Duration::from_secs(if slow { 60 } else { 3 });
    let whole = std::fs::read(corpus().join("whole.jsonl")).expect("a transcript");
    let log = log();
    let all = notes(&whole, &log);
    let mut seed = 0;
    while Instant::now() < until || seed < 200 {
        seed += 1;
        let mut dice = Dice(seed);
        let mut bytes = whole.clone();
        for _ in 0..=dice.below(4) {
            damage(&mut dice, &mut bytes);
        }
        let (tier, lost, mended) = resume(&bytes, &log);
        let after = survey(&mended, &log);
        if !after.is_sound || !after.missing.is_empty() {
            let again = mend(&mended, &log, &after.missing).repairs;
            panic!("seed {seed}, {tier}: {after:?}, still to mend: {again:?}");
        }
        if lost.is_empty() {
            let left = notes(&mended, &log);
            let gone: Vec<_> = all.iter().filter(|note| !left.contains(*note)).collect();
            assert!(gone.is_empty(), "seed {seed}, {tier}: {} notes went in silence", gone.len());
        }
    }
    println!("{seed} damaged transcripts");
}
