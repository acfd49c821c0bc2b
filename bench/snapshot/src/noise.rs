//! Generates bytes that are the same in every run: text that compresses like source code, noise that does not
//! compress, and the pages of a database.

pub(crate) const PAGE: usize = 4096;

const WORDS: usize = 4096;
/// Phrases that all files share, as real files share licences and compiler boilerplate.
const PHRASES: usize = 4096;
/// Number of names that each file has for itself.
const OWN: usize = 48;

/// The splitmix64 random number generator.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// A generator seeded by a text.
    pub(crate) fn of(text: &[u8]) -> Dice {
        let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Dice(hash)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound.max(1) as u64) as usize
    }

    /// A number from 0 to 1.
    fn part(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A file size: many files are small, and a few hold most of the bytes.
    pub(crate) fn size(&mut self, median: f64, spread: f64) -> f64 {
        let normal = (0..12).map(|_| self.part()).sum::<f64>() - 6.0;
        median * (normal * spread).exp()
    }
}

/// The vocabulary that all files share.
pub(crate) struct Language {
    words: Vec<String>,
    phrases: Vec<Vec<u8>>,
}

impl Language {
    pub(crate) fn new() -> Language {
        const SYLLABLES: [&str; 32] = [
            "re", "con", "map", "ser", "get", "val", "ue", "ob", "ject", "re", "act", "ion", "state", "ty",
            "pe", "node", "list", "in", "dex", "path", "er", "or", "hand", "le", "ch", "unk", "str", "ing",
            "mod", "ule", "de", "fault",
        ];
        let mut dice = Dice::new(11);
        let mut word = |_| (0..2 + dice.below(3)).map(|_| SYLLABLES[dice.below(32)]).collect();
        let words = (0..WORDS).map(&mut word).collect();
        let mut language = Language { words, phrases: Vec::new() };
        let phrases = (0..PHRASES).map(|_| {
            let (own, length) = (language.word(&mut dice), 16 + dice.below(90));
            let mut phrase = Vec::new();
            language.plain(&mut dice, &[own], length, &mut phrase);
            phrase
        });
        language.phrases = phrases.collect();
        language
    }

    pub(crate) fn word(&self, dice: &mut Dice) -> &str {
        // A few words make up most of every text.
        let at = dice.part().powi(3) * WORDS as f64;
        &self.words[(at as usize).min(WORDS - 1)]
    }

    /// Exactly `length` bytes that compress about five to one, like the files in a `node_modules`.
    pub(crate) fn text(&self, dice: &mut Dice, length: usize) -> Vec<u8> {
        let own: Vec<&str> = (0..OWN).map(|_| self.word(dice)).collect();
        let mut out = Vec::with_capacity(length + 512);
        while out.len() < length {
            match dice.below(10) {
                0 | 1 => {
                    let at = dice.part().powi(3) * PHRASES as f64;
                    out.extend_from_slice(&self.phrases[(at as usize).min(PHRASES - 1)]);
                }
                // Repeat an earlier part of the text.
                2..=4 if out.len() > 200 => {
                    let start = dice.below(out.len() - 100);
                    let end = (start + 20 + dice.below(100)).min(out.len());
                    out.extend_from_within(start..end);
                }
                _ => self.plain(dice, &own, 40, &mut out),
            }
        }
        out.truncate(length);
        out
    }

    /// Appends words: `length` bytes or a little more.
    fn plain(&self, dice: &mut Dice, own: &[&str], length: usize, out: &mut Vec<u8>) {
        const GLUE: [&str; 16] = [
            ".", "(", ", ", " = ", ";\n  ", ");\n    ", " => ", " ", ": ", "[", "] = ", "\n\n", " { ",
            " }\n", "('", "')",
        ];
        let end = out.len() + length;
        while out.len() < end {
            let from_own = dice.below(4) > 0;
            let word = if from_own { own[dice.below(own.len())] } else { self.word(dice) };
            out.extend_from_slice(word.as_bytes());
            out.extend_from_slice(GLUE[dice.below(GLUE.len())].as_bytes());
        }
    }

    /// JSON lines: `length` bytes or a little more.
    pub(crate) fn transcript(&self, dice: &mut Dice, length: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(length + 4096);
        while out.len() < length {
            let size = dice.size(600.0, 1.0).min(8192.0) as usize;
            let text = self.text(dice, size);
            let text = String::from_utf8_lossy(&text).replace('\n', "\\n");
            let (id, tokens) = (dice.roll(), dice.below(9000));
            let line = format!(
                "{{\"type\":\"assistant\",\"uuid\":\"{id:016x}\",\"message\":{{\"content\":[{{\"type\":\
                 \"text\",\"text\":\"{text}\"}}],\"usage\":{{\"output_tokens\":{tokens}}}}}}}\n"
            );
            out.extend_from_slice(line.as_bytes());
        }
        out
    }

    /// A leaf page of a table in SQLite's layout: cells from the end, pointers from the beginning.
    pub(crate) fn page(&self, dice: &mut Dice) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        let (mut end, mut cells) = (PAGE, 0);
        loop {
            let size = 60 + dice.below(300);
            let row = self.text(dice, size);
            if end < 8 + 2 * (cells + 1) + size + 12 {
                break;
            }
            end -= size;
            page[end..end + size].copy_from_slice(&row);
            end -= 12;
            page[end..end + 8].copy_from_slice(&dice.roll().to_le_bytes());
            page[8 + 2 * cells..10 + 2 * cells].copy_from_slice(&(end as u16).to_be_bytes());
            cells += 1;
        }
        page[0] = 13;
        page[3..5].copy_from_slice(&(cells as u16).to_be_bytes());
        page[5..7].copy_from_slice(&(end as u16).to_be_bytes());
        page
    }
}

pub(crate) fn noise(dice: &mut Dice, length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        out.extend_from_slice(&dice.roll().to_le_bytes());
    }
    out.truncate(length);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_dice_fall_the_same_way() {
        let language = Language::new();
        let text = || language.text(&mut Dice::of(b"a/b.js"), 1000);
        assert_eq!((text().len(), text()), (1000, text()));
        assert_ne!(text(), language.text(&mut Dice::of(b"a/c.js"), 1000));
    }
}
