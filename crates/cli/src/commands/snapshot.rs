//! `ash snapshot`: the repository on its own, for any folder, with no server.

mod check;
mod gc;
mod listing;
mod place;
mod restore;
mod save;

use crate::{
    api::{Failure, Result},
    args::{Repository, Snapshot},
    out,
};
use ash_model::Kind;
use ash_snapshot::{Error, Progress};
use place::Place;
use std::{
    error::Error as _,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// The one root of a folder that was saved, and those of a session's checkpoint.
const FILES: &str = "files";
const OF_A_SESSION: [&str; 2] = ["workspace", "home"];

pub(crate) fn run(repository: &Repository, command: Snapshot) -> Result<u8> {
    let place = |how| Place::open(repository, how);
    match command {
        Snapshot::Save { folder } => save::run(&place(place::Missing::Make)?, &folder),
        Snapshot::List => listing::run(&place(place::Missing::Refuse)?),
        Snapshot::Restore { id, target } => restore::run(&place(place::Missing::Refuse)?, &id, &target),
        Snapshot::Diff { id, other } => listing::diff(&place(place::Missing::Refuse)?, &id, other.as_deref()),
        Snapshot::Verify { read_data } => check::verify(&place(place::Missing::Refuse)?, read_data),
        Snapshot::Gc { keep_last, keep_hourly, keep_daily, dry_run, grace } => {
            let rules = gc::Wish { keep_last, keep_hourly, keep_daily, dry_run, grace };
            gc::run(&place(place::Missing::Refuse)?, &rules)
        }
        Snapshot::Sessions => check::sessions(&place(place::Missing::Refuse)?),
    }
}

/// What went wrong in a repository, with what to do about it.
fn failed(place: &Place) -> impl Fn(Error) -> Failure {
    let dir = place.dir.display().to_string();
    move |error| explained(&dir, &error)
}

fn explained(dir: &str, error: &Error) -> Failure {
    let said = match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let (kind, remedy) = match error {
        Error::NotFound { .. } => (Kind::NotFound, String::new()),
        Error::NotAFile { .. }
        | Error::NotAFolder { .. }
        | Error::Outside { .. }
        | Error::NotEmpty { .. }
        | Error::BadPath(_) => (Kind::Invalid, String::new()),
        Error::Full { .. } => (Kind::Unavailable, "; free some space, nothing was changed".to_owned()),
        Error::Damaged { .. } => {
            let remedy =
                format!("; `ash snapshot verify --repo {dir} --read-data` says which snapshots are whole");
            (Kind::Unprocessable, remedy)
        }
        Error::Sealed { .. } => (Kind::Unauthorized, "; give the right one with --key-file".to_owned()),
        Error::Far { .. } => (Kind::Unavailable, "; try again later".to_owned()),
        Error::InUse { .. } => (Kind::Conflict, String::new()),
        Error::Unreadable { .. } | Error::Io { .. } => (Kind::Internal, String::new()),
    };
    Failure::new(kind, format!("{said}{remedy}"))
}

/// Does long work and shows how far it is, where there is a terminal.
fn watched<T>(message: &str, bytes: Option<u64>, progress: &Progress, work: impl FnOnce() -> T) -> T {
    let bar = match bytes {
        Some(bytes) => out::bar(message, bytes),
        None => out::spinner(message),
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
                bar.set_message(format!("{message}: {files} files, {}", out::size(done)));
                std::thread::park_timeout(Duration::from_millis(80));
            }
            bar.finish_and_clear();
        });
        let over = Over { flag: &over, shower: shower.thread().clone() };
        let result = work();
        drop(over);
        result
    })
}

/// However the work ends, nobody waits for its bar.
struct Over<'o> {
    flag: &'o AtomicBool,
    shower: std::thread::Thread,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::Relaxed);
        self.shower.unpark();
    }
}

fn absolute(path: &Path) -> Result<std::path::PathBuf> {
    path.canonicalize().map_err(|error| {
        let kind = if error.kind() == std::io::ErrorKind::NotFound { Kind::NotFound } else { Kind::Internal };
        Failure::new(kind, format!("cannot open {}: {error}", path.display()))
    })
}
