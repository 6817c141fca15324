//! The accept loop: one task per connection, all of them ended before [`serve`] returns.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Pipeline;
use crate::AppState;

/// Bytes of one request head; over it the answer is 431.
const MAX_HEAD: usize = 64 * 1024;
/// Header lines of one request; over it the answer is 431.
const MAX_HEADERS: usize = 100;
/// What running requests get when the server stops.
const GRACE: Duration = Duration::from_secs(10);
/// After a failed accept (no descriptors left), before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown`, then lets running requests end within a grace time.
pub async fn serve(listener: TcpListener, app: AppState, shutdown: CancellationToken) {
    let pipeline = Arc::new(Pipeline::new(app.clone()));
    let places = Arc::new(Semaphore::new(app.config().max_connections));
    let connections = TaskTracker::new();
    // Ends what outlives the grace time.
    let cut = CancellationToken::new();
    loop {
        let place = tokio::select! {
            // First: a stop must win over a queue of connections.
            biased;
            () = shutdown.cancelled() => break,
            place = places.clone().acquire_owned() => place,
        };
        let Ok(place) = place else { break };
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => {
                let (pipeline, shutdown, cut) = (pipeline.clone(), shutdown.clone(), cut.clone());
                connections.spawn(async move {
                    let _place = place;
                    tokio::select! {
                        biased;
                        () = cut.cancelled() => {}
                        () = connection(socket, peer, pipeline, shutdown) => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(GRACE, connections.wait()).await.is_err() {
        tracing::info!(open = connections.len(), "cutting connections that outlived the grace time");
        cut.cancel();
        connections.wait().await;
    }
    app.drain().await;
}

async fn connection(socket: TcpStream, peer: SocketAddr, pipeline: Arc<Pipeline>, shutdown: CancellationToken) {
    // One small answer is one segment; a delayed acknowledgement must never hold it back.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
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
        async move { Ok::<_, Infallible>(pipeline.respond(request, place.as_ref()).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_timeout).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let connection = http.serve_connection(TokioIo::new(socket), service).with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}
