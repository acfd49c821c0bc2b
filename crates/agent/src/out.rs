//! Writes stdout: each line with one write, from any thread.

use crate::protocol::AgentOutputLine;
use rustix::io::Errno;
use std::io;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub(crate) struct StdoutWriter(Mutex<()>);

impl StdoutWriter {
    /// Writes one line. Exits the process if the host does not read any more.
    pub(crate) fn write_line(&self, line: &AgentOutputLine<'_>) {
        let mut bytes = serde_json::to_vec(line).expect("lines have string keys only");
        bytes.push(b'\n');
        let _whole_lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if write_all(&bytes).is_err() {
            // The host is gone. The transcript already has everything, so the exit loses nothing.
            std::process::exit(1);
        }
    }
}

/// Bypasses the standard library's buffer, which would stay allocated for the life of the process.
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
