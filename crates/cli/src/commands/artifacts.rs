//! `ash session plan` and `artifacts`: documents that the agent wrote for its user, outside the project.

use super::{checkpoints, sessions::path};
use crate::{
    api::{ApiClient, CliError, Result, percent_encode},
    terminal::{self, TerminalStyle, TextTable},
};
use reqwest::Method;
use std::path::Path;

pub(crate) async fn plan(api: &ApiClient, id: &str, checkpoint: Option<u64>, as_json: bool) -> Result<u8> {
    let id = api.session_id(id).await?;
    let answer = api.get(&path(&id, &format!("/plan{}", at(checkpoint)))).await;
    let answer = answer.map_err(|failure| checkpoints::named(&id, failure))?;
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    match answer["plan"].as_str() {
        Some(plan) => println!("{}", plan.to_owned().trim_end()),
        None => eprintln!(
            "no plan; its agent keeps one in {}",
            answer["path"].as_str().unwrap_or_default().to_owned()
        ),
    }
    Ok(0)
}

pub(crate) async fn list(api: &ApiClient, id: &str, checkpoint: Option<u64>, as_json: bool) -> Result<u8> {
    let id = api.session_id(id).await?;
    let answer = api.get(&path(&id, &format!("/artifacts{}", at(checkpoint)))).await;
    let answer = answer.map_err(|failure| checkpoints::named(&id, failure))?;
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    let found = answer["artifacts"].as_array().map(Vec::as_slice).unwrap_or_default();
    if found.is_empty() {
        let place = answer["path"].as_str().unwrap_or_default().to_owned();
        eprintln!("no documents; its agent puts them into {place}");
        return Ok(0);
    }
    let now = jiff::Timestamp::now();
    let mut table = TextTable::new(&["PATH", "SIZE", "CHANGED"]);
    for file in found {
        let text = |name: &str| file[name].as_str().unwrap_or_default();
        table.row(vec![
            // A line break in a name would make it look like two entries.
            (text("path").replace(char::is_control, "\u{fffd}"), None),
            (terminal::format_bytes(file["size"].as_u64().unwrap_or(0)), None),
            (terminal::format_age(text("modifiedAt"), now), Some(TerminalStyle::Dim)),
        ]);
    }
    table.print();
    Ok(0)
}

/// Writes the unchanged bytes to the named file or to stdout.
pub(crate) async fn read(
    api: &ApiClient,
    (id, name): (&str, &str),
    to: Option<&Path>,
    checkpoint: Option<u64>,
) -> Result<u8> {
    let id = api.session_id(id).await?;
    let name: Vec<String> = name.split('/').map(percent_encode).collect();
    let url = path(&id, &format!("/artifacts/{}{}", name.join("/"), at(checkpoint)));
    let response = api.send(api.request(Method::GET, &url)).await;
    let response = response.map_err(|failure| checkpoints::named(&id, failure))?;
    let bytes = response.bytes().await.map_err(|error| api.unreachable(&error))?;
    let written = match to {
        Some(file) => std::fs::write(file, &bytes),
        None => terminal::print_bytes(&bytes),
    };
    written.map_err(CliError::from_io("cannot write"))?;
    Ok(0)
}

fn at(checkpoint: Option<u64>) -> String {
    checkpoint.map(|number| format!("?checkpoint={number}")).unwrap_or_default()
}
