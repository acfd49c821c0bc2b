//! Checks while a body passes in pieces whether it is text in UTF-8. Pure. A service that guesses the encoding could
//! read another text in other bytes than the proxy has checked.

#[derive(Debug, Default)]
pub(super) struct Utf8Check {
    /// The beginning of a character that is not complete yet.
    begun: Vec<u8>,
}

impl Utf8Check {
    /// False: the body is not such text. JSON has no zero byte, but JSON in UTF-16 or UTF-32 does.
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

    /// Whether the text ends at the end of a character.
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
    fn utf_8_text_is_distinguished_from_other_bytes_however_it_is_split() {
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
