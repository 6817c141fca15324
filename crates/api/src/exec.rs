//! `POST /v1/sandboxes/{id}:exec`: one command, answered when it has ended or, with `stream`, as it goes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who a command runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CommandUser {
    /// uid 1000, `runtime`.
    Sandbox,
    Root,
}

/// Exactly one of `command` and `argv`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ExecRequest {
    /// A line for `bash -c`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A program, looked up on the sandbox's PATH, and its arguments; no shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Absolute; `/workspace` if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The sandbox's own default user if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<CommandUser>,
    /// Over the sandbox's variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Standard input, then closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// The same as base64; not together with `stdin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// 1 to 86,400,000; 60,000 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Answer newline-delimited JSON events.
    #[serde(skip_serializing_if = "is_false")]
    pub stream: bool,
    /// Report the files the command read and wrote.
    #[serde(skip_serializing_if = "is_false")]
    pub trace_files: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

/// How a command ended, and the head of its output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecAnswer {
    /// A shell's exit code; ended by a signal: its number, negative.
    pub exit_code: Option<i32>,
    /// UTF-8; bytes that are not become U+FFFD.
    pub stdout: String,
    pub stderr: String,
    /// The time was up: everything it started was killed and the output so far is here.
    pub timed_out: bool,
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    pub duration_ms: Option<u64>,
    pub process_id: String,
    /// True if this is the answer to an earlier request with the same idempotency key.
    #[serde(default, skip_serializing_if = "is_false")]
    pub replayed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<OutOfMemory>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<TracedFiles>,
}

/// Memory ran out and the program, or one it started, was ended for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutOfMemory {
    /// Always `out_of_memory`.
    pub code: String,
    pub processes_killed: u32,
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    pub message: String,
    pub hint: String,
}

/// Files that a traced command, and all that it started, opened: absolute paths with links resolved, sorted;
/// directories end in `/`. What is below `/proc`, `/sys` and `/dev` is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TracedFiles {
    /// Opened for reading, or run.
    pub read: Vec<String>,
    /// Opened for writing, or made: a rename's new name, a link, a directory.
    pub written: Vec<String>,
    /// There were more: the lists are not complete.
    pub truncated: bool,
}

/// One line of a streamed exec or a followed output. A blank line between events means only that both ends live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ExecEvent {
    /// First line of an exec.
    #[serde(rename_all = "camelCase")]
    Start {
        process_id: String,
        #[serde(default, skip_serializing_if = "is_false")]
        replayed: bool,
    },
    Stdout(OutputPiece),
    Stderr(OutputPiece),
    /// Output that nobody read in time is gone.
    #[serde(rename_all = "camelCase")]
    Truncated {
        dropped_bytes: u64,
        resume_at: u64,
    },
    /// Last line: the process has ended.
    Exit(ExitEvent),
    /// Last line of a slice: go on with `output?cursor=…&follow=true`.
    #[serde(rename_all = "camelCase")]
    Continue {
        process_id: String,
        cursor: u64,
    },
    /// Last line: the output could not be read on. Go on from the cursor if the status is 429 or 5xx.
    Error {
        error: StreamError,
        cursor: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputPiece {
    /// Text; where the bytes are not UTF-8, U+FFFD stands for them.
    pub data: String,
    /// Place of the first byte in the combined output of the process.
    pub offset: u64,
    /// The bytes themselves, if they are not UTF-8 or the process was started with `outputEncoding: base64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExitEvent {
    pub exit_code: Option<i32>,
    pub state: super::process::ProcessState,
    pub timed_out: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<OutOfMemory>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<TracedFiles>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StreamError {
    pub code: String,
    pub message: String,
    pub status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
}
