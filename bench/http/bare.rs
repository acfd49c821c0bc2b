//! The baseline for HTTP: the least a server can do here, axum with one route and nothing behind it.

use anyhow::{Context, Result};
use axum::{Json, Router, routing::get};
use serde_json::json;
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitCode, Stdio},
};

pub(crate) fn serve() -> ExitCode {
    // The parent holds the other end of stdin. This process exits when the parent does.
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        std::process::exit(0);
    });
    let served = tokio::runtime::Builder::new_multi_thread().enable_all().build().and_then(|runtime| {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            println!("{}", listener.local_addr()?);
            std::io::stdout().flush()?;
            let router = Router::new().route("/health", get(|| async { Json(json!({ "status": "ok" })) }));
            axum::serve(listener, router).await
        })
    });
    ExitCode::from(u8::from(served.is_err()))
}

/// Another process of this program, which serves.
pub(crate) struct Bare {
    child: Child,
    pub(crate) url: String,
}

impl Bare {
    pub(crate) fn start() -> Result<Bare> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--bare").stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let mut address = String::new();
        let stdout = child.stdout.take().context("a pipe")?;
        BufReader::new(stdout).read_line(&mut address)?;
        Ok(Bare { child, url: format!("http://{}", address.trim()) })
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
