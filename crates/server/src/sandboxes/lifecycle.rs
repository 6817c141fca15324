//! Stopping, starting again, deleting.

use std::sync::Arc;

use axum::extract::{Path, State as Extract};
use axum::response::Response;
use runtime_api::error::ErrorBody;
use runtime_api::sandbox::{DeletedSandbox, Sandbox};
use runtime_model::{Event, Reason, SandboxId, State};
use runtime_store::{DeletedRow, Operation, SandboxRow};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::change::{Step, apply};
use super::create::no_room;
use super::live::{Live, not_found, parse_id};
use super::record::{deleted_record, live_record};
use crate::call::Call;
use crate::clock::now_ms;
use crate::error::ApiError;
use crate::idempotency::{Answer, Keep};
use crate::{AppState, Caller};

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(stop)).routes(routes!(restart)).routes(routes!(delete))
}

/// End the machine, keep the disk. Fine on one that is stopped.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/~stop", tag = "sandboxes", params(("id" = String, Path)), responses(
    (status = 200, body = Sandbox), (status = 404, body = ErrorBody)))]
async fn stop(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        call.fields()?.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        app.stop_for(&live, Reason::Requested).await?;
        let row = live.settled(call.wait.unwrap_or_default()).await.ok_or_else(not_found)?;
        Answer::json(&live_record(&live, &row))
    })
    .await
}

/// Start a stopped sandbox on the disk it had.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/~restart", tag = "sandboxes", params(("id" = String, Path)), responses(
    (status = 200, body = Sandbox), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn restart(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        call.fields()?.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        live.touch();
        let wait = call.wait.unwrap_or_default();
        if live.row()?.state == State::Stopping {
            // Over in a moment; who said how long to wait does not want a refusal.
            live.settled(wait).await;
        }
        app.start_again(&live).await?;
        let row = live.settled(wait).await.ok_or_else(not_found)?;
        no_room(&live, &row)?;
        Answer::json(&live_record(&live, &row))
    })
    .await
}

/// Remove it with its disk. Repeatable: the answer stays the same.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)), responses(
    (status = 200, body = DeletedSandbox), (status = 404, body = ErrorBody)))]
async fn delete(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        call.fields()?.finish()?;
        let id = parse_id(&id)?;
        if let Some(live) = app.live(id).await?
            && let Some(row) = live.peek()
        {
            if !call.caller.reaches(row.credential) {
                return Err(not_found());
            }
            app.delete_now(id, &row).await?;
        }
        deleted_answer(&app, &call.caller, id).await
    })
    .await
}

async fn deleted_answer(app: &AppState, caller: &Caller, id: SandboxId) -> Result<Answer, ApiError> {
    let deleted = app.store().deleted(id).await;
    let deleted = deleted.map_err(|error| ApiError::internal(format!("reading deleted sandbox {id}"), error))?;
    let row = deleted.filter(|row| caller.reaches(row.credential)).ok_or_else(not_found)?;
    Ok(Answer::ready(row.answer.into(), Keep::Now))
}

impl AppState {
    /// Commits the stop and has the driver do it.
    pub(crate) async fn stop_for(&self, live: &Arc<Live>, reason: Reason) -> Result<(), ApiError> {
        let row = self
            .change(live, |row| {
                // What was to come back does not.
                let returns = row.state == State::Stopping && row.operation == Some(Operation::Resize);
                let next = if returns { Some(row.clone()) } else { apply(row, Event::Stop)? };
                let Some(mut next) = next else { return Ok(Step::Stay) };
                next.operation = Some(Operation::Stop);
                next.reason = Some(reason);
                Ok(Step::save(next))
            })
            .await?;
        if row.state == State::Stopping {
            self.nudge(live);
        }
        Ok(())
    }

    /// Commits the deletion; the driver removes the machine and the disk after it. The name is free at once.
    pub(crate) async fn delete_now(&self, id: SandboxId, row: &SandboxRow) -> Result<(), ApiError> {
        let now = now_ms();
        let answer = serde_json::to_string(&deleted_record(row, now));
        let answer = answer.map_err(|error| ApiError::internal("writing the answer", error))?;
        let deleted = DeletedRow { id, credential: row.credential, answer, deleted_at: now };
        let done = self.store().delete_sandbox(deleted, None).await;
        done.map_err(|error| ApiError::internal(format!("deleting sandbox {id}"), error))?;
        // In the table until its machine is gone, so that it has its one driver.
        let live = self.sandboxes().get_or_insert(id, None);
        live.publish_gone();
        self.nudge(&live);
        Ok(())
    }
}
