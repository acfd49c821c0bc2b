//! Error messages: they list the valid values, and use the words of a shell.

use super::{command, run};
use crate::support::{KEY, Server, is_for_people};
use reqwest::Method;
use serde_json::json;
use std::process::Command;

#[tokio::test]
async fn a_value_that_is_not_good_is_refused_with_those_that_are() {
    let server = Server::start().await;
    let client = server.client();
    client.post("/api/sessions", json!({ "agent": "default", "sessionId": "s" })).await;
    let file = |name: &str, text: &str| {
        let path = server.dir.join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (broken, list) = (file("broken.json", "{\n  \"model\": oops }"), file("list.json", "[1, 2]"));
    for (words, good) in [
        (&["session", "list", "--status", "sleeping"][..], "starting, active, paused, stopped, error, ended"),
        (&["session", "list", "--limit", "0"], "1..=1000"),
        (&["session", "list", "--older-than", "7"], "write it as 90s, 30m, 24h or 7d"),
        (&["session", "list", "--newer-than", "7"], "write it as 90s, 30m, 24h or 7d"),
        (&["session", "prune", "--older-than", "7"], "write it as 90s, 30m, 24h or 7d"),
        (&["session", "prune", "--older-than", "7d", "--status", "active"], "paused, stopped, error, ended"),
        (&["session", "create", "--ttl", "60"], "write it as 90s, 30m, 24h or 7d"),
        (&["session", "lock", "s", "--ttl", "60"], "write it as 90s, 30m, 24h or 7d"),
        (&["session", "exec", "s", "true", "--timeout", "30"], "write it as 500ms, 30s or 5m"),
        (&["session", "exec", "s", "true", "--timeout", "1h"], "1ms to 300s"),
        (
            &["session", "create", "--permission-mode", "lax"],
            "bypassPermissions, permissionsByAgent, default, acceptEdits, plan, dontAsk",
        ),
        (&["session", "send", "s", "hi", "--on-busy", "wait"], "queue, reject, interrupt, steer"),
        (
            &["session", "tail", "s", "--since", "yesterday"],
            "90s, 30m, 24h or 7d, or give the id of an event",
        ),
        (&["usage", "--by", "week"], "turn, session, agent, owner, model, day"),
        (&["usage", "--since", "7"], "30m, 24h or 7d ago, or as a time"),
        (&["audit", "--since", "last week"], "30m, 24h or 7d ago, or as a time"),
        (&["session", "create", "-e", "NOT-SET-HERE"], "NOT-SET-HERE is not set here"),
        (&["session", "create", "-o", "model"], "NAME=VALUE"),
        (&["session", "create", "-o", "model="], "model must not be empty"),
        (&["session", "create", "--model", ""], "model must not be empty"),
        (&["session", "config", "s", "-o", "modle=x"], "did you mean model?"),
        (&["session", "config", "s", "-o", "onBusy=wait"], "queue, reject, interrupt, steer"),
        (&["session", "config", "s", "-o", "onInterrupted=no"], "onInterrupted must be one of"),
        (&["session", "config", "s", "-o", "durability=none"], "durability must be one of"),
        (&["session", "config", "s", "-o", "permissionMode=lax"], "bypassPermissions, permissionsByAgent"),
        (&["session", "config", "s", "-o", "reasoningEffort=huge"], "low, medium, high, xhigh, max"),
        (&["session", "config", "s", "-o", "maxTurns=many"], "maxTurns must be a whole number"),
        (&["session", "config", "s", "-o", "systemMessage=5"], "a text, or {mode, content}"),
        (&["session", "config", "s", "-o", "customAgents=[{\"name\":\"x\"}]"], "prompt is missing"),
        (
            &["session", "config", "s", "-o", "customAgents=[{\"name\":\"x\",\"promt\":\"y\"}]"],
            "did you mean prompt?",
        ),
        (&["session", "config", "s", "--options", &broken], "line 2, column"),
        (&["session", "config", "s", "--options", &list], "is no JSON object"),
    ] {
        let (code, _, said) = run(command(&server, words)).await;
        assert_eq!(code, Some(2), "{words:?}: {said}");
        assert!(said.contains(good), "{words:?}: {said}");
        is_for_people(words, &said);
    }
    // For an unknown event the error lists the server's events; an agent may have others.
    client.delete("/api/sessions/s").await;
    let (code, _, said) = run(command(&server, &["session", "tail", "s", "--type", "tool-use"])).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("tool-use is none of the server's events") && said.contains("tool_use"), "{said}");
}

/// Third-party clients do not know the valid values beforehand.
#[tokio::test]
async fn a_filter_of_a_list_that_is_not_good_is_refused_with_those_that_are() {
    let server = Server::start().await;
    let client = server.client();
    for (query, good) in [
        ("status=sleeping", "status must be one of starting, active, paused, stopped, error, ended"),
        ("agent=a%20b", "agent must be"),
        ("owner=a%20b", "owner must be"),
        ("offset=x", "offset must be a whole number, 0 to 4294967295"),
        ("offset=1.5", "offset must be a whole number, 0 to 4294967295"),
        ("limit=0", "limit must be a whole number, 1 to 1000"),
        ("limit=1001", "limit must be a whole number, 1 to 1000"),
        ("cursor=x", "cursor must be the nextCursor of a page before"),
        ("includeTotal=banana", "includeTotal must be true or false"),
        ("limit=5&limit=5", "limit is there twice"),
    ] {
        let (status, said) = client.ask(Method::GET, &format!("/api/sessions?{query}"), None).await;
        assert_eq!((status.as_u16(), &said["code"]), (400, &json!("invalid_query")), "{query}: {said}");
        let error = said["error"].as_str().unwrap_or_default();
        assert!(error.starts_with(good), "{query}: {error}");
        is_for_people(&[query], error);
    }
}

#[tokio::test]
async fn an_agents_folder_is_refused_in_words_of_our_own() {
    let server = Server::start().await;
    let folder = server.dir.join("agent");
    std::fs::create_dir(&folder).expect("a folder");
    for (manifest, good) in [
        ("runtime = \"cluade\"", "ash.toml: runtime must be one of builtin, claude"),
        ("runtime = 5", "ash.toml: runtime must be one of builtin, claude"),
        ("runtme = \"claude\"", "ash.toml: runtme: did you mean runtime?"),
        ("[setup]\ninstallSecond = 5", "did you mean installSeconds?"),
        ("[sandbox]\nprewarm = \"many\"", "sandbox.prewarm must be a whole number"),
        ("runtime = \"claude\"\nprovider = = 1", "ash.toml: it is not TOML from line 2, column 12 on"),
    ] {
        std::fs::write(folder.join("ash.toml"), manifest).expect("written");
        let words = ["deploy", folder.to_str().expect("UTF-8")];
        let (code, _, said) = run(command(&server, &words)).await;
        assert_eq!(code, Some(2), "{manifest}: {said}");
        assert!(said.contains(good), "{manifest}: {said}");
        is_for_people(&words, &said);
    }
    // The same for parameters that only other clients send.
    let client = server.client();
    for (path, body, good) in [
        ("/api/sessions", "{\"agent\": }", "not valid JSON: it cannot be read from line 1, column"),
        ("/api/agents", "{\"systemPrompt\": \"x\"}", "name is missing"),
    ] {
        let request =
            client.request(Method::POST, path).header("content-type", "application/json").body(body);
        let said = request.send().await.expect("an answer").text().await.expect("a body");
        assert!(said.contains(good), "{path}: {said}");
        is_for_people(&[path], &said);
    }
}

#[tokio::test]
async fn remedies_are_commands_and_flags() {
    let server = Server::with(&[("ASH_MAX_SANDBOXES", "1")]).await;
    let client = server.client();
    client.post("/api/sessions", json!({ "agent": "default", "sessionId": "s" })).await;
    let lock = client.post("/api/sessions/s/lock", json!({ "ttl": 600 })).await;
    let token = lock["lock"]["token"].as_str().expect("a token").to_owned();
    let (code, _, said) = run(command(&server, &["session", "--lock", &token, "unlock", "s"])).await;
    assert_eq!(code, Some(0), "{said}");
    let (code, _, said) = run(command(&server, &["session", "--lock", &token, "send", "s", "hi"])).await;
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("`ash session lock ID`, or leave out --lock and ASH_LOCK"), "{said}");
    is_for_people(&["send"], &said);
    client.post("/api/sessions/s/lock", json!({ "ttl": 600, "holder": "somebody" })).await;
    for (words, code, remedy) in [
        (
            &["session", "send", "s", "hi"][..],
            5,
            "--lock or ASH_LOCK, wait, or take the lock over with `ash session lock ID --takeover`",
        ),
        (
            &["session", "--lock", "x", "send", "s", "hi"],
            2,
            "--lock (or ASH_LOCK) takes a token as `ash session lock ID` prints it",
        ),
        (&["session", "unlock", "s"], 2, "Give the lock's token with --lock or ASH_LOCK"),
    ] {
        let (ended, _, said) = run(command(&server, words)).await;
        assert_eq!(ended, Some(code), "{words:?}: {said}");
        assert!(said.contains(remedy), "{words:?}: {said}");
        is_for_people(words, &said);
    }
    let mut keyless = command(&server, &["agent", "list"]);
    keyless.env_remove("ASH_API_KEY").env("HOME", &server.dir);
    let (code, _, said) = run(keyless).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("The server wants a key. Give the server's key with ASH_API_KEY"), "{said}");
    is_for_people(&["agent", "list"], &said);
}

#[tokio::test]
async fn no_key_is_taken_as_a_flag() {
    let server = Server::start().await;
    let secret = "sk-secret-of-somebody";
    let key = format!("ANTHROPIC_API_KEY={secret}");
    let provider = format!(
        "provider={{\"type\":\"anthropic\",\"baseUrl\":\"https://example.com\",\"apiKey\":\"{secret}\"}}"
    );
    for (words, remedy) in [
        (&["agent", "list", "--api-key", secret][..], "ASH_API_KEY"),
        (&["start", "-e", &key], "set ANTHROPIC_API_KEY in the environment of `ash start`"),
        (&["restart", "-e", &key], "set ANTHROPIC_API_KEY in the environment of `ash start`"),
        (&["session", "create", "-o", &provider], "--options FILE"),
    ] {
        let mut command = command(&server, words);
        command.env("ASH_DATA_DIR", &server.data);
        let (code, _, said) = run(command).await;
        assert_eq!(code, Some(2), "{words:?}: {said}");
        assert!(said.contains("keys are not taken as flags") && said.contains(remedy), "{words:?}: {said}");
        assert!(!said.contains(secret), "{words:?}: {said}");
    }
    // A variable whose value is on no command line.
    let mut create = command(&server, &["session", "create", "default", "--id", "s", "-e", "MY_TOKEN"]);
    create.env("MY_TOKEN", secret);
    let (code, _, said) = run(create).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(server.client().exec("s", "printenv MY_TOKEN").await["stdout"], format!("{secret}\n"));
}

#[tokio::test]
async fn another_program_is_not_taken_for_an_ash_server() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let page = axum::Router::new().fallback(|| async { "<html>another program</html>" });
    let serving = tokio::spawn(async move { axum::serve(listener, page).await });
    let mut status = Command::new(crate::support::ash());
    status.args(["status"]).env("ASH_SERVER_URL", &url).env("ASH_API_KEY", KEY);
    let (code, _, said) = run(status).await;
    serving.abort();
    assert_eq!(code, Some(9), "{said}");
    assert!(said.contains("is no ash server"), "{said}");
    is_for_people(&["status"], &said);
}
