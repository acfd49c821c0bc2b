//! Random mutations of archives. None may cause a panic or write outside the folder, and every accepted archive can be
//! written completely.

use super::*;
use std::fs;

/// Deterministic, so that every run is the same.
struct MutationRng(u64);

impl MutationRng {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap_or(0) % below.max(1)
    }
}

fn samples() -> Vec<Vec<u8>> {
    let files = || {
        TestTarBuilder::default()
            .folder("d/")
            .file("d/f", b"x".repeat(700))
            .link("d/l", "../a")
            .file("a", "y")
    };
    let long = b"n".repeat(150);
    vec![
        files().hard("h", "d/f").end(),
        files().pax(&[("path", &long), ("mtime", b"1.5")]).file("short", "z").end(),
        files()
            .entry(b'L', "././@LongLink", "", &long)
            .entry(b'K', "././@LongLink", "", &long)
            .link("l", "t")
            .end(),
        TestTarBuilder::default()
            .attributes(b'g', &[("comment", b"c")])
            .file("../x", "y")
            .link("l", "/")
            .file("l/x", "")
            .end(),
    ]
}

const TELLING: [u8; 16] = *b"\0/.\\ 01257LKxgS\xff";

fn mutate(bytes: &mut Vec<u8>, dice: &mut MutationRng) {
    for _ in 0..=dice.roll(4) {
        let (blocks, length) = (bytes.len() / 512, bytes.len());
        match dice.roll(8) {
            0 => bytes[dice.roll(length)] ^= 1 << dice.roll(8),
            // Mostly positions in the headers.
            1 | 2 => {
                let at = dice.roll(blocks) * 512
                    + [dice.roll(100), 100 + dice.roll(57), 156, 157 + dice.roll(100)][dice.roll(4)];
                bytes[at.min(length - 1)] = TELLING[dice.roll(TELLING.len())];
            }
            3 => {
                let (from, to) = (dice.roll(blocks) * 512, dice.roll(blocks) * 512);
                bytes.copy_within(from..from + 512, to);
            }
            4 => {
                let at = dice.roll(blocks) * 512;
                let block = bytes[at..at + 512].to_vec();
                bytes.splice(at..at, block);
            }
            5 if blocks > 2 => {
                let at = dice.roll(blocks) * 512;
                drop(bytes.drain(at..at + 512));
            }
            6 => bytes.truncate(length - dice.roll(600).min(length - 512)),
            _ => {
                let at = dice.roll(length);
                bytes[at] = u8::try_from(dice.roll(256)).unwrap_or(0);
            }
        }
        if bytes.len() < 512 {
            bytes.resize(512, 0);
        }
    }
    // Otherwise most mutations would only test the checksum.
    for header in bytes.chunks_exact_mut(512).filter(|block| block[257..].starts_with(b"ustar")) {
        sign(header);
    }
}

fn cases(count: u64, seed: u64) -> (usize, usize) {
    let (mut dice, samples) = (MutationRng(seed), samples());
    let (mut taken, mut refused) = (0, 0);
    for number in 0..count {
        let mut archive = samples[dice.roll(samples.len())].clone();
        mutate(&mut archive, &mut dice);
        if dice.roll(4) == 0 {
            archive = gzip(&archive);
            if dice.roll(2) == 0 {
                let at = dice.roll(archive.len());
                archive[at] ^= 1 << dice.roll(8);
            }
        }
        let dir = tempfile::tempdir().expect("a directory");
        let inside = dir.path().join("inside");
        fs::create_dir(&inside).expect("made");
        let done = unpack_into(&inside, &archive, &SMALL);
        let left = fs::read_dir(&inside).expect("read").count();
        match done {
            Ok(_) => taken += 1,
            Err(refusal) => {
                refused += 1;
                assert_eq!(left, 0, "case {number} of {seed}: {refusal}");
            }
        }
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 1, "case {number} of {seed}");
        for file in Folder::open(&inside).expect("opened").walk(&|_, _| false, 1000).expect("walked") {
            assert!(
                !file.path.split(|byte| *byte == b'/').any(|step| step == b".."),
                "case {number} of {seed}"
            );
        }
    }
    (taken, refused)
}

#[test]
fn archives_with_errors_in_them_are_refused_whole_or_written_whole() {
    let (taken, refused) = cases(3_000, 0x9e37_79b9_7f4a_7c15);
    assert!(taken > 100 && refused > 1_000, "{taken} taken, {refused} refused: that tries little");
}

#[test]
fn slowly_many_archives_with_errors_in_them_are_refused_whole_or_written_whole() {
    for seed in 1..=10u64 {
        cases(5_000, seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    }
}
