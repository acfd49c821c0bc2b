//! The uids that this server gives to sandboxes.

use crate::{Error, Result};
use std::{collections::HashSet, sync::Mutex};

/// The uids that sandboxes of this node may have, one for each workspace.
pub struct UidPool {
    /// `None`: the server runs as an ordinary user, and so does every sandbox.
    range: Option<std::ops::Range<u32>>,
    used: Mutex<HashSet<u32>>,
}

impl UidPool {
    pub fn new(range: Option<std::ops::Range<u32>>) -> UidPool {
        UidPool { range, used: Mutex::default() }
    }

    pub(crate) fn allocate(&self) -> Result<Option<u32>> {
        let Some(range) = self.range.clone() else { return Ok(None) };
        let mut used = self.used.lock().expect("no thread panics while holding it");
        let free = range.clone().find(|uid| !used.contains(uid)).ok_or(Error::Capacity(range.len()))?;
        used.insert(free);
        Ok(Some(free))
    }

    /// Whether every workspace has a uid of its own.
    pub(crate) fn are_given(&self) -> bool {
        self.range.is_some()
    }

    pub(crate) fn mark_used(&self, uid: Option<u32>) {
        self.used.lock().expect("no thread panics while holding it").extend(uid);
    }

    pub(crate) fn release(&self, uid: Option<u32>) {
        if let Some(uid) = uid {
            self.used.lock().expect("no thread panics while holding it").remove(&uid);
        }
    }
}
