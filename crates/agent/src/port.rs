//! The channel where it is a device, one end of a virtio port, read and written as a stream; and where it is a socket to
//! the host, which is taken anew whenever the host comes back.
//!
//! A port hands out one buffer a call, however much waits behind it. So "less than asked for" does not mean "nothing
//! left" here, as it does with pipes and sockets: it is read until it says that it would block.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use runtime_host::vsock;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(crate) struct Port(AsyncFd<OwnedFd>);

impl Port {
    /// The descriptor must not block.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "its successor is for types that may lie about their descriptor; an owned one cannot"
        )]
        AsyncFd::new(fd).map(Self)
    }
}

/// Where the host comes to.
pub(crate) struct Door(AsyncFd<OwnedFd>);

impl Door {
    /// The descriptor must not block.
    pub(crate) fn new(listener: OwnedFd) -> io::Result<Self> {
        Port::new(listener).map(|Port(listener)| Self(listener))
    }

    /// The next connection, as its two directions.
    pub(crate) async fn open(&self) -> io::Result<(Port, Port)> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(accepted) = ready.try_io(|listener| vsock::accept(listener.get_ref())) {
                let stream = accepted?;
                return Ok((Port::new(stream.try_clone()?)?, Port::new(stream)?));
            }
        }
    }
}

impl AsyncRead for Port {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            let read = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref().as_fd(), buf.initialize_unfilled())?));
            if let Ok(result) = read {
                return Poll::Ready(result.map(|count| buf.advance(count)));
            }
        }
    }
}

impl AsyncWrite for Port {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.0.poll_write_ready(cx))?;
            if let Ok(result) = ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref().as_fd(), bytes)?)) {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn whoever_comes_back_is_let_in_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("door");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let door = Door::new(listener.into()).unwrap();
        for said in ["once", "and again"] {
            let mut host = tokio::net::UnixStream::connect(&path).await.unwrap();
            let (mut reader, mut writer) = door.open().await.unwrap();
            host.write_all(said.as_bytes()).await.unwrap();
            let mut heard = vec![0; said.len()];
            reader.read_exact(&mut heard).await.unwrap();
            writer.write_all(&heard).await.unwrap();
            host.read_exact(&mut heard).await.unwrap();
            assert_eq!(heard, said.as_bytes());
            drop(host);
            assert_eq!(reader.read(&mut heard).await.unwrap(), 0, "it sees that the host has gone");
        }
    }
}
