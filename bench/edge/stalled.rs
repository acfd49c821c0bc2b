//! Clients that stop in the middle of downloading a large file, and clients that stop in the middle of uploading one.

use crate::{
    held::{Holder, Stop},
    probe::{self, Names},
    process,
    report::{Bar, Report},
    server::Server,
    stage::Stage,
};
use anyhow::{Context, Result};

/// Upper limit for the memory of all stopped clients together.
const MAX_MB: f64 = 100.0;
/// Upper limit for the memory that remains after they disconnect.
pub(crate) const LEFT_MB: f64 = 10.0;
const HELD: Names = Names { health: "/health, stalled clients", turn: "a turn, stalled clients" };
const IDLE: Names = Names { health: "/health, before them", turn: "a turn, before them" };

pub(crate) async fn measure(stage: &Stage, each: usize, report: &mut Report) -> Result<()> {
    let server = Server::start(stage).await?;
    let client = server.client();
    client.deploy().await?;
    let session = client.create().await?;
    let id = session["id"].as_str().context("an id")?;
    client.exec(id, "truncate -s 100M big").await?;
    probe::work(&client, id, IDLE, report).await?;
    let before = process::resident(server.pid())?;
    process::forget_peak(server.pid())?;
    let holders = [Stop::Reading, Stop::Sending].map(|stop| Holder::start(server.address()?, each, stop, id));
    let [reading, sending] = holders;
    let held = (reading?, sending?);
    probe::work(&client, id, HELD, report).await?;
    let peak = process::peak(server.pid())?;
    drop(held);
    let left = probe::after(&server, before + LEFT_MB).await?;
    server.stop().await?;
    report.number("before stalled clients, RSS MB", before);
    report.number("peak with stalled clients, RSS MB", peak);
    report.number("after stalled clients, RSS MB", left.resident);
    report.number("until then, s", left.took.as_secs_f64());
    report.bar(Bar::at_most("stalled clients, peak", "together", "MB", (peak - before, MAX_MB)));
    report.bar(Bar::at_most("left of that", "given back", "MB", (left.resident - before, LEFT_MB)));
    probe::judge(report, (IDLE, HELD), ["/health, stalled clients", "a turn, stalled clients"]);
    Ok(())
}
