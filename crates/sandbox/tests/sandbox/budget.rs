//! Usage of model answers: the shim records it, and a budget stops further calls.

use std::{fs, time::Duration};

use ash_model::TokenUsage;
use ash_sandbox::{JournalPayload, ModelUsage, UsageAllowance};
use tokio::time::timeout;

use crate::{
    egress::CURL,
    rig::{DEADLINE, Live, Rig, command, script},
    upstream::{Upstream, connected, connected_without_allowance},
};

const ANSWER: &str =
    r#"{"id":"msg_1","model":"m","content":[],"usage":{"input_tokens":60,"output_tokens":4}}"#;

const START: &str = r#"{"type":"message_start","message":{"id":"msg_1","model":"m","usage":{"input_tokens":7,"output_tokens":1}}}"#;

fn allowance(position: u64, tokens: Option<u64>) -> Option<UsageAllowance> {
    Some(UsageAllowance { position, tokens, nano_usd: None, prices: None })
}

/// The next usage record.
async fn next_usage(live: &mut Live) -> (u16, ModelUsage) {
    loop {
        let record = timeout(DEADLINE, live.records.next()).await.expect("in time").expect("a record");
        if let JournalPayload::Usage(usage) = record.payload {
            return (record.process, usage);
        }
    }
}

#[tokio::test]
async fn usage_is_in_the_journal_before_the_end_of_the_answer_reaches_the_sandbox() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    live.remote.set_allowance(1, allowance(0, None)).await.expect("sent");
    let ask = format!("{CURL} -N http://localhost/v1/messages -d '{{\"model\":\"m\"}}'");
    live.start(script(7, &ask)).await;
    let mut call = upstream.next().await;
    call.begin_stream().await;
    call.chunk(&format!("data: {START}\n\n")).await;
    let used = |message: &str, input_tokens, output_tokens, torn| {
        let usage = TokenUsage { input_tokens, output_tokens, ..TokenUsage::default() };
        (1, ModelUsage { message: message.to_owned(), model: "m".to_owned(), usage, torn })
    };
    assert_eq!(next_usage(&mut live).await, used("msg_1", 7, 1, true));
    call.chunk("data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":9}}\n\n").await;
    assert_eq!(next_usage(&mut live).await, used("msg_1", 7, 9, false));
    call.say("0\r\n\r\n").await;
    live.finish().await;
    // The usage record comes before anything that the caller prints about the answer.
    live.start(script(8, &ask)).await;
    upstream.next().await.answer(&ANSWER.replace("msg_1", "msg_2")).await;
    assert_eq!(next_usage(&mut live).await, used("msg_2", 60, 4, false));
    live.finish().await;
    // A refused call costs nothing, and an answer that breaks off costs what arrived.
    live.start(script(9, &format!("{ask}; {ask}"))).await;
    let mut refused = upstream.next().await;
    refused.say("HTTP/1.1 529 Overloaded\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").await;
    let mut call = upstream.next().await;
    call.begin_stream().await;
    call.chunk(&format!("data: {}\n\n", START.replace("msg_1", "msg_3"))).await;
    assert_eq!(next_usage(&mut live).await, used("msg_3", 7, 1, true));
    drop(call);
    assert_eq!(next_usage(&mut live).await, used("msg_3", 7, 1, true));
}

#[tokio::test]
async fn a_budget_closes_the_route_for_every_process_while_no_server_lives() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    live.remote.set_allowance(1, allowance(0, Some(100))).await.expect("sent");
    let ask = format!("{CURL} -w ' %{{http_code}}\\n' http://localhost/v1/messages -d x");
    // The server disconnects before the first call is answered.
    live.start(script(
        5,
        &format!("({ask}; {ask}; {ask}; {CURL} http://localhost/v1/models) > out; mv out done"),
    ))
    .await;
    let first = upstream.next().await;
    drop(live);
    first.answer(ANSWER).await;
    upstream.next().await.answer(&ANSWER.replace("msg_1", "msg_2")).await;
    // The third call is refused; a call that costs nothing still passes.
    let call = upstream.next().await;
    assert_eq!(call.line(), "GET /v1/models HTTP/1.1");
    call.answer("free").await;
    let done = rig.spec.workspace.join("done");
    timeout(DEADLINE, async {
        while !done.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("in time");
    let out = fs::read_to_string(done).expect("written");
    assert!(out.contains("billing_error") && out.contains("maxTokens") && out.contains(" 402"), "{out}");
    // The next server receives the usage records, and allows more.
    let knocked = rig.knock(9).await;
    assert!(knocked.hello.usage);
    let mut live = Live::of(knocked.follow(0).await.expect("followed"));
    let (_, one) = next_usage(&mut live).await;
    let (_, two) = next_usage(&mut live).await;
    assert_eq!((one.message.as_str(), two.message.as_str()), ("msg_1", "msg_2"));
}

/// Otherwise a caller could hang up before the end of each answer and pay nothing.
#[tokio::test]
async fn a_caller_that_hangs_up_pays_for_what_the_service_goes_on_to_say() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    let ask = format!("{CURL} -N http://localhost/v1/messages -d '{{\"model\":\"m\"}}'");
    let kill = rustix::process::Signal::KILL.as_raw();
    // Before an answer has begun.
    live.start(script(1, &ask)).await;
    let call = upstream.next().await;
    live.remote.signal(1, kill).await.expect("sent");
    live.finish().await;
    call.answer(ANSWER).await;
    let (_, used) = next_usage(&mut live).await;
    assert_eq!((used.message.as_str(), used.usage.tokens(), used.torn), ("msg_1", 64, false));
    // In the middle of a stream.
    live.start(script(1, &ask)).await;
    let mut call = upstream.next().await;
    call.begin_stream().await;
    call.chunk(&format!("data: {}\n\n", START.replace("msg_1", "msg_2"))).await;
    assert!(next_usage(&mut live).await.1.torn);
    live.remote.signal(1, kill).await.expect("sent");
    live.finish().await;
    call.chunk("data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":900}}\n\n").await;
    call.say("0\r\n\r\n").await;
    let (_, used) = next_usage(&mut live).await;
    assert_eq!((used.message.as_str(), used.usage.output_tokens, used.torn), ("msg_2", 900, false));
}

#[tokio::test]
async fn an_answer_that_we_stop_reading_counts_as_the_requested_maximum() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    let ask = format!("{CURL} -N http://localhost/v1/messages -d '{{\"model\":\"m\",\"max_tokens\":5000}}'");
    live.start(script(1, &ask)).await;
    let mut call = upstream.next().await;
    call.begin_stream().await;
    call.chunk(&format!("data: {START}\n\n")).await;
    assert_eq!(next_usage(&mut live).await.1.usage.output_tokens, 1);
    live.remote.set_egress(None).await.expect("sent");
    let (_, used) = next_usage(&mut live).await;
    assert_eq!((used.usage.input_tokens, used.usage.output_tokens, used.torn), (7, 5000, true));
}

/// No budget could be charged for a socket without a session.
#[tokio::test]
async fn the_first_socket_is_closed_until_a_server_speaks_for_it() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected_without_allowance(&rig, &upstream, "sesame").await;
    let ask = format!("{CURL} -o /dev/null -w '%{{http_code}}' http://localhost/v1/messages -d x");
    live.start(script(5, &ask)).await;
    assert_eq!(live.finish().await.0, ["503"]);
    assert!(upstream.is_quiet().await);
    live.remote.set_allowance(1, allowance(0, None)).await.expect("sent");
    live.start(script(6, &ask)).await;
    upstream.next().await.answer(ANSWER).await;
    assert_eq!(live.finish().await.0, ["200"]);
}

#[tokio::test]
async fn each_session_of_a_sandbox_has_its_own_socket_and_account() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    live.remote.set_allowance(1, allowance(0, Some(10))).await.expect("sent");
    live.remote.set_allowance(2, allowance(0, None)).await.expect("sent");
    live.remote.thaw().await.expect("the frames before it are obeyed");
    let second = CURL.replace("model.sock", "model.2.sock");
    let ask =
        |curl: &str| format!("{curl} -o /dev/null -w '%{{http_code}}\\n' http://localhost/v1/messages -d x");
    for (curl, process) in [(CURL, 1), (second.as_str(), 2)] {
        live.start(script(5, &ask(curl))).await;
        upstream.next().await.answer(ANSWER).await;
        assert_eq!(next_usage(&mut live).await.0, process);
        live.finish().await;
    }
    // The first session's budget is used up, the second continues; a session that has left has no access.
    live.start(script(6, &format!("{}; {}", ask(CURL), ask(&second)))).await;
    upstream.next().await.answer(ANSWER).await;
    assert_eq!(live.finish().await.0, ["402", "200"]);
    live.remote.set_allowance(2, None).await.expect("sent");
    assert_eq!(live.run(&ask(&second)).await.0, ["503"]);
}

/// Prints the statuses of `count` calls, one after the other, on each of two sockets in parallel.
const CALLS: &str = r#"
import socket, sys, threading
def call(path):
    s = socket.socket(socket.AF_UNIX); s.connect(path)
    s.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")
    head = s.recv(12).decode()
    while s.recv(65536): pass
    return head[9:12]
def calls(path, count): seen.extend(call(path) for _ in range(count))
seen, count, at_once = [], int(sys.argv[1]), int(sys.argv[2])
paths = ["/run/ash/model.sock", "/run/ash/model.2.sock"]
threads = [threading.Thread(target=calls, args=(path, count)) for path in paths for _ in range(at_once)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(*sorted((status, seen.count(status)) for status in set(seen)))
"#;

async fn two_sockets(upstream: &Upstream, rig: &Rig, count: &str, at_once: &str) -> Live {
    let mut live = connected(rig, upstream, "sesame").await;
    live.remote.set_allowance(1, allowance(0, None)).await.expect("sent");
    live.remote.set_allowance(2, allowance(0, None)).await.expect("sent");
    live.remote.thaw().await.expect("the frames before it are obeyed");
    live.start(command(5, &["/usr/bin/python3", "-c", CALLS, count, at_once])).await;
    live
}

#[tokio::test]
async fn all_sessions_of_a_sandbox_share_its_64_requests_at_once() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = two_sockets(&upstream, &rig, "1", "40").await;
    let mut calls = Vec::new();
    for _ in 0..64 {
        calls.push(upstream.next().await);
    }
    assert!(upstream.is_quiet().await, "the 65th waits");
    for _ in 64..80 {
        calls.pop().expect("one of 64").answer(ANSWER).await;
        calls.push(upstream.next().await);
    }
    for call in calls {
        call.answer(ANSWER).await;
    }
    assert_eq!(live.finish().await.0, ["('200', 80)"]);
}

#[tokio::test]
async fn all_sessions_of_a_sandbox_share_its_thousand_requests_a_minute() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = two_sockets(&upstream, &rig, "501", "1").await;
    for _ in 0..1000 {
        upstream.next().await.answer(ANSWER).await;
    }
    let printed = live.finish().await.0.concat();
    assert_eq!(printed, "('200', 1000) ('429', 2)");
}
