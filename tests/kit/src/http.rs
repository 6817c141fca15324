//! HTTP/1.1 over a bare socket. A test says exactly what goes over the wire, and may stop half way.
//!
//! Every answer under `/v1` is checked against the contract's framing: a length or chunks, never 204, a request id,
//! no content encoding, no interim answer.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The server answers within two minutes whatever it does.
const PATIENCE: Duration = Duration::from_secs(125);
/// More than any test reads; an answer that never ends must not fill the machine.
const LARGEST_BODY: u64 = 256 << 20;

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// A header's value; names in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("{} with a body that is not JSON ({error}): {}", self.status, self.text()),
        }
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body[..self.body.len().min(2000)]).into_owned()
    }

    /// The code of the error envelope, or nothing.
    #[must_use]
    pub fn code(&self) -> Option<String> {
        let value: Value = serde_json::from_slice(&self.body).ok()?;
        Some(value.get("error")?.get("code")?.as_str()?.to_owned())
    }

    /// The JSON of a success.
    ///
    /// # Panics
    /// When it is a refusal, showing it.
    #[must_use]
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "refused: {} {}", self.status, self.text());
        self.json()
    }

    /// That it is this refusal, with a whole envelope.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> Value {
        let body = self.text();
        assert_eq!((self.status, self.code().as_deref()), (status, Some(code)), "{body}");
        let error = self.json()["error"].clone();
        assert_eq!(error["status"], status, "{body}");
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "no message: {body}");
        assert_eq!(error["requestId"].as_str(), self.header("x-request-id"), "request ids differ: {body}");
        error
    }
}

/// One connection.
pub struct Connection {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Connection {
    /// # Errors
    /// When nobody listens.
    pub fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, reader })
    }

    /// # Errors
    /// When the server has closed.
    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Says that nothing more comes.
    pub fn half_close(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    pub fn set_patience(&self, patience: Duration) {
        self.stream.set_read_timeout(Some(patience)).expect("set the time limit of a socket");
    }

    /// Nothing has come, neither bytes nor the end.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.stream.set_nonblocking(true).expect("look without waiting");
        let seen = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("wait again");
        seen.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Reads until the server closes: how many bytes came, however it ended (a reset is an end).
    pub fn drain(&mut self) -> std::io::Result<u64> {
        match std::io::copy(&mut (&mut self.reader).take(LARGEST_BODY), &mut std::io::sink()) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(0),
            other => other,
        }
    }

    /// The status line and headers of the next answer.
    ///
    /// # Errors
    /// When it ends or breaks the rules.
    pub fn read_head(&mut self) -> Result<(u16, Vec<(String, String)>)> {
        let status = self.line().context("read the status line")?;
        let mut words = status.split(' ');
        ensure!(words.next() == Some("HTTP/1.1"), "a status line of HTTP/1.1, not {status:?}");
        let status: u16 = words.next().unwrap_or_default().parse().with_context(|| format!("status in {status:?}"))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line().context("read a header")?;
            if line.is_empty() {
                return Ok((status, headers));
            }
            let Some((name, value)) = line.split_once(':') else { bail!("a header without a colon: {line:?}") };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// The next answer, whole.
    ///
    /// # Errors
    /// When it is cut short or breaks the rules of framing.
    pub fn read_answer(&mut self) -> Result<Answer> {
        let (status, headers) = self.read_head()?;
        let find = |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        ensure!(status >= 200 && status != 204, "status {status}: never interim, never without a body");
        ensure!(find("content-encoding").is_none(), "a content encoding that no client decodes");
        let body = match (find("content-length"), find("transfer-encoding").as_deref()) {
            (Some(length), None) => self.exactly(length.parse().with_context(|| format!("length {length:?}"))?)?,
            (None, Some("chunked")) => self.chunks()?,
            other => bail!("neither a length nor chunks: {other:?} ({status})"),
        };
        Ok(Answer { status, headers, body })
    }

    /// One chunk of a stream; nothing at its end.
    ///
    /// # Errors
    /// When it is cut short.
    pub fn read_chunk(&mut self) -> Result<Option<Vec<u8>>> {
        let line = self.line().context("read the size of a chunk")?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).with_context(|| format!("size of a chunk {line:?}"))?;
        let body = self.exactly(size)?;
        let end = self.line().context("read the end of a chunk")?;
        ensure!(end.is_empty(), "a chunk that goes on after its size: {end:?}");
        Ok((size > 0).then_some(body))
    }

    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = self.read_chunk()? {
            body.extend(chunk);
            ensure!(body.len() as u64 <= LARGEST_BODY, "an answer without end");
        }
        Ok(body)
    }

    /// So many bytes as they come.
    ///
    /// # Errors
    /// When it is cut short.
    pub fn exactly(&mut self, size: u64) -> Result<Vec<u8>> {
        ensure!(size <= LARGEST_BODY, "an answer of {size} bytes");
        let mut body = Vec::new();
        (&mut self.reader).take(size).read_to_end(&mut body).context("read the body")?;
        ensure!(body.len() as u64 == size, "{} of {size} bytes came", body.len());
        Ok(body)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        (&mut self.reader).take(64 << 10).read_until(b'\n', &mut line)?;
        ensure!(line.ends_with(b"\r\n"), "the connection ended at {:?}", String::from_utf8_lossy(&line));
        line.truncate(line.len() - 2);
        Ok(String::from_utf8(line)?)
    }
}
