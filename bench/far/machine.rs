//! A server with a data directory of its own, which the benchmark can delete.

use crate::stage::Stage;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::{
    fs, io,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const KEY: &str = "bench-key";
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Machine {
    child: Child,
    url: String,
    http: reqwest::Client,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait().map(drop)).ok();
    }
}

impl Machine {
    pub(crate) async fn start(stage: &Stage, name: &str, env: &[(String, String)]) -> Result<Machine> {
        let data = stage.dir.join(name);
        let log = fs::File::create(stage.dir.join("log"))?;
        let child = Command::new(&stage.ash)
            .arg("serve")
            .env_clear()
            .envs([("PATH", "/usr/bin:/bin"), ("ASH_PORT", "0"), ("ASH_API_KEY", KEY), ("ASH_LOG", "warn")])
            .env("HOME", &stage.dir)
            .env("ASH_DATA_DIR", &data)
            .envs(env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .current_dir("/")
            // Ctrl-C is for the benchmark, which stops the server itself.
            .process_group(0)
            .spawn()
            .context("cannot start the server")?;
        let mut machine = Machine { child, url: String::new(), http: http() };
        let until = Instant::now() + PATIENCE;
        loop {
            let note = fs::read(data.join("server.json")).unwrap_or_default();
            let note: Value = serde_json::from_slice(&note).unwrap_or_default();
            if let Some(url) = note["url"].as_str().filter(|_| note["pid"] == machine.child.id()) {
                machine.url = url.to_owned();
                return Ok(machine);
            }
            if machine.child.try_wait()?.is_some() || Instant::now() >= until {
                bail!("the server did not start:\n{}", fs::read_to_string(stage.dir.join("log"))?);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops the server; its sandboxes end with it.
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

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response> {
        let answer = request.bearer_auth(KEY).send().await?;
        let (status, path) = (answer.status(), answer.url().path().to_owned());
        if !status.is_success() {
            bail!("{path} answered {status}: {}", answer.text().await.unwrap_or_default());
        }
        Ok(answer)
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.http.post(format!("{}{path}", self.url)).json(body);
        Ok(self.send(request).await?.json().await?)
    }

    pub(crate) async fn say(&self, session: &Value, text: &str) -> Result<()> {
        let path = format!("{}/messages", self.path(session)?);
        let request = self.http.post(path).json(&json!({ "content": text }));
        let stream = self.send(request).await?.text().await?;
        let done = stream.rsplit("event: done\n").next().unwrap_or_default();
        ensure!(done.contains(r#""status":"done""#), "the turn was not answered:\n{stream}");
        Ok(())
    }

    /// Resumes a session and returns the receipt.
    pub(crate) async fn resume(&self, session: &Value) -> Result<Value> {
        let path = format!("{}/resume", self.path(session)?);
        let answer: Value = self.send(self.http.post(path).json(&json!({}))).await?.json().await?;
        Ok(answer["resume"].clone())
    }

    pub(crate) async fn until_remote(&self, session: &Value) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let now: Value = self.send(self.http.get(self.path(session)?)).await?.json().await?;
            let checkpoint = &now["session"]["checkpoint"];
            if checkpoint["local"].is_u64() && checkpoint["local"] == checkpoint["remote"] {
                return Ok(());
            }
            ensure!(Instant::now() < until, "the object store does not get it: {now}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn peak_mb(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("a peak")?;
        let kilobytes: f64 = peak.trim().trim_end_matches(" kB").parse()?;
        Ok(kilobytes / 1024.0)
    }

    fn path(&self, session: &Value) -> Result<String> {
        Ok(format!("{}/api/sessions/{}", self.url, session["id"].as_str().context("a session")?))
    }
}

/// Deletes everything in a directory of the stage.
pub(crate) fn forget(stage: &Stage, what: &str) -> Result<()> {
    match fs::remove_dir_all(stage.dir.join(what)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(crate) fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().tcp_nodelay(true).build().unwrap_or_default()
}
