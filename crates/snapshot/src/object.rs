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
//! Places are stored beside the ids and are not hashed: equal files have equal ids however they came to be stored, and
//! finding an object needs no table of all objects. Pack 0 is the pack that holds the object itself.

use crate::codec::{ByteDecoder, DecodeResult, ObjectDecodeError, put_bytes, put_number, put_signed};
use crate::folder::FileTime;
use crate::object_id::{ObjectId, PackId};
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

/// Where an object's bytes are: a range of an unpacked block of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ObjectLocation {
    pub(crate) pack: PackId,
    pub(crate) block: u32,
    pub(crate) start: u32,
    pub(crate) length: u32,
}

/// An object by its id and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ObjectRef {
    pub(crate) id: ObjectId,
    pub(crate) place: ObjectLocation,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreeEntry {
    pub(crate) name: Vec<u8>,
    /// Permission bits; 0 for links, which have none of their own.
    pub(crate) mode: u32,
    pub(crate) modified: FileTime,
    pub(crate) node: TreeNode,
    pub(crate) xattrs: Xattrs,
}

pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TreeNode {
    Dir(ObjectRef),
    File(StoredContent),
    Link(Vec<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredContent {
    pub(crate) size: u64,
    pub(crate) layout: ContentLayout,
    /// If not 0, the file has other names in the tree, which have the same number.
    pub(crate) group: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentLayout {
    Empty,
    Whole(ObjectRef),
    List(ObjectRef),
}

impl ContentLayout {
    pub(crate) fn object(&self) -> Option<&ObjectRef> {
        match self {
            ContentLayout::Empty => None,
            ContentLayout::Whole(at) | ContentLayout::List(at) => Some(at),
        }
    }
}

/// A part of a large file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentPiece {
    Zeros { length: u64 },
    Chunk { length: u64, at: ObjectRef, pre: u64 },
    List { length: u64, at: ObjectRef },
}

impl ContentPiece {
    pub(crate) fn length(&self) -> u64 {
        match self {
            ContentPiece::Zeros { length }
            | ContentPiece::Chunk { length, .. }
            | ContentPiece::List { length, .. } => *length,
        }
    }

    fn object(&self) -> Option<&ObjectRef> {
        match self {
            ContentPiece::Zeros { .. } => None,
            ContentPiece::Chunk { at, .. } | ContentPiece::List { at, .. } => Some(at),
        }
    }
}

/// An encoded object, and the part of it that is hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EncodedObject {
    pub(crate) stored: Vec<u8>,
    logical: std::ops::Range<usize>,
}

impl EncodedObject {
    fn of<'a>(logical: &[u8], refs: impl Iterator<Item = &'a ObjectRef>) -> EncodedObject {
        let mut stored = Vec::with_capacity(logical.len() + logical.len() / 4 + 16);
        put_number(&mut stored, logical.len() as u64);
        let start = stored.len();
        stored.extend_from_slice(logical);
        let end = stored.len();
        put_places(&mut stored, refs);
        EncodedObject { stored, logical: start..end }
    }

    pub(crate) fn logical(&self) -> &[u8] {
        &self.stored[self.logical.clone()]
    }
}

fn put_places<'a>(out: &mut Vec<u8>, refs: impl Iterator<Item = &'a ObjectRef>) {
    let mut packs = vec![PackId::SELF];
    let mut places = Vec::new();
    for ObjectRef { place, .. } in refs {
        // Usually the object lies in the same pack as the one before.
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

/// Splits a stored object into its hashed part and a decoder of its places.
pub(crate) fn split(stored: &[u8]) -> DecodeResult<(&[u8], ByteDecoder<'_>)> {
    let mut cursor = ByteDecoder::new(stored);
    let logical = cursor.bytes()?;
    Ok((logical, cursor))
}

struct LocationDecoder<'a> {
    cursor: ByteDecoder<'a>,
    packs: Vec<PackId>,
}

impl<'a> LocationDecoder<'a> {
    fn read(mut cursor: ByteDecoder<'a>, within: PackId) -> DecodeResult<LocationDecoder<'a>> {
        let count = cursor.count(16)?;
        let mut packs = Vec::with_capacity(count + 1);
        packs.push(within);
        for _ in 0..count {
            packs.push(PackId(cursor.array()?));
        }
        Ok(LocationDecoder { cursor, packs })
    }

    fn next(&mut self) -> DecodeResult<ObjectLocation> {
        let pack = self.cursor.number()? as usize;
        let pack = *self.packs.get(pack).ok_or(ObjectDecodeError("a place in no pack"))?;
        let (block, start, length) = (self.cursor.small()?, self.cursor.small()?, self.cursor.small()?);
        Ok(ObjectLocation { pack, block, start, length })
    }
}

pub(crate) fn encode_directory(entries: &[TreeEntry]) -> EncodedObject {
    let mut logical = Vec::with_capacity(entries.len() * 64);
    entries.iter().for_each(|entry| put_entry(&mut logical, entry));
    EncodedObject::of(&logical, entries.iter().filter_map(object_of))
}

fn object_of(entry: &TreeEntry) -> Option<&ObjectRef> {
    match &entry.node {
        TreeNode::Dir(at) => Some(at),
        TreeNode::File(content) => content.layout.object(),
        TreeNode::Link(_) => None,
    }
}

fn put_entry(out: &mut Vec<u8>, entry: &TreeEntry) {
    let kind = match &entry.node {
        TreeNode::Dir(_) => DIR,
        TreeNode::Link(_) => LINK,
        TreeNode::File(StoredContent { layout, group, .. }) => {
            let kind = match layout {
                ContentLayout::Empty => EMPTY,
                ContentLayout::Whole(_) => WHOLE,
                ContentLayout::List(_) => LIST,
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
        TreeNode::Dir(at) => {
            put_number(out, entry.mode.into());
            out.extend_from_slice(&at.id.0);
        }
        TreeNode::Link(target) => put_bytes(out, target),
        TreeNode::File(content) => {
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

/// Reads a directory that lies in the pack `within`. Refuses everything that a hostile tree could contain.
pub(crate) fn decode_directory(stored: &[u8], within: PackId) -> DecodeResult<Vec<TreeEntry>> {
    let (logical, places) = split(stored)?;
    let mut places = LocationDecoder::read(places, within)?;
    let mut cursor = ByteDecoder::new(logical);
    let mut entries: Vec<TreeEntry> = Vec::with_capacity(logical.len() / 48);
    while !cursor.is_empty() {
        let entry = read_entry(&mut cursor, &mut places)?;
        if entries.last().is_some_and(|last| last.name >= entry.name) {
            return Err(ObjectDecodeError("names out of order"));
        }
        entries.push(entry);
    }
    places.cursor.end()?;
    Ok(entries)
}

fn read_entry(cursor: &mut ByteDecoder<'_>, places: &mut LocationDecoder<'_>) -> DecodeResult<TreeEntry> {
    let kind = cursor.byte()?;
    let length = cursor.byte()?;
    let name = cursor.take(length.into())?;
    if !is_name(name) {
        return Err(ObjectDecodeError("a name that is none"));
    }
    let seconds = cursor.signed()?;
    let nanos = cursor.small()?;
    if nanos >= 1_000_000_000 {
        return Err(ObjectDecodeError("a time that is none"));
    }
    let mode = if kind & 0xf == LINK { 0 } else { cursor.small()? };
    let node = read_node(kind, cursor, places)?;
    let most = if matches!(node, TreeNode::Dir(_)) { 0o1777 } else { 0o777 };
    if mode & !most != 0 {
        return Err(ObjectDecodeError("a mode that is never kept"));
    }
    let xattrs = if kind & XATTRS == 0 { Vec::new() } else { read_xattrs(cursor)? };
    Ok(TreeEntry { name: name.to_vec(), mode, modified: FileTime { seconds, nanos }, node, xattrs })
}

fn read_node(
    kind: u8,
    cursor: &mut ByteDecoder<'_>,
    places: &mut LocationDecoder<'_>,
) -> DecodeResult<TreeNode> {
    let grouped = kind & GROUP != 0;
    let kind = kind & !XATTRS;
    let mut object = |cursor: &mut ByteDecoder<'_>| -> DecodeResult<(u64, ObjectRef)> {
        let size = if kind == DIR { 0 } else { cursor.number()? };
        Ok((size, ObjectRef { id: ObjectId(cursor.array()?), place: places.next()? }))
    };
    let (size, layout) = match kind & !GROUP {
        DIR if !grouped => return Ok(TreeNode::Dir(object(cursor)?.1)),
        LINK if !grouped => {
            let target = cursor.bytes()?;
            if target.is_empty() || target.len() > LONGEST_TARGET || target.contains(&0) {
                return Err(ObjectDecodeError("a link's target that is none"));
            }
            return Ok(TreeNode::Link(target.to_vec()));
        }
        EMPTY => (0, ContentLayout::Empty),
        WHOLE => {
            let (size, at) = object(cursor)?;
            if size != u64::from(at.place.length) || size == 0 {
                return Err(ObjectDecodeError("a file of another size than its content"));
            }
            (size, ContentLayout::Whole(at))
        }
        LIST => {
            let (size, at) = object(cursor)?;
            if size > LARGEST_FILE {
                return Err(ObjectDecodeError("larger than any file"));
            }
            (size, ContentLayout::List(at))
        }
        _ => return Err(ObjectDecodeError("an entry of an unknown kind")),
    };
    let group = if grouped { u64::from_le_bytes(cursor.array()?) } else { 0 };
    if grouped && group == 0 {
        return Err(ObjectDecodeError("a group without a number"));
    }
    Ok(TreeNode::File(StoredContent { size, layout, group }))
}

fn read_xattrs(cursor: &mut ByteDecoder<'_>) -> DecodeResult<Xattrs> {
    let count = cursor.count(2)?;
    if count == 0 {
        return Err(ObjectDecodeError("an empty list of attributes"));
    }
    let mut xattrs: Xattrs = Vec::with_capacity(count);
    for _ in 0..count {
        let (name, value) = (cursor.bytes()?, cursor.bytes()?);
        if !name.starts_with(b"user.") || name.len() > 255 || name.contains(&0) {
            return Err(ObjectDecodeError("an attribute that is never kept"));
        }
        if xattrs.last().is_some_and(|(last, _)| last.as_slice() >= name) {
            return Err(ObjectDecodeError("attributes out of order"));
        }
        xattrs.push((name.to_vec(), value.to_vec()));
    }
    Ok(xattrs)
}

pub(crate) fn encode_list(level: u8, pieces: &[ContentPiece]) -> EncodedObject {
    let mut logical = Vec::with_capacity(pieces.len() * 44 + 1);
    logical.push(level);
    for piece in pieces {
        match piece {
            ContentPiece::Zeros { length } => {
                logical.push(0);
                put_number(&mut logical, *length);
            }
            ContentPiece::Chunk { length, at, pre } => {
                logical.push(1);
                put_number(&mut logical, *length);
                logical.extend_from_slice(&at.id.0);
                logical.extend_from_slice(&pre.to_le_bytes());
            }
            ContentPiece::List { length, at } => {
                logical.push(2);
                put_number(&mut logical, *length);
                logical.extend_from_slice(&at.id.0);
            }
        }
    }
    EncodedObject::of(&logical, pieces.iter().filter_map(ContentPiece::object))
}

/// The pieces of a list. Its level must be `most` or less.
pub(crate) fn decode_list(stored: &[u8], within: PackId, most: u8) -> DecodeResult<Vec<ContentPiece>> {
    let (logical, places) = split(stored)?;
    let mut places = LocationDecoder::read(places, within)?;
    let mut cursor = ByteDecoder::new(logical);
    let level = cursor.byte()?;
    if level > most {
        return Err(ObjectDecodeError("lists within lists"));
    }
    let mut pieces = Vec::with_capacity(logical.len() / 40);
    while !cursor.is_empty() {
        let kind = cursor.byte()?;
        let length = cursor.number()?;
        if length == 0 {
            return Err(ObjectDecodeError("a piece of nothing"));
        }
        pieces.push(match (kind, level) {
            (0, _) => ContentPiece::Zeros { length },
            (1, 0) => {
                let id = ObjectId(cursor.array()?);
                let pre = u64::from_le_bytes(cursor.array()?);
                let at = ObjectRef { id, place: places.next()? };
                if length != u64::from(at.place.length) {
                    return Err(ObjectDecodeError("a chunk of another length than its content"));
                }
                ContentPiece::Chunk { length, at, pre }
            }
            (2, 1) => {
                let id = ObjectId(cursor.array()?);
                ContentPiece::List { length, at: ObjectRef { id, place: places.next()? } }
            }
            _ => return Err(ObjectDecodeError("a piece of an unknown kind")),
        });
    }
    places.cursor.end()?;
    Ok(pieces)
}
