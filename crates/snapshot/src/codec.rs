//! Encodes and decodes the numbers and bytes of all stored formats. The decoder trusts no input: it checks every
//! length against the bytes that are left before it allocates anything.

/// Why bytes are not a valid stored object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectDecodeError(pub(crate) &'static str);

pub(crate) type DecodeResult<T> = Result<T, ObjectDecodeError>;

/// LEB128: seven bits a byte, the lowest first.
pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Zigzag: small numbers of either sign stay short (0, -1, 1, -2 …).
pub(crate) fn put_signed(out: &mut Vec<u8>, number: i64) {
    put_number(out, ((number << 1) ^ (number >> 63)) as u64);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ByteDecoder<'a> {
    rest: &'a [u8],
}

impl<'a> ByteDecoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> ByteDecoder<'a> {
        ByteDecoder { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> DecodeResult<&'a [u8]> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or(ObjectDecodeError("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> DecodeResult<u8> {
        let (&byte, rest) = self.rest.split_first().ok_or(ObjectDecodeError("it ends too early"))?;
        self.rest = rest;
        Ok(byte)
    }

    #[inline]
    pub(crate) fn number(&mut self) -> DecodeResult<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(ObjectDecodeError("a number is too large"));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                // Each number has one encoding, or equal objects could have different names.
                let longer_than_needed = byte == 0 && shift > 0;
                return if longer_than_needed {
                    Err(ObjectDecodeError("a padded number"))
                } else {
                    Ok(number)
                };
            }
        }
        Err(ObjectDecodeError("a number is too long"))
    }

    pub(crate) fn small(&mut self) -> DecodeResult<u32> {
        u32::try_from(self.number()?).map_err(|_| ObjectDecodeError("a number is too large"))
    }

    pub(crate) fn signed(&mut self) -> DecodeResult<i64> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(crate) fn bytes(&mut self) -> DecodeResult<&'a [u8]> {
        let length =
            usize::try_from(self.number()?).map_err(|_| ObjectDecodeError("a length is too large"))?;
        self.take(length)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> DecodeResult<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// Reads a count of items that take at least `least` bytes each. It rejects an impossible count before the caller
    /// allocates memory.
    pub(crate) fn count(&mut self, least: usize) -> DecodeResult<usize> {
        let count = self.number()?;
        let possible = (self.rest.len() / least.max(1)) as u64;
        if count > possible {
            return Err(ObjectDecodeError("it counts more than it holds"));
        }
        Ok(count as usize)
    }

    pub(crate) fn end(&self) -> DecodeResult<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(ObjectDecodeError("there is something after its end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            assert_eq!(ByteDecoder::new(&out).number(), Ok(number));
        }
        for number in [0, -1, 1, i64::MIN, i64::MAX, -1_700_000_000] {
            let mut out = Vec::new();
            put_signed(&mut out, number);
            assert_eq!(ByteDecoder::new(&out).signed(), Ok(number));
        }
    }

    #[test]
    fn a_lie_about_a_length_is_refused_before_it_costs_memory() {
        let mut out = Vec::new();
        put_number(&mut out, u64::MAX);
        assert!(ByteDecoder::new(&out).bytes().is_err());
        assert!(ByteDecoder::new(&out).count(1).is_err());
        assert!(ByteDecoder::new(&[0x80; 11]).number().is_err());
        assert!(ByteDecoder::new(&[0x80, 0]).number().is_err(), "padded");
    }
}
