//! A server with one session, and damage to the files behind it.

use crate::support::{Client, Server, remote::until_remote};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

pub struct Stage {
    pub server: Server,
    pub bucket: Option<PathBuf>,
}

/// Collects unreferenced data at once.
const EAGER: [(&str, &str); 4] =
    [("ASH_GC_EVERY", "1"), ("ASH_GC_GRACE", "0"), ("ASH_REMOTE_GC_EVERY", "1"), ("ASH_TRASH_TTL", "0")];

impl Stage {
    /// Without an object store.
    pub async fn alone() -> Stage {
        Stage::with(&[]).await
    }

    pub async fn with(env: &[(&str, &str)]) -> Stage {
        let all: Vec<_> = EAGER.iter().chain(env).copied().collect();
        let server = Server::with(&all).await;
        create(&server.client()).await;
        Stage { server, bucket: None }
    }

    pub async fn with_bucket(env: &[(&str, &str)]) -> Stage {
        let all: Vec<_> = EAGER.iter().chain(env).copied().collect();
        let mut server = Server::prepare(&all);
        let bucket = server.dir.join("bucket");
        fs::create_dir(&bucket).expect("a bucket");
        server.set("ASH_SNAPSHOT_URL", &format!("file://{}", bucket.display()));
        server.launch().await;
        create(&server.client()).await;
        Stage { server, bucket: Some(bucket) }
    }

    /// Writes a file named after the turn.
    pub async fn turn(&self, number: u64) {
        let client = self.server.client();
        client.say("s", &format!("write {}.txt: {number}", name(number))).await;
        if self.bucket.is_some() {
            until_remote(&client, "s").await;
        }
    }

    pub async fn resume(&self) -> Value {
        self.server.client().action("s", "resume").await["resume"].clone()
    }

    pub async fn file(&self, path: &str) -> String {
        let client = self.server.client();
        let got = client.request(reqwest::Method::GET, &format!("/api/sessions/s/files/{path}"));
        let got = got.header("accept", "application/octet-stream").send().await.expect("an answer");
        if !got.status().is_success() {
            return format!("{}", got.status());
        }
        got.text().await.expect("text").trim().to_owned()
    }

    pub async fn messages(&self) -> Value {
        crate::support::remote::messages(&self.server.client(), "s").await
    }

    /// The names of all local packs.
    pub fn packs(&self) -> BTreeSet<String> {
        names(&self.server.data.join("repo/default"))
            .into_iter()
            .filter(|name| name.ends_with(".pack"))
            .collect()
    }

    pub fn bucket(&self) -> &Path {
        self.bucket.as_deref().expect("a bucket")
    }

    /// The session's manifests in the bucket, oldest first.
    pub fn manifests(&self) -> Vec<PathBuf> {
        let dir = self.bucket().join("tenants/default/sessions/s");
        let names = names(&dir).into_iter().filter(|name| name.ends_with(".json"));
        names.map(|name| dir.join(name)).collect()
    }
}

async fn create(client: &Client) {
    client.post("/api/sessions", json!({ "agent": "default", "sessionId": "s" })).await;
}

pub fn name(turn: u64) -> &'static str {
    ["zero", "one", "two", "three", "four", "five"][usize::try_from(turn).expect("a small number")]
}

const DATABASE: [&str; 2] = ["ash.db", "ash.db-wal"];

/// Copies the database of a stopped server.
pub fn back_up(server: &Server) {
    let to = server.dir.join("backup");
    fs::create_dir_all(&to).expect("a directory");
    for name in DATABASE {
        fs::copy(server.data.join(name), to.join(name)).ok();
    }
}

/// Restores the copy of the database.
pub fn restore_backup(server: &Server) {
    for name in ["ash.db", "ash.db-wal", "ash.db-shm"] {
        fs::remove_file(server.data.join(name)).ok();
    }
    for name in DATABASE {
        fs::copy(server.dir.join("backup").join(name), server.data.join(name)).ok();
    }
}

/// `ash repair` on the data of a stopped server.
pub fn repair(server: &Server, args: &[&str]) -> (i32, Value) {
    let all: Vec<&str> = ["repair", "--json"].iter().chain(args).copied().collect();
    let output = server.command_of(&all).output().expect("ash repair");
    let told = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap_or(-1), told)
}

pub fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

pub fn flip(file: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(file).expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("written");
}

/// Truncates a file in the middle.
pub fn cut(file: &Path) {
    let file = fs::File::options().write(true).open(file).expect("a file");
    let size = file.metadata().expect("a size").len();
    file.set_len(size / 2).expect("cut");
}

pub fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a kind").is_dir() {
            true => copy_dir(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).expect("a copy")),
        }
    }
}

/// All files below a directory, by path.
pub fn files_beneath(dir: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => all.extend(files_beneath(&entry.path())),
            false => drop(all.insert(entry.path())),
        }
    }
    all
}
