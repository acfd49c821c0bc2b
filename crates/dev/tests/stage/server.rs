//! The model server over HTTP: its replies, its faults, and its log.

use super::support::{Stage, directory, gathered, request};
use ash_dev::ListenAddress;
use serde_json::{Value, json};

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["type"].as_str()).collect()
}

#[tokio::test]
async fn a_streamed_answer_and_a_whole_one_say_the_same() {
    let stage = Stage::start().await;
    let (events, whole) = stage.stream("think: hm\nrun: echo hi").await;
    assert!(whole);
    let (status, message) = stage.say("think: hm\nrun: echo hi").await;
    assert_eq!(status, 200);
    assert_eq!(types(&events)[..3], ["message_start", "content_block_start", "ping"]);
    assert_eq!(types(&events).last(), Some(&"message_stop"));
    let input: Value = serde_json::from_str(&gathered(&events, "partial_json")).expect("json");
    let content = json!([
        {"type": "thinking", "thinking": gathered(&events, "thinking"), "signature": gathered(&events, "signature")},
        {"type": "tool_use", "id": message["content"][1]["id"], "name": "Bash", "input": input},
    ]);
    assert_eq!(message["content"], content);
    assert_eq!(message["content"][0]["thinking"], "hm");
    assert_eq!(message["stop_reason"], "tool_use");
    let end = events.iter().find(|event| event["type"] == "message_delta").expect("an end");
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    assert_eq!(end["usage"], message["usage"]);
    let call = events.iter().find(|event| event["content_block"]["type"] == "tool_use").expect("a call");
    assert_eq!(call["content_block"]["id"], message["content"][1]["id"]);
}

#[tokio::test]
async fn several_directives_take_several_answers_with_different_ids() {
    let stage = Stage::start().await;
    let mut body = request("run: a\nrun: b\nsay: done");
    let mut ids = Vec::new();
    for output in ["one", "two"] {
        let (_, message) = stage.ask(&body).await;
        let id = message["content"][0]["id"].clone();
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": output});
        let messages = body["messages"].as_array_mut().expect("messages");
        messages.push(json!({"role": "assistant", "content": message["content"]}));
        messages.push(json!({"role": "user", "content": [result]}));
        ids.push(id);
    }
    let (_, message) = stage.ask(&body).await;
    let text = "The output begins with: one\nThe output begins with: two\ndone";
    assert_eq!(message["content"], json!([{"type": "text", "text": text}]));
    assert_ne!(ids[0], ids[1]);
    let (_, again) = stage.say("run: a\nrun: b\nsay: done").await;
    assert_eq!(again["content"][0]["id"], ids[0], "the same conversation, the same id");
}

#[tokio::test]
async fn a_question_and_a_slow_text_come_as_asked_for() {
    let stage = Stage::start().await;
    let (_, message) = stage.say("ask: Tea? | Green | Black").await;
    let question = &message["content"][0]["input"]["questions"][0];
    assert_eq!(question["question"], "Tea?");
    assert_eq!(question["options"][1]["label"], "Black");
    let (events, _) = stage.stream("slow 3: abcdef").await;
    let pieces: Vec<&str> = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(pieces, ["ab", "cd", "ef"]);
}

#[tokio::test]
async fn failures_have_the_apis_shape_and_a_retry_gets_through() {
    let stage = Stage::start().await;
    for (status, kind) in [
        (429, "rate_limit_error"),
        (500, "api_error"),
        (529, "overloaded_error"),
        (401, "authentication_error"),
        (400, "invalid_request_error"),
    ] {
        let body = request(&format!("fail {status} 2 times\nsay: through"));
        for _ in 0..2 {
            let response = stage.post("/v1/messages", &body).await.expect("an answer");
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers().contains_key("retry-after"), status != 400 && status != 401);
            let id = response.headers()["request-id"].to_str().expect("an id").to_owned();
            let error: Value = response.json().await.expect("json");
            let message = json!({"type": kind, "message": "as you asked for"});
            assert_eq!(error, json!({"type": "error", "error": message, "request_id": id}));
        }
        let (status, message) = stage.ask(&body).await;
        assert_eq!((status, &message["content"][0]["text"]), (200, &json!("through")));
    }
}

#[tokio::test]
async fn a_stream_is_cut_after_so_many_events_and_then_not_again() {
    let stage = Stage::start().await;
    for after in [0, 4] {
        let prompt = format!("cut {after}\nsay: hello");
        let (events, whole) = stage.stream(&prompt).await;
        assert_eq!((events.len(), whole), (after, false));
        let (events, whole) = stage.stream(&prompt).await;
        assert_eq!((gathered(&events, "text").as_str(), whole), ("hello", true));
    }
    let torn = stage.post("/v1/messages", &request("cut 1\nsay: hello")).await.expect("headers");
    assert!(torn.text().await.is_err(), "half an answer");
}

#[tokio::test]
async fn a_stream_can_be_overloaded_halfway() {
    let stage = Stage::start().await;
    let (events, whole) = stage.stream("overloaded-midstream\nsay: hello").await;
    assert!(whole);
    let last = events.last().expect("an event");
    assert_eq!(
        last,
        &json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    );
    assert_eq!(types(&events)[0], "message_start");
    let (events, _) = stage.stream("overloaded-midstream\nsay: hello").await;
    assert_eq!(types(&events).last(), Some(&"message_stop"));
}

#[tokio::test]
async fn a_stalled_answer_comes_and_a_hanging_one_does_not() {
    let stage = Stage::start().await;
    let began = std::time::Instant::now();
    assert_eq!(stage.say("stall 80\nsay: late").await.1["content"][0]["text"], "late");
    assert!(began.elapsed().as_millis() >= 80, "it waited");
    let body = request("hang\nsay: never mind");
    let hanging = {
        let (url, body) = (stage.url("/v1/messages"), body.clone());
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        tokio::spawn(async move { client.post(url).json(&body).send().await.is_ok() })
    };
    stage.until(|answered| answered.len() == 2).await;
    assert!(!hanging.is_finished());
    hanging.abort();
    assert_eq!(stage.ask(&body).await.1["content"][0]["text"], "never mind");
    assert_eq!(stage.answered(), ["say, stall 80", "say, hang", "say"]);
}

#[tokio::test]
async fn it_reports_the_token_count_that_the_script_sets() {
    let stage = Stage::start().await;
    let (_, message) = stage.say("usage 990000\nsay: much").await;
    assert_eq!(message["usage"]["input_tokens"], 990_000);
    let counted = stage.post("/v1/messages/count_tokens", &request("hello")).await.expect("an answer");
    let counted: Value = counted.json().await.expect("json");
    assert!(counted["input_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{counted}");
}

#[tokio::test]
async fn a_script_comes_first_and_can_be_replaced() {
    let script = r#"{"when": {"contains": "tea"}, "times": 1, "fail": 529, "retry_after": 0}
        {"when": {"contains": "tea"}, "reply": [{"type": "text", "text": "green"}]}"#;
    let stage = Stage::with(script).await;
    assert_eq!(stage.say("tea").await.0, 529);
    assert_eq!(stage.say("tea").await.1["content"][0]["text"], "green");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let rewrite = |script: &'static str| client.post(stage.url("/_script")).body(script).send();
    let refused = rewrite(r#"[{"relpy": []}]"#).await.expect("an answer");
    assert_eq!(refused.status(), 400);
    let error: Value = refused.json().await.expect("json");
    assert!(error["error"]["message"].as_str().is_some_and(|text| {
        text.starts_with("rule 1: there is no relpy here; there are when, times, reply")
    }));
    assert_eq!(stage.say("tea").await.1["content"][0]["text"], "green", "the old one stays");
    let accepted = rewrite(r#"[{"reply": [{"type": "text", "text": "black"}]}]"#).await.expect("an answer");
    assert_eq!(accepted.json::<Value>().await.expect("json"), json!({"rules": 1}));
    assert_eq!(stage.say("tea").await.1["content"][0]["text"], "black");
    assert_eq!(stage.answered()[..2], ["rule 1: chat, fail 529", "rule 2: reply"]);
}

#[tokio::test]
async fn every_request_is_written_down_before_it_is_answered() {
    let stage = Stage::start().await;
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let odd = client.get(stage.url("/api/hello?x=1")).header("X-Odd", "Yes").send().await.expect("an answer");
    assert_eq!(odd.status(), 404);
    let error: Value = odd.json().await.expect("json");
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("not_found_error")));
    let body = request("hello");
    stage.ask(&body).await;
    assert_eq!(
        client.post(stage.url("/v1/messages")).body("{").send().await.expect("an answer").status(),
        400
    );
    let logged = stage.logged();
    assert_eq!(stage.answered(), ["not found", "chat", "malformed"]);
    assert_eq!(logged[0]["headers"]["x-odd"], "Yes");
    assert_eq!((&logged[0]["method"], &logged[0]["path"]), (&json!("GET"), &json!("/api/hello?x=1")));
    assert_eq!((&logged[1]["n"], &logged[1]["body"]), (&json!(2), &body));
    assert_eq!(logged[2]["body"], "{");
    let same =
        client.get(stage.url("/_log?after=1")).send().await.expect("an answer").text().await.expect("text");
    let same: Vec<Value> = same.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert_eq!(same, logged[1..]);
}

#[tokio::test]
async fn helpers_and_summaries_do_no_harm() {
    let stage = Stage::with(r#"[{"when": {"contains": "tea"}, "fail": 500}]"#).await;
    let title = json!({
        "model": "m", "max_tokens": 128_000, "tools": [],
        "messages": [{"role": "user", "content": "<session>\nfail 529\ntea\n</session>"}],
        "output_config": {"format": {"type": "json_schema", "schema":
            {"type": "object", "properties": {"title": {"type": "string"}}}}},
    });
    assert_eq!(stage.ask(&title).await.1["content"][0]["text"], r#"{"title":"A scripted session"}"#);
    let wish = "Your task is to create a detailed summary of the conversation so far in <summary> tags.";
    let (_, message) = stage.say(wish).await;
    let text = message["content"][0]["text"].as_str().expect("a text");
    assert!(text.starts_with("<summary>") && text.ends_with("</summary>"), "{text}");
}

#[tokio::test]
async fn it_listens_only_on_this_machine_and_a_dead_socket_does_not_stop_it() {
    let dir = directory();
    let options = |listen| ash_dev::ModelServerOptions {
        listen,
        script: ash_dev::ModelScript::default(),
        log: None,
        window: None,
    };
    let outside = ListenAddress::Tcp(([0, 0, 0, 0], 0).into());
    assert!(ash_dev::ModelServer::start(options(outside)).await.is_err());
    let path = dir.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket without a listener"));
    let server =
        ash_dev::ModelServer::start(options(ListenAddress::Unix(path.clone()))).await.expect("a server");
    let second = ash_dev::ModelServer::start(options(ListenAddress::Unix(path.clone()))).await;
    assert!(second.is_err(), "one that lives keeps its socket");
    drop(server);
    assert!(!path.exists());
}

/// The received chunks of a chat completion, and whether the end marker came.
fn completion(text: &str) -> (Vec<Value>, bool) {
    let frames = text.split_terminator("\n\n").map(|frame| frame.strip_prefix("data: ").expect("data"));
    let chunks = frames.clone().filter(|data| *data != "[DONE]");
    (chunks.map(|data| serde_json::from_str(data).expect("json")).collect(), frames.last() == Some("[DONE]"))
}

fn completion_of(prompt: &str) -> Value {
    json!({
        "model": "m", "messages": [{"role": "user", "content": prompt}], "stream_options": {"include_usage": true},
        "tools": [{"type": "function", "function": {"name": "run"}}],
    })
}

#[tokio::test]
async fn a_chat_completion_says_the_same_in_its_own_shape() {
    let stage = Stage::start().await;
    for path in ["/v1/chat/completions", "/openai/deployments/d/chat/completions?api-version=v"] {
        let mut body = completion_of("think: hm\nrun: echo hi");
        let response = stage.post(path, &body).await.expect("an answer");
        let whole: Value = response.json().await.expect("json");
        let message = &whole["choices"][0]["message"];
        let call = &message["tool_calls"][0];
        assert_eq!(
            (&message["content"], &call["function"]),
            (&Value::Null, &json!({"name": "run", "arguments": "{\"command\":\"echo hi\"}"}))
        );
        body["stream"] = json!(true);
        let streamed = stage.post(path, &body).await.expect("an answer").text().await.expect("text");
        let (chunks, done) = completion(&streamed);
        assert!(done, "{streamed}");
        let deltas = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
        let pieces: String =
            deltas.filter_map(|delta| delta["tool_calls"][0]["function"]["arguments"].as_str()).collect();
        assert_eq!(json!(pieces), call["function"]["arguments"]);
        assert_eq!(chunks.last().expect("a chunk")["usage"], whole["usage"]);
        assert_eq!(stage.logged().last().expect("a line")["path"], path);
    }
}

#[tokio::test]
async fn a_chat_completion_fails_in_its_own_shape_too() {
    let stage = Stage::start().await;
    let path = "/v1/chat/completions";
    let response = stage.post(path, &completion_of("fail 429\nsay: hi")).await.expect("an answer");
    assert_eq!((response.status().as_u16(), response.headers().contains_key("retry-after")), (429, true));
    let error: Value = response.json().await.expect("json");
    assert_eq!(error["error"]["code"], "rate_limit_exceeded");
    let mut body = completion_of("overloaded-midstream\nsay: hello");
    body["stream"] = json!(true);
    let text = stage.post(path, &body).await.expect("an answer").text().await.expect("text");
    let (chunks, done) = completion(&text);
    assert_eq!((&chunks.last().expect("a chunk")["error"]["type"], done), (&json!("server_error"), false));
    let open = json!({"model": "m", "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "run", "arguments": "{}"}}]}]});
    let response = stage.post(path, &open).await.expect("an answer");
    assert_eq!(response.status().as_u16(), 400, "a call without a result");
}
