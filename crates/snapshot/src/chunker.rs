//! Cuts large files into chunks by their content, so that an insertion moves only the cuts near it.
//!
//! Where a chunk ends depends only on the bytes from its beginning. So every run makes the same cuts, equal files
//! have equal lists, and the chunker can continue in the middle of a file from any old cut.

use fastcdc::v2020::{Normalization, cut, select_masks};

/// Files up to this size are stored whole.
pub(crate) const MAX_WHOLE_FILE: u64 = 128 << 10;

const MIN_CHUNK: usize = 8 << 10;
const AVERAGE: usize = 32 << 10;
pub(crate) const MAX_CHUNK: usize = 128 << 10;

/// Zeros are recognised in blocks of this size, at multiples of it.
pub(crate) const ZEROS: u64 = 64 << 10;

/// The number of bytes after a cut that decide where the next cut is.
pub(crate) const LOOKAHEAD: usize = MAX_CHUNK + ZEROS as usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkBoundary {
    Zeros(usize),
    Chunk(usize),
}

/// The next chunk of a file at offset `at`. `bytes` are the next bytes of the file: [`LOOKAHEAD`] of them, or all that
/// are left.
pub(crate) fn next(bytes: &[u8], at: u64) -> ChunkBoundary {
    let zeros = zero_blocks(bytes, at);
    if zeros > 0 {
        return ChunkBoundary::Zeros(zeros);
    }
    let end = data_end(bytes, at);
    let (strict, relaxed) = select_masks(AVERAGE, Normalization::Level1);
    let (_, length) =
        cut(&bytes[..end], MIN_CHUNK, AVERAGE, MAX_CHUNK, strict, relaxed, strict << 1, relaxed << 1);
    ChunkBoundary::Chunk(length)
}

/// How many bytes of whole zero blocks there are at `at`.
fn zero_blocks(bytes: &[u8], at: u64) -> usize {
    if !at.is_multiple_of(ZEROS) {
        return 0;
    }
    let blocks = bytes.chunks_exact(ZEROS as usize).take_while(|block| is_zero(block)).count();
    blocks * ZEROS as usize
}

/// Where the data ends: at the next zero block, or as far as a chunk may reach.
fn data_end(bytes: &[u8], at: u64) -> usize {
    let most = bytes.len().min(MAX_CHUNK);
    let mut start = (at.next_multiple_of(ZEROS) - at) as usize;
    if start == 0 {
        start = ZEROS as usize;
    }
    while start < most {
        if bytes.get(start..start + ZEROS as usize).is_some_and(is_zero) {
            return start;
        }
        start += ZEROS as usize;
    }
    most
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (start, words, end) = {
        // SAFETY: any sixteen bytes are a number.
        unsafe { bytes.align_to::<u128>() }
    };
    start.iter().all(|b| *b == 0) && words.iter().all(|w| *w == 0) && end.iter().all(|b| *b == 0)
}

/// Cuts before this offset still hold when the file had another size before: a cut that depends on its last block may
/// not.
pub(crate) fn stable_until(old_size: u64, new_size: u64) -> u64 {
    if old_size == new_size { u64::MAX } else { old_size.min(new_size) / ZEROS * ZEROS }
}

/// Ends a list where a chunk's name says so, on average after about a hundred chunks.
pub(crate) fn ends_list(id: &crate::object_id::ObjectId, so_far: usize) -> bool {
    (id.0[0] & 0x7f == 0 && so_far >= 16) || so_far >= 512
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize, mut seed: u64) -> Vec<u8> {
        let step = |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u8
        };
        (0..length).map(step).collect()
    }

    fn cuts(bytes: &[u8]) -> Vec<ChunkBoundary> {
        let (mut at, mut cuts) = (0, Vec::new());
        while at < bytes.len() {
            let ahead = &bytes[at..bytes.len().min(at + LOOKAHEAD)];
            let cut = next(ahead, at as u64);
            at += match cut {
                ChunkBoundary::Zeros(length) | ChunkBoundary::Chunk(length) => length,
            };
            cuts.push(cut);
        }
        cuts
    }

    /// Cut points are a stored format: other cuts would make every large file look changed.
    #[test]
    fn cuts_are_where_they_were_in_the_first_version() {
        let found: Vec<usize> = cuts(&noise(300_000, 7))
            .into_iter()
            .map(|cut| match cut {
                ChunkBoundary::Chunk(length) | ChunkBoundary::Zeros(length) => length,
            })
            .collect();
        assert_eq!(found.iter().sum::<usize>(), 300_000);
        assert_eq!(found, GOLDEN);
    }

    const GOLDEN: [usize; 6] = [11_073, 53_934, 10_828, 35_107, 70_280, 118_778];

    #[test]
    fn an_insertion_moves_only_the_cuts_near_it() {
        let before = noise(2 << 20, 3);
        let mut after = before.clone();
        after.splice(1_000_000..1_000_000, *b"inserted");
        let (before, after) = (cuts(&before), cuts(&after));
        let same_start = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
        let same_end = before.iter().rev().zip(after.iter().rev()).take_while(|(a, b)| a == b).count();
        assert!(same_start + same_end + 3 >= before.len(), "{same_start} {same_end} of {}", before.len());
    }

    #[test]
    fn zeros_are_zeros_wherever_they_are_found() {
        let mut bytes = noise(100_000, 5);
        bytes.resize(1 << 20, 0);
        bytes.extend(noise(50_000, 6));
        let zeros: usize = cuts(&bytes)
            .iter()
            .map(|cut| if let ChunkBoundary::Zeros(length) = cut { *length } else { 0 })
            .sum();
        assert_eq!(zeros, (1 << 20) - (128 << 10), "from the next multiple of 64 KiB to the last");
    }
}
