//! Many streams over one byte pipe, with credit per stream, so that one busy stream cannot hold up the others.
//!
//! Both ends run [`serve`] after the handshake. Either side may open a stream; the opener's first message is exempt from
//! credit and may be long (cut into several frames), every later message fits one frame and uses credit. A receiver
//! gives credit back as its owner takes messages, so what waits in memory is at most [`WINDOW`] bytes per stream, and
//! [`FLOW_WINDOW`] on those that the agent opened.
//!
//! A stream that is dropped resets its peer. When the pipe ends, every stream ends with [`ChannelError::Closed`]: the
//! owner re-attaches and asks again, since the agent holds the state.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::frame::{self, Decoded, FLAG_MORE, Frame, Kind, MAX_PAYLOAD};

/// Bytes a sender may have on the way, per stream and direction.
pub const WINDOW: usize = 256 * 1024;
/// The same on streams that the agent opened: there may be many, and each is one connection of a guest.
pub const FLOW_WINDOW: usize = 64 * 1024;
/// The longest message on such a stream.
pub const FLOW_STEP: usize = 16 * 1024;
/// Credit is handed back in pieces of at least this part of the window.
const CREDIT_PART: usize = 4;
/// What a message costs beside its bytes: without it, empty messages would be free and could pile up without end.
const MESSAGE_COST: usize = 64;
/// Frames waiting for the pipe.
const OUTBOX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    #[error("the channel to the sandbox closed")]
    Closed,
    #[error("the peer reset the stream")]
    Reset,
    #[error("a message of {0} bytes is over the limit")]
    TooLong(usize),
    #[error("too many streams are open in this sandbox")]
    TooMany,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Host,
    Agent,
}

#[derive(Debug, Clone)]
pub struct Config {
    pub side: Side,
    pub epoch: u32,
    /// The longest first message accepted from the peer, in bytes.
    pub max_open: usize,
    /// Streams that may be open in all.
    pub max_streams: usize,
    /// Of these, streams that the agent may have opened: the rest stays for the host, whatever a guest does.
    pub max_flows: usize,
    /// Streams of the peer that may wait to be taken; with none, each is refused at its first frame.
    pub max_incoming: usize,
}

/// Why [`serve`] returned. The reader is handed back with what was read past the end.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// End of file or an error of the pipe.
    Closed,
    /// Padding: a new host is about to say hello.
    NewHello,
    /// The peer broke the protocol.
    Violation(&'static str),
}

#[derive(Debug)]
enum Inbound {
    Message(Bytes),
    End,
    Reset,
}

struct StreamState {
    /// Not bounded by itself: the credit that `unread` counts is the bound.
    inbox: mpsc::UnboundedSender<Inbound>,
    ended: bool,
    /// What the peer may still send before we give credit.
    unread: Arc<Mutex<usize>>,
    credit: Arc<Semaphore>,
}

struct Shared {
    streams: Mutex<Table>,
    outbox: mpsc::Sender<Frame>,
    config: Config,
}

struct Table {
    open: HashMap<u32, StreamState>,
    /// Of those, how many the agent opened.
    flows: usize,
    next: u32,
    closed: bool,
}

impl Table {
    fn has_room(&self, id: u32, config: &Config) -> bool {
        self.open.len() < config.max_streams && !(is_flow(id) && self.flows >= config.max_flows)
    }

    fn insert(&mut self, id: u32, state: StreamState) {
        if self.open.insert(id, state).is_none() && is_flow(id) {
            self.flows += 1;
        }
    }

    fn remove(&mut self, id: u32) -> Option<StreamState> {
        let state = self.open.remove(&id)?;
        if is_flow(id) {
            self.flows -= 1;
        }
        Some(state)
    }
}

/// Whether the agent opened it.
fn is_flow(id: u32) -> bool {
    id.is_multiple_of(2)
}

fn window(id: u32) -> usize {
    if is_flow(id) { FLOW_WINDOW } else { WINDOW }
}

fn longest(id: u32) -> usize {
    if is_flow(id) { FLOW_STEP } else { MAX_PAYLOAD }
}

impl Shared {
    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn frame(&self, kind: Kind, stream: u32, payload: Bytes) -> Frame {
        Frame { kind, flags: 0, epoch: self.config.epoch, stream, payload }
    }
}

/// Opens streams to the peer; cheap to clone.
#[derive(Clone)]
pub struct Opener {
    shared: Arc<Shared>,
    quiesced: mpsc::Sender<oneshot::Sender<()>>,
}

/// One stream, both directions.
pub struct Stream {
    sender: Sender,
    inbox: mpsc::UnboundedReceiver<Inbound>,
    unread: Arc<Mutex<usize>>,
    taken: usize,
    got_end: bool,
}

/// The sending half of a stream, for an owner that sends and receives at once. The stream itself must be kept: dropping
/// it resets both halves.
#[derive(Clone)]
pub struct Sender {
    id: u32,
    shared: Arc<Shared>,
    credit: Arc<Semaphore>,
    ended: Arc<AtomicBool>,
}

/// What the peer opened: its first message and the stream.
pub struct Opened {
    pub first: Bytes,
    pub stream: Stream,
}

/// The parts of a running channel.
pub struct Channel {
    pub opener: Opener,
    /// Streams the peer opened, in order; dropping it refuses them.
    pub incoming: mpsc::Receiver<Opened>,
    driver: Driver,
}

struct Driver {
    shared: Arc<Shared>,
    outbox: mpsc::Receiver<Frame>,
    incoming: mpsc::Sender<Opened>,
    quiesce: mpsc::Receiver<oneshot::Sender<()>>,
}

impl Channel {
    #[must_use]
    pub fn new(config: Config) -> Self {
        let (outbox, outbox_rx) = mpsc::channel(OUTBOX);
        let (incoming_tx, incoming) = mpsc::channel(config.max_incoming.max(1));
        let (quiesced, quiesce) = mpsc::channel(1);
        let next = if config.side == Side::Host { 1 } else { 2 };
        let table = Table { open: HashMap::new(), flows: 0, next, closed: false };
        let shared = Arc::new(Shared { streams: Mutex::new(table), outbox, config });
        Self {
            opener: Opener { shared: shared.clone(), quiesced },
            incoming,
            driver: Driver { shared, outbox: outbox_rx, incoming: incoming_tx, quiesce },
        }
    }

    /// Splits off the future that moves frames; it must be polled for anything to happen.
    pub fn into_parts(self) -> (Opener, mpsc::Receiver<Opened>, Pump) {
        (self.opener, self.incoming, Pump(self.driver))
    }
}

/// Moves frames between the pipe and the streams until the pipe ends.
pub struct Pump(Driver);

impl Pump {
    /// `buf` holds bytes that were read past the handshake. Not cancel-safe: a frame may be left half written, which the
    /// next handshake mends.
    pub async fn run<R, W>(self, reader: &mut R, writer: &mut W, buf: &mut BytesMut) -> Ended
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let Driver { shared, outbox, incoming, quiesce } = self.0;
        let _closing = Closing(shared.clone());
        let waiting_quiesce = Mutex::new(Vec::new());
        tokio::select! {
            ended = read_frames(&shared, reader, buf, &incoming, &waiting_quiesce) => ended,
            ended = write_frames(&shared, writer, outbox) => ended,
            () = forward_quiesce(&shared, quiesce, &waiting_quiesce) => Ended::Closed,
        }
    }
}

/// Ends every stream with the pump, however that ends: one that is dropped half way must not leave owners waiting.
struct Closing(Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        let mut table = self.0.table();
        table.closed = true;
        for stream in table.open.values() {
            stream.credit.close();
        }
        table.open.clear();
        table.flows = 0;
    }
}

async fn forward_quiesce(
    shared: &Shared,
    mut asked: mpsc::Receiver<oneshot::Sender<()>>,
    waiting: &Mutex<Vec<oneshot::Sender<()>>>,
) {
    while let Some(reply) = asked.recv().await {
        waiting.lock().unwrap_or_else(PoisonError::into_inner).push(reply);
        if shared.outbox.send(shared.frame(Kind::Quiesce, 0, Bytes::new())).await.is_err() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

async fn write_frames<W: AsyncWrite + Unpin>(
    shared: &Shared,
    writer: &mut W,
    mut outbox: mpsc::Receiver<Frame>,
) -> Ended {
    let mut frames = Vec::with_capacity(32);
    let mut out = BytesMut::with_capacity(128 * 1024);
    loop {
        if outbox.recv_many(&mut frames, 32).await == 0 {
            return Ended::Closed;
        }
        for frame in frames.drain(..) {
            let quiesced = frame.kind == Kind::Quiesced;
            frame.encode(&mut out);
            if quiesced && shared.config.side == Side::Agent {
                // Silent until the next hello: what is written now could be cut in two by the save.
                if writer.write_all(&out).await.is_err() || writer.flush().await.is_err() {
                    return Ended::Closed;
                }
                return std::future::pending().await;
            }
        }
        if writer.write_all(&out).await.is_err() || writer.flush().await.is_err() {
            return Ended::Closed;
        }
        out.clear();
    }
}

async fn read_frames<R: AsyncRead + Unpin>(
    shared: &Arc<Shared>,
    reader: &mut R,
    buf: &mut BytesMut,
    incoming: &mpsc::Sender<Opened>,
    quiesced: &Mutex<Vec<oneshot::Sender<()>>>,
) -> Ended {
    let mut opening: HashMap<u32, BytesMut> = HashMap::new();
    loop {
        let frame = match frame::decode(buf) {
            Decoded::Partial => {
                buf.reserve(64 * 1024);
                match reader.read_buf(buf).await {
                    Ok(0) | Err(_) => return Ended::Closed,
                    Ok(_) => continue,
                }
            }
            // Nobody greets a host.
            Decoded::Padding if shared.config.side == Side::Host => return Ended::Violation("padding between frames"),
            Decoded::Padding => return Ended::NewHello,
            Decoded::Garbled(_) if shared.config.side == Side::Agent => return Ended::NewHello,
            Decoded::Garbled(why) => return Ended::Violation(why),
            Decoded::Frame(frame) => frame,
        };
        if frame.epoch != shared.config.epoch {
            continue;
        }
        if let Err(why) = dispatch(shared, frame, incoming, quiesced, &mut opening) {
            return Ended::Violation(why);
        }
    }
}

fn dispatch(
    shared: &Arc<Shared>,
    frame: Frame,
    incoming: &mpsc::Sender<Opened>,
    quiesced: &Mutex<Vec<oneshot::Sender<()>>>,
    opening: &mut HashMap<u32, BytesMut>,
) -> Result<(), &'static str> {
    match frame.kind {
        Kind::Open => open_from_peer(shared, frame, incoming, opening),
        Kind::Message => {
            let mut table = shared.table();
            let Some(stream) = table.open.get(&frame.stream) else {
                return Ok(());
            };
            if stream.ended {
                return Err("a message after the end of its stream");
            }
            {
                let mut unread = stream.unread.lock().unwrap_or_else(PoisonError::into_inner);
                *unread += cost(&frame.payload);
                if *unread > window(frame.stream) {
                    return Err("a stream was sent more than its credit");
                }
            }
            if stream.inbox.send(Inbound::Message(frame.payload)).is_err() {
                table.remove(frame.stream);
            }
            Ok(())
        }
        Kind::End => {
            if let Some(stream) = shared.table().open.get_mut(&frame.stream)
                && !std::mem::replace(&mut stream.ended, true)
            {
                // The owner may be gone already; then its drop has sent the reset.
                let _ = stream.inbox.send(Inbound::End);
            }
            Ok(())
        }
        Kind::Reset => {
            opening.remove(&frame.stream);
            if let Some(stream) = shared.table().remove(frame.stream) {
                let _ = stream.inbox.send(Inbound::Reset);
                stream.credit.close();
            }
            Ok(())
        }
        Kind::Credit => {
            let Ok(bytes) = <[u8; 4]>::try_from(&frame.payload[..]) else {
                return Err("a credit frame of the wrong size");
            };
            let count = u32::from_le_bytes(bytes) as usize;
            if let Some(stream) = shared.table().open.get(&frame.stream) {
                let window = window(frame.stream);
                if count > window || stream.credit.available_permits() + count > window {
                    return Err("more credit than was used");
                }
                stream.credit.add_permits(count);
            }
            Ok(())
        }
        // Answers to the peer's own pace are dropped, not queued, when the pipe is full: a peer cannot make us grow.
        Kind::Ping => {
            let _ = shared.outbox.try_send(shared.frame(Kind::Pong, 0, frame.payload));
            Ok(())
        }
        Kind::Pong => Ok(()),
        Kind::Quiesce if shared.config.side == Side::Agent => {
            let _ = shared.outbox.try_send(shared.frame(Kind::Quiesced, 0, Bytes::new()));
            Ok(())
        }
        Kind::Quiesced if shared.config.side == Side::Host => {
            for reply in quiesced.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                let _ = reply.send(());
            }
            Ok(())
        }
        Kind::Quiesce | Kind::Quiesced => Err("a quiesce frame from the wrong side"),
    }
}

fn open_from_peer(
    shared: &Arc<Shared>,
    frame: Frame,
    incoming: &mpsc::Sender<Opened>,
    opening: &mut HashMap<u32, BytesMut>,
) -> Result<(), &'static str> {
    let peers_parity = if shared.config.side == Side::Host { 0 } else { 1 };
    if frame.stream == 0 || frame.stream % 2 != peers_parity {
        return Err("a stream number of the wrong side");
    }
    if shared.config.max_incoming == 0 {
        let _ = shared.outbox.try_send(shared.frame(Kind::Reset, frame.stream, Bytes::new()));
        return Ok(());
    }
    let whole = if frame.flags & FLAG_MORE != 0 || opening.contains_key(&frame.stream) {
        if !opening.contains_key(&frame.stream) && opening.len() >= shared.config.max_incoming {
            return Err("too many unfinished openings");
        }
        let part = opening.entry(frame.stream).or_default();
        if part.len() + frame.payload.len() > shared.config.max_open {
            return Err("an opening message is over the limit");
        }
        part.put_slice(&frame.payload);
        if frame.flags & FLAG_MORE != 0 {
            return Ok(());
        }
        opening.remove(&frame.stream).unwrap_or_default().freeze()
    } else if frame.payload.len() > shared.config.max_open {
        return Err("an opening message is over the limit");
    } else {
        frame.payload
    };
    let stream = {
        let mut table = shared.table();
        if table.open.contains_key(&frame.stream) {
            return Err("a stream was opened twice");
        }
        if !table.has_room(frame.stream, &shared.config) {
            drop(table);
            let _ = shared.outbox.try_send(shared.frame(Kind::Reset, frame.stream, Bytes::new()));
            return Ok(());
        }
        new_stream(shared, &mut table, frame.stream)
    };
    // A full queue refuses the stream: dropping it sends the reset.
    let _ = incoming.try_send(Opened { first: whole, stream });
    Ok(())
}

fn cost(message: &Bytes) -> usize {
    message.len() + MESSAGE_COST
}

fn new_stream(shared: &Arc<Shared>, table: &mut Table, id: u32) -> Stream {
    #[expect(clippy::disallowed_methods, reason = "bounded by credit: each message costs, and an end comes once")]
    let (inbox, receiver) = mpsc::unbounded_channel();
    let unread = Arc::new(Mutex::new(0));
    let credit = Arc::new(Semaphore::new(window(id)));
    table.insert(id, StreamState { inbox, ended: false, unread: unread.clone(), credit: credit.clone() });
    let sender = Sender { id, shared: shared.clone(), credit, ended: Arc::new(AtomicBool::new(false)) };
    Stream { sender, inbox: receiver, unread, taken: 0, got_end: false }
}

impl Opener {
    /// Opens a stream with its first message.
    pub async fn open(&self, first: Bytes) -> Result<Stream, ChannelError> {
        let stream = {
            let mut table = self.shared.table();
            if table.closed {
                return Err(ChannelError::Closed);
            }
            let id = table.next;
            if !table.has_room(id, &self.shared.config) {
                return Err(ChannelError::TooMany);
            }
            // Wraps after two billion streams; a number still in use is skipped.
            table.next = table.next.checked_add(2).unwrap_or(if id % 2 == 1 { 1 } else { 2 });
            if table.open.contains_key(&id) {
                return Err(ChannelError::TooMany);
            }
            new_stream(&self.shared, &mut table, id)
        };
        let mut rest = first;
        loop {
            let payload = rest.split_to(rest.len().min(MAX_PAYLOAD));
            let mut frame = self.shared.frame(Kind::Open, stream.sender.id, payload);
            frame.flags = if rest.is_empty() { 0 } else { FLAG_MORE };
            self.shared.outbox.send(frame).await.map_err(|_| ChannelError::Closed)?;
            if rest.is_empty() {
                return Ok(stream);
            }
        }
    }

    /// Asks the agent to fall silent before a save; returns once it has.
    pub async fn quiesce(&self) -> Result<(), ChannelError> {
        let (reply, done) = oneshot::channel();
        self.quiesced.send(reply).await.map_err(|_| ChannelError::Closed)?;
        done.await.map_err(|_| ChannelError::Closed)
    }

    /// True once the pipe ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.table().closed
    }
}

impl Sender {
    /// Sends one message, waiting for credit. The longest is [`MAX_PAYLOAD`], [`FLOW_STEP`] where the agent opened.
    pub async fn send(&self, message: Bytes) -> Result<(), ChannelError> {
        if message.len() > longest(self.id) {
            return Err(ChannelError::TooLong(message.len()));
        }
        let permit = self.credit.acquire_many(cost(&message) as u32).await.map_err(|_| ChannelError::Reset)?;
        permit.forget();
        let frame = self.shared.frame(Kind::Message, self.id, message);
        self.shared.outbox.send(frame).await.map_err(|_| ChannelError::Closed)
    }

    /// True once the peer gave the stream up, or the channel is gone: nothing that is sent arrives.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.credit.is_closed()
    }

    /// Says that no more will be sent. Receiving goes on.
    pub async fn finish(&self) -> Result<(), ChannelError> {
        if self.ended.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let frame = self.shared.frame(Kind::End, self.id, Bytes::new());
        self.shared.outbox.send(frame).await.map_err(|_| ChannelError::Closed)
    }
}

impl Stream {
    #[must_use]
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// See [`Sender::send`].
    pub async fn send(&self, message: Bytes) -> Result<(), ChannelError> {
        self.sender.send(message).await
    }

    /// See [`Sender::finish`].
    pub async fn finish(&self) -> Result<(), ChannelError> {
        self.sender.finish().await
    }

    /// The next message; `None` once the peer has finished. Cancel-safe.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, ChannelError> {
        if self.got_end {
            return Ok(None);
        }
        self.give_credit().await;
        match self.inbox.recv().await {
            Some(Inbound::Message(message)) => {
                self.taken += cost(&message);
                *self.unread.lock().unwrap_or_else(PoisonError::into_inner) -= cost(&message);
                Ok(Some(message))
            }
            Some(Inbound::End) => {
                self.got_end = true;
                Ok(None)
            }
            Some(Inbound::Reset) => Err(ChannelError::Reset),
            None => Err(ChannelError::Closed),
        }
    }

    /// Hands back the credit of what was taken before; on the next receive, so that a slow owner slows the sender.
    async fn give_credit(&mut self) {
        if self.taken < window(self.sender.id) / CREDIT_PART {
            return;
        }
        let mut payload = BytesMut::with_capacity(4);
        payload.put_u32_le(self.taken as u32);
        let frame = self.sender.shared.frame(Kind::Credit, self.sender.id, payload.freeze());
        // Reserve first: cancelled while waiting, nothing was given and `taken` still counts it.
        if let Ok(slot) = self.sender.shared.outbox.reserve().await {
            slot.send(frame);
            self.taken = 0;
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Sender { id, shared, ended, .. } = &self.sender;
        let known = shared.table().remove(*id).is_some();
        if known && !(ended.load(Ordering::Acquire) && self.got_end) {
            let frame = shared.frame(Kind::Reset, *id, Bytes::new());
            if let Err(mpsc::error::TrySendError::Full(frame)) = shared.outbox.try_send(frame) {
                // The pipe is busy: wait for room in a task of its own, or the peer would keep the stream for ever.
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    let shared = shared.clone();
                    runtime.spawn(async move { shared.outbox.send(frame).await });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(side: Side) -> Config {
        Config { side, epoch: 1, max_open: 1 << 20, max_streams: 64, max_flows: 8, max_incoming: 64 }
    }

    struct Pair {
        host: Opener,
        agent: Opener,
        agent_in: mpsc::Receiver<Opened>,
        host_in: mpsc::Receiver<Opened>,
    }

    fn pair() -> Pair {
        let (a, b) = tokio::io::duplex(32 * 1024);
        let (host, host_in, host_pump) = Channel::new(config(Side::Host)).into_parts();
        let (agent, agent_in, agent_pump) = Channel::new(config(Side::Agent)).into_parts();
        let (mut ar, mut aw) = tokio::io::split(a);
        let (mut br, mut bw) = tokio::io::split(b);
        tokio::spawn(async move { host_pump.run(&mut ar, &mut aw, &mut BytesMut::new()).await });
        tokio::spawn(async move { agent_pump.run(&mut br, &mut bw, &mut BytesMut::new()).await });
        Pair { host, agent, agent_in, host_in }
    }

    #[tokio::test]
    async fn a_long_opening_and_an_echo_both_ways_at_once() {
        let mut pair = pair();
        let first = Bytes::from(vec![5; 300_000]);
        let mut stream = pair.host.open(first.clone()).await.unwrap();
        let mut peer = pair.agent_in.recv().await.unwrap();
        assert_eq!(peer.first, first);
        let echo = tokio::spawn(async move {
            while let Some(message) = peer.stream.recv().await.unwrap() {
                peer.stream.send(message).await.unwrap();
            }
            peer.stream.finish().await.unwrap();
            peer
        });
        let sender = stream.sender();
        let send = tokio::spawn(async move {
            for n in 0..200_u8 {
                sender.send(Bytes::from(vec![n; 30_000])).await.unwrap();
            }
            sender.finish().await.unwrap();
        });
        let mut expected = 0;
        while let Some(message) = stream.recv().await.unwrap() {
            assert_eq!((message.len(), message[0]), (30_000, expected));
            expected += 1;
        }
        assert_eq!(expected, 200);
        send.await.unwrap();
        drop(echo.await.unwrap());
    }

    async fn stream_send(host: &Opener, agent_in: &mut mpsc::Receiver<Opened>) {
        let mut stream = host.open(Bytes::from_static(b"x")).await.unwrap();
        let peer = agent_in.recv().await.unwrap().stream;
        let send = tokio::spawn(async move {
            for _ in 0..64 {
                peer.send(Bytes::from(vec![1; MAX_PAYLOAD])).await.unwrap();
            }
            peer.finish().await.unwrap();
            peer
        });
        let mut got = 0;
        while let Some(message) = stream.recv().await.unwrap() {
            got += message.len();
        }
        assert_eq!(got, 64 * MAX_PAYLOAD);
        drop(send.await.unwrap());
    }

    #[tokio::test]
    async fn a_stream_nobody_reads_does_not_hold_up_another() {
        let mut pair = pair();
        let _stuck = pair.host.open(Bytes::from_static(b"stuck")).await.unwrap();
        let stuck_peer = pair.agent_in.recv().await.unwrap().stream;
        let flood = tokio::spawn(async move { while stuck_peer.send(Bytes::from(vec![0; 1000])).await.is_ok() {} });
        stream_send(&pair.host, &mut pair.agent_in).await;
        assert!(!flood.is_finished());
        flood.abort();
    }

    #[tokio::test]
    async fn a_pump_that_is_dropped_ends_its_streams() {
        let (ours, _theirs) = tokio::io::duplex(32 * 1024);
        let (host, _incoming, pump) = Channel::new(config(Side::Host)).into_parts();
        let pump = tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(ours);
            pump.run(&mut reader, &mut writer, &mut BytesMut::new()).await
        });
        let mut stream = host.open(Bytes::from_static(b"x")).await.unwrap();
        tokio::task::yield_now().await;
        pump.abort();
        assert_eq!(stream.recv().await, Err(ChannelError::Closed));
        assert!(host.is_closed());
    }

    /// A peer that may open nothing is told so at once, and nothing of what it sends is kept.
    #[tokio::test]
    async fn where_none_may_come_in_the_first_frame_is_refused() {
        let (ours, theirs) = tokio::io::duplex(32 * 1024);
        let config = Config { max_incoming: 0, ..config(Side::Host) };
        let (_host, mut incoming, pump) = Channel::new(config).into_parts();
        tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(ours);
            pump.run(&mut reader, &mut writer, &mut BytesMut::new()).await
        });
        let (mut reader, mut writer) = tokio::io::split(theirs);
        let mut answer = BytesMut::new();
        for (stream, flags) in [(2, FLAG_MORE), (4, 0)] {
            let mut out = BytesMut::new();
            Frame { kind: Kind::Open, flags, epoch: 1, stream, payload: Bytes::from_static(b"x") }.encode(&mut out);
            writer.write_all(&out).await.unwrap();
            let refused = loop {
                match frame::decode(&mut answer) {
                    Decoded::Partial => assert!(reader.read_buf(&mut answer).await.unwrap() > 0),
                    Decoded::Frame(frame) => break frame,
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!((refused.kind, refused.stream), (Kind::Reset, stream));
        }
        assert!(incoming.try_recv().is_err());
    }

    /// However many connections a guest opens, and whatever it sends on them, the host can still ask.
    #[tokio::test]
    async fn an_agent_may_open_so_many_streams_and_no_more() {
        let mut pair = pair();
        let mut kept = Vec::new();
        for _ in 0..8 {
            let ours = pair.agent.open(Bytes::from_static(b"x")).await.unwrap();
            kept.push((ours, pair.host_in.recv().await.unwrap().stream));
        }
        assert_eq!(pair.agent.open(Bytes::new()).await.err(), Some(ChannelError::TooMany));
        let too_long = kept[0].0.send(Bytes::from(vec![0; FLOW_STEP + 1])).await;
        assert_eq!(too_long, Err(ChannelError::TooLong(FLOW_STEP + 1)));
        // Nobody takes what is sent: each stream holds one window of it.
        let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for (ours, _) in &kept {
            let (sender, sent) = (ours.sender(), sent.clone());
            tokio::spawn(async move {
                while sender.send(Bytes::from(vec![0; 1000])).await.is_ok() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        stream_send(&pair.host, &mut pair.agent_in).await;
        assert!(sent.load(Ordering::Relaxed) <= 8 * FLOW_WINDOW / 1000);
        // One that goes makes room for one.
        drop(kept.pop());
        let next = loop {
            match pair.agent.open(Bytes::from_static(b"y")).await {
                Ok(next) => break next,
                Err(error) => assert_eq!(error, ChannelError::TooMany),
            }
            tokio::task::yield_now().await;
        };
        let mut peer = pair.host_in.recv().await.unwrap();
        assert_eq!(peer.first, Bytes::from_static(b"y"));
        next.send(Bytes::from(vec![7; FLOW_STEP])).await.unwrap();
        assert_eq!(peer.stream.recv().await.unwrap().unwrap().len(), FLOW_STEP);
    }

    #[tokio::test]
    async fn dropping_a_stream_tells_the_peer() {
        let mut pair = pair();
        let stream = pair.host.open(Bytes::from_static(b"x")).await.unwrap();
        let mut peer = pair.agent_in.recv().await.unwrap().stream;
        drop(stream);
        assert_eq!(peer.recv().await, Err(ChannelError::Reset));
    }
}
