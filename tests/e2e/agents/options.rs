//! Options given on create and on resume: visible, in force, and unchanged by anything in between. One table for each
//! runtime, from the first start through every kind of rest and death to another machine, and back with all options
//! changed.

use crate::support::{Client, Frame, Server, runtime::Stage};
use reqwest::Method;
use serde_json::{Value, json};

/// A minimal MCP server.
const TOOLS: &str = r#"
import json, os, sys
name = os.environ["TOWER"]
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        said = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": name, "version": "1"}}
    elif asked.get("method") == "tools/list":
        said = {"tools": [{"name": name, "description": "builds " + name, "inputSchema": {"type": "object"}}]}
    else:
        said = {}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": said}), flush=True)
"#;

/// Files in the workspace and the home that options refer to.
const FURNITURE: &str = "for n in 1 2; do
  mkdir -p ~/config$n /workspace/skills$n/wanted$n /workspace/skills$n/unwanted$n
  echo \"The configuration says $n.\" > ~/config$n/CLAUDE.md
  for s in wanted unwanted; do
    printf -- '---\\nname: %s\\ndescription: is the %s skill of %s\\n---\\n' $s$n $s $n > /workspace/skills$n/$s$n/SKILL.md
  done
done";

/// The visible effects of a session's options.
struct Profile {
    /// The options as a client sends them.
    said: Value,
    /// The options as the API shows them, field by field.
    shown: Value,
    number: u8,
    tools: Vec<&'static str>,
}

/// The context window in tokens.
fn window(runtime: &str, number: u8) -> u64 {
    u64::from(number) * if runtime == "claude" { 150_000 } else { 12_000 }
}

/// The options of both runtimes, in two variants that differ in every option.
fn profile(runtime: &str, number: u8) -> Profile {
    let first = number == 1;
    let (model, effort) = if first { ("claude-opus-4-6", "low") } else { ("claude-sonnet-4-6", "high") };
    let available =
        if first { json!(["Bash", "Read", "Write"]) } else { json!(["Bash", "Read", "Edit", "Write"]) };
    let excluded = if first { json!(["Write"]) } else { json!(["Edit"]) };
    let words = format!("Speak of number {number} only.");
    let window = window(runtime, number);
    let mut said = json!({
        "model": model, "reasoningEffort": effort, "streaming": !first,
        "systemMessage": { "mode": "append", "content": words },
        "availableTools": available, "excludedTools": excluded,
        "workingDirectory": format!("place{number}"), "configDir": format!("~/config{number}"),
        "skillDirectories": [format!("skills{number}")], "disabledSkills": [format!("unwanted{number}")],
        "env": { "TEAM": format!("team-{number}") },
        "infiniteSessions": { "backgroundCompactionThreshold": f64::from(number) / 4.0, "contextWindow": window },
        "maxTokens": 10_000_000 + u32::from(number), "turnLimits": { "maxTurns": 100 + u32::from(number) },
        "idleTimeout": 1000 + u32::from(number), "onBusy": if first { "reject" } else { "interrupt" },
    });
    let mut shown = json!({
        "model": model, "reasoningEffort": effort, "streaming": !first, "appendSystemPrompt": words,
        "availableTools": available, "disallowedTools": excluded,
        "workingDirectory": format!("/workspace/place{number}"), "configDir": format!("/home/agent/config{number}"),
        "skillDirectories": [format!("/workspace/skills{number}")], "disabledSkills": [format!("unwanted{number}")],
        "env": { "TEAM": "***" },
        "infiniteSessions": {
            "enabled": true, "backgroundCompactionThreshold": f64::from(number) / 4.0,
            "bufferExhaustionThreshold": 0.95, "contextWindow": window,
        },
        "maxTokens": 10_000_000 + u32::from(number), "turnLimits": { "maxTurns": 100 + u32::from(number) },
        "idleTimeout": 1000 + u32::from(number), "onBusy": if first { "reject" } else { "interrupt" },
    });
    let mut tools = if first { vec!["bash", "read"] } else { vec!["bash", "read", "write"] };
    if runtime == "claude" {
        // Without the `Skill` tool the agent gets no skills.
        for list in [&mut said, &mut shown] {
            list["availableTools"].as_array_mut().expect("a list").push(json!("Skill"));
        }
        tools.insert(2, "skill");
        let server = format!("tower{number}");
        let servers = |value| json!({ &server: { "command": "python3", "args": ["-c", TOOLS], "env": { "TOWER": value } } });
        (said["mcpServers"], shown["mcpServers"]) = (servers(server.as_str()), servers("***"));
        let mode = if first { "acceptEdits" } else { "bypassPermissions" };
        let helper = json!({ "description": format!("helps with {number}"), "prompt": "Help." });
        said["customAgents"] =
            json!([{ "name": "helper", "description": format!("helps with {number}"), "prompt": "Help." }]);
        shown["subagents"] = json!({ "helper": helper });
        for (name, value) in [
            ("permissionMode", json!(mode)),
            ("allowedTools", json!(["Bash"])),
            ("betas", if first { json!(["context-1m-2025-08-07"]) } else { json!([]) }),
        ] {
            (said[name], shown[name]) = (value.clone(), value);
        }
    }
    Profile { said, shown, number, tools }
}

impl Stage {
    fn client(&self) -> Client {
        self.server.client()
    }

    /// The next model request matches the options, and the API shows them as set.
    async fn is(&self, id: &str, wanted: &Profile, when: &str) {
        let client = self.client();
        let config = client.session(id).await["config"].clone();
        for (name, value) in wanted.shown.as_object().expect("options") {
            assert_eq!(config[name], *value, "{when}: {name} is not shown as it was set: {config}");
        }
        let before = self.model.requests().len();
        let frames = client
            .send(id, "run: pwd; echo $TEAM window=$CLAUDE_CODE_AUTO_COMPACT_WINDOW")
            .await
            .rest()
            .await;
        let requests = &self.model.requests()[before..];
        // The requests beside the conversation are smaller, and have a lower token limit.
        let request = requests
            .iter()
            .filter(|request| request["body"]["tools"].as_array().is_some_and(|tools| tools.len() > 1))
            .max_by_key(|request| request["body"]["max_tokens"].as_u64());
        let request = request.unwrap_or_else(|| panic!("{when}: no request: {frames:?}"));
        self.is_asked(request, wanted, when);
        self.is_answered(&frames, wanted, when);
    }

    fn is_asked(&self, request: &Value, wanted: &Profile, when: &str) {
        let body = &request["body"];
        let (all, number) = (body.to_string(), wanted.number);
        let other = 3 - number;
        assert_eq!(body["model"], wanted.shown["model"], "{when}");
        assert_eq!(
            body["output_config"]["effort"], wanted.shown["reasoningEffort"],
            "{when}: {}",
            body["output_config"]
        );
        let mut tools: Vec<String> = body["tools"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|tool| tool["name"].as_str().map(str::to_lowercase))
            .map(|name| if name == "run" { "bash".to_owned() } else { name })
            .filter(|name| !name.starts_with("mcp__"))
            .collect();
        tools.sort();
        assert_eq!(tools, wanted.tools, "{when}: {}", self.runtime);
        assert!(body["system"].to_string().contains(&format!("Speak of number {number} only.")), "{when}");
        let mut there =
            vec![format!("The configuration says {number}."), format!("is the wanted skill of {number}")];
        let mut not = vec![format!("is the unwanted skill of {number}")];
        if self.runtime == "claude" {
            there.push(format!("mcp__tower{number}__tower{number}"));
            assert!(!body["tools"].to_string().contains(&format!("tower{other}")), "{when}");
            let betas = request["headers"]["anthropic-beta"].to_string();
            assert_eq!(betas.contains("context-1m-2025-08-07"), number == 1, "{when}: {betas}");
        } else {
            let room = body["max_tokens"].as_u64().expect("a number");
            let window = window("builtin", number);
            assert!(room < window && room > window / 2, "{when}: {room} of {window}");
            // Claude Code lists the skills once in the conversation, where the list stays.
            not.push(format!("is the wanted skill of {other}"));
        }
        assert!(!body["system"].to_string().contains(&format!("number {other} only")), "{when}");
        for words in there {
            assert!(all.contains(&words), "{when}: the model was not told {words:?}");
        }
        for words in not {
            assert!(!all.contains(&words), "{when}: the model was told {words:?}");
        }
    }

    fn is_answered(&self, frames: &[Frame], wanted: &Profile, when: &str) {
        let deltas = frames.iter().filter(|frame| frame.event == "text_delta").count();
        assert_eq!(deltas > 0, wanted.shown["streaming"] == true, "{when}: {deltas} deltas");
        let said: String = frames.iter().map(|frame| frame.data.to_string()).collect();
        let (place, team) = (format!("/workspace/place{}", wanted.number), format!("team-{}", wanted.number));
        assert!(said.contains(&place) && said.contains(&team), "{when}: {said}");
        if self.runtime == "claude" {
            assert!(said.contains(&format!("window={}", window("claude", wanted.number))), "{when}: {said}");
        }
        if let Some(mode) = wanted.shown["permissionMode"].as_str() {
            let begun = frames.iter().find(|frame| frame.data["subtype"] == "init").expect("its first words");
            assert_eq!(begun.data["permissionMode"], mode, "{when}");
        }
    }
}

async fn are_kept(runtime: &'static str) {
    let mut stage = Stage::set(runtime).await;
    let (first, second) = (profile(runtime, 1), profile(runtime, 2));
    let mut body = first.said.clone();
    body["agent"] = json!(runtime);
    let made = stage.client().post("/api/sessions", body).await;
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    stage.client().exec(&id, FURNITURE).await;
    // The agent listed its skills before the files existed.
    stage.client().action(&id, "stop").await;
    stage.client().action(&id, "resume").await;
    stage.is(&id, &first, "made").await;
    everywhere(&mut stage, &id, &first).await;
    // A resume with all options changed, while the old agent still runs.
    stage.client().action(&id, "pause").await;
    let resumed = stage.client().post(&format!("/api/sessions/{id}/resume"), second.said.clone()).await;
    assert_eq!(resumed["resume"]["lost"], json!([]), "{resumed}");
    stage.is(&id, &second, "changed on a warm resume").await;
    everywhere(&mut stage, &id, &second).await;
    stage.client().action(&id, "stop").await;
    stage.client().post(&format!("/api/sessions/{id}/resume"), first.said.clone()).await;
    stage.is(&id, &first, "changed on a cold resume").await;
    // A change while the session is active, without a resume.
    let (status, changed) = stage
        .client()
        .ask(Method::PATCH, &format!("/api/sessions/{id}/config"), Some(second.said.clone()))
        .await;
    assert_eq!(status, 200, "{changed}");
    stage.is(&id, &second, "changed while it is live").await;
    let said = stage.client().get(&format!("/api/sessions/{id}/messages?limit=1000")).await.to_string();
    assert!(
        said.matches("run: pwd; echo $TEAM window=$CLAUDE_CODE_AUTO_COMPACT_WINDOW").count() >= 12,
        "one conversation all the time"
    );
}

/// Goes through every way to rest and every way to come back.
async fn everywhere(stage: &mut Stage, id: &str, wanted: &Profile) {
    for rest in ["pause", "stop"] {
        stage.client().action(id, rest).await;
        stage.client().action(id, "resume").await;
        stage.is(id, wanted, rest).await;
    }
    stage.server.crash_and_start().await;
    stage.is(id, wanted, "after a crash").await;
    stage.server.stop().await;
    stage.server.launch().await;
    stage.is(id, wanted, "after a restart").await;
    crate::support::remote::until_remote(&stage.client(), id).await;
    stage.server.lose_the_machine().await;
    // The session's secrets were sealed with the key of the lost machine.
    let resumed = stage.client().action(id, "resume").await;
    assert!(resumed["resume"]["lost"].to_string().contains("environment variables"), "{resumed}");
    let mut again = json!({ "env": wanted.said["env"] });
    if stage.runtime == "claude" {
        let at = format!("secret /mcpServers/tower{}/env/TOWER", wanted.number);
        assert!(resumed["resume"]["lost"].to_string().contains(&at), "{resumed}");
        again["mcpServers"] = wanted.said["mcpServers"].clone();
    }
    stage.client().post(&format!("/api/sessions/{id}/resume"), again).await;
    stage.is(id, wanted, "on another machine").await;
}

#[tokio::test]
async fn the_built_in_agents_options_are_kept() {
    are_kept("builtin").await;
}

#[tokio::test]
async fn claude_codes_options_are_kept() {
    are_kept("claude").await;
}

#[tokio::test]
async fn invalid_options_are_refused() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("helper").await;
    for wrong in [
        json!({ "reasoningEffort": "enormous" }),
        json!({ "systemMessage": { "mode": "prepend", "content": "x" } }),
        json!({ "systemMessage": 7 }),
        json!({ "availableTools": {} }),
        json!({ "streaming": "yes" }),
        json!({ "idleTimeout": -1 }),
        json!({ "workingDirectory": "/etc" }),
        json!({ "workingDirectory": "a/../../b" }),
        json!({ "configDir": "/workspace/config" }),
        json!({ "configDir": "~" }),
        json!({ "skillDirectories": ["/usr/share"] }),
        json!({ "disabledSkills": ["two\nlines"] }),
        json!({ "customAgents": [{ "name": "x" }] }),
        json!({ "onBusy": "panic" }),
    ] {
        let mut body: Value = wrong.clone();
        body["agent"] = json!("helper");
        let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
        assert_eq!((status.as_u16(), &refused["code"]), (400, &json!("invalid_body")), "{wrong}: {refused}");
    }
}

#[tokio::test]
async fn a_field_of_a_custom_agent_that_is_not_known_is_refused_by_name() {
    let server = Server::start().await;
    let client = server.client();
    let wrong = json!({ "agent": "default", "customAgents": [{ "name": "x", "prompt": "y", "promt": "z" }] });
    let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(wrong)).await;
    assert_eq!((status.as_u16(), &refused["error"]), (400, &json!("promt: did you mean prompt?")));
}

/// No requested option is ignored silently.
#[tokio::test]
async fn options_that_a_runtime_cannot_enforce_are_refused_by_name() {
    let stage = Stage::set("claude").await;
    let client = stage.client();
    client.deploy("helper").await;
    let session = client.post("/api/sessions", json!({ "agent": "helper", "sessionId": "plain" })).await;
    assert_eq!(session["session"]["status"], "active");
    for (agent, name, wrong) in [
        ("helper", "permissionMode", json!({ "permissionMode": "plan" })),
        ("helper", "permissionMode", json!({ "permissionMode": "default" })),
        ("claude", "provider", json!({ "provider": "offline" })),
    ] {
        let mut body = wrong.clone();
        body["agent"] = json!(agent);
        let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
        assert_eq!(
            (status.as_u16(), &refused["code"]),
            (422, &json!("option_unsupported")),
            "{wrong}: {refused}"
        );
        assert!(refused["error"].as_str().is_some_and(|error| error.contains(name)), "{refused}");
        if agent == "helper" {
            for (method, path) in [(Method::PATCH, "config"), (Method::POST, "resume")] {
                let (status, refused) =
                    client.ask(method, &format!("/api/sessions/plain/{path}"), Some(wrong.clone())).await;
                assert_eq!(
                    (status.as_u16(), &refused["code"]),
                    (422, &json!("option_unsupported")),
                    "{path}: {refused}"
                );
            }
        }
    }
    let config = client.session("plain").await["config"].clone();
    assert_eq!(config, json!({}), "nothing of it was stored");
}

/// Clients of the Ash API send these options to every agent: they are accepted, stored, and reported where they have no
/// effect.
#[tokio::test]
async fn options_without_effect_on_a_runtime_are_accepted_and_named() {
    let stage = Stage::set("claude").await;
    let client = stage.client();
    client.deploy("helper").await;
    let helper = json!({ "x": { "description": "helps", "prompt": "Help." } });
    let options = json!({
        "mcpServers": { "x": { "command": "y", "env": { "TOKEN": "sk-of-a-client" } } }, "subagents": helper,
        "initialAgent": "x", "betas": ["b"],
    });
    let ignored = json!(["mcpServers", "subagents", "initialAgent", "betas"]);
    let mut new = options.clone();
    (new["agent"], new["sessionId"]) = (json!("helper"), json!("all"));
    let made = client.post("/api/sessions", new).await["session"].clone();
    assert_eq!(made["ignoredOptions"], ignored, "{made}");
    assert_eq!((&made["config"]["subagents"], &made["config"]["betas"]), (&helper, &json!(["b"])));
    let shown = client.exec("all", "ls -R /run/ash; grep -r sk-of /run/ash").await["stdout"].to_string();
    assert!(shown.contains("/run/ash") && !shown.contains("mcp") && !shown.contains("sk-of"), "{shown}");

    client.post("/api/sessions", json!({ "agent": "helper", "sessionId": "plain" })).await;
    assert_eq!(client.session("plain").await["ignoredOptions"], Value::Null, "of nothing nothing is said");
    let (status, changed) =
        client.ask(Method::PATCH, "/api/sessions/plain/config", Some(options.clone())).await;
    assert_eq!((status.as_u16(), &changed["session"]["ignoredOptions"]), (200, &ignored), "{changed}");
    client.action("plain", "stop").await;
    let resumed = client.post("/api/sessions/plain/resume", json!({ "betas": ["c"] })).await;
    assert_eq!(resumed["session"]["ignoredOptions"], ignored);
    assert_eq!(client.text("plain", "say: well").await, "well");

    let forked = client.post("/api/sessions/all/fork", json!({})).await;
    assert_eq!(forked["session"]["ignoredOptions"], ignored);
    for args in [["create", "helper", "-o", "betas=b"], ["config", "plain", "-o", "betas=b"]] {
        let mut shell = stage.server.command_of(&[&["session"], args.as_slice()].concat());
        let said = shell.env("ASH_SERVER_URL", &stage.server.url).output().expect("ash").stderr;
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("runtime \"builtin\" has no use for") && said.contains("betas"), "{said}");
    }
    let of_claude = json!({ "agent": "claude", "betas": ["context-1m-2025-08-07"] });
    let made = client.post("/api/sessions", of_claude).await;
    assert_eq!(made["session"]["ignoredOptions"], Value::Null, "it has an effect there: {made}");
}

/// The error names the impossible directory, and the session works once a caller names another.
#[tokio::test]
async fn the_error_for_a_working_directory_that_is_a_file_says_so() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.text(&id, "write place: x").await;
    client.exec(&id, "ln -s /etc link").await;
    client.action(&id, "stop").await;
    for place in ["place", "link", "link/deeper"] {
        let (status, refused) = client
            .ask(
                Method::POST,
                &format!("/api/sessions/{id}/resume"),
                Some(json!({ "workingDirectory": place })),
            )
            .await;
        assert_eq!((status.as_u16(), &refused["code"]), (500, &json!("option_failed")), "{refused}");
    }
    client.post(&format!("/api/sessions/{id}/resume"), json!({ "workingDirectory": "." })).await;
    assert_eq!(client.text(&id, "run: pwd").await.lines().next(), Some("/workspace"));
}
