//! Checkpoints.

use super::{
    SqliteStore,
    audit::{self, SessionDeed},
    columns::{number, optional, parsed, unsigned},
};
use crate::{
    AuditAction, AuditActor, Checkpoint, CheckpointStore, Error, NewSessionRow, Result, TenantCheckpoint,
    TenantSnapshots, WorkspaceRewindRow,
};
use ash_model::{
    CaptureConsistency, SessionId, SessionRowId, TenantId, Timestamp, TurnId, WorkspaceId, WorkspaceRewind,
};
use async_trait::async_trait;
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};
use std::collections::BTreeMap;

#[async_trait]
impl CheckpointStore for SqliteStore {
    async fn checkpoint(&self, workspace: WorkspaceId, number: u64) -> Result<Option<Checkpoint>> {
        checkpoint(&self.readers, workspace, number).await
    }

    async fn checkpoints(
        &self,
        workspace: WorkspaceId,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Checkpoint>> {
        checkpoints(&self.readers, workspace, before, limit).await
    }

    async fn workspace_rewinds(&self, workspace: WorkspaceId, after: u64) -> Result<Vec<WorkspaceRewindRow>> {
        workspace_rewinds(&self.readers, workspace, after).await
    }

    async fn tenants(&self) -> Result<Vec<TenantId>> {
        tenants(&self.readers).await
    }

    async fn tenant_snapshots(&self, tenant: &TenantId) -> Result<TenantSnapshots> {
        tenant_snapshots(&self.readers, tenant).await
    }

    async fn remove_checkpoints(
        &self,
        workspace: WorkspaceId,
        numbers: &[u64],
        at: Timestamp,
    ) -> Result<u64> {
        let numbers = serde_json::to_string(numbers).expect("a list of numbers");
        self.writer
            .write(move |db| Box::pin(async move { remove_checkpoints(db, workspace, &numbers, at).await }))
            .await
    }
}

/// The name in the audit of the rules that delete the files of checkpoints.
const KEEP_RULE: &str = "keep";

async fn checkpoint(db: &SqlitePool, workspace: WorkspaceId, number: u64) -> Result<Option<Checkpoint>> {
    let row = query("SELECT * FROM checkpoints WHERE workspace = ? AND number = ?")
        .bind(workspace.to_string())
        .bind(number as i64)
        .fetch_optional(db)
        .await?;
    row.map(|row| checkpoint_row(&row, workspace)).transpose()
}

async fn checkpoints(
    db: &SqlitePool,
    workspace: WorkspaceId,
    before: Option<u64>,
    limit: u32,
) -> Result<Vec<Checkpoint>> {
    let before = before.and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX);
    let rows =
        query("SELECT * FROM checkpoints WHERE workspace = ? AND number < ? ORDER BY number DESC LIMIT ?")
            .bind(workspace.to_string())
            .bind(before)
            .bind(limit)
            .fetch_all(db)
            .await?;
    rows.iter().map(|row| checkpoint_row(row, workspace)).collect()
}

async fn workspace_rewinds(
    db: &SqlitePool,
    workspace: WorkspaceId,
    after: u64,
) -> Result<Vec<WorkspaceRewindRow>> {
    let rows = query(
        "SELECT c.number, c.back, c.at, s.id FROM checkpoints c
         LEFT JOIN sessions s ON s.n = c.session AND s.trashed_at IS NULL WHERE c.workspace = ? AND c.number > ? AND c.back IS NOT NULL ORDER BY c.number",
    );
    let rows =
        rows.bind(workspace.to_string()).bind(i64::try_from(after).unwrap_or(i64::MAX)).fetch_all(db).await?;
    rows.iter()
        .map(|row| {
            let by = optional(row, "id", |text| SessionId::parse(text).ok())?;
            let (checkpoint, to) = (unsigned(row, "number")?, unsigned(row, "back")?);
            let rewind = WorkspaceRewind { by, checkpoint, to };
            Ok(WorkspaceRewindRow { rewind, at: Timestamp(row.try_get("at")?) })
        })
        .collect()
}

async fn tenants(db: &SqlitePool) -> Result<Vec<TenantId>> {
    let rows = query("SELECT tenant FROM agents UNION SELECT tenant FROM workspaces ORDER BY tenant");
    rows.fetch_all(db)
        .await?
        .iter()
        .map(|row| parsed(row, "tenant", |text| TenantId::parse(text).ok()))
        .collect()
}

async fn tenant_snapshots(db: &SqlitePool, tenant: &TenantId) -> Result<TenantSnapshots> {
    let versions =
        query("SELECT v.tree FROM agent_versions v JOIN agents a ON a.n = v.agent WHERE a.tenant = ?");
    let versions = versions.bind(tenant.as_str()).fetch_all(db).await?;
    let rows = query(
        "SELECT c.*, EXISTS (SELECT 1 FROM sessions s WHERE s.workspace = c.workspace
             AND (s.checkpoint = c.number OR json_extract(s.options, '$.base') = c.number)) AS needed
         FROM workspaces w JOIN checkpoints c ON c.workspace = w.id WHERE w.tenant = ?
         ORDER BY c.workspace, c.number DESC",
    );
    let rows = rows.bind(tenant.as_str()).fetch_all(db).await?;
    let held = |row: &SqliteRow| -> Result<TenantCheckpoint> {
        let workspace = parsed(row, "workspace", WorkspaceId::parse)?;
        Ok(TenantCheckpoint { checkpoint: checkpoint_row(row, workspace)?, needed: row.try_get("needed")? })
    };
    Ok(TenantSnapshots {
        versions: versions.iter().map(|row| Ok(row.try_get("tree")?)).collect::<Result<_>>()?,
        checkpoints: rows.iter().map(held).collect::<Result<_>>()?,
    })
}

pub(super) fn checkpoint_row(row: &SqliteRow, workspace: WorkspaceId) -> Result<Checkpoint> {
    let count = |column: &'static str| -> Result<Option<u64>> {
        let number: Option<i64> = row.try_get(column)?;
        number.map(|_| unsigned(row, column)).transpose()
    };
    Ok(Checkpoint {
        workspace,
        number: unsigned(row, "number")?,
        turn: optional(row, "turn", TurnId::parse)?,
        seq: unsigned(row, "seq")?,
        tree: row.try_get("tree")?,
        consistency: parsed(row, "consistency", consistency)?,
        salvage: row.try_get("salvage")?,
        mid_turn: row.try_get("mid_turn")?,
        files: unsigned(row, "files")?,
        bytes: unsigned(row, "bytes")?,
        skipped: count("skipped")?,
        unsettled: count("unsettled")?,
        concurrent_turns: optional(row, "beside", |text| serde_json::from_str(text).ok())?
            .unwrap_or_default(),
        rewound_to: count("back")?,
        removed_at: row.try_get::<Option<i64>, _>("removed_at")?.map(Timestamp),
        uploaded_at: row.try_get::<Option<i64>, _>("far_at")?.map(Timestamp),
        at: Timestamp(row.try_get("at")?),
    })
}

fn consistency(text: &str) -> Option<CaptureConsistency> {
    match text {
        "frozen" => Some(CaptureConsistency::Frozen),
        "stopped" => Some(CaptureConsistency::Stopped),
        "live" => Some(CaptureConsistency::Live),
        _ => None,
    }
}

/// Adds a checkpoint unless it is there already.
pub(super) async fn save_new_checkpoint(
    db: &mut SqliteConnection,
    no: SessionRowId,
    c: &Checkpoint,
) -> Result<()> {
    let known = query("SELECT 1 FROM checkpoints WHERE workspace = ? AND number = ?");
    let known = known.bind(c.workspace.to_string()).bind(number(c.number)?).fetch_optional(&mut *db).await?;
    match known {
        Some(_) => Ok(()),
        None => save_checkpoint(db, no, c).await,
    }
}

pub(super) async fn save_checkpoint(
    db: &mut SqliteConnection,
    no: SessionRowId,
    c: &Checkpoint,
) -> Result<()> {
    let consistency = match c.consistency {
        CaptureConsistency::Frozen => "frozen",
        CaptureConsistency::Stopped => "stopped",
        CaptureConsistency::Live => "live",
    };
    query(
        "INSERT INTO checkpoints (workspace, number, session, turn, seq, tree, consistency, salvage, mid_turn, files,
             bytes, skipped, unsettled, at, far_at, removed_at, back, beside)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(c.workspace.to_string())
    .bind(number(c.number)?)
    .bind(no.0)
    .bind(c.turn.map(|t| t.to_string()))
    .bind(number(c.seq)?)
    .bind(&c.tree)
    .bind(consistency)
    .bind(c.salvage)
    .bind(c.mid_turn)
    .bind(number(c.files)?)
    .bind(number(c.bytes)?)
    .bind(c.skipped.map(number).transpose()?)
    .bind(c.unsettled.map(number).transpose()?)
    .bind(c.at.0)
    .bind(c.uploaded_at.map(|at| at.0))
    .bind(c.removed_at.map(|at| at.0))
    .bind(c.rewound_to.map(number).transpose()?)
    .bind((!c.concurrent_turns.is_empty()).then(|| serde_json::to_string(&c.concurrent_turns).expect("two ids each")))
    .execute(db)
    .await?;
    Ok(())
}

/// Refuses a step that bases the workspace on a checkpoint whose files were deleted.
pub(super) async fn refuse_removed(
    db: &mut SqliteConnection,
    workspace: WorkspaceId,
    checkpoint: Option<u64>,
) -> Result<()> {
    let Some(n) = checkpoint else { return Ok(()) };
    let gone =
        query("SELECT 1 FROM checkpoints WHERE workspace = ? AND number = ? AND removed_at IS NOT NULL");
    let gone = gone.bind(workspace.to_string()).bind(number(n)?).fetch_optional(db).await?;
    gone.map_or(Ok(()), |_| Err(Error::Removed(n)))
}

/// Refuses a fork from a checkpoint whose files were deleted after the caller had found it.
pub(super) async fn refuse_fork_of_removed(
    db: &mut SqliteConnection,
    new: &NewSessionRow,
    checkpoint: &Checkpoint,
) -> Result<()> {
    let Some(base) = new.base else { return Ok(()) };
    let row = query(
        "SELECT max(c.number) AS number FROM checkpoints c JOIN sessions s ON s.workspace = c.workspace
         WHERE s.n = ? AND c.tree = ? HAVING count(*) > 0 AND count(*) = count(c.removed_at)",
    );
    let row = row.bind(base.parent.0).bind(&checkpoint.tree).fetch_optional(db).await?;
    match row {
        Some(row) => Err(Error::Removed(row.try_get::<i64, _>("number")? as u64)),
        None => Ok(()),
    }
}

/// Marks the files of these checkpoints as deleted, except those that a session needs by now, and writes the audit entries.
async fn remove_checkpoints(
    db: &mut SqliteConnection,
    workspace: WorkspaceId,
    numbers: &str,
    at: Timestamp,
) -> Result<u64> {
    let done = query(
        "UPDATE checkpoints SET removed_at = ?1 WHERE workspace = ?2 AND removed_at IS NULL
           AND number IN (SELECT value FROM json_each(?3))
           AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.workspace = checkpoints.workspace
             AND (s.checkpoint = checkpoints.number OR json_extract(s.options, '$.base') = checkpoints.number))
         RETURNING session, number",
    );
    let done = done.bind(at.0).bind(workspace.to_string()).bind(numbers).fetch_all(&mut *db).await?;
    let mut removed: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    for row in &done {
        removed.entry(row.try_get("session")?).or_default().push(unsigned(row, "number")?);
    }
    for (session, numbers) in removed {
        let deed = SessionDeed {
            action: AuditAction::CheckpointsRemoved,
            at,
            by: &AuditActor::of_rule(KEEP_RULE),
            detail: Some(number_ranges(numbers)),
        };
        audit::add_for_session(db, SessionRowId(session), deed).await?;
    }
    Ok(done.len() as u64)
}

/// Numbers as a person lists them: "3-5, 7".
fn number_ranges(mut numbers: Vec<u64>) -> String {
    numbers.sort_unstable();
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let texts = runs.filter_map(|run| match (run.first()?, run.last()?) {
        (first, last) if first == last => Some(first.to_string()),
        (first, last) => Some(format!("{first}-{last}")),
    });
    texts.collect::<Vec<_>>().join(", ")
}
