//! The pipes of one process: output is split into records as it is read, input is queued until the process accepts it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::io::Errno;

use crate::journal;

/// Longer lines of stderr are cut: stderr is for people, and no protocol depends on it.
const MAX_STDERR_LINE_BYTES: usize = 16 << 10;
pub(super) const READ_SIZE: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputFraming {
    Lines,
    ErrLines,
    Raw,
    ErrRaw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PipeReadOutcome {
    Some,
    Nothing,
    End,
    /// A line grew past the limit. The rest of the stream is discarded.
    TooLong,
}

#[derive(Debug)]
pub(super) struct OutputStream {
    pub(super) fd: OwnedFd,
    form: OutputFraming,
    /// The beginning of a line that is not complete yet.
    carry: Vec<u8>,
    is_discarding: bool,
}

impl OutputStream {
    pub(super) fn new(fd: OwnedFd, form: OutputFraming) -> Self {
        Self { fd, form, carry: Vec::new(), is_discarding: false }
    }

    /// Reads once and appends complete records to `batch`. The number counts the bytes, even if they complete no
    /// record.
    pub(super) fn read(
        &mut self,
        process: u16,
        buffer: &mut [u8],
        batch: &mut Vec<u8>,
        longest: usize,
    ) -> (PipeReadOutcome, usize) {
        let (before, held) = (batch.len(), self.carry.len());
        let n = match rustix::io::read(&self.fd, &mut *buffer) {
            Ok(0) => return (PipeReadOutcome::End, 0),
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => return (PipeReadOutcome::Nothing, 0),
            Err(_) => return (PipeReadOutcome::End, 0),
        };
        let fits = self.take(process, &buffer[..n], batch, longest);
        // A record is larger than its text. The part of the text that was held back has been counted before.
        let written = (batch.len() - before).saturating_sub(held);
        (if fits { PipeReadOutcome::Some } else { PipeReadOutcome::TooLong }, n.max(written))
    }

    fn take(&mut self, process: u16, bytes: &[u8], batch: &mut Vec<u8>, longest: usize) -> bool {
        match self.form {
            _ if self.is_discarding => {}
            OutputFraming::Raw => journal::chunk(batch, process, bytes),
            OutputFraming::ErrRaw => journal::err_chunk(batch, process, bytes),
            OutputFraming::Lines => return self.take_lines(process, bytes, batch, longest),
            OutputFraming::ErrLines => self.take_err(process, bytes, batch),
        }
        true
    }

    fn take_lines(&mut self, process: u16, mut bytes: &[u8], batch: &mut Vec<u8>, longest: usize) -> bool {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            if self.carry.len() + end > longest {
                return self.give_up(process, batch);
            }
            if self.carry.is_empty() {
                journal::line(batch, process, &bytes[..end]);
            } else {
                self.carry.extend_from_slice(&bytes[..end]);
                // Taken, not cleared: one long line must not stay in an idle shim's memory.
                journal::line(batch, process, &std::mem::take(&mut self.carry));
            }
            bytes = &bytes[end + 1..];
        }
        if self.carry.len() + bytes.len() > longest {
            return self.give_up(process, batch);
        }
        self.carry.extend_from_slice(bytes);
        true
    }

    fn give_up(&mut self, process: u16, batch: &mut Vec<u8>) -> bool {
        self.carry = Vec::new();
        self.is_discarding = true;
        journal::too_long(batch, process);
        false
    }

    fn take_err(&mut self, process: u16, bytes: &[u8], batch: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, whole) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            let room = MAX_STDERR_LINE_BYTES - self.carry.len();
            self.carry.extend_from_slice(&text[..text.len().min(room)]);
            if whole {
                journal::err(batch, process, &self.carry);
                self.carry.clear();
            }
        }
    }

    /// Records the incomplete line at the end of the stream.
    pub(super) fn finish(&mut self, process: u16, batch: &mut Vec<u8>) {
        let rest = std::mem::take(&mut self.carry);
        match self.form {
            _ if rest.is_empty() => {}
            OutputFraming::Lines => journal::tail(batch, process, &rest),
            OutputFraming::ErrLines => journal::err(batch, process, &rest),
            OutputFraming::Raw | OutputFraming::ErrRaw => {}
        }
    }
}

/// Input on its way to a process's stdin.
#[derive(Debug)]
pub(super) struct StdinQueue {
    pub(super) fd: OwnedFd,
    queue: Vec<u8>,
    sent: usize,
    last: bool,
}

impl StdinQueue {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd, queue: Vec::new(), sent: 0, last: false }
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len() - self.sent
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if !self.last {
            self.queue.extend_from_slice(bytes);
        }
    }

    pub(super) fn close(&mut self) {
        self.last = true;
    }

    /// False: drop the queue, because it is closed and all written, or because nothing reads it.
    pub(super) fn write(&mut self) -> bool {
        while self.waiting() > 0 {
            match rustix::io::write(&self.fd, &self.queue[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        self.queue = Vec::new();
        self.sent = 0;
        !self.last
    }
}

#[derive(Debug)]
pub(super) struct ProcessPipes {
    pub(super) input: Option<StdinQueue>,
    pub(super) out: Option<OutputStream>,
    pub(super) err: Option<OutputStream>,
    /// Init has confirmed the start. The shim reads no output before, so that `Started` precedes all output.
    pub(super) started: bool,
    /// The shim sent SIGKILL itself, so this death is no out-of-memory kill.
    pub(super) killed: bool,
}

/// The shim's ends of a new process's pipes, and the ends that go to init.
pub(super) fn pipes(raw: bool, stdin: bool) -> io::Result<(ProcessPipes, [OwnedFd; 3])> {
    let (out, theirs_out) = pipe()?;
    let (err, theirs_err) = pipe()?;
    let (input, theirs_in) = if stdin {
        let (theirs, ours) = pipe()?;
        (Some(StdinQueue::new(ours)), theirs)
    } else {
        (None, std::fs::File::open("/dev/null")?.into())
    };
    for ours in [Some(&out), Some(&err), input.as_ref().map(|i| &i.fd)].into_iter().flatten() {
        nonblocking(ours)?;
    }
    let (form, err_form) = if raw {
        (OutputFraming::Raw, OutputFraming::ErrRaw)
    } else {
        (OutputFraming::Lines, OutputFraming::ErrLines)
    };
    let process = ProcessPipes {
        input,
        out: Some(OutputStream::new(out, form)),
        err: Some(OutputStream::new(err, err_form)),
        started: false,
        killed: false,
    };
    Ok((process, [theirs_in, theirs_out, theirs_err]))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// Each end of a pipe has its own flag, so the process inside keeps the blocking pipe that it expects.
pub(super) fn nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    Ok(rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{JournalPayload, JournalReader};

    fn heard(form: OutputFraming, pieces: &[&[u8]], longest: usize) -> Vec<JournalPayload> {
        let (fd, _other) = pipe().expect("a pipe");
        let (mut stream, mut batch) = (OutputStream::new(fd, form), Vec::new());
        for piece in pieces {
            stream.take(1, piece, &mut batch, longest);
        }
        stream.finish(1, &mut batch);
        let mut reader = JournalReader::at(0);
        reader.push(&batch);
        std::iter::from_fn(|| reader.next().expect("valid")).map(|record| record.payload).collect()
    }

    #[test]
    fn lines_are_whole_wherever_reads_cut_them() {
        let got = heard(OutputFraming::Lines, &[b"a\xf0\x9f", b"\x98\x80b\n\nc", b"d\ne"], 100);
        let line = |text: &[u8]| JournalPayload::StdoutLine(text.to_vec());
        assert_eq!(
            got,
            [line("a😀b".as_bytes()), line(b""), line(b"cd"), JournalPayload::StdoutTail(b"e".to_vec())]
        );
    }

    #[test]
    fn a_line_at_the_cap_passes_and_one_past_it_ends_the_stream() {
        assert_eq!(
            heard(OutputFraming::Lines, &[b"1234\n"], 4),
            [JournalPayload::StdoutLine(b"1234".to_vec())]
        );
        assert_eq!(
            heard(OutputFraming::Lines, &[b"123", b"45", b"\nmore\n"], 4),
            [JournalPayload::LineTooLong]
        );
        assert_eq!(heard(OutputFraming::Lines, &[b"12345\nmore\n"], 4), [JournalPayload::LineTooLong]);
    }

    #[test]
    fn output_counts_once_whether_it_is_kept_or_not() {
        let much = vec![b'x'; MAX_STDERR_LINE_BYTES];
        for (form, end) in [(OutputFraming::Lines, &b"\n"[..]), (OutputFraming::ErrLines, b"")] {
            let (fd, theirs) = pipe().expect("a pipe");
            let (mut stream, mut buffer, mut batch) =
                (OutputStream::new(fd, form), vec![0; READ_SIZE], Vec::new());
            let mut sum = 0;
            for piece in [&much[..], &much, end].into_iter().filter(|piece| !piece.is_empty()) {
                rustix::io::write(&theirs, piece).expect("written");
                sum += stream.read(1, &mut buffer, &mut batch, usize::MAX).1;
            }
            let (least, most) = (2 * much.len(), 2 * much.len() + 100);
            assert!((least..most).contains(&sum), "{form:?}: {sum} bytes");
        }
        let (fd, theirs) = pipe().expect("a pipe");
        let (mut stream, mut buffer, mut batch) =
            (OutputStream::new(fd, OutputFraming::Lines), vec![0; READ_SIZE], Vec::new());
        rustix::io::write(&theirs, &[b'\n'; 1000]).expect("written");
        let (_, counted) = stream.read(1, &mut buffer, &mut batch, usize::MAX);
        assert_eq!(counted, batch.len(), "nothing but the beginnings of records");
    }

    #[test]
    fn a_long_line_of_stderr_is_cut() {
        let long = vec![b'x'; MAX_STDERR_LINE_BYTES + 10];
        let got = heard(OutputFraming::ErrLines, &[&long, b"y\nz"], 4);
        assert_eq!(
            got,
            [
                JournalPayload::StderrLine(long[..MAX_STDERR_LINE_BYTES].to_vec()),
                JournalPayload::StderrLine(b"z".to_vec())
            ]
        );
    }
}
