//! The log of a session. A fork reads its parents' logs before its own.

use super::{
    LogAncestor, LogLineage, SqliteStore,
    checkpoints::{refuse_removed, save_checkpoint},
    columns::{encoded, number, optional, parsed, unsigned},
    messages::{self, is_message},
    purge, retention,
    sessions::{encode_metadata, encode_pending, set_options},
    usage,
};
use crate::{
    Error, EventQuery, Lease, LogAppend, LogItem, LogItemContent, LogStore, NumberedMessage, Result,
    SealingKey, SessionJournalPosition, SessionSummary, TurnRow, TurnState,
};
use ash_model::{
    Event, EventSeq, Fact, Incarnation, JournalPosition, LogCursor, MessageDelta, NewEvent, SessionRowId,
    SessionStatus, Timestamp, TurnId,
};
use async_trait::async_trait;
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};

#[async_trait]
impl LogStore for SqliteStore {
    async fn append(&self, lease: &Lease, append: LogAppend) -> Result<()> {
        let (lease, seal) = (lease.clone(), self.seal.clone());
        self.writer
            .write(move |db| {
                Box::pin(async move {
                    let mut append = append;
                    purge::hide_gone_neighbours(db, lease.workspace, &mut append).await?;
                    append_step(db, &seal, &lease, &append).await
                })
            })
            .await
    }

    async fn facts(&self, no: SessionRowId) -> Result<Vec<Event>> {
        facts(&self.readers, no).await
    }

    async fn read_log(&self, no: SessionRowId, after: LogCursor, limit: u32) -> Result<Vec<LogItem>> {
        read_log(&self.readers, &self.lineage(no).await?, after, limit).await
    }

    async fn messages(&self, no: SessionRowId, after: u64, limit: u32) -> Result<Vec<NumberedMessage>> {
        messages::messages(&self.readers, &self.lineage(no).await?, after, limit).await
    }

    async fn events(&self, no: SessionRowId, query: &EventQuery) -> Result<Vec<Event>> {
        events(&self.readers, &self.lineage(no).await?, query).await
    }

    async fn journal_positions(&self, incarnation: Incarnation) -> Result<Vec<SessionJournalPosition>> {
        journal_positions(&self.readers, incarnation).await
    }

    async fn turn(&self, no: SessionRowId, turn: TurnId) -> Result<Option<TurnRow>> {
        find_turn(&self.readers, no, turn).await
    }
}

async fn append_step(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    lease: &Lease,
    append: &LogAppend,
) -> Result<()> {
    // Events are numbered from 1, so no log ends right before a step numbered 0.
    let before = append.first_seq.checked_sub(1).ok_or(Error::Stale)?;
    if append.events.iter().any(|event| matches!(event.fact, Fact::Rewound(_) | Fact::Resumed { .. })) {
        refuse_removed(db, lease.workspace, append.summary.checkpoint).await?;
    }
    let ending = match append.summary.status {
        SessionStatus::Ended => retention::begin_end(db, append.session, append.at).await?,
        SessionStatus::Starting
        | SessionStatus::Active
        | SessionStatus::Paused
        | SessionStatus::Stopped
        | SessionStatus::Error => None,
    };
    advance(db, lease, append, before).await?;
    if let Some(request) = &ending {
        retention::finish_end(db, seal, append.session, append.at, request).await?;
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
    for event in &append.events {
        update_columns(db, append.session, event).await?;
    }
    Ok(())
}

/// Some facts change columns and tables beside the log.
async fn update_columns(db: &mut SqliteConnection, no: SessionRowId, event: &NewEvent) -> Result<()> {
    if let Fact::Configured { options, .. } = &event.fact {
        set_options(db, no, options).await?;
    }
    if let Fact::Used(used) = &event.fact {
        usage::add(db, no, used, event.at).await?;
    }
    if let Fact::Labelled { metadata } = &event.fact {
        let labels = query("UPDATE sessions SET metadata = ? WHERE n = ?").bind(encode_metadata(metadata));
        labels.bind(no.0).execute(&mut *db).await?;
    }
    // The shim has ended and its whole journal is in the log: its position is not needed any more.
    if let Fact::Asleep { incarnation: Some(incarnation) } = &event.fact {
        query("DELETE FROM journals WHERE incarnation = ? AND session = ?")
            .bind(incarnation.to_string())
            .bind(no.0)
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}

/// Updates the session's row. This is where a step is refused whose lease is not current, or that does not follow the last
/// event.
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

pub(super) async fn add_events(
    db: &mut SqliteConnection,
    no: SessionRowId,
    first: EventSeq,
    notes: &[NewEvent],
) -> Result<()> {
    let mut numbered = (first..).zip(notes);
    while let Some(one) = numbered.next() {
        // Two at a time: most steps have one or two events, and every statement costs a round trip to another thread.
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

pub(super) async fn lineage(db: &SqlitePool, no: SessionRowId) -> Result<Vec<LogAncestor>> {
    let rows = query(
        "WITH RECURSIVE line (n, base_session, base_seq) AS (
             SELECT n, base_session, base_seq FROM sessions WHERE n = ?
             UNION ALL SELECT s.n, s.base_session, min(s.base_seq, l.base_seq) FROM sessions s JOIN line l ON s.n = l.base_session)
         SELECT n, base_seq FROM line",
    )
    .bind(no.0)
    .fetch_all(db)
    .await?;
    rows.iter()
        .map(|row| Ok(LogAncestor { session: SessionRowId(row.try_get(0)?), after: unsigned(row, 1)? }))
        .collect()
}

/// The part of a log that is read from one session of its line.
#[derive(Clone, Copy)]
pub(super) struct LogPart {
    pub(super) session: SessionRowId,
    /// Its events after this one.
    pub(super) after: EventSeq,
    /// Up to this one.
    pub(super) upto: EventSeq,
}

/// The parts of a log, the oldest first.
pub(super) fn lineage_parts(line: &LogLineage) -> Vec<LogPart> {
    let mut upto = i64::MAX as u64;
    let mut parts = Vec::new();
    for &LogAncestor { session, after } in line.iter() {
        parts.push(LogPart { session, after, upto });
        upto = after;
    }
    parts.reverse();
    parts
}

async fn facts(db: &SqlitePool, no: SessionRowId) -> Result<Vec<Event>> {
    let rows = query("SELECT * FROM events WHERE session = ? AND kind <> 'said' ORDER BY seq")
        .bind(no.0)
        .fetch_all(db)
        .await?;
    rows.iter().map(event).collect()
}

/// How many bytes one page may have, unless its first row alone is larger. A sandbox can write lines of any length, and a
/// page of them must still fit into memory.
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

async fn read_log(db: &SqlitePool, line: &LogLineage, after: LogCursor, limit: u32) -> Result<Vec<LogItem>> {
    let (mut items, mut used) = (Vec::new(), 0);
    for LogPart { session, after: own_after, upto } in lineage_parts(line) {
        let left = limit - items.len() as u32;
        if left == 0 || after.seq >= upto {
            continue;
        }
        // The deltas after a fork's last shared event are not shared.
        let from = if after.seq >= own_after { after } else { LogCursor::event(own_after) };
        let asked = |sql: &'static str, limit: u32| {
            let bound = query(sql).bind(session.0).bind(from.seq as i64).bind(from.delta as i64);
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

async fn events(db: &SqlitePool, line: &LogLineage, asked: &EventQuery) -> Result<Vec<Event>> {
    let kinds =
        (!asked.kinds.is_empty()).then(|| serde_json::to_string(&asked.kinds).expect("a list of words"));
    let sql = EventsSql::of(&asked.kinds);
    let (mut events, mut used) = (Vec::new(), 0);
    for LogPart { session, after: own_after, upto } in lineage_parts(line) {
        let left = asked.limit - events.len() as u32;
        if left == 0 || asked.after >= upto {
            continue;
        }
        let after = asked.after.max(own_after) as i64;
        let asked = |sql: &'static str, limit: u32| {
            query(sql).bind(session.0).bind(after).bind(upto as i64).bind(&kinds).bind(limit)
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

async fn journal_positions(db: &SqlitePool, incarnation: Incarnation) -> Result<Vec<SessionJournalPosition>> {
    let rows = query("SELECT session, process, position FROM journals WHERE incarnation = ?")
        .bind(incarnation.to_string())
        .fetch_all(db)
        .await?;
    let position = |row: &SqliteRow| {
        let journal = JournalPosition { incarnation, process: row.try_get(1)?, position: unsigned(row, 2)? };
        Ok(SessionJournalPosition { session: SessionRowId(row.try_get(0)?), journal })
    };
    rows.iter().map(position).collect()
}

async fn find_turn(db: &SqlitePool, no: SessionRowId, turn: TurnId) -> Result<Option<TurnRow>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn superseded_events_are_found_without_reading_the_log() {
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
