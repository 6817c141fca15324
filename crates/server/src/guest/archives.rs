//! Whole folders as tar, out and in.
//!
//! Out, the body ends well only when the agent has said that it packed all; else it is cut, and no client takes it for
//! whole. In, an archive of one part goes in one request; a larger one comes in parts that the agent unpacks as they come.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use runtime_api::file::{ArchiveRequest, Empty, UploadProgress, UploadStarted};
use runtime_proto::guest::{Ask, PathRef, ReadArchive, StartArchive, Tell, UPLOAD_CHUNK, User};
use runtime_proto::node::{AskError, GuestStream};

use super::exec::{new_process_id, process_key};
use super::gateway::{Asked, Guest, from_ask};
use super::uploads::{ended, put_part, reference};
use crate::call::Upload;
use crate::error::{ApiError, Issue};
use crate::fields::{Checked, Given, absolute_path, boolean, one_of};
use crate::idempotency::{Answer, Keep};
use crate::{AppState, Call};

const MOST_EXCLUDES: usize = 1000;
const USERS: &[(&str, User)] = &[("sandbox", User::Sandbox), ("root", User::Root)];

/// One plain relative path, or a list of them.
fn excludes(given: Given<'_>) -> Checked<Vec<String>> {
    let list = match given.value {
        serde_json::Value::Array(list) => list.clone(),
        one => vec![one.clone()],
    };
    let plain = |path: &str| {
        !path.is_empty() && !path.starts_with('/') && !path.contains('\0') && !path.split('/').any(|part| part == "..")
    };
    let paths = list.iter().map(|path| path.as_str().filter(|path| plain(path)).map(str::to_owned));
    match paths.collect::<Option<Vec<_>>>() {
        Some(paths) if paths.len() <= MOST_EXCLUDES => Ok(paths),
        Some(_) => Err(vec![Issue::new("", format!("must not be more than {MOST_EXCLUDES}"))]),
        None => Err(vec![Issue::new("", "must be a relative path without \"..\"")]),
    }
}

/// Read a folder as tar, or as a gzip of it.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/files/archive",
    tag = "archives",
    params(
        ("id" = String, Path, description = "A sandbox"),
        ("path" = String, Query, description = "A directory"),
        ("gzip" = Option<bool>, Query, description = "Compressed"),
        ("user" = Option<String>, Query, description = "sandbox or root"),
        ("exclude" = Option<Vec<String>>, Query, description = "Relative paths that are left out with all below"),
    ),
    responses((status = 200, description = "The archive", content_type = "application/octet-stream"))
)]
pub(super) async fn read(
    State(app): State<AppState>,
    Path(id): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let mut query = call.query()?;
    let path = query.need("path", absolute_path());
    let gzip = query.opt("gzip", boolean).unwrap_or(false);
    let user = query.opt("user", one_of(USERS)).unwrap_or(User::Sandbox) as i32;
    let exclude = query.opt("exclude", excludes).unwrap_or_default();
    query.finish()?;
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    let mut stream = guest.open(Ask::ReadArchive(ReadArchive { path: path.clone(), gzip, user, exclude })).await?;
    let first = match stream.only().await {
        Ok(Tell::Chunk(chunk)) => chunk.data,
        Ok(_) => return Err(from_ask(AskError::Unexpected)),
        Err(error) => return Err(Asked::from(error).about(&path)),
    };
    let rest = Rest { _guest: guest, stream, first: Some(first), ended: false, path };
    let body = futures_util::stream::unfold(rest, |mut rest| async move {
        let bytes = rest.next().await?;
        Some((bytes, rest))
    });
    let mut response = Body::from_stream(body).into_response();
    let kind = if gzip { "application/gzip" } else { "application/x-tar" };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

struct Rest {
    /// The sandbox is in use while it is read.
    _guest: Guest,
    stream: GuestStream,
    first: Option<Bytes>,
    ended: bool,
    path: String,
}

impl Rest {
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        if self.ended {
            return None;
        }
        if let Some(first) = self.first.take() {
            return Some(Ok(first));
        }
        let why = match self.stream.next().await {
            Ok(Some(Tell::Chunk(chunk))) => return Some(Ok(chunk.data)),
            Ok(Some(Tell::Done(_))) => {
                self.ended = true;
                return None;
            }
            Ok(_) => "the agent did not say that it was whole".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(path = self.path, why, "reading an archive ended early; its answer is cut");
        self.ended = true;
        Some(Err(std::io::Error::other(why)))
    }
}

/// Unpack a small tar, or gzip of one, into a folder, which is made if it is missing.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{id}/files/archive",
    tag = "archives",
    params(
        ("id" = String, Path, description = "A sandbox"),
        ("path" = String, Query, description = "A directory"),
        ("user" = Option<String>, Query, description = "sandbox or root"),
    ),
    request_body(content = String, content_type = "application/octet-stream", description = "At most 1,048,576 bytes"),
    responses((status = 200, body = Empty))
)]
pub(super) async fn write(State(app): State<AppState>, Path(id): Path<String>, Upload(call): Upload) -> Response {
    app.answer_once(call, move |app, call| async move {
        let mut query = call.query()?;
        let path = query.need("path", absolute_path());
        let user = query.opt("user", one_of(USERS)).unwrap_or(User::Sandbox) as i32;
        query.finish()?;
        let guest = Guest::reach(&app, &call.caller, &id).await?;
        // Unpacked twice is as unpacked once.
        let ask = Ask::WriteArchive(PathRef { path: path.clone(), user });
        match guest.with_input_again(ask, call.body.clone()).await {
            Ok(Tell::Done(_)) => Ok(Answer::json(&Empty {})?.keep(Keep::Later)),
            Ok(_) => Err(from_ask(AskError::Unexpected)),
            Err(error) => Err(error.about(&path)),
        }
    })
    .await
}

/// Begin an archive that comes in parts, in order. It is unpacked as it comes; one that nobody sends to for ten minutes
/// is given up.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/files/archive/uploads",
    tag = "archives",
    params(("id" = String, Path, description = "A sandbox")),
    request_body = ArchiveRequest,
    responses((status = 200, body = UploadStarted))
)]
pub(super) async fn start(State(app): State<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, move |app, call| begin(app, id, call)).await
}

async fn begin(app: AppState, id: String, call: Call) -> Result<Answer, ApiError> {
    call.no_query()?;
    let mut fields = call.fields()?;
    let path = fields.need("path", absolute_path());
    // What it is shows in its first bytes.
    fields.opt("gzip", boolean);
    let user = fields.opt("user", one_of(USERS)).unwrap_or(User::Sandbox) as i32;
    fields.finish()?;
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    let upload_id = new_process_id();
    let key = process_key(&call);
    let start = StartArchive { path: path.clone(), user, key, upload_id: upload_id.clone() };
    match guest.again(Ask::StartArchive(start)).await {
        Ok(Tell::Upload(upload)) => {
            let replayed = upload.attached && upload.upload_id != upload_id;
            let started = UploadStarted { upload_id: upload.upload_id, chunk_bytes: UPLOAD_CHUNK, mode: None };
            Ok(Answer::json(&started)?.keep(Keep::Later).replays(replayed))
        }
        Ok(_) => Err(from_ask(AskError::Unexpected)),
        Err(error) => Err(error.about(&path)),
    }
}

/// Send the next part; one that was taken already is skipped.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{id}/files/archive/uploads/{upload}",
    tag = "archives",
    params(
        ("id" = String, Path, description = "A sandbox"),
        ("upload" = String, Path, description = "An upload"),
        ("offset" = u64, Query, description = "How many bytes came before it"),
    ),
    request_body(content = String, content_type = "application/octet-stream", description = "At most 1,048,576 bytes"),
    responses((status = 200, body = UploadProgress))
)]
pub(super) async fn put(
    State(app): State<AppState>,
    Path((id, upload)): Path<(String, String)>,
    Upload(call): Upload,
) -> Result<Json<UploadProgress>, ApiError> {
    put_part(&app, &id, reference(&upload, true)?, call).await
}

/// All parts are sent: answers once everything is unpacked.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/files/archive/uploads/{upload}/~commit",
    tag = "archives",
    params(("id" = String, Path, description = "A sandbox"), ("upload" = String, Path, description = "An upload")),
    responses((status = 200, body = Empty))
)]
pub(super) async fn commit(
    State(app): State<AppState>,
    Path((id, upload)): Path<(String, String)>,
    call: Call,
) -> Response {
    app.answer_once(call, move |app, call| end(app, id, upload, call, Ask::CommitUpload)).await
}

/// Give the archive up; what was unpacked of it stays.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/files/archive/uploads/{upload}/~abort",
    tag = "archives",
    params(("id" = String, Path, description = "A sandbox"), ("upload" = String, Path, description = "An upload")),
    responses((status = 200, body = Empty))
)]
pub(super) async fn abort(
    State(app): State<AppState>,
    Path((id, upload)): Path<(String, String)>,
    call: Call,
) -> Response {
    app.answer_once(call, move |app, call| end(app, id, upload, call, Ask::AbortUpload)).await
}

async fn end(
    app: AppState,
    id: String,
    upload: String,
    call: Call,
    how: fn(runtime_proto::guest::UploadRef) -> Ask,
) -> Result<Answer, ApiError> {
    match ended(&app, &id, &call, how(reference(&upload, true)?)).await? {
        Tell::Done(_) => Ok(Answer::json(&Empty {})?.keep(Keep::Later)),
        _ => Err(from_ask(AskError::Unexpected)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_left_out_is_named_by_plain_relative_paths() {
        let read = |value: serde_json::Value| excludes(Given { value: &value, text: true });
        assert_eq!(read(json!("a/b")).unwrap(), ["a/b"]);
        assert_eq!(read(json!(["a", ".git", "a..b"])).unwrap(), ["a", ".git", "a..b"]);
        for wrong in [json!(""), json!("/a"), json!("a/../b"), json!(".."), json!(["a", ""]), json!("a\0b")] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
