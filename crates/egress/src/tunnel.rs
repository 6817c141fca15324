//! Bytes both ways between a guest and the place it was let through to.
//!
//! The guest's first bytes are read before they go anywhere: what they say of their destination is held against what was
//! judged. A place that speaks first is heard meanwhile.

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use runtime_model::network::Cidr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::judge::{Reason, Refusal};
use crate::service::Pass;
use crate::sniff::{Sniff, sniff};

const STEP: usize = 64 * 1024;
/// Of a first message that is not whole yet.
const MORE: usize = 4096;
/// A first message that was begun is finished in this time.
const FIRST_MESSAGE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) enum TunnelEnd {
    Refused(Refusal),
    /// One of the two broke off; nothing is left to do.
    Broken,
}

impl From<io::Error> for TunnelEnd {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// Returns once both directions have ended. `first` is what was read of the guest already.
pub(crate) async fn run<G, P>(guest: G, first: Bytes, place: P, pass: &Pass, public: &[Cidr]) -> Result<(), TunnelEnd>
where
    G: AsyncRead + AsyncWrite + Unpin,
    P: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from_guest, mut to_guest) = tokio::io::split(guest);
    let (mut from_place, mut to_place) = tokio::io::split(place);
    let out = async {
        let first = first_message(&mut from_guest, first.into(), pass, public).await?;
        to_place.write_all(&first).await?;
        drop(first);
        copy(&mut from_guest, &mut to_place).await
    };
    let back = copy(&mut from_place, &mut to_guest);
    tokio::try_join!(out, back).map(drop)
}

/// Everything up to where it is clear which host it is for, and that it may be.
async fn first_message(
    guest: &mut (impl AsyncRead + Unpin),
    mut bytes: BytesMut,
    pass: &Pass,
    public: &[Cidr],
) -> Result<BytesMut, TunnelEnd> {
    // Who says nothing may wait for the other side to speak.
    if bytes.is_empty() && guest.read_buf(&mut bytes).await? == 0 {
        return Ok(bytes);
    }
    let found = tokio::time::timeout(FIRST_MESSAGE, async {
        loop {
            match sniff(&bytes) {
                Sniff::More => {}
                found => return Ok::<_, io::Error>(found),
            }
            bytes.reserve(MORE);
            if guest.read_buf(&mut (&mut bytes).limit(MORE)).await? == 0 {
                return Ok(Sniff::Broken("its first message is not finished"));
            }
        }
    });
    let found = found.await.unwrap_or(Ok(Sniff::Broken("its first message is not finished in time")))?;
    pass.says(found, public).map_err(TunnelEnd::Refused)?;
    Ok(bytes)
}

/// Until the end, which is passed on.
async fn copy(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> Result<(), TunnelEnd> {
    let mut buffer = BytesMut::with_capacity(STEP);
    loop {
        buffer.clear();
        if from.read_buf(&mut (&mut buffer).limit(STEP)).await? == 0 {
            to.shutdown().await?;
            return Ok(());
        }
        to.write_all(&buffer).await?;
    }
}

/// A refusal for what broke the rules half way is told to nobody but the ledger.
pub(crate) fn refusal(end: TunnelEnd) -> Option<Refusal> {
    match end {
        TunnelEnd::Refused(refusal) if refusal.reason != Reason::NotReady => Some(refusal),
        TunnelEnd::Refused(_) | TunnelEnd::Broken => None,
    }
}
