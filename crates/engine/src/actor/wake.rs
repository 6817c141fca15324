//! Pausing, waking, and what is kept of a machine meanwhile.

use std::path::PathBuf;
use std::time::Duration;

use runtime_proto::guest::{Ask, Nothing, Request, Tell};
use runtime_proto::node::{Disk, GuestStream, NodeError, Order};

use super::{Actor, Held, Running, stopped_meanwhile};
use crate::driver::{Booted, RestoreError, StillBooted, StillFrozen};
use crate::host_state::{blocking, chain, failed, new_generation};
use crate::link::Asker;
use crate::pause::{Standing, back_to_limit};
use crate::saves::Newest;

/// An agent that is busy, or does not answer, is frozen as it is.
const QUIESCE_LIMIT: Duration = Duration::from_secs(1);
/// A pause keeps the memory, and with it what was not brought to the disk in this time.
const SYNC_LIMIT: Duration = Duration::from_secs(10);
/// A memory that is refused once may have met a host in trouble.
const RESTORE_ATTEMPTS: usize = 2;

impl Actor {
    pub(super) async fn pause(&mut self) -> Result<(), NodeError> {
        self.certain()?;
        match std::mem::replace(&mut self.machine, Held::Down) {
            Held::Running(machine) if machine.relief.is_some() => {
                self.machine = Held::Running(machine);
                Err(NodeError::Busy("it is out of memory, and a process of it is being ended".to_owned()))
            }
            Held::Running(machine) => {
                if let Err(error) = self.write_back(&machine.asker, SYNC_LIMIT).await {
                    tracing::warn!(sandbox = %self.id, %error, "the disk of a paused sandbox is behind its memory");
                }
                self.freeze(machine).await
            }
            frozen @ Held::Frozen(_) => {
                self.machine = frozen;
                Ok(())
            }
            Held::Down => match self.newest().await? {
                Some(_) => Ok(()),
                None => Err(NodeError::NotRunning),
            },
        }
    }

    pub(super) async fn freeze(&mut self, machine: Running) -> Result<(), NodeError> {
        let id = self.id;
        // Or it would take what is about to be saved with it.
        self.clear().await;
        machine.asker.quiesce(QUIESCE_LIMIT).await;
        self.live.send_replace(None);
        let Running { booted, link, .. } = machine;
        drop(link);
        match booted.freeze().await {
            Ok(frozen) => {
                // What was open ended with the link; the wake brings its own rules.
                self.state.egress.disarm(id).await;
                self.stand(frozen);
                Ok(())
            }
            Err(StillBooted { machine, error }) => {
                self.take_over(Running::new(id, machine, &self.state));
                Err(failed("freeze", id, error))
            }
        }
    }

    /// Brings to the disk what the machine has written, for a copy of the disk to have it without the memory.
    pub(super) async fn write_back(&mut self, asker: &Asker, limit: Duration) -> Result<(), NodeError> {
        if !self.state.driver.holds_writes() {
            return Ok(());
        }
        let id = self.id;
        let asked = async {
            let stream = asker.ask(Request::new(Ask::Sync(Nothing {}))).await.map_err(|e| failed("ask", id, e))?;
            match GuestStream::new(stream).only().await.map_err(|e| failed("write back the disk of", id, e))? {
                Tell::Done(_) => Ok(()),
                _ => Err(NodeError::Failed(format!("cannot write back the disk of {id}: its agent answers otherwise"))),
            }
        };
        let timely = tokio::time::timeout(limit, asked).await;
        timely.unwrap_or_else(|_| Err(NodeError::Busy("its disk is too slow to take what was written".to_owned())))
    }

    /// The memory is on the disk. From here on its machine is only in the way.
    pub(super) async fn saved(&mut self, number: u64) {
        let (state, id) = (self.state.clone(), self.id);
        let committed =
            blocking(move || state.saves.commit(id, number).map_err(|e| failed("keep the save of", id, e))).await;
        let ended = match committed {
            Ok(()) => self.end_machine().await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::error!(sandbox = %id, %error, "a paused sandbox still takes up memory");
        }
    }

    pub(super) async fn wake(&mut self, order: Order) -> Result<(), NodeError> {
        self.certain()?;
        match std::mem::replace(&mut self.machine, Held::Down) {
            Held::Running(machine) => {
                self.machine = Held::Running(machine);
                // They may have changed when it was about to stand still.
                self.arm(&order).await
            }
            Held::Frozen(standing) => self.thaw(standing, &order).await,
            Held::Down => self.restore(&order).await,
        }
    }

    async fn thaw(&mut self, mut standing: Standing, order: &Order) -> Result<(), NodeError> {
        let id = self.id;
        standing.leave_off().await;
        // Of a save that was committed while its machine could not be ended.
        let (state, saves) = (self.state.clone(), self.state.clone());
        let marked =
            blocking(move || saves.saves.use_up(id).map_err(|e| failed("mark the saved memory of", id, e))).await;
        // Before it goes on, as before a start.
        let ready = match marked {
            Ok(()) => self.arm(order).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ready {
            self.machine = Held::Frozen(standing);
            return Err(error);
        }
        let group = standing.machine.group();
        let limit = standing.machine.identity().memory_bytes;
        match standing.machine.thaw().await {
            Ok(booted) => {
                self.frozen.send_replace(false);
                if let Err(error) = back_to_limit(&group, limit) {
                    let error = chain(&error);
                    tracing::warn!(sandbox = %id, error, "its memory limit stays raised");
                }
                let woken = match self.greet(Running::as_generation(id, booted, new_generation(), &state)).await {
                    Ok(()) => self.settle().await,
                    Err(error) => Err(error),
                };
                if woken.is_err() && self.stop_heard.is_none() {
                    self.back_to_sleep().await;
                }
                woken
            }
            Err(StillFrozen { machine, error }) => {
                self.state.egress.disarm(id).await;
                self.stand(machine);
                Err(failed("thaw", id, error))
            }
        }
    }

    /// A machine that cannot be used keeps its memory and stands still.
    async fn back_to_sleep(&mut self) {
        if let Held::Running(machine) = std::mem::replace(&mut self.machine, Held::Down)
            && let Err(error) = self.freeze(machine).await
        {
            tracing::error!(sandbox = %self.id, %error, "a sandbox whose wake failed does not stand still either");
        }
    }

    async fn restore(&mut self, order: &Order) -> Result<(), NodeError> {
        let id = self.id;
        let state = self.state.clone();
        let mut why = NodeError::MemoryGone("its machine ended before its memory was saved".to_owned());
        if self.newest().await?.is_none() {
            return Err(why);
        }
        let admitted = state.admit()?;
        let turn = self.turn(&state).await?;
        for _ in 0..RESTORE_ATTEMPTS {
            state.driver.clean(id).await.map_err(|e| failed("clean up", id, e))?;
            let Some(newest) = self.newest().await? else { break };
            let root = self.matching_disk(order, &newest).await?;
            why = match self.come_back(order, root, newest).await {
                Ok(()) => {
                    drop((turn, admitted));
                    let settled = self.settle().await;
                    if settled.is_err() {
                        self.undo_start(Disk::Kept).await;
                    }
                    return settled;
                }
                Err(error) => error,
            };
            self.undo_start(Disk::Kept).await;
            if self.stop_heard.is_some() {
                return Err(stopped_meanwhile());
            }
            tracing::warn!(sandbox = %id, error = %why, "a saved memory was not taken");
        }
        if matches!(why, NodeError::MemoryGone(_)) {
            self.drop_saved().await?;
        }
        Err(why)
    }

    /// Restores a memory on that disk and waits for its agent. Whatever comes of it has to be settled or undone.
    pub(super) async fn come_back(&mut self, order: &Order, root: PathBuf, newest: Newest) -> Result<(), NodeError> {
        let (id, state) = (self.id, self.state.clone());
        let plan = state.plan(order, root);
        let abort = plan.abort.clone();
        // Before it goes on, under its own rules, whatever held for what the memory is of.
        self.arm(order).await?;
        let work = state.driver.restore(plan, newest.saved);
        match self.unless_stopped(abort, work).await {
            Ok(booted) => self.greet(Running::new(id, booted, &state)).await,
            Err(None) => Err(stopped_meanwhile()),
            Err(Some(RestoreError::Unusable(what))) => Err(NodeError::MemoryGone(what)),
            Err(Some(RestoreError::Failed(error))) => Err(failed("restore", id, error)),
        }
    }

    /// The sandbox's disk as it was when that memory was saved.
    async fn matching_disk(&mut self, order: &Order, newest: &Newest) -> Result<PathBuf, NodeError> {
        if newest.disk_moved {
            tracing::warn!(sandbox = %self.id, "a wake was cut short: it is begun again, with the disk as it was");
            let (state, id, newest, disk_mib) = (self.state.clone(), self.id, newest.clone(), order.shape.disk_mib);
            blocking(move || {
                let back = state.saves.put_disk_back(&state.host.pool, id, &newest, disk_mib);
                back.map_err(|e| failed("put back the disk of", id, e))
            })
            .await?;
        }
        self.state.disk(order).await
    }

    /// A machine of an earlier server. What is saved of one that may be in the middle of a wake is kept until it was heard.
    pub(super) async fn meet(&mut self, booted: Box<dyn Booted>, saved: bool) -> Result<(), NodeError> {
        if !saved {
            self.take_over(Running::new(self.id, booted, &self.state));
            return self.state.unmark(self.id);
        }
        let machine = Running::new(self.id, booted, &self.state);
        let met = match self.greet(machine).await {
            Ok(()) => self.settle().await,
            Err(error) => Err(error),
        };
        if met.is_err() && self.stop_heard.is_none() {
            self.undo_start(Disk::Kept).await;
        }
        met
    }

    /// The machine was heard. What was saved of it must never run again, and only then may anybody use it.
    pub(super) async fn settle(&mut self) -> Result<(), NodeError> {
        let (state, id) = (self.state.clone(), self.id);
        blocking(move || state.saves.spend(id).map_err(|e| failed("use up the saved memory of", id, e))).await?;
        self.litter = true;
        self.show();
        self.state.unmark(id)
    }

    pub(super) async fn clear(&mut self) {
        if std::mem::take(&mut self.litter)
            && let Err(error) = self.drop_saved().await
        {
            tracing::warn!(sandbox = %self.id, %error, "a memory that is used up stays on the disk for now");
        }
    }

    pub(super) async fn drop_saved(&mut self) -> Result<(), NodeError> {
        let (state, id) = (self.state.clone(), self.id);
        blocking(move || state.saves.sweep(id, None).map_err(|e| failed("drop the saved memory of", id, e))).await
    }

    pub(super) async fn newest(&mut self) -> Result<Option<Newest>, NodeError> {
        let (state, id) = (self.state.clone(), self.id);
        blocking(move || state.saves.newest(id).map_err(|e| failed("look for the saved memory of", id, e))).await
    }
}
