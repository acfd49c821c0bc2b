//! Every error has a kind, a code and a remedy.

use super::*;
use ash_model::{AgentName, BudgetScope, LimitKind, QuotaKind};

/// At least one example of every variant.
fn errors() -> Vec<Error> {
    let reached =
        LimitReached { turn: None, scope: BudgetScope::Session, kind: LimitKind::DiskMb, limit: 1, used: 2 };
    let quota = QuotaReached { quota: QuotaKind::Keys, limit: 1, used: 1, wanted: 1 };
    let (id, slug) = (SessionId::parse("a").expect("an id"), Slug::parse("b").expect("a name"));
    let agent = AgentName::parse("c").expect("a name");
    let problem = |code: &str| Problem::new(code, "why");
    let io = |kind: std::io::ErrorKind| std::io::Error::from(kind);
    let full = || io(std::io::ErrorKind::StorageFull);
    let other = || io(std::io::ErrorKind::Other);
    let refused = [
        CommandRefusal::WrongStatus(SessionStatus::Ended),
        CommandRefusal::NotPossible { command: "stop", status: SessionStatus::Error },
        CommandRefusal::SessionEnded,
        CommandRefusal::Busy,
        CommandRefusal::SessionBusy,
        CommandRefusal::NotWaiting,
        CommandRefusal::Budget(reached),
        CommandRefusal::NoSuchPermission,
        CommandRefusal::AlreadyAnswered,
        CommandRefusal::AnswersMissing,
        CommandRefusal::NotAQuestion,
    ];
    let store = [
        ash_store::Error::Sealed,
        ash_store::Error::Full,
        ash_store::Error::Stale,
        ash_store::Error::Taken("a".to_owned()),
        ash_store::Error::SlugTaken(slug.clone()),
        ash_store::Error::Deleting(slug.clone()),
        ash_store::Error::OtherAgent { slug: slug.clone(), agent },
        ash_store::Error::Removed(1),
        ash_store::Error::Damaged { what: "a", why: String::new() },
        ash_store::Error::Closed,
        ash_store::Error::TooOld { found: String::new(), needed: "3" },
    ];
    let snapshot = [
        ash_snapshot::Error::NotFound { path: "a".to_owned() },
        ash_snapshot::Error::Full { what: "write", path: "a".to_owned(), source: full() },
        ash_snapshot::Error::Far { pack: "a".to_owned(), source: other() },
        ash_snapshot::Error::Io { what: "read", path: "a".to_owned(), source: other() },
    ];
    let sandbox = [
        ash_sandbox::Error::StartFailed { why: String::new() },
        ash_sandbox::Error::Unavailable { why: String::new(), remedy: "none" },
        ash_sandbox::Error::Gone,
        ash_sandbox::Error::Timeout { what: "answer" },
        ash_sandbox::Error::Refused { why: String::new() },
        ash_sandbox::Error::TooLarge { bytes: 1 },
        ash_sandbox::Error::InvalidEgress { why: String::new() },
        ash_sandbox::Error::StillRuns,
    ];
    let version = ClaudeVersion { major: 1, minor: 0, patch: 0 };
    let own = [
        Error::NotFound,
        Error::NoTurn,
        Error::Locked { holder: "a".to_owned(), until: Timestamp(1) },
        Error::LockLost,
        Error::Unsupported { runtime: "builtin", options: vec!["a"] },
        Error::NoAgent("a".to_owned()),
        Error::NoClaude,
        Error::OldClaude { found: version, path: PathBuf::from("/a") },
        Error::NoKey,
        Error::ProviderRequired,
        Error::ProviderUnsupported(ModelApiDialect::Anthropic),
        Error::ProviderShared,
        Error::ProviderRefused(ProviderRefusal::Off),
        Error::ProviderRefused(ProviderRefusal::NotListed),
        Error::ProviderRefused(ProviderRefusal::NotPublic),
        Error::InvalidCredential("a"),
        Error::CredentialUnsupported("a"),
        Error::CredentialGone,
        Error::Unpriced("a".to_owned()),
        Error::UnpricedUsage,
        Error::NoWorkspace,
        Error::Failed(problem("agent_failed")),
        Error::Failed(problem("sandbox_failed")),
        Error::Failed(problem(DISK_FULL)),
        Error::Failed(problem(DISK_LIMIT)),
        Error::Failed(problem("sandbox_ended")),
        Error::Shared { kind: FailureKind::Conflict, problem: problem("session_busy") },
        Error::Setup(problem(SETUP_FAILED)),
        Error::Setup(problem(SETUP_TIMEOUT)),
        Error::Halted,
        Error::Overtaken(SessionStatus::Stopped),
        Error::Overtaken(SessionStatus::Paused),
        Error::UserNamespaces,
        Error::Unlimited("memoryMb"),
        Error::TreeLost,
        Error::Setting("a".to_owned()),
        Error::Silent,
        Error::NoCheckpoint,
        Error::Removed(1),
        Error::NothingWhole { number: 1, why: String::new() },
        Error::Unrepaired(id.clone()),
        Error::PurgedHere { id, slug: slug.clone() },
        Error::TooManyFiles(1),
        Error::NoRoom(reached),
        Error::Save("a".to_owned()),
        Error::Stopping,
        Error::Stopped,
        Error::LittleSpace(1),
        Error::NoSuchWorkspace(slug),
        Error::WorkspaceBusy("a".to_owned()),
        Error::AnothersCheckpoint(1),
        Error::Crowded,
        Error::Capacity(1),
        Error::Quota(quota),
        Error::Placeless,
        Error::LongLine(1),
        Error::LittleMemory(1),
        Error::NoBucket,
        Error::Io { what: "a".to_owned(), source: full() },
        Error::Io { what: "a".to_owned(), source: other() },
        Error::Distrusted,
        Error::Moved,
        Error::Gone,
        Error::IdempotencyKeyReused,
        Error::ApiKeyGone,
    ];
    let of_others = refused.into_iter().map(Error::from).chain(store.into_iter().map(Error::from));
    let of_others = of_others.chain(snapshot.into_iter().map(Error::from));
    let of_others = of_others.chain(remote_errors().into_iter().map(Error::from));
    of_others.chain(sandbox.into_iter().map(Error::from)).chain(own).collect()
}

fn remote_errors() -> Vec<ash_remote::Error> {
    let gone = || std::io::Error::from(std::io::ErrorKind::Other);
    vec![
        ash_remote::Error::Store(ash_store::Error::Sealed),
        ash_remote::Error::Snapshot(ash_snapshot::Error::Far { pack: "a".to_owned(), source: gone() }),
        ash_remote::Error::Snapshot(ash_snapshot::Error::NotFound { path: "a".to_owned() }),
        ash_remote::Error::no_answer(std::time::Duration::from_secs(1)),
        ash_remote::Error::Damaged("a".to_owned()),
        ash_remote::Error::EncryptionKey("a".to_owned()),
        ash_remote::Error::NoSession,
        ash_remote::Error::NotUploaded { seconds: 1, why: String::new() },
        ash_remote::Error::Io { what: "a".to_owned(), source: gone() },
        ash_remote::Error::Interrupted,
    ]
}

#[test]
fn a_failure_of_replication_is_of_the_same_kind_for_the_caller_of_a_session() {
    for error in remote_errors() {
        let expected = (error.kind(), error.code());
        let converted = Error::from(error);
        assert_eq!((converted.kind(), converted.code()), expected, "{converted}");
    }
}

const VARIANTS: usize = 61;

/// A new variant gets the next number here, and an example in `errors`.
fn number(error: &Error) -> usize {
    match error {
        Error::Refused(_) => 0,
        Error::NotFound => 1,
        Error::NoTurn => 2,
        Error::Locked { .. } => 3,
        Error::LockLost => 4,
        Error::Unsupported { .. } => 5,
        Error::NoAgent(_) => 6,
        Error::NoClaude => 7,
        Error::OldClaude { .. } => 8,
        Error::NoKey => 9,
        Error::ProviderRequired => 10,
        Error::ProviderUnsupported(_) => 11,
        Error::ProviderShared => 12,
        Error::Unpriced(_) => 13,
        Error::NoWorkspace => 14,
        Error::Failed(_) => 15,
        Error::Shared { .. } => 16,
        Error::Setup(_) => 17,
        Error::Halted => 18,
        Error::Overtaken(_) => 19,
        Error::UserNamespaces => 20,
        Error::Unlimited(_) => 21,
        Error::TreeLost => 22,
        Error::Setting(_) => 23,
        Error::Silent => 24,
        Error::NoCheckpoint => 25,
        Error::Removed(_) => 26,
        Error::NothingWhole { .. } => 27,
        Error::Unrepaired(_) => 28,
        Error::PurgedHere { .. } => 29,
        Error::Remote(_) => 30,
        Error::TooManyFiles(_) => 31,
        Error::NoRoom(_) => 32,
        Error::Save(_) => 33,
        Error::Stopping => 34,
        Error::LittleSpace(_) => 35,
        Error::NoSuchWorkspace(_) => 36,
        Error::WorkspaceBusy(_) => 37,
        Error::AnothersCheckpoint(_) => 38,
        Error::Crowded => 39,
        Error::Capacity(_) => 40,
        Error::Quota(_) => 41,
        Error::Placeless => 42,
        Error::LongLine(_) => 43,
        Error::LittleMemory(_) => 44,
        Error::Store(_) => 45,
        Error::Snapshot(_) => 46,
        Error::Sandbox(_) => 47,
        Error::NoBucket => 48,
        Error::Io { .. } => 49,
        Error::Distrusted => 50,
        Error::Moved => 51,
        Error::Gone => 52,
        Error::Stopped => 53,
        Error::IdempotencyKeyReused => 54,
        Error::ApiKeyGone => 55,
        Error::UnpricedUsage => 56,
        Error::ProviderRefused(_) => 57,
        Error::InvalidCredential(_) => 58,
        Error::CredentialUnsupported(_) => 59,
        Error::CredentialGone => 60,
    }
}

#[test]
fn callers_who_wait_for_the_same_hear_of_the_same_kind_of_failure() {
    let numbers: std::collections::BTreeSet<usize> = errors().iter().map(number).collect();
    assert_eq!(numbers, (0..VARIANTS).collect());
    for error in errors() {
        let shared = error.shared();
        assert_eq!(
            (shared.kind(), shared.code(), shared.to_string(), shared.is_full()),
            (error.kind(), error.code(), error.to_string(), error.is_full()),
            "{error:?}"
        );
    }
}

/// A message that waits for a start reads the start's failure from the log, which stores no kinds.
#[test]
fn a_failure_that_is_read_from_the_log_keeps_its_kind() {
    for error in errors() {
        // One code stands for several kinds here: the table has the kind that a start fails with.
        let kind = match &error {
            Error::NoRoom(_) => FailureKind::Unprocessable,
            Error::Store(ash_store::Error::Stale) | Error::Sandbox(_) => FailureKind::Unavailable,
            error => error.kind(),
        };
        assert_eq!(Error::Failed(error.problem()).kind(), kind, "{error:?}");
    }
}
