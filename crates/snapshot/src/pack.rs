//! The pack: one snapshot in one file.
//!
//! ```text
//! pack     = magic version contents index trailer
//! magic    = "ASHPACK"                              7 bytes
//! version  = 0                                      1 byte
//! contents = the content of every FILE of the index, in the order of the index, without gaps
//! index    = { root }
//! root     = ROOT(1) name mtime { entry } UP(3)
//! entry    = DIR(2)  name mode mtime { entry } UP(3)
//!          | FILE(4) name mode mtime size:u64 stored:u64 hash:32 bytes
//!          | LINK(5) name mtime length:u16 target   a symbolic link, its target verbatim
//!          | SAME(6) name ordinal:u64               a hard link to the FILE with that number in this root
//! name     = length:u8 bytes                        1 to 255 bytes, no NUL, no '/', not "." or ".."
//! mode     = u16                                    permission bits; for a DIR also the sticky bit (01000)
//! mtime    = seconds:i64 nanoseconds:u32            since 1970; nanoseconds < 10^9
//! content  = { zeros:u64 length:u32 bytes } zeros:u64 0:u32
//! trailer  = offset of the index:u64, length of the index:u64, hash:32 bytes
//! ```
//! Numbers are little-endian, hashes are BLAKE3. Entries of a directory, and the roots, are strictly ascending
//! by the bytes of their names. FILEs are numbered from 0 in each root; SAME names an earlier one.
//!
//! A content is a row of runs: so many zero bytes, then so many literal ones (at most 1 MiB); a run without
//! literal bytes ends it. All runs together are `size` bytes and take `stored` bytes in the pack, whose hash is
//! the FILE's `hash`. A writer cuts files into blocks of 4 KiB: a block of zeros counts as zeros, all others
//! are literal, and a literal run ends before every multiple of 1 MiB. So equal files are stored alike, however
//! their holes lie on disk.
//!
//! The trailer's hash is over magic, version, index and the two numbers before it. It is the snapshot's
//! [`TreeId`](crate::TreeId): the index holds the hashes of all contents, so it stands for every byte.

mod content;
mod read;
mod write;

pub use content::Content;
pub(crate) use content::{Broken, Fingerprint, encode};
pub(crate) use read::{Pack, Record, Records, Stored};
pub(crate) use write::{PackWriter, Temporary};

use crate::Error;
use crate::tree_id::TreeId;

const MAGIC: &[u8; 8] = b"ASHPACK\0";
const TRAILER: u64 = 8 + 8 + 32;
const BUFFER: usize = 1 << 20;

const ROOT: u8 = 1;
const DIR: u8 = 2;
const UP: u8 = 3;
const FILE: u8 = 4;
const LINK: u8 = 5;
const SAME: u8 = 6;

fn damaged(tree: &TreeId, what: impl Into<String>) -> Error {
    Error::Damaged { tree: tree.to_string(), what: what.into() }
}
