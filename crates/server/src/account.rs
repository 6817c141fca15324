//! `GET /v1/me` and `GET /v1/limits`.

use axum::extract::State as Extract;
use axum::response::Response;
use runtime_api::account::{AccountLimit, Credit, DailyLimit, Limits, Me};
use runtime_api::error::ErrorBody;
use runtime_model::{State, limits};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::AppState;
use crate::call::Call;
use crate::error::ApiError;
use crate::idempotency::Answer;
use crate::sandboxes::json_response;

pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(me)).routes(routes!(account_limits))
}

/// Who this key is.
#[utoipa::path(get, path = "/v1/me", tag = "account", responses(
    (status = 200, body = Me), (status = 401, body = ErrorBody)))]
async fn me(call: Call) -> Result<Response, ApiError> {
    call.no_query()?;
    Ok(json_response(Answer::json(&Me {
        org_id: call.caller.org.to_string(),
        org_name: None,
        principal_id: call.caller.principal.to_string(),
        credential_id: Some(call.caller.credential.to_string()),
        api_version: runtime_api::API_VERSION.to_owned(),
        role: Some(if call.caller.account_wide { "owner" } else { "developer" }.to_owned()),
    })?))
}

/// What this key may use, and how much of it is in use.
#[utoipa::path(get, path = "/v1/limits", tag = "account", responses(
    (status = 200, body = Limits), (status = 401, body = ErrorBody)))]
async fn account_limits(Extract(app): Extract<AppState>, call: Call) -> Result<Response, ApiError> {
    call.no_query()?;
    let facts = app.node().facts();
    let (mut live, mut memory) = (0, 0);
    for row in app.sandboxes().all().iter().filter_map(|live| live.peek()) {
        if row.state != State::Stopped && call.caller.reaches(row.credential) {
            live += 1;
            memory += row.shape.memory_mib;
        }
    }
    let row = |limit: &str, label: &str, unit: &str, max: Option<u64>, used: u64| AccountLimit {
        limit: limit.to_owned(),
        label: label.to_owned(),
        unit: unit.to_owned(),
        max,
        used,
    };
    Ok(json_response(Answer::json(&Limits {
        access: if call.caller.read_only { "read" } else { "full" }.to_owned(),
        daily: DailyLimit {
            limit_micros: None,
            used_micros: "0".to_owned(),
            remaining_micros: None,
            window: "24h".to_owned(),
        },
        trial: None,
        account: vec![
            row("sandbox.count", "Sandboxes at once", "count", None, live),
            row("sandbox.memory", "Memory of running sandboxes", "mib", None, memory),
            row("sandbox.vcpu", "vCPUs of one sandbox", "count", Some(u64::from(*limits::VCPU.end())), 0),
            row("host.memory", "Memory of the host", "mib", Some(facts.memory_mib), memory.min(facts.memory_mib)),
        ],
        credit: Credit {
            available_micros: "0".to_owned(),
            daily_pace_micros: "0".to_owned(),
            runway_days: None,
            low_below_days: 7,
            state: "ok".to_owned(),
            added_by: "owner".to_owned(),
        },
    })?))
}
