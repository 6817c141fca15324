//! What goes on beside the sandboxes for as long as the engine does.

use std::sync::Arc;
use std::time::Duration;

use crate::host_state::{HostState, blocking, failed};
use crate::prepare::Growth;

/// Disks kept ready, so that a create does not wait for the file system's transaction.
const SPARE_DISKS: usize = 8;
/// Between looks at the host's disk. What can be written meanwhile must fit into what is kept free.
const DISK_LOOK: Duration = Duration::from_secs(1);
const DISK_TROUBLE: Duration = Duration::from_secs(5);

/// Makes disks in advance, one round after every create. Without them creates are slower, nothing else.
pub(crate) async fn keep_spare_disks(state: Arc<HostState>) {
    loop {
        let work = state.clone();
        let made = blocking(move || {
            let made = work.host.pool.prepare_spares(&work.host.base, SPARE_DISKS);
            made.map_err(|e| failed("make spare disks in", work.host.pool.dir().display(), e))
        });
        if let Err(error) = made.await {
            tracing::warn!(%error, "disks are not made in advance");
        }
        state.disk_taken.notified().await;
    }
}

/// Growth stops before the host's disk is full: a full host would be an error inside every sandbox.
pub(crate) async fn watch_host_disk(state: Arc<HostState>) {
    let mut looks = tokio::time::interval(DISK_LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // What an earlier server has stopped is let go once there is room.
    let mut stopped = None;
    loop {
        looks.tick().await;
        let pool = state.host.pool.clone();
        let looked = blocking(move || {
            let dir = pool.dir().display();
            let stop = match pool.growth().map_err(|e| failed("measure the room below", dir, e))? {
                Growth::Stop => Some(true),
                Growth::AsBefore => stopped,
                Growth::Allow => Some(false),
            };
            let changed = match stop {
                Some(true) => pool.stop_growth(),
                Some(false) if stopped != Some(false) => pool.allow_growth(),
                Some(false) | None => Ok(0),
            };
            let changed = changed.map_err(|e| failed("change the limits of the disks in", pool.dir().display(), e))?;
            Ok((stop, changed))
        });
        match looked.await {
            Ok((stop, changed)) => {
                if stop == Some(true) && stopped != stop {
                    tracing::error!(
                        disks = changed,
                        "the host's disk is almost full: no sandbox's disk grows any more"
                    );
                } else if stop == Some(false) && changed > 0 {
                    tracing::info!(disks = changed, "the host's disk has room again: disks grow");
                }
                stopped = stop;
            }
            Err(error) => {
                tracing::warn!(%error, "the host's disk is not watched");
                tokio::time::sleep(DISK_TROUBLE).await;
            }
        }
    }
}
