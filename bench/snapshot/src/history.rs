//! Measures whether a turn costs the same regardless of how many turns came before it.

use crate::{
    Args,
    contender::Ours,
    report::{Bar, Report},
    stage::{Disk, Stage},
    workspace::{Kind, Workspace},
};
use anyhow::Result;

/// The part of W1 that is used, so that a thousand turns take a minute.
const PART: f64 = 0.1;
const EARLY: usize = 10;
/// The workspace shrinks back to its size after this many turns.
const PERIOD: usize = 25;

pub(crate) fn measure(args: &Args, stage: &Stage, report: &mut Report) -> Result<()> {
    for (kind, scale) in [(Kind::W3, 1.0), (Kind::W1, PART * args.scale)] {
        let disk = stage.disk("disk", 8)?;
        let mut workspace = Workspace::build(kind, scale, &disk.dir.join("state"))?;
        let mut ours = Ours::open(&workspace.root, &disk.dir.join("ours"))?;
        let group = format!("{} after checkpoints (scale {scale:.3})", kind.name());
        eprintln!("{group} …");
        ours.capture()?;
        let mut life = Life { workspace: &mut workspace, ours: &mut ours, disk: &disk, turn: 0 };
        let early = format!("after {EARLY}");
        let late = format!("after {}", args.checkpoints);
        life.live_until(EARLY)?;
        life.sample(args.turns, &group, &early, report)?;
        life.live_until(args.checkpoints)?;
        life.sample(args.turns, &group, &late, report)?;
        let cpu = |name: &str| report.get(&group, name).cpu(0.5);
        let (early, late) = (cpu(&early), cpu(&late));
        let name = format!("{} turn: CPU, after {} / after {EARLY}", kind.name(), args.checkpoints);
        report.bar(Bar::at_most_times(name, 1.25, late, early));
    }
    Ok(())
}

struct Life<'l> {
    workspace: &'l mut Workspace,
    ours: &'l mut Ours,
    disk: &'l Disk,
    turn: usize,
}

impl Life<'_> {
    fn live_until(&mut self, turn: usize) -> Result<()> {
        let files = self.workspace.sources();
        while self.turn < turn {
            self.turn += 1;
            self.workspace.turn(self.turn)?;
            self.ours.capture()?;
            if self.turn.is_multiple_of(PERIOD) {
                self.workspace.shrink(files)?;
            }
        }
        self.workspace.shrink(files)?;
        self.ours.capture().map(drop)
    }

    fn sample(&mut self, turns: usize, group: &str, name: &str, report: &mut Report) -> Result<()> {
        let files = self.workspace.sources();
        for _ in 0..turns {
            self.turn += 1;
            self.workspace.turn(self.turn)?;
            self.disk.settle()?;
            report.cost(group, name, self.ours.capture()?);
        }
        self.workspace.shrink(files)
    }
}
