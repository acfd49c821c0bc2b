//! The output at a terminal.

use super::command;
use crate::{
    permissions_shell::Terminal,
    support::{KEY, Server},
};
use serde_json::json;
use std::process::Command;

fn at_a_terminal(server: &Server, args: &[&str]) -> Command {
    let mut command = Command::new(crate::support::ash());
    command.args(args).env("HOME", &server.dir).env("ASH_SERVER_URL", &server.url).env("ASH_API_KEY", KEY);
    command.env("NO_COLOR", "1").env("TERM", "xterm");
    command
}

#[tokio::test]
async fn a_chat_that_comes_back_names_its_agent() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("painter").await;
    client.post("/api/sessions", json!({ "agent": "painter", "sessionId": "s" })).await;
    for args in [&["chat", "--resume", "s"][..], &["chat", "--resume"], &["chat", "--session-id", "s"]] {
        let mut terminal = Terminal::run(at_a_terminal(&server, args));
        terminal.until("Talking to painter.").await;
        terminal.until("› ").await;
        terminal.hang_up();
        terminal.end().await;
    }
    let (code, said, heard) =
        super::run(command(&server, &["chat", "--resume", "s", "painter", "hello"])).await;
    assert_eq!(code, Some(0), "{heard}");
    assert!(heard.contains("Agent: painter") && said.contains("hello"), "{heard}{said}");
    // A message in the place of the agent's name is not taken for the name.
    let (code, _, said) = super::run(command(&server, &["chat", "--resume", "s", "hello"])).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("agent \"painter\", and not of \"hello\"")
            && said.contains("ash chat --resume s painter"),
        "{said}"
    );
}

#[tokio::test]
async fn a_list_fits_the_terminal_and_shows_ids_whole() {
    let server = Server::start().await;
    let client = server.client();
    let long = "a-session-with-a-long-name-that-somebody-chose-for-it";
    for (id, words) in [
        (long, "日本語日本語日本語日本語日本語日本語"),
        ("short", "a title that is longer than the room for it"),
    ] {
        client.post("/api/sessions", json!({ "agent": "default", "sessionId": id })).await;
        client.say(id, words).await;
    }
    // As long as a generated id, with as many hyphens.
    let alike = "payments-team-nightly-reconcile-2026";
    client.post("/api/sessions", json!({ "agent": "default", "sessionId": alike })).await;
    let screen = Terminal::of_width(at_a_terminal(&server, &["session", "list"]), 60).end().await;
    let lines: Vec<&str> = screen.lines().map(str::trim_end).collect();
    assert!(lines.contains(&long) && lines.iter().any(|line| line.starts_with(alike)), "{screen}");
    assert!(lines.iter().any(|line| line.starts_with("short ") && line.ends_with('…')), "{screen}");
    assert!(lines.iter().any(|line| line.contains("日本") && line.ends_with('…')), "{screen}");
    let columns = |line: &&str| line.chars().map(|c| if c >= '\u{2e80}' { 2 } else { 1 }).sum::<usize>();
    assert!(lines.iter().map(columns).all(|width| width <= 60), "{screen}");
}
