//! `kill -9` of the server at random instants of a turn. The seed is printed and can be given as ASH_SEED.

use crate::support::{Client, DEADLINE, Dice, Frame, Server, Sse, eventually};
use reqwest::Method;
use serde_json::json;
use sqlx::{Connection, Row, SqliteConnection, sqlite::SqliteConnectOptions};
use std::{collections::BTreeMap, time::Duration};

/// Enough files that a capture takes a while, so that a kill can hit it.
const BALLAST: &str = "head -c 6000000 /dev/urandom > ballast; for i in $(seq 200); do echo $i > f$i; done";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_a_client_saw_is_lost_and_no_prompt_is_sent_twice() {
    let slow = std::env::var("ASH_SLOW").is_ok_and(|slow| slow == "1");
    let (runs, least) = if slow { (220, 25) } else { (40, 3) };
    let seed = std::env::var("ASH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_0001);
    println!("seed {seed}, {runs} runs");
    let mut dice = Dice(seed);
    let mut phases: BTreeMap<String, u32> = BTreeMap::new();
    let mut server = Server::start().await;
    let mut id = String::new();
    for run in 0..runs {
        if run % 10 == 0 {
            id = server.client().create().await;
            server.client().exec(&id, BALLAST).await;
        }
        let phase = one_run(&mut server, &id, run, &mut dice).await;
        *phases.entry(phase).or_default() += 1;
    }
    println!("killed in phase: {phases:?}");
    for phase in ["queued", "running", "saving", "recorded"] {
        let hit = phases.get(phase).copied().unwrap_or(0);
        assert!(hit >= least, "only {hit} kills while {phase}: {phases:?}");
    }
}

/// Kills the server somewhere in a turn, starts it again, and checks everything. Answers the phase that was hit.
async fn one_run(server: &mut Server, id: &str, run: u64, dice: &mut Dice) -> String {
    let client = server.client();
    let aim = run % 4;
    // A turn that waits needs one before it that runs.
    let before = if aim == 0 { Some(client.send(id, &prompt(run, "before", 40)).await) } else { None };
    let mut stream = client.send(id, &prompt(run, "turn", 8)).await;
    let mut seen = Vec::new();
    match aim {
        0 => {
            seen.extend(stream.next().await);
            pause(dice.below(150)).await;
        }
        1 => {
            seen.extend(stream.until("text_delta").await);
            pause(dice.below(60)).await;
        }
        2 => {
            seen.extend(stream.until("turn_complete").await);
            pause(dice.below(12)).await;
        }
        _ => {
            seen.extend(stream.until("done").await);
            pause(dice.below(10)).await;
        }
    }
    server.kill9();
    seen.extend(drain(&mut stream).await);
    drop(before);
    let turn = seen[0].data["turn"].as_str().expect("a turn").to_owned();
    let phase = phase_of(server, &turn).await;
    server.launch().await;
    check(&server.client(), id, &turn, &seen).await;
    check_once(&server.client(), id, run, aim == 0).await;
    phase
}

fn prompt(run: u64, name: &str, words: usize) -> String {
    format!("run: echo {run}-{name} >> told\nslow 10: {}", vec!["word"; words].join(" "))
}

async fn pause(milliseconds: u64) {
    // The instant of the kill is what is random here; nothing waits for it.
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

/// What had reached us when the connection broke.
async fn drain(stream: &mut Sse) -> Vec<Frame> {
    tokio::time::timeout(DEADLINE, stream.rest()).await.expect("a broken stream ends")
}

async fn phase_of(server: &Server, turn: &str) -> String {
    let options = SqliteConnectOptions::new().filename(server.data.join("ash.db")).busy_timeout(DEADLINE);
    let mut db = SqliteConnection::connect_with(&options).await.expect("the database");
    let row = sqlx::query("SELECT state FROM turns WHERE id = ?")
        .bind(turn)
        .fetch_one(&mut db)
        .await
        .expect("the turn");
    let state: String = row.get(0);
    db.close().await.expect("close");
    if state == "done" { "recorded".to_owned() } else { state }
}

async fn check(client: &Client, id: &str, turn: &str, seen: &[Frame]) {
    let last = seen.last().expect("at least one frame").id.clone();
    // Everything from where the client was, by the cursor it has...
    let mut continued = client.follow(id, &last).await;
    let rest = until_done(&mut continued, turn, seen).await;
    // ...and the whole story from the beginning.
    let mut whole_stream = client.follow(id, "").await;
    let whole = until_done(&mut whole_stream, turn, &[]).await;
    let place = |id: &str| {
        whole.iter().position(|frame| frame.id == id).unwrap_or_else(|| panic!("{id} is not in the log"))
    };
    let mut before = None;
    for frame in seen {
        let at = place(&frame.id);
        assert_eq!(&whole[at], frame, "what was seen is what is stored");
        assert!(before < Some(at), "out of order: {frame:?}");
        before = Some(at);
    }
    assert_eq!(rest, whole[place(&last) + 1..], "the stream goes on right after {last}");
    let mut ids: Vec<&str> = whole.iter().map(|frame| frame.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), whole.len(), "an event is there twice");
    let of_turn: Vec<&Frame> = whole.iter().filter(|frame| frame.data["turn"] == turn).collect();
    let count = |name: &str| of_turn.iter().filter(|frame| frame.event == name).count();
    assert_eq!((count("session_start"), count("turn_started"), count("done")), (1, 1, 1), "{of_turn:#?}");
    assert_eq!(count("turn_continued"), 0, "the turn went on in its shim: it was not sent again");
}

/// Frames up to the turn's `done`; none if it was among those seen.
async fn until_done(stream: &mut Sse, turn: &str, seen: &[Frame]) -> Vec<Frame> {
    let is_done = |frame: &Frame| frame.event == "done" && frame.data["turn"] == turn;
    let mut frames = Vec::new();
    if seen.iter().any(is_done) {
        return frames;
    }
    while let Some(frame) = stream.next().await {
        let done = is_done(&frame);
        frames.push(frame);
        if done {
            return frames;
        }
    }
    panic!("the stream ended before the turn: {frames:#?}");
}

/// Each prompt reached the agent once, and its tool ran once.
async fn check_once(client: &Client, id: &str, run: u64, with_before: bool) {
    let request = client.request(Method::POST, &format!("/api/sessions/{id}/exec"));
    let done =
        crate::support::ok(request.json(&json!({ "command": "cat told" })).send().await.expect("exec")).await;
    let told: Vec<&str> = done["stdout"].as_str().expect("text").lines().collect();
    let mut expected = vec![];
    if with_before {
        expected.push(format!("{run}-before"));
    }
    expected.push(format!("{run}-turn"));
    let mine: Vec<&str> = told.iter().copied().filter(|line| line.starts_with(&format!("{run}-"))).collect();
    assert_eq!(mine, expected);
    eventually("nothing is open", async || (client.session(id).await["openTurns"] == 0).then_some(())).await;
}
