//! The sandboxes in memory: every one that is not stopped, and those lately asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use runtime_model::{SandboxId, State};
use runtime_store::SandboxRow;
use tokio_util::sync::CancellationToken;

use super::live::Live;
use crate::AppState;
use crate::clock::now_ms;
use crate::error::ApiError;

/// A stopped sandbox nobody asked for leaves memory after this.
const KEPT_MS: i64 = 10 * 60 * 1000;

#[derive(Default)]
pub(crate) struct Sandboxes {
    table: Mutex<HashMap<SandboxId, Arc<Live>>>,
    /// The server is stopping: nothing that only waits goes on.
    stopping: CancellationToken,
}

impl Sandboxes {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, Arc<Live>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    pub(crate) fn get(&self, id: SandboxId) -> Option<Arc<Live>> {
        self.table().get(&id).cloned()
    }

    /// The one in memory, which is never older than the row given here, or a new one with this row.
    pub(crate) fn get_or_insert(&self, id: SandboxId, row: Option<SandboxRow>) -> Arc<Live> {
        self.table().entry(id).or_insert_with(|| Arc::new(Live::new(id, row, self.stopping.clone()))).clone()
    }

    pub(crate) fn remove(&self, id: SandboxId) {
        self.table().remove(&id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Live>> {
        self.table().values().cloned().collect()
    }

    /// How many are not stopped.
    pub(crate) fn count(&self) -> usize {
        let lives = |live: &&Arc<Live>| live.peek().is_some_and(|row| row.state != State::Stopped);
        self.table().values().filter(lives).count()
    }

    /// Forgets stopped ones that nobody uses.
    pub(crate) fn shrink(&self) {
        let old = now_ms() - KEPT_MS;
        self.table().retain(|_, live| {
            let stopped = live.peek().is_some_and(|row| row.state == State::Stopped);
            !(stopped && Arc::strong_count(live) == 1 && live.driver_sleeps() && live.last_active() < old)
        });
    }
}

impl AppState {
    /// The sandbox in memory, read from the store if it is not; `None` if there is none or it is deleted.
    pub(crate) async fn live(&self, id: SandboxId) -> Result<Option<Arc<Live>>, ApiError> {
        if let Some(live) = self.sandboxes().get(id) {
            return Ok(live.peek().is_some().then_some(live));
        }
        let row = self
            .store()
            .sandbox(id)
            .await
            .map_err(|error| ApiError::internal(format!("reading sandbox {id}"), error))?;
        Ok(row.map(|row| self.sandboxes().get_or_insert(id, Some(row))))
    }
}
