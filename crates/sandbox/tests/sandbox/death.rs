//! When a process of the sandbox dies, the right processes and files disappear with it, and the right ones remain.

use std::{fs, time::Duration};

use ash_model::Epoch;
use ash_sandbox::{JournalPayload, ProcessExit, drain, knock, reap};
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Rig, command, eventually, in_docker, is_root, marker, running, script};

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).expect("a number"), Signal::KILL).expect("killed");
}

#[tokio::test]
async fn a_killed_shim_takes_everything_with_it_and_leaves_its_journal() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    let seconds = marker();
    live.start(script(1, &format!("(setsid sleep {seconds} &); sleep {seconds} & echo one; echo two; wait")))
        .await;
    let first = live.next().await;
    assert_eq!(live.line().await, "two");
    eventually("both run", || running(&seconds) >= 3).await;
    kill(rig.shim_pid());
    live.closed().await;
    eventually("all are dead", || running(&seconds) == 0).await;
    assert!(knock(&rig.spec.run_dir, Epoch(9)).await.expect("asked").is_none());
    let left = drain(&rig.spec.run_dir, rig.spec.incarnation, first.offset).expect("drained");
    assert_eq!(
        left.iter().map(|r| &r.payload).collect::<Vec<_>>(),
        [&JournalPayload::StdoutLine(b"two".to_vec())]
    );
    let groups = rig.cgroup_dirs();
    if !in_docker() {
        // An engine removes its own control groups at once.
        assert_eq!(is_root(), groups.iter().any(|dir| dir.exists()));
    }
    reap(&rig.spec.run_dir).expect("reaped");
    assert!(groups.iter().all(|dir| !dir.exists()) && rig.has_no_container());
    assert_eq!(fs::read_dir(&rig.spec.run_dir).expect("there").count(), 0);
}

#[tokio::test]
async fn a_shim_killed_while_frozen_leaves_nothing_running_after_the_reaping() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    let seconds = marker();
    live.start(command(1, &["sleep", &seconds])).await;
    live.remote.freeze().await.expect("frozen");
    kill(rig.shim_pid());
    live.closed().await;
    reap(&rig.spec.run_dir).expect("reaped");
    eventually("it is dead", || running(&seconds) == 0).await;
    assert!(rig.has_no_container());
}

#[tokio::test]
async fn a_killed_agent_is_an_exit_and_the_sandbox_stays() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.start(script(1, "echo before; kill -9 $$")).await;
    let (lines, exit) = live.finish().await;
    assert_eq!((lines, exit.to_string()), (vec!["before".to_owned()], "signal 9".to_owned()));
    // No process inside can kill the init: it ignores signals from its own namespace.
    assert_eq!(live.run("kill -9 1; kill -9 -1 2>/dev/null; echo done").await.0, ["done"]);
    assert_eq!(live.run("echo here").await.0, ["here"]);
}

#[tokio::test]
async fn a_killed_init_is_gone_and_its_journal_is_served_until_it_is_acknowledged() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.start(script(1, "echo last words; sleep 1000")).await;
    assert_eq!(live.line().await, "last words");
    let shim = rig.shim_pid();
    kill(live.hello.init.expect("it runs").pid as i32);
    let gone = live.next().await;
    assert!(matches!(&gone.payload, JournalPayload::SandboxGone { oom: false, .. }), "{gone:?}");
    drop(live);
    let mut live = rig.reattach(1, 0).await;
    assert_eq!((live.hello.init, live.hello.running.len()), (None, 0));
    assert!(matches!(live.next().await.payload, JournalPayload::Started { .. }));
    assert_eq!(live.line().await, "last words");
    assert_eq!(live.next().await, gone);
    live.remote.ack(gone.offset).await.expect("sent");
    live.closed().await;
    eventually("the shim ends", || !alive(shim)).await;
    assert!(rig.cgroup_dirs().iter().all(|dir| !dir.exists()));
}

fn alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn as_root_a_process_killed_for_want_of_memory_says_so() {
    assert!(is_root(), "memory is limited by cgroups, which are root's");
    let mut rig = Rig::new().await;
    rig.spec.limits.memory_bytes = Some(64 << 20);
    let mut live = rig.launch().await;
    live.start(command(1, &["/usr/bin/python3", "-c", "x = bytearray(200 << 20); print(len(x))"])).await;
    let (_, exit) = live.finish().await;
    assert_eq!(exit, ProcessExit { code: None, signal: Some(9), oom: true });
    assert_eq!(exit.to_string(), "signal 9 (out of memory)");
    assert_eq!(live.run("kill -9 $$").await.1, ProcessExit { code: None, signal: Some(9), oom: false });
}

#[tokio::test]
async fn as_root_a_sandbox_gets_no_more_of_the_processors_than_its_share() {
    assert!(is_root(), "processors are shared out by cgroups, which are root's");
    let mut rig = Rig::new().await;
    rig.spec.limits.cpu_millis = Some(50);
    let mut live = rig.launch().await;
    live.start(script(1, "echo up; while :; do :; done")).await;
    assert_eq!(live.line().await, "up");
    let held_up = |dir: &std::path::PathBuf| {
        let stat = fs::read_to_string(dir.join("cpu.stat")).unwrap_or_default();
        stat.lines().any(|line| line.strip_prefix("nr_throttled ").is_some_and(|times| times != "0"))
    };
    eventually("it has to wait", || rig.cgroup_dirs().iter().any(held_up)).await;
}

#[tokio::test]
async fn an_ended_sandbox_leaves_no_process_group_or_mount() {
    let rig = Rig::new().await;
    let mounts = || fs::read_to_string("/proc/self/mounts").expect("readable");
    let before = mounts().lines().count();
    let mut live = rig.launch().await;
    let seconds = marker();
    live.start(script(1, &format!("setsid sleep {seconds} & echo up; wait"))).await;
    assert_eq!(live.line().await, "up");
    assert_eq!(mounts().lines().filter(|line| line.contains("/mnt/workspace")).count(), 0);
    let (shim, groups) = (rig.shim_pid(), rig.cgroup_dirs());
    assert_eq!(is_root() || in_docker(), !groups.is_empty());
    live.remote.end().await.expect("sent");
    live.closed().await;
    eventually("the shim ends", || !alive(shim)).await;
    assert_eq!((running(&seconds), running(rig.base.path().to_str().expect("text"))), (0, 0));
    assert!(groups.iter().all(|dir| !dir.exists()) && rig.has_no_container());
    assert!(mounts().lines().count() <= before);
    assert!(knock(&rig.spec.run_dir, Epoch(1)).await.expect("asked").is_none());
}

#[tokio::test]
async fn an_orphan_ends_after_its_time() {
    let mut rig = Rig::new().await;
    rig.spec.orphan_ttl = Duration::from_millis(100);
    let live = rig.launch().await;
    let shim = rig.shim_pid();
    drop(live);
    eventually("the shim ends", || !alive(shim)).await;
    assert!(rig.cgroup_dirs().iter().all(|dir| !dir.exists()) && rig.has_no_container());
}

#[tokio::test]
async fn a_shim_whose_directory_is_gone_ends() {
    let rig = Rig::new().await;
    let live = rig.launch().await;
    let (shim, groups) = (rig.shim_pid(), rig.cgroup_dirs());
    drop(live);
    fs::remove_dir_all(&rig.spec.run_dir).expect("removed");
    eventually("the shim ends", || !alive(shim)).await;
    assert!(groups.iter().all(|dir| !dir.exists()) && rig.has_no_container());
}

#[tokio::test]
async fn without_walls_a_killed_shim_still_takes_everything_with_it() {
    let rig = Rig::bare();
    let mut live = rig.launch().await;
    let seconds = marker();
    let mut start = script(1, &format!("(setsid sleep {seconds} &); sleep {seconds} & echo up; wait"));
    start.cwd = rig.spec.workspace.clone();
    live.start(start).await;
    assert_eq!(live.line().await, "up");
    eventually("both run", || running(&seconds) >= 3).await;
    kill(rig.shim_pid());
    live.closed().await;
    eventually("all are dead", || running(&seconds) == 0).await;
    reap(&rig.spec.run_dir).expect("reaped");
}

#[tokio::test]
async fn without_walls_a_killed_init_is_gone_with_everything() {
    let rig = Rig::bare();
    let mut live = rig.launch().await;
    let seconds = marker();
    let mut start = script(1, &format!("(setsid sleep {seconds} &); echo up; sleep {seconds}"));
    start.cwd = rig.spec.workspace.clone();
    live.start(start).await;
    assert_eq!(live.line().await, "up");
    kill(live.hello.init.expect("it runs").pid as i32);
    assert!(matches!(live.next().await.payload, JournalPayload::SandboxGone { .. }));
    eventually("all are dead", || running(&seconds) == 0).await;
}
