//! Workspaces with a name: several conversations, one place to work.

use crate::support::{Client, Server, eventually, signal};
use reqwest::Method;
use serde_json::{Value, json};

async fn create(client: &Client, workspace: &str) -> String {
    client.deploy("helper").await;
    let made = client.post("/api/sessions", json!({ "agent": "helper", "workspace": workspace })).await;
    assert_eq!(made["session"]["workspace"], workspace, "{made}");
    made["session"]["id"].as_str().expect("an id").to_owned()
}

async fn workspace(client: &Client, slug: &str) -> Value {
    client.get(&format!("/api/workspaces/{slug}")).await
}

/// They see each other's files and processes, and each has a conversation of its own.
#[tokio::test]
async fn sessions_of_one_workspace_share_a_sandbox() {
    let server = Server::start().await;
    let client = server.client();
    let (one, two) = (create(&client, "my-project").await, create(&client, "my-project").await);
    client.say(&one, "write a.txt: from one").await;
    assert_eq!(client.exec(&two, "cat a.txt").await["stdout"], "from one");
    client.exec(&one, "(sleep 1000 &) ; echo started").await;
    let seen = client.exec(&two, "ps ax | grep -c 'sleep [1]000'").await;
    assert_eq!(seen["stdout"], "1\n", "{seen}");
    client.say(&two, "say: hello of two").await;
    let words = async |id: &str| client.get(&format!("/api/sessions/{id}/messages")).await.to_string();
    assert!(words(&two).await.contains("hello of two") && !words(&two).await.contains("from one"));
    assert!(!words(&one).await.contains("hello of two"));
    let health = client.get("/health").await;
    let shown = workspace(&client, "my-project").await;
    assert_eq!(
        (&shown["workspace"]["sessions"], &shown["workspace"]["agentName"]),
        (&json!(2), &json!("helper")),
        "{shown} {health}"
    );

    // The end of one does not stop the other, nor what it left running.
    client.delete(&format!("/api/sessions/{one}")).await;
    let seen = client.exec(&two, "ps ax | grep -c 'sleep [1]000'; cat a.txt").await;
    assert_eq!(seen["stdout"], "1\nfrom one", "{seen}");
    client.say(&two, "write b.txt: and on").await;
    assert_eq!(client.exec(&two, "cat b.txt").await["stdout"], "and on");
}

/// Whatever dies, each comes back with its own conversation and with the files of all.
#[tokio::test]
async fn a_shared_sandbox_that_dies_takes_no_conversation_along() {
    let mut server = Server::start().await;
    let client = server.client();
    let (one, two) = (create(&client, "ours").await, create(&client, "ours").await);
    for (id, text) in [(&one, "write one.txt: 1"), (&two, "write two.txt: 2"), (&one, "say: kept")] {
        client.say(id, text).await;
    }
    let processes = server.processes(&one).await;
    signal(processes.shim, libc::SIGKILL);
    eventually("both notice it", async || {
        (client.get("/health").await["activeSandboxes"] == 0).then_some(())
    })
    .await;
    for id in [&two, &one] {
        client.say(id, "say: after the death").await;
        assert_eq!(client.exec(id, "cat one.txt two.txt").await["stdout"], "12");
    }
    // The server alone: the sandbox goes on, and both are taken over.
    server.crash_and_start().await;
    let client = server.client();
    for id in [&one, &two] {
        client.say(id, "say: after the crash").await;
    }
    assert_eq!(server.processes(&one).await.shim, server.processes(&two).await.shim);
    // Everything: the tree, too.
    let live = server.live(&one).await;
    server.kill9();
    server.launch().await;
    let client = server.client();
    client.action(&one, "stop").await;
    client.action(&two, "stop").await;
    server.kill9();
    std::fs::remove_dir_all(&live).expect("deleted");
    server.launch().await;
    let client = server.client();
    for id in [&one, &two] {
        let receipt = client.action(id, "resume").await["resume"].clone();
        assert_eq!((&receipt["tier"], &receipt["lost"]), (&json!("native"), &json!([])), "{receipt}");
        assert_eq!(client.exec(id, "cat one.txt two.txt").await["stdout"], "12");
    }
    let words = async |id: &str| client.get(&format!("/api/sessions/{id}/messages")).await.to_string();
    assert!(words(&one).await.contains("kept") && !words(&two).await.contains("kept"));
}

#[tokio::test]
async fn names_are_checked_and_a_workspace_is_one_agents() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("helper").await;
    client.deploy("other").await;
    for bad in ["", "-a", "a-", "A", "a_b", "../x", "a/b", &"x".repeat(64)] {
        let body = json!({ "agent": "helper", "workspace": bad });
        let (status, _) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
        assert_eq!(status, 400, "{bad}");
        let (status, _) = client.ask(Method::POST, "/api/workspaces", Some(json!({ "slug": bad }))).await;
        assert_eq!(status, 400, "{bad}");
    }
    client.post("/api/workspaces", json!({ "slug": "mine", "agent": "helper" })).await;
    let body = json!({ "agent": "other", "workspace": "mine" });
    let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("workspace_of_another_agent")), "{refused}");
    assert_eq!(client.get("/api/workspaces").await["workspaces"][0]["slug"], "mine");
}

/// Deleted while sessions are at work in it: gone with everything, and what comes under its name begins anew.
#[tokio::test]
async fn a_deleted_workspace_is_gone_and_its_name_is_free() {
    let server = Server::start().await;
    let client = server.client();
    let old = create(&client, "gone").await;
    client.say(&old, "write secret.txt: old").await;
    let live = server.live(&old).await;
    client.delete("/api/workspaces/gone").await;
    assert!(!live.exists());
    let (status, _) = client.ask(Method::GET, "/api/workspaces/gone", None).await;
    assert_eq!(status, 404);
    let new = create(&client, "gone").await;
    assert_eq!(
        client.exec(&new, "ls").await["stdout"],
        client.exec(&new, "ls -1 | grep -v secret").await["stdout"]
    );
    let said = client.get(&format!("/api/sessions/{old}/messages")).await.to_string();
    assert!(said.contains("secret.txt"), "still readable");
    let receipt = client.action(&old, "resume").await["resume"].clone();
    assert_eq!(receipt["tier"], "history", "{receipt}");
    assert!(receipt["lost"].to_string().contains("workspace"), "{receipt}");
    let said = client.say(&old, "say: back").await;
    assert_eq!(said["status"], "done", "{said}");
    eventually("it goes on", async || (client.status(&old).await == "active").then_some(())).await;
}
