//! A file's content as runs of zeros and literal bytes: a file of a terabyte of nothing is twelve bytes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::read::Span;

const BLOCK: u64 = 4096;
const LONGEST_RUN: u64 = 1 << 20;

/// Which side failed: the file that is read, or whatever takes the runs.
#[derive(Debug)]
pub(crate) enum Broken<E> {
    Source(io::Error),
    Sink(E),
}

/// What was encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) size: u64,
    pub(crate) stored: u64,
    pub(crate) hash: blake3::Hash,
}

/// Reads up to `size` bytes of a file and hands its runs to `sink`, in the one way a content is written.
pub(crate) fn encode<E>(
    file: &File,
    size: u64,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<Fingerprint, Broken<E>> {
    let mut runs =
        Runs { sink, hasher: blake3::Hasher::new(), stored: 0, end: 0, start: 0, literal: Vec::new() };
    let mut buffer = vec![0; usize::try_from(size.min(LONGEST_RUN)).unwrap_or(0)];
    let mut at = 0;
    while let Some((from, to)) = next_data(file, at, size).map_err(Broken::Source)? {
        at = from;
        while at < to {
            let piece = &mut buffer[..(to - at).min(LONGEST_RUN) as usize];
            let read = read_at(file, piece, at).map_err(Broken::Source)?;
            runs.take(at, &piece[..read]).map_err(Broken::Sink)?;
            // Less than asked for: somebody cut the file short, and going on would leave the blocks' borders.
            at = if read == piece.len() { at + read as u64 } else { to };
        }
    }
    // A file that shrank is as long as it is now, not padded to what it was.
    let now = file.metadata().map_err(Broken::Source)?.len();
    runs.finish(size.min(now)).map_err(Broken::Sink)
}

/// The next stretch with data, in whole blocks.
fn next_data(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let from = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(from) => from,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that knows no holes.
        Err(Errno::INVAL) => return Ok(Some((at, size))),
        Err(e) => return Err(e.into()),
    };
    let to = match rustix::fs::seek(file, SeekFrom::Hole(from)) {
        Ok(to) => to,
        Err(Errno::NXIO) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let from = (from / BLOCK * BLOCK).max(at);
    let to = to.div_ceil(BLOCK).saturating_mul(BLOCK).min(size);
    Ok((from < to).then_some((from, to)))
}

/// Fills the buffer unless the file ends.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
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

struct Runs<'a, E> {
    sink: &'a mut dyn FnMut(&[u8]) -> Result<(), E>,
    hasher: blake3::Hasher,
    stored: u64,
    /// Up to where runs were written.
    end: u64,
    /// The literal run being gathered, and where it starts.
    start: u64,
    literal: Vec<u8>,
}

impl<E> Runs<'_, E> {
    /// `at` is the start of a block.
    fn take(&mut self, at: u64, bytes: &[u8]) -> Result<(), E> {
        let blocks = bytes.chunks(BLOCK as usize);
        for (at, block) in (at..).step_by(BLOCK as usize).zip(blocks) {
            if block.iter().any(|&b| b != 0) {
                self.literal_block(at, block)?;
            }
        }
        Ok(())
    }

    fn literal_block(&mut self, at: u64, block: &[u8]) -> Result<(), E> {
        let gathered = self.start + self.literal.len() as u64;
        if gathered != at || at.is_multiple_of(LONGEST_RUN) {
            self.flush()?;
            self.start = at;
        }
        self.literal.extend_from_slice(block);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), E> {
        if self.literal.is_empty() {
            return Ok(());
        }
        let literal = std::mem::take(&mut self.literal);
        self.head(self.start - self.end, literal.len() as u32)?;
        self.put(&literal)?;
        self.end = self.start + literal.len() as u64;
        // Keeps the allocation.
        self.literal = literal;
        self.literal.clear();
        Ok(())
    }

    fn finish(mut self, size: u64) -> Result<Fingerprint, E> {
        self.flush()?;
        let size = size.max(self.end);
        self.head(size - self.end, 0)?;
        Ok(Fingerprint { size, stored: self.stored, hash: self.hasher.finalize() })
    }

    fn head(&mut self, zeros: u64, length: u32) -> Result<(), E> {
        let mut head = [0; 12];
        head[..8].copy_from_slice(&zeros.to_le_bytes());
        head[8..].copy_from_slice(&length.to_le_bytes());
        self.put(&head)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), E> {
        self.hasher.update(bytes);
        self.stored += bytes.len() as u64;
        (self.sink)(bytes)
    }
}

/// The bytes of a file in a snapshot, as [`Read`]. They were checked before it was handed out.
#[derive(Debug)]
pub struct Content {
    stored: io::BufReader<Span>,
    zeros: u64,
    literal: u64,
    finished: bool,
}

impl Content {
    pub(super) fn new(stored: Span) -> Content {
        Content { stored: io::BufReader::new(stored), zeros: 0, literal: 0, finished: false }
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.zeros == 0 && self.literal == 0 && !self.finished {
            let (zeros, literal) = read_head(&mut self.stored)?;
            (self.zeros, self.literal, self.finished) = (zeros, literal.into(), literal == 0);
        }
        let length = |left: u64| usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if self.zeros > 0 {
            let n = length(self.zeros);
            buffer[..n].fill(0);
            self.zeros -= n as u64;
            return Ok(n);
        }
        let n = length(self.literal);
        let n = self.stored.read(&mut buffer[..n])?;
        self.literal -= n as u64;
        Ok(n)
    }
}

pub(super) fn read_head(from: &mut impl Read) -> io::Result<(u64, u32)> {
    let (mut zeros, mut length) = ([0; 8], [0; 4]);
    from.read_exact(&mut zeros)?;
    from.read_exact(&mut length)?;
    Ok((u64::from_le_bytes(zeros), u32::from_le_bytes(length)))
}

pub(super) const LONGEST_LITERAL: u32 = LONGEST_RUN as u32;

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    fn fingerprint(file: &File) -> Fingerprint {
        let size = file.metadata().expect("stat").len();
        let mut nowhere = |_: &[u8]| Ok::<(), std::convert::Infallible>(());
        encode(file, size, &mut nowhere).expect("encoded")
    }

    #[test]
    fn the_same_bytes_are_stored_alike_with_and_without_holes() {
        let size = 3 * LONGEST_RUN + 777;
        let mut full = tempfile::tempfile().expect("a file");
        let mut sparse = tempfile::tempfile().expect("a file");
        let mut bytes = vec![0; size as usize];
        sparse.set_len(size).expect("grown");
        for (at, text) in [(0, "start"), (5000, "five"), (BLOCK * 3 - 2, "over a border"), (size - 3, "end")]
        {
            bytes[at as usize..at as usize + text.len()].copy_from_slice(text.as_bytes());
            sparse.seek(io::SeekFrom::Start(at)).expect("sought");
            sparse.write_all(text.as_bytes()).expect("written");
        }
        full.write_all(&bytes).expect("written");
        assert_eq!(fingerprint(&full), fingerprint(&sparse));
        assert!(fingerprint(&full).stored < 6 * BLOCK);
    }

    #[test]
    fn an_enormous_hole_costs_nothing() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1 << 40).expect("grown");
        let found = fingerprint(&file);
        assert_eq!((found.size, found.stored), (1 << 40, 12));
    }
}
