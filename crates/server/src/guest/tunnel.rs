//! Many connections to ports of the sandbox over one WebSocket.
//!
//! ```text
//!   kind (1 byte) | stream (u32, big-endian) | payload
//!   o open/opened   d data   e half-close   c abort/end with a reason   a credit (stream 0)
//! ```
//!
//! One task reads the socket, one writes it, and one carries each connection. What a client may have on the way is
//! bounded by the credit: it is handed back as the sandbox's side takes bytes, and a client that sends past it is cut
//! off. Toward the client nothing is counted; its socket is the pace, behind it each connection's own window.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::SplitSink;
use futures_util::{SinkExt, StreamExt};
use runtime_proto::guest::{Ask, Connect, DATA_STEP, ErrorCode, Input, Tell, encode};
use runtime_proto::node::{AskError, GuestStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::gateway::{Asked, Guest};
use super::sockets::{self, BROKEN_PROTOCOL, ConnectionPlace, GOING_AWAY, NORMAL, TunnelPlace, accept, close, refuse};
use crate::call::RequestId;
use crate::error::{ApiError, Kind};
use crate::{AppState, Call};

/// Open at one sandbox, and connections through all of them: each may hold a channel's window in memory.
const MOST: usize = 64;
const MOST_STREAMS: usize = 512;
/// Bytes a client may have sent that nobody took yet.
const CREDIT: u64 = 1024 * 1024;
/// Credit is handed back in steps of this, and what is less after a moment.
const CREDIT_STEP: u64 = 64 * 1024;
const CREDIT_REST: Duration = Duration::from_millis(5);
/// Nothing follows an `o` sooner: clients register the connection after they read it, and drop what comes before.
const AFTER_OPEN: Duration = Duration::from_millis(25);
/// Frames that wait for the socket.
const OUTBOX: usize = 16;
const HEAD: usize = 5;
/// A target's text.
const MAX_TARGET: usize = 16 * 1024;
/// What the sandbox's own relay listens on.
const RESERVED: [u16; 3] = [10800, 10802, 10853];

/// Open a tunnel: a WebSocket that carries connections to ports of the sandbox's own loopback. Text
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
    let (out, outbox) = mpsc::channel(OUTBOX);
    let mut tunnel =
        Tunnel { guest, place, out, taken: Arc::default(), sent: 0, streams: HashMap::new(), carriers: JoinSet::new() };
    let mut writer = tokio::spawn(write(sink, outbox, tunnel.taken.clone()));
    let ended = loop {
        let message = tokio::select! {
            biased;
            () = stopping.cancelled() => break Ended::Stopping,
            () = &mut over => break Ended::Over,
            // The socket takes nothing more.
            _ = &mut writer => return,
            Some(number) = tunnel.carriers.join_next() => {
                if let Ok(number) = number {
                    tunnel.streams.remove(&number);
                }
                continue;
            }
            message = stream.next() => message,
        };
        match message {
            Some(Ok(Message::Binary(frame))) => {
                if let Err(why) = tunnel.take(frame) {
                    break Ended::Violation(why);
                }
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Text(_))) => break Ended::Violation("a tunnel takes binary frames"),
            Some(Ok(Message::Close(_)) | Err(_)) | None => break Ended::Left,
        }
    };
    // Each carrier lets its connection go; the guest sees resets.
    tunnel.carriers.shutdown().await;
    drop(tunnel);
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

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Message {
    let mut frame = BytesMut::with_capacity(HEAD + payload.len());
    frame.put_u8(kind);
    frame.put_u32(stream);
    frame.put_slice(payload);
    Message::Binary(frame.freeze())
}

/// Bytes the sandbox's side took, over all connections of a tunnel.
#[derive(Default)]
struct Taken {
    bytes: AtomicU64,
    more: Notify,
}

impl Taken {
    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::AcqRel);
        self.more.notify_one();
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }
}

/// Writes frames, and between them the credit. Gives the socket back once nobody sends any more.
async fn write(
    mut sink: SplitSink<WebSocket, Message>,
    mut outbox: mpsc::Receiver<Message>,
    taken: Arc<Taken>,
) -> SplitSink<WebSocket, Message> {
    let mut told = 0;
    loop {
        let pending = taken.bytes() - told;
        let message = tokio::select! {
            biased;
            () = std::future::ready(()), if pending >= CREDIT_STEP => None,
            message = outbox.recv() => match message {
                Some(message) => Some(message),
                None => return sink,
            },
            () = tokio::time::sleep(CREDIT_REST), if pending > 0 => None,
            () = taken.more.notified() => continue,
        };
        let message = message.unwrap_or_else(|| {
            told = taken.bytes();
            frame(b'a', 0, &told.to_be_bytes())
        });
        if sink.send(message).await.is_err() {
            return sink;
        }
    }
}

/// What a client has sent to one connection and nobody took yet: bytes, bounded by the credit, however small the frames
/// were that brought them.
struct Inbox {
    waiting: Mutex<Waiting>,
    more: Notify,
    taken: Arc<Taken>,
}

#[derive(Default)]
struct Waiting {
    bytes: BytesMut,
    /// The client has half-closed.
    ended: bool,
    /// The connection is over: nobody takes any more.
    over: bool,
}

impl Inbox {
    fn new(taken: Arc<Taken>) -> Self {
        Self { waiting: Mutex::default(), more: Notify::new(), taken }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, data: &[u8]) {
        let mut waiting = self.waiting();
        if waiting.over || waiting.ended {
            // Nobody takes it, and its credit must not be lost.
            self.taken.add(data.len());
        } else {
            waiting.bytes.extend_from_slice(data);
            self.more.notify_one();
        }
    }

    fn end(&self) {
        self.waiting().ended = true;
        self.more.notify_one();
    }

    /// The next bytes; `None` at the client's end. For one taker: what comes between its look and its wait is kept as a
    /// permit of the notifier.
    async fn next(&self) -> Option<Bytes> {
        loop {
            {
                let mut waiting = self.waiting();
                if !waiting.bytes.is_empty() {
                    let length = waiting.bytes.len().min(DATA_STEP);
                    return Some(waiting.bytes.split_to(length).freeze());
                }
                if waiting.ended {
                    return None;
                }
            }
            self.more.notified().await;
        }
    }

    fn close(&self) {
        let mut waiting = self.waiting();
        waiting.over = true;
        self.taken.add(std::mem::take(&mut waiting.bytes).len());
    }
}

struct Connection {
    inbox: Arc<Inbox>,
    abort: CancellationToken,
}

struct Tunnel {
    guest: Guest,
    place: TunnelPlace,
    out: mpsc::Sender<Message>,
    taken: Arc<Taken>,
    /// Bytes of data the client sent, whatever became of them.
    sent: u64,
    streams: HashMap<u32, Connection>,
    carriers: JoinSet<u32>,
}

impl Tunnel {
    fn take(&mut self, frame: Bytes) -> Result<(), &'static str> {
        let Some((head, _)) = frame.split_first_chunk::<HEAD>() else { return Err("a frame is too short") };
        let [kind, number @ ..] = *head;
        let number = u32::from_be_bytes(number);
        let payload = frame.slice(HEAD..);
        match kind {
            b'o' => self.connect(number, &payload),
            b'd' => self.data(number, payload),
            b'e' => {
                if let Some(connection) = self.streams.get(&number) {
                    connection.inbox.end();
                }
                Ok(())
            }
            b'c' => {
                if let Some(connection) = self.streams.get(&number) {
                    connection.abort.cancel();
                }
                Ok(())
            }
            // A kind of a newer client.
            _ => Ok(()),
        }
    }

    fn connect(&mut self, number: u32, target: &[u8]) -> Result<(), &'static str> {
        if number == 0 || self.streams.contains_key(&number) {
            return Err("a connection has the number of another");
        }
        if target.len() > MAX_TARGET {
            return Err("a target is too long");
        }
        // Refusals that the client does not take wait as well.
        if self.streams.len() >= 2 * MOST_STREAMS {
            return Err("more connections were asked for than there are answers taken");
        }
        let connection = self.place.connection(MOST_STREAMS);
        let to = match connection {
            Some(_) => port(target),
            None => Err("too many connections are open at this sandbox"),
        };
        let inbox = Arc::new(Inbox::new(self.taken.clone()));
        let abort = CancellationToken::new();
        self.streams.insert(number, Connection { inbox: inbox.clone(), abort: abort.clone() });
        let carrier = Carrier { guest: self.guest.clone(), number, _place: connection, inbox, out: self.out.clone() };
        self.carriers.spawn(async move {
            tokio::select! {
                biased;
                // The client wants nothing more of it.
                () = abort.cancelled() => {}
                () = carrier.carry(to) => {}
            }
            number
        });
        Ok(())
    }

    fn data(&mut self, number: u32, data: Bytes) -> Result<(), &'static str> {
        self.sent += data.len() as u64;
        if self.sent - self.taken.bytes() > CREDIT {
            return Err("more was sent than there is credit for");
        }
        match self.streams.get(&number) {
            Some(connection) => connection.inbox.push(&data),
            // Of a connection that has ended: nobody takes it, and its credit must not be lost.
            None => self.taken.add(data.len()),
        }
        Ok(())
    }
}

/// What a target names, or why it is not had.
fn port(target: &[u8]) -> Result<u16, &'static str> {
    let text = std::str::from_utf8(target).map_err(|_| "the target does not read")?;
    if text.starts_with("ssh ") {
        return Err("no-sshd");
    }
    let digits = text.strip_prefix("tcp ").filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|port| port.parse::<u16>().ok()) {
        None | Some(0) => Err("the target is no port"),
        Some(port) if RESERVED.contains(&port) => Err("reserved"),
        Some(port) => Ok(port),
    }
}

/// Data out of the queue and on its way; however that ends, it counts as taken.
struct Owed<'a> {
    taken: &'a Taken,
    left: usize,
}

impl Owed<'_> {
    fn pay(&mut self, bytes: usize) {
        self.left -= bytes;
        self.taken.add(bytes);
    }
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        self.taken.add(self.left);
    }
}

/// One connection, from its opening to its end.
struct Carrier {
    guest: Guest,
    number: u32,
    _place: Option<ConnectionPlace>,
    inbox: Arc<Inbox>,
    out: mpsc::Sender<Message>,
}

/// The socket is gone, or why the connection ended.
enum Broken {
    Gone,
    Because(String),
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl Carrier {
    async fn carry(self, to: Result<u16, &'static str>) {
        let reason = match to {
            Ok(port) => match self.connected(port).await {
                Ok(()) => "done".to_owned(),
                Err(Broken::Because(reason)) => reason,
                Err(Broken::Gone) => return,
            },
            Err(why) => why.to_owned(),
        };
        // To a client that is gone there is nothing to say.
        let _ = self.out.send(frame(b'c', self.number, reason.as_bytes())).await;
    }

    async fn connected(&self, port: u16) -> Result<(), Broken> {
        let ask = Ask::Connect(Connect { port: port.into() });
        let mut stream = self.guest.open(ask).await.map_err(|error| Broken::Because(error.kind().code().to_owned()))?;
        match stream.only().await {
            Ok(Tell::Done(_)) => {}
            Ok(_) => return Err(Broken::Because(AskError::Unexpected.to_string())),
            Err(error) => return Err(Broken::Because(refused(error))),
        }
        let (number, out) = (self.number, self.out.clone());
        out.send(frame(b'o', number, b"")).await.map_err(|_| Broken::Gone)?;
        let sender = stream.sender();
        let outward = async {
            tokio::time::sleep(AFTER_OPEN).await;
            send_out(&mut stream, number, &out).await
        };
        tokio::try_join!(outward, send_in(&sender, &self.inbox))?;
        Ok(())
    }
}

fn refused(error: AskError) -> String {
    let asked = Asked::from(error);
    match asked.guest_code() {
        Some(ErrorCode::ConnectionRefused) => "closed".to_owned(),
        _ => ApiError::from(asked).kind().code().to_owned(),
    }
}

async fn send_out(stream: &mut GuestStream, number: u32, out: &mpsc::Sender<Message>) -> Result<(), Broken> {
    loop {
        let (message, last) = match stream.next().await {
            Ok(Some(Tell::Chunk(chunk))) => (frame(b'd', number, &chunk.data), false),
            Ok(None) => (frame(b'e', number, b""), true),
            Ok(Some(_)) => return Err(Broken::Because(AskError::Unexpected.to_string())),
            Err(_) => return Err(Broken::Because("reset".to_owned())),
        };
        out.send(message).await.map_err(|_| Broken::Gone)?;
        if last {
            return Ok(());
        }
    }
}

async fn send_in(sender: &runtime_proto::channel::Sender, inbox: &Inbox) -> Result<(), Broken> {
    let reset = |_| Broken::Because("reset".to_owned());
    while let Some(data) = inbox.next().await {
        let mut owed = Owed { taken: &inbox.taken, left: data.len() };
        let length = data.len();
        sender.send(encode(&Input { data })).await.map_err(reset)?;
        owed.pay(length);
    }
    sender.finish().await.map_err(reset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_ports_and_nothing_else() {
        assert_eq!(port(b"tcp 80"), Ok(80));
        assert_eq!(port(b"tcp 65535"), Ok(65_535));
        for (target, why) in [
            (&b"tcp 10800"[..], "reserved"),
            (b"ssh ssh-ed25519 AAAA", "no-sshd"),
            (b"tcp 0", "the target is no port"),
            (b"tcp 65536", "the target is no port"),
            (b"tcp +1", "the target is no port"),
            (b"tcp 10.0.0.1:80", "the target is no port"),
            (b"TCP 80", "the target is no port"),
            (b"", "the target is no port"),
            (b"tcp \xff", "the target does not read"),
        ] {
            assert_eq!(port(target), Err(why));
        }
    }

    #[tokio::test]
    async fn what_a_connection_leaves_counts_as_taken_and_nothing_comes_after_its_end() {
        let taken = Arc::new(Taken::default());
        let inbox = Inbox::new(taken.clone());
        inbox.push(b"");
        inbox.push(b"one ");
        inbox.push(b"two");
        assert_eq!(inbox.next().await.unwrap(), "one two");
        inbox.push(b"three");
        inbox.end();
        inbox.push(b"late");
        assert_eq!(taken.bytes(), 4);
        assert_eq!(inbox.next().await.unwrap(), "three");
        assert_eq!(inbox.next().await, None);
        let inbox = Inbox::new(taken.clone());
        inbox.push(b"left");
        inbox.close();
        inbox.push(b"more");
        assert_eq!(taken.bytes(), 12);
        let mut owed = Owed { taken: &taken, left: 10 };
        owed.pay(4);
        drop(owed);
        assert_eq!(taken.bytes(), 22);
    }
}
