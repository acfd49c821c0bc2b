//! `ash snapshot verify` and `sessions`: check that snapshots are complete, and list sessions in a repository.

use super::{
    OpenRepository,
    list::{self, SnapshotListItem, SnapshotListing, SnapshotOrigin, warn_of},
    repository_error,
    save::{id, short},
};
use crate::{
    api::Result,
    terminal::{self, TerminalStyle, TextTable, paint, paint_err, plural},
};
use ash_model::{Timestamp, embedded_log::PackSessionRecord};
use ash_snapshot::{RepoLockMode, TreeId, VerifyDepth};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};

/// The exit code of a valid command that fails: some data is damaged.
const EXIT_DAMAGED: u8 = 8;
/// Number of faults to show for each snapshot.
const SHOWN: usize = 3;

struct SnapshotDamageReport<'l> {
    one: &'l SnapshotListItem,
    what: Vec<String>,
    /// The newest complete snapshot of the same folder or session.
    intact: Option<&'l SnapshotListItem>,
}

pub(super) fn verify(place: &OpenRepository, read_data: bool) -> Result<u8> {
    let _at_work = place.lock(RepoLockMode::Shared)?;
    let listing = list::read(place)?;
    let depth = if read_data { VerifyDepth::Data } else { VerifyDepth::Structure };
    let trees: Vec<TreeId> = listing.snapshots.iter().map(|one| one.tree.clone()).collect();
    let bar = terminal::bar("verifying", trees.len() as u64);
    let verified = place.repo.verify_all(&trees, depth, &mut |number| bar.set_position(number as u64));
    bar.finish_and_clear();
    let mut verified = verified.map_err(repository_error(place))?;
    if read_data {
        verified.damaged.extend(hurt_history(place, &listing));
    }
    let hurt: HashSet<&TreeId> = verified.damaged.iter().map(|hurt| &hurt.tree).collect();
    let all = || listing.snapshots.iter().chain(&listing.forgotten);
    let intact = |one: &SnapshotListItem| {
        let same = |other: &&SnapshotListItem| one.of().is_some() && other.of() == one.of();
        listing.snapshots.iter().find(|other| same(other) && !hurt.contains(&other.tree))
    };
    let harms: Vec<SnapshotDamageReport<'_>> = verified
        .damaged
        .iter()
        .filter_map(|hurt| {
            let one = all().find(|one| one.tree == hurt.tree)?;
            Some(SnapshotDamageReport { one, what: hurt.what.clone(), intact: intact(one) })
        })
        .collect();
    let missing = missing(place, &listing)?;
    let fine = harms.is_empty()
        && missing.is_empty()
        && listing.broken.is_empty()
        && verified.altered_blocks.is_empty();
    if place.json {
        terminal::json(&json!({
            "snapshots": verified.trees, "objects": verified.objects, "readData": read_data,
            "hurt": harms.iter().map(json_of).collect::<Vec<_>>(), "missing": missing, "broken": listing.broken,
            "marred": verified.altered_blocks, "remote": verified.remote,
        }));
    } else {
        show(&harms, &missing);
        for block in &verified.altered_blocks {
            println!("{} {}", paint(TerminalStyle::Yellow, "!"), block);
        }
        warn_of(&listing.broken, place);
        if verified.remote > 0 {
            let some = plural(verified.remote, "snapshot");
            eprintln!("  {some} need packs that are only in the object store; those were not checked");
        }
        let (snapshots, objects) = (plural(verified.trees, "snapshot"), plural(verified.objects, "object"));
        let checked = if read_data { "every byte was read" } else { "--read-data reads every byte, too" };
        let (colour, mark) = if fine { (TerminalStyle::Green, "✓") } else { (TerminalStyle::Red, "✗") };
        let verdict = match harms.len() {
            0 if fine => "intact".to_owned(),
            0 if missing.is_empty() => {
                "all can be restored, but the disk changed what was written".to_owned()
            }
            hurt => format!("{hurt} hurt, {} missing", missing.len()),
        };
        eprintln!("{} {snapshots}, {objects}: {verdict}; {checked}", paint_err(colour, mark));
    }
    Ok(if fine { 0 } else { EXIT_DAMAGED })
}

/// The history of forgotten snapshots must stay complete, because later snapshots build on it.
fn hurt_history(place: &OpenRepository, listing: &SnapshotListing) -> Vec<ash_snapshot::DamagedSnapshot> {
    let (snapshots, _) = place.repo.snapshots().unwrap_or_default();
    let gone: HashSet<&TreeId> = listing.forgotten.iter().map(|one| &one.tree).collect();
    let mut hurt = Vec::new();
    for snapshot in snapshots.iter().filter(|snapshot| gone.contains(&snapshot.tree)) {
        let read = |name: &String| place.repo.note(&snapshot.tree, name).err().map(|error| error.to_string());
        let what: Vec<String> = snapshot.notes.iter().filter_map(read).collect();
        if !what.is_empty() {
            hurt.push(ash_snapshot::DamagedSnapshot { tree: snapshot.tree.clone(), what });
        }
    }
    hurt
}

/// Expected but missing: packs in the repository's own list, and checkpoints that hold the log of a restorable one.
fn missing(place: &OpenRepository, listing: &SnapshotListing) -> Result<Vec<String>> {
    let packs = place.repo.missing_packs().map_err(repository_error(place))?;
    let remote = place.repo.remote_packs().map_err(repository_error(place))?;
    let mut missing = missing_history(listing, |pack| remote.contains(pack));
    let unnamed: Vec<String> = packs
        .iter()
        .filter(|pack| !missing.iter().any(|gap| gap.contains(pack.as_str())))
        .map(|pack| format!("pack {pack} was written here and is missing"))
        .collect();
    missing.extend(unnamed);
    Ok(missing)
}

/// Walks the log back from every restorable checkpoint. Other remains of forgotten checkpoints do not count: an
/// interrupted collection left them.
fn missing_history(listing: &SnapshotListing, is_remote: impl Fn(&str) -> bool) -> Vec<String> {
    let all = listing.snapshots.iter().chain(&listing.forgotten);
    let records: BTreeMap<&str, Option<&PackSessionRecord>> =
        all.map(|one| (one.tree.as_str(), one.record())).collect();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut gaps = Vec::new();
    for one in &listing.snapshots {
        let mut next = one.record();
        while let Some(record) = next.filter(|record| record.after > 0 && seen.insert(&record.previous)) {
            let pack = record.previous.get(64..).unwrap_or(&record.previous);
            next = match records.get(record.previous.as_str()) {
                Some(previous) => *previous,
                None if is_remote(pack) => None,
                None => {
                    gaps.push(format!(
                        "session {}: what was before checkpoint {} is missing (pack {pack})",
                        record.session, record.checkpoint
                    ));
                    None
                }
            };
        }
    }
    gaps
}

fn json_of(harm: &SnapshotDamageReport<'_>) -> Value {
    let mut shown = harm.one.json();
    shown["what"] = json!(harm.what);
    shown["intact"] = harm.intact.map_or(Value::Null, SnapshotListItem::json);
    shown
}

fn show(harms: &[SnapshotDamageReport<'_>], missing: &[String]) {
    for SnapshotDamageReport { one, what, intact } in harms {
        println!("{} {} {}", paint(TerminalStyle::Red, "✗"), short(&one.tree), one.shown());
        for fault in what.iter().take(SHOWN) {
            println!("    {}", fault);
        }
        if what.len() > SHOWN {
            println!("    and more; --json lists everything");
        }
        match intact {
            Some(intact) => {
                println!("    newest intact snapshot: {} {}", short(&intact.tree), intact.shown());
            }
            None => println!("    no snapshot is intact; is there a copy of the repository?"),
        }
    }
    for what in missing {
        println!("{} {}", paint(TerminalStyle::Red, "✗"), what);
    }
}

/// A session, assembled from the records in its checkpoints.
struct RepositorySession<'l> {
    newest: &'l PackSessionRecord,
    tree: &'l TreeId,
    checkpoints: usize,
    turns: HashSet<ash_model::TurnId>,
    last: Timestamp,
    size: u64,
}

pub(super) fn sessions(place: &OpenRepository) -> Result<u8> {
    let _at_work = place.lock(RepoLockMode::Shared)?;
    let listing = list::read(place)?;
    let told = collect_sessions(&listing);
    if place.json {
        let sessions: Vec<Value> = told.values().map(session_json).collect();
        terminal::json(&json!({ "sessions": sessions, "broken": listing.broken }));
        return Ok(0);
    }
    let now = jiff::Timestamp::now();
    let mut table = TextTable::new(&[
        "TENANT",
        "SESSION",
        "AGENT",
        "CHECKPOINTS",
        "TURNS",
        "LAST ACTIVE",
        "SIZE",
        "NEWEST",
    ]);
    for one in told.values() {
        table.row(vec![
            (one.newest.tenant.to_string(), None),
            (one.newest.session.to_string(), Some(TerminalStyle::Bold)),
            (one.newest.agent.clone(), None),
            (one.checkpoints.to_string(), None),
            (one.turns.len().to_string(), None),
            (terminal::format_age(&one.last.to_string(), now), Some(TerminalStyle::Dim)),
            (terminal::format_bytes(one.size), None),
            (short(one.tree).to_owned(), Some(TerminalStyle::Yellow)),
        ]);
    }
    if told.is_empty() {
        eprintln!("no sessions; the repositories of a server are in repo/<tenant> of its data directory");
    } else {
        table.print();
    }
    warn_of(&listing.broken, place);
    Ok(0)
}

fn collect_sessions(listing: &SnapshotListing) -> BTreeMap<(&str, &str), RepositorySession<'_>> {
    let mut told: BTreeMap<(&str, &str), RepositorySession<'_>> = BTreeMap::new();
    let kept = listing.snapshots.iter().map(|one| (one, 1));
    for (one, kept) in kept.chain(listing.forgotten.iter().map(|one| (one, 0))) {
        let SnapshotOrigin::Checkpoint(record) = &one.what else { continue };
        let session = told.entry((record.tenant.as_str(), record.session.as_str())).or_insert_with(|| {
            RepositorySession {
                newest: record,
                tree: &one.tree,
                checkpoints: 0,
                turns: HashSet::new(),
                last: record.at,
                size: 0,
            }
        });
        if kept == 1 && record.checkpoint > session.newest.checkpoint {
            (session.newest, session.tree) = (record, &one.tree);
        }
        session.checkpoints += kept;
        session.turns.extend(record.turn);
        session.last = session.last.max(record.at);
        session.size += one.size;
    }
    told
}

fn session_json(one: &RepositorySession<'_>) -> Value {
    let PackSessionRecord {
        tenant, session, agent, version, parent, checkpoint, through, created_at, ..
    } = one.newest;
    json!({
        "tenant": tenant, "session": session, "agent": agent, "version": version, "parent": parent,
        "checkpoints": one.checkpoints, "turns": one.turns.len(), "events": through,
        "createdAt": created_at, "lastActiveAt": one.last, "bytes": one.size,
        "newest": { "checkpoint": checkpoint, "id": id(one.tree), "tree": one.tree.as_str() },
    })
}
