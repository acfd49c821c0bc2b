//! Thousands of connections that send nothing, half a header, or one request; the server has a soft limit of 1,024
//! files.

use crate::{
    held::{Holder, Stop},
    probe::{self, Names},
    process::{self, OpenFiles},
    report::{Bar, Report},
    server::Server,
    stage::Stage,
};
use anyhow::{Context, Result, ensure};
use std::os::unix::process::CommandExt;

const SOFT: u64 = 1024;
/// Connections per holder process.
const EACH: usize = 1000;
/// Upper limit for the memory of all connections together.
const MAX_MB: f64 = 100.0;
const IDLE: Names = Names { health: "/health, without them", turn: "a turn, without them" };
const HELD: Names = Names { health: "/health, silent clients", turn: "a turn, silent clients" };

pub(crate) async fn measure(stage: &Stage, count: usize, report: &mut Report) -> Result<()> {
    let OpenFiles { hard, .. } = OpenFiles::of(std::process::id())?;
    let server = Server::start_with(stage, |command| {
        let files = OpenFiles { soft: SOFT.min(hard), hard };
        // SAFETY: one system call, and no memory is allocated.
        unsafe { command.pre_exec(move || files.set()) };
    })
    .await?;
    let files = OpenFiles::of(server.pid())?;
    ensure!(files.soft == files.hard, "the server did not raise its limit: {files:?}");
    let client = server.client();
    client.deploy().await?;
    let session = client.create().await?;
    let id = session["id"].as_str().context("an id")?;
    probe::work(&client, id, IDLE, report).await?;
    let (before, sockets) = (process::resident(server.pid())?, process::sockets(server.pid())?);
    let mut holders = Vec::new();
    for first in (0..count).step_by(EACH) {
        holders.push(Holder::start(server.address()?, EACH.min(count - first), Stop::Idle, id)?);
    }
    probe::work(&client, id, HELD, report).await?;
    let (with_all, now) = (process::resident(server.pid())?, process::sockets(server.pid())?);
    let open = holders.iter_mut().map(Holder::open).sum::<Result<usize>>()?;
    drop(holders);
    let left = probe::after(&server, before + crate::stalled::LEFT_MB).await?;
    let said = server.log()?.lines().filter(|line| line.contains("ASH_MAX_CONNECTIONS")).count();
    server.stop().await?;
    let each = (with_all - before) * 1000.0 / (now.saturating_sub(sockets)).max(1) as f64;
    report.number("open files, soft limit at the start", SOFT as f64);
    report.number("open files, soft limit raised to", files.soft as f64);
    report.number("silent connections made", count as f64);
    report.number("silent connections still open", open as f64);
    report.number("lines in the log about it", said as f64);
    report.number("before silent connections, RSS MB", before);
    report.number("with silent connections, RSS MB", with_all);
    report.number("after silent connections, RSS MB", left.resident);
    report.number("each of them, KB", each);
    report.bar(Bar::at_most("silent connections", "together", "MB", (with_all - before, MAX_MB)));
    probe::judge(report, (IDLE, HELD), ["/health, silent clients", "a turn, silent clients"]);
    Ok(())
}
