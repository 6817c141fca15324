//! The way to the client: frames as they come, and between them the credit.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use bytes::{BufMut, BytesMut};
use futures_util::SinkExt;
use futures_util::stream::SplitSink;
use tokio::sync::mpsc;

use super::HEAD;
use super::credit::Taken;

/// Credit is handed back in steps of this, and what is less after a moment.
const CREDIT_STEP: u64 = 64 * 1024;
const CREDIT_REST: Duration = Duration::from_millis(5);
/// Frames that wait for the socket.
const WAITING: usize = 16;

/// One frame, as a message.
pub(super) fn frame(kind: u8, stream: u32, payload: &[u8]) -> Message {
    let mut frame = BytesMut::with_capacity(HEAD + payload.len());
    frame.put_u8(kind);
    frame.put_u32(stream);
    frame.put_slice(payload);
    Message::Binary(frame.freeze())
}

/// What waits for the socket.
pub(super) struct Outbox {
    frames: mpsc::Receiver<Message>,
    taken: Arc<Taken>,
}

impl Outbox {
    pub(super) fn new(taken: Arc<Taken>) -> (mpsc::Sender<Message>, Self) {
        let (sender, frames) = mpsc::channel(WAITING);
        (sender, Self { frames, taken })
    }

    /// Gives the socket back once nobody sends any more, or it takes nothing more.
    pub(super) async fn write(mut self, mut sink: SplitSink<WebSocket, Message>) -> SplitSink<WebSocket, Message> {
        let mut told = 0;
        loop {
            let pending = self.taken.bytes() - told;
            let message = tokio::select! {
                biased;
                () = std::future::ready(()), if pending >= CREDIT_STEP => None,
                message = self.frames.recv() => match message {
                    Some(message) => Some(message),
                    None => return sink,
                },
                () = tokio::time::sleep(CREDIT_REST), if pending > 0 => None,
                () = self.taken.more() => continue,
            };
            let message = message.unwrap_or_else(|| {
                told = self.taken.bytes();
                frame(b'a', 0, &told.to_be_bytes())
            });
            if sink.send(message).await.is_err() {
                return sink;
            }
        }
    }
}
