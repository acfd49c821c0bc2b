//! Lost files: because the machine failed during a save, or because an agent without a sandbox removed them. The receipt
//! names the loss, the rest is kept, and the session continues from its last checkpoint.

use crate::support::{Client, Server, ok};
use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::Method;
use serde_json::{Value, json};

/// The state after a reboot.
fn change_boot(live: &std::path::Path) {
    let stamp = std::fs::read(live.join("stamp")).expect("a stamp");
    let mut stamp: Value = serde_json::from_slice(&stamp).expect("json");
    stamp["boot"] = json!("another-boot");
    std::fs::write(live.join("stamp"), stamp.to_string()).expect("write");
}

/// Kills everything after the answer and before its checkpoint. False: the capture was faster.
async fn crash_while_saving(server: &mut Server, id: &str, megabytes: u32) -> bool {
    let client = server.client();
    let before = client.session(id).await["checkpoint"]["local"].clone();
    client.exec(id, &format!("head -c {megabytes}000000 /dev/urandom > ballast")).await;
    let note = server.note(id).await;
    let shim = note["shim"]["pid"].as_u64().expect("a pid") as u32;
    let mut stream = client.send(id, "run: echo later > later.txt").await;
    stream.until("turn_complete").await;
    server.kill9();
    crate::support::signal(shim, libc::SIGKILL);
    let live = std::fs::read_dir(server.data.join("live")).expect("live").flatten().next();
    change_boot(&live.expect("one").path());
    server.launch().await;
    server.client().session(id).await["checkpoint"]["local"] == before
}

#[tokio::test]
async fn after_a_crash_of_the_machine_the_files_of_finished_turns_are_named_and_the_next_turn_is_saved() {
    let mut server = Server::start().await;
    let id = server.client().create().await;
    server.client().say(&id, "write a.txt: kept").await;
    let mut megabytes = 10;
    while !crash_while_saving(&mut server, &id, megabytes).await {
        assert!(megabytes < 5000, "a capture that takes no time");
        server.client().action(&id, "resume").await;
        server.client().exec(&id, "rm later.txt").await;
        server.client().say(&id, "write a.txt: kept").await;
        megabytes *= 4;
    }
    let client = server.client();
    client.until_status(&id, "paused").await;
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!((&receipt["verified"], &receipt["from"]), (&json!(false), &json!("checkpoint")), "{receipt}");
    let salvage = receipt["salvage"].as_u64().expect("a number");
    let diff = client.get(&format!("/api/sessions/{id}/checkpoints/{salvage}/diff")).await;
    assert!(diff["files"].to_string().contains("later.txt"), "{diff}");

    client.say(&id, "write b.txt: next").await;
    let all = client.get(&format!("/api/sessions/{id}/events?limit=1000")).await["events"].clone();
    let failed = all
        .as_array()
        .expect("a list")
        .iter()
        .rev()
        .find(|event| event["data"].as_str().is_some_and(|data| data.contains("checkpoint_failed")));
    let failed = seconds(&failed.expect("a save that failed")["createdAt"]);
    let checkpoints = client.get(&format!("/api/sessions/{id}/checkpoints")).await;
    let saved = seconds(&checkpoints["checkpoints"][0]["at"]);
    let (lost, took) = (receipt["lost"].to_string(), (saved - failed).rem_euclid(86400.0));
    // A failed save is retried after 10 s; the save of another turn does not wait for that.
    assert!(
        lost.contains("finished turn") && lost.contains("later.txt") && took < 10.0,
        "the next turn was saved after {took} s; {receipt}"
    );
    client.action(&id, "stop").await;
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert!(!receipt["lost"].to_string().contains("later.txt"), "once: {receipt}");
}

/// The seconds since midnight of an ISO 8601 time.
fn seconds(time: &Value) -> f64 {
    let clock = time.as_str().expect("a time").split(['T', 'Z']).nth(1).expect("a time of the day");
    clock.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().expect("a number"))
}

/// No response is an internal error.
async fn proper(client: &Client, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
    let (status, body) = client.ask(method.clone(), path, body).await;
    assert!(status.as_u16() < 500, "{method} {path}: {status} {body}");
    (status.as_u16(), body)
}

async fn is_back(client: &Client, id: &str, way: &str) {
    let read = client.get(&format!("/api/sessions/{id}/files/a.txt?format=json")).await;
    assert_eq!(read["content"], "kept", "{way}");
    assert_eq!(client.exec(id, "cat a.txt").await["stdout"], "kept", "{way}");
}

#[tokio::test]
async fn without_walls_an_agent_that_removes_its_own_files_comes_back_and_can_be_ended() {
    let mut server = Server::prepare(&[]);
    server.set("ASH_SANDBOX", "none");
    server.launch().await;
    let client = server.client();
    let elsewhere = server.dir.join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("made");
    let link = format!("rm -rf \"$PWD\"; ln -s {} \"$PWD\"", elsewhere.display());
    let (above, all) = ("rm -rf \"${PWD%/*}\"", "rm -rf \"${PWD%/*/*}\"");
    let ways = ["rm -rf \"$PWD\"", above, all, &link];
    for way in ways {
        let id = client.create().await;
        let at = |rest: &str| format!("/api/sessions/{id}{rest}");
        client.say(&id, "write a.txt: kept").await;
        let remove = async || {
            let body = json!({ "content": format!("run: {way}") });
            let request = client.request(Method::POST, &at("/messages")).header("accept", "application/json");
            ok(request.json(&body).send().await.expect("an answer")).await;
        };
        remove().await;
        let (_, listed) = proper(&client, Method::GET, &at("/files"), None).await;
        assert!(listed.to_string().contains("a.txt"), "{way}: {listed}");
        proper(&client, Method::POST, &at("/exec"), Some(json!({ "command": "true" }))).await;
        proper(&client, Method::POST, &at("/pause"), Some(json!({}))).await;
        let (status, resumed) = proper(&client, Method::POST, &at("/resume"), Some(json!({}))).await;
        let receipt = &resumed["resume"];
        assert_eq!((status, &receipt["from"]), (200, &json!("checkpoint")), "{way}: {resumed}");
        assert!(receipt["lost"].to_string().contains("finished turn"), "{way}: {receipt}");
        is_back(&client, &id, way).await;

        remove().await;
        proper(&client, Method::POST, &at("/stop"), Some(json!({}))).await;
        let (status, resumed) = proper(&client, Method::POST, &at("/resume"), Some(json!({}))).await;
        assert_eq!((status, &resumed["resume"]["from"]), (200, &json!("checkpoint")), "{way}: {resumed}");
        is_back(&client, &id, way).await;

        remove().await;
        let files = json!({ "files": [{ "path": "new.txt", "content": STANDARD.encode("new") }] });
        let (status, written) = proper(&client, Method::POST, &at("/files"), Some(files)).await;
        assert_eq!(status, 200, "{way}: {written}");
        assert!(client.text(&id, "read new.txt").await.contains("new"), "{way}");
        is_back(&client, &id, way).await;

        remove().await;
        assert!(client.text(&id, "read a.txt").await.contains("kept"), "{way}: a message wakes it, too");

        remove().await;
        assert_eq!(proper(&client, Method::DELETE, &at(""), None).await.0, 200, "{way}");
        assert_eq!(client.status(&id).await, "ended", "{way}");
    }
    assert!(elsewhere.read_dir().expect("there").next().is_none(), "nothing was written through the link");
}
