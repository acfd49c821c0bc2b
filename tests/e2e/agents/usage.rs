//! Token usage: counted once, whichever process dies, and never above a budget by more than one answer. The model server
//! logs the usage that it reports, and the tests compare.

use crate::support::{
    Client, ash, children, claude::Stage, cmdline, eventually, is_for_people, let_go, signal,
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

mod reports;

const RUNTIMES: [&str; 2] = ["builtin", "claude"];
/// A long call, which the model requests only after a delay.
const LONG: &str = "stall 1000\nrun: touch begun; sleep 100";

async fn create(stage: &Stage, runtime: &str, mut options: Value) -> String {
    let client = stage.server.client();
    let agent = stage.server.dir.join(runtime);
    std::fs::create_dir_all(&agent).expect("a folder");
    std::fs::write(agent.join("CLAUDE.md"), "Answer in one line.").expect("written");
    std::fs::write(agent.join("ash.toml"), format!("runtime = \"{runtime}\"\n")).expect("written");
    client.post("/api/agents", json!({ "name": runtime, "path": agent })).await;
    options["agent"] = json!(runtime);
    let made = client.post("/api/sessions", options).await;
    made["session"]["id"].as_str().expect("an id").to_owned()
}

/// The usage that the model reported in complete answers: input, output, and dollars by the price list.
fn said(stage: &Stage) -> (u64, u64, f64) {
    let used = stage.requests().into_iter().filter(|request| !request["usage"].is_null());
    used.fold((0, 0, 0.0), |(input, output, dollars), request| {
        let number = |name: &str| request["usage"][name].as_u64().expect("a number");
        let (more_in, more_out) = (number("input_tokens"), number("output_tokens"));
        let (price_in, price_out) = match request["body"]["model"].as_str().expect("a model") {
            "claude-opus-5-5" => (4.0, 20.0),
            "claude-sonnet-5-5" => (2.0, 10.0),
            other => panic!("{other}"),
        };
        let cost = (more_in as f64 * price_in + more_out as f64 * price_out) / 1e6;
        (input + more_in, output + more_out, dollars + cost)
    })
}

fn counted(usage: &Value) -> (u64, u64, f64) {
    let number = |name: &str| usage[name].as_u64().unwrap_or_else(|| panic!("{name}: {usage}"));
    (number("inputTokens"), number("outputTokens"), usage["costUsd"].as_f64().unwrap_or(-1.0))
}

fn assert_same((input, output, dollars): (u64, u64, f64), said: (u64, u64, f64), when: &str) {
    assert!(input > 0 && output > 0, "{when}");
    assert_eq!((input, output), (said.0, said.1), "{when}");
    assert!((dollars - said.2).abs() < 1e-9, "{when}: {dollars} {}", said.2);
}

async fn of_session(client: &Client, id: &str) -> (u64, u64, f64) {
    counted(&client.session(id).await["usage"])
}

/// This session caused all usage, so every sum must match.
async fn adds_up(stage: &Stage, id: &str, when: &str) {
    let client = stage.server.client();
    let said = said(stage);
    assert_same(of_session(&client, id).await, said, when);
    for by in ["turn", "session", "agent", "owner", "model", "day"] {
        let answer = client.get(&format!("/api/usage?by={by}")).await;
        assert_same(counted(&answer["total"]), said, &format!("{when}, by {by}"));
        let sums: Vec<_> = answer["usage"].as_array().expect("a list").iter().map(counted).collect();
        let sum = sums.iter().fold((0, 0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2));
        assert_same(sum, said, &format!("{when}, sum by {by}"));
    }
}

async fn agent_of(stage: &Stage, id: &str) -> u32 {
    let note = stage.server.note(id).await;
    let init = note["init"]["pid"].as_u64().expect("a pid") as u32;
    let agents = ["builtin-agent", "claude"];
    let is_agent = |pid: &u32| agents.iter().any(|name| cmdline(*pid).contains(name));
    children(init).into_iter().find(is_agent).expect("the agent")
}

async fn begun(client: &Client, id: &str) {
    eventually("the command runs", async || {
        let looked = client
            .ask(Method::POST, &format!("/api/sessions/{id}/exec"), Some(json!({"command": "test -e begun"})))
            .await;
        (looked.1["exitCode"] == 0).then_some(())
    })
    .await;
}

async fn comes_to_rest(client: &Client, id: &str) {
    eventually("the turn is over", async || {
        let session = client.session(id).await;
        if session["status"] == "error" || session["status"] == "paused" {
            client.ask(Method::POST, &format!("/api/sessions/{id}/resume"), None).await;
        }
        (session["openTurns"] == 0 && session["status"] == "active").then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_the_model_said_it_used_is_what_was_counted() {
    for runtime in RUNTIMES {
        let stage = Stage::set().await;
        let client = stage.server.client();
        let id = create(&stage, runtime, json!({})).await;
        client.say(&id, "say: hello").await;
        adds_up(&stage, &id, runtime).await;
        let before = of_session(&client, &id).await;
        let answer = client.say(&id, "run: echo one\nrun: echo two\nsay: done").await;
        adds_up(&stage, &id, runtime).await;
        let after = of_session(&client, &id).await;
        let of_turn = (answer["usage"]["inputTokens"].as_u64(), answer["usage"]["outputTokens"].as_u64());
        assert_eq!(of_turn, (Some(after.0 - before.0), Some(after.1 - before.1)), "{runtime}: {answer}");
        // A cold resume reports no usage again.
        client.action(&id, "stop").await;
        client.action(&id, "resume").await;
        client.say(&id, "say: and now?").await;
        adds_up(&stage, &id, runtime).await;
        let usage = client.session(&id).await["usage"].clone();
        assert_eq!((&usage["turns"], &usage["unpriced"]), (&json!(3), &json!(false)), "{usage}");
        assert!(usage["rounds"].as_u64() >= Some(4), "{usage}");
        let metrics = client.request(Method::GET, "/metrics").send().await.expect("metrics");
        let metrics = metrics.text().await.expect("text");
        let line = format!("ash_tokens_total{{kind=\"input\"}} {}", said(&stage).0);
        assert!(metrics.contains(&line), "{line}: {metrics}");
        // The machine usage is reported as well.
        client.say(&id, "run: i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done").await;
        client.action(&id, "stop").await;
        let taken = client.session(&id).await["resources"].clone();
        assert!(taken["cpuSeconds"].as_f64() > Some(0.0), "{taken}");
        let usage = client.get("/api/usage?by=session").await;
        assert_eq!(
            (&usage["usage"][0]["resources"], &usage["total"]["resources"]),
            (&taken, &taken),
            "{usage}"
        );
        let nobody = client.get("/api/usage?by=session&agent=nobody").await;
        assert_eq!(nobody["total"]["resources"]["cpuSeconds"], 0.0, "{nobody}");
        let stats = client.get("/api/usage/stats").await["stats"]["totalComputeSeconds"].clone();
        assert_eq!(stats.as_f64(), taken["cpuSeconds"].as_f64().map(f64::trunc));
    }
}

/// A model call by any process in the sandbox.
fn by_hand(socket: &str, text: &str) -> String {
    by_hand_to("claude-sonnet-5-5", socket, text)
}

fn by_hand_to(model: &str, socket: &str, text: &str) -> String {
    let body = json!({ "model": model, "messages": [{ "role": "user", "content": text }] });
    format!(
        "curl -s -o /dev/null -w '%{{http_code}} ' --unix-socket /run/ash/{socket} http://localhost/v1/messages -d '{body}'; "
    )
}

#[tokio::test]
async fn calls_by_hand_through_the_models_socket_are_counted_and_no_budget_is_exceeded_by_them() {
    let stage = Stage::set().await;
    let client = stage.server.client();
    let id = create(&stage, "builtin", json!({})).await;
    let said_by_hand = client
        .exec(&id, &(0..10).map(|n| by_hand("model.sock", &format!("say: {n}"))).collect::<String>())
        .await;
    assert_eq!(
        said_by_hand["stdout"].as_str().map(str::trim),
        Some(["200"; 10].join(" ").as_str()),
        "{said_by_hand}"
    );
    eventually("they are counted", async || {
        let (now, said) = (of_session(&client, &id).await, said(&stage));
        ((now.0, now.1) == (said.0, said.1)).then_some(())
    })
    .await;
    client.say(&id, "run: true").await;
    adds_up(&stage, &id, "by hand and by the agent").await;

    // A command of a turn uses up the turn's budget: the next call is refused.
    let asked = stage.requests().len();
    let before = of_session(&client, &id).await;
    let most = 400;
    let limits = json!({ "maxTokens": before.0 + before.1 + most });
    client.ask(Method::PATCH, &format!("/api/sessions/{id}/config"), Some(limits)).await;
    let long = by_hand("model.sock", &format!("say: {}", "word ".repeat(40)));
    // The session pauses meanwhile, which ends the command.
    let command = json!({ "command": long.repeat(50) });
    client.ask(Method::POST, &format!("/api/sessions/{id}/exec"), Some(command)).await;
    eventually("the session pauses", async || {
        (client.session(&id).await["status"] == "paused").then_some(())
    })
    .await;
    let passed = stage.requests().len() - asked;
    assert!(passed > 0 && passed < 50, "{passed}");
    adds_up(&stage, &id, "used up by hand").await;
    // The usage exceeds the budget by at most the last answer.
    let after = of_session(&client, &id).await;
    let used = after.0 + after.1 - before.0 - before.1;
    let one = used / passed as u64;
    assert!(used >= most && used < most + 2 * one, "{used} of {most}, {passed} passed");
}

/// The server sends the remaining budget and the prices to the shim, so the limit works without the server.
#[tokio::test]
async fn a_budget_closes_the_route_while_the_server_is_dead() {
    for (name, of) in [("maxTokens", 400.0), ("maxBudgetUsd", 0.002)] {
        let mut stage = Stage::set().await;
        let client = stage.server.client();
        let id = create(&stage, "builtin", json!({})).await;
        client.say(&id, "say: hello").await;
        let before = of_session(&client, &id).await;
        let used = |now: (u64, u64, f64)| match name {
            "maxTokens" => (now.0 + now.1 - before.0 - before.1) as f64,
            _ => now.2 - before.2,
        };
        let limits = match name {
            "maxTokens" => json!({ name: before.0 + before.1 + of as u64 }),
            _ => json!({ name: before.2 + of }),
        };
        client.ask(Method::PATCH, &format!("/api/sessions/{id}/config"), Some(limits)).await;
        let call = by_hand("model.sock", &format!("say: {}", "word ".repeat(40))).replace("; ", " >> codes");
        let calls =
            format!("until [ -e go ]; do sleep 0.01; done; for i in $(seq 100); do {call}; done; touch over");
        let script = format!("cat > calls.sh <<'END'\n{calls}\nEND\nsetsid sh calls.sh >/dev/null 2>&1 &");
        assert_eq!(client.exec(&id, &script).await["exitCode"], 0);
        let live = stage.server.live(&id).await;
        let (workspace, asked) = (live.join("tree/workspace"), stage.requests().len());
        stage.server.kill9();
        let_go(&live, "go");
        eventually("all calls were made", async || workspace.join("over").exists().then_some(())).await;
        let codes = std::fs::read_to_string(workspace.join("codes")).expect("written");
        let passed = codes.split_whitespace().filter(|code| *code == "200").count();
        assert!(passed > 0 && codes.trim_end().ends_with("402"), "{name}: {codes}");
        assert_eq!(stage.requests().len() - asked, passed, "{name}: what was refused has not been passed on");
        stage.server.launch().await;
        let client = stage.server.client();
        eventually("it is counted", async || (used(of_session(&client, &id).await) >= of).then_some(()))
            .await;
        adds_up(&stage, &id, name).await;
        let all = used(of_session(&client, &id).await);
        assert!(all < of + 2.0 * all / passed as f64, "{name}: {all} of {of}, {passed} passed");
    }
}

#[tokio::test]
async fn many_callers_at_once_exceed_a_budget_by_no_more_than_what_is_in_flight_while_no_server_lives() {
    const AT_ONCE: u32 = 8;
    for limit in ["maxTokens", "maxBudgetUsd"] {
        let mut stage = Stage::set().await;
        let client = stage.server.client();
        let id = create(&stage, "builtin", json!({})).await;
        // All calls are under way before the first is answered.
        let call = by_hand("model.sock", &format!("stall 300\nsay: {}", "word ".repeat(400)));
        client.exec(&id, &call).await;
        eventually("it is counted", async || (of_session(&client, &id).await.1 > 0).then_some(())).await;
        let of = |(input, output, dollars): (u64, u64, f64)| match limit {
            "maxTokens" => (input + output) as f64,
            _ => dollars,
        };
        let one = of(said(&stage));
        let most = if limit == "maxTokens" { json!(20 * one as u64) } else { json!(20.0 * one) };
        let config = format!("/api/sessions/{id}/config");
        let (status, set) = client.ask(Method::PATCH, &config, Some(json!({ limit: most }))).await;
        assert_eq!(status, StatusCode::OK, "{set}");
        let callers =
            format!("for n in $(seq {AT_ONCE}); do (for m in $(seq 10); do {call} done) & done; wait");
        let command = format!("run: touch begun; until [ -e go ]; do sleep 0.1; done; {callers}; touch over");
        drop(client.send(&id, &command).await);
        begun(&client, &id).await;
        let live = stage.server.live(&id).await;
        stage.server.kill9();
        let_go(&live, "go");
        eventually("all have tried", async || live.join("tree/workspace/over").exists().then_some(())).await;
        let calls = of(said(&stage)) / one;
        assert!(calls > 19.0 && calls < 20.0 + f64::from(AT_ONCE), "{limit}: {calls} calls of 20");
    }
}

#[tokio::test]
async fn each_session_of_a_workspace_pays_for_what_goes_through_its_own_socket() {
    let stage = Stage::set().await;
    let client = stage.server.client();
    let one = create(&stage, "builtin", json!({ "workspace": "ours" })).await;
    let two = create(&stage, "builtin", json!({ "workspace": "ours" })).await;
    let sockets = client.exec(&one, "cd /run/ash; ls *.sock").await;
    assert_eq!(sockets["stdout"], "model.2.sock\nmodel.sock\n", "{sockets}");
    client.exec(&one, &by_hand("model.2.sock", "say: on another account")).await;
    eventually("the second pays", async || (of_session(&client, &two).await.0 > 0).then_some(())).await;
    assert_eq!(of_session(&client, &one).await.0, 0);
    client.say(&one, "say: hello").await;
    let (first, second, all) =
        (of_session(&client, &one).await, of_session(&client, &two).await, said(&stage));
    assert_eq!((first.0 + second.0, first.1 + second.1), (all.0, all.1));
    // The first session could use the socket of the second one.
    let documented = include_str!("../../../docs/security.md");
    assert!(documented.contains("the sessions of a workspace trust each other"));
}

/// Server and agents die again and again, at random instants: the totals equal the model's.
#[tokio::test]
async fn slowly_after_fifty_deaths_of_servers_and_agents_the_figures_are_the_models_own() {
    for runtime in RUNTIMES {
        let mut stage = Stage::set().await;
        let id = create(&stage, runtime, json!({})).await;
        for round in 0..25 {
            let client = stage.server.client();
            client.exec(&id, "rm -f begun").await;
            let sent =
                client.send(&id, "run: echo first\nrun: touch begun; sleep 1\nslow 5: it is done").await;
            if round % 2 == 0 {
                begun(&client, &id).await;
                signal(agent_of(&stage, &id).await, libc::SIGKILL);
                client.until_status(&id, "error").await;
            } else {
                // At another instant in each round, also in the middle of an answer.
                tokio::time::sleep(std::time::Duration::from_millis(100 * (round % 13))).await;
                stage.server.crash_and_start().await;
            }
            drop(sent);
            let client = stage.server.client();
            comes_to_rest(&client, &id).await;
            adds_up(&stage, &id, &format!("{runtime}, round {round}")).await;
        }
    }
}

/// A dead shim loses what it has not forwarded; everything that it has forwarded is counted.
#[tokio::test]
async fn slowly_after_deaths_of_shims_nothing_that_was_received_is_missing() {
    let stage = Stage::set().await;
    let id = create(&stage, "builtin", json!({})).await;
    let client = stage.server.client();
    let mut received = (0, 0);
    for round in 0..10_u64 {
        let sent = client.send(&id, "slow 20: this takes about a second to say").await;
        tokio::time::sleep(std::time::Duration::from_millis(300 + 40 * round)).await;
        let pid = stage.server.note(&id).await["shim"]["pid"].as_u64().expect("a pid") as u32;
        signal(pid, libc::SIGKILL);
        drop(sent);
        client.until_status(&id, "error").await;
        comes_to_rest(&client, &id).await;
        // The last answer is complete; for answers that were cut off at least the input tokens arrived.
        let answers: Vec<_> =
            stage.requests().into_iter().filter(|request| !request["usage"].is_null()).collect();
        let last = answers.last().expect("an answer");
        let number = |request: &Value, name: &str| request["usage"][name].as_u64().expect("a number");
        received =
            answers.iter().fold((0, 0), |sum, request| (sum.0 + number(request, "input_tokens"), sum.1));
        received.1 += number(last, "output_tokens");
        let now = of_session(&client, &id).await;
        assert!(now.0 >= received.0 && now.1 >= received.1, "{round}: {now:?} {received:?}");
    }
    assert!(received.0 > 0);
}

#[tokio::test]
async fn what_helpers_used_counts_too() {
    let stage = Stage::set().await;
    let call = json!({ "type": "tool_use", "name": "Agent",
        "input": { "description": "look", "prompt": "run: echo from the helper", "subagent_type": "general-purpose" } });
    stage.script(json!([{ "when": { "contains": "ask a helper" }, "times": 1, "reply": [call] }])).await;
    let client = stage.server.client();
    let id = create(&stage, "claude", json!({})).await;
    client.say(&id, "please ask a helper").await;
    comes_to_rest(&client, &id).await;
    let helped = |request: &Value| request["headers"].get("x-claude-code-agent-id").is_some();
    eventually("the helper's last words are heard", async || {
        let now = of_session(&client, &id).await;
        let said = said(&stage);
        ((now.0, now.1) == (said.0, said.1)).then_some(())
    })
    .await;
    assert!(stage.requests().iter().any(helped), "nobody was asked");
    adds_up(&stage, &id, "helpers").await;
}

#[tokio::test]
async fn nothing_is_counted_twice_or_lost_whoever_dies_in_a_turn() {
    for runtime in RUNTIMES {
        let mut stage = Stage::set().await;
        let id = create(&stage, runtime, json!({})).await;
        for victim in ["server", "agent", "shim", "sandbox"] {
            let when = format!("{runtime}: {victim}");
            let client = stage.server.client();
            client.exec(&id, "rm -f begun").await;
            let sent = client.send(&id, "run: echo first\nrun: touch begun; sleep 3\nsay: done").await;
            begun(&client, &id).await;
            let note = stage.server.note(&id).await;
            let pid = |who: &str| note[who]["pid"].as_u64().expect("a pid") as u32;
            match victim {
                "server" => stage.server.crash_and_start().await,
                "agent" => signal(agent_of(&stage, &id).await, libc::SIGKILL),
                "shim" => signal(pid("shim"), libc::SIGKILL),
                _ => signal(pid("init"), libc::SIGKILL),
            }
            drop(sent);
            let client = stage.server.client();
            if victim != "server" {
                client.until_status(&id, "error").await;
            }
            comes_to_rest(&client, &id).await;
            adds_up(&stage, &id, &when).await;
        }
    }
}

#[tokio::test]
async fn an_answer_that_was_cut_off_counts_what_went_into_it() {
    let stage = Stage::set().await;
    let client = stage.server.client();
    let id = create(&stage, "claude", json!({})).await;
    // Five letters twenty times a second, for longer than any step of the test.
    let mut stream = client.send(&id, &format!("slow 4000: {}", "word ".repeat(4000))).await;
    for _ in 0..5 {
        stream.until("text_delta").await;
    }
    client.action(&id, "interrupt").await;
    stream.until("done").await;
    client.say(&id, "say: hello").await;
    let (input, output, _) = of_session(&client, &id).await;
    let said = said(&stage);
    assert_eq!(input, said.0);
    assert!(output < said.1 && output > 1, "{output} of {}", said.1);
}

#[tokio::test]
async fn what_was_used_comes_back_from_the_object_store_and_a_fork_pays_for_itself() {
    for runtime in RUNTIMES {
        let bucket = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", bucket.path().display());
        let mut stage = Stage::with(&[("ASH_SNAPSHOT_URL", &url), ("ASH_DURABILITY", "remote")]).await;
        let client = stage.server.client();
        let id = create(&stage, runtime, json!({})).await;
        client.say(&id, "run: echo hello").await;
        client.action(&id, "stop").await;
        let before = client.session(&id).await["usage"].clone();
        stage.server.lose_the_machine().await;
        let client = stage.server.client();
        client.action(&id, "resume").await;
        assert_eq!(client.session(&id).await["usage"], before, "{runtime}");
        adds_up(&stage, &id, runtime).await;
        client.say(&id, "say: again").await;
        adds_up(&stage, &id, runtime).await;

        let spent = of_session(&client, &id).await;
        let fork = client.action(&id, "fork").await["session"]["id"].as_str().expect("an id").to_owned();
        assert_eq!(counted(&client.session(&fork).await["usage"]).0, 0);
        client.say(&fork, "say: on my own").await;
        assert_eq!(of_session(&client, &id).await, spent);
        let both = said(&stage);
        assert_eq!(of_session(&client, &fork).await.0, both.0 - spent.0);
        assert_same(counted(&client.get("/api/usage?by=agent").await["total"]), both, runtime);

        // A rewind does not undo usage.
        let first = client.get(&format!("/api/sessions/{id}/checkpoints")).await;
        let oldest =
            first["checkpoints"].as_array().and_then(|all| all.last()).expect("one")["number"].clone();
        client.post(&format!("/api/sessions/{id}/rewind"), json!({ "checkpoint": oldest })).await;
        assert_eq!(of_session(&client, &id).await, spent);
    }
}

#[tokio::test]
async fn a_budget_that_is_used_up_pauses_the_session_and_raised_it_goes_on_with_what_waits() {
    for runtime in RUNTIMES {
        let mut stage = Stage::set().await;
        let client = stage.server.client();
        let id = create(&stage, runtime, json!({ "maxTokens": 10, "idleTimeout": 0 })).await;
        let config = format!("/api/sessions/{id}/config");
        let mut stream = client.send(&id, LONG).await;
        stream.until("session_start").await;
        let mut waiting = client.send(&id, "say: I waited").await;
        waiting.until("session_start").await;
        let frames = stream.until("done").await;
        let done = frames.last().expect("the end");
        assert_eq!(done.data["status"], "interrupted", "{runtime}: {done:?}");
        let code = |frame: &&crate::support::Frame| frame.event == "error";
        assert_eq!(frames.iter().find(code).expect("why").data["code"], "budget_reached", "{runtime}");
        let reached = frames.iter().find(|frame| frame.event == "budget_reached").expect("said").data.clone();
        assert_eq!(
            (&reached["of"], &reached["which"], &reached["limit"]),
            (&json!("session"), &json!("maxTokens"), &json!(10)),
            "{runtime}: {reached}"
        );
        client.until_status(&id, "paused").await;
        let asked = stage.requests().len();

        let refused = async |client: &Client| {
            let message = json!({ "content": "more" });
            for (what, body) in [("messages", Some(message)), ("resume", None)] {
                let path = format!("/api/sessions/{id}/{what}");
                let (status, problem) = client.ask(Method::POST, &path, body).await;
                assert_eq!(status, StatusCode::CONFLICT, "{runtime}: {problem}");
                assert_eq!(problem["code"], "budget_reached", "{runtime}: {problem}");
                let words = problem["error"].as_str().expect("a sentence");
                assert!(words.contains("maxTokens is 10") && words.contains("PATCH"), "{words}");
            }
        };
        refused(&client).await;
        stage.server.crash_and_start().await;
        let client = stage.server.client();
        refused(&client).await;
        assert_eq!(client.session(&id).await["openTurns"], 1, "{runtime}: it waits");
        let (status, problem) = client.ask(Method::PATCH, &config, Some(json!({ "maxTokens": 0 }))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        // A limit that is still too low does not resume the turn.
        client.ask(Method::PATCH, &config, Some(json!({ "maxTokens": 11 }))).await;
        assert_eq!((client.status(&id).await.as_str(), stage.requests().len()), ("paused", asked));

        let (status, raised) =
            client.ask(Method::PATCH, &config, Some(json!({ "maxTokens": 100_000_000 }))).await;
        assert_eq!(status, StatusCode::OK, "{raised}");
        comes_to_rest(&client, &id).await;
        assert_eq!(client.session(&id).await["lastText"], "I waited", "{runtime}");
        adds_up(&stage, &id, runtime).await;
    }
}

#[tokio::test]
async fn a_resume_that_raises_the_budget_resumes() {
    let stage = Stage::set().await;
    let client = stage.server.client();
    let id = create(&stage, "builtin", json!({ "maxBudgetUsd": 0.000001 })).await;
    assert_eq!(client.say(&id, "say: hello").await["status"], "done", "the last answer is not cut off");
    client.until_status(&id, "paused").await;
    let resume = format!("/api/sessions/{id}/resume");
    let (status, problem) = client.ask(Method::POST, &resume, Some(json!({}))).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("budget_reached")), "{problem}");
    let (status, resumed) = client.ask(Method::POST, &resume, Some(json!({ "maxBudgetUsd": 5 }))).await;
    assert_eq!((status, &resumed["session"]["status"]), (StatusCode::OK, &json!("active")), "{resumed}");
    assert_eq!(client.say(&id, "say: hello").await["status"], "done");
    let events = client.get(&format!("/api/sessions/{id}/events?type=lifecycle")).await;
    let reached: Vec<Value> = events["events"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|event| serde_json::from_str(event["data"].as_str().expect("text")).expect("json"))
        .filter(|data: &Value| data["action"] == "budget_reached")
        .collect();
    assert_eq!(reached.len(), 1, "{reached:?}");
    assert_eq!((&reached[0]["which"], &reached[0]["limit"]), (&json!("maxBudgetUsd"), &json!(0.000001)));
}

#[tokio::test]
async fn limits_of_a_turn_end_that_turn_and_the_session_goes_on() {
    for runtime in RUNTIMES {
        let stage = Stage::set().await;
        let client = stage.server.client();
        let id = create(&stage, runtime, json!({ "turnLimits": { "maxTurns": 2 } })).await;
        let say = async |limits: Value, text: &str| {
            let mut body = json!({ "content": text });
            body.as_object_mut().expect("an object").extend(limits.as_object().expect("an object").clone());
            let path = format!("/api/sessions/{id}/messages");
            let request =
                client.request(Method::POST, &path).header("accept", "application/json").json(&body);
            crate::support::ok(request.send().await.expect("said")).await
        };
        let long = "run: echo one\nrun: touch two; sleep 100";
        let stopped = say(json!({}), long).await;
        assert_eq!(
            (&stopped["status"], &stopped["error"]["code"]),
            (&json!("interrupted"), &json!("budget_reached")),
            "{runtime}: {stopped}"
        );
        assert!(stopped["error"]["error"].as_str().expect("why").contains("maxTurns is 2"), "{stopped}");
        assert_eq!(client.status(&id).await, "active");
        // These turns need two rounds, and a message may set a higher or lower limit.
        assert_eq!(say(json!({}), "run: echo one").await["status"], "done", "{runtime}");
        let more = say(json!({ "maxTurns": 3 }), "run: echo one\nrun: echo two").await;
        assert_eq!(more["status"], "done", "{runtime}: {more}");
        for limits in [json!({ "maxTurns": 1 }), json!({ "maxTokens": 1 }), json!({ "maxBudgetUsd": 0 })] {
            let less = say(limits.clone(), "run: touch three; sleep 100").await;
            assert_eq!(less["error"]["code"], "budget_reached", "{runtime} {limits}: {less}");
        }
        assert_eq!(client.status(&id).await, "active");
        assert_eq!(say(json!({}), "say: still here").await["text"], "still here");
        adds_up(&stage, &id, runtime).await;
    }
}

/// A process in the sandbox calls a model that has no price: what is left of the dollars is unknown from then on.
#[tokio::test]
async fn a_limit_in_dollars_ends_at_the_first_call_of_a_model_without_a_price() {
    let stage = Stage::set().await;
    let client = stage.server.client();
    let id = create(&stage, "builtin", json!({ "maxBudgetUsd": 1 })).await;
    let calls: String =
        (0..6).map(|n| by_hand_to("unknown-model", "model.sock", &format!("say: {n}"))).collect();
    let done = client.exec(&id, &calls).await;
    assert_eq!(done["stdout"].as_str().map(str::trim), Some("200 402 402 402 402 402"), "{done}");
    eventually("it is counted", async || {
        client.session(&id).await["usage"]["unpriced"].as_bool().filter(|unpriced| *unpriced)
    })
    .await;
    let again = client.exec(&id, &by_hand("model.sock", "say: priced")).await;
    assert_eq!(again["stdout"].as_str().map(str::trim), Some("402"), "also after the server has counted");
    let message = json!({ "content": "say: hello" });
    let (status, refused) =
        client.ask(Method::POST, &format!("/api/sessions/{id}/messages"), Some(message)).await;
    assert_eq!((status.as_u16(), &refused["code"]), (422, &json!("unpriced_model")), "{refused}");
    let unlimited = json!({ "maxBudgetUsd": null });
    client.ask(Method::PATCH, &format!("/api/sessions/{id}/config"), Some(unlimited)).await;
}

#[tokio::test]
async fn prices_are_the_operators_and_a_model_without_one_cannot_have_a_limit_in_dollars() {
    let prices = r#"{"strange": {"input": 100, "output": 1000}}"#;
    let mut stage = Stage::with(&[("ASH_PRICES", prices)]).await;
    let client = stage.server.client();
    let id = create(&stage, "builtin", json!({ "model": "strange-1" })).await;
    assert_eq!(client.session(&id).await["usage"]["costUsd"], 0.0);
    let id = create(&stage, "builtin", json!({ "model": "strange", "maxBudgetUsd": 1000 })).await;
    client.say(&id, "say: hello").await;
    let usage = client.session(&id).await["usage"].clone();
    let (input, output, dollars) = counted(&usage);
    assert!((dollars - (input * 100 + output * 1000) as f64 / 1e6).abs() < 1e-9, "{usage}");

    let unknown = json!({ "agent": "builtin", "model": "nobody-knows", "maxBudgetUsd": 1 });
    let (status, problem) = client.ask(Method::POST, "/api/sessions", Some(unknown)).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
    assert_eq!(problem["code"], "unpriced_model");
    let words = problem["error"].as_str().expect("a sentence");
    assert!(words.contains("nobody-knows") && words.contains("ASH_PRICES"), "{words}");
    let id = create(&stage, "builtin", json!({ "model": "nobody-knows" })).await;
    let limited = json!({ "content": "say: hello", "maxBudgetUsd": 1 });
    // Also before the first message.
    let before =
        client.ask(Method::POST, &format!("/api/sessions/{id}/messages"), Some(limited.clone())).await;
    assert_eq!((before.0.as_u16(), &before.1["code"]), (422, &json!("unpriced_model")), "{}", before.1);
    let asked = stage.requests().len();
    let offline = create(&stage, "builtin", json!({ "model": "nobody-knows", "provider": "offline" })).await;
    let request = client.request(Method::POST, &format!("/api/sessions/{offline}/messages")).json(&limited);
    let said: Value =
        request.header("accept", "application/json").send().await.expect("sent").json().await.expect("json");
    assert_eq!((&said["status"], stage.requests().len()), (&json!("done"), asked), "nobody is paid: {said}");
    // A client that missed the answer repeats the request with the same key, and gets it.
    for _ in 0..2 {
        let plain = json!({ "content": "say: hello" });
        let request = client.request(Method::POST, &format!("/api/sessions/{id}/messages")).json(&plain);
        let request = request.header("accept", "application/json").header("idempotency-key", "once");
        let said: Value = request.send().await.expect("sent").json().await.expect("json");
        assert_eq!((&said["status"], &said["text"]), (&json!("done"), &json!("hello")), "{said}");
    }
    let usage = client.session(&id).await["usage"].clone();
    assert_eq!((&usage["costUsd"], &usage["unpriced"]), (&json!(null), &json!(true)), "{usage}");
    let (status, problem) =
        client.ask(Method::POST, &format!("/api/sessions/{id}/messages"), Some(limited)).await;
    assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("unpriced_model")), "{problem}");

    // A price file; the start reports errors in it.
    let file = stage.server.dir.join("prices.json");
    std::fs::write(&file, r#"{"nobody-knows": {"input": 1, "output": 1}}"#).expect("written");
    stage.server.kill9();
    stage.server.set("ASH_PRICES", file.to_str().expect("text"));
    stage.server.launch().await;
    let client = stage.server.client();
    client.say(&id, "say: hello").await;
    assert!(client.session(&id).await["usage"]["costUsd"].as_f64() > Some(0.0));
    for (prices, why) in [
        ("{\"m\": 3}", "m must be an object"),
        ("{\"m\": {\"inptu\": 1}}", "m.inptu: did you mean input?"),
        ("{\"m\": {\"input\": 1}}", "m.output is missing"),
        ("{\"m\": {\"input\": \"1\", \"output\": 1}}", "m.input must be a number"),
        ("{\"m\": {\"input\": -1, \"output\": 1}}", "0 to 1000000 dollars"),
        ("{\"m\": {}, \"m\": {}}", "names each model once"),
        ("{", "it is no JSON from line 1, column 1 on"),
    ] {
        stage.server.set("ASH_PRICES", prices);
        let wrong = stage.server.command().output().expect("ash serve");
        let words = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(!wrong.status.success() && words.contains(why), "{prices}: {words}");
        assert!(words.contains("dollars for a million tokens"), "{prices}: {words}");
        is_for_people(&["ASH_PRICES", prices], &words);
    }
}
