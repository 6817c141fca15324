//! WebSockets of the contract: the upgrade goes the way of every call, the frames are bytes or JSON text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use reqwest::{StatusCode, Upgraded};
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::{Client, ClientError, Result};

/// What comes over a socket.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    Text(Value),
    Bytes(Bytes),
}

/// The half that sends.
#[derive(Debug)]
pub struct SocketSink {
    inner: SplitSink<WebSocketStream<Upgraded>, Message>,
}

/// The half that receives.
#[derive(Debug)]
pub struct SocketStream {
    inner: SplitStream<WebSocketStream<Upgraded>>,
}

fn cut(why: impl std::fmt::Display) -> ClientError {
    ClientError::local("connection_error", format!("the connection was cut: {why}"))
}

impl Client {
    /// Opens a socket and reads its first frame, which must be `ready`; a refusal is the error it says.
    pub async fn socket(&self, path: &str, query: &[(&str, String)]) -> Result<(Value, SocketSink, SocketStream)> {
        let key = STANDARD.encode(uuid::Uuid::new_v4().as_bytes());
        let mut call = self.get(path).upgrade(&key);
        for (name, value) in query {
            call = call.query(name, value);
        }
        let response = call.open_once().await?;
        let accepted = response.headers().get("sec-websocket-accept").and_then(|value| value.to_str().ok());
        if response.status() != StatusCode::SWITCHING_PROTOCOLS
            || accepted != Some(derive_accept_key(key.as_bytes()).as_str())
        {
            return Err(ClientError::local("invalid_answer", "the server did not open a WebSocket"));
        }
        let upgraded = response.upgrade().await.map_err(cut)?;
        let socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
        let (sink, stream) = socket.split();
        let (sink, mut stream) = (SocketSink { inner: sink }, SocketStream { inner: stream });
        match stream.next().await? {
            Some(Frame::Text(first)) if first["type"] == "ready" => Ok((first, sink, stream)),
            Some(Frame::Text(first)) => Err(refusal(&first)),
            Some(Frame::Bytes(_)) | None => {
                Err(ClientError::local("invalid_answer", "the server did not say that it is ready"))
            }
        }
    }
}

/// The error in an `error` frame.
#[must_use]
pub fn refusal(frame: &Value) -> ClientError {
    let error = frame.get("error").cloned().unwrap_or_default();
    let status = error.get("status").and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok());
    ClientError::from_body(status.unwrap_or(0), &error)
}

impl SocketSink {
    pub async fn bytes(&mut self, bytes: Bytes) -> Result<()> {
        self.inner.send(Message::Binary(bytes)).await.map_err(cut)
    }

    pub async fn text(&mut self, value: &Value) -> Result<()> {
        self.inner.send(Message::Text(value.to_string().into())).await.map_err(cut)
    }

    pub async fn close(&mut self) -> Result<()> {
        self.inner.send(Message::Close(None)).await.map_err(cut)
    }
}

impl SocketStream {
    /// The next frame; `None` after the other side's close. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            return match self.inner.next().await {
                Some(Ok(Message::Binary(bytes))) => Ok(Some(Frame::Bytes(bytes))),
                Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                    Ok(value) => Ok(Some(Frame::Text(value))),
                    Err(error) => Err(ClientError::local("invalid_answer", format!("a frame is not JSON: {error}"))),
                },
                Some(Ok(Message::Close(_))) | Some(Err(Error::ConnectionClosed)) => Ok(None),
                Some(Ok(_)) => continue,
                Some(Err(error)) => Err(cut(error)),
                None => Err(cut("it ended without a close")),
            };
        }
    }
}
