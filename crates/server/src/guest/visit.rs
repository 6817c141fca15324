//! A connection to a port of a sandbox, as a stream of bytes.

use std::sync::Arc;

use bytes::Bytes;
use runtime_proto::guest::{Ask, Connect, DATA_STEP, ErrorCode, Input, Tell, encode};
use runtime_proto::node::{AskError, GuestStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_util::task::AbortOnDropHandle;

use super::gateway::{Asked, Guest};
use super::sockets::ConnectionPlace;
use crate::AppState;
use crate::error::{ApiError, Kind};

/// Connections into a sandbox from outside, tunnels' among them: each may hold a channel's window in memory.
const MOST: usize = 512;
/// Bytes between the two sides; who does not read holds the other up.
const ROOM: usize = 64 * 1024;

/// Ends with its last holder. Counts as use of the sandbox.
pub(crate) struct Visit {
    _guest: Guest,
    _place: ConnectionPlace,
    _carrier: AbortOnDropHandle<()>,
}

/// Connects to what listens on the port.
pub(crate) async fn connect(app: &AppState, guest: Guest, port: u16) -> Result<(DuplexStream, Arc<Visit>), ApiError> {
    let place = app.attachments().connection(guest.id(), MOST).ok_or_else(|| {
        ApiError::new(Kind::RateLimited, "As many connections as may be are open at this sandbox.")
            .retry_after(std::time::Duration::from_secs(1))
    })?;
    let mut stream = guest.open(Ask::Connect(Connect { port: port.into() })).await?;
    match stream.only().await {
        Ok(Tell::Done(_)) => {}
        Ok(_) => return Err(Asked::from(AskError::Unexpected).into()),
        Err(error) => {
            let asked = Asked::from(error);
            return Err(match asked.guest_code() {
                Some(ErrorCode::ConnectionRefused) => {
                    ApiError::new(Kind::GuestFailed, format!("Nothing listens on port {port} of the sandbox."))
                        .hint("Start the server inside, on 127.0.0.1 or 0.0.0.0, and load this again.")
                }
                _ => asked.into(),
            });
        }
    }
    let (ours, theirs) = tokio::io::duplex(ROOM);
    let carrier = AbortOnDropHandle::new(tokio::spawn(carry(stream, theirs)));
    Ok((ours, Arc::new(Visit { _guest: guest, _place: place, _carrier: carrier })))
}

/// Until both sides have ended, or one broke.
async fn carry(mut stream: GuestStream, pipe: DuplexStream) {
    let (mut from_us, mut to_us) = tokio::io::split(pipe);
    let sender = stream.sender();
    let inward = async {
        let mut buf = vec![0; DATA_STEP];
        loop {
            match from_us.read(&mut buf).await {
                Ok(0) => return sender.finish().await.map_err(drop),
                Ok(got) => {
                    let data = Bytes::copy_from_slice(&buf[..got]);
                    sender.send(encode(&Input { data })).await.map_err(drop)?;
                }
                Err(_) => return Err(()),
            }
        }
    };
    let outward = async {
        loop {
            match stream.next().await {
                Ok(Some(Tell::Chunk(chunk))) => to_us.write_all(&chunk.data).await.map_err(drop)?,
                Ok(None) => return to_us.shutdown().await.map_err(drop),
                // Dropping the pipe in mid-stream would look like an end: both halves go, and the reader meets one early.
                Ok(Some(_)) | Err(_) => return Err(()),
            }
        }
    };
    let _ = tokio::try_join!(inward, outward);
}
