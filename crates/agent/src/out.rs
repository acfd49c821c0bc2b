//! Stdout: whole lines, each with one write, from whichever thread has something to say.

use crate::protocol::AgentOutputLine;
use rustix::io::Errno;
use std::io;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub(crate) struct StdoutWriter(Mutex<()>);

impl StdoutWriter {
    /// Says one line. Does not return if nobody listens any more.
    pub(crate) fn write_line(&self, line: &AgentOutputLine<'_>) {
        let mut bytes = serde_json::to_vec(line).expect("lines have string keys only");
        bytes.push(b'\n');
        let _whole_lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if write_all(&bytes).is_err() {
            // The host is gone. Everything said is in the transcript already, so leaving loses nothing.
            std::process::exit(1);
        }
    }
}

/// Past the standard library's buffer, which would keep its memory for as long as we live.
fn write_all(mut bytes: &[u8]) -> Result<(), Errno> {
    let stdout = io::stdout();
    while !bytes.is_empty() {
        match rustix::io::write(&stdout, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
