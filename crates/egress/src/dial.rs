//! Opens a connection to one of the addresses that were judged, and to nothing else.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;

/// For all addresses together.
const PATIENCE: Duration = Duration::from_secs(20);
/// For one address while there are others.
const NEXT: Duration = Duration::from_secs(4);

#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("connecting to {address}")]
    Failed {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// The address is this host's own: what listens there is not for sandboxes, public or not.
    #[error("{0} is an address of this host")]
    OwnAddress(SocketAddr),
}

/// The first that answers, in the order given.
pub(crate) async fn dial(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), DialError> {
    let end = Instant::now() + PATIENCE;
    let mut last = None;
    for (at, address) in addresses.iter().enumerate() {
        if is_own(*address).await {
            return Err(DialError::OwnAddress(*address));
        }
        let more = at + 1 < addresses.len();
        let until = if more { end.min(Instant::now() + NEXT) } else { end };
        let failed = match tokio::time::timeout_at(until, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // A small write must not wait for an acknowledgement of the one before it.
                let _ = stream.set_nodelay(true);
                return Ok((stream, *address));
            }
            Ok(Err(source)) => DialError::Failed { address: *address, source },
            Err(_) => DialError::Failed { address: *address, source: io::ErrorKind::TimedOut.into() },
        };
        last = Some(failed);
        if Instant::now() >= end {
            break;
        }
    }
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    Err(last.unwrap_or(DialError::Failed { address: nowhere, source: io::ErrorKind::AddrNotAvailable.into() }))
}

/// Only an address of this host can be bound to, unless the host was set up to bind to any; then the kernel's choice of
/// a source tells, which misses second addresses of an interface. Nothing is sent.
async fn is_own(address: SocketAddr) -> bool {
    let binds = async |ip: IpAddr| UdpSocket::bind((ip, 0)).await.is_ok();
    if !binds(address.ip()).await {
        return false;
    }
    let (any, nobodys): (IpAddr, IpAddr) = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(240, 0, 0, 1).into()),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1).into()),
    };
    if !binds(nobodys).await {
        return true;
    }
    let Ok(socket) = UdpSocket::bind((any, 0)).await else { return true };
    socket.connect(address).await.is_ok() && socket.local_addr().is_ok_and(|local| local.ip() == address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_of_this_host_is_not_dialled() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        assert!(matches!(dial(&[address]).await, Err(DialError::OwnAddress(own)) if own == address));
        assert!(is_own(([127, 1, 2, 3], 80).into()).await);
        assert!(!is_own(([203, 0, 113, 77], 80).into()).await);
    }

    #[tokio::test]
    async fn no_address_is_an_error() {
        assert!(matches!(dial(&[]).await, Err(DialError::Failed { .. })));
    }
}
