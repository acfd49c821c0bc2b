//! What is different with containers: images, users with access to an engine's socket, and what an engine keeps.

use std::{fs, path::Path};

use ash_model::{Image, Incarnation};
use ash_sandbox::{DockerBackend, JournalPayload, ProcessExit, ShimLimits, reap};
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Live, Rig, ask, command, engine, eventually, script};

fn rig() -> Rig {
    Rig::docker(ShimLimits::default(), "data", "ash-test")
}

fn name(rig: &Rig) -> String {
    format!("ash-{}", rig.spec.incarnation)
}

fn is_there(rig: &Rig) -> bool {
    ask("GET", &format!("/containers/{}/json", name(rig)), "").0 == 200
}

fn kill_shim(rig: &Rig) {
    kill_process(Pid::from_raw(rig.shim_pid()).expect("a number"), Signal::KILL).expect("killed");
}

async fn again(rig: &mut Rig) -> Live {
    reap(&rig.spec.run_dir).expect("reaped");
    rig.spec.incarnation = Incarnation::fresh();
    rig.launch().await
}

#[tokio::test]
async fn as_root_a_container_has_only_the_rights_that_it_needs() {
    let rig = rig();
    let mut live = rig.launch().await;
    let text = "grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; \
                tail -n +3 /proc/net/dev | cut -d: -f1; cat /proc/1/comm; mount | grep -c ' / .*\\bro\\b'";
    let (lines, _) = live.run(text).await;
    let words: Vec<String> =
        lines.iter().flat_map(|line| line.split_whitespace().map(str::to_owned)).collect();
    let none = "0000000000000000";
    let expected =
        ["CapPrm:", none, "CapEff:", none, "CapBnd:", none, "NoNewPrivs:", "1", "Seccomp:", "2", "lo"];
    assert_eq!(words[..expected.len()], expected);
    assert_eq!(words.last().map(String::as_str), Some("1"), "the root is read-only: {words:?}");
}

#[tokio::test]
async fn as_root_a_removed_container_is_a_death_and_the_next_one_has_all_files() {
    let mut rig = rig();
    let mut live = rig.launch().await;
    live.start(script(1, "echo kept > /workspace/w; echo kept > ~/h; echo up; sleep 1000")).await;
    assert_eq!(live.line().await, "up");
    assert_eq!(ask("DELETE", &format!("/containers/{}?force=1", name(&rig)), "").0, 204);
    let gone = live.next().await;
    assert!(matches!(&gone.payload, JournalPayload::SandboxGone { oom: false, .. }), "{gone:?}");
    live.remote.ack(gone.offset).await.expect("sent");
    live.closed().await;
    let mut live = again(&mut rig).await;
    assert_eq!(live.run("cat /workspace/w ~/h").await.0, ["kept", "kept"]);
}

#[tokio::test]
async fn as_root_a_container_killed_for_want_of_memory_says_so_and_the_next_one_has_all_files() {
    let mut rig = rig();
    rig.spec.limits.memory_bytes = Some(48 << 20);
    let mut live = rig.launch().await;
    live.run("echo kept > /workspace/w").await;
    // Files on /tmp use memory that no killed process frees, and the largest process is the init.
    live.start(script(1, "exec head -c 200M /dev/zero > /tmp/big")).await;
    let gone = loop {
        let record = live.next().await;
        if !matches!(record.payload, JournalPayload::Exit(_) | JournalPayload::StderrLine(_)) {
            break record;
        }
    };
    assert!(matches!(&gone.payload, JournalPayload::SandboxGone { oom: true, .. }), "{gone:?}");
    let mut live = again(&mut rig).await;
    assert_eq!(live.run("cat /workspace/w; ls /tmp").await.0, ["kept"]);
}

#[tokio::test]
async fn as_root_an_image_needs_nothing_of_ours() {
    let rig = Rig::docker(ShimLimits::default(), "data", "ash-test-busybox");
    let mut live = rig.launch().await;
    live.start(command(1, &["sh", "-c", "ls /; id -un; echo $HOME; touch /workspace/f /tmp/t && echo made"]))
        .await;
    let (lines, exit) = live.finish().await;
    assert_eq!(exit, ProcessExit { code: Some(0), signal: None, oom: false }, "{lines:?}");
    assert!(!lines.contains(&"usr".to_owned()) && !lines.contains(&"lib".to_owned()), "{lines:?}");
    assert_eq!(lines[lines.len() - 3..], ["agent", "/home/agent", "made"]);
    // Our own program runs in that image too.
    live.start(command(2, &["/.ash/ash", "nothing"])).await;
    assert_eq!(live.finish().await.1.code, Some(64));
}

#[tokio::test]
async fn as_root_an_image_that_is_not_here_is_named_and_nothing_is_left() {
    let mut rig = rig();
    rig.spec.image = Some(Image::parse("no-such/image:1").expect("a name"));
    let error = rig.backend.launch(&rig.spec).await.expect_err("impossible").to_string();
    assert!(error.contains("image no-such/image:1 is not on this machine"), "{error}");
    assert!(!is_there(&rig));
}

#[tokio::test]
async fn as_root_only_orphans_of_our_servers_are_cleared_away() {
    let (dead, living, lost) = (rig(), rig(), rig());
    let (dead_live, _living, lost_live) = (dead.launch().await, living.launch().await, lost.launch().await);
    let stranger = format!("stranger-{}", Incarnation::fresh());
    let body = r#"{ "Image": "ash-test", "Cmd": ["true"], "Labels": { "ash.other": "x" } }"#;
    assert_eq!(ask("POST", &format!("/containers/create?name={stranger}"), body).0, 201);
    for (rig, mut live) in [(&dead, dead_live), (&lost, lost_live)] {
        kill_shim(rig);
        live.closed().await;
    }
    // One container still has its run directory; of the other only the container is left.
    fs::remove_dir_all(&lost.spec.run_dir).expect("removed");
    let docker = docker();
    eventually("both are removed", || {
        docker.clear_orphans().expect("cleared");
        !is_there(&lost) && !is_there(&dead)
    })
    .await;
    assert!(is_there(&living));
    assert_eq!(
        ask("DELETE", &format!("/containers/{stranger}"), "").0,
        204,
        "the other server's container is there"
    );
    reap(&dead.spec.run_dir).expect("reaped");
}

#[tokio::test]
async fn as_root_servers_that_clear_away_at_the_same_time_do_not_fail() {
    let rigs: Vec<_> = (0..3).map(|_| rig()).collect();
    for rig in &rigs {
        let mut live = rig.launch().await;
        kill_shim(rig);
        live.closed().await;
    }
    let docker = docker();
    let clear = || {
        while rigs.iter().any(is_there) {
            docker.clear_orphans().expect("cleared");
        }
    };
    std::thread::scope(|servers| (0..6).for_each(|_| drop(servers.spawn(clear))));
    rigs.iter().for_each(|rig| reap(&rig.spec.run_dir).expect("reaped"));
}

fn docker() -> DockerBackend {
    let socket = format!("unix://{}", engine());
    DockerBackend::new("/ash".into(), Some(&socket), Image::parse("ash-test").expect("a name"))
        .expect("a socket")
}

/// An image like the test image, with one more line in its Dockerfile; removed when dropped.
struct Built(String);

impl Built {
    fn with(line: &str) -> Built {
        let name = format!("ash-test-{}", Incarnation::fresh());
        assert_eq!(
            ask(
                "POST",
                &format!("/containers/create?name={name}"),
                r#"{ "Image": "ash-test-busybox", "Cmd": ["true"] }"#
            )
            .0,
            201
        );
        let change = line.replace(' ', "%20").replace(':', "%3A").replace('=', "%3D");
        let made =
            ask("POST", &format!("/commit?container={name}&repo={name}&tag=latest&changes={change}"), "{}");
        assert_eq!(made.0, 201, "{made:?}");
        assert_eq!(ask("DELETE", &format!("/containers/{name}"), "").0, 204);
        Built(name)
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        ask("DELETE", &format!("/images/{}?force=1", self.0), "");
    }
}

#[tokio::test]
async fn as_root_an_image_with_a_volume_where_checkpoints_look_is_refused() {
    for at in ["/workspace/data", "/home/agent/.cache"] {
        let image = Built::with(&format!("VOLUME {at}"));
        let rig = Rig::docker(ShimLimits::default(), "data", &image.0);
        let error = rig.backend.launch(&rig.spec).await.expect_err("refused").to_string();
        assert!(error.contains(&format!("VOLUME at {at}")) && error.contains("without it"), "{error}");
        assert!(!is_there(&rig));
    }
    // Our own mount covers this volume, so the image is allowed.
    let image = Built::with("VOLUME /workspace");
    let rig = Rig::docker(ShimLimits::default(), "data", &image.0);
    let mut live = rig.launch().await;
    live.start(command(1, &["sh", "-c", "echo kept > /workspace/f"])).await;
    assert_eq!(live.finish().await.1.code, Some(0));
    assert_eq!(fs::read_to_string(rig.spec.workspace.join("f")).expect("on the host"), "kept\n");
}

#[tokio::test]
async fn as_root_an_images_own_path_comes_first_and_agents_run_after_the_server() {
    let image = Built::with("ENV PATH=/opt/own:/bin");
    let rig = Rig::docker(ShimLimits::default(), "data", &image.0);
    let mut live = rig.launch().await;
    let mut start = command(1, &["sh", "-c", "echo $PATH; cat /proc/self/stat"]);
    start.env.insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
    live.start(start).await;
    let (lines, exit) = live.finish().await;
    assert_eq!(exit.code, Some(0), "{lines:?}");
    assert_eq!(lines[0], "/opt/own:/bin:/usr/bin");
    // The program's name may contain any character. After it, the 17th word is the nice value.
    let nice = lines[1].rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(16));
    assert_eq!(nice, Some("5"), "{lines:?}");
}

#[tokio::test]
async fn as_root_an_engine_that_cannot_be_asked_is_a_sentence_with_a_remedy() {
    let image = Image::parse("ash-test").expect("a name");
    let docker = |host: &str| DockerBackend::new("/ash".into(), Some(host), image.clone());
    let missing =
        docker("unix:///nowhere/docker.sock").expect("a path").check().await.expect_err("no engine there");
    assert!(
        missing.to_string().starts_with("there is no Docker engine at /nowhere/docker.sock. Install"),
        "{missing}"
    );
    let far = docker("tcp://10.0.0.1:2375").expect_err("elsewhere").to_string();
    assert!(far.contains("unix:///PATH"), "{far}");
    assert!(Path::new(&engine()).exists());
    let here = docker(&format!("unix://{}", engine())).expect("a path");
    assert!(here.check().await.expect("an engine").starts_with(|first: char| first.is_ascii_digit()));
}
