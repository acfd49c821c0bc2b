//! Checks the kernel, its limits and its clock.

use super::DoctorCheck;
use ash_sandbox::CgroupSupport;
use ash_server::ServerConfig;
use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

pub(super) fn kernel() -> DoctorCheck {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    judge_kernel(release.trim())
}

fn judge_kernel(release: &str) -> DoctorCheck {
    let found = format!("Linux {release}");
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (parts.next(), parts.next()) else {
        return DoctorCheck::warning("kernel", "its version cannot be read", "5.14 or newer is needed");
    };
    let newer = "update to Linux 5.14 or newer";
    match (major, minor) {
        (..5, _) | (5, ..11) => {
            DoctorCheck::problem("kernel", format!("{found}: too old, sandboxes cannot start"), newer)
        }
        (5, 11..=12) => DoctorCheck::warning(
            "kernel",
            format!("{found}: no Landlock, and no limit of processes per sandbox"),
            newer,
        ),
        (5, 13) => {
            DoctorCheck::warning("kernel", format!("{found}: no limit of processes per sandbox"), newer)
        }
        _ => DoctorCheck::fine("kernel", found),
    }
}

pub(super) fn clock(config: &ServerConfig) -> DoctorCheck {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let database = config.data_dir().ok().and_then(|dir| fs::metadata(dir.join("ash.db")).ok());
    let written = database.and_then(|meta| meta.modified().ok()?.duration_since(UNIX_EPOCH).ok());
    judge_clock(now, written)
}

/// A clock before this time is wrong: the program did not exist then.
const TOO_EARLY: Duration = Duration::from_secs(1_767_225_600);
const SLACK: Duration = Duration::from_secs(60);

fn judge_clock(now: Duration, written: Option<Duration>) -> DoctorCheck {
    let shown = jiff::Timestamp::from_second(now.as_secs() as i64).map(|time| time.to_string());
    let shown = shown.unwrap_or_else(|_| "out of range".to_owned());
    let remedy = "set it, and keep it right with `timedatectl set-ntp true`";
    if now < TOO_EARLY {
        return DoctorCheck::problem("clock", format!("{shown} is in the past"), remedy);
    }
    match written {
        Some(written) if written > now + SLACK => DoctorCheck::warning(
            "clock",
            format!("{shown}, but the database was written later than that"),
            remedy,
        ),
        Some(_) | None => DoctorCheck::fine("clock", shown),
    }
}

pub(super) fn groups(config: &ServerConfig) -> [DoctorCheck; 2] {
    let groups = ash_sandbox::groups();
    [judge_groups(groups, super::sandbox::is_root()), limits(config, groups)]
}

/// The limits of a sandbox, and which mechanism enforces them.
pub(super) fn limits(config: &ServerConfig, groups: CgroupSupport) -> DoctorCheck {
    let by = ash_server::LimitEnforcement::of(config.sandbox, groups);
    let limits = config.limits().capped_by(config.limits_max);
    let shown = |number: Option<u64>, unit: &str| match number {
        Some(number) => format!("{number}{unit}"),
        None => "any".to_owned(),
    };
    let found = [
        format!("memory {} ({})", shown(limits.memory_mb, " MB"), by.memory),
        format!("processors {} ({})", shown(limits.cpu_percent, "%"), by.cpu),
        format!("processes {} ({})", shown(limits.max_processes, ""), by.processes),
        format!("disk {} ({})", shown(limits.disk_mb, " MB"), by.enforcer_of("diskMb")),
    ];
    DoctorCheck::fine("limits", found.join(", "))
}

fn judge_groups(groups: CgroupSupport, is_root: bool) -> DoctorCheck {
    let name = "cgroups";
    match (groups, is_root) {
        (CgroupSupport::Unified, _) => {
            DoctorCheck::fine(name, "v2, writable: memory and processes are limited per sandbox")
        }
        (CgroupSupport::Separate { memory: true, .. }, _) => {
            DoctorCheck::fine(name, "v1, writable: memory and processes are limited per sandbox")
        }
        (CgroupSupport::Separate { memory: false, .. }, _) => DoctorCheck::warning(
            name,
            "v1 without the memory controller: memory is only measured from time to time",
            "start the kernel with cgroup_enable=memory",
        ),
        (CgroupSupport::None, true) => DoctorCheck::warning(
            name,
            "none that can be written to: memory is only measured from time to time, processors are not limited",
            "mount cgroup2 on /sys/fs/cgroup writable; in a container, run it with --cgroupns=host \
             -v /sys/fs/cgroup:/sys/fs/cgroup:rw",
        ),
        (CgroupSupport::None, false) => DoctorCheck::warning(
            name,
            "only root can use them: memory is only measured from time to time, processors are not limited",
            "run the server as root (every session then gets a uid of its own), or limit the whole server: \
             systemd-run --user -p MemoryMax=8G ash serve",
        ),
    }
}

pub(super) fn landlock() -> DoctorCheck {
    judge_landlock(ash_sandbox::landlock_abi().map_or(0, i64::from))
}

fn judge_landlock(abi: i64) -> DoctorCheck {
    match abi {
        ..1 => DoctorCheck::warning(
            "landlock",
            "not available: files have one layer of protection fewer",
            "add landlock to the kernel's list of security modules: lsm=landlock,… (see /sys/kernel/security/lsm)",
        ),
        1..6 => DoctorCheck::fine("landlock", format!("ABI {abi}; from 6 on signals are confined too")),
        6.. => DoctorCheck::fine("landlock", format!("ABI {abi}")),
    }
}

pub(super) fn seccomp() -> DoctorCheck {
    judge_seccomp(fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").ok().as_deref())
}

fn judge_seccomp(actions: Option<&str>) -> DoctorCheck {
    let needed = |actions: &&str| actions.split_whitespace().any(|action| action == "errno");
    match actions.filter(needed) {
        Some(_) => DoctorCheck::fine("seccomp", "available"),
        None => DoctorCheck::problem(
            "seccomp",
            "not available: sandboxes cannot start",
            "use a kernel with CONFIG_SECCOMP_FILTER, as all distributions have",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::CheckSeverity, *};

    #[test]
    fn kernels_are_judged_by_what_they_lack() {
        for (release, level) in [
            ("6.18.0-0.deb12-amd64", CheckSeverity::Fine),
            ("5.14.0-427.el9.x86_64", CheckSeverity::Fine),
            ("5.13", CheckSeverity::Warning),
            ("5.11.0-1.fc33", CheckSeverity::Warning),
            ("5.10.0-8-amd64", CheckSeverity::Problem),
            ("4.18.0-553.el8", CheckSeverity::Problem),
            ("", CheckSeverity::Warning),
            ("six", CheckSeverity::Warning),
        ] {
            assert_eq!(judge_kernel(release).level, level, "{release}");
        }
    }

    #[test]
    fn a_clock_that_was_set_back_is_noticed() {
        let now = TOO_EARLY + Duration::from_secs(1000);
        assert_eq!(judge_clock(now, None).level, CheckSeverity::Fine);
        assert_eq!(judge_clock(now, Some(now + Duration::from_secs(5))).level, CheckSeverity::Fine);
        assert_eq!(judge_clock(now, Some(now + Duration::from_secs(3600))).level, CheckSeverity::Warning);
        assert_eq!(judge_clock(Duration::ZERO, None).level, CheckSeverity::Problem);
        assert_eq!(judge_clock(Duration::MAX / 2, None).found, "out of range");
    }

    #[test]
    fn without_groups_the_report_says_that_memory_is_only_watched() {
        for is_root in [true, false] {
            let check = judge_groups(CgroupSupport::None, is_root);
            assert_eq!(check.level, CheckSeverity::Warning);
            assert!(check.found.contains("memory is only measured"), "{check:?}");
        }
        let v1 = |memory| CgroupSupport::Separate { memory, processes: true, cpu: true };
        assert_eq!(judge_groups(CgroupSupport::Unified, true).level, CheckSeverity::Fine);
        assert_eq!(judge_groups(v1(true), true).level, CheckSeverity::Fine);
        assert_eq!(judge_groups(v1(false), true).level, CheckSeverity::Warning);
    }

    #[test]
    fn the_second_walls_are_judged_by_what_the_kernel_answers() {
        assert_eq!([-1, 0, 1, 6, 7].map(|abi| judge_landlock(abi).level), {
            use CheckSeverity::{Fine, Warning};
            [Warning, Warning, Fine, Fine, Fine]
        });
        assert_eq!(
            judge_seccomp(Some("kill_process kill_thread trap errno log allow\n")).level,
            CheckSeverity::Fine
        );
        assert_eq!(judge_seccomp(Some("trap")).level, CheckSeverity::Problem);
        assert_eq!(judge_seccomp(None).level, CheckSeverity::Problem);
    }
}
