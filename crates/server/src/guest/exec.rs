//! `POST /v1/sandboxes/{id}:exec`.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use chrono::Utc;
use runtime_api::exec::{ExecAnswer, ExecEvent, ExecRequest, TracedFiles};
use runtime_api::process::ProcessState;
use runtime_proto::guest::Exec;

use super::command::Wanted;
use super::convert;
use super::gateway::{Guest, Ran, is_replay};
use super::stream::Follower;
use super::streamed;
use crate::error::ApiError;
use crate::fields::boolean;
use crate::idempotency::{Answer, Keep};
use crate::{AppState, Call, Caller};

/// Output kept of each stream of a short and of a long command.
const SHORT_HEAD: u64 = 65_536;
const LONG_HEAD: u64 = 1024 * 1024;
const SHORT_MS: u64 = 60_000;

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
        Ok((wanted, true)) => streamed::answer(app, id, wanted, call).await.unwrap_or_else(IntoResponse::into_response),
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
    if wanted.trace_files {
        guest.can_trace().await?;
    }
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
    let files = guest.files_of(&ran.process).await;
    let whole = answer(ran, guest.memory_mib(), files);
    // The agent finds this process by its key until the record is on the disk.
    Answer::json(&whole)?.keep(Keep::Later).replays(replayed).or_brief(|| brief(&whole))
}

/// What is remembered of an answer with much output: how it ended and which process it was. The output itself, and what
/// it traced, are kept by the agent, under that process, for as long as it keeps ended ones.
fn brief(whole: &ExecAnswer) -> ExecAnswer {
    ExecAnswer {
        stdout: String::new(),
        stderr: String::new(),
        stdout_truncated: whole.stdout_truncated || !whole.stdout.is_empty(),
        stderr_truncated: whole.stderr_truncated || !whole.stderr.is_empty(),
        files: whole.files.as_ref().map(|_| TracedFiles { truncated: true, ..TracedFiles::default() }),
        ..whole.clone()
    }
}

fn answer(ran: Ran, memory_mib: u64, files: Option<TracedFiles>) -> ExecAnswer {
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
        files,
        process_id: process.id,
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// A body of events, whole lines at a time.
pub(super) fn lines(follower: Follower) -> Response {
    as_lines(Body::from_stream(follower.into_stream()))
}

pub(super) fn as_lines(body: Body) -> Response {
    let mut response = body.into_response();
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
            let whole = answer(ran, 1024, None);
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
