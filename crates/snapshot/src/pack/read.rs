//! Reading a pack that may be damaged or made by somebody hostile: nothing in it is believed before it is
//! checked, and no length in it decides how much memory is taken.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::content::{LONGEST_LITERAL, read_head};
use super::{BUFFER, Content, DIR, FILE, LINK, MAGIC, ROOT, SAME, TRAILER, UP, damaged};
use crate::folder::Time;
use crate::path::is_name;
use crate::{Error, TreeId, error};

const LONGEST_TARGET: usize = 4095;
const RECORDS_BUFFER: usize = 64 << 10;

pub(crate) struct Pack {
    tree: TreeId,
    file: Arc<File>,
    index_at: u64,
    index_length: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    Root { name: Vec<u8>, modified: Time },
    Dir { name: Vec<u8>, mode: u32, modified: Time },
    File { name: Vec<u8>, mode: u32, modified: Time, content: Stored },
    Link { name: Vec<u8>, modified: Time, target: Vec<u8> },
    Same { name: Vec<u8>, ordinal: u64 },
    Up,
}

/// Takes literal bytes and where in the file they are.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), Error>;

/// A content in the pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) size: u64,
    pub(crate) hash: blake3::Hash,
    /// The number of the FILE in its root.
    pub(crate) ordinal: u64,
    at: u64,
    length: u64,
}

impl Pack {
    pub(crate) fn open(path: &Path, tree: &TreeId) -> Result<Pack, Error> {
        let file = File::open(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Error::NotFound { path: format!("snapshot {tree}") },
            _ => Error::system("open", path.as_os_str().as_bytes(), e),
        })?;
        let length = file.metadata().map_err(|e| unreadable(tree, e))?.len();
        let mut pack = Pack { tree: tree.clone(), file: Arc::new(file), index_at: 0, index_length: 0 };
        pack.read_frame(length)?;
        Ok(pack)
    }

    /// The first and the last bytes. Their hash is checked when the index is read.
    fn read_frame(&mut self, length: u64) -> Result<(), Error> {
        let magic_length = MAGIC.len() as u64;
        let Some(trailer_at) = length.checked_sub(TRAILER).filter(|&at| at >= magic_length) else {
            return Err(self.damaged("it is too short"));
        };
        let mut magic = [0; MAGIC.len()];
        self.read_exact_at(&mut magic, 0)?;
        if magic != *MAGIC {
            return Err(self.damaged("it does not begin as a pack of version 0"));
        }
        let mut trailer = [0; TRAILER as usize];
        self.read_exact_at(&mut trailer, trailer_at)?;
        let (numbers, hash) = trailer.split_at(16);
        let (at, length) = numbers.split_at(8);
        (self.index_at, self.index_length) = (number(at), number(length));
        let fits =
            self.index_at >= magic_length && self.index_at.checked_add(self.index_length) == Some(trailer_at);
        if !fits || blake3::Hash::from_slice(hash).map(TreeId::of).ok().as_ref() != Some(&self.tree) {
            return Err(self.damaged("its trailer is wrong"));
        }
        Ok(())
    }

    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> Result<(), Error> {
        self.file.read_exact_at(buffer, at).map_err(|e| unreadable(&self.tree, e))
    }

    pub(crate) fn records(&self) -> Records<'_> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(MAGIC);
        let index = Hashed { from: self.span(self.index_at, self.index_length), hasher };
        Records {
            pack: self,
            input: BufReader::with_capacity(RECORDS_BUFFER, index),
            left: self.index_length,
            levels: Vec::new(),
            last_root: Vec::new(),
            content_at: MAGIC.len() as u64,
            files: 0,
        }
    }

    /// Hands over the literal bytes of a content with their offsets, and checks all of it. What was handed
    /// over counts only if this succeeds.
    pub(crate) fn unpack(&self, content: &Stored, path: &[u8], sink: Sink<'_>) -> Result<(), Error> {
        let stored = Hashed { from: self.span(content.at, content.length), hasher: blake3::Hasher::new() };
        let mut stored = BufReader::with_capacity(RECORDS_BUFFER, stored);
        let broken = || self.damaged(format!("the content of {:?} is wrong", error::shown(path)));
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::UnexpectedEof => broken(),
            _ => unreadable(&self.tree, e),
        };
        let mut buffer = Vec::new();
        let (mut at, mut used) = (0, 0);
        loop {
            let (zeros, length) = read_head(&mut stored).map_err(failed)?;
            let (start, end) = place(at, zeros, length, content.size).ok_or_else(broken)?;
            (at, used) = (end, used + 12 + u64::from(length));
            if length == 0 {
                break;
            }
            buffer.resize(length as usize, 0);
            stored.read_exact(&mut buffer).map_err(failed)?;
            sink(start, &buffer)?;
        }
        let whole = at == content.size && used == content.length;
        if !whole || stored.get_ref().hasher.finalize() != content.hash {
            return Err(broken());
        }
        Ok(())
    }

    /// Only for a content that [`Pack::unpack`] found whole.
    pub(crate) fn content(&self, content: &Stored) -> Content {
        Content::new(self.span(content.at, content.length))
    }

    pub(crate) fn damaged(&self, what: impl Into<String>) -> Error {
        damaged(&self.tree, what)
    }

    fn span(&self, at: u64, length: u64) -> Span {
        Span { file: Arc::clone(&self.file), at, left: length }
    }
}

/// From where to where a run's literal bytes go, if it is one.
fn place(at: u64, zeros: u64, length: u32, size: u64) -> Option<(u64, u64)> {
    let start = at.checked_add(zeros)?;
    let end = start.checked_add(length.into())?;
    (end <= size && length <= LONGEST_LITERAL).then_some((start, end))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn unreadable(tree: &TreeId, cause: io::Error) -> Error {
    match cause.kind() {
        io::ErrorKind::UnexpectedEof => damaged(tree, "it ends too early"),
        _ => Error::system("read", tree.as_str().as_bytes(), cause),
    }
}

/// The entries of the index in order, each checked against what may follow what. The hash is known only at
/// the end: whoever acts on a record before has to have read all of them once.
pub(crate) struct Records<'a> {
    pack: &'a Pack,
    input: BufReader<Hashed>,
    left: u64,
    /// For each open directory the last name in it.
    levels: Vec<Vec<u8>>,
    last_root: Vec<u8>,
    content_at: u64,
    files: u64,
}

impl Records<'_> {
    pub(crate) fn read(&mut self) -> Result<Option<Record>, Error> {
        if self.left == 0 {
            self.finish()?;
            return Ok(None);
        }
        let [tag] = self.bytes()?;
        let record = match (tag, self.levels.is_empty()) {
            (ROOT, true) => self.root()?,
            (UP, false) => {
                self.levels.pop();
                Record::Up
            }
            (DIR, false) => self.dir()?,
            (FILE, false) => self.file()?,
            (LINK, false) => self.link()?,
            (SAME, false) => self.same()?,
            _ => return Err(self.wrong("an entry of an unknown kind")),
        };
        Ok(Some(record))
    }

    /// Reads to the end, which checks the whole index.
    pub(crate) fn finish_reading(mut self) -> Result<(), Error> {
        while self.read()?.is_some() {}
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        if !self.levels.is_empty() || self.content_at != self.pack.index_at {
            return Err(self.wrong("it is not complete"));
        }
        let mut hasher = self.input.get_ref().hasher.clone();
        hasher.update(&self.pack.index_at.to_le_bytes()).update(&self.pack.index_length.to_le_bytes());
        if TreeId::of(hasher.finalize()) != self.pack.tree {
            return Err(self.wrong("its hash is another"));
        }
        Ok(())
    }

    fn root(&mut self) -> Result<Record, Error> {
        let name = self.name()?;
        if name <= self.last_root {
            return Err(self.wrong("its roots are out of order"));
        }
        self.last_root.clone_from(&name);
        self.files = 0;
        self.levels.push(Vec::new());
        Ok(Record::Root { name, modified: self.time()? })
    }

    fn dir(&mut self) -> Result<Record, Error> {
        let name = self.next_name()?;
        let record = Record::Dir { name, mode: self.mode(0o1777)?, modified: self.time()? };
        self.levels.push(Vec::new());
        Ok(record)
    }

    fn file(&mut self) -> Result<Record, Error> {
        let name = self.next_name()?;
        let (mode, modified) = (self.mode(0o777)?, self.time()?);
        let (size, length) = (self.u64()?, self.u64()?);
        let hash = blake3::Hash::from_bytes(self.bytes()?);
        let content = Stored { size, hash, ordinal: self.files, at: self.content_at, length };
        let end = self.content_at.checked_add(length).filter(|&end| end <= self.pack.index_at);
        self.content_at = end.ok_or_else(|| self.wrong("a content is out of bounds"))?;
        if i64::try_from(size).is_err() {
            return Err(self.wrong("a file of an impossible size"));
        }
        self.files += 1;
        Ok(Record::File { name, mode, modified, content })
    }

    fn link(&mut self) -> Result<Record, Error> {
        let name = self.next_name()?;
        let modified = self.time()?;
        let length = usize::from(u16::from_le_bytes(self.bytes()?));
        if !(1..=LONGEST_TARGET).contains(&length) {
            return Err(self.wrong("a link with an impossible target"));
        }
        let mut target = vec![0; length];
        self.fill(&mut target)?;
        if target.contains(&0) {
            return Err(self.wrong("a link with an impossible target"));
        }
        Ok(Record::Link { name, modified, target })
    }

    fn same(&mut self) -> Result<Record, Error> {
        let name = self.next_name()?;
        let ordinal = self.u64()?;
        if ordinal >= self.files {
            return Err(self.wrong("a hard link to a file that does not come before it"));
        }
        Ok(Record::Same { name, ordinal })
    }

    /// Ascending order is also what makes a duplicate impossible.
    fn next_name(&mut self) -> Result<Vec<u8>, Error> {
        let name = self.name()?;
        match self.levels.last_mut() {
            Some(last) if *last < name => last.clone_from(&name),
            Some(_) | None => return Err(self.wrong("its names are out of order")),
        }
        Ok(name)
    }

    fn name(&mut self) -> Result<Vec<u8>, Error> {
        let [length] = self.bytes()?;
        let mut name = vec![0; usize::from(length)];
        self.fill(&mut name)?;
        if is_name(&name) { Ok(name) } else { Err(self.wrong("an impossible name")) }
    }

    fn mode(&mut self, allowed: u32) -> Result<u32, Error> {
        let mode = u32::from(u16::from_le_bytes(self.bytes()?));
        if mode & !allowed == 0 { Ok(mode) } else { Err(self.wrong("an impossible mode")) }
    }

    fn time(&mut self) -> Result<Time, Error> {
        let seconds = i64::from_le_bytes(self.bytes()?);
        let nanos = u32::from_le_bytes(self.bytes()?);
        if nanos < 1_000_000_000 {
            Ok(Time { seconds, nanos })
        } else {
            Err(self.wrong("an impossible time"))
        }
    }

    fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), Error> {
        let left = self.left.checked_sub(buffer.len() as u64);
        self.left = left.ok_or_else(|| self.wrong("it ends within an entry"))?;
        self.input.read_exact(buffer).map_err(|e| unreadable(&self.pack.tree, e))
    }

    fn wrong(&self, what: &str) -> Error {
        self.pack.damaged(format!("in its index: {what}"))
    }
}

/// A stretch of the pack, read by position: any number of readers share one handle.
#[derive(Debug)]
pub(crate) struct Span {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Read for Span {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(usize::try_from(self.left).unwrap_or(BUFFER));
        let read = self.file.read_at(&mut buffer[..length], self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

struct Hashed {
    from: Span,
    hasher: blake3::Hasher,
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}
