//! Writes packs: several threads fill blocks of their own, and the file gets its name when all of it is on disk.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, RwLock};
use std::time::SystemTime;

use super::{
    BLOCK, BlockEncoding, MAGIC, PackBlock, PackFile, PackNote, PackTable, TEMPORARY, UnpackBuffers,
    beginning, file_name,
};
use crate::disk_writer::DiskWriter;
use crate::encryption_key::EncryptionKey;
use crate::object::{ObjectLocation, ObjectRef};
use crate::object_id::PackId;
use crate::repo::PackInventory;
use crate::{Error, pack};

/// Writes are collected to this size, so that a small pack is one write.
const BUFFER: usize = 2 << 20;

/// A fast level that compresses well enough; faster restores and less disk space are worth a slower first capture.
const LEVEL: i32 = 3;

#[derive(Debug)]
pub(crate) struct PackWriter<'a> {
    place: PackDestination<'a>,
    state: Mutex<PackWriterState>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PackDestination<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) disk: &'a DiskWriter,
    pub(crate) key: Option<&'a EncryptionKey>,
    /// Shared by writers that publish a pack, exclusive for collection that removes or replaces one. A capture of the
    /// same files produces the same pack name, so both can meet.
    pub(crate) naming: &'a RwLock<()>,
    pub(crate) inventory: &'a PackInventory,
}

#[derive(Debug, Default)]
struct PackWriterState {
    file: Option<UnnamedPackFile>,
    written: u64,
    buffer: Vec<u8>,
    /// By number. A block's place is known before its bytes are.
    blocks: Vec<Option<PackBlock>>,
}

/// A pack file without its final name. It is removed on drop.
#[derive(Debug)]
struct UnnamedPackFile {
    file: File,
    path: PathBuf,
    disk: DiskWriter,
}

impl Drop for UnnamedPackFile {
    fn drop(&mut self) {
        // After the rename nothing has this name any more.
        let _ = self.disk.remove(&self.path);
    }
}

impl<'a> PackWriter<'a> {
    pub(crate) fn new(place: PackDestination<'a>) -> PackWriter<'a> {
        PackWriter { place, state: Mutex::default() }
    }

    pub(crate) fn blocks(&self) -> BlockWriter<'_, 'a> {
        BlockWriter { packing: self, number: None, raw: Vec::new(), compressor: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().expect("no code panics while it holds this lock").blocks.is_empty()
    }

    fn number(&self) -> u32 {
        let mut state = self.state.lock().expect("no code panics while it holds this lock");
        state.blocks.push(None);
        state.blocks.len() as u32 - 1
    }

    fn put(&self, number: u32, raw: u32, how: BlockEncoding, bytes: &[u8]) -> Result<(), Error> {
        let sealed = self.place.key.map(|key| key.seal(bytes, b"block"));
        let bytes = sealed.as_deref().unwrap_or(bytes);
        let check = beginning(bytes);
        let mut state = self.state.lock().expect("no code panics while it holds this lock");
        let offset = self.place.append(&mut state, bytes).map_err(|e| self.place.failed(e))?;
        let stored = bytes.len() as u32;
        let block = PackBlock { offset, stored, raw, how, sealed: sealed.is_some(), check };
        state.blocks[number as usize] = Some(block);
        Ok(())
    }

    /// Publishes the pack. When this returns, the pack is on disk under its name. Returns its size in bytes.
    pub(crate) fn finish(
        self,
        root: Option<ObjectRef>,
        notes: Vec<PackNote>,
    ) -> Result<(PackId, u64), Error> {
        let mut state = self.state.into_inner().expect("no code panics while it holds this lock");
        let blocks = state.blocks.drain(..).collect::<Option<Vec<PackBlock>>>();
        let blocks = blocks.expect("every builder has put its block");
        let table = PackTable { blocks, root, notes };
        let done = self.place.close(&mut state, &table, None).and_then(|()| {
            let naming = self.place.naming.read().expect("no code panics while it holds this lock");
            self.place.publish(&state, &table.name())?;
            drop(naming);
            self.place.disk.sync_dir(self.place.dir)?;
            self.place.inventory.added(table.name())
        });
        done.map(|()| (table.name(), state.written)).map_err(|e| self.place.failed(e))
    }
}

impl PackDestination<'_> {
    fn append(&self, state: &mut PackWriterState, bytes: &[u8]) -> io::Result<u64> {
        if state.file.is_none() {
            let path = self.dir.join(format!("{TEMPORARY}{}", uuid::Uuid::new_v4().simple()));
            let file = self.disk.create(&path)?;
            state.file = Some(UnnamedPackFile { file, path, disk: self.disk.clone() });
            state.buffer.extend_from_slice(MAGIC);
        }
        let offset = state.written + state.buffer.len() as u64;
        state.buffer.extend_from_slice(bytes);
        if state.buffer.len() >= BUFFER {
            self.drain(state)?;
        }
        Ok(offset)
    }

    fn drain(&self, state: &mut PackWriterState) -> io::Result<()> {
        let Some(new) = &state.file else { return Ok(()) };
        self.disk.write_at(&new.file, &state.buffer, state.written)?;
        state.written += state.buffer.len() as u64;
        state.buffer.clear();
        Ok(())
    }

    /// Writes the table and the footer. The file is then on disk, but without its name.
    fn close(
        &self,
        state: &mut PackWriterState,
        table: &PackTable,
        modified: Option<SystemTime>,
    ) -> io::Result<()> {
        let (bytes, sealed) = sealed_table(&table.encode(), self.key);
        let offset = self.append(state, &bytes)?;
        self.append(state, &footer(sealed, offset, &bytes))?;
        self.drain(state)?;
        let Some(new) = &state.file else { return Err(io::Error::other("nothing was written")) };
        modified.map_or(Ok(()), |at| new.file.set_modified(at))?;
        self.disk.sync(&new.file)
    }

    fn publish(&self, state: &PackWriterState, name: &PackId) -> io::Result<()> {
        let Some(new) = &state.file else { return Err(io::Error::other("nothing was written")) };
        self.disk.rename(&new.path, &self.dir.join(file_name(name)))
    }

    /// Whether a pack is unchanged since its modification time was read; `None` means that it was not here.
    pub(crate) fn is_as_it_was(&self, pack: &PackId, modified: Option<SystemTime>) -> io::Result<bool> {
        let is = match std::fs::metadata(self.dir.join(file_name(pack))) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && modified.is_none() => None,
            is => Some(is?.modified()?),
        };
        Ok(is == modified)
    }

    fn failed(&self, e: io::Error) -> Error {
        Error::system("write a pack in", self.dir.as_os_str().as_bytes(), e)
    }
}

pub(super) fn sealed_table(table: &[u8], key: Option<&EncryptionKey>) -> (Vec<u8>, bool) {
    match key {
        Some(key) => (key.seal(table, b"table"), true),
        None => (table.to_vec(), false),
    }
}

pub(super) fn footer(sealed: bool, offset: u64, table: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(pack::FOOTER);
    out.push(sealed.into());
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&(table.len() as u32).to_le_bytes());
    out.extend_from_slice(blake3::hash(table).as_bytes());
    out
}

/// The blocks of one thread. Similar objects share blocks: contents in some, lists and directories in others.
pub(crate) struct BlockWriter<'p, 'a> {
    packing: &'p PackWriter<'a>,
    number: Option<u32>,
    raw: Vec<u8>,
    compressor: Option<zstd::bulk::Compressor<'static>>,
}

impl BlockWriter<'_, '_> {
    /// Appends an object to the current block.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<ObjectLocation, Error> {
        if !self.raw.is_empty() && self.raw.len() + bytes.len() > BLOCK {
            self.flush()?;
        }
        let number = *self.number.get_or_insert_with(|| self.packing.number());
        let (start, length) = (self.raw.len() as u32, bytes.len() as u32);
        self.raw.extend_from_slice(bytes);
        Ok(ObjectLocation { pack: PackId::SELF, block: number, start, length })
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        let Some(number) = self.number.take() else { return Ok(()) };
        let raw = self.raw.len() as u32;
        let packed = self.compress().map_err(|e| self.packing.place.failed(e))?;
        // A smaller saving is not worth the unpacking.
        let done = if packed.len() + packed.len() / 32 < self.raw.len() {
            self.packing.put(number, raw, BlockEncoding::Zstd, &packed)
        } else {
            self.packing.put(number, raw, BlockEncoding::Plain, &self.raw)
        };
        self.raw.clear();
        done
    }

    fn compress(&mut self) -> io::Result<Vec<u8>> {
        if self.compressor.is_none() {
            self.compressor = Some(zstd::bulk::Compressor::new(LEVEL)?);
        }
        let compressor = self.compressor.as_mut().expect("made above");
        compressor.compress(&self.raw)
    }
}

/// The live ranges of each block: start and length.
pub(crate) type LiveRanges = HashMap<u32, HashSet<(u32, u32)>>;

/// Whether so little of a block is live that rewriting it without the rest pays off.
pub(crate) fn is_worth_trimming(block: &PackBlock, live: &HashSet<(u32, u32)>) -> bool {
    let wanted: u64 = live.iter().map(|(_, length)| u64::from(*length)).sum();
    matches!(block.how, BlockEncoding::Plain | BlockEncoding::Zstd) && wanted * 2 < u64::from(block.raw)
}

/// Rewrites a pack without its dead ranges. Its name, its age and the places in it stay. A pack that was only remote
/// has no age, and is local afterwards. Returns `None` and changes nothing if a capture wrote the pack again
/// meanwhile.
pub(crate) fn without(
    place: PackDestination<'_>,
    pack: &PackFile,
    wanted: &LiveRanges,
    modified: Option<SystemTime>,
) -> Result<Option<u64>, Error> {
    let mut state = PackWriterState::default();
    let mut table = pack.table.clone();
    for (number, block) in table.blocks.iter_mut().enumerate() {
        let number = number as u32;
        let Some(live) = wanted.get(&number).filter(|_| block.how != BlockEncoding::Dropped) else {
            *block = PackBlock { offset: 0, stored: 0, how: BlockEncoding::Dropped, sealed: false, ..*block };
            continue;
        };
        let bytes = if is_worth_trimming(block, live) {
            let bytes = trimmed(place, pack, number, live)?;
            *block = PackBlock {
                stored: bytes.len() as u32,
                how: BlockEncoding::Trimmed,
                sealed: place.key.is_some(),
                ..*block
            };
            bytes
        } else {
            pack.stored(number)?.1
        };
        block.offset = place.append(&mut state, &bytes).map_err(|e| place.failed(e))?;
    }
    let done = place.close(&mut state, &table, modified).and_then(|()| {
        let naming = place.naming.write().expect("no code panics while it holds this lock");
        if !place.is_as_it_was(&pack.id, modified)? {
            return Ok(None);
        }
        place.publish(&state, &pack.id)?;
        drop(naming);
        place.disk.sync_dir(place.dir)?;
        if modified.is_none() {
            place.inventory.added(pack.id)?;
        }
        Ok(Some(state.written))
    });
    done.map_err(|e| place.failed(e))
}

/// A block whose dead ranges are zeros, which compress to almost nothing.
fn trimmed(
    place: PackDestination<'_>,
    pack: &PackFile,
    number: u32,
    live: &HashSet<(u32, u32)>,
) -> Result<Vec<u8>, Error> {
    let raw = pack.block(number, place.key, &mut UnpackBuffers::default())?;
    let mut kept = vec![0; raw.len()];
    for (start, length) in live {
        let range = *start as usize..(*start as usize).saturating_add(*length as usize);
        let (Some(to), Some(from)) = (kept.get_mut(range.clone()), raw.get(range)) else {
            return Err(pack.damaged("something lies behind the end of its block"));
        };
        to.copy_from_slice(from);
    }
    let packed = zstd::bulk::compress(&kept, LEVEL).map_err(|e| place.failed(e))?;
    let packed = match place.key {
        Some(key) => key.seal(&packed, b"block"),
        None => packed,
    };
    // The block's own check is that of its original bytes, and part of the pack's name. So a trimmed block carries
    // another one.
    Ok([&beginning(&packed)[..], &packed].concat())
}
