//! The router in process, without a port and without child processes: what is refused before any sandbox is needed.
//! Requests that make a session work are end-to-end tests (`tests/e2e`).

mod answers;
mod credentials;
mod documentation;
mod frames;
mod history;
mod misspelt;
mod refusals;
mod stream_tokens;
mod surface;

use crate::{
    app,
    config::ServerConfig,
    openapi::schema_check::{documented, violations},
};
use ash_model::{
    AgentName, AgentRuntime, Epoch, Fact, NewEvent, SessionId, SessionMetadata, SessionOptions,
    SessionStatus, TenantId, Timestamp, WorkspaceId,
};
use ash_store::{NewSessionRow, SecretEnv, SessionStore, SessionSummary, SqliteStore};
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Request, StatusCode},
};
use serde_json::{Value, json};
use std::sync::Arc;
use tower_service::Service as _;

const KEY: &str = "a-key-for-tests-in-process";

struct TestRouter {
    router: Router,
    store: Arc<SqliteStore>,
    _data: tempfile::TempDir,
}

/// An answer: the status, the headers, and the body as text and as JSON (null if it is none).
struct TestAnswer {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
    text: String,
}

impl TestAnswer {
    /// No test can get an answer that the OpenAPI document does not describe: its status, its fields, its code.
    fn assert_documented(&self, method: &str, path: &str) {
        let Some(operation) = documented(method, path) else { return };
        let answer = &operation["responses"][self.status.as_str()];
        assert!(!answer.is_null(), "{method} {path}: {} {} is not documented", self.status, self.body);
        let schema = &answer["content"]["application/json"]["schema"];
        if !schema.is_null() && !self.body.is_null() && self.body.get("openapi").is_none() {
            assert_eq!(
                violations(&self.body, schema),
                Vec::<String>::new(),
                "{method} {path}: {}",
                self.body
            );
        }
        if let (Some(code), Some(codes)) = (self.body["code"].as_str(), answer["x-codes"].as_array()) {
            assert!(
                codes.contains(&json!(code)),
                "{method} {path}: {} {code} is not documented",
                self.status
            );
        }
    }

    /// The status and the code of a refusal.
    fn code(&self) -> (u16, &str) {
        (self.status.as_u16(), self.body["code"].as_str().unwrap_or_default())
    }
}

impl TestRouter {
    async fn new() -> TestRouter {
        TestRouter::with_internal_secret(None).await
    }

    async fn with_internal_secret(secret: Option<&str>) -> TestRouter {
        let data = tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory");
        let dir = data.path().to_str().expect("a path of text");
        let config = ServerConfig::of_flags(&["--sandbox", "none", "--data-dir", dir]);
        let config =
            ServerConfig { api_key: Some(KEY.into()), internal_secret: secret.map(Into::into), ..config };
        let (router, store) = app::router_for_tests(&config, data.path()).await.expect("a router");
        TestRouter { router, store, _data: data }
    }

    /// A stopped session of the agent `tester`, which was never started.
    async fn stopped_session(&self, id: &str) {
        let agent = AgentName::parse("tester").expect("a name");
        let deployed =
            self.ask(KEY, "POST /api/agents", json!({ "name": "tester", "systemPrompt": "x" })).await;
        assert!(deployed.status.is_success(), "{}", deployed.body);
        let created = Fact::Created { agent: agent.clone(), version: 1, options: SessionOptions::default() };
        let events =
            [created, Fact::Stopped].map(|fact| NewEvent { turn: None, at: Timestamp(1), fact }).into();
        let session = NewSessionRow {
            tenant: TenantId::main(),
            owner: None,
            metadata: SessionMetadata::default(),
            id: SessionId::parse(id).expect("an id"),
            workspace: WorkspaceId::fresh(),
            slug: None,
            node: "a-node".to_owned(),
            agent,
            version: 1,
            runtime: AgentRuntime::Builtin,
            native_id: uuid::Uuid::from_u128(7),
            options: SessionOptions::default(),
            env: SecretEnv::default(),
            secrets: SecretEnv::default(),
            parent: None,
            base: None,
            first_checkpoints: Vec::new(),
            summary: SessionSummary {
                status: SessionStatus::Stopped,
                title: None,
                last_text: None,
                turns: 0,
                open_turns: 0,
                problem: None,
                checkpoint: None,
                pending: Vec::new(),
                lock: None,
            },
            events,
            audit: None,
            epoch: Epoch(1),
            at: Timestamp(1),
        };
        self.store.create_session(session).await.expect("created");
    }

    /// `call`: method and path.
    async fn ask(&self, key: &str, call: &str, body: Value) -> TestAnswer {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.send(call, body, &[("authorization", &format!("Bearer {key}"))]).await
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.ask(KEY, &format!("GET {path}"), Value::Null).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
        answer.body
    }

    async fn send(&self, call: &str, body: Body, headers: &[(&str, &str)]) -> TestAnswer {
        let (method, path) = call.split_once(' ').expect("METHOD PATH");
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let answer =
            self.router.clone().call(request.body(body).expect("a request")).await.expect("an answer");
        let (parts, body) = answer.into_parts();
        let bytes = to_bytes(body, 1 << 20).await.expect("a short body");
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let answer = TestAnswer { status: parts.status, headers: parts.headers, body, text };
        answer.assert_documented(method, path);
        answer
    }
}
