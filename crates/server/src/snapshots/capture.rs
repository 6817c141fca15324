//! Taking a snapshot: the call, and the part that the source's driver does.
//!
//! ```text
//!   capturing ──> ready
//!       └───────> failed
//! ```
//!
//! The source of one that is `capturing` is paused by its driver, captured and woken again; one that is paused or stopped
//! stays so. Each step may be repeated: after a crash the next driver finds the row, and its source as it was left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State as Extract};
use axum::response::Response;
use runtime_api::error::ErrorBody;
use runtime_api::snapshot::{Snapshot, TakeSnapshot};
use runtime_model::{Reason, SandboxId, SnapshotId, State};
use runtime_proto::node::{Capture, Captured, NodeError};
use runtime_store::{Outcome, Replay, SandboxRow, SnapshotRow, SnapshotState};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::record::record;
use crate::call::Call;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};
use crate::fields::{int, one_of};
use crate::idempotency::{Answer, Keep};
use crate::sandboxes::fields as rules;
use crate::sandboxes::{Live, other_engine};
use crate::{AppState, Caller};

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(take))
}

pub(super) const DAY_MS: i64 = 24 * 60 * 60 * 1000;
/// Of one whose source is busy with itself.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// How long one is kept at most.
pub(super) const LONGEST_DAYS: u32 = 365;

/// Keep what a sandbox is. One that runs stands still meanwhile and goes on; one that is paused stays so.
///
/// `Prefer: wait=N` waits until it is taken.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/~snapshot", tag = "snapshots", params(("id" = String, Path)),
    request_body = TakeSnapshot, responses(
    (status = 200, body = Snapshot), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn take(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut fields = call.fields()?;
        let name = fields.opt("name", rules::name);
        let labels = fields.opt("labels", rules::labels);
        let days = fields.opt("retentionDays", int(1..=LONGEST_DAYS));
        let memory = fields.opt("mode", one_of(&[("memory", true), ("disk", false)])).unwrap_or(true);
        fields.finish()?;
        let wait = call.wait.unwrap_or_default();
        let live = app.reach(&call.caller, &id).await?;
        let source = app.source(&live, memory, wait).await?;
        let row = SnapshotRow { name, ..new_row(&call.caller, &source, memory, labels, days) };
        let id = row.id;
        let key = app.key_record(&call, Replay::Snapshot(id));
        if let Some(held) = app.begin_snapshot(&live, row, key).await? {
            return Ok(Answer::ready(app.replay(&held).await?, Keep::Done));
        }
        let row = app.taken(id, wait).await?;
        if row.state != SnapshotState::Capturing {
            // Its source goes on by then, for whoever asks it something next.
            live.settled(wait).await;
        }
        Ok(Answer::json(&record(&row))?.keep(Keep::Done))
    })
    .await
}

pub(super) fn new_row(
    caller: &Caller,
    source: &SandboxRow,
    memory: bool,
    labels: Option<BTreeMap<String, String>>,
    days: Option<u32>,
) -> SnapshotRow {
    let now = now_ms();
    SnapshotRow {
        id: SnapshotId::new_v4(),
        generation: 1,
        credential: caller.credential,
        source: source.id,
        memory,
        passing: false,
        name: None,
        labels: labels.unwrap_or_else(|| source.labels.clone()),
        shape: source.shape,
        cpu_reserved: source.cpu_reserved,
        engine: source.engine.clone(),
        state: SnapshotState::Capturing,
        error: None,
        retention_days: days,
        stored_bytes: None,
        created_at: now,
        ready_at: None,
        expires_at: now + i64::from(days.unwrap_or(LONGEST_DAYS)) * DAY_MS,
        deleted_at: None,
    }
}

impl AppState {
    /// The sandbox as it is, if a snapshot can be taken of it. One that is on its way somewhere is waited for.
    pub(super) async fn source(
        &self,
        live: &Arc<Live>,
        memory: bool,
        wait: Duration,
    ) -> Result<Arc<SandboxRow>, ApiError> {
        let facts = self.node().facts();
        if !facts.pauses {
            return Err(NodeError::Unsupported("take a snapshot").into());
        }
        live.touch();
        if matches!(live.row()?.state, State::Starting | State::Resuming | State::Stopping) {
            live.settled(wait).await;
        }
        let row = live.row()?;
        if row.engine != facts.engine {
            return Err(other_engine(&row, facts.engine));
        }
        match row.state {
            State::Running | State::Pausing => Ok(row),
            State::Paused if memory && row.reason == Some(Reason::PauseFailed) => {
                Err(ApiError::new(Kind::SnapshotFailed, "The memory of this sandbox is gone.")
                    .hint("Take a snapshot of its disk, with mode disk."))
            }
            State::Paused => Ok(row),
            State::Stopped if memory => Err(ApiError::new(Kind::NotRunning, "The sandbox is stopped.")
                .hint("Take a snapshot of its disk, with mode disk, or restart it first.")),
            State::Stopped if !row.disk_kept => Err(NodeError::DiskGone.into()),
            State::Stopped => Ok(row),
            State::Starting | State::Resuming | State::Stopping => {
                Err(ApiError::new(Kind::SandboxNotReady, "The sandbox is on its way to another state."))
            }
        }
    }

    /// Commits that it is wanted and has the source's driver take it; what is held where the key was used before.
    pub(super) async fn begin_snapshot(
        &self,
        live: &Arc<Live>,
        row: SnapshotRow,
        key: Option<runtime_store::IdempotencyRow>,
    ) -> Result<Option<Box<runtime_store::IdempotencyRow>>, ApiError> {
        let id = row.id;
        let made = self.store().create_snapshot(row, key).await;
        match made.map_err(|error| ApiError::internal(format!("creating snapshot {id}"), error))? {
            Outcome::KeyUsed(held) => return Ok(Some(held)),
            Outcome::Done | Outcome::NameHeld(_) | Outcome::Moved => {}
        }
        live.want_captures();
        self.nudge(live);
        Ok(None)
    }

    /// Takes every snapshot that is wanted of a sandbox, as it stands. False: its machine is gone.
    pub(crate) async fn take_snapshots(&self, live: &Arc<Live>) -> Result<bool, ApiError> {
        let mut there = true;
        // Before the rows are read: whoever wants one from here on says so again.
        live.captures_seen();
        for row in self.wanted_of(live.id).await? {
            let capture = Capture { id: live.id, snapshot: row.id, memory: row.memory };
            let work = self.node().capture(capture);
            let stopping = |row: Option<&SandboxRow>| row.is_none_or(|row| row.state == State::Stopping);
            match self.unless(live, stopping, work).await? {
                Ok(captured) => self.ready_snapshot(row.id, captured).await?,
                // Asked again at the next look.
                Err(NodeError::Busy(_)) if live.peek().is_some_and(|row| row.state != State::Stopping) => {
                    live.want_captures();
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                Err(error) => {
                    there &= !matches!(error, NodeError::NotRunning);
                    self.fail_snapshot(row.id, &error).await?;
                }
            }
        }
        Ok(there)
    }

    async fn wanted_of(&self, source: SandboxId) -> Result<Vec<SnapshotRow>, ApiError> {
        let rows = self.store().unfinished_snapshots().await;
        let mut rows = rows.map_err(|error| ApiError::internal("reading the snapshots under way", error))?;
        rows.retain(|row| row.source == source && row.state == SnapshotState::Capturing);
        Ok(rows)
    }

    async fn ready_snapshot(&self, id: SnapshotId, captured: Captured) -> Result<(), ApiError> {
        let step = |row: &SnapshotRow| {
            let ready = SnapshotRow {
                state: SnapshotState::Ready,
                stored_bytes: i64::try_from(captured.stored_bytes).ok(),
                ready_at: Some(now_ms()),
                ..row.clone()
            };
            Ok((row.state == SnapshotState::Capturing).then_some(ready))
        };
        match self.change_snapshot(id, step, |_| Ok(None)).await {
            Ok(row) if !row.state.is_gone() => Ok(()),
            // Deleted while it was taken.
            Ok(_) => self.drop_snapshot(id).await,
            Err(error) if error.kind() == Kind::NotFound => self.drop_snapshot(id).await,
            Err(error) => Err(error),
        }
    }

    pub(super) async fn fail_snapshot(&self, id: SnapshotId, cause: &NodeError) -> Result<(), ApiError> {
        tracing::warn!(snapshot = %id, error = cause as &dyn std::error::Error, "a snapshot was not taken");
        let why = match cause {
            NodeError::NotRunning | NodeError::MemoryGone(_) => "The sandbox ended before it was taken.".to_owned(),
            NodeError::DiskGone => "The disk of the sandbox is gone.".to_owned(),
            NodeError::NoRoom(what) => format!("The host has no room: {what}."),
            NodeError::Busy(_) => "The sandbox was stopped or deleted before it was taken.".to_owned(),
            _ => "The server failed to take it. Its log has the cause under this id.".to_owned(),
        };
        let step = |row: &SnapshotRow| {
            let failed = SnapshotRow { state: SnapshotState::Failed, error: Some(why.clone()), ..row.clone() };
            Ok((row.state == SnapshotState::Capturing).then_some(failed))
        };
        self.change_snapshot(id, step, |_| Ok(None)).await.map(drop)
    }

    /// A source that is deleted: what was wanted of it will not come.
    pub(crate) async fn fail_snapshots_of(&self, source: SandboxId) -> Result<(), ApiError> {
        for row in self.wanted_of(source).await? {
            self.fail_snapshot(row.id, &NodeError::Busy("it was deleted".to_owned())).await?;
        }
        Ok(())
    }

    pub(super) async fn drop_snapshot(&self, id: SnapshotId) -> Result<(), ApiError> {
        let dropped = self.node().drop_snapshot(id).await;
        dropped.map_err(|error| ApiError::internal(format!("removing snapshot {id}"), error))
    }
}
