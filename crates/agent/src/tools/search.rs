//! Searches for a text in the files below a folder, in the order of names, so that repeated searches have equal results.

use super::files::{beginning, is_binary};
use crate::cancel::CancelToken;
use std::fs;
use std::path::{Path, PathBuf};

const MAX_MATCHES: usize = 200;
const MAX_LINE_CHARS: usize = 200;

pub(super) fn search(text: &str, below: &Path, cancel: &CancelToken) -> Result<String, String> {
    if text.is_empty() {
        return Err("cannot search for nothing".into());
    }
    fs::metadata(below).map_err(|error| format!("cannot search in {}: {error}", below.display()))?;
    let mut found = Vec::new();
    let mut ahead = vec![below.to_owned()];
    while let Some(path) = ahead.pop() {
        if cancel.is_cancelled() {
            return Err("[interrupted]".into());
        }
        if path == below && path.is_dir() || is_folder(&path) {
            ahead.extend(inside(&path));
        } else {
            look_into(&path, text, &mut found);
        }
        if found.len() > MAX_MATCHES {
            found.truncate(MAX_MATCHES);
            found.push(format!("[only the first {MAX_MATCHES} are shown]"));
            break;
        }
    }
    Ok(if found.is_empty() { format!("No file contains \"{text}\".") } else { found.join("\n") })
}

/// Does not follow links: they may form a cycle.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// Sorted in reverse, because the caller pops from the end. Unreadable folders count as empty.
fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let kept = entries.filter(|entry| entry.file_name() != ".git");
    let kept = kept.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_file()));
    let mut paths: Vec<PathBuf> = kept.map(|entry| entry.path()).collect();
    paths.sort_by(|a, b| b.cmp(a));
    paths
}

fn look_into(path: &Path, text: &str, found: &mut Vec<String>) {
    let Ok((bytes, _)) = beginning(path) else { return };
    if is_binary(&bytes) {
        return;
    }
    let content = String::from_utf8_lossy(&bytes);
    let shown = path.strip_prefix(".").unwrap_or(path).display();
    for (number, line) in content.lines().enumerate().filter(|(_, line)| line.contains(text)) {
        let line: String = line.trim().chars().take(MAX_LINE_CHARS).collect();
        found.push(format!("{shown}:{}: {line}", number + 1));
        if found.len() > MAX_MATCHES {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    #[test]
    fn finds_lines_in_the_order_of_names_and_skips_binary_files() {
        let folder = tempdir().expect("folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["b", ".git", "loop"] {
            fs::create_dir(at(name)).expect("folder");
        }
        std::os::unix::fs::symlink("..", at("loop/up")).expect("link");
        fs::write(at("c"), "no\n  the needle \n").expect("write");
        fs::write(at("b/x"), "needle\n").expect("write");
        fs::write(at("a.bin"), b"\0needle").expect("write");
        fs::write(at(".git/config"), "needle").expect("write");
        let found = search("needle", folder.path(), &CancelToken::new().expect("eventfd")).expect("found");
        let expected = [
            at("b/x").display().to_string() + ":1: needle",
            at("c").display().to_string() + ":2: the needle",
        ];
        assert_eq!(found, expected.join("\n"));
    }

    #[test]
    fn many_matches_are_cut() {
        let folder = tempdir().expect("folder");
        fs::write(folder.path().join("f"), "x\n".repeat(1000)).expect("write");
        let found = search("x", folder.path(), &CancelToken::new().expect("eventfd")).expect("found");
        assert_eq!(found.lines().count(), MAX_MATCHES + 1);
    }
}
