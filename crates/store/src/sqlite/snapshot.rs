//! Snapshots: their rows written and read.

use runtime_model::{Shape, SnapshotId};
use sqlx::SqliteConnection;
use sqlx::sqlite::{SqlitePool, SqliteRow};

use super::read::{Columns, id, json, json_text, readable};
use crate::{SnapshotFilter, SnapshotRow, SnapshotState, StoreError};

pub(super) const INSERT: &str = "insert into snapshots (id, generation, credential, source, memory, passing, name, \
     labels, vcpu, memory_mib, disk_mib, cpu_floor_millis, cpu_reserved, engine, state, error, retention_days, \
     stored_bytes, created_at, ready_at, expires_at, deleted_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
     $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)";

/// Only from the generation before.
pub(super) const UPDATE: &str = "update snapshots set generation = $2, credential = $3, source = $4, memory = $5, \
     passing = $6, name = $7, labels = $8, vcpu = $9, memory_mib = $10, disk_mib = $11, cpu_floor_millis = $12, \
     cpu_reserved = $13, engine = $14, state = $15, error = $16, retention_days = $17, stored_bytes = $18, \
     created_at = $19, ready_at = $20, expires_at = $21, deleted_at = $22 where id = $1 and generation = $2 - 1";

fn at(step: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |source| StoreError::Sql { step, source }
}

/// Runs [`INSERT`] or [`UPDATE`], which number their values alike.
pub(super) async fn write(db: &mut SqliteConnection, row: &SnapshotRow, sql: &'static str) -> Result<u64, StoreError> {
    let done = sqlx::query(sql)
        .bind(row.id.to_string())
        .bind(row.generation)
        .bind(row.credential.to_string())
        .bind(row.source.to_string())
        .bind(row.memory)
        .bind(row.passing)
        .bind(&row.name)
        .bind(json_text(&row.labels))
        .bind(i64::from(row.shape.vcpu))
        .bind(i64::try_from(row.shape.memory_mib).unwrap_or(i64::MAX))
        .bind(i64::try_from(row.shape.disk_mib).unwrap_or(i64::MAX))
        .bind(i64::from(row.shape.cpu_floor_millis))
        .bind(row.cpu_reserved)
        .bind(&row.engine)
        .bind(row.state.as_str())
        .bind(&row.error)
        .bind(row.retention_days.map(i64::from))
        .bind(row.stored_bytes)
        .bind(row.created_at)
        .bind(row.ready_at)
        .bind(row.expires_at)
        .bind(row.deleted_at)
        .execute(db)
        .await
        .map_err(at("writing a snapshot"))?;
    Ok(done.rows_affected())
}

fn from(step: &'static str, row: &SqliteRow) -> Result<SnapshotRow, StoreError> {
    let c = Columns { row, step };
    Ok(SnapshotRow {
        id: c.parsed("id", id)?,
        generation: c.get("generation")?,
        credential: c.parsed("credential", id)?,
        source: c.parsed("source", id)?,
        memory: c.get("memory")?,
        passing: c.get("passing")?,
        name: c.get("name")?,
        labels: c.parsed("labels", json)?,
        shape: Shape {
            vcpu: c.small("vcpu")?,
            memory_mib: c.small("memory_mib")?,
            disk_mib: c.small("disk_mib")?,
            cpu_floor_millis: c.small("cpu_floor_millis")?,
        },
        cpu_reserved: c.get("cpu_reserved")?,
        engine: c.get("engine")?,
        state: c.parsed("state", SnapshotState::parse)?,
        error: c.get("error")?,
        retention_days: match c.get::<Option<i64>>("retention_days")? {
            None => None,
            Some(days) => Some(u32::try_from(days).map_err(|_| c.corrupt("retention_days"))?),
        },
        stored_bytes: c.get("stored_bytes")?,
        created_at: c.get("created_at")?,
        ready_at: c.get("ready_at")?,
        expires_at: c.get("expires_at")?,
        deleted_at: c.get("deleted_at")?,
    })
}

pub(super) async fn one(db: &SqlitePool, wanted: SnapshotId) -> Result<Option<SnapshotRow>, StoreError> {
    let step = "reading a snapshot";
    let row = sqlx::query("select * from snapshots where id = $1")
        .bind(wanted.to_string())
        .fetch_optional(db)
        .await
        .map_err(at(step))?;
    row.map(|row| from(step, &row)).transpose()
}

pub(super) async fn list(db: &SqlitePool, filter: SnapshotFilter) -> Result<Vec<SnapshotRow>, StoreError> {
    let step = "listing snapshots";
    let (after_time, after_id) = match filter.after {
        Some((time, id)) => (time, id.to_string()),
        None => (i64::MIN, String::new()),
    };
    let rows = sqlx::query(
        "select * from snapshots where (created_at, id) > ($1, $2) \
         and ($3 is null or credential = $3) and ($4 is null or source = $4) and ($5 is null or name = $5) \
         and ($6 is null or state = $6) and not passing and state not in ('deleting', 'deleted') \
         order by created_at, id limit $7",
    )
    .bind(after_time)
    .bind(after_id)
    .bind(filter.credential.map(|id| id.to_string()))
    .bind(filter.source.map(|id| id.to_string()))
    .bind(filter.name)
    .bind(filter.state.map(SnapshotState::as_str))
    .bind(i64::from(filter.limit))
    .fetch_all(db)
    .await
    .map_err(at(step))?;
    rows.iter().map(|row| from(step, row)).collect()
}

pub(super) async fn unfinished(db: &SqlitePool) -> Result<Vec<SnapshotRow>, StoreError> {
    let step = "listing snapshots under way";
    let rows = sqlx::query(
        "select * from snapshots where state in ('capturing', 'deleting') or (passing and state <> 'deleted')",
    )
    .fetch_all(db)
    .await
    .map_err(at(step))?;
    Ok(readable(rows.iter().map(|row| from(step, row))))
}

pub(super) async fn expired(db: &SqlitePool, now: i64) -> Result<Vec<SnapshotId>, StoreError> {
    let step = "listing snapshots past their time";
    let rows = sqlx::query("select * from snapshots where state in ('ready', 'failed') and expires_at <= $1")
        .bind(now)
        .fetch_all(db)
        .await
        .map_err(at(step))?;
    Ok(readable(rows.iter().map(|row| from(step, row).map(|row| row.id))))
}
