//! Claude Code's program on this machine: where it is, and which version it reports.
//!
//! The program runs outside of a sandbox to report its version, so it never gets more rights than its owner has: a
//! server that runs as root runs it as the user who could have replaced it.

use crate::{Error, Result};
use ash_driver::{ClaudeVersion, OLDEST_CLAUDE};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{io::AsyncReadExt, process::Command, sync::Mutex};

/// Long enough for a program that only prints its version.
const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_OUTPUT: u64 = 4096;
/// Where `env` finds Node if the program is a script.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub struct ClaudeProgram {
    path: PathBuf,
    /// The last file that was asked, and its answer. Concurrent callers wait for the same answer.
    answer: Mutex<Option<(FileIdentity, Option<ClaudeVersion>)>>,
}

/// Changes when another release replaces the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileIdentity {
    fn of(path: &Path) -> io::Result<FileIdentity> {
        let file = fs::metadata(path)?;
        Ok(FileIdentity {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

impl ClaudeProgram {
    pub fn new(path: PathBuf) -> ClaudeProgram {
        ClaudeProgram { path, answer: Mutex::default() }
    }

    /// The path, unless the program was removed since the server started.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.exists().then_some(&self.path)
    }

    /// The program's version, if it reports one. A program that reports none is accepted.
    pub(crate) async fn supported(&self) -> Result<Option<ClaudeVersion>> {
        match self.version().await {
            Some(found) if found < OLDEST_CLAUDE => Err(Error::OldClaude { found, path: self.path.clone() }),
            version => Ok(version),
        }
    }

    async fn version(&self) -> Option<ClaudeVersion> {
        let identity = FileIdentity::of(&self.path).ok()?;
        let mut answer = self.answer.lock().await;
        if let Some((_, version)) = answer.filter(|(known, _)| *known == identity) {
            return version;
        }
        let version = ask(&self.path).await.inspect_err(|why| {
            tracing::warn!(program = %self.path.display(), %why, "Claude Code reports no version: the server treats it as the newest");
        });
        let version = version.ok();
        *answer = Some((identity, version));
        version
    }
}

async fn ask(program: &Path) -> std::result::Result<ClaudeVersion, String> {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", "/nonexistent")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    let owners = PathOwner::along(program).map_err(|error| error.to_string())?;
    match (runs_as(&owners), rustix::process::geteuid().as_raw()) {
        (None, _) => return Err("more than one user could replace it".to_owned()),
        (Some(PathOwner { uid, gid, .. }), 0) => {
            command.uid(uid).gid(gid);
        }
        (Some(owner), own) if owner.uid == own || owner.uid == 0 => {}
        (Some(owner), _) => return Err(format!("it belongs to uid {}", owner.uid)),
    }
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let group = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()));
    let mut said = Vec::new();
    let read = async {
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MAX_OUTPUT).read_to_end(&mut said).await?;
        }
        child.wait().await
    };
    let ended = tokio::time::timeout(TIMEOUT, read).await;
    // Its child processes end with it.
    if let Some(group) = group.filter(|_| !matches!(ended, Ok(Ok(_)))) {
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
    }
    match ended {
        Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(status)) => {
            let words = String::from_utf8_lossy(&said);
            words.parse().map_err(|()| format!("{status}, and no version in what it printed"))
        }
    }
}

/// The owner of a file, or of a directory on the way to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PathOwner {
    uid: u32,
    gid: u32,
    /// Users other than the owner can replace entries in it.
    open: bool,
}

impl PathOwner {
    fn along(path: &Path) -> io::Result<Vec<PathOwner>> {
        let of = |path: &Path| {
            let at = fs::metadata(path)?;
            let sticky = at.is_dir() && at.mode() & 0o1000 != 0;
            Ok(PathOwner { uid: at.uid(), gid: at.gid(), open: at.mode() & 0o022 != 0 && !sticky })
        };
        path.ancestors().map(of).collect()
    }
}

/// The only user besides root who could replace the program. The program runs with that user's rights.
fn runs_as(owners: &[PathOwner]) -> Option<PathOwner> {
    if owners.iter().any(|owner| owner.open) {
        return None;
    }
    let mut users = owners.iter().filter(|owner| owner.uid != 0);
    let Some(first) = users.next() else { return owners.first().copied() };
    users.all(|other| other.uid == first.uid).then_some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn program(dir: &Path, text: &str) -> ClaudeProgram {
        let path = dir.join("claude");
        // A new file each time, because a running program cannot be written to.
        fs::write(dir.join("new"), format!("#!/bin/sh\n{text}\n")).expect("written");
        fs::set_permissions(dir.join("new"), fs::Permissions::from_mode(0o755)).expect("made to run");
        fs::rename(dir.join("new"), &path).expect("renamed");
        ClaudeProgram::new(path)
    }

    #[tokio::test]
    async fn a_program_that_is_too_old_is_named_with_the_oldest_that_works() {
        let dir = tempfile::tempdir().expect("a folder");
        let old = program(dir.path(), "echo '2.0.14 (Claude Code)'");
        let refused = old.supported().await.expect_err("too old").to_string();
        let begins = format!("Claude Code 2.0.14 at {} is too old for ash", old.path.display());
        assert!(refused.starts_with(&begins), "{refused}");
        assert!(refused.contains(&OLDEST_CLAUDE.to_string()), "{refused}");
        // A replaced program is asked again at once.
        program(dir.path(), &format!("echo '{OLDEST_CLAUDE} (Claude Code)'"));
        assert_eq!(old.supported().await.expect("new enough"), Some(OLDEST_CLAUDE));
    }

    #[tokio::test]
    async fn a_program_is_asked_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let count = dir.path().join("count");
        let one = program(dir.path(), &format!("echo asked >> {}; echo 2.1.200", count.display()));
        for _ in 0..3 {
            one.supported().await.expect("new enough");
        }
        assert_eq!(fs::read_to_string(count).expect("asked"), "asked\n");
    }

    #[tokio::test]
    async fn a_program_without_a_version_is_accepted() {
        let dir = tempfile::tempdir().expect("a folder");
        for text in ["echo hello", "exit 3", "yes hello", "exec >&-; exit 1"] {
            assert_eq!(program(dir.path(), text).supported().await.expect(text), None, "{text}");
        }
        let none = ClaudeProgram::new(dir.path().join("nothing"));
        assert_eq!(none.supported().await.expect("nothing to refuse"), None);
    }

    #[test]
    fn a_program_gets_the_rights_of_the_user_who_could_replace_it() {
        let of = |uid: u32| PathOwner { uid, gid: uid, open: false };
        let uid = |owners: &[PathOwner]| runs_as(owners).map(|owner| owner.uid);
        assert_eq!(uid(&[of(0), of(0), of(0)]), Some(0));
        assert_eq!(uid(&[of(0), of(1000), of(0)]), Some(1000), "a folder of a user");
        assert_eq!(uid(&[of(1000), of(1000), of(0)]), Some(1000));
        assert_eq!(uid(&[of(1000), of(1001), of(0)]), None, "two users");
        assert_eq!(uid(&[PathOwner { open: true, ..of(0) }, of(0)]), None, "every user");
    }
}
