//! What the host asks an agent, and what the agent answers: protobuf messages, written as Rust types.
//!
//! The host opens a stream with a [`Request`]; the agent answers [`Event`]s and finishes the stream. Requests that take
//! bytes (`stdin`, file content) are followed by [`Input`] messages and a finish. Field numbers are for ever: add, never
//! reuse. Strings from a guest are untrusted text: shown, never used as a path on the host.

mod code;
mod command;
mod watch;

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

pub use code::{DecodeError, decode_call, decode_event, decode_input, decode_request, encode};
pub use command::*;
pub use watch::{
    Change, ChangeKind, FollowWatch, MAX_WATCHES, Overflow, RETAINED_RECORDS, StartWatch, Watch, WatchEnd, WatchRecord,
    WatchRef,
};

/// The generation of a machine that is to become a template. No sandbox has one this low: whoever is greeted with another
/// after it is a copy, and forgets what ran before.
pub const TEMPLATE_GENERATION: u64 = 1;
/// Bytes of data carried by one [`Chunk`] or [`Input`], so that its message fits one frame.
pub const DATA_STEP: usize = 48 * 1024;
/// The longest [`Request`] an agent accepts: argv of 100 × 16 KB, 128 KiB of command and of environment, with room.
pub const MAX_REQUEST: usize = 4 * 1024 * 1024;
/// The output an agent holds per process for readers that come back.
pub const RETAINED_OUTPUT: usize = 1024 * 1024;
/// The longest [`Call`] a host accepts.
pub const MAX_CALL: usize = 8 * 1024;
/// Connections out of a sandbox that may be open at once.
pub const MAX_FLOWS: usize = 1024;
/// Where the HTTP proxy listens inside.
pub const PROXY_PORT: u16 = 10800;
/// Processes started through the API that may live at once in a sandbox.
pub const MAX_PROCESSES: usize = 1024;
/// Bytes of one chunk of an upload; only a file's last is shorter.
pub const UPLOAD_CHUNK: u64 = 1024 * 1024;
/// The largest file that may be announced: the largest disk there is.
pub const MAX_UPLOAD: u64 = 400 << 30;
/// Ended processes that stay listed.
pub const KEPT_ENDED: usize = 16;

/// Host to agent, first on every attachment: who you are now.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// 16 random bytes; the welcome repeats them.
    #[prost(bytes = "bytes", tag = "1")]
    pub nonce: Bytes,
    #[prost(uint32, tag = "2")]
    pub protocol_min: u32,
    #[prost(uint32, tag = "3")]
    pub protocol_max: u32,
    #[prost(string, tag = "4")]
    pub sandbox_id: String,
    /// Raised by the host at every boot, restore and fork: a change tells the agent to take the identity below.
    #[prost(uint64, tag = "5")]
    pub generation: u64,
    /// Nanoseconds since the Unix epoch, taken just before sending.
    #[prost(uint64, tag = "6")]
    pub host_time: u64,
    /// 32 bytes to stir into the kernel's random pool where the guest has one of its own.
    #[prost(bytes = "bytes", tag = "7")]
    pub entropy: Bytes,
    #[prost(string, tag = "8")]
    pub hostname: String,
    /// Processes the sandbox user may have (RLIMIT_NPROC); 0 = the agent's default.
    #[prost(uint64, tag = "9")]
    pub max_user_processes: u64,
    /// Frames of this attachment carry this number.
    #[prost(uint32, tag = "10")]
    pub epoch: u32,
    /// Whether there is a way out; absent while the host does not know, and then it is as it was.
    #[prost(bool, optional, tag = "11")]
    pub way_out: Option<bool>,
}

/// Agent to host, answer to a hello.
#[derive(Clone, PartialEq, Message)]
pub struct Welcome {
    #[prost(bytes = "bytes", tag = "1")]
    pub nonce: Bytes,
    #[prost(uint32, tag = "2")]
    pub protocol: u32,
    #[prost(string, tag = "3")]
    pub agent_version: String,
    /// Random per start of the agent: tells a reboot from a reconnect.
    #[prost(string, tag = "4")]
    pub boot: String,
    /// The agent's wall clock as it answers, in nanoseconds since 1970; 0 if it does not say.
    #[prost(uint64, tag = "5")]
    pub time: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Request {
    #[prost(
        oneof = "Ask",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, \
                29, 30, 31, 32, 33, 34, 40, 41"
    )]
    pub ask: Option<Ask>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Ask {
    /// Run to the end, collect the head of both outputs, kill all that it started. `Input` follows if `has_stdin`.
    /// Answers `Chunk`s (no offset meaning) then `ExecDone`.
    #[prost(message, tag = "1")]
    Exec(Exec),
    /// Start and answer `Process` at once. With `exec: true` in the command, everything dies with the leader.
    #[prost(message, tag = "2")]
    Spawn(Spawn),
    /// Output from a cursor: `Chunk`, `Lost`, at the end `Process`. `wait_ms` > 0 makes it one poll.
    #[prost(message, tag = "3")]
    Follow(Follow),
    /// `Input` follows, at most 1 MiB in all; answers `Written`.
    #[prost(message, tag = "4")]
    WriteStdin(WriteStdin),
    /// To the whole tree; answers `Done`.
    #[prost(message, tag = "5")]
    Signal(Signal),
    /// Answers one `Process` per process, newest last.
    #[prost(message, tag = "6")]
    ListProcesses(Nothing),
    /// Answers `Process`.
    #[prost(message, tag = "7")]
    GetProcess(ProcessRef),
    /// Answers `File`, then `Chunk`s.
    #[prost(message, tag = "8")]
    ReadFile(PathRef),
    /// `Input` follows; answers `File` once the content is under its final name and synced.
    #[prost(message, tag = "9")]
    WriteFile(WriteFile),
    /// Answers `Files` messages.
    #[prost(message, tag = "10")]
    ListFiles(ListFiles),
    /// Answers `File`, or the error `FILE_NOT_FOUND`. Links are not followed.
    #[prost(message, tag = "11")]
    Stat(PathRef),
    #[prost(message, tag = "12")]
    MakeDir(MakeDir),
    /// Answers `Removed`.
    #[prost(message, tag = "13")]
    Remove(Remove),
    #[prost(message, tag = "14")]
    Rename(Rename),
    #[prost(message, tag = "15")]
    Chmod(Chmod),
    /// Memory is short: end the largest process (never the agent), remember it for `out_of_memory`. Answers `Killed`.
    #[prost(message, tag = "16")]
    KillLargest(Nothing),
    /// Answers `Activity`.
    #[prost(message, tag = "17")]
    GetActivity(Nothing),
    /// End every process: SIGTERM, SIGKILL after the grace, sync the disks. Answers `Done`.
    #[prost(message, tag = "18")]
    Shutdown(Shutdown),
    /// Begins a file that comes in chunks. Answers `Upload`.
    #[prost(message, tag = "19")]
    StartUpload(StartUpload),
    /// `Input` follows, exactly `size` bytes; answers `Upload` once they are taken.
    #[prost(message, tag = "20")]
    PutChunk(PutChunk),
    /// Of a file: compares the digest, syncs, gives it its name, answers `File`. Of an archive: answers `Done` once all
    /// of it is unpacked and synced.
    #[prost(message, tag = "21")]
    CommitUpload(UploadRef),
    /// Answers `Done`; of the file nothing is left.
    #[prost(message, tag = "22")]
    AbortUpload(UploadRef),
    /// Answers `Chunk`s, then `Done`: without it the archive was cut.
    #[prost(message, tag = "23")]
    ReadArchive(ReadArchive),
    /// `Input` follows: a tar, or a gzip of one; answers `Done` once all of it is unpacked and synced.
    #[prost(message, tag = "24")]
    WriteArchive(PathRef),
    /// Begins an archive that comes in chunks, in order. Answers `Upload`.
    #[prost(message, tag = "25")]
    StartArchive(StartArchive),
    /// Answers `Done`.
    #[prost(message, tag = "26")]
    Resize(Resize),
    /// To a port of the sandbox's own loopback. Answers `Done` once connected, then `Chunk`s; `Input` is sent on. A
    /// finish is the half-close, either way.
    #[prost(message, tag = "27")]
    Connect(Connect),
    /// What commands started from now on are told of the way out. Answers `Done`.
    #[prost(message, tag = "28")]
    SetNetwork(SetNetwork),
    /// Bring to the disks what is only in memory yet. Answers `Done` once it is there.
    #[prost(message, tag = "29")]
    Sync(Nothing),
    /// Answers `Watch` once changes are seen.
    #[prost(message, tag = "30")]
    StartWatch(StartWatch),
    /// Answers one `Watch` for each that goes on.
    #[prost(message, tag = "31")]
    ListWatches(Nothing),
    /// What was seen from a cursor: `WatchRecord`s, at the end `Watch`.
    #[prost(message, tag = "32")]
    FollowWatch(FollowWatch),
    /// Answers `Removed` once it has ended.
    #[prost(message, tag = "33")]
    StopWatch(WatchRef),
    /// A login over SSH, to an sshd that serves this one connection. Answers `Done` once it runs, or `FILE_NOT_FOUND`
    /// where there is none; then `Chunk`s: what it sends, and as standard error what it complains of. `Input` is sent on;
    /// a finish is the client's end. The stream is finished once sshd has ended.
    #[prost(message, tag = "34")]
    Ssh(Ssh),
    /// The files of an ended process that was traced. Answers `Traced` messages, then `Done`.
    #[prost(message, tag = "40")]
    GetTraced(ProcessRef),
    /// Whether commands can be traced here. Answers `Done`; `UNSUPPORTED` if they cannot.
    #[prost(message, tag = "41")]
    CanTrace(Nothing),
}

/// Agent to host, on a stream the host opened.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    #[prost(oneof = "Tell", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 40")]
    pub tell: Option<Tell>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Tell {
    /// The request failed; the last event of its stream.
    #[prost(message, tag = "1")]
    Error(GuestError),
    #[prost(message, tag = "2")]
    Done(Nothing),
    #[prost(message, tag = "3")]
    Process(Process),
    #[prost(message, tag = "4")]
    Chunk(Chunk),
    #[prost(message, tag = "5")]
    Lost(Lost),
    #[prost(message, tag = "6")]
    ExecDone(ExecDone),
    #[prost(message, tag = "7")]
    Written(Written),
    #[prost(message, tag = "8")]
    File(FileInfo),
    #[prost(message, tag = "9")]
    Files(FileList),
    #[prost(message, tag = "10")]
    Removed(Removed),
    #[prost(message, tag = "11")]
    Killed(Killed),
    #[prost(message, tag = "12")]
    Activity(Activity),
    #[prost(message, tag = "13")]
    Upload(Upload),
    #[prost(message, tag = "14")]
    Watch(Watch),
    #[prost(message, tag = "15")]
    WatchRecord(WatchRecord),
    #[prost(message, tag = "40")]
    Traced(Traced),
}

/// Bytes that follow a request, at most [`DATA_STEP`] a message.
#[derive(Clone, PartialEq, Message)]
pub struct Input {
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Nothing {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum User {
    /// uid 1000, `runtime`.
    Sandbox = 0,
    Root = 1,
}

#[derive(Clone, PartialEq, Message)]
pub struct PathRef {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(enumeration = "User", tag = "2")]
    pub user: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct WriteFile {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// Bytes that will follow; fewer or more is an error and nothing is changed.
    #[prost(uint64, tag = "3")]
    pub size: u64,
    #[prost(enumeration = "User", tag = "4")]
    pub user: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListFiles {
    #[prost(string, tag = "1")]
    pub path: String,
    /// Levels below `path`; 0 = all.
    #[prost(uint32, tag = "2")]
    pub depth: u32,
    /// Matched against the path relative to `path`; empty = all.
    #[prost(string, tag = "3")]
    pub glob: String,
    #[prost(bool, tag = "4")]
    pub hidden: bool,
    #[prost(uint32, tag = "5")]
    pub limit: u32,
    #[prost(enumeration = "User", tag = "6")]
    pub user: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct MakeDir {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(bool, tag = "2")]
    pub parents: bool,
    #[prost(enumeration = "User", tag = "3")]
    pub user: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Remove {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(bool, tag = "2")]
    pub recursive: bool,
    #[prost(enumeration = "User", tag = "3")]
    pub user: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Rename {
    #[prost(string, tag = "1")]
    pub from: String,
    #[prost(string, tag = "2")]
    pub to: String,
    #[prost(bool, tag = "3")]
    pub overwrite: bool,
    #[prost(enumeration = "User", tag = "4")]
    pub user: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Chmod {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    #[prost(enumeration = "User", tag = "3")]
    pub user: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Shutdown {
    #[prost(uint64, tag = "1")]
    pub grace_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct SetNetwork {
    /// There is one: commands get the variables that name the proxy.
    #[prost(bool, tag = "1")]
    pub way_out: bool,
}

/// Agent to host, first on a stream that the agent opened.
#[derive(Clone, PartialEq, Message)]
pub struct Call {
    #[prost(oneof = "Want", tags = "1")]
    pub want: Option<Want>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Want {
    /// A connection out. The messages that follow, both ways, are its bytes and nothing else.
    #[prost(message, tag = "1")]
    Flow(Flow),
}

/// What the agent knows of a connection. All of it is the guest's word.
#[derive(Clone, PartialEq, Message)]
pub struct Flow {
    #[prost(enumeration = "Relay", tag = "1")]
    pub relay: i32,
    /// The process at its other end; 0 = not found.
    #[prost(int32, tag = "2")]
    pub pid: i32,
    /// That process's own name for itself.
    #[prost(string, tag = "3")]
    pub program: String,
    /// The command of the API in whose tree it runs; empty = none.
    #[prost(string, tag = "4")]
    pub process_id: String,
}

/// Which of the agent's listeners took it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Relay {
    /// The HTTP proxy: the bytes are a client's talk to a proxy.
    Proxy = 0,
}

#[derive(Clone, PartialEq, Message)]
pub struct StartUpload {
    /// Where it will be; its parents are made as for `WriteFile`.
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// 32 bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub sha256: Bytes,
    #[prost(uint32, tag = "4")]
    pub mode: u32,
    #[prost(enumeration = "User", tag = "5")]
    pub user: i32,
    /// Same key, same upload: a resend finds it. Empty = none.
    #[prost(string, tag = "6")]
    pub key: String,
    /// The id it gets; the host makes it.
    #[prost(string, tag = "7")]
    pub upload_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct StartArchive {
    /// The directory it is unpacked into; made if it is missing.
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(enumeration = "User", tag = "2")]
    pub user: i32,
    #[prost(string, tag = "3")]
    pub key: String,
    #[prost(string, tag = "4")]
    pub upload_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PutChunk {
    #[prost(message, optional, tag = "1")]
    pub upload: Option<UploadRef>,
    /// Of a file: a multiple of [`UPLOAD_CHUNK`]. Of an archive: at most what was taken so far.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    #[prost(uint64, tag = "3")]
    pub size: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct UploadRef {
    #[prost(string, tag = "1")]
    pub upload_id: String,
    /// Which of the two kinds is meant: the id of the other is unknown.
    #[prost(bool, tag = "2")]
    pub archive: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ReadArchive {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(bool, tag = "2")]
    pub gzip: bool,
    #[prost(enumeration = "User", tag = "3")]
    pub user: i32,
    /// Relative to `path`; left out with all below.
    #[prost(string, repeated, tag = "4")]
    pub exclude: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Connect {
    #[prost(uint32, tag = "1")]
    pub port: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Ssh {
    /// The one public key that may log in: its type, a blank, its base64.
    #[prost(string, tag = "1")]
    pub key: String,
    /// What sshd proves itself with: a private key in OpenSSH's own format.
    #[prost(string, tag = "2")]
    pub host_key: String,
    /// For sessions, over the guest's own variables.
    #[prost(message, repeated, tag = "3")]
    pub env: Vec<EnvVar>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum ErrorCode {
    Internal = 0,
    /// The request is not valid (a relative path, a NUL, an unknown field value).
    Invalid = 1,
    NoSuchProcess = 2,
    ProcessLimit = 3,
    CwdNotFound = 4,
    FileNotFound = 5,
    PermissionDenied = 6,
    IsADirectory = 7,
    NotADirectory = 8,
    DirectoryNotEmpty = 9,
    AlreadyExists = 10,
    DiskFull = 11,
    /// The kernel refused to start it for want of processes, memory or descriptors; nothing ran.
    Busy = 12,
    /// This agent is older than the request.
    Unsupported = 13,
    /// Command and environment are longer than the kernel takes.
    TooLarge = 14,
    NoSuchUpload = 15,
    /// Not all of it came.
    UploadIncomplete = 16,
    /// What came is not what was announced.
    DigestMismatch = 17,
    /// As many transfers of this kind as may be are under way.
    TransferLimit = 18,
    /// Not a whole tar, or one that holds what is not taken.
    InvalidArchive = 19,
    /// Nothing listens there.
    ConnectionRefused = 20,
    NoSuchWatch = 21,
    /// As many watches as may be are going on.
    WatchLimit = 22,
    /// It has to end first.
    StillRunning = 40,
    /// It was started without being traced.
    NotTraced = 41,
}

#[derive(Clone, PartialEq, Message)]
pub struct GuestError {
    #[prost(enumeration = "ErrorCode", tag = "1")]
    pub code: i32,
    /// Names the step and the object, for people.
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum FileKind {
    File = 0,
    Directory = 1,
    Symlink = 2,
    Other = 3,
}

#[derive(Clone, PartialEq, Message)]
pub struct FileInfo {
    /// Absolute, lossy where it is not UTF-8.
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(enumeration = "FileKind", tag = "2")]
    pub kind: i32,
    #[prost(uint64, tag = "3")]
    pub size: u64,
    #[prost(uint32, tag = "4")]
    pub mode: u32,
    /// Milliseconds since the Unix epoch.
    #[prost(int64, tag = "5")]
    pub mtime_ms: i64,
    #[prost(uint32, tag = "6")]
    pub uid: u32,
    #[prost(uint32, tag = "7")]
    pub gid: u32,
    #[prost(string, tag = "8")]
    pub owner: String,
    #[prost(string, tag = "9")]
    pub group: String,
    #[prost(string, optional, tag = "10")]
    pub symlink_target: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FileList {
    #[prost(message, repeated, tag = "1")]
    pub files: Vec<FileInfo>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Removed {
    /// False: there was nothing.
    #[prost(bool, tag = "1")]
    pub removed: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Killed {
    #[prost(int32, tag = "1")]
    pub pid: i32,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(uint64, tag = "3")]
    pub rss_bytes: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Upload {
    #[prost(string, tag = "1")]
    pub upload_id: String,
    /// Of a file: bytes of it that are here. Of an archive: bytes taken, in order.
    #[prost(uint64, tag = "2")]
    pub received: u64,
    /// True if the answer is to a key that was known before.
    #[prost(bool, tag = "3")]
    pub attached: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Activity {
    #[prost(uint32, tag = "1")]
    pub live_processes: u32,
}
