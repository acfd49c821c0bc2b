//! Push a folder, run, and pull the result: the real `ash` as a client.

use crate::support::{Client, KEY, Server};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A server, a session, and a user's folder.
struct Bench {
    server: Server,
    client: Client,
    id: String,
    dir: PathBuf,
}

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Bench {
    async fn new() -> Bench {
        let server = Server::start().await;
        let client = server.client();
        client.deploy("tester").await;
        let id = client.create().await;
        let dir = server.dir.join("project");
        fs::create_dir(&dir).expect("a folder");
        Bench { server, client, id, dir }
    }

    fn write(&self, name: &str, text: &str) {
        write(&self.dir.join(name), text);
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(name)).ok()
    }

    async fn ash(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(crate::support::ash());
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var("PATH").expect("PATH"))
            .env("HOME", &self.server.dir)
            .env("ASH_SERVER_URL", &self.server.url)
            .env("ASH_API_KEY", KEY)
            .stdin(Stdio::null())
            .current_dir(&self.dir);
        let output =
            tokio::task::spawn_blocking(move || command.output()).await.expect("a thread").expect("ash");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Ran {
            code: output.status.code().expect("an exit code"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    async fn fine(&self, args: &[&str]) -> Ran {
        let ran = self.ash(args).await;
        assert_eq!(ran.code, 0, "ash {args:?}: {}{}", ran.stdout, ran.stderr);
        ran
    }

    async fn run_inside(&self, command: &str) -> String {
        self.client.text(&self.id, &format!("run: {command}")).await
    }

    async fn diff(&self) -> Vec<String> {
        let found = self.fine(&["session", "diff", &self.id, "--json"]).await;
        let found: Value = serde_json::from_str(&found.stdout).expect("JSON");
        let files = found["files"].as_array().expect("files").iter();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        files.map(|file| format!("{} {}", text(&file["change"]), text(&file["path"]))).collect()
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    fs::write(path, text).expect("a file");
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).expect("a file").permissions().mode() & 0o100 != 0
}

#[tokio::test]
async fn a_folder_arrives_unchanged_without_ignored_files() {
    let bench = Bench::new().await;
    bench.write(".gitignore", "target/\n*.log\n");
    bench.write(".git/config", "mine");
    bench.write("target/out", "big");
    bench.write("a.log", "noise");
    bench.write("src/deep/main.rs", "fn main() {}\n");
    bench.write("grüße/世界 file.txt", "hello");
    bench.write(".hidden", "h");
    bench.write("run.sh", "#!/bin/sh\necho ran\n");
    fs::set_permissions(bench.dir.join("run.sh"), fs::Permissions::from_mode(0o755)).expect("chmod");
    symlink("src/deep/main.rs", bench.dir.join("link")).expect("a link");
    symlink("../.././/run.sh", bench.dir.join("src/deep/odd-link")).expect("a link");

    let pushed = bench.fine(&["session", "push", &bench.id]).await;

    assert!(pushed.stderr.contains("✓ 7 files, "), "{}", pushed.stderr);
    let found = bench
        .run_inside(
            "find . -type f -o -type l | sort; ./run.sh; readlink link src/deep/odd-link; cat 'grüße/世界 file.txt'",
        )
        .await;
    for line in [
        "./.gitignore",
        "./.hidden",
        "./grüße/世界 file.txt",
        "./link",
        "./run.sh",
        "./src/deep/odd-link",
        "./src/deep/main.rs",
    ] {
        assert!(found.lines().any(|found| found == line), "{line} in {found}");
    }
    for line in ["ran", "src/deep/main.rs", "../.././/run.sh", "hello"] {
        assert!(found.lines().any(|found| found == line), "{line} in {found}");
    }
    for absent in ["target", "a.log", ".git/config"] {
        assert!(!found.contains(absent), "{absent} in {found}");
    }
    assert_eq!(bench.diff().await, [""; 0]);

    let everything = bench.fine(&["session", "push", &bench.id, ".", "--all", "--json"]).await;
    let everything: Value = serde_json::from_str(&everything.stdout).expect("JSON");
    assert_eq!((&everything["files"], &everything["leftOut"]), (&json!(10), &json!([])));
    assert_eq!(bench.run_inside("cat .git/config target/out a.log").await.trim(), "minebignoise");
}

#[tokio::test]
async fn links_out_of_a_folder_are_left_out_and_reported_and_a_file_of_zeros_arrives() {
    let bench = Bench::new().await;
    bench.write("kept", "kept");
    symlink("../../etc/passwd", bench.dir.join("out")).expect("a link");
    symlink("/etc/passwd", bench.dir.join("absolute")).expect("a link");
    fs::write(bench.dir.join("zeros"), vec![0; 40 << 20]).expect("written");
    let pushed = bench.ash(&["session", "push", &bench.id, "--json"]).await;
    let answer: Value = serde_json::from_str(&pushed.stdout).expect("JSON");
    let paths: Vec<&str> = answer["leftOut"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|left| left["path"].as_str())
        .collect();
    assert_eq!((&answer["files"], paths), (&json!(2), vec!["absolute", "out"]), "{answer}");
    assert_eq!(bench.run_inside("stat -c %s zeros; ls").await.trim(), "41943040\nCLAUDE.md\nkept\nzeros");
}

#[tokio::test]
async fn the_agents_changes_are_shown_and_pulled() {
    let bench = Bench::new().await;
    bench.write(".gitignore", "target/\n");
    bench.write("keep.txt", "same\n");
    bench.write("edit.txt", "one\ntwo\nthree\n");
    bench.write("gone/old.txt", "old\n");
    bench.write("plain.sh", "echo hi\n");
    bench.fine(&["session", "push", &bench.id]).await;
    bench
        .run_inside("sed -i s/two/TWO/ edit.txt && rm -r gone && mkdir -p new target .git && echo fresh > new/file.txt && printf 'a\\0b' > new/bin && chmod +x plain.sh && ln -s keep.txt link && touch keep.txt target/ignored .git/HEAD Cargo.lock")
        .await;

    let expected = [
        "added Cargo.lock",
        "modified edit.txt",
        "deleted gone/old.txt",
        "added link",
        "added new/bin",
        "added new/file.txt",
        "modified plain.sh",
    ];
    assert_eq!(bench.diff().await, expected);
    let patch = bench.fine(&["session", "diff", &bench.id]).await.stdout;
    let edit = "diff --git a/edit.txt b/edit.txt\n--- a/edit.txt\n+++ b/edit.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n";
    assert!(patch.contains(edit), "{patch}");
    assert!(patch.contains("Binary files /dev/null and b/new/bin differ\n"), "{patch}");
    assert!(patch.contains("old mode 100644\nnew mode 100755\n"), "{patch}");
    let names = bench.fine(&["session", "diff", &bench.id, "--name-only"]).await.stdout;
    assert_eq!(names.lines().count(), expected.len());

    let other = bench.server.dir.join("other");
    let other_name = other.display().to_string();
    let pulled = bench.fine(&["session", "pull", &bench.id, &other_name]).await;
    assert!(pulled.stderr.contains("✓ 2 changed, 4 added\n"), "{}", pulled.stderr);
    assert_eq!(fs::read_to_string(other.join("edit.txt")).expect("a file"), "one\nTWO\nthree\n");

    let pulled = bench.fine(&["session", "pull", &bench.id]).await;
    assert!(pulled.stderr.contains("✓ 2 changed, 4 added, 1 deleted\n"), "{}", pulled.stderr);
    let listed = "A Cargo.lock\nM edit.txt\nD gone/old.txt\nA link -> keep.txt\nA new/bin\nA new/file.txt\nM plain.sh\n";
    assert_eq!(pulled.stdout, listed);
    assert_eq!(bench.read("edit.txt").as_deref(), Some("one\nTWO\nthree\n"));
    assert_eq!(bench.read("new/file.txt").as_deref(), Some("fresh\n"));
    assert_eq!(fs::read(bench.dir.join("new/bin")).expect("a file"), b"a\0b");
    assert_eq!(fs::read_link(bench.dir.join("link")).expect("a link"), Path::new("keep.txt"));
    assert!(is_executable(&bench.dir.join("plain.sh")) && !is_executable(&bench.dir.join("edit.txt")));
    assert!(
        !bench.dir.join("gone").exists()
            && !bench.dir.join("target").exists()
            && !bench.dir.join(".git").exists()
    );
    let again = bench.fine(&["session", "pull", &bench.id, ".", "--json"]).await.stdout;
    let again: Value = serde_json::from_str(&again).expect("JSON");
    let nothing =
        json!({ "changed": 0, "added": 0, "deleted": 0, "files": [], "conflicts": [], "leftOut": [] });
    assert_eq!(again, nothing);
}

#[tokio::test]
async fn a_pull_makes_no_link_that_leaves_the_folder_and_ignores_git_metadata() {
    let bench = Bench::new().await;
    bench.fine(&["session", "push", &bench.id]).await;
    let made = "mkdir .GIT sub; echo '[core] pager = evil' > .GIT/config; echo fine > sub/fine; ln -s fine sub/near; \
        ln -s /etc/passwd absolute; ln -s ../../etc/passwd out; ln -s sub/../../x sly; echo one > .hidden";
    bench.run_inside(made).await;

    let pulled = bench.ash(&["session", "pull", &bench.id]).await;

    assert_eq!(pulled.code, 1, "not everything came along: {}", pulled.stderr);
    assert_eq!(pulled.stdout, "A .hidden\nA sub/fine\nA sub/near -> fine\n");
    for line in [
        "left out: .GIT/config (git's own)",
        "left out: absolute (a link out of the folder, to /etc/passwd)",
        "left out: out (a link out of the folder, to ../../etc/passwd)",
        "left out: sly (a link out of the folder, to sub/../../x)",
        "✓ 3 added",
    ] {
        assert!(pulled.stderr.contains(line), "{line}: {}", pulled.stderr);
    }
    for name in [".GIT", "absolute", "out", "sly"] {
        assert!(fs::symlink_metadata(bench.dir.join(name)).is_err(), "{name}");
    }
    assert_eq!(bench.read("sub/near").as_deref(), Some("fine\n"));
    // Files that were left out do not block the next pull either.
    bench.run_inside("echo two > .hidden").await;
    let pulled = bench.ash(&["session", "pull", &bench.id, ".", "--json"]).await;
    let answer: Value = serde_json::from_str(&pulled.stdout).expect("JSON");
    assert_eq!(answer["files"], json!([{ "path": ".hidden", "change": "modified" }]), "{}", pulled.stderr);
    assert_eq!(bench.read(".hidden").as_deref(), Some("two\n"));
}

#[tokio::test]
async fn a_second_pull_brings_what_came_after_the_first() {
    let bench = Bench::new().await;
    bench.write("a.txt", "base\n");
    bench.fine(&["session", "push", &bench.id]).await;
    bench.run_inside("echo first > a.txt; echo first > new.txt").await;
    bench.fine(&["session", "pull", &bench.id]).await;
    bench.run_inside("echo second > a.txt; rm new.txt").await;
    bench.write("mine.txt", "mine\n");

    let pulled = bench.fine(&["session", "pull", &bench.id]).await;

    assert!(pulled.stderr.contains("✓ 1 changed, 1 deleted\n"), "{}", pulled.stderr);
    assert_eq!(
        ["a.txt", "new.txt", "mine.txt"].map(|name| bench.read(name)),
        [Some("second\n".to_owned()), None, Some("mine\n".to_owned())]
    );
    let other = bench.server.dir.join("other").display().to_string();
    let elsewhere = bench.fine(&["session", "pull", &bench.id, &other]).await;
    assert!(elsewhere.stderr.contains("✓ 1 changed\n"), "{}", elsewhere.stderr);
    bench.write("a.txt", "mine\n");
    bench.run_inside("echo third > a.txt").await;
    assert_eq!(bench.ash(&["session", "pull", &bench.id]).await.code, 5, "changed on both sides");
}

#[tokio::test]
async fn a_conflict_changes_nothing_until_it_is_forced() {
    let bench = Bench::new().await;
    bench.write("both.txt", "base\n");
    bench.write("theirs.txt", "base\n");
    bench.fine(&["session", "push", &bench.id]).await;
    bench.run_inside("echo agent > both.txt; echo agent > theirs.txt").await;
    bench.write("both.txt", "mine\n");

    let refused = bench.ash(&["session", "pull", &bench.id]).await;

    assert_eq!(refused.code, 5, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("both.txt: changed here too") && refused.stderr.contains("--force"),
        "{}",
        refused.stderr
    );
    assert_eq!(
        (bench.read("both.txt").as_deref(), bench.read("theirs.txt").as_deref()),
        (Some("mine\n"), Some("base\n"))
    );
    bench.fine(&["session", "pull", &bench.id, ".", "--force"]).await;
    assert_eq!(
        (bench.read("both.txt").as_deref(), bench.read("theirs.txt").as_deref()),
        (Some("agent\n"), Some("agent\n"))
    );
}

#[tokio::test]
async fn a_session_that_stopped_or_ended_still_gives_its_result() {
    let bench = Bench::new().await;
    bench.write("a.txt", "base\n");
    bench.fine(&["session", "push", &bench.id]).await;
    bench.run_inside("echo agent > a.txt; echo new > b.txt").await;

    bench.client.action(&bench.id, "stop").await;
    assert_eq!(bench.diff().await, ["modified a.txt", "added b.txt"]);
    bench.client.delete(&format!("/api/sessions/{}", bench.id)).await;
    assert_eq!(bench.diff().await, ["modified a.txt", "added b.txt"]);

    bench.fine(&["session", "pull", &bench.id]).await;
    assert_eq!(
        (bench.read("a.txt").as_deref(), bench.read("b.txt").as_deref()),
        (Some("agent\n"), Some("new\n"))
    );
    assert!(!bench.server.live(&bench.id).await.exists(), "reading makes no tree again");
    let refused = bench.ash(&["session", "push", &bench.id]).await;
    assert_eq!(refused.code, 6, "{}", refused.stderr);
}

#[tokio::test]
async fn a_second_push_starts_there_and_keeps_the_agents_changes() {
    let bench = Bench::new().await;
    bench.write("a.txt", "base\n");
    bench.fine(&["session", "push", &bench.id]).await;
    bench.run_inside("echo agent > a.txt").await;
    bench.write("a.txt", "mine\n");

    let pushed = bench.fine(&["session", "push", &bench.id]).await;

    assert!(pushed.stderr.contains(": 1 change since the last push"), "{}", pushed.stderr);
    assert_eq!(bench.diff().await, [""; 0]);
    let kept = bench.client.session(&bench.id).await["config"]["base"].as_u64().expect("a base") - 1;
    let path = format!("/api/sessions/{}/files/a.txt?format=json&checkpoint={kept}", bench.id);
    assert_eq!(bench.client.get(&path).await["content"], "agent\n");
    assert_eq!(bench.run_inside("cat a.txt").await.trim(), "mine");
}

#[tokio::test]
async fn a_fork_counts_from_its_parents_push() {
    let bench = Bench::new().await;
    bench.write("a.txt", "base\n");
    bench.fine(&["session", "push", &bench.id]).await;
    bench.run_inside("echo parent > a.txt").await;
    let fork = bench.fine(&["session", "fork", &bench.id]).await.stdout.trim().to_owned();
    bench.client.say(&fork, "run: echo fork > b.txt").await;
    let names = bench.fine(&["session", "diff", &fork, "--name-only"]).await.stdout;
    assert_eq!(names, "a.txt\nb.txt\n");
}

#[tokio::test]
async fn a_folder_of_many_bundles_arrives_whole() {
    let bench = Bench::new().await;
    let mut noise = 0x2545_F491_4F6C_DD1Du64;
    for name in ["one", "two", "three"] {
        let bytes: Vec<u8> = (0..15_000_000 / 8)
            .flat_map(|_| {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                noise.to_le_bytes()
            })
            .collect();
        fs::write(bench.dir.join(name), bytes).expect("a file");
    }
    let ran = bench.fine(&["session", "create", "tester", "--dir", "."]).await;
    let id = ran.stdout.trim();
    assert!(ran.stderr.contains("✓ 3 files, 45.0 MB"), "{}", ran.stderr);
    let sums = bench.client.exec(id, "cat one two three | sha256sum").await;
    let here =
        Command::new("sh").args(["-c", "cat one two three | sha256sum"]).current_dir(&bench.dir).output();
    assert_eq!(sums["stdout"], String::from_utf8(here.expect("sha256sum").stdout).expect("UTF-8"));
}

#[tokio::test]
async fn a_push_says_what_it_left_out_and_refuses_while_a_turn_runs() {
    let bench = Bench::new().await;
    bench.write("fine", "x");
    fs::File::create(bench.dir.join("huge")).and_then(|file| file.set_len(101 << 20)).expect("a file");
    let ran = bench.ash(&["session", "push", &bench.id]).await;
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("left out: huge (105.9 MB is more than") && ran.stderr.contains("✓ 1 file, 1 B"),
        "{}",
        ran.stderr
    );

    let mut stream =
        bench.client.send(&bench.id, "hold never: one two three four five six seven eight nine").await;
    stream.until("text_delta").await;
    let ran = bench.ash(&["session", "push", &bench.id]).await;
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    let asked = bench
        .client
        .ask(Method::POST, &format!("/api/sessions/{}/checkpoints", bench.id), Some(json!({})))
        .await;
    assert_eq!((asked.0, &asked.1["code"]), (StatusCode::CONFLICT, &json!("turn_running")));
    bench.client.action(&bench.id, "interrupt").await;
    stream.rest().await;
}

#[tokio::test]
async fn a_checkpoint_that_is_not_there_is_not_found() {
    let bench = Bench::new().await;
    for path in ["checkpoints/999/diff", "checkpoints/x/diff", "files/a.txt?checkpoint=999"] {
        let (status, body) =
            bench.client.ask(Method::GET, &format!("/api/sessions/{}/{path}", bench.id), None).await;
        assert_eq!(
            (status, &body["code"]),
            (StatusCode::NOT_FOUND, &json!("checkpoint_not_found")),
            "{path}"
        );
    }
    let own = bench
        .client
        .request(Method::GET, &format!("/api/sessions/{}/files/CLAUDE.md?checkpoint=0", bench.id));
    assert_eq!(own.send().await.expect("a file").text().await.expect("a text"), "You are a test.");
}
