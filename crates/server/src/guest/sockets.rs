//! What terminals and tunnels share: a WebSocket is accepted first, and refusals are told on it, since clients do not
//! read the body of a refused upgrade; how many may be open at a sandbox; and how one ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::response::{IntoResponse, Response};
use runtime_model::{SandboxId, State};
use serde_json::json;

use crate::AppState;
use crate::call::RequestId;
use crate::error::{ApiError, Kind};

/// What a client sends at once, with room.
const MAX_MESSAGE: usize = 1024 * 1024;
/// How long the other side's close is waited for.
const GOODBYE: Duration = Duration::from_secs(5);
/// The same where the server stops, which must not wait for clients, or the other side broke the rules.
const HURRIED: Duration = Duration::from_millis(500);
/// Read and dropped meanwhile: what a client may have had on the way.
const LAST_BYTES: usize = 4 * 1024 * 1024;
/// Longer than any socket lives.
const LONG: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

pub(super) const NORMAL: u16 = 1000;
pub(super) const GOING_AWAY: u16 = 1001;
pub(super) const BROKEN_PROTOCOL: u16 = 1002;
pub(super) const FAULT: u16 = 1011;

/// Runs a session on an accepted socket. It is among the server's work, which a stop waits for; the session itself ends
/// when the server stops.
pub(super) fn accept<F>(
    app: AppState,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    session: impl FnOnce(WebSocket) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(_) => {
            return ApiError::new(Kind::InvalidRequest, "This path is a WebSocket; the request is no upgrade to one.")
                .into_response();
        }
    };
    if let Err(error) = app.not_draining() {
        return error.into_response();
    }
    upgrade
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .on_failed_upgrade(|error| tracing::debug!(%error, "a WebSocket did not come to be"))
        .on_upgrade(move |socket| app.tasks().track_future(session(socket)))
}

/// Completes when the sandbox is stopped or gone, or the server stops: a socket does not outlive what it is open to. A
/// pause it sits out.
pub(super) async fn over(app: &AppState, id: SandboxId) {
    if let Some(live) = app.sandboxes().get(id) {
        let ended = |state| matches!(state, State::Stopping | State::Stopped | State::Starting);
        live.wait_until(LONG, |row| ended(row.state)).await;
    }
}

/// The error as a frame; logged here, since the pipeline does not see it.
pub(super) fn refusal(error: &ApiError, id: &RequestId) -> Message {
    if let Some(cause) = error.cause() {
        tracing::warn!(request = %id.0, code = error.kind().code(), cause, "a WebSocket was refused");
    }
    let text = json!({"type": "error", "error": error.to_json(&id.0)});
    Message::Text(text.to_string().into())
}

/// Tells why, and closes.
pub(super) async fn refuse(mut socket: WebSocket, error: &ApiError, id: &RequestId) {
    if socket.send(refusal(error, id)).await.is_ok() {
        close(socket, if error.status() < 500 { NORMAL } else { FAULT }).await;
    }
}

/// Closes, and waits a moment for the other side, so that what was sent last is not lost to a reset. Who goes on sending
/// is cut off.
pub(super) async fn close(mut socket: WebSocket, code: u16) {
    let frame = CloseFrame { code, reason: "".into() };
    if socket.send(Message::Close(Some(frame))).await.is_err() {
        return;
    }
    let theirs = async {
        let mut left = LAST_BYTES;
        while let Some(Ok(message)) = socket.recv().await {
            let Some(rest) = left.checked_sub(message.into_data().len()) else { return };
            left = rest;
        }
    };
    let limit = if code == NORMAL { GOODBYE } else { HURRIED };
    let _ = tokio::time::timeout(limit, theirs).await;
}

/// What is open at each sandbox. Empty entries do not stay.
#[derive(Default)]
pub(crate) struct Attachments {
    open: Mutex<HashMap<SandboxId, Open>>,
}

#[derive(Default)]
struct Open {
    /// The process each terminal shows; none yet for one that is being opened.
    terminals: Vec<(u64, Option<String>)>,
    tunnels: usize,
    /// Of all its tunnels.
    connections: usize,
    /// Of these, those that lead to an sshd.
    logins: usize,
    next: u64,
}

/// A terminal's place, given back when it is dropped.
pub(super) struct TerminalPlace {
    all: Arc<Attachments>,
    sandbox: SandboxId,
    number: u64,
}

pub(super) struct TunnelPlace {
    all: Arc<Attachments>,
    sandbox: SandboxId,
}

/// Of a connection through a tunnel, whose place outlives it.
pub(super) struct ConnectionPlace {
    all: Arc<Attachments>,
    sandbox: SandboxId,
    login: bool,
}

impl Attachments {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tidy(open: &mut HashMap<SandboxId, Open>, sandbox: SandboxId) {
        if open.get(&sandbox).is_some_and(|open| open.terminals.is_empty() && open.tunnels + open.connections == 0) {
            open.remove(&sandbox);
        }
    }

    pub(super) fn terminal(self: &Arc<Self>, sandbox: SandboxId, most: usize) -> Result<TerminalPlace, ApiError> {
        let mut open = self.lock();
        let here = open.entry(sandbox).or_default();
        if here.terminals.len() >= most {
            return Err(too_many("terminals", most));
        }
        let number = here.next;
        here.next += 1;
        here.terminals.push((number, None));
        Ok(TerminalPlace { all: self.clone(), sandbox, number })
    }

    /// Of a connection into a sandbox. `None`: as many as may be are open at it.
    pub(super) fn connection(self: &Arc<Self>, sandbox: SandboxId, most: usize) -> Option<ConnectionPlace> {
        let mut open = self.lock();
        let here = open.entry(sandbox).or_default();
        if here.connections >= most {
            return None;
        }
        here.connections += 1;
        Some(ConnectionPlace { all: self.clone(), sandbox, login: false })
    }

    pub(super) fn tunnel(self: &Arc<Self>, sandbox: SandboxId, most: usize) -> Result<TunnelPlace, ApiError> {
        let mut open = self.lock();
        let here = open.entry(sandbox).or_default();
        if here.tunnels >= most {
            return Err(too_many("tunnels", most));
        }
        here.tunnels += 1;
        Ok(TunnelPlace { all: self.clone(), sandbox })
    }
}

fn too_many(what: &str, most: usize) -> ApiError {
    ApiError::new(Kind::RateLimited, format!("{most} {what} are open at this sandbox."))
        .hint("Close one that is not needed.")
        .retry_after(Duration::from_secs(1))
}

impl TerminalPlace {
    pub(super) fn shows(&self, process: &str) {
        if let Some(open) = self.all.lock().get_mut(&self.sandbox)
            && let Some((_, shown)) = open.terminals.iter_mut().find(|(number, _)| *number == self.number)
        {
            *shown = Some(process.to_owned());
        }
    }

    /// Whether no other terminal shows the same process.
    pub(super) fn alone_at(&self, process: &str) -> bool {
        let open = self.all.lock();
        let Some(open) = open.get(&self.sandbox) else { return true };
        !open.terminals.iter().any(|(number, shown)| *number != self.number && shown.as_deref() == Some(process))
    }
}

impl TunnelPlace {
    pub(super) fn connection(&self, most: usize) -> Option<ConnectionPlace> {
        self.all.connection(self.sandbox, most)
    }
}

impl ConnectionPlace {
    /// Counts it as a login. False: as many as may be are open at the sandbox.
    pub(super) fn logs_in(&mut self, most: usize) -> bool {
        let mut open = self.all.lock();
        let here = open.entry(self.sandbox).or_default();
        if !self.login && here.logins < most {
            here.logins += 1;
            self.login = true;
        }
        self.login
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut open = self.all.lock();
        if let Some(here) = open.get_mut(&self.sandbox) {
            here.connections = here.connections.saturating_sub(1);
            here.logins = here.logins.saturating_sub(self.login.into());
        }
        Attachments::tidy(&mut open, self.sandbox);
    }
}

impl Drop for TerminalPlace {
    fn drop(&mut self) {
        let mut open = self.all.lock();
        if let Some(here) = open.get_mut(&self.sandbox) {
            here.terminals.retain(|(number, _)| *number != self.number);
        }
        Attachments::tidy(&mut open, self.sandbox);
    }
}

impl Drop for TunnelPlace {
    fn drop(&mut self) {
        let mut open = self.all.lock();
        if let Some(here) = open.get_mut(&self.sandbox) {
            here.tunnels = here.tunnels.saturating_sub(1);
        }
        Attachments::tidy(&mut open, self.sandbox);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_for_each_sandbox_and_given_back() {
        let all = Arc::new(Attachments::default());
        let (one, other) = (SandboxId::from_bytes([1; 16]), SandboxId::from_bytes([2; 16]));
        let first = all.terminal(one, 2).unwrap();
        let second = all.terminal(one, 2).unwrap();
        assert_eq!(all.terminal(one, 2).err().map(|error| error.kind()), Some(Kind::RateLimited));
        let elsewhere = all.terminal(other, 2).unwrap();
        first.shows("p");
        assert!(first.alone_at("p"));
        second.shows("p");
        elsewhere.shows("p");
        assert!(!first.alone_at("p") && elsewhere.alone_at("p"));
        drop(second);
        assert!(first.alone_at("p"));
        let tunnel = all.tunnel(one, 1).unwrap();
        assert!(all.tunnel(one, 1).is_err());
        let mut connection = tunnel.connection(2).unwrap();
        let mut second = tunnel.connection(2).unwrap();
        assert!(tunnel.connection(2).is_none());
        assert!(second.logs_in(1) && second.logs_in(1) && !connection.logs_in(1));
        drop(second);
        assert!(connection.logs_in(1));
        drop((first, elsewhere, tunnel));
        assert_eq!(all.lock().len(), 1);
        drop(connection);
        assert!(all.lock().is_empty());
    }
}
