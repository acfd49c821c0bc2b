//! The entries of one recorded directory, read without copying, because most of them are only compared.

use crate::codec::{ByteDecoder, DecodeResult, ObjectDecodeError, put_bytes, put_number};
use crate::folder::{FileAttributes, FileTime};
use crate::object::{ContentLayout, ObjectLocation, ObjectRef, StoredContent, Xattrs};
use crate::object_id::{ObjectId, PackId};
use crate::{FileKind, SkipReason};

/// The attributes that the kernel reports for an entry. Every change of the entry changes at least one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatFingerprint {
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) modified: FileTime,
    pub(crate) changed: FileTime,
    pub(crate) mode: u32,
    pub(crate) nature: IndexedFileKind,
    /// The file has several hard links.
    pub(crate) linked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexedFileKind {
    Dir,
    File,
    Link,
    Other,
}

impl From<&FileAttributes> for StatFingerprint {
    fn from(is: &FileAttributes) -> StatFingerprint {
        let nature = match is.kind {
            FileKind::Dir => IndexedFileKind::Dir,
            FileKind::File => IndexedFileKind::File,
            FileKind::Link => IndexedFileKind::Link,
            FileKind::Socket | FileKind::Fifo | FileKind::Device => IndexedFileKind::Other,
        };
        StatFingerprint {
            inode: is.id.1,
            size: is.size,
            modified: is.modified,
            changed: is.changed,
            mode: is.raw_mode,
            nature,
            linked: nature == IndexedFileKind::File && is.names > 1,
        }
    }
}

/// What is recorded of an entry besides its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IndexedContent {
    Dir(Xattrs),
    File(StoredContent, Xattrs),
    Link(Vec<u8>),
    Skipped(SkipReason),
}

/// An unreadable entry must panic here: skipping it would drop the file from the next snapshot.
const CHECKED: &str = "we wrote it, and its checksum held when it was loaded";

pub(super) const LOOK: usize = 8 + 8 + 12 + 12 + 2 + 1;

pub(super) fn put_look(out: &mut Vec<u8>, look: &StatFingerprint) {
    out.extend_from_slice(&look.inode.to_le_bytes());
    out.extend_from_slice(&look.size.to_le_bytes());
    put_time(out, look.modified);
    put_time(out, look.changed);
    out.extend_from_slice(&(look.mode as u16).to_le_bytes());
    let nature = match look.nature {
        IndexedFileKind::Dir => 0,
        IndexedFileKind::File => 1,
        IndexedFileKind::Link => 2,
        IndexedFileKind::Other => 3,
    };
    out.push(nature | if look.linked { 4 } else { 0 });
}

pub(super) fn put_time(out: &mut Vec<u8>, time: FileTime) {
    out.extend_from_slice(&time.seconds.to_le_bytes());
    out.extend_from_slice(&time.nanos.to_le_bytes());
}

pub(super) fn read_time(cursor: &mut ByteDecoder<'_>) -> DecodeResult<FileTime> {
    Ok(FileTime { seconds: i64::from_le_bytes(cursor.array()?), nanos: u32::from_le_bytes(cursor.array()?) })
}

pub(super) fn read_look(cursor: &mut ByteDecoder<'_>) -> DecodeResult<StatFingerprint> {
    let mut fixed = ByteDecoder::new(cursor.take(LOOK)?);
    let inode = u64::from_le_bytes(fixed.array()?);
    let size = u64::from_le_bytes(fixed.array()?);
    let (modified, changed) = (read_time(&mut fixed)?, read_time(&mut fixed)?);
    let mode = u16::from_le_bytes(fixed.array()?).into();
    let kind = fixed.byte()?;
    let nature = match kind & 3 {
        0 => IndexedFileKind::Dir,
        1 => IndexedFileKind::File,
        2 => IndexedFileKind::Link,
        _ => IndexedFileKind::Other,
    };
    Ok(StatFingerprint { inode, size, modified, changed, mode, nature, linked: kind & 4 != 0 })
}

/// `entry = name:(u8 bytes) look rest:bytes`
pub(super) fn put_entry(out: &mut Vec<u8>, name: &[u8], look: &StatFingerprint, rest: &[u8]) {
    out.push(name.len() as u8);
    out.extend_from_slice(name);
    put_look(out, look);
    put_bytes(out, rest);
}

pub(super) fn put_known(out: &mut Vec<u8>, known: &IndexedContent, number: &mut dyn FnMut(PackId) -> u64) {
    match known {
        IndexedContent::Dir(xattrs) => {
            out.push(0);
            put_xattrs(out, xattrs);
        }
        IndexedContent::File(content, xattrs) => {
            let (kind, at) = match &content.layout {
                ContentLayout::Empty => (1, None),
                ContentLayout::Whole(at) => (2, Some(at)),
                ContentLayout::List(at) => (3, Some(at)),
            };
            out.push(kind);
            put_number(out, content.size);
            out.extend_from_slice(&content.group.to_le_bytes());
            at.into_iter().for_each(|at| put_ref(out, at, number));
            put_xattrs(out, xattrs);
        }
        IndexedContent::Link(target) => {
            out.push(4);
            out.extend_from_slice(target);
        }
        IndexedContent::Skipped(why) => {
            let (kind, text) = match why {
                SkipReason::Excluded => (5, ""),
                SkipReason::Socket => (6, ""),
                SkipReason::Fifo => (7, ""),
                SkipReason::Device => (8, ""),
                SkipReason::Mount => (9, ""),
                SkipReason::Gone => (10, ""),
                SkipReason::Unreadable(text) => (11, text.as_str()),
            };
            out.push(kind);
            out.extend_from_slice(text.as_bytes());
        }
    }
}

fn put_xattrs(out: &mut Vec<u8>, xattrs: &Xattrs) {
    for (name, value) in xattrs {
        put_bytes(out, name);
        put_bytes(out, value);
    }
}

pub(super) fn put_ref(out: &mut Vec<u8>, at: &ObjectRef, number: &mut dyn FnMut(PackId) -> u64) {
    out.extend_from_slice(&at.id.0);
    put_number(out, number(at.place.pack));
    put_number(out, at.place.block.into());
    put_number(out, at.place.start.into());
    put_number(out, at.place.length.into());
}

pub(super) fn read_ref(cursor: &mut ByteDecoder<'_>, packs: &[PackId]) -> DecodeResult<ObjectRef> {
    let id = ObjectId(cursor.array()?);
    let pack = *packs.get(cursor.number()? as usize).ok_or(ObjectDecodeError("no such pack"))?;
    let (block, start, length) = (cursor.small()?, cursor.small()?, cursor.small()?);
    Ok(ObjectRef { id, place: ObjectLocation { pack, block, start, length } })
}

fn read_known(rest: &[u8], packs: &[PackId]) -> DecodeResult<IndexedContent> {
    let mut cursor = ByteDecoder::new(rest);
    let kind = cursor.byte()?;
    Ok(match kind {
        0 => IndexedContent::Dir(read_xattrs(&mut cursor)?),
        1..=3 => {
            let size = cursor.number()?;
            let group = u64::from_le_bytes(cursor.array()?);
            let layout = match kind {
                1 => ContentLayout::Empty,
                2 => ContentLayout::Whole(read_ref(&mut cursor, packs)?),
                _ => ContentLayout::List(read_ref(&mut cursor, packs)?),
            };
            IndexedContent::File(StoredContent { size, layout, group }, read_xattrs(&mut cursor)?)
        }
        4 => IndexedContent::Link(cursor.take(cursor.left())?.to_vec()),
        5 => IndexedContent::Skipped(SkipReason::Excluded),
        6 => IndexedContent::Skipped(SkipReason::Socket),
        7 => IndexedContent::Skipped(SkipReason::Fifo),
        8 => IndexedContent::Skipped(SkipReason::Device),
        9 => IndexedContent::Skipped(SkipReason::Mount),
        10 => IndexedContent::Skipped(SkipReason::Gone),
        11 => {
            let text = cursor.take(cursor.left())?;
            IndexedContent::Skipped(SkipReason::Unreadable(String::from_utf8_lossy(text).into_owned()))
        }
        _ => return Err(ObjectDecodeError("an entry of an unknown kind")),
    })
}

fn read_xattrs(cursor: &mut ByteDecoder<'_>) -> DecodeResult<Xattrs> {
    let mut xattrs = Vec::new();
    while !cursor.is_empty() {
        xattrs.push((cursor.bytes()?.to_vec(), cursor.bytes()?.to_vec()));
    }
    Ok(xattrs)
}

#[derive(Clone)]
pub(crate) struct IndexEntries<'a> {
    cursor: ByteDecoder<'a>,
    packs: &'a [PackId],
}

/// A recorded entry; its content is decoded only on request.
#[derive(Clone, Copy)]
pub(crate) struct IndexEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) look: StatFingerprint,
    rest: &'a [u8],
    packs: &'a [PackId],
}

impl IndexEntry<'_> {
    pub(crate) fn known(&self) -> IndexedContent {
        read_known(self.rest, self.packs).expect(CHECKED)
    }

    /// Whether the capture skipped this entry, so that the next report must list it again.
    pub(crate) fn is_skipped(&self) -> bool {
        self.rest.first().is_some_and(|kind| (5..=11).contains(kind))
    }
}

impl<'a> IndexEntries<'a> {
    pub(super) fn new(bytes: &'a [u8], packs: &'a [PackId]) -> IndexEntries<'a> {
        IndexEntries { cursor: ByteDecoder::new(bytes), packs }
    }

    fn read(&mut self) -> DecodeResult<IndexEntry<'a>> {
        let length = self.cursor.byte()?;
        let name = self.cursor.take(length.into())?;
        let look = read_look(&mut self.cursor)?;
        let rest = self.cursor.bytes()?;
        Ok(IndexEntry { name, look, rest, packs: self.packs })
    }
}

impl<'a> Iterator for IndexEntries<'a> {
    type Item = IndexEntry<'a>;

    fn next(&mut self) -> Option<IndexEntry<'a>> {
        if self.cursor.is_empty() {
            return None;
        }
        Some(self.read().expect(CHECKED))
    }
}
