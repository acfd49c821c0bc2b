//! Permission requests and questions in the shell: it shows, asks and answers them.

mod terminal;

pub use terminal::Terminal;

use crate::support::{
    KEY, ash,
    claude::Stage,
    permissions::{allow, careful, output, shown, until_asked},
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

fn command(stage: &Stage, args: &[&str]) -> Command {
    let mut command = Command::new(ash());
    command.args(args).env("ASH_SERVER_URL", &stage.server.url).env("ASH_API_KEY", KEY);
    command
}

async fn run(stage: &Stage, args: &[&str]) -> (bool, String, String) {
    let mut command = command(stage, args);
    let done = tokio::task::spawn_blocking(move || command.output()).await.expect("run").expect("ash");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.success(), text(&done.stdout), text(&done.stderr))
}

#[tokio::test]
async fn the_shell_shows_open_requests_and_answers_them() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    assert!(run(&stage, &["session", "permissions", &id]).await.2.contains("no permission request"));
    for (allowed, words) in [(true, "allowed"), (false, "denied")] {
        let mut stream = client.send(&id, "run: echo made >> file").await;
        let asked = stream.until("permission_request").await.pop().expect("a frame").data;
        let permission = asked["id"].as_str().expect("an id");
        let (_, listed, _) = run(&stage, &["session", "permissions", &id]).await;
        assert!(listed.contains(permission) && listed.contains("echo made >> file"), "{listed}");
        let (_, shown, _) = run(&stage, &["session", "get", &id]).await;
        assert!(shown.contains(permission), "{shown}");
        let (good, _, said) = match allowed {
            true => run(&stage, &["session", "allow", &id, permission]).await,
            false => run(&stage, &["session", "deny", &id, permission, "--message", "Enough."]).await,
        };
        assert!(good && said.contains(words), "{said}");
        stream.until("done").await;
    }
    assert_eq!(output(&client, &id, "cat file").await, "made\n");
    assert!(shown(&stage).contains("Enough."));
    let mut stream = client.send(&id, "ask: Which colour? | vermilion | ultramarine").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    let permission = asked["id"].as_str().expect("an id");
    let (_, listed, _) = run(&stage, &["session", "permissions", &id]).await;
    assert!(listed.contains("Which colour?\n  1. vermilion"), "{listed}");
    assert!(listed.contains("\n  2. ultramarine"), "{listed}");
    let (good, _, said) = run(&stage, &["session", "allow", &id, permission, "--answer", "vermilion"]).await;
    assert!(good, "{said}");
    stream.until("done").await;
    assert!(shown(&stage).contains("vermilion"));
    let (good, _, said) = run(&stage, &["session", "deny", &id, permission]).await;
    assert!(!good && said.contains("answered otherwise"), "{said}");
}

#[tokio::test]
async fn a_terminal_shows_the_request_and_reads_the_answer() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    for (typed, made) in [("y", "made\n"), ("rather not", "made\n")] {
        let mut terminal =
            Terminal::run(command(&stage, &["session", "send", &id, "run: echo made >> file"]));
        terminal.until("allow?").await;
        terminal.type_line(typed);
        terminal.end().await;
        assert_eq!(output(&client, &id, "cat file").await, made, "{typed}");
    }
    assert!(shown(&stage).contains("rather not"));

    let mut terminal = Terminal::run(command(
        &stage,
        &["session", "send", &id, "ask: Which colour? | vermilion | ultramarine"],
    ));
    terminal.until("2. ultramarine").await;
    terminal.until("your own words").await;
    terminal.type_line("2");
    terminal.end().await;
    let messages = stage.last_request()["body"]["messages"].clone();
    assert!(messages.as_array().expect("all").last().expect("one").to_string().contains("ultramarine"));

    // Another client answers first.
    let terminal = Terminal::run(command(&stage, &["session", "send", &id, "run: echo made >> file"]));
    terminal.until("allow?").await;
    let asked = until_asked(&client, &id).await;
    allow(&client, &id, &asked).await;
    let screen = terminal.end().await;
    assert!(screen.contains("(allow by client)"), "{screen}");
    assert_eq!(output(&client, &id, "cat file").await, "made\nmade\n");
}

#[tokio::test]
async fn a_terminal_shows_all_of_a_call_before_it_is_allowed() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    // A long command whose end differs from what its beginning suggests.
    let lines: Vec<String> = (1..=60).map(|n| format!("echo line-{n} >> long")).collect();
    let long = format!("run: {}", lines.join("\n"));
    let mut terminal = Terminal::run(command(&stage, &["session", "send", &id, &long]));
    terminal.until("m: show more (21 lines)").await;
    let seen = terminal.seen();
    assert!(seen.contains("echo line-40 >> long") && !seen.contains("line-41"), "{seen}");
    terminal.type_line("m");
    terminal.until("echo line-60 >> long").await;
    terminal.type_line("y");
    terminal.end().await;
    assert_eq!(output(&client, &id, "wc -l < long").await.trim(), "60");

    // A file, with its current content.
    client.exec(&id, "printf 'one\\ntwo\\n' > notes").await;
    let mut terminal = Terminal::run(command(&stage, &["session", "send", &id, "write notes: one\nthree"]));
    terminal.until("allow?").await;
    let seen = terminal.seen();
    for words in ["? Write", "/workspace/notes", "  one", "- two", "+ three"] {
        assert!(seen.contains(words), "{words}: {seen}");
    }
    terminal.type_line("y");
    terminal.end().await;

    // Characters that a terminal would not show are escaped.
    let sly = "run: mkdir -p sly\u{200b}dir";
    let mut terminal = Terminal::run(command(&stage, &["session", "send", &id, sly]));
    terminal.until("allow?").await;
    assert!(terminal.seen().contains("mkdir -p sly\\u{200b}dir"), "{}", terminal.seen());
    terminal.type_line("n");
    terminal.end().await;

    // "Always allow" uses one of the agent's own suggestions, and the agent does not ask again.
    let plain = ["session", "send", &id, "run: mkdir -p plain"];
    let mut terminal = Terminal::run(command(&stage, &plain));
    terminal.until("a1: allow always").await;
    assert!(terminal.seen().contains("  a1. always: allow Bash("), "{}", terminal.seen());
    terminal.type_line("a1");
    terminal.end().await;
    let again = Terminal::run(command(&stage, &plain)).end().await;
    assert!(!again.contains("allow?"), "{again}");
    // The shell lists the suggestions, and the user chooses by number.
    let mut stream = client.send(&id, "run: touch other").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    let permission = asked["id"].as_str().expect("an id");
    let (_, listed, _) = run(&stage, &["session", "permissions", &id]).await;
    assert!(listed.contains("touch other") && listed.contains("  --always 1  allow Bash("), "{listed}");
    let (good, _, said) = run(&stage, &["session", "allow", &id, permission, "--always", "9"]).await;
    assert!(!good && said.contains("--always 9"), "{said}");
    let (good, _, said) = run(&stage, &["session", "allow", &id, permission, "--always"]).await;
    assert!(good, "{said}");
    stream.until("done").await;
    let again = Terminal::run(command(&stage, &["session", "send", &id, "run: touch other"])).end().await;
    assert!(!again.contains("allow?"), "{again}");
}

#[tokio::test]
async fn without_a_terminal_the_shell_names_the_open_request() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    for json_wanted in [&[][..], &["--json"]] {
        let mut child = command(&stage, &["session"])
            .args(json_wanted)
            .args(["send", &id, "run: echo made >> file"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ash");
        let asked = until_asked(&client, &id).await;
        let permission = asked["id"].as_str().expect("an id").to_owned();
        let said = BufReader::new(child.stderr.take().expect("stderr")).lines();
        let said = tokio::task::spawn_blocking(move || {
            said.map_while(Result::ok).find(|line| line.contains(&permission))
        });
        let said = said.await.expect("read").expect("it says what waits");
        allow(&client, &id, &asked).await;
        let done =
            tokio::task::spawn_blocking(move || child.wait_with_output()).await.expect("run").expect("ash");
        assert!(done.status.success(), "{said}");
        if !json_wanted.is_empty() {
            let line: Value = serde_json::from_str(&said).expect("JSON");
            assert_eq!((&line["event"], &line["data"]), (&json!("permission_request"), &asked));
            let answer: Value = serde_json::from_slice(&done.stdout).expect("JSON");
            assert_eq!(answer["status"], "done");
        }
    }
    assert_eq!(output(&client, &id, "cat file").await, "made\nmade\n");
}
