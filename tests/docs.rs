//! Runs every `sh` block of README.md and docs/, page by page, with the real binary.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The commands of a page, as one script. Two commands of the README build and test the project itself: this checks
/// only that these scripts exist and parse, because CI runs them.
fn script(page: &Path) -> String {
    let text = fs::read_to_string(page).expect("a page");
    let mut script = String::new();
    for block in text.split("```sh\n").skip(1) {
        let block = block.split("```").next().expect("the end of a block");
        if let Some(own) = block.trim().strip_prefix("./") {
            let program = root().join(own.split_whitespace().next().unwrap_or_default());
            let valid = Command::new("bash").arg("-n").arg(&program).status().expect("bash");
            assert!(valid.success(), "{} of {} is not a valid script", program.display(), page.display());
            continue;
        }
        script.push_str(block);
    }
    script
}

fn run(page: &str) {
    let script = script(&root().join(page));
    let home = std::env::temp_dir().join(format!("ash-test-{}", uuid::Uuid::new_v4()));
    fs::create_dir_all(&home).expect("a home");
    let bin = Path::new(env!("CARGO_BIN_EXE_ash")).parent().expect("a directory").to_owned();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("PATH"));
    // Stops the servers that the script started, however it ends.
    let stop = "{ ash stop; kill $(jobs -p); } >/dev/null 2>&1 || true";
    let whole = format!("set -euo pipefail\ntrap '{stop}' EXIT\n{script}");
    let output = Command::new("bash")
        .arg("-c")
        .arg(&whole)
        .env_clear()
        .env("PATH", path)
        .env("HOME", &home)
        .env("ASH_PORT", "0")
        .current_dir(&home)
        .output()
        .expect("bash");
    fs::remove_dir_all(&home).ok();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{page}: {}\n{}\n{}",
        output.status,
        said(&output.stdout),
        said(&output.stderr)
    );
}

#[test]
fn the_readme_is_true() {
    run("README.md");
}

#[test]
fn the_tutorial_is_true() {
    run("docs/tutorial.md");
}

#[test]
fn the_api_page_is_true() {
    run("docs/api.md");
}

#[test]
fn the_deployment_page_is_true() {
    run("docs/deployment.md");
}

#[test]
fn the_operations_page_is_true() {
    run("docs/operations.md");
}

#[test]
fn the_guide_for_users_of_other_sdks_is_true() {
    run("docs/guide.md");
}

#[test]
fn the_page_of_the_model_server_is_true() {
    run("docs/model-server.md");
}

#[test]
fn no_page_has_commands_that_nothing_runs() {
    let mut pages: Vec<String> = fs::read_dir(root().join("docs"))
        .expect("docs")
        .flatten()
        .filter(|entry| fs::read_to_string(entry.path()).is_ok_and(|text| text.contains("```sh\n")))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    pages.sort();
    assert_eq!(
        pages,
        ["api.md", "deployment.md", "guide.md", "model-server.md", "operations.md", "tutorial.md"]
    );
}
