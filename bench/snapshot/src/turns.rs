//! Runs turns, after each of which every contender captures the same state, in an order that changes from turn to
//! turn.

use crate::{
    Args,
    contender::{Contender, Field},
    contenders, limits, meter,
    report::{Bar, Report, Samples},
    stage::Disk,
    workspace::{Kind, Workspace},
};
use anyhow::Result;
use std::fs;

pub(crate) const STATX: &str = "limit: statx walk";
pub(crate) const SYNC: &str = "limit: one sync";

const INDEX: &str = "  of that our index";

pub(crate) fn group(kind: Kind) -> String {
    format!("{} turn", kind.name())
}

pub(crate) fn measure(
    workspace: &mut Workspace,
    field: &mut Field,
    disk: &Disk,
    args: &Args,
    report: &mut Report,
) -> Result<()> {
    let all = contenders(args.ash.as_deref());
    let first = format!("{} first capture", workspace.kind.name());
    let mut sizes = Vec::new();
    for contender in &all {
        eprintln!("{first}: {} …", contender.name());
        disk.settle()?;
        report.cost(&first, contender.name(), field.capture(*contender, 0)?);
        sizes.push(field.size(*contender)?);
        report.bytes(&first, contender.name(), sizes[sizes.len() - 1] as f64);
    }
    let mut index = field.ours.index_size()?;
    field.forget_copies(0)?;
    fs::create_dir(disk.dir.join("sync"))?;
    let group = group(workspace.kind);
    for contender in &all {
        report.row(&group, contender.name());
        if *contender == Contender::Ours {
            report.row(&group, INDEX);
        }
    }
    for turn in 1..=args.turns {
        eprintln!("{group} {turn} of {} …", args.turns);
        workspace.turn(turn)?;
        // Rotate the order, so that no contender always follows the noisiest one.
        for place in 0..all.len() {
            let at = (place + turn) % all.len();
            let contender = all[at];
            disk.settle()?;
            report.cost(&group, contender.name(), field.capture(contender, turn)?);
            let size = field.size(contender)?;
            report.bytes(&group, contender.name(), grown(contender, sizes[at], size));
            sizes[at] = size;
            if contender == Contender::Ours {
                let size = field.ours.index_size()?;
                report.bytes(&group, INDEX, size as f64 - index as f64);
                index = size;
            }
        }
        disk.settle()?;
        report.cost(&group, STATX, meter::ours(|| limits::walk(&workspace.root))?.1);
        report.cost(&group, SYNC, meter::ours(|| limits::sync(&disk.dir.join("sync"), turn))?.1);
        report.bytes(&group, "limit: bytes changed", changed(workspace.kind));
        if turn < args.turns {
            field.forget_copies(turn)?;
        }
    }
    Ok(())
}

/// Runs more turns while the kernel reports touched paths. Separate from the turns above, because contenders that
/// copy everything would slow this down.
pub(crate) fn measure_tracked(
    workspace: &mut Workspace,
    field: &mut Field,
    disk: &Disk,
    args: &Args,
    report: &mut Report,
) -> Result<()> {
    const ALL: [Contender; 3] = [Contender::Tracked, Contender::Git, Contender::Restic];
    let group = format!("{}, followed", group(workspace.kind));
    field.ours.follow()?;
    for n in 1..=args.turns {
        eprintln!("{group} {n} of {} …", args.turns);
        let turn = args.turns + n;
        workspace.turn(turn)?;
        for place in 0..ALL.len() {
            let contender = ALL[(place + turn) % ALL.len()];
            disk.settle()?;
            report.cost(&group, contender.name(), field.capture(contender, turn)?);
        }
    }
    field.ours.follow_no_more();
    let [ours, git, restic] = ALL.map(|contender| report.get(&group, contender.name()).wall(0.5));
    report.bar(Bar::times_better(format!("{group}: wall, git / ours"), 30.0, git, ours));
    report.bar(Bar::times_better(format!("{group}: wall, restic / ours"), 100.0, restic, ours));
    report.bar(Bar::at_most(format!("{group}: wall"), 10.0, 1000.0 * ours, "ms"));
    Ok(())
}

/// How many bytes a turn adds. For contenders that copy everything and delete the previous copy, that is the whole
/// copy.
fn grown(contender: Contender, before: u64, after: u64) -> f64 {
    match contender {
        Contender::Cp | Contender::Tar => after as f64,
        Contender::Ours
        | Contender::Tracked
        | Contender::Command
        | Contender::Rsync
        | Contender::Git
        | Contender::Restic
        | Contender::Borg => after as f64 - before as f64,
    }
}

/// How many bytes a turn writes: the transcript, five edits of 120 bytes, three files of 4,000, a page.
fn changed(kind: Kind) -> f64 {
    let page = if kind == Kind::W2 { 4096.0 } else { 0.0 };
    20_000.0 + 5.0 * 120.0 + 3.0 * 4000.0 + page
}

pub(crate) fn judge(kind: Kind, args: &Args, report: &mut Report) {
    let group = group(kind);
    let of = |contender: Contender| report.get(&group, contender.name());
    let (ours, git, restic) = (of(Contender::Ours), of(Contender::Git), of(Contender::Restic));
    let (statx, sync) = (report.get(&group, STATX), report.get(&group, SYNC));
    let mut bars = Vec::new();
    match kind {
        Kind::W1 => {
            bars.push(Bar::times_better("W1 turn: CPU, git / ours", 2.5, git.cpu(0.5), ours.cpu(0.5)));
            bars.push(Bar::at_most_times(
                "W1 turn: CPU, ours / statx walk",
                1.4,
                ours.cpu(0.5),
                statx.cpu(0.5),
            ));
            bars.push(Bar::times_better(
                "W1 turn: wall, restic / ours",
                12.0,
                restic.wall(0.5),
                ours.wall(0.5),
            ));
            if args.ash.is_some() {
                let command = of(Contender::Command).cpu(0.5);
                bars.push(Bar::times_better("W1 turn: CPU, git / command", 1.8, git.cpu(0.5), command));
            }
        }
        Kind::W2 => {
            let (best, peer) = best(report, &group, &Contender::PEERS, |samples| samples.wall(0.5));
            let name = format!("W2 turn: wall, best peer ({peer}) / ours");
            bars.push(Bar::times_better(name, 5.0, best, ours.wall(0.5)));
        }
        Kind::W3 => {
            bars.push(Bar::times_better("W3 turn: wall, git / ours", 10.0, git.wall(0.5), ours.wall(0.5)));
            // The capture waits for the disk: a few syncs, not one for each file.
            bars.push(Bar::at_most_times(
                "W3 turn: wall without CPU, ours / one sync",
                3.0,
                (ours.wall(0.5) - ours.cpu(0.5)).max(0.0),
                sync.wall(0.5),
            ));
        }
    }
    let (best, peer) = best(report, &group, &Contender::DEDUPLICATING, Samples::bytes);
    let bound = if kind == Kind::W2 { 2.0 } else { 3.0 };
    let name = format!("{group}: bytes, best deduplicating ({peer}) / ours");
    bars.push(Bar::times_better(name, bound, best, ours.bytes()));
    bars.into_iter().for_each(|bar| report.bar(bar));
}

fn best(
    report: &Report,
    group: &str,
    among: &[Contender],
    by: impl Fn(&Samples) -> f64,
) -> (f64, &'static str) {
    let found = among.iter().map(|contender| (by(&report.get(group, contender.name())), contender.name()));
    found.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::NAN, "none"))
}
