//! Misspelt fields and parameters are refused by name; what the reference names is taken, also where it has no effect, and
//! so are its coercions.

use crate::support::{KEY, Server};
use reqwest::Method;
use serde_json::{Value, json};
use std::process::Command;

#[tokio::test]
async fn misspelt_fields_are_refused_with_the_nearest_name_and_change_nothing() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let of = |path: &str| format!("/api/sessions/{id}{path}");
    let (post, patch) = (Method::POST, Method::PATCH);
    let bodies = [
        (
            &post,
            "/api/sessions".to_owned(),
            json!({ "agent": "a", "modle": "x" }),
            "modle: did you mean model?",
        ),
        (&post, "/api/sessions".to_owned(), json!({ "agnet": "a" }), "agnet: did you mean agent?"),
        (
            &post,
            "/api/sessions".to_owned(),
            json!({ "agent": "a", "turnLimits": { "maxTurn": 1 } }),
            "maxTurn: did you mean maxTurns?",
        ),
        (&post, of("/resume"), json!({ "idleTimeuot": 5 }), "idleTimeuot: did you mean idleTimeout?"),
        (&post, of("/fork"), json!({ "checkpiont": 1 }), "checkpiont: did you mean checkpoint?"),
        (
            &post,
            of("/messages"),
            json!({ "content": "x", "max_turns": 1 }),
            "max_turns: did you mean maxTurns?",
        ),
        (
            &patch,
            of("/config"),
            json!({ "permisionMode": "plan" }),
            "permisionMode: did you mean permissionMode?",
        ),
    ];
    for (method, path, body, words) in bodies {
        let (status, refused) = client.ask(method.clone(), &path, Some(body)).await;
        assert_eq!(
            (status.as_u16(), &refused["code"], &refused["error"]),
            (400, &json!("unknown_field"), &json!(words))
        );
    }
    let lists = [
        ("/api/sessions?stauts=active".to_owned(), "stauts: did you mean status?"),
        (of("/messages?limt=4"), "limt: did you mean limit?"),
        (of("/events?tpye=text"), "tpye: did you mean type?"),
        (of("/checkpoints?befor=3"), "befor: did you mean before?"),
        (of("/files?include_hidden=false"), "include_hidden: did you mean includeHidden?"),
        ("/api/usage?sesion=x".to_owned(), "sesion: did you mean session?"),
        ("/api/audit?limits=3".to_owned(), "limits: did you mean limit?"),
        ("/api/agents?name=a".to_owned(), "name: there is no such field here, nor any other"),
    ];
    for (path, words) in lists {
        let (status, refused) = client.ask(Method::GET, &path, None).await;
        assert_eq!(
            (status.as_u16(), &refused["code"], &refused["error"]),
            (400, &json!("unknown_parameter"), &json!(words)),
            "{path}"
        );
    }
    assert_eq!(client.get(&of("/messages")).await["messages"], json!([]), "nothing was sent");
    assert_eq!(client.get("/api/sessions").await["total"], 1, "nothing was made");

    let output = Command::new(crate::support::ash())
        .args(["session", "create", "default", "-o", "modle=x"])
        .env("ASH_SERVER_URL", &server.url)
        .env("ASH_API_KEY", KEY)
        .output()
        .expect("ran");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("modle: did you mean model?"), "{said}");
}

#[tokio::test]
async fn what_the_reference_names_is_taken_and_coerced_as_it_does() {
    let server = Server::start().await;
    let client = server.client();
    let agent = json!({ "name": "a", "systemPrompt": "x", "slug": "a", "description": "d", "model": "m", "backend": "b", "config": {} });
    client.post("/api/agents", agent).await;
    let all = json!({
        "agent": "a", "extraEnv": { "PORT": "8080" }, "systemPrompt": "be brief",
        "permissionMode": "bypassPermissions", "allowedTools": "Read", "disallowedTools": ["WebFetch"],
        "credentialId": null,
    });
    let made = client.post("/api/sessions", all).await;
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(made["session"]["config"]["allowedTools"], json!(["Read"]));

    for (field, value) in [
        ("mcpServers", json!({})),
        ("subagents", json!({})),
        ("initialAgent", json!("x")),
        ("betas", json!("b")),
    ] {
        let (_, answer) =
            client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "a", field: value }))).await;
        assert_eq!(answer["code"], "option_unsupported", "known, though this runtime cannot do it: {answer}");
    }
    let unknown = json!({ "agent": "a", "credentialId": "c1" });
    let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(unknown)).await;
    assert_eq!((status.as_u16(), &refused["error"]), (400, &json!("Invalid or inaccessible credential")));

    let message = json!({
        "content": "say: hi", "includePartialMessages": "false", "maxTurns": "5", "maxBudgetUsd": "1.5", "effort": "low",
        "thinking": { "type": "disabled" }, "outputFormat": null,
    });
    let send = client.request(Method::POST, &format!("/api/sessions/{id}/messages"));
    let response = send.header("accept", "application/json").json(&message).send().await.expect("sent");
    assert_eq!(response.status().as_u16(), 200, "{:?}", response.text().await);

    for list in ["?agent=a&status=active&limit=5&offset=0&includeTotal=true", "?agent=&status="] {
        let (status, found) = client.ask(Method::GET, &format!("/api/sessions{list}"), None).await;
        assert_eq!((status.as_u16(), &found["total"]), (200, &json!(1)), "{found}");
    }
    for path in [
        "/messages?limit=5&after=0",
        "/events?limit=5&after=0&type=text",
        "/logs?after=-1",
        "/files?includeHidden=true",
    ] {
        let (status, answer) = client.ask(Method::GET, &format!("/api/sessions/{id}{path}"), None).await;
        assert_eq!(status.as_u16(), 200, "{path}: {answer}");
    }
    let usage = format!("/api/usage?sessionId={id}&agentName=a&after=&before=&limit=5");
    assert_eq!(client.ask(Method::GET, &usage, None).await.0.as_u16(), 200);
    let done = json!({ "command": "echo $PORT", "timeout": "5000" });
    let done: Value = client.post(&format!("/api/sessions/{id}/exec"), done).await;
    assert_eq!(done["exitCode"], 0, "{done}");
    let config = json!({ "model": "m", "allowedTools": "Bash", "initialAgent": null });
    let (status, changed) =
        client.ask(Method::PATCH, &format!("/api/sessions/{id}/config"), Some(config)).await;
    assert_eq!(
        (status.as_u16(), &changed["session"]["config"]["allowedTools"]),
        (200, &json!(["Bash"])),
        "{changed}"
    );
}
