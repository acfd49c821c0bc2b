//! Reading rows. The log is shared along a fork's line of parents; everything else is one row at a time.

use super::LogLineage;
use crate::{
    AccessScope, AgentRow, AgentVersion, ApiKey, Checkpoint, Error, EventQuery, KeptAgentCounts, LeaseHolder,
    LogItem, LogItemContent, Result, SealedSessionValues, SealingKey, SessionRow, SessionSummary,
    TenantCheckpoint, TenantSnapshots, TurnRow, TurnState,
};
use ash_model::{
    AgentName, AgentRuntime, CaptureConsistency, Epoch, Event, EventSeq, Fact, Image, Incarnation,
    JournalPosition, LogCursor, ModelProvider, OwnerId, ResourceLimits, SandboxRequirements, SessionId,
    SessionRowId, SessionStatus, Slug, TenantId, Timestamp, TurnId, WorkspaceId, WorkspaceRewind,
};
use sqlx::{Row, SqlitePool, query, sqlite::SqliteRow};
use uuid::Uuid;

pub(super) async fn key(db: &SqlitePool, hash: &str) -> Result<Option<ApiKey>> {
    let row = query("SELECT * FROM api_keys WHERE hash = ?").bind(hash).fetch_optional(db).await?;
    row.as_ref().map(key_row).transpose()
}

pub(super) async fn keys(db: &SqlitePool, tenant: &TenantId) -> Result<Vec<ApiKey>> {
    let rows = query("SELECT * FROM api_keys WHERE tenant = ? ORDER BY created_at, id")
        .bind(tenant.as_str())
        .fetch_all(db)
        .await?;
    rows.iter().map(key_row).collect()
}

pub(super) fn key_row(row: &SqliteRow) -> Result<ApiKey> {
    Ok(ApiKey {
        id: row.try_get("id")?,
        tenant: parsed(row, "tenant", |text| TenantId::parse(text).ok())?,
        owner: owner(row)?,
        label: row.try_get("label")?,
        created_at: Timestamp(row.try_get("created_at")?),
    })
}

pub(super) fn owner(row: &SqliteRow) -> Result<Option<OwnerId>> {
    optional(row, "owner", |text| OwnerId::parse(text).ok())
}

pub(super) async fn agents(
    db: &SqlitePool,
    seal: &SealingKey,
    tenant: &TenantId,
    name: Option<&AgentName>,
) -> Result<Vec<AgentRow>> {
    let rows = query(
        "SELECT a.*, v.tree, v.runtime, v.provider, v.image, v.limits, v.needs, v.origin FROM agents a
         JOIN agent_versions v ON v.agent = a.n AND v.version = a.version
         WHERE a.tenant = ?1 AND a.deleted_at IS NULL AND (?2 IS NULL OR a.name = ?2) ORDER BY a.name",
    )
    .bind(tenant.as_str())
    .bind(name.map(|n| n.as_str()))
    .fetch_all(db)
    .await?;
    rows.iter().map(|row| agent(row, seal)).collect()
}

pub(super) async fn kept_agents(
    db: &SqlitePool,
    tenant: &TenantId,
    name: &AgentName,
) -> Result<KeptAgentCounts> {
    let row = query(
        "SELECT (SELECT count(*) FROM agents WHERE tenant = ?1),
                (SELECT count(*) FROM agent_versions v JOIN agents a ON a.n = v.agent WHERE a.tenant = ?1 AND a.name = ?2)",
    )
    .bind(tenant.as_str())
    .bind(name.as_str())
    .fetch_one(db)
    .await?;
    let (names, versions): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    Ok(KeptAgentCounts { names: names.unsigned_abs(), versions: versions.unsigned_abs() })
}

pub(super) async fn claimed(
    db: &SqlitePool,
    tenant: &TenantId,
    route: &str,
    key: &str,
) -> Result<Option<String>> {
    let row = query("SELECT resource FROM idempotency WHERE tenant = ? AND route = ? AND key = ?")
        .bind(tenant.as_str())
        .bind(route)
        .bind(key)
        .fetch_optional(db)
        .await?;
    row.map(|row| Ok(row.try_get(0)?)).transpose()
}

/// As of one of its versions, whether it was deleted since or not.
pub(super) async fn agent_at(
    db: &SqlitePool,
    seal: &SealingKey,
    (tenant, name): (&TenantId, &AgentName),
    version: u32,
) -> Result<Option<AgentRow>> {
    let row = query(
        "SELECT a.*, v.tree, v.runtime, v.provider, v.image, v.limits, v.needs, v.origin FROM agents a
         JOIN agent_versions v ON v.agent = a.n WHERE a.tenant = ? AND a.name = ? AND v.version = ?",
    )
    .bind(tenant.as_str())
    .bind(name.as_str())
    .bind(version)
    .fetch_optional(db)
    .await?;
    row.map(|row| Ok(AgentRow { version, ..agent(&row, seal)? })).transpose()
}

fn agent(row: &SqliteRow, seal: &SealingKey) -> Result<AgentRow> {
    Ok(AgentRow {
        id: parsed(row, "id", |text| Uuid::try_parse(text).ok())?,
        tenant: parsed(row, "tenant", |text| TenantId::parse(text).ok())?,
        name: parsed(row, "name", |text| AgentName::parse(text).ok())?,
        version: row.try_get("version")?,
        runtime: parsed(row, "runtime", AgentRuntime::parse)?,
        provider: provider(row)?,
        image: image(row)?,
        limits: limits(row)?,
        needs: needs(row)?,
        tree: row.try_get("tree")?,
        origin: row.try_get("origin")?,
        config: row.try_get("config")?,
        env: seal.unseal(row.try_get("env")?)?,
        created_at: Timestamp(row.try_get("created_at")?),
        updated_at: Timestamp(row.try_get("updated_at")?),
    })
}

pub(super) fn provider(row: &SqliteRow) -> Result<Option<ModelProvider>> {
    let named: Option<&str> = row.try_get("provider")?;
    named.map(|_| parsed(row, "provider", ModelProvider::parse)).transpose()
}

pub(super) fn image(row: &SqliteRow) -> Result<Option<Image>> {
    let named: Option<&str> = row.try_get("image")?;
    named.map(|_| parsed(row, "image", |text| Image::parse(text).ok())).transpose()
}

pub(super) fn limits(row: &SqliteRow) -> Result<Option<ResourceLimits>> {
    let stored: Option<&str> = row.try_get("limits")?;
    stored.map(|_| parsed(row, "limits", |text| serde_json::from_str(text).ok())).transpose()
}

pub(super) fn needs(row: &SqliteRow) -> Result<SandboxRequirements> {
    let stored: Option<&str> = row.try_get("needs")?;
    stored.map_or(Ok(SandboxRequirements::default()), |_| {
        parsed(row, "needs", |text| serde_json::from_str(text).ok())
    })
}

/// Also of a deleted agent: its sessions go on with the version that they were made of.
pub(super) async fn version(
    db: &SqlitePool,
    seal: &SealingKey,
    tenant: &TenantId,
    name: &AgentName,
    version: u32,
) -> Result<Option<AgentVersion>> {
    let row = query(
        "SELECT v.tree, v.runtime, v.provider, v.image, v.limits, v.needs, a.env FROM agents a JOIN agent_versions v ON v.agent = a.n
         WHERE a.tenant = ? AND a.name = ? AND v.version = ?",
    )
    .bind(tenant.as_str())
    .bind(name.as_str())
    .bind(version)
    .fetch_optional(db)
    .await?;
    row.map(|row| {
        let env = seal.unseal(row.try_get("env")?)?;
        let runtime = parsed(&row, "runtime", AgentRuntime::parse)?;
        Ok(AgentVersion {
            tree: row.try_get("tree")?,
            runtime,
            provider: provider(&row)?,
            image: image(&row)?,
            limits: limits(&row)?,
            needs: needs(&row)?,
            env,
        })
    })
    .transpose()
}

pub(super) async fn find(db: &SqlitePool, scope: &AccessScope, id: &SessionId) -> Result<Option<SessionRow>> {
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

pub(super) async fn session(db: &SqlitePool, no: SessionRowId) -> Result<Option<SessionRow>> {
    let row = query("SELECT * FROM sessions WHERE n = ?").bind(no.0).fetch_optional(db).await?;
    row.as_ref().map(session_row).transpose()
}

/// Whatever is not plainly at rest: awake or starting, or with a turn that is not over.
pub(super) async fn restless(db: &SqlitePool) -> Result<Vec<SessionRowId>> {
    let rows = query(
        "SELECT n FROM sessions WHERE status IN ('starting', 'active') OR (open_turns > 0 AND status <> 'ended') ORDER BY n",
    )
    .fetch_all(db)
    .await?;
    rows.iter().map(|row| Ok(SessionRowId(row.try_get(0)?))).collect()
}

pub(super) async fn sessions_of(
    db: &SqlitePool,
    workspace: WorkspaceId,
) -> Result<Vec<(SessionRowId, SessionStatus)>> {
    let rows = query("SELECT n, status FROM sessions WHERE workspace = ?")
        .bind(workspace.to_string())
        .fetch_all(db)
        .await?;
    rows.iter()
        .map(|row| Ok((SessionRowId(row.try_get("n")?), parsed(row, "status", SessionStatus::parse)?)))
        .collect()
}

pub(super) async fn sealed(db: &SqlitePool, no: SessionRowId) -> Result<SealedSessionValues> {
    let row = query("SELECT env, secrets FROM sessions WHERE n = ?").bind(no.0).fetch_optional(db).await?;
    let Some(row) = row else { return Ok(SealedSessionValues::default()) };
    Ok(SealedSessionValues { env: row.try_get("env")?, secrets: row.try_get("secrets")? })
}

pub(super) async fn count_active(db: &SqlitePool, tenant: &TenantId) -> Result<u64> {
    let row = query("SELECT count(*) FROM sessions WHERE tenant = ? AND status = 'active'")
        .bind(tenant.as_str())
        .fetch_one(db)
        .await?;
    unsigned(&row, 0)
}

pub(super) fn session_row(row: &SqliteRow) -> Result<SessionRow> {
    let base: Option<i64> = row.try_get("base_session")?;
    let base_seq = unsigned(row, "base_seq")?;
    Ok(SessionRow {
        no: SessionRowId(row.try_get("n")?),
        tenant: parsed(row, "tenant", |text| TenantId::parse(text).ok())?,
        owner: owner(row)?,
        metadata: optional(row, "metadata", |text| serde_json::from_str(text).ok())?.unwrap_or_default(),
        // In the trash it is only looked at by those who forget it, and they need what it was called.
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
        base: base.map(|no| (SessionRowId(no), base_seq)),
        last_seq: unsigned(row, "last_seq")?,
        summary: card(row)?,
        remote_checkpoint: row.try_get::<Option<i64>, _>("far_checkpoint")?.map(|n| n as u64),
        remote_seq: unsigned(row, "far_seq")?,
        created_at: Timestamp(row.try_get("created_at")?),
        last_active_at: Timestamp(row.try_get("last_active_at")?),
    })
}

fn card(row: &SqliteRow) -> Result<SessionSummary> {
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

pub(super) async fn hold(db: &SqlitePool, workspace: WorkspaceId) -> Result<Option<LeaseHolder>> {
    let row = query("SELECT node, epoch FROM workspaces WHERE id = ?")
        .bind(workspace.to_string())
        .fetch_optional(db)
        .await?;
    row.map(|row| Ok(LeaseHolder { node: row.try_get("node")?, epoch: Epoch(unsigned(&row, "epoch")?) }))
        .transpose()
}

pub(super) async fn lineage(db: &SqlitePool, no: SessionRowId) -> Result<Vec<(SessionRowId, EventSeq)>> {
    let rows = query(
        "WITH RECURSIVE line (n, base_session, base_seq) AS (
             SELECT n, base_session, base_seq FROM sessions WHERE n = ?
             UNION ALL SELECT s.n, s.base_session, min(s.base_seq, l.base_seq) FROM sessions s JOIN line l ON s.n = l.base_session)
         SELECT n, base_seq FROM line",
    )
    .bind(no.0)
    .fetch_all(db)
    .await?;
    rows.iter().map(|row| Ok((SessionRowId(row.try_get(0)?), unsigned(row, 1)?))).collect()
}

/// Each session of the line with the part of the log that is read from it: after `.1`, up to `.2`. Oldest first.
pub(super) fn lineage_parts(line: &LogLineage) -> Vec<(SessionRowId, EventSeq, EventSeq)> {
    let mut upto = i64::MAX as u64;
    let mut parts = Vec::new();
    for &(no, own_after) in line.iter() {
        parts.push((no, own_after, upto));
        upto = own_after;
    }
    parts.reverse();
    parts
}

pub(super) async fn facts(db: &SqlitePool, no: SessionRowId) -> Result<Vec<Event>> {
    let rows = query("SELECT * FROM events WHERE session = ? AND kind <> 'said' ORDER BY seq")
        .bind(no.0)
        .fetch_all(db)
        .await?;
    rows.iter().map(event).collect()
}

/// What one answer may hold, unless its first row alone is larger: lines are as long as a sandbox likes to make
/// them, and a page of them must still fit into memory.
const MAX_PAGE_BYTES: u64 = 8 << 20;

/// How many rows of these sizes fit, after `used` bytes of others.
pub(super) fn fitting(sizes: &[SqliteRow], used: &mut u64) -> Result<u32> {
    let mut count = 0;
    for row in sizes {
        let size = unsigned(row, "size")?;
        if *used > 0 && *used + size > MAX_PAGE_BYTES {
            break;
        }
        *used += size.max(1);
        count += 1;
    }
    Ok(count)
}

const ITEMS: &str = "
    SELECT seq, 0 AS n, turn, at, kind, json FROM events WHERE session = ?1 AND seq > ?2 AND seq <= ?4
    UNION ALL
    SELECT seq, n, turn, at, 'delta', json FROM deltas WHERE session = ?1 AND (seq, n) > (?2, ?3) AND seq < ?4
    ORDER BY 1, 2 LIMIT ?5";
const ITEM_SIZES: &str = "
    SELECT seq, 0 AS n, octet_length(json) AS size FROM events WHERE session = ?1 AND seq > ?2 AND seq <= ?4
    UNION ALL
    SELECT seq, n, octet_length(json) FROM deltas WHERE session = ?1 AND (seq, n) > (?2, ?3) AND seq < ?4
    ORDER BY 1, 2 LIMIT ?5";

pub(super) async fn items(
    db: &SqlitePool,
    line: &LogLineage,
    after: LogCursor,
    limit: u32,
) -> Result<Vec<LogItem>> {
    let (mut items, mut used) = (Vec::new(), 0);
    for (no, own_after, upto) in lineage_parts(line) {
        let left = limit - items.len() as u32;
        if left == 0 || after.seq >= upto {
            continue;
        }
        // The deltas after a fork's last shared event belong to the parent alone.
        let from = if after.seq >= own_after { after } else { LogCursor::event(own_after) };
        let asked = |sql: &'static str, limit: u32| {
            let bound = query(sql).bind(no.0).bind(from.seq as i64).bind(from.delta as i64);
            bound.bind(upto as i64).bind(limit)
        };
        let sizes = asked(ITEM_SIZES, left).fetch_all(db).await?;
        let fitting = fitting(&sizes, &mut used)?;
        for row in &asked(ITEMS, fitting).fetch_all(db).await? {
            items.push(item(row)?);
        }
        if (fitting as usize) < sizes.len() {
            break;
        }
    }
    Ok(items)
}

fn item(row: &SqliteRow) -> Result<LogItem> {
    let kind: String = row.try_get("kind")?;
    let json: String = row.try_get("json")?;
    let what =
        if kind == "delta" { LogItemContent::Delta(json) } else { LogItemContent::Event(fact(&kind, json)?) };
    Ok(LogItem {
        at: LogCursor::delta(unsigned(row, "seq")?, unsigned(row, "n")?),
        turn: optional(row, "turn", TurnId::parse)?,
        time: Timestamp(row.try_get("at")?),
        content: what,
    })
}

macro_rules! of_kinds {
    ($what:literal, $index:literal, $kinds:literal) => {
        concat!(
            "SELECT ",
            $what,
            " FROM events ",
            $index,
            " WHERE session = ?1 AND seq > ?2 AND seq <= ?3 AND ",
            $kinds,
            " ORDER BY seq LIMIT ?5"
        )
    };
    ($what:literal) => {
        of_kinds!($what, "", "(?4 IS NULL OR kind IN (SELECT value FROM json_each(?4)))")
    };
    ($what:literal, indexed) => {
        of_kinds!(
            $what,
            "INDEXED BY superseding_rows",
            "kind IN ('forked', 'continued', 'requeued', 'rewound') AND kind IN (SELECT value FROM json_each(?4))"
        )
    };
}

/// The same rows: as they are, and only how long they are.
struct EventsSql {
    rows: &'static str,
    sizes: &'static str,
}

impl EventsSql {
    const SCAN: EventsSql =
        EventsSql { rows: of_kinds!("*"), sizes: of_kinds!("octet_length(json) AS size") };
    const INDEXED: EventsSql =
        EventsSql { rows: of_kinds!("*", indexed), sizes: of_kinds!("octet_length(json) AS size", indexed) };

    fn of(kinds: &[&str]) -> EventsSql {
        let is_indexed = !kinds.is_empty() && kinds.iter().all(|kind| EventQuery::SUPERSEDING.contains(kind));
        if is_indexed { EventsSql::INDEXED } else { EventsSql::SCAN }
    }
}

pub(super) async fn events(db: &SqlitePool, line: &LogLineage, asked: &EventQuery) -> Result<Vec<Event>> {
    let kinds =
        (!asked.kinds.is_empty()).then(|| serde_json::to_string(&asked.kinds).expect("a list of words"));
    let sql = EventsSql::of(&asked.kinds);
    let (mut events, mut used) = (Vec::new(), 0);
    for (no, own_after, upto) in lineage_parts(line) {
        let left = asked.limit - events.len() as u32;
        if left == 0 || asked.after >= upto {
            continue;
        }
        let after = asked.after.max(own_after) as i64;
        let asked = |sql: &'static str, limit: u32| {
            query(sql).bind(no.0).bind(after).bind(upto as i64).bind(&kinds).bind(limit)
        };
        let sizes = asked(sql.sizes, left).fetch_all(db).await?;
        let fitting = fitting(&sizes, &mut used)?;
        for row in &asked(sql.rows, fitting).fetch_all(db).await? {
            events.push(event(row)?);
        }
        if (fitting as usize) < sizes.len() {
            break;
        }
    }
    Ok(events)
}

pub(super) fn event(row: &SqliteRow) -> Result<Event> {
    let kind: String = row.try_get("kind")?;
    Ok(Event {
        seq: unsigned(row, "seq")?,
        turn: optional(row, "turn", TurnId::parse)?,
        at: Timestamp(row.try_get("at")?),
        fact: fact(&kind, row.try_get("json")?)?,
    })
}

fn fact(kind: &str, json: String) -> Result<Fact> {
    Fact::decode(kind, json)
        .map_err(|error| Error::Damaged { what: "event", why: format!("{kind}: {error}") })
}

pub(super) async fn positions(
    db: &SqlitePool,
    incarnation: Incarnation,
) -> Result<Vec<(SessionRowId, JournalPosition)>> {
    let rows = query("SELECT session, process, position FROM journals WHERE incarnation = ?")
        .bind(incarnation.to_string())
        .fetch_all(db)
        .await?;
    let heard = |row: &SqliteRow| {
        let heard = JournalPosition { incarnation, process: row.try_get(1)?, position: unsigned(row, 2)? };
        Ok((SessionRowId(row.try_get(0)?), heard))
    };
    rows.iter().map(heard).collect()
}

pub(super) async fn turn(db: &SqlitePool, no: SessionRowId, turn: TurnId) -> Result<Option<TurnRow>> {
    let row = query("SELECT * FROM turns WHERE id = ? AND session = ?")
        .bind(turn.to_string())
        .bind(no.0)
        .fetch_optional(db)
        .await?;
    row.map(|row| {
        let state = parsed(&row, "state", TurnState::parse)?;
        Ok(TurnRow { id: turn, seq: unsigned(&row, "seq")?, state, attempt: row.try_get("attempt")? })
    })
    .transpose()
}

pub(super) async fn checkpoint(
    db: &SqlitePool,
    workspace: WorkspaceId,
    number: u64,
) -> Result<Option<Checkpoint>> {
    let row = query("SELECT * FROM checkpoints WHERE workspace = ? AND number = ?")
        .bind(workspace.to_string())
        .bind(number as i64)
        .fetch_optional(db)
        .await?;
    row.map(|row| checkpoint_row(&row, workspace)).transpose()
}

pub(super) async fn checkpoints(
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

pub(super) async fn taken_back(
    db: &SqlitePool,
    workspace: WorkspaceId,
    after: u64,
) -> Result<Vec<(WorkspaceRewind, Timestamp)>> {
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
            Ok((WorkspaceRewind { by, checkpoint, to }, Timestamp(row.try_get("at")?)))
        })
        .collect()
}

pub(super) async fn tenants(db: &SqlitePool) -> Result<Vec<TenantId>> {
    let rows = query("SELECT tenant FROM agents UNION SELECT tenant FROM workspaces ORDER BY tenant");
    rows.fetch_all(db)
        .await?
        .iter()
        .map(|row| parsed(row, "tenant", |text| TenantId::parse(text).ok()))
        .collect()
}

pub(super) async fn holdings(db: &SqlitePool, tenant: &TenantId) -> Result<TenantSnapshots> {
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

pub(super) fn unsigned<I: sqlx::ColumnIndex<SqliteRow>>(row: &SqliteRow, column: I) -> Result<u64> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| Error::Damaged { what: "number", why: format!("{number} is negative") })
}

pub(super) fn parsed<T>(
    row: &SqliteRow,
    column: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T> {
    let text: &str = row.try_get(column)?;
    parse(text).ok_or_else(|| Error::Damaged { what: column, why: format!("{text:?}") })
}

pub(super) fn optional<T>(
    row: &SqliteRow,
    column: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>> {
    let text: Option<&str> = row.try_get(column)?;
    text.map(|text| parse(text).ok_or_else(|| Error::Damaged { what: column, why: format!("{text:?}") }))
        .transpose()
}

/// What SQLite finds wrong with its own pages.
pub(super) async fn damage(db: &SqlitePool) -> Result<Option<String>> {
    let found: String = query("PRAGMA quick_check(1)").fetch_one(db).await?.try_get(0)?;
    Ok((found != "ok").then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_of_a_log_does_not_count_is_found_without_reading_the_log() {
        let db = SqlitePool::connect("sqlite::memory:").await.expect("opened");
        sqlx::migrate!("migrations/sqlite").run(&db).await.expect("migrated");
        for (kinds, indexed) in [
            (&EventQuery::SUPERSEDING[..], true),
            (&["rewound"], true),
            (&["saved", "rewound"], false),
            (&[], false),
        ] {
            let EventsSql { rows, sizes } = EventsSql::of(kinds);
            for sql in [rows, sizes] {
                let plan = sqlx::query(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")));
                let steps = plan.fetch_all(&db).await.expect("a plan");
                let steps: Vec<String> = steps.iter().map(|step| step.get("detail")).collect();
                let found = steps
                    .iter()
                    .any(|step| step.contains("INDEX superseding_rows (session=? AND seq>? AND seq<?)"));
                assert_eq!(found, indexed, "{kinds:?}: {steps:?}");
            }
        }
    }
}
