//! `POST /v1/sandboxes/{id}:exec`.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use chrono::Utc;
use runtime_api::exec::{ExecAnswer, ExecEvent, ExecRequest};
use runtime_api::process::ProcessState;
use runtime_proto::guest::{Exec, Spawn};
use serde::{Deserialize, Serialize};

use super::command::Wanted;
use super::convert;
use super::gateway::{Guest, Ran, is_replay};
use super::stream::Follower;
use crate::error::ApiError;
use crate::fields::boolean;
use crate::http::late;
use crate::idempotency::{Answer, Claim, Keep};
use crate::{AppState, Call, Caller};

/// Output kept of each stream of a short and of a long command.
const SHORT_HEAD: u64 = 65_536;
const LONG_HEAD: u64 = 1024 * 1024;
const SHORT_MS: u64 = 60_000;

/// What is remembered of a streamed exec: where its output is.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    process_id: String,
}

/// Run one command and answer its end, or its output as it comes.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/~exec",
    tag = "commands",
    params(("id" = String, Path, description = "A sandbox")),
    request_body = ExecRequest,
    responses(
        (status = 200, description = "How it ended; with `stream` a line per event instead", content(
            (ExecAnswer = "application/json"),
            (ExecEvent = "application/x-ndjson"),
        )),
    )
)]
pub(super) async fn exec(State(app): State<AppState>, Path(id): Path<String>, call: Call) -> Response {
    match read(&call) {
        Err(error) => error.into_response(),
        Ok((wanted, false)) => app.answer_once(call, move |app, call| run(app, id, wanted, call)).await,
        Ok((wanted, true)) => match streamed(app, id, wanted, call).await {
            Ok((follower, replayed)) => {
                let mut response = lines(follower);
                if replayed {
                    late::mark_replayed(response.headers_mut());
                }
                response
            }
            Err(error) => error.into_response(),
        },
    }
}

fn read(call: &Call) -> Result<(Wanted, bool), ApiError> {
    let mut fields = call.fields()?;
    let wanted = Wanted::read(&mut fields);
    let stream = fields.opt("stream", boolean).unwrap_or(false);
    fields.finish()?;
    wanted.check()?;
    Ok((wanted, stream))
}

async fn run(app: AppState, id: String, mut wanted: Wanted, call: Call) -> Result<Answer, ApiError> {
    wanted.check_time(&app, &call.caller, &id).await?;
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    let around = guest.around();
    let timeout_ms = wanted.exec_timeout_ms(&around, Utc::now())?;
    let stdin = wanted.stdin.take();
    let process_id = new_process_id();
    let exec = Exec {
        command: Some(wanted.into_command(&around, timeout_ms, process_key(&call), process_id.clone())),
        head_limit: if timeout_ms <= SHORT_MS { SHORT_HEAD } else { LONG_HEAD },
        has_stdin: stdin.is_some(),
    };
    let ran = guest.exec(exec, stdin).await?;
    let replayed = is_replay(&process_id, &ran.process);
    let whole = answer(ran, guest.memory_mib());
    // The agent finds this process by its key until the record is on the disk.
    Answer::json(&whole)?.keep(Keep::Later).replays(replayed).or_brief(|| brief(&whole))
}

/// What is remembered of an answer with much output: how it ended and which process it was. The output itself is kept
/// by the agent, under that process, for as long as it keeps ended ones.
fn brief(whole: &ExecAnswer) -> ExecAnswer {
    ExecAnswer {
        stdout: String::new(),
        stderr: String::new(),
        stdout_truncated: whole.stdout_truncated || !whole.stdout.is_empty(),
        stderr_truncated: whole.stderr_truncated || !whole.stderr.is_empty(),
        ..whole.clone()
    }
}

fn answer(ran: Ran, memory_mib: u64) -> ExecAnswer {
    let process = ran.process;
    ExecAnswer {
        exit_code: convert::exit_code(&process),
        stdout: text(ran.stdout),
        stderr: text(ran.stderr),
        timed_out: convert::state(&process) == ProcessState::TimedOut,
        stdout_truncated: ran.stdout_truncated,
        stderr_truncated: ran.stderr_truncated,
        duration_ms: Some(process.duration_ms),
        replayed: false,
        out_of_memory: convert::out_of_memory(process.oom_kills, memory_mib),
        files: None,
        process_id: process.id,
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Starts the command in a task of its own: a client that hangs up now must not leave it without its input, or its key
/// without an outcome.
async fn streamed(app: AppState, id: String, wanted: Wanted, call: Call) -> Result<(Follower, bool), ApiError> {
    app.not_draining()?;
    let stopping = app.sandboxes().stopping().clone();
    let work = app.clone().tasks().spawn(async move {
        wanted.check_time(&app, &call.caller, &id).await?;
        let guest = Guest::reach(&app, &call.caller, &id).await?;
        let request_id = call.request_id.0.to_string();
        let (process_id, replayed) = match app.claim(&call).await? {
            Claim::Done(body) => (remembered(&body)?, true),
            Claim::Fresh(ticket) => {
                let started = start(&guest, wanted, &call).await;
                let outcome = match &started {
                    Ok((id, _)) => Answer::json(&Started { process_id: id.clone() }).map(|a| a.keep(Keep::Later)),
                    Err(error) => Err(error.clone()),
                };
                ticket.finish(&outcome).await?;
                started?
            }
        };
        let start = ExecEvent::Start { process_id: process_id.clone(), replayed };
        Ok((Follower::new(guest, process_id, request_id, 0, false).say(start).until(stopping), replayed))
    });
    work.await.map_err(|error| ApiError::internal("starting a streamed command", error))?
}

async fn start(guest: &Guest, mut wanted: Wanted, call: &Call) -> Result<(String, bool), ApiError> {
    let around = guest.around();
    let timeout_ms = wanted.exec_timeout_ms(&around, Utc::now())?;
    let stdin = wanted.stdin.take();
    let process_id = new_process_id();
    let spawn = Spawn {
        command: Some(wanted.into_command(&around, timeout_ms, process_key(call), process_id.clone())),
        stdin_pipe: false,
        has_stdin: stdin.is_some(),
        pty: None,
        exec: true,
        binary: false,
    };
    let process = guest.spawn(spawn, stdin).await?;
    let replayed = is_replay(&process_id, &process);
    Ok((process.id, replayed))
}

fn remembered(body: &Bytes) -> Result<String, ApiError> {
    serde_json::from_slice::<Started>(body)
        .map(|started| started.process_id)
        .map_err(|error| ApiError::internal("reading the remembered start of a command", error))
}

/// A body of events, whole lines at a time.
pub(super) fn lines(follower: Follower) -> Response {
    let mut response = Body::from_stream(follower.into_stream()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

/// The agent's name for a request's key: a second asking attaches. Without a key of the caller's it is fresh, and serves
/// only our own second asking after a broken channel.
pub(super) fn process_key(call: &Call) -> String {
    match &call.idempotency_key {
        Some(key) => hashed(&call.caller, key),
        None => uuid::Uuid::new_v4().simple().to_string(),
    }
}

fn hashed(caller: &Caller, key: &str) -> String {
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    context.update(caller.scope().as_bytes());
    context.update(b"\0");
    context.update(key.as_bytes());
    hex(context.finish().as_ref())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(super) fn new_process_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::scripted;
    use super::*;
    use crate::idempotency::REMEMBERED_BODY;

    #[test]
    fn much_output_is_answered_whole_and_remembered_in_brief() {
        let answered = |stdout: String| {
            let mut process = scripted::process(runtime_proto::guest::ProcessState::Exited, Some(7));
            process.id = "p".to_owned();
            let ran = Ran {
                process,
                stdout: stdout.into(),
                stderr: Vec::new(),
                stdout_truncated: false,
                stderr_truncated: false,
            };
            let whole = answer(ran, 1024);
            Answer::json(&whole).and_then(|answer| answer.or_brief(|| brief(&whole))).expect("an answer")
        };
        assert!(answered("x".to_owned()).brief.is_none());
        let much = answered("x".repeat(REMEMBERED_BODY));
        assert!(much.body.len() > REMEMBERED_BODY, "the first answer has all of it");
        let kept: serde_json::Value = serde_json::from_slice(&much.brief.expect("too long")).expect("JSON");
        assert_eq!((&kept["stdout"], &kept["processId"]), (&"".into(), &"p".into()));
        assert_eq!((&kept["stdoutTruncated"], &kept["stderrTruncated"]), (&true.into(), &false.into()));
        assert_eq!(kept["exitCode"], 7);
    }
}
