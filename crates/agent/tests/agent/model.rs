//! The agent with the scripted model on a Unix socket, as in a sandbox. Like the real service, the model refuses calls
//! without results and results without calls.

use crate::harness::{Agent, Place, SESSION, streamed, types};
use ash_dev::{ListenAddress, ModelScript, ModelServer, ModelServerOptions};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub(crate) const UNKNOWN: &str = "[Tool call interrupted: its outcome is unknown]";

pub(crate) struct Model {
    folder: TempDir,
    // Fields drop in this order: the server must stop before its runtime.
    _server: ModelServer,
    _runtime: Runtime,
}

impl Model {
    pub(crate) fn new() -> Model {
        Model::with("")
    }

    pub(crate) fn with(script: &str) -> Model {
        Model::of(script, None)
    }

    pub(crate) fn of(script: &str, window: Option<u64>) -> Model {
        let folder = tempfile::tempdir().expect("folder");
        let script = ModelScript::parse(script).expect("a script");
        let listen = ListenAddress::Unix(folder.path().join("model.sock"));
        let options = ModelServerOptions { listen, script, log: Some(folder.path().join("log")), window };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let server = runtime.block_on(ModelServer::start(options)).expect("a server");
        Model { folder, _server: server, _runtime: runtime }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("model.sock")
    }

    pub(crate) fn agent(&self, place: &Place) -> Agent {
        start(place, &self.socket().display().to_string())
    }

    /// The bodies of all requests so far.
    pub(crate) fn asked(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        log.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line")["body"].clone()).collect()
    }

    pub(crate) fn last(&self) -> Value {
        self.asked().pop().expect("a request")
    }
}

fn start(place: &Place, socket: &str) -> Agent {
    let flags =
        ["--session-id", SESSION, "--resume", SESSION, "--provider", "anthropic", "--model-socket", socket];
    place.start(&flags)
}

pub(crate) fn notices(lines: &[Value]) -> Vec<Value> {
    let notices = lines.iter().filter(|line| line["subtype"] == "api_retry");
    notices.map(|line| json!([line["attempt"], line["error_status"], line["error"]])).collect()
}

#[test]
fn a_turn_with_tools_does_its_work_and_is_counted() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = model.agent(&place);
    let lines = agent.ask("a", "write notes.txt: remember the milk");
    assert_eq!(types(&lines)[..3], ["system", "assistant", "user"]);
    assert_eq!(fs::read_to_string(place.work("notes.txt")).expect("a file"), "remember the milk");
    let result = lines.last().expect("a result");
    assert_eq!(result["result"], "The output begins with: Wrote 17 bytes to notes.txt.");
    assert_eq!(streamed(&lines), result["result"]);
    assert_eq!(lines[0]["model"], "claude-sonnet-5-5");
    let spent = |kind: &str| {
        let said = lines.iter().filter(|line| line["type"] == "assistant");
        said.filter_map(|line| line["message"]["usage"][kind].as_u64()).sum::<u64>()
    };
    for kind in ["input_tokens", "output_tokens"] {
        assert!(spent(kind) > 1 && result["usage"][kind] == spent(kind), "{kind}: {result}");
    }

    let said = agent.answer("b", "and now?");
    assert!(said.contains("I can see 2 user messages of this conversation."), "{said}");
    let messages = model.last()["messages"].clone();
    let kinds: Vec<&str> = messages
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|message| message["content"][0]["type"].as_str())
        .collect();
    assert_eq!(kinds, ["text", "tool_use", "tool_result", "text", "text"]);
}

#[test]
fn killed_after_any_line_the_turn_is_completed_and_nothing_is_done_twice() {
    const PROMPT: &str = "run: echo x >> one\nthink: hm\nrun: echo x >> two\nsay: done";
    let (place, model) = (Place::new(), Model::new());
    let lines = model.agent(&place).ask("a", PROMPT);
    for killed_after in 0..lines.len() {
        let (place, model) = (Place::new(), Model::new());
        let mut agent = model.agent(&place);
        agent.prompt("a", PROMPT);
        (0..killed_after).for_each(|_| drop(agent.line()));
        agent.kill();
        let mut agent = model.agent(&place);
        let said = agent.answer("a", PROMPT);
        assert!(said.ends_with("done"), "{killed_after}: {said}");
        for file in ["one", "two"] {
            let times = fs::read_to_string(place.work(file)).map_or(0, |text| text.lines().count());
            assert!(times <= 1, "{killed_after}: {file} was written {times} times");
        }
        agent.answer("b", "hello");
        // Counts only tool results: the model repeats the text itself.
        let unknown = model.last().to_string().matches(&format!("\"content\":\"{UNKNOWN}\"")).count();
        assert!(unknown <= 1, "{killed_after}: shown {unknown} times");
    }
}

#[test]
fn temporary_errors_are_waited_out() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = model.agent(&place);
    for (turn, (trouble, expected)) in [
        ("fail 529", json!([[1, 529, "overloaded"]])),
        ("fail 429", json!([[1, 429, "rate_limit"]])),
        ("fail 500", json!([[1, 500, "server_error"]])),
        ("cut 0", json!([[1, null, "unknown"]])),
        ("cut 5", json!([[1, null, "unknown"]])),
        ("overloaded-midstream", json!([[1, null, "overloaded"]])),
    ]
    .into_iter()
    .enumerate()
    {
        let lines = agent.ask(&turn.to_string(), &format!("{trouble}\nsay: all is well again"));
        let result = lines.last().expect("a result");
        assert_eq!(
            (&result["is_error"], &result["result"]),
            (&json!(false), &json!("all is well again")),
            "{trouble}"
        );
        assert_eq!(json!(notices(&lines)), expected, "{trouble}");
        // Text before the failure is void, and text after it is complete.
        let after = lines.iter().rposition(|line| line["subtype"] == "api_retry").expect("a notice");
        assert_eq!(streamed(&lines[after..]), "all is well again", "{trouble}");
    }
}

#[test]
fn the_service_sets_the_wait_and_we_set_the_number_of_retries() {
    let model = Model::with(r#"{"when": {"contains": "no luck"}, "fail": 529, "retry_after": 0}"#);
    let place = Place::new();
    let lines = model.agent(&place).ask("a", "no luck");
    let result = lines.last().expect("a result");
    assert_eq!((&result["is_error"], &result["terminal_reason"]), (&json!(true), &json!("api_error")));
    let why = result["result"].as_str().expect("text");
    assert!(
        why.contains("(asked 8 times): 529 overloaded_error") && why.contains("Send the message again"),
        "{why}"
    );
    assert_eq!((notices(&lines).len(), model.asked().len()), (7, 8));
}

#[test]
fn permanent_errors_are_reported_at_once_with_the_next_step() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = model.agent(&place);
    for (status, step) in [
        (400, "set the session's `model`"),
        (401, "ANTHROPIC_API_KEY"),
        (403, "may not use claude-sonnet-5-5"),
        (404, "has no claude-sonnet-5-5"),
        (413, "Fork the session"),
    ] {
        let before = model.asked().len();
        let lines = agent.ask(&status.to_string(), &format!("fail {status}\nsay: never"));
        let result = lines.last().expect("a result");
        let why = result["result"].as_str().expect("text");
        let reason = if [400, 413].contains(&status) { "invalid_request" } else { "api_error" };
        assert_eq!((&result["is_error"], &result["terminal_reason"]), (&json!(true), &json!(reason)));
        assert!(why.contains(step) && why.contains(&status.to_string()), "{why}");
        assert_eq!(model.asked().len(), before + 1, "{status}");
    }
    assert!(agent.answer("b", "hello").starts_with("You said: \"hello\"."));
    let shown = model.last()["messages"].to_string();
    let remembered = [400, 401, 403, 404, 413].map(|status| shown.contains(&format!("fail {status}")));
    assert_eq!(remembered, [false, true, true, true, false], "what is never taken is not sent again");
}

#[test]
fn an_interrupt_ends_the_stream_and_the_partial_answer_is_remembered() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = model.agent(&place);
    agent.prompt("a", "slow 600: one two three four five six seven eight nine ten");
    let said = streamed(&agent.until("stream_event"));
    agent.control("i", "interrupt");
    let lines = agent.until("result");
    let result = lines.last().expect("a result");
    assert_eq!(result["terminal_reason"], "aborted_streaming");
    let partial = said + &streamed(&lines);
    assert_eq!(result["result"], *partial);
    agent.answer("b", "go on");
    let messages = &model.last()["messages"];
    let shown = json!([
        {"role": "assistant", "content": [{"type": "text", "text": partial}]},
        {"role": "user", "content": [
            {"type": "text", "text": "[Request interrupted by user]"},
            {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}]},
    ]);
    assert_eq!(json!(messages.as_array().expect("a list")[1..]), shown);
}

#[test]
fn an_interrupt_ends_every_wait() {
    let place = Place::new();
    let model = Model::with(r#"{"when": {"contains": "later"}, "fail": 529, "retry_after": 100}"#);
    let interrupted = |mut agent: Agent, turn: &str, prompt: &str, waits_when: fn(&Value) -> bool| {
        agent.prompt(turn, prompt);
        while !waits_when(&agent.line()) {}
        agent.control("i", "interrupt");
        let result = agent.until("result").pop().expect("a result");
        assert_eq!(result["terminal_reason"], "aborted_streaming", "{prompt}");
    };
    let again = |line: &Value| line["subtype"] == "api_retry";
    interrupted(model.agent(&place), "a", "later", again);
    interrupted(model.agent(&place), "b", "hang", |line| line["subtype"] == "init");
    interrupted(start(&place, "/nowhere/model.sock"), "c", "hello", again);
}

#[test]
fn offline_turns_are_part_of_the_conversation() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = place.fresh();
    agent.answer("a", "run: echo hi > file; cat file");
    agent.answer("b", "my name is Ada");
    drop(agent);
    model.agent(&place).answer("c", "who am I?");
    let messages = model.last()["messages"].clone();
    assert_eq!(messages.as_array().map(Vec::len), Some(7));
    assert_eq!(messages[2]["content"][0]["content"], "hi");
    assert_eq!(messages[4]["content"][0]["text"], "my name is Ada");

    let said = place.resumed().answer("d", "and without a model?");
    assert!(said.starts_with("This is turn 4."), "{said}");
}

#[test]
fn the_folder_and_the_session_define_the_agent() {
    let (place, model) = (Place::new(), Model::new());
    fs::write(place.work("AGENTS.md"), "not this one").expect("written");
    fs::write(place.work("CLAUDE.md"), "Answer in rhymes.\n").expect("written");
    let mut agent = model.agent(&place);
    agent.send(&json!({"type": "control_request", "request_id": "r",
        "request": {"subtype": "initialize", "systemPrompt": "Be short."}}));
    agent.line();
    agent.answer("a", "hello");
    let asked = model.last();
    let told = json!({"type": "text", "text": "Answer in rhymes.\n\nBe short.", "cache_control": {"type": "ephemeral"}});
    assert_eq!(asked["system"][1], told);
    let tools: Vec<&str> =
        asked["tools"].as_array().expect("tools").iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(tools, ["run", "read", "write", "edit", "list", "search"]);

    fs::remove_file(place.work("CLAUDE.md")).expect("removed");
    agent.answer("b", "hello");
    assert_eq!(model.last()["system"][1]["text"], "not this one\n\nBe short.");
}

#[test]
fn the_hosts_note_is_shown_before_the_message_and_remembered() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = model.agent(&place);
    agent.send(&json!({"type": "user", "uuid": "a", "head": "You were asleep.",
        "message": {"role": "user", "content": "say: hi"}}));
    assert_eq!(agent.until("result").pop().expect("a result")["result"], "hi");
    drop(agent);
    model.agent(&place).answer("b", "hello");
    let shown = json!([
        {"type": "text", "text": "<system-reminder>\nYou were asleep.\n</system-reminder>"},
        {"type": "text", "text": "say: hi"},
    ]);
    assert_eq!(model.last()["messages"][0]["content"], shown);
    assert_eq!(
        place.resumed().answer("c", "run: echo offline it is not in the way"),
        "offline it is not in the way"
    );
}

#[test]
fn a_transcript_with_the_thoughts_of_a_model_is_still_understood() {
    let (place, model) = (Place::new(), Model::new());
    fs::create_dir_all(place.transcript(SESSION).parent().expect("a folder")).expect("folder");
    fs::write(place.transcript(SESSION), include_bytes!("../golden/transcript-2.jsonl")).expect("written");
    let mut agent = model.agent(&place);
    assert_eq!(agent.hello()["damaged"], 0);
    let said = agent.answer("a", "look around");
    assert_eq!(said, "The output begins with: [empty]", "the turn goes on where it was cut");
    let shown = json!([
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "list", "input": {}},
    ]);
    assert_eq!(model.last()["messages"][1]["content"], shown);
}

/// The message belongs to the turn that received it, and a resumed turn still includes it.
#[test]
fn a_transcript_with_something_said_in_the_middle_of_a_turn_is_still_understood() {
    let (place, model) = (Place::new(), Model::new());
    fs::create_dir_all(place.transcript(SESSION).parent().expect("a folder")).expect("folder");
    fs::write(place.transcript(SESSION), include_bytes!("../golden/transcript-4.jsonl")).expect("written");
    let mut agent = model.agent(&place);
    assert_eq!((&agent.hello()["damaged"], &agent.hello()["turns"]), (&json!(0), &json!(1)));
    assert_eq!(agent.answer("a", "look around"), "mind the gap", "the turn goes on where it was cut");
    let told = json!([
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "[empty]", "is_error": false},
        {"type": "text", "text": "say: mind the gap", "cache_control": {"type": "ephemeral"}},
    ]);
    assert_eq!(model.last()["messages"][2]["content"], told);
}

#[test]
fn thoughts_are_kept_and_given_back_while_their_turn_lasts() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = model.agent(&place);
    agent.answer("a", "think: let me see\nrun: echo hi");
    let thought = &model.last()["messages"][1]["content"][0];
    assert_eq!((&thought["type"], &thought["thinking"]), (&json!("thinking"), &json!("let me see")));
    assert!(thought["signature"].as_str().is_some_and(|signature| signature.starts_with("signature-")));
    agent.answer("b", "hello");
    assert!(!model.last().to_string().contains("\"thinking\":"), "earlier thoughts are left out");
    assert_eq!(place.entries(SESSION)[1]["message"]["content"][0], *thought, "but kept");
}

/// Answers one request after another with these bytes, and returns the requests.
pub(crate) fn service(path: &std::path::Path, answers: Vec<String>) -> std::thread::JoinHandle<Vec<Value>> {
    let listener = UnixListener::bind(path).expect("bind");
    std::thread::spawn(move || {
        let answer = |answer: String| {
            let mut stream = BufReader::new(listener.accept().expect("a request").0);
            let (mut line, mut length) = (String::new(), 0);
            while line != "\r\n" {
                line.clear();
                stream.read_line(&mut line).expect("a header");
                length = line
                    .strip_prefix("content-length: ")
                    .map_or(length, |n| n.trim().parse().expect("a number"));
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).expect("a body");
            stream.get_mut().write_all(answer.as_bytes()).expect("answered");
            serde_json::from_slice(&body).expect("json")
        };
        answers.into_iter().map(answer).collect()
    })
}

#[test]
fn thoughts_that_the_model_refuses_are_left_out() {
    let message = "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation.";
    let refusal =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}}).to_string();
    let refused = format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\n\r\n{refusal}", refusal.len());
    let events = [
        json!({"type": "message_start", "message": {"id": "m"}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "fine"}}),
        json!({"type": "message_stop"}),
    ]
    .map(|event| format!("data: {event}\n\n"))
    .concat();
    let answered = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{events}", events.len());
    let place = Place::new();
    fs::create_dir_all(place.transcript(SESSION).parent().expect("a folder")).expect("folder");
    fs::write(place.transcript(SESSION), include_bytes!("../golden/transcript-2.jsonl")).expect("written");
    let socket = place.home().join("model.sock");
    let service = service(&socket, vec![refused, answered]);
    assert_eq!(start(&place, &socket.display().to_string()).answer("a", "look around"), "fine");
    let asked = service.join().expect("two requests");
    let thoughts = asked.iter().map(|body| body.to_string().matches("\"thinking\":").count());
    assert_eq!(thoughts.collect::<Vec<_>>(), [1, 0]);
    assert_eq!(asked[1]["messages"][1]["content"][0]["text"], "I look.");
}
