//! The objects of a snapshot: directories and lists of chunks.
//!
//! ```text
//! object    = length:number logical places         its name is the hash of `logical` alone
//! directory = { entry }                            strictly ascending by name
//! entry     = kind:u8 name:(u8 bytes) mtime [mode:number] …
//!             1 DIR    … id:32                     2 EMPTY  …
//!             3 WHOLE  … size:number id:32         4 LIST   … size:number id:32
//!             5 LINK   … target:bytes              (no mode)
//!             +16: group:u64 at the end of a file: the names of one file have the same; +32: xattrs:{name value}
//! mtime     = seconds:signed nanoseconds:number
//! list      = level:u8 { piece }                   level 1: pieces are lists of level 0
//! piece     = 0 length:number                      zeros
//!           | 1 length:number id:32 pre:u64        a chunk, with its xxh3
//!           | 2 length:number id:32                a list
//! places    = {pack:16}, then for each id in order: pack:number block:number start:number length:number
//! ```
//! Where something lies is written beside its name, and not hashed: the same files have the same name however
//! they came to be stored, and no table of all objects is needed to find one. Pack 0 is the one that holds
//! the object itself.

use crate::codec::{Cursor, Malformed, Read, put_bytes, put_number, put_signed};
use crate::folder::Time;
use crate::id::{Id, PackId};
use crate::path::is_name;

const DIR: u8 = 1;
const EMPTY: u8 = 2;
const WHOLE: u8 = 3;
const LIST: u8 = 4;
const LINK: u8 = 5;
const GROUP: u8 = 16;
const XATTRS: u8 = 32;

const LONGEST_TARGET: usize = 4096;
const LARGEST_FILE: u64 = i64::MAX as u64;

/// Where an object's bytes are: within a block of a pack, once that is unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) pack: PackId,
    pub(crate) block: u32,
    pub(crate) start: u32,
    pub(crate) length: u32,
}

/// An object by its name and where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ref {
    pub(crate) id: Id,
    pub(crate) place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    /// Permission bits; 0 for links, which have none of their own.
    pub(crate) mode: u32,
    pub(crate) modified: Time,
    pub(crate) node: Node,
    pub(crate) xattrs: Xattrs,
}

pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    Dir(Ref),
    File(Content),
    Link(Vec<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) size: u64,
    pub(crate) layout: Layout,
    /// Not 0: this file has other names in the tree, and they have the same number.
    pub(crate) group: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Empty,
    Whole(Ref),
    List(Ref),
}

impl Layout {
    pub(crate) fn object(&self) -> Option<&Ref> {
        match self {
            Layout::Empty => None,
            Layout::Whole(at) | Layout::List(at) => Some(at),
        }
    }
}

/// A stretch of a large file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    Zeros { length: u64 },
    Chunk { length: u64, at: Ref, pre: u64 },
    List { length: u64, at: Ref },
}

impl Piece {
    pub(crate) fn length(&self) -> u64 {
        match self {
            Piece::Zeros { length } | Piece::Chunk { length, .. } | Piece::List { length, .. } => *length,
        }
    }

    fn object(&self) -> Option<&Ref> {
        match self {
            Piece::Zeros { .. } => None,
            Piece::Chunk { at, .. } | Piece::List { at, .. } => Some(at),
        }
    }
}

/// What is stored, and the part of it that is hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Encoded {
    pub(crate) stored: Vec<u8>,
    logical: std::ops::Range<usize>,
}

impl Encoded {
    fn of<'a>(logical: &[u8], refs: impl Iterator<Item = &'a Ref>) -> Encoded {
        let mut stored = Vec::with_capacity(logical.len() + logical.len() / 4 + 16);
        put_number(&mut stored, logical.len() as u64);
        let start = stored.len();
        stored.extend_from_slice(logical);
        let end = stored.len();
        put_places(&mut stored, refs);
        Encoded { stored, logical: start..end }
    }

    pub(crate) fn logical(&self) -> &[u8] {
        &self.stored[self.logical.clone()]
    }
}

fn put_places<'a>(out: &mut Vec<u8>, refs: impl Iterator<Item = &'a Ref>) {
    let mut packs = vec![PackId::SELF];
    let mut places = Vec::new();
    for Ref { place, .. } in refs {
        // Almost always the pack of the sibling before.
        let known = packs.iter().rposition(|pack| *pack == place.pack);
        let number = known.unwrap_or_else(|| {
            packs.push(place.pack);
            packs.len() - 1
        });
        put_number(&mut places, number as u64);
        put_number(&mut places, place.block.into());
        put_number(&mut places, place.start.into());
        put_number(&mut places, place.length.into());
    }
    put_number(out, packs.len() as u64 - 1);
    packs[1..].iter().for_each(|pack| out.extend_from_slice(&pack.0));
    out.extend_from_slice(&places);
}

/// Splits a stored object into what is hashed and a reader of its places.
pub(crate) fn split(stored: &[u8]) -> Read<(&[u8], Cursor<'_>)> {
    let mut cursor = Cursor::new(stored);
    let logical = cursor.bytes()?;
    Ok((logical, cursor))
}

struct Places<'a> {
    cursor: Cursor<'a>,
    packs: Vec<PackId>,
}

impl<'a> Places<'a> {
    fn read(mut cursor: Cursor<'a>, within: PackId) -> Read<Places<'a>> {
        let count = cursor.count(16)?;
        let mut packs = Vec::with_capacity(count + 1);
        packs.push(within);
        for _ in 0..count {
            packs.push(PackId(cursor.array()?));
        }
        Ok(Places { cursor, packs })
    }

    fn next(&mut self) -> Read<Place> {
        let pack = self.cursor.number()? as usize;
        let pack = *self.packs.get(pack).ok_or(Malformed("a place in no pack"))?;
        let (block, start, length) = (self.cursor.small()?, self.cursor.small()?, self.cursor.small()?);
        Ok(Place { pack, block, start, length })
    }
}

pub(crate) fn encode_directory(entries: &[Entry]) -> Encoded {
    let mut logical = Vec::with_capacity(entries.len() * 64);
    entries.iter().for_each(|entry| put_entry(&mut logical, entry));
    Encoded::of(&logical, entries.iter().filter_map(object_of))
}

fn object_of(entry: &Entry) -> Option<&Ref> {
    match &entry.node {
        Node::Dir(at) => Some(at),
        Node::File(content) => content.layout.object(),
        Node::Link(_) => None,
    }
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    let kind = match &entry.node {
        Node::Dir(_) => DIR,
        Node::Link(_) => LINK,
        Node::File(Content { layout, group, .. }) => {
            let kind = match layout {
                Layout::Empty => EMPTY,
                Layout::Whole(_) => WHOLE,
                Layout::List(_) => LIST,
            };
            kind | if *group == 0 { 0 } else { GROUP }
        }
    };
    out.push(kind | if entry.xattrs.is_empty() { 0 } else { XATTRS });
    out.push(entry.name.len() as u8);
    out.extend_from_slice(&entry.name);
    put_signed(out, entry.modified.seconds);
    put_number(out, entry.modified.nanos.into());
    match &entry.node {
        Node::Dir(at) => {
            put_number(out, entry.mode.into());
            out.extend_from_slice(&at.id.0);
        }
        Node::Link(target) => put_bytes(out, target),
        Node::File(content) => {
            put_number(out, entry.mode.into());
            if let Some(at) = content.layout.object() {
                put_number(out, content.size);
                out.extend_from_slice(&at.id.0);
            }
            if content.group != 0 {
                out.extend_from_slice(&content.group.to_le_bytes());
            }
        }
    }
    if !entry.xattrs.is_empty() {
        put_number(out, entry.xattrs.len() as u64);
        for (name, value) in &entry.xattrs {
            put_bytes(out, name);
            put_bytes(out, value);
        }
    }
}

/// Reads a directory that lies in the pack `within`. Everything a hostile tree could say is refused here.
pub(crate) fn decode_directory(stored: &[u8], within: PackId) -> Read<Vec<Entry>> {
    let (logical, places) = split(stored)?;
    let mut places = Places::read(places, within)?;
    let mut cursor = Cursor::new(logical);
    let mut entries: Vec<Entry> = Vec::with_capacity(logical.len() / 48);
    while !cursor.is_empty() {
        let entry = read_entry(&mut cursor, &mut places)?;
        if entries.last().is_some_and(|last| last.name >= entry.name) {
            return Err(Malformed("names out of order"));
        }
        entries.push(entry);
    }
    places.cursor.end()?;
    Ok(entries)
}

fn read_entry(cursor: &mut Cursor<'_>, places: &mut Places<'_>) -> Read<Entry> {
    let kind = cursor.byte()?;
    let length = cursor.byte()?;
    let name = cursor.take(length.into())?;
    if !is_name(name) {
        return Err(Malformed("a name that is none"));
    }
    let seconds = cursor.signed()?;
    let nanos = cursor.small()?;
    if nanos >= 1_000_000_000 {
        return Err(Malformed("a time that is none"));
    }
    let mode = if kind & 0xf == LINK { 0 } else { cursor.small()? };
    let node = read_node(kind, cursor, places)?;
    let most = if matches!(node, Node::Dir(_)) { 0o1777 } else { 0o777 };
    if mode & !most != 0 {
        return Err(Malformed("a mode that is never kept"));
    }
    let xattrs = if kind & XATTRS == 0 { Vec::new() } else { read_xattrs(cursor)? };
    Ok(Entry { name: name.to_vec(), mode, modified: Time { seconds, nanos }, node, xattrs })
}

fn read_node(kind: u8, cursor: &mut Cursor<'_>, places: &mut Places<'_>) -> Read<Node> {
    let grouped = kind & GROUP != 0;
    let kind = kind & !XATTRS;
    let mut object = |cursor: &mut Cursor<'_>| -> Read<(u64, Ref)> {
        let size = if kind == DIR { 0 } else { cursor.number()? };
        Ok((size, Ref { id: Id(cursor.array()?), place: places.next()? }))
    };
    let (size, layout) = match kind & !GROUP {
        DIR if !grouped => return Ok(Node::Dir(object(cursor)?.1)),
        LINK if !grouped => {
            let target = cursor.bytes()?;
            if target.is_empty() || target.len() > LONGEST_TARGET || target.contains(&0) {
                return Err(Malformed("a link's target that is none"));
            }
            return Ok(Node::Link(target.to_vec()));
        }
        EMPTY => (0, Layout::Empty),
        WHOLE => {
            let (size, at) = object(cursor)?;
            if size != u64::from(at.place.length) || size == 0 {
                return Err(Malformed("a file of another size than its content"));
            }
            (size, Layout::Whole(at))
        }
        LIST => {
            let (size, at) = object(cursor)?;
            if size > LARGEST_FILE {
                return Err(Malformed("larger than any file"));
            }
            (size, Layout::List(at))
        }
        _ => return Err(Malformed("an entry of an unknown kind")),
    };
    let group = if grouped { u64::from_le_bytes(cursor.array()?) } else { 0 };
    if grouped && group == 0 {
        return Err(Malformed("a group without a number"));
    }
    Ok(Node::File(Content { size, layout, group }))
}

fn read_xattrs(cursor: &mut Cursor<'_>) -> Read<Xattrs> {
    let count = cursor.count(2)?;
    if count == 0 {
        return Err(Malformed("an empty list of attributes"));
    }
    let mut xattrs: Xattrs = Vec::with_capacity(count);
    for _ in 0..count {
        let (name, value) = (cursor.bytes()?, cursor.bytes()?);
        if !name.starts_with(b"user.") || name.len() > 255 || name.contains(&0) {
            return Err(Malformed("an attribute that is never kept"));
        }
        if xattrs.last().is_some_and(|(last, _)| last.as_slice() >= name) {
            return Err(Malformed("attributes out of order"));
        }
        xattrs.push((name.to_vec(), value.to_vec()));
    }
    Ok(xattrs)
}

pub(crate) fn encode_list(level: u8, pieces: &[Piece]) -> Encoded {
    let mut logical = Vec::with_capacity(pieces.len() * 44 + 1);
    logical.push(level);
    for piece in pieces {
        match piece {
            Piece::Zeros { length } => {
                logical.push(0);
                put_number(&mut logical, *length);
            }
            Piece::Chunk { length, at, pre } => {
                logical.push(1);
                put_number(&mut logical, *length);
                logical.extend_from_slice(&at.id.0);
                logical.extend_from_slice(&pre.to_le_bytes());
            }
            Piece::List { length, at } => {
                logical.push(2);
                put_number(&mut logical, *length);
                logical.extend_from_slice(&at.id.0);
            }
        }
    }
    Encoded::of(&logical, pieces.iter().filter_map(Piece::object))
}

/// The pieces of a list, which must be of this level or of the one below.
pub(crate) fn decode_list(stored: &[u8], within: PackId, most: u8) -> Read<Vec<Piece>> {
    let (logical, places) = split(stored)?;
    let mut places = Places::read(places, within)?;
    let mut cursor = Cursor::new(logical);
    let level = cursor.byte()?;
    if level > most {
        return Err(Malformed("lists within lists"));
    }
    let mut pieces = Vec::with_capacity(logical.len() / 40);
    while !cursor.is_empty() {
        let kind = cursor.byte()?;
        let length = cursor.number()?;
        if length == 0 {
            return Err(Malformed("a piece of nothing"));
        }
        pieces.push(match (kind, level) {
            (0, _) => Piece::Zeros { length },
            (1, 0) => {
                let id = Id(cursor.array()?);
                let pre = u64::from_le_bytes(cursor.array()?);
                let at = Ref { id, place: places.next()? };
                if length != u64::from(at.place.length) {
                    return Err(Malformed("a chunk of another length than its content"));
                }
                Piece::Chunk { length, at, pre }
            }
            (2, 1) => {
                let id = Id(cursor.array()?);
                Piece::List { length, at: Ref { id, place: places.next()? } }
            }
            _ => return Err(Malformed("a piece of an unknown kind")),
        });
    }
    places.cursor.end()?;
    Ok(pieces)
}
