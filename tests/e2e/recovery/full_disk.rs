//! Another process fills the server's disk to the last byte or the last inode while sessions work. Every response stays
//! true, and once there is space everything continues: no answer, checkpoint or row is lost or damaged.

use crate::support::{Client, DEADLINE, Server, as_root, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

const ORDINARY_USER: u32 = 61_006;
/// Longer than any response takes, with space or without.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often the disk is filled.
const ROUNDS: usize = 3;
const PROMISED: &str = "promised";
const UNCLEAR: &str = "unclear";

/// A small file system, so that the test fills no other disk.
struct Disk {
    dir: PathBuf,
    at: PathBuf,
}

impl Disk {
    fn new(megabytes: u64, owner: u32) -> Disk {
        let dir = std::env::temp_dir().join(format!("ash-test-{}", uuid::Uuid::new_v4()));
        let (image, at) = (dir.join("image"), dir.join("disk"));
        fs::create_dir_all(&at).expect("a directory");
        fs::File::create(&image).and_then(|file| file.set_len(megabytes << 20)).expect("an image");
        let disk = Disk { dir, at };
        // No reserve for root, because the server runs as root.
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-N", "8000"]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&disk.at));
        std::os::unix::fs::chown(&disk.at, Some(owner), Some(owner)).expect("given");
        disk
    }

    /// Fills the disk as another process would.
    fn fill(&self, with: Filler) {
        match with {
            Filler::Bytes => {
                let filler = fs::File::options().create(true).append(true).open(self.at.join("filler"));
                let mut file = filler.expect("a file");
                for size in [1 << 20, 4096, 1] {
                    let some = vec![b'x'; size];
                    while file.write_all(&some).is_ok() {}
                }
            }
            Filler::Files => {
                fs::create_dir_all(self.at.join("filler")).expect("a directory");
                let mut all = 0..;
                while all.next().is_some_and(|n| fs::write(self.at.join(format!("filler/{n}")), "").is_ok()) {
                }
            }
        }
    }

    fn free(&self) {
        let filler = self.at.join("filler");
        fs::remove_file(&filler).or_else(|_| fs::remove_dir_all(&filler)).expect("removed");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Shims exit when their directory is gone; until then they keep the file system busy.
        Command::new("umount").arg("-l").arg(&self.at).status().ok();
        fs::remove_dir_all(&self.dir).ok();
    }
}

#[derive(Debug, Clone, Copy)]
enum Filler {
    Bytes,
    Files,
}

fn run(command: &mut Command) {
    let done = command.output().expect("started");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The server drops first, then its disk.
struct Stage {
    server: Server,
    disk: Disk,
}

impl Stage {
    async fn set(owner: u32) -> Stage {
        // Almost no minimum of free space, because this test needs a disk without any.
        Stage::with(owner, &[("ASH_MIN_FREE_MB", "1")]).await
    }

    async fn with(owner: u32, env: &[(&str, &str)]) -> Stage {
        assert!(as_root(), "only root can mount");
        let mut server = Server::prepared_for(owner, env);
        let disk = Disk::new(160, owner);
        server.data = disk.at.join("data");
        server.launch().await;
        Stage { server, disk }
    }

    async fn answers_readers(&self, workers: &[Arc<Worker>], quiet: &str) {
        let client = self.server.client();
        let health = client.request(Method::GET, "/health").timeout(DEADLINE).send().await.expect("health");
        assert!(health.status().is_success(), "{health:?}");
        let read = client.request(Method::GET, &format!("/api/sessions/{quiet}/files/secret")).send().await;
        assert_eq!(read.expect("a file").text().await.expect("text"), "still there");
        for worker in workers {
            client.get(&format!("/api/sessions/{}/events?limit=10", worker.id)).await;
        }
    }

    /// The server dies while the disk is full. It starts again before there is space, or says why it does not.
    async fn dies_meanwhile(&mut self) {
        self.server.kill9();
        let mut child = self.server.command().stderr(Stdio::piped()).spawn().expect("ash serve");
        let info = self.server.data.join("server.json");
        let refused = eventually("it comes back, or says why not", async || {
            let info: Value =
                serde_json::from_slice(&fs::read(&info).unwrap_or_default()).unwrap_or_default();
            let ended = child.try_wait().expect("ours").is_some();
            (ended || info["pid"] == child.id()).then_some(ended)
        })
        .await;
        child.kill().ok();
        let said = child.wait_with_output().expect("ended").stderr;
        let said = String::from_utf8_lossy(&said);
        assert!(!refused || said.contains("No space left"), "{said}");
        self.disk.free();
        self.server.launch().await;
    }

    /// Checks every pack, every byte of it, and every page of the database.
    async fn is_whole(&self) {
        let verify = ["snapshot", "verify", "--read-data", "--repo"];
        let repo = self.server.data.join("repo/default");
        run(self.server.command_of(&verify).arg(&repo));
        let options = SqliteConnectOptions::new().filename(self.server.data.join("ash.db"));
        let mut db = SqliteConnection::connect_with(&options).await.expect("the database");
        let said: String =
            sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut db).await.expect("looked at");
        assert_eq!(said, "ok");
        db.close().await.expect("closed");
    }
}

/// A session that works all the time: every turn adds a line, and a complete turn must survive.
struct Worker {
    id: String,
    promised: Mutex<Vec<usize>>,
    turns: AtomicUsize,
    answers: Mutex<BTreeMap<String, usize>>,
}

impl Worker {
    async fn new(client: &Client) -> Arc<Worker> {
        let id = client.create().await;
        client.say(&id, "write kept: as it was").await;
        Arc::new(Worker {
            id,
            promised: Mutex::default(),
            turns: AtomicUsize::new(0),
            answers: Mutex::default(),
        })
    }

    /// Some of these turns fill their disk themselves.
    async fn turn(&self, client: &Client) {
        let number = self.turns.fetch_add(1, Ordering::Relaxed);
        let content =
            format!("run: head -c 100000 /dev/urandom > blob; sh -c 'echo {number} >> log' && tail -n 1 log");
        let request = client.request(Method::POST, &format!("/api/sessions/{}/messages", self.id));
        let request = request.header("accept", "application/json").timeout(PATIENCE);
        let what = match request.json(&json!({ "content": content })).send().await {
            Ok(answer) => {
                let status = answer.status();
                let said: Value = answer.json().await.unwrap_or_default();
                let written = said["text"] == number.to_string().as_str();
                let why = said["code"].as_str().or(said["error"]["code"].as_str());
                match (status.as_u16(), why) {
                    (200, None) if written && said["checkpoint"].is_u64() => {
                        self.promised.lock().expect("no code panics while it holds this lock").push(number);
                        PROMISED.to_owned()
                    }
                    // The turn's own command got the error that there is no space.
                    (200, None) if !written => "not written".to_owned(),
                    (200, Some("checkpoint_failed")) | (503, Some("disk_full" | "try_again")) => {
                        format!("{} {}", status.as_u16(), why.unwrap_or_default())
                    }
                    // The agent could not even store the prompt.
                    (200, Some("agent_error"))
                        if ["No space left", "no storage space"]
                            .iter()
                            .any(|words| said.to_string().contains(words)) =>
                    {
                        "no response".to_owned()
                    }
                    _ => format!("{UNCLEAR}: {status} {said}"),
                }
            }
            Err(error) if error.is_timeout() => "no answer while it was full".to_owned(),
            Err(_) => "no server".to_owned(),
        };
        *self.answers.lock().expect("no code panics while it holds this lock").entry(what).or_default() += 1;
    }

    fn kept(&self) -> usize {
        self.promised.lock().expect("no code panics while it holds this lock").len()
    }

    /// Turns that failed because their agent could not store the prompt; the client got the error.
    async fn unheard(&self, client: &Client) -> usize {
        let (mut after, mut count) = (0, 0);
        loop {
            let page =
                client.get(&format!("/api/sessions/{}/events?limit=1000&after={after}", self.id)).await;
            let events = page["events"].as_array().expect("a list");
            let Some(last) = events.last() else { return count };
            after = last["sequence"].as_u64().expect("a number");
            let failed = |event: &&Value| {
                event["data"].as_str().is_some_and(|data| {
                    data.contains("turn_ended") && data.contains("cannot write the transcript")
                })
            };
            count += events.iter().filter(failed).count();
        }
    }

    /// Two more turns.
    async fn goes_on(&self) {
        let before = self.kept();
        eventually("turns are answered", async || (self.kept() > before + 1).then_some(())).await;
    }

    fn reported_clearly(&self) {
        let answers = self.answers.lock().expect("no code panics while it holds this lock");
        println!("{answers:#?}");
        assert!(!answers.keys().any(|what| what.starts_with(UNCLEAR)), "{answers:#?}");
    }
}

/// How often the server has reported it.
fn noticed(server: &Server) -> usize {
    let log = server.log();
    ["disk is full", "could not be saved"].iter().map(|words| log.matches(words).count()).sum()
}

async fn attack(owner: u32, with: Filler) {
    let mut stage = Stage::set(owner).await;
    let client = stage.server.client();
    let (workers, quiet) = ([Worker::new(&client).await, Worker::new(&client).await], client.create().await);
    client.say(&quiet, "write secret: still there").await;
    let over = Arc::new(AtomicBool::new(false));
    let url = Arc::new(Mutex::new(client.clone()));
    let tasks = workers.clone().map(|worker| {
        let (over, url) = (over.clone(), url.clone());
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let client = url.lock().expect("no code panics while it holds this lock").clone();
                worker.turn(&client).await;
            }
        })
    });
    for round in 0..ROUNDS {
        for worker in &workers {
            worker.goes_on().await;
        }
        let before = noticed(&stage.server);
        stage.disk.fill(with);
        // Long enough for every part to meet it: the server checks its disk every few seconds.
        eventually("the full disk is reported", async || match with {
            Filler::Bytes => (stage.server.client().get("/health").await["status"] == "full").then_some(()),
            Filler::Files => (noticed(&stage.server) > before).then_some(()),
        })
        .await;
        stage.answers_readers(&workers, &quiet).await;
        if round + 1 == ROUNDS {
            stage.dies_meanwhile().await;
            *url.lock().expect("no code panics while it holds this lock") = stage.server.client();
        } else {
            stage.disk.free();
        }
    }
    for worker in &workers {
        worker.goes_on().await;
    }
    over.store(true, Ordering::Relaxed);
    futures::future::join_all(tasks).await.into_iter().for_each(|done| done.expect("no panic"));
    everything_is_there(&mut stage, &workers, &quiet).await;
}

async fn everything_is_there(stage: &mut Stage, workers: &[Arc<Worker>], quiet: &str) {
    stage.server.stop().await;
    stage.is_whole().await;
    workers.iter().for_each(|worker| worker.reported_clearly());
    // From the checkpoints alone.
    fs::remove_dir_all(stage.server.data.join("live")).expect("removed");
    stage.server.launch().await;
    let client = stage.server.client();
    for worker in workers {
        let unheard = worker.unheard(&client).await;
        let back = client.action(&worker.id, "resume").await["resume"].clone();
        let lost = back["lost"].as_array().expect("a list");
        // The agent remembers the beginning of turns that failed later.
        let known = |lost: &Value| {
            let count =
                lost.as_str().and_then(|lost| lost.split_once(" of ")).map(|(count, _)| count.parse());
            matches!(count, Some(Ok(count)) if (1..=unheard).contains(&count))
        };
        assert!(lost.iter().all(known), "{unheard} turns could not be remembered: {back}");
        let log = client.exec(&worker.id, "cat kept log").await;
        let log = log["stdout"].as_str().expect("text");
        let lines: Vec<usize> =
            log.trim_start_matches("as it was").lines().filter_map(|line| line.trim().parse().ok()).collect();
        let lost: Vec<usize> = { worker.promised.lock().expect("no code panics while it holds this lock") }
            .iter()
            .filter(|n| !lines.contains(n))
            .copied()
            .collect();
        assert!(log.starts_with("as it was") && lost.is_empty(), "{lost:?} are not in {log}");
        assert!(client.text(&worker.id, "hello").await.contains("This is turn"));
    }
    assert_eq!(client.text(quiet, "read secret").await, "still there");
    assert!(!stage.server.log().contains("panicked"), "{}", stage.server.log());
}

/// Without a minimum of free space the server does not poll, and only a failed write reveals the full disk.
#[tokio::test]
async fn as_root_a_full_disk_is_noticed_by_the_write_that_fails() {
    let mut stage = Stage::with(0, &[("ASH_MIN_FREE_MB", "0")]).await;
    let client = stage.server.client();
    let id = client.create().await;
    client.say(&id, "write kept: as it was").await;
    stage.disk.fill(Filler::Bytes);
    let request = client.request(Method::POST, &format!("/api/sessions/{id}/messages"));
    let request = request.header("accept", "application/json").timeout(PATIENCE);
    // The result does not matter, as long as the agent tries to write the file.
    request.json(&json!({ "content": "write more: than there is" })).send().await.ok();
    let health = client.get("/health").await;
    assert_eq!((&health["status"], &health["freeBytes"]), (&json!("full"), &json!(0)), "{health}");
    let (status, refused) =
        client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "tester" }))).await;
    assert_eq!((status.as_u16(), &refused["code"]), (503, &json!("disk_full")), "{refused}");
    stage.disk.free();
    eventually("it takes writes again", async || {
        (client.get("/health").await["status"] == "ok").then_some(())
    })
    .await;
    assert_eq!(client.text(&id, "read kept").await, "as it was");
    stage.server.stop().await;
}

#[tokio::test]
async fn slowly_as_root_a_disk_that_fills_again_and_again_loses_nothing() {
    attack(0, Filler::Bytes).await;
}

#[tokio::test]
async fn as_root_a_disk_without_room_for_another_file_loses_nothing() {
    attack(0, Filler::Files).await;
}

#[tokio::test]
async fn as_root_the_disk_of_an_ordinary_users_server_may_be_full_too() {
    attack(ORDINARY_USER, Filler::Bytes).await;
}
