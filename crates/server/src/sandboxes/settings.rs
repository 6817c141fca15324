//! Changing what a sandbox is set to: update, extend, retention.

use axum::extract::{Path, State as Extract};
use axum::response::Response;
use runtime_api::error::ErrorBody;
use runtime_api::sandbox::{ExtendSandbox, Sandbox, SandboxRetention, UpdateSandbox};
use runtime_model::{State, limits};
use runtime_store::{Replay, SandboxRow};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::change::{Step, name_taken};
use super::env::{check_env, env_changes};
use super::fields as rules;
use super::live::Live;
use super::network;
use super::record::live_record;
use crate::AppState;
use crate::call::Call;
use crate::clock::{now_ms, seconds};
use crate::error::{ApiError, Kind};
use crate::fields::{boolean, int, object};
use crate::idempotency::{Answer, Keep};

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(update)).routes(routes!(extend)).routes(routes!(retention))
}

/// A time limit never ends later than this from now.
const FARTHEST: u32 = rules::DAY;

/// Change settings. What is left out stays.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/~update", tag = "sandboxes", params(("id" = String, Path)),
    request_body = UpdateSandbox, responses(
    (status = 200, body = Sandbox), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn update(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut fields = call.fields()?;
        let name = fields.nullable("name", rules::name);
        let labels = fields.opt("labels", rules::labels);
        let env = fields.opt("env", env_changes).unwrap_or_default();
        let user = fields.opt("user", rules::user);
        let auto_wake = fields.opt("autoWake", boolean);
        let idle = fields.opt("idlePauseSeconds", rules::idle_seconds);
        let persistent = fields.opt("persistent", boolean);
        let max_cost = fields.nullable("maxTotalCostMicros", rules::money);
        let timeout = fields.opt("timeoutSeconds", rules::timeout_seconds);
        let on_limit = rules::on_limit(&mut fields);
        let network = fields.opt("network", object(network::inner));
        let tailscale = fields.has("tailscale");
        fields.ignore("tailscale");
        fields.finish()?;
        if tailscale {
            return Err(ApiError::new(Kind::NetworkUnavailable, "Tailscale cannot be used on this server yet."));
        }
        let live = app.reach(&call.caller, &id).await?;
        live.touch();
        let step = |row: &SandboxRow| {
            let mut next = row.clone();
            if let Some(name) = &name {
                next.name.clone_from(name);
            }
            if let Some(labels) = &labels {
                next.labels.clone_from(labels);
            }
            for (name, value) in &env {
                match value {
                    Some(value) => next.env.0.insert(name.clone(), value.clone()),
                    None => next.env.0.remove(name),
                };
            }
            check_env(&next.env.0, limits::ENV_VARS, limits::ENV_BYTES)?;
            next.user = user.unwrap_or(row.user);
            next.auto_wake = auto_wake.unwrap_or(row.auto_wake);
            next.idle_seconds = idle.unwrap_or(row.idle_seconds);
            next.persistent = persistent.unwrap_or(row.persistent);
            next.max_total_cost_micros = max_cost.unwrap_or(row.max_total_cost_micros);
            next.on_limit = on_limit.unwrap_or(row.on_limit);
            if let Some(network) = &network {
                network::replace(&mut next, network);
            }
            if let Some(timeout) = timeout {
                next.timeout_seconds = timeout;
                // A paused one counts from its next wake.
                let runs = row.state == State::Running && timeout > 0;
                next.ends_at = runs.then(|| now_ms() + seconds(timeout));
            }
            Ok(Step::save(next))
        };
        let answer = match save(&app, &live, &call, step).await {
            Err(error) if error.kind() == Kind::NameTaken => return Err(who_has(&app, &call, name.flatten()).await?),
            other => other?,
        };
        // The change is kept whatever comes now: if the node cannot be told, the reconciler tells it.
        if network.is_some() {
            app.enforce(&live).await?;
        }
        Ok(answer)
    })
    .await
}

/// The refusal names the holder to a caller that may know it.
async fn who_has(app: &AppState, call: &Call, name: Option<String>) -> Result<ApiError, ApiError> {
    let name = name.unwrap_or_default();
    let holder = app.store().name_holder(&name).await;
    let holder = match holder.map_err(|error| ApiError::internal(format!("looking up the name {name}"), error))? {
        Some(holder) => app.live(holder).await?.and_then(|live| live.peek()),
        None => None,
    };
    Ok(name_taken(Some(&name), holder.filter(|row| call.caller.reaches(row.credential)).as_deref()))
}

/// Move the end of the time limit. Without a limit there is nothing to move.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/~extend", tag = "sandboxes", params(("id" = String, Path)),
    request_body = ExtendSandbox, responses(
    (status = 200, body = Sandbox), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn extend(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut fields = call.fields()?;
        // More than is to be had is cut down below.
        let more: u32 = fields.need("seconds", int(1..=u32::MAX));
        fields.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        live.touch();
        let step = |row: &SandboxRow| {
            if row.timeout_seconds == 0 {
                return Ok(Step::Stay);
            }
            let Some(ends) = row.ends_at.filter(|_| row.state == State::Running) else {
                return Err(ApiError::new(
                    Kind::NotRunning,
                    "The sandbox is not running: its time limit is not counting.",
                ));
            };
            let farthest = (now_ms() + seconds(FARTHEST)).max(ends);
            Ok(Step::save(SandboxRow { ends_at: Some((ends + seconds(more)).min(farthest)), ..row.clone() }))
        };
        save(&app, &live, &call, step).await
    })
    .await
}

/// How many days a stopped or paused sandbox is kept; null for good.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/~retention", tag = "sandboxes", params(("id" = String, Path)),
    request_body = SandboxRetention, responses(
    (status = 200, body = Sandbox), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn retention(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut fields = call.fields()?;
        let days = fields.need_nullable("days", int(1..=365_u32));
        fields.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        live.touch();
        let step = |row: &SandboxRow| Ok(Step::save(SandboxRow { retention_days: days, ..row.clone() }));
        save(&app, &live, &call, step).await
    })
    .await
}

/// The change and the record of its answer, in one transaction: these are not safe to do twice.
async fn save(
    app: &AppState,
    live: &Live,
    call: &Call,
    step: impl Fn(&SandboxRow) -> Result<Step, ApiError>,
) -> Result<Answer, ApiError> {
    let key = |row: &SandboxRow| {
        let body = Answer::json(&live_record(live, row))?.body;
        Ok(app.key_record(call, Replay::Body(body.to_vec())))
    };
    let before = live.row()?.generation;
    let row = app.change_with_key(live, step, key).await?;
    let answer = Answer::json(&live_record(live, &row))?;
    // A step that had nothing to do wrote no record.
    Ok(answer.keep(if row.generation == before { Keep::Now } else { Keep::Done }))
}
