//! Sessions: their rows written and read.

use runtime_model::{SandboxId, SessionId};
use sqlx::SqliteConnection;
use sqlx::sqlite::{SqlitePool, SqliteRow};

use super::read::{Columns, id, json, json_text};
use crate::{FoundSession, SessionRow, StoreError};

fn at(step: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |source| StoreError::Sql { step, source }
}

/// False where the sandbox has `most` that have not ended.
pub(super) async fn insert(db: &mut SqliteConnection, row: &SessionRow, most: u32) -> Result<bool, StoreError> {
    let step = "storing a session";
    let live: i64 = sqlx::query_scalar(
        "select count(*) from sessions where sandbox = $1 and expires_at > $2 and revoked_at is null",
    )
    .bind(row.sandbox.to_string())
    .bind(row.created_at)
    .fetch_one(&mut *db)
    .await
    .map_err(at(step))?;
    if live >= i64::from(most) {
        return Ok(false);
    }
    sqlx::query(
        "insert into sessions (id, sandbox, credential, name, origins, hash, created_at, expires_at, revoked_at) \
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(row.id.to_string())
    .bind(row.sandbox.to_string())
    .bind(row.credential.to_string())
    .bind(&row.name)
    .bind(json_text(&row.origins))
    .bind(&row.hash[..])
    .bind(row.created_at)
    .bind(row.expires_at)
    .bind(row.revoked_at)
    .execute(db)
    .await
    .map_err(at(step))?;
    Ok(true)
}

pub(super) async fn revoke(
    db: &mut SqliteConnection,
    sandbox: SandboxId,
    which: SessionId,
    now: i64,
) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "update sessions set revoked_at = $3 where id = $1 and sandbox = $2 and revoked_at is null and expires_at > $3",
    )
    .bind(which.to_string())
    .bind(sandbox.to_string())
    .bind(now)
    .execute(db)
    .await
    .map_err(at("revoking a session"))?;
    Ok(done.rows_affected() > 0)
}

/// Drops those that ended before, and those of sandboxes that are gone.
pub(super) async fn sweep(db: &mut SqliteConnection, ended_before: i64) -> Result<(), StoreError> {
    sqlx::query(
        "delete from sessions where expires_at < $1 or revoked_at < $1 \
         or sandbox not in (select id from sandboxes)",
    )
    .bind(ended_before)
    .execute(db)
    .await
    .map_err(at("sweeping ended sessions"))?;
    Ok(())
}

fn from(step: &'static str, row: &SqliteRow) -> Result<SessionRow, StoreError> {
    let c = Columns { row, step };
    Ok(SessionRow {
        id: c.parsed("id", id)?,
        sandbox: c.parsed("sandbox", id)?,
        credential: c.parsed("credential", id)?,
        name: c.get("name")?,
        origins: c.parsed("origins", json)?,
        hash: c.get::<Vec<u8>>("hash")?.try_into().map_err(|_| c.corrupt("hash"))?,
        created_at: c.get("created_at")?,
        expires_at: c.get("expires_at")?,
        revoked_at: c.get("revoked_at")?,
    })
}

pub(super) async fn by_hash(db: &SqlitePool, hash: [u8; 32]) -> Result<Option<FoundSession>, StoreError> {
    let step = "looking up a session";
    let row = sqlx::query(
        "select sessions.*, credentials.principal, credentials.revoked_at is not null as orphan from sessions \
         join credentials on credentials.id = sessions.credential where sessions.hash = $1",
    )
    .bind(hash.to_vec())
    .fetch_optional(db)
    .await
    .map_err(at(step))?;
    row.map(|row| {
        let c = Columns { row: &row, step };
        Ok(FoundSession { session: from(step, &row)?, principal: c.parsed("principal", id)?, orphan: c.get("orphan")? })
    })
    .transpose()
}

pub(super) async fn of(db: &SqlitePool, sandbox: SandboxId, ended_after: i64) -> Result<Vec<SessionRow>, StoreError> {
    let step = "listing sessions";
    let rows = sqlx::query(
        "select * from sessions where sandbox = $1 and expires_at > $2 and coalesce(revoked_at, expires_at) > $2 \
         order by created_at desc, id desc",
    )
    .bind(sandbox.to_string())
    .bind(ended_after)
    .fetch_all(db)
    .await
    .map_err(at(step))?;
    rows.iter().map(|row| from(step, row)).collect()
}

pub(super) async fn one(
    db: &SqlitePool,
    sandbox: SandboxId,
    which: SessionId,
) -> Result<Option<SessionRow>, StoreError> {
    let step = "reading a session";
    let row = sqlx::query("select * from sessions where id = $1 and sandbox = $2")
        .bind(which.to_string())
        .bind(sandbox.to_string())
        .fetch_optional(db)
        .await
        .map_err(at(step))?;
    row.map(|row| from(step, &row)).transpose()
}
