//! Walls that the operator requires. The server checks at its start whether the machine has them, so that a problem
//! shows as a sentence. Each sandbox is also built with them or not at all, since a machine changes while it runs.

use std::collections::BTreeSet;

use landlock::RulesetStatus;
use serde::{Deserialize, Serialize};

use crate::{BackendKind, CgroupSupport, SandboxSpec, UserNamespacePolicy};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WallKind {
    /// Any sandbox at all.
    Sandbox,
    /// A filter of system calls.
    Seccomp,
    /// The second restriction of file access.
    Landlock,
    /// Landlock's restriction of signals and abstract sockets.
    Scopes,
    /// The kernel limits memory and the number of processes.
    Limits,
    /// A uid for each workspace.
    Uid,
    /// No process gets user namespaces.
    NoUserns,
}

impl WallKind {
    pub const ALL: [WallKind; 7] = [
        WallKind::Sandbox,
        WallKind::Seccomp,
        WallKind::Landlock,
        WallKind::Scopes,
        WallKind::Limits,
        WallKind::Uid,
        WallKind::NoUserns,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            WallKind::Sandbox => "sandbox",
            WallKind::Seccomp => "seccomp",
            WallKind::Landlock => "landlock",
            WallKind::Scopes => "scopes",
            WallKind::Limits => "limits",
            WallKind::Uid => "uid",
            WallKind::NoUserns => "no-userns",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no wall {0:?}; there are: all, {names}", names = WallKind::ALL.map(WallKind::as_str).join(", "))]
pub struct BadWallName(String);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequiredWalls(BTreeSet<WallKind>);

/// The features of a machine, and the relevant settings of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostWallSupport {
    pub backend: BackendKind,
    pub is_root: bool,
    pub landlock: Option<u32>,
    pub groups: CgroupSupport,
    pub user_namespaces: UserNamespacePolicy,
}

/// A required wall that would be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingWall {
    pub wall: WallKind,
    pub why: &'static str,
    pub remedy: &'static str,
}

impl RequiredWalls {
    /// `landlock,limits`, or `all`.
    pub fn parse(text: &str) -> Result<RequiredWalls, BadWallName> {
        let mut walls = BTreeSet::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match WallKind::ALL.into_iter().find(|wall| wall.as_str() == name) {
                Some(wall) => drop(walls.insert(wall)),
                None if name == "all" => walls.extend(WallKind::ALL),
                None => return Err(BadWallName(name.chars().take(60).collect())),
            }
        }
        Ok(RequiredWalls(walls))
    }

    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, wall: WallKind) -> bool {
        self.0.contains(&wall)
    }

    /// Whether this includes every wall of `other`.
    pub fn covers(&self, other: &RequiredWalls) -> bool {
        self.0.is_superset(&other.0)
    }

    pub fn names(&self) -> String {
        self.0.iter().map(|wall| wall.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The required walls that sandboxes on this machine would lack.
    pub fn lacking(&self, machine: &HostWallSupport) -> Vec<MissingWall> {
        self.0.iter().filter_map(|wall| wall.lack(machine)).collect()
    }

    /// Refuses a spec that asks for user namespaces where the requirements or the backend exclude them.
    pub(crate) fn permits(&self, spec: &SandboxSpec, backend: BackendKind) -> Result<(), &'static str> {
        match (spec.user_namespaces, backend) {
            (UserNamespacePolicy::Refused, _) => Ok(()),
            (UserNamespacePolicy::Allowed, _) if self.has(WallKind::NoUserns) => {
                Err("ASH_WALLS_REQUIRED=no-userns, and its agent wants user namespaces")
            }
            (UserNamespacePolicy::Allowed, BackendKind::Docker) => {
                Err("its agent wants user namespaces, which a Docker engine's own filter refuses")
            }
            (UserNamespacePolicy::Allowed, BackendKind::Bubblewrap | BackendKind::None) => Ok(()),
        }
    }

    /// Runs inside, before init starts any process.
    pub(crate) fn check_inside(&self, landlock: RulesetStatus) -> Result<(), &'static str> {
        match landlock {
            RulesetStatus::FullyEnforced => Ok(()),
            RulesetStatus::PartiallyEnforced if self.has(WallKind::Scopes) => {
                Err("ASH_WALLS_REQUIRED=scopes, and this kernel's Landlock is older")
            }
            RulesetStatus::NotEnforced if self.has(WallKind::Landlock) || self.has(WallKind::Scopes) => {
                Err("ASH_WALLS_REQUIRED=landlock, and this kernel has none")
            }
            RulesetStatus::PartiallyEnforced | RulesetStatus::NotEnforced => Ok(()),
        }
    }
}

/// The first Landlock version with scopes.
const WITH_SCOPES: u32 = 6;

impl WallKind {
    fn lack(self, machine: &HostWallSupport) -> Option<MissingWall> {
        let bare = machine.backend == BackendKind::None;
        let (is_there, why, remedy) = match self {
            WallKind::Sandbox => (
                !bare,
                "with ASH_SANDBOX=none agents have no walls at all",
                "unset ASH_SANDBOX, and install bubblewrap (`apt-get install bubblewrap`)",
            ),
            WallKind::Seccomp => (
                !bare,
                "with ASH_SANDBOX=none system calls are not filtered",
                "unset ASH_SANDBOX, and install bubblewrap (`apt-get install bubblewrap`)",
            ),
            WallKind::Landlock => (
                !bare && machine.landlock.is_some(),
                "there is no Landlock, with ASH_SANDBOX=none or by this kernel",
                "unset ASH_SANDBOX, and start Linux 5.13 or newer with landlock among its security modules: lsm=landlock,…",
            ),
            WallKind::Scopes => (
                !bare && machine.landlock.is_some_and(|abi| abi >= WITH_SCOPES),
                "Landlock does not wall in signals and abstract sockets, with ASH_SANDBOX=none or by this kernel",
                "unset ASH_SANDBOX, and start Linux 6.12 or newer with landlock among its security modules: lsm=landlock,…",
            ),
            WallKind::Limits => {
                (machine.limits(), "the kernel limits neither memory nor processes of a sandbox", {
                    match machine.is_root {
                        true => "mount cgroup2 on /sys/fs/cgroup, writable, or use ASH_SANDBOX=docker",
                        false => {
                            "start the server as root, who alone can make control groups, or use ASH_SANDBOX=docker"
                        }
                    }
                })
            }
            WallKind::Uid => (
                machine.is_root && !bare,
                "all sandboxes have the uid of the server's own user",
                "start the server as root, with walls: then each workspace has a uid of ASH_SANDBOX_UIDS",
            ),
            WallKind::NoUserns => (
                machine.user_namespaces.are_refused(),
                "ASH_ALLOW_USERNS lets agents make user namespaces",
                "unset ASH_ALLOW_USERNS",
            ),
        };
        (!is_there).then_some(MissingWall { wall: self, why, remedy })
    }
}

impl HostWallSupport {
    fn limits(&self) -> bool {
        match (self.backend, self.groups) {
            (BackendKind::Docker, _) | (_, CgroupSupport::Unified) => true,
            (
                BackendKind::Bubblewrap | BackendKind::None,
                CgroupSupport::Separate { memory, processes, .. },
            ) => memory && processes,
            (BackendKind::Bubblewrap | BackendKind::None, CgroupSupport::None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRONG: HostWallSupport = HostWallSupport {
        backend: BackendKind::Bubblewrap,
        is_root: true,
        landlock: Some(7),
        groups: CgroupSupport::Unified,
        user_namespaces: UserNamespacePolicy::Refused,
    };

    fn lacking(names: &str, machine: HostWallSupport) -> Vec<&'static str> {
        let required = RequiredWalls::parse(names).expect("walls");
        required.lacking(&machine).iter().map(|lack| lack.wall.as_str()).collect()
    }

    #[test]
    fn a_machine_that_has_everything_lacks_nothing() {
        assert!(lacking("all", STRONG).is_empty());
        assert!(
            lacking(
                "all",
                HostWallSupport { backend: BackendKind::Docker, groups: CgroupSupport::None, ..STRONG }
            )
            .is_empty()
        );
        assert!(
            lacking("", HostWallSupport { backend: BackendKind::None, is_root: false, ..STRONG }).is_empty()
        );
    }

    #[test]
    fn each_missing_wall_is_named() {
        let user = HostWallSupport { is_root: false, groups: CgroupSupport::None, ..STRONG };
        assert_eq!(lacking("all", user), ["limits", "uid"]);
        assert_eq!(lacking("landlock,uid", user), ["uid"]);
        let bare = HostWallSupport { backend: BackendKind::None, ..STRONG };
        assert_eq!(lacking("all", bare), ["sandbox", "seccomp", "landlock", "scopes", "uid"]);
        assert_eq!(lacking("all", HostWallSupport { landlock: None, ..STRONG }), ["landlock", "scopes"]);
        assert_eq!(lacking("all", HostWallSupport { landlock: Some(5), ..STRONG }), ["scopes"]);
        let uncounted = CgroupSupport::Separate { memory: true, processes: false, cpu: true };
        assert_eq!(lacking("all", HostWallSupport { groups: uncounted, ..STRONG }), ["limits"]);
        let open = HostWallSupport { user_namespaces: UserNamespacePolicy::Allowed, ..STRONG };
        assert_eq!(lacking("all", open), ["no-userns"]);
    }

    #[test]
    fn inside_an_older_landlock_is_enough_unless_its_scopes_are_required() {
        let met = |names: &str, landlock| {
            RequiredWalls::parse(names).expect("walls").check_inside(landlock).is_ok()
        };
        assert!(met("all", RulesetStatus::FullyEnforced) && met("limits,uid", RulesetStatus::NotEnforced));
        assert!(
            met("landlock", RulesetStatus::PartiallyEnforced) && !met("landlock", RulesetStatus::NotEnforced)
        );
        assert!(
            !met("scopes", RulesetStatus::PartiallyEnforced) && !met("scopes", RulesetStatus::NotEnforced)
        );
    }

    #[test]
    fn walls_are_named_as_they_are_stored() {
        let all =
            RequiredWalls::parse("uid, no-userns,sandbox,,seccomp,landlock,scopes,limits").expect("walls");
        assert_eq!(all, RequiredWalls::parse("all").expect("walls"));
        let stored = r#"["sandbox","seccomp","landlock","scopes","limits","uid","no-userns"]"#;
        assert_eq!(serde_json::to_string(&all).expect("json"), stored);
        let error = RequiredWalls::parse("moat").expect_err("none").to_string();
        assert!(error.contains("\"moat\"") && error.contains("all, sandbox, seccomp"), "{error}");
    }
}
