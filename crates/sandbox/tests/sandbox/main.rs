//! The tests of real sandboxes with real processes. Every test runs as root. The last tests run the others again, as an
//! ordinary user and in containers as both.

mod budget;
mod death;
mod delivery;
mod docker;
mod egress;
mod hold;
mod rig;
mod upstream;
mod walls;

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::Command,
};

/// Runs tests again, with the user and the backend that `command` sets.
fn again(mut command: Command, modules: &[&str]) {
    let skipped = ["as_root_all_of_this", "as_root_in_docker", "without_walls_"];
    command
        .args(["--test-threads", "4"])
        .args(skipped.iter().flat_map(|name| ["--skip", name]))
        .args(modules);
    let output = command.output().expect("ran");
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn in_docker() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("we run"));
    command.env("ASH_TEST_WALLS", "docker");
    command
}

#[test]
fn as_root_in_docker_lines_are_carried_too() {
    again(in_docker(), &["delivery::", "hold::"]);
}

#[test]
fn as_root_in_docker_the_walls_hold_too() {
    again(in_docker(), &["walls::", "death::"]);
}

#[test]
fn as_root_in_docker_the_way_out_is_the_same() {
    again(in_docker(), &["egress::"]);
}

/// The test program as a user who is not root, with copies of the programs that this user owns.
fn as_ordinary_user(base: &Path) -> Command {
    assert!(rig::is_root(), "only root can become another user");
    chown(base, Some(rig::USER), Some(rig::USER)).expect("chown");
    let copy = |from: &Path, name: &str| {
        let to = base.join(name);
        fs::copy(from, &to).expect("copied");
        // The user must own the copies, so that tests can link them: a fresh copy is busy while another thread forks.
        chown(&to, Some(rig::USER), Some(rig::USER)).expect("chown");
        to
    };
    let host = copy(&rig::host_program(), "host");
    let mut command = Command::new(copy(&std::env::current_exe().expect("we run"), "test"));
    command.env_clear().env("ASH_TEST_HOST", host).env("TMPDIR", base).current_dir("/");
    command.args(["--skip", "as_root_"]).uid(rig::USER).gid(rig::USER);
    command
}

#[test]
fn as_root_all_of_this_holds_for_an_ordinary_user_too() {
    let base = tempfile::tempdir().expect("a directory");
    again(as_ordinary_user(base.path()), &[]);
}

#[test]
fn as_root_in_docker_much_of_this_holds_for_an_ordinary_user_too() {
    let base = tempfile::tempdir().expect("a directory");
    let mut command = as_ordinary_user(base.path());
    // Members of the socket's group may use it.
    let group = fs::metadata(rig::engine()).expect("an engine").gid();
    command.gid(group).env("ASH_TEST_WALLS", "docker").env("ASH_TEST_DOCKER", rig::engine());
    again(command, &["walls::", "death::", "hold::"]);
}
