//! `ash sessions --from` and `ash restore`: list and restore what an object store has.

use super::doctor::ServerConfigArgs;
use crate::{
    api::{CliError, Result},
    terminal::{self, TextTable},
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::IsTerminal;

fn config(from: String) -> Result<ash_server::ServerConfig> {
    Ok(ash_server::ServerConfig { snapshot_url: Some(from), ..ServerConfigArgs::of_environment()? })
}

pub(super) async fn sessions(from: String, as_json: bool) -> Result<()> {
    let found = ash_server::list_remote_sessions(&config(from)?).await;
    let found = found.map_err(|error| CliError::invalid(error.to_string()))?;
    if as_json {
        let all: Vec<_> = found
            .iter()
            .map(|one| {
                let told = one.manifest.as_ref();
                json!({
                    "id": one.id, "tenantId": one.tenant, "sealed": told.is_none(),
                    "agentName": told.map(|told| &told.agent), "status": told.map(|told| told.status),
                    "title": told.and_then(|told| told.title.clone()), "turns": told.map(|told| told.turns),
                    "lastActiveAt": told.map(|told| told.last_active_at),
                })
            })
            .collect();
        terminal::json(&json!({ "sessions": all }));
        return Ok(());
    }
    if found.is_empty() {
        eprintln!("there are no sessions");
        return Ok(());
    }
    let now = jiff::Timestamp::now();
    let mut table = TextTable::new(&["ID", "TENANT", "AGENT", "STATUS", "TURNS", "ACTIVE", "TITLE"]);
    for one in found {
        let mut cells = vec![one.id.as_str().to_owned(), one.tenant.as_str().to_owned()];
        match one.manifest {
            Some(told) => cells.extend([
                told.agent.as_str().to_owned(),
                told.status.as_str().to_owned(),
                told.turns.to_string(),
                terminal::format_age(&told.last_active_at.to_string(), now),
                terminal::shortened(told.title.as_deref().unwrap_or_default(), 40),
            ]),
            None => cells.push("sealed".to_owned()),
        }
        cells.resize(7, String::new());
        table.row(cells.into_iter().map(|cell| (cell, None)).collect());
    }
    table.print();
    Ok(())
}

/// Returns 1 if something could not be restored.
pub(super) async fn restore(from: String, lazy: bool, as_json: bool) -> Result<u8> {
    let bar = match std::io::stderr().is_terminal() && !as_json {
        true => ProgressBar::new_spinner(),
        false => ProgressBar::hidden(),
    };
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("a template"));
    let mut tell = |so_far: &ash_server::RemoteRestoreReport| {
        bar.set_message(format!("sessions: {}, MB: {:.1}", so_far.sessions, so_far.bytes as f64 / 1e6));
        bar.tick();
    };
    let returned = ash_server::restore(&config(from)?, lazy, &mut tell).await;
    bar.finish_and_clear();
    let returned = returned.map_err(|error| CliError::invalid(error.to_string()))?;
    if as_json {
        terminal::json(&json!({
            "sessions": returned.sessions, "agents": returned.agents, "bytes": returned.bytes,
            "failed": returned.failed,
        }));
    } else {
        let (sessions, agents) = (returned.sessions, returned.agents);
        let many = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (sessions, agents) = (many(sessions, "session"), many(agents, "agent"));
        eprintln!("restored {sessions} and {agents}, {:.1} MB", returned.bytes as f64 / 1e6);
        returned.failed.iter().for_each(|failed| eprintln!("not back: {}", failed));
        eprintln!("next: ash start, then ash session resume ID");
    }
    Ok(u8::from(!returned.failed.is_empty()))
}
