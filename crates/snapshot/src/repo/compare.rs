//! Comparing a tree with a folder: both are sorted the same way, so one walk through both finds everything.

use std::collections::HashMap;

use super::{PathSoFar, Repo, no_root};
use crate::folder::{Attributes, Met, Time, Tour, open_to_read};
use crate::pack::{Pack, Record, Records, Stored, encode};
use crate::{Error, Folder, Kind, TreeId};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Relative to the root; empty for the root itself.
    pub path: Vec<u8>,
    pub what: What,
}

/// How the folder differs from the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// In the tree only; for a directory, with all that is in it.
    Missing,
    /// In the folder only; for a directory, with all that is in it.
    Extra,
    Kind,
    Mode,
    Mtime,
    Size,
    Content,
    /// A symbolic link leads elsewhere.
    Target,
    /// A file shares its content with other names than in the tree.
    HardLink,
    /// It cannot be opened or read.
    Unreadable,
}

impl Repo {
    /// What is different in a folder, entry by entry. Sockets, FIFOs and devices are never in a tree and do
    /// not count as extra; neither does the mode of the root, which is not kept.
    pub fn compare(&self, tree: &TreeId, root: &str, folder: &Folder) -> Result<Vec<Difference>, Error> {
        let pack = self.pack(tree)?;
        pack.records().finish_reading()?;
        let mut records = pack.records();
        while let Some(record) = records.read()? {
            if let Record::Root { name, modified } = record
                && name == root.as_bytes()
            {
                return compare_root(&pack, records, folder, modified);
            }
        }
        Err(no_root(tree, root))
    }
}

fn compare_root(
    pack: &Pack,
    records: Records<'_>,
    folder: &Folder,
    modified: Time,
) -> Result<Vec<Difference>, Error> {
    let is = Attributes::of(folder.fd()).map_err(|e| Error::system("read", b".", e))?;
    let (path, differences) = (PathSoFar::default(), Vec::new());
    let tour = Tour::start(folder)?;
    let mut comparing = Comparing { pack, records, tour, path, differences, hard_links: HashMap::new() };
    if is.modified != modified {
        comparing.differences.push(Difference { path: Vec::new(), what: What::Mtime });
    }
    comparing.run()?;
    Ok(comparing.differences)
}

struct Comparing<'a> {
    pack: &'a Pack,
    records: Records<'a>,
    tour: Tour,
    path: PathSoFar,
    differences: Vec<Difference>,
    /// Which FILE an object with several names in the folder stands for.
    hard_links: HashMap<(u64, u64), u64>,
}

impl Comparing<'_> {
    /// Both sides are always in the same directory.
    fn run(&mut self) -> Result<(), Error> {
        let mut depth = 0usize;
        let mut expected = self.expected()?;
        let mut met = self.met()?;
        loop {
            match (expected.take(), met.take()) {
                (None, None) if depth == 0 => return Ok(()),
                (None, None) => {
                    depth -= 1;
                    self.path.leave();
                    (expected, met) = (self.expected()?, self.met()?);
                }
                (Some(record), None) => {
                    self.missing(&record)?;
                    expected = self.expected()?;
                }
                (None, Some(name)) => {
                    self.extra(&name);
                    met = self.met()?;
                }
                (Some(record), Some(name)) => match name_of(&record).cmp(&name) {
                    std::cmp::Ordering::Less => {
                        self.missing(&record)?;
                        (expected, met) = (self.expected()?, Some(name));
                    }
                    std::cmp::Ordering::Greater => {
                        self.extra(&name);
                        (expected, met) = (Some(record), self.met()?);
                    }
                    std::cmp::Ordering::Equal => {
                        depth += usize::from(self.pair(&record, &name)?);
                        (expected, met) = (self.expected()?, self.met()?);
                    }
                },
            }
        }
    }

    /// The next entry of this directory in the tree; `None` at its end.
    fn expected(&mut self) -> Result<Option<Record>, Error> {
        match self.records.read()? {
            Some(Record::Up) => Ok(None),
            Some(record) => Ok(Some(record)),
            None => Err(self.pack.damaged("a root without an end")),
        }
    }

    /// The same of the folder.
    fn met(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match self.tour.meet()? {
            Some(Met::Entry(name)) => Ok(Some(name)),
            Some(Met::Left) | None => Ok(None),
        }
    }

    fn missing(&mut self, record: &Record) -> Result<(), Error> {
        self.differ(name_of(record), What::Missing);
        self.pass(record)
    }

    /// Reads over everything inside, if it is a directory.
    fn pass(&mut self, record: &Record) -> Result<(), Error> {
        let mut depth = usize::from(matches!(record, Record::Dir { .. }));
        while depth > 0 {
            match self.records.read()? {
                Some(Record::Dir { .. }) => depth += 1,
                Some(Record::Up) => depth -= 1,
                Some(_) => {}
                None => return Err(self.pack.damaged("a directory without an end")),
            }
        }
        Ok(())
    }

    fn extra(&mut self, name: &[u8]) {
        let kind = self.tour.attributes(name).map(|is| is.kind);
        if matches!(kind, Ok(Kind::File | Kind::Dir | Kind::Link)) {
            self.differ(name, What::Extra);
        }
    }

    /// The same name on both sides; true if both are directories, which are then entered.
    fn pair(&mut self, record: &Record, name: &[u8]) -> Result<bool, Error> {
        let Ok(is) = self.tour.attributes(name) else {
            self.differ(name, What::Unreadable);
            return self.pass(record).map(|()| false);
        };
        match (record, is.kind) {
            (Record::Dir { mode, modified, .. }, Kind::Dir) => {
                self.metadata(name, &is, *mode, *modified);
                if self.tour.enter(name).is_ok() {
                    self.path.enter(name);
                    return Ok(true);
                }
                self.differ(name, What::Unreadable);
                self.pass(record)?;
            }
            (Record::File { mode, modified, content, .. }, Kind::File) => {
                self.metadata(name, &is, *mode, *modified);
                self.file(name, &is, content);
            }
            (Record::Link { modified, target, .. }, Kind::Link) => self.link(name, &is, *modified, target),
            (Record::Same { ordinal, .. }, Kind::File) => {
                if self.hard_links.get(&is.id) != Some(ordinal) {
                    self.differ(name, What::HardLink);
                }
            }
            (_, _) => {
                self.differ(name, What::Kind);
                self.pass(record)?;
            }
        }
        Ok(false)
    }

    fn metadata(&mut self, name: &[u8], is: &Attributes, mode: u32, modified: Time) {
        if is.raw_mode != mode {
            self.differ(name, What::Mode);
        }
        if is.modified != modified {
            self.differ(name, What::Mtime);
        }
    }

    fn file(&mut self, name: &[u8], is: &Attributes, content: &Stored) {
        if is.names > 1 && self.hard_links.insert(is.id, content.ordinal).is_some() {
            self.differ(name, What::HardLink);
        }
        if is.size != content.size {
            self.differ(name, What::Size);
            return;
        }
        // The same bytes are stored alike, so comparing needs only one side's.
        let hash = open_to_read(self.tour.here(), name).ok().and_then(|(file, _lent)| {
            let mut nowhere = |_: &[u8]| Ok::<(), std::convert::Infallible>(());
            encode(&file, is.size, &mut nowhere).ok()
        });
        match hash {
            Some(found) if found.hash == content.hash => {}
            Some(_) => self.differ(name, What::Content),
            None => self.differ(name, What::Unreadable),
        }
    }

    fn link(&mut self, name: &[u8], is: &Attributes, modified: Time, target: &[u8]) {
        if is.modified != modified {
            self.differ(name, What::Mtime);
        }
        match rustix::fs::readlinkat(self.tour.here(), name, Vec::new()) {
            Ok(found) if found.to_bytes() == target => {}
            Ok(_) => self.differ(name, What::Target),
            Err(_) => self.differ(name, What::Unreadable),
        }
    }

    fn differ(&mut self, name: &[u8], what: What) {
        self.differences.push(Difference { path: self.path.of(name), what });
    }
}

fn name_of(record: &Record) -> &[u8] {
    match record {
        Record::Root { name, .. }
        | Record::Dir { name, .. }
        | Record::File { name, .. }
        | Record::Link { name, .. }
        | Record::Same { name, .. } => name,
        Record::Up => b"",
    }
}
