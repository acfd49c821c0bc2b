//! `ash session queue`, `lock` and `unlock`: queued messages, and exclusive write access.

use super::sessions::path;
use crate::{
    api::{ApiClient, Result, percent_encode},
    terminal::{self, TerminalStyle, TextTable},
};
use serde_json::{Value, json};
use std::time::Duration;

/// Shows the queue, after it applied `first` and `cancel`.
pub(crate) async fn queue(
    api: &ApiClient,
    id: &str,
    (first, cancel): (&[String], &[String]),
    as_json: bool,
) -> Result<u8> {
    let id = api.session_id(id).await?;
    for turn in cancel {
        let taken_back = api.delete(&path(&id, &format!("/queue/{}", percent_encode(turn)))).await;
        api.unless_ended(&id, taken_back).await?;
    }
    let answer = match first.is_empty() {
        true => api.get(&path(&id, "/queue")).await?,
        false => {
            let ordered = api.patch(&path(&id, "/queue"), &json!({ "order": first })).await;
            api.unless_ended(&id, ordered).await?
        }
    };
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    let turns = answer["queue"].as_array().cloned().unwrap_or_default();
    if turns.is_empty() {
        eprintln!("no turn runs, and no message waits");
        return Ok(0);
    }
    let now = jiff::Timestamp::now();
    let mut table = TextTable::new(&["TURN", "STATUS", "SINCE", "MESSAGE"]);
    for turn in &turns {
        let text = |name: &str| turn[name].as_str().unwrap_or_default().to_owned();
        let content = turn["content"].as_str().map_or_else(|| turn["content"].to_string(), str::to_owned);
        table.row(vec![
            (text("turn"), Some(TerminalStyle::Bold)),
            (text("status"), Some(TerminalStyle::Cyan)),
            (terminal::format_age(&text("createdAt"), now), Some(TerminalStyle::Dim)),
            (terminal::shortened(&content, 80), None),
        ]);
    }
    table.print();
    Ok(0)
}

/// Prints the token, which is all that the holder needs.
pub(crate) async fn lock(
    api: &ApiClient,
    id: &str,
    (ttl, holder, takeover): (Duration, Option<String>, bool),
    as_json: bool,
) -> Result<u8> {
    let id = api.session_id(id).await?;
    let body = json!({ "ttl": ttl.as_secs(), "holder": holder, "takeover": takeover });
    let answer = api.post(&path(&id, "/lock"), &body).await?;
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    let text = |name: &str| answer["lock"][name].as_str().unwrap_or_default().to_owned();
    println!("{}", text("token"));
    eprintln!(
        "locked until {}, each use renews it: put the token in ASH_LOCK, or pass it with --lock",
        text("expiresAt")
    );
    Ok(0)
}

pub(crate) async fn unlock(api: &ApiClient, id: &str, as_json: bool) -> Result<u8> {
    let id = api.session_id(id).await?;
    let unlocked = api.delete(&path(&id, "/lock")).await;
    let answer: Value = api.unless_ended(&id, unlocked).await?;
    if as_json {
        terminal::json(&answer);
    } else {
        eprintln!("unlocked");
    }
    Ok(0)
}
