//! Checkpoints over time: damaged ones, those that retention removes, and sealed ones.

use crate::support::{Client, KEY, Point, Server, ash, eventually};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

fn repo(server: &Server) -> PathBuf {
    server.data.join("repo/default")
}

/// `ash snapshot` on the tenant's repository, for a user who has only that.
fn snapshot(server: &Server, args: &[&str]) -> (i32, Value) {
    let mut command = std::process::Command::new(ash());
    command.env_clear().env("HOME", &server.dir).args(["snapshot", "--json", "--repo"]).arg(repo(server));
    let output = command.args(args).output().expect("ash");
    let told = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().unwrap_or(-1), told)
}

/// The session's packs, newest first.
fn packs(server: &Server, id: &str) -> Vec<PathBuf> {
    let listed = snapshot(server, &["list"]).1["snapshots"].as_array().expect("a list").clone();
    let mut own: Vec<&Value> = listed.iter().filter(|one| one["session"] == id).collect();
    own.sort_by_key(|one| std::cmp::Reverse(one["checkpoint"].as_u64()));
    own.iter().map(|one| repo(server).join(format!("{}.pack", one["id"].as_str().expect("an id")))).collect()
}

/// Files come first in a pack; its metadata is at the end.
fn spoil(pack: &Path) {
    let file = fs::File::options().read(true).write(true).open(pack).expect("a pack");
    let size = file.metadata().expect("a size").len();
    for at in (10..size / 2).step_by(64) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 0x20], at).expect("write");
    }
}

/// Stops the server and removes the live tree, as on another machine.
async fn move_away(server: &mut Server, id: &str) {
    let live = server.live(id).await;
    server.stop().await;
    fs::remove_dir_all(live).ok();
}

async fn turns(client: &Client, id: &str, numbers: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    let mut checkpoints = Vec::new();
    for n in numbers {
        let work = format!("run: echo {n} > n; head -c 100000 /dev/urandom > blob");
        let done = client.say(id, &work).await;
        checkpoints.push(done["checkpoint"].as_u64().expect("a checkpoint"));
    }
    checkpoints
}

#[tokio::test]
async fn a_damaged_checkpoint_is_reported_and_the_newest_whole_one_comes_back() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let numbers = turns(&client, &id, 1..=3).await;
    move_away(&mut server, &id).await;
    spoil(&packs(&server, &id)[0]);
    let (code, told) = snapshot(&server, &["verify", "--read-data"]);
    assert_eq!(
        (code, &told["hurt"][0]["session"], &told["hurt"][0]["checkpoint"]),
        (8, &json!(id), &json!(numbers[2]))
    );
    assert_eq!(told["hurt"][0]["intact"]["checkpoint"], numbers[1]);
    server.launch().await;
    let client = server.client();
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!(
        (&receipt["from"], &receipt["checkpoint"], &receipt["verified"]),
        (&json!("checkpoint"), &json!(numbers[1]), &json!(false)),
        "{receipt}"
    );
    let lost = receipt["lost"].to_string();
    let damaged = format!("checkpoint {}, which is damaged", numbers[2]);
    assert!(lost.contains(&damaged) && lost.contains("1 of 3 turns"), "{lost}");
    let events = client.get(&format!("/api/sessions/{id}/events?limit=1000")).await.to_string();
    assert!(events.contains(&damaged), "it is an event, too");
    assert_eq!(client.text(&id, "read n").await, "2\n");
    let numbers = turns(&client, &id, 4..=4).await;
    // From there on everything works as usual.
    move_away(&mut server, &id).await;
    server.launch().await;
    let client = server.client();
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!(receipt["checkpoint"], numbers[0]);
    assert!(!receipt["lost"].to_string().contains("damaged"), "{receipt}");
    assert_eq!(client.text(&id, "read n").await, "4\n");
}

#[tokio::test]
async fn with_nothing_whole_a_session_says_so_and_stays_readable() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    turns(&client, &id, 1..=2).await;
    move_away(&mut server, &id).await;
    packs(&server, &id).iter().for_each(|pack| spoil(pack));
    server.launch().await;
    let client = server.client();
    let (status, problem) = client.ask(Method::POST, &format!("/api/sessions/{id}/resume"), None).await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("checkpoint_damaged")));
    assert!(
        problem["error"].as_str().is_some_and(|words| words.contains("ash snapshot verify")),
        "{problem}"
    );
    assert_eq!(client.status(&id).await, "error");
    let messages = client.get(&format!("/api/sessions/{id}/messages")).await;
    assert!(messages["messages"].as_array().is_some_and(|messages| messages.len() >= 4), "{messages}");
}

fn size(server: &Server) -> u64 {
    let entries = fs::read_dir(repo(server)).expect("a repository").flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|is| is.len()).sum()
}

async fn removed(client: &Client, id: &str) -> Vec<u64> {
    let all = client.get(&format!("/api/sessions/{id}/checkpoints?limit=1000")).await;
    let gone = all["checkpoints"].as_array().expect("a list").iter().filter(|one| one["removed"] == true);
    gone.filter_map(|one| one["number"].as_u64()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoints_that_the_rules_drop_go_and_everything_else_stays_whole() {
    let mut server = Server::with(&[("ASH_GC_EVERY", "0")]).await;
    let client = server.client();
    let id = client.create().await;
    let mut numbers = turns(&client, &id, 1..=10).await;
    let fork = client.post(&format!("/api/sessions/{id}/fork"), json!({})).await;
    let fork = fork["session"]["id"].as_str().expect("an id").to_owned();
    numbers.extend(turns(&client, &id, 11..=30).await);
    server.stop().await;
    let before = size(&server);
    let rules =
        [("KEEP_LAST", "4"), ("KEEP_HOURLY", "0"), ("KEEP_DAILY", "0"), ("GC_EVERY", "1"), ("GC_GRACE", "3")];
    rules.iter().for_each(|(name, value)| server.set(&format!("ASH_{name}"), value));
    server.launch().await;
    let client = server.client();
    eventually("the rules are applied", async || (!removed(&client, &id).await.is_empty()).then_some(()))
        .await;
    server.crash_and_start().await;
    let client = server.client();
    eventually("the repository is smaller", async || (size(&server) * 2 < before).then_some(())).await;
    let gone = removed(&client, &id).await;
    assert!(
        gone.contains(&numbers[5]) && !gone.iter().any(|number| numbers[26..].contains(number)),
        "{gone:?}"
    );
    for (path, method) in [("rewind", Method::POST), ("fork", Method::POST)] {
        let body = Some(json!({ "checkpoint": numbers[5] }));
        let (status, problem) = client.ask(method, &format!("/api/sessions/{id}/{path}"), body).await;
        assert_eq!((status, &problem["code"]), (StatusCode::GONE, &json!("checkpoint_removed")), "{path}");
    }
    assert_eq!(client.text(&fork, "read n").await, "10\n");
    for (number, n) in [(numbers[27], 28), (numbers[29], 30)] {
        client.post(&format!("/api/sessions/{id}/rewind"), json!({ "checkpoint": number })).await;
        assert_eq!(client.text(&id, "read n").await, format!("{n}\n"));
    }
    let metrics =
        client.http.get(format!("{}/metrics", client.url)).bearer_auth(KEY).send().await.expect("metrics");
    let metrics = metrics.text().await.expect("text");
    assert!(metrics.contains("ash_gc_runs_total") && metrics.contains("ash_repository_bytes"), "{metrics}");
    assert_eq!(snapshot(&server, &["gc", "--keep-last", "1"]).0, 5, "the server collects by itself");
    move_away(&mut server, &id).await;
    let (code, told) = snapshot(&server, &["verify", "--read-data"]);
    assert_eq!(code, 0, "{told:#}");
    let sessions = snapshot(&server, &["sessions"]).1["sessions"].as_array().expect("a list").clone();
    let own = sessions.iter().find(|one| one["session"] == id).expect("the session");
    assert!(own["turns"].as_u64().is_some_and(|turns| turns >= 30), "the history is whole: {own}");
    server.launch().await;
    let client = server.client();
    assert_eq!(client.action(&id, "resume").await["resume"]["verified"], true);
}

#[tokio::test]
async fn sealed_snapshots_tell_nothing_and_need_their_key() {
    let mut server = Server::prepare(&[]);
    let keys = server.dir.join("keys");
    server.set("ASH_SNAPSHOT_KEYS", keys.to_str().expect("a path"));
    server.launch().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "run: echo words-nobody-may-read > secret-name").await;
    move_away(&mut server, &id).await;
    for entry in fs::read_dir(repo(&server)).expect("a repository").flatten() {
        let bytes = fs::read(entry.path()).expect("a file");
        for word in ["words-nobody-may-read", "secret-name", "tester", id.as_str()] {
            assert!(!bytes.windows(word.len()).any(|part| part == word.as_bytes()), "{word} in {entry:?}");
        }
    }
    assert_eq!(snapshot(&server, &["list"]).0, 3);
    let (key, aside) = (keys.join("default.key"), keys.join("aside"));
    assert_eq!(snapshot(&server, &["sessions", "--key-file", key.to_str().expect("a path")]).0, 0);
    fs::rename(&key, &aside).expect("moved");
    server.launch().await;
    let client = server.client();
    let (status, problem) = client.ask(Method::POST, &format!("/api/sessions/{id}/resume"), None).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("snapshot_key_missing"))
    );
    assert!(problem["error"].as_str().is_some_and(|words| words.contains("default.key")), "{problem}");
    fs::rename(&aside, &key).expect("moved");
    assert_eq!(client.action(&id, "resume").await["resume"]["verified"], true);
    assert_eq!(client.text(&id, "read secret-name").await, "words-nobody-may-read\n");
}

/// Even with the shortest grace: between pack and row only the process that writes it knows the checkpoint.
#[tokio::test]
async fn no_collection_takes_a_checkpoint_that_is_being_recorded() {
    let server = Server::with(&[("ASH_GC_EVERY", "1"), ("ASH_GC_GRACE", "0")]).await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "write one.txt: 1").await;
    server.arm("save.shot", Point::Pause);
    let mut stream = client.send(&id, "write two.txt: 2").await;
    server.reached("save.shot").await;
    let collections = || server.log().matches(" collected ").count();
    let before = collections();
    // The running collection may have started before.
    eventually("two collections", async || (collections() >= before + 2).then_some(())).await;
    server.release("save.shot");
    assert_eq!(stream.until("done").await.last().expect("the end").data["status"], "done");
    let made = client.get(&format!("/api/sessions/{id}/checkpoints")).await;
    let newest = made["checkpoints"][0]["number"].as_u64().expect("a number");
    let path = format!("/api/sessions/{id}/files/two.txt?checkpoint={newest}");
    let read = client.request(Method::GET, &path).send().await.expect("an answer");
    assert_eq!((read.status().as_u16(), read.text().await.expect("a text")), (200, "2".to_owned()));
}
