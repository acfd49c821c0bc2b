//! The list of attempts: the name, the arguments for `tests/attacker` outside and inside, and the proof of success.

use super::decoys::Decoys;
use crate::support::Processes;
use std::path::{Path, PathBuf};

/// Where an attempt must succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// As root on this machine, against decoys.
    Host,
    /// As root in separate namespaces, where it changes nothing of the machine.
    Apart,
    /// As the server's user.
    Owner,
    /// As an ordinary user of this machine.
    Nobody,
}

#[derive(Debug)]
pub struct Attempt {
    pub name: &'static str,
    pub world: World,
    pub outside: String,
    pub inside: String,
    /// A text in the output of a successful attempt outside.
    pub proof: String,
}

/// The targets of the attempts.
pub struct Targets<'a> {
    pub decoys: &'a Decoys,
    pub data: PathBuf,
    pub url: String,
    /// The home of the attacker's session, and of another one.
    pub own: PathBuf,
    pub victim: PathBuf,
    pub server: u32,
    pub processes: Processes,
    /// Whether the server runs as root.
    pub root: bool,
    pub docker: bool,
    pub group: Vec<PathBuf>,
}

pub fn attempts(targets: &Targets<'_>) -> Vec<Attempt> {
    [secrets(targets), others(targets), processes(targets), network(targets), writing(targets)]
        .into_iter()
        .chain([machine(targets), mounts(), namespaces(), kernel(), takings(targets)])
        .flatten()
        .collect()
}

fn host(name: &'static str, words: String, proof: &str) -> Attempt {
    Attempt { name, world: World::Host, inside: words.clone(), outside: words, proof: proof.to_owned() }
}

/// A call that needs no target.
fn apart(name: &'static str, words: &str) -> Attempt {
    Attempt { world: World::Apart, ..host(name, words.to_owned(), "") }
}

impl Attempt {
    /// The target has another name inside.
    fn inside(self, words: impl Into<String>) -> Attempt {
        Attempt { inside: words.into(), ..self }
    }
}

/// The server's data.
fn secrets(targets: &Targets<'_>) -> Vec<Attempt> {
    let at = |what: &str, path: &str| format!("{what} {}", targets.data.join(path).display());
    let own = |what: &str, path: &str| format!("{what} {}", targets.own.join(path).display());
    vec![
        host("the database", at("read", "ash.db"), "SQLite"),
        host("the database's log", at("read", "ash.db-wal"), ""),
        host("writing the database", at("open-to-write", "ash.db"), "opened"),
        host("the key that seals keys", at("read", "seal.key"), ""),
        host("where the server listens", at("read", "server.json"), "url"),
        host("the data directory", at("list", ""), "live"),
        host("the sessions of all tenants", at("list", "live"), "-"),
        host("the checkpoints", at("list", "repo"), ""),
        host("its own session from outside", own("list", "tree"), "workspace"),
        host("its own journal", own("list", "run"), "journal"),
        host("the note of what to clear away", own("open-to-write", "run/init"), "opened"),
        host("the socket of its shim", own("unix", "run/sock"), "connected"),
        host("the server's memory", format!("read /proc/{}/environ", targets.server), "ASH_API_KEY"),
        host("the server's descriptors", format!("list /proc/{}/fd", targets.server), "1"),
    ]
}

/// Another session.
fn others(targets: &Targets<'_>) -> Vec<Attempt> {
    let at = |what: &str, path: &str| format!("{what} {}", targets.victim.join(path).display());
    let word = &targets.decoys.word;
    vec![
        host("another's workspace", at("read", "tree/workspace/secret"), word),
        host("another's home", at("read", "tree/home/secret"), word),
        host("another's way to a model", at("list", "run/egress"), ""),
        host("writing into another's workspace", at("write", "tree/workspace/planted"), "attacked"),
        host("climbing into another's workspace", at("climb", "tree/workspace/secret"), word),
    ]
}

fn processes(targets: &Targets<'_>) -> Vec<Attempt> {
    let decoy = targets.decoys.process.id();
    let Processes { shim, bwrap, .. } = targets.processes;
    let word = &targets.decoys.word;
    let root_of = |pid: u32| format!("read /proc/{pid}/root{}", targets.decoys.file.display());
    let mut all = vec![
        host("whatever /proc tells of others", format!("hunt {word}"), "found"),
        host("the machine through another's root", root_of(decoy), word).inside(root_of(1)),
        host("another's environment", format!("read /proc/{decoy}/environ"), word)
            .inside("read /proc/1/environ"),
        host("another's memory", format!("open-to-write /proc/{decoy}/mem"), "opened")
            .inside("open-to-write /proc/1/mem"),
        host("the first process's descriptors", format!("list /proc/{decoy}/fd"), "0")
            .inside("list /proc/1/fd"),
        host("a signal to another", format!("signal {decoy}"), "signalled"),
        host("a signal by handle", format!("signal-by-handle {decoy}"), "signalled"),
        host("a signal to the server", format!("signal {}", targets.server), "signalled"),
        host("a signal to its shim", format!("signal {shim}"), "signalled"),
        host("a signal to its walls", format!("signal {bwrap}"), "signalled"),
        host("ending the first process", format!("end {}", targets.decoys.mortal.id()), "ended")
            .inside("end 1"),
        apart("tracing", "trace"),
        apart("reading memory", "read-memory"),
        apart("writing memory", "write-memory"),
        apart("taking a descriptor", "take-descriptor"),
        apart("comparing processes", "compare"),
        host("inherited descriptors", "descriptors".to_owned(), word),
        host("shared memory", format!("shared-memory {}", targets.decoys.key), word),
        host("a message queue", format!("message-queue {}", targets.decoys.queue), "opened"),
        host("files in shared memory", format!("read {}", targets.decoys.shared_memory.display()), word),
    ];
    if targets.root {
        // With its owner's uid a sandbox may open it: `hostile::from_inside_the_stream_of_a_user_is_open_and_harmless`.
        let stream = format!("open-to-write /proc/{}/fd/1", targets.processes.agent);
        all.push(host("the agent's own stream", stream, "opened").inside("open-to-write /proc/2/fd/1"));
    }
    all
}

fn network(targets: &Targets<'_>) -> Vec<Attempt> {
    let decoys = targets.decoys;
    let word = &decoys.word;
    let server = targets.url.trim_start_matches("http://");
    let socket = |path: &str| format!("unix {path}");
    let engine = socket(&decoys.socket.display().to_string());
    let mut all = vec![
        host("the server's port", format!("tcp {server}"), "200"),
        host("a service on loopback", format!("tcp 127.0.0.1:{}", decoys.tcp), word),
        host("a service on the other loopback", format!("tcp [::1]:{}", decoys.tcp6), word),
        host("a service without connections", format!("udp 127.0.0.1:{}", decoys.udp), word),
        // Not tried outside, where a real metadata service could answer.
        host("the metadata of a cloud", format!("tcp 127.0.0.1:{}", decoys.tcp), word)
            .inside("tcp 169.254.169.254:80"),
        host("an address of the Internet", format!("tcp 127.0.0.1:{}", decoys.tcp), word)
            .inside("tcp 192.0.2.1:443"),
        host("a socket of a service", engine.clone(), word),
        host("an abstract socket", format!("abstract {}", decoys.abstract_name), word),
        apart("raw packets", "socket 2 3 1"),
        apart("raw packets of the newer kind", "socket 10 3 58"),
        apart("whole frames", "socket 17 3 0"),
        apart("the machine below", "socket 40 1 0"),
        apart("the kernel's events", "socket 16 3 15"),
        apart("the audit", "socket 16 3 9"),
        apart("routes of the machine", "socket 16 3 0"),
        apart("connections on many ways", "socket 2 1 262"),
        apart("datagrams with half a checksum", "socket 2 2 136"),
        apart("raising an interface", "raise-interface"),
        host("a tunnel", "open-to-write /dev/net/tun".to_owned(), "opened"),
    ];
    for (name, path) in [
        ("Docker's socket", "/var/run/docker.sock"),
        ("containerd's socket", "/run/containerd/containerd.sock"),
        ("podman's socket", "/run/podman/podman.sock"),
        ("the bus of the system", "/run/dbus/system_bus_socket"),
    ] {
        all.push(host(name, engine.clone(), word).inside(socket(path)));
    }
    all
}

fn writing(targets: &Targets<'_>) -> Vec<Attempt> {
    let decoys = targets.decoys;
    let file = decoys.file.display();
    let seen = decoys.dir.join("seen").display().to_string();
    let proof = |name, words: String| host(name, words, "");
    vec![
        proof("writing through a link", format!("symlink {file}")),
        proof("writing through a hard link", format!("hard-link {file}")),
        proof("a hard link to what is only shown", format!("hard-link {seen}/file"))
            .inside("hard-link /etc/passwd"),
        proof("moving a file out", format!("rename {seen}")),
        proof("climbing out", format!("climb {file}")),
        proof("opening again for writing", format!("reopen {file}")).inside("reopen /etc/passwd"),
        // Not by opening it, because a running program cannot be written anyway.
        proof("changing our own program", format!("change-mode {file}")).inside("change-mode /.ash/ash"),
        proof("replacing our own program", format!("replace {seen}/new")).inside("replace /.ash/ash"),
        proof("replacing a name of the system", format!("replace {seen}/new")).inside("replace /etc/passwd"),
        proof("the program of the first process", format!("open-to-write {file}"))
            .inside("open-to-write /proc/1/exe"),
        proof("a file of the system", format!("write {seen}/new")).inside("write /usr/bin/ash-test"),
        proof("a name of the system", format!("write {seen}/new")).inside("write /etc/passwd"),
        proof("the root of everything", format!("write {seen}/new")).inside("write /ash-test"),
        Attempt {
            world: World::Nobody,
            ..host("a setuid program", "run-setuid ./setuid".to_owned(), "euid 0")
        },
        proof("a device that was left there", "device device".to_owned()),
        apart("making a device", "mknod"),
        apart("giving a program capabilities", "give-capability"),
        apart("giving a file away", "give-away"),
        apart("a file that cannot be removed", "immutable"),
        host("a file by its number", format!("by-handle {file}"), &decoys.word).inside("by-handle list"),
        apart("watching the files of all users", "watch-all"),
    ]
}

/// What the kernel reveals of the machine, and its control files.
fn machine(targets: &Targets<'_>) -> Vec<Attempt> {
    let keys = format!("search /proc/keys {}", targets.decoys.word);
    let mut all = vec![
        apart("settings of the kernel", "write /proc/sys/kernel/domainname"),
        apart("settings of the network", "open-to-write /proc/sys/net/ipv4/ip_forward"),
        Attempt { world: World::Owner, ..host("names of its owner's keys", keys, "found") },
        host("the kernel's log in /proc", "device /proc/kmsg".to_owned(), "opened"),
        // Other rules treat this file as the agent's own: only Landlock refuses it.
        host(
            "the process that the kernel kills first",
            "open-to-write /proc/self/oom_score_adj".to_owned(),
            "opened",
        ),
        host("pages of the machine", "device /proc/kpageflags".to_owned(), "opened"),
        host(
            "a setting in /sys",
            "open-to-write /sys/kernel/mm/transparent_hugepage/enabled".to_owned(),
            "opened",
        ),
    ];
    for (name, path) in [
        ("how the kernel was started", "/proc/cmdline"),
        ("how the kernel was built", "/proc/config.gz"),
        ("where the kernel's code is", "/proc/kallsyms"),
    ] {
        // Not every kernel has all of them.
        if Path::new(path).exists() {
            all.push(host(name, format!("peek {path}"), "not empty"));
        }
    }
    if let Some(dir) = targets.group.first() {
        let dir = dir.display();
        all.push(host("its own limits", format!("open-to-write {dir}/cgroup.procs"), "opened"));
        all.push(host("its own control group", format!("list {dir}"), "cgroup.procs"));
    }
    all
}

fn mounts() -> Vec<Attempt> {
    vec![
        apart("mounting", "mount"),
        apart("binding", "bind /"),
        apart("making the root writable", "remount /").inside("remount /usr"),
        apart("uncovering", "unmount mnt").inside("unmount /tmp"),
        apart("another root", "pivot-root"),
        apart("a root of its own", "chroot"),
        apart("the newer mount", "new-mount"),
        apart("picking a mount", "pick-mount"),
        apart("cloning mounts", "clone-mount"),
        apart("cloning mounts, newer", "clone-mount-newer"),
        apart("moving a mount", "move-mount"),
        apart("changing a mount", "change-mount"),
    ]
}

fn namespaces() -> Vec<Attempt> {
    vec![
        apart("a user namespace", "unshare 268435456"),
        apart("a mount namespace", "unshare 131072"),
        apart("a network of its own", "unshare 1073741824"),
        apart("a time of its own", "unshare 128"),
        apart("a process in a user namespace", "clone"),
        apart("the newer clone", "clone3"),
        apart("entering a namespace", "enter-namespace"),
        apart("becoming root", "root"),
        apart("joining groups", "groups"),
        apart("another host name", "host-name"),
        apart("another domain name", "domain-name"),
    ]
}

fn kernel() -> Vec<Attempt> {
    let mut all = vec![
        apart("calls that no filter sees", "io-uring"),
        apart("programs in the kernel", "bpf"),
        apart("performance counters", "perf"),
        apart("stopping the kernel in a copy", "userfaultfd"),
        apart("memory that is hidden from its owner", "secret-memory"),
        apart("where memory lies", "place-memory"),
        apart("moving memory", "move-memory"),
        apart("a key", "add-key"),
        apart("a keyring", "keyring"),
        apart("asking for a key", "request-key"),
        apart("the kernel's log", "kernel-log"),
        apart("weaker protections", "personality"),
        apart("typing into a terminal", "type-into-terminal"),
        apart("loading a module", "module"),
        apart("loading a module's file", "module-file"),
        apart("removing a module", "remove-module"),
        apart("another kernel", "kexec"),
        apart("another kernel's file", "kexec-file"),
        apart("a restart of the machine", "reboot"),
        apart("more swap", "swap-on"),
        apart("less swap", "swap-off"),
        apart("accounting", "accounting"),
        apart("quotas", "quota"),
        apart("quotas, newer", "quota-newer"),
        apart("the clock", "clock"),
        apart("the time of day", "time-of-day"),
        apart("a higher priority", "priority"),
        apart("real time", "real-time"),
    ];
    if cfg!(target_arch = "x86_64") {
        all.extend([
            apart("hardware ports", "ports"),
            apart("segments", "segments"),
            apart("calls by other numbers", "other-numbers"),
        ]);
    }
    all
}

/// Attempts to exceed the share of resources, except for disk space and files.
fn takings(targets: &Targets<'_>) -> Vec<Attempt> {
    let mut all = vec![
        host("a fork bomb", "fork 600".to_owned(), "600 processes"),
        host("open files without end", "open-files 9000".to_owned(), "9000 files"),
    ];
    // Memory limits use control groups, which need root or an engine that runs as root.
    if targets.root || targets.docker {
        all.push(host("memory without end", "memory 300".to_owned(), "300 MiB"));
    }
    all
}
