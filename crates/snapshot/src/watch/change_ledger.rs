//! Sorts events by the roots that they happened beneath.

use std::collections::HashMap;

use rustix::io::{Errno, Result};

use super::fanotify::{FanotifyEntry, FanotifyEvent};
use super::handle::{FileHandle, HandleMount};
use super::root_membership::{RootMembership, RootMembershipCache, TrackedRootId, TrackedRoots};
use super::seen_changes::SeenChanges;

pub(super) struct ChangeLedger {
    whereabouts: RootMembershipCache,
    roots: HashMap<TrackedRootId, SeenChanges>,
    last: TrackedRootId,
    bound: usize,
}

impl ChangeLedger {
    pub(super) fn new(bound: usize) -> ChangeLedger {
        ChangeLedger { whereabouts: RootMembershipCache::default(), roots: HashMap::new(), last: 0, bound }
    }

    pub(super) fn add(&mut self, root: FileHandle) -> TrackedRootId {
        self.last += 1;
        self.roots.insert(self.last, SeenChanges::default());
        self.whereabouts.add(root, self.last);
        self.last
    }

    pub(super) fn remove(&mut self, id: TrackedRootId) {
        self.roots.remove(&id);
        self.whereabouts.remove(id);
    }

    pub(super) fn take(&mut self, id: TrackedRootId) -> SeenChanges {
        self.roots.get_mut(&id).map(std::mem::take).unwrap_or_default()
    }

    /// Any change may have been missed, moves of directories included.
    pub(super) fn doubt(&mut self) {
        self.roots.values_mut().for_each(SeenChanges::everything);
        self.whereabouts.forget();
    }

    pub(super) fn note(&mut self, event: &FanotifyEvent<'_>, mount: &HandleMount) {
        if self.roots.is_empty() {
            return;
        }
        if let Err(error) = self.understand(event, mount) {
            tracing::debug!(%error, ?event, "a change has no known path: the next capture walks every tracked folder");
            self.doubt();
        }
    }

    fn understand(&mut self, event: &FanotifyEvent<'_>, mount: &HandleMount) -> Result<()> {
        if event.is_overflow() {
            return Err(Errno::OVERFLOW);
        }
        match (event.from, event.to, event.at) {
            (Some(from), Some(to), _) => self.renamed(event, from, to, mount),
            (None, None, Some(at)) if event.is_of_directory() => self.directory(event, at, mount),
            (None, None, Some(at)) => self.file(event, at, mount),
            // The event names no directory. If the file was not written, only its link count changed, and each link
            // has an event of its own.
            (None, None, None) if event.is_write() => self.file_somewhere(event, mount),
            (None, None, None) => Ok(()),
            (Some(_), None, _) | (None, Some(_), _) => Err(Errno::BADMSG),
        }
    }

    fn renamed(
        &mut self,
        event: &FanotifyEvent<'_>,
        from: FanotifyEntry<'_>,
        to: FanotifyEntry<'_>,
        mount: &HandleMount,
    ) -> Result<()> {
        let object = event.object.ok_or(Errno::BADMSG)?;
        let file = (!event.is_of_directory()).then_some(object);
        for place in [from, to] {
            if let RootMembership::Beneath(roots) = self.whereabouts.of(place.dir, mount)? {
                self.see(&roots, |seen| seen.name(place.dir, place.name, file));
            }
        }
        if event.is_of_directory()
            && let RootMembership::Beneath(roots) = self.whereabouts.of(to.dir, mount)?
        {
            self.see(&roots, |seen| seen.whole(object));
            self.whereabouts.moved(object, &roots);
        }
        Ok(())
    }

    fn directory(
        &mut self,
        event: &FanotifyEvent<'_>,
        at: FanotifyEntry<'_>,
        mount: &HandleMount,
    ) -> Result<()> {
        // The content of a deleted directory was deleted before it, and its own deletion is an event in its parent.
        let RootMembership::Beneath(roots) = self.whereabouts.of(at.dir, mount)? else { return Ok(()) };
        if at.name == b"." {
            self.see(&roots, |seen| seen.directory(at.dir));
            return Ok(());
        }
        let object = event.object.ok_or(Errno::BADMSG)?;
        self.see(&roots, |seen| {
            seen.name(at.dir, at.name, None);
            if event.is_create() {
                seen.whole(object);
            } else if !event.is_delete() {
                seen.directory(object);
            }
        });
        if event.is_create() {
            self.whereabouts.created(object, &roots);
        }
        if event.is_delete() {
            self.whereabouts.deleted(object);
        }
        Ok(())
    }

    fn file(&mut self, event: &FanotifyEvent<'_>, at: FanotifyEntry<'_>, mount: &HandleMount) -> Result<()> {
        match self.whereabouts.of(at.dir, mount)? {
            RootMembership::Beneath(roots) => {
                self.see(&roots, |seen| seen.name(at.dir, at.name, event.object));
                Ok(())
            }
            RootMembership::Gone => self.file_somewhere(event, mount),
        }
    }

    /// The file was opened through a deleted name, or through none. It may still have another name in any root.
    fn file_somewhere(&mut self, event: &FanotifyEvent<'_>, mount: &HandleMount) -> Result<()> {
        let object = event.object.ok_or(Errno::BADMSG)?;
        if let Some(inode) = mount.inode_of_living(object)? {
            let all: TrackedRoots = self.roots.keys().copied().collect();
            self.see(&all, |seen| seen.inode(inode));
        }
        Ok(())
    }

    fn see(&mut self, roots: &TrackedRoots, what: impl Fn(&mut SeenChanges)) {
        for id in roots.iter() {
            if let Some(seen) = self.roots.get_mut(id) {
                what(seen);
                seen.keep_within(self.bound);
            }
        }
    }
}
