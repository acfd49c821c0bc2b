//! The conversation of a session as items: what an agent said and did, at any checkpoint, in pages of any length.

use crate::{
    log::pages,
    support::{Server, claude::Stage},
};
use reqwest::Method;
use serde_json::{Value, json};

/// The types of the blocks of all items, by role.
fn shape(items: &[Value]) -> Vec<String> {
    let blocks = items.iter().flat_map(|item| {
        let blocks = item["blocks"].as_array().expect("blocks").iter();
        blocks.map(|block| {
            let word = block["text"].as_str().or(block["name"].as_str()).unwrap_or_default();
            // The model repeats a message without a directive, with the name of a file.
            let word = if word.starts_with("You said") { "You said" } else { word };
            format!(
                "{} {} {word}",
                item["role"].as_str().expect("a role"),
                block["type"].as_str().expect("a type")
            )
        })
    });
    blocks.map(|line| line.trim().to_owned()).collect()
}

#[tokio::test]
async fn a_conversation_has_thoughts_images_calls_with_results_and_no_rewound_messages() {
    let stage = Stage::set().await;
    let client = stage.server.client();
    let id = stage.create().await;
    let path = format!("/api/sessions/{id}/conversation?");
    let picture = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png",
        "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==" } });
    let words = "think: I look first\nrun: echo hello > note; cat note\nsay: all done";
    let with_picture = json!([{ "type": "text", "text": "look" }, picture]);
    let send = async |content: Value| {
        let request = client.request(Method::POST, &format!("/api/sessions/{id}/messages"));
        let request = request.header("accept", "application/json").json(&json!({ "content": content }));
        let done = crate::support::ok(request.send().await.expect("sent")).await;
        assert_eq!(done["status"], "done", "{done}");
        done["checkpoint"].as_u64().expect("a checkpoint")
    };
    send(json!(words)).await;
    let first = send(with_picture).await;
    let second = send(json!("say: to be undone")).await;
    let one = client.get(&format!("{path}checkpoint={first}")).await;
    let two = client.get(&path).await;
    client.post(&format!("/api/sessions/{id}/rewind"), json!({ "checkpoint": first })).await;
    assert_eq!(client.get(&path).await, one, "as it was then");
    send(json!("say: instead")).await;

    let items = client.get(&path).await["items"].as_array().expect("items").clone();
    let user = format!("user text {words}");
    let at_first = [
        user.as_str(),
        "assistant thinking",
        "assistant tool_call Bash",
        "assistant text The output begins with: hello\nall done",
        "user text look",
        "user image",
        "assistant text You said",
    ];
    let expected = [&at_first[..], &["user text say: instead", "assistant text instead"]].concat();
    assert_eq!(shape(&items), expected, "{items:#?}");
    let blocks: Vec<&Value> =
        items.iter().flat_map(|item| item["blocks"].as_array().expect("blocks")).collect();
    assert_eq!(
        (&blocks[1]["thinking"], &blocks[2]["input"]["command"]),
        (&json!("I look first"), &json!("echo hello > note; cat note"))
    );
    assert_eq!(blocks[5], &picture);
    assert_eq!(blocks[2]["result"], json!({ "content": "hello", "isError": false }));
    let answers: Vec<&Value> = items.iter().filter(|item| item["role"] == "assistant").collect();
    assert!(
        answers.iter().all(|item| item["usage"]["output_tokens"].is_u64() && item["turn"].is_string()),
        "{items:#?}"
    );
    let with_two_lines =
        answers.iter().find(|item| item["events"].as_array().is_some_and(|events| events.len() > 1));
    assert!(with_two_lines.is_some(), "thought and call are one message: {items:#?}");

    // Checkpoints: as of then, also on the branch that the rewind left.
    assert_eq!(shape(one["items"].as_array().expect("items")), at_first);
    let at_second = [&at_first[..], &["user text say: to be undone", "assistant text to be undone"]].concat();
    assert_eq!(shape(two["items"].as_array().expect("items")), at_second);
    assert_eq!(client.get(&format!("{path}checkpoint={second}")).await, two);
    let (status, problem) = client.ask(Method::GET, &format!("{path}checkpoint=999"), None).await;
    assert_eq!((status.as_u16(), &problem["code"]), (404, &json!("checkpoint_not_found")));
    let everything = client.get(&format!("{path}all=true")).await["items"].as_array().expect("items").clone();
    assert_eq!(shape(&everything), [&at_second[..], &expected[at_first.len()..]].concat());

    for limit in [1, 2, 3] {
        assert_eq!(pages(&client, &path, "items", limit).await, items, "{limit} at a time");
        assert_eq!(pages(&client, &format!("{path}all=true&"), "items", limit).await, everything);
    }
    // A fork has the conversation of its parent.
    client.post(&format!("/api/sessions/{id}/fork"), json!({ "sessionId": "copy" })).await;
    assert_eq!(pages(&client, "/api/sessions/copy/conversation?", "items", 1).await, items);
}

#[tokio::test]
async fn the_built_in_agents_conversation_has_calls_with_results_and_no_withdrawn_message() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "write note: hello\nread note\nslow 1: done").await;
    let mut held = client.send(&id, "hold go: on and on").await;
    held.until("text_delta").await;
    let waiting = client.send(&id, "never sent").await;
    let queue = client.get(&format!("/api/sessions/{id}/queue")).await["queue"].clone();
    let turn = queue[1]["turn"].as_str().expect("a waiting turn").to_owned();
    let path = format!("/api/sessions/{id}/conversation?");
    let words = async |query: &str| client.get(&format!("{path}{query}")).await.to_string();
    assert!(words("").await.contains("never sent"), "it waits");
    client.delete(&format!("/api/sessions/{id}/queue/{turn}")).await;
    assert!(!words("").await.contains("never sent"));
    assert!(words("all=true").await.contains("never sent"));
    let mut later = client.send(&id, "slow 1: after the checkpoint").await;
    client.exec(&id, "touch go").await;
    let done = held.until("done").await.pop().expect("a frame");
    later.until("done").await;
    // A message that waited at a checkpoint is not part of it.
    assert!(words("").await.contains("after the checkpoint"));
    let then = words(&format!("checkpoint={}", done.data["checkpoint"])).await;
    assert!(then.contains("on and on") && !then.contains("after the checkpoint"), "{then}");
    drop(waiting);
    let items = client.get(&path).await["items"].as_array().expect("items").clone();
    let calls: Vec<&Value> = items
        .iter()
        .flat_map(|item| item["blocks"].as_array().expect("blocks"))
        .filter(|block| block["type"] == "tool_call")
        .collect();
    let read = &calls[1]["result"];
    assert!(read["content"].as_str().is_some_and(|text| text.starts_with("hello")), "{items:#?}");
    assert_eq!(read["isError"], false);
    assert!(calls.len() == 2 && items.iter().all(|item| item["parent"].is_null()), "{items:#?}");
    assert_eq!(pages(&client, &path, "items", 1).await, items);
}
