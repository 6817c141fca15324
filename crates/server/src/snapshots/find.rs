//! Reading one snapshot, and lists of them.

use axum::extract::{Path, State as Extract};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use runtime_api::error::ErrorBody;
use runtime_api::snapshot::{ListSnapshots, Snapshot, SnapshotPage};
use runtime_model::{SandboxId, SnapshotId, limits};
use runtime_store::{SnapshotFilter, SnapshotRow, SnapshotState};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::not_found;
use super::record::record;
use crate::AppState;
use crate::call::Call;
use crate::error::{ApiError, Issue};
use crate::fields::{Given, int, line, one_of, text};
use crate::idempotency::Answer;
use crate::sandboxes::json_response;

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get)).routes(routes!(page))
}

const DEFAULT_LIMIT: u32 = 50;

/// One snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{id}", tag = "snapshots", params(("id" = String, Path)), responses(
    (status = 200, body = Snapshot), (status = 404, body = ErrorBody)))]
async fn get(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Result<Response, ApiError> {
    call.no_query()?;
    let row = app.reach_snapshot(&call.caller, &id).await?;
    let row = row.filter(|row| !row.state.is_gone()).ok_or_else(not_found)?;
    Ok(json_response(Answer::json(&record(&row))?))
}

/// Snapshots, oldest first.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", params(ListSnapshots), responses(
    (status = 200, body = SnapshotPage), (status = 400, body = ErrorBody)))]
async fn page(Extract(app): Extract<AppState>, call: Call) -> Result<Response, ApiError> {
    let mut query = call.query()?;
    let source = query.opt("sandboxId", line(1..=64));
    let name = query.opt("name", text(1..=limits::NAME_TEXT));
    let state = query.opt(
        "state",
        one_of(&[
            ("capturing", SnapshotState::Capturing),
            ("ready", SnapshotState::Ready),
            ("failed", SnapshotState::Failed),
            ("deleting", SnapshotState::Deleting),
            ("deleted", SnapshotState::Deleted),
        ]),
    );
    let limit = query.opt("limit", int(1..=100)).unwrap_or(DEFAULT_LIMIT);
    let after = query.opt("cursor", |given: Given<'_>| {
        let place = given.value.as_str().and_then(read_cursor);
        place.ok_or_else(|| vec![Issue::new("", "is not a cursor of this list")])
    });
    query.finish()?;
    let source = match source.map(|text| text.parse::<SandboxId>()) {
        None => None,
        Some(Ok(source)) => Some(source),
        // No sandbox, and so no snapshot of it.
        Some(Err(_)) => return Ok(json_response(Answer::json(&SnapshotPage { data: Vec::new(), next_cursor: None })?)),
    };
    let filter = SnapshotFilter {
        credential: (!call.caller.account_wide).then_some(call.caller.credential),
        source,
        name,
        state,
        after,
        // One more tells whether there is a next page.
        limit: limit + 1,
    };
    let rows = app.store().snapshots(filter).await;
    let mut rows = rows.map_err(|error| ApiError::internal("listing snapshots", error))?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next_cursor = rows.last().filter(|_| more).map(cursor);
    let data = rows.iter().map(record).collect();
    Ok(json_response(Answer::json(&SnapshotPage { data, next_cursor })?))
}

/// The place of the last row of a page.
fn cursor(row: &SnapshotRow) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}.{}", row.created_at, row.id))
}

fn read_cursor(text: &str) -> Option<(i64, SnapshotId)> {
    let place = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let (time, id) = place.split_once('.')?;
    Some((time.parse().ok()?, id.parse().ok()?))
}
