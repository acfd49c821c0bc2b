//! The result of a watch: what a capture must visit.

use std::collections::{BTreeMap, BTreeSet};

use crate::RelPath;

/// What was touched beneath a root. See [`crate::FilesystemWatch`] for how to use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TouchedPaths {
    /// Unknown: walk the whole root.
    Everything,
    /// Only these folders were touched.
    Folders {
        /// By path relative to the root; the root itself is the empty path. A listed folder was also touched itself
        /// (its time, its mode). Nothing beneath a folder with [`TouchedNames::All`] is listed.
        folders: BTreeMap<Vec<u8>, TouchedNames>,
        /// Inodes of touched files that have, or had, a name other than the listed one: visit every name under which
        /// the last capture found them.
        linked: BTreeSet<u64>,
    },
}

/// The names in a folder that were touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TouchedNames {
    /// These names in the folder: created, changed or removed.
    These(BTreeSet<Vec<u8>>),
    /// The folder with everything beneath: it is new, or was moved here.
    All,
}

impl Default for TouchedPaths {
    fn default() -> TouchedPaths {
        TouchedPaths::Folders { folders: BTreeMap::new(), linked: BTreeSet::new() }
    }
}

impl TouchedPaths {
    /// Whether nothing was touched.
    pub fn is_empty(&self) -> bool {
        *self == TouchedPaths::default()
    }

    /// Adds these files.
    pub fn with_files(self, files: Vec<RelPath>) -> TouchedPaths {
        let mut more: BTreeMap<Vec<u8>, TouchedNames> = BTreeMap::new();
        for file in &files {
            let (folder, name) = file.split();
            let folder = if folder == b"." { b"" } else { folder };
            let names = more.entry(folder.to_vec()).or_insert(TouchedNames::These(BTreeSet::new()));
            if let TouchedNames::These(names) = names {
                names.insert(name.to_vec());
            }
        }
        self.and(TouchedPaths::Folders { folders: more, linked: BTreeSet::new() }, usize::MAX)
    }

    /// The union of both; with more than `bound` names it is everything.
    pub(super) fn and(self, other: TouchedPaths, bound: usize) -> TouchedPaths {
        let (
            TouchedPaths::Folders { mut folders, mut linked },
            TouchedPaths::Folders { folders: more, linked: more_linked },
        ) = (self, other)
        else {
            return TouchedPaths::Everything;
        };
        for (path, names) in more {
            let known = folders.remove(&path).unwrap_or(TouchedNames::These(BTreeSet::new()));
            folders.insert(path, known.and(names));
        }
        linked.extend(more_linked);
        let size = linked.len() + folders.values().map(TouchedNames::len).sum::<usize>();
        if size > bound {
            return TouchedPaths::Everything;
        }
        let mut both = TouchedPaths::Folders { folders, linked };
        both.drop_what_is_beneath_whole_ones();
        both
    }

    pub(super) fn drop_what_is_beneath_whole_ones(&mut self) {
        let TouchedPaths::Folders { folders, .. } = self else { return };
        let whole: BTreeSet<Vec<u8>> = folders
            .iter()
            .filter(|(_, names)| **names == TouchedNames::All)
            .map(|(path, _)| path.clone())
            .collect();
        if !whole.is_empty() {
            folders.retain(|path, _| !above(path).any(|above| whole.contains(above)));
        }
    }
}

impl TouchedNames {
    fn and(self, other: TouchedNames) -> TouchedNames {
        match (self, other) {
            (TouchedNames::These(names), TouchedNames::These(more)) => {
                TouchedNames::These(names.into_iter().chain(more).collect())
            }
            (TouchedNames::All, TouchedNames::These(_) | TouchedNames::All)
            | (TouchedNames::These(_), TouchedNames::All) => TouchedNames::All,
        }
    }

    fn len(&self) -> usize {
        match self {
            TouchedNames::These(names) => 1 + names.len(),
            TouchedNames::All => 1,
        }
    }
}

/// The folders above a path, the root first; the root itself has none.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let root = (!path.is_empty()).then_some(&path[..0]);
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    root.into_iter().chain(slashes.map(|(at, _)| &path[..at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn these(names: &[&str]) -> TouchedNames {
        TouchedNames::These(names.iter().map(|name| name.as_bytes().to_vec()).collect())
    }

    fn folders(of: &[(&str, TouchedNames)], linked: &[u64]) -> TouchedPaths {
        let folders = of.iter().map(|(path, names)| (path.as_bytes().to_vec(), names.clone())).collect();
        TouchedPaths::Folders { folders, linked: linked.iter().copied().collect() }
    }

    #[test]
    fn returned_changes_are_merged_with_later_ones() {
        let one = folders(&[("", these(&["a"])), ("a", these(&["x"])), ("a/b", these(&["y"]))], &[1]);
        let two = folders(&[("", these(&["b"])), ("a", TouchedNames::All), ("a-b", these(&["z"]))], &[2]);
        let both = [("", these(&["a", "b"])), ("a", TouchedNames::All), ("a-b", these(&["z"]))];
        assert_eq!(one.clone().and(two.clone(), 100), folders(&both, &[1, 2]));
        assert_eq!(one.clone().and(two, 5), TouchedPaths::Everything);
        assert_eq!(one.clone().and(TouchedPaths::Everything, 100), TouchedPaths::Everything);
        assert_eq!(one.clone().and(TouchedPaths::default(), 100), one);
    }

    #[test]
    fn a_whole_root_says_it_all() {
        let mut touched =
            folders(&[("", TouchedNames::All), ("a", these(&["x"])), ("a/b", TouchedNames::All)], &[1]);
        touched.drop_what_is_beneath_whole_ones();
        assert_eq!(touched, folders(&[("", TouchedNames::All)], &[1]));
    }
}
