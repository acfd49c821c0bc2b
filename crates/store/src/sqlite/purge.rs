//! What a purge does at once, in the step that moves a session into the trash: its id is free, and no other row names it. Its
//! own row keeps the id until it is deleted, because the object store knows the session by it.

use super::{
    columns::{number, optional, parsed},
    usage,
};
use crate::{Error, LogAppend, NewSessionRow, Result, SealingKey};
use ash_model::{Fact, SessionId, SessionRowId, TenantId, Timestamp, WorkspaceId};
use sqlx::{Connection, Row, SqliteConnection, query};

/// The part of an id that marks the fork which keeps the events that were not part of an adopted history.
const DIVERGED: &str = ".diverged-";

/// A session in the trash and the id that it had.
struct PurgedSessionName {
    tenant: TenantId,
    id: SessionId,
    no: SessionRowId,
    parent: Option<SessionId>,
    is_shared: bool,
}

/// Frees the id for another session.
pub(super) async fn free_id(db: &mut SqliteConnection, no: SessionRowId, at: Timestamp) -> Result<()> {
    // A later session with this id must be younger than every fork of this one, even if the clock was set back.
    query(
        "UPDATE sessions SET purged_id = id, id = '.' || n, purged_seq = last_seq + 1, ordered = NULL, lock = NULL,
             purged_epoch = (SELECT epoch FROM workspaces WHERE workspaces.id = sessions.workspace), trashed_at = (
             SELECT max(?2, coalesce(max(f.created_at), 0), sessions.created_at) FROM sessions f
             WHERE f.base_session = sessions.n OR (f.tenant = sessions.tenant AND f.parent = sessions.id))
         WHERE n = ?1",
    )
    .bind(no.0)
    .bind(at.0)
    .execute(db)
    .await?;
    Ok(())
}

/// Removes the name of a session in the trash from every other row.
pub(super) async fn hide(db: &mut SqliteConnection, seal: &SealingKey, no: SessionRowId) -> Result<()> {
    let row = query("SELECT tenant, purged_id, parent, slug IS NOT NULL AS shared FROM sessions WHERE n = ?");
    let row = row.bind(no.0).fetch_one(&mut *db).await?;
    let id = |text: &str| SessionId::parse(text).ok();
    let name = PurgedSessionName {
        tenant: parsed(&row, "tenant", |text| TenantId::parse(text).ok())?,
        id: parsed(&row, "purged_id", id)?,
        no,
        parent: optional(&row, "parent", id)?,
        is_shared: row.try_get("shared")?,
    };
    usage::forget(db, no).await?;
    hide_in_audit(db, seal, &name).await?;
    hide_in_forks(db, &name).await?;
    if name.is_shared {
        hide_in_workspace(db, &name).await?;
    }
    if let Some(parent) = name.parent.as_ref().filter(|_| name.id.as_str().contains(DIVERGED)) {
        hide_in_parent(db, parent, &name).await?;
    }
    forget_keys(db, &name).await
}

/// Its forks say only that they are forks. The names in their logs are replaced as texts: an id needs no escapes, and the
/// quotes in what agents and users wrote are escaped.
async fn hide_in_forks(db: &mut SqliteConnection, name: &PurgedSessionName) -> Result<()> {
    for sql in [
        "UPDATE events SET json = replace(json, '\"parent\":\"' || ?2 || '\"', '\"parent\":null')
         WHERE kind = 'forked' AND (session, seq) IN (SELECT n, base_seq + 1 FROM sessions WHERE tenant = ?1 AND parent = ?2)",
        "UPDATE sessions SET parent = NULL WHERE tenant = ?1 AND parent = ?2",
    ] {
        query(sql).bind(name.tenant.as_str()).bind(name.id.as_str()).execute(&mut *db).await?;
    }
    Ok(())
}

/// For a fork that comes back and shares the log of a purged session.
pub(super) async fn hide_parent(db: &mut SqliteConnection, fork: SessionRowId) -> Result<()> {
    let row = query(
        "SELECT f.parent, f.base_seq FROM sessions f JOIN sessions p ON p.n = f.base_session
         WHERE f.n = ? AND f.parent IS NOT NULL AND p.trashed_at IS NOT NULL",
    );
    let Some(row) = row.bind(fork.0).fetch_optional(&mut *db).await? else { return Ok(()) };
    let (parent, base): (String, i64) = (row.try_get("parent")?, row.try_get("base_seq")?);
    unname_parent(db, fork, &parent, base).await
}

async fn unname_parent(db: &mut SqliteConnection, fork: SessionRowId, parent: &str, base: i64) -> Result<()> {
    query(
        "UPDATE events SET json = replace(json, '\"parent\":\"' || ?3 || '\"', '\"parent\":null')
         WHERE kind = 'forked' AND session = ?1 AND seq = ?2 + 1",
    )
    .bind(fork.0)
    .bind(base)
    .bind(parent)
    .execute(&mut *db)
    .await?;
    query("UPDATE sessions SET parent = NULL WHERE n = ?").bind(fork.0).execute(db).await?;
    Ok(())
}

/// For a fork of a session that was purged after the caller had found it.
pub(super) async fn hide_gone_parent(
    db: &mut SqliteConnection,
    fork: SessionRowId,
    new: &NewSessionRow,
) -> Result<()> {
    let Some(parent) = &new.parent else { return Ok(()) };
    let there = match new.base {
        Some(base) => query("SELECT 1 FROM sessions WHERE n = ? AND trashed_at IS NULL").bind(base.parent.0),
        None => query("SELECT 1 FROM sessions WHERE tenant = ? AND id = ?")
            .bind(new.tenant.as_str())
            .bind(parent.as_str()),
    };
    match there.fetch_optional(&mut *db).await? {
        Some(_) => Ok(()),
        None => {
            let base = number(new.base.map_or(0, |base| base.seq))?;
            unname_parent(db, fork, parent.as_str(), base).await
        }
    }
}

/// A step may name sessions that worked in the same workspace. One of them may have been purged while the step was made.
pub(super) async fn hide_gone_neighbours(
    db: &mut SqliteConnection,
    workspace: WorkspaceId,
    append: &mut LogAppend,
) -> Result<()> {
    let mut named: Vec<&mut Option<SessionId>> = Vec::new();
    for note in &mut append.events {
        match &mut note.fact {
            Fact::Saved(saved) => {
                named.extend(saved.concurrent_turns.iter_mut().map(|turn| &mut turn.session))
            }
            Fact::WorkspaceRewound(back) => named.push(&mut back.by),
            // The other facts name no session, or a fork's parent, which is not in this workspace.
            _ => {}
        }
    }
    let beside = append.checkpoint.iter_mut().flat_map(|checkpoint| &mut checkpoint.concurrent_turns);
    named.extend(beside.map(|turn| &mut turn.session));
    for name in named {
        let Some(id) = &*name else { continue };
        let there = query("SELECT 1 FROM sessions WHERE workspace = ? AND id = ?");
        let there = there.bind(workspace.to_string()).bind(id.as_str());
        if there.fetch_optional(&mut *db).await?.is_none() {
            *name = None;
        }
    }
    Ok(())
}

/// Sessions that worked in the same workspace name it in their logs, and so do the checkpoints and their copies in forks.
async fn hide_in_workspace(db: &mut SqliteConnection, name: &PurgedSessionName) -> Result<()> {
    query(
        "UPDATE events SET json = replace(replace(json, '\"session\":\"' || ?2 || '\"', '\"session\":null'),
             '\"by\":\"' || ?2 || '\"', '\"by\":null')
         WHERE kind IN ('saved', 'taken_back') AND instr(json, '\"' || ?2 || '\"') > 0
           AND session IN (SELECT s.n FROM sessions s JOIN sessions gone ON s.workspace = gone.workspace WHERE gone.n = ?1)",
    )
    .bind(name.no.0)
    .bind(name.id.as_str())
    .execute(&mut *db)
    .await?;
    query(
        "UPDATE checkpoints SET beside = replace(beside, '\"session\":\"' || ?2 || '\"', '\"session\":null')
         WHERE beside IS NOT NULL AND instr(beside, '\"session\":\"' || ?2 || '\"') > 0
           AND workspace IN (SELECT id FROM workspaces WHERE tenant = ?1)",
    )
    .bind(name.tenant.as_str())
    .bind(name.id.as_str())
    .execute(db)
    .await?;
    Ok(())
}

/// A fork that keeps events which were not adopted is named in the event of the adoption.
async fn hide_in_parent(
    db: &mut SqliteConnection,
    parent: &SessionId,
    name: &PurgedSessionName,
) -> Result<()> {
    query(
        "UPDATE events SET json = replace(json, '\"diverged\":\"' || ?3 || '\"', '\"diverged\":null')
         WHERE kind = 'adopted' AND session IN (SELECT n FROM sessions WHERE tenant = ?1 AND id = ?2)",
    )
    .bind(name.tenant.as_str())
    .bind(parent.as_str())
    .bind(name.id.as_str())
    .execute(db)
    .await?;
    Ok(())
}

/// Audit entries keep what was done, when and by whom. A pseudonym replaces the id, so that only a caller who knows the id
/// finds them.
async fn hide_in_audit(db: &mut SqliteConnection, seal: &SealingKey, name: &PurgedSessionName) -> Result<()> {
    let pseudonym = seal.pseudonym(&name.tenant, &name.id);
    // The entries of its forks come first: afterwards their parent is not known.
    query(
        "UPDATE audit SET detail = 'fork of ' || ?3 WHERE tenant = ?1 AND detail = 'fork of ' || ?2 AND subject IN
             (SELECT id FROM sessions WHERE tenant = ?1 AND parent = ?2)",
    )
    .bind(name.tenant.as_str())
    .bind(name.id.as_str())
    .bind(&pseudonym)
    .execute(&mut *db)
    .await?;
    query(
        "UPDATE audit SET subject = ?4, detail = CASE WHEN detail GLOB 'fork of *' THEN NULL ELSE detail END
         WHERE session = ?1 OR (session IS NULL AND tenant = ?2 AND subject = ?3 AND deed IN
             ('created', 'ended', 'purged', 'forgotten', 'executed', 'checkpoints_removed', 'permission_answered',
              'tool_answered'))",
    )
    .bind(name.no.0)
    .bind(name.tenant.as_str())
    .bind(name.id.as_str())
    .bind(&pseudonym)
    .execute(db)
    .await?;
    Ok(())
}

/// The session that an idempotency key made is gone, so the next request with the key is the first.
async fn forget_keys(db: &mut SqliteConnection, name: &PurgedSessionName) -> Result<()> {
    query(
        "DELETE FROM idempotency WHERE tenant = ?1 AND (substr(route, 1, length(?2)) = ?2
           OR (resource = ?3 AND (route = 'POST /api/sessions' OR route GLOB 'POST /api/sessions/*/fork')))",
    )
    .bind(name.tenant.as_str())
    .bind(format!("POST /api/sessions/{}/", name.id))
    .bind(name.id.as_str())
    .execute(db)
    .await?;
    Ok(())
}

/// Earlier versions left the names of purged sessions in other rows: this removes them, once.
pub(super) async fn hide_older(db: &mut SqliteConnection, seal: &SealingKey) -> Result<()> {
    let done: i64 = query("PRAGMA user_version").fetch_one(&mut *db).await?.try_get(0)?;
    if done > 0 {
        return Ok(());
    }
    let mut step = db.begin().await?;
    let rows = query("SELECT n, trashed_at FROM sessions WHERE trashed_at IS NOT NULL AND purged_id IS NULL");
    for row in rows.fetch_all(&mut *step).await? {
        let no = SessionRowId(row.try_get("n")?);
        free_id(&mut step, no, Timestamp(row.try_get("trashed_at")?)).await?;
        hide(&mut step, seal, no).await?;
    }
    let rows = query(
        "SELECT tenant, subject, max(n) AS last FROM audit WHERE deed = 'forgotten' AND subject NOT GLOB 'purged:*'
         GROUP BY tenant, subject",
    );
    for row in rows.fetch_all(&mut *step).await? {
        let tenant = parsed(&row, "tenant", |text| TenantId::parse(text).ok())?;
        let id = parsed(&row, "subject", |text| SessionId::parse(text).ok())?;
        query(
            "UPDATE audit SET subject = ? WHERE tenant = ? AND subject = ? AND n <= ? AND deed IN
                 ('created', 'ended', 'purged', 'forgotten', 'executed', 'checkpoints_removed', 'permission_answered',
              'tool_answered')",
        )
        .bind(seal.pseudonym(&tenant, &id))
        .bind(tenant.as_str())
        .bind(id.as_str())
        .bind(row.try_get::<i64, _>("last")?)
        .execute(&mut *step)
        .await?;
    }
    query("PRAGMA user_version = 1").execute(&mut *step).await?;
    step.commit().await.map_err(Error::from)
}
