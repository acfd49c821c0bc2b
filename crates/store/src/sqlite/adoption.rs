//! A session continues with the history of a witness. What only the database has becomes a fork.

use super::{
    checkpoints::save_new_checkpoint,
    columns::{encoded, number},
    log::save_turn,
    repair::{add_agent, add_lines},
    sessions::{encode_metadata, encode_pending, ttl},
    usage,
};
use crate::{DivergedFork, Error, HistoryAdoption, RebuiltSession, Result};
use ash_model::{EventSeq, SessionRowId, embedded_log::EventLine};
use sqlx::{Row, SqliteConnection, query};

/// Replaces what follows the last common event with the history of the witness. What the database has there becomes a fork.
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
    // If its sandbox is alive, the sandbox's journal belongs to another history.
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
    // The witness may know this id as a session of another server, which has another workspace.
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
    // A live tree is stamped with the epoch of its history. After a divergence the epoch grows once more, so that the tree of
    // the other history is not taken for this one's.
    query("UPDATE workspaces SET node = ?1, epoch = max(epoch, ?2) + ?4 WHERE id = ?3")
        .bind(&rebuilt.node)
        .bind(number(manifest.epoch.0)?)
        .bind(manifest.workspace.to_string())
        .bind(i64::from(diverged.is_some()))
        .execute(&mut *db)
        .await?;
    update_session(db, no, rebuilt).await
}

async fn update_session(db: &mut SqliteConnection, no: SessionRowId, rebuilt: &RebuiltSession) -> Result<()> {
    let RebuiltSession { manifest, summary, checkpoints, .. } = rebuilt;
    let uploaded = checkpoints.iter().filter(|one| one.removed_at.is_none() && one.uploaded_at.is_some());
    let far_checkpoint = uploaded.map(|checkpoint| checkpoint.number).max();
    query(
        "UPDATE sessions SET version = ?2, status = ?3, options = ?4, env = coalesce(?5, env), last_seq = ?6, title = ?7,
             last_text = ?8, turns = ?9, open_turns = ?10, problem = ?11, checkpoint = ?12, last_active_at = ?13,
             pending = ?14, far_seq = max(far_seq, ?15), far_checkpoint = coalesce(?16, far_checkpoint), metadata = ?17,
             ttl = ?18, lock = ?19, workspace = ?20, native_id = ?21, agent = ?22, runtime = ?23, secrets = coalesce(?24, secrets)
         WHERE n = ?1",
    )
    .bind(no.0)
    .bind(manifest.version)
    .bind(summary.status.as_str())
    .bind(serde_json::to_string(&manifest.options).expect("options are plain JSON"))
    .bind(&manifest.env)
    .bind(number(rebuilt.last_seq())?)
    .bind(&summary.title)
    .bind(&summary.last_text)
    .bind(number(summary.turns)?)
    .bind(number(summary.open_turns)?)
    .bind(summary.problem.as_ref().map(encoded))
    .bind(summary.checkpoint.map(number).transpose()?)
    .bind(manifest.last_active_at.0)
    .bind(encode_pending(&summary.pending))
    .bind(number(rebuilt.remote_seq())?)
    .bind(far_checkpoint.map(number).transpose()?)
    .bind(encode_metadata(&manifest.metadata))
    .bind(ttl(&manifest.options)?)
    .bind(summary.lock.as_ref().map(encoded))
    .bind(manifest.workspace.to_string())
    .bind(manifest.native_id.to_string())
    .bind(manifest.agent.as_str())
    .bind(manifest.runtime.as_str())
    .bind(&manifest.secrets)
    .execute(db)
    .await?;
    Ok(())
}

/// Moves what a session has after event `common` to a fork of it, which gets a workspace of its own.
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
    // The fork may be based on a checkpoint that both have.
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
