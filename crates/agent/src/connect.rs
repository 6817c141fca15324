//! Connections to what listens on the sandbox's own loopback, carried over a stream: bytes and half-closes, either way.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
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
    let out = async {
        send_out(reader, &sender).await?;
        Ok::<(), Failure>(sender.finish().await?)
    };
    let ended = Notify::new();
    let out = async {
        out.await?;
        ended.notify_one();
        Ok::<(), Failure>(())
    };
    let inward = async {
        take_in(writer, stream).await?;
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

async fn send_out(mut reader: OwnedReadHalf, sender: &runtime_proto::channel::Sender) -> Result<(), Failure> {
    let mut buf = vec![0; DATA_STEP];
    loop {
        match reader.read(&mut buf).await {
            Ok(0) => return Ok(()),
            Ok(got) => {
                let data = Bytes::copy_from_slice(&buf[..got]);
                sender.send(encode(&Event::new(Tell::Chunk(Chunk { stream: 0, offset: 0, data })))).await?;
            }
            // Reset by the peer: not an end, so the stream is reset as well.
            Err(_) => return Err(Failure::Gone),
        }
    }
}

async fn take_in(mut writer: OwnedWriteHalf, stream: &mut Stream) -> Result<(), Failure> {
    while let Some(message) = stream.recv().await? {
        let Ok(input) = decode_input(message) else { return Err(ChannelError::Reset.into()) };
        if writer.write_all(&input.data).await.is_err() {
            // It reads no more, but may still say something: the rest is taken and dropped.
            while stream.recv().await?.is_some() {}
            return Ok(());
        }
    }
    let _ = writer.shutdown().await;
    Ok(())
}
