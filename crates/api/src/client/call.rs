//! One call: what to send, and how it is sent until it is answered.

use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Method, Response};
use serde_json::Value;

use super::retry::{Retry, Verdict};
use super::{Client, ClientError, DEFAULT_DEADLINE, Record, Result, encode};

/// An answer that has not begun by then is not coming: the call is sent again with the same key.
const ANSWER_STARTS_WITHIN: Duration = Duration::from_secs(125);
/// The largest body read into memory; file bytes are not.
const MAX_BODY: usize = 64 * 1024 * 1024;
/// The most of a refusal's body that is worth reading.
const MAX_ERROR_BODY: usize = 1024 * 1024;
const LATE: &str = "runtime-late-answer";

/// A call being put together. Sending consumes it; all its attempts carry one idempotency key.
#[derive(Debug)]
#[must_use = "a call does nothing until it is sent"]
pub struct Call<'a> {
    client: &'a Client,
    method: Method,
    path: String,
    query: String,
    body: Option<(&'static str, Bytes)>,
    accept: &'static str,
    prefer_wait: Option<u32>,
    room: Duration,
    deadline: Duration,
    key: Option<String>,
    /// The key of an upgrade to a WebSocket.
    upgrade: Option<String>,
    headers: Vec<(&'static str, String)>,
    /// A refusal may be a message of another protocol.
    speaks_protocol: bool,
}

impl<'a> Call<'a> {
    pub(super) fn new(client: &'a Client, method: Method, path: String) -> Self {
        let key = (method != Method::GET).then(|| uuid::Uuid::new_v4().to_string());
        Self {
            client,
            method,
            path,
            query: String::new(),
            body: None,
            accept: "application/json",
            prefer_wait: None,
            room: Duration::ZERO,
            deadline: DEFAULT_DEADLINE,
            key,
            upgrade: None,
            headers: Vec::new(),
            speaks_protocol: false,
        }
    }

    pub(super) fn json(mut self, body: &Value) -> Self {
        self.body = Some(("application/json", body.to_string().into()));
        self
    }

    pub(super) fn bytes(mut self, bytes: Bytes) -> Self {
        self.body = Some(("application/octet-stream", bytes));
        self
    }

    pub(super) fn upgrade(mut self, key: &str) -> Self {
        self.upgrade = Some(key.to_owned());
        self
    }

    pub(super) fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// Under this idempotency key, which an earlier call may have had.
    pub fn keyed(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    pub(super) fn speaks_protocol(mut self) -> Self {
        self.speaks_protocol = true;
        self
    }

    pub fn query(mut self, name: &str, value: impl AsRef<str>) -> Self {
        self.query.push(if self.query.is_empty() { '?' } else { '&' });
        self.query.push_str(&encode(name));
        self.query.push('=');
        self.query.push_str(&encode(value.as_ref()));
        self
    }

    /// Asks the server to hold the answer until the change has settled.
    pub fn prefer_wait(mut self, seconds: u32) -> Self {
        self.prefer_wait = Some(seconds);
        self
    }

    /// How long to wait for room when there is none.
    pub fn wait_for_room(mut self, room: Duration) -> Self {
        self.room = room;
        self
    }

    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sends it until it is answered, and reads the answer.
    pub async fn send(self) -> Result<Record> {
        let mut retry = Retry::new(self.deadline, self.room);
        let began = Instant::now();
        loop {
            let left = retry.deadline().saturating_sub(began.elapsed());
            let attempt = async { read_json(self.client, self.attempt().await?).await };
            let error = match tokio::time::timeout(left, attempt).await {
                Ok(Ok(value)) => return Ok(Record(value)),
                Ok(Err(error)) => error,
                Err(_) => return Err(self.out_of_time()),
            };
            self.pause_or_fail(&mut retry, error, began).await?;
        }
    }

    /// Sends it until an answer begins, and hands that over: the body may be long.
    pub(super) async fn open(self) -> Result<Response> {
        let mut retry = Retry::new(self.deadline, self.room);
        let began = Instant::now();
        loop {
            let left = retry.deadline().saturating_sub(began.elapsed());
            let error = match tokio::time::timeout(left, self.attempt()).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => error,
                Err(_) => return Err(self.out_of_time()),
            };
            self.pause_or_fail(&mut retry, error, began).await?;
        }
    }

    /// Sends it once: for callers that have their own rules for trying again, or do not care.
    pub async fn send_once(self, within: Duration) -> Result<Record> {
        let attempt = async { read_json(self.client, self.attempt().await?).await };
        match tokio::time::timeout(within, attempt).await {
            Ok(answer) => answer.map(Record),
            Err(_) => Err(self.out_of_time()),
        }
    }

    pub(super) async fn open_once(self) -> Result<Response> {
        self.attempt().await
    }

    fn out_of_time(&self) -> ClientError {
        let message = format!("{} {} was not answered in time", self.method, self.path);
        ClientError::local("request_timeout", message).with_key(self.key.as_deref())
    }

    async fn pause_or_fail(&self, retry: &mut Retry, error: ClientError, began: Instant) -> Result<()> {
        let delay = match retry.decide(&error, began.elapsed(), chance()) {
            Verdict::Again(delay) => delay,
            Verdict::WaitForRoom(delay) => {
                if let Some(tell) = &self.client.inner.on_room_wait {
                    tell(&error, delay);
                }
                delay
            }
            Verdict::GiveUp => return Err(error.with_key(self.key.as_deref())),
        };
        tokio::time::sleep(delay).await;
        Ok(())
    }

    async fn attempt(&self) -> Result<Response> {
        let client = &self.client.inner;
        let url = format!("{}{}{}", client.origin.as_str(), self.path, self.query);
        let mut request = client
            .http
            .request(self.method.clone(), url)
            .header("accept", self.accept)
            .header("user-agent", &client.caller)
            .header("x-runtime-client", &client.caller);
        if let Some(key) = &client.key {
            request = request.bearer_auth(key);
        }
        if let Some(key) = &self.key {
            request = request.header("idempotency-key", key);
        }
        if let Some(seconds) = self.prefer_wait {
            request = request.header("prefer", format!("wait={seconds}"));
        }
        if let Some(key) = &self.upgrade {
            request = request.header("connection", "Upgrade").header("upgrade", "websocket");
            request = request.header("sec-websocket-version", "13").header("sec-websocket-key", key);
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        if let Some((kind, bytes)) = &self.body {
            request = request.header("content-type", *kind).body(bytes.clone());
        }
        let origin = client.origin.as_str();
        let response = match tokio::time::timeout(ANSWER_STARTS_WITHIN, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(source)) => return Err(ClientError::transport(origin, source)),
            Err(_) => return Err(ClientError::silent(origin, ANSWER_STARTS_WITHIN.as_secs())),
        };
        let switched = self.upgrade.is_some() && response.status() == reqwest::StatusCode::SWITCHING_PROTOCOLS;
        if response.status().is_success() || switched {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let named = retry_after_ms(response.headers());
        // A refusal whose body is cut is still that refusal.
        let body = read_body(response, MAX_ERROR_BODY, origin).await.unwrap_or_default();
        if self.speaks_protocol
            && let Ok(message) = serde_json::from_slice::<Value>(&body)
            && message.get("jsonrpc").is_some()
        {
            return Err(ClientError::protocol_answer(message));
        }
        Err(ClientError::answered(status, named, &body))
    }
}

async fn read_json(client: &Client, response: Response) -> Result<Value> {
    let late = response.headers().get(LATE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    let body = read_body(response, MAX_BODY, client.inner.origin.as_str()).await?;
    let value = match serde_json::from_slice::<Value>(&body) {
        Ok(value) => value,
        Err(_) if late => return Err(ClientError::answered(502, None, &body).mark_late()),
        Err(_) if body.is_empty() => Value::Object(serde_json::Map::new()),
        Err(error) => {
            let message = format!("{} answered with something that is not JSON: {error}", client.inner.origin.as_str());
            return Err(ClientError::local("invalid_answer", message)
                .with_hint("RUNTIME_API_URL may name another program's address."));
        }
    };
    match late_failure(late, &value) {
        Some(error) => Err(error),
        None => Ok(value),
    }
}

/// A late answer's failure: `error` alone, with the status it would have had.
fn late_failure(late: bool, value: &Value) -> Option<ClientError> {
    let object = value.as_object().filter(|object| late && object.len() == 1)?;
    let error = object.get("error").filter(|error| error.is_object())?;
    let status =
        error.get("status").and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok()).unwrap_or(500);
    Some(ClientError::from_body(status, error).mark_late())
}

/// Reads a body up to a limit that is checked before each piece is kept.
pub(super) async fn read_body(mut response: Response, limit: usize, origin: &str) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|source| ClientError::transport(origin, source))? {
        if body.len() + piece.len() > limit {
            let message = format!("the answer of {origin} is larger than {} MiB", limit / (1024 * 1024));
            return Err(ClientError::local("answer_too_large", message));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

fn retry_after_ms(headers: &HeaderMap) -> Option<u64> {
    let seconds: f64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    // A float that is negative, endless or not a number says nothing.
    (seconds.is_finite() && seconds >= 0.0).then_some((seconds * 1000.0) as u64)
}

/// Something in `0.0..1.0`, good enough to keep clients apart.
pub(super) fn chance() -> f64 {
    f64::from(uuid::Uuid::new_v4().as_fields().0) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_in_seconds_may_have_a_fraction_and_nothing_else() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().expect("a header value"));
            retry_after_ms(&headers)
        };
        assert_eq!(read("2"), Some(2000));
        assert_eq!(read("0.25"), Some(250));
        for odd in ["-1", "NaN", "inf", "Wed, 21 Oct 2026 07:28:00 GMT", ""] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
