//! Upkeep by the server: clock jumps, dead sandboxes, interrupted collections, and reports on files that no checkpoint
//! holds.

use crate::support::{Server, as_root, eventually, is_alive, signal};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{fs, io::Write, path::PathBuf, process::Output};

const DAY: i64 = 86_400_000;
const HOUR: i64 = 3_600_000;

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot").trim().to_owned()
}

/// Milliseconds since the machine booted.
fn since_boot() -> i64 {
    let text = fs::read_to_string("/proc/uptime").expect("a number");
    let seconds: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).expect("seconds");
    (seconds * 1000.0) as i64
}

fn ago(ms: i64) -> String {
    let now = jiff::Timestamp::now().as_millisecond();
    format!("{:.3}", jiff::Timestamp::from_millisecond(now - ms).expect("a time"))
}

#[tokio::test]
async fn a_clock_that_jumped_makes_nothing_old_before_it_has_stayed_there_for_an_hour() {
    let mut server = Server::with(&[("ASH_GC_EVERY", "1")]).await;
    server.client().deploy("tester").await;
    server.stop().await;
    // The file of a server whose clock then jumps: the last trusted time is 30 days behind.
    let file = server.data.join("clock.json");
    let trusted = json!({ "boot": boot(), "trusted": ago(30 * DAY), "sinceBoot": since_boot() });
    fs::write(&file, trusted.to_string()).expect("written");
    server.launch().await;
    let client = server.client();
    let made =
        client.post("/api/sessions", json!({ "agent": "tester", "sessionId": "short", "ttl": 1 })).await;
    let expires = made["session"]["expiresAt"].as_str().expect("a time").to_owned();
    eventually("its time is over", async || (ago(0) > expires).then_some(())).await;
    let told = eventually("the jump is known", async || {
        let trouble = client.get("/health").await["trouble"].clone();
        trouble.as_array()?.iter().find(|one| one["code"] == "clock_jumped").cloned()
    })
    .await;
    assert!(told["error"].as_str().is_some_and(|text| text.contains("jumped by about 7")), "{told}");
    assert_eq!(client.get("/api/retention").await["sessions"], json!([]));
    assert_eq!(client.status("short").await, "active");
    server.stop().await;
    // The file after the clock ran for another hour.
    let mut trusted: Value = serde_json::from_slice(&fs::read(&file).expect("kept")).expect("json");
    assert_eq!(trusted["boot"], boot().as_str(), "{trusted}");
    trusted["jump"]["sinceBoot"] = json!(since_boot() - HOUR);
    fs::write(&file, trusted.to_string()).expect("written");
    server.launch().await;
    let client = server.client();
    eventually("it is gone", async || {
        let status = client.ask(Method::GET, "/api/sessions/short", None).await.0;
        (status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
    assert_eq!(client.get("/health").await.get("degraded"), None);
}

#[tokio::test]
async fn content_that_a_checkpoint_cannot_hold_is_lost_and_named() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "run: mkfifo pipe; echo kept > file").await;
    client.action(&id, "stop").await;
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!((&receipt["from"], &receipt["lost"]), (&json!("live"), &json!([])), "it is there: {receipt}");
    server.stop().await;
    fs::remove_dir_all(server.data.join("live")).expect("removed");
    server.launch().await;
    let client = server.client();
    let receipt = client.action(&id, "resume").await["resume"].clone();
    let lost = receipt["lost"].as_array().expect("a list");
    assert!(
        lost.len() == 1 && lost[0].as_str().is_some_and(|lost| lost.starts_with("workspace/pipe (a FIFO)")),
        "{receipt}"
    );
    assert_eq!(receipt["verified"], false);
    // Reported once: the next checkpoint has everything.
    client.say(&id, "run: cat file").await;
    server.stop().await;
    fs::remove_dir_all(server.data.join("live")).expect("removed");
    server.launch().await;
    let receipt = server.client().action(&id, "resume").await["resume"].clone();
    assert_eq!((&receipt["lost"], &receipt["verified"]), (&json!([]), &json!(true)), "{receipt}");
}

#[tokio::test]
async fn as_root_empty_control_groups_of_dead_sandboxes_go_at_the_next_start() {
    assert!(as_root(), "control groups are root's");
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "hello").await;
    client.action(&id, "pause").await;
    let groups = server.note(&id).await["cgroup"].clone();
    let groups: Vec<PathBuf> =
        groups.as_object().expect("groups").values().filter_map(Value::as_str).map(PathBuf::from).collect();
    assert!(!groups.is_empty());
    let processes = server.processes(&id).await;
    server.kill9();
    signal(processes.shim, libc::SIGKILL);
    eventually("nothing runs", async || {
        (!is_alive(processes.shim) && !is_alive(processes.init)).then_some(())
    })
    .await;
    let there = || groups.iter().filter(|dir| dir.exists()).count();
    assert_eq!(there(), groups.len(), "no server was there to remove them");
    server.launch().await;
    assert_eq!(there(), 0, "before a resume");
    assert!(server.client().text(&id, "still there?").await.contains("turn 2"));
}

fn verify(server: &Server) -> Output {
    let repo = server.data.join("repo/default");
    server.command_of(&["snapshot", "verify", "--read-data", "--repo"]).arg(repo).output().expect("ash")
}

#[tokio::test]
async fn a_collection_that_was_killed_leaves_nothing_that_is_called_damaged() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    for n in 0..3 {
        client.say(&id, &format!("write file: {n}")).await;
    }
    server.stop().await;
    let repo = server.data.join("repo/default");
    let trees = trees_of(&server);
    assert!(trees.len() >= 3, "{trees:?}");
    assert!(verify(&server).status.success());
    // The state of a collection of a purged session that dies after its first removal.
    let forgotten: String = trees.iter().map(|tree| format!("{tree}\n")).collect();
    fs::write(repo.join("forgotten"), forgotten).expect("written");
    let pack = &trees[1][64..];
    let inventory = fs::File::options().create(true).append(true).open(repo.join("inventory"));
    inventory.and_then(|mut list| writeln!(list, "gone {pack}")).expect("written");
    fs::remove_file(repo.join(format!("{pack}.pack"))).expect("removed");
    let said = verify(&server);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
    // The same removal without the tombstone is damage.
    fs::remove_file(repo.join("forgotten")).expect("removed");
    assert_eq!(verify(&server).status.code(), Some(8));
}

/// The checkpoints' snapshots, oldest first.
fn trees_of(server: &Server) -> Vec<String> {
    let repo = server.data.join("repo/default");
    let listed =
        server.command_of(&["snapshot", "list", "--json", "--repo"]).arg(repo).output().expect("ash");
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("json");
    let all = listed["snapshots"].as_array().expect("a list").iter().rev();
    all.filter(|one| one["checkpoint"].is_u64())
        .filter_map(|one| one["tree"].as_str().map(str::to_owned))
        .collect()
}
