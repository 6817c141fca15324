//! Names become addresses on the host, never inside: the answer is judged, and the connection goes to the very address
//! that was judged. Nobody asks a second time, so a name that changes its answer in between changes nothing.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use runtime_model::network::HostName;
use tokio::sync::Semaphore;

/// One name.
const PATIENCE: Duration = Duration::from_secs(10);
/// Addresses of one name that are looked at; a name with more is cut.
pub const MAX_ADDRESSES: usize = 32;
/// Names asked for at once on this host: each waits on a thread.
const AT_ONCE: usize = 128;

#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("looking up {name}")]
    Failed {
        name: HostName,
        #[source]
        source: io::Error,
    },
    #[error("looking up {0} took too long")]
    TimedOut(HostName),
}

#[async_trait]
pub trait Resolve: Send + Sync + 'static {
    /// Every address of the name, through whatever aliases; none is an answer too.
    async fn resolve(&self, name: &HostName) -> Result<Vec<IpAddr>, ResolveError>;
}

/// The host's own resolver, as its administrator set it up.
#[derive(Debug, Clone)]
pub struct System {
    places: Arc<Semaphore>,
}

impl Default for System {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

#[async_trait]
impl Resolve for System {
    async fn resolve(&self, name: &HostName) -> Result<Vec<IpAddr>, ResolveError> {
        let failed = |source| ResolveError::Failed { name: name.clone(), source };
        let (places, asked) = (self.places.clone(), format!("{name}."));
        // In a task of its own, that holds its place until the thread is back, also when nobody waits any more. The dot
        // keeps the resolver from trying the name below domains of the host's own network.
        let asking = tokio::spawn(async move {
            let _place = places.acquire_owned().await.map_err(io::Error::other)?;
            let found = tokio::net::lookup_host((asked.as_str(), 0)).await?;
            let mut addresses = Vec::new();
            for socket in found {
                if !addresses.contains(&socket.ip()) && addresses.len() < MAX_ADDRESSES {
                    addresses.push(socket.ip());
                }
            }
            Ok(addresses)
        });
        match tokio::time::timeout(PATIENCE, asking).await {
            Ok(Ok(found)) => found.map_err(failed),
            Ok(Err(error)) => Err(failed(io::Error::other(error))),
            Err(_) => Err(ResolveError::TimedOut(name.clone())),
        }
    }
}
