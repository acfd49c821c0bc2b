//! `kill -9` of the server in every phase of a turn, and at random instants. The seed is printed; ASH_SEED sets it.

use crate::support::{Client, DEADLINE, Dice, Frame, Point, Server, Sse, eventually, let_go};
use reqwest::Method;
use serde_json::json;
use sqlx::{Connection, Row, SqliteConnection, sqlite::SqliteConnectOptions};
use std::time::Duration;

/// Enough files for a slow capture, so that a kill can hit it.
const BALLAST: &str = "head -c 6000000 /dev/urandom > ballast; for i in $(seq 200); do echo $i > f$i; done";

/// The moments at which the server dies, and the phase in the database then.
const PHASES: [(Moment, &str); 6] = [
    (Moment::Queued, "queued"),
    (Moment::Running, "running"),
    (Moment::Save("save.frozen"), "saving"),
    (Moment::Save("save.captured"), "saving"),
    (Moment::Save("save.recorded"), "recorded"),
    (Moment::Done, "recorded"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Another turn runs.
    Queued,
    Running,
    /// At a fail point of the capture.
    Save(&'static str),
    /// The client has received it.
    Done,
    /// This many milliseconds after an event of the stream: any phase may be hit.
    After(&'static str, u64),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_a_client_saw_is_lost_and_no_prompt_is_sent_twice() {
    let mut server = Server::start().await;
    let id = server.client().create().await;
    server.client().exec(&id, BALLAST).await;
    for (run, (moment, expected)) in PHASES.into_iter().enumerate() {
        let phase = one_run(&mut server, &id, run as u64, moment).await;
        assert_eq!(phase, expected, "{moment:?}");
    }
}

/// The guarantees of every phase hold at every instant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_sent_twice_at_random_instants() {
    let slow = std::env::var("ASH_SLOW").is_ok_and(|slow| slow == "1");
    let runs = if slow { 220 } else { 12 };
    let seed = std::env::var("ASH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_0001);
    println!("seed {seed}, {runs} runs");
    let mut dice = Dice(seed);
    let mut server = Server::start().await;
    let mut id = String::new();
    for run in 0..runs {
        if run % 10 == 0 {
            id = server.client().create().await;
            server.client().exec(&id, BALLAST).await;
        }
        let (event, most) = [("session_start", 150), ("text_delta", 60), ("turn_complete", 12), ("done", 10)]
            [run as usize % 4];
        let moment = Moment::After(event, dice.below(most));
        println!("{moment:?}: {}", one_run(&mut server, &id, run, moment).await);
    }
}

/// Kills the server at some moment of a turn, starts it again, and checks everything. Returns the phase that was hit.
async fn one_run(server: &mut Server, id: &str, run: u64, moment: Moment) -> String {
    let client = server.client();
    let live = server.live(id).await;
    // A waiting turn needs a running one before it.
    let held = format!("hold go-{run}");
    let before = match moment {
        Moment::Queued => Some(client.send(id, &prompt(run, "before", &held)).await),
        Moment::Running | Moment::Save(_) | Moment::Done | Moment::After(..) => None,
    };
    if let Moment::Save(point) = moment {
        server.arm(point, Point::Abort);
    }
    let pace = if moment == Moment::Running { &held } else { "slow 10" };
    let mut stream = client.send(id, &prompt(run, "turn", pace)).await;
    let mut seen = Vec::new();
    match moment {
        Moment::Queued => seen.extend(stream.next().await),
        Moment::Running => seen.extend(stream.until("text_delta").await),
        Moment::Save(point) => server.died_at(point).await,
        Moment::Done => seen.extend(stream.until("done").await),
        Moment::After(event, milliseconds) => {
            seen.extend(stream.until(event).await);
            // The sleep is the random instant of the kill; no check depends on it.
            tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        }
    }
    server.kill9();
    seen.extend(drain(&mut stream).await);
    let with_before = before.is_some();
    drop(before);
    let turn = seen[0].data["turn"].as_str().expect("a turn").to_owned();
    let phase = phase_of(server, &turn).await;
    let_go(&live, &format!("go-{run}"));
    server.launch().await;
    check(&server.client(), id, &turn, &seen).await;
    check_once(&server.client(), id, run, with_before).await;
    phase
}

fn prompt(run: u64, name: &str, pace: &str) -> String {
    format!("run: echo {run}-{name} >> told\n{pace}: {}", ["word"; 8].join(" "))
}

/// The frames that arrived before the connection broke.
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
    // Everything after the client's position, by its cursor...
    let mut continued = client.follow(id, &last).await;
    let rest = until_done(&mut continued, turn, seen).await;
    // ...and the complete stream from the beginning.
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
