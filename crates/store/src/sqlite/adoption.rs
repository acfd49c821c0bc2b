//! What other witnesses are compared with, and rows that come from them: a history that goes on where the database stopped,
//! and one that took another way.

use super::{
    audit,
    messages::is_message,
    read::{parsed, unsigned},
    replication::add_agent,
    trash, usage,
    write::{encode_metadata, encode_pending, encoded, number, save_new_checkpoint, save_turn, ttl},
};
use crate::{
    AuditAction, AuditActor, DivergedFork, Error, HistoryAdoption, RebuiltSession, Result, SealingKey,
    SessionLogEnd,
};
use ash_model::{
    Epoch, EventSeq, SessionId, SessionRowId, TenantId, Timestamp, WorkspaceId, embedded_log::EventLine,
    remote::SessionTombstone,
};
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};

/// The rule by which a session is in the trash again that a witness says was purged.
const TOMBSTONE: &str = "tombstone";

/// Of all sessions of a tenant, those in the trash included, which come first: of two of one id the last one counts.
pub(super) async fn log_positions(db: &SqlitePool, tenant: &TenantId) -> Result<Vec<SessionLogEnd>> {
    let rows = query(
        "SELECT s.n, coalesce(s.purged_id, s.id) AS id, s.workspace, s.last_seq, s.far_seq, w.epoch FROM sessions s
         JOIN workspaces w ON w.id = s.workspace WHERE s.tenant = ? ORDER BY s.trashed_at IS NULL, s.n",
    );
    let rows = rows.bind(tenant.as_str()).fetch_all(db).await?;
    let position = |row: &SqliteRow| {
        Ok(SessionLogEnd {
            no: SessionRowId(row.try_get("n")?),
            session: parsed(row, "id", |text| SessionId::parse(text).ok())?,
            workspace: parsed(row, "workspace", WorkspaceId::parse)?,
            epoch: Epoch(unsigned(row, "epoch")?),
            seq: unsigned(row, "last_seq")?,
            remote_seq: unsigned(row, "far_seq")?,
        })
    };
    rows.iter().map(position).collect()
}

/// Of all sessions in the trash; `unsent`: only of those whose tombstone the object store does not have.
pub(super) async fn tombstones(
    db: &SqlitePool,
    unsent: bool,
    limit: u32,
) -> Result<Vec<(SessionRowId, SessionTombstone)>> {
    let rows = query(
        "SELECT n, tenant, purged_id, purged_epoch, purged_seq, trashed_at FROM sessions
         WHERE trashed_at IS NOT NULL AND (tombstone_far_at IS NULL OR NOT ?) ORDER BY trashed_at LIMIT ?",
    );
    let rows = rows.bind(unsent).bind(limit).fetch_all(db).await?;
    rows.iter().map(|row| Ok((SessionRowId(row.try_get("n")?), tombstone_row(row)?))).collect()
}

pub(super) async fn tombstone(db: &SqlitePool, no: SessionRowId) -> Result<Option<(SessionTombstone, bool)>> {
    let row = query(
        "SELECT tenant, purged_id, purged_epoch, purged_seq, trashed_at, tombstone_far_at IS NOT NULL AS sent FROM sessions
         WHERE n = ? AND trashed_at IS NOT NULL",
    );
    let row = row.bind(no.0).fetch_optional(db).await?;
    row.map(|row| Ok((tombstone_row(&row)?, row.try_get("sent")?))).transpose()
}

pub(super) fn tombstone_row(row: &SqliteRow) -> Result<SessionTombstone> {
    Ok(SessionTombstone {
        tenant: parsed(row, "tenant", |text| TenantId::parse(text).ok())?,
        session: parsed(row, "purged_id", |text| SessionId::parse(text).ok())?,
        epoch: Epoch(unsigned(row, "purged_epoch")?),
        seq: unsigned(row, "purged_seq")?,
        purged_at: Timestamp(row.try_get("trashed_at")?),
    })
}

/// Goes on with the history of another witness where both are the same for the last time. What the database has beyond
/// that becomes a fork.
pub(super) async fn adopt(db: &mut SqliteConnection, adoption: &HistoryAdoption) -> Result<()> {
    let HistoryAdoption { rebuilt, session, last_seq, common, diverged } = adoption;
    let (no, manifest) = (*session, &rebuilt.manifest);
    let unchanged = query("SELECT 1 FROM sessions WHERE n = ? AND last_seq = ?");
    let unchanged = unchanged.bind(no.0).bind(number(*last_seq)?).fetch_optional(&mut *db).await?;
    unchanged.ok_or(Error::Stale)?;
    for agent in &rebuilt.agents {
        add_agent(db, agent, rebuilt.at).await?;
    }
    if let Some(diverged) = diverged {
        split_off(db, no, *common, diverged).await?;
    }
    // Its sandbox, if it lives, speaks of a history that is not known here.
    query("DELETE FROM journals WHERE session = ?").bind(no.0).execute(&mut *db).await?;
    let new = rebuilt.events.iter().filter(|line| line.seq > *common);
    let new: Vec<EventLine> = new.cloned().collect();
    add_lines(db, no, &new).await?;
    usage::rebuild(db, no, &new).await?;
    for turn in &rebuilt.turns {
        save_turn(db, no, turn).await?;
    }
    for checkpoint in &rebuilt.checkpoints {
        save_new_checkpoint(db, no, checkpoint).await?;
    }
    // Under this id there may have been a session of another server, in a workspace of its own.
    query(
        "INSERT INTO workspaces (id, tenant, agent, node, epoch, created_at, owner) VALUES (?, ?, ?, ?, 1, ?, ?)
         ON CONFLICT (id) DO NOTHING",
    )
    .bind(manifest.workspace.to_string())
    .bind(manifest.tenant.as_str())
    .bind(manifest.agent.as_str())
    .bind(&rebuilt.node)
    .bind(manifest.created_at.0)
    .bind(manifest.owner.as_ref().map(|owner| owner.as_str()))
    .execute(&mut *db)
    .await?;
    // A tree of the other history must not be taken for this one's: it was stamped with an epoch before this.
    query("UPDATE workspaces SET node = ?1, epoch = max(epoch, ?2) + ?4 WHERE id = ?3")
        .bind(&rebuilt.node)
        .bind(number(manifest.epoch.0)?)
        .bind(manifest.workspace.to_string())
        .bind(i64::from(diverged.is_some()))
        .execute(&mut *db)
        .await?;
    update_session(db, no, rebuilt).await
}

pub(super) async fn add_lines(
    db: &mut SqliteConnection,
    no: SessionRowId,
    lines: &[EventLine],
) -> Result<()> {
    for line in lines {
        query("INSERT INTO events (session, seq, turn, at, kind, json, is_message) VALUES (?, ?, ?, ?, ?, ?, ?)")
            .bind(no.0)
            .bind(number(line.seq)?)
            .bind(line.turn.map(|turn| turn.to_string()))
            .bind(line.at.0)
            .bind(&line.kind)
            .bind(&line.json)
            .bind(is_message(&line.kind, &line.json))
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}

async fn update_session(db: &mut SqliteConnection, no: SessionRowId, rebuilt: &RebuiltSession) -> Result<()> {
    let RebuiltSession { manifest, summary: card, checkpoints, .. } = rebuilt;
    let there = checkpoints.iter().filter(|one| one.removed_at.is_none() && one.uploaded_at.is_some());
    let far_checkpoint = there.map(|checkpoint| checkpoint.number).max();
    query(
        "UPDATE sessions SET version = ?2, status = ?3, options = ?4, env = coalesce(?5, env), last_seq = ?6, title = ?7,
             last_text = ?8, turns = ?9, open_turns = ?10, problem = ?11, checkpoint = ?12, last_active_at = ?13,
             pending = ?14, far_seq = max(far_seq, ?15), far_checkpoint = coalesce(?16, far_checkpoint), metadata = ?17,
             ttl = ?18, lock = ?19, workspace = ?20, native_id = ?21, agent = ?22, runtime = ?23, secrets = coalesce(?24, secrets)
         WHERE n = ?1",
    )
    .bind(no.0)
    .bind(manifest.version)
    .bind(card.status.as_str())
    .bind(serde_json::to_string(&manifest.options).expect("options are plain JSON"))
    .bind(&manifest.env)
    .bind(number(rebuilt.last_seq())?)
    .bind(&card.title)
    .bind(&card.last_text)
    .bind(number(card.turns)?)
    .bind(number(card.open_turns)?)
    .bind(card.problem.as_ref().map(encoded))
    .bind(card.checkpoint.map(number).transpose()?)
    .bind(manifest.last_active_at.0)
    .bind(encode_pending(&card.pending))
    .bind(number(rebuilt.remote_seq())?)
    .bind(far_checkpoint.map(number).transpose()?)
    .bind(encode_metadata(&manifest.metadata))
    .bind(ttl(&manifest.options)?)
    .bind(card.lock.as_ref().map(encoded))
    .bind(manifest.workspace.to_string())
    .bind(manifest.native_id.to_string())
    .bind(manifest.agent.as_str())
    .bind(manifest.runtime.as_str())
    .bind(&manifest.secrets)
    .execute(db)
    .await?;
    Ok(())
}

/// What a session has after event `common` becomes a fork of it, in a workspace of its own.
async fn split_off(
    db: &mut SqliteConnection,
    no: SessionRowId,
    common: EventSeq,
    diverged: &DivergedFork,
) -> Result<()> {
    let (workspace, at) = (diverged.workspace.to_string(), number(common)?);
    query(
        "INSERT INTO workspaces (id, tenant, agent, node, epoch, created_at, owner)
         SELECT ?1, w.tenant, w.agent, w.node, w.epoch, w.created_at, s.owner FROM sessions s
         JOIN workspaces w ON w.id = s.workspace WHERE s.n = ?2",
    )
    .bind(&workspace)
    .bind(no.0)
    .execute(&mut *db)
    .await?;
    let row = query(
        "INSERT INTO sessions (tenant, id, workspace, agent, version, runtime, status, native_id, options, env, parent,
             base_session, base_seq, last_seq, title, last_text, turns, open_turns, problem, checkpoint, created_at,
             last_active_at, pending, owner, metadata, ttl, secrets)
         SELECT tenant, ?1, ?2, agent, version, runtime, CASE status WHEN 'ended' THEN status ELSE 'paused' END, native_id,
             options, env, id, n, ?3, last_seq, title, last_text, turns, open_turns, problem, checkpoint, created_at,
             last_active_at, pending, owner, metadata, ttl, secrets FROM sessions WHERE n = ?4 RETURNING n, workspace",
    )
    .bind(diverged.id.as_str())
    .bind(&workspace)
    .bind(at)
    .bind(no.0)
    .fetch_one(&mut *db)
    .await?;
    let fork: i64 = row.try_get("n")?;
    for sql in [
        "UPDATE events SET session = ?2 WHERE session = ?1 AND seq > ?3",
        "UPDATE deltas SET session = ?2 WHERE session = ?1 AND seq >= ?3",
        "UPDATE usage SET session = ?2, id = (SELECT id FROM sessions WHERE n = ?2) WHERE session = ?1
           AND turn IN (SELECT id FROM turns WHERE session = ?1 AND seq > ?3)",
        "UPDATE turns SET session = ?2 WHERE session = ?1 AND seq > ?3",
        "UPDATE sessions SET base_session = ?2 WHERE base_session = ?1 AND base_seq > ?3 AND n <> ?2",
    ] {
        query(sql).bind(no.0).bind(fork).bind(at).execute(&mut *db).await?;
    }
    let own = "workspace = (SELECT workspace FROM sessions WHERE n = ?1) AND session = ?1";
    // It may stand on one that both have.
    let shared = format!(
        "INSERT INTO checkpoints (workspace, number, session, turn, seq, tree, consistency, salvage, mid_turn, files,
             bytes, skipped, unsettled, at, removed_at, back, beside)
         SELECT ?4, number, ?2, turn, seq, tree, consistency, salvage, mid_turn, files, bytes, skipped, unsettled, at,
             removed_at, back, beside FROM checkpoints WHERE {own} AND seq <= ?3 ORDER BY number DESC LIMIT 1"
    );
    let moved = format!(
        "UPDATE checkpoints SET workspace = ?4, session = ?2, far_at = NULL WHERE {own} AND seq > ?3"
    );
    for sql in [shared, moved] {
        let sql = sqlx::AssertSqlSafe(sql);
        query(sql).bind(no.0).bind(fork).bind(at).bind(&workspace).execute(&mut *db).await?;
    }
    Ok(())
}

pub(super) async fn raise_epoch(
    db: &mut SqliteConnection,
    workspace: WorkspaceId,
    epoch: Epoch,
) -> Result<()> {
    let raised = query("UPDATE workspaces SET epoch = max(epoch, ?) WHERE id = ?");
    raised.bind(number(epoch.0)?).bind(workspace.to_string()).execute(db).await?;
    Ok(())
}

pub(super) async fn purge_again(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    (at, by): (Timestamp, &AuditActor),
) -> Result<()> {
    let ended = query("UPDATE sessions SET status = 'ended', open_turns = 0, lock = NULL WHERE n = ?");
    ended.bind(no.0).execute(&mut *db).await?;
    trash::put(db, seal, no, (at, by)).await.map(drop)
}

/// A session that came back for its forks alone: it is in the trash at once, under the tombstone that it had.
pub(super) async fn bury_rebuilt(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    (at, tombstone): (Timestamp, &SessionTombstone),
) -> Result<()> {
    query(
        "UPDATE sessions SET status = 'ended', open_turns = 0, lock = NULL, id = '.' || n, purged_id = ?2, purged_epoch = ?3,
             purged_seq = ?4, trashed_at = ?5, tombstone_far_at = ?6 WHERE n = ?1",
    )
    .bind(no.0)
    .bind(tombstone.session.as_str())
    .bind(number(tombstone.epoch.0)?)
    .bind(number(tombstone.seq)?)
    .bind(tombstone.purged_at.0)
    .bind(at.0)
    .execute(&mut *db)
    .await?;
    usage::forget(db, no).await?;
    audit::of_purged(db, seal, no, (AuditAction::Purged, at, TOMBSTONE)).await
}
