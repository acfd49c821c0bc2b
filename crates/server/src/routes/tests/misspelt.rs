//! Misspelt fields and parameters are refused by name, with the nearest one that exists.

use super::*;

#[tokio::test]
async fn misspelt_fields_are_refused_with_the_nearest_name_and_change_nothing() {
    let server = TestRouter::new().await;
    server.stopped_session("s").await;
    let of = |path: &str| format!("/api/sessions/s{path}");
    let config = server.get("/api/sessions/s").await["session"]["config"].clone();
    let (post, patch) = ("POST", "PATCH");
    let bodies = [
        (
            post,
            "/api/sessions".to_owned(),
            json!({ "agent": "a", "modle": "x" }),
            "modle: did you mean model?",
        ),
        (post, "/api/sessions".to_owned(), json!({ "agnet": "a" }), "agnet: did you mean agent?"),
        (
            post,
            "/api/sessions".to_owned(),
            json!({ "agent": "a", "turnLimits": { "maxTurn": 1 } }),
            "maxTurn: did you mean maxTurns?",
        ),
        (post, of("/resume"), json!({ "idleTimeuot": 5 }), "idleTimeuot: did you mean idleTimeout?"),
        (post, of("/fork"), json!({ "checkpiont": 1 }), "checkpiont: did you mean checkpoint?"),
        (
            post,
            of("/messages"),
            json!({ "content": "x", "max_turns": 1 }),
            "max_turns: did you mean maxTurns?",
        ),
        (
            patch,
            of("/config"),
            json!({ "systemMessage": { "mod": "replace", "content": "x" } }),
            "mod: did you mean mode?",
        ),
        (
            patch,
            of("/config"),
            json!({ "provider": { "type": "anthropic", "apiKye": "k" } }),
            "apiKye: did you mean apiKey?",
        ),
        (
            patch,
            of("/config"),
            json!({ "infiniteSessions": { "contextWidow": 8000 } }),
            "contextWidow: did you mean contextWindow?",
        ),
        (
            patch,
            of("/config"),
            json!({ "limits": { "maxProceses": 64 } }),
            "maxProceses: did you mean maxProcesses?",
        ),
        (
            patch,
            of("/config"),
            json!({ "customAgents": [{ "name": "x", "promt": "y" }] }),
            "promt: did you mean prompt?",
        ),
        (
            post,
            "/api/sessions".to_owned(),
            json!({ "agent": "a", "mcpServers": { "x": { "url": "u", "heders": { "K": "hunter2" } } } }),
            "heders: did you mean headers?",
        ),
        (
            post,
            of("/resume"),
            json!({ "mcpServers": { "x": { "comand": "c" } } }),
            "comand: did you mean command?",
        ),
        (
            patch,
            of("/config"),
            json!({ "mcpServers": { "x": { "command": "c", "Env": { "K": "hunter2" } } } }),
            "Env: did you mean env?",
        ),
        (
            post,
            of("/messages"),
            json!({ "content": "x", "thinking": { "type": "enabled", "budgetToken": 1 } }),
            "budgetToken: did you mean budgetTokens?",
        ),
        (
            post,
            of("/messages"),
            json!({ "content": "x", "outputFormat": { "type": "json_schema", "shema": {} } }),
            "shema: did you mean schema?",
        ),
        (
            patch,
            of("/config"),
            json!({ "permisionMode": "plan" }),
            "permisionMode: did you mean permissionMode?",
        ),
    ];
    for (method, path, body, words) in bodies {
        let refused = server.ask(KEY, &format!("{method} {path}"), body).await;
        assert_eq!(
            (refused.code(), &refused.body["error"]),
            ((400, "unknown_field"), &json!(words)),
            "{path}"
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
        ("/api/retention?dry=1".to_owned(), "dry: there is no such field here, nor any other"),
    ];
    for (path, words) in lists {
        let refused = server.ask(KEY, &format!("GET {path}"), Value::Null).await;
        assert_eq!(
            (refused.code(), &refused.body["error"]),
            ((400, "unknown_parameter"), &json!(words)),
            "{path}"
        );
    }
    assert_eq!(server.get("/api/sessions/s").await["session"]["config"], config, "nothing was changed");
    assert_eq!(server.get(&of("/messages")).await["messages"], json!([]), "nothing was sent");
    assert_eq!(server.get("/api/sessions").await["total"], 1, "nothing was made");
}
