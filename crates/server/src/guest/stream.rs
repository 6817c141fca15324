//! One reader of one process's output, as lines of JSON.
//!
//! The process lives in the sandbox and owes nothing to this reader: a client that hangs up only ends the reading. When
//! the channel to the sandbox breaks, the reader asks again from its cursor; the agent still has the output. What the
//! client does not take stays in the channel's window, and behind it in the pipe of the process.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use runtime_api::exec::{ExecEvent, ExitEvent, StreamError};
use runtime_api::process::ProcessState;
use runtime_proto::guest::{Ask, Follow, Process, Tell};
use runtime_proto::node::{AskError, GuestStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::convert;
use super::gateway::{Guest, asked_with, from_ask};
use super::output::Reader;
use crate::error::{ApiError, Kind};

/// A blank line after so long a silence tells both ends that the other lives.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// A followed output is told to go on in a new request after this time.
pub(crate) const SLICE: Duration = Duration::from_secs(105);
/// How long a broken channel is asked again before the client is told.
const PATIENCE: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_millis(200);

pub(crate) struct Follower {
    guest: Guest,
    process_id: String,
    request_id: String,
    reader: Reader,
    source: Option<GuestStream>,
    /// When to end with `continue`.
    slice_ends: Option<Instant>,
    /// The same once the server stops.
    stopping: CancellationToken,
    /// Since when nothing has come for want of a channel.
    broken_since: Option<Instant>,
    lines: BytesMut,
    ended: bool,
    at_exit: Option<AtExit>,
}

/// Told of the exit and of all bytes of output, before the client is.
type AtExit = Box<dyn FnOnce(&ExitEvent, u64) + Send>;

impl Follower {
    pub(crate) fn new(guest: Guest, process_id: String, request_id: String, cursor: u64, binary: bool) -> Self {
        Self {
            guest,
            process_id,
            request_id,
            reader: Reader::new(cursor, binary),
            source: None,
            slice_ends: None,
            stopping: CancellationToken::new(),
            broken_since: None,
            lines: BytesMut::new(),
            ended: false,
            at_exit: None,
        }
    }

    /// Ends with `continue` after so long.
    pub(crate) fn slice(mut self, length: Duration) -> Self {
        self.slice_ends = Some(Instant::now() + length);
        self
    }

    /// Ends with `continue` when the server stops.
    pub(crate) fn until(mut self, stopping: CancellationToken) -> Self {
        self.stopping = stopping;
        self
    }

    pub(crate) fn at_exit(mut self, tell: impl FnOnce(&ExitEvent, u64) + Send + 'static) -> Self {
        self.at_exit = Some(Box::new(tell));
        self
    }

    /// Adds a line before the first output.
    pub(crate) fn say(mut self, event: ExecEvent) -> Self {
        self.line(&event);
        self
    }

    /// The stream of a body. It moves only when the client takes.
    pub(crate) fn into_stream(
        self,
    ) -> impl futures_util::Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
        futures_util::stream::unfold(self, |mut follower| async move {
            let lines = follower.next().await?;
            Some((Ok(lines), follower))
        })
    }

    /// The next lines, whole; `None` after the last one.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.lines.is_empty() {
                return Some(self.lines.split().freeze());
            }
            if self.ended {
                return None;
            }
            let now = Instant::now();
            let mut wait = HEARTBEAT;
            if let Some(end) = self.slice_ends {
                wait = wait.min(end.saturating_duration_since(now));
            }
            if wait.is_zero() || self.stopping.is_cancelled() {
                let event = ExecEvent::Continue { process_id: self.process_id.clone(), cursor: self.reader.cursor() };
                self.end(&event);
                continue;
            }
            let Some(source) = &mut self.source else {
                if self.guest.is_away() {
                    self.await_return(wait).await;
                } else {
                    self.attach().await;
                }
                continue;
            };
            let next = tokio::select! {
                // What has come is told before the end.
                biased;
                next = timeout(wait, source.next()) => next,
                () = self.stopping.cancelled() => continue,
            };
            match next {
                // Silence on a channel that holds.
                Err(_silent) => {
                    self.broken_since = None;
                    self.lines.put_u8(b'\n');
                }
                Ok(told) => self.take(told).await,
            }
        }
    }

    async fn take(&mut self, told: Result<Option<Tell>, AskError>) {
        let mut pieces = Vec::new();
        match told {
            Ok(Some(Tell::Chunk(chunk))) => {
                self.broken_since = None;
                self.reader.take(chunk, &mut pieces);
            }
            Ok(Some(Tell::Lost(lost))) => {
                self.broken_since = None;
                self.reader.lost(lost, &mut pieces);
            }
            Ok(Some(Tell::Process(process))) if convert::state(&process) != ProcessState::Running => {
                self.reader.release(&mut pieces);
                for piece in pieces {
                    self.line(&piece.into());
                }
                self.exit(&process).await;
                return;
            }
            // The agent let go of this reader, or the channel broke: what was told so far stands.
            Ok(Some(Tell::Process(_)) | None) | Err(AskError::Channel(_) | AskError::Short) => self.broken(),
            Ok(Some(_)) => self.fail(from_ask(AskError::Unexpected)),
            Err(error) => self.fail(asked_with("cursor")(error)),
        }
        for piece in pieces {
            self.line(&piece.into());
        }
    }

    /// A process that stands still says nothing; whoever reads it is told so now and then, and not that it is lost.
    async fn await_return(&mut self, wait: Duration) {
        match timeout(wait, self.guest.back()).await {
            Err(_still_away) => self.lines.put_u8(b'\n'),
            Ok(Ok(())) => self.broken_since = None,
            Ok(Err(error)) => self.fail(error),
        }
    }

    async fn attach(&mut self) {
        if let Some(since) = self.broken_since {
            if since.elapsed() > PATIENCE {
                self.fail(
                    ApiError::new(Kind::HostUnavailable, "The sandbox cannot be reached now; the command goes on.")
                        .hint("Follow the output again from the cursor."),
                );
                return;
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        let ask = Ask::Follow(Follow {
            process_id: self.process_id.clone(),
            cursor: self.reader.cursor(),
            wait_ms: 0,
            once: false,
        });
        match self.guest.open(ask).await {
            Ok(source) => self.source = Some(source),
            Err(error) if error.kind() == Kind::HostUnavailable || error.kind() == Kind::GuestBusy => self.broken(),
            Err(error) => self.fail(error),
        }
    }

    fn broken(&mut self) {
        self.source = None;
        self.reader.rewind();
        self.broken_since.get_or_insert_with(Instant::now);
    }

    async fn exit(&mut self, process: &Process) {
        let files = self.guest.files_of(process).await;
        let exit = convert::exit(process, self.guest.memory_mib(), files);
        if let Some(tell) = self.at_exit.take() {
            tell(&exit, process.output_bytes);
        }
        self.end(&ExecEvent::Exit(exit));
    }

    fn fail(&mut self, error: ApiError) {
        if let Some(cause) = error.cause() {
            tracing::warn!(request = %self.request_id, process = %self.process_id, cause, "following an output failed");
        }
        let told = error.to_json(&self.request_id);
        let word = |name: &str| told[name].as_str().map(str::to_owned);
        let event = ExecEvent::Error {
            error: StreamError {
                code: error.kind().code().to_owned(),
                message: word("message").unwrap_or_default(),
                status: error.status(),
                request_id: Some(self.request_id.clone()),
                hint: word("hint"),
                retryable: told["retryable"].as_bool(),
            },
            cursor: self.reader.cursor(),
        };
        self.end(&event);
    }

    fn end(&mut self, event: &ExecEvent) {
        self.line(event);
        self.source = None;
        self.ended = true;
    }

    fn line(&mut self, event: &ExecEvent) {
        match serde_json::to_vec(event) {
            Ok(line) => {
                self.lines.put_slice(&line);
                self.lines.put_u8(b'\n');
            }
            // No event has a key that is not text; an unforeseen one ends the body, which the client takes for a cut.
            Err(error) => {
                tracing::error!(request = %self.request_id, %error, "an event could not be written as JSON");
                self.ended = true;
            }
        }
    }
}
