//! Sandboxes: the record, the bodies that make and change one, the answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::Time;
use crate::network::NetworkRules;

/// A sandbox as every call answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// A lower-case UUID with dashes.
    pub id: String,
    /// `sandbox`.
    pub kind: String,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// Coarse: `pending`, `active`, `paused`, `stopping`, `stopped`.
    pub status: String,
    /// `starting`, `running`, `pausing`, `paused`, `resuming`, `stopping`, `stopped`.
    pub state: String,
    pub region: String,
    pub funding: String,
    pub vcpu: u32,
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    #[serde(rename = "diskMiB")]
    pub disk_mib: u64,
    /// `shared` or `reserved`.
    pub cpu: String,
    pub cpu_floor_millis: u32,
    pub pausable: bool,
    /// 0 = no limit.
    pub timeout_seconds: u32,
    /// 0 = never.
    pub idle_pause_seconds: u32,
    pub auto_wake: bool,
    pub persistent: bool,
    /// Who commands run as unless they say: `sandbox` or `root`.
    pub user: String,
    /// The same as `onTimeout`.
    pub on_lease_end: String,
    pub on_timeout: String,
    pub created_at: Time,
    pub ready_at: Option<Time>,
    pub last_active_at: Option<Time>,
    pub expires_at: Option<Time>,
    /// Null: no time limit, or not running.
    pub ends_at: Option<Time>,
    pub ended_at: Option<Time>,
    pub stop_reason: Option<String>,
    pub paused_at: Option<Time>,
    pub paused_expires_at: Option<Time>,
    pub disk_kept: bool,
    pub image: Option<String>,
    pub snapshot: Option<String>,
    /// Null: every secret.
    pub secrets: Option<Vec<String>>,
    /// Names only; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_names: Option<Vec<String>>,
    pub max_total_cost_micros: Option<i64>,
    pub charged_micros: i64,
    pub held_micros: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_restored: Option<bool>,
    /// Which engine runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// On the answer to a repeated request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed: Option<bool>,
    /// On the answer of a create that found the named sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reused: Option<bool>,
}

/// Every field may be left out.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CreateSandbox {
    /// Unique while it is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Find the sandbox of this name, start it if need be, or make it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub get_or_create: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Never answered again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// `sandbox` or `root`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Accepted, not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub funding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// 1 to 16; default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
    /// 128 to 65536; default 4096.
    #[serde(rename = "memoryMiB", skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// 3072 to 409600; default 4096.
    #[serde(rename = "diskMiB", skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
    /// `shared` or `reserved`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_floor_millis: Option<u32>,
    /// 0 = no limit, else 60 to 86400.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// `pause`, `stop` or `delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lease_end: Option<String>,
    /// The newer name of `onLeaseEnd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<String>,
    /// 0 = never; 1 to 59 are raised to 60; default 300.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_pause_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_wake: Option<bool>,
    /// No time limit and no idle pause unless they are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Accepted, not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pausable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_total_cost_micros: Option<i64>,
    /// Deprecated, not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost_micros: Option<i64>,
    /// Left out: every public place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkRules>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread_from: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tailscale: Option<serde_json::Value>,
    /// Egress secrets it may use; null = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
}

/// Fields left out stay as they are.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct UpdateSandbox {
    /// Null gives the name up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Replaces all labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Adds and replaces; a null value removes a variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, Option<String>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_wake: Option<bool>,
    /// Counted from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_pause_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Null clears it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_total_cost_micros: Option<i64>,
    /// A new limit from now; 0 removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lease_end: Option<String>,
    /// Replaces all rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkRules>,
    /// Null leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tailscale: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WakeSandbox {
    /// Its time limit from now on; its own if left out.
    pub timeout_seconds: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendSandbox {
    /// At least 1; the limit is never more than a day from now.
    pub seconds: u32,
}

/// What is left out stays as it is; one of the sizes is needed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResizeSandbox {
    /// It may be stopped and started again for this, which loses what is in its memory.
    pub restart: bool,
    /// 1 to 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
    #[serde(default, rename = "memoryMiB", skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// A disk only grows.
    #[serde(default, rename = "diskMiB", skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxRetention {
    /// 1 to 365; null keeps it.
    pub days: Option<u32>,
}

/// A page, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxPage {
    pub data: Vec<Sandbox>,
    /// Null at the end.
    pub next_cursor: Option<String>,
}

/// The answer to a delete, the same each time.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletedSandbox {
    pub id: String,
    pub kind: String,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// `deleted`.
    pub status: String,
    /// `stopping` if a machine was there, else `stopped`.
    pub state: String,
    pub deleted_at: Time,
    pub ended_at: Time,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct ListSandboxes {
    /// Any of these states; repeat it for more than one.
    pub state: Option<Vec<String>>,
    pub name: Option<String>,
    /// `key:value`; repeated ones must all match.
    pub label: Option<Vec<String>>,
    /// Also stopped ones whose disk is gone.
    pub include_stopped: Option<bool>,
    /// 1 to 100; default 50.
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct WaitFor {
    /// `running`, `paused` or `stopped`.
    pub wait_for: Option<String>,
    /// Default 60, at most 120.
    pub timeout_seconds: Option<u32>,
}
