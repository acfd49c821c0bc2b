//! The transcript: one append-only file of JSON lines per session. Each entry is one write.
//!
//! The agent writes an entry before it prints the line. It does not fsync: the host syncs the files of the sandbox at the
//! end of a turn.

use crate::conversation::{ConversationHistory, TranscriptEntry, TranscriptFact};
use crate::ids::FnvDigest;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Reading a transcript of this size takes more than a millisecond. In bytes.
const LONG: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct TranscriptError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for TranscriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} the transcript {}: {}", self.what, self.path.display(), self.source)
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TranscriptError {
    move |source| TranscriptError { what, path: path.to_owned(), source }
}

/// What the agent reports to the host about the conversation that it resumed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ResumeReport {
    found: bool,
    entries: u64,
    turns: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<u64>,
}

impl ResumeReport {
    const NOTHING: ResumeReport =
        ResumeReport { found: false, entries: 0, turns: 0, digest: None, damaged: None };
}

/// The folder of the transcripts, and the id of ours.
pub(crate) struct TranscriptLocation {
    folder: PathBuf,
    session: String,
}

impl TranscriptLocation {
    pub(crate) fn new(folder: PathBuf, session: &str) -> TranscriptLocation {
        TranscriptLocation { folder, session: session.to_owned() }
    }

    fn file(&self, session: &str) -> PathBuf {
        self.folder.join(format!("{session}.jsonl"))
    }

    /// Prepares our transcript as `resume` requests. `None`: no conversation was requested and none exists.
    pub(crate) fn prepare(&self, resume: Option<&str>) -> Result<Option<ResumeReport>, TranscriptError> {
        self.clear()?;
        let own = self.seal()?;
        match resume {
            // A copy without entries lost power before its data reached the disk, so the fork starts over.
            Some(other) if other != self.session && own.as_ref().is_none_or(|own| own.entries == 0) => {
                self.fork(other).map(Some)
            }
            Some(_) => Ok(own.or(Some(ResumeReport::NOTHING))),
            None => Ok(own),
        }
    }

    /// Our transcript must be a regular file, and its folders must not be links, which lead elsewhere. Anything else is
    /// moved aside, so that its owner can find it.
    fn clear(&self) -> Result<(), TranscriptError> {
        let folders = [self.folder.parent(), Some(&self.folder)].into_iter().flatten();
        for folder in folders {
            put_aside_unless(folder, fs::FileType::is_dir)?;
        }
        put_aside_unless(&self.file(&self.session), fs::FileType::is_file)
    }

    /// Removes a torn end, so that the next entry starts on a new line.
    fn seal(&self) -> Result<Option<ResumeReport>, TranscriptError> {
        let path = self.file(&self.session);
        let Some(scan) = scan_if_there(&path, |_, _| Ok(()))? else { return Ok(None) };
        if scan.whole_bytes < scan.length {
            let file = OpenOptions::new().write(true).open(&path).map_err(failed("open", &path))?;
            file.set_len(scan.whole_bytes).map_err(failed("cut", &path))?;
        }
        Ok(Some(scan.resumed()))
    }

    /// The other session may still be running, so this only reads its transcript.
    fn fork(&self, other: &str) -> Result<ResumeReport, TranscriptError> {
        let (from, to) = (self.file(other), self.file(&self.session));
        if !fs::symlink_metadata(&from).is_ok_and(|found| found.is_file()) {
            return Ok(ResumeReport::NOTHING);
        }
        let half = to.with_extension("tmp");
        let mut copy = BufWriter::new(File::create(&half).map_err(failed("copy", &half))?);
        let scan = scan(&from, |line, _| copy.write_all(line));
        let scan = scan.and_then(|scan| copy.flush().map(|()| scan)).map_err(failed("copy", &from))?;
        fs::rename(&half, &to).map_err(failed("copy", &to))?;
        Ok(scan.resumed())
    }

    /// Reads the whole conversation. The first entry opens the file for appending.
    pub(crate) fn open(&self) -> Result<(TranscriptFile, ConversationHistory), TranscriptError> {
        let path = self.file(&self.session);
        let mut conversation = ConversationHistory::default();
        // Taken before the read, so that a write during the read counts as foreign.
        let left = TranscriptStamp::of(&path);
        scan_if_there(&path, |_, entry| {
            conversation.add(entry);
            Ok(())
        })?;
        Ok((TranscriptFile { path, open: None, last_stamp: left }, conversation))
    }
}

fn put_aside_unless(path: &Path, is_right: fn(&fs::FileType) -> bool) -> Result<(), TranscriptError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !is_right(&found.file_type()) => {
            let mut aside = path.as_os_str().to_owned();
            aside.push(format!(".{}", crate::ids::uuid()));
            fs::rename(path, aside).map_err(failed("put aside what is in the place of", path))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("look at", path)(error)),
    }
}

pub(crate) struct TranscriptFile {
    path: PathBuf,
    /// Opened by the first entry, so that a session without prompts leaves no file.
    open: Option<OpenTranscript>,
    /// The file as of our last read or write; `None` if it did not exist.
    last_stamp: Option<TranscriptStamp>,
}

/// Detects that the file was replaced or written.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TranscriptStamp {
    inode: (u64, u64),
    length: u64,
    /// Both times as seconds and nanoseconds: a process can set the first one by hand.
    written: (i64, i64),
    changed: (i64, i64),
}

impl TranscriptStamp {
    fn of(path: &Path) -> Option<TranscriptStamp> {
        fs::symlink_metadata(path).ok().map(|found| TranscriptStamp::from(&found))
    }
}

impl From<&fs::Metadata> for TranscriptStamp {
    fn from(found: &fs::Metadata) -> TranscriptStamp {
        TranscriptStamp {
            inode: (found.dev(), found.ino()),
            length: found.len(),
            written: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

struct OpenTranscript {
    file: File,
    length: u64,
}

impl TranscriptFile {
    pub(crate) fn append(&mut self, entry: &TranscriptEntry) -> Result<(), TranscriptError> {
        let mut line = serde_json::to_vec(entry).expect("entries have string keys only");
        line.push(b'\n');
        let mut open = match self.open.take() {
            Some(open) => open,
            None => create(&self.path).map_err(failed("open", &self.path))?,
        };
        // Restored only after a complete write: after a failure the next entry checks the file again.
        self.last_stamp = None;
        open.append(&line).map_err(failed("write", &self.path))?;
        self.last_stamp = open.file.metadata().ok().map(|found| TranscriptStamp::from(&found));
        self.open = Some(open);
        Ok(())
    }

    /// Whether only we wrote to the file since we read it. A failed check counts as a foreign write.
    pub(crate) fn is_as_left(&self) -> bool {
        self.last_stamp.is_some() && TranscriptStamp::of(&self.path) == self.last_stamp
    }

    /// Whether reading it again would take too long for a turn.
    pub(crate) fn is_long(&self) -> bool {
        self.last_stamp.is_some_and(|left| left.length >= LONG)
    }
}

impl OpenTranscript {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let written = self.file.write(line);
        if let Ok(all) = written
            && all == line.len()
        {
            self.length += line.len() as u64;
            return Ok(());
        }
        self.file.set_len(self.length)?;
        Err(written.err().unwrap_or_else(|| io::ErrorKind::StorageFull.into()))
    }
}

fn create(path: &Path) -> io::Result<OpenTranscript> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    let length = file.metadata()?.len();
    Ok(OpenTranscript { file, length })
}

/// The result of reading a transcript.
struct TranscriptScan {
    entries: u64,
    turns: BTreeSet<String>,
    damaged: u64,
    digest: FnvDigest,
    length: u64,
    /// The length of the intact part; a torn entry follows it.
    whole_bytes: u64,
}

impl TranscriptScan {
    const NOTHING: TranscriptScan = TranscriptScan {
        entries: 0,
        turns: BTreeSet::new(),
        damaged: 0,
        digest: FnvDigest::EMPTY,
        length: 0,
        whole_bytes: 0,
    };

    fn count(&mut self, line: &[u8], entry: &TranscriptEntry) {
        self.entries += 1;
        self.digest = self.digest.add(line);
        if let TranscriptFact::User { .. } = entry.fact {
            self.turns.insert(entry.turn.clone());
        }
    }

    fn resumed(&self) -> ResumeReport {
        ResumeReport {
            found: true,
            entries: self.entries,
            turns: self.turns.len(),
            digest: Some(self.digest.to_string()),
            damaged: Some(self.damaged),
        }
    }
}

fn scan_if_there(
    path: &Path,
    visit: impl FnMut(&[u8], TranscriptEntry) -> io::Result<()>,
) -> Result<Option<TranscriptScan>, TranscriptError> {
    match scan(path, visit) {
        Ok(scan) => Ok(Some(scan)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

fn scan(
    path: &Path,
    mut visit: impl FnMut(&[u8], TranscriptEntry) -> io::Result<()>,
) -> io::Result<TranscriptScan> {
    let mut file = BufReader::new(File::open(path)?);
    let mut scan = TranscriptScan::NOTHING;
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
        scan.length += line.len() as u64;
        match judge(&line) {
            ParsedTranscriptLine::Whole(entry) => {
                scan.count(&line, &entry);
                scan.whole_bytes = scan.length;
                visit(&line, *entry)?;
            }
            ParsedTranscriptLine::Unknown => {
                scan.damaged += 1;
                scan.whole_bytes = scan.length;
            }
            ParsedTranscriptLine::Torn => scan.damaged += 1,
        }
        line.clear();
    }
    Ok(scan)
}

enum ParsedTranscriptLine {
    Whole(Box<TranscriptEntry>),
    /// Valid JSON, but no entry that this version knows. A later version may know it, so it stays.
    Unknown,
    Torn,
}

fn judge(line: &[u8]) -> ParsedTranscriptLine {
    // An entry and its newline are one write, so a line without a newline was cut, even if it parses.
    if line.last() != Some(&b'\n') {
        return ParsedTranscriptLine::Torn;
    }
    match serde_json::from_slice(line) {
        Ok(entry) => ParsedTranscriptLine::Whole(Box::new(entry)),
        Err(error) if error.is_data() => ParsedTranscriptLine::Unknown,
        Err(_) => ParsedTranscriptLine::Torn,
    }
}
