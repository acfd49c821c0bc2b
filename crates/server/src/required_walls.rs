//! Checks that this machine provides the walls that the operator requires. Otherwise the server does not start.

use crate::config::{SandboxSetting, ServerConfig};
use ash_sandbox::{BackendKind, CgroupSupport, HostWallSupport, UserNamespacePolicy, WallKind};

/// What is missing, and the remedy.
type UnmetWallRequirement = (String, String);

pub fn unmet_wall_requirements(
    config: &ServerConfig,
    groups: CgroupSupport,
) -> Result<(), Vec<UnmetWallRequirement>> {
    let machine = HostWallSupport {
        backend: match config.sandbox {
            SandboxSetting::Bubblewrap => BackendKind::Bubblewrap,
            SandboxSetting::Docker => BackendKind::Docker,
            SandboxSetting::None => BackendKind::None,
        },
        is_root: rustix::process::geteuid().is_root(),
        landlock: ash_sandbox::landlock_abi(),
        groups,
        user_namespaces: if config.allow_userns {
            UserNamespacePolicy::Allowed
        } else {
            UserNamespacePolicy::Refused
        },
    };
    let lacks = config.walls_required.lacking(&machine);
    let mut missing: Vec<UnmetWallRequirement> = lacks
        .iter()
        .map(|lack| (format!("{}: {}", lack.wall.as_str(), lack.why), lack.remedy.to_owned()))
        .collect();
    let limits = config.limits().capped_by(config.limits_max);
    if config.walls_required.has(WallKind::Limits) && limits.memory_mb.and(limits.max_processes).is_none() {
        let why = "limits: the server's own settings leave memory or processes without one";
        let remedy = "give memoryMb and maxProcesses numbers in ASH_LIMITS, or ASH_LIMITS_MAX";
        missing.push((why.to_owned(), remedy.to_owned()));
    }
    if missing.is_empty() { Ok(()) } else { Err(missing) }
}

pub(crate) fn check(config: &ServerConfig, groups: CgroupSupport) -> Result<(), String> {
    if config.allow_userns && config.sandbox == SandboxSetting::Docker {
        return Err("ASH_ALLOW_USERNS cannot be kept with ASH_SANDBOX=docker, whose engine refuses user namespaces by a filter of its own. Unset one of them".to_owned());
    }
    if config.allow_userns {
        tracing::warn!(
            "ASH_ALLOW_USERNS: agents whose ash.toml requests it may make user namespaces, which weakens their isolation"
        );
    }
    unmet_wall_requirements(config, groups).map_err(|missing| {
        let each = missing.iter().map(|(why, remedy)| format!("\n  {why}\n    {remedy}"));
        let each: String = each.collect();
        format!(
            "this server requires walls that it would not have (ASH_WALLS_REQUIRED={}):{each}",
            config.walls_required.names().replace(", ", ",")
        )
    })
}
