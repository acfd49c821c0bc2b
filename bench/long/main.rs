//! A long life: one session of the built-in agent, turn after turn. What a turn and the last messages cost at its end, as
//! ratios to its beginning, and what the server holds in memory. `cargo run --release -p ash-bench --bin long`.

#[path = "../http/server.rs"]
#[expect(dead_code, reason = "the other benchmark asks for more")]
mod server;
#[path = "../http/stage.rs"]
mod stage;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use server::{Client, Server};
use stage::Stage;
use std::{
    fs,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Turns of the beginning: the first ones still warm up.
const EARLY: std::ops::Range<usize> = 10..30;
/// Turns of the end.
const LATE: usize = 20;
/// How often the last messages are asked for.
const READS: usize = 50;
/// What the end may cost more than the beginning.
const MOST: f64 = 1.3;

#[derive(Parser)]
#[command(name = "long", about = "Measures what a turn costs after many turns")]
struct Args {
    /// How many turns the session lives
    #[arg(long, default_value_t = 2000)]
    turns: usize,
    /// Where files are kept meanwhile
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// The release binary [default: the one beside this program]
    #[arg(long, env = "ASH_BIN")]
    ash: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match measure(&Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn measure(args: &Args) -> Result<bool> {
    ensure!(args.turns >= EARLY.end + LATE, "at least {} turns are needed", EARLY.end + LATE);
    let beside = std::env::current_exe()?.parent().context("a directory")?.join("ash");
    let stage = Stage::make(&args.dir, args.ash.as_ref().unwrap_or(&beside))?;
    let server = Server::start(&stage).await?;
    let client = server.client();
    client.deploy().await?;
    let session = client.create().await?;
    let id = session["id"].as_str().context("an id")?;
    let (mut turns, mut early_reads) = (Vec::new(), Vec::new());
    for turn in 0..args.turns {
        let began = Instant::now();
        client.say(id).await?;
        turns.push(began.elapsed());
        if turn + 1 == EARLY.end {
            early_reads = reads(&client, id).await?;
        }
    }
    let late_reads = reads(&client, id).await?;
    let memory = resident_mb(server.pid())?;
    server.stop().await?;
    let (early, late) = (&turns[EARLY], &turns[turns.len() - LATE..]);
    println!("{} turns of one session, milliseconds (p50):", args.turns);
    let turns = ratio("a turn", early, late);
    let reads = ratio("GET …/messages?limit=4", &early_reads, &late_reads);
    println!("the server holds {memory:.0} MB afterwards");
    Ok(turns <= MOST && reads <= MOST)
}

/// The first page of what was said.
async fn reads(client: &Client, id: &str) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..READS {
        let began = Instant::now();
        client.text(&format!("/api/sessions/{id}/messages?limit=4")).await?;
        times.push(began.elapsed());
    }
    Ok(times)
}

fn ratio(name: &str, early: &[Duration], late: &[Duration]) -> f64 {
    let (early, late) = (median(early), median(late));
    let ratio = late / early;
    let verdict = if ratio <= MOST { "fine" } else { "too much" };
    println!(
        "{name:<24} {early:7.2} at the beginning, {late:7.2} at the end: {ratio:.2} times (at most {MOST}), {verdict}"
    );
    ratio
}

fn median(times: &[Duration]) -> f64 {
    let mut times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1000.0).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn resident_mb(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no memory")?;
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes / 1024.0)
}
