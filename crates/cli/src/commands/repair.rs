//! `ash repair`: restores to the database what the packs and the object store know and it does not.

use super::doctor::ServerConfigArgs;
use crate::{
    api::{CliError, Result},
    terminal::{self, TerminalStyle, paint},
};
use ash_server::{RepairMode, RepairReport, RepairedSession};
use serde_json::{Value, json};

/// Returns 1 if something could not be restored, or if a dry run found something to restore.
pub(super) async fn run(yes: bool, as_json: bool) -> Result<u8> {
    let config = ServerConfigArgs::of_environment()?;
    let how = if yes { RepairMode::Apply } else { RepairMode::DryRun };
    let repaired = ash_server::repair(&config, how).await;
    let repaired = repaired.map_err(|error| CliError::invalid(error.to_string()))?;
    match as_json {
        true => terminal::json(&shown(&repaired, yes)),
        false => print_report(&repaired, yes),
    }
    let failed = repaired.sessions.iter().any(|session| session.failed.is_some());
    let left = !yes && is_something(&repaired);
    Ok(u8::from(failed || left))
}

fn is_something(repaired: &RepairReport) -> bool {
    repaired.database_error.is_some()
        || !repaired.sessions.is_empty()
        || !repaired.orphan_workspaces.is_empty()
}

fn shown(repaired: &RepairReport, yes: bool) -> Value {
    let session = |one: &RepairedSession| {
        json!({
            "tenantId": one.tenant, "id": one.session, "from": one.witness, "known": one.known, "proven": one.proven,
            "error": one.failed,
        })
    };
    json!({
        "dryRun": !yes, "damaged": repaired.database_error, "aside": repaired.damaged_database_copy,
        "sessions": repaired.sessions.iter().map(session).collect::<Vec<_>>(),
        "unknownTrees": repaired.orphan_workspaces, "kept": repaired.preserved_trees,
    })
}

fn print_report(repaired: &RepairReport, yes: bool) {
    if !is_something(repaired) {
        eprintln!(
            "{}",
            paint(TerminalStyle::Green, "the database is complete, compared with packs and the object store")
        );
        return;
    }
    if let Some(damaged) = &repaired.database_error {
        eprintln!("the database cannot be read: {}", damaged);
        match &repaired.damaged_database_copy {
            Some(aside) => eprintln!("it is kept as {}; a new one was created", aside.display()),
            None => {
                eprintln!("--yes renames it, and creates a new one from packs and the object store")
            }
        }
    }
    for one in &repaired.sessions {
        let known = one.known.map_or("unknown".to_owned(), |known| format!("known up to event {known}"));
        let from = match one.witness {
            ash_model::HistorySource::Packs => "packs",
            ash_model::HistorySource::Bucket => "the object store",
        };
        let what = match (&one.failed, yes) {
            (Some(error), _) => paint(TerminalStyle::Red, &format!("not back: {}", error)),
            (None, true) => paint(TerminalStyle::Green, "back"),
            (None, false) => "would be restored".to_owned(),
        };
        let id = one.session.as_str().to_owned();
        println!("{id}  {known}, {} events in {from}: {what}", one.proven);
    }
    for (number, workspace) in repaired.orphan_workspaces.iter().enumerate() {
        match repaired.preserved_trees.get(number) {
            Some(kept) => println!("the files of an unknown workspace are in {}", kept.display()),
            None => println!("the files of the unknown workspace {workspace} would be moved to lost/"),
        }
    }
    match yes {
        true => eprintln!("next: ash start"),
        false => eprintln!("nothing was changed; `ash repair --yes` does it"),
    }
}
