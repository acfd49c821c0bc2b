//! Applies the .gitignore files of a workspace, through the handle from which the workspace is read.

use ash_session::{FoundFile, WorkspaceFiles};
use ash_snapshot::RelPath;
use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use std::{
    collections::HashMap,
    ffi::OsStr,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Maximum bytes of all these files: the agent writes them, and the server holds them in memory.
const MAX_GITIGNORE_BYTES: u64 = 256 << 10;

pub(crate) struct GitignoreFilter<'a> {
    place: &'a WorkspaceFiles,
    /// By folder, read on first use.
    rules: HashMap<PathBuf, Gitignore>,
    left: u64,
}

impl GitignoreFilter<'_> {
    pub(crate) fn of(place: &WorkspaceFiles) -> GitignoreFilter<'_> {
        GitignoreFilter { place, rules: HashMap::new(), left: MAX_GITIGNORE_BYTES }
    }

    /// Whether a file, or a folder above it, is ignored.
    pub(crate) fn ignores(&mut self, file: &[u8]) -> bool {
        let file = Path::new(OsStr::from_bytes(file));
        let mut way: Vec<&Path> = file.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        way.reverse();
        way.iter().any(|path| self.ignores_path(path, *path != file))
    }

    /// The innermost .gitignore that matches decides.
    fn ignores_path(&mut self, path: &Path, is_dir: bool) -> bool {
        for folder in path.ancestors().skip(1) {
            match self.rules_of(folder).matched(path, is_dir) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
        }
        false
    }

    fn rules_of(&mut self, folder: &Path) -> &Gitignore {
        let GitignoreFilter { place, rules, left } = self;
        rules.entry(folder.to_owned()).or_insert_with(|| read(place, folder, left))
    }
}

/// Ignores invalid lines, as git does.
fn read(place: &WorkspaceFiles, folder: &Path, left: &mut u64) -> Gitignore {
    let mut builder = GitignoreBuilder::new(folder);
    let path = RelPath::from_bytes(folder.join(".gitignore").as_os_str().as_bytes());
    if let Some(Ok(FoundFile::File { bytes, .. })) = path.ok().map(|path| place.open(&path)) {
        let mut text = Vec::new();
        bytes.take(*left).read_to_end(&mut text).ok();
        *left -= text.len() as u64;
        for line in String::from_utf8_lossy(&text).lines() {
            builder.add_line(None, line).ok();
        }
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}
