//! Identifiers: random ones for transcript lines, derived ones where a repetition must produce the same id.

use std::fmt;

/// FNV-1a. It need not resist attacks: it compares transcripts and keeps ids apart.
#[derive(Clone, Copy)]
pub(crate) struct FnvDigest(u64);

impl FnvDigest {
    pub(crate) const EMPTY: FnvDigest = FnvDigest(0xcbf2_9ce4_8422_2325);

    pub(crate) fn add(self, bytes: &[u8]) -> FnvDigest {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        FnvDigest(bytes.iter().fold(self.0, step))
    }
}

impl fmt::Display for FnvDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0u8; N];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    debug_assert_eq!(filled, Ok(N), "up to 256 bytes come whole");
    bytes
}

/// Jitter, so that many agents do not act at the same moment.
pub(crate) fn random_byte() -> u8 {
    let [byte] = random();
    byte
}

/// A random UUID (version 4).
pub(crate) fn uuid() -> String {
    let number = u128::from_be_bytes(random());
    let number = number & !(0xf << 76) | 0x4 << 76;
    let number = number & !(0x3 << 62) | 0x2 << 62;
    let hex = format!("{number:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// A random id that every model service accepts: letters and digits, and at most 40 bytes.
pub(crate) fn prefixed(prefix: &str) -> String {
    format!("{prefix}{}", uuid().replace('-', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_the_shape_of_version_four() {
        let id = uuid();
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&id[14..15], "4");
        assert!("89ab".contains(&id[19..20]), "{id}");
        assert_ne!(id, uuid());
    }

    #[test]
    fn the_digest_is_fnv_1a() {
        assert_eq!(FnvDigest::EMPTY.add(b"foobar").to_string(), "85944171f73967e8");
    }
}
