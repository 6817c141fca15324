//! A create from a snapshot.

use runtime_model::Shape;
use runtime_store::{Operation, SandboxRow, SnapshotRow, SnapshotState};
use serde_json::json;

use super::create::memory_beyond;
use crate::error::{ApiError, Issue, Kind};
use crate::{AppState, Caller};

/// What a create says about the size and the labels itself.
pub(super) struct Given {
    pub(super) vcpu: Option<u32>,
    pub(super) memory_mib: Option<u64>,
    pub(super) disk_mib: Option<u64>,
    pub(super) labels: bool,
}

/// Makes the row of a new sandbox that of a copy.
pub(super) async fn begin(
    app: &AppState,
    caller: &Caller,
    snapshot: &str,
    given: &Given,
    row: &mut SandboxRow,
) -> Result<(), ApiError> {
    let found = app.reach_snapshot(caller, snapshot).await?.filter(|found| !found.state.is_gone());
    let Some(found) = found else {
        return Err(ApiError::new(Kind::SnapshotNotFound, format!("There is no snapshot {snapshot}.")));
    };
    match found.state {
        SnapshotState::Ready => {}
        SnapshotState::Failed => {
            return Err(ApiError::new(Kind::SnapshotFailed, "This snapshot was not taken; see its error."));
        }
        _ => {
            return Err(ApiError::new(Kind::SnapshotNotReady, "This snapshot is still being taken.")
                .hint("Wait until its state is ready."));
        }
    }
    let facts = app.node().facts();
    if found.engine != facts.engine {
        let text =
            format!("This snapshot was taken on the engine {}; this server runs {}.", found.engine, facts.engine);
        return Err(ApiError::new(Kind::EngineMismatch, text));
    }
    let shape = if found.memory { same_size(&found, given)? } else { own_size(&found, given)? };
    if let Some(why) = memory_beyond(shape, facts.memory_mib) {
        return Err(ApiError::wrong("memoryMiB", why));
    }
    row.shape = Shape { cpu_floor_millis: row.shape.cpu_floor_millis.min(shape.vcpu * 1000), ..shape };
    if row.cpu_reserved {
        row.shape.cpu_floor_millis = shape.vcpu * 1000;
    }
    if !given.labels {
        row.labels = found.labels;
    }
    row.snapshot = Some(found.id.to_string());
    row.operation = Some(Operation::StartCopy);
    Ok(())
}

/// A memory goes with the machine that it was in.
fn same_size(found: &SnapshotRow, given: &Given) -> Result<Shape, ApiError> {
    let sizes = [
        ("vcpu", given.vcpu.map(u64::from), u64::from(found.shape.vcpu)),
        ("memoryMiB", given.memory_mib, found.shape.memory_mib),
        ("diskMiB", given.disk_mib, found.shape.disk_mib),
    ];
    let other = sizes.into_iter().filter(|(_, given, saved)| given.is_some_and(|given| given != *saved));
    let issues: Vec<Issue> = other
        .map(|(name, _, saved)| Issue::new(name, format!("must be the {saved} of the snapshot, or left out")))
        .collect();
    if issues.is_empty() { Ok(found.shape) } else { Err(ApiError::invalid(issues)) }
}

fn own_size(found: &SnapshotRow, given: &Given) -> Result<Shape, ApiError> {
    let saved = found.shape;
    let disk_mib = given.disk_mib.unwrap_or(saved.disk_mib);
    if disk_mib < saved.disk_mib {
        let text = format!("The snapshot is of a disk of {} MiB, which does not fit.", saved.disk_mib);
        return Err(ApiError::new(Kind::DiskTooSmall, text).details(json!({ "field": "diskMiB" })));
    }
    Ok(Shape {
        vcpu: given.vcpu.unwrap_or(saved.vcpu),
        memory_mib: given.memory_mib.unwrap_or(saved.memory_mib),
        disk_mib,
        cpu_floor_millis: saved.cpu_floor_millis,
    })
}
