//! Applies a pull to a folder. It first fetches and compares everything, then applies all changes or none. The server
//! is not trusted: whatever it sends, nothing outside the folder or in a .git changes, and no link that leads out of
//! the folder is made.

mod local_entry;
mod spool;

use super::{
    LARGEST_FILE, LocalChangePolicy, SkippedFile,
    changes::{ContentSource, DiffSide, WorkspaceChange, WorkspaceChangeKind, WorkspaceDiff, WorkspaceEntry},
};
use crate::{
    api::{CliError, Result},
    terminal,
};
use ash_model::FailureKind;
use ash_snapshot::{Folder, RelPath, SnapshotErrorKind};
use futures::{StreamExt, TryStreamExt, stream};
use local_entry::LocalEntry;
use spool::{ContentSpool, SpoolSpan};
use std::{
    collections::{HashMap, HashSet},
    fmt,
    path::Path,
};

/// Number of files that are fetched in parallel.
const MAX_PARALLEL_FETCHES: usize = 4;
/// The kernel also follows at most this many links.
const MOST_LINKS: usize = 40;

/// The checked changes to a folder.
pub(super) struct PullPlan {
    folder: Folder,
    spool: ContentSpool,
    steps: Vec<PullStep>,
    pub(super) conflicts: Vec<(String, PullConflict)>,
    pub(super) left_out: Vec<SkippedFile>,
}

#[derive(Debug, PartialEq, Eq)]
struct PullStep {
    path: RelPath,
    how: WorkspaceChangeKind,
    put: PullReplacement,
}

impl PullStep {
    fn deed(&self) -> Deed {
        let target = match &self.put {
            PullReplacement::Link { target } => Some(target.clone()),
            PullReplacement::Remove | PullReplacement::File { .. } => None,
        };
        Deed { path: self.path.to_string(), how: self.how, target }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum PullReplacement {
    Remove,
    File { content: SpoolSpan, mode: u32 },
    Link { target: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PullConflict {
    ChangedHere,
    InTheWay,
}

impl PullConflict {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            PullConflict::ChangedHere => "changed here too",
            PullConflict::InTheWay => "a folder or a link is in its way",
        }
    }
}

/// The applied changes, in the order of the paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PullReport(pub(super) Vec<Deed>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deed {
    pub(super) path: String,
    pub(super) how: WorkspaceChangeKind,
    /// Target of a new link.
    pub(super) target: Option<String>,
}

impl PullReport {
    pub(super) fn count(&self, how: WorkspaceChangeKind) -> usize {
        self.0.iter().filter(|deed| deed.how == how).count()
    }
}

impl fmt::Display for PullReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (WorkspaceChangeKind::Modified, "changed"),
            (WorkspaceChangeKind::Added, "added"),
            (WorkspaceChangeKind::Deleted, "deleted"),
        ];
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

/// Compares and fetches, but changes nothing.
pub(super) async fn plan(
    dir: &Path,
    changes: WorkspaceDiff,
    (contents, local): (&impl ContentSource, LocalChangePolicy),
    fetched: &dyn Fn(u64),
) -> Result<PullPlan> {
    let (changes, left_out) = sorted(changes)?;
    let gone = changes.iter().filter(|(_, change)| change.now().is_none());
    let gone: HashSet<Vec<u8>> = gone.map(|(path, _)| path.as_bytes().to_vec()).collect();
    let links = changes.iter().filter_map(|(path, change)| match change.now() {
        Some(WorkspaceEntry::Link { target }) => {
            Some((path.as_bytes().to_vec(), target.clone().into_bytes()))
        }
        Some(WorkspaceEntry::File { .. }) | None => None,
    });
    let links = links.collect();
    let planning = PullPlanner {
        folder: open(dir)?,
        spool: ContentSpool::new()?,
        contents,
        local,
        gone,
        links,
        fetched,
    };
    let verdicts: Vec<PullDecision> = stream::iter(&changes)
        .map(|(path, change)| planning.judge(path, change))
        .buffered(MAX_PARALLEL_FETCHES)
        .try_collect()
        .await?;
    let PullPlanner { folder, spool, .. } = planning;
    let mut plan = PullPlan { folder, spool, steps: Vec::new(), conflicts: Vec::new(), left_out };
    for ((path, change), verdict) in changes.into_iter().zip(verdicts) {
        match verdict {
            PullDecision::AlreadyApplied => {}
            PullDecision::Apply(put) => plan.steps.push(PullStep { path, how: change.change, put }),
            PullDecision::Conflict(why) => plan.conflicts.push((change.path, why)),
            PullDecision::TooLarge(size) => {
                let why =
                    format!("{} is more than the server gives as one file", terminal::format_bytes(size));
                plan.left_out.push(SkippedFile { path: change.path, why });
            }
            PullDecision::Leaves(target) => {
                let why = format!("a link out of the folder, to {target}");
                plan.left_out.push(SkippedFile { path: change.path, why });
            }
        }
    }
    Ok(plan)
}

type Sorted = (Vec<(RelPath, WorkspaceChange)>, Vec<SkippedFile>);

/// Separates the changes that a pull applies from those that it never applies.
fn sorted(changes: WorkspaceDiff) -> Result<Sorted> {
    let (mut sorted, mut left_out) = (Vec::new(), Vec::new());
    for change in changes.files {
        // The state of git belongs to the user. The check ignores case, because some file systems do.
        match change.path.split('/').any(|name| name.eq_ignore_ascii_case(".git")) {
            true => left_out.push(SkippedFile { path: change.path, why: "git's own".to_owned() }),
            false => sorted.push((checked(&change)?, change)),
        }
    }
    Ok((sorted, left_out))
}

/// Accepts only a path that is inside by its syntax.
fn checked(change: &WorkspaceChange) -> Result<RelPath> {
    RelPath::parse(&change.path).map_err(|_| {
        let named = super::printable(&change.path);
        let why = "which is no path inside a folder; nothing was changed";
        CliError::new(FailureKind::Invalid, format!("the server names \"{named}\", {why}"))
    })
}

/// The steps of a link target, last one first.
fn steps(target: &[u8]) -> Vec<Vec<u8>> {
    target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect()
}

fn open(dir: &Path) -> Result<Folder> {
    Folder::open(dir).map_err(|error| local(&error))
}

fn local(error: &ash_snapshot::Error) -> CliError {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    CliError::new(FailureKind::Internal, format!("{error}{cause}"))
}

enum PullDecision {
    AlreadyApplied,
    Apply(PullReplacement),
    Conflict(PullConflict),
    TooLarge(u64),
    /// A link whose target is this path, outside of the folder.
    Leaves(String),
}

struct PullPlanner<'a, C> {
    folder: Folder,
    spool: ContentSpool,
    contents: &'a C,
    local: LocalChangePolicy,
    /// Paths that the pull removes.
    gone: HashSet<Vec<u8>>,
    /// Links that the pull makes, with their targets.
    links: HashMap<Vec<u8>, Vec<u8>>,
    fetched: &'a dyn Fn(u64),
}

impl<C: ContentSource> PullPlanner<'_, C> {
    async fn judge(&self, path: &RelPath, change: &WorkspaceChange) -> Result<PullDecision> {
        let here = self.look(path)?;
        match change.now() {
            None => self.removal(here, change).await,
            Some(WorkspaceEntry::Link { target }) if !self.keeps_inside(path, target) => {
                Ok(PullDecision::Leaves(target.clone()))
            }
            Some(WorkspaceEntry::Link { target }) => {
                let is_there = matches!(&here, LocalEntry::Link(found) if found == target.as_bytes());
                let put = PullReplacement::Link { target: target.clone() };
                if is_there {
                    Ok(PullDecision::AlreadyApplied)
                } else {
                    self.allowed(here, change, put).await
                }
            }
            Some(WorkspaceEntry::File { size, .. }) if *size > LARGEST_FILE => {
                Ok(PullDecision::TooLarge(*size))
            }
            Some(WorkspaceEntry::File { mode, .. }) => self.file(here, change, *mode).await,
        }
    }

    /// Whether a link leads into the folder, also through other links: existing ones and those that the pull makes.
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
        path.link_stays_inside(target.as_bytes())
    }

    /// The target of a link that exists after the pull.
    fn link(&self, place: &[u8]) -> Option<Vec<u8>> {
        match self.links.get(place) {
            Some(target) => Some(target.clone()),
            None if self.gone.contains(place) => None,
            None => self.folder.read_link(&RelPath::from_walk(place).ok()?).ok(),
        }
    }

    /// What the folder has at this path after all removals.
    fn look(&self, path: &RelPath) -> Result<LocalEntry> {
        let slashes = path.as_bytes().iter().enumerate().filter(|(_, byte)| **byte == b'/');
        if slashes.map(|(at, _)| &path.as_bytes()[..at]).any(|above| self.gone.contains(above)) {
            return Ok(LocalEntry::Nothing);
        }
        let here = LocalEntry::look(&self.folder, path).map_err(|error| local(&error))?;
        match here {
            LocalEntry::Folder if local_entry::holds_only(&self.folder, path, &self.gone) => {
                Ok(LocalEntry::Nothing)
            }
            here => Ok(here),
        }
    }

    async fn removal(&self, here: LocalEntry, change: &WorkspaceChange) -> Result<PullDecision> {
        match here {
            // A link or a folder at this path, or above it, is not what the server removed.
            LocalEntry::Nothing | LocalEntry::Folder | LocalEntry::Blocked => {
                Ok(PullDecision::AlreadyApplied)
            }
            LocalEntry::File(..) | LocalEntry::Link(_) => {
                self.allowed(here, change, PullReplacement::Remove).await
            }
        }
    }

    async fn file(&self, mut here: LocalEntry, change: &WorkspaceChange, mode: u32) -> Result<PullDecision> {
        let content = self.contents.content(&change.path, DiffSide::Now).await?;
        (self.fetched)(content.len() as u64);
        if here.has_content(&content)? && here.is_executable() == Some(mode & 0o100 != 0) {
            return Ok(PullDecision::AlreadyApplied);
        }
        let mode = here.mode_for(mode);
        let put = PullReplacement::File { content: self.spool.add(&content)?, mode };
        self.allowed(here, change, put).await
    }

    /// Whether the local entry may be replaced: it does not exist, is unchanged since the push, or the caller said so.
    async fn allowed(
        &self,
        mut here: LocalEntry,
        change: &WorkspaceChange,
        put: PullReplacement,
    ) -> Result<PullDecision> {
        let is_known = match (&mut here, self.local) {
            (LocalEntry::Nothing, _) => true,
            (LocalEntry::Folder | LocalEntry::Blocked, _) => {
                return Ok(PullDecision::Conflict(PullConflict::InTheWay));
            }
            (LocalEntry::File(..) | LocalEntry::Link(_), LocalChangePolicy::Overwrite) => true,
            (LocalEntry::Link(found), LocalChangePolicy::KeepLocal) => {
                matches!(change.before(), Some(WorkspaceEntry::Link { target }) if target.as_bytes() == found.as_slice())
            }
            (file @ LocalEntry::File(..), LocalChangePolicy::KeepLocal) => match change.before() {
                Some(WorkspaceEntry::File { size, .. }) if file.size() == Some(*size) => {
                    file.has_content(&self.contents.content(&change.path, DiffSide::Before).await?)?
                }
                Some(WorkspaceEntry::File { .. } | WorkspaceEntry::Link { .. }) | None => false,
            },
        };
        Ok(if is_known {
            PullDecision::Apply(put)
        } else {
            PullDecision::Conflict(PullConflict::ChangedHere)
        })
    }
}

impl PullPlan {
    /// Removals come first: a removed entry may be in the way of a new one.
    pub(super) fn apply(&self) -> Result<PullReport> {
        for step in self.steps.iter().filter(|step| step.put == PullReplacement::Remove) {
            self.remove(&step.path).map_err(|error| local(&error))?;
        }
        for step in &self.steps {
            match &step.put {
                PullReplacement::Remove => {}
                PullReplacement::File { content, mode } => {
                    let mut bytes = self.spool.read(content);
                    self.folder
                        .replace_file(&step.path, &mut bytes, None, *mode)
                        .map_err(|error| local(&error))?;
                }
                PullReplacement::Link { target } => {
                    let linked = self.folder.symlink(&step.path, target.as_bytes(), None);
                    linked.map_err(|error| local(&error))?;
                }
            }
        }
        Ok(PullReport(self.steps.iter().map(PullStep::deed).collect()))
    }

    fn remove(&self, path: &RelPath) -> std::result::Result<(), ash_snapshot::Error> {
        match self.folder.remove_file(path) {
            Err(error) if error.kind() == SnapshotErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.folder.remove_empty_folders(path),
        }
    }
}

#[cfg(test)]
mod tests;
