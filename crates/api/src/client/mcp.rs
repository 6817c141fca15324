//! Messages of the Model Context Protocol to `/mcp`, and what is answered to them.
//!
//! An answer comes as one JSON body or as a stream of events, of which the last is the answer itself. A stream that is
//! cut before it is asked for again under the same idempotency key: what the server began goes on or is found done.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use reqwest::Response;
use serde_json::Value;
use tokio::sync::mpsc::Sender;

use super::call::{chance, read_body};
use super::{Call, Client, ClientError, Result};

const BOTH: &str = "application/json, text/event-stream";
const SESSION: &str = "mcp-session-id";
/// The longest message of a server.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;
/// The server says at least that it lives, every 15 s.
const SILENCE: Duration = Duration::from_secs(90);
const RESENDS: u32 = 4;
/// On a refusal that is a message of the protocol, and to be handed on as it is.
pub(super) const PROTOCOL_ANSWER: &str = "protocol_answer";

/// A message to the server, and what its headers must repeat of it.
#[derive(Debug, Clone)]
pub struct McpMessage {
    pub body: Value,
    /// Of the protocol, once it is known.
    pub version: Option<String>,
    /// What the server gave with its answer to `initialize`.
    pub session: Option<String>,
}

impl McpMessage {
    fn text(&self, pointer: &str) -> Option<&str> {
        // A header takes no line break, and this program no guesses.
        let plain = |text: &&str| text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        self.body.pointer(pointer).and_then(Value::as_str).filter(plain)
    }

    fn is_request(&self) -> bool {
        self.body.get("method").is_some() && self.body.get("id").is_some_and(|id| !id.is_null())
    }

    fn is_answered_by(&self, message: &Value) -> bool {
        message.get("id") == self.body.get("id") && message.get("method").is_none()
    }
}

impl Client {
    /// A word that nobody has used.
    #[must_use]
    pub fn new_key() -> String {
        uuid::Uuid::new_v4().to_string()
    }

    /// Sends a message and hands on what comes back, the answer last; slowly, if it is taken slowly. Gives the session the
    /// server named, if any.
    pub async fn mcp(&self, message: &McpMessage, told: &Sender<Value>) -> Result<Option<String>> {
        let key = Self::new_key();
        let mut resent = 0;
        loop {
            let response = match self.mcp_call(message, &key).open().await {
                Ok(response) => response,
                Err(mut error) if error.code == PROTOCOL_ANSWER => {
                    hand_on(told, error.take_details()).await;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            let session = response.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
            if !message.is_request() {
                return Ok(session);
            }
            match answers(response, message, self.inner.origin.as_str(), told).await {
                Ok(()) => return Ok(session),
                Err(error) if resent < RESENDS && error.code == "connection_error" => {
                    let wait = Duration::from_millis(250).saturating_mul(1 << resent);
                    resent += 1;
                    tokio::time::sleep(wait.mul_f64(0.5 + chance())).await;
                }
                Err(error) => return Err(error.with_key(Some(&key))),
            }
        }
    }

    fn mcp_call(&self, message: &McpMessage, key: &str) -> Call<'_> {
        let mut call = self.post("/mcp", &message.body).accept(BOTH).speaks_protocol().keyed(key);
        if let Some(version) = &message.version {
            call = call.header("mcp-protocol-version", version);
            if let Some(method) = message.text("/method") {
                call = call.header("mcp-method", method);
            }
            if let Some(name) = message.text("/params/name").or_else(|| message.text("/params/uri")) {
                call = call.header("mcp-name", name);
            }
        }
        if let Some(session) = &message.session {
            call = call.header(SESSION, session);
        }
        call
    }
}

async fn answers(mut response: Response, message: &McpMessage, origin: &str, told: &Sender<Value>) -> Result<()> {
    let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("text/event-stream") {
        let body = read_body(response, MAX_MESSAGE, origin).await?;
        hand_on(told, json(&body)?).await;
        return Ok(());
    }
    let mut events = Events::default();
    loop {
        let piece = match tokio::time::timeout(SILENCE, response.chunk()).await {
            Ok(Ok(Some(piece))) => piece,
            Ok(Ok(None)) => return Err(ClientError::local("connection_error", "the answer ended before its end")),
            Ok(Err(source)) => return Err(ClientError::transport(origin, source)),
            Err(_) => return Err(ClientError::silent(origin, SILENCE.as_secs())),
        };
        events.push(&piece);
        while let Some(event) = events.next()? {
            let last = message.is_answered_by(&event);
            hand_on(told, event).await;
            if last {
                return Ok(());
            }
        }
    }
}

async fn hand_on(told: &Sender<Value>, message: Value) {
    // Nobody waits for it any more.
    let _ = told.send(message).await;
}

fn json(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes)
        .map_err(|error| ClientError::local("invalid_answer", format!("the answer is not JSON: {error}")))
}

/// The data of server-sent events, out of pieces.
#[derive(Debug, Default)]
struct Events {
    held: BytesMut,
    data: Vec<u8>,
}

impl Events {
    fn push(&mut self, piece: &Bytes) {
        self.held.extend_from_slice(piece);
    }

    fn next(&mut self) -> Result<Option<Value>> {
        while let Some(end) = self.held.iter().position(|byte| *byte == b'\n') {
            let line = self.held.split_to(end);
            self.held.advance(1);
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if line.is_empty() {
                let data = std::mem::take(&mut self.data);
                // An event without data only sets how long to wait before asking again.
                if !data.trim_ascii().is_empty() {
                    return json(&data).map(Some);
                }
            } else if let Some(data) = line.strip_prefix(b"data:") {
                if !self.data.is_empty() {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            }
            self.bounded()?;
        }
        self.bounded()?;
        Ok(None)
    }

    fn bounded(&self) -> Result<()> {
        if self.held.len().max(self.data.len()) > MAX_MESSAGE {
            return Err(ClientError::local("answer_too_large", "a message of the server is too long"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_come_out_whole_however_they_came_in() {
        let text = ": alive\n\nid: 0\nretry: 3000\ndata:\n\nevent: message\ndata: {\"a\":\ndata: \"ü\"}\r\n\r\ndata:{\"b\":1}\n\n";
        for size in 1..text.len() {
            let mut events = Events::default();
            let mut out = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                events.push(&Bytes::copy_from_slice(piece));
                while let Some(value) = events.next().expect("JSON") {
                    out.push(value);
                }
            }
            assert_eq!(out, [json!({"a": "ü"}), json!({"b": 1})], "in pieces of {size}");
        }
    }

    #[test]
    fn only_its_own_answer_ends_a_request() {
        let message = McpMessage { body: json!({"id": 1, "method": "ping"}), version: None, session: None };
        assert!(message.is_request() && message.is_answered_by(&json!({"id": 1, "result": {}})));
        assert!(!message.is_answered_by(&json!({"id": 1, "method": "elicitation/create"})));
        assert!(!message.is_answered_by(&json!({"method": "notifications/progress"})));
        let message = McpMessage { body: json!({"method": "a\nb"}), version: None, session: None };
        assert!(!message.is_request() && message.text("/method").is_none());
    }
}
