//! Whether a body is text in UTF-8, told while it passes in pieces. Pure. Services that guess the encoding would read
//! another text out of other bytes than the one that was looked at.

#[derive(Debug, Default)]
pub(super) struct Utf8Check {
    /// The beginning of a character whose end has not come.
    begun: Vec<u8>,
}

impl Utf8Check {
    /// False: it is no such text. A zero byte is a part of no JSON, but of every text in UTF-16 or UTF-32.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        let joined;
        let text = match self.begun.is_empty() {
            true => bytes,
            false => {
                joined = [self.begun.as_slice(), bytes].concat();
                &joined
            }
        };
        let begun = match std::str::from_utf8(text) {
            Ok(_) => Vec::new(),
            Err(error) if error.error_len().is_none() => text[error.valid_up_to()..].to_vec(),
            Err(_) => return false,
        };
        self.begun = begun;
        !bytes.contains(&0)
    }

    /// It does not end within a character.
    pub(super) fn is_whole(&self) -> bool {
        self.begun.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_text(bytes: &[u8], step: usize) -> bool {
        let mut check = Utf8Check::default();
        bytes.chunks(step).all(|piece| check.push(piece)) && check.is_whole()
    }

    #[test]
    fn text_in_utf_8_is_told_from_other_bytes_in_whatever_pieces_it_comes() {
        for step in [1, 2, 3, 100] {
            for text in ["", "{}", "\u{feff}{}", "ü日👩"] {
                assert!(is_text(text.as_bytes(), step), "{text}");
            }
            for bytes in [
                &b"\xff\xfe{\0}\0"[..],
                b"{\0}\0",
                b"\0{\0}",
                b"\xc3",
                b"a\xe6\x97",
                b"\xc0\xaf",
                b"\xed\xa0\x80",
            ] {
                assert!(!is_text(bytes, step), "{bytes:?}");
            }
        }
    }
}
