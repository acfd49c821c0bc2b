//! The server under measurement, and a client with connections that stay open.

use crate::stage::Stage;
use anyhow::{Context, Result, bail, ensure};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use std::{
    fs,
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

pub(crate) const KEY: &str = "bench-key";
pub(crate) const AGENT: &str = "bench";
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    child: Child,
    url: String,
    data: PathBuf,
    log: PathBuf,
}

impl Server {
    pub(crate) async fn start(stage: &Stage) -> Result<Server> {
        Server::start_with(stage, |_| ()).await
    }

    /// Starts a server with changed settings.
    pub(crate) async fn start_with(stage: &Stage, set: impl FnOnce(&mut Command)) -> Result<Server> {
        let data = stage.dir.join("data");
        let log = fs::File::create(stage.dir.join("log"))?;
        let mut command = Command::new(&stage.ash);
        command
            .arg("serve")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &stage.dir)
            .env("ASH_DATA_DIR", &data)
            .env("ASH_PORT", "0")
            .env("ASH_API_KEY", KEY)
            .env("ASH_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .current_dir("/")
            // Ctrl-C is for the benchmark, which stops the server itself.
            .process_group(0);
        set(&mut command);
        let child = command.spawn().context("cannot start the server")?;
        let mut server = Server { child, url: String::new(), data, log: stage.dir.join("log") };
        server.url = server.wait_until_up().await?;
        Ok(server)
    }

    async fn wait_until_up(&mut self) -> Result<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let note = fs::read(self.data.join("server.json")).unwrap_or_default();
            let note: Value = serde_json::from_slice(&note).unwrap_or_default();
            if let Some(url) = note["url"].as_str() {
                return Ok(url.to_owned());
            }
            if self.child.try_wait()?.is_some() || Instant::now() >= until {
                bail!("the server did not start:\n{}", self.log().unwrap_or_default());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> Result<SocketAddr> {
        Ok(self.url.strip_prefix("http://").context("an address")?.parse()?)
    }

    /// What the server has logged so far.
    pub(crate) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }

    pub(crate) fn client(&self) -> Client {
        Client { http: http(), url: self.url.clone() }
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// The run directory of a session's sandbox.
    pub(crate) fn run_dir(&self, session: &Value) -> Result<PathBuf> {
        let workspace = session["workspaceId"].as_str().context("a workspace")?;
        Ok(self.data.join("live").join(workspace).join("run"))
    }

    /// The directory that every sandbox sees as /etc.
    pub(crate) fn etc(&self) -> PathBuf {
        self.data.join("etc")
    }

    pub(crate) async fn stop(mut self) -> Result<()> {
        // SAFETY: kill has no memory effects; it is our child, and no code has waited for it.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < until, "the server does not stop");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub(crate) fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().tcp_nodelay(true).build().unwrap_or_default()
}

#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    pub(crate) url: String,
}

impl Client {
    /// A client with connections of its own.
    pub(crate) fn another(&self) -> Client {
        Client { http: http(), url: self.url.clone() }
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response> {
        let request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(KEY);
        let request = if let Some(body) = body { request.json(body) } else { request };
        let response = request.send().await?;
        let status = response.status();
        if !status.is_success() {
            bail!("{path} answered {status}: {}", response.text().await.unwrap_or_default());
        }
        Ok(response)
    }

    async fn json(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        Ok(self.send(method, path, body).await?.json().await?)
    }

    pub(crate) async fn deploy(&self) -> Result<()> {
        let agent = json!({ "name": AGENT, "systemPrompt": "You are measured." });
        self.json(Method::POST, "/api/agents", Some(&agent)).await.map(drop)
    }

    pub(crate) async fn deploy_folder(&self, name: &str, folder: &Path) -> Result<()> {
        let agent = json!({ "name": name, "path": folder });
        self.json(Method::POST, "/api/agents", Some(&agent)).await.map(drop)
    }

    pub(crate) async fn remove(&self, agent: &str) -> Result<()> {
        self.json(Method::DELETE, &format!("/api/agents/{agent}"), None).await.map(drop)
    }

    /// How many prewarmed sandboxes are ready.
    pub(crate) async fn warm(&self) -> Result<u64> {
        let health = self.json(Method::GET, "/health", None).await?;
        health["pool"]["warm"].as_u64().context("a number")
    }

    pub(crate) async fn create(&self) -> Result<Value> {
        self.create_of(AGENT).await
    }

    pub(crate) async fn create_of(&self, agent: &str) -> Result<Value> {
        let made = self.json(Method::POST, "/api/sessions", Some(&json!({ "agent": agent }))).await?;
        ensure!(made["session"]["status"] == "active", "a new session is active, not {made}");
        Ok(made["session"].clone())
    }

    pub(crate) async fn act(&self, id: &str, action: &str) -> Result<Value> {
        self.json(Method::POST, &format!("/api/sessions/{id}/{action}"), Some(&json!({}))).await
    }

    pub(crate) async fn exec(&self, id: &str, command: &str) -> Result<()> {
        let path = format!("/api/sessions/{id}/exec");
        let done = self.json(Method::POST, &path, Some(&json!({ "command": command }))).await?;
        ensure!(done["exitCode"] == 0, "{command:?} failed: {done}");
        Ok(())
    }

    /// Resumes a session, and fails unless the resume took the expected path.
    pub(crate) async fn resume(&self, id: &str, path: &str) -> Result<()> {
        let answer = self.act(id, "resume").await?;
        ensure!(answer["resume"]["path"] == path, "a {path} resume was expected: {}", answer["resume"]);
        Ok(())
    }

    pub(crate) async fn end(&self, id: &str) -> Result<()> {
        self.json(Method::DELETE, &format!("/api/sessions/{id}"), None).await.map(drop)
    }

    pub(crate) async fn health(&self) -> Result<()> {
        self.send(Method::GET, "/health", None).await?.bytes().await?;
        Ok(())
    }

    pub(crate) async fn metric(&self, name: &str) -> Result<f64> {
        let text = self.text("/metrics").await?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.with_context(|| format!("no {name} in /metrics"))
    }

    /// Sends a request and returns the response with its body unread.
    pub(crate) async fn open(&self, path: &str) -> Result<Response> {
        self.send(Method::GET, path, None).await
    }

    pub(crate) async fn text(&self, path: &str) -> Result<String> {
        Ok(self.send(Method::GET, path, None).await?.text().await?)
    }

    /// Sends a message and reads its whole stream. Returns the time to the first `session_start`.
    pub(crate) async fn say(&self, id: &str) -> Result<Duration> {
        let began = Instant::now();
        let body = json!({ "content": "hello" });
        let mut stream =
            self.send(Method::POST, &format!("/api/sessions/{id}/messages"), Some(&body)).await?;
        let (mut text, mut started) = (String::new(), None);
        while let Some(piece) = stream.chunk().await? {
            text.push_str(&String::from_utf8_lossy(&piece));
            if started.is_none() && text.contains("event: session_start\n") {
                started = Some(began.elapsed());
            }
        }
        let done = text.rsplit("event: done\n").next().unwrap_or_default();
        ensure!(done.contains(r#""status":"done""#), "the turn was not answered:\n{text}");
        started.context("a stream without session_start")
    }
}
