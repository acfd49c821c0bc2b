//! Remembers which tracked roots a directory is beneath. Most events concern no root, and those must cost only one lookup
//! in a table.
//!
//! What is remembered of a directory also holds for everything remembered beneath it. So a directory that moves between
//! roots clears the whole table; one that moves within its root changes nothing.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::{Errno, Result};

use super::handle::{self, FileHandle, HandleLookup, HandleMount};

pub(super) type TrackedRootId = u64;

/// Usually none, otherwise one; several where a root is inside another.
pub(super) type TrackedRoots = Arc<[TrackedRootId]>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RootMembership {
    Beneath(TrackedRoots),
    /// The directory no longer exists. Files that were opened in it may still exist under other names.
    Gone,
}

/// A path has at most 2048 names. Directories that a process made even deeper, by relative steps, are not worth the
/// climb.
const HIGHEST_CLIMB: usize = 8192;
const MAX_REMEMBERED: usize = 200_000;

#[derive(Default)]
pub(super) struct RootMembershipCache {
    roots: HashMap<FileHandle, Vec<TrackedRootId>>,
    known: HashMap<FileHandle, RootMembership>,
}

impl RootMembershipCache {
    pub(super) fn add(&mut self, root: FileHandle, id: TrackedRootId) {
        self.roots.entry(root).or_default().push(id);
        self.forget();
    }

    pub(super) fn remove(&mut self, id: TrackedRootId) {
        for ids in self.roots.values_mut() {
            ids.retain(|&other| other != id);
        }
        self.roots.retain(|_, ids| !ids.is_empty());
        self.forget();
    }

    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// On an error, the directory may be beneath any root.
    pub(super) fn of(&mut self, dir: &[u8], mount: &HandleMount) -> Result<RootMembership> {
        if let Some(place) = self.known.get(dir) {
            return Ok(place.clone());
        }
        if self.known.len() > MAX_REMEMBERED {
            self.forget();
        }
        let place = match self.climb(dir, mount) {
            Ok(roots) => RootMembership::Beneath(roots),
            Err(Errno::STALE) => RootMembership::Gone,
            Err(e) => return Err(e),
        };
        self.known.insert(dir.into(), place.clone());
        Ok(place)
    }

    /// The new directory may itself be a root, if it was tracked before we read the event of its creation.
    pub(super) fn created(&mut self, dir: &[u8], beneath: &TrackedRoots) {
        self.remember(vec![dir.into()], beneath.clone());
    }

    pub(super) fn deleted(&mut self, dir: &[u8]) {
        self.known.remove(dir);
    }

    /// Compares with what is remembered of the moved directory itself, not of its old parent, which may have moved
    /// since. The new place is not remembered: the kernel merges equal renames, so the last one that was read need
    /// not be the last one that happened.
    pub(super) fn moved(&mut self, dir: &[u8], to: &TrackedRoots) {
        match self.known.get(dir) {
            Some(RootMembership::Beneath(roots)) if roots == to => {}
            None if to.is_empty() => {}
            Some(_) | None => self.forget(),
        }
    }

    /// Goes up to the first directory that is known, or to the top.
    fn climb(&mut self, dir: &[u8], mount: &HandleMount) -> Result<TrackedRoots> {
        let mut at = mount.open(dir)?;
        let HandleLookup::Here(mut here) = mount.handle_of(at.as_fd())? else {
            return Ok(TrackedRoots::default());
        };
        let mut passed = Vec::new();
        let known = loop {
            if let Some(RootMembership::Beneath(roots)) = self.known.get(&here) {
                break roots.clone();
            }
            let above = match handle::above(at.as_fd()) {
                Ok(above) => above,
                // The mount does not show this part of the file system, so no root is there.
                Err(Errno::NOENT) => break TrackedRoots::default(),
                Err(e) => return Err(e),
            };
            let parent = match mount.handle_of(above.as_fd())? {
                HandleLookup::Here(parent) if parent != here => parent,
                HandleLookup::Here(_) | HandleLookup::ElseWhere => {
                    passed.push(here);
                    break TrackedRoots::default();
                }
            };
            passed.push(std::mem::replace(&mut here, parent));
            if passed.len() > HIGHEST_CLIMB {
                return Err(Errno::LOOP);
            }
            at = above;
        };
        Ok(self.remember(passed, known))
    }

    /// From the top down: each directory belongs to the roots of its parent, and to itself if it is a root.
    fn remember(&mut self, passed: Vec<FileHandle>, above: TrackedRoots) -> TrackedRoots {
        passed.into_iter().rev().fold(above, |above, dir| {
            let roots = match self.roots.get(&dir) {
                Some(ids) => above.iter().chain(ids).copied().collect(),
                None => above,
            };
            self.known.insert(dir, RootMembership::Beneath(roots.clone()));
            roots
        })
    }
}
