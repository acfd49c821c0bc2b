//! The one writer. It commits whatever arrived from all sessions while the last fsync ran, so the cost
//! follows fsyncs, not tokens. A write that fails is undone alone; its neighbours commit.

use crate::{Error, Result};
use sqlx::{Connection, SqliteConnection};
use std::{future::Future, pin::Pin};
use tokio::sync::{mpsc, oneshot};

/// How many writes may share one commit: bounds how long a reader of a result waits for strangers.
const SHARED: usize = 512;

pub(super) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'c>>;

pub(super) struct Writer {
    jobs: mpsc::Sender<Message>,
}

enum Message {
    Job(Box<dyn Job>),
    Close(oneshot::Sender<()>),
}

trait Job: Send {
    fn run<'c>(&'c mut self, db: &'c mut SqliteConnection)
    -> Pin<Box<dyn Future<Output = bool> + Send + 'c>>;
    /// Called once the fate of the shared commit is known.
    fn answer(self: Box<Self>, commit: std::result::Result<(), Fate>);
}

#[derive(Clone, Copy)]
enum Fate {
    Full,
    Lost,
}

struct Write<T, F> {
    work: Option<F>,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Job for Write<T, F>
where
    T: Send + 'static,
    F: for<'c> FnOnce(&'c mut SqliteConnection) -> Work<'c, T> + Send,
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

    fn answer(self: Box<Self>, commit: std::result::Result<(), Fate>) {
        let result = match (commit, self.result) {
            (Ok(()), Some(result)) => result,
            (Err(Fate::Full), Some(Ok(_))) => Err(Error::Full),
            (_, Some(Err(error))) => Err(error),
            (_, _) => Err(Error::Closed),
        };
        // A caller that has gone away does not need its answer.
        self.reply.send(result).ok();
    }
}

impl Writer {
    pub(super) fn start(db: SqliteConnection) -> Writer {
        let (jobs, inbox) = mpsc::channel(4096);
        tokio::spawn(run(db, inbox));
        Writer { jobs }
    }

    /// Returns once the work is on disk, or undone.
    pub(super) async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> Work<'c, T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Write { work: Some(work), result: None, reply });
        self.jobs.send(Message::Job(job)).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    pub(super) async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if self.jobs.send(Message::Close(reply)).await.is_ok() {
            closed.await.ok();
        }
    }
}

async fn run(mut db: SqliteConnection, mut inbox: mpsc::Receiver<Message>) {
    while let Some(message) = inbox.recv().await {
        let mut next = Some(message);
        let mut batch: Vec<Box<dyn Job>> = Vec::new();
        let mut close = None;
        while let Some(message) = next.take() {
            match message {
                Message::Job(job) => batch.push(job),
                Message::Close(reply) => close = Some(reply),
            }
            if close.is_none() && batch.len() < SHARED {
                next = inbox.try_recv().ok();
            }
        }
        if !batch.is_empty() {
            commit(&mut db, batch).await;
        }
        if let Some(reply) = close {
            // Closing checkpoints the log into the main file.
            db.close().await.ok();
            reply.send(()).ok();
            return;
        }
    }
}

async fn commit(db: &mut SqliteConnection, mut batch: Vec<Box<dyn Job>>) {
    let fate = try_commit(db, &mut batch).await.map_err(|error| {
        tracing::error!(%error, writes = batch.len(), "a commit failed");
        if is_full(&error) { Fate::Full } else { Fate::Lost }
    });
    if fate.is_err() {
        // Ends whatever is left of the transaction, so that the next one can begin.
        sqlx::query("ROLLBACK").execute(&mut *db).await.ok();
    }
    for job in batch {
        job.answer(fate);
    }
}

async fn try_commit(
    db: &mut SqliteConnection,
    batch: &mut [Box<dyn Job>],
) -> std::result::Result<(), sqlx::Error> {
    sqlx::query("BEGIN IMMEDIATE").execute(&mut *db).await?;
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
