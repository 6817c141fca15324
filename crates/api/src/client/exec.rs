//! A command's output, followed to its end.
//!
//! The first answer streams from the start event on. When the server ends a slice of it (`continue`) or the connection
//! is cut, the output is taken up again at the byte that came last; what the guest no longer holds is reported as lost,
//! never skipped in silence. Before the start event there is nothing to take up, and the call fails.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::Response;
use serde_json::Value;

use super::lines::{Lines, bad};
use super::{Client, ClientError, Record, Result, path};

/// Silence after which a followed output is taken for dead.
const SILENCE: Duration = Duration::from_secs(180);
/// How long reconnecting may fail in a row.
const FAILING: Duration = Duration::from_secs(300);
const EMPTY_CLOSES: u32 = 4;
const NDJSON: &str = "application/x-ndjson";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ExecEvent {
    Start {
        process_id: String,
        replayed: bool,
    },
    Output {
        stream: OutputStream,
        data: Bytes,
    },
    /// Bytes that nobody can give back.
    Lost {
        bytes: u64,
    },
    Exit(Exit),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Exit {
    /// Minus the signal's number for a killed command.
    pub exit_code: Option<i64>,
    pub state: Option<String>,
    pub timed_out: bool,
    pub duration_ms: Option<u64>,
    pub out_of_memory: Option<Value>,
    pub files: Option<Value>,
}

/// The events of one command, in order.
#[derive(Debug)]
pub struct ExecStream {
    client: Client,
    sandbox: String,
    process: Option<String>,
    /// Bytes of both streams together that were handed on or reported lost.
    cursor: u64,
    source: Option<Source>,
    ready: VecDeque<ExecEvent>,
    ended: bool,
    empty_closes: u32,
    failing: Failing,
}

/// Failures in a row: how many, and since when.
#[derive(Debug, Default)]
pub(super) struct Failing {
    since: Option<Instant>,
    count: u32,
}

impl Failing {
    /// A connection that only says why it fails is one more failure and ends no row of them.
    fn heard(&mut self, line: &Value) {
        if kind(line) != Some("error") {
            *self = Self::default();
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        self.count > 0
    }

    /// A failure that may pass is forgotten for a while; any other is the caller's.
    pub(super) fn tolerate(&mut self, error: ClientError, now: Instant) -> Result<()> {
        let passes = error.code == "connection_error" || error.status == 429 || error.status >= 500;
        let since = *self.since.get_or_insert(now);
        if !passes || error.server_retryable == Some(false) || now.duration_since(since) > FAILING {
            return Err(error);
        }
        self.count += 1;
        Ok(())
    }
}

#[derive(Debug)]
struct Source {
    response: Response,
    lines: Lines,
    /// Whether this connection brought an event.
    spoke: bool,
    silence: Option<Duration>,
}

impl Source {
    fn new(response: Response, silence: Option<Duration>) -> Self {
        Self { response, lines: Lines::default(), spoke: false, silence }
    }
}

/// What reading a connection came to.
enum Read {
    Line(Value),
    Closed,
    Cut(ClientError),
}

impl Client {
    /// Starts a command. `body` is the contract's exec body; streaming is asked for here.
    pub async fn exec(&self, sandbox: &str, mut body: Value) -> Result<ExecStream> {
        if let Some(object) = body.as_object_mut() {
            object.insert("stream".into(), true.into());
        }
        let route = format!("{}:exec", path(&["v1", "sandboxes", sandbox]));
        let response = self.post(route, &body).accept(NDJSON).open().await?;
        let source = Some(Source::new(response, None));
        Ok(ExecStream { source, ..ExecStream::new(self, sandbox) })
    }

    /// Follows a process that runs, or ran, from a byte of its output on. Connects at the first event.
    #[must_use]
    pub fn follow(&self, sandbox: &str, process: &str, cursor: u64) -> ExecStream {
        ExecStream { process: Some(process.to_owned()), cursor, ..ExecStream::new(self, sandbox) }
    }

    /// Sends a signal to a process and everything it started.
    pub async fn signal(&self, sandbox: &str, process: &str, signal: &str) -> Result<Record> {
        let route = format!("{}:signal", path(&["v1", "sandboxes", sandbox, "processes", process]));
        self.post(route, &serde_json::json!({ "signal": signal })).send().await
    }
}

impl ExecStream {
    fn new(client: &Client, sandbox: &str) -> Self {
        Self {
            client: client.clone(),
            sandbox: sandbox.to_owned(),
            process: None,
            cursor: 0,
            source: None,
            ready: VecDeque::new(),
            ended: false,
            empty_closes: 0,
            failing: Failing::default(),
        }
    }

    /// Known from the start event on.
    #[must_use]
    pub fn process_id(&self) -> Option<&str> {
        self.process.as_deref()
    }

    /// The next event; nothing after the exit. Dropping the future between events loses nothing.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            let Some(source) = &mut self.source else {
                self.reconnect().await?;
                continue;
            };
            match read(source, self.client.inner.origin.as_str()).await? {
                Read::Line(line) => {
                    source.spoke = true;
                    self.empty_closes = 0;
                    self.failing.heard(&line);
                    self.take(&line)?;
                }
                Read::Closed => self.closed(source_spoke(&self.source))?,
                Read::Cut(error) => {
                    self.source = None;
                    if self.process.is_none() {
                        return Err(error);
                    }
                    self.failing.tolerate(error, Instant::now())?;
                }
            }
        }
    }

    /// A body that ends without saying why is a connection that was dropped.
    fn closed(&mut self, spoke: bool) -> Result<()> {
        self.source = None;
        if self.process.is_none() {
            return Err(dropped("the server ended the stream before the command started"));
        }
        if !spoke {
            self.empty_closes += 1;
        }
        if self.empty_closes >= EMPTY_CLOSES {
            return Err(dropped("the server keeps ending the output without a word"));
        }
        Ok(())
    }

    async fn reconnect(&mut self) -> Result<()> {
        let Some(process) = &self.process else {
            return Err(dropped("the stream was cut before the command started"));
        };
        let tries = self.failing.count + self.empty_closes;
        if tries > 0 {
            tokio::time::sleep(Duration::from_millis(50).saturating_mul(1 << tries.min(7)).min(Duration::from_secs(5)))
                .await;
        }
        let route = format!("{}/output", path(&["v1", "sandboxes", &self.sandbox, "processes", process]));
        let call =
            self.client.get(route).query("cursor", self.cursor.to_string()).query("follow", "true").accept(NDJSON);
        match call.open_once().await {
            Ok(response) => {
                self.source = Some(Source::new(response, Some(SILENCE)));
                Ok(())
            }
            Err(error) => self.failing.tolerate(error, Instant::now()),
        }
    }

    fn take(&mut self, line: &Value) -> Result<()> {
        match kind(line) {
            Some("start") => {
                let process =
                    line.get("processId").and_then(Value::as_str).ok_or_else(|| bad("a start without a process id"))?;
                let replayed = line.get("replayed").and_then(Value::as_bool).unwrap_or(false);
                self.process = Some(process.to_owned());
                self.ready.push_back(ExecEvent::Start { process_id: process.to_owned(), replayed });
            }
            Some("stdout") => self.output(OutputStream::Stdout, line)?,
            Some("stderr") => self.output(OutputStream::Stderr, line)?,
            Some("truncated") => {
                let bytes = line.get("droppedBytes").and_then(Value::as_u64).unwrap_or(0);
                let resume =
                    line.get("resumeAt").and_then(Value::as_u64).unwrap_or_else(|| self.cursor.saturating_add(bytes));
                self.cursor = self.cursor.max(resume);
                self.ready.push_back(ExecEvent::Lost { bytes });
            }
            Some("exit") => {
                self.ended = true;
                self.source = None;
                self.ready.push_back(ExecEvent::Exit(exit(line)));
            }
            Some("continue") => self.source = None,
            Some("error") => {
                self.source = None;
                let body = line.get("error").cloned().unwrap_or_default();
                let status = body.get("status").and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok());
                self.failing.tolerate(ClientError::from_body(status.unwrap_or(0), &body), Instant::now())?;
            }
            // A later server may say more.
            _ => {}
        }
        Ok(())
    }

    fn output(&mut self, stream: OutputStream, line: &Value) -> Result<()> {
        let text = line.get("data").and_then(Value::as_str).unwrap_or_default();
        let mut data = match line.get("base64").and_then(Value::as_str) {
            Some(raw) => Bytes::from(STANDARD.decode(raw).map_err(|_| bad("output that is not base64"))?),
            None => Bytes::copy_from_slice(text.as_bytes()),
        };
        let offset = line.get("offset").and_then(Value::as_u64).unwrap_or(self.cursor);
        if offset > self.cursor {
            self.ready.push_back(ExecEvent::Lost { bytes: offset - self.cursor });
        }
        let end = offset.saturating_add(data.len() as u64);
        let known = self.cursor.saturating_sub(offset).min(data.len() as u64);
        // Bytes that came before the cut come again: they were handed on.
        let data = data.split_off(usize::try_from(known).unwrap_or(usize::MAX).min(data.len()));
        self.cursor = self.cursor.max(end);
        if !data.is_empty() {
            self.ready.push_back(ExecEvent::Output { stream, data });
        }
        Ok(())
    }
}

fn kind(line: &Value) -> Option<&str> {
    line.get("type").and_then(Value::as_str)
}

fn source_spoke(source: &Option<Source>) -> bool {
    source.as_ref().is_some_and(|source| source.spoke)
}

async fn read(source: &mut Source, origin: &str) -> Result<Read> {
    loop {
        if let Some(line) = source.lines.next()? {
            return Ok(Read::Line(line));
        }
        let piece = match source.silence {
            Some(silence) => match tokio::time::timeout(silence, source.response.chunk()).await {
                Ok(piece) => piece,
                Err(_) => return Ok(Read::Cut(dropped("the output fell silent"))),
            },
            None => source.response.chunk().await,
        };
        match piece {
            Ok(Some(piece)) => source.lines.push(&piece),
            Ok(None) => return Ok(Read::Closed),
            Err(source) => return Ok(Read::Cut(ClientError::transport(origin, source))),
        }
    }
}

fn exit(line: &Value) -> Exit {
    let object = |name: &str| line.get(name).filter(|value| value.is_object()).cloned();
    Exit {
        exit_code: line.get("exitCode").and_then(Value::as_i64),
        state: line.get("state").and_then(Value::as_str).map(str::to_owned),
        timed_out: line.get("timedOut").and_then(Value::as_bool).unwrap_or(false),
        duration_ms: line.get("durationMs").and_then(Value::as_u64),
        out_of_memory: object("outOfMemory"),
        files: object("files"),
    }
}

fn dropped(message: &str) -> ClientError {
    ClientError::local("connection_error", message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Found with a server that answered each connection with an error: following it never ended.
    #[test]
    fn error_lines_are_failures_in_a_row_and_end_none() {
        let body = json!({"code": "engine_unavailable", "message": "not now", "status": 503});
        let line = json!({"type": "error", "error": body});
        let begun = Instant::now();
        let mut failing = Failing::default();
        let fail_at = |failing: &mut Failing, seconds| {
            failing.heard(&line);
            failing.tolerate(ClientError::from_body(503, &body), begun + Duration::from_secs(seconds))
        };
        for (count, seconds) in [(1, 0), (2, 150), (3, 300)] {
            fail_at(&mut failing, seconds).unwrap();
            assert_eq!((failing.since, failing.count), (Some(begun), count));
        }
        assert_eq!(fail_at(&mut failing, 301).unwrap_err().code, "engine_unavailable");
        // Anything else that is said is an end of it.
        failing.heard(&json!({"type": "heartbeat"}));
        fail_at(&mut failing, 400).unwrap();
        assert_eq!(failing.count, 1);
    }
}
