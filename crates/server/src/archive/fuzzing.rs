//! Properties that hold for every archive: the body of the fuzz target in `fuzz/`. The test below runs it over the
//! inputs in `fuzz/corpus`, which include the attacks of the tests beside it.

use super::{
    ArchiveError, ArchiveLimits, check_archive,
    read::{self, ArchiveEntry},
};
use std::{collections::HashMap, io::Read};

const BLOCK: usize = 512;

/// Low limits, so that a small archive can exceed them.
pub(super) const SMALL: ArchiveLimits = ArchiveLimits {
    entries: 60,
    bytes: 100_000,
    file_bytes: 50_000,
    depth: 20,
    names: 5_000,
    ratio: 20,
    ratio_free_bytes: 50_000,
    extension: 5_000,
};

/// An archive as a client sends it. A fuzzer cannot guess a checksum, so the tar is also read with corrected checksums.
pub fn archive(input: &[u8]) {
    archive_of(input);
    let mut signed = input.to_vec();
    let headers = signed.chunks_exact_mut(BLOCK).filter(|block| block[257..].starts_with(b"ustar"));
    headers.for_each(sign);
    archive_of(&signed);
}

fn archive_of(input: &[u8]) {
    let mut tree = WrittenTree::default();
    let written = read::visit_entries(input, &SMALL, &mut |entry| {
        tree.write(entry);
        Ok::<(), ArchiveError>(())
    });
    // The written files must be exactly the checked ones.
    let written = written.map(|validator| validator.disk_usage());
    let checked = check_archive(input, &SMALL);
    match tree.broken {
        false => assert_eq!(written, checked),
        true => assert!(written.is_err() && checked.is_err(), "a file that cannot be read is not taken"),
    }
    if let Ok(usage) = written {
        assert_eq!(usage.files, tree.kinds.len() as u64);
    }
    assert!(tree.bytes <= SMALL.bytes && tree.kinds.len() <= SMALL.entries);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WrittenKind {
    File(u64),
    Link,
    Folder,
}

/// A workspace in memory: the entry at each path.
#[derive(Default)]
struct WrittenTree {
    kinds: HashMap<Vec<u8>, WrittenKind>,
    bytes: u64,
    /// A file could not be read to its end; the reader also returns this error.
    broken: bool,
}

impl WrittenTree {
    fn write(&mut self, entry: ArchiveEntry<'_>) {
        match entry {
            ArchiveEntry::File { path, mode, bytes } => {
                assert!(mode & !0o777 == 0 && mode & 0o600 == 0o600, "the mode {mode:o}");
                // Reads at most one byte beyond the limit of a file.
                let read = std::io::copy(&mut bytes.take(SMALL.file_bytes + 1), &mut std::io::sink());
                let size = read.as_ref().copied().unwrap_or(0);
                self.broken |= read.is_err();
                self.put(path.as_bytes(), WrittenKind::File(size));
            }
            ArchiveEntry::Copy { path, of } => {
                assert!(path != of);
                let Some(WrittenKind::File(size)) = self.kinds.get(of.as_bytes()).copied() else {
                    panic!("{of} is no file that came before")
                };
                self.put(path.as_bytes(), WrittenKind::File(size));
            }
            ArchiveEntry::Link { path, target } => {
                check_link(path.as_bytes(), target);
                self.put(path.as_bytes(), WrittenKind::Link);
            }
            ArchiveEntry::Folder { path } => self.put(path.as_bytes(), WrittenKind::Folder),
        }
    }

    /// Every parent must be a folder, and no entry may replace a folder.
    fn put(&mut self, path: &[u8], kind: WrittenKind) {
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        assert!(names.len() <= SMALL.depth && !path.contains(&0));
        assert!(!names.iter().any(|name| matches!(*name, b"" | b"." | b"..") || name.len() > 255));
        for end in 1..names.len() {
            let above = names[..end].join(&b'/');
            let there = *self.kinds.entry(above).or_insert(WrittenKind::Folder);
            assert_eq!(there, WrittenKind::Folder, "{} goes through it", String::from_utf8_lossy(path));
        }
        let before = self.kinds.insert(path.to_vec(), kind);
        let replaces =
            before.is_none_or(|before| (before == WrittenKind::Folder) == (kind == WrittenKind::Folder));
        assert!(replaces, "{} is a folder and something else", String::from_utf8_lossy(path));
        if let WrittenKind::File(size) = kind {
            assert!(size <= SMALL.file_bytes);
            self.bytes += size;
        }
    }
}

/// A link never leaves the workspace when it is followed step by step from its folder.
fn check_link(path: &[u8], target: &[u8]) {
    assert!(!target.is_empty() && !target.starts_with(b"/") && !target.contains(&0) && target.len() < 4096);
    let mut depth = path.iter().filter(|byte| **byte == b'/').count();
    for step in target.split(|byte| *byte == b'/') {
        match step {
            b"" | b"." => {}
            b".." => depth = depth.checked_sub(1).expect("a link that stays inside"),
            _ => depth += 1,
        }
    }
}

/// Sets the checksum of a header.
pub(super) fn sign(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_for_any_archive_holds_for_those_of_the_corpus() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/archive");
        let (mut count, mut taken) = (0, 0);
        for input in std::fs::read_dir(corpus).expect("a corpus").map(|input| input.expect("an input").path())
        {
            // The last printed input is the one that fails.
            println!("{}", input.display());
            let bytes = std::fs::read(&input).expect("readable");
            archive(&bytes);
            count += 1;
            taken += usize::from(check_archive(&bytes, &SMALL).is_ok());
        }
        assert!(count >= 20 && taken >= 5, "{taken} of {count} are taken");
    }
}
