//! `sudo` for a kernel without setuid bits: a small client hands its command and its descriptors to the agent, which
//! runs it as the wanted user.
//!
//! The command runs under a runner of its own and lives as long as the client's connection: when the client is killed
//! with the tree it belongs to, so is the command and all it started.

mod args;
pub(crate) mod client;
mod environment;
pub(crate) mod server;

use prost::Message;

pub(crate) const SOCKET: &str = "/run/runtime/sudo.sock";
/// The longest request: what the kernel itself would take, with room.
pub(crate) const MAX_REQUEST: usize = 4 * 1024 * 1024;

/// The client's length-prefixed request; descriptors 0, 1, 2 go along.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Ask {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) argv: Vec<Vec<u8>>,
    /// `NAME=value`, the caller's own.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) envp: Vec<Vec<u8>>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) cwd: Vec<u8>,
    /// `NAME=value` before the command.
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub(crate) set: Vec<Vec<u8>>,
    /// Empty = root.
    #[prost(string, tag = "5")]
    pub(crate) user: String,
    #[prost(string, tag = "6")]
    pub(crate) group: String,
    #[prost(bool, tag = "7")]
    pub(crate) keep_all: bool,
    #[prost(string, repeated, tag = "8")]
    pub(crate) keep: Vec<String>,
    #[prost(bool, tag = "9")]
    pub(crate) set_home: bool,
    /// A login shell in the user's home.
    #[prost(bool, tag = "10")]
    pub(crate) login: bool,
    /// The user's shell with the command as its line.
    #[prost(bool, tag = "11")]
    pub(crate) shell: bool,
}

/// Server to client: one per message, length-prefixed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Said {
    /// Refused, with the reason; the last message.
    #[prost(string, tag = "1")]
    pub(crate) refused: String,
    /// Code, or signal made negative; the last message.
    #[prost(int32, optional, tag = "2")]
    pub(crate) end: Option<i32>,
}
