//! Sessions as rows.

use super::{
    SqliteStore,
    checkpoints::{refuse_fork_of_removed, save_checkpoint},
    columns::{encoded, number, optional, owner, parsed, unsigned},
    log::add_events,
    purge, session_list,
};
use crate::{
    AccessScope, Error, ForkBase, NewSessionRow, Result, SealedSessionValues, SecretEnv, SessionFilter,
    SessionPage, SessionRow, SessionStore, SessionSummary, WorkspaceSession,
};
use ash_model::{
    AgentName, AgentRuntime, EventSeq, SessionId, SessionMetadata, SessionOptions, SessionRowId,
    SessionStatus, Slug, TenantId, Timestamp, WorkspaceId,
};
use async_trait::async_trait;
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};
use uuid::Uuid;

#[async_trait]
impl SessionStore for SqliteStore {
    async fn create_session(&self, session: NewSessionRow) -> Result<SessionRow> {
        let sealed = SealedSessionValues {
            env: self.seal.seal(&session.env),
            secrets: self.seal.seal(&session.secrets),
        };
        let no = self
            .writer
            .write(move |db| Box::pin(async move { create_session(db, &session, sealed).await }))
            .await?;
        self.session(no).await?.ok_or(Error::Damaged { what: "session", why: "just made, not there".into() })
    }

    async fn find_session(&self, scope: &AccessScope, id: &SessionId) -> Result<Option<SessionRow>> {
        find_session(&self.readers, scope, id).await
    }

    async fn session(&self, no: SessionRowId) -> Result<Option<SessionRow>> {
        session(&self.readers, no).await
    }

    async fn session_then(
        &self,
        tenant: &TenantId,
        id: &SessionId,
        at: Timestamp,
    ) -> Result<Option<SessionRow>> {
        let row = session_at(&self.readers, tenant, id, at).await?;
        row.as_ref().map(session_row).transpose()
    }

    async fn sessions(&self, scope: &AccessScope, filter: &SessionFilter) -> Result<SessionPage> {
        session_list::sessions(&self.readers, scope, filter).await
    }

    async fn needs_recovery(&self) -> Result<Vec<SessionRowId>> {
        needs_recovery(&self.readers).await
    }

    async fn workspace_sessions(&self, workspace: WorkspaceId) -> Result<Vec<WorkspaceSession>> {
        workspace_sessions(&self.readers, workspace).await
    }

    async fn count_active(&self, tenant: &TenantId) -> Result<u64> {
        count_active(&self.readers, tenant).await
    }

    async fn env(&self, no: SessionRowId) -> Result<SecretEnv> {
        self.seal.unseal(sealed(&self.readers, no).await?.env.as_deref())
    }

    async fn set_env(&self, no: SessionRowId, env: &SecretEnv) -> Result<()> {
        let sealed = self.seal.seal(env);
        self.writer.write(move |db| Box::pin(async move { set_env(db, no, sealed).await })).await
    }

    async fn secrets(&self, no: SessionRowId) -> Result<SecretEnv> {
        self.seal.unseal(sealed(&self.readers, no).await?.secrets.as_deref())
    }

    async fn set_secrets(&self, no: SessionRowId, secrets: &SecretEnv) -> Result<()> {
        let sealed = self.seal.seal(secrets);
        self.writer.write(move |db| Box::pin(async move { set_secrets(db, no, sealed).await })).await
    }

    async fn sealed_values(&self, no: SessionRowId) -> Result<SealedSessionValues> {
        sealed(&self.readers, no).await
    }
}

async fn find_session(db: &SqlitePool, scope: &AccessScope, id: &SessionId) -> Result<Option<SessionRow>> {
    let row = query(
        "SELECT * FROM sessions WHERE tenant = ?1 AND id = ?2 AND trashed_at IS NULL AND (?3 IS NULL OR owner = ?3)",
    );
    let row = row
        .bind(scope.tenant.as_str())
        .bind(id.as_str())
        .bind(scope.owner.as_ref().map(|owner| owner.as_str()))
        .fetch_optional(db)
        .await?;
    row.as_ref().map(session_row).transpose()
}

async fn session(db: &SqlitePool, no: SessionRowId) -> Result<Option<SessionRow>> {
    let row = query("SELECT * FROM sessions WHERE n = ?").bind(no.0).fetch_optional(db).await?;
    row.as_ref().map(session_row).transpose()
}

/// Which of the sessions that had this id existed at a time. A fork from that time shares its log.
pub(super) async fn session_at<'c>(
    db: impl sqlx::SqliteExecutor<'c>,
    tenant: &TenantId,
    id: &SessionId,
    at: Timestamp,
) -> Result<Option<SqliteRow>> {
    let row = query(
        "SELECT * FROM (SELECT * FROM sessions WHERE tenant = ?1 AND id = ?2
             UNION ALL SELECT * FROM sessions WHERE tenant = ?1 AND purged_id = ?2)
         WHERE +created_at <= ?3 ORDER BY +created_at DESC, n DESC LIMIT 1",
    );
    Ok(row.bind(tenant.as_str()).bind(id.as_str()).bind(at.0).fetch_optional(db).await?)
}

async fn needs_recovery(db: &SqlitePool) -> Result<Vec<SessionRowId>> {
    let rows = query(
        "SELECT n FROM sessions WHERE status IN ('starting', 'active') OR (open_turns > 0 AND status <> 'ended') ORDER BY n",
    )
    .fetch_all(db)
    .await?;
    rows.iter().map(|row| Ok(SessionRowId(row.try_get(0)?))).collect()
}

async fn workspace_sessions(db: &SqlitePool, workspace: WorkspaceId) -> Result<Vec<WorkspaceSession>> {
    let rows = query(
        "SELECT n, status, trashed_at IS NOT NULL AS purged FROM sessions WHERE workspace = ? ORDER BY n",
    )
    .bind(workspace.to_string())
    .fetch_all(db)
    .await?;
    rows.iter()
        .map(|row| {
            let no = SessionRowId(row.try_get("n")?);
            let purged = row.try_get("purged")?;
            Ok(WorkspaceSession { no, status: parsed(row, "status", SessionStatus::parse)?, purged })
        })
        .collect()
}

async fn count_active(db: &SqlitePool, tenant: &TenantId) -> Result<u64> {
    let row = query("SELECT count(*) FROM sessions WHERE tenant = ? AND status = 'active'")
        .bind(tenant.as_str())
        .fetch_one(db)
        .await?;
    unsigned(&row, 0)
}

async fn sealed(db: &SqlitePool, no: SessionRowId) -> Result<SealedSessionValues> {
    let row = query("SELECT env, secrets FROM sessions WHERE n = ?").bind(no.0).fetch_optional(db).await?;
    let Some(row) = row else { return Ok(SealedSessionValues::default()) };
    Ok(SealedSessionValues { env: row.try_get("env")?, secrets: row.try_get("secrets")? })
}

pub(super) fn session_row(row: &SqliteRow) -> Result<SessionRow> {
    Ok(SessionRow {
        no: SessionRowId(row.try_get("n")?),
        tenant: parsed(row, "tenant", |text| TenantId::parse(text).ok())?,
        owner: owner(row)?,
        metadata: optional(row, "metadata", |text| serde_json::from_str(text).ok())?.unwrap_or_default(),
        // Only deletion reads sessions in the trash, and it needs the id that they had.
        id: match optional(row, "purged_id", |text| SessionId::parse(text).ok())? {
            Some(id) => id,
            None => parsed(row, "id", |text| SessionId::parse(text).ok())?,
        },
        workspace: parsed(row, "workspace", WorkspaceId::parse)?,
        slug: row.try_get::<Option<String>, _>("slug")?.and_then(|text| Slug::parse(&text).ok()),
        agent: parsed(row, "agent", |text| AgentName::parse(text).ok())?,
        version: row.try_get("version")?,
        runtime: parsed(row, "runtime", AgentRuntime::parse)?,
        native_id: parsed(row, "native_id", |text| Uuid::try_parse(text).ok())?,
        options: parsed(row, "options", |text| serde_json::from_str(text).ok())?,
        parent: optional(row, "parent", |text| SessionId::parse(text).ok())?,
        base: fork_base(row)?,
        last_seq: unsigned(row, "last_seq")?,
        summary: summary(row)?,
        remote_checkpoint: row.try_get::<Option<i64>, _>("far_checkpoint")?.map(|n| n as u64),
        remote_seq: unsigned(row, "far_seq")?,
        created_at: Timestamp(row.try_get("created_at")?),
        last_active_at: Timestamp(row.try_get("last_active_at")?),
    })
}

pub(super) fn fork_base(row: &SqliteRow) -> Result<Option<ForkBase>> {
    let parent: Option<i64> = row.try_get("base_session")?;
    let seq = unsigned(row, "base_seq")?;
    Ok(parent.map(|parent| ForkBase { parent: SessionRowId(parent), seq }))
}

fn summary(row: &SqliteRow) -> Result<SessionSummary> {
    let checkpoint: Option<i64> = row.try_get("checkpoint")?;
    Ok(SessionSummary {
        status: parsed(row, "status", SessionStatus::parse)?,
        title: row.try_get("title")?,
        last_text: row.try_get("last_text")?,
        turns: unsigned(row, "turns")?,
        open_turns: unsigned(row, "open_turns")?,
        problem: optional(row, "problem", |text| serde_json::from_str(text).ok())?,
        checkpoint: checkpoint.map(|n| n as u64),
        pending: optional(row, "pending", |text| serde_json::from_str(text).ok())?.unwrap_or_default(),
        lock: optional(row, "lock", |text| serde_json::from_str(text).ok())?,
    })
}

async fn create_session(
    db: &mut SqliteConnection,
    new: &NewSessionRow,
    sealed: SealedSessionValues,
) -> Result<SessionRowId> {
    match &new.slug {
        Some(slug) => refuse_deleted(db, new.workspace, slug).await?,
        None => {
            query("INSERT INTO workspaces (id, tenant, owner, agent, node, epoch) VALUES (?, ?, ?, ?, ?, ?)")
                .bind(new.workspace.to_string())
                .bind(new.tenant.as_str())
                .bind(new.owner.as_ref().map(|owner| owner.as_str()))
                .bind(new.agent.as_str())
                .bind(&new.node)
                .bind(number(new.epoch.0)?)
                .execute(&mut *db)
                .await?;
        }
    }
    let base_seq = new.base.map_or(0, |base| base.seq);
    let inserted = query(
        "INSERT INTO sessions (tenant, id, workspace, agent, version, runtime, status, native_id, options, env, parent,
             base_session, base_seq, last_seq, title, last_text, turns, open_turns, problem, checkpoint, created_at,
             last_active_at, pending, slug, owner, metadata, ttl, secrets)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?20, ?21,
             ?22, ?23, ?24, ?25, ?26)
         RETURNING n",
    )
    .bind(new.tenant.as_str())
    .bind(new.id.as_str())
    .bind(new.workspace.to_string())
    .bind(new.agent.as_str())
    .bind(new.version)
    .bind(new.runtime.as_str())
    .bind(new.summary.status.as_str())
    .bind(new.native_id.to_string())
    .bind(serde_json::to_string(&new.options).expect("options are plain JSON"))
    .bind(sealed.env)
    .bind(new.parent.as_ref().map(|p| p.as_str()))
    .bind(new.base.map(|base| base.parent.0))
    .bind(number(base_seq)?)
    .bind(&new.summary.title)
    .bind(&new.summary.last_text)
    .bind(number(new.summary.turns)?)
    .bind(number(new.summary.open_turns)?)
    .bind(new.summary.problem.as_ref().map(encoded))
    .bind(new.summary.checkpoint.map(number).transpose()?)
    .bind(new.at.0)
    .bind(encode_pending(&new.summary.pending))
    .bind(new.slug.as_ref().map(|slug| slug.as_str()))
    .bind(new.owner.as_ref().map(|owner| owner.as_str()))
    .bind(encode_metadata(&new.metadata))
    .bind(ttl(&new.options)?)
    .bind(sealed.secrets)
    .fetch_one(&mut *db)
    .await;
    let no = match inserted {
        Ok(row) => SessionRowId(row.try_get(0)?),
        Err(sqlx::Error::Database(e)) if e.is_unique_violation() => {
            return Err(Error::Taken(format!("Session id \"{}\"", new.id)));
        }
        Err(error) => return Err(error.into()),
    };
    refuse_reused(db, new).await?;
    for checkpoint in &new.first_checkpoints {
        refuse_fork_of_removed(db, new, checkpoint).await?;
        save_checkpoint(db, no, checkpoint).await?;
    }
    add_events(db, no, base_seq + 1, &new.events).await?;
    if let Some(entry) = &new.audit {
        super::audit::add(db, entry.clone(), Some(no)).await?;
    }
    purge::hide_gone_parent(db, no, new).await?;
    query("UPDATE sessions SET last_seq = ? WHERE n = ?")
        .bind(number(base_seq + new.events.len() as u64)?)
        .bind(no.0)
        .execute(db)
        .await?;
    Ok(no)
}

/// A session that had this id may have been purged since the caller looked for it. Without a later epoch than its, what
/// witnesses have of that session would be taken for this one's.
async fn refuse_reused(db: &mut SqliteConnection, new: &NewSessionRow) -> Result<()> {
    let purged = query(
        "SELECT 1 FROM sessions WHERE tenant = ?1 AND purged_id = ?2 AND (trashed_at >= ?4
           OR purged_epoch >= (SELECT epoch FROM workspaces WHERE id = ?3)) LIMIT 1",
    );
    let purged = purged.bind(new.tenant.as_str()).bind(new.id.as_str()).bind(new.workspace.to_string());
    match purged.bind(new.at.0).fetch_optional(db).await? {
        Some(_) => Err(Error::Taken(format!("Session id \"{}\"", new.id))),
        None => Ok(()),
    }
}

async fn refuse_deleted(db: &mut SqliteConnection, workspace: WorkspaceId, slug: &Slug) -> Result<()> {
    let there = query("SELECT 1 FROM workspaces WHERE id = ? AND slug = ? AND deleting_at IS NULL")
        .bind(workspace.to_string())
        .bind(slug.as_str())
        .fetch_optional(db)
        .await?;
    there.map(drop).ok_or_else(|| Error::Deleting(slug.clone()))
}

pub(super) async fn set_options(
    db: &mut SqliteConnection,
    no: SessionRowId,
    options: &SessionOptions,
) -> Result<()> {
    query("UPDATE sessions SET options = ?, ttl = ? WHERE n = ?")
        .bind(serde_json::to_string(options).expect("options are plain JSON"))
        .bind(ttl(options)?)
        .bind(no.0)
        .execute(db)
        .await?;
    Ok(())
}

async fn set_env(db: &mut SqliteConnection, no: SessionRowId, sealed: Option<String>) -> Result<()> {
    query("UPDATE sessions SET env = ? WHERE n = ?").bind(sealed).bind(no.0).execute(db).await?;
    Ok(())
}

async fn set_secrets(db: &mut SqliteConnection, no: SessionRowId, sealed: Option<String>) -> Result<()> {
    query("UPDATE sessions SET secrets = ? WHERE n = ?").bind(sealed).bind(no.0).execute(db).await?;
    Ok(())
}

/// NULL for no labels, as most sessions have none.
pub(super) fn encode_metadata(metadata: &SessionMetadata) -> Option<String> {
    (!metadata.is_empty()).then(|| serde_json::to_string(metadata).expect("names and texts"))
}

/// NULL for no open requests, as most sessions have none.
pub(super) fn encode_pending(pending: &[EventSeq]) -> Option<String> {
    (!pending.is_empty()).then(|| serde_json::to_string(pending).expect("numbers are plain JSON"))
}

/// The stored time to live in seconds. An option of 0 means that the session never expires: NULL.
pub(super) fn ttl(options: &SessionOptions) -> Result<Option<i64>> {
    options.ttl.filter(|seconds| *seconds > 0).map(number).transpose()
}
