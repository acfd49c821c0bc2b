//! `ash snapshot save`: saves a folder.

use super::{FILES, OpenRepository, repository_error, with_progress};
use crate::{
    api::Result,
    terminal::{self, TerminalStyle, paint_err, plural},
};
use ash_model::Timestamp;
use ash_snapshot::{
    CaptureRequest, CaptureRoot, CapturedSnapshot, Folder, RepoLockMode, SkipReason, SnapshotProgress, TreeId,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{fs, io::IsTerminal, os::unix::ffi::OsStrExt, path::Path};

/// The name of the note that is embedded in a snapshot.
pub(super) const NOTE: &str = "snapshot";
/// Number of digits of an id to show.
const SHORT: usize = 10;
/// Number of skipped files to name.
const NAMED: usize = 10;

/// The metadata in a snapshot. A stored format: see `docs/formats.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FolderSnapshotNote {
    pub(super) path: String,
    pub(super) host: String,
    pub(super) at: Timestamp,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// The part of a tree id that only this snapshot has: the id of its pack.
pub(super) fn id(tree: &TreeId) -> &str {
    &tree.as_str()[64..]
}

pub(super) fn short(tree: &TreeId) -> &str {
    &id(tree)[..SHORT]
}

pub(super) fn run(place: &OpenRepository, path: &Path) -> Result<u8> {
    let path = super::absolute(path)?;
    let _at_work = place.lock(RepoLockMode::Shared)?;
    let folder = Folder::open(&path).map_err(repository_error(place))?;
    let index = place.index(&path);
    // Two captures of one folder would write the same index; the second one uses none.
    let held = index.as_deref().and_then(lock_index);
    let index = index.filter(|_| held.is_some());
    let forgotten = place.forgotten()?;
    let base = index.as_deref().and_then(ash_snapshot::Repo::index_base);
    let base = base.filter(|base| !forgotten.contains(base) && place.repo.contains(base));
    // A repository that saves itself would never finish.
    let within = place.dir.strip_prefix(&path).ok().map(|within| within.as_os_str().as_bytes().to_vec());
    let exclude = |_: &[u8], entry: &[u8]| within.as_deref() == Some(entry);
    let roots = [CaptureRoot { name: FILES, folder: &folder }];
    let progress = SnapshotProgress::default();
    let capture = CaptureRequest {
        exclude: &exclude,
        base: base.as_ref(),
        index: index.as_deref(),
        progress: std::io::stderr().is_terminal().then_some(&progress),
        ..CaptureRequest::of(&roots)
    };
    let note = |files, bytes| note(&path, files, bytes);
    let taken = with_progress("saving", None, &progress, || {
        place.repo.capture_with_summary(&capture, Some((NOTE, &note)))
    });
    Ok(report(place, &taken.map_err(repository_error(place))?, base.as_ref()))
}

fn note(path: &Path, files: u64, bytes: u64) -> Vec<u8> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let path = path.to_string_lossy().into_owned();
    let note = FolderSnapshotNote { path, host, at: Timestamp::now(), files, bytes };
    serde_json::to_vec(&note).expect("plain words and numbers")
}

fn lock_index(index: &Path) -> Option<fs::File> {
    let lock = fs::File::create(index.with_extension("lock")).ok()?;
    lock.try_lock().ok().map(|()| lock)
}

fn report(place: &OpenRepository, taken: &CapturedSnapshot, base: Option<&TreeId>) -> u8 {
    let unchanged = base == Some(&taken.tree);
    let lost: Vec<_> = taken.skipped.iter().filter(|skipped| is_loss(&skipped.why)).collect();
    if place.json {
        let left_out = |skipped: &ash_snapshot::SkippedEntry| json!({ "path": inside(&skipped.path), "why": skipped.why.to_string() });
        terminal::json(&json!({
            "id": id(&taken.tree), "tree": taken.tree.as_str(), "unchanged": unchanged, "files": taken.files,
            "bytes": taken.bytes, "written": taken.written,
            "skipped": taken.skipped.iter().map(left_out).collect::<Vec<_>>(),
            "unsettled": taken.unsettled.iter().map(|path| inside(path)).collect::<Vec<_>>(),
        }));
        return u8::from(!lost.is_empty());
    }
    println!("{}", short(&taken.tree));
    let (files, size) = (plural(taken.files, "file"), terminal::format_bytes(taken.bytes));
    let what = if unchanged {
        format!("nothing changed; {files}, {size} are as in {}", short(&taken.tree))
    } else {
        format!("{files}, {size}; {} new", terminal::format_bytes(taken.written))
    };
    eprintln!("{} {what}", paint_err(TerminalStyle::Green, "✓"));
    for skipped in lost.iter().take(NAMED) {
        let path = inside(&skipped.path);
        eprintln!("{} {path}: {}", paint_err(TerminalStyle::Yellow, "!"), skipped.why);
    }
    if lost.len() > NAMED {
        eprintln!(
            "{} and {} more; --json names them",
            paint_err(TerminalStyle::Yellow, "!"),
            lost.len() - NAMED
        );
    }
    // Not zero if files are missing, so that a script notices.
    u8::from(!lost.is_empty())
}

/// Sockets and the like are never saved. A file that could not be read is a loss.
fn is_loss(why: &SkipReason) -> bool {
    match why {
        SkipReason::Unreadable(_) => true,
        SkipReason::Excluded
        | SkipReason::Socket
        | SkipReason::Fifo
        | SkipReason::Device
        | SkipReason::Mount
        | SkipReason::Gone => false,
    }
}

/// The path without the name of the root.
fn inside(path: &[u8]) -> String {
    let path = path.strip_prefix(FILES.as_bytes()).and_then(|path| path.strip_prefix(b"/")).unwrap_or(path);
    String::from_utf8_lossy(path).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_written_and_read_as_in_the_first_version() {
        let text = r#"{"path":"/home/me/x","host":"h","at":"2025-11-15T22:00:00.007Z","files":2,"bytes":30}"#;
        let note: FolderSnapshotNote = serde_json::from_str(text).expect("a note");
        assert_eq!(serde_json::to_string(&note).expect("plain"), text);
    }
}
