//! Which snapshots there are, which one is meant, and what is different between two of them.

use super::{
    FILES, OF_A_SESSION, Place, failed,
    save::{NOTE, Note, id, short},
};
use crate::{
    api::{Failure, Result},
    out::{self, Paint, Table, paint},
};
use ash_model::{
    Kind, Timestamp,
    luggage::{RECORD, Record},
};
use ash_snapshot::{Change, Folder, TreeId, changes};
use serde_json::{Value, json};
use std::{path::Path, time::UNIX_EPOCH};

/// More than anybody can look at.
const MOST_FILES: usize = 5_000_000;

pub(super) struct Listed {
    pub(super) tree: TreeId,
    pub(super) at: Timestamp,
    /// What was new in it.
    pub(super) size: u64,
    pub(super) what: What,
}

pub(super) enum What {
    Folder(Note),
    Checkpoint(Box<Record>),
    /// An agent's own files, or something of which we cannot tell.
    Other,
}

impl Listed {
    pub(super) fn shown(&self) -> String {
        match &self.what {
            What::Folder(note) => note.path.clone(),
            What::Checkpoint(record) => {
                format!("session {}, checkpoint {}", record.session, record.checkpoint)
            }
            What::Other => "an agent's files".to_owned(),
        }
    }

    pub(super) fn record(&self) -> Option<&Record> {
        match &self.what {
            What::Checkpoint(record) => Some(record),
            What::Folder(_) | What::Other => None,
        }
    }

    /// Those with the same are the history of one thing.
    pub(super) fn of(&self) -> Option<(&str, &str)> {
        match &self.what {
            What::Folder(note) => Some((&note.host, &note.path)),
            What::Checkpoint(record) => Some((record.tenant.as_str(), record.session.as_str())),
            What::Other => None,
        }
    }

    pub(super) fn json(&self) -> Value {
        let mut shown = json!({ "id": id(&self.tree), "tree": self.tree.as_str(), "at": self.at.to_string(), "written": self.size });
        let more = match &self.what {
            What::Folder(note) => {
                json!({ "path": note.path, "host": note.host, "files": note.files, "bytes": note.bytes })
            }
            What::Checkpoint(record) => {
                json!({ "tenant": record.tenant, "session": record.session, "checkpoint": record.checkpoint, "turn": record.turn })
            }
            What::Other => json!({}),
        };
        if let (Some(shown), Value::Object(more)) = (shown.as_object_mut(), more) {
            shown.extend(more);
        }
        shown
    }
}

pub(super) struct Listing {
    /// Newest first.
    pub(super) snapshots: Vec<Listed>,
    /// Those of which only their history is kept.
    pub(super) forgotten: Vec<Listed>,
    pub(super) broken: Vec<String>,
}

/// Everything in the repository.
pub(super) fn read(place: &Place) -> Result<Listing> {
    let forgotten = place.forgotten()?;
    let (snapshots, mut broken) = place.repo.snapshots().map_err(failed(place))?;
    let (mut listed, mut gone) = (Vec::new(), Vec::new());
    for snapshot in snapshots {
        let what = what(place, &snapshot.tree, &snapshot.notes).unwrap_or_else(|error| {
            broken.push(error.to_string());
            What::Other
        });
        let written = snapshot.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
        let at = match &what {
            What::Folder(note) => note.at,
            What::Checkpoint(record) => record.at,
            What::Other => Timestamp(written),
        };
        let one = Listed { at, size: snapshot.size, what, tree: snapshot.tree };
        if forgotten.contains(&one.tree) { gone.push(one) } else { listed.push(one) }
    }
    listed.sort_by_key(|one| std::cmp::Reverse(one.at));
    Ok(Listing { snapshots: listed, forgotten: gone, broken })
}

fn what(place: &Place, tree: &TreeId, notes: &[String]) -> std::result::Result<What, ash_snapshot::Error> {
    let note = |name: &str| -> std::result::Result<Vec<u8>, ash_snapshot::Error> {
        Ok(place.repo.note(tree, name)?.unwrap_or_default())
    };
    let has = |name: &str| notes.iter().any(|note| note == name);
    let what = if has(NOTE) {
        serde_json::from_slice(&note(NOTE)?).map(What::Folder)
    } else if has(RECORD) {
        serde_json::from_slice(&note(RECORD)?).map(|record| What::Checkpoint(Box::new(record)))
    } else {
        Ok(What::Other)
    };
    let damaged = |_| ash_snapshot::Error::Damaged {
        tree: id(tree).to_owned(),
        what: "what it says about itself cannot be read".to_owned(),
    };
    what.map_err(damaged)
}

pub(super) fn run(place: &Place) -> Result<u8> {
    let listing = read(place)?;
    if place.json {
        let snapshots: Vec<Value> = listing.snapshots.iter().map(Listed::json).collect();
        out::json(&json!({ "snapshots": snapshots, "broken": listing.broken }));
        return Ok(0);
    }
    let now = jiff::Timestamp::now();
    let mut table = Table::new(&["ID", "TAKEN", "FILES", "SIZE", "NEW", "WHAT"]);
    for one in &listing.snapshots {
        let (files, bytes) = match &one.what {
            What::Folder(note) => (note.files.to_string(), out::size(note.bytes)),
            What::Checkpoint(_) | What::Other => (String::new(), String::new()),
        };
        table.row(vec![
            (unique(one, &listing.snapshots).to_owned(), Some(Paint::Yellow)),
            (out::ago(&one.at.to_string(), now), Some(Paint::Dim)),
            (files, None),
            (bytes, None),
            (out::size(one.size), None),
            (one.shown(), None),
        ]);
    }
    table.print();
    warn_of(&listing.broken, place);
    Ok(0)
}

/// As short as it is shown everywhere, or as long as it must be.
fn unique<'l>(one: &'l Listed, all: &[Listed]) -> &'l str {
    let whole = id(&one.tree);
    let fits =
        |end: &usize| all.iter().filter(|other| id(&other.tree).starts_with(&whole[..*end])).count() == 1;
    let end = (short(&one.tree).len()..whole.len()).find(fits).unwrap_or(whole.len());
    &whole[..end]
}

pub(super) fn warn_of(broken: &[String], place: &Place) {
    for what in broken {
        eprintln!("{} {}", out::paint_err(Paint::Red, "✗"), what);
    }
    if !broken.is_empty() {
        eprintln!("  `ash snapshot verify --repo {}` says what that means", place.dir.display());
    }
}

/// The snapshot that somebody means: the beginning of its id, as in git, or `latest`.
pub(super) fn find(place: &Place, given: &str) -> Result<TreeId> {
    let dir = place.dir.display();
    if given == "latest" {
        let newest = read(place)?.snapshots.into_iter().next();
        return newest.map(|one| one.tree).ok_or_else(|| nothing(place, given));
    }
    let given = given.to_ascii_lowercase();
    // Of a tree's whole name only the last part is the snapshot's own.
    let digits = TreeId::parse(&given).map_or(given.clone(), |tree| id(&tree).to_owned());
    if digits.len() < 4 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(Failure::invalid(format!(
            "\"{given}\" is no id: give at least four of its digits; `ash snapshot list --repo {dir}` shows them"
        )));
    }
    let (mut found, broken) = place.repo.beginning_with(&digits).map_err(failed(place))?;
    let forgotten = place.forgotten()?;
    found.retain(|tree| !forgotten.contains(tree));
    match (found.as_slice(), broken.into_iter().next()) {
        ([only], _) => Ok(only.clone()),
        ([], Some(error)) => Err(failed(place)(error)),
        ([], None) => Err(nothing(place, &given)),
        (several, _) => {
            let some: Vec<&str> = several.iter().take(5).map(short).collect();
            Err(Failure::invalid(format!(
                "\"{given}\" could be any of {} snapshots ({}); give more of it",
                several.len(),
                some.join(", ")
            )))
        }
    }
}

fn nothing(place: &Place, given: &str) -> Failure {
    let dir = place.dir.display();
    let words = format!("no snapshot begins with \"{given}\"; `ash snapshot list --repo {dir}` shows them");
    Failure::new(Kind::NotFound, words)
}

/// The root with the files that people mean, and what the snapshot says about itself.
pub(super) fn main_root(place: &Place, tree: &TreeId) -> Result<(&'static str, Option<Note>)> {
    let note = place.repo.note(tree, NOTE).map_err(failed(place))?;
    Ok(match note {
        Some(text) => (FILES, serde_json::from_slice(&text).ok()),
        None => (OF_A_SESSION[0], None),
    })
}

pub(super) fn diff(place: &Place, from: &str, other: Option<&str>) -> Result<u8> {
    let from = find(place, from)?;
    let (root, note) = main_root(place, &from)?;
    let other = match (other, note) {
        (Some(other), _) => other.to_owned(),
        (None, Some(note)) => note.path,
        (None, None) => return Err(Failure::invalid("say what to compare it with: another id, or a folder")),
    };
    let before = place.repo.leaves(&from, root).map_err(failed(place))?;
    let (to, found) = if Path::new(&other).is_dir() {
        let folder = Folder::open(Path::new(&other)).map_err(failed(place))?;
        let own = super::absolute(Path::new(&other))?;
        let within = place.dir.strip_prefix(&own).ok().and_then(Path::file_name);
        let skip = |name: &[u8], is_dir: bool| {
            is_dir && within.is_some_and(|dir| dir.as_encoded_bytes() == name) && is_here(place, &own, name)
        };
        let now = folder.leaves(&skip, MOST_FILES).map_err(failed(place))?;
        (other, changes(before, now, &|path| place.repo.content_id(&folder, path)))
    } else {
        let to = find(place, &other)?;
        let now = place.repo.leaves(&to, main_root(place, &to)?.0).map_err(failed(place))?;
        (id(&to).to_owned(), changes(before, now, &|_| Ok(None)))
    };
    let found = found.map_err(failed(place))?;
    if place.json {
        let files: Vec<Value> = found.iter().map(json_of).collect();
        out::json(&json!({ "from": id(&from), "to": to, "files": files }));
        return Ok(0);
    }
    for change in &found {
        let (letter, colour, _) = kind(change);
        println!("{} {}", paint(colour, letter), String::from_utf8_lossy(&change.path));
    }
    Ok(0)
}

/// The repository itself, if it lies in the folder.
fn is_here(place: &Place, folder: &Path, name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name).into_owned();
    folder.join(name) == place.dir
}

fn json_of(change: &Change) -> Value {
    json!({ "path": String::from_utf8_lossy(&change.path), "change": kind(change).2 })
}

fn kind(change: &Change) -> (&'static str, Paint, &'static str) {
    match (&change.before, &change.now) {
        (None, _) => ("A", Paint::Green, "added"),
        (Some(_), None) => ("D", Paint::Red, "deleted"),
        (Some(_), Some(_)) => ("M", Paint::Yellow, "modified"),
    }
}
