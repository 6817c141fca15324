//! The way out of the sandbox: a proxy on loopback whose connections go to the host over the channel.
//!
//! Nothing is decided here, and nothing is read: bytes pass as they are, and the host judges them. All this end adds is
//! who asked, as far as it can be seen. It listens from the start on, also where the host lets nothing out, since rules
//! may change while commands run; whether commands are told of it ([`variables`]) is the host's word.

mod relay;
mod who;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runtime_proto::channel::Opener;
use runtime_proto::guest::{MAX_FLOWS, PROXY_PORT};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::Agent;
use crate::log::log;

/// The proxy as programs are told of it.
const PROXY: &str = "http://127.0.0.1:10800";
/// What is not asked of it: the sandbox itself, and networks of its own making.
const NOT_PROXIED: &str = "localhost,127.0.0.1,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16";
/// Between attempts to accept when the sandbox is short of something.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(crate) struct WayOut {
    told: AtomicBool,
    /// The attachment of the host, while there is one.
    host: watch::Sender<Option<Opener>>,
}

impl WayOut {
    pub(crate) fn tell(&self, way_out: bool) {
        self.told.store(way_out, Ordering::Relaxed);
    }

    pub(crate) fn attach(&self, opener: Option<Opener>) {
        self.host.send_replace(opener);
    }

    /// What commands get beside their own variables.
    pub(crate) fn variables(&self) -> &'static [(&'static str, &'static str)] {
        const SET: &[(&str, &str)] = &[
            ("HTTP_PROXY", PROXY),
            ("http_proxy", PROXY),
            ("HTTPS_PROXY", PROXY),
            ("https_proxy", PROXY),
            ("NO_PROXY", NOT_PROXIED),
            ("no_proxy", NOT_PROXIED),
            ("NODE_USE_ENV_PROXY", "1"),
        ];
        if self.told.load(Ordering::Relaxed) { SET } else { &[] }
    }
}

/// Listens until the end of the sandbox. Without the port there is no way out, and all else works.
pub(crate) async fn serve(agent: Arc<Agent>) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PROXY_PORT));
    match TcpListener::bind(address).await {
        Ok(listener) => accept(agent, listener).await,
        Err(error) => log!("listening on {address} failed: {error}"),
    }
}

async fn accept(agent: Arc<Agent>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(MAX_FLOWS));
    loop {
        // More than the host takes wait where they are.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((socket, peer)) => {
                let agent = agent.clone();
                tokio::spawn(async move {
                    relay::relay(&agent, socket, peer).await;
                    drop(place);
                });
            }
            Err(error) => {
                log!("accepting a connection to the proxy failed: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
