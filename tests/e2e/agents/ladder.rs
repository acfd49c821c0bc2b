//! The resume tiers when Claude Code's transcript is damaged: the real program, the real sandbox, and the model's log as
//! proof of what the agent remembers.

use crate::support::{claude::Stage, eventually, model::Model};
use ash_driver::{ExpectedMessage, LoggedContent, LoggedMessage, TranscriptIdentity};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use uuid::Uuid;

type Damage = fn(Vec<u8>) -> Vec<u8>;

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
}

fn joined(lines: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = lines.join(&b'\n');
    bytes.push(b'\n');
    bytes
}

/// All lines except those of one kind.
fn but(bytes: &[u8], unwanted: impl Fn(&str) -> bool) -> Vec<u8> {
    let kept: Vec<Vec<u8>> =
        lines(bytes).into_iter().filter(|line| !unwanted(&String::from_utf8_lossy(line))).collect();
    joined(&kept)
}

/// The damage to the transcript, the tier of the resume, and whether anything is lost.
const DAMAGES: [(&str, Damage, &str, bool); 12] = [
    ("untouched", |bytes| bytes, "native", false),
    ("NUL bytes at the end", |bytes| [bytes, vec![0; 4096]].concat(), "repaired", false),
    (
        "an answer is gone",
        |bytes| but(&bytes, |line| line.contains(r#""text":"the tower is high""#)),
        "repaired",
        true,
    ),
    (
        "a prompt is gone",
        |bytes| but(&bytes, |line| line.contains(r#""content":"say: the tower is high""#)),
        "repaired",
        true,
    ),
    (
        "no outcomes of calls",
        |bytes| but(&bytes, |line| line.contains(r#""type":"tool_result""#)),
        "repaired",
        true,
    ),
    ("no calls", |bytes| but(&bytes, |line| line.contains(r#""type":"tool_use""#)), "repaired", true),
    (
        "two lines in one",
        |bytes| {
            let mut lines = lines(&bytes);
            let second = lines.remove(4);
            lines[3].extend(second);
            joined(&lines)
        },
        "repaired",
        false,
    ),
    (
        "every line twice",
        |bytes| joined(&lines(&bytes).into_iter().flat_map(|line| [line.clone(), line]).collect::<Vec<_>>()),
        "repaired",
        false,
    ),
    ("the second half is gone", |bytes| bytes[..bytes.len() / 2].to_vec(), "repaired", true),
    ("the first half is gone", |bytes| bytes[bytes.len() / 2..].to_vec(), "repaired", true),
    ("noise", |bytes| (0..bytes.len()).map(|at| (at * 7919 % 251) as u8 | 0x80).collect(), "rebuilt", true),
    ("nothing", |_| Vec::new(), "rebuilt", true),
];

#[tokio::test]
async fn the_model_sees_the_whole_conversation_after_any_damage_to_the_transcript() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    client.say(&id, "say: the tower is high").await;
    client.say(&id, "run: echo the water is cold").await;
    client.say(&id, "say: the bread is warm").await;
    client.action(&id, "stop").await;
    let projects = stage.server.live(&id).await.join("tree/home/.claude/projects/-workspace");
    let transcript = projects.join(format!("{id}.jsonl"));
    for (name, damage, tier, lossy) in DAMAGES {
        let whole = std::fs::read(&transcript).expect("a transcript");
        std::fs::write(&transcript, damage(whole)).expect("damaged");
        let receipt = stage.back(&id).await;
        assert_eq!(receipt["tier"], tier, "{name}: {receipt}");
        assert_eq!(
            (&receipt["verified"], receipt["lost"] == json!([])),
            (&json!(!lossy), !lossy),
            "{name}: {receipt}"
        );
        assert_eq!(receipt["repaired"].is_null(), tier == "native", "{name}: {receipt}");
        client.say(&id, "say: and now?").await;
        assert_shown(&stage.last_request(), name);
        client.action(&id, "stop").await;
        assert_eq!(stage.back(&id).await["tier"], "native", "{name}: back on the first rung");
        client.action(&id, "stop").await;
    }
    let kept = std::fs::read_dir(&projects).expect("listed").flatten();
    let kept = kept.filter(|entry| entry.file_name().to_string_lossy().contains(".jsonl.")).count();
    assert!(kept >= DAMAGES.len() - 1, "originals are kept: {kept}");
}

fn assert_shown(request: &Value, name: &str) {
    let shown = request["body"]["messages"].to_string();
    for words in ["the tower is high", "echo the water is cold", "the bread is warm"] {
        assert!(shown.contains(words), "{name}: {words:?} is forgotten: {shown}");
    }
    assert!(shown.matches("the water is cold").count() >= 3, "{name}: call, outcome and answer: {shown}");
}

/// The real program behind a wrapper, which refuses to resume, refuses to start or waits while a file beside it says so.
pub fn curtain(dir: &Path) -> (PathBuf, PathBuf) {
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).expect("made");
    let real = crate::support::claude::program();
    std::fs::hard_link(&real, bin.join("real"))
        .or_else(|_| std::fs::copy(&real, bin.join("real")).map(drop))
        .expect("beside it");
    let script = r#"#!/bin/sh
case "$(cat "${0%/*}/refuse" 2>/dev/null)" in
  all) exit 3 ;;
  hang) exec sleep 600 ;;
  hold) touch ~/held; while [ -s "${0%/*}/refuse" ]; do sleep 0.02; done ;;
  resume) case " $* " in *" --resume "*) echo "cannot resume" >&2; exit 1 ;; esac ;;
esac
exec "${0%/*}/real" "$@"
"#;
    let claude = bin.join("claude");
    std::fs::write(&claude, script).expect("written");
    set_mode(dir, 0o755);
    set_mode(&bin, 0o755);
    set_mode(&claude, 0o755);
    (claude, bin.join("refuse"))
}

/// A program that does not start with its memory gets it by a lower tier; one that does not start at all loses nothing.
#[tokio::test]
async fn the_steps_down_are_tried_and_reported_and_undone_if_they_fail() {
    let dir = tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory");
    let (claude, refuse) = curtain(dir.path());
    let stage = Stage::with(&[("ASH_CLAUDE_BIN", &claude.display().to_string())]).await;
    let id = stage.create().await;
    let client = stage.server.client();
    client.say(&id, "say: the tower is high").await;
    client.action(&id, "stop").await;

    std::fs::write(&refuse, "all").expect("written");
    let (status, answer) =
        client.ask(reqwest::Method::POST, &format!("/api/sessions/{id}/resume"), Some(json!({}))).await;
    assert!(!status.is_success() && answer["code"] == "agent_failed", "{status}: {answer}");
    std::fs::remove_file(&refuse).expect("removed");
    let receipt = stage.back(&id).await;
    assert_eq!((&receipt["tier"], &receipt["verified"]), (&json!("native"), &json!(true)), "{receipt}");

    client.action(&id, "stop").await;
    std::fs::write(&refuse, "resume").expect("written");
    let receipt = stage.back(&id).await;
    assert_eq!((&receipt["tier"], &receipt["verified"]), (&json!("history"), &json!(false)), "{receipt}");
    assert_eq!(
        receipt["lost"],
        json!(["the agent's own memory of 1 turns, which is told to the agent as text"])
    );
    let failed = client.get(&format!("/api/sessions/{id}/events?limit=1000")).await;
    let failed = actions(&failed, "resume_failed");
    let tiers: Vec<&Value> = failed.iter().map(|event| &event["tier"]).collect();
    assert_eq!(tiers[tiers.len() - 2..], [&json!("native"), &json!("rebuilt")], "{failed:?}");
    assert!(failed[0]["reason"].as_str().is_some_and(|reason| reason.contains("exit code")), "{failed:?}");
    client.say(&id, "say: and now?").await;
    let shown = stage.last_request()["body"]["messages"].to_string();
    assert!(shown.contains("Your own memory of this conversation was lost"), "{shown}");
    assert!(shown.contains("Assistant: the tower is high"), "{shown}");

    std::fs::remove_file(&refuse).expect("removed");
    client.action(&id, "stop").await;
    let receipt = stage.back(&id).await;
    // The agent has the lost part as text; the receipt names it until the memory is native again.
    assert_ne!(receipt["tier"], "history", "{receipt}");
}

/// A server dies after it repaired the transcript and before it reported the loss: the next server finds the transcript
/// whole, and still reports the loss. If the agent cannot start at all, the transcript is as damaged as before.
#[tokio::test]
async fn a_loss_is_reported_even_if_the_server_dies_before_its_report() {
    let dir = tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory");
    let (claude, refuse) = curtain(dir.path());
    let mut stage = Stage::with(&[("ASH_CLAUDE_BIN", &claude.display().to_string())]).await;
    let id = stage.create().await;
    stage.server.client().say(&id, "say: the tower is high").await;
    stage.server.client().say(&id, "say: the bread is warm").await;
    stage.server.client().action(&id, "stop").await;
    let live = stage.server.live(&id).await;
    let projects = live.join("tree/home/.claude/projects/-workspace");
    let transcript = projects.join(format!("{id}.jsonl"));
    let whole = std::fs::read(&transcript).expect("a transcript");
    let damaged = but(&whole, |line| line.contains(r#""text":"the tower is high""#));
    std::fs::write(&transcript, &damaged).expect("damaged");

    std::fs::write(&refuse, "all").expect("written");
    let (status, answer) = stage
        .server
        .client()
        .ask(reqwest::Method::POST, &format!("/api/sessions/{id}/resume"), Some(json!({})))
        .await;
    assert!(!status.is_success(), "{status}: {answer}");
    assert_eq!(std::fs::read(&transcript).expect("a transcript"), damaged, "as it was");

    std::fs::write(&refuse, "hang").expect("written");
    let client = stage.server.client();
    let path = format!("/api/sessions/{id}/resume");
    let asking =
        tokio::spawn(async move { client.request(reqwest::Method::POST, &path).send().await.is_ok() });
    eventually("a mended transcript", async || {
        std::fs::read(&transcript).is_ok_and(|bytes| bytes != damaged).then_some(())
    })
    .await;
    let stamp = std::fs::read_to_string(live.join("stamp")).expect("a stamp");
    assert!(stamp.contains("mends"), "{stamp}");
    stage.server.kill9();
    assert!(!asking.await.expect("asked"), "no client got an answer");
    std::fs::remove_file(&refuse).expect("removed");
    stage.server.launch().await;
    let receipt = stage.back(&id).await;
    assert_eq!((&receipt["tier"], &receipt["verified"]), (&json!("repaired"), &json!(false)), "{receipt}");
    assert!(receipt["lost"].to_string().contains("noted"), "{receipt}");
    assert!(!receipt["repaired"].is_null(), "{receipt}");

    let client = stage.server.client();
    client.action(&id, "stop").await;
    let receipt = stage.back(&id).await;
    assert_eq!((&receipt["tier"], &receipt["verified"]), (&json!("native"), &json!(true)), "once: {receipt}");
}

/// The real program reads what the driver makes of the damaged transcripts under `tests/corpus`. Slow, because it starts
/// once for each; the ordinary run has one of each kind.
#[test]
fn slowly_each_of_the_corpus_is_read_whole_by_the_real_program() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/claude");
    let cases: Value =
        serde_json::from_slice(&std::fs::read(corpus.join("cases.json")).expect("cases")).expect("json");
    let dir = tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory");
    let model = Model::start(dir.path());
    for name in cases.as_object().expect("cases").keys() {
        let (home, cwd) = (dir.path().join(name), dir.path().join("workspace"));
        std::fs::create_dir_all(&cwd).expect("made");
        let id = place_mended(&corpus, name, &home, &cwd);
        let done = Command::new(crate::support::claude::program())
            .args(["-p", "--resume", &id.to_string(), "say: and now?"])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &home)
            .env("ANTHROPIC_BASE_URL", &model.url)
            .env("ANTHROPIC_API_KEY", "x")
            .env("DISABLE_AUTOUPDATER", "1")
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
            .current_dir(&cwd)
            .stdin(Stdio::null())
            .output()
            .expect("it runs");
        assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
        let last = model.requests().pop().expect("a request");
        let shown = last["body"]["messages"].to_string();
        for words in [
            "the lighthouse is green",
            "do both things",
            "I do both.",
            "echo first",
            "echo second",
            "the harbour is closed",
            "the ferry leaves at nine",
            "and now?",
        ] {
            assert!(shown.contains(words), "{name}: {words:?} is forgotten: {shown}");
        }
    }
}

/// Puts a transcript of the corpus, repaired as in a resume, where the program looks for it.
fn place_mended(corpus: &Path, name: &str, home: &Path, cwd: &Path) -> Uuid {
    let claude = ash_driver::driver(ash_model::AgentRuntime::Claude);
    let said: Vec<Value> = std::fs::read_to_string(corpus.join("log.jsonl"))
        .expect("a log")
        .lines()
        .map(|line| serde_json::from_str(line).expect("json"))
        .collect();
    let id_of = |said: &Value| said["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
    let digest = |said: &Value| {
        said["line"].as_str().and_then(|line| claude.message_fingerprint(line)).map(|said| said.digest)
    };
    let expected: Vec<ExpectedMessage> = said
        .iter()
        .map(|said| ExpectedMessage {
            id: id_of(said),
            prompt: said.get("prompt").is_some(),
            digest: digest(said),
        })
        .collect();
    let transcript = std::fs::read(corpus.join(format!("{name}.jsonl"))).unwrap_or_default();
    let survey = claude.survey(&mut lines(&transcript).into_iter(), &expected);
    let log: Vec<LoggedMessage> = said
        .iter()
        .enumerate()
        .map(|(number, said)| {
            let words = match said.get("prompt") {
                Some(prompt) => LoggedContent::Prompt(prompt.clone()),
                None => LoggedContent::Line(said["line"].as_str().expect("a line").to_owned()),
            };
            let words = Some(words).filter(|_| survey.missing.contains(&number));
            LoggedMessage { id: id_of(said), at: "2026-11-16T00:00:00.000Z".to_owned(), words }
        })
        .collect();
    let id = Uuid::from_u128(0x0000_0000_0000_4000_8000_0000_0000_00aa);
    let whole = survey.is_sound && survey.resumed.is_found;
    let bytes = match whole {
        true => transcript,
        false => {
            let native = TranscriptIdentity { id, cwd: cwd.to_owned() };
            joined(&claude.mend(&mut lines(&transcript).into_iter(), &log, &native).lines)
        }
    };
    let place = home.join(claude.transcript(cwd, id).expect("a place"));
    std::fs::create_dir_all(place.parent().expect("a folder")).expect("made");
    std::fs::write(place, bytes).expect("written");
    id
}

fn actions(events: &Value, action: &str) -> Vec<Value> {
    let all = events["events"].as_array().expect("a list").iter();
    let data = all.map(|event| serde_json::from_str(event["data"].as_str().expect("text")).expect("json"));
    data.filter(|data: &Value| data["action"] == action).collect()
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}
