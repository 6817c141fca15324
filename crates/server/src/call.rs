//! One request as a handler sees it: who, what, the whole body, and how long the caller would wait.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::time::Instant;

use crate::error::{ApiError, Issue, Kind};
use crate::fields::Fields;
use crate::{AppState, Caller};

/// The longest JSON body.
pub const MAX_JSON: usize = 4 * 1024 * 1024;
/// The same where a command's input travels along: a mebibyte, of which JSON may write each byte as six.
pub const MAX_JSON_WITH_INPUT: usize = 8 * 1024 * 1024;
/// The longest raw body: a file's content, a part of an upload.
pub const MAX_RAW: usize = 1024 * 1024;
/// Bytes a second of a slow client's body.
const SLOWEST: u64 = 32 * 1024;
/// Longest `Prefer: wait`.
const MAX_WAIT: u64 = 120;

/// The id of a request, in the answer's header, in an error's body and in the log.
#[derive(Debug, Clone)]
pub struct RequestId(pub Arc<str>);

/// The path as the client wrote it, before it was rewritten for the router.
#[derive(Debug, Clone)]
pub struct PublicPath(pub Arc<str>);

/// The extractor of JSON routes. Refuses a read-only key on a change.
#[derive(Debug, Clone)]
pub struct Call {
    pub request_id: RequestId,
    pub caller: Caller,
    pub method: Method,
    /// Raw, as written.
    pub path: Arc<str>,
    /// Raw, without `?`.
    pub query: String,
    /// Host and port as the client named them.
    pub host: Option<String>,
    pub idempotency_key: Option<String>,
    /// `Prefer: wait=N`, capped.
    pub wait: Option<Duration>,
    /// Whole, within the route's limit.
    pub body: Bytes,
}

/// The extractor of routes with a raw body of at most [`MAX_RAW`].
#[derive(Debug, Clone)]
pub struct Upload(pub Call);

impl Call {
    /// The JSON body's fields. Such a route takes no query: what is in one is wrong too, and told with the rest.
    pub fn fields(&self) -> Result<Fields, ApiError> {
        let mut fields = Fields::body(&self.body)?;
        for name in self.query()?.names() {
            fields.wrong(name, "is not a query parameter of this route");
        }
        Ok(fields)
    }

    /// The query's fields.
    pub fn query(&self) -> Result<Fields, ApiError> {
        Fields::query(&self.query)
    }

    /// For routes that take no query: any is a wrong field.
    pub fn no_query(&self) -> Result<(), ApiError> {
        self.query()?.finish()
    }

    async fn read(request: Request, app: &AppState, limit: usize, too_long: Kind) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let mut call = Self::head(&parts)?;
        call.caller.may(&parts.method)?;
        call.body = collect(&parts.headers, body, app, limit, too_long).await?;
        Ok(call)
    }

    fn head(parts: &Parts) -> Result<Self, ApiError> {
        let missing = |what| ApiError::internal(what, std::io::Error::other("the layer that sets it did not run"));
        let request_id = parts.extensions.get::<RequestId>().ok_or_else(|| missing("reading the request id"))?.clone();
        let caller = parts.extensions.get::<Caller>().ok_or_else(|| missing("reading the caller"))?.clone();
        let path = parts.extensions.get::<PublicPath>().ok_or_else(|| missing("reading the path"))?.0.clone();
        let mut issues = Vec::new();
        let idempotency_key = match parts.headers.get("idempotency-key").filter(|_| parts.method != Method::GET) {
            None => None,
            Some(value) => {
                let key = value.to_str().ok().filter(|key| is_idempotency_key(key));
                if key.is_none() {
                    issues.push(Issue::new(
                        "Idempotency-Key",
                        "must be 1 to 128 letters, digits or _ . : - and start with a letter or digit",
                    ));
                }
                key.map(str::to_owned)
            }
        };
        if !issues.is_empty() {
            return Err(ApiError::invalid(issues));
        }
        Ok(Self {
            request_id,
            caller,
            method: parts.method.clone(),
            path,
            query: parts.uri.query().unwrap_or_default().to_owned(),
            host: parts.headers.get("host").and_then(|value| value.to_str().ok()).map(str::to_owned),
            idempotency_key,
            wait: parts.headers.get("prefer").and_then(|value| prefer_wait(value.to_str().ok()?)),
            body: Bytes::new(),
        })
    }
}

/// A body, whole, within its limit and the time that its length may take.
pub(crate) async fn collect(
    headers: &HeaderMap,
    body: Body,
    app: &AppState,
    limit: usize,
    too_long: Kind,
) -> Result<Bytes, ApiError> {
    let refusal = || ApiError::new(too_long, format!("The body is longer than the {limit} bytes this route takes."));
    let said = headers.get("content-length").and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if said.is_some_and(|said| said > limit as u64) {
        return Err(refusal());
    }
    let length = said.unwrap_or(limit as u64);
    let whole = app.config().body_whole + Duration::from_secs(length / SLOWEST);
    let until = Instant::now() + whole;
    let mut chunks = body.into_data_stream();
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    loop {
        let silent = Instant::now() + app.config().body_timeout;
        let next = tokio::time::timeout_at(silent.min(until), chunks.next())
            .await
            .map_err(|_| ApiError::new(Kind::BodyTimeout, "The body of the request did not arrive in time."))?;
        let Some(chunk) = next else { break };
        let chunk = chunk.map_err(|_| ApiError::wrong("body", "ended before its announced length"))?;
        if first.as_ref().map_or(0, Bytes::len) + rest.len() + chunk.len() > limit {
            return Err(refusal());
        }
        match first {
            None => first = Some(chunk),
            Some(_) => rest.extend_from_slice(&chunk),
        }
    }
    Ok(match (first, rest.is_empty()) {
        (None, _) => Bytes::new(),
        (Some(only), true) => only,
        (Some(first), false) => [first, rest.freeze()].concat().into(),
    })
}

pub(crate) fn is_idempotency_key(key: &str) -> bool {
    let bytes = key.as_bytes();
    (1..=128).contains(&bytes.len())
        && bytes[0].is_ascii_alphanumeric()
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(byte))
}

/// A preference that does not read is no preference (RFC 7240).
fn prefer_wait(value: &str) -> Option<Duration> {
    let wait = value.split([',', ';']).find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"'))
    })?;
    let seconds: u64 = wait.parse().ok()?;
    Some(Duration::from_secs(seconds.min(MAX_WAIT)))
}

fn carries_input(path: &str) -> bool {
    [":exec", "/processes", ":write"].iter().any(|end| path.ends_with(end))
}

impl FromRequest<AppState> for Call {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, ApiError> {
        let path = request.extensions().get::<PublicPath>().map(|path| path.0.clone()).unwrap_or_default();
        let limit = if carries_input(&path) { MAX_JSON_WITH_INPUT } else { MAX_JSON };
        Self::read(request, app, limit, Kind::TooLarge).await
    }
}

impl FromRequest<AppState> for Upload {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, ApiError> {
        Call::read(request, app, MAX_RAW, Kind::FileTooLarge).await.map(Self)
    }
}
