//! Messages of users and of the agent by their ordinal, counted over the whole log of a session: also those that a rewind or
//! a crash superseded. An ordinal never changes, because the log only grows.

use super::{
    LogLineage,
    log::{LogPart, event, fitting, lineage_parts},
};
use crate::{NumberedMessage, Result};
use serde::Deserialize;
use sqlx::{Row, SqlitePool, query};
use std::borrow::Cow;

/// Whether clients see a row as a message. Only the type is read from the line, which may be long.
pub(super) fn is_message(kind: &str, json: &str) -> bool {
    #[derive(Deserialize)]
    struct AgentLineType<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<Cow<'a, str>>,
    }
    let kind_of = |line| serde_json::from_str::<AgentLineType>(line).ok().and_then(|line| line.kind);
    kind == "queued"
        || (kind == "said" && kind_of(json).is_some_and(|kind| matches!(&*kind, "assistant" | "result")))
}

macro_rules! of_messages {
    ($what:literal, $rest:literal) => {
        concat!(
            "SELECT ",
            $what,
            " FROM events INDEXED BY message_rows WHERE session = ?1 AND seq > ?2 AND seq <= ?3 AND is_message = 1",
            $rest
        )
    };
}

const COUNT: &str = of_messages!("count(*)", "");
const SIZES: &str = of_messages!("octet_length(json) AS size", " ORDER BY seq LIMIT ?4 OFFSET ?5");
const ROWS: &str = of_messages!("*", " ORDER BY seq LIMIT ?4 OFFSET ?5");

/// The messages with an ordinal above `after`: as many as fit into one page, at most `limit`.
pub(super) async fn messages(
    db: &SqlitePool,
    line: &LogLineage,
    after: u64,
    limit: u32,
) -> Result<Vec<NumberedMessage>> {
    let (mut found, mut used) = (Vec::new(), 0);
    // `before`: the number of messages before the part; `skip`: how many messages of the part are not asked for.
    let (mut before, mut skip) = (0_u64, i64::try_from(after).unwrap_or(i64::MAX));
    for LogPart { session, after, upto } in lineage_parts(line) {
        let part = |sql: &'static str| query(sql).bind(session.0).bind(after as i64).bind(upto as i64);
        // Only the parts of a fork's ancestors have an end, and only their length has to be known.
        let length = match upto < i64::MAX as u64 {
            true => part(COUNT).fetch_one(db).await?.try_get::<i64, _>(0)?,
            false => i64::MAX,
        };
        let left = limit - found.len() as u32;
        if skip < length && left > 0 {
            let sizes = part(SIZES).bind(left).bind(skip).fetch_all(db).await?;
            let fitting = fitting(&sizes, &mut used)?;
            let first = before + skip as u64 + 1;
            for (ordinal, row) in (first..).zip(&part(ROWS).bind(fitting).bind(skip).fetch_all(db).await?) {
                found.push(NumberedMessage { ordinal, event: event(row)? });
            }
            if (fitting as usize) < sizes.len() {
                return Ok(found);
            }
        }
        skip = (skip - length).max(0);
        before += length as u64;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::LogAncestor;
    use ash_model::SessionRowId;
    use sqlx::sqlite::SqlitePoolOptions;
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    /// One row of ten is a message.
    const APART: u64 = 10;

    async fn log(db: &SqlitePool, session: i64, rows: u64) -> LogLineage {
        query(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
             INSERT INTO events (session, seq, at, kind, json, is_message) SELECT ?1, i, 0, 'said', '{}', i % ?3 = 0 FROM n",
        )
        .bind(session)
        .bind(rows as i64)
        .bind(APART as i64)
        .execute(db)
        .await
        .expect("inserted");
        [LogAncestor { session: SessionRowId(session), after: 0 }].into()
    }

    /// How many instructions SQLite's machine takes for a page of four after this ordinal.
    async fn cost(db: &SqlitePool, line: &LogLineage, after: u64) -> u64 {
        let steps = Arc::new(AtomicU64::new(0));
        let counted = steps.clone();
        let count = move || counted.fetch_add(1, Ordering::Relaxed) < u64::MAX;
        let mut connection = db.acquire().await.expect("a connection");
        connection.lock_handle().await.expect("a handle").set_progress_handler(1, count);
        drop(connection);
        let found = messages(db, line, after, 4).await.expect("messages");
        let numbers: Vec<u64> = found.iter().map(|message| message.ordinal).collect();
        assert_eq!(numbers, (after + 1..=after + 4).collect::<Vec<_>>());
        steps.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn a_page_of_messages_costs_the_same_in_a_long_log() {
        let db =
            SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.expect("opened");
        sqlx::migrate!("migrations/sqlite").run(&db).await.expect("migrated");
        let (young, old) = (log(&db, 1, 10 * APART).await, log(&db, 2, 2000 * APART).await);
        // The first call also prepares its statements.
        cost(&db, &young, 0).await;
        let first = cost(&db, &young, 0).await;
        assert_eq!(cost(&db, &old, 0).await, first);
        // Both statements step over the index entries of the messages before the page, and over no other row.
        let last = cost(&db, &old, 1996).await;
        assert!(last < first + 1996 * 16, "{last} beside {first}");
    }
}
