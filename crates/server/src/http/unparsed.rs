//! Our envelope on the answers to what is no request.
//!
//! Bytes that do not read as a request never reach the pipeline: the HTTP library answers them itself, with a status and
//! nothing else, as the last thing on the connection. Its answer is held here until the library has said, in the same
//! turn, that it gave the connection up for that reason; then ours goes in its place. Bytes that only look like it are
//! let go at the end of the turn, untouched.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::call::RequestId;
use crate::error::{ApiError, Kind};

/// The library's answers are shorter.
const LONGEST: usize = 256;
/// How long the rest of what a client sends is read after its answer, so that no reset overtakes that.
const FAREWELL: Duration = Duration::from_secs(1);
/// The same in bytes.
const REST: usize = 2 * 1024 * 1024;

/// A connection as the HTTP library has it.
pub(super) struct Wire {
    socket: Arc<TcpStream>,
    held: Arc<Mutex<Held>>,
}

/// What may be the library's own answer. It goes before anything that is written later.
#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    /// The library is done with it, or it speaks another protocol by now: nothing is held any more.
    over: bool,
    /// To be ended once the held bytes are gone.
    end: bool,
}

/// The same connection as its owner has it.
pub(super) struct Keeper {
    socket: Arc<TcpStream>,
    held: Arc<Mutex<Held>>,
}

pub(super) fn wire(socket: TcpStream) -> (Wire, Keeper) {
    let (socket, held) = (Arc::new(socket), Arc::default());
    (Wire { socket: Arc::clone(&socket), held: Arc::clone(&held) }, Keeper { socket, held })
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The status, if these bytes may be an answer of the library's own.
fn looks_own(bytes: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(bytes.get(..LONGEST).unwrap_or(bytes)).ok()?;
    let (_, after) = text.split_once("HTTP/1.1 ").filter(|(before, _)| before.is_empty())?;
    let whole = bytes.len() <= LONGEST && text.ends_with("\r\n\r\n") && text.contains("\r\ncontent-length: 0\r\n");
    whole.then(|| after.get(..3)?.parse().ok()).flatten().filter(|status| matches!(status, 400 | 414 | 431))
}

impl Held {
    /// Writes what is held; ready when nothing is.
    fn poll_release(&mut self, socket: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.bytes.is_empty() {
            let written = ready!(poll_write(socket, cx, || socket.try_write(&self.bytes)))?;
            self.bytes.drain(..written);
        }
        if std::mem::take(&mut self.end) { Poll::Ready(end(socket)) } else { Poll::Ready(Ok(())) }
    }

    fn hold(&mut self, bytes: &[u8]) -> bool {
        let holds = !self.over && looks_own(bytes).is_some();
        if holds {
            self.bytes = bytes.to_vec();
        }
        holds
    }
}

fn poll_write(
    socket: &TcpStream,
    cx: &mut Context<'_>,
    mut write: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(socket.poll_write_ready(cx))?;
        match write() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
    }
}

fn end(socket: &TcpStream) -> io::Result<()> {
    match rustix::net::shutdown(socket, rustix::net::Shutdown::Write) {
        // The other side was quicker.
        Err(rustix::io::Errno::NOTCONN) => Ok(()),
        other => Ok(other?),
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_read_ready(cx))?;
            match self.socket.try_read(buf.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        {
            let mut held = lock(&self.held);
            ready!(held.poll_release(&self.socket, cx))?;
            if let [only] = parts
                && held.hold(only)
            {
                return Poll::Ready(Ok(only.len()));
            }
        }
        poll_write(&self.socket, cx, || self.socket.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What is held counts as gone: in this turn its owner sees to it.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut held = lock(&self.held);
        if held.bytes.is_empty() {
            return Poll::Ready(end(&self.socket));
        }
        held.end = true;
        Poll::Ready(Ok(()))
    }
}

impl Keeper {
    /// Drives the library's side of the connection; at the end of a turn nothing is held.
    pub(super) async fn drive<C>(&self, mut connection: Pin<&mut C>) -> hyper::Result<()>
    where
        C: Future<Output = hyper::Result<()>>,
    {
        poll_fn(|cx| {
            let polled = connection.as_mut().poll(cx);
            if polled.is_pending() {
                // What cannot leave now wakes this task when it can; an error shows at the library's next write.
                let _ = lock(&self.held).poll_release(&self.socket, cx);
            }
            polled
        })
        .await
    }

    /// The library is done with the connection. If it gave up over what is no request, our answer goes out.
    pub(super) async fn settle(self, ended: &hyper::Result<()>) -> io::Result<()> {
        let status = {
            let mut held = lock(&self.held);
            held.over = true;
            let status = looks_own(&held.bytes).filter(|_| ended.as_ref().is_err_and(hyper::Error::is_parse));
            if let Some(status) = status {
                held.bytes = answer(status);
                held.end = true;
            }
            status
        };
        poll_fn(|cx| lock(&self.held).poll_release(&self.socket, cx)).await?;
        if status.is_some() {
            let _ = tokio::time::timeout(FAREWELL, self.read_off()).await;
        }
        Ok(())
    }

    async fn read_off(&self) {
        let (mut piece, mut left) = (vec![0; 16 * 1024], REST);
        while self.socket.readable().await.is_ok() {
            match self.socket.try_read(&mut piece) {
                Ok(count @ 1..) if left > count => left -= count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(_) | Err(_) => return,
            }
        }
    }
}

/// As the pipeline renders a refusal, for a client of which nothing is known.
fn answer(status: u16) -> Vec<u8> {
    let id = RequestId::fresh();
    let (error, reason) = match status {
        414 => (ApiError::new(Kind::UriTooLong, "The path and its query are too long."), "URI Too Long"),
        431 => (
            ApiError::new(Kind::HeadersTooLarge, "The headers are too many or too long: at most 100, and 64 KiB."),
            "Request Header Fields Too Large",
        ),
        _ => (ApiError::new(Kind::InvalidRequest, "This is not an HTTP/1.1 request."), "Bad Request"),
    };
    let body = error.envelope(&id.0).to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\nx-request-id: {}\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}",
        error.status(),
        id.0
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::Full;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const OWN: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: Mon, 30 Nov 2026 01:46:44 GMT\r\n\r\n";

    /// A server whose every answer has this body; what a client that sends these bytes gets back until the end, or until
    /// it has heard as much as `enough`.
    async fn heard(body: &'static str, sent: &[u8], enough: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let server = tokio::spawn(async move {
            let (wire, keeper) = wire(socket);
            let service = service_fn(|_| async {
                Ok::<_, Infallible>(hyper::Response::new(Full::new(bytes::Bytes::from_static(body.as_bytes()))))
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .max_buf_size(64 * 1024)
                .serve_connection(TokioIo::new(wire), service)
                .with_upgrades();
            tokio::pin!(connection);
            let ended = keeper.drive(connection).await;
            keeper.settle(&ended).await
        });
        client.write_all(sent).await.unwrap();
        let mut got = Vec::new();
        let read = async { while got.len() < enough && client.read_buf(&mut got).await.unwrap() > 0 {} };
        tokio::time::timeout(Duration::from_secs(120), read).await.expect("it answers");
        drop(client);
        server.await.unwrap().unwrap();
        String::from_utf8(got).unwrap()
    }

    #[tokio::test]
    async fn what_is_no_request_is_answered_with_an_envelope() {
        let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(70_000));
        let wide = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(300_000));
        for (sent, status, code) in [
            ("GET / HTTP/1.1\r\nno colon\r\n\r\n", 400, "invalid_request"),
            (&long, 414, "uri_too_long"),
            (&wide, 431, "headers_too_large"),
        ] {
            let got = heard("", sent.as_bytes(), usize::MAX).await;
            let (head, body) = got.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            let error = &serde_json::from_str::<serde_json::Value>(body).unwrap()["error"];
            assert_eq!((&error["code"], &error["status"]), (&code.into(), &status.into()));
            let id = error["requestId"].as_str().unwrap();
            assert!(head.contains(&format!("\r\nx-request-id: {id}\r\n")), "{head}");
            assert!(head.contains(&format!("\r\ncontent-length: {}", body.len())), "{head}");
        }
    }

    #[tokio::test]
    async fn a_body_that_looks_like_it_is_not_touched_and_not_kept_back() {
        // Kept alive: nothing follows that would push it out.
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        let whole = heard("", request, 1).await.len() + OWN.len() + "112".len() - "0".len();
        let got = heard(OWN, request, whole).await;
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with(OWN), "{got}");
        let closing = heard(OWN, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", usize::MAX).await;
        assert!(closing.ends_with(OWN), "{closing}");
    }

    #[test]
    fn what_looks_like_an_answer_of_the_library() {
        assert_eq!(looks_own(OWN.as_bytes()), Some(400));
        for other in [
            &OWN.replace("400", "200"),
            &OWN[1..],
            &OWN[..OWN.len() - 1],
            &format!("x{OWN}"),
            &OWN.replace(": 0", ": 1"),
            "",
            "HTTP/1.1 ",
        ] {
            assert_eq!(looks_own(other.as_bytes()), None, "{other}");
        }
    }
}
