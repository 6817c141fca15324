//! The record of a sandbox, as every call answers it.

use bytes::Bytes;
use runtime_api::sandbox::{DeletedSandbox, Sandbox};
use runtime_model::{SandboxId, State};
use runtime_store::SandboxRow;

use super::live::{Live, not_found};
use crate::AppState;
use crate::clock::{now_ms, time};
use crate::error::ApiError;

/// How far ahead a sandbox without a time limit is good for: there is nothing to pay, so it slides.
const AHEAD_MS: i64 = 60 * 60 * 1000;
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

fn status(state: State) -> &'static str {
    match state {
        State::Starting => "pending",
        State::Running | State::Pausing | State::Resuming => "active",
        State::Paused => "paused",
        State::Stopping => "stopping",
        State::Stopped => "stopped",
    }
}

/// Without the names of its variables, as in lists.
pub(crate) fn record(row: &SandboxRow) -> Sandbox {
    let ahead = now_ms() + AHEAD_MS;
    let expires = match row.state {
        State::Stopped => row.ended_at,
        State::Running => Some(row.ends_at.map_or(ahead, |ends| ends.min(ahead))),
        _ => Some(ahead),
    };
    let kept_since = match row.state {
        State::Paused => row.paused_at,
        State::Stopped => row.ended_at.filter(|_| row.disk_kept),
        _ => None,
    };
    let kept_until = kept_since.zip(row.retention_days).map(|(since, days)| since + i64::from(days) * DAY_MS);
    Sandbox {
        id: row.id.to_string(),
        kind: "sandbox".to_owned(),
        name: row.name.clone(),
        labels: row.labels.clone(),
        status: status(row.state).to_owned(),
        state: row.state.as_str().to_owned(),
        region: row.region.clone(),
        funding: "paid".to_owned(),
        vcpu: row.shape.vcpu,
        memory_mib: row.shape.memory_mib,
        disk_mib: row.shape.disk_mib,
        cpu: if row.cpu_reserved { "reserved" } else { "shared" }.to_owned(),
        cpu_floor_millis: row.shape.cpu_floor_millis,
        pausable: true,
        timeout_seconds: row.timeout_seconds,
        idle_pause_seconds: row.idle_seconds,
        auto_wake: row.auto_wake,
        persistent: row.persistent,
        user: row.user.as_str().to_owned(),
        on_lease_end: row.on_limit.as_str().to_owned(),
        on_timeout: row.on_limit.as_str().to_owned(),
        created_at: time(row.created_at),
        ready_at: row.ready_at.map(time),
        last_active_at: row.last_active_at.map(time),
        expires_at: expires.map(time),
        ends_at: row.ends_at.filter(|_| row.state == State::Running).map(time),
        ended_at: row.ended_at.map(time),
        stop_reason: row.reason.map(|reason| reason.as_str().to_owned()),
        paused_at: row.paused_at.map(time),
        paused_expires_at: kept_until.map(time),
        disk_kept: row.disk_kept,
        image: row.image.clone(),
        snapshot: row.snapshot.clone(),
        secrets: row.secrets.clone(),
        env_names: None,
        max_total_cost_micros: row.max_total_cost_micros,
        charged_micros: row.charged_micros,
        held_micros: row.held_micros,
        memory_restored: row.memory_restored,
        engine: Some(row.engine.clone()),
        replayed: None,
        reused: None,
    }
}

/// With the names of its variables, never their values.
pub(crate) fn full_record(row: &SandboxRow) -> Sandbox {
    Sandbox { env_names: Some(row.env.0.keys().cloned().collect()), ..record(row) }
}

/// The same with activity newer than the row.
pub(crate) fn live_record(live: &Live, row: &SandboxRow) -> Sandbox {
    let seen = row.last_active_at.max(Some(live.last_active()));
    Sandbox { last_active_at: seen.map(time), ..full_record(row) }
}

pub(crate) fn deleted_record(row: &SandboxRow, now: i64) -> DeletedSandbox {
    let state = if row.state == State::Stopped { State::Stopped } else { State::Stopping };
    DeletedSandbox {
        id: row.id.to_string(),
        kind: "sandbox".to_owned(),
        name: row.name.clone(),
        labels: row.labels.clone(),
        status: "deleted".to_owned(),
        state: state.as_str().to_owned(),
        deleted_at: time(now),
        ended_at: time(row.ended_at.unwrap_or(now)),
    }
}

impl AppState {
    /// The record as it is now, or what is left of a deleted one: the answer to a repeated create.
    pub(crate) async fn last_record(&self, id: SandboxId) -> Result<Bytes, ApiError> {
        let write = |error| ApiError::internal("writing the answer", error);
        if let Some(live) = self.live(id).await? {
            let body = serde_json::to_vec(&live_record(&live, &*live.row()?)).map_err(write)?;
            return Ok(body.into());
        }
        let deleted = self.store().deleted(id).await;
        let deleted = deleted.map_err(|error| ApiError::internal(format!("reading deleted sandbox {id}"), error))?;
        Ok(deleted.ok_or_else(not_found)?.answer.into())
    }
}
