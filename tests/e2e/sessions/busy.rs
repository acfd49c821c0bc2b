//! Commands for a session that is running a turn: messages wait in a queue that clients can read and change, are refused,
//! or go first; and a client may lock a session.

use crate::support::{Client, Frame, Server, eventually, names, ok, runtime::Stage};
use futures::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A turn that runs until it is interrupted.
const SLOW: &str = "hold never: one two three four five six seven eight nine ten";

impl Client {
    async fn push(&self, id: &str, text: &str, on_busy: &str) -> (StatusCode, Value) {
        let body = json!({ "content": text, "onBusy": on_busy });
        let request = self.request(Method::POST, &format!("/api/sessions/{id}/messages")).json(&body);
        let response = request.header("accept", "application/json").send().await.expect("sent");
        (response.status(), response.json().await.unwrap_or(Value::Null))
    }

    async fn queue(&self, id: &str) -> Vec<Value> {
        self.get(&format!("/api/sessions/{id}/queue")).await["queue"].as_array().expect("a list").clone()
    }

    async fn lock(&self, id: &str, body: Value) -> Value {
        self.post(&format!("/api/sessions/{id}/lock"), body).await["lock"].clone()
    }

    /// A request with the token of a lock, or without.
    async fn with_lock(&self, method: Method, path: &str, token: Option<&str>, body: Value) -> (u16, Value) {
        let request = self.request(method, path).header("accept", "application/json").json(&body);
        let request = match token {
            Some(token) => request.header("x-ash-lock", token),
            None => request,
        };
        let response = request.send().await.expect(path);
        (response.status().as_u16(), response.json().await.unwrap_or(Value::Null))
    }

    async fn until_waiting(&self, id: &str, number: usize) -> Vec<Value> {
        eventually("the messages wait", async || {
            let queue = self.queue(id).await;
            (queue.iter().filter(|turn| turn["status"] == "queued").count() == number).then_some(queue)
        })
        .await
    }
}

fn contents(queue: &[Value]) -> Vec<&str> {
    queue.iter().map(|turn| turn["content"].as_str().expect("text")).collect()
}

/// The content of each stream: its own turn, one answer, one end.
fn answered_once(frames: &[Frame]) -> String {
    let turns: BTreeSet<&str> = frames.iter().filter_map(|frame| frame.data["turn"].as_str()).collect();
    assert_eq!(turns.len(), 1, "one turn in one stream: {:?}", names(frames));
    let results = frames.iter().filter(|frame| frame.event == "turn_complete").count();
    assert_eq!((results, frames.last().expect("an end").event.as_str()), (1, "done"));
    (*turns.first().expect("a turn")).to_owned()
}

/// The messages of a session, in the order of acceptance.
async fn prompts(client: &Client, id: &str) -> Vec<String> {
    let whole = client.get(&format!("/api/sessions/{id}/messages?limit=1000")).await;
    let messages = whole["messages"].as_array().expect("a list").iter();
    let prompts = messages.filter(|message| message["role"] == "user").filter_map(|message| {
        let said: Value = serde_json::from_str(message["content"].as_str()?).ok()?;
        said["content"].as_str().map(str::to_owned)
    });
    prompts.collect()
}

/// The messages of a session in the order of acceptance, and the lines that they wrote when they ran.
async fn accepted_and_run(client: &Client, id: &str) -> (Vec<String>, Vec<String>) {
    let prompts = prompts(client, id).await;
    let accepted = prompts.iter().filter_map(|prompt| prompt.strip_prefix("run: echo "));
    let accepted = accepted.filter_map(|rest| rest.strip_suffix(" >> order").map(str::to_owned)).collect();
    let order = client.text(id, "read order").await;
    (accepted, order.lines().map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_clients_are_each_answered_once_in_the_queues_order() {
    let server = Server::start().await;
    let id = server.client().create().await;
    let send = async |n: usize| {
        // Each on its own connections.
        server.client().send(&id, &format!("run: echo {n} >> order")).await.rest().await
    };
    let streams = join_all((0..100).map(send)).await;
    let turns: BTreeSet<String> = streams.iter().map(|frames| answered_once(frames)).collect();
    assert_eq!(turns.len(), 100);
    let (accepted, run) = accepted_and_run(&server.client(), &id).await;
    assert_eq!((accepted.len(), &run), (100, &accepted), "they ran as they were accepted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_a_hundred_clients_that_do_not_wait_wins_at_any_time() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let mut won = 0;
    for round in 0..5 {
        let text = format!("run: echo {round} >> order; sleep 0.2");
        let said = join_all((0..100).map(|_| {
            let (client, id, text) = (server.client(), id.clone(), text.clone());
            async move { client.push(&id, &text, "reject").await }
        }))
        .await;
        let (taken, refused): (Vec<_>, Vec<_>) = said.iter().partition(|(status, _)| status.is_success());
        assert!(!taken.is_empty(), "one at a time, and one at least");
        assert!(taken.iter().all(|(_, answer)| answer["status"] == "done"), "{taken:?}");
        for (status, answer) in refused {
            assert_eq!((status.as_u16(), &answer["code"]), (409, &json!("session_busy")), "{answer}");
        }
        won += taken.len();
    }
    let order = client.text(&id, "read order").await;
    assert_eq!(order.lines().count(), won, "who was refused did nothing, and who was not did it once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_outlives_the_server() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let hold = "run: until [ -e go ]; do sleep 0.01; done; echo first >> order";
    let mut first = client.send(&id, hold).await;
    first.until("session_start").await;
    let mut waiting = Vec::new();
    for n in 0..20 {
        let mut stream = client.send(&id, &format!("run: echo {n} >> order")).await;
        stream.until("session_start").await;
        waiting.push(stream);
    }
    let before = client.queue(&id).await;
    assert_eq!(before.len(), 21);
    let reversed: Vec<&Value> = before[1..].iter().rev().map(|turn| &turn["turn"]).collect();
    let path = format!("/api/sessions/{id}/queue");
    let (status, moved) = client.ask(Method::PATCH, &path, Some(json!({ "order": reversed }))).await;
    assert_eq!(status, 200, "{moved}");
    let withdrawn = before[5]["turn"].as_str().expect("a turn");
    client.delete(&format!("{path}/{withdrawn}")).await;
    server.crash_and_start().await;
    let client = server.client();
    let left = client.queue(&id).await;
    let wanted: Vec<&Value> = reversed.into_iter().filter(|turn| *turn != withdrawn).collect();
    let left: Vec<&Value> = left.iter().map(|turn| &turn["turn"]).collect();
    assert_eq!((left[0], &left[1..]), (&before[0]["turn"], &wanted[..]), "all of it is there, as it was");
    server.let_go(&id, "go").await;
    eventually("everything is done", async || client.queue(&id).await.is_empty().then_some(())).await;
    let order = client.text(&id, "read order").await;
    let expected: Vec<String> = (0..20).rev().filter(|n| *n != 4).map(|n| n.to_string()).collect();
    assert_eq!(order.lines().skip(1).collect::<Vec<_>>(), expected);
    assert_eq!(order.lines().next(), Some("first"));
}

#[tokio::test]
async fn queued_messages_can_be_listed_reordered_and_withdrawn() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let mut running = client.send(&id, SLOW).await;
    running.until("text_delta").await;
    let mut streams = Vec::new();
    for text in ["a", "b", "c"] {
        let mut stream = client.send(&id, text).await;
        stream.until("session_start").await;
        streams.push(stream);
    }
    let queue = client.until_waiting(&id, 3).await;
    assert_eq!(contents(&queue)[1..], ["a", "b", "c"]);
    assert_eq!((&queue[0]["status"], &queue[1]["status"]), (&json!("running"), &json!("queued")));
    assert!(queue[1]["createdAt"].is_string(), "{}", queue[1]);
    let (path, turn) = (format!("/api/sessions/{id}/queue"), |n: usize| queue[n]["turn"].clone());
    let (status, moved) =
        client.ask(Method::PATCH, &path, Some(json!({ "order": [turn(3), turn(1)] }))).await;
    assert_eq!(
        (status.as_u16(), contents(moved["queue"].as_array().expect("a list"))[1..].to_vec()),
        (200, vec!["c", "a", "b"])
    );
    let taken_back = client.delete(&format!("{path}/{}", turn(1).as_str().expect("a turn"))).await;
    assert_eq!(taken_back["status"], "cancelled");
    // Its stream reports it, and the message is not part of the conversation.
    assert_eq!(streams[0].rest().await.last().expect("an end").data["status"], "cancelled");
    for (what, body, status, code) in [
        ("one that runs", json!({ "order": [turn(0)] }), 409, "turn_not_waiting"),
        ("one twice", json!({ "order": [turn(2), turn(2)] }), 400, "invalid_body"),
        ("an unknown turn's", json!({ "order": [uuid::Uuid::new_v4()] }), 404, "turn_not_found"),
        ("no list", json!({ "order": { "first": 1 } }), 400, "invalid_body"),
    ] {
        let (found, refused) = client.ask(Method::PATCH, &path, Some(body)).await;
        assert_eq!((found.as_u16(), &refused["code"]), (status, &json!(code)), "{what}: {refused}");
    }
    let (found, refused) =
        client.ask(Method::DELETE, &format!("{path}/{}", turn(0).as_str().expect("a turn")), None).await;
    assert_eq!((found.as_u16(), &refused["code"]), (409, &json!("turn_not_waiting")), "{refused}");
    client.action(&id, "interrupt").await;
    streams[2].rest().await;
    streams[1].rest().await;
    let said = prompts(&client, &id).await;
    assert_eq!(said, [SLOW, "b", "c"], "as they were sent; what was taken back was never said");
    let text = client.text(&id, "and now?").await;
    assert!(text.starts_with("This is turn 4."), "{text}");
}

#[tokio::test]
async fn a_message_may_interrupt_and_go_first() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let mut running = client.send(&id, SLOW).await;
    running.until("text_delta").await;
    let mut waiting = client.send(&id, "run: echo later >> order").await;
    waiting.until("session_start").await;
    let (status, urgent) = client.push(&id, "run: echo urgent >> order", "interrupt").await;
    assert_eq!((status.as_u16(), &urgent["status"]), (200, &json!("done")), "{urgent}");
    assert_eq!(running.rest().await.last().expect("an end").data["status"], "interrupted");
    waiting.rest().await;
    assert_eq!(client.text(&id, "read order").await.trim(), "urgent\nlater");
    // Without a running turn there is nothing to interrupt.
    let (status, plain) = client.push(&id, "run: echo plain", "interrupt").await;
    assert_eq!((status.as_u16(), &plain["status"]), (200, &json!("done")), "{plain}");
}

/// An agent with a model, and a long command.
async fn steers(runtime: &str, agent: Stage) {
    let Stage { mut server, model, .. } = agent;
    let client = server.client();
    let made = client.post("/api/sessions", json!({ "agent": runtime, "sessionId": "s" })).await;
    assert_eq!(made["session"]["status"], "active", "{made}");
    // It continues for a moment after its release: an agent reads new messages while it waits for a command.
    let long = "run: until [ -e go ]; do sleep 0.1; done; sleep 1; echo the first";
    let mut running = client.send("s", long).await;
    running.until("tool_use").await;
    let mut waiting = client.send("s", "run: echo the last").await;
    waiting.until("session_start").await;
    let body = json!({ "content": "say: and mind the gap", "onBusy": "steer" });
    let request = client.request(Method::POST, "/api/sessions/s/messages").json(&body);
    let mut steered = crate::support::Sse::of(request.send().await.expect("sent"));
    steered.until("session_start").await;
    server.let_go("s", "go").await;
    // The agent receives it in the running turn, and both messages end together.
    let told = steered.until("steered").await.pop().expect("an event");
    let (own, into) = (told.data["turn"].clone(), told.data["into"].clone());
    let (first, second) = (running.rest().await, steered.rest().await);
    for (frames, turn) in [(&first, &into), (&second, &own)] {
        let end = &frames.last().expect("an end").data;
        assert_eq!((&end["status"], &end["turn"]), (&json!("done"), turn), "{runtime}");
    }
    assert_eq!(waiting.rest().await.last().expect("an end").data["status"], "done");
    let asked = model.requests();
    let with =
        asked.iter().filter(|request| request["body"]["messages"].to_string().contains("mind the gap"));
    let first_with = with.clone().next().expect("the model got it")["body"]["messages"].to_string();
    assert!(
        first_with.contains("the first") && !first_with.contains("the last"),
        "in the middle of its turn"
    );
    assert_eq!(first_with.matches("say: and mind the gap").count(), 1);
    // It is part of the conversation from then on.
    server.crash_and_start().await;
    server.client().action("s", "stop").await;
    let resumed = server.client().action("s", "resume").await;
    assert_eq!(
        (&resumed["resume"]["tier"], &resumed["resume"]["lost"]),
        (&json!("native"), &json!([])),
        "{resumed}"
    );
    server.client().say("s", "say: and now").await;
    let shown = model.requests().pop().expect("a request")["body"]["messages"].to_string();
    assert_eq!(shown.matches("say: and mind the gap").count(), 1, "{shown}");
    // A message that arrives after the last model call runs next, before all others.
    let client = server.client();
    assert_eq!(client.push("s", "say: at rest", "steer").await.1["status"], "done");
    // It is also part of the conversation after a rewind to the end of that turn: both messages are there, and both are
    // over.
    let all = client.get("/api/sessions/s/checkpoints?limit=1000").await;
    let all = all["checkpoints"].as_array().expect("a list");
    let end = all.iter().find(|checkpoint| checkpoint["turn"] == into).expect("the end of the turn");
    let rewound = client.post("/api/sessions/s/rewind", json!({ "checkpoint": end["number"] })).await;
    let rewound = &rewound["rewound"];
    assert_eq!((&rewound["turns"], &rewound["midTurn"]), (&json!(2), &json!(false)), "{rewound}");
    let resumed = client.action("s", "resume").await;
    assert_eq!(resumed["resume"]["lost"], json!([]), "{resumed}");
    client.say("s", "say: from there").await;
    let shown = model.requests().pop().expect("a request")["body"]["messages"].to_string();
    assert_eq!(shown.matches("say: and mind the gap").count(), 1, "{shown}");
    assert!(!shown.contains("the last"), "{shown}");
}

#[tokio::test]
async fn a_message_reaches_the_agent_in_the_middle_of_a_turn() {
    steers("builtin", Stage::set("builtin").await).await;
}

#[tokio::test]
async fn a_message_reaches_claude_code_in_the_middle_of_a_turn() {
    steers("claude", Stage::set("claude").await).await;
}

/// Whichever process dies meanwhile, the agent receives the message once and answers it once.
#[tokio::test]
async fn a_message_in_the_middle_of_a_turn_outlives_every_process() {
    let with = async |runtime: &'static str| {
        let Stage { mut server, model, .. } = Stage::set(runtime).await;
        let client = server.client();
        client.post("/api/sessions", json!({ "agent": runtime, "sessionId": "s" })).await;
        // One model continues with the steering message, the other with its first task: both take long.
        let begun = "run: echo the first >> order; sleep 1\nrun: sleep 7";
        let mut running = client.send("s", begun).await;
        running.until("tool_use").await;
        let gap = "slow 250: mind the gap between the train and the platform edge all the way";
        let body = json!({ "content": gap, "onBusy": "steer" });
        let request = client.request(Method::POST, "/api/sessions/s/messages").json(&body);
        let mut steered = crate::support::Sse::of(request.send().await.expect("sent"));
        let turn = steered.until("steered").await.pop().expect("an event").data["turn"].clone();
        server.crash_and_start().await;
        let client = server.client();
        let shim = server.note("s").await["shim"]["pid"].as_u64().expect("a pid") as u32;
        crate::support::signal(shim, libc::SIGKILL);
        // A newly started server that finds the agent dead continues by itself; a server that sees it die waits for a
        // request.
        eventually("everything is done", async || {
            if client.status("s").await == "error" {
                client.action("s", "resume").await;
            }
            client.queue("s").await.is_empty().then_some(())
        })
        .await;
        let events = client.get("/api/sessions/s/events?limit=1000").await.to_string();
        assert!(events.contains(turn.as_str().expect("a turn")), "{events}");
        client.say("s", "say: and now").await;
        let shown = model.requests().pop().expect("a request")["body"]["messages"].to_string();
        assert_eq!(shown.matches(gap).count(), 1, "{runtime}: {shown}");
        assert_eq!(client.exec("s", "cat order").await["stdout"], "the first\n");
    };
    tokio::join!(with("builtin"), with("claude"));
}

#[tokio::test]
async fn the_behaviour_of_a_busy_session_is_an_option() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("helper").await;
    let body = json!({ "agent": "helper", "sessionId": "shy", "onBusy": "reject" });
    let made = client.post("/api/sessions", body).await;
    assert_eq!(made["session"]["config"]["onBusy"], "reject");
    let mut running = client.send("shy", SLOW).await;
    running.until("text_delta").await;
    let (status, refused) =
        client.ask(Method::POST, "/api/sessions/shy/messages", Some(json!({ "content": "x" }))).await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("session_busy")), "{refused}");
    let (status, _) = client
        .ask(Method::POST, "/api/sessions/shy/messages", Some(json!({ "content": "x", "onBusy": "never" })))
        .await;
    assert_eq!(status, 400);
    let (queued, _) = tokio::join!(client.push("shy", "hello", "queue"), client.action("shy", "interrupt"));
    assert_eq!(queued.1["status"], "done", "what a message says counts more");
}

/// A repeated message with the same key is the same message, even while the session is running it.
#[tokio::test]
async fn a_repeated_message_does_not_conflict_with_itself() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let send = async || {
        let body = json!({ "content": "run: echo once >> order; sleep 1", "onBusy": "reject" });
        let request = client.request(Method::POST, &format!("/api/sessions/{id}/messages")).json(&body);
        ok(request
            .header("idempotency-key", "k")
            .header("accept", "application/json")
            .send()
            .await
            .expect("sent"))
        .await
    };
    let (one, other) = tokio::join!(send(), send());
    assert_eq!((&one["status"], &one["turn"]), (&json!("done"), &other["turn"]));
    assert_eq!(client.text(&id, "read order").await.trim(), "once");
}

#[tokio::test]
async fn only_the_holder_of_the_lock_writes() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.text(&id, "run: echo hello > file").await;
    let lock = client.lock(&id, json!({ "ttl": 60, "holder": "ci" })).await;
    let token = lock["token"].as_str().expect("a token").to_owned();
    assert_eq!((&lock["number"], &lock["holder"], &lock["ttl"]), (&json!(1), &json!("ci"), &json!(60)));
    let shown = client.session(&id).await["lock"].clone();
    assert_eq!((&shown["number"], &shown["token"]), (&json!(1), &Value::Null), "{shown}");
    // The lock survives the server.
    server.crash_and_start().await;
    let client = server.client();
    let path = |rest: &str| format!("/api/sessions/{id}{rest}");
    for (method, rest, body) in [
        (Method::POST, "/messages", json!({ "content": "hi" })),
        (Method::POST, "/exec", json!({ "command": "true" })),
        (Method::POST, "/pause", json!({})),
        (Method::POST, "/stop", json!({})),
        (Method::POST, "/resume", json!({})),
        (Method::POST, "/interrupt", json!({})),
        (Method::POST, "/rewind", json!({ "checkpoint": 1 })),
        (Method::POST, "/checkpoints", json!({})),
        (Method::POST, "/files", json!({ "files": [{ "path": "x", "content": "" }] })),
        (Method::DELETE, "/files/file", json!({})),
        (Method::PATCH, "/config", json!({ "model": "m" })),
        (Method::PATCH, "/queue", json!({ "order": [] })),
        (Method::PATCH, "", json!({ "metadata": {} })),
        (Method::DELETE, "", json!({})),
        (Method::POST, "/lock", json!({})),
    ] {
        let (status, refused) = client.with_lock(method.clone(), &path(rest), None, body).await;
        assert_eq!((status, &refused["code"]), (409, &json!("session_locked")), "{method} {rest}: {refused}");
        assert!(refused["error"].as_str().is_some_and(|error| error.contains("\"ci\"")), "{refused}");
    }
    // Readers need no lock, and a fork only reads.
    for rest in ["", "/messages", "/events", "/files", "/files/file", "/queue", "/lock", "/checkpoints"] {
        assert_eq!(
            client.request(Method::GET, &path(rest)).send().await.expect(rest).status(),
            200,
            "{rest}"
        );
    }
    client.post(&path("/fork"), json!({ "sessionId": "twin" })).await;
    let (status, said) = client
        .with_lock(Method::POST, &path("/messages"), Some(&token), json!({ "content": "read file" }))
        .await;
    assert_eq!((status, &said["text"]), (200, &json!("hello\n")), "{said}");
    for (wrong, code) in [("1.beef", "session_locked"), ("7.beef", "session_locked")] {
        let (status, refused) =
            client.with_lock(Method::POST, &path("/messages"), Some(wrong), json!({ "content": "hi" })).await;
        assert_eq!((status, &refused["code"]), (409, &json!(code)), "{refused}");
    }
    let (status, refused) = client
        .with_lock(Method::POST, &path("/messages"), Some("nonsense"), json!({ "content": "hi" }))
        .await;
    assert_eq!((status, &refused["code"]), (400, &json!("invalid_lock")), "{refused}");
    let (status, freed) = client.with_lock(Method::DELETE, &path("/lock"), Some(&token), json!({})).await;
    assert_eq!((status, &freed["lock"]), (200, &Value::Null));
    assert_eq!(client.say(&id, "hi").await["status"], "done");
    // After its release the token is invalid, and a client that sends it gets an error.
    let (status, refused) =
        client.with_lock(Method::POST, &path("/messages"), Some(&token), json!({ "content": "hi" })).await;
    assert_eq!((status, &refused["code"]), (409, &json!("lock_lost")), "{refused}");
}

#[tokio::test]
async fn a_lock_is_taken_over_and_its_old_holder_gets_an_error() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let first = client.lock(&id, json!({ "holder": "old" })).await;
    let mut following = client.follow(&id, &client.session_seq(&id).await).await;
    let second = client.lock(&id, json!({ "holder": "new", "takeover": true })).await;
    assert_eq!((&first["number"], &second["number"]), (&json!(1), &json!(2)));
    let told = following.until("locked").await.pop().expect("an event").data;
    assert_eq!(
        (&told["takenOver"], &told["holder"], &told["number"]),
        (&json!(true), &json!("new"), &json!(2))
    );
    let path = format!("/api/sessions/{id}/messages");
    let (status, lost) =
        client.with_lock(Method::POST, &path, first["token"].as_str(), json!({ "content": "hi" })).await;
    assert_eq!((status, &lost["code"]), (409, &json!("session_locked")), "{lost}");
    let (status, said) =
        client.with_lock(Method::POST, &path, second["token"].as_str(), json!({ "content": "hi" })).await;
    assert_eq!((status, &said["status"]), (200, &json!("done")), "{said}");
}

#[tokio::test]
async fn a_lock_ends_by_itself_unless_it_is_used() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let lock = client.lock(&id, json!({ "ttl": 2 })).await;
    let until = async || client.session(&id).await["lock"]["expiresAt"].clone();
    let before = until().await;
    let path = format!("/api/sessions/{id}/messages");
    let used = eventually("the lock is renewed by use", async || {
        let (status, answer) =
            client.with_lock(Method::POST, &path, lock["token"].as_str(), json!({ "content": "hi" })).await;
        assert_eq!(status, 200, "{answer}");
        let now = until().await;
        (now != before).then_some(now)
    })
    .await;
    assert!(used.as_str() > before.as_str(), "{used} after {before}");
    eventually("it is over", async || until().await.is_null().then_some(())).await;
    assert_eq!(client.say(&id, "hi").await["status"], "done");
    for ttl in [json!(0), json!(-1), json!(100_000), json!("x")] {
        let (status, refused) =
            client.ask(Method::POST, &format!("/api/sessions/{id}/lock"), Some(json!({ "ttl": ttl }))).await;
        assert_eq!((status.as_u16(), &refused["code"]), (400, &json!("invalid_body")), "{ttl}");
    }
}

#[tokio::test]
async fn there_is_no_way_around_a_lock() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("helper").await;
    for id in ["mine", "theirs"] {
        let body = json!({ "agent": "helper", "sessionId": id, "workspace": "common" });
        client.post("/api/sessions", body).await;
    }
    client.say("theirs", "hello").await;
    client.action("mine", "pause").await;
    let token = client.lock("mine", json!({})).await["token"].as_str().expect("a token").to_owned();
    for body in [json!({ "olderThan": "0s" }), json!({ "olderThan": "0s", "purge": true, "dryRun": true })] {
        assert_eq!(client.post("/api/prune", body).await["sessions"], json!([]));
    }
    let path = "/api/sessions/theirs/checkpoints";
    let checkpoint = client.get(path).await["checkpoints"][0]["number"].clone();
    let back = json!({ "checkpoint": checkpoint, "files": true });
    let (status, refused) = client.ask(Method::POST, "/api/sessions/theirs/rewind", Some(back)).await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("workspace_busy")), "{refused}");
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("mine is locked")), "{refused}");
    let path = "/api/workspaces/common";
    let (status, refused) = client.with_lock(Method::DELETE, path, None, json!({})).await;
    assert_eq!((status, &refused["code"]), (409, &json!("session_locked")), "{refused}");
    assert_eq!(client.status("mine").await, "paused");
    let (status, gone) = client.with_lock(Method::DELETE, path, Some(&token), json!({})).await;
    assert_eq!((status, &gone["deleted"]), (200, &json!("common")), "{gone}");
}

/// A steering message for an interrupted turn becomes the next turn, whichever process handles it.
#[tokio::test]
async fn an_interrupt_stops_the_turn_and_not_its_steering_message() {
    for runtime in ["builtin", "claude"] {
        let stage = Stage::set(runtime).await;
        let server = &stage.server;
        let client = server.client();
        client.post("/api/sessions", json!({ "agent": runtime, "sessionId": "s" })).await;
        let mut running = client.send("s", "run: until [ -e never ]; do sleep 0.1; done").await;
        running.until("tool_use").await;
        let steer = client.push("s", "run: echo once >> order; sleep 1; echo steered", "steer");
        let interrupt = async {
            client.until_waiting("s", 1).await;
            client.action("s", "interrupt").await;
            running.rest().await.last().expect("an end").data["status"].clone()
        };
        let ((_, steered), interrupted) = tokio::join!(steer, interrupt);
        assert_eq!(interrupted, "interrupted", "{runtime}");
        assert_eq!(steered["status"], "done", "{runtime}: {steered}");
        assert!(
            steered["text"].as_str().is_some_and(|text| text.contains("steered")),
            "{runtime}: {steered}"
        );
        assert_eq!(client.exec("s", "cat order").await["stdout"], "once\n", "{runtime}");
    }
}

#[tokio::test]
async fn a_lock_that_is_over_does_not_come_back_after_another_client_wrote() {
    let mut server = Server::start().await;
    let mut client = server.client();
    let id = client.create().await;
    let path = |rest: &str| format!("/api/sessions/{id}{rest}");
    let over = async |client: &Client| {
        eventually("the lock is over", async || client.session(&id).await["lock"].is_null().then_some(()))
            .await
    };
    let token = client.lock(&id, json!({ "ttl": 1 })).await["token"].as_str().expect("a token").to_owned();
    over(&client).await;
    let message = json!({ "content": "hi" });
    let (status, said) =
        client.with_lock(Method::POST, &path("/messages"), Some(&token), message.clone()).await;
    assert_eq!(status, 200, "no other client wrote, so its holder goes on: {said}");
    for write in [
        (Method::POST, "/messages", message.clone()),
        (Method::POST, "/exec", json!({ "command": "true" })),
        (Method::PATCH, "", json!({ "metadata": { "by": "another" } })),
        (Method::PATCH, "/config", json!({ "env": { "BY": "another" } })),
        (Method::POST, "/files", json!({ "files": [{ "path": "x", "content": "" }] })),
        (Method::POST, "/rewind", json!({ "checkpoint": 1 })),
        (Method::POST, "/resume", json!({})),
    ] {
        let lock = client.lock(&id, json!({ "ttl": 1, "takeover": true })).await;
        let token = lock["token"].as_str().expect("a token");
        over(&client).await;
        let (method, rest, body) = write;
        let (status, wrote) = client.with_lock(method.clone(), &path(rest), None, body).await;
        assert_eq!(status, 200, "{method} {rest}: {wrote}");
        if rest == "/messages" {
            // The lock was released before the write: a server that dies in between restores neither.
            server.crash_and_start().await;
            client = server.client();
        }
        let (status, lost) =
            client.with_lock(Method::POST, &path("/messages"), Some(token), message.clone()).await;
        assert_eq!((status, &lost["code"]), (409, &json!("lock_lost")), "{method} {rest}: {lost}");
        assert_eq!(client.session(&id).await["lock"], Value::Null);
        let (status, again) =
            client.with_lock(Method::POST, &path("/lock"), Some(token), json!({ "ttl": 1 })).await;
        assert_eq!(status, 200, "{again}");
        assert!(again["lock"]["number"].as_u64() > lock["number"].as_u64(), "a lock of its own: {again}");
        assert_ne!(again["lock"]["token"], lock["token"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_holds_while_a_turn_of_its_holder_runs() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let lock = client.lock(&id, json!({ "ttl": 1 })).await;
    let token = lock["token"].as_str().expect("a token");
    let body = json!({ "content": "run: until [ -e go ]; do sleep 0.01; done; echo over > end" });
    let path = |rest: &str| format!("/api/sessions/{id}{rest}");
    let request = client.request(Method::POST, &path("/messages")).header("x-ash-lock", token).json(&body);
    let sent = request.send().await.expect("sent");
    assert_eq!(sent.status(), 200);
    let is_past = |lock: &Value| {
        let until = lock["expiresAt"].as_str().expect("a time").parse::<jiff::Timestamp>().expect("a time");
        until < jiff::Timestamp::now()
    };
    let kept_out = async |client: &Client| {
        eventually("its time is over", async || is_past(&client.session(&id).await["lock"]).then_some(()))
            .await;
        let shown = client.session(&id).await["lock"].clone();
        assert_eq!((&shown["number"], &shown["inUse"]), (&json!(1), &json!(true)), "{shown}");
        for (rest, body) in [("/messages", json!({ "content": "hi" })), ("/lock", json!({}))] {
            let (status, refused) = client.with_lock(Method::POST, &path(rest), None, body).await;
            assert_eq!((status, &refused["code"]), (409, &json!("session_locked")), "{rest}: {refused}");
        }
    };
    kept_out(&client).await;
    drop(sent);
    server.crash_and_start().await;
    let client = server.client();
    kept_out(&client).await;
    let go = json!({ "files": [{ "path": "go", "content": "" }] });
    let (status, put) = client.with_lock(Method::POST, &path("/files"), Some(token), go).await;
    assert_eq!(status, 200, "{put}");
    // The lock's time starts when the turn is over, so that its holder can react to the answer.
    let after = eventually("the turn is over", async || {
        let shown = client.session(&id).await["lock"].clone();
        (shown["inUse"] != json!(true)).then_some(shown)
    })
    .await;
    assert!(after.is_object() && !is_past(&after), "{after}");
    eventually("the lock is over", async || client.session(&id).await["lock"].is_null().then_some(())).await;
    assert_eq!(client.text(&id, "read end").await, "over\n");
}

/// A write that began before a lock, and ends during it or after it, is unknown to the lock's holder.
#[tokio::test]
async fn a_lock_that_is_over_does_not_come_back_after_a_write_that_it_overtook() {
    let mut server = Server::start().await;
    let mut client = server.client();
    let id = client.create().await;
    let path = |rest: &str| format!("/api/sessions/{id}{rest}");
    let begun = server.live(&id).await.join("tree/workspace/begun");
    for (ends, ttl) in
        [("after it", 1), ("while it holds", 4), ("before a restart", 4), ("before it is asked for", 4)]
    {
        std::fs::remove_file(&begun).ok();
        let (other, run) = (client.clone(), path("/exec"));
        let command = "rm -f go; touch begun; until [ -e go ]; do sleep 0.02; done; echo b > file";
        let writing = tokio::spawn(async move { other.post(&run, json!({ "command": command })).await });
        eventually("the other client writes", async || begun.exists().then_some(())).await;
        let lock = client.lock(&id, json!({ "ttl": ttl, "takeover": true })).await;
        let token = lock["token"].as_str().expect("a token");
        let over = async |client: &Client| {
            eventually("the lock is over", async || {
                client.session(&id).await["lock"].is_null().then_some(())
            })
            .await;
        };
        if ends == "after it" {
            over(&client).await;
        }
        server.let_go(&id, "go").await;
        assert_eq!(writing.await.expect("written")["exitCode"], 0);
        over(&client).await;
        if ends == "before a restart" {
            server.crash_and_start().await;
            client = server.client();
        }
        if ends == "before it is asked for" {
            let (status, again) =
                client.with_lock(Method::POST, &path("/lock"), Some(token), json!({ "ttl": 1 })).await;
            assert_eq!(status, 200, "{again}");
            assert!(again["lock"]["number"].as_u64() > lock["number"].as_u64(), "another lock: {again}");
            assert_ne!(again["lock"]["token"], lock["token"]);
            over(&client).await;
        }
        let message = json!({ "content": "hi" });
        let (status, lost) = client.with_lock(Method::POST, &path("/messages"), Some(token), message).await;
        assert_eq!((status, &lost["code"]), (409, &json!("lock_lost")), "{ends}: {lost}");
    }
}
