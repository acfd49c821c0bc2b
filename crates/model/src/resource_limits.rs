//! Resource limits of a sandbox. Precedence: session, then agent (`ash.toml`), then server; never above the server's
//! maximum.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whole numbers. `None`: the next level decides. 0: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceLimits {
    /// Memory of all processes together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub memory_mb: Option<u64>,
    /// Percent of one processor for all processes together: 150 is one and a half.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub cpu_percent: Option<u64>,
    /// The number of processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_processes: Option<u64>,
    /// Open files of each process.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_open_files: Option<u64>,
    /// Disk space of the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub disk_mb: Option<u64>,
    /// The number of files, folders and links.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_files: Option<u64>,
    /// The duration of one turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub turn_seconds: Option<u64>,
    /// The sustained output rate of the processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub output_kb_per_second: Option<u64>,
}

/// Below this no sandbox would start.
const MIN_LIMITS: [(&str, u64); ResourceLimits::COUNT] = [
    ("memoryMb", 16),
    ("cpuPercent", 1),
    ("maxProcesses", 8),
    ("maxOpenFiles", 64),
    ("diskMb", 1),
    ("maxFiles", 10),
    ("turnSeconds", 1),
    ("outputKbPerSecond", 1),
];

/// A larger value is a mistake, and could overflow when counted in bytes.
const MAX_LIMIT: u64 = 1 << 40;

/// Why limits are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadResourceLimits {
    /// The number is outside the range that works.
    #[error("{name} must be 0 (no limit) or {least} to {MAX_LIMIT}")]
    Range {
        /// The limit's name in JSON.
        name: &'static str,
        /// The smallest number that works.
        least: u64,
    },
    /// The operator does not allow this much.
    #[error("{name} may be at most {most} on this server")]
    TooHigh {
        /// The limit's name in JSON.
        name: &'static str,
        /// The largest number that is allowed.
        most: u64,
    },
    /// There is no limit of this name.
    #[error("there is no limit {0:?}; there are: {names}", names = names())]
    Unknown(String),
    /// This part is not a name with a number.
    #[error("{0:?} is not NAME=NUMBER, as memoryMb=2048")]
    NotANumber(String),
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

fn names() -> String {
    ResourceLimits::NAMES.join(", ")
}

impl ResourceLimits {
    const COUNT: usize = 8;

    /// The names in JSON.
    pub const NAMES: [&str; ResourceLimits::COUNT] = {
        let mut names = [""; ResourceLimits::COUNT];
        let mut at = 0;
        while at < ResourceLimits::COUNT {
            names[at] = MIN_LIMITS[at].0;
            at += 1;
        }
        names
    };

    fn all(&self) -> [Option<u64>; ResourceLimits::COUNT] {
        [
            self.memory_mb,
            self.cpu_percent,
            self.max_processes,
            self.max_open_files,
            self.disk_mb,
            self.max_files,
            self.turn_seconds,
            self.output_kb_per_second,
        ]
    }

    fn of(all: [Option<u64>; ResourceLimits::COUNT]) -> ResourceLimits {
        let [
            memory_mb,
            cpu_percent,
            max_processes,
            max_open_files,
            disk_mb,
            max_files,
            turn_seconds,
            output_kb_per_second,
        ] = all;
        ResourceLimits {
            memory_mb,
            cpu_percent,
            max_processes,
            max_open_files,
            disk_mb,
            max_files,
            turn_seconds,
            output_kb_per_second,
        }
    }

    fn with(
        self,
        other: ResourceLimits,
        of: impl Fn(Option<u64>, Option<u64>) -> Option<u64>,
    ) -> ResourceLimits {
        let mut all = self.all();
        all.iter_mut().zip(other.all()).for_each(|(own, other)| *own = of(*own, other));
        ResourceLimits::of(all)
    }

    /// These limits, with those of `other` where these are `None`.
    #[must_use]
    pub fn with_fallback(self, other: ResourceLimits) -> ResourceLimits {
        self.with(other, Option::or)
    }

    /// These limits, but at most `most`.
    #[must_use]
    pub fn capped_by(self, most: ResourceLimits) -> ResourceLimits {
        let limited = |number: Option<u64>| number.filter(|number| *number > 0);
        self.with(most, |own, most| match (limited(own), limited(most)) {
            (Some(own), Some(most)) => Some(own.min(most)),
            (own, None) => own,
            (None, most) => most,
        })
    }

    /// These limits, reduced to what a server with the maximum `most` accepts. `None` stays `None`.
    #[must_use]
    pub fn cut_to(self, most: ResourceLimits) -> ResourceLimits {
        self.with(self.capped_by(most), |own, cut| own.map(|own| cut.unwrap_or(own)))
    }

    fn check(&self) -> Result<(), BadResourceLimits> {
        let wrong = |given: Option<u64>, least: u64| {
            given.is_some_and(|number| number != 0 && !(least..=MAX_LIMIT).contains(&number))
        };
        let found = MIN_LIMITS.into_iter().zip(self.all()).find(|((_, least), given)| wrong(*given, *least));
        found.map_or(Ok(()), |((name, least), _)| Err(BadResourceLimits::Range { name, least }))
    }

    /// Whether a server with the maximum `most` accepts these limits.
    pub fn check_within(&self, most: ResourceLimits) -> Result<(), BadResourceLimits> {
        let most = most.all().map(|most| most.filter(|most| *most > 0));
        let too_high = |(given, most): &(Option<u64>, Option<u64>)| {
            most.is_some_and(|most| given.is_some_and(|given| given == 0 || given > most))
        };
        let found =
            MIN_LIMITS.into_iter().zip(self.all().into_iter().zip(most)).find(|(_, pair)| too_high(pair));
        found.map_or(Ok(()), |((name, _), (_, most))| {
            Err(BadResourceLimits::TooHigh { name, most: most.unwrap_or(MAX_LIMIT) })
        })
    }

    /// Sets a limit by its name in JSON.
    pub fn set(&mut self, name: &str, number: Option<u64>) -> Result<(), BadResourceLimits> {
        let place = MIN_LIMITS.iter().position(|(known, _)| *known == name);
        let mut all = self.all();
        all[place.ok_or_else(|| BadResourceLimits::Unknown(shortened(name)))?] = number;
        *self = ResourceLimits::of(all);
        self.check()
    }

    /// Parses `memoryMb=2048,diskMb=10240`.
    pub fn parse(text: &str) -> Result<ResourceLimits, BadResourceLimits> {
        let mut bounds = ResourceLimits::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = || BadResourceLimits::NotANumber(shortened(part));
            let (name, number) = part.split_once('=').ok_or_else(wrong)?;
            bounds.set(name.trim(), Some(number.trim().parse().map_err(|_| wrong())?))?;
        }
        Ok(bounds)
    }
}

/// What a workspace has used so far, and its disk usage now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Processor time, in milliseconds.
    pub cpu_ms: u64,
    /// The peak memory of any of its sandboxes.
    pub peak_memory: u64,
    /// The disk space of its files now, in bytes.
    pub disk_bytes: u64,
    /// The number of files, folders and links now.
    pub files: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(text: &str) -> ResourceLimits {
        ResourceLimits::parse(text).expect("bounds")
    }

    #[test]
    fn a_session_overrides_its_agent_and_the_server_caps_both() {
        let server = bounds("memoryMb=2048,maxProcesses=512");
        let agent = bounds("memoryMb=4096,diskMb=100");
        let session = bounds("diskMb=0");
        let merged = session.with_fallback(agent).with_fallback(server);
        assert_eq!(merged, bounds("memoryMb=4096,maxProcesses=512,diskMb=0"));
        let most = bounds("memoryMb=3000,diskMb=500,turnSeconds=60");
        assert_eq!(
            merged.capped_by(most),
            ResourceLimits { turn_seconds: Some(60), ..bounds("memoryMb=3000,maxProcesses=512,diskMb=500") }
        );
        assert_eq!(bounds("diskMb=0").capped_by(ResourceLimits::default()).disk_mb, None);
    }

    #[test]
    fn limits_above_the_maximum_are_cut_and_unset_ones_stay_unset() {
        let most = bounds("memoryMb=3000,maxProcesses=100,diskMb=500,turnSeconds=0");
        let given = bounds("memoryMb=2048,maxProcesses=101,diskMb=0,turnSeconds=0,maxFiles=70");
        let cut = given.cut_to(most);
        assert_eq!(cut, bounds("memoryMb=2048,maxProcesses=100,diskMb=500,turnSeconds=0,maxFiles=70"));
        assert_eq!((cut.check_within(most), cut.cut_to(most)), (Ok(()), cut));
        assert_eq!(ResourceLimits::default().cut_to(most), ResourceLimits::default());
    }

    #[test]
    fn errors_in_limits_are_named() {
        let said = |text: &str| ResourceLimits::parse(text).expect_err(text).to_string();
        assert_eq!(said("memoryMb=1"), format!("memoryMb must be 0 (no limit) or 16 to {MAX_LIMIT}"));
        assert!(said("memory=64").contains("there are: memoryMb, cpuPercent"));
        assert!(said("memoryMb").contains("NAME=NUMBER") && said("diskMb=-1").contains("NAME=NUMBER"));
        let most = bounds("diskMb=500,memoryMb=0");
        assert_eq!(
            bounds("memoryMb=9999,diskMb=501").check_within(most).expect_err("more").to_string(),
            "diskMb may be at most 500 on this server"
        );
        assert!(
            bounds("diskMb=0").check_within(most).is_err() && bounds("diskMb=500").check_within(most).is_ok()
        );
    }

    #[test]
    fn it_is_stored_as_in_the_first_version() {
        let all = bounds(
            "memoryMb=64,cpuPercent=50,maxProcesses=32,maxOpenFiles=256,diskMb=10,maxFiles=100,turnSeconds=5,outputKbPerSecond=7",
        );
        let stored = r#"{"memoryMb":64,"cpuPercent":50,"maxProcesses":32,"maxOpenFiles":256,"diskMb":10,"maxFiles":100,"turnSeconds":5,"outputKbPerSecond":7}"#;
        assert_eq!(serde_json::to_string(&all).expect("json"), stored);
        assert_eq!(serde_json::from_str::<ResourceLimits>(stored).expect("read"), all);
        assert_eq!(serde_json::from_str::<ResourceLimits>("{}").expect("read"), ResourceLimits::default());
    }
}
