//! Lists which packs the repository should hold, independently of the packs: nothing refers to the newest pack, so
//! without this list its loss would go unnoticed. Lines are appended; the last line about a pack counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::Repo;
use crate::Error;
use crate::disk_writer::DiskWriter;
use crate::object_id::PackId;
use crate::pack::EXTENSION;

const FILE: &str = "inventory";
const FRESH: &str = "new-inventory";
/// How many obsolete lines may stay before the file is rewritten.
const MAX_STALE: usize = 1000;

/// The location of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PackLocation {
    Here,
    /// Collection has removed it, or is about to.
    Gone,
    /// Only the object store has it.
    Remote,
}

impl PackLocation {
    fn word(self) -> &'static str {
        match self {
            PackLocation::Here => "here",
            PackLocation::Gone => "gone",
            PackLocation::Remote => "remote",
        }
    }

    fn parse(word: &str) -> Option<PackLocation> {
        [PackLocation::Here, PackLocation::Gone, PackLocation::Remote]
            .into_iter()
            .find(|is| is.word() == word)
    }
}

type PackLocations = BTreeMap<PackId, PackLocation>;

#[derive(Debug)]
pub(crate) struct PackInventory {
    dir: PathBuf,
    disk: DiskWriter,
    /// Serializes writers.
    writing: Mutex<()>,
}

impl PackInventory {
    pub(super) fn new(dir: &Path, disk: DiskWriter) -> PackInventory {
        PackInventory { dir: dir.to_owned(), disk, writing: Mutex::default() }
    }

    /// Records a pack that is already on disk under its name. The line is not synced. A power failure may lose it,
    /// and then only a later loss of that pack goes unnoticed. The opposite order could report a loss that did not
    /// happen.
    pub(crate) fn added(&self, pack: PackId) -> io::Result<()> {
        let _alone = self.writing.lock().expect("no code panics while it holds this lock");
        if self.begin()? { Ok(()) } else { self.append(&[(pack, PackLocation::Here)]).map(drop) }
    }

    /// Records packs that are about to be removed. The lines are on disk when this returns, so no removal is durable
    /// before its line.
    pub(super) fn leaving(&self, packs: &[PackId], to: PackLocation) -> io::Result<()> {
        if packs.is_empty() {
            return Ok(());
        }
        let _alone = self.writing.lock().expect("no code panics while it holds this lock");
        self.begin()?;
        let lines: Vec<(PackId, PackLocation)> = packs.iter().map(|pack| (*pack, to)).collect();
        let file = self.append(&lines)?;
        self.disk.sync(&file)
    }

    /// Removes obsolete lines if there are many.
    pub(super) fn tidy(&self) -> io::Result<()> {
        let _alone = self.writing.lock().expect("no code panics while it holds this lock");
        let Some((text, listed)) = self.read()? else { return Ok(()) };
        let kept: PackLocations = listed.into_iter().filter(|(_, is)| *is != PackLocation::Gone).collect();
        if text.lines().count() < kept.len() + MAX_STALE { Ok(()) } else { self.write(&kept) }
    }

    pub(super) fn listed(&self) -> io::Result<PackLocations> {
        Ok(self.read()?.map(|(_, listed)| listed).unwrap_or_default())
    }

    /// Creates the list in a repository from before the list existed: it then assumes that all present packs are all
    /// expected ones. Returns whether it created the list.
    fn begin(&self) -> io::Result<bool> {
        if self.path().exists() {
            return Ok(false);
        }
        let here = packs_in(&self.dir)?;
        self.write(&here.into_iter().map(|pack| (pack, PackLocation::Here)).collect())?;
        Ok(true)
    }

    fn append(&self, lines: &[(PackId, PackLocation)]) -> io::Result<File> {
        let mut file = File::options().read(true).append(true).create(true).open(self.path())?;
        let length = file.metadata()?.len();
        let mut last = [b'\n'];
        if length > 0 {
            file.read_exact_at(&mut last, length - 1)?;
        }
        // A failed write may have left half a line. The new line starts on its own, and the parser ignores the half.
        let begin = if last == [b'\n'] { "" } else { "\n" };
        self.disk.append(&mut file, format!("{begin}{}", text_of(lines)).as_bytes())?;
        Ok(file)
    }

    fn write(&self, listed: &PackLocations) -> io::Result<()> {
        let lines: Vec<(PackId, PackLocation)> = listed.iter().map(|(pack, is)| (*pack, *is)).collect();
        let fresh = self.dir.join(FRESH);
        self.disk.remove(&fresh)?;
        let file = self.disk.create(&fresh)?;
        self.disk.write_at(&file, text_of(&lines).as_bytes(), 0)?;
        self.disk.sync(&file)?;
        self.disk.rename(&fresh, &self.path())?;
        self.disk.sync_dir(&self.dir)
    }

    fn read(&self) -> io::Result<Option<(String, PackLocations)>> {
        match std::fs::read(self.path()) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let listed = parse(&text);
                Ok(Some((text, listed)))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }
}

fn text_of(lines: &[(PackId, PackLocation)]) -> String {
    lines.iter().map(|(pack, is)| format!("{} {pack}\n", is.word())).collect()
}

/// Ignores incomplete lines and unknown words.
fn parse(text: &str) -> PackLocations {
    let line = |line: &str| {
        let (word, pack) = line.split_once(' ')?;
        Some((PackId::parse(pack)?, PackLocation::parse(word)?))
    };
    text.lines().filter_map(line).collect()
}

/// The packs in a directory.
pub(super) fn packs_in(dir: &Path) -> io::Result<BTreeSet<PackId>> {
    let mut packs = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let ours = path.extension().is_some_and(|extension| extension == EXTENSION);
        packs.extend(stem.filter(|_| ours).and_then(PackId::parse));
    }
    Ok(packs)
}

impl Repo {
    /// Packs that were written here, that collection did not remove, and that no longer exist here.
    pub fn missing_packs(&self) -> Result<Vec<String>, Error> {
        let here = packs_in(&self.dir).map_err(|e| self.no_inventory(e))?;
        let listed = self.inventory.listed().map_err(|e| self.no_inventory(e))?;
        let missing =
            listed.into_iter().filter(|(pack, is)| *is == PackLocation::Here && !here.contains(pack));
        Ok(missing.map(|(pack, _)| pack.to_string()).collect())
    }

    /// Packs that were removed from here because the remote store has them.
    pub fn remote_packs(&self) -> Result<BTreeSet<String>, Error> {
        let here = packs_in(&self.dir).map_err(|e| self.no_inventory(e))?;
        let listed = self.inventory.listed().map_err(|e| self.no_inventory(e))?;
        let remote =
            listed.into_iter().filter(|(pack, is)| *is == PackLocation::Remote && !here.contains(pack));
        Ok(remote.map(|(pack, _)| pack.to_string()).collect())
    }

    pub(super) fn no_inventory(&self, error: io::Error) -> Error {
        Error::system("use", self.dir.join(FILE).as_os_str().as_bytes(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "here 000102030405060708090a0b0c0d0e0f\n\
        here 101112131415161718191a1b1c1d1e1f\n\
        remote 000102030405060708090a0b0c0d0e0f\n\
        gone 101112131415161718191a1b1c1d1e1f\n\
        here 202122232425262728292a2b2c2d2e2f\n";

    fn id(text: &str) -> PackId {
        PackId::parse(text).expect("an id")
    }

    #[test]
    fn the_last_line_about_a_pack_counts() {
        let expected = [
            ("000102030405060708090a0b0c0d0e0f", PackLocation::Remote),
            ("101112131415161718191a1b1c1d1e1f", PackLocation::Gone),
            ("202122232425262728292a2b2c2d2e2f", PackLocation::Here),
        ];
        let expected: PackLocations = expected.map(|(text, is)| (id(text), is)).into();
        assert_eq!(parse(TEXT), expected);
        let lines: Vec<_> = expected.into_iter().collect();
        assert_eq!(parse(&text_of(&lines)), parse(TEXT));
    }

    #[test]
    fn a_line_after_one_that_was_cut_short_is_understood() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join(FILE), &TEXT[..TEXT.len() - 9]).expect("written");
        let inventory = PackInventory::new(dir.path(), DiskWriter::default());
        let pack = id("303132333435363738393a3b3c3d3e3f");
        inventory.added(pack).expect("listed");
        let listed = inventory.listed().expect("read");
        assert_eq!((listed.len(), listed.get(&pack)), (3, Some(&PackLocation::Here)));
    }

    #[test]
    fn a_list_with_many_old_lines_becomes_short_and_says_the_same() {
        let dir = tempfile::tempdir().expect("a directory");
        let inventory = PackInventory::new(dir.path(), DiskWriter::default());
        let (stays, goes) = (id("000102030405060708090a0b0c0d0e0f"), id("101112131415161718191a1b1c1d1e1f"));
        inventory.added(stays).expect("begun");
        inventory.added(stays).expect("listed");
        inventory.leaving(&vec![goes; MAX_STALE], PackLocation::Gone).expect("listed");
        inventory.tidy().expect("tidied");
        let text = std::fs::read_to_string(dir.path().join(FILE)).expect("read");
        assert_eq!(text, format!("here {stays}\n"));
    }
}
