//! What every handler reaches: the store, the node, the configuration and the live sandboxes. Cheap to clone.

use std::sync::Arc;

use aws_lc_rs::hmac;
use runtime_model::OrgId;
use runtime_proto::node::Node;
use runtime_store::{Store, StoreError};
use tokio_util::task::TaskTracker;

use crate::Config;
use crate::error::{ApiError, Kind};
use crate::idempotency::Flights;
use crate::sandboxes::Sandboxes;

#[derive(Clone)]
pub struct AppState(Arc<Parts>);

struct Parts {
    store: Arc<dyn Store>,
    node: Arc<dyn Node>,
    config: Config,
    org: OrgId,
    hash_key: hmac::Key,
    flights: Flights,
    sandboxes: Sandboxes,
    /// Work that outlives the connection it came by.
    tasks: TaskTracker,
}

impl AppState {
    /// Reads what the store made once.
    pub async fn new(store: Arc<dyn Store>, node: Arc<dyn Node>, config: Config) -> Result<Self, StoreError> {
        let org = OrgId::from_bytes(store.fixed_id("org").await?.into_bytes());
        let hash_key = hmac::Key::new(hmac::HMAC_SHA256, &store.hash_key().await?);
        Ok(Self(Arc::new(Parts {
            store,
            node,
            config,
            org,
            hash_key,
            flights: Flights::default(),
            sandboxes: Sandboxes::default(),
            tasks: TaskTracker::new(),
        })))
    }

    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    #[must_use]
    pub fn node(&self) -> &Arc<dyn Node> {
        &self.0.node
    }

    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    pub(crate) fn org(&self) -> OrgId {
        self.0.org
    }

    pub(crate) fn hash_key(&self) -> &hmac::Key {
        &self.0.hash_key
    }

    pub(crate) fn flights(&self) -> &Flights {
        &self.0.flights
    }

    pub(crate) fn sandboxes(&self) -> &Sandboxes {
        &self.0.sandboxes
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    /// New work is refused once the server is stopping.
    pub(crate) fn not_draining(&self) -> Result<(), ApiError> {
        if self.0.tasks.is_closed() {
            return Err(ApiError::new(Kind::ApiUnavailable, "The server is stopping."));
        }
        Ok(())
    }

    /// Waits for the work under way. What does not end in time is continued by the next server.
    pub(crate) async fn drain(&self) {
        self.0.tasks.close();
        if tokio::time::timeout(std::time::Duration::from_secs(5), self.0.tasks.wait()).await.is_err() {
            tracing::info!(left = self.0.tasks.len(), "leaving work under way to the next start");
        }
    }
}
