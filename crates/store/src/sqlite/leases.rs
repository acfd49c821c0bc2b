//! Who owns a workspace.

use super::{
    SqliteStore,
    columns::{number, unsigned},
};
use crate::{Error, Lease, LeaseClaim, LeaseHolder, LeaseStore, Result};
use ash_model::{Epoch, Timestamp, WorkspaceId};
use async_trait::async_trait;
use sqlx::{Row, SqliteConnection, SqlitePool, query};

#[async_trait]
impl LeaseStore for SqliteStore {
    /// The database is in this process, so its clock is this machine's wall clock.
    async fn now(&self) -> Result<Timestamp> {
        Ok(Timestamp::now())
    }

    async fn lease_holder(&self, workspace: WorkspaceId) -> Result<Option<LeaseHolder>> {
        lease_holder(&self.readers, workspace).await
    }

    async fn claim(&self, claim: LeaseClaim) -> Result<Lease> {
        self.writer.write(move |db| Box::pin(async move { take_over(db, &claim).await })).await
    }

    async fn raise_epoch(&self, workspace: WorkspaceId, epoch: Epoch) -> Result<()> {
        self.writer.write(move |db| Box::pin(async move { raise_epoch(db, workspace, epoch).await })).await
    }
}

async fn lease_holder(db: &SqlitePool, workspace: WorkspaceId) -> Result<Option<LeaseHolder>> {
    let row = query("SELECT node, epoch FROM workspaces WHERE id = ?")
        .bind(workspace.to_string())
        .fetch_optional(db)
        .await?;
    row.map(|row| Ok(LeaseHolder { node: row.try_get("node")?, epoch: Epoch(unsigned(&row, "epoch")?) }))
        .transpose()
}

async fn take_over(db: &mut SqliteConnection, claim: &LeaseClaim) -> Result<Lease> {
    let LeaseClaim { workspace, node, from } = claim;
    let epoch = claim.epoch();
    let done =
        query("UPDATE workspaces SET node = ?1, epoch = ?2 WHERE id = ?3 AND node = ?4 AND epoch = ?5")
            .bind(node)
            .bind(number(epoch.0)?)
            .bind(workspace.to_string())
            .bind(&from.node)
            .bind(number(from.epoch.0)?)
            .execute(db)
            .await?;
    if done.rows_affected() == 0 {
        return Err(Error::Stale);
    }
    Ok(Lease { workspace: *workspace, epoch })
}

async fn raise_epoch(db: &mut SqliteConnection, workspace: WorkspaceId, epoch: Epoch) -> Result<()> {
    let raised = query("UPDATE workspaces SET epoch = max(epoch, ?) WHERE id = ?");
    raised.bind(number(epoch.0)?).bind(workspace.to_string()).execute(db).await?;
    Ok(())
}
