//! `files/content`: whole files in and out.
//!
//! A small file is read before the answer begins, so that its length and digest are those of the bytes sent. A large one
//! is passed on as it comes, as fast as the client takes it; one that changes while it is read ends the body short of
//! the announced length, which clients see and read again.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use runtime_api::file::FileWritten;
use runtime_proto::guest::{Ask, PathRef, Tell, WriteFile};
use runtime_proto::node::{AskError, GuestStream};

use super::exec::hex;
use super::files::{AS, mode};
use super::gateway::{Asked, Guest, from_ask};
use crate::call::Upload;
use crate::error::ApiError;
use crate::fields::absolute_path;
use crate::idempotency::{Answer, Keep};
use crate::{AppState, Call};

/// Files up to this size are answered with their digest.
const SMALL: usize = 1024 * 1024;
const DEFAULT_MODE: u32 = 0o644;

/// Read a file.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/files/content",
    tag = "files",
    params(("id" = String, Path, description = "A sandbox"), ("path" = String, Query, description = "A file")),
    responses((
        status = 200,
        description = "The bytes",
        content_type = "application/octet-stream",
        headers(
            ("x-content-length" = u64, description = "The size of the file"),
            ("x-content-sha256" = String, description = "Of files up to 1 MiB"),
        ),
    ))
)]
pub(super) async fn read(
    State(app): State<AppState>,
    Path(id): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let mut query = call.query()?;
    let path = query.need("path", absolute_path());
    query.finish()?;
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    let told = |error: AskError| Asked::from(error).about(&path);

    let mut stream = guest.open(Ask::ReadFile(PathRef { path: path.clone(), user: AS })).await?;
    let Tell::File(file) = stream.only().await.map_err(told)? else {
        return Err(from_ask(AskError::Unexpected));
    };
    let mut first = BytesMut::new();
    while first.len() <= SMALL {
        match stream.next().await.map_err(told)? {
            None => return Ok(small(first.freeze())),
            Some(Tell::Chunk(chunk)) => first.extend_from_slice(&chunk.data),
            Some(_) => return Err(from_ask(AskError::Unexpected)),
        }
    }
    Ok(large(guest, stream, first.freeze(), file.size, path))
}

fn small(bytes: Bytes) -> Response {
    let digest = hex(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes).as_ref());
    let length = bytes.len();
    let mut response = octets(Body::from(bytes), Some(length as u64));
    if let Ok(digest) = HeaderValue::from_str(&digest) {
        response.headers_mut().insert("x-content-sha256", digest);
    }
    response
}

struct Rest {
    /// The sandbox is in use while its file is read.
    _guest: Guest,
    stream: GuestStream,
    first: Option<Bytes>,
    /// Announced and not yet sent; `None` where the kernel tells no size (files of /proc): then to the end.
    left: Option<u64>,
    path: String,
}

impl Rest {
    /// The next bytes; never more than was announced.
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        if self.left == Some(0) {
            return None;
        }
        let mut bytes = match self.first.take() {
            Some(first) => first,
            None => match self.stream.next().await {
                Ok(Some(Tell::Chunk(chunk))) => chunk.data,
                Ok(None) if self.left.is_none() => return None,
                told => {
                    let why = match told {
                        Err(error) => error.to_string(),
                        Ok(_) => "the file ended before its size".to_owned(),
                    };
                    tracing::warn!(path = self.path, why, "reading a file ended early; its answer is cut");
                    self.left = Some(0);
                    return Some(Err(std::io::Error::other(why)));
                }
            },
        };
        if let Some(left) = &mut self.left {
            bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= bytes.len() as u64;
        }
        Some(Ok(bytes))
    }
}

fn large(guest: Guest, stream: GuestStream, first: Bytes, size: u64, path: String) -> Response {
    let announced = (size >= first.len() as u64).then_some(size);
    let rest = Rest { _guest: guest, stream, first: Some(first), left: announced, path };
    let body = futures_util::stream::unfold(rest, |mut rest| async move {
        let bytes = rest.next().await?;
        Some((bytes, rest))
    });
    octets(Body::from_stream(body), announced)
}

fn octets(body: Body, length: Option<u64>) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, length.into());
        headers.insert("x-content-length", length.into());
    }
    response
}

/// Write a whole file under its name at once; it is on the disk before the answer.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{id}/files/content",
    tag = "files",
    params(
        ("id" = String, Path, description = "A sandbox"),
        ("path" = String, Query, description = "Its parents are made under /workspace"),
        ("mode" = Option<String>, Query, description = "Three octal digits; 644 if left out"),
    ),
    request_body(content = String, content_type = "application/octet-stream", description = "At most 1,048,576 bytes"),
    responses((status = 200, body = FileWritten))
)]
pub(super) async fn write(State(app): State<AppState>, Path(id): Path<String>, Upload(call): Upload) -> Response {
    app.answer_once(call, move |app, call| async move {
        let mut query = call.query()?;
        let path = query.need("path", absolute_path());
        let mode = query.opt("mode", mode).unwrap_or(DEFAULT_MODE);
        query.finish()?;
        let guest = Guest::reach(&app, &call.caller, &id).await?;
        let size = call.body.len() as u64;
        let ask = Ask::WriteFile(WriteFile { path: path.clone(), mode, size, user: AS });
        match guest.with_input(ask, call.body.clone()).await {
            Ok(Tell::File(_)) => Ok(Answer::json(&FileWritten { path, size })?.keep(Keep::Later)),
            Ok(_) => Err(from_ask(AskError::Unexpected)),
            Err(error) => Err(error.about(&path)),
        }
    })
    .await
}
