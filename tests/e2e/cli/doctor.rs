//! `ash doctor` on this machine, as root and as another user, and where bubblewrap is missing.

use crate::support::{Server, as_root, ash, claude::pretend, eventually};
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

/// Hides bubblewrap in a mount namespace, then runs the rest of the arguments.
const COVERED: &str = "for p in /usr/bin/bwrap /usr/local/bin/bwrap /bin/bwrap /run/current-system/sw/bin/bwrap; do \
    if [ -f $p ]; then mount --bind /dev/null $p || exit 99; fi; done; exec \"$@\"";

fn doctor(server: &Server, uid: Option<u32>, bwrap: Bwrap) -> Command {
    let mut words: Vec<String> = Vec::new();
    if bwrap == Bwrap::Missing {
        words.extend(["unshare", "--mount", "sh", "-c", COVERED, "sh"].map(str::to_owned));
    }
    let mut program = ash();
    if let Some(uid) = uid {
        // A place that the user can read.
        program = server.dir.join("ash");
        std::fs::copy(ash(), &program).expect("a copy of the binary");
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

/// The line of a check, without padding.
fn line(text: &str, name: &str) -> String {
    let named = |line: &&str| line.chars().skip(2).collect::<String>().starts_with(&format!("{name} "));
    let line = text.lines().find(named).unwrap_or_else(|| panic!("no line {name:?} in\n{text}"));
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn as_root_the_report_for_root_says_that_walls_can_be_built() {
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
fn the_report_for_an_ordinary_user_names_what_needs_root() {
    let server = Server::prepare(&[]);
    let user = as_root().then_some(USER);
    let output = doctor(&server, user, Bwrap::There).output().expect("ash doctor");
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "a warning is no problem:\n{text}");
    assert_eq!(line(&text, "walls"), "✓ walls a sandbox starts and ends");
    assert_eq!(
        line(&text, "cgroups"),
        "! cgroups only root can use them: memory is only measured from time to time, processors are not limited"
    );
    assert_eq!(
        line(&text, "limits"),
        "✓ limits memory 2048 MB (watchdog), processors any (nobody), processes 512 (rlimit), disk 10240 MB (watchdog)"
    );
    assert!(!text.contains("sandbox uids"), "they are root's:\n{text}");
    assert!(text.trim_end().ends_with("warning") || text.trim_end().ends_with("warnings"), "{text}");
}

#[test]
fn as_root_without_bubblewrap_the_report_says_how_to_get_it() {
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
    let settings = line(&text, "settings");
    assert!(settings.contains("'many'") && settings.ends_with("(from ASH_PORT)"), "{text}");
    let repair = server.command_of(&["repair"]).env("ASH_PORT", "many").output().expect("ash repair");
    let said = String::from_utf8_lossy(&repair.stderr).into_owned();
    assert_eq!(repair.status.code(), Some(2), "{said}");
    assert!(
        said.starts_with("error: invalid value 'many'") && said.trim_end().ends_with("(from ASH_PORT)"),
        "{said}"
    );
}

#[test]
fn a_claude_code_is_shown_with_its_version_and_the_oldest_that_works() {
    let server = Server::prepare(&[]);
    let program = server.dir.join("claude");
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", server.dir.display());
    let said = |named: bool| {
        let mut command = doctor(&server, None, Bwrap::There);
        command.env("PATH", &path);
        if named {
            command.env("ASH_CLAUDE_BIN", &program);
        }
        let output = command.output().expect("ash doctor");
        (output.status.code(), text(&output))
    };
    let (shown, oldest) = (program.display(), ash_driver::OLDEST_CLAUDE);
    pretend(&program, "2.0.14");
    let old = format!("agent claude 2.0.14 at {shown} is too old for ash: {oldest} is the oldest that works");
    let (code, text) = said(false);
    assert_eq!((code, line(&text, "agent claude")), (Some(0), format!("! {old}")));
    assert!(text.contains("npm install -g @anthropic-ai/claude-code@latest"), "{text}");
    let (code, text) = said(true);
    assert_eq!((code, line(&text, "agent claude")), (Some(1), format!("✗ {old}")));
    pretend(&program, "2.1.325");
    let new = format!("✓ agent claude 2.1.325 (Claude Code) ({shown}); {oldest} is the oldest that works");
    assert_eq!(line(&said(true).1, "agent claude"), new);
}

#[tokio::test]
async fn a_running_server_and_its_key_are_checked() {
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

#[tokio::test]
async fn a_running_server_is_asked_for_its_settings_and_its_troubles() {
    let secret = "sk-secret-of-the-server";
    let mut server = Server::with(&[
        ("ASH_LIMITS", "diskMb=123"),
        ("ASH_MAX_SANDBOXES", "7"),
        ("ANTHROPIC_API_KEY", secret),
        ("ANTHROPIC_BASE_URL", "http://127.0.0.1:9"),
    ])
    .await;
    let asked = |server: &Server, here: &[(&str, &str)]| {
        let mut command = doctor(server, None, Bwrap::There);
        command.env("ASH_API_KEY", crate::support::KEY).envs(here.iter().copied());
        let output = command.output().expect("ash doctor");
        (output.status.code(), text(&output))
    };
    server.client().create().await;
    // The shell's environment has none of these settings.
    let (code, said) = asked(&server, &[]);
    assert_eq!(code, Some(0), "{said}");
    let settings = format!("✓ settings those of the running server (pid {})", server.pid());
    assert_eq!(line(&said, "settings"), settings);
    assert!(line(&said, "limits").contains("disk 123 MB"), "{said}");
    assert!(line(&said, "agent builtin").ends_with("with the models of http://127.0.0.1:9"), "{said}");
    assert_eq!(line(&said, "in use"), "✓ in use 1 active session, 1 sandbox of 7 (0 at work)");
    assert!(
        line(&said, "port").ends_with(&format!("is used by your server (pid {})", server.pid())),
        "{said}"
    );
    // Differences in the shell's environment are reported but do not affect the result.
    let (code, said) =
        asked(&server, &[("ASH_LIMITS", "diskMb=5"), ("ASH_MAX_SANDBOXES", "7"), ("ASH_GC_EVERY", "1")]);
    assert_eq!(code, Some(0), "{said}");
    assert!(line(&said, "settings").starts_with('!'), "{said}");
    assert!(
        line(&said, "settings").ends_with("other ones than this shell: ASH_GC_EVERY, ASH_LIMITS"),
        "{said}"
    );
    assert!(line(&said, "limits").contains("disk 123 MB") && said.contains("ash restart"), "{said}");
    // An invalid variable does not prevent the request to the server.
    let (_, said) = asked(&server, &[("ASH_PORT", "many")]);
    assert!(line(&said, "server").starts_with("✓ server ash "), "{said}");
    assert!(!said.contains(secret), "{said}");
    let noted = std::fs::read_to_string(server.data.join("server.json")).expect("a note");
    assert!(noted.contains("diskMb=123") && !noted.contains(secret), "{noted}");
    assert!(!noted.contains(crate::support::KEY), "{noted}");
    // The server's own trouble report is shown unchanged.
    server.set("ASH_MIN_FREE_MB", &disk_mb(&server.dir).to_string());
    server.crash_and_start().await;
    let health = || server.client();
    eventually("it notices", async || (health().get("/health").await["status"] == "full").then_some(()))
        .await;
    let (code, said) = asked(&server, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(line(&said, "server").ends_with("it is full"), "{said}");
    assert!(line(&said, "trouble").starts_with("✗ trouble The server's disk has only"), "{said}");
    assert!(said.contains("disk_full since just now"), "{said}");
    // Without the key the shell learns only that something is wrong.
    let said =
        text(&doctor(&server, None, Bwrap::There).env("ASH_API_KEY", "wrong").output().expect("ash doctor"));
    assert!(
        line(&said, "server").ends_with("does not accept the key, and says that something is wrong with it"),
        "{said}"
    );
}

#[tokio::test]
async fn the_running_servers_report_on_its_object_store_counts() {
    let server = Server::with(&[
        ("ASH_SNAPSHOT_URL", "s3://bucket/prefix"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_REGION", "us-east-1"),
    ])
    .await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "hello").await;
    let troubled = async || {
        let health = client.get("/health").await;
        (health["objectStore"]["status"] == "trouble").then_some(())
    };
    eventually("the store is missed", troubled).await;
    let mut command = doctor(&server, None, Bwrap::There);
    let output = command.env("ASH_API_KEY", crate::support::KEY).output().expect("ash doctor");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        line(&said, "object store").starts_with("✗ object store unreachable; 1 checkpoint to be sent"),
        "{said}"
    );
    assert!(said.contains("Until then data is saved only on this machine."), "{said}");
}

#[tokio::test]
async fn another_program_on_the_usual_port_gets_no_key() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port().to_string();
    let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let headers = heard.clone();
    let stranger = axum::Router::new().fallback(move |request: axum::extract::Request| async move {
        headers.lock().expect("whole").push(format!("{} {:?}", request.uri(), request.headers()));
        r#"{"pool":{"maxCapacity":1},"version":"0.1.0"}"#
    });
    let serving = tokio::spawn(async move { axum::serve(listener, stranger).await });
    let server = Server::prepare(&[]);
    let mut command = doctor(&server, None, Bwrap::There);
    command.env("ASH_API_KEY", "sk-our-own-key").env("ASH_PORT", &port);
    let output =
        tokio::task::spawn_blocking(move || command.output()).await.expect("run").expect("ash doctor");
    serving.abort();
    let said = text(&output);
    assert!(line(&said, "port").ends_with("is used by an ash server with another data directory"), "{said}");
    assert_eq!(line(&said, "server"), "✓ server not started; `ash start` starts it");
    let heard = heard.lock().expect("whole").clone();
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert!(heard[0].starts_with("/health ") && !heard[0].contains("our-own-key"), "{heard:?}");
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

/// The size of the whole disk; some of it is always in use.
fn disk_mb(path: &Path) -> u64 {
    let output = Command::new("df").args(["--output=size", "-BM"]).arg(path).output().expect("df");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let size = text.lines().last().and_then(|line| line.trim().trim_end_matches('M').parse::<u64>().ok());
    size.expect("a number") - 1
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}
