//! Freezing a sandbox while its files are read.

use std::{fs, path::Path, time::Duration};

use ash_model::CaptureConsistency;
use ash_sandbox::ShimLimits;

use crate::rig::{Live, Rig, eventually, is_root, script};

const COUNTER: &str = "echo up; while :; do echo x >> /workspace/counter; done";

fn length(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |meta| meta.len())
}

async fn counting(caps: ShimLimits) -> (Rig, Live, std::path::PathBuf) {
    let rig = Rig::with(caps, "data").await;
    let mut live = rig.launch().await;
    live.start(script(1, COUNTER)).await;
    assert_eq!(live.line().await, "up");
    let counter = rig.spec.workspace.join("counter");
    eventually("it counts", || length(&counter) > 0).await;
    (rig, live, counter)
}

/// A running loop would have changed the counter between these reads.
async fn stands_still(counter: &Path) -> bool {
    let before = length(counter);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        if length(counter) != before {
            return false;
        }
    }
    true
}

async fn goes_on(counter: &Path) {
    let before = length(counter);
    eventually("it counts again", || length(counter) > before).await;
}

#[tokio::test]
async fn nothing_is_written_while_the_sandbox_is_held() {
    let (_rig, live, counter) = counting(ShimLimits::default()).await;
    let expected = if is_root() { CaptureConsistency::Frozen } else { CaptureConsistency::Stopped };
    for _ in 0..3 {
        assert_eq!(live.remote.freeze().await.expect("frozen"), expected);
        assert!(stands_still(&counter).await);
        assert!(live.remote.thaw().await.expect("thawed"), "it was held all the time");
        goes_on(&counter).await;
    }
}

#[tokio::test]
async fn a_held_sandbox_is_released_when_its_client_dies() {
    let (rig, live, counter) = counting(ShimLimits::default()).await;
    live.remote.freeze().await.expect("frozen");
    assert!(stands_still(&counter).await);
    drop(live);
    goes_on(&counter).await;
    let live = rig.reattach(1, 0).await;
    assert!(!live.remote.thaw().await.expect("thawed"), "no client held it any more");
}

#[tokio::test]
async fn a_sandbox_held_for_too_long_is_released_and_the_thaw_says_so() {
    let (_rig, live, counter) = counting(ShimLimits { hold_ms: 50, ..ShimLimits::default() }).await;
    live.remote.freeze().await.expect("frozen");
    goes_on(&counter).await;
    assert!(!live.remote.thaw().await.expect("thawed"));
}

#[tokio::test]
async fn a_held_sandbox_can_be_ended() {
    let (rig, mut live, _counter) = counting(ShimLimits::default()).await;
    live.remote.freeze().await.expect("frozen");
    live.remote.end().await.expect("sent");
    live.closed().await;
    assert!(rig.cgroup_dirs().iter().all(|dir| !dir.exists()));
}

#[tokio::test]
async fn without_walls_and_groups_a_hold_is_live() {
    let rig = Rig::bare();
    let live = rig.launch().await;
    let expected = if is_root() { CaptureConsistency::Frozen } else { CaptureConsistency::Live };
    assert_eq!(live.remote.freeze().await.expect("answered"), expected);
    assert!(live.remote.thaw().await.expect("thawed"));
}
