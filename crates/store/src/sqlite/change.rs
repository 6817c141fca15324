//! Every change, as statements inside the writer's transaction.

use runtime_model::{CredentialId, SandboxId, SessionId};
use sqlx::{Row, SqliteConnection};

use super::read::{idempotency_from, json_text};
use super::remember::{amend, remember};
use super::{preview, session, snapshot};
use crate::{
    CredentialRow, DeletedRow, IdempotencyRow, Outcome, PreviewRow, REMEMBERED_BYTES, SandboxRow, SessionRow,
    SnapshotRow, StoreError,
};

pub(super) enum Change {
    InsertCredential(CredentialRow),
    RevokeCredential(CredentialId, i64),
    FixMeta(&'static str, Vec<u8>),
    Remember(IdempotencyRow),
    Amend(IdempotencyRow),
    Sweep(i64, i64),
    CreateSandbox(Box<SandboxRow>, Option<IdempotencyRow>),
    CreateSandboxes(Vec<SandboxRow>, Option<IdempotencyRow>),
    UncreateSandbox(SandboxId, Option<(String, String)>),
    SaveSandbox(Box<SandboxRow>, Option<IdempotencyRow>),
    DeleteSandbox(DeletedRow, Option<IdempotencyRow>),
    Removed(SandboxId),
    CreateSnapshot(Box<SnapshotRow>, Option<IdempotencyRow>),
    SaveSnapshot(Box<SnapshotRow>, Option<IdempotencyRow>),
    CreateSession(Box<SessionRow>, Option<IdempotencyRow>, u32),
    RevokeSession(SandboxId, SessionId, i64),
    SavePreview(PreviewRow),
    DeletePreview(SandboxId, u16),
    Touch(Vec<(SandboxId, i64)>),
}

pub(super) enum Applied {
    Outcome(Outcome),
    /// Whether there was something to change.
    Flag(bool),
}

impl Applied {
    /// Whether what was written stays.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Self::Outcome(Outcome::Done) | Self::Flag(_))
    }
}

impl Change {
    pub(super) async fn apply(self, db: &mut SqliteConnection) -> Result<Applied, StoreError> {
        match self {
            Self::InsertCredential(row) => insert_credential(db, &row).await,
            Self::RevokeCredential(id, at) => revoke_credential(db, id, at).await,
            Self::FixMeta(name, value) => fix_meta(db, name, &value).await,
            Self::Remember(row) => remember(db, &row).await.map(|()| Applied::Flag(true)),
            Self::Amend(row) => amend(db, &row).await.map(Applied::Flag),
            Self::Sweep(now, deleted_before) => sweep(db, now, deleted_before).await,
            Self::CreateSandbox(row, key) => create(db, &row, key).await,
            Self::CreateSandboxes(rows, key) => create_all(db, &rows, key).await,
            Self::CreateSnapshot(row, key) => create_snapshot(db, &row, key).await,
            Self::SaveSnapshot(row, key) => save_snapshot(db, &row, key).await,
            Self::CreateSession(row, key, most) => create_session(db, &row, key, most).await,
            Self::SavePreview(row) => preview::save(db, &row).await.map(|()| Applied::Flag(true)),
            Self::DeletePreview(sandbox, port) => preview::delete(db, sandbox, port).await.map(Applied::Flag),
            Self::RevokeSession(sandbox, id, at) => session::revoke(db, sandbox, id, at).await.map(Applied::Flag),
            Self::UncreateSandbox(id, key) => uncreate(db, id, key).await,
            Self::SaveSandbox(row, key) => save(db, &row, key).await,
            Self::DeleteSandbox(row, key) => delete(db, &row, key).await,
            Self::Removed(id) => removed(db, id).await,
            Self::Touch(seen) => touch(db, &seen).await,
        }
    }
}

fn at(step: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |source| StoreError::Sql { step, source }
}

async fn insert_credential(db: &mut SqliteConnection, row: &CredentialRow) -> Result<Applied, StoreError> {
    sqlx::query(
        "insert into credentials (id, principal, name, hash, prefix, read_only, account_wide, created_at, revoked_at) \
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(row.id.to_string())
    .bind(row.principal.to_string())
    .bind(&row.name)
    .bind(&row.hash[..])
    .bind(&row.prefix)
    .bind(row.read_only)
    .bind(row.account_wide)
    .bind(row.created_at)
    .bind(row.revoked_at)
    .execute(db)
    .await
    .map_err(at("storing a key"))?;
    Ok(Applied::Flag(true))
}

async fn revoke_credential(db: &mut SqliteConnection, id: CredentialId, now: i64) -> Result<Applied, StoreError> {
    let done = sqlx::query("update credentials set revoked_at = $2 where id = $1 and revoked_at is null")
        .bind(id.to_string())
        .bind(now)
        .execute(db)
        .await
        .map_err(at("revoking a key"))?;
    Ok(Applied::Flag(done.rows_affected() > 0))
}

async fn fix_meta(db: &mut SqliteConnection, name: &str, value: &[u8]) -> Result<Applied, StoreError> {
    sqlx::query("insert into meta (name, value) values ($1, $2) on conflict do nothing")
        .bind(name)
        .bind(value)
        .execute(db)
        .await
        .map_err(at("storing a fixed value"))?;
    Ok(Applied::Flag(true))
}

/// Puts the record down for a change in the same transaction, or gives the one that is there.
async fn claim(
    db: &mut SqliteConnection,
    key: Option<&IdempotencyRow>,
    now: i64,
) -> Result<Option<IdempotencyRow>, StoreError> {
    let Some(row) = key else { return Ok(None) };
    let step = "claiming an idempotency key";
    let held = sqlx::query("select * from idempotency where scope = $1 and key = $2")
        .bind(&row.scope)
        .bind(&row.key)
        .fetch_optional(&mut *db)
        .await
        .map_err(at(step))?;
    if let Some(held) = held {
        let held = idempotency_from(step, &held)?;
        if held.expires_at > now {
            return Ok(Some(held));
        }
        sqlx::query("delete from idempotency where scope = $1 and key = $2")
            .bind(&row.scope)
            .bind(&row.key)
            .execute(&mut *db)
            .await
            .map_err(at(step))?;
    }
    remember(db, row).await?;
    Ok(None)
}

async fn sweep(db: &mut SqliteConnection, now: i64, deleted_before: i64) -> Result<Applied, StoreError> {
    sqlx::query("delete from idempotency where expires_at <= $1")
        .bind(now)
        .execute(&mut *db)
        .await
        .map_err(at("sweeping old requests"))?;
    sqlx::query("delete from deleted where removed = 1 and deleted_at < $1")
        .bind(deleted_before)
        .execute(&mut *db)
        .await
        .map_err(at("sweeping deleted sandboxes"))?;
    sqlx::query("delete from snapshots where state = 'deleted' and deleted_at < $1")
        .bind(deleted_before)
        .execute(&mut *db)
        .await
        .map_err(at("sweeping deleted snapshots"))?;
    session::sweep(db, deleted_before).await?;
    preview::sweep(db).await?;
    bound_bodies(db, REMEMBERED_BYTES).await?;
    // A little each time, so that no change waits long for it.
    sqlx::query("pragma incremental_vacuum(2048)").execute(db).await.map_err(at("giving back free pages"))?;
    Ok(Applied::Flag(true))
}

/// Forgets the oldest bodies until all that are left fit. Records of creates, which are small, stay.
async fn bound_bodies(db: &mut SqliteConnection, most: u64) -> Result<(), StoreError> {
    let step = "bounding what is remembered";
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    // Cheap, and nearly always the end of it: bodies that do not fit would not fit into the file either.
    let used: i64 = sqlx::query_scalar(
        "select (page_count - freelist_count) * page_size \
         from pragma_page_count(), pragma_freelist_count(), pragma_page_size()",
    )
    .fetch_one(&mut *db)
    .await
    .map_err(at(step))?;
    if used <= most {
        return Ok(());
    }
    let gone = sqlx::query(
        "delete from idempotency where (scope, key) in (select scope, key from \
         (select scope, key, sum(length(body)) over (order by expires_at desc, scope, key) as total \
          from idempotency where body is not null) where total > $1)",
    )
    .bind(most)
    .execute(db)
    .await
    .map_err(at(step))?;
    if gone.rows_affected() > 0 {
        tracing::warn!(records = gone.rows_affected(), "answers were forgotten before their time, for want of room");
    }
    Ok(())
}

/// The name goes to this sandbox, or the other holder is told.
async fn hold_name(db: &mut SqliteConnection, row: &SandboxRow) -> Result<Option<SandboxId>, StoreError> {
    let step = "claiming a name";
    let id = row.id.to_string();
    let wanted = row.name.as_deref().filter(|_| row.holds_name());
    sqlx::query("delete from names where sandbox = $1 and name is not $2")
        .bind(&id)
        .bind(wanted)
        .execute(&mut *db)
        .await
        .map_err(at(step))?;
    let Some(name) = wanted else { return Ok(None) };
    let holder: String = sqlx::query(
        "insert into names (name, sandbox) values ($1, $2) \
         on conflict (name) do update set sandbox = sandbox returning sandbox",
    )
    .bind(name)
    .bind(&id)
    .fetch_one(&mut *db)
    .await
    .and_then(|row| row.try_get(0))
    .map_err(at(step))?;
    if holder == id {
        return Ok(None);
    }
    let holder =
        holder.parse().map_err(|_| StoreError::Corrupt { step, column: "sandbox", object: name.to_owned() })?;
    Ok(Some(holder))
}

async fn create(
    db: &mut SqliteConnection,
    row: &SandboxRow,
    key: Option<IdempotencyRow>,
) -> Result<Applied, StoreError> {
    if let Some(held) = claim(db, key.as_ref(), row.created_at).await? {
        return Ok(Applied::Outcome(Outcome::KeyUsed(Box::new(held))));
    }
    write_row(db, row, INSERT).await?;
    if let Some(holder) = hold_name(db, row).await? {
        return Ok(Applied::Outcome(Outcome::NameHeld(holder)));
    }
    Ok(Applied::Outcome(Outcome::Done))
}

async fn create_all(
    db: &mut SqliteConnection,
    rows: &[SandboxRow],
    key: Option<IdempotencyRow>,
) -> Result<Applied, StoreError> {
    let now = rows.first().map_or(0, |row| row.created_at);
    if let Some(held) = claim(db, key.as_ref(), now).await? {
        return Ok(Applied::Outcome(Outcome::KeyUsed(Box::new(held))));
    }
    for row in rows {
        write_row(db, row, INSERT).await?;
        if let Some(holder) = hold_name(db, row).await? {
            return Ok(Applied::Outcome(Outcome::NameHeld(holder)));
        }
    }
    Ok(Applied::Outcome(Outcome::Done))
}

async fn create_snapshot(
    db: &mut SqliteConnection,
    row: &SnapshotRow,
    key: Option<IdempotencyRow>,
) -> Result<Applied, StoreError> {
    if let Some(held) = claim(db, key.as_ref(), row.created_at).await? {
        return Ok(Applied::Outcome(Outcome::KeyUsed(Box::new(held))));
    }
    snapshot::write(db, row, snapshot::INSERT).await?;
    Ok(Applied::Outcome(Outcome::Done))
}

async fn create_session(
    db: &mut SqliteConnection,
    row: &SessionRow,
    key: Option<IdempotencyRow>,
    most: u32,
) -> Result<Applied, StoreError> {
    if let Some(held) = claim(db, key.as_ref(), row.created_at).await? {
        return Ok(Applied::Outcome(Outcome::KeyUsed(Box::new(held))));
    }
    let stored = session::insert(db, row, most).await?;
    Ok(Applied::Outcome(if stored { Outcome::Done } else { Outcome::Moved }))
}

async fn save_snapshot(
    db: &mut SqliteConnection,
    row: &SnapshotRow,
    key: Option<IdempotencyRow>,
) -> Result<Applied, StoreError> {
    if snapshot::write(db, row, snapshot::UPDATE).await? == 0 {
        return Ok(Applied::Outcome(Outcome::Moved));
    }
    if let Some(key) = key {
        remember(db, &key).await?;
    }
    Ok(Applied::Outcome(Outcome::Done))
}

async fn uncreate(
    db: &mut SqliteConnection,
    id: SandboxId,
    key: Option<(String, String)>,
) -> Result<Applied, StoreError> {
    let step = "undoing a create";
    forget_row(db, id, step).await?;
    if let Some((scope, key)) = key {
        sqlx::query("delete from idempotency where scope = $1 and key = $2")
            .bind(scope)
            .bind(key)
            .execute(db)
            .await
            .map_err(at(step))?;
    }
    Ok(Applied::Flag(true))
}

async fn forget_row(db: &mut SqliteConnection, id: SandboxId, step: &'static str) -> Result<bool, StoreError> {
    sqlx::query("delete from names where sandbox = $1")
        .bind(id.to_string())
        .execute(&mut *db)
        .await
        .map_err(at(step))?;
    let gone =
        sqlx::query("delete from sandboxes where id = $1").bind(id.to_string()).execute(db).await.map_err(at(step))?;
    Ok(gone.rows_affected() > 0)
}

async fn save(db: &mut SqliteConnection, row: &SandboxRow, key: Option<IdempotencyRow>) -> Result<Applied, StoreError> {
    if write_row(db, row, UPDATE).await? == 0 {
        return Ok(Applied::Outcome(Outcome::Moved));
    }
    if let Some(holder) = hold_name(db, row).await? {
        return Ok(Applied::Outcome(Outcome::NameHeld(holder)));
    }
    if let Some(key) = key {
        remember(db, &key).await?;
    }
    Ok(Applied::Outcome(Outcome::Done))
}

async fn delete(
    db: &mut SqliteConnection,
    row: &DeletedRow,
    key: Option<IdempotencyRow>,
) -> Result<Applied, StoreError> {
    let step = "deleting a sandbox";
    if !forget_row(db, row.id, step).await? {
        return Ok(Applied::Flag(false));
    }
    sqlx::query("insert into deleted (id, credential, answer, deleted_at, removed) values ($1, $2, $3, $4, 0)")
        .bind(row.id.to_string())
        .bind(row.credential.to_string())
        .bind(&row.answer)
        .bind(row.deleted_at)
        .execute(&mut *db)
        .await
        .map_err(at(step))?;
    if let Some(key) = key {
        remember(db, &key).await?;
    }
    Ok(Applied::Flag(true))
}

async fn removed(db: &mut SqliteConnection, id: SandboxId) -> Result<Applied, StoreError> {
    let done = sqlx::query("update deleted set removed = 1 where id = $1")
        .bind(id.to_string())
        .execute(db)
        .await
        .map_err(at("noting that a machine was removed"))?;
    Ok(Applied::Flag(done.rows_affected() > 0))
}

/// Outside the generations: activity is no change of the sandbox.
async fn touch(db: &mut SqliteConnection, seen: &[(SandboxId, i64)]) -> Result<Applied, StoreError> {
    for (id, when) in seen {
        sqlx::query("update sandboxes set last_active_at = max(coalesce(last_active_at, 0), $2) where id = $1")
            .bind(id.to_string())
            .bind(when)
            .execute(&mut *db)
            .await
            .map_err(at("noting activity"))?;
    }
    Ok(Applied::Flag(true))
}

const INSERT: &str = "insert into sandboxes (id, generation, credential, name, labels, env, user, region, vcpu, \
     memory_mib, disk_mib, cpu_floor_millis, cpu_reserved, timeout_seconds, on_limit, idle_seconds, auto_wake, \
     persistent, max_total_cost_micros, image, snapshot, secrets, network, engine, state, reason, operation, \
     created_at, ready_at, last_active_at, ends_at, ended_at, paused_at, retention_days, disk_kept, memory_restored, \
     charged_micros, held_micros, network_version, network_updated_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, \
     $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40)";

/// Only from the generation before: a change that was decided on an older row changes nothing.
const UPDATE: &str = "update sandboxes set generation = $2, credential = $3, name = $4, labels = $5, env = $6, \
     user = $7, region = $8, vcpu = $9, memory_mib = $10, disk_mib = $11, cpu_floor_millis = $12, cpu_reserved = $13, \
     timeout_seconds = $14, on_limit = $15, idle_seconds = $16, auto_wake = $17, persistent = $18, \
     max_total_cost_micros = $19, image = $20, snapshot = $21, secrets = $22, network = $23, engine = $24, \
     state = $25, reason = $26, operation = $27, created_at = $28, ready_at = $29, \
     last_active_at = max(coalesce(last_active_at, 0), coalesce($30, 0)), ends_at = $31, ended_at = $32, \
     paused_at = $33, retention_days = $34, disk_kept = $35, memory_restored = $36, charged_micros = $37, \
     held_micros = $38, network_version = $39, network_updated_at = $40 where id = $1 and generation = $2 - 1";

/// Runs [`INSERT`] or [`UPDATE`], which number their values alike.
async fn write_row(db: &mut SqliteConnection, row: &SandboxRow, sql: &'static str) -> Result<u64, StoreError> {
    let step = "writing a sandbox";
    let done = sqlx::query(sql)
        .bind(row.id.to_string())
        .bind(row.generation)
        .bind(row.credential.to_string())
        .bind(&row.name)
        .bind(json_text(&row.labels))
        .bind(json_text(&row.env.0))
        .bind(row.user.as_str())
        .bind(&row.region)
        .bind(i64::from(row.shape.vcpu))
        .bind(i64::try_from(row.shape.memory_mib).unwrap_or(i64::MAX))
        .bind(i64::try_from(row.shape.disk_mib).unwrap_or(i64::MAX))
        .bind(i64::from(row.shape.cpu_floor_millis))
        .bind(row.cpu_reserved)
        .bind(i64::from(row.timeout_seconds))
        .bind(row.on_limit.as_str())
        .bind(i64::from(row.idle_seconds))
        .bind(row.auto_wake)
        .bind(row.persistent)
        .bind(row.max_total_cost_micros)
        .bind(&row.image)
        .bind(&row.snapshot)
        .bind(row.secrets.as_ref().map(json_text))
        .bind(json_text(&row.network))
        .bind(&row.engine)
        .bind(row.state.as_str())
        .bind(row.reason.map(|reason| reason.as_str()))
        .bind(row.operation.map(|operation| operation.as_str()))
        .bind(row.created_at)
        .bind(row.ready_at)
        .bind(row.last_active_at)
        .bind(row.ends_at)
        .bind(row.ended_at)
        .bind(row.paused_at)
        .bind(row.retention_days.map(i64::from))
        .bind(row.disk_kept)
        .bind(row.memory_restored)
        .bind(row.charged_micros)
        .bind(row.held_micros)
        .bind(i64::try_from(row.network_version).unwrap_or(i64::MAX))
        .bind(row.network_updated_at)
        .execute(db)
        .await
        .map_err(at(step))?;
    Ok(done.rows_affected())
}

#[cfg(test)]
mod tests {
    use sqlx::{ConnectOptions, Connection};

    use super::*;
    use crate::Replay;

    #[tokio::test]
    async fn the_oldest_bodies_go_first_and_creates_stay() {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(":memory:");
        let mut db = options.connect().await.unwrap();
        sqlx::migrate!("./migrations").run(&mut db).await.unwrap();
        let row = |key: &str, replay, expires_at| IdempotencyRow {
            scope: "org".to_owned(),
            key: key.to_owned(),
            fingerprint: [0; 32],
            status: 200,
            replay,
            expires_at,
        };
        remember(&mut db, &row("create", Replay::Sandbox(SandboxId::new_v4()), 1)).await.unwrap();
        for (key, expires_at) in [("old", 2), ("middle", 3), ("new", 4)] {
            remember(&mut db, &row(key, Replay::Body(vec![b'x'; 100_000]), expires_at)).await.unwrap();
        }
        bound_bodies(&mut db, 200_000).await.unwrap();
        let left: Vec<String> =
            sqlx::query_scalar("select key from idempotency order by key").fetch_all(&mut db).await.unwrap();
        assert_eq!(left, ["create", "middle", "new"]);
        bound_bodies(&mut db, 1 << 30).await.unwrap();
        db.close().await.unwrap();
    }
}
