//! Real walls, real processes. Every test runs as root, through the last ones also as an ordinary user, and in
//! containers as both.

mod carry;
mod death;
mod docker;
mod egress;
mod hold;
mod rig;
mod walls;

use std::{fs, os::unix::fs::chown, os::unix::process::CommandExt, process::Command};

/// Who runs the promises once more, and behind which walls.
fn again(modules: &[&str], configure: impl FnOnce(&mut Command)) {
    let mut command = Command::new(std::env::current_exe().expect("we run"));
    command.args([
        "--test-threads",
        "2",
        "--skip",
        "as_root_all_of_this",
        "--skip",
        "in_docker_",
        "--skip",
        "without_walls_",
    ]);
    command.args(modules);
    configure(&mut command);
    let output = command.env("ASH_TEST_WALLS", "docker").output().expect("ran");
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn as_root_in_docker_lines_are_carried_too() {
    again(&["carry::", "hold::"], |_| {});
}

#[test]
fn as_root_in_docker_the_walls_hold_too() {
    again(&["walls::", "death::"], |_| {});
}

#[test]
fn as_root_in_docker_the_way_out_is_the_same() {
    again(&["egress::"], |_| {});
}

#[test]
fn as_root_all_of_this_holds_for_an_ordinary_user_too() {
    assert!(rig::is_root(), "only root can become another user");
    let base = tempfile::tempdir().expect("a directory");
    chown(base.path(), Some(rig::USER), Some(rig::USER)).expect("chown");
    let copy = |from: &std::path::Path, name: &str| {
        let to = base.path().join(name);
        fs::copy(from, &to).expect("copied");
        // Its own, so that the tests can link it: a fresh copy is busy while another thread forks.
        chown(&to, Some(rig::USER), Some(rig::USER)).expect("chown");
        to
    };
    let test = copy(&std::env::current_exe().expect("we run"), "test");
    let host = copy(&rig::host_program(), "host");
    let output = Command::new(test)
        .args(["--skip", "as_root_", "--test-threads", "4"])
        .env_clear()
        .env("ASH_TEST_HOST", host)
        .env("TMPDIR", base.path())
        .current_dir("/")
        .uid(rig::USER)
        .gid(rig::USER)
        .output()
        .expect("ran");
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
