//! Measures the steps of a session's life repeatedly, and the machine's own costs between them.

use crate::{
    floor::{Commits, Line, Walls},
    report::{Bar, Report},
    server::Client,
    stage::Stage,
};
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

pub(crate) async fn measure(client: &Client, line: &Line, stage: &Stage, report: &mut Report) -> Result<()> {
    let mut floor = (Walls::new(line)?, Commits::open(stage).await?);
    // An unmeasured round warms up connections, caches and prepared statements.
    round(client, &mut floor, &mut Report::new(1)?).await?;
    for _ in 0..report.samples() {
        round(client, &mut floor, report).await?;
    }
    judge(report)
}

async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<(T, Duration)> {
    let began = Instant::now();
    let value = work.await?;
    Ok((value, began.elapsed()))
}

async fn round(client: &Client, (walls, commits): &mut (Walls, Commits), report: &mut Report) -> Result<()> {
    report.sample("F1 walls + agent", walls.time().await?);
    report.sample("F2 commit", commits.time().await?);
    report.sample("F3 health", timed(client.health()).await?.1);
    let (session, took) = timed(client.create()).await?;
    report.sample("create", took);
    let id = session["id"].as_str().context("an id")?.to_owned();
    report.sample("message", client.say(&id).await?);
    // A file for the checkpoint to capture: a checkpoint without changes is not counted.
    client.exec(&id, "date +%N > note").await?;
    let before = captures(client).await?;
    report.sample("pause", timed(client.act(&id, "pause")).await?.1);
    report.sample("capture in pause", captures(client).await?.saturating_sub(before));
    report.sample("warm resume", timed(client.resume(&id, "warm")).await?.1);
    client.act(&id, "stop").await?;
    report.sample("cold resume", timed(client.resume(&id, "cold")).await?.1);
    client.end(&id).await
}

/// Total time of captures so far.
async fn captures(client: &Client) -> Result<Duration> {
    let metrics = client.text("/metrics").await?;
    let sum = metrics.lines().find_map(|line| line.strip_prefix("ash_checkpoint_seconds_sum ")?.parse().ok());
    Ok(Duration::from_secs_f64(sum.context("ash_checkpoint_seconds_sum in /metrics")?))
}

fn judge(report: &mut Report) -> Result<()> {
    let [f1, f2, f3] = ["F1 walls + agent", "F2 commit", "F3 health"].map(|name| report.median(name));
    let capture = report.median("capture in pause");
    for (name, rule, most) in [
        ("create", "2·F1 + 4·F2", 2.0 * f1 + 4.0 * f2),
        ("cold resume", "2.5·F1 + 4·F2", 2.5 * f1 + 4.0 * f2),
        ("warm resume", "3·F2 + F3", 3.0 * f2 + f3),
        ("pause", "3·F2 + F3 + capture", 3.0 * f2 + f3 + capture),
        ("message", "2·F2 + 2·F3", 2.0 * f2 + 2.0 * f3),
    ] {
        let found = report.median(name);
        report.bar(Bar::at_most(name, rule, "ms", (found, most)));
    }
    Ok(())
}
