//! Reading one sandbox, and lists of them.

use std::time::Duration;

use axum::extract::{Path, State as Extract};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use runtime_api::error::ErrorBody;
use runtime_api::sandbox::{ListSandboxes, Sandbox, SandboxPage, WaitFor};
use runtime_model::{SandboxId, State, limits};
use runtime_store::{ListFilter, SandboxRow};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::live::not_found;
use super::record::{live_record, record};
use crate::AppState;
use crate::call::Call;
use crate::error::ApiError;
use crate::fields::{boolean, int, list, one_of, text};
use crate::http::late::{self, Reply};
use crate::idempotency::Answer;

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get)).routes(routes!(page))
}

const DEFAULT_WAIT: u64 = 60;
const MAX_WAIT: u64 = 120;
const DEFAULT_LIMIT: u32 = 50;

/// One sandbox; with `waitFor`, once it is in that state, or when the time is over.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path), WaitFor), responses(
    (status = 200, body = Sandbox), (status = 404, body = ErrorBody)))]
async fn get(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    let wait = match read_wait(&call) {
        Ok(wait) => wait,
        Err(error) => return error.into_response(),
    };
    match wait {
        None => match one(&app, &id, &call, None).await {
            Ok(answer) => json_response(answer),
            Err(error) => error.into_response(),
        },
        Some(_) => {
            let (late_after, request) = (app.config().late_after, call.request_id.clone());
            let task = app.clone().tasks().spawn(async move {
                let answer = one(&app, &id, &call, wait).await?;
                Ok(Reply { body: answer.body, replayed: false })
            });
            late::answer(task, late_after, request).await
        }
    }
}

pub(crate) fn json_response(answer: Answer) -> Response {
    ([("content-type", "application/json")], answer.body).into_response()
}

fn read_wait(call: &Call) -> Result<Option<(State, Duration)>, ApiError> {
    let mut query = call.query()?;
    let state = query
        .opt("waitFor", one_of(&[("running", State::Running), ("paused", State::Paused), ("stopped", State::Stopped)]));
    let seconds = query.opt("timeoutSeconds", int(0..=i64::from(u32::MAX)));
    query.finish()?;
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(DEFAULT_WAIT).min(MAX_WAIT);
    Ok(state.map(|state| (state, Duration::from_secs(seconds))))
}

async fn one(app: &AppState, id: &str, call: &Call, wait: Option<(State, Duration)>) -> Result<Answer, ApiError> {
    let live = app.reach(&call.caller, id).await?;
    live.touch();
    let row = match wait {
        None => live.row()?,
        // A stopped one does not start by waiting for it.
        Some((wanted, limit)) => live
            .wait_until(limit, |row| row.state == wanted || row.state == State::Stopped)
            .await
            .ok_or_else(not_found)?,
    };
    Answer::json(&live_record(&live, &row))
}

/// Sandboxes, oldest first: those that live and those that can start again.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", params(ListSandboxes), responses(
    (status = 200, body = SandboxPage), (status = 400, body = ErrorBody)))]
async fn page(Extract(app): Extract<AppState>, call: Call) -> Result<Response, ApiError> {
    let mut query = call.query()?;
    let states = query.opt("state", list(1..=State::ALL.len(), state)).unwrap_or_default();
    let name = query.opt("name", text(1..=limits::NAME_TEXT));
    let labels = query.opt("label", list(1..=limits::LABELS, text(1..=2 * limits::LABEL_TEXT + 1)));
    let include_gone = query.opt("includeStopped", boolean).unwrap_or_default();
    let limit = query.opt("limit", int(1..=100)).unwrap_or(DEFAULT_LIMIT);
    let after = query.opt("cursor", |given| {
        let place = given.value.as_str().and_then(read_cursor);
        place.ok_or_else(|| vec![crate::error::Issue::new("", "is not a cursor of this list")])
    });
    query.finish()?;
    let filter = ListFilter {
        credential: (!call.caller.account_wide).then_some(call.caller.credential),
        states,
        name,
        labels: labels.unwrap_or_default(),
        include_gone,
        after,
        // One more tells whether there is a next page.
        limit: limit + 1,
    };
    let rows = app.store().list(filter).await;
    let mut rows = rows.map_err(|error| ApiError::internal("listing sandboxes", error))?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next_cursor = rows.last().filter(|_| more).map(cursor);
    let data = rows.iter().map(record).collect();
    Ok(json_response(Answer::json(&SandboxPage { data, next_cursor })?))
}

fn state(given: crate::fields::Given<'_>) -> crate::fields::Checked<State> {
    let known = given.value.as_str().and_then(State::parse);
    known.ok_or_else(|| vec![crate::error::Issue::new("", "is not a state of a sandbox")])
}

/// The place of the last row of a page.
fn cursor(row: &SandboxRow) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}.{}", row.created_at, row.id))
}

fn read_cursor(text: &str) -> Option<(i64, SandboxId)> {
    let place = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let (time, id) = place.split_once('.')?;
    Some((time.parse().ok()?, id.parse().ok()?))
}
