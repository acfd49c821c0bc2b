//! Measures what stopped clients cost: in the middle of a file, before their first byte, or for good. Memory and latency
//! with and without them, as ratios from one run. `cargo run --release -p ash-bench --bin edge`.

mod burst;
mod held;
mod probe;
mod process;
#[path = "../http/report.rs"]
#[expect(dead_code, reason = "other benchmarks ask for more")]
mod report;
#[path = "../http/server.rs"]
#[expect(dead_code, reason = "other benchmarks ask for more")]
mod server;
mod silent;
#[path = "../http/stage.rs"]
mod stage;
mod stalled;

use anyhow::{Context, Result};
use clap::Parser;
use held::Holding;
use report::Report;
use stage::Stage;
use std::{path::PathBuf, process::ExitCode};

#[derive(Parser)]
#[command(name = "edge", about = "Measures what clients cost that stop reading, sending or asking")]
struct Args {
    /// How many clients stop reading a file of 100 MiB, and how many stop sending one
    #[arg(long, default_value_t = 50)]
    stalled: usize,
    /// How many connections are idle or half-open
    #[arg(long, default_value_t = 5000)]
    silent: usize,
    /// How many sessions are made, work and end in a burst
    #[arg(long, default_value_t = 200)]
    sessions: usize,
    /// How many streams are open in a burst
    #[arg(long, default_value_t = 500)]
    streams: usize,
    /// The release binary [default: the one beside this program]
    #[arg(long, env = "ASH_BIN")]
    ash: Option<PathBuf>,
    /// Where to work; must be reachable by every user
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    holding: Holding,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(address) = args.holding.hold {
        return held::hold(address, &args.holding).map_or_else(failed, |()| ExitCode::SUCCESS);
    }
    match measure(&args).await {
        Ok(report) => {
            if args.json {
                report.print_json()
            } else {
                report.print()
            }
            ExitCode::from(u8::from(!report.passed()))
        }
        Err(error) => failed(error),
    }
}

fn failed(error: anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(2)
}

async fn measure(args: &Args) -> Result<Report> {
    process::open_many_files()?;
    let beside = std::env::current_exe()?.parent().context("a directory")?.join("ash");
    let ash = args.ash.as_ref().unwrap_or(&beside);
    let stage = || Stage::make(&args.dir, ash);
    let mut report = Report::new(probe::REQUESTS)?;
    eprintln!("{} clients that stop in the middle of a file …", 2 * args.stalled);
    stalled::measure(&stage()?, args.stalled, &mut report).await?;
    eprintln!("{} silent connections …", args.silent);
    silent::measure(&stage()?, args.silent, &mut report).await?;
    eprintln!("bursts of {} sessions and {} streams …", args.sessions, args.streams);
    burst::measure(&stage()?, (args.sessions, args.streams), &mut report).await?;
    report.finish()?;
    Ok(report)
}
