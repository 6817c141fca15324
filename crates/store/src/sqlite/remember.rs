//! What is remembered of requests, as statements inside the writer's transaction.

use sqlx::SqliteConnection;

use crate::{IdempotencyRow, Replay, StoreError};

/// Before what is no single sandbox in the column of that name.
pub(super) const SNAPSHOT: &str = "snapshot:";
pub(super) const FORK: &str = "fork:";

fn at(step: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |source| StoreError::Sql { step, source }
}

/// The body, or what stands for one.
fn columns(replay: &Replay) -> (Option<&[u8]>, Option<String>) {
    match replay {
        Replay::Body(body) => (Some(body.as_slice()), None),
        Replay::Sandbox(id) => (None, Some(id.to_string())),
        Replay::Snapshot(id) => (None, Some(format!("{SNAPSHOT}{id}"))),
        Replay::Fork(ids) => {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            (None, Some(format!("{FORK}{}", ids.join(","))))
        }
    }
}

/// Only of the request that made the record: its key may be another's by now.
pub(super) async fn amend(db: &mut SqliteConnection, row: &IdempotencyRow) -> Result<bool, StoreError> {
    let (body, sandbox) = columns(&row.replay);
    let done = sqlx::query(
        "update idempotency set body = $4, sandbox = $5 where scope = $1 and key = $2 and fingerprint = $3",
    )
    .bind(&row.scope)
    .bind(&row.key)
    .bind(&row.fingerprint[..])
    .bind(body)
    .bind(sandbox)
    .execute(db)
    .await
    .map_err(at("amending what is remembered of a request"))?;
    Ok(done.rows_affected() > 0)
}

/// A record that is there and still holds is kept: the first answer is the answer.
pub(super) async fn remember(db: &mut SqliteConnection, row: &IdempotencyRow) -> Result<(), StoreError> {
    let (body, sandbox) = columns(&row.replay);
    sqlx::query(
        "insert into idempotency (scope, key, fingerprint, status, body, sandbox, expires_at) \
         values ($1, $2, $3, $4, $5, $6, $7) on conflict (scope, key) do nothing",
    )
    .bind(&row.scope)
    .bind(&row.key)
    .bind(&row.fingerprint[..])
    .bind(i64::from(row.status))
    .bind(body)
    .bind(sandbox)
    .bind(row.expires_at)
    .execute(db)
    .await
    .map_err(at("remembering a request"))?;
    Ok(())
}
