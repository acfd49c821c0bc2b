//! Resource limits of a session. One sandbox hits each limit, while another one continues to work and must not notice;
//! with root's server and with an ordinary user's.

mod unseen;

use crate::support::{Client, Frame, Processes, Server, as_root, eventually, in_docker, is_alive};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

const ORDINARY_USER: u32 = 61_002;

/// The servers of root and of an ordinary user.
async fn servers() -> Vec<Server> {
    assert!(as_root(), "only root can be both");
    vec![Server::start().await, Server::of_user(ORDINARY_USER, &[]).await]
}

async fn limited(client: &Client, limits: Value) -> String {
    client.deploy("tester").await;
    let body = json!({ "agent": "tester", "limits": limits });
    client.post("/api/sessions", body).await["session"]["id"].as_str().expect("an id").to_owned()
}

/// A session that answers one message after another, whatever happens beside it.
struct Neighbour {
    client: Client,
    id: String,
    processes: Processes,
    over: Arc<AtomicBool>,
    answers: Arc<AtomicU32>,
    working: JoinHandle<()>,
}

impl Neighbour {
    async fn at_work(server: &Server) -> Neighbour {
        let (client, id) = (server.client(), server.client().create().await);
        client.text(&id, "write mine: untouched").await;
        let processes = server.processes(&id).await;
        let (over, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let working = tokio::spawn({
            let (client, id, over, answers) = (client.clone(), id.clone(), over.clone(), answers.clone());
            async move {
                while !over.load(Ordering::Relaxed) {
                    let number = answers.load(Ordering::Relaxed);
                    let said =
                        client.text(&id, &format!("run: cat mine; echo {number} >> log; wc -l < log")).await;
                    assert_eq!(said, format!("untouched{}", number + 1));
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let neighbour = Neighbour { client, id, processes, over, answers, working };
        neighbour.answers_again().await;
        neighbour
    }

    /// Waits until a message that is sent from now on is answered.
    async fn answers_again(&self) {
        let before = self.answers.load(Ordering::Relaxed);
        eventually("the neighbour is answered", async || {
            assert!(!self.working.is_finished(), "the neighbour noticed");
            (self.answers.load(Ordering::Relaxed) > before + 1).then_some(())
        })
        .await;
    }

    async fn did_not_notice(self) {
        self.answers_again().await;
        self.over.store(true, Ordering::Relaxed);
        self.working.await.expect("every answer was right");
        assert_eq!(self.client.status(&self.id).await, "active");
        let Processes { shim, init, agent, .. } = self.processes;
        assert!([shim, init, agent].iter().all(|pid| is_alive(*pid)), "the sandbox is another one");
    }
}

async fn exec(client: &Client, id: &str, command: &str) -> (StatusCode, Value) {
    let body = json!({ "command": command, "timeout": 60_000 });
    client.ask(Method::POST, &format!("/api/sessions/{id}/exec"), Some(body)).await
}

async fn change(client: &Client, id: &str, limits: Value) -> Value {
    let path = format!("/api/sessions/{id}/config");
    let (status, body) = client.ask(Method::PATCH, &path, Some(json!({ "limits": limits }))).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    body["session"]["limits"].clone()
}

/// The problem that ended a turn.
fn problem(frames: &[Frame]) -> &str {
    let error = frames.iter().find(|frame| frame.event == "error");
    error.and_then(|frame| frame.data["code"].as_str()).unwrap_or_else(|| panic!("no problem: {frames:#?}"))
}

#[tokio::test]
async fn a_sessions_limits_override_its_agents_and_those_the_servers_up_to_the_maximum() {
    assert!(as_root(), "whose limits groups enforce");
    let settings =
        [("ASH_LIMITS", "maxProcesses=100,diskMb=300,turnSeconds=50"), ("ASH_LIMITS_MAX", "memoryMb=1000")];
    let mut server = Server::with(&settings).await;
    let client = server.client();
    let dir = server.dir.join("agent");
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::write(dir.join("ash.toml"), "[limits]\nmaxProcesses = 90\nmaxOpenFiles = 500\ndiskMb = 200\n")
        .expect("written");
    let agent = client.post("/api/agents", json!({ "name": "own", "path": dir })).await["agent"].clone();
    assert_eq!(agent["limits"], json!({ "maxProcesses": 90, "maxOpenFiles": 500, "diskMb": 200 }));
    let body =
        json!({ "agent": "own", "sessionId": "one", "limits": { "maxProcesses": 80, "turnSeconds": 0 } });
    client.post("/api/sessions", body).await;
    let shown = client.session("one").await["limits"].clone();
    let expected = json!({
        "memoryMb": 1000, "maxProcesses": 80, "maxOpenFiles": 500, "diskMb": 200, "maxFiles": 1_000_000,
        "outputKbPerSecond": 16_384,
    });
    let mut values = shown.clone();
    let enforced = values.as_object_mut().and_then(|all| all.remove("enforcedBy")).expect("by whom");
    assert_eq!(values, expected, "{shown}");
    let by = if in_docker() { "docker" } else { "cgroup" };
    assert!(enforced["memoryMb"].as_str().expect("a word").starts_with(by), "{enforced}");
    assert_eq!(enforced["diskMb"], "watchdog");
    assert_eq!(client.exec("one", "ulimit -n").await["stdout"], "500\n");
    // A change of start-time limits restarts the sandbox; unnamed limits stay.
    let changed = change(&client, "one", json!({ "maxOpenFiles": 300, "maxProcesses": null })).await;
    assert_eq!((&changed["maxOpenFiles"], &changed["maxProcesses"]), (&json!(300), &json!(90)));
    assert_eq!(client.text("one", "run: ulimit -n").await, "300");
    for (limits, status, code) in [
        (json!({ "memoryMb": 1001 }), 422, "limit_too_high"),
        (json!({ "memoryMb": 0 }), 422, "limit_too_high"),
        (json!({ "memoryMb": "64" }), 400, "invalid_body"),
        (json!({ "memory": 64 }), 400, "unknown_field"),
        (json!([]), 400, "invalid_body"),
    ] {
        let body = json!({ "agent": "own", "limits": limits });
        let (got, said) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
        assert_eq!((got.as_u16(), &said["code"]), (status, &json!(code)), "{said}");
    }
    std::fs::write(dir.join("ash.toml"), "[limits]\nmemory = 90\n").expect("written");
    let (status, said) =
        client.ask(Method::POST, "/api/agents", Some(json!({ "name": "own", "path": dir }))).await;
    assert_eq!((status.as_u16(), &said["code"]), (400, &json!("invalid_manifest")), "{said}");
    // A change of other limits keeps the running sandbox.
    let agent = server.processes("one").await.agent;
    change(&client, "one", json!({ "turnSeconds": 40, "maxFiles": 5000 })).await;
    client.text("one", "run: echo here").await;
    assert_eq!(server.processes("one").await.agent, agent);
    let body = json!({ "agent": "own", "sessionId": "two", "limits": { "turnSeconds": 30 } });
    client.post("/api/sessions", body).await;
    let agent = server.processes("two").await.agent;
    change(&client, "two", json!({ "turnSeconds": null, "memoryMb": null })).await;
    client.text("two", "run: echo here").await;
    assert_eq!(server.processes("two").await.agent, agent);
    // A limit that was allowed and is too high now is capped, and blocks no other change.
    change(&client, "one", json!({ "memoryMb": 900 })).await;
    server.set("ASH_LIMITS_MAX", "memoryMb=500");
    server.crash_and_start().await;
    let client = server.client();
    let shown = client.session("one").await["limits"].clone();
    assert_eq!((&shown["maxOpenFiles"], &shown["memoryMb"]), (&json!(300), &json!(500)));
    let shown = change(&client, "one", json!({ "maxOpenFiles": 310 })).await;
    assert_eq!((&shown["maxOpenFiles"], &shown["memoryMb"]), (&json!(310), &json!(500)));
}

#[tokio::test]
async fn a_turn_that_takes_too_long_is_stopped_and_what_waits_goes_on() {
    for mut server in servers().await {
        let client = server.client();
        let id = limited(&client, json!({ "turnSeconds": 2 })).await;
        let neighbour = Neighbour::at_work(&server).await;
        let mut stream = client.send(&id, "run: sleep 100").await;
        let mut waiting = client.send(&id, "run: echo I waited").await;
        let frames = stream.until("done").await;
        assert_eq!(problem(&frames), "turn_timeout");
        assert_eq!(frames.last().expect("the end").data["status"], "interrupted");
        assert_eq!(waiting.until("done").await.last().expect("the end").data["status"], "done");
        neighbour.did_not_notice().await;
        // The time limit runs while no server watches.
        let _stream = client.send(&id, "run: touch begun; sleep 100").await;
        let begun = server.live(&id).await.join("tree/workspace/begun");
        eventually("the turn runs", async || begun.exists().then_some(())).await;
        let last = client.session_seq(&id).await;
        server.crash_and_start().await;
        let client = server.client();
        let frames = client.follow(&id, &last).await.until("done").await;
        assert_eq!(problem(&frames), "turn_timeout");
        change(&client, &id, json!({ "turnSeconds": null })).await;
        assert_eq!(client.text(&id, "run: sleep 3; echo slept").await, "slept");
    }
}

#[tokio::test]
async fn a_sandbox_that_takes_too_much_memory_loses_what_took_it() {
    for server in servers().await {
        let client = server.client();
        let id = limited(&client, json!({ "memoryMb": 96 })).await;
        let neighbour = Neighbour::at_work(&server).await;
        let agent = server.processes(&id).await.agent;
        let greedy = r"sh -c 'x=$(head -c 150000000 /dev/zero | tr \\0 x); sleep 50; echo ${#x}'; echo $?";
        let (_, said) = exec(&client, &id, greedy).await;
        assert_eq!(said["stdout"], "137\n", "{said}");
        // The process that took it is gone, and the agent works.
        assert_eq!(client.text(&id, "run: echo here").await, "here");
        assert_eq!(server.processes(&id).await.agent, agent);
        // In parts, each of them small.
        let many = r"for i in 1 2 3 4 5 6; do (x=$(head -c 30000000 /dev/zero | tr '\0' x); sleep 3; echo lives) & done; wait";
        let (_, said) = exec(&client, &id, many).await;
        assert_eq!(said["timedOut"], false, "{said}");
        let alive = said["stdout"].as_str().expect("text").lines().count();
        assert!(alive < 4, "{alive} of six had 30 MB each: {said}");
        neighbour.did_not_notice().await;
    }
}

#[tokio::test]
async fn a_sandbox_that_forks_without_end_can_not() {
    for server in servers().await {
        let client = server.client();
        let id = limited(&client, json!({ "maxProcesses": 30 })).await;
        let neighbour = Neighbour::at_work(&server).await;
        let (_, said) = exec(&client, &id, "for i in $(seq 200); do sleep 5 & done; echo all").await;
        assert!(said["stderr"].as_str().expect("text").contains("fork"), "{said}");
        assert!(!said["stdout"].as_str().expect("text").contains("all"), "{said}");
        neighbour.did_not_notice().await;
    }
}

#[tokio::test]
async fn a_process_that_opens_files_without_end_can_not() {
    for server in servers().await {
        let client = server.client();
        let id = limited(&client, json!({ "maxOpenFiles": 64 })).await;
        let neighbour = Neighbour::at_work(&server).await;
        let open =
            "bash -c 'for i in $(seq 10 200); do eval \"exec $i</dev/null\" || exit 9; done; echo all'";
        let (_, said) = exec(&client, &id, open).await;
        assert_eq!((&said["exitCode"], &said["stdout"]), (&json!(9), &json!("")), "{said}");
        assert!(said["stderr"].as_str().expect("text").contains(" 64: "), "the first beyond: {said}");
        neighbour.did_not_notice().await;
    }
}

#[tokio::test]
async fn as_root_a_sandbox_gets_so_much_of_a_processor_and_no_more() {
    assert!(as_root(), "processors are limited by groups");
    let server = Server::start().await;
    let client = server.client();
    let id = limited(&client, json!({ "cpuPercent": 20 })).await;
    let neighbour = Neighbour::at_work(&server).await;
    // The user time of the shell's children starts the second line; the line before is the elapsed time.
    let busy = "began=$(date +%s%N); sh -c 'while :; do :; done' & sleep 3; kill $!; wait; times; echo $((($(date +%s%N) - began) / 1000000))";
    let (_, said) = exec(&client, &id, busy).await;
    let times = said["stdout"].as_str().expect("text").to_owned();
    let user = times.lines().nth(1).and_then(|line| line.split(['m', 's']).nth(1)?.parse::<f64>().ok());
    let whole = times.lines().nth(2).and_then(|line| line.parse::<f64>().ok()).expect("a number") / 1000.0;
    // A fifth, plus the initial burst. How much less it gets depends on other load.
    assert!(user.is_some_and(|user| user < whole * 0.2 + 0.5), "{times}");
    neighbour.did_not_notice().await;
}

#[tokio::test]
async fn agents_run_after_the_server() {
    let nice = |pid: u32| -> i64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
        stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(17)?.parse().ok()).expect("a number")
    };
    for server in servers().await {
        let id = server.client().create().await;
        let Processes { shim, agent, .. } = server.processes(&id).await;
        assert_eq!(nice(shim), nice(server.pid()), "it is part of the server");
        assert!(nice(agent) > nice(server.pid()));
        let first = |pid: u32| -> i64 {
            let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("a process");
            text.trim().parse().expect("a number")
        };
        assert!(first(agent) > first(server.pid()), "when memory is short");
    }
}

#[tokio::test]
async fn a_sandbox_whose_files_take_too_much_is_ended_and_goes_on_with_fewer_or_with_more_room() {
    for mut server in servers().await {
        let client = server.client();
        let id = limited(&client, json!({ "diskMb": 20 })).await;
        client.text(&id, "write kept: as it was").await;
        let neighbour = Neighbour::at_work(&server).await;
        // A single file cannot.
        let (_, said) = exec(&client, &id, "head -c 60000000 /dev/zero > one; stat -c %s one; rm one").await;
        assert_eq!(said["stdout"], "20971520\n", "{said}");
        let fill =
            "run: mkdir many; for i in $(seq 60); do head -c 1000000 /dev/urandom > many/$i; done; sleep 100";
        let mut stream = client.send(&id, fill).await;
        let frames = stream.until("done").await;
        assert_eq!(problem(&frames), "disk_limit");
        assert_eq!(frames.last().expect("the end").data["status"], "interrupted");
        client.until_status(&id, "error").await;
        let session = client.session(&id).await;
        assert_eq!(session["error"]["code"], "disk_limit", "{session}");
        assert!(session["resources"]["diskBytes"].as_u64() > Some(20 << 20), "{session}");
        neighbour.did_not_notice().await;
        // Nothing is lost, and nothing starts.
        server.crash_and_start().await;
        let client = server.client();
        let message = json!({ "content": "run: echo still here" });
        let path = format!("/api/sessions/{id}/messages");
        let request = client.request(Method::POST, &path).header("accept", "application/json");
        let answer = request.json(&message).send().await.expect("sent");
        let (status, said) = (answer.status(), answer.json::<Value>().await.expect("JSON"));
        assert_eq!((status.as_u16(), &said["code"]), (422, &json!("disk_limit")), "{said}");
        client.until_status(&id, "error").await;
        assert_eq!(client.session(&id).await["error"]["code"], "disk_limit");
        for i in 1..=60 {
            // Not all of them were made.
            client.ask(Method::DELETE, &format!("/api/sessions/{id}/files/many/{i}"), None).await;
        }
        client.action(&id, "resume").await;
        let looked = client.text(&id, "run: cat kept; ls many | wc -l").await;
        assert_eq!(looked, "as it was0");
        // Or with a higher limit.
        let (status, said) = exec(
            &client,
            &id,
            "for i in $(seq 60); do head -c 1000000 /dev/urandom > more$i; done; sleep 60",
        )
        .await;
        assert_eq!((status.as_u16(), &said["code"]), (422, &json!("disk_limit")), "{said}");
        client.until_status(&id, "error").await;
        change(&client, &id, json!({ "diskMb": 500 })).await;
        client.action(&id, "resume").await;
        assert_eq!(client.text(&id, "run: cat kept").await, "as it was");
    }
}

#[tokio::test]
async fn the_neighbour_of_a_full_sandbox_does_not_notice() {
    for server in servers().await {
        let client = server.client();
        let id = limited(&client, json!({ "diskMb": 20, "maxFiles": 500 })).await;
        let neighbour = Neighbour::at_work(&server).await;
        // A server without root cannot look into a container, so it does not count the container's /tmp: there only
        // memory is limited.
        let looks_in = !in_docker() || server.uid() == 0;
        for bomb in [
            // Small files in the workspace, and in a memory file system.
            "i=0; while :; do i=$((i+1)); : > f$i; done",
            "mkdir /tmp/d; i=0; while :; do i=$((i+1)); : > /tmp/d/f$i; done",
            // An unlinked file still takes space.
            "exec 3>a 4>b; rm a b; head -c 15000000 /dev/urandom >&3; head -c 15000000 /dev/urandom >&4; sleep 60",
            // Folders that other users cannot read.
            "mkdir closed; for i in $(seq 60); do head -c 1000000 /dev/urandom > closed/$i; done; chmod 0 closed; sleep 60",
        ] {
            if bomb.contains("/tmp") && !looks_in {
                continue;
            }
            let (status, said) = exec(&client, &id, bomb).await;
            assert_eq!((status.as_u16(), &said["code"]), (422, &json!("disk_limit")), "{bomb}: {said}");
            client.until_status(&id, "error").await;
            assert_eq!(client.session(&id).await["error"]["code"], "disk_limit", "{bomb}");
            change(&client, &id, json!({ "diskMb": 0, "maxFiles": 0 })).await;
            client.action(&id, "resume").await;
            client.exec(&id, "chmod 700 closed; rm -rf f* closed").await;
            change(&client, &id, json!({ "diskMb": 20, "maxFiles": 500 })).await;
            client.text(&id, "run: echo again").await;
        }
        neighbour.did_not_notice().await;
    }
}

#[tokio::test]
async fn what_prints_too_fast_is_delayed_and_complete() {
    for server in servers().await {
        let client = server.client();
        let id = limited(&client, json!({ "outputKbPerSecond": 1024 })).await;
        let neighbour = Neighbour::at_work(&server).await;
        let began = Instant::now();
        let (_, said) = exec(&client, &id, "seq 1000000").await;
        let took = began.elapsed();
        let text = said["stdout"].as_str().expect("text");
        assert_eq!((text.lines().count(), text.lines().last()), (1_000_000, Some("1000000")));
        // Almost seven megabytes, of which a burst of four comes at once.
        assert!(took > Duration::from_secs(2), "it came in {took:?}");
        neighbour.did_not_notice().await;
    }
}

#[tokio::test]
async fn what_a_session_took_of_the_machine_is_a_sum_that_survives() {
    for mut server in servers().await {
        let client = server.client();
        let id = limited(&client, json!({})).await;
        let burn = "run: i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; head -c 3000000 /dev/urandom > file; truncate -s 9G hole";
        client.text(&id, burn).await;
        let taken = async |client: &Client| client.session(&id).await["resources"].clone();
        let enough = |taken: &Value, seconds: f64| {
            taken["cpuSeconds"].as_f64().is_some_and(|cpu| cpu > seconds)
                && taken["peakMemoryBytes"].as_u64() > Some(100 << 10)
                && (2_900_000..8_000_000).contains(&taken["diskBytes"].as_u64().unwrap_or(0))
        };
        let first = eventually("it is written down", async || {
            let taken = taken(&client).await;
            enough(&taken, 0.3).then_some(taken)
        })
        .await;
        client.action(&id, "stop").await;
        client.action(&id, "resume").await;
        client.text(&id, burn).await;
        let before = first["cpuSeconds"].as_f64().expect("a number");
        eventually("the next sandbox adds to it", async || {
            enough(&taken(&client).await, before + 0.3).then_some(())
        })
        .await;
        client.action(&id, "stop").await;
        let last = taken(&client).await;
        server.crash_and_start().await;
        let client = server.client();
        assert_eq!(taken(&client).await, last);
        let metrics = client.request(Method::GET, "/metrics").send().await.expect("metrics");
        let metrics = metrics.text().await.expect("text");
        let seconds = format!("ash_sandbox_cpu_seconds {}", last["cpuSeconds"]);
        assert!(metrics.contains(&seconds), "{seconds}: {metrics}");
    }
}
