//! Implausible values are refused where they are given: settings at the start, options and limits on create or change,
//! with the same text in both places.

mod changes;
mod dollars;

use crate::support::{Client, Server, disk_mb, names, run_to_end, total_memory_mb};
use reqwest::Method;
use serde_json::{Value, json};

/// Settings that would make the server unusable, and the error for each.
const OF_NO_USE: [(&str, &str, &str); 29] = [
    ("ASH_MAX_SANDBOXES", "0", "Set it to 1"),
    ("ASH_MAX_STREAMS", "0", "Set it to 1 or more"),
    ("ASH_MAX_CONNECTIONS", "0", "Set it to 1 or more"),
    ("ASH_SANDBOX_MEMORY_MB", "15", "0 (no limit) or 16"),
    ("ASH_CLIENT_TIMEOUT", "0", "Set it to 1 to 3153600000 seconds"),
    ("ASH_REMOTE_TIMEOUT", "0", "Set it to 1 to"),
    ("ASH_SETUP_MAX_SECONDS", "0", "Set it to 1 to"),
    ("ASH_IDLE_TIMEOUT", "18446744073709551615", "Set it to 0 to 3153600000 seconds"),
    ("ASH_QUEUE_WAIT", "18446744073709551615", "Set it to 0 to"),
    ("ASH_GC_EVERY", "18446744073709551615", "Set it to 0 to"),
    ("ASH_STOP_GRACE", "18446744073709551615", "Set it to 0 to"),
    ("ASH_INTERRUPT_GRACE", "18446744073709551615", "Set it to 0 to"),
    ("ASH_ORPHAN_TTL", "18446744073709551615", "Set it to 0 to"),
    ("ASH_SNAPSHOT_CACHE_MB", "18446744073709551615", "Set it to 0 to"),
    ("ASH_REMOTE_MBIT", "18446744073709551615", "Set it to 0 to"),
    ("ASH_MIN_MEMORY_MB", "18446744073709551615", "this machine has"),
    ("ASH_MIN_FREE_MB", "18446744073709551615", "the disk of the data directory has"),
    ("ASH_ALLOWED_HOSTS", "https://ash.example.com", "write the name alone"),
    ("ASH_ALLOWED_HOSTS", "ash.example.com,,other.example", "take out the comma"),
    ("ALLOWED_ORIGINS", "https://app.example.com/", "https://app.example.com; write it so"),
    ("ASH_PROVIDER_URLS", "gateway.example.com", "write a URL as https://"),
    ("ANTHROPIC_BASE_URL", "gateway.example.com", "https://HOST"),
    ("ANTHROPIC_BASE_URL", "http://gateway.example.com", "on this machine"),
    ("ASH_CLAUDE_BIN", "/nowhere/claude", "no program"),
    ("ASH_AGENT_DIRS", "agents", "not absolute"),
    ("ASH_AGENT_DIRS", "/nowhere", "no directory"),
    ("ASH_SNAPSHOT_KEYS", "/etc/passwd", "no directory"),
    ("ASH_API_KEY", "two words and a half", "printable ASCII without spaces"),
    ("ANTHROPIC_API_KEY", "sk-of-the-operator\n", "printable ASCII"),
];

#[tokio::test]
async fn a_useless_setting_is_refused_at_the_start_with_a_remedy() {
    for (name, value, remedy) in OF_NO_USE {
        let server = Server::prepare(&[(name, value)]);
        let (code, words) = run_to_end(server.command()).await;
        assert_eq!(code, Some(1), "{name}={value}: {words}");
        assert!(words.contains(name) && words.contains(remedy), "{name}={value}: {words}");
        assert!(!words.contains("panicked") && !words.contains("two words"), "{name}={value}: {words}");
        assert!(!server.data.join("ash.db").exists(), "{name}: nothing was opened");
    }
    let parsed = [
        ("ASH_RETENTION", "ended:7=purge", "7d"),
        ("ASH_RETENTION", "ended:=purge", "7d"),
        ("ASH_LIMITS", "memoryMb=15", "0 (no limit) or 16"),
        ("ASH_LIMITS", "maxProcesses=7", "8 to"),
        ("ASH_LIMITS_MAX", "diskMb=x", "NAME=NUMBER"),
    ];
    for (name, value, remedy) in parsed {
        let (code, words) = run_to_end(Server::prepare(&[(name, value)]).command()).await;
        assert_eq!(code, Some(2), "{name}={value}: {words}");
        assert!(words.contains(name) && words.contains(remedy), "{name}={value}: {words}");
    }
}

#[tokio::test]
async fn all_useless_settings_are_named_at_once() {
    let mut server = Server::prepare(&[]);
    let first: Vec<_> = OF_NO_USE[..17].to_vec();
    first.iter().for_each(|(name, value, _)| server.set(name, value));
    let (code, words) = run_to_end(server.command()).await;
    assert_eq!(code, Some(1), "{words}");
    for (name, _, remedy) in first {
        assert!(words.contains(name) && words.contains(remedy), "{name}: {words}");
    }
}

/// An interrupted turn, a complete turn, and an orderly stop.
async fn works(mut server: Server) {
    let client = server.client();
    let id = client.create().await;
    let mut stream = client.send(&id, "run: touch begun; sleep 100").await;
    stream.until("tool_use").await;
    client.action(&id, "interrupt").await;
    assert!(names(&stream.rest().await).contains(&"done"));
    assert_eq!(client.text(&id, "run: echo well").await, "well");
    client.action(&id, "stop").await;
    client.action(&id, "resume").await;
    assert_eq!(client.text(&id, "run: echo again").await, "again");
    server.stop().await;
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

const CENTURY: &str = "3153600000";

#[tokio::test]
async fn the_longest_times_and_the_largest_sizes_work() {
    let bucket = tempfile::tempdir().expect("a directory");
    let mut server = Server::prepare(&[("ASH_SNAPSHOT_URL", &format!("file://{}", bucket.path().display()))]);
    for name in [
        "ASH_SETUP_MAX_SECONDS",
        "ASH_REMOTE_TIMEOUT",
        "ASH_CLIENT_TIMEOUT",
        "ASH_QUEUE_WAIT",
        "ASH_ORPHAN_TTL",
        "ASH_STOP_GRACE",
        "ASH_INTERRUPT_GRACE",
        "ASH_PERMISSION_TIMEOUT",
        "ASH_MAX_WAIT",
        "ASH_IDLE_TIMEOUT",
        "ASH_CHECKPOINT_EVERY",
        "ASH_GC_EVERY",
        "ASH_GC_GRACE",
        "ASH_COLD_TTL",
        "ASH_TRASH_TTL",
        "ASH_REMOTE_GC_EVERY",
        "ASH_REMOTE_CHECK_EVERY",
    ] {
        server.set(name, CENTURY);
    }
    for (name, value) in [
        ("ASH_SNAPSHOT_CACHE_MB", "1099511627776"),
        ("ASH_REMOTE_MBIT", "1000000000"),
        ("ASH_MAX_STREAMS", "18446744073709551615"),
        ("ASH_MAX_CONNECTIONS", "18446744073709551615"),
        ("ASH_KEEP_LAST", "18446744073709551615"),
        ("ASH_DURABILITY", "remote"),
    ] {
        server.set(name, value);
    }
    server.launch().await;
    works(server).await;
}

#[tokio::test]
async fn the_shortest_times_the_smallest_sizes_and_empty_lists_work() {
    let mut server = Server::prepare(&[
        ("ASH_MAX_SANDBOXES", "1"),
        ("ASH_SANDBOX_MEMORY_MB", "16"),
        ("ASH_SETUP_MAX_SECONDS", "1"),
        ("ASH_REMOTE_TIMEOUT", "1"),
        ("ASH_STOP_GRACE", "0"),
        ("ASH_ORPHAN_TTL", "0"),
        ("ASH_KEEP_LAST", "0"),
        ("ASH_KEEP_HOURLY", "0"),
        ("ASH_KEEP_DAILY", "1"),
        ("ASH_MIN_MEMORY_MB", "0"),
        ("ASH_MIN_FREE_MB", "0"),
        ("ASH_MAX_STREAMS", "1"),
        ("ALLOWED_ORIGINS", ""),
        ("ASH_ALLOWED_HOSTS", ""),
        ("ASH_PROVIDER_URLS", ""),
        ("ANTHROPIC_BASE_URL", ""),
        ("ASH_CLAUDE_BIN", ""),
        ("ASH_AGENT_DIRS", ""),
        ("ASH_SNAPSHOT_KEYS", ""),
    ]);
    server.launch().await;
    works(server).await;
}

/// The minimum of each limit. It is accepted, and any lower number is refused.
const LEAST_LIMITS: [(&str, u64); 8] = [
    ("memoryMb", 16),
    ("cpuPercent", 1),
    ("maxProcesses", 8),
    ("maxOpenFiles", 64),
    ("diskMb", 1),
    ("maxFiles", 10),
    ("turnSeconds", 1),
    ("outputKbPerSecond", 1),
];

#[tokio::test]
async fn with_the_least_of_each_limit_a_session_starts_and_answers() {
    for (name, least) in LEAST_LIMITS {
        let less = format!("{name}={}", least - 1);
        if least > 1 {
            let (code, words) = run_to_end(Server::prepare(&[("ASH_LIMITS", &less)]).command()).await;
            let range = format!("{name} must be 0 (no limit) or {least} to");
            assert!(code == Some(2) && words.contains(&range), "{less}: {code:?} {words}");
        }
        let server = Server::with(&[("ASH_LIMITS", &format!("{name}={least}"))]).await;
        let client = server.client();
        let (status, made) =
            client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "default" }))).await;
        assert_eq!(status.as_u16(), 201, "{name}={least}: {made}");
        let id = made["session"]["id"].as_str().expect("an id");
        // On a busy machine the turn may take longer than a second.
        if name != "turnSeconds" {
            assert_eq!(client.text(id, "run: echo well").await, "well", "{name}={least}");
        }
        assert_eq!(client.exec(id, "echo well").await["stdout"], "well\n", "{name}={least}");
    }
}

#[tokio::test]
async fn with_the_least_of_each_quota_a_session_starts_and_keys_are_made() {
    let names = ["sessionMessages", "sessionQueuedKb", "tenantMessages", "tenantQueuedKb", "keys", "agents"];
    let more = ["keptAgents", "agentVersions", "prewarmed", "prewarmedTotal", "configKb", "metadataKb"];
    let least: Vec<String> = names.iter().chain(&more).map(|name| format!("{name}=1")).collect();
    let server = Server::with(&[("ASH_QUOTAS", &format!("{},labelBytes=16", least.join(",")))]).await;
    let client = server.client();
    let made = client.post("/api/sessions", json!({ "agent": "default" })).await;
    let id = made["session"]["id"].as_str().expect("an id");
    assert_eq!(client.text(id, "run: echo well").await, "well");
    client.post("/api/api-keys", json!({})).await;
    let (code, words) = run_to_end(Server::prepare(&[("ASH_QUOTAS", "labelBytes=15")]).command()).await;
    assert!(
        code == Some(2) && words.contains("labelBytes must be 0 (no limit) or 16 to"),
        "{code:?} {words}"
    );
}

#[tokio::test]
async fn all_of_the_machine_may_be_asked_to_stay_free() {
    let (memory, disk) = (total_memory_mb().to_string(), disk_mb().to_string());
    let server = Server::with(&[("ASH_MIN_MEMORY_MB", &memory), ("ASH_MIN_FREE_MB", &disk)]).await;
    assert_eq!(server.client().get("/health").await["status"], "full");
}

/// Sandboxes see folders by their absolute paths.
#[tokio::test]
async fn a_data_directory_may_be_named_from_here() {
    let mut server = Server::prepare(&[]);
    let relative = server.data.strip_prefix("/").expect("a whole path").to_owned();
    server.set("ASH_DATA_DIR", relative.to_str().expect("UTF-8"));
    server.launch().await;
    works(server).await;
}

/// Status, code and text.
async fn asked(client: &Client, method: Method, path: &str, body: Option<Value>) -> (u16, Value, Value) {
    let (status, said) = client.ask(method, path, body).await;
    (status.as_u16(), said["code"].clone(), said["error"].clone())
}

/// No interface accepts a number without a unit as an age.
#[tokio::test]
async fn an_age_without_a_unit_is_refused_everywhere() {
    let server = Server::start().await;
    let client = server.client();
    client.create().await;
    for age in ["7", "0", "7w", ""] {
        for list in [
            format!("/api/sessions?olderThan={age}"),
            format!("/api/sessions?newerThan={age}"),
            format!("/api/audit?since={age}"),
            format!("/api/usage?by=day&since={age}"),
            format!("/api/usage?by=day&until={age}"),
        ] {
            // Forms leave a field empty.
            if age.is_empty() && list.contains("usage") {
                continue;
            }
            let (status, code, error) = asked(&client, Method::GET, &list, None).await;
            assert_eq!((status, &code), (400, &json!("invalid_query")), "{list}: {error}");
            assert!(error.as_str().is_some_and(|error| error.contains("90s, 30m, 24h or 7d")), "{error}");
        }
        let prune = json!({ "olderThan": age, "dryRun": true });
        let (status, code, error) = asked(&client, Method::POST, "/api/prune", Some(prune)).await;
        assert_eq!((status, &code), (400, &json!("invalid_body")), "{age}: {error}");
        assert!(error.as_str().is_some_and(|error| error.contains("90s, 30m, 24h or 7d")), "{error}");
        for args in [
            ["session", "prune", "--dry-run", "--older-than", age].as_slice(),
            &["session", "list", "--older-than", age],
            &["session", "list", "--newer-than", age],
            &["session", "create", "--ttl", age, "default"],
            &["session", "lock", "--ttl", age, "any"],
            &["usage", "--since", age],
            &["audit", "--since", age],
        ] {
            let mut command = server.command_of(args);
            command.env("ASH_SERVER_URL", &server.url);
            let (code, words) = run_to_end(command).await;
            assert!(code != Some(0) && words.contains("24h or 7d"), "{args:?}: {code:?} {words}");
        }
    }
}
