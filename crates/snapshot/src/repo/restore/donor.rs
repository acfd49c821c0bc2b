//! Reuses unchanged files of an older tree, so that a rewind writes only what differs.
//!
//! The files are hard-linked, so both trees hold them until the old one is erased. No process may work in the old
//! tree.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::AtFlags;

use super::{DirectoryOpener, PlannedFile, RestorePlan};
use crate::Folder;
use crate::folder::{FileAttributes, open_beneath};
use crate::index::{CaptureIndex, DirectoryUpdate, IndexedContent, IndexedDirectory, StatFingerprint};
use crate::object::StoredContent;

/// An older tree of the same owner, and the index of its last capture.
#[derive(Clone, Copy)]
pub struct DonorTree<'a> {
    /// The folder that holds its roots.
    pub folder: &'a Folder,
    /// The index of the donor's last capture.
    pub index: &'a Path,
}

pub(super) struct DonorLinker<'a> {
    folder: &'a Folder,
    index: CaptureIndex,
}

impl<'a> DonorLinker<'a> {
    pub(super) fn new(donor: DonorTree<'a>) -> DonorLinker<'a> {
        DonorLinker { folder: donor.folder, index: CaptureIndex::load(donor.index) }
    }

    /// Links the files that both trees share. Returns which files of the plan now exist and need not be written.
    pub(super) fn give(&self, plan: &RestorePlan<'_>) -> Vec<bool> {
        let mut given = vec![false; plan.files.len()];
        let mut ladder = plan.ladder();
        let mut by_folder: HashMap<usize, Vec<usize>> = HashMap::new();
        for (number, file) in plan.files.iter().enumerate() {
            by_folder.entry(file.folder).or_default().push(number);
        }
        for (folder, files) in by_folder {
            if let Some(here) = self.open(plan, &mut ladder, folder) {
                for number in files {
                    given[number] = here.give(&plan.files[number]);
                }
            }
        }
        given
    }

    fn open<'g>(
        &'g self,
        plan: &RestorePlan<'_>,
        ladder: &mut DirectoryOpener<'_>,
        folder: usize,
    ) -> Option<DonorDirectory<'g>> {
        let root = plan.target.root.as_bytes();
        let path = &plan.folders[folder].path;
        let path = if path.is_empty() { root.to_vec() } else { [root, b"/", path].concat() };
        let known = self.index.get(&path)?;
        let from = open_beneath(self.folder.fd(), &path).ok()?;
        let to = plan.open(ladder, folder).ok()?;
        let files = self.index.entries(known).filter_map(|entry| match entry.known() {
            IndexedContent::File(content, xattrs) => Some((entry.name, (entry.look, content, xattrs))),
            IndexedContent::Dir(_) | IndexedContent::Link(_) | IndexedContent::Skipped(_) => None,
        });
        let files = files.collect();
        Some(DonorDirectory { known, files, from, to, owner: plan.target.owner.map(|owner| owner.uid) })
    }
}

struct DonorDirectory<'g> {
    known: &'g IndexedDirectory,
    files: HashMap<&'g [u8], (StatFingerprint, StoredContent, crate::object::Xattrs)>,
    from: OwnedFd,
    to: OwnedFd,
    owner: Option<u32>,
}

impl DonorDirectory<'_> {
    fn give(&self, file: &PlannedFile) -> bool {
        let Some((look, content, xattrs)) = self.files.get(file.name.as_slice()) else { return false };
        let same = content.size == file.content.size
            && content.layout.object().map(|at| at.id) == file.content.layout.object().map(|at| at.id)
            && look.mode == file.mode
            && look.modified == file.modified
            && *xattrs == file.xattrs
            // Its other names would become links to the new tree's file.
            && !look.linked
            && file.content.group == 0;
        let Ok(is) = FileAttributes::at(&self.from, &file.name) else { return false };
        let untouched = StatFingerprint::from(&is) == *look && !self.known.is_racy(look.changed);
        let owned = self.owner.is_none_or(|owner| owner == is.uid);
        let name = file.name.as_slice();
        same && untouched
            && owned
            && rustix::fs::linkat(&self.from, name, &self.to, name, AtFlags::empty()).is_ok()
    }
}

/// Updates the index after the older tree was erased, because its removal changed the times of the linked files. No
/// process may work in these folders meanwhile.
pub(super) fn refresh(index: &Path, folder: &Folder) {
    let mut remembered = CaptureIndex::load(index);
    let Some(base) = remembered.base().cloned() else { return };
    let seen = crate::repo::capture::now();
    let mut directories = Vec::new();
    for path in remembered.paths() {
        let Some(known) = remembered.get(path) else { continue };
        let Ok(handle) = open_beneath(folder.fd(), path) else { continue };
        let mut changed = false;
        let entries: Vec<(Vec<u8>, StatFingerprint, IndexedContent)> = remembered
            .entries(known)
            .map(|entry| {
                let now = FileAttributes::at(&handle, entry.name)
                    .map(|is| StatFingerprint::from(&is))
                    .unwrap_or(entry.look);
                let only_time =
                    StatFingerprint { changed: now.changed, linked: now.linked, ..entry.look } == now;
                let look = if only_time { now } else { entry.look };
                changed |= look != entry.look;
                (entry.name.to_vec(), look, entry.known())
            })
            .collect();
        if changed {
            directories.push((path.clone(), known.look, known.at, entries));
        }
    }
    let changed: Vec<DirectoryUpdate<'_>> = directories
        .iter()
        .map(|(path, look, at, entries)| DirectoryUpdate { path, look: *look, seen, at: *at, entries })
        .collect();
    remembered.update(index, &[], &changed, &base);
}
