//! What the agent is told before any message: what its folder says, and what the session says.

use crate::{skills, tools};
use std::path::Path;

/// The first that is there, as Claude Code and others look for them.
const FILES: [&str; 2] = ["CLAUDE.md", "AGENTS.md"];
/// A longer one is no instruction.
const MOST: usize = 256 << 10;

/// Read anew for each turn: between two of them, whoever works in the folder may have changed it.
pub(crate) fn all(session: Option<&str>, wanted: &skills::Wanted) -> Option<String> {
    let user = wanted.config.as_deref().and_then(of);
    let here = std::env::current_dir().unwrap_or_default();
    // It may have been told to begin further down.
    let folder = here.ancestors().find_map(of);
    let skills = skills::told(wanted);
    joined([user.as_deref().map(beginning), folder.as_deref().map(beginning), skills.as_deref(), session])
}

fn of(folder: &Path) -> Option<String> {
    FILES.iter().find_map(|name| tools::peek(&folder.join(name)))
}

fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST)]
}

fn joined<const N: usize>(parts: [Option<&str>; N]) -> Option<String> {
    let said: Vec<&str> =
        parts.into_iter().flatten().map(str::trim).filter(|text| !text.is_empty()).collect();
    (!said.is_empty()).then(|| said.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_speaks_first_and_then_the_session() {
        assert_eq!(joined([Some("# Be kind\n"), Some("Be short.")]), Some("# Be kind\n\nBe short.".into()));
        assert_eq!(joined([None, Some("Be short.")]), Some("Be short.".into()));
        assert_eq!(joined([Some(" "), None]), None);
    }

    #[test]
    fn a_file_that_is_too_long_is_cut_between_characters() {
        assert_eq!(beginning(&"ä".repeat(MOST)).len(), MOST);
        assert_eq!(beginning(&format!("x{}", "ä".repeat(MOST))).len(), MOST - 1);
    }
}
