//! Records what was deleted on purpose, in the file `tombstones`, so that no other source restores it. The caller
//! defines the content of a line.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::Repo;
use crate::Error;

const FILE: &str = "tombstones";

impl Repo {
    /// All lines, the oldest first. A line that a crash cut off is among them; the caller must recognise it as
    /// invalid.
    pub fn tombstones(&self) -> Result<Vec<String>, Error> {
        match std::fs::read_to_string(self.tombstones_file()) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(self.no_tombstone("read", e)),
        }
    }

    /// Adds a line, which is durable when this returns.
    pub fn add_tombstone(&self, line: &str) -> Result<(), Error> {
        let _alone = self.tombstone_lock.lock().expect("no code panics while it holds this lock");
        let add = || -> io::Result<()> {
            let file = self.disk.open(&self.tombstones_file())?;
            let end = file.metadata()?.len();
            // A crash may have left half a line. The line break keeps it separate from this one.
            self.disk.write_at(&file, format!("\n{line}\n").as_bytes(), end)?;
            self.disk.sync(&file)?;
            self.disk.sync_dir(&self.dir)
        };
        add().map_err(|e| self.no_tombstone("write", e))
    }

    fn tombstones_file(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    fn no_tombstone(&self, what: &'static str, error: io::Error) -> Error {
        Error::system(what, self.tombstones_file().as_os_str().as_bytes(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskWriter, SimulatedCrash};

    #[test]
    fn a_tombstone_is_there_whole_or_not_at_all_wherever_the_machine_dies() {
        for step in 0.. {
            let dir = tempfile::tempdir().expect("a directory");
            let repo = Repo::open(dir.path()).expect("opened");
            repo.add_tombstone("first").expect("written");
            let death = SimulatedCrash::at_step(step);
            let dying =
                Repo::open_with(dir.path(), None, DiskWriter::crashing(death.clone())).expect("opened");
            let written = dying.add_tombstone("second").is_ok();
            repo.add_tombstone("third").expect("written");
            let lines = repo.tombstones().expect("read");
            for sure in ["first", "third"] {
                assert!(lines.iter().any(|line| line == sure), "step {step}: {lines:?}");
            }
            let second = lines.iter().any(|line| line == "second");
            assert!(second || !written, "step {step}: {lines:?}");
            if written {
                assert_eq!(death.steps(), step, "every step was tried");
                return;
            }
        }
    }
}
