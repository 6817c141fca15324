//! Watches: what happens to the files below a path of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeType {
    Create,
    Write,
    Remove,
    Rename,
    /// Mode, owner or times.
    Chmod,
    /// A file was read.
    Access,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WatchRequest {
    /// Absolute: a directory, or one file.
    pub path: String,
    /// All directories below, too.
    #[serde(default)]
    pub recursive: bool,
    /// All but `access` if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<ChangeType>>,
    /// Patterns; one with a slash is for the path below `path`, one without for each name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// A directory that matches is left out with all below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclude: Option<Vec<String>>,
    /// Changes are collected for so long after the first; 100 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_ms: Option<u32>,
    /// One hour if left out, 0 until stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Directories that are looked at, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_watches: Option<u32>,
    /// Its name; one is made if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Not on this server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchInfo {
    pub id: String,
    pub path: String,
    /// Where to read from: of a start its beginning, in a list after all that was seen.
    pub cursor: u64,
    /// The same as `id`: no process of the sandbox is behind it.
    pub process_id: String,
    pub state: WatchState,
    /// Milliseconds since 1970.
    pub started_at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WatchState {
    Running,
    Ended,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WatchList {
    pub data: Vec<WatchInfo>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WatchStopped {
    /// False: it had ended.
    pub stopped: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileChange {
    #[serde(rename = "type")]
    pub kind: ChangeType,
    pub path: String,
    pub is_dir: bool,
    /// Of a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_path: Option<String>,
    /// Changes of the same kind that this one stands for, if more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WatchEndReason {
    Stopped,
    Timeout,
    /// What was watched is gone, or has another name.
    RootRemoved,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OverflowReason {
    /// The kernel's own queue was full.
    Kernel,
    /// More in one batch than is kept.
    Rate,
}

/// A line of a followed watch, and a notice of a poll. `cursor` is where to go on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "k", rename_all = "lowercase")]
pub enum WatchLine {
    Events {
        events: Vec<FileChange>,
        cursor: u64,
    },
    /// Changes that were not kept; look at the files themselves.
    Overflow {
        dropped: Option<u64>,
        reason: OverflowReason,
        cursor: u64,
    },
    /// Only so many directories are looked at; there are more.
    Limit {
        watches: u32,
        cursor: u64,
    },
    /// So much was seen and is no longer held.
    Lost {
        bytes: u64,
        cursor: u64,
    },
    End {
        reason: WatchEndReason,
        cursor: u64,
    },
    /// The sandbox is paused; nothing happens in it, and reading does not wake it.
    Paused {
        cursor: u64,
    },
    /// Last line of a slice: go on from the cursor.
    Continue {
        cursor: u64,
    },
    /// Last line: reading failed.
    #[serde(rename_all = "camelCase")]
    Failure {
        code: String,
        message: String,
        status: u16,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
        request_id: String,
        cursor: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchPoll {
    pub events: Vec<FileChange>,
    /// Everything but events.
    pub notices: Vec<WatchLine>,
    pub next_cursor: u64,
    /// Bytes of what was seen that are no longer held.
    pub lost_bytes: u64,
    /// Nothing more comes.
    pub ended: bool,
}
