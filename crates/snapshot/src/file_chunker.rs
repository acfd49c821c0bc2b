//! Reads a file through the chunker, and packs its chunks into lists.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use crate::chunker::{self, ChunkBoundary, LOOKAHEAD, MAX_WHOLE_FILE, ZEROS};
use crate::object::{ContentPiece, EncodedObject, ObjectLocation, ObjectRef, encode_list};
use crate::object_id::{ObjectId, ObjectKind, ObjectNamer, PackId};

const WINDOW: usize = 4 << 20;

#[derive(Debug, Clone, Copy)]
pub(crate) enum FilePiece {
    Zeros(u64),
    Chunk(u64),
}

/// A file that is being cut into chunks.
pub(crate) struct FileChunker<'f> {
    file: &'f File,
    size: u64,
    window: Vec<u8>,
    /// The offset of the window in the file.
    start: u64,
}

impl<'f> FileChunker<'f> {
    pub(crate) fn new(file: &'f File, size: u64) -> FileChunker<'f> {
        FileChunker { file, size, window: Vec::new(), start: 0 }
    }

    /// The next chunk; `None` if the file is now shorter than its stated size.
    pub(crate) fn next(&mut self, at: u64) -> io::Result<Option<FilePiece>> {
        if at.is_multiple_of(ZEROS)
            && let Some(hole) = self.hole(at)?
        {
            return Ok(Some(FilePiece::Zeros(hole)));
        }
        let have = (self.start + self.window.len() as u64).saturating_sub(at);
        let wanted = (self.size - at).min(LOOKAHEAD as u64);
        if at < self.start || have < wanted {
            self.slide(at)?;
        }
        let from = (at - self.start) as usize;
        let ahead = &self.window[from..self.window.len().min(from + LOOKAHEAD)];
        if ahead.is_empty() {
            return Ok(None);
        }
        Ok(Some(match chunker::next(ahead, at) {
            ChunkBoundary::Zeros(length) => FilePiece::Zeros(length as u64),
            ChunkBoundary::Chunk(length) => FilePiece::Chunk(length as u64),
        }))
    }

    /// Whole zero blocks that lie in a hole, which need not be read.
    fn hole(&self, at: u64) -> io::Result<Option<u64>> {
        let data = match rustix::fs::seek(self.file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data.min(self.size),
            Err(Errno::NXIO) => self.size,
            // The file system does not report holes.
            Err(Errno::INVAL) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let blocks = data.saturating_sub(at) / ZEROS * ZEROS;
        Ok((blocks > 0).then_some(blocks))
    }

    fn slide(&mut self, at: u64) -> io::Result<()> {
        let length = (self.size - at).min(WINDOW as u64) as usize;
        self.window.resize(length, 0);
        self.start = at;
        let read = fill(self.file, &mut self.window, at)?;
        self.window.truncate(read);
        Ok(())
    }

    pub(crate) fn bytes(&self, at: u64, length: u64) -> &[u8] {
        let from = (at - self.start) as usize;
        &self.window[from..from + length as usize]
    }
}

/// Fills the buffer, or as much of it as the file has.
pub(crate) fn fill(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

/// The lists that hold these chunks, each with the number of content bytes it covers.
pub(crate) fn lists(pieces: &[ContentPiece]) -> Vec<(u64, EncodedObject)> {
    let mut lists = Vec::new();
    let (mut first, mut so_far) = (0, 0);
    for (at, piece) in pieces.iter().enumerate() {
        so_far += 1;
        let ends = matches!(piece, ContentPiece::Chunk { at, .. } if chunker::ends_list(&at.id, so_far));
        if ends || at + 1 == pieces.len() {
            let part = &pieces[first..=at];
            let length = part.iter().map(ContentPiece::length).sum();
            lists.push((length, encode_list(0, part)));
            (first, so_far) = (at + 1, 0);
        }
    }
    lists
}

/// The name of a file's content, without storing it; `None` if the file is empty.
pub(crate) fn name_of(file: &File, size: u64, naming: &ObjectNamer) -> io::Result<Option<ObjectId>> {
    if size <= MAX_WHOLE_FILE {
        let mut bytes = vec![0; size as usize];
        let read = fill(file, &mut bytes, 0)?;
        return Ok((read > 0).then(|| naming.name(ObjectKind::Chunk, &bytes[..read])));
    }
    let mut cutting = FileChunker::new(file, size);
    let mut pieces: Vec<ContentPiece> = Vec::new();
    let mut at = 0;
    while at < size
        && let Some(step) = cutting.next(at)?
    {
        match (step, pieces.last_mut()) {
            (FilePiece::Zeros(length), Some(ContentPiece::Zeros { length: before })) => *before += length,
            (FilePiece::Zeros(length), _) => pieces.push(ContentPiece::Zeros { length }),
            (FilePiece::Chunk(length), _) => {
                let bytes = cutting.bytes(at, length);
                let at = nowhere(naming.name(ObjectKind::Chunk, bytes), length);
                pieces.push(ContentPiece::Chunk { length, at, pre: xxh3_64(bytes) });
            }
        }
        at += match step {
            FilePiece::Zeros(length) | FilePiece::Chunk(length) => length,
        };
    }
    let lists = lists(&pieces);
    let name = |list: &EncodedObject| naming.name(ObjectKind::List, list.logical());
    Ok(match &lists[..] {
        [] => None,
        [(_, only)] => Some(name(only)),
        several => {
            let below = several.iter().map(|(length, list)| ContentPiece::List {
                length: *length,
                at: nowhere(name(list), list.stored.len() as u64),
            });
            Some(name(&encode_list(1, &below.collect::<Vec<_>>())))
        }
    })
}

fn nowhere(id: ObjectId, length: u64) -> ObjectRef {
    ObjectRef { id, place: ObjectLocation { pack: PackId::SELF, block: 0, start: 0, length: length as u32 } }
}
