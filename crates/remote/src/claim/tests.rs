//! Two servers and one bucket, with a clock that the test advances.

use super::*;
use std::{collections::BTreeMap, path::Path, sync::Mutex};

const INTERVAL: Duration = Duration::from_secs(10);

struct ClaimTestStage {
    dir: tempfile::TempDir,
}

impl ClaimTestStage {
    fn set() -> ClaimTestStage {
        ClaimTestStage { dir: tempfile::tempdir().expect("a directory") }
    }

    fn bucket(&self) -> Bucket {
        let url = format!("file://{}", self.dir.path().display());
        Bucket::open(&url, &BTreeMap::new()).expect("a bucket")
    }

    fn server(&self) -> BucketClaim {
        BucketClaim::new(&self.bucket())
    }

    fn claims(&self) -> Vec<String> {
        let all = std::fs::read_dir(self.dir.path().join(CLAIMS)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn path(&self, number: u64) -> std::path::PathBuf {
        Path::new(self.dir.path()).join(key(number))
    }
}

fn claimant(holder: &str) -> Claimant {
    let (host, url) = (format!("host-of-{holder}"), format!("http://{holder}"));
    Claimant { holder: holder.to_owned(), host, url, every: Some(INTERVAL), take_over: false }
}

async fn acquire(server: &BucketClaim, claimant: &Claimant) -> Result<Vec<BucketErrorCode>, ClaimConflict> {
    let shown: Mutex<Vec<BucketErrorCode>> = Mutex::default();
    let tell = |why: BucketError| shown.lock().expect("no panic").push(why.code);
    server.acquire(claimant, &tell).await?;
    Ok(shown.into_inner().expect("no panic"))
}

#[tokio::test(start_paused = true)]
async fn the_first_server_writes_at_once_and_each_renewal_is_the_next_number() {
    let (stage, began) = (ClaimTestStage::set(), Instant::now());
    let server = stage.server();
    assert_eq!(server.allow().await.expect_err("not yet").code, BucketErrorCode::Claimed);
    assert_eq!(acquire(&server, &claimant("a")).await, Ok(vec![]));
    assert!(began.elapsed() < INTERVAL, "it did not wait");
    assert_eq!(stage.claims(), ["0000000001.json"]);
    let text = std::fs::read_to_string(stage.path(1)).expect("a claim");
    let golden = format!(
        r#"{{"holder":"a","host":"host-of-a","url":"http://a","beat":10000,"instance":"{}"}}"#,
        server.instance
    );
    assert_eq!(text, golden);
    server.allow().await.expect("ours");
    server.renew().await.expect("renewed");
    assert_eq!(stage.claims(), ["0000000002.json"], "older ones are deleted");
}

#[tokio::test(start_paused = true)]
async fn a_server_with_the_same_node_id_goes_on_at_once() {
    let (stage, began) = (ClaimTestStage::set(), Instant::now());
    acquire(&stage.server(), &claimant("a")).await.expect("ours");
    // A crash deletes nothing.
    let next = stage.server();
    assert_eq!(acquire(&next, &claimant("a")).await, Ok(vec![]));
    assert!(began.elapsed() < INTERVAL, "it did not wait");
    assert_eq!(stage.claims(), ["0000000002.json"]);
}

#[tokio::test(start_paused = true)]
async fn another_server_waits_two_and_a_half_intervals_and_then_writes() {
    let stage = ClaimTestStage::set();
    acquire(&stage.server(), &claimant("dead")).await.expect("ours");
    let (other, began) = (stage.server(), Instant::now());
    let shown = acquire(&other, &claimant("b")).await.expect("its holder is dead");
    assert!(began.elapsed() >= INTERVAL * 5 / 2, "{:?}", began.elapsed());
    assert!(began.elapsed() < INTERVAL * 3, "{:?}", began.elapsed());
    assert!(!shown.is_empty() && shown.iter().all(|code| *code == BucketErrorCode::Claimed), "{shown:?}");
    assert_eq!(stage.claims(), ["0000000002.json"]);
}

/// The longer of both intervals counts: this server's short interval says nothing about the holder's.
#[tokio::test(start_paused = true)]
async fn a_holder_with_long_intervals_gets_its_time() {
    let stage = ClaimTestStage::set();
    acquire(&stage.server(), &claimant("dead")).await.expect("ours");
    let began = Instant::now();
    let hasty = Claimant { every: Some(Duration::from_millis(100)), ..claimant("b") };
    acquire(&stage.server(), &hasty).await.expect("its holder is dead");
    assert!(began.elapsed() >= INTERVAL * 5 / 2, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_number_that_rises_is_a_holder_that_lives() {
    let stage = ClaimTestStage::set();
    let holder = stage.server();
    acquire(&holder, &claimant("a")).await.expect("ours");
    let (other, wants) = (stage.server(), claimant("b"));
    let renewing = async {
        // Until the other server has seen the first number.
        other.until(|standing| matches!(standing, ClaimState::Waiting(_))).await;
        holder.renew().await.expect("renewed");
        std::future::pending::<()>().await;
    };
    let conflict = tokio::select! {
        acquired = acquire(&other, &wants) => acquired.expect_err("its holder lives"),
        () = renewing => unreachable!(),
    };
    let said = conflict.to_string();
    for words in ["holder a on host host-of-a at http://a", "ash serve --take-over"] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(stage.claims(), ["0000000002.json"], "the other one wrote nothing");
    assert_eq!(other.allow().await.expect_err("not ours").code, BucketErrorCode::Claimed);
}

/// While the store does not answer, the holder cannot renew its claim: the time counts from the next answer on.
#[tokio::test(start_paused = true)]
async fn time_without_the_store_does_not_count() {
    let stage = ClaimTestStage::set();
    acquire(&stage.server(), &claimant("a")).await.expect("ours");
    let (other, mut watched) = (stage.server(), None);
    let wants = claimant("b");
    assert!(matches!(other.attempt(&wants, &mut watched).await, Ok(ClaimAttempt::Waiting(_))));
    tokio::time::advance(INTERVAL * 2).await;
    let (claims, away) = (stage.dir.path().join(CLAIMS), stage.dir.path().join("away"));
    std::fs::rename(&claims, &away).expect("renamed");
    std::fs::write(&claims, "no directory").expect("written");
    let began = Instant::now();
    let back = async {
        tokio::time::sleep(INTERVAL * 2).await;
        std::fs::remove_file(&claims).expect("removed");
        std::fs::rename(&away, &claims).expect("renamed");
        std::future::pending::<()>().await;
    };
    let shown = tokio::select! {
        shown = acquire(&other, &wants) => shown.expect("its holder is dead"),
        () = back => unreachable!(),
    };
    assert!(
        shown.iter().any(|code| *code != BucketErrorCode::Claimed),
        "the store's own trouble is shown: {shown:?}"
    );
    assert!(began.elapsed() >= INTERVAL * 9 / 2, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_sees_a_foreign_higher_number_writes_nothing_any_more() {
    let (stage, began) = (ClaimTestStage::set(), Instant::now());
    let holder = stage.server();
    acquire(&holder, &claimant("a")).await.expect("ours");
    let other = stage.server();
    let wants = Claimant { take_over: true, ..claimant("b") };
    assert_eq!(acquire(&other, &wants).await, Ok(vec![]));
    assert!(began.elapsed() < INTERVAL, "it did not wait");
    // Numbers in between are deleted by now.
    other.renew().await.expect("renewed");
    other.renew().await.expect("renewed");
    holder.renew().await.expect("the store works");
    let trouble = holder.trouble().expect("it is taken");
    assert_eq!(trouble.code, BucketErrorCode::Taken);
    assert!(trouble.message.contains("holder b on host host-of-b at http://b"), "{trouble}");
    assert_eq!(holder.allow().await.expect_err("not ours").code, BucketErrorCode::Taken);
    other.renew().await.expect("renewed");
    other.allow().await.expect("the other one goes on");
    holder.release().await.expect("nothing to give back");
    assert_eq!(stage.claims(), ["0000000005.json"]);
}

/// A holder that was suspended for long reads before it writes.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_not_fresh_is_renewed_before_anything_is_written() {
    let stage = ClaimTestStage::set();
    let holder = stage.server();
    acquire(&holder, &claimant("a")).await.expect("ours");
    tokio::time::advance(INTERVAL * 2).await;
    holder.allow().await.expect("still ours");
    assert_eq!(stage.claims(), ["0000000002.json"], "renewed");
    let wants = Claimant { take_over: true, ..claimant("b") };
    acquire(&stage.server(), &wants).await.expect("taken over");
    holder.allow().await.expect("it cannot know yet");
    tokio::time::advance(INTERVAL * 2).await;
    assert_eq!(holder.allow().await.expect_err("now it knows").code, BucketErrorCode::Taken);
}

#[tokio::test(start_paused = true)]
async fn a_clean_stop_deletes_the_claim_and_the_next_server_need_not_wait() {
    let (stage, began) = (ClaimTestStage::set(), Instant::now());
    let server = stage.server();
    acquire(&server, &claimant("a")).await.expect("ours");
    server.release().await.expect("given back");
    assert_eq!(stage.claims(), [""; 0]);
    server.renew().await.expect("nothing to renew");
    assert_eq!(stage.claims(), [""; 0]);
    assert_eq!(server.allow().await.expect_err("not ours").code, BucketErrorCode::Claimed);
    acquire(&stage.server(), &claimant("b")).await.expect("free");
    assert!(began.elapsed() < INTERVAL, "it did not wait");
}

/// Two copies of one data directory: the server that started last has the claim.
#[tokio::test(start_paused = true)]
async fn a_second_server_with_a_copy_of_the_node_id_is_noticed() {
    let stage = ClaimTestStage::set();
    let (first, second) = (stage.server(), stage.server());
    acquire(&first, &claimant("a")).await.expect("ours");
    acquire(&second, &claimant("a")).await.expect("the same node");
    first.renew().await.expect("the store works");
    assert_eq!(first.allow().await.expect_err("taken").code, BucketErrorCode::Taken);
    second.renew().await.expect("renewed");
    second.allow().await.expect("ours");
}

#[tokio::test(start_paused = true)]
async fn foreign_files_among_the_claims_do_no_harm() {
    let stage = ClaimTestStage::set();
    std::fs::create_dir(stage.dir.path().join(CLAIMS)).expect("made");
    for name in ["99999999999999999999.json", "x.json", "5.json", "-000000007.json"] {
        std::fs::write(stage.dir.path().join(CLAIMS).join(name), "{}").expect("written");
    }
    std::fs::write(stage.path(3), "\u{1b}[31m no JSON").expect("written");
    let began = Instant::now();
    let server = stage.server();
    acquire(&server, &claimant("a")).await.expect("no number rises");
    assert!(began.elapsed() >= INTERVAL * 5 / 2, "another server's, for all we know");
    assert!(stage.path(4).exists() && !stage.path(3).exists());
    let odd = ClaimRecord {
        holder: "\u{1b}[31mred".into(),
        ..serde_json::from_str("{}").expect("fields may be missing")
    };
    assert_eq!(odd.to_string(), "holder [31mred on host unknown at unknown");
}
