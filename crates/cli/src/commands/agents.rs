//! `ash agent` and `ash deploy`: deploy a folder, list, show and delete agents.

use super::environment;
use crate::{
    api::{ApiClient, CliError, Result, percent_encode},
    args::{AgentCommand, DeployArgs},
    settings::running_server,
    terminal::{self, TerminalStyle, TextTable, paint},
};
use ash_model::FailureKind;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::Path};

/// Available without a deploy.
const DEFAULT: &str = "default";
const UNUSED: &str = "not used yet";

pub(crate) async fn deploy(deploy: DeployArgs) -> Result<()> {
    let folder = fs::canonicalize(&deploy.path)
        .map_err(CliError::from_io(&format!("cannot read {}", deploy.path.display())))?;
    let has = |name: &str| folder.join(name).is_file();
    if !has("CLAUDE.md") && !has("AGENTS.md") && !has("ash.toml") {
        return Err(CliError::invalid(format!(
            "{} is not an agent's folder: it has no CLAUDE.md, AGENTS.md or ash.toml",
            folder.display()
        )));
    }
    let name = deploy.name.unwrap_or_else(|| name_of(&folder));
    let mut env = dotenv(&folder);
    env.extend(environment(&deploy.env)?);
    let mut files = Vec::new();
    collect(&folder, "", &mut files)?;
    let body = json!({ "name": name, "files": files, "env": env });
    let answer = ApiClient::new(&deploy.settings).post("/api/agents", &body).await?;
    if deploy.settings.json {
        terminal::json(&answer);
        return Ok(());
    }
    let agent = &answer["agent"];
    eprintln!(
        "{} deployed {} version {} ({}, {} files)",
        terminal::paint_err(TerminalStyle::Green, "✓"),
        agent["name"].as_str().unwrap_or_default(),
        agent["version"],
        agent["runtime"].as_str().unwrap_or_default(),
        files.len()
    );
    eprintln!("  talk to it: ash chat {name}");
    Ok(())
}

fn name_of(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let clean: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '-' })
        .collect();
    if clean.is_empty() { "agent".to_owned() } else { clean }
}

/// `.env` and `.env.local` hold settings, and are not files of the agent.
fn dotenv(folder: &Path) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for name in [".env", ".env.local"] {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if let Some((name, value)) = line.trim_start_matches("export ").split_once('=') {
                let value = value.trim().trim_matches(|c| c == '"' || c == '\'');
                env.insert(name.trim().to_owned(), value.to_owned());
            }
        }
    }
    env
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<Value>) -> Result<()> {
    let words = format!("cannot read {}", folder.display());
    let failed = || CliError::from_io(&words);
    let mut entries: Vec<_> = fs::read_dir(folder).map_err(failed())?.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().map_err(failed())?;
        let passing = [".sock", ".lock", ".pid"].iter().any(|end| name.ends_with(end));
        if ash_server::is_excluded_from_bundle(name.as_bytes(), kind.is_dir()) || passing {
            continue;
        }
        let path = format!("{prefix}{name}");
        if kind.is_dir() {
            collect(&entry.path(), &format!("{path}/"), files)?;
        } else if kind.is_file() {
            let content =
                fs::read(entry.path()).map_err(CliError::from_io(&format!("cannot read {path}")))?;
            files.push(json!({ "path": path, "content": STANDARD.encode(content) }));
        }
    }
    Ok(())
}

pub(crate) async fn run(api: &ApiClient, command: AgentCommand, as_json: bool) -> Result<()> {
    match command {
        AgentCommand::List => list(api, as_json).await,
        AgentCommand::Info { name } => {
            let answer = match api.get(&format!("/api/agents/{}", percent_encode(&name))).await {
                Err(failure) if failure.kind == FailureKind::NotFound && name == DEFAULT && !as_json => {
                    println!("{}  {UNUSED}; its first session makes it", paint(TerminalStyle::Bold, DEFAULT));
                    return Ok(());
                }
                answer => answer?,
            };
            if as_json {
                terminal::json(&answer)
            } else {
                info(&answer["agent"])
            }
            Ok(())
        }
        AgentCommand::Delete { name } => {
            let answer = api.delete(&format!("/api/agents/{}", percent_encode(&name))).await?;
            if as_json {
                terminal::json(&answer)
            } else {
                eprintln!("deleted {name}; its sessions continue")
            }
            Ok(())
        }
    }
}

async fn list(api: &ApiClient, as_json: bool) -> Result<()> {
    let answer = api.get("/api/agents").await?;
    if as_json {
        terminal::json(&answer);
        return Ok(());
    }
    let now = jiff::Timestamp::now();
    let mut table = TextTable::new(&["NAME", "VERSION", "RUNTIME", "UPDATED"]);
    for agent in answer["agents"].as_array().into_iter().flatten() {
        let text = |name: &str| agent[name].as_str().unwrap_or_default().to_owned();
        table.row(vec![
            (text("name"), Some(TerminalStyle::Bold)),
            (agent["version"].to_string(), None),
            (text("runtime"), None),
            (terminal::format_age(&text("updatedAt"), now), Some(TerminalStyle::Dim)),
        ]);
    }
    // The built-in agent needs no deploy; its first session creates it.
    if !answer["agents"].as_array().into_iter().flatten().any(|agent| agent["name"] == DEFAULT) {
        // The runtime is known only for a server on this machine.
        let own = running_server().filter(|own| own.url == api.url);
        let runtime = own.and_then(|own| own.settings.get("default-runtime").cloned());
        table.row(vec![
            (DEFAULT.to_owned(), Some(TerminalStyle::Bold)),
            ("-".to_owned(), None),
            (runtime.unwrap_or_else(|| "-".to_owned()), None),
            (UNUSED.to_owned(), Some(TerminalStyle::Dim)),
        ]);
    }
    table.print();
    Ok(())
}

fn info(agent: &Value) {
    let text = |name: &str| agent[name].as_str().unwrap_or_default().to_owned();
    println!("{}", paint(TerminalStyle::Bold, &text("name")));
    println!("  version   {}", agent["version"]);
    println!("  runtime   {}", text("runtime"));
    println!("  from      {}", text("path"));
    println!("  deployed  {}", text("updatedAt"));
    if let Some(env) = agent["env"].as_object() {
        println!("  env       {}", env.keys().cloned().collect::<Vec<_>>().join(", "));
    }
}
