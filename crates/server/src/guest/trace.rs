//! Files that a traced command opened: asked of its agent once it has ended.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{Path, State};
use runtime_api::exec::TracedFiles;
use runtime_proto::guest::{Ask, ErrorCode, Nothing, Process, ProcessRef, Tell};
use runtime_proto::node::AskError;

use super::gateway::{Asked, Guest, from_ask};
use super::processes::process_id;
use crate::error::{ApiError, Kind};
use crate::{AppState, Call};

/// Bytes of paths that a guest is heard out for.
const MOST_BYTES: usize = 4 * 1024 * 1024;

impl Guest {
    /// Refuses before anything runs where a trace would be missing.
    pub(crate) async fn can_trace(&self) -> Result<(), ApiError> {
        match self.again(Ask::CanTrace(Nothing {})).await {
            Ok(Tell::Done(_)) => Ok(()),
            Ok(_) => Err(from_ask(AskError::Unexpected)),
            Err(error) if error.guest_code() == Some(ErrorCode::Unsupported) => Err(ApiError::new(
                Kind::GuestUpgradeRequired,
                "This sandbox was started with an agent that cannot trace files; nothing ran.",
            )
            .hint("Stop the sandbox and start it again, or leave traceFiles out.")),
            Err(error) => Err(error.into()),
        }
    }

    /// The files of an ended process, sorted.
    pub(crate) async fn traced(&self, process_id: &str) -> Result<TracedFiles, ApiError> {
        let mut breaks = 0;
        loop {
            match self.traced_once(process_id).await {
                Err(error) if error.is_broken() && self.may_ask_again(&mut breaks).await? => {}
                other => return Ok(other?),
            }
        }
    }

    async fn traced_once(&self, process_id: &str) -> Result<TracedFiles, Asked> {
        let mut stream = self.ask(Ask::GetTraced(ProcessRef { process_id: process_id.to_owned() })).await?;
        let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
        let (mut truncated, mut room) = (false, MOST_BYTES);
        loop {
            match stream.only().await? {
                Tell::Traced(told) => {
                    truncated |= told.truncated;
                    for (paths, into) in [(told.read, &mut read), (told.written, &mut written)] {
                        for path in paths {
                            match room.checked_sub(path.len() + size_of::<String>()) {
                                Some(left) => room = left,
                                None => return Err(AskError::Unexpected.into()),
                            }
                            into.insert(path);
                        }
                    }
                }
                Tell::Done(_) => break,
                _ => return Err(AskError::Unexpected.into()),
            }
        }
        Ok(TracedFiles { read: read.into_iter().collect(), written: written.into_iter().collect(), truncated })
    }

    /// What a process that has ended is answered with, if it was traced. The command ran, whatever became of its trace:
    /// one that cannot be had is told as one that is not whole.
    pub(crate) async fn files_of(&self, process: &Process) -> Option<TracedFiles> {
        if !process.traced {
            return None;
        }
        Some(self.traced(&process.id).await.unwrap_or_else(|error| {
            tracing::warn!(process = %process.id, cause = error.cause(), %error, "a trace was lost");
            TracedFiles { truncated: true, ..TracedFiles::default() }
        }))
    }
}

/// The files that a process opened, if it was started with `traceFiles` and has ended.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/processes/{process}/files",
    tag = "commands",
    params(("id" = String, Path, description = "A sandbox"), ("process" = String, Path, description = "A process")),
    responses((status = 200, body = TracedFiles))
)]
pub(super) async fn files(
    State(app): State<AppState>,
    Path((id, process)): Path<(String, String)>,
    call: Call,
) -> Result<Json<TracedFiles>, ApiError> {
    call.no_query()?;
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    Ok(Json(guest.traced(&process_id(&process)?).await?))
}
