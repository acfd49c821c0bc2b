//! Data that is not needed any more is deleted from the object store as well, and nothing else is.

use crate::support::{
    Client, Server, disk_mb, eventually,
    remote::{files, messages, until_remote},
};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Keeps only the newest checkpoint of each workspace, and collects at once.
const SOON: [(&str, &str); 6] = [
    ("ASH_KEEP_LAST", "1"),
    ("ASH_KEEP_HOURLY", "0"),
    ("ASH_KEEP_DAILY", "0"),
    ("ASH_GC_EVERY", "1"),
    ("ASH_GC_GRACE", "0"),
    ("ASH_REMOTE_GC_EVERY", "0"),
];
const NOISE: u64 = 600_000;

struct Stage {
    server: Server,
    shelf: PathBuf,
    _dir: tempfile::TempDir,
}

impl Stage {
    async fn set(more: &[(&str, &str)]) -> Stage {
        let dir = tempfile::tempdir().expect("a directory");
        let shelf = dir.path().join("shelf");
        std::fs::create_dir(&shelf).expect("made");
        let mut server = Server::prepare(&SOON);
        server.set("ASH_SNAPSHOT_URL", &format!("file://{}", shelf.display()));
        more.iter().for_each(|(name, value)| server.set(name, value));
        server.launch().await;
        Stage { server, shelf, _dir: dir }
    }

    /// Names and sizes below a folder of this tenant.
    fn there(&self, beneath: &str) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        walk(&self.shelf.join("tenants/default").join(beneath), &mut found);
        found
    }

    fn bytes(&self) -> u64 {
        self.there("packs").iter().map(|(_, size)| size).sum()
    }

    async fn lose_the_machine(&mut self) {
        self.server.kill9();
        std::fs::remove_dir_all(&self.server.data).expect("deleted");
        self.server.take_over().await;
    }
}

fn walk(dir: &Path, found: &mut Vec<(String, u64)>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        // Files that are being deleted may be gone by now.
        let Ok(is) = entry.metadata() else { continue };
        match is.is_dir() {
            true => walk(&entry.path(), found),
            false => found.push((entry.file_name().to_string_lossy().into_owned(), is.len())),
        }
    }
}

async fn make_noise(client: &Client, id: &str) {
    client.say(id, &format!("run: head -c {NOISE} /dev/urandom > noise; sha256sum noise > sum")).await;
}

/// Waits until the size is at most a fifth above this.
async fn until_shrunk(stage: &Stage, to: u64) {
    eventually("unneeded objects go from the object store", async || {
        (stage.bytes() < to + NOISE / 5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn checkpoints_that_the_rules_drop_are_deleted_from_the_object_store() {
    let mut stage = Stage::set(&[]).await;
    let client = stage.server.client();
    let id = client.create().await;
    for _ in 0..4 {
        make_noise(&client, &id).await;
        until_remote(&client, &id).await;
    }
    until_shrunk(&stage, NOISE).await;
    let manifests = format!("sessions/{id}");
    eventually("the manifest names one checkpoint and the log after it", async || {
        (stage.there(&manifests).len() <= 2).then_some(())
    })
    .await;
    let (before, said) = (files(&client, &id).await, messages(&client, &id).await);

    // The remaining objects still restore everything.
    stage.lose_the_machine().await;
    let client = stage.server.client();
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!((&receipt["source"], &receipt["lost"]), (&json!("cloud"), &json!([])), "{receipt}");
    assert_eq!((files(&client, &id).await, messages(&client, &id).await), (before, said));
    let listed = client.get(&format!("/api/sessions/{id}/checkpoints")).await["checkpoints"].clone();
    let there = listed.as_array().expect("a list").iter().filter(|one| one["removed"] != true);
    let there: Vec<_> = there.map(|one| &one["number"]).collect();
    assert_eq!(there, [&json!(4)], "what was given up stays so: {listed}");
    // Still true after the restored server has collected as well.
    make_noise(&client, &id).await;
    until_remote(&client, &id).await;
    until_shrunk(&stage, NOISE).await;
    let said = messages(&client, &id).await;
    stage.lose_the_machine().await;
    let client = stage.server.client();
    client.action(&id, "resume").await;
    assert_eq!(messages(&client, &id).await, said);
    assert_eq!(client.exec(&id, "sha256sum -c sum").await["exitCode"], 0);
}

/// Packs that exist only in the store are collected as well, once their session has continued.
#[tokio::test]
async fn packs_that_only_the_object_store_has_are_compacted_there() {
    let stage = Stage::set(&[("ASH_COLD_TTL", "0")]).await;
    let client = stage.server.client();
    let (id, other) = (client.create().await, client.create().await);
    for one in [&id, &other] {
        make_noise(&client, one).await;
        client.action(one, "stop").await;
        until_remote(&client, one).await;
    }
    let here = stage.server.data.join("repo/default");
    let packs = || {
        let mut found = Vec::new();
        walk(&here, &mut found);
        let packs = found.iter().filter(|(name, _)| name.ends_with(".pack"));
        packs.map(|(_, size)| size).sum::<u64>()
    };
    eventually("the packs are let go of", async || (packs() < NOISE / 2).then_some(())).await;
    client.action(&id, "resume").await;
    make_noise(&client, &id).await;
    until_remote(&client, &id).await;
    until_shrunk(&stage, 2 * NOISE).await;
    assert!(stage.bytes() > 2 * NOISE, "both need theirs");
    for one in [&id, &other] {
        client.action(one, "resume").await;
        assert_eq!(client.exec(one, "sha256sum -c sum").await["exitCode"], 0);
    }
}

/// A new machine that does not know any session yet keeps all data that those sessions need.
#[tokio::test]
async fn no_data_of_unknown_sessions_is_deleted() {
    let mut stage = Stage::set(&[]).await;
    let client = stage.server.client();
    let (id, other) = (client.create().await, client.create().await);
    for one in [&id, &other] {
        make_noise(&client, one).await;
        client.action(one, "stop").await;
        until_remote(&client, one).await;
    }
    let (agents, noise) = (stage.there("agents"), stage.bytes());
    stage.lose_the_machine().await;
    let client = stage.server.client();
    client.action(&id, "resume").await;
    make_noise(&client, &id).await;
    until_remote(&client, &id).await;
    eventually("all sessions are known", async || {
        (client.get("/api/sessions").await["sessions"].as_array().map(Vec::len) == Some(2)).then_some(())
    })
    .await;
    until_shrunk(&stage, noise).await;
    assert_eq!(stage.there("agents"), agents);
    client.action(&other, "resume").await;
    assert_eq!(client.exec(&other, "sha256sum -c sum").await["exitCode"], 0);
}

/// A purged session is inaccessible at once, and in the end deleted everywhere; a fork of it keeps everything it needs.
#[tokio::test]
async fn purged_data_is_deleted_everywhere() {
    let mut stage = Stage::set(&[("ASH_TRASH_TTL", "0")]).await;
    let client = stage.server.client();
    let empty = stage.bytes();
    let (id, parent) = (client.create().await, client.create().await);
    for one in [&id, &parent] {
        make_noise(&client, one).await;
        until_remote(&client, one).await;
    }
    let forked = client.post(&format!("/api/sessions/{parent}/fork"), json!({})).await;
    let fork = forked["session"]["id"].as_str().expect("an id").to_owned();
    for one in [&id, &parent] {
        assert_eq!(client.delete(&format!("/api/sessions/{one}?purge=true")).await["purged"], true);
        let (status, _) = client.ask(reqwest::Method::GET, &format!("/api/sessions/{one}"), None).await;
        assert_eq!(status, 404);
    }
    eventually("nothing tells of it any more", async || {
        // Everything except its tombstone.
        (stage.there(&format!("sessions/{id}")).len() == 1).then_some(())
    })
    .await;
    let packs = stage.server.data.join("repo/default");
    eventually("its files are gone from here and there", async || {
        let mut here = Vec::new();
        walk(&packs, &mut here);
        let here: u64 = here.iter().map(|(_, size)| size).sum();
        (stage.bytes() < empty + NOISE * 6 / 5 && here < NOISE * 6 / 5).then_some(())
    })
    .await;
    let (status, _) = client.ask(reqwest::Method::POST, &format!("/api/sessions/{id}/resume"), None).await;
    assert_eq!(status, 404, "nor does it come back");
    let said = messages(&client, &fork).await;
    assert!(said.to_string().contains("urandom"), "its parent's log: {said}");
    client.action(&fork, "resume").await;
    assert_eq!(client.exec(&fork, "sha256sum -c sum").await["exitCode"], 0);
    client.say(&fork, "say: on it goes").await;
    until_remote(&client, &fork).await;
    let said = messages(&client, &fork).await;

    stage.lose_the_machine().await;
    let client = stage.server.client();
    client.action(&fork, "resume").await;
    assert_eq!(messages(&client, &fork).await, said);
    assert_eq!(client.exec(&fork, "sha256sum -c sum").await["exitCode"], 0);
}

/// Below the minimum of free space no work starts, and replicated data is evicted early.
#[tokio::test]
async fn with_little_space_no_work_starts_and_replicated_data_is_evicted() {
    let mut stage = Stage::set(&[]).await;
    let client = stage.server.client();
    let safe = client.create().await;
    make_noise(&client, &safe).await;
    client.action(&safe, "stop").await;
    until_remote(&client, &safe).await;
    let live = stage.server.live(&safe).await;
    stage.server.stop().await;
    stage.server.set("ASH_MIN_FREE_MB", &disk_mb().to_string());
    stage.server.launch().await;
    let client = stage.server.client();
    eventually("it is safe, and goes", async || (!live.join("tree").exists()).then_some(())).await;
    let health = client.get("/health").await;
    assert_eq!(health["status"], "full", "{health}");
    let (status, refused) =
        client.ask(reqwest::Method::POST, &format!("/api/sessions/{safe}/resume"), Some(json!({}))).await;
    assert_eq!((status.as_u16(), &refused["code"]), (503, &json!("disk_full")), "{refused}");
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("ASH_MIN_FREE_MB")), "{refused}");
    assert!(!files(&client, &safe).await.is_empty(), "what is there can be read");
}
