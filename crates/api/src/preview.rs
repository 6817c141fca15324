//! Previews: ports of a sandbox as web addresses.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::Time;

/// A port of a sandbox that browsers and programs reach under an address of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// A lower-case UUID with dashes.
    pub id: String,
    pub sandbox_id: String,
    pub port: u16,
    /// `private`: with a token; `public`: for everybody.
    pub visibility: String,
    pub url: String,
    /// Sent as `X-Runtime-Preview-Token`. Null if it is public, and for a key that may only read.
    pub token: Option<String>,
    pub token_expires_at: Option<Time>,
    /// To be opened in a browser, which keeps the token as a cookie.
    pub url_with_token: Option<String>,
    pub disabled: bool,
    /// Sites that may show it in a frame; null = any.
    pub embed_origins: Option<Vec<String>>,
    pub created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreatePreview {
    /// 1 to 65535, but 10800, 10802 and 10853.
    pub port: u16,
    /// `private` (the default) or `public`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<String>,
    /// How long the token of the answer lasts at least: 60 to 604800, a day if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u32>,
    /// When it ends at the latest: 60 seconds to 7 days ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// At most 16: `https://host[:port]`, `https://*.host`, `http://localhost[:port]`. Left out, those of before stay; null or
    /// empty: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embed_origins: Option<Vec<String>>,
}

/// How long the token of the answer lasts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
pub struct PreviewToken {
    /// 60 to 604800, a day if absent.
    pub ttl_seconds: Option<u32>,
    /// 60 seconds to 7 days ahead.
    pub expires_at: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreviewList {
    /// By port.
    pub data: Vec<Preview>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletedPreview {
    pub id: String,
    pub sandbox_id: String,
    pub port: u16,
    pub deleted: bool,
}
