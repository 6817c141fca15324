//! `POST /v1/sandboxes/{id}:fork`: a snapshot of a sandbox, and sandboxes that go on from it.
//!
//! The copies are committed together with the record of the request, so that a repeated one finds them; what it is
//! answered is read from them, each time anew. A crash before that leaves a snapshot nobody knows, which is swept.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State as Extract};
use axum::response::Response;
use bytes::Bytes;
use runtime_api::error::ErrorBody;
use runtime_api::snapshot::{ForkSandbox, Forked};
use runtime_model::{Reason, SandboxId, SnapshotId, State, limits};
use runtime_store::{Operation, Outcome, Replay, SandboxRow, SnapshotRow, SnapshotState};
use serde_json::{Value, json};
use tokio::time::Instant;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::capture::new_row;
use crate::AppState;
use crate::call::Call;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};
use crate::fields::{boolean, int, line, list, one_of};
use crate::idempotency::{Answer, Keep};
use crate::sandboxes::fields as rules;
use crate::sandboxes::{Live, name_taken};

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(fork))
}

const MOST: u32 = 16;
/// For the largest memory on a slow disk.
const CAPTURE_LIMIT: Duration = Duration::from_secs(600);

/// Make copies of a sandbox that go on where it stands, memory and processes included. It stands still meanwhile.
///
/// `Prefer: wait=N` waits until they run.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/~fork", tag = "snapshots", params(("id" = String, Path)),
    request_body = ForkSandbox, responses(
    (status = 200, body = Forked), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
async fn fork(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut fields = call.fields()?;
        let count = fields.opt("count", int(1..=MOST)).unwrap_or(1);
        let name = fields.opt("name", rules::name);
        let labels = fields.opt("labels", rules::labels);
        let keep = fields.opt("keepSnapshot", boolean).unwrap_or_default();
        let secrets = fields.opt("secrets", list(0..=256, line(1..=128)));
        fields.opt("funding", one_of(&[("trial", ()), ("paid", ())]));
        let names = names(name.as_deref(), count);
        if names.last().is_some_and(|name| name.as_ref().is_some_and(|it| it.chars().count() > limits::NAME_TEXT)) {
            fields.wrong("name", "is too long with the number of the last copy behind it");
        }
        fields.finish()?;
        if secrets.as_ref().is_some_and(|names| !names.is_empty()) {
            return Err(ApiError::new(Kind::SecretsUnavailable, "Egress secrets cannot be used on this server yet.")
                .hint("Leave `secrets` out."));
        }
        let end = Instant::now() + call.wait.unwrap_or_default();
        let live = app.reach(&call.caller, &id).await?;
        let source = app.source(&live, true, call.wait.unwrap_or_default()).await?;
        app.are_free(&call, &names).await?;
        let wanted = SnapshotRow { passing: !keep, ..new_row(&call.caller, &source, true, None, None) };
        let held = app.hold_snapshot(wanted.id);
        let snapshot = app.snapshot_for_fork(&live, wanted).await?;
        // Its network rules may have changed since.
        let source = live.peek().unwrap_or(source);
        let rows: Vec<SandboxRow> = names
            .into_iter()
            .map(|name| copy(&source, &snapshot, &call, name, secrets.clone(), labels.clone()))
            .collect();
        let ids: Vec<SandboxId> = rows.iter().map(|row| row.id).collect();
        let key = app.key_record(&call, Replay::Fork(ids.clone()));
        let made = app.store().create_sandboxes(rows.clone(), key).await;
        match made.map_err(|error| ApiError::internal(format!("creating copies of sandbox {}", source.id), error))? {
            Outcome::Done => {}
            Outcome::NameHeld(_) => {
                held.settle(Vec::new(), !keep);
                return Err(name_taken(rows.first().and_then(|row| row.name.as_deref()), None));
            }
            Outcome::KeyUsed(row) => {
                held.settle(Vec::new(), !keep);
                return Ok(Answer::ready(app.replay(&row).await?, Keep::Done));
            }
            Outcome::Moved => return Err(ApiError::new(Kind::Busy, "The copies could not be made; nothing was done.")),
        }
        let copies: Vec<Arc<Live>> =
            rows.into_iter().map(|row| app.sandboxes().get_or_insert(row.id, Some(row))).collect();
        copies.iter().for_each(|copy| app.nudge(copy));
        held.settle(copies.clone(), !keep);
        for copy in &copies {
            copy.settled(end.saturating_duration_since(Instant::now())).await;
        }
        Ok(Answer::ready(app.forked(&ids).await?, Keep::Done))
    })
    .await
}

/// `name`, `name-1`, `name-2`, or none.
fn names(name: Option<&str>, count: u32) -> Vec<Option<String>> {
    (0..count)
        .map(|number| name.map(|name| if number == 0 { name.to_owned() } else { format!("{name}-{number}") }))
        .collect()
}

/// What it is set to it keeps, with its variables; who it is and what happened to it is its own.
fn copy(
    source: &SandboxRow,
    snapshot: &SnapshotRow,
    call: &Call,
    name: Option<String>,
    secrets: Option<Vec<String>>,
    labels: Option<std::collections::BTreeMap<String, String>>,
) -> SandboxRow {
    let now = now_ms();
    SandboxRow {
        id: SandboxId::new_v4(),
        credential: call.caller.credential,
        name,
        labels: labels.unwrap_or_else(|| snapshot.labels.clone()),
        shape: snapshot.shape,
        image: None,
        snapshot: Some(snapshot.id.to_string()),
        secrets: secrets.or_else(|| source.secrets.clone()),
        network_version: 1,
        network_updated_at: None,
        state: State::Starting,
        reason: None,
        operation: Some(Operation::StartCopy),
        generation: 1,
        created_at: now,
        ready_at: None,
        last_active_at: Some(now),
        ends_at: None,
        ended_at: None,
        paused_at: None,
        disk_kept: false,
        memory_restored: None,
        charged_micros: 0,
        held_micros: 0,
        ..source.clone()
    }
}

/// A snapshot that is not to be swept while a fork is made from it.
struct Holding {
    app: AppState,
    id: SnapshotId,
    settled: bool,
}

impl Holding {
    /// Once no copy needs it any more it is let go, and removed if it was only passing.
    fn settle(mut self, copies: Vec<Arc<Live>>, passing: bool) {
        self.settled = true;
        let (app, id) = (self.app.clone(), self.id);
        self.app.tasks().spawn(async move {
            for copy in copies {
                copy.wait_until(Duration::MAX, |row| row.state != State::Starting).await;
            }
            // The server stops in the middle: the next one looks whether they need it.
            let stopping = app.sandboxes().stopping().is_cancelled();
            app.snapshots().held().remove(&id);
            if passing
                && !stopping
                && let Err(error) = app.delete_snapshot(id).await
            {
                tracing::warn!(snapshot = %id, %error, "the snapshot of a fork stays until the next round");
            }
        });
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if !self.settled {
            self.app.snapshots().held().remove(&self.id);
        }
    }
}

impl AppState {
    fn hold_snapshot(&self, id: SnapshotId) -> Holding {
        self.snapshots().held().insert(id);
        Holding { app: self.clone(), id, settled: false }
    }

    /// Before anything stands still for it. What is taken meanwhile is found at the end.
    async fn are_free(&self, call: &Call, names: &[Option<String>]) -> Result<(), ApiError> {
        for name in names.iter().flatten() {
            let holder = self.store().name_holder(name).await;
            let holder = holder.map_err(|error| ApiError::internal(format!("looking up the name {name}"), error))?;
            if let Some(holder) = holder {
                let row = self.live(holder).await?.and_then(|live| live.peek());
                let known = row.filter(|row| call.caller.reaches(row.credential));
                return Err(name_taken(Some(name), known.as_deref()));
            }
        }
        Ok(())
    }

    async fn snapshot_for_fork(&self, live: &Arc<Live>, wanted: SnapshotRow) -> Result<SnapshotRow, ApiError> {
        let id = wanted.id;
        self.begin_snapshot(live, wanted, None).await?;
        let row = self.taken(id, CAPTURE_LIMIT).await?;
        match row.state {
            SnapshotState::Ready => Ok(row),
            SnapshotState::Capturing => {
                Err(ApiError::new(Kind::Busy, "The server is stopping; no copy was made.").retryable(true))
            }
            SnapshotState::Failed | SnapshotState::Deleting | SnapshotState::Deleted => {
                let why = row.error.unwrap_or_else(|| "It was deleted.".to_owned());
                Err(ApiError::new(Kind::ForkFailed, format!("The sandbox could not be captured. {why}"))
                    .details(json!({ "startedSandboxIds": [] })))
            }
        }
    }

    /// The answer to a fork: its copies as they are, or, if one did not start, which did.
    pub(crate) async fn forked(&self, ids: &[SandboxId]) -> Result<Bytes, ApiError> {
        let (mut records, mut started, mut failed) = (Vec::new(), Vec::new(), 0);
        for id in ids {
            let row = self.live(*id).await?.and_then(|live| live.peek());
            if row.is_some_and(|row| row.reason == Some(Reason::StartupFailed)) {
                failed += 1;
            } else {
                started.push(id.to_string());
                let record: Result<Value, _> = serde_json::from_slice(&self.last_record(*id).await?);
                records.push(record.map_err(|error| ApiError::internal("writing the answer", error))?);
            }
        }
        if failed > 0 {
            let text = format!("{failed} of {} copies did not start.", ids.len());
            return Err(ApiError::new(Kind::ForkFailed, text)
                .hint("Those that started go on; the log of the server says why the others did not.")
                .details(json!({ "startedSandboxIds": started }))
                .retryable(false));
        }
        Ok(Answer::json(&json!({ "sandboxes": records }))?.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_copy_has_the_name_and_the_others_a_number() {
        let all = |name| names(name, 3).into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(all(Some("a")), ["a", "a-1", "a-2"]);
        assert!(all(None).is_empty());
    }
}
