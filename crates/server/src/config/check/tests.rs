//! Bad settings are refused, and good ones accepted, with exact limits and messages.
use super::*;

const MACHINE: HostResources = HostResources { memory_mb: 8000, disk_mb: 50_000, is_root: true };

fn config(flags: &[&str]) -> ServerConfig {
    ServerConfig::of_flags(flags)
}

type SetKey = fn(&mut ServerConfig, Option<SecretString>);

fn refused(flags: &[&str]) -> String {
    config(flags).check(&MACHINE).expect_err(&format!("{flags:?} is taken"))
}

fn taken(flags: &[&str]) {
    config(flags).check(&MACHINE).unwrap_or_else(|why| panic!("{flags:?}: {why}"));
}

#[test]
fn the_defaults_are_accepted() {
    taken(&[]);
}

/// Flag, variable, the last refused values, and the first accepted ones.
#[test]
fn each_number_is_refused_beyond_its_borders_and_taken_at_them() {
    let (century, more) = ("3153600000", "3153600001");
    let cases: [(&str, &str, &[&str], &[&str]); 25] = [
        ("max-sandboxes", "ASH_MAX_SANDBOXES", &["0", "65537", "18446744073709551615"], &["1", "65536"]),
        ("sandbox-memory-mb", "ASH_SANDBOX_MEMORY_MB", &["1", "15", "18446744073709551615"], &["0", "16"]),
        ("min-memory-mb", "ASH_MIN_MEMORY_MB", &["8001", "18446744073709551615"], &["0", "8000"]),
        ("min-free-mb", "ASH_MIN_FREE_MB", &["50001", "18446744073709551615"], &["0", "50000"]),
        ("snapshot-cache-mb", "ASH_SNAPSHOT_CACHE_MB", &["1099511627777"], &["0", "1099511627776"]),
        ("remote-mbit", "ASH_REMOTE_MBIT", &["1000000001", "18446744073709551615"], &["0", "1000000000"]),
        ("max-connections", "ASH_MAX_CONNECTIONS", &["0"], &["1", "18446744073709551615"]),
        ("max-streams", "ASH_MAX_STREAMS", &["0"], &["1", "18446744073709551615"]),
        ("setup-max-seconds", "ASH_SETUP_MAX_SECONDS", &["0", more], &["1", century]),
        ("remote-timeout", "ASH_REMOTE_TIMEOUT", &["0", more], &["1", century]),
        ("client-timeout", "ASH_CLIENT_TIMEOUT", &["0", more], &["1", century]),
        ("queue-wait", "ASH_QUEUE_WAIT", &[more, "18446744073709551615"], &["0", century]),
        ("orphan-ttl", "ASH_ORPHAN_TTL", &[more, "18446744073709551615"], &["0", century]),
        ("stop-grace", "ASH_STOP_GRACE", &[more, "18446744073709551615"], &["0", century]),
        ("interrupt-grace", "ASH_INTERRUPT_GRACE", &[more, "18446744073709551615"], &["0", century]),
        ("permission-timeout", "ASH_PERMISSION_TIMEOUT", &[more], &["0", century]),
        ("max-wait", "ASH_MAX_WAIT", &[more], &["0", century]),
        ("idle-timeout", "ASH_IDLE_TIMEOUT", &[more, "18446744073709551615"], &["0", century]),
        ("checkpoint-every", "ASH_CHECKPOINT_EVERY", &[more], &["0", century]),
        ("gc-every", "ASH_GC_EVERY", &[more, "18446744073709551615"], &["0", century]),
        ("gc-grace", "ASH_GC_GRACE", &[more], &["0", century]),
        ("cold-ttl", "ASH_COLD_TTL", &[more], &["0", century]),
        ("trash-ttl", "ASH_TRASH_TTL", &[more], &["0", century]),
        ("remote-gc-every", "ASH_REMOTE_GC_EVERY", &[more], &["0", century]),
        ("remote-check-every", "ASH_REMOTE_CHECK_EVERY", &[more], &["0", century]),
    ];
    for (flag, name, wrong, fine) in cases {
        for value in wrong {
            let words = refused(&[&format!("--{flag}={value}")]);
            assert!(words.contains(&format!("{name} is {value}")), "{words}");
            assert!(words.contains(" or more") || words.contains(" to "), "the valid range: {words}");
        }
        for value in fine {
            taken(&[&format!("--{flag}={value}")]);
        }
    }
}

#[test]
fn each_meaningless_word_is_refused_and_others_are_accepted() {
    let here = std::env::current_exe().expect("a program");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let (here, file) = (here.to_str().expect("text"), file.path().to_str().expect("text"));
    let cases: [(&str, &str, &[&str], &[&str]); 8] = [
        (
            "allowed-origins",
            "ALLOWED_ORIGINS",
            &[
                "a.example",
                "https://a.example/",
                "https://A.example",
                "https://a.example:443",
                "https://a.example,,*",
                "x y",
            ],
            &[
                "",
                "*",
                "null",
                "https://a.example, http://b.example:8080",
                "chrome-extension://abcdef",
                "http://[::1]:8080,*",
            ],
        ),
        (
            "allowed-hosts",
            "ASH_ALLOWED_HOSTS",
            &["a.example,", "*", "*.a.example", "https://a.example", "a.example/x", "a b"],
            &["", "a.example, B.example:8443", "[::1]:80", "under_score"],
        ),
        (
            "provider-urls",
            "ASH_PROVIDER_URLS",
            &["gateway.example", "ftp://gateway.example", "https://", ",https://a.example"],
            &["", "https://gateway.example/team, http://127.0.0.1:9", "http://10.0.0.7:8080/v1"],
        ),
        (
            "anthropic-base-url",
            "ANTHROPIC_BASE_URL",
            &[
                "api.anthropic.com",
                "ftp://a.example",
                "http://a.example",
                "https://user:word@a.example",
                "unix:relative",
            ],
            &[
                "",
                "https://a.example/anthropic",
                "http://127.0.0.1:9",
                "http://localhost",
                "unix:/run/model.sock",
            ],
        ),
        (
            "agent-dirs",
            "ASH_AGENT_DIRS",
            &["agents", "/tmp,", "/no/such/place", file],
            &["", "/", "/tmp,/usr", "/no/such/place,/tmp"],
        ),
        ("snapshot-keys", "ASH_SNAPSHOT_KEYS", &[file], &["", "/tmp", "/no/such/place"]),
        ("claude-bin", "ASH_CLAUDE_BIN", &["/no/such/program", "/tmp", file], &["", here]),
        // The parser of a range checks its syntax.
        ("sandbox-uids", "ASH_SANDBOX_UIDS", &["200000-200998"], &["200000-200999"]),
    ];
    for (flag, name, wrong, fine) in cases {
        for value in wrong {
            let words = refused(&[&format!("--{flag}={value}")]);
            assert!(words.contains(name), "{value:?}: {words}");
        }
        for value in fine {
            taken(&[&format!("--{flag}={value}")]);
        }
    }
}

#[test]
fn keys_that_no_header_can_have_are_refused_without_being_shown() {
    let with = |set: SetKey, text: &str| {
        let mut config = config(&[]);
        set(&mut config, Some(SecretString::from(text)));
        config.check(&MACHINE)
    };
    let keys: [(&str, SetKey); 4] = [
        ("ASH_API_KEY", |config, key| config.api_key = key),
        ("ASH_INTERNAL_SECRET", |config, key| config.internal_secret = key),
        ("ANTHROPIC_API_KEY", |config, key| config.anthropic_api_key = key),
        ("CLAUDE_CODE_OAUTH_TOKEN", |config, key| config.claude_oauth_token = key),
    ];
    for (name, set) in keys {
        for wrong in ["a-long-secret-with-an-end\n", "a-long-secret-with-ümlauts"] {
            let words = with(set, wrong).expect_err(name);
            assert!(words.contains(name) && !words.contains("long-secret"), "{words}");
        }
        for fine in ["", "a-long-secret-of-letters"] {
            assert_eq!(with(set, fine), Ok(()), "{name}");
        }
    }
    assert!(with(|config, key| config.api_key = key, "two words of it").is_err());
}

#[test]
fn keeping_no_checkpoint_is_refused_and_all_errors_are_reported() {
    taken(&["--keep-last=0"]);
    taken(&["--keep-last=1", "--keep-hourly=0", "--keep-daily=0"]);
    let words = refused(&["--keep-last=0", "--keep-hourly=0", "--keep-daily=0", "--max-streams=0"]);
    assert!(words.contains("ASH_KEEP_LAST") && words.contains("ASH_MAX_STREAMS"), "{words}");
    assert_eq!(words.lines().count(), 3, "{words}");
}

#[test]
fn settings_without_uids_need_none() {
    let ordinary = HostResources { is_root: false, ..MACHINE };
    let few = config(&["--sandbox-uids=200000-200001"]);
    assert!(few.check(&MACHINE).is_err());
    assert_eq!(few.check(&ordinary), Ok(()));
    taken(&["--sandbox-uids=200000-200001", "--sandbox=none"]);
}

#[test]
fn the_machines_resources_are_read() {
    let machine = HostResources::detect(&std::env::temp_dir());
    assert!((1..u64::MAX).contains(&machine.memory_mb) && (1..u64::MAX).contains(&machine.disk_mb));
    assert_eq!(total_mb("MemTotal:        8192000 kB\nMemFree: 1 kB\n"), Some(8000));
    assert_eq!(total_mb("MemFree: 1 kB\n"), None);
}
