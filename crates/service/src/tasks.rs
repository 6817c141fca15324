//! A group of tasks with one owner.
//!
//! Everything a daemon runs is spawned here under a name. Stopping is a token that every task watches; draining closes
//! the group, cancels the token, waits for the tasks within a grace time and names those that did not end. A task that
//! must run for the program to make sense is *critical*: if it ends, the group is asked to stop.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A cheap handle; clones are the same group.
#[derive(Debug, Clone, Default)]
pub struct TaskGroup {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    tracker: TaskTracker,
    stop: CancellationToken,
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    next: u64,
    names: BTreeMap<u64, String>,
}

/// Tasks that were still running when the grace time was over. They are left to the end of the process.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("still running after {}s: {}", grace.as_secs_f32(), names.join(", "))]
pub struct StillRunning {
    pub names: Vec<String>,
    pub grace: Duration,
}

impl TaskGroup {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when the group is to stop. Tasks watch it, or a child of it.
    #[must_use]
    pub fn stop_token(&self) -> CancellationToken {
        self.shared.stop.clone()
    }

    /// Asks every task to end, without waiting.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Resolves once somebody asked the group to stop.
    pub async fn stopping(&self) {
        self.shared.stop.cancelled().await;
    }

    /// Runs a task under a name until it ends by itself.
    pub fn spawn(&self, name: impl Into<String>, task: impl Future<Output = ()> + Send + 'static) {
        let entry = self.enter(name.into());
        self.shared.tracker.spawn(async move {
            // Held to the end: a panic unwinds through it, so that the task is never reported as running.
            let _entry = entry;
            task.await;
        });
    }

    /// Runs a task without which the program makes no sense: when it ends, or panics, the group stops.
    pub fn spawn_critical(&self, name: impl Into<String>, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.shared.stop.clone().drop_guard();
        let name = name.into();
        let label = name.clone();
        let token = self.shared.stop.clone();
        self.spawn(name, async move {
            let _stop = stop;
            task.await;
            if !token.is_cancelled() {
                tracing::error!(task = label, "a task that must keep running has ended; stopping");
            }
        });
    }

    /// Asks every task to end and waits for them. Nothing may be spawned afterwards.
    pub async fn drain(&self, grace: Duration) -> Result<(), StillRunning> {
        self.shared.tracker.close();
        self.stop();
        if tokio::time::timeout(grace, self.shared.tracker.wait()).await.is_ok() {
            return Ok(());
        }
        Err(StillRunning { names: self.names(), grace })
    }

    /// The names of the tasks that are running, oldest first.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.shared.running.lock().unwrap_or_else(PoisonError::into_inner).names.values().cloned().collect()
    }

    fn enter(&self, name: String) -> Entry {
        let mut running = self.shared.running.lock().unwrap_or_else(PoisonError::into_inner);
        let id = running.next;
        running.next += 1;
        running.names.insert(id, name);
        Entry { id, shared: Arc::clone(&self.shared) }
    }
}

/// A task's line in the list of what runs.
struct Entry {
    id: u64,
    shared: Arc<Shared>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.running.lock().unwrap_or_else(PoisonError::into_inner).names.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_drain_waits_for_tasks_that_watch_the_token() {
        let group = TaskGroup::new();
        let token = group.stop_token();
        group.spawn("patient", async move { token.cancelled().await });
        assert_eq!(group.names(), ["patient"]);
        group.drain(Duration::from_secs(30)).await.expect("it ends when told");
        assert!(group.names().is_empty());
    }

    #[tokio::test]
    async fn a_drain_names_what_did_not_end() {
        let group = TaskGroup::new();
        group.spawn("deaf", std::future::pending());
        let left = group.drain(Duration::from_millis(1)).await.expect_err("it never ends");
        assert_eq!(left.names, ["deaf"]);
    }

    #[tokio::test]
    async fn the_end_of_a_critical_task_stops_the_group() {
        let group = TaskGroup::new();
        group.spawn_critical("heart", async {});
        group.stopping().await;
        group.drain(Duration::from_secs(30)).await.expect("nothing is left");
    }

    #[tokio::test]
    async fn a_critical_task_that_panics_stops_the_group() {
        let group = TaskGroup::new();
        group.spawn_critical("heart", async { panic!("on purpose") });
        group.stopping().await;
        group.drain(Duration::from_secs(30)).await.expect("nothing is left");
    }
}
