//! One tar header, with the extensions before it. Headers that tar readers interpret differently are refused: the
//! checked meaning must be the one that is written.

use super::validate::ArchiveError;
use std::ops::Range;

pub(super) const BLOCK: usize = 512;

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const SIZE: Range<usize> = 124..136;
const CHECKSUM: Range<usize> = 148..156;
const FLAG: usize = 156;
const TARGET: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..265;
const PREFIX: Range<usize> = 345..500;

pub(super) const USTAR: &[u8] = b"ustar";
const POSIX: &[u8] = b"ustar\x00";

/// A parsed header. Owner and times are ignored: files belong to the session, and their times are those of the upload.
pub(super) struct TarHeader {
    pub(super) flag: u8,
    pub(super) name: Vec<u8>,
    pub(super) target: Vec<u8>,
    pub(super) size: u64,
    pub(super) mode: u32,
}

impl TarHeader {
    pub(super) fn parse(block: &[u8; BLOCK]) -> Result<TarHeader, ArchiveError> {
        if !has_checksum(block) {
            return Err(ArchiveError::Damaged("the checksum of a header is wrong".to_owned()));
        }
        let mut name = text(&block[NAME]).to_vec();
        let prefix = text(&block[PREFIX]);
        // Other formats use the bytes of the prefix differently.
        if block[MAGIC].starts_with(POSIX) && !prefix.is_empty() {
            name = [prefix, b"/", &name].concat();
        }
        let wrong =
            |what: &str| ArchiveError::entry(&name, format!("has a {what} that is no number we can use"));
        let size = number(&block[SIZE]).ok_or_else(|| wrong("size"))?;
        let mode = number(&block[MODE]).ok_or_else(|| wrong("mode"))?;
        let mode = u32::try_from(mode & 0o777).unwrap_or(0);
        Ok(TarHeader { flag: block[FLAG], target: text(&block[TARGET]).to_vec(), size, mode, name })
    }
}

pub(super) fn has_checksum(block: &[u8; BLOCK]) -> bool {
    let byte = |(at, byte): (usize, &u8)| u64::from(if CHECKSUM.contains(&at) { b' ' } else { *byte });
    let sum: u64 = block.iter().enumerate().map(byte).sum();
    block[CHECKSUM].iter().any(u8::is_ascii_digit) && number(&block[CHECKSUM]) == Some(sum)
}

pub(super) fn is_tar(block: &[u8]) -> bool {
    let Ok(block) = <&[u8; BLOCK]>::try_from(block) else { return false };
    block[MAGIC].starts_with(USTAR) || has_checksum(block) || block.iter().all(|byte| *byte == 0)
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Octal, or binary after a first byte of 0x80, which GNU uses for larger numbers. Negative numbers are refused.
fn number(field: &[u8]) -> Option<u64> {
    match field {
        [0x80, rest @ ..] => {
            rest.iter().try_fold(0u64, |sum, byte| sum.checked_mul(256)?.checked_add(u64::from(*byte)))
        }
        _ => {
            let digits = field.trim_ascii_start();
            let end = digits.iter().position(|byte| matches!(byte, 0 | b' ')).unwrap_or(digits.len());
            let (digits, rest) = digits.split_at(end);
            let octal = |sum: u64, byte: &u8| match byte {
                b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
                _ => None,
            };
            rest.iter().all(|byte| matches!(byte, 0 | b' ')).then(|| digits.iter().try_fold(0, octal))?
        }
    }
}

/// Extensions that apply to the next entry.
#[derive(Default)]
pub(super) struct TarExtensions {
    pub(super) name: Option<Vec<u8>>,
    pub(super) target: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    had_pax: bool,
}

impl TarExtensions {
    pub(super) fn is_empty(&self) -> bool {
        !self.had_pax && self.name.is_none() && self.target.is_none()
    }

    pub(super) fn long_name(&mut self, content: &[u8]) -> Result<(), ArchiveError> {
        set_once(&mut self.name, without_end(content).to_vec(), "two long names for one entry")
    }

    pub(super) fn long_target(&mut self, content: &[u8]) -> Result<(), ArchiveError> {
        set_once(&mut self.target, without_end(content).to_vec(), "two long targets for one link")
    }

    pub(super) fn pax(&mut self, content: &[u8]) -> Result<(), ArchiveError> {
        if std::mem::replace(&mut self.had_pax, true) {
            return Err(damaged("two sets of attributes for one entry"));
        }
        for record in PaxRecords(content) {
            let (key, value) = record?;
            match key {
                b"path" => set_once(&mut self.name, value.to_vec(), "two names for one entry")?,
                b"linkpath" => set_once(&mut self.target, value.to_vec(), "two targets for one link")?,
                b"size" => set_once(&mut self.size, decimal(value)?, "two sizes for one entry")?,
                _ => not_sparse(key)?,
            }
        }
        Ok(())
    }
}

/// Records for all later entries. Comments, such as a commit id, are accepted; a name or size for all entries makes no
/// sense.
pub(super) fn check_global_pax(content: &[u8]) -> Result<(), ArchiveError> {
    for record in PaxRecords(content) {
        let (key, _) = record?;
        if matches!(key, b"path" | b"linkpath" | b"size") {
            return Err(damaged("a name or size for all entries"));
        }
        not_sparse(key)?;
    }
    Ok(())
}

fn not_sparse(key: &[u8]) -> Result<(), ArchiveError> {
    if key.starts_with(b"GNU.sparse.") { Err(ArchiveError::entry(key, SPARSE)) } else { Ok(()) }
}

pub(super) const SPARSE: &str = "is of a sparse file; pack it without --sparse";

fn set_once<T>(place: &mut Option<T>, value: T, why: &str) -> Result<(), ArchiveError> {
    match place.replace(value) {
        Some(_) => Err(damaged(why)),
        None => Ok(()),
    }
}

fn damaged(why: &str) -> ArchiveError {
    ArchiveError::Damaged(why.to_owned())
}

fn without_end(content: &[u8]) -> &[u8] {
    let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    &content[..end]
}

fn decimal(text: &[u8]) -> Result<u64, ArchiveError> {
    let digits = Some(text).filter(|text| !text.is_empty() && text.iter().all(u8::is_ascii_digit));
    let number = digits.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    number.ok_or_else(|| damaged("a number in attributes is none"))
}

/// `LENGTH KEY=VALUE
/// `, where the length counts the whole record.
struct PaxRecords<'a>(&'a [u8]);

impl<'a> Iterator for PaxRecords<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), ArchiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let found = self.cut();
        if found.is_err() {
            self.0 = &[];
        }
        Some(found)
    }
}

impl<'a> PaxRecords<'a> {
    fn cut(&mut self) -> Result<(&'a [u8], &'a [u8]), ArchiveError> {
        let wrong = || damaged("attributes that are not as they should be");
        let space = self.0.iter().take(20).position(|byte| *byte == b' ').ok_or_else(wrong)?;
        let length = usize::try_from(decimal(&self.0[..space])?).map_err(|_| wrong())?;
        if length > self.0.len() || length <= space + 1 {
            return Err(wrong());
        }
        let (record, rest) = self.0.split_at(length);
        self.0 = rest;
        let record = record[space + 1..].strip_suffix(b"\n").ok_or_else(wrong)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
        Ok((&record[..equals], &record[equals + 1..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary_and_nothing_between() {
        let twelve = |first: u8, last: u8| {
            let mut field = [0; 12];
            (field[0], field[11]) = (first, last);
            field
        };
        for (field, wanted) in [
            (&b"00000000017\0"[..], Some(15)),
            (b"  17 \0\0\0\0\0\0\0", Some(15)),
            (b"777777777777", Some((1 << 36) - 1)),
            (b"\0\0\0\0\0\0\0\0\0\0\0\0", Some(0)),
            (&twelve(0x80, 15), Some(15)),
            (&twelve(0x81, 0), None),
            (&[0xff; 12], None),
            (b"\x80\x01\0\0\0\0\0\0\0\0\0\0", None),
            (b"-0000000017\0", None),
            (b"17 17\0\0\0\0\0\0\0", None),
            (b"0000000008\0\0", None),
            (b"0x17\0\0\0\0\0\0\0\0", None),
        ] {
            assert_eq!(number(field), wanted, "{field:?}");
        }
    }

    #[test]
    fn records_say_how_long_they_are_and_are() {
        let of = |text: &[u8]| {
            let mut extra = TarExtensions::default();
            extra.pax(text).map(|()| extra.name.unwrap_or_default())
        };
        assert_eq!(of(b"8 path=a\n").err(), Some(damaged("attributes that are not as they should be")));
        assert_eq!(of(b"9 path=a\n"), Ok(b"a".to_vec()));
        assert!(of(b"10 path==\n\n").is_err());
        for wrong in [
            &b"9 path=a"[..],
            b"0 path=a\n",
            b"2 path=a\n",
            b"99 path=a\n",
            b"x path=a\n",
            b"18446744073709551616 path=a\n",
            b"9999999999999999999999999999999 path=a\n",
            b" path=a\n",
            b"-9 path=a\n",
            b"7 patha\n",
            b"9 path=a\n9 path=b\n",
            b"22 GNU.sparse.major=1\n",
        ] {
            assert!(of(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
