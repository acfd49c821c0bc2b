//! Changes into a folder: first everything is fetched and compared, then all of it is done or nothing. Whatever the
//! server says, nothing outside the folder is touched, no .git in it, and no link is made that leads out of it.

mod here;
mod spool;

use super::{
    LARGEST_FILE, LeftOut, Local,
    changes::{Change, Changes, Contents, How, Leaf, When},
};
use crate::{
    api::{Failure, Result},
    out,
};
use ash_model::Kind;
use ash_snapshot::{Folder, RelPath, Trouble};
use futures::{StreamExt, TryStreamExt, stream};
use here::Here;
use spool::{Span, Spool};
use std::{
    collections::{HashMap, HashSet},
    fmt,
    path::Path,
};

/// How many files are fetched at the same time.
const AT_ONCE: usize = 4;
/// As the kernel, which follows no more of them.
const MOST_LINKS: usize = 40;

/// What is to be done in a folder.
pub(super) struct Plan {
    folder: Folder,
    spool: Spool,
    steps: Vec<Step>,
    pub(super) conflicts: Vec<(String, Why)>,
    pub(super) left_out: Vec<LeftOut>,
}

#[derive(Debug, PartialEq, Eq)]
struct Step {
    path: RelPath,
    how: How,
    put: Put,
}

impl Step {
    fn deed(&self) -> Deed {
        let target = match &self.put {
            Put::Link { target } => Some(target.clone()),
            Put::Nothing | Put::File { .. } => None,
        };
        Deed { path: self.path.to_string(), how: self.how, target }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Put {
    Nothing,
    File { content: Span, mode: u32 },
    Link { target: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    ChangedHere,
    InTheWay,
}

impl Why {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Why::ChangedHere => "changed here too",
            Why::InTheWay => "a folder or a link is in its way",
        }
    }
}

/// What was done, in the order of the paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Done(pub(super) Vec<Deed>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deed {
    pub(super) path: String,
    pub(super) how: How,
    /// Of a link that was made.
    pub(super) target: Option<String>,
}

impl Done {
    pub(super) fn count(&self, how: How) -> usize {
        self.0.iter().filter(|deed| deed.how == how).count()
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [(How::Modified, "changed"), (How::Added, "added"), (How::Deleted, "deleted")];
        let counts = counts.map(|(how, word)| (self.count(how), word));
        let said: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        f.write_str(if said.is_empty() { "nothing to do" } else { "" })?;
        f.write_str(&said.join(", "))
    }
}

/// Compares and fetches; changes nothing.
pub(super) async fn plan(
    dir: &Path,
    changes: Changes,
    (contents, local): (&impl Contents, Local),
    fetched: &dyn Fn(u64),
) -> Result<Plan> {
    let (changes, left_out) = sorted(changes)?;
    let gone = changes.iter().filter(|(_, change)| change.now().is_none());
    let gone: HashSet<Vec<u8>> = gone.map(|(path, _)| path.as_bytes().to_vec()).collect();
    let links = changes.iter().filter_map(|(path, change)| match change.now() {
        Some(Leaf::Link { target }) => Some((path.as_bytes().to_vec(), target.clone().into_bytes())),
        Some(Leaf::File { .. }) | None => None,
    });
    let links = links.collect();
    let planning =
        Planning { folder: open(dir)?, spool: Spool::new()?, contents, local, gone, links, fetched };
    let verdicts: Vec<Verdict> = stream::iter(&changes)
        .map(|(path, change)| planning.judge(path, change))
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let Planning { folder, spool, .. } = planning;
    let mut plan = Plan { folder, spool, steps: Vec::new(), conflicts: Vec::new(), left_out };
    for ((path, change), verdict) in changes.into_iter().zip(verdicts) {
        match verdict {
            Verdict::AsWanted => {}
            Verdict::Do(put) => plan.steps.push(Step { path, how: change.change, put }),
            Verdict::Conflict(why) => plan.conflicts.push((change.path, why)),
            Verdict::TooLarge(size) => {
                let why = format!("{} is more than the server gives as one file", out::size(size));
                plan.left_out.push(LeftOut { path: change.path, why });
            }
            Verdict::Leaves(target) => {
                let why = format!("a link out of the folder, to {target}");
                plan.left_out.push(LeftOut { path: change.path, why });
            }
        }
    }
    Ok(plan)
}

type Sorted = (Vec<(RelPath, Change)>, Vec<LeftOut>);

/// What may be done, and what no pull does.
fn sorted(changes: Changes) -> Result<Sorted> {
    let (mut sorted, mut left_out) = (Vec::new(), Vec::new());
    for change in changes.files {
        // What git believes about a folder is its owner's alone, also where letters are the same in both cases.
        match change.path.split('/').any(|name| name.eq_ignore_ascii_case(".git")) {
            true => left_out.push(LeftOut { path: change.path, why: "git's own".to_owned() }),
            false => sorted.push((checked(&change)?, change)),
        }
    }
    Ok((sorted, left_out))
}

/// A path that stays inside by its form.
fn checked(change: &Change) -> Result<RelPath> {
    RelPath::parse(&change.path).map_err(|_| {
        let named = super::printable(&change.path);
        let why = "which is no path inside a folder; nothing was changed";
        Failure::new(Kind::Invalid, format!("the server names \"{named}\", {why}"))
    })
}

/// The last one first.
fn steps(target: &[u8]) -> Vec<Vec<u8>> {
    target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect()
}

fn open(dir: &Path) -> Result<Folder> {
    Folder::open(dir).map_err(|error| local(&error))
}

fn local(error: &ash_snapshot::Error) -> Failure {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    Failure::new(Kind::Internal, format!("{error}{cause}"))
}

enum Verdict {
    AsWanted,
    Do(Put),
    Conflict(Why),
    TooLarge(u64),
    /// A link that would lead to this, out of the folder.
    Leaves(String),
}

struct Planning<'a, C> {
    folder: Folder,
    spool: Spool,
    contents: &'a C,
    local: Local,
    /// What is going to be removed.
    gone: HashSet<Vec<u8>>,
    /// What is going to be a link, and where it will lead.
    links: HashMap<Vec<u8>, Vec<u8>>,
    fetched: &'a dyn Fn(u64),
}

impl<C: Contents> Planning<'_, C> {
    async fn judge(&self, path: &RelPath, change: &Change) -> Result<Verdict> {
        let here = self.look(path)?;
        match change.now() {
            None => self.removal(here, change).await,
            Some(Leaf::Link { target }) if !self.keeps_inside(path, target) => {
                Ok(Verdict::Leaves(target.clone()))
            }
            Some(Leaf::Link { target }) => {
                let is_there = matches!(&here, Here::Link(found) if found == target.as_bytes());
                let put = Put::Link { target: target.clone() };
                if is_there { Ok(Verdict::AsWanted) } else { self.allowed(here, change, put).await }
            }
            Some(Leaf::File { size, .. }) if *size > LARGEST_FILE => Ok(Verdict::TooLarge(*size)),
            Some(Leaf::File { mode, .. }) => self.file(here, change, *mode).await,
        }
    }

    /// Whether a link leads to a place in the folder, also through other links: those that are there, and those that come.
    fn keeps_inside(&self, path: &RelPath, target: &str) -> bool {
        let mut at: Vec<Vec<u8>> = path.as_bytes().split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
        at.pop();
        let mut todo = steps(target.as_bytes());
        let mut links = 0;
        while let Some(step) = todo.pop() {
            match step.as_slice() {
                b"" | b"." => {}
                b".." if at.pop().is_none() => return false,
                b".." => {}
                _ => {
                    at.push(step);
                    let Some(target) = self.link(&at.join(&b'/')) else { continue };
                    at.pop();
                    links += 1;
                    if links > MOST_LINKS || target.starts_with(b"/") {
                        return false;
                    }
                    todo.extend(steps(&target));
                }
            }
        }
        path.keeps_inside(target.as_bytes())
    }

    /// Where a link leads that will be there.
    fn link(&self, place: &[u8]) -> Option<Vec<u8>> {
        match self.links.get(place) {
            Some(target) => Some(target.clone()),
            None if self.gone.contains(place) => None,
            None => self.folder.read_link(&RelPath::met(place).ok()?).ok(),
        }
    }

    /// What the folder has there once everything that goes is gone.
    fn look(&self, path: &RelPath) -> Result<Here> {
        let slashes = path.as_bytes().iter().enumerate().filter(|(_, byte)| **byte == b'/');
        if slashes.map(|(at, _)| &path.as_bytes()[..at]).any(|above| self.gone.contains(above)) {
            return Ok(Here::Nothing);
        }
        let here = Here::look(&self.folder, path).map_err(|error| local(&error))?;
        match here {
            Here::Folder if here::holds_only(&self.folder, path, &self.gone) => Ok(Here::Nothing),
            here => Ok(here),
        }
    }

    async fn removal(&self, here: Here, change: &Change) -> Result<Verdict> {
        match here {
            // Behind a link or a folder of that name there is nothing of ours to remove.
            Here::Nothing | Here::Folder | Here::Blocked => Ok(Verdict::AsWanted),
            Here::File(..) | Here::Link(_) => self.allowed(here, change, Put::Nothing).await,
        }
    }

    async fn file(&self, mut here: Here, change: &Change, mode: u32) -> Result<Verdict> {
        let content = self.contents.content(&change.path, When::Now).await?;
        (self.fetched)(content.len() as u64);
        if here.holds(&content)? && here.is_executable() == Some(mode & 0o100 != 0) {
            return Ok(Verdict::AsWanted);
        }
        let mode = here.mode_for(mode);
        let put = Put::File { content: self.spool.add(&content)?, mode };
        self.allowed(here, change, put).await
    }

    /// Whether what is here may be replaced: it is nothing, or what was pushed, or the caller says so.
    async fn allowed(&self, mut here: Here, change: &Change, put: Put) -> Result<Verdict> {
        let is_known = match (&mut here, self.local) {
            (Here::Nothing, _) => true,
            (Here::Folder | Here::Blocked, _) => return Ok(Verdict::Conflict(Why::InTheWay)),
            (Here::File(..) | Here::Link(_), Local::Overwrite) => true,
            (Here::Link(found), Local::Keep) => {
                matches!(change.before(), Some(Leaf::Link { target }) if target.as_bytes() == found.as_slice())
            }
            (file @ Here::File(..), Local::Keep) => match change.before() {
                Some(Leaf::File { size, .. }) if file.size() == Some(*size) => {
                    file.holds(&self.contents.content(&change.path, When::Before).await?)?
                }
                Some(Leaf::File { .. } | Leaf::Link { .. }) | None => false,
            },
        };
        Ok(if is_known { Verdict::Do(put) } else { Verdict::Conflict(Why::ChangedHere) })
    }
}

impl Plan {
    /// What goes goes first: it may be in the way of what comes.
    pub(super) fn apply(&self) -> Result<Done> {
        for step in self.steps.iter().filter(|step| step.put == Put::Nothing) {
            self.remove(&step.path).map_err(|error| local(&error))?;
        }
        for step in &self.steps {
            match &step.put {
                Put::Nothing => {}
                Put::File { content, mode } => {
                    let mut bytes = self.spool.read(content);
                    self.folder
                        .replace_file(&step.path, &mut bytes, None, *mode)
                        .map_err(|error| local(&error))?;
                }
                Put::Link { target } => {
                    let linked = self.folder.symlink(&step.path, target.as_bytes(), None);
                    linked.map_err(|error| local(&error))?;
                }
            }
        }
        Ok(Done(self.steps.iter().map(Step::deed).collect()))
    }

    fn remove(&self, path: &RelPath) -> std::result::Result<(), ash_snapshot::Error> {
        match self.folder.remove_file(path) {
            Err(error) if error.kind() == Trouble::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.folder.remove_empty_folders(path),
        }
    }
}

#[cfg(test)]
mod tests;
