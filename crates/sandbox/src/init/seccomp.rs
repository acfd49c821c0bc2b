//! System calls that no agent needs and that sandbox escapes use. A list of denials, each with its reason, because a
//! list of permissions breaks with every new libc, and the sandbox does not depend on this filter alone.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op,
    SeccompCondition as If, SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

use crate::UserNamespacePolicy;

type SyscallRules = BTreeMap<i64, Vec<SeccompRule>>;

#[derive(Debug, thiserror::Error)]
pub(super) enum SeccompError {
    #[error("system call filter: {0}")]
    Build(#[from] BackendError),
    #[error("system call filter: {0}")]
    Load(#[from] seccompiler::Error),
}

/// Newer than our libc; the same number on every architecture.
const OPEN_TREE_ATTR: i64 = 467;

/// Refused with any arguments.
const NEVER: &[(i64, &str)] = &[
    (libc::SYS_mount, "changes what is visible"),
    (libc::SYS_umount2, "uncovers what a mount hides"),
    (libc::SYS_pivot_root, "changes what is visible"),
    (libc::SYS_chroot, "changes what is visible"),
    (libc::SYS_fsopen, "the newer mount"),
    (libc::SYS_fsconfig, "the newer mount"),
    (libc::SYS_fsmount, "the newer mount"),
    (libc::SYS_fspick, "the newer mount"),
    (libc::SYS_open_tree, "the newer mount"),
    (libc::SYS_move_mount, "the newer mount"),
    (OPEN_TREE_ATTR, "the newer mount, which also turns a read-only bind writable"),
    (libc::SYS_mount_setattr, "turns a read-only bind writable"),
    (libc::SYS_setns, "enters other namespaces"),
    (libc::SYS_ptrace, "reads and steers other processes; hangs the init it attaches to"),
    (libc::SYS_process_vm_readv, "reads other processes' memory"),
    (libc::SYS_process_vm_writev, "writes other processes' memory"),
    (libc::SYS_pidfd_getfd, "takes other processes' descriptors"),
    (libc::SYS_kcmp, "compares kernel pointers of processes"),
    (libc::SYS_keyctl, "the keyring is not namespaced"),
    (libc::SYS_add_key, "the keyring is not namespaced"),
    (libc::SYS_request_key, "the keyring is not namespaced"),
    (libc::SYS_bpf, "programs in the kernel"),
    (libc::SYS_perf_event_open, "a large surface with a long history"),
    (libc::SYS_io_uring_setup, "does system calls that no filter sees"),
    (libc::SYS_io_uring_enter, "does system calls that no filter sees"),
    (libc::SYS_io_uring_register, "does system calls that no filter sees"),
    (libc::SYS_userfaultfd, "stops the kernel in the middle of a copy"),
    (libc::SYS_memfd_secret, "memory that not even the machine's owner can look into or move"),
    (libc::SYS_set_mempolicy, "where memory lies is the machine's business"),
    (libc::SYS_set_mempolicy_home_node, "where memory lies is the machine's business"),
    (libc::SYS_mbind, "where memory lies is the machine's business"),
    (libc::SYS_migrate_pages, "moves other processes' memory"),
    (libc::SYS_move_pages, "moves other processes' memory, and tells where pages lie"),
    (libc::SYS_kexec_load, "replaces the kernel"),
    (libc::SYS_kexec_file_load, "replaces the kernel"),
    (libc::SYS_init_module, "loads code into the kernel"),
    (libc::SYS_finit_module, "loads code into the kernel"),
    (libc::SYS_delete_module, "unloads code from the kernel"),
    (libc::SYS_reboot, "the machine is not the agent's"),
    (libc::SYS_swapon, "the machine is not the agent's"),
    (libc::SYS_swapoff, "the machine is not the agent's"),
    (libc::SYS_acct, "the machine is not the agent's"),
    (libc::SYS_quotactl, "the machine is not the agent's"),
    (libc::SYS_quotactl_fd, "the machine is not the agent's"),
    (libc::SYS_syslog, "the kernel's log has addresses and other sandboxes' names"),
    (libc::SYS_settimeofday, "the clock is shared"),
    (libc::SYS_clock_settime, "the clock is shared"),
    (libc::SYS_open_by_handle_at, "opens files by number, past every directory's permission"),
];

#[cfg(target_arch = "x86_64")]
const NEVER_HERE: &[(i64, &str)] = &[
    (libc::SYS_iopl, "hardware ports"),
    (libc::SYS_ioperm, "hardware ports"),
    (libc::SYS_uselib, "obsolete, and a way around exec checks"),
    (libc::SYS_modify_ldt, "segments of 16-bit programs, with a long history of holes"),
];
#[cfg(not(target_arch = "x86_64"))]
const NEVER_HERE: &[(i64, &str)] = &[];

/// Shares its bit with the exit signal of clone, so only unshare can request it. Missing in libc.
const NEW_TIME: i32 = 0x80;
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// What a program such as a browser needs to sandbox its own children: namespaces for users, processes and network, and
/// an empty root. It needs no mounts, and Landlock would refuse them anyway.
const NESTING: [i32; 3] = [libc::CLONE_NEWUSER, libc::CLONE_NEWPID, libc::CLONE_NEWNET];

pub(super) fn apply(user_namespaces: UserNamespacePolicy) -> Result<(), SeccompError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let answers = [
        (forbidden(user_namespaces)?, libc::EPERM),
        (missing(), libc::ENOSYS),
        (routing()?, libc::EAFNOSUPPORT),
        (protocols()?, libc::EPROTONOSUPPORT),
    ];
    for (rules, errno) in answers {
        let answer = SeccompAction::Errno(errno as u32);
        let program: BpfProgram =
            SeccompFilter::new(rules, SeccompAction::Allow, answer, arch)?.try_into()?;
        seccompiler::apply_filter(&program)?;
    }
    seccompiler::apply_filter(&native_numbers_only())?;
    Ok(())
}

/// clone3 passes its flags in memory, where a filter cannot read them. With ENOSYS, libc uses clone instead.
fn missing() -> SyscallRules {
    SyscallRules::from([(libc::SYS_clone3, Vec::new())])
}

/// Routing netlink is a large attack surface with a long history. The errno is that of a kernel without it: names still
/// resolve, and node's list of interfaces fails with a clear message.
fn routing() -> Result<SyscallRules, BackendError> {
    let netlink = If::new(0, Len::Dword, Op::Eq, libc::AF_NETLINK as u64)?;
    let route = If::new(2, Len::Dword, Op::Eq, libc::NETLINK_ROUTE as u64)?;
    Ok(SyscallRules::from([(libc::SYS_socket, vec![rule([netlink, route])?])]))
}

/// Of internet sockets only TCP, UDP, ping and raw: MPTCP, UDP-Lite, SCTP and others are kernel surface that no agent
/// needs. The errno is that of a kernel without them, after which programs fall back to TCP.
fn protocols() -> Result<SyscallRules, BackendError> {
    let usual = [
        0,
        libc::IPPROTO_ICMP,
        libc::IPPROTO_TCP,
        libc::IPPROTO_UDP,
        libc::IPPROTO_ICMPV6,
        libc::IPPROTO_RAW,
    ];
    let odd = |family: i32| {
        let mut conditions = vec![If::new(0, Len::Dword, Op::Eq, family as u64)?];
        for protocol in usual {
            conditions.push(If::new(2, Len::Dword, Op::Ne, protocol as u64)?);
        }
        SeccompRule::new(conditions)
    };
    Ok(SyscallRules::from([(libc::SYS_socket, vec![odd(libc::AF_INET)?, odd(libc::AF_INET6)?])]))
}

fn forbidden(user_namespaces: UserNamespacePolicy) -> Result<SyscallRules, BackendError> {
    let mut rules: SyscallRules =
        NEVER.iter().chain(NEVER_HERE).map(|(call, _why)| (*call, Vec::new())).collect();
    let mut namespaces = NAMESPACES.to_vec();
    if user_namespaces == UserNamespacePolicy::Allowed {
        namespaces.retain(|flag| !NESTING.contains(flag));
        rules.remove(&libc::SYS_chroot);
    }
    rules.insert(libc::SYS_clone, with_any_of(&namespaces)?);
    namespaces.push(NEW_TIME);
    rules.insert(libc::SYS_unshare, with_any_of(&namespaces)?);
    rules.insert(libc::SYS_ioctl, terminal_injection()?);
    rules.insert(libc::SYS_socket, odd_sockets()?);
    rules.insert(libc::SYS_personality, vec![odd_personality()?]);
    Ok(rules)
}

/// A new user namespace would bring back every capability that was dropped.
fn with_any_of(flags: &[i32]) -> Result<Vec<SeccompRule>, BackendError> {
    flags
        .iter()
        .map(|flag| rule([If::new(0, Len::Dword, Op::MaskedEq(*flag as u64), *flag as u64)?]))
        .collect()
}

/// TIOCSTI types into the terminal of its user; TIOCLINUX pastes there.
fn terminal_injection() -> Result<Vec<SeccompRule>, BackendError> {
    [libc::TIOCSTI, libc::TIOCLINUX]
        .into_iter()
        .map(|request| rule([If::new(1, Len::Dword, Op::Eq, request)?]))
        .collect()
}

/// Unix, internet and netlink sockets; every other family is kernel surface that no agent needs. [`routing`] refuses
/// the routing kind of netlink.
fn odd_sockets() -> Result<Vec<SeccompRule>, BackendError> {
    let not = |family: i32| If::new(0, Len::Dword, Op::Ne, family as u64);
    let usual = [not(libc::AF_UNIX)?, not(libc::AF_INET)?, not(libc::AF_INET6)?, not(libc::AF_NETLINK)?];
    let netlink = If::new(0, Len::Dword, Op::Eq, libc::AF_NETLINK as u64)?;
    let not_route = If::new(2, Len::Dword, Op::Ne, libc::NETLINK_ROUTE as u64)?;
    Ok(vec![rule(usual)?, rule([netlink, not_route])?])
}

/// Allowed: queries, plain Linux, and the fixed addresses that debuggers use. The other values weaken protections.
fn odd_personality() -> Result<SeccompRule, BackendError> {
    let not = |value: u64| If::new(0, Len::Dword, Op::Ne, value);
    rule([not(0)?, not(0xffff_ffff)?, not(libc::ADDR_NO_RANDOMIZE as u64)?])
}

fn rule<const N: usize>(conditions: [If; N]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.to_vec())
}

/// The x32 numbers of x86-64 are the same calls under other numbers, which the lists above do not match.
fn native_numbers_only() -> BpfProgram {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        step(LOAD, 0, 0, 0),
        step(AT_LEAST, 0, 1, 0x4000_0000),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of conditions by which each call is refused; 0: with any arguments.
    fn refused(user_namespaces: UserNamespacePolicy) -> BTreeMap<i64, usize> {
        let rules = forbidden(user_namespaces).expect("valid rules");
        rules.into_iter().map(|(call, rules)| (call, rules.len())).collect()
    }

    #[test]
    fn user_namespaces_take_a_few_refusals_away_and_no_other() {
        let (mut usual, nesting) =
            (refused(UserNamespacePolicy::Refused), refused(UserNamespacePolicy::Allowed));
        assert_eq!(usual.remove(&libc::SYS_chroot), Some(0));
        for call in [libc::SYS_clone, libc::SYS_unshare] {
            *usual.get_mut(&call).expect("refused") -= NESTING.len();
        }
        assert_eq!(nesting, usual);
    }

    #[test]
    fn the_filter_compiles_for_this_machine() {
        let arch = TargetArch::try_from(std::env::consts::ARCH).expect("a known machine");
        let filter = SeccompFilter::new(
            forbidden(UserNamespacePolicy::Refused).expect("valid rules"),
            SeccompAction::Allow,
            SeccompAction::Errno(1),
            arch,
        );
        let program: BpfProgram = filter.expect("valid filter").try_into().expect("compiles");
        assert!(program.len() < 4096);
    }
}
