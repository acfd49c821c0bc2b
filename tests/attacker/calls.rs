//! System calls that could open the sandbox, called directly.

use crate::{Attempt, Tried, answer, c, files::made_dir, word};
use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd,
};

/// `quotactl_fd` and `open_tree_attr`: the same on every machine, and not known to every libc.
const QUOTACTL_FD: i64 = 443;
const OPEN_TREE_ATTR: i64 = 467;
const CLONE_TREE: u32 = 1;
const NOWHERE: &str = "/nowhere/at/all";

pub(crate) const ATTEMPTS: &[(&str, Attempt)] = &[
    ("mount", |_| {
        let (at, kind) = (made_dir("mnt"), c("tmpfs"));
        call(libc::SYS_mount, [p(&kind), p(&at), p(&kind), 0, 0])
    }),
    ("bind", |args| {
        let (from, at) = (c(word(args, 0)), made_dir("bound"));
        call(libc::SYS_mount, [p(&from), p(&at), 0, libc::MS_BIND as i64, 0])
    }),
    ("remount", |args| {
        let (at, flags) = (c(word(args, 0)), libc::MS_REMOUNT | libc::MS_BIND);
        call(libc::SYS_mount, [0, p(&at), 0, flags as i64, 0])
    }),
    ("unmount", |args| {
        let at = c(word(args, 0));
        call(libc::SYS_umount2, [p(&at), libc::MNT_DETACH as i64, 0, 0, 0])
    }),
    ("pivot-root", |_| {
        // The preparation may fail; only the result of the last call counts.
        let (at, kind) = (made_dir("pivot"), c("tmpfs"));
        let _ = call(libc::SYS_unshare, [libc::CLONE_NEWNS as i64, 0, 0, 0, 0]);
        let _ = call(libc::SYS_mount, [p(&kind), p(&at), p(&kind), 0, 0]);
        let old = made_dir("pivot/old");
        call(libc::SYS_pivot_root, [p(&at), p(&old), 0, 0, 0])
    }),
    ("chroot", |_| call(libc::SYS_chroot, [p(&c(".")), 0, 0, 0, 0])),
    ("new-mount", |_| call(libc::SYS_fsopen, [p(&c("tmpfs")), 0, 0, 0, 0])),
    ("pick-mount", |_| call(libc::SYS_fspick, [libc::AT_FDCWD as i64, p(&c("/")), 0, 0, 0])),
    ("clone-mount", |_| {
        call(libc::SYS_open_tree, [libc::AT_FDCWD as i64, p(&c("/")), CLONE_TREE as i64, 0, 0])
    }),
    ("clone-mount-newer", |_| {
        call(OPEN_TREE_ATTR, [libc::AT_FDCWD as i64, p(&c("/")), CLONE_TREE as i64, 0, 0])
    }),
    ("move-mount", |_| {
        let (root, empty, at) = (c("/"), c(""), made_dir("moved"));
        // SAFETY: see `call`.
        let tree = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, p(&root), CLONE_TREE) };
        call(libc::SYS_move_mount, [tree, p(&empty), libc::AT_FDCWD as i64, p(&at), 4])
    }),
    ("change-mount", |_| {
        let nothing = [0_u64; 4];
        let at = c("/");
        call(libc::SYS_mount_setattr, [libc::AT_FDCWD as i64, p(&at), 0, nothing.as_ptr() as i64, 32])
    }),
    ("enter-namespace", |_| {
        let own = File::open("/proc/self/ns/uts")?;
        call(libc::SYS_setns, [own.as_raw_fd().into(), 0, 0, 0, 0])
    }),
    ("unshare", |args| {
        let flags: i64 = word(args, 0).parse().map_err(io::Error::other)?;
        call(libc::SYS_unshare, [flags, 0, 0, 0, 0])
    }),
    ("clone", |_| {
        let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
        as_child(call(libc::SYS_clone, [flags.into(), 0, 0, 0, 0]))
    }),
    ("clone3", |_| {
        let args: [u64; 8] = [libc::CLONE_NEWUSER as u64, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0];
        as_child(call(libc::SYS_clone3, [args.as_ptr() as i64, 64, 0, 0, 0]))
    }),
    ("io-uring", |_| {
        let parameters = [0_u64; 15];
        call(libc::SYS_io_uring_setup, [8, parameters.as_ptr() as i64, 0, 0, 0])
    }),
    ("bpf", |_| {
        let mut array = [0_u32; 18];
        array[..4].copy_from_slice(&[2, 4, 4, 1]);
        call(libc::SYS_bpf, [0, array.as_ptr() as i64, 72, 0, 0])
    }),
    ("perf", |_| {
        let mut clock = [0_u32; 16];
        clock[..2].copy_from_slice(&[1, 64]);
        call(libc::SYS_perf_event_open, [clock.as_ptr() as i64, 0, -1, -1, 0])
    }),
    ("userfaultfd", |_| call(libc::SYS_userfaultfd, [libc::O_CLOEXEC.into(), 0, 0, 0, 0])),
    ("secret-memory", |_| call(libc::SYS_memfd_secret, [0, 0, 0, 0, 0])),
    ("place-memory", |_| call(libc::SYS_set_mempolicy, [0, 0, 0, 0, 0])),
    // Its sixth argument is undefined, so a permitted call fails with another error than EPERM.
    ("move-memory", |_| through(call(libc::SYS_move_pages, [0, 0, 0, 0, 0]))),
    ("add-key", |_| {
        // -2 is the keyring of this process, which disappears with it.
        let (kind, name) = (c("user"), c("ash-test"));
        call(libc::SYS_add_key, [p(&kind), p(&name), p(&name), 8, -2])
    }),
    ("keyring", |_| call(libc::SYS_keyctl, [0, -3, 0, 0, 0])),
    ("request-key", |_| {
        let (kind, name) = (c("user"), c("ash-test-that-nobody-has"));
        through(call(libc::SYS_request_key, [p(&kind), p(&name), 0, 0, 0]))
    }),
    ("kernel-log", |_| call(libc::SYS_syslog, [10, 0, 0, 0, 0])),
    ("host-name", |_| {
        let name = c("attacked");
        call(libc::SYS_sethostname, [p(&name), 8, 0, 0, 0])
    }),
    ("domain-name", |_| {
        let name = c("attacked");
        call(libc::SYS_setdomainname, [p(&name), 8, 0, 0, 0])
    }),
    ("root", |_| call(libc::SYS_setresuid, [0, 0, 0, 0, 0])),
    ("groups", |_| {
        let groups = [0_u32];
        call(libc::SYS_setgroups, [1, groups.as_ptr() as i64, 0, 0, 0])
    }),
    ("priority", |_| call(libc::SYS_setpriority, [0, 0, -20, 0, 0])),
    ("real-time", |_| {
        let one = [1_u32];
        call(libc::SYS_sched_setscheduler, [0, 1, one.as_ptr() as i64, 0, 0])
    }),
    ("personality", |_| call(libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0])),
    ("type-into-terminal", |_| type_into_terminal()),
    ("module", |_| through(call(libc::SYS_init_module, [0, 0, 0, 0, 0]))),
    ("module-file", |_| through(call(libc::SYS_finit_module, [-1, 0, 0, 0, 0]))),
    ("remove-module", |_| through(call(libc::SYS_delete_module, [p(&c("ash_test_has_none")), 0, 0, 0, 0]))),
    ("kexec", |_| through(call(libc::SYS_kexec_load, [0, 0, 0, -1, 0]))),
    ("kexec-file", |_| through(call(libc::SYS_kexec_file_load, [-1, -1, 0, 0, -1]))),
    // Without the two magic numbers the call has no effect.
    ("reboot", |_| through(call(libc::SYS_reboot, [0, 0, 0, 0, 0]))),
    ("swap-on", |_| through(call(libc::SYS_swapon, [p(&c(NOWHERE)), 0, 0, 0, 0]))),
    ("swap-off", |_| through(call(libc::SYS_swapoff, [p(&c(NOWHERE)), 0, 0, 0, 0]))),
    ("accounting", |_| through(call(libc::SYS_acct, [p(&c(NOWHERE)), 0, 0, 0, 0]))),
    ("quota", |_| through(call(libc::SYS_quotactl, [0x8000_0700, p(&c(NOWHERE)), 0, 0, 0]))),
    ("quota-newer", |_| through(call(QUOTACTL_FD, [-1, 0x8000_0700, 0, 0, 0]))),
    // With an invalid pointer to the time.
    ("clock", |_| through(call(libc::SYS_clock_settime, [0, 1, 0, 0, 0]))),
    ("time-of-day", |_| through(call(libc::SYS_settimeofday, [1, 0, 0, 0, 0]))),
    #[cfg(target_arch = "x86_64")]
    ("ports", |_| through(call(libc::SYS_ioperm, [0x80, 1, 1, 0, 0]))),
    #[cfg(target_arch = "x86_64")]
    ("segments", |_| {
        let mut table = [0_u64; 2];
        call(libc::SYS_modify_ldt, [0, table.as_mut_ptr() as i64, 16, 0, 0])
    }),
    #[cfg(target_arch = "x86_64")]
    ("other-numbers", |_| other_numbers()),
];

fn p(text: &std::ffi::CStr) -> i64 {
    text.as_ptr() as i64
}

/// Callers keep the values behind pointer arguments alive until this returns.
fn call(number: i64, args: [i64; 5]) -> Tried {
    // SAFETY: callers keep the pointers valid, as documented; the effect of the calls is what this program tests.
    answer(unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4]) })
        .map(|got| format!("allowed {got}"))
}

/// The result of a harmful call, which is made with invalid arguments. A permitted caller gets an error about the
/// arguments; any other caller gets EPERM or EACCES.
fn through(tried: Tried) -> Tried {
    match tried {
        Err(e) if !matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
            Ok(format!("through: {e}"))
        }
        other => other,
    }
}

/// If the call created a child process, the child ends at once.
fn as_child(tried: Tried) -> Tried {
    if tried.as_deref().is_ok_and(|got| got == "allowed 0") {
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    tried
}

fn type_into_terminal() -> Tried {
    let both = File::options().read(true).write(true).open("/dev/ptmx")?;
    let mut number = 0;
    // SAFETY: reads and writes numbers.
    unsafe {
        answer(libc::ioctl(both.as_raw_fd(), libc::TIOCSPTLCK, &0_i32).into())?;
        answer(libc::ioctl(both.as_raw_fd(), libc::TIOCGPTN, &mut number).into())?;
    }
    let name = format!("/dev/pts/{number}");
    let terminal = File::options().read(true).write(true).open(&name).or_else(|_| fs::File::open(&name))?;
    // SAFETY: reads one byte.
    answer(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSTI, &b'x') }.into())?;
    Ok("typed".to_owned())
}

/// 32-bit programs use other numbers for calls, which the filter's lists do not contain: this calls `getpid` by its.
#[cfg(target_arch = "x86_64")]
fn other_numbers() -> Tried {
    let mut got: i64 = 20;
    // SAFETY: asks for a number and touches no memory.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") got, out("r8") _, out("r9") _, out("r10") _, out("r11") _)
    };
    if got == i64::from(std::process::id()) {
        Ok("answered".to_owned())
    } else {
        Err(io::Error::other(format!("{got}")))
    }
}
