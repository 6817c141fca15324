//! The way to the client: frames as they come, and between them the credit.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::Message;
use bytes::{BufMut, BytesMut};
use futures_util::{Sink, SinkExt};
use tokio::sync::{mpsc, oneshot};

use super::HEAD;
use super::credit::Taken;

/// Credit is handed back in steps of this, and what is less after a moment.
const CREDIT_STEP: u64 = 64 * 1024;
const CREDIT_REST: Duration = Duration::from_millis(5);
/// Frames that wait for the socket.
const WAITING: usize = 16;

struct Waiting {
    message: Message,
    /// Told once the socket has the message.
    written: Option<oneshot::Sender<()>>,
}

/// The socket takes nothing more.
pub(super) struct Gone;

/// What a connection sends to the client.
#[derive(Clone)]
pub(super) struct Out(mpsc::Sender<Waiting>);

impl Out {
    /// Returns once the frame waits for the socket.
    pub(super) async fn send(&self, kind: u8, stream: u32, payload: &[u8]) -> Result<(), Gone> {
        let waiting = Waiting { message: frame(kind, stream, payload), written: None };
        self.0.send(waiting).await.map_err(|_| Gone)
    }

    /// Returns with what is told once the socket has the frame.
    pub(super) async fn tell(&self, kind: u8, stream: u32, payload: &[u8]) -> Result<oneshot::Receiver<()>, Gone> {
        let (written, told) = oneshot::channel();
        let waiting = Waiting { message: frame(kind, stream, payload), written: Some(written) };
        self.0.send(waiting).await.map_err(|_| Gone)?;
        Ok(told)
    }
}

/// One frame, as a message.
fn frame(kind: u8, stream: u32, payload: &[u8]) -> Message {
    let mut frame = BytesMut::with_capacity(HEAD + payload.len());
    frame.put_u8(kind);
    frame.put_u32(stream);
    frame.put_slice(payload);
    Message::Binary(frame.freeze())
}

/// What waits for the socket.
pub(super) struct Outbox {
    frames: mpsc::Receiver<Waiting>,
    taken: Arc<Taken>,
}

impl Outbox {
    pub(super) fn new(taken: Arc<Taken>) -> (Out, Self) {
        let (sender, frames) = mpsc::channel(WAITING);
        (Out(sender), Self { frames, taken })
    }

    /// Gives the socket back once nobody sends any more, or it takes nothing more.
    pub(super) async fn write<S: Sink<Message> + Unpin>(mut self, mut sink: S) -> S {
        let mut told = 0;
        loop {
            let pending = self.taken.bytes() - told;
            let waiting = tokio::select! {
                biased;
                () = std::future::ready(()), if pending >= CREDIT_STEP => None,
                waiting = self.frames.recv() => match waiting {
                    Some(waiting) => Some(waiting),
                    None => return sink,
                },
                () = tokio::time::sleep(CREDIT_REST), if pending > 0 => None,
                () = self.taken.more() => continue,
            };
            let Waiting { message, written } = waiting.unwrap_or_else(|| {
                told = self.taken.bytes();
                Waiting { message: frame(b'a', 0, &told.to_be_bytes()), written: None }
            });
            if sink.send(message).await.is_err() {
                return sink;
            }
            if let Some(written) = written {
                // Who asked may have ended since.
                let _ = written.send(());
            }
        }
    }
}
