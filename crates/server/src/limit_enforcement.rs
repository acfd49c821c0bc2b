//! Which mechanism enforces each limit on this machine: determined once at start, and shown with every session.

use crate::config::SandboxSetting;
use ash_sandbox::CgroupSupport;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitEnforcement {
    pub memory: &'static str,
    pub cpu: &'static str,
    pub processes: &'static str,
}

/// The server measures the usage from time to time.
const WATCHDOG: &str = "watchdog";
const RLIMIT: &str = "rlimit";
const UNENFORCED: &str = "nobody";

impl LimitEnforcement {
    pub fn of(sandbox: SandboxSetting, groups: CgroupSupport) -> LimitEnforcement {
        // RLIMIT_NPROC counts the processes of a sandbox only if it has its own user namespace.
        let processes = match sandbox {
            SandboxSetting::Docker => {
                return LimitEnforcement { memory: "docker", cpu: "docker", processes: "docker" };
            }
            SandboxSetting::Bubblewrap => RLIMIT,
            SandboxSetting::None => UNENFORCED,
        };
        match groups {
            CgroupSupport::Unified => {
                LimitEnforcement { memory: "cgroup2", cpu: "cgroup2", processes: "cgroup2" }
            }
            CgroupSupport::Separate { memory, processes: counted, cpu } => LimitEnforcement {
                memory: if memory { "cgroup1" } else { WATCHDOG },
                cpu: if cpu { "cgroup1" } else { UNENFORCED },
                processes: if counted { "cgroup1" } else { processes },
            },
            CgroupSupport::None => LimitEnforcement { memory: WATCHDOG, cpu: UNENFORCED, processes },
        }
    }

    /// By the name of the limit.
    pub fn enforcer_of(&self, name: &str) -> &'static str {
        match name {
            "memoryMb" => self.memory,
            "cpuPercent" => self.cpu,
            "maxProcesses" => self.processes,
            "maxOpenFiles" => RLIMIT,
            "outputKbPerSecond" => "backpressure",
            "turnSeconds" => "server",
            _ => WATCHDOG,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_root_has_a_watchdog_and_rlimits() {
        let user = LimitEnforcement::of(SandboxSetting::Bubblewrap, CgroupSupport::None);
        assert_eq!(user, LimitEnforcement { memory: "watchdog", cpu: "nobody", processes: "rlimit" });
        let some = CgroupSupport::Separate { memory: false, processes: true, cpu: true };
        let old = LimitEnforcement::of(SandboxSetting::None, some);
        assert_eq!(old, LimitEnforcement { memory: "watchdog", cpu: "cgroup1", processes: "cgroup1" });
    }
}
