//! Whether folders are still what they were when a snapshot was made of them. Where the index of that snapshot is at
//! hand, what the file system says of each entry is compared, and only what looks changed is read; otherwise everything
//! is. Times alone are no difference.

use std::os::fd::AsFd;
use std::path::Path;

use super::compare::holds;
use super::read::Reader;
use super::{Difference, Exclude, Repo, Root, What};
use crate::folder::{Attributes, Met, Tour, open_to_read, xattrs};
use crate::index::{Directory, Entries, Index, Known, KnownEntry, Look, Nature};
use crate::object::Content;
use crate::{Error, Kind, TreeId};

/// What is to be compared with a snapshot.
#[derive(Clone, Copy)]
pub struct Audit<'a> {
    pub tree: &'a TreeId,
    pub roots: &'a [Root<'a>],
    /// What the folders looked like at their last capture. Used only if that was of the same files.
    pub index: &'a Path,
    /// The same as of the capture.
    pub exclude: Exclude<'a>,
    pub doubt: Doubt,
}

/// What is done about an entry that does not look as it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// It is read, and is a difference only if it holds something else.
    Read,
    /// It is a difference.
    Believe,
}

/// How folders were compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audited {
    Metadata,
    Content,
}

/// Is told of each difference, with the root that it is in.
type Tell<'t> = &'t mut dyn FnMut(&str, &Difference);

impl Repo {
    /// Tells every difference between the folders and the snapshot. Sockets, FIFOs and devices do not count, nor does
    /// what the snapshot left out.
    pub fn audit(&self, audit: &Audit<'_>, tell: Tell<'_>) -> Result<Audited, Error> {
        let index = self.indexes.take(audit.index);
        let knows = |root: &Root<'_>| index.get(root.name.as_bytes()).is_some();
        if !(index.base().is_some_and(|base| base.same_files(audit.tree)) && audit.roots.iter().all(knows)) {
            self.audit_contents(audit, tell)?;
            return Ok(Audited::Content);
        }
        let reader = self.reader();
        let done = audit.roots.iter().try_for_each(|root| {
            let walk = Walk { reader: &reader, index: &index, audit, root, path: Vec::new(), tell };
            walk.run()
        });
        self.indexes.put(audit.index, index);
        done.map(|()| Audited::Metadata)
    }

    fn audit_contents(&self, audit: &Audit<'_>, tell: Tell<'_>) -> Result<(), Error> {
        for Root { name, folder } in audit.roots {
            for difference in self.compare(audit.tree, name, folder)? {
                let left_out = (audit.exclude)(name.as_bytes(), &difference.path);
                if difference.what != What::Mtime && !left_out {
                    tell(name, &difference);
                }
            }
        }
        Ok(())
    }
}

/// One root, gone through together with what is remembered of it.
struct Walk<'a, 't> {
    reader: &'a Reader<'a>,
    index: &'a Index,
    audit: &'a Audit<'a>,
    root: &'a Root<'a>,
    /// The directory one is in, from the root's own name on.
    path: Vec<u8>,
    tell: &'a mut (dyn FnMut(&str, &Difference) + 't),
}

/// A directory as it is remembered, and those of its entries that have not been met yet.
struct Level<'a> {
    directory: &'a Directory,
    entries: std::iter::Peekable<Entries<'a>>,
    /// How long the path was one level higher.
    path_before: usize,
}

impl<'a> Walk<'a, '_> {
    fn run(mut self) -> Result<(), Error> {
        let mut tour = Tour::start(self.root.folder)?;
        let mut levels: Vec<Level<'a>> = Vec::new();
        let root = self.root.name.as_bytes();
        self.path = root.to_vec();
        levels.extend(self.level(root.len()));
        while let Some(met) = tour.meet()? {
            let Some(level) = levels.last_mut() else { return Ok(()) };
            match met {
                Met::Left => {
                    level.entries.by_ref().for_each(|entry| self.missing(&entry));
                    self.path.truncate(level.path_before);
                    levels.pop();
                }
                Met::Entry(name) => {
                    while let Some(entry) = level.entries.next_if(|entry| entry.name < name.as_slice()) {
                        self.missing(&entry);
                    }
                    let directory = level.directory;
                    let entered = match level.entries.next_if(|entry| entry.name == name.as_slice()) {
                        Some(entry) => self.pair(&mut tour, directory, &entry)?,
                        None => {
                            self.extra(&tour, &name);
                            false
                        }
                    };
                    if entered {
                        let before = self.path.len();
                        self.path.push(b'/');
                        self.path.extend_from_slice(&name);
                        levels.extend(self.level(before));
                    }
                }
            }
        }
        Ok(())
    }

    fn level(&self, path_before: usize) -> Option<Level<'a>> {
        let directory = self.index.get(&self.path)?;
        Some(Level { directory, entries: self.index.entries(directory).peekable(), path_before })
    }

    fn missing(&mut self, entry: &KnownEntry<'_>) {
        if !entry.is_skipped() {
            self.differ(entry.name, What::Missing);
        }
    }

    fn extra(&mut self, tour: &Tour, name: &[u8]) {
        let kind = tour.attributes(name).map(|is| is.kind);
        if matches!(kind, Ok(Kind::File | Kind::Dir | Kind::Link)) {
            self.differ(name, What::Extra);
        }
    }

    /// The same name on both sides. True: both are directories, and the tour is in it.
    fn pair(&mut self, tour: &mut Tour, above: &Directory, entry: &KnownEntry<'_>) -> Result<bool, Error> {
        if entry.is_skipped() {
            return Ok(false);
        }
        let Ok(is) = tour.attributes(entry.name) else {
            self.differ(entry.name, What::Unreadable);
            return Ok(false);
        };
        let look = Look::from(&is);
        if look.nature != entry.look.nature {
            self.differ(entry.name, What::Kind);
            return Ok(false);
        }
        if look.mode != entry.look.mode {
            self.differ(entry.name, What::Mode);
        }
        match look.nature {
            Nature::Dir => Ok(self.directory(tour, entry, &is)),
            Nature::File | Nature::Link => {
                let same = look == entry.look;
                match self.audit.doubt {
                    Doubt::Believe if !same => self.differ(entry.name, What::Content),
                    Doubt::Read if !same || above.is_racy(look.changed) => self.read(tour, entry, &is)?,
                    Doubt::Believe | Doubt::Read => {}
                }
                Ok(false)
            }
            Nature::Other => Ok(false),
        }
    }

    fn directory(&mut self, tour: &mut Tour, entry: &KnownEntry<'_>, is: &Attributes) -> bool {
        let child = [self.path.as_slice(), b"/", entry.name].concat();
        if self.index.get(&child).is_none() || tour.enter(entry.name).is_err() {
            self.differ(entry.name, What::Unreadable);
            return false;
        }
        if is.changed != entry.look.changed
            && let Known::Dir(known) = entry.known()
            && known != xattrs(tour.here())
        {
            self.differ(entry.name, What::Attributes);
        }
        true
    }

    /// It does not look as it did: what it holds decides.
    fn read(&mut self, tour: &Tour, entry: &KnownEntry<'_>, is: &Attributes) -> Result<(), Error> {
        match entry.known() {
            Known::File(content, known) => {
                let Ok((file, _lent)) = open_to_read(tour.here(), entry.name) else {
                    self.differ(entry.name, What::Unreadable);
                    return Ok(());
                };
                if known != xattrs(file.as_fd()) {
                    self.differ(entry.name, What::Attributes);
                }
                self.content(entry.name, is, &content, &file)
            }
            Known::Link(target) => {
                let found = rustix::fs::readlinkat(tour.here(), entry.name, Vec::new());
                if !found.is_ok_and(|found| found.to_bytes() == target) {
                    self.differ(entry.name, What::Target);
                }
                Ok(())
            }
            Known::Dir(_) | Known::Skipped(_) => Ok(()),
        }
    }

    fn content(
        &mut self,
        name: &[u8],
        is: &Attributes,
        content: &Content,
        file: &std::fs::File,
    ) -> Result<(), Error> {
        if is.size != content.size {
            self.differ(name, What::Size);
            return Ok(());
        }
        match holds(self.reader, file, &self.reader.content(content)?) {
            Ok(true) => {}
            Ok(false) => self.differ(name, What::Content),
            Err(_) => self.differ(name, What::Unreadable),
        }
        Ok(())
    }

    fn differ(&mut self, name: &[u8], what: What) {
        let root = self.root.name;
        let mut path = self.path.get(root.len() + 1..).unwrap_or_default().to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        if !(self.audit.exclude)(root.as_bytes(), &path) {
            (self.tell)(root, &Difference { path, what });
        }
    }
}
