//! Keys that are too short, wrong, or deleted.

use crate::support::{KEY, Server, eventually};
use reqwest::{Method, StatusCode};
use serde_json::json;
use std::process::{Command, Stdio};

/// Whether a server with these settings starts, and its error if it does not.
fn refusal(server: &Server, args: &[&str], env: &[(&str, &str)]) -> Option<String> {
    let mut command: Command = server.command_of(args);
    let mut child = command
        .envs(env.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary");
    let until = std::time::Instant::now() + crate::support::DEADLINE;
    loop {
        if child.try_wait().expect("wait").is_some() {
            let output = child.wait_with_output().expect("its words");
            return Some(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let info = std::fs::read_to_string(server.data.join("server.json")).unwrap_or_default();
        if info.contains(&format!("\"pid\":{}", child.id())) || std::time::Instant::now() > until {
            child.kill().expect("kill");
            child.wait().expect("wait");
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[tokio::test]
async fn a_short_key_is_refused_where_others_reach_the_server_and_warned_of_on_loopback() {
    let server = Server::prepare(&[]);
    let open = [("ASH_HOST", "0.0.0.0")];
    let said = refusal(&server, &["serve"], &[open[0], ("ASH_API_KEY", "fifteen-letters")]).expect("refused");
    assert!(said.contains("ASH_API_KEY") && said.contains("16 characters"), "{said}");
    let secret = [open[0], ("ASH_API_KEY", ""), ("ASH_INTERNAL_SECRET", "short")];
    let said = refusal(&server, &["serve"], &secret).expect("refused");
    assert!(said.contains("ASH_INTERNAL_SECRET") && said.contains("16 characters"), "{said}");
    let long = [open[0], ("ASH_API_KEY", "sixteen-letters!")];
    assert_eq!(refusal(&server, &["serve"], &long), None);
    let server = Server::start().await;
    let warned = server.log().lines().filter(|line| line.contains("16 characters")).count();
    assert_eq!(warned, 1, "{}", server.log());
}

#[tokio::test]
async fn keys_are_not_taken_as_flags() {
    let server = Server::prepare(&[]);
    for flag in ["--api-key", "--internal-secret", "--anthropic-api-key", "--claude-oauth-token"] {
        let said = refusal(&server, &["serve", flag, "a-key-that-is-long-enough"], &[]).expect("refused");
        assert!(said.contains("environment"), "{flag}: {said}");
    }
    let said = refusal(&server, &["session", "list", "--api-key", "a-key-that-is-long-enough"], &[]);
    assert!(said.expect("refused").contains("ASH_API_KEY"));
}

#[tokio::test]
async fn wrong_keys_are_throttled_and_logged_and_a_right_one_always_passes() {
    let server = Server::start().await;
    let (wrong, right) = (server.client_with("wrong-key-of-a-stranger"), server.client());
    let guess = async || wrong.request(Method::GET, "/api/agents").send().await.expect("an answer");
    let mut statuses = Vec::new();
    for _ in 0..400 {
        let answer = guess().await;
        statuses.push(answer.status());
        if answer.status() == StatusCode::TOO_MANY_REQUESTS {
            assert!(answer.headers().contains_key("retry-after"));
            break;
        }
    }
    assert_eq!(statuses.last(), Some(&StatusCode::TOO_MANY_REQUESTS), "{} tries", statuses.len());
    assert!(statuses.len() > 20, "some are mistakes: {}", statuses.len());
    right.get("/api/agents").await;
    let log = server.log();
    assert!(log.contains("wrong key") && log.contains("127.0.0.1"), "{log}");
    assert!(log.matches("wrong key").count() < 5, "a line for each would be a way to fill the disk: {log}");
    assert!(!log.contains("wrong-key-of-a-stranger") && !log.contains(KEY), "{log}");
}

#[tokio::test]
async fn the_streams_of_a_revoked_key_end_at_once() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let made = client.post("/api/api-keys", json!({ "label": "soon gone" })).await;
    let revoked = server.client_with(made["key"].as_str().expect("a key"));
    let mut follows = revoked.follow(&id, "").await;
    follows.next().await.expect("a first frame");
    let mut turn = revoked.send(&id, "hold go: on").await;
    turn.next().await.expect("a first frame");
    let mut kept = client.follow(&id, "").await;
    kept.next().await.expect("a first frame");
    client.delete(&format!("/api/api-keys/{}", made["id"].as_str().expect("an id"))).await;
    // Otherwise they would continue for as long as the turn is held.
    follows.rest().await;
    turn.rest().await;
    client.exec(&id, "touch go").await;
    kept.until("done").await;
    eventually("the turn is over", async || (client.session(&id).await["status"] == "active").then_some(()))
        .await;
}
