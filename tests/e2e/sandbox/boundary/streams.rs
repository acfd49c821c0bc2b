//! A hostile agent: a program in the place of Claude Code that the server starts and talks to. Shim and driver get
//! arbitrary output directly from its stdout; the server stays healthy, and other sessions do not notice.

use super::{
    Beside,
    bombs::{IMPATIENT, Pulse},
    program, put,
};
use crate::support::{Client, Frame, Server, Sse, as_root, eventually};
use serde_json::{Value, json};

const ORDINARY_USER: u32 = 61_008;
/// The memory limit for the server, whatever agents print. For a debug build.
const MEMORY: u64 = 300 << 20;
/// The server keeps this many lines of the agent's stderr.
const LOGS: usize = 10_000;
const MILLION: usize = 1_000_000;
/// More than a server could keep in memory, but done within minutes.
const MANY: usize = 30_000;

#[tokio::test]
async fn an_agent_with_hostile_output_harms_only_its_own_session() {
    listen(Server::prepared_for(0, &IMPATIENT), MANY).await;
}

#[tokio::test]
async fn slowly_as_root_an_agent_with_hostile_output_in_an_ordinary_users_server_harms_only_its_own_session()
{
    assert!(as_root(), "only root can become another user");
    listen(Server::prepared_for(ORDINARY_USER, &IMPATIENT), MANY).await;
}

/// Slow, because each line is stored.
#[tokio::test]
async fn slowly_a_million_lines_of_an_agent_hurt_only_its_own_session() {
    listen(Server::prepared_for(0, &IMPATIENT), MILLION).await;
}

async fn listen(mut server: Server, lines: usize) {
    replace_claude(&mut server);
    server.launch().await;
    let client = server.client();
    client.post("/api/agents", json!({ "name": "hostile", "path": server.dir.join("agent") })).await;
    let (bystander, victim) = (calm(&client).await, calm(&client).await);
    let (beside, pulse) = (Beside::begin(&server, bystander), Pulse::begin(&server));

    frames_that_are_none_of_its_business(&client, &victim).await;
    complaints_without_end(&client).await;
    a_line_without_end(&client).await;
    many_lines(&client, lines).await;
    lines_without_end(&client).await;
    a_complaint_without_end(&client).await;
    silence(&client).await;

    let answers = beside.end().await;
    println!("the session beside answered {answers} times; {}", pulse.end().await);
    assert!(!server.log().contains("panicked"), "{}", server.log());
    let peak = peak(server.pid());
    println!("the server used {} MiB at most", peak >> 20);
    assert!(peak < MEMORY, "the server used {} MiB", peak >> 20);
}

/// Installs a program that follows the messages.
fn replace_claude(server: &mut Server) {
    let bin = server.dir.join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    put(&program(), &bin.join("claude"), 0o755);
    let agent = server.dir.join("agent");
    std::fs::create_dir(&agent).expect("a folder");
    std::fs::write(agent.join("ash.toml"), "runtime = \"claude\"\n").expect("written");
    server.set("ASH_CLAUDE_BIN", bin.join("claude").to_str().expect("a name"));
    server.set("ANTHROPIC_API_KEY", "sk-only-outside");
    server.set("ANTHROPIC_BASE_URL", "http://127.0.0.1:9");
}

/// A session with the offline provider, because the service behind the server's key is unreachable.
async fn calm(client: &Client) -> String {
    client.deploy("tester").await;
    let made = client.post("/api/sessions", json!({ "agent": "tester", "provider": "offline" })).await;
    made["session"]["id"].as_str().expect("an id").to_owned()
}

async fn hostile(client: &Client, limits: Value) -> String {
    let made = client.post("/api/sessions", json!({ "agent": "hostile", "limits": limits })).await;
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    obeys(client, &id).await;
    id
}

/// The agent runs, and speaks like Claude Code.
async fn obeys(client: &Client, id: &str) {
    assert_eq!(client.text(id, "nothing").await, "obeyed");
}

async fn end(client: &Client, id: &str) {
    client.delete(&format!("/api/sessions/{id}")).await;
}

fn told(frames: &[Frame]) -> Option<&str> {
    frames.iter().find(|frame| frame.event == "error").and_then(|frame| frame.data["code"].as_str())
}

/// Invalid messages, messages of wrong shapes, and messages about a running turn of another session.
async fn frames_that_are_none_of_its_business(client: &Client, victim: &str) {
    let (mut stream, turn) = waits(client, victim).await;
    let id = hostile(client, json!({})).await;
    let mut said = client.send(&id, &format!("frames {victim} {turn}")).await;
    let frames = said.until("done").await;
    assert_eq!(frames.last().expect("the end").data["status"], "done", "{:#?}", frames.last());
    let garbled = frames.iter().filter(|frame| frame.data["subtype"] == "garbled").count();
    println!("{} frames, of which {garbled} were none", frames.len());
    assert!(garbled >= 20 * 9, "{garbled}");
    // The other session's turn has not received any of it.
    client.exec(victim, "touch go").await;
    let frames = stream.until("done").await;
    assert!(!frames.iter().any(|frame| frame.data.to_string().contains("forged")), "{frames:#?}");
    let complete = frames.iter().rfind(|frame| frame.event == "turn_complete").expect("turn_complete");
    assert_eq!(complete.data["result"], "released");
    obeys(client, &id).await;
    client.get(&format!("/api/sessions/{id}/events?limit=1000")).await;
    client.get(&format!("/api/sessions/{id}/messages?limit=1000")).await;
    end(client, &id).await;
}

/// A turn during a tool call, and its id.
async fn waits(client: &Client, id: &str) -> (Sse, String) {
    let wait = "run: until [ -e go ]; do sleep 0.01; done; rm go; echo released";
    let mut stream = client.send(id, wait).await;
    let frames = stream.until("tool_use").await;
    let turn = frames[0].data["turn"].as_str().expect("a turn").to_owned();
    (stream, turn)
}

async fn complaints_without_end(client: &Client) {
    let id = hostile(client, json!({})).await;
    assert_eq!(client.text(&id, &format!("complain {MILLION}")).await, "obeyed");
    let last = format!("complaint {}", MILLION - 1);
    let logs = eventually("all of it was read", async || {
        let logs = client.get(&format!("/api/sessions/{id}/logs")).await["logs"].as_array().cloned()?;
        logs.iter().any(|entry| entry["text"] == last.as_str()).then_some(logs)
    })
    .await;
    assert!(logs.len() <= LOGS, "{} lines of a million are kept", logs.len());
    end(client, &id).await;
}

async fn a_line_without_end(client: &Client) {
    let id = hostile(client, json!({})).await;
    let frames = client.send(&id, "endless 40").await.rest().await;
    assert_eq!(told(&frames), Some("line_too_long"));
    client.until_status(&id, "error").await;
    assert_eq!(client.session(&id).await["error"]["code"], "line_too_long");
    end(client, &id).await;
}

/// All lines are stored, and the turn's progress is saved on the way, so that no part holds all of them at once.
async fn many_lines(client: &Client, lines: usize) {
    let id = hostile(client, json!({})).await;
    let began = std::time::Instant::now();
    assert_eq!(client.text(&id, &format!("lines {lines}")).await, "obeyed");
    let last = client.session(&id).await["checkpoint"]["local"].as_u64().expect("a number");
    println!("{lines} lines took {:?}, and {last} checkpoints", began.elapsed());
    assert!(last as usize > lines / MILLION * 5, "{last}");
    end(client, &id).await;
}

/// The limits on output per second and on turn time stop endless output.
async fn lines_without_end(client: &Client) {
    // With a limit, because unlimited output would take minutes to store here.
    let (much, kb, seconds) = (128, 32, 3);
    let free = chatter(client, json!({ "outputKbPerSecond": much, "turnSeconds": seconds })).await;
    let bound = chatter(client, json!({ "outputKbPerSecond": kb, "turnSeconds": seconds })).await;
    // A burst of four seconds passes at once, and one second follows the interrupt; twice that on a busy machine.
    let most = (kb << 10) * 2 * (4 + seconds + 1);
    println!("{free} bytes of an agent that talks as it likes, {bound} of one that may not");
    assert!(free > most && bound < most, "{free} and {bound} bytes, of at most {most}");
}

/// How many bytes of it came before it was stopped.
async fn chatter(client: &Client, limits: Value) -> usize {
    let id = hostile(client, limits).await;
    let frames = client.send(&id, "forever").await.until("done").await;
    assert_eq!(told(&frames), Some("turn_timeout"), "{:#?}", frames.last());
    let said = frames.iter().filter(|frame| frame.event == "message");
    let bytes = said.map(|frame| frame.data.to_string().len()).sum();
    obeys(client, &id).await;
    end(client, &id).await;
    bytes
}

/// The server keeps only the beginning of it, but does not read it faster because of that.
async fn a_complaint_without_end(client: &Client) {
    let (free, _) = muttered(client, json!({ "outputKbPerSecond": 0 })).await;
    let (bound, millis) = muttered(client, json!({ "outputKbPerSecond": 32 })).await;
    // A burst of four seconds passes at once, plus the content of the pipe and of the shim's buffers.
    let most = 32 * (4000 + millis) * 1024 / 1000 + (256 << 10);
    println!("{free} bytes of stderr without a limit, {bound} with one");
    assert!(free > most && bound <= most, "{free} and {bound} bytes, of at most {most}");
}

/// How many bytes the agent wrote, in how many milliseconds.
async fn muttered(client: &Client, limits: Value) -> (u64, u64) {
    let id = hostile(client, limits).await;
    let said = client.text(&id, "mutter 3").await;
    end(client, &id).await;
    let mut numbers = said.split(' ').filter_map(|word| word.parse().ok());
    numbers.next().zip(numbers.next()).unwrap_or_else(|| panic!("{said}"))
}

/// The agent closes its stdout, and continues to run.
async fn silence(client: &Client) {
    let id = hostile(client, json!({ "turnSeconds": 2 })).await;
    let frames = client.send(&id, "shut").await.until("done").await;
    assert_eq!(told(&frames), Some("turn_timeout"), "{frames:#?}");
    obeys(client, &id).await;
    end(client, &id).await;
}

fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}
