//! Counters and limits of requests. Time is tokio's: it passes at once while all tasks wait.

use ash_cloud::{Bucket, BucketTraffic, FaultRates, RequestLimits};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

fn empty() -> Bucket {
    Bucket::with_backend(Arc::new(InMemory::new()))
}

/// The duration of each request.
fn slow(seconds: u64) -> FaultRates {
    FaultRates { late: 100, lateness: Duration::from_secs(seconds), ..FaultRates::default() }
}

/// In a spawned task, as in the server.
#[tokio::test]
async fn every_request_is_counted() {
    tokio::spawn(count()).await.expect("as it should be");
}

async fn count() {
    let bucket = empty();
    bucket.put_new("a", Bytes::from_static(b"12345")).await.expect("put");
    bucket.put_new("a", Bytes::from_static(b"12345")).await.expect("there");
    bucket.get("a").await.expect("got");
    bucket.get_range("a", 1..3).await.expect("got");
    bucket.head("a").await.expect("looked");
    bucket.list("").try_for_each(async |_| Ok(())).await.expect("listed");
    bucket.list_dirs("").await.expect("listed");
    bucket.delete(&["a".into(), "b".into()]).await.expect("deleted");
    let expected = BucketTraffic {
        put: 2,
        get: 2,
        head: 1,
        list: 2,
        delete: 2,
        bytes_up: 5,
        bytes_down: 7,
        ..BucketTraffic::default()
    };
    assert_eq!(bucket.traffic(), expected);
    let file = tempfile::Builder::new().prefix("ash-test-").tempfile().expect("a file");
    file.as_file().set_len(17 << 20).expect("a length");
    bucket.put_file("large", file.path(), &|_| {}).await.expect("put");
    // The start, three parts and the completion, between two HEAD requests.
    assert_eq!(bucket.traffic(), BucketTraffic { part: 5, head: 3, bytes_up: 5 + (17 << 20), ..expected });
}

#[tokio::test(start_paused = true)]
async fn requests_are_limited_and_waiting_for_a_turn_is_no_timeout() {
    // Requests time out after ten seconds of silence. Time that a request waits for its turn does not count.
    let limits = RequestLimits {
        max_concurrent: Some(2),
        idle_timeout: Duration::from_secs(10),
        ..RequestLimits::default()
    };
    let bucket = empty().with_faults(slow(5)).with_limits(limits);
    let begin = Instant::now();
    let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    futures::future::try_join_all(names.iter().map(|key| bucket.put_new(key, Bytes::new())))
        .await
        .expect("put");
    assert_eq!(begin.elapsed().as_secs(), 25);
    let begin = Instant::now();
    futures::future::try_join_all(names.iter().map(|key| bucket.get(key))).await.expect("got");
    assert_eq!(begin.elapsed().as_secs(), 25);
    assert_eq!(bucket.traffic().retries, 0);
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_a_listing_can_send_more_requests() {
    let bucket = empty().with_limits(RequestLimits { max_concurrent: Some(1), ..RequestLimits::default() });
    for key in ["a", "b", "c"] {
        bucket.put_new(key, Bytes::from_static(b"x")).await.expect("put");
    }
    let read = bucket.list("").try_fold(0, async |sum, found| Ok(sum + bucket.get(&found.key).await?.len()));
    assert_eq!(read.await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn the_bytes_per_second_are_limited() {
    let bucket =
        empty().with_limits(RequestLimits { bytes_per_second: Some(1000), ..RequestLimits::default() });
    let begin = Instant::now();
    for key in ["a", "b", "c"] {
        bucket.put_new(key, Bytes::from(vec![0; 100_000])).await.expect("put");
    }
    // The last part was sent, but its delay has not passed yet.
    assert_eq!(begin.elapsed().as_secs(), 200);
    bucket.get("a").await.expect("got");
    assert_eq!(begin.elapsed().as_secs(), 300);
    bucket.get("b").await.expect("got");
    assert_eq!(begin.elapsed().as_secs(), 400);
    assert_eq!(bucket.traffic().retries, 0);
}
