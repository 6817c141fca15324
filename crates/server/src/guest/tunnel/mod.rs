//! Many connections to ports of the sandbox over one WebSocket.
//!
//! ```text
//!   kind (1 byte) | stream (u32, big-endian) | payload
//!   o open/opened   d data   e half-close   c abort/end with a reason   a credit (stream 0)
//!   l what sshd complains of   k its host key, to who asked for it
//! ```
//!
//! A connection goes to a port, or to an sshd that is started for it ([`target`]): that one lets in the key that the
//! client named and no other, and proves itself with a [`host_key`] made for it.
//!
//! One task reads the socket, one writes it ([`outbox`]), and one carries each connection ([`carrier`]). What a client
//! may have on the way is bounded by the [`credit`]: it is handed back as the sandbox's side takes bytes, and a client
//! that sends past it is cut off. Toward the client nothing is counted; its socket is the pace, behind it each
//! connection's own window. Which connection a frame is for is the business of [`streams`].

mod carrier;
mod credit;
mod host_key;
mod outbox;
mod streams;
mod target;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::response::Response;
use futures_util::StreamExt;

use super::gateway::Guest;
use super::sockets::{self, BROKEN_PROTOCOL, GOING_AWAY, NORMAL, TunnelPlace, accept, close, refuse};
use crate::call::RequestId;
use crate::error::{ApiError, Kind};
use crate::{AppState, Call};
use streams::Streams;

/// Open at one sandbox.
const MOST: usize = 64;
/// A frame's kind and stream.
const HEAD: usize = 5;

/// Open a tunnel: a WebSocket that carries connections to ports of the sandbox's own loopback, and logins over SSH. Text
/// `{"type":"ready"}` first, then binary frames.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/tunnel",
    tag = "tunnels",
    params(("id" = String, Path, description = "A sandbox")),
    responses((status = 101, description = "The connection is a WebSocket"))
)]
pub(super) async fn open(
    State(app): State<AppState>,
    Path(id): Path<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    call: Call,
) -> Response {
    accept(app.clone(), upgrade, move |socket| async move {
        let request_id = call.request_id.clone();
        match begin(&app, &id, &call).await {
            Ok((guest, place)) => run(&app, guest, place, socket, &request_id).await,
            Err(error) => refuse(socket, &error, &request_id).await,
        }
    })
}

async fn begin(app: &AppState, id: &str, call: &Call) -> Result<(Guest, TunnelPlace), ApiError> {
    call.no_query()?;
    let guest = Guest::reach(app, &call.caller, id).await?;
    let place = app.attachments().tunnel(guest.id(), MOST)?;
    Ok((guest, place))
}

async fn run(app: &AppState, guest: Guest, place: TunnelPlace, mut socket: WebSocket, request_id: &RequestId) {
    if socket.send(Message::Text(r#"{"type":"ready"}"#.into())).await.is_err() {
        return;
    }
    let stopping = app.sandboxes().stopping().clone();
    let over = sockets::over(app, guest.id());
    tokio::pin!(over);
    let (sink, mut stream) = socket.split();
    let (mut streams, outbox) = Streams::new(guest, place);
    let mut writer = tokio::spawn(outbox.write(sink));
    let ended = loop {
        let message = tokio::select! {
            biased;
            () = stopping.cancelled() => break Ended::Stopping,
            () = &mut over => break Ended::Over,
            // The socket takes nothing more.
            _ = &mut writer => return,
            () = streams.ended() => continue,
            message = stream.next() => message,
        };
        match message {
            Some(Ok(Message::Binary(frame))) => {
                if let Err(why) = streams.take(frame) {
                    break Ended::Violation(why);
                }
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Text(_))) => break Ended::Violation("a tunnel takes binary frames"),
            Some(Ok(Message::Close(_)) | Err(_)) | None => break Ended::Left,
        }
    };
    // Each carrier lets its connection go; the guest sees resets.
    streams.shut().await;
    let Ok(sink) = writer.await else { return };
    let Ok(mut socket) = stream.reunite(sink) else { return };
    match ended {
        Ended::Left => close(socket, NORMAL).await,
        Ended::Stopping | Ended::Over => close(socket, GOING_AWAY).await,
        Ended::Violation(why) => {
            let error = ApiError::new(Kind::InvalidRequest, format!("The tunnel was broken: {why}."));
            if socket.send(sockets::refusal(&error, request_id)).await.is_ok() {
                close(socket, BROKEN_PROTOCOL).await;
            }
        }
    }
}

enum Ended {
    Left,
    Stopping,
    /// The sandbox no longer runs.
    Over,
    Violation(&'static str),
}
