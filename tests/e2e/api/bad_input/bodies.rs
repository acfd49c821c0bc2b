//! Invalid bodies: not JSON, not the expected shape, or too large.

use super::world::{Case, SECRET, World, bearer};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

#[tokio::test]
async fn malformed_json_is_refused_wherever_a_body_is_read() {
    let world = World::new().await;
    let reading = [
        "POST /api/agents",
        "PATCH /api/agents/tester",
        "PATCH /api/agents/tester/config",
        "POST /api/sessions",
        "PATCH /api/sessions/<id>/config",
        "POST /api/sessions/<id>/fork",
        "POST /api/sessions/<id>/rewind",
        "POST /api/sessions/<id>/exec",
        "POST /api/sessions/<id>/messages",
        "POST /api/sessions/<id>/files",
        "POST /api/sessions/<id>/workspace",
        "POST /api/api-keys",
    ];
    let bad = [
        ("{", "invalid_json"),
        ("nonsense", "invalid_json"),
        (r#"{"a":1,}"#, "invalid_json"),
        (r#"{"a":"\ud800"}"#, "invalid_json"),
        ("null", "invalid_body"),
        ("[1,2]", "invalid_body"),
    ];
    let cases: Vec<Case<'_>> = reading
        .iter()
        .flat_map(|call| bad.iter().map(move |(body, code)| (*call, *body, 400, *code)))
        // The server does not check fields that it does not use, so only a config, which takes any JSON, rejects half a
        // surrogate pair.
        .filter(|(call, body, ..)| !body.contains("ud800") || call.ends_with("tester/config"))
        .collect();
    world.refuse(&cases).await;
}

#[tokio::test]
async fn a_body_with_a_wrong_field_is_refused() {
    let world = World::new().await;
    #[rustfmt::skip]
    world.refuse(&[
        // Agents
        ("POST /api/agents", "", 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":{}}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":""}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"a b"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"../x"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"ä"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"a\u0000"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"<256>"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","path":{}}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","path":"relative"}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","path":""}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","path":"/no/such/place"}"#, 400, "agent_directory"),
        ("POST /api/agents", r#"{"name":"x","path":"/etc/passwd"}"#, 400, "agent_directory"),
        ("POST /api/agents", r#"{"name":"x","path":"/usr/bin"}"#, 400, "agent_directory"),
        ("POST /api/agents", r#"{"name":"x","path":"/a\u0000b"}"#, 400, "agent_directory"),
        ("POST /api/agents", r#"{"name":"x","path":"/<10k>"}"#, 400, "agent_directory"),
        ("POST /api/agents", r#"{"name":"x","files":"x"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"a"}]}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":{},"content":""}]}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"../a","content":""}]}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"/a","content":""}]}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"","content":""}]}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"a\u0000","content":""}]}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"<10k>","content":""}]}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"a","content":"?"}]}"#, 400, "invalid_base64"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"a","content":""},{"path":"a/b","content":""}]}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"a/b","content":""},{"path":"a","content":""}]}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"CLAUDE.md/x","content":""}]}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"ash.toml","content":"PQ=="}]}"#, 400, "invalid_manifest"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"ash.toml","content":"dHlwbyA9IDEK"}]}"#, 400, "invalid_manifest"),
        ("POST /api/agents", r#"{"name":"x","systemPrompt":{}}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","systemPrompt":"<1000001>"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","runtime":"cobol"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","env":["A"]}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","env":{"A":{}}}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","env":{"A=B":"c"}}"#, 400, "invalid_env"),
        ("POST /api/agents", r#"{"name":"x","env":{"":"c"}}"#, 400, "invalid_env"),
        ("POST /api/agents", r#"{"name":"x","env":{"A":"b\u0000"}}"#, 400, "invalid_env"),
        ("POST /api/agents", r#"{"name":"x","env":{<600k-of-env>}}"#, 413, "payload_too_large"),
        ("PATCH /api/agents/tester", r#"{"env":{<600k-of-env>}}"#, 413, "payload_too_large"),
        ("PATCH /api/agents/tester", r#"{"env":5}"#, 400, "invalid_body"),
        ("PATCH /api/agents/tester", r#"{"env":{"A=B":"c"}}"#, 400, "invalid_env"),
        ("PATCH /api/agents/tester", r#"{"config":[]}"#, 400, "invalid_body"),
        ("PATCH /api/agents/tester/config", r#""text""#, 400, "invalid_body"),
        // Sessions
        ("POST /api/sessions", "", 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":5}"#, 404, "agent_not_found"),
        ("POST /api/sessions", r#"{"agent":{}}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":null}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","agent":"tester"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"nobody"}"#, 404, "agent_not_found"),
        ("POST /api/sessions", r#"{"agent":"../tester"}"#, 404, "agent_not_found"),
        ("POST /api/sessions", r#"{"agent":"tester\u0000"}"#, 404, "agent_not_found"),
        ("POST /api/sessions", r#"{"agent":"<10k>"}"#, 404, "agent_not_found"),
        ("POST /api/sessions", r#"{"agent":"foreigner"}"#, 404, "agent_not_found"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":{}}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":""}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":".."}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":"a/b"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":"ü"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":"a\u0000"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":"<129>"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":"<id>"}"#, 409, "session_exists"),
        ("POST /api/sessions", r#"{"agent":"tester","model":{}}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","model":"<129>"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","systemPrompt":"<1000001>"}"#, 400, "invalid_body"),
        (
            "POST /api/sessions",
            r#"{"agent":"tester","appendSystemPrompt":"<500001>"}"#,
            413,
            "payload_too_large",
        ),
        ("POST /api/sessions", r#"{"agent":"tester","systemMessage":"<500001>"}"#, 413, "payload_too_large"),
        ("POST /api/sessions", r#"{"agent":"tester","env":{"A":"<500001>"}}"#, 413, "payload_too_large"),
        ("POST /api/sessions", r#"{"agent":"tester","metadata":{"a":"<10k>"}}"#, 413, "payload_too_large"),
        ("PATCH /api/sessions/<id>", r#"{"metadata":{"<129>":"a"}}"#, 413, "payload_too_large"),
        ("PATCH /api/sessions/<id>/config", r#"{"env":{"A":"<500001>"}}"#, 413, "payload_too_large"),
        ("POST /api/sessions", r#"{"agent":"tester","permissionMode":"root"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","allowedTools":{}}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","disallowedTools":[{}]}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","betas":{}}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","mcpServers":[]}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","subagents":"x"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","initialAgent":{}}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","onInterrupted":"panic"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","extraEnv":[]}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","extraEnv":{"A":null}}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","extraEnv":{"A B":"x"}}"#, 400, "invalid_env"),
        ("POST /api/sessions", r#"{"agent":"tester","env":{<600k-of-env>}}"#, 413, "payload_too_large"),
        ("POST /api/sessions", r#"{"agent":"tester","env":{"A":"\u0000"}}"#, 400, "invalid_env"),
        ("POST /api/sessions", r#"{"agent":"tester","mcpServers":{"x":<deep>}}"#, 400, "invalid_json"),
        ("PATCH /api/sessions/<id>/config", r#"{"model":{}}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"model":"<129>"}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"permissionMode":"root"}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"allowedTools":{}}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"permissionTimeout":604801}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"permissionTimeout":-1}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"onPermissionTimeout":"shrug"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/permissions/x", r#"{"behavior":"allow"}"#, 404, "permission_not_found"),
        ("POST /api/sessions/<id>/permissions/x", "{", 400, "invalid_json"),
        ("POST /api/sessions/<id>/permissions/x", "[]", 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"sessionId":".."}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"sessionId":"<id>"}"#, 409, "session_exists"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":"one"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":-1}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":1.5}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":1e99}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":0}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":999}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":18446744073709551615}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/rewind", "", 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", "[1]", 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":null}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":"one"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":[1,2]}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":-1}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":1.5}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":99999999999999999999}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":0}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":999}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":18446744073709551615}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/exec", "", 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":{}}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":["ls","-l"]}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":"a\u0000b"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":"<500001>"}"#, 413, "payload_too_large"),
        ("POST /api/sessions/<id>/exec", r#"{"command":"a\u0000"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":"true","timeout":0}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":"true","timeout":-1}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":"true","timeout":300001}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":"true","timeout":1e99}"#, 400, "invalid_body"),
        // The conversation
        ("POST /api/sessions/<id>/messages", "", 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":""}"#, 400, "invalid_content"),
        ("POST /api/sessions/<id>/messages", r#"{"content":null}"#, 400, "invalid_content"),
        ("POST /api/sessions/<id>/messages", r#"{"content":5}"#, 400, "invalid_content"),
        ("POST /api/sessions/<id>/messages", r#"{"content":{}}"#, 400, "invalid_content"),
        ("POST /api/sessions/<id>/messages", r#"{"content":[]}"#, 400, "invalid_content"),
        ("POST /api/sessions/<id>/messages", r#"{"content":["x"]}"#, 400, "invalid_content"),
        ("POST /api/sessions/<id>/messages", r#"{"content":[{"type":"video"}]}"#, 400, "invalid_content"),
        ("POST /api/sessions/<id>/messages", r#"{"content":[<21-blocks>]}"#, 400, "invalid_content"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"<500001>"}"#, 400, "invalid_content"),
        ("POST /api/sessions/<id>/messages", r#"{"content":<deep>}"#, 400, "invalid_json"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","includePartialMessages":"maybe"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","autoResume":"no"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","model":{}}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","model":"<129>"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","maxTurns":0}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","maxTurns":-1}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","maxTurns":1.5}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","maxBudgetUsd":"much"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","maxBudgetUsd":-1}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","effort":"heroic"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","thinking":"hard"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","outputFormat":5}"#, 400, "invalid_body"),
        // Files
        ("POST /api/sessions/<id>/files", "", 400, "invalid_body"),
        ("POST /api/sessions/<id>/files", r#"{"files":[]}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/files", r#"{"files":"x"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/files", r#"{"files":[{"path":"x"}]}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/files", r#"{"files":[{"path":{},"content":""}]}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/files", r#"{"files":[<501-files>]}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/files", r#"{"files":[{"path":"x","content":""}],"targetPath":{}}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/files", r#"{"files":[{"path":"x","content":""}],"targetPath":"../y"}"#, 400, "invalid_path"),
        ("POST /api/sessions/<id>/files", r#"{"files":[{"path":"x","content":""}],"targetPath":"/y"}"#, 400, "invalid_path"),
        ("POST /api/sessions/<id>/files", r#"{"files":[{"path":"x","content":""}],"targetPath":"y\u0000"}"#, 400, "invalid_path"),
        ("POST /api/sessions/<id>/workspace", "", 400, "invalid_body"),
        ("POST /api/sessions/<id>/workspace", r#"{"bundle":{}}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/workspace", r#"{"bundle":""}"#, 400, "archive_unsupported"),
        ("POST /api/sessions/<id>/workspace", r#"{"bundle":"?"}"#, 400, "invalid_base64"),
        ("POST /api/sessions/<id>/workspace", r#"{"bundle":"aGVsbG8="}"#, 400, "archive_unsupported"),
        ("POST /api/sessions/<id>/workspace", r#"{"bundle":"H4sIAAAA"}"#, 400, "archive_damaged"),
        // Keys
        ("POST /api/api-keys", r#"{"label":{}}"#, 400, "invalid_body"),
    ]).await;
    #[rustfmt::skip]
    world.refuse_as(&bearer(SECRET), &[
        ("POST /api/internal/api-keys", "", 400, "missing_tenant"),
        ("POST /api/internal/api-keys", "{", 400, "invalid_json"),
        ("POST /api/internal/api-keys", r#"{"tenantId":{}}"#, 400, "invalid_body"),
        ("POST /api/internal/api-keys", r#"{"tenantId":""}"#, 400, "invalid_tenant"),
        ("POST /api/internal/api-keys", r#"{"tenantId":".."}"#, 400, "invalid_tenant"),
        ("POST /api/internal/api-keys", r#"{"tenantId":"a/b"}"#, 400, "invalid_tenant"),
        ("POST /api/internal/api-keys", r#"{"tenantId":"<129>"}"#, 400, "invalid_tenant"),
        ("POST /api/internal/api-keys", r#"{"tenantId":"x","label":[]}"#, 400, "invalid_body"),
    ]).await;
    let theirs = bearer(&world.theirs.key);
    world
        .refuse_as(&theirs, &[("POST /api/agents", r#"{"name":"x","path":"/tmp"}"#, 400, "path_not_allowed")])
        .await;
}

#[tokio::test]
async fn a_write_says_for_each_file_why_not() {
    let world = World::new().await;
    let bad = ["../x", "/etc/x", "a/../../x", "a\0b", "", ".", "a//b", &"x".repeat(300), "a.txt/x"];
    let mut files: Vec<Value> = bad.iter().map(|path| json!({ "path": path, "content": "" })).collect();
    files.push(json!({ "path": "b64", "content": "not base64" }));
    let body = json!({ "files": files });
    let answer = world.ours.post(&format!("/api/sessions/{}/files", world.names["<id>"]), body).await;
    for file in answer["files"].as_array().expect("a list") {
        assert_eq!(file["written"], false, "{file}");
        assert!(file["error"].as_str().is_some_and(|error| !error.is_empty()), "{file}");
    }
    let listed = world.ours.get(&format!("/api/sessions/{}/files", world.names["<id>"])).await;
    let names: Vec<_> =
        listed["files"].as_array().expect("a list").iter().map(|f| f["path"].clone()).collect();
    assert_eq!(names, [json!("CLAUDE.md"), json!("a.txt")]);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_read() {
    let mut world = World::new().await;
    world.names.insert("<2M>", " ".repeat((2 << 20) + 1));
    world.names.insert("<50M>", " ".repeat((50 << 20) + 1));
    #[rustfmt::skip]
    world.refuse(&[
        ("POST /api/sessions", "<2M>", 413, "payload_too_large"),
        ("PATCH /api/agents/tester", "<2M>", 413, "payload_too_large"),
        ("PATCH /api/agents/tester/config", "<2M>", 413, "payload_too_large"),
        ("PATCH /api/sessions/<id>/config", "<2M>", 413, "payload_too_large"),
        ("POST /api/sessions/<id>/fork", "<2M>", 413, "payload_too_large"),
        ("POST /api/sessions/<id>/rewind", "<2M>", 413, "payload_too_large"),
        ("POST /api/sessions/<id>/exec", "<2M>", 413, "payload_too_large"),
        ("POST /api/api-keys", "<2M>", 413, "payload_too_large"),
        ("POST /api/sessions/<id>/messages", "<50M>", 413, "payload_too_large"),
    ]).await;
    // Bytes that are not HTTP, or stop in the middle, do no harm.
    for junk in [
        &b"\x16\x03\x01\x02\x00"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /api/sessions HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"GET",
    ] {
        let address = world.server.url.strip_prefix("http://").expect("an address");
        let mut stream = TcpStream::connect(address).await.expect("connect");
        stream.write_all(junk).await.expect("write");
        stream.shutdown().await.ok();
        stream.read_to_end(&mut Vec::new()).await.ok();
    }
    world.is_well().await;
}
