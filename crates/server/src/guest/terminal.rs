//! A terminal in the sandbox over a WebSocket: `ready`, output as bytes, `exit`, close.
//!
//! The process is one like others: listed, and kept by the agent while this server is away. Several sockets may show the
//! same one and type into it. A shell that a socket opened is hung up when that socket closes, unless another shows it;
//! a stop of the server is no reason to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use runtime_api::exec::CommandUser;
use runtime_api::process::ProcessState;
use runtime_proto::guest::{Ask, Follow, Process, ProcessRef, Pty, Resize, Signal, Spawn, Tell, WriteStdin};
use runtime_proto::node::{AskError, GuestStream};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::command::{COMMAND_BYTES, USERS, Wanted, program_text};
use super::convert;
use super::exec::new_process_id;
use super::gateway::{Guest, from_ask};
use super::sockets::{self, FAULT, GOING_AWAY, NORMAL, TerminalPlace, accept, close, refuse};
use crate::call::RequestId;
use crate::error::{ApiError, Kind};
use crate::fields::{absolute_path, int, line, one_of};
use crate::{AppState, Call};

/// Open at one sandbox.
const MOST: usize = 12;
const DEFAULT_COMMAND: &str = "bash -l";
const SIGHUP: i32 = 1;
/// How long a broken channel is asked again.
const PATIENCE: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// Typed bytes that nobody reads are held up so long before the terminal is given up.
const UNREAD: Duration = Duration::from_secs(300);

/// Open a terminal, or show one that is open. A WebSocket: text `{"type":"ready","processId"}` first, then output as
/// binary frames, `{"type":"exit","exitCode"}` at the end. Typed bytes go as binary frames, a new size as
/// `{"type":"resize","cols","rows"}`.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/terminal",
    tag = "terminals",
    params(
        ("id" = String, Path, description = "A sandbox"),
        ("cols" = Option<u32>, Query, description = "80 if left out"),
        ("rows" = Option<u32>, Query, description = "24 if left out"),
        ("command" = Option<String>, Query, description = "A shell line; `bash -l` if left out"),
        ("cwd" = Option<String>, Query, description = "Absolute"),
        ("user" = Option<String>, Query, description = "sandbox or root"),
        ("processId" = Option<String>, Query, description = "A process with a terminal, to show it; 80 by 24 leaves the size it has"),
    ),
    responses((status = 101, description = "The connection is a WebSocket"))
)]
pub(super) async fn open(
    State(app): State<AppState>,
    Path(id): Path<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    call: Call,
) -> Response {
    accept(app.clone(), upgrade, move |socket| async move {
        let request_id = call.request_id.clone();
        match Session::begin(&app, &id, &call).await {
            Ok(session) => session.run(socket, &request_id).await,
            Err(error) => refuse(socket, &error, &request_id).await,
        }
    })
}

struct Session {
    app: AppState,
    guest: Guest,
    process: Process,
    /// This socket started it.
    opened: bool,
    place: TerminalPlace,
    /// Bytes its input has taken, as far as was heard.
    taken: AtomicU64,
}

struct Asked {
    size: Option<Pty>,
    command: Option<String>,
    cwd: Option<String>,
    user: Option<CommandUser>,
    process_id: Option<String>,
}

fn read(call: &Call) -> Result<Asked, ApiError> {
    let mut query = call.query()?;
    let cols = query.opt("cols", int(1..=10_000_u32));
    let rows = query.opt("rows", int(1..=10_000_u32));
    let asked = Asked {
        size: (cols.is_some() || rows.is_some())
            .then(|| Pty { cols: cols.unwrap_or(DEFAULT_SIZE.cols), rows: rows.unwrap_or(DEFAULT_SIZE.rows) }),
        command: query.opt("command", program_text(COMMAND_BYTES)),
        cwd: query.opt("cwd", absolute_path()),
        user: query.opt("user", one_of(USERS)),
        process_id: query.opt("processId", line(1..=128)),
    };
    if asked.process_id.is_some() && (asked.command.is_some() || asked.cwd.is_some() || asked.user.is_some()) {
        query.wrong("processId", "must not be given together with command, cwd or user");
    }
    query.finish()?;
    Ok(asked)
}

const DEFAULT_SIZE: Pty = Pty { cols: 80, rows: 24 };

impl Session {
    async fn begin(app: &AppState, id: &str, call: &Call) -> Result<Self, ApiError> {
        let asked = read(call)?;
        let guest = Guest::reach(app, &call.caller, id).await?;
        let place = app.attachments().terminal(guest.id(), MOST)?;
        let opened = asked.process_id.is_none();
        let process = match &asked.process_id {
            Some(known) => show(&guest, known, asked.size).await?,
            None => start(&guest, asked).await?,
        };
        place.shows(&process.id);
        let taken = AtomicU64::new(process.stdin_offset);
        Ok(Self { app: app.clone(), guest, process, opened, place, taken })
    }

    async fn run(self, mut socket: WebSocket, request_id: &RequestId) {
        let ready = json!({"type": "ready", "processId": self.process.id});
        if socket.send(Message::Text(ready.to_string().into())).await.is_err() {
            return self.hang_up().await;
        }
        let (mut sink, mut stream) = socket.split();
        let stopping = self.app.sandboxes().stopping().clone();
        let ended = {
            let output = self.show(&mut sink);
            let input = self.type_in(&mut stream);
            tokio::select! {
                // What has come of the output, and its end, is told before anything else counts.
                biased;
                ended = output => ended,
                ended = input => ended,
                () = stopping.cancelled() => Ended::Stopping,
                () = sockets::over(&self.app, self.guest.id()) => Ended::Failed(
                    ApiError::new(Kind::SandboxStopped, "The sandbox no longer runs."),
                ),
            }
        };
        let Ok(mut socket) = stream.reunite(sink) else { return };
        match ended {
            Ended::Exit(code) => {
                let exit = json!({"type": "exit", "exitCode": code});
                if socket.send(Message::Text(exit.to_string().into())).await.is_ok() {
                    close(socket, NORMAL).await;
                }
            }
            Ended::Left => {
                self.hang_up().await;
                close(socket, NORMAL).await;
            }
            Ended::Stopping => close(socket, GOING_AWAY).await,
            Ended::Failed(error) => {
                if socket.send(sockets::refusal(&error, request_id)).await.is_ok() {
                    close(socket, FAULT).await;
                }
            }
        }
    }

    /// The output, from the first byte that is still there, to the end.
    async fn show(&self, sink: &mut SplitSink<WebSocket, Message>) -> Ended {
        let mut output = Output::new(&self.guest, &self.process);
        loop {
            match output.next().await {
                Ok(Told::Bytes(bytes)) => {
                    if sink.send(Message::Binary(bytes)).await.is_err() {
                        return Ended::Left;
                    }
                }
                Ok(Told::Exit(process)) => return Ended::Exit(process.exit_code),
                Err(error) => return Ended::Failed(error),
            }
        }
    }

    async fn type_in(&self, stream: &mut SplitStream<WebSocket>) -> Ended {
        loop {
            let typed = match stream.next().await {
                Some(Ok(Message::Binary(typed))) => typed,
                Some(Ok(Message::Text(text))) => {
                    if let Some(size) = new_size(&text) {
                        let resize = Resize { process_id: self.process.id.clone(), size: Some(size) };
                        // One that just ended has no size; its end is on the way.
                        let _ = self.guest.again(Ask::Resize(resize)).await;
                    }
                    continue;
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ended::Left,
            };
            if typed.is_empty() {
                continue;
            }
            match tokio::time::timeout(UNREAD, self.write(typed)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Ended::Failed(error),
                Err(_) => return Ended::Left,
            }
        }
    }

    /// Types after whatever else was typed. Where a channel breaks, how much was taken is asked for before it is sent
    /// again.
    async fn write(&self, typed: Bytes) -> Result<(), ApiError> {
        let process_id = self.process.id.clone();
        let ask =
            || Ask::WriteStdin(WriteStdin { process_id: process_id.clone(), append: true, ..WriteStdin::default() });
        let before = Instant::now();
        loop {
            match self.guest.with_input(ask(), typed.clone()).await {
                Ok(Tell::Written(written)) => {
                    self.taken.fetch_max(written.offset, Ordering::Relaxed);
                    return Ok(());
                }
                Ok(_) => return Err(from_ask(AskError::Unexpected)),
                // It ended, or takes no more: what is typed after that is lost, as at any terminal.
                Err(error) if error.guest_code().is_some() => return Ok(()),
                Err(error) if error.is_broken() && before.elapsed() < PATIENCE => {
                    tokio::time::sleep(ASK_AGAIN).await;
                    let known = self.guest.again(Ask::GetProcess(ProcessRef { process_id: process_id.clone() })).await;
                    if let Ok(Tell::Process(process)) = known
                        && process.stdin_offset > self.taken.fetch_max(process.stdin_offset, Ordering::Relaxed)
                    {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A shell whose terminal is gone is told so.
    async fn hang_up(&self) {
        if self.opened && self.place.alone_at(&self.process.id) {
            let signal = Signal { process_id: self.process.id.clone(), signal: SIGHUP };
            if let Err(error) = self.guest.again(Ask::Signal(signal)).await {
                let error = ApiError::from(error);
                tracing::debug!(process = self.process.id, %error, "a terminal's shell could not be hung up");
            }
        }
    }
}

enum Ended {
    Exit(Option<i32>),
    /// The client closed, or is gone.
    Left,
    Stopping,
    Failed(ApiError),
}

/// `None`: not a size, which is not worth ending a terminal for.
fn new_size(text: &str) -> Option<Pty> {
    #[derive(Deserialize)]
    struct Said {
        r#type: String,
        cols: u32,
        rows: u32,
    }
    let said: Said = serde_json::from_str(text).ok()?;
    (said.r#type == "resize").then_some(Pty { cols: said.cols, rows: said.rows })
}

async fn start(guest: &Guest, asked: Asked) -> Result<Process, ApiError> {
    let wanted = Wanted::line(asked.command.unwrap_or_else(|| DEFAULT_COMMAND.to_owned()), asked.cwd, asked.user);
    let process_id = new_process_id();
    // Found again under its own id, should the channel break before the answer.
    let command = wanted.into_command(&guest.around(), 0, process_id.clone(), process_id);
    let spawn = Spawn {
        command: Some(command),
        stdin_pipe: true,
        pty: Some(asked.size.unwrap_or(DEFAULT_SIZE)),
        // Bytes as they come: half a character is the terminal's to wait for.
        binary: true,
        ..Spawn::default()
    };
    guest.spawn(spawn, None).await
}

async fn show(guest: &Guest, process_id: &str, size: Option<Pty>) -> Result<Process, ApiError> {
    let process = match guest.again(Ask::GetProcess(ProcessRef { process_id: process_id.to_owned() })).await? {
        Tell::Process(process) => process,
        _ => return Err(from_ask(AskError::Unexpected)),
    };
    if !process.pty {
        return Err(ApiError::wrong("processId", "is a process without a terminal"));
    }
    // Clients always send a size. The usual one is what they send when their user named none, and takes nothing from the
    // size that the process was given.
    let size = size.filter(|size| *size != DEFAULT_SIZE);
    if size.is_some() && convert::state(&process) == ProcessState::Running {
        guest.again(Ask::Resize(Resize { process_id: process_id.to_owned(), size })).await?;
    }
    Ok(process)
}

enum Told {
    Bytes(Bytes),
    Exit(Process),
}

/// The output of one process as bytes, through channels that break.
struct Output<'a> {
    guest: &'a Guest,
    process_id: &'a str,
    cursor: u64,
    source: Option<GuestStream>,
    broken_since: Option<Instant>,
}

impl<'a> Output<'a> {
    fn new(guest: &'a Guest, process: &'a Process) -> Self {
        Self { guest, process_id: &process.id, cursor: process.first_offset, source: None, broken_since: None }
    }

    async fn next(&mut self) -> Result<Told, ApiError> {
        loop {
            let Some(source) = &mut self.source else {
                self.attach().await?;
                continue;
            };
            match source.next().await {
                Ok(Some(Tell::Chunk(chunk))) => {
                    self.broken_since = None;
                    // The guest is not trusted to count: what was seen is cut off.
                    let seen = usize::try_from(self.cursor.saturating_sub(chunk.offset)).unwrap_or(usize::MAX);
                    let fresh = chunk.data.slice(seen.min(chunk.data.len())..);
                    if !fresh.is_empty() {
                        self.cursor = chunk.offset.max(self.cursor).saturating_add(fresh.len() as u64);
                        return Ok(Told::Bytes(fresh));
                    }
                }
                Ok(Some(Tell::Lost(lost))) => self.cursor = self.cursor.max(lost.resume_at),
                Ok(Some(Tell::Process(process))) if convert::state(&process) != ProcessState::Running => {
                    return Ok(Told::Exit(process));
                }
                Ok(Some(Tell::Process(_)) | None) | Err(AskError::Channel(_) | AskError::Short) => self.broken(),
                Ok(Some(_)) => return Err(from_ask(AskError::Unexpected)),
                Err(error) => return Err(from_ask(error)),
            }
        }
    }

    async fn attach(&mut self) -> Result<(), ApiError> {
        // Who only looks does not wake it; who types does.
        if self.guest.is_away() {
            self.guest.back().await?;
            self.broken_since = None;
        }
        if let Some(since) = self.broken_since {
            if since.elapsed() > PATIENCE {
                let message = "The sandbox cannot be reached now; its terminal may go on.";
                return Err(ApiError::new(Kind::HostUnavailable, message).hint("Open it again by its processId."));
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        let follow = Follow { process_id: self.process_id.to_owned(), cursor: self.cursor, ..Follow::default() };
        match self.guest.open(Ask::Follow(follow)).await {
            Ok(source) => self.source = Some(source),
            Err(error) if error.kind() == Kind::HostUnavailable || error.kind() == Kind::GuestBusy => self.broken(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn broken(&mut self) {
        self.source = None;
        self.broken_since.get_or_insert_with(Instant::now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_read_and_anything_else_is_not_one() {
        assert_eq!(new_size(r#"{"type":"resize","cols":120,"rows":40}"#), Some(Pty { cols: 120, rows: 40 }));
        for text in ["", "{}", "x", r#"{"type":"other","cols":1,"rows":1}"#, r#"{"type":"resize","cols":-1,"rows":1}"#]
        {
            assert_eq!(new_size(text), None, "{text}");
        }
    }
}
