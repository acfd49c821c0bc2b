//! The server under ordinary conditions: started by a user who is not root, without a sandbox, without a key, and in
//! places where it cannot work and must say so.

use crate::support::{Client, Server, Sse, as_root, eventually, run_to_end};
use serde_json::{Value, json};
use std::{
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::{Child, Command, Stdio},
};

const ORDINARY_USER: u32 = 61_001;

/// The text of a turn, from one or more streams.
async fn heard(stream: &mut Sse) -> String {
    let frames = stream.until("done").await;
    let complete = frames.iter().rfind(|frame| frame.event == "turn_complete").expect("turn_complete");
    complete.data["result"].as_str().expect("a text").to_owned()
}

async fn lives_and_comes_back(mut server: Server) -> Server {
    let mut client = server.client();
    let id = client.create().await;
    let commit = "run: git init -q . && git commit --allow-empty -qm first && git log --format=%s%an && echo x > f && chmod 700 f && ln -s f link";
    assert_eq!(client.text(&id, commit).await, "firstagent");
    let mut stream = client.send(&id, "hold /home/agent/go: one two three four five six seven eight").await;
    let first = stream.until("text_delta").await;
    server.crash_and_start().await;
    client = server.client();
    server.let_go(&id, "../home/go").await;
    let last = first.last().expect("a frame").id.clone();
    assert_eq!(heard(&mut client.follow(&id, &last).await).await, "one two three four five six seven eight");
    client.action(&id, "stop").await;
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!(
        (receipt["tier"].as_str(), receipt["verified"].as_bool()),
        (Some("native"), Some(true)),
        "{receipt}"
    );
    assert_eq!(receipt["lost"], json!([]));
    let look = "run: git log --format=%s; git status --short; readlink link; stat -c '%a %U' f";
    assert_eq!(client.text(&id, look).await, "first\n?? CLAUDE.md\n?? f\n?? link\nf\n700 agent");
    assert!(client.text(&id, "what do you remember?").await.contains("This is turn 4"));
    assert!(!server.log().contains("panicked"), "{}", server.log());
    server
}

fn owners(path: &Path, found: &mut Vec<u32>) {
    let data = path.symlink_metadata().expect("metadata");
    found.push(data.uid());
    if data.is_dir() {
        for entry in std::fs::read_dir(path).expect("a directory").flatten() {
            owners(&entry.path(), found);
        }
    }
}

#[tokio::test]
async fn an_ordinary_users_sessions_survive() {
    let mut server = lives_and_comes_back(Server::of_user(ORDINARY_USER, &[]).await).await;
    server.stop().await;
    let mut found = Vec::new();
    owners(&server.data, &mut found);
    found.dedup();
    assert_eq!(found, [server.uid()]);
    let mode = server.data.metadata().expect("metadata").permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}

#[tokio::test]
async fn as_root_sessions_that_an_ordinary_user_made_live_on() {
    assert!(as_root(), "only root can become another user");
    let mut server = Server::of_user(ORDINARY_USER, &[]).await;
    let client = server.client();
    let (stopped, live) = (client.create().await, client.create().await);
    for id in [&stopped, &live] {
        client.say(id, "remember me").await;
        client.say(id, "run: mkdir -m 700 closed && echo kept > closed/f && chmod 600 closed/f && ln -s f closed/link").await;
    }
    client.action(&stopped, "stop").await;
    // One sandbox continues to run, as the server's former user.
    server.leave().await;
    server.becomes_root();
    server.launch().await;
    let client = server.client();
    assert!(client.text(&live, "and now?").await.contains("turn 3"));
    client.action(&live, "stop").await;
    for id in [&stopped, &live] {
        let receipt = client.action(id, "resume").await["resume"].clone();
        assert_eq!((receipt["tier"].as_str(), &receipt["lost"]), (Some("native"), &json!([])), "{receipt}");
        let look = "run: cat closed/link; echo more >> closed/f; stat -c '%a %U' closed/f";
        assert_eq!(client.text(id, look).await, "kept\n600 agent");
        let mut found = Vec::new();
        owners(&server.live(id).await.join("tree/workspace"), &mut found);
        found.dedup();
        assert!(matches!(found[..], [own] if own != 0 && own != ORDINARY_USER), "{found:?}");
    }
    // From its checkpoint alone.
    server.stop().await;
    std::fs::remove_dir_all(server.data.join("live")).expect("removed");
    server.launch().await;
    assert_eq!(server.client().text(&stopped, "run: cat closed/f").await, "kept\nmore");
}

/// Without a sandbox the agent's path is the real one, and the agent runs as the user who started the server.
async fn works_without_walls(mut server: Server) {
    assert!(server.log().contains("WITHOUT WALLS"), "{}", server.log());
    let mut client = server.client();
    let id = client.create().await;
    assert_eq!(
        client.text(&id, "run: id -u; echo kept > f").await.lines().next(),
        Some(server.uid().to_string().as_str())
    );
    client.action(&id, "stop").await;
    assert_eq!(client.action(&id, "resume").await["resume"]["tier"], "native");
    assert_eq!(client.text(&id, "read f").await, "kept\n");
    let mut stream = client.send(&id, "hold go: one two three four five six").await;
    let last = stream.until("text_delta").await.last().expect("a frame").id.clone();
    server.crash_and_start().await;
    client = server.client();
    server.let_go(&id, "go").await;
    assert_eq!(heard(&mut client.follow(&id, &last).await).await, "one two three four five six");
    assert!(client.text(&id, "and now?").await.contains("This is turn 4"));
    server.stop().await;
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

#[tokio::test]
async fn as_root_without_walls() {
    assert!(as_root(), "what root's server does");
    works_without_walls(Server::with(&[("ASH_SANDBOX", "none")]).await).await;
}

#[tokio::test]
async fn a_user_without_walls() {
    works_without_walls(Server::of_user(ORDINARY_USER, &[("ASH_SANDBOX", "none")]).await).await;
}

/// A server that was started directly; killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts it with the key from its own file.
async fn with_its_own_key(server: &mut Server, mut command: Command) -> (Running, Client) {
    let running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("ash serve"));
    let pid = running.0.id();
    server.url = eventually("the server is up", async || {
        let info: Value =
            serde_json::from_slice(&std::fs::read(server.data.join("server.json")).ok()?).ok()?;
        (info["pid"] == pid).then(|| info["url"].as_str().map(str::to_owned))?
    })
    .await;
    let key = std::fs::read_to_string(server.data.join("initial-api-key")).expect("a key");
    let client = server.client_with(key.trim());
    (running, client)
}

#[tokio::test]
async fn without_a_key_one_is_made_once_and_only_its_owner_can_read_it() {
    let mut server = Server::prepare(&[]);
    let without = |server: &Server| {
        let mut command = server.command();
        command.env_remove("ASH_API_KEY");
        command
    };
    let (running, client) = {
        let command = without(&server);
        with_its_own_key(&mut server, command).await
    };
    let file = server.data.join("initial-api-key");
    assert_eq!(file.metadata().expect("metadata").permissions().mode() & 0o777, 0o600);
    assert!(client.key.starts_with("ash_") && client.key.len() == 36, "{}", client.key);
    let id = client.create().await;
    drop(running);
    let (running, again) = {
        let command = without(&server);
        with_its_own_key(&mut server, command).await
    };
    assert_eq!(again.key, client.key);
    assert_eq!(again.status(&id).await, "active");
    // An empty variable, as in compose files, is no key: it would lock out every client, or let every client in.
    drop(running);
    let command = {
        let mut command = server.command();
        command.env("ASH_API_KEY", "");
        command
    };
    let (_running, again) = with_its_own_key(&mut server, command).await;
    assert_eq!((again.key.as_str(), again.status(&id).await.as_str()), (client.key.as_str(), "active"));
    let keys = again.get("/api/api-keys").await["keys"].as_array().map(Vec::len);
    assert_eq!(keys, Some(1), "no key was made besides the first");
    again.delete(&format!("/api/sessions/{id}")).await;
}

#[tokio::test]
async fn an_empty_secret_opens_no_internal_route() {
    let server = Server::with(&[("ASH_INTERNAL_SECRET", "")]).await;
    for key in ["", "x"] {
        let (status, body) = server
            .client_with(key)
            .ask(reqwest::Method::POST, "/api/internal/api-keys", Some(json!({ "tenantId": "x" })))
            .await;
        assert_eq!((status.as_u16(), body["code"].as_str()), (503, Some("internal_disabled")));
    }
}

#[tokio::test]
async fn a_second_server_on_the_same_data_is_refused_and_the_first_goes_on() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let (code, words) = run_to_end(server.command()).await;
    assert_eq!(code, Some(1));
    assert!(words.contains("another ash server uses") && words.contains("--data-dir"), "{words}");
    assert!(client.text(&id, "still there?").await.contains("This is turn 1"));
}

#[tokio::test]
async fn a_port_in_use_is_named_with_a_way_out() {
    let server = Server::start().await;
    let port = server.url.rsplit(':').next().expect("a port").to_owned();
    let second = Server::prepare(&[("ASH_PORT", &port)]);
    let (code, words) = run_to_end(second.command()).await;
    assert_eq!(code, Some(1));
    assert!(words.contains(&port) && words.contains("--port"), "{words}");
    assert_eq!(server.client().get("/health").await["status"], "ok");
}

#[tokio::test]
async fn as_root_without_bubblewrap_the_message_says_what_to_install() {
    assert!(as_root(), "only root can hide a program");
    let server = Server::prepare(&[]);
    let ash = server.command();
    let hide = r#"for p in /usr/bin/bwrap /usr/local/bin/bwrap; do if [ -e $p ]; then mount --bind /dev/null $p; fi; done; exec "$0" "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", hide]).arg(ash.get_program()).args(ash.get_args()).env_clear();
    command.envs(ash.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (code, words) = run_to_end(command).await;
    assert_eq!(code, Some(1), "{words}");
    for word in ["bubblewrap", "apt-get install", "ASH_SANDBOX=none"] {
        assert!(words.contains(word), "{words}");
    }
}

#[tokio::test]
async fn invalid_settings_are_refused_at_the_start() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let file_path = file.path().display().to_string();
    for (name, value, hint) in [
        ("ASH_PORT", "many", "--port"),
        ("ASH_PORT", "65536", "65535"),
        ("ASH_HOST", "nowhere.invalid", "host"),
        ("ASH_SANDBOX", "tissue", "bubblewrap"),
        ("ASH_SANDBOX_UIDS", "0-10", "10000"),
        ("ASH_SANDBOX_UIDS", "x", "FIRST-LAST"),
        ("ASH_ORPHAN_TTL", "-1", "seconds"),
        ("ASH_DEFAULT_RUNTIME", "cobol", "builtin"),
        ("ASH_DATA_DIR", file_path.as_str(), file_path.as_str()),
    ] {
        let (code, words) = run_to_end(Server::prepare(&[(name, value)]).command()).await;
        assert!(matches!(code, Some(1 | 2)), "{name}={value}: {code:?} {words}");
        assert!(words.contains(hint) && !words.contains("panicked"), "{name}={value}: {words}");
    }
}
