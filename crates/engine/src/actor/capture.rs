//! Snapshots: what is kept of a machine that goes on, and machines that begin as a copy of one.
//!
//! A capture is one command: nobody can wake or start the sandbox in the middle of it. A machine that runs is frozen for
//! it and stays so: whoever wanted the snapshot wakes it, with the network rules that hold then. Should the server be lost
//! in between, it is found frozen, which its row says too.

use std::sync::Arc;
use std::time::Duration;

use runtime_host::cgroup::Group;
use runtime_model::SnapshotId;
use runtime_proto::node::{Capture, NodeError};
use tokio_util::sync::CancellationToken;

use super::{Actor, Held, stopped_meanwhile};
use crate::driver::Save;
use crate::host_state::{HostState, blocking, failed, host_name, new_generation};
use crate::pause::HEADROOM;
use crate::saves::{Newest, SaveError, copy_files, make};
use crate::snapshots::{DISK, MEMORY};

/// A guest may have as much to write as it has memory.
const SYNC_LIMIT: Duration = Duration::from_secs(60);

impl Actor {
    pub(super) async fn capture(&mut self, wanted: Capture) -> Result<(), NodeError> {
        self.certain()?;
        let (state, snapshot) = (self.state.clone(), wanted.snapshot);
        let there = blocking(move || {
            let there = state.snapshots.disk(snapshot).map_err(|e| failed("look for", snapshot, e))?;
            if there.is_none() {
                state.host.pool.room().map_err(|e| NodeError::NoRoom(e.to_string()))?;
            }
            Ok(there)
        });
        if there.await?.is_some() {
            return Ok(());
        }
        match std::mem::replace(&mut self.machine, Held::Down) {
            Held::Running(machine) if machine.relief.is_some() => {
                self.machine = Held::Running(machine);
                return Err(NodeError::Busy("it is out of memory, and a process of it is being ended".to_owned()));
            }
            Held::Running(machine) => {
                let written = self.write_back(&machine.asker, SYNC_LIMIT).await;
                if let Err(error) = written
                    // The memory has the rest.
                    && !wanted.memory
                {
                    self.machine = Held::Running(machine);
                    return Err(error);
                }
                self.freeze(machine).await?;
            }
            still => self.machine = still,
        }
        let captured = match self.machine {
            Held::Frozen(_) => self.capture_frozen(wanted).await,
            Held::Running(_) | Held::Down => self.capture_kept(wanted).await,
        };
        if captured.is_err() {
            let state = self.state.clone();
            let gone = move || state.snapshots.abandon(snapshot).map_err(|e| failed("drop half of", snapshot, e));
            if let Err(error) = blocking(gone).await {
                tracing::warn!(%snapshot, %error, "half of a snapshot stays on the disk until the next start");
            }
        }
        captured
    }

    async fn capture_frozen(&mut self, wanted: Capture) -> Result<(), NodeError> {
        let Held::Frozen(standing) = &mut self.machine else { return Err(NodeError::NotRunning) };
        standing.leave_off().await;
        let saver = wanted.memory.then(|| standing.machine.saver());
        let (group, limit) = (standing.machine.group(), standing.machine.identity().memory_bytes);
        let given_up = CancellationToken::new();
        let work = Box::pin(write(self.state.clone(), wanted, saver, group, limit, given_up.clone()));
        let written = self.unless_stopped(given_up, work).await;
        if let Held::Frozen(standing) = &mut self.machine {
            standing.save_again();
        }
        written.map_err(|error| error.unwrap_or_else(stopped_meanwhile))
    }

    /// Of a sandbox without a machine: what is saved of it, or its disk.
    async fn capture_kept(&mut self, wanted: Capture) -> Result<(), NodeError> {
        let Capture { id, snapshot, memory } = wanted;
        let newest = self.newest().await?;
        let state = self.state.clone();
        blocking(move || {
            let fail = |e: SaveError| failed("take a snapshot of", id, e);
            match newest {
                None if memory => return Err(NodeError::NotRunning),
                None if !state.has_disk(id)? => return Err(NodeError::DiskGone),
                None => {
                    let dir = state.snapshots.begin(snapshot).map_err(fail)?;
                    state.host.pool.keep_root(&host_name(id), &dir, DISK).map_err(|e| fail(e.into()))?;
                }
                Some(newest) => {
                    let dir = state.snapshots.begin(snapshot).map_err(fail)?;
                    if memory {
                        let into = dir.join(MEMORY);
                        make(&into).and_then(|()| copy_files(&newest.saved.dir, &into)).map_err(fail)?;
                    }
                    // Last: it makes durable all that came before it.
                    state.host.pool.keep_copy(&newest.disk, &dir, DISK).map_err(|e| fail(e.into()))?;
                }
            }
            state.snapshots.commit(snapshot).map_err(fail)
        })
        .await
    }

    /// A copy of the memory of a snapshot, if it has one, for this sandbox to come back from.
    pub(super) async fn take_memory(&mut self, snapshot: SnapshotId) -> Result<Option<Newest>, NodeError> {
        let (state, id) = (self.state.clone(), self.id);
        blocking(move || {
            let fail = |e: SaveError| failed("copy the memory for", id, e);
            let Some(memory) = state.snapshots.memory(snapshot).map_err(fail)? else { return Ok(None) };
            state.saves.take_copy(id, new_generation(), &memory).map_err(fail)?;
            state.saves.newest(id).map_err(fail)
        })
        .await
    }
}

async fn write(
    state: Arc<HostState>,
    wanted: Capture,
    saver: Option<Arc<dyn Save>>,
    group: Group,
    limit: u64,
    given_up: CancellationToken,
) -> Result<(), NodeError> {
    let Capture { id, snapshot, .. } = wanted;
    let (host, memory) = (state.clone(), saver.is_some());
    let dir = blocking(move || {
        let dir = host.snapshots.begin(snapshot).map_err(|e| failed("begin a snapshot of", id, e))?;
        if memory {
            make(&dir.join(MEMORY)).map_err(|e| failed("begin a snapshot of", id, e))?;
        }
        Ok(dir)
    })
    .await?;
    if let Some(saver) = saver {
        let room = group.set_memory_limit(limit.saturating_add(HEADROOM));
        room.map_err(|e| failed("give room to save to", id, e))?;
        saver.save(&dir.join(MEMORY), &given_up).await.map_err(|e| failed("save the memory of", id, e))?;
    }
    if given_up.is_cancelled() {
        return Err(stopped_meanwhile());
    }
    blocking(move || {
        state.host.pool.keep_root(&host_name(id), &dir, DISK).map_err(|e| failed("copy the disk of", id, e))?;
        state.snapshots.commit(snapshot).map_err(|e| failed("keep the snapshot of", id, e))
    })
    .await
}
