//! Floods of output from inside a sandbox: the limits stop only the session that floods.

use crate::support::{Client, Server};
use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

const MILLION: usize = 1_000_000;
/// The limit that an exec keeps of each stream.
const MOST: usize = 10 << 20;

pub async fn flood(server: &Server, id: &str, place: &Path) {
    let client = server.client();
    // Outside all of it arrives.
    let all = Command::new(place.join("attacker")).args(["lines", "1000000"]).output().expect("the attacker");
    assert_eq!(all.stdout.iter().filter(|byte| **byte == b'\n').count(), MILLION);
    assert!(all.stdout.len() > 2 * MOST);

    let done = client.exec(id, "./attacker lines 1000000; ./attacker lines 1000000 >&2").await;
    let kept = ["stdout", "stderr"].map(|name| done[name].as_str().map(str::len));
    assert_eq!((kept, done["truncated"].as_bool()), ([Some(MOST); 2], Some(true)));
    let done = client.exec(id, "./attacker endless 40").await;
    assert_eq!(
        (done["stdout"].as_str().map(str::len), done["truncated"].as_bool()),
        (Some(MOST), Some(true))
    );
    let said = client.text(id, "run: ./attacker lines 1000000").await;
    assert!(said.len() < 2 << 20, "the answer has {} bytes", said.len());

    pester(server, id).await;
    speak_in_the_agents_place(server, id).await;
    // Kills everything that it can reach, which is itself.
    fatal(&client, id, "kill -9 -1").await;
    client.until_status(id, "error").await;
    client.action(id, "resume").await;
    assert!(client.text(id, "are you there?").await.contains("This is turn"));
}

/// Clients that keep their shim's only other socket busy: the shim's cost stays bounded.
async fn pester(server: &Server, id: &str) {
    let client = server.client();
    let shim = server.processes(id).await.shim;
    let before = descriptors(shim);
    let (over, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    let watch = async {
        while !over.load(Ordering::Relaxed) {
            most.fetch_max(descriptors(shim), Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    };
    let call = async {
        let done = client.exec(id, "./attacker pester /run/ash/model.sock").await;
        over.store(true, Ordering::Relaxed);
        assert_eq!(done["stdout"], "400\n", "{done}");
    };
    tokio::join!(call, watch);
    let most = most.into_inner();
    assert!(most > before + 32, "no caller was seen: {before} descriptors, then {most}");
    assert!(most < before + 100, "{before} descriptors, then {most}");
}

/// A command that kills its own sandbox, and therefore gets no response.
async fn fatal(client: &Client, id: &str, command: &str) {
    let body = serde_json::json!({ "command": command });
    client.ask(reqwest::Method::POST, &format!("/api/sessions/{id}/exec"), Some(body)).await;
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Sandboxes of root's server cannot, because they do not own the pipe. Others can, and affect only themselves.
async fn speak_in_the_agents_place(server: &Server, id: &str) {
    let client = server.client();
    let forged = client.exec(id, "./attacker forge frames").await;
    if server.uid() == 0 {
        assert!(forged["stdout"].as_str().is_some_and(|text| text.contains("Permission denied")), "{forged}");
        return;
    }
    assert_eq!(forged["stdout"], "forged\n", "{forged}");
    assert!(client.text(id, "are you there?").await.contains("This is turn"));
    fatal(&client, id, "./attacker forge endless").await;
    client.until_status(id, "error").await;
    assert_eq!(client.session(id).await["error"]["code"], "line_too_long");
    client.action(id, "resume").await;
    assert!(client.text(id, "are you there?").await.contains("This is turn"));
}
