//! Hostile transcripts. A process in the sandbox writes what we read before a start, so the cost must be proportional to
//! the size: in time, compared with reading the same lines once, and in memory.

use ash_driver::{
    AgentDriver, ExpectedMessage, LoggedContent, LoggedMessage, MendedTranscript, TranscriptIdentity,
    TranscriptSurvey, driver,
};
use ash_model::AgentRuntime;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use uuid::Uuid;

const MIB: usize = 1 << 20;

/// Counts allocated bytes and their peak.
struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;
static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// All threads share the counters.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The CPU time of this thread: other processes may load the machine.
fn time<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
    let began = now();
    let done = work();
    (done, now() - began)
}

fn memory<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let done = work();
    (done, PEAK.load(Relaxed) - before)
}

fn id(number: usize) -> Uuid {
    Uuid::from_u128(number as u128 + 1)
}

fn claude() -> Box<dyn AgentDriver> {
    driver(AgentRuntime::Claude)
}

fn lines(transcript: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    transcript.split(|byte| *byte == b'\n').map(<[u8]>::to_vec)
}

/// Three messages that the transcript should have.
fn log() -> Vec<LoggedMessage> {
    let said = |number: usize| LoggedMessage {
        id: Uuid::from_u128(u128::MAX - number as u128),
        at: "2026-11-16T00:00:00.000Z".into(),
        words: Some(LoggedContent::Prompt(json!("hello"))),
    };
    (0..3).map(said).collect()
}

/// Reads every line once, as JSON and byte by byte.
fn read_plainly(transcript: &[u8]) -> usize {
    let readable = |line: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok();
    let nuls = |line: &[u8]| line.iter().filter(|byte| **byte == 0).count();
    lines(transcript).map(|line| usize::from(readable(&line)) + nuls(&line)).sum()
}

fn survey(transcript: &[u8], log: &[LoggedMessage]) -> TranscriptSurvey {
    let expected: Vec<ExpectedMessage> =
        log.iter().map(|said| ExpectedMessage { id: said.id, prompt: true, digest: None }).collect();
    claude().survey(&mut lines(transcript), &expected)
}

fn mend(lines: &mut dyn Iterator<Item = Vec<u8>>, log: &[LoggedMessage]) -> MendedTranscript {
    claude().mend(lines, log, &TranscriptIdentity { id: Uuid::from_u128(0xaa), cwd: "/workspace".into() })
}

/// The limits: a multiple of the time of one plain reading, and a number of bytes.
struct Most {
    time: f64,
    memory: usize,
}

/// Surveys and mends the transcript, as before every start.
fn costs_at_most(most: Most, transcript: &[u8]) -> MendedTranscript {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (found, plain) = time(|| read_plainly(transcript));
    std::hint::black_box(found);
    let log = log();
    let ((mended, held), taken) = time(|| {
        memory(|| {
            survey(transcript, &log);
            mend(&mut lines(transcript), &log)
        })
    });
    let times = taken.div_duration_f64(plain);
    println!("{} bytes: {times:.1} times a plain reading, {held} bytes held", transcript.len());
    assert!(times <= most.time, "{times:.1} times a plain reading of {plain:?}");
    assert!(held <= most.memory, "{held} bytes for {}", transcript.len());
    mended
}

fn repeated(text: &str, bytes: usize) -> Vec<u8> {
    text.as_bytes().repeat(bytes / text.len())
}

fn many(count: usize, one: impl Fn(usize) -> String) -> Vec<u8> {
    (0..count).map(one).collect::<Vec<_>>().join("\n").into_bytes()
}

fn prompt(number: usize, parent: usize) -> String {
    json!({"type": "user", "uuid": id(number), "parentUuid": id(parent), "message": {"content": "x"}})
        .to_string()
}

/// An entry with this content, or with this value in another field.
fn with(kind: &str, name: &str, what: &[u8]) -> Vec<u8> {
    let head = format!(
        r#"{{"type":"{kind}","uuid":"{}","parentUuid":"{}","message":{{"{name}":"#,
        id(1),
        id(1_000_000)
    );
    [head.as_bytes(), what, b"}}"].concat()
}

#[test]
fn braces_within_braces() {
    // Each fragment stays open until the end of its line.
    let open = r#"{"type":"a","x":"#;
    costs_at_most(Most { time: 45.0, memory: 3 * MIB }, &repeated(open, 2 * MIB));
    let line = open.repeat(64) + "\n";
    costs_at_most(Most { time: 45.0, memory: MIB }, &repeated(&line, 2 * MIB));
}

#[test]
fn one_line_of_32_mib() {
    costs_at_most(Most { time: 15.0, memory: 40 * MIB }, &repeated(r#"{"type":"a","x":"#, 32 * MIB));
    costs_at_most(Most { time: 15.0, memory: 40 * MIB }, &repeated("x", 32 * MIB));
}

#[test]
fn a_million_tiny_lines() {
    let lines = |line: &str| repeated(line, line.len() * 1_000_000);
    // Readable lines stay, up to the size of a real conversation.
    costs_at_most(Most { time: 30.0, memory: 45 * MIB }, &lines("{}\n"));
    costs_at_most(Most { time: 15.0, memory: MIB }, &lines("x\n"));
    costs_at_most(Most { time: 15.0, memory: MIB }, &lines("{\n"));
    costs_at_most(Most { time: 15.0, memory: MIB }, &lines("\n"));
}

#[test]
fn a_million_pieces_on_one_line() {
    costs_at_most(Most { time: 200.0, memory: 45 * MIB }, &repeated("{}", 2_000_000));
}

#[test]
fn deep_nesting() {
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let depth = MIB / open.len();
        let torn = repeated(open, MIB);
        let whole = [torn.clone(), b"0".to_vec(), close.repeat(depth).into_bytes()].concat();
        for deep in [torn.clone(), with("user", "content", &torn), with("user", "content", &whole)] {
            costs_at_most(Most { time: 30.0, memory: 8 * MIB }, &deep);
        }
        let mended = costs_at_most(Most { time: 30.0, memory: 8 * MIB }, &with("user", "x", &whole));
        assert!(!mended.rebuilt, "a skipped field may have any depth");
    }
}

/// A parsed tree would need a hundred times the memory.
#[test]
fn content_and_notes_of_very_many_values() {
    let list = [b"[".to_vec(), repeated(r#"{"a":0},"#, MIB), b"0]".to_vec()].concat();
    let object = [b"{".to_vec(), repeated(r#""":0,"#, MIB), br#""":0}"#.to_vec()].concat();
    for (name, what, memory) in
        [("content", &list, 3), ("content", &object, 10), ("x", &list, 3), ("x", &object, 3)]
    {
        for kind in ["user", "system"] {
            // Its parent does not exist.
            let transcript = [prompt(7, 8).into_bytes(), with(kind, name, what)].join(&b'\n');
            let mended = costs_at_most(Most { time: 40.0, memory: memory * MIB }, &transcript);
            assert!(mended.repairs.contains(&"5 links mended".to_owned()), "{:?}", mended.repairs);
        }
    }
}

#[test]
fn repeated_ids() {
    costs_at_most(Most { time: 30.0, memory: 12 * MIB }, &many(20_000, |n| prompt(7, n)));
}

#[test]
fn chains_that_lead_in_circles_or_backwards() {
    let count = 20_000;
    costs_at_most(Most { time: 40.0, memory: 13 * MIB }, &many(count, |n| prompt(n, (n + 1) % count)));
    costs_at_most(Most { time: 40.0, memory: 13 * MIB }, &many(count, |n| prompt(count - n, count - n - 1)));
    costs_at_most(Most { time: 40.0, memory: 13 * MIB }, &many(count, |n| prompt(n, n)));
}

/// As many calls as the repair answers, each far from the entry that follows it.
#[test]
fn calls_without_an_outcome_before_a_long_silence() {
    let call = |n: usize| {
        let content = json!([{"type": "tool_use", "id": format!("call {n}")}]);
        let message = json!({"id": "m", "content": content});
        json!({"type": "assistant", "uuid": id(n), "parentUuid": id(n + 1), "message": message}).to_string()
    };
    let transcript =
        [many(1000, call), repeated("{}\n", 600_000), prompt(1000, 999).into_bytes()].join(&b'\n');
    let mended = costs_at_most(Most { time: 30.0, memory: 50 * MIB }, &transcript);
    let answered = "1000 calls without a recorded outcome marked as unknown".to_owned();
    assert!(mended.repairs.contains(&answered), "{:?}", mended.repairs);
}

/// For any repair, although the line reader allocates more than the lines need.
#[test]
fn a_long_conversation_is_held_once() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let words = "x".repeat(10_000);
    let said = |n: usize| {
        let message = json!({"content": words});
        json!({"type": "user", "uuid": id(n), "parentUuid": id(n + 5000), "message": message}).to_string()
    };
    let transcript = many(1000, said);
    let mut lines = lines(&transcript).map(|mut line| {
        line.reserve_exact(line.len());
        line
    });
    let (mended, held) = memory(|| mend(&mut lines, &log()));
    assert_eq!(mended.lines.len(), 1003);
    assert!(held < transcript.len() * 3 / 2, "{held} bytes for {}", transcript.len());
}
