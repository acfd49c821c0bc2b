//! `ash snapshot`: the snapshot repository for any folder, without a server.

mod gc;
mod list;
mod open_repository;
mod restore;
mod save;
mod verify;

use crate::{
    api::{CliError, Result},
    args::{RepositoryArgs, SnapshotCommand},
    terminal,
};
use ash_model::FailureKind;
use ash_snapshot::{Error, SnapshotProgress};
use open_repository::OpenRepository;
use std::{
    error::Error as _,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// The root of a saved folder, and the roots of a session's checkpoint.
const FILES: &str = "files";
const SESSION_ROOTS: [&str; 2] = ["workspace", "home"];

pub(crate) fn run(repository: &RepositoryArgs, command: SnapshotCommand) -> Result<u8> {
    let place = |how| OpenRepository::open(repository, how);
    match command {
        SnapshotCommand::Save { folder } => {
            save::run(&place(open_repository::MissingRepositoryPolicy::Create)?, &folder)
        }
        SnapshotCommand::List => list::run(&place(open_repository::MissingRepositoryPolicy::Refuse)?),
        SnapshotCommand::Restore { id, target } => {
            restore::run(&place(open_repository::MissingRepositoryPolicy::Refuse)?, &id, &target)
        }
        SnapshotCommand::Diff { id, other } => {
            list::diff(&place(open_repository::MissingRepositoryPolicy::Refuse)?, &id, other.as_deref())
        }
        SnapshotCommand::Verify { read_data } => {
            verify::verify(&place(open_repository::MissingRepositoryPolicy::Refuse)?, read_data)
        }
        SnapshotCommand::Gc { keep_last, keep_hourly, keep_daily, dry_run, grace } => {
            let rules = gc::GcOptions { keep_last, keep_hourly, keep_daily, dry_run, grace };
            gc::run(&place(open_repository::MissingRepositoryPolicy::Refuse)?, &rules)
        }
        SnapshotCommand::Sessions => {
            verify::sessions(&place(open_repository::MissingRepositoryPolicy::Refuse)?)
        }
    }
}

/// Describes a repository error, with a remedy.
fn repository_error(place: &OpenRepository) -> impl Fn(Error) -> CliError {
    let dir = place.dir.display().to_string();
    move |error| describe_error(&dir, &error)
}

fn describe_error(dir: &str, error: &Error) -> CliError {
    let said = match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let (kind, remedy) = match error {
        Error::NotFound { .. } => (FailureKind::NotFound, String::new()),
        Error::NotAFile { .. }
        | Error::NotAFolder { .. }
        | Error::Outside { .. }
        | Error::NotEmpty { .. }
        | Error::BadPath(_) => (FailureKind::Invalid, String::new()),
        Error::Full { .. } => (FailureKind::Unavailable, "; free some space, nothing was changed".to_owned()),
        Error::Damaged { .. } => {
            let remedy =
                format!("; `ash snapshot verify --repo {dir} --read-data` says which snapshots are intact");
            (FailureKind::Unprocessable, remedy)
        }
        Error::Sealed { .. } => {
            (FailureKind::Unauthorized, "; give the right one with --key-file".to_owned())
        }
        Error::Far { .. } => (FailureKind::Unavailable, "; try again later".to_owned()),
        Error::InUse { .. } => (FailureKind::Conflict, String::new()),
        Error::Unreadable { .. } | Error::Io { .. } => (FailureKind::Internal, String::new()),
    };
    CliError::new(kind, format!("{said}{remedy}"))
}

/// Runs long work, and shows progress on a terminal.
fn with_progress<T>(
    message: &str,
    bytes: Option<u64>,
    progress: &SnapshotProgress,
    work: impl FnOnce() -> T,
) -> T {
    let bar = match bytes {
        Some(bytes) => terminal::bar(message, bytes),
        None => terminal::spinner(message),
    };
    if bar.is_hidden() {
        return work();
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let shower = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let (files, done) = (&progress.files, &progress.bytes);
                let (files, done) = (files.load(Ordering::Relaxed), done.load(Ordering::Relaxed));
                bar.set_position(done);
                bar.set_message(format!("{message}: {files} files, {}", terminal::format_bytes(done)));
                std::thread::park_timeout(Duration::from_millis(80));
            }
            bar.finish_and_clear();
        });
        let over = ProgressStopGuard { flag: &over, shower: shower.thread().clone() };
        let result = work();
        drop(over);
        result
    })
}

/// Ends the progress bar however the work ends.
struct ProgressStopGuard<'o> {
    flag: &'o AtomicBool,
    shower: std::thread::Thread,
}

impl Drop for ProgressStopGuard<'_> {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::Relaxed);
        self.shower.unpark();
    }
}

fn absolute(path: &Path) -> Result<std::path::PathBuf> {
    path.canonicalize().map_err(|error| {
        let kind = if error.kind() == std::io::ErrorKind::NotFound {
            FailureKind::NotFound
        } else {
            FailureKind::Internal
        };
        CliError::new(kind, format!("cannot open {}: {error}", path.display()))
    })
}
