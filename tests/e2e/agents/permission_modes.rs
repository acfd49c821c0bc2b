//! Permission modes with the real Claude Code: an agent cannot widen the mode of its session by any file or request; a
//! client can.

use crate::support::{Client, claude::Stage, permissions::output, signal};
use reqwest::Method;
use serde_json::{Value, json};

/// Rules that would allow everything.
const WIDE: &str = r#"{"permissions":{"defaultMode":"bypassPermissions","allow":["Bash","Write","Edit"]}}"#;

/// Ways to put such rules where Claude Code looks for its settings, one message after another.
fn attempts() -> Vec<Vec<String>> {
    let own = |path: &str| format!("write {path}: {WIDE}");
    let said = |messages: &[&str]| messages.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    vec![
        vec![own("/home/agent/.claude/settings.json")],
        vec![own("/workspace/.claude/settings.json")],
        vec![own("/workspace/.CLAUDE/settings.local.json")],
        vec![format!("run: mkdir -p .claude; echo '{WIDE}' > .claude/settings.local.json")],
        vec![own("/workspace/x.json"), "run: cp x.json /home/agent/.claude/settings.json".to_owned()],
        vec![own("/workspace/d/settings.local.json"), "run: mv d .claude".to_owned()],
        [
            said(&["run: mkdir -p .claude; ln -s .claude link"]),
            vec![own("/workspace/link/settings.local.json")],
        ]
        .concat(),
    ]
}

/// A call that only the widest mode allows. Returns whether it ran.
async fn passes(client: &Client, id: &str) -> bool {
    client.say(id, "run: python3 -c 'open(\"/workspace/passed\", \"a\").write(\"x\")'").await;
    output(client, id, "cat /workspace/passed; rm -f /workspace/passed").await == "x"
}

async fn change(client: &Client, id: &str, mode: &str) -> (u16, Value) {
    let body = json!({ "permissionMode": mode });
    let (status, said) = client.ask(Method::PATCH, &format!("/api/sessions/{id}/config"), Some(body)).await;
    (status.as_u16(), said["session"]["config"]["permissionMode"].clone())
}

/// No client answers the requests, so they are denied.
#[tokio::test]
async fn an_agent_cannot_widen_its_permission_mode_and_a_client_can() {
    let stage = Stage::with(&[("ASH_PERMISSION_TIMEOUT", "0")]).await;
    let client = stage.server.client();
    for mode in ["default", "acceptEdits", "dontAsk"] {
        let id = stage.create_with(json!({ "permissionMode": mode })).await;
        for messages in attempts() {
            for message in &messages {
                assert_eq!(client.say(&id, message).await["status"], "done", "{message}");
            }
            assert!(!passes(&client, &id).await, "{mode}: {messages:?}");
        }
        let (_, agent) = stage.agent(&id).await;
        signal(agent, libc::SIGKILL);
        client.until_status(&id, "error").await;
        stage.back(&id).await;
        assert!(!passes(&client, &id).await, "{mode}: after a death");
        client.action(&id, "stop").await;
        stage.back(&id).await;
        assert!(!passes(&client, &id).await, "{mode}: after a rest");
        assert_eq!(client.session(&id).await["config"]["permissionMode"], mode);

        let wide = json!("bypassPermissions");
        assert_eq!(change(&client, &id, "bypassPermissions").await, (200, wide), "a client can");
        assert!(passes(&client, &id).await, "{mode}: the client's word counts");
        client.delete(&format!("/api/sessions/{id}")).await;
    }
}

#[tokio::test]
async fn an_agent_cannot_leave_a_plan_by_itself_and_a_client_can_end_it() {
    let stage = Stage::with(&[("ASH_PERMISSION_TIMEOUT", "0")]).await;
    let client = stage.server.client();
    let leaves = json!([{ "when": { "contains": "leave the plan" }, "times": 1,
        "reply": [{ "type": "tool_use", "name": "ExitPlanMode", "input": { "plan": "do it" } }] }]);
    stage.script(leaves).await;
    let id = stage.create_with(json!({ "permissionMode": "plan" })).await;
    assert_eq!(client.say(&id, "leave the plan").await["status"], "done");
    assert!(!passes(&client, &id).await);
    assert_eq!(change(&client, &id, "bypassPermissions").await.0, 200);
    assert!(passes(&client, &id).await);
}
