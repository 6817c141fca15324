//! The HTTP that Firecracker's API is spoken in: one request at a time over a unix socket, with lengths that are said
//! beforehand. Firecracker runs a guest's devices, so what it says is not trusted: everything has a limit, and every wait
//! ends.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The status line and the headers.
const HEAD: usize = 8 << 10;
const BODY: usize = 64 << 10;
const HEADERS: usize = 32;

#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error("the answer is no HTTP: {0}")]
    Invalid(&'static str),
    #[error("the answer is longer than {limit} bytes")]
    TooLong { limit: usize },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

pub(crate) struct Http(UnixStream);

impl Http {
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).map(Self)
    }

    /// Asks and waits for the answer until `limit` is over.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
        limit: Duration,
    ) -> Result<Answer, HttpError> {
        #[cfg(test)]
        let asked = body;
        let end = Instant::now() + limit;
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n");
        if let Some(body) = body {
            request += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        let mut request = (request + "\r\n").into_bytes();
        request.extend_from_slice(body.unwrap_or_default());
        self.0.set_write_timeout(Some(left(end)?))?;
        self.0.write_all(&request)?;

        let mut received = Vec::new();
        let head = loop {
            if let Some(head) = Head::parse(&received)? {
                break head;
            }
            if received.len() > HEAD {
                return Err(HttpError::TooLong { limit: HEAD });
            }
            self.read(&mut received, end)?;
        };
        while received.len() < head.bytes + head.body {
            self.read(&mut received, end)?;
        }
        // An answer that nobody asked for would be taken for the next one.
        if received.len() > head.bytes + head.body {
            return Err(HttpError::Invalid("more came than was said"));
        }
        let answer = Answer { status: head.status, body: received.split_off(head.bytes) };
        #[cfg(test)]
        record(method, path, asked, &answer);
        Ok(answer)
    }

    fn read(&mut self, to: &mut Vec<u8>, end: Instant) -> Result<(), HttpError> {
        self.0.set_read_timeout(Some(left(end)?))?;
        let mut buffer = [0; 4096];
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => {
                    to.extend_from_slice(&buffer[..count]);
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // What a socket says when its time is over.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}

fn left(end: Instant) -> Result<Duration, HttpError> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut).into()) } else { Ok(left) }
}

struct Head {
    status: u16,
    bytes: usize,
    body: usize,
}

impl Head {
    /// `None` if it is not all there yet.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, HttpError> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut answer = httparse::Response::new(&mut headers);
        let length = match answer.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(HttpError::Invalid("its head cannot be read")),
        };
        let status = answer.code.unwrap_or_default();
        if status < 200 {
            return Err(HttpError::Invalid("it is not final"));
        }
        let mut body = None;
        for header in answer.headers.iter() {
            if header.name.eq_ignore_ascii_case("transfer-encoding") {
                return Err(HttpError::Invalid("it has no length"));
            }
            if header.name.eq_ignore_ascii_case("content-length") {
                let said = std::str::from_utf8(header.value).ok().and_then(|text| text.trim().parse::<usize>().ok());
                let said = said.ok_or(HttpError::Invalid("its length is no number"))?;
                if said > BODY {
                    return Err(HttpError::TooLong { limit: BODY });
                }
                if body.is_some_and(|before| before != said) {
                    return Err(HttpError::Invalid("it has two lengths"));
                }
                body = Some(said);
            }
        }
        // "No content" has none, whatever it says.
        let body = if status == 204 { 0 } else { body.unwrap_or(0) };
        Ok(Some(Self { status, bytes: length, body }))
    }
}

#[cfg(test)]
thread_local! {
    static RECORD: std::cell::RefCell<Vec<serde_json::Value>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[cfg(test)]
fn record(method: &str, path: &str, body: Option<&[u8]>, answer: &Answer) {
    let body = body.and_then(|body| serde_json::from_slice::<serde_json::Value>(body).ok());
    let exchange = serde_json::json!({"request": format!("{method} {path}"), "body": body, "status": answer.status});
    RECORD.with_borrow_mut(|record| record.push(exchange));
}

/// What this thread has asked since the last time, and the answers.
#[cfg(test)]
pub(super) fn recorded() -> Vec<serde_json::Value> {
    RECORD.take()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Nobody lives to see it waited out.
    const LONG: Duration = Duration::from_secs(100_000);

    /// Says this to whoever connects, and returns what it was asked.
    fn told(answer: &'static [u8], limit: Duration) -> (Result<Answer, HttpError>, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = vec![0; 4096];
            let count = stream.read(&mut asked).unwrap();
            // Whoever sees through the lie may hang up before it is told whole.
            let _ = stream.write_all(answer);
            asked.truncate(count);
            (String::from_utf8(asked).unwrap(), stream)
        });
        let answer = Http::connect(&path).unwrap().ask("PUT", "/vm", Some(b"{}"), limit);
        (answer, server.join().unwrap().0)
    }

    #[test]
    fn a_request_says_its_length_and_an_answer_is_read_by_its_own() {
        let (answer, asked) = told(b"HTTP/1.1 400 \r\nServer: Firecracker API\r\nContent-Length: 4\r\n\r\n{..}", LONG);
        assert_eq!(answer.unwrap(), Answer { status: 400, body: b"{..}".to_vec() });
        assert!(asked.starts_with("PUT /vm HTTP/1.1\r\n") && asked.ends_with("\r\nContent-Length: 2\r\n\r\n{}"));
        let (answer, _) = told(b"HTTP/1.1 204 \r\nConnection: keep-alive\r\n\r\n", LONG);
        assert_eq!(answer.unwrap().status, 204);
    }

    #[test]
    fn a_server_that_lies_costs_neither_memory_nor_time() {
        let lies: [&[u8]; 7] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
            b"nonsense\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
        ];
        for lie in lies {
            assert!(told(lie, LONG).0.is_err(), "{:?}", String::from_utf8_lossy(lie));
        }
        static ENDLESS: [u8; 64 << 10] = [b'a'; 64 << 10];
        assert!(told(&ENDLESS, LONG).0.is_err());
        // What is missing is waited for, as long as was said.
        let short = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab";
        assert!(told(short, Duration::from_millis(500)).0.is_err());
    }
}
