//! Snapshots: the record, the bodies, and forks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::Time;
use crate::sandbox::Sandbox;

/// What a sandbox was, kept apart from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// A lower-case UUID with dashes.
    pub id: String,
    /// `snapshot`.
    pub kind: String,
    /// `memory`: disk, memory and processes; `disk`: the disk alone.
    pub mode: String,
    /// The same as `state`.
    pub status: String,
    /// `capturing`, `ready`, `failed`, `deleting`, `deleted`.
    pub state: String,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub source_sandbox_id: String,
    pub shape: SnapshotShape,
    /// What was asked for; null = as long as it may be kept.
    pub retention_days: Option<u32>,
    /// What it took up by itself when it was taken.
    pub stored_bytes: Option<i64>,
    pub metered_bytes: Option<i64>,
    /// A copy lies on another host.
    pub backed_up: bool,
    pub durability: Durability,
    pub engine: Option<String>,
    pub error: Option<String>,
    pub created_at: Time,
    pub ready_at: Option<Time>,
    pub expires_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<bool>,
}

/// The size of its source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotShape {
    pub vcpu: u32,
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    #[serde(rename = "diskMiB")]
    pub disk_mib: u64,
    pub memory_guarantee: Option<u64>,
}

/// Its copy off this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Durability {
    /// `none`: it lies on this host alone.
    pub state: String,
    pub durable_at: Option<Time>,
    pub stored_bytes: Option<i64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TakeSnapshot {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Those of the sandbox if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// 1 to 365.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_days: Option<u32>,
    /// `memory`, the default, or `disk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct UpdateSnapshot {
    /// Null gives the name up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Replaces all labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Nothing is changed unless these are its labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExtendSnapshot {
    /// From now on, 1 to 365; never more than a year from when it was taken.
    pub retention_days: u32,
}

/// A page, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotPage {
    pub data: Vec<Snapshot>,
    /// Null at the end.
    pub next_cursor: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct ListSnapshots {
    pub sandbox_id: Option<String>,
    pub name: Option<String>,
    pub state: Option<String>,
    /// 1 to 100; default 50.
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ForkSandbox {
    /// 1 to 16; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Of the first copy; the others are called `name-1`, `name-2` and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Those of the sandbox if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Keeps the snapshot that the copies are made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_snapshot: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
    /// Accepted, not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub funding: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Forked {
    pub sandboxes: Vec<Sandbox>,
}
