//! Attempts to exceed resource limits. Every bomb runs twice: without its limit it must do its harm, as far as that is
//! safe here; with its limit it must be stopped, and the session must say by which limit. Meanwhile the server reports
//! itself healthy, and another session answers.

use super::{Beside, program, put};
use crate::support::{Client, DEADLINE, Frame, Server, as_root, cmdline, eventually, in_docker, pids};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const ORDINARY_USER: u32 = 61_007;
/// The grace period for turns that ignore an interrupt.
pub(super) const IMPATIENT: [(&str, &str); 1] = [("ASH_INTERRUPT_GRACE", "1")];

#[derive(Debug)]
pub(super) struct Bomb {
    pub(super) name: &'static str,
    /// The command without the limit, and the output that proves the harm.
    pub(super) harm: (&'static str, &'static str),
    /// The command with the limit.
    pub(super) words: &'static str,
    pub(super) limits: Value,
    pub(super) cut: Cut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// The turn ends, for this reason.
    Turn(&'static str),
    /// The sandbox ends, and the session says why.
    Sandbox(&'static str),
    /// Only the bomb fails or is killed; the process that started it continues.
    Itself,
}

/// Some limits are fixed sizes, so the harm is done outside.
const SCRATCH: [(&str, &str, &str); 2] =
    [("bytes in /tmp", "/tmp", "1100"), ("bytes in shared memory", "/dev/shm", "300")];

fn bombs(counts_processors: bool) -> Vec<Bomb> {
    let bomb = |name, harm, words, limits, cut| Bomb { name, harm, words, limits, cut };
    let full = Cut::Sandbox("disk_limit");
    let mut all = vec![
        bomb(
            "bytes in the workspace",
            ("fill /workspace 60", "60 MiB"),
            "fill /workspace 60",
            json!({ "diskMb": 20 }),
            full,
        ),
        bomb(
            "bytes in the home",
            ("fill /home/agent 60", "60 MiB"),
            "fill /home/agent 60",
            json!({ "diskMb": 20 }),
            full,
        ),
        bomb(
            "a million empty files",
            ("empty /workspace 6000", "6000 files"),
            "empty /workspace 1000000",
            json!({ "maxFiles": 3000 }),
            full,
        ),
        bomb(
            "a million names of few files",
            ("names /workspace 6000", "6000 names"),
            "names /workspace 1000000",
            json!({ "maxFiles": 3000 }),
            full,
        ),
        bomb(
            "folders in folders",
            ("nest /workspace 3000", "3000 deep"),
            "nest /workspace 3000",
            json!({ "maxFiles": 1500 }),
            full,
        ),
        bomb(
            "bytes beside files",
            ("attributes /workspace 3000", "3000 files"),
            "attributes /workspace 3000",
            json!({ "diskMb": 4 }),
            full,
        ),
        // The largest possible file of this disk; the other file is a petabyte.
        bomb(
            "a file of holes",
            ("sparse /workspace 8796093022208", "8796093022208 bytes"),
            "sparse /workspace 1125899906842624",
            json!({ "diskMb": 20 }),
            Cut::Itself,
        ),
        bomb(
            "a petabyte of holes in memory",
            ("sparse /tmp 1125899906842624", "1125899906842624 bytes"),
            "sparse /tmp 1125899906842624",
            json!({ "diskMb": 20 }),
            Cut::Itself,
        ),
        bomb(
            "memory that grows",
            ("grow 400", "400 MiB"),
            "grow 400",
            json!({ "memoryMb": 128 }),
            Cut::Itself,
        ),
        // Without its limit it would exhaust this machine.
        bomb(
            "forks of forks",
            ("processes 600", "600 processes"),
            "forks",
            json!({ "maxProcesses": 60, "turnSeconds": 3 }),
            Cut::Turn("turn_timeout"),
        ),
    ];
    if counts_processors {
        let spin = "spin 4 3";
        all.push(bomb("processors", (spin, "ms"), spin, json!({ "cpuPercent": 5 }), Cut::Itself));
    }
    all
}

/// All limits that can be lifted.
pub(super) fn lifted() -> Value {
    let limits = ["memoryMb", "cpuPercent", "maxProcesses", "diskMb", "maxFiles", "outputKbPerSecond"];
    limits.iter().map(|name| ((*name).to_owned(), json!(0))).collect::<serde_json::Map<_, _>>().into()
}

#[tokio::test]
async fn as_root_bombs_harm_only_their_own_sandbox() {
    go_off(Server::with(&IMPATIENT).await).await;
}

#[tokio::test]
async fn slowly_as_root_bombs_in_an_ordinary_users_server_harm_only_their_own_sandbox() {
    go_off(Server::of_user(ORDINARY_USER, &IMPATIENT).await).await;
}

async fn go_off(server: Server) {
    assert!(as_root(), "only root can become the user that shows the harm");
    let client = server.client();
    let bystander = client.create().await;
    let (beside, pulse) = (Beside::begin(&server, bystander), Pulse::begin(&server));
    let bombs = bombs(server.uid() == 0 || in_docker());
    let free = Sapper::new(&server, &lifted()).await;
    free.does_harm(&bombs).await;
    let bound = Sapper::new(&server, &json!({})).await;
    for (name, at, megabytes) in SCRATCH {
        assert!(outside(megabytes).starts_with("reached"), "{name}: no harm done");
        let got = bound.light(&format!("fill {at} {megabytes}")).await;
        assert!(got.contains("No space left"), "{name}: {got}");
        bound.clear().await;
    }
    for bomb in &bombs {
        Sapper::new(&server, &bomb.limits).await.is_cut_short(bomb).await;
    }
    free.leaves_what_it_likes(&server).await;
    let answers = beside.end().await;
    println!("the session beside answered {answers} times; {}", pulse.end().await);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// In memory outside of any sandbox, for a moment.
fn outside(megabytes: &str) -> String {
    let dir = PathBuf::from(format!("/dev/shm/ash-test-{}", uuid::Uuid::new_v4()));
    let mut command = Command::new(program());
    let done = command.args(["bomb", "fill"]).arg(&dir).arg(megabytes).output().expect("the attacker");
    std::fs::remove_dir_all(&dir).expect("removed");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Starts bombs in a session with these limits.
pub(super) struct Sapper {
    client: Client,
    id: String,
}

impl Sapper {
    pub(super) async fn new(server: &Server, limits: &Value) -> Sapper {
        let client = server.client();
        let made = client.post("/api/sessions", json!({ "agent": "tester", "limits": limits })).await;
        let id = made["session"]["id"].as_str().expect("an id").to_owned();
        // Not in the workspace, because some bombs delete its content.
        put(&program(), &server.live(&id).await.join("tree/home/attacker"), 0o755);
        Sapper { client, id }
    }

    pub(super) async fn light(&self, words: &str) -> String {
        self.run(&format!("~/attacker bomb {words} 2>&1; echo $?")).await
    }

    /// Proves that the bomb works without its limit.
    pub(super) async fn does_harm(&self, bombs: &[Bomb]) {
        for bomb in bombs {
            let name = bomb.name;
            // On a busy machine a bomb that needs processor time may get too little at first.
            eventually(&format!("{name} does harm"), async || {
                let got = self.light(bomb.harm.0).await;
                self.clear().await;
                println!("{name:<30} {}", got.trim().replace('\n', " "));
                (got.starts_with("reached") && got.contains(bomb.harm.1)).then_some(())
            })
            .await;
        }
    }

    async fn clear(&self) {
        let gone = "for at in /workspace ~ /tmp /dev/shm; do rm -rf $at/bomb $at/f[0-9]*; done; echo cleared";
        assert_eq!(self.run(gone).await, "cleared\n");
    }

    async fn run(&self, command: &str) -> String {
        // With a long timeout: the test measures how far it comes, not how fast.
        let body = json!({ "command": command, "timeout": 240_000 });
        let path = format!("/api/sessions/{}/exec", self.id);
        let (status, said) = self.client.ask(Method::POST, &path, Some(body)).await;
        assert!(status.is_success(), "{command}: {said}");
        said["stdout"].as_str().expect("text").to_owned()
    }

    pub(super) async fn is_cut_short(&self, bomb: &Bomb) {
        let name = bomb.name;
        let reason = match bomb.cut {
            Cut::Itself => {
                let got = self.light(bomb.words).await;
                assert!(!got.starts_with("reached"), "{name}: {got}");
                got.trim().replace('\n', " ")
            }
            Cut::Turn(code) | Cut::Sandbox(code) => {
                let message = format!("run: ~/attacker bomb {}; sleep 100", bomb.words);
                let frames = self.client.send(&self.id, &message).await.until("done").await;
                assert_eq!(told(&frames), Some(code), "{name}: {frames:#?}");
                assert_eq!(frames.last().expect("the end").data["status"], "interrupted", "{name}");
                code.to_owned()
            }
        };
        println!("{name:<30} {reason}");
        match bomb.cut {
            Cut::Itself => {}
            Cut::Turn(_) => self.starts_again(bomb).await,
            Cut::Sandbox(code) => {
                self.client.until_status(&self.id, "error").await;
                assert_eq!(self.client.session(&self.id).await["error"]["code"], code, "{name}");
                let path = format!("/api/sessions/{}/config", self.id);
                let (status, said) =
                    self.client.ask(Method::PATCH, &path, Some(json!({ "limits": lifted() }))).await;
                assert!(status.is_success(), "{said}");
                self.client.action(&self.id, "resume").await;
            }
        }
        assert!(self.client.text(&self.id, "are you there?").await.contains("This is turn"), "{name}");
        self.client.delete(&format!("/api/sessions/{}", self.id)).await;
    }

    /// Leftovers may keep the sandbox busy; the next sandbox has none of them.
    async fn starts_again(&self, bomb: &Bomb) {
        // Fails if the sandbox has already ended together with its agent.
        self.client.ask(Method::POST, &format!("/api/sessions/{}/stop", self.id), None).await;
        let left = format!("bomb {}", bomb.words);
        eventually("nothing of it runs", async || {
            (!pids().into_iter().any(|pid| cmdline(pid).contains(&left))).then_some(())
        })
        .await;
        self.client.action(&self.id, "resume").await;
    }

    /// Entries of every kind that is hard to save; the restored checkpoint has them unchanged.
    async fn leaves_what_it_likes(&self, server: &Server) {
        let put = ["odd /workspace", "nest ~ 3000", "sparse ~ 8796093022208", "attributes ~ 300"];
        for words in put {
            let got = self.light(words).await;
            assert!(got.starts_with("reached"), "{words}: {got}");
        }
        let said = self.client.say(&self.id, "run: ls -d ~/bomb").await;
        assert!(said["checkpoint"].is_u64() && said["error"].is_null(), "{said}");
        self.client.action(&self.id, "stop").await;
        let live = server.live(&self.id).await;
        ash_snapshot::Folder::erase(&live.join("tree")).expect("deeper than others can erase");
        let back = self.client.action(&self.id, "resume").await;
        // Entries that are not files, folders or links are not saved, and the receipt names them.
        let lost: Vec<&str> = back["resume"]["lost"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|line| line.as_str())
            .collect();
        let kinds = ["pipe (a FIFO)", "socket (a socket)", "whiteout (a device)"];
        assert_eq!(lost.len(), kinds.len(), "{back}");
        assert!(kinds.iter().all(|kind| lost.iter().any(|line| line.contains(kind))), "{back}");
        // Two files whose names are not valid text.
        let look = "cd /workspace/bomb; for name in *; do [ -f \"$name\" ] && cat \"$name\"; done; stat -c ' %s %b' ~/bomb/sparse";
        let found = self.client.exec(&self.id, look).await;
        assert_eq!(found["stdout"], "keptkept 8796093022208 0\n", "{found}");
        assert!(self.light("depth ~").await.contains("3000 deep"));
        let list = self.client.get(&format!("/api/sessions/{}/files", self.id)).await;
        assert!(list["files"].as_array().is_some_and(|files| files.len() >= 2), "{list}");
        self.client.delete(&format!("/api/sessions/{}", self.id)).await;
    }
}

fn told(frames: &[Frame]) -> Option<&str> {
    frames.iter().find(|frame| frame.event == "error").and_then(|frame| frame.data["code"].as_str())
}

/// Checks the server's health several times a second.
pub(super) struct Pulse {
    over: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<(usize, Duration)>,
}

impl Pulse {
    pub(super) fn begin(server: &Server) -> Pulse {
        let over = Arc::new(AtomicBool::new(false));
        let (client, until) = (server.client(), over.clone());
        let task = tokio::spawn(async move {
            let mut beats = tokio::time::interval(Duration::from_millis(50));
            let (mut count, mut slowest) = (0, Duration::ZERO);
            while !until.load(Ordering::Relaxed) {
                beats.tick().await;
                let began = Instant::now();
                let request = client.request(Method::GET, "/health").timeout(DEADLINE);
                let health: Value = request.send().await.expect("in time").json().await.expect("JSON");
                assert_eq!(health["status"], "ok", "{health}");
                (count, slowest) = (count + 1, slowest.max(began.elapsed()));
            }
            (count, slowest)
        });
        Pulse { over, task }
    }

    pub(super) async fn end(self) -> String {
        self.over.store(true, Ordering::Relaxed);
        let (count, slowest) = self.task.await.expect("the server was well all along");
        format!("the server was asked {count} times whether it is well, and took at most {slowest:?}")
    }
}
