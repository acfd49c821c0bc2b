//! What the server that embeds these sessions learns of them, to count it.

use ash_model::{Receipt, SavedCheckpoint, UsageIncrement};
use ash_snapshot::GcReport;
use std::time::Duration;

/// Receives notice of events so that they can be counted. The caller decides the names of the metrics.
pub trait SessionObserver: Send + Sync {
    fn resumed(&self, receipt: &Receipt, took: Duration);
    /// A session took over a sandbox that was made in advance.
    fn claimed(&self);
    /// A session lost its sandbox to another session.
    fn evicted(&self);
    fn saved(&self, saved: &SavedCheckpoint, took: Duration);
    fn save_failed(&self);
    fn turn_over(&self);
    fn used(&self, used: &UsageIncrement);
    fn swept(&self, swept: &SweepReport, took: Duration);
    fn sweep_failed(&self);
}

/// What was deleted, in one tenant's repository or in all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepReport {
    pub checkpoints: u64,
    pub packs: GcReport,
    /// The size of what is left.
    pub size: u64,
}

impl SweepReport {
    pub(crate) fn add(&mut self, other: SweepReport) {
        let GcReport { removed, unneeded, rewritten, evicted, kept, freed } = other.packs;
        self.checkpoints += other.checkpoints;
        self.packs.removed.extend(removed);
        self.packs.unneeded.extend(unneeded);
        self.packs.rewritten.extend(rewritten);
        self.packs.evicted += evicted;
        self.packs.kept += kept;
        self.packs.freed += freed;
        self.size += other.size;
    }
}
