//! How the two ends of a sandbox's byte stream find each other again: after a boot, a server restart, a restore.
//!
//! The host writes enough zeros to complete whatever frame its predecessor left unfinished, then a hello with a fresh
//! nonce. The agent, once it meets padding, skips to the hello and answers a welcome with the same nonce; the host
//! throws away everything before it. A welcome whose clock is late is answered by another hello. Nothing is lost by that: the agent holds the state, the channel holds none.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Buf, BufMut, BytesMut};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::frame;
use crate::guest::{Hello, Welcome};

const HELLO_MARK: [u8; 16] = *b"\x01RT-HOST-HELLO\x02\x03";
const WELCOME_MARK: [u8; 16] = *b"\x01RT-BOX-WELCOME\x03";
/// Completes any unfinished frame and leaves at least one header of zeros.
const PADDING: usize = 64 * 1024 + frame::HEADER;
/// The most a hello or welcome may take: checked before it is read.
const MAX_GREETING: usize = 64 * 1024;
/// Stale output that a host skips before it gives up on finding a welcome.
const MAX_SKIP: usize = 64 * 1024 * 1024;
/// A clock that is further behind when the welcome arrives is told the time again. A hello waits in the pipe while a
/// machine boots, and what it says of the time is then that old.
const LATE_NS: u64 = 20_000_000;
/// Greetings of one attachment; what the last leaves is the pace of the pipe, or a guest that does not want to know.
const MAX_GREETINGS: usize = 3;

#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the channel closed before the greeting was complete")]
    Closed,
    #[error("reading or writing the greeting failed")]
    Io(#[from] std::io::Error),
    #[error("the greeting is not valid: {0}")]
    Invalid(&'static str),
    #[error("no common protocol version: host {host_min}-{host_max}, agent answered {agent}")]
    Version { host_min: u32, host_max: u32, agent: u32 },
}

/// Host side. Returns the welcome and what was read past it, once the agent has the time right if it can.
pub async fn greet<R, W>(reader: &mut R, writer: &mut W, hello: &Hello) -> Result<(Welcome, BytesMut), HandshakeError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut greeted = greet_once(reader, writer, hello).await?;
    for again in 1..MAX_GREETINGS {
        let now = wall_clock_ns();
        if greeted.0.time == 0 || now.saturating_sub(greeted.0.time) <= LATE_NS {
            break;
        }
        let mut nonce = hello.nonce.to_vec();
        nonce.iter_mut().take(1).for_each(|byte| *byte = byte.wrapping_add(again as u8));
        let hello = Hello { nonce: nonce.into(), host_time: now, ..hello.clone() };
        greeted = greet_once(reader, writer, &hello).await?;
    }
    Ok(greeted)
}

/// Nanoseconds since 1970.
pub fn wall_clock_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

async fn greet_once<R, W>(reader: &mut R, writer: &mut W, hello: &Hello) -> Result<(Welcome, BytesMut), HandshakeError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut out = BytesMut::zeroed(PADDING);
    put_greeting(&mut out, &HELLO_MARK, hello);
    // Both at once: an agent stuck on a full pipe reads us only after we drained it.
    let write = async {
        writer.write_all(&out).await?;
        writer.flush().await?;
        Ok::<_, HandshakeError>(())
    };
    let read = async {
        let mut buf = BytesMut::new();
        let mut skipped = 0;
        loop {
            let welcome: Welcome = read_greeting(reader, &mut buf, &WELCOME_MARK, &mut skipped).await?;
            if welcome.nonce == hello.nonce {
                return Ok::<_, HandshakeError>((welcome, buf));
            }
        }
    };
    let ((), (welcome, rest)) = tokio::try_join!(write, read)?;
    if !(hello.protocol_min..=hello.protocol_max).contains(&welcome.protocol) {
        return Err(HandshakeError::Version {
            host_min: hello.protocol_min,
            host_max: hello.protocol_max,
            agent: welcome.protocol,
        });
    }
    Ok((welcome, rest))
}

/// Agent side: skips to the next hello. `buf` holds bytes already read; what follows the hello stays in it.
pub async fn await_hello<R: AsyncRead + Unpin>(reader: &mut R, buf: &mut BytesMut) -> Result<Hello, HandshakeError> {
    let mut skipped = 0;
    read_greeting(reader, buf, &HELLO_MARK, &mut skipped).await
}

/// Agent side: answers a hello.
pub async fn welcome<W: AsyncWrite + Unpin>(writer: &mut W, welcome: &Welcome) -> Result<(), HandshakeError> {
    let mut out = BytesMut::new();
    put_greeting(&mut out, &WELCOME_MARK, welcome);
    writer.write_all(&out).await?;
    writer.flush().await?;
    Ok(())
}

fn put_greeting(out: &mut BytesMut, mark: &[u8; 16], message: &impl Message) {
    out.put_slice(mark);
    out.put_u32_le(message.encoded_len() as u32);
    out.put_slice(&message.encode_to_vec());
}

async fn read_greeting<R, M>(
    reader: &mut R,
    buf: &mut BytesMut,
    mark: &[u8; 16],
    skipped: &mut usize,
) -> Result<M, HandshakeError>
where
    R: AsyncRead + Unpin,
    M: Message + Default,
{
    loop {
        if let Some(at) = find(buf, mark) {
            *skipped += at;
            buf.advance(at + mark.len());
            break;
        }
        let keep = buf.len().min(mark.len() - 1);
        *skipped += buf.len() - keep;
        buf.advance(buf.len() - keep);
        if *skipped > MAX_SKIP {
            return Err(HandshakeError::Invalid("no greeting within the skip limit"));
        }
        more(reader, buf).await?;
    }
    while buf.len() < 4 {
        more(reader, buf).await?;
    }
    let len = buf.get_u32_le() as usize;
    if len > MAX_GREETING {
        return Err(HandshakeError::Invalid("it is longer than the limit"));
    }
    while buf.len() < len {
        more(reader, buf).await?;
    }
    M::decode(buf.split_to(len)).map_err(|_| HandshakeError::Invalid("it does not decode"))
}

async fn more<R: AsyncRead + Unpin>(reader: &mut R, buf: &mut BytesMut) -> Result<(), HandshakeError> {
    buf.reserve(16 * 1024);
    match reader.read_buf(buf).await? {
        0 => Err(HandshakeError::Closed),
        _ => Ok(()),
    }
}

fn find(haystack: &[u8], needle: &[u8; 16]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
