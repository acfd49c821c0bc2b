//! The second restriction of file access: even if a mount is writable by mistake, only these places can be written.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::UserNamespacePolicy;

/// The version that the rules use; an older kernel enforces the part that it knows.
const WRITTEN_FOR: ABI = ABI::V6;
const SCRATCH: [&str; 2] = ["/tmp", "/dev/shm"];
const DEVICES: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];

/// Returns how much of the rules this kernel enforces.
pub(super) fn apply(
    writable: &[PathBuf],
    user_namespaces: UserNamespacePolicy,
) -> Result<RulesetStatus, RulesetError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(WRITTEN_FOR))?
        // Signals and abstract sockets reach only processes that init started.
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?;
    let mut ruleset = ruleset.create()?;
    // Bubblewrap has already decided what is visible; all of that may be read and executed.
    ruleset = allow(ruleset, Path::new("/"), AccessFs::from_read(WRITTEN_FOR))?;
    for place in writable.iter().map(PathBuf::as_path).chain(SCRATCH.map(Path::new)) {
        ruleset = allow(ruleset, place, AccessFs::from_all(WRITTEN_FOR))?;
    }
    for device in DEVICES {
        ruleset =
            allow(ruleset, Path::new(device), AccessFs::WriteFile | AccessFs::ReadFile | AccessFs::IoctlDev)?;
    }
    if user_namespaces == UserNamespacePolicy::Allowed {
        // A process sets up its user namespace by writing to files of /proc. No rule can name only these files, because
        // they appear with each process.
        ruleset = allow(ruleset, Path::new("/proc"), AccessFs::WriteFile | AccessFs::Truncate)?;
    }
    Ok(ruleset.restrict_self()?.ruleset)
}

fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    match PathFd::new(path) {
        Ok(place) => ruleset.add_rule(PathBeneath::new(place, access)),
        // A missing path needs no permission.
        Err(_) => Ok(ruleset),
    }
}
