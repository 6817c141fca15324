//! What `serve` decides once.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Config {
    /// Where clients reach this server, without a trailing slash; `None`: as each of them did.
    pub public_url: Option<String>,
    /// `http[s]://DOMAIN[:PORT]`: below it lie the addresses of previews, `<port>-<sandbox>.DOMAIN`, beside those below
    /// `localhost`.
    pub preview_domain: Option<String>,
    /// Where previews below `localhost` are found; `None`: where the caller found this server.
    pub preview_port: Option<u16>,
    /// The only region there is.
    pub region: String,
    /// Off on a loopback address unless asked for.
    pub guards: Option<Guards>,
    /// A request head must be complete within this time.
    pub head_timeout: Duration,
    /// Longest silence while a body arrives.
    pub body_timeout: Duration,
    /// What a body may take in all, beside the time its length takes at a slow client's speed.
    pub body_whole: Duration,
    /// Open connections over all addresses.
    pub max_connections: usize,
    /// What requests under way get when the server stops.
    pub grace: Duration,
    /// When an answer that is not ready turns into a late one.
    pub late_after: Duration,
    /// Longest wait of a guest call for a sandbox that is starting.
    pub ready_wait: Duration,
    /// How often the reconciler looks.
    pub reconcile_every: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            public_url: None,
            preview_domain: None,
            preview_port: None,
            region: "us-east".to_owned(),
            guards: None,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            body_whole: Duration::from_secs(60),
            max_connections: 4096,
            grace: Duration::from_secs(10),
            late_after: Duration::from_secs(90),
            ready_wait: Duration::from_secs(30),
            reconcile_every: Duration::from_secs(1),
        }
    }
}

impl Config {
    /// Guards on unless only this machine can connect.
    #[must_use]
    pub fn for_listener(address: SocketAddr) -> Self {
        let guards = (!address.ip().is_loopback()).then(Guards::default);
        Self { guards, ..Self::default() }
    }
}

/// The limits of spec 01 §1.9.
#[derive(Debug, Clone)]
pub struct Guards {
    pub key_rate: NonZeroU32,
    pub key_burst: NonZeroU32,
    pub key_in_flight: usize,
    /// Over a key's limits a request waits this long for its turn.
    pub turn_wait: Duration,
    pub org_in_flight: usize,
    pub org_in_flight_per_sandbox: usize,
    pub org_in_flight_most: usize,
    pub address_connections: usize,
    pub address_connections_with_key: usize,
}

impl Default for Guards {
    fn default() -> Self {
        let nonzero = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        Self {
            key_rate: nonzero(50),
            key_burst: nonzero(200),
            key_in_flight: 128,
            turn_wait: Duration::from_secs(5),
            org_in_flight: 192,
            org_in_flight_per_sandbox: 6,
            org_in_flight_most: 1024,
            address_connections: 64,
            address_connections_with_key: 256,
        }
    }
}
