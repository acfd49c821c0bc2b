//! `ash workspace`: workspaces that sessions share.

use crate::{
    api::{ApiClient, Result},
    args::WorkspaceCommand,
    terminal::{self, TerminalStyle, TextTable, paint},
};
use serde_json::{Value, json};

fn path(slug: &str, rest: &str) -> String {
    format!("/api/workspaces/{}{rest}", crate::api::percent_encode(slug))
}

pub(super) async fn run(api: &ApiClient, command: WorkspaceCommand, as_json: bool) -> Result<()> {
    let answer = match &command {
        WorkspaceCommand::Create { name, agent } => {
            api.post("/api/workspaces", &json!({ "slug": name, "agent": agent })).await?
        }
        WorkspaceCommand::List => api.get("/api/workspaces").await?,
        WorkspaceCommand::Info { name } => api.get(&path(name, "")).await?,
        WorkspaceCommand::Delete { name } => api.delete(&path(name, "")).await?,
        WorkspaceCommand::Files { name } => api.get(&path(name, "/files")).await?,
        WorkspaceCommand::Checkpoints { name } => api.get(&path(name, "/checkpoints")).await?,
    };
    if as_json {
        terminal::json(&answer);
        return Ok(());
    }
    match command {
        WorkspaceCommand::Create { name, agent } => {
            eprintln!("created {name}; next: ash session create {agent} --workspace {name}");
        }
        WorkspaceCommand::List => list(&answer),
        WorkspaceCommand::Info { .. } => info(&answer),
        WorkspaceCommand::Delete { name } => eprintln!("deleted {name}; its conversations stay readable"),
        WorkspaceCommand::Files { .. } => {
            for file in answer["files"].as_array().into_iter().flatten() {
                println!("{}", file["path"].as_str().unwrap_or_default());
            }
        }
        WorkspaceCommand::Checkpoints { .. } => checkpoints(&answer),
    }
    Ok(())
}

fn list(answer: &Value) {
    let now = jiff::Timestamp::now();
    let mut table = TextTable::new(&["NAME", "AGENT", "SESSIONS", "CHECKPOINT", "CREATED"]);
    for workspace in answer["workspaces"].as_array().into_iter().flatten() {
        let text = |name: &str| workspace[name].as_str().unwrap_or_default().to_owned();
        let checkpoint =
            workspace["checkpoint"].as_u64().map_or_else(String::new, |number| number.to_string());
        table.row(vec![
            (text("slug"), Some(TerminalStyle::Bold)),
            (text("agentName"), None),
            (workspace["sessions"].to_string(), None),
            (checkpoint, None),
            (terminal::format_age(&text("createdAt"), now), Some(TerminalStyle::Dim)),
        ]);
    }
    table.print();
}

fn info(answer: &Value) {
    let workspace = &answer["workspace"];
    let text = |name: &str| workspace[name].as_str().unwrap_or_default().to_owned();
    println!("{}", paint(TerminalStyle::Bold, &text("slug")));
    println!("  agent       {}", text("agentName"));
    println!("  status      {}", text("status"));
    println!(
        "  checkpoint  {}",
        workspace["checkpoint"].as_u64().map_or("none yet".to_owned(), |n| n.to_string())
    );
    for session in answer["sessions"].as_array().into_iter().flatten() {
        let text = |name: &str| session[name].as_str().unwrap_or_default().to_owned();
        println!("  session     {} {} {}", text("id"), terminal::status(&text("status")), text("title"));
    }
}

fn checkpoints(answer: &Value) {
    let now = jiff::Timestamp::now();
    let mut table = TextTable::new(&["NUMBER", "FILES", "SIZE", "WHEN"]);
    for one in answer["checkpoints"].as_array().into_iter().flatten() {
        table.row(vec![
            (one["number"].to_string(), Some(TerminalStyle::Bold)),
            (one["files"].to_string(), None),
            (terminal::format_bytes(one["bytes"].as_u64().unwrap_or(0)), None),
            (terminal::format_age(one["at"].as_str().unwrap_or_default(), now), Some(TerminalStyle::Dim)),
        ]);
    }
    table.print();
}
