//! The real Claude Code with the model server: it really receives the scripted replies.

use super::support::{DEADLINE, Stage, directory};
use ash_dev::ListenAddress;
use serde_json::{Value, json};
use std::{path::PathBuf, process::Stdio};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

/// The pinned binary, which `./test` installs and announces. Without it the test fails, because it would prove nothing.
fn claude() -> PathBuf {
    let given = std::env::var_os("ASH_TEST_CLAUDE").map(PathBuf::from);
    let path = given.expect("ASH_TEST_CLAUDE names no Claude Code binary: run ./test, which installs it");
    assert!(path.is_file(), "{} is not there: run ./test, which installs it", path.display());
    path
}

/// The address of the server, in Claude Code's variables.
fn door(stage: &Stage) -> Vec<(&'static str, String)> {
    match stage.server.address().strip_prefix("unix:") {
        Some(path) => vec![
            ("ANTHROPIC_UNIX_SOCKET", path.to_owned()),
            ("ANTHROPIC_BASE_URL", "http://localhost".to_owned()),
        ],
        None => vec![("ANTHROPIC_BASE_URL", stage.url(""))],
    }
}

fn command(stage: &Stage) -> Command {
    for folder in ["home", "work", "tmp"] {
        std::fs::create_dir_all(stage.dir.path().join(folder)).expect("a folder");
    }
    let mut command = Command::new(claude());
    command
        .args(["-p", "--input-format", "stream-json", "--output-format", "stream-json"])
        .args(["--verbose", "--dangerously-skip-permissions"])
        .env_clear()
        .env("PATH", std::env::var("PATH").expect("PATH"))
        .env("HOME", stage.dir.path().join("home"))
        // Temporary files are removed with the test's directory.
        .env("CLAUDE_CODE_TMPDIR", stage.dir.path().join("tmp"))
        .envs([("IS_SANDBOX", "1"), ("ANTHROPIC_API_KEY", "placeholder")])
        .envs([("DISABLE_AUTOUPDATER", "1"), ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")])
        .envs(door(stage))
        .current_dir(stage.dir.path().join("work"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Sends prompts, each after the result of the one before, and returns all output lines.
async fn run(stage: &Stage, prompts: &[&str]) -> Vec<Value> {
    let mut child = command(stage).spawn().expect("Claude Code starts");
    let mut stdin = child.stdin.take().expect("stdin");
    let mut stdout = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let mut lines: Vec<Value> = Vec::new();
    let talk = async {
        for prompt in prompts {
            let line = json!({"type": "user", "message": {"role": "user", "content": prompt}});
            stdin.write_all(format!("{line}\n").as_bytes()).await.expect("it reads");
            while let Some(line) = stdout.next_line().await.expect("a line") {
                lines.push(serde_json::from_str(&line).expect("json"));
                if lines.last().is_some_and(|line| line["type"] == "result") {
                    break;
                }
            }
        }
        drop(stdin);
        // Claude Code waits for background tasks, which have their own results.
        while let Some(line) = stdout.next_line().await.expect("a line") {
            lines.push(serde_json::from_str(&line).expect("json"));
        }
        child.wait().await.expect("its end")
    };
    let ended = tokio::time::timeout(DEADLINE, talk).await.expect("it ends in time");
    assert!(ended.success(), "{ended}: {lines:?}");
    lines
}

fn result(lines: &[Value]) -> &Value {
    let result = lines.iter().rfind(|line| line["type"] == "result").expect("a result");
    assert_eq!(result["is_error"], false, "{result}");
    result
}

/// Makes it run a command, and checks that the command ran and the model got the result.
async fn runs_a_command(stage: Stage) {
    let lines = run(&stage, &["run: echo hi > f && cat f"]).await;
    assert_eq!(result(&lines)["result"], "The output begins with: hi");
    let file = std::fs::read_to_string(stage.dir.path().join("work/f")).expect("the file");
    assert_eq!(file, "hi\n");
    assert_eq!(stage.answered(), ["call of Bash", "tool result"]);
    let logged = stage.logged();
    let messages = logged[1]["body"]["messages"].as_array().expect("messages");
    let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let results: Vec<&Value> = blocks.filter(|block| block["type"] == "tool_result").collect();
    assert_eq!(results.len(), 1, "{results:?}");
    assert_eq!(results[0]["content"], "hi");
}

#[tokio::test]
async fn claude_code_runs_a_command_that_a_prompt_asks_for() {
    runs_a_command(Stage::start().await).await;
}

#[tokio::test]
async fn claude_code_runs_a_command_over_a_unix_socket() {
    let dir = directory();
    let socket = dir.path().join("api.sock");
    runs_a_command(Stage::on(ListenAddress::Unix(socket), "", dir).await).await;
}

#[tokio::test]
async fn claude_code_gets_through_after_two_refusals() {
    let stage = Stage::start().await;
    let lines = run(&stage, &["fail 529 2 times\nsay: through"]).await;
    assert_eq!(result(&lines)["result"], "through");
    assert_eq!(stage.answered(), ["say, fail 529", "say, fail 529", "say"]);
    let retries = lines.iter().filter(|line| line["subtype"] == "api_retry").count();
    assert_eq!(retries, 2);
}

#[tokio::test]
async fn claude_code_survives_a_stream_that_is_cut_and_one_that_is_overloaded() {
    let stage = Stage::start().await;
    let prompts = ["cut 7\nrun: echo once >> f", "overloaded-midstream\nsay: whole"];
    let lines = run(&stage, &prompts).await;
    assert_eq!(result(&lines)["result"], "whole");
    let file = std::fs::read_to_string(stage.dir.path().join("work/f")).expect("the file");
    assert_eq!(file, "once\n");
}

#[tokio::test]
async fn claude_code_compacts_when_the_service_reports_a_full_context() {
    let stage = Stage::start().await;
    let lines = run(&stage, &["hello", "usage 995000\nsay: much", "and now?"]).await;
    let boundaries = lines.iter().filter(|line| line["subtype"] == "compact_boundary").count();
    assert_eq!(boundaries, 1);
    assert_eq!(stage.answered(), ["chat", "say, usage 995000", "summary", "chat"]);
    let said = result(&lines)["result"].as_str().expect("a text");
    assert!(said.starts_with("You said: \"and now?\""), "{said}");
}

#[tokio::test]
async fn claude_codes_subagents_follow_their_own_conversation() {
    let input =
        r#"{"description": "a look", "prompt": "run: echo deep", "subagent_type": "general-purpose"}"#;
    let rule = format!(
        r#"{{"when": {{"turn": 1}}, "reply": [{{"type": "tool_use", "name": "Agent", "input": {input}}}]}}"#
    );
    let stage = Stage::with(&rule).await;
    let lines = run(&stage, &["delegate it"]).await;
    result(&lines);
    let of_subagent =
        stage.logged().into_iter().filter(|line| line["headers"]["x-claude-code-agent-id"].is_string());
    let answered: Vec<Value> = of_subagent.map(|line| line["answered"].clone()).collect();
    assert_eq!(answered, ["call of Bash", "tool result"]);
    assert_eq!(stage.answered()[0], "rule 1: reply");
}

#[tokio::test]
async fn two_runs_of_the_same_prompts_get_identical_answers() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let stage = Stage::start().await;
        let lines = run(&stage, &["run: pwd\nrun: date +%N", "hello"]).await;
        let calls = lines.iter().filter(|line| line["type"] == "assistant").flat_map(|line| {
            let blocks = line["message"]["content"].as_array().cloned().unwrap_or_default();
            blocks.into_iter().filter(|block| block["type"] == "tool_use")
        });
        runs.push((calls.collect::<Vec<Value>>(), result(&lines)["result"].clone()));
    }
    assert_eq!(runs[0].0.len(), 2);
    assert_ne!(runs[0].0[0]["id"], runs[0].0[1]["id"]);
    assert_eq!(runs[0], runs[1]);
}
