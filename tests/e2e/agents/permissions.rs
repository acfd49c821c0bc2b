//! Permission requests and questions with the real Claude Code: each request takes one answer, and the call runs once or
//! never, whichever process dies meanwhile.

use crate::support::{
    Client, Frame,
    claude::Stage,
    eventually, names,
    permissions::{allow, answer, careful, output, pending, shown, until_asked},
    signal,
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{path::Path, process::Command};

async fn change(client: &Client, id: &str, options: Value) -> (StatusCode, Value) {
    client.ask(Method::PATCH, &format!("/api/sessions/{id}/config"), Some(options)).await
}

async fn until_rest(client: &Client, id: &str) {
    eventually("the turn is over", async || {
        let session = client.session(id).await;
        (session["openTurns"] == 0 && session["status"] == "active").then_some(())
    })
    .await;
}

fn find<'f>(frames: &'f [Frame], event: &str) -> &'f Value {
    let found = frames.iter().find(|frame| frame.event == event);
    &found.unwrap_or_else(|| panic!("no {event} in {:?}", names(frames))).data
}

/// How often an action is in the session's log.
async fn count(client: &Client, id: &str, action: &str) -> usize {
    let events = client.get(&format!("/api/sessions/{id}/events?limit=1000&type=lifecycle")).await;
    let data = events["events"].as_array().expect("events").iter().filter_map(|event| event["data"].as_str());
    data.filter(|data| data.contains(&format!("\"action\":\"{action}\""))).count()
}

#[tokio::test]
async fn a_call_waits_for_permission_and_runs_as_allowed() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "run: echo made > file").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    assert_eq!((&asked["tool"], &asked["question"]), (&json!("Bash"), &json!(false)), "{asked}");
    assert_eq!(asked["input"]["command"], "echo made > file");
    assert!(asked["toolUseId"].is_string() && asked["expiresAt"].is_string(), "{asked}");
    assert_eq!(pending(&client, &id).await, json!([asked]));
    assert_eq!(client.session(&id).await["pending"], json!([asked]));
    assert_eq!(client.exec(&id, "cat file").await["exitCode"], 1, "it waits");
    allow(&client, &id, &asked).await;
    let frames = stream.until("done").await;
    let answered = find(&frames, "permission_answered");
    assert_eq!((&answered["behavior"], &answered["by"]), (&json!("allow"), &json!("client")), "{answered}");
    assert_eq!(find(&frames, "done")["status"], "done");
    assert_eq!(output(&client, &id, "cat file").await, "made\n");
    assert_eq!(pending(&client, &id).await, json!([]));

    let mut stream = client.send(&id, "run: echo other > file").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    let instead = json!({ "behavior": "allow", "updatedInput": { "command": "echo instead > file" } });
    assert_eq!(answer(&client, &id, &asked, instead).await.0, StatusCode::OK);
    stream.until("done").await;
    assert_eq!(output(&client, &id, "cat file").await, "instead\n");
}

#[tokio::test]
async fn a_denied_call_does_not_run_and_the_model_gets_the_reason() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "run: echo made > file").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    let deny = json!({ "behavior": "deny", "message": "Not on a Sunday." });
    assert_eq!(answer(&client, &id, &asked, deny).await.0, StatusCode::OK);
    assert_eq!(find(&stream.until("done").await, "done")["status"], "done");
    assert!(shown(&stage).contains("Not on a Sunday."), "{}", shown(&stage));
    assert_eq!(client.exec(&id, "cat file").await["exitCode"], 1);
}

#[tokio::test]
async fn an_unanswered_request_ends_as_the_session_says() {
    let stage = Stage::with(&[("ASH_PERMISSION_TIMEOUT", "0")]).await;
    let client = stage.server.client();
    for (policy, behavior, status, made) in [
        (None, "deny", "done", false),
        (Some("deny"), "deny", "done", false),
        (Some("allow"), "allow", "done", true),
        (Some("interrupt"), "cancelled", "interrupted", false),
    ] {
        let mut options = json!({ "permissionMode": "default" });
        policy.into_iter().for_each(|policy| options["onPermissionTimeout"] = json!(policy));
        let id = stage.create_with(options).await;
        let frames = client.send(&id, "run: echo made > file").await.until("done").await;
        let answered = find(&frames, "permission_answered");
        assert_eq!(answered["behavior"], behavior, "{policy:?}: {answered}");
        let by = if behavior == "cancelled" { "cancelled" } else { "policy" };
        assert_eq!(answered["by"], by, "{policy:?}");
        assert_eq!(find(&frames, "done")["status"], status, "{policy:?}");
        assert_eq!(client.exec(&id, "cat file").await["exitCode"] == 0, made, "{policy:?}");
        if behavior == "deny" {
            assert!(shown(&stage).contains("Nobody answered this request in time"), "{}", shown(&stage));
        }
    }
}

#[tokio::test]
async fn a_users_choice_reaches_the_model_also_without_a_permission_request() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "ask: Which colour? | vermilion | ultramarine").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    assert_eq!((&asked["tool"], &asked["question"]), (&json!("AskUserQuestion"), &json!(true)), "{asked}");
    let question = asked["input"]["questions"][0]["question"].as_str().expect("a question").to_owned();
    let (status, refused) = answer(&client, &id, &asked, json!({ "behavior": "allow" })).await;
    assert_eq!((status.as_u16(), &refused["code"]), (422, &json!("invalid_answer")), "{refused}");
    let chosen = json!({ "behavior": "allow", "answers": { question: "ultramarine" } });
    assert_eq!(answer(&client, &id, &asked, chosen).await.0, StatusCode::OK);
    assert_eq!(find(&stream.until("done").await, "done")["status"], "done");
    let last = stage.last_request()["body"]["messages"].as_array().expect("all").clone();
    assert!(last.last().expect("one").to_string().contains("ultramarine"), "{last:?}");
}

#[tokio::test]
async fn an_interrupt_withdraws_the_permission_request() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "run: echo made > file").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    client.action(&id, "interrupt").await;
    let frames = stream.until("done").await;
    assert_eq!(find(&frames, "permission_answered")["by"], "cancelled");
    assert_eq!(find(&frames, "done")["status"], "interrupted");
    let (status, late) = answer(&client, &id, &asked, json!({ "behavior": "allow" })).await;
    assert_eq!((status.as_u16(), &late["code"]), (409, &json!("permission_answered")), "{late}");
    assert_eq!(client.say(&id, "hello").await["status"], "done");
    assert_eq!(client.exec(&id, "cat file").await["exitCode"], 1);
}

#[tokio::test]
async fn a_server_that_dies_meanwhile_is_not_missed_and_the_call_is_made_once() {
    let mut stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    client.send(&id, "run: echo once >> count").await.until("permission_request").await;
    let asked = until_asked(&client, &id).await;
    stage.server.crash_and_start().await;
    let client = stage.server.client();
    assert_eq!(pending(&client, &id).await, json!([asked]));
    let mut stream = client.follow(&id, &client.session_seq(&id).await).await;
    let (answering, question) = (client.clone(), (id.clone(), asked.clone()));
    tokio::spawn(async move {
        let path =
            format!("/api/sessions/{}/permissions/{}", question.0, question.1["id"].as_str().expect("an id"));
        answering.request(Method::POST, &path).json(&json!({ "behavior": "allow" })).send().await.ok();
    });
    // The answer is in the log; whether the agent has received it by now is random.
    stream.until("permission_answered").await;
    stage.server.crash_and_start().await;
    let client = stage.server.client();
    until_rest(&client, &id).await;
    assert_eq!(output(&client, &id, "cat count").await, "once\n");
    allow(&client, &id, &asked).await;
    assert_eq!(count(&client, &id, "permission_request").await, 1);
    assert_eq!(count(&client, &id, "permission_answered").await, 1);
    assert_eq!(count(&client, &id, "turn_ended").await, 1);
}

#[tokio::test]
async fn a_pause_stop_or_shutdown_ends_the_wait_for_an_answer() {
    // Longer than the test waits for a server to stop.
    let mut stage = Stage::with(&[("ASH_STOP_GRACE", "300")]).await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "run: echo paused >> file").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    client.action(&id, "pause").await;
    allow(&client, &id, &asked).await;
    assert_eq!(find(&stream.until("done").await, "done")["status"], "done");
    client.action(&id, "resume").await;

    let mut stream = client.send(&id, "run: echo stopped >> file").await;
    stream.until("permission_request").await;
    client.action(&id, "stop").await;
    assert_eq!(find(&stream.until("done").await, "done")["status"], "interrupted");
    assert_eq!(pending(&client, &id).await, json!([]));
    stage.back(&id).await;

    client.send(&id, "run: echo shut down >> file").await.until("permission_request").await;
    stage.server.stop().await;
    stage.server.launch().await;
    let client = stage.server.client();
    // Calls in the agent's transcript are shown as interrupted; for other calls the agent asks again.
    let mut last = Value::Null;
    eventually("the turn is over", async || {
        if let Some(again) = pending(&client, &id).await.get(0).filter(|again| **again != last) {
            last = again.clone();
            allow(&client, &id, again).await;
        }
        (client.session(&id).await["openTurns"] == 0).then_some(())
    })
    .await;
    let lines = output(&client, &id, "cat file").await;
    assert!(matches!(lines.as_str(), "paused\n" | "paused\nshut down\n"), "{lines}");
}

#[tokio::test]
async fn the_time_that_is_left_is_the_same_after_a_restart() {
    let mut stage = Stage::set().await;
    let id = stage.create_with(json!({ "permissionMode": "default", "permissionTimeout": 3 })).await;
    let client = stage.server.client();
    client.send(&id, "run: echo made > file").await.until("permission_request").await;
    let before = until_asked(&client, &id).await;
    stage.server.kill9();
    let expires: jiff::Timestamp = before["expiresAt"].as_str().expect("a time").parse().expect("a time");
    eventually("the time is over", async || (jiff::Timestamp::now() > expires).then_some(())).await;
    stage.server.launch().await;
    let client = stage.server.client();
    until_rest(&client, &id).await;
    assert!(shown(&stage).contains("Nobody answered this request in time"), "{}", shown(&stage));
    assert_eq!(client.exec(&id, "cat file").await["exitCode"], 1);
}

#[tokio::test]
async fn an_agent_that_dies_meanwhile_takes_its_request_along_and_the_turn_goes_on_once() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "run: echo one >> file\nrun: echo two >> file").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    // The agent does not remember a call that is not in its transcript, and asks again.
    let search =
        format!("grep -q {} ~/.claude/projects/*/*.jsonl", asked["toolUseId"].as_str().expect("an id"));
    eventually("the call is written down", async || {
        (client.exec(&id, &search).await["exitCode"] == 0).then_some(())
    })
    .await;
    let (_, agent) = stage.agent(&id).await;
    signal(agent, libc::SIGKILL);
    assert_eq!(find(&stream.rest().await, "permission_answered")["by"], "cancelled");
    client.until_status(&id, "error").await;
    assert_eq!(pending(&client, &id).await, json!([]));
    let (status, _) = answer(&client, &id, &asked, json!({ "behavior": "allow" })).await;
    assert_eq!(status, StatusCode::CONFLICT);
    stage.back(&id).await;
    let next = until_asked(&client, &id).await;
    assert!(shown(&stage).contains("interrupted"), "{}", shown(&stage));
    assert_eq!((&next["input"]["command"], &next["turn"]), (&json!("echo two >> file"), &asked["turn"]));
    allow(&client, &id, &next).await;
    until_rest(&client, &id).await;
    assert_eq!(count(&client, &id, "turn_ended").await, 1);
    assert_eq!(output(&client, &id, "cat file").await, "two\n", "no client allowed the first");
}

#[tokio::test]
async fn a_model_that_is_set_on_a_live_session_gets_the_next_request_and_those_after_a_restart() {
    let stage = Stage::set().await;
    let id = stage.create_with(json!({ "model": "claude-sonnet-4-5" })).await;
    let client = stage.server.client();
    let model = || stage.last_request()["body"]["model"].clone();
    client.say(&id, "hello").await;
    assert_eq!(model(), "claude-sonnet-4-5");
    let (status, changed) = change(&client, &id, json!({ "model": "claude-opus-4-5" })).await;
    assert_eq!(
        (status.as_u16(), &changed["session"]["model"]),
        (200, &json!("claude-opus-4-5")),
        "{changed}"
    );
    client.say(&id, "hello again").await;
    assert_eq!(model(), "claude-opus-4-5");
    client.action(&id, "stop").await;
    stage.back(&id).await;
    client.say(&id, "and again").await;
    assert_eq!(model(), "claude-opus-4-5");
}

#[tokio::test]
async fn a_permission_mode_that_is_set_on_a_live_session_counts_at_once_and_stays() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let asks = async || {
        let mut stream = client.send(&id, "run: echo made >> file").await;
        let mut frames = Vec::new();
        while let Some(frame) = stream.next().await {
            if frame.event == "permission_request" {
                let deny = json!({ "behavior": "deny" });
                assert_eq!(answer(&client, &id, &frame.data, deny).await.0, StatusCode::OK);
            }
            frames.push(frame);
        }
        frames.iter().any(|frame| frame.event == "permission_request")
    };
    assert!(!asks().await, "no call needs permission unless the session asks for that");
    assert_eq!(change(&client, &id, json!({ "permissionMode": "default" })).await.0, StatusCode::OK);
    assert!(asks().await);
    let (_, agent) = stage.agent(&id).await;
    signal(agent, libc::SIGKILL);
    client.until_status(&id, "error").await;
    stage.back(&id).await;
    assert!(asks().await, "it did not widen by itself");
    assert_eq!(
        change(&client, &id, json!({ "permissionMode": "bypassPermissions" })).await.0,
        StatusCode::OK
    );
    assert!(!asks().await);
    client.action(&id, "stop").await;
    assert_eq!(change(&client, &id, json!({ "permissionMode": "default" })).await.0, StatusCode::OK);
    stage.back(&id).await;
    assert!(asks().await);
    assert_eq!(output(&client, &id, "cat file").await, "made\nmade\n");
}

#[tokio::test]
async fn a_mode_that_the_agent_left_with_permission_can_be_set_again() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let leaves = json!([{ "when": { "contains": "leave the plan" }, "times": 1,
        "reply": [{ "type": "tool_use", "name": "ExitPlanMode", "input": { "plan": "do it" } }] }]);
    stage.script(leaves).await;
    let mode = async |text: &str| {
        let mut stream = client.send(&id, text).await;
        let mut mode = Value::Null;
        while let Some(frame) = stream.next().await {
            if frame.event == "permission_request" {
                allow(&client, &id, &frame.data).await;
            }
            if frame.data["subtype"] == "init" {
                mode = frame.data["permissionMode"].clone();
            }
        }
        mode
    };
    let plan = json!({ "permissionMode": "plan" });
    assert_eq!(change(&client, &id, plan.clone()).await.0, StatusCode::OK);
    assert_eq!(mode("leave the plan").await, "plan");
    assert_eq!(mode("hello").await, "bypassPermissions", "as it was before the plan");
    assert_eq!(change(&client, &id, plan).await.0, StatusCode::OK);
    assert_eq!(mode("hello again").await, "plan");
}

#[tokio::test]
async fn a_mode_can_be_set_while_a_call_waits() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "run: echo made > file").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    let (status, changed) = change(&client, &id, json!({ "model": "claude-opus-4-5" })).await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    allow(&client, &id, &asked).await;
    assert_eq!(find(&stream.until("done").await, "done")["status"], "done");
    assert_eq!(output(&client, &id, "cat file").await, "made\n");
}

#[tokio::test]
async fn an_invalid_answer_is_refused_and_changes_nothing() {
    let stage = Stage::with(&[("ASH_INTERNAL_SECRET", "inner")]).await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    let minted = json!({ "tenantId": "other", "label": "theirs" });
    let key = stage.server.client_with("inner").post("/api/internal/api-keys", minted).await;
    let stranger = stage.server.client_with(key["key"].as_str().expect("a key"));
    let mut stream = client.send(&id, "run: echo made > file").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    let yes = json!({ "behavior": "allow" });

    let (status, said) = answer(&stranger, &id, &asked, yes.clone()).await;
    assert_eq!((status.as_u16(), &said["code"]), (404, &json!("session_not_found")), "{said}");
    for unknown in ["00000000-0000-0000-0000-000000000001", "nonsense", "%FF", "x%2Fy"] {
        let path = format!("/api/sessions/{id}/permissions/{unknown}");
        let (status, said) = client.ask(Method::POST, &path, Some(yes.clone())).await;
        assert!(matches!(status.as_u16(), 404 | 400), "{unknown}: {status} {said}");
    }
    let everything = json!({ "type": "addRules", "rules": [{ "toolName": "Bash" }], "behavior": "allow",
        "destination": "session" });
    assert!(asked["suggestions"][0].is_object() && asked["suggestions"][0] != everything, "{asked}");
    for bad in [
        json!({}),
        json!({ "behavior": "perhaps" }),
        json!({ "behavior": "allow", "updatedInput": 5 }),
        json!({ "behavior": "allow", "answers": { "x": "y" } }),
        json!({ "behavior": "deny", "updatedInput": {} }),
        // A permission for more than the agent asked for.
        json!({ "behavior": "allow", "updatedPermissions": [everything] }),
        json!({ "behavior": "allow", "updatedPermissions": [asked["suggestions"][0], everything] }),
    ] {
        let (status, said) = answer(&client, &id, &asked, bad.clone()).await;
        assert_eq!((status.as_u16(), &said["code"]), (422, &json!("invalid_answer")), "{bad}: {said}");
    }
    assert_eq!(pending(&client, &id).await, json!([asked]), "it still waits");
    allow(&client, &id, &asked).await;
    allow(&client, &id, &asked).await;
    let (status, said) = answer(&client, &id, &asked, json!({ "behavior": "deny" })).await;
    assert_eq!((status.as_u16(), &said["code"]), (409, &json!("permission_answered")), "{said}");
    stream.until("done").await;
    allow(&client, &id, &asked).await;
    assert_eq!(output(&client, &id, "cat file").await, "made\n");
    assert_eq!(count(&client, &id, "permission_answered").await, 1);
}

#[tokio::test]
async fn an_unknown_option_is_refused() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    for bad in [
        json!({ "permissionMode": "everything" }),
        json!({ "permissionTimeout": 604_801 }),
        json!({ "permissionTimeout": -1 }),
        json!({ "onPermissionTimeout": "shrug" }),
    ] {
        let (status, said) = change(&client, &id, bad.clone()).await;
        assert_eq!((status.as_u16(), &said["code"]), (400, &json!("invalid_body")), "{bad}: {said}");
    }
    let config = client.session(&id).await["config"].clone();
    assert_eq!(config, json!({ "permissionMode": "default" }));
}

#[tokio::test]
async fn the_python_client_passes_requests_on() {
    let stage = Stage::set().await;
    careful(&stage).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/e2e/clients/permissions.py");
    let mut command = Command::new(crate::support::python());
    command.arg(&script).args([&stage.server.url, crate::support::KEY]).env("NO_PROXY", "*");
    let done = tokio::task::spawn_blocking(move || command.output()).await.expect("run").expect("python");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.trim() == "all good", "{out}\n{err}");
}

/// A process in the sandbox may have replaced the agent.
#[tokio::test]
async fn an_agent_that_floods_permission_requests_harms_no_session() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/e2e/clients/agent.sh");
    let stage = Stage::with(&[("ASH_INTERRUPT_GRACE", "0")]).await.with_agent(&here).await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    let (status, refused) = change(&client, &id, json!({ "model": "m" })).await;
    assert_eq!((status.as_u16(), &refused["code"]), (422, &json!("setting_refused")), "{refused}");
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("not with me")), "{refused}");
    assert_eq!(
        client.session(&id).await["config"],
        json!({ "permissionMode": "default" }),
        "nothing is stored"
    );

    let mut stream = client.send(&id, "go").await;
    eventually("the rest is denied", async || {
        (count(&client, &id, "permission_answered").await == 8).then_some(())
    })
    .await;
    assert_eq!(pending(&client, &id).await.as_array().map(Vec::len), Some(32));
    let first = until_asked(&client, &id).await;
    allow(&client, &id, &first).await;
    let (status, refused) = tokio::join!(change(&client, &id, json!({ "permissionMode": "plan" })), async {
        eventually("the agent gets both settings", async || {
            (count(&client, &id, "setting").await == 2).then_some(())
        })
        .await;
        client.action(&id, "interrupt").await;
    })
    .0;
    assert_eq!((status.as_u16(), &refused["code"]), (503, &json!("try_again")), "{refused}");
    stream.rest().await;
    eventually("all are taken back", async || (pending(&client, &id).await == json!([])).then_some(())).await;
    assert_eq!(count(&client, &id, "permission_request").await, 40);
    assert_eq!(count(&client, &id, "permission_answered").await, 40);
    assert!(!stage.server.log().contains("panicked"), "{}", stage.server.log());
}
