//! The transcript: one file of JSON lines per session, only ever appended to, each entry with one write.
//!
//! What is printed is in here before. No fsync: the host makes the sandbox's files safe when a turn has ended.

use crate::conversation::{Conversation, Entry, Fact};
use crate::ids::Digest;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A transcript that takes more than a millisecond to read, in bytes.
const LONG: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct Error {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} the transcript {}: {}", self.what, self.path.display(), self.source)
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error { what, path: path.to_owned(), source }
}

/// What the host is told about the memory that this agent starts with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Resumed {
    found: bool,
    entries: u64,
    turns: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<u64>,
}

impl Resumed {
    const NOTHING: Resumed = Resumed { found: false, entries: 0, turns: 0, digest: None, damaged: None };
}

/// Where the transcripts are, and which one is ours.
pub(crate) struct Place {
    folder: PathBuf,
    session: String,
}

impl Place {
    pub(crate) fn new(folder: PathBuf, session: &str) -> Place {
        Place { folder, session: session.to_owned() }
    }

    fn file(&self, session: &str) -> PathBuf {
        self.folder.join(format!("{session}.jsonl"))
    }

    /// Makes our transcript what `resume` asks for. None: nothing was asked for and nothing is there.
    pub(crate) fn prepare(&self, resume: Option<&str>) -> Result<Option<Resumed>, Error> {
        self.clear()?;
        let own = self.seal()?;
        match resume {
            // Without an entry of its own a fork is made again: it lost power before its copy was on the disk.
            Some(other) if other != self.session && own.as_ref().is_none_or(|own| own.entries == 0) => {
                self.fork(other).map(Some)
            }
            Some(_) => Ok(own.or(Some(Resumed::NOTHING))),
            None => Ok(own),
        }
    }

    /// A link, a pipe or a directory in the place of our transcript is none, and a link in the place of a folder leads
    /// elsewhere. It is put aside, where whoever made it finds it.
    fn clear(&self) -> Result<(), Error> {
        let folders = [self.folder.parent(), Some(&self.folder)].into_iter().flatten();
        for folder in folders {
            put_aside_unless(folder, fs::FileType::is_dir)?;
        }
        put_aside_unless(&self.file(&self.session), fs::FileType::is_file)
    }

    /// Cuts a torn end off, so that the next entry starts on a line of its own.
    fn seal(&self) -> Result<Option<Resumed>, Error> {
        let path = self.file(&self.session);
        let Some(scan) = scan_if_there(&path, |_, _| Ok(()))? else { return Ok(None) };
        if scan.keep < scan.length {
            let file = OpenOptions::new().write(true).open(&path).map_err(failed("open", &path))?;
            file.set_len(scan.keep).map_err(failed("cut", &path))?;
        }
        Ok(Some(scan.resumed()))
    }

    /// The other session may still be running: it is read, never written.
    fn fork(&self, other: &str) -> Result<Resumed, Error> {
        let (from, to) = (self.file(other), self.file(&self.session));
        if !fs::symlink_metadata(&from).is_ok_and(|found| found.is_file()) {
            return Ok(Resumed::NOTHING);
        }
        let half = to.with_extension("tmp");
        let mut copy = BufWriter::new(File::create(&half).map_err(failed("copy", &half))?);
        let scan = scan(&from, |line, _| copy.write_all(line));
        let scan = scan.and_then(|scan| copy.flush().map(|()| scan)).map_err(failed("copy", &from))?;
        fs::rename(&half, &to).map_err(failed("copy", &to))?;
        Ok(scan.resumed())
    }

    /// Reads the whole conversation; the file opens for more with the first entry.
    pub(crate) fn open(&self) -> Result<(Transcript, Conversation), Error> {
        let path = self.file(&self.session);
        let mut conversation = Conversation::default();
        // Before it is read: what is written meanwhile is then seen as somebody else's.
        let left = Stamp::of(&path);
        scan_if_there(&path, |_, entry| {
            conversation.add(entry);
            Ok(())
        })?;
        Ok((Transcript { path, open: None, left }, conversation))
    }
}

fn put_aside_unless(path: &Path, is_right: fn(&fs::FileType) -> bool) -> Result<(), Error> {
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

pub(crate) struct Transcript {
    path: PathBuf,
    /// Opened by the first entry, so that a session nobody ever talked to leaves no file.
    open: Option<Open>,
    /// The file as it was when we last read or wrote it; none if there was none.
    left: Option<Stamp>,
}

/// By what a file is seen to be another one, or to have been written.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stamp {
    inode: (u64, u64),
    length: u64,
    /// Seconds and nanoseconds. Both times: the first can be set by hand.
    written: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        fs::symlink_metadata(path).ok().map(|found| Stamp::from(&found))
    }
}

impl From<&fs::Metadata> for Stamp {
    fn from(found: &fs::Metadata) -> Stamp {
        Stamp {
            inode: (found.dev(), found.ino()),
            length: found.len(),
            written: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

struct Open {
    file: File,
    length: u64,
}

impl Transcript {
    pub(crate) fn append(&mut self, entry: &Entry) -> Result<(), Error> {
        let mut line = serde_json::to_vec(entry).expect("entries have string keys only");
        line.push(b'\n');
        let mut open = match self.open.take() {
            Some(open) => open,
            None => create(&self.path).map_err(failed("open", &self.path))?,
        };
        // Kept only when whole again: after a failure the next entry looks at the file anew.
        self.left = None;
        open.append(&line).map_err(failed("write", &self.path))?;
        self.left = open.file.metadata().ok().map(|found| Stamp::from(&found));
        self.open = Some(open);
        Ok(())
    }

    /// Whether nothing but our own entries was written since it was read. A failed look counts as a change.
    pub(crate) fn is_as_left(&self) -> bool {
        self.left.is_some() && Stamp::of(&self.path) == self.left
    }

    /// Whether reading it again would take longer than a turn may.
    pub(crate) fn is_long(&self) -> bool {
        self.left.is_some_and(|left| left.length >= LONG)
    }
}

impl Open {
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

fn create(path: &Path) -> io::Result<Open> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    let length = file.metadata()?.len();
    Ok(Open { file, length })
}

/// What reading a transcript found.
struct Scan {
    entries: u64,
    turns: BTreeSet<String>,
    damaged: u64,
    digest: Digest,
    length: u64,
    /// Up to here whole; what follows is torn.
    keep: u64,
}

impl Scan {
    const NOTHING: Scan =
        Scan { entries: 0, turns: BTreeSet::new(), damaged: 0, digest: Digest::NOTHING, length: 0, keep: 0 };

    fn count(&mut self, line: &[u8], entry: &Entry) {
        self.entries += 1;
        self.digest = self.digest.add(line);
        if let Fact::User { .. } = entry.fact {
            self.turns.insert(entry.turn.clone());
        }
    }

    fn resumed(&self) -> Resumed {
        Resumed {
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
    visit: impl FnMut(&[u8], Entry) -> io::Result<()>,
) -> Result<Option<Scan>, Error> {
    match scan(path, visit) {
        Ok(scan) => Ok(Some(scan)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

fn scan(path: &Path, mut visit: impl FnMut(&[u8], Entry) -> io::Result<()>) -> io::Result<Scan> {
    let mut file = BufReader::new(File::open(path)?);
    let mut scan = Scan::NOTHING;
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
        scan.length += line.len() as u64;
        match judge(&line) {
            Judged::Whole(entry) => {
                scan.count(&line, &entry);
                scan.keep = scan.length;
                visit(&line, *entry)?;
            }
            Judged::Strange => {
                scan.damaged += 1;
                scan.keep = scan.length;
            }
            Judged::Torn => scan.damaged += 1,
        }
        line.clear();
    }
    Ok(scan)
}

enum Judged {
    Whole(Box<Entry>),
    /// JSON, but no entry that this version knows. A later version may, so it stays.
    Strange,
    Torn,
}

fn judge(line: &[u8]) -> Judged {
    // Entries and their newline are one write, so a line without one was cut, even if it reads well.
    if line.last() != Some(&b'\n') {
        return Judged::Torn;
    }
    match serde_json::from_slice(line) {
        Ok(entry) => Judged::Whole(Box::new(entry)),
        Err(error) if error.is_data() => Judged::Strange,
        Err(_) => Judged::Torn,
    }
}
