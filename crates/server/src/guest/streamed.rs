//! `POST /v1/sandboxes/{id}:exec` with `stream`: the start of a command, then its output, then its end.
//!
//! Under the request's key is remembered which process it started, and once its end was told here, that as well. A
//! repeat reads on from the process while its sandbox still knows it. Afterwards the output is gone, but what is known of
//! the end is not: the repeat is told how much is lost, and how the command ended, or that nobody knows.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use chrono::Utc;
use runtime_api::exec::{ExecEvent, ExitEvent, TracedFiles};
use runtime_api::process::ProcessState;
use runtime_proto::guest::Spawn;
use runtime_store::Replay;
use serde::{Deserialize, Serialize};

use super::command::Wanted;
use super::exec::{as_lines, lines, new_process_id, process_key};
use super::gateway::{Guest, is_replay};
use super::processes::find;
use super::stream::Follower;
use crate::error::{ApiError, Kind};
use crate::http::late;
use crate::idempotency::{Answer, Claim, Keep, REMEMBERED_BODY};
use crate::{AppState, Call};

/// What is remembered of a streamed exec: where its output is, and how it ended if that is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    process_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<End>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct End {
    output_bytes: u64,
    exit: ExitEvent,
}

/// Starts the command in a task of its own: a client that hangs up now must not leave it without its input, or its key
/// without an outcome.
pub(super) async fn answer(app: AppState, id: String, wanted: Wanted, call: Call) -> Result<Response, ApiError> {
    app.not_draining()?;
    let work = app.clone().tasks().spawn(async move {
        match app.claim(&call).await? {
            Claim::Done(body) => repeat(&app, &id, &call, remembered(&body)?).await,
            Claim::Fresh(ticket) => {
                let begun = begin(&app, &id, wanted, &call).await;
                let outcome = match &begun {
                    Ok((_, process_id, _)) => remembering(process_id, None),
                    Err(error) => Err(error.clone()),
                };
                ticket.finish(&outcome).await?;
                let (guest, process_id, replayed) = begun?;
                Ok(follow(&app, &call, guest, process_id, replayed))
            }
        }
    });
    work.await.map_err(|error| ApiError::internal("starting a streamed command", error))?
}

/// The process, and whether it was there already.
async fn begin(app: &AppState, id: &str, mut wanted: Wanted, call: &Call) -> Result<(Guest, String, bool), ApiError> {
    wanted.check_time(app, &call.caller, id).await?;
    let guest = Guest::reach(app, &call.caller, id).await?;
    if wanted.trace_files {
        guest.can_trace().await?;
    }
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
    Ok((guest, process.id, replayed))
}

fn follow(app: &AppState, call: &Call, guest: Guest, process_id: String, replayed: bool) -> Response {
    let stopping = app.sandboxes().stopping().clone();
    let start = ExecEvent::Start { process_id: process_id.clone(), replayed };
    let mut follower =
        Follower::new(guest, process_id.clone(), call.request_id.0.to_string(), 0, false).say(start).until(stopping);
    // Without a key nobody asks for it again.
    if let Some(row) = app.key_record(call, Replay::Body(Vec::new())) {
        let app = app.clone();
        follower = follower.at_exit(move |exit, output_bytes| {
            let end = End { output_bytes, exit: brief(exit) };
            let Ok(answer) = remembering(&process_id, Some(end)) else { return };
            let row = runtime_store::IdempotencyRow { replay: Replay::Body(answer.body.to_vec()), ..row };
            let store = app.store().clone();
            app.tasks().spawn(async move {
                if let Err(error) = store.amend(row).await {
                    // The process itself still knows, for a while.
                    tracing::warn!(error = &error as &dyn std::error::Error, "the end of a command is not remembered");
                }
            });
        });
    }
    let response = lines(follower);
    if replayed { as_replayed(response) } else { response }
}

/// The first request's outcome again. Nothing runs.
async fn repeat(app: &AppState, id: &str, call: &Call, started: Started) -> Result<Response, ApiError> {
    let known = match Guest::reach(app, &call.caller, id).await {
        Ok(guest) => match find(&guest, &started.process_id).await {
            Ok(_) => Some(guest),
            // It was forgotten, or its sandbox has started anew.
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(error),
        },
        Err(error) if error.kind() == Kind::SandboxStopped => None,
        Err(error) => return Err(error),
    };
    Ok(match known {
        Some(guest) => follow(app, call, guest, started.process_id, true),
        None => as_replayed(as_lines(Body::from(told(&started)?))),
    })
}

/// All that can be told of a process that is no more.
fn told(started: &Started) -> Result<Bytes, ApiError> {
    let mut events = vec![ExecEvent::Start { process_id: started.process_id.clone(), replayed: true }];
    match &started.end {
        Some(end) => {
            if end.output_bytes > 0 {
                let lost = end.output_bytes;
                events.push(ExecEvent::Truncated { dropped_bytes: lost, resume_at: lost });
            }
            events.push(ExecEvent::Exit(end.exit.clone()));
        }
        None => events.push(ExecEvent::Exit(ExitEvent {
            exit_code: None,
            state: ProcessState::Unknown,
            timed_out: false,
            duration_ms: None,
            out_of_memory: None,
            files: None,
        })),
    }
    let mut lines = Vec::new();
    for event in events {
        serde_json::to_writer(&mut lines, &event).map_err(|error| ApiError::internal("writing an event", error))?;
        lines.push(b'\n');
    }
    Ok(lines.into())
}

fn as_replayed(mut response: Response) -> Response {
    late::mark_replayed(response.headers_mut());
    response
}

/// Without a trace that is too long to be kept for a day.
fn brief(exit: &ExitEvent) -> ExitEvent {
    let paths = |files: &TracedFiles| files.read.iter().chain(&files.written).map(|path| path.len() + 4).sum::<usize>();
    let long = exit.files.as_ref().is_some_and(|files| paths(files) > REMEMBERED_BODY);
    ExitEvent {
        files: match long {
            true => Some(TracedFiles { truncated: true, ..TracedFiles::default() }),
            false => exit.files.clone(),
        },
        ..exit.clone()
    }
}

fn remembering(process_id: &str, end: Option<End>) -> Result<Answer, ApiError> {
    Answer::json(&Started { process_id: process_id.to_owned(), end }).map(|answer| answer.keep(Keep::Later))
}

fn remembered(body: &Bytes) -> Result<Started, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::internal("reading the remembered start of a command", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(files: Option<TracedFiles>) -> ExitEvent {
        ExitEvent {
            exit_code: Some(4),
            state: ProcessState::Exited,
            timed_out: false,
            duration_ms: Some(7),
            out_of_memory: None,
            files,
        }
    }

    fn lines(end: Option<End>) -> Vec<serde_json::Value> {
        let told = told(&Started { process_id: "p".to_owned(), end }).unwrap();
        told.split(|byte| *byte == b'\n')
            .filter(|l| !l.is_empty())
            .map(|l| serde_json::from_slice(l).unwrap())
            .collect()
    }

    #[test]
    fn of_a_process_that_is_no_more_its_end_is_told_and_what_is_lost() {
        let all = lines(Some(End { output_bytes: 12, exit: exit(None) }));
        assert_eq!((&all[0]["type"], &all[0]["replayed"]), (&"start".into(), &true.into()));
        assert_eq!((&all[1]["droppedBytes"], &all[1]["resumeAt"]), (&12.into(), &12.into()));
        assert_eq!((&all[2]["exitCode"], &all[2]["state"]), (&4.into(), &"exited".into()));
        assert_eq!(lines(Some(End { output_bytes: 0, exit: exit(None) })).len(), 2);
        let unknown = lines(None);
        assert_eq!((&unknown[1]["type"], &unknown[1]["state"]), (&"exit".into(), &"unknown".into()));
        assert!(unknown[1]["exitCode"].is_null());
    }

    #[test]
    fn what_earlier_versions_remembered_is_read() {
        let old = remembered(&Bytes::from_static(br#"{"replayed":true,"processId":"p"}"#)).unwrap();
        assert_eq!(old, Started { process_id: "p".to_owned(), end: None });
        let end = Some(End { output_bytes: 3, exit: exit(None) });
        let now = remembering("p", end.clone()).unwrap();
        assert_eq!(remembered(&now.body).unwrap(), Started { process_id: "p".to_owned(), end });
    }

    #[test]
    fn a_long_trace_is_not_kept() {
        let files = |n: usize| TracedFiles { read: vec!["/x".repeat(100); n], ..TracedFiles::default() };
        assert_eq!(brief(&exit(Some(files(3)))).files, Some(files(3)));
        let long = brief(&exit(Some(files(10_000)))).files.unwrap();
        assert!(long.truncated && long.read.is_empty());
    }
}
