//! Watches of files: what a host asks of them, and what an agent tells.

use prost::{Enumeration, Message};

use super::User;

/// Watches that may go on at once in a sandbox.
pub const MAX_WATCHES: usize = 4;
/// Bytes of records an agent holds per watch for readers that come back.
pub const RETAINED_RECORDS: usize = 1024 * 1024;

#[derive(Clone, PartialEq, Message)]
pub struct StartWatch {
    /// A directory, or one file.
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(bool, tag = "2")]
    pub recursive: bool,
    /// Kinds that are wanted; none = all but `Access`.
    #[prost(enumeration = "ChangeKind", repeated, tag = "3")]
    pub kinds: Vec<i32>,
    /// Patterns; one with a slash is matched against the path below `path`, one without against each name.
    #[prost(string, repeated, tag = "4")]
    pub include: Vec<String>,
    /// A directory that matches is left out with all below.
    #[prost(string, repeated, tag = "5")]
    pub exclude: Vec<String>,
    /// How long changes are collected after the first one.
    #[prost(uint32, tag = "6")]
    pub batch_ms: u32,
    /// 0 = until stopped. Time in which the machine stands still does not count.
    #[prost(uint64, tag = "7")]
    pub timeout_ms: u64,
    /// Directories looked at; 0 = as many as the agent can.
    #[prost(uint32, tag = "8")]
    pub max_watches: u32,
    #[prost(string, tag = "9")]
    pub watch_id: String,
    /// Same key, same watch: a resend finds it. Empty = none.
    #[prost(string, tag = "10")]
    pub key: String,
    #[prost(enumeration = "User", tag = "11")]
    pub user: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct FollowWatch {
    #[prost(string, tag = "1")]
    pub watch_id: String,
    #[prost(uint64, tag = "2")]
    pub cursor: u64,
    /// Of a poll: how long it waits for the first record.
    #[prost(uint64, tag = "3")]
    pub wait_ms: u64,
    /// A poll: what there is, then `Watch`. Else all until the end.
    #[prost(bool, tag = "4")]
    pub once: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchRef {
    #[prost(string, tag = "1")]
    pub watch_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Watch {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub path: String,
    /// After the last record.
    #[prost(uint64, tag = "3")]
    pub cursor: u64,
    /// Milliseconds since the Unix epoch.
    #[prost(uint64, tag = "4")]
    pub started_at_ms: u64,
    #[prost(bool, tag = "5")]
    pub ended: bool,
    /// True if the answer is to a key that was known before.
    #[prost(bool, tag = "6")]
    pub attached: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Enumeration)]
#[repr(i32)]
pub enum ChangeKind {
    Create = 0,
    Write = 1,
    Remove = 2,
    Rename = 3,
    /// Mode, owner or times.
    Chmod = 4,
    /// Read.
    Access = 5,
}

#[derive(Clone, PartialEq, Message)]
pub struct Change {
    #[prost(enumeration = "ChangeKind", tag = "1")]
    pub kind: i32,
    /// Absolute, lossy where it is not UTF-8.
    #[prost(string, tag = "2")]
    pub path: String,
    #[prost(bool, tag = "3")]
    pub is_dir: bool,
    /// Of a rename.
    #[prost(string, optional, tag = "4")]
    pub old_path: Option<String>,
    /// Changes of the same kind that this one stands for.
    #[prost(uint32, tag = "5")]
    pub count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum WatchEnd {
    Unknown = 0,
    Stopped = 1,
    TimedOut = 2,
    /// What was watched is gone, or has another name.
    RootRemoved = 3,
}

/// Changes that were not kept.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Overflow {
    /// Absent where the kernel dropped them and nobody counted.
    #[prost(uint64, optional, tag = "1")]
    pub dropped: Option<u64>,
}

/// One thing that was seen; exactly one of the fields after the cursor is set.
#[derive(Clone, PartialEq, Message)]
pub struct WatchRecord {
    /// After it: where to go on.
    #[prost(uint64, tag = "1")]
    pub cursor: u64,
    #[prost(message, repeated, tag = "2")]
    pub changes: Vec<Change>,
    #[prost(message, optional, tag = "3")]
    pub overflow: Option<Overflow>,
    /// Only so many directories are looked at; there are more.
    #[prost(uint32, optional, tag = "4")]
    pub limit: Option<u32>,
    /// Bytes of records that are no longer held.
    #[prost(uint64, optional, tag = "5")]
    pub lost: Option<u64>,
    #[prost(enumeration = "WatchEnd", optional, tag = "6")]
    pub end: Option<i32>,
}
