//! Opens a repository. It checks the directory and the key before it changes anything.

use super::describe_error;
use crate::{
    api::{CliError, Result},
    args::RepositoryArgs,
    settings,
};
use ash_model::FailureKind;
use ash_snapshot::{DiskWriter, EncryptionKey, Repo, RepoLock, RepoLockMode, TreeId};
use std::{
    collections::HashSet,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::Arc,
};

pub(super) struct OpenRepository {
    pub(super) repo: Arc<Repo>,
    pub(super) dir: PathBuf,
    pub(super) json: bool,
    sealed: bool,
}

/// Behaviour if there is no repository yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingRepositoryPolicy {
    Create,
    Refuse,
}

/// The contents of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RepositoryDirState {
    Nothing,
    Plain,
    Sealed,
    /// Not a repository: its files and permissions stay unchanged.
    ForeignFiles,
}

impl OpenRepository {
    pub(super) fn open(
        repository: &RepositoryArgs,
        missing: MissingRepositoryPolicy,
    ) -> Result<OpenRepository> {
        let dir = repository.dir.as_deref();
        let dir = dir.ok_or_else(|| CliError::invalid("say which repository with --repo DIR"))?;
        let key = repository.key_file.as_deref().map(read_key).transpose()?;
        let shown = dir.display();
        match (look(dir)?, &key, missing) {
            (RepositoryDirState::Nothing, _, MissingRepositoryPolicy::Create)
            | (RepositoryDirState::Plain, None, _)
            | (RepositoryDirState::Sealed, Some(_), _) => {}
            (RepositoryDirState::Nothing, _, MissingRepositoryPolicy::Refuse) => {
                let words = format!(
                    "there is no snapshot in {shown}; `ash snapshot save --repo {shown} PATH` makes the first"
                );
                return Err(CliError::new(FailureKind::NotFound, words));
            }
            (RepositoryDirState::ForeignFiles, _, _) => {
                let words = format!("{shown} holds other things than snapshots; choose a new directory");
                return Err(CliError::invalid(words));
            }
            (RepositoryDirState::Sealed, None, _) => {
                let words = format!("{shown} is sealed with a key; give it with --key-file");
                return Err(CliError::new(FailureKind::Unauthorized, words));
            }
            (RepositoryDirState::Plain, Some(_), _) => {
                let words = format!("{shown} is not sealed; leave --key-file out, or choose a new directory");
                return Err(CliError::invalid(words));
            }
        }
        let sealed = key.is_some();
        let repo = Repo::open_with(dir, key, DiskWriter::default())
            .map_err(|error| describe_error(&shown.to_string(), &error))?;
        let dir = super::absolute(dir)?;
        Ok(OpenRepository { repo: Arc::new(repo), dir, json: repository.json, sealed })
    }

    pub(super) fn lock(&self, how: RepoLockMode) -> Result<RepoLock> {
        Repo::lock(&self.dir, how).map_err(super::repository_error(self))
    }

    pub(super) fn forgotten(&self) -> Result<HashSet<TreeId>> {
        self.repo.discarded().map_err(super::repository_error(self))
    }

    /// Location of the index of a folder. An index has file names, so it is never stored in a sealed repository.
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

    /// Removes the indexes of deleted snapshots. They are never trusted, but they take space.
    pub(super) fn remove_indexes(&self, kept: &HashSet<TreeId>) {
        let Ok(entries) = fs::read_dir(self.dir.join("cache")) else { return };
        let indexes = entries.flatten().map(|entry| entry.path());
        for index in indexes.filter(|path| path.extension().is_some_and(|extension| extension == "index")) {
            if Repo::index_base(&index).is_none_or(|tree| !kept.contains(&tree)) {
                fs::remove_file(index).ok();
            }
        }
    }
}

fn private_cache() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    cache.or_else(|| settings::home().map(|home| home.join(".cache"))).map(|cache| cache.join("ash"))
}

fn read_key(path: &Path) -> Result<EncryptionKey> {
    let bytes = fs::read(path).map_err(CliError::from_io(&format!("cannot read {}", path.display())))?;
    EncryptionKey::parse(&bytes).ok_or_else(|| {
        let remedy = "make one with `head -c 32 /dev/urandom`";
        CliError::invalid(format!("{} holds no key of 32 bytes or 64 digits; {remedy}", path.display()))
    })
}

fn look(dir: &Path) -> Result<RepositoryDirState> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RepositoryDirState::Nothing),
        Err(error) => return Err(CliError::from_io(&format!("cannot open {}", dir.display()))(error)),
    };
    let mut found = RepositoryDirState::Nothing;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if Path::new(&name).extension().is_some_and(|extension| extension == "pack") {
            let sealed = Repo::is_sealed(dir).unwrap_or(false);
            return Ok(if sealed { RepositoryDirState::Sealed } else { RepositoryDirState::Plain });
        }
        let ours =
            ["lock", "cache", "forgotten", "inventory", "tombstones"].iter().any(|ours| name == **ours)
                || name.as_bytes().starts_with(b"new-");
        if !ours {
            found = RepositoryDirState::ForeignFiles;
        }
    }
    Ok(found)
}
