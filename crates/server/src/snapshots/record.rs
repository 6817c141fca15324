//! The record of a snapshot, as every call answers it.

use bytes::Bytes;
use runtime_api::snapshot::{Durability, Snapshot, SnapshotShape};
use runtime_model::SnapshotId;
use runtime_store::SnapshotRow;

use super::not_found;
use crate::AppState;
use crate::clock::time;
use crate::error::ApiError;

pub(super) fn record(row: &SnapshotRow) -> Snapshot {
    Snapshot {
        id: row.id.to_string(),
        kind: "snapshot".to_owned(),
        mode: if row.memory { "memory" } else { "disk" }.to_owned(),
        status: row.state.as_str().to_owned(),
        state: row.state.as_str().to_owned(),
        name: row.name.clone(),
        labels: row.labels.clone(),
        source_sandbox_id: row.source.to_string(),
        shape: SnapshotShape {
            vcpu: row.shape.vcpu,
            memory_mib: row.shape.memory_mib,
            disk_mib: row.shape.disk_mib,
            memory_guarantee: None,
        },
        retention_days: row.retention_days,
        stored_bytes: row.stored_bytes,
        metered_bytes: row.stored_bytes,
        backed_up: false,
        durability: Durability { state: "none".to_owned(), durable_at: None, stored_bytes: None },
        engine: Some(row.engine.clone()),
        error: row.error.clone(),
        created_at: time(row.created_at),
        ready_at: row.ready_at.map(time),
        expires_at: time(row.expires_at),
        replayed: None,
    }
}

impl AppState {
    /// The record as it is now: the answer to a repeated call.
    pub(crate) async fn last_snapshot(&self, id: SnapshotId) -> Result<Bytes, ApiError> {
        let row = self.snapshot_row(id).await?.ok_or_else(not_found)?;
        let body =
            serde_json::to_vec(&record(&row)).map_err(|error| ApiError::internal("writing the answer", error))?;
        Ok(body.into())
    }
}
