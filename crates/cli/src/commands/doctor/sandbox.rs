//! Checks whether sandboxes can be started here, and if not, why.

use super::DoctorCheck;
use ash_sandbox::{BubblewrapBackend, Error};
use ash_server::{SandboxSetting, ServerConfig};
use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

/// The first release without GHSA-pxhw-h44j-8pfx.
const RECOMMENDED_BUBBLEWRAP: (u32, u32) = (0, 12);
const OLDEST_BUBBLEWRAP: (u32, u32) = (0, 8);
/// Users, services and the first ranges of containers have lower uids.
const FIRST_FREE_UID: u64 = 200_000;
const START_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn is_root() -> bool {
    // SAFETY: reads a number of this process, and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

pub(super) async fn check(config: &ServerConfig) -> Vec<DoctorCheck> {
    if config.sandbox == SandboxSetting::None {
        return vec![DoctorCheck::warning(
            "walls",
            "ASH_SANDBOX=none: agents run without isolation, with all your rights",
            "unset ASH_SANDBOX",
        )];
    }
    let mut checks = match config.sandbox {
        SandboxSetting::Docker => docker(config).await,
        SandboxSetting::Bubblewrap | SandboxSetting::None => {
            let found = bubblewrap().await;
            let raised = try_start_sandbox().await;
            vec![found, namespaces(&UserNamespaceSysctls::read(), raised.is_ok()), judge_walls(raised)]
        }
    };
    if is_root() {
        checks.push(uids(&config.sandbox_uids.0));
    }
    checks
}

/// Whether the server would start with the walls that its operator requires.
pub(super) fn required(config: &ServerConfig) -> Option<DoctorCheck> {
    let (name, wanted) = ("required walls", config.walls_required.names());
    match ash_server::unmet_wall_requirements(config, ash_sandbox::groups()) {
        Ok(()) if config.walls_required.is_nothing() => None,
        Ok(()) => Some(DoctorCheck::fine(name, wanted)),
        Err(lacks) => {
            let (why, remedies): (Vec<_>, Vec<_>) = lacks.into_iter().unzip();
            Some(DoctorCheck::problem(
                name,
                format!("the server does not start: {}", why.join("; ")),
                remedies.join("\n"),
            ))
        }
    }
}

/// The engine, its image, and a container as sessions get it.
async fn docker(config: &ServerConfig) -> Vec<DoctorCheck> {
    let docker = own_program().and_then(|exe| config.docker(exe));
    let looked = match &docker {
        Ok(docker) => docker.check().await,
        Err(error) => return vec![DoctorCheck::problem("docker", reason(error), remedy(error))],
    };
    match (docker, looked) {
        (Ok(docker), Ok(version)) => {
            let raised = tokio::time::timeout(START_TIMEOUT, docker.try_out()).await;
            let raised = raised.unwrap_or(Err(Error::Timeout { what: "start" }));
            let found = format!("engine {version}, image {}", config.docker_image);
            vec![DoctorCheck::fine("docker", found), judge_walls(raised)]
        }
        (Err(error), _) | (_, Err(error)) => {
            vec![DoctorCheck::problem("docker", reason(&error), remedy(&error))]
        }
    }
}

async fn bubblewrap() -> DoctorCheck {
    let program = match ash_sandbox::find_bubblewrap() {
        Ok(program) => program,
        Err(error) => return missing(&error, on_path("bwrap")),
    };
    let words = super::agents::first_output_line(&program, "--version").await;
    judge_version(&program, words.as_deref().unwrap_or_default())
}

pub(super) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

fn missing(error: &Error, elsewhere: Option<PathBuf>) -> DoctorCheck {
    let Some(program) = elsewhere else {
        return DoctorCheck::problem("bubblewrap", reason(error), remedy(error));
    };
    let found = format!("only at {}, where ash does not look", program.display());
    let link = format!("sudo ln -s {} /usr/local/bin/bwrap", program.display());
    DoctorCheck::problem("bubblewrap", found, link)
}

fn judge_version(program: &Path, words: &str) -> DoctorCheck {
    let Some(version) = words.split_whitespace().last().and_then(version) else {
        let found = format!("{} does not tell its version", program.display());
        return DoctorCheck::warning(
            "bubblewrap",
            found,
            "reinstall it: apt-get install --reinstall bubblewrap",
        );
    };
    let found = format!("{} {}.{}", program.display(), version.0, version.1);
    if version < OLDEST_BUBBLEWRAP {
        let found = format!("{found}: older than 0.8, with which ash is tested");
        return DoctorCheck::warning(
            "bubblewrap",
            found,
            "update it; Debian 12 and Ubuntu 24.04 have newer ones",
        );
    }
    if version < RECOMMENDED_BUBBLEWRAP {
        let hint = "0.12 also fixes GHSA-pxhw-h44j-8pfx, if your distribution has not";
        return DoctorCheck { remedy: vec![hint.to_owned()], ..DoctorCheck::fine("bubblewrap", found) };
    }
    DoctorCheck::fine("bubblewrap", found)
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// Starts and ends a sandbox with the settings that sessions get.
async fn try_start_sandbox() -> Result<(), Error> {
    let gone = |_| Error::Timeout { what: "start" };
    tokio::time::timeout(START_TIMEOUT, BubblewrapBackend::probe(own_program()?))
        .await
        .map_err(gone)?
        .map(drop)
}

fn own_program() -> Result<PathBuf, Error> {
    std::env::current_exe().map_err(|source| Error::File {
        what: "find",
        path: "/proc/self/exe".into(),
        source,
    })
}

fn judge_walls(raised: Result<(), Error>) -> DoctorCheck {
    match raised {
        Ok(()) => DoctorCheck::fine("walls", "a sandbox starts and ends"),
        Err(error) => DoctorCheck::problem("walls", reason(&error), remedy(&error)),
    }
}

fn reason(error: &Error) -> String {
    match error {
        Error::Unavailable { why, .. } => why.clone(),
        other => other.to_string(),
    }
}

fn remedy(error: &Error) -> String {
    match error {
        Error::Unavailable { remedy, .. } => (*remedy).to_owned(),
        other => std::error::Error::source(other).map(ToString::to_string).unwrap_or_default(),
    }
}

/// Kernel switches that forbid user namespaces to unprivileged users; `None` where the kernel has no such switch.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct UserNamespaceSysctls {
    most: Option<u64>,
    /// Debian's switch.
    allowed: Option<u64>,
    /// Ubuntu's switch.
    restricted: Option<u64>,
}

impl UserNamespaceSysctls {
    fn read() -> UserNamespaceSysctls {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        UserNamespaceSysctls {
            most: number("/proc/sys/user/max_user_namespaces"),
            allowed: number("/proc/sys/kernel/unprivileged_userns_clone"),
            restricted: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        }
    }
}

const PROFILE: &str =
    "write this to /etc/apparmor.d/bwrap, then run `sudo apparmor_parser -r /etc/apparmor.d/bwrap`:
    abi <abi/4.0>,
    include <tunables/global>
    profile bwrap /usr/bin/bwrap flags=(unconfined) {
      userns,
    }
(or allow them to every program: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0)";

/// A switch matters only if no sandbox can be started: bubblewrap may be exempt from it.
fn namespaces(sysctls: &UserNamespaceSysctls, walls_work: bool) -> DoctorCheck {
    let name = "user namespaces";
    let forbidden = match sysctls {
        UserNamespaceSysctls { most: Some(0), .. } => Some((
            "forbidden: user.max_user_namespaces is 0",
            "sudo sysctl -w user.max_user_namespaces=15000 (and in /etc/sysctl.d, to keep it)",
        )),
        UserNamespaceSysctls { allowed: Some(0), .. } => Some((
            "forbidden: kernel.unprivileged_userns_clone is 0",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1 (and in /etc/sysctl.d, to keep it)",
        )),
        UserNamespaceSysctls { restricted: Some(1..), .. } => Some(("restricted by AppArmor", PROFILE)),
        UserNamespaceSysctls { .. } => None,
    };
    match (forbidden, walls_work) {
        (None, _) => DoctorCheck::fine(name, "allowed"),
        (Some((why, _)), true) => DoctorCheck::fine(name, format!("{why}, but not for bubblewrap")),
        (Some((why, remedy)), false) => DoctorCheck::problem(name, why, remedy),
    }
}

fn uids(range: &Range<u32>) -> DoctorCheck {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let known = HostUidTables {
        passwd: read("/etc/passwd"),
        subuid: read("/etc/subuid"),
        map: fs::read_to_string("/proc/self/uid_map").ok(),
    };
    judge_uids(range, &known)
}

/// Uids that are in use on this machine.
struct HostUidTables {
    passwd: String,
    subuid: String,
    /// The uids that exist in this user namespace, if this is a container of an unprivileged user.
    map: Option<String>,
}

impl HostUidTables {
    fn user_ranges(&self) -> impl Iterator<Item = (&str, Range<u64>)> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, uid) = (fields.next()?, fields.nth(1)?.parse::<u64>().ok()?);
            Some((name, uid..uid + 1))
        })
    }

    fn subordinate_ranges(&self) -> impl Iterator<Item = (&str, Range<u64>)> {
        self.subuid.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, first, count) = (fields.next()?, fields.next()?, fields.next()?);
            let first = first.parse::<u64>().ok()?;
            Some((name, first..first.saturating_add(count.parse().ok()?)))
        })
    }

    fn exist(&self, range: &Range<u64>) -> bool {
        let Some(map) = &self.map else { return true };
        map.lines().any(|line| {
            let mut numbers = line.split_whitespace().map_while(|word| word.parse::<u64>().ok());
            let (first, count) = (numbers.next(), numbers.nth(1));
            first.zip(count).is_some_and(|(first, count)| first <= range.start && range.end <= first + count)
        })
    }
}

fn judge_uids(range: &Range<u32>, known: &HostUidTables) -> DoctorCheck {
    let name = "sandbox uids";
    let wide = u64::from(range.start)..u64::from(range.end);
    let shown = format!("{}-{}", range.start, range.end.saturating_sub(1));
    let overlaps = |other: &Range<u64>| other.start < wide.end && wide.start < other.end;
    if !known.exist(&wide) {
        let remedy = "run ash as an ordinary user in this container, or set ASH_SANDBOX_UIDS to a range of it \
                      (/proc/self/uid_map)";
        return DoctorCheck::problem(name, format!("{shown} do not exist in this container"), remedy);
    }
    let remedy = || match free(known, wide.end - wide.start) {
        Some(free) => format!("set ASH_SANDBOX_UIDS={}-{}, which is unused", free.start, free.end - 1),
        None => "set ASH_SANDBOX_UIDS to an unused range".to_owned(),
    };
    if let Some((who, _)) = known.user_ranges().find(|(_, uid)| overlaps(uid)) {
        let found = format!("{shown} holds the uid of {who}, who could read what agents write");
        return DoctorCheck::problem(name, found, remedy());
    }
    match known.subordinate_ranges().find(|(_, lent)| overlaps(lent)) {
        Some((who, _)) => {
            let found = format!("{shown} overlaps the uids that /etc/subuid lends to {who}'s containers");
            DoctorCheck::warning(name, found, remedy())
        }
        None => DoctorCheck::fine(name, format!("{shown}, not used otherwise")),
    }
}

/// The first range of `count` uids that exist and are free.
fn free(known: &HostUidTables, count: u64) -> Option<Range<u64>> {
    let taken: Vec<Range<u64>> =
        known.user_ranges().chain(known.subordinate_ranges()).map(|(_, uids)| uids).collect();
    let after = taken.iter().map(|range| range.end);
    let mut starts: Vec<u64> =
        after.chain([FIRST_FREE_UID]).filter(|start| *start >= FIRST_FREE_UID).collect();
    starts.sort_unstable();
    let ranges = starts.into_iter().map(|start| start..start.saturating_add(count));
    let is_free = |range: &Range<u64>| !taken.iter().any(|t| t.start < range.end && range.start < t.end);
    ranges.filter(|range| range.end < u64::from(u32::MAX)).find(|range| is_free(range) && known.exist(range))
}

#[cfg(test)]
mod tests {
    use super::{super::CheckSeverity, *};

    fn known(passwd: &str, subuid: &str) -> HostUidTables {
        HostUidTables {
            passwd: format!("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:\ngarbled\n{passwd}"),
            subuid: subuid.to_owned(),
            map: Some("         0          0 4294967295\n".to_owned()),
        }
    }

    #[test]
    fn uids_of_existing_users_are_not_given_to_agents() {
        let range = 200_000..265_536;
        let free = judge_uids(&range, &known("", "me:100000:65536\n"));
        assert_eq!(free, DoctorCheck::fine("sandbox uids", "200000-265535, not used otherwise"));
        let person = judge_uids(&range, &known("anna:x:210000:100::/home/anna:/bin/sh", ""));
        assert_eq!(
            (person.level, person.remedy),
            (CheckSeverity::Problem, vec!["set ASH_SANDBOX_UIDS=210001-275536, which is unused".to_owned()])
        );
        let containers = judge_uids(&range, &known("", "a:100000:65536\nb:165536:65536\n"));
        assert_eq!(
            (containers.level, containers.remedy),
            (CheckSeverity::Warning, vec!["set ASH_SANDBOX_UIDS=231072-296607, which is unused".to_owned()])
        );
    }

    #[test]
    fn uids_that_do_not_exist_in_a_container_are_a_problem() {
        let map = Some("0 1000 1\n1 100000 65536\n".to_owned());
        let check = judge_uids(&(200_000..265_536), &HostUidTables { map, ..known("", "") });
        assert_eq!(check.level, CheckSeverity::Problem);
        assert_eq!(check.found, "200000-265535 do not exist in this container");
    }

    #[test]
    fn what_forbids_namespaces_matters_only_if_walls_cannot_be_built() {
        let open = UserNamespaceSysctls { most: Some(15_000), allowed: Some(1), restricted: Some(0) };
        assert_eq!(namespaces(&open, true).level, CheckSeverity::Fine);
        assert_eq!(namespaces(&UserNamespaceSysctls::default(), false).level, CheckSeverity::Fine);
        let none = UserNamespaceSysctls { most: Some(0), ..open.clone() };
        let debian = UserNamespaceSysctls { allowed: Some(0), ..open.clone() };
        let ubuntu = UserNamespaceSysctls { restricted: Some(1), ..open };
        for closed in [none, debian, ubuntu.clone()] {
            assert_eq!(namespaces(&closed, true).level, CheckSeverity::Fine);
            assert_eq!(namespaces(&closed, false).level, CheckSeverity::Problem);
        }
        assert!(
            namespaces(&ubuntu, false)
                .remedy
                .iter()
                .any(|line| line.contains("profile bwrap /usr/bin/bwrap"))
        );
    }

    #[test]
    fn versions_of_bubblewrap_are_distinguished() {
        let judge = |words: &str| judge_version(Path::new("/usr/bin/bwrap"), words);
        assert_eq!(judge("bubblewrap 0.12.0"), DoctorCheck::fine("bubblewrap", "/usr/bin/bwrap 0.12"));
        assert_eq!(
            (judge("bubblewrap 0.8.0").level, judge("bubblewrap 0.8.0").remedy.len()),
            (CheckSeverity::Fine, 1)
        );
        assert_eq!(judge("bubblewrap 0.4.1").level, CheckSeverity::Warning);
        assert_eq!(judge("").level, CheckSeverity::Warning);
    }

    #[test]
    fn a_program_in_another_place_is_linked_to_where_we_look() {
        let error = Error::Unavailable { why: "bubblewrap is not installed".into(), remedy: "Install it" };
        assert_eq!(
            missing(&error, None),
            DoctorCheck::problem("bubblewrap", "bubblewrap is not installed", "Install it")
        );
        let elsewhere = missing(&error, Some("/opt/bin/bwrap".into()));
        assert_eq!(elsewhere.remedy, ["sudo ln -s /opt/bin/bwrap /usr/local/bin/bwrap"]);
    }
}
