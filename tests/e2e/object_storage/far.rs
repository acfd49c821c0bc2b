//! The machine is lost: everything comes back from the object store alone.

use crate::{
    gcs::Gcs,
    servers,
    support::{
        Point, Server, claude, eventually,
        remote::{files, messages, until_remote},
    },
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// A server that replicates to an S3 server.
struct Stage {
    server: Server,
    s3: servers::Server,
}

impl Stage {
    async fn set(env: &[(&str, &str)]) -> Stage {
        let (s3, keys) = servers::Server::moto();
        s3.make_s3_bucket("shelf");
        let mut server = Server::prepare(&[("ASH_SNAPSHOT_URL", "s3://shelf/some/where")]);
        keys.iter().for_each(|(name, value)| server.set(name, value));
        env.iter().for_each(|(name, value)| server.set(name, value));
        server.launch().await;
        Stage { server, s3 }
    }
}

#[tokio::test]
async fn a_session_comes_back_from_s3_alone() {
    let (s3, keys) = servers::Server::moto();
    s3.make_s3_bucket("shelf");
    it_comes_back_alone_from("s3://shelf/some/where", keys).await;
}

#[tokio::test]
async fn a_session_comes_back_from_azure_alone() {
    let (azure, keys) = servers::Server::azurite();
    azure.make_azure_container("shelf");
    it_comes_back_alone_from("az://shelf/some/where", keys).await;
}

#[tokio::test]
async fn a_session_comes_back_from_google_alone() {
    let google = Gcs::start("shelf", "open sesame").await;
    let keys = [("STORAGE_EMULATOR_HOST", google.url.as_str()), ("GOOGLE_BEARER_TOKEN", "open sesame")];
    it_comes_back_alone_from("gs://shelf/some/where", servers::environment(&keys)).await;
}

/// Twice, because restored data can be lost again.
async fn it_comes_back_alone_from(url: &str, keys: BTreeMap<String, String>) {
    let mut server = Server::prepare(&[("ASH_SNAPSHOT_URL", url)]);
    keys.iter().for_each(|(name, value)| server.set(name, value));
    server.launch().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "write a/b.txt: the tower is high").await;
    // Larger than the largest single upload.
    client.say(&id, "run: head -c 17000000 /dev/urandom > noise; sha256sum noise > sum").await;
    client.say(&id, "run: echo the water is cold > water; chmod 700 water").await;
    client.say(&id, "say: the bread is warm").await;
    until_remote(&client, &id).await;
    let (before, said) = (files(&client, &id).await, messages(&client, &id).await);
    assert_eq!(before.len(), 5, "{:?}", before.keys());

    server.lose_the_machine().await;
    let client = server.client();
    assert_eq!(client.get("/api/sessions").await["sessions"], json!([]), "an empty database");
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!(
        (&receipt["path"], &receipt["source"], &receipt["from"], &receipt["tier"], &receipt["lost"]),
        (&json!("cold"), &json!("cloud"), &json!("checkpoint"), &json!("native"), &json!([])),
        "{receipt}"
    );
    assert_eq!(receipt["verified"], true, "{receipt}");
    assert!(files(&client, &id).await == before, "files are not what they were");
    assert_eq!(messages(&client, &id).await, said);
    let found = client.exec(&id, "stat -c %a water; sha256sum -c sum").await;
    assert_eq!(found["stdout"], "700\nnoise: OK\n");
    client.say(&id, "say: and on it goes").await;
    until_remote(&client, &id).await;
    let metrics = client.request(reqwest::Method::GET, "/metrics").send().await.expect("metrics");
    let metrics = metrics.text().await.expect("text");
    assert!(metrics.contains("ash_resume_cold_total{source=\"cloud\"} 1"), "{metrics}");

    server.lose_the_machine().await;
    let client = server.client();
    client.action(&id, "resume").await;
    assert!(messages(&client, &id).await.to_string().contains("and on it goes"), "again");
}

/// On the other machine, the model sees the whole conversation of the real Claude Code.
#[tokio::test]
async fn claude_code_goes_on_on_another_machine() {
    let (s3, keys) = servers::Server::moto();
    s3.make_s3_bucket("shelf");
    let env: Vec<(&str, &str)> = keys.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let env = [&[("ASH_SNAPSHOT_URL", "s3://shelf")], &env[..]].concat();
    let mut stage = claude::Stage::with(&env).await;
    let id = stage.create().await;
    let client = stage.server.client();
    client.say(&id, "say: the tower is high").await;
    client.say(&id, "run: echo the water is cold > water").await;
    client.say(&id, "say: the bread is warm").await;
    until_remote(&client, &id).await;
    let before = files(&client, &id).await;
    stage.server.lose_the_machine().await;
    let receipt = stage.back(&id).await;
    assert_eq!(
        (&receipt["source"], &receipt["tier"], &receipt["verified"], &receipt["lost"]),
        (&json!("cloud"), &json!("native"), &json!(true), &json!([])),
        "{receipt}"
    );
    let client = stage.server.client();
    assert_eq!(files(&client, &id).await, before);
    client.say(&id, "say: and now?").await;
    let shown = stage.requests().pop().expect("a request")["body"]["messages"].to_string();
    for words in ["the tower is high", "echo the water is cold", "the bread is warm", "and now?"] {
        assert!(shown.contains(words), "{words:?} is forgotten: {shown}");
    }
}

/// A fork needs its parent's log, and comes back with it; agents come back with their sessions.
#[tokio::test]
async fn a_fork_comes_back_with_what_it_shares() {
    let mut stage = Stage::set(&[]).await;
    let client = stage.server.client();
    let parent = client.create().await;
    client.say(&parent, "write a.txt: one").await;
    let forked = client.post(&format!("/api/sessions/{parent}/fork"), json!({})).await;
    let fork = forked["session"]["id"].as_str().expect("an id").to_owned();
    client.say(&fork, "write b.txt: two").await;
    for id in [&parent, &fork] {
        until_remote(&client, id).await;
    }
    let (before, said) = (files(&client, &fork).await, messages(&client, &fork).await);
    assert_eq!(before.len(), 3, "{before:?}");
    stage.server.lose_the_machine().await;
    let client = stage.server.client();
    let receipt = client.action(&fork, "resume").await["resume"].clone();
    assert_eq!((&receipt["source"], &receipt["lost"]), (&json!("cloud"), &json!([])), "{receipt}");
    assert_eq!(messages(&client, &fork).await, said);
    assert_eq!(files(&client, &fork).await, before);
    assert_eq!(client.session(&parent).await["id"], json!(parent), "the parent came along");
    assert_eq!(client.get("/api/agents").await["agents"].as_array().map(Vec::len), Some(1));
}

/// `done` comes once the object store has the turn, or with a clear statement that it has not.
#[tokio::test]
async fn a_turn_may_wait_for_the_object_store() {
    let mut stage = Stage::set(&[]).await;
    let client = stage.server.client();
    client.create().await;
    let made = client.post("/api/sessions", json!({ "agent": "tester", "durability": "remote" })).await;
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    for number in 0..3 {
        let done = client.say(&id, &format!("write a.txt: {number}")).await;
        assert!(done["error"].is_null(), "{done}");
        let checkpoint = client.session(&id).await["checkpoint"].clone();
        assert_eq!(checkpoint["local"], checkpoint["remote"], "done means that it is there: {checkpoint}");
    }
    // A message can request a stricter durability than its session.
    let other = client.create().await;
    let path = format!("/api/sessions/{other}/messages");
    let message = json!({ "content": "write b.txt: 1", "durability": "remote" });
    let answer = client.request(reqwest::Method::POST, &path).json(&message).send().await.expect("sent");
    let text = answer.text().await.expect("a stream");
    assert!(text.contains("event: done") && !text.contains("event: error"), "{text}");
    let checkpoint = client.session(&other).await["checkpoint"].clone();
    assert_eq!(checkpoint["local"], checkpoint["remote"], "{checkpoint}");

    // Only now: a busy machine may take longer than that for an upload.
    stage.server.set("ASH_REMOTE_TIMEOUT", "1");
    stage.server.crash_and_start().await;
    let client = stage.server.client();
    stage.s3.stop();
    let answer = client.request(reqwest::Method::POST, &format!("/api/sessions/{id}/messages"));
    let answer = answer.json(&json!({ "content": "write a.txt: late" })).send().await.expect("sent");
    let text = answer.text().await.expect("a stream");
    assert!(text.contains("\"code\":\"not_remote\"") && text.contains("event: done"), "{text}");
    let health = eventually("it says that it cannot send", async || {
        let health = client.get("/health").await["objectStore"].clone();
        (health["status"] == "trouble").then_some(health)
    })
    .await;
    assert_eq!(health["code"], "unreachable", "{health}");
    assert_eq!(client.exec(&id, "cat a.txt").await["stdout"], "late", "work goes on");

    let bare = Server::start().await;
    bare.client().deploy("tester").await;
    let ask = json!({ "agent": "tester", "durability": "remote" });
    let (status, refused) = bare.client().ask(reqwest::Method::POST, "/api/sessions", Some(ask)).await;
    assert_eq!((status.as_u16(), &refused["code"]), (422, &json!("no_object_store")), "{refused}");
    stage.server.kill9();
}

/// The command line on an empty machine: lists everything, and restores all of it with its files.
#[tokio::test]
async fn everything_is_listed_and_restored_by_hand() {
    let mut stage = Stage::set(&[]).await;
    let client = stage.server.client();
    let id = client.create().await;
    client.say(&id, "write a.txt: one").await;
    let ended = client.create().await;
    client.say(&ended, "write b.txt: two").await;
    client.delete(&format!("/api/sessions/{ended}")).await;
    for id in [&id, &ended] {
        until_remote(&client, id).await;
    }
    let listed = async |stage: &Stage| {
        let mut command = stage.server.command_of(&["sessions", "--from", "s3://shelf/some/where", "--json"]);
        let told: Value = serde_json::from_slice(&command.output().expect("run").stdout).expect("json");
        told["sessions"].as_array().expect("a list").clone()
    };
    eventually("the end is there, too", async || {
        let listed = listed(&stage).await;
        let status = |id: &str| listed.iter().find(|one| one["id"] == id).map(|one| one["status"].clone());
        (listed.len() == 2 && status(&ended) == Some(json!("ended"))).then_some(())
    })
    .await;
    stage.server.kill9();
    std::fs::remove_dir_all(&stage.server.data).expect("deleted");
    let restored =
        stage.server.command_of(&["restore", "--from", "s3://shelf/some/where", "--json"]).output();
    let restored = restored.expect("run");
    let told: Value = serde_json::from_slice(&restored.stdout).unwrap_or_else(|_| panic!("{restored:?}"));
    assert_eq!(
        (&told["sessions"], &told["agents"], &told["failed"]),
        (&json!(2), &json!(1), &json!([])),
        "{told}"
    );
    // Works without the object store, because everything is local now.
    stage.server.set("ASH_SNAPSHOT_URL", "");
    stage.server.launch().await;
    let client = stage.server.client();
    assert_eq!(client.session(&ended).await["status"], "ended");
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!((&receipt["source"], &receipt["lost"]), (&json!("local"), &json!([])), "{receipt}");
    assert_eq!(client.exec(&id, "cat a.txt").await["stdout"], "one");
    let again = stage.server.command_of(&["restore", "--from", "s3://shelf"]).output().expect("run");
    assert!(!again.status.success(), "not beside a server");
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("another ash server"), "{said}");
}

/// Unused sessions are evicted to the object store, but never if that does not have them, and come back on use.
#[tokio::test]
async fn unused_sessions_exist_only_in_the_object_store_and_come_back() {
    let often = [("ASH_COLD_TTL", "0"), ("ASH_GC_EVERY", "1"), ("ASH_GC_GRACE", "0")];
    let mut stage = Stage::set(&often).await;
    let client = stage.server.client();
    let (used, unused) = (client.create().await, client.create().await);
    client.say(&used, "write a.txt: one").await;
    client.say(&unused, "run: head -c 300000 /dev/urandom > noise; sha256sum noise > sum").await;
    client.action(&unused, "stop").await;
    until_remote(&client, &unused).await;
    let live = stage.server.live(&unused).await;
    eventually("its tree is let go of", async || (!live.join("tree").exists()).then_some(())).await;
    assert!(stage.server.live(&used).await.join("tree").exists(), "the other one is in use");
    let receipt = client.action(&unused, "resume").await["resume"].clone();
    assert_eq!(receipt["verified"], true, "{receipt}");
    assert_eq!(client.exec(&unused, "sha256sum -c sum").await["exitCode"], 0);

    client.action(&unused, "stop").await;
    until_remote(&client, &unused).await;
    let pack = receipt["compared"]["tree"].as_str().expect("a tree")[64..].to_owned();
    let pack = stage.server.data.join(format!("repo/default/{pack}.pack"));
    eventually("its packs are let go of", async || {
        (!live.join("tree").exists() && !pack.exists()).then_some(())
    })
    .await;
    let receipt = client.action(&unused, "resume").await["resume"].clone();
    assert_eq!((&receipt["source"], &receipt["verified"]), (&json!("cloud"), &json!(true)), "{receipt}");
    assert_eq!(client.exec(&unused, "sha256sum -c sum").await["exitCode"], 0);

    // Data without a remote copy is not evicted.
    stage.s3.stop();
    client.say(&unused, "write only-here.txt: yes").await;
    client.action(&unused, "stop").await;
    let swept = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("ash_gc_runs_total")).map(str::to_owned);
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).expect("a count")
    };
    let metrics = async || {
        let answer = client.request(reqwest::Method::GET, "/metrics").send().await.expect("metrics");
        answer.text().await.expect("text")
    };
    let before = swept(&metrics().await);
    eventually("two more collections", async || (swept(&metrics().await) > before + 1).then_some(())).await;
    assert!(live.join("tree").exists(), "the only copy");
    client.action(&unused, "resume").await;
    assert_eq!(client.exec(&unused, "cat only-here.txt").await["stdout"], "yes");
    stage.server.kill9();
}

/// Data that is sealed here is also sealed there, including titles and final texts, and its key alone opens it.
#[tokio::test]
async fn a_sealed_tenant_is_sealed_far_away_too() {
    let keys = tempfile::tempdir().expect("a directory");
    let far = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", far.path().display());
    let path = keys.path().display().to_string();
    let mut server = Server::with(&[("ASH_SNAPSHOT_KEYS", &path), ("ASH_SNAPSHOT_URL", &url)]).await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "say: nobody may read of the tower").await;
    until_remote(&client, &id).await;
    let mut waiting = vec![far.path().to_owned()];
    let mut seen = 0;
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(&dir).expect("listed").flatten() {
            if entry.path().is_dir() {
                waiting.push(entry.path());
                continue;
            }
            let bytes = std::fs::read(entry.path()).expect("read");
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains("tower"), "{}: {text}", entry.path().display());
            seen += 1;
        }
    }
    assert!(seen >= 4, "packs, a manifest and an agent: {seen}");
    let listed = server.command_of(&["sessions", "--from", &url, "--json"]).output().expect("run");
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("json");
    assert_eq!(
        (&listed["sessions"][0]["id"], &listed["sessions"][0]["sealed"]),
        (&json!(id), &json!(true)),
        "{listed}"
    );
    server.lose_the_machine().await;
    let client = server.client();
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!((&receipt["source"], &receipt["verified"]), (&json!("cloud"), &json!(true)), "{receipt}");
    server.kill9();

    std::fs::remove_dir_all(&server.data).expect("deleted");
    let others = tempfile::tempdir().expect("a directory");
    server.set("ASH_SNAPSHOT_KEYS", &others.path().display().to_string());
    server.launch().await;
    let path = format!("/api/sessions/{id}/resume");
    let (status, refused) = server.client().ask(reqwest::Method::POST, &path, Some(json!({}))).await;
    assert!(status.is_server_error() || status.is_client_error(), "{status}: {refused}");
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("key")), "{refused}");
}

/// No process in a sandbox and no shim knows the keys or the address of the object store.
#[tokio::test]
async fn the_object_stores_keys_stay_outside() {
    let stage = Stage::set(&[("AWS_SECRET_ACCESS_KEY", "an-object-stores-secret")]).await;
    let client = stage.server.client();
    let id = client.create().await;
    let shown = client.exec(&id, "cat /proc/*/environ | tr '\\0' '\\n'; env").await["stdout"].to_string();
    assert!(shown.contains("HOME"), "or nothing was looked at: {shown}");
    let processes = stage.server.processes(&id).await;
    for pid in [processes.shim, processes.bwrap, processes.init, processes.agent] {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environ = String::from_utf8_lossy(&environ).into_owned();
        for secret in ["an-object-stores-secret", "AWS_", "s3://shelf"] {
            assert!(!environ.contains(secret) && !shown.contains(secret), "{secret} in {environ} or {shown}");
        }
    }
    client.say(&id, "write a.txt: one").await;
    until_remote(&client, &id).await;
    for place in ["live", "repo", "ash.db", "ash.db-wal"] {
        let place = stage.server.data.join(place);
        let mut grep = std::process::Command::new("grep");
        let found = grep.args(["-rlaF", "an-object-stores-secret"]).arg(place).output().expect("grep");
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    }
}

/// While the object store is slow to look up a session of one tenant, requests of other tenants are answered.
#[tokio::test]
async fn a_slow_look_up_of_one_tenant_keeps_no_other_waiting() {
    const SECRET: &str = "a-secret-for-internal-use";
    let shelf = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", shelf.path().display());
    let server = Server::with(&[("ASH_SNAPSHOT_URL", &url), ("ASH_INTERNAL_SECRET", SECRET)]).await;
    let tenant = async |name: &str| {
        let minted =
            server.client_with(SECRET).post("/api/internal/api-keys", json!({ "tenantId": name })).await;
        server.client_with(minted["key"].as_str().expect("a key"))
    };
    let (slow, other) = (tenant("slow").await, tenant("other").await);
    let resume = "/api/sessions/unknown/resume";
    server.arm("far.back.slow", Point::Pause);
    let held = tokio::spawn(async move { slow.ask(Method::POST, resume, None).await.0 });
    server.reached("far.back.slow").await;
    let answered = tokio::time::timeout(Duration::from_secs(20), other.ask(Method::POST, resume, None)).await;
    assert_eq!(answered.expect("answered meanwhile").0, StatusCode::NOT_FOUND);
    assert!(!held.is_finished());
    server.release("far.back.slow");
    assert_eq!(held.await.expect("no panic"), StatusCode::NOT_FOUND);
}
