//! A session's files over the API: round trips in every state, and an agent that plants links and swaps folders to make
//! the server read or write outside its workspace.

use crate::support::{Client, KEY, Server, eventually, signal};
use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    path::PathBuf,
};

const SECRET: &str = "the-operators-secret";

pub(crate) struct Files {
    pub(crate) client: Client,
    pub(crate) id: String,
}

impl Files {
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/api/sessions/{}/{rest}", self.id)
    }

    pub(crate) async fn list(&self) -> BTreeMap<String, u64> {
        let listed = self.client.get(&self.path("files")).await;
        let files = listed["files"].as_array().expect("a list").iter();
        let of = |file: &Value| Some((file["path"].as_str()?.to_owned(), file["size"].as_u64()?));
        files.map(|file| of(file).expect("a file")).collect()
    }

    pub(crate) async fn write(&self, path: &str, text: &str) -> Value {
        let body = json!({ "files": [{ "path": path, "content": STANDARD.encode(text) }] });
        self.client.post(&self.path("files"), body).await["files"][0].clone()
    }

    async fn raw(&self, path: &str) -> (StatusCode, Vec<u8>) {
        let request = self.client.request(Method::GET, &self.path(&format!("files/{path}")));
        let response = request.send().await.expect("read");
        (response.status(), response.bytes().await.expect("a body").to_vec())
    }

    pub(crate) async fn text(&self, path: &str) -> String {
        let (status, bytes) = self.raw(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {}", String::from_utf8_lossy(&bytes));
        String::from_utf8(bytes).expect("UTF-8")
    }

    /// The source that the list, a file as JSON and a raw file report.
    async fn sources(&self, url: &str) -> [String; 3] {
        let listed = self.client.get(&self.path("files")).await;
        let shown = self.client.get(&self.path(&format!("files/{url}?format=json"))).await;
        let raw = self.client.request(Method::GET, &self.path(&format!("files/{url}"))).send().await;
        let header = raw.expect("a file").headers()["x-ash-source"].to_str().expect("text").to_owned();
        let text = |value: &Value| value["source"].as_str().expect("a source").to_owned();
        [text(&listed), text(&shown), header]
    }

    async fn delete(&self, path: &str) -> (u16, Value) {
        let (status, body) =
            self.client.ask(Method::DELETE, &self.path(&format!("files/{path}")), None).await;
        (status.as_u16(), body)
    }

    /// The bundle as name to content. It contains only files.
    async fn bundle(&self) -> BTreeMap<String, String> {
        let response =
            self.client.request(Method::GET, &self.path("workspace")).send().await.expect("bundle");
        assert_eq!(response.headers()["content-type"], "application/gzip");
        let bytes = response.bytes().await.expect("a body");
        let mut tar = tar::Archive::new(GzDecoder::new(&bytes[..]));
        let mut files = BTreeMap::new();
        for entry in tar.entries().expect("a tar") {
            let mut entry = entry.expect("an entry");
            assert_eq!(entry.header().entry_type(), tar::EntryType::Regular);
            let mut text = String::new();
            let name = entry.path().expect("a path").display().to_string();
            entry.read_to_string(&mut text).expect("text");
            files.insert(name, text);
        }
        files
    }

    pub(crate) async fn unbundle(&self, bundle: &[u8]) -> (u16, Value) {
        let body = json!({ "bundle": STANDARD.encode(bundle) });
        let (status, body) = self.client.ask(Method::POST, &self.path("workspace"), Some(body)).await;
        (status.as_u16(), body)
    }

    async fn checkpoint(&self) -> Option<u64> {
        self.client.session(&self.id).await["checkpoint"]["local"].as_u64()
    }
}

pub(crate) async fn start() -> (Server, Files) {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    (server, Files { client, id })
}

/// A tar with raw headers, because the library would not write these.
#[derive(Default)]
pub(crate) struct Tar(pub(crate) Vec<u8>);

impl Tar {
    pub(crate) fn entry(mut self, kind: tar::EntryType, name: &str, link: &str, content: &[u8]) -> Tar {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o666);
        let gnu = header.as_gnu_mut().expect("a GNU header");
        gnu.name[..name.len()].copy_from_slice(name.as_bytes());
        gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, content: &str) -> Tar {
        self.entry(tar::EntryType::Regular, name, "", content.as_bytes())
    }

    pub(crate) fn gzip(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        gzip(&self.0)
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).expect("packed");
    gzip.finish().expect("packed")
}

/// The stderr of `ash session files`.
fn shown_by_the_shell(server: &Server, files: &Files, more: &[&str]) -> String {
    let mut shell = server.command_of(&["session", "files", &files.id]);
    shell.args(more).env("ASH_SERVER_URL", &server.url).env("ASH_API_KEY", KEY);
    let output = shell.output().expect("ash");
    assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).expect("UTF-8")
}

#[tokio::test]
async fn files_go_round_while_active_paused_and_stopped_and_are_only_read_when_ended() {
    let (server, files) = start().await;
    for state in ["active", "pause", "stop"] {
        if state != "active" {
            files.client.action(&files.id, state).await;
        }
        let name = format!("{state}/ü name.txt");
        let url = format!("{state}/%C3%BC%20name.txt");
        let written = files.write(&name, "one").await;
        assert_eq!(written, json!({ "path": name, "written": true, "size": 3 }), "{state}");
        files.write(&name, "second").await;
        assert_eq!(files.text(&url).await, "second");
        let shown = files.client.get(&files.path(&format!("files/{url}?format=json"))).await;
        assert_eq!((shown["content"].as_str(), shown["size"].as_u64()), (Some("second"), Some(6)));
        let (source, words) = match state {
            // A pause keeps the sandbox.
            "active" | "pause" => ("sandbox", "from its sandbox\n"),
            _ => ("snapshot", "from its snapshot: it has no sandbox now\n"),
        };
        assert_eq!(files.sources(&url).await, [source; 3], "{state}");
        assert_eq!(shown_by_the_shell(&server, &files, &[]), words, "{state}");
        assert_eq!(shown_by_the_shell(&server, &files, &[&name]), words, "{state}");
        assert_eq!(files.list().await.get(&name), Some(&6), "{state}");
        let bundle = Tar::default().file(&format!("./{state}/bundled"), "in a bundle").gzip();
        let (status, answer) = files.unbundle(&bundle).await;
        assert_eq!((status, answer["written"].as_u64()), (200, Some(1)), "{answer}");
        let packed = files.bundle().await;
        assert_eq!(packed.get(&name).map(String::as_str), Some("second"), "{packed:?}");
        assert_eq!(packed.get(&format!("{state}/bundled")).map(String::as_str), Some("in a bundle"));
        files.write(&format!("{state}/gone"), "x").await;
        assert_eq!(files.delete(&format!("{state}/gone")).await.0, 200);
        assert_eq!(files.raw(&format!("{state}/gone")).await.0, StatusCode::NOT_FOUND);
        if state == "pause" {
            files.client.action(&files.id, "resume").await;
        }
    }
    // Files that were uploaded while it was stopped are there afterwards, and belong to the agent.
    let text = files.client.text(&files.id, "run: cat stop/bundled; echo >> stop/bundled && ls stop").await;
    assert_eq!(text.trim(), "in a bundlebundled\nü name.txt");
    let (before, packed) = (files.list().await, files.bundle().await);
    files.client.delete(&format!("/api/sessions/{}", files.id)).await;
    assert_eq!((files.list().await, files.bundle().await), (before, packed));
    assert_eq!(files.text("pause/bundled").await, "in a bundle");
    assert_eq!(files.sources("pause/bundled").await, ["snapshot"; 3], "its newest checkpoint");
    let checkpoint = files.checkpoint().await.expect("a checkpoint");
    let words = shown_by_the_shell(&server, &files, &["--checkpoint", &checkpoint.to_string()]);
    assert_eq!(words, format!("from checkpoint {checkpoint}\n"));
    assert_eq!(files.delete("pause/bundled").await.0, 400);
    let bundle = Tar::default().file("x", "y").gzip();
    assert_eq!(files.unbundle(&bundle).await.0, 400);
}

/// A folder of the operator's in the data directory, which no agent may reach.
fn vault(server: &Server) -> PathBuf {
    let vault = server.data.join("vault");
    std::fs::create_dir(&vault).expect("made");
    std::fs::write(vault.join("f"), SECRET).expect("written");
    vault
}

fn is_untouched(vault: &PathBuf) {
    let names: Vec<_> = std::fs::read_dir(vault).expect("read").flatten().map(|e| e.file_name()).collect();
    assert_eq!(names, ["f"]);
    assert_eq!(std::fs::read_to_string(vault.join("f")).expect("read"), SECRET);
}

fn is_outside(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.contains(SECRET) || text.contains("root:x:0:0") || text.contains("SQLite format")
}

#[tokio::test]
async fn links_planted_by_the_agent_lead_nowhere() {
    let (server, files) = start().await;
    let vault = vault(&server);
    let data = server.data.display();
    let plant = format!(
        "ln -s /etc/passwd abs; ln -s ../../../../../../../../../etc/passwd rel; ln -s abs chain; ln -s chain chain2; \
         ln -s / root; ln -s .. up; ln -s {data}/vault dir; ln -s {data}/vault/f secret; ln -s {data}/ash.db db; \
         ln -s ../../../../vault/f near; ln -s ../home/.gitconfig home; ln -s loop loop; ln -s /proc/self/environ env; \
         ln -s /proc/self/root/etc/passwd magic; mkfifo fifo; mkdir -p sub/deep; ln -s ../../abs sub/deep/link; \
         echo good > good.txt; ln -s good.txt inside; ln sub/deep/link hard; chmod 4777 good.txt; echo planted"
    );
    assert_eq!(files.client.exec(&files.id, &plant).await["stdout"], "planted\n");
    let links = [
        "abs",
        "rel",
        "chain",
        "chain2",
        "root/etc/passwd",
        "up/stamp",
        "up/home/.gitconfig",
        "dir/f",
        "secret",
        "db",
        "near",
        "home",
        "loop",
        "env",
        "magic",
        "fifo",
        "sub/deep/link",
        "hard",
        "dir",
        "root",
    ];
    for state in ["active", "stop", "end"] {
        match state {
            "active" => {}
            "stop" => drop(files.client.action(&files.id, "stop").await),
            _ => drop(files.client.delete(&format!("/api/sessions/{}", files.id)).await),
        }
        for link in links {
            for query in ["", "?format=json"] {
                let (status, bytes) = files.raw(&format!("{link}{query}")).await;
                assert!(status.is_client_error(), "{state} {link}: {status}");
                assert!(!is_outside(&bytes), "{state} {link}");
            }
        }
        let listed = files.list().await;
        assert!(listed.contains_key("good.txt") && !listed.contains_key("dir/f"), "{listed:?}");
        let packed = files.bundle().await;
        assert!(!packed.values().any(|text| is_outside(text.as_bytes())), "{packed:?}");
        assert_eq!(packed.get("good.txt").map(String::as_str), Some("good\n"));
        if state != "end" {
            for link in ["root/tmp/x", "up/x", "up/stamp", "dir/f", "dir/x", "root/etc/passwd"] {
                assert_eq!(files.write(link, "pwned").await["written"], false, "{state} {link}");
                let bundle = Tar::default().file(link, "pwned").gzip();
                let (status, answer) = files.unbundle(&bundle).await;
                assert_eq!((status, answer["code"].as_str()), (409, Some("in_the_way")), "{state} {link}");
                let (status, _) = files.delete(link).await;
                assert!((400..500).contains(&status), "{state} {link}: {status}");
            }
        }
        is_untouched(&vault);
    }
    assert!(!server.log().contains("panicked"));
}

#[tokio::test]
async fn a_link_in_the_last_place_is_replaced_or_removed_and_never_followed() {
    let (server, files) = start().await;
    let vault = vault(&server);
    let plant =
        format!("ln -s {0}/vault/f w; ln -s {0}/vault/f d; ln -s {0}/vault/f b", server.data.display());
    files.client.exec(&files.id, &plant).await;
    assert_eq!(files.write("w", "mine").await["written"], true);
    assert_eq!(files.text("w").await, "mine");
    files.unbundle(&Tar::default().file("b", "mine").gzip()).await;
    assert_eq!(files.text("b").await, "mine");
    files.delete("d").await;
    is_untouched(&vault);
}

#[tokio::test]
async fn folders_swapped_for_links_while_the_api_works_leak_nothing() {
    let (server, files) = start().await;
    let vault = vault(&server);
    // Removes what the API creates while there is no `d`, which would otherwise end the swapping.
    let clear = r#"unlink("d/f"); unlink("d/written"); unlink("d/bundled"); rmdir("d")"#;
    let to_and_fro = |name| format!(r#"rename("{name}", "d"); rename("d", "{name}"); {clear};"#);
    let outside = format!("{}/vault", server.data.display());
    let swap = format!("perl -e 'until (-e \"enough\") {{ {} {} }}'", to_and_fro("real"), to_and_fro("link"));
    // Before the race: a file inside is readable, and a link to the outside is not.
    files.client.exec(&files.id, &format!("mkdir real; echo inside > real/f; ln -s {outside} link")).await;
    files.client.exec(&files.id, "mv real d").await;
    assert_eq!(files.text("d/f").await, "inside\n");
    files.client.exec(&files.id, "mv d real; mv link d").await;
    assert!(files.raw("d/f").await.0.is_client_error());
    files.client.exec(&files.id, "mv d link").await;
    let exec = files.path("exec");
    let swapping = files.client.post(&exec, json!({ "command": swap, "timeout": 120_000 }));
    let working = async {
        for _ in 0..30 {
            let (status, bytes) = files.raw("d/f").await;
            assert!(!is_outside(&bytes));
            assert!(
                status.is_success() || status.is_client_error(),
                "{status} {}",
                String::from_utf8_lossy(&bytes)
            );
            files.write("d/written", "by the API").await;
            files.unbundle(&Tar::default().file("d/bundled", "by the API").gzip()).await;
            files.delete("d/f").await;
            files.write("d/f", "inside\n").await;
            let listed = files.client.get(&files.path("files")).await;
            assert!(!listed.to_string().contains("vault"), "{listed}");
            assert!(!files.bundle().await.values().any(|text| is_outside(text.as_bytes())));
            is_untouched(&vault);
        }
        files.write("enough", "").await;
    };
    let (swapped, ()) = tokio::join!(swapping, working);
    assert_eq!((&swapped["timedOut"], &swapped["exitCode"]), (&json!(false), &json!(0)), "{swapped}");
    is_untouched(&vault);
    assert!(!server.log().contains("panicked"), "{}", server.log());
    assert!(files.client.text(&files.id, "still there?").await.contains("This is turn 1"));
}

#[tokio::test]
async fn a_link_that_came_in_a_bundle_is_replaced_by_a_file_that_comes_after_it() {
    let (server, files) = start().await;
    let vault = vault(&server);
    let bundle = Tar::default()
        .file("first", "x")
        .entry(tar::EntryType::Symlink, "link", "first", b"")
        .file("link", "in place of a link")
        .entry(tar::EntryType::Link, "hard", "first", b"")
        .entry(tar::EntryType::Directory, "empty/", "", b"")
        .gzip();
    let (status, answer) = files.unbundle(&bundle).await;
    assert_eq!((status, answer["written"].as_u64()), (200, Some(4)), "{answer}");
    assert_eq!(
        (files.text("first").await, files.text("link").await),
        ("x".into(), "in place of a link".into())
    );
    let look = "stat -c '%F %h %U' hard empty first; echo y >> hard; cat first";
    let seen = files.client.exec(&files.id, look).await["stdout"].as_str().expect("text").to_owned();
    let mine =
        files.client.exec(&files.id, "id -un").await["stdout"].as_str().expect("text").trim().to_owned();
    let wanted = format!("regular file 1 {mine}\ndirectory 2 {mine}\nregular file 1 {mine}\nx");
    assert_eq!(seen, wanted, "a hard link is a copy");
    is_untouched(&vault);
}

#[tokio::test]
async fn changes_between_turns_are_captured_and_survive_the_loss_of_everything_but_the_checkpoint() {
    let (mut server, mut files) = start().await;
    files.client.say(&files.id, "write turn.txt: from the turn").await;
    let first = files.checkpoint().await.expect("a checkpoint");
    files
        .client
        .exec(
            &files.id,
            "mkdir -p a/b && echo exec > a/b/exec.txt; rm CLAUDE.md; ln -s a/b link; chmod 755 turn.txt",
        )
        .await;
    files.write("api.txt", "from the API").await;
    eventually("the changes are captured", async || files.checkpoint().await.filter(|n| *n > first)).await;
    let (live, processes) = (server.live(&files.id).await, server.processes(&files.id).await);
    server.kill9();
    signal(processes.shim, libc::SIGKILL);
    signal(processes.init, libc::SIGKILL);
    std::fs::remove_dir_all(live.join("tree")).expect("removed");
    std::fs::remove_file(live.join("stamp")).expect("removed");
    server.launch().await;
    files.client = server.client();
    let resumed = files.client.action(&files.id, "resume").await["resume"].clone();
    assert_eq!(
        (resumed["path"].as_str(), resumed["from"].as_str()),
        (Some("cold"), Some("checkpoint")),
        "{resumed}"
    );
    assert_eq!(resumed["tier"], "native");
    let look = "run: cat a/b/exec.txt api.txt turn.txt; echo; readlink link; stat -c %a turn.txt; ls";
    let text = files.client.text(&files.id, look).await;
    assert_eq!(text.trim(), "exec\nfrom the APIfrom the turn\na/b\n755\na\napi.txt\nlink\nturn.txt");
    assert!(files.client.text(&files.id, "what do you remember?").await.contains("This is turn 3"));
}

#[tokio::test]
async fn files_written_while_stopped_survive_a_crash_of_the_server() {
    let (mut server, mut files) = start().await;
    files.client.action(&files.id, "stop").await;
    files.write("cold.txt", "written cold").await;
    server.crash_and_start().await;
    files.client = server.client();
    assert_eq!(files.text("cold.txt").await, "written cold");
    assert_eq!(files.client.text(&files.id, "read cold.txt").await, "written cold");
}
