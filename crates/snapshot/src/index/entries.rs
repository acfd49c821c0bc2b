//! The entries of one remembered directory, read without copying: most of them are only looked at.

use crate::codec::{Cursor, Malformed, Read, put_bytes, put_number};
use crate::folder::{Attributes, Time};
use crate::id::{Id, PackId};
use crate::object::{Content, Layout, Place, Ref, Xattrs};
use crate::{Kind, Why};

/// What the kernel says of an entry. Whoever changes the entry changes this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    pub(crate) mode: u32,
    pub(crate) nature: Nature,
    /// A file with several names.
    pub(crate) linked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nature {
    Dir,
    File,
    Link,
    Other,
}

impl From<&Attributes> for Look {
    fn from(is: &Attributes) -> Look {
        let nature = match is.kind {
            Kind::Dir => Nature::Dir,
            Kind::File => Nature::File,
            Kind::Link => Nature::Link,
            Kind::Socket | Kind::Fifo | Kind::Device => Nature::Other,
        };
        Look {
            inode: is.id.1,
            size: is.size,
            modified: is.modified,
            changed: is.changed,
            mode: is.raw_mode,
            nature,
            linked: nature == Nature::File && is.names > 1,
        }
    }
}

/// What is remembered of an entry besides its look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Known {
    Dir(Xattrs),
    File(Content, Xattrs),
    Link(Vec<u8>),
    Skipped(Why),
}

/// Going on without an entry would drop it from the next snapshot.
const CHECKED: &str = "we wrote it, and its checksum held when it was loaded";

pub(super) const LOOK: usize = 8 + 8 + 12 + 12 + 2 + 1;

pub(super) fn put_look(out: &mut Vec<u8>, look: &Look) {
    out.extend_from_slice(&look.inode.to_le_bytes());
    out.extend_from_slice(&look.size.to_le_bytes());
    put_time(out, look.modified);
    put_time(out, look.changed);
    out.extend_from_slice(&(look.mode as u16).to_le_bytes());
    let nature = match look.nature {
        Nature::Dir => 0,
        Nature::File => 1,
        Nature::Link => 2,
        Nature::Other => 3,
    };
    out.push(nature | if look.linked { 4 } else { 0 });
}

pub(super) fn put_time(out: &mut Vec<u8>, time: Time) {
    out.extend_from_slice(&time.seconds.to_le_bytes());
    out.extend_from_slice(&time.nanos.to_le_bytes());
}

pub(super) fn read_time(cursor: &mut Cursor<'_>) -> Read<Time> {
    Ok(Time { seconds: i64::from_le_bytes(cursor.array()?), nanos: u32::from_le_bytes(cursor.array()?) })
}

pub(super) fn read_look(cursor: &mut Cursor<'_>) -> Read<Look> {
    let mut fixed = Cursor::new(cursor.take(LOOK)?);
    let inode = u64::from_le_bytes(fixed.array()?);
    let size = u64::from_le_bytes(fixed.array()?);
    let (modified, changed) = (read_time(&mut fixed)?, read_time(&mut fixed)?);
    let mode = u16::from_le_bytes(fixed.array()?).into();
    let kind = fixed.byte()?;
    let nature = match kind & 3 {
        0 => Nature::Dir,
        1 => Nature::File,
        2 => Nature::Link,
        _ => Nature::Other,
    };
    Ok(Look { inode, size, modified, changed, mode, nature, linked: kind & 4 != 0 })
}

/// `entry = name:(u8 bytes) look rest:bytes`
pub(super) fn put_entry(out: &mut Vec<u8>, name: &[u8], look: &Look, rest: &[u8]) {
    out.push(name.len() as u8);
    out.extend_from_slice(name);
    put_look(out, look);
    put_bytes(out, rest);
}

pub(super) fn put_known(out: &mut Vec<u8>, known: &Known, number: &mut dyn FnMut(PackId) -> u64) {
    match known {
        Known::Dir(xattrs) => {
            out.push(0);
            put_xattrs(out, xattrs);
        }
        Known::File(content, xattrs) => {
            let (kind, at) = match &content.layout {
                Layout::Empty => (1, None),
                Layout::Whole(at) => (2, Some(at)),
                Layout::List(at) => (3, Some(at)),
            };
            out.push(kind);
            put_number(out, content.size);
            out.extend_from_slice(&content.group.to_le_bytes());
            at.into_iter().for_each(|at| put_ref(out, at, number));
            put_xattrs(out, xattrs);
        }
        Known::Link(target) => {
            out.push(4);
            out.extend_from_slice(target);
        }
        Known::Skipped(why) => {
            let (kind, text) = match why {
                Why::Excluded => (5, ""),
                Why::Socket => (6, ""),
                Why::Fifo => (7, ""),
                Why::Device => (8, ""),
                Why::Mount => (9, ""),
                Why::Gone => (10, ""),
                Why::Unreadable(text) => (11, text.as_str()),
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

pub(super) fn put_ref(out: &mut Vec<u8>, at: &Ref, number: &mut dyn FnMut(PackId) -> u64) {
    out.extend_from_slice(&at.id.0);
    put_number(out, number(at.place.pack));
    put_number(out, at.place.block.into());
    put_number(out, at.place.start.into());
    put_number(out, at.place.length.into());
}

pub(super) fn read_ref(cursor: &mut Cursor<'_>, packs: &[PackId]) -> Read<Ref> {
    let id = Id(cursor.array()?);
    let pack = *packs.get(cursor.number()? as usize).ok_or(Malformed("no such pack"))?;
    let (block, start, length) = (cursor.small()?, cursor.small()?, cursor.small()?);
    Ok(Ref { id, place: Place { pack, block, start, length } })
}

fn read_known(rest: &[u8], packs: &[PackId]) -> Read<Known> {
    let mut cursor = Cursor::new(rest);
    let kind = cursor.byte()?;
    Ok(match kind {
        0 => Known::Dir(read_xattrs(&mut cursor)?),
        1..=3 => {
            let size = cursor.number()?;
            let group = u64::from_le_bytes(cursor.array()?);
            let layout = match kind {
                1 => Layout::Empty,
                2 => Layout::Whole(read_ref(&mut cursor, packs)?),
                _ => Layout::List(read_ref(&mut cursor, packs)?),
            };
            Known::File(Content { size, layout, group }, read_xattrs(&mut cursor)?)
        }
        4 => Known::Link(cursor.take(cursor.left())?.to_vec()),
        5 => Known::Skipped(Why::Excluded),
        6 => Known::Skipped(Why::Socket),
        7 => Known::Skipped(Why::Fifo),
        8 => Known::Skipped(Why::Device),
        9 => Known::Skipped(Why::Mount),
        10 => Known::Skipped(Why::Gone),
        11 => {
            let text = cursor.take(cursor.left())?;
            Known::Skipped(Why::Unreadable(String::from_utf8_lossy(text).into_owned()))
        }
        _ => return Err(Malformed("an entry of an unknown kind")),
    })
}

fn read_xattrs(cursor: &mut Cursor<'_>) -> Read<Xattrs> {
    let mut xattrs = Vec::new();
    while !cursor.is_empty() {
        xattrs.push((cursor.bytes()?.to_vec(), cursor.bytes()?.to_vec()));
    }
    Ok(xattrs)
}

#[derive(Clone)]
pub(crate) struct Entries<'a> {
    cursor: Cursor<'a>,
    packs: &'a [PackId],
}

/// An entry as it was; what is stored of it is taken apart only if it is asked for.
#[derive(Clone, Copy)]
pub(crate) struct KnownEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) look: Look,
    rest: &'a [u8],
    packs: &'a [PackId],
}

impl KnownEntry<'_> {
    pub(crate) fn known(&self) -> Known {
        read_known(self.rest, self.packs).expect(CHECKED)
    }

    /// Whether this was left out, and why is to be said again.
    pub(crate) fn is_skipped(&self) -> bool {
        self.rest.first().is_some_and(|kind| (5..=11).contains(kind))
    }
}

impl<'a> Entries<'a> {
    pub(super) fn new(bytes: &'a [u8], packs: &'a [PackId]) -> Entries<'a> {
        Entries { cursor: Cursor::new(bytes), packs }
    }

    fn read(&mut self) -> Read<KnownEntry<'a>> {
        let length = self.cursor.byte()?;
        let name = self.cursor.take(length.into())?;
        let look = read_look(&mut self.cursor)?;
        let rest = self.cursor.bytes()?;
        Ok(KnownEntry { name, look, rest, packs: self.packs })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = KnownEntry<'a>;

    fn next(&mut self) -> Option<KnownEntry<'a>> {
        if self.cursor.is_empty() {
            return None;
        }
        Some(self.read().expect(CHECKED))
    }
}
