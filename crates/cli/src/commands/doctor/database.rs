//! Whether the database knows all that packs and the object store know.

use super::{Check, service::Told};
use ash_server::{Config, Repair, Repaired};
use std::{fs, path::Path};

const NAME: &str = "witnesses";
const REMEDY: &str =
    "stop the server, run `ash repair`, which says what it would bring back, and then `ash repair --yes`";

/// `told`: what the server says that runs on this data directory. `Err`: it says nothing.
pub(super) async fn check(config: &Config, told: Option<Result<&Told, ()>>) -> Vec<Check> {
    let Ok(dir) = config.data_dir() else { return Vec::new() };
    let (is_there, has_packs) = (dir.join("ash.db").exists(), has_packs(&dir.join("repo")));
    match (is_there, has_packs, told) {
        (false, false, _) => Vec::new(),
        (false, true, _) => vec![Check::problem(NAME, "it is gone, and packs of sessions are there", REMEDY)],
        (true, _, Some(Ok(told))) => running(told),
        (true, _, Some(Err(()))) => Vec::new(),
        (true, _, None) => vec![match ash_server::repair(config, Repair::DryRun).await {
            Ok(found) => compared(&found),
            Err(error) => Check::problem(NAME, error.to_string(), REMEDY),
        }],
    }
}

fn compared(found: &Repaired) -> Check {
    if let Some(damaged) = &found.damaged {
        return Check::problem(NAME, format!("it cannot be read: {damaged}"), REMEDY);
    }
    match (found.sessions.len(), found.orphans.len()) {
        (0, 0) => Check::fine(NAME, "it knows all that packs and the object store know"),
        (sessions, trees) => Check::problem(
            NAME,
            format!("witnesses know more of {sessions} sessions, and {trees} trees are nobody's"),
            REMEDY,
        ),
    }
}

/// A server that runs compares by itself, and says what it found.
fn running(told: &Told) -> Vec<Check> {
    let mut troubles = told.troubles();
    let database = troubles.find(|one| is_of_database(one["code"].as_str().unwrap_or_default()));
    match database.and_then(|trouble| trouble["error"].as_str()) {
        Some(error) => vec![Check::problem(NAME, error, REMEDY)],
        None => vec![Check::fine(NAME, "the server that runs found nothing that it does not know")],
    }
}

pub(super) fn is_of_database(code: &str) -> bool {
    code.starts_with("database_")
}

fn has_packs(repo: &Path) -> bool {
    let beneath = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    beneath(repo)
        .flat_map(|tenant| beneath(&tenant).collect::<Vec<_>>())
        .any(|path| path.extension().is_some_and(|e| e == "pack"))
}
