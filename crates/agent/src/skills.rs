//! Skills: folders with a `SKILL.md` that describes their purpose. The system prompt lists their names and paths, and the
//! agent reads a skill when it needs it.

use crate::tools;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The project's skills, relative to the working folder.
const OWN: &str = ".claude/skills";
/// A longer list would take too much of the context.
const MAX_SKILLS: usize = 100;
const MAX_DESCRIPTION_BYTES: usize = 1000;

/// The session's settings for skills.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SkillSettings {
    /// The folder of the user's configuration.
    pub(crate) config: Option<PathBuf>,
    pub(crate) folders: Vec<PathBuf>,
    /// The names of disabled skills.
    pub(crate) without: Vec<String>,
}

/// The list of skills for the model, or `None` if there are none.
pub(crate) fn skill_list(wanted: &SkillSettings) -> Option<String> {
    let own = [PathBuf::from(OWN)].into_iter();
    let config = wanted.config.iter().map(|dir| dir.join("skills"));
    let mut found = BTreeMap::new();
    for folder in own.chain(config).chain(wanted.folders.iter().cloned()) {
        find(&folder, &mut found);
    }
    found.retain(|name, _| !wanted.without.contains(name));
    if found.is_empty() {
        return None;
    }
    let lines =
        found.iter().map(|(name, skill)| format!("- {name}: {} ({})", skill.about, skill.file.display()));
    let list = lines.collect::<Vec<_>>().join("\n");
    Some(format!("# Skills\nWhen a task fits one of these, read its file first and do as it says.\n{list}"))
}

struct Skill {
    about: String,
    file: PathBuf,
}

fn find(folder: &Path, found: &mut BTreeMap<String, Skill>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().take(MAX_SKILLS) {
        let file = entry.path().join("SKILL.md");
        let Some(text) = tools::peek(&file) else { continue };
        let name = field(&text, "name").unwrap_or_else(|| entry.file_name().to_string_lossy().into_owned());
        if found.len() < MAX_SKILLS {
            let about = field(&text, "description").unwrap_or_default();
            found.insert(one_line(&name), Skill { about: one_line(&about), file });
        }
    }
}

/// A field from the lines between the first two `---`.
fn field(text: &str, name: &str) -> Option<String> {
    let head = text.strip_prefix("---")?.split("\n---").next()?;
    let value = head.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text[..text.floor_char_boundary(MAX_DESCRIPTION_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skill_says_its_name_and_what_it_is_good_for() {
        let text = "---\nname: \"towers\"\ndescription: builds towers: high ones\nother: x\n---\nname: no\n";
        assert_eq!(field(text, "name").as_deref(), Some("towers"));
        assert_eq!(field(text, "description").as_deref(), Some("builds towers: high ones"));
        assert_eq!(field(text, "license"), None);
        assert_eq!(field("name: x", "name"), None, "that is its text");
    }

    #[test]
    fn folders_are_searched_and_unwanted_skills_are_left_out() {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, about) in [("towers", "builds towers"), ("wells", "digs wells")] {
            let folder = dir.path().join(name);
            fs::create_dir(&folder).expect("made");
            fs::write(folder.join("SKILL.md"), format!("---\ndescription: {about}\n---\nGo."))
                .expect("written");
        }
        fs::create_dir(dir.path().join("empty")).expect("made");
        let folders = vec![dir.path().to_owned(), dir.path().join("nowhere")];
        let wanted = SkillSettings { folders, without: vec!["wells".into()], ..SkillSettings::default() };
        let told = skill_list(&wanted).expect("one");
        assert!(told.contains("- towers: builds towers (") && told.contains("towers/SKILL.md)"), "{told}");
        assert!(!told.contains("wells"), "{told}");
        assert_eq!(
            super::skill_list(&SkillSettings { without: vec!["towers".into(), "wells".into()], ..wanted }),
            None
        );
    }
}
