//! Lists of sessions. The statement has only the conditions that were asked for, so that SQLite uses the index that fits.

use super::{columns::unsigned, sessions::session_row};
use crate::{AccessScope, MetadataFilter, Result, SessionFilter, SessionListCursor, SessionPage};
use ash_model::SessionStatus;
use sqlx::{QueryBuilder, Sqlite, SqlitePool};

pub(super) async fn sessions(
    db: &SqlitePool,
    scope: &AccessScope,
    filter: &SessionFilter,
) -> Result<SessionPage> {
    let mut rows = QueryBuilder::new("SELECT * FROM sessions");
    narrow(&mut rows, scope, filter);
    if let Some(SessionListCursor { created_at, no }) = filter.before {
        rows.push(" AND (created_at, n) < (").push_bind(created_at.0).push(", ").push_bind(no.0).push(")");
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
    // The owner of the scope and the owner of the filter: if they differ, no session matches.
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
        // A range can use the index of the ids. DEL is greater than every character of an id.
        sql.push(" AND id >= ").push_bind(prefix.as_str());
        sql.push(" AND id < ").push_bind(format!("{prefix}\u{7f}"));
    }
    for MetadataFilter { name, value } in metadata {
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
