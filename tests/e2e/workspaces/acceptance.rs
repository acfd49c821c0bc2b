//! The requirements of named workspaces: one test for each requirement and each corner case. Each test runs with the real
//! Claude Code and with the built-in agent; `docker.rs` repeats all of them in containers. The model's request log proves
//! what an agent remembers.
//!
//! Three requirements were about the code itself, and have no test: that the first attempt and its fallbacks share their
//! code (`SessionStartJob::descend` treats every rung in the same way; the tests of failing resumes check that nothing is reported
//! twice), the spelling of an optional type (the compiler checks it), and the call that sets a mode (tests check the
//! resulting modes). The tests of a program that refuses to resume, and of the event for it, are in `ladder.rs`.

use crate::support::{Client, as_root, claude::Stage, eventually, is_alive};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

macro_rules! demands {
    ($($demand:ident)*) => {
        mod with_claude_code {
            $(#[tokio::test]
            async fn $demand() {
                super::$demand(super::Cast::with("claude").await).await;
            })*
        }
        mod with_the_built_in_agent {
            $(#[tokio::test]
            async fn $demand() {
                super::$demand(super::Cast::with("builtin").await).await;
            })*
        }
    };
}

demands! {
    files_and_home_are_directories_of_the_host_under_the_same_names_inside
    directories_are_private_from_the_beginning
    a_name_is_judged_alike_at_every_door
    a_request_with_a_bad_name_changes_nothing
    a_transcript_has_its_sessions_id_as_name
    a_transcript_that_is_there_is_resumed_natively
    a_first_message_begins_a_conversation
    a_resume_that_fails_is_said_and_the_message_is_answered
    a_deletion_stops_the_sandbox_then_removes_the_data_then_frees_the_name
    a_link_in_the_place_of_a_transcript_is_not_followed
    an_ephemeral_session_keeps_nothing_but_its_log
    as_root_a_sandbox_that_ran_out_of_memory_takes_no_conversation_along
    the_log_is_kept_whatever_the_agent_keeps
    a_session_without_a_transcript_is_told_its_history_once_and_then_native
    messages_at_once_to_a_new_session_are_one_conversation
    a_workspace_that_is_made_again_knows_nothing_of_the_one_before
}

const TOLD: &str = "Your own memory of this conversation was lost";

/// A server, a model, and agents of one kind.
struct Cast {
    stage: Stage,
    runtime: &'static str,
}

impl Cast {
    async fn with(runtime: &'static str) -> Cast {
        let cast = Cast { stage: Stage::set().await, runtime };
        let agent = json!({ "name": "helper", "systemPrompt": "Answer in one line.", "runtime": runtime });
        cast.client().post("/api/agents", agent).await;
        cast
    }

    fn client(&self) -> Client {
        self.stage.server.client()
    }

    /// A new session in a workspace.
    async fn join(&self, workspace: &str) -> String {
        self.create(json!({ "workspace": workspace })).await
    }

    async fn create(&self, mut options: Value) -> String {
        options["agent"] = json!("helper");
        let made = self.client().post("/api/sessions", options).await;
        made["session"]["id"].as_str().expect("an id").to_owned()
    }

    async fn home(&self, id: &str) -> PathBuf {
        self.stage.server.live(id).await.join("tree/home")
    }

    /// Where the agents keep their conversations, below HOME.
    fn folder(&self) -> &'static str {
        match self.runtime {
            "claude" => ".claude/projects/-workspace",
            _ => ".ash/agent",
        }
    }

    async fn transcript(&self, id: &str) -> PathBuf {
        self.home(id).await.join(self.folder()).join(format!("{id}.jsonl"))
    }

    /// The best tier without a transcript: Claude Code gets a transcript built from our log.
    fn second_best(&self) -> Value {
        json!(if self.runtime == "claude" { "rebuilt" } else { "history" })
    }

    /// Sends a message, and returns all that the model saw with it.
    async fn shown(&self, id: &str, text: &str) -> String {
        let answer = self.client().say(id, text).await;
        assert_eq!(answer["status"], "done", "{answer}");
        self.stage.last_request()["body"]["messages"].to_string()
    }

    /// The agent knows its own words, and not those of the others.
    async fn knows(&self, id: &str, own: &[&str], others: &[&str]) {
        let shown = self.shown(id, "say: and on").await;
        own.iter().for_each(|words| assert!(shown.contains(words), "{words:?} is forgotten: {shown}"));
        others.iter().chain([&TOLD]).for_each(|words| assert!(!shown.contains(words), "{words:?}: {shown}"));
    }

    async fn back(&self, id: &str) -> Value {
        self.stage.back(id).await
    }

    async fn stop(&self, ids: &[&String]) {
        for id in ids {
            self.client().action(id, "stop").await;
        }
    }

    /// The events of a session, by name, that only our log has.
    async fn happened(&self, id: &str) -> Vec<Value> {
        let events = self.client().get(&format!("/api/sessions/{id}/events?limit=1000")).await;
        let data =
            events["events"].as_array().expect("a list").iter().filter_map(|event| event["data"].as_str());
        data.filter_map(|data| serde_json::from_str(data).ok()).collect()
    }

    /// The receipts of a session, oldest first.
    async fn receipts(&self, id: &str) -> Vec<Value> {
        self.happened(id).await.into_iter().filter(|data| data["action"] == "resumed").collect()
    }

    async fn words(&self, id: &str) -> String {
        self.client().get(&format!("/api/sessions/{id}/messages?limit=1000")).await.to_string()
    }
}

fn assert_native(receipt: &Value) {
    let what = (&receipt["tier"], &receipt["verified"], &receipt["lost"]);
    assert_eq!(what, (&json!("native"), &json!(true), &json!([])), "{receipt}");
}

async fn files_and_home_are_directories_of_the_host_under_the_same_names_inside(cast: Cast) {
    let (one, two) = (cast.join("my-project").await, cast.join("my-project").await);
    let client = cast.client();
    for id in [&one, &two] {
        assert_eq!(client.exec(id, "pwd; echo $HOME").await["stdout"], "/workspace\n/home/agent\n");
    }
    client.exec(&one, "echo a > /workspace/note; echo b > /home/agent/note").await;
    let tree = cast.stage.server.live(&two).await.join("tree");
    for (name, text) in [("workspace", "a\n"), ("home", "b\n")] {
        assert_eq!(std::fs::read_to_string(tree.join(name).join("note")).expect("a file"), text);
        std::fs::write(tree.join(name).join("reply"), text.repeat(2)).expect("written");
    }
    assert_eq!(client.exec(&two, "cat ~/reply reply").await["stdout"], "b\nb\na\na\n");
}

async fn directories_are_private_from_the_beginning(mut cast: Cast) {
    let live = cast.stage.server.data.join("live");
    let open = |path: &Path| {
        let mode = std::fs::metadata(path).ok()?.permissions().mode();
        (mode & 0o777 != 0o700).then(|| format!("{}: {mode:o}", path.display()))
    };
    let watch = async {
        loop {
            for place in std::fs::read_dir(&live).into_iter().flatten().flatten() {
                assert_eq!(open(&place.path()), None);
            }
            tokio::task::yield_now().await;
        }
    };
    let id = tokio::select! { id = cast.join("closed") => id, () = watch => unreachable!("it never ends") };
    let place = cast.stage.server.live(&id).await;
    let closed = || {
        let all = [live.clone(), place.clone(), place.join("run"), place.join("tree/home")];
        assert!(all.iter().all(|path| path.is_dir()), "{all:?}");
        all.iter().find_map(|path| open(path))
    };
    assert_eq!(closed(), None);
    cast.client().say(&id, "say: hello").await;
    cast.stop(&[&id]).await;
    cast.stage.server.kill9();
    std::fs::remove_dir_all(&place).expect("removed");
    cast.stage.server.launch().await;
    let receipt = cast.back(&id).await;
    assert_eq!((&receipt["from"], closed()), (&json!("checkpoint"), None), "{receipt}");
}

async fn a_name_is_judged_alike_at_every_door(cast: Cast) {
    let client = cast.client();
    let longest = "x".repeat(63);
    client.post("/api/workspaces", json!({ "slug": "7", "agent": "helper" })).await;
    let good = format!("a--{}", &longest[3..]);
    let said = doors(&cast, &good).await;
    assert!(said.iter().all(|(_, code)| code.is_empty()), "{said:?}");
    let (status, _) = client.ask(Method::GET, &format!("/api/workspaces/{good}"), None).await;
    assert_eq!(status, 404, "the last door was the deletion");
    for bad in ["-a", "a-", "A", "a_b", "a b", "a.b", "é", "../x", "a/b", "a\n", &format!("{longest}x")] {
        let said = doors(&cast, bad).await;
        assert!(said.iter().all(|(_, code)| code == "invalid_workspace"), "{bad:?}: {said:?}");
    }
}

/// Every interface that takes a name, and its response.
async fn doors(cast: &Cast, name: &str) -> Vec<(String, String)> {
    let client = cast.client();
    let mut said = Vec::new();
    for (path, field) in [
        ("workspaces", "slug"),
        ("workspaces", "name"),
        ("sessions", "workspace"),
        ("sessions", "workspaceId"),
    ] {
        let body = json!({ "agent": "helper", field: name });
        said.push((
            format!("{path} {field}"),
            client.ask(Method::POST, &format!("/api/{path}"), Some(body)).await.1,
        ));
    }
    let encoded: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let path = format!("/api/workspaces/{encoded}");
    for (method, path) in [
        (Method::GET, path.clone()),
        (Method::GET, format!("{path}/files")),
        (Method::GET, format!("{path}/checkpoints")),
    ] {
        said.push((format!("{method} {path}"), client.ask(method, &path, None).await.1));
    }
    said.push((format!("DELETE {path}"), client.ask(Method::DELETE, &path, None).await.1));
    said.into_iter()
        .map(|(door, said)| (door, said["code"].as_str().unwrap_or_default().to_owned()))
        .collect()
}

async fn a_request_with_a_bad_name_changes_nothing(cast: Cast) {
    let client = cast.client();
    for bad in [json!(""), json!("-"), json!("../../etc"), json!("My Project"), json!({}), json!(["a", "b"])]
    {
        for (path, field) in [("sessions", "workspace"), ("sessions", "workspaceId"), ("workspaces", "slug")]
        {
            let body = json!({ "agent": "helper", field: bad, "sessionId": "mine" });
            let (status, said) = client.ask(Method::POST, &format!("/api/{path}"), Some(body)).await;
            assert_eq!((status.as_u16(), said["code"].is_string()), (400, true), "{bad}: {said}");
        }
    }
    for list in ["sessions", "workspaces"] {
        assert_eq!(client.get(&format!("/api/{list}")).await[list], json!([]));
    }
    assert_eq!(client.ask(Method::GET, "/api/sessions/mine", None).await.0, 404);
    let live = std::fs::read_dir(cast.stage.server.data.join("live")).into_iter().flatten().count();
    assert_eq!(live, 0, "no place was made");
}

async fn a_transcript_has_its_sessions_id_as_name(cast: Cast) {
    let chosen = uuid::Uuid::new_v4().to_string();
    let one = cast.create(json!({ "workspace": "names", "sessionId": chosen })).await;
    let two = cast.join("names").await;
    assert_eq!(one, chosen);
    cast.client().say(&one, "say: the tower is high").await;
    cast.client().say(&two, "say: the water is cold").await;
    for (id, own, other) in [(&one, "tower", "water"), (&two, "water", "tower")] {
        let text = std::fs::read_to_string(cast.transcript(id).await).expect("a transcript");
        assert!(text.contains(own) && !text.contains(other), "{text}");
    }
    let folder = cast.home(&one).await.join(cast.folder());
    let kept = std::fs::read_dir(folder).expect("listed").flatten();
    let kept = kept.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "jsonl"));
    assert_eq!(kept.count(), 2, "and there are no others");
}

async fn a_transcript_that_is_there_is_resumed_natively(cast: Cast) {
    let (one, two) = (cast.join("on").await, cast.join("on").await);
    cast.client().say(&one, "say: the tower is high").await;
    cast.client().say(&two, "say: the water is cold").await;
    cast.stop(&[&one, &two]).await;
    assert_native(&cast.back(&two).await);
    // A client that just sends a message gets the same, and the receipt is in the log.
    cast.knows(&one, &["tower is high"], &["water is cold"]).await;
    assert_native(cast.receipts(&one).await.last().expect("a receipt"));
    cast.knows(&two, &["water is cold"], &["tower is high"]).await;
}

async fn a_first_message_begins_a_conversation(cast: Cast) {
    let before = cast.join("first").await;
    cast.client().say(&before, "say: the tower is high").await;
    let id = cast.join("first").await;
    assert!(!cast.transcript(&id).await.exists(), "nothing was said yet");
    let answer = cast.client().say(&id, "say: the water is cold").await;
    assert_eq!(
        (&answer["status"], &answer["text"]),
        (&json!("done"), &json!("the water is cold")),
        "{answer}"
    );
    assert!(answer["checkpoint"].is_u64(), "{answer}");
    let shown = cast.stage.last_request()["body"]["messages"].to_string();
    assert!(!shown.contains("tower is high") && !shown.contains(TOLD), "{shown}");
    assert_eq!(cast.receipts(&id).await, Vec::<Value>::new(), "nothing was resumed");
    let text = std::fs::read_to_string(cast.transcript(&id).await).expect("a transcript");
    assert!(text.contains("water is cold"), "{text}");
}

async fn a_resume_that_fails_is_said_and_the_message_is_answered(cast: Cast) {
    let (one, two) = (cast.join("torn").await, cast.join("torn").await);
    cast.client().say(&one, "say: the tower is high").await;
    cast.client().say(&two, "say: the water is cold").await;
    let transcript = cast.transcript(&one).await;
    let check = async |receipt: Value| {
        let how = (&receipt["tier"], &receipt["verified"], receipt["lost"] == json!([]));
        assert_eq!(how, (&cast.second_best(), &json!(false), false), "{receipt}");
        let shown = cast.shown(&one, "say: the bread is warm").await;
        assert!(shown.contains("the tower is high") && !shown.contains("water is cold"), "{shown}");
        assert_eq!(shown.contains(TOLD), receipt["tier"] == "history", "{shown}");
    };
    cast.stop(&[&one, &two]).await;
    let length = std::fs::metadata(&transcript).expect("a transcript").len();
    std::fs::write(&transcript, vec![0xfe; length as usize]).expect("noise");
    // Both at once: the damage of one does not appear in the receipt of the other.
    let (torn, whole) = tokio::join!(cast.back(&one), cast.back(&two));
    assert_native(&whole);
    check(torn).await;
    // While the other session is busy.
    cast.stop(&[&one]).await;
    std::fs::remove_file(&transcript).expect("removed");
    std::fs::create_dir(&transcript).expect("made");
    check(cast.back(&one).await).await;
    cast.knows(&two, &["water is cold"], &["tower is high"]).await;
    assert_eq!(cast.words(&one).await.matches("say: the bread is warm").count(), 2, "each was said once");
}

async fn a_deletion_stops_the_sandbox_then_removes_the_data_then_frees_the_name(cast: Cast) {
    let outside = cast.stage.server.dir.join("outside");
    std::fs::create_dir_all(outside.join("deep")).expect("made");
    std::fs::write(outside.join("deep/file"), "kept").expect("written");
    let (one, two) = (cast.join("gone").await, cast.join("gone").await);
    let client = cast.client();
    let links = format!(
        "for at in ~ /workspace; do ln -s {0} $at/dir; ln -s {0}/deep/file $at/file; done; sleep 1000 & echo $!",
        outside.display()
    );
    client.exec(&one, &links).await;
    client.say(&two, "say: hello").await;
    let live = cast.stage.server.live(&one).await;
    let pids: Vec<u32> =
        ash_sandbox::processes(&live.join("run")).into_iter().map(i32::unsigned_abs).collect();
    assert!(pids.iter().any(|pid| is_alive(*pid)), "{pids:?}");
    let watch = async {
        loop {
            let there = live.join("tree").exists();
            assert!(there || !pids.iter().any(|pid| is_alive(*pid)), "the data went before the sandbox");
            let (status, _) = client.ask(Method::GET, "/api/workspaces/gone", None).await;
            assert!(status != 404 || !live.exists(), "the name was free before the data was gone");
        }
    };
    tokio::select! { _ = client.delete("/api/workspaces/gone") => {}, () = watch => unreachable!("it never ends") }
    assert!(!live.exists() && !pids.iter().any(|pid| is_alive(*pid)));
    assert_eq!(client.ask(Method::GET, "/api/workspaces/gone", None).await.0, 404);
    // If the workspace is replaced by a link, only the link is deleted, not its target.
    let made = client.post("/api/workspaces", json!({ "slug": "gone", "agent": "helper" })).await;
    let live = live.with_file_name(made["workspace"]["id"].as_str().expect("an id"));
    symlink(&outside, &live).expect("a link");
    client.delete("/api/workspaces/gone").await;
    assert!(std::fs::symlink_metadata(&live).is_err());
    assert_eq!(std::fs::read_to_string(outside.join("deep/file")).expect("a file"), "kept");
}

async fn a_link_in_the_place_of_a_transcript_is_not_followed(cast: Cast) {
    let outside = cast.stage.server.dir.join("outside");
    std::fs::create_dir(&outside).expect("made");
    let (one, two) = (cast.join("links").await, cast.join("links").await);
    cast.client().say(&one, "say: the tower is high").await;
    cast.client().say(&two, "say: the water is cold").await;
    let (transcript, others) = (cast.transcript(&one).await, cast.transcript(&two).await);
    let folder = transcript.parent().expect("a folder");
    // The targets of the links would work: the transcript of another session, and a copy outside.
    let copy = outside.join(format!("{one}.jsonl"));
    std::fs::copy(&transcript, &copy).expect("copied");
    for (link, to, kept) in [(&*transcript, &others, &others), (folder, &outside, &copy)] {
        cast.stop(&[&one]).await;
        let before = std::fs::read(kept).expect("a transcript");
        std::fs::rename(link, link.with_extension("before")).expect("moved");
        symlink(to, link).expect("a link");
        let receipt = cast.back(&one).await;
        assert_eq!((&receipt["verified"], receipt["tier"] == "native"), (&json!(false), false), "{receipt}");
        let shown = cast.shown(&one, "say: and on").await;
        assert!(shown.contains("tower is high") && !shown.contains("water is cold"), "{to:?}: {shown}");
        assert_eq!(std::fs::read(kept).expect("a transcript"), before, "{kept:?} is as it was");
    }
}

async fn an_ephemeral_session_keeps_nothing_but_its_log(cast: Cast) {
    let beside = cast.join("beside").await;
    cast.client().say(&beside, "run: echo theirs > ~/theirs").await;
    let id = cast.create(json!({ "ephemeral": true })).await;
    let client = cast.client();
    let answer = client.say(&id, "say: the tower is high").await;
    assert_eq!((&answer["status"], &answer["checkpoint"]), (&json!("done"), &Value::Null), "{answer}");
    assert_ne!(cast.stage.server.live(&id).await, cast.stage.server.live(&beside).await);
    assert_eq!(client.exec(&id, "echo mine > ~/mine; ls ~/theirs").await["exitCode"], 2);
    cast.knows(&id, &["tower is high"], &[]).await;
    cast.stop(&[&id]).await;
    assert_eq!(client.get(&format!("/api/sessions/{id}/checkpoints")).await["checkpoints"], json!([]));
    assert!(!cast.home(&id).await.exists(), "its files went with its sandbox");
    let receipt = cast.back(&id).await;
    assert_eq!((&receipt["tier"], &receipt["source"]), (&json!("history"), &json!("fresh")), "{receipt}");
    assert!(receipt["lost"].to_string().contains("workspace"), "{receipt}");
    let shown = cast.shown(&id, "say: and on").await;
    assert!(shown.contains(TOLD) && shown.contains("tower is high"), "{shown}");
    assert_eq!(client.exec(&beside, "cat ~/theirs; ls ~/mine").await["stdout"], "theirs\n");
}

async fn as_root_a_sandbox_that_ran_out_of_memory_takes_no_conversation_along(mut cast: Cast) {
    assert!(as_root(), "memory is limited by cgroups, which are root's");
    cast.stage.server.stop().await;
    cast.stage.server.set("ASH_SANDBOX_MEMORY_MB", if cast.runtime == "claude" { "1024" } else { "64" });
    cast.stage.server.launch().await;
    let (one, two) = (cast.join("greedy").await, cast.join("greedy").await);
    let client = cast.client();
    client.say(&one, "run: echo 1 > one; echo the tower is high").await;
    client.say(&two, "run: echo 2 > two; echo the water is cold").await;
    let path = format!("/api/sessions/{one}/exec");
    // Files on /tmp use memory, which the death of a process does not free.
    let greedy = json!({ "command": "exec head -c 2G /dev/zero > /tmp/big" });
    let (status, said) = client.ask(Method::POST, &path, Some(greedy)).await;
    assert_eq!((status.as_u16(), &said["code"]), (500, &json!("sandbox_oom")), "{said}");
    for id in [&one, &two] {
        client.until_status(id, "error").await;
    }
    // By force, so that all local data of the sandbox is created anew.
    let live = cast.stage.server.live(&one).await;
    cast.stage.server.kill9();
    std::fs::remove_dir_all(live).expect("removed");
    cast.stage.server.launch().await;
    let (first, second) = tokio::join!(cast.back(&two), cast.back(&one));
    [&first, &second].into_iter().for_each(assert_native);
    let client = cast.client();
    for (id, own, other) in [(&two, "is cold", "is high"), (&one, "is high", "is cold")] {
        cast.knows(id, &[own], &[other]).await;
        assert_eq!(client.exec(id, "cat one two").await["stdout"], "1\n2\n");
    }
}

async fn the_log_is_kept_whatever_the_agent_keeps(mut cast: Cast) {
    let id = cast.join("kept").await;
    let said = ["say: the tower is high", "run: echo the water is cold", "say: the bread is warm"];
    for text in said {
        cast.client().say(&id, text).await;
    }
    let words = cast.words(&id).await;
    assert!(said.iter().all(|text| words.contains(text)), "{words}");
    cast.client().exec(&id, "rm -rf ~/.ash ~/.claude").await;
    cast.stop(&[&id]).await;
    cast.stage.server.stop().await;
    std::fs::remove_dir_all(cast.stage.server.data.join("repo")).expect("removed");
    cast.stage.server.launch().await;
    assert_eq!(cast.words(&id).await, words);
    let receipt = cast.back(&id).await;
    assert_eq!((&receipt["tier"], &receipt["verified"]), (&cast.second_best(), &json!(false)), "{receipt}");
    let shown = cast.shown(&id, "say: and now?").await;
    let all = ["say: the tower is high", "echo the water is cold", "say: the bread is warm"];
    all.iter().for_each(|words| assert!(shown.contains(words), "{words:?} is forgotten: {shown}"));
}

async fn a_session_without_a_transcript_is_told_its_history_once_and_then_native(cast: Cast) {
    let id = cast.join("old").await;
    cast.client().say(&id, "say: the tower is high").await;
    cast.stop(&[&id]).await;
    std::fs::remove_file(cast.transcript(&id).await).expect("removed");
    let receipt = cast.back(&id).await;
    assert_eq!((&receipt["tier"], &receipt["verified"]), (&cast.second_best(), &json!(false)), "{receipt}");
    let shown = cast.shown(&id, "say: the water is cold").await;
    assert!(shown.contains("tower is high"), "{shown}");
    assert!(cast.transcript(&id).await.is_file());
    cast.stop(&[&id]).await;
    assert_eq!(cast.back(&id).await["tier"], "native");
    let shown = cast.shown(&id, "say: and on").await;
    assert!(shown.contains("tower is high") && shown.contains("water is cold"), "{shown}");
    assert_eq!(shown.matches(TOLD).count(), usize::from(receipt["tier"] == "history"), "{shown}");
}

async fn messages_at_once_to_a_new_session_are_one_conversation(cast: Cast) {
    let id = cast.join("hasty").await;
    let client = cast.client();
    let (first, second, third) = tokio::join!(
        client.say(&id, "say: the tower is high"),
        client.say(&id, "say: the water is cold"),
        client.say(&id, "say: the bread is warm"),
    );
    let texts = [first, second, third].map(|answer| answer["text"].clone());
    assert_eq!(texts, ["the tower is high", "the water is cold", "the bread is warm"].map(Value::from));
    let all = ["tower is high", "water is cold", "bread is warm"];
    cast.knows(&id, &all, &[]).await;
    cast.stop(&[&id]).await;
    assert_native(&cast.back(&id).await);
    cast.knows(&id, &all, &[]).await;
    let words = cast.words(&id).await;
    assert!(all.iter().all(|text| words.matches(&format!("say: the {text}")).count() == 1), "{words}");
}

async fn a_workspace_that_is_made_again_knows_nothing_of_the_one_before(cast: Cast) {
    let old = cast.join("again").await;
    let client = cast.client();
    client.say(&old, "run: echo secret > secret; echo the tower is high").await;
    client.delete("/api/workspaces/again").await;
    let new = cast.join("again").await;
    assert_eq!(client.exec(&new, "ls secret").await["exitCode"], 2);
    assert!(!cast.home(&new).await.join(cast.folder()).join(format!("{old}.jsonl")).exists());
    cast.knows(&new, &[], &["tower is high"]).await;
    assert_eq!(client.get("/api/workspaces/again").await["workspace"]["sessions"], 1);
    // The old session is readable, and continues with its next message, in a place of its own.
    assert!(cast.words(&old).await.contains("tower is high"));
    let receipt = cast.back(&old).await;
    assert_eq!((&receipt["tier"], &receipt["source"]), (&json!("history"), &json!("fresh")), "{receipt}");
    assert!(receipt["lost"].to_string().contains("workspace"), "{receipt}");
    let shown = cast.shown(&old, "say: back").await;
    assert!(shown.contains(TOLD) && shown.contains("tower is high"), "{shown}");
    assert_ne!(cast.stage.server.live(&old).await, cast.stage.server.live(&new).await);
    eventually("both go on", async || (client.status(&old).await == "active").then_some(())).await;
}
