//! The programs that capture the same state: our engine, and the tools that people use.

use crate::{
    meter::{self, Cost},
    workspace::OWNER,
};
use anyhow::{Context, Result, bail};
use ash_snapshot::{
    CaptureRequest, CaptureRoot, ChangeTracking, FileOwner, FilesystemWatch, Folder, Repo, RestoreTarget,
    TouchedPaths, TrackedFolder, TreeId,
};
use std::{
    collections::HashSet,
    ffi::OsStr,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Contender {
    Ours,
    /// Our engine, with the kernel's list of changed paths.
    Tracked,
    /// `ash snapshot save`.
    Command,
    Cp,
    Tar,
    Rsync,
    Git,
    Restic,
    Borg,
}

impl Contender {
    pub(crate) const PEERS: [Contender; 6] =
        [Contender::Cp, Contender::Tar, Contender::Rsync, Contender::Git, Contender::Restic, Contender::Borg];

    /// Contenders that store equal content once.
    pub(crate) const DEDUPLICATING: [Contender; 3] = [Contender::Git, Contender::Restic, Contender::Borg];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Contender::Ours => "ours",
            Contender::Tracked => "ours, tracked",
            Contender::Command => "ours, command",
            Contender::Cp => "cp -a",
            Contender::Tar => "tar | zstd -1 -T2",
            Contender::Rsync => "rsync --link-dest",
            Contender::Git => "git add, commit",
            Contender::Restic => "restic backup",
            Contender::Borg => "borg create",
        }
    }
}

/// Programs that the benchmark needs, with the Debian package of each.
const TOOLS: [(&str, &str); 8] = [
    ("cp", "coreutils"),
    ("tar", "tar"),
    ("zstd", "zstd"),
    ("rsync", "rsync"),
    ("git", "git"),
    ("restic", "restic"),
    ("borg", "borgbackup"),
    ("mkfs.ext4", "e2fsprogs"),
];

/// Fails when a tool is missing: without it the ratios would claim less than they seem to.
pub(crate) fn all_there() -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect();
    let missing: Vec<&str> = TOOLS
        .iter()
        .filter(|(tool, _)| !dirs.iter().any(|dir| dir.join(tool).exists()))
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        bail!("missing: `apt-get install --no-install-recommends {}`", missing.join(" "));
    }
    Ok(())
}

/// The repositories of all contenders for one workspace.
pub(crate) struct Field {
    state: PathBuf,
    repos: PathBuf,
    pub(crate) ours: Ours,
    ash: Option<PathBuf>,
}

impl Field {
    pub(crate) fn open(state: &Path, repos: &Path, ash: Option<&Path>) -> Result<Field> {
        fs::create_dir(repos)?;
        let field = Field {
            state: state.to_owned(),
            repos: repos.to_owned(),
            ours: Ours::open(state, &repos.join("ours"))?,
            ash: ash.map(Path::to_owned),
        };
        for contender in Contender::PEERS {
            fs::create_dir(field.place(contender))?;
        }
        field.prepare(Contender::Git, "git init -q \"$2\"", &[])?;
        field.prepare(Contender::Restic, "restic init -q", &[])?;
        field.prepare(Contender::Borg, "borg init -e none", &[])?;
        Ok(field)
    }

    fn prepare(&self, contender: Contender, line: &str, words: &[&OsStr]) -> Result<()> {
        self.shell(contender, line, words).map(drop)
    }

    fn place(&self, contender: Contender) -> PathBuf {
        let name = match contender {
            Contender::Ours | Contender::Tracked => "ours",
            Contender::Command => "command",
            Contender::Cp => "cp",
            Contender::Tar => "tar",
            Contender::Rsync => "rsync",
            Contender::Git => "git",
            Contender::Restic => "restic",
            Contender::Borg => "borg",
        };
        self.repos.join(name)
    }

    /// Runs a shell line: `$1` is the state, `$2` the contender's repository, and the words follow.
    fn shell(&self, contender: Contender, line: &str, words: &[&OsStr]) -> Result<Cost> {
        let place = self.place(contender);
        let mut command = Command::new("sh");
        command.args(["-ec", line, "sh"]).arg(&self.state).arg(&place).args(words);
        command.current_dir(&self.repos).env("HOME", &self.repos).env("LC_ALL", "C");
        command.env("GIT_DIR", place.join(".git")).env("GIT_WORK_TREE", &self.state);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        command.env("RESTIC_REPOSITORY", place.join("repo")).env("RESTIC_PASSWORD", "bench");
        // Restic's caches do not count as part of its repository.
        command.env("RESTIC_CACHE_DIR", self.repos.join("cache-restic"));
        command.env("BORG_REPO", place.join("repo")).env("BORG_BASE_DIR", self.repos.join("cache-borg"));
        command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
        meter::command(&mut command)
    }

    /// Captures the current state; `turn` is the number of the turn.
    pub(crate) fn capture(&mut self, contender: Contender, turn: usize) -> Result<Cost> {
        let (now, before) = (turn.to_string(), turn.saturating_sub(1).to_string());
        let words = [OsStr::new(&now), OsStr::new(&before)];
        let line = match contender {
            Contender::Ours | Contender::Tracked => return self.ours.capture(),
            Contender::Command => {
                let ash = self.ash.clone().context("no --ash")?;
                let words = [ash.as_os_str()];
                return self.shell(contender, "exec \"$3\" snapshot save --repo \"$2\" \"$1\"", &words);
            }
            Contender::Cp => "cp -a \"$1\" \"$2/$3\"",
            Contender::Tar => "tar -C \"$1\" -cf - . | zstd -q -1 -T2 -o \"$2/$3.tar.zst\"",
            Contender::Rsync if turn == 0 => "rsync -a \"$1/\" \"$2/$3/\"",
            Contender::Rsync => "rsync -a --link-dest=\"../$4\" \"$1/\" \"$2/$3/\"",
            Contender::Git => {
                "git add -A && git -c user.name=b -c user.email=b@b -c gc.auto=0 commit -q -m \"$3\""
            }
            Contender::Restic => "restic backup -q \"$1\"",
            Contender::Borg => "borg create \"::$3\" \"$1\"",
        };
        self.shell(contender, line, &words)
    }

    /// Removes the whole copies that no later turn needs.
    pub(crate) fn forget_copies(&self, turn: usize) -> Result<()> {
        let place = |contender, name: String| self.place(contender).join(name);
        fs::remove_dir_all(place(Contender::Cp, turn.to_string()))?;
        Ok(fs::remove_file(place(Contender::Tar, format!("{turn}.tar.zst")))?)
    }

    /// The sum of apparent sizes; a file with several names counts once.
    pub(crate) fn size(&self, contender: Contender) -> Result<u64> {
        let mut seen = HashSet::new();
        size(&self.place(contender), &mut seen)
    }

    /// Writes the newest state to another place.
    pub(crate) fn restore(&self, contender: Contender, target: &Path, turn: usize) -> Result<Cost> {
        let now = turn.to_string();
        let words = [target.as_os_str(), OsStr::new(&now)];
        let line = match contender {
            Contender::Ours => return self.ours.restore(target).map(|(_, cost)| cost),
            Contender::Cp => "cp -a \"$1/.\" \"$3\"",
            Contender::Tar => "zstd -q -d -c \"$2/$4.tar.zst\" | tar -C \"$3\" -xf -",
            Contender::Restic => "restic restore -q latest --target \"$3\"",
            Contender::Tracked | Contender::Command | Contender::Rsync | Contender::Git | Contender::Borg => {
                bail!("{} is not restored here", contender.name())
            }
        };
        self.shell(contender, line, &words)
    }
}

fn size(path: &Path, seen: &mut HashSet<u64>) -> Result<u64> {
    let is = path.symlink_metadata()?;
    if is.is_dir() {
        return fs::read_dir(path)?.map(|entry| size(&entry?.path(), seen)).sum();
    }
    Ok(if is.nlink() == 1 || seen.insert(is.ino()) { is.len() } else { 0 })
}

/// The engine in this process, as a server uses it.
pub(crate) struct Ours {
    repo: Repo,
    state: PathBuf,
    index: PathBuf,
    tree: Option<TreeId>,
    followed: Option<(FilesystemWatch, TrackedFolder)>,
}

impl Ours {
    pub(crate) fn open(state: &Path, place: &Path) -> Result<Ours> {
        fs::create_dir_all(place)?;
        let repo = Repo::open(&place.join("repo"))?;
        Ok(Ours { repo, state: state.to_owned(), index: place.join("index"), tree: None, followed: None })
    }

    /// Opens the engine on a restored copy, from which it continues with that copy's index.
    pub(crate) fn elsewhere(&self, state: &Path, index: PathBuf) -> Result<Ours> {
        let repo = Repo::open(&self.place().join("repo"))?;
        Ok(Ours { repo, state: state.to_owned(), index, tree: self.tree.clone(), followed: None })
    }

    /// From here on, captures visit only touched paths.
    pub(crate) fn follow(&mut self) -> Result<()> {
        let watch = FilesystemWatch::start(&self.state)?;
        let tracked = watch.track(&Folder::open(&self.state)?)?;
        self.capture()?;
        self.followed = Some((watch, tracked));
        Ok(())
    }

    pub(crate) fn follow_no_more(&mut self) {
        self.followed = None;
    }

    pub(crate) fn place(&self) -> &Path {
        self.index.parent().unwrap_or(&self.index)
    }

    pub(crate) fn index_size(&self) -> Result<u64> {
        Ok(self.index.metadata()?.len())
    }

    pub(crate) fn tree(&self) -> Option<&TreeId> {
        self.tree.as_ref()
    }

    pub(crate) fn go_on_from(&mut self, tree: TreeId) {
        self.tree = Some(tree);
    }

    pub(crate) fn capture(&mut self) -> Result<Cost> {
        let (taken, cost) = meter::ours(|| {
            let folders = self.folders(&self.state)?;
            let roots = folders.each_ref().map(|(name, folder)| CaptureRoot { name, folder });
            let touched = self.followed.as_ref().map(|(_, tracked)| tracked.take_changes());
            let tracking = touched.as_ref().map_or(ChangeTracking::None, ChangeTracking::Trust);
            let (base, index) = (self.tree.as_ref(), Some(self.index.as_path()));
            let taken =
                self.repo.capture(&CaptureRequest { base, index, tracking, ..CaptureRequest::of(&roots) })?;
            if touched == Some(TouchedPaths::Everything) {
                bail!("so much was touched that everything was looked at");
            }
            Ok(taken)
        })?;
        if let [skipped, ..] = &taken.skipped[..] {
            bail!("skipped {}: {}", String::from_utf8_lossy(&skipped.path), skipped.why);
        }
        self.tree = Some(taken.tree);
        Ok(cost)
    }

    /// Also returns the path of the restored tree's index.
    pub(crate) fn restore(&self, target: &Path) -> Result<(PathBuf, Cost)> {
        let tree = self.tree.as_ref().context("nothing was captured")?;
        let index = target.join("index");
        let ((), cost) = meter::ours(|| {
            for name in ["workspace", "home"] {
                fs::create_dir(target.join(name))?;
            }
            let folders = self.folders(target)?;
            let owner = rustix::process::geteuid().is_root().then_some(FileOwner { uid: OWNER, gid: OWNER });
            let targets = folders.each_ref().map(|(root, folder)| RestoreTarget { root, folder, owner });
            self.repo.restore(tree, &targets, Some(&index))?;
            Ok(())
        })?;
        Ok((index, cost))
    }

    fn folders(&self, state: &Path) -> Result<[(&'static str, Folder); 2]> {
        let open = |name: &'static str| anyhow::Ok((name, Folder::open(&state.join(name))?));
        Ok([open("workspace")?, open("home")?])
    }
}
