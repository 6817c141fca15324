//! Previews: their rows written and read.

use runtime_model::SandboxId;
use sqlx::SqliteConnection;
use sqlx::sqlite::{SqlitePool, SqliteRow};

use super::read::{Columns, id, json, json_text};
use crate::{PreviewRow, StoreError};

fn at(step: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |source| StoreError::Sql { step, source }
}

pub(super) async fn save(db: &mut SqliteConnection, row: &PreviewRow) -> Result<(), StoreError> {
    sqlx::query(
        "insert or replace into previews (sandbox, port, id, public, embed_origins, secret, created_at) \
         values ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(row.sandbox.to_string())
    .bind(i64::from(row.port))
    .bind(row.id.to_string())
    .bind(row.public)
    .bind(row.embed_origins.as_ref().map(json_text))
    .bind(&row.secret[..])
    .bind(row.created_at)
    .execute(db)
    .await
    .map_err(at("storing a preview"))?;
    Ok(())
}

pub(super) async fn delete(db: &mut SqliteConnection, sandbox: SandboxId, port: u16) -> Result<bool, StoreError> {
    let done = sqlx::query("delete from previews where sandbox = $1 and port = $2")
        .bind(sandbox.to_string())
        .bind(i64::from(port))
        .execute(db)
        .await
        .map_err(at("deleting a preview"))?;
    Ok(done.rows_affected() > 0)
}

/// Drops those of sandboxes that are gone.
pub(super) async fn sweep(db: &mut SqliteConnection) -> Result<(), StoreError> {
    sqlx::query("delete from previews where sandbox not in (select id from sandboxes)")
        .execute(db)
        .await
        .map_err(at("sweeping previews"))?;
    Ok(())
}

fn from(step: &'static str, row: &SqliteRow) -> Result<PreviewRow, StoreError> {
    let c = Columns { row, step };
    Ok(PreviewRow {
        sandbox: c.parsed("sandbox", id)?,
        port: c.small("port")?,
        id: c.parsed("id", id)?,
        public: c.get("public")?,
        embed_origins: c.parsed_opt("embed_origins", json)?,
        secret: c.get::<Vec<u8>>("secret")?.try_into().map_err(|_| c.corrupt("secret"))?,
        created_at: c.get("created_at")?,
    })
}

pub(super) async fn one(db: &SqlitePool, sandbox: SandboxId, port: u16) -> Result<Option<PreviewRow>, StoreError> {
    let step = "reading a preview";
    let row = sqlx::query("select * from previews where sandbox = $1 and port = $2")
        .bind(sandbox.to_string())
        .bind(i64::from(port))
        .fetch_optional(db)
        .await
        .map_err(at(step))?;
    row.map(|row| from(step, &row)).transpose()
}

pub(super) async fn of(db: &SqlitePool, sandbox: SandboxId) -> Result<Vec<PreviewRow>, StoreError> {
    let step = "listing previews";
    let rows = sqlx::query("select * from previews where sandbox = $1 order by port")
        .bind(sandbox.to_string())
        .fetch_all(db)
        .await
        .map_err(at(step))?;
    rows.iter().map(|row| from(step, row)).collect()
}
