//! One reader of one watch, as lines of JSON. It owes the watch nothing and the watch owes it nothing: whoever comes back
//! goes on from a cursor. While the sandbox is paused the reader waits, and does not wake it.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use runtime_api::watch::WatchLine;
use runtime_proto::guest::{Ask, FollowWatch, Tell};
use runtime_proto::node::{AskError, GuestStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::line;
use crate::error::{ApiError, Kind};
use crate::guest::gateway::{Guest, asked_with, from_ask};

/// Ends with `continue` after this time; a client gives up after 150 s of silence.
const SLICE: Duration = Duration::from_secs(110);
/// How long a broken channel is asked again before the client is told.
const PATIENCE: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_millis(200);

pub(super) struct Follower {
    guest: Guest,
    watch_id: String,
    request_id: String,
    cursor: u64,
    source: Option<GuestStream>,
    slice_ends: Instant,
    stopping: CancellationToken,
    broken_since: Option<Instant>,
    /// The client knows that the sandbox is paused.
    told_paused: bool,
    lines: BytesMut,
    ended: bool,
}

impl Follower {
    pub(super) fn new(
        guest: Guest,
        watch_id: String,
        request_id: String,
        cursor: u64,
        stopping: CancellationToken,
    ) -> Self {
        Self {
            guest,
            watch_id,
            request_id,
            cursor,
            source: None,
            slice_ends: Instant::now() + SLICE,
            stopping,
            broken_since: None,
            told_paused: false,
            lines: BytesMut::new(),
            ended: false,
        }
    }

    /// The stream of a body. It moves only when the client takes.
    pub(super) fn into_stream(
        self,
    ) -> impl futures_util::Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
        futures_util::stream::unfold(self, |mut follower| async move {
            let lines = follower.next().await?;
            Some((Ok(lines), follower))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.lines.is_empty() {
                return Some(self.lines.split().freeze());
            }
            if self.ended {
                return None;
            }
            let wait = self.slice_ends.saturating_duration_since(Instant::now());
            if wait.is_zero() || self.stopping.is_cancelled() {
                self.end(&WatchLine::Continue { cursor: self.cursor });
                continue;
            }
            if self.source.is_none() {
                if self.guest.is_away() {
                    self.await_return(wait).await;
                } else {
                    self.attach().await;
                }
                continue;
            }
            let Some(source) = &mut self.source else { continue };
            let told = tokio::select! {
                // What has come is told before the end.
                biased;
                told = timeout(wait, source.next()) => told,
                () = self.stopping.cancelled() => continue,
                // A channel to one that stands still may hold, and says nothing.
                () = self.guest.away() => {
                    self.source = None;
                    continue;
                }
            };
            if let Ok(told) = told {
                self.take(told);
            }
        }
    }

    fn take(&mut self, told: Result<Option<Tell>, AskError>) {
        match told {
            Ok(Some(Tell::WatchRecord(record))) => {
                self.broken_since = None;
                self.cursor = record.cursor;
                match line(record) {
                    Some(line @ WatchLine::End { .. }) => self.end(&line),
                    Some(line) => self.line(&line),
                    None => {}
                }
            }
            // Whoever begins after the end of a watch has nothing to hear.
            Ok(Some(Tell::Watch(_))) => {
                self.source = None;
                self.ended = true;
            }
            Ok(None) | Err(AskError::Channel(_) | AskError::Short) => self.broken(),
            Ok(Some(_)) => self.fail(from_ask(AskError::Unexpected)),
            Err(error) => self.fail(asked_with("cursor")(error)),
        }
    }

    async fn await_return(&mut self, wait: Duration) {
        if !self.told_paused {
            self.told_paused = true;
            self.line(&WatchLine::Paused { cursor: self.cursor });
            return;
        }
        let back = tokio::select! {
            back = timeout(wait, self.guest.back()) => back,
            () = self.stopping.cancelled() => return,
        };
        match back {
            Err(_still_away) => {}
            Ok(Ok(())) => (self.told_paused, self.broken_since) = (false, None),
            Ok(Err(error)) => self.fail(error),
        }
    }

    async fn attach(&mut self) {
        if let Some(since) = self.broken_since {
            if since.elapsed() > PATIENCE {
                self.fail(
                    ApiError::new(Kind::HostUnavailable, "The sandbox cannot be reached now; the watch goes on.")
                        .hint("Follow it again from the cursor."),
                );
                return;
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        let ask = FollowWatch { watch_id: self.watch_id.clone(), cursor: self.cursor, wait_ms: 0, once: false };
        match self.guest.open(Ask::FollowWatch(ask)).await {
            Ok(source) => self.source = Some(source),
            Err(_) if self.guest.is_away() => {}
            Err(error) if matches!(error.kind(), Kind::HostUnavailable | Kind::GuestBusy) => self.broken(),
            Err(error) => self.fail(error),
        }
    }

    fn broken(&mut self) {
        self.source = None;
        self.broken_since.get_or_insert_with(Instant::now);
    }

    fn fail(&mut self, error: ApiError) {
        if let Some(cause) = error.cause() {
            tracing::warn!(request = %self.request_id, watch = %self.watch_id, cause, "following a watch failed");
        }
        let told = error.to_json(&self.request_id);
        let word = |name: &str| told[name].as_str().map(str::to_owned);
        self.end(&WatchLine::Failure {
            code: error.kind().code().to_owned(),
            message: word("message").unwrap_or_default(),
            status: error.status(),
            hint: word("hint"),
            request_id: self.request_id.clone(),
            cursor: self.cursor,
        });
    }

    fn end(&mut self, line: &WatchLine) {
        self.line(line);
        self.source = None;
        self.ended = true;
    }

    fn line(&mut self, line: &WatchLine) {
        match serde_json::to_vec(line) {
            Ok(line) => {
                self.lines.put_slice(&line);
                self.lines.put_u8(b'\n');
            }
            // No line has a key that is not text; an unforeseen one ends the body, which the client takes for a cut.
            Err(error) => {
                tracing::error!(request = %self.request_id, %error, "a line could not be written as JSON");
                self.ended = true;
            }
        }
    }
}
