//! The messages about commands and processes: what is started, how it is read, fed and ended, and what became of it.

use bytes::Bytes;
use prost::{Enumeration, Message};

use super::User;

#[derive(Clone, PartialEq, Message)]
pub struct EnvVar {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Pty {
    #[prost(uint32, tag = "1")]
    pub cols: u32,
    #[prost(uint32, tag = "2")]
    pub rows: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Command {
    /// Run as `bash -c <shell>`; else `argv` says the program and its arguments.
    #[prost(string, optional, tag = "1")]
    pub shell: Option<String>,
    #[prost(string, repeated, tag = "2")]
    pub argv: Vec<String>,
    /// Absolute; empty = the home directory.
    #[prost(string, tag = "3")]
    pub cwd: String,
    #[prost(enumeration = "User", tag = "4")]
    pub user: i32,
    /// Over the guest's own variables, in order, later wins.
    #[prost(message, repeated, tag = "5")]
    pub env: Vec<EnvVar>,
    /// Milliseconds until SIGKILL to the whole tree; 0 = none. Counted by the agent, so it holds while no host is there.
    #[prost(uint64, tag = "6")]
    pub timeout_ms: u64,
    /// Same key, same process: a resend attaches. Empty = none.
    #[prost(string, tag = "7")]
    pub key: String,
    /// The id the process gets; the host makes it (UUID). Empty = the agent makes one.
    #[prost(string, tag = "8")]
    pub process_id: String,
    /// Note the files that it, and all that it starts, opens. An agent that cannot is to be asked first: `CanTrace`.
    #[prost(bool, tag = "40")]
    pub trace_files: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Exec {
    #[prost(message, optional, tag = "1")]
    pub command: Option<Command>,
    /// Bytes kept from the start of each output.
    #[prost(uint64, tag = "2")]
    pub head_limit: u64,
    #[prost(bool, tag = "3")]
    pub has_stdin: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Spawn {
    #[prost(message, optional, tag = "1")]
    pub command: Option<Command>,
    /// Keep standard input open for `WriteStdin`.
    #[prost(bool, tag = "2")]
    pub stdin_pipe: bool,
    /// `Input` follows and is given as standard input, then closed.
    #[prost(bool, tag = "3")]
    pub has_stdin: bool,
    #[prost(message, optional, tag = "4")]
    pub pty: Option<Pty>,
    /// A streamed exec: everything it started dies with it.
    #[prost(bool, tag = "5")]
    pub exec: bool,
    /// Echoed in `Process`: the API's output encoding is base64.
    #[prost(bool, tag = "6")]
    pub binary: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Follow {
    #[prost(string, tag = "1")]
    pub process_id: String,
    #[prost(uint64, tag = "2")]
    pub cursor: u64,
    /// 0 = follow to the end. Else answer what there is, waiting at most this long for the first byte or the end,
    /// then `Process`.
    #[prost(uint64, tag = "3")]
    pub wait_ms: u64,
    /// A poll (even with `wait_ms` 0).
    #[prost(bool, tag = "4")]
    pub once: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct WriteStdin {
    #[prost(string, tag = "1")]
    pub process_id: String,
    /// Input bytes accepted before this write, as the caller believes.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    #[prost(bool, tag = "3")]
    pub eof: bool,
    /// After whatever was accepted, wherever that ends; waits for room until all is accepted. For terminals, where
    /// several may type.
    #[prost(bool, tag = "4")]
    pub append: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Signal {
    #[prost(string, tag = "1")]
    pub process_id: String,
    /// The number, as on Linux x86-64.
    #[prost(int32, tag = "2")]
    pub signal: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ProcessRef {
    #[prost(string, tag = "1")]
    pub process_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Resize {
    #[prost(string, tag = "1")]
    pub process_id: String,
    #[prost(message, optional, tag = "2")]
    pub size: Option<Pty>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum ProcessState {
    Running = 0,
    Exited = 1,
    Killed = 2,
    TimedOut = 3,
    Unknown = 4,
}

#[derive(Clone, PartialEq, Message)]
pub struct Process {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(enumeration = "ProcessState", tag = "2")]
    pub state: i32,
    /// Absent while running; negative = ended by that signal.
    #[prost(int32, optional, tag = "3")]
    pub exit_code: Option<i32>,
    /// argv joined by spaces, `bash -c ...` for a shell line, cut at 256 characters.
    #[prost(string, tag = "4")]
    pub command: String,
    #[prost(string, tag = "5")]
    pub cwd: String,
    #[prost(enumeration = "User", tag = "6")]
    pub user: i32,
    #[prost(int32, tag = "7")]
    pub pid: i32,
    #[prost(bool, tag = "8")]
    pub pty: bool,
    #[prost(bool, tag = "9")]
    pub stdin_open: bool,
    #[prost(uint64, tag = "10")]
    pub stdin_offset: u64,
    #[prost(bool, tag = "11")]
    pub binary: bool,
    /// Nanoseconds since the Unix epoch.
    #[prost(uint64, tag = "12")]
    pub started_at: u64,
    #[prost(uint64, optional, tag = "13")]
    pub ended_at: Option<u64>,
    /// 0 = none.
    #[prost(uint64, tag = "14")]
    pub timeout_ms: u64,
    #[prost(uint64, tag = "15")]
    pub output_bytes: u64,
    #[prost(uint64, tag = "16")]
    pub first_offset: u64,
    /// Processes of its tree ended for want of memory.
    #[prost(uint32, tag = "17")]
    pub oom_kills: u32,
    #[prost(bool, tag = "18")]
    pub exec: bool,
    /// True if the answer is to a key that was known before.
    #[prost(bool, tag = "19")]
    pub attached: bool,
    #[prost(uint64, tag = "20")]
    pub duration_ms: u64,
    /// Processes that an ended leader left behind and that still live.
    #[prost(uint32, tag = "21")]
    pub leftovers: u32,
    /// The files it opens are noted.
    #[prost(bool, tag = "40")]
    pub traced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Output {
    Stdout = 0,
    Stderr = 1,
}

#[derive(Clone, PartialEq, Message)]
pub struct Chunk {
    #[prost(enumeration = "Output", tag = "1")]
    pub stream: i32,
    /// Place of the first byte in the combined output.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub data: Bytes,
}

/// Output between the cursor and `resume_at` is gone.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Lost {
    #[prost(uint64, tag = "1")]
    pub dropped: u64,
    #[prost(uint64, tag = "2")]
    pub resume_at: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecDone {
    #[prost(message, optional, tag = "1")]
    pub process: Option<Process>,
    /// Here when both fit one frame; else in the chunks before.
    #[prost(bytes = "bytes", tag = "2")]
    pub stdout: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub stderr: Bytes,
    #[prost(bool, tag = "4")]
    pub stdout_truncated: bool,
    #[prost(bool, tag = "5")]
    pub stderr_truncated: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Written {
    /// Input bytes accepted so far.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
}

/// Files that a traced process opened or made, by their paths; directories end in `/`. More than one message may tell
/// of one process.
#[derive(Clone, PartialEq, Message)]
pub struct Traced {
    #[prost(string, repeated, tag = "1")]
    pub read: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub written: Vec<String>,
    /// Not all of them are told.
    #[prost(bool, tag = "3")]
    pub truncated: bool,
}
