//! The index on disk: loaded in one read, changed by appending.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::ops::Range;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::edit;
use super::entries::{put_entry, put_known, put_look, put_ref, put_time, read_look, read_ref, read_time};
use super::{CaptureIndex, DirectoryUpdate, IndexedBytes, IndexedContent, IndexedDirectory};
use crate::TreeId;
use crate::codec::{ByteDecoder, DecodeResult, ObjectDecodeError, put_bytes, put_number};
use crate::object_id::PackId;

const MAGIC: &[u8; 9] = b"ASHINDEX\x01";
const HEAD: usize = 4 + 8;

const DIR: u8 = 1;
const GONE: u8 = 2;
const PACK: u8 = 3;
const BASE: u8 = 4;
const EDIT: u8 = 5;

const LINKED: u8 = 1;
const SKIPS: u8 = 2;

/// Less garbage than this is not worth rewriting the log.
const TOLERATED: u64 = 256 << 10;

/// The positions of each directory's edits in the log, oldest first.
type DirectoryEdits = HashMap<Vec<u8>, Vec<Range<usize>>>;

impl CaptureIndex {
    /// Loads an index; an unreadable one counts as empty.
    pub(crate) fn load(path: &Path) -> CaptureIndex {
        let mut loaded = Vec::new();
        let read = File::open(path).and_then(|mut file| file.read_to_end(&mut loaded));
        if read.is_err() || !loaded.starts_with(MAGIC) {
            return CaptureIndex::default();
        }
        let mut index = CaptureIndex { loaded, length: MAGIC.len() as u64, ..CaptureIndex::default() };
        let (end, records) = index.committed();
        index.directories.reserve(records);
        if index.replay(end).is_err() {
            return CaptureIndex::default();
        }
        index.length = end as u64;
        index
    }

    /// Returns where the last BASE with valid checksums ends, and an upper limit for the number of directories before
    /// it.
    fn committed(&self) -> (usize, usize) {
        let (mut at, mut end, mut directories) = (MAGIC.len(), MAGIC.len(), 0);
        while let Some(length) = payload_length(&self.loaded, at) {
            let Some(payload) = self.loaded.get(at + HEAD..at + HEAD + length) else { break };
            if self.loaded[at + 4..at + HEAD] != xxh3_64(payload).to_le_bytes() {
                break;
            }
            at += HEAD + length;
            match payload.first() {
                Some(&BASE) => end = at,
                Some(&DIR) => directories += 1,
                Some(_) | None => {}
            }
        }
        (end, directories)
    }

    fn replay(&mut self, end: usize) -> DecodeResult<()> {
        let mut edits = DirectoryEdits::new();
        let mut at = MAGIC.len();
        while at < end {
            let length = payload_length(&self.loaded, at).unwrap_or(0);
            let bytes = std::mem::take(&mut self.loaded);
            let gone = self.replay_one(&bytes, at + HEAD..at + HEAD + length, &mut edits);
            self.loaded = bytes;
            if let Some(path) = gone? {
                // Edits beneath the removed directory refer to the loaded entries, so they must be applied before the
                // removal.
                let beneath = |edited: &Vec<u8>| {
                    edited.strip_prefix(&path[..]).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
                };
                self.settle(edits.extract_if(|edited, _| beneath(edited)).collect())?;
                self.remove(&path);
            }
            at += HEAD + length;
        }
        self.settle(edits)
    }

    /// Applies all edits of a directory at once: the directory may be large, and its edits many.
    fn settle(&mut self, edits: DirectoryEdits) -> DecodeResult<()> {
        for (path, edits) in edits {
            let Some(directory) = self.directories.get(&path) else { continue };
            let edits = edits.into_iter().map(|range| &self.loaded[range]);
            let entries = edit::apply(self.bytes_of(directory), edits)?;
            self.directories
                .entry(path)
                .and_modify(|directory| directory.entries = IndexedBytes::Own(entries.into()));
        }
        Ok(())
    }

    /// Returns the path of the removed directory if the record is a removal.
    fn replay_one(
        &mut self,
        loaded: &[u8],
        payload: Range<usize>,
        edits: &mut DirectoryEdits,
    ) -> DecodeResult<Option<Vec<u8>>> {
        let end = payload.end;
        let length = (HEAD + payload.len()) as u64;
        let mut cursor = ByteDecoder::new(&loaded[payload]);
        match cursor.byte()? {
            kind @ (DIR | EDIT) => {
                let path = cursor.bytes()?.to_vec();
                let mut directory = self.read_head(&mut cursor)?;
                let rest = end - cursor.left()..end;
                if kind == DIR {
                    edits.remove(&path);
                    directory.entries = IndexedBytes::Loaded(rest);
                    self.put(path, directory);
                } else {
                    let old =
                        self.directories.get_mut(&path).ok_or(ObjectDecodeError("an edit of nothing"))?;
                    directory.entries = old.entries.clone();
                    *old = directory;
                    edits.entry(path).or_default().push(rest);
                    self.garbage += length;
                }
            }
            GONE => {
                self.garbage += length;
                return Ok(Some(cursor.bytes()?.to_vec()));
            }
            PACK => self.packs.push(PackId(cursor.array()?)),
            BASE => {
                let text = cursor.bytes()?;
                let text = std::str::from_utf8(text).map_err(|_| ObjectDecodeError("a tree that is none"))?;
                self.base = Some(TreeId::parse(text).map_err(|_| ObjectDecodeError("a tree that is none"))?);
            }
            _ => return Err(ObjectDecodeError("a record of an unknown kind")),
        }
        Ok(None)
    }

    /// Reads everything but the entries.
    fn read_head(&self, cursor: &mut ByteDecoder<'_>) -> DecodeResult<IndexedDirectory> {
        let look = read_look(cursor)?;
        let seen = read_time(cursor)?;
        let at = read_ref(cursor, &self.packs)?;
        let (files, bytes, flags) = (cursor.number()?, cursor.number()?, cursor.byte()?);
        let (linked, skips) = (flags & LINKED != 0, flags & SKIPS != 0);
        Ok(IndexedDirectory {
            look,
            seen,
            at,
            files,
            bytes,
            linked,
            skips,
            entries: IndexedBytes::Loaded(0..0),
        })
    }

    fn put(&mut self, path: Vec<u8>, directory: IndexedDirectory) {
        if let Some(old) = self.directories.insert(path, directory) {
            self.garbage += old.weight();
        }
    }

    /// Removes a directory and everything beneath it.
    fn remove(&mut self, path: &[u8]) {
        let mut doomed = vec![path.to_vec()];
        while let Some(path) = doomed.pop() {
            let Some(old) = self.directories.remove(&path) else { continue };
            self.garbage += old.weight();
            let within = super::IndexEntries::new(self.bytes_of(&old), &self.packs);
            let directories = within.filter(|entry| entry.look.nature == super::IndexedFileKind::Dir);
            doomed.extend(directories.map(|entry| [&path, &b"/"[..], entry.name].concat()));
        }
    }

    /// Records what a capture saw, and writes it to `path`. A failed write of this cache does not fail the capture:
    /// the next capture only reads more.
    pub(crate) fn update(
        &mut self,
        path: &Path,
        gone: &[Vec<u8>],
        changed: &[DirectoryUpdate<'_>],
        base: &TreeId,
    ) {
        let mut log = IndexLogBuffer { bytes: Vec::new(), packs: self.packs.len() };
        (self.by_inode, self.by_content) = Default::default();
        for path in gone {
            self.remove(path);
            log.record(|out| {
                out.push(GONE);
                put_bytes(out, path);
            });
        }
        for remember in changed {
            let directory = self.remember(remember);
            let edit = self.edit_of(remember.path, &directory);
            let record = match &edit {
                Some(edit) => self.record_of(EDIT, remember.path, &directory, edit),
                None => self.record_of(DIR, remember.path, &directory, self.bytes_of(&directory)),
            };
            log.packs(&self.packs);
            log.append(&record);
            if edit.is_some() {
                self.garbage += record.len() as u64;
                self.directories.insert(remember.path.to_vec(), directory);
            } else {
                self.put(remember.path.to_vec(), directory);
            }
        }
        self.base = Some(base.clone());
        log.record(|out| {
            out.push(BASE);
            put_bytes(out, base.as_str().as_bytes());
        });
        let wasteful = self.garbage > TOLERATED && self.garbage > self.length / 2;
        let written = if wasteful || self.length == 0 { self.rewrite(path) } else { self.append(path, &log) };
        if let Err(error) = written {
            tracing::warn!(%error, index = %path.display(), "an index could not be written");
            // A half-written index must not pass for a whole one.
            let _ = std::fs::remove_file(path);
        }
    }

    fn remember(&mut self, remember: &DirectoryUpdate<'_>) -> IndexedDirectory {
        let mut entries = Vec::with_capacity(remember.entries.len() * 96);
        let (mut files, mut bytes, mut linked, mut skips) = (0, 0, false, false);
        let mut rest = Vec::new();
        for (name, look, known) in remember.entries {
            rest.clear();
            put_known(&mut rest, known, &mut |pack| self.pack_number(pack));
            put_entry(&mut entries, name, look, &rest);
            linked |= look.linked;
            match known {
                IndexedContent::File(content, _) => {
                    files += 1;
                    bytes = u64::saturating_add(bytes, content.size);
                }
                IndexedContent::Skipped(_) => skips = true,
                IndexedContent::Dir(_) | IndexedContent::Link(_) => {}
            }
        }
        let entries = IndexedBytes::Own(entries.into());
        let DirectoryUpdate { look, seen, at, .. } = *remember;
        self.pack_number(at.place.pack);
        IndexedDirectory { look, seen, at, files, bytes, linked, skips, entries }
    }

    /// The edits of a directory that is in the log, if they are shorter than all its entries.
    fn edit_of(&self, path: &[u8], now: &IndexedDirectory) -> Option<Vec<u8>> {
        let (old, new) = (self.bytes_of(self.get(path)?), self.bytes_of(now));
        edit::difference(old, new).ok().filter(|edit| edit.len() < new.len())
    }

    fn record_of(&self, kind: u8, path: &[u8], directory: &IndexedDirectory, entries: &[u8]) -> Vec<u8> {
        let mut out = vec![kind];
        put_bytes(&mut out, path);
        put_look(&mut out, &directory.look);
        put_time(&mut out, directory.seen);
        put_ref(&mut out, &directory.at, &mut |pack| {
            self.known_pack(pack).expect("numbered when the directory was remembered")
        });
        put_number(&mut out, directory.files);
        put_number(&mut out, directory.bytes);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.push(flag(directory.linked, LINKED) | flag(directory.skips, SKIPS));
        out.extend_from_slice(entries);
        out
    }

    fn append(&mut self, path: &Path, log: &IndexLogBuffer) -> io::Result<()> {
        let file = File::options().write(true).open(path)?;
        // Overwrites and cuts off the half-written tail that a crashed capture left.
        file.set_len(self.length)?;
        std::os::unix::fs::FileExt::write_all_at(&file, &log.bytes, self.length)?;
        self.length += log.bytes.len() as u64;
        Ok(())
    }

    fn rewrite(&mut self, path: &Path) -> io::Result<()> {
        let mut log = IndexLogBuffer { bytes: MAGIC.to_vec(), packs: 0 };
        log.packs(&self.packs);
        for (path, directory) in &self.directories {
            log.append(&self.record_of(DIR, path, directory, self.bytes_of(directory)));
        }
        if let Some(base) = &self.base {
            log.record(|out| {
                out.push(BASE);
                put_bytes(out, base.as_str().as_bytes());
            });
        }
        let new = path.with_extension("writing");
        File::create(&new)?.write_all(&log.bytes)?;
        std::fs::rename(&new, path)?;
        (self.length, self.garbage) = (log.bytes.len() as u64, 0);
        Ok(())
    }
}

impl IndexedDirectory {
    fn weight(&self) -> u64 {
        let entries = match &self.entries {
            IndexedBytes::Loaded(range) => range.len(),
            IndexedBytes::Own(bytes) => bytes.len(),
        };
        entries as u64 + 128
    }
}

/// Records to be written. A pack's id precedes the first record that refers to the pack.
struct IndexLogBuffer {
    bytes: Vec<u8>,
    packs: usize,
}

impl IndexLogBuffer {
    fn packs(&mut self, all: &[PackId]) {
        for pack in &all[self.packs..] {
            self.record(|out| {
                out.push(PACK);
                out.extend_from_slice(&pack.0);
            });
        }
        self.packs = all.len();
    }

    fn record(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut payload = Vec::new();
        write(&mut payload);
        self.append(&payload);
    }

    fn append(&mut self, payload: &[u8]) {
        self.bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&xxh3_64(payload).to_le_bytes());
        self.bytes.extend_from_slice(payload);
    }
}

fn payload_length(bytes: &[u8], at: usize) -> Option<usize> {
    let head: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(head) as usize)
}

/// Reads which snapshot an index on disk describes, without loading the index.
pub(crate) fn base_of(path: &Path) -> Option<TreeId> {
    const LENGTH: usize = HEAD + 2 + 96;
    let file = File::open(path).ok()?;
    let at = file.metadata().ok()?.len().checked_sub(LENGTH as u64)?;
    let mut tail = [0; LENGTH];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut tail, at).ok()?;
    let payload = &tail[HEAD..];
    let sound = tail[4..HEAD] == xxh3_64(payload).to_le_bytes() && payload[0] == BASE;
    sound.then(|| std::str::from_utf8(&payload[2..]).ok().and_then(|text| TreeId::parse(text).ok())).flatten()
}
