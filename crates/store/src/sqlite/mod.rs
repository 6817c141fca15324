//! The store on one SQLite file.
//!
//! Reads go through a small pool. Changes go to one writer task, which puts all that are waiting into one transaction:
//! callers that write at the same time share one flush to the disk, and each is answered after it. Each change has its
//! savepoint, so that one that is refused takes nothing of the others with it.

mod change;
mod epoch;
mod preview;
mod read;
mod remember;
mod session;
mod snapshot;
mod writer;

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use runtime_model::{CredentialId, SandboxId, SessionId, SnapshotId};
use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use tokio::sync::oneshot;

use crate::{
    CredentialRow, DeletedRow, FoundSession, IdempotencyRow, ListFilter, Outcome, PreviewRow, SandboxRow, SessionRow,
    SnapshotFilter, SnapshotRow, Store, StoreError,
};
use change::{Applied, Change};
use epoch::Epoch;
use writer::Writer;

const READERS: u32 = 4;
/// How long to wait for another process (`runtime keys`) that is writing.
const BUSY: Duration = Duration::from_secs(10);

pub struct SqliteStore {
    readers: SqlitePool,
    writer: Writer,
    epoch: Epoch,
}

impl SqliteStore {
    /// Opens the file, makes it if there is none, and brings its tables up to date.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        make_private(path).map_err(|source| StoreError::Private { path: path.to_owned(), source })?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .auto_vacuum(SqliteAutoVacuum::Incremental)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY)
            .foreign_keys(true);
        let open = |source| StoreError::Sql { step: "opening the database", source };
        let mut connection = sqlx::ConnectOptions::connect(&options).await.map_err(open)?;
        sqlx::migrate!("./migrations").run(&mut connection).await.map_err(StoreError::Migrate)?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .min_connections(1)
            // The file is local: a connection in the pool cannot have gone stale.
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options.pragma("query_only", "on"))
            .await
            .map_err(open)?;
        Ok(Self { readers, writer: Writer::start(connection), epoch: Epoch::beside(path) })
    }

    /// Finishes what is waiting and closes the file.
    pub async fn close(&self) {
        self.writer.close().await;
        self.readers.close().await;
    }

    async fn outcome(&self, change: Change) -> Result<Outcome, StoreError> {
        match self.writer.apply(change).await? {
            Applied::Outcome(outcome) => Ok(outcome),
            Applied::Flag(true) => Ok(Outcome::Done),
            Applied::Flag(false) => Ok(Outcome::Moved),
        }
    }

    async fn flag(&self, change: Change) -> Result<bool, StoreError> {
        Ok(match self.writer.apply(change).await? {
            Applied::Flag(flag) => flag,
            Applied::Outcome(outcome) => matches!(outcome, Outcome::Done),
        })
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn ended(&self) {
        self.writer.ended().await;
    }

    async fn insert_credential(&self, row: CredentialRow) -> Result<(), StoreError> {
        self.flag(Change::InsertCredential(row)).await?;
        self.epoch.raise()
    }

    fn credential_epoch(&self) -> Option<u64> {
        self.epoch.read()
    }

    async fn credential_by_hash(&self, hash: [u8; 32]) -> Result<Option<CredentialRow>, StoreError> {
        read::credential_by_hash(&self.readers, hash).await
    }

    async fn credentials(&self) -> Result<Vec<CredentialRow>, StoreError> {
        read::credentials(&self.readers).await
    }

    async fn revoke_credential(&self, id: CredentialId, at_ms: i64) -> Result<bool, StoreError> {
        let revoked = self.flag(Change::RevokeCredential(id, at_ms)).await?;
        self.epoch.raise()?;
        Ok(revoked)
    }

    async fn hash_key(&self) -> Result<[u8; 32], StoreError> {
        // Two version 4 ids: 244 random bits.
        let fresh = [*uuid::Uuid::new_v4().as_bytes(), *uuid::Uuid::new_v4().as_bytes()].concat();
        let value = self.fixed("hash_key", fresh).await?;
        value.try_into().map_err(|_| corrupt_meta("hash_key"))
    }

    async fn fixed_id(&self, name: &'static str) -> Result<uuid::Uuid, StoreError> {
        let value = self.fixed(name, uuid::Uuid::new_v4().as_bytes().to_vec()).await?;
        uuid::Uuid::from_slice(&value).map_err(|_| corrupt_meta(name))
    }

    async fn remembered(&self, scope: &str, key: &str, now_ms: i64) -> Result<Option<IdempotencyRow>, StoreError> {
        read::remembered(&self.readers, scope, key, now_ms).await
    }

    async fn remember(&self, row: IdempotencyRow) -> Result<(), StoreError> {
        self.flag(Change::Remember(row)).await.map(drop)
    }

    async fn remember_later(&self, row: IdempotencyRow) -> oneshot::Receiver<Result<(), StoreError>> {
        self.writer.apply_later(Change::Remember(row)).await
    }

    async fn amend(&self, row: IdempotencyRow) -> Result<(), StoreError> {
        self.flag(Change::Amend(row)).await.map(drop)
    }

    async fn remembered_keys(&self, after: (String, String), limit: u32) -> Result<Vec<(String, String)>, StoreError> {
        read::remembered_keys(&self.readers, after, limit).await
    }

    async fn sweep(&self, now_ms: i64, deleted_before_ms: i64) -> Result<(), StoreError> {
        self.flag(Change::Sweep(now_ms, deleted_before_ms)).await.map(drop)
    }

    async fn create_sandbox(&self, row: SandboxRow, key: Option<IdempotencyRow>) -> Result<Outcome, StoreError> {
        self.outcome(Change::CreateSandbox(Box::new(row), key)).await
    }

    async fn create_sandboxes(
        &self,
        rows: Vec<SandboxRow>,
        key: Option<IdempotencyRow>,
    ) -> Result<Outcome, StoreError> {
        self.outcome(Change::CreateSandboxes(rows, key)).await
    }

    async fn uncreate_sandbox(&self, id: SandboxId, key: Option<(String, String)>) -> Result<(), StoreError> {
        self.flag(Change::UncreateSandbox(id, key)).await.map(drop)
    }

    async fn sandbox(&self, id: SandboxId) -> Result<Option<SandboxRow>, StoreError> {
        read::sandbox(&self.readers, id).await
    }

    async fn name_holder(&self, name: &str) -> Result<Option<SandboxId>, StoreError> {
        read::name_holder(&self.readers, name).await
    }

    async fn save_sandbox(&self, row: SandboxRow, key: Option<IdempotencyRow>) -> Result<Outcome, StoreError> {
        self.outcome(Change::SaveSandbox(Box::new(row), key)).await
    }

    async fn delete_sandbox(&self, deleted: DeletedRow, key: Option<IdempotencyRow>) -> Result<bool, StoreError> {
        self.flag(Change::DeleteSandbox(deleted, key)).await
    }

    async fn deleted(&self, id: SandboxId) -> Result<Option<DeletedRow>, StoreError> {
        read::deleted(&self.readers, id).await
    }

    async fn removals(&self) -> Result<Vec<SandboxId>, StoreError> {
        read::removals(&self.readers).await
    }

    async fn removed(&self, id: SandboxId) -> Result<(), StoreError> {
        self.flag(Change::Removed(id)).await.map(drop)
    }

    async fn unstopped(&self) -> Result<Vec<SandboxRow>, StoreError> {
        read::unstopped(&self.readers).await
    }

    async fn expired(&self, now_ms: i64) -> Result<Vec<SandboxId>, StoreError> {
        read::expired(&self.readers, now_ms).await
    }

    async fn sandbox_ids(&self) -> Result<Vec<SandboxId>, StoreError> {
        read::sandbox_ids(&self.readers).await
    }

    async fn list(&self, filter: ListFilter) -> Result<Vec<SandboxRow>, StoreError> {
        read::list(&self.readers, filter).await
    }

    async fn create_snapshot(&self, row: SnapshotRow, key: Option<IdempotencyRow>) -> Result<Outcome, StoreError> {
        self.outcome(Change::CreateSnapshot(Box::new(row), key)).await
    }

    async fn snapshot(&self, id: SnapshotId) -> Result<Option<SnapshotRow>, StoreError> {
        snapshot::one(&self.readers, id).await
    }

    async fn save_snapshot(&self, row: SnapshotRow, key: Option<IdempotencyRow>) -> Result<Outcome, StoreError> {
        self.outcome(Change::SaveSnapshot(Box::new(row), key)).await
    }

    async fn snapshots(&self, filter: SnapshotFilter) -> Result<Vec<SnapshotRow>, StoreError> {
        snapshot::list(&self.readers, filter).await
    }

    async fn unfinished_snapshots(&self) -> Result<Vec<SnapshotRow>, StoreError> {
        snapshot::unfinished(&self.readers).await
    }

    async fn expired_snapshots(&self, now_ms: i64) -> Result<Vec<SnapshotId>, StoreError> {
        snapshot::expired(&self.readers, now_ms).await
    }

    async fn create_session(
        &self,
        row: SessionRow,
        key: Option<IdempotencyRow>,
        most: u32,
    ) -> Result<Outcome, StoreError> {
        self.outcome(Change::CreateSession(Box::new(row), key, most)).await
    }

    async fn session_by_hash(&self, hash: [u8; 32]) -> Result<Option<FoundSession>, StoreError> {
        session::by_hash(&self.readers, hash).await
    }

    async fn session(&self, sandbox: SandboxId, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        session::one(&self.readers, sandbox, id).await
    }

    async fn sessions(&self, sandbox: SandboxId, ended_after_ms: i64) -> Result<Vec<SessionRow>, StoreError> {
        session::of(&self.readers, sandbox, ended_after_ms).await
    }

    async fn revoke_session(&self, sandbox: SandboxId, id: SessionId, at_ms: i64) -> Result<bool, StoreError> {
        self.flag(Change::RevokeSession(sandbox, id, at_ms)).await
    }

    async fn save_preview(&self, row: PreviewRow) -> Result<(), StoreError> {
        self.flag(Change::SavePreview(row)).await.map(drop)
    }

    async fn preview(&self, sandbox: SandboxId, port: u16) -> Result<Option<PreviewRow>, StoreError> {
        preview::one(&self.readers, sandbox, port).await
    }

    async fn previews(&self, sandbox: SandboxId) -> Result<Vec<PreviewRow>, StoreError> {
        preview::of(&self.readers, sandbox).await
    }

    async fn delete_preview(&self, sandbox: SandboxId, port: u16) -> Result<bool, StoreError> {
        self.flag(Change::DeletePreview(sandbox, port)).await
    }

    async fn touch(&self, seen: Vec<(SandboxId, i64)>) -> Result<(), StoreError> {
        self.flag(Change::Touch(seen)).await.map(drop)
    }
}

impl SqliteStore {
    /// The value under a name that never changes: the one there, or this one.
    async fn fixed(&self, name: &'static str, fresh: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        if let Some(value) = read::meta(&self.readers, name).await? {
            return Ok(value);
        }
        self.flag(Change::FixMeta(name, fresh)).await?;
        read::meta(&self.readers, name).await?.ok_or_else(|| corrupt_meta(name))
    }
}

/// The log and the index that SQLite makes beside the file take over its mode.
fn make_private(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(())
}

fn corrupt_meta(name: &str) -> StoreError {
    StoreError::Corrupt { step: "reading a fixed value", column: "value", object: name.to_owned() }
}
