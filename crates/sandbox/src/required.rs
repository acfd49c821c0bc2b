//! Walls that the operator does not do without. The server asks at its start whether the machine has them, so that the
//! answer is a sentence; and each sandbox is built with them or not at all, since a machine changes while it runs.

use std::collections::BTreeSet;

use landlock::RulesetStatus;
use serde::{Deserialize, Serialize};

use crate::{Groups, Spec, UserNamespaces, Walls};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wall {
    /// Any at all.
    Sandbox,
    /// A filter of system calls.
    Seccomp,
    /// The second wall around files.
    Landlock,
    /// Landlock's wall around signals and abstract sockets.
    Scopes,
    /// Memory and processes are limited, by the kernel.
    Limits,
    /// A uid for each workspace.
    Uid,
    /// Nobody gets user namespaces.
    NoUserns,
}

impl Wall {
    pub const ALL: [Wall; 7] =
        [Wall::Sandbox, Wall::Seccomp, Wall::Landlock, Wall::Scopes, Wall::Limits, Wall::Uid, Wall::NoUserns];

    pub fn as_str(self) -> &'static str {
        match self {
            Wall::Sandbox => "sandbox",
            Wall::Seccomp => "seccomp",
            Wall::Landlock => "landlock",
            Wall::Scopes => "scopes",
            Wall::Limits => "limits",
            Wall::Uid => "uid",
            Wall::NoUserns => "no-userns",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no wall {0:?}; there are: all, {names}", names = Wall::ALL.map(Wall::as_str).join(", "))]
pub struct BadWall(String);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Required(BTreeSet<Wall>);

/// What is known of a machine, and of how the server is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    pub walls: Walls,
    pub is_root: bool,
    pub landlock: Option<u32>,
    pub groups: Groups,
    pub user_namespaces: UserNamespaces,
}

/// A wall that would be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lack {
    pub wall: Wall,
    pub why: &'static str,
    pub remedy: &'static str,
}

impl Required {
    /// `landlock,limits`, or `all`.
    pub fn parse(text: &str) -> Result<Required, BadWall> {
        let mut walls = BTreeSet::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match Wall::ALL.into_iter().find(|wall| wall.as_str() == name) {
                Some(wall) => drop(walls.insert(wall)),
                None if name == "all" => walls.extend(Wall::ALL),
                None => return Err(BadWall(name.chars().take(60).collect())),
            }
        }
        Ok(Required(walls))
    }

    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, wall: Wall) -> bool {
        self.0.contains(&wall)
    }

    /// All of the other's.
    pub fn covers(&self, other: &Required) -> bool {
        self.0.is_superset(&other.0)
    }

    pub fn names(&self) -> String {
        self.0.iter().map(|wall| wall.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// What of this sandboxes would not have.
    pub fn lacking(&self, machine: &Machine) -> Vec<Lack> {
        self.0.iter().filter_map(|wall| wall.lack(machine)).collect()
    }

    /// Whatever somebody may have asked for.
    pub(crate) fn permits(&self, spec: &Spec, walls: Walls) -> Result<(), &'static str> {
        match (spec.user_namespaces, walls) {
            (UserNamespaces::Refused, _) => Ok(()),
            (UserNamespaces::Allowed, _) if self.has(Wall::NoUserns) => {
                Err("ASH_WALLS_REQUIRED=no-userns, and its agent wants user namespaces")
            }
            (UserNamespaces::Allowed, Walls::Docker) => {
                Err("its agent wants user namespaces, which a Docker engine's own filter refuses")
            }
            (UserNamespaces::Allowed, Walls::Bubblewrap | Walls::None) => Ok(()),
        }
    }

    /// Asked inside, before anything is started there.
    pub(crate) fn met(&self, landlock: RulesetStatus) -> Result<(), &'static str> {
        match landlock {
            RulesetStatus::FullyEnforced => Ok(()),
            RulesetStatus::PartiallyEnforced if self.has(Wall::Scopes) => {
                Err("ASH_WALLS_REQUIRED=scopes, and this kernel's Landlock is older")
            }
            RulesetStatus::NotEnforced if self.has(Wall::Landlock) || self.has(Wall::Scopes) => {
                Err("ASH_WALLS_REQUIRED=landlock, and this kernel has none")
            }
            RulesetStatus::PartiallyEnforced | RulesetStatus::NotEnforced => Ok(()),
        }
    }
}

/// From this one on Landlock has scopes.
const WITH_SCOPES: u32 = 6;

impl Wall {
    fn lack(self, machine: &Machine) -> Option<Lack> {
        let bare = machine.walls == Walls::None;
        let (is_there, why, remedy) = match self {
            Wall::Sandbox => (
                !bare,
                "with ASH_SANDBOX=none agents have no walls at all",
                "unset ASH_SANDBOX, and install bubblewrap (`apt-get install bubblewrap`)",
            ),
            Wall::Seccomp => (
                !bare,
                "with ASH_SANDBOX=none system calls are not filtered",
                "unset ASH_SANDBOX, and install bubblewrap (`apt-get install bubblewrap`)",
            ),
            Wall::Landlock => (
                !bare && machine.landlock.is_some(),
                "there is no Landlock, with ASH_SANDBOX=none or by this kernel",
                "unset ASH_SANDBOX, and start Linux 5.13 or newer with landlock among its security modules: lsm=landlock,…",
            ),
            Wall::Scopes => (
                !bare && machine.landlock.is_some_and(|abi| abi >= WITH_SCOPES),
                "Landlock does not wall in signals and abstract sockets, with ASH_SANDBOX=none or by this kernel",
                "unset ASH_SANDBOX, and start Linux 6.12 or newer with landlock among its security modules: lsm=landlock,…",
            ),
            Wall::Limits => {
                (machine.limits(), "the kernel limits neither memory nor processes of a sandbox", {
                    match machine.is_root {
                        true => "mount cgroup2 on /sys/fs/cgroup, writable, or use ASH_SANDBOX=docker",
                        false => {
                            "start the server as root, who alone can make control groups, or use ASH_SANDBOX=docker"
                        }
                    }
                })
            }
            Wall::Uid => (
                machine.is_root && !bare,
                "all sandboxes have the uid of the server's own user",
                "start the server as root, with walls: then each workspace has a uid of ASH_SANDBOX_UIDS",
            ),
            Wall::NoUserns => (
                machine.user_namespaces.are_refused(),
                "ASH_ALLOW_USERNS lets agents make user namespaces",
                "unset ASH_ALLOW_USERNS",
            ),
        };
        (!is_there).then_some(Lack { wall: self, why, remedy })
    }
}

impl Machine {
    fn limits(&self) -> bool {
        match (self.walls, self.groups) {
            (Walls::Docker, _) | (_, Groups::Unified) => true,
            (Walls::Bubblewrap | Walls::None, Groups::Separate { memory, processes, .. }) => {
                memory && processes
            }
            (Walls::Bubblewrap | Walls::None, Groups::None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRONG: Machine = Machine {
        walls: Walls::Bubblewrap,
        is_root: true,
        landlock: Some(7),
        groups: Groups::Unified,
        user_namespaces: UserNamespaces::Refused,
    };

    fn lacking(names: &str, machine: Machine) -> Vec<&'static str> {
        let required = Required::parse(names).expect("walls");
        required.lacking(&machine).iter().map(|lack| lack.wall.as_str()).collect()
    }

    #[test]
    fn a_machine_that_has_everything_lacks_nothing() {
        assert!(lacking("all", STRONG).is_empty());
        assert!(lacking("all", Machine { walls: Walls::Docker, groups: Groups::None, ..STRONG }).is_empty());
        assert!(lacking("", Machine { walls: Walls::None, is_root: false, ..STRONG }).is_empty());
    }

    #[test]
    fn what_is_missing_is_named_one_by_one() {
        let user = Machine { is_root: false, groups: Groups::None, ..STRONG };
        assert_eq!(lacking("all", user), ["limits", "uid"]);
        assert_eq!(lacking("landlock,uid", user), ["uid"]);
        let bare = Machine { walls: Walls::None, ..STRONG };
        assert_eq!(lacking("all", bare), ["sandbox", "seccomp", "landlock", "scopes", "uid"]);
        assert_eq!(lacking("all", Machine { landlock: None, ..STRONG }), ["landlock", "scopes"]);
        assert_eq!(lacking("all", Machine { landlock: Some(5), ..STRONG }), ["scopes"]);
        let uncounted = Groups::Separate { memory: true, processes: false, cpu: true };
        assert_eq!(lacking("all", Machine { groups: uncounted, ..STRONG }), ["limits"]);
        let open = Machine { user_namespaces: UserNamespaces::Allowed, ..STRONG };
        assert_eq!(lacking("all", open), ["no-userns"]);
    }

    #[test]
    fn inside_an_older_landlock_is_enough_unless_its_scopes_are_required() {
        let met = |names: &str, landlock| Required::parse(names).expect("walls").met(landlock).is_ok();
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
        let all = Required::parse("uid, no-userns,sandbox,,seccomp,landlock,scopes,limits").expect("walls");
        assert_eq!(all, Required::parse("all").expect("walls"));
        let stored = r#"["sandbox","seccomp","landlock","scopes","limits","uid","no-userns"]"#;
        assert_eq!(serde_json::to_string(&all).expect("json"), stored);
        let error = Required::parse("moat").expect_err("none").to_string();
        assert!(error.contains("\"moat\"") && error.contains("all, sandbox, seccomp"), "{error}");
    }
}
