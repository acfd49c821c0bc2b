//! Builds the system prompt: the session's own folder, the instructions of the workspace, and those of the session.

use crate::{skills, tools};
use std::path::Path;

/// The agent reads the first file that exists, as Claude Code and other agents do.
const FILES: [&str; 2] = ["CLAUDE.md", "AGENTS.md"];
/// The variable that names the session's folder for its plan and its documents.
const OWN_FOLDER: &str = "ASH_SESSION_DIR";
/// A longer file is ignored.
const MAX_INSTRUCTION_BYTES: usize = 256 << 10;

/// Read again for each turn, because the files can change between turns.
pub(crate) fn system_prompt(session: Option<&str>, wanted: &skills::SkillSettings) -> Option<String> {
    let own = std::env::var(OWN_FOLDER).ok().map(|path| about(&path));
    let user = wanted.config.as_deref().and_then(of);
    let here = std::env::current_dir().unwrap_or_default();
    // The agent may work in a subfolder, so it searches the parents as well.
    let folder = here.ancestors().find_map(of);
    let skills = skills::skill_list(wanted);
    let (user, folder) = (user.as_deref().map(beginning), folder.as_deref().map(beginning));
    joined([own.as_deref(), user, folder, skills.as_deref(), session])
}

fn of(folder: &Path) -> Option<String> {
    FILES.iter().find_map(|name| tools::peek(&folder.join(name)))
}

/// Includes the path, because the tools that write files do not expand variables.
fn about(own_folder: &str) -> String {
    format!(
        "If you make a plan, keep it in {own_folder}/plan.md. Put documents for the user that are no part of the project into {own_folder}/files/."
    )
}

fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_INSTRUCTION_BYTES)]
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
        let all = joined([Some("Own."), Some("# Be kind\n"), Some("Be short.")]);
        assert_eq!(all, Some("Own.\n\n# Be kind\n\nBe short.".into()));
        assert_eq!(joined([None, None, Some("Be short.")]), Some("Be short.".into()));
        assert_eq!(joined([None, Some(" "), None]), None);
    }

    #[test]
    fn a_file_that_is_too_long_is_cut_between_characters() {
        assert_eq!(beginning(&"ä".repeat(MAX_INSTRUCTION_BYTES)).len(), MAX_INSTRUCTION_BYTES);
        assert_eq!(
            beginning(&format!("x{}", "ä".repeat(MAX_INSTRUCTION_BYTES))).len(),
            MAX_INSTRUCTION_BYTES - 1
        );
    }
}
