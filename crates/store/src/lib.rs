//! Persistence: one trait, a SQLite implementation, migrations.
//!
//! What is acknowledged is durable: every method that changes something answers after its transaction is on the disk,
//! except [`Store::remember_later`] and [`Store::touch`], which say so. A name claim, an idempotency record and the row
//! they belong to are one transaction.

mod rows;
mod sqlite;

pub use rows::{
    CredentialRow, DeletedRow, Env, FoundSession, IdempotencyRow, ListFilter, OnLimit, Operation, PreviewRow, Replay,
    SandboxRow, SessionRow, SnapshotFilter, SnapshotRow, SnapshotState, UserKind,
};
pub use sqlite::SqliteStore;

use async_trait::async_trait;
use runtime_model::{CredentialId, SandboxId, SessionId, SnapshotId};

/// What the bodies of remembered answers may take in all. Beyond it the oldest are forgotten before their time.
pub const REMEMBERED_BYTES: u64 = 256 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{step}")]
    Sql {
        step: &'static str,
        #[source]
        source: sqlx::Error,
    },
    #[error("{step}: column {column} of {object} does not read")]
    Corrupt { step: &'static str, column: &'static str, object: String },
    #[error("the migrations of the database failed")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    #[error("the change of a key is stored, but a running server could not be told by {path}")]
    Epoch {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot keep the database {path} for its owner alone")]
    Private {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the writer of the database has ended")]
    Closed,
    #[error("{step}: the disk did not take a batch of changes: {cause}")]
    Batch { step: &'static str, cause: String },
}

/// How a change of a sandbox ended.
#[derive(Debug)]
pub enum Outcome {
    Done,
    /// The name is held by another sandbox.
    NameHeld(SandboxId),
    /// The idempotency key was used before; nothing changed.
    KeyUsed(Box<IdempotencyRow>),
    /// The row has moved on from the generation the change was made for, or is gone.
    Moved,
}

#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Resolves when it takes no more changes, because it was closed or its writer is lost.
    async fn ended(&self);
    async fn insert_credential(&self, row: CredentialRow) -> Result<(), StoreError>;
    /// Only a credential that is not revoked.
    async fn credential_by_hash(&self, hash: [u8; 32]) -> Result<Option<CredentialRow>, StoreError>;
    /// Another number after each change of a credential, by whichever process; `None` if this store cannot tell.
    fn credential_epoch(&self) -> Option<u64>;
    async fn credentials(&self) -> Result<Vec<CredentialRow>, StoreError>;
    /// False if there is none of that id, or it was revoked before.
    async fn revoke_credential(&self, id: CredentialId, at_ms: i64) -> Result<bool, StoreError>;

    /// 32 random bytes made at the first call: the key of this database's keyed hashes.
    async fn hash_key(&self) -> Result<[u8; 32], StoreError>;
    /// A text made at the first call, under a name: ids of the organization and its owner.
    async fn fixed_id(&self, name: &'static str) -> Result<uuid::Uuid, StoreError>;

    async fn remembered(&self, scope: &str, key: &str, now_ms: i64) -> Result<Option<IdempotencyRow>, StoreError>;
    async fn remember(&self, row: IdempotencyRow) -> Result<(), StoreError>;
    /// Joins the next batch; the caller waits for a place in it, not for the disk. The receiver tells when it is durable.
    async fn remember_later(&self, row: IdempotencyRow) -> tokio::sync::oneshot::Receiver<Result<(), StoreError>>;
    /// Puts another replay into a record that is there, for as long as that holds; without one, nothing.
    async fn amend(&self, row: IdempotencyRow) -> Result<(), StoreError>;
    /// Scopes and keys after the given ones, in order; at most `limit`.
    async fn remembered_keys(&self, after: (String, String), limit: u32) -> Result<Vec<(String, String)>, StoreError>;
    /// Drops idempotency records past their time, the oldest remembered bodies beyond [`REMEMBERED_BYTES`], and deleted answers older than `deleted_before_ms`.
    async fn sweep(&self, now_ms: i64, deleted_before_ms: i64) -> Result<(), StoreError>;

    async fn create_sandbox(&self, row: SandboxRow, key: Option<IdempotencyRow>) -> Result<Outcome, StoreError>;
    /// Creates all or none of them.
    async fn create_sandboxes(&self, rows: Vec<SandboxRow>, key: Option<IdempotencyRow>)
    -> Result<Outcome, StoreError>;
    /// Undoes a create that found no room: the row, its name and its key.
    async fn uncreate_sandbox(&self, id: SandboxId, key: Option<(String, String)>) -> Result<(), StoreError>;
    async fn sandbox(&self, id: SandboxId) -> Result<Option<SandboxRow>, StoreError>;
    async fn name_holder(&self, name: &str) -> Result<Option<SandboxId>, StoreError>;
    /// Writes the row if the stored one has generation `row.generation - 1`.
    async fn save_sandbox(&self, row: SandboxRow, key: Option<IdempotencyRow>) -> Result<Outcome, StoreError>;
    /// Replaces the row by its deleted answer; the machine is still to be removed.
    async fn delete_sandbox(&self, deleted: DeletedRow, key: Option<IdempotencyRow>) -> Result<bool, StoreError>;
    async fn deleted(&self, id: SandboxId) -> Result<Option<DeletedRow>, StoreError>;
    /// Deleted sandboxes whose machine was not yet removed.
    async fn removals(&self) -> Result<Vec<SandboxId>, StoreError>;
    async fn removed(&self, id: SandboxId) -> Result<(), StoreError>;
    /// Every sandbox that is not stopped; a row that does not read is logged and left out.
    async fn unstopped(&self) -> Result<Vec<SandboxRow>, StoreError>;
    /// Stopped and paused sandboxes past their retention.
    async fn expired(&self, now_ms: i64) -> Result<Vec<SandboxId>, StoreError>;
    /// Every sandbox id, stopped or not.
    async fn sandbox_ids(&self) -> Result<Vec<SandboxId>, StoreError>;
    /// Oldest first; at most `filter.limit` rows.
    async fn list(&self, filter: ListFilter) -> Result<Vec<SandboxRow>, StoreError>;
    async fn create_snapshot(&self, row: SnapshotRow, key: Option<IdempotencyRow>) -> Result<Outcome, StoreError>;
    async fn snapshot(&self, id: SnapshotId) -> Result<Option<SnapshotRow>, StoreError>;
    /// Writes the row if the stored one has generation `row.generation - 1`.
    async fn save_snapshot(&self, row: SnapshotRow, key: Option<IdempotencyRow>) -> Result<Outcome, StoreError>;
    /// Oldest first; at most `filter.limit` rows.
    async fn snapshots(&self, filter: SnapshotFilter) -> Result<Vec<SnapshotRow>, StoreError>;
    /// Those that are being captured, being deleted, or made for a fork and not gone; a row that does not read is logged
    /// and left out.
    async fn unfinished_snapshots(&self) -> Result<Vec<SnapshotRow>, StoreError>;
    /// Ready and failed ones past their time.
    async fn expired_snapshots(&self, now_ms: i64) -> Result<Vec<SnapshotId>, StoreError>;
    /// Refused with [`Outcome::Moved`] where the sandbox has `most` that have not ended.
    async fn create_session(
        &self,
        row: SessionRow,
        key: Option<IdempotencyRow>,
        most: u32,
    ) -> Result<Outcome, StoreError>;
    async fn session_by_hash(&self, hash: [u8; 32]) -> Result<Option<FoundSession>, StoreError>;
    /// Of this sandbox and no other.
    async fn session(&self, sandbox: SandboxId, id: SessionId) -> Result<Option<SessionRow>, StoreError>;
    /// Those of a sandbox that end after `ended_after_ms`, newest first.
    async fn sessions(&self, sandbox: SandboxId, ended_after_ms: i64) -> Result<Vec<SessionRow>, StoreError>;
    /// False if the sandbox has none of that id, or it has ended.
    async fn revoke_session(&self, sandbox: SandboxId, id: SessionId, at_ms: i64) -> Result<bool, StoreError>;
    /// Puts it in the place of the one at the same port, if there is one.
    async fn save_preview(&self, row: PreviewRow) -> Result<(), StoreError>;
    async fn preview(&self, sandbox: SandboxId, port: u16) -> Result<Option<PreviewRow>, StoreError>;
    /// By port.
    async fn previews(&self, sandbox: SandboxId) -> Result<Vec<PreviewRow>, StoreError>;
    /// False if there was none.
    async fn delete_preview(&self, sandbox: SandboxId, port: u16) -> Result<bool, StoreError>;
    /// Last activity, written without waiting for the disk.
    async fn touch(&self, seen: Vec<(SandboxId, i64)>) -> Result<(), StoreError>;
}
