//! Measures how fast and how small the server is, as ratios to what the machine itself needs. Both sides come from one
//! run, so that noise hits them alike. `cargo run --release -p ash-bench --bin http`.

mod advance;
mod bare;
mod crowd;
mod floor;
mod forks;
mod life;
mod memory;
mod report;
#[expect(dead_code, reason = "other benchmarks ask for more")]
mod server;
mod stage;

use anyhow::{Context, Result, bail};
use clap::Parser;
use report::Report;
use server::Server;
use stage::Stage;
use std::{path::PathBuf, process::ExitCode};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Parser)]
#[command(name = "http", about = "Measures `ash serve` against bubblewrap, SQLite and axum alone")]
struct Args {
    /// How often each thing is measured
    #[arg(long, default_value_t = 200)]
    samples: usize,
    /// How many sessions are made at once
    #[arg(long, default_value_t = 400)]
    crowd: usize,
    /// The release binary [default: the one beside this program]
    #[arg(long, env = "ASH_BIN")]
    ash: Option<PathBuf>,
    /// Where to work; must be reachable by every user, and on the disk that is to be measured
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Be the server that is compared with
    #[arg(long, hide = true)]
    bare: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.bare {
        return bare::serve();
    }
    match measure_all(&args) {
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

fn measure_all(args: &Args) -> Result<Report> {
    let ash = args.ash.clone().map_or_else(beside, Ok)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let stage = Stage::make(&args.dir, &ash)?;
    // Whichever future ends first, dropping the rest cleans up.
    runtime.block_on(async {
        tokio::select! {
            report = run(args, &stage) => report,
            _ = interrupted() => bail!("interrupted"),
        }
    })
}

fn beside() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(2).context("no target directory")?;
    Ok(target.join("release/ash"))
}

async fn interrupted() -> Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

async fn run(args: &Args, stage: &Stage) -> Result<Report> {
    let mut report = Report::new(args.samples)?;
    let server = Server::start(stage).await?;
    let client = server.client();
    client.deploy().await?;
    eprintln!("memory …");
    let line = memory::measure(&server, stage, &mut report).await?;
    eprintln!("{} rounds of everything …", args.samples);
    life::measure(&client, &line, stage, &mut report).await?;
    eprintln!("made in advance …");
    advance::measure(&client, stage, &mut report).await?;
    eprintln!("forks …");
    forks::measure(&server, &client, &mut report).await?;
    eprintln!("{} sessions by 4 clients …", args.crowd);
    crowd::measure(&client, &line, args.crowd, &mut report).await?;
    report.number("server RSS after all of it, MB", memory::resident(server.pid())?);
    server.stop().await?;
    report.finish()?;
    Ok(report)
}
