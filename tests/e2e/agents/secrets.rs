//! Secrets of MCP servers: shown as `***`, stored sealed, and read by the agent from a file that no checkpoint holds.

use crate::support::{Client, Server, eventually, runtime::Stage};
use reqwest::Method;
use serde_json::{Value, json};
use std::{fs, io::Read, os::unix::fs::DirBuilderExt, path::Path};

/// A minimal MCP server.
const TOOLS: &str = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        said = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif asked.get("method") == "tools/list":
        said = {"tools": [{"name": "build", "description": "x", "inputSchema": {"type": "object"}}]}
    else:
        said = {}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": said}), flush=True)
"#;

fn servers(key: &str, token: &str) -> Value {
    json!({
        "local": { "command": "python3", "args": ["-c", TOOLS], "env": { "KEY": key } },
        "far": { "type": "http", "url": "http://127.0.0.1:9/mcp", "headers": { "Authorization": token } },
    })
}

async fn patch(client: &Client, id: &str, servers: Value) -> (u16, Value) {
    let body = json!({ "mcpServers": servers });
    let (status, answer) = client.ask(Method::PATCH, &format!("/api/sessions/{id}/config"), Some(body)).await;
    (status.as_u16(), answer)
}

/// Every file below that contains the text.
fn holders(dir: &Path, words: &str) -> Vec<String> {
    let found = std::process::Command::new("grep").args(["-rlaF", words]).arg(dir).output().expect("grep");
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

/// The content of the packs below: their bytes, and every zstd frame in them.
fn unpacked(dir: &Path) -> Vec<u8> {
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let packs = ["-type", "f", "(", "-name", "*.pack", "-o", "-path", "*/packs/*", ")"];
    let found = std::process::Command::new("find").arg(dir).args(packs).output().expect("find");
    let mut all = Vec::new();
    for path in String::from_utf8(found.stdout).expect("UTF-8").lines() {
        let bytes = fs::read(path).expect("a pack");
        all.extend(&bytes);
        for at in (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&MAGIC)) {
            // Bytes that only look like a frame header do not decode.
            let frame = zstd::stream::read::Decoder::new(&bytes[at..]).map(|decoder| decoder.single_frame());
            frame.and_then(|mut frame| frame.read_to_end(&mut all)).ok();
        }
    }
    all
}

fn has(bytes: &[u8], words: &str) -> bool {
    bytes.windows(words.len()).any(|window| window == words.as_bytes())
}

impl Stage {
    /// The end of the secret that the local server has in the next turn.
    async fn key_in_use(&self, id: &str) -> String {
        let client = self.server.client();
        client.say(id, "run: true").await;
        let look = "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | sed -n 's/^KEY=hunter2-//p'";
        let seen = client.exec(id, look).await;
        seen["stdout"].as_str().expect("text").trim().to_owned()
    }
}

#[tokio::test]
async fn secrets_of_mcp_servers_are_masked_sealed_and_read_from_a_file() {
    let mut stage = Stage::set("claude").await;
    let client = stage.server.client();
    let body = json!({ "agent": "claude", "sessionId": "s", "availableTools": ["Bash"], "mcpServers": servers("hunter2-AAAA", "Bearer hunter2-h") });
    let made = client.post("/api/sessions", body).await;
    // Responses mask the values.
    assert_eq!(made["session"]["config"]["mcpServers"], servers("***", "***"));
    assert_eq!(stage.key_in_use("s").await, "AAAA");
    // The agent reads the secrets from a file below /run/ash, and no command line has them. The journal stores all
    // output, so the command prints only the number of matches.
    let look = "grep -c hunter[2]-AAAA /run/ash/mcp-*.json; grep -c 'Bearer hunter[2]-h' /run/ash/mcp-*.json; \
                cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c '^hunter[2]\\|[^\\[]hunter[2]'; stat -c %a /run/ash/mcp-*.json; touch /run/ash/x";
    let read = client.exec("s", look).await;
    assert_eq!(read["stdout"], "1\n1\n0\n400\n", "{read}");
    // Only there: no fact, row, log or trace of the server has them.
    let outside = holders(&stage.server.dir, "hunter2");
    assert!(outside.iter().all(|path| path.contains("/egress/mcp-")), "{outside:?}");
    // A mask that a client sends back leaves the value unchanged.
    let shown = client.session("s").await["config"]["mcpServers"].clone();
    assert_eq!(patch(&client, "s", shown.clone()).await.0, 200);
    assert_eq!(stage.key_in_use("s").await, "AAAA");
    // One new value, and one mask.
    assert_eq!(patch(&client, "s", servers("hunter2-BBBB", "***")).await.0, 200);
    assert_eq!(stage.key_in_use("s").await, "BBBB");
    let read = client.exec("s", "grep -c 'hunter[2]-BBBB.*\\|Bearer hunter[2]-h' /run/ash/mcp-*.json").await;
    assert_eq!(read["stdout"], "1\n", "{read}");
    // A mask without a stored secret is refused, with the remedy.
    let (status, refused) =
        patch(&client, "s", json!({ "new": { "command": "x", "env": { "KEY": "***" } } })).await;
    assert_eq!(status, 400, "{refused}");
    assert!(
        refused["error"]
            .as_str()
            .is_some_and(|e| e.contains("/mcpServers/new/env/KEY") && e.contains("send its value"))
    );
    client.exec("s", "echo plainly to be seen > note.txt").await;
    // A fork has the secrets as well.
    client.post("/api/sessions/s/fork", json!({ "sessionId": "f" })).await;
    client.action("f", "resume").await;
    assert_eq!(stage.key_in_use("f").await, "BBBB");
    // At rest the secrets exist only in sealed form, also in the object store.
    client.action("f", "stop").await;
    client.action("s", "stop").await;
    crate::support::remote::until_remote(&client, "s").await;
    assert_eq!(holders(&stage.server.dir, "hunter2"), Vec::<String>::new());
    assert_eq!(holders(stage.bucket.path(), "hunter2"), Vec::<String>::new());
    // Packs are compressed, and hold all files of all checkpoints and the log.
    for dir in [&stage.server.data, stage.bucket.path()] {
        let packs = unpacked(dir);
        let has = |words: &str| has(&packs, words);
        let (file, fact) = (has("plainly to be seen"), has(r#""KEY":"***""#));
        assert!(file && fact, "what is there is seen: {file} {fact} {}", dir.display());
        assert!(!has("hunter2"), "{}", dir.display());
    }
    stage.server.crash_and_start().await;
    let client = stage.server.client();
    client.action("s", "resume").await;
    assert_eq!(stage.key_in_use("s").await, "BBBB");
    let events = client.get("/api/sessions/s/events?limit=1000").await.to_string();
    assert!(!events.contains("hunter2"), "{events}");
    // The bucket has them sealed: another machine with the same seal key can open them.
    client.action("s", "stop").await;
    crate::support::remote::until_remote(&client, "s").await;
    let seal = stage.server.data.join("seal.key");
    let key = fs::read(&seal).expect("a seal key");
    stage.server.kill9();
    eventually("the machine is gone", async || fs::remove_dir_all(&stage.server.data).is_ok().then_some(()))
        .await;
    fs::DirBuilder::new().mode(0o700).create(&stage.server.data).expect("a data directory");
    fs::write(&seal, key).expect("the seal key");
    stage.server.take_over().await;
    let client = stage.server.client();
    client.action("s", "resume").await;
    // The log was rebuilt from packs.
    let events = client.get("/api/sessions/s/events?limit=1000").await.to_string();
    assert!(events.contains("tool_start") && !events.contains("hunter2"), "{events}");
    assert_eq!(stage.key_in_use("s").await, "BBBB");
}

#[tokio::test]
async fn exec_has_the_environment_of_the_session_and_of_its_agent() {
    let server = Server::start().await;
    let client = server.client();
    let files = json!([{ "path": "CLAUDE.md", "content": "aGkK" }]);
    let agent =
        json!({ "name": "helper", "files": files, "env": { "FROM_AGENT": "agent", "BOTH": "agent" } });
    client.post("/api/agents", agent).await;
    let body = json!({ "agent": "helper", "sessionId": "s", "env": { "FROM_SESSION": "session", "BOTH": "session" } });
    let made = client.post("/api/sessions", body).await;
    // The response to create shows the names.
    assert_eq!(made["session"]["config"]["env"], json!({ "FROM_SESSION": "***", "BOTH": "***" }));
    let done = client.exec("s", "echo $FROM_AGENT $FROM_SESSION $BOTH $ASH_SESSION_ID").await;
    assert_eq!(done["stdout"], "agent session session s\n", "{done}");
    let changed = json!({ "env": { "FROM_SESSION": "changed" } });
    client.ask(Method::PATCH, "/api/sessions/s/config", Some(changed)).await;
    let done = client.exec("s", "echo $FROM_SESSION $BOTH").await;
    assert_eq!(done["stdout"], "changed agent\n", "{done}");
}
