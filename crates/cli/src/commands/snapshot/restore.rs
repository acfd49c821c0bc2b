//! Writing a snapshot into a folder: beside its place, and put there when it is whole.

use super::{
    FILES, OF_A_SESSION, Place, failed,
    listing::{find, main_root},
    save::{id, short},
    watched,
};
use crate::{
    api::{Failure, Result},
    out::{self, Paint, paint_err, plural},
};
use ash_model::Kind;
use ash_snapshot::{Folder, Lock, Progress, Restored, Target, TreeId};
use serde_json::json;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub(super) fn run(place: &Place, given: &str, target: &Path) -> Result<u8> {
    let _at_work = place.lock(Lock::Shared)?;
    let tree = find(place, given)?;
    let (root, note) = main_root(place, &tree)?;
    let target = whole(target)?;
    refuse_what_is_there(&target)?;
    let fresh = beside(&target)?;
    let what = format!("cannot write {}", target.display());
    let failed_here = || Failure::local(&what);
    fs::create_dir(&fresh).map_err(failed_here())?;
    let progress = Progress::default();
    let write = || restore(place, &tree, root, (&fresh, &progress));
    let written = watched("restoring", note.map(|note| note.bytes), &progress, write);
    let written = written.and_then(|written| {
        fs::rename(&fresh, &target).map_err(failed_here())?;
        Ok(written)
    });
    let restored = written.inspect_err(|_| {
        // Half a tree is worse than none.
        Folder::erase(&fresh).ok();
    })?;
    if place.json {
        let Restored { files, bytes, .. } = restored;
        out::json(&json!({ "id": id(&tree), "target": target, "files": files, "bytes": bytes }));
        return Ok(0);
    }
    let (files, size) = (plural(restored.files, "file"), out::size(restored.bytes));
    eprintln!("{} {} in {}: {files}, {size}", paint_err(Paint::Green, "✓"), short(&tree), target.display());
    Ok(0)
}

fn restore(place: &Place, tree: &TreeId, root: &str, to: (&Path, &Progress)) -> Result<Restored> {
    let (fresh, progress) = to;
    let open = |path: &Path| Folder::open(path).map_err(failed(place));
    let folders: Vec<(&str, Folder)> = if root == FILES {
        vec![(FILES, open(fresh)?)]
    } else {
        let mut folders = Vec::new();
        for root in OF_A_SESSION {
            let path = fresh.join(root);
            fs::create_dir(&path).map_err(Failure::local(&format!("cannot make {}", path.display())))?;
            folders.push((root, open(&path)?));
        }
        folders
    };
    let targets: Vec<Target<'_>> =
        folders.iter().map(|(root, folder)| Target { root, folder, owner: None }).collect();
    place.repo.restore_watched(tree, &targets, None, progress).map_err(failed(place))
}

/// An absolute path, whose last part may not be there yet.
fn whole(target: &Path) -> Result<PathBuf> {
    match target.canonicalize() {
        Ok(target) => Ok(target),
        Err(_) => {
            let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
            let name = target.file_name().ok_or_else(|| Failure::invalid("the target has no name"))?;
            Ok(super::absolute(parent.unwrap_or(Path::new(".")))?.join(name))
        }
    }
}

fn refuse_what_is_there(target: &Path) -> Result<()> {
    let refused = |why: &str| {
        let words = format!("{} {why}; choose an empty or new folder", target.display());
        Err(Failure::new(Kind::Conflict, words))
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
        Err(error) => Err(Failure::local(&format!("cannot open {}", target.display()))(error)),
    }
}

fn beside(target: &Path) -> Result<PathBuf> {
    let name = target.file_name().ok_or_else(|| Failure::invalid("/ cannot be the target"))?;
    Ok(target.with_file_name(format!(".{}.ash-{}", name.to_string_lossy(), std::process::id())))
}
