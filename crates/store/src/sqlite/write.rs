//! What the writer does inside its transaction. Each function is one whole step.

use super::{
    audit,
    messages::is_message,
    purge,
    read::{key_row, unsigned},
    usage,
};
use crate::{
    ApiKey, AuditAction, AuditActor, AuditEntry, Checkpoint, Error, IdempotencyClaim, Lease, LeaseHolder,
    LogAppend, NewAgentVersion, NewSessionRow, Result, SealedSessionValues, SealingKey, SessionSummary,
    TurnRow,
};
use ash_model::{
    AgentName, CaptureConsistency, Epoch, EventSeq, Fact, Image, JournalPosition, MessageDelta,
    ModelProvider, NewEvent, SessionMetadata, SessionOptions, SessionRowId, SessionStatus, Slug, TenantId,
    Timestamp, WorkspaceId,
};
use serde::Serialize;
use sqlx::{Row, SqliteConnection, query};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The rule by which the files of checkpoints are given up.
const KEEP: &str = "keep";

/// What an agent's limits and needs are kept as.
pub(super) fn stored(what: Option<impl Serialize>) -> Result<Option<String>> {
    let text = what.map(|what| serde_json::to_string(&what)).transpose();
    text.map_err(|error| Error::Damaged { what: "limits or needs", why: error.to_string() })
}

pub(super) async fn add_key(
    db: &mut SqliteConnection,
    key: &ApiKey,
    hash: &str,
    by: AuditActor,
) -> Result<()> {
    query("INSERT INTO api_keys (id, tenant, owner, label, hash, created_at) VALUES (?, ?, ?, ?, ?, ?)")
        .bind(&key.id)
        .bind(key.tenant.as_str())
        .bind(key.owner.as_ref().map(|owner| owner.as_str()))
        .bind(&key.label)
        .bind(hash)
        .bind(key.created_at.0)
        .execute(&mut *db)
        .await?;
    audit::add(db, key_audit_entry(key, (AuditAction::KeyCreated, key.created_at), by), None).await
}

pub(super) async fn remove_key(
    db: &mut SqliteConnection,
    (tenant, id): (&TenantId, &str),
    at: Timestamp,
    by: AuditActor,
) -> Result<bool> {
    let row = query("DELETE FROM api_keys WHERE tenant = ? AND id = ? RETURNING *");
    let row = row.bind(tenant.as_str()).bind(id).fetch_optional(&mut *db).await?;
    let Some(key) = row.as_ref().map(key_row).transpose()? else { return Ok(false) };
    audit::add(db, key_audit_entry(&key, (AuditAction::KeyRemoved, at), by), None).await?;
    Ok(true)
}

fn key_audit_entry(key: &ApiKey, (deed, at): (AuditAction, Timestamp), by: AuditActor) -> AuditEntry {
    let (tenant, owner) = (key.tenant.clone(), key.owner.clone());
    AuditEntry { no: 0, at, tenant, action: deed, subject: key.id.clone(), owner, actor: by, detail: None }
}

/// `env`: `None` keeps the sealed environment that is there.
/// Answers the version: a new one, or the one that the same idempotency key made before.
pub(super) async fn deploy(
    db: &mut SqliteConnection,
    agent: &NewAgentVersion,
    env: Option<Option<String>>,
) -> Result<u32> {
    if let Some(made) = deployed_before(db, agent).await? {
        return Ok(made);
    }
    let row = query(
        "INSERT INTO agents (id, tenant, name, version, created_at, updated_at) VALUES (?1, ?2, ?3, 1, ?4, ?4)
         ON CONFLICT (tenant, name) DO UPDATE SET version = version + 1, updated_at = ?4, changes = changes + 1,
             env = CASE WHEN deleted_at IS NULL THEN env END,
             config = CASE WHEN deleted_at IS NULL THEN config ELSE '{}' END, deleted_at = NULL
         RETURNING n, version",
    )
    .bind(Uuid::new_v4().to_string())
    .bind(agent.tenant.as_str())
    .bind(agent.name.as_str())
    .bind(agent.at.0)
    .fetch_one(&mut *db)
    .await?;
    let (n, version): (i64, u32) = (row.try_get(0)?, row.try_get(1)?);
    if let Some(claim) = &agent.claim {
        query("UPDATE idempotency SET resource = ? WHERE tenant = ? AND route = ? AND key = ?")
            .bind(format!("{}@{version}", agent.name))
            .bind(agent.tenant.as_str())
            .bind(&claim.route)
            .bind(&claim.key)
            .execute(&mut *db)
            .await?;
    }
    if let Some(env) = env {
        query("UPDATE agents SET env = ? WHERE n = ?").bind(env).bind(n).execute(&mut *db).await?;
    }
    query(
        "INSERT INTO agent_versions (agent, version, tree, runtime, provider, image, limits, needs, origin, created_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(n)
    .bind(version)
    .bind(&agent.tree)
    .bind(agent.runtime.as_str())
    .bind(agent.provider.map(ModelProvider::as_str))
    .bind(agent.image.as_ref().map(Image::as_str))
    .bind(stored(agent.limits)?)
    .bind(stored(Some(agent.needs).filter(|needs| !needs.is_empty()))?)
    .bind(&agent.origin)
    .bind(agent.at.0)
    .execute(db)
    .await?;
    Ok(version)
}

/// The version that its idempotency key stands for, once it has made one: `NAME@VERSION` in the key's row.
async fn deployed_before(db: &mut SqliteConnection, agent: &NewAgentVersion) -> Result<Option<u32>> {
    let Some(claim) = &agent.claim else { return Ok(None) };
    let row = query("SELECT resource FROM idempotency WHERE tenant = ? AND route = ? AND key = ?")
        .bind(agent.tenant.as_str())
        .bind(&claim.route)
        .bind(&claim.key)
        .fetch_optional(db)
        .await?;
    let resource = row.map(|row| row.try_get::<String, _>(0)).transpose()?;
    Ok(resource.and_then(|resource| resource.rsplit_once('@')?.1.parse().ok()))
}

pub(super) async fn change_agent(
    db: &mut SqliteConnection,
    (tenant, name): (&TenantId, &AgentName),
    config: Option<String>,
    env: Option<Option<String>>,
) -> Result<bool> {
    let done = query(
        "UPDATE agents SET config = coalesce(?3, config), env = CASE WHEN ?4 THEN ?5 ELSE env END, changes = changes + 1
         WHERE tenant = ?1 AND name = ?2 AND deleted_at IS NULL",
    )
    .bind(tenant.as_str())
    .bind(name.as_str())
    .bind(config)
    .bind(env.is_some())
    .bind(env.flatten())
    .execute(db)
    .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn delete_agent(
    db: &mut SqliteConnection,
    tenant: &TenantId,
    name: &AgentName,
    at: Timestamp,
) -> Result<bool> {
    let done = query(
        "UPDATE agents SET deleted_at = ?, changes = changes + 1 WHERE tenant = ? AND name = ? AND deleted_at IS NULL",
    )
        .bind(at.0)
        .bind(tenant.as_str())
        .bind(name.as_str())
        .execute(db)
        .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn create(
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
    let base_seq = new.base.map_or(0, |(_, seq)| seq);
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
    .bind(new.base.map(|(no, _)| no.0))
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
    purge::hide_gone_parent(db, no, new).await?;
    query("UPDATE sessions SET last_seq = ? WHERE n = ?")
        .bind(number(base_seq + new.events.len() as u64)?)
        .bind(no.0)
        .execute(db)
        .await?;
    Ok(no)
}

/// Whoever had this id may have been purged since it was looked at: with an epoch that is not later, what witnesses have of
/// that session would be taken for this one's.
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

async fn set_options(db: &mut SqliteConnection, no: SessionRowId, options: &SessionOptions) -> Result<()> {
    query("UPDATE sessions SET options = ?, ttl = ? WHERE n = ?")
        .bind(serde_json::to_string(options).expect("options are plain JSON"))
        .bind(ttl(options)?)
        .bind(no.0)
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn set_env(
    db: &mut SqliteConnection,
    no: SessionRowId,
    sealed: Option<String>,
) -> Result<()> {
    query("UPDATE sessions SET env = ? WHERE n = ?").bind(sealed).bind(no.0).execute(db).await?;
    Ok(())
}

pub(super) async fn set_secrets(
    db: &mut SqliteConnection,
    no: SessionRowId,
    sealed: Option<String>,
) -> Result<()> {
    query("UPDATE sessions SET secrets = ? WHERE n = ?").bind(sealed).bind(no.0).execute(db).await?;
    Ok(())
}

/// Mostly none: NULL.
pub(super) fn encode_metadata(metadata: &SessionMetadata) -> Option<String> {
    (!metadata.is_empty()).then(|| serde_json::to_string(metadata).expect("names and texts"))
}

/// 0 is never.
pub(super) fn ttl(options: &SessionOptions) -> Result<Option<i64>> {
    options.ttl.filter(|seconds| *seconds > 0).map(number).transpose()
}

pub(super) async fn claim(
    db: &mut SqliteConnection,
    workspace: WorkspaceId,
    node: &str,
    from: &LeaseHolder,
) -> Result<Lease> {
    let epoch = Epoch(from.epoch.0 + 1);
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
    Ok(Lease { workspace, epoch })
}

pub(super) async fn append(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    lease: &Lease,
    append: &LogAppend,
) -> Result<()> {
    // No event is before the first one, so nothing can be there that a step numbered 0 follows.
    let before = append.first_seq.checked_sub(1).ok_or(Error::Stale)?;
    if append.events.iter().any(|note| matches!(note.fact, Fact::Rewound(_) | Fact::Resumed { .. })) {
        refuse_removed(db, lease.workspace, append.summary.checkpoint).await?;
    }
    let ending = match append.summary.status {
        SessionStatus::Ended => audit::begin_end(db, append.session, append.at).await?,
        SessionStatus::Starting
        | SessionStatus::Active
        | SessionStatus::Paused
        | SessionStatus::Stopped
        | SessionStatus::Error => None,
    };
    advance(db, lease, append, before).await?;
    if let Some(ordered) = ending {
        audit::finish_end(db, seal, append.session, append.at, ordered).await?;
    }
    add_events(db, append.session, append.first_seq, &append.events).await?;
    add_deltas(db, append.session, &append.deltas, append.at).await?;
    for turn in &append.turns {
        save_turn(db, append.session, turn).await?;
    }
    if let Some(checkpoint) = &append.checkpoint {
        save_checkpoint(db, append.session, checkpoint).await?;
    }
    if let Some(JournalPosition { incarnation, process, position }) = append.journal {
        query(
            "INSERT INTO journals (incarnation, session, process, position) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (incarnation, session) DO UPDATE SET process = ?3, position = ?4",
        )
        .bind(incarnation.to_string())
        .bind(append.session.0)
        .bind(process)
        .bind(number(position)?)
        .execute(&mut *db)
        .await?;
    }
    for note in &append.events {
        if let Fact::Configured { options, .. } = &note.fact {
            set_options(db, append.session, options).await?;
        }
        if let Fact::Used(used) = &note.fact {
            usage::add(db, append.session, used, note.at).await?;
        }
        if let Fact::Labelled { metadata } = &note.fact {
            let noted = encode_metadata(metadata);
            let label =
                query("UPDATE sessions SET metadata = ? WHERE n = ?").bind(noted).bind(append.session.0);
            label.execute(&mut *db).await?;
        }
        // A shim's life is over and all of it is read: its place is not needed any more.
        if let Fact::Asleep { incarnation: Some(incarnation) } = &note.fact {
            query("DELETE FROM journals WHERE incarnation = ? AND session = ?")
                .bind(incarnation.to_string())
                .bind(append.session.0)
                .execute(&mut *db)
                .await?;
        }
    }
    Ok(())
}

/// Nobody comes to stand on a checkpoint whose files were given up.
async fn refuse_removed(
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

/// It was looked up before, and may have been given up since.
async fn refuse_fork_of_removed(
    db: &mut SqliteConnection,
    new: &NewSessionRow,
    checkpoint: &Checkpoint,
) -> Result<()> {
    let Some((parent, _)) = new.base else { return Ok(()) };
    let row = query(
        "SELECT max(c.number) AS number FROM checkpoints c JOIN sessions s ON s.workspace = c.workspace
         WHERE s.n = ? AND c.tree = ? HAVING count(*) > 0 AND count(*) = count(c.removed_at)",
    );
    let row = row.bind(parent.0).bind(&checkpoint.tree).fetch_optional(db).await?;
    match row {
        Some(row) => Err(Error::Removed(row.try_get::<i64, _>("number")? as u64)),
        None => Ok(()),
    }
}

/// Gives up the files of these, but for those that are needed by now, and says so in the audit.
pub(super) async fn remove_checkpoints(
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
        let (deed, by) = (AuditAction::CheckpointsRemoved, AuditActor::of_rule(KEEP));
        audit::add_for_session_with_detail(
            db,
            SessionRowId(session),
            (deed, at),
            (&by, Some(number_ranges(numbers))),
        )
        .await?;
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

/// Moves the session's row on, which only the holder of the lease can do, and only from the step before.
async fn advance(
    db: &mut SqliteConnection,
    lease: &Lease,
    append: &LogAppend,
    before: EventSeq,
) -> Result<()> {
    let SessionSummary { status, title, last_text, turns, open_turns, problem, checkpoint, pending, lock } =
        &append.summary;
    let done = query(
        "UPDATE sessions SET last_seq = ?1, status = ?2, title = ?3, last_text = ?4, turns = ?5, open_turns = ?6,
             problem = ?7, checkpoint = ?8, last_active_at = ?9, pending = ?14, lock = ?15
         WHERE n = ?10 AND last_seq = ?11
           AND EXISTS (SELECT 1 FROM workspaces w WHERE w.id = sessions.workspace AND w.id = ?12 AND w.epoch = ?13)",
    )
    .bind(number(before + append.events.len() as u64)?)
    .bind(status.as_str())
    .bind(title)
    .bind(last_text)
    .bind(number(*turns)?)
    .bind(number(*open_turns)?)
    .bind(problem.as_ref().map(encoded))
    .bind(checkpoint.map(number).transpose()?)
    .bind(append.at.0)
    .bind(append.session.0)
    .bind(number(before)?)
    .bind(lease.workspace.to_string())
    .bind(number(lease.epoch.0)?)
    .bind(encode_pending(pending))
    .bind(lock.as_ref().map(encoded))
    .execute(db)
    .await?;
    if done.rows_affected() == 0 {
        return Err(Error::Stale);
    }
    Ok(())
}

/// Mostly nothing: NULL.
pub(super) fn encode_pending(pending: &[EventSeq]) -> Option<String> {
    (!pending.is_empty()).then(|| serde_json::to_string(pending).expect("numbers are plain JSON"))
}

async fn add_events(
    db: &mut SqliteConnection,
    no: SessionRowId,
    first: EventSeq,
    notes: &[NewEvent],
) -> Result<()> {
    let mut numbered = (first..).zip(notes);
    while let Some(one) = numbered.next() {
        // Two at a time: most steps are one or two events, and every statement is a way to another thread and back.
        let two = numbered.next();
        let sql = match two {
            Some(_) => {
                "INSERT INTO events (session, seq, turn, at, kind, json, is_message) VALUES (?, ?, ?, ?, ?, ?, ?), (?, ?, ?, ?, ?, ?, ?)"
            }
            None => {
                "INSERT INTO events (session, seq, turn, at, kind, json, is_message) VALUES (?, ?, ?, ?, ?, ?, ?)"
            }
        };
        let mut insert = query(sql);
        for (seq, note) in [one].into_iter().chain(two) {
            let (kind, json) = (note.fact.kind(), note.fact.encode());
            let is_message = is_message(kind, &json);
            insert = insert
                .bind(no.0)
                .bind(number(seq)?)
                .bind(note.turn.map(|t| t.to_string()))
                .bind(note.at.0)
                .bind(kind)
                .bind(json)
                .bind(is_message);
        }
        insert.execute(&mut *db).await?;
    }
    Ok(())
}

async fn add_deltas(
    db: &mut SqliteConnection,
    no: SessionRowId,
    deltas: &[MessageDelta],
    at: Timestamp,
) -> Result<()> {
    for delta in deltas {
        query("INSERT INTO deltas (session, seq, n, turn, at, json) VALUES (?, ?, ?, ?, ?, ?)")
            .bind(no.0)
            .bind(number(delta.seq)?)
            .bind(number(delta.index)?)
            .bind(delta.turn.map(|t| t.to_string()))
            .bind(at.0)
            .bind(&delta.line)
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}

pub(super) async fn save_turn(db: &mut SqliteConnection, no: SessionRowId, turn: &TurnRow) -> Result<()> {
    query(
        "INSERT INTO turns (id, session, seq, state, attempt) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (id) DO UPDATE SET state = ?4, attempt = ?5",
    )
    .bind(turn.id.to_string())
    .bind(no.0)
    .bind(number(turn.seq)?)
    .bind(turn.state.as_str())
    .bind(turn.attempt)
    .execute(db)
    .await?;
    Ok(())
}

/// One that may be there already.
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

pub(super) async fn once(
    db: &mut SqliteConnection,
    words: &[String; 5],
    at: Timestamp,
) -> Result<IdempotencyClaim> {
    let [tenant, route, key, hash, resource] = words;
    let inserted = query("INSERT INTO idempotency (tenant, route, key, hash, resource, at) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING")
        .bind(tenant)
        .bind(route)
        .bind(key)
        .bind(hash)
        .bind(resource)
        .bind(at.0)
        .execute(&mut *db)
        .await?;
    let row = query("SELECT hash, resource FROM idempotency WHERE tenant = ? AND route = ? AND key = ?")
        .bind(tenant)
        .bind(route)
        .bind(key)
        .fetch_one(db)
        .await?;
    let (kept, resource): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    Ok(match (inserted.rows_affected() > 0, kept == *hash) {
        (true, _) => IdempotencyClaim::New(resource),
        (false, true) => IdempotencyClaim::Retry(resource),
        (false, false) => IdempotencyClaim::Conflict,
    })
}

pub(super) async fn forget_refused(db: &mut SqliteConnection, words: &[String; 3]) -> Result<()> {
    let [tenant, route, key] = words;
    query(
        "DELETE FROM idempotency WHERE tenant = ? AND route = ? AND key = ?
             AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = idempotency.resource)",
    )
    .bind(tenant)
    .bind(route)
    .bind(key)
    .execute(db)
    .await?;
    Ok(())
}

pub(super) async fn prune(db: &mut SqliteConnection, before: Timestamp) -> Result<u64> {
    // Deltas of a turn that still runs are what its readers are following.
    let deltas = query(
        "DELETE FROM deltas WHERE at < ? AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = deltas.turn
             AND t.state IN ('queued', 'running', 'saving', 'cut'))",
    )
    .bind(before.0)
    .execute(&mut *db)
    .await?;
    let keys = query("DELETE FROM idempotency WHERE at < ?").bind(before.0).execute(db).await?;
    Ok(deltas.rows_affected() + keys.rows_affected())
}

pub(super) fn encoded(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers")
}

/// SQLite's integers are signed; nothing of ours comes near the limit unless it is damaged.
pub(super) fn number(n: u64) -> Result<i64> {
    i64::try_from(n).map_err(|_| Error::Damaged { what: "number", why: format!("{n} is too large") })
}
