//! Reads remote data before it is needed: everything missing at once, in few large reads. Fetching block by block
//! would need as many round trips.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::Repo;
use super::read::{BlockKey, ObjectReader};
use crate::object::{ContentLayout, ContentPiece, ObjectLocation, ObjectRef, StoredContent, TreeNode};
use crate::object_id::PackId;
use crate::pack::{BlockEncoding, PackBlock, PackFile, UnpackBuffers};
use crate::remote::{CachedPackGuard, FetchCounter, FetchProgress, PackRange, RemotePackCache, part};
use crate::{Error, TreeId};

/// Reads of neighbouring blocks are merged up to this size: larger reads are not faster, and several run at once.
const LONGEST: u64 = 8 << 20;
/// Reading this many unneeded bytes costs less than another round trip.
const GAP: u64 = 64 << 10;

impl Repo {
    /// Fetches the missing parts of these roots into the cache, the contents of the first root first. Local data is
    /// not read again. [`Repo::restore`] calls this itself.
    pub fn fetch(
        &self,
        tree: &TreeId,
        roots: &[&str],
        progress: &mut dyn FnMut(FetchProgress),
    ) -> Result<FetchProgress, Error> {
        let _pinned = self.pin(Some(tree));
        let Some(mut fetching) = self.fetching(progress) else { return Ok(FetchProgress::default()) };
        let files = fetching.directories(tree, Some(roots))?;
        fetching.contents(&files)?;
        Ok(fetching.tally.sum)
    }

    /// Fetches all directories of a tree.
    pub(super) fn fetch_directories(&self, tree: &TreeId) -> Result<(), Error> {
        let mut no_progress = |_| {};
        let fetching = self.fetching(&mut no_progress);
        fetching.map_or(Ok(()), |mut fetching| fetching.directories(tree, None).map(drop))
    }

    /// Fetches the missing parts of one file.
    pub(super) fn fetch_content(&self, content: &StoredContent) -> Result<(), Error> {
        let mut no_progress = |_| {};
        let fetching = self.fetching(&mut no_progress);
        fetching.map_or(Ok(()), |mut fetching| fetching.contents(&[content.layout]))
    }

    /// `None`: the repository has no remote store.
    pub(super) fn fetching<'f>(
        &'f self,
        progress: &'f mut dyn FnMut(FetchProgress),
    ) -> Option<PackFetcher<'f>> {
        let away = self.remote_cache.as_ref()?;
        let (held, asked) = (HashMap::new(), HashSet::new());
        Some(PackFetcher {
            repo: self,
            away,
            reader: self.reader(),
            tally: FetchCounter::new(progress),
            held,
            asked,
        })
    }

    /// Trims the cache if more than `slack` bytes are new.
    pub(super) fn make_room(&self, away: &RemotePackCache, slack: u64) {
        if away.fresh() <= slack {
            return;
        }
        let trimmed = away.is_full().and_then(|full| if full { self.trim(away) } else { Ok(()) });
        if let Err(error) = trimmed {
            tracing::warn!(%error, "the cache of remote packs could not be reduced to its size");
        }
    }

    fn trim(&self, away: &RemotePackCache) -> std::io::Result<()> {
        // A pack that only the list of open packs holds is not in use.
        let in_use = |pack: &Arc<PackFile>| !pack.is_far() || Arc::strong_count(pack) > 1;
        self.open.lock().expect("no code panics while it holds this lock").retain(in_use);
        away.trim()
    }
}

/// Fetches remote data. While it lives, the cache keeps what it fetched.
pub(super) struct PackFetcher<'f> {
    repo: &'f Repo,
    away: &'f Arc<RemotePackCache>,
    reader: ObjectReader<'f>,
    tally: FetchCounter<'f>,
    /// All packs seen so far; `None`: the pack is local.
    held: HashMap<PackId, Option<CachedPackGuard>>,
    /// Blocks that were fetched, or were already present.
    asked: HashSet<BlockKey>,
}

impl Drop for PackFetcher<'_> {
    fn drop(&mut self) {
        self.held.clear();
        self.repo.make_room(self.away, 0);
    }
}

impl PackFetcher<'_> {
    /// Fetches the directories of these roots, or of all, level by level. Returns the files in them, those of the
    /// first root first.
    pub(super) fn directories(
        &mut self,
        tree: &TreeId,
        roots: Option<&[&str]>,
    ) -> Result<Vec<ContentLayout>, Error> {
        self.open([tree.pack()])?;
        let root = self.repo.root(tree)?;
        self.bring([root.place])?;
        let entries = self.reader.directory(&root)?;
        let numbered = entries.into_iter().filter_map(|entry| {
            let number = match roots {
                Some(roots) => roots.iter().position(|root| root.as_bytes() == entry.name)?,
                None => 0,
            };
            Some((number, entry.node))
        });
        let (mut level, mut files) = (Vec::new(), Vec::new());
        let mut sort = |number: usize, node: TreeNode, level: &mut Vec<(usize, ObjectRef)>| match node {
            TreeNode::Dir(at) => level.push((number, at)),
            TreeNode::File(content) => files.push((number, content.layout)),
            TreeNode::Link(_) => {}
        };
        numbered.for_each(|(number, node)| sort(number, node, &mut level));
        let mut seen: HashSet<ObjectLocation> = HashSet::new();
        while !level.is_empty() {
            // In the order of their places, so that each block is unpacked once.
            level.sort_by_key(|(number, at)| (*number, at.place.pack, at.place.block, at.place.start));
            level.retain(|(_, at)| seen.insert(at.place));
            self.bring(level.iter().map(|(_, at)| at.place))?;
            for (number, at) in std::mem::take(&mut level) {
                for entry in self.reader.directory(&at)? {
                    sort(number, entry.node, &mut level);
                }
            }
        }
        files.sort_by_key(|(number, _)| *number);
        Ok(files.into_iter().map(|(_, layout)| layout).collect())
    }

    /// Fetches the contents of files, beginning with the lists of their chunks.
    pub(super) fn contents(&mut self, files: &[ContentLayout]) -> Result<(), Error> {
        let mut seen: HashSet<ObjectLocation> = HashSet::new();
        let lists = files.iter().filter_map(|layout| match layout {
            ContentLayout::List(at) => Some(*at),
            ContentLayout::Empty | ContentLayout::Whole(_) => None,
        });
        let lists: Vec<ObjectRef> = lists.filter(|at| seen.insert(at.place)).collect();
        self.bring(lists.iter().map(|at| at.place))?;
        let mut below = Vec::new();
        for at in &lists {
            below.extend(self.reader.lists(at)?.iter().map(|at| at.place));
        }
        self.bring(below)?;
        let mut wanted = Vec::new();
        for layout in files {
            match layout {
                ContentLayout::Empty => {}
                ContentLayout::Whole(at) => wanted.push(at.place),
                // Each list once, for all files that share it.
                ContentLayout::List(at) if !seen.remove(&at.place) => {}
                ContentLayout::List(at) => {
                    wanted.extend(self.reader.pieces(at)?.iter().filter_map(|piece| match piece {
                        ContentPiece::Chunk { at, .. } => Some(at.place),
                        ContentPiece::Zeros { .. } | ContentPiece::List { .. } => None,
                    }))
                }
            }
        }
        self.bring(wanted)
    }

    /// Fetches the tables of all these packs.
    fn open(&mut self, packs: impl IntoIterator<Item = PackId>) -> Result<(), Error> {
        let mut unknown = Vec::new();
        for id in packs {
            if self.held.contains_key(&id) {
                continue;
            }
            let held = (!self.repo.is_here(id)).then(|| self.away.hold(id));
            if held.is_some() && self.repo.open_local(id)?.is_none() {
                unknown.push(id);
            }
            self.held.insert(id, held);
        }
        // Missing packs are no error here; a later open of the pack reports them.
        self.away.tables(&unknown, &mut self.tally).map(drop)
    }

    /// Fetches all blocks that hold these places, in this order as far as that needs no additional reads.
    fn bring(&mut self, places: impl IntoIterator<Item = ObjectLocation>) -> Result<(), Error> {
        let keys = places.into_iter().map(|place| (place.pack, place.block));
        let keys: Vec<BlockKey> = keys.filter(|key| self.asked.insert(*key)).collect();
        self.open(keys.iter().map(|(pack, _)| *pack))?;
        let stretches = self.missing(&keys)?;
        let parts: Vec<PackRange> = stretches.iter().map(|s| part(&s.pack, s.range.clone())).collect();
        let all = stretches.iter().flat_map(|s| s.blocks.iter().map(|missing| (s.pack, missing.number)));
        let mut waiting: BTreeSet<BlockKey> = all.collect();
        self.away.read(&parts, &mut self.tally, &mut |number, bytes| {
            let CoalescedRead { pack, range, blocks } = &stretches[number];
            let into = self.repo.pack(*pack)?;
            for MissingBlock { number, block, .. } in blocks {
                let start = (block.offset - range.start) as usize;
                let bytes = bytes.get(start..start + block.stored as usize);
                if bytes.map_or(Ok(false), |bytes| into.keep(block, bytes))? {
                    waiting.remove(&(*pack, *number));
                }
            }
            Ok(())
        })?;
        // The pack was replaced meanwhile, or is damaged; the reader of the block reports it.
        for (pack, number) in waiting {
            self.repo.block(pack, number, &mut UnpackBuffers::default())?;
        }
        Ok(())
    }

    /// The reads that fetch these blocks, in the order of the blocks.
    fn missing(&self, keys: &[BlockKey]) -> Result<Vec<CoalescedRead>, Error> {
        let mut by_pack: HashMap<PackId, Vec<(usize, u32)>> = HashMap::new();
        for (turn, (pack, number)) in keys.iter().enumerate() {
            if matches!(self.held.get(pack), Some(Some(_))) {
                by_pack.entry(*pack).or_default().push((turn, *number));
            }
        }
        let (mut stretches, mut buffer) = (Vec::new(), Vec::new());
        for (id, numbers) in by_pack {
            let pack = self.repo.pack(id)?;
            let blocks = numbers.iter().filter_map(|(turn, number)| {
                let block = *pack.table.blocks.get(*number as usize)?;
                let there =
                    block.how == BlockEncoding::Dropped || block.stored == 0 || pack.has(&block, &mut buffer);
                (!there).then_some(MissingBlock { turn: *turn, number: *number, block })
            });
            stretches.extend(coalesced(id, blocks.collect()));
        }
        stretches.sort_by_key(|stretch| stretch.blocks.iter().map(|missing| missing.turn).min());
        Ok(stretches)
    }
}

#[derive(Debug, PartialEq, Eq)]
struct MissingBlock {
    /// Position in the request: the lowest first.
    turn: usize,
    number: u32,
    block: PackBlock,
}

/// Blocks of a pack that one read fetches.
#[derive(Debug, PartialEq, Eq)]
struct CoalescedRead {
    pack: PackId,
    range: Range<u64>,
    blocks: Vec<MissingBlock>,
}

fn coalesced(pack: PackId, mut missing: Vec<MissingBlock>) -> Vec<CoalescedRead> {
    missing.sort_by_key(|missing| missing.block.offset);
    let mut stretches: Vec<CoalescedRead> = Vec::new();
    for missing in missing {
        let PackBlock { offset, stored, .. } = missing.block;
        let end = offset + u64::from(stored);
        match stretches.last_mut() {
            Some(CoalescedRead { range, blocks, .. })
                if offset <= range.end + GAP && end.max(range.end) - range.start <= LONGEST =>
            {
                range.end = end.max(range.end);
                blocks.push(missing);
            }
            Some(_) | None => {
                stretches.push(CoalescedRead { pack, range: offset..end, blocks: vec![missing] })
            }
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges the ranges of the blocks into reads.
    fn ranges(blocks: &[(u64, u32)]) -> Vec<(u64, u64)> {
        let block = |(offset, stored): &(u64, u32)| {
            let (raw, how, sealed, check) = (*stored, BlockEncoding::Plain, false, [0; 16]);
            let block = PackBlock { offset: *offset, stored: *stored, raw, how, sealed, check };
            MissingBlock { turn: 0, number: 0, block }
        };
        let stretches = coalesced(PackId([1; 16]), blocks.iter().map(block).collect());
        stretches.into_iter().map(|stretch| (stretch.range.start, stretch.range.end)).collect()
    }

    #[test]
    fn neighbours_are_read_together_even_with_a_little_between_them() {
        let (gap, near) = (GAP as u32, 1000 + GAP);
        assert_eq!(ranges(&[(1000, 500), (0, 1000)]), [(0, 1500)], "in any order");
        assert_eq!(ranges(&[(0, 1000), (near, 10)]), [(0, near + 10)]);
        assert_eq!(ranges(&[(0, 1000), (near + 1, 10)]), [(0, 1000), (near + 1, near + 11)]);
        assert_eq!(ranges(&[(0, gap), (10, 10)]), [(0, GAP)], "one within the other");
    }

    #[test]
    fn no_read_is_longer_than_it_should_be_unless_a_block_is() {
        let mebibytes = |count: u64| count << 20;
        let blocks: Vec<(u64, u32)> = (0..20).map(|n| (mebibytes(n), 1 << 20)).collect();
        let three = [(0, 8), (8, 16), (16, 20)].map(|(start, end)| (mebibytes(start), mebibytes(end)));
        assert_eq!(ranges(&blocks), three);
        let end = mebibytes(30);
        assert_eq!(ranges(&[(0, 30 << 20), (end, 1)]), [(0, end), (end, end + 1)]);
    }
}
