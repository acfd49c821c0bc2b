//! The answer: what a capture must visit.

use std::collections::{BTreeMap, BTreeSet};

use crate::RelPath;

/// What was touched beneath a root. See [`crate::Watch`] for what to do with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// It is not known: walk the whole root.
    Everything,
    Folders {
        /// By path relative to the root; the root itself is the empty path. A folder that is listed has itself
        /// been touched too (its time, its mode). Nothing beneath a folder with [`Names::All`] is listed.
        folders: BTreeMap<Vec<u8>, Names>,
        /// Inodes of touched files that have, or had, another name than the listed one: visit every name that
        /// the last capture found them under.
        linked: BTreeSet<u64>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// These names in the folder: created, changed, or gone.
    These(BTreeSet<Vec<u8>>),
    /// The folder with all that is beneath: it is new, or was moved here.
    All,
}

impl Default for Touched {
    fn default() -> Touched {
        Touched::Folders { folders: BTreeMap::new(), linked: BTreeSet::new() }
    }
}

impl Touched {
    pub fn is_nothing(&self) -> bool {
        *self == Touched::default()
    }

    /// With these files beside.
    pub fn with(self, files: Vec<RelPath>) -> Touched {
        let mut more: BTreeMap<Vec<u8>, Names> = BTreeMap::new();
        for file in &files {
            let (folder, name) = file.split();
            let folder = if folder == b"." { b"" } else { folder };
            let names = more.entry(folder.to_vec()).or_insert(Names::These(BTreeSet::new()));
            if let Names::These(names) = names {
                names.insert(name.to_vec());
            }
        }
        self.and(Touched::Folders { folders: more, linked: BTreeSet::new() }, usize::MAX)
    }

    /// Both together; above `bound` names it is everything.
    pub(super) fn and(self, other: Touched, bound: usize) -> Touched {
        let (
            Touched::Folders { mut folders, mut linked },
            Touched::Folders { folders: more, linked: more_linked },
        ) = (self, other)
        else {
            return Touched::Everything;
        };
        for (path, names) in more {
            let known = folders.remove(&path).unwrap_or(Names::These(BTreeSet::new()));
            folders.insert(path, known.and(names));
        }
        linked.extend(more_linked);
        let size = linked.len() + folders.values().map(Names::len).sum::<usize>();
        if size > bound {
            return Touched::Everything;
        }
        let mut both = Touched::Folders { folders, linked };
        both.drop_what_is_beneath_whole_ones();
        both
    }

    pub(super) fn drop_what_is_beneath_whole_ones(&mut self) {
        let Touched::Folders { folders, .. } = self else { return };
        let whole: BTreeSet<Vec<u8>> =
            folders.iter().filter(|(_, names)| **names == Names::All).map(|(path, _)| path.clone()).collect();
        if !whole.is_empty() {
            folders.retain(|path, _| !above(path).any(|above| whole.contains(above)));
        }
    }
}

impl Names {
    fn and(self, other: Names) -> Names {
        match (self, other) {
            (Names::These(names), Names::These(more)) => {
                Names::These(names.into_iter().chain(more).collect())
            }
            (Names::All, Names::These(_) | Names::All) | (Names::These(_), Names::All) => Names::All,
        }
    }

    fn len(&self) -> usize {
        match self {
            Names::These(names) => 1 + names.len(),
            Names::All => 1,
        }
    }
}

/// The folders that a path is in, the root first; the root is in none.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let root = (!path.is_empty()).then_some(&path[..0]);
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    root.into_iter().chain(slashes.map(|(at, _)| &path[..at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn these(names: &[&str]) -> Names {
        Names::These(names.iter().map(|name| name.as_bytes().to_vec()).collect())
    }

    fn folders(of: &[(&str, Names)], linked: &[u64]) -> Touched {
        let folders = of.iter().map(|(path, names)| (path.as_bytes().to_vec(), names.clone())).collect();
        Touched::Folders { folders, linked: linked.iter().copied().collect() }
    }

    #[test]
    fn what_is_given_back_is_added_to_what_came_since() {
        let one = folders(&[("", these(&["a"])), ("a", these(&["x"])), ("a/b", these(&["y"]))], &[1]);
        let two = folders(&[("", these(&["b"])), ("a", Names::All), ("a-b", these(&["z"]))], &[2]);
        let both = [("", these(&["a", "b"])), ("a", Names::All), ("a-b", these(&["z"]))];
        assert_eq!(one.clone().and(two.clone(), 100), folders(&both, &[1, 2]));
        assert_eq!(one.clone().and(two, 5), Touched::Everything);
        assert_eq!(one.clone().and(Touched::Everything, 100), Touched::Everything);
        assert_eq!(one.clone().and(Touched::default(), 100), one);
    }

    #[test]
    fn a_whole_root_says_it_all() {
        let mut touched = folders(&[("", Names::All), ("a", these(&["x"])), ("a/b", Names::All)], &[1]);
        touched.drop_what_is_beneath_whole_ones();
        assert_eq!(touched, folders(&[("", Names::All)], &[1]));
    }
}
