//! Encodes how a directory's entries changed as a difference, because a turn changes few of many entries.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::entries::LOOK;
use crate::codec::{ByteDecoder, DecodeResult, ObjectDecodeError, put_bytes};

/// A removed name.
const WITHOUT: u8 = 0;
/// A new or changed entry.
const WITH: u8 = 1;

/// The edits that turn `old` into `new`. Both are entries sorted by name.
pub(super) fn difference(old: &[u8], new: &[u8]) -> DecodeResult<Vec<u8>> {
    let mut edit = Vec::new();
    let (mut old, mut new) = (RawIndexEntries::new(old), RawIndexEntries::new(new));
    let (mut before, mut after) = (old.next()?, new.next()?);
    loop {
        let order = match (&before, &after) {
            (None, None) => return Ok(edit),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(before), Some(after)) => before.name.cmp(after.name),
        };
        if let (Some(gone), Ordering::Less) = (&before, order) {
            edit.push(WITHOUT);
            put_bytes(&mut edit, gone.name);
        }
        if let (Some(now), Ordering::Equal | Ordering::Greater) = (&after, order)
            && (order == Ordering::Greater || before.as_ref().is_none_or(|was| was.bytes != now.bytes))
        {
            edit.push(WITH);
            edit.extend_from_slice(now.bytes);
        }
        if order != Ordering::Greater {
            before = old.next()?;
        }
        if order != Ordering::Less {
            after = new.next()?;
        }
    }
}

/// Applies edits to `old`, in order.
pub(super) fn apply<'a>(old: &'a [u8], edits: impl Iterator<Item = &'a [u8]>) -> DecodeResult<Vec<u8>> {
    let mut entries: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
    for edit in edits {
        let mut edit = RawIndexEntries::new(edit);
        while !edit.0.is_empty() {
            match edit.0.byte()? {
                WITHOUT => _ = entries.insert(edit.0.bytes()?, None),
                WITH => _ = edit.next()?.map(|entry| entries.insert(entry.name, Some(entry.bytes))),
                _ => return Err(ObjectDecodeError("an edit of an unknown kind")),
            }
        }
    }
    let mut new = Vec::with_capacity(old.len());
    let mut old = RawIndexEntries::new(old);
    let mut edited = entries.into_iter().peekable();
    while let Some(entry) = old.next()? {
        while let Some((_, bytes)) = edited.next_if(|(name, _)| *name < entry.name) {
            new.extend_from_slice(bytes.unwrap_or_default());
        }
        let now = edited.next_if(|(name, _)| *name == entry.name);
        new.extend_from_slice(now.map_or(entry.bytes, |(_, bytes)| bytes.unwrap_or_default()));
    }
    edited.for_each(|(_, bytes)| new.extend_from_slice(bytes.unwrap_or_default()));
    Ok(new)
}

/// Encoded entries, one after the other.
struct RawIndexEntries<'a>(ByteDecoder<'a>);

struct RawIndexEntry<'a> {
    name: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> RawIndexEntries<'a> {
    fn new(bytes: &'a [u8]) -> RawIndexEntries<'a> {
        RawIndexEntries(ByteDecoder::new(bytes))
    }

    fn next(&mut self) -> DecodeResult<Option<RawIndexEntry<'a>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut whole = self.0;
        let length = self.0.byte()?;
        let name = self.0.take(length.into())?;
        self.0.take(LOOK)?;
        self.0.bytes()?;
        Ok(Some(RawIndexEntry { name, bytes: whole.take(whole.left() - self.0.left())? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries(of: &BTreeMap<Vec<u8>, u8>) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, what) in of {
            out.push(name.len() as u8);
            out.extend_from_slice(name);
            out.extend_from_slice(&[*what; LOOK]);
            put_bytes(&mut out, &vec![*what; usize::from(*what)]);
        }
        out
    }

    fn directory() -> impl Strategy<Value = BTreeMap<Vec<u8>, u8>> {
        prop::collection::btree_map(prop::collection::vec(b'a'..b'd', 1..4), 0..4u8, 0..12)
    }

    proptest! {
        #[test]
        fn edits_turn_the_old_index_into_the_new_one(history in prop::collection::vec(directory(), 1..6)) {
            let states: Vec<Vec<u8>> = history.iter().map(entries).collect();
            let edits: Vec<Vec<u8>> = states.windows(2).map(|two| difference(&two[0], &two[1]).expect("entries")).collect();
            for end in 0..states.len() {
                let now = apply(&states[0], edits[..end].iter().map(Vec::as_slice)).expect("edits");
                prop_assert_eq!(&now, &states[end]);
            }
            for same in &states {
                prop_assert!(difference(same, same).expect("entries").is_empty());
            }
        }

        #[test]
        fn nonsense_is_refused_or_read_but_never_a_panic(old: Vec<u8>, edit: Vec<u8>) {
            let _ = apply(&old, [edit.as_slice()].into_iter());
            let _ = difference(&old, &edit);
        }
    }
}
