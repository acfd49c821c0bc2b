//! The journal: all output and events of the sandbox in order, with checksums, at byte offsets that never change. It is
//! the only queue between agent and server, so neither full memory nor a crash of the server loses a line.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ash_model::{Incarnation, TokenUsage};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Length, checksum, kind, padding, process.
const HEADER: usize = 12;
/// A record holds at most one line. A longer length means that the record is torn or not a record.
const MAX_RECORD_BYTES: usize = 64 << 20;
/// Space is freed in steps: a system call per acknowledged line would cost more than it frees.
const PUNCH_STEP: u64 = 1 << 20;
const RETRY: Duration = Duration::from_secs(1);

/// One event in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRecord {
    /// Where the record ends: follow from here to continue after it.
    pub offset: u64,
    pub process: u16,
    pub payload: JournalPayload,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalPayload {
    /// A line of stdout, without its newline. Bytes, because it need not be UTF-8.
    StdoutLine(Vec<u8>),
    /// What stdout held after its last newline when it was closed.
    StdoutTail(Vec<u8>),
    /// A line of stderr, cut at 16 KiB.
    StderrLine(Vec<u8>),
    /// Stdout of a raw process, as read.
    StdoutChunk(Vec<u8>),
    /// Stderr of a raw process, as read.
    StderrChunk(Vec<u8>),
    /// `pid` is the number inside the sandbox.
    Started {
        pid: u32,
    },
    StartFailed {
        why: String,
    },
    /// The last record of a process.
    Exit(ProcessExit),
    /// A line grew past the limit. The shim kills the process; its exit follows.
    LineTooLong,
    /// The sandbox is gone, with every process in it.
    SandboxGone {
        how: String,
        oom: bool,
    },
    /// An answer of a model to a call through the socket of the session whose agent is this process.
    Usage(ModelUsage),
}

/// What an answer of a model used, as far as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelUsage {
    /// The service's id of the answer, or an id of ours if the service gave none.
    pub message: String,
    pub model: String,
    pub usage: TokenUsage,
    /// The answer's end has not arrived. A later record of the same answer has higher numbers, unless the answer broke
    /// off here.
    pub torn: bool,
}

/// How a process ended. A process that a signal killed has a signal and no code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessExit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub oom: bool,
}

impl std::fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}")?,
            (None, Some(signal)) => write!(f, "signal {signal}")?,
            (None, None) => f.write_str("unknown end")?,
        }
        if self.oom { f.write_str(" (out of memory)") } else { Ok(()) }
    }
}

#[derive(Serialize, Deserialize)]
struct StartedRecordBody {
    pid: u32,
}
#[derive(Serialize, Deserialize)]
struct StartFailedRecordBody {
    why: String,
}
#[derive(Serialize, Deserialize)]
struct SandboxGoneRecordBody {
    how: String,
    oom: bool,
}

#[derive(Serialize, Deserialize)]
struct UsageRecordBody {
    message: String,
    model: String,
    usage: TokensRecordBody,
    torn: bool,
}
#[derive(Serialize, Deserialize)]
struct TokensRecordBody {
    input_tokens: u64,
    output_tokens: u64,
    cache_creation_tokens: u64,
    cache_read_tokens: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    cache_creation_1h_tokens: u64,
}

fn is_zero(tokens: &u64) -> bool {
    *tokens == 0
}

impl From<UsageRecordBody> for ModelUsage {
    fn from(UsageRecordBody { message, model, usage, torn }: UsageRecordBody) -> Self {
        let usage = TokenUsage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cache_creation_tokens: usage.cache_creation_tokens,
            cache_creation_1h_tokens: usage.cache_creation_1h_tokens,
            cache_read_tokens: usage.cache_read_tokens,
        };
        Self { message, model, usage, torn }
    }
}

const LINE: u8 = 1;
const TAIL: u8 = 0x80 | LINE;
const ERR: u8 = 2;
const CHUNK: u8 = 3;
const ERR_CHUNK: u8 = 4;
const STARTED: u8 = 5;
const START_FAILED: u8 = 6;
const EXIT: u8 = 7;
const TOO_LONG: u8 = 8;
const GONE: u8 = 9;
const USAGE: u8 = 10;

/// Appends one record to a batch. It takes parts instead of a [`JournalPayload`], because lines are slices of the read
/// buffer.
fn push(batch: &mut Vec<u8>, kind: u8, process: u16, payload: &[u8]) {
    let mut head = [0; 4];
    head[0] = kind;
    head[2..].copy_from_slice(&process.to_le_bytes());
    let mut sum = crc32fast::Hasher::new();
    sum.update(&head);
    sum.update(payload);
    batch.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    batch.extend_from_slice(&sum.finalize().to_le_bytes());
    batch.extend_from_slice(&head);
    batch.extend_from_slice(payload);
}

pub(crate) fn line(batch: &mut Vec<u8>, process: u16, bytes: &[u8]) {
    push(batch, LINE, process, bytes);
}
pub(crate) fn tail(batch: &mut Vec<u8>, process: u16, bytes: &[u8]) {
    push(batch, TAIL, process, bytes);
}
pub(crate) fn err(batch: &mut Vec<u8>, process: u16, bytes: &[u8]) {
    push(batch, ERR, process, bytes);
}
pub(crate) fn chunk(batch: &mut Vec<u8>, process: u16, bytes: &[u8]) {
    push(batch, CHUNK, process, bytes);
}
pub(crate) fn err_chunk(batch: &mut Vec<u8>, process: u16, bytes: &[u8]) {
    push(batch, ERR_CHUNK, process, bytes);
}
pub(crate) fn too_long(batch: &mut Vec<u8>, process: u16) {
    push(batch, TOO_LONG, process, b"");
}
pub(crate) fn started(batch: &mut Vec<u8>, process: u16, pid: u32) {
    push(batch, STARTED, process, &body(&StartedRecordBody { pid }));
}
pub(crate) fn start_failed(batch: &mut Vec<u8>, process: u16, why: &str) {
    push(batch, START_FAILED, process, &body(&StartFailedRecordBody { why: why.to_owned() }));
}
pub(crate) fn exit(batch: &mut Vec<u8>, process: u16, exit: ProcessExit) {
    push(batch, EXIT, process, &body(&exit));
}
pub(crate) fn gone(batch: &mut Vec<u8>, how: &str, oom: bool) {
    push(batch, GONE, 0, &body(&SandboxGoneRecordBody { how: how.to_owned(), oom }));
}

pub(crate) fn usage(batch: &mut Vec<u8>, process: u16, usage: &ModelUsage) {
    let ModelUsage { message, model, usage: TokenUsage { input_tokens, output_tokens, .. }, torn } = usage;
    let tokens = TokensRecordBody {
        input_tokens: *input_tokens,
        output_tokens: *output_tokens,
        cache_creation_tokens: usage.usage.cache_creation_tokens,
        cache_creation_1h_tokens: usage.usage.cache_creation_1h_tokens,
        cache_read_tokens: usage.usage.cache_read_tokens,
    };
    let (message, model) = (message.clone(), model.clone());
    push(batch, USAGE, process, &body(&UsageRecordBody { message, model, usage: tokens, torn: *torn }));
}

fn body(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers, booleans and strings always serialize")
}

fn decode(kind: u8, payload: &[u8]) -> Option<JournalPayload> {
    Some(match kind {
        LINE => JournalPayload::StdoutLine(payload.to_vec()),
        TAIL => JournalPayload::StdoutTail(payload.to_vec()),
        ERR => JournalPayload::StderrLine(payload.to_vec()),
        CHUNK => JournalPayload::StdoutChunk(payload.to_vec()),
        ERR_CHUNK => JournalPayload::StderrChunk(payload.to_vec()),
        STARTED => {
            JournalPayload::Started { pid: serde_json::from_slice::<StartedRecordBody>(payload).ok()?.pid }
        }
        START_FAILED => JournalPayload::StartFailed {
            why: serde_json::from_slice::<StartFailedRecordBody>(payload).ok()?.why,
        },
        EXIT => JournalPayload::Exit(serde_json::from_slice(payload).ok()?),
        TOO_LONG => JournalPayload::LineTooLong,
        GONE => serde_json::from_slice::<SandboxGoneRecordBody>(payload)
            .ok()
            .map(|b| JournalPayload::SandboxGone { how: b.how, oom: b.oom })?,
        USAGE => serde_json::from_slice::<UsageRecordBody>(payload)
            .ok()
            .map(|body| JournalPayload::Usage(body.into()))?,
        _ => return None,
    })
}

/// Splits journal bytes into records, whatever pieces they arrive in.
#[derive(Debug)]
pub(crate) struct JournalReader {
    bytes: Vec<u8>,
    used: usize,
    offset: u64,
}

/// The bytes from here on are not a journal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TornJournal;

impl JournalReader {
    pub(crate) fn at(offset: u64) -> Self {
        Self { bytes: Vec::new(), used: 0, offset }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.used);
        self.used = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// `Ok(None)`: the reader needs more bytes.
    pub(crate) fn next(&mut self) -> Result<Option<JournalRecord>, TornJournal> {
        let rest = &self.bytes[self.used..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let sum = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        if length > MAX_RECORD_BYTES {
            return Err(TornJournal);
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let mut expected = crc32fast::Hasher::new();
        expected.update(&header[8..]);
        expected.update(payload);
        if expected.finalize() != sum {
            return Err(TornJournal);
        }
        let what = decode(header[8], payload).ok_or(TornJournal)?;
        self.used += HEADER + length;
        self.offset += (HEADER + length) as u64;
        Ok(Some(JournalRecord {
            offset: self.offset,
            process: u16::from_le_bytes([header[10], header[11]]),
            payload: what,
        }))
    }
}

/// The writing end, in the shim.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    end: u64,
    acked: u64,
    freed: u64,
    /// What the disk did not accept yet. While this is not empty, the shim reads no more output.
    unwritten: Vec<u8>,
    retry: Option<Instant>,
}

pub(crate) fn name(incarnation: Incarnation) -> String {
    format!("journal.{incarnation}")
}

impl Journal {
    pub(crate) fn create(dir: &impl std::os::fd::AsFd, incarnation: Incarnation) -> io::Result<Self> {
        // EXCL: every shim has a new incarnation, so an existing file would belong to another writer.
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, name(incarnation), flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { file: file.into(), end: 0, acked: 0, freed: 0, unwritten: Vec::new(), retry: None })
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Where the journal ends once the disk has accepted everything.
    pub(crate) fn tail(&self) -> u64 {
        self.end + self.unwritten.len() as u64
    }

    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    pub(crate) fn unacked(&self) -> u64 {
        self.end - self.acked
    }

    /// Whether everything appended is in the file and acknowledged.
    pub(crate) fn settled(&self) -> bool {
        self.unwritten.is_empty() && self.acked == self.end
    }

    /// Whether the disk rejects writes.
    pub(crate) fn stuck(&self) -> bool {
        !self.unwritten.is_empty()
    }

    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry
    }

    pub(crate) fn append(&mut self, batch: &[u8], now: Instant) {
        if self.stuck() {
            self.unwritten.extend_from_slice(batch);
            return;
        }
        let written = self.write(batch);
        if written < batch.len() {
            self.unwritten = batch[written..].to_vec();
            self.retry = Some(now + RETRY);
        }
    }

    pub(crate) fn retry(&mut self, now: Instant) {
        let owed = std::mem::take(&mut self.unwritten);
        self.retry = None;
        self.append(&owed, now);
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            match self.file.write_at(&bytes[written..], self.end) {
                Ok(0) => break,
                Ok(n) => {
                    written += n;
                    self.end += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        written
    }

    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let available = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = available.min(buffer.len());
        self.file.read_at(&mut buffer[..wanted], offset)
    }

    /// Whether a reader may start here: the bytes below have been freed.
    pub(crate) fn holds(&self, offset: u64) -> bool {
        (self.freed..=self.end).contains(&offset)
    }

    pub(crate) fn ack(&mut self, offset: u64) {
        self.acked = self.acked.max(offset.min(self.end));
        let whole = self.acked - self.acked % PUNCH_STEP;
        if whole > self.freed {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A file system without holes only uses more space than needed.
            let _ = rustix::fs::fallocate(&self.file, flags, self.freed, whole - self.freed);
            self.freed = whole;
        }
    }
}

/// What a dead shim left in its journal after `offset`, up to the last valid record.
pub fn drain(run_dir: &Path, incarnation: Incarnation, offset: u64) -> Result<Vec<JournalRecord>, Error> {
    let path: PathBuf = run_dir.join(name(incarnation));
    let failed = |source| Error::File { what: "read journal", path: path.clone(), source };
    let file = match File::open(&path) {
        Ok(file) => file,
        // The shim died before it wrote its first record.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    };
    let (mut reader, mut at, mut records) = (JournalReader::at(offset), offset, Vec::new());
    let mut buffer = vec![0; 256 << 10];
    loop {
        let read = file.read_at(&mut buffer, at).map_err(failed)?;
        at += read as u64;
        reader.push(&buffer[..read]);
        while let Ok(Some(record)) = reader.next() {
            records.push(record);
        }
        // After a torn record every `next` fails, so the loop only reads to the end of the file.
        if read == 0 {
            return Ok(records);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Vec<u8> {
        let mut batch = Vec::new();
        line(&mut batch, 1, b"{\"a\":1}");
        tail(&mut batch, 1, b"half");
        err(&mut batch, 2, b"oops");
        chunk(&mut batch, 3, &[0, 0xff]);
        err_chunk(&mut batch, 3, b"x");
        started(&mut batch, 1, 2);
        start_failed(&mut batch, 4, "No such file");
        exit(&mut batch, 1, ProcessExit { code: None, signal: Some(9), oom: true });
        too_long(&mut batch, 5);
        gone(&mut batch, "signal 9", false);
        let tokens = TokenUsage {
            input_tokens: 7,
            output_tokens: 9,
            cache_creation_tokens: 1,
            cache_read_tokens: 2,
            ..TokenUsage::default()
        };
        let answer = ModelUsage { message: "msg_1".into(), model: "m".into(), usage: tokens, torn: true };
        usage(&mut batch, 1, &answer);
        batch
    }

    fn read(bytes: &[u8], step: usize) -> Vec<JournalRecord> {
        let (mut reader, mut records) = (JournalReader::at(0), Vec::new());
        for piece in bytes.chunks(step) {
            reader.push(piece);
            while let Ok(Some(record)) = reader.next() {
                records.push(record);
            }
        }
        records
    }

    #[test]
    fn the_bytes_of_every_record_are_those_of_version_one() {
        insta::assert_snapshot!("records", batch().escape_ascii().to_string());
        insta::assert_debug_snapshot!("records_read", read(&batch(), 1 << 20));
    }

    #[test]
    fn what_the_service_keeps_for_an_hour_is_in_the_record_if_there_is_any() {
        let tokens =
            TokenUsage { cache_creation_tokens: 3, cache_creation_1h_tokens: 2, ..TokenUsage::default() };
        let answer = ModelUsage { message: "msg_1".into(), model: "m".into(), usage: tokens, torn: false };
        let mut batch = Vec::new();
        usage(&mut batch, 1, &answer);
        insta::assert_snapshot!("usage_for_an_hour", batch.escape_ascii().to_string());
        let payloads: Vec<JournalPayload> =
            read(&batch, 5).into_iter().map(|record| record.payload).collect();
        assert_eq!(payloads, [JournalPayload::Usage(answer)]);
    }

    #[test]
    fn records_do_not_depend_on_the_pieces_they_come_in() {
        assert_eq!(read(&batch(), 1), read(&batch(), 7));
        assert_eq!(read(&batch(), 1).last().map(|r| r.offset), Some(batch().len() as u64));
    }

    #[test]
    fn a_torn_tail_is_cut_at_the_last_valid_record() {
        let dir = tempfile::tempdir().expect("a directory");
        let incarnation = Incarnation::fresh();
        let mut bytes = batch();
        bytes.truncate(bytes.len() - 3);
        std::fs::write(dir.path().join(name(incarnation)), &bytes).expect("written");
        let all = drain(dir.path(), incarnation, 0).expect("readable");
        assert_eq!(all, read(&batch(), 9)[..10]);
        let after = drain(dir.path(), incarnation, all[3].offset).expect("readable");
        assert_eq!(after, all[4..]);
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let mut bytes = batch();
        bytes[HEADER + 2] ^= 1;
        let mut reader = JournalReader::at(0);
        reader.push(&bytes);
        assert_eq!(reader.next(), Err(TornJournal));
    }

    #[test]
    fn records_that_a_full_disk_refuses_are_kept_and_written_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = File::open(dir.path()).expect("open");
        let mut journal = Journal::create(&handle, Incarnation::fresh()).expect("created");
        let full = File::options().write(true).open("/dev/full").expect("a full disk");
        let disk = std::mem::replace(&mut journal.file, full);
        journal.append(&batch(), Instant::now());
        assert!(journal.stuck() && journal.retry_at().is_some() && journal.end() == 0);
        let mut exit_record = Vec::new();
        exit(&mut exit_record, 1, ProcessExit { code: Some(0), signal: None, oom: false });
        journal.append(&exit_record, Instant::now());
        journal.file = disk;
        journal.retry(Instant::now());
        assert!(!journal.stuck() && journal.retry_at().is_none());
        let mut written = vec![0; 4096];
        let length = journal.read(&mut written, 0).expect("readable");
        assert_eq!(written[..length], [batch(), exit_record].concat());
    }

    #[test]
    fn acknowledged_space_is_given_back_and_offsets_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = File::open(dir.path()).expect("open");
        let mut journal = Journal::create(&handle, Incarnation::fresh()).expect("created");
        let mut batch = Vec::new();
        line(&mut batch, 1, &vec![b'x'; 3 << 20]);
        journal.append(&batch, Instant::now());
        let end = journal.end();
        line(&mut batch, 1, b"last");
        journal.append(&batch[end as usize..], Instant::now());
        journal.ack(end);
        assert!(!journal.holds(0) && journal.holds(end));
        let mut buffer = [0; 64];
        let n = journal.read(&mut buffer, end).expect("readable");
        assert_eq!(&buffer[..n], &batch[end as usize..]);
    }
}
