//! What the agent is told before any message: what its folder says, and what the session says.

use crate::tools;
use std::path::Path;

/// The first that is there, as Claude Code and others look for them.
const FILES: [&str; 2] = ["CLAUDE.md", "AGENTS.md"];
/// A longer one is no instruction.
const MOST: usize = 256 << 10;

/// Read anew for each turn: between two of them, whoever works in the folder may have changed it.
pub(crate) fn all(session: Option<&str>) -> Option<String> {
    let folder = FILES.iter().find_map(|name| tools::peek(Path::new(name)));
    joined(folder.as_deref().map(beginning), session)
}

fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST)]
}

fn joined(folder: Option<&str>, session: Option<&str>) -> Option<String> {
    let said: Vec<&str> =
        folder.into_iter().chain(session).map(str::trim).filter(|text| !text.is_empty()).collect();
    (!said.is_empty()).then(|| said.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_speaks_first_and_then_the_session() {
        assert_eq!(joined(Some("# Be kind\n"), Some("Be short.")), Some("# Be kind\n\nBe short.".into()));
        assert_eq!(joined(None, Some("Be short.")), Some("Be short.".into()));
        assert_eq!(joined(Some(" "), None), None);
    }

    #[test]
    fn a_file_that_is_too_long_is_cut_between_characters() {
        assert_eq!(beginning(&"ä".repeat(MOST)).len(), MOST);
        assert_eq!(beginning(&format!("x{}", "ä".repeat(MOST))).len(), MOST - 1);
    }
}
