//! Sessions: what a browser needs to use one sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

/// A way into one sandbox for a web page, without a key. Its token reaches `:exec`, processes, files, uploads, the
/// interpreter, the record and the list of previews of that sandbox, and nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// A lower-case UUID with dashes.
    pub id: String,
    pub sandbox_id: String,
    pub name: Option<String>,
    /// Origins whose pages may use it, as browsers write them.
    pub origins: Vec<String>,
    /// The id of the key that made it. When that key is revoked, the session ends.
    pub created_by: String,
    pub created_at: Time,
    pub expires_at: Time,
    pub revoked_at: Option<Time>,
    /// `active`, `expired` or `revoked`.
    pub state: String,
}

/// The only answer that holds the token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewSession {
    #[serde(flatten)]
    pub session: Session,
    /// Sent as `Authorization: Bearer`. Null where the answer repeats an earlier one: only a hash of it is kept.
    pub token: Option<String>,
    /// Where the page finds this API.
    pub api_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateSession {
    /// 60 to 86400; 3600 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u32>,
    /// At most 16: `https://host[:port]` or `http://localhost[:port]`. Without any, no page may use it, only programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Those that live, and those that ended within a day; newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionList {
    pub data: Vec<Session>,
    /// Always null: there is one page.
    pub next_cursor: Option<String>,
}
