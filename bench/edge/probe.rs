//! A client that works while others do not let go.

use crate::{
    process,
    report::{Bar, Report},
    server::{Client, Server},
};
use anyhow::Result;
use std::time::{Duration, Instant};

/// Of one kind, by a client that works.
pub(crate) const REQUESTS: usize = 200;
const TURNS: usize = 40;
/// For memory to be given back.
const PATIENCE: Duration = Duration::from_secs(60);

/// Names of its samples.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) health: &'static str,
    pub(crate) turn: &'static str,
}

/// Requests of two kinds, in turn. Each of them must be answered.
pub(crate) async fn work(client: &Client, session: &str, names: Names, report: &mut Report) -> Result<()> {
    for number in 0..REQUESTS {
        report.sample(names.health, timed(client.health()).await?);
        if number % (REQUESTS / TURNS) == 0 {
            report.sample(names.turn, timed(client.say(session)).await?);
        }
    }
    Ok(())
}

async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<Duration> {
    let began = Instant::now();
    work.await?;
    Ok(began.elapsed())
}

/// How much is left of what the server had.
pub(crate) struct Left {
    pub(crate) resident: f64,
    pub(crate) took: Duration,
}

/// Waits until the server has no more than this, for as long as it may take to give memory back.
pub(crate) async fn after(server: &Server, most: f64) -> Result<Left> {
    let began = Instant::now();
    loop {
        let (resident, took) = (process::resident(server.pid())?, began.elapsed());
        if resident <= most || took >= PATIENCE {
            return Ok(Left { resident, took });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Who works is delayed, at most by as much again.
pub(crate) fn judge(report: &mut Report, (idle, held): (Names, Names), bars: [&'static str; 2]) {
    let pairs = [(idle.health, held.health), (idle.turn, held.turn)];
    for (name, (idle, held)) in bars.into_iter().zip(pairs) {
        let (found, alone) = (report.median(held), report.median(idle));
        report.bar(Bar::at_most(name, "2 times as long as alone", "ms", (found, 2.0 * alone)));
    }
}
