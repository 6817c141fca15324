//! The API, called from within: a tool is a client like another, so that what holds for a client holds for it. Limits,
//! idempotency, who may see what, waking: all of it is the routes' own, and none of it is written twice.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde_json::Value;
use tower::ServiceExt;

use crate::Caller;
use crate::call::{PublicPath, RequestId};
use crate::error::{ApiError, Kind};
use crate::http::path;
use crate::http::pipeline::{log, refusal};

/// The longest answer that is read whole. No route answers JSON anywhere near as long.
const LONGEST_ANSWER: usize = 16 * 1024 * 1024;

/// Why a call came to nothing: the error object of the API.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) Value);

impl Refusal {
    pub(super) fn code(&self) -> &str {
        self.0.get("code").and_then(Value::as_str).unwrap_or_default()
    }
}

/// The API as one caller sees it, during one request.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) router: Router,
    pub(super) caller: Caller,
    pub(super) request_id: RequestId,
}

/// One call.
pub(super) struct Ask {
    method: Method,
    path: String,
    query: String,
    body: Bytes,
    kind: &'static str,
    key: Option<String>,
    wait: u32,
}

impl Ask {
    pub(super) fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            query: String::new(),
            body: Bytes::new(),
            kind: "application/json",
            key: None,
            wait: 0,
        }
    }

    pub(super) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    pub(super) fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push(if self.query.is_empty() { '?' } else { '&' });
        self.query.push_str(&encode(name));
        self.query.push('=');
        self.query.push_str(&encode(value));
        self
    }

    pub(super) fn json(mut self, body: &Value) -> Self {
        self.body = body.to_string().into();
        self
    }

    pub(super) fn bytes(mut self, body: Bytes) -> Self {
        self.body = body;
        self.kind = "application/octet-stream";
        self
    }

    pub(super) fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    pub(super) fn wait(mut self, seconds: u32) -> Self {
        self.wait = seconds;
        self
    }
}

impl Api {
    pub(super) fn refuse(&self, error: &ApiError) -> Refusal {
        Refusal(error.to_json(&self.request_id.0))
    }

    /// The answer, once it begins.
    pub(super) async fn open(&self, ask: Ask) -> Result<Response<Body>, Refusal> {
        let route = path::to_route(&ask.path);
        let mut request = Request::builder().method(ask.method.clone()).uri(format!("{route}{}", ask.query));
        if ask.wait > 0 {
            request = request.header("prefer", format!("wait={}", ask.wait));
        }
        if let Some(key) = &ask.key {
            request = request.header("idempotency-key", key);
        }
        let request = request
            .header(CONTENT_TYPE, HeaderValue::from_static(ask.kind))
            .extension(self.caller.clone())
            .extension(self.request_id.clone())
            .extension(PublicPath(Arc::from(ask.path.as_str())))
            .body(Body::from(ask.body))
            .map_err(|_| self.refuse(&ApiError::wrong("id", "holds what no address can")))?;
        let mut response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        match refusal(&mut response) {
            None => Ok(response),
            Some(error) => {
                log(&error, &self.request_id, ask.method.as_str(), &ask.path);
                Err(self.refuse(&error))
            }
        }
    }

    /// The JSON answer, whole, and its headers.
    pub(super) async fn json(&self, ask: Ask) -> Result<Value, Refusal> {
        let response = self.open(ask).await?;
        let late = is_late(response.headers());
        let body = self.whole(response.into_body(), LONGEST_ANSWER).await?;
        let mut value: Value = serde_json::from_slice(&body)
            .map_err(|error| self.refuse(&ApiError::internal("reading the answer of a route", error)))?;
        // A late failure is the only key of its answer.
        match value.as_object_mut().filter(|object| late && object.len() == 1).and_then(|o| o.remove("error")) {
            Some(error) => Err(Refusal(error)),
            None => Ok(value),
        }
    }

    /// A body, up to a limit that is checked before each piece is kept.
    pub(super) async fn whole(&self, body: Body, limit: usize) -> Result<Bytes, Refusal> {
        let mut pieces = body.into_data_stream();
        let mut whole = BytesMut::new();
        while let Some(piece) = pieces.next().await {
            let piece =
                piece.map_err(|error| self.refuse(&ApiError::fault(Kind::GuestFailed, "reading on", &error)))?;
            if whole.len() + piece.len() > limit {
                return Err(self.refuse(&ApiError::new(Kind::FileTooLarge, "The answer is too long to be read whole.")));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }
}

fn is_late(headers: &HeaderMap) -> bool {
    headers.contains_key("runtime-late-answer")
}

/// Percent-encodes everything but letters, digits and `-._~`, so that no argument can name another path.
pub(super) fn encode(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_stays_one_part_of_a_path() {
        assert_eq!(encode("a/../b:stop?x"), "a%2F..%2Fb%3Astop%3Fx");
    }
}
