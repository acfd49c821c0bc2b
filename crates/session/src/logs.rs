//! The last lines an agent wrote on stderr, what its scripts printed, and what happened to its sandbox. In memory only.

use ash_model::Timestamp;
use std::{collections::VecDeque, sync::Mutex};

const KEPT: usize = 10_000;
const LINE: usize = 4096;
/// An agent can fill this as fast as it likes; all sessions together must fit into memory.
const BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Stderr,
    System,
    /// Of its `install.sh` or `startup.sh`, whichever stream.
    Install,
    Startup,
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Stderr => "stderr",
            Level::System => "system",
            Level::Install => "install",
            Level::Startup => "startup",
        }
    }
}

#[derive(Debug, Clone)]
pub struct LogLine {
    pub index: u64,
    pub level: Level,
    pub text: String,
    pub at: Timestamp,
}

#[derive(Default)]
pub(crate) struct Logs(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    bytes: usize,
    lines: VecDeque<LogLine>,
    next: u64,
}

impl Logs {
    pub(crate) fn add(&self, level: Level, text: &[u8], at: Timestamp) {
        let text = String::from_utf8_lossy(&text[..text.len().min(LINE)]).into_owned();
        let mut ring = self.0.lock().expect("nobody panics while holding it");
        let index = ring.next;
        ring.next += 1;
        ring.bytes += text.len();
        ring.lines.push_back(LogLine { index, level, text, at });
        while ring.lines.len() > KEPT || ring.bytes > BYTES {
            let gone = ring.lines.pop_front().map_or(0, |line| line.text.len());
            ring.bytes -= gone;
        }
    }

    pub(crate) fn after(&self, index: i64) -> Vec<LogLine> {
        let ring = self.0.lock().expect("nobody panics while holding it");
        ring.lines.iter().filter(|line| i64::try_from(line.index).is_ok_and(|i| i > index)).cloned().collect()
    }
}
