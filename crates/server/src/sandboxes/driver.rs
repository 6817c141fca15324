//! The driver of a sandbox: does what its row says is under way. One at a time per sandbox, in a task of its own.
//!
//! Each step may be repeated (the node's calls are repeatable), and each has its undo: a start that fails takes away what
//! it made (a new disk) and keeps what was there before (a kept one). A failure that leaves the row as it is, is tried
//! again by the reconciler's next round.

use std::sync::Arc;
use std::time::Duration;

use runtime_model::{Event, Reason, SandboxId, State};
use runtime_proto::node::{Disk, Order};
use runtime_store::{Operation, SandboxRow};

use super::change::{Step, apply};
use super::live::Live;
use crate::AppState;
use crate::error::{ApiError, Kind};

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

    async fn drive(&self, live: &Live) {
        loop {
            let result = match live.peek() {
                None => self.remove(live).await,
                Some(row) => match (row.state, row.operation) {
                    (State::Starting, Some(Operation::StartKept)) => self.start(live, &row, Disk::Kept).await,
                    (State::Starting, _) => self.start(live, &row, Disk::New).await,
                    (State::Stopping, _) => self.stop(live).await,
                    (State::Running | State::Stopped | State::Pausing | State::Paused | State::Resuming, _) => {
                        Ok(Next::Rest)
                    }
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
        let hostname = format!("sandbox-{}", &id.to_string()[..8]);
        let order = Order { id, shape: row.shape, hostname, disk };
        let mut start = self.node().start(order);
        let started = tokio::select! {
            started = &mut start => started,
            // Deleted or stopped meanwhile: the start ends at the stop.
            _ = live.wait_until(Duration::MAX, |row| row.state != State::Starting) => {
                let (started, stopped) = tokio::join!(start, self.node().stop(id));
                stopped.map_err(|error| ApiError::internal(format!("stopping the start of sandbox {id}"), error))?;
                started
            }
        };
        match started {
            Ok(()) => {
                live.note_start_error(None);
                self.report(live, Event::Booted, |_| {}).await?;
            }
            Err(error) => {
                tracing::warn!(sandbox = %id, error = &error as &dyn std::error::Error, "a start failed");
                let undone = match disk {
                    Disk::New => self.node().remove(id).await,
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

    async fn stop(&self, live: &Live) -> Result<Next, ApiError> {
        let id = live.id;
        self.node().stop(id).await.map_err(|error| ApiError::internal(format!("stopping sandbox {id}"), error))?;
        let disk_kept = self.has_disk(id).await?;
        self.report(live, Event::Ended, |row| row.disk_kept = disk_kept).await?;
        Ok(Next::Look)
    }

    async fn has_disk(&self, id: SandboxId) -> Result<bool, ApiError> {
        let there = self.node().has_disk(id).await;
        there.map_err(|error| ApiError::internal(format!("looking for the disk of sandbox {id}"), error))
    }

    async fn remove(&self, live: &Live) -> Result<Next, ApiError> {
        let id = live.id;
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

enum Next {
    /// The row may say more.
    Look,
    Rest,
}
