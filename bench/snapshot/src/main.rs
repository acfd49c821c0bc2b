//! Measures what a checkpoint and a restore cost, against common tools and against the machine itself. All figures come
//! from one run, so that noise hits every contender alike. `cargo run --release -p ash-bench-snapshot`.

mod contender;
mod history;
mod limits;
mod memory;
mod meter;
mod noise;
mod report;
mod restore;
mod stage;
mod turns;
mod workspace;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use contender::{Contender, Field};
use report::Report;
use stage::{Images, Stage};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};
use workspace::{Kind, Workspace};

#[derive(Parser)]
#[command(name = "snapshot", about = "Measures checkpoints and restores against other tools and the machine")]
struct Args {
    /// How many turns every contender captures
    #[arg(long, default_value_t = 15)]
    turns: usize,
    /// How many times each contender restores
    #[arg(long, default_value_t = 5)]
    restores: usize,
    /// How many checkpoints there are before the last turns
    #[arg(long, default_value_t = 1000)]
    checkpoints: usize,
    /// Makes the workspaces smaller, for trying things out
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Which parts to run
    #[arg(long, value_enum, value_delimiter = ',',
        default_values_t = [Part::W1, Part::W2, Part::W3, Part::History])]
    parts: Vec<Part>,
    /// The `ash` binary, to measure `ash snapshot save`
    #[arg(long)]
    ash: Option<PathBuf>,
    /// Work in this directory as it is, not on a file system of our own
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where the images of our own file systems lie
    #[arg(long, default_value = "/var/tmp")]
    images: PathBuf,
    /// Write everything that was measured to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Print tables in Markdown
    #[arg(long)]
    markdown: bool,
    /// Do only one thing: `build STATE W1`, `capture STATE PLACE` or `restore TARGET PLACE`
    #[arg(long, hide = true, num_args = 3)]
    alone: Option<Vec<PathBuf>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    W1,
    W2,
    W3,
    History,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.alone {
        Some(words) => memory::alone(words).map(|()| true),
        None => measure_all(&args),
    };
    match done {
        Ok(passed) => ExitCode::from(u8::from(!passed)),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn measure_all(args: &Args) -> Result<bool> {
    contender::all_there()?;
    let stage = match &args.dir {
        Some(dir) => Stage::make(dir, Images::None)?,
        None => Stage::make(&args.images, Images::Mounted)?,
    };
    let mut report = Report::new()?;
    report.note(format!("{} turns, scale {}", args.turns, args.scale));
    if args.ash.is_none() {
        report.note("skipped: ours as a command (give --ash PATH)");
    }
    if !rustix::process::geteuid().is_root() {
        report.note(format!("skipped: {} (only root can follow a file system)", Contender::Tracked.name()));
    }
    report.note("git leaves .git out of W1, and syncs nothing; cp, tar and rsync sync nothing");
    for part in &args.parts {
        match part {
            Part::W1 => measure(Kind::W1, args, &stage, &mut report)?,
            Part::W2 => measure(Kind::W2, args, &stage, &mut report)?,
            Part::W3 => measure(Kind::W3, args, &stage, &mut report)?,
            Part::History => history::measure(args, &stage, &mut report)?,
        }
    }
    if args.markdown {
        report.print_markdown()
    } else {
        report.print()?
    }
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{:#}\n", report.json())).with_context(|| format!("{path:?}"))?;
    }
    Ok(report.passed())
}

fn measure(kind: Kind, args: &Args, stage: &Stage, report: &mut Report) -> Result<()> {
    let disk = stage.disk("disk", 30)?;
    eprintln!("{}: building …", kind.name());
    let mut workspace = Workspace::build(kind, args.scale, &disk.dir.join("state"))?;
    let (name, files, bytes) = (kind.name(), workspace.files, workspace.bytes as f64 / 1e6);
    report.note(format!("{name}: {files} files, {bytes:.0} MB"));
    let mut field = Field::open(&workspace.root, &disk.dir.join("repos"), args.ash.as_deref())?;
    turns::measure(&mut workspace, &mut field, &disk, args, report)?;
    turns::judge(kind, args, report);
    match kind {
        Kind::W1 | Kind::W2 => restore::measure(&mut workspace, &field, stage, args, report)?,
        Kind::W3 => {}
    }
    if kind == Kind::W1 {
        if rustix::process::geteuid().is_root() {
            turns::measure_tracked(&mut workspace, &mut field, &disk, args, report)?;
        }
        memory::measure(&workspace, stage, report)?;
    }
    Ok(())
}

/// The contenders of this run.
fn contenders(ash: Option<&Path>) -> Vec<Contender> {
    let command = ash.map(|_| Contender::Command);
    [Contender::Ours].into_iter().chain(command).chain(Contender::PEERS).collect()
}
