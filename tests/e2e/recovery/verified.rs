//! The receipt's statements about files: that they were compared, how, and what differs. The comparison follows no link
//! that replaces a tree or a part of it.

use crate::support::{Client, Server, eventually};
use serde_json::{Value, json};
use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

async fn resume(client: &Client, id: &str) -> Value {
    client.action(id, "resume").await["resume"].clone()
}

async fn cat(client: &Client, id: &str, path: &str) -> Value {
    client.exec(id, &format!("cat {path}")).await["stdout"].clone()
}

/// A stopped session with two files.
async fn at_rest(server: &Server) -> (Client, String, PathBuf) {
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "run: mkdir src && echo inside > src/main && echo kept > a.txt").await;
    client.action(&id, "stop").await;
    let live = server.live(&id).await;
    (client, id, live)
}

/// The list names every change, and nothing else is wrong.
fn names(receipt: &Value, paths: &[&str]) {
    let lost = receipt["lost"].as_array().expect("a list");
    assert_eq!((lost.len(), &receipt["verified"]), (1, &json!(false)), "{receipt}");
    let lost = lost[0].as_str().expect("a text");
    assert!(lost.contains("changed outside of the session"), "{receipt}");
    paths.iter().for_each(|path| assert!(lost.contains(path), "{path}: {receipt}"));
}

#[tokio::test]
async fn a_live_tree_is_verified_when_it_was_compared() {
    let server = Server::start().await;
    let (client, id, live) = at_rest(&server).await;
    let receipt = resume(&client, &id).await;
    assert_eq!((&receipt["from"], &receipt["verified"]), (&json!("live"), &json!(true)), "{receipt}");
    let (by, tree) = (&receipt["compared"]["by"], receipt["compared"]["tree"].as_str());
    assert!(*by == "metadata" && tree.is_some_and(|tree| tree.len() > 64), "{receipt}");

    client.action(&id, "pause").await;
    let warm = resume(&client, &id).await;
    assert_eq!((&warm["path"], &warm["compared"]), (&json!("warm"), &Value::Null), "{warm}");

    // One file with its old size, and one additional file.
    client.action(&id, "stop").await;
    std::fs::write(live.join("tree/workspace/a.txt"), "KEPT\n").expect("written");
    std::fs::write(live.join("tree/home/planted"), "new").expect("written");
    let receipt = resume(&client, &id).await;
    names(&receipt, &["a.txt", "~/planted"]);
    assert_eq!(
        (&receipt["from"], &receipt["compared"]["by"]),
        (&json!("live"), &json!("metadata")),
        "{receipt}"
    );
    assert_eq!(cat(&client, &id, "a.txt").await, "KEPT\n", "what was found stays");

    // Reported once; from then on the change belongs to the session.
    client.action(&id, "stop").await;
    assert_eq!(resume(&client, &id).await["verified"], true);

    // Without the recorded metadata the files are read.
    client.action(&id, "stop").await;
    std::fs::remove_file(live.join("index")).expect("removed");
    let receipt = resume(&client, &id).await;
    assert_eq!((&receipt["compared"]["by"], &receipt["lost"]), (&json!("content"), &json!([])), "{receipt}");
    client.action(&id, "stop").await;
    std::fs::remove_file(live.join("index")).expect("removed");
    std::fs::remove_file(live.join("tree/workspace/src/main")).expect("removed");
    let receipt = resume(&client, &id).await;
    assert_eq!(receipt["compared"]["by"], "content", "{receipt}");
    names(&receipt, &["src/main"]);

    // A checkpoint is restored byte for byte.
    client.action(&id, "stop").await;
    std::fs::remove_dir_all(live.join("tree")).expect("removed");
    let receipt = resume(&client, &id).await;
    assert_eq!(
        (&receipt["from"], &receipt["compared"]["by"], &receipt["verified"]),
        (&json!("checkpoint"), &json!("content"), &json!(true)),
        "{receipt}"
    );
}

/// Also if a checkpoint has the change before a client resumes the session.
#[tokio::test]
async fn changes_made_while_no_server_ran_are_reported() {
    let mut server = Server::start().await;
    let (_, id, live) = at_rest(&server).await;
    let (_, looked_at, other) = at_rest(&server).await;
    server.stop().await;
    for live in [&live, &other] {
        std::fs::write(live.join("tree/workspace/a.txt"), "planted").expect("written");
    }
    server.launch().await;
    let client = server.client();
    names(&resume(&client, &id).await, &["a.txt"]);
    let number = client.session(&looked_at).await["checkpoint"]["local"].clone();
    client.get(&format!("/api/sessions/{looked_at}/files")).await;
    eventually("it is captured", async || {
        (client.session(&looked_at).await["checkpoint"]["local"] != number).then_some(())
    })
    .await;
    server.crash_and_start().await;
    names(&resume(&server.client(), &looked_at).await, &["a.txt"]);
    server.client().action(&looked_at, "stop").await;
    assert_eq!(resume(&server.client(), &looked_at).await["verified"], true, "once");
}

/// Replaces an entry by a link to a folder outside, and returns that folder.
fn replace_by_link(server: &Server, at: &Path) -> PathBuf {
    let outside = server.dir.join(format!("outside-{}", uuid::Uuid::new_v4()));
    for root in [&outside, &outside.join("tree/workspace"), &outside.join("workspace")] {
        std::fs::create_dir_all(root).expect("made");
        std::fs::write(root.join("a.txt"), "secret").expect("written");
    }
    std::fs::create_dir_all(outside.join("home")).expect("made");
    std::fs::create_dir_all(outside.join("tree/home")).expect("made");
    std::fs::rename(at, server.dir.join(format!("real-{}", uuid::Uuid::new_v4()))).expect("moved");
    symlink(&outside, at).expect("linked");
    outside
}

fn listing(dir: &Path) -> String {
    let found = std::process::Command::new("find").arg(dir).args(["-printf", "%p %s %T@ %U\n"]).output();
    String::from_utf8_lossy(&found.expect("find").stdout).into_owned()
}

#[tokio::test]
async fn a_link_in_the_place_of_the_tree_or_of_a_part_of_it_is_never_followed() {
    let mut server = Server::start().await;
    for (part, while_down) in [
        ("tree", false),
        ("tree/workspace", false),
        ("tree/home", false),
        ("tree/workspace/src", false),
        ("", false),
        ("tree", true),
        ("tree/workspace", true),
        ("", true),
    ] {
        let (_, id, live) = at_rest(&server).await;
        if while_down {
            server.stop().await;
        }
        let at: PathBuf = live.join(part).components().collect();
        let outside = replace_by_link(&server, &at);
        let before = listing(&outside);
        if while_down {
            server.launch().await;
        }
        let client = server.client();
        let receipt = resume(&client, &id).await;
        let what = format!("{part:?} {while_down}: {receipt}");
        assert_eq!(receipt["from"], "checkpoint", "{what}");
        assert_eq!(cat(&client, &id, "a.txt src/main").await, "kept\ninside\n", "{what}");
        assert_eq!(cat(&client, &id, "~/.gitconfig | head -1").await, "[user]\n", "{what}");
        client.say(&id, "run: echo more > more").await;
        client.delete(&format!("/api/sessions/{id}")).await;
        assert_eq!(listing(&outside), before, "{what}: nothing outside was touched");
    }
}
