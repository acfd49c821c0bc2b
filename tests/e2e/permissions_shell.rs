//! Leave and questions from a shell: what waits is shown, asked and answered there.

use crate::{
    claude::Stage,
    permissions::{allow, careful, output, shown, until_asked},
    support::{KEY, ash, eventually},
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::fd::{FromRawFd, OwnedFd},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

fn command(stage: &Stage, args: &[&str]) -> Command {
    let mut command = Command::new(ash());
    command.args(args).env("ASH_SERVER_URL", &stage.server.url).env("ASH_API_KEY", KEY);
    command
}

async fn run(stage: &Stage, args: &[&str]) -> (bool, String, String) {
    let mut command = command(stage, args);
    let done = tokio::task::spawn_blocking(move || command.output()).await.expect("run").expect("ash");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.success(), text(&done.stdout), text(&done.stderr))
}

#[tokio::test]
async fn from_a_shell_one_sees_what_waits_and_answers_it() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    assert!(run(&stage, &["session", "permissions", &id]).await.2.contains("nothing waits"));
    for (allowed, words) in [(true, "allowed"), (false, "denied")] {
        let mut stream = client.send(&id, "run: echo made >> file").await;
        let asked = stream.until("permission_request").await.pop().expect("a frame").data;
        let permission = asked["id"].as_str().expect("an id");
        let (_, listed, _) = run(&stage, &["session", "permissions", &id]).await;
        assert!(listed.contains(permission) && listed.contains("echo made >> file"), "{listed}");
        let (_, shown, _) = run(&stage, &["session", "get", &id]).await;
        assert!(shown.contains(permission), "{shown}");
        let (good, _, said) = match allowed {
            true => run(&stage, &["session", "allow", &id, permission]).await,
            false => run(&stage, &["session", "deny", &id, permission, "--message", "Enough."]).await,
        };
        assert!(good && said.contains(words), "{said}");
        stream.until("done").await;
    }
    assert_eq!(output(&client, &id, "cat file").await, "made\n");
    assert!(shown(&stage).contains("Enough."));
    let mut stream = client.send(&id, "ask: Which colour? | vermilion | ultramarine").await;
    let asked = stream.until("permission_request").await.pop().expect("a frame").data;
    let permission = asked["id"].as_str().expect("an id");
    let (good, _, said) = run(&stage, &["session", "allow", &id, permission, "--answer", "vermilion"]).await;
    assert!(good, "{said}");
    stream.until("done").await;
    assert!(shown(&stage).contains("vermilion"));
    let (good, _, said) = run(&stage, &["session", "deny", &id, permission]).await;
    assert!(!good && said.contains("answered otherwise"), "{said}");
}

/// A terminal with nobody at it but the test.
struct Terminal {
    keys: std::fs::File,
    screen: Arc<Mutex<String>>,
    child: std::process::Child,
}

impl Terminal {
    fn run(stage: &Stage, args: &[&str]) -> Terminal {
        let (mut ours, mut theirs) = (0, 0);
        // SAFETY: both numbers are written before it returns 0, and the other three arguments may be null.
        let opened = unsafe {
            libc::openpty(
                &mut ours,
                &mut theirs,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        assert_eq!(opened, 0, "no terminal");
        // SAFETY: both were opened above, and nobody else has them.
        let (keys, theirs) = unsafe { (std::fs::File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        let theirs = || Stdio::from(theirs.try_clone().expect("a handle"));
        let child =
            command(stage, args).stdin(theirs()).stdout(theirs()).stderr(theirs()).spawn().expect("ash");
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut from, shown) = (keys.try_clone().expect("a handle"), screen.clone());
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // Ends with an error when the last one on the other side is gone.
            while let Ok(read) = from.read(&mut piece) {
                shown.lock().expect("whole").push_str(&String::from_utf8_lossy(&piece[..read]));
            }
        });
        Terminal { keys, screen, child }
    }

    async fn until(&self, words: &str) {
        let seen = || self.screen.lock().expect("whole").clone();
        eventually(words, async || seen().contains(words).then_some(())).await;
    }

    fn type_line(&mut self, line: &str) {
        writeln!(self.keys, "{line}").expect("typed");
    }

    async fn end(mut self) -> String {
        let status = eventually("it ends", async || self.child.try_wait().expect("wait")).await;
        let screen = self.screen.lock().expect("whole").clone();
        assert!(status.success(), "{status}: {screen}");
        screen
    }
}

#[tokio::test]
async fn at_a_terminal_one_is_asked() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    for (typed, made) in [("y", "made\n"), ("rather not", "made\n")] {
        let mut terminal = Terminal::run(&stage, &["session", "send", &id, "run: echo made >> file"]);
        terminal.until("allow?").await;
        terminal.type_line(typed);
        terminal.end().await;
        assert_eq!(output(&client, &id, "cat file").await, made, "{typed}");
    }
    assert!(shown(&stage).contains("rather not"));

    let mut terminal =
        Terminal::run(&stage, &["session", "send", &id, "ask: Which colour? | vermilion | ultramarine"]);
    terminal.until("2. ultramarine").await;
    terminal.until("your own words").await;
    terminal.type_line("2");
    terminal.end().await;
    let messages = stage.last_request()["body"]["messages"].clone();
    assert!(messages.as_array().expect("all").last().expect("one").to_string().contains("ultramarine"));

    // Somebody else is faster.
    let terminal = Terminal::run(&stage, &["session", "send", &id, "run: echo made >> file"]);
    terminal.until("allow?").await;
    let asked = until_asked(&client, &id).await;
    allow(&client, &id, &asked).await;
    let screen = terminal.end().await;
    assert!(screen.contains("(allow by client)"), "{screen}");
    assert_eq!(output(&client, &id, "cat file").await, "made\nmade\n");
}

#[tokio::test]
async fn without_a_terminal_it_is_said_what_waits() {
    let stage = Stage::set().await;
    let id = careful(&stage).await;
    let client = stage.server.client();
    for json_wanted in [&[][..], &["--json"]] {
        let mut child = command(&stage, &["session"])
            .args(json_wanted)
            .args(["send", &id, "run: echo made >> file"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ash");
        let asked = until_asked(&client, &id).await;
        let permission = asked["id"].as_str().expect("an id").to_owned();
        let said = BufReader::new(child.stderr.take().expect("stderr")).lines();
        let said = tokio::task::spawn_blocking(move || {
            said.map_while(Result::ok).find(|line| line.contains(&permission))
        });
        let said = said.await.expect("read").expect("it says what waits");
        allow(&client, &id, &asked).await;
        let done =
            tokio::task::spawn_blocking(move || child.wait_with_output()).await.expect("run").expect("ash");
        assert!(done.status.success(), "{said}");
        if !json_wanted.is_empty() {
            let line: Value = serde_json::from_str(&said).expect("JSON");
            assert_eq!((&line["event"], &line["data"]), (&json!("permission_request"), &asked));
            let answer: Value = serde_json::from_slice(&done.stdout).expect("JSON");
            assert_eq!(answer["status"], "done");
        }
    }
    assert_eq!(output(&client, &id, "cat file").await, "made\nmade\n");
}
