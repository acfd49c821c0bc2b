//! A token opens the stream of its session, and nothing else.

use super::*;
use ash_session::{StreamTokenKey, StreamTokens};
use ash_store::AccessScope;

const REFUSED: (u16, &str) = (401, "invalid_stream_token");
const WITHOUT_A_KEY: (u16, &str) = (401, "unauthorized");

impl TestRouter {
    /// A token of a caller for a session.
    async fn stream_token(&self, key: &str, id: &str) -> String {
        let made = self.ask(key, &format!("POST /api/sessions/{id}/stream-token"), Value::Null).await;
        assert_eq!(made.status, StatusCode::OK, "{}", made.body);
        made.body["token"].as_str().expect("a token").to_owned()
    }

    /// The answer to a request with a token and no header. Sessions of these tests have ended, so that a stream that opens ends.
    async fn with_token(&self, call: &str, token: &str) -> TestAnswer {
        self.send(&format!("{call}?token={token}"), Body::empty(), &[]).await
    }

    /// A new key: its text and its id.
    async fn key(&self, body: Value) -> (String, String) {
        let made = self.ask(KEY, "POST /api/api-keys", body).await.body;
        let word = |name: &str| made[name].as_str().expect("a text").to_owned();
        (word("key"), word("id"))
    }

    async fn ended_session(&self, id: &str) {
        self.stopped_session(id).await;
        let ended = self.ask(KEY, &format!("DELETE /api/sessions/{id}"), Value::Null).await;
        assert_eq!(ended.status, StatusCode::OK, "{}", ended.body);
    }
}

#[tokio::test]
async fn a_token_opens_the_stream_of_its_session_and_no_other_route_session_or_method() {
    let server = TestRouter::with_internal_secret(Some("the-secret-of-the-operator")).await;
    server.ended_session("s").await;
    server.ended_session("other").await;
    let token = server.stream_token(KEY, "s").await;
    let opened = server.with_token("GET /api/sessions/s/stream", &token).await;
    assert_eq!(
        (opened.status, &opened.headers["cache-control"]),
        (StatusCode::OK, &"no-cache".parse().expect("a value"))
    );
    assert!(opened.text.contains("event: ended\n"), "{}", opened.text);
    for call in
        ["GET /api/sessions/other/stream", "GET /api/sessions/unknown/stream", "GET /api/sessions/%73/stream"]
    {
        assert_eq!(server.with_token(call, &token).await.code(), REFUSED, "{call}");
    }
    for (call, body) in surface::CALLS.iter().filter(|(call, _)| *call != "GET /api/sessions/s/stream") {
        let refused = server.send(&format!("{call}?token={token}"), Body::from(*body), &[]).await;
        assert_eq!(refused.code(), WITHOUT_A_KEY, "{call}");
    }
    for call in ["POST /api/sessions/s/stream", "GET /api/sessions/s/stream/", "GET /api/sessions/s/x/stream"]
    {
        assert_eq!(server.with_token(call, &token).await.code(), WITHOUT_A_KEY, "{call}");
    }
    let head = server.with_token("HEAD /api/sessions/s/stream", &token).await;
    assert_eq!(head.status, StatusCode::UNAUTHORIZED);
    // As a key it is a wrong one.
    assert_eq!(server.ask(&token, "GET /api/sessions/s/stream", Value::Null).await.code(), WITHOUT_A_KEY);
}

#[tokio::test]
async fn a_header_decides_alone_when_there_is_a_token_too() {
    let server = TestRouter::new().await;
    server.ended_session("s").await;
    let token = server.stream_token(KEY, "s").await;
    let refused =
        server.ask("wrong", &format!("GET /api/sessions/s/stream?token={token}"), Value::Null).await;
    assert_eq!(refused.code(), WITHOUT_A_KEY);
    let opened = server.ask(KEY, "GET /api/sessions/s/stream?token=ast_wrong", Value::Null).await;
    assert_eq!(opened.status, StatusCode::OK);
}

#[tokio::test]
async fn a_wrong_or_expired_token_is_refused_and_no_answer_or_audit_repeats_it() {
    let server = TestRouter::new().await;
    server.ended_session("s").await;
    let token = server.stream_token(KEY, "s").await;
    // The token of an hour ago: the server's own seal key, and another clock.
    let hour_ago = || Timestamp(Timestamp::now().0 - 3_600_000);
    let tokens = StreamTokens::of(&server._data.path().join("seal.key"), hour_ago).expect("a key");
    let (scope, id) = (AccessScope::all(&TenantId::main()), SessionId::parse("s").expect("an id"));
    let row = server.store.find_session(&scope, &id).await.expect("read").expect("there");
    let environment = StreamTokenKey::Environment { id: "env", text: KEY };
    let expired = tokens.issue(&row, environment).text;
    let of_another_key = StreamTokens::of(&server._data.path().join("seal.key"), Timestamp::now)
        .expect("a key")
        .issue(&row, StreamTokenKey::Environment { id: "env", text: "the key before" })
        .text;
    let cut = &token[..token.len() - 1];
    for wrong in [expired.as_str(), of_another_key.as_str(), cut, "", "ast_", "x", "%00", KEY] {
        let refused = server.with_token("GET /api/sessions/s/stream", wrong).await;
        assert_eq!(refused.code(), REFUSED, "{wrong}");
        assert!(wrong.len() < 5 || !refused.text.contains(wrong), "{}", refused.text);
    }
    let twice = server.with_token("GET /api/sessions/s/stream", &format!("{token}&token={token}")).await;
    assert_eq!(twice.code(), (400, "invalid_query"));
    assert!(!twice.text.contains(&token), "{}", twice.text);
    assert!(!server.get("/api/audit").await.to_string().contains("ast_"));
}

#[tokio::test]
async fn wrong_tokens_count_as_wrong_keys_and_a_right_one_always_opens() {
    let server = TestRouter::new().await;
    server.ended_session("s").await;
    let token = server.stream_token(KEY, "s").await;
    let mut codes = Vec::new();
    for _ in 0..101 {
        let refused = server.with_token("GET /api/sessions/s/stream", "ast_wrong").await;
        codes.push(refused.body["code"].as_str().expect("a code").to_owned());
    }
    assert_eq!(codes.iter().position(|code| code == "too_many_wrong_keys"), Some(100));
    assert_eq!(server.with_token("GET /api/sessions/s/stream", &token).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_token_is_worth_what_its_key_is_worth() {
    let server = TestRouter::new().await;
    server.ended_session("s").await;
    let (key, id) = server.key(json!({ "label": "dashboard" })).await;
    let token = server.stream_token(&key, "s").await;
    assert_eq!(server.with_token("GET /api/sessions/s/stream", &token).await.status, StatusCode::OK);
    server.ask(KEY, &format!("DELETE /api/api-keys/{id}"), Value::Null).await;
    assert_eq!(server.with_token("GET /api/sessions/s/stream", &token).await.code(), REFUSED);
    let (of_alice, _) = server.key(json!({ "owner": "alice" })).await;
    let refused = server.ask(&of_alice, "POST /api/sessions/s/stream-token", Value::Null).await;
    assert_eq!(refused.code(), (404, "session_not_found"));
}
