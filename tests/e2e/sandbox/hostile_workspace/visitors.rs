//! Clients of the API: every operation on a session and on its files.

use super::{LARGEST_BUNDLE, SLUG, Stage, bundle, create, outside::is_gone};
use crate::support::{Dice, Server};
use ash_snapshot::Folder;
use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use reqwest::Method;
use serde_json::{Value, json};
use std::io::Read;

/// Entries that are not links, and not what they seem either.
const OTHERS: [&str; 16] = [
    "hard",
    "up/in/f",
    "down/in/sub/f",
    "up/in/new",
    "pipe/f",
    "pipe/p",
    "socket/f",
    "socket/s",
    "small",
    "node_modules/huge",
    "new%0Aline",
    "whiteout",
    "shut",
    "closed/f",
    "closed/new",
    "long/x",
];

impl Stage {
    /// Runs every operation on a session's files.
    pub(super) async fn visit(&self, mut dice: Dice, goes_on: &dyn Fn() -> bool) {
        // Runs all operations in turn from a random start: the outcome is random, but every operation is tried.
        let first = dice.below(14) as usize;
        for what in (0..14).cycle().skip(first).take_while(|_| goes_on()) {
            let id = if dice.below(2) == 0 { self.alone.clone() } else { self.shared() };
            let session = format!("/api/sessions/{id}");
            let name = self.path(&mut dice);
            let path = format!("{session}/files/{name}");
            match what {
                0 => drop(self.get("list", &format!("{session}/files")).await),
                1 => drop(self.get("list of a workspace", &format!("/api/workspaces/{SLUG}/files")).await),
                2 => {
                    self.get("read as JSON", &format!("{path}?format=json")).await;
                    self.get("read as JSON", &format!("{session}/files/racer?format=json")).await;
                }
                3 => {
                    let names = (0..20).map(|_| self.path(&mut dice).replace("%0A", "\n"));
                    let file = |name| json!({ "path": name, "content": STANDARD.encode("written") });
                    let files: Vec<Value> = names.map(file).collect();
                    self.post("write of 20", &format!("{session}/files"), &json!({ "files": files })).await;
                }
                4 => {
                    for _ in 0..5 {
                        let path = format!("{session}/files/{}", self.path(&mut dice));
                        self.ask("delete", self.client.request(Method::DELETE, &path)).await;
                    }
                    let mine = json!({ "files": [{ "path": "mine", "content": STANDARD.encode("mine") }] });
                    self.post("write of one", &format!("{session}/files"), &mine).await;
                    let mine = format!("{session}/files/mine");
                    self.ask("delete", self.client.request(Method::DELETE, &mine)).await;
                }
                5 => self.download(&session).await,
                6 => {
                    let name = name.replace("%0A", "\n");
                    let body = json!({ "bundle": bundle(&name, b"unpacked", 0o644) });
                    self.post("upload", &format!("{session}/workspace"), &body).await;
                }
                7 => drop(self.get("diff", &format!("{session}/checkpoints/1/diff?all=true")).await),
                8 => drop(self.get("list of a checkpoint", &format!("{session}/files?checkpoint=1")).await),
                9 => {
                    let name = if dice.below(2) == 0 { "racer" } else { &name };
                    let path = format!("{session}/files/{name}?checkpoint=1");
                    self.get("read of a checkpoint", &path).await;
                }
                10 => drop(self.get("checkpoints", &format!("{session}/checkpoints")).await),
                11 => {
                    let body = json!({ "bundle": self.bundle_of_links(&mut dice) });
                    self.post("upload of links", &format!("{session}/workspace"), &body).await;
                }
                _ => drop(self.get("read", &path).await),
            }
        }
    }

    fn path(&self, dice: &mut Dice) -> String {
        // Most often the decoys.
        let most = if dice.below(2) == 0 { 4 } else { self.targets.len() as u64 };
        let number = dice.below(most);
        let pair = ["d", "l"][dice.below(2) as usize];
        let inside = ["f", "f", "f", "sub/f", "w", "new/w", "ash.db", "environ", "secret.txt", "0"];
        match dice.below(8) {
            0 => format!("{pair}{number}"),
            1 => format!("s{number}/{}", ["f", "g"][dice.below(2) as usize]),
            2 => OTHERS[dice.below(OTHERS.len() as u64) as usize].to_owned(),
            3 => format!("deep/{}f", "d/".repeat(dice.below(100) as usize)),
            _ => format!("{pair}{number}/{}", inside[dice.below(inside.len() as u64) as usize]),
        }
    }

    /// An archive that contains links, and then writes through them.
    fn bundle_of_links(&self, dice: &mut Dice) -> String {
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let target = &self.targets[dice.below(self.targets.len() as u64) as usize];
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o777);
        let kind = if dice.below(2) == 0 { tar::EntryType::Symlink } else { tar::EntryType::Link };
        header.set_entry_type(kind);
        let name = format!("link{}", dice.below(4));
        let led = tar.append_link(&mut header, &name, format!("{target}/f"));
        led.expect("written");
        let mut header = tar::Header::new_gnu();
        header.set_size(8);
        header.set_mode(0o644);
        tar.append_data(&mut header, &name, &b"unpacked"[..]).expect("written");
        STANDARD.encode(tar.into_inner().and_then(GzEncoder::finish).expect("written"))
    }

    async fn download(&self, session: &str) {
        let (status, bytes) = self.get("download", &format!("{session}/workspace")).await;
        if status == 200 {
            let mut tar = Vec::new();
            let unpacked = GzDecoder::new(&bytes[..]).take(LARGEST_BUNDLE + 1).read_to_end(&mut tar);
            assert!(unpacked.expect("gzip") as u64 <= LARGEST_BUNDLE, "more than a bundle may hold");
            self.is_clean("download", &tar);
        }
    }

    /// The complete life of a session, again and again, during the race.
    pub(super) async fn live_alone(&self, server: &Server, mut dice: Dice, goes_on: &dyn Fn() -> bool) {
        let session = format!("/api/sessions/{}", self.alone);
        self.release_racer(&self.alone).await;
        for step in (0..6).cycle().take_while(|_| goes_on()) {
            self.turn(&self.alone).await;
            match step {
                0 => drop(self.post("checkpoint", &format!("{session}/checkpoints"), &json!({})).await),
                1 => {
                    self.post("pause", &format!("{session}/pause"), &json!({})).await;
                    self.resume(&self.alone).await;
                }
                2 => {
                    self.count_swaps(&self.alone).await;
                    self.post("stop", &format!("{session}/stop"), &json!({})).await;
                    self.resume(&self.alone).await;
                    self.release_racer(&self.alone).await;
                }
                3 => self.start_cold(server).await,
                4 => {
                    self.count_swaps(&self.alone).await;
                    let newest = self.client.session(&self.alone).await["checkpoint"]["local"].as_u64();
                    let to = 1 + dice.below(newest.expect("a checkpoint"));
                    self.post("rewind", &format!("{session}/rewind"), &json!({ "checkpoint": to })).await;
                    self.resume(&self.alone).await;
                    self.release_racer(&self.alone).await;
                }
                _ => {
                    let (status, made) = self.post("fork", &format!("{session}/fork"), &json!({})).await;
                    assert!(status < 400, "{}", String::from_utf8_lossy(&made));
                    let made: Value = serde_json::from_slice(&made).expect("JSON");
                    let fork = made["session"]["id"].as_str().expect("an id").to_owned();
                    self.resume(&fork).await;
                    self.release_racer(&fork).await;
                    self.turn(&fork).await;
                    let end = self.client.request(Method::DELETE, &format!("/api/sessions/{fork}"));
                    self.ask("end", end).await;
                }
            }
        }
        self.count_swaps(&self.alone).await;
    }

    /// A session of the race loses its local data except for checkpoints; the restored files are as harmless.
    async fn start_cold(&self, server: &Server) {
        let id = create(&self.client, None).await;
        let session = format!("/api/sessions/{id}");
        self.bring_racer(&id).await;
        self.release_racer(&id).await;
        self.turn(&id).await;
        self.post("stop", &format!("{session}/stop"), &json!({})).await;
        Folder::erase(&server.live(&id).await.join("tree")).expect("erased");
        let (status, said) = self.post("cold resume", &format!("{session}/resume"), &json!({})).await;
        let said: Value = serde_json::from_slice(&said).expect("JSON");
        assert_eq!((status, &said["resume"]["from"]), (200, &json!("checkpoint")), "{said}");
        self.release_racer(&id).await;
        self.turn(&id).await;
        self.ask("end", self.client.request(Method::DELETE, &session)).await;
    }

    async fn turn(&self, id: &str) {
        let request = self.client.request(Method::POST, &format!("/api/sessions/{id}/messages"));
        let request =
            request.header("accept", "application/json").json(&json!({ "content": "write note: n" }));
        let (status, said) = self.ask("turn", request).await;
        let said: Value = serde_json::from_slice(&said).expect("JSON");
        assert_eq!((status, &said["status"]), (200, &json!("done")), "{said}");
        assert!(said["checkpoint"].is_u64(), "{said}");
    }

    async fn resume(&self, id: &str) {
        let (status, resumed) = self.post("resume", &format!("/api/sessions/{id}/resume"), &json!({})).await;
        assert!(status < 400, "{}", String::from_utf8_lossy(&resumed));
    }

    /// The workspace is deleted during the race, and created again under the same name.
    pub(super) async fn come_and_go(&self, server: &Server, goes_on: &dyn Fn() -> bool) {
        while goes_on() {
            let id = self.shared();
            self.bring_racer(&id).await;
            self.release_racer(&id).await;
            self.turn(&id).await;
            self.post("checkpoint", &format!("/api/sessions/{id}/checkpoints"), &json!({})).await;
            self.post("stop", &format!("/api/sessions/{id}/stop"), &json!({})).await;
            self.resume(&id).await;
            self.release_racer(&id).await;
            self.count_swaps(&id).await;
            let live = server.live(&id).await;
            let delete = self.client.request(Method::DELETE, &format!("/api/workspaces/{SLUG}"));
            let (status, said) = self.ask("delete a workspace", delete).await;
            assert_eq!(status, 200, "{}", String::from_utf8_lossy(&said));
            is_gone(&live);
            let new = create(&self.client, Some(SLUG)).await;
            *self.shared.lock().expect("no code panics while it holds this lock") = new;
        }
    }
}
