//! The pack: everything that one snapshot added, in one file.
//!
//! ```text
//! pack    = "ASHPACK" 1 { block } table footer
//! block   = stored bytes; unpacked, a sequence of objects (see `object.rs`), chunks of files or both
//! table   = {blocks} root notes
//! blocks  = offset:number stored:number raw:number how:u8 check:16
//!           how: 0 plain, 1 zstd, 2 dropped (its bytes are gone), 3 trimmed (a check of its own, then zstd with
//!           zeros in place of dead ranges);
//!           +4: sealed with the tenant's key
//!           check: the beginning of the hash of the stored bytes, as they were at first
//! root    = 0 | 1 id:32 place                        the directory of roots of this snapshot
//! notes   = { name:bytes length:number id:32 place } named blobs: records and events, as chunks
//! place   = pack:16 block:number start:number length:number; a pack id of zeros means this pack
//! footer  = sealed:u8 offset of the table:u64 length of the table:u32 hash of the table:32
//! ```
//! Numbers without a width are LEB128, others little-endian; `{…}` is a count followed by that many items. Hashes are
//! BLAKE3; `check` and the pack's name are their first 16 bytes. The name is the hash of `raw` and `check` of
//! every block, root and notes: a pack from which collection dropped or trimmed blocks keeps its name, and what lies
//! in them stays where it is.

mod read;
mod write;

pub(crate) use read::{PackFile, UnpackBuffers, damaged, is_sealed, table_at};
pub(crate) use write::{BlockWriter, LiveRanges, PackDestination, PackWriter, is_worth_trimming, without};

use crate::codec::{ByteDecoder, DecodeResult, ObjectDecodeError, put_bytes, put_number};
use crate::object::{ObjectLocation, ObjectRef};
use crate::object_id::{ObjectId, PackId};

pub(crate) const MAGIC: &[u8; 8] = b"ASHPACK\x01";
pub(crate) const FOOTER: usize = 1 + 8 + 4 + 32;
pub(crate) const EXTENSION: &str = "pack";
pub(crate) const TEMPORARY: &str = "new-";

/// Bytes of a hash that are stored in the table and in names.
const CHECK: usize = 16;

/// Large enough for zstd to find what files have in common, small enough to read one file without much else.
pub(crate) const BLOCK: usize = 1 << 20;
/// Only a directory of a million entries is larger than [`BLOCK`].
pub(crate) const LARGEST_BLOCK: u32 = 64 << 20;
const LARGEST_TABLE: u32 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockEncoding {
    Plain,
    Zstd,
    Dropped,
    Trimmed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackBlock {
    pub(crate) offset: u64,
    pub(crate) stored: u32,
    pub(crate) raw: u32,
    pub(crate) how: BlockEncoding,
    pub(crate) sealed: bool,
    pub(crate) check: [u8; 16],
}

/// A named blob that travels with the snapshot and is not a file of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackNote {
    pub(crate) name: Vec<u8>,
    pub(crate) at: ObjectRef,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PackTable {
    pub(crate) blocks: Vec<PackBlock>,
    pub(crate) root: Option<ObjectRef>,
    pub(crate) notes: Vec<PackNote>,
}

impl PackTable {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.blocks.len() * 28 + 128);
        put_number(&mut out, self.blocks.len() as u64);
        for block in &self.blocks {
            put_number(&mut out, block.offset);
            put_number(&mut out, block.stored.into());
            put_number(&mut out, block.raw.into());
            let how = match block.how {
                BlockEncoding::Plain => 0,
                BlockEncoding::Zstd => 1,
                BlockEncoding::Dropped => 2,
                BlockEncoding::Trimmed => 3,
            };
            out.push(how | if block.sealed { 4 } else { 0 });
            out.extend_from_slice(&block.check);
        }
        self.put_rest(&mut out);
        out
    }

    fn put_rest(&self, out: &mut Vec<u8>) {
        out.push(self.root.is_some().into());
        self.root.iter().for_each(|root| put_ref(out, root));
        put_number(out, self.notes.len() as u64);
        for note in &self.notes {
            put_bytes(out, &note.name);
            put_ref(out, &note.at);
        }
    }

    pub(crate) fn name(&self) -> PackId {
        let mut out = Vec::with_capacity(self.blocks.len() * 20 + 128);
        for block in &self.blocks {
            out.extend_from_slice(&block.raw.to_le_bytes());
            out.extend_from_slice(&block.check);
        }
        self.put_rest(&mut out);
        PackId(beginning(&out))
    }

    pub(crate) fn decode(bytes: &[u8]) -> DecodeResult<PackTable> {
        let mut cursor = ByteDecoder::new(bytes);
        let count = cursor.count(20)?;
        let mut blocks = Vec::with_capacity(count);
        for _ in 0..count {
            blocks.push(read_block(&mut cursor)?);
        }
        let root = match cursor.byte()? {
            0 => None,
            1 => Some(read_ref(&mut cursor)?),
            _ => return Err(ObjectDecodeError("a root of an unknown kind")),
        };
        let count = cursor.count(50)?;
        let mut notes = Vec::with_capacity(count);
        for _ in 0..count {
            notes.push(PackNote { name: cursor.bytes()?.to_vec(), at: read_ref(&mut cursor)? });
        }
        cursor.end()?;
        Ok(PackTable { blocks, root, notes })
    }
}

fn read_block(cursor: &mut ByteDecoder<'_>) -> DecodeResult<PackBlock> {
    let (offset, stored, raw) = (cursor.number()?, cursor.small()?, cursor.small()?);
    let flags = cursor.byte()?;
    let how = match flags & !4 {
        0 => BlockEncoding::Plain,
        1 => BlockEncoding::Zstd,
        2 => BlockEncoding::Dropped,
        3 => BlockEncoding::Trimmed,
        _ => return Err(ObjectDecodeError("a block of an unknown kind")),
    };
    if raw > LARGEST_BLOCK || stored > LARGEST_BLOCK + 1024 {
        return Err(ObjectDecodeError("a block that is too large"));
    }
    Ok(PackBlock { offset, stored, raw, how, sealed: flags & 4 != 0, check: cursor.array()? })
}

fn put_ref(out: &mut Vec<u8>, ObjectRef { id, place }: &ObjectRef) {
    out.extend_from_slice(&id.0);
    out.extend_from_slice(&place.pack.0);
    put_number(out, place.block.into());
    put_number(out, place.start.into());
    put_number(out, place.length.into());
}

fn read_ref(cursor: &mut ByteDecoder<'_>) -> DecodeResult<ObjectRef> {
    let (id, pack) = (ObjectId(cursor.array()?), PackId(cursor.array()?));
    let (block, start, length) = (cursor.small()?, cursor.small()?, cursor.small()?);
    Ok(ObjectRef { id, place: ObjectLocation { pack, block, start, length } })
}

pub(crate) fn beginning(bytes: &[u8]) -> [u8; 16] {
    let mut out = [0; 16];
    out.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    out
}

pub(crate) fn file_name(pack: &PackId) -> String {
    format!("{pack}.{EXTENSION}")
}
