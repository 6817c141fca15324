//! The way into a running sandbox: who may, how it is asked, and what its refusals are called.
//!
//! A request whose channel breaks half way may have run. It is asked a second time only where that cannot do the work
//! twice: a command carries a key under which the agent finds the first one, reading changes nothing, and a file is
//! written whole. Everything else is answered `host_unavailable`, which clients may send again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use runtime_model::SandboxId;
use runtime_proto::channel::{ChannelError, Sender};
use runtime_proto::guest::{Ask, DATA_STEP, ErrorCode, Exec, GuestError, Input, Process, Request, Spawn, Tell, encode};
use runtime_proto::node::{AskError, GuestStream, Node, NodeError};
use runtime_store::SandboxRow;

use super::command::Surroundings;
use crate::error::{ApiError, Kind};
use crate::sandboxes::Ready;
use crate::{AppState, Caller};

/// Characters of a guest's message that are passed on.
const MESSAGE_SHOWN: usize = 1024;
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// A running sandbox that a caller may use. While one of its clones lives, the sandbox counts as active.
#[derive(Clone)]
pub(crate) struct Guest {
    node: Arc<dyn Node>,
    id: SandboxId,
    row: Arc<SandboxRow>,
    /// The mark of activity, and the way to know whether it is paused. A test's machine is just there.
    stay: Option<Stay>,
}

#[derive(Clone)]
struct Stay {
    app: AppState,
    ready: Arc<Ready>,
}

/// An exec that has ended: its process and the head of both outputs.
pub(crate) struct Ran {
    pub(crate) process: Process,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) stdout_truncated: bool,
    pub(crate) stderr_truncated: bool,
}

impl Guest {
    /// Wakes the sandbox, or waits while it starts; refuses one that is not the caller's, or is stopped.
    pub(crate) async fn reach(app: &AppState, caller: &Caller, id: &str) -> Result<Self, ApiError> {
        may_look_inside(caller)?;
        Ok(Self::of(app, app.ready(caller, id).await?))
    }

    /// One that was found ready.
    pub(crate) fn of(app: &AppState, ready: Ready) -> Self {
        let (node, id, row) = (app.node().clone(), ready.id, ready.row.clone());
        Self { node, id, row, stay: Some(Stay { app: app.clone(), ready: Arc::new(ready) }) }
    }

    #[cfg(test)]
    pub(super) fn new(node: Arc<dyn Node>, id: SandboxId, row: Arc<SandboxRow>) -> Self {
        Self { node, id, row, stay: None }
    }

    pub(super) fn id(&self) -> SandboxId {
        self.id
    }

    pub(crate) fn memory_mib(&self) -> u64 {
        self.row.shape.memory_mib
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.row.shape.disk_mib << 20
    }

    pub(crate) fn around(&self) -> Surroundings {
        Surroundings::of(&self.row)
    }

    /// To read what a watch saw: neither wakes the sandbox nor counts as use of it.
    pub(crate) async fn glance(app: &AppState, caller: &Caller, id: &str) -> Result<Self, ApiError> {
        may_look_inside(caller)?;
        Ok(Self::of(app, app.glance(caller, id).await?))
    }

    async fn ask(&self, ask: Ask) -> Result<GuestStream, Asked> {
        let mut again = true;
        loop {
            match self.node.ask(self.id, Request::new(ask.clone())).await {
                Err(NodeError::NotRunning) if again => match self.stay.as_ref().filter(|_| self.may_wake()) {
                    // Paused since it was reached: as if it had been reached now.
                    Some(Stay { app, ready }) => drop(app.ready_again(ready.live().clone()).await?),
                    // Paused and woken again, or gone.
                    None => again = false,
                },
                other => return other.map_err(Asked::Node),
            }
        }
    }

    fn may_wake(&self) -> bool {
        self.is_away() && self.stay.as_ref().is_some_and(|stay| stay.ready.is_use())
    }

    /// It is paused, or on its way there or back.
    pub(crate) fn is_away(&self) -> bool {
        self.stay.as_ref().is_some_and(|stay| stay.ready.is_away())
    }

    /// Waits until it is away.
    pub(crate) async fn away(&self) {
        match &self.stay {
            Some(stay) => stay.ready.away().await,
            None => std::future::pending().await,
        }
    }

    /// Waits while it is away. Nothing that goes on inside wakes it: whoever paused it meant that.
    pub(crate) async fn back(&self) -> Result<(), ApiError> {
        match &self.stay {
            Some(stay) => stay.ready.back().await,
            None => Ok(()),
        }
    }

    /// After a channel that broke: as often as there are pauses, and once besides.
    async fn may_ask_again(&self, breaks: &mut u32) -> Result<bool, ApiError> {
        if self.is_away() {
            self.back().await?;
            return Ok(true);
        }
        *breaks += 1;
        Ok(*breaks == 1)
    }

    /// Opens a stream of answers.
    pub(crate) async fn open(&self, ask: Ask) -> Result<GuestStream, ApiError> {
        self.ask(ask).await.map_err(ApiError::from)
    }

    /// One question, one answer. Not asked a second time.
    pub(crate) async fn once(&self, ask: Ask) -> Result<Tell, Asked> {
        Ok(self.ask(ask).await?.only().await?)
    }

    /// The same for a question that may be asked twice.
    pub(crate) async fn again(&self, ask: Ask) -> Result<Tell, Asked> {
        let mut breaks = 0;
        loop {
            match self.once(ask.clone()).await {
                Err(error) if error.is_broken() && self.may_ask_again(&mut breaks).await? => {}
                other => return other,
            }
        }
    }

    /// One question followed by bytes.
    pub(crate) async fn with_input(&self, ask: Ask, data: Bytes) -> Result<Tell, Asked> {
        let mut stream = self.ask(ask).await?;
        let mut feeding = std::pin::pin!(feed(stream.sender(), data));
        tokio::select! {
            biased;
            // An agent that answers before it has read everything has decided.
            told = async {
                let told = stream.next().await?;
                told.ok_or(AskError::Short)
            } => return Ok(told?),
            () = &mut feeding => {}
        }
        Ok(stream.only().await?)
    }

    /// The same for work that may be done twice.
    pub(crate) async fn with_input_again(&self, ask: Ask, data: Bytes) -> Result<Tell, Asked> {
        let mut breaks = 0;
        loop {
            match self.with_input(ask.clone(), data.clone()).await {
                Err(error) if error.is_broken() && self.may_ask_again(&mut breaks).await? => {}
                other => return other,
            }
        }
    }

    /// Runs a command to its end.
    pub(crate) async fn exec(&self, exec: Exec, stdin: Option<Bytes>) -> Result<Ran, ApiError> {
        let mut breaks = 0;
        loop {
            match self.exec_once(exec.clone(), stdin.clone()).await {
                // By its key it finds the command that is perhaps running; what came of its output is told from the start.
                Err(error) if error.is_broken() && self.may_ask_again(&mut breaks).await? => {}
                other => return Ok(other?),
            }
        }
    }

    async fn exec_once(&self, exec: Exec, stdin: Option<Bytes>) -> Result<Ran, Asked> {
        let limit = usize::try_from(exec.head_limit).unwrap_or(usize::MAX);
        let mut stream = self.ask(Ask::Exec(exec)).await?;
        let Some(stdin) = stdin else {
            return Ok(collect(&mut stream, limit).await?);
        };
        let mut feeding = std::pin::pin!(feed(stream.sender(), stdin));
        let mut collecting = std::pin::pin!(collect(&mut stream, limit));
        tokio::select! {
            biased;
            ran = &mut collecting => return Ok(ran?),
            () = &mut feeding => {}
        }
        Ok(collecting.await?)
    }

    /// Starts a process and gives it its input, which the agent takes at once and holds: what is acknowledged does not
    /// depend on this server any more.
    pub(crate) async fn spawn(&self, spawn: Spawn, stdin: Option<Bytes>) -> Result<Process, ApiError> {
        let mut told = None;
        let mut breaks = 0;
        loop {
            match self.spawn_once(&spawn, stdin.clone(), &mut told).await {
                Err(error) if error.is_broken() && self.may_ask_again(&mut breaks).await? => {}
                other => break other?,
            }
        }
        told.ok_or_else(|| from_ask(AskError::Short))
    }

    /// The agent tells the process before it wants any input, and once more after it.
    async fn spawn_once(&self, spawn: &Spawn, stdin: Option<Bytes>, told: &mut Option<Process>) -> Result<(), Asked> {
        let mut stream = self.ask(Ask::Spawn(spawn.clone())).await?;
        match stream.only().await? {
            Tell::Process(process) => *told = Some(process),
            _ => return Err(AskError::Unexpected.into()),
        }
        let Some(stdin) = stdin else { return Ok(()) };
        let mut feeding = std::pin::pin!(feed(stream.sender(), stdin));
        let mut fed = false;
        loop {
            tokio::select! {
                biased;
                end = stream.next() => return Ok(end?.map(|_| ()).ok_or(AskError::Short)?),
                () = &mut feeding, if !fed => fed = true,
            }
        }
    }
}

fn may_look_inside(caller: &Caller) -> Result<(), ApiError> {
    if caller.read_only {
        return Err(ApiError::new(Kind::Forbidden, "This key reads records, not what is inside a sandbox.")
            .hint("Use a key that was made without --read-only."));
    }
    Ok(())
}

/// Whether the agent knew the process by its key from a request before this one. This one's own second asking finds the
/// process under the id that it chose itself.
pub(crate) fn is_replay(asked_id: &str, process: &Process) -> bool {
    process.attached && process.id != asked_id
}

/// Sends bytes, then says that no more come. An agent that does not want them ends it early; its answer says why.
async fn feed(sender: Sender, mut data: Bytes) {
    while !data.is_empty() {
        let piece = data.split_to(data.len().min(DATA_STEP));
        if sender.send(encode(&Input { data: piece })).await.is_err() {
            return;
        }
    }
    // The same: nobody is left to be told.
    let _ = sender.finish().await;
}

/// What an exec answers. The limit was asked for; a guest that sends more is cut, not believed.
async fn collect(stream: &mut GuestStream, limit: usize) -> Result<Ran, AskError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match stream.only().await? {
            Tell::Chunk(chunk) => {
                let is_stderr = chunk.stream == runtime_proto::guest::Output::Stderr as i32;
                append(if is_stderr { &mut stderr } else { &mut stdout }, &chunk.data, limit);
            }
            Tell::ExecDone(done) => {
                append(&mut stdout, &done.stdout, limit);
                append(&mut stderr, &done.stderr, limit);
                return Ok(Ran {
                    process: done.process.ok_or(AskError::Unexpected)?,
                    stdout,
                    stderr,
                    stdout_truncated: done.stdout_truncated,
                    stderr_truncated: done.stderr_truncated,
                });
            }
            _ => return Err(AskError::Unexpected),
        }
    }
}

fn append(to: &mut Vec<u8>, bytes: &[u8], limit: usize) {
    let room = limit.saturating_sub(to.len());
    to.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

/// Why there is no answer: the machine could not be asked, or the agent did not answer well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Asked {
    #[error(transparent)]
    Node(NodeError),
    #[error(transparent)]
    Agent(#[from] AskError),
    /// It was paused meanwhile, and did not come back.
    #[error(transparent)]
    Away(#[from] ApiError),
}

impl Asked {
    /// Whether it ran is not known.
    pub(super) fn is_broken(&self) -> bool {
        match self {
            Self::Node(NodeError::Channel(error)) | Self::Agent(AskError::Channel(error)) => {
                matches!(error, ChannelError::Closed | ChannelError::Reset)
            }
            Self::Agent(AskError::Short) => true,
            Self::Node(_) | Self::Agent(_) | Self::Away(_) => false,
        }
    }

    pub(crate) fn guest_code(&self) -> Option<ErrorCode> {
        match self {
            Self::Agent(AskError::Guest(error)) => ErrorCode::try_from(error.code).ok(),
            Self::Agent(_) | Self::Node(_) | Self::Away(_) => None,
        }
    }

    /// As the API says it, where what the agent finds invalid is this field.
    pub(crate) fn with(self, field: &'static str) -> ApiError {
        match self {
            Self::Agent(error) => asked_with(field)(error),
            other => other.into(),
        }
    }

    /// As the API says it, naming the file it was about.
    pub(crate) fn about(self, path: &str) -> ApiError {
        match self {
            Self::Agent(AskError::Guest(mut error)) => {
                if !error.message.contains(path) {
                    error.message = format!("{path}: {}", error.message);
                }
                from_guest(error, "path")
            }
            other => other.into(),
        }
    }
}

impl From<Asked> for ApiError {
    fn from(error: Asked) -> Self {
        match error {
            Asked::Node(NodeError::Channel(ChannelError::TooMany)) => busy(&ChannelError::TooMany),
            Asked::Node(error) => error.into(),
            Asked::Agent(error) => from_ask(error),
            Asked::Away(error) => error,
        }
    }
}

/// For the answer to a question whose only doubtful part is this field.
pub(crate) fn asked_with(field: &'static str) -> impl Fn(AskError) -> ApiError {
    move |error| match error {
        AskError::Guest(error) => from_guest(error, field),
        other => from_ask(other),
    }
}

pub(crate) fn from_ask(error: AskError) -> ApiError {
    match error {
        AskError::Guest(error) => from_guest(error, "request"),
        AskError::Channel(ChannelError::TooMany) => busy(&ChannelError::TooMany),
        AskError::Channel(error) => ApiError::fault(Kind::HostUnavailable, "asking the sandbox's agent", &error),
        error @ (AskError::Decode(_) | AskError::Short | AskError::Unexpected) => {
            ApiError::fault(Kind::GuestFailed, "reading the answer of the sandbox's agent", &error)
        }
    }
}

fn busy(error: &ChannelError) -> ApiError {
    ApiError::fault(Kind::GuestBusy, "opening a stream to the sandbox's agent", error).retry_after(ASK_AGAIN)
}

/// A refusal of the agent under the code of the contract. Its text is the guest's: shown, and short.
fn from_guest(error: GuestError, field: &str) -> ApiError {
    let kind = match ErrorCode::try_from(error.code) {
        Ok(ErrorCode::Invalid) => return ApiError::wrong(field, shown(&error.message)),
        // The whole of arguments and variables; a single one that is too long was refused before.
        Ok(ErrorCode::TooLarge) => Kind::EnvTooLarge,
        Ok(ErrorCode::NoSuchProcess | ErrorCode::NoSuchUpload | ErrorCode::NoSuchWatch) => Kind::NotFound,
        Ok(ErrorCode::ProcessLimit) => Kind::ProcessLimit,
        Ok(ErrorCode::CwdNotFound) => Kind::CwdNotFound,
        Ok(ErrorCode::FileNotFound) => Kind::FileNotFound,
        Ok(ErrorCode::PermissionDenied) => Kind::PermissionDenied,
        Ok(ErrorCode::IsADirectory) => Kind::IsADirectory,
        Ok(ErrorCode::NotADirectory) => Kind::NotADirectory,
        Ok(ErrorCode::DirectoryNotEmpty) => Kind::DirectoryNotEmpty,
        Ok(ErrorCode::AlreadyExists) => Kind::AlreadyExists,
        Ok(ErrorCode::DiskFull) => Kind::DiskFull,
        Ok(ErrorCode::UploadIncomplete) => Kind::UploadIncomplete,
        Ok(ErrorCode::DigestMismatch) => Kind::DigestMismatch,
        Ok(ErrorCode::TransferLimit) => Kind::TransferLimit,
        Ok(ErrorCode::InvalidArchive) => Kind::InvalidArchive,
        Ok(ErrorCode::WatchLimit) => Kind::WatchLimit,
        Ok(ErrorCode::Unsupported) => Kind::Unavailable,
        Ok(ErrorCode::Busy) => {
            let error = AskError::Guest(error);
            return ApiError::fault(Kind::GuestBusy, "the sandbox's agent is out of room", &error)
                .retry_after(ASK_AGAIN);
        }
        Ok(ErrorCode::Internal | ErrorCode::ConnectionRefused) | Err(_) => {
            let error = AskError::Guest(error);
            return ApiError::fault(Kind::GuestFailed, "the sandbox's agent failed", &error);
        }
    };
    let text = shown(&error.message);
    let refusal = ApiError::new(kind, text);
    match kind {
        Kind::TransferLimit => refusal.hint("End or abort transfers that are under way, or ask again later."),
        Kind::WatchLimit => refusal.hint("Stop watches that are not needed; 4 may go on in a sandbox at once."),
        Kind::ProcessLimit => refusal.hint("End processes that are not needed; 1,024 may live in a sandbox at once."),
        Kind::DiskFull => refusal.hint("Remove files, or use a sandbox with a larger diskMiB."),
        Kind::EnvTooLarge => refusal.hint("The kernel bounds arguments and variables; write large values to a file."),
        Kind::Unavailable => refusal.hint("This sandbox runs an older agent; a new sandbox has it."),
        _ => refusal,
    }
}

fn shown(message: &str) -> String {
    message.chars().take(MESSAGE_SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_agent_have_the_contracts_codes() {
        use ErrorCode as E;
        for (code, status, word) in [
            (E::Internal, 502, "guest_failed"),
            (E::Invalid, 400, "invalid_request"),
            (E::NoSuchProcess, 404, "not_found"),
            (E::ProcessLimit, 409, "process_limit"),
            (E::CwdNotFound, 400, "cwd_not_found"),
            (E::FileNotFound, 404, "file_not_found"),
            (E::PermissionDenied, 403, "permission_denied"),
            (E::IsADirectory, 409, "is_a_directory"),
            (E::NotADirectory, 409, "not_a_directory"),
            (E::DirectoryNotEmpty, 409, "directory_not_empty"),
            (E::AlreadyExists, 409, "already_exists"),
            (E::DiskFull, 409, "disk_full"),
            (E::Busy, 503, "guest_busy"),
            (E::Unsupported, 501, "unavailable"),
            (E::TooLarge, 400, "env_too_large"),
            (E::NoSuchUpload, 404, "not_found"),
            (E::UploadIncomplete, 409, "upload_incomplete"),
            (E::DigestMismatch, 409, "digest_mismatch"),
            (E::TransferLimit, 409, "transfer_limit"),
            (E::InvalidArchive, 400, "invalid_archive"),
            (E::NoSuchWatch, 404, "not_found"),
            (E::WatchLimit, 409, "watch_limit"),
        ] {
            let error = from_guest(GuestError::new(code, "why"), "path");
            assert_eq!((error.status(), error.kind().code()), (status, word), "{code:?}");
        }
        let unknown = from_guest(GuestError { code: 999, message: "secret path".to_owned() }, "path");
        assert_eq!(unknown.kind(), Kind::GuestFailed);
        assert!(!unknown.envelope("r").to_string().contains("secret path"));
    }

    #[test]
    fn a_file_is_always_named_and_a_guests_text_is_bounded() {
        let asked = |message: &str| Asked::Agent(AskError::Guest(GuestError::new(ErrorCode::FileNotFound, message)));
        for message in ["no such file", "opening /a/b: no such file"] {
            assert!(asked(message).about("/a/b").to_string().contains("/a/b"));
        }
        let long = asked(&"\u{1b}x".repeat(100_000)).about("/a/b").to_string();
        assert!(long.len() < 2_000 && !long.contains('\u{1b}'));
    }

    #[test]
    fn a_process_is_a_replay_if_another_request_named_it() {
        let told = |attached| Process { id: "first".to_owned(), attached, ..Process::default() };
        assert!(is_replay("second", &told(true)));
        assert!(!is_replay("first", &told(true)), "this request's own second asking");
        assert!(!is_replay("first", &told(false)));
    }

    #[test]
    fn only_a_broken_channel_is_asked_again() {
        for (error, broken) in [
            (Asked::Node(NodeError::Channel(ChannelError::Closed)), true),
            (Asked::Agent(AskError::Channel(ChannelError::Reset)), true),
            (Asked::Agent(AskError::Short), true),
            (Asked::Node(NodeError::Channel(ChannelError::TooMany)), false),
            (Asked::Node(NodeError::NotRunning), false),
            (Asked::Node(NodeError::Busy(String::new())), false),
            (Asked::Agent(AskError::Unexpected), false),
        ] {
            assert_eq!(error.is_broken(), broken, "{error:?}");
        }
    }
}
