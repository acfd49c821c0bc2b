//! `ash session prune` and `ash audit`: remove unused sessions, and list who ordered which change.

use super::show;
use crate::{
    api::{ApiClient, CliError, Result, percent_encode},
    args::PruneArgs,
    terminal::{self, TerminalStyle, TextTable},
};
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, Write};

/// Lists what would be removed, asks, and removes it. The server skips sessions that are busy by then.
pub(crate) async fn prune(api: &ApiClient, prune: PruneArgs, as_json: bool) -> Result<u8> {
    let PruneArgs { older_than, status, owner, purge, dry_run, yes } = prune;
    let body = |dry: bool| {
        let mut body = json!({ "olderThan": older_than, "purge": purge, "dryRun": dry });
        for (name, value) in [("status", &status), ("owner", &owner)] {
            if let Some(value) = value {
                body[name] = json!(value);
            }
        }
        body
    };
    let would = api.post("/api/prune", &body(true)).await?;
    let sessions = would["sessions"].as_array().cloned().unwrap_or_default();
    if dry_run && as_json {
        terminal::json(&would);
        return Ok(0);
    }
    if sessions.is_empty() && !as_json {
        eprintln!("nothing to prune");
        return Ok(0);
    }
    if !as_json {
        show::sessions(&sessions);
    }
    let deed = if purge { "put in the trash" } else { "end" };
    if dry_run {
        eprintln!("would {deed} {}; nothing was changed", sessions.len());
        return Ok(0);
    }
    if !yes && !confirm(&format!("{deed} {}?", sessions.len()))? {
        eprintln!("nothing was done");
        return Ok(1);
    }
    let done = api.post("/api/prune", &body(false)).await?;
    if as_json {
        terminal::json(&done);
    } else {
        eprintln!("{} gone", done["sessions"].as_array().map_or(0, Vec::len));
    }
    Ok(0)
}

fn confirm(question: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::invalid(
            "there is no terminal to ask at; use --yes to do it, or --dry-run to preview it",
        ));
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush().ok();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(CliError::from_io("cannot read the answer"))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

pub(crate) async fn audit(
    api: &ApiClient,
    (session, since, limit): (Option<String>, Option<String>, u32),
    as_json: bool,
) -> Result<()> {
    let mut query = format!("/api/audit?limit={limit}");
    for (name, value) in [("session", session), ("since", since)] {
        if let Some(value) = value {
            query.push_str(&format!("&{name}={}", percent_encode(&value)));
        }
    }
    let answer = api.get(&query).await?;
    if as_json {
        terminal::json(&answer);
        return Ok(());
    }
    let mut table = TextTable::new(&["WHEN", "WHAT", "WHICH", "OWNER", "BY KEY", "OF", "RULE"]);
    for line in answer["audit"].as_array().into_iter().flatten() {
        let text = |value: &Value| (value.as_str().unwrap_or_default().to_owned(), None);
        let by = &line["by"];
        let mut row = vec![(line["at"].as_str().unwrap_or_default().to_owned(), Some(TerminalStyle::Dim))];
        let rest = [&line["action"], &line["subject"], &line["owner"], &by["key"], &by["owner"], &by["rule"]];
        row.extend(rest.map(text));
        table.row(row);
    }
    table.print();
    Ok(())
}
