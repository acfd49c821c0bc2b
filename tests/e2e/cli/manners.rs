//! The output and the exit codes of the command line.

mod ended;
mod messages;
mod screen;

use crate::support::{KEY, Server, ash, eventually};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
};

fn command(server: &Server, args: &[&str]) -> Command {
    let mut command = Command::new(ash());
    command.args(args).env("ASH_SERVER_URL", &server.url).env("ASH_API_KEY", KEY).stdin(Stdio::null());
    command
}

async fn run(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        tokio::task::spawn_blocking(move || command.output()).await.expect("run").expect("ash");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

#[tokio::test]
async fn a_client_without_a_server_of_its_own_talks_to_no_other() {
    let home = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(ash());
    command.args(["session", "list"]).env("HOME", home.path()).stdin(Stdio::null());
    for name in ["ASH_SERVER_URL", "ASH_API_KEY", "ASH_DATA_DIR"] {
        command.env_remove(name);
    }
    let (code, _, said) = run(command).await;
    assert_eq!(code, Some(9), "{said}");
    assert!(
        said.contains("no server of yours") && said.contains("ash start") && !said.contains("4100"),
        "{said}"
    );
}

/// Compose files leave the variable empty. As the current folder it would select whatever data another user left there.
#[tokio::test]
async fn an_empty_data_directory_is_none() {
    let (home, here) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let planted = json!({ "pid": 1, "url": url, "version": "0" });
    std::fs::write(here.path().join("server.json"), planted.to_string()).expect("written");
    let lock = std::fs::File::create(here.path().join("ash.lock")).expect("made");
    lock.lock().expect("locked");
    let mut command = Command::new(ash());
    command.args(["session", "list"]).current_dir(&here).stdin(Stdio::null());
    command
        .env("HOME", home.path())
        .env("ASH_DATA_DIR", "")
        .env_remove("ASH_SERVER_URL")
        .env_remove("ASH_API_KEY");
    let (code, _, said) = run(command).await;
    assert!(code == Some(9) && said.contains("no server of yours"), "{said}");
    listener.set_nonblocking(true).expect("set");
    assert!(listener.accept().is_err(), "the planted one was called");
}

#[tokio::test]
async fn the_command_line_reports_the_state() {
    let server = Server::start().await;
    let client = server.client();
    // The list has the built-in agent before its first use.
    let (_, listed, _) = run(command(&server, &["agent", "list"])).await;
    assert!(listed.lines().any(|line| line.starts_with("default ")), "{listed}");
    let (code, told, said) = run(command(&server, &["agent", "info", "default"])).await;
    assert_eq!((code, told.trim()), (Some(0), "default  not used yet; its first session makes it"), "{said}");
    let mut own = command(&server, &["agent", "list"]);
    own.env("ASH_DATA_DIR", &server.data);
    let (_, listed, _) = run(own).await;
    let row: Vec<&str> = listed.lines().last().expect("a row").split_whitespace().collect();
    assert_eq!(row, ["default", "-", "builtin", "not", "used", "yet"]);
    // A start beside a running server says that it changed nothing, and how to change it.
    let mut start = command(&server, &["start", "-e", "X=1"]);
    start.env("ASH_DATA_DIR", server.dir.join("data"));
    let (code, _, said) = run(start).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("nothing was changed") && said.contains("ash restart"), "{said}");
    // Every interface refuses an empty model.
    let id = "a-session-with-a-long-name-of-its-own";
    let (code, _, said) =
        run(command(&server, &["session", "create", "default", "--id", id, "-o", "model="])).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("model must not be empty"), "{said}");
    let (code, _, said) = run(command(&server, &["session", "create", "default", "--id", id])).await;
    assert_eq!(code, Some(0), "{said}");
    // An id that a user chose is never shortened.
    client.say(id, "one").await;
    let (_, _, said) = run(command(&server, &["session", "pause", id])).await;
    assert!(said.contains(&format!("ash chat --resume {id}")), "{said}");
}

#[tokio::test]
async fn tail_follows_until_it_is_interrupted() {
    let server = Server::start().await;
    let client = server.client();
    client.post("/api/sessions", json!({ "agent": "default", "sessionId": "s" })).await;
    client.say("s", "first").await;
    let follow = |more: &[&str]| {
        let mut child = command(&server, &["session", "--json", "tail", "s"]);
        let mut child = child.args(more).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("ash");
        let seen = Arc::new(Mutex::new(Vec::<Value>::new()));
        let (lines, to) = (BufReader::new(child.stdout.take().expect("a pipe")).lines(), seen.clone());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                to.lock().expect("whole").push(serde_json::from_str(&line).expect("JSON"));
            }
        });
        (child, seen)
    };
    let turns = |seen: &Arc<Mutex<Vec<Value>>>| {
        seen.lock().expect("whole").iter().filter(|frame| frame["event"] == "done").count()
    };
    let (mut child, seen) = follow(&[]);
    // From the start, across the end of a turn.
    eventually("the first turn", async || (turns(&seen) == 1).then_some(())).await;
    client.say("s", "second").await;
    eventually("the second turn", async || (turns(&seen) == 2).then_some(())).await;
    assert!(child.try_wait().expect("waits").is_none(), "it goes on");
    let done = |frame: &&Value| frame["event"] == "done";
    let first = seen.lock().expect("whole").iter().find(done).expect("a frame")["id"].clone();
    // Only events after the given one.
    let (mut later, rest) = follow(&["--since", first.as_str().expect("an id")]);
    eventually("the second turn alone", async || (turns(&rest) == 1).then_some(())).await;
    // No old events: of the turns that end from now on, one comes after the start of this command.
    let (mut newest, none) = follow(&["--since", "0s"]);
    let mut said = 2;
    eventually("a turn that came later", async || {
        client.say("s", "later").await;
        said += 1;
        (turns(&none) > 0).then_some(())
    })
    .await;
    eventually("all turns", async || (turns(&seen) == said && turns(&rest) == said - 1).then_some(())).await;
    for child in [&mut child, &mut later, &mut newest] {
        // SAFETY: kill has no memory effects; the child is ours and was not waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
        let ended = eventually("it leaves", async || child.try_wait().expect("waits")).await;
        assert_eq!(ended.code(), Some(0));
    }
    let turn = |frame: &Value| frame["data"]["turn"].clone();
    let old: Vec<Value> = seen.lock().expect("whole").iter().filter(done).map(turn).take(2).collect();
    let newest = none.lock().expect("whole").clone();
    assert!(newest.iter().all(|frame| !old.contains(&turn(frame))), "{old:?} in {newest:#?}");
    assert_eq!((turns(&seen), turns(&rest)), (said, said - 1));
}

#[tokio::test]
async fn the_number_of_a_message_never_changes() {
    let server = Server::start().await;
    let client = server.client();
    client.post("/api/sessions", json!({ "agent": "default", "sessionId": "s" })).await;
    let list = async |id: &str, query: &str| -> Vec<(u64, String)> {
        let all = client.get(&format!("/api/sessions/{id}/messages?{query}")).await;
        let all = all["messages"].as_array().expect("a list").clone();
        let one = |m: &Value| {
            (m["sequence"].as_u64().expect("a number"), m["id"].as_str().expect("an id").to_owned())
        };
        all.iter().map(one).collect()
    };
    for words in ["one", "two", "three"] {
        client.say("s", words).await;
    }
    let before = list("s", "limit=1000").await;
    // The ordinal among user, assistant and result rows, from 1.
    let count = before.len() as u64;
    assert_eq!(before.iter().map(|(n, _)| *n).collect::<Vec<_>>(), (1..=count).collect::<Vec<_>>());
    // `after` takes the same number.
    assert_eq!(list("s", "after=2&limit=3").await, before[2..5]);
    assert_eq!(list("s", &format!("after={count}")).await, []);
    // Superseded messages keep their numbers after a rewind, and no other message reuses them.
    client.post("/api/sessions/s/rewind", json!({ "checkpoint": 1 })).await;
    client.say("s", "four").await;
    let whole = list("s", "limit=1000&all=true").await;
    assert_eq!(whole[..count as usize], before);
    let now = list("s", "limit=1000").await;
    assert!(now.len() < whole.len() && now.iter().all(|one| whole.contains(one)), "{now:?} of {whole:?}");
    assert_eq!(now.last().expect("one").0, whole.len() as u64);
    // A fork continues the numbers of its parent.
    client.post("/api/sessions/s/fork", json!({ "sessionId": "f" })).await;
    client.action("f", "resume").await;
    client.say("f", "five").await;
    let forked = list("f", "limit=1000&all=true").await;
    assert_eq!(
        forked.iter().map(|(n, _)| *n).collect::<Vec<_>>(),
        (1..=forked.len() as u64).collect::<Vec<_>>()
    );
    assert!(forked.len() > whole.len());
    let last = list("f", &format!("after={}", whole.len())).await;
    assert_eq!(last, forked[whole.len()..]);
}
