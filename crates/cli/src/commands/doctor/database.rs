//! Whether the database knows all that packs and the object store know.

use super::Check;
use crate::{
    api::Api,
    settings::{self, Settings},
};
use ash_server::{Config, Repair, Repaired};
use std::{fs, path::Path};

const NAME: &str = "witnesses";
const REMEDY: &str =
    "stop the server, run `ash repair`, which says what it would bring back, and then `ash repair --yes`";

pub(super) async fn check(config: &Config, settings: &Settings) -> Vec<Check> {
    let Ok(dir) = config.data_dir() else { return Vec::new() };
    let (is_there, has_packs) = (dir.join("ash.db").exists(), has_packs(&dir.join("repo")));
    match (is_there, has_packs) {
        (false, false) => Vec::new(),
        (false, true) => vec![Check::problem(NAME, "it is gone, and packs of sessions are there", REMEDY)],
        (true, _) if settings::running().is_some() => running(settings).await,
        (true, _) => vec![match ash_server::repair(config, Repair::DryRun).await {
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
async fn running(settings: &Settings) -> Vec<Check> {
    let Ok(health) = Api::new(settings).get("/health").await else { return Vec::new() };
    let troubles = health["trouble"].as_array().cloned().unwrap_or_default();
    let database =
        troubles.iter().find(|one| one["code"].as_str().is_some_and(|code| code.starts_with("database_")));
    match database.and_then(|trouble| trouble["error"].as_str()) {
        Some(error) => vec![Check::problem(NAME, error, REMEDY)],
        None => vec![Check::fine(NAME, "the server that runs found nothing that it does not know")],
    }
}

fn has_packs(repo: &Path) -> bool {
    let beneath = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    beneath(repo)
        .flat_map(|tenant| beneath(&tenant).collect::<Vec<_>>())
        .any(|path| path.extension().is_some_and(|e| e == "pack"))
}
