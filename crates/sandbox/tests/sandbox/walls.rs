//! What processes in the sandbox can do, and what they cannot.

use std::{fs, net::TcpListener};

use ash_sandbox::{
    BubblewrapBackend, JournalPayload, ProcessExit, RequiredWalls, SandboxLimits, UserNamespacePolicy,
};

use crate::rig::{DEADLINE, Rig, command, in_docker, script};

const OK: ProcessExit = ProcessExit { code: Some(0), signal: None, oom: false };

#[tokio::test]
async fn an_echo_agent_answers() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.start(command(1, &["cat"])).await;
    live.remote.input(1, 1, b"hello\nworld\n".to_vec()).await.expect("sent");
    assert_eq!((live.line().await, live.line().await), ("hello".to_owned(), "world".to_owned()));
    live.remote.close_input(1).await.expect("sent");
    assert_eq!(live.finish().await, (vec![], OK));
}

#[tokio::test]
async fn the_tools_agents_use_work_inside() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    let (lines, exit) = live
        .run(
            "set -e; whoami; pwd; echo $HOME; id -u; \
             export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; \
             git init -q . && echo x > f && git add f && git commit -qm first && git log --format=%s; \
             ssh-keygen -q -t ed25519 -N '' -f ~/key && ls ~/key.pub; \
             /usr/bin/python3 -c 'import multiprocessing as m, getpass; m.Lock(); print(getpass.getuser())'; \
             echo t > /tmp/t && cat /tmp/t; stat -c %a /tmp /dev/shm; mv f g; ln g h; ln -s h i; cat i",
        )
        .await;
    let uid = rig.uid_inside();
    let expected =
        format!("agent /workspace /home/agent {uid} first /home/agent/key.pub agent t 1777 1777 x");
    assert_eq!((lines.join(" "), exit), (expected, OK));
    let (lines, exit) = live
        .run("command -v node >/dev/null || { echo agent; exit; }; node -p 'require(\"os\").userInfo().username'")
        .await;
    assert_eq!((lines, exit), (vec!["agent".to_owned()], OK));
}

#[tokio::test]
async fn files_inside_are_the_workspace_outside() {
    use std::os::unix::fs::MetadataExt;
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.run("echo here > /workspace/w; echo there > ~/h").await;
    let file = rig.spec.workspace.join("w");
    assert_eq!(fs::read_to_string(&file).expect("readable"), "here\n");
    assert_eq!(fs::read_to_string(rig.spec.home.join("h")).expect("readable"), "there\n");
    assert_eq!(fs::metadata(file).expect("there").uid(), rig.owner());
}

#[tokio::test]
async fn nothing_outside_can_be_read_written_or_reached() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    let port = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = port.local_addr().expect("an address").port();
    let base = rig.base.path().display();
    let (lines, _) = live
        .run(&format!(
            "try() {{ \"$@\" >/dev/null 2>&1 && echo \"could: $*\"; }}; \
             try cat /etc/shadow; try ls {base}; try ls /root; try ls /mnt/workspace; try ls /work; \
             for d in / /etc /usr /run /dev /.ash /proc /var /home /mnt; do try touch $d/ash-test; done; \
             try bash -c 'exec 3<>/dev/tcp/127.0.0.1/{address}'; \
             try bash -c 'echo x > /.ash/ash'; try bash -c 'echo x > /etc/passwd'; echo done"
        ))
        .await;
    assert_eq!(lines, ["done"]);
}

/// Each attempt prints its error number; 1 is EPERM, 13 EACCES, 38 ENOSYS.
const ATTEMPTS: &str = r#"
import ctypes, os, socket
c = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    ctypes.set_errno(0)
    got = c.syscall(*args)
    print(name, ctypes.get_errno() if got < 0 else "allowed")
call("unshare", 272, 0x10000000)
call("unshare-time", 272, 0x80)
call("clone", 56, 0x10000000 | 17, 0, 0, 0, 0)
call("clone3", 435, 0, 0)
call("mount", 165, b"none", b"/tmp", b"tmpfs", 0, 0)
call("setns", 308, 0, 0)
call("ptrace", 101, 16, 1, 0, 0)
call("io_uring", 425, 8, 0)
call("bpf", 321, 0, 0, 0)
call("keyctl", 250, 0, -3, 0)
call("x32", 0x40000000 + 165, b"none", b"/tmp", b"tmpfs", 0, 0)
pidfd = c.syscall(434, 1, 0)
call("pidfd_getfd", 438, pidfd, 3, 0)
for name in ("mem", "environ", "fd", "maps"):
    try:
        os.listdir("/proc/1/fd") if name == "fd" else open("/proc/1/" + name, "rb").read(1)
        print(name, "allowed")
    except OSError as e: print(name, e.errno)
for name, family, proto in (("vsock", 40, 0), ("packet", 17, 0), ("netlink-audit", 16, 9)):
    try:
        socket.socket(family, socket.SOCK_RAW if family != 40 else socket.SOCK_STREAM, proto)
        print(name, "allowed")
    except OSError as e: print(name, e.errno)
import fcntl, pty
m, s = pty.openpty()
try:
    fcntl.ioctl(s, 0x5412, b"x")
    print("tiocsti allowed")
except OSError as e: print("tiocsti", e.errno)
"#;

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn the_calls_that_open_walls_are_refused() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.start(command(1, &["/usr/bin/python3", "-c", ATTEMPTS])).await;
    let (lines, exit) = live.finish().await;
    let expected = "unshare 1, unshare-time 1, clone 1, clone3 38, mount 1, setns 1, ptrace 1, io_uring 1, bpf 1, \
                    keyctl 1, x32 38, pidfd_getfd 1, mem 13, environ 13, fd 13, maps 13, vsock 1, packet 1, \
                    netlink-audit 1, tiocsti 1";
    assert_eq!((lines.join(", ").as_str(), exit), (expected, OK));
}

/// 1 is EPERM, 93 EPROTONOSUPPORT, 97 EAFNOSUPPORT. Masked files are refused or empty, depending on the backend.
const SURFACE: &str = r#"
import ctypes, socket
c = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    ctypes.set_errno(0)
    got = c.syscall(*args)
    print(name, ctypes.get_errno() if got < 0 else "allowed")
call("memfd_secret", 447, 0)
call("set_mempolicy", 238, 0, 0, 0)
call("move_pages", 279, 0, 0, 0, 0, 0, 0)
call("mbind", 237, 0, 0, 0, 0, 0, 0)
call("home_node", 450, 0, 0, 0, 0)
call("migrate_pages", 256, 0, 0, 0, 0)
stream, datagram, raw = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW
for name, family, kind, proto in (
    ("mptcp", 2, stream, 262), ("mptcp6", 10, stream, 262), ("udp-lite", 2, datagram, 136),
    ("udp-lite6", 10, datagram, 136), ("rtnetlink", 16, raw, 0), ("rtnetlink", 16, datagram, 0),
    ("tcp", 2, stream, 6), ("tcp6", 10, stream, 0), ("udp", 2, datagram, 17),
):
    try:
        socket.socket(family, kind, proto)
        print(name, "allowed")
    except OSError as e: print(name, e.errno)
for path in ("/proc/config.gz", "/proc/cmdline", "/proc/kallsyms"):
    try: print(path, "readable" if open(path, "rb").read(1) else "closed")
    except OSError as e: print(path, "closed")
"#;

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn kernel_surface_without_a_use_is_closed_and_names_still_resolve() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.start(command(1, &["/usr/bin/python3", "-c", SURFACE])).await;
    let (lines, exit) = live.finish().await;
    let expected = "memfd_secret 1, set_mempolicy 1, move_pages 1, mbind 1, home_node 1, migrate_pages 1, \
                    mptcp 93, mptcp6 93, udp-lite 93, udp-lite6 93, rtnetlink 97, rtnetlink 97, \
                    tcp allowed, tcp6 allowed, udp allowed, /proc/config.gz closed, /proc/cmdline closed, \
                    /proc/kallsyms closed";
    assert_eq!((lines.join(", ").as_str(), exit), (expected, OK));
    if in_docker() {
        // The image has neither the names nor node.
        return;
    }
    let (lines, exit) = live
        .run(
            "getent hosts localhost >/dev/null && echo resolved; command -v node >/dev/null || { echo served; exit; }; \
             node -e 's=http.createServer((_,a)=>a.end(\"served\")).listen(0,\"localhost\",async()=>{ \
             console.log(await(await fetch(\"http://localhost:\"+s.address().port)).text());process.exit()})'",
        )
        .await;
    assert_eq!(
        (lines, exit),
        (vec!["resolved".to_owned(), "served".to_owned()], OK),
        "a server on loopback works without netlink"
    );
}

/// Tries system calls in a new user namespace: those that nested sandboxes need, and then others.
const NESTED: &str = r#"
import ctypes, os, socket
c = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    ctypes.set_errno(0)
    got = c.syscall(*args)
    print(name, ctypes.get_errno() if got < 0 else "allowed", flush=True)
uid, gid = os.getuid(), os.getgid()
call("user", 272, 0x10000000)
for file, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    with open("/proc/self/" + file, "w") as f: f.write(text)
print("uid", os.getuid(), flush=True)
call("pid", 272, 0x20000000)
call("net", 272, 0x40000000)
call("chroot", 161, b"/")
call("mounts", 272, 0x00020000)
call("ipc", 272, 0x08000000)
call("names", 272, 0x04000000)
call("cgroup", 272, 0x02000000)
call("time", 272, 0x80)
call("mount", 165, b"none", b"/tmp", b"tmpfs", 0, 0)
call("bind", 165, b"/usr", b"/tmp", 0, 4096, 0)
call("umount", 166, b"/tmp", 2)
call("pivot", 155, b"/", b"/")
call("fsopen", 430, b"tmpfs", 0)
call("open_tree", 428, -100, b"/", 1)
call("move_mount", 429, -100, b"/", -100, b"/tmp", 0)
call("mount_setattr", 442, -100, b"/usr", 0, 0, 0)
call("setns", 308, 0, 0)
call("ptrace", 101, 16, 1, 0, 0)
call("bpf", 321, 0, 0, 0)
call("io_uring", 425, 8, 0)
call("keyctl", 250, 0, -3, 0)
call("perf", 298, 0, 0, -1, -1, 0)
call("handle", 304, -100, 0, 0)
call("module", 175, 0, 0, 0)
call("clone3", 435, 0, 0)
for name, family, proto in (("packet", 17, 0), ("netfilter", 16, 12)):
    try:
        socket.socket(family, socket.SOCK_RAW, proto)
        print(name, "allowed")
    except OSError as e: print(name, e.errno)
for path in ("/proc/sys/kernel/domainname", "/proc/sysrq-trigger", "/proc/1/oom_score_adj", "/usr/x", "/etc/passwd"):
    try:
        open(path, "w")
        print(path, "allowed")
    except OSError as e: print(path, "no")
"#;

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn where_user_namespaces_are_allowed_nothing_else_is() {
    let mut rig = Rig::new().await;
    rig.spec.user_namespaces = UserNamespacePolicy::Allowed;
    if in_docker() {
        let error = rig.backend.launch(&rig.spec).await.expect_err("refused").to_string();
        assert!(error.contains("a Docker engine's own filter refuses"), "{error}");
        return;
    }
    let mut live = rig.launch().await;
    live.start(command(1, &["/usr/bin/python3", "-c", NESTED])).await;
    let (lines, exit) = live.finish().await;
    let expected = "user allowed, uid 0, pid allowed, net allowed, chroot allowed, mounts 1, ipc 1, names 1, cgroup 1, \
                    time 1, mount 1, bind 1, umount 1, pivot 1, fsopen 1, open_tree 1, move_mount 1, mount_setattr 1, \
                    setns 1, ptrace 1, bpf 1, io_uring 1, keyctl 1, perf 1, handle 1, module 1, clone3 38, packet 1, \
                    netfilter 1, /proc/sys/kernel/domainname no, /proc/sysrq-trigger no, /proc/1/oom_score_adj no, \
                    /usr/x no, /etc/passwd no";
    assert_eq!((lines.join(", ").as_str(), exit), (expected, OK));
    assert_eq!(live.run("unshare -Ur id -u").await, (vec!["0".to_owned()], OK));
}

#[tokio::test]
async fn a_missing_required_wall_keeps_a_sandbox_from_being_built() {
    let mut rig = Rig::new().await;
    let required = RequiredWalls::parse("no-userns").expect("a wall");
    rig.backend = Box::new(BubblewrapBackend::probe_with(rig.exe.clone(), required).await.expect("walls"));
    rig.spec.user_namespaces = UserNamespacePolicy::Allowed;
    let error = rig.backend.launch(&rig.spec).await.expect_err("refused").to_string();
    assert!(error.contains("ASH_WALLS_REQUIRED=no-userns"), "{error}");
}

#[tokio::test]
async fn a_process_gets_the_environment_and_descriptors_it_was_given_and_no_more() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    let mut start = command(1, &["env"]);
    start.env.insert("SECRET".to_owned(), "a=b\nc".to_owned());
    start.env.remove("HOME");
    live.start(start).await;
    let (mut lines, _) = live.finish().await;
    lines.sort();
    let path = lines.remove(0);
    match std::env::var_os("ASH_TEST_WALLS").is_some_and(|walls| walls == "docker") {
        // The image's own directories come first.
        true => {
            let dirs: Vec<&str> = path.trim_start_matches("PATH=").split(':').collect();
            assert!(["/usr/local/bin", "/usr/bin", "/bin"].iter().all(|dir| dirs.contains(dir)), "{path}");
        }
        false => assert_eq!(path, "PATH=/usr/local/bin:/usr/bin:/bin"),
    }
    assert_eq!(lines, ["SECRET=a=b", "c"]);
    live.start(command(2, &["ls", "/proc/self/fd"])).await;
    // 3 is the descriptor of the listed directory itself.
    assert_eq!(live.finish().await.0, ["0", "1", "2", "3"]);
    let (lines, _) =
        live.run("grep -E '^(NoNewPrivs|Seccomp|CapBnd|CapEff|SigBlk):' /proc/self/status").await;
    let zero = "0000000000000000";
    let mut expected = vec![format!("SigBlk:\t{zero}")];
    expected.extend([format!("CapEff:\t{zero}"), format!("CapBnd:\t{zero}")]);
    expected.extend(["NoNewPrivs:\t1".to_owned(), "Seccomp:\t2".to_owned()]);
    assert_eq!(lines, expected);
    // The shim ignores both signals; a program that inherits that never notices a closed pipe.
    assert_eq!(live.run("kill -PIPE $$").await.1.signal, Some(13));
    assert_eq!(live.run("kill -HUP $$").await.1.signal, Some(1));
}

#[tokio::test]
async fn a_directory_given_read_only_is_there_and_read_only() {
    let mut rig = Rig::new().await;
    let tools = rig.base.path().join("tools");
    fs::create_dir(&tools).expect("created");
    fs::write(tools.join("t"), "tool\n").expect("written");
    rig.spec.readonly.push(tools.clone());
    let mut live = rig.launch().await;
    let (lines, _) =
        live.run(&format!("cd {}; cat t; touch u 2>/dev/null || echo no", tools.display())).await;
    assert_eq!(lines, ["tool", "no"]);
}

const FORKS: &str = r#"
import os, time
children = 0
try:
    while children < 100:
        if os.fork() == 0:
            time.sleep(1000)
        children += 1
except BlockingIOError:
    print("no more" if children < 30 else children)
"#;

#[tokio::test]
async fn limits_hold() {
    let mut rig = Rig::new().await;
    rig.spec.limits = SandboxLimits {
        processes: Some(30),
        open_files: 100,
        tmp_bytes: 1 << 20,
        ..SandboxLimits::default()
    };
    let mut live = rig.launch().await;
    let text = "ulimit -n; ulimit -c; head -c 3000000 /dev/zero > /tmp/big 2>/dev/null || echo full";
    assert_eq!(live.run(text).await.0, ["100", "0", "full"]);
    live.start(command(1, &["/usr/bin/python3", "-c", FORKS])).await;
    assert_eq!(live.line().await, "no more");
}

#[tokio::test]
async fn a_program_that_is_not_there_fails_to_start_and_nothing_else() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    live.remote.start(command(1, &["no-such-program"])).await.expect("sent");
    let JournalPayload::StartFailed { why } = live.next().await.payload else { panic!("it started") };
    assert!(why.contains("no-such-program") && why.contains("No such file"), "{why}");
    let mut start = command(1, &["true"]);
    start.cwd = "/workspace/nowhere".into();
    live.remote.start(start).await.expect("sent");
    let JournalPayload::StartFailed { why } = live.next().await.payload else { panic!("it started") };
    assert!(why.contains("/workspace/nowhere"), "{why}");
    assert_eq!(live.run("echo fine").await, (vec!["fine".to_owned()], OK));
}

#[tokio::test]
async fn walls_that_cannot_be_built_say_why() {
    let mut rig = Rig::new().await;
    rig.spec.readonly.push("/nowhere/at/all".into());
    let error = rig.backend.launch(&rig.spec).await.expect_err("impossible").to_string();
    assert!(error.contains("/nowhere/at/all") || error.contains("readonly.0"), "{error}");
    assert!(rig.cgroup_dirs().iter().all(|dir| !dir.exists()) && rig.has_no_container());
}

#[tokio::test]
async fn arguments_larger_than_a_datagram_arrive() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    let mut start = script(1, "echo ${#A} ${#B} ${#C} ${#D}");
    for name in ["A", "B", "C", "D"] {
        start.env.insert(name.to_owned(), "x".repeat(120_000));
    }
    live.start(start).await;
    assert_eq!(live.line().await, "120000 120000 120000 120000");
}

#[tokio::test]
async fn without_walls_agents_run_where_the_files_are() {
    let rig = Rig::bare();
    let mut live = rig.launch().await;
    let inside = rig.backend.layout(&rig.spec);
    assert_eq!((&inside.workspace, &inside.exe), (&rig.spec.workspace, &rig.exe));
    let mut start = script(1, "pwd; echo x > f; sleep 0.01 & wait; cat");
    start.cwd = inside.workspace;
    live.start(start).await;
    assert_eq!(live.line().await, rig.spec.workspace.to_str().expect("text"));
    live.remote.input(1, 1, b"y\n".to_vec()).await.expect("sent");
    assert_eq!(live.line().await, "y");
    live.remote.end().await.expect("sent");
    tokio::time::timeout(DEADLINE, live.closed()).await.expect("ended");
}
