//! Buckets on a store that fails, over many seeds. Time is tokio's: it passes at once while all tasks wait.

use crate::scripted::{Scripted, answer, cut_answer, error};
use ash_cloud::{Bucket, BucketErrorCode, FaultRates, PutOutcome, RequestLimits, RetryPolicy};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Four of ten requests fail in some way.
fn faults(seed: u64) -> FaultRates {
    FaultRates {
        seed,
        before: 10,
        after: 10,
        silent: 5,
        cut: 10,
        late: 10,
        lateness: Duration::from_secs(20),
    }
}

/// Two buckets on one store: requests of the first fail, requests of the second do not. With twenty attempts no request
/// runs out of retries, even with these faults.
fn pair(seed: u64) -> (Bucket, Bucket) {
    let store = Arc::new(InMemory::new());
    let patience = RetryPolicy { max_attempts: 20, ..RetryPolicy::default() };
    (
        Bucket::with_backend(store.clone()).with_faults(faults(seed)).with_retry_policy(patience),
        Bucket::with_backend(store),
    )
}

async fn keys(bucket: &Bucket) -> Vec<String> {
    bucket.list("").map_ok(|found| found.key).try_collect().await.expect("a listing")
}

#[tokio::test(start_paused = true)]
async fn everything_that_was_put_is_there_and_no_key_is_new_twice() {
    let mut again = 0;
    for seed in 0..300 {
        let (faulty, sound) = pair(seed);
        let all: Vec<String> = (0..6).map(|n| format!("k/{n}")).collect();
        let writers = (0..4_u8).flat_map(|writer| all.iter().map(move |key| (writer, key)));
        let puts = writers.map(async |(writer, key)| {
            (writer, key, faulty.put_new(key, Bytes::from(vec![writer; 9])).await)
        });
        let done: Vec<_> = futures::stream::iter(puts).buffer_unordered(24).collect().await;
        for key in &all {
            let there = sound.get(key).await.expect("what was put");
            assert!((0..4).any(|writer| there == vec![writer; 9]), "seed {seed}");
            let mut firsts = done.iter().filter(|(_, of, put)| of == &key && *put == Ok(PutOutcome::Created));
            if let Some((writer, ..)) = firsts.next() {
                assert_eq!(there, vec![*writer; 9], "seed {seed}: the object is that of the first writer");
            }
            assert!(firsts.next().is_none(), "seed {seed}: {key} was new twice");
        }
        assert!(done.iter().all(|(.., put)| put.is_ok()), "seed {seed}: {done:?}");
        again += faulty.traffic().retries;
    }
    assert!(again > 1000, "they were to fail, and did so {again} times");
}

#[tokio::test(start_paused = true)]
async fn objects_are_read_whole() {
    for seed in 0..300 {
        let (faulty, sound) = pair(seed);
        let bytes: Bytes = (0..5000_u32).map(|n| n as u8).collect();
        sound.put_new("a", bytes.clone()).await.expect("put");
        assert_eq!(faulty.get("a").await.expect("bytes"), bytes, "seed {seed}");
        let found = faulty.get_ranges("a", &[7..4000, 4500..4501]).await.expect("ranges");
        assert_eq!(found, [bytes.slice(7..4000), bytes.slice(4500..4501)], "seed {seed}");
        assert_eq!(faulty.head("a").await, Ok(Some(5000)), "seed {seed}");
        assert_eq!(faulty.head("b").await, Ok(None), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn listings_are_whole_and_deleted_objects_stay_deleted() {
    for seed in 0..300 {
        let (faulty, sound) = pair(seed);
        let all: Vec<String> = (0..40).map(|n| format!("d{}/{n:02}", n / 10)).collect();
        for key in &all {
            sound.put_new(key, Bytes::new()).await.expect("put");
        }
        assert_eq!(keys(&faulty).await, all, "seed {seed}");
        assert_eq!(faulty.list_dirs("").await.expect("names"), ["d0", "d1", "d2", "d3"], "seed {seed}");
        faulty.delete(&all[..30]).await.expect("deleted");
        assert_eq!(keys(&sound).await, all[30..], "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn large_files_arrive_whole() {
    let file = tempfile::Builder::new().prefix("ash-test-").tempfile().expect("a file");
    let bytes: Vec<u8> = (0..18_u32 << 18).flat_map(u32::to_le_bytes).collect();
    std::fs::write(file.path(), &bytes).expect("written");
    for seed in 0..20 {
        let directory = tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory");
        let sound = Bucket::open(&format!("file://{}", directory.path().display()), &BTreeMap::new())
            .expect("a bucket");
        let patience = RetryPolicy { max_attempts: 20, ..RetryPolicy::default() };
        let faulty = sound.clone().with_faults(faults(seed)).with_retry_policy(patience);
        assert_eq!(
            faulty.put_file("large", file.path(), &|_| {}).await,
            Ok(PutOutcome::Created),
            "seed {seed}"
        );
        assert_eq!(sound.get("large").await.expect("bytes"), bytes, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_fails_in_the_same_way() {
    let outcome = async |seed: u64| {
        let once = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
        let bucket =
            Bucket::with_backend(Arc::new(InMemory::new())).with_faults(faults(seed)).with_retry_policy(once);
        let mut outcomes = Vec::new();
        for n in 0..200 {
            outcomes
                .push(bucket.put_new(&format!("{n}"), Bytes::new()).await.map_err(|trouble| trouble.message));
        }
        outcomes
    };
    assert_eq!(outcome(7).await, outcome(7).await);
    assert_ne!(outcome(7).await, outcome(8).await);
    let failed = outcome(7).await.iter().filter(|put| put.is_err()).count();
    assert!((30..70).contains(&failed), "a quarter was to fail, and {failed} of 200 did");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_read_again() {
    let whole = "0123456789";
    let server = Scripted::start(move |_, n| match n {
        0 => cut_answer(200, "", &whole[..5], 10),
        _ => answer(200, "", whole),
    })
    .await;
    let bucket = quick(&server);
    assert_eq!(bucket.get("a").await.expect("bytes"), whole);
    assert_eq!(bucket.traffic().retries, 1);

    let server = Scripted::start(|_, _| cut_answer(200, "", "01234", 10)).await;
    let trouble = quick(&server).get("a").await.expect_err("never whole");
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::Unreachable, true), "{trouble}");
}

#[tokio::test]
async fn only_temporary_errors_are_retried() {
    let attempts = async |reply: Vec<u8>| {
        let server = Scripted::start(move |_, _| reply.clone()).await;
        let trouble = quick(&server).put_new("a", Bytes::new()).await.expect_err("it fails");
        (server.asked().len(), trouble.is_transient)
    };
    for (status, code) in [(503, "SlowDown"), (500, "InternalError"), (429, ""), (400, "RequestTimeout")] {
        assert_eq!(attempts(error(status, code, "")).await, (3, true), "{status} {code}");
    }
    assert_eq!(attempts(Vec::new()).await, (3, true), "a connection that ends without an answer");
    for (status, code) in [(403, "AccessDenied"), (404, "NoSuchBucket"), (400, "ExpiredToken"), (507, "")] {
        assert_eq!(attempts(error(status, code, "")).await, (1, false), "{status} {code}");
    }
}

#[tokio::test]
async fn a_conflicting_write_is_no_existing_object() {
    let conflict = || error(409, "ConditionalRequestConflict", "A conflicting operation occurred.");
    // The conflicting write failed, so ours is the first.
    let server = Scripted::start(move |_, n| if n < 2 { conflict() } else { answer(200, "", "") }).await;
    assert_eq!(quick(&server).put_new("a", Bytes::new()).await, Ok(PutOutcome::Created));
    // The conflicting write succeeded.
    let server =
        Scripted::start(move |_, n| if n == 0 { conflict() } else { error(412, "PreconditionFailed", "") })
            .await;
    assert_eq!(quick(&server).put_new("a", Bytes::new()).await, Ok(PutOutcome::AlreadyExists));
    // The conflict does not end, so the bucket checks whether the object exists.
    for (status, wanted) in [(200, Ok(PutOutcome::AlreadyExists)), (404, Err(true))] {
        let server = Scripted::start(move |line, _| match line.starts_with("HEAD") {
            true => answer(status, "", ""),
            false => conflict(),
        })
        .await;
        let put = quick(&server).put_new("a", Bytes::new()).await;
        assert_eq!(put.map_err(|trouble| trouble.is_transient), wanted);
    }
}

#[tokio::test]
async fn an_upload_whose_last_answer_was_lost_is_complete() {
    let file = tempfile::Builder::new().prefix("ash-test-").tempfile().expect("a file");
    file.as_file().set_len(17 << 20).expect("a length");
    let server = Scripted::start(move |line, n| match line.split(' ').next() {
        Some("HEAD") if n == 0 => answer(404, "", ""),
        Some("HEAD") => cut_answer(200, "", "", 17 << 20),
        Some("POST") if line.contains("uploads") => {
            let body =
                "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
            answer(200, "", body)
        }
        // The answer to the first completion is lost; the second request finds that the upload is over.
        Some("POST") if n == 5 => Vec::new(),
        Some("POST") => error(404, "NoSuchUpload", "The upload may have been completed."),
        _ => answer(200, "", ""),
    })
    .await;
    assert_eq!(
        quick(&server).put_file("a", file.path(), &|_| {}).await,
        Ok(PutOutcome::Created),
        "{:?}",
        server.asked()
    );
    assert!(server.asked().iter().all(|line| !line.starts_with("DELETE")), "{:?}", server.asked());
}

#[tokio::test]
async fn an_upload_that_fails_is_given_up() {
    let file = tempfile::Builder::new().prefix("ash-test-").tempfile().expect("a file");
    file.as_file().set_len(17 << 20).expect("a length");
    let server = Scripted::start(move |line, _| match line.split(' ').next() {
        Some("HEAD") => answer(404, "", ""),
        Some("POST") => {
            let body =
                "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
            answer(200, "", body)
        }
        Some("PUT") => error(403, "AccessDenied", "No more."),
        _ => answer(204, "", ""),
    })
    .await;
    let trouble = quick(&server).put_file("a", file.path(), &|_| {}).await.expect_err("refused");
    assert_eq!(trouble.code, BucketErrorCode::AccessDenied);
    let last = server.asked().pop().expect("a request");
    assert!(last.starts_with("DELETE /shelf/a?uploadId=u "), "{last}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_given_up() {
    let silent = FaultRates { silent: 100, ..FaultRates::default() };
    let bucket = pair(0)
        .1
        .with_faults(silent)
        .with_limits(RequestLimits { idle_timeout: Duration::from_secs(5), ..RequestLimits::default() });
    let trouble = bucket.head("a").await.expect_err("no answer");
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::Unreachable, true), "{trouble}");
}

/// S3 at this server, with short timeouts.
fn quick(server: &Scripted) -> Bucket {
    let patience = RetryPolicy {
        max_attempts: 3,
        initial_delay: Duration::from_millis(1),
        max_delay: Duration::from_millis(1),
    };
    Bucket::open("s3://shelf", &server.as_s3()).expect("a bucket").with_retry_policy(patience)
}
