//! Measures full restores, each onto an empty file system, so that earlier deletions slow down no contender.

use crate::{
    Args,
    contender::{Contender, Field},
    limits::Shape,
    meter,
    report::{Bar, Report},
    stage::Stage,
    workspace::{Kind, Workspace},
};
use anyhow::{Context, Result};

const CREATE: &str = "limit: create";

pub(crate) fn measure(
    workspace: &mut Workspace,
    field: &Field,
    stage: &Stage,
    args: &Args,
    report: &mut Report,
) -> Result<()> {
    let group = format!("{} restore", workspace.kind.name());
    let shape = Shape::of(&workspace.root)?;
    for round in 0..args.restores {
        eprintln!("{group} {} of {} …", round + 1, args.restores);
        for contender in [Contender::Ours, Contender::Tar, Contender::Cp, Contender::Restic] {
            let target = stage.disk("target", 4)?;
            target.settle()?;
            report.cost(&group, name(contender), field.restore(contender, &target.dir, args.turns)?);
        }
        let target = stage.disk("target", 4)?;
        target.settle()?;
        let root = target.dir.join("all");
        std::fs::create_dir(&root)?;
        report.cost(&group, CREATE, meter::ours(|| shape.make(&root))?.1);
    }
    if workspace.kind == Kind::W1 {
        first_turn(field, stage, args, report)?;
    }
    judge(workspace.kind, &group, report);
    Ok(())
}

/// A fork only refers to a snapshot. Its first turn begins with a restore, and its capture uses the index that the
/// restore left.
fn first_turn(field: &Field, stage: &Stage, args: &Args, report: &mut Report) -> Result<()> {
    for _ in 0..args.restores.min(3) {
        let target = stage.disk("target", 4)?;
        let (index, resumed) = field.ours.restore(&target.dir)?;
        report.cost("W1 fork", "cold resume: restore", resumed);
        // Nothing else touches the restored tree; these are the files that a turn touches.
        for at in 0..5 {
            std::fs::write(target.dir.join(format!("workspace/new-{at}")), [b'x'; 4000])?;
        }
        let mut fork = field.ours.elsewhere(&target.dir, index)?;
        report.cost("W1 fork", "capture of the first turn", fork.capture()?);
        fork.tree().context("a tree")?;
    }
    let wall = |name: &str| report.get("W1 fork", name).wall(0.5);
    let (turn, resume) = (wall("capture of the first turn"), wall("cold resume: restore"));
    report.bar(Bar::at_most_times("W1 fork: first turn / cold resume, wall", 1.0, turn, resume));
    Ok(())
}

fn name(contender: Contender) -> &'static str {
    match contender {
        Contender::Tar => "zstd -d | tar -x",
        Contender::Restic => "restic restore",
        Contender::Ours
        | Contender::Tracked
        | Contender::Command
        | Contender::Cp
        | Contender::Rsync
        | Contender::Git
        | Contender::Borg => contender.name(),
    }
}

fn judge(kind: Kind, group: &str, report: &mut Report) {
    let of = |contender| report.get(group, name(contender));
    let (ours, tar, cp) = (of(Contender::Ours), of(Contender::Tar), of(Contender::Cp));
    let limit = report.get(group, CREATE);
    let (mut bars, mut goals) = (Vec::new(), Vec::new());
    match kind {
        Kind::W1 => {
            bars.push(Bar::at_most_times("W1 restore: CPU, ours / tar", 1.0, ours.cpu(0.5), tar.cpu(0.5)));
            bars.push(Bar::at_most_times(
                "W1 restore: CPU, ours / create",
                2.2,
                ours.cpu(0.5),
                limit.cpu(0.5),
            ));
            goals.push(Bar::times_better("W1 restore: wall, tar / ours", 1.3, tar.wall(0.5), ours.wall(0.5)));
            goals.push(Bar::at_most_times(
                "W1 restore: CPU, ours / create",
                1.5,
                ours.cpu(0.5),
                limit.cpu(0.5),
            ));
            goals.push(Bar::at_most_times(
                "W1 restore: wall, ours / create",
                1.5,
                ours.wall(0.5),
                limit.wall(0.5),
            ));
        }
        Kind::W2 | Kind::W3 => {
            bars.push(Bar::at_most_times("W2 restore: CPU, ours / cp -a", 1.5, ours.cpu(0.5), cp.cpu(0.5)));
            goals.push(Bar::at_most_times("W2 restore: CPU, ours / cp -a", 1.0, ours.cpu(0.5), cp.cpu(0.5)));
            goals.push(Bar::at_most_times(
                "W2 restore: wall, ours / cp -a",
                1.0,
                ours.wall(0.5),
                cp.wall(0.5),
            ));
        }
    }
    bars.into_iter().for_each(|bar| report.bar(bar));
    goals.into_iter().for_each(|goal| report.goal(goal));
}
