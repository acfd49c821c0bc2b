//! Versions of Claude Code, and the differences between them.

use std::{fmt, str::FromStr};

/// The version, which `claude --version` prints first and every `init` line has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaudeVersion {
    /// The first number: 2 in `2.1.113`.
    pub major: u32,
    /// The second number: 1 in `2.1.113`.
    pub minor: u32,
    /// The third number: 113 in `2.1.113`.
    pub patch: u32,
}

/// The oldest version that works; the slow tests run real releases. Older ones from npm are Node scripts. We ran 2.1.112:
/// it does not connect to `ANTHROPIC_UNIX_SOCKET`, and a sandbox has no network.
pub const OLDEST_CLAUDE: ClaudeVersion = ClaudeVersion::of(2, 1, 113);

/// This version and later ones report idle. Older ones count as not reporting it.
pub(super) const FIRST_IDLE: ClaudeVersion = ClaudeVersion::of(2, 1, 110);

/// From this version on Claude Code keeps the system prompt of a conversation. A flag turns that off, but earlier
/// versions do not know it.
pub(super) const FIRST_PROMPT_SNAPSHOT: ClaudeVersion = ClaudeVersion::of(2, 1, 257);

impl ClaudeVersion {
    const fn of(major: u32, minor: u32, patch: u32) -> ClaudeVersion {
        ClaudeVersion { major, minor, patch }
    }
}

impl FromStr for ClaudeVersion {
    type Err = ();

    /// Ignores text after the number, as in `2.1.110 (Claude Code)`, and a suffix as in `2.1.110-beta`.
    fn from_str(words: &str) -> Result<ClaudeVersion, ()> {
        let first = words.split_whitespace().next().ok_or(())?;
        let number = first.split(['-', '+']).next().ok_or(())?;
        let parts: Vec<u32> = number.split('.').map(str::parse).collect::<Result<_, _>>().map_err(|_| ())?;
        let [major, minor, patch] = parts[..] else { return Err(()) };
        Ok(ClaudeVersion { major, minor, patch })
    }
}

impl fmt::Display for ClaudeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_what_the_program_prints() {
        let read = |words: &str| words.parse::<ClaudeVersion>().map(|version| version.to_string());
        assert_eq!(read("2.1.110 (Claude Code)"), Ok("2.1.110".to_owned()));
        assert_eq!(read("2.1.9-beta.1"), Ok("2.1.9".to_owned()));
        for none in ["", "claude", "2.1", "2.1.x", "2.1.3.4", "99999999999.1.1"] {
            assert_eq!(read(none), Err(()), "{none}");
        }
        assert!("2.1.9".parse::<ClaudeVersion>() < Ok(OLDEST_CLAUDE), "compared as numbers");
    }
}
