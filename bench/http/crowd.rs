//! Compares many sessions, made by four clients, with as many bare sandboxes, made by four spawners, in turns.
//! Meanwhile the benchmark requests /health from the server and from a bare axum server.

use crate::{
    bare::Bare,
    floor::{Keep, Line, Spawner},
    report::{Bar, Report},
    server::{Client, http},
};
use anyhow::{Context, Result};
use futures::future::try_join_all;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const CLIENTS: usize = 4;
const PARTS: usize = 4;
/// Upper limit in milliseconds for the CPU time of one task poll, measured between two rests of a worker thread.
const MOST_STRETCH: f64 = 10.0;
const BETWEEN: Duration = Duration::from_millis(2);

pub(crate) async fn measure(client: &Client, line: &Line, crowd: usize, report: &mut Report) -> Result<()> {
    let each = (crowd / CLIENTS / PARTS).max(1);
    let clients: Vec<Client> = (0..CLIENTS).map(|_| client.another()).collect();
    let watch = Watch::start(client)?;
    let (ids, [bare, made]) = make(&clients, line, each, &watch).await?;
    let began = Instant::now();
    let per_client = ids.chunks(ids.len().div_ceil(CLIENTS));
    let turns = clients.iter().zip(per_client.clone());
    watch.look();
    try_join_all(turns.map(|(client, ids)| async move {
        for id in ids {
            client.say(id).await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    watch.look_away();
    report.number("turns per second, 4 clients", ids.len() as f64 / began.elapsed().as_secs_f64());
    let stretch = 1000.0 * client.metric("ash_longest_stretch_seconds").await?;
    report.bar(Bar::at_most(
        "longest stretch of a thread",
        "no task holds it longer",
        "ms",
        (stretch, MOST_STRETCH),
    ));
    judge(report, ids.len(), [bare, made], &watch.stop().await?);
    try_join_all(clients.iter().zip(per_client).map(|(client, ids)| async move {
        for id in ids {
            client.end(id).await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    Ok(())
}

/// The sessions, and how long the bare sandboxes and the sessions took.
async fn make(
    clients: &[Client],
    line: &Line,
    each: usize,
    watch: &Watch,
) -> Result<(Vec<String>, [Duration; 2])> {
    let spawners: Vec<Spawner> = (0..CLIENTS)
        .map(|n| Spawner::new(line, &format!("spawner-{n}"), Keep::All))
        .collect::<Result<_>>()?;
    let (mut ids, mut bare, mut made) = (Vec::new(), Duration::ZERO, Duration::ZERO);
    for _ in 0..PARTS {
        let began = Instant::now();
        spawners.iter().try_for_each(|spawner| spawner.start(each))?;
        tokio::task::block_in_place(|| spawners.iter().try_for_each(|spawner| spawner.wait().map(drop)))?;
        bare += began.elapsed();
        let began = Instant::now();
        watch.look();
        let parts = try_join_all(clients.iter().map(|client| several(client, each))).await?;
        watch.look_away();
        made += began.elapsed();
        ids.extend(parts.into_iter().flatten());
    }
    Ok((ids, [bare, made]))
}

async fn several(client: &Client, count: usize) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(client.create().await?["id"].as_str().context("an id")?.to_owned());
    }
    Ok(ids)
}

fn judge(report: &mut Report, count: usize, [bare, made]: [Duration; 2], health: &[Vec<Duration>; 2]) {
    let rate = |took: Duration| count as f64 / took.as_secs_f64();
    report.number("bare walls per second, 4 spawners", rate(bare));
    report.bar(Bar::at_least(
        "creates per second, 4 clients",
        "60 % of bare walls",
        (rate(made), 0.6 * rate(bare)),
    ));
    for (name, times) in ["health in the crowd", "bare axum in the crowd"].into_iter().zip(health) {
        times.iter().for_each(|time| report.sample(name, *time));
    }
    let [ash, axum] = ["health in the crowd", "bare axum in the crowd"].map(|name| report.p99(name));
    report.bar(Bar::at_most("health p99 in the crowd", "3 · bare axum", "ms", (ash, 3.0 * axum)));
}

/// Requests /health from both servers in turns, and records the times while it is looking.
struct Watch {
    state: Arc<State>,
    task: tokio::task::JoinHandle<Result<()>>,
}

struct State {
    looking: AtomicBool,
    over: AtomicBool,
    times: Mutex<[Vec<Duration>; 2]>,
    bare: Bare,
}

impl Watch {
    fn start(client: &Client) -> Result<Watch> {
        let state = Arc::new(State {
            looking: AtomicBool::new(false),
            over: AtomicBool::new(false),
            times: Mutex::default(),
            bare: Bare::start()?,
        });
        let task = tokio::spawn(ask(state.clone(), client.another()));
        Ok(Watch { state, task })
    }

    fn look(&self) {
        self.state.looking.store(true, Ordering::SeqCst);
    }

    fn look_away(&self) {
        self.state.looking.store(false, Ordering::SeqCst);
    }

    async fn stop(self) -> Result<[Vec<Duration>; 2]> {
        self.state.over.store(true, Ordering::SeqCst);
        self.task.await??;
        Ok(self.state.times.lock().expect("no code panics while it holds this lock").clone())
    }
}

async fn ask(state: Arc<State>, ash: Client) -> Result<()> {
    let http = http();
    let bare = format!("{}/health", state.bare.url);
    while !state.over.load(Ordering::SeqCst) {
        let began = Instant::now();
        ash.health().await?;
        let ours = began.elapsed();
        let began = Instant::now();
        http.get(&bare).send().await?.bytes().await?;
        let theirs = began.elapsed();
        if state.looking.load(Ordering::SeqCst) {
            let mut times = state.times.lock().expect("no code panics while it holds this lock");
            times[0].push(ours);
            times[1].push(theirs);
        }
        tokio::time::sleep(BETWEEN).await;
    }
    Ok(())
}
