//! Checkpoints as history: diffs, rewinds in both directions, and forks.

use crate::support::{Client, Point, Server, eventually, names, signal};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Connection;
use std::path::Path;

/// The work of a turn: a new, a changed and a removed file, a link, and explicit mtime and mode.
fn work(turn: u64) -> String {
    format!(
        "run: echo {turn} >> log; echo {turn} > only-{turn}; rm -f only-{}; mkdir -p dir-{turn}/empty; \
         ln -sfn only-{turn} newest; echo x > mode; chmod 6{turn}0 mode; touch -d 2001-02-03T04:05:0{turn}.5 old; \
         ln -f log twin",
        turn - 1
    )
}

/// Five turns, and the whole live tree after each.
async fn history(server: &Server) -> (Client, String, Vec<(u64, String)>) {
    let client = server.client();
    let id = client.create().await;
    let mut trees = Vec::new();
    for turn in 1..=5 {
        let done = client.say(&id, &work(turn)).await;
        assert_eq!(done["status"], "done", "{done}");
        let number = done["checkpoint"].as_u64().expect("a checkpoint");
        trees.push((number, tree(&server.live(&id).await)));
    }
    (client, id, trees)
}

/// Every entry of the live tree, including HOME: type, size, change time, link target and content.
fn tree(live: &Path) -> String {
    let script = "find workspace home -printf '%p %y %m %U %T@ %l %n\\n' | sort; \
        find workspace home -type f -exec sha256sum {} + | sort";
    let mut command = std::process::Command::new("sh");
    let output = command.arg("-c").arg(script).current_dir(live.join("tree")).output().expect("find");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn rewind(client: &Client, id: &str, checkpoint: u64) -> Value {
    client.post(&format!("/api/sessions/{id}/rewind"), json!({ "checkpoint": checkpoint })).await
}

async fn said(client: &Client, id: &str, query: &str) -> Vec<String> {
    let messages = client.get(&format!("/api/sessions/{id}/messages?limit=1000{query}")).await;
    let users = messages["messages"].as_array().expect("a list").iter().filter(|m| m["role"] == "user");
    users
        .map(|message| {
            let content: Value =
                serde_json::from_str(message["content"].as_str().expect("text")).expect("json");
            content["content"].as_str().expect("text").to_owned()
        })
        .collect()
}

async fn checkpoints(client: &Client, id: &str) -> Vec<Value> {
    let answer = client.get(&format!("/api/sessions/{id}/checkpoints?limit=1000")).await;
    answer["checkpoints"].as_array().expect("a list").clone()
}

async fn current(client: &Client, id: &str) -> u64 {
    let all = checkpoints(client, id).await;
    let current: Vec<&Value> = all.iter().filter(|checkpoint| checkpoint["current"] == true).collect();
    assert_eq!(current.len(), 1, "{all:#?}");
    current[0]["number"].as_u64().expect("a number")
}

#[tokio::test]
async fn a_session_goes_back_and_forward_again_with_conversation_agent_and_files() {
    let server = Server::start().await;
    let (client, id, trees) = history(&server).await;
    let live = server.live(&id).await;
    for turn in [4, 2, 1, 3, 5_usize] {
        let (number, expected) = &trees[turn - 1];
        let answer = rewind(&client, &id, *number).await;
        assert_eq!(answer["session"]["status"], "paused");
        assert_eq!(
            (answer["session"]["turns"].as_u64(), answer["rewound"]["turns"].as_u64()),
            (Some(turn as u64), Some(turn as u64))
        );
        assert_eq!(
            (&answer["rewound"]["checkpoint"], &answer["rewound"]["midTurn"]),
            (&json!(number), &json!(false))
        );
        assert_eq!(current(&client, &id).await, *number);
        assert_eq!(&tree(&live), expected, "checkpoint {number}");
        let works: Vec<String> = (1..=turn as u64).map(work).collect();
        assert_eq!(said(&client, &id, "").await, works);
        // The next turn continues from there.
        let resume = client.action(&id, "resume").await["resume"].clone();
        assert_eq!(
            (&resume["verified"], &resume["tier"], &resume["checkpoint"]),
            (&json!(true), &json!("native"), &json!(number))
        );
        let text = client.text(&id, "what was first?").await;
        assert!(text.contains(&format!("turn {}", turn + 1)), "{text}");
        let log: String = (1..=turn).map(|turn| format!("{turn}\n")).collect();
        assert_eq!(client.text(&id, "read log").await, log);
    }
    let all = said(&client, &id, "&all=true").await;
    assert_eq!(all.len(), 5 + 2 * 5, "nothing was deleted: {all:#?}");
    assert_eq!(said(&client, &id, "").await.len(), 5 + 2);
    let numbers: Vec<u64> =
        checkpoints(&client, &id).await.iter().map(|c| c["number"].as_u64().expect("a number")).collect();
    assert!(numbers.is_sorted_by(|a, b| a > b), "newest first, without end: {numbers:?}");
}

#[tokio::test]
async fn the_state_before_a_rewind_can_be_restored() {
    let server = Server::start().await;
    let (client, id, trees) = history(&server).await;
    client.exec(&id, "echo unsaved > unsaved").await;
    let back = rewind(&client, &id, trees[0].0).await["rewound"]["from"].as_u64().expect("a way back");
    assert!(back > trees[4].0, "what no turn had captured was captured first");
    assert_eq!(
        client
            .request(Method::GET, &format!("/api/sessions/{id}/files/unsaved"))
            .send()
            .await
            .expect("asked")
            .status(),
        404
    );
    rewind(&client, &id, back).await;
    assert_eq!(client.text(&id, "read unsaved").await, "unsaved\n");
    assert!(client.text(&id, "still?").await.contains("turn 7"));
}

#[tokio::test]
async fn a_session_that_sleeps_is_rewound_without_a_sandbox() {
    let mut server = Server::start().await;
    let (client, id, trees) = history(&server).await;
    client.action(&id, "stop").await;
    let answer = rewind(&client, &id, trees[1].0).await;
    assert_eq!(answer["session"]["status"], "stopped");
    assert!(!server.live(&id).await.join("run/sock").exists(), "no sandbox was started");
    assert_eq!(tree(&server.live(&id).await), trees[1].1);
    // Without any tree: the server restores it when it is needed.
    server.stop().await;
    std::fs::remove_dir_all(server.data.join("live")).expect("remove");
    server.launch().await;
    let client = server.client();
    rewind(&client, &id, trees[2].0).await;
    assert_eq!(client.text(&id, "read log").await, "1\n2\n3\n");
    assert!(client.text(&id, "still?").await.contains("turn 5"));
}

#[tokio::test]
async fn a_rewind_while_a_turn_is_not_over_is_refused_and_changes_nothing() {
    let server = Server::start().await;
    let (client, id, trees) = history(&server).await;
    let processes = server.processes(&id).await;
    let mut stream = client.send(&id, "hold go: one two three four five six seven eight nine ten").await;
    let mut queued = client.send(&id, "and then?").await;
    stream.until("text_delta").await;
    let body = json!({ "checkpoint": trees[0].0 });
    let (status, problem) = client.ask(Method::POST, &format!("/api/sessions/{id}/rewind"), Some(body)).await;
    assert_eq!((status.as_u16(), problem["code"].as_str()), (409, Some("turn_running")), "{problem}");
    assert!(problem["error"].as_str().is_some_and(|error| error.contains("interrupt")), "{problem}");
    server.let_go(&id, "go").await;
    assert_eq!(stream.rest().await.last().map(|frame| frame.event.clone()).as_deref(), Some("done"));
    queued.until("done").await;
    assert_eq!(server.processes(&id).await.agent, processes.agent, "the same agent went on");
    assert_eq!(said(&client, &id, "").await.len(), 7);
}

#[tokio::test]
async fn a_rewind_is_an_event() {
    let server = Server::start().await;
    let (client, id, trees) = history(&server).await;
    let mut stream = client.follow(&id, &client.session_seq(&id).await).await;
    rewind(&client, &id, trees[2].0).await;
    let frames = stream.until("rewound").await;
    let data = &frames.last().expect("a frame").data;
    assert_eq!((&data["checkpoint"], &data["turns"]), (&json!(trees[2].0), &json!(3)));
    let events = client.get(&format!("/api/sessions/{id}/events?type=lifecycle&limit=1000")).await;
    let last = events["events"].as_array().and_then(|events| events.last()).expect("an event").clone();
    let shown: Value = serde_json::from_str(last["data"].as_str().expect("text")).expect("json");
    assert_eq!((&shown["action"], &shown["checkpoint"]), (&json!("rewound"), &json!(trees[2].0)));
}

#[tokio::test]
async fn a_fork_begins_at_any_checkpoint_and_can_itself_go_back() {
    let server = Server::start().await;
    let (client, id, trees) = history(&server).await;
    let at = json!({ "checkpoint": trees[1].0, "sessionId": "old" });
    let packs = || std::fs::read_dir(server.data.join("repo/default")).expect("packs").count();
    let before = packs();
    let fork = client.post(&format!("/api/sessions/{id}/fork"), at).await["session"].clone();
    assert_eq!(packs(), before, "nothing is copied");
    assert_eq!((fork["turns"].as_u64(), fork["title"].is_string()), (Some(2), true), "{fork}");
    assert_eq!(said(&client, "old", "").await, [work(1), work(2)]);
    let resume = client.action("old", "resume").await["resume"].clone();
    assert_eq!((&resume["verified"], &resume["tier"]), (&json!(true), &json!("native")), "{resume}");
    assert_eq!(client.text("old", "read log").await, "1\n2\n");
    assert!(client.text("old", "still?").await.contains("turn 4"));
    // Back to the fork's start: the conversation is its parent's again.
    rewind(&client, "old", 1).await;
    assert_eq!(said(&client, "old", "").await, [work(1), work(2)]);
    let resume = client.action("old", "resume").await["resume"].clone();
    assert_eq!((&resume["verified"], &resume["tier"]), (&json!(true), &json!("native")), "{resume}");
    assert!(client.text("old", "still?").await.contains("turn 3"));
    // The parent is unchanged; forks of an ended session, and of a fork's first checkpoint, work as well.
    assert_eq!(said(&client, &id, "").await.len(), 5);
    client.delete("/api/sessions/old").await;
    let again = json!({ "checkpoint": 1, "sessionId": "again" });
    assert_eq!(client.post("/api/sessions/old/fork", again).await["session"]["turns"], 2);
    assert!(client.text("again", "still?").await.contains("turn 3"));
}

#[tokio::test]
async fn files_are_listed_and_read_as_of_any_checkpoint() {
    let server = Server::start().await;
    let (client, id, trees) = history(&server).await;
    let check = async || {
        for (turn, (number, _)) in (1_u64..).zip(&trees) {
            let listed = client.get(&format!("/api/sessions/{id}/files?checkpoint={number}")).await;
            assert_eq!(listed["source"], "snapshot");
            let paths: Vec<&str> = listed["files"]
                .as_array()
                .expect("a list")
                .iter()
                .filter_map(|file| file["path"].as_str())
                .collect();
            assert_eq!(paths, ["CLAUDE.md", "log", "mode", "old", &format!("only-{turn}"), "twin"]);
            let log: String = (1..=turn).map(|turn| format!("{turn}\n")).collect();
            let read =
                client.get(&format!("/api/sessions/{id}/files/log?checkpoint={number}&format=json")).await;
            assert_eq!(read["content"], log);
        }
    };
    check().await;
    client.action(&id, "pause").await;
    check().await;
    client.delete(&format!("/api/sessions/{id}")).await;
    check().await;
    let inspected =
        client.get(&format!("/api/sessions/{id}/checkpoints/{}", trees[2].0)).await["checkpoint"].clone();
    let listed =
        checkpoints(&client, &id).await.into_iter().find(|c| c["number"] == trees[2].0).expect("listed");
    for (name, value) in listed.as_object().expect("an object") {
        assert_eq!(&inspected[name], value, "{name}");
    }
    assert_eq!((&inspected["skipped"], &inspected["unsettled"]), (&json!(0), &json!(0)));
    let (status, problem) = client
        .ask(Method::POST, &format!("/api/sessions/{id}/rewind"), Some(json!({ "checkpoint": 1 })))
        .await;
    assert_eq!((status.as_u16(), problem["error"].as_str()), (400, Some("Session is ended")));
}

#[tokio::test]
async fn two_checkpoints_are_compared() {
    let server = Server::start().await;
    let (client, id, trees) = history(&server).await;
    let (from, to) = (trees[1].0, trees[2].0);
    let diff = client.get(&format!("/api/sessions/{id}/checkpoints/{from}/diff?to={to}")).await;
    let changes: Vec<(&str, &str)> = diff["files"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|file| (file["path"].as_str().expect("a path"), file["change"].as_str().expect("a change")))
        .collect();
    let expected = [
        ("log", "modified"),
        ("newest", "modified"),
        ("only-2", "deleted"),
        ("only-3", "added"),
        ("twin", "modified"),
    ];
    assert_eq!((diff["from"].as_u64(), diff["to"].as_u64()), (Some(from), Some(to)));
    assert_eq!(changes, expected);
    let same = client.get(&format!("/api/sessions/{id}/checkpoints/{from}/diff?to={from}")).await;
    assert_eq!(same["files"], json!([]));
}

#[tokio::test]
async fn a_message_that_waited_is_not_part_of_an_earlier_checkpoint() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let mut first = client.send(&id, "hold go: one two three four five six").await;
    first.until("text_delta").await;
    let mut second = client.send(&id, "second").await;
    second.until("session_start").await;
    server.let_go(&id, "go").await;
    let done = first.until("done").await.pop().expect("a frame");
    second.until("done").await;
    let number = done.data["checkpoint"].as_u64().expect("a checkpoint");
    client
        .post(&format!("/api/sessions/{id}/fork"), json!({ "checkpoint": number, "sessionId": "fork" }))
        .await;
    rewind(&client, &id, number).await;
    for id in [id.as_str(), "fork"] {
        assert_eq!(said(&client, id, "").await, ["hold go: one two three four five six"], "{id}");
        assert_eq!(client.session(id).await["turns"], 1, "{id}");
        assert!(client.text(id, "now?").await.contains("turn 2"), "{id}");
    }
}

#[tokio::test]
async fn a_server_killed_in_a_rewind_leaves_the_session_before_or_after_it() {
    let mut server = Server::start().await;
    let (_, id, trees) = history(&server).await;
    let big = "run: head -c 3000000 /dev/urandom > ballast; for i in $(seq 150); do echo $i > f$i; done";
    server.client().say(&id, big).await;
    let mut round = Round { server: &mut server, id: &id, trees: &trees, number: 0 };
    // From an active session and from an idle one: a death before each step, until the rewind succeeds.
    for rests in [false, true] {
        let mut steps = 1;
        while round.is_cut(rests, "rewind.step", Point::AbortAt(steps), Tree::Before).await {
            steps += 1;
        }
        assert!(steps > 2, "a rewind has at least two steps: {steps}");
    }
    for (number, (point, then)) in [
        ("rewind.written", Tree::Before),
        ("rewind.recorded", Tree::After),
        ("live.without_tree", Tree::After),
        ("live.without_stamp", Tree::After),
        ("rewind.placed", Tree::After),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(round.is_cut(number % 2 == 1, point, Point::Abort, then).await, "{point} was not reached");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tree {
    Before,
    After,
}

struct Round<'a> {
    server: &'a mut Server,
    id: &'a str,
    trees: &'a [(u64, String)],
    number: usize,
}

impl Round<'_> {
    /// A rewind with a fail point that kills the server. False: the point was not reached, and the rewind succeeded.
    async fn is_cut(&mut self, rests: bool, point: &str, how: Point, then: Tree) -> bool {
        let Round { server, id, trees, number } = self;
        *number += 1;
        let (client, id, when) = (server.client(), *id, format!("round {number}, {point}, {how:?}"));
        client.action(id, if rests { "stop" } else { "resume" }).await;
        let before = current(&client, id).await;
        let (before_turns, all) = (said(&client, id, "").await, said(&client, id, "&all=true").await);
        let turn = (*number * 3) % 5;
        server.arm(point, how);
        let request = client.request(Method::POST, &format!("/api/sessions/{id}/rewind"));
        let answered = request.json(&json!({ "checkpoint": trees[turn].0 })).send().await;
        let cut = answered.is_err();
        if let Ok(answer) = answered {
            assert!(answer.status().is_success(), "{when}: {}", answer.status());
            server.release(point);
            server.kill9();
        } else {
            server.died_at(point).await;
        }
        server.launch().await;
        let client = server.client();
        eventually("it is taken over", async || {
            let status = client.status(id).await;
            ["paused", "stopped", "active"].contains(&status.as_str()).then_some(())
        })
        .await;
        client.action(id, "resume").await;
        let messages = said(&client, id, "").await;
        assert_eq!(said(&client, id, "&all=true").await, all, "{when}");
        // Conversation and files belong together.
        if !cut || then == Tree::After {
            assert_eq!(messages, (1..=turn as u64 + 1).map(work).collect::<Vec<_>>(), "{when}");
            let log: String = (1..=turn + 1).map(|turn| format!("{turn}\n")).collect();
            assert_eq!(client.exec(id, "cat log").await["stdout"], log, "{when}");
        } else {
            assert_eq!(messages, before_turns, "{when}");
            let diff = client.get(&format!("/api/sessions/{id}/checkpoints/{before}/diff")).await;
            assert_eq!(diff["files"], json!([]), "{when}");
        }
        let salvaged = checkpoints(&client, id).await.iter().filter(|c| c["salvage"] == true).count();
        assert_eq!(salvaged, 0, "{when}: nothing unknown was found");
        cut
    }
}

#[tokio::test]
async fn a_long_turn_is_captured_on_its_way_and_goes_on_from_there() {
    let mut server = Server::with(&[("ASH_CHECKPOINT_EVERY", "1")]).await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    let mut stream = client.send(&id, "run: echo x >> ran\nhold go: one two three four five").await;
    let seen = stream.until("text_delta").await;
    let midway = eventually("it is captured on its way", async || {
        checkpoints(&client, &id).await.into_iter().find(|checkpoint| checkpoint["midTurn"] == true)
    })
    .await;
    assert_eq!(midway["turn"], seen[0].data["turn"]);
    // By default a fork starts at the end of a turn.
    let fork = client.action(&id, "fork").await["session"].clone();
    assert_eq!(fork["turns"], 1, "{fork}");
    // Everything dies, including the live tree: the newest checkpoint is what is left.
    let processes = server.processes(&id).await;
    let live = server.live(&id).await;
    server.kill9();
    signal(processes.shim, libc::SIGKILL);
    std::fs::remove_file(live.join("stamp")).expect("a stamp");
    // The turn holds again, until the new tree has the file as well.
    server.launch().await;
    let client = server.client();
    let mut continued = client.follow(&id, &seen.last().expect("a frame").id).await;
    let mut frames = continued.until("resumed").await;
    server.let_go(&id, "go").await;
    frames.extend(continued.until("done").await);
    assert!(names(&frames).contains(&"turn_continued"), "{:?}", names(&frames));
    let resumed = frames.iter().find(|frame| frame.event == "resumed").expect("a receipt");
    let number = resumed.data["checkpoint"].as_u64().expect("which checkpoint");
    let used = client.get(&format!("/api/sessions/{id}/checkpoints/{number}")).await["checkpoint"].clone();
    assert_eq!(
        (&resumed.data["from"], &used["midTurn"]),
        (&json!("checkpoint"), &json!(true)),
        "{resumed:?}"
    );
    assert_eq!(client.text(&id, "read ran").await, "x\n", "what was done was not done again");
    // A rewind into the middle of a turn is allowed, and the response says so.
    let answer = rewind(&client, &id, number).await["rewound"].clone();
    assert_eq!(
        (&answer["midTurn"], &answer["turn"], &answer["turns"]),
        (&json!(true), &midway["turn"], &json!(2))
    );
    let text = client.text(&id, "what now?").await;
    assert!(text.contains("turn 3") && text.contains("remember me"), "{text}");
}

/// The command line as a user sees it: stdout, stderr and exit code.
fn ash(server: &Server, args: &[&str]) -> (String, String, i32) {
    let mut command = std::process::Command::new(crate::support::ash());
    command.env_clear().env("HOME", &server.dir).env("PATH", std::env::var("PATH").expect("PATH"));
    command.env("ASH_SERVER_URL", &server.url).env("ASH_API_KEY", crate::support::KEY).args(args);
    let output = command.output().expect("ash");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code().unwrap_or(-1))
}

fn fine(server: &Server, args: &[&str]) -> String {
    let (stdout, stderr, code) = ash(server, args);
    assert_eq!(code, 0, "{args:?}: {stdout}{stderr}");
    stdout
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_shows_history_and_goes_there() {
    let server = Server::start().await;
    let (client, id, trees) = history(&server).await;
    let [second, third, last] = [1, 2, 4].map(|turn: usize| trees[turn].0.to_string());
    let table = fine(&server, &["session", "checkpoints", &id]);
    let star = table.lines().find(|line| line.starts_with('*')).expect("the current one");
    assert!(star.contains(&last) && star.contains("end of a turn"), "{table}");
    assert_eq!(table.lines().count(), 1 + checkpoints(&client, &id).await.len());
    let json: Value =
        serde_json::from_str(&fine(&server, &["session", "--json", "checkpoints", &id])).expect("json");
    assert_eq!(json["checkpoints"], json!(checkpoints(&client, &id).await));
    let one = fine(&server, &["session", "checkpoint", &id, &second]);
    assert!(one.contains("end of a turn") && one.contains("skipped"), "{one}");
    let names = fine(&server, &["session", "diff", &id, &second, &third, "--name-only"]);
    assert_eq!(names.lines().collect::<Vec<_>>(), ["log", "newest", "only-2", "only-3", "twin"]);
    let patch = fine(&server, &["session", "diff", &id, &second, &third]);
    assert!(patch.contains("+3") && !patch.contains("+4"), "{patch}");
    assert!(fine(&server, &["session", "diff", &id, &third]).contains("+5"));
    assert!(fine(&server, &["session", "diff", &id]).contains("+1"));
    assert_eq!(fine(&server, &["session", "files", &id, "log", "--checkpoint", &second]), "1\n2\n");
    assert!(fine(&server, &["session", "files", &id, "--checkpoint", &second]).contains("only-2"));
    let fork = fine(&server, &["session", "fork", &id, "--checkpoint", &third]);
    assert_eq!(client.session(fork.trim()).await["turns"], 3);
    let (_, told, code) = ash(&server, &["session", "rewind", &id, &second]);
    assert!(
        code == 0 && told.contains("ash session rewind") && told.contains(&format!(" {last}\n")),
        "{told}"
    );
    assert_eq!(said(&client, &id, "").await.len(), 2);
    for args in [&["session", "rewind", &id, "999"][..], &["session", "checkpoint", &id, "999"]] {
        let (_, told, code) = ash(&server, args);
        assert!(code == 4 && told.contains("ash session checkpoints"), "{args:?}: {told}");
    }
    let mut stream = client.send(&id, "hold never: one two three four five six seven eight nine ten").await;
    stream.until("text_delta").await;
    let (_, told, code) = ash(&server, &["session", "rewind", &id, &second]);
    assert!(code == 5 && told.contains("ash session interrupt"), "{told}");
}

#[tokio::test]
async fn a_checkpoint_that_cannot_be_read_is_refused_and_nothing_is_lost() {
    let server = Server::start().await;
    let (client, id, trees) = history(&server).await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(server.data.join("ash.db"));
    let mut db = sqlx::SqliteConnection::connect_with(&options).await.expect("the database");
    let lost = "f".repeat(64);
    let hidden =
        sqlx::query("UPDATE checkpoints SET tree = ? WHERE number = ?").bind(lost).bind(trees[1].0 as i64);
    hidden.execute(&mut db).await.expect("hidden");
    for rest in [false, true] {
        if rest {
            client.action(&id, "stop").await;
        }
        let body = json!({ "checkpoint": trees[1].0 });
        let (status, problem) =
            client.ask(Method::POST, &format!("/api/sessions/{id}/rewind"), Some(body)).await;
        assert!(!status.is_success() && problem["code"].is_string(), "{status} {problem}");
        assert_eq!(said(&client, &id, "").await.len(), 5);
        assert_eq!(tree(&server.live(&id).await), trees[4].1);
    }
    assert_eq!(client.text(&id, "read log").await, "1\n2\n3\n4\n5\n");
    let left = std::fs::read_dir(server.live(&id).await).expect("a directory").flatten();
    let left: Vec<String> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|name| name.starts_with("tree.")), "{left:?}");
}

#[tokio::test]
async fn an_untrusted_tree_can_be_read_and_rewound_to() {
    let mut server = Server::start().await;
    let (_, id, _) = history(&server).await;
    let live = server.live(&id).await;
    server.stop().await;
    // The state after a reboot: another boot id, and a file that no checkpoint has.
    let stamp = std::fs::read_to_string(live.join("stamp")).expect("a stamp");
    let mut stamp: Value = serde_json::from_str(&stamp).expect("json");
    stamp["boot"] = json!("another-boot");
    std::fs::write(live.join("stamp"), stamp.to_string()).expect("write");
    std::fs::write(live.join("tree/workspace/found"), "found").expect("write");
    server.launch().await;
    let client = server.client();
    let salvage = client.action(&id, "resume").await["resume"]["salvage"].as_u64().expect("a number");
    let shown = client.get(&format!("/api/sessions/{id}/checkpoints/{salvage}")).await["checkpoint"].clone();
    assert_eq!((&shown["salvage"], &shown["current"]), (&json!(true), &json!(false)));
    let diff = client.get(&format!("/api/sessions/{id}/checkpoints/{salvage}/diff")).await;
    assert_eq!(diff["files"][0]["path"], "found", "{diff}");
    rewind(&client, &id, salvage).await;
    assert_eq!(client.text(&id, "read found").await, "found");
    assert!(client.text(&id, "still?").await.contains("turn 7"));
}

/// Between turns nothing is captured unless files changed; the output of a background process is captured.
#[tokio::test]
async fn a_fork_has_background_writes_since_the_turn() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client
        .say(&id, "run: (until test -e go; do sleep 0.05; done; echo late > late) > /dev/null 2>&1 &")
        .await;
    let untouched = client.action(&id, "fork").await["session"]["id"].as_str().expect("an id").to_owned();
    // From outside and not over the API, so the server does not learn of it.
    let workspace = server.live(&id).await.join("tree/workspace");
    std::fs::write(workspace.join("go"), "").expect("written");
    eventually("the process has written", async || workspace.join("late").exists().then_some(())).await;
    let fork = client.action(&id, "fork").await["session"]["id"].as_str().expect("an id").to_owned();
    let found = async |id: &str| {
        let request = client.request(Method::GET, &format!("/api/sessions/{id}/files/late"));
        request.send().await.expect("an answer").status().as_u16()
    };
    assert_eq!((found(&untouched).await, found(&fork).await), (404, 200));
}
