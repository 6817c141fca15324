//! The channel through Firecracker's vsock: a unix socket on which the host names the guest's port, and is told once
//! somebody listens there.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::jail::Root;
use crate::driver::{Dial, DriverError, Reader, Writer};

/// The port on which the agent listens, told to it on the kernel's command line.
pub(super) const PORT: u32 = 52;
/// A guest that boots does not listen yet; a greeting is given up a little later than this.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(5);
/// `OK`, a number of 32 bits, and the end of the line.
const ANSWER: usize = 16;

/// Where the socket is; with the jail it is reached through, if there is one.
pub(super) struct Vsock {
    pub(super) path: PathBuf,
    pub(super) jail: Option<Arc<Root>>,
}

impl Dial for Vsock {
    fn dial(&self) -> Result<(Reader, Writer), DriverError> {
        let (path, jail) = (self.path.clone(), self.jail.clone());
        let connection = async move {
            let _jail = jail;
            connect(&path).await
        };
        let (reader, writer) = tokio::io::split(Stream::Connecting(Box::pin(connection)));
        Ok((Box::new(reader), Box::new(writer)))
    }
}

async fn connect(path: &std::path::Path) -> io::Result<UnixStream> {
    let end = Instant::now() + PATIENCE;
    loop {
        let error = match tokio::time::timeout_at(end, agree(path)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
        if error.kind() == io::ErrorKind::InvalidData || Instant::now() + LOOK > end {
            return Err(error);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Asks for the port. Whoever is refused is cut off.
async fn agree(path: &std::path::Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path).await?;
    stream.write_all(format!("CONNECT {PORT}\n").as_bytes()).await?;
    let mut answer = Vec::new();
    // Byte by byte: what comes after the line is the guest's.
    while answer.last() != Some(&b'\n') {
        if answer.len() == ANSWER {
            return Err(invalid());
        }
        answer.push(stream.read_u8().await?);
    }
    let number = std::str::from_utf8(&answer).ok().and_then(|text| text.trim_end().strip_prefix("OK "));
    number.and_then(|text| text.parse::<u32>().ok()).map(|_| stream).ok_or_else(invalid)
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "Firecracker's vsock did not answer as its document says")
}

enum Stream {
    Connecting(Pin<Box<dyn Future<Output = io::Result<UnixStream>> + Send>>),
    Up(UnixStream),
}

impl Stream {
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut UnixStream>>> {
        if let Self::Connecting(connection) = self {
            *self = Self::Up(ready!(connection.as_mut().poll(cx))?);
        }
        match self {
            Self::Up(stream) => Poll::Ready(Ok(Pin::new(stream))),
            Self::Connecting(_) => Poll::Pending,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_up(cx))?.poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_up(cx))?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_up(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Connecting(_) => Poll::Ready(Ok(())),
            Self::Up(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
