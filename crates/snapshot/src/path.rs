//! A path whose form keeps it beneath a folder. Whether links lead outside is checked when it is opened.

use std::fmt;

const MAX_PATH_BYTES: usize = 4096;
pub(crate) const MAX_NAME_BYTES: usize = 255;

/// A relative path without empty, `.` or `..` components. Bytes, since file names are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(Vec<u8>);

/// Why a path is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    /// The path is empty.
    #[error("the path is empty")]
    Empty,
    /// The path begins with a slash.
    #[error("the path {0:?} is absolute; give it relative to the folder")]
    Absolute(String),
    /// A component of the path is empty, `.` or `..`.
    #[error("the path {0:?} has an empty, \".\" or \"..\" component")]
    Component(String),
    /// The path contains a NUL byte.
    #[error("the path contains a NUL byte")]
    Nul,
    /// The path, or one of its components, is longer than file systems allow.
    #[error("the path is longer than {MAX_PATH_BYTES} bytes, or a name in it longer than {MAX_NAME_BYTES}")]
    TooLong,
}

impl RelPath {
    /// Parses a path from a caller.
    pub fn parse(text: &str) -> Result<RelPath, BadPath> {
        RelPath::from_bytes(text.as_bytes())
    }

    /// Like [`RelPath::parse`], for bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<RelPath, BadPath> {
        if bytes.len() > MAX_PATH_BYTES { Err(BadPath::TooLong) } else { RelPath::from_walk(bytes) }
    }

    /// A path that a walk through a folder built step by step: it may be longer than any path from a caller.
    pub fn from_walk(bytes: &[u8]) -> Result<RelPath, BadPath> {
        match bytes {
            [] => return Err(BadPath::Empty),
            [b'/', ..] => return Err(BadPath::Absolute(crate::error::shown(bytes))),
            _ if bytes.contains(&0) => return Err(BadPath::Nul),
            _ => {}
        }
        for name in bytes.split(|&b| b == b'/') {
            if matches!(name, b"" | b"." | b"..") {
                return Err(BadPath::Component(crate::error::shown(bytes)));
            }
            if name.len() > MAX_NAME_BYTES {
                return Err(BadPath::TooLong);
            }
        }
        Ok(RelPath(bytes.to_vec()))
    }

    /// The whole path.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether a link at this path with this target stays beneath the folder by its form. `..` is accepted only at the
    /// beginning of the target: after a name that is itself a link, it would lead elsewhere than it seems to.
    pub fn link_stays_inside(&self, target: &[u8]) -> bool {
        let depth = self.0.iter().filter(|byte| **byte == b'/').count();
        let mut steps =
            target.split(|byte| *byte == b'/').filter(|step| !matches!(*step, b"" | b".")).peekable();
        let mut up = 0;
        while steps.next_if_eq(&&b".."[..]).is_some() {
            up += 1;
        }
        let plain = !target.is_empty() && !target.starts_with(b"/") && !target.contains(&0);
        plain && up <= depth && steps.all(|step| step != b"..")
    }

    /// The folder (`.` for a plain name) and the last component.
    pub(crate) fn split(&self) -> (&[u8], &[u8]) {
        match self.0.iter().rposition(|&b| b == b'/') {
            Some(slash) => (&self.0[..slash], &self.0[slash + 1..]),
            None => (b".", &self.0),
        }
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// Whether bytes are valid as one name in a directory. Checked for every name that comes out of a pack.
pub(crate) fn is_name(bytes: &[u8]) -> bool {
    !matches!(bytes, b"" | b"." | b"..")
        && bytes.len() <= MAX_NAME_BYTES
        && !bytes.iter().any(|b| matches!(b, 0 | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_that_stay_beneath_are_accepted() {
        for good in ["a", "a/b.txt", ".hidden/…", "a b/c\nd", "..a/b.."] {
            assert_eq!(RelPath::parse(good).map(|path| path.to_string()), Ok(good.to_owned()));
        }
        let component = |text: &str| BadPath::Component(text.to_owned());
        let bad = [
            ("", BadPath::Empty),
            ("/etc/passwd", BadPath::Absolute("/etc/passwd".to_owned())),
            ("..", component("..")),
            ("a/../b", component("a/../b")),
            ("a//b", component("a//b")),
            ("a/", component("a/")),
            ("./a", component("./a")),
            ("a\0b", BadPath::Nul),
        ];
        for (text, why) in bad {
            assert_eq!(RelPath::parse(text), Err(why));
        }
        assert_eq!(RelPath::parse(&"x".repeat(256)), Err(BadPath::TooLong));
        assert_eq!(RelPath::parse(&"x/".repeat(2049)), Err(BadPath::TooLong));
        assert!(RelPath::from_walk(&[&b"x/".repeat(2049)[..], b"x"].concat()).is_ok());
    }

    #[test]
    fn a_link_stays_inside_if_it_climbs_first_and_not_too_far() {
        let link = RelPath::parse("a/b/link").expect("a path");
        for inside in ["x", "./x", "../x", "../../x/y", "..", "../..", ".././..//x", "...", "..x/y"] {
            assert!(link.link_stays_inside(inside.as_bytes()), "{inside}");
        }
        for outside in ["", "/", "/etc/passwd", "../../..", "../../../x", "x/../y", "x/y/z/../../..", "x\0y"]
        {
            assert!(!link.link_stays_inside(outside.as_bytes()), "{outside}");
        }
    }

    #[test]
    fn a_name_is_one_component() {
        assert!(is_name(b"a") && is_name(b"...") && is_name(&[0xff; 255]));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
            assert!(!is_name(bad));
        }
    }
}
