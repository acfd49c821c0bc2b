//! Capturing: a tree that may be changing under us, into a pack. One bad file never costs the others; what
//! could not be taken is said.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;

use rustix::io::Errno;

use crate::folder::{Attributes, Forced, Met, Time, Tour, open_to_read};
use crate::pack::{Broken, Fingerprint, PackWriter, encode};
use crate::path::is_name;
use crate::{BadPath, Error, Folder, Kind, TreeId, error};

/// How often a file that changes while it is read is read again.
const READS: usize = 3;

/// Somebody can make a million sockets; a report names this many and counts the rest.
const LONGEST_LIST: usize = 10_000;

/// A folder and the name it has in the tree.
pub struct Root<'a> {
    pub name: &'static str,
    pub folder: &'a Folder,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub tree: TreeId,
    /// Regular files, hard links counted once.
    pub files: u64,
    /// Their sizes.
    pub bytes: u64,
    pub skipped: Vec<Skipped>,
    /// Files that changed each time they were read, as `root/path`: taken, but perhaps not as they ever were.
    pub unsettled: Vec<Vec<u8>>,
    /// How many more there are than the two lists name.
    pub unlisted: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// `root/path`.
    pub path: Vec<u8>,
    pub why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    Excluded,
    Socket,
    Fifo,
    Device,
    /// Another file system is mounted there.
    Mount,
    /// It was removed, or replaced by something else, between two looks.
    Gone,
    Unreadable(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Excluded => f.write_str("excluded"),
            Why::Socket => f.write_str("a socket"),
            Why::Fifo => f.write_str("a FIFO"),
            Why::Device => f.write_str("a device"),
            Why::Mount => f.write_str("another file system"),
            Why::Gone => f.write_str("gone while it was read"),
            Why::Unreadable(cause) => write!(f, "unreadable: {cause}"),
        }
    }
}

/// A [`Taken`] before its tree has an id.
#[derive(Default)]
pub(super) struct Report {
    files: u64,
    bytes: u64,
    skipped: Vec<Skipped>,
    unsettled: Vec<Vec<u8>>,
    unlisted: u64,
}

impl Report {
    pub(super) fn of(self, tree: TreeId) -> Taken {
        let Report { files, bytes, skipped, unsettled, unlisted } = self;
        Taken { tree, files, bytes, skipped, unsettled, unlisted }
    }
}

pub(super) fn take(
    pack: PackWriter,
    roots: &[Root<'_>],
    exclude: &dyn Fn(&[u8], &[u8]) -> bool,
) -> Result<(PackWriter, Report), Error> {
    let mut sorted: Vec<&Root<'_>> = roots.iter().collect();
    sorted.sort_by_key(|root| root.name);
    if let Some(bad) = bad_root(&sorted) {
        return Err(Error::BadPath(BadPath::Component(bad.to_owned())));
    }
    let mut taking =
        Taking { pack, report: Report::default(), exclude, root: "", hard_links: HashMap::new() };
    for root in sorted {
        taking.root(root)?;
    }
    Ok((taking.pack, taking.report))
}

/// A root's name is a name like others, and is there once.
fn bad_root(sorted: &[&Root<'_>]) -> Option<&'static str> {
    let twice = sorted.windows(2).find(|pair| pair[0].name == pair[1].name).map(|pair| pair[0]);
    twice.or_else(|| sorted.iter().find(|root| !is_name(root.name.as_bytes())).copied()).map(|root| root.name)
}

struct Taking<'a> {
    pack: PackWriter,
    report: Report,
    exclude: &'a dyn Fn(&[u8], &[u8]) -> bool,
    root: &'static str,
    /// Files with several names, by what they are: the number of the FILE that holds them.
    hard_links: HashMap<(u64, u64), u64>,
}

/// Why an entry is not taken, or why nothing can be.
enum Trouble {
    Skip(Why),
    Fail(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Fail(error)
    }
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Trouble {
        match errno {
            // Ours, not the file's: skipping would empty the snapshot.
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
                Trouble::Fail(Error::system("read", b"workspace", errno))
            }
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::STALE => {
                Trouble::Skip(Why::Gone)
            }
            Errno::XDEV => Trouble::Skip(Why::Mount),
            other => Trouble::Skip(Why::Unreadable(io::Error::from(other).to_string())),
        }
    }
}

impl Taking<'_> {
    fn root(&mut self, root: &Root<'_>) -> Result<(), Error> {
        self.root = root.name;
        self.hard_links.clear();
        let is =
            Attributes::of(root.folder.fd()).map_err(|e| Error::system("read", root.name.as_bytes(), e))?;
        self.pack.root(root.name, is.modified)?;
        let mut tour = Tour::start(root.folder)?;
        while let Some(met) = tour.meet()? {
            match met {
                Met::Left => self.pack.up()?,
                Met::Entry(name) => self.entry(&mut tour, &name)?,
            }
        }
        Ok(())
    }

    fn entry(&mut self, tour: &mut Tour, name: &[u8]) -> Result<(), Error> {
        let path = tour.path_of(name);
        match self.take_entry(tour, name, &path) {
            Ok(()) => Ok(()),
            Err(Trouble::Skip(why)) => {
                self.skip(&path, why);
                Ok(())
            }
            Err(Trouble::Fail(error)) => Err(error),
        }
    }

    fn take_entry(&mut self, tour: &mut Tour, name: &[u8], path: &[u8]) -> Result<(), Trouble> {
        if (self.exclude)(self.root.as_bytes(), path) {
            return Err(Trouble::Skip(Why::Excluded));
        }
        let is = tour.attributes(name)?;
        match is.kind {
            Kind::Dir => {
                let is = tour.enter(name)?;
                Ok(self.pack.dir(name, &is)?)
            }
            Kind::File => self.file(tour, name, path),
            Kind::Link => self.link(tour, name, is.modified),
            Kind::Socket => Err(Trouble::Skip(Why::Socket)),
            Kind::Fifo => Err(Trouble::Skip(Why::Fifo)),
            Kind::Device => Err(Trouble::Skip(Why::Device)),
        }
    }

    fn link(&mut self, tour: &Tour, name: &[u8], modified: Time) -> Result<(), Trouble> {
        let target = rustix::fs::readlinkat(tour.here(), name, Vec::new())?;
        Ok(self.pack.link(name, modified, target.to_bytes())?)
    }

    fn file(&mut self, tour: &Tour, name: &[u8], path: &[u8]) -> Result<(), Trouble> {
        let (file, opened) = open_to_read(tour.here(), name)?;
        if let Some(&ordinal) = self.hard_links.get(&opened.is.id) {
            return Ok(self.pack.same(name, ordinal)?);
        }
        let Read { is, content, settled } = self.content(&file, &opened)?;
        let ordinal = self.pack.file(name, &is, &content)?;
        if is.names > 1 {
            self.hard_links.insert(is.id, ordinal);
        }
        if !settled {
            self.unsettle(path);
        }
        self.report.files += 1;
        self.report.bytes = self.report.bytes.saturating_add(content.size);
        Ok(())
    }

    fn content(&mut self, file: &File, opened: &Forced) -> Result<Read, Trouble> {
        let mark = self.pack.mark();
        let mut read = self.content_once(file, mark)?;
        for _ in 1..READS {
            if read.settled {
                break;
            }
            self.pack.rewind(mark)?;
            read = self.content_once(file, mark)?;
        }
        // The mode as it was before we lent ourselves one.
        read.is.raw_mode = opened.is.raw_mode;
        Ok(read)
    }

    fn content_once(&mut self, file: &File, mark: u64) -> Result<Read, Trouble> {
        let before = Attributes::of(file)?;
        let pack = &mut self.pack;
        let content = match encode(file, before.size, &mut |bytes| pack.content(bytes)) {
            Ok(content) => content,
            Err(Broken::Sink(error)) => return Err(Trouble::Fail(error)),
            Err(Broken::Source(cause)) => {
                self.pack.rewind(mark)?;
                return Err(Trouble::from(error::errno(&cause).unwrap_or(Errno::IO)));
            }
        };
        let after = Attributes::of(file)?;
        let settled =
            (before.size, before.modified, before.changed) == (after.size, after.modified, after.changed);
        Ok(Read { is: before, content, settled })
    }

    fn skip(&mut self, path: &[u8], why: Why) {
        let path = self.with_root(path);
        if self.report.skipped.len() < LONGEST_LIST {
            self.report.skipped.push(Skipped { path, why });
        } else {
            self.report.unlisted += 1;
        }
    }

    fn unsettle(&mut self, path: &[u8]) {
        let path = self.with_root(path);
        if self.report.unsettled.len() < LONGEST_LIST {
            self.report.unsettled.push(path);
        } else {
            self.report.unlisted += 1;
        }
    }

    fn with_root(&self, path: &[u8]) -> Vec<u8> {
        [self.root.as_bytes(), b"/", path].concat()
    }
}

/// A content as it was read.
struct Read {
    is: Attributes,
    content: Fingerprint,
    settled: bool,
}
