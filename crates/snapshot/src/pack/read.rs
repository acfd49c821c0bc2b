//! Reads packs without trusting them: the table is checked when the pack is opened, and every object against its id
//! when it is read.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use zstd::bulk::Decompressor;

use super::{BlockEncoding, CHECK, FOOTER, LARGEST_TABLE, MAGIC, PackBlock, PackTable, beginning, file_name};
use crate::Error;
use crate::encryption_key::EncryptionKey;
use crate::object_id::PackId;
use crate::remote::CachedPackGuard;

#[derive(Debug)]
pub(crate) struct PackFile {
    pub(crate) id: PackId,
    pub(crate) table: PackTable,
    pub(crate) size: u64,
    file: File,
    /// Set for a cached remote pack: the file has holes, and the missing bytes come from the object store.
    remote: Option<CachedPackGuard>,
}

impl PackFile {
    /// Opens a pack; `None` if it is not here.
    pub(crate) fn open(
        dir: &Path,
        id: PackId,
        key: Option<&EncryptionKey>,
    ) -> Result<Option<PackFile>, Error> {
        let path = dir.join(file_name(&id));
        match File::open(&path) {
            Ok(file) => PackFile::new(file, id, key, None).map(Some),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::system("open", path.as_os_str().as_bytes(), e)),
        }
    }

    pub(crate) fn new(
        file: File,
        id: PackId,
        key: Option<&EncryptionKey>,
        remote: Option<CachedPackGuard>,
    ) -> Result<PackFile, Error> {
        let (table, size) = PackFile::read(&file, id, key)?;
        if table.name() != id {
            return Err(damaged(&id, "it is another pack under this name"));
        }
        Ok(PackFile { id, table, size, file, remote })
    }

    fn read(file: &File, id: PackId, key: Option<&EncryptionKey>) -> Result<(PackTable, u64), Error> {
        let failed = |e| Error::system("read pack", id.to_string().as_bytes(), e);
        let size = file.metadata().map_err(failed)?.len();
        let bad = |what: &str| damaged(&id, what);
        if size < (MAGIC.len() + FOOTER) as u64 {
            return Err(bad("it is cut short"));
        }
        let mut magic = [0; MAGIC.len()];
        file.read_exact_at(&mut magic, 0).map_err(failed)?;
        if &magic != MAGIC {
            return Err(bad("it is no pack of this version"));
        }
        let mut footer = [0; FOOTER];
        file.read_exact_at(&mut footer, size - FOOTER as u64).map_err(failed)?;
        let (sealed, _, _, hash) = take_apart(&footer);
        let place = table_at(&footer, size).filter(|_| sealed <= 1);
        let Range { start: offset, end } = place.ok_or_else(|| bad("its footer is damaged"))?;
        let mut table = vec![0; (end - offset) as usize];
        file.read_exact_at(&mut table, offset).map_err(failed)?;
        if blake3::hash(&table) != hash {
            return Err(bad("its table is damaged"));
        }
        if sealed == 1 {
            let key = key.ok_or_else(|| Error::Sealed { pack: id.to_string() })?;
            table = key.open(&table, b"table").ok_or_else(|| Error::Sealed { pack: id.to_string() })?;
        }
        let table = PackTable::decode(&table).map_err(|e| bad(e.0))?;
        if table.blocks.iter().any(|block| block.offset.saturating_add(block.stored.into()) > offset) {
            return Err(bad("a block outside of it"));
        }
        Ok((table, size))
    }

    pub(crate) fn is_far(&self) -> bool {
        self.remote.is_some()
    }

    pub(crate) fn footer(&self) -> Result<[u8; FOOTER], Error> {
        let mut footer = [0; FOOTER];
        self.read_at(&mut footer, self.size - FOOTER as u64)?;
        Ok(footer)
    }

    pub(crate) fn damaged(&self, what: &str) -> Error {
        damaged(&self.id, what)
    }

    pub(crate) fn stored(&self, number: u32) -> Result<(PackBlock, Vec<u8>), Error> {
        let block = self.find(number)?;
        let mut bytes = Vec::new();
        self.read_into(&block, &mut bytes)?;
        Ok((block, bytes))
    }

    fn find(&self, number: u32) -> Result<PackBlock, Error> {
        let block = self.table.blocks.get(number as usize).copied();
        let block = block.ok_or_else(|| self.damaged("it has no such block"))?;
        if block.how == BlockEncoding::Dropped {
            return Err(self.damaged("the block was collected"));
        }
        Ok(block)
    }

    fn read_into(&self, block: &PackBlock, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let Some(remote) = &self.remote else {
            bytes.resize(block.stored as usize, 0);
            return self.read_at(bytes, block.offset);
        };
        if self.has(block, bytes) {
            return Ok(());
        }
        *bytes = remote.read(block.offset..block.offset + u64::from(block.stored))?;
        match self.keep(block, bytes)? {
            true => Ok(()),
            false => Err(self.damaged("what is far is not what was written")),
        }
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        self.file.read_exact_at(bytes, offset).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged("it is cut short"),
            _ => Error::system("read pack", self.id.to_string().as_bytes(), e),
        })
    }

    /// Whether the cached file of a remote pack holds a block. If so, `bytes` are the block.
    pub(crate) fn has(&self, block: &PackBlock, bytes: &mut Vec<u8>) -> bool {
        bytes.resize(block.stored as usize, 0);
        self.file.read_exact_at(bytes, block.offset).is_ok() && is_as_written(block, bytes)
    }

    /// Stores a block from the object store in the cached file. Returns false if the block does not match its check.
    pub(crate) fn keep(&self, block: &PackBlock, bytes: &[u8]) -> Result<bool, Error> {
        if bytes.len() != block.stored as usize || !is_as_written(block, bytes) {
            return Ok(false);
        }
        self.remote.as_ref().map_or(Ok(()), |remote| remote.keep(&self.file, bytes, block.offset))?;
        Ok(true)
    }

    /// Checks that every bit of a block is as it was written. Its objects may be intact even if the check fails,
    /// because not every bit of a zstd frame matters.
    pub(crate) fn is_as_written(&self, number: u32) -> Result<(), Error> {
        let (block, bytes) = self.stored(number)?;
        match is_as_written(&block, &bytes) {
            true => Ok(()),
            false => Err(self.damaged("a block is not as it was written")),
        }
    }

    /// An unpacked block. The caller still has to check its objects against their ids.
    pub(crate) fn block(
        &self,
        number: u32,
        key: Option<&EncryptionKey>,
        unpacking: &mut UnpackBuffers,
    ) -> Result<Vec<u8>, Error> {
        let block = self.find(number)?;
        let mut raw = std::mem::take(&mut unpacking.spare);
        if block.how == BlockEncoding::Plain && !block.sealed {
            self.read_into(&block, &mut raw)?;
        } else {
            self.read_into(&block, &mut unpacking.stored)?;
            if block.how == BlockEncoding::Trimmed {
                unpacking.stored.drain(..CHECK.min(unpacking.stored.len()));
            }
            self.unpack(&block, key, unpacking, &mut raw)?;
        }
        if raw.len() != block.raw as usize {
            return Err(self.damaged("a block of another size than it should have"));
        }
        Ok(raw)
    }

    fn unpack(
        &self,
        block: &PackBlock,
        key: Option<&EncryptionKey>,
        unpacking: &mut UnpackBuffers,
        raw: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if block.sealed {
            let key = key.ok_or_else(|| Error::Sealed { pack: self.id.to_string() })?;
            let opened = key.open(&unpacking.stored, b"block");
            unpacking.stored = opened.ok_or_else(|| self.damaged("a block does not open with this key"))?;
        }
        raw.clear();
        if block.how == BlockEncoding::Plain {
            raw.extend_from_slice(&unpacking.stored);
            return Ok(());
        }
        // zstd writes only into the reserved space.
        raw.reserve_exact(block.raw as usize);
        let zstd = unpacking.zstd.get_or_insert_with(Decompressor::default);
        zstd.decompress_to_buffer(&unpacking.stored, raw)
            .map(drop)
            .map_err(|_| self.damaged("a block is damaged"))
    }
}

/// Buffers that are reused from block to block: fresh memory pages cost more than the unpacking.
#[derive(Default)]
pub(crate) struct UnpackBuffers {
    stored: Vec<u8>,
    /// The buffer for the next block.
    pub(crate) spare: Vec<u8>,
    zstd: Option<Decompressor<'static>>,
}

/// Whether the pack was written with a key, according to its footer.
pub(crate) fn is_sealed(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    let end = file.metadata()?.len().checked_sub(FOOTER as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut sealed = [0];
    file.read_exact_at(&mut sealed, end)?;
    Ok(sealed == [1])
}

fn is_as_written(block: &PackBlock, bytes: &[u8]) -> bool {
    let (check, bytes) = match block.how {
        BlockEncoding::Trimmed => bytes.split_at_checked(CHECK).unwrap_or_default(),
        BlockEncoding::Plain | BlockEncoding::Zstd | BlockEncoding::Dropped => (&block.check[..], bytes),
    };
    beginning(bytes) == check
}

/// Where the table is in a pack of this size; `None` if the footer cannot be valid.
pub(crate) fn table_at(footer: &[u8; FOOTER], size: u64) -> Option<Range<u64>> {
    let (_, offset, length, _) = take_apart(footer);
    let end = size.checked_sub(FOOTER as u64)?;
    let fits = offset.checked_add(length.into()) == Some(end) && length <= LARGEST_TABLE;
    fits.then_some(offset..end)
}

fn take_apart(footer: &[u8; FOOTER]) -> (u8, u64, u32, blake3::Hash) {
    let (mut offset, mut length, mut hash) = ([0; 8], [0; 4], [0; 32]);
    offset.copy_from_slice(&footer[1..9]);
    length.copy_from_slice(&footer[9..13]);
    hash.copy_from_slice(&footer[13..]);
    (footer[0], u64::from_le_bytes(offset), u32::from_le_bytes(length), hash.into())
}

pub(crate) fn damaged(id: &PackId, what: impl Into<String>) -> Error {
    Error::Damaged { tree: id.to_string(), what: what.into() }
}
