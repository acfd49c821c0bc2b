//! Opening a repository: that it is one, and that the key fits, is known before anything is done.

use super::explained;
use crate::{
    api::{Failure, Result},
    args::Repository,
    settings,
};
use ash_model::Kind;
use ash_snapshot::{Disk, Key, Lock, Locked, Repo, TreeId};
use std::{
    collections::HashSet,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::Arc,
};

pub(super) struct Place {
    pub(super) repo: Arc<Repo>,
    pub(super) dir: PathBuf,
    pub(super) json: bool,
    sealed: bool,
}

/// What to do where there is no repository yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Make,
    Refuse,
}

/// What lies in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Plain,
    Sealed,
    /// Something that is no repository: it is left alone, its permissions too.
    Others,
}

impl Place {
    pub(super) fn open(repository: &Repository, missing: Missing) -> Result<Place> {
        let dir = repository.dir.as_deref();
        let dir = dir.ok_or_else(|| Failure::invalid("say which repository with --repo DIR"))?;
        let key = repository.key_file.as_deref().map(read_key).transpose()?;
        let shown = dir.display();
        match (look(dir)?, &key, missing) {
            (Found::Nothing, _, Missing::Make) | (Found::Plain, None, _) | (Found::Sealed, Some(_), _) => {}
            (Found::Nothing, _, Missing::Refuse) => {
                let words = format!(
                    "there is no snapshot in {shown}; `ash snapshot save --repo {shown} PATH` makes the first"
                );
                return Err(Failure::new(Kind::NotFound, words));
            }
            (Found::Others, _, _) => {
                let words = format!("{shown} holds other things than snapshots; choose a new directory");
                return Err(Failure::invalid(words));
            }
            (Found::Sealed, None, _) => {
                let words = format!("{shown} is sealed with a key; give it with --key-file");
                return Err(Failure::new(Kind::Unauthorized, words));
            }
            (Found::Plain, Some(_), _) => {
                let words = format!("{shown} is not sealed; leave --key-file out, or choose a new directory");
                return Err(Failure::invalid(words));
            }
        }
        let sealed = key.is_some();
        let repo = Repo::open_with(dir, key, Disk::default())
            .map_err(|error| explained(&shown.to_string(), &error))?;
        let dir = super::absolute(dir)?;
        Ok(Place { repo: Arc::new(repo), dir, json: repository.json, sealed })
    }

    pub(super) fn lock(&self, how: Lock) -> Result<Locked> {
        Repo::lock(&self.dir, how).map_err(super::failed(self))
    }

    pub(super) fn forgotten(&self) -> Result<HashSet<TreeId>> {
        self.repo.forgotten().map_err(super::failed(self))
    }

    /// Where is kept what a folder looked like. It tells names, so that it does not lie in a sealed repository.
    pub(super) fn index(&self, folder: &Path) -> Option<PathBuf> {
        let name = |path: &Path| blake3::hash(path.as_os_str().as_bytes()).to_hex()[..32].to_owned();
        let (dir, name) = if self.sealed {
            (private_cache()?, format!("{}-{}", name(&self.dir), name(folder)))
        } else {
            (self.dir.join("cache"), name(folder))
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).ok()?;
        Some(dir.join(format!("{name}.index")))
    }

    /// Indexes of snapshots that are no more. Nobody would believe them, but they take space.
    pub(super) fn remove_indexes(&self, kept: &HashSet<TreeId>) {
        let Ok(entries) = fs::read_dir(self.dir.join("cache")) else { return };
        let indexes = entries.flatten().map(|entry| entry.path());
        for index in indexes.filter(|path| path.extension().is_some_and(|extension| extension == "index")) {
            if Repo::remembered(&index).is_none_or(|tree| !kept.contains(&tree)) {
                fs::remove_file(index).ok();
            }
        }
    }
}

fn private_cache() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    cache.or_else(|| settings::home().map(|home| home.join(".cache"))).map(|cache| cache.join("ash"))
}

fn read_key(path: &Path) -> Result<Key> {
    let bytes = fs::read(path).map_err(Failure::local(&format!("cannot read {}", path.display())))?;
    Key::parse(&bytes).ok_or_else(|| {
        let remedy = "make one with `head -c 32 /dev/urandom`";
        Failure::invalid(format!("{} holds no key of 32 bytes or 64 digits; {remedy}", path.display()))
    })
}

fn look(dir: &Path) -> Result<Found> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(Failure::local(&format!("cannot open {}", dir.display()))(error)),
    };
    let mut found = Found::Nothing;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if Path::new(&name).extension().is_some_and(|extension| extension == "pack") {
            let sealed = Repo::is_sealed(dir).unwrap_or(false);
            return Ok(if sealed { Found::Sealed } else { Found::Plain });
        }
        let ours =
            ["lock", "cache", "forgotten", "inventory", "tombstones"].iter().any(|ours| name == **ours)
                || name.as_bytes().starts_with(b"new-");
        if !ours {
            found = Found::Others;
        }
    }
    Ok(found)
}
