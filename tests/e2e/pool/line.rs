//! A line as long as it gets: it costs the server next to nothing, ends somewhere, and is served in order.

use super::{busy, let_go, pool, refused, server};
use crate::support::{Client, Server, eventually};
use reqwest::{Method, Response, StatusCode};
use serde_json::json;
use tokio::task::JoinHandle;

/// So many may wait.
const LONGEST: usize = 512;
/// Of these so many wait until they are served.
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

/// What the server needs of its processor to answer so often, in ticks.
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
    // Of the processor, not of the clock. Ten looks a second of each of them would cost many times as much.
    assert!(crowded <= alone * 4, "{crowded} ticks instead of {alone}");

    // They hang up, and leave the line.
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
