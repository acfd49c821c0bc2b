//! Third-party clients: if they cannot read our responses, the mistake is ours.

use crate::support::{KEY, Server, python};
use std::{path::Path, process::Command};

async fn run(script: &str) {
    let server = Server::start().await;
    let agent = server.dir.join("agent");
    std::fs::create_dir(&agent).expect("made");
    std::fs::write(agent.join("CLAUDE.md"), "# helper\n").expect("written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/e2e/clients").join(script);
    let mut command = Command::new(python());
    command.arg(&script).args([&server.url, KEY]).arg(&agent).env("NO_PROXY", "*");
    let done = tokio::task::spawn_blocking(move || command.output()).await.expect("run").expect("python");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.trim() == "all good", "{out}\n{err}");
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

#[tokio::test]
async fn the_python_client_works_as_it_is_documented() {
    run("high_level.py").await;
}

#[tokio::test]
async fn the_python_clients_generated_functions_understand_every_answer() {
    run("low_level.py").await;
}
