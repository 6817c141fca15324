//! What an engine asks of the way out: hold this sandbox to these rules, serve this connection of it, tell what was
//! decided. The engine knows sandboxes and channels; the other side knows names, addresses and protocols.
//!
//! Nothing leaves without rules: a sandbox that was never armed is refused everything.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use runtime_model::SandboxId;
use runtime_model::network::Network;

use crate::channel::Stream;
use crate::guest::Flow;

/// Rules with the number of their change: a later one is never replaced by an earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    pub version: u64,
    pub network: Arc<Network>,
}

impl Rules {
    /// What holds before any were given.
    #[must_use]
    pub fn closed() -> Self {
        Self { version: 0, network: Arc::new(Network::closed()) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    Refused,
}

/// One connection, or one request on a connection to the proxy, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Grows with each decision of the sandbox.
    pub number: u64,
    /// Milliseconds since the Unix epoch.
    pub at: u64,
    pub verdict: Verdict,
    /// One word of the contract: why it was refused, or what allowed it.
    pub reason: String,
    /// The entry of a list that decided, as it is written there.
    pub rule: Option<String>,
    /// What was asked for: `CONNECT`, or a method of HTTP.
    pub method: String,
    pub host: String,
    pub port: u16,
    /// Where it went, or would have gone.
    pub address: Option<IpAddr>,
    /// The version of the rules that decided.
    pub version: u64,
    /// Bytes from the sandbox, and to it.
    pub sent: u64,
    pub received: u64,
    /// Milliseconds since the Unix epoch; `None` while it is open.
    pub ended: Option<u64>,
    /// The guest's word on who asked; 0 and empty where it is not known.
    pub pid: i32,
    pub program: String,
    pub process_id: String,
}

/// Decisions from the newest back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DecisionPage {
    pub decisions: Vec<Decision>,
    /// There are older ones.
    pub more: bool,
    /// Decisions so far, also those that were dropped for newer ones.
    pub total: u64,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum EgressError {
    #[error("the egress of this host is not running: {0}")]
    Down(String),
}

#[async_trait]
pub trait Egress: Send + Sync + 'static {
    /// Once it returns, every connection of this sandbox is held to these rules, the open ones too. Between the call and
    /// its return nothing new is let out. Rules older than those that hold are passed over.
    async fn arm(&self, id: SandboxId, rules: Rules) -> Result<(), EgressError>;
    /// Closes what is open and refuses everything until the next [`arm`](Self::arm). What was decided is kept.
    async fn disarm(&self, id: SandboxId);
    /// Also forgets what was decided.
    async fn forget(&self, id: SandboxId);
    /// The rules that hold.
    fn armed(&self, id: SandboxId) -> Option<Rules>;
    /// Takes a connection over, in a task of its own. Dropping the stream closes the guest's end.
    fn serve(&self, id: SandboxId, flow: Flow, stream: Stream);
    /// Connections that are open now.
    fn open(&self, id: SandboxId) -> usize;
    /// At most `limit` decisions with a number below `before`, newest first.
    async fn decisions(&self, id: SandboxId, before: Option<u64>, limit: usize) -> DecisionPage;
}
