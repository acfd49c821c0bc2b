//! A repository without write access: answers stay valid, the server reports that the files are not saved, and it retries
//! with growing delays.

use crate::support::{Server, ok};
use reqwest::Method;
use serde_json::json;
use std::{fs::Permissions, os::unix::fs::PermissionsExt};

/// An ordinary user, because file modes do not restrict root.
const USER: u32 = 61_031;

#[tokio::test]
async fn a_capture_that_keeps_failing_backs_off_and_says_when_the_next_try_is() {
    let server = Server::of_user(USER, &[]).await;
    let client = server.client();
    client.deploy("tester").await;
    let id = client.create().await;
    assert_eq!(client.say(&id, "write first: 1").await["status"], "done");
    let repository = server.data.join("repo/default");
    let set_mode =
        |mode| std::fs::set_permissions(&repository, Permissions::from_mode(mode)).expect("a mode");
    set_mode(0o500);
    let before = client.session_seq(&id).await;
    let body = json!({ "content": "write second: 2" });
    let path = format!("/api/sessions/{id}/messages");
    let request = client.request(Method::POST, &path).header("accept", "application/json").json(&body);
    let answer = ok(request.send().await.expect("answered")).await;
    assert_eq!(answer["error"]["code"], "checkpoint_failed", "{answer}");

    let mut stream = client.follow(&id, &before).await;
    for seconds in [10, 20] {
        let frames = stream.until("error").await;
        let failure = &frames.last().expect("a frame").data;
        let error = failure["error"].as_str().expect("words");
        assert!(error.ends_with(&format!("; the next try is in {seconds} s")), "{failure}");
    }
    set_mode(0o700);
    assert_eq!(client.say(&id, "write third: 3").await["status"], "done");
    client.action(&id, "stop").await;
    let files = client.get(&format!("/api/sessions/{id}/files")).await;
    let names: Vec<&str> =
        files["files"].as_array().expect("a list").iter().filter_map(|f| f["path"].as_str()).collect();
    assert!(["first", "second", "third"].iter().all(|name| names.contains(name)), "{files}");
}
