//! By whom limits are enforced on this machine: asked once at start, and said with every session.

use crate::config::Sandbox;
use ash_sandbox::Groups;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforced {
    pub memory: &'static str,
    pub cpu: &'static str,
    pub processes: &'static str,
}

/// Looked at from time to time, by us.
const WATCHDOG: &str = "watchdog";
const RLIMIT: &str = "rlimit";
const NOBODY: &str = "nobody";

impl Enforced {
    pub fn of(sandbox: Sandbox, groups: Groups) -> Enforced {
        // Only a user namespace of its own has processes of its own to count.
        let processes = match sandbox {
            Sandbox::Docker => return Enforced { memory: "docker", cpu: "docker", processes: "docker" },
            Sandbox::Bubblewrap => RLIMIT,
            Sandbox::None => NOBODY,
        };
        match groups {
            Groups::Unified => Enforced { memory: "cgroup2", cpu: "cgroup2", processes: "cgroup2" },
            Groups::Separate { memory, processes: counted, cpu } => Enforced {
                memory: if memory { "cgroup1" } else { WATCHDOG },
                cpu: if cpu { "cgroup1" } else { NOBODY },
                processes: if counted { "cgroup1" } else { processes },
            },
            Groups::None => Enforced { memory: WATCHDOG, cpu: NOBODY, processes },
        }
    }

    /// By the name of the limit.
    pub fn by(&self, name: &str) -> &'static str {
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
    fn whoever_is_not_root_has_a_watchdog_and_rlimits() {
        let user = Enforced::of(Sandbox::Bubblewrap, Groups::None);
        assert_eq!(user, Enforced { memory: "watchdog", cpu: "nobody", processes: "rlimit" });
        let some = Groups::Separate { memory: false, processes: true, cpu: true };
        let old = Enforced::of(Sandbox::None, some);
        assert_eq!(old, Enforced { memory: "watchdog", cpu: "cgroup1", processes: "cgroup1" });
    }
}
