//! Connections through a tunnel, all over one WebSocket.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use runtime_api::client::{Frame, SocketSink, SocketStream, path, refusal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::Context;
use crate::failure::Failure;

/// Bytes that may be on the way to the sandbox before it has taken any, over all connections.
const CREDIT: usize = 1024 * 1024;
const PIECE: usize = 64 * 1024;
const HEAD: usize = 5;
/// Frames that wait for the socket.
const OUTBOX: usize = 16;
/// Pieces that wait for a slow reader here; behind them the tunnel waits.
const INBOX: usize = 64;

pub(super) enum Inward {
    Opened,
    Data(Bytes),
    End,
    /// What sshd complains of.
    Said(Bytes),
    /// What sshd proves itself with.
    HostKey(String),
    /// It is over; why, if it did not end well.
    Closed(Option<String>),
}

/// A tunnel that is open, and what its socket needs done.
pub(super) struct Tunnel {
    open: Mutex<Open>,
    credit: Semaphore,
    out: mpsc::Sender<Bytes>,
}

#[derive(Default)]
struct Open {
    connections: HashMap<u32, mpsc::Sender<Inward>>,
    last: u32,
    credited: u64,
}

/// One connection of a tunnel; its number is free once this is dropped.
pub(super) struct Connection {
    tunnel: Arc<Tunnel>,
    number: u32,
    pub(super) inward: mpsc::Receiver<Inward>,
}

/// The tunnel or the local side is gone, and there is nothing to tell.
pub(super) fn gone<E>(_: E) -> Option<String> {
    None
}

fn frame(kind: u8, number: u32, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEAD + payload.len());
    frame.put_u8(kind);
    frame.put_u32(number);
    frame.put_slice(payload);
    frame.freeze()
}

impl Tunnel {
    /// Opens one into a sandbox, by its id. What it needs done runs in `tasks`; the first of them to end is its end.
    pub(super) async fn reach(
        context: &Context,
        sandbox: &str,
        tasks: &mut JoinSet<Result<(), Failure>>,
    ) -> Result<Arc<Self>, Failure> {
        let route = path(&["v1", "sandboxes", sandbox, "tunnel"]);
        let (_, sink, stream) = context.client.socket(&route, &[]).await?;
        let (out, outbox) = mpsc::channel(OUTBOX);
        let tunnel = Arc::new(Self { open: Mutex::default(), credit: Semaphore::new(CREDIT), out });
        tasks.spawn(send(sink, outbox));
        tasks.spawn(receive(tunnel.clone(), stream));
        Ok(tunnel)
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, frame: Bytes) -> Result<(), Failure> {
        self.out.send(frame).await.map_err(|_| anyhow::anyhow!("the tunnel was closed").into())
    }

    async fn send_out<R: AsyncRead + Unpin>(&self, number: u32, reader: &mut R) -> Result<(), Option<String>> {
        let mut buf = vec![0; PIECE];
        loop {
            match reader.read(&mut buf).await {
                Ok(0) => return self.send(frame(b'e', number, b"")).await.map_err(gone),
                Ok(length) => {
                    let permits = self.credit.acquire_many(length as u32).await.map_err(gone)?;
                    permits.forget();
                    self.send(frame(b'd', number, &buf[..length])).await.map_err(gone)?;
                }
                Err(_) => return Err(None),
            }
        }
    }
}

impl Connection {
    /// Asks for one to a target, and waits until it is open. An error with words is worth telling.
    pub(super) async fn open(tunnel: &Arc<Tunnel>, target: &str) -> Result<Self, Option<String>> {
        let (send, inward) = mpsc::channel(INBOX);
        let number = {
            let mut open = tunnel.open();
            open.last += 1;
            let number = open.last;
            open.connections.insert(number, send);
            number
        };
        let mut connection = Self { tunnel: tunnel.clone(), number, inward };
        tunnel.send(frame(b'o', number, target.as_bytes())).await.map_err(gone)?;
        match connection.inward.recv().await {
            Some(Inward::Opened) => Ok(connection),
            Some(Inward::Closed(why)) => Err(why),
            _ => Err(None),
        }
    }

    /// Bytes both ways, to its end.
    pub(super) async fn carry<R, W>(mut self, mut reader: R, mut writer: W) -> Result<(), Option<String>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let carried = {
            let out = self.tunnel.send_out(self.number, &mut reader);
            let back = take_in(&mut self.inward, &mut writer);
            tokio::pin!(out, back);
            tokio::select! {
                // The other side has said that it is over: whatever is left to send, nobody takes.
                ended = &mut back => ended,
                sent = &mut out => match sent {
                    Ok(()) => back.await,
                    Err(why) => Err(why),
                },
            }
        };
        if carried.is_err() {
            let _ = self.tunnel.send(frame(b'c', self.number, b"")).await;
        }
        carried
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tunnel.open().connections.remove(&self.number);
    }
}

async fn take_in<W: AsyncWrite + Unpin>(
    inward: &mut mpsc::Receiver<Inward>,
    writer: &mut W,
) -> Result<(), Option<String>> {
    loop {
        match inward.recv().await {
            Some(Inward::Data(data)) => {
                writer.write_all(&data).await.map_err(gone)?;
                // Whoever reads it answers it.
                writer.flush().await.map_err(gone)?;
            }
            Some(Inward::End) => writer.shutdown().await.map_err(gone)?,
            Some(Inward::Said(text)) => complain(&text),
            Some(Inward::Opened | Inward::HostKey(_)) => {}
            Some(Inward::Closed(None)) | None => return Ok(()),
            Some(Inward::Closed(why)) => return Err(why),
        }
    }
}

/// What the sandbox's sshd says, to a person.
fn complain(text: &[u8]) {
    for line in String::from_utf8_lossy(text).lines().filter(|line| !line.trim().is_empty()) {
        crate::printer::Printer { json: false }.talk(&format!("sshd: {}", crate::printer::plain(line.trim_end())));
    }
}

async fn send(mut sink: SocketSink, mut outbox: mpsc::Receiver<Bytes>) -> Result<(), Failure> {
    while let Some(frame) = outbox.recv().await {
        sink.bytes(frame).await?;
    }
    Ok(())
}

async fn receive(tunnel: Arc<Tunnel>, mut stream: SocketStream) -> Result<(), Failure> {
    loop {
        let mut frame = match stream.next().await? {
            Some(Frame::Bytes(frame)) if frame.len() >= HEAD => frame,
            Some(Frame::Bytes(_)) => return Err(anyhow::anyhow!("the server sent half a frame").into()),
            Some(Frame::Text(text)) => return Err(refusal(&text).into()),
            None => return Err(anyhow::anyhow!("the server closed the tunnel").into()),
        };
        let (kind, number) = (frame.get_u8(), frame.get_u32());
        let inward = match kind {
            b'o' => Inward::Opened,
            b'd' => Inward::Data(frame),
            b'e' => Inward::End,
            b'l' => Inward::Said(frame),
            b'k' => Inward::HostKey(String::from_utf8_lossy(&frame).into_owned()),
            b'c' => {
                let reason = String::from_utf8_lossy(&frame).into_owned();
                Inward::Closed((reason != "done").then_some(reason))
            }
            b'a' if frame.len() == 8 => {
                let credited = frame.get_u64();
                let mut open = tunnel.open();
                let more = usize::try_from(credited.saturating_sub(open.credited)).unwrap_or(CREDIT).min(CREDIT);
                open.credited = open.credited.max(credited);
                tunnel.credit.add_permits(more.min(CREDIT.saturating_sub(tunnel.credit.available_permits())));
                continue;
            }
            _ => continue,
        };
        let to = tunnel.open().connections.get(&number).cloned();
        if let Some(to) = to {
            // Of a connection that just ended nobody wants more.
            let _ = to.send(inward).await;
        }
    }
}
