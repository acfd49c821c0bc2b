//! Diagnostic output for clients: the last lines that an agent wrote to stderr, the output of its scripts, and what
//! happened to its sandbox. In memory only.

use ash_model::Timestamp;
use std::{collections::VecDeque, sync::Mutex};

const MAX_LINES: usize = 10_000;
const MAX_LINE_BYTES: usize = 4096;
/// An agent can write this as fast as it likes, and the logs of all sessions together must fit into memory.
const MAX_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLineSource {
    Stderr,
    System,
    /// Output of `install.sh` or `startup.sh`, on either stream.
    Install,
    Startup,
}

impl LogLineSource {
    pub fn as_str(self) -> &'static str {
        match self {
            LogLineSource::Stderr => "stderr",
            LogLineSource::System => "system",
            LogLineSource::Install => "install",
            LogLineSource::Startup => "startup",
        }
    }
}

#[derive(Debug, Clone)]
pub struct LogLine {
    pub index: u64,
    pub level: LogLineSource,
    pub text: String,
    pub at: Timestamp,
}

#[derive(Default)]
pub(crate) struct AgentLogBuffer(Mutex<LogLineRing>);

#[derive(Default)]
struct LogLineRing {
    bytes: usize,
    lines: VecDeque<LogLine>,
    next: u64,
}

impl AgentLogBuffer {
    pub(crate) fn add(&self, level: LogLineSource, text: &[u8], at: Timestamp) {
        let text = String::from_utf8_lossy(&text[..text.len().min(MAX_LINE_BYTES)]).into_owned();
        let mut ring = self.0.lock().expect("no thread panics while holding it");
        let index = ring.next;
        ring.next += 1;
        ring.bytes += text.len();
        ring.lines.push_back(LogLine { index, level, text, at });
        while ring.lines.len() > MAX_LINES || ring.bytes > MAX_BYTES {
            let gone = ring.lines.pop_front().map_or(0, |line| line.text.len());
            ring.bytes -= gone;
        }
    }

    pub(crate) fn after(&self, index: i64) -> Vec<LogLine> {
        let ring = self.0.lock().expect("no thread panics while holding it");
        ring.lines.iter().filter(|line| i64::try_from(line.index).is_ok_and(|i| i > index)).cloned().collect()
    }
}
