//! Snapshots and forks.
//!
//! The row of a snapshot says what is wanted of it. Taking it is work of its source's driver ([`capture`]), which has the
//! source stand still meanwhile; removing it is done behind the answer; both are gone on with by the next server. A fork
//! is a snapshot that passes and sandboxes made from it.

mod capture;
mod find;
mod fork;
mod manage;
mod reconcile;
mod record;

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use runtime_model::SnapshotId;
use runtime_store::{IdempotencyRow, Outcome, SnapshotRow, SnapshotState};
use tokio::sync::watch;
use tokio::time::Instant;
use utoipa_axum::router::OpenApiRouter;

use crate::error::{ApiError, Kind};
use crate::{AppState, Caller};

pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().merge(capture::router()).merge(find::router()).merge(manage::router()).merge(fork::router())
}

/// The row moved under every one of so many attempts: something is badly wrong.
const ATTEMPTS: usize = 64;

#[derive(Default)]
pub(crate) struct Snapshots {
    /// Counts changes of rows.
    changes: watch::Sender<u64>,
    /// Those that forks under way are made from.
    held: Mutex<HashSet<SnapshotId>>,
    /// On the host and in no row; a log line told of them.
    strangers: Mutex<HashSet<SnapshotId>>,
}

impl Snapshots {
    fn held(&self) -> std::sync::MutexGuard<'_, HashSet<SnapshotId>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn not_found() -> ApiError {
    ApiError::new(Kind::NotFound, "There is no snapshot with this id.")
}

impl AppState {
    pub(crate) async fn snapshot_row(&self, id: SnapshotId) -> Result<Option<SnapshotRow>, ApiError> {
        let row = self.store().snapshot(id).await;
        row.map_err(|error| ApiError::internal(format!("reading snapshot {id}"), error))
    }

    /// The snapshot under this id if the caller may see it.
    pub(crate) async fn reach_snapshot(&self, caller: &Caller, id: &str) -> Result<Option<SnapshotRow>, ApiError> {
        let Some(id) = id.parse::<SnapshotId>().ok().filter(|parsed| parsed.to_string() == id) else { return Ok(None) };
        let row = self.snapshot_row(id).await?;
        Ok(row.filter(|row| caller.reaches(row.credential) && !row.passing))
    }

    /// Applies a step to the newest row, again if another came in between; `None` leaves it. The row that then is.
    async fn change_snapshot(
        &self,
        id: SnapshotId,
        step: impl Fn(&SnapshotRow) -> Result<Option<SnapshotRow>, ApiError>,
        key: impl Fn(&SnapshotRow) -> Result<Option<IdempotencyRow>, ApiError>,
    ) -> Result<SnapshotRow, ApiError> {
        for _ in 0..ATTEMPTS {
            let row = self.snapshot_row(id).await?.ok_or_else(not_found)?;
            let Some(mut next) = step(&row)? else { return Ok(row) };
            next.generation = row.generation + 1;
            let saved = self.store().save_snapshot(next.clone(), key(&next)?).await;
            let saved = saved.map_err(|error| ApiError::internal(format!("saving snapshot {id}"), error))?;
            if matches!(saved, Outcome::Done) {
                self.snapshots().changes.send_modify(|count| *count += 1);
                return Ok(next);
            }
        }
        Err(ApiError::new(Kind::Busy, "The snapshot is being changed by others; nothing was done."))
    }

    /// Waits until it is taken, or was not, or the time is over.
    async fn taken(&self, id: SnapshotId, limit: Duration) -> Result<SnapshotRow, ApiError> {
        let mut changes = self.snapshots().changes.subscribe();
        let until = Instant::now() + limit;
        loop {
            changes.borrow_and_update();
            let row = self.snapshot_row(id).await?.ok_or_else(not_found)?;
            if row.state != SnapshotState::Capturing {
                return Ok(row);
            }
            tokio::select! {
                changed = tokio::time::timeout_at(until, changes.changed()) => {
                    if !matches!(changed, Ok(Ok(()))) {
                        return Ok(row);
                    }
                }
                () = self.sandboxes().stopping().cancelled() => return Ok(row),
            }
        }
    }
}
