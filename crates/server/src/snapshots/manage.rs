//! Changing and deleting a snapshot.

use axum::extract::{Path, State as Extract};
use axum::response::Response;
use runtime_api::error::ErrorBody;
use runtime_api::snapshot::{ExtendSnapshot, Snapshot, UpdateSnapshot};
use runtime_model::SnapshotId;
use runtime_store::{Replay, SnapshotRow, SnapshotState};
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::capture::{DAY_MS, LONGEST_DAYS};
use super::not_found;
use super::record::record;
use crate::AppState;
use crate::call::Call;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};
use crate::fields::int;
use crate::idempotency::Answer;
use crate::sandboxes::fields as rules;

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(update)).routes(routes!(extend)).routes(routes!(delete)).routes(routes!(remove))
}

/// Change its name or labels. What is left out stays.
#[utoipa::path(post, path = "/v1/snapshots/{id}/~update", tag = "snapshots", params(("id" = String, Path)),
    request_body = UpdateSnapshot, responses(
    (status = 200, body = Snapshot), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn update(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut fields = call.fields()?;
        let name = fields.nullable("name", rules::name);
        let labels = fields.opt("labels", rules::labels);
        let if_labels = fields.opt("ifLabels", rules::labels);
        fields.finish()?;
        let row = app.there(&call, &id).await?;
        let step = |row: &SnapshotRow| {
            if row.state.is_gone() {
                return Err(not_found());
            }
            if if_labels.as_ref().is_some_and(|wanted| *wanted != row.labels) {
                let text = "The labels of this snapshot are not what you expect; nothing was changed.";
                return Err(ApiError::new(Kind::SnapshotMetadataChanged, text).details(json!({ "labels": row.labels })));
            }
            let mut next = row.clone();
            if let Some(name) = &name {
                next.name.clone_from(name);
            }
            if let Some(labels) = &labels {
                next.labels.clone_from(labels);
            }
            Ok(Some(next))
        };
        let key =
            |row: &SnapshotRow| Ok(app.key_record(&call, Replay::Body(Answer::json(&record(row))?.body.to_vec())));
        let row = app.change_snapshot(row.id, step, key).await?;
        Answer::json(&record(&row))
    })
    .await
}

/// Keep it for so many days from now, at most a year from when it was taken.
#[utoipa::path(post, path = "/v1/snapshots/{id}/~extend", tag = "snapshots", params(("id" = String, Path)),
    request_body = ExtendSnapshot, responses(
    (status = 200, body = Snapshot), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn extend(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut fields = call.fields()?;
        let days = fields.need("retentionDays", int(1..=LONGEST_DAYS));
        fields.finish()?;
        let row = app.there(&call, &id).await?;
        let step = |row: &SnapshotRow| {
            if row.state.is_gone() {
                return Err(not_found());
            }
            let last = row.created_at + i64::from(LONGEST_DAYS) * DAY_MS;
            let expires_at = last.min(now_ms() + i64::from(days) * DAY_MS);
            Ok(Some(SnapshotRow { retention_days: Some(days), expires_at, ..row.clone() }))
        };
        let row = app.change_snapshot(row.id, step, |_| Ok(None)).await?;
        Answer::json(&record(&row))
    })
    .await
}

/// Remove it. Sandboxes that were made from it stay. Repeatable.
#[utoipa::path(post, path = "/v1/snapshots/{id}/~delete", tag = "snapshots", params(("id" = String, Path)), responses(
    (status = 200, body = Snapshot), (status = 404, body = ErrorBody)))]
async fn delete(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move { removed(&app, &call, &id).await }).await
}

/// The same as `:delete`.
#[utoipa::path(delete, path = "/v1/snapshots/{id}", tag = "snapshots", params(("id" = String, Path)), responses(
    (status = 200, body = Snapshot), (status = 404, body = ErrorBody)))]
async fn remove(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move { removed(&app, &call, &id).await }).await
}

async fn removed(app: &AppState, call: &Call, id: &str) -> Result<Answer, ApiError> {
    call.fields()?.finish()?;
    let row = app.reach_snapshot(&call.caller, id).await?.ok_or_else(not_found)?;
    let row = app.delete_snapshot(row.id).await?;
    Answer::json(&record(&row))
}

impl AppState {
    async fn there(&self, call: &Call, id: &str) -> Result<SnapshotRow, ApiError> {
        let row = self.reach_snapshot(&call.caller, id).await?;
        row.filter(|row| !row.state.is_gone()).ok_or_else(not_found)
    }

    /// Commits the deletion; what it has on its host goes behind the answer.
    pub(super) async fn delete_snapshot(&self, id: SnapshotId) -> Result<SnapshotRow, ApiError> {
        let step = |row: &SnapshotRow| {
            let gone = SnapshotRow { state: SnapshotState::Deleting, deleted_at: Some(now_ms()), ..row.clone() };
            Ok((!row.state.is_gone()).then_some(gone))
        };
        let row = self.change_snapshot(id, step, |_| Ok(None)).await?;
        if row.state == SnapshotState::Deleting {
            let app = self.clone();
            self.tasks().spawn(async move {
                if let Err(error) = app.finish_deletion(id).await {
                    let cause = error.cause().map_or_else(|| error.to_string(), str::to_owned);
                    tracing::error!(snapshot = %id, cause, "a deleted snapshot stays on the disk for now");
                }
            });
        }
        Ok(row)
    }

    pub(super) async fn finish_deletion(&self, id: SnapshotId) -> Result<(), ApiError> {
        self.drop_snapshot(id).await?;
        let step = |row: &SnapshotRow| {
            let gone = SnapshotRow { state: SnapshotState::Deleted, ..row.clone() };
            Ok((row.state == SnapshotState::Deleting).then_some(gone))
        };
        self.change_snapshot(id, step, |_| Ok(None)).await.map(drop)
    }
}
