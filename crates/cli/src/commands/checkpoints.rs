//! Checkpoints of a session: list, show, rewind.

use super::sessions::path;
use crate::{
    api::{ApiClient, CliError, Result},
    terminal::{self, TerminalStyle, TextTable, paint, paint_err},
};
use ash_model::FailureKind;
use serde_json::{Value, json};

pub(crate) async fn list(
    api: &ApiClient,
    id: &str,
    (limit, before): (u32, Option<u64>),
    as_json: bool,
) -> Result<u8> {
    let id = api.session_id(id).await?;
    let before = before.map(|number| format!("&before={number}")).unwrap_or_default();
    let answer = api.get(&path(&id, &format!("/checkpoints?limit={limit}{before}"))).await?;
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    let found = answer["checkpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    if found.is_empty() {
        eprintln!("no checkpoints; one is made at the end of every turn");
        return Ok(0);
    }
    let now = jiff::Timestamp::now();
    let mut table = TextTable::new(&["", "N", "TAKEN", "FILES", "SIZE", "WHAT"]);
    for checkpoint in found {
        let current = checkpoint["current"] == true;
        table.row(vec![
            (if current { "*" } else { "" }.to_owned(), Some(TerminalStyle::Green)),
            (checkpoint["number"].to_string(), Some(TerminalStyle::Bold)),
            (
                terminal::format_age(checkpoint["at"].as_str().unwrap_or_default(), now),
                Some(TerminalStyle::Dim),
            ),
            (checkpoint["files"].to_string(), None),
            (terminal::format_bytes(checkpoint["bytes"].as_u64().unwrap_or(0)), None),
            (kind(checkpoint).to_owned(), None),
        ]);
    }
    table.print();
    Ok(0)
}

/// What caused the checkpoint.
fn kind(checkpoint: &Value) -> &'static str {
    if checkpoint["removed"] == true {
        "removed by retention rules; its files are gone"
    } else if checkpoint["salvage"] == true {
        "found on disk, not trusted"
    } else if checkpoint["midTurn"] == true {
        "in the middle of a turn"
    } else if checkpoint["turn"].is_null() {
        "between turns"
    } else {
        "end of a turn"
    }
}

pub(crate) async fn show_checkpoint(api: &ApiClient, id: &str, number: u64, as_json: bool) -> Result<u8> {
    let id = api.session_id(id).await?;
    let answer = api.get(&path(&id, &format!("/checkpoints/{number}"))).await;
    let answer = answer.map_err(|failure| named(&id, failure))?;
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    let checkpoint = &answer["checkpoint"];
    let text = |name: &str| checkpoint[name].as_str().unwrap_or_default().to_owned();
    let current = if checkpoint["current"] == true { " (the session is here)" } else { "" };
    println!("checkpoint {}{current}", paint(TerminalStyle::Bold, &number.to_string()));
    let line = |name: &str, value: String| println!("  {name:<11} {value}");
    line("what", kind(checkpoint).to_owned());
    line("taken", terminal::format_age(&text("at"), jiff::Timestamp::now()));
    if !checkpoint["turn"].is_null() {
        line("turn", text("turn"));
    }
    line("event", checkpoint["seq"].to_string());
    line(
        "files",
        format!(
            "{}, {}",
            checkpoint["files"],
            terminal::format_bytes(checkpoint["bytes"].as_u64().unwrap_or(0))
        ),
    );
    line("processes", text("consistency"));
    for (name, what) in [("skipped", "skipped"), ("unsettled", "unsettled")] {
        if let Some(count) = checkpoint[name].as_u64() {
            line(what, count.to_string());
        }
    }
    Ok(0)
}

pub(crate) async fn rewind(
    api: &ApiClient,
    id: &str,
    (number, files): (u64, bool),
    as_json: bool,
) -> Result<u8> {
    let id = api.session_id(id).await?;
    let spinner = terminal::spinner(&format!("going to checkpoint {number}"));
    let body =
        if files { json!({ "checkpoint": number, "files": true }) } else { json!({ "checkpoint": number }) };
    let answer = api.post(&path(&id, "/rewind"), &body).await;
    spinner.finish_and_clear();
    let answer = answer.map_err(|failure| named(&id, failure))?;
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    let rewound = &answer["rewound"];
    eprintln!(
        "{} at checkpoint {number}, {} turns in",
        paint_err(TerminalStyle::Green, "✓"),
        rewound["turns"]
    );
    if rewound["midTurn"] == true {
        eprintln!("  a turn was running at that checkpoint; it does not continue, send its message again");
    }
    let short = api.short_id(&id).await;
    if let Some(from) = rewound["from"].as_u64().filter(|from| *from != number) {
        let files = if files { " --files" } else { "" };
        eprintln!("  undo: ash session rewind {short} {from}{files}");
    }
    eprintln!("  continue: ash chat --resume {short}");
    Ok(0)
}

/// Adds the command that helps to a refusal.
pub(crate) fn named(id: &str, failure: CliError) -> CliError {
    let remedy = match failure.kind {
        FailureKind::NotFound if failure.message.contains("no such checkpoint") => {
            format!("; `ash session checkpoints {id}` lists them")
        }
        FailureKind::Conflict if failure.message.contains("turn is not over") => {
            format!(": `ash session interrupt {id}`")
        }
        _ => String::new(),
    };
    CliError { message: format!("{}{remedy}", failure.message), ..failure }
}
