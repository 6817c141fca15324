//! One sandbox in memory: its current row, published to all who wait, its activity, and whether its driver is at work.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use runtime_model::{SandboxId, State};
use runtime_proto::node::NodeError;
use runtime_store::{Operation, SandboxRow};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pause::Wake;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};
use crate::{AppState, Caller};

const CPU_EVERY: Duration = Duration::from_secs(5);
/// What uses this part of a CPU is not idle.
const BUSY_PART: u128 = 40;

pub struct Live {
    pub id: SandboxId,
    /// `None`: deleted.
    row: watch::Sender<Option<Arc<SandboxRow>>>,
    /// Ends every wait for a change.
    stopping: CancellationToken,
    last_active: AtomicI64,
    /// Calls into it that are under way.
    busy: AtomicUsize,
    work: Mutex<Work>,
    /// When its CPU time was last measured, and what it was.
    cpu: Mutex<Option<(Instant, u64)>>,
    /// A task is looking whether a limit is reached.
    limiting: AtomicBool,
    /// Snapshots are wanted of it.
    captures: AtomicBool,
    /// The version of the network rules that the node holds it to, as far as this server knows.
    enforced: AtomicU64,
    /// A task is having newer ones enforced.
    enforcing: AtomicBool,
    /// Why the last start, pause or wake failed, for the one who asked for it.
    start_error: Mutex<Option<NodeError>>,
}

/// The driver of a sandbox: asleep, at work, or at work with news to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Asleep,
    Driving,
    DrivingAgain,
}

impl Live {
    pub(crate) fn new(id: SandboxId, row: Option<SandboxRow>, stopping: CancellationToken) -> Self {
        let last_active = row.as_ref().and_then(|row| row.last_active_at).unwrap_or_default();
        Self {
            id,
            row: watch::Sender::new(row.map(Arc::new)),
            stopping,
            last_active: AtomicI64::new(last_active),
            busy: AtomicUsize::new(0),
            work: Mutex::new(Work::Asleep),
            cpu: Mutex::new(None),
            limiting: AtomicBool::new(false),
            captures: AtomicBool::new(false),
            enforced: AtomicU64::new(0),
            enforcing: AtomicBool::new(false),
            start_error: Mutex::new(None),
        }
    }

    /// The newest row; 404 once it is deleted.
    pub fn row(&self) -> Result<Arc<SandboxRow>, ApiError> {
        self.row.borrow().clone().ok_or_else(not_found)
    }

    pub(crate) fn peek(&self) -> Option<Arc<SandboxRow>> {
        self.row.borrow().clone()
    }

    /// Shows a row to all, unless a newer one is shown already; nothing follows a deletion.
    pub(crate) fn publish(&self, row: SandboxRow) {
        self.row.send_if_modified(|shown| match shown {
            Some(older) if older.generation < row.generation => {
                *shown = Some(Arc::new(row));
                true
            }
            _ => false,
        });
    }

    pub(crate) fn publish_gone(&self) {
        self.row.send_replace(None);
    }

    /// Counts as use of the sandbox.
    pub fn touch(&self) {
        self.last_active.fetch_max(now_ms(), Ordering::Relaxed);
    }

    pub(crate) fn last_active(&self) -> i64 {
        self.last_active.load(Ordering::Relaxed)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    fn cpu(&self) -> std::sync::MutexGuard<'_, Option<(Instant, u64)>> {
        self.cpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is time to measure its CPU time again.
    pub(crate) fn cpu_is_due(&self, now: Instant) -> bool {
        self.cpu().is_none_or(|(then, _)| now.duration_since(then) >= CPU_EVERY)
    }

    /// Takes note of its CPU time. True if it used enough since the last time to count as active.
    pub(crate) fn note_cpu(&self, now: Instant, cpu_ns: u64) -> bool {
        let before = self.cpu().replace((now, cpu_ns));
        before.is_some_and(|(then, before_ns)| {
            let used = u128::from(cpu_ns.saturating_sub(before_ns));
            used * BUSY_PART >= now.duration_since(then).as_nanos()
        })
    }

    /// Waits until `done` holds of the row, or it is deleted, or the time is over, or the server stops; then whatever is.
    pub(crate) async fn wait_until(
        &self,
        limit: Duration,
        done: impl Fn(&SandboxRow) -> bool,
    ) -> Option<Arc<SandboxRow>> {
        let mut rows = self.row.subscribe();
        let wait = rows.wait_for(|row| row.as_deref().is_none_or(&done));
        tokio::select! {
            biased;
            waited = tokio::time::timeout(limit, wait) => match waited {
                Ok(Ok(row)) => row.clone(),
                // The sender lives as long as `self`.
                Ok(Err(_)) | Err(_) => self.peek(),
            },
            () = self.stopping.cancelled() => self.peek(),
        }
    }

    /// Waits until nothing is under way.
    pub(crate) async fn settled(&self, limit: Duration) -> Option<Arc<SandboxRow>> {
        self.wait_until(limit, |row| is_settled(row.state)).await
    }

    fn work(&self) -> std::sync::MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True: the caller is to run the driver. False: it runs, and will look again.
    pub(crate) fn wake_driver(&self) -> bool {
        let mut work = self.work();
        let was = *work;
        *work = if was == Work::Asleep { Work::Driving } else { Work::DrivingAgain };
        was == Work::Asleep
    }

    /// True: there was news since the last look. False: the driver is asleep from here on.
    pub(crate) fn driver_goes_on(&self) -> bool {
        let mut work = self.work();
        let again = *work == Work::DrivingAgain;
        *work = if again { Work::Driving } else { Work::Asleep };
        again
    }

    pub(crate) fn driver_sleeps(&self) -> bool {
        *self.work() == Work::Asleep
    }

    /// True: the caller is the only one to look at its limits.
    pub(crate) fn begin_limit(&self) -> bool {
        !self.limiting.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn end_limit(&self) {
        self.limiting.store(false, Ordering::Release);
    }

    pub(crate) fn want_captures(&self) {
        self.captures.store(true, Ordering::Release);
    }

    pub(crate) fn captures_seen(&self) {
        self.captures.store(false, Ordering::Release);
    }

    pub(crate) fn wants_captures(&self) -> bool {
        self.captures.load(Ordering::Acquire)
    }

    pub(crate) fn enforced(&self) -> u64 {
        self.enforced.load(Ordering::Acquire)
    }

    pub(crate) fn note_enforced(&self, version: u64) {
        self.enforced.fetch_max(version, Ordering::AcqRel);
    }

    /// A new machine: what an earlier one was held to says nothing of it.
    pub(crate) fn note_started_under(&self, version: u64) {
        self.enforced.store(version, Ordering::Release);
    }

    /// True: the caller is the only one to have newer rules enforced.
    pub(crate) fn begin_enforcing(&self) -> bool {
        !self.enforcing.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn end_enforcing(&self) {
        self.enforcing.store(false, Ordering::Release);
    }

    pub(crate) fn note_start_error(&self, error: Option<NodeError>) {
        *self.start_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    pub(crate) fn start_error(&self) -> Option<NodeError> {
        self.start_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) fn is_settled(state: State) -> bool {
    matches!(state, State::Running | State::Paused | State::Stopped)
}

fn is_away(state: State) -> bool {
    matches!(state, State::Pausing | State::Paused | State::Resuming)
}

pub(crate) fn not_found() -> ApiError {
    ApiError::new(Kind::NotFound, "There is no sandbox with this id.")
}

/// A running sandbox that a guest call may use. Counts as activity until it is dropped; keep it as long as the call
/// (or its stream) lives.
pub struct Ready {
    pub id: SandboxId,
    pub row: Arc<SandboxRow>,
    live: Arc<Live>,
    is_use: bool,
}

impl Ready {
    pub(crate) fn live(&self) -> &Arc<Live> {
        &self.live
    }

    fn new(live: Arc<Live>, row: Arc<SandboxRow>) -> Self {
        live.busy.fetch_add(1, Ordering::Relaxed);
        live.touch();
        Self { id: live.id, row, live, is_use: true }
    }

    /// For a look that is no use of the sandbox.
    fn glance(live: Arc<Live>, row: Arc<SandboxRow>) -> Self {
        Self { id: live.id, row, live, is_use: false }
    }

    pub(crate) fn is_use(&self) -> bool {
        self.is_use
    }

    /// Waits while the sandbox is paused, or on its way there or back: what was begun in it goes on after the wake.
    pub(crate) async fn back(&self) -> Result<(), ApiError> {
        let mut rows = self.live.row.subscribe();
        let there = |row: &Option<Arc<SandboxRow>>| {
            row.as_deref().is_none_or(|row| matches!(row.state, State::Running | State::Stopping | State::Stopped))
        };
        // The sender lives as long as `self`.
        let row = rows.wait_for(there).await.map_err(|_| not_found())?;
        match row.as_deref().map(|row| row.state) {
            None => Err(not_found()),
            Some(State::Running) => Ok(()),
            Some(_) => Err(stopped()),
        }
    }

    /// It stands still, or is about to, or about to go on.
    pub(crate) fn is_away(&self) -> bool {
        self.live.peek().is_some_and(|row| is_away(row.state))
    }

    /// Waits until it is away. One whose disk alone is left, or nothing, never comes to that.
    pub(crate) async fn away(&self) {
        let mut rows = self.live.row.subscribe();
        let left = rows.wait_for(|row| row.as_deref().is_some_and(|row| is_away(row.state))).await.is_ok();
        if !left {
            std::future::pending().await
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if self.is_use {
            self.live.touch();
            self.live.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl AppState {
    /// The sandbox under this id if the caller may see it, else 404.
    pub async fn reach(&self, caller: &Caller, id: &str) -> Result<Arc<Live>, ApiError> {
        let id = parse_id(id)?;
        let live = self.live(id).await?.ok_or_else(not_found)?;
        let row = live.row()?;
        let reached = match &caller.session {
            Some(access) => access.sandbox == id,
            None => caller.reaches(row.credential),
        };
        if reached { Ok(live) } else { Err(not_found()) }
    }

    /// The same for a call into the sandbox: wakes it, waits while it starts, refuses one that is stopped.
    pub async fn ready(&self, caller: &Caller, id: &str) -> Result<Ready, ApiError> {
        let live = self.reach(caller, id).await?;
        self.ready_again(live).await
    }

    /// The same for a look that neither wakes the sandbox nor counts as use of it: it may be paused.
    pub(crate) async fn glance(&self, caller: &Caller, id: &str) -> Result<Ready, ApiError> {
        let live = self.reach(caller, id).await?;
        let row = live.row()?;
        match row.state {
            State::Running | State::Pausing | State::Paused | State::Resuming => Ok(Ready::glance(live, row)),
            State::Stopping | State::Stopped => Err(stopped()),
            State::Starting => Err(ApiError::new(Kind::SandboxNotReady, "The sandbox is still starting.")),
        }
    }

    /// For one that was reached before.
    pub(crate) async fn ready_again(&self, live: Arc<Live>) -> Result<Ready, ApiError> {
        let until = Instant::now() + self.config().ready_wait;
        let mut row = live.row()?;
        let mut woken = false;
        loop {
            match row.state {
                State::Running => return Ok(Ready::new(live, row)),
                State::Stopping | State::Stopped => return Err(stopped()),
                // It stands still for a snapshot, and goes on by itself.
                State::Pausing if row.operation == Some(Operation::Capture) => {}
                State::Pausing | State::Paused if !row.auto_wake => {
                    return Err(ApiError::new(Kind::SandboxPaused, "The sandbox is paused.").hint("Wake it first."));
                }
                State::Paused if woken => {
                    // Perhaps it was woken, and paused again by somebody: only a failure is an answer.
                    if let Some(error) = live.start_error() {
                        return Err(error.into());
                    }
                    self.wake_for_call(&live).await?;
                }
                State::Pausing | State::Paused => {
                    woken = true;
                    self.wake_for_call(&live).await?;
                }
                State::Starting | State::Resuming => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.sandboxes().stopping().is_cancelled() {
                return Err(ApiError::new(Kind::SandboxNotReady, "The sandbox is still starting."));
            }
            row = live.settled(left).await.ok_or_else(not_found)?;
        }
    }

    /// One that moved on by itself since it was looked at is looked at again.
    async fn wake_for_call(&self, live: &Arc<Live>) -> Result<(), ApiError> {
        match self.wake_up(live, Wake::Call).await {
            Err(error) if error.kind() == Kind::NotPaused => Ok(()),
            other => other,
        }
    }
}

fn stopped() -> ApiError {
    ApiError::new(Kind::SandboxStopped, "The sandbox is stopped.")
        .hint("Restart it: its disk is kept unless the record says otherwise.")
}

/// Only the one spelling of an id that we give out.
pub(crate) fn parse_id(text: &str) -> Result<SandboxId, ApiError> {
    let id: SandboxId = text.parse().map_err(|_| not_found())?;
    if id.to_string() == text { Ok(id) } else { Err(not_found()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fortieth_of_a_cpu_is_activity_and_less_is_not() {
        let live = Live::new(crate::test_rows::row().id, None, CancellationToken::new());
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert!(live.cpu_is_due(start) && !live.note_cpu(start, 7_000_000_000));
        assert!(!live.cpu_is_due(at(4)) && live.cpu_is_due(at(5)));
        assert!(live.note_cpu(at(5), 7_125_000_000));
        assert!(!live.note_cpu(at(10), 7_249_000_000));
        // Another machine counts from nothing.
        assert!(!live.note_cpu(at(15), 1_000_000));
        assert!(live.note_cpu(at(20), 2_000_000_000));
    }
}
