//! `ash snapshot restore`: writes a snapshot beside its target, and moves it there when it is complete.

use super::{
    FILES, OpenRepository, SESSION_ROOTS,
    list::{find, main_root},
    repository_error,
    save::{id, short},
    with_progress,
};
use crate::{
    api::{CliError, Result},
    terminal::{self, TerminalStyle, paint_err, plural},
};
use ash_model::FailureKind;
use ash_snapshot::{Folder, RepoLockMode, RestoreReport, RestoreTarget, SnapshotProgress, TreeId};
use serde_json::json;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub(super) fn run(place: &OpenRepository, given: &str, target: &Path) -> Result<u8> {
    let _at_work = place.lock(RepoLockMode::Shared)?;
    let tree = find(place, given)?;
    let (root, note) = main_root(place, &tree)?;
    let target = absolute_target(target)?;
    refuse_what_is_there(&target)?;
    let fresh = staging_path(&target)?;
    let what = format!("cannot write {}", target.display());
    let failed_here = || CliError::from_io(&what);
    fs::create_dir(&fresh).map_err(failed_here())?;
    let progress = SnapshotProgress::default();
    let write = || restore(place, &tree, root, (&fresh, &progress));
    let written = with_progress("restoring", note.map(|note| note.bytes), &progress, write);
    let written = written.and_then(|written| {
        fs::rename(&fresh, &target).map_err(failed_here())?;
        Ok(written)
    });
    let restored = written.inspect_err(|_| {
        // A partial tree is worse than none.
        Folder::erase(&fresh).ok();
    })?;
    if place.json {
        let RestoreReport { files, bytes, .. } = restored;
        terminal::json(&json!({ "id": id(&tree), "target": target, "files": files, "bytes": bytes }));
        return Ok(0);
    }
    let (files, size) = (plural(restored.files, "file"), terminal::format_bytes(restored.bytes));
    eprintln!(
        "{} {} in {}: {files}, {size}",
        paint_err(TerminalStyle::Green, "✓"),
        short(&tree),
        target.display()
    );
    Ok(0)
}

fn restore(
    place: &OpenRepository,
    tree: &TreeId,
    root: &str,
    to: (&Path, &SnapshotProgress),
) -> Result<RestoreReport> {
    let (fresh, progress) = to;
    let open = |path: &Path| Folder::open(path).map_err(repository_error(place));
    let folders: Vec<(&str, Folder)> = if root == FILES {
        vec![(FILES, open(fresh)?)]
    } else {
        let mut folders = Vec::new();
        for root in SESSION_ROOTS {
            let path = fresh.join(root);
            fs::create_dir(&path).map_err(CliError::from_io(&format!("cannot make {}", path.display())))?;
            folders.push((root, open(&path)?));
        }
        folders
    };
    let targets: Vec<RestoreTarget<'_>> =
        folders.iter().map(|(root, folder)| RestoreTarget { root, folder, owner: None }).collect();
    place.repo.restore_with_progress(tree, &targets, None, progress).map_err(repository_error(place))
}

/// An absolute path, whose last part may not exist yet.
fn absolute_target(target: &Path) -> Result<PathBuf> {
    match target.canonicalize() {
        Ok(target) => Ok(target),
        Err(_) => {
            let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
            let name = target.file_name().ok_or_else(|| CliError::invalid("the target has no name"))?;
            Ok(super::absolute(parent.unwrap_or(Path::new(".")))?.join(name))
        }
    }
}

fn refuse_what_is_there(target: &Path) -> Result<()> {
    let refused = |why: &str| {
        let words = format!("{} {why}; choose an empty or new folder", target.display());
        Err(CliError::new(FailureKind::Conflict, words))
    };
    match fs::read_dir(target) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return refused("is not empty");
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => refused("is not a folder"),
        Err(error) => Err(CliError::from_io(&format!("cannot open {}", target.display()))(error)),
    }
}

fn staging_path(target: &Path) -> Result<PathBuf> {
    let name = target.file_name().ok_or_else(|| CliError::invalid("/ cannot be the target"))?;
    Ok(target.with_file_name(format!(".{}.ash-{}", name.to_string_lossy(), std::process::id())))
}
