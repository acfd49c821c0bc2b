//! A waiting line of maximum length: it costs the server almost nothing, has a limit, and is served in order.

use super::{busy, let_go, pool, refused, server};
use crate::support::{Client, Server, eventually};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// The maximum number of waiting requests.
const LONGEST: usize = 512;
/// This many of them wait until they are served.
const PATIENT: usize = 4;
const LOOKS: usize = 600;

fn line_up(client: &Client, name: &str, wait: &str) -> JoinHandle<Response> {
    let body = json!({ "agent": "tester", "sessionId": name });
    let request = client.request(Method::POST, "/api/sessions").header("prefer", wait).json(&body);
    tokio::spawn(async move { request.send().await.expect("an answer") })
}

async fn until_queued(client: &Client, count: usize) {
    eventually(&format!("{count} wait"), async || (pool(client).await["queued"] == count).then_some(()))
        .await;
}

/// The processor time of the server for this many responses, in ticks.
async fn cost(server: &Server, client: &Client) -> u64 {
    let used = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).expect("it runs");
        let words = stat.rsplit(") ").next().expect("its name ends").split(' ').skip(11).take(2);
        words.map(|ticks| ticks.parse::<u64>().expect("a number")).sum::<u64>()
    };
    let before = used();
    for _ in 0..LOOKS {
        pool(client).await;
    }
    used() - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_line_costs_little_ends_somewhere_and_is_served_in_order() {
    let server = server("1").await;
    let client = server.client();
    let worker = client.create().await;
    busy(&client, &worker).await;
    let alone = cost(&server, &client).await;

    let mut patient = Vec::new();
    for number in 0..PATIENT {
        patient.push(line_up(&client, &format!("patient-{number}"), "wait=600"));
        until_queued(&client, number + 1).await;
    }
    let hasty: Vec<_> =
        (PATIENT..LONGEST).map(|number| line_up(&client, &format!("hasty-{number}"), "wait=600")).collect();
    until_queued(&client, LONGEST).await;
    let words = refused(line_up(&client, "late", "wait=600").await.expect("ran")).await;
    assert!(words.contains(&LONGEST.to_string()), "{words}");
    assert_eq!(pool(&client).await["queued"], LONGEST, "told while all the others wait");
    let crowded = cost(&server, &client).await;
    assert!(hasty.iter().all(|request| !request.is_finished()), "they waited all the while");
    // Processor time, not elapsed time. Ten checks per second for each request would cost many times as much.
    assert!(crowded <= alone * 4, "{crowded} ticks instead of {alone}");

    // They disconnect, and leave the line.
    for request in hasty {
        request.abort();
    }
    until_queued(&client, PATIENT).await;
    let_go(&client, &worker).await;
    let mut made = Vec::new();
    for (number, request) in patient.into_iter().enumerate() {
        assert_eq!(request.await.expect("ran").status(), StatusCode::CREATED);
        let session = client.session(&format!("patient-{number}")).await;
        made.push(session["createdAt"].as_str().expect("a time").to_owned());
    }
    assert!(made.is_sorted(), "first come, first served: {made:?}");
}

const SECRET: &str = "a-secret-for-internal-use";

async fn shared_server(most: &str) -> Server {
    Server::with(&[("ASH_MAX_SANDBOXES", most), ("ASH_INTERNAL_SECRET", SECRET)]).await
}

/// A client of a tenant of its own.
async fn tenant(server: &Server, name: &str) -> Client {
    let minted = server.client_with(SECRET).post("/api/internal/api-keys", json!({ "tenantId": name })).await;
    let client = server.client_with(minted["key"].as_str().expect("a key"));
    client.deploy("tester").await;
    client
}

/// Three turns, each of which runs until there is a file with its number.
async fn work_without_a_pause(client: &Client, id: &str) {
    client.post("/api/sessions", json!({ "agent": "tester", "sessionId": id })).await;
    for turn in 1..=3 {
        let mut stream = client
            .send(id, &format!("run: touch began-{turn}; until [ -e {turn} ]; do sleep 0.02; done"))
            .await;
        tokio::spawn(async move { stream.rest().await });
    }
    until_began(client, id, 1).await;
}

async fn until_began(client: &Client, id: &str, turn: u32) {
    eventually("the turn runs", async || {
        let path = format!("/api/sessions/{id}/files/began-{turn}");
        let found = client.request(Method::GET, &path).send().await.expect("an answer");
        found.status().is_success().then_some(())
    })
    .await;
}

/// From outside: a command in the sandbox would keep it in use.
async fn end_turn(client: &Client, id: &str, turn: u32) {
    let file = json!({ "path": turn.to_string(), "content": "" });
    let written = client.post(&format!("/api/sessions/{id}/files"), json!({ "files": [file] })).await;
    assert_eq!(written["files"][0]["written"], true, "{written}");
}

/// A tenant whose sessions always have messages waiting gives places up between two turns, and loses no message.
#[tokio::test]
async fn a_tenant_that_never_rests_makes_way_between_two_turns() {
    let server = shared_server("1").await;
    let (greedy, modest) = (tenant(&server, "greedy").await, tenant(&server, "modest").await);
    work_without_a_pause(&greedy, "one").await;
    let new = json!({ "agent": "tester", "sessionId": "its" });
    let request = modest.request(Method::POST, "/api/sessions").json(&new).header("prefer", "wait=60");
    let share = tokio::spawn(async move { request.send().await.expect("an answer").status() });
    eventually("it waits", async || (pool(&server.client()).await["queued"] == 1).then_some(())).await;
    end_turn(&greedy, "one", 1).await;
    assert_eq!(share.await.expect("no panic"), StatusCode::CREATED);
    // Between two sandboxes a command waits for the next one. It comes when the other tenant's session is idle.
    let command = json!({ "command": "ls", "timeout": 60_000 });
    let listed = tokio::spawn(greedy.request(Method::POST, "/api/sessions/one/exec").json(&command).send());
    until_began(&greedy, "one", 2).await;
    let listed: Value = listed.await.expect("no panic").expect("an answer").json().await.expect("json");
    assert_eq!(listed["exitCode"], 0, "{listed}");
    for turn in [2, 3] {
        end_turn(&greedy, "one", turn).await;
    }
    eventually("all turns are over", async || {
        let session = greedy.session("one").await;
        (session["status"] == "active" && session["turns"] == 3 && session["openTurns"] == 0).then_some(())
    })
    .await;
    let listed = greedy.exec("one", "ls").await;
    assert_eq!(
        listed["stdout"].as_str().map(|names| names.lines().filter(|name| name.starts_with("began")).count()),
        Some(3)
    );
}

/// A client that does not wait, but tries again as it is told to, gets its share, too.
#[tokio::test]
async fn a_tenant_that_tries_again_gets_its_share_of_places() {
    let server = shared_server("1").await;
    let (greedy, modest) = (tenant(&server, "greedy").await, tenant(&server, "modest").await);
    work_without_a_pause(&greedy, "one").await;
    let try_it = async || {
        let new = json!({ "agent": "tester", "sessionId": "its" });
        modest.request(Method::POST, "/api/sessions").json(&new).send().await.expect("an answer")
    };
    refused(try_it().await).await;
    end_turn(&greedy, "one", 1).await;
    eventually("the place is kept for it", async || {
        let answer = try_it().await;
        match answer.status() {
            StatusCode::CREATED => Some(()),
            _ => {
                refused(answer).await;
                None
            }
        }
    })
    .await;
    // The other one goes on when there is a place.
    until_began(&greedy, "one", 2).await;
}

/// One tenant has all places and waits for more; another tenant gets the first free one.
#[tokio::test]
async fn a_tenant_that_waits_gets_its_share_of_places_before_one_that_has_more() {
    let server = shared_server("2").await;
    let (greedy, modest) = (tenant(&server, "greedy").await, tenant(&server, "modest").await);
    let made = async |client: &Client, id: &str| {
        client.post("/api/sessions", json!({ "agent": "tester", "sessionId": id })).await;
    };
    for id in ["one", "two"] {
        made(&greedy, id).await;
        busy(&greedy, id).await;
    }
    let queued = async |count: u64| {
        eventually("they wait", async || (pool(&server.client()).await["queued"] == count).then_some(()))
            .await;
    };
    let wait = |client: &Client, id: &str| {
        let new = json!({ "agent": "tester", "sessionId": id });
        let request = client.request(Method::POST, "/api/sessions").json(&new).header("prefer", "wait=60");
        tokio::spawn(async move { request.send().await.expect("an answer").status() })
    };
    let more = wait(&greedy, "three");
    queued(1).await;
    let share = wait(&modest, "its");
    queued(2).await;
    greedy.exec("one", "touch go").await;
    assert_eq!(share.await.expect("no panic"), StatusCode::CREATED);
    assert!(!more.is_finished(), "it came first, and has more");
    assert_eq!(modest.status("its").await, "active", "it rests between two messages, and keeps its place");
    greedy.exec("two", "touch go").await;
    assert_eq!(more.await.expect("no panic"), StatusCode::CREATED);
    busy(&modest, "its").await;
    let_go(&modest, "its").await;
    made(&modest, "another").await;
    assert_eq!(modest.status("its").await, "paused", "who has as many makes way for itself");
    assert_eq!(greedy.status("three").await, "active");
}
