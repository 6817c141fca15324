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

/// Money is whole microdollars, as text.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// `full` or `read`.
    pub access: String,
    pub daily: DailyLimit,
    /// No trial on a server of one's own.
    pub trial: Option<serde_json::Value>,
    pub account: Vec<AccountLimit>,
    pub credit: Credit,
}

/// What a key may spend in a day; a server of one's own has no such limit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DailyLimit {
    pub limit_micros: Option<String>,
    pub used_micros: String,
    pub remaining_micros: Option<String>,
    pub window: String,
}

/// One row: how much of what is in use.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccountLimit {
    /// `<kind>.<dimension>`.
    pub limit: String,
    pub label: String,
    /// `count` or `mib`.
    pub unit: String,
    /// Null: as much as the host has.
    pub max: Option<u64>,
    pub used: u64,
}

/// Nothing is charged on a server of one's own.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credit {
    pub available_micros: String,
    pub daily_pace_micros: String,
    pub runway_days: Option<u32>,
    pub low_below_days: u32,
    /// `ok`, `low` or `empty`.
    pub state: String,
    pub added_by: String,
}
