//! What may come in together: how much, how many, under which names. Everything that a client sends as a set of files, in
//! whatever form, is entered here before it is written.

use ash_session::weight_of;
use ash_snapshot::{BadPath, RelPath, Weight};
use std::collections::HashMap;

/// The most of everything.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Headers of every kind, and folders that are only named in paths.
    pub(crate) entries: usize,
    /// Of all files together, and of one.
    pub(crate) bytes: u64,
    pub(crate) one: u64,
    /// Of folders one in the other.
    pub(crate) depth: usize,
    /// Of all paths together: they are held in memory.
    pub(crate) names: usize,
    /// Unpacked by packed, above what is unpacked anyway.
    pub(crate) ratio: u64,
    pub(crate) small: u64,
    /// Of what comes before an entry and belongs to it: a long name, attributes.
    pub(crate) extension: u64,
}

impl Limits {
    pub(crate) const UPLOAD: Limits = Limits {
        entries: 100_000,
        bytes: 100 << 20,
        one: 100 << 20,
        depth: 128,
        names: 16 << 20,
        ratio: 200,
        small: 16 << 20,
        extension: 128 << 10,
    };

    /// Everything that is read: files, and at most two blocks beside each.
    pub(super) fn stream(&self) -> u64 {
        self.bytes.saturating_add((self.entries as u64).saturating_mul(1024)).saturating_add(1 << 20)
    }
}

/// Why nothing of it is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the archive is {0}; send a gzipped tar or a plain tar")]
    Unsupported(&'static str),
    #[error("the archive is damaged: {0}")]
    Damaged(String),
    #[error("\"{name}\" {why}")]
    BadEntry { name: String, why: String },
    #[error("{0}")]
    TooLarge(String),
    #[error("more than {0} files and folders at once; send them in parts")]
    TooMany(usize),
    #[error("the archive unpacks to more than {most} times its size; send it as a plain tar")]
    Ratio { most: u64 },
}

impl Refusal {
    pub(super) fn code(&self) -> &'static str {
        match self {
            Refusal::Unsupported(_) => "archive_unsupported",
            Refusal::Damaged(_) => "archive_damaged",
            Refusal::BadEntry { .. } => "archive_bad_entry",
            Refusal::TooLarge(_) => "archive_too_large",
            Refusal::TooMany(_) => "archive_too_many_entries",
            Refusal::Ratio { .. } => "archive_ratio",
        }
    }

    pub(super) fn entry(name: &[u8], why: impl Into<String>) -> Refusal {
        Refusal::BadEntry { name: shown(name), why: why.into() }
    }
}

const SHOWN: usize = 100;

/// A name for a person, in one line and not without end.
fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let start: String = text.chars().take(SHOWN).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{}{more}", start.escape_debug())
}

/// Without the name, which may be long.
fn why(bad: &BadPath) -> &'static str {
    match bad {
        BadPath::Empty => "is no name at all",
        BadPath::Absolute(_) => "is absolute; names are relative to the workspace",
        BadPath::Component(_) => "has an empty, \".\" or \"..\" component",
        BadPath::Nul => "has a NUL byte in it",
        BadPath::TooLong => "is too long",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    File(u64),
    Link,
    Folder,
}

struct Node {
    number: u32,
    what: What,
}

/// The tree that has come until now. By name within a folder and not by path: deep ones cost no more than others.
pub(crate) struct Ledger {
    limits: Limits,
    nodes: HashMap<(u32, Box<[u8]>), Node>,
    headers: usize,
    bytes: u64,
    names: usize,
}

const ROOT: u32 = 0;

impl Ledger {
    pub(crate) fn new(limits: &Limits) -> Ledger {
        Ledger { limits: limits.clone(), nodes: HashMap::new(), headers: 0, bytes: 0, names: 0 }
    }

    /// A name as it was sent.
    pub(crate) fn path(&self, name: &[u8]) -> Result<RelPath, Refusal> {
        let path = RelPath::from_bytes(name).map_err(|bad| Refusal::entry(name, why(&bad)))?;
        if name.iter().filter(|byte| **byte == b'/').count() >= self.limits.depth {
            return Err(Refusal::entry(name, format!("is more than {} folders deep", self.limits.depth)));
        }
        // Elsewhere a backslash is a slash, and what is here may be brought there.
        let climbs = name.split(|byte| matches!(byte, b'/' | b'\\')).any(|step| step == b"..");
        if climbs || name.starts_with(b"\\") {
            return Err(Refusal::entry(name, "would lead elsewhere where backslashes are slashes"));
        }
        Ok(path)
    }

    /// Something that takes time, whatever comes of it.
    pub(super) fn header(&mut self) -> Result<(), Refusal> {
        self.headers += 1;
        if self.headers > self.limits.entries { Err(Refusal::TooMany(self.limits.entries)) } else { Ok(()) }
    }

    pub(crate) fn file(&mut self, path: &RelPath, size: u64) -> Result<(), Refusal> {
        let Limits { one, bytes, .. } = self.limits;
        if size > one {
            let error = format!("\"{}\" has {size} bytes; a file may have {one}", shown(path.as_bytes()));
            return Err(Refusal::TooLarge(error));
        }
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > bytes {
            return Err(Refusal::TooLarge(format!("more than {bytes} bytes at once; send them in parts")));
        }
        self.enter(path, What::File(size))
    }

    pub(super) fn link(&mut self, path: &RelPath, target: &[u8]) -> Result<(), Refusal> {
        if target.len() >= 4096 || !path.keeps_inside(target) {
            let why = format!("is a link to \"{}\": links lead down, or up first but not out", shown(target));
            return Err(Refusal::entry(path.as_bytes(), why));
        }
        self.enter(path, What::Link)
    }

    pub(super) fn folder(&mut self, path: &RelPath) -> Result<(), Refusal> {
        self.enter(path, What::Folder)
    }

    /// A hard link: what it names must have come before, and counts again.
    pub(super) fn copy(&mut self, path: &RelPath, of: &RelPath) -> Result<(), Refusal> {
        let why = || {
            format!("is a hard link to \"{}\", which is no file that came before it", shown(of.as_bytes()))
        };
        match self.find(of) {
            Some(What::File(_)) if path == of => {
                Err(Refusal::entry(path.as_bytes(), "is a hard link to itself"))
            }
            Some(What::File(size)) => self.file(path, size),
            Some(What::Link | What::Folder) | None => Err(Refusal::entry(path.as_bytes(), why())),
        }
    }

    /// What all of it will take on the disk, at least.
    pub(super) fn weight(&self) -> Weight {
        let size = |node: &Node| match node.what {
            What::File(size) => size,
            What::Link | What::Folder => 0,
        };
        weight_of(self.nodes.values().map(size))
    }

    fn find(&self, path: &RelPath) -> Option<What> {
        let (mut at, mut what) = (ROOT, What::Folder);
        for name in path.as_bytes().split(|byte| *byte == b'/') {
            let node = self.nodes.get(&(at, Box::from(name)))?;
            (at, what) = (node.number, node.what);
        }
        Some(what)
    }

    fn enter(&mut self, path: &RelPath, what: What) -> Result<(), Refusal> {
        self.names = self.names.saturating_add(path.as_bytes().len());
        if self.names > self.limits.names {
            let error =
                format!("the names alone take more than {} bytes; send them in parts", self.limits.names);
            return Err(Refusal::TooLarge(error));
        }
        let mut steps = path.as_bytes().split(|byte| *byte == b'/').peekable();
        let mut at = ROOT;
        while let Some(name) = steps.next() {
            let wanted = if steps.peek().is_some() { What::Folder } else { what };
            at = self.step(path, (at, name), wanted)?;
        }
        Ok(())
    }

    fn step(&mut self, path: &RelPath, (at, name): (u32, &[u8]), wanted: What) -> Result<u32, Refusal> {
        let count = self.nodes.len();
        if let Some(node) = self.nodes.get_mut(&(at, Box::from(name))) {
            return match (node.what, wanted) {
                (What::Folder, What::Folder) => Ok(node.number),
                // Written twice: the last one counts.
                (What::File(_) | What::Link, What::File(_) | What::Link) => {
                    node.what = wanted;
                    Ok(node.number)
                }
                (What::Link, What::Folder) => {
                    Err(Refusal::entry(path.as_bytes(), "goes through a link that came with it"))
                }
                (What::File(_), What::Folder) | (What::Folder, What::File(_) | What::Link) => {
                    Err(Refusal::entry(path.as_bytes(), "is a file in one place and a folder in another"))
                }
            };
        }
        if count >= self.limits.entries {
            return Err(Refusal::TooMany(self.limits.entries));
        }
        let number = u32::try_from(count + 1).map_err(|_| Refusal::TooMany(self.limits.entries))?;
        self.nodes.insert((at, Box::from(name)), Node { number, what: wanted });
        Ok(number)
    }
}
