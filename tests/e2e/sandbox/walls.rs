//! Sandbox protections: those that the operator requires, the one that can be relaxed, and what is visible inside all of
//! them.

use crate::support::{Client, Server, as_root};
use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::Method;
use serde_json::{Value, json};
use std::{collections::BTreeMap, process::Command};

const ORDINARY_USER: u32 = 61_007;

async fn deploy(client: &Client, name: &str, manifest: &str) -> (u16, Value) {
    let files = json!([{ "path": "ash.toml", "content": STANDARD.encode(manifest) }]);
    let body = json!({ "name": name, "files": files });
    let (status, body) = client.ask(Method::POST, "/api/agents", Some(body)).await;
    (status.as_u16(), body)
}

async fn create(client: &Client, body: Value) -> (u16, Value) {
    let (status, body) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
    (status.as_u16(), body)
}

fn refused(answer: &(u16, Value), code: &str, word: &str) {
    let (status, body) = answer;
    assert_eq!((*status, body["code"].as_str()), (422, Some(code)), "{body}");
    assert!(body["error"].as_str().is_some_and(|text| text.contains(word)), "{body}");
}

/// Runs the command to its end: the exit code and its output for the operator.
async fn told(mut command: Command) -> (Option<i32>, String) {
    let done = tokio::task::spawn_blocking(move || command.output()).await.expect("run").expect("ash");
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

const NESTING: &str = "[sandbox]\nuserNamespaces = true\n";
/// A namespace, another one in it, and what stays refused there.
const NEST: &str = "unshare -Ur id -u; unshare -Urpn --fork true && echo nested; unshare -Urm true 2>/dev/null || echo no mounts; \
                    unshare -Ur mount -t tmpfs none /tmp 2>/dev/null || echo no mount; unshare -Ur sh -c 'echo x > /usr/x' 2>/dev/null || echo no write";

async fn namespaces_need_a_request_and_a_permission(mut server: Server) {
    let client = server.client();
    refused(&deploy(&client, "nesting", NESTING).await, "user_namespaces_refused", "ASH_ALLOW_USERNS=1");
    let plain = client.create().await;
    assert_ne!(client.exec(&plain, "unshare -U true").await["exitCode"], 0);

    server.set("ASH_ALLOW_USERNS", "1");
    server.crash_and_start().await;
    let client = server.client();
    let (status, body) = deploy(&client, "nesting", NESTING).await;
    assert_eq!((status, &body["agent"]["needs"]), (201, &json!({ "userNamespaces": true })), "{body}");
    assert_eq!(create(&client, json!({ "agent": "nesting", "sessionId": "n" })).await.0, 201);
    let said = client.exec("n", NEST).await;
    assert_eq!(said["stdout"], "0\nnested\nno mounts\nno mount\nno write\n", "{said}");
    assert_ne!(client.exec(&plain, "unshare -U true").await["exitCode"], 0, "who did not ask has none");

    // A server that does not allow them any more ends sandboxes that have them, and creates no new ones.
    server.set("ASH_ALLOW_USERNS", "0");
    server.crash_and_start().await;
    let client = server.client();
    client.until_status("n", "paused").await;
    assert_eq!(client.status(&plain).await, "active");
    let (status, body) = client.ask(Method::POST, "/api/sessions/n/resume", Some(json!({}))).await;
    refused(&(status.as_u16(), body), "user_namespaces_refused", "userNamespaces");
    refused(
        &create(&client, json!({ "agent": "nesting" })).await,
        "user_namespaces_refused",
        "docs/security.md",
    );
}

#[tokio::test]
async fn user_namespaces_need_a_request_and_a_permission() {
    namespaces_need_a_request_and_a_permission(Server::start().await).await;
}

#[tokio::test]
async fn the_same_in_an_ordinary_users_server() {
    namespaces_need_a_request_and_a_permission(Server::of_user(ORDINARY_USER, &[]).await).await;
}

#[tokio::test]
async fn a_server_without_the_walls_that_it_requires_does_not_start() {
    let bare = ("ASH_SANDBOX", "none");
    for (settings, words) in [
        (
            vec![bare, ("ASH_WALLS_REQUIRED", "sandbox")],
            vec!["ASH_SANDBOX=none", "apt-get install bubblewrap"],
        ),
        (vec![bare, ("ASH_WALLS_REQUIRED", "seccomp")], vec!["seccomp: ", "not filtered"]),
        (
            vec![bare, ("ASH_WALLS_REQUIRED", "landlock,scopes")],
            vec!["landlock: ", "scopes: ", "lsm=landlock"],
        ),
        (vec![bare, ("ASH_WALLS_REQUIRED", "uid")], vec!["uid: ", "as root, with walls"]),
        (
            vec![("ASH_ALLOW_USERNS", "1"), ("ASH_WALLS_REQUIRED", "no-userns")],
            vec!["unset ASH_ALLOW_USERNS"],
        ),
        (
            vec![("ASH_LIMITS", "memoryMb=0"), ("ASH_WALLS_REQUIRED", "limits")],
            vec!["limits: ", "ASH_LIMITS"],
        ),
        (vec![("ASH_WALLS_REQUIRED", "moat")], vec!["there is no wall \"moat\"", "all, sandbox, seccomp"]),
        (vec![("ASH_ALLOW_USERNS", "maybe")], vec!["must be 1 or 0"]),
        (vec![("ASH_ALLOW_USERNS", "1"), ("ASH_SANDBOX", "docker")], vec!["ASH_SANDBOX=docker", "Unset one"]),
    ] {
        let (code, said) = told(Server::prepare(&settings).command()).await;
        assert!(matches!(code, Some(1 | 2)), "{settings:?}: {code:?} {said}");
        assert!(
            words.iter().all(|word| said.contains(word)) && !said.contains("panicked"),
            "{settings:?}: {said}"
        );
    }
}

/// Protections that need root.
#[tokio::test]
async fn an_ordinary_users_server_that_requires_what_takes_root_does_not_start() {
    let mut server =
        Server::of_user(ORDINARY_USER, &[("ASH_WALLS_REQUIRED", "sandbox,seccomp,no-userns")]).await;
    let id = server.client().create().await;
    assert_eq!(server.client().exec(&id, "echo fine").await["stdout"], "fine\n");
    server.stop().await;
    for (wall, words) in
        [("uid", "start the server as root"), ("limits", "who alone can make control groups")]
    {
        server.set("ASH_WALLS_REQUIRED", wall);
        let (code, said) = told(server.command()).await;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("ASH_WALLS_REQUIRED") && said.contains(words), "{said}");
        let (code, said) = told(server.command_of(&["doctor"])).await;
        assert_ne!(code, Some(0), "{said}");
    }
    let output = server.command_of(&["doctor"]).output().expect("ash doctor");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        report.contains("required walls") && report.contains("the server does not start: limits"),
        "{report}"
    );
}

#[tokio::test]
async fn as_root_where_groups_are_gone_the_limits_that_are_required_keep_it_from_starting() {
    assert!(as_root(), "only root can hide control groups");
    let server = Server::prepare(&[("ASH_WALLS_REQUIRED", "limits")]);
    let ash = server.command();
    let hide = r#"umount -R -l /sys/fs/cgroup; exec "$0" "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", hide]).arg(ash.get_program()).args(ash.get_args()).env_clear();
    command.envs(ash.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (code, said) = told(command).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("limits: the kernel limits neither") && said.contains("mount cgroup2"), "{said}");
}

#[tokio::test]
async fn as_root_with_all_walls_required_sessions_live_and_weaker_sandboxes_are_not_taken_over() {
    assert!(as_root(), "whose server has them all");
    let mut server = Server::start().await;
    let id = server.client().create().await;
    server.client().say(&id, "remember me").await;
    let weaker = server.processes(&id).await;
    server.set("ASH_WALLS_REQUIRED", "all");
    server.crash_and_start().await;
    let client = server.client();
    client.until_status(&id, "paused").await;
    assert!(!crate::support::is_alive(weaker.init), "it had been built without a word about walls");
    assert!(client.text(&id, "what was first?").await.contains("remember me"));
    // A sandbox that was built with them is kept.
    let stronger = server.processes(&id).await;
    server.crash_and_start().await;
    assert!(server.client().text(&id, "and now?").await.contains("turn 3"));
    assert!(crate::support::is_alive(stronger.init));
}

#[tokio::test]
async fn as_root_required_limits_cannot_be_switched_off() {
    assert!(as_root(), "whose server can have them");
    let server = Server::with(&[("ASH_WALLS_REQUIRED", "limits")]).await;
    let client = server.client();
    let id = client.create().await;
    for limits in [json!({ "memoryMb": 0 }), json!({ "maxProcesses": 0 })] {
        let name = limits.as_object().and_then(|limits| limits.keys().next()).expect("a name").clone();
        refused(
            &create(&client, json!({ "agent": "tester", "limits": limits })).await,
            "walls_required",
            &name,
        );
        let path = format!("/api/sessions/{id}/config");
        let (status, body) = client.ask(Method::PATCH, &path, Some(json!({ "limits": limits }))).await;
        refused(&(status.as_u16(), body), "walls_required", "ASH_WALLS_REQUIRED=limits");
        let manifest = format!("[limits]\n{name} = 0\n");
        refused(&deploy(&client, "greedy", &manifest).await, "walls_required", &name);
    }
    // The required limits do not include disk space, so that one may be lifted.
    let body = json!({ "agent": "tester", "limits": { "diskMb": 0, "memoryMb": 100 } });
    assert_eq!(create(&client, body).await.0, 201);
}

/// Each mount of a sandbox, with its permissions.
const LOOK: &str = r#"while read -r _ _ _ _ at options _; do
if [ -c "$at" ]; then case ",$options," in *,nodev,*) how=hidden ;; *) how=device ;; esac
elif touch "$at/.looked" 2>/dev/null; then rm "$at/.looked"; how=writable
else how=read-only; fi
echo "$at $how"; done < /proc/self/mountinfo
for at in / /home /run /var /.ash; do for name in $(ls -A $at); do echo "${at%/}/$name there"; done; done"#;

/// The table in the documentation: each path, with its permissions.
fn documented() -> BTreeMap<String, String> {
    let text = include_str!("../../../docs/security.md");
    let section = text.split("\n## ").find(|section| section.starts_with("What is visible inside"));
    let rows = section.expect("a section").lines().filter(|line| line.starts_with("| `"));
    let mut all = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        for path in cells[0].split(',').map(|path| path.trim().trim_matches('`')) {
            all.insert(path.to_owned(), cells[1].to_owned());
        }
    }
    assert!(all.len() > 20, "{all:?}");
    all
}

async fn nothing_else_is_visible(server: Server) {
    let client = server.client();
    let id = client.create().await;
    let said = client.exec(&id, LOOK).await;
    let documented = documented();
    for line in said["stdout"].as_str().expect("a text").lines() {
        let (path, how) = line.rsplit_once(' ').expect("two words");
        let expected =
            documented.get(path).unwrap_or_else(|| panic!("{path} is not in docs/security.md: {said}"));
        assert!(how == "there" || how == expected, "{path} is {how}, and said to be {expected}");
    }
    // The paths that every program needs exist.
    for path in
        ["/", "/usr", "/etc", "/proc", "/dev", "/tmp", "/workspace", "/home/agent", "/.ash/ash", "/run/ash"]
    {
        let seen = said["stdout"]
            .as_str()
            .is_some_and(|text| text.lines().any(|line| line.starts_with(&format!("{path} "))));
        assert!(seen, "{path}: {said}");
    }
}

#[tokio::test]
async fn what_is_visible_inside_is_what_the_documents_list() {
    nothing_else_is_visible(Server::start().await).await;
    nothing_else_is_visible(Server::of_user(ORDINARY_USER, &[]).await).await;
}
