//! More sessions than sandboxes: idle sessions release their sandboxes for busy ones and lose nothing, and a request
//! without a place fails or waits in line.

mod line;

use crate::support::{
    Client, DEADLINE, Point, Server, as_root, available_mb, eventually, is_alive, signal, total_memory_mb,
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use std::{fmt::Write as _, process::Stdio, time::Duration};
use tokio::task::JoinHandle;

async fn server(most: &str) -> Server {
    Server::with(&[("ASH_MAX_SANDBOXES", most)]).await
}

async fn pool(client: &Client) -> Value {
    client.get("/health").await["pool"].clone()
}

/// A turn that runs until its sandbox has a file `go`.
async fn busy(client: &Client, id: &str) {
    let mut stream = client.send(id, "run: touch began; until [ -e go ]; do sleep 0.02; done").await;
    eventually("the turn runs", async || {
        let found = client.exec(id, "ls began").await;
        (found["exitCode"] == 0).then_some(())
    })
    .await;
    tokio::spawn(async move { stream.rest().await });
}

async fn let_go(client: &Client, id: &str) {
    client.exec(id, "touch go").await;
    eventually("the turn is over", async || (pool(client).await["running"] == 0).then_some(())).await;
}

async fn make(client: &Client, wait: Option<&str>) -> Response {
    let request = client.request(Method::POST, "/api/sessions").json(&json!({ "agent": "tester" }));
    let request = wait.into_iter().fold(request, |request, wait| request.header("prefer", wait));
    request.send().await.expect("an answer")
}

/// The error code of the response.
async fn refused(response: Response) -> String {
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let after = response.headers()["retry-after"].to_str().expect("text").to_owned();
    assert!(after.parse::<u32>().is_ok_and(|seconds| seconds > 0), "{after}");
    let body: Value = response.json().await.expect("JSON");
    assert_eq!(body["code"], "capacity_reached", "{body}");
    body["error"].as_str().expect("words").to_owned()
}

#[tokio::test]
async fn the_longest_unused_session_is_evicted_and_loses_nothing() {
    let server = server("2").await;
    let client = server.client();
    let (one, two) = (client.create().await, client.create().await);
    for id in [&two, &one, &two] {
        client.say(id, &format!("run: echo {id} >> mine")).await;
    }
    let mut follower = client.follow(&one, "0").await;
    let three = client.create().await;
    let frames = follower.until("paused").await;
    let idle = frames.iter().rfind(|frame| frame.event == "session_idle").expect("said why");
    assert_eq!(idle.data["reason"], "evicted", "{:?}", idle.data);
    let statuses = [client.status(&one).await, client.status(&two).await, client.status(&three).await];
    assert_eq!(statuses, ["paused", "active", "active"]);
    eventually("two of two have a place", async || {
        let now = pool(&client).await;
        (now["waiting"] == 2 && now["maxCapacity"] == 2).then_some(())
    })
    .await;
    // The next message restores files and conversation; now the second session loses its sandbox.
    assert_eq!(client.text(&one, "read mine").await, format!("{one}\n"));
    assert_eq!(
        [client.status(&two).await, client.status(&three).await],
        ["paused".to_owned(), "active".to_owned()]
    );
    let back = client.action(&two, "resume").await;
    assert_eq!(
        (&back["resume"]["path"], &back["resume"]["tier"]),
        (&json!("cold"), &json!("native")),
        "{back}"
    );
    assert_eq!(client.text(&two, "read mine").await, format!("{two}\n{two}\n"));
    assert_eq!(client.status(&three).await, "paused");
    let metrics = client.request(Method::GET, "/metrics").send().await.expect("metrics");
    let metrics = metrics.text().await.expect("text");
    assert!(metrics.contains("ash_pool_evictions_total 3"), "{metrics}");
}

#[tokio::test]
async fn busy_sessions_stay_and_other_requests_fail_or_wait() {
    let server = server("1").await;
    let client = server.client();
    let sleeper = client.create().await;
    client.say(&sleeper, "write kept: yes").await;
    let worker = client.create().await;
    assert_eq!(client.status(&sleeper).await, "paused");
    busy(&client, &worker).await;

    let words = refused(make(&client, None).await).await;
    assert!(words.contains("Prefer: wait="), "it says what can be done: {words}");
    // A session that cannot come back is unchanged.
    for (path, body) in [("resume", json!({})), ("messages", json!({ "content": "read kept" }))] {
        let request = client.request(Method::POST, &format!("/api/sessions/{sleeper}/{path}"));
        refused(request.json(&body).send().await.expect("an answer")).await;
        assert_eq!(client.status(&sleeper).await, "paused");
    }
    let (status, body) = client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "nobody" }))).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "an invalid request is not queued: {body}");
    let bad = make(&client, Some("wait=forever")).await;
    assert_eq!(bad.status(), StatusCode::BAD_REQUEST);

    // A caller that disconnects leaves the line, and no session is created.
    let gone = tokio::spawn({
        let client = client.clone();
        async move { make(&client, Some("wait=60")).await }
    });
    eventually("it waits", async || (pool(&client).await["queued"] == 1).then_some(())).await;
    gone.abort();
    eventually("it left", async || (pool(&client).await["queued"] == 0).then_some(())).await;
    let patient = tokio::spawn({
        let client = client.clone();
        async move { make(&client, Some("respond-async, wait=60")).await }
    });
    eventually("the other one waits", async || (pool(&client).await["queued"] == 1).then_some(())).await;
    let returning = tokio::spawn({
        let (client, path) = (client.clone(), format!("/api/sessions/{sleeper}/messages"));
        async move {
            let request = client.request(Method::POST, &path).header("prefer", "wait=60");
            let request =
                request.header("accept", "application/json").json(&json!({ "content": "read kept" }));
            request.send().await.expect("an answer").json::<Value>().await.expect("JSON")
        }
    });
    eventually("and a third", async || (pool(&client).await["queued"] == 2).then_some(())).await;
    let_go(&client, &worker).await;
    assert_eq!(patient.await.expect("ran").status(), StatusCode::CREATED);
    assert_eq!(returning.await.expect("ran")["text"], "yes");
    assert_eq!(client.status(&worker).await, "paused");
    let sessions = client.get("/api/sessions").await;
    assert_eq!(sessions["sessions"].as_array().map(Vec::len), Some(3), "{sessions}");
}

/// Users at a terminal wait, and see the reason.
#[tokio::test]
async fn the_command_line_waits_in_the_queue_and_says_so() {
    let server = server("1").await;
    let client = server.client();
    let worker = client.create().await;
    busy(&client, &worker).await;
    let mut command = server.command_of(&["session", "create", "tester", "--json"]);
    command.env("ASH_SERVER_URL", &server.url).stdout(Stdio::piped()).stderr(Stdio::piped());
    let waiting = command.spawn().expect("ash");
    eventually("it waits", async || (pool(&client).await["queued"] == 1).then_some(())).await;
    let_go(&client, &worker).await;
    let output = waiting.wait_with_output().expect("ran");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("waiting for up to"), "{said}");
}

#[tokio::test]
async fn a_wait_that_times_out_gets_an_error() {
    let server = Server::with(&[("ASH_MAX_SANDBOXES", "1"), ("ASH_QUEUE_WAIT", "1")]).await;
    let client = server.client();
    let worker = client.create().await;
    busy(&client, &worker).await;
    let patient = tokio::spawn({
        let client = client.clone();
        async move { make(&client, Some("wait=600")).await }
    });
    eventually("it waits", async || (pool(&client).await["queued"] == 1).then_some(())).await;
    // Later requests that time out while the first one still waits: by the caller's timeout, and by the server's.
    refused(make(&client, Some("wait=0")).await).await;
    let began = std::time::Instant::now();
    refused(make(&client, None).await).await;
    assert!(began.elapsed().as_secs() >= 1, "the server's own");
    assert!(!patient.is_finished() && pool(&client).await["queued"] == 1);
    let_go(&client, &worker).await;
    assert_eq!(patient.await.expect("ran").status(), StatusCode::CREATED);
}

/// Sessions of one workspace, and therefore of one sandbox.
async fn sharing_sessions(client: &Client, count: usize) -> Vec<String> {
    client.deploy("tester").await;
    let mut shared = Vec::new();
    for _ in 0..count {
        let body = json!({ "agent": "tester", "workspace": "ours" });
        let made = client.post("/api/sessions", body).await;
        shared.push(made["session"]["id"].as_str().expect("an id").to_owned());
    }
    shared
}

/// A shared sandbox counts once, and is released only when all its sessions are idle.
#[tokio::test]
async fn a_shared_sandbox_counts_once_and_goes_as_a_whole() {
    let server = server("1").await;
    let client = server.client();
    let shared = sharing_sessions(&client, 3).await;
    for id in &shared {
        client.say(id, &format!("run: echo {id} >> all")).await;
    }
    busy(&client, &shared[1]).await;
    refused(make(&client, None).await).await;
    let_go(&client, &shared[1]).await;
    assert_eq!(make(&client, Some("wait=30")).await.status(), StatusCode::CREATED);
    for id in &shared {
        assert_eq!(client.status(id).await, "paused");
    }
    let all = shared.iter().fold(String::new(), |mut all, id| {
        writeln!(all, "{id}").expect("text");
        all
    });
    assert_eq!(client.text(&shared[2], "read all").await, all);
}

/// If one session of a shared sandbox is busy, none of them is paused.
#[tokio::test]
async fn an_idle_session_that_shares_with_a_busy_one_stays() {
    let server = server("1").await;
    let client = server.client();
    let shared = sharing_sessions(&client, 3).await;
    let command = tokio::spawn({
        let (client, id) = (client.clone(), shared[1].clone());
        async move { client.exec(&id, "touch began; until [ -e go ]; do sleep 0.02; done").await }
    });
    eventually("the command runs", async || {
        (client.exec(&shared[0], "ls began").await["exitCode"] == 0).then_some(())
    })
    .await;
    let before = client.session_seq(&shared[0]).await;
    refused(make(&client, None).await).await;
    for id in &shared {
        assert_eq!(client.status(id).await, "active");
    }
    assert_eq!(client.session_seq(&shared[0]).await, before, "no session was asked to leave");
    client.exec(&shared[0], "touch go").await;
    assert_eq!(command.await.expect("ran")["exitCode"], 0);
    assert_eq!(make(&client, Some("wait=30")).await.status(), StatusCode::CREATED);
    for id in &shared {
        assert_eq!(client.status(id).await, "paused");
    }
}

/// A dead sandbox has freed its place even if its files cannot be saved: no other session is paused for it.
#[tokio::test]
async fn a_session_that_cannot_be_saved_costs_no_other_session_its_sandbox() {
    let env = [("ASH_MAX_SANDBOXES", "2"), ("ASH_INTERNAL_SECRET", "inner")];
    let server = Server::with(&env).await;
    let client = server.client();
    let inner = server.client_with("inner");
    let tenant = async |name: &str| {
        let key = inner.post("/api/internal/api-keys", json!({ "tenantId": name })).await;
        server.client_with(key["key"].as_str().expect("a key"))
    };
    let (other, newcomer) = (tenant("other").await, tenant("newcomer").await);
    let unlucky = other.create().await;
    other.say(&unlucky, "write mine: here").await;
    let idle = client.create().await;
    client.say(&idle, "write mine: here").await;
    // The tenant's repository is not writable, and there is something to write.
    let repo = server.data.join("repo");
    std::fs::rename(repo.join("other"), repo.join("away")).expect("moved");
    let session = other.session(&unlucky).await;
    let live = server.data.join("live").join(session["workspaceId"].as_str().expect("an id"));
    std::fs::write(live.join("tree/workspace/more"), "unsaved").expect("written");
    // A session without a place can get that of either one; the most recently used session stays.
    let third = newcomer.create().await;
    assert!(server.log().contains("the workspace could not be saved"), "or it shows nothing");
    let statuses = [other.status(&unlucky).await, client.status(&idle).await, newcomer.status(&third).await];
    assert_eq!(statuses, ["paused", "active", "active"]);
    std::fs::rename(repo.join("away"), repo.join("other")).expect("moved back");
    assert_eq!(other.text(&unlucky, "read more").await, "unsaved");
}

/// A session with files that no checkpoint holds keeps its sandbox.
#[tokio::test]
async fn a_session_that_would_lose_something_stays() {
    let server = server("2").await;
    let client = server.client();
    client.deploy("tester").await;
    let body = json!({ "agent": "tester", "ephemeral": true });
    let fleeting =
        client.post("/api/sessions", body).await["session"]["id"].as_str().expect("an id").to_owned();
    client.say(&fleeting, "write here: only").await;
    let mut last = String::new();
    for _ in 0..3 {
        last = client.create().await;
        client.say(&last, "hello").await;
    }
    assert_eq!([client.status(&fleeting).await, client.status(&last).await], ["active", "active"]);
    assert_eq!(client.text(&fleeting, "read here").await, "only");
}

/// An agent with a slow start, so that no other session can take its sandbox meanwhile.
async fn deploy_slow(client: &Client) {
    let file = |path: &str, text: &str| json!({ "path": path, "content": BASE64.encode(text) });
    let files = [
        file("ash.toml", "runtime = \"builtin\"\n"),
        file("startup.sh", "until [ -e /workspace/go ]; do sleep 0.05; done\n"),
    ];
    client.post("/api/agents", json!({ "name": "slow", "files": files })).await;
}

fn make_slow(client: &Client) -> JoinHandle<Response> {
    let body = json!({ "agent": "slow", "sessionId": "slow" });
    let request = client.request(Method::POST, "/api/sessions").header("prefer", "wait=60").json(&body);
    tokio::spawn(async move { request.send().await.expect("an answer") })
}

/// A session had a sandbox when its message arrived, and has none when it handles the message: the sender gets an error,
/// and nothing waits for ever.
#[tokio::test]
async fn a_message_during_an_eviction_is_reported() {
    let server = server("1").await;
    let client = server.client();
    deploy_slow(&client).await;
    let leaving = client.create().await;
    server.arm("save.shot", Point::Pause);
    client.exec(&leaving, "echo something > new").await;
    server.reached("save.shot").await;
    let seen = client.session_seq(&leaving).await;
    let slow = make_slow(&client);
    eventually("the session leaves", async || (client.session_seq(&leaving).await != seen).then_some(()))
        .await;
    let request = client.request(Method::POST, &format!("/api/sessions/{leaving}/messages"));
    let request = request.header("prefer", "wait=0").json(&json!({ "content": "hello" }));
    let mut asked = tokio::spawn(request.send());
    let early = tokio::time::timeout(Duration::from_millis(500), &mut asked).await;
    assert!(early.is_err(), "it is answered when the sandbox is gone: {early:?}");
    server.release("save.shot");
    refused(asked.await.expect("it is asked").expect("an answer")).await;
    // No session waits for a place.
    client.until_status(&leaving, "paused").await;
    assert_eq!(client.session(&leaving).await["openTurns"], 0);
    slow.abort();
}

/// The same with a shared sandbox, which existed when it was looked up.
#[tokio::test]
async fn a_resume_during_the_eviction_of_a_shared_sandbox_is_answered() {
    let server = server("1").await;
    let client = server.client();
    deploy_slow(&client).await;
    let shared = sharing_sessions(&client, 2).await;
    client.action(&shared[0], "stop").await;
    // Its release takes long.
    let shim = server.note(&shared[1]).await["shim"]["pid"].as_u64().expect("a pid") as u32;
    signal(shim, libc::SIGSTOP);
    let slow = make_slow(&client);
    eventually("the other one leaves", async || (pool(&client).await["waiting"] == 0).then_some(())).await;
    let request = client.request(Method::POST, &format!("/api/sessions/{}/resume", shared[0]));
    let resuming = request.header("prefer", "wait=0").send();
    let answer = tokio::time::timeout(DEADLINE, resuming).await;
    signal(shim, libc::SIGCONT);
    refused(answer.expect("an answer without a wait").expect("an answer")).await;
    assert!(["stopped", "paused"].contains(&client.status(&shared[0]).await.as_str()), "at rest");
    slow.abort();
}

/// A restart with fewer places than sandboxes ends none of them.
#[tokio::test]
async fn running_sandboxes_stay_when_the_server_comes_back() {
    let mut server = server("3").await;
    let client = server.client();
    let ids = [client.create().await, client.create().await, client.create().await];
    for id in &ids {
        busy(&client, id).await;
    }
    let mut inits = Vec::new();
    for id in &ids {
        inits.push(server.processes(id).await.init);
    }
    server.set("ASH_MAX_SANDBOXES", "1");
    server.crash_and_start().await;
    let client = server.client();
    eventually("all are back", async || (pool(&client).await["running"] == 3).then_some(())).await;
    assert!(inits.iter().all(|init| is_alive(*init)), "the same sandboxes");
    refused(make(&client, None).await).await;
    for id in &ids {
        client.exec(id, "touch go").await;
    }
    eventually("all are at rest", async || (pool(&client).await["running"] == 0).then_some(())).await;
    assert_eq!(make(&client, Some("wait=30")).await.status(), StatusCode::CREATED);
    eventually("as many made way as it took", async || (pool(&client).await["waiting"] == 1).then_some(()))
        .await;
}

/// When memory is short, idle sessions release theirs, with or without a waiting request.
#[tokio::test]
async fn as_root_memory_is_a_capacity_too() {
    assert!(as_root(), "it looks at the memory of a whole machine");
    // Much more than other processes allocate and free meanwhile.
    let held = available_mb() / 3;
    let least = (available_mb() - held / 2).to_string();
    let server = Server::with(&[("ASH_MIN_MEMORY_MB", &least)]).await;
    let client = server.client();
    client.deploy("tester").await;
    let body = json!({ "agent": "tester", "limits": { "memoryMb": held * 2 } });
    let hungry =
        client.post("/api/sessions", body).await["session"]["id"].as_str().expect("an id").to_owned();
    client.say(&hungry, "write kept: yes").await;
    let hold = format!(
        "(python3 -c 'import time; x = bytearray(b\"1\") * ({held} << 20); open(\"held\", \"w\"); time.sleep(600)' > /dev/null 2>&1 &)"
    );
    client.exec(&hungry, &hold).await;
    client.until_status(&hungry, "paused").await;
    eventually("the memory is back", async || {
        (available_mb() > least.parse::<u64>().expect("a number")).then_some(())
    })
    .await;
    let next = client.create().await;
    assert!(client.text(&next, "hello").await.contains("This is turn 1."));
    assert_eq!(client.text(&hungry, "read kept").await, "yes");

    let starving = Server::with(&[("ASH_MIN_MEMORY_MB", &total_memory_mb().to_string())]).await;
    let client = starving.client();
    client.deploy("tester").await;
    let words = refused(make(&client, None).await).await;
    assert!(words.contains("memory") && words.contains("ASH_MIN_MEMORY_MB"), "{words}");
}
