//! Objects that vanish from the object store, or are truncated there, are noticed and uploaded again. Until then `remote`
//! does not report them as stored.

use crate::{
    proxy::{Line, Proxy},
    servers,
    support::{
        Client, Server, eventually,
        remote::{files, messages, until_remote},
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

const OFTEN: (&str, &str) = ("ASH_REMOTE_CHECK_EVERY", "1");

fn beneath(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(is) = entry.metadata() else { continue };
            match is.is_dir() {
                true => waiting.push(entry.path()),
                false => _ = found.insert(entry.path(), is.len()),
            }
        }
    }
    found
}

fn packs(server: &Server) -> BTreeSet<String> {
    let all = std::fs::read_dir(server.data.join("repo/default")).expect("a repository").flatten();
    let names = all.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_suffix(".pack").map(str::to_owned)).collect()
}

/// Runs one more turn, and returns its pack.
async fn noise(server: &Server, id: &str, name: &str) -> String {
    let before = packs(server);
    let prompt = format!("run: head -c 20000 /dev/urandom > {name}; sha256sum {name} >> sums");
    server.client().say(id, &prompt).await;
    let new: Vec<String> = packs(server).difference(&before).cloned().collect();
    let [pack] = &new[..] else { panic!("one pack: {new:?}") };
    pack.clone()
}

async fn until_remote_is(client: &Client, id: &str, number: u64) {
    eventually(&format!("remote is {number}"), async || {
        (client.session(id).await["checkpoint"]["remote"] == number).then_some(())
    })
    .await;
}

/// From the object store alone.
async fn comes_back(server: &mut Server, id: &str) {
    let client = server.client();
    let (before, said) = (files(&client, id).await, messages(&client, id).await);
    server.lose_the_machine().await;
    let client = server.client();
    let receipt = client.action(id, "resume").await["resume"].clone();
    assert_eq!((&receipt["source"], &receipt["lost"]), (&json!("cloud"), &json!([])), "{receipt}");
    assert!(files(&client, id).await == before, "files are not what they were");
    assert_eq!(messages(&client, id).await, said);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_covers_only_stored_packs_until_a_lost_pack_is_sent_again() {
    let (s3, keys) = servers::Server::moto();
    s3.make_s3_bucket("shelf");
    let proxy = Proxy::start(&s3.url(), "/shelf", 1).await;
    let mut server =
        Server::prepare(&[("ASH_SNAPSHOT_URL", "s3://shelf"), ("ASH_REMOTE_TIMEOUT", "1"), OFTEN]);
    keys.iter().for_each(|(name, value)| server.set(name, value));
    server.set("AWS_ENDPOINT_URL", &proxy.url);
    server.launch().await;
    let client = server.client();
    let id = client.create().await;
    noise(&server, &id, "one").await;
    let second = noise(&server, &id, "two").await;
    noise(&server, &id, "three").await;
    until_remote_is(&client, &id, 3).await;

    // The fourth checkpoint is under way, and relies on the stored objects.
    let manifests = format!("tenants/default/sessions/{id}/");
    proxy.set(Line::Holds(manifests.clone()));
    noise(&server, &id, "four").await;
    eventually("its manifest is on the way", async || proxy.is_silent().then_some(())).await;
    s3.delete_from_s3(&format!("/shelf/tenants/default/packs/{second}"));
    until_remote_is(&client, &id, 1).await;
    // The manifest arrives, but an object that it needs does not.
    proxy.set(Line::CutAfter(manifests));
    eventually("the rest cannot be sent", async || {
        (client.get("/health").await["objectStore"]["status"] == "trouble").then_some(())
    })
    .await;
    let checkpoint = client.session(&id).await["checkpoint"].clone();
    assert_eq!(checkpoint, json!({ "local": 4, "remote": 1 }));

    // A turn with remote durability waits for all objects that it needs.
    proxy.set(Line::Holds(format!("tenants/default/packs/{second}")));
    eventually("the lost pack is on the way", async || proxy.is_silent().then_some(())).await;
    let path = format!("/api/sessions/{id}/messages");
    let message = json!({ "content": "write five.txt: 5", "durability": "remote" });
    let answer = client.request(reqwest::Method::POST, &path).json(&message).send().await.expect("sent");
    let text = answer.text().await.expect("a stream");
    assert!(text.contains("\"code\":\"not_remote\""), "{text}");
    assert_eq!(client.session(&id).await["checkpoint"], json!({ "local": 5, "remote": 1 }));
    proxy.set(Line::Good);
    until_remote(&client, &id).await;
    comes_back(&mut server, &id).await;
    assert_eq!(server.client().exec(&id, "sha256sum -c sums").await["exitCode"], 0);
}

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
        let mut server = Server::prepare(&[OFTEN]);
        server.set("ASH_SNAPSHOT_URL", &format!("file://{}", shelf.display()));
        more.iter().for_each(|(name, value)| server.set(name, value));
        server.launch().await;
        Stage { server, shelf, _dir: dir }
    }

    fn there(&self, what: &str) -> BTreeMap<PathBuf, u64> {
        beneath(&self.shelf.join("tenants/default").join(what))
    }
}

#[tokio::test]
async fn truncated_objects_are_replaced_and_an_empty_store_gets_everything() {
    let mut stage = Stage::set(&[]).await;
    let client = stage.server.client();
    let (id, stopped) = (client.create().await, client.create().await);
    for one in [&id, &stopped] {
        noise(&stage.server, one, "one").await;
        noise(&stage.server, one, "two").await;
        until_remote(&client, one).await;
    }
    client.action(&stopped, "stop").await;
    let forked = client.post(&format!("/api/sessions/{stopped}/fork"), json!({})).await;
    let fork = forked["session"]["id"].as_str().expect("an id").to_owned();
    client.say(&fork, "write fork.txt: three").await;
    until_remote(&client, &fork).await;
    let told = |id: &str| stage.there(&format!("sessions/{id}"));
    eventually("how the log went on is there", async || (told(&stopped).len() == 3).then_some(())).await;

    let whole = [stage.there("packs"), stage.there("agents"), told(&id)].concat_all();
    for (path, size) in &whole {
        let file = std::fs::File::options().write(true).open(path).expect("opened");
        file.set_len(size / 2).expect("cut");
    }
    eventually("everything is whole again", async || {
        let now = [stage.there("packs"), stage.there("agents"), told(&id)].concat_all();
        (now == whole).then_some(())
    })
    .await;

    let (packs, agents) = (stage.there("packs"), stage.there("agents"));
    // Compared by their last events, because a repeated upload has the current epoch.
    let events = |id: &str| -> BTreeSet<String> {
        let names = told(id).into_keys().filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
        names.filter_map(|name| Some(name.split_once('-')?.1.to_owned())).collect()
    };
    let manifests: BTreeMap<&str, BTreeSet<String>> =
        [&id, &stopped, &fork].map(|id| (id.as_str(), events(id))).into();
    // Renamed at once, because the server writes claims all the time.
    let gone = stage.server.dir.join("gone");
    std::fs::create_dir(&gone).expect("made");
    for entry in std::fs::read_dir(&stage.shelf).expect("listed").flatten() {
        std::fs::rename(entry.path(), gone.join(entry.file_name())).expect("moved");
    }
    eventually("everything is there again", async || {
        let all = manifests.iter().all(|(id, there)| events(id) == *there);
        let mark = stage.shelf.join("ash-bucket").exists();
        // A capture between two turns may have added packs since.
        let (packs_now, agents_now) = (stage.there("packs"), stage.there("agents"));
        let has_packs = packs.iter().all(|(path, size)| packs_now.get(path) == Some(size));
        (all && mark && has_packs && agents_now == agents).then_some(())
    })
    .await;
    for one in [&id, &stopped, &fork] {
        until_remote(&client, one).await;
    }
    comes_back(&mut stage.server, &fork).await;
    let client = stage.server.client();
    for one in [&id, &stopped] {
        client.action(one, "resume").await;
        assert_eq!(client.exec(one, "sha256sum -c sums").await["exitCode"], 0);
    }
}

trait ConcatAll {
    fn concat_all(self) -> BTreeMap<PathBuf, u64>;
}

impl<const N: usize> ConcatAll for [BTreeMap<PathBuf, u64>; N] {
    fn concat_all(self) -> BTreeMap<PathBuf, u64> {
        self.into_iter().flatten().collect()
    }
}

/// No server can upload it again. The server reports the loss, and finds the pack when it comes back.
#[tokio::test]
async fn a_pack_that_only_the_store_had_is_reported_lost() {
    let mut stage = Stage::set(&[]).await;
    let client = stage.server.client();
    let id = client.create().await;
    let first = noise(&stage.server, &id, "one").await;
    let second = noise(&stage.server, &id, "two").await;
    client.action(&id, "stop").await;
    until_remote(&client, &id).await;
    stage.server.stop().await;
    for (name, value) in [("ASH_COLD_TTL", "0"), ("ASH_GC_EVERY", "1"), ("ASH_GC_GRACE", "0")] {
        stage.server.set(name, value);
    }
    stage.server.launch().await;
    let client = stage.server.client();
    eventually("its packs are only there", async || {
        let here = packs(&stage.server);
        (!here.contains(&first) && !here.contains(&second)).then_some(())
    })
    .await;
    let (there, away) = (stage.shelf.join("tenants/default/packs"), stage.shelf.join(&first));
    std::fs::rename(there.join(&first), &away).expect("renamed");
    let lost = async || -> Option<Value> {
        let health = client.get("/health").await;
        let mut all = health["trouble"].as_array().cloned().unwrap_or_default();
        all.retain(|trouble| trouble["code"] == "remote_packs_lost");
        all.pop()
    };
    let told = eventually("the loss is reported", lost).await;
    assert!(told["error"].as_str().is_some_and(|error| error.contains(&first)), "{told}");
    assert_eq!(client.session(&id).await["checkpoint"]["remote"], Value::Null, "both need it");
    std::fs::rename(&away, there.join(&first)).expect("renamed");
    eventually("it is found", async || lost().await.is_none().then_some(())).await;
    until_remote(&client, &id).await;
    client.action(&id, "resume").await;
    assert_eq!(client.exec(&id, "sha256sum -c sums").await["exitCode"], 0);
}
