//! Validates a set of files from a client: number, sizes and names. Every such set, in whatever format, passes this
//! before it is written.

use ash_session::weight_of;
use ash_snapshot::{BadPath, DiskUsage, RelPath};
use std::collections::HashMap;

/// Maximum values for one upload.
#[derive(Debug, Clone)]
pub(crate) struct ArchiveLimits {
    /// Headers of every kind, and folders that appear only in paths.
    pub(crate) entries: usize,
    /// All files together, and one file.
    pub(crate) bytes: u64,
    pub(crate) file_bytes: u64,
    /// Nested folders.
    pub(crate) depth: usize,
    /// Bytes of all paths together, because they are held in memory.
    pub(crate) names: usize,
    /// Unpacked size divided by packed size, beyond `ratio_free_bytes`.
    pub(crate) ratio: u64,
    pub(crate) ratio_free_bytes: u64,
    /// Bytes of an extension header, such as a long name or attributes.
    pub(crate) extension: u64,
}

impl ArchiveLimits {
    pub(crate) const UPLOAD: ArchiveLimits = ArchiveLimits {
        entries: 100_000,
        bytes: 100 << 20,
        file_bytes: 100 << 20,
        depth: 128,
        names: 16 << 20,
        ratio: 200,
        ratio_free_bytes: 16 << 20,
        extension: 128 << 10,
    };

    /// Maximum bytes of the whole stream: all files, and up to two blocks beside each.
    pub(super) fn stream(&self) -> u64 {
        self.bytes.saturating_add((self.entries as u64).saturating_mul(1024)).saturating_add(1 << 20)
    }
}

/// Why an archive is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArchiveError {
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

impl ArchiveError {
    pub(super) fn code(&self) -> &'static str {
        match self {
            ArchiveError::Unsupported(_) => "archive_unsupported",
            ArchiveError::Damaged(_) => "archive_damaged",
            ArchiveError::BadEntry { .. } => "archive_bad_entry",
            ArchiveError::TooLarge(_) => "archive_too_large",
            ArchiveError::TooMany(_) => "archive_too_many_entries",
            ArchiveError::Ratio { .. } => "archive_ratio",
        }
    }

    pub(super) fn entry(name: &[u8], why: impl Into<String>) -> ArchiveError {
        ArchiveError::BadEntry { name: shown(name), why: why.into() }
    }
}

const SHOWN: usize = 100;

/// A name for a message: escaped, in one line, and truncated.
fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let start: String = text.chars().take(SHOWN).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{}{more}", start.escape_debug())
}

/// The reason without the name, which may be long.
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
enum UploadNodeKind {
    File(u64),
    Link,
    Folder,
}

struct UploadNode {
    number: u32,
    what: UploadNodeKind,
}

/// The tree of all entries so far. Nodes are found by name within a folder and not by full path, so that deep paths
/// cost no more than others.
pub(crate) struct UploadValidator {
    limits: ArchiveLimits,
    nodes: HashMap<(u32, Box<[u8]>), UploadNode>,
    headers: usize,
    bytes: u64,
    names: usize,
}

const ROOT: u32 = 0;

impl UploadValidator {
    pub(crate) fn new(limits: &ArchiveLimits) -> UploadValidator {
        UploadValidator { limits: limits.clone(), nodes: HashMap::new(), headers: 0, bytes: 0, names: 0 }
    }

    /// Parses a name from the client.
    pub(crate) fn path(&self, name: &[u8]) -> Result<RelPath, ArchiveError> {
        let path = RelPath::from_bytes(name).map_err(|bad| ArchiveError::entry(name, why(&bad)))?;
        if name.iter().filter(|byte| **byte == b'/').count() >= self.limits.depth {
            return Err(ArchiveError::entry(
                name,
                format!("is more than {} folders deep", self.limits.depth),
            ));
        }
        // On other systems a backslash separates folders, and the files may be copied there.
        let climbs = name.split(|byte| matches!(byte, b'/' | b'\\')).any(|step| step == b"..");
        if climbs || name.starts_with(b"\\") {
            return Err(ArchiveError::entry(name, "would lead elsewhere where backslashes are slashes"));
        }
        Ok(path)
    }

    /// Counts every header, because each takes time even if it has no effect.
    pub(super) fn count_header(&mut self) -> Result<(), ArchiveError> {
        self.headers += 1;
        if self.headers > self.limits.entries {
            Err(ArchiveError::TooMany(self.limits.entries))
        } else {
            Ok(())
        }
    }

    pub(crate) fn file(&mut self, path: &RelPath, size: u64) -> Result<(), ArchiveError> {
        let ArchiveLimits { file_bytes: one, bytes, .. } = self.limits;
        if size > one {
            let error = format!("\"{}\" has {size} bytes; a file may have {one}", shown(path.as_bytes()));
            return Err(ArchiveError::TooLarge(error));
        }
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > bytes {
            return Err(ArchiveError::TooLarge(format!(
                "more than {bytes} bytes at once; send them in parts"
            )));
        }
        self.insert(path, UploadNodeKind::File(size))
    }

    pub(super) fn link(&mut self, path: &RelPath, target: &[u8]) -> Result<(), ArchiveError> {
        if target.len() >= 4096 || !path.link_stays_inside(target) {
            let why = format!("is a link to \"{}\": links lead down, or up first but not out", shown(target));
            return Err(ArchiveError::entry(path.as_bytes(), why));
        }
        self.insert(path, UploadNodeKind::Link)
    }

    pub(super) fn folder(&mut self, path: &RelPath) -> Result<(), ArchiveError> {
        self.insert(path, UploadNodeKind::Folder)
    }

    /// A hard link: its target must be an earlier file, and its size counts again.
    pub(super) fn copy(&mut self, path: &RelPath, of: &RelPath) -> Result<(), ArchiveError> {
        let why = || {
            format!("is a hard link to \"{}\", which is no file that came before it", shown(of.as_bytes()))
        };
        match self.find(of) {
            Some(UploadNodeKind::File(_)) if path == of => {
                Err(ArchiveError::entry(path.as_bytes(), "is a hard link to itself"))
            }
            Some(UploadNodeKind::File(size)) => self.file(path, size),
            Some(UploadNodeKind::Link | UploadNodeKind::Folder) | None => {
                Err(ArchiveError::entry(path.as_bytes(), why()))
            }
        }
    }

    /// The minimum disk usage of the whole set.
    pub(super) fn disk_usage(&self) -> DiskUsage {
        let size = |node: &UploadNode| match node.what {
            UploadNodeKind::File(size) => size,
            UploadNodeKind::Link | UploadNodeKind::Folder => 0,
        };
        weight_of(self.nodes.values().map(size))
    }

    fn find(&self, path: &RelPath) -> Option<UploadNodeKind> {
        let (mut at, mut what) = (ROOT, UploadNodeKind::Folder);
        for name in path.as_bytes().split(|byte| *byte == b'/') {
            let node = self.nodes.get(&(at, Box::from(name)))?;
            (at, what) = (node.number, node.what);
        }
        Some(what)
    }

    fn insert(&mut self, path: &RelPath, what: UploadNodeKind) -> Result<(), ArchiveError> {
        self.names = self.names.saturating_add(path.as_bytes().len());
        if self.names > self.limits.names {
            let error =
                format!("the names alone take more than {} bytes; send them in parts", self.limits.names);
            return Err(ArchiveError::TooLarge(error));
        }
        let mut steps = path.as_bytes().split(|byte| *byte == b'/').peekable();
        let mut at = ROOT;
        while let Some(name) = steps.next() {
            let wanted = if steps.peek().is_some() { UploadNodeKind::Folder } else { what };
            at = self.step(path, (at, name), wanted)?;
        }
        Ok(())
    }

    fn step(
        &mut self,
        path: &RelPath,
        (at, name): (u32, &[u8]),
        wanted: UploadNodeKind,
    ) -> Result<u32, ArchiveError> {
        let count = self.nodes.len();
        if let Some(node) = self.nodes.get_mut(&(at, Box::from(name))) {
            return match (node.what, wanted) {
                (UploadNodeKind::Folder, UploadNodeKind::Folder) => Ok(node.number),
                // The later entry replaces the earlier one.
                (
                    UploadNodeKind::File(_) | UploadNodeKind::Link,
                    UploadNodeKind::File(_) | UploadNodeKind::Link,
                ) => {
                    node.what = wanted;
                    Ok(node.number)
                }
                (UploadNodeKind::Link, UploadNodeKind::Folder) => {
                    Err(ArchiveError::entry(path.as_bytes(), "goes through a link that came with it"))
                }
                (UploadNodeKind::File(_), UploadNodeKind::Folder)
                | (UploadNodeKind::Folder, UploadNodeKind::File(_) | UploadNodeKind::Link) => Err(
                    ArchiveError::entry(path.as_bytes(), "is a file in one place and a folder in another"),
                ),
            };
        }
        if count >= self.limits.entries {
            return Err(ArchiveError::TooMany(self.limits.entries));
        }
        let number = u32::try_from(count + 1).map_err(|_| ArchiveError::TooMany(self.limits.entries))?;
        self.nodes.insert((at, Box::from(name)), UploadNode { number, what: wanted });
        Ok(number)
    }
}
