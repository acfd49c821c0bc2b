//! Sessions in containers. The tests of bubblewrap sandboxes run once more; some tests are only about containers.

use crate::support::{
    Server, ash,
    docker::{again, ask, engine, env, prepare},
    eventually, is_alive,
};
use reqwest::Method;
use serde_json::json;
use std::process::Command;

#[test]
fn as_root_in_docker_no_other_session_is_harmed() {
    again(&["hostile::as_root_the_stream"]);
}

#[test]
fn as_root_in_docker_an_agent_gets_nowhere() {
    again(&["boundary::as_root_an_agent_gets_nowhere"]);
}

#[test]
fn as_root_in_docker_an_agent_of_an_ordinary_users_server_gets_nowhere() {
    again(&["boundary::as_root_an_agent_of_an_ordinary_users_server"]);
}

#[test]
fn slowly_as_root_in_docker_bombs_harm_only_their_own_sandbox() {
    again(&["boundary::bombs::"]);
}

#[test]
fn slowly_as_root_in_docker_an_agent_with_hostile_output_harms_only_its_own_session() {
    again(&["boundary::streams::an_agent", "boundary::streams::as_root_an_agent"]);
}

#[test]
fn slowly_as_root_in_docker_limits_are_hit_without_effect_on_neighbours() {
    // Without the scheduling weights, because engines have their own.
    again(&["limits::a_", "limits::as_root_", "limits::the_", "limits::what_"]);
}

#[test]
fn slowly_as_root_in_docker_nothing_outside_is_touched_while_links_are_swapped_in() {
    again(&["hostile_workspace::nothing_outside_is_touched_while"]);
}

#[test]
fn as_root_in_docker_an_agents_scripts_run_inside() {
    again(&["setup::"]);
}

#[test]
fn as_root_in_docker_weaker_walls_are_refused() {
    again(&["walls::as_root_with_all_walls", "walls::as_root_required_limits"]);
}

/// The container of a session, by the name that its shim noted.
async fn container(server: &Server, id: &str) -> String {
    server.note(id).await["container"]["name"].as_str().expect("a name").to_owned()
}

#[tokio::test]
async fn as_root_in_docker_a_removed_container_is_a_death_and_the_session_goes_on() {
    let mut server = prepare(&[]);
    server.launch().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    client.say(&id, "run: echo kept > file").await;
    let first = container(&server, &id).await;
    let mut stream =
        client.send(&id, "run: echo x >> ran\nhold go: one two three four five six seven eight").await;
    stream.until("text_delta").await;
    assert_eq!(ask("DELETE", &format!("/containers/{first}?force=1")).0, 204);
    server.let_go(&id, "go").await;
    assert_eq!(stream.rest().await.last().map(|frame| frame.event.clone()).as_deref(), Some("error"));
    client.until_status(&id, "error").await;
    assert_eq!(client.session(&id).await["error"]["code"], "sandbox_died");
    let text = client.text(&id, "what was first?").await;
    assert!(text.contains("the first was: \"remember me\""), "{text}");
    assert_eq!(client.exec(&id, "cat file ran").await["stdout"], "kept\nx\n");
    let second = container(&server, &id).await;
    assert_ne!(first, second);
    server.stop().await;
    assert_eq!(ask("GET", &format!("/containers/{second}/json")).0, 404);
}

#[tokio::test]
async fn as_root_in_docker_a_session_goes_from_one_kind_of_walls_to_the_other_and_back() {
    let mut server = Server::start().await;
    let id = server.client().create().await;
    server.client().say(&id, "remember me").await;
    server.stop().await;
    env().iter().for_each(|(name, value)| server.set(name, value));
    server.launch().await;
    let text = server.client().text(&id, "what was first?").await;
    assert!(text.contains("turn 2") && text.contains("remember me"), "{text}");
    assert_eq!(ask("GET", &format!("/containers/{}/json", container(&server, &id).await)).0, 200);
    // A new server adopts running sandboxes unchanged, whatever kind it would create.
    server.set("ASH_SANDBOX", "bubblewrap");
    server.crash_and_start().await;
    assert!(server.client().text(&id, "and now?").await.contains("turn 3"));
    assert_eq!(ask("GET", &format!("/containers/{}/json", container(&server, &id).await)).0, 200);
    server.stop().await;
    server.launch().await;
    assert!(server.client().text(&id, "and now?").await.contains("turn 4"));
}

#[tokio::test]
async fn as_root_in_docker_the_next_start_removes_what_a_killed_shim_left() {
    let mut server = prepare(&[]);
    server.launch().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    let (name, processes) = (container(&server, &id).await, server.processes(&id).await);
    server.kill9();
    crate::support::signal(processes.shim, libc::SIGKILL);
    eventually("its container has ended", async || (!is_alive(processes.init)).then_some(())).await;
    server.launch().await;
    assert_eq!(ask("GET", &format!("/containers/{name}/json")).0, 404, "before a resume");
    let client = server.client();
    assert!(client.text(&id, "what was first?").await.contains("remember me"));
}

#[tokio::test]
async fn as_root_in_docker_an_agent_gets_the_image_that_it_names() {
    let mut server = prepare(&[]);
    server.launch().await;
    let client = server.client();
    let deploy = async |name: &str, image: &str| {
        let folder = server.dir.join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("ash.toml"), format!("image = {image:?}\n")).expect("written");
        client.ask(Method::POST, "/api/agents", Some(json!({ "name": name, "path": folder }))).await
    };
    let (status, body) = deploy("small", "ash-test-busybox").await;
    assert_eq!((status.as_u16(), &body["agent"]["image"]), (201, &json!("ash-test-busybox")), "{body}");
    let made = client.post("/api/sessions", json!({ "agent": "small" })).await;
    let id = made["session"]["id"].as_str().expect("an id");
    // The built-in agent needs nothing of its image, not even a C library.
    assert!(client.text(id, "hello").await.contains("turn 1"));
    assert_eq!(client.exec(id, "ls /bin | head -n 1 2>/dev/null; ls -d /usr").await["exitCode"], 1);

    deploy("missing", "no-such/image:1").await;
    let (status, body) = client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "missing" }))).await;
    assert_eq!(status.as_u16(), 503, "{body}");
    assert!(
        body["error"].as_str().is_some_and(|text| text.contains("docker pull no-such/image:1")),
        "{body}"
    );
    for bad in ["../etc", "a b", "", "-x", "Python", "python:a:b", "a..b", "a@sha256:12"] {
        let (status, body) = deploy("bad", bad).await;
        assert_eq!(
            (status.as_u16(), body["code"].as_str()),
            (400, Some("invalid_manifest")),
            "{bad:?}: {body}"
        );
    }
}

#[tokio::test]
async fn an_agent_that_names_an_image_is_not_started_where_there_are_none() {
    let server = Server::start().await;
    let client = server.client();
    let folder = server.dir.join("agent");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("ash.toml"), "image = \"python:3.13\"\n").expect("written");
    client.post("/api/agents", json!({ "name": "imaged", "path": folder })).await;
    let (status, body) = client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "imaged" }))).await;
    assert_eq!(status.as_u16(), 503, "{body}");
    assert!(body["error"].as_str().is_some_and(|text| text.contains("ASH_SANDBOX=docker")), "{body}");
}

fn doctor(server: &Server, host: &str, image: &str) -> (bool, String) {
    let mut command = Command::new(ash());
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", &server.dir)
        .env("ASH_DATA_DIR", &server.data);
    command.env("ASH_SANDBOX", "docker").env("DOCKER_HOST", host).env("ASH_DOCKER_IMAGE", image);
    let output = command.env("ASH_PORT", "0").arg("doctor").output().expect("ash doctor");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn as_root_in_docker_the_doctor_says_whether_the_engine_can_be_used() {
    let server = Server::prepare(&[]);
    let here = format!("unix://{}", engine());
    let (fine, text) = doctor(&server, &here, "ash-test");
    assert!(fine && text.contains("image ash-test") && text.contains("a sandbox starts and ends"), "{text}");
    let (fine, text) = doctor(&server, "unix:///nowhere/docker.sock", "ash-test");
    assert!(!fine && text.contains("there is no Docker engine at /nowhere/docker.sock"), "{text}");
    assert!(text.contains("systemctl start docker"), "{text}");
    let (fine, text) = doctor(&server, &here, "no-such-image");
    assert!(!fine && text.contains("the image no-such-image is not on this machine"), "{text}");
    assert!(text.contains("docker build -t ash-agent docker"), "{text}");
    let (fine, text) = doctor(&server, "tcp://10.0.0.1:2375", "ash-test");
    assert!(!fine && text.contains("unix:///PATH"), "{text}");
}
