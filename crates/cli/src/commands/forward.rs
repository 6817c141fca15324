//! Ports of a sandbox on this machine: each connection here becomes one there, all over one tunnel.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use runtime_api::client::{Frame, SocketSink, SocketStream, path, refusal};
use runtime_service::signals::Signals;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::{Context, Outcome};
use crate::args::sandboxes::{Forward, ForwardArgs};
use crate::failure::Failure;
use crate::printer::{Printer, plain};

/// Bytes that may be on the way to the sandbox before it has taken any, over all connections.
const CREDIT: usize = 1024 * 1024;
const PIECE: usize = 64 * 1024;
const HEAD: usize = 5;
/// Frames that wait for the socket.
const OUTBOX: usize = 16;
/// Pieces that wait for a slow reader here; behind them the tunnel waits.
const INBOX: usize = 64;

pub(super) async fn forward(context: &Context, args: ForwardArgs) -> Outcome {
    let sandbox = context.client.resolve(&args.sandbox).await?;
    let address: IpAddr = args.address;
    // What cannot be listened on here is told before anything is opened there.
    let mut listeners = Vec::new();
    for Forward { local, remote } in &args.ports {
        let listener = TcpListener::bind((address, *local))
            .await
            .with_context(|| format!("cannot listen on {address} port {local}"))?;
        let local = listener.local_addr().context("cannot read the local address")?;
        listeners.push((listener, local, *remote));
    }
    let mut signals = Signals::catch().context("cannot watch for Ctrl-C")?;
    let route = path(&["v1", "sandboxes", &sandbox, "tunnel"]);
    let (_, sink, stream) = context.client.socket(&route, &[]).await?;
    if context.printer.json {
        let open = listeners.iter().map(|(_, local, remote)| json!({ "local": local.to_string(), "port": remote }));
        context.printer.value(&open.collect())?;
    } else {
        for (_, local, remote) in &listeners {
            context.printer.line(&format!("{local} -> {remote}"))?;
        }
    }
    let (out, outbox) = mpsc::channel(OUTBOX);
    let tunnel = Arc::new(Tunnel { open: Mutex::default(), credit: Semaphore::new(CREDIT), out });
    let mut tasks = JoinSet::new();
    for (listener, _, remote) in listeners {
        tasks.spawn(accept(tunnel.clone(), listener, remote, context.printer));
    }
    tasks.spawn(send(sink, outbox));
    tasks.spawn(receive(tunnel, stream));
    tokio::select! {
        biased;
        signal = signals.next() => Ok(signal.exit_code()),
        ended = tasks.join_next() => match ended {
            Some(Ok(Err(failure))) => Err(failure),
            _ => Err(anyhow::anyhow!("the tunnel was closed").into()),
        },
    }
}

enum Inward {
    Opened,
    Data(Bytes),
    End,
    /// It is over; why, if it did not end well.
    Closed(Option<String>),
}

struct Tunnel {
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

fn frame(kind: u8, number: u32, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEAD + payload.len());
    frame.put_u8(kind);
    frame.put_u32(number);
    frame.put_slice(payload);
    frame.freeze()
}

impl Tunnel {
    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> (u32, mpsc::Receiver<Inward>) {
        let (send, inward) = mpsc::channel(INBOX);
        let mut open = self.open();
        open.last += 1;
        let number = open.last;
        open.connections.insert(number, send);
        (number, inward)
    }

    async fn send(&self, frame: Bytes) -> Result<(), Failure> {
        self.out.send(frame).await.map_err(|_| anyhow::anyhow!("the tunnel was closed").into())
    }
}

async fn accept(tunnel: Arc<Tunnel>, listener: TcpListener, port: u16, printer: Printer) -> Result<(), Failure> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (socket, _) = accepted.context("cannot accept a connection")?;
                let tunnel = tunnel.clone();
                connections.spawn(async move {
                    let (number, inward) = tunnel.enter();
                    let ended = carry(&tunnel, number, inward, socket, port).await;
                    tunnel.open().connections.remove(&number);
                    if let Err(why) = ended {
                        let _ = tunnel.send(frame(b'c', number, b"")).await;
                        if let Some(why) = why {
                            printer.talk(&format!("A connection to port {port} ended: {}.", plain(&why)));
                        }
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// The tunnel or the local side is gone, and there is nothing to tell.
fn gone<E>(_: E) -> Option<String> {
    None
}

/// One connection to its end. An error with words is worth telling.
async fn carry(
    tunnel: &Tunnel,
    number: u32,
    mut inward: mpsc::Receiver<Inward>,
    mut socket: TcpStream,
    port: u16,
) -> Result<(), Option<String>> {
    let _ = socket.set_nodelay(true);
    tunnel.send(frame(b'o', number, format!("tcp {port}").as_bytes())).await.map_err(gone)?;
    match inward.recv().await {
        Some(Inward::Opened) => {}
        Some(Inward::Closed(Some(why))) if why == "closed" => {
            return Err(Some("nothing listens on it in the sandbox".to_owned()));
        }
        Some(Inward::Closed(why)) => return Err(why),
        _ => return Err(None),
    }
    let (mut reader, mut writer) = socket.split();
    let out = async {
        let mut buf = vec![0; PIECE];
        loop {
            match reader.read(&mut buf).await {
                Ok(0) => return tunnel.send(frame(b'e', number, b"")).await.map_err(gone),
                Ok(length) => {
                    let permits = tunnel.credit.acquire_many(length as u32).await.map_err(gone)?;
                    permits.forget();
                    tunnel.send(frame(b'd', number, &buf[..length])).await.map_err(gone)?;
                }
                Err(_) => return Err(None),
            }
        }
    };
    let back = async {
        loop {
            match inward.recv().await {
                Some(Inward::Data(data)) => writer.write_all(&data).await.map_err(gone)?,
                Some(Inward::End) => writer.shutdown().await.map_err(gone)?,
                Some(Inward::Opened) => {}
                Some(Inward::Closed(None)) | None => return Ok(()),
                Some(Inward::Closed(why)) => return Err(why),
            }
        }
    };
    tokio::pin!(out, back);
    tokio::select! {
        // The other side has said that it is over: whatever is left to send, nobody takes.
        ended = &mut back => ended,
        sent = &mut out => match sent {
            Ok(()) => back.await,
            Err(why) => Err(why),
        },
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
