//! Can walls be built here, and if not, why not.

use super::Check;
use ash_sandbox::{Bubblewrap, Error};
use ash_server::{Config, Sandbox};
use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

/// The first release without GHSA-pxhw-h44j-8pfx.
const SAFE: (u32, u32) = (0, 12);
const OLDEST: (u32, u32) = (0, 8);
/// Below are people, services and the first ranges of containers.
const BEYOND: u64 = 200_000;
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn is_root() -> bool {
    // SAFETY: reads a number of this process, and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

pub(super) async fn check(config: &Config) -> Vec<Check> {
    if config.sandbox == Sandbox::None {
        return vec![Check::warning(
            "walls",
            "ASH_SANDBOX=none: agents run without walls, with all your rights",
            "unset ASH_SANDBOX",
        )];
    }
    let mut checks = match config.sandbox {
        Sandbox::Docker => docker(config).await,
        Sandbox::Bubblewrap | Sandbox::None => {
            let found = bubblewrap().await;
            let raised = raise().await;
            vec![found, namespaces(&Sysctls::read(), raised.is_ok()), judge_walls(raised)]
        }
    };
    if is_root() {
        checks.push(uids(&config.sandbox_uids.0));
    }
    checks
}

/// Whether the server would start with what its operator requires.
pub(super) fn required(config: &Config) -> Option<Check> {
    let (name, wanted) = ("required walls", config.walls_required.names());
    match ash_server::lacking(config, ash_sandbox::groups()) {
        Ok(()) if config.walls_required.is_nothing() => None,
        Ok(()) => Some(Check::fine(name, wanted)),
        Err(lacks) => {
            let (why, remedies): (Vec<_>, Vec<_>) = lacks.into_iter().unzip();
            Some(Check::problem(
                name,
                format!("the server does not start: {}", why.join("; ")),
                remedies.join("\n"),
            ))
        }
    }
}

/// The engine, its image, and a container as sessions get it.
async fn docker(config: &Config) -> Vec<Check> {
    let docker = own_program().and_then(|exe| config.docker(exe));
    let looked = match &docker {
        Ok(docker) => docker.look().await,
        Err(error) => return vec![Check::problem("docker", reason(error), remedy(error))],
    };
    match (docker, looked) {
        (Ok(docker), Ok(version)) => {
            let raised = tokio::time::timeout(PATIENCE, docker.try_out()).await;
            let raised = raised.unwrap_or(Err(Error::Late { what: "start" }));
            let found = format!("engine {version}, image {}", config.docker_image);
            vec![Check::fine("docker", found), judge_walls(raised)]
        }
        (Err(error), _) | (_, Err(error)) => vec![Check::problem("docker", reason(&error), remedy(&error))],
    }
}

async fn bubblewrap() -> Check {
    let program = match ash_sandbox::find_bubblewrap() {
        Ok(program) => program,
        Err(error) => return missing(&error, on_path("bwrap")),
    };
    let words = super::agents::words(&program, "--version").await;
    judge_version(&program, words.as_deref().unwrap_or_default())
}

pub(super) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

fn missing(error: &Error, elsewhere: Option<PathBuf>) -> Check {
    let Some(program) = elsewhere else {
        return Check::problem("bubblewrap", reason(error), remedy(error));
    };
    let found = format!("only at {}, where ash does not look", program.display());
    let link = format!("sudo ln -s {} /usr/local/bin/bwrap", program.display());
    Check::problem("bubblewrap", found, link)
}

fn judge_version(program: &Path, words: &str) -> Check {
    let Some(version) = words.split_whitespace().last().and_then(version) else {
        let found = format!("{} does not tell its version", program.display());
        return Check::warning(
            "bubblewrap",
            found,
            "install it anew: apt-get install --reinstall bubblewrap",
        );
    };
    let found = format!("{} {}.{}", program.display(), version.0, version.1);
    if version < OLDEST {
        let found = format!("{found}: older than 0.8, with which ash is tested");
        return Check::warning("bubblewrap", found, "update it; Debian 12 and Ubuntu 24.04 have newer ones");
    }
    if version < SAFE {
        let hint = "0.12 also fixes GHSA-pxhw-h44j-8pfx, if your distribution has not";
        return Check { remedy: vec![hint.to_owned()], ..Check::fine("bubblewrap", found) };
    }
    Check::fine("bubblewrap", found)
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// Walls as sessions get them, once up and down again.
async fn raise() -> Result<(), Error> {
    let gone = |_| Error::Late { what: "start" };
    tokio::time::timeout(PATIENCE, Bubblewrap::probe(own_program()?)).await.map_err(gone)?.map(drop)
}

fn own_program() -> Result<PathBuf, Error> {
    std::env::current_exe().map_err(|source| Error::File {
        what: "find",
        path: "/proc/self/exe".into(),
        source,
    })
}

fn judge_walls(raised: Result<(), Error>) -> Check {
    match raised {
        Ok(()) => Check::fine("walls", "a sandbox starts and ends"),
        Err(error) => Check::problem("walls", reason(&error), remedy(&error)),
    }
}

fn reason(error: &Error) -> String {
    match error {
        Error::NoWalls { why, .. } => why.clone(),
        other => other.to_string(),
    }
}

fn remedy(error: &Error) -> String {
    match error {
        Error::NoWalls { remedy, .. } => (*remedy).to_owned(),
        other => std::error::Error::source(other).map(ToString::to_string).unwrap_or_default(),
    }
}

/// What forbids user namespaces to ordinary users; `None` where the kernel has no such switch.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Sysctls {
    most: Option<u64>,
    /// Debian's.
    allowed: Option<u64>,
    /// Ubuntu's.
    restricted: Option<u64>,
}

impl Sysctls {
    fn read() -> Sysctls {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        Sysctls {
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

/// A switch that forbids them matters only if walls cannot be built: bubblewrap may have a way around it.
fn namespaces(sysctls: &Sysctls, walls_work: bool) -> Check {
    let name = "user namespaces";
    let forbidden = match sysctls {
        Sysctls { most: Some(0), .. } => Some((
            "forbidden: user.max_user_namespaces is 0",
            "sudo sysctl -w user.max_user_namespaces=15000 (and in /etc/sysctl.d, to keep it)",
        )),
        Sysctls { allowed: Some(0), .. } => Some((
            "forbidden: kernel.unprivileged_userns_clone is 0",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1 (and in /etc/sysctl.d, to keep it)",
        )),
        Sysctls { restricted: Some(1..), .. } => Some(("restricted by AppArmor", PROFILE)),
        Sysctls { .. } => None,
    };
    match (forbidden, walls_work) {
        (None, _) => Check::fine(name, "allowed"),
        (Some((why, _)), true) => Check::fine(name, format!("{why}, but not for bubblewrap")),
        (Some((why, remedy)), false) => Check::problem(name, why, remedy),
    }
}

fn uids(range: &Range<u32>) -> Check {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let known = Known {
        passwd: read("/etc/passwd"),
        subuid: read("/etc/subuid"),
        map: fs::read_to_string("/proc/self/uid_map").ok(),
    };
    judge_uids(range, &known)
}

/// Who has uids on this machine.
struct Known {
    passwd: String,
    subuid: String,
    /// Those that exist at all, in a container of an ordinary user.
    map: Option<String>,
}

impl Known {
    fn people(&self) -> impl Iterator<Item = (&str, Range<u64>)> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, uid) = (fields.next()?, fields.nth(1)?.parse::<u64>().ok()?);
            Some((name, uid..uid + 1))
        })
    }

    fn lent(&self) -> impl Iterator<Item = (&str, Range<u64>)> {
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

fn judge_uids(range: &Range<u32>, known: &Known) -> Check {
    let name = "sandbox uids";
    let wide = u64::from(range.start)..u64::from(range.end);
    let shown = format!("{}-{}", range.start, range.end.saturating_sub(1));
    let overlaps = |other: &Range<u64>| other.start < wide.end && wide.start < other.end;
    if !known.exist(&wide) {
        let remedy = "run ash as an ordinary user in this container, or set ASH_SANDBOX_UIDS to a range of it \
                      (/proc/self/uid_map)";
        return Check::problem(name, format!("{shown} do not exist in this container"), remedy);
    }
    let remedy = || match free(known, wide.end - wide.start) {
        Some(free) => format!("set ASH_SANDBOX_UIDS={}-{}, which nobody has", free.start, free.end - 1),
        None => "set ASH_SANDBOX_UIDS to a range that nobody has".to_owned(),
    };
    if let Some((who, _)) = known.people().find(|(_, uid)| overlaps(uid)) {
        let found = format!("{shown} holds the uid of {who}, who could read what agents write");
        return Check::problem(name, found, remedy());
    }
    match known.lent().find(|(_, lent)| overlaps(lent)) {
        Some((who, _)) => {
            let found = format!("{shown} overlaps the uids that /etc/subuid lends to {who}'s containers");
            Check::warning(name, found, remedy())
        }
        None => Check::fine(name, format!("{shown}, used by nobody else")),
    }
}

/// The first range of `count` uids that are free and exist.
fn free(known: &Known, count: u64) -> Option<Range<u64>> {
    let taken: Vec<Range<u64>> = known.people().chain(known.lent()).map(|(_, uids)| uids).collect();
    let after = taken.iter().map(|range| range.end);
    let mut starts: Vec<u64> = after.chain([BEYOND]).filter(|start| *start >= BEYOND).collect();
    starts.sort_unstable();
    let ranges = starts.into_iter().map(|start| start..start.saturating_add(count));
    let is_free = |range: &Range<u64>| !taken.iter().any(|t| t.start < range.end && range.start < t.end);
    ranges.filter(|range| range.end < u64::from(u32::MAX)).find(|range| is_free(range) && known.exist(range))
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    fn known(passwd: &str, subuid: &str) -> Known {
        Known {
            passwd: format!("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:\ngarbled\n{passwd}"),
            subuid: subuid.to_owned(),
            map: Some("         0          0 4294967295\n".to_owned()),
        }
    }

    #[test]
    fn uids_that_somebody_has_are_not_given_to_agents() {
        let range = 200_000..265_536;
        let free = judge_uids(&range, &known("", "me:100000:65536\n"));
        assert_eq!(free, Check::fine("sandbox uids", "200000-265535, used by nobody else"));
        let person = judge_uids(&range, &known("anna:x:210000:100::/home/anna:/bin/sh", ""));
        assert_eq!(
            (person.level, person.remedy),
            (Level::Problem, vec!["set ASH_SANDBOX_UIDS=210001-275536, which nobody has".to_owned()])
        );
        let containers = judge_uids(&range, &known("", "a:100000:65536\nb:165536:65536\n"));
        assert_eq!(
            (containers.level, containers.remedy),
            (Level::Warning, vec!["set ASH_SANDBOX_UIDS=231072-296607, which nobody has".to_owned()])
        );
    }

    #[test]
    fn uids_that_do_not_exist_in_a_container_are_a_problem() {
        let map = Some("0 1000 1\n1 100000 65536\n".to_owned());
        let check = judge_uids(&(200_000..265_536), &Known { map, ..known("", "") });
        assert_eq!(check.level, Level::Problem);
        assert_eq!(check.found, "200000-265535 do not exist in this container");
    }

    #[test]
    fn what_forbids_namespaces_matters_only_if_walls_cannot_be_built() {
        let open = Sysctls { most: Some(15_000), allowed: Some(1), restricted: Some(0) };
        assert_eq!(namespaces(&open, true).level, Level::Fine);
        assert_eq!(namespaces(&Sysctls::default(), false).level, Level::Fine);
        let none = Sysctls { most: Some(0), ..open.clone() };
        let debian = Sysctls { allowed: Some(0), ..open.clone() };
        let ubuntu = Sysctls { restricted: Some(1), ..open };
        for closed in [none, debian, ubuntu.clone()] {
            assert_eq!(namespaces(&closed, true).level, Level::Fine);
            assert_eq!(namespaces(&closed, false).level, Level::Problem);
        }
        assert!(
            namespaces(&ubuntu, false)
                .remedy
                .iter()
                .any(|line| line.contains("profile bwrap /usr/bin/bwrap"))
        );
    }

    #[test]
    fn versions_of_bubblewrap_are_told_apart() {
        let judge = |words: &str| judge_version(Path::new("/usr/bin/bwrap"), words);
        assert_eq!(judge("bubblewrap 0.12.0"), Check::fine("bubblewrap", "/usr/bin/bwrap 0.12"));
        assert_eq!(
            (judge("bubblewrap 0.8.0").level, judge("bubblewrap 0.8.0").remedy.len()),
            (Level::Fine, 1)
        );
        assert_eq!(judge("bubblewrap 0.4.1").level, Level::Warning);
        assert_eq!(judge("").level, Level::Warning);
    }

    #[test]
    fn a_program_in_another_place_is_linked_to_where_we_look() {
        let error = Error::NoWalls { why: "bubblewrap is not installed".into(), remedy: "Install it" };
        assert_eq!(
            missing(&error, None),
            Check::problem("bubblewrap", "bubblewrap is not installed", "Install it")
        );
        let elsewhere = missing(&error, Some("/opt/bin/bwrap".into()));
        assert_eq!(elsewhere.remedy, ["sudo ln -s /opt/bin/bwrap /usr/local/bin/bwrap"]);
    }
}
