//! Files that come in chunks: any order, in parallel, sent again as often as needed.
//!
//! The agent holds the upload (docs/decisions/0012); nothing of it is kept here. A chunk is the same work however often
//! it is sent, so its idempotency key is not looked at and costs no record.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use bytes::Bytes;
use runtime_api::file::{Empty, FileWritten, UploadProgress, UploadRequest, UploadStarted};
use runtime_proto::guest::{Ask, MAX_UPLOAD, PutChunk, StartUpload, Tell, UPLOAD_CHUNK, UploadRef};
use runtime_proto::node::AskError;

use super::exec::{new_process_id, process_key};
use super::files::{AS, mode};
use super::gateway::{Guest, from_ask};
use crate::call::Upload;
use crate::error::{ApiError, Issue, Kind};
use crate::fields::{Checked, Given, absolute_path, int};
use crate::idempotency::{Answer, Keep};
use crate::{AppState, Call};

const DEFAULT_MODE: u32 = 0o644;

/// The number, and the text it came as.
fn mode_and_text(given: Given<'_>) -> Checked<(u32, String)> {
    let number = mode(given)?;
    Ok((number, given.value.as_str().unwrap_or_default().to_owned()))
}

fn digest(given: Given<'_>) -> Checked<Bytes> {
    let read = given
        .value
        .as_str()
        .filter(|text| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .and_then(|text| {
            let bytes = (0..32).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok());
            bytes.collect::<Option<Vec<u8>>>()
        });
    read.map(Bytes::from).ok_or_else(|| vec![Issue::new("", "must be a SHA-256 in hexadecimal")])
}

/// No upload has a longer id than this server makes.
pub(super) fn reference(id: &str, archive: bool) -> Result<UploadRef, ApiError> {
    if id.is_empty() || id.len() > 64 {
        return Err(ApiError::new(Kind::NotFound, "There is no upload with this id in the sandbox."));
    }
    Ok(UploadRef { upload_id: id.to_owned(), archive })
}

/// Begin a file that comes in chunks. Until it is committed it lies in the sandbox beside its target and counts against
/// the disk; one that nobody sends to for a day is gone.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/uploads",
    tag = "uploads",
    params(("id" = String, Path, description = "A sandbox")),
    request_body = UploadRequest,
    responses((status = 200, body = UploadStarted))
)]
pub(super) async fn start(State(app): State<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, move |app, call| begin(app, id, call)).await
}

async fn begin(app: AppState, id: String, call: Call) -> Result<Answer, ApiError> {
    call.no_query()?;
    let mut fields = call.fields()?;
    let path = fields.need("path", absolute_path());
    let size = fields.need("size", int(0..=MAX_UPLOAD));
    let sha256 = fields.need("sha256", digest);
    let mode = fields.opt("mode", mode_and_text);
    fields.finish()?;
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    if size > guest.disk_bytes() {
        let message = format!("{path}: {size} bytes are more than the disk of this sandbox holds.");
        return Err(ApiError::new(Kind::DiskFull, message).hint("Use a sandbox with a larger diskMiB."));
    }
    let (mode, text) = mode.map_or((DEFAULT_MODE, None), |(mode, text)| (mode, Some(text)));
    let upload_id = new_process_id();
    let key = process_key(&call);
    let start = StartUpload { path: path.clone(), size, sha256, mode, user: AS, key, upload_id: upload_id.clone() };
    match guest.again(Ask::StartUpload(start)).await {
        Ok(Tell::Upload(upload)) => {
            let replayed = upload.attached && upload.upload_id != upload_id;
            let started = UploadStarted { upload_id: upload.upload_id, chunk_bytes: UPLOAD_CHUNK, mode: text };
            Ok(Answer::json(&started)?.keep(Keep::Later).replays(replayed))
        }
        Ok(_) => Err(from_ask(AskError::Unexpected)),
        Err(error) => Err(error.about(&path)),
    }
}

/// Send a chunk; it may be sent again. What is acknowledged survives the server.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{id}/uploads/{upload}",
    tag = "uploads",
    params(
        ("id" = String, Path, description = "A sandbox"),
        ("upload" = String, Path, description = "An upload"),
        ("offset" = u64, Query, description = "A multiple of chunkBytes"),
    ),
    request_body(content = String, content_type = "application/octet-stream", description = "One chunk"),
    responses((status = 200, body = UploadProgress))
)]
pub(super) async fn put(
    State(app): State<AppState>,
    Path((id, upload)): Path<(String, String)>,
    Upload(call): Upload,
) -> Result<Json<UploadProgress>, ApiError> {
    put_part(&app, &id, reference(&upload, false)?, call).await
}

pub(super) async fn put_part(
    app: &AppState,
    id: &str,
    upload: UploadRef,
    call: Call,
) -> Result<Json<UploadProgress>, ApiError> {
    let mut query = call.query()?;
    let offset = query.need("offset", int(0..=MAX_UPLOAD));
    query.finish()?;
    let guest = Guest::reach(app, &call.caller, id).await?;
    let ask = Ask::PutChunk(PutChunk { upload: Some(upload), offset, size: call.body.len() as u64 });
    match guest.with_input_again(ask, call.body).await.map_err(|error| error.with("offset"))? {
        Tell::Upload(upload) => Ok(Json(UploadProgress { received: upload.received })),
        _ => Err(from_ask(AskError::Unexpected)),
    }
}

/// Give the file its name, once all of it is there and its digest is right.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/uploads/{upload}/~commit",
    tag = "uploads",
    params(("id" = String, Path, description = "A sandbox"), ("upload" = String, Path, description = "An upload")),
    responses((status = 200, body = FileWritten))
)]
pub(super) async fn commit(
    State(app): State<AppState>,
    Path((id, upload)): Path<(String, String)>,
    call: Call,
) -> Response {
    app.answer_once(call, move |app, call| async move {
        match ended(&app, &id, &call, Ask::CommitUpload(reference(&upload, false)?)).await? {
            Tell::File(file) => Ok(Answer::json(&FileWritten { path: file.path, size: file.size })?.keep(Keep::Later)),
            _ => Err(from_ask(AskError::Unexpected)),
        }
    })
    .await
}

/// Give the upload up; nothing of it is left.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/uploads/{upload}/~abort",
    tag = "uploads",
    params(("id" = String, Path, description = "A sandbox"), ("upload" = String, Path, description = "An upload")),
    responses((status = 200, body = Empty))
)]
pub(super) async fn abort(
    State(app): State<AppState>,
    Path((id, upload)): Path<(String, String)>,
    call: Call,
) -> Response {
    app.answer_once(call, move |app, call| async move {
        match ended(&app, &id, &call, Ask::AbortUpload(reference(&upload, false)?)).await? {
            Tell::Done(_) => Ok(Answer::json(&Empty {})?.keep(Keep::Later)),
            _ => Err(from_ask(AskError::Unexpected)),
        }
    })
    .await
}

/// Ending one twice is no more than ending it: the agent remembers how it ended.
pub(super) async fn ended(app: &AppState, id: &str, call: &Call, ask: Ask) -> Result<Tell, ApiError> {
    call.no_query()?;
    call.fields()?.finish()?;
    let guest = Guest::reach(app, &call.caller, id).await?;
    guest.again(ask).await.map_err(|error| error.with("upload"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_digest_is_64_hexadecimal_digits() {
        let read = |text: &str| digest(Given { value: &Value::String(text.to_owned()), text: false });
        assert_eq!(read(&"aB".repeat(32)).unwrap(), vec![0xab; 32]);
        for wrong in ["", "ab", &"a".repeat(63), &"g".repeat(64), &"é".repeat(32), &"+f".repeat(32)] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
