//! Processes that outlive the request that started them: start, list, read, feed, signal.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use chrono::Utc;
use runtime_api::exec::ExecEvent;
use runtime_api::file::Empty;
use runtime_api::process::{
    InputAnswer, InputRequest, OutputEncoding, OutputPoll, ProcessInfo, ProcessList, ProcessRequest, ProcessState,
    PtySize, SignalName, SignalRequest, StdinMode,
};
use runtime_proto::guest::{
    Ask, Chunk, Follow, KEPT_ENDED, MAX_PROCESSES, Nothing, Process, ProcessRef, Pty, RETAINED_OUTPUT, Resize, Signal,
    Spawn, Tell, WriteStdin,
};
use runtime_proto::node::AskError;

use super::command::{Wanted, base64_input, plain_input};
use super::convert;
use super::exec::{lines, new_process_id, process_key};
use super::gateway::{Guest, asked_with, from_ask, is_replay};
use super::output::Reader;
use super::stream::{Follower, SLICE};
use crate::error::{ApiError, Kind};
use crate::fields::{Checked, Fields, boolean, int, object, one_of};
use crate::idempotency::{Answer, Keep};
use crate::{AppState, Call};

/// Longest wait of one poll.
const LONGEST_POLL_MS: u64 = 8_000;
/// Cursors stay whole numbers in every client.
const MOST_BYTES: u64 = 1 << 53;
/// A guest that lists more than it may is not heard out.
const MOST_LISTED: usize = MAX_PROCESSES + KEPT_ENDED;
/// The same for one poll's output: what is retained, and what came while it was read.
const MOST_POLLED: usize = 2 * RETAINED_OUTPUT;

const SIGNALS: &[(&str, SignalName)] = &[
    ("SIGTERM", SignalName::SigTerm),
    ("SIGKILL", SignalName::SigKill),
    ("SIGINT", SignalName::SigInt),
    ("SIGHUP", SignalName::SigHup),
    ("SIGQUIT", SignalName::SigQuit),
    ("SIGUSR1", SignalName::SigUsr1),
    ("SIGUSR2", SignalName::SigUsr2),
];

/// Start a process and answer at once; it lives until it ends, is signalled, or the sandbox stops.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/processes",
    tag = "commands",
    params(("id" = String, Path, description = "A sandbox")),
    request_body = ProcessRequest,
    responses((status = 200, body = ProcessInfo))
)]
pub(super) async fn spawn(State(app): State<AppState>, Path(id): Path<String>, call: Call) -> Response {
    let (wanted, how) = match read(&call) {
        Ok(read) => read,
        Err(error) => return error.into_response(),
    };
    app.answer_once(call, move |app, call| start(app, id, wanted, how, call)).await
}

/// How a process is started, beside what.
struct How {
    stdin_pipe: bool,
    binary: bool,
    pty: Option<Pty>,
}

fn read(call: &Call) -> Result<(Wanted, How), ApiError> {
    let mut fields = call.fields()?;
    if fields.has("stdinMode") && (fields.has("stdin") || fields.has("stdinBase64")) {
        fields.wrong("stdinMode", "must not be given together with stdin or stdinBase64");
    }
    let wanted = Wanted::read(&mut fields);
    if fields.has("pty") && (fields.has("stdin") || fields.has("stdinBase64")) {
        fields.wrong("pty", "must not be given together with stdin or stdinBase64: a terminal is written to");
    }
    let how = How {
        stdin_pipe: fields.opt("stdinMode", one_of(&[("pipe", StdinMode::Pipe)])).is_some(),
        binary: fields
            .opt("outputEncoding", one_of(&[("utf8", OutputEncoding::Utf8), ("base64", OutputEncoding::Base64)]))
            == Some(OutputEncoding::Base64),
        pty: fields.opt("pty", object(size)),
    };
    fields.finish()?;
    wanted.check()?;
    Ok((wanted, how))
}

fn size(mut fields: Fields) -> Checked<Pty> {
    let size = Pty { cols: fields.need("cols", int(1..=10_000_u32)), rows: fields.need("rows", int(1..=10_000_u32)) };
    fields.checked(size)
}

async fn start(app: AppState, id: String, mut wanted: Wanted, how: How, call: Call) -> Result<Answer, ApiError> {
    wanted.check_time(&app, &call.caller, &id).await?;
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    if wanted.trace_files {
        guest.can_trace().await?;
    }
    let around = guest.around();
    let timeout_ms = wanted.process_timeout_ms(&around, Utc::now())?;
    let stdin = wanted.stdin.take();
    let process_id = new_process_id();
    let spawn = Spawn {
        command: Some(wanted.into_command(&around, timeout_ms, process_key(&call), process_id.clone())),
        stdin_pipe: how.stdin_pipe,
        has_stdin: stdin.is_some(),
        pty: how.pty,
        exec: false,
        binary: how.binary,
    };
    let process = guest.spawn(spawn, stdin).await?;
    let replayed = is_replay(&process_id, &process);
    Ok(Answer::json(&convert::process(process, guest.memory_mib()))?.keep(Keep::Later).replays(replayed))
}

/// What runs, and the last 16 that ended; commands of `:exec` too.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/processes",
    tag = "commands",
    params(("id" = String, Path, description = "A sandbox")),
    responses((status = 200, body = ProcessList))
)]
pub(super) async fn list(
    State(app): State<AppState>,
    Path(id): Path<String>,
    call: Call,
) -> Result<Json<ProcessList>, ApiError> {
    call.no_query()?;
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    let mut stream = guest.open(Ask::ListProcesses(Nothing {})).await?;
    let mut data = Vec::new();
    while let Some(told) = stream.next().await.map_err(from_ask)? {
        match told {
            Tell::Process(process) if data.len() < MOST_LISTED => {
                data.push(convert::process(process, guest.memory_mib()));
            }
            _ => return Err(from_ask(AskError::Unexpected)),
        }
    }
    Ok(Json(ProcessList { data }))
}

/// One process.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/processes/{process}",
    tag = "commands",
    params(("id" = String, Path, description = "A sandbox"), ("process" = String, Path, description = "A process")),
    responses((status = 200, body = ProcessInfo))
)]
pub(super) async fn get(
    State(app): State<AppState>,
    Path((id, process)): Path<(String, String)>,
    call: Call,
) -> Result<Json<ProcessInfo>, ApiError> {
    call.no_query()?;
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    let found = find(&guest, &process).await?;
    Ok(Json(convert::process(found, guest.memory_mib())))
}

pub(super) async fn find(guest: &Guest, process: &str) -> Result<Process, ApiError> {
    match guest.again(Ask::GetProcess(ProcessRef { process_id: process_id(process)? })).await? {
        Tell::Process(process) => Ok(process),
        _ => Err(from_ask(AskError::Unexpected)),
    }
}

/// No process has a longer id than this server makes, and the agent need not read one that does.
pub(super) fn process_id(text: &str) -> Result<String, ApiError> {
    if text.is_empty() || text.len() > 128 || text.contains('\0') {
        return Err(ApiError::new(Kind::NotFound, "There is no process with this id in the sandbox."));
    }
    Ok(text.to_owned())
}

/// Output from a cursor: what there is (`waitMs` to wait for more), or with `follow` all that comes.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/processes/{process}/output",
    tag = "commands",
    params(
        ("id" = String, Path, description = "A sandbox"),
        ("process" = String, Path, description = "A process"),
        ("cursor" = Option<u64>, Query, description = "The first byte wanted; 0 if left out"),
        ("waitMs" = Option<u64>, Query, description = "How long a poll waits for output, at most 8000"),
        ("follow" = Option<bool>, Query, description = "Answer a line per event until the process ends"),
    ),
    responses((status = 200, content((OutputPoll = "application/json"), (ExecEvent = "application/x-ndjson"))))
)]
pub(super) async fn output(
    State(app): State<AppState>,
    Path((id, process)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let mut query = call.query()?;
    let cursor = query.opt("cursor", int(0..=MOST_BYTES)).unwrap_or(0);
    let wait_ms = query.opt("waitMs", int(0..=LONGEST_POLL_MS)).unwrap_or(0);
    let follow = query.opt("follow", boolean).unwrap_or(false);
    query.finish()?;
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    let stopping = app.sandboxes().stopping();
    if !follow {
        let process = process_id(&process)?;
        let polled = tokio::select! {
            polled = poll(&guest, process.clone(), cursor, wait_ms) => polled?,
            // The server stops: what there is.
            () = stopping.cancelled() => poll(&guest, process, cursor, 0).await?,
        };
        return Ok(Json(polled).into_response());
    }
    let found = find(&guest, &process).await?;
    let request_id = call.request_id.0.to_string();
    Ok(lines(Follower::new(guest, found.id, request_id, cursor, found.binary).slice(SLICE).until(stopping.clone())))
}

async fn poll(guest: &Guest, process_id: String, cursor: u64, wait_ms: u64) -> Result<OutputPoll, ApiError> {
    let mut stream = guest.open(Ask::Follow(Follow { process_id, cursor, wait_ms, once: true })).await?;
    // Only the last answer says how the output is encoded, so the chunks wait for it.
    let mut told: Vec<Tell> = Vec::new();
    let mut bytes = 0;
    let process = loop {
        match stream.only().await.map_err(asked_with("cursor"))? {
            Tell::Process(process) => break process,
            Tell::Chunk(Chunk { data, .. }) if data.is_empty() => {}
            tell @ (Tell::Chunk(_) | Tell::Lost(_)) => {
                bytes += if let Tell::Chunk(chunk) = &tell { chunk.data.len() } else { 64 };
                if bytes > MOST_POLLED {
                    return Err(from_ask(AskError::Unexpected));
                }
                told.push(tell);
            }
            _ => return Err(from_ask(AskError::Unexpected)),
        }
    };
    let mut reader = Reader::new(cursor, process.binary);
    let mut pieces = Vec::new();
    for tell in told {
        match tell {
            Tell::Chunk(chunk) => reader.take(chunk, &mut pieces),
            Tell::Lost(lost) => reader.lost(lost, &mut pieces),
            _ => {}
        }
    }
    // Half a character waits for the next poll, unless none will bring the rest or the caller would poll in a circle.
    let info = convert::process(process, guest.memory_mib());
    if info.state != ProcessState::Running || pieces.is_empty() {
        reader.release(&mut pieces);
    }
    Ok(OutputPoll {
        chunks: pieces.into_iter().filter_map(super::output::Piece::into_chunk).collect(),
        next_cursor: reader.cursor(),
        process: info,
    })
}

/// Give a process input at an offset; what it has already is skipped.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/processes/{process}/~write",
    tag = "commands",
    params(("id" = String, Path, description = "A sandbox"), ("process" = String, Path, description = "A process")),
    request_body = InputRequest,
    responses((status = 200, body = InputAnswer))
)]
pub(super) async fn write(
    State(app): State<AppState>,
    Path((id, process)): Path<(String, String)>,
    call: Call,
) -> Response {
    app.answer_once(call, move |app, call| feed(app, id, process, call)).await
}

async fn feed(app: AppState, id: String, process: String, call: Call) -> Result<Answer, ApiError> {
    let mut fields = call.fields()?;
    if fields.has("base64") && fields.has("data") {
        fields.wrong("data", "must not be given together with base64");
    }
    let encoded = fields.opt("base64", base64_input);
    let plain = fields.opt("data", plain_input);
    let offset = fields.need("offset", int(0..=MOST_BYTES));
    let eof = fields.opt("eof", boolean).unwrap_or(false);
    fields.finish()?;
    let data = encoded.or(plain).unwrap_or_default();
    let most = offset + data.len() as u64;

    let guest = Guest::reach(&app, &call.caller, &id).await?;
    let ask = Ask::WriteStdin(WriteStdin { process_id: process_id(&process)?, offset, eof, append: false });
    match guest.with_input(ask, data).await.map_err(|error| error.with("offset"))? {
        // A client takes no offset beyond what it sent, even if the process has more.
        Tell::Written(written) if written.offset >= offset => {
            Ok(Answer::json(&InputAnswer { offset: written.offset.min(most) })?.keep(Keep::Later))
        }
        Tell::Written(written) => Err(ApiError::wrong(
            "offset",
            format!("is {offset}, but the process has taken only {} bytes", written.offset),
        )),
        _ => Err(from_ask(AskError::Unexpected)),
    }
}

/// Give the terminal of a process another size.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/processes/{process}/~resize",
    tag = "commands",
    params(("id" = String, Path, description = "A sandbox"), ("process" = String, Path, description = "A process")),
    request_body = PtySize,
    responses((status = 200, body = Empty))
)]
pub(super) async fn resize(
    State(app): State<AppState>,
    Path((id, process)): Path<(String, String)>,
    call: Call,
) -> Response {
    app.answer_once(call, move |app, call| async move {
        call.no_query()?;
        let mut fields = call.fields()?;
        let size =
            Pty { cols: fields.need("cols", int(1..=10_000_u32)), rows: fields.need("rows", int(1..=10_000_u32)) };
        fields.finish()?;
        let guest = Guest::reach(&app, &call.caller, &id).await?;
        match guest
            .again(Ask::Resize(Resize { process_id: process_id(&process)?, size: Some(size) }))
            .await
            .map_err(|error| error.with("process"))?
        {
            Tell::Done(_) => Ok(Answer::json(&Empty {})?.keep(Keep::Later)),
            _ => Err(from_ask(AskError::Unexpected)),
        }
    })
    .await
}

/// Send a signal to a process and all that it started; one that has ended takes none, and that is fine.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/processes/{process}/~signal",
    tag = "commands",
    params(("id" = String, Path, description = "A sandbox"), ("process" = String, Path, description = "A process")),
    request_body = SignalRequest,
    responses((status = 200, body = Empty))
)]
pub(super) async fn signal(
    State(app): State<AppState>,
    Path((id, process)): Path<(String, String)>,
    call: Call,
) -> Response {
    app.answer_once(call, move |app, call| send_signal(app, id, process, call)).await
}

async fn send_signal(app: AppState, id: String, process: String, call: Call) -> Result<Answer, ApiError> {
    let mut fields = call.fields()?;
    let signal = fields.need("signal", |given| one_of(SIGNALS)(given).map(Some));
    fields.finish()?;
    let Some(signal) = signal else { return Err(ApiError::wrong("signal", "is required")) };
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    let ask = Ask::Signal(Signal { process_id: process_id(&process)?, signal: signal.number() });
    match guest.once(ask).await? {
        Tell::Done(_) => Ok(Answer::json(&Empty {})?.keep(Keep::Later)),
        _ => Err(from_ask(AskError::Unexpected)),
    }
}
