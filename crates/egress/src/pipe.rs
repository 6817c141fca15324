//! A stream of the channel as a byte pipe, and a socket that counts.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::BytesMut;
use runtime_proto::channel::{ChannelError, FLOW_STEP, Stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

use crate::ledger::Counters;

/// Bytes between the channel and the reader, each way; what is on the way beyond them is bounded by the credit.
const BETWEEN: usize = 32 * 1024;

/// The pipe, and the work that moves its bytes. The work ends when both directions have, or the stream breaks; dropped,
/// it cuts the guest's connection.
pub(crate) fn pipe(stream: Stream) -> (DuplexStream, impl Future<Output = ()> + Send) {
    let (ours, theirs) = tokio::io::duplex(BETWEEN);
    (ours, carry(stream, theirs))
}

async fn carry(mut stream: Stream, pipe: DuplexStream) {
    let (mut reader, mut writer) = tokio::io::split(pipe);
    let sender = stream.sender();
    let to_guest = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(FLOW_STEP);
            match (&mut reader).take(FLOW_STEP as u64).read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return sender.finish().await,
                Ok(_) => sender.send(buffer.split().freeze()).await?,
            }
        }
    };
    let from_guest = async {
        while let Some(message) = stream.recv().await? {
            // Where nobody reads any more, what still comes is taken and dropped, so that its sender is not held up.
            let _ = writer.write_all(&message).await;
        }
        let _ = writer.shutdown().await;
        Ok::<_, ChannelError>(())
    };
    // A broken stream has no other half worth waiting for.
    let _ = tokio::try_join!(to_guest, from_guest);
}

/// Counts what passes: written is sent by the sandbox, read is received by it.
pub(crate) struct Counted<T> {
    inner: T,
    counters: Arc<Counters>,
}

impl<T> Counted<T> {
    pub(crate) fn new(inner: T, counters: Arc<Counters>) -> Self {
        Self { inner, counters }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.counters.received.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &polled {
            self.counters.sent.fetch_add(*count as u64, Ordering::Relaxed);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
