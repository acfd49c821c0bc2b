//! The metrics of the server, with their names.

use ash_model::{
    Receipt, ResourceUsage, ResumePath, ResumeSource, SavedCheckpoint, UsageIncrement, nano_to_usd,
};
use ash_session::{PoolCounts, SessionObserver, SweepReport};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::{
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResumePathLabel {
    path: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResumeSourceLabel {
    source: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolStateLabel {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RemoteOperationLabel {
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TokenKindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TransferDirectionLabel {
    direction: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CoordinatorLabel {
    coordinator: String,
}

/// Seconds, from a millisecond to a minute.
fn seconds() -> Histogram {
    Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0])
}

pub(crate) struct ServerMetrics {
    registry: Registry,
    began: Instant,
    coordinator: String,
    resumes: Family<ResumePathLabel, Counter>,
    cold_resumes: Family<ResumeSourceLabel, Counter>,
    turns: Counter,
    tokens: Family<TokenKindLabel, Counter>,
    cost: Counter<f64, AtomicU64>,
    checkpoints: Counter,
    checkpoint_bytes: Counter<u64, AtomicU64>,
    failed_checkpoints: Counter,
    resume_seconds: Histogram,
    checkpoint_seconds: Histogram,
    sweeps: Counter,
    failed_sweeps: Counter,
    swept_checkpoints: Counter,
    swept_bytes: Counter<u64, AtomicU64>,
    sweep_seconds: Histogram,
    repository_bytes: Gauge,
    pub(crate) request_seconds: Histogram,
    uptime: Gauge,
    sessions: Gauge,
    sandboxes: Gauge,
    pool: Family<PoolStateLabel, Gauge>,
    capacity: Gauge,
    queued: Gauge,
    evictions: Counter,
    longest_poll: Gauge<f64, AtomicU64>,
    cpu_seconds: Gauge<f64, AtomicU64>,
    peak_memory: Gauge,
    disk_bytes: Gauge,
    remote_waiting: Gauge,
    remote_lag: Gauge,
    remote_trouble: Gauge,
    remote_requests: Family<RemoteOperationLabel, Gauge>,
    remote_bytes: Family<TransferDirectionLabel, Gauge>,
}

impl ServerMetrics {
    pub(crate) fn new(coordinator: String) -> Arc<ServerMetrics> {
        let mut metrics = ServerMetrics {
            registry: Registry::default(),
            began: Instant::now(),
            coordinator,
            resumes: Family::default(),
            cold_resumes: Family::default(),
            turns: Counter::default(),
            tokens: Family::default(),
            cost: Counter::default(),
            checkpoints: Counter::default(),
            checkpoint_bytes: Counter::default(),
            failed_checkpoints: Counter::default(),
            resume_seconds: seconds(),
            checkpoint_seconds: seconds(),
            sweeps: Counter::default(),
            failed_sweeps: Counter::default(),
            swept_checkpoints: Counter::default(),
            swept_bytes: Counter::default(),
            sweep_seconds: seconds(),
            repository_bytes: Gauge::default(),
            request_seconds: seconds(),
            uptime: Gauge::default(),
            sessions: Gauge::default(),
            sandboxes: Gauge::default(),
            pool: Family::default(),
            capacity: Gauge::default(),
            queued: Gauge::default(),
            evictions: Counter::default(),
            longest_poll: Gauge::default(),
            cpu_seconds: Gauge::default(),
            peak_memory: Gauge::default(),
            disk_bytes: Gauge::default(),
            remote_waiting: Gauge::default(),
            remote_lag: Gauge::default(),
            remote_trouble: Gauge::default(),
            remote_requests: Family::default(),
            remote_bytes: Family::default(),
        };
        metrics.register();
        Arc::new(metrics)
    }

    fn register(&mut self) {
        let up: Family<CoordinatorLabel, Gauge> = Family::default();
        up.get_or_create(&CoordinatorLabel { coordinator: self.coordinator.clone() }).set(1);
        let to = &mut self.registry;
        to.register("ash_up", "1 while the server runs", up);
        to.register("ash_uptime_seconds", "Seconds since the server started", self.uptime.clone());
        to.register("ash_active_sessions", "Active sessions", self.sessions.clone());
        to.register("ash_active_sandboxes", "Running sandboxes", self.sandboxes.clone());
        to.register("ash_pool_sandboxes", "Sandboxes by state", self.pool.clone());
        to.register("ash_pool_max_capacity", "Maximum number of sandboxes", self.capacity.clone());
        to.register("ash_pool_queued", "Requests that wait for a sandbox", self.queued.clone());
        to.register("ash_pool_evictions", "Sandboxes evicted for other sessions", self.evictions.clone());
        to.register("ash_resume", "Sessions resumed", self.resumes.clone());
        to.register("ash_resume_cold", "Cold resumes by source of the files", self.cold_resumes.clone());
        to.register("ash_turns", "Finished turns", self.turns.clone());
        to.register("ash_tokens", "Tokens used by answers of models", self.tokens.clone());
        to.register(
            "ash_cost_usd",
            "Cost of these tokens in dollars, for models with a price",
            self.cost.clone(),
        );
        to.register("ash_checkpoints", "Recorded checkpoints", self.checkpoints.clone());
        to.register("ash_checkpoint_bytes", "Bytes in recorded checkpoints", self.checkpoint_bytes.clone());
        to.register("ash_checkpoint_failures", "Failed captures", self.failed_checkpoints.clone());
        to.register("ash_resume_seconds", "Time to resume", self.resume_seconds.clone());
        to.register("ash_checkpoint_seconds", "Time to capture a workspace", self.checkpoint_seconds.clone());
        to.register("ash_gc_runs", "Garbage collections of all repositories", self.sweeps.clone());
        to.register("ash_gc_failures", "Failed garbage collections", self.failed_sweeps.clone());
        to.register(
            "ash_gc_checkpoints",
            "Checkpoints removed by retention rules",
            self.swept_checkpoints.clone(),
        );
        to.register("ash_gc_freed_bytes", "Bytes freed by garbage collections", self.swept_bytes.clone());
        to.register(
            "ash_gc_seconds",
            "Time of a garbage collection of all repositories",
            self.sweep_seconds.clone(),
        );
        to.register(
            "ash_repository_bytes",
            "Size of all repositories after the last garbage collection",
            self.repository_bytes.clone(),
        );
        to.register("ash_http_request_seconds", "Time to answer a request", self.request_seconds.clone());
        to.register(
            "ash_longest_stretch_seconds",
            "Longest time that a request thread ran without yielding, in CPU seconds",
            self.longest_poll.clone(),
        );
        to.register(
            "ash_sandbox_cpu_seconds",
            "CPU time of the sandboxes of all existing workspaces",
            self.cpu_seconds.clone(),
        );
        to.register(
            "ash_sandbox_peak_memory_bytes",
            "Peak memory of a single sandbox",
            self.peak_memory.clone(),
        );
        to.register(
            "ash_workspace_disk_bytes",
            "Disk space of the files of all workspaces at the last measurement",
            self.disk_bytes.clone(),
        );
        to.register(
            "ash_remote_waiting_checkpoints",
            "Checkpoints that the object store does not have yet",
            self.remote_waiting.clone(),
        );
        to.register(
            "ash_remote_lag_seconds",
            "Age of the oldest checkpoint that the object store does not have yet",
            self.remote_lag.clone(),
        );
        to.register(
            "ash_remote_trouble",
            "1 while the object store does not accept uploads",
            self.remote_trouble.clone(),
        );
        to.register(
            "ash_remote_requests",
            "Requests to the object store since the start",
            self.remote_requests.clone(),
        );
        to.register(
            "ash_remote_bytes",
            "Bytes to and from the object store since the start",
            self.remote_bytes.clone(),
        );
        for path in ["warm", "cold", "prewarm"] {
            drop(self.resumes.get_or_create(&ResumePathLabel { path }));
        }
        for source in ["local", "cloud", "fresh"] {
            drop(self.cold_resumes.get_or_create(&ResumeSourceLabel { source }));
        }
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn coordinator(&self) -> &str {
        &self.coordinator
    }

    pub(crate) fn resume_hits(&self, path: &'static str) -> u64 {
        self.resumes.get_or_create(&ResumePathLabel { path }).get()
    }

    pub(crate) fn set_queued(&self, count: usize) {
        self.queued.set(count as i64);
    }

    pub(crate) fn set_resource_usage(&self, taken: &ResourceUsage) {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.cpu_seconds.set(taken.cpu_ms as f64 / 1000.0);
        self.peak_memory.set(number(taken.peak_memory));
        self.disk_bytes.set(number(taken.disk_bytes));
    }

    pub(crate) fn set_remote(&self, waiting: u64, lag: i64, trouble: bool, tally: &ash_cloud::BucketTraffic) {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.remote_waiting.set(number(waiting));
        self.remote_lag.set(lag);
        self.remote_trouble.set(i64::from(trouble));
        let operations = [
            ("put", tally.put),
            ("part", tally.part),
            ("get", tally.get),
            ("head", tally.head),
            ("list", tally.list),
            ("delete", tally.delete),
            ("again", tally.retries),
        ];
        for (operation, count) in operations {
            self.remote_requests.get_or_create(&RemoteOperationLabel { operation }).set(number(count));
        }
        for (direction, count) in [("up", tally.bytes_up), ("down", tally.bytes_down)] {
            self.remote_bytes.get_or_create(&TransferDirectionLabel { direction }).set(number(count));
        }
    }

    pub(crate) fn encode(&self, counts: PoolCounts, active: u64, capacity: usize) -> String {
        self.uptime.set(i64::try_from(self.uptime().as_secs()).unwrap_or(i64::MAX));
        self.sessions.set(i64::try_from(active).unwrap_or(i64::MAX));
        self.longest_poll.set(crate::poll_time::longest_poll().as_secs_f64());
        self.capacity.set(i64::try_from(capacity).unwrap_or(i64::MAX));
        self.sandboxes.set((counts.waiting + counts.running) as i64);
        let states = [
            ("cold", counts.cold),
            ("warming", counts.warming),
            ("warm", counts.warm),
            ("waiting", counts.waiting),
            ("running", counts.running),
        ];
        for (state, count) in states {
            self.pool.get_or_create(&PoolStateLabel { state }).set(count as i64);
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        encode(&mut text, &self.registry).ok();
        text
    }
}

impl SessionObserver for ServerMetrics {
    fn resumed(&self, receipt: &Receipt, took: Duration) {
        let path = match receipt.path {
            ResumePath::Warm => "warm",
            ResumePath::Cold => "cold",
        };
        self.resumes.get_or_create(&ResumePathLabel { path }).inc();
        if receipt.path == ResumePath::Cold {
            let source = match receipt.source {
                ResumeSource::Local => "local",
                ResumeSource::Cloud => "cloud",
                ResumeSource::Fresh => "fresh",
            };
            self.cold_resumes.get_or_create(&ResumeSourceLabel { source }).inc();
        }
        self.resume_seconds.observe(took.as_secs_f64());
    }

    fn claimed(&self) {
        self.resumes.get_or_create(&ResumePathLabel { path: "prewarm" }).inc();
    }

    fn evicted(&self) {
        self.evictions.inc();
    }

    fn used(&self, used: &UsageIncrement) {
        let kinds = [
            ("input", used.usage.input_tokens),
            ("output", used.usage.output_tokens),
            ("cache_write", used.usage.cache_creation_tokens),
            ("cache_read", used.usage.cache_read_tokens),
        ];
        for (kind, tokens) in kinds {
            self.tokens.get_or_create(&TokenKindLabel { kind }).inc_by(tokens);
        }
        self.cost.inc_by(nano_to_usd(used.nano_usd.unwrap_or(0)));
    }

    fn saved(&self, saved: &SavedCheckpoint, took: Duration) {
        self.checkpoints.inc();
        self.checkpoint_bytes.inc_by(saved.bytes);
        self.checkpoint_seconds.observe(took.as_secs_f64());
    }

    fn save_failed(&self) {
        self.failed_checkpoints.inc();
    }

    fn turn_over(&self) {
        self.turns.inc();
    }

    fn swept(&self, swept: &SweepReport, took: Duration) {
        self.sweeps.inc();
        self.swept_checkpoints.inc_by(swept.checkpoints);
        self.swept_bytes.inc_by(swept.packs.freed);
        self.sweep_seconds.observe(took.as_secs_f64());
        self.repository_bytes.set(i64::try_from(swept.size).unwrap_or(i64::MAX));
    }

    fn sweep_failed(&self) {
        self.failed_sweeps.inc();
    }
}
