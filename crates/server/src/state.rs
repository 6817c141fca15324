//! What every handler reaches: the store, the node, the configuration and the live sandboxes. Cheap to clone.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::hmac;
use runtime_model::OrgId;
use runtime_proto::node::Node;
use runtime_store::{SqliteStore, Store, StoreError};
use tokio_util::task::TaskTracker;

use crate::Config;
use crate::auth::KnownCallers;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};
use crate::guest::Attachments;
use crate::idempotency::Flights;
use crate::keys::{self, KeyError};
use crate::sandboxes::Sandboxes;
use crate::seen_keys::SeenKeys;
use crate::sessions::Cuts;
use crate::snapshots::Snapshots;

#[derive(Clone)]
pub struct AppState(Arc<Parts>);

struct Parts {
    store: Arc<dyn Store>,
    node: Arc<dyn Node>,
    config: Config,
    org: OrgId,
    hash_key: hmac::Key,
    flights: Flights,
    seen_keys: SeenKeys,
    callers: KnownCallers,
    cuts: Cuts,
    sandboxes: Sandboxes,
    snapshots: Snapshots,
    attachments: Arc<Attachments>,
    /// Work that outlives the connection it came by.
    tasks: TaskTracker,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot open the database {path}")]
    Store {
        path: PathBuf,
        #[source]
        source: StoreError,
    },
    #[error("the owner's key")]
    OwnerKey(#[from] KeyError),
}

impl AppState {
    /// Opens a data directory's store and makes sure that its owner has a key.
    pub async fn open(data_dir: &Path, node: Arc<dyn Node>, config: Config) -> Result<Self, OpenError> {
        let path = data_dir.join(keys::DATABASE);
        let failed = |source| OpenError::Store { path: path.clone(), source };
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.map_err(failed)?);
        let owner_key = data_dir.join("owner.key");
        if keys::ensure_owner_key(store.as_ref(), &owner_key).await? {
            tracing::info!(path = %owner_key.display(), "wrote the owner's key");
        }
        Self::new(store, node, config).await.map_err(failed)
    }

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
            seen_keys: SeenKeys::new(now_ms()),
            callers: KnownCallers::default(),
            cuts: Cuts::default(),
            sandboxes: Sandboxes::default(),
            snapshots: Snapshots::default(),
            attachments: Arc::default(),
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

    pub(crate) fn seen_keys(&self) -> &SeenKeys {
        &self.0.seen_keys
    }

    pub(crate) fn callers(&self) -> &KnownCallers {
        &self.0.callers
    }

    pub(crate) fn cuts(&self) -> &Cuts {
        &self.0.cuts
    }

    pub(crate) fn sandboxes(&self) -> &Sandboxes {
        &self.0.sandboxes
    }

    pub(crate) fn snapshots(&self) -> &Snapshots {
        &self.0.snapshots
    }

    pub(crate) fn attachments(&self) -> &Arc<Attachments> {
        &self.0.attachments
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    /// Resolves when the store takes no more changes: nothing can be promised from then on.
    pub fn store_ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let store = self.0.store.clone();
        async move { store.ended().await }
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
