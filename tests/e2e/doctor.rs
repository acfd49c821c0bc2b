//! `ash doctor` on this machine, as root and as somebody else, and where bubblewrap is missing.

use crate::support::{Server, as_root, ash};
use serde_json::Value;
use std::{
    path::Path,
    process::{Command, Output},
};

const USER: u32 = 4242;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bwrap {
    There,
    Missing,
}

/// Covers bubblewrap in a mount namespace of its own, then runs the rest of its arguments.
const COVERED: &str = "for p in /usr/bin/bwrap /usr/local/bin/bwrap /bin/bwrap /run/current-system/sw/bin/bwrap; do \
    if [ -f $p ]; then mount --bind /dev/null $p || exit 99; fi; done; exec \"$@\"";

fn doctor(server: &Server, uid: Option<u32>, bwrap: Bwrap) -> Command {
    let mut words: Vec<String> = Vec::new();
    if bwrap == Bwrap::Missing {
        words.extend(["unshare", "--mount", "sh", "-c", COVERED, "sh"].map(str::to_owned));
    }
    let program = server.dir.join("ash");
    std::fs::copy(ash(), &program).expect("a copy of the binary");
    if let Some(uid) = uid {
        std::os::unix::fs::chown(&server.dir, Some(uid), Some(uid)).expect("chown");
        let drop = format!("setpriv --reuid={uid} --regid={uid} --clear-groups --");
        words.extend(drop.split(' ').map(str::to_owned));
    }
    words.extend([program.display().to_string(), "doctor".to_owned()]);
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", &server.dir)
        .env("ASH_DATA_DIR", &server.data)
        .env("ASH_PORT", "0")
        .current_dir("/");
    command
}

fn text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors, "", "nothing goes wrong, whatever is missing");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The line of a check, without the padding.
fn line(text: &str, name: &str) -> String {
    let named = |line: &&str| line.chars().skip(2).collect::<String>().starts_with(&format!("{name} "));
    let line = text.lines().find(named).unwrap_or_else(|| panic!("no line {name:?} in\n{text}"));
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn as_root_root_hears_that_walls_can_be_built_here() {
    assert!(as_root(), "what root hears");
    let server = Server::prepare(&[]);
    let output = doctor(&server, None, Bwrap::There).output().expect("ash doctor");
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(line(&text, "kernel").starts_with("✓ kernel Linux "));
    assert!(line(&text, "bubblewrap").starts_with("✓ bubblewrap /"));
    assert_eq!(line(&text, "walls"), "✓ walls a sandbox starts and ends");
    assert!(line(&text, "cgroups").ends_with("writable: memory and processes are limited per sandbox"));
    assert!(line(&text, "limits").starts_with("✓ limits memory 2048 MB (cgroup"), "{text}");
    assert!(line(&text, "sandbox uids").contains("200000-265535"));
    assert!(line(&text, "data").ends_with("data is made at the first start"));
    assert_eq!(line(&text, "database"), "✓ database on a local file system");
    let builtin = format!(
        "✓ agent builtin {} without a model: there is no ANTHROPIC_API_KEY",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(line(&text, "agent builtin"), builtin);
    let with_key = doctor(&server, None, Bwrap::There)
        .env("ANTHROPIC_API_KEY", "sk-secret")
        .output()
        .expect("ash doctor");
    let with_key = self::text(&with_key);
    assert!(
        line(&with_key, "agent builtin").ends_with("with the models of https://api.anthropic.com"),
        "{with_key}"
    );
    assert!(!with_key.contains("sk-secret"), "{with_key}");
    assert_eq!(line(&text, "server"), "✓ server not started; `ash start` starts it");
    assert!(!server.data.exists(), "looking changes nothing");
}

#[test]
fn an_ordinary_user_hears_what_only_root_has() {
    let server = Server::prepare(&[]);
    let somebody = as_root().then_some(USER);
    let output = doctor(&server, somebody, Bwrap::There).output().expect("ash doctor");
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "a warning is no problem:\n{text}");
    assert_eq!(line(&text, "walls"), "✓ walls a sandbox starts and ends");
    assert_eq!(
        line(&text, "cgroups"),
        "! cgroups only root can use them: memory is only watched from time to time, processors are not limited"
    );
    assert_eq!(
        line(&text, "limits"),
        "✓ limits memory 2048 MB (watchdog), processors any (nobody), processes 512 (rlimit), disk 10240 MB (watchdog)"
    );
    assert!(!text.contains("sandbox uids"), "they are root's:\n{text}");
    assert!(text.trim_end().ends_with("warning") || text.trim_end().ends_with("warnings"), "{text}");
}

#[test]
fn as_root_whoever_lacks_bubblewrap_hears_how_to_get_it() {
    assert!(as_root(), "only root can hide a program");
    for uid in [None, Some(USER)] {
        let server = Server::prepare(&[]);
        let output = doctor(&server, uid, Bwrap::Missing).output().expect("ash doctor");
        let text = text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert_eq!(line(&text, "bubblewrap"), "✗ bubblewrap bubblewrap is not installed");
        assert_eq!(line(&text, "walls"), "✗ walls bubblewrap is not installed");
        assert!(text.contains("apt-get install bubblewrap"), "{text}");
        assert!(text.contains("\n2 problems, "), "{text}");
    }
}

#[test]
fn as_root_programs_get_json() {
    assert!(as_root(), "only root can hide a program");
    let server = Server::prepare(&[]);
    let output = doctor(&server, None, Bwrap::Missing).arg("--json").output().expect("ash doctor");
    let report: Value = serde_json::from_str(&text(&output)).expect("JSON");
    assert_eq!((output.status.code(), &report["problems"]), (Some(1), &Value::from(2)));
    let checks = report["checks"].as_array().expect("a list");
    let walls = checks.iter().find(|check| check["name"] == "walls").expect("walls");
    assert_eq!(
        (&walls["status"], &walls["found"]),
        (&"problem".into(), &"bubblewrap is not installed".into())
    );
}

#[test]
fn settings_that_no_server_would_take_are_named() {
    let server = Server::prepare(&[]);
    let output = doctor(&server, None, Bwrap::There).env("ASH_PORT", "many").output().expect("ash doctor");
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(line(&text, "settings").contains("many"), "{text}");
}

#[tokio::test]
async fn a_running_server_and_its_key_are_looked_at() {
    let server = Server::start().await;
    let with_key = |key: &str| {
        let output =
            doctor(&server, None, Bwrap::There).env("ASH_API_KEY", key).output().expect("ash doctor");
        (output.status.code(), line(&text(&output), "server"))
    };
    let good = format!("✓ server ash {} at {}, and the key is valid", env!("CARGO_PKG_VERSION"), server.url);
    assert_eq!(with_key(crate::support::KEY), (Some(0), good));
    assert_eq!(with_key("wrong"), (Some(1), format!("✗ server {} does not accept the key", server.url)));
}

#[test]
fn data_that_others_could_read_is_noticed() {
    let server = Server::prepare(&[]);
    std::fs::create_dir(&server.data).expect("a directory");
    set_mode(&server.data, 0o755);
    let output = doctor(&server, None, Bwrap::There).output().expect("ash doctor");
    assert!(line(&text(&output), "data").ends_with("is open to others (mode 0755)"));
}

#[test]
fn as_root_data_that_is_not_the_user_s_is_noticed() {
    assert!(as_root(), "only root can become another user");
    let server = Server::prepare(&[]);
    std::fs::create_dir(&server.data).expect("a directory");
    set_mode(&server.data, 0o700);
    let output = doctor(&server, Some(USER), Bwrap::There).output().expect("ash doctor");
    assert_eq!(output.status.code(), Some(1));
    assert!(line(&text(&output), "data").ends_with(&format!("belongs to uid 0, and you are uid {USER}")));
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}
