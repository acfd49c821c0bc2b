//! What every bucket promises. A promise is a function over a `Home`; each backend keeps all of them, on one server, since
//! some take seconds to start, but each beneath a prefix of its own.

use crate::{gcs::Gcs, memory, servers, servers::Server};
use ash_cloud::{Bucket, BucketErrorCode, BucketObject, FaultRates, PART, PutOutcome, RetryPolicy};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// An empty prefix in a bucket called `shelf`.
struct Home {
    url: String,
    env: BTreeMap<String, String>,
    /// Data of the backend does not count as our memory.
    is_elsewhere: bool,
}

impl Home {
    fn new(url: &str, env: BTreeMap<String, String>) -> Home {
        Home { url: url.to_owned(), env, is_elsewhere: true }
    }

    fn bucket(&self) -> Bucket {
        Bucket::open(&self.url, &self.env).expect("a bucket")
    }

    fn beneath(&self, name: &str) -> Home {
        let url = format!("{}/{name}", self.url);
        if let Some(path) = url.strip_prefix("file://") {
            std::fs::create_dir(path).expect("a directory");
        }
        Home { url, env: self.env.clone(), is_elsewhere: self.is_elsewhere }
    }
}

/// Prints how long each promise took: backends list a thousand keys at different speeds.
macro_rules! promises {
    ($($promise:ident)*) => {
        async fn all_promises_are_kept(home: Home) {
            $(
                let begin = Instant::now();
                $promise(&home.beneath(stringify!($promise))).await;
                eprintln!("{:8.2} s  {}", begin.elapsed().as_secs_f64(), stringify!($promise));
            )*
        }
    };
}

promises! {
    of_eight_who_write_one_key_one_is_first
    what_was_put_is_got_whole_and_by_ranges
    what_is_not_there_is_missing
    a_listing_of_pages_is_whole_and_in_order
    a_listing_that_breaks_off_goes_on
    directories_are_listed_by_name
    a_prefix_keeps_to_itself
    a_large_file_arrives_with_a_few_parts_in_memory
    a_file_that_is_there_is_not_sent_again
    a_file_of_another_length_is_not_overwritten
    what_is_deleted_is_gone_and_gone_already_is_fine
    a_check_leaves_nothing_but_its_mark
    a_missing_bucket_is_reported
}

#[tokio::test]
async fn s3_keeps_all_promises() {
    let (server, env) = Server::moto();
    server.make_s3_bucket("shelf");
    all_promises_are_kept(Home::new("s3://shelf", env)).await;
}

#[tokio::test]
async fn azure_keeps_all_promises() {
    let (server, env) = Server::azurite();
    server.make_azure_container("shelf");
    let home = Home::new("az://shelf", env);
    it_does_not_take_a_wrong_key(&home).await;
    it_takes_a_signature_instead_of_a_key(&home.beneath("signed")).await;
    all_promises_are_kept(home).await;
}

#[tokio::test]
async fn google_keeps_all_promises() {
    let server = Gcs::start("shelf", "open sesame").await;
    let given = [("STORAGE_EMULATOR_HOST", server.url.as_str()), ("GOOGLE_BEARER_TOKEN", "open sesame")];
    let home = Home { is_elsewhere: false, ..Home::new("gs://shelf", servers::environment(&given)) };
    it_does_not_take_a_wrong_token(&home).await;
    all_promises_are_kept(home).await;
}

#[tokio::test]
async fn a_directory_keeps_all_promises() {
    let directory = tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory");
    let backend = directory.path().join("shelf");
    std::fs::create_dir(&backend).expect("a directory");
    all_promises_are_kept(Home::new(&format!("file://{}", backend.display()), BTreeMap::new())).await;
}

async fn keys(bucket: &Bucket, prefix: &str) -> Vec<String> {
    bucket.list(prefix).map_ok(|found| found.key).try_collect().await.expect("a listing")
}

async fn of_eight_who_write_one_key_one_is_first(home: &Home) {
    for round in 0..5 {
        let key = format!("race/{round}");
        let bucket = home.bucket();
        let writers = (0..8_u8).map(|n| bucket.put_new(&key, Bytes::from(vec![n; 1000])));
        let written: Vec<PutOutcome> = futures::future::try_join_all(writers).await.expect("all answers");
        let firsts: Vec<usize> = (0..8).filter(|n| written[*n] == PutOutcome::Created).collect();
        assert_eq!(firsts.len(), 1, "{written:?}");
        assert_eq!(bucket.get(&key).await.expect("what was put"), vec![firsts[0] as u8; 1000]);
    }
}

async fn what_was_put_is_got_whole_and_by_ranges(home: &Home) {
    let bucket = home.bucket();
    let bytes: Bytes = (0..3_000_000_u32).map(|n| ((n * 31) >> 3) as u8).collect();
    assert_eq!(bucket.put_new("packs/one.pack", bytes.clone()).await, Ok(PutOutcome::Created));
    assert_eq!(bucket.put_new("packs/empty", Bytes::new()).await, Ok(PutOutcome::Created));
    assert_eq!(bucket.head("packs/one.pack").await, Ok(Some(3_000_000)));
    assert_eq!(bucket.head("packs/empty").await, Ok(Some(0)));
    assert_eq!(bucket.get("packs/one.pack").await.expect("bytes"), bytes);
    assert_eq!(bucket.get("packs/empty").await.expect("bytes"), Bytes::new());
    let begun =
        [("packs/one.pack", 10), ("packs/one.pack", 5_000_000), ("packs/empty", 10), ("packs/none", 10)];
    let wanted = [
        Some((3_000_000, bytes.slice(..10))),
        Some((3_000_000, bytes.clone())),
        Some((0, Bytes::new())),
        None,
    ];
    for ((key, most), wanted) in begun.into_iter().zip(wanted) {
        assert!(bucket.read_prefix(key, most).await == Ok(wanted), "{key}, {most}");
    }
    assert_eq!(bucket.get_range("packs/one.pack", 10..20).await.expect("bytes"), bytes[10..20]);
    // Near each other, far apart, not in order, one twice, one empty, one at the end.
    let ranges = [5..7, 2_900_000..2_900_010, 100..101, 5..7, 9..9, 2_999_999..3_000_000];
    let before = bucket.traffic();
    let found = bucket.get_ranges("packs/one.pack", &ranges).await.expect("ranges");
    let wanted: Vec<&[u8]> =
        ranges.iter().map(|range| &bytes[range.start as usize..range.end as usize]).collect();
    assert_eq!(found, wanted);
    assert_eq!(bucket.traffic().get - before.get, 2, "near ranges are one request");
    for beyond in [2_999_999..3_000_001, 3_000_000..3_000_010] {
        let trouble = bucket.get_range("packs/one.pack", beyond).await.expect_err("the end");
        assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::Damaged, false), "{trouble}");
    }
}

async fn what_is_not_there_is_missing(home: &Home) {
    let bucket = home.bucket();
    assert_eq!(bucket.head("nothing/here").await, Ok(None));
    let trouble = bucket.get("nothing/here").await.expect_err("nothing");
    assert_eq!(trouble.code, BucketErrorCode::Missing);
    assert!(trouble.message.starts_with("There is no nothing/here in "), "{trouble}");
    assert_eq!(
        bucket.get_range("nothing/here", 0..5).await.expect_err("nothing").code,
        BucketErrorCode::Missing
    );
    assert_eq!(keys(&bucket, "nothing").await, Vec::<String>::new());
    for bad in ["", "a//b", "../up", "a/./b"] {
        assert_eq!(bucket.put_new(bad, Bytes::new()).await.expect_err(bad).code, BucketErrorCode::Settings);
    }
}

async fn a_listing_of_pages_is_whole_and_in_order(home: &Home) {
    let bucket = home.bucket();
    let mut wanted: Vec<String> = (0..1050).map(|n| format!("many/{n}")).collect();
    let puts = wanted.iter().map(|key| bucket.put_new(key, Bytes::from_static(b"x")));
    futures::stream::iter(puts)
        .buffer_unordered(8)
        .try_for_each(async |_| Ok(()))
        .await
        .expect("all are put");
    wanted.sort();
    let found: Vec<BucketObject> = bucket.list("many").try_collect().await.expect("a listing");
    assert_eq!(found, wanted.into_iter().map(|key| BucketObject { key, size: 1 }).collect::<Vec<_>>());
}

async fn a_listing_that_breaks_off_goes_on(home: &Home) {
    let bucket = home.bucket();
    let wanted: Vec<String> = (0..30).map(|n| format!("{n:02}")).collect();
    for key in &wanted {
        bucket.put_new(key, Bytes::new()).await.expect("put");
    }
    let patience = RetryPolicy { max_attempts: 20, initial_delay: Duration::ZERO, ..RetryPolicy::default() };
    let broken =
        bucket.with_faults(FaultRates { cut: 90, ..FaultRates::default() }).with_retry_policy(patience);
    assert_eq!(keys(&broken, "").await, wanted);
    assert!(broken.traffic().retries > 0, "it was to break off");
}

async fn directories_are_listed_by_name(home: &Home) {
    let bucket = home.bucket();
    for key in ["top", "w/alpha/1/a", "w/alpha/2/b", "w/beta/c", "w/file", "wide/d"] {
        bucket.put_new(key, Bytes::from_static(b"x")).await.expect("put");
    }
    assert_eq!(bucket.list_dirs("").await.expect("names"), ["w", "wide"]);
    assert_eq!(bucket.list_dirs("w").await.expect("names"), ["alpha", "beta"]);
    assert_eq!(bucket.list_dirs("w/beta").await.expect("names"), Vec::<String>::new());
    assert_eq!(keys(&bucket, "w").await, ["w/alpha/1/a", "w/alpha/2/b", "w/beta/c", "w/file"]);
}

async fn a_prefix_keeps_to_itself(home: &Home) {
    let (outer, inner) = (home.bucket(), home.beneath("inner").bucket());
    inner.put_new("a/b", Bytes::from_static(b"inside")).await.expect("put");
    outer.put_new("a/b", Bytes::from_static(b"outside")).await.expect("put");
    assert_eq!(inner.get("a/b").await.expect("bytes"), "inside");
    assert_eq!(outer.get("a/b").await.expect("bytes"), "outside");
    assert_eq!(keys(&inner, "").await, ["a/b"]);
    assert_eq!(keys(&outer, "").await, ["a/b", "inner/a/b"]);
    assert_eq!(outer.list_dirs("").await.expect("names"), ["a", "inner"]);
}

async fn a_large_file_arrives_with_a_few_parts_in_memory(home: &Home) {
    let bucket = home.bucket();
    let length = 40 << 20;
    let file = file_of(length + 5);
    let told = AtomicU64::new(0);
    let progress = |bytes: u64| {
        assert!(told.fetch_max(bytes, Relaxed) <= length + 5);
    };
    let (written, most) = memory::most_during(bucket.put_file("large", file.path(), &progress)).await;
    assert_eq!(written, Ok(PutOutcome::Created));
    assert_eq!(told.into_inner(), length + 5);
    assert_eq!(bucket.head("large").await, Ok(Some(length + 5)));
    if home.is_elsewhere {
        assert!(most < 4 * PART + PART / 2, "{most} bytes were in memory");
    }
    // Around the part boundaries, and at the end.
    let whole = std::fs::read(file.path()).expect("the file");
    let part = PART as u64;
    let ranges = [0..9, part - 3..part + 3, 3 * part - 1..3 * part + 1, length - 1..length + 5];
    let found = bucket.get_ranges("large", &ranges).await.expect("ranges");
    for (range, bytes) in ranges.iter().zip(found) {
        assert_eq!(bytes, whole[range.start as usize..range.end as usize], "{range:?}");
    }
    assert_eq!(keys(&bucket, "").await, ["large"]);
}

async fn a_file_that_is_there_is_not_sent_again(home: &Home) {
    let bucket = home.bucket();
    for (key, length) in [("small", 100), ("large", 17 << 20)] {
        let file = file_of(length);
        assert_eq!(bucket.put_file(key, file.path(), &|_| {}).await, Ok(PutOutcome::Created));
        let before = bucket.traffic().bytes_up;
        assert_eq!(bucket.put_file(key, file.path(), &|_| {}).await, Ok(PutOutcome::AlreadyExists));
        assert_eq!(bucket.traffic().bytes_up, before, "nothing arrived again");
    }
}

async fn a_file_of_another_length_is_not_overwritten(home: &Home) {
    let bucket = home.bucket();
    for (key, length) in [("small", 100), ("large", 17 << 20)] {
        bucket.put_new(key, Bytes::from_static(b"damaged")).await.expect("put");
        let trouble =
            bucket.put_file(key, file_of(length).path(), &|_| {}).await.expect_err("another length");
        assert_eq!(trouble.code, BucketErrorCode::Damaged);
        assert_eq!(bucket.get(key).await.expect("bytes"), "damaged");
    }
}

async fn what_is_deleted_is_gone_and_gone_already_is_fine(home: &Home) {
    let bucket = home.bucket();
    let all: Vec<String> = (0..300).map(|n| format!("d/{n:03}")).collect();
    let puts = all.iter().map(|key| bucket.put_new(key, Bytes::from_static(b"x")));
    futures::stream::iter(puts)
        .buffer_unordered(8)
        .try_for_each(async |_| Ok(()))
        .await
        .expect("all are put");
    let mut unwanted = all[..290].to_vec();
    unwanted.extend(["d/never".to_owned(), "never/there".to_owned()]);
    bucket.delete(&unwanted).await.expect("deleted");
    assert_eq!(keys(&bucket, "").await, all[290..]);
    bucket.delete(&unwanted).await.expect("gone already");
    bucket.delete(&[]).await.expect("nothing to do");
    assert_eq!(bucket.put_new("d/000", Bytes::from_static(b"y")).await, Ok(PutOutcome::Created));
}

async fn a_check_leaves_nothing_but_its_mark(home: &Home) {
    let bucket = home.bucket();
    assert_eq!(bucket.check().await, Ok(()));
    assert_eq!(bucket.check().await, Ok(()));
    assert_eq!(keys(&bucket, "").await, ["ash-bucket"]);
    assert_eq!(bucket.get("ash-bucket").await.expect("bytes"), "ash bucket 1\n");
}

async fn a_missing_bucket_is_reported(home: &Home) {
    let url = home.url.replace("shelf", "elsewhere");
    let found = match Bucket::open(&url, &home.env) {
        Ok(bucket) => bucket.check().await,
        Err(trouble) => Err(trouble),
    };
    let trouble = found.expect_err("it is missing");
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::BucketMissing, false), "{trouble}");
}

/// A file whose bytes depend on their offset.
fn file_of(length: u64) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().prefix("ash-test-").tempfile().expect("a file");
    let mut bytes = Vec::new();
    for n in 0..length.div_ceil(1024) {
        bytes.extend_from_slice(&n.to_le_bytes());
        bytes.extend_from_slice(&[n as u8; 1016]);
    }
    bytes.truncate(length as usize);
    std::fs::write(file.path(), bytes).expect("written");
    file
}

async fn it_does_not_take_a_wrong_key(home: &Home) {
    let mut env = home.env.clone();
    env.insert("AZURE_STORAGE_ACCOUNT_KEY".into(), "d3Jvbmc=".into());
    let trouble = Bucket::open(&home.url, &env).expect("a bucket").check().await.expect_err("refused");
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::WrongKey, false), "{trouble}");
}

async fn it_takes_a_signature_instead_of_a_key(home: &Home) {
    let mut env = home.env.clone();
    env.remove("AZURE_STORAGE_ACCOUNT_KEY");
    env.insert("AZURE_STORAGE_SAS_TOKEN".into(), servers::AZURITE_SAS.into());
    let bucket = Bucket::open(&home.url, &env).expect("a bucket");
    assert_eq!(bucket.check().await, Ok(()));
    assert_eq!(keys(&home.bucket(), "").await, ["ash-bucket"]);
}

async fn it_does_not_take_a_wrong_token(home: &Home) {
    let mut env = home.env.clone();
    env.insert("GOOGLE_BEARER_TOKEN".into(), "abracadabra".into());
    let trouble = Bucket::open(&home.url, &env).expect("a bucket").check().await.expect_err("refused");
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::WrongKey, false), "{trouble}");
    assert!(!trouble.message.contains("abracadabra"));
}
