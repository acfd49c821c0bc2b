//! `ash snapshot list` and `diff`: list snapshots, resolve ids, and compare two snapshots.

use super::{
    FILES, OpenRepository, SESSION_ROOTS, repository_error,
    save::{FolderSnapshotNote, NOTE, id, short},
};
use crate::{
    api::{CliError, Result},
    terminal::{self, TerminalStyle, TextTable, paint},
};
use ash_model::{
    FailureKind, Timestamp,
    embedded_log::{PackSessionRecord, SESSION_NOTE},
};
use ash_snapshot::{Folder, PathChange, TreeId, changes};
use serde_json::{Value, json};
use std::{path::Path, time::UNIX_EPOCH};

/// A longer diff is of no use to a reader.
const MAX_DIFF_FILES: usize = 5_000_000;

pub(super) struct SnapshotListItem {
    pub(super) tree: TreeId,
    pub(super) at: Timestamp,
    /// New bytes in this snapshot.
    pub(super) size: u64,
    pub(super) what: SnapshotOrigin,
}

pub(super) enum SnapshotOrigin {
    Folder(FolderSnapshotNote),
    Checkpoint(Box<PackSessionRecord>),
    /// An agent's own files, or a snapshot of unknown origin.
    Other,
}

impl SnapshotListItem {
    pub(super) fn shown(&self) -> String {
        match &self.what {
            SnapshotOrigin::Folder(note) => note.path.clone(),
            SnapshotOrigin::Checkpoint(record) => {
                format!("session {}, checkpoint {}", record.session, record.checkpoint)
            }
            SnapshotOrigin::Other => "an agent's files".to_owned(),
        }
    }

    pub(super) fn record(&self) -> Option<&PackSessionRecord> {
        match &self.what {
            SnapshotOrigin::Checkpoint(record) => Some(record),
            SnapshotOrigin::Folder(_) | SnapshotOrigin::Other => None,
        }
    }

    /// Snapshots with the same value form one history.
    pub(super) fn of(&self) -> Option<(&str, &str)> {
        match &self.what {
            SnapshotOrigin::Folder(note) => Some((&note.host, &note.path)),
            SnapshotOrigin::Checkpoint(record) => Some((record.tenant.as_str(), record.session.as_str())),
            SnapshotOrigin::Other => None,
        }
    }

    pub(super) fn json(&self) -> Value {
        let mut shown = json!({ "id": id(&self.tree), "tree": self.tree.as_str(), "at": self.at.to_string(), "written": self.size });
        let more = match &self.what {
            SnapshotOrigin::Folder(note) => {
                json!({ "path": note.path, "host": note.host, "files": note.files, "bytes": note.bytes })
            }
            SnapshotOrigin::Checkpoint(record) => {
                json!({ "tenant": record.tenant, "session": record.session, "checkpoint": record.checkpoint, "turn": record.turn })
            }
            SnapshotOrigin::Other => json!({}),
        };
        if let (Some(shown), Value::Object(more)) = (shown.as_object_mut(), more) {
            shown.extend(more);
        }
        shown
    }
}

pub(super) struct SnapshotListing {
    /// Newest first.
    pub(super) snapshots: Vec<SnapshotListItem>,
    /// Forgotten snapshots, of which only the history is kept.
    pub(super) forgotten: Vec<SnapshotListItem>,
    pub(super) broken: Vec<String>,
}

/// Reads every snapshot of the repository.
pub(super) fn read(place: &OpenRepository) -> Result<SnapshotListing> {
    let forgotten = place.forgotten()?;
    let (snapshots, mut broken) = place.repo.snapshots().map_err(repository_error(place))?;
    let (mut listed, mut gone) = (Vec::new(), Vec::new());
    for snapshot in snapshots {
        let what = what(place, &snapshot.tree, &snapshot.notes).unwrap_or_else(|error| {
            broken.push(error.to_string());
            SnapshotOrigin::Other
        });
        let written = snapshot.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
        let at = match &what {
            SnapshotOrigin::Folder(note) => note.at,
            SnapshotOrigin::Checkpoint(record) => record.at,
            SnapshotOrigin::Other => Timestamp(written),
        };
        let one = SnapshotListItem { at, size: snapshot.size, what, tree: snapshot.tree };
        if forgotten.contains(&one.tree) { gone.push(one) } else { listed.push(one) }
    }
    listed.sort_by_key(|one| std::cmp::Reverse(one.at));
    Ok(SnapshotListing { snapshots: listed, forgotten: gone, broken })
}

fn what(
    place: &OpenRepository,
    tree: &TreeId,
    notes: &[String],
) -> std::result::Result<SnapshotOrigin, ash_snapshot::Error> {
    let note = |name: &str| -> std::result::Result<Vec<u8>, ash_snapshot::Error> {
        Ok(place.repo.note(tree, name)?.unwrap_or_default())
    };
    let has = |name: &str| notes.iter().any(|note| note == name);
    let what = if has(NOTE) {
        serde_json::from_slice(&note(NOTE)?).map(SnapshotOrigin::Folder)
    } else if has(SESSION_NOTE) {
        serde_json::from_slice(&note(SESSION_NOTE)?)
            .map(|record| SnapshotOrigin::Checkpoint(Box::new(record)))
    } else {
        Ok(SnapshotOrigin::Other)
    };
    let damaged = |_| ash_snapshot::Error::Damaged {
        tree: id(tree).to_owned(),
        what: "its description cannot be read".to_owned(),
    };
    what.map_err(damaged)
}

pub(super) fn run(place: &OpenRepository) -> Result<u8> {
    let listing = read(place)?;
    if place.json {
        let snapshots: Vec<Value> = listing.snapshots.iter().map(SnapshotListItem::json).collect();
        terminal::json(&json!({ "snapshots": snapshots, "broken": listing.broken }));
        return Ok(0);
    }
    let now = jiff::Timestamp::now();
    let mut table = TextTable::new(&["ID", "TAKEN", "FILES", "SIZE", "NEW", "WHAT"]);
    for one in &listing.snapshots {
        let (files, bytes) = match &one.what {
            SnapshotOrigin::Folder(note) => (note.files.to_string(), terminal::format_bytes(note.bytes)),
            SnapshotOrigin::Checkpoint(_) | SnapshotOrigin::Other => (String::new(), String::new()),
        };
        table.row(vec![
            (unique(one, &listing.snapshots).to_owned(), Some(TerminalStyle::Yellow)),
            (terminal::format_age(&one.at.to_string(), now), Some(TerminalStyle::Dim)),
            (files, None),
            (bytes, None),
            (terminal::format_bytes(one.size), None),
            (one.shown(), None),
        ]);
    }
    table.print();
    warn_of(&listing.broken, place);
    Ok(0)
}

/// The usual short id, or a longer prefix where that is ambiguous.
fn unique<'l>(one: &'l SnapshotListItem, all: &[SnapshotListItem]) -> &'l str {
    let whole = id(&one.tree);
    let fits =
        |end: &usize| all.iter().filter(|other| id(&other.tree).starts_with(&whole[..*end])).count() == 1;
    let end = (short(&one.tree).len()..whole.len()).find(fits).unwrap_or(whole.len());
    &whole[..end]
}

pub(super) fn warn_of(broken: &[String], place: &OpenRepository) {
    for what in broken {
        eprintln!("{} {}", terminal::paint_err(TerminalStyle::Red, "✗"), what);
    }
    if !broken.is_empty() {
        eprintln!("  `ash snapshot verify --repo {}` says what that means", place.dir.display());
    }
}

/// Resolves a prefix of an id, as git does, or `latest`.
pub(super) fn find(place: &OpenRepository, given: &str) -> Result<TreeId> {
    let dir = place.dir.display();
    if given == "latest" {
        let newest = read(place)?.snapshots.into_iter().next();
        return newest.map(|one| one.tree).ok_or_else(|| nothing(place, given));
    }
    let given = given.to_ascii_lowercase();
    // Of a full tree id, only the last part identifies the snapshot.
    let digits = TreeId::parse(&given).map_or(given.clone(), |tree| id(&tree).to_owned());
    if digits.len() < 4 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(CliError::invalid(format!(
            "\"{given}\" is no id: give at least four of its digits; `ash snapshot list --repo {dir}` shows them"
        )));
    }
    let (mut found, broken) = place.repo.find_by_prefix(&digits).map_err(repository_error(place))?;
    let forgotten = place.forgotten()?;
    found.retain(|tree| !forgotten.contains(tree));
    match (found.as_slice(), broken.into_iter().next()) {
        ([only], _) => Ok(only.clone()),
        ([], Some(error)) => Err(repository_error(place)(error)),
        ([], None) => Err(nothing(place, &given)),
        (several, _) => {
            let some: Vec<&str> = several.iter().take(5).map(short).collect();
            Err(CliError::invalid(format!(
                "\"{given}\" could be any of {} snapshots ({}); give more of it",
                several.len(),
                some.join(", ")
            )))
        }
    }
}

fn nothing(place: &OpenRepository, given: &str) -> CliError {
    let dir = place.dir.display();
    let words = format!("no snapshot begins with \"{given}\"; `ash snapshot list --repo {dir}` shows them");
    CliError::new(FailureKind::NotFound, words)
}

/// The root with the user's files, and the snapshot's metadata.
pub(super) fn main_root(
    place: &OpenRepository,
    tree: &TreeId,
) -> Result<(&'static str, Option<FolderSnapshotNote>)> {
    let note = place.repo.note(tree, NOTE).map_err(repository_error(place))?;
    Ok(match note {
        Some(text) => (FILES, serde_json::from_slice(&text).ok()),
        None => (SESSION_ROOTS[0], None),
    })
}

pub(super) fn diff(place: &OpenRepository, from: &str, other: Option<&str>) -> Result<u8> {
    let from = find(place, from)?;
    let (root, note) = main_root(place, &from)?;
    let other = match (other, note) {
        (Some(other), _) => other.to_owned(),
        (None, Some(note)) => note.path,
        (None, None) => {
            return Err(CliError::invalid("say what to compare it with: another id, or a folder"));
        }
    };
    let before = place.repo.entries(&from, root).map_err(repository_error(place))?;
    let (to, found) = if Path::new(&other).is_dir() {
        let folder = Folder::open(Path::new(&other)).map_err(repository_error(place))?;
        let own = super::absolute(Path::new(&other))?;
        let within = place.dir.strip_prefix(&own).ok().and_then(Path::file_name);
        let skip = |name: &[u8], is_dir: bool| {
            is_dir && within.is_some_and(|dir| dir.as_encoded_bytes() == name) && is_here(place, &own, name)
        };
        let now = folder.entries(&skip, MAX_DIFF_FILES).map_err(repository_error(place))?;
        (other, changes(before, now, &|path| place.repo.content_id(&folder, path)))
    } else {
        let to = find(place, &other)?;
        let now = place.repo.entries(&to, main_root(place, &to)?.0).map_err(repository_error(place))?;
        (id(&to).to_owned(), changes(before, now, &|_| Ok(None)))
    };
    let found = found.map_err(repository_error(place))?;
    if place.json {
        let files: Vec<Value> = found.iter().map(json_of).collect();
        terminal::json(&json!({ "from": id(&from), "to": to, "files": files }));
        return Ok(0);
    }
    for change in &found {
        let (letter, colour, _) = kind(change);
        println!("{} {}", paint(colour, letter), String::from_utf8_lossy(&change.path));
    }
    Ok(0)
}

/// Whether this entry is the repository itself, which may lie in the folder.
fn is_here(place: &OpenRepository, folder: &Path, name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name).into_owned();
    folder.join(name) == place.dir
}

fn json_of(change: &PathChange) -> Value {
    json!({ "path": String::from_utf8_lossy(&change.path), "change": kind(change).2 })
}

fn kind(change: &PathChange) -> (&'static str, TerminalStyle, &'static str) {
    match (&change.before, &change.now) {
        (None, _) => ("A", TerminalStyle::Green, "added"),
        (Some(_), None) => ("D", TerminalStyle::Red, "deleted"),
        (Some(_), Some(_)) => ("M", TerminalStyle::Yellow, "modified"),
    }
}
