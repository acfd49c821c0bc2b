//! Hostile archives over HTTP, and a server that is killed during an unpack. The tests of the reader check each kind of
//! attack; these tests check that none of them passes the API.

use crate::{
    files::{Files, Tar, gzip, start},
    support::{Client, Point, Server, eventually},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, write::GzEncoder};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    io::Write,
    path::{Path, PathBuf},
};
use tar::EntryType;

fn good() -> Tar {
    Tar::default().file("first", "x")
}

#[tokio::test]
async fn a_bad_archive_is_refused_as_a_whole_with_a_code_and_leaves_nothing() {
    let (server, files) = start().await;
    let (before, outside) = (files.list().await, server.data.join("outside"));
    std::fs::write(&outside, "mine").expect("written");
    let mut cut = good().file("second", "y").gzip();
    cut.truncate(cut.len() - 20);
    let mut flipped = good().file("second", &"z".repeat(10_000)).gzip();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0xff;
    let mut short = good().entry(EntryType::Regular, "second", "", &[b'x'; 5000]).0;
    short.truncate(2048);
    let pax =
        Tar::default().entry(EntryType::XHeader, "pax", "", b"19 path=../../../x\n").file("harmless", "x");
    let after = [good().0, vec![0; 1024], good().0, vec![0; 1024]].concat();
    let (bad, damaged) = ("archive_bad_entry", "archive_damaged");
    #[rustfmt::skip]
    let refused = [
        ("absolute", good().file("/tmp/ash-pwned", "x").gzip(), 400, bad),
        ("parent", good().file("../pwned", "x").gzip(), 400, bad),
        ("parent in the middle", good().file("a/../../pwned", "x").gzip(), 400, bad),
        ("empty name", good().file("", "x").gzip(), 400, bad),
        ("PAX name", pax.gzip(), 400, bad),
        ("a folder that is a file", good().file("first/below", "x").gzip(), 400, bad),
        ("link out", good().entry(EntryType::Symlink, "link", &outside.display().to_string(), b"").gzip(), 400, bad),
        ("through a link", good().entry(EntryType::Symlink, "l", "d", b"").file("l/f", "x").gzip(), 400, bad),
        ("hard link out", good().entry(EntryType::Link, "hard", "/etc/passwd", b"").gzip(), 400, bad),
        ("device", good().entry(EntryType::Char, "device", "", b"").gzip(), 400, bad),
        ("disk", good().entry(EntryType::Block, "disk", "", b"").gzip(), 400, bad),
        ("FIFO", good().entry(EntryType::Fifo, "fifo", "", b"").gzip(), 400, bad),
        ("sparse", good().entry(EntryType::GNUSparse, "sparse", "", b"").gzip(), 400, bad),
        ("cut gzip", cut, 400, damaged),
        ("damaged gzip", flipped, 400, damaged),
        ("cut tar", gzip(&short), 400, damaged),
        ("entries after the end", gzip(&after), 400, damaged),
        ("two in one", [good().gzip(), good().gzip()].concat(), 400, damaged),
        ("not a tar", gzip(&[b'x'; 4096]), 400, "archive_unsupported"),
        ("zip", b"PK\x03\x04 and so on".to_vec(), 400, "archive_unsupported"),
        ("too large", good().entry(EntryType::Regular, "bomb", "", &vec![0; 101 << 20]).gzip(), 413, "archive_too_large"),
    ];
    for state in ["active", "stop"] {
        if state == "stop" {
            files.client.action(&files.id, "stop").await;
        }
        for (what, archive, wanted, code) in &refused {
            let (status, answer) = files.unbundle(archive).await;
            assert_eq!((status, answer["code"].as_str()), (*wanted, Some(*code)), "{what}: {answer}");
            assert_eq!(files.list().await, before, "{what} left something");
        }
    }
    let (_, answer) = files.unbundle(&good().file("../pw\nned", "x").gzip()).await;
    assert!(
        answer["error"].as_str().is_some_and(|text| text.contains(r#""../pw\nned" has an empty"#)),
        "{answer}"
    );
    let (status, answer) = files.unbundle(&[good().0, vec![0; 1024]].concat()).await;
    assert_eq!((status, &answer["written"]), (200, &json!(1)), "a plain tar");
    assert_eq!(std::fs::read_to_string(&outside).expect("read"), "mine");
    assert!(!PathBuf::from("/tmp/ash-pwned").exists());
    assert!(!server.log().contains("panicked"));
    assert!(!server.live(&files.id).await.join("uploads").exists());
}

#[tokio::test]
async fn an_obstacle_to_one_file_stops_all_of_them() {
    let (server, files) = start().await;
    files.client.exec(&files.id, "mkdir -p taken/by; echo old > changed; ln -s taken link").await;
    let before = files.list().await;
    for last in ["taken/by", "changed/below", "link/through"] {
        let archive = Tar::default().file("a/new", "x").file("changed", "new").file(last, "x").gzip();
        let archive = if last == "changed/below" { good().file(last, "x").gzip() } else { archive };
        let (status, answer) = files.unbundle(&archive).await;
        assert_eq!((status, answer["code"].as_str()), (409, Some("in_the_way")), "{last}: {answer}");
        assert_eq!((files.list().await, files.text("changed").await), (before.clone(), "old\n".to_owned()));
    }
    let (status, _) = files.unbundle(&Tar::default().file("a/new", "x").file("changed", "new").gzip()).await;
    assert_eq!((status, files.text("changed").await), (200, "new".to_owned()));
    assert!(!server.live(&files.id).await.join("uploads").exists());
}

fn peak(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Half a gigabyte of zeros after this, compressed.
fn bomb(start: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(start).expect("packed");
    for _ in 0..512 {
        gzip.write_all(&vec![0; 1 << 20]).expect("packed");
    }
    gzip.finish().expect("packed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bomb_costs_no_memory_and_affects_no_other_session() {
    let (server, files) = start().await;
    let neighbour = server.client().create().await;
    let sized = |size: usize| good().entry(EntryType::Regular, "zeros", "", &vec![0; size]).0;
    let bombs = [bomb(&[good().0, vec![0; 1024]].concat()), bomb(&sized(90 << 20)[..4096])];
    // As large as a compressed bomb, and harmless.
    let noise: String =
        (0..600_000u32).map(|n| char::from(b'a' + (n.wrapping_mul(2_654_435_761) >> 28) as u8)).collect();
    let (status, answer) = files.unbundle(&good().file("noise", &noise).gzip()).await;
    assert_eq!(status, 200, "{answer}");
    server.client().text(&neighbour, "hello").await;
    let before = (peak(&server), files.list().await);
    for bomb in &bombs {
        let (refused, said) =
            tokio::join!(files.unbundle(bomb), files.client.text(&neighbour, "run: echo here"));
        assert_eq!((refused.0, refused.1["code"].as_str()), (413, Some("archive_ratio")), "{}", refused.1);
        assert_eq!(said.trim(), "here");
    }
    let grown = peak(&server) - before.0;
    assert!(grown < 32 << 20, "the server took {} MiB more", grown >> 20);
    assert_eq!(files.list().await, before.1);
}

const MANY: usize = 800;

fn version(number: usize) -> Vec<u8> {
    let file = |tar: Tar, n: usize| tar.file(&format!("many/{}/f{n}", n % 7), &format!("version {number}"));
    (0..MANY).fold(Tar::default(), file).gzip()
}

fn versions(workspace: &Path) -> (usize, BTreeSet<String>) {
    let paths = (0..MANY).map(|n| workspace.join(format!("many/{}/f{n}", n % 7)));
    let found: Vec<String> = paths.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    (found.len(), found.into_iter().collect())
}

#[tokio::test]
async fn an_upload_is_there_whole_or_not_at_all_wherever_the_server_is_killed() {
    let (mut server, mut files) = start().await;
    let live = server.live(&files.id).await;
    let workspace = live.join("tree/workspace");
    files.client.action(&files.id, "stop").await;
    assert_eq!(files.unbundle(&version(0)).await.0, 200);
    let mut stands = 0;
    for (number, (point, how, finished)) in [
        ("upload.file", Point::AbortAt(MANY as u64 / 2), false),
        ("upload.written", Point::Abort, false),
        ("upload.whole", Point::Abort, true),
        ("merge.step", Point::AbortAt(1), true),
        ("merge.step", Point::AbortAt(MANY as u64 / 2), true),
    ]
    .into_iter()
    .enumerate()
    {
        let (next, when) = (number + 1, format!("{point}, {how:?}"));
        server.arm(point, how);
        let body = json!({ "bundle": STANDARD.encode(version(next)) });
        let answer = files.client.request(Method::POST, &files.path("workspace")).json(&body).send().await;
        assert!(answer.is_err(), "{when}: {answer:?}");
        server.died_at(point).await;
        let (_, at_death) = versions(&workspace);
        assert_eq!(at_death.len() > 1, point == "merge.step", "{when}: {at_death:?}");
        server.launch().await;
        files.client = server.client();
        // The next request finds the result complete.
        assert!(files.list().await.len() >= MANY);
        stands = if finished { next } else { stands };
        let (count, found) = versions(&workspace);
        assert_eq!((count, found), (MANY, BTreeSet::from([format!("version {stands}")])), "{when}");
        assert!(!live.join("uploads").exists(), "{when}: something is left");
    }
    let text = files.client.text(&files.id, "run: cat many/*/* | sort -u").await;
    assert!(text.starts_with(&format!("version {stands}")), "{text}");
}

#[tokio::test]
async fn the_next_start_removes_uploads_of_a_killed_server() {
    let (mut server, mut files) = start().await;
    let live = server.live(&files.id).await;
    server.kill9();
    let scratch = server.data.join("scratch/left");
    let upload = live.join("uploads/left/files");
    for dir in [&scratch, &upload] {
        std::fs::create_dir_all(dir).expect("made");
        std::fs::write(dir.join("half"), "x").expect("written");
    }
    server.launch().await;
    files.client = server.client();
    eventually("they are gone", async || (!scratch.exists() && !live.join("uploads").exists()).then_some(()))
        .await;
    assert!(!files.list().await.contains_key("half"));
}

async fn limited(client: &Client, limits: Value) -> Files {
    client.deploy("tester").await;
    let body = json!({ "agent": "tester", "limits": limits });
    let id = client.post("/api/sessions", body).await["session"]["id"].as_str().expect("an id").to_owned();
    Files { client: client.clone(), id }
}

/// An archive of this many files with this many bytes each, which neither holes nor compression can shrink.
fn heavy(count: usize, bytes: usize) -> Vec<u8> {
    let noise: Vec<u8> = (0..bytes as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8 | 1).collect();
    let file = |tar: Tar, n: usize| tar.entry(EntryType::Regular, &format!("heavy{n}"), "", &noise);
    (0..count).fold(Tar::default(), file).gzip()
}

#[tokio::test]
async fn uploads_count_against_the_disk_limit_of_a_session() {
    let server = Server::start().await;
    let files = limited(&server.client(), json!({ "diskMb": 8, "maxFiles": 60 })).await;
    let refused = |(status, answer): (u16, Value), what: &str| {
        assert_eq!((status, answer["code"].as_str()), (413, Some("disk_limit")), "{what}: {answer}");
    };
    refused(files.unbundle(&heavy(9, 1 << 20)).await, "alone too much");
    assert_eq!(files.unbundle(&heavy(5, 1 << 20)).await.0, 200);
    let before = files.list().await;
    let more = Tar::default().entry(EntryType::Regular, "more", "", &vec![1; 4 << 20]).gzip();
    refused(files.unbundle(&more).await, "too much with what is there");
    assert_eq!(files.unbundle(&heavy(5, 1 << 20)).await.0, 200, "in place of the same");
    let many = (0..60).fold(Tar::default(), |tar, n| tar.file(&format!("f{n}"), "x")).gzip();
    refused(files.unbundle(&many).await, "too many");
    let write = async |size: usize| {
        let body = json!({ "files": [{ "path": "one", "content": STANDARD.encode(vec![1; size]) }] });
        let (status, answer) = files.client.ask(Method::POST, &files.path("files"), Some(body)).await;
        (status.as_u16(), answer)
    };
    refused(write(4 << 20).await, "one file");
    assert_eq!(files.list().await, before, "nothing of all that is there");
    let (status, answer) = write(1 << 20).await;
    assert_eq!((status, &answer["files"][0]["written"]), (200, &json!(true)), "{answer}");
    assert_eq!(files.client.status(&files.id).await, "active", "the session was not ended for it");
    assert_eq!(files.client.text(&files.id, "run: ls | wc -l").await.trim(), (before.len() + 1).to_string());
}

#[tokio::test]
async fn files_of_an_agent_that_do_not_go_together_make_no_version() {
    let server = Server::start().await;
    let client = server.client();
    let deploy = async |paths: &[&str]| {
        let files: Vec<Value> = paths.iter().map(|path| json!({ "path": path, "content": "eA==" })).collect();
        let (status, answer) =
            client.ask(Method::POST, "/api/agents", Some(json!({ "name": "a", "files": files }))).await;
        (status, answer["code"].as_str().map(ToOwned::to_owned))
    };
    let invalid = (StatusCode::BAD_REQUEST, Some("invalid_path".to_owned()));
    let deep = "d/".repeat(200) + "f";
    for paths in [&["a", "a/b"][..], &["a/b", "a"], &["../x"], &["..\\x"], &["/x"], &["a//b"], &[&deep]] {
        assert_eq!(deploy(paths).await, invalid, "{paths:?}");
    }
    assert_eq!(client.ask(Method::GET, "/api/agents/a", None).await.0, StatusCode::NOT_FOUND);
    assert_eq!(deploy(&["a/b", "c", "a/d", "c"]).await, (StatusCode::CREATED, None));
    assert_eq!(std::fs::read_dir(server.data.join("scratch")).expect("read").count(), 0);
}
