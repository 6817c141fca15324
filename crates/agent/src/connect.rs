//! Connections to what listens on the sandbox's own loopback, carried over a stream: bytes and half-closes, either way.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use runtime_proto::channel::{ChannelError, Stream};
use runtime_proto::guest::{Chunk, Connect, DATA_STEP, ErrorCode, Event, GuestError, Tell, decode_input, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;

use crate::serve::{Failure, done, tell};

/// A loopback answers at once, or its listener's queue is full.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_secs(15);

pub(crate) async fn serve(wanted: Connect, stream: &mut Stream) -> Result<(), Failure> {
    let port = u16::try_from(wanted.port).ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| GuestError::new(ErrorCode::Invalid, "connecting: the port is not one"))?;
    let socket = connect(port).await?;
    // Interactive protocols wait for each answer.
    let _ = socket.set_nodelay(true);
    tell(stream, done()).await?;
    let (reader, writer) = socket.into_split();
    let sender = stream.sender();
    let ended = Notify::new();
    let cut = AtomicBool::new(false);
    let out = async {
        send_out(reader, &sender, &cut).await?;
        ended.notify_one();
        Ok::<(), Failure>(())
    };
    let inward = async {
        take_in(writer, stream, &cut).await?;
        // After its end a stream no longer tells that the host gave it up: what the guest never closes is looked after.
        loop {
            tokio::select! {
                () = ended.notified() => return Ok(()),
                () = tokio::time::sleep(LOOK_EVERY) => if sender.is_closed() { return Err(Failure::Gone) },
            }
        }
    };
    tokio::try_join!(out, inward)?;
    Ok(())
}

async fn connect(port: u16) -> Result<TcpStream, GuestError> {
    use std::io::ErrorKind as K;
    let mut last = std::io::Error::from(K::ConnectionRefused);
    let mut refused = false;
    for address in [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))] {
        match tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => last = error,
            Err(_) => last = K::TimedOut.into(),
        }
        // Only where nothing listens can the other address have it.
        if last.kind() != K::ConnectionRefused {
            break;
        }
        refused = true;
    }
    let code = if refused { ErrorCode::ConnectionRefused } else { ErrorCode::Busy };
    Err(GuestError::new(code, format!("connecting to port {port}: {last}")))
}

/// The kernel tells a reset once, to a read or to a write, and shows an end from then on: `cut` says that a write was
/// told.
async fn send_out(
    mut reader: OwnedReadHalf,
    sender: &runtime_proto::channel::Sender,
    cut: &AtomicBool,
) -> Result<(), Failure> {
    let mut buf = vec![0; DATA_STEP];
    loop {
        match reader.read(&mut buf).await {
            Ok(0) if cut.load(Ordering::Relaxed) => return Err(Failure::Gone),
            Ok(0) => return Ok(sender.finish().await?),
            Ok(got) => {
                let data = Bytes::copy_from_slice(&buf[..got]);
                sender.send(encode(&Event::new(Tell::Chunk(Chunk { stream: 0, offset: 0, data })))).await?;
            }
            // Reset by the peer: not an end, so the stream is reset as well.
            Err(_) => return Err(Failure::Gone),
        }
    }
}

async fn take_in(mut writer: OwnedWriteHalf, stream: &mut Stream, cut: &AtomicBool) -> Result<(), Failure> {
    while let Some(message) = stream.recv().await? {
        let Ok(input) = decode_input(message) else { return Err(ChannelError::Reset.into()) };
        if let Err(error) = writer.write_all(&input.data).await {
            cut.store(error.kind() == std::io::ErrorKind::ConnectionReset, Ordering::Relaxed);
            // It reads no more, but may still say something: the rest is taken and dropped.
            while stream.recv().await?.is_some() {}
            return Ok(());
        }
    }
    let _ = writer.shutdown().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use runtime_proto::channel::{Channel, Config, Side};
    use runtime_proto::guest::Input;
    use rustix::event::{PollFd, PollFlags, poll};
    use tokio::net::TcpListener;

    use super::*;

    /// A write may be the first to meet a reset; the reader, which then sees an end, must not pass that on.
    #[tokio::test]
    async fn a_reset_that_a_write_met_is_no_end() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (peer, _) = listener.accept().await.unwrap();
        socket.try_write(b"never read").unwrap();
        let mut seen = [0];
        assert_eq!(peer.peek(&mut seen).await.unwrap(), 1);
        drop(peer);
        // Looking for it does not take it.
        poll(&mut [PollFd::new(&socket, PollFlags::empty())], None).unwrap();

        let config = |side| Config { side, epoch: 1, max_open: 1024, max_streams: 1, max_incoming: 1, max_flows: 0 };
        let (ours, theirs) = tokio::io::duplex(4096);
        let (host, _none, pump) = Channel::new(config(Side::Host)).into_parts();
        let (_opener, mut incoming, agent_pump) = Channel::new(config(Side::Agent)).into_parts();
        for (pump, end) in [(pump, ours), (agent_pump, theirs)] {
            let (mut reader, mut writer) = tokio::io::split(end);
            tokio::spawn(async move { pump.run(&mut reader, &mut writer, &mut BytesMut::new()).await });
        }
        let asked = host.open(Bytes::new()).await.unwrap();
        asked.send(encode(&Input { data: Bytes::from_static(b"late") })).await.unwrap();
        asked.finish().await.unwrap();
        let mut stream = incoming.recv().await.unwrap().stream;

        let (reader, writer) = socket.into_split();
        let cut = AtomicBool::new(false);
        assert!(take_in(writer, &mut stream, &cut).await.is_ok());
        assert!(matches!(send_out(reader, &stream.sender(), &cut).await, Err(Failure::Gone)));
    }
}
