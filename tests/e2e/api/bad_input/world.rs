//! The setup for invalid requests: two tenants, the state that a refusal must not change, and raw requests.

use crate::support::{Client, KEY, Server};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub(super) const SECRET: &str = "internal-secret";

/// Method and path, body, status, code. `<name>` stands for an id from the setup below.
pub(super) type Case<'a> = (&'a str, &'a str, u16, &'a str);

/// Two tenants with an agent, a session and a key each.
pub(super) struct World {
    pub(super) server: Server,
    pub(super) ours: Client,
    pub(super) theirs: Client,
    pub(super) names: BTreeMap<&'static str, String>,
}

fn large_variable(number: usize) -> String {
    format!(r#""V{number}":"{}""#, "x".repeat(100_000))
}

impl World {
    pub(super) async fn new() -> World {
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

    /// All state that a refused request must not change.
    pub(super) async fn state(&self) -> Value {
        let mut state = Vec::new();
        for client in [&self.ours, &self.theirs] {
            for path in ["/api/agents", "/api/api-keys", "/api/sessions"] {
                state.push(without_age(client.get(path).await));
            }
        }
        Value::Array(state)
    }

    pub(super) async fn conversations(&self) -> Value {
        let mut all = Vec::new();
        for client in [&self.ours, &self.theirs] {
            let listed = client.get("/api/sessions").await;
            for session in listed["sessions"].as_array().expect("a list") {
                let id = session["id"].as_str().expect("an id");
                for what in ["messages?limit=1000", "events?limit=1000", "files"] {
                    all.push(client.get(&format!("/api/sessions/{id}/{what}")).await);
                }
            }
        }
        Value::Array(all)
    }

    pub(super) async fn refuse(&self, cases: &[Case<'_>]) {
        self.refuse_as(&bearer(KEY), cases).await;
    }

    /// Tries every case and reports all failures together.
    pub(super) async fn refuse_as(&self, headers: &str, cases: &[Case<'_>]) {
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

    pub(super) async fn is_well(&self) {
        assert_eq!(self.ours.get("/health").await["status"], "ok");
        assert!(!self.server.log().contains("panicked"), "{}", self.server.log());
    }

    pub(super) async fn raw(&self, headers: &str, call: &str, body: &[u8]) -> Answer {
        let (method, path) = call.split_once(' ').expect("METHOD PATH");
        raw(&self.server, headers.as_bytes(), (method, &self.fill(path)), body).await
    }
}

pub(super) fn bearer(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}

fn without_age(mut list: Value) -> Value {
    for session in list.get_mut("sessions").and_then(Value::as_array_mut).into_iter().flatten() {
        session.as_object_mut().expect("a session").remove("ageSeconds");
    }
    list
}

#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
}

impl Answer {
    pub(super) fn is_problem(&self, status: u16, code: &str) -> Result<(), String> {
        let good = self.status == status
            && self.body["statusCode"] == status
            && self.body["code"] == code
            && self.body["error"].as_str().is_some_and(|error| !error.is_empty());
        if good { Ok(()) } else { Err(format!("wanted {status} {code}, got {} {}", self.status, self.body)) }
    }
}

pub(super) async fn raw(
    server: &Server,
    headers: &[u8],
    (method, path): (&str, &str),
    body: &[u8],
) -> Answer {
    let address = server.url.strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(address).await.expect("connect");
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n").into_bytes();
    head.extend_from_slice(headers);
    head.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    let (mut read, mut write) = stream.split();
    // The server may answer and close before it has read everything.
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

/// Every route below a session, with a valid body.
pub(super) const OF_A_SESSION: [(&str, &str); 28] = [
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

pub(super) const OF_AN_AGENT: [(&str, &str); 5] = [
    ("GET /api/agents/{}", ""),
    ("PATCH /api/agents/{}", r#"{"env":{"A":"b"}}"#),
    ("DELETE /api/agents/{}", ""),
    ("GET /api/agents/{}/config", ""),
    ("PATCH /api/agents/{}/config", r#"{"a":1}"#),
];
