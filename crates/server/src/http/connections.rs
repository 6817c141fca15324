//! The accept loop: one task per connection, all of them ended before [`serve`] returns.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Pipeline, unparsed};
use crate::AppState;

/// Bytes of one request head; over it the answer is 414 or 431.
const MAX_HEAD: usize = 64 * 1024;
/// Header lines of one request; over it the answer is 431.
const MAX_HEADERS: usize = 100;
/// After a failed accept (no descriptors left), before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A silent client is asked whether it lives after so long, so often.
const ASK_AFTER: Duration = Duration::from_secs(5);
const ASK_EVERY: Duration = Duration::from_secs(5);
const ASK_TIMES: u32 = 2;
/// Longest wait for the acknowledgement of bytes, or for room at a client that reads nothing.
const UNHEARD_MS: u32 = 15_000;

/// Where clients come in.
pub struct Listeners {
    /// To the API, and to previews by their names.
    pub api: TcpListener,
    /// To previews alone. Has half of all connections then, so that visitors never shut the API's clients out.
    pub previews: Option<TcpListener>,
}

impl From<TcpListener> for Listeners {
    fn from(api: TcpListener) -> Self {
        Self { api, previews: None }
    }
}

/// Which of them a connection came in by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    All,
    Previews,
}

/// Serves until `shutdown`, then lets running requests end within a grace time.
pub async fn serve(listeners: impl Into<Listeners>, app: AppState, shutdown: CancellationToken) {
    let Listeners { api, previews } = listeners.into();
    let (most, grace) = (app.config().max_connections, app.config().grace);
    let most = if previews.is_some() { (most / 2).max(1) } else { most };
    let all = Accepting {
        pipeline: Arc::new(Pipeline::new(app.clone())),
        connections: TaskTracker::new(),
        shutdown,
        cut: CancellationToken::new(),
    };
    let visitors = async {
        if let Some(previews) = previews {
            all.until_stopped(previews, Door::Previews, most).await;
        }
    };
    tokio::join!(all.until_stopped(api, Door::All, most), visitors);
    let Accepting { connections, cut, .. } = all;
    // Followers and waits are told at once: what they wait for may be hours away, and they can ask the next server.
    app.sandboxes().stopping().cancel();
    connections.close();
    if tokio::time::timeout(grace, connections.wait()).await.is_err() {
        tracing::info!(open = connections.len(), "cutting connections that outlived the grace time");
        cut.cancel();
        connections.wait().await;
    }
    app.drain().await;
}

/// What all connections share.
struct Accepting {
    pipeline: Arc<Pipeline>,
    connections: TaskTracker,
    shutdown: CancellationToken,
    /// Ends what outlives the grace time.
    cut: CancellationToken,
}

impl Accepting {
    async fn until_stopped(&self, listener: TcpListener, door: Door, most: usize) {
        let places = Arc::new(Semaphore::new(most));
        loop {
            let place = tokio::select! {
                // First: a stop must win over a queue of connections.
                biased;
                () = self.shutdown.cancelled() => break,
                place = places.clone().acquire_owned() => place,
            };
            let Ok(place) = place else { break };
            let accepted = tokio::select! {
                biased;
                () = self.shutdown.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, peer)) => {
                    let (pipeline, shutdown, cut) = (self.pipeline.clone(), self.shutdown.clone(), self.cut.clone());
                    self.connections.spawn(async move {
                        let _place = place;
                        tokio::select! {
                            biased;
                            () = cut.cancelled() => {}
                            () = connection(socket, (peer, door), pipeline, shutdown) => {}
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Has the kernel end a connection whose client is gone without a word: an idle one by asking, one with bytes under way
/// (or one that takes none of them) by the time they wait.
fn notice_death(socket: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, ASK_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, ASK_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, ASK_TIMES)?;
    sockopt::set_tcp_user_timeout(socket, UNHEARD_MS)
}

async fn connection(
    socket: TcpStream,
    (peer, door): (SocketAddr, Door),
    pipeline: Arc<Pipeline>,
    shutdown: CancellationToken,
) {
    // One small answer is one segment; a delayed acknowledgement must never hold it back.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    if let Err(error) = notice_death(&socket) {
        tracing::debug!(%peer, %error, "watching a connection for the death of its client");
    }
    // Over its address's share a connection is not served until another of that address ends.
    let place = tokio::select! {
        biased;
        () = shutdown.cancelled() => return,
        place = pipeline.address_place(peer.ip()) => place,
    };
    let head_timeout = pipeline.head_timeout();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (pipeline, place) = (pipeline.clone(), place.clone());
        async move { Ok::<_, Infallible>(pipeline.respond(request, place.as_ref(), door).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_timeout).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let (wire, keeper) = unparsed::wire(socket);
    let connection = http.serve_connection(TokioIo::new(wire), service).with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = keeper.drive(connection.as_mut()) => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            keeper.drive(connection.as_mut()).await
        }
    };
    if let Err(error) = keeper.settle(&ended).await {
        tracing::debug!(%peer, %error, "a last answer did not get through");
    }
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_watches_accepted_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        notice_death(&socket).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), UNHEARD_MS);
        let asked = ASK_AFTER + ASK_EVERY * ASK_TIMES;
        assert!(asked <= Duration::from_millis(UNHEARD_MS.into()), "the idle are noticed as soon as the busy");
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), ASK_AFTER);
        drop(client);
    }
}
