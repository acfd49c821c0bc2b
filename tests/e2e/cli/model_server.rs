//! `ash dev model-server` as a command: it prints its address, stops on a signal, and refuses an invalid script.

use crate::support::{DEADLINE, ash};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
};

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory")
}

fn model_server(args: &[&str], dir: &Path) -> Command {
    let mut command = Command::new(ash());
    command.args(["dev", "model-server"]).args(args).current_dir(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn it_says_where_it_listens_and_a_signal_ends_it() {
    let dir = directory();
    for (signal, args) in [(libc::SIGTERM, &[][..]), (libc::SIGINT, &["--unix", "api.sock"])] {
        let mut server = model_server(args, dir.path()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(server.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        let address = line.strip_prefix("listening on ").expect("where").trim_end();
        assert!(address.starts_with("http://127.0.0.1:") || address == "unix:api.sock", "{address}");
        // SAFETY: sends a signal to a process that we started and have not waited for.
        assert_eq!(unsafe { libc::kill(server.id() as i32, signal) }, 0);
        assert!(server.wait().expect("its end").success());
    }
    assert!(!dir.path().join("api.sock").exists());
}

#[tokio::test]
async fn a_script_and_a_log_are_files() {
    let dir = directory();
    let rule = r#"[{"when": {"contains": "tea"}, "reply": [{"type": "text", "text": "green"}]}]"#;
    std::fs::write(dir.path().join("script"), rule).expect("a script");
    let mut server =
        model_server(&["--script", "script", "--log", "log"], dir.path()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
    let url = format!("{}/v1/messages", line.trim_start_matches("listening on ").trim_end());
    let client = reqwest::Client::builder().no_proxy().timeout(DEADLINE).build().expect("a client");
    let body = serde_json::json!({ "messages": [{ "role": "user", "content": "tea?" }] });
    let answer = client.post(url).json(&body).send().await.expect("an answer").text().await.expect("text");
    assert!(answer.contains("green"), "{answer}");
    let log = std::fs::read_to_string(dir.path().join("log")).expect("a log");
    assert!(log.contains(r#""answered":"rule 1: reply""#), "{log}");
    server.kill().and_then(|()| server.wait()).expect("its end");
}

#[test]
fn a_wrong_script_is_refused_with_the_rule_and_the_reason() {
    let dir = directory();
    std::fs::write(dir.path().join("script"), "{\"hang\": true}\n{\"hnag\": true}").expect("a script");
    let Output { status, stderr, .. } =
        model_server(&["--script", "script"], dir.path()).output().expect("it ends");
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("script: rule 2: there is no hnag here; there are when,"), "{said}");
}
