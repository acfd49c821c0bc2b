//! The crates and the edges between them are a decision: a new edge fails here until it is written down in
//! `decisions/` and added to this list.

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
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
    let mut files = sources(&server);
    files.retain(|file| !file.ends_with("tests.rs") && !file.iter().any(|part| part == "tests"));
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

/// The modules of `ash-session`, from the ones that know no other to the ones that requests reach first. A module may
/// use only those before it, so that there is no cycle.
const SESSION_MODULES: [&str; 57] = [
    // What is decided and computed without I/O.
    "machine",
    "provider_access",
    "error",
    "fold_log",
    "path_list",
    "tool_calls",
    "agent_env",
    "visibility",
    "observer",
    // Small services, each of which does one thing.
    "agent_logs",
    "claude_program",
    "client_credentials",
    "follower",
    "keyed_mutex",
    "queued_messages",
    "server_troubles",
    "trusted_clock",
    "clocks",
    "uid_pool",
    // The operator's settings, and what they permit.
    "settings",
    "pricing",
    "operator_policy",
    // Workspaces, their files and their sandboxes.
    "live_directory",
    "resource_limits",
    "slots",
    "workspace",
    "files",
    "upload",
    "artifacts",
    "sandbox_conn",
    "mailbox",
    "pool",
    // What every actor and every request is given.
    "services",
    // Steps of a session's life.
    "prewarm",
    "witness",
    "embedded_log",
    "capture",
    "rewind",
    "ladder",
    "start",
    "actor",
    // All sessions.
    "sessions",
    "fork",
    "session_ttl",
    "gc",
    "named_workspaces",
    "permission",
    "client_tools",
    // The other facades.
    "audit",
    "idempotency",
    "agents",
    "api_keys",
    "credentials",
    "stream_tokens",
    "server_status",
    "usage",
    // The crate itself.
    "lib",
];

/// The code of a module: its file and its directory, without comments and tests.
fn module_code(root: &Path, module: &str) -> String {
    let mut files = vec![root.join(format!("{module}.rs"))];
    if root.join(module).is_dir() {
        files.extend(sources(&root.join(module)));
    }
    files.retain(|file| !file.ends_with("tests.rs"));
    let code = files.iter().map(|file| {
        let text = fs::read_to_string(file).expect("a source");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
    });
    code.collect::<Vec<_>>().join("\n")
}

fn is_name_char(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// The first names of the paths in `code` that begin with `crate::`, also of those in a group.
fn crate_names(code: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            None => drop(names.insert(first_name(rest))),
            Some(group) => {
                let (mut depth, mut is_first) = (0, true);
                for (at, char) in group.char_indices() {
                    match char {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => is_first = true,
                        char if is_first && is_name_char(char) => {
                            names.insert(first_name(&group[at..]));
                            is_first = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
}

fn first_name(text: &str) -> &str {
    text.split(|char| !is_name_char(char)).next().unwrap_or_default()
}

/// The modules that `lib.rs` exports names from, by name.
fn exports(lib: &str) -> BTreeMap<&str, &str> {
    let mut exports = BTreeMap::new();
    for export in lib.split("pub use ").skip(1) {
        let statement = export.split(';').next().unwrap_or_default();
        let (module, names) = statement.split_once("::").unwrap_or((statement, ""));
        for name in names.split(|char| !is_name_char(char)).filter(|name| !name.is_empty()) {
            exports.insert(name, module);
        }
    }
    exports
}

/// The methods for other modules that `code` adds to a type that it does not define, by name.
fn added_methods(code: &str) -> BTreeSet<&str> {
    let mut added = BTreeSet::new();
    for block in code.split("\nimpl ").skip(1) {
        let block = block.split("\n}").next().unwrap_or_default();
        let name = first_name(block);
        let is_own = ["struct", "enum"].iter().any(|kind| {
            let definition = format!("{kind} {name}");
            code.match_indices(&definition)
                .any(|(at, _)| !code[at + definition.len()..].starts_with(is_name_char))
        });
        if !is_own && block[name.len()..].starts_with(" {") {
            let public = block.split("\n    pub").skip(1);
            added.extend(
                public
                    .filter_map(|rest| rest.lines().next()?.split_once("fn "))
                    .map(|(_, name)| first_name(name)),
            );
        }
    }
    added
}

/// What `module` uses of modules that come after it.
fn forbidden_uses(root: &Path, modules: &[&str]) -> Vec<String> {
    let lib = module_code(root, "lib");
    let exports = exports(&lib);
    let code: Vec<String> = modules.iter().map(|module| module_code(root, module)).collect();
    let mut found = Vec::new();
    for (place, module) in modules.iter().enumerate().filter(|(_, module)| **module != "lib") {
        for name in crate_names(&code[place]) {
            let used = exports.get(name).copied().unwrap_or(name);
            if modules
                .iter()
                .position(|other| *other == used)
                .is_some_and(|other| other > place && used != "lib")
            {
                found.push(format!("{module} uses {name} of {used}"));
            }
        }
        for (later, other) in code.iter().zip(modules).skip(place + 1) {
            for method in added_methods(later) {
                let known = code[..=place].iter().any(|code| code.contains(&format!("fn {method}(")));
                if !known && code[place].contains(&format!(".{method}(")) {
                    found.push(format!("{module} calls {method}, which {other} adds to a type"));
                }
            }
        }
    }
    found
}

#[test]
fn modules_of_sessions_use_only_those_before_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../session/src");
    let lib = fs::read_to_string(root.join("lib.rs")).expect("a source");
    let declared = lib.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "));
    let mut declared: BTreeSet<&str> = declared.map(|name| name.trim_end_matches(';')).collect();
    declared.insert("lib");
    assert_eq!(declared, SESSION_MODULES.into_iter().collect(), "every module has a place in the list");
    let found = forbidden_uses(&root, &SESSION_MODULES);
    assert!(found.is_empty(), "move the code, or the module in the list:\n{}", found.join("\n"));
}

#[test]
fn a_module_that_reaches_back_is_found() {
    let dir = tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory");
    for (module, code) in [
        ("rows", "use crate::{Error, actors::Actor as Later};\nfn find(actor: Later) { actor.spawn(); }"),
        ("actors", "struct Actor;\n\nimpl Actor {\n    pub fn spawn(&self) {}\n}\n"),
        ("requests", "use crate::Actor;\n\nimpl Actor {\n    pub(crate) async fn ask(&self) {}\n}\n"),
        ("first", "fn wake(actor: A) { actor.ask(1); }\n// crate::requests is named in a comment only"),
        ("lib", "mod first;\nmod rows;\nmod actors;\nmod requests;\npub use actors::{Actor};"),
    ] {
        fs::write(dir.path().join(format!("{module}.rs")), code).expect("a source");
    }
    let modules = ["first", "rows", "actors", "requests", "lib"];
    let found = forbidden_uses(dir.path(), &modules);
    let expected =
        ["first calls ask, which requests adds to a type", "rows uses actors of actors"].map(str::to_owned);
    assert_eq!(found, expected);
}
