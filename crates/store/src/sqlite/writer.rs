//! The one task that writes.

use std::sync::Mutex;

use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::change::{Applied, Change};
use crate::StoreError;

/// Changes that share a transaction at most.
const BATCH: usize = 256;
/// Changes that wait for the next transaction; further callers wait for a place.
const WAITING: usize = 1024;
/// Called once the change is on the disk, or failed.
type Reply = Box<dyn FnOnce(Result<Applied, StoreError>) + Send>;

struct Job {
    change: Change,
    reply: Reply,
}

pub(super) struct Writer {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    task: Mutex<Option<JoinHandle<()>>>,
    alive: watch::Receiver<()>,
}

impl Writer {
    pub(super) fn start(connection: SqliteConnection) -> Self {
        let (jobs, waiting) = mpsc::channel(WAITING);
        let (life, alive) = watch::channel(());
        let task = tokio::spawn(async move {
            let _life = life;
            run(connection, waiting).await;
        });
        Self { jobs: Mutex::new(Some(jobs)), task: Mutex::new(Some(task)), alive }
    }

    async fn send(&self, job: Job) {
        let jobs = self.jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let refused = match jobs {
            Some(jobs) => jobs.send(job).await.err().map(|unsent| unsent.0),
            None => Some(job),
        };
        if let Some(job) = refused {
            (job.reply)(Err(StoreError::Closed));
        }
    }

    pub(super) async fn apply(&self, change: Change) -> Result<Applied, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job { change, reply: Box::new(move |result| drop(reply.send(result))) }).await;
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    pub(super) async fn apply_later(&self, change: Change) -> oneshot::Receiver<Result<(), StoreError>> {
        let (reply, answer) = oneshot::channel();
        self.send(Job { change, reply: Box::new(move |result| drop(reply.send(result.map(drop)))) }).await;
        answer
    }

    /// Resolves when no change is taken any more: after [`close`](Self::close), or because the task panicked.
    pub(super) async fn ended(&self) {
        // Nothing is ever sent: it changes by the end of the other side.
        let _ = self.alive.clone().changed().await;
    }

    pub(super) async fn close(&self) {
        drop(self.jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
        let task = self.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the writer of the database ended badly");
        }
    }
}

async fn run(mut connection: SqliteConnection, mut waiting: mpsc::Receiver<Job>) {
    let mut jobs = Vec::with_capacity(BATCH);
    while waiting.recv_many(&mut jobs, BATCH).await > 0 {
        batch(&mut connection, &mut jobs).await;
    }
    if let Err(error) = connection.close().await {
        tracing::warn!(%error, "closing the database failed");
    }
}

/// One transaction for all; nobody is answered before it is on the disk.
async fn batch(connection: &mut SqliteConnection, jobs: &mut Vec<Job>) {
    let step = "writing to the database";
    if let Err(source) = statement(connection, "begin immediate").await {
        let cause = source.to_string();
        for job in jobs.drain(..) {
            (job.reply)(Err(StoreError::Batch { step, cause: cause.clone() }));
        }
        return;
    }
    let mut answers: Vec<(Reply, Result<Applied, StoreError>)> = Vec::with_capacity(jobs.len());
    for job in jobs.drain(..) {
        let result = one(connection, job.change).await;
        answers.push((job.reply, result));
    }
    match statement(connection, "commit").await {
        Ok(()) => {
            for (reply, result) in answers {
                reply(result);
            }
        }
        Err(source) => {
            let cause = source.to_string();
            // Fails if the commit rolled back by itself, which is as good.
            let _ = statement(connection, "rollback").await;
            for (reply, _) in answers {
                reply(Err(StoreError::Batch { step, cause: cause.clone() }));
            }
        }
    }
}

/// A refused change leaves nothing behind.
async fn one(connection: &mut SqliteConnection, change: Change) -> Result<Applied, StoreError> {
    let step = "marking a place in the transaction";
    let sql = |source| StoreError::Sql { step, source };
    statement(connection, "savepoint one").await.map_err(sql)?;
    let result = change.apply(connection).await;
    if !matches!(&result, Ok(applied) if applied.is_kept()) {
        statement(connection, "rollback to one").await.map_err(sql)?;
    }
    statement(connection, "release one").await.map_err(sql)?;
    result
}

async fn statement(connection: &mut SqliteConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::query(sql).execute(connection).await.map(drop)
}
