//! Processes that outlive the request that started them, and their input and output.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::exec::{CommandUser, OutOfMemory, is_false};

/// What to start; exactly one of `command` and `argv`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ProcessRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<CommandUser>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// 1 to 86,400,000; no limit of its own if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    pub trace_files: bool,
    /// Keep standard input open for `:write`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_mode: Option<StdinMode>,
    /// Give it a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<PtySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_encoding: Option<OutputEncoding>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StdinMode {
    Pipe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PtySize {
    pub cols: u16,
    pub rows: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputEncoding {
    #[default]
    Utf8,
    /// Every piece of output carries its bytes.
    Base64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    Running,
    Exited,
    /// By SIGKILL.
    Killed,
    TimedOut,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    pub id: String,
    /// Always `process`.
    pub kind: String,
    pub state: ProcessState,
    /// Null while it runs; negative: ended by that signal.
    pub exit_code: Option<i32>,
    /// The command line for people, cut at 256 characters.
    pub command: String,
    pub cwd: String,
    pub user: CommandUser,
    /// Inside the sandbox.
    pub pid: i32,
    pub pty: bool,
    pub stdin_open: bool,
    /// Input bytes accepted so far.
    pub stdin_offset: u64,
    pub output_encoding: OutputEncoding,
    #[schema(format = DateTime)]
    pub started_at: String,
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
    pub timeout_ms: Option<u64>,
    /// Bytes of output so far, both streams: the cursor of the end.
    pub output_bytes: u64,
    /// The oldest byte that can still be read.
    pub first_offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<OutOfMemory>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub replayed: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProcessList {
    pub data: Vec<ProcessInfo>,
}

/// One poll of a process's output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputPoll {
    /// In order; an offset beyond the cursor asked for means that output between was lost.
    pub chunks: Vec<OutputChunk>,
    pub next_cursor: u64,
    pub process: ProcessInfo,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputChunk {
    pub stream: OutputStream,
    pub text: String,
    pub offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// Input for a process; one of `base64` and `data`, at most 1 MiB of bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct InputRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Input bytes accepted before this write; what the process has already is skipped.
    pub offset: u64,
    /// Close the input once all of this was accepted.
    pub eof: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputAnswer {
    /// Input bytes accepted so far.
    pub offset: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    pub signal: SignalName,
}

/// Signals that may be sent; each goes to the whole tree of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum SignalName {
    SigTerm,
    SigKill,
    SigInt,
    SigHup,
    SigQuit,
    SigUsr1,
    SigUsr2,
}

impl SignalName {
    pub const ALL: [Self; 7] =
        [Self::SigTerm, Self::SigKill, Self::SigInt, Self::SigHup, Self::SigQuit, Self::SigUsr1, Self::SigUsr2];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SigTerm => "SIGTERM",
            Self::SigKill => "SIGKILL",
            Self::SigInt => "SIGINT",
            Self::SigHup => "SIGHUP",
            Self::SigQuit => "SIGQUIT",
            Self::SigUsr1 => "SIGUSR1",
            Self::SigUsr2 => "SIGUSR2",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == text)
    }

    /// The number on Linux x86-64.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Self::SigHup => 1,
            Self::SigInt => 2,
            Self::SigQuit => 3,
            Self::SigKill => 9,
            Self::SigUsr1 => 10,
            Self::SigUsr2 => 12,
            Self::SigTerm => 15,
        }
    }
}
