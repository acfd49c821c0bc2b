//! Deaths of the agent, the shim, the sandbox, and by exhausted memory: at rest, in a turn, during exec, and during a
//! capture. The tests check the outcomes that the design specifies.

use crate::support::{Client, Point, Processes, Server, Sse, as_root, eventually, is_alive, names, signal};
use reqwest::Method;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy)]
enum Victim {
    Agent,
    Shim,
    Sandbox,
}

const VICTIMS: [Victim; 3] = [Victim::Agent, Victim::Shim, Victim::Sandbox];

fn kill(victim: Victim, processes: Processes) {
    let pid = match victim {
        Victim::Agent => processes.agent,
        Victim::Shim => processes.shim,
        Victim::Sandbox => processes.init,
    };
    signal(pid, libc::SIGKILL);
}

async fn all_gone(processes: Processes) {
    let Processes { shim, bwrap, init, agent } = processes;
    eventually("the sandbox is gone", async || {
        (![shim, bwrap, init, agent].iter().any(|pid| is_alive(*pid))).then_some(())
    })
    .await;
}

/// The session comes back and remembers the conversation.
async fn comes_back(client: &Client, id: &str, victim: impl std::fmt::Debug) {
    let resume = client.action(id, "resume").await["resume"].clone();
    assert_eq!(
        (resume["path"].as_str(), resume["tier"].as_str()),
        (Some("cold"), Some("native")),
        "{victim:?}: {resume}"
    );
    assert_eq!(resume["lost"], json!([]), "{victim:?}");
    assert_eq!(resume["verified"], true, "{victim:?}");
    assert_eq!(client.status(id).await, "active");
    let text = client.text(id, "what was first?").await;
    assert!(text.contains("the first was: \"remember me\""), "{victim:?}: {text}");
}

async fn remembered(server: &Server) -> (Client, String, Processes) {
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    let processes = server.processes(&id).await;
    (client, id, processes)
}

#[tokio::test]
async fn a_death_at_rest_shows_as_error_and_the_session_comes_back() {
    let server = Server::start().await;
    for victim in VICTIMS {
        let (client, id, processes) = remembered(&server).await;
        kill(victim, processes);
        client.until_status(&id, "error").await;
        let code = client.session(&id).await["error"]["code"].as_str().map(str::to_owned);
        assert!(matches!(code.as_deref(), Some("agent_died" | "sandbox_died")), "{victim:?}: {code:?}");
        all_gone(processes).await;
        comes_back(&client, &id, victim).await;
    }
}

#[tokio::test]
async fn a_death_in_a_turn_cuts_it_and_the_next_resume_continues_it() {
    let server = Server::start().await;
    for victim in VICTIMS {
        let (client, id, processes) = remembered(&server).await;
        let mut stream = cut(&client, &id, || kill(victim, processes)).await;
        let rest = stream.rest().await;
        assert_eq!(names(&rest).last(), Some(&"error"), "{victim:?}: {rest:#?}");
        assert!(!names(&rest).contains(&"done"), "{victim:?}");
        client.until_status(&id, "error").await;
        assert_eq!(client.session(&id).await["openTurns"], 1);
        server.let_go(&id, "go").await;
        continued(&client, &id, victim).await;
        comes_back_warm(&client, &id).await;
    }
}

#[tokio::test]
async fn a_message_after_a_death_waits_until_the_cut_turn_is_over() {
    let server = Server::start().await;
    let (client, id, processes) = remembered(&server).await;
    cut(&client, &id, || kill(Victim::Shim, processes)).await.rest().await;
    client.until_status(&id, "error").await;
    server.let_go(&id, "go").await;
    let text = client.text(&id, "and then?").await;
    assert!(text.contains("turn 3"), "{text}");
    assert_eq!(client.text(&id, "read ran").await, "x\n", "the finished tool call was not run again");
}

/// A turn whose tool call is complete and whose answer is streaming when `kill` runs. A repeated turn holds again.
async fn cut(client: &Client, id: &str, kill: impl FnOnce()) -> Sse {
    let mut stream =
        client.send(id, "run: echo x >> ran\nhold go: one two three four five six seven eight").await;
    stream.until("text_delta").await;
    kill();
    stream
}

async fn continued(client: &Client, id: &str, victim: Victim) {
    let last = client.follow(id, "").await.until("error").await.last().expect("an error").id.clone();
    client.action(id, "resume").await;
    let frames = client.follow(id, &last).await.until("done").await;
    let names = names(&frames);
    assert!(names.contains(&"turn_continued"), "{victim:?}: {names:?}");
    assert_eq!(frames.last().expect("done").data["status"], "done", "{victim:?}");
    assert_eq!(
        client.text(id, "read ran").await,
        "x\n",
        "{victim:?}: the finished tool call was not run again"
    );
    let messages = client.get(&format!("/api/sessions/{id}/messages")).await;
    let results = |all: &Value| {
        let all = all["messages"].as_array().expect("a list").clone();
        all.iter()
            .filter(|m| m["content"].as_str().is_some_and(|c| c.contains("\"type\":\"result\"")))
            .count()
    };
    assert_eq!(results(&messages), 3, "one answer for each prompt");
}

async fn comes_back_warm(client: &Client, id: &str) {
    let text = client.text(id, "what was first?").await;
    assert!(text.contains("the first was: \"remember me\""), "{text}");
}

#[tokio::test]
async fn a_turn_that_is_cut_twice_is_given_up() {
    let server = Server::start().await;
    let (client, id, processes) = remembered(&server).await;
    cut(&client, &id, || kill(Victim::Agent, processes)).await.rest().await;
    client.until_status(&id, "error").await;
    client.action(&id, "resume").await;
    let processes = server.processes(&id).await;
    let mut stream = client.follow(&id, "").await;
    stream.until("turn_continued").await;
    kill(Victim::Agent, processes);
    let frames = stream.until("done").await;
    assert_eq!(frames.last().expect("done").data["status"], "failed");
    assert!(
        frames.iter().any(|frame| frame.event == "error" && frame.data["code"] == "crashed_twice"),
        "{frames:#?}"
    );
    client.until_status(&id, "error").await;
    comes_back(&client, &id, "cut twice").await;
}

#[tokio::test]
async fn a_death_during_exec_ends_the_request() {
    let server = Server::start().await;
    for victim in VICTIMS {
        let (client, id, processes) = remembered(&server).await;
        let path = format!("/api/sessions/{id}/exec");
        let body = json!({ "command": "echo > started; sleep 1000", "timeout": 300_000 });
        let exec = client.ask(Method::POST, &path, Some(body));
        let killing = async {
            let started = server.live(&id).await.join("tree/workspace/started");
            eventually("the command runs", async || started.exists().then_some(())).await;
            kill(victim, processes);
        };
        let ((status, body), ()) = tokio::join!(exec, killing);
        assert_eq!(status.as_u16(), 500, "{victim:?}: {body}");
        assert!(body["code"].as_str().is_some_and(|code| code.ends_with("_died")), "{victim:?}: {body}");
        client.until_status(&id, "error").await;
        comes_back(&client, &id, victim).await;
    }
}

#[tokio::test]
async fn a_death_while_files_are_captured_loses_no_answer() {
    let server = Server::start().await;
    for victim in VICTIMS {
        let (client, id, processes) = remembered(&server).await;
        server.arm("save.frozen", Point::Pause);
        let mut stream = client.send(&id, "run: echo kept > kept").await;
        server.reached("save.frozen").await;
        kill(victim, processes);
        server.release("save.frozen");
        let frames = stream.until("done").await;
        assert_eq!(frames.last().expect("done").data["status"], "done", "{victim:?}");
        client.until_status(&id, "error").await;
        comes_back(&client, &id, victim).await;
        assert_eq!(client.text(&id, "read kept").await, "kept\n", "{victim:?}");
    }
}

/// Takes more memory than the limit, in parts: each is smaller than the size that makes the agent the first victim.
const GREEDY: &str =
    r"for i in 1 2 3 4 5 6 7 8; do (x=$(head -c 40000000 /dev/zero | tr '\0' x); sleep 60) & done; wait";

/// The kernel kills the largest process first; this makes it choose the agent.
fn first_in_line(processes: Processes) {
    std::fs::write(format!("/proc/{}/oom_score_adj", processes.agent), "1000").expect("oom_score_adj");
}

#[tokio::test]
async fn as_root_running_out_of_memory_kills_that_sandbox_alone_and_is_recognised() {
    assert!(as_root(), "memory is limited by cgroups, which are root's");
    let server = Server::with(&[("ASH_SANDBOX_MEMORY_MB", "128")]).await;
    let (client, id, processes) = remembered(&server).await;
    let (_, other, bystander) = remembered(&server).await;
    // During a turn.
    let mut stream = client
        .send(&id, &format!("run: echo > waiting; until [ -e go ]; do sleep 0.01; done; {GREEDY}"))
        .await;
    let workspace = server.live(&id).await.join("tree/workspace");
    // Only now, because the shell would inherit the setting.
    eventually("the tool runs", async || workspace.join("waiting").exists().then_some(())).await;
    first_in_line(processes);
    client.exec(&id, "touch go").await;
    let frames = stream.rest().await;
    let error = frames.last().expect("an error");
    assert_eq!(
        (error.event.as_str(), error.data["code"].as_str()),
        ("error", Some("sandbox_oom")),
        "{frames:#?}"
    );
    client.until_status(&id, "error").await;
    all_gone(processes).await;
    client.action(&id, "interrupt").await;
    comes_back(&client, &id, "oom in a turn").await;
    // At rest, by a command beside the agent.
    first_in_line(server.processes(&id).await);
    let (status, body) = client
        .ask(Method::POST, &format!("/api/sessions/{id}/exec"), Some(json!({ "command": GREEDY })))
        .await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (500, Some("sandbox_oom")), "{body}");
    client.until_status(&id, "error").await;
    comes_back(&client, &id, "oom at rest").await;
    assert_eq!(client.status(&other).await, "active");
    assert!([bystander.shim, bystander.init, bystander.agent].iter().all(|pid| is_alive(*pid)));
}

#[tokio::test]
async fn an_agent_that_will_not_stop_is_ended_and_the_session_goes_on() {
    let server = Server::with(&[("ASH_INTERRUPT_GRACE", "1")]).await;
    let (client, id, processes) = remembered(&server).await;
    let mut stream = client.send(&id, "slow 60000: never").await;
    stream.until("message").await;
    signal(processes.agent, libc::SIGSTOP);
    client.action(&id, "interrupt").await;
    let frames = stream.until("done").await;
    assert_eq!(frames.last().expect("done").data["status"], "interrupted");
    client.until_status(&id, "active").await;
    comes_back_warm(&client, &id).await;
}
