//! Bad input, as tables: every case is refused with the right status and code in the one shape of an error, and
//! changes nothing. Requests are written by hand, because a polite client would tidy up the hostile ones.

use crate::support::{Client, KEY, Server, eventually, signal};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const SECRET: &str = "internal-secret";

/// Method and path, body, status, code. `<name>` stands for something of the world below.
type Case<'a> = (&'a str, &'a str, u16, &'a str);

/// Two tenants with an agent, a session and a key each.
struct World {
    server: Server,
    ours: Client,
    theirs: Client,
    names: BTreeMap<&'static str, String>,
}

fn large_variable(number: usize) -> String {
    format!(r#""V{number}":"{}""#, "x".repeat(100_000))
}

impl World {
    async fn new() -> World {
        let server = Server::with(&[("ASH_INTERNAL_SECRET", SECRET)]).await;
        let ours = server.client();
        let minted = json!({ "tenantId": "other", "label": "theirs" });
        let key = server.client_with(SECRET).post("/api/internal/api-keys", minted).await;
        let theirs = server.client_with(key["key"].as_str().expect("a key"));
        let id = ours.create().await;
        ours.say(&id, "write a.txt: hello").await;
        theirs.deploy("foreigner").await;
        let foreign =
            theirs.post("/api/sessions", json!({ "agent": "foreigner", "sessionId": "theirs" })).await;
        assert_eq!(foreign["session"]["id"], "theirs");
        theirs.say("theirs", "write a.txt: hello").await;
        let names = BTreeMap::from([
            ("<id>", id),
            ("<foreign-key>", key["id"].as_str().expect("an id").to_owned()),
            ("<10k>", "x".repeat(10_240)),
            ("<129>", "x".repeat(129)),
            ("<256>", "x".repeat(256)),
            ("<500001>", "x".repeat(500_001)),
            ("<1000001>", "x".repeat(1_000_001)),
            ("<600k-of-env>", (0..6).map(large_variable).collect::<Vec<_>>().join(",")),
            ("<deep>", format!("{}{}", "[".repeat(10_000), "]".repeat(10_000))),
            ("<21-blocks>", vec![r#"{"type":"text","text":"x"}"#; 21].join(",")),
            ("<501-files>", vec![r#"{"path":"x","content":""}"#; 501].join(",")),
        ]);
        World { server, ours, theirs, names }
    }

    fn fill(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    /// Everything that a refused request must leave alone.
    async fn state(&self) -> Value {
        let mut state = Vec::new();
        for client in [&self.ours, &self.theirs] {
            for path in ["/api/agents", "/api/api-keys", "/api/sessions"] {
                state.push(without_age(client.get(path).await));
            }
        }
        Value::Array(state)
    }

    async fn conversations(&self) -> Value {
        let mut all = Vec::new();
        for client in [&self.ours, &self.theirs] {
            let listed = client.get("/api/sessions").await;
            for session in listed["sessions"].as_array().expect("a list") {
                let id = session["id"].as_str().expect("an id");
                for what in ["messages", "events", "files"] {
                    all.push(client.get(&format!("/api/sessions/{id}/{what}?limit=1000")).await);
                }
            }
        }
        Value::Array(all)
    }

    async fn refuse(&self, cases: &[Case<'_>]) {
        self.refuse_as(&bearer(KEY), cases).await;
    }

    /// Tries every case and tells about all that went wrong together.
    async fn refuse_as(&self, headers: &str, cases: &[Case<'_>]) {
        let (mut before, said) = (self.state().await, self.conversations().await);
        let mut wrong = Vec::new();
        for (call, body, status, code) in cases {
            let answer = self.raw(headers, call, self.fill(body).as_bytes()).await;
            if let Err(why) = answer.is_problem(*status, code) {
                wrong.push(format!("{call} {body:.80}: {why}"));
            }
            let after = self.state().await;
            if after != before {
                wrong.push(format!("{call} {body:.80}: changed {before}\nto {after}"));
                before = after;
            }
        }
        assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
        assert_eq!(self.conversations().await, said);
        self.is_well().await;
    }

    async fn is_well(&self) {
        assert_eq!(self.ours.get("/health").await["status"], "ok");
        assert!(!self.server.log().contains("panicked"), "{}", self.server.log());
    }

    async fn raw(&self, headers: &str, call: &str, body: &[u8]) -> Answer {
        let (method, path) = call.split_once(' ').expect("METHOD PATH");
        raw(&self.server, headers.as_bytes(), (method, &self.fill(path)), body).await
    }
}

fn bearer(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}

fn without_age(mut list: Value) -> Value {
    for session in list.get_mut("sessions").and_then(Value::as_array_mut).into_iter().flatten() {
        session.as_object_mut().expect("a session").remove("ageSeconds");
    }
    list
}

#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    fn is_problem(&self, status: u16, code: &str) -> Result<(), String> {
        let good = self.status == status
            && self.body["statusCode"] == status
            && self.body["code"] == code
            && self.body["error"].as_str().is_some_and(|error| !error.is_empty());
        if good { Ok(()) } else { Err(format!("wanted {status} {code}, got {} {}", self.status, self.body)) }
    }
}

async fn raw(server: &Server, headers: &[u8], (method, path): (&str, &str), body: &[u8]) -> Answer {
    let address = server.url.strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(address).await.expect("connect");
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n").into_bytes();
    head.extend_from_slice(headers);
    head.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    let (mut read, mut write) = stream.split();
    // The server may answer and close before it has everything.
    let send = async {
        write.write_all(&head).await?;
        write.write_all(body).await
    };
    let mut text = Vec::new();
    let (_, _) = tokio::join!(send, read.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = serde_json::from_str(body).unwrap_or_else(|_| json!(body));
    Answer { status, body }
}

/// Every route beneath a session, with a body that is all right.
const OF_A_SESSION: [(&str, &str); 28] = [
    ("GET /api/sessions/{}", ""),
    ("DELETE /api/sessions/{}", ""),
    ("PATCH /api/sessions/{}/config", "{}"),
    ("POST /api/sessions/{}/pause", ""),
    ("POST /api/sessions/{}/resume", ""),
    ("POST /api/sessions/{}/stop", ""),
    ("POST /api/sessions/{}/fork", ""),
    ("POST /api/sessions/{}/rewind", r#"{"checkpoint":1}"#),
    ("GET /api/sessions/{}/checkpoints", ""),
    ("GET /api/sessions/{}/checkpoints/1", ""),
    ("GET /api/sessions/{}/checkpoints/1/diff", ""),
    ("GET /api/sessions/{}/files?checkpoint=1", ""),
    ("GET /api/sessions/{}/files/a.txt?checkpoint=1", ""),
    ("POST /api/sessions/{}/interrupt", ""),
    ("POST /api/sessions/{}/exec", r#"{"command":"true"}"#),
    ("GET /api/sessions/{}/logs", ""),
    ("GET /api/sessions/{}/permissions", ""),
    ("POST /api/sessions/{}/permissions/00000000-0000-0000-0000-000000000001", r#"{"behavior":"allow"}"#),
    ("GET /api/sessions/{}/messages", ""),
    ("POST /api/sessions/{}/messages", r#"{"content":"x"}"#),
    ("GET /api/sessions/{}/events", ""),
    ("GET /api/sessions/{}/stream", ""),
    ("GET /api/sessions/{}/files", ""),
    ("POST /api/sessions/{}/files", r#"{"files":[{"path":"x","content":""}]}"#),
    ("GET /api/sessions/{}/files/a.txt", ""),
    ("DELETE /api/sessions/{}/files/a.txt", ""),
    ("GET /api/sessions/{}/workspace", ""),
    ("POST /api/sessions/{}/workspace", r#"{"bundle":"H4sIAAAAAAAAAwMAAAAAAAAAAAA="}"#),
];

const OF_AN_AGENT: [(&str, &str); 5] = [
    ("GET /api/agents/{}", ""),
    ("PATCH /api/agents/{}", r#"{"env":{"A":"b"}}"#),
    ("DELETE /api/agents/{}", ""),
    ("GET /api/agents/{}/config", ""),
    ("PATCH /api/agents/{}/config", r#"{"a":1}"#),
];

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
        // What nobody reads is not looked at, so only a config, which takes anything, sees the half of a pair.
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
        ("POST /api/agents", r#"{"name":5}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":""}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"a b"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"../x"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"ä"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"a\u0000"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"<256>"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","path":5}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","path":"relative"}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","path":""}"#, 400, "invalid_path"),
        ("POST /api/agents", r#"{"name":"x","path":"/no/such/place"}"#, 400, "agent_directory"),
        ("POST /api/agents", r#"{"name":"x","path":"/etc/passwd"}"#, 400, "agent_directory"),
        ("POST /api/agents", r#"{"name":"x","path":"/usr/bin"}"#, 400, "agent_directory"),
        ("POST /api/agents", r#"{"name":"x","path":"/a\u0000b"}"#, 400, "agent_directory"),
        ("POST /api/agents", r#"{"name":"x","path":"/<10k>"}"#, 400, "agent_directory"),
        ("POST /api/agents", r#"{"name":"x","files":"x"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":"a"}]}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","files":[{"path":5,"content":""}]}"#, 400, "invalid_body"),
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
        ("POST /api/agents", r#"{"name":"x","systemPrompt":5}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","systemPrompt":"<1000001>"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","runtime":"cobol"}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","env":["A"]}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","env":{"A":5}}"#, 400, "invalid_body"),
        ("POST /api/agents", r#"{"name":"x","env":{"A=B":"c"}}"#, 400, "invalid_env"),
        ("POST /api/agents", r#"{"name":"x","env":{"":"c"}}"#, 400, "invalid_env"),
        ("POST /api/agents", r#"{"name":"x","env":{"A":"b\u0000"}}"#, 400, "invalid_env"),
        ("POST /api/agents", r#"{"name":"x","env":{<600k-of-env>}}"#, 400, "invalid_env"),
        ("PATCH /api/agents/tester", r#"{"env":{<600k-of-env>}}"#, 400, "invalid_env"),
        ("PATCH /api/agents/tester", r#"{"env":5}"#, 400, "invalid_body"),
        ("PATCH /api/agents/tester", r#"{"env":{"A=B":"c"}}"#, 400, "invalid_env"),
        ("PATCH /api/agents/tester", r#"{"config":[]}"#, 400, "invalid_body"),
        ("PATCH /api/agents/tester/config", r#""text""#, 400, "invalid_body"),
        // Sessions
        ("POST /api/sessions", "", 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":5}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":null}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","agent":"tester"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"nobody"}"#, 404, "agent_not_found"),
        ("POST /api/sessions", r#"{"agent":"../tester"}"#, 404, "agent_not_found"),
        ("POST /api/sessions", r#"{"agent":"tester\u0000"}"#, 404, "agent_not_found"),
        ("POST /api/sessions", r#"{"agent":"<10k>"}"#, 404, "agent_not_found"),
        ("POST /api/sessions", r#"{"agent":"foreigner"}"#, 404, "agent_not_found"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":5}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":""}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":".."}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":"a/b"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":"ü"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":"a\u0000"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":"<129>"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","sessionId":"<id>"}"#, 409, "session_exists"),
        ("POST /api/sessions", r#"{"agent":"tester","model":5}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","model":"<129>"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","systemPrompt":"<1000001>"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","permissionMode":"root"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","allowedTools":"all"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","disallowedTools":[1]}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","betas":{}}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","mcpServers":[]}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","subagents":"x"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","initialAgent":5}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","onInterrupted":"panic"}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","extraEnv":[]}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","extraEnv":{"A":5}}"#, 400, "invalid_body"),
        ("POST /api/sessions", r#"{"agent":"tester","extraEnv":{"A B":"x"}}"#, 400, "invalid_env"),
        ("POST /api/sessions", r#"{"agent":"tester","env":{<600k-of-env>}}"#, 400, "invalid_env"),
        ("POST /api/sessions", r#"{"agent":"tester","env":{"A":"\u0000"}}"#, 400, "invalid_env"),
        ("POST /api/sessions", r#"{"agent":"tester","mcpServers":{"x":<deep>}}"#, 400, "invalid_json"),
        ("PATCH /api/sessions/<id>/config", r#"{"model":5}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"model":"<129>"}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"permissionMode":"root"}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"allowedTools":"x"}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"permissionTimeout":604801}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"permissionTimeout":-1}"#, 400, "invalid_body"),
        ("PATCH /api/sessions/<id>/config", r#"{"onPermissionTimeout":"shrug"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/permissions/x", r#"{"behavior":"allow"}"#, 404, "permission_not_found"),
        ("POST /api/sessions/<id>/permissions/x", "{", 400, "invalid_json"),
        ("POST /api/sessions/<id>/permissions/x", "[]", 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"sessionId":".."}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"sessionId":"<id>"}"#, 409, "session_exists"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":"1"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":-1}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":1.5}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":1e99}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":0}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":999}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/fork", r#"{"checkpoint":18446744073709551615}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/rewind", "", 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", "[1]", 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":null}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":"1"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":[1]}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":-1}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":1.5}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":99999999999999999999}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":0}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":999}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/rewind", r#"{"checkpoint":18446744073709551615}"#, 404, "checkpoint_not_found"),
        ("POST /api/sessions/<id>/exec", "", 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":5}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":["ls"]}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":"a\u0000b"}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/exec", r#"{"command":"<500001>"}"#, 400, "invalid_body"),
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
        ("POST /api/sessions/<id>/messages", r#"{"content":"x","model":5}"#, 400, "invalid_body"),
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
        ("POST /api/sessions/<id>/files", r#"{"files":[{"path":1,"content":""}]}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/files", r#"{"files":[<501-files>]}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/files", r#"{"files":[{"path":"x","content":""}],"targetPath":5}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/files", r#"{"files":[{"path":"x","content":""}],"targetPath":"../y"}"#, 400, "invalid_path"),
        ("POST /api/sessions/<id>/files", r#"{"files":[{"path":"x","content":""}],"targetPath":"/y"}"#, 400, "invalid_path"),
        ("POST /api/sessions/<id>/files", r#"{"files":[{"path":"x","content":""}],"targetPath":"y\u0000"}"#, 400, "invalid_path"),
        ("POST /api/sessions/<id>/workspace", "", 400, "invalid_body"),
        ("POST /api/sessions/<id>/workspace", r#"{"bundle":5}"#, 400, "invalid_body"),
        ("POST /api/sessions/<id>/workspace", r#"{"bundle":""}"#, 400, "invalid_bundle"),
        ("POST /api/sessions/<id>/workspace", r#"{"bundle":"?"}"#, 400, "invalid_base64"),
        ("POST /api/sessions/<id>/workspace", r#"{"bundle":"aGVsbG8="}"#, 400, "invalid_bundle"),
        ("POST /api/sessions/<id>/workspace", r#"{"bundle":"H4sIAAAA"}"#, 400, "invalid_bundle"),
        // Keys
        ("POST /api/api-keys", r#"{"label":5}"#, 400, "invalid_body"),
    ]).await;
    #[rustfmt::skip]
    world.refuse_as(&bearer(SECRET), &[
        ("POST /api/internal/api-keys", "", 400, "missing_tenant"),
        ("POST /api/internal/api-keys", "{", 400, "invalid_json"),
        ("POST /api/internal/api-keys", r#"{"tenantId":5}"#, 400, "invalid_body"),
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
async fn what_belongs_to_another_tenant_is_answered_as_if_it_were_not_there() {
    let world = World::new().await;
    let mut cases: Vec<(String, String, &str, u16, &str)> = Vec::new();
    for (call, body) in OF_A_SESSION {
        let both = [call.replace("{}", "theirs"), call.replace("{}", "unknown")];
        cases.push((both[0].clone(), both[1].clone(), body, 404, "session_not_found"));
    }
    for (call, body) in OF_AN_AGENT {
        let both = [call.replace("{}", "foreigner"), call.replace("{}", "unknown")];
        cases.push((both[0].clone(), both[1].clone(), body, 404, "agent_not_found"));
    }
    let key = "DELETE /api/api-keys/";
    cases.push((format!("{key}<foreign-key>"), format!("{key}unknown"), "", 404, "key_not_found"));
    let (before, said) = (world.state().await, world.conversations().await);
    for (foreign, unknown, body, status, code) in cases {
        let foreign_answer = world.raw(&bearer(KEY), &foreign, body.as_bytes()).await;
        foreign_answer.is_problem(status, code).unwrap_or_else(|why| panic!("{foreign}: {why}"));
        assert_eq!(foreign_answer, world.raw(&bearer(KEY), &unknown, body.as_bytes()).await, "{foreign}");
        assert_eq!(world.state().await, before, "{foreign}");
    }
    assert_eq!(world.conversations().await, said);
    world.is_well().await;
}

#[tokio::test]
async fn without_a_good_key_nothing_is_answered() {
    let world = World::new().await;
    let (before, said) = (world.state().await, world.conversations().await);
    let headers: [(&[u8], &str); 12] = [
        (b"", "Missing Authorization header"),
        (b"authorization: Bearer wrong\r\n", "Invalid API key"),
        (b"authorization: Bearer test-key2\r\n", "Invalid API key"),
        (b"authorization: Bearer internal-secret\r\n", "Invalid API key"),
        (b"authorization: Bearer\r\n", "Invalid Authorization header format"),
        (b"authorization: \r\n", "Invalid Authorization header format"),
        (b"authorization: test-key\r\n", "Invalid Authorization header format"),
        (b"authorization: bearer test-key\r\n", "Invalid Authorization header format"),
        (b"authorization: Basic dGVzdC1rZXk=\r\n", "Invalid Authorization header format"),
        (b"authorization: Bearer  test-key\r\n", "Invalid Authorization header format"),
        (b"authorization: Bearer test-key x\r\n", "Invalid Authorization header format"),
        (b"authorization: Bearer \xff\xfe\r\n", "Invalid Authorization header format"),
    ];
    for (header, error) in headers {
        let answer = raw(&world.server, header, ("GET", "/api/sessions"), b"").await;
        answer.is_problem(401, "unauthorized").expect(error);
        assert_eq!(answer.body["error"], error, "{}", String::from_utf8_lossy(header));
    }
    let others = [
        ("GET /metrics", ""),
        ("GET /api/agents", ""),
        ("POST /api/agents", r#"{"name":"x"}"#),
        ("POST /api/sessions", r#"{"agent":"tester"}"#),
        ("GET /api/api-keys", ""),
        ("POST /api/api-keys", "{}"),
        ("DELETE /api/api-keys/<foreign-key>", ""),
        ("POST /api/internal/api-keys", r#"{"tenantId":"x"}"#),
        ("GET /no/such/route", ""),
        ("PUT /api/sessions", ""),
        // A second slash or an upper-case letter must not find a way around.
        ("GET //api/sessions", ""),
        ("GET /API/sessions", ""),
        ("GET /health/../api/sessions", ""),
        ("GET /api/internal/../sessions", ""),
    ];
    let of_a_session = OF_A_SESSION.map(|(call, body)| (call.replace("{}", "<id>"), body));
    let of_an_agent = OF_AN_AGENT.map(|(call, body)| (call.replace("{}", "tester"), body));
    let others = others.map(|(call, body)| (call.to_owned(), body));
    for (call, body) in others.into_iter().chain(of_a_session).chain(of_an_agent) {
        for header in ["", "authorization: Bearer wrong\r\n"] {
            let answer = world.raw(header, &call, body.as_bytes()).await;
            answer.is_problem(401, "unauthorized").unwrap_or_else(|why| panic!("{call}: {why}"));
        }
    }
    // The tenant's key is not the secret for making keys.
    let answer = world.raw(&bearer(KEY), "POST /api/internal/api-keys", br#"{"tenantId":"x"}"#).await;
    answer.is_problem(401, "unauthorized").expect("closed");
    assert_eq!((world.state().await, world.conversations().await), (before, said));
    world.is_well().await;
}

#[tokio::test]
async fn a_key_that_was_deleted_opens_nothing() {
    let server = Server::start().await;
    let client = server.client();
    let made = client.post("/api/api-keys", json!({})).await;
    let second = server.client_with(made["key"].as_str().expect("a key"));
    second.get("/api/sessions").await;
    client.delete(&format!("/api/api-keys/{}", made["id"].as_str().expect("an id"))).await;
    let (status, body) = second.ask(Method::GET, "/api/sessions", None).await;
    assert_eq!((status.as_u16(), body["error"].as_str()), (401, Some("Invalid API key")));
    // Nobody set a secret, so nobody can make keys for other tenants.
    let (status, body) =
        client.ask(Method::POST, "/api/internal/api-keys", Some(json!({ "tenantId": "x" }))).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (503, Some("internal_disabled")));
}

#[tokio::test]
async fn wishes_that_do_not_fit_the_state_are_refused() {
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
    // What the dead left behind is captured first; that is not a change that a refusal made.
    eventually("the dead are buried", async || world.ours.session("failed").await["checkpoint"].as_u64())
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
        ("PATCH /api/sessions/<id>", "{}", 405, "method_not_allowed"),
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
    // What is not HTTP at all, or stops in the middle, hurts nobody.
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
