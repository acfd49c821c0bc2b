//! Moves a whole folder of the host into a folder that another process may be writing to: first checks for conflicts,
//! then moves name by name, and undoes everything if a conflict appears after all.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::write::{NEW_DIRECTORY, give_to, make_directory};
use super::{DirectoryWalker, DiskUsage, FileAttributes, FileKind, FileOwner, Folder, WalkerEvent, open};
use crate::{Error, RelPath};

/// What the moved folder holds; a directory comes before its content.
type MergeEntries = Vec<(RelPath, FileKind)>;

/// A completed step, and how to undo it.
enum MergeStep {
    Made,
    New,
    /// What was there is kept in `aside` under this number.
    Replaced(usize),
}

impl Folder {
    /// Checks whether everything in `from` can be put into this folder. Returns the size of what would be replaced.
    /// Changes nothing.
    pub fn measure_replaced(&self, from: &Folder) -> Result<DiskUsage, Error> {
        let mut replaced = DiskUsage::default();
        for (path, kind) in entries(from)? {
            let (folder, name) = path.split();
            let folder = match open::beneath(self.fd(), folder, open::DIRECTORY, super::LinkPolicy::Refuse) {
                Err(Errno::NOENT) => continue,
                Err(Errno::NOTDIR) => return Err(Error::NotAFolder { path: path.to_string() }),
                opened => opened.map_err(|e| Error::system("look at", path.as_bytes(), e))?,
            };
            let is = match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                found => found.map_err(|e| Error::system("look at", path.as_bytes(), e))?,
            };
            agree(&path, kind, FileAttributes::as_found(&is).kind)?;
            if kind != FileKind::Dir && is.st_nlink < 2 {
                let bytes = u64::try_from(is.st_blocks).unwrap_or(0).saturating_mul(512);
                replaced = replaced.plus(DiskUsage { bytes, files: 1 });
            } else if kind == FileKind::Dir {
                replaced = replaced.plus(DiskUsage { bytes: 0, files: 1 });
            }
        }
        Ok(replaced)
    }

    /// Moves everything in `from` to the same places in this folder. It replaces files and links, and merges
    /// directories. Readers see the old file or the new one. `aside`, an empty folder of the host, keeps what was
    /// replaced until the merge is complete: on a conflict everything is put back. After a crash, a second call
    /// continues the merge. All three folders must be in one file system.
    pub fn merge(&self, from: &Folder, aside: &Folder, as_owner: Option<FileOwner>) -> Result<(), Error> {
        let mut moving = FolderMerge { into: self, from, aside, as_owner, done: Vec::new() };
        for (path, kind) in entries(from)? {
            if let Err(error) = moving.step(&path, kind) {
                moving.take_back();
                return Err(error);
            }
        }
        Ok(())
    }
}

fn entries(from: &Folder) -> Result<MergeEntries, Error> {
    let (mut tour, mut found) = (DirectoryWalker::start(from)?, Vec::new());
    while let Some(met) = tour.next_event()? {
        let WalkerEvent::Entry(name) = met else { continue };
        let path = RelPath::from_walk(&tour.path_of(&name))?;
        let failed = |e| Error::system("look at", path.as_bytes(), e);
        let kind = tour.attributes(&name).map_err(failed)?.kind;
        if kind == FileKind::Dir {
            tour.enter(&name).map_err(failed)?;
        }
        found.push((path, kind));
    }
    Ok(found)
}

fn agree(path: &RelPath, new: FileKind, old: FileKind) -> Result<(), Error> {
    match (new == FileKind::Dir, old == FileKind::Dir) {
        (true, true) | (false, false) => Ok(()),
        (false, true) => Err(Error::NotAFile { path: path.to_string() }),
        (true, false) => Err(Error::NotAFolder { path: path.to_string() }),
    }
}

struct FolderMerge<'a> {
    into: &'a Folder,
    from: &'a Folder,
    aside: &'a Folder,
    as_owner: Option<FileOwner>,
    done: Vec<(RelPath, MergeStep)>,
}

impl FolderMerge<'_> {
    fn step(&mut self, path: &RelPath, kind: FileKind) -> Result<(), Error> {
        let (folder, name) = path.split();
        let failed = |e: Errno| match e {
            Errno::NOTDIR => Error::NotAFolder { path: path.to_string() },
            // A process in the sandbox created the entry, or closed the way to it, a moment ago.
            Errno::EXIST | Errno::NOTEMPTY | Errno::ACCESS | Errno::PERM => {
                Error::NotAFile { path: path.to_string() }
            }
            e => Error::system("put in place", path.as_bytes(), io::Error::from(e)),
        };
        let to = place(self.into, folder).map_err(failed)?;
        let there = match FileAttributes::at(&to, name) {
            Err(Errno::NOENT) => None,
            found => Some(found.map_err(failed)?.kind),
        };
        if let Some(old) = there {
            agree(path, kind, old)?;
        }
        let step = match (kind, there) {
            (FileKind::Dir, Some(_)) => return Ok(()),
            (FileKind::Dir, None) => {
                self.make(to.as_fd(), name).map_err(failed)?;
                MergeStep::Made
            }
            (_, Some(_)) => {
                let number = self.done.len();
                // A second name for what is there, so that it always has at least one.
                rustix::fs::linkat(&to, name, self.aside.fd(), number.to_string(), AtFlags::empty())
                    .map_err(failed)?;
                MergeStep::Replaced(number)
            }
            (_, None) => MergeStep::New,
        };
        if kind != FileKind::Dir {
            let from = place(self.from, folder).map_err(failed)?;
            rustix::fs::renameat(from, name, to, name).map_err(failed)?;
        }
        self.done.push((path.clone(), step));
        ash_failpoint::reach("merge.step");
        Ok(())
    }

    fn make(&self, to: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
        make_directory(to, name, NEW_DIRECTORY)?;
        give_to(open::open_beneath(to, name)?.as_fd(), self.as_owner)
    }

    /// Undoes the steps, the last one first. New files move back to `from`, so after a crash in between they are
    /// still there.
    fn take_back(&mut self) {
        while let Some((path, step)) = self.done.pop() {
            let (folder, name) = path.split();
            let back = || {
                let to = place(self.into, folder)?;
                match step {
                    MergeStep::Made => rustix::fs::unlinkat(to, name, AtFlags::REMOVEDIR),
                    MergeStep::New => rustix::fs::renameat(to, name, place(self.from, folder)?, name),
                    MergeStep::Replaced(number) => {
                        rustix::fs::renameat(&to, name, place(self.from, folder)?, name)?;
                        rustix::fs::renameat(self.aside.fd(), number.to_string(), to, name)
                    }
                }
            };
            // A process in the sandbox changed it again; what is there now belongs to the sandbox.
            if let Err(error) = back() {
                tracing::warn!(%path, %error, "a merge could not be undone");
            }
        }
    }
}

fn place(root: &Folder, folder: &[u8]) -> rustix::io::Result<OwnedFd> {
    open::open_beneath(root.fd(), folder)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    struct Bench {
        dir: tempfile::TempDir,
    }

    impl Bench {
        fn new(files: &[(&str, &str)]) -> Bench {
            let dir = tempfile::tempdir().expect("a directory");
            for name in ["into", "from", "aside"] {
                fs::create_dir(dir.path().join(name)).expect("made");
            }
            let bench = Bench { dir };
            for (path, text) in files {
                let path = bench.at(path);
                fs::create_dir_all(path.parent().expect("a parent")).expect("made");
                fs::write(path, text).expect("written");
            }
            bench
        }

        fn at(&self, path: &str) -> std::path::PathBuf {
            self.dir.path().join(path)
        }

        fn folder(&self, name: &str) -> Folder {
            Folder::open(&self.at(name)).expect("opened")
        }

        fn merge(&self) -> Result<(), Error> {
            self.folder("into").merge(&self.folder("from"), &self.folder("aside"), None)
        }

        fn files(&self, under: &str) -> Vec<(String, String)> {
            let all = self.folder(under).walk(&|_, _| false, 100).expect("walked");
            let read = |path: &[u8]| {
                let path = String::from_utf8_lossy(path).into_owned();
                let text = fs::read_to_string(self.at(under).join(Path::new(&path))).expect("read");
                (path, text)
            };
            all.iter().map(|file| read(&file.path)).collect()
        }
    }

    fn of(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_merge_puts_everything_in_place_and_keeps_other_files() {
        let bench = Bench::new(&[
            ("into/a/old", "old"),
            ("into/a/both", "old"),
            ("from/a/both", "new"),
            ("from/b/c/new", "new"),
        ]);
        symlink("both", bench.at("from/a/link")).expect("linked");
        fs::create_dir(bench.at("from/empty")).expect("made");
        bench.merge().expect("merged");
        let wanted = [("a/both", "new"), ("a/old", "old"), ("b/c/new", "new")];
        assert_eq!(bench.files("into"), of(&wanted));
        assert_eq!(fs::read_link(bench.at("into/a/link")).expect("a link"), Path::new("both"));
        assert!(bench.at("into/empty").is_dir());
        assert_eq!(bench.files("from"), []);
        bench.merge().expect("what is done is not done again");
        assert_eq!(bench.files("into"), of(&wanted));
    }

    #[test]
    fn an_obstacle_to_the_last_entry_undoes_the_whole_merge() {
        type Plant = fn(&Bench);
        let plants: [Plant; 4] = [
            |bench| fs::create_dir(bench.at("into/z")).expect("made"),
            |bench| symlink(bench.at("outside"), bench.at("into/y")).expect("linked"),
            |bench| fs::write(bench.at("into/y"), "a file").expect("written"),
            |bench| symlink("a", bench.at("into/y")).expect("linked"),
        ];
        for (number, plant) in plants.iter().enumerate() {
            let bench = Bench::new(&[
                ("into/a/both", "old"),
                ("from/a/both", "new"),
                ("from/a/new", "new"),
                ("from/b/c/d", "new"),
                ("from/y/in", "new"),
                ("from/z", "new"),
            ]);
            fs::create_dir(bench.at("outside")).expect("made");
            plant(&bench);
            let (into, from) = (bench.files("into"), bench.files("from"));
            assert!(bench.folder("into").measure_replaced(&bench.folder("from")).is_err(), "{number}");
            bench.merge().expect_err("in the way");
            assert_eq!((bench.files("into"), bench.files("from")), (into, from), "{number}");
            assert!(!bench.at("into/b").exists() && !bench.at("outside/in").exists(), "{number}");
        }
    }

    #[test]
    fn only_replaced_entries_are_measured() {
        let bench = Bench::new(&[("into/a/b", &"x".repeat(100_000)), ("into/other", "x"), ("from/a/b", "")]);
        let replaced = bench.folder("into").measure_replaced(&bench.folder("from")).expect("looked at");
        assert_eq!(replaced.files, 2, "the folder and the file");
        assert!((100_000..200_000).contains(&replaced.bytes), "{replaced:?}");
    }
}
