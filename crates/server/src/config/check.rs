//! Rejects settings with which the server would start but not work. It reports all of them together before anything is
//! opened, each with its variable, the accepted values, and a remedy.

use super::{ServerConfig, is_named, is_set};
use ash_sandbox::EgressPolicy;
use secrecy::{ExposeSecret, SecretString};
use std::{fs, ops::RangeInclusive, os::unix::fs::PermissionsExt, path::Path, time::Duration};

/// A hundred years. Time arithmetic works up to this, and overflows far beyond it.
const MAX_SECONDS: u64 = 3_153_600_000;
/// Still fits into 64 bits when converted to bytes.
const MAX_MIB: u64 = 1 << 40;
/// A thousand times the rate of the fastest line.
const MAX_MBIT: u64 = 1_000_000_000;

/// Resources of the machine, which settings must not exceed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostResources {
    pub(crate) memory_mb: u64,
    pub(crate) disk_mb: u64,
    pub(crate) is_root: bool,
}

impl HostResources {
    /// `data` exists. A value that cannot be read causes no refusal.
    pub(crate) fn detect(data: &Path) -> HostResources {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let disk = rustix::fs::statvfs(data).map(|disk| disk.f_blocks.saturating_mul(disk.f_frsize) >> 20);
        HostResources {
            memory_mb: total_mb(&meminfo).unwrap_or(u64::MAX),
            disk_mb: disk.unwrap_or(u64::MAX),
            is_root: rustix::process::geteuid().is_root(),
        }
    }
}

fn total_mb(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? >> 10)
}

/// A numeric setting with its valid range.
struct NumericSetting {
    name: &'static str,
    given: u64,
    valid: RangeInclusive<u64>,
    unit: &'static str,
    too_low: &'static str,
    too_high: String,
}

impl NumericSetting {
    fn new(name: &'static str, given: impl TryInto<u64>) -> NumericSetting {
        let given = given.try_into().unwrap_or(u64::MAX);
        NumericSetting { name, given, valid: 0..=u64::MAX, unit: "", too_low: "", too_high: String::new() }
    }

    fn seconds(name: &'static str, given: Duration) -> NumericSetting {
        let number = NumericSetting { unit: " seconds", ..NumericSetting::new(name, given.as_secs()) };
        number.at_most(MAX_SECONDS, "that is more than a hundred years".to_owned())
    }

    fn at_least(self, least: u64, too_low: &'static str) -> NumericSetting {
        NumericSetting { valid: least..=*self.valid.end(), too_low, ..self }
    }

    fn at_most(self, most: u64, too_high: String) -> NumericSetting {
        NumericSetting { valid: *self.valid.start()..=most, too_high, ..self }
    }

    fn problem(&self) -> Option<String> {
        let NumericSetting { name, given, valid, unit, too_low, too_high } = self;
        let why = match () {
            () if given < valid.start() => *too_low,
            () if given > valid.end() => too_high,
            () => return None,
        };
        let range = match (valid.start(), *valid.end()) {
            (least, u64::MAX) => format!("{least} or more"),
            (least, most) => format!("{least} to {most}"),
        };
        Some(format!("{name} is {given}: {why}. Set it to {range}{unit}, or leave it out for the default"))
    }
}

impl ServerConfig {
    /// All problems, one per line.
    pub(crate) fn check(&self, machine: &HostResources) -> Result<(), String> {
        let numbers = self.numbers(machine).into_iter().chain(self.durations());
        let problems: Vec<String> = numbers
            .filter_map(|number| number.problem())
            .chain(self.prewarm_memory())
            .chain(self.keeps_no_checkpoints())
            .chain(self.unusable_keys())
            .chain(self.base_url())
            .chain(self.list_settings())
            .chain(self.path_settings())
            .collect();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(format!("with these settings it would be of no use:\n  {}", problems.join("\n  "))),
        }
    }

    fn numbers(&self, machine: &HostResources) -> Vec<NumericSetting> {
        let uids = self.sandbox_uids.0.len() as u64;
        let takes_uids = machine.is_root && self.sandbox != super::SandboxSetting::None;
        let sandboxes = NumericSetting::new("ASH_MAX_SANDBOXES", self.max_sandboxes);
        let sandboxes = sandboxes.at_least(1, "no session could run");
        let sandboxes = match takes_uids {
            true => sandboxes.at_most(uids, format!("ASH_SANDBOX_UIDS has a uid for {uids} of them")),
            false => sandboxes,
        };
        let memory = NumericSetting::new("ASH_MIN_MEMORY_MB", self.min_memory_mb);
        let disk = NumericSetting::new("ASH_MIN_FREE_MB", self.min_free_mb);
        let (has_memory, has_disk) = (machine.memory_mb, machine.disk_mb);
        vec![
            sandboxes,
            memory.at_most(
                has_memory,
                format!("this machine has {has_memory} MiB of memory, and no sandbox would be begun"),
            ),
            disk.at_most(
                has_disk,
                format!("the disk of the data directory has {has_disk} MiB, and nothing would be begun"),
            ),
            NumericSetting::new("ASH_SNAPSHOT_CACHE_MB", self.snapshot_cache_mb)
                .at_most(MAX_MIB, "no disk has that many".to_owned()),
            NumericSetting::new("ASH_REMOTE_MBIT", self.remote_mbit)
                .at_most(MAX_MBIT, "no line carries that much; 0 is as fast as it goes".to_owned()),
            NumericSetting::new("ASH_MAX_CONNECTIONS", self.max_connections)
                .at_least(1, "nobody could connect"),
            NumericSetting::new("ASH_MAX_STREAMS", self.max_streams)
                .at_least(1, "nobody could read an answer to a message"),
        ]
    }

    fn durations(&self) -> Vec<NumericSetting> {
        vec![
            NumericSetting::seconds("ASH_SETUP_MAX_SECONDS", self.setup_max_seconds)
                .at_least(1, "every script of an agent would be given up at once"),
            NumericSetting::seconds("ASH_REMOTE_TIMEOUT", self.remote_timeout)
                .at_least(1, "no turn could wait for the object store"),
            NumericSetting::seconds("ASH_CLIENT_TIMEOUT", self.client_timeout)
                .at_least(1, "every client would be given up at once"),
            NumericSetting::seconds("ASH_QUEUE_WAIT", self.queue_wait),
            NumericSetting::seconds("ASH_ORPHAN_TTL", self.orphan_ttl),
            NumericSetting::seconds("ASH_STOP_GRACE", self.stop_grace),
            NumericSetting::seconds("ASH_INTERRUPT_GRACE", self.interrupt_grace),
            NumericSetting::seconds("ASH_PERMISSION_TIMEOUT", self.permission_timeout),
            NumericSetting::seconds("ASH_MAX_WAIT", self.max_wait),
            NumericSetting::seconds("ASH_IDLE_TIMEOUT", self.idle_timeout),
            NumericSetting::seconds("ASH_CHECKPOINT_EVERY", self.checkpoint_every),
            NumericSetting::seconds("ASH_GC_EVERY", self.gc_every),
            NumericSetting::seconds("ASH_GC_GRACE", self.gc_grace),
            NumericSetting::seconds("ASH_COLD_TTL", self.cold_ttl),
            NumericSetting::seconds("ASH_TRASH_TTL", self.trash_ttl),
            NumericSetting::seconds("ASH_REMOTE_GC_EVERY", self.remote_gc_every),
            NumericSetting::seconds("ASH_REMOTE_CHECK_EVERY", self.remote_check_every),
        ]
    }

    /// By the same rule as `memoryMb` of ASH_LIMITS.
    fn prewarm_memory(&self) -> Option<String> {
        let given = self.sandbox_memory_mb;
        let wrong = ash_model::ResourceLimits::parse(&format!("memoryMb={given}")).err()?;
        Some(format!("ASH_SANDBOX_MEMORY_MB is {given}, in which no agent starts: {wrong}"))
    }

    fn keeps_no_checkpoints(&self) -> Option<String> {
        let none = [self.keep_last, self.keep_hourly, self.keep_daily].iter().all(|number| *number == 0);
        none.then(|| {
            "ASH_KEEP_LAST, ASH_KEEP_HOURLY and ASH_KEEP_DAILY are all 0: there would be no checkpoint to go back to. Set one of them to 1 or more, or leave them out for the defaults".to_owned()
        })
    }

    /// A key that no client can send would lock out every client, without an error message.
    fn unusable_keys(&self) -> Vec<String> {
        let word = |c: char| c.is_ascii_graphic();
        let line = |c: char| c.is_ascii_graphic() || c == ' ';
        let problem = |name: &str, key: &Option<SecretString>, fine: &dyn Fn(char) -> bool| {
            let key = key.as_ref().filter(|key| is_set(key))?;
            (!key.expose_secret().chars().all(fine)).then(|| {
                format!(
                    "{name} has a space, a line end or another character that no header can have: set it to printable ASCII without spaces, as `openssl rand -hex 24` makes it"
                )
            })
        };
        let keys = [
            problem("ASH_API_KEY", &self.api_key, &word),
            problem("ASH_INTERNAL_SECRET", &self.internal_secret, &word),
            problem("ANTHROPIC_API_KEY", &self.anthropic_api_key, &line),
            problem("CLAUDE_CODE_OAUTH_TOKEN", &self.claude_oauth_token, &line),
        ];
        keys.into_iter().flatten().collect()
    }

    fn base_url(&self) -> Option<String> {
        // Without the key, which has its own check.
        let way = EgressPolicy { headers: Default::default(), ..self.egress()? };
        let wrong = way.check().err()?;
        Some(format!(
            "ANTHROPIC_BASE_URL is {:?}: {wrong}. Set it to https://HOST, http://127.0.0.1:PORT or unix:/PATH, or leave it out for the default",
            way.upstream
        ))
    }

    fn list_settings(&self) -> Vec<String> {
        let origins = wrong_items("ALLOWED_ORIGINS", &self.allowed_origins, origin);
        let hosts = wrong_items("ASH_ALLOWED_HOSTS", &self.allowed_hosts, host);
        origins
            .into_iter()
            .chain(hosts)
            .chain(wrong_items("ASH_PROVIDER_URLS", &self.provider_urls, url))
            .collect()
    }

    fn path_settings(&self) -> Vec<String> {
        let dirs = self.agent_dirs();
        // A missing directory is accepted if another one exists: it may be a mount that comes later.
        let is_one_there = dirs.iter().any(|dir| dir.is_dir());
        let dirs = dirs.into_iter().filter_map(|dir| {
            let why = match () {
                () if !dir.is_absolute() => "is not absolute: name it from / on",
                () if dir.is_dir() || (is_one_there && !dir.exists()) => return None,
                () => "is no directory: make it, or name another one",
            };
            Some(format!("ASH_AGENT_DIRS has {dir:?}, which {why}"))
        });
        let keys = self.snapshot_keys().filter(|dir| dir.exists() && !dir.is_dir()).map(|dir| {
            format!(
                "ASH_SNAPSHOT_KEYS is {dir:?}, which is no directory: name one, or one that is to be made"
            )
        });
        let program = self.claude_bin.iter().filter(|file| is_named(file) && !is_program(file));
        let program = program.map(|file| {
            format!(
                "ASH_CLAUDE_BIN is {file:?}, which is no program: set it to the path of Claude Code's, or leave it out for `claude` on the PATH"
            )
        });
        dirs.chain(keys).chain(program).collect()
    }
}

fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// An empty variable, as compose files leave it, is an empty list.
fn wrong_items(name: &str, list: &[String], judge: fn(&str) -> Result<(), String>) -> Vec<String> {
    let items = list.iter().map(|item| item.trim()).filter(|item| list.len() > 1 || !item.is_empty());
    let judged = items.filter_map(|item| match item {
        "" => Some(format!("{name} has an empty item: take out the comma that is too much")),
        item => judge(item).err().map(|why| format!("{name} has {item:?}: {why}")),
    });
    judged.collect()
}

/// Browsers send an origin in exactly one form, and the server compares it as text.
fn origin(item: &str) -> Result<(), String> {
    let other_scheme = || {
        let (scheme, rest) = item.split_once("://").unwrap_or_default();
        let is_plain = |text: &str, more: &str| {
            let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c);
            !text.is_empty() && text.chars().all(fine)
        };
        is_plain(scheme, "+-.") && is_plain(rest, "+-._:[]")
    };
    match ash_sandbox::origin_of(item) {
        _ if matches!(item, "*" | "null") => Ok(()),
        Some((sent, _)) if sent == item => Ok(()),
        Some((sent, _)) => Err(format!("browsers send {sent}; write it so")),
        None if other_scheme() => Ok(()),
        None => Err("write an origin as https://app.example.com, or * for all".to_owned()),
    }
}

fn host(item: &str) -> Result<(), String> {
    let (name, port) = item.rsplit_once(':').unwrap_or((item, "0"));
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let is_address = item.starts_with('[') && item.contains(']');
    match is_address || (is_name && port.parse::<u16>().is_ok()) {
        true => Ok(()),
        false => Err("write the name alone, as ash.example.com; there are no patterns".to_owned()),
    }
}

fn url(item: &str) -> Result<(), String> {
    let is_http = ["http://", "https://"].iter().any(|scheme| item.starts_with(scheme));
    match is_http && ash_sandbox::origin_of(item).is_some() {
        true => Ok(()),
        false => Err("write a URL as https://gateway.example.com/team".to_owned()),
    }
}

#[cfg(test)]
mod tests;
