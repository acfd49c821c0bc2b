//! The workload of some sessions while connections and servers fail.

use super::{Stage, arrived::Arrived, fork, object_store, sessions, until_all_is_remote};
use crate::{
    proxy::Line,
    support::{
        Client, Dice, eventually,
        remote::{files, messages},
    },
};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tokio::task::JoinHandle;

/// A prompt, the file that it writes, and its content.
struct Told {
    prompt: String,
    path: String,
    text: String,
}

impl Told {
    fn while_sending() -> Told {
        let (path, text) = ("told/while-sending.txt".to_owned(), "on its way".to_owned());
        Told { prompt: format!("write {path}: {text}"), path, text }
    }
}

type Promise = ((String, String), String);

pub struct Story {
    pub stage: Stage,
    dice: Dice,
    pub ids: Vec<String>,
    /// Files that the server confirmed to a client as safe, by session and path.
    promised: BTreeMap<(String, String), String>,
    /// Checkpoints that the server reported as remote, and that are.
    pub checked: BTreeSet<(String, u64)>,
    /// How often the server died with uploads pending.
    pub cut_off: u64,
}

impl Story {
    pub async fn begin(seed: u64) -> Story {
        let stage = Stage::set(seed, &[]).await;
        let (ids, promised, checked) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        Story { stage, dice: Dice(seed), ids, promised, checked, cut_off: 0 }
    }

    /// Some sessions work, and the server dies after this many requests to the object store.
    pub async fn run(&mut self, run: u64) {
        self.stage.proxy.set(Line::Bad);
        let client = self.stage.server.client();
        if run.is_multiple_of(4) {
            // Each run has its own agent, which must arrive as well; every other run waits for the object store.
            let agent = format!("tester-{run}");
            client.deploy(&agent).await;
            let durability = if run.is_multiple_of(8) { "local" } else { "remote" };
            let made = json!({ "agent": agent, "durability": durability });
            let made = client.post("/api/sessions", made).await;
            let id = made["session"]["id"].as_str().expect("an id").to_owned();
            client.say(&id, "say: here I am").await;
            self.ids.push(id);
        }
        if run % 6 == 5 {
            let parent = &self.ids[self.dice.below(self.ids.len() as u64) as usize];
            self.ids.push(fork(&client, parent).await);
        }
        // Each turn takes two or three requests; the first ones belong to earlier runs.
        let last = self.stage.proxy.seen() + self.dice.below(14);
        let mut talks = Vec::new();
        for number in 0..3 {
            let id = self.ids[self.dice.below(self.ids.len() as u64) as usize].clone();
            talks.push(tokio::spawn(talk(client.clone(), id, self.told(run, number))));
        }
        self.cut_off += u64::from(self.watch_until(last, &talks).await);
        self.stage.server.kill9();
        for talk in talks {
            self.promised.extend(talk.await.expect("no panic"));
        }
        self.stage.server.launch().await;
        self.check_announced().await;
    }

    fn told(&mut self, run: u64, number: u64) -> Told {
        let (path, text) = (format!("told/{run}-{number}.txt"), format!("word {}", self.dice.below(1 << 40)));
        // Larger than the largest single upload.
        let large = if run % 10 == 3 && number == 0 { 17_000_000 } else { self.dice.below(60_000) };
        let prompt = match self.dice.below(3) {
            0 if large < 1_000_000 => format!("write {path}: {text}"),
            _ => {
                format!("run: mkdir -p told; printf '{text}' > {path}; head -c {large} /dev/urandom > noise")
            }
        };
        Told { prompt, path, text }
    }

    /// The connection accepts data without a response: the server dies during an upload.
    pub async fn die_while_sending(&mut self) {
        self.stage.proxy.set(Line::Holds(String::new()));
        let client = self.stage.server.client();
        let (id, told) = (self.ids[0].clone(), Told::while_sending());
        let talk = tokio::spawn(talk(client, id, told));
        let proxy = &self.stage.proxy;
        eventually("something is being sent", async || proxy.is_silent().then_some(())).await;
        self.stage.server.kill9();
        self.promised.extend(talk.await.expect("no panic"));
        self.stage.server.launch().await;
        self.check_announced().await;
    }

    /// Checks announcements until this many requests have come, none is answered, or nothing is left to upload. Returns
    /// whether uploads are left.
    async fn watch_until(&mut self, last: u64, talks: &[JoinHandle<Option<Promise>>]) -> bool {
        let client = self.stage.server.client();
        eventually("the line is used", async || {
            self.check_announced().await;
            let waiting = object_store(&client).await["waitingCheckpoints"] != 0;
            let proxy = &self.stage.proxy;
            let quiet = !waiting && talks.iter().all(JoinHandle::is_finished);
            (quiet || proxy.is_silent() || proxy.seen() >= last).then_some(waiting)
        })
        .await
    }

    /// Everything that is reported as remote has arrived before.
    pub async fn check_announced(&mut self) {
        let said = sessions(&self.stage.server.client()).await;
        let stored = self.stage.proxy.stored();
        for session in said {
            let id = session["id"].as_str().expect("an id").to_owned();
            let Some(number) = session["checkpoint"]["remote"].as_u64() else { continue };
            if self.checked.insert((id.clone(), number)) {
                Arrived::of(&stored, self.stage.repo()).check(&id, number);
            }
        }
    }

    /// Only the machine is lost.
    pub async fn end(mut self) {
        self.stage.proxy.set(Line::Good);
        let client = self.stage.server.client();
        until_all_is_remote(&client).await;
        self.check_announced().await;
        let mut before = BTreeMap::new();
        for id in &self.ids {
            before.insert(id.clone(), (files(&client, id).await, messages(&client, id).await));
        }
        for ((id, path), text) in &self.promised {
            assert_eq!(before[id].0.get(path).map(Vec::as_slice), Some(text.as_bytes()), "{path} of {id}");
        }
        self.stage.server.lose_the_machine().await;
        for id in &self.ids {
            self.check_back(id, &before[id]).await;
        }
        // Once more, over an equally bad connection.
        self.stage.server.lose_the_machine().await;
        self.stage.proxy.set(Line::Bad);
        for id in self.ids.iter().take(3) {
            self.check_back(id, &before[id]).await;
        }
    }

    async fn check_back(&self, id: &str, (files_before, said): &(BTreeMap<String, Vec<u8>>, Value)) {
        let client = self.stage.server.client();
        let receipt = client.action(id, "resume").await["resume"].clone();
        assert_eq!(
            (&receipt["source"], &receipt["verified"], &receipt["lost"]),
            (&json!("cloud"), &json!(true), &json!([])),
            "{id}: {receipt}"
        );
        let found = files(&client, id).await;
        assert_eq!(found.keys().collect::<Vec<_>>(), files_before.keys().collect::<Vec<_>>(), "{id}");
        for (path, bytes) in files_before {
            assert!(found[path] == *bytes, "{path} of {id} is not what it was");
        }
        assert_eq!(messages(&client, id).await, *said, "{id}");
    }
}

/// The turn's promise, if a client received it.
async fn talk(client: Client, id: String, told: Told) -> Option<Promise> {
    let request = client.request(Method::POST, &format!("/api/sessions/{id}/messages"));
    let request = request.header("accept", "application/json").json(&json!({ "content": told.prompt }));
    let answer = request.send().await.ok()?;
    let status = answer.status();
    let text = answer.text().await.ok()?;
    assert!(status.is_success(), "{status}: {text}");
    Some(((id, told.path), told.text))
}
