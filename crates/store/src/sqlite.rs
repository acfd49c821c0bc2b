//! SQLite: one file, one writer. The default for a single server, and nothing to install.

mod adoption;
mod agents;
mod audit;
mod checkpoints;
mod columns;
mod credentials;
mod idempotency;
mod keys;
mod leases;
mod log;
mod messages;
mod purge;
mod remote_inventory;
mod repair;
mod replication;
mod resources;
mod retention;
mod session_list;
mod sessions;
mod trash;
mod usage;
mod workspaces;
mod writer;

use crate::{Error, Result, SealingKey};
use ash_model::{EventSeq, SessionRowId};
use sqlx::{
    ConnectOptions, Connection, Row, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use std::{
    collections::HashMap,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};
use writer::SqliteWriter;

/// The first release without the WAL-reset bug, which could lose committed data.
const MIN_SQLITE_VERSION: (&str, i64) = ("3.51.3", 3_051_003);

/// A store in one SQLite file, written by one task of this process.
pub struct SqliteStore {
    writer: SqliteWriter,
    readers: SqlitePool,
    seal: Arc<SealingKey>,
    /// The sessions that a log is read from. A session's line only changes when a history is adopted, so it is read once.
    lineages: Mutex<HashMap<SessionRowId, LogLineage>>,
}

/// A session whose own events are part of a log.
#[derive(Debug, Clone, Copy)]
struct LogAncestor {
    session: SessionRowId,
    /// The last event that it shares with its own parent: its own events come after it.
    after: EventSeq,
}

/// The sessions that a log is read from: the session itself, its parent, and so on.
type LogLineage = Arc<[LogAncestor]>;

impl SqliteStore {
    /// Opens the database, or creates it, and brings it up to date.
    pub async fn open(path: &Path, seal: SealingKey) -> Result<SqliteStore> {
        SqliteStore::open_reporting(path, seal, Arc::default()).await
    }

    /// Like `open`. `full` becomes true when a write fails because the disk is full. The store never makes it false again.
    pub async fn open_reporting(path: &Path, seal: SealingKey, full: Arc<AtomicBool>) -> Result<SqliteStore> {
        make_private(path)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // FULL: a returned append survives power loss, not only our crash.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            // What is deleted is overwritten: a purged session leaves nothing in free pages.
            .pragma("secure_delete", "ON")
            .busy_timeout(Duration::from_secs(10))
            .statement_cache_capacity(200)
            .disable_statement_logging();
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await?;
        check_version(&mut connection).await?;
        sqlx::migrate!("migrations/sqlite").run(&mut connection).await?;
        purge::hide_older(&mut connection, &seal).await?;
        let readers =
            SqlitePoolOptions::new().max_connections(4).connect_with(options.read_only(true)).await?;
        Ok(SqliteStore {
            writer: SqliteWriter::start(connection, full),
            readers,
            seal: Arc::new(seal),
            lineages: Mutex::default(),
        })
    }

    /// Waits until everything sent to the writer is on disk, and closes the file.
    pub async fn close(&self) {
        self.writer.close().await;
        self.readers.close().await;
    }

    async fn lineage(&self, no: SessionRowId) -> Result<LogLineage> {
        if let Some(line) = self.lineages.lock().expect("no thread panics while holding it").get(&no) {
            return Ok(line.clone());
        }
        let line: LogLineage = log::lineage(&self.readers, no).await?.into();
        self.lineages.lock().expect("no thread panics while holding it").insert(no, line.clone());
        Ok(line)
    }
}

/// SQLite makes its other files with the mode of this one.
fn make_private(path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::Database(sqlx::Error::Io(error));
    let file =
        std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(failed)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    for end in ["-wal", "-shm"] {
        let beside = std::path::PathBuf::from([path.as_os_str(), end.as_ref()].join("".as_ref()));
        match std::fs::set_permissions(beside, std::fs::Permissions::from_mode(0o600)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

async fn check_version(connection: &mut sqlx::SqliteConnection) -> Result<()> {
    let found: String = sqlx::query("SELECT sqlite_version()").fetch_one(connection).await?.try_get(0)?;
    if is_too_old(&found) {
        return Err(Error::TooOld { found, needed: MIN_SQLITE_VERSION.0 });
    }
    Ok(())
}

fn is_too_old(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<i64>().unwrap_or(0));
    let number = (0..3).fold(0, |sum, _| sum * 1000 + parts.next().unwrap_or(0));
    number < MIN_SQLITE_VERSION.1
}

#[cfg(test)]
mod tests {
    use super::is_too_old;

    #[test]
    fn a_sqlite_that_can_lose_data_is_refused() {
        for old in ["3.51.2", "3.50.99", "3.9.0", "2.99.99", "3.51", "", "x"] {
            assert!(is_too_old(old), "{old}");
        }
        for good in ["3.51.3", "3.51.10", "3.52.0", "3.52", "4.0.0", "3.51.3.1"] {
            assert!(!is_too_old(good), "{good}");
        }
    }
}
