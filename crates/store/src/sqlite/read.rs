//! Every read.

use runtime_model::{Reason, SandboxId, Shape, State};
use serde::de::DeserializeOwned;
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{ColumnIndex, Decode, Row, Sqlite, Type};

use super::remember::{FORK, SNAPSHOT};
use crate::{
    CredentialRow, DeletedRow, Env, IdempotencyRow, ListFilter, OnLimit, Operation, Replay, SandboxRow, StoreError,
    UserKind,
};

fn at(step: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |source| StoreError::Sql { step, source }
}

/// Maps and lists of text always serialise.
pub(super) fn json_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A row with the words for what is wrong in it.
pub(super) struct Columns<'r> {
    pub(super) row: &'r SqliteRow,
    pub(super) step: &'static str,
}

impl<'r> Columns<'r> {
    pub(super) fn get<T>(&self, column: &'static str) -> Result<T, StoreError>
    where
        T: Decode<'r, Sqlite> + Type<Sqlite>,
        &'static str: ColumnIndex<SqliteRow>,
    {
        self.row.try_get(column).map_err(at(self.step))
    }

    pub(super) fn corrupt(&self, column: &'static str) -> StoreError {
        let object = self.row.try_get::<String, _>("id").unwrap_or_else(|_| "a row".to_owned());
        StoreError::Corrupt { step: self.step, column, object }
    }

    /// An integer column that holds a smaller type.
    pub(super) fn small<T: TryFrom<i64>>(&self, column: &'static str) -> Result<T, StoreError> {
        T::try_from(self.get::<i64>(column)?).map_err(|_| self.corrupt(column))
    }

    pub(super) fn parsed<T>(&self, column: &'static str, parse: impl Fn(&str) -> Option<T>) -> Result<T, StoreError> {
        parse(self.get::<&str>(column)?).ok_or_else(|| self.corrupt(column))
    }

    pub(super) fn parsed_opt<T>(
        &self,
        column: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        match self.get::<Option<&str>>(column)? {
            None => Ok(None),
            Some(text) => parse(text).map(Some).ok_or_else(|| self.corrupt(column)),
        }
    }
}

pub(super) fn json<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

pub(super) fn id<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

pub(super) async fn meta(db: &SqlitePool, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
    sqlx::query_scalar("select value from meta where name = $1")
        .bind(name)
        .fetch_optional(db)
        .await
        .map_err(at("reading a fixed value"))
}

fn credential_from(step: &'static str, row: &SqliteRow) -> Result<CredentialRow, StoreError> {
    let c = Columns { row, step };
    Ok(CredentialRow {
        id: c.parsed("id", id)?,
        principal: c.parsed("principal", id)?,
        name: c.get("name")?,
        hash: c.get::<Vec<u8>>("hash")?.try_into().map_err(|_| c.corrupt("hash"))?,
        prefix: c.get("prefix")?,
        read_only: c.get("read_only")?,
        account_wide: c.get("account_wide")?,
        created_at: c.get("created_at")?,
        revoked_at: c.get("revoked_at")?,
    })
}

pub(super) async fn credential_by_hash(db: &SqlitePool, hash: [u8; 32]) -> Result<Option<CredentialRow>, StoreError> {
    let step = "looking up a key";
    let row = sqlx::query("select * from credentials where hash = $1 and revoked_at is null")
        .bind(hash.to_vec())
        .fetch_optional(db)
        .await
        .map_err(at(step))?;
    row.map(|row| credential_from(step, &row)).transpose()
}

pub(super) async fn credentials(db: &SqlitePool) -> Result<Vec<CredentialRow>, StoreError> {
    let step = "listing keys";
    let rows =
        sqlx::query("select * from credentials order by created_at, id").fetch_all(db).await.map_err(at(step))?;
    rows.iter().map(|row| credential_from(step, row)).collect()
}

pub(super) fn idempotency_from(step: &'static str, row: &SqliteRow) -> Result<IdempotencyRow, StoreError> {
    let c = Columns { row, step };
    let replay = match (c.get::<Option<Vec<u8>>>("body")?, c.parsed_opt("sandbox", replay_from)?) {
        (Some(body), None) => Replay::Body(body),
        (None, Some(replay)) => replay,
        _ => return Err(c.corrupt("body")),
    };
    Ok(IdempotencyRow {
        scope: c.get("scope")?,
        key: c.get("key")?,
        fingerprint: c.get::<Vec<u8>>("fingerprint")?.try_into().map_err(|_| c.corrupt("fingerprint"))?,
        status: c.small("status")?,
        replay,
        expires_at: c.get("expires_at")?,
    })
}

fn replay_from(text: &str) -> Option<Replay> {
    if let Some(snapshot) = text.strip_prefix(SNAPSHOT) {
        return id(snapshot).map(Replay::Snapshot);
    }
    match text.strip_prefix(FORK) {
        Some(ids) => ids.split(',').map(id).collect::<Option<_>>().map(Replay::Fork),
        None => id(text).map(Replay::Sandbox),
    }
}

pub(super) async fn remembered(
    db: &SqlitePool,
    scope: &str,
    key: &str,
    now: i64,
) -> Result<Option<IdempotencyRow>, StoreError> {
    let step = "looking up a remembered request";
    let row = sqlx::query("select * from idempotency where scope = $1 and key = $2 and expires_at > $3")
        .bind(scope)
        .bind(key)
        .bind(now)
        .fetch_optional(db)
        .await
        .map_err(at(step))?;
    row.map(|row| idempotency_from(step, &row)).transpose()
}

pub(super) async fn remembered_keys(
    db: &SqlitePool,
    after: (String, String),
    limit: u32,
) -> Result<Vec<(String, String)>, StoreError> {
    sqlx::query_as("select scope, key from idempotency where (scope, key) > ($1, $2) order by scope, key limit $3")
        .bind(after.0)
        .bind(after.1)
        .bind(i64::from(limit))
        .fetch_all(db)
        .await
        .map_err(at("reading remembered keys"))
}

fn sandbox_from(step: &'static str, row: &SqliteRow) -> Result<SandboxRow, StoreError> {
    let c = Columns { row, step };
    Ok(SandboxRow {
        id: c.parsed("id", id)?,
        credential: c.parsed("credential", id)?,
        name: c.get("name")?,
        labels: c.parsed("labels", json)?,
        env: Env(c.parsed("env", json)?),
        user: c.parsed("user", UserKind::parse)?,
        region: c.get("region")?,
        shape: Shape {
            vcpu: c.small("vcpu")?,
            memory_mib: c.small("memory_mib")?,
            disk_mib: c.small("disk_mib")?,
            cpu_floor_millis: c.small("cpu_floor_millis")?,
        },
        cpu_reserved: c.get("cpu_reserved")?,
        timeout_seconds: c.small("timeout_seconds")?,
        on_limit: c.parsed("on_limit", OnLimit::parse)?,
        idle_seconds: c.small("idle_seconds")?,
        auto_wake: c.get("auto_wake")?,
        persistent: c.get("persistent")?,
        max_total_cost_micros: c.get("max_total_cost_micros")?,
        image: c.get("image")?,
        snapshot: c.get("snapshot")?,
        secrets: c.parsed_opt("secrets", json)?,
        network: c.parsed("network", json)?,
        network_version: c.small("network_version")?,
        network_updated_at: c.get("network_updated_at")?,
        engine: c.get("engine")?,
        state: c.parsed("state", State::parse)?,
        reason: c.parsed_opt("reason", Reason::parse)?,
        operation: c.parsed_opt("operation", Operation::parse)?,
        generation: c.get("generation")?,
        created_at: c.get("created_at")?,
        ready_at: c.get("ready_at")?,
        last_active_at: c.get("last_active_at")?,
        ends_at: c.get("ends_at")?,
        ended_at: c.get("ended_at")?,
        paused_at: c.get("paused_at")?,
        retention_days: match c.get::<Option<i64>>("retention_days")? {
            None => None,
            Some(days) => Some(u32::try_from(days).map_err(|_| c.corrupt("retention_days"))?),
        },
        disk_kept: c.get("disk_kept")?,
        memory_restored: c.get("memory_restored")?,
        charged_micros: c.get("charged_micros")?,
        held_micros: c.get("held_micros")?,
    })
}

pub(super) async fn sandbox(db: &SqlitePool, id: SandboxId) -> Result<Option<SandboxRow>, StoreError> {
    let step = "reading a sandbox";
    let row = sqlx::query("select * from sandboxes where id = $1")
        .bind(id.to_string())
        .fetch_optional(db)
        .await
        .map_err(at(step))?;
    row.map(|row| sandbox_from(step, &row)).transpose()
}

pub(super) async fn name_holder(db: &SqlitePool, name: &str) -> Result<Option<SandboxId>, StoreError> {
    let step = "looking up a name";
    let holder: Option<String> = sqlx::query_scalar("select sandbox from names where name = $1")
        .bind(name)
        .fetch_optional(db)
        .await
        .map_err(at(step))?;
    holder.map(|holder| parse_id(step, &holder)).transpose()
}

fn parse_id(step: &'static str, text: &str) -> Result<SandboxId, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt { step, column: "id", object: text.to_owned() })
}

async fn ids(db: &SqlitePool, step: &'static str, sql: &'static str) -> Result<Vec<SandboxId>, StoreError> {
    let texts: Vec<String> = sqlx::query_scalar(sql).fetch_all(db).await.map_err(at(step))?;
    Ok(readable(texts.iter().map(|text| parse_id(step, text))))
}

/// The rows that read. One that does not is told of, and hides none of the others.
pub(super) fn readable<T>(rows: impl Iterator<Item = Result<T, StoreError>>) -> Vec<T> {
    rows.filter_map(|row| {
        row.inspect_err(|error| tracing::error!(error = error as &dyn std::error::Error, "a row is passed over")).ok()
    })
    .collect()
}

pub(super) async fn removals(db: &SqlitePool) -> Result<Vec<SandboxId>, StoreError> {
    ids(db, "listing machines to remove", "select id from deleted where removed = 0").await
}

pub(super) async fn sandbox_ids(db: &SqlitePool) -> Result<Vec<SandboxId>, StoreError> {
    ids(db, "listing sandbox ids", "select id from sandboxes").await
}

pub(super) async fn expired(db: &SqlitePool, now: i64) -> Result<Vec<SandboxId>, StoreError> {
    let step = "listing sandboxes past their retention";
    let texts: Vec<String> = sqlx::query_scalar(
        "select id from sandboxes where retention_days is not null and case state when 'stopped' then ended_at \
         when 'paused' then paused_at end + retention_days * 86400000 <= $1",
    )
    .bind(now)
    .fetch_all(db)
    .await
    .map_err(at(step))?;
    Ok(readable(texts.iter().map(|text| parse_id(step, text))))
}

pub(super) async fn deleted(db: &SqlitePool, sandbox: SandboxId) -> Result<Option<DeletedRow>, StoreError> {
    let step = "reading a deleted sandbox";
    let row = sqlx::query("select * from deleted where id = $1")
        .bind(sandbox.to_string())
        .fetch_optional(db)
        .await
        .map_err(at(step))?;
    row.map(|row| {
        let c = Columns { row: &row, step };
        Ok(DeletedRow {
            id: c.parsed("id", id)?,
            credential: c.parsed("credential", id)?,
            answer: c.get("answer")?,
            deleted_at: c.get("deleted_at")?,
        })
    })
    .transpose()
}

pub(super) async fn unstopped(db: &SqlitePool) -> Result<Vec<SandboxRow>, StoreError> {
    let step = "listing live sandboxes";
    let rows = sqlx::query("select * from sandboxes where state <> 'stopped'").fetch_all(db).await.map_err(at(step))?;
    Ok(readable(rows.iter().map(|row| sandbox_from(step, row))))
}

pub(super) async fn list(db: &SqlitePool, filter: ListFilter) -> Result<Vec<SandboxRow>, StoreError> {
    let step = "listing sandboxes";
    let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
    let (after_time, after_id) = match filter.after {
        Some((time, id)) => (time, id.to_string()),
        None => (i64::MIN, String::new()),
    };
    let rows = sqlx::query(
        "select * from sandboxes where (created_at, id) > ($1, $2) \
         and ($3 is null or credential = $3) \
         and ($4 is null or name = $4) \
         and ($5 or state <> 'stopped' or disk_kept) \
         and ($6 = '[]' or state in (select value from json_each($6))) \
         and ($7 = '[]' or not exists (select 1 from json_each($7) as wanted where not exists \
             (select 1 from json_each(sandboxes.labels) as label where label.key || ':' || label.value = wanted.value))) \
         order by created_at, id limit $8",
    )
    .bind(after_time)
    .bind(after_id)
    .bind(filter.credential.map(|id| id.to_string()))
    .bind(filter.name)
    .bind(filter.include_gone)
    .bind(json_text(&states))
    .bind(json_text(&filter.labels))
    .bind(i64::from(filter.limit))
    .fetch_all(db)
    .await
    .map_err(at(step))?;
    rows.iter().map(|row| sandbox_from(step, row)).collect()
}
