//! Measures what losing the machine costs: a session of 41,000 files comes back from an S3 server on loopback. One run
//! compares that in turns with a restore of the same session from local packs and with a plain download of the same bytes
//! from the same server. `cargo run --release -p ash-bench --bin far`.

#![allow(unreachable_pub, reason = "the servers of tests are shared with others")]

mod disk;
mod machine;
#[path = "../../tests/support/servers.rs"]
mod servers;
#[path = "../http/stage.rs"]
mod stage;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use disk::Disk;
use futures::{StreamExt, TryStreamExt};
use machine::Machine;
use serde_json::{Value, json};
use stage::Stage;
use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::signal::unix::{SignalKind, signal};

/// Upper limit relative to the sum of the two unavoidable parts: the download and the local restore.
const MOST: f64 = 1.3;
/// The same number of concurrent reads as a server has.
const AT_ONCE: usize = 8;
/// A server still writes some files shortly after its start.
const SETTLE: Duration = Duration::from_millis(300);

/// The S3 server requires a signature but does not check it.
const SIGNATURE: &str = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, \
                         Signature=0";

#[derive(Parser)]
#[command(name = "far", about = "Measures a resume from an object store against a download and a restore")]
struct Args {
    /// How often each thing is measured
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// How many files the session has
    #[arg(long, default_value_t = 41_000)]
    files: u64,
    /// The release binary [default: the one beside this program]
    #[arg(long, env = "ASH_BIN")]
    ash: Option<PathBuf>,
    /// Work in this directory as it is, which must be reachable by every user, not on a file system of our own
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where the image of our own file system lies
    #[arg(long, default_value = "/var/tmp")]
    images: PathBuf,
}

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Round {
    far: Took,
    near: Took,
    download: f64,
}

/// What bringing the sessions back cost.
#[derive(Debug, Clone, Copy)]
struct Took {
    /// Seconds until the session with the files was resumed.
    full: f64,
    /// Seconds until the empty session was resumed: database rows and the start of an agent.
    empty: f64,
    /// Peak memory of the server in megabytes.
    memory: f64,
}

fn measure(args: &Args) -> Result<bool> {
    let own = std::env::current_exe()?;
    let beside = own.parent().context("a directory")?.join("ash");
    let disk = if args.dir.is_none() { Some(Disk::make(&args.images)?) } else { None };
    let dir = disk.as_ref().map(|disk| &disk.dir).or(args.dir.as_ref()).unwrap_or(&args.images);
    let stage = Stage::make(dir, args.ash.as_ref().unwrap_or(&beside))?;
    let (s3, keys) = servers::Server::moto();
    s3.make_s3_bucket("shelf");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut sending: Vec<(String, String)> = keys.into_iter().collect();
    sending.push(("ASH_SNAPSHOT_URL".to_owned(), "s3://shelf".to_owned()));
    let bucket = format!("{}/shelf", s3.url());
    // Whichever future ends first, dropping the rest cleans up.
    let rounds = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            rounds = run(args, &stage, &sending, &bucket) => rounds,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminate.recv() => bail!("interrupted"),
        }
    });
    Ok(told(&rounds?))
}

async fn run(args: &Args, stage: &Stage, sending: &[(String, String)], bucket: &str) -> Result<Vec<Round>> {
    let sessions = make(stage, sending, args.files).await?;
    let objects = Objects::list(bucket).await?;
    let megabytes = objects.bytes as f64 / 1e6;
    println!("{} files, {megabytes:.1} MB in {} objects", args.files, objects.urls.len());
    let mut rounds = Vec::new();
    for number in 0..=args.rounds {
        let near = near(stage, &sessions).await?;
        let download = objects.download().await?;
        let far = far(stage, sending, &sessions).await?;
        eprintln!("from there {:.2} s, from here {:.2} s, download {download:.2} s", far.full, near.full);
        // Round 0 warms up and is not measured.
        if number > 0 {
            rounds.push(Round { far, near, download });
        }
    }
    Ok(rounds)
}

fn told(rounds: &[Round]) -> bool {
    let of = |what: fn(&Round) -> f64| median(rounds.iter().map(what).collect());
    println!(
        "medians of {}: from the object store {:.2} s; from packs that are here {:.2} s, and a download by \
         {AT_ONCE} requests at once {:.2} s",
        rounds.len(),
        of(|round| round.far.full),
        of(|round| round.near.full),
        of(|round| round.download)
    );
    println!(
        "a session without files: from the object store {:.0} ms, from here {:.0} ms",
        of(|round| round.far.empty) * 1000.0,
        of(|round| round.near.empty) * 1000.0
    );
    println!(
        "the server's memory at its peak: from the object store {:.0} MB, from here {:.0} MB",
        of(|round| round.far.memory),
        of(|round| round.near.memory)
    );
    let found = of(|round| round.far.full / (round.near.full + round.download));
    let verdict = if found <= MOST { "PASS" } else { "FAIL" };
    println!("{:<40} {found:>7.2} ≤ {MOST}  {verdict}", "resume / (local resume + download)");
    found <= MOST
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A session with its files, and one without.
struct Sessions {
    full: Value,
    empty: Value,
}

/// Creates the sessions on a machine that survives, and waits until the object store has everything.
async fn make(stage: &Stage, sending: &[(String, String)], files: u64) -> Result<Sessions> {
    eprintln!("{files} files …");
    let near = Machine::start(stage, "near", sending).await?;
    near.post("/api/agents", &json!({ "name": "bench", "systemPrompt": "You are measured." })).await?;
    let agent = json!({ "agent": "bench", "provider": "offline" });
    let full = near.post("/api/sessions", &agent).await?["session"].clone();
    let empty = near.post("/api/sessions", &agent).await?["session"].clone();
    near.say(&full, &format!("run: {}", script(files))).await?;
    for session in [&full, &empty] {
        near.say(session, "hello").await?;
        near.until_remote(session).await?;
    }
    near.stop().await?;
    Ok(Sessions { full, empty })
}

/// A script that creates files like a project with its packages: many small ones that look like text.
fn script(files: u64) -> String {
    let line = r#"printf "export const value%d = 0x%04x%04x%04x%04x;\n", n, r(), r(), r(), r() > name"#;
    format!(
        "awk 'function r() {{ return int(rand() * 65536) }} BEGIN {{ srand(1); \
         for (d = 0; d < 410; d++) {{ at = \"packages/\" d; all = \"mkdir -p\"; \
         for (b = 0; b < 7; b++) all = all \" \" at \"/\" b; system(all) }} \
         for (f = 0; f < {files}; f++) {{ name = \"packages/\" (f % 410) \"/\" (f % 7) \"/file\" f \".js\"; \
         for (n = 0; n <= f % 90; n++) {line}; close(name) }} }}'"
    )
}

/// Restores from local packs: only the trees are lost.
async fn near(stage: &Stage, sessions: &Sessions) -> Result<Took> {
    machine::forget(stage, "near/live")?;
    let near = Machine::start(stage, "near", &[]).await?;
    resumed(near, sessions, "local").await
}

/// Restores from the object store: everything local is lost.
async fn far(stage: &Stage, sending: &[(String, String)], sessions: &Sessions) -> Result<Took> {
    let far = Machine::start(stage, "far", sending).await?;
    let took = resumed(far, sessions, "cloud").await?;
    machine::forget(stage, "far")?;
    Ok(took)
}

async fn resumed(machine: Machine, sessions: &Sessions, source: &str) -> Result<Took> {
    tokio::time::sleep(SETTLE).await;
    let resume = async |session: &Value| {
        let began = Instant::now();
        let receipt = machine.resume(session).await?;
        let took = began.elapsed().as_secs_f64();
        let is_whole =
            receipt["source"] == source && receipt["lost"] == json!([]) && receipt["verified"] == true;
        ensure!(is_whole, "all of it was expected from {source}: {receipt}");
        Ok(took)
    };
    let (full, empty) = (resume(&sessions.full).await?, resume(&sessions.empty).await?);
    let took = Took { full, empty, memory: machine.peak_mb()? };
    machine.stop().await?;
    Ok(took)
}

/// The objects in the bucket.
struct Objects {
    urls: Vec<String>,
    bytes: usize,
}

impl Objects {
    async fn list(bucket: &str) -> Result<Objects> {
        let listed = machine::http().get(format!("{bucket}?list-type=2")).send().await?.text().await?;
        ensure!(listed.contains("<IsTruncated>false"), "more objects than are listed at once");
        let keys = listed.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
        let urls = keys.map(|(key, _)| format!("{bucket}/{key}")).collect();
        let mut objects = Objects { urls, bytes: 0 };
        objects.bytes = objects.fetch().await?;
        Ok(objects)
    }

    async fn fetch(&self) -> Result<usize> {
        let http = machine::http();
        let got = self.urls.iter().map(|url| {
            let request = http.get(url).header("authorization", SIGNATURE);
            async move { anyhow::Ok(request.send().await?.error_for_status()?.bytes().await?.len()) }
        });
        futures::stream::iter(got)
            .buffer_unordered(AT_ONCE)
            .try_fold(0, async |sum, size| Ok(sum + size))
            .await
    }

    /// Seconds to download all objects.
    async fn download(&self) -> Result<f64> {
        let began = Instant::now();
        let bytes = self.fetch().await?;
        let took = began.elapsed().as_secs_f64();
        ensure!(bytes == self.bytes, "{bytes} bytes instead of {}", self.bytes);
        Ok(took)
    }
}
