//! The driver of a sandbox: does what its row says is under way. One at a time per sandbox, in a task of its own.
//!
//! Each step may be repeated (the node's calls are repeatable), and each has its undo: a start that fails takes away what
//! it made (a new disk) and keeps what was there before (a kept one). A failure that leaves the row as it is, is tried
//! again by the reconciler's next round.

use std::sync::Arc;
use std::time::Duration;

use runtime_model::{Event, Reason, SandboxId, SnapshotId, State};
use runtime_proto::node::{Disk, NodeError, Order};
use runtime_store::{Operation, SandboxRow};

use super::change::{Step, apply};
use super::live::Live;
use super::network;
use crate::AppState;
use crate::error::{ApiError, Kind};

/// Of a host that is busy with the sandbox.
const ASK_AGAIN: Duration = Duration::from_millis(250);

impl AppState {
    /// Has the driver look at the row, now or again.
    pub(crate) fn nudge(&self, live: &Arc<Live>) {
        if live.wake_driver() {
            self.resume_driver(live);
        }
    }

    /// Runs the driver for one who held its place and was told that there is news.
    pub(crate) fn resume_driver(&self, live: &Arc<Live>) {
        let (app, live) = (self.clone(), live.clone());
        self.tasks().spawn(async move { app.drive(&live).await });
    }

    async fn drive(&self, live: &Arc<Live>) {
        loop {
            let result = match live.peek() {
                None => self.remove(live).await,
                Some(row) => match (row.state, row.operation) {
                    (State::Starting, Some(Operation::StartKept)) => self.start(live, &row, Disk::Kept).await,
                    (State::Starting, Some(Operation::StartCopy)) => self.start_copy(live, &row).await,
                    (State::Starting, _) => self.start(live, &row, Disk::New).await,
                    (State::Stopping, Some(Operation::Resize)) => self.stop_to_start(live).await.map(|()| Next::Look),
                    (State::Stopping, _) => self.stop(live).await,
                    (State::Pausing, Some(Operation::Capture)) => self.capture_running(live).await,
                    (State::Running, _) if live.wants_captures() => self.stand_still(live).await,
                    (State::Paused | State::Stopped, _) if live.wants_captures() => {
                        self.take_snapshots(live).await.map(|_| Next::Rest)
                    }
                    (State::Pausing, _) => self.freeze(live).await,
                    (State::Resuming, _) => self.resume(live, &row).await,
                    (State::Running | State::Stopped | State::Paused, _) => Ok(Next::Rest),
                },
            };
            match result {
                Ok(Next::Look) => continue,
                Ok(Next::Rest) => {}
                Err(error) => {
                    let cause = error.cause().map_or_else(|| error.to_string(), str::to_owned);
                    tracing::error!(sandbox = %live.id, cause, "an operation failed; it will be tried again");
                }
            }
            if !live.driver_goes_on() {
                return;
            }
        }
    }

    async fn start(&self, live: &Live, row: &SandboxRow, disk: Disk) -> Result<Next, ApiError> {
        let id = live.id;
        let work = self.node().start(order(row, disk));
        // Cut short, a new sandbox would have no disk, and every stop keeps one: that start goes on to its end.
        let started = match disk {
            Disk::New | Disk::Snapshot(_) => self.unless(live, |row| row.is_none(), work).await?,
            Disk::Kept => self.unless_moved_on(live, State::Starting, work).await?,
        };
        // What becomes of it is not a matter of this start any more.
        if live.peek().is_none_or(|row| row.state != State::Starting) {
            return Ok(Next::Look);
        }
        match started {
            Ok(()) => {
                live.note_start_error(None);
                live.note_started_under(row.network_version);
                self.report(live, Event::Booted, |_| {}).await?;
                // They may have changed while it started.
                self.enforce(live).await?;
            }
            // After a crash its host looks first whether the copy runs already.
            Err(NodeError::Busy(_)) if matches!(disk, Disk::Snapshot(_)) => tokio::time::sleep(ASK_AGAIN).await,
            Err(error) => {
                tracing::warn!(sandbox = %id, error = &error as &dyn std::error::Error, "a start failed");
                let undone = match disk {
                    Disk::New | Disk::Snapshot(_) => self.node().remove(id).await,
                    Disk::Kept => self.node().stop(id).await,
                };
                undone.map_err(|error| ApiError::internal(format!("undoing the start of sandbox {id}"), error))?;
                let disk_kept = self.has_disk(id).await?;
                live.note_start_error(Some(error));
                self.report(live, Event::BootFailed, |row| {
                    row.reason = Some(Reason::StartupFailed);
                    row.disk_kept = disk_kept;
                })
                .await?;
            }
        }
        Ok(Next::Look)
    }

    async fn start_copy(&self, live: &Live, row: &SandboxRow) -> Result<Next, ApiError> {
        match row.snapshot.as_deref().and_then(|id| id.parse::<SnapshotId>().ok()) {
            Some(snapshot) => self.start(live, row, Disk::Snapshot(snapshot)).await,
            None => {
                live.note_start_error(Some(NodeError::SnapshotGone));
                self.report(live, Event::BootFailed, |row| row.reason = Some(Reason::StartupFailed)).await?;
                Ok(Next::Look)
            }
        }
    }

    /// Snapshots are wanted of one that runs. Its row says so before it stands still, and goes on from there after a crash.
    async fn stand_still(&self, live: &Live) -> Result<Next, ApiError> {
        let step = |row: &SandboxRow| {
            if row.state != State::Running {
                return Ok(Step::Stay);
            }
            let Some(mut next) = apply(row, Event::Pause)? else { return Ok(Step::Stay) };
            next.operation = Some(Operation::Capture);
            Ok(Step::save(next))
        };
        match self.change(live, step).await {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(Next::Look),
        }
    }

    async fn capture_running(&self, live: &Arc<Live>) -> Result<Next, ApiError> {
        let there = self.take_snapshots(live).await?;
        let machines = self.node().machines().await;
        let machines = machines.map_err(|error| ApiError::internal("looking at the machines", error))?;
        if !there || !machines.iter().any(|one| one.id == live.id && (one.running || one.paused)) {
            tracing::warn!(sandbox = %live.id, "its machine was gone when a snapshot was taken; its disk is kept");
            let lost = |row: &mut SandboxRow| {
                row.reason = Some(Reason::HostStopped);
                row.disk_kept = true;
            };
            self.report(live, Event::Ended, lost).await?;
            return Ok(Next::Look);
        }
        let step = |row: &SandboxRow| {
            // Paused by somebody meanwhile, or woken, or stopped: then that is what counts.
            if row.state != State::Pausing || row.operation != Some(Operation::Capture) {
                return Ok(Step::Stay);
            }
            let Some(mut next) = apply(row, Event::Wake)? else { return Ok(Step::Stay) };
            next.operation = Some(Operation::Wake);
            next.memory_restored = None;
            Ok(Step::save(next))
        };
        match self.change(live, step).await {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(Next::Look),
        }
    }

    async fn freeze(&self, live: &Live) -> Result<Next, ApiError> {
        let id = live.id;
        match self.node().pause(id).await {
            Ok(()) => self.report(live, Event::Frozen, |_| {}).await?,
            Err(NodeError::NotRunning) => {
                tracing::warn!(sandbox = %id, "its machine was gone when it was to be paused; its disk is kept");
                let lost = |row: &mut SandboxRow| {
                    row.reason = Some(Reason::HostStopped);
                    row.disk_kept = true;
                };
                self.report(live, Event::Ended, lost).await?;
            }
            // It runs as before: whoever asked is told, and may ask again.
            Err(error) => {
                tracing::warn!(sandbox = %id, error = &error as &dyn std::error::Error, "a pause failed");
                live.note_start_error(Some(error));
                self.report(live, Event::Thawed, |_| {}).await?;
            }
        }
        Ok(Next::Look)
    }

    /// Waits for work of the node's. Deleted or stopped meanwhile: the work ends at the stop.
    async fn unless_moved_on(
        &self,
        live: &Live,
        while_it_is: State,
        work: impl Future<Output = Result<(), NodeError>> + Unpin,
    ) -> Result<Result<(), NodeError>, ApiError> {
        self.unless(live, |row| row.is_none_or(|row| row.state != while_it_is), work).await
    }

    /// The same where `moved_on` says it of the row, which is gone where there is none.
    pub(crate) async fn unless<T>(
        &self,
        live: &Live,
        moved_on: impl Fn(Option<&SandboxRow>) -> bool,
        mut work: impl Future<Output = Result<T, NodeError>> + Unpin,
    ) -> Result<Result<T, NodeError>, ApiError> {
        let moved_on = tokio::select! {
            done = &mut work => return Ok(done),
            row = live.wait_until(Duration::MAX, |row| moved_on(Some(row))) => moved_on(row.as_deref()),
        };
        if !moved_on {
            // The server stops. The node ends with it, and what is under way is found by the next one.
            return Ok(work.await);
        }
        let (done, stopped) = tokio::join!(work, self.node().stop(live.id));
        let failed = |error| ApiError::internal(format!("stopping the start of sandbox {}", live.id), error);
        stopped.map_err(failed)?;
        Ok(done)
    }

    /// With the memory it had; from its disk alone if that is gone, which the row says before anything runs.
    async fn resume(&self, live: &Live, row: &SandboxRow) -> Result<Next, ApiError> {
        let id = live.id;
        let lost = row.memory_restored == Some(false);
        let order = order(row, Disk::Kept);
        let work = if lost { self.node().start(order) } else { self.node().wake(order) };
        let woken = self.unless_moved_on(live, State::Resuming, work).await?;
        match woken {
            Ok(()) => {
                live.note_start_error(None);
                live.note_started_under(row.network_version);
                self.report(live, Event::Thawed, |row| row.memory_restored = Some(!lost)).await?;
                self.enforce(live).await?;
            }
            Err(error @ NodeError::MemoryGone(_)) => {
                tracing::error!(
                    sandbox = %id, error = &error as &dyn std::error::Error,
                    "a paused sandbox cannot go on where it stood; it starts from its disk",
                );
                let noted = self.change(live, |row| {
                    let resuming = row.state == State::Resuming;
                    let next = SandboxRow { memory_restored: Some(false), ..row.clone() };
                    Ok(if resuming { Step::save(next) } else { Step::Stay })
                });
                match noted.await {
                    Err(error) if error.kind() != Kind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Err(NodeError::DiskGone) => {
                live.note_start_error(Some(NodeError::DiskGone));
                self.report(live, Event::Ended, |row| row.reason = Some(Reason::HostLost)).await?;
            }
            Err(error) => {
                tracing::warn!(sandbox = %id, error = &error as &dyn std::error::Error, "a wake failed");
                live.note_start_error(Some(error));
                self.report(live, Event::BootFailed, |_| {}).await?;
            }
        }
        Ok(Next::Look)
    }

    async fn stop(&self, live: &Live) -> Result<Next, ApiError> {
        let id = live.id;
        self.node().stop(id).await.map_err(|error| ApiError::internal(format!("stopping sandbox {id}"), error))?;
        let disk_kept = self.has_disk(id).await?;
        self.report(live, Event::Ended, |row| row.disk_kept = disk_kept).await?;
        Ok(Next::Look)
    }

    pub(super) async fn has_disk(&self, id: SandboxId) -> Result<bool, ApiError> {
        let there = self.node().has_disk(id).await;
        there.map_err(|error| ApiError::internal(format!("looking for the disk of sandbox {id}"), error))
    }

    async fn remove(&self, live: &Live) -> Result<Next, ApiError> {
        let id = live.id;
        self.fail_snapshots_of(id).await?;
        self.node().remove(id).await.map_err(|error| ApiError::internal(format!("removing sandbox {id}"), error))?;
        let noted = self.store().removed(id).await;
        noted.map_err(|error| ApiError::internal(format!("noting the removal of sandbox {id}"), error))?;
        self.sandboxes().remove(id);
        Ok(Next::Rest)
    }

    /// What became of the machine. Does nothing where the row has moved on: the driver looks again.
    pub(crate) async fn report(
        &self,
        live: &Live,
        event: Event,
        more: impl Fn(&mut SandboxRow),
    ) -> Result<(), ApiError> {
        let step = |row: &SandboxRow| match apply(row, event) {
            Ok(Some(mut next)) => {
                more(&mut next);
                Ok(Step::save(next))
            }
            Ok(None) => Ok(Step::Stay),
            // A late report about a row that has moved on.
            Err(_) => Ok(Step::Stay),
        };
        match self.change(live, step).await {
            Ok(_) => Ok(()),
            // Deleted meanwhile: the driver sees it at its next look.
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn order(row: &SandboxRow, disk: Disk) -> Order {
    let id = row.id;
    Order { id, shape: row.shape, hostname: Order::hostname_of(id), disk, rules: network::rules(row) }
}

enum Next {
    /// The row may say more.
    Look,
    Rest,
}
