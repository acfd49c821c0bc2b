//! Options that change during a resume: whatever the response is, the next turn has them.

use crate::{
    ladder::curtain,
    support::{Client, Server, claude::Stage, eventually},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// The startup script waits while a file of the workspace exists.
const STARTUP: &str = "[ -e hold ] && touch held\nwhile [ -e hold ]; do sleep 0.02; done\nrm -f held\n";

fn resume(client: &Client, id: &str) -> JoinHandle<Value> {
    let (client, id) = (client.clone(), id.to_owned());
    tokio::spawn(async move { client.action(&id, "resume").await["resume"].clone() })
}

async fn configure(client: &Client, id: &str, wanted: Value) {
    let (status, body) = client.ask(Method::PATCH, &format!("/api/sessions/{id}/config"), Some(wanted)).await;
    assert_eq!(status, 200, "{body}");
}

#[tokio::test]
async fn a_working_directory_set_during_a_resume_is_that_of_the_next_turn() {
    let server = Server::start().await;
    let client = server.client();
    let files = json!([{ "path": "startup.sh", "content": STANDARD.encode(STARTUP) }]);
    client.post("/api/agents", json!({ "name": "slow", "files": files })).await;
    client.post("/api/sessions", json!({ "agent": "slow", "sessionId": "one" })).await;
    client.exec("one", "touch hold").await;
    client.action("one", "stop").await;
    let workspace = server.live("one").await.join("tree/workspace");
    let resuming = resume(&client, "one");
    eventually("a start that waits", async || workspace.join("held").exists().then_some(())).await;
    configure(&client, "one", json!({ "workingDirectory": "deep", "env": { "TEAM": "blue" } })).await;
    std::fs::remove_file(workspace.join("hold")).expect("removed");
    assert_eq!(resuming.await.expect("resumed")["lost"], json!([]));
    let said = client.text("one", "run: pwd; echo $TEAM").await;
    assert!(said.contains("/workspace/deep") && said.contains("blue"), "{said}");
}

/// The agent's process is already running, with the old variables.
#[tokio::test]
async fn variables_set_while_the_agent_starts_are_those_of_the_next_turn_even_after_a_crash() {
    let dir = tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory");
    let (claude, hold) = curtain(dir.path());
    let mut stage = Stage::with(&[("ASH_CLAUDE_BIN", &claude.display().to_string())]).await;
    let id = stage.create_with(json!({ "env": { "TEAM": "red" } })).await;
    let client = stage.server.client();
    client.action(&id, "stop").await;
    std::fs::write(&hold, "hold").expect("written");
    let held = stage.server.live(&id).await.join("tree/home/held");
    let resuming = resume(&client, &id);
    eventually("an agent that waits", async || held.exists().then_some(())).await;
    configure(&client, &id, json!({ "env": { "TEAM": "blue" } })).await;
    std::fs::write(&hold, "").expect("written");
    assert_eq!(resuming.await.expect("resumed")["path"], "cold");
    stage.server.crash_and_start().await;
    let frames = stage.server.client().send(&id, "run: echo team $TEAM").await.rest().await;
    let said: String = frames.iter().map(|frame| frame.data.to_string()).collect();
    assert!(said.contains("team blue") && !said.contains("team red"), "{said}");
}

/// The change comes at any instant of a resume.
#[tokio::test]
async fn slowly_no_change_is_lost_in_a_race_with_a_resume() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    for round in 0..60_u64 {
        client.action(&id, "stop").await;
        let resuming = resume(&client, &id);
        for _ in 0..round {
            client.status(&id).await;
        }
        let (team, place) = (format!("team-{round}"), format!("place{round}"));
        configure(&client, &id, json!({ "workingDirectory": &place, "env": { "TEAM": &team } })).await;
        resuming.await.expect("resumed");
        let said = client.text(&id, "run: pwd; echo $TEAM").await;
        assert!(said.contains(&team) && said.contains(&place), "round {round}: {said}");
    }
}
