//! Measures the peak memory of a capture and of a restore, each in a process that does nothing else. The same process
//! is a target for `perf` and `strace`.

use crate::{
    contender::Ours,
    report::{Bar, Report},
    stage::Stage,
    workspace::{Kind, Workspace},
};
use anyhow::{Context, Result, bail, ensure};
use ash_snapshot::TreeId;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const MOST: f64 = 150.0;

pub(crate) fn measure(workspace: &Workspace, stage: &Stage, report: &mut Report) -> Result<()> {
    let disk = stage.disk("target", 6)?;
    let place = disk.dir.join("place");
    for (what, state) in [
        ("capture", workspace.root.clone()),
        ("capture", workspace.root.clone()),
        ("restore", disk.dir.clone()),
    ] {
        let first = what == "capture" && !place.exists();
        let peak = peak(what, &state, &place)?;
        let name = if first { "first capture" } else { what };
        report.bar(Bar::at_most(format!("W1 {name}: peak memory"), MOST, peak, "MB"));
    }
    Ok(())
}

fn peak(what: &str, state: &Path, place: &Path) -> Result<f64> {
    let own = std::env::current_exe()?;
    let output = Command::new(own).arg("--alone").arg(what).arg(state).arg(place).output()?;
    ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)?.trim().parse().context("a number")
}

/// What that process runs: it does one thing and prints its peak memory in MB.
pub(crate) fn alone(words: &[PathBuf]) -> Result<()> {
    let [what, state, place] = words else { bail!("three words") };
    if what.to_str() == Some("build") {
        let kinds = [Kind::W1, Kind::W2, Kind::W3];
        let kind =
            kinds.into_iter().find(|kind| place.to_str() == Some(kind.name())).context("a workspace")?;
        return Workspace::build(kind, 1.0, state).map(drop);
    }
    let mut ours = Ours::open(state, place)?;
    let note = place.join("tree");
    if let Ok(tree) = fs::read_to_string(&note) {
        ours.go_on_from(TreeId::parse(&tree)?);
    }
    match what.to_str() {
        Some("capture") => {
            ours.capture()?;
            fs::write(note, ours.tree().context("a tree")?.as_str())?;
        }
        Some("restore") => drop(ours.restore(state)?),
        Some(_) | None => bail!("build, capture or restore"),
    }
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
    let kib: f64 = peak.context("VmHWM")?.parse()?;
    println!("{}", kib * 1024.0 / 1e6);
    Ok(())
}
