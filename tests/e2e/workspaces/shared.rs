//! Named workspaces: several conversations in one place.

use crate::support::{Client, Point, Server, as_root, eventually, signal};
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

/// They see each other's files and processes, and each has its own conversation.
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

    // The end of one session stops neither the other, nor the processes that it left running.
    client.delete(&format!("/api/sessions/{one}")).await;
    let seen = client.exec(&two, "ps ax | grep -c 'sleep [1]000'; cat a.txt").await;
    assert_eq!(seen["stdout"], "1\nfrom one", "{seen}");
    client.say(&two, "write b.txt: and on").await;
    assert_eq!(client.exec(&two, "cat b.txt").await["stdout"], "and on");
}

/// Whatever dies, each session comes back with its own conversation and with all files.
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
    // Only the server: the sandbox continues, and the next server adopts both sessions.
    server.crash_and_start().await;
    let client = server.client();
    for id in [&one, &two] {
        client.say(id, "say: after the crash").await;
    }
    assert_eq!(server.processes(&one).await.shim, server.processes(&two).await.shim);
    // Everything, including the tree.
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
async fn a_workspace_is_one_agents() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("helper").await;
    client.deploy("other").await;
    client.post("/api/workspaces", json!({ "slug": "mine", "agent": "helper" })).await;
    let body = json!({ "agent": "other", "workspace": "mine" });
    let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("workspace_of_another_agent")), "{refused}");
    assert_eq!(client.get("/api/workspaces").await["workspaces"][0]["slug"], "mine");
}

/// Runs one message to its end, whatever dies meanwhile. Also returns how often it was given up on the way.
async fn insist(client: &Client, id: &str, text: &str, key: &str) -> (Value, u64) {
    let path = format!("/api/sessions/{id}/messages");
    let (mut key, mut gave_up) = (key.to_owned(), 0);
    for _ in 0..100 {
        let request = client.request(Method::POST, &path).header("idempotency-key", &key);
        let request = request.header("accept", "application/json").json(&json!({ "content": text }));
        let answer = request.send().await.expect("an answer");
        if answer.status().is_success() {
            let answer: Value = answer.json().await.expect("JSON");
            if answer["error"]["code"] != "crashed_twice" {
                return (answer, gave_up);
            }
            // It was interrupted by two deaths and given up: the error says to send it again.
            key.push('+');
            gave_up += 1;
        } else {
            // The turn was interrupted. A resume returns when the session is back; then the same message continues.
            client.ask(Method::POST, &format!("/api/sessions/{id}/resume"), Some(json!({}))).await;
        }
    }
    panic!("{key} was never answered");
}

/// Eight conversations at once in one sandbox, which is killed again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_in_one_workspace_outlives_its_sandboxes() {
    const SESSIONS: u64 = 8;
    const TURNS: u64 = 10;
    let seed = std::env::var("ASH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_0007);
    println!("seed {seed}");
    let mut server = Server::start().await;
    let client = server.client();
    let mut ids = Vec::new();
    for _ in 0..SESSIONS {
        ids.push(create(&client, "crowd").await);
    }
    // One session is busy during the capture for another one's turn: the checkpoint says so.
    let mut held = client.send(&ids[0], "hold go: one two").await;
    held.until("text_delta").await;
    let number = client.say(&ids[1], "say: beside it").await["checkpoint"].clone();
    server.let_go(&ids[0], "go").await;
    held.until("done").await;
    let all = client.get("/api/workspaces/crowd/checkpoints?limit=1000").await["checkpoints"].clone();
    let made = all.as_array().into_iter().flatten().find(|one| one["number"] == number).expect("it is there");
    assert_eq!(made["beside"][0]["session"], ids[0], "{made}");
    let done = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let talks: Vec<_> = (0..SESSIONS)
        .zip(ids.clone())
        .map(|(number, id)| {
            let (client, done) = (server.client(), done.clone());
            tokio::spawn(async move {
                let mut given_up = 0;
                for turn in 0..TURNS {
                    let text =
                        format!("run: echo {turn} >> of-{number}; sleep 0.05; echo said-{number}-{turn}");
                    let (said, gave_up) = insist(&client, &id, &text, &format!("{id}-{turn}")).await;
                    given_up += gave_up;
                    assert_eq!(said["status"], "done", "{said}");
                    done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                given_up
            })
        })
        .collect();
    let mut dice = crate::support::Dice(seed);
    for kill in 1..=5u64 {
        let until = kill * SESSIONS * TURNS / 7 + dice.below(8);
        eventually("they work", async || {
            (done.load(std::sync::atomic::Ordering::Relaxed) >= until).then_some(())
        })
        .await;
        // The first process inside, all processes inside at once, or the shim outside.
        let run = server.live(&ids[0]).await.join("run");
        // The last kill ended a sandbox, and the next one may not exist yet.
        let note: Value = eventually("there is a sandbox", async || {
            std::fs::read(run.join("init")).ok().and_then(|note| serde_json::from_slice(&note).ok())
        })
        .await;
        let mut pids: Vec<u32> = ash_sandbox::processes(&run).into_iter().map(i32::unsigned_abs).collect();
        match dice.below(3) {
            0 => pids.truncate(1),
            1 => pids = vec![note["shim"]["pid"].as_u64().expect("a pid") as u32],
            _ => {}
        }
        pids.into_iter().for_each(|pid| signal(pid, libc::SIGKILL));
    }
    let mut given_up = Vec::new();
    for talk in talks {
        given_up.push(talk.await.expect("all turns are done"));
    }
    // Each checkpoint names the other sessions that were busy.
    let checkpoints = client.get("/api/workspaces/crowd/checkpoints?limit=1000").await;
    let beside: Vec<&Value> = checkpoints["checkpoints"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|checkpoint| checkpoint["beside"].as_array().into_iter().flatten())
        .collect();
    assert!(beside.iter().all(|turn| ids.iter().any(|id| turn["session"] == **id)), "{beside:?}");
    for (number, id) in (0..SESSIONS).zip(&ids) {
        let said = client.get(&format!("/api/sessions/{id}/messages?limit=1000")).await.to_string();
        for turn in 0..TURNS {
            assert!(said.contains(&format!("said-{number}-{turn}")), "{number}: {turn}");
        }
        for other in (0..SESSIONS).filter(|other| *other != number) {
            assert!(!said.contains(&format!("said-{other}-")), "{number} has heard {other}");
        }
        // A session that was idle when its sandbox died waits for a resume.
        client.action(id, "resume").await;
        client.action(id, "stop").await;
    }
    let (first, path) = (&ids[0], server.live(&ids[0]).await);
    server.kill9();
    std::fs::remove_dir_all(&path).expect("deleted");
    server.launch().await;
    let client = server.client();
    for (id, given_up) in ids.iter().zip(given_up) {
        let receipt = client.action(id, "resume").await["resume"].clone();
        assert_eq!(receipt["tier"], "native", "{receipt}");
        // The agent may have no memory of a turn that was given up, and the receipt says so.
        assert!(receipt["lost"] == json!([]) || given_up > 0, "{receipt}");
    }
    for (number, id) in (0..SESSIONS).zip(&ids) {
        // An interrupted call may or may not have run, and does not run again.
        let events = client.get(&format!("/api/sessions/{id}/events?limit=1000")).await.to_string();
        let cut = events.matches("turn_continued").count() as u64;
        let lines = client.exec(first, &format!("sort -un of-{number} | wc -l")).await;
        let lines: u64 =
            lines["stdout"].as_str().and_then(|text| text.trim().parse().ok()).expect("a number");
        assert!(lines <= TURNS && lines + cut >= TURNS, "of-{number}: {lines} lines, {cut} turns were cut");
    }
    let verified = std::process::Command::new(crate::support::ash())
        .args(["snapshot", "verify", "--read-data", "--repo"])
        .arg(server.data.join("repo/default"))
        .output()
        .expect("run");
    assert!(verified.status.success(), "{verified:?}");
}

/// The real Claude Code: two conversations in one sandbox, each with its own transcript, which survive the sandbox.
#[tokio::test]
async fn claude_code_keeps_its_conversations_apart() {
    let mut stage = crate::support::claude::Stage::set().await;
    let one = stage.create_with(json!({ "workspaceId": "pair" })).await;
    let two = stage.create_with(json!({ "workspaceId": "pair" })).await;
    let client = stage.server.client();
    client.say(&one, "say: the tower is high").await;
    client.say(&two, "say: the water is cold").await;
    client.say(&one, "run: echo bread > bread").await;
    assert_eq!(client.exec(&two, "cat bread").await["stdout"], "bread\n");
    let check = async |stage: &crate::support::claude::Stage| {
        let client = stage.server.client();
        for (id, own, other) in
            [(&one, "tower is high", "water is cold"), (&two, "water is cold", "tower is high")]
        {
            client.say(id, "say: and on").await;
            let asked = stage.requests().last().expect("a request")["body"].to_string();
            assert!(asked.contains(own) && !asked.contains(other), "{asked}");
        }
    };
    check(&stage).await;
    let pids = ash_sandbox::processes(&stage.server.live(&one).await.join("run"));
    pids.iter().for_each(|pid| signal(pid.unsigned_abs(), libc::SIGKILL));
    eventually("both notice it", async || {
        (client.get("/health").await["activeSandboxes"] == 0).then_some(())
    })
    .await;
    check(&stage).await;
    stage.server.crash_and_start().await;
    check(&stage).await;
}

/// From the object store alone: whichever session is resumed first, the other sessions and all files come back as well.
#[tokio::test]
async fn a_shared_workspace_comes_back_from_the_object_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Server::with(&[("ASH_SNAPSHOT_URL", &format!("file://{}", dir.path().display()))]).await;
    let client = server.client();
    let (one, two) = (create(&client, "far-away").await, create(&client, "far-away").await);
    client.say(&one, "write one.txt: 1").await;
    client.say(&two, "write two.txt: 2").await;
    client.say(&two, "say: only two").await;
    for id in [&one, &two] {
        crate::support::remote::until_remote(&client, id).await;
    }
    server.lose_the_machine().await;
    let client = server.client();
    for id in [&one, &two] {
        let receipt = client.action(id, "resume").await["resume"].clone();
        assert_eq!((&receipt["tier"], &receipt["lost"]), (&json!("native"), &json!([])), "{receipt}");
        assert_eq!(client.exec(id, "cat one.txt two.txt").await["stdout"], "12");
        client.say(id, "say: on").await;
    }
    assert_eq!(workspace(&client, "far-away").await["workspace"]["sessions"], 2);
    let words = async |id: &str| client.get(&format!("/api/sessions/{id}/messages")).await.to_string();
    assert!(words(&two).await.contains("only two") && !words(&one).await.contains("only two"));
    for id in [&one, &two] {
        crate::support::remote::until_remote(&client, id).await;
    }
    server.lose_the_machine().await;
    let client = server.client();
    client.action(&two, "resume").await;
    assert_eq!(client.exec(&two, "cat one.txt two.txt").await["stdout"], "12");
}

/// Only the log is kept: while its sandbox lives the session continues as it was, and afterwards from the log.
#[tokio::test]
async fn an_ephemeral_session_has_its_log_and_nothing_else() {
    let mut server = Server::start().await;
    let client = server.client();
    client.deploy("helper").await;
    let made = client.post("/api/sessions", json!({ "agent": "helper", "ephemeral": true })).await;
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    let said = client.say(&id, "write a.txt: passing").await;
    assert_eq!(said["checkpoint"], Value::Null, "{said}");
    client.action(&id, "pause").await;
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!(receipt["path"], "warm", "{receipt}");
    assert_eq!(client.exec(&id, "cat a.txt").await["stdout"], "passing");
    server.crash_and_start().await;
    let client = server.client();
    assert_eq!(client.exec(&id, "cat a.txt").await["stdout"], "passing", "its sandbox was alive all along");
    assert_eq!(client.get(&format!("/api/sessions/{id}/checkpoints")).await["checkpoints"], json!([]));
    client.action(&id, "stop").await;
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!((&receipt["path"], &receipt["tier"]), (&json!("cold"), &json!("history")), "{receipt}");
    assert!(receipt["lost"].to_string().contains("workspace"), "{receipt}");
    assert_eq!(client.exec(&id, "ls a.txt").await["exitCode"], 2);
    let said = client.say(&id, "say: on").await;
    assert_eq!(said["status"], "done", "{said}");
}

/// A rewind of the conversation: the agent forgets what came after, and the files stay as they are.
#[tokio::test]
async fn a_rewind_concerns_the_conversation_alone() {
    let stage = crate::support::claude::Stage::set().await;
    let one = stage.create_with(json!({ "workspace": "back" })).await;
    let two = stage.create_with(json!({ "workspace": "back" })).await;
    let client = stage.server.client();
    let first = client.say(&one, "say: the tower is high").await["checkpoint"].clone();
    let others = client.say(&two, "run: echo theirs > theirs").await["checkpoint"].clone();
    client.say(&one, "say: the water is cold").await;
    let path = format!("/api/sessions/{one}/rewind");
    let (status, refused) = client.ask(Method::POST, &path, Some(json!({ "checkpoint": others }))).await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("checkpoint_of_another")), "{refused}");
    client.post(&path, json!({ "checkpoint": first })).await;
    client.say(&one, "say: and then").await;
    let asked = stage.requests().last().expect("a request")["body"].to_string();
    assert!(asked.contains("tower is high") && !asked.contains("water is cold"), "{asked}");
    assert_eq!(client.exec(&one, "cat theirs").await["stdout"], "theirs\n");
    client.say(&two, "say: undisturbed").await;
    let asked = stage.requests().last().expect("a request")["body"].to_string();
    assert!(asked.contains("echo theirs"), "{asked}");
    // With the files: the other session remembers its work, and learns that the files changed.
    client.post(&path, json!({ "checkpoint": first, "files": true })).await;
    client.say(&two, "say: and on").await;
    assert_eq!(client.exec(&two, "ls theirs").await["exitCode"], 2);
    let asked = stage.requests().last().expect("a request")["body"].to_string();
    assert!(asked.contains("echo theirs"), "{asked}");
    assert!(
        asked.contains(&format!("Session {one}, which works in the same workspace, took the files back")),
        "{asked}"
    );
}

/// Wherever the server dies during the deletion of a workspace, the next one completes it, or nothing had begun.
#[tokio::test]
async fn a_deletion_that_was_cut_off_is_ended_by_the_next_server() {
    let mut server = Server::start().await;
    for (point, begun) in [
        ("delete.asked", false),
        ("delete.begun", true),
        ("delete.released", true),
        ("live.erasing", true),
        ("delete.erased", true),
        ("delete.recorded", true),
    ] {
        let client = server.client();
        let id = create(&client, "half").await;
        client.say(&id, "run: mkdir -p d; for i in $(seq 300); do echo $i > d/$i; done").await;
        let live = server.live(&id).await;
        server.arm(point, Point::Abort);
        let answer = client.request(Method::DELETE, "/api/workspaces/half").send().await;
        assert!(answer.is_err(), "{point}: {answer:?}");
        server.died_at(point).await;
        server.launch().await;
        let client = server.client();
        let (status, found) = client.ask(Method::GET, "/api/workspaces/half", None).await;
        if begun {
            assert_eq!(status, 404, "{point}: {found}");
            assert!(!live.exists(), "{point}: the name is free, and the data is there");
        } else {
            assert_eq!(found["workspace"]["status"], "ready", "{point}: {found}");
            client.action(&id, "resume").await;
            assert_eq!(client.exec(&id, "ls d | wc -l").await["stdout"], "300\n", "{point}");
            client.delete("/api/workspaces/half").await;
        }
        assert!(client.get(&format!("/api/sessions/{id}/messages")).await.to_string().contains("seq 300"));
    }
}

/// A rewind with files requires that all other sessions are idle, and every one of them is informed.
#[tokio::test]
async fn a_rewind_with_files_waits_for_the_other_sessions_and_informs_them() {
    let mut server = Server::start().await;
    let client = server.client();
    let (one, two) = (create(&client, "files-back").await, create(&client, "files-back").await);
    let first = client.say(&one, "write a.txt: old").await["checkpoint"].clone();
    client.say(&two, "say: two was here").await;
    client.say(&one, "write a.txt: new").await;
    client.say(&one, "write b.txt: later").await;
    let path = format!("/api/sessions/{one}/rewind");
    let body = json!({ "checkpoint": first, "files": true });

    let work = "run: touch began; while ! [ -e go-on ]; do sleep 0.01; done; echo went on";
    let mut busy = client.send(&two, work).await;
    eventually("it runs", async || (client.exec(&one, "ls began").await["exitCode"] == 0).then_some(()))
        .await;
    let (status, refused) = client.ask(Method::POST, &path, Some(body.clone())).await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("workspace_busy")), "{refused}");
    assert!(refused["error"].as_str().is_some_and(|text| text.contains(&two)), "{refused}");
    client.exec(&one, "touch go-on").await;
    busy.until("done").await;

    let answer = client.post(&path, body).await;
    assert_eq!(answer["rewound"]["checkpoint"], first, "{answer}");
    let way_back = answer["rewound"]["from"].clone();
    client.action(&two, "resume").await;
    assert_eq!(client.exec(&two, "cat a.txt; ls b.txt go-on").await["stdout"], "old");
    let events = client.get(&format!("/api/sessions/{two}/events?limit=1000")).await["events"].clone();
    let told = |event: &Value| event["data"].as_str().is_some_and(|data| data.contains("workspace_rewound"));
    let told: Vec<_> = events.as_array().into_iter().flatten().filter(|event| told(event)).collect();
    assert!(told.len() == 1 && told[0].to_string().contains(&one), "{events}");

    // The session's own conversation is complete, and it is informed before its next message; the other's was rewound.
    client.say(&two, "say: and on").await;
    let words = async |id: &str| client.get(&format!("/api/sessions/{id}/messages")).await.to_string();
    assert!(words(&two).await.contains("two was here") && words(&two).await.contains("went on"));
    assert!(!words(&one).await.contains("b.txt"));
    client.say(&one, "say: from there").await;

    // Forward again, after a crash of everything.
    let live = server.live(&one).await;
    server.kill9();
    server.launch().await;
    let client = server.client();
    for id in [&one, &two] {
        client.action(id, "resume").await;
        client.action(id, "stop").await;
    }
    server.kill9();
    std::fs::remove_dir_all(&live).expect("deleted");
    server.launch().await;
    let client = server.client();
    client.action(&two, "resume").await;
    assert_eq!(client.exec(&two, "cat a.txt; ls b.txt").await["stdout"], "old");
    client.post(&path, json!({ "checkpoint": way_back, "files": true })).await;
    client.action(&one, "resume").await;
    assert_eq!(client.exec(&one, "cat a.txt b.txt; ls go-on").await["stdout"], "newlatergo-on\n");
    let receipt = client.action(&two, "resume").await["resume"].clone();
    assert_eq!((&receipt["tier"], &receipt["lost"]), (&json!("native"), &json!([])), "{receipt}");
}

/// A fork in the same workspace: it remembers its parent's conversation, continues separately, and sees the same files.
#[tokio::test]
async fn a_fork_may_stay_where_its_parent_is() {
    let mut stage = crate::support::claude::Stage::set().await;
    let one = stage.create_with(json!({ "workspace": "fork-here" })).await;
    let client = stage.server.client();
    let path = format!("/api/sessions/{one}/fork");
    let (status, refused) = client.ask(Method::POST, &path, Some(json!({ "workspace": "other" }))).await;
    assert_eq!((status.as_u16(), &refused["code"]), (400, &json!("invalid_workspace")), "{refused}");
    client.say(&one, "say: the tower is high").await;
    let fork =
        client.post(&path, json!({ "workspace": "fork-here", "sessionId": "twin" })).await["session"].clone();
    assert_eq!(fork["workspace"], "fork-here", "{fork}");
    // The parent's messages before the fork's first start belong to the parent.
    client.say(&one, "say: the water is cold").await;
    client.say(&one, "run: echo bread > bread").await;
    let check = async |stage: &crate::support::claude::Stage| {
        let client = stage.server.client();
        for (id, other) in [("twin", "water is cold"), (&one, "grass is green")] {
            client.say(id, if id == "twin" { "say: the grass is green" } else { "say: on" }).await;
            let asked = stage.requests().last().expect("a request")["body"].to_string();
            assert!(asked.contains("tower is high") && !asked.contains(other), "{id}: {asked}");
        }
        assert_eq!(client.exec("twin", "cat bread").await["stdout"], "bread\n");
    };
    check(&stage).await;
    let receipt = client.action("twin", "stop").await;
    assert_eq!(receipt["session"]["status"], "stopped", "{receipt}");
    let receipt = client.action("twin", "resume").await["resume"].clone();
    assert_eq!((&receipt["tier"], &receipt["lost"]), (&json!("native"), &json!([])), "{receipt}");
    stage.server.crash_and_start().await;
    check(&stage).await;
}

/// Wherever the server dies during a rewind with files, the files are completely the old or the new ones, and no
/// conversation is damaged. The record decides which ones.
#[tokio::test]
async fn a_rewind_with_files_happens_completely_or_not_at_all() {
    let mut server = Server::start().await;
    let client = server.client();
    let (one, two) = (create(&client, "torn").await, create(&client, "torn").await);
    client.say(&two, "say: two was here").await;
    let first =
        client.say(&one, "run: mkdir d; for i in $(seq 200); do echo old > d/$i; done").await["checkpoint"]
            .clone();
    let path = format!("/api/sessions/{one}/rewind");
    for (point, happens) in [
        ("rewind.step", false),
        ("rewind.captured", false),
        ("rewind.written", false),
        ("rewind.composed", false),
        ("rewind.way_back_recorded", false),
        ("rewind.recorded", true),
        ("live.without_tree", true),
        ("live.without_stamp", true),
        ("rewind.placed", true),
    ] {
        let client = server.client();
        client.say(&two, "run: for i in $(seq 200); do echo new > d/$i; done").await;
        server.arm(point, Point::Abort);
        let back = json!({ "checkpoint": first, "files": true });
        let answer = client.request(Method::POST, &path).json(&back).send().await;
        assert!(answer.is_err(), "{point}: {answer:?}");
        server.died_at(point).await;
        server.launch().await;
        let client = server.client();
        client.action(&one, "resume").await;
        let receipt = client.action(&two, "resume").await["resume"].clone();
        assert!(
            receipt.is_null() || (receipt["tier"] == "native" && receipt["lost"] == json!([])),
            "{point}: {receipt}"
        );
        let found = client.exec(&one, "cat d/* | grep -c old; cat d/* | grep -c new").await;
        let expected = if happens { "200\n0\n" } else { "0\n200\n" };
        assert_eq!(found["stdout"], expected, "{point}: {found}");
        let words = client.get(&format!("/api/sessions/{two}/messages?limit=1000")).await.to_string();
        assert!(words.contains("two was here"), "{point}");
    }
}

/// An unused workspace is evicted to the object store until a client uses it again.
#[tokio::test]
async fn an_unused_shared_workspace_is_evicted() {
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", dir.path().display());
    let often = [("ASH_COLD_TTL", "0"), ("ASH_GC_EVERY", "1"), ("ASH_SNAPSHOT_URL", url.as_str())];
    let mut server = Server::with(&often).await;
    let client = server.client();
    let (one, two) = (create(&client, "cold").await, create(&client, "cold").await);
    client.say(&one, "write one.txt: 1").await;
    client.say(&two, "write two.txt: 2").await;
    let tree = server.live(&one).await.join("tree");
    // It stays while one of its sessions is busy.
    client.action(&one, "stop").await;
    assert!(tree.exists());
    client.action(&two, "stop").await;
    for id in [&one, &two] {
        crate::support::remote::until_remote(&client, id).await;
    }
    // Stopping the server ends the sessions' actors, which would stay for a minute, as would one that meets a
    // half-finished end.
    server.stop().await;
    server.launch().await;
    let client = server.client();
    eventually("its files go", async || (!tree.exists()).then_some(())).await;
    for id in [&two, &one] {
        let receipt = client.action(id, "resume").await["resume"].clone();
        assert_eq!((&receipt["tier"], &receipt["lost"]), (&json!("native"), &json!([])), "{receipt}");
        assert_eq!(client.exec(id, "cat one.txt two.txt").await["stdout"], "12");
    }
}

/// A collection wants to evict a tree during a capture, which holds the exclusive guard, and evicts it afterwards.
#[tokio::test]
async fn a_tree_is_evicted_after_its_capture() {
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", dir.path().display());
    let often = [("ASH_COLD_TTL", "0"), ("ASH_GC_EVERY", "1"), ("ASH_SNAPSHOT_URL", url.as_str())];
    let server = Server::with(&often).await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "write one.txt: 1").await;
    client.action(&id, "stop").await;
    server.arm("save.shot", Point::Pause);
    let body = json!({ "files": [{ "path": "two.txt", "content": "Mg==" }] });
    client.post(&format!("/api/sessions/{id}/files"), body).await;
    server.reached("save.shot").await;
    server.arm("cold.asked", Point::Pause);
    server.reached("cold.asked").await;
    server.release("cold.asked");
    server.release("save.shot");
    let tree = server.live(&id).await.join("tree");
    eventually("its files go", async || (!tree.exists()).then_some(())).await;
    client.action(&id, "resume").await;
    assert_eq!(client.exec(&id, "cat one.txt two.txt").await["stdout"], "12");
}

/// One session exhausts the shared memory during another one's turn: both come back unchanged, and the turn continues.
#[tokio::test]
async fn as_root_a_turn_goes_on_after_another_session_took_all_memory() {
    assert!(as_root(), "memory is limited by cgroups, which are root's");
    let server = Server::with(&[("ASH_SANDBOX_MEMORY_MB", "64")]).await;
    let client = server.client();
    let (greedy, busy) = (create(&client, "narrow").await, create(&client, "narrow").await);
    client.say(&greedy, "the tower is high").await;
    client.say(&busy, "the water is cold").await;
    let mut stream = client.send(&busy, "run: echo > begun; until [ -e go ]; do sleep 0.01; done").await;
    let workspace = server.live(&busy).await.join("tree/workspace");
    eventually("its tool runs", async || workspace.join("begun").exists().then_some(())).await;
    // Files on /tmp use memory, which the death of a process does not free.
    let greed = json!({ "command": "head -c 200000000 /dev/zero > /tmp/greed" });
    let (status, said) = client.ask(Method::POST, &format!("/api/sessions/{greedy}/exec"), Some(greed)).await;
    assert_eq!((status.as_u16(), &said["code"]), (500, &json!("sandbox_oom")), "{said}");
    let frames = stream.rest().await;
    let last = frames.last().expect("a frame");
    assert_eq!((last.event.as_str(), &last.data["code"]), ("error", &json!("sandbox_oom")), "{frames:#?}");
    for id in [&greedy, &busy] {
        client.until_status(id, "error").await;
        assert_eq!(client.session(id).await["error"]["code"], "sandbox_oom");
    }
    for (id, own, turn) in [(&busy, "the water is cold", "turn 3"), (&greedy, "the tower is high", "turn 2")]
    {
        let receipt = client.action(id, "resume").await["resume"].clone();
        assert_eq!(receipt["tier"], "native", "{receipt}");
        client.exec(id, "touch go").await;
        let text = client.text(id, "what was first?").await;
        assert!(text.contains(own) && text.contains(turn), "{text}");
    }
    let events = client.get(&format!("/api/sessions/{busy}/events?limit=1000")).await.to_string();
    assert!(events.contains("turn_continued"), "{events}");
    assert_eq!(server.processes(&greedy).await.init, server.processes(&busy).await.init);
}
