//! Comparisons of the database with its witnesses, on request of the server and of `ash repair`.

use super::Sessions;
use crate::{DatabaseComparison, RepairMode, RepairedSession, Result};
use ash_model::WorkspaceId;

impl Sessions {
    /// Compares the database with its witnesses, reports what is wrong, and clears reports that are over.
    pub async fn compare_witnesses(&self) -> Result<DatabaseComparison> {
        self.services.compare_witnesses().await
    }

    /// Checks whether SQLite can read all of its own pages.
    pub async fn check_database(&self) {
        self.services.check_database().await;
    }

    /// Brings back everything that a witness knows better. Run it only while no server is running.
    pub async fn repair(&self, how: RepairMode) -> Result<(Vec<RepairedSession>, Vec<WorkspaceId>)> {
        self.services.repair(how).await
    }
}
