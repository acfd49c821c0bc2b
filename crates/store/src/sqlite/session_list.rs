//! Lists of sessions. Only what was asked for is in the statement, so that an index that fits is used.

use super::read::{session_row, unsigned};
use crate::{AccessScope, Result, SessionFilter, SessionPage};
use ash_model::SessionStatus;
use sqlx::{QueryBuilder, Sqlite, SqlitePool};

pub(super) async fn sessions(
    db: &SqlitePool,
    scope: &AccessScope,
    filter: &SessionFilter,
) -> Result<SessionPage> {
    let mut rows = QueryBuilder::new("SELECT * FROM sessions");
    narrow(&mut rows, scope, filter);
    if let Some((at, no)) = filter.before {
        rows.push(" AND (created_at, n) < (").push_bind(at.0).push(", ").push_bind(no.0).push(")");
    }
    rows.push(" ORDER BY created_at DESC, n DESC LIMIT ").push_bind(filter.limit.map_or(-1, i64::from));
    rows.push(" OFFSET ").push_bind(filter.offset);
    let rows = rows.build().fetch_all(db).await?;
    let mut count = QueryBuilder::new("SELECT count(*) FROM sessions");
    narrow(&mut count, scope, filter);
    let count = count.build().fetch_one(db).await?;
    Ok(SessionPage {
        sessions: rows.iter().map(session_row).collect::<Result<_>>()?,
        total: unsigned(&count, 0)?,
    })
}

fn narrow(sql: &mut QueryBuilder<Sqlite>, scope: &AccessScope, filter: &SessionFilter) {
    let SessionFilter { agent, status, workspace, id_prefix, owner, metadata, older, newer, .. } = filter;
    sql.push(" WHERE trashed_at IS NULL AND tenant = ").push_bind(scope.tenant.as_str());
    // What somebody may see and what they ask for: of two owners nothing is both.
    for owner in scope.owner.iter().chain(owner) {
        sql.push(" AND owner = ").push_bind(owner.as_str());
    }
    if let Some(agent) = agent {
        sql.push(" AND agent = ").push_bind(agent.as_str());
    }
    if let Some(status) = status.map(SessionStatus::as_str) {
        sql.push(" AND status = ").push_bind(status);
    }
    if let Some(slug) = workspace {
        sql.push(" AND slug = ").push_bind(slug.as_str());
    }
    if let Some(prefix) = id_prefix {
        // Ids are plain ASCII, which DEL is after. A range can use the index of the ids.
        sql.push(" AND id >= ").push_bind(prefix.as_str());
        sql.push(" AND id < ").push_bind(format!("{prefix}\u{7f}"));
    }
    for (name, value) in metadata {
        sql.push(" AND EXISTS (SELECT 1 FROM json_each(sessions.metadata) WHERE key = ").push_bind(name);
        sql.push(" AND value = ").push_bind(value).push(")");
    }
    if let Some(older) = older {
        sql.push(" AND last_active_at < ").push_bind(older.0);
    }
    if let Some(newer) = newer {
        sql.push(" AND last_active_at >= ").push_bind(newer.0);
    }
}
