//! What a sandbox may reach, and what was decided about its connections.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::Time;

/// An entry of `allow` and `deny` is a name, `*.` and a domain (all below it), an address, or a range of addresses.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NetworkRules {
    /// False refuses everything; with a filled `allow`, it means that list and nothing else.
    #[schema(required)]
    pub internet: bool,
    /// Filled: only these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
    /// Wins over everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny: Option<Vec<String>>,
    /// `host:port`, reachable beside `allow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<Vec<String>>,
}

/// The rules as they are kept.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxNetwork {
    pub sandbox_id: String,
    pub internet: bool,
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    pub connect: Vec<String>,
    /// Grows with each change.
    pub version: u64,
    /// The host holds it to this version.
    pub enforced: bool,
    pub enforced_version: u64,
    /// Reachable without a `connect` entry, whoever asks.
    pub ports: Vec<u16>,
    /// Every port is, but the forbidden ones.
    pub open_ports: bool,
    pub connect_allowed: bool,
    pub connect_reason: String,
    pub forbidden_ports: Vec<u16>,
    /// Null: never changed.
    pub updated_at: Option<Time>,
}

/// One connection, or one request on a connection to the proxy.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkDecision {
    pub number: u64,
    pub at: Time,
    /// `allowed` or `refused`.
    pub verdict: String,
    /// What allowed it (`open`, `allow`, `connect`), or the value of `X-Runtime-Egress`.
    pub reason: String,
    /// The entry that decided.
    pub rule: Option<String>,
    /// `CONNECT`, or a method of HTTP.
    pub method: String,
    pub host: String,
    pub port: u16,
    pub address: Option<String>,
    pub rules_version: u64,
    /// By the sandbox.
    pub sent_bytes: u64,
    /// To the sandbox.
    pub received_bytes: u64,
    /// Null while it is open.
    pub ended_at: Option<Time>,
    /// Who asked, as the sandbox tells it; null where it does not.
    pub process: Option<DecidedProcess>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DecidedProcess {
    pub pid: i32,
    pub program: String,
    /// The command or process of this API that it belongs to.
    pub process_id: Option<String>,
}

/// Newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkDecisionPage {
    pub data: Vec<NetworkDecision>,
    /// Null at the end.
    pub next_cursor: Option<String>,
    /// Decisions so far, also those no longer kept.
    pub total: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct ListDecisions {
    /// 1 to 200; default 50.
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}
