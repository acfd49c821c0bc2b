//! A process that passes points, and a test that arms them. The process is this test binary again.

use std::{
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

const INSIDE: &str = "ASH_TEST_FAIL_POINT_PROCESS";

/// Not a test of its own: what the process of the other tests does.
#[test]
fn passes_points() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let dir = std::env::var(ash_failpoint::VARIABLE).expect("a directory");
    let mark = |name: &str| std::fs::write(Path::new(&dir).join(name), "").expect("written");
    ash_failpoint::reach("blocking");
    mark("after-blocking");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let held = tokio::spawn(async { ash_failpoint::reach_async("future").await });
        tokio::task::yield_now().await;
        // On one thread, to show that the held task blocks no other task.
        mark("beside-future");
        held.await.expect("no panic");
        mark("after-future");
    });
    for _ in 0..3 {
        ash_failpoint::reach("often");
        ash_failpoint::reach("later");
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(Path::new(&dir).join("often.log"))
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"x"))
            .expect("written");
    }
}

fn process(dir: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "passes_points"])
        .env(INSIDE, "1")
        .env(ash_failpoint::VARIABLE, dir)
        .stdout(Stdio::null())
        .spawn()
        .expect("started")
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn ended(dir: &Path) -> ExitStatus {
    process(dir).wait().expect("it ends")
}

#[test]
fn nothing_happens_at_points_that_are_not_armed() {
    let dir = tempfile::tempdir().expect("a directory");
    assert!(ended(dir.path()).success());
    assert!(dir.path().join("after-future").exists());
}

#[test]
fn a_process_ends_at_a_point_as_by_kill_9() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("blocking"), "abort").expect("armed");
    assert_eq!(ended(dir.path()).signal(), Some(9));
    assert!(!dir.path().join("after-blocking").exists());
}

#[test]
fn a_process_ends_at_the_pass_that_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("often"), "abort 3").expect("armed");
    assert_eq!(ended(dir.path()).signal(), Some(9));
    assert_eq!(std::fs::read_to_string(dir.path().join("often.log")).expect("passed twice"), "xx");
}

#[test]
fn passes_count_from_when_the_point_was_armed() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("often"), "pause 2").expect("armed");
    let mut child = process(dir.path());
    until("it is there", || dir.path().join("often.reached").exists());
    // It passed once while it was not armed.
    std::fs::write(dir.path().join("later"), "abort 2").expect("armed");
    std::fs::remove_file(dir.path().join("often")).expect("let go");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().expect("it ends")), Some(9));
    assert_eq!(std::fs::read_to_string(dir.path().join("often.log")).expect("passed"), "xx");
}

#[test]
fn a_process_waits_at_a_point_until_a_test_lets_it_go() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    for name in ["blocking", "future"] {
        std::fs::write(at(name), "pause").expect("armed");
    }
    let mut child = process(dir.path());
    until("it is there", || at("blocking.reached").exists());
    assert!(!at("after-blocking").exists());
    std::fs::remove_file(at("blocking")).expect("let go");
    until("the future is there", || at("future.reached").exists());
    assert!(at("after-blocking").exists() && !at("blocking.reached").exists());
    until("other tasks go on", || at("beside-future").exists());
    assert!(!at("after-future").exists());
    std::fs::remove_file(at("future")).expect("let go");
    assert!(child.wait().expect("it ends").success());
    assert!(at("after-future").exists());
}
