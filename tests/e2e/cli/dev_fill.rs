//! `ash dev fill`: many sessions for tests of lists, made without a server.

use crate::support::{Server, run_to_end};
use std::collections::BTreeSet;

#[tokio::test]
async fn sessions_are_made_in_bulk_are_listed_in_pages_and_can_be_resumed() {
    let mut server = Server::prepare(&[]);
    let (code, said) = run_to_end(server.command_of(&["dev", "fill", "--sessions", "250"])).await;
    assert_eq!(code, Some(0), "{said}");
    server.launch().await;
    let client = server.client();
    let (mut seen, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let page = client.get(&format!("/api/sessions?limit=100{cursor}")).await;
        assert_eq!(page["total"], 250);
        let ids = page["sessions"].as_array().expect("sessions").iter();
        seen.extend(ids.map(|session| session["id"].as_str().expect("an id").to_owned()));
        let Some(next) = page["nextCursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen.len(), 250);
    let id = seen.first().expect("a session");
    assert_eq!(client.action(id, "resume").await["session"]["status"], "active");
    assert_eq!(client.text(id, "run: echo works").await, "works");

    // The data directory belongs to the server that runs.
    let (code, said) = run_to_end(server.command_of(&["dev", "fill", "--sessions", "1"])).await;
    assert!(code != Some(0) && said.contains("another ash server uses"), "{said}");
}
