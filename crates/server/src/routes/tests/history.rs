//! The log and the conversation of a session: what their queries refuse.

use super::*;

#[tokio::test]
async fn the_log_has_the_frames_of_the_stream_and_refuses_wrong_queries() {
    let server = TestRouter::new().await;
    server.stopped_session("s").await;
    let ended = server.ask(KEY, "DELETE /api/sessions/s", Value::Null).await;
    assert_eq!(ended.status, StatusCode::OK, "{}", ended.body);
    let stream = server.ask(KEY, "GET /api/sessions/s/stream", Value::Null).await.text;
    let frames = stream.split_terminator("\n\n").map(|frame| {
        let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        format!(r#"{{"id":"{}","event":"{}","data":{}}}"#, field("id: "), field("event: "), field("data: "))
    });
    let sent: Vec<String> = frames.collect();
    let log = server.ask(KEY, "GET /api/sessions/s/log", Value::Null).await;
    assert_eq!(log.text, format!(r#"{{"events":[{}],"nextAfter":null}}"#, sent.join(",")));
    assert_eq!(sent.len(), 3, "created, stopped, ended");
    let first = server.get("/api/sessions/s/log?limit=1").await;
    assert_eq!((first["events"].as_array().map(Vec::len), &first["nextAfter"]), (Some(1), &json!(1)));
    let end = server.get(&format!("/api/sessions/s/log?after={}", u64::MAX)).await;
    assert_eq!(end, json!({ "events": [], "nextAfter": null }));
    for (query, code, words) in [
        ("limit=0", "invalid_query", "limit must be 1 to 1000"),
        ("limit=1001", "invalid_query", "limit must be 1 to 1000"),
        ("limit=x", "invalid_query", "limit"),
        ("after=-1", "invalid_query", "after"),
        ("after=1-1", "invalid_query", "after"),
        ("limt=5", "unknown_parameter", "limt: did you mean limit?"),
        ("all=true", "unknown_parameter", "all"),
    ] {
        let refused = server.ask(KEY, &format!("GET /api/sessions/s/log?{query}"), Value::Null).await;
        assert_eq!(refused.code(), (400, code), "{query}");
        assert!(refused.text.contains(words), "{}", refused.text);
    }
}

#[tokio::test]
async fn the_conversation_refuses_wrong_queries() {
    let server = TestRouter::new().await;
    server.stopped_session("s").await;
    let empty = json!({ "items": [], "nextAfter": null });
    for query in ["", "limit=1", "limit=500&all=true", &format!("after={}", u64::MAX)] {
        assert_eq!(server.get(&format!("/api/sessions/s/conversation?{query}")).await, empty, "{query}");
    }
    for (query, refusal, words) in [
        ("limit=0", (400, "invalid_query"), "limit must be 1 to 500"),
        ("limit=501", (400, "invalid_query"), "limit must be 1 to 500"),
        ("checkpoint=one", (400, "invalid_query"), "checkpoint"),
        ("checkpoint=1", (404, "checkpoint_not_found"), "checkpoint"),
        ("chekpoint=1", (400, "unknown_parameter"), "chekpoint: did you mean checkpoint?"),
        ("all=maybe", (400, "invalid_query"), "all"),
    ] {
        let refused =
            server.ask(KEY, &format!("GET /api/sessions/s/conversation?{query}"), Value::Null).await;
        assert_eq!(refused.code(), refusal, "{query}");
        assert!(refused.text.contains(words), "{}", refused.text);
    }
}
