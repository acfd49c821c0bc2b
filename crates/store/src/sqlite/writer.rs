//! The one writer. It commits everything that arrived from all sessions during the last fsync, so the cost grows with the
//! number of fsyncs, not of tokens. A write that fails is rolled back alone; the others of its commit succeed.

use crate::{Error, Result};
use sqlx::{Connection, SqliteConnection};
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::{mpsc, oneshot};

/// How many writes may share one commit. It bounds how long a caller waits for the writes of others.
const MAX_BATCH: usize = 512;

pub(super) type WriteFuture<'c, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'c>>;

pub(super) struct SqliteWriter {
    jobs: mpsc::Sender<WriterMessage>,
    /// Set when a write fails because the disk is full.
    full: Arc<AtomicBool>,
}

enum WriterMessage {
    Job(Box<dyn WriteJob>),
    /// Empties the write-ahead log, which still has what was overwritten in the main file.
    EraseLog(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

trait WriteJob: Send {
    fn run<'c>(&'c mut self, db: &'c mut SqliteConnection)
    -> Pin<Box<dyn Future<Output = bool> + Send + 'c>>;
    /// Whether it failed because the disk is full. SQLite may then roll back the whole transaction, not only this job.
    fn found_no_space(&self) -> bool;
    /// Called when the shared commit has succeeded or failed.
    fn answer(self: Box<Self>, commit: std::result::Result<(), CommitFailure>);
}

#[derive(Clone, Copy)]
enum CommitFailure {
    Full,
    Lost,
}

struct PendingWrite<T, F> {
    work: Option<F>,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> WriteJob for PendingWrite<T, F>
where
    T: Send + 'static,
    F: for<'c> FnOnce(&'c mut SqliteConnection) -> WriteFuture<'c, T> + Send,
{
    fn run<'c>(
        &'c mut self,
        db: &'c mut SqliteConnection,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'c>> {
        Box::pin(async move {
            let work = self.work.take().expect("a job runs once");
            let result = work(db).await;
            let keep = result.is_ok();
            self.result = Some(result);
            keep
        })
    }

    fn found_no_space(&self) -> bool {
        matches!(&self.result, Some(Err(Error::Database(error))) if is_full(error))
    }

    fn answer(self: Box<Self>, commit: std::result::Result<(), CommitFailure>) {
        let result = match (commit, self.result) {
            (Ok(()), Some(result)) => result,
            (Err(CommitFailure::Full), Some(Ok(_)) | None) => Err(Error::Full),
            (_, Some(Err(Error::Database(error)))) if is_full(&error) => Err(Error::Full),
            (_, Some(Err(error))) => Err(error),
            (_, _) => Err(Error::Closed),
        };
        // A caller that has gone away does not need its answer.
        self.reply.send(result).ok();
    }
}

impl SqliteWriter {
    pub(super) fn start(db: SqliteConnection, full: Arc<AtomicBool>) -> SqliteWriter {
        let (jobs, inbox) = mpsc::channel(4096);
        tokio::spawn(run(db, inbox));
        SqliteWriter { jobs, full }
    }

    /// Returns when the work is on disk, or rolled back.
    pub(super) async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> WriteFuture<'c, T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(PendingWrite { work: Some(work), result: None, reply });
        self.jobs.send(WriterMessage::Job(job)).await.map_err(|_| Error::Closed)?;
        let done = answer.await.map_err(|_| Error::Closed)?;
        if matches!(done, Err(Error::Full)) {
            self.full.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Returns when the write-ahead log is empty. If a reader still needs it, it is emptied after a later commit.
    pub(super) async fn truncate_wal(&self) {
        let (reply, tried) = oneshot::channel();
        if self.jobs.send(WriterMessage::EraseLog(reply)).await.is_ok() {
            tried.await.ok();
        }
    }

    pub(super) async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if self.jobs.send(WriterMessage::Close(reply)).await.is_ok() {
            closed.await.ok();
        }
    }
}

async fn run(mut db: SqliteConnection, mut inbox: mpsc::Receiver<WriterMessage>) {
    let mut owes_erasure = false;
    while let Some(message) = inbox.recv().await {
        let mut next = Some(message);
        let mut batch: Vec<Box<dyn WriteJob>> = Vec::new();
        let (mut close, mut erased) = (None, None);
        while let Some(message) = next.take() {
            match message {
                WriterMessage::Job(job) => batch.push(job),
                WriterMessage::EraseLog(reply) => erased = Some(reply),
                WriterMessage::Close(reply) => close = Some(reply),
            }
            if close.is_none() && erased.is_none() && batch.len() < MAX_BATCH {
                next = inbox.try_recv().ok();
            }
        }
        if !batch.is_empty() {
            commit(&mut db, batch).await;
        }
        if owes_erasure || erased.is_some() {
            owes_erasure = !is_log_erased(&mut db).await;
        }
        if let Some(reply) = erased {
            reply.send(()).ok();
        }
        if let Some(reply) = close {
            // Closing checkpoints the log into the main file.
            db.close().await.ok();
            reply.send(()).ok();
            return;
        }
    }
}

/// Moves everything into the main file and empties the log, unless a reader needs it. It does not wait for readers, because
/// all writers would wait with it.
async fn is_log_erased(db: &mut SqliteConnection) -> bool {
    let emptied = async {
        sqlx::query("PRAGMA busy_timeout = 0").execute(&mut *db).await?;
        let row = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut *db).await?;
        let busy: i64 = sqlx::Row::try_get(&row, 0)?;
        Ok::<bool, sqlx::Error>(busy == 0)
    };
    let emptied = emptied.await;
    if let Err(error) = sqlx::query("PRAGMA busy_timeout = 10000").execute(&mut *db).await {
        tracing::warn!(%error, "the busy timeout of the database could not be restored: writes may fail early as busy");
    }
    emptied.unwrap_or(false)
}

async fn commit(db: &mut SqliteConnection, mut batch: Vec<Box<dyn WriteJob>>) {
    let fate = try_commit(db, &mut batch).await.map_err(|error| {
        tracing::error!(%error, writes = batch.len(), "a commit failed");
        let full = is_full(&error) || batch.iter().any(|job| job.found_no_space());
        if full { CommitFailure::Full } else { CommitFailure::Lost }
    });
    if fate.is_err() {
        // Ends the rest of the transaction, so that the next one can begin.
        sqlx::query("ROLLBACK").execute(&mut *db).await.ok();
    }
    for job in batch {
        job.answer(fate);
    }
}

async fn try_commit(
    db: &mut SqliteConnection,
    batch: &mut [Box<dyn WriteJob>],
) -> std::result::Result<(), sqlx::Error> {
    sqlx::query("BEGIN IMMEDIATE").execute(&mut *db).await?;
    // Every statement costs a round trip to another thread, so a single write needs no savepoint.
    if let [job] = batch {
        let end = if job.run(db).await { "COMMIT" } else { "ROLLBACK" };
        sqlx::query(end).execute(&mut *db).await?;
        return Ok(());
    }
    for job in batch.iter_mut() {
        sqlx::query("SAVEPOINT job").execute(&mut *db).await?;
        if !job.run(db).await {
            sqlx::query("ROLLBACK TO job").execute(&mut *db).await?;
        }
        sqlx::query("RELEASE job").execute(&mut *db).await?;
    }
    sqlx::query("COMMIT").execute(&mut *db).await?;
    Ok(())
}

pub(super) fn is_full(error: &sqlx::Error) -> bool {
    // SQLITE_FULL, and SQLITE_IOERR_WRITE as some file systems put it.
    matches!(error, sqlx::Error::Database(e) if matches!(e.code().as_deref(), Some("13" | "778")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;
    use sqlx::{Row, sqlite::SqliteConnectOptions};
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    async fn open(dir: &tempfile::TempDir) -> SqliteConnection {
        let options = SqliteConnectOptions::new()
            .filename(dir.path().join("x.db"))
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
        let mut db = SqliteConnection::connect_with(&options).await.expect("opened");
        sqlx::query("CREATE TABLE t (bytes BLOB)").execute(&mut db).await.expect("made");
        db
    }

    async fn add(writer: &SqliteWriter, bytes: usize) -> Result<()> {
        writer
            .write(move |db| {
                Box::pin(async move {
                    let add = sqlx::query("INSERT INTO t VALUES (zeroblob(?))").bind(bytes as i64);
                    add.execute(db).await?;
                    Ok(())
                })
            })
            .await
    }

    async fn count(writer: &SqliteWriter) -> i64 {
        let counted = writer.write(|db| {
            Box::pin(
                async move { Ok(sqlx::query("SELECT count(*) FROM t").fetch_one(db).await?.try_get(0)?) },
            )
        });
        counted.await.expect("counted")
    }

    #[tokio::test]
    async fn many_writes_share_a_commit() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut db = open(&dir).await;
        let commits = Arc::new(AtomicUsize::new(0));
        let counter = commits.clone();
        db.lock_handle().await.expect("locked").set_commit_hook(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            true
        });
        let writer = SqliteWriter::start(db, Arc::default());
        let written = join_all((0..200).map(|_| add(&writer, 10))).await;
        assert!(written.iter().all(Result::is_ok));
        let commits = commits.load(Ordering::Relaxed);
        assert!((1..=10).contains(&commits), "{commits} commits");
        assert_eq!(count(&writer).await, 200);
    }

    #[tokio::test]
    async fn a_full_disk_is_reported_and_later_writes_succeed() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut db = open(&dir).await;
        sqlx::query("PRAGMA max_page_count = 50").execute(&mut db).await.expect("limited");
        let writer = SqliteWriter::start(db, Arc::default());
        add(&writer, 10).await.expect("fits");
        let (before, large, after) =
            tokio::join!(add(&writer, 10), add(&writer, 50 * 4096), add(&writer, 10));
        assert!(matches!(large, Err(Error::Full)), "{large:?}");
        // Neighbours commit, or are told the same; never something else.
        for neighbour in [&before, &after] {
            assert!(matches!(neighbour, Ok(()) | Err(Error::Full)), "{neighbour:?}");
        }
        add(&writer, 10).await.expect("there is space for a small one");
        let kept = 2 + [before, after].iter().filter(|answer| answer.is_ok()).count() as i64;
        assert_eq!(count(&writer).await, kept);
    }
}
