//! Builds the bubblewrap command line that decides what a sandbox sees. Pure: a policy in, arguments out, so a change
//! of the restrictions shows as a change of one snapshot.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use crate::egress;

pub(crate) const WORKSPACE: &str = "/workspace";
pub(crate) const HOME: &str = "/home/agent";
pub(crate) const EXE: &str = "/.ash/ash";
/// Shared memory is for semaphores and small buffers. Files belong on /tmp, which has its own limit.
pub(crate) const SHM_BYTES: u64 = 256 << 20;

/// Files of /proc that reveal facts about the machine: the names of the user's keys, how the kernel was built and
/// started, and where its code is. A kernel may lack some of them.
pub(crate) const MASKED: [&str; 9] = [
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/proc/timer_stats",
];

/// A directory at the root of the host, as it appears in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostRootEntry {
    Link { at: PathBuf, to: PathBuf },
    Dir(PathBuf),
}

/// A source on the host, or on the private stage, and where it appears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BindMount {
    pub(crate) from: PathBuf,
    pub(crate) at: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BubblewrapPolicy {
    pub(crate) roots: Vec<HostRootEntry>,
    /// Parts of the host's /etc that hold no names and no secrets.
    pub(crate) host_etc: Vec<PathBuf>,
    /// Files of /proc that reveal facts about the machine and about other users.
    pub(crate) masked: Vec<PathBuf>,
    /// The /etc that the server writes, with mount points for `host_etc`.
    pub(crate) etc: PathBuf,
    pub(crate) workspace: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) exe: PathBuf,
    /// Holds the socket that is the only connection out of the sandbox.
    pub(crate) egress: PathBuf,
    pub(crate) readonly: Vec<BindMount>,
    pub(crate) tmp_bytes: u64,
    pub(crate) status_fd: i32,
    /// The argument of `ash confine`: a [`crate::init_protocol::ConfineConfig`] as JSON.
    pub(crate) orders: String,
}

struct BubblewrapArgs(Vec<OsString>);

impl BubblewrapArgs {
    fn words<const N: usize>(&mut self, words: [&str; N]) {
        self.0.extend(words.map(OsString::from));
    }

    fn bind(&mut self, option: &str, from: &Path, at: &Path) {
        self.0.extend([option.into(), from.into(), at.into()]);
    }

    fn tmpfs(&mut self, bytes: u64, at: &str) {
        // Without --size a tmpfs may use half of the machine's memory.
        self.words(["--perms", "1777", "--size", &bytes.to_string(), "--tmpfs", at]);
    }
}

/// The arguments after `bwrap`.
pub(crate) fn argv(policy: &BubblewrapPolicy) -> Vec<OsString> {
    let mut line = BubblewrapArgs(Vec::new());
    namespaces(&mut line, policy.status_fd);
    system(&mut line, policy);
    scratch(&mut line, policy.tmp_bytes);
    line.bind("--bind", &policy.workspace, WORKSPACE.as_ref());
    line.bind("--bind", &policy.home, HOME.as_ref());
    line.bind("--ro-bind", &policy.exe, EXE.as_ref());
    line.bind("--ro-bind", &policy.egress, egress::INSIDE.as_ref());
    for bind in &policy.readonly {
        line.bind("--ro-bind", &bind.from, &bind.at);
    }
    // Last: the root is a writable tmpfs until every mount point exists.
    line.words(["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE, "--", EXE, "confine"]);
    line.0.push(policy.orders.clone().into());
    line.0
}

fn namespaces(line: &mut BubblewrapArgs, status_fd: i32) {
    line.words(["--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1"]);
    // Started as root, bubblewrap would leave capabilities inside, and with them the agent could undo a read-only bind.
    line.words(["--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "ash", "--clearenv"]);
    line.words(["--json-status-fd", &status_fd.to_string()]);
}

fn system(line: &mut BubblewrapArgs, policy: &BubblewrapPolicy) {
    for root in &policy.roots {
        match root {
            HostRootEntry::Link { at, to } => line.bind("--symlink", to, at),
            HostRootEntry::Dir(dir) => line.bind("--ro-bind", dir, dir),
        }
    }
    line.bind("--ro-bind", &policy.etc, "/etc".as_ref());
    for path in &policy.host_etc {
        line.bind("--ro-bind", path, path);
    }
    line.words(["--proc", "/proc", "--dev", "/dev"]);
    for path in &policy.masked {
        // bubblewrap mounts every bind with nodev, so the masked file cannot be opened at all, not even as an empty
        // file.
        line.bind("--ro-bind", "/dev/null".as_ref(), path);
    }
}

fn scratch(line: &mut BubblewrapArgs, tmp_bytes: u64) {
    line.tmpfs(tmp_bytes, "/tmp");
    line.tmpfs(SHM_BYTES, "/dev/shm");
    line.words(["--perms", "0755", "--dir", "/run", "--perms", "0755", "--dir", "/var"]);
    line.words(["--symlink", "/tmp", "/var/tmp", "--symlink", "/run", "/var/run"]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walls_are_exactly_these() {
        let policy = BubblewrapPolicy {
            roots: vec![
                HostRootEntry::Dir("/usr".into()),
                HostRootEntry::Link { at: "/bin".into(), to: "usr/bin".into() },
                HostRootEntry::Dir("/lib64".into()),
            ],
            host_etc: vec!["/etc/alternatives".into(), "/etc/ssl".into()],
            masked: vec!["/proc/keys".into()],
            etc: "/mnt/etc".into(),
            workspace: "/mnt/workspace".into(),
            home: "/mnt/home".into(),
            exe: "/mnt/ash".into(),
            egress: "/mnt/egress".into(),
            readonly: vec![BindMount { from: "/mnt/readonly.0".into(), at: "/opt/tools".into() }],
            tmp_bytes: 1 << 30,
            status_fd: 8,
            orders: "{}".into(),
        };
        let words: Vec<_> = argv(&policy).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        insta::assert_snapshot!(words.join(" ").replace(" --", "\n--"));
    }
}
