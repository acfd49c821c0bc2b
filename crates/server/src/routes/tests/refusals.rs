//! What is refused leaves nothing behind: no session, no line in the audit.

use super::*;

#[tokio::test]
async fn the_audit_names_no_session_that_was_not_made_and_no_command_that_did_not_run() {
    let server = TestRouter::new().await;
    server.stopped_session("s").await;
    let before = server.get("/api/audit").await;
    for (call, body, refusal) in [
        ("POST /api/sessions", json!({ "agent": "nosuch", "sessionId": "x" }), (404, "agent_not_found")),
        ("POST /api/sessions", json!({ "agent": "tester", "sessionId": "s" }), (409, "session_exists")),
        ("POST /api/sessions/s/fork", json!({ "checkpoint": 9 }), (404, "checkpoint_not_found")),
        ("POST /api/sessions/s/exec", json!({ "command": "true" }), (400, "wrong_status")),
    ] {
        let refused = server.ask(KEY, call, body).await;
        assert_eq!(refused.code(), refusal, "{call}: {}", refused.body);
    }
    assert_eq!(server.get("/api/audit").await, before);
}

#[tokio::test]
async fn no_option_holds_a_nul_character() {
    let server = TestRouter::new().await;
    server.stopped_session("s").await;
    for (field, value) in
        [("model", json!("a\0b")), ("availableTools", json!(["read", "a\0"])), ("systemPrompt", json!("\0"))]
    {
        for call in ["POST /api/sessions", "PATCH /api/sessions/s/config"] {
            let mut body = json!({ "agent": "tester" });
            if call.starts_with("PATCH") {
                body = json!({});
            }
            body[field] = value.clone();
            let refused = server.ask(KEY, call, body).await;
            assert_eq!(refused.code(), (400, "invalid_body"), "{call} {field}: {}", refused.body);
            assert_eq!(refused.body["error"], format!("{field} must not hold NUL characters"));
        }
    }
    assert_eq!(server.get("/api/sessions").await["total"], 1);
}
