//! Invalid addresses: hostile names, odd queries, and unknown routes.

use super::world::{OF_A_SESSION, World, bearer};
use crate::support::KEY;

#[tokio::test]
async fn hostile_ids_and_paths_reach_nothing() {
    let world = World::new().await;
    let ids = [
        (".", 400),
        ("..", 400),
        ("%2e%2e", 400),
        ("..%2f..%2fash.db", 400),
        ("%2fetc%2fpasswd", 400),
        ("a%00b", 400),
        ("%ff%fe", 400),
        ("%zz", 400),
        ("%F0%9F%92%A9", 400),
        ("a%20b", 400),
        ("a%0d%0ab", 400),
        ("'%20OR%201=1--", 400),
        ("<10k>", 400),
        ("<129>", 400),
    ];
    let mut cases = Vec::new();
    for (call, body) in OF_A_SESSION {
        for (id, status) in ids {
            cases.push((call.replace("{}", id), body, status));
        }
    }
    let mut wrong = Vec::new();
    for (call, body, status) in &cases {
        let answer = world.raw(&bearer(KEY), call, body.as_bytes()).await;
        let code = if call.contains("%ff") { "invalid_path" } else { "invalid_session_id" };
        wrong.extend(answer.is_problem(*status, code).err().map(|why| format!("{call:.100}: {why:.300}")));
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    #[rustfmt::skip]
    world.refuse(&[
        ("GET /api/agents/..", "", 404, "agent_not_found"),
        ("GET /api/agents/%2e%2e%2fx", "", 404, "agent_not_found"),
        ("GET /api/agents/a%00", "", 404, "agent_not_found"),
        ("GET /api/agents/%ff", "", 400, "invalid_path"),
        ("DELETE /api/agents/<10k>", "", 404, "agent_not_found"),
        ("PATCH /api/agents/%F0%9F%92%A9", "{}", 404, "agent_not_found"),
        ("DELETE /api/api-keys/..", "", 404, "key_not_found"),
        ("DELETE /api/api-keys/%ff", "", 400, "invalid_path"),
        ("DELETE /api/api-keys/a%00", "", 404, "key_not_found"),
        ("DELETE /api/api-keys/<10k>", "", 404, "key_not_found"),
        ("GET /api/sessions/<id>/files/..", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/files/../../../ash.db", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/files/%2e%2e%2f%2e%2e%2fstamp", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/files/a/%2e%2e/%2e%2e/x", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/files//etc/passwd", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/files/%2fetc%2fpasswd", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/files/a%00.txt", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/files/%ff", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/files/<10k>", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/files/a.txt/", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/files/%F0%9F%92%A9", "", 404, "file_not_found"),
        ("GET /api/sessions/<id>/files/missing", "", 404, "file_not_found"),
        ("GET /api/sessions/<id>/files/a.txt/x", "", 404, "file_not_found"),
        ("DELETE /api/sessions/<id>/files/..", "", 400, "invalid_path"),
        ("DELETE /api/sessions/<id>/files/%2e%2e%2fhome", "", 400, "invalid_path"),
        ("DELETE /api/sessions/<id>/files/%ff", "", 400, "invalid_path"),
        ("DELETE /api/sessions/<id>/files/a%00", "", 400, "invalid_path"),
        ("DELETE /api/sessions/<id>/files//etc/passwd", "", 400, "invalid_path"),
        ("DELETE /api/sessions/<id>/files/missing", "", 404, "file_not_found"),
    ]).await;
}

#[tokio::test]
async fn odd_queries_cursors_and_idempotency_keys_are_refused() {
    let world = World::new().await;
    #[rustfmt::skip]
    world.refuse(&[
        ("GET /api/sessions?status=odd", "", 400, "invalid_query"),
        ("GET /api/sessions?agent=a/b", "", 400, "invalid_query"),
        ("GET /api/sessions?agent=%00", "", 400, "invalid_query"),
        ("GET /api/sessions?limit=0", "", 400, "invalid_query"),
        ("GET /api/sessions?limit=1001", "", 400, "invalid_query"),
        ("GET /api/sessions?limit=-1", "", 400, "invalid_query"),
        ("GET /api/sessions?limit=ten", "", 400, "invalid_query"),
        ("GET /api/sessions?limit=1&limit=2", "", 400, "invalid_query"),
        ("GET /api/sessions?offset=-1", "", 400, "invalid_query"),
        ("GET /api/sessions?offset=99999999999", "", 400, "invalid_query"),
        ("GET /api/sessions?cursor=x", "", 400, "invalid_query"),
        ("GET /api/sessions?cursor=", "", 400, "invalid_query"),
        ("GET /api/sessions?cursor=1-", "", 400, "invalid_query"),
        ("GET /api/sessions?cursor=99999999999999999999-1", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/messages?limit=0", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/messages?limit=1001", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/messages?limit=x", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/messages?after=-1", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/messages?after=x", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/messages?all=perhaps", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/events?limit=0", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/events?after=1.5", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/logs?after=-2", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/logs?after=x", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/stream?after=x", "", 400, "invalid_cursor"),
        ("GET /api/sessions/<id>/stream?after=-1", "", 400, "invalid_cursor"),
        ("GET /api/sessions/<id>/stream?after=1.2.3", "", 400, "invalid_cursor"),
        ("GET /api/sessions/<id>/stream?after=100000", "", 400, "invalid_cursor"),
        ("GET /api/sessions/<id>/stream?after=99999999999999999999", "", 400, "invalid_cursor"),
        ("GET /api/sessions/<id>/stream?includePartialMessages=maybe", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/files?includeHidden=maybe", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/files/a.txt?format=xml", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/files?checkpoint=x", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/files?checkpoint=-1", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/files?checkpoint=999", "", 404, "checkpoint_not_found"),
        ("GET /api/sessions/<id>/files?checkpoint=18446744073709551615", "", 404, "checkpoint_not_found"),
        ("GET /api/sessions/<id>/files?checkpoint=99999999999999999999", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/files/a.txt?checkpoint=x", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/files/a.txt?checkpoint=999", "", 404, "checkpoint_not_found"),
        ("GET /api/sessions/<id>/files/missing?checkpoint=1", "", 404, "file_not_found"),
        ("GET /api/sessions/<id>/files/..%2fx?checkpoint=1", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/checkpoints?limit=0", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/checkpoints?limit=1001", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/checkpoints?limit=x", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/checkpoints?before=-1", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/checkpoints?before=x", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/checkpoints/x", "", 404, "checkpoint_not_found"),
        ("GET /api/sessions/<id>/checkpoints/-1", "", 404, "checkpoint_not_found"),
        ("GET /api/sessions/<id>/checkpoints/0", "", 404, "checkpoint_not_found"),
        ("GET /api/sessions/<id>/checkpoints/999", "", 404, "checkpoint_not_found"),
        ("GET /api/sessions/<id>/checkpoints/99999999999999999999", "", 404, "checkpoint_not_found"),
        ("GET /api/sessions/<id>/checkpoints/%ff", "", 400, "invalid_path"),
        ("GET /api/sessions/<id>/checkpoints/x/diff", "", 404, "checkpoint_not_found"),
        ("GET /api/sessions/<id>/checkpoints/999/diff", "", 404, "checkpoint_not_found"),
        ("GET /api/sessions/<id>/checkpoints/1/diff?to=x", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/checkpoints/1/diff?to=-1", "", 400, "invalid_query"),
        ("GET /api/sessions/<id>/checkpoints/1/diff?to=999", "", 404, "checkpoint_not_found"),
        ("GET /api/sessions/<id>/messages?all=maybe", "", 400, "invalid_query"),
    ]).await;
    let cursor = format!("{}last-event-id: 5;DROP\r\n", bearer(KEY));
    world.refuse_as(&cursor, &[("GET /api/sessions/<id>/stream", "", 400, "invalid_cursor")]).await;
    for key in ["", "é", &"k".repeat(256)] {
        let headers = format!("{}idempotency-key: {key}\r\n", bearer(KEY));
        #[rustfmt::skip]
        world.refuse_as(&headers, &[
            ("POST /api/sessions", r#"{"agent":"tester"}"#, 400, "invalid_idempotency_key"),
            ("POST /api/sessions/<id>/fork", "", 400, "invalid_idempotency_key"),
            ("POST /api/sessions/<id>/messages", r#"{"content":"x"}"#, 400, "invalid_idempotency_key"),
            ("POST /api/agents", r#"{"name":"tester"}"#, 400, "invalid_idempotency_key"),
            ("POST /api/sessions/<id>/checkpoints", "", 400, "invalid_idempotency_key"),
            ("POST /api/api-keys", "", 400, "invalid_idempotency_key"),
        ]).await;
    }
}

#[tokio::test]
async fn routes_and_methods_that_are_not_there_are_named() {
    let world = World::new().await;
    #[rustfmt::skip]
    world.refuse(&[
        ("GET /nope", "", 404, "route_not_found"),
        ("GET /api", "", 404, "route_not_found"),
        ("GET /api/sessions/", "", 404, "route_not_found"),
        ("GET /api/sessions/<id>/nope", "", 404, "route_not_found"),
        ("GET /api/sessions/<id>/files/", "", 404, "route_not_found"),
        ("POST /%ff", "", 404, "route_not_found"),
        ("GET /../../etc/passwd", "", 404, "route_not_found"),
        ("POST /health", "", 405, "method_not_allowed"),
        ("DELETE /metrics", "", 405, "method_not_allowed"),
        ("PUT /api/agents", "", 405, "method_not_allowed"),
        ("POST /api/agents/tester", "", 405, "method_not_allowed"),
        ("DELETE /api/agents/tester/config", "", 405, "method_not_allowed"),
        ("DELETE /api/sessions", "", 405, "method_not_allowed"),
        ("PUT /api/sessions/<id>", "{}", 405, "method_not_allowed"),
        ("GET /api/sessions/<id>/config", "", 405, "method_not_allowed"),
        ("GET /api/sessions/<id>/pause", "", 405, "method_not_allowed"),
        ("GET /api/sessions/<id>/resume", "", 405, "method_not_allowed"),
        ("GET /api/sessions/<id>/stop", "", 405, "method_not_allowed"),
        ("GET /api/sessions/<id>/fork", "", 405, "method_not_allowed"),
        ("GET /api/sessions/<id>/rewind", "", 405, "method_not_allowed"),
        ("DELETE /api/sessions/<id>/checkpoints", "", 405, "method_not_allowed"),
        ("DELETE /api/sessions/<id>/checkpoints/1", "", 405, "method_not_allowed"),
        ("GET /api/sessions/<id>/interrupt", "", 405, "method_not_allowed"),
        ("GET /api/sessions/<id>/exec", "", 405, "method_not_allowed"),
        ("POST /api/sessions/<id>/logs", "", 405, "method_not_allowed"),
        ("DELETE /api/sessions/<id>/messages", "", 405, "method_not_allowed"),
        ("POST /api/sessions/<id>/events", "", 405, "method_not_allowed"),
        ("POST /api/sessions/<id>/stream", "", 405, "method_not_allowed"),
        ("PUT /api/sessions/<id>/files", "", 405, "method_not_allowed"),
        ("PUT /api/sessions/<id>/files/a.txt", "x", 405, "method_not_allowed"),
        ("PUT /api/sessions/<id>/workspace", "", 405, "method_not_allowed"),
        ("GET /api/api-keys/x", "", 405, "method_not_allowed"),
        ("PATCH /api/api-keys", "", 405, "method_not_allowed"),
        ("BREW /api/sessions", "", 405, "method_not_allowed"),
    ]).await;
}
