//! Formats a change as a git patch, so that `git apply` can read it. In colour on a terminal.

use super::changes::{ContentSource, DiffSide, WorkspaceChange, WorkspaceEntry};
use crate::{
    api::Result,
    terminal::{TerminalStyle, paint},
};
use similar::{ChangeTag, TextDiff};
use std::{fmt::Write, time::Duration};

/// A longer file is only reported as different.
const MAX_PATCH_BYTES: u64 = 4 << 20;
/// Texts that have nothing in common take long; an approximate diff is good enough for them.
const DIFF_TIMEOUT: Duration = Duration::from_secs(2);

/// One side of a change.
struct PatchSide {
    mode: u32,
    /// `None`: too long to show.
    content: Option<Vec<u8>>,
}

pub(super) async fn format_patch(contents: &impl ContentSource, change: &WorkspaceChange) -> Result<String> {
    let before = side(contents, change, DiffSide::Before).await?;
    let now = side(contents, change, DiffSide::Now).await?;
    let text = match (before, now) {
        // To git, replacing a link by a file is a deletion and an addition.
        (Some(before), Some(now)) if before.is_link() != now.is_link() => {
            written(&change.path, Some(&before), None) + &written(&change.path, None, Some(&now))
        }
        (before, now) => written(&change.path, before.as_ref(), now.as_ref()),
    };
    Ok(text)
}

async fn side(
    contents: &impl ContentSource,
    change: &WorkspaceChange,
    when: DiffSide,
) -> Result<Option<PatchSide>> {
    let leaf = match when {
        DiffSide::Before => change.before(),
        DiffSide::Now => change.now(),
    };
    match leaf {
        None => Ok(None),
        Some(WorkspaceEntry::Link { target }) => {
            Ok(Some(PatchSide { mode: 0o120_000, content: Some(target.clone().into_bytes()) }))
        }
        Some(WorkspaceEntry::File { size, mode }) => {
            let mode = if mode & 0o100 == 0 { 0o100_644 } else { 0o100_755 };
            let content = if *size > MAX_PATCH_BYTES {
                None
            } else {
                Some(contents.content(&change.path, when).await?)
            };
            Ok(Some(PatchSide { mode, content }))
        }
    }
}

impl PatchSide {
    fn is_link(&self) -> bool {
        self.mode == 0o120_000
    }

    fn text(&self) -> Option<&str> {
        let content = self.content.as_ref()?;
        if content.contains(&0) { None } else { std::str::from_utf8(content).ok() }
    }
}

fn written(path: &str, before: Option<&PatchSide>, now: Option<&PatchSide>) -> String {
    let (a, b) = (quoted(&format!("a/{path}")), quoted(&format!("b/{path}")));
    let mut text = bold(&format!("diff --git {a} {b}"));
    match (before, now) {
        (None, Some(now)) => text += &bold(&format!("new file mode {:o}", now.mode)),
        (Some(before), None) => text += &bold(&format!("deleted file mode {:o}", before.mode)),
        (Some(before), Some(now)) if before.mode != now.mode => {
            text += &bold(&format!("old mode {:o}", before.mode));
            text += &bold(&format!("new mode {:o}", now.mode));
        }
        (Some(_), Some(_)) | (None, None) => {}
    }
    let text_of =
        |side: Option<&PatchSide>| side.map_or(Some(String::new()), |side| side.text().map(str::to_owned));
    let from = before.map_or("/dev/null", |_| a.as_str());
    let to = now.map_or("/dev/null", |_| b.as_str());
    match (text_of(before), text_of(now)) {
        (Some(old), Some(new)) => {
            text + &hunks(&old, &new, &(bold(&format!("--- {from}")) + &bold(&format!("+++ {to}"))))
        }
        (None, _) | (_, None) => text + &bold(&format!("Binary files {from} and {to} differ")),
    }
}

fn bold(line: &str) -> String {
    paint(TerminalStyle::Bold, line) + "\n"
}

fn hunks(old: &str, new: &str, head: &str) -> String {
    let diff = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(old, new);
    let mut text = String::new();
    for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
        if text.is_empty() {
            text.push_str(head);
        }
        text += &paint(TerminalStyle::Cyan, &hunk.header().to_string());
        text.push('\n');
        for change in hunk.iter_changes() {
            line(&mut text, change.tag(), change.value());
        }
    }
    text
}

fn line(text: &mut String, tag: ChangeTag, value: &str) {
    let bare = value.strip_suffix('\n');
    let shown = bare.unwrap_or(value);
    let painted = match tag {
        ChangeTag::Equal => format!(" {shown}"),
        ChangeTag::Delete => paint(TerminalStyle::Red, &format!("-{shown}")),
        ChangeTag::Insert => paint(TerminalStyle::Green, &format!("+{shown}")),
    };
    // Writing to a string cannot fail.
    writeln!(text, "{painted}").ok();
    if bare.is_none() {
        text.push_str("\\ No newline at end of file\n");
    }
}

/// Quotes names that would break a line, as git does.
fn quoted(name: &str) -> String {
    if !name.chars().any(|c| c.is_control() || matches!(c, '"' | '\\')) {
        return name.to_owned();
    }
    let escaped: String = name
        .chars()
        .map(|c| match c {
            '"' | '\\' => format!("\\{c}"),
            c if c.is_ascii_control() => format!("\\{:03o}", u32::from(c)),
            c if c.is_control() => c.to_string().bytes().map(|byte| format!("\\{byte:03o}")).collect(),
            c => c.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(mode: u32, content: &[u8]) -> PatchSide {
        PatchSide { mode, content: Some(content.to_vec()) }
    }

    #[test]
    fn a_change_is_written_as_git_does() {
        let (before, now) = (side(0o100_644, b"a\nb\nc\n"), side(0o100_755, b"a\nB\nc"));
        let patch = "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n-b\n-c\n+B\n+c\n\\ No newline at end of file\n";
        assert_eq!(written("x", Some(&before), Some(&now)), patch);
    }

    #[test]
    fn binary_and_empty_files_have_no_lines() {
        let (binary, empty) = (side(0o100_644, b"a\0b"), side(0o100_644, b""));
        assert_eq!(
            written("x", None, Some(&binary)),
            "diff --git a/x b/x\nnew file mode 100644\nBinary files /dev/null and b/x differ\n"
        );
        assert_eq!(written("x", Some(&empty), None), "diff --git a/x b/x\ndeleted file mode 100644\n");
    }

    #[test]
    fn a_name_cannot_forge_a_line() {
        assert_eq!(quoted("a/b\n+++ c\"\\"), "\"a/b\\012+++ c\\\"\\\\\"");
        assert_eq!(quoted("a/ü ö"), "a/ü ö");
    }
}
