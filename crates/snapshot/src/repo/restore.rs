//! Restores snapshots: directories first, then files block by block on several threads, then links and attributes.
//! Every content is checked while it is written.

mod directory_opener;
mod donor;
mod files;

pub use donor::DonorTree;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, Uid};

use self::directory_opener::DirectoryOpener;
use super::Repo;
use super::capture::SnapshotProgress;
use super::read::visit;
use crate::folder::{FileAttributes, FileTime, give_to, make_directory, set_xattrs};
use crate::index::{CaptureIndex, DirectoryUpdate, IndexedContent, StatFingerprint};
use crate::object::{ObjectRef, StoredContent, TreeEntry, TreeNode, Xattrs};
use crate::{Error, FileOwner, Folder, TreeId};

/// Where to restore a root of the tree: an empty folder that no other process uses yet.
#[derive(Clone, Copy)]
pub struct RestoreTarget<'a> {
    /// The name of the root in the snapshot.
    pub root: &'a str,
    /// The folder to write to.
    pub folder: &'a Folder,
    /// The owner of the files; `None`: the user of this process.
    pub owner: Option<FileOwner>,
}

/// The result of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RestoreReport {
    /// Regular files, hard links counted once.
    pub files: u64,
    /// Bytes in these files.
    pub bytes: u64,
    /// Files that were linked from the donor tree instead of written.
    pub taken_over: u64,
}

/// All entries of one root, read before the first byte is written: a damaged tree is refused as a whole.
struct RestorePlan<'a> {
    target: &'a RestoreTarget<'a>,
    modified: FileTime,
    /// Parents come before their children; the root is the first.
    folders: Vec<PlannedFolder>,
    files: Vec<PlannedFile>,
    links: Vec<PlannedSymlink>,
    /// Further hard links of files.
    names: Vec<PlannedHardLink>,
}

struct PlannedFolder {
    /// Relative to the root; empty for the root itself.
    path: Vec<u8>,
    at: ObjectRef,
    mode: u32,
    modified: FileTime,
    xattrs: Xattrs,
}

struct PlannedFile {
    folder: usize,
    name: Vec<u8>,
    mode: u32,
    modified: FileTime,
    content: StoredContent,
    xattrs: Xattrs,
}

struct PlannedSymlink {
    folder: usize,
    name: Vec<u8>,
    target: Vec<u8>,
    modified: FileTime,
}

struct PlannedHardLink {
    folder: usize,
    name: Vec<u8>,
    file: usize,
}

impl Repo {
    /// Writes a tree into empty folders. A root without a target is left out, and a target without a root stays
    /// empty. Writes the index of the restored folders to `index`, if given.
    pub fn restore(
        &self,
        tree: &TreeId,
        targets: &[RestoreTarget<'_>],
        index: Option<&Path>,
    ) -> Result<RestoreReport, Error> {
        self.write_tree(tree, targets, index, (&SnapshotProgress::default(), None))
    }

    /// Like [`Repo::restore_with_progress`], but links unchanged files from an older tree. When that tree is erased, call
    /// [`Repo::refresh_index`].
    pub fn restore_with_donor(
        &self,
        tree: &TreeId,
        targets: &[RestoreTarget<'_>],
        index: Option<&Path>,
        (progress, donor): (&SnapshotProgress, DonorTree<'_>),
    ) -> Result<RestoreReport, Error> {
        self.write_tree(tree, targets, index, (progress, Some(donor)))
    }

    /// Updates the attributes in the index after the donor tree was erased, because its removal changed the linked files'
    /// times. No process may work in the folder of the roots meanwhile.
    pub fn refresh_index(index: &Path, folder: &Folder) {
        donor::refresh(index, folder);
    }

    /// Like [`Repo::restore`], with progress.
    pub fn restore_with_progress(
        &self,
        tree: &TreeId,
        targets: &[RestoreTarget<'_>],
        index: Option<&Path>,
        progress: &SnapshotProgress,
    ) -> Result<RestoreReport, Error> {
        self.write_tree(tree, targets, index, (progress, None))
    }

    fn write_tree(
        &self,
        tree: &TreeId,
        targets: &[RestoreTarget<'_>],
        index: Option<&Path>,
        (progress, donor): (&SnapshotProgress, Option<DonorTree<'_>>),
    ) -> Result<RestoreReport, Error> {
        let _pinned = self.pin(Some(tree));
        let mut told = |fetched| progress.fetched(fetched);
        let mut fetching = self.fetching(&mut told);
        if let Some(fetching) = &mut fetching {
            let roots: Vec<&str> = targets.iter().map(|target| target.root).collect();
            fetching.directories(tree, Some(&roots))?;
        }
        let mut plans = Vec::new();
        for target in targets {
            plans.extend(self.plan(tree, target)?);
        }
        for target in targets {
            if !target.folder.list()?.is_empty() {
                return Err(Error::NotEmpty { path: target.root.to_owned() });
            }
        }
        let mut restored = RestoreReport::default();
        let giving = donor.map(donor::DonorLinker::new);
        let mut given = Vec::new();
        for plan in &plans {
            plan.make_folders()?;
            given.push(giving.as_ref().map(|giving| giving.give(plan)).unwrap_or_default());
        }
        if let Some(fetching) = &mut fetching {
            let missing = plans.iter().zip(&given).flat_map(|(plan, given)| plan.missing(given));
            fetching.contents(&missing.map(|file| file.content.layout).collect::<Vec<_>>())?;
        }
        for (plan, given) in plans.iter().zip(&given) {
            restored.taken_over += given.iter().filter(|given| **given).count() as u64;
            files::write(self, plan, given, progress)?;
            plan.make_links()?;
            plan.finish_folders()?;
            restored.files += plan.files.len() as u64;
            restored.bytes = restored.bytes.saturating_add(plan.bytes());
        }
        if let Some(index) = index {
            remember(&plans, index, tree);
        }
        Ok(restored)
    }

    fn plan<'a>(
        &self,
        tree: &TreeId,
        target: &'a RestoreTarget<'a>,
    ) -> Result<Option<RestorePlan<'a>>, Error> {
        let reader = self.reader();
        let root = match self.find_root(&reader, tree, target.root) {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found?,
        };
        let at = self.root_at(&reader, tree, target.root)?;
        let folder =
            PlannedFolder { path: Vec::new(), at, mode: 0, modified: root.modified, xattrs: Vec::new() };
        let mut plan = RestorePlan {
            target,
            modified: root.modified,
            folders: vec![folder],
            files: Vec::new(),
            links: Vec::new(),
            names: Vec::new(),
        };
        let mut planning =
            RestorePlanner { numbers: HashMap::from([(Vec::new(), 0)]), first: HashMap::new() };
        visit(&reader, &at, &mut |path, entry| {
            planning.add(&mut plan, path, entry);
            Ok(())
        })?;
        Ok(Some(plan))
    }
}

struct RestorePlanner {
    numbers: HashMap<Vec<u8>, usize>,
    /// The first file of each group of hard links.
    first: HashMap<u64, usize>,
}

impl RestorePlanner {
    fn add(&mut self, plan: &mut RestorePlan<'_>, path: &[u8], entry: &TreeEntry) {
        let above = path.len().saturating_sub(entry.name.len() + 1);
        let folder = self.numbers[&path[..above]];
        let TreeEntry { name, mode, modified, node, xattrs } = entry.clone();
        match node {
            TreeNode::Dir(at) => {
                self.numbers.insert(path.to_vec(), plan.folders.len());
                plan.folders.push(PlannedFolder { path: path.to_vec(), at, mode, modified, xattrs });
            }
            TreeNode::Link(target) => plan.links.push(PlannedSymlink { folder, name, target, modified }),
            TreeNode::File(content) => {
                if let Some(&file) = self.first.get(&content.group).filter(|_| content.group != 0) {
                    plan.names.push(PlannedHardLink { folder, name, file });
                    return;
                }
                self.first.insert(content.group, plan.files.len());
                plan.files.push(PlannedFile { folder, name, mode, modified, content, xattrs });
            }
        }
    }
}

impl RestorePlan<'_> {
    /// Saturates, because sparse files may add up to more than a number holds.
    fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.content.size))
    }

    /// Files that the donor tree did not provide.
    fn missing(&self, given: &[bool]) -> impl Iterator<Item = &PlannedFile> {
        let given = given.iter().copied().chain(std::iter::repeat(false));
        self.files.iter().zip(given).filter(|(_, given)| !given).map(|(file, _)| file)
    }

    fn ladder(&self) -> DirectoryOpener<'_> {
        DirectoryOpener::new(self.target.folder.fd())
    }

    fn open(&self, ladder: &mut DirectoryOpener<'_>, folder: usize) -> Result<OwnedFd, Error> {
        let path = &self.folders[folder].path;
        ladder.open(path).map_err(|e| Error::system("open", path, e))
    }

    fn make_folders(&self) -> Result<(), Error> {
        let (mut above, mut ladder) = (None, self.ladder());
        for folder in &self.folders[1..] {
            let (parent, name) = split(&folder.path);
            let stale = !matches!(&above, Some((path, _)) if *path == parent);
            if stale {
                let opened = ladder.open(parent);
                above = Some((parent, opened.map_err(|e| Error::system("open", parent, e))?));
            }
            let (_, handle) = above.as_ref().expect("opened above");
            // Closed to other users until it is finished.
            make_directory(handle.as_fd(), name, 0o700)
                .map_err(|e| Error::system("make", &folder.path, e))?;
        }
        Ok(())
    }

    fn make_links(&self) -> Result<(), Error> {
        let itself = AtFlags::SYMLINK_NOFOLLOW;
        let mut ladder = self.ladder();
        for link in &self.links {
            let folder = self.open(&mut ladder, link.folder)?;
            let name = link.name.as_slice();
            let done = rustix::fs::symlinkat(link.target.as_slice(), &folder, name)
                .and_then(|()| match self.target.owner {
                    Some(FileOwner { uid, gid }) => {
                        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                        rustix::fs::chownat(&folder, name, Some(uid), Some(gid), itself)
                    }
                    None => Ok(()),
                })
                .and_then(|()| rustix::fs::utimensat(&folder, name, &link.modified.as_timestamps(), itself));
            done.map_err(|e| Error::system("link", name, e))?;
        }
        let mut firsts = self.ladder();
        for name in &self.names {
            let first = &self.files[name.file];
            let from = self.open(&mut firsts, first.folder)?;
            let to = self.open(&mut ladder, name.folder)?;
            rustix::fs::linkat(&from, first.name.as_slice(), &to, name.name.as_slice(), AtFlags::empty())
                .map_err(|e| Error::system("link", &name.name, e))?;
        }
        Ok(())
    }

    /// Sets the modes and times of directories last: filling a directory needs permissions and changes its time.
    fn finish_folders(&self) -> Result<(), Error> {
        let mut ladder = self.ladder();
        for (number, folder) in self.folders.iter().enumerate().skip(1).rev() {
            let handle = self.open(&mut ladder, number)?;
            set_xattrs(handle.as_fd(), &folder.xattrs);
            dress(handle.as_fd(), self.target.owner, folder.mode, folder.modified)
                .map_err(|e| Error::system("finish", &folder.path, e))?;
        }
        // The caller decides the mode of the root.
        let root = self.target.folder.fd();
        let done = give_to(root, self.target.owner)
            .and_then(|()| rustix::fs::futimens(root, &self.modified.as_timestamps()));
        done.map_err(|e| Error::system("finish", self.target.root.as_bytes(), e))
    }
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// The owner comes first, because changing it clears bits of the mode.
fn dress(
    handle: BorrowedFd<'_>,
    owner: Option<FileOwner>,
    mode: u32,
    modified: FileTime,
) -> rustix::io::Result<()> {
    give_to(handle, owner)?;
    rustix::fs::fchmod(handle, Mode::from_raw_mode(mode))?;
    rustix::fs::futimens(handle, &modified.as_timestamps())
}

fn remember(plans: &[RestorePlan<'_>], path: &Path, tree: &TreeId) {
    let mut folders = Vec::new();
    for plan in plans {
        folders.extend(remembered(plan));
    }
    // No process writes there before the restore returns.
    let seen = super::capture::now();
    let all: Vec<DirectoryUpdate<'_>> = folders
        .iter()
        .map(|(path, look, at, entries)| DirectoryUpdate { path, look: *look, seen, at: *at, entries })
        .collect();
    CaptureIndex::default().update(path, &[], &all, tree);
}

type RestoredDirectory =
    (Vec<u8>, StatFingerprint, ObjectRef, Vec<(Vec<u8>, StatFingerprint, IndexedContent)>);

/// The current attributes of every directory. A directory that cannot be read is left out, so the next capture reads
/// it.
fn remembered(plan: &RestorePlan<'_>) -> Vec<RestoredDirectory> {
    let mut known: Vec<Vec<(Vec<u8>, IndexedContent)>> = plan.folders.iter().map(|_| Vec::new()).collect();
    let numbers: HashMap<&[u8], usize> =
        plan.folders.iter().enumerate().map(|(n, folder)| (folder.path.as_slice(), n)).collect();
    for folder in &plan.folders[1..] {
        let (above, name) = split(&folder.path);
        known[numbers[above]].push((name.to_vec(), IndexedContent::Dir(folder.xattrs.clone())));
    }
    for file in &plan.files {
        known[file.folder].push((file.name.clone(), IndexedContent::File(file.content, file.xattrs.clone())));
    }
    for name in &plan.names {
        let first = &plan.files[name.file];
        known[name.folder]
            .push((name.name.clone(), IndexedContent::File(first.content, first.xattrs.clone())));
    }
    for link in &plan.links {
        known[link.folder].push((link.name.clone(), IndexedContent::Link(link.target.clone())));
    }
    let root = plan.target.root.as_bytes();
    let mut ladder = plan.ladder();
    let look_at =
        |(number, mut entries): (usize, Vec<(Vec<u8>, IndexedContent)>)| -> Option<RestoredDirectory> {
            let handle = plan.open(&mut ladder, number).ok()?;
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            let entries = entries.into_iter().map(|(name, known)| {
                let look = StatFingerprint::from(&FileAttributes::at(&handle, &name).ok()?);
                Some((name, look, known))
            });
            let entries = entries.collect::<Option<Vec<_>>>()?;
            let folder = &plan.folders[number];
            let slash = if folder.path.is_empty() { &b""[..] } else { b"/" };
            let look = StatFingerprint::from(&FileAttributes::of(&handle).ok()?);
            Some(([root, slash, &folder.path].concat(), look, folder.at, entries))
        };
    known.into_iter().enumerate().filter_map(look_at).collect()
}
