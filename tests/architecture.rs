//! The crates and the edges between them are a decision: a new edge fails here until it is written down in
//! `decisions/` and added to this list.

use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const EDGES: [&str; 36] = [
    "ash-agent -> ash-dev",
    "ash-agent -> ash-model",
    "ash-bench -> ash-model",
    "ash-bench -> ash-store",
    "ash-bench-snapshot -> ash-snapshot",
    "ash-cli -> ash-agent",
    "ash-cli -> ash-dev",
    "ash-cli -> ash-driver",
    "ash-cli -> ash-model",
    "ash-cli -> ash-sandbox",
    "ash-cli -> ash-server",
    "ash-cli -> ash-snapshot",
    "ash-driver -> ash-model",
    "ash-remote -> ash-cloud",
    "ash-remote -> ash-failpoint",
    "ash-remote -> ash-model",
    "ash-remote -> ash-snapshot",
    "ash-remote -> ash-store",
    "ash-sandbox -> ash-model",
    "ash-server -> ash-cloud",
    "ash-server -> ash-driver",
    "ash-server -> ash-model",
    "ash-server -> ash-sandbox",
    "ash-server -> ash-session",
    "ash-server -> ash-snapshot",
    "ash-server -> ash-store",
    "ash-session -> ash-driver",
    "ash-session -> ash-failpoint",
    "ash-session -> ash-model",
    "ash-session -> ash-remote",
    "ash-session -> ash-sandbox",
    "ash-session -> ash-snapshot",
    "ash-session -> ash-store",
    "ash-snapshot -> ash-failpoint",
    "ash-store -> ash-failpoint",
    "ash-store -> ash-model",
];

#[test]
fn crates_depend_on_each_other_only_as_decided() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("json");
    let mut found = BTreeSet::new();
    for package in metadata["packages"].as_array().expect("packages") {
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let name = dependency["name"].as_str().expect("a name");
            if name.starts_with("ash-") {
                found.insert(format!("{} -> {name}", package["name"].as_str().expect("a name")));
            }
        }
    }
    let allowed: BTreeSet<String> = EDGES.iter().map(|edge| (*edge).to_owned()).collect();
    assert_eq!(found, allowed);
}

/// Every Rust file beneath `dir`.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let of = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    entries.flat_map(of).filter(|path| path.extension().is_some_and(|ext| ext == "rs")).collect()
}

/// The identifiers of a line of code by which it reaches beyond the facades: the traits of the store and what implements
/// them, what the sessions work with, or a field that holds a store.
fn reaches_beyond_facades(line: &str) -> Option<&str> {
    let code = line.split("//").next().unwrap_or_default();
    let is_part = |char: char| char.is_alphanumeric() || char == '_';
    let mut identifiers = code.split(|char: char| !is_part(char));
    let is_type = |name: &str| name.starts_with(char::is_uppercase) && !name.contains('_');
    let beyond = |name: &str| name.ends_with("Store") || ["Services", "Replicator"].contains(&name);
    // `.store(…)` is a method of an atomic value.
    let field = code.split(".store").skip(1).any(|rest| !rest.starts_with(is_part) && !rest.starts_with('('));
    identifiers.find(|name| is_type(name) && beyond(name)).or(field.then_some(".store"))
}

#[test]
fn only_the_file_that_puts_the_server_together_knows_the_store() {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/src");
    let files = sources(&server);
    assert!(files.len() > 50, "only {} files were found", files.len());
    let mut found = Vec::new();
    for file in files.iter().filter(|file| **file != server.join("app.rs")) {
        let text = fs::read_to_string(file).expect("a source");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            found.extend(
                reaches_beyond_facades(line).map(|name| format!("{}:{}: {name}", file.display(), number + 1)),
            );
        }
    }
    assert!(
        found.is_empty(),
        "handlers call the facades of ash_session (Sessions, Agents, Keys, …):\n{}",
        found.join("\n")
    );
}

#[test]
fn a_handler_that_reaches_for_the_store_is_found() {
    for (line, name) in [
        ("use ash_store::{SealingKey, Store};", Some("Store")),
        ("fn all(store: &dyn ash_store::AgentStore) {}", Some("AgentStore")),
        ("    let store = &app.sessions.rooms().store;", Some(".store")),
        ("    app.sessions.services.store.agent(tenant).await?", Some(".store")),
        ("use ash_session::Services;", Some("Services")),
        ("use ash_store::{AgentRow, SessionRow};", None),
        ("    shown[\"objectStore\"] = json!(\".DS_Store\");", None),
        ("    app.sessions.store_trusted_time(); // not in the Store", None),
        ("    let status: ObjectStoreStatus = app.status.object_store().await?;", None),
    ] {
        assert_eq!(reaches_beyond_facades(line), name, "{line}");
    }
}
