//! A client that works while other clients hold their connections open.

use crate::{
    process,
    report::{Bar, Report},
    server::{Client, Server},
};
use anyhow::Result;
use std::time::{Duration, Instant};

/// Requests of each kind that the working client sends.
pub(crate) const REQUESTS: usize = 200;
const TURNS: usize = 40;
/// How long the server may take to give memory back.
const PATIENCE: Duration = Duration::from_secs(60);

/// The names of the client's samples.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) health: &'static str,
    pub(crate) turn: &'static str,
}

/// Sends requests of two kinds in turn. The server must answer each of them.
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

/// How much memory the server still holds.
pub(crate) struct Left {
    pub(crate) resident: f64,
    pub(crate) took: Duration,
}

/// Waits until the server holds at most `most` megabytes, up to `PATIENCE`.
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

/// Held connections may at most double the latency of the working client.
pub(crate) fn judge(report: &mut Report, (idle, held): (Names, Names), bars: [&'static str; 2]) {
    let pairs = [(idle.health, held.health), (idle.turn, held.turn)];
    for (name, (idle, held)) in bars.into_iter().zip(pairs) {
        let (found, alone) = (report.median(held), report.median(idle));
        report.bar(Bar::at_most(name, "2 times as long as alone", "ms", (found, 2.0 * alone)));
    }
}
