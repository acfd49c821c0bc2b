//! Sessions that exceed the model's window. The model refuses oversized requests, so a completed turn shows that no
//! request was too large.

use crate::support::{Client, Server, claude, eventually, model::Model, names, ok, signal};
use reqwest::Method;
use serde_json::{Value, json};

const WINDOW: u64 = 6_000;
const CONTINUED: &str = "This session is being continued from a previous conversation";
const ASKS_FOR_SUMMARY: &str = "summary of the conversation";

struct Stage {
    server: Server,
    model: Model,
}

impl Stage {
    async fn set() -> Stage {
        let mut server = Server::prepare(&[("ANTHROPIC_API_KEY", "sk-outside")]);
        let model = Model::with_window(&server.dir, WINDOW);
        server.set("ANTHROPIC_BASE_URL", &model.url);
        server.launch().await;
        server.client().deploy("tester").await;
        Stage { server, model }
    }

    fn client(&self) -> Client {
        self.server.client()
    }

    async fn script(&self, rules: Value) {
        let sent = self.client().http.post(format!("{}/_script", self.model.url)).body(rules.to_string());
        assert!(sent.send().await.expect("a model server").status().is_success());
    }

    async fn create(&self) -> String {
        let body = json!({ "agent": "tester", "wakeReport": false, "infiniteSessions": { "contextWindow": WINDOW } });
        self.client().post("/api/sessions", body).await["session"]["id"].as_str().expect("an id").to_owned()
    }

    /// The number of turns until the first summary request.
    async fn until_compacting(&self, id: &str) -> usize {
        for number in 0..40 {
            self.say(id, number).await;
            if self.model.requests().iter().any(is_summary) {
                return number;
            }
        }
        panic!("it was never long enough");
    }

    async fn say(&self, id: &str, number: usize) -> Value {
        let done = self.client().say(id, &text(number)).await;
        assert_eq!(done["status"], "done", "{done}");
        done
    }

    fn none_was_too_long(&self) {
        let requests = self.model.requests();
        let refused: Vec<&Value> =
            requests.iter().filter(|request| request["answered"] == "too long").collect();
        assert!(refused.is_empty(), "{refused:?}");
    }

    /// The last request of the conversation.
    fn last(&self) -> Value {
        let requests = self.model.requests();
        requests.iter().rfind(|request| !is_summary(request)).expect("a request")["body"]["messages"].clone()
    }
}

fn text(number: usize) -> String {
    format!("say: number {number}, {}", "word ".repeat(180))
}

fn is_summary(request: &Value) -> bool {
    let last = request["body"]["messages"].as_array().and_then(|messages| messages.last()).cloned();
    last.is_some_and(|last| last.to_string().contains(ASKS_FOR_SUMMARY))
}

/// All compaction events of the timeline, in order.
async fn lifecycle(client: &Client, id: &str) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let page = client.get(&format!("/api/sessions/{id}/events?limit=1000&after={after}")).await;
        let events = page["events"].as_array().expect("a list").clone();
        let Some(last) = events.last() else { return all };
        after = last["sequence"].as_u64().expect("a number");
        for event in events.iter().filter(|event| event["type"] == "lifecycle") {
            let mut data: Value = serde_json::from_str(event["data"].as_str().expect("text")).expect("json");
            data["turnOf"] = event["turn"].clone();
            all.push(data);
        }
    }
}

async fn compactions(client: &Client, id: &str) -> Vec<Value> {
    let of = |data: &Value| data["action"].as_str().is_some_and(|action| action.starts_with("compaction_"));
    lifecycle(client, id).await.into_iter().filter(of).collect()
}

/// Each compaction starts and ends once, and shortens the conversation. Returns their number.
fn are_whole(events: &[Value]) -> usize {
    for pair in events.chunks(2) {
        let [begun, over] = pair else { panic!("one is not over: {events:?}") };
        let actions = (&begun["action"], &over["action"]);
        assert_eq!(actions, (&json!("compaction_start"), &json!("compaction_complete")), "{events:?}");
        assert_eq!(begun["tokens"], over["tokensBefore"]);
        assert!(over["tokensBefore"].as_u64() > over["tokensAfter"].as_u64(), "{over}");
        assert!(over["usage"]["input_tokens"].as_u64() > Some(0), "{over}");
    }
    events.len() / 2
}

#[tokio::test]
async fn a_session_of_four_hundred_turns_never_exceeds_the_window_and_goes_back_exactly() {
    let turns = 400;
    let stage = Stage::set().await;
    let client = stage.client();
    let id = stage.create().await;
    let mut fifth = Value::Null;
    for number in 1..=5 {
        fifth = stage.say(&id, number).await["checkpoint"].clone();
    }
    let fork = client.post(&format!("/api/sessions/{id}/fork"), json!({ "checkpoint": fifth })).await;
    let fork = fork["session"]["id"].as_str().expect("an id").to_owned();
    client.say(&fork, "say: and then?").await;
    let verbatim = stage.last();
    assert_eq!(verbatim.as_array().map(Vec::len), Some(11));

    for number in 6..=turns {
        stage.say(&id, number).await;
    }
    stage.none_was_too_long();
    let many = eventually("all are over", async || {
        let events = compactions(&client, &id).await;
        events.len().is_multiple_of(2).then(|| are_whole(&events))
    })
    .await;
    assert!(many >= turns / 20, "{many}");
    let shown = stage.last().to_string();
    assert!(shown.contains(CONTINUED) && shown.contains("user messages were seen before"), "{shown}");
    assert!(!shown.contains("number 1,") && shown.contains(&format!("number {turns},")), "{shown}");
    let frames = {
        let mut stream = client.follow(&id, "0").await;
        stream.until("compaction_complete").await
    };
    assert!(names(&frames).contains(&"compaction_start"));
    assert_eq!(client.session(&id).await["turns"], turns, "a summary is no turn");
    let messages = client.get(&format!("/api/sessions/{id}/messages?limit=10")).await;
    assert!(messages.to_string().contains("number 1,"), "the log has all of it");

    client.post(&format!("/api/sessions/{id}/rewind"), json!({ "checkpoint": fifth })).await;
    client.say(&id, "say: and then?").await;
    assert_eq!(stage.last().to_string(), verbatim.to_string(), "to the byte");
}

#[tokio::test]
async fn turns_run_during_a_summary_and_wait_when_the_window_is_full() {
    let stage = Stage::set().await;
    let client = stage.client();
    stage.script(json!([{ "when": { "contains": ASKS_FOR_SUMMARY }, "times": 1, "stall": 4000 }])).await;
    let id = stage.create().await;
    let body = json!({ "infiniteSessions": { "backgroundCompactionThreshold": 0.4 } });
    client.action(&id, "stop").await;
    client.post(&format!("/api/sessions/{id}/resume"), body).await;
    for number in 0..14 {
        stage.say(&id, number).await;
    }
    stage.none_was_too_long();
    let all = lifecycle(&client, &id).await;
    let place = |action: &str| all.iter().position(|data| data["action"] == action).expect(action);
    let (begun, over) = (place("compaction_start"), place("compaction_complete"));
    let ended = |data: &&Value| data["action"] == "turn_ended";
    assert!(all[begun..over].iter().filter(ended).count() >= 2, "turns went on: {:#?}", &all[begun..=over]);
    // The waiting turn called the model after the compaction.
    let waited = &all[over]["turnOf"];
    let end = all[over..].iter().find(ended).expect("an end");
    assert_eq!((&end["turn"], &end["status"]), (waited, &json!("done")));
}

#[tokio::test]
async fn a_summary_between_two_turns_is_captured_and_is_no_turn() {
    let stage = Stage::set().await;
    let client = stage.client();
    stage.script(json!([{ "when": { "contains": ASKS_FOR_SUMMARY }, "times": 1, "stall": 1000 }])).await;
    let id = stage.create().await;
    let last = stage.until_compacting(&id).await;
    let over = eventually("it is captured", async || {
        let all = lifecycle(&client, &id).await;
        let over = all.iter().position(|data| data["action"] == "compaction_complete")?;
        let later = all[over..].iter().any(|data| data["action"] == "checkpoint" && data["turn"].is_null());
        later.then(|| all[over].clone())
    })
    .await;
    assert_eq!(over["turnOf"], Value::Null, "{over}");
    assert_eq!(client.session(&id).await["turns"], last + 1);
    let live = stage.server.live(&id).await;
    client.action(&id, "stop").await;
    std::fs::remove_dir_all(live.join("tree")).expect("removed");
    assert_eq!(client.action(&id, "resume").await["resume"]["verified"], true);
    client.say(&id, "say: and now?").await;
    assert!(stage.last()[0].to_string().contains(CONTINUED), "{}", stage.last());
    assert_eq!(are_whole(&compactions(&client, &id).await), 1);
}

#[tokio::test]
async fn a_compaction_is_repeated_after_a_kill_of_any_process() {
    for victim in ["agent", "shim"] {
        let stage = Stage::set().await;
        let client = stage.client();
        stage.script(json!([{ "when": { "contains": ASKS_FOR_SUMMARY }, "times": 1, "hang": true }])).await;
        let id = stage.create().await;
        let last = stage.until_compacting(&id).await;
        let processes = stage.server.processes(&id).await;
        signal(if victim == "agent" { processes.agent } else { processes.shim }, libc::SIGKILL);
        client.until_status(&id, "error").await;
        client.action(&id, "resume").await;
        for number in last + 1..last + 8 {
            stage.say(&id, number).await;
        }
        stage.none_was_too_long();
        let events = eventually("it is done", async || {
            let events = compactions(&client, &id).await;
            (events.len() > 2 && events.last()?["action"] == "compaction_complete").then_some(events)
        })
        .await;
        assert_eq!(events[0]["action"], "compaction_start", "{victim}: this one came to nothing");
        assert!(are_whole(&events[1..]) >= 1, "{victim}");
    }
}

#[tokio::test]
async fn a_server_that_dies_meanwhile_misses_nothing() {
    let mut stage = Stage::set().await;
    stage.script(json!([{ "when": { "contains": ASKS_FOR_SUMMARY }, "times": 1, "stall": 1500 }])).await;
    let id = stage.create().await;
    stage.until_compacting(&id).await;
    stage.server.crash_and_start().await;
    let client = stage.client();
    let events = eventually("the server has the event", async || {
        let events = compactions(&client, &id).await;
        (events.len() == 2).then_some(events)
    })
    .await;
    assert_eq!(are_whole(&events), 1);
    client.say(&id, "say: and now?").await;
    assert!(stage.last()[0].to_string().contains(CONTINUED));
    assert_eq!(compactions(&client, &id).await, events, "once");
}

#[tokio::test]
async fn without_it_a_full_window_is_a_problem_with_a_remedy() {
    let stage = Stage::set().await;
    let client = stage.client();
    let options =
        json!({ "agent": "tester", "infiniteSessions": { "enabled": false, "contextWindow": WINDOW } });
    let made = client.post("/api/sessions", options).await;
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    let mut full = Value::Null;
    for number in 0..40 {
        full = client.say(&id, &text(number)).await;
        if full["status"] != "done" {
            break;
        }
    }
    assert_eq!(
        (&full["status"], &full["error"]["code"]),
        (&json!("failed"), &json!("context_full")),
        "{full}"
    );
    assert!(full["error"]["error"].as_str().is_some_and(|why| why.contains("infiniteSessions")), "{full}");
    stage.none_was_too_long();
    assert_eq!(compactions(&client, &id).await.len(), 0);
    client.action(&id, "stop").await;
    client.post(&format!("/api/sessions/{id}/resume"), json!({ "infiniteSessions": true })).await;
    assert_eq!(client.say(&id, "say: and now?").await["status"], "done");
    assert!(are_whole(&compactions(&client, &id).await) >= 1);
}

#[tokio::test]
async fn the_option_is_checked_kept_and_in_force_after_everything() {
    let mut server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    for (wrong, named) in [
        (json!("yes"), "infiniteSessions must be"),
        (json!({ "enabled": 1 }), "infiniteSessions.enabled"),
        (json!({ "backgroundCompactionThreshold": 0 }), "infiniteSessions.backgroundCompactionThreshold"),
        (json!({ "backgroundCompactionThreshold": 0.95 }), "infiniteSessions.backgroundCompactionThreshold"),
        (json!({ "bufferExhaustionThreshold": 1.1 }), "infiniteSessions.bufferExhaustionThreshold"),
        (json!({ "bufferExhaustionThreshold": "0.9" }), "infiniteSessions.bufferExhaustionThreshold"),
        (json!({ "contextWindow": 100 }), "infiniteSessions.contextWindow"),
        (json!({ "contextWindow": 1e30 }), "infiniteSessions.contextWindow"),
    ] {
        let body = json!({ "agent": "tester", "infiniteSessions": wrong });
        let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
        assert_eq!((status.as_u16(), &refused["code"]), (400, &json!("invalid_body")), "{wrong}: {refused}");
        assert!(refused["error"].as_str().is_some_and(|error| error.contains(named)), "{refused}");
    }
    let id = client.create().await;
    assert_eq!(client.session(&id).await["config"]["infiniteSessions"], Value::Null);
    let patch = async |body: Value| {
        let request = client.request(Method::PATCH, &format!("/api/sessions/{id}/config")).json(&body);
        ok(request.send().await.expect("asked")).await["session"]["config"]["infiniteSessions"].clone()
    };
    let set = patch(json!({ "infiniteSessions": { "contextWindow": 9000 } })).await;
    let expected = json!({ "enabled": true, "backgroundCompactionThreshold": 0.8, "bufferExhaustionThreshold": 0.95, "contextWindow": 9000 });
    assert_eq!(set, expected);
    let set = patch(json!({ "infiniteSessions": false })).await;
    assert_eq!((&set["enabled"], &set["contextWindow"]), (&json!(false), &json!(9000)));
    for rest in ["pause", "stop"] {
        client.action(&id, rest).await;
        client.action(&id, "resume").await;
        assert_eq!(client.session(&id).await["config"]["infiniteSessions"], set);
    }
    server.crash_and_start().await;
    let client = server.client();
    client.action(&id, "stop").await;
    client
        .post(&format!("/api/sessions/{id}/resume"), json!({ "infiniteSessions": { "enabled": true } }))
        .await;
    assert_eq!(client.session(&id).await["config"]["infiniteSessions"], expected);
    let agent = server.processes(&id).await.agent;
    let line = crate::support::cmdline(agent);
    assert!(
        line.contains("--compaction on --compact-from 0.8 --compact-by 0.95 --context-window 9000"),
        "{line}"
    );
}

#[tokio::test]
async fn claude_code_compacts_at_the_set_limit_and_remembers_the_summary() {
    let stage = claude::Stage::set().await;
    let client = stage.server.client();
    let there = stage.create().await;
    for (wrong, named) in [
        (json!({ "bufferExhaustionThreshold": 0.9 }), "bufferExhaustionThreshold"),
        // Also the default value, because it would have no effect.
        (json!({ "bufferExhaustionThreshold": 0.95 }), "bufferExhaustionThreshold"),
        (json!({ "bufferExhaustionThreshold": 1, "enabled": false }), "bufferExhaustionThreshold"),
        (json!({ "contextWindow": 8000 }), "contextWindow"),
    ] {
        let new = json!({ "agent": "coder", "infiniteSessions": wrong });
        let change = json!({ "infiniteSessions": wrong });
        for (method, path, body) in [
            (Method::POST, "/api/sessions".to_owned(), new),
            (Method::PATCH, format!("/api/sessions/{there}/config"), change.clone()),
            (Method::POST, format!("/api/sessions/{there}/resume"), change),
        ] {
            let (status, refused) = client.ask(method, &path, Some(body)).await;
            assert_eq!(
                (status.as_u16(), &refused["code"]),
                (400, &json!("invalid_body")),
                "{path}: {refused}"
            );
            assert!(refused["error"].as_str().is_some_and(|error| error.contains(named)), "{refused}");
        }
    }
    assert_eq!(client.session(&there).await["config"]["infiniteSessions"], Value::Null);
    let options = json!({ "wakeReport": false, "model": "claude-sonnet-4-6",
        "infiniteSessions": { "contextWindow": 100_000, "backgroundCompactionThreshold": 0.6 } });
    let id = stage.create_with(options).await;
    let first = client.say(&id, "say: hello").await["checkpoint"].clone();
    let long = |number: usize| format!("say: ok\nnumber {number} {}", "word ".repeat(8_000));
    for number in 0..20 {
        let done = client.say(&id, &long(number)).await;
        assert_eq!(done["status"], "done", "{done}");
        if !compactions(&client, &id).await.is_empty() {
            break;
        }
    }
    let events = compactions(&client, &id).await;
    let actions: Vec<&Value> = events.iter().map(|event| &event["action"]).collect();
    assert_eq!(actions, ["compaction_start", "compaction_complete"], "{events:?}");
    let before = events[1]["tokensBefore"].as_u64().expect("a number");
    assert!(
        (60_000..100_000).contains(&before) && events[1]["tokensAfter"].as_u64() < Some(before),
        "{events:?}"
    );
    let has_summary = || {
        let last = stage.last_request()["body"]["messages"].to_string();
        last.contains(CONTINUED)
    };
    client.say(&id, "say: after it").await;
    assert!(has_summary());
    client.action(&id, "stop").await;
    let receipt = stage.back(&id).await;
    assert_eq!((&receipt["tier"], &receipt["verified"]), (&json!("native"), &json!(true)), "{receipt}");
    client.say(&id, "say: after a rest").await;
    assert!(has_summary());
    client.post(&format!("/api/sessions/{id}/rewind"), json!({ "checkpoint": first })).await;
    client.say(&id, "say: as if nothing had been").await;
    assert!(!has_summary());
    assert_eq!(compactions(&client, &id).await.len(), events.len(), "and the log has it still");

    for (enabled, compacted) in [(false, 0), (true, 2)] {
        let other = json!({ "infiniteSessions": enabled, "model": "claude-sonnet-4-6" });
        let other = stage.create_with(other).await;
        client.say(&other, "usage 190000\nsay: nearly full").await;
        client.say(&other, "say: still").await;
        assert_eq!(compactions(&client, &other).await.len(), compacted, "enabled: {enabled}");
    }
}
