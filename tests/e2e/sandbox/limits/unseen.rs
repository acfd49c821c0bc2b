//! Usage that is easy to miss, and usage that is easily attributed to the wrong session.

use super::{Neighbour, ORDINARY_USER, exec, limited, servers};
use crate::support::{Client, Server, as_root, eventually};
use serde_json::json;
use std::time::Instant;

/// Writes to the reader of its inherited output, and counts how much was read.
const LEFT: &str = "(n=0; while head -c 65536 /dev/zero; do n=$((n+65536)); echo $n > next; mv next taken; done) & echo left";
/// Far more than the output limit allows in this time.
const MUCH: u64 = 32 << 20;

#[tokio::test]
async fn discarded_output_of_a_leftover_process_is_not_read_faster() {
    for server in servers().await {
        let client = server.client();
        let kb = 64;
        let bound = limited(&client, json!({ "outputKbPerSecond": kb })).await;
        let free = limited(&client, json!({ "outputKbPerSecond": 0 })).await;
        let neighbour = Neighbour::at_work(&server).await;
        let began = Instant::now();
        for id in [&bound, &free] {
            let (_, said) = exec(&client, id, LEFT).await;
            assert!(said["stdout"].as_str().is_some_and(|text| text.contains("left")), "{said}");
        }
        let most = eventually("who may say what they like says much", async || {
            (taken(&client, &free).await > MUCH).then_some(())
        });
        most.await;
        neighbour.did_not_notice().await;
        let taken = taken(&client, &bound).await;
        // A burst of four seconds passes at once, plus the content of the pipes.
        let most = kb * 1024 * (5 + began.elapsed().as_secs()) + (512 << 10);
        assert!((1..=most).contains(&taken), "{taken} bytes, of at most {most}");
        // The session waits for its background process, and still answers.
        assert!(client.text(&bound, "are you there?").await.contains("This is turn"));
    }
}

async fn taken(client: &Client, id: &str) -> u64 {
    let (_, said) = exec(client, id, "cat taken 2>/dev/null || echo 0").await;
    said["stdout"].as_str().and_then(|text| text.trim().parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

#[tokio::test]
async fn as_root_without_walls_the_machines_files_count_for_no_session() {
    assert!(as_root(), "only root can be both");
    let bare = [("ASH_SANDBOX", "none")];
    for server in [Server::with(&bare).await, Server::of_user(ORDINARY_USER, &bare).await] {
        let client = server.client();
        let id = limited(&client, json!({ "maxFiles": 1000 })).await;
        client.text(&id, "write mine: kept").await;
        exec(&client, &id, "head -c 3000000 /dev/zero > more").await;
        eventually("the server has measured and recorded its files", async || {
            let session = client.session(&id).await;
            assert_eq!(session["status"], "active", "{session}");
            (session["resources"]["diskBytes"].as_u64() > Some(2_900_000)).then_some(())
        })
        .await;
        assert_eq!(client.text(&id, "run: cat mine").await, "kept");
    }
}
