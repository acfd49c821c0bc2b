//! Commands that a session cannot carry out in its current state.

use super::world::World;
use crate::support::{eventually, signal};
use reqwest::Method;
use serde_json::json;

#[tokio::test]
async fn commands_that_do_not_fit_the_state_are_refused() {
    let mut world = World::new().await;
    for name in ["paused", "stopped", "ended", "failed"] {
        let made = world.ours.post("/api/sessions", json!({ "agent": "tester", "sessionId": name })).await;
        assert_eq!(made["session"]["status"], "active");
    }
    world.ours.action("paused", "pause").await;
    world.ours.action("stopped", "stop").await;
    world.ours.delete("/api/sessions/ended").await;
    signal(world.server.processes("failed").await.agent, libc::SIGKILL);
    world.ours.until_status("failed", "error").await;
    world.names.insert("<x>", r#"{"content":"x","autoResume":false}"#.to_owned());
    // The server first captures the files of dead sessions, which is not a change by a refused request.
    eventually("the dead are buried", async || {
        world.ours.session("failed").await["checkpoint"]["local"].as_u64()
    })
    .await;
    #[rustfmt::skip]
    world.refuse(&[
        ("POST /api/sessions/paused/pause", "", 400, "wrong_status"),
        ("POST /api/sessions/paused/stop", "", 400, "wrong_status"),
        ("POST /api/sessions/paused/exec", r#"{"command":"true"}"#, 400, "wrong_status"),
        ("POST /api/sessions/paused/messages", "<x>", 400, "wrong_status"),
        ("POST /api/sessions/stopped/pause", "", 400, "wrong_status"),
        ("POST /api/sessions/stopped/stop", "", 400, "wrong_status"),
        ("POST /api/sessions/stopped/exec", r#"{"command":"true"}"#, 400, "wrong_status"),
        ("POST /api/sessions/stopped/messages", "<x>", 400, "wrong_status"),
        ("POST /api/sessions/failed/pause", "", 400, "wrong_status"),
        ("POST /api/sessions/failed/stop", "", 400, "wrong_status"),
        ("POST /api/sessions/failed/exec", r#"{"command":"true"}"#, 400, "wrong_status"),
        ("POST /api/sessions/failed/messages", "<x>", 400, "wrong_status"),
        ("POST /api/sessions/ended/resume", "", 410, "session_ended"),
        ("POST /api/sessions/ended/pause", "", 400, "wrong_status"),
        ("POST /api/sessions/ended/stop", "", 400, "wrong_status"),
        ("POST /api/sessions/ended/interrupt", "", 400, "wrong_status"),
        ("POST /api/sessions/ended/exec", r#"{"command":"true"}"#, 400, "wrong_status"),
        ("POST /api/sessions/ended/messages", r#"{"content":"x"}"#, 400, "wrong_status"),
        ("POST /api/sessions/ended/messages", "<x>", 400, "wrong_status"),
        ("POST /api/sessions/ended/files", r#"{"files":[{"path":"x","content":""}]}"#, 400, "wrong_status"),
        ("DELETE /api/sessions/ended/files/CLAUDE.md", "", 400, "wrong_status"),
        ("POST /api/sessions/ended/workspace", r#"{"bundle":"H4sIAAAAAAAAAwMAAAAAAAAAAAA="}"#, 400, "wrong_status"),
        ("PATCH /api/sessions/ended/config", r#"{"model":"x"}"#, 400, "wrong_status"),
    ]).await;
    let (_, body) = world
        .ours
        .ask(
            Method::POST,
            "/api/sessions/failed/messages",
            Some(json!({ "content": "x", "autoResume": false })),
        )
        .await;
    assert_eq!(body["error"], "Session is error");
}
