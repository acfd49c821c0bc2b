//! Checks that the database has everything that the packs and the object store have.

use super::{DoctorCheck, running_server::ServerHealth};
use ash_server::{RepairMode, RepairReport, ServerConfig};
use std::{fs, path::Path};

const NAME: &str = "witnesses";
const REMEDY: &str =
    "stop the server, run `ash repair`, which lists what it would restore, and then `ash repair --yes`";

/// `told`: the health report of the server on this data directory. `Err`: that server gives no report.
pub(super) async fn check(
    config: &ServerConfig,
    told: Option<Result<&ServerHealth, ()>>,
) -> Vec<DoctorCheck> {
    let Ok(dir) = config.data_dir() else { return Vec::new() };
    let (is_there, has_packs) = (dir.join("ash.db").exists(), has_packs(&dir.join("repo")));
    match (is_there, has_packs, told) {
        (false, false, _) => Vec::new(),
        (false, true, _) => {
            vec![DoctorCheck::problem(NAME, "it is missing, but packs of sessions exist", REMEDY)]
        }
        (true, _, Some(Ok(told))) => running(told),
        (true, _, Some(Err(()))) => Vec::new(),
        (true, _, None) => vec![match ash_server::repair(config, RepairMode::DryRun).await {
            Ok(found) => compared(&found),
            Err(error) => DoctorCheck::problem(NAME, error.to_string(), REMEDY),
        }],
    }
}

fn compared(found: &RepairReport) -> DoctorCheck {
    if let Some(damaged) = &found.database_error {
        return DoctorCheck::problem(NAME, format!("it cannot be read: {damaged}"), REMEDY);
    }
    match (found.sessions.len(), found.orphan_workspaces.len()) {
        (0, 0) => DoctorCheck::fine(NAME, "complete, compared with packs and the object store"),
        (sessions, trees) => DoctorCheck::problem(
            NAME,
            format!(
                "packs or the object store know more of {sessions} sessions, and {trees} trees belong to no session"
            ),
            REMEDY,
        ),
    }
}

/// A running server makes this comparison itself and reports the result.
fn running(told: &ServerHealth) -> Vec<DoctorCheck> {
    let mut troubles = told.troubles();
    let database = troubles.find(|one| is_of_database(one["code"].as_str().unwrap_or_default()));
    match database.and_then(|trouble| trouble["error"].as_str()) {
        Some(error) => vec![DoctorCheck::problem(NAME, error, REMEDY)],
        None => vec![DoctorCheck::fine(NAME, "the server that runs found nothing that it does not know")],
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
