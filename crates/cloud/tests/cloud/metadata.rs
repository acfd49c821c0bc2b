//! Which servers are asked for credentials. The test runs in a network namespace with only loopback, where it owns the
//! address at which clouds give out credentials, and counts the requests.

use crate::{gcs::Gcs, servers::environment};
use ash_cloud::{Bucket, BucketErrorCode};
use rustix::thread::UnshareFlags;
use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::net::TcpListener;

/// Needs root to create the network namespace.
#[test]
fn as_root_only_a_bucket_without_credentials_asks_for_them() {
    // A network namespace belongs to a thread, and this runtime starts no other threads.
    let alone = std::thread::spawn(|| {
        // SAFETY: only this thread changes its network namespace, and it has no sockets yet.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("a network of its own");
        for command in ["link set lo up", "addr add 169.254.169.254/32 dev lo"] {
            let status = Command::new("ip").args(command.split(' ')).status().expect("ip");
            assert!(status.success(), "ip {command}");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(ask_around());
    });
    alone.join().expect("as it should be");
}

async fn ask_around() {
    let trap = TcpListener::bind("169.254.169.254:80").await.expect("the address");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    tokio::spawn(async move {
        while trap.accept().await.is_ok() {
            count.fetch_add(1, Relaxed);
        }
    });

    // A bucket without credentials asks, so the counter works.
    let account = environment(&[("AZURE_STORAGE_ACCOUNT_NAME", "account")]);
    for (url, env) in
        [("s3://shelf", environment(&[])), ("gs://shelf", environment(&[])), ("az://shelf", account)]
    {
        let before = asked.load(Relaxed);
        let trouble =
            Bucket::open(url, &env).expect("a bucket").check().await.expect_err("no server answers");
        assert_eq!(
            (trouble.code, trouble.is_transient),
            (BucketErrorCode::NoCredentials, false),
            "{trouble}"
        );
        assert!(asked.load(Relaxed) > before, "{url}");
    }

    let before = asked.load(Relaxed);
    let emulator = Gcs::start("shelf", "emulator").await;
    let nowhere = "http://127.0.0.1:1";
    let google = environment(&[("STORAGE_EMULATOR_HOST", &emulator.url)]);
    assert_eq!(Bucket::open("gs://shelf", &google).expect("a bucket").check().await, Ok(()));
    let bare = environment(&[("STORAGE_EMULATOR_HOST", emulator.url.trim_start_matches("http://"))]);
    assert_eq!(Bucket::open("gs://shelf", &bare).expect("a bucket").check().await, Ok(()));
    let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_ENDPOINT_URL", nowhere)];
    let azure = [
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5"),
        ("AZURE_STORAGE_ENDPOINT", nowhere),
    ];
    let google = [("GOOGLE_BEARER_TOKEN", "token"), ("GOOGLE_BASE_URL", nowhere)];
    for (url, env) in [("s3://shelf", &keys[..]), ("az://shelf", &azure[..]), ("gs://shelf", &google[..])] {
        let trouble =
            Bucket::open(url, &environment(env)).expect("a bucket").check().await.expect_err("nowhere");
        assert_eq!(trouble.code, BucketErrorCode::Unreachable, "{trouble}");
    }
    // A redirect does not lead a client with keys to that address, either.
    let elsewhere = [
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_ENDPOINT_URL", "http://169.254.169.254"),
    ];
    let sent = Bucket::open("s3://shelf", &environment(&elsewhere)).expect("a bucket").check().await;
    assert_eq!(sent.expect_err("refused").code, BucketErrorCode::Settings);
    assert_eq!(asked.load(Relaxed), before);
}
