//! Who a key is, and what it may use.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Me {
    pub org_id: String,
    pub org_name: Option<String>,
    pub principal_id: String,
    pub credential_id: Option<String>,
    pub api_version: String,
    /// `owner` for an account-wide key, else `developer`.
    pub role: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// `full` or `read`.
    pub access: Option<String>,
    pub daily: DailyLimit,
    /// No trial on a server of one's own.
    pub trial: Option<serde_json::Value>,
    pub account: Vec<AccountLimit>,
    pub sandbox: SandboxLimits,
    pub rate: RateLimits,
}

/// Money a key may spend in a day; a server of one's own has no such limit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DailyLimit {
    pub limit_micros: Option<i64>,
    pub used_micros: i64,
    pub remaining_micros: Option<i64>,
    pub window: String,
}

/// One row: how much of what is in use.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccountLimit {
    pub name: String,
    pub used: u64,
    /// Null: as much as the host has.
    pub limit: Option<u64>,
}

/// The largest sandbox this server makes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxLimits {
    pub vcpu: u32,
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    #[serde(rename = "diskMiB")]
    pub disk_mib: u64,
    pub processes: u32,
    pub engine: String,
}

/// Null: no such guard is on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateLimits {
    pub requests_per_second: Option<u32>,
    pub burst: Option<u32>,
    pub in_flight: Option<u64>,
}
