//! Many sessions at once.

use crate::support::Server;
use futures::future::join_all;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_sessions_with_ten_turns_each_do_not_mix() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    let ids = join_all((0..50).map(|_| client.create())).await;
    let talk = async |place: usize, id: &String| {
        for turn in 1..=10 {
            let frames = client.send(id, &format!("session {place} says {turn}")).await.rest().await;
            let text: String = frames
                .iter()
                .filter(|f| f.event == "text_delta")
                .filter_map(|f| f.data["delta"].as_str())
                .collect();
            let expected = format!("This is turn {turn}. I remember {} earlier messages", (turn - 1) * 2);
            assert!(text.starts_with(&expected), "{text}");
            assert!(text.contains(&format!("You said: \"session {place} says {turn}\"")), "{text}");
            assert_eq!(frames.last().expect("done").data["checkpoint"], turn);
            let strangers = frames
                .iter()
                .filter_map(|f| f.data["sessionId"].as_str())
                .filter(|session| *session != id)
                .count();
            assert_eq!(strangers, 0);
        }
    };
    join_all(ids.iter().enumerate().map(|(place, id)| talk(place, id))).await;
    let health = client.get("/health").await;
    assert_eq!((health["activeSessions"].as_u64(), health["pool"]["waiting"].as_u64()), (Some(50), Some(50)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_messages_at_once_are_each_answered_once_in_order() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let send =
        async |n: usize| client.send(&id, &format!("run: echo message {n} >> order")).await.rest().await;
    let streams = join_all((0..20).map(send)).await;
    for frames in &streams {
        let turns: Vec<&str> = frames.iter().filter_map(|f| f.data["turn"].as_str()).collect();
        assert!(turns.iter().all(|turn| *turn == turns[0]), "one turn in one stream");
        let results = frames.iter().filter(|f| f.event == "turn_complete").count();
        assert_eq!((results, frames.last().expect("done").event.as_str()), (1, "done"));
    }
    let whole = client.get(&format!("/api/sessions/{id}/messages?limit=1000")).await;
    let queued: Vec<String> = whole["messages"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|message| message["role"] == "user")
        .filter_map(|message| message["content"].as_str())
        .filter_map(|content| content.split("echo ").nth(1)?.split(" >>").next().map(str::to_owned))
        .collect();
    let order = client.text(&id, "read order").await;
    assert_eq!(
        order.lines().collect::<Vec<_>>(),
        queued,
        "they ran in the order in which they were accepted"
    );
    assert_eq!(queued.len(), 20);
}
