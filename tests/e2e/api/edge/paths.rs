//! Agents that are deployed from folders on the server's machine.

use crate::support::{Server, own_uid};
use reqwest::Method;
use serde_json::{Value, json};
use std::process::Command;

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("CLAUDE.md"), "hello").expect("written");
    dir
}

#[tokio::test]
async fn a_path_is_read_only_for_the_servers_own_user_without_a_proxy() {
    let (server, dir) = (Server::start().await, folder());
    let body = json!({ "name": "local", "path": dir.path() });
    server.client().post("/api/agents", body.clone()).await;
    for header in ["forwarded", "x-forwarded-for", "x-forwarded-proto", "via", "x-real-ip"] {
        let request = server.client().request(Method::POST, "/api/agents").json(&body).header(header, "x");
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status().as_u16(), 400, "{header}");
        let said: Value = response.json().await.expect("json");
        assert_eq!(said["code"], "path_not_allowed", "{said}");
    }
}

/// Another user of the machine, who knows the key.
#[tokio::test]
async fn as_root_a_path_is_not_read_for_another_user() {
    if own_uid() != 0 {
        return;
    }
    let (server, dir) = (Server::start().await, folder());
    let body = json!({ "name": "local", "path": dir.path() }).to_string();
    let mut curl = Command::new("curl");
    curl.args(["-s", "-d", &body, "-H", &format!("Authorization: Bearer {}", server.client().key)]);
    curl.arg(format!("{}/api/agents", server.url));
    std::os::unix::process::CommandExt::uid(&mut curl, 12_345);
    let said: Value = serde_json::from_slice(&curl.output().expect("curl runs").stdout).expect("json");
    assert_eq!(said["code"], "path_not_allowed", "{said}");
}

#[tokio::test]
async fn with_agent_dirs_a_path_must_be_beneath_one_of_them() {
    let (dir, other) = (folder(), folder());
    let dirs = format!("/nowhere,{}", dir.path().display());
    let server = Server::with(&[("ASH_AGENT_DIRS", &dirs)]).await;
    std::os::unix::fs::symlink(other.path(), dir.path().join("link")).expect("a link");
    let deploy = async |path: &std::path::Path, headers: &[(&str, &str)]| {
        let body = json!({ "name": "local", "path": path });
        let request = server.client().request(Method::POST, "/api/agents").json(&body);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.send().await.expect("an answer").status().as_u16()
    };
    // The server's own user may deploy these folders, with a forwarding header or without.
    for headers in [&[("via", "x")][..], &[]] {
        assert_eq!(deploy(dir.path(), headers).await, 201, "{headers:?}");
        for out in [other.path(), &dir.path().join("link"), &dir.path().join("..")] {
            assert_eq!(deploy(out, headers).await, 400, "{headers:?} {}", out.display());
        }
    }
}

#[tokio::test]
async fn ash_deploy_leaves_out_what_bundles_leave_out() {
    let (server, dir) = (Server::start().await, folder());
    for name in [".env", ".env.production", ".env.staging", ".envrc", "prod.env", "kept.txt"] {
        std::fs::write(dir.path().join(name), "KEY=secret").expect("written");
    }
    let path = dir.path().to_str().expect("UTF-8");
    let done = server
        .command_of(&["deploy", path, "--name", "clean"])
        .env("ASH_SERVER_URL", &server.url)
        .env("ASH_API_KEY", server.client().key)
        .output()
        .expect("it runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let client = server.client();
    client.post("/api/sessions", json!({ "agent": "clean", "sessionId": "it" })).await;
    let there = client.exec("it", "ls -A").await;
    assert_eq!(there["stdout"], "CLAUDE.md\nkept.txt\n", "{there}");
    client.exec("it", "touch .env.staging .envrc prod.env").await;
    let bundle = client.request(Method::GET, "/api/sessions/it/workspace").send().await.expect("a bundle");
    let bundle = bundle.bytes().await.expect("bytes");
    let names = String::from_utf8_lossy(&gunzip(&bundle)).into_owned();
    assert!(names.contains("kept.txt") && !names.contains(".env"), "bundles too");
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes), &mut plain).expect("gzip");
    plain
}
