//! A watch, followed: what happens to files, until the watch ends.
//!
//! A slice that ends (`continue`), and a connection that is cut, are taken up again at the cursor.

use std::time::{Duration, Instant};

use reqwest::Response;
use serde_json::Value;

use super::exec::Failing;
use super::lines::Lines;
use super::{Client, ClientError, Record, Result, path};
use crate::watch::WatchLine;

/// Silence after which a connection is taken for dead.
const SILENCE: Duration = Duration::from_secs(150);
const PAUSE: Duration = Duration::from_millis(500);

/// What a watch saw, in order.
#[derive(Debug)]
pub struct WatchStream {
    client: Client,
    route: String,
    cursor: u64,
    source: Option<(Response, Lines)>,
    failing: Failing,
    ended: bool,
}

fn watches(sandbox: &str) -> String {
    path(&["v1", "sandboxes", sandbox, "files", "watches"])
}

impl Client {
    /// `body` is the contract's.
    pub async fn start_watch(&self, sandbox: &str, body: &Value) -> Result<Record> {
        self.post(watches(sandbox), body).send().await
    }

    pub async fn stop_watch(&self, sandbox: &str, watch: &str) -> Result<Record> {
        self.delete(path(&["v1", "sandboxes", sandbox, "files", "watches", watch])).send().await
    }

    /// Follows a watch from a cursor on. Connects at the first line.
    #[must_use]
    pub fn follow_watch(&self, sandbox: &str, watch: &str, cursor: u64) -> WatchStream {
        let route = path(&["v1", "sandboxes", sandbox, "files", "watches", watch, "events"]);
        WatchStream { client: self.clone(), route, cursor, source: None, failing: Failing::default(), ended: false }
    }
}

impl WatchStream {
    /// The next line that says something; nothing after the end. Dropping the future between lines loses nothing.
    pub async fn next(&mut self) -> Result<Option<WatchLine>> {
        loop {
            if self.ended {
                return Ok(None);
            }
            let Some((response, lines)) = &mut self.source else {
                self.connect().await?;
                continue;
            };
            if let Some(line) = lines.next()? {
                if let Some(line) = self.take(line)? {
                    return Ok(Some(line));
                }
                continue;
            }
            match tokio::time::timeout(SILENCE, response.chunk()).await {
                Ok(Ok(Some(piece))) => lines.push(&piece),
                // Without a `continue`: nothing more comes.
                Ok(Ok(None)) => self.ended = true,
                Ok(Err(source)) => {
                    let error = ClientError::transport(self.client.inner.origin.as_str(), source);
                    self.cut(error)?;
                }
                Err(_) => self.cut(ClientError::local("connection_error", "the watch fell silent"))?,
            }
        }
    }

    fn cut(&mut self, error: ClientError) -> Result<()> {
        self.source = None;
        self.failing.tolerate(error, Instant::now())
    }

    async fn connect(&mut self) -> Result<()> {
        if self.failing.is_failing() {
            tokio::time::sleep(PAUSE).await;
        }
        let call = self.client.get(self.route.clone()).query("cursor", self.cursor.to_string());
        match call.query("follow", "true").accept("application/x-ndjson").open_once().await {
            Ok(response) => self.source = Some((response, Lines::default())),
            Err(error) => self.failing.tolerate(error, Instant::now())?,
        }
        Ok(())
    }

    fn take(&mut self, line: Value) -> Result<Option<WatchLine>> {
        if let Some(cursor) = line.get("cursor").and_then(Value::as_u64) {
            self.cursor = self.cursor.max(cursor);
        }
        // A later server may say more.
        let Ok(line) = serde_json::from_value::<WatchLine>(line) else { return Ok(None) };
        match line {
            WatchLine::Failure { code, message, status, hint, request_id, .. } => {
                let body = serde_json::json!({
                    "code": code, "message": message, "status": status, "hint": hint, "requestId": request_id,
                });
                self.cut(ClientError::from_body(status, &body))?;
                return Ok(None);
            }
            WatchLine::Continue { .. } => {
                self.source = None;
                self.failing = Failing::default();
                return Ok(None);
            }
            WatchLine::End { .. } => self.ended = true,
            _ => self.failing = Failing::default(),
        }
        Ok(Some(line))
    }
}
