//! The log of a session: what its stream sent, in pages.

use crate::support::{Client, DEADLINE, Server};
use reqwest::Method;
use serde_json::{Value, json};

/// What a stream of complete events sent up to the end of a turn: the text of each frame.
async fn streamed(client: &Client, id: &str, turns: usize) -> Vec<String> {
    let path = format!("/api/sessions/{id}/stream?includePartialMessages=false");
    let mut answer = client.request(Method::GET, &path).send().await.expect("a stream");
    let mut text = String::new();
    while text.matches("\nevent: done\n").count() < turns || !text.ends_with("\n\n") {
        let chunk = tokio::time::timeout(DEADLINE, answer.chunk()).await.expect("it goes on");
        text.push_str(std::str::from_utf8(&chunk.expect("a part").expect("not the end")).expect("UTF-8"));
    }
    text.split_terminator("\n\n").map(str::to_owned).collect()
}

/// A frame of a stream as an entry of the log.
fn entry(frame: &str) -> Option<String> {
    let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name));
    let (id, event, data) = (field("id: ")?, field("event: ")?, field("data: ")?);
    Some(format!(r#"{{"id":"{id}","event":"{event}","data":{data}}}"#))
}

/// All entries of a list, in pages of this length.
pub(crate) async fn pages(client: &Client, path: &str, list: &str, limit: usize) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), json!(0));
    while !after.is_null() {
        let page = client.get(&format!("{path}limit={limit}&after={after}")).await;
        let items = page[list].as_array().expect("a list");
        assert!(items.len() <= limit || list == "events", "{page}");
        all.extend(items.iter().cloned());
        after = page["nextAfter"].clone();
    }
    all
}

#[tokio::test]
async fn the_log_is_what_the_stream_sent_to_the_byte_in_pages_of_any_length() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "run: printf 'a\\342\\200\\250b ä \\n'; echo \"\\\"c\\\"\" >&2").await;
    client.say(&id, "write note: hello\nread note\nslow 1: done").await;
    let frames = streamed(&client, &id, 2).await;
    let expected: Vec<String> = frames.iter().filter_map(|frame| entry(frame)).collect();
    assert!(expected.iter().any(|entry| entry.contains("tool_use")) && expected.len() > 12, "{expected:#?}");
    let answer = client.request(Method::GET, &format!("/api/sessions/{id}/log?limit=1000")).send().await;
    let text = answer.expect("an answer").text().await.expect("text");
    let count = expected.len();
    // Events may follow the end of the turn.
    let sent = format!(r#"{{"events":[{}"#, expected.join(","));
    assert!(text.starts_with(&sent), "{text}\n\nis not, of {count} frames:\n\n{sent}");
    let whole = client.get(&format!("/api/sessions/{id}/log?limit=1000")).await;
    assert_eq!(whole["nextAfter"], Value::Null);
    for limit in [1, 2, 7] {
        let paged = pages(&client, &format!("/api/sessions/{id}/log?"), "events", limit).await;
        assert_eq!(json!(paged), whole["events"], "{limit} at a time");
    }
    // A stream continues after the last entry of the log.
    let last = whole["events"].as_array().and_then(|events| events.last()).expect("an entry")["id"].clone();
    let mut stream = client.follow(&id, last.as_str().expect("an id")).await;
    client.say(&id, "hello").await;
    let more = stream.until("done").await;
    assert!(more.iter().all(|frame| {
        whole["events"].as_array().is_some_and(|seen| seen.iter().all(|entry| entry["id"] != *frame.id))
    }));
}
