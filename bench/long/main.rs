//! Measures whether a session slows down with age: one session of the built-in agent runs turn after turn. The cost
//! of a turn and of a list of messages at the end is compared, as ratios, with the beginning and with a young session
//! beside it, whose turns the same noise hits. `cargo run --release -p ash-bench --bin long`.

#[path = "../edge/process.rs"]
#[expect(dead_code, reason = "other benchmarks ask for more")]
mod process;
#[path = "../http/report.rs"]
#[expect(dead_code, reason = "other benchmarks ask for more")]
mod report;
#[path = "../http/server.rs"]
#[expect(dead_code, reason = "other benchmarks ask for more")]
mod server;
#[path = "../http/stage.rs"]
mod stage;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use report::{Bar, Report};
use server::{Client, Server};
use stage::Stage;
use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Turns that count as the beginning; the turns before them warm up.
const EARLY: std::ops::Range<usize> = 10..30;
/// Turns that count as the end.
const LATE: usize = 20;
/// How many times the benchmark lists messages.
const READS: usize = 50;
/// Upper limit for the cost at the end, relative to the beginning.
const MAX_RATIO: f64 = 1.3;

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
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    match measure(&args).await {
        Ok(report) => {
            if args.json {
                report.print_json()
            } else {
                report.print()
            }
            ExitCode::from(u8::from(!report.passed()))
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn measure(args: &Args) -> Result<Report> {
    ensure!(args.turns >= EARLY.end + LATE, "at least {} turns are needed", EARLY.end + LATE);
    let beside = std::env::current_exe()?.parent().context("a directory")?.join("ash");
    let stage = Stage::make(&args.dir, args.ash.as_ref().unwrap_or(&beside))?;
    let server = Server::start(&stage).await?;
    let client = server.client();
    client.deploy().await?;
    let mut report = Report::new(args.turns)?;
    let old = create(&client).await?;
    for turn in 0..args.turns - LATE {
        let took = say(&client, &old).await?;
        if EARLY.contains(&turn) {
            report.sample("turns 10 to 30", took);
        }
        if turn + 1 == EARLY.end {
            read(&client, &old, "messages after 30", &mut report).await?;
            report.number("after 30 turns, RSS MB", process::resident(server.pid())?);
        }
    }
    let young = create(&client).await?;
    for _ in 0..EARLY.start {
        say(&client, &young).await?;
    }
    for _ in 0..LATE {
        report.sample("the last 20 turns", say(&client, &old).await?);
        report.sample("a young session beside", say(&client, &young).await?);
    }
    for (id, name) in [(&old, "messages at the end"), (&young, "messages of the young one")] {
        read(&client, id, name, &mut report).await?;
    }
    report.number("at the end, RSS MB", process::resident(server.pid())?);
    server.stop().await?;
    judge(&mut report);
    report.finish()?;
    Ok(report)
}

async fn create(client: &Client) -> Result<String> {
    Ok(client.create().await?["id"].as_str().context("an id")?.to_owned())
}

async fn say(client: &Client, id: &str) -> Result<Duration> {
    let began = Instant::now();
    client.say(id).await?;
    Ok(began.elapsed())
}

async fn read(client: &Client, id: &str, name: &'static str, report: &mut Report) -> Result<()> {
    for _ in 0..READS {
        let began = Instant::now();
        client.text(&format!("/api/sessions/{id}/messages?limit=4")).await?;
        report.sample(name, began.elapsed());
    }
    Ok(())
}

fn judge(report: &mut Report) {
    for (name, late, early, rule) in [
        ("a turn", "the last 20 turns", "turns 10 to 30", "1.3 · turns 10 to 30"),
        ("a turn", "the last 20 turns", "a young session beside", "1.3 · a young session's"),
        ("messages?limit=4", "messages at the end", "messages after 30", "1.3 · after 30 turns"),
        ("messages?limit=4", "messages at the end", "messages of the young one", "1.3 · a young session's"),
    ] {
        let (found, bound) = (report.median(late), MAX_RATIO * report.median(early));
        report.bar(Bar::at_most(name, rule, "ms", (found, bound)));
    }
}
