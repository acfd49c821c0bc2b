//! Versions of Claude Code, and what is known of those that differ.

use std::{fmt, str::FromStr};

/// `claude --version` prints it first, and every `init` line tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaudeVersion {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

/// The first release with a program of its own. The text of those before, which are scripts for Node, was searched in four
/// releases: they do not use `ANTHROPIC_UNIX_SOCKET` under Node, and a sandbox has no network.
pub const OLDEST_CLAUDE: ClaudeVersion = ClaudeVersion { major: 2, minor: 1, patch: 110 };

/// This one was seen to announce that it is idle, and so were later ones. What is older is taken not to.
pub(super) const FIRST_IDLE: ClaudeVersion = OLDEST_CLAUDE;

impl FromStr for ClaudeVersion {
    type Err = ();

    /// Words after the number are ignored, as in `2.1.110 (Claude Code)`, and so is a suffix as in `2.1.110-beta`.
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
