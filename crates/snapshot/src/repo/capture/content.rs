//! Captures the content of files: read once, hashed, and stored only if it is new.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::xxh3_64;

use super::SkipReason;
use super::visit::{CaptureWorker, CapturedEntry, VisitError};
use crate::chunker::{self, MAX_WHOLE_FILE, ZEROS, is_zero};
use crate::error;
use crate::file_chunker::{FileChunker, FilePiece, fill, lists};
use crate::folder::{FileAttributes, open_to_read, xattrs};
use crate::index::{IndexedContent, StatFingerprint};
use crate::object::{
    ContentLayout, ContentPiece, EncodedObject, ObjectLocation, ObjectRef, StoredContent, encode_list,
};
use crate::object_id::{ObjectId, ObjectKind};

/// How often a file that changes while it is being read is read.
const READS: usize = 3;

/// Less new content than this is not worth a search for the same content elsewhere in the tree.
const WORTH_SEARCHING: u64 = 256 << 10;

/// Small enough that the bytes are still in the CPU cache when they are compared.
const WINDOW: usize = 256 << 10;

/// From this size on, several threads compare a file with its previous content.
const HUGE: u64 = 16 << 20;

impl CaptureWorker<'_, '_> {
    /// Captures a file. A problem of this file alone becomes a skipped entry, not an error.
    pub(super) fn file(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        old: Option<&IndexedContent>,
    ) -> Result<CapturedEntry, error::Error> {
        match self.read(folder, name, path, old) {
            Ok(seen) => Ok(seen),
            Err(VisitError::Fail(error)) => Err(error),
            Err(VisitError::Skip(why)) => {
                self.found.report.skip(path.to_vec(), why.clone());
                Ok((NOTHING, IndexedContent::Skipped(why)))
            }
        }
    }

    fn read(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        old: Option<&IndexedContent>,
    ) -> Result<CapturedEntry, VisitError> {
        let (file, opened) = open_to_read(folder, name)?;
        let look = StatFingerprint::from(&opened.is);
        if look.linked
            && let Some((seen, known)) = self.linked(look.inode)
            && seen == look
        {
            return Ok((seen, known));
        }
        let old = match old {
            Some(IndexedContent::File(content, _)) => Some(*content),
            Some(IndexedContent::Dir(_) | IndexedContent::Link(_) | IndexedContent::Skipped(_)) => None,
            None if look.size >= WORTH_SEARCHING => self.walk.index.by_inode(look.inode),
            None => None,
        };
        let (mut look, content, settled) = self.settled(&file, old)?;
        // Store the mode from before we lent ourselves permissions.
        look.mode = opened.is.raw_mode;
        if !settled {
            self.found.report.unsettle(path.to_vec());
        }
        let known = IndexedContent::File(content, xattrs(file.as_fd()));
        if look.linked {
            let mut linked = self.walk.linked.lock().expect("no code panics while it holds this lock");
            linked.insert(look.inode, (look, known.clone()));
        }
        Ok((look, known))
    }

    fn linked(&self, inode: u64) -> Option<CapturedEntry> {
        self.walk.linked.lock().expect("no code panics while it holds this lock").get(&inode).cloned()
    }

    /// Reads until nothing changes meanwhile, or the limit of attempts is reached.
    fn settled(
        &mut self,
        file: &File,
        old: Option<StoredContent>,
    ) -> Result<(StatFingerprint, StoredContent, bool), VisitError> {
        let mut read = self.once(file, old)?;
        for _ in 1..READS {
            if read.2 {
                break;
            }
            read = self.once(file, old)?;
        }
        Ok(read)
    }

    fn once(
        &mut self,
        file: &File,
        old: Option<StoredContent>,
    ) -> Result<(StatFingerprint, StoredContent, bool), VisitError> {
        let before = FileAttributes::of(file)?;
        let content = if before.size <= MAX_WHOLE_FILE {
            self.whole(file, before.size, old)?
        } else {
            self.pieces(file, before.size, old)?
        };
        let after = FileAttributes::of(file)?;
        let settled =
            (before.size, before.modified, before.changed) == (after.size, after.modified, after.changed);
        Ok((StatFingerprint::from(&before), content, settled))
    }

    fn whole(
        &mut self,
        file: &File,
        size: u64,
        old: Option<StoredContent>,
    ) -> Result<StoredContent, VisitError> {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.resize(size as usize, 0);
        let stored = fill(file, &mut bytes, 0).map_err(source).and_then(|read| {
            // A file that shrank gets its current length, without padding.
            bytes.truncate(read);
            if bytes.is_empty() {
                return Ok(ContentLayout::Empty);
            }
            let stored = old.and_then(|old| old.layout.object().copied());
            let place = |id: &ObjectId| stored.filter(|at| at.id == *id).map(|at| at.place);
            self.chunk(&bytes, place).map(ContentLayout::Whole)
        });
        let size = bytes.len() as u64;
        self.buffer = bytes;
        Ok(StoredContent { size, layout: stored?, group: 0 })
    }

    /// Stores bytes unless they are already stored, possibly at the place in `old`.
    fn chunk(
        &mut self,
        bytes: &[u8],
        old: impl Fn(&ObjectId) -> Option<ObjectLocation>,
    ) -> Result<ObjectRef, VisitError> {
        let walk = self.walk;
        let id = walk.repo.naming.name(ObjectKind::Chunk, bytes);
        if let Some(place) = old(&id) {
            return Ok(ObjectRef { id, place });
        }
        if let Some(place) = walk.fresh.lock().expect("no code panics while it holds this lock").get(&id) {
            return Ok(ObjectRef { id, place: *place });
        }
        let length = bytes.len() as u64;
        let added = walk.added.fetch_add(length, Ordering::Relaxed) + length;
        if added >= WORTH_SEARCHING
            && let Some(place) = walk.index.by_content(&id)
        {
            return Ok(ObjectRef { id, place });
        }
        let place = self.blocks.add(bytes)?;
        walk.fresh.lock().expect("no code panics while it holds this lock").insert(id, place);
        Ok(ObjectRef { id, place })
    }

    fn pieces(
        &mut self,
        file: &File,
        size: u64,
        old: Option<StoredContent>,
    ) -> Result<StoredContent, VisitError> {
        let PreviousPieces { pieces: old, places } = self.old_pieces(old);
        let kept = unchanged(file, size, &old).map_err(source)?;
        let mut cutting = FileChunker::new(file, size);
        let mut pieces: Vec<ContentPiece> = Vec::with_capacity(old.len());
        let (mut at, mut next) = (0, 0);
        while at < size {
            while next < old.len() && old[next].0 < at {
                next += 1;
            }
            if let Some((_, piece)) = old.get(next).filter(|(start, _)| *start == at && kept[next]) {
                pieces.push(*piece);
                at += piece.length();
                continue;
            }
            let Some(cut) = cutting.next(at).map_err(source)? else { break };
            at += self.piece(&cutting, (at, cut), &places, &mut pieces)?;
        }
        let size = pieces.iter().map(ContentPiece::length).sum();
        let layout = if size == 0 {
            ContentLayout::Empty
        } else {
            ContentLayout::List(self.put_list(&pieces, &places)?)
        };
        Ok(StoredContent { size, layout, group: 0 })
    }

    fn piece(
        &mut self,
        cutting: &FileChunker<'_>,
        (at, cut): (u64, FilePiece),
        places: &HashMap<ObjectId, ObjectLocation>,
        pieces: &mut Vec<ContentPiece>,
    ) -> Result<u64, VisitError> {
        match (cut, pieces.last_mut()) {
            (FilePiece::Zeros(length), Some(ContentPiece::Zeros { length: before })) => {
                *before += length;
                Ok(length)
            }
            (FilePiece::Zeros(length), _) => {
                pieces.push(ContentPiece::Zeros { length });
                Ok(length)
            }
            (FilePiece::Chunk(length), _) => {
                let bytes = cutting.bytes(at, length);
                let pre = xxh3_64(bytes);
                let at = self.chunk(bytes, |id| places.get(id).copied())?;
                pieces.push(ContentPiece::Chunk { length, at, pre });
                Ok(length)
            }
        }
    }

    /// An unreadable list is ignored; the file is then read in full.
    fn old_pieces(&self, old: Option<StoredContent>) -> PreviousPieces {
        let Some(StoredContent { layout: ContentLayout::List(at), .. }) = old else {
            return PreviousPieces::default();
        };
        let reader = self.walk.repo.reader();
        let (Ok(pieces), Ok(lists)) = (reader.pieces(&at), reader.lists(&at)) else {
            return PreviousPieces::default();
        };
        let chunks = pieces.iter().filter_map(|piece| match piece {
            ContentPiece::Chunk { at, .. } => Some(*at),
            ContentPiece::Zeros { .. } | ContentPiece::List { .. } => None,
        });
        let places = chunks.chain(lists).map(|at| (at.id, at.place)).collect();
        let mut start = 0;
        let from = |piece: ContentPiece| {
            let at = start;
            start += piece.length();
            (at, piece)
        };
        PreviousPieces { pieces: pieces.into_iter().map(from).collect(), places }
    }

    fn put_list(
        &mut self,
        pieces: &[ContentPiece],
        places: &HashMap<ObjectId, ObjectLocation>,
    ) -> Result<ObjectRef, VisitError> {
        let lists = lists(pieces);
        if let [(_, only)] = &lists[..] {
            return self.object(only, places);
        }
        let mut upper = Vec::with_capacity(lists.len());
        for (length, list) in &lists {
            upper.push(ContentPiece::List { length: *length, at: self.object(list, places)? });
        }
        self.object(&encode_list(1, &upper), places)
    }

    fn object(
        &mut self,
        list: &EncodedObject,
        places: &HashMap<ObjectId, ObjectLocation>,
    ) -> Result<ObjectRef, VisitError> {
        let id = self.walk.repo.naming.name(ObjectKind::List, list.logical());
        if let Some(place) = places.get(&id) {
            return Ok(ObjectRef { id, place: *place });
        }
        if let Some(place) = self.walk.fresh.lock().expect("no code panics while it holds this lock").get(&id)
        {
            return Ok(ObjectRef { id, place: *place });
        }
        let place = self.lists.add(&list.stored)?;
        self.walk.fresh.lock().expect("no code panics while it holds this lock").insert(id, place);
        Ok(ObjectRef { id, place })
    }
}

/// The previous content of a large file.
#[derive(Default)]
struct PreviousPieces {
    /// Each piece with its offset in the file.
    pieces: Vec<(u64, ContentPiece)>,
    /// The places of its chunks and lists. After an insertion the same chunks are at other offsets in the file.
    places: HashMap<ObjectId, ObjectLocation>,
}

/// The recorded attributes of an unreadable entry. They match no real entry, so the next capture tries it again.
pub(super) const NOTHING: StatFingerprint = StatFingerprint {
    inode: 0,
    size: 0,
    modified: crate::folder::FileTime { seconds: 0, nanos: 0 },
    changed: crate::folder::FileTime { seconds: 0, nanos: 0 },
    mode: 0,
    nature: crate::index::IndexedFileKind::Other,
    linked: false,
};

/// Which of the previous pieces are still at the same offsets.
fn unchanged(file: &File, size: u64, old: &[(u64, ContentPiece)]) -> io::Result<Vec<bool>> {
    let old_size = old.last().map_or(0, |(start, piece)| start + piece.length());
    let stable = chunker::stable_until(old_size, size);
    let known = old.partition_point(|(start, piece)| start + piece.length() <= stable.min(size));
    // The last piece ended with the file, and may be longer now.
    let known = if old_size == size { known } else { known.min(old.len().saturating_sub(1)) };
    let mut kept = vec![false; old.len()];
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    if size < HUGE || threads == 1 {
        compare(file, &old[..known], &mut kept[..known])?;
        return Ok(without_ends_at_zeros(kept, old));
    }
    let share = known.div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts = old[..known].chunks(share).zip(kept[..known].chunks_mut(share));
        let helpers: Vec<_> =
            parts.map(|(old, kept)| scope.spawn(move || compare(file, old, kept))).collect();
        helpers.into_iter().try_for_each(|helper| helper.join().expect("comparing does not panic"))
    })?;
    Ok(without_ends_at_zeros(kept, old))
}

/// A chunk that ended where zeros began may be longer if the zeros are gone.
fn without_ends_at_zeros(mut kept: Vec<bool>, old: &[(u64, ContentPiece)]) -> Vec<bool> {
    for (kept, (_, next)) in kept.iter_mut().zip(old.iter().skip(1)) {
        *kept &= !matches!(next, ContentPiece::Zeros { .. });
    }
    kept
}

/// Reads several pieces into one window, so that nothing is read twice.
fn compare(file: &File, old: &[(u64, ContentPiece)], kept: &mut [bool]) -> io::Result<()> {
    let mut window = vec![0; WINDOW];
    let mut first = 0;
    while first < old.len() {
        let (mut next, mut length) = (first, 0);
        while let Some((_, ContentPiece::Chunk { length: more, .. })) = old.get(next)
            && *more <= (window.len() - length) as u64
        {
            length += *more as usize;
            next += 1;
        }
        // Zero pieces are cheap to find again.
        if next == first {
            first += 1;
            continue;
        }
        let have = fill(file, &mut window[..length], old[first].0)?;
        let mut from = 0;
        for ((start, piece), kept) in old[first..next].iter().zip(&mut kept[first..next]) {
            let ContentPiece::Chunk { length, pre, .. } = piece else { continue };
            let to = from + *length as usize;
            let bytes = window[..have].get(from..to);
            *kept = bytes.is_some_and(|bytes| xxh3_64(bytes) == *pre && !may_end_in_zeros(bytes, *start));
            from = to;
        }
        first = next;
    }
    Ok(())
}

/// Whether the chunk ends with zeros that may continue behind it: then the chunk would end where the zeros begin.
fn may_end_in_zeros(bytes: &[u8], start: u64) -> bool {
    let last = (start + bytes.len() as u64 - 1) / ZEROS * ZEROS;
    last >= start && is_zero(&bytes[(last - start) as usize..])
}

fn source(cause: io::Error) -> VisitError {
    match error::errno(&cause) {
        Some(errno) => VisitError::from(errno),
        None => VisitError::Skip(SkipReason::Unreadable(cause.to_string())),
    }
}
