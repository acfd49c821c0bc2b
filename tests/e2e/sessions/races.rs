//! Concurrent commands for one session: every caller gets a response, and another caller's command causes no internal
//! error.

use crate::support::{Client, Dice, Point, Server, children, cmdline, eventually};
use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

/// No request takes longer, whatever other commands the session gets.
const ANSWERED: Duration = Duration::from_secs(30);

type Answered = (StatusCode, Value);

fn later(client: &Client, method: Method, path: String, body: Value) -> JoinHandle<Answered> {
    let client = client.clone();
    tokio::spawn(async move {
        let request = client.request(method, &path).header("accept", "application/json").json(&body);
        let response = tokio::time::timeout(ANSWERED, request.send()).await;
        let response = response.unwrap_or_else(|_| panic!("unanswered: {path}")).expect("an answer");
        (response.status(), response.json().await.unwrap_or(Value::Null))
    })
}

fn post(client: &Client, id: &str, action: &str, body: Value) -> JoinHandle<Answered> {
    later(client, Method::POST, format!("/api/sessions/{id}/{action}"), body)
}

fn end(client: &Client, id: &str) -> JoinHandle<Answered> {
    later(client, Method::DELETE, format!("/api/sessions/{id}"), json!({}))
}

fn code(answered: &Answered) -> (u16, &str) {
    (answered.0.as_u16(), answered.1["code"].as_str().unwrap_or_default())
}

/// The end arrives after the resume was accepted and before its start, because other work is under way.
#[tokio::test]
async fn a_resume_that_an_end_overtakes_is_answered() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "say: hello").await;
    client.action(&id, "stop").await;
    server.arm("rewind.written", Point::Pause);
    let rewinding = post(&client, &id, "rewind", json!({ "checkpoint": 1 }));
    server.reached("rewind.written").await;
    let resuming = post(&client, &id, "resume", json!({}));
    client.until_status(&id, "starting").await;
    let ending = end(&client, &id);
    eventually("the end is under way", async || {
        let pausing = post(&client, &id, "pause", json!({})).await.expect("answered");
        (pausing.1["error"] == "Session is ended").then_some(())
    })
    .await;
    server.release("rewind.written");
    let resumed = resuming.await.expect("answered");
    assert_eq!(code(&resumed), (410, "session_ended"), "{resumed:?}");
    assert_eq!(ending.await.expect("answered").0, 200);
    rewinding.await.expect("answered");
}

#[tokio::test]
#[expect(clippy::async_yields_async, reason = "the answer to the second message comes later")]
async fn another_callers_command_is_a_conflict_that_says_whether_the_message_is_queued() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    // One turn runs, one message waits.
    let waiting = async |hold: &str| {
        let mut running = client.send(&id, &format!("hold {hold}: one two")).await;
        running.until("text_delta").await;
        let second = post(&client, &id, "messages", json!({ "content": "second" }));
        eventually("it waits", async || (client.session(&id).await["openTurns"] == 2).then_some(())).await;
        second
    };
    let done = async || {
        eventually("all is done", async || (client.session(&id).await["openTurns"] == 0).then_some(())).await;
    };
    let second = waiting("go").await;
    let command = post(&client, &id, "exec", json!({ "command": "touch begun; sleep 100" }));
    let begun = server.live(&id).await.join("tree/workspace/begun");
    eventually("the command runs", async || begun.exists().then_some(())).await;
    client.action(&id, "stop").await;
    let (second, command) = (second.await.expect("answered"), command.await.expect("answered"));
    assert_eq!(code(&second), (409, "session_stopped"), "{second:?}");
    assert_eq!(second.1["queued"], true, "{second:?}");
    assert_eq!(code(&command), (409, "sandbox_ended"), "{command:?}");
    server.let_go(&id, "go").await;
    client.action(&id, "resume").await;
    done().await;

    let second = waiting("further").await;
    let mut third = client.send(&id, "third").await;
    third.until("session_start").await;
    client.action(&id, "pause").await;
    let told = third.until("error").await.pop().expect("a frame").data;
    assert_eq!((&told["code"], &told["queued"]), (&json!("session_paused"), &json!(true)), "{told}");
    let second = second.await.expect("answered");
    assert_eq!((code(&second), &second.1["queued"]), ((409, "session_paused"), &json!(true)), "{second:?}");
    server.let_go(&id, "further").await;
    client.action(&id, "resume").await;
    done().await;

    // A stop that an end overtakes: it does not mean that the server is stopping.
    let mut running = client.send(&id, "slow 60000: never").await;
    running.until("message").await;
    let processes = server.processes(&id).await;
    crate::support::signal(processes.agent, libc::SIGSTOP);
    let stopping = post(&client, &id, "stop", json!({}));
    // A stop first interrupts the turn.
    eventually("the stop is under way", async || {
        let events = client.get(&format!("/api/sessions/{id}/events?limit=1000")).await;
        events.to_string().contains("interrupt").then_some(())
    })
    .await;
    let ending = end(&client, &id);
    let (stopped, ended) = (stopping.await.expect("answered"), ending.await.expect("answered"));
    assert_eq!(ended.0, 200, "{ended:?}");
    assert_eq!(code(&stopped), (410, "session_ended"), "{stopped:?}");
}

/// Only while it stops: requests get this error during the grace period of running turns, and not before.
#[tokio::test]
async fn a_stopping_server_says_so() {
    let mut server = Server::start().await;
    let client = server.client();
    let (busy, rests) = (client.create().await, client.create().await);
    client.action(&rests, "pause").await;
    let mut running = client.send(&busy, "hold go: one two").await;
    running.until("text_delta").await;
    crate::support::signal(server.pid(), libc::SIGTERM);
    let stopping = async |method: Method, path: String, body: Value| {
        eventually(&format!("{path} is refused"), async || {
            let answered =
                later(&client, method.clone(), path.clone(), body.clone()).await.expect("answered");
            (code(&answered) == (503, "server_stopping")).then_some(())
        })
        .await;
    };
    // Once the server is stopping it refuses every new command at once.
    stopping(Method::POST, format!("/api/sessions/{rests}/resume"), json!({})).await;
    for (path, body) in [
        ("/api/sessions".to_owned(), json!({ "agent": "tester" })),
        (format!("/api/sessions/{rests}/messages"), json!({ "content": "hi" })),
        (format!("/api/sessions/{busy}/messages"), json!({ "content": "hi" })),
        (format!("/api/sessions/{busy}/exec"), json!({ "command": "true" })),
        (format!("/api/sessions/{busy}/pause"), json!({})),
    ] {
        let answered = later(&client, Method::POST, path.clone(), body).await.expect("answered");
        assert_eq!(code(&answered), (503, "server_stopping"), "{path}: {answered:?}");
        assert_eq!(answered.1["error"], "The server is stopping; try again in a moment");
    }
    assert_eq!(client.session(&busy).await["status"], "active", "what is there can be read");
    server.let_go(&busy, "go").await;
    let end = running.rest().await.pop().expect("an end");
    assert_eq!((end.event.as_str(), &end.data["status"]), ("done", &json!("done")), "the turn had its time");
    assert!(server.ended().await);
    server.launch().await;
    assert_eq!(server.client().action(&rests, "resume").await["session"]["status"], "active");
}

/// The first caller that waits for a start gets the error itself, the others get a copy: all with the same status.
#[tokio::test]
async fn all_callers_that_wait_for_a_stopped_start_get_the_same_answer() {
    let server = Server::start().await;
    let client = server.client();
    let files = json!([{ "path": "startup.sh", "content": STANDARD.encode("touch begun\nsleep 1000\n") }]);
    client.post("/api/agents", json!({ "name": "slow", "files": files })).await;
    let made = later(
        &client,
        Method::POST,
        "/api/sessions".to_owned(),
        json!({ "agent": "slow", "sessionId": "one" }),
    );
    eventually("it starts", async || {
        let (status, body) = client.ask(Method::GET, "/api/sessions/one/logs", None).await;
        (status == 200 && body.is_object()).then_some(())
    })
    .await;
    let begun = server.live("one").await.join("tree/workspace/begun");
    eventually("its script runs", async || begun.exists().then_some(())).await;
    let message = post(&client, "one", "messages", json!({ "content": "first" }));
    let resumed = post(&client, "one", "resume", json!({}));
    eventually("it waits", async || (client.session("one").await["openTurns"] == 1).then_some(())).await;
    client.action("one", "stop").await;
    for answered in [made.await.expect("answered"), resumed.await.expect("answered")] {
        assert!([(409, "setup_stopped"), (400, "wrong_status")].contains(&code(&answered)), "{answered:?}");
    }
    let message = message.await.expect("answered");
    assert_eq!(
        (code(&message), &message.1["queued"]),
        ((409, "session_stopped"), &json!(true)),
        "{message:?}"
    );
}

/// The first caller gets the error itself, the others a copy, and the message reads it from the log.
#[tokio::test]
async fn all_callers_that_wait_for_a_failed_start_get_the_same_answer() {
    let server = Server::start().await;
    let client = server.client();
    let files = json!([{ "path": "startup.sh", "content": STANDARD.encode("touch begun\nsleep 1000\n") }]);
    client.post("/api/agents", json!({ "name": "slow", "files": files })).await;
    let body = json!({ "agent": "slow", "sessionId": "one" });
    let made = later(&client, Method::POST, "/api/sessions".to_owned(), body);
    eventually("it is there", async || {
        (client.ask(Method::GET, "/api/sessions/one", None).await.0 == 200).then_some(())
    })
    .await;
    let live = server.live("one").await;
    eventually("its script runs", async || live.join("tree/workspace/begun").exists().then_some(())).await;
    let message = post(&client, "one", "messages", json!({ "content": "first" }));
    eventually("it waits", async || (client.session("one").await["openTurns"] == 1).then_some(())).await;
    let resumed = (0..2).map(|_| post(&client, "one", "resume", json!({})));
    let waiting: Vec<_> = std::iter::once(made).chain(resumed).collect();
    // A resume that comes too late for this start begins another one, which fails in the same way.
    let mut killed = 0;
    eventually("all are answered", async || {
        let note = std::fs::read(live.join("run/init")).unwrap_or_default();
        let note: Value = serde_json::from_slice(&note).unwrap_or_default();
        let init = note["init"]["pid"].as_u64().unwrap_or_default() as u32;
        if init != 0 && init != killed {
            crate::support::signal(init, libc::SIGKILL);
            killed = init;
        }
        waiting.iter().all(JoinHandle::is_finished).then_some(())
    })
    .await;
    for answered in waiting {
        let answered = answered.await.expect("answered");
        assert_eq!(code(&answered), (503, "sandbox_failed"), "{answered:?}");
    }
    let message = message.await.expect("answered");
    assert_eq!(
        (code(&message), &message.1["queued"]),
        ((503, "sandbox_failed"), &json!(true)),
        "{message:?}"
    );
}

#[tokio::test]
async fn stops_that_wait_for_a_failed_start_all_find_nothing_to_stop() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    server.arm("live.without_stamp", Point::Pause);
    let body = json!({ "agent": "tester", "sessionId": "one" });
    let made = later(&client, Method::POST, "/api/sessions".to_owned(), body);
    server.reached("live.without_stamp").await;
    let stopping: Vec<_> = (0..5).map(|_| post(&client, "one", "stop", json!({}))).collect();
    eventually("a stop is under way", async || {
        let paused = post(&client, "one", "pause", json!({})).await.expect("answered");
        (paused.1["error"] == "Session is stopped").then_some(())
    })
    .await;
    // Replaces the folder that the start needs next.
    let run = server.live("one").await.join("run");
    std::fs::remove_dir_all(&run).expect("removed");
    std::fs::write(&run, "").expect("a file");
    server.release("live.without_stamp");
    let made = made.await.expect("answered");
    assert_eq!(code(&made), (500, "sandbox_failed"), "{made:?}");
    for stopped in stopping {
        let stopped = stopped.await.expect("answered");
        assert_eq!(code(&stopped), (400, "wrong_status"), "{stopped:?}");
    }
}

/// The key is checked before a sandbox is built; if a part was built anyway, it is removed.
#[tokio::test]
async fn a_resume_without_the_tenants_key_leaves_no_process_behind() {
    let keys = tempfile::tempdir().expect("a directory");
    let mut server = Server::with(&[("ASH_SNAPSHOT_KEYS", keys.path().to_str().expect("a path"))]).await;
    let client = server.client();
    client.deploy("tester").await;
    for id in ["stays", "comes"] {
        client
            .post("/api/sessions", json!({ "agent": "tester", "sessionId": id, "workspace": "shared" }))
            .await;
        client.say(id, "say: hello").await;
    }
    client.action("comes", "stop").await;
    // The other session continues in the shared sandbox, so this session's agent has a place to start.
    server.leave().await;
    let others = tempfile::tempdir().expect("a directory");
    server.set("ASH_SNAPSHOT_KEYS", others.path().to_str().expect("a path"));
    server.launch().await;
    let init = server.note("stays").await["init"]["pid"].as_u64().expect("a pid") as u32;
    let agents = || children(init).into_iter().filter(|pid| cmdline(*pid).contains("builtin-agent")).count();
    assert_eq!(agents(), 1);
    let resumed = post(&server.client(), "comes", "resume", json!({})).await.expect("answered");
    assert_eq!(code(&resumed), (422, "snapshot_key_missing"), "{resumed:?}");
    eventually("only the other one's agent is left", async || (agents() == 1).then_some(())).await;
}

#[tokio::test]
async fn a_deploy_that_is_sent_again_with_one_key_makes_one_version() {
    let server = Server::start().await;
    let client = server.client();
    let deploy = async |key: &str, prompt: &str| {
        let body = json!({ "name": "helper", "systemPrompt": prompt });
        let request = client.request(Method::POST, "/api/agents").header("idempotency-key", key).json(&body);
        let response = request.send().await.expect("an answer");
        (
            response.status().as_u16(),
            response.json::<Value>().await.expect("JSON")["agent"]["version"].clone(),
        )
    };
    assert_eq!(deploy("a", "one").await, (201, json!(1)));
    assert_eq!(deploy("a", "one").await, (201, json!(1)));
    assert_eq!(deploy("b", "two").await, (201, json!(2)));
    assert_eq!(deploy("a", "one").await, (201, json!(1)), "although there is another since");
    assert_eq!(client.get("/api/agents/helper").await["agent"]["version"], 2);
    let both = futures::future::join(deploy("c", "three"), deploy("c", "three")).await;
    assert_eq!(both, ((201, json!(3)), (201, json!(3))));
}

#[tokio::test]
async fn deleting_an_agent_leaves_its_sessions_whole() {
    let server = Server::start().await;
    let client = server.client();
    let files = |team: &str| {
        let startup = format!("echo {team} > started-by");
        json!([
            { "path": "team", "content": STANDARD.encode(team) },
            { "path": "startup.sh", "content": STANDARD.encode(startup) },
        ])
    };
    let deploy = async |team: &str| {
        client
            .post("/api/agents", json!({ "name": "gone", "files": files(team), "env": { "TEAM": team } }))
            .await;
    };
    deploy("red").await;
    for id in ["rests", "runs"] {
        client.post("/api/sessions", json!({ "agent": "gone", "sessionId": id })).await;
        client.text(id, "run: cat team").await;
    }
    client.action("rests", "stop").await;
    client.delete("/api/agents/gone").await;
    let refused = later(&client, Method::POST, "/api/sessions".to_owned(), json!({ "agent": "gone" })).await;
    assert_eq!(code(&refused.expect("answered")), (404, "agent_not_found"));
    for id in ["rests", "runs"] {
        // A message wakes it, and its files are saved.
        assert!(
            client.text(id, "run: cat team; echo $TEAM; echo more > more").await.contains("redred"),
            "{id}"
        );
        let said = client.say(id, "say: saved").await;
        assert!(said["checkpoint"].as_u64() > Some(1) && said["error"].is_null(), "{said}");
        assert_eq!(client.action(id, "pause").await["session"]["status"], "paused");
        assert_eq!(client.action(id, "resume").await["session"]["status"], "active");
        client.action(id, "stop").await;
        assert_eq!(client.action(id, "resume").await["resume"]["lost"], json!([]));
    }
    // A redeploy under the name makes a new version, which these sandboxes do not have.
    deploy("blue").await;
    client.action("runs", "stop").await;
    client.action("runs", "resume").await;
    assert!(client.text("runs", "run: cat team").await.contains("red"));
    let started_by = client.exec("runs", "cat started-by").await;
    assert_eq!(started_by["stdout"], "red\n", "its own version's startup.sh ran: {started_by}");
    for id in ["rests", "runs"] {
        assert_eq!(client.delete(&format!("/api/sessions/{id}")).await["session"]["status"], "ended");
    }
}

/// Commands of 50 clients for one session, all at once, for this long.
async fn race(lasting: Duration) {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    let until = Instant::now() + lasting;
    let racers: Vec<_> = (0..50).map(|number| tokio::spawn(racer(client.clone(), number, until))).collect();
    let mut all: BTreeMap<(u16, String), u64> = BTreeMap::new();
    let mut slowest = Duration::ZERO;
    for racer in racers {
        let (seen, longest) = racer.await.expect("a racer that got its answers");
        seen.into_iter().for_each(|(answer, count)| *all.entry(answer).or_default() += count);
        slowest = slowest.max(longest);
    }
    let total: u64 = all.values().sum();
    println!("{total} answers, the slowest after {slowest:?}: {all:#?}");
    for (status, code) in all.keys().filter(|(status, _)| *status >= 500) {
        assert_eq!((*status, code.as_str()), (503, "try_again"), "{all:#?}");
    }
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// All clients use one session; a client that finds it ended creates the next one.
async fn racer(client: Client, number: u64, until: Instant) -> (BTreeMap<(u16, String), u64>, Duration) {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (number + 1));
    let (mut seen, mut longest, mut token) = (BTreeMap::new(), Duration::ZERO, None::<String>);
    // All of them use the same one for a while.
    let mut generation = 0_u64;
    while Instant::now() < until {
        let id = format!("race-{generation}");
        let path = |action: &str| format!("/api/sessions/{id}/{action}");
        let (method, path, body) = match dice.below(40) {
            0..3 => (Method::POST, "/api/sessions".to_owned(), json!({ "agent": "tester", "sessionId": id })),
            3..10 => (Method::POST, path("resume"), json!({})),
            10..15 => (Method::POST, path("pause"), json!({})),
            15..18 => (Method::POST, path("stop"), json!({})),
            // A purged session is created again under the same name.
            18 if number.is_multiple_of(3) => {
                (Method::DELETE, format!("/api/sessions/{id}?purge=true"), json!({}))
            }
            18 => (Method::DELETE, format!("/api/sessions/{id}"), json!({})),
            19..21 => (
                Method::POST,
                path("fork"),
                json!({ "sessionId": format!("fork-{number}-{}", dice.below(u64::MAX)) }),
            ),
            21..24 => (Method::POST, path("rewind"), json!({ "checkpoint": 1 })),
            24..28 => (Method::PATCH, path("config"), json!({ "env": { "N": number.to_string() } })),
            // A lock refuses nearly every client, so most generations have none.
            28..31 if generation.is_multiple_of(4) => {
                (Method::POST, path("lock"), json!({ "ttl": 1, "takeover": number.is_multiple_of(2) }))
            }
            31..33 => (Method::DELETE, path("lock"), json!({})),
            33..35 => (Method::POST, path("exec"), json!({ "command": "echo x > y" })),
            _ => (Method::POST, path("messages"), json!({ "content": "say: hello" })),
        };
        let mut request =
            client.request(method.clone(), &path).header("accept", "application/json").json(&body);
        if let Some(token) = &token {
            request = request.header("x-ash-lock", token);
        }
        let began = Instant::now();
        let response = tokio::time::timeout(ANSWERED, request.send()).await;
        let response = response.unwrap_or_else(|_| panic!("unanswered after 30 s: {method} {path}"));
        let response = response.expect("an answer");
        let status = response.status();
        let body: Value = response.json().await.unwrap_or(Value::Null);
        longest = longest.max(began.elapsed());
        let code = body["code"].as_str().unwrap_or_default().to_owned();
        token = match (path.ends_with("/lock"), body["lock"]["token"].as_str()) {
            (true, Some(token)) => Some(token.to_owned()),
            (true, None) => None,
            (false, _) if code == "lock_lost" => None,
            (false, _) => token,
        };
        if code == "session_ended" || (status == 200 && method == Method::DELETE && path.ends_with(&id)) {
            generation += 1;
        }
        if body["session"]["id"].as_str().is_some_and(|id| id.starts_with("fork-")) {
            // Its sandbox would take a place from the race.
            let id = body["session"]["id"].as_str().expect("an id");
            client.ask(Method::DELETE, &format!("/api/sessions/{id}"), None).await;
        }
        *seen.entry((status.as_u16(), code)).or_default() += 1;
    }
    (seen, longest)
}

#[tokio::test]
async fn fifty_clients_that_race_on_one_session_all_get_an_answer() {
    race(Duration::from_secs(8)).await;
}

#[tokio::test]
async fn slowly_fifty_clients_race_on_one_session_for_three_minutes() {
    race(Duration::from_secs(180)).await;
}

/// Each of the requests finds no agent called `default`.
#[tokio::test]
async fn sessions_that_are_made_at_once_make_one_version_of_the_default_agent() {
    let server = Server::start().await;
    let client = server.client();
    let create = || {
        let client = client.clone();
        async move { client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "default" }))).await }
    };
    for (status, made) in futures::future::join_all((0..20).map(|_| create())).await {
        assert!([201, 503].contains(&status.as_u16()), "{status} {made}");
    }
    assert_eq!(client.get("/api/agents/default").await["agent"]["version"], 1);
    let audit = client.get("/api/audit").await;
    let deployed = audit["audit"].as_array().expect("a list").iter();
    assert_eq!(deployed.filter(|entry| entry["action"] == "deployed").count(), 1, "{audit}");
}

/// After a deploy of `default`, new sessions use that agent.
#[tokio::test]
async fn a_deploy_of_the_default_agent_is_not_superseded_by_the_one_that_is_built_in() {
    let server = Server::start().await;
    let client = server.client();
    let create = || {
        let client = client.clone();
        async move { client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "default" }))).await }
    };
    let creating: Vec<_> = (0..20).map(|_| tokio::spawn(create())).collect();
    client.post("/api/agents", json!({ "name": "default", "systemPrompt": "mine" })).await;
    for created in creating {
        created.await.expect("answered");
    }
    let made = client.post("/api/sessions", json!({ "agent": "default" })).await;
    let id = made["session"]["id"].as_str().expect("an id");
    assert_eq!(client.exec(id, "cat CLAUDE.md").await["stdout"], "mine");
}
