//! The crates and the edges between them are a decision: a new edge fails here until it is written down in
//! `decisions/` and added to this list.

use serde_json::Value;
use std::{collections::BTreeSet, process::Command};

const EDGES: [&str; 31] = [
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
    "ash-sandbox -> ash-model",
    "ash-server -> ash-cloud",
    "ash-server -> ash-driver",
    "ash-server -> ash-model",
    "ash-server -> ash-sandbox",
    "ash-server -> ash-session",
    "ash-server -> ash-snapshot",
    "ash-server -> ash-store",
    "ash-session -> ash-cloud",
    "ash-session -> ash-driver",
    "ash-session -> ash-failpoint",
    "ash-session -> ash-model",
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
