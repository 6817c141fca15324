//! What every handler reaches: the store, the node, the configuration and the live sandboxes. Cheap to clone.

use std::sync::Arc;

use runtime_proto::node::Node;
use runtime_store::Store;

use crate::Config;

#[derive(Clone)]
pub struct AppState(Arc<Parts>);

struct Parts {
    store: Arc<dyn Store>,
    node: Arc<dyn Node>,
    config: Config,
}

impl AppState {
    #[must_use]
    pub fn new(store: Arc<dyn Store>, node: Arc<dyn Node>, config: Config) -> Self {
        Self(Arc::new(Parts { store, node, config }))
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
}
